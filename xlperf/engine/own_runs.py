"""Corrections of predictions by the user's own measured runs: the sheet ``my_cluster``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, exp, log, log2, power, total
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.equations.plan.records import Remark

SHEET = "my_cluster"
# Numbers and choices of a plan that define its distance from runs
NUMBERS = ("num_accelerators", "tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel",
           "data_parallel_attention", "micro_batch_size", "global_batch_size", "sequence_length", "concurrency",
           "batch_size", "prompt_length", "output_length")  # fmt: skip
CHOICES = ("precision", "recompute", "mode")
_NOTE = "times x {} by {} measured in my_cluster"


class Corrections(NamedTuple):
    """Corrections of plans by own runs, (rows,)."""

    time: Array  # factor on step times [-]
    first_token: Array  # factor on the time to first token [-]
    width: Array  # remaining fraction of the band's width [-]
    num_runs: np.ndarray  # runs behind the correction [-]


def columns_of(plans: Table) -> tuple[Array, np.ndarray]:
    """Numbers (rows, columns) and choices (rows, choices) that define distances between plans."""
    known = plans.schema.by_name
    blank = np.full(len(plans), np.nan)
    numbers = [plans.filled(name) if name in known else blank for name in NUMBERS]
    choices = [plans.filled(name).astype(str) if name in known else np.full(len(plans), "") for name in CHOICES]
    return np.stack(numbers, axis=-1), np.stack(choices, axis=-1)


def corrections(
    plans: Table,
    catalog: Catalog,
    models: np.ndarray,
    accelerators: np.ndarray,
    half_width: Array,
    first_half_width: Array | None = None,
) -> Corrections:
    """Corrections of plans by runs of their model, accelerator and software, from half of the logarithmic 80 % band of
    the step time, and of the first token, (rows,).
    """
    runs = catalog.tables[SHEET]
    count = len(plans)
    factors = Corrections(np.ones(count), np.ones(count), np.ones(count), np.zeros(count, dtype=np.int64))
    of_kind = np.flatnonzero(runs.text("plans") == plans.kind)
    if not len(of_kind) or not count:
        return factors
    runs = runs.take(of_kind)
    software = np.char.lower(plans.filled("software").astype(str))
    named = [catalog.rows(f"{name}s", runs.text(name), runs, name).tolist() for name in ("model", "accelerator")]
    keys = list(zip(*named, np.char.lower(runs.text("software").astype(str)).tolist(), strict=True))
    numbers, choices = columns_of(plans)
    first = half_width if first_half_width is None else first_half_width
    for key in dict.fromkeys(keys):
        rows = np.flatnonzero((models == key[0]) & (accelerators == key[1]) & (software == key[2]))
        same = runs.take(np.flatnonzero([run == key for run in keys]))
        for name, widths in (("time_ratio", half_width[rows]), ("first_token_ratio", first[rows])):
            measured = same.take(np.flatnonzero(~np.isnan(same.number(name))))
            for width in np.unique(widths[widths > 0.0]).tolist() if len(measured) else ():
                some = rows[widths == width]
                _correct(factors, some, measured, name, (numbers[some], choices[some]), width)
    return factors


def _correct(
    factors: Corrections, rows: np.ndarray, runs: Table, name: str, place: tuple[Array, np.ndarray], width: float
) -> None:
    """Enter the corrections of rows by the runs of one configuration."""
    run_numbers = np.stack([runs.number(column) for column in NUMBERS], axis=-1)
    run_choices = np.stack([runs.text(column).astype(str) for column in CHOICES], axis=-1)
    distance = plan_distances(place[0], run_numbers, place[1], run_choices)
    between = plan_distances(run_numbers, run_numbers, run_choices, run_choices)
    shared = SHARED if name == "time_ratio" else SHARED_FIRST
    ratio = log(runs.number(name))
    scale, remaining = shrunk_residual(distance, between, ratio, runs.filled("noise"), width, shared)
    if name == "time_ratio":
        factors.time[rows], factors.width[rows], factors.num_runs[rows] = exp(scale), remaining, len(runs)
    else:
        factors.first_token[rows] = exp(scale)


def corrected_step(results: Mapping[str, Array], scale: Array) -> dict[str, Array]:
    """Training results with step times scaled by a factor."""
    changed = dict(results)
    for name, values in results.items():
        if name == "step_time" or name.startswith("time_"):
            changed[name] = values * scale
    return changed


def narrowed(results: Mapping[str, np.ndarray], share: Array) -> dict[str, np.ndarray]:
    """Bands of times, rates and their consequences, narrowed about the prediction."""
    bands = {}
    for name in [name for name in results if name.endswith(("_low", "_high")) and not name.startswith("memory")]:
        middle = results[name.rpartition("_")[0]]
        with np.errstate(all="ignore"):
            bands[name] = np.where(share < 1.0, middle * power(results[name] / middle, share), results[name])
    return bands


def source_width(unread: Array, factors: Corrections | None, new: Array, read: Array | float) -> Array:
    """Logarithmic half-width that the source of a run adds to its band; 0 with own runs.

    ``new`` for unread software, ``read`` otherwise (:func:`xlperf.engine.trust.trust`).
    """
    width = np.where(unread > 0.0, new, read)
    return width if factors is None else np.where(factors.num_runs > 0, 0.0, width)


def own_runs_note(factors: Corrections, illegal: np.ndarray) -> Remark:
    """Factor on times and number of runs behind it."""
    return Remark(~illegal & (factors.num_runs > 0), _NOTE, (np.round(factors.time, 3), factors.num_runs))


SHARED = 0.7  # correlation of the residuals of equal plans on one model, accelerator and software [-]
REACH = 3.0  # distance over which the correlation falls by e [doublings]
SHARED_FIRST = 0.3  # correlation for the time to first token, which depends on more unknown settings [-]
HALF_WIDTH = 1.2815515655446004  # half-width of an 80 % band over the standard deviation [-]


def plan_distances(numbers: Array, other_numbers: Array, choices: np.ndarray, other_choices: np.ndarray) -> Array:
    r"""Distance between plans: doublings of degrees and loads, and 1 for each different choice.

    .. math:: d = \sum_i |\log_2 x_i - \log_2 y_i| + \#\{c_i \ne c'_i\}

    Heuristic, this work, from residuals of published rows with their model left out of the fit.
    """
    logs, other_logs = log2(numbers), log2(other_numbers)
    doublings = np.nan_to_num(np.abs(logs[:, None, :] - other_logs[None, :, :])).sum(axis=-1)
    return np.asarray(
        doublings + (np.asarray(choices)[:, None, :] != np.asarray(other_choices)[None, :, :]).sum(axis=-1)
    )


def shrunk_residual(
    distance: Array, between: Array, log_ratio: Array, noise: Array, half_width: float, shared: float = SHARED
) -> tuple[Array, Array]:
    r"""Expected logarithmic residual of plans near measured runs, and the remaining fraction of their band's width.

    Kriging with covariance falling with distance d (Rasmussen and Williams, "Gaussian Processes for Machine Learning",
    MIT Press 2006, section 2.2; shares and reach: heuristic, this work), in the spread :math:`\sigma` of the residuals:

    .. math:: \hat r = k^T K^{-1} r, \quad k_i = \rho e^{-d_i / 3}, \quad
        K_{ij} = \rho e^{-d_{ij} / 3} + \delta_{ij} (1 - \rho + \nu_i^2 / \sigma^2)

    Residuals beyond the band are clipped to its end. The remaining width is :math:`\sqrt{1 - k^T K^{-1} k}`.

    >>> scale, width = shrunk_residual(np.zeros((1, 1)), np.zeros((1, 1)), np.log([1.1]), np.zeros(1), 0.2)
    >>> [round(float(value), 3) for value in (np.exp(scale[0]), width[0])]
    [1.069, 0.714]
    """
    spread = half_width / HALF_WIDTH
    near = shared * exp(-np.asarray(distance, dtype=float) / REACH)
    specific = 1.0 - shared + (np.asarray(noise, dtype=float) / spread) ** 2
    covariance = shared * exp(-np.asarray(between, dtype=float) / REACH) + np.diag(specific)
    clipped = np.clip(np.asarray(log_ratio, dtype=float), -half_width, half_width)
    # Cholesky elimination: with K = L L^T, both results are products of L^-1 k, with L^-1 r and with itself.
    lines = np.concatenate([covariance, near.T, clipped[:, None]], axis=1)
    for step in range(len(lines)):
        lines[step] /= np.sqrt(lines[step, step])
        lines[step + 1 :] -= lines[step, step + 1 : len(lines), None] * lines[step]
    reduced, residual = lines[:, len(lines) : -1].T, lines[:, -1]
    variance = 1.0 - total(reduced * reduced)
    return total(reduced * residual), np.sqrt(np.maximum(variance, 0.0))
