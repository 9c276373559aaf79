"""Predictions corrected by measured runs of one's own: the sheet ``my_cluster``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, exp, log, log2, power, total
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.equations.plan.records import Remark

SHEET = "my_cluster"  # measured runs to correct predictions by; an empty sheet corrects nothing
# Columns of a plan by which runs are near or far
NUMBERS = (
    "num_accelerators",
    "tensor_parallel",
    "pipeline_parallel",
    "context_parallel",
    "expert_parallel",
    "data_parallel_attention",
    "micro_batch_size",
    "global_batch_size",
    "sequence_length",
    "concurrency",
    "batch_size",
    "prompt_length",
    "output_length",
)
CHOICES = ("precision", "recompute", "mode")  # choices of a plan by which runs are near or far
# Results of a training step that fall as its time grows
RATES = ("tokens_per_second", "tokens_per_second_per_accelerator", "model_flop_rate", "mfu", "mfu_causal", "hfu")
_NOTE = "times x {} by {} measured in my_cluster"


class Corrections(NamedTuple):
    """Corrections from own runs: factor on times, remaining width of bands, and number of runs behind them."""

    time: Array
    first_token: Array
    width: Array
    num_runs: np.ndarray


def columns_of(plans: Table) -> tuple[Array, np.ndarray]:
    """Numbers (rows, columns) and choices (rows, choices) by which plans are compared."""
    known = plans.schema.by_name
    nothing = np.full(len(plans), np.nan)
    numbers = [plans.filled(name) if name in known else nothing for name in NUMBERS]
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
    """Corrections of plans by runs of their model, accelerator and software.

    ``catalog``: with the sheet ``my_cluster``. ``models``, ``accelerators``: rows of the catalog that they name,
    (rows,). ``half_width``: half of the 80 % band of the time of a step in the logarithm, (rows,).
    ``first_half_width``: the same of the time to the first token.
    """
    runs = catalog.tables[SHEET]
    count = len(plans)
    found = Corrections(np.ones(count), np.ones(count), np.ones(count), np.zeros(count, dtype=np.int64))
    own = np.flatnonzero(runs.text("plans") == plans.kind)
    if not len(own) or not count:
        return found
    runs = runs.take(own)
    software = np.char.lower(plans.filled("software").astype(str))
    named = [catalog.rows(f"{name}s", runs.text(name), runs, name).tolist() for name in ("model", "accelerator")]
    keys = list(zip(*named, np.char.lower(runs.text("software").astype(str)).tolist(), strict=True))
    numbers, choices = columns_of(plans)
    first = half_width if first_half_width is None else first_half_width
    for key in dict.fromkeys(keys):
        rows = np.flatnonzero((models == key[0]) & (accelerators == key[1]) & (software == key[2]))
        same = runs.take(np.flatnonzero([one == key for one in keys]))
        for name, widths in (("time_ratio", half_width[rows]), ("first_token_ratio", first[rows])):
            told = same.take(np.flatnonzero(~np.isnan(same.number(name))))
            for width in np.unique(widths[widths > 0.0]).tolist() if len(told) else ():
                some = rows[widths == width]
                _correct(found, some, told, name, (numbers[some], choices[some]), width)
    return found


def _correct(
    found: Corrections, rows: np.ndarray, runs: Table, name: str, place: tuple[Array, np.ndarray], width: float
) -> None:
    """Enter the corrections of rows by the runs of one configuration."""
    run_numbers = np.stack([runs.number(column) for column in NUMBERS], axis=-1)
    run_choices = np.stack([runs.text(column).astype(str) for column in CHOICES], axis=-1)
    distance = plan_distances(place[0], run_numbers, place[1], run_choices)
    between = plan_distances(run_numbers, run_numbers, run_choices, run_choices)
    shared = SHARED if name == "time_ratio" else SHARED_FIRST
    ratio = log(runs.number(name))
    scale, left = shrunk_residual(distance, between, ratio, runs.filled("noise"), width, shared)
    if name == "time_ratio":
        found.time[rows], found.width[rows], found.num_runs[rows] = exp(scale), left, len(runs)
    else:
        found.first_token[rows] = exp(scale)


def corrected_step(results: Mapping[str, Array], scale: Array) -> dict[str, Array]:
    """Results of training steps whose times are longer by a factor."""
    changed = dict(results)
    for name, values in results.items():
        if name == "step_time" or name.startswith("time_"):
            changed[name] = values * scale
        elif name in RATES:
            changed[name] = values / scale
    return changed


def narrowed(results: Mapping[str, np.ndarray], share: Array) -> dict[str, np.ndarray]:
    """Bands of times, rates and what follows from them, narrower about the prediction."""
    found = {}
    for name in [name for name in results if name.endswith(("_low", "_high")) and not name.startswith("memory")]:
        middle = results[name.rpartition("_")[0]]
        with np.errstate(all="ignore"):
            found[name] = np.where(share < 1.0, middle * power(results[name] / middle, share), results[name])
    return found


def source_width(unread: Array, found: Corrections | None, new: Array, read: Array | float) -> Array:
    """Half-width that the source of a run adds to its band, as a logarithm: none for runs of the user's own.

    ``unread``: 1 where no run of the software, the model and the accelerator was published, (rows,). ``found``:
    corrections by own runs. ``new``, ``read``: half-widths where none was published and where some were, (rows,). [-]
    """
    width = np.where(unread > 0.0, new, read)
    return width if found is None else np.where(found.num_runs > 0, 0.0, width)


def own_runs_note(found: Corrections, illegal: np.ndarray) -> Remark:
    """By how much times were changed, and by how many runs."""
    return Remark(~illegal & (found.num_runs > 0), _NOTE, (np.round(found.time, 3), found.num_runs))


SHARED = 0.7  # share of the variance of a residual that runs of one model, accelerator and software have in common [-]
REACH = 3.0  # distance between two plans, in doublings, over which what they have in common falls by e [-]
SHARED_FIRST = 0.3  # the same share of the time to the first token, which depends on more that a plan does not say [-]
HALF_WIDTH = 1.2815515655446004  # half-width of an 80 % band over the standard deviation [-]


def plan_distances(numbers: Array, other_numbers: Array, choices: np.ndarray, other_choices: np.ndarray) -> Array:
    r"""Distance between plans: doublings of degrees and loads, and one for each choice that differs.

    .. math:: d = \sum_i |\log_2 x_i - \log_2 y_i| + \#\{c_i \ne c'_i\}

    References
    ----------
    .. [1] heuristic, this work: on residuals of published rows whose model was left out of the fit.
    """
    one, other = log2(numbers), log2(other_numbers)
    apart = np.nan_to_num(np.abs(one[:, None, :] - other[None, :, :])).sum(axis=-1)
    return np.asarray(apart + (np.asarray(choices)[:, None, :] != np.asarray(other_choices)[None, :, :]).sum(axis=-1))


def shrunk_residual(
    distance: Array, between: Array, log_ratio: Array, noise: Array, half_width: float, shared: float = SHARED
) -> tuple[Array, Array]:
    r"""Expected residual of plans near measured runs, and the share of the width of their band that is left.

    The best linear prediction of a residual :math:`r` whose covariance falls with the distance of two plans
    (kriging, or empirical Bayes with the spread :math:`\sigma` of the family's residuals):

    .. math:: \hat r = k^T K^{-1} r, \quad k_i = \rho e^{-d_i / 3}, \quad
              K_{ij} = \rho e^{-d_{ij} / 3} + \delta_{ij} (1 - \rho + \nu_i^2 / \sigma^2)

    A residual outside the band counts as at its end: such a run has a cause that others need not share. The width
    left is :math:`\sqrt{1 - k^T K^{-1} k}`.

    References
    ----------
    .. [1] C. E. Rasmussen and C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, section
       2.2; shares and reach: heuristic, this work.

    A run at the place of the plan, 10 % slower than predicted, without noise: 7 % slower are expected.

    >>> scale, width = shrunk_residual(np.zeros((1, 1)), np.zeros((1, 1)), np.log([1.1]), np.zeros(1), 0.2)
    >>> [round(float(value), 3) for value in (np.exp(scale[0]), width[0])]
    [1.069, 0.714]
    """
    spread = half_width / HALF_WIDTH
    near = shared * exp(-np.asarray(distance, dtype=float) / REACH)
    own = 1.0 - shared + (np.asarray(noise, dtype=float) / spread) ** 2
    common = shared * exp(-np.asarray(between, dtype=float) / REACH) + np.diag(own)
    seen = np.clip(np.asarray(log_ratio, dtype=float), -half_width, half_width)
    # With the Cholesky factor L of K both are products of L^-1 k, with L^-1 r and with itself.
    lines = np.concatenate([common, near.T, seen[:, None]], axis=1)
    for step in range(len(lines)):
        lines[step] /= np.sqrt(lines[step, step])
        lines[step + 1 :] -= lines[step, step + 1 : len(lines), None] * lines[step]
    reduced, known = lines[:, len(lines) : -1].T, lines[:, -1]
    left = 1.0 - total(reduced * reduced)
    return total(reduced * known), np.sqrt(np.maximum(left, 0.0))
