"""The sheet ``tco``, cost of ownership of every plan in plain formulas; charts below designs and servers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from openpyxl.chart.series import SeriesLabel
from openpyxl.styles import Alignment
from openpyxl.utils import get_column_letter, range_boundaries

from xlperf.base import resources
from xlperf.base.units import HOUR, YEAR
from xlperf.catalog.schema import PLAN_TABLES, grouped, results_of, table_schema
from xlperf.catalog.table import CASES
from xlperf.workbook.data_sheets import BLANK_ROWS, DATA_SHEETS, HEADER_ROW, SCENARIO, column_reference, sheet_columns
from xlperf.workbook.front.formulas import Live
from xlperf.workbook.front.layout import Axis, Page
from xlperf.workbook.style import drop_down, home, page_setup, put, texts, title

if TYPE_CHECKING:
    from openpyxl import Workbook
    from openpyxl.worksheet.worksheet import Worksheet

    from xlperf.catalog.table import Table


TITLE = "Cost of ownership"
TOP = 13
CHOICES = (
    ("C5", "rent or own", "", "blank: rented where prices has a rent; rent; own"),
    ("C6", "life", "year", "blank: as in prices"),
    ("C7", "utilization", "", "blank: as in prices"),
    ("C8", "energy price", "USD/kWh", "blank: as in prices"),
    ("C9", "power usage effectiveness", "", "blank: as in prices"),
)
SPARE_ROWS = 10
"""Rows for prices that a user adds."""
_COLUMNS = resources.rows("workbook/tco_columns.csv")
"""Columns of plans, and right of them the columns of an hour of each price, with their formulas."""
_PLANS, _HOURS = ([row for row in _COLUMNS if row["block"] == block] for block in ("plans", "hours"))
_HELPER = "row of the hours"
"""Column that the formulas beside it look up; hidden."""
_FIRST = len(_PLANS) + 2
_AT = {row["name"]: get_column_letter(_FIRST + place) for place, row in enumerate(_HOURS)}
"""Columns of the hours, right of the plans."""
_PLACE = re.compile(r"\{([^}]*)\}")


def tco_sheet(workbook: Workbook, tables: Mapping[str, Table], live: Live) -> Worksheet:
    """Add the sheet ``tco``."""
    sheet: Worksheet = workbook.create_sheet("tco")
    words = "Plain formulas on the performance cells: they work without the add-in. Yellow cells stand for all plans."
    title(sheet, TITLE, words)
    home(sheet)
    for chosen, name, unit, note in CHOICES:
        put(sheet[f"A{chosen[1:]}"], f"{name} ({unit})" if unit else name, "xlperf key")
        put(sheet[chosen], None, "xlperf input")
        _note(sheet, f"E{chosen[1:]}", note)  # column D is hidden
    _note(sheet, "A10", texts("unpriced")[0])
    drop_down(sheet, "C5", '"rent,own"', allow_blank=True)
    for first, columns in ((1, _PLANS), (_FIRST, _HOURS)):
        for offset, column in enumerate(columns, start=first):
            put(sheet.cell(TOP - 1, offset), column["header"], "xlperf header")
            sheet.column_dimensions[get_column_letter(offset)].width = float(column["width"])
            sheet.column_dimensions[get_column_letter(offset)].hidden = column["header"] == _HELPER
    sheet.row_dimensions[TOP - 1].height = 44
    hours = len(tables["prices"]) + SPARE_ROWS
    for row in range(TOP, TOP + hours):
        _row(sheet, live, row, _FIRST, _HOURS, partial(_hour_place, row - TOP + 1, row))
    row = TOP
    for kind in PLAN_TABLES:
        for number in range(1, len(tables[kind]) + 1):
            _row(sheet, live, row, 1, _PLANS, partial(_plan_place, kind, number, row, TOP + hours - 1), kind)
            row += 1
    _note(sheet, f"A{row + 1}", texts("ownership")[0])
    sheet.freeze_panes = f"B{TOP}"
    last = max(row + 1, TOP + hours - 1)
    page_setup(sheet, TOP - 1, area=f"A1:{_AT['hour']}{last}", pages_high=1)
    return sheet


def _row(
    sheet: Worksheet, live: Live, row: int, first: int, columns: Sequence[Mapping[str, str]],
    filled: Callable[[str], str], kind: str = "",
) -> None:  # fmt: skip
    """Write the formulas of a row, the name of a prefill accelerator before the formulas that look it up."""
    for place, column in sorted(enumerate(columns), key=lambda each: each[1]["header"] != "prefill accelerator"):
        template = (kind == "inference" and column["inference"]) or column["formula"]
        formula = _PLACE.sub(lambda match: filled(match[1]), template)
        look = "xlperf key" if place == 0 else "xlperf computed"
        live.styled(sheet.cell(row, first + place), f"={formula}", look, column["format"])


def _note(sheet: Worksheet, place: str, words: str) -> None:
    cell: Any = put(sheet[place], words, "xlperf note")
    cell.alignment = Alignment(horizontal="left", vertical="center", wrap_text=False)


def _column(kind: str, name: str) -> str:
    return column_reference(table_schema(kind).by_name.get(name) or results_of(kind).by_name[name])


def _hour_place(number: int, row: int, words: str) -> str:
    """A place of the formula of one row of prices: a column of the row, or an input.

    ``priced NAME`` is a price in its scenario; ``chosen NAME CELL`` the cell above the table, else the price, else the
    default.
    """
    names, name = _column("prices", "price"), f"${_AT['name']}{row}"
    what, _, rest = words.partition(" ")
    column, _, chosen = rest.partition(" ")
    if what in _AT:
        return f"${_AT[what]}{row}"
    if what == "priced":
        result = f"INDEX({_column('prices', column)},{number})"
        result = f'IF({result}="","",{result})'
        for case in (case for case in CASES if f"{column}_{case}" in table_schema("prices").by_name):
            cell = f"INDEX({_column('prices', f'{column}_{case}')},{number})"
            result = f'IF(AND({SCENARIO}="{case}",{cell}<>""),{cell},{result})'
        return f'IF({name}="","",{result})'
    if what == "chosen":
        result = _hour_place(number, row, f"priced {column}")
        stated = f'IF({result}="",{table_schema("prices").by_name[column].default},{result})'
        return f'IF({name}="","",' + (f'IF({chosen}<>"",{chosen},{stated}))' if chosen else f"{stated})")
    accelerators = f"MATCH({name},{_column('accelerators', 'accelerator')},0)"
    return {
        "prices": names,
        "number": str(number),
        "device_power": f"INDEX({_column('accelerators', 'thermal_design_power')},{accelerators})",
        "server_factor": table_schema("devices").by_name["server_power_ratio"].default,
        "year_hours": f"{YEAR / HOUR:g}",
    }[what]


def _plan_place(kind: str, number: int, row: int, last: int, words: str) -> str:
    """A place of the formula of one plan; the hours end in row ``last``.

    ``given NAME`` is a cell of the plan; ``at COLUMN`` the row of the hours of the accelerator named there; ``hour NAME
    COLUMN`` a number of the row that a column holds.
    """
    what, _, rest = words.partition(" ")
    name, _, column = rest.partition(" ")
    if what == "given":
        return f"INDEX({_column(kind, name)},{number})"
    hours = f"${_AT[name if what == 'hour' else 'name']}"
    hours = f"{hours}${TOP}:{hours}${last}"
    if what == "hour":
        return f'IF(${column}{row}=0,"",INDEX({hours},${column}{row}))'
    if what == "at":
        return f'IF(${name}{row}="",0,IFERROR(MATCH(${name}{row},{hours},0),0))'
    return {"kind": kind, "row": str(row), "seconds": f"{HOUR:g}"}[what]


def cost_charts(book: Any, live: Live) -> None:
    """Add a chart of the parts of the cost below each sheet of cost_charts.csv that has rows."""
    for own in resources.rows("workbook/cost_charts.csv"):
        kind = own["sheet"]
        if kind not in book.sheetnames:
            continue
        parts = grouped(f"{kind}_results", own["parts"])
        sheet = book[kind]
        edges: Any = range_boundaries(sheet.tables[kind].ref)
        last = edges[3] - BLANK_ROWS
        if last <= HEADER_ROW or sheet.cell(HEADER_ROW + 1, 1).value is None:
            continue
        values = live.formulas.values.get(kind, {})
        for row in sheet.iter_rows(min_row=HEADER_ROW, max_row=last):
            live.values |= {(kind, cell.coordinate): values.get(cell.coordinate, cell.value) for cell in row}
        names, in_sight = [column.name for column in sheet_columns(kind)], DATA_SHEETS[kind].in_sight
        letters = " ".join(get_column_letter(names.index(name) + 1) for name in parts)
        page = Page(sheet, sheet, live)
        rows = HEADER_ROW, last
        chart = page.bars("A", rows, letters, own["colours"].split(), "#,##0", gap=35, stacked=True, formats=False)
        for series, name in zip(chart.series, parts, strict=True):
            series.tx = SeriesLabel(v=name.replace("nre", "design").replace("_", " "))
        chart.visible_cells_only = False  # a part may stand in a column that is folded
        chart.y_axis.crosses = "max"
        top = edges[3] + 2
        end_row = top + max(14, 6 + 2 * (last - HEADER_ROW))
        put(sheet[f"A{top}"], own["heading"], "xlperf heading")
        sheet.print_area = f"A{HEADER_ROW - 1}:{get_column_letter(len(names))}{end_row}"
        first, end = (get_column_letter(names.index(name) + 1) for name in (in_sight[0], DATA_SHEETS[kind].results[3]))
        area, y = f"{first}{top + 1}:{end}{end_row}", Axis(number=own["number"], grid=True)
        page.place(chart, area, Axis(), y, (0.19, 0.02, 0.62, 0.88), (0.83, 0.02, 0.16, float(own["legend"])))
