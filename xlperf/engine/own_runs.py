"""Predictions corrected by measured runs of one's own: the sheet ``my_cluster``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.shrinkage import SHARED, SHARED_FIRST, plan_distances, shrunk_residual
from xlperf.equations.plan.records import Remark

SHEET = "my_cluster"
"""Measured runs to correct predictions by; an empty sheet corrects nothing."""
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
"""Columns of a plan by which runs are near or far."""
CHOICES = ("precision", "recompute", "mode")
"""Choices of a plan by which runs are near or far."""
RATES = ("tokens_per_second", "tokens_per_second_per_accelerator", "model_flop_rate", "mfu", "hfu")
"""Results of a training step that fall as its time grows."""
_NOTE = "times x {} by {} measured in my_cluster"


class Corrections(NamedTuple):
    """What times of plans are multiplied by, what is left of the width of their bands, and how many runs say so."""

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

    Parameters
    ----------
    plans : Table
        Training or inference plans.
    catalog : Catalog
        With the sheet ``my_cluster``.
    models, accelerators : array of int
        Rows of the catalog that they name, (rows,).
    half_width : Array
        Half of the 80 % band of the time of a step in the logarithm, (rows,). [-]
    first_half_width : Array, optional
        The same of the time to the first token. [-]
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
    ratio = np.log(runs.number(name))
    scale, left = shrunk_residual(distance, between, ratio, runs.filled("noise"), width, shared)
    if name == "time_ratio":
        found.time[rows], found.width[rows], found.num_runs[rows] = np.exp(scale), left, len(runs)
    else:
        found.first_token[rows] = np.exp(scale)


def corrected_step(results: Mapping[str, Array], scale: Array) -> dict[str, Array]:
    """Results of training steps whose times are longer by a factor."""
    changed = dict(results)
    for name, values in results.items():
        if name == "step_time" or name.startswith("time_"):
            changed[name] = values * scale
        elif name in RATES:
            changed[name] = values / scale
    return changed


def narrowed(results: dict[str, np.ndarray], share: Array) -> None:
    """Narrow the bands of times, rates and what follows from them in place, about the prediction."""
    for name in [name for name in results if name.endswith(("_low", "_high")) and not name.startswith("memory")]:
        middle = results[name.rpartition("_")[0]]
        with np.errstate(all="ignore"):
            results[name] = np.where(share < 1.0, middle * (results[name] / middle) ** share, results[name])


def own_runs_note(found: Corrections, illegal: np.ndarray) -> Remark:
    """By how much times were changed, and by how many runs."""
    return Remark(~illegal & (found.num_runs > 0), _NOTE, (np.round(found.time, 3), found.num_runs))
