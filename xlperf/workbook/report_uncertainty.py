"""How sure the plans of a report are: percentiles of their times and costs, and which uncertain input decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from xlperf.catalog.schema import Column, table_schema
from xlperf.catalog.table import Table
from xlperf.workbook.charts import Cells, tornado
from xlperf.workbook.report_data import GOOD, TOO_LARGE, Plans, extra_column, short
from xlperf.workbook.style import chart_rows, even_rows, page_setup
from xlperf.workbook.tables import write_table

if TYPE_CHECKING:
    from openpyxl.worksheet.worksheet import Worksheet

    from xlperf.base.arrays import Array
    from xlperf.catalog.catalog import Catalog

DRAWS = 500
"""Draws of each plan: a Latin hypercube, seed 0, so that a report has the same numbers each time. [-]"""
MOST_BARS = 32
_TOP = 4
_ACROSS = 34.0
_TIME = {"training": "step_time", "inference": "tpot"}
_PERCENTILES = {"p5": "one draw of twenty has less", "p50": "median", "p95": "one draw of twenty has more"}


def uncertainty_sheet(sheet: Worksheet, groups: Sequence[Plans], catalog: Catalog) -> None:
    """Fill the sheet of percentiles: for each kind of plan a chart of the costs, and a line for each plan."""
    top = _TOP
    for group in groups:
        rows = group.where(GOOD, TOO_LARGE)
        if not len(rows):
            continue
        columns, values = _drawn(group, rows, catalog)
        bars = min(len(rows), MOST_BARS)
        height = 3.5 + 0.42 * bars
        first = top + chart_rows(height) + 1
        even_rows(sheet, top, first)
        write_table(
            sheet, columns, list(zip(*values, strict=True)), f"A{first}", f"uncertainty_{group.kind}", freeze=None,
            widths=top == _TOP, fitted=True,
        )  # fmt: skip
        names = [column.name for column in columns]

        def cells(name: str, start: int, end: int, names: Sequence[str] = names) -> Cells:
            return Cells(sheet, names.index(name) + 1, start, end)

        low, high = (
            (cells(name, first, first), cells(name, first + 1, first + bars)) for name in ("cost_low", "cost_high")
        )
        words = f"{group.kind.capitalize()}: 5th and 95th percentile of the cost of a token against its median"
        labels = cells("plan", first + 1, first + bars)
        chart = tornado(words, labels, low, high, axis_title="%", number="0", size=(_ACROSS, height))
        sheet.add_chart(chart, f"A{top}")
        top = first + len(rows) + 3
    page_setup(sheet, _TOP)
    sheet.freeze_panes = f"A{_TOP}"


def _drawn(group: Plans, rows: np.ndarray, catalog: Catalog) -> tuple[list[Column], list[list[object]]]:
    """Columns of the table of one kind of plan, and their values as cells show them."""
    from xlperf.equations.cost.tokens import ALL_IN
    from xlperf.explore.samples import LATIN_HYPERCUBE, Sampling
    from xlperf.explore.sweep import Sweep
    from xlperf.explore.uncertainty import Uncertainty, sheet_ranges

    plans = group.plans.take(rows)
    ranges = sheet_ranges(plans, catalog)
    sweep = Sweep(plans, catalog, {}, ranges, Sampling(DRAWS, LATIN_HYPERCUBE))
    columns: list[Column] = [extra_column("plan", "", "Plan of this report", "name")]
    values: list[list[object]] = [[short(group.names[row], 60) for row in rows.tolist()]]
    schema = table_schema(f"{group.kind}_results").by_name
    cost = ALL_IN[group.kind]
    for name in (_TIME[group.kind], cost):
        drawn = Uncertainty(sweep, name)
        summary = drawn.summary()
        for percentile, meaning in _PERCENTILES.items():
            header = f"{name}_{percentile}" if name != cost else f"cost_{percentile}"
            columns.append(extra_column(header, schema[name].unit, f"{schema[name].meaning}: {meaning}"))
            values.append(_cells(summary.number(percentile)))
    middle = summary.number("p50")
    for name, percentile in (("cost_low", "p5"), ("cost_high", "p95")):
        columns.append(extra_column(name, "%", f"{percentile.upper()} of the cost over its median, less 1"))
        with np.errstate(all="ignore"):
            values.append(_cells(100.0 * (summary.number(percentile) / middle - 1.0)))
    columns.append(extra_column("probability_fits", "-", "Share of the draws in which the plan fits in memory"))
    values.append(_cells(summary.number("probability_fits")))
    columns.append(extra_column("decides", "", "Uncertain input that moves the cost most", "result-text"))
    values.append(list(_deciding(drawn.effects(), len(rows))))
    return columns, values


def _cells(values: Array) -> list[object]:
    return [float(value) if np.isfinite(value) else None for value in values]


def _deciding(effects: Table, plans: int) -> list[str | None]:
    """The input with the largest swing of each plan; none where nothing moves its cost."""
    each = len(effects) // plans
    inputs, swings = effects["input"][::each], effects["swing"][::each]
    return [str(name) if swing > 0.0 else None for name, swing in zip(inputs, swings, strict=True)]
