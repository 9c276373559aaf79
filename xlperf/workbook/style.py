"""Fonts, colours, number formats, cells, links and print set-up of our workbooks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from openpyxl import Workbook
from openpyxl.drawing.spreadsheet_drawing import AnchorMarker, OneCellAnchor
from openpyxl.drawing.xdr import XDRPositiveSize2D
from openpyxl.formatting.rule import ColorScaleRule
from openpyxl.styles import Alignment, Border, Color, Font, NamedStyle, PatternFill, Protection, Side
from openpyxl.styles.cell_style import StyleArray
from openpyxl.utils import get_column_letter
from openpyxl.utils.cell import coordinate_from_string
from openpyxl.worksheet.datavalidation import DataValidation
from openpyxl.worksheet.hyperlink import Hyperlink
from openpyxl.worksheet.pagebreak import Break
from openpyxl.worksheet.properties import PageSetupProperties

from xlperf.base import resources
from xlperf.catalog.schema import Column

if TYPE_CHECKING:
    from openpyxl.cell import Cell, MergedCell
    from openpyxl.worksheet.worksheet import Worksheet


FONT = "Arial"
INK = "1F2933"
NAVY = "1B3A57"
TEAL = "0F6B6B"
MUTED = "66727F"
RULE = "D5DBE1"
INPUT_INK = "1F3FBF"
INPUT_FILL = "FFFBEB"
KEY_FILL = "EEF2F6"
BAD_FILL = "FBE3E1"
BAD_INK = "A61B1B"
WARN_FILL = "FFF1D6"
WARN_INK = "8A5A00"
GOOD_INK = "1E7B4F"
_TOP_STYLES = ("xlperf text", "xlperf note")
_FORMULA_START = ("=", "+", "-", "@")


def _font(size: float = 9, color: str = INK, bold: bool = False, italic: bool = False, under: bool = False) -> Font:
    return Font(
        name=FONT, size=size, color=color, bold=bold, italic=italic, underline="single" if under else None, family=2
    )


def _named(
    name: str, font: Font, fill: str = "", wrap: bool = False, align: str = "general", rule: bool = False
) -> NamedStyle:
    style = NamedStyle(name=name)
    style.font = font
    if fill:
        style.fill = PatternFill("solid", start_color=Color(rgb=f"FF{fill}"), end_color=Color(rgb=f"FF{fill}"))
    style.alignment = Alignment(horizontal=align, vertical="top" if name in _TOP_STYLES else "center", wrap_text=wrap)
    if rule:
        style.border = Border(bottom=Side(style="hair", color=f"FF{RULE}"))
    style.protection = Protection(locked="input" not in name)
    return style


def add_styles(workbook: Workbook) -> None:
    """Add our missing named styles to a workbook, and set the default font."""
    known = set(workbook.named_styles)
    inside: Any = workbook
    inside._named_styles["Normal"].font = _font()
    inside._fonts[0] = _font()
    for style in (
        _named("xlperf title", _font(18, NAVY, bold=True)),
        _named("xlperf subtitle", _font(10, MUTED)),
        _named("xlperf heading", _font(12, NAVY, bold=True)),
        _named("xlperf text", _font(), wrap=True),
        _named("xlperf note", _font(8, MUTED, italic=True), wrap=True),
        _named("xlperf link", _font(9, INPUT_INK, under=True)),
        _named("xlperf header", _font(8, "FFFFFF", bold=True), NAVY, wrap=True, align="center"),
        _named("xlperf header result", _font(8, "FFFFFF", bold=True), TEAL, wrap=True, align="center"),
        _named("xlperf key", _font(9, INK, bold=True), KEY_FILL, rule=True),
        _named("xlperf input", _font(9, INPUT_INK), INPUT_FILL, rule=True),
        _named("xlperf computed", _font(9, INK), rule=True),
        _named("xlperf reason", _font(8, INK), wrap=True, rule=True),
    ):
        if style.name not in known:
            workbook.add_named_style(style)


def texts(place: str) -> list[str]:
    """Lines of text of a place in our workbooks."""
    return [row["words"] for row in resources.rows("workbook/texts.csv") if row["place"] == place]


def new_book(name: str = "") -> Workbook:
    """A workbook without sheets, with our styles; ``name``: its title among the properties."""
    book = Workbook()
    book.remove(book.worksheets[0])
    add_styles(book)
    if name:
        book.properties.creator, book.properties.title = "xlperf", name
    return book


def open_on(book: Any, sheet: Any) -> None:
    """Let a workbook open on a sheet; only one sheet is selected, or typing would go into several at once."""
    book.active = book.worksheets.index(sheet)
    for each in book.worksheets:
        each.sheet_view.tabSelected = each is sheet


def drop_down(sheet: Any, area: str, choices: str, **options: Any) -> None:
    """Give cells a drop-down of a list or a defined name."""
    choice = DataValidation(type="list", formula1=choices, **options)
    choice.add(area)
    sheet.add_data_validation(choice)


def colour_scale(sheet: Any, area: str) -> None:
    """Colour cells by their value, around the median."""
    make: Any = ColorScaleRule
    ends = {"start_type": "min", "mid_type": "percentile", "mid_value": 50, "end_type": "max"}
    rule = make(start_color="FFF7FAFC", mid_color="FFB9D3EE", end_color="FF7FB2E5", **ends)
    sheet.conditional_formatting.add(area, rule)


def put(
    cell: Cell | MergedCell,
    value: Any,
    style: str = "xlperf text",
    number: str | None = None,
    wrapped: bool | None = None,
) -> Cell | MergedCell:
    """Set a cell to a value in one of our styles; text never becomes a formula, NaN becomes blank."""
    if isinstance(value, float) and not math.isfinite(value):
        value = None
    if value == "":
        value = None
    inside: Any = cell
    quoted = isinstance(value, str) and value.startswith(_FORMULA_START)
    looks = vars(inside.parent.parent).setdefault(_LOOKS, {})
    known = looks.get((style, number, quoted, wrapped))
    if known is None:
        cell.style = style
        inside.quotePrefix = quoted
        if number is not None:
            cell.number_format = number
        if wrapped is not None:
            cell.alignment = Alignment(horizontal="left", vertical="center", indent=1, wrap_text=wrapped)
        looks[style, number, quoted, wrapped] = StyleArray(inside._style)
    else:
        inside._style = StyleArray(known)
    if isinstance(value, str):
        inside.value = _ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", value)[:32767]
        inside.data_type = "s"
    else:
        inside.value = value
    return cell


_LOOKS = "_xlperf_looks"
"""Attribute of a workbook with the looks that cells have already: openpyxl compares each with all that there are."""
_ILLEGAL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]|[\ud800-\udfff]")


def tab(sheet: Any, colour: str) -> None:
    """Give the tab of a sheet a colour."""
    sheet.sheet_properties.tabColor = colour


def title(sheet: Worksheet, text: str, subtitle: str = "", at: str = "A1") -> None:
    """Put a title and a subtitle at the top of a sheet; also hides its grid lines."""
    letter, row = coordinate_from_string(at)
    put(sheet[at], text, "xlperf title")
    sheet.row_dimensions[row].height = 30
    if subtitle:
        put(sheet[f"{letter}{row + 1}"], subtitle, "xlperf subtitle")
    sheet.sheet_view.showGridLines = False


def link(cell: Cell | MergedCell, sheet_title: str, text: str) -> None:
    """Make a cell a link to a sheet of the same workbook."""
    put(cell, text, "xlperf link")
    quoted = sheet_title.replace("'", "''")
    inside: Any = cell
    inside.hyperlink = Hyperlink(ref=cell.coordinate, location=f"'{quoted}'!A1", display=text)
    cell.style = "xlperf link"


def home(sheet: Worksheet, at: str = "B1", target: str = "start") -> None:
    """Put the way back into a cell of the first row: to the list of all sheets, or to another sheet."""
    link(sheet[at], target, "All sheets" if target == "start" else f"Back to {target}")
    sheet[at].alignment = Alignment(horizontal="left", vertical="center")


def page_setup(
    sheet: Worksheet,
    header_row: int | None = None,
    *,
    area: str | None = None,
    pages_wide: int = 1,
    pages_high: int = 0,
    key_columns: str | None = None,
    landscape: bool = True,
    heading: str = "",
) -> None:
    """Set a sheet up for print: A4, fitted to the width, header rows repeated, page numbers.

    ``area`` is printed, else all; ``pages_high`` 0: as many as it takes. ``key_columns`` (``A:A``) repeat on pages side
    by side. ``heading``: title in the page header, for sheets whose print area leaves their own title out.
    """
    sheet.page_setup.orientation = "landscape" if landscape else "portrait"
    sheet.page_setup.paperSize = 9
    sheet.page_setup.fitToWidth = pages_wide
    sheet.page_setup.fitToHeight = pages_high
    sheet.sheet_properties.pageSetUpPr = PageSetupProperties(fitToPage=True)
    margins = sheet.page_margins
    margins.left = margins.right = 0.4
    margins.top, margins.bottom, margins.header, margins.footer = 0.55, 0.6, 0.25, 0.3
    if header_row is not None:
        sheet.print_title_rows = f"{header_row}:{header_row}"
    if key_columns is not None and pages_wide != 1:
        sheet.print_title_cols = key_columns
    if area is not None:
        sheet.print_area = area
    if heading:
        header: Any = sheet.oddHeader
        header.left.text = f'&"{FONT},Bold"&14{heading.replace("&", "&&")}'
        margins.top = 0.75
    footer: Any = sheet.oddFooter
    footer.left.text = "&8xlperf"
    footer.center.text = "&8&A"
    footer.right.text = "&8Page &P of &N"


_ROW_HEIGHT = 15.0  # points
CM_PER_LETTER = 0.165
"""Width of a column per letter in the narrowest font that a program puts in the place of ours. [cm]"""
_PAGE = (27.6, 17.9)
"""Width and height that a landscape page has for cells. [cm]"""
_CM_PER_POINT = 2.54 / 72.0


def width_of(sheet: Worksheet, first: int, last: int) -> float:
    """Letters of some columns of a sheet, from the first to the last."""
    letters = (get_column_letter(column) for column in range(first, last + 1))
    known = sheet.column_dimensions
    return sum(float(known[letter].width) if letter in known else 8.43 for letter in letters)


def height_of(sheet: Worksheet, first: int, last: int) -> float:
    """Height of some rows of a sheet, from the first to the last. [cm]"""
    known = sheet.row_dimensions
    rows = ((known[row].height if row in known else None) or _ROW_HEIGHT for row in range(first, last + 1))
    return sum(rows) * _CM_PER_POINT


def page_height(wide: float) -> float:
    """Height of content on a page that is fitted to a width. [cm]"""
    return _PAGE[1] * max(wide / _PAGE[0], 1.0)


def shrunk(wide: float, high: float) -> float:
    """Scale at which an object of a width and a height fits on one page; 1 if it fits unscaled. [-]"""
    return min(_PAGE[0] / wide, _PAGE[1] / high, 1.0)


def keep_together(sheet: Worksheet, blocks: Iterable[tuple[int, int]], wide: float, repeated: int = 0) -> None:
    """Break pages before blocks of rows that a page would cut."""
    page = room = page_height(wide)
    row = 1
    for first, last in blocks:
        for between in range(row, first):  # rows that a page may cut
            high = height_of(sheet, between, between)
            room = (room if high <= room else page - height_of(sheet, 1, repeated)) - high
        high = height_of(sheet, first, last)
        if high > room and first > 1:
            sheet.row_breaks.append(Break(id=first - 1))
            room = page - height_of(sheet, 1, repeated)
        room -= high
        row = last + 1


FLAG_FORMAT = '[=1]"yes";[=0]"no";General'
"""Number format of computed flags."""
_COUNT = "#,##0"
_FORMATS = {row["column or unit"]: row["format"] for row in resources.rows("workbook/number_formats.csv")}
"""Number formats of columns (TABLE.COLUMN, or COLUMN of numbers without a unit) and of units."""
_SHARES = {name[1:]: code for name, code in _FORMATS.items() if name.startswith("*")}
"""Number formats by the end of the names of columns that hold shares."""


def number_format(column: Column) -> str:
    """Number format of a column, by its name or else by its unit.

    >>> from xlperf.catalog.schema import column
    >>> number_format(column("training_results", "mfu"))
    '0.0 %'
    """
    if column.is_text or column.kind in ("flag", "result-flag"):
        return FLAG_FORMAT if column.kind == "result-flag" else "General"
    if (own := _FORMATS.get(f"{column.table}.{column.name}")) is not None:
        return own
    if column.unit in ("", "-"):
        usual = "0.0 %" if column.name.startswith("share_") else _COUNT
        by_end = next((code for end, code in _SHARES.items() if column.name.endswith(end)), usual)
        return _FORMATS.get(column.name, by_end)
    return _FORMATS.get(f"unit {column.unit}", "[<10]0.00##;#,##0.0")


def fitted_format(column: Column, shown: Iterable[Any]) -> str:
    """Number format of a column of results or fractions with as many decimals as its values need, aligned at the point.

    >>> from xlperf.catalog.schema import column
    >>> fitted_format(column("training_results", "step_time"), [5.2148, 39.08, 0.0])
    '[=0]#,##0.00;[<0.005]0.0E+00;#,##0.00'

    A sum of money below the last decimal is no power of ten.

    >>> fitted_format(column("servers_results", "cost_rate"), [5.2148, 39.08, 4.8e-10])
    '[=0]#,##0.000;[<0.0005]"<0.001";#,##0.000'

    Sections with a condition lose the sign of values below 0, so changes are shown without powers of ten; one that is
    rounded to 0 has no sign.

    >>> fitted_format(column("cost_bridge", "cost_change"), [4.72, -1.14])
    '[>=0.005]#,##0.00;[<=-0.005]-#,##0.00;"0.00"'
    """
    own = [v for v in shown if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)]
    numbers = sorted(abs(v) for v in own if v)
    whole = all(float(number).is_integer() for number in numbers)
    if column.table == "study" and column.unit == "-" and numbers and whole:
        return _COUNT
    usual = number_format(column)
    broken = usual == _COUNT and not whole
    if not numbers or (not broken and (not column.is_result or column.unit in ("", "%"))):
        return usual
    if column.unit == "-" and column.table != "study" and not broken:
        return usual
    most = max(4 - math.floor(math.log10(numbers[-1])), 1)  # five figures of the largest [-]
    decimals = min(max(2 - math.floor(math.log10(numbers[len(numbers) // 10])), 0), most, 4)
    decimals = next((own for own in range(decimals) if all(round(v, own) == v for v in numbers)), decimals)
    digits = f"#,##0.{'0' * decimals}" if decimals else "#,##0"
    if min(own) < 0.0:
        return signed_format(digits, decimals)
    small = f'"<{10**-decimals:.{decimals}f}"' if column.unit.startswith(("USD", "MUSD")) else "0.0E+00"
    return f"[=0]{digits};[<{0.5 * 10**-decimals:.{decimals + 1}f}]{small};{digits}"


def signed_format(digits: str, decimals: int, plus: str = "") -> str:
    """Number format of changes: none is shown as -0.00, which a program makes of a small loss."""
    least = f"{0.5 * 10**-decimals:.{decimals + 1}f}"
    percent = digits[-2:] * digits.endswith("%")
    return f'[>={least}]{plus}{digits};[<=-{least}]-{digits};"{0:.{decimals - 2 * bool(percent)}f}{percent}"'


def without_signed_zeros(code: str, shown: Iterable[Any]) -> str:
    """A number format without sections, which would show one of some numbers as -0.0, with sections that do not.

    >>> without_signed_zeros("0.0", [-0.01, 3.0]), without_signed_zeros("0.0", [-0.1])
    ('[>=0.05]0.0;[<=-0.05]-0.0;"0.0"', '0.0')
    """
    decimals = sum(map(code.partition(".")[2].count, "0#")) + 2 * code.count("%")
    small = (isinstance(v, float) and v < 0.0 and round(v, decimals) == 0.0 for v in shown)
    return signed_format(code, decimals) if code != "General" and ";" not in code and any(small) else code


def aligned_format(column: Column, shown: Iterable[Any], figures: bool = False) -> str:
    """Number format of a column with the same decimals in every row: all that its values have, or, of results and if
    ``figures``, as many as three figures take.

    >>> from xlperf.catalog.schema import column
    >>> aligned_format(column("technology", "clock_ratio"), [0.9, 1.165])
    '#,##0.000'
    >>> aligned_format(column("fleet_years", "demand"), [500.0, 2531.25], figures=True)
    '#,##0'
    """
    usual = number_format(column)
    _, point, fraction = usual.rpartition(".")
    varied = bool(point) and (usual.startswith("[") or "#" in fraction)
    entered = not column.is_result and not figures
    if column.is_text or not (varied or (entered and usual in (_TENTHS, _COUNT))):
        return usual
    if usual.endswith("%"):
        return usual if usual.startswith("[") else f"0.{'0' * (fraction.count('0') + fraction.count('#') // 2)} %"
    numbers = [v for v in shown if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)]
    if not numbers:
        return usual
    if column.is_result and column.unit != "-" and not figures:
        return fitted_format(column, numbers)
    decimals = _decimals(numbers, figures or column.is_result)
    if not figures and min((abs(number) for number in numbers if number), default=1.0) < 0.5 * 10.0**-decimals:
        return usual  # 0 for a number that is not
    return f"#,##0.{'0' * decimals}" if decimals else _COUNT


_TENTHS = "#,##0.0"
_MOST_DECIMALS = 4


def _decimals(numbers: Sequence[float], figures: bool) -> int:
    """Fewest decimals that show all numbers, or three figures of all but the smallest tenth of them. [-]"""
    sizes = sorted(abs(number) for number in numbers if number)
    most = min(max(2 - math.floor(math.log10(sizes[len(sizes) // 10])), 0), 4) if figures and sizes else _MOST_DECIMALS
    exact = (own for own in range(most) if all(math.isclose(round(v, own), v, abs_tol=1e-12) for v in numbers))
    return next(exact, most)


def shown_width(code: str, shown: Iterable[Any]) -> float:
    """Width of a column that shows its numbers in a format whole, in characters.

    >>> shown_width("#,##0.0", [7.0, 1000000.0])
    12.5
    """
    decimals = code.rpartition(";")[2].partition(".")[2].count("0")
    numbers = [v for v in shown if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)]
    return max((len(f"{value:,.{decimals}f}") for value in numbers), default=0) + 1.5 + 2 * code.count("%")


def column_widths(sheet: Worksheet, *widths: float) -> None:
    """Set the widths of the first columns, in characters."""
    for column, width in enumerate(widths, start=1):
        sheet.column_dimensions[get_column_letter(column)].width = width


def heading(sheet: Worksheet, row: int, words: str) -> int:
    """Put a heading into the first column; the row below it."""
    put(sheet.cell(row, 1), words, "xlperf heading")
    sheet.row_dimensions[row].height = 24
    return row + 1


def even_rows(sheet: Worksheet, first: int, end: int) -> None:
    """Set one height for the rows behind charts."""
    for row in range(first, end):
        sheet.row_dimensions[row].height = _ROW_HEIGHT


def chart_rows(height: float) -> int:
    """Rows of :func:`even_rows` that a chart of a height [cm] covers, with a gap below."""
    return math.ceil(height / (_ROW_HEIGHT / 72 * 2.54)) + 1


def place_chart(sheet: Worksheet, chart: Any, row: int, left: float = 0.0) -> None:
    """Add a chart to a sheet at a row and a distance from the left edge [cm], in the column that it falls into.

    Columns have their widths before; an offset beyond its column is cut by Excel.
    """
    emu = 360000  # per cm
    column, rest = 1, left
    while rest >= (own := CM_PER_LETTER * width_of(sheet, column, column)):
        column, rest = column + 1, rest - own
    marker = AnchorMarker(col=column - 1, colOff=round(rest * emu), row=row - 1, rowOff=round(0.1 * emu))
    chart.anchor = OneCellAnchor(
        _from=marker, ext=XDRPositiveSize2D(round(chart.width * emu), round(chart.height * emu))
    )
    sheet.add_chart(chart)
