"""A user's own measured runs: rows of the sheet ``own_runs`` from plans with measured columns, and their effect."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from xlperf.base.errors import Fault, InputError
from xlperf.catalog.cards import as_runs, beside
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.csv_files import STANDARD, read_csv
from xlperf.catalog.read import read_plan_tables
from xlperf.catalog.schema import MEASURED, OWN_RUNS, results_of, split_header, unit_of
from xlperf.catalog.table import Table
from xlperf.engine.learning import OF_QUANTITY, without_own_runs
from xlperf.engine.lessons import own_runs as runs_of
from xlperf.explore.objectives import LARGER
from xlperf.explore.search import evaluate_resolved
from xlperf.measurements.comparison import STEP_TIME, Record


class Effect(NamedTuple):
    """Effect of the runs on the prediction of one of them, in the unit of the result, with the ends of its band."""

    run: str
    result: str
    unit: str
    measured: float
    before: tuple[float, float, float]
    after: tuple[float, float, float]


def own_runs(tables: Sequence[Table], catalog: Catalog, origin: str = "--mine") -> Table:
    """Rows of the sheet ``own_runs`` from plans with measured columns, beside those that the catalog has.

    Rows without a measured value that teaches are skipped; a new row replaces one of the same name. Every ``auto`` is
    resolved without the runs. Raises InputError, at ``origin``, if nothing is measured.
    """
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
    """Own runs of a file beside those of a catalog: its sheet or table ``own_runs``, or plans with measured columns."""
    from xlperf.catalog.read import is_workbook, read_catalog_tables, read_plans

    is_csv = str(path) != STANDARD and path.suffix.lower() == ".csv" and path.is_file()
    if is_workbook(path) or (is_csv and split_header(str(read_csv(path).header[0]))[0] == "own_run"):
        tables, faults = read_catalog_tables(path, required=False)
    else:
        tables, faults = [], []
    own = [table for table in tables if table.kind == OWN_RUNS and len(table)]
    if faults and own:
        raise InputError(faults)
    if own:
        return beside(catalog.tables[OWN_RUNS], own)
    return own_runs(read_plans(path), catalog, path.name)


def effects(catalog: Catalog) -> list[Effect]:
    """Effect of the runs of a catalog on their own predictions."""
    result = []
    for kind in OF_QUANTITY:
        runs = runs_of(catalog, kind)
        if runs is None:
            continue
        schema = results_of(kind).by_name
        after = evaluate_resolved(runs.plans, catalog)[1]
        for quantity, process in runs.processes.items():
            factor = unit_of(schema[quantity]).factor
            for row, ratio in zip(runs.rows[quantity].tolist(), process.ratios.tolist(), strict=True):
                names = [quantity, f"{quantity}_low", f"{quantity}_high"]
                values = [
                    [float(table.number(name)[row]) / factor for name in names] for table in (runs.predicted, after)
                ]
                before, now = ((one[0], one[1], one[2]) for one in values)
                run, words = str(runs.plans.text("name")[row]), quantity.replace("_", " ")
                result.append(Effect(run, words, schema[quantity].unit, math.exp(ratio) * before[0], before, now))
    return result


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
