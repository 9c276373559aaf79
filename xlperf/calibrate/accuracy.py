"""Held-out errors: published rows and kernel shapes outside the fit, as tables for a terminal and for the README."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.units import factor
from xlperf.calibrate.cross_validation import cross_validated
from xlperf.calibrate.fit_machine_kernels import as_measured
from xlperf.calibrate.fitter import rounded
from xlperf.calibrate.published_errors import (
    QUANTITIES,
    Errors,
    configuration_weights,
    log_errors,
    plans_of,
    weighted_quantile,
)
from xlperf.catalog.catalog import Catalog
from xlperf.engine.join import software_words
from xlperf.engine.trust import RANGES, coordinates, format_and_load, model_traits
from xlperf.measurements.comparison import FIRST_TOKEN, MEMORY, predicted
from xlperf.measurements.kernels import KernelRows, Row, measurements, predicted_time
from xlperf.measurements.published import Published, PublishedPlans

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""Header and rows as text."""
_CROSS = (
    "rows", "quantity", "number", "configurations", "median error", "p90", "as a factor", "p90 as a factor", "bias",
    "by row: median", "by row: p90", "in the fit: median", "in the fit: p90", "in the 80 % band", "width of the band",
)  # fmt: skip
_KERNELS = ("operation", "accelerator", "precision", "held-out shapes", "median error", "p90", "target")
LONG = 50.0
"""Products shorter than this are not counted: kernel launch dominates their time. [us]"""
BARS = {
    "matrix product over 50 us": 0.05,
    "flash attention": 0.08,
    "attention, both passes": 0.08,
    "all-reduce": 0.08,
    "all-gather": 0.08,
    "reduce-scatter": 0.08,
    "all-to-all": 0.08,
}
"""Largest acceptable median error of an operation."""
WIDER = {("matrix product over 50 us", "B200-SXM-180GB", "fp8"): 0.08}
_OPERATIONS = {
    "gemm": "matrix product over 50 us",
    "attention": "flash attention",
    "attention_backward": "attention, both passes",
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "attention_decode": "attention, decoding",
}
_BY_SIZE = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True)
class KernelError:
    """Errors of held-out measurements: |predicted time / measured time - 1|, as fractions.

    A blank ``accelerator`` or ``precision`` means all of them; ``bar`` is the acceptable median, NaN if there is no
    bound.
    """

    operation: str
    accelerator: str
    precision: str
    count: int
    median: float
    p90: float
    bar: float

    @property
    def missed(self) -> bool:
        """Whether the median exceeds the acceptable one."""
        return self.median > self.bar


def kernel_errors(rows: Sequence[Row], catalog: Catalog) -> list[KernelError]:
    """Errors of the shapes held out of the fit: each operation as a whole, then by accelerator and precision.

    ``rows`` are columns of the sheet ``kernels`` of ``validation.xlsx``; ``catalog`` has the calibration under test.
    """
    result = measurements(rows, catalog).families
    whole, parts = [], []
    for family, operation in _OPERATIONS.items():
        if family not in result:
            continue
        held = result[family]
        chosen = held.held_back & ((held.time > LONG * factor("us")) | (family != "gemm"))
        sizes = np.abs(calibrated_time(held, catalog) / held.time - 1.0)
        if not chosen.any():
            continue
        whole.append(_error(operation, "", "", sizes[chosen]))
        names = np.array(held.accelerator, dtype=object)
        precision = np.array(["" if family in _BY_SIZE else one for one in held.precision], dtype=object)
        for key in sorted(set(zip(names[chosen].tolist(), precision[chosen].tolist(), strict=True))):
            mine = chosen & (names == key[0]) & (precision == key[1])
            parts.append(_error(operation, *key, sizes[mine]))
    return whole + parts


def _error(operation: str, accelerator: str, precision: str, sizes: Array) -> KernelError:
    bar = WIDER.get((operation, accelerator, precision), BARS.get(operation, np.nan))
    median, p90 = float(np.median(sizes)), float(np.quantile(sizes, 0.9))
    return KernelError(operation, accelerator, precision, len(sizes), median, p90, bar)


def calibrated_time(rows: KernelRows, catalog: Catalog) -> Array:
    """Time of measurements of one kernel family under the calibration of a catalog. [s]"""

    def constants(family: str) -> Mapping[str, Array]:
        keys = (np.array(names, dtype=object) for names in (rows.generation, rows.precision, rows.software))
        return as_measured(rows, catalog.calibration.constants(family, *keys)[0], catalog)

    forward = constants("attention") if rows.family == "attention_backward" else None
    return predicted_time(rows, constants(rows.family), forward)[:, 0]


def cross_validated_errors(
    published: Sequence[Published], catalog: Catalog, step: Callable[[str], None] | None = None
) -> list[Errors]:
    """Leave-one-model-out errors of each kind of row, beside today's bands: times first, then memory.

    ``catalog`` has the calibration that was fitted on ``published``; ``step`` receives a word before each evaluation of
    all rows. A kind without predictions is left out.
    """
    compared = (QUANTITIES, (MEMORY,))
    results = [cross_validated(rows, catalog, step, some).errors for rows in published for some in compared]
    return [errors for errors in results if len(errors)]


def cross_validation_table(errors: Sequence[Errors]) -> Table:
    """One line per group and quantity of :func:`cross_validated_errors`.

    Each configuration (software, model, accelerator) counts once.
    """
    lines: list[tuple[str, ...]] = []
    for kind in errors:
        for group, quantity in sorted(set(zip(kind.group.tolist(), kind.quantity.tolist(), strict=True))):
            some = kind.take((kind.group == group) & (kind.quantity == quantity) & ~np.isnan(kind.by_models))
            if not len(some):
                continue
            logs, weight = some.by_models, configuration_weights(some)
            size, factors = np.abs(np.expm1(logs)), np.abs(logs)
            width = np.log(some.high)
            lines.append(
                (
                    f"{kind.kind}: {group}", quantity, f"{len(some)}", f"{round(weight.sum())}",
                    _percent(weighted_quantile(size, weight, 0.5)), _percent(weighted_quantile(size, weight, 0.9)),
                    _factor(weighted_quantile(factors, weight, 0.5)), _factor(weighted_quantile(factors, weight, 0.9)),
                    f"{100.0 * math.expm1(weighted_quantile(logs, weight, 0.5)):+.1f} %",
                    *_statistics(logs), *_statistics(some.fitted),
                    _share(some.covered(logs), weight), _factor(weighted_quantile(width, weight, 0.5)),
                )
            )  # fmt: skip
    return _CROSS, lines


def _statistics(errors: Array) -> tuple[str, str]:
    sizes = np.abs(np.expm1(errors[~np.isnan(errors)]))
    if not len(sizes):
        return "-", "-"
    return _percent(float(np.median(sizes))), _percent(float(np.quantile(sizes, 0.9)))


def _share(inside: Array, weight: Array) -> str:
    known = ~np.isnan(inside)
    return f"{100.0 * float(inside[known] @ weight[known] / weight[known].sum()):.0f} %" if known.any() else "-"


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{100.0 * value:.1f} %"


def _factor(log: float) -> str:
    return "-" if math.isnan(log) else f"{math.exp(log):.2f}"


def kernel_table(errors: Sequence[KernelError]) -> Table:
    """One line per operation, then by accelerator and precision."""
    lines: list[tuple[str, ...]] = []
    for one in errors:
        bar = "-" if math.isnan(one.bar) else f"{100.0 * one.bar:.0f} %"
        cells = (f"{one.count}", _percent(one.median), _percent(one.p90), bar)
        lines.append((one.operation, one.accelerator or "all", one.precision, *cells))
    return _KERNELS, lines


_AS_PUBLISHED = " as published"


def measured_csv(published: Sequence[Published], catalog: Catalog, errors: Sequence[Errors]) -> str:
    """Text of ``measured.csv``: one row per model and accelerator with predicted published runs.

    Fitted rows have the errors of leave-one-model-out cross-validation; other rows are predicted directly.
    """
    left_out = {
        (one.kind, name): error
        for one in errors
        for name, quantity, error in zip(one.row_ids.tolist(), one.quantity.tolist(), one.by_models, strict=True)
        if quantity not in (FIRST_TOKEN, MEMORY)
    }
    ends = [f"{end} {name}" for name in RANGES for end in ("least", "most")]
    header = ["kind", "model", "shape", "active parameters", "accelerator", "generation", "rows", "median error", *ends]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*header, "software", "conditions"])
    for rows in published:
        writer.writerows(_rows_of(plans_of(rows, catalog), left_out))
    return stream.getvalue()


def _rows_of(plans: PublishedPlans, left_out: dict[tuple[str, str], float]) -> list[list[str]]:
    """Sorted rows of one kind."""
    kind, table, catalog = plans.published.kind, plans.plans, plans.catalog
    if not len(table):
        return []
    known, _ = log_errors(plans)
    times = {name: error for (name, quantity), error in known.items() if quantity != FIRST_TOKEN}
    results = predicted(plans)
    numbers = ("step_time", "tokens_per_second_per_accelerator", "tpot")
    at = coordinates(table, {name: results.number(name) for name in numbers if name in results})
    models = catalog.rows("models", table.text("model"), table, "model")
    chips = catalog.rows("accelerators", table.text("accelerator"), table, "accelerator")
    shapes, active = model_traits(catalog)
    software, condition = software_words(table), format_and_load(table)
    groups: dict[tuple[str, int], list[int]] = {}
    ids = plans.published.text["row_id"]
    for plan, row in enumerate(plans.index.tolist()):
        if ids[row] in times:
            groups.setdefault((shapes[models[plan]], int(chips[plan])), []).append(plan)
    items = []
    for (shape, chip), own in groups.items():
        names = Counter(str(table.text("model")[plan]).split(_AS_PUBLISHED)[0] for plan in own)
        error = [left_out.get((kind, ids[plans.index[plan]]), times[ids[plans.index[plan]]]) for plan in own]
        accelerators = catalog.tables["accelerators"]
        ran = [
            (software.words[software.codes[plan]].casefold(), condition.words[condition.codes[plan]]) for plan in own
        ]
        items.append(
            [
                kind,
                max(sorted(names), key=lambda name: names[name]),
                shape,
                f"{float(np.median(active[models[own]])):.4g}",
                str(accelerators.text("accelerator")[chip]),
                str(accelerators.text("generation")[chip]),
                f"{len({ids[plans.index[plan]] for plan in own})}",
                f"{rounded(float(np.nanmedian(np.abs(np.expm1(error)))))}",
                *(_end(values[own], end) for values in at for end in (np.fmin, np.fmax)),
                " ".join(sorted({stack for stack, _ in ran})),
                " ".join(sorted({f"{stack}/{how}" for stack, how in ran})),
            ]
        )
    return sorted(items)


def _end(values: Array, end: np.ufunc) -> str:
    value = float(end.reduce(values))
    return "" if math.isnan(value) else f"{value:.4g}"
