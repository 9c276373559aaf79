"""Plans with measured columns as measurements to validate: ``measured step time (s)`` beside the plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from xlperf.calibrate.comparison import STEP_TIME, Record
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.csv_files import STANDARD, read_csv
from xlperf.catalog.read import read_plan_tables
from xlperf.catalog.schema import MEASURED, results_of, split_header, unit_of
from xlperf.catalog.table import Table
from xlperf.explore.auto import evaluate_resolved
from xlperf.explore.objectives import LARGER

_QUANTITIES = {"step_time": STEP_TIME, "tpot": "time per token", "ttft": "time to first token"}


def has_measured_plans(path: Path) -> bool:
    """Whether a file holds plans with measured columns, rather than published rows.

    ``path``: workbook or CSV file.
    """
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
    """Every measured value of plans beside its prediction.

    ``progress``: called with the number of rows of each block that is done. Returns plan by plan; of each quantity the
    first measured value of a plan is the one its accuracy is quoted by.
    """
    found = []
    for table in tables:
        plans, results = evaluate_resolved(table, catalog, progress)
        for row in range(len(plans)):
            found += list(_records(plans, results, row))
    return found


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
