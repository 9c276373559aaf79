"""The look that all our workbooks share: fonts, colours, number formats by unit, native tables, print set-up."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from openpyxl.comments import Comment
from openpyxl.styles import Alignment, Border, Color, Font, NamedStyle, PatternFill, Protection, Side
from openpyxl.utils import get_column_letter
from openpyxl.utils.cell import column_index_from_string, coordinate_from_string
from openpyxl.worksheet.properties import PageSetupProperties
from openpyxl.worksheet.table import Table as ListObject
from openpyxl.worksheet.table import TableStyleInfo

from xlperf.catalog.schema import Column, unit_of
from xlperf.catalog.table import Table
from xlperf.excel.save import EPOCH, replace_file, save_workbook, workbook_bytes

if TYPE_CHECKING:
    from openpyxl import Workbook
    from openpyxl.cell import Cell, MergedCell
    from openpyxl.worksheet.worksheet import Worksheet

__all__ = [
    "EPOCH",
    "INK",
    "STYLES",
    "add_styles",
    "cell_value",
    "column_width",
    "data_rows",
    "fitted_format",
    "link",
    "number_format",
    "page_setup",
    "put",
    "replace_file",
    "save_workbook",
    "table_name",
    "title",
    "workbook_bytes",
    "write_table",
]

FONT = "Calibri"
INK = "1F2933"
NAVY = "1B3A57"
TEAL = "0F6B6B"
MUTED = "66727F"
RULE = "D5DBE1"
INPUT_INK = "1F3FBF"
INPUT_FILL = "FFFBEB"
COMPUTED_FILL = "FFFFFF"
KEY_FILL = "EEF2F6"
BAD_FILL = "FBE3E1"
BAD_INK = "A61B1B"
WARN_FILL = "FFF1D6"
WARN_INK = "8A5A00"
GOOD_INK = "1E7B4F"

# Style names of the cells that our sheets are made of.
STYLES = (
    "xlperf title",
    "xlperf subtitle",
    "xlperf heading",
    "xlperf text",
    "xlperf note",
    "xlperf link",
    "xlperf header",
    "xlperf header result",
    "xlperf key",
    "xlperf input",
    "xlperf computed",
    "xlperf reason",
)

_COUNT = "#,##0"
_WIDEST = {"reason": 140, "notes": 60, "source": 60}
_FORMATS = {
    "%": "0.0",
    "s": "[=0]0;[<10]0.0000;#,##0.00",
    "ms": "[=0]0;[<100]0.000;#,##0.0",
    "us": "[=0]0;[<1000]0.0##;#,##0",
    "h": "#,##0.0",
    "day": "#,##0.0",
    "year": "0.0#",
    "token/s": "[<100]0.00;#,##0",
    "token/s/MW": _COUNT,
    "request/s": "0.0##",
    "GiB": "[=0]0;[<10]0.00;#,##0.0",
    "MiB": "#,##0.0",
    "KiB": _COUNT,
    "MB": "[<100]0.00;#,##0",
    "TB/s": "0.00#",
    "GB/s": "#,##0.0##",
    "GHz": "0.000",
    "TFLOP/s": "#,##0.0",
    "GFLOP": "[<100]0.000;#,##0",
    "FLOP/B": "[<100]0.0;#,##0",
    "W": _COUNT,
    "J/token": "[<10]0.0000;#,##0.0",
    "USD": _COUNT,
    "USD/h": "0.00#",
    "USD/kWh": "0.000",
    "USD/Mtoken": "[<10]0.0000;#,##0.00",
    "mm2": "#,##0.0",
    "G": "#,##0.0##",
}
_BY_NAME = {
    "year": "0",
    "value": "General",
    "error": "0.0%",
    "mfu": "0.0%",
    "hfu": "0.0%",
    "utilization": "0%",
    "opex_share": "0.0%",
    "power_usage_effectiveness": "0.00",
    "oversubscription": "0.0#",
}
_TOP_STYLES = ("xlperf text", "xlperf note")
_FORMULA_START = ("=", "+", "-", "@")


def number_format(column: Column) -> str:
    """Number format of a column, by its name or else by its unit.

    Parameters
    ----------
    column : Column
        A column of the schema.

    Returns
    -------
    str
        An Excel number format.

    >>> from xlperf.catalog.schema import column
    >>> number_format(column("training_results", "mfu"))
    '0.0%'
    """
    if column.is_text or column.kind in ("flag", "result-flag"):
        return "General"
    if column.unit in ("", "-"):
        return _BY_NAME.get(column.name, _COUNT)
    return _FORMATS.get(column.unit, "[<10]0.00##;#,##0.0")


def fitted_format(column: Column, shown: Iterable[Any]) -> str:
    """Number format of a result column with as many decimals as its values ask for, so that points stand in a line.

    Parameters
    ----------
    column : Column
        A column of the schema.
    shown : iterable
        Its values as cells show them.

    Returns
    -------
    str
        An Excel number format: three figures of all but the smallest values, powers of ten where that shows nothing.

    >>> from xlperf.catalog.schema import column
    >>> fitted_format(column("training_results", "step_time"), [5.2148, 39.08, 0.0])
    '[=0]0;[<0.005]0.0E+00;#,##0.00'
    """
    numbers = sorted(abs(v) for v in shown if isinstance(v, int | float) and not isinstance(v, bool) and v)
    if not column.is_result or column.unit in ("", "-", "%") or not numbers:
        return number_format(column)
    decimals = min(max(2 - math.floor(math.log10(numbers[len(numbers) // 10])), 0), 4)
    digits = f"#,##0.{'0' * decimals}" if decimals else "#,##0"
    return f"[=0]0;[<{0.5 * 10**-decimals:.{decimals + 1}f}]0.0E+00;{digits}"


def _font(size: float = 10, color: str = INK, bold: bool = False, italic: bool = False, under: bool = False) -> Font:
    return Font(
        name=FONT, size=size, color=color, bold=bold, italic=italic, underline="single" if under else None, family=2
    )


def _fill(color: str) -> PatternFill:
    return PatternFill("solid", start_color=Color(rgb=f"FF{color}"), end_color=Color(rgb=f"FF{color}"))


def _named(
    name: str, font: Font, fill: str = "", wrap: bool = False, align: str = "general", rule: bool = False
) -> NamedStyle:
    style = NamedStyle(name=name)
    style.font = font
    if fill:
        style.fill = _fill(fill)
    style.alignment = Alignment(horizontal=align, vertical="top" if name in _TOP_STYLES else "center", wrap_text=wrap)
    if rule:
        style.border = Border(bottom=Side(style="hair", color=f"FF{RULE}"))
    style.protection = Protection(locked="input" not in name)
    return style


def add_styles(workbook: Workbook) -> None:
    """Add our named styles to a workbook, those that it lacks; also sets the default font.

    Parameters
    ----------
    workbook : openpyxl.Workbook
        Changed in place.
    """
    known = set(workbook.named_styles)
    inside: Any = workbook
    inside._named_styles["Normal"].font = _font()
    inside._fonts[0] = _font()
    for style in (
        _named("xlperf title", _font(20, NAVY, bold=True)),
        _named("xlperf subtitle", _font(11, MUTED)),
        _named("xlperf heading", _font(13, NAVY, bold=True)),
        _named("xlperf text", _font(), wrap=True),
        _named("xlperf note", _font(9, MUTED, italic=True), wrap=True),
        _named("xlperf link", _font(10, INPUT_INK, under=True)),
        _named("xlperf header", _font(9, "FFFFFF", bold=True), NAVY, wrap=True, align="center"),
        _named("xlperf header result", _font(9, "FFFFFF", bold=True), TEAL, wrap=True, align="center"),
        _named("xlperf key", _font(10, INK, bold=True), KEY_FILL, rule=True),
        _named("xlperf input", _font(10, INPUT_INK), INPUT_FILL, rule=True),
        _named("xlperf computed", _font(10, INK), rule=True),
        _named("xlperf reason", _font(9, INK), wrap=True, rule=True),
    ):
        if style.name not in known:
            workbook.add_named_style(style)


def put(
    cell: Cell | MergedCell, value: Any, style: str = "xlperf text", number: str | None = None
) -> Cell | MergedCell:
    """Set a cell to a value in one of our styles; text never becomes a formula, NaN becomes blank.

    Parameters
    ----------
    cell : openpyxl.cell.Cell
        Changed in place.
    value : float, bool, str or None
        What it shows.
    style : str
        One of ``STYLES``.
    number : str, optional
        Number format.

    Returns
    -------
    openpyxl.cell.Cell
        The cell.
    """
    if isinstance(value, float) and not math.isfinite(value):
        value = None
    if value == "":
        value = None
    inside: Any = cell
    cell.style = style
    inside.value = _clean(value) if isinstance(value, str) else value
    if isinstance(value, str):
        inside.data_type = "s"
        inside.quotePrefix = value.startswith(_FORMULA_START)
    if number is not None:
        cell.number_format = number
    return cell


_ILLEGAL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]|[\ud800-\udfff]")


def _clean(text: str) -> str:
    return _ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", text)[:32767]


def cell_value(column: Column, value: Any) -> float | bool | str | None:
    """A value of a table (unit used inside) as a cell shows it (unit of the column).

    Parameters
    ----------
    column : Column
        A column of the schema.
    value : float or str
        An entry of the table: NaN and "" are blank; flags are 0 or 1.

    Returns
    -------
    float, bool, str or None
        Plan flags as yes and no, computed flags as TRUE and FALSE, blanks as None.

    >>> from xlperf.catalog.schema import column
    >>> cell_value(column("accelerators", "memory_bandwidth"), 3.35e12)
    3.35
    """
    if column.is_text:
        return str(value) if value is not None and str(value) != "" else None
    number = float(value)
    if not math.isfinite(number):
        return None
    if column.kind == "flag":
        return "yes" if number else "no"
    if column.kind == "result-flag":
        return bool(number)
    shown = number / unit_of(column).factor
    if column.is_result:
        return shown
    shown = float(f"{shown:.15g}")
    return int(shown) if shown.is_integer() and abs(shown) < 2**53 else shown


def data_rows(table: Table, columns: Sequence[Column]) -> list[list[float | bool | str | None]]:
    """Rows of a table as cells show them.

    Parameters
    ----------
    table : Table
        In the units used inside; columns that it lacks are blank. The word ``auto`` is kept.
    columns : sequence of Column
        Which columns, in which order.

    Returns
    -------
    list of list
        One list per row.
    """
    series: list[list[float | bool | str | None]] = []
    for column in columns:
        if column.name not in table:
            series.append([None] * len(table))
            continue
        values = [cell_value(column, value) for value in table[column.name].tolist()]
        if column.name in table.auto:
            values = ["auto" if auto else value for auto, value in zip(table.auto[column.name], values, strict=True)]
        series.append(values)
    return [list(row) for row in zip(*series, strict=True)] if series else []


def column_width(column: Column, shown: Iterable[Any] = (), most: float = 34) -> float:
    """Width of a column: its longest header word, or its longest value.

    Parameters
    ----------
    column : Column
        A column of the schema.
    shown : iterable
        Values as cells show them.
    most : float
        Widest allowed for text; it wraps beyond. [-]

    Returns
    -------
    float
        In characters. [-]
    """
    words = column.header.split()
    width = max(len(word) for word in words) * 1.0 + 3.0
    width = max(width, math.ceil(len(column.header) / 3) + 3.0)
    text = [len(value) for value in shown if isinstance(value, str)]
    if text:
        width = max(width, min(max(text) * (1.15 if column.kind == "name" else 1.05) + 3.0, most))
    return max(width, 9.0)


def table_name(sheet_title: str) -> str:
    """A legal name of a native table: no spaces, not a cell address.

    >>> table_name("step time")
    'step_time'
    >>> table_name("H100")
    'H100_'
    """
    name = re.sub(r"\W", "_", sheet_title)
    if not re.match(r"[A-Za-z_]", name):
        name = f"_{name}"
    if re.fullmatch(r"[A-Za-z]{1,3}\d{1,7}|[Rr]\d*[Cc]\d*|[RrCc]", name):
        name = f"{name}_"
    return name[:200]


def title(sheet: Worksheet, text: str, subtitle: str = "", at: str = "A1") -> None:
    """Put a title and a subtitle at the top of a sheet; also hides its grid lines.

    Parameters
    ----------
    sheet : Worksheet
        Changed in place.
    text, subtitle : str
        What they say.
    at : str
        Cell of the title; the subtitle stands below.
    """
    letter, row = coordinate_from_string(at)
    put(sheet[at], text, "xlperf title")
    sheet.row_dimensions[row].height = 30
    if subtitle:
        put(sheet[f"{letter}{row + 1}"], subtitle, "xlperf subtitle")
    sheet.sheet_view.showGridLines = False


def write_table(
    sheet: Worksheet,
    columns: Sequence[Column],
    rows: Sequence[Sequence[Any]],
    top_left: str = "A4",
    name: str | None = None,
    *,
    freeze: int | None = 1,
    widths: bool = True,
    fitted: bool = False,
) -> str:
    """Write a native table whose headers say the unit and whose header comments say the meaning.

    Parameters
    ----------
    sheet : Worksheet
        Changed in place; the workbook must have our styles.
    columns : sequence of Column
        Columns of the schema; inputs and results are told apart by colour.
    rows : sequence of sequence
        Values as cells show them (:func:`data_rows`). A table without rows gets one blank row, as Excel wants.
    top_left : str
        Cell of the first header.
    name : str, optional
        Name of the table, unique in the workbook; the sheet's name when not given; "" writes no native table.
    freeze : int, optional
        Columns that stay in sight beside the header; None freezes nothing.
    widths : bool
        Whether to set column widths.
    fitted : bool
        Whether the decimals of results are chosen by the values (:func:`fitted_format`) or by the unit alone.

    Returns
    -------
    str
        The range that the table covers: ``A4:H20``.
    """
    letter, top = coordinate_from_string(top_left)
    left = column_index_from_string(letter)
    deepest = 1
    across: list[float] = []
    for offset, column in enumerate(columns):
        cell = put(
            sheet.cell(top, left + offset),
            column.header,
            "xlperf header result" if column.is_result else "xlperf header",
        )
        cell.comment = _comment(column)
        if widths:
            width = column_width(column, (row[offset] for row in rows), _WIDEST.get(column.name, 48))
            sheet.column_dimensions[get_column_letter(left + offset)].width = width
        across.append(sheet.column_dimensions[get_column_letter(left + offset)].width or 9.0)
        deepest = max(deepest, _lines(column.header, across[-1] - 3.0))
    sheet.row_dimensions[top].height = 13.5 * deepest + 8
    if fitted:
        formats = [fitted_format(column, [row[i] for row in rows]) for i, column in enumerate(columns)]
    else:
        formats = [number_format(column) for column in columns]
    for down, row in enumerate(rows or [[None] * len(columns)], start=top + 1):
        tallest = 1
        for offset, (column, value) in enumerate(zip(columns, row, strict=True)):
            cell = put(sheet.cell(down, left + offset), value, _style(column, offset), formats[offset])
            if isinstance(value, str):
                lines = _lines(value, across[offset] * (1.15 if column.name == "reason" else 1.02) - 2.0)
                tallest = max(tallest, lines)
                cell.alignment = Alignment(horizontal="left", vertical="center", indent=1, wrap_text=lines > 1)
        if tallest > 1:
            sheet.row_dimensions[down].height = min(13.0 * tallest + 3, 400.0)
    bottom = top + max(len(rows), 1)
    area = f"{letter}{top}:{get_column_letter(left + len(columns) - 1)}{bottom}"
    if name != "":
        native = ListObject(displayName=name or table_name(sheet.title), ref=area)
        native.tableStyleInfo = TableStyleInfo(name="TableStyleLight1", showRowStripes=False)
        sheet.add_table(native)
    if freeze is not None:
        sheet.freeze_panes = f"{get_column_letter(left + freeze)}{top + 1}"
    return area


def _style(column: Column, offset: int) -> str:
    if column.name == "reason":
        return "xlperf reason"
    if offset == 0:
        return "xlperf key"
    return "xlperf computed" if column.is_result else "xlperf input"


def _lines(text: str, across: float) -> int:
    """Lines that a text takes in a column when it wraps at words, or inside those too long for a line."""
    across = max(across, 1.0)
    lines, room = 1, across
    for word in text.split():
        if len(word) > room and room < across:
            lines, room = lines + 1, across
        while len(word) > across:
            lines, word = lines + 1, word[int(across) :]
        room -= len(word) + 1
    return lines


def _comment(column: Column) -> Comment:
    parts = [f"{column.meaning}."]
    if column.unit not in ("", "-"):
        parts.append(f"Unit: {column.unit}.")
    if column.required:
        parts.append("Mandatory.")
    if column.default:
        parts.append(f"Default: {column.default}.")
    if column.choices:
        parts.append(f"One of: {', '.join(column.choices)}.")
    text = "\n".join(parts)
    lines = sum(math.ceil(len(part) / 38) for part in parts)
    return Comment(text, "xlperf", width=270, height=24 + 17 * lines)


def link(cell: Cell | MergedCell, sheet_title: str, text: str, at: str = "A1") -> None:
    """Make a cell a link to a sheet of the same workbook.

    Parameters
    ----------
    cell : openpyxl.cell.Cell
        Changed in place.
    sheet_title : str
        Where it leads.
    text : str
        What it shows.
    at : str
        Cell that it leads to.
    """
    from openpyxl.worksheet.hyperlink import Hyperlink

    put(cell, text, "xlperf link")
    quoted = sheet_title.replace("'", "''")
    inside: Any = cell
    inside.hyperlink = Hyperlink(ref=cell.coordinate, location=f"'{quoted}'!{at}", display=text)
    cell.style = "xlperf link"


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

    Parameters
    ----------
    sheet : Worksheet
        Changed in place.
    header_row : int, optional
        Row that every page repeats.
    area : str, optional
        Range that is printed; all of the sheet when not given.
    pages_wide, pages_high : int
        Pages that the sheet is fitted to; 0 is as many as it takes. [-]
    key_columns : str, optional
        Columns that every page repeats where it is more than one page wide: ``A:A``.
    landscape : bool
        Orientation.
    heading : str
        Title in the page header, for sheets whose print area leaves their own title out.
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
