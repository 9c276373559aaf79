"""A user's own measured runs: rows of the sheet ``my_cluster``, their effect on predictions, measured columns of
plans.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from xlperf.base.errors import Fault, InputError
from xlperf.calibrate.published_errors import Errors, weighted_quantile
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.csv_files import STANDARD, read_csv
from xlperf.catalog.read import read_plan_tables
from xlperf.catalog.schema import MEASURED, results_of, split_header, table_schema, unit_of
from xlperf.catalog.table import Table
from xlperf.engine.own_runs import (
    CHOICES,
    NUMBERS,
    SHARED,
    SHARED_FIRST,
    SHEET,
    columns_of,
    plan_distances,
    shrunk_residual,
)
from xlperf.engine.software import with_software_defaults
from xlperf.explore.auto import evaluate_resolved
from xlperf.explore.objectives import LARGER
from xlperf.measurements.comparison import FIRST_TOKEN, STEP_TIME, Record

QUOTED = {
    "training": ("step_time", "tokens_per_second", "tokens_per_second_per_accelerator", "model_flop_rate", "mfu"),
    "inference": ("tpot", "tpot_itl", "tokens_per_second", "tokens_per_second_per_accelerator"),
}
"""Measured results that give the time of a run, in order of preference, by kind of plan."""
_FIRST = "ttft"
NOISE = 0.03
"""Assumed relative spread of a measured run without a stated one, as in the sheet. [-]"""
MOST_RUNS = 12
"""Largest number of rows of a configuration that serve as the measured run in turn. [-]"""
_TIMES = {"training": "step_time", "inference": "tpot"}


class Effect(NamedTuple):
    """Effect of the runs on the prediction of one of them, in the unit of the result, with the ends of its band."""

    run: str
    result: str
    unit: str
    measured: float
    before: tuple[float, float, float]
    after: tuple[float, float, float]


def without_own_runs(catalog: Catalog) -> Catalog:
    """Catalog with an empty sheet ``my_cluster``."""
    return catalog.with_tables([catalog.tables[SHEET].take(np.empty(0, dtype=np.int64))])


def own_runs(tables: Sequence[Table], catalog: Catalog) -> Table:
    """Rows of the sheet ``my_cluster`` from plans with measured columns such as ``measured_step_time``,
    ``measured_tpot``.

    Rows without a measured time are skipped; existing rows of the sheet stay unless a new row has the same name. Raises
    InputError if a plan with a measured time is illegal, nothing is measured, or a value is impossible for the plan.
    """
    plain = without_own_runs(catalog)
    lines: list[dict[str, object]] = []
    faults: list[Fault] = []
    for table in tables:
        stated = [name for name in (*QUOTED[table.kind], _FIRST) if MEASURED + name in table]
        told = np.array([~np.isnan(table[MEASURED + name]) for name in stated])
        rows = np.flatnonzero(told.any(axis=0)) if len(stated) else np.empty(0, dtype=np.int64)
        if not len(rows):
            continue
        plans, results = evaluate_resolved(table.take(rows), plain)
        plans = with_software_defaults(plans, plain, plain.rows("models", plans.text("model"), plans, "model"))
        for row in range(len(plans)):
            line, result = _run(plans, results, row)
            lines += [line]
            faults += result
    if faults:
        raise InputError(faults)
    if not lines:
        known = ", ".join(f"measured {name.replace('_', ' ')}" for name in ("step_time", "tpot", "ttft"))
        raise InputError(Fault("--mine", f"needs plans with a column of measured times: {known}"))
    before, added = catalog.tables[SHEET], _table(lines)
    names = {str(name).casefold() for name in added.text("my_run")}
    kept = [row for row, name in enumerate(before.text("my_run").tolist()) if str(name).casefold() not in names]
    return _joined(before.take(np.array(kept, dtype=np.int64)), added)


def effects(tables: Sequence[Table], catalog: Catalog, runs: Table) -> list[Effect]:
    """Effect of ``runs``, rows of ``my_cluster``, on the predictions of the measured plans."""
    results = []
    for table in tables:
        name = next((name for name in QUOTED[table.kind] if MEASURED + name in table), "")
        if not name:
            continue
        shown = _TIMES[table.kind]
        column = results_of(table.kind).by_name[shown]
        factor = unit_of(column).factor
        known = without_own_runs(catalog), catalog.with_tables([runs])
        both = [evaluate_resolved(table, each)[1] for each in known]
        for row in np.flatnonzero(~np.isnan(table[MEASURED + name])).tolist():
            names = (shown, f"{shown}_low", f"{shown}_high")
            values = [tuple(float(each[key][row]) / factor for key in names) for each in both]
            ratio = _ratio(name, float(table[MEASURED + name][row]), float(both[0][name][row]))
            run = str(table.text("name")[row]) or table.place(row, "name")
            before, after = ((one[0], one[1], one[2]) for one in values)
            results.append(Effect(run, shown.replace("_", " "), column.unit, ratio * before[0], before, after))
    return results


def _ratio(name: str, measured: float, predicted: float) -> float:
    """Measured over predicted time."""
    return predicted / measured if name in LARGER else measured / predicted


def _run(plans: Table, results: Table, row: int) -> tuple[dict[str, object], list[Fault]]:
    faults = []
    kind = plans.kind
    place = plans.place(row, "name")
    ratios = {"time_ratio": math.nan, "first_token_ratio": math.nan}
    reason = str(results.text("reason")[row])
    for name in (_FIRST, *reversed(QUOTED[kind])):
        if MEASURED + name not in plans or math.isnan(plans[MEASURED + name][row]):
            continue
        ratio = _ratio(name, float(plans[MEASURED + name][row]), float(results[name][row]))
        if math.isnan(ratio):
            faults.append(Fault(place, f"has no {name.replace('_', ' ')}: {reason}"))
        elif not 0.05 <= ratio <= 20.0:
            words = f"is {ratio:.3g} times the predicted time: must be within 0.05 to 20 times of it; another unit?"
            faults.append(Fault(plans.place(row, MEASURED + name), words))
        ratios["first_token_ratio" if name == _FIRST else "time_ratio"] = ratio
    line: dict[str, object] = {
        "my_run": str(plans.text("name")[row]) or f"run {row + 1}",
        "plans": kind,
        **{name: str(plans.filled(name)[row]) for name in ("model", "accelerator", "software")},
        **{name: float(plans.filled(name)[row]) for name in NUMBERS if name in plans.schema.by_name},
        **{name: str(plans.filled(name)[row]) for name in CHOICES if name in plans.schema.by_name},
        **ratios,
        "source": "xlperf calibrate --mine",
        "year": float(datetime.date.today().year),
    }
    return line, faults


def _table(lines: Sequence[dict[str, object]]) -> Table:
    columns = {}
    for column in table_schema(SHEET).columns:
        blank: object = "" if column.is_text else math.nan
        values = [line.get(column.name, blank) for line in lines]
        columns[column.name] = np.array(values, dtype=object if column.is_text else np.float64)
    return Table(SHEET, columns)


def _joined(first: Table, second: Table) -> Table:
    columns = {}
    for name, values in second.columns.items():
        before = first.text(name) if values.dtype == object else first.number(name)
        columns[name] = np.concatenate([before, values]).astype(values.dtype)
    return Table(SHEET, columns)


# --- how much one run of a configuration is worth, on rows whose model was left out of the fit -----------------------


class Gain(NamedTuple):
    """Errors of a group without and with one measured run of each configuration: median and 90th percentile. [-]"""

    group: str
    quantity: str
    configurations: int
    before: tuple[float, float]
    after: tuple[float, float]


def gains(errors: Errors, plans: Table) -> list[Gain]:
    """Errors of the remaining rows of a configuration before and after one of its rows serves as an own run.

    Every configuration counts once; at most twelve of its rows serve as the run in turn. ``errors`` come from
    leave-one-model-out cross-validation, with bands made from other models.
    """
    numbers, choices = columns_of(plans)
    pairs: dict[tuple[str, str], list[tuple[float, float, float, str]]] = {}
    configurations = errors.configuration
    for quantity in sorted(set(errors.quantity.tolist())):
        known = (errors.quantity == quantity) & ~np.isnan(errors.by_models) & (errors.high > 1.0)
        shared = SHARED_FIRST if quantity == FIRST_TOKEN else SHARED
        for name in sorted(set(configurations[known].tolist())):
            rows = np.flatnonzero(known & (configurations == name))
            runs = rows[:: -(-len(rows) // MOST_RUNS)]
            for run in runs.tolist() if len(rows) > 1 else ():
                others = rows[rows != run]
                at, own = errors.plan[others], errors.plan[[run]]
                distance = plan_distances(numbers[at], numbers[own], choices[at], choices[own])
                residual, width = -errors.by_models[[run]], math.log(errors.high[run])
                noise = np.array([NOISE])
                moved, _ = shrunk_residual(distance, np.zeros((1, 1)), residual, noise, width, shared)
                weight = 1.0 / (len(others) * len(runs))
                for row, by in zip(others.tolist(), moved.tolist(), strict=True):
                    error = float(errors.by_models[row])
                    pairs.setdefault((str(errors.group[row]), quantity), []).append(
                        (abs(math.expm1(error)), abs(math.expm1(error + by)), weight, name)
                    )
    results = []
    for (group, quantity), values in sorted(pairs.items()):
        table = np.array([one[:3] for one in values])
        ends = [tuple(weighted_quantile(each, table[:, 2], share) for share in (0.5, 0.9)) for each in table.T[:2]]
        count = len({one[3] for one in values})
        results.append(Gain(group, quantity, count, (ends[0][0], ends[0][1]), (ends[1][0], ends[1][1])))
    return results


def gains_table(result: Sequence[Gain]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and lines: errors with and without one measured run of each configuration."""
    header = ("group", "quantity", "configurations", "median", "p90", "median with one run", "p90 with one run")
    lines = []
    for one in result:
        values = (f"{100.0 * value:.1f} %" for value in (*one.before, *one.after))
        lines.append((one.group, one.quantity, str(one.configurations), *values))
    return header, lines


_QUANTITIES = {"step_time": STEP_TIME, "tpot": "time per token", "ttft": "time to first token"}


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


def records_of_plans(
    tables: Sequence[Table], catalog: Catalog, progress: Callable[[int], None] | None = None
) -> list[Record]:
    """Every measured value of plans beside its prediction, plan by plan.

    The first measured value of each quantity is the primary one of its plan. ``progress`` receives the number of rows
    of each finished block.
    """
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
        _QUANTITIES.get(name, "memory" if name.startswith("memory") else name.replace("_", " ")) for name in stated
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
