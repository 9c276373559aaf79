"""Held-out errors as tables for a terminal, for the accuracy page and for the README: published rows and kernel shapes.

What to expect comes from the readings alone: runs of publishers that no fit has read, as first predicted. Their bands
are those of the rule fitted without a tenth of the publishers at a time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError
from xlperf.base.files import replaced
from xlperf.base.units import factor, percent
from xlperf.calibrate.fit import cross_validated
from xlperf.calibrate.fitter import rounded
from xlperf.calibrate.own_fit import accuracies, accuracy_table, sources_left_out
from xlperf.calibrate.pooled_kernels import as_measured
from xlperf.calibrate.published_errors import QUANTITIES, Errors, log_errors, plans_of, weighted_quantile
from xlperf.calibrate.readings import NAMES, Readings, deployment_table, deployments, readings_of, widths_left_out
from xlperf.catalog.calibration import declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.csv_files import csv_text
from xlperf.engine.join import software_words
from xlperf.engine.trust import RANGES, coordinates, format_and_load, model_traits
from xlperf.measurements.comparison import FIRST_TOKEN, MEMORY, STEP_TIME, TIME_PER_TOKEN, power_records
from xlperf.measurements.kernels import KernelRows, Row, measurements, predicted_time
from xlperf.measurements.published import POWER, Published, PublishedPlans

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]  # header and rows as text
_CROSS = (
    "rows", "quantity", "number", "configurations", "median error", "p90", "as a factor", "p90 as a factor", "bias",
    "by row: median", "by row: p90", "in the fit: median", "in the fit: p90", "in the 80 % band", "width of the band",
)  # fmt: skip
_KERNELS = ("operation", "accelerator", "precision", "held-out shapes", "median error", "p90", "target")
LONG = 50.0  # products shorter than this are not counted: kernel launch dominates their time [us]
WIDER = {("matrix product over 50 us", "B200-SXM-180GB", "fp8"): 0.08}
_OPERATIONS = {
    "gemm": ("matrix product over 50 us", 0.05), "attention": ("flash attention", 0.08),
    "attention_backward": ("attention, both passes", 0.08), "all_reduce": ("all-reduce", 0.08),
    "all_gather": ("all-gather", 0.08), "reduce_scatter": ("reduce-scatter", 0.08), "all_to_all": ("all-to-all", 0.08),
    "attention_decode": ("attention, decoding", math.nan),
}  # fmt: skip
"""Name of an operation by family, and its largest acceptable median error, of which :data:`WIDER` has exceptions."""
_BY_SIZE = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True)
class KernelError:
    """Errors of held-out measurements, as fractions; a blank ``accelerator`` or ``precision`` means all of them."""

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
    """Errors of the shapes held out of the fit: each operation as a whole, then by accelerator and precision."""
    result = measurements(rows, catalog).families
    whole, parts = [], []
    for family, about in _OPERATIONS.items():
        if family not in result:
            continue
        of_family = result[family]
        chosen = of_family.held_back & ((of_family.time > LONG * factor("us")) | (family != "gemm"))
        sizes = np.abs(calibrated_time(of_family, catalog) / of_family.time - 1.0)
        if not chosen.any():
            continue
        whole.append(_error(*about, "", "", sizes[chosen]))
        names = np.array(of_family.accelerator, dtype=object)
        precision = np.array(["" if family in _BY_SIZE else name for name in of_family.precision], dtype=object)
        for key in sorted(set(zip(names[chosen].tolist(), precision[chosen].tolist(), strict=True))):
            with_key = chosen & (names == key[0]) & (precision == key[1])
            parts.append(_error(*about, *key, sizes[with_key]))
    return whole + parts


def _error(operation: str, bar: float, accelerator: str, precision: str, sizes: Array) -> KernelError:
    bar = WIDER.get((operation, accelerator, precision), bar)
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
    """Leave-one-model-out errors of each kind of row under its own calibration: times, then memory."""
    compared = (QUANTITIES, (MEMORY,))
    results = [cross_validated(rows, catalog, step, some).errors for rows in published for some in compared]
    return [errors for errors in results if len(errors)]


def cross_validation_table(errors: Sequence[Errors]) -> Table:
    """One line per group and quantity; each configuration (software, model, accelerator) counts once."""
    lines: list[tuple[str, ...]] = []
    for kind in errors:
        for group, quantity in sorted(set(zip(kind.group.tolist(), kind.quantity.tolist(), strict=True))):
            of_group = kind.take((kind.group == group) & (kind.quantity == quantity) & ~np.isnan(kind.by_models))
            if not len(of_group):
                continue
            logs, weight = of_group.by_models, of_group.configuration_weights
            size, factors = np.abs(np.expm1(logs)), np.abs(logs)
            width = np.log(of_group.high)
            lines.append(
                (
                    f"{kind.kind}: {group}",
                    quantity,
                    f"{len(of_group)}",
                    f"{round(weight.sum())}",
                    percent(weighted_quantile(size, weight, 0.5)),
                    percent(weighted_quantile(size, weight, 0.9)),
                    _factor(weighted_quantile(factors, weight, 0.5)),
                    _factor(weighted_quantile(factors, weight, 0.9)),
                    f"{100.0 * math.expm1(weighted_quantile(logs, weight, 0.5)):+.1f} %",
                    *_statistics(logs),
                    *_statistics(of_group.fitted),
                    _share(of_group.covered(logs), weight),
                    _factor(weighted_quantile(width, weight, 0.5)),
                )
            )
    return _CROSS, lines


def _statistics(errors: Array) -> tuple[str, str]:
    sizes = np.abs(np.expm1(errors[~np.isnan(errors)]))
    if not len(sizes):
        return "-", "-"
    return percent(float(np.median(sizes))), percent(float(np.quantile(sizes, 0.9)))


def _share(inside: Array, weight: Array) -> str:
    banded = ~np.isnan(inside)
    return percent(float(inside[banded] @ weight[banded] / weight[banded].sum()), 0) if banded.any() else "-"


def _factor(log: float) -> str:
    return "-" if math.isnan(log) else f"{math.exp(log):.2f}"


def kernel_table(errors: Sequence[KernelError]) -> Table:
    """One line per operation, then by accelerator and precision."""
    return _KERNELS, [
        (
            error.operation,
            error.accelerator or "all",
            error.precision,
            f"{error.count}",
            percent(error.median),
            percent(error.p90),
            percent(error.bar, 0),
        )
        for error in errors
    ]


_AS_PUBLISHED = " as published"


def measured_csv(published: Sequence[Published], catalog: Catalog, errors: Sequence[Errors]) -> str:
    """Text of ``measured.csv``, a row per model and accelerator; fitted rows have leave-one-model-out errors."""
    left_out = {
        (compared.kind, name): error
        for compared in errors
        for name, quantity, error in zip(
            compared.row_ids.tolist(), compared.quantity.tolist(), compared.by_models, strict=True
        )
        if quantity not in (FIRST_TOKEN, MEMORY)
    }
    ends = [f"{end} {name}" for name in RANGES for end in ("least", "most")]
    header = ["kind", "model", "shape", "active parameters", "accelerator", "generation", "rows", "median error", *ends]
    lines = [line for rows in published for line in _rows_of(plans_of(rows, catalog), left_out)]
    return csv_text([[*header, "software", "conditions"], *lines])


def _rows_of(plans: PublishedPlans, left_out: dict[tuple[str, str], float]) -> list[list[str]]:
    """Sorted rows of one kind."""
    kind, table, catalog = plans.published.kind, plans.plans, plans.catalog
    if not len(table):
        return []
    errors, results = log_errors(plans)
    times = {name: error for (name, quantity), error in errors.items() if quantity != FIRST_TOKEN}
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
        ran = [(software.words[software.codes[at]].casefold(), condition.words[condition.codes[at]]) for at in own]
        items.append(
            [
                kind,
                max(sorted(names), key=lambda name: names[name]),
                shape,
                f"{float(np.median(active[models[own]])):.4g}",
                *(str(accelerators.text(name)[chip]) for name in ("accelerator", "generation")),
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


_EXPECTED = (
    "quantity", "models", "runs", "publishers", "median error", "by publisher", "p90", "bias", "in the 80 % band",
    "width of the band", "few constants", "today",
)  # fmt: skip
_SHORT = (
    "quantity", "models", "runs", "median error", "bias", "in the 80 % band", "width of the band", "few constants",
)  # fmt: skip
_ALONE = (FIRST_TOKEN, MEMORY)  # quantities that the README shows for all models together
_FEWEST = 10  # least number of runs of a line of the table of groups [-]
_MOST = 14  # largest number of lines of that table [-]
_SHOWN_RUNS = ("1", "10")  # numbers of own runs of the table [-]
_KINDS = {None: "all", False: "dense", True: "with experts"}


class Page:
    """Tables of the accuracy page, made once each."""

    def __init__(self, published: Sequence[Published], catalog: Catalog, step: Callable[[str], None]) -> None:
        self.published, self.catalog, self.step = published, catalog, step

    @cached_property
    def readings(self) -> Readings:
        """Values of the readings."""
        return readings_of(self.published, self.catalog)

    @cached_property
    def widths(self) -> Array:
        """Half-width of the band of each value, by the rule without its publisher."""
        result = np.full(len(self.readings), math.nan)
        for quantity, name in NAMES.items():
            of_quantity = self.readings.quantity == quantity
            if of_quantity.any():
                result[of_quantity] = widths_left_out(self.readings.take(of_quantity), name)
        return result

    def expected(self) -> Table:
        """First predictions by quantity and kind of model, beside a baseline; power of rows that no fit has read."""
        lines = [
            self._line(quantity, experts)
            for quantity in NAMES
            for experts in (False, True)
            if self._mask(quantity, experts).any()
        ]
        return _EXPECTED, [*lines, *self._power()]

    def short(self) -> Table:
        """Six lines of few columns."""
        chosen = [(STEP_TIME, False), (STEP_TIME, True), (TIME_PER_TOKEN, False), (TIME_PER_TOKEN, True)]
        lines = [self._line(*line) for line in (*chosen, *((name, None) for name in _ALONE))]
        at = [_EXPECTED.index(name) for name in _SHORT]
        return _SHORT, [tuple(line[place] for place in at) for line in lines]

    def groups(self) -> Table:
        """Errors of readings by vendor line, and of engines and stacks with enough runs, the largest error first."""
        rows, lines = self.readings, []
        for quantity in (STEP_TIME, TIME_PER_TOKEN, FIRST_TOKEN):
            for names in (rows.line, rows.software):
                for name in sorted(set(names[rows.quantity == quantity].tolist())):
                    mask = (rows.quantity == quantity) & (names == name)
                    if mask.sum() >= _FEWEST and len(set(rows.source[mask].tolist())) > 2:
                        lines.append((float(np.median(_sizes(rows.today[mask]))), quantity, str(name), mask))
        lines = sorted(lines, key=lambda line: -line[0])[:_MOST]
        header = (
            "quantity",
            "machines or software",
            "runs",
            "publishers",
            "first: median",
            "bias",
            "today: median",
            "bias",
            "few constants",
        )
        return header, [
            (
                quantity,
                name,
                f"{mask.sum()}",
                f"{len(set(rows.source[mask].tolist()))}",
                _median(rows.first[mask]),
                _bias(rows.first[mask]),
                _median(rows.today[mask]),
                _bias(rows.today[mask]),
                _median(rows.few[mask]),
            )
            for _, quantity, name, mask in lines
        ]

    def by_reading(self) -> Table:
        """Median errors of each reading, first and today, and of the baseline."""
        rows = self.readings
        header = ("reading", *(f"{quantity}: first, today, few constants" for quantity in NAMES))
        lines = []
        for name in dict.fromkeys(rows.reading.tolist()):
            cells = []
            for quantity in NAMES:
                of_reading = (rows.quantity == quantity) & (rows.reading == name)
                shown = [_median(logs[of_reading]) for logs in (rows.first, rows.today, rows.few)]
                cells.append(f"{', '.join(shown)} ({of_reading.sum()})" if of_reading.any() else "-")
            lines.append((str(name), *cells))
        return header, lines

    def deployments(self) -> Table:
        """Published fleets beside the fleets that the form Serve recommends for their loads."""
        return deployment_table(deployments(self.catalog))

    def own_runs(self) -> Table:
        """Errors of other rows of a source after own runs of it."""
        header, lines = accuracy_table(accuracies(sources_left_out(self.published, self.catalog, self.step)))
        return header, [line for line in lines if line[1] in _SHOWN_RUNS]

    def _mask(self, quantity: str, experts: bool | None) -> np.ndarray:
        rows = self.readings
        return np.asarray((rows.quantity == quantity) & (experts is None or rows.experts == experts))

    def _line(self, quantity: str, experts: bool | None) -> tuple[str, ...]:
        chosen = self._mask(quantity, experts)
        rows = self.readings.take(chosen)
        return quantity, _KINDS[experts], *_expected(rows.source, rows.first, rows.few, rows.today, self.widths[chosen])

    def _power(self) -> list[tuple[str, ...]]:
        """Line of measured power; its baseline is one share of the power limit, of the rows that power is fitted on."""
        records = [
            record
            for rows in self.published
            if rows.kind == POWER
            for record in power_records(rows, self.catalog)
            if record.quantity == "power" and record.covered
        ]
        chips = self.catalog.tables["accelerators"]
        names = [str(name).casefold() for name in chips.text("accelerator")]
        limit = dict(zip(names, chips.number("thermal_design_power").tolist(), strict=True))
        share = np.array([record.measured / limit.get(record.accelerator.casefold(), math.nan) for record in records])
        fitted = np.array([record.group == "fitted" for record in records], dtype=bool)
        if not (~fitted).any():
            return []
        logs = np.log([record.predicted / record.measured for record in records])[~fitted]
        few = np.log(np.nanmedian(share[fitted]) / share)[~fitted]
        sources = np.array([record.source_id for record in records], dtype=object)[~fitted]
        width = np.full(len(logs), declared_constants()["band"]["power"].default)
        return [("power", "all", *_expected(sources, logs, few, logs, width))]


TABLES: dict[str, Callable[[Page], Table]] = {
    "expected": Page.expected, "accuracy": Page.short, "groups": Page.groups, "readings": Page.by_reading,
    "deployments": Page.deployments, "own-runs": Page.own_runs,
}  # fmt: skip
"""Tables by the name of their markers."""


def write_tables(path: Path, page: Page) -> list[str]:
    """Put each table between its markers in a text file; names of the tables. InputError if it has no markers."""
    text, placed = path.read_text(encoding="utf-8"), []
    for name, table in TABLES.items():
        begin, end = (f"<!-- {name}: {part} -->" for part in ("begin", "end"))
        first, last = text.find(begin), text.find(end)
        if 0 <= first < last:
            text = text[:first] + markdown(name, table(page)) + text[last + len(end) :].removeprefix("\n")
            placed.append(name)
    if not placed:
        wanted = " or ".join(f"<!-- {name}: begin --> and <!-- {name}: end -->" for name in TABLES)
        raise InputError(Fault(str(path), f"has no lines {wanted}, where a table goes"))
    with replaced(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")
    return placed


def markdown(name: str, table: Table) -> str:
    """Markdown table between its markers."""
    header, lines = table
    numbers = [all(line[at][:1].isdigit() or line[at] == "-" for line in lines) for at in range(len(header))]
    rule = "|" + "|".join("---:" if number else "---" for number in numbers) + "|"
    rows = ["| " + " | ".join(cells) + " |" for cells in (header, *lines)]
    return "\n".join([f"<!-- {name}: begin -->", rows[0], rule, *rows[1:], f"<!-- {name}: end -->"]) + "\n"


def _expected(sources: np.ndarray, first: Array, few: Array, today: Array, width: Array) -> tuple[str, ...]:
    """Cells of :data:`_EXPECTED` from errors of runs as logarithms: first predictions, baseline and today."""
    names = sorted(set(sources.tolist()))
    medians = [float(np.median(_sizes(first[sources == name]))) for name in names]
    return (
        f"{len(first)}",
        f"{len(names)}",
        _median(first),
        _rounded(float(np.median(medians))),
        _rounded(float(np.quantile(_sizes(first), 0.9))),
        _bias(first),
        percent(float(np.mean(np.abs(first) <= width)), 0),
        f"{math.exp(float(np.median(width))):.2f}",
        _median(few),
        _median(today),
    )


def _sizes(logs: Array) -> Array:
    return np.abs(np.expm1(logs))


def _median(logs: Array) -> str:
    finite = logs[~np.isnan(logs)]
    return _rounded(float(np.median(_sizes(finite)))) if len(finite) else "-"


def _bias(logs: Array) -> str:
    return f"{100.0 * math.expm1(float(np.median(logs))):+.0f} %"


def _rounded(value: float) -> str:
    return percent(value, 0 if value >= 0.0995 else 1)
