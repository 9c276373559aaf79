"""Predictions against measurements: published rows and a user's measured runs, tolerances; parameters of models."""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from xlperf.base.errors import Fault, InputError, raise_faults
from xlperf.base.resources import rows as rows_of
from xlperf.base.resources import workbook
from xlperf.base.units import factor, percent
from xlperf.calibrate.published_errors import RESULTS, plans_of
from xlperf.catalog.cards import as_runs, beside
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.csv_files import STANDARD, csv_text, harmless, read_csv
from xlperf.catalog.read import read_plan_tables, read_plans
from xlperf.catalog.schema import MEASURED, OWN_RUNS, results_of, split_header, unit_of
from xlperf.catalog.table import Table
from xlperf.engine.catalog_arrays import catalog_models
from xlperf.engine.learning import OF_QUANTITY, without_own_runs
from xlperf.engine.lessons import own_runs as runs_of
from xlperf.engine.tables import Progress
from xlperf.equations.model.operators import parameter_count
from xlperf.explore.objectives import LARGER
from xlperf.explore.search import evaluate_resolved
from xlperf.measurements.comparison import Record, compare, power_records, predicted
from xlperf.measurements.published import POWER, Published, read_power, read_published, sheet_rows

CSV_COLUMNS = tuple("row_id source_id group accelerator metric measured predicted relative_error reason".split())
STATISTICS = ("count", "coverage", "mean", "median", "p90", "max", "in_band")
TOLERANCE = 0.01  # largest relative difference of a computed parameter count from the stated one [-]


@dataclass(frozen=True)
class Summary:
    """Errors of a group of records as fractions, NaN if none is known; ``in_band``: share in the 80 % band."""

    key: tuple[str, ...]
    count: int
    coverage: float
    mean: float
    median: float
    p90: float
    max: float
    in_band: float


@dataclass(frozen=True)
class Tolerance:
    """The worst value of a statistic for a group; ``metric``: a column or a primary quantity, blank for all."""

    group: str
    metric: str
    statistic: str
    bound: float

    def missed(self, summary: Summary) -> bool:
        """Whether a summary is worse; never for a summary without predictions, unless the statistic is coverage."""
        value = getattr(summary, self.statistic)
        worse = value < self.bound if self.statistic in ("coverage", "in_band", "count") else value > self.bound
        return bool(worse)


@dataclass(frozen=True)
class ValidationReport:
    """Records of published rows, and their tolerances."""

    records: tuple[Record, ...]
    tolerances: tuple[Tolerance, ...]

    def summaries(self, *keys: str, primary: bool = True) -> list[Summary]:
        """Errors grouped by attributes of the records; ``primary`` counts a row once per quantity."""
        groups: dict[tuple[str, ...], list[Record]] = {}
        for record in self.records:
            if record.primary or not primary:
                groups.setdefault(tuple(str(getattr(record, key)) for key in keys), []).append(record)
        return [summary(key, records) for key, records in groups.items()]

    def missed(self) -> list[str]:
        """One line for each tolerance that is exceeded."""
        lines = []
        for tolerance in self.tolerances:
            chosen = [record for record in self.records if _concerns(tolerance, record)]
            if not chosen:
                continue
            result = summary((tolerance.group, tolerance.metric), chosen)
            if tolerance.missed(result):
                value = _shown(tolerance.statistic, getattr(result, tolerance.statistic))
                lines.append(
                    f"{tolerance.group}, {tolerance.metric}: {tolerance.statistic} {value}, "
                    f"tolerance {_shown(tolerance.statistic, tolerance.bound)} ({result.count} rows)"
                )
        return lines

    @property
    def exit_code(self) -> int:
        """0, or 1 if a tolerance is exceeded."""
        return 1 if self.missed() else 0

    def csv_text(self) -> str:
        """A CSV line per row and metric; a row without prediction has a blank error and a reason."""
        lines: list[Sequence[str]] = [CSV_COLUMNS]
        for record in self.records:
            words = (record.row_id, record.source_id, record.group, record.accelerator, record.metric)
            numbers = (record.measured, record.predicted, record.relative_error)
            cells = ("" if math.isnan(value) else f"{value:.6g}" for value in numbers)
            lines.append([*map(harmless, words), *cells, harmless(record.reason)])
        return csv_text(lines)

    def refusals(self) -> list[tuple[str, str, int]]:
        """Reasons for missing predictions: (source, reason, rows), the most frequent first."""
        seen: Counter[tuple[str, str]] = Counter()
        rows = {(record.source_id, record.row_id): record for record in self.records if not record.covered}
        for (source, _), record in rows.items():
            seen[source, record.reason.split("; ")[0]] += 1
        return [(source, reason, number) for (source, reason), number in seen.most_common()]

    def tables(self) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
        """Tables for a terminal: title, header, rows as text."""
        names: list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]] = []
        groups = {row["group"]: row["words"] for row in rows_of("calibrate/group_words.csv")}
        for title, keys in (
            ("By group", ("group", "quantity")),
            ("By source", ("source_id", "quantity")),
            ("By accelerator", ("accelerator", "quantity")),
            ("By metric", ("metric", "group")),
        ):
            header = (*(key.replace("_id", "") for key in keys), *(name.replace("_", " ") for name in STATISTICS))
            lines = [
                (
                    *(groups.get(word, word) for word in each.key),
                    *(_shown(name, getattr(each, name)) for name in STATISTICS),
                )
                for each in self.summaries(*keys, primary=keys[0] != "metric")
            ]
            names.append((title, header, sorted(lines, key=lambda line: line[: len(keys)])))
        reasons: list[tuple[str, ...]] = [(source, str(rows), why) for source, why, rows in self.refusals()]
        names.append(("Not predicted", ("source", "rows", "why"), reasons))
        return names


def _concerns(tolerance: Tolerance, record: Record) -> bool:
    if record.group.casefold() != tolerance.group.casefold():
        return False
    wanted = tolerance.metric.replace("_", " ").casefold()
    if not wanted:
        return record.primary
    if record.metric.replace("_", " ").casefold() == wanted:
        return True
    return record.primary and record.quantity.casefold() == wanted


def _shown(statistic: str, value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if statistic == "count" else f"{100.0 * value:.1f} %"


def summary(key: Sequence[str], records: Iterable[Record]) -> Summary:
    """Count, coverage and errors of records.

    >>> summary(("nothing",), []).count
    0
    """
    chosen = list(records)
    errors = np.array([record.relative_error for record in chosen if record.covered])
    banded = [record for record in chosen if record.covered and not math.isnan(record.low + record.high)]
    coverage = len(errors) / len(chosen) if chosen else math.nan
    in_band = sum(record.in_band for record in banded) / len(banded) if banded else math.nan
    sizes = (math.nan, math.nan, math.nan, math.nan)
    if len(errors):
        sizes = (float(np.mean(errors)), float(np.median(errors)), float(np.quantile(errors, 0.9)), float(max(errors)))
    return Summary(tuple(key), len(chosen), coverage, *sizes, in_band)


def records_of(published: Sequence[Published], catalog: Catalog, progress: Progress | None = None) -> list[Record]:
    """Predict published rows; ``progress`` receives the number of rows of each finished block."""
    records = []
    for rows in published:
        if rows.kind == POWER:
            records += power_records(rows, catalog)
            continue
        plans = plans_of(rows, catalog)
        records += compare(plans, predicted(plans, progress))
    return records


def read_tolerances(path: Path) -> tuple[Tolerance, ...]:
    """Tolerances of a workbook, none without the sheet; InputError for a bad statistic or bound."""
    sheet = sheet_rows(path, "tolerances", "statistic")
    if sheet is None:
        return ()
    header, rows, place = sheet
    missing = [name for name in ("group", "metric", "statistic", "bound") if name not in header]
    if missing:
        raise InputError(Fault(place(-1, "statistic"), f"tolerances have no column {', '.join(missing)}"))
    tolerances, faults = [], []
    for number, cells in enumerate(rows):
        row = dict(zip(header, cells, strict=True))
        if not any(cells):
            continue
        if row["statistic"] not in STATISTICS:
            words = f'statistic must be one of {", ".join(STATISTICS)}, got "{row["statistic"]}"'
            faults.append(Fault(place(number, "statistic"), words))
            continue
        try:
            bound = float(row["bound"])
        except ValueError:
            faults.append(Fault(place(number, "bound"), f'bound must be a number, got "{row["bound"]}"'))
            continue
        tolerances.append(Tolerance(row["group"], row["metric"], row["statistic"], bound))
    raise_faults(faults)
    return tuple(tolerances)


def validate(
    sources: Sequence[str | Path] | None,
    catalog: Catalog,
    leave_out: str | None = None,
    progress: Progress | None = None,
) -> ValidationReport:
    """Predict published rows, or plans with measured columns, and compare them with their measurements; default: the
    shipped ``validation.xlsx``. ``leave_out`` refits the calibration without measurements and predicts only their rows;
    otherwise the tolerances of the first workbook apply, or the shipped ones.
    """
    shipped = workbook("validation.xlsx")
    paths = [Path(source) for source in sources] if sources else [shipped]
    plans = [table for path in paths if has_measured_plans(path) for table in read_plans(path)]
    published = [rows for path in paths if not has_measured_plans(path) for rows in read_published(path)]
    if leave_out is None:
        published += [rows for path in paths for rows in read_power(path)]
    _check_names(published, paths)
    if leave_out is not None:
        from xlperf.calibrate.fit import left_out, rows_of

        catalog = left_out(catalog, leave_out)
        published = [rows_of(rows, catalog, leave_out) for rows in published]
        return ValidationReport(tuple(records_of(published, catalog, progress)), ())
    books = [path for path in paths if path.suffix.lower() in (".xlsx", ".xlsm")]
    tolerances: tuple[Tolerance, ...] = ()
    for book in [*books, shipped]:
        if not tolerances and book.exists():
            tolerances = read_tolerances(book)
    results = [*records_of(published, catalog, progress), *records_of_plans(plans, catalog, progress)]
    return ValidationReport(tuple(results), tolerances)


def _check_names(published: Sequence[Published], paths: Sequence[Path]) -> None:
    """Refuse the same row in two files: it would count twice."""
    if len(paths) < 2:
        return
    seen: dict[tuple[str, str], str] = {}
    faults = []
    for rows in published:
        for row, row_id in enumerate(rows.text["row_id"]):
            where = rows.place(row, "row_id")
            if (rows.kind, row_id) in seen:
                faults.append(Fault(where, f'"{row_id}" is read twice; the first is at {seen[rows.kind, row_id]}'))
            seen[rows.kind, row_id] = where
    raise_faults(faults)


# --- parameters of models --------------------------------------------------------------------------------------------


def parameter_faults(catalog: Catalog) -> list[Fault]:
    """Models whose computed total or active parameters differ from the stated ones by more than :data:`TOLERANCE` and a
    unit of the last digit. Publishers count the active ones with or without the input embedding, which is a look-up.
    """
    table = catalog.tables["models"]
    models, unmodelled = catalog_models(catalog)
    active = parameter_count(models, experts_per_token=True)
    tables = models.vocab_size * models.hidden_size
    counts = (
        ("stated_parameters", "parameters", (parameter_count(models),)),
        ("stated_active_parameters", "active parameters", (active, active - tables)),
    )
    billion = factor("G")
    faults = []
    for column, words, candidates in counts:
        stated = table.number(column)
        differences = np.stack([np.abs(computed - stated) for computed in candidates], axis=-1)
        last_digits = np.array([_last_digit(value) for value in (stated / billion)]) * billion
        allowed = np.maximum(TOLERANCE * stated, last_digits)
        nearest = np.stack(candidates, axis=-1)[np.arange(len(table)), np.argmin(differences, axis=-1)]
        for row in np.flatnonzero((unmodelled == "") & (differences.min(axis=-1) > allowed)).tolist():
            problem = (
                f"{table['model'][row]} has {nearest[row] / billion:.4g} billion {words} by its shape, "
                f"{stated[row] / billion:.4g} are stated ({percent(nearest[row] / stated[row] - 1.0, signed=True)})"
            )
            faults.append(Fault(table.place(row, column), problem))
    return faults


def _last_digit(value: float) -> float:
    """A unit of the last digit of a number as it is written, 0 for more than two significant digits."""
    text = f"{value:.10g}"
    digits = text.replace(".", "").strip("0")
    if len(digits) > 2:
        return 0.0
    decimals = len(text.split(".")[1]) if "." in text else 0
    return float(10.0**-decimals)


class Effect(NamedTuple):
    """Effect of the runs on the prediction of one of them, in the unit of the result, with the ends of its band."""

    run: str
    result: str
    unit: str
    measured: float
    before: tuple[float, float, float]
    after: tuple[float, float, float]


def own_runs(tables: Sequence[Table], catalog: Catalog, origin: str = "--mine") -> Table:
    """Measured plans beside the ``own_runs`` of a catalog; InputError, at ``origin``, if nothing is measured."""
    plain = without_own_runs(catalog)
    added: list[Table] = []
    for table in tables:
        stated = [MEASURED + name for names in OF_QUANTITY[table.kind].values() for name in names]
        known = [~np.isnan(table[name]) for name in stated if name in table]
        rows = np.flatnonzero(np.logical_or.reduce(known)) if known else np.empty(0, dtype=np.int64)
        if len(rows):
            plans = table.take(rows)
            runs = as_runs(evaluate_resolved(plans, plain)[0] if plans.auto else plans)
            added.append(runs.with_columns({"year": np.full(len(rows), float(datetime.date.today().year))}))
    if not added:
        words = "measured step time, measured tpot, measured ttft, measured memory"
        raise InputError(Fault(origin, f"needs plans with a column of measured values: {words}"))
    return beside(catalog.tables[OWN_RUNS], added)


def read_own_runs(path: Path, catalog: Catalog) -> Table:
    """Own runs of a file and of a catalog: its sheet or table ``own_runs``, or plans with measured columns."""
    from xlperf.catalog.read import is_workbook, read_catalog_tables, read_plans

    is_csv = str(path) != STANDARD and path.suffix.lower() == ".csv" and path.is_file()
    if is_workbook(path) or (is_csv and split_header(str(read_csv(path).header[0]))[0] == "own_run"):
        tables, faults = read_catalog_tables(path, required=False)
    else:
        tables, faults = [], []
    measured = [table for table in tables if table.kind == OWN_RUNS and len(table)]
    if faults and measured:
        raise InputError(faults)
    if measured:
        return beside(catalog.tables[OWN_RUNS], measured)
    return own_runs(read_plans(path), catalog, path.name)


def effects(catalog: Catalog) -> list[Effect]:
    """Effect of the runs of a catalog on their own predictions."""
    result = []
    for kind in OF_QUANTITY:
        runs = runs_of(catalog, kind)
        if runs is None:
            continue
        schema = results_of(kind).by_name
        tables = runs.predicted, evaluate_resolved(runs.plans, catalog)[1]
        for quantity, process in runs.processes.items():
            factor = unit_of(schema[quantity]).factor
            for row, ratio in sorted(zip(runs.rows[quantity].tolist(), process.ratios.tolist(), strict=True)):
                names = [quantity, f"{quantity}_low", f"{quantity}_high"]
                values = [[float(table.number(name)[row]) / factor for name in names] for table in tables]
                before, now = ((value[0], value[1], value[2]) for value in values)
                run, words = str(runs.plans.text("name")[row]), quantity.replace("_", " ")
                result.append(Effect(run, words, schema[quantity].unit, math.exp(ratio) * before[0], before, now))
    return result


_QUANTITY_NAMES = {result: quantity for quantity, result in RESULTS.items()}


def has_measured_plans(path: Path) -> bool:
    """Whether a workbook or CSV file holds plans with measured columns, rather than published rows."""
    if str(path) == STANDARD or not path.is_file():
        return False
    ending = path.suffix.lower()
    if ending in (".xlsx", ".xlsm"):
        return any(name.startswith(MEASURED) for table in read_plan_tables(path)[0] for name in table.columns)
    if ending == ".parquet":
        return False
    return any(split_header(str(cell))[0].startswith(MEASURED) for cell in read_csv(path).header)


def records_of_plans(tables: Sequence[Table], catalog: Catalog, progress: Progress | None = None) -> list[Record]:
    """Every measured value of plans beside its prediction; the first of each quantity of a plan is the primary one."""
    items = []
    for table in tables:
        plans, results = evaluate_resolved(table, catalog, progress)
        for row in range(len(plans)):
            items += list(_records(plans, results, row))
    return items


def _records(plans: Table, results: Table, row: int) -> Iterator[Record]:
    known = results_of(plans.kind).by_name
    names = [name.removeprefix(MEASURED) for name in plans.columns if name.startswith(MEASURED)]
    stated = [name for name in names if not math.isnan(plans[MEASURED + name][row])]
    quantities = [
        _QUANTITY_NAMES.get(name, "memory" if name.startswith("memory") else name.replace("_", " ")) for name in stated
    ]
    for place, name in enumerate(stated):
        column, factor = known[name], unit_of(known[name]).factor
        measured, predicted = float(plans[MEASURED + name][row]), float(results[name][row])
        ratio = measured / predicted if name in LARGER and predicted > 0.0 else predicted / measured
        ends = [float(results[f"{name}_{end}"][row]) if f"{name}_low" in known else math.nan for end in ("low", "high")]
        yield Record(
            row_id=str(plans.text("name")[row]) or plans.place(row, "name"),
            source_id="measured",
            group=f"own {plans.kind}",
            accelerator=str(plans.text("accelerator")[row]),
            metric=column.header,
            measured=measured / factor,
            predicted=predicted / factor,
            relative_error=abs(ratio - 1.0),
            reason=str(results.text("reason")[row]),
            kind=plans.kind,
            quantity=quantities[place],
            primary=quantities[place] not in quantities[:place],
            low=ends[0] / factor,
            high=ends[1] / factor,
        )
