"""Charts below the sheets of designs and servers: what a unit and an hour cost by part, live from the cells above."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from openpyxl.utils import get_column_letter, range_boundaries

from xlperf.workbook.data_sheets import BLANK_ROWS, DATA_SHEETS, HEADER_ROW, sheet_columns
from xlperf.workbook.live import Live
from xlperf.workbook.question_look import AMBER, BLUE, GREEN, GREY, ORANGE, SKY, axis, bars, place
from xlperf.workbook.style import MUTED, NAVY, put


@dataclass(frozen=True)
class CostChart:
    """Heading of a chart, and the columns that its bars are made of."""

    heading: str
    parts: tuple[str, ...]


CHARTS = {
    "chiplets": CostChart(
        "Cost of a unit by part (USD): the cells above, stacked",
        ("raw_dies", "die_defects", "raw_package", "package_defects", "wasted_dies", "memory", "wasted_memory", "test",
         "board_cost", "nre_per_unit"),
    ),
    "servers": CostChart(
        "An hour of one accelerator by part (USD): the cells above, stacked",
        ("accelerator_cost", "server_cost", "network_capital_cost", "storage_cost", "facility_cost", "running_cost",
         "energy_cost"),
    ),
}  # fmt: skip
_COLOURS = (BLUE, "7FB8DA", AMBER, "F2D08B", "C08A5A", GREEN, "8CCBB5", GREY, MUTED, NAVY)
_COLOURS_OF_HOUR = (BLUE, SKY, GREEN, GREY, AMBER, MUTED, ORANGE)


def cost_charts(book: Any, live: Live) -> None:
    """Add a chart below each sheet of :data:`CHARTS` that the workbook has, where it has rows.

    ``book``: changed in place. ``live``: whose values of formulas are kept as the points of the charts.
    """
    for kind, own in CHARTS.items():
        if kind not in book.sheetnames:
            continue
        sheet = book[kind]
        edges: Any = range_boundaries(sheet.tables[kind].ref)
        last = edges[3] - BLANK_ROWS
        if last <= HEADER_ROW or sheet.cell(HEADER_ROW + 1, 1).value is None:
            continue
        values = live.formulas.values.get(kind, {})
        for row in sheet.iter_rows(min_row=HEADER_ROW, max_row=last):
            live.values |= {(kind, cell.coordinate): values.get(cell.coordinate, cell.value) for cell in row}
        names, in_sight = [column.name for column in sheet_columns(kind)], DATA_SHEETS[kind].in_sight
        letters = " ".join(get_column_letter(names.index(name) + 1) for name in own.parts)
        colours = _COLOURS if kind == "chiplets" else _COLOURS_OF_HOUR
        chart = bars(sheet, "A", (HEADER_ROW, last), letters, colours, "#,##0", gap=35, stacked=True, formats=False)
        axis(chart.x_axis)
        axis(chart.y_axis, number="#,##0" if kind == "chiplets" else "0.0", grid=True)
        top = edges[3] + 2
        end_row = top + max(14, 6 + 2 * (last - HEADER_ROW))
        put(sheet[f"A{top}"], own.heading, "xlperf heading")
        sheet.print_area = f"A{HEADER_ROW - 1}:{get_column_letter(len(names))}{end_row}"
        first, end = (get_column_letter(names.index(name) + 1) for name in (in_sight[0], in_sight[-1]))
        place(
            chart,
            sheet,
            f"{first}{top + 1}:{end}{end_row}",
            live,
            (0.22, 0.06, 0.58, 0.90),
            (0.82, 0.05, 0.17, 0.85),
        )
