"""The look of the front sheets: a form on the left, its answer on the right, tiles, headings and charts over cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from openpyxl.formatting.rule import Rule
from openpyxl.styles import Alignment, Border, Font, PatternFill, Side
from openpyxl.styles.differential import DifferentialStyle
from openpyxl.utils import column_index_from_string
from openpyxl.worksheet.datavalidation import DataValidation
from openpyxl.worksheet.properties import PageSetupProperties

from xlperf.base import resources
from xlperf.catalog.cells import number_of
from xlperf.catalog.schema import results_of, table_schema
from xlperf.interop.stack_rules import searched_engines
from xlperf.workbook import charts
from xlperf.workbook.charts import Cells, Points, Shares, line
from xlperf.workbook.checks import VERDICT
from xlperf.workbook.data_sheets import SCENARIO, SCENARIO_CELL, column_validation
from xlperf.workbook.front.formulas import Live, worded
from xlperf.workbook.style import BAD_FILL, BAD_INK, FONT, INK, INPUT_INK, MUTED, NAVY, RULE, number_format

CARD, TINT = "F4F6F8", "E8F1F8"
BLUE, SKY, GREEN, AMBER, ORANGE, GREY = "0072B2", "56B4E9", "009E73", "E69F00", "D55E00", "C3CBD3"
SHEETS = ("Serve", "Train", "Build a chip", "Compare")
NUMBERS = ("calc serve", "calc train", "calc chip", "calc compare")
"""Sheets that hold the numbers of the front sheets."""
DASH = "\N{EN DASH}"
_AS_TYPED = "[<1000]General;#,##0"
"""Number format of entries with a unit: as they are typed, thousands parted."""
_INPUT_FILL, _INPUT_RULE = "FFF9DF", "E5D9A6"
_WIDTHS = {"A": 1.5, "B": 25, "C": 21, "D": 15, "E": 2, "L": 2, "S": 1} | dict.fromkeys("FGHIJKMNOPQR", 9.5)
_LAST_ROW = {"Serve": 41, "Train": 41}
"""Last row of front sheets with money and power below; 33 for others. [-]"""
_HEIGHTS = {1: 4.0, 2: 26.0, 3: 15.0, 4: 6.0, 5: 23.0, 6: 23.0, 30: 17.0, 31: 17.0}
"""Heights of rows; with all others the sheet is as high as a window of 900 pixels shows. [pt]"""


@dataclass(frozen=True)
class _Look:
    """Size, weight, colour, fill and place of the text of a cell."""

    size: float = 10
    bold: bool = False
    colour: str = INK
    fill: str = ""
    place: str = "left"
    wrapped: bool = False
    indent: int = 0


_LOOKS: Mapping[str, _Look] = {
    "title": _Look(20, True, NAVY),
    "subtitle": _Look(colour=MUTED),
    "tab": _Look(10, True, MUTED, CARD, "center"),
    "tab here": _Look(10, True, "FFFFFF", NAVY, "center"),
    "answer": _Look(12, True, NAVY, TINT, wrapped=True, indent=1),
    "answer small": _Look(11, True, NAVY, TINT, indent=1),
    "group": _Look(8, True, MUTED, CARD, indent=1),
    "label": _Look(fill=CARD, indent=1),
    "input": _Look(colour=INPUT_INK, fill=_INPUT_FILL, indent=1),
    "chosen": _Look(9, colour=MUTED, fill=CARD),
    "tile label": _Look(9, colour=MUTED),
    "tile": _Look(22, True, NAVY),
    "tile first": _Look(22, True, BLUE),
    "tile note": _Look(9, colour=MUTED),
    "heading": _Look(11, True, NAVY),
    "head": _Look(9, True, MUTED, place="right"),
    "cell": _Look(place="right"),
    "cell left": _Look(),
    "text": _Look(9, wrapped=True, indent=1),
    "link": _Look(9, colour=BLUE, fill=CARD, indent=1),
    "verdict": _Look(9, colour=MUTED, fill=CARD, indent=1),
    "badge": _Look(9, True, "FFFFFF", GREEN, "center"),
}


def put(sheet: Any, at: str, value: Any, look: str, number: str = "", last: str = "", live: Live | None = None) -> Any:
    """Write a value or formula in a named style, merged up to ``last``."""
    own = _LOOKS[look]
    for row in sheet[f"{at}:{last or at}"]:
        for cell in row:
            cell.font = Font(name=FONT, size=own.size, bold=own.bold, color=own.colour)
            cell.alignment = Alignment(
                horizontal=own.place, vertical="center", wrap_text=own.wrapped, indent=own.indent
            )
            if own.fill:
                cell.fill = PatternFill("solid", start_color=own.fill)
    if last:
        sheet.merge_cells(f"{at}:{last}")
    if live is not None and value is not None:
        live.put(sheet[at], value)
    elif value is not None:
        sheet[at].value = value
    if number:
        sheet[at].number_format = number
    return sheet[at]


def head_row(sheet: Any, letters: Iterable[str], row: int, words: Iterable[str]) -> None:
    """Write the heads of the columns of a table."""
    for letter, head in zip(letters, words, strict=True):
        put(sheet, f"{letter}{row}", head, "head")


def border(sheet: Any, area: str, top: tuple[str, str] | None = None, bottom: tuple[str, str] | None = None) -> None:
    """Rule above or below the cells of a row: weight and colour."""
    sides: dict[str, Any] = {"top": top, "bottom": bottom}
    drawn: dict[str, Any] = {side: Side(style=own[0], color=own[1]) for side, own in sides.items() if own}
    for row in sheet[area]:
        for cell in row:
            cell.border = Border(**drawn)


def last_row(title: str) -> int:
    """Row of the foot of a front sheet, its last row. [-]"""
    return _LAST_ROW.get(title, 33)


def page(sheet: Any, question: str, live: Live) -> None:
    """The grid of a front sheet, its question, and the way to the others."""
    view = sheet.sheet_view
    view.showGridLines, view.showRowColHeaders, view.zoomScale = False, False, 100
    for letter, width in _WIDTHS.items():
        sheet.column_dimensions[letter].width = width
    for row in range(1, last_row(sheet.title) + 1):
        sheet.row_dimensions[row].height = _HEIGHTS.get(row, 15.75)
    put(sheet, "B2", question, "title")
    words = "Fill in the yellow cells; leave auto where xlperf shall choose: its choice stands beside it."
    put(sheet, "B3", words, "subtitle")
    for letter, name in zip("JMOQ", SHEETS, strict=True):
        beside = chr(ord(letter) + 1)
        look = "tab here" if name == sheet.title else "tab"
        put(sheet, f"{letter}2", f'=HYPERLINK("#\'{name}\'!C6","{name}")', look, last=f"{beside}2", live=live)
        border(sheet, f"{letter}2:{beside}2", bottom=("medium", NAVY))
    sheet.sheet_properties.tabColor = BLUE
    view.selection[0].activeCell = view.selection[0].sqref = "C6"
    sheet.print_area = f"A1:S{last_row(sheet.title)}"
    sheet.page_setup.orientation, sheet.page_setup.paperSize = "landscape", 9
    sheet.page_setup.fitToWidth = sheet.page_setup.fitToHeight = 1
    sheet.sheet_properties.pageSetUpPr = PageSetupProperties(fitToPage=True)
    margins = sheet.page_margins
    margins.left = margins.right = margins.top = margins.bottom = 0.4
    sheet.print_options.horizontalCentered = True


@dataclass(frozen=True)
class Entry:
    """A row of a form: a column of its kind, its first value, the note beside it, and words to choose from."""

    column: str
    value: str
    beside: str = ""
    choices: str = ""


def form_rows(kind: str) -> list[Entry | str]:
    """Rows of the form of a kind: entries, headings, blank rows ("").

    >>> form_rows("serve")[:2]
    ['MODEL', Entry(column='model', value='DeepSeek-V3', beside='', choices='')]
    """
    engines = ",".join(searched_engines())
    return [
        Entry(row["column"], row["value"], row["beside"], row["choices"].replace("{engines}", engines))
        if row["column"]
        else row["value"]
        for row in resources.rows("workbook/forms.csv")
        if row["form"] == kind
    ]


def form(sheet: Any, kind: str, live: Live) -> tuple[str, dict[str, str]]:
    """The form of a kind from row 5 on.

    Returns the range that a function takes for its form, and the cell of each column, both with the name of the sheet.
    """
    for row in range(5, last_row(sheet.title) + 1):
        for letter in "BCD":
            put(sheet, f"{letter}{row}", None, "label")
    cells = {}
    place = f"'{sheet.title}'!"
    rows = form_rows(kind)
    for row, own in enumerate(rows, start=5):
        if isinstance(own, str):
            put(sheet, f"B{row}", own or None, "group", live=live)
            continue
        column = table_schema(kind).by_name[own.column]
        put(sheet, f"B{row}", column.header, "label", live=live)
        number = number_of(own.value)
        is_number = column.kind == "number"
        code = (number_format(column) if column.unit == "-" else _AS_TYPED) if is_number else ""
        put(sheet, f"C{row}", number if is_number and number == number else own.value, "input", code, live=live)
        border(sheet, f"C{row}:C{row}", bottom=("thin", _INPUT_RULE))
        cells[own.column] = f"{place}$C${row}"
        validation = column_validation(column, f"C{row}")
        if own.choices:
            validation = DataValidation("list", formula1=f'"{own.choices}"', allow_blank=True, showErrorMessage=False)
        if validation is not None:
            validation.add(f"C{row}")
            sheet.add_data_validation(validation)
    return f"{place}$B$5:$C${4 + len(rows)}", cells


def given(cell: str) -> str:
    """Reference to an entry of a form; a blank one stays blank."""
    return f'=IF({cell}="","",{cell})'


def results(data: Any, kind: str, area: str, live: Live) -> dict[str, str]:
    """Every result of a form in columns A and B, from row 3 of the sheet of its numbers; the cell of each."""
    by_name = {}
    data["A1"].value = f"{kind}: every result, and what charts are drawn from"
    for row, column in enumerate(results_of(kind).columns, start=3):
        data[f"A{row}"].value = column.header
        words = column.name.replace("_", " ")
        asked = f'XLPERF_{kind.upper()}({area},"{words}",catalog)'
        live.put(data[f"B{row}"], f'=IFERROR({asked},"")' if column.name == "reason" else f"={asked}")
        by_name[column.name] = f"'{data.title}'!$B${row}"
    return by_name


def beside(sheet: Any, kind: str, live: Live, results: Mapping[str, str]) -> None:
    """Notes beside the entries: the chosen value, else a unit."""
    for row, own in enumerate(form_rows(kind), start=5):
        if isinstance(own, Entry) and own.beside:
            words = f'=IFERROR({worded(own.beside, results)},"")' if "{" in own.beside else own.beside
            put(sheet, f"D{row}", words, "chosen", live=live)


def answer(sheet: Any, formula: str, live: Live) -> None:
    """The sentence that answers, red if there is none."""
    put(sheet, "F5", formula, "answer", last="R6", live=live)
    in_colour(sheet, "F5:R6", 'LEFT($F$5,3)="No "', BAD_INK, BAD_FILL)


def in_colour(sheet: Any, area: str, formula: str, colour: str, fill: str = "") -> None:
    """Show cells bold in a colour if a formula, written for the first of them, is true."""
    look = DifferentialStyle(
        font=Font(bold=True, color=f"FF{colour}"), fill=PatternFill("solid", bgColor=f"FF{fill}") if fill else None
    )
    sheet.conditional_formatting.add(area, Rule(type="expression", dxf=look, formula=[formula.lstrip("=")]))


def tiles(sheet: Any, own: Sequence[tuple[str, str, str, str]], live: Live) -> None:
    """Six answers in large type: label, formula, number format, note."""
    for number, (letter, (label, value, code, note)) in enumerate(zip("FHJMOQ", own, strict=True)):
        last = chr(ord(letter) + 1)
        put(sheet, f"{letter}8", label, "tile label", last=f"{last}8", live=live)
        look = "tile first" if number == 0 else "tile"
        put(sheet, f"{letter}9", f'=IFERROR({value},"{DASH}")', look, code, f"{last}10", live)
        put(sheet, f"{letter}11", f'=IFERROR({note},"")', "tile note", last=f"{last}11", live=live)
        border(sheet, f"{letter}8:{last}8", top=("medium", BLUE if number == 0 else NAVY))


def foot(sheet: Any, numbers: str, live: Live) -> None:
    """Below the form: the way to its numbers, and one verdict of the checks of all sheets."""
    first, verdict, last = (last_row(sheet.title) - above for above in (2, 1, 0))
    put(sheet, f"B{first}", f'=HYPERLINK("#\'{numbers}\'!A1","all numbers of this answer")', "link", live=live)
    words = f'"scenario: "&{SCENARIO}&IF({SCENARIO}="base",", change it"," prices and bands")'
    put(sheet, f"B{last}", f'=HYPERLINK("#start!{SCENARIO_CELL}",{words})', "link", live=live)
    in_colour(sheet, f"B{last}:D{last}", f'{SCENARIO}<>"base"', ORANGE)
    put(sheet, f"B{verdict}", f"={VERDICT}", "verdict", last=f"D{verdict}", live=live)
    in_colour(sheet, f"B{verdict}:D{verdict}", f'RIGHT($B${verdict},2)<>"ok"', BAD_INK, BAD_FILL)


def heading(sheet: Any, at: str, words: str, last: str, live: Live) -> None:
    """A heading with a rule below."""
    put(sheet, at, words, "heading", live=live)
    border(sheet, f"{at}:{last}{at[1:]}", bottom=("thin", RULE))


BADGES = (
    ("MEASURED", GREEN), ("INTERPOLATED", "9A6A00"), ("EXTRAPOLATED", ORANGE), ("A FORECAST", ORANGE),
           ("BANDS OVERLAP", "9A6A00"))  # fmt: skip


def how_sure(sheet: Any, row: int, badge: str, lines: Sequence[str], live: Live) -> None:
    """The badge in its colour, and lines of text below a heading."""
    heading(sheet, f"F{row}", "How sure", "K", live)
    put(sheet, f"F{row + 1}", f'=IFERROR({badge}&"","{DASH}")', "badge", last=f"G{row + 1}", live=live)
    for words, colour in (*BADGES[1:], (DASH, GREY)):
        in_colour(sheet, f"F{row + 1}:G{row + 1}", f'$F${row + 1}="{words}"', "FFFFFF", colour)
    put(sheet, f"H{row + 1}", f'=IFERROR({lines[0]},"")', "text", last=f"K{row + 2}", live=live)
    for number, formula in enumerate(lines[1:], start=row + 3):
        put(sheet, f"F{number}", f'=IFERROR({formula},"")', "text", last=f"K{number}", live=live)


def texts(sheet: Any, row: int, words: str, formulas: Sequence[str], live: Live) -> None:
    """Texts below a heading at the lower right, the first on two lines."""
    heading(sheet, f"M{row}", words, "R", live)
    for number, formula in enumerate(formulas):
        first, last = (row + 1, row + 2) if number == 0 else (row + 2 + number, row + 2 + number)
        put(sheet, f"M{first}", f'=IFERROR({formula},"")', "text", last=f"R{last}", live=live)


# --- charts


class Axis(NamedTuple):
    """Title of an axis, number format and size of its labels, grid lines."""

    words: str = ""
    number: str = "General"
    grid: bool = False
    hidden: bool = False
    size: float = 9


def place(chart: Any, sheet: Any, area: str, x: Axis, y: Axis, plot: Shares, legend: Shares | str = "") -> None:
    """Draw the axes of a chart and put it over cells."""
    for axis, own in ((chart.x_axis, x), (chart.y_axis, y)):
        charts.draw_axis(axis, own.words, own.number, own.grid, size=own.size, ink=MUTED, rule=(RULE, 0.75), low=False)
        axis.delete = own.hidden
    charts.place_over(chart, sheet, area, plot, legend)


def bars(
    data: Any, names: str, rows: tuple[int, int], columns: str, colours: Sequence[str], number: str, live: Live, *,
    lying: bool = True, gap: int = 40, stacked: bool = False, formats: bool = True,
) -> Any:  # fmt: skip
    """Bars of columns of a sheet, over each other or stacked; the header row names the series; no label for 0.

    ``formats`` gives the cells the number format of the labels.
    """
    chart = charts.bar_chart("", "bar" if lying else "col", None, "stacked" if stacked else "clustered", 100, gap)
    first, last = rows
    labels = Cells(data, column_index_from_string(names), first + 1, last, live.values)
    for letters, colour in zip(columns.split(), colours, strict=True):
        at = column_index_from_string(letters)
        cells = Cells(data, at, first, first, live.values), labels, Cells(data, at, first + 1, last, live.values)
        chart.series.append(charts.bar_series(*cells, charts.area(colour, line("FFFFFF", 0.75) if colour else line())))
        for row in range(first + 1, last + 1) if formats else ():
            data.cell(row, at).number_format = f"{number};;"
    if lying:
        chart.x_axis.scaling.orientation = "maxMin"
    chart.y_axis.scaling.min = 0
    return chart


def points(
    data: Any, x: str, y: str, rows: tuple[int, int], colour: str, live: Live, marker: str = "none", dash: str = "",
    size: int = 12,
) -> Points:  # fmt: skip
    """Points of columns of a sheet, the header in the first row: markers, or without one a line, dashed or not."""
    first, last = rows
    columns = column_index_from_string(x), column_index_from_string(y)
    along, up = (Cells(data, column, first + 1, last, live.values) for column in columns)
    width = 0.0 if marker != "none" else 1.25 if dash else 2.25
    header = Cells(data, columns[1], first, first, live.values)
    return Points(header, along, up, colour, marker, size, edge=1.0, width=width, dash=dash or None)


def scatter(own: Sequence[Points]) -> Any:
    """Lines and points over numbers from 0; the values of large points are shown."""
    chart = charts.scatter_chart(own)
    for series, entry in zip(chart.series, own, strict=True):
        if entry.marker != "none" and entry.size == 12:
            charts.label_values(series, "r", entry.colour, True)
    chart.x_axis.scaling.min = chart.y_axis.scaling.min = 0
    return chart
