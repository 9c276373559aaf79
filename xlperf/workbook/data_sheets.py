"""The data sheets of the workbook, groups of all sheets, and places on the sheet ``start``."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING, Any

from openpyxl.formatting.rule import DataBar, FormatObject, Rule
from openpyxl.styles import Alignment, Border, Font, PatternFill, Side
from openpyxl.styles.differential import DifferentialStyle
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.datavalidation import DataValidation
from openpyxl.worksheet.table import TableColumn, TableFormula

from xlperf.addin.functions import PREFIX
from xlperf.base import resources
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import OWN_RUNS, PLAN_TABLES, Column, results_of, schema, table_schema
from xlperf.workbook.package import Formulas, column_width, data_rows, lines_of, write_table
from xlperf.workbook.style import BAD_FILL, BAD_INK, aligned_format, home, page_setup, put, shown_width, title

if TYPE_CHECKING:
    from openpyxl import Workbook
    from openpyxl.worksheet.worksheet import Worksheet

    from xlperf.catalog.table import Table


INDEX_TOP = 4
"""Row of the first heading of the list. [-]"""


@dataclass(frozen=True)
class SheetGroup:
    """Sheets that belong together: the colour of their tabs, and where the sheet ``start`` lists them."""

    words: str
    colour: str
    place: str
    sheets: tuple[str, ...]
    questions: tuple[str, ...]


def sheet_groups() -> list[SheetGroup]:
    """The groups in the order of the tabs.

    >>> sheet_groups()[0].sheets[:3]
    ('Serve', 'Train', 'Build a chip')
    """
    return [
        SheetGroup(
            row["group"], row["colour"], row["place"], tuple(row["sheets"].split("|")), tuple(row["words"].split("|"))
        )
        for row in resources.rows("workbook/sheet_groups.csv")
    ]


def index_tops() -> dict[str, int]:
    """First row of each part of the list, and, as ``end``, the first row below all parts."""
    lengths = {"top": 0, "beside": 0, "left": 0, "right": 0}
    for group in sheet_groups():
        lengths[group.place] += len(group.sheets) + 1
    below = INDEX_TOP + lengths["top"]
    end = below + max(lengths["left"], lengths["right"])
    return {"top": INDEX_TOP, "beside": INDEX_TOP, "left": below, "right": below, "end": end}


LIST_END = index_tops()["end"]
CATALOG_CELL, SCENARIO_CELL = f"C{LIST_END + 7}", f"C{LIST_END + 8}"
SCENARIO = f"start!$C${LIST_END + 8}"
"""Cell of the switch between the cases of prices and bands, on the sheet start and from others."""
_FAULTS = 'COUNTIF(checks!$D$5:$D$150,"check")'
VERDICT = f'IF({_FAULTS}=0,"checks of all sheets: ok","checks: "&{_FAULTS}&" to look at, see the sheet checks")'
"""One verdict of all checks, as a formula; it ends with ok if all is well."""
HEADER_ROW = 4
CARD_TOP = 3
CARD_ROWS = 7
"""Rows of the card above a sheet of plans, from row :data:`CARD_TOP` on."""
SPARE_ROWS = 200
"""Rows below a table with drop-downs and bounds."""
BLANK_ROWS = 10
"""Blank rows that belong to a table: a row typed there is in it on every host; LibreOffice extends no table."""
CATALOG_NAME = "catalog"


@dataclass(frozen=True)
class DataSheet:
    """Words above a data sheet, the bands over its columns (words, first column), and its live results.

    ``in_sight``: the most important inputs, last and beside the results; all other inputs except the name are folded.
    """

    title: str
    subtitle: str
    pages_wide: int
    in_sight: tuple[str, ...]
    bands: tuple[tuple[str, str], ...]
    results: tuple[str, ...]
    stated: tuple[str, ...]  # Columns of which a row that is not blank states one
    function: str  # Worksheet function of all results; "": each has its own


_BANDS = "bands: words = first column"
DATA_SHEETS: Mapping[str, DataSheet] = {
    row["sheet"]: DataSheet(
        row["title"],
        row["subtitle"],
        int(row["pages wide"]),
        tuple(row["in sight"].split()),
        tuple((words, first) for words, _, first in (part.partition(" = ") for part in row[_BANDS].split("; "))),
        tuple(row["results"].split()),
        tuple(row["stated"].split()),
        row["function"],
    )
    for row in resources.rows("workbook/data_sheets.csv")
}
LIVE_RESULTS = {kind: words.results for kind, words in DATA_SHEETS.items() if words.results}
"""Results with a live formula in each row, by data sheet."""
ASKED = ("fixed_accelerators", "fixed_power")
"""Inputs of which a server needs one for the results of a planner."""
PLANNED = "_planned"
"""Suffix of the names of these results."""
_BAND_FILLS = ("3C6E91", "5B7F95")
_RESULT_BAND = "0B5353"
_WIDEST_NAME = 42.0
TRUST = {"MEASURED": "00734F", "INTERPOLATED": "9A6A00", "EXTRAPOLATED": "D55E00"}
"""Badges of plans, and their colours."""
_BARS = {"memory_share": "56B4E9", "compute_share": "0072B2", "communication_share": "E69F00"}
"""Results that are shown as bars in their cells, and the colours; the whole cell is 1."""
_LONG_TEXT = {"source": 240.0, "aliases": 64.0, "notes": 240.0, "reason": 84.0, "fit_set": 64.0,
              "dimensions": 44.0, "ffn_pattern": 44.0}  # fmt: skip
_MANY = 0.25  # share of rows with texts wider than their column from which on they wrap [-]
_DEEPEST = 2  # lines of a row: a longer text is read in its cell [-]
_BESIDE = 4.0  # width of a column beyond its longest text [letters]
_WIDE_LETTER = 1.1
"""Width of a letter of names in capitals, over that of a letter of a sentence. [-]"""
_WRAPPED = ("aliases", "source", "notes", "dimensions", "ffn_pattern")


def sheet_columns(kind: str) -> list[Column]:
    """Columns of a data sheet in their order: inputs, and the live results of plans, designs and servers."""
    in_sight = DATA_SHEETS[kind].in_sight
    columns = [column for column in table_schema(kind).columns if column.name not in in_sight]
    columns += [table_schema(kind).by_name[name] for name in in_sight]
    if kind in LIVE_RESULTS:
        columns += [results_of(kind).by_name[name] for name in LIVE_RESULTS[kind]]
    return columns


def columns_of(table: Table) -> list[Column]:
    """Columns of the data sheet of a table: own runs also have those that they state beside the shown ones."""
    beside = [column for column in table.schema.measured if column.name in table] if table.kind == OWN_RUNS else []
    return [*sheet_columns(table.kind), *beside]


def header_row(kind: str) -> int:
    """Row of the headers of a data sheet: below the card if it has one."""
    return CARD_TOP + CARD_ROWS + 1 if kind in PLAN_TABLES else HEADER_ROW


def data_sheet(
    workbook: Workbook, table: Table, results: Mapping[str, Sequence[Any]], formulas: Formulas, kinds: Container[str]
) -> Worksheet:
    """Add the sheet of one table: title, bands, native table, drop-downs, bounds, print set-up."""
    kind = table.kind
    sheet: Worksheet = workbook.create_sheet(kind)
    words = DATA_SHEETS[kind]
    top = header_row(kind)
    columns = columns_of(table)
    inputs = [column for column in columns if not column.is_result]
    rows = [[*row, *[None] * (len(columns) - len(inputs))] for row in data_rows(table, inputs)]
    sight = 2 + len(columns) - len(words.in_sight) - len(words.results) - 1 if words.in_sight else 2
    behind = kind == "calibration"  # its key repeats the columns beside it
    title(sheet, words.title, words.subtitle, "B1" if behind else "A1")
    _widths(sheet, columns, rows, results)
    home(sheet, f"{_beside_title(sheet, words.title, 3 if behind else sight, len(columns))}1")
    blank = [[None] * len(columns)] * BLANK_ROWS
    names = [column.name for column in columns]
    write_table(sheet, columns, [*rows, *blank], f"A{top}", kind, widths=False, fitted=False, one_line=names)
    _bands(sheet, columns, words.bands, top - 1)
    _native_columns(sheet, kind, columns)
    fold(sheet, columns, words.in_sight)
    for offset, column in enumerate(columns, start=1):
        letter = get_column_letter(offset)
        if column.is_result:
            values = [*results[column.name], *[""] * BLANK_ROWS] if column.name in results else [None] * BLANK_ROWS
            code = aligned_format(column, values)
            for row in range(len(rows) + BLANK_ROWS):
                cell: Any = sheet.cell(top + 1 + row, offset)
                value = values[row] if row < len(values) else None
                style, shown = cell.style, code
                formulas.put(cell, "=" + plan_formula(kind, column.name), value, style, shown)
                if column.name == "trust" or column.kind == "result-flag":
                    cell.alignment = Alignment(horizontal="center", vertical="center")
                elif column.is_text:  # away from the number before it
                    cell.alignment = Alignment(horizontal="left", vertical="center", indent=1)
        else:
            first, last = top + 1, top + max(len(rows), 1) + SPARE_ROWS
            validation = column_validation(column, f"{letter}{first}")
            if validation is not None and (column.kind != "reference" or column.reference in kinds):
                validation.prompt = f"Blank: {column.default}." if column.default else None
                validation.showInputMessage = bool(column.default)
                validation.add(f"{letter}{first}:{letter}{last}")
                sheet.add_data_validation(validation)
    _even_rows(sheet, columns, top + 1, len(rows) + BLANK_ROWS)
    if words.in_sight:
        _bars(sheet, columns, top + 1, len(rows) + BLANK_ROWS)
        sheet.sheet_view.zoomScale = 90
    if kind in LIVE_RESULTS:
        _alarms(sheet, columns, top + 1, len(rows) + BLANK_ROWS)
    if behind:
        sheet.column_dimensions["A"].hidden = True
    _print_setup(sheet, words, columns, top, len(rows))
    return sheet


def plan_formula(kind: str, result: str) -> str:
    """Formula of a result of the plan, design or server in the same row of a table, without the equals sign.

    A blank row asks for nothing: a program without the add-in calculates cells without a value, and shows no error.

    >>> plan_formula("inference", "ttft")[:70]
    'IF(inference[[#This Row],[name]]&inference[[#This Row],[model]]="","",'
    >>> "XLPERF_SERVER_COST(servers[[#This Row],[server]:" in plan_formula("servers", "energy_cost")
    True
    """
    schema = table_schema(kind)
    inputs = [column.header for column in sheet_columns(kind) if not column.is_result]
    across = f"[{inputs[0]}]:[{inputs[-1]}]"
    row, header = f"{kind}[[#This Row],{across}]", f"{kind}[[#Headers],{across}]"
    if kind in PLAN_TABLES:
        function = PREFIX + ("CHECK" if result == "reason" else result.upper())
        formula = f"{function}({row},{CATALOG_NAME},{header})"
    else:
        part = result.replace("_", " ")
        formula = f'{PREFIX}{DATA_SHEETS[kind].function}({row},"{part}",{CATALOG_NAME},{header})'
    if result.endswith(PLANNED):
        blank = ",".join(f'{kind}[[#This Row],[{schema.by_name[name].header}]]=""' for name in ASKED)
        formula = f'IF(AND({blank}),"",{formula})'
    given = "&".join(f"{kind}[[#This Row],[{name}]]" for name in DATA_SHEETS[kind].stated)
    return f'IF({given}="","",{formula})'


def column_reference(column: Column) -> str:
    """A column of a table in a formula; a header with parentheses takes a second pair of brackets.

    >>> from xlperf.catalog.schema import column
    >>> column_reference(column("training", "model")), column_reference(column("training_results", "step_time"))
    ('training[model]', 'training[[step time (s)]]')
    """
    table = column.table.removesuffix("_results")
    return f"{table}[[{column.header}]]" if "(" in column.header else f"{table}[{column.header}]"


def column_validation(column: Column, first: str) -> DataValidation | None:
    """Allowed values of an input cell: a drop-down, or bounds of a number; None without a limit."""
    validation = None
    words = ""
    if column.kind == "reference":
        validation = DataValidation(type="list", formula1=names_of(column.reference), allow_blank=True)
        words = f"Choose a name of the sheet {column.reference}, or add a row there first."
        if "aliases" in table_schema(column.reference).by_name:
            words = f"Choose a name of the sheet {column.reference}, or one of its aliases."
            validation.errorStyle = "warning"
    elif column.name == "software" and column.table in PLAN_TABLES:
        validation = DataValidation(type="list", formula1=choices_of(column), allow_blank=True, errorStyle="warning")
        words = "The calibration has rows for those of the list; another name takes the constants of any software."
    elif column.kind == "choice":
        validation = DataValidation(type="list", formula1=choices_of(column), allow_blank=True)
        words = f"One of: {', '.join(column.entries)}."
    elif column.kind == "flag":
        validation = DataValidation(type="list", formula1=f'"{",".join(column.entries)}"', allow_blank=True)
        words = f"{' or '.join(column.entries)}."
    elif column.kind == "number" and column.bounds:
        test = _bounds_test(column, first)
        validation = DataValidation(type="custom", formula1=test, allow_blank=True)
        ceiling = f", at most {column.limits[1]:g}" if column.has_ceiling else ""
        also = " or auto" if column.may_be_auto else ""
        words = f"{column.bounds_text[0].upper()}{column.bounds_text[1:]}{ceiling}{also}."
    if validation is None:
        return None
    validation.errorTitle = column.header[:32]
    validation.error = words[:255]
    validation.showErrorMessage = True
    return validation


def _bounds_test(column: Column, cell: str) -> str:
    low, high, exclusive = column.limits
    tests = [f"ISNUMBER({cell})"]
    if low != float("-inf"):
        tests.append(f"{cell}{'>' if exclusive else '>='}{low:g}")
    if high != float("inf"):
        tests.append(f"{cell}<={high:g}")
    within = f"AND({','.join(tests)})"
    return f'OR({cell}="auto",{within})' if column.may_be_auto else within


def names_of(kind: str) -> str:
    """Defined name of the names in a catalog table: ``accelerator_names``."""
    return f"{table_schema(kind).key.name}_names"


def plan_names(kind: str) -> str:
    """Defined name of the names of the plans on a sheet: ``training_plans``."""
    return f"{kind}_plans"


def choices_of(column: Column) -> str:
    """Defined name of the words that a choice or a software may be: ``training_precision_choices``."""
    return f"{column.table}_{column.name}_choices"


def _native_columns(sheet: Worksheet, kind: str, columns: Sequence[Column]) -> None:
    native: Any = sheet.tables[kind]
    native._initialise_columns()
    for own, column in zip(native.tableColumns, columns, strict=True):
        assert isinstance(own, TableColumn)
        own.name = column.header
        if column.is_result:
            own.calculatedColumnFormula = TableFormula(attr_text=plan_formula(kind, column.name))


def _bands(sheet: Worksheet, columns: Sequence[Column], bands: Sequence[tuple[str, str]], row: int) -> None:
    names = [column.name for column in columns]
    starts = [(words, names.index(first)) for words, first in bands if first in names]
    ends = [start for _, start in starts[1:]] + [len(columns)]
    for number, ((words, start), end) in enumerate(zip(starts, ends, strict=True)):
        color = _RESULT_BAND if columns[start].is_result else _BAND_FILLS[number % 2]
        for place in range(start, end):
            cell = put(sheet.cell(row, place + 1), words if place == start else None, "xlperf header")
            cell.fill = PatternFill("solid", start_color=f"FF{color}", end_color=f"FF{color}")
            cell.alignment = Alignment(horizontal="left", vertical="center")
    assert all(first[1] < second[1] for first, second in pairwise(starts)), "bands stand in the order of the columns"
    sheet.row_dimensions[row].height = 16


def fold(sheet: Worksheet, columns: Sequence[Column], in_sight: Sequence[str]) -> None:
    """Fold the inputs between the name of a plan and the inputs in sight, if some are named."""
    if not in_sight:
        return
    end = [column.name for column in columns].index(in_sight[0]) + 1
    for offset in range(2, end):
        folded = sheet.column_dimensions[get_column_letter(offset)]
        folded.outlineLevel, folded.hidden = 1, True
    sheet.column_dimensions[get_column_letter(end)].collapsed = True


_TITLE_LETTERS = 2.2
"""Width of a letter of a title, in letters of cells. [-]"""


def _beside_title(sheet: Worksheet, title: str, first: int, last: int) -> str:
    """The first column in sight that begins behind the title."""
    wide = 0.0
    for column in range(1, last + 1):
        letter = get_column_letter(column)
        dimension = sheet.column_dimensions[letter]
        if column >= first and wide >= _TITLE_LETTERS * len(title):
            return letter
        wide += dimension.width if column == 1 or column >= first else 0.0
    return get_column_letter(last)


def _widths(
    sheet: Worksheet, columns: Sequence[Column], rows: Sequence[Sequence[Any]], results: Mapping[str, Sequence[Any]]
) -> None:
    """Widths that show names and numbers whole; long text has a width of its own."""
    for offset, column in enumerate(columns):
        shown = results.get(column.name, ()) if column.is_result else [row[offset] for row in rows]
        width = max(column_width(column), shown_width(aligned_format(column, shown), shown))
        longest = max((len(row[offset]) for row in rows if isinstance(row[offset], str)), default=0)
        if column.name in _LONG_TEXT:
            width = _LONG_TEXT[column.name] if column.is_result else min(longest + _BESIDE, _LONG_TEXT[column.name])
        elif column.is_text and not column.is_result:
            width = max(width, min(1.1 * longest + 3.0, _WIDEST_NAME if column.table in PLAN_TABLES else 200.0))
        least = len(column.header) / 3 + 4.0
        if column.is_result and column.table.removesuffix("_results") in PLAN_TABLES and column.name not in _LONG_TEXT:
            longest = max(map(len, TRUST)) if column.name == "trust" else max(map(len, column.header.split()))
            least = max(1.1 * longest + 4.5, len(column.header) / 4 + 2.5, 9.0)
            width = max(least, shown_width(aligned_format(column, shown), shown))
        if offset == 0 and column.table in PLAN_TABLES:  # the card stands in it
            least = max(least, 34.0)
        sheet.column_dimensions[get_column_letter(offset + 1)].width = max(width, least)


_MOST_PRINTED = 160
"""Rows of a sheet that is printed whole. [-]"""
_FIRST_PRINTED = 80
"""Rows of a longer one that are printed: the calibration is looked up and not read. [-]"""
_PAGE = 400.0
"""Characters across that a page of paper takes at the most: wide catalogs take several. [-]"""
_ONE_PAGE = 60
"""Rows of plans that go on one page down: a little smaller in place of a page with the last few. [-]"""
_LONG_TABLE = 120
"""Rows from which on a table is fitted to as many pages down as across. [-]"""


def _print_setup(sheet: Worksheet, words: DataSheet, columns: Sequence[Column], top: int, count: int) -> None:
    printed = count if count <= _MOST_PRINTED else _FIRST_PRINTED
    area = f"A{top - 1}:{get_column_letter(len(columns))}{top + max(printed, 1)}"
    across = sum(sheet.column_dimensions[get_column_letter(offset + 1)].width for offset in range(len(columns)))
    wide = words.pages_wide if words.results else max(words.pages_wide, ceil(across / _PAGE))
    wide = wide if count else 1
    one_high = printed < count or (bool(words.in_sight) and count <= _ONE_PAGE)
    high = 1 if one_high else wide if _MOST_PRINTED > count > _LONG_TABLE else 0
    page_setup(sheet, top, area=area, pages_wide=wide, pages_high=high, key_columns="A:A")
    sheet.print_title_rows = f"{top - 1}:{top}"
    sheet.page_setup.paperSize = 8 if across > 220.0 else 9
    sheet.page_margins.top = 0.8
    header: Any = sheet.oddHeader
    left_out = f", the first {printed} of {count:,} rows" if printed < count else ""
    header.left.text = f"&14&B{words.title}{left_out}"


def _even_rows(sheet: Worksheet, columns: Sequence[Column], first: int, count: int) -> None:
    """Give all rows one height: that of the deepest aliases, sources or notes in sight where many are wider than their
    column, which wrap then, two lines at the most; else of a line. A name that is wider than its column shrinks.
    """
    widths = [sheet.column_dimensions[get_column_letter(offset + 1)] for offset in range(len(columns))]
    wrapped = [at for at, column in enumerate(columns) if column.name in _WRAPPED and not widths[at].hidden]
    rows, depths = range(first, first + count), []
    for row in rows:
        texts = ((str(sheet.cell(row, at + 1).value or ""), widths[at].width) for at in wrapped)
        lines = (lines_of(text, wide / _WIDE_LETTER - 3.0) for text, wide in texts if len(text) > wide - _BESIDE)
        depths.append(max(lines, default=1))
    filled = sum(sheet.cell(row, 1).value is not None for row in rows)
    deepest = min(max(depths, default=1), _DEEPEST) if sum(depth > 1 for depth in depths) >= _MANY * filled else 1
    for row in rows:
        for offset, column in enumerate(columns, start=1):
            cell: Any = sheet.cell(row, offset)
            if column.name in _LONG_TEXT:
                wraps = deepest > 1 and offset - 1 in wrapped
                cell.alignment = Alignment(horizontal="left", vertical="center", indent=1, wrap_text=wraps)
            elif offset == 1:
                cell.alignment = Alignment(horizontal="left", vertical="center", indent=1, shrink_to_fit=True)
        sheet.row_dimensions[row].height = 16.0 if deepest == 1 else 13.0 * deepest + 3.0


def _bars(sheet: Worksheet, columns: Sequence[Column], first: int, count: int) -> None:
    """Shares as bars in their cells; a bar that reaches the line at the right end of its cell fills the memory."""
    for offset, column in enumerate(columns, start=1):
        if column.name not in _BARS:
            continue
        letter = get_column_letter(offset)
        ends = [FormatObject("num", 0), FormatObject("num", 1)]
        rule = Rule("dataBar", dataBar=DataBar(cfvo=ends, color=f"FF{_BARS[column.name]}"))
        sheet.conditional_formatting.add(f"{letter}{first}:{letter}{first + count - 1}", rule)
        if column.name == "memory_share":
            for row in range(first, first + count):
                cell: Any = sheet.cell(row, offset)
                cell.border = Border(bottom=cell.border.bottom, right=Side(style="medium", color=f"FF{BAD_INK}"))


def _alarms(sheet: Worksheet, columns: Sequence[Column], first: int, count: int) -> None:
    names = [column.name for column in columns]
    last = first + max(count, 1) - 1
    if "fits" in names:
        letter = get_column_letter(names.index("fits") + 1)
        alarm(sheet, f"{letter}{first}:{letter}{last}", f"AND(NOT(ISERROR({letter}{first})),{letter}{first}=FALSE)")
    if "trust" in names:
        letter = get_column_letter(names.index("trust") + 1)
        for words, colour in TRUST.items():  # & "": a text that an add-in returns equals none in LibreOffice
            look = DifferentialStyle(font=Font(color=f"FF{colour}", bold=True))
            rule = Rule(type="expression", dxf=look, formula=[f'{letter}{first}&""="{words}"'])
            sheet.conditional_formatting.add(f"{letter}{first}:{letter}{last}", rule)
    results = [offset for offset, column in enumerate(columns, start=1) if column.is_result]
    left, right = get_column_letter(results[0]), get_column_letter(results[-1])
    area = f"{left}{first}:{right}{last}"
    if "trust" in names:  # of formats that overlap LibreOffice shows one
        before, after = (get_column_letter(names.index("trust") + step) for step in (0, 2))
        area = f"{left}{first}:{before}{last} {after}{first}:{right}{last}"
    alarm(sheet, area, f"ISERROR({left}{first})")


def alarm(sheet: Worksheet, area: str, formula: str) -> None:
    """Highlight the cells of a range if a formula, written for its first cell, is true."""
    fill, font = PatternFill(bgColor=f"FF{BAD_FILL}"), Font(color=f"FF{BAD_INK}", bold=True)
    rule = Rule(type="expression", dxf=DifferentialStyle(font=font, fill=fill), formula=[formula])
    sheet.conditional_formatting.add(area, rule)


Rows = Sequence[Mapping[str, object]]


def table_of(kind: str, rows: Rows) -> Table:
    """Rows as a table: values by column name in the units of the schema; flags are yes or no, blanks None."""
    names = [column.name for column in schema()[kind].columns]
    unknown = sorted({name for row in rows for name in row} - set(names))
    header = [*names, *unknown]
    return table_from_rows(kind, header, [[row.get(name) for name in header] for row in rows])
