"""Sheets made from the registries: any question with a table and a chart, all numbers of an answer, all functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from openpyxl.styles import Alignment
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.table import Table as NativeTable

from xlperf.addin.functions import Argument, Function, example_ranges, functions
from xlperf.base import resources
from xlperf.catalog.schema import Column, Question, results_of, shown_columns, table_schema
from xlperf.workbook.charts import label_values
from xlperf.workbook.front.formulas import Live
from xlperf.workbook.front.layout import (
    AMBER,
    BLUE,
    GREEN,
    ORANGE,
    Axis,
    Page,
    entry_format,
    front_words,
    scatter,
    stated,
)
from xlperf.workbook.package import lines_of
from xlperf.workbook.style import INK, aligned_format, column_widths, home, number_format, page_setup, put, texts, title

if TYPE_CHECKING:
    from openpyxl import Workbook
    from openpyxl.worksheet.worksheet import Worksheet


_ROWS, _FIRST = 12, 3
"""Most rows of the table on the sheet; row of the first among the numbers. [-]"""
_SHOWN = 17
"""Row of the first on the sheet, below a head of three lines. [-]"""
_COLOURS = (BLUE, ORANGE, GREEN, AMBER)


def question_sheet(page: Page, question: Question) -> None:
    """Fill the sheet of a question, and the sheet that holds its numbers."""
    area, _ = page.form(question.form)
    r = page.results(question.form, area)
    page.opening(question.form)
    columns = _numbers(page, question, area, r)
    _table(page, question, columns, r)
    _chart(page, question, columns)
    words = {place: [f'"{row["words"]}"' for row in rows] for place, rows in front_words(question.form).items()}
    if "trust" in r:
        page.how_sure(r["trust"], (f'{r["trust_reason"]}&""', *words.get("sure", ())))
    else:
        page.how_sure('"A FORECAST"', words["sure"])
    # the sentence tells the reason of a refusal
    named = {"price_basis": '"Price: "&'}
    notes = [
        f'{named.get(name, "")}{r[name]}&""'
        for name in shown_columns(f"{question.form}_results", "note")
        if name != "reason"
    ]
    page.texts("Assumptions", [*notes, *words.get("assumed", ())], long=True)


def _format(page: Page, column: Column, cells: Sequence[str]) -> str:
    """Number format of a column of a table: as many decimals in every row as its numbers need; large amounts of money
    in millions.
    """
    if column.is_text:
        return ""
    if column.unit == "USD" and number_format(column) == "#,##0":
        return _MONEY
    shown = [value for cell in cells if isinstance(value := page.live.values.get((page.data.title, cell)), float | int)]
    return aligned_format(column, shown, figures=True)


_MONEY = '[>=1000000]#,##0.00,," M";[<=-1000000]-#,##0.00,," M";#,##0'


def _title(words: str) -> str:
    """Words with a capital, times to the first and per token in capitals."""
    for own in ("ttft", "tpot"):
        words = words.replace(own, own.upper())
    return words[0].upper() + words[1:]


def _numbers(page: Page, question: Question, area: str, r: Mapping[str, str]) -> dict[str, tuple[str, Column]]:
    """The table among the numbers, from column D on: letter and column of the schema, by name.

    A result of the name of a column and ``_name`` is its header.
    """
    name = next(iter(question.tables))
    places = {}
    for number, column in enumerate(table_schema(question.table(name)).columns):
        letter = get_column_letter(4 + number)
        own = r.get(f"{column.name}_name")
        page.calc(f"{letter}{_FIRST - 1}", f'=IFERROR(IF({own}&""=""," ",{own}&"")," ")' if own else column.header)
        places[column.name] = letter, column
        is_label = question.chart[0] != "line" and column.name == question.chart[1]  # of a bar
        more, blank = '&""' if column.is_text else "+0", '""' if column.is_text or is_label else "NA()"
        for row in range(question.rows):
            asked = f'INDEX(XLPERF_{question.form.upper()}({area},"{name}",catalog),{row + 2},{number + 1})'
            page.calc(f"{letter}{_FIRST + row}", f"=IFERROR({asked}{more},{blank})")
    return places


def _table(page: Page, question: Question, columns: Mapping[str, tuple[str, Column]], r: Mapping[str, str]) -> None:
    """The columns of the view ``front``: the first at the left, the others side by side up to the right edge; of a long
    table every second row. The row whose first column equals the marked result is in colour.
    """
    stride = ceil(question.rows / _ROWS)
    every = range(0, question.rows, stride)
    name, words = next(iter(question.tables.items()))
    words += (
        ": every second row" if stride > 1 else ", the best in colour" if question.marked.startswith("best") else ""
    )
    page.heading("M13", words, "R")
    shown = shown_columns(question.table(name), "front")
    heads = {
        row["label"]: f"={stated(row['words'], page.entries)}" for row in front_words(question.form).get("head", ())
    }
    for number, (letter, own) in enumerate(zip(("M", *"NOPQR"[6 - len(shown) :]), shown, strict=True)):
        place, column = columns[own]
        head = "tall head left" if column.is_text else "tall head"
        until = _ALONE[6 - len(shown)] if number == 0 and column.is_text else letter
        page.put(f"{letter}14", heads.get(own, column.header), head, last=f"{until}16")
        code = _format(page, column, [f"{place}{_FIRST + of}" for of in range(question.rows)])
        for row, of in enumerate(every, start=_SHOWN):
            look, last = ("cell left small", f"{until}{row}") if column.is_text else ("cell", "")
            page.put(f"{letter}{row}", f'=IFERROR({page.source}{place}{_FIRST + of},"")', look, code, last)
    area = f"M{_SHOWN}:R{_SHOWN + len(every) - 1}"
    if question.marked:  # before the rule: programs take the first that is true
        page.in_colour(area, f'AND($M{_SHOWN}<>"",$M{_SHOWN}={r[question.marked]})', BLUE)
    page.ruled(area, f'$M{_SHOWN}<>""')


_ALONE = "MNOPQ"
"""Column up to which the first column of a table reaches, by the number of columns that it lacks."""


_CROWDED = 10
"""Bars from which on their labels are small. [-]"""


def _values(page: Page, letter: str, question: Question) -> list[float]:
    """Numbers of a column of the table, as far as they are known."""
    cells = (f"{letter}{row}" for row in range(_FIRST, _FIRST + question.rows))
    own = (page.live.values.get((page.data.title, cell)) for cell in cells)
    return [float(value) for value in own if isinstance(value, float | int)]


def _ticks(shown: Sequence[float]) -> str:
    """Number format of an axis from 0: the same decimals at every tick.

    >>> _ticks([0.4, 3.4]), _ticks([600.0])
    ('0.0', '#,##0')
    """
    most = max(map(abs, shown), default=0.0)
    return "#,##0" if most >= 5.0 or most == 0.0 else "0.0" if most >= 0.5 else "0.00"


def _chart(page: Page, question: Question, columns: Mapping[str, tuple[str, Column]]) -> None:
    """Lines or bars of columns of the table over another one."""
    kind, along, *drawn = question.chart
    (x, across), own = columns[along], [columns[name] for name in drawn]
    words = f"{', '.join(column.words for _, column in own)} against {across.words}"
    page.heading("F13", question.chart_words or _title(words), "K")
    rows, up = (_FIRST - 1, _FIRST - 1 + question.rows), own[0][1]
    if kind != "line":
        x, *spread = _spread(page, question, [x, *(letter for letter, _ in own)])
        stacked, colours, lying = kind == "stacked", _COLOURS[: len(own)], kind == "lying"
        form = aligned_format(up, _values(page, own[0][0], question))
        chart: Any = page.bars(x, rows, " ".join(spread), colours, form, lying=lying, stacked=stacked, formats=lying)
        if lying:
            label_values(chart.series[0], "outEnd", INK)
    else:
        chart = scatter([page.points(x, y, rows, colour) for (y, _), colour in zip(own, _COLOURS, strict=False)])
    size = 7 if kind in ("bars", "stacked") and question.rows >= _CROWDED else 9
    ticks = [_ticks(_values(page, x, question)), _ticks(_values(page, own[0][0], question))]
    ticks[0] = "0" if across.name == "year" else "#,##0" if kind in ("bars", "stacked") else ticks[0]
    named = across.header if across.unit != "-" else across.meaning.partition(";")[0]
    axes = Axis(named, ticks[0], size=size), Axis(up.header if len(own) == 1 else "", ticks[1], grid=True)
    plot = (0.14, 0.03, 0.83, 0.78)
    if kind == "lying":
        axes, plot = (Axis(size=8), Axis(number="#,##0", hidden=True)), (0.5, 0.02, 0.38, 0.94)
    if question.rows > _ROWS:
        axes = axes[0]._replace(size=6), axes[1]
    for number, (letter, _) in enumerate(own if len(own) > 1 else ()):
        _legend(page, number, f"{page.source}{letter}{_FIRST - 1}")
    page.place(chart, f"F{16 if len(own) > 1 else 14}:K27", *axes, plot)


def _spread(page: Page, question: Question, letters: Sequence[str]) -> list[str]:
    """Columns of the table for bars: where it has fewer rows than places, its bars stand evenly in the middle of the
    places.

    Returns the letters of the copies, beside the table.
    """
    first, last = _FIRST, _FIRST + question.rows - 1
    start = 6 + len(table_schema(question.table(next(iter(question.tables)))).columns)
    places = [get_column_letter(start + number) for number in range(len(letters) + 1)]
    count = f"COUNT(${letters[1]}${first}:${letters[1]}${last})"
    step = f"MAX(INT({question.rows}/MAX({count},1)),1)"
    offset = f"INT(({question.rows - 1}-({count}-1)*{step})/2)"
    page.row(places[:1], first - 1, ("row",))
    page.row(places[1:], first - 1, [f"={letter}{first - 1}" for letter in letters])
    for row in range(first, last + 1):
        past, number = f"({row - first}-{offset})", f"INT(({row - first}-{offset})/{step})"
        page.calc(f"{places[0]}{row}", f"=IF(AND({past}>=0,{number}*{step}={past}),{number}+1,{question.rows + 1})")
        for place, letter in zip(places[1:], letters, strict=True):
            blank = '""' if letter == letters[0] else "NA()"
            page.calc(f"{place}{row}", f"=IFERROR(INDEX(${letter}${first}:${letter}${last},${places[0]}{row}),{blank})")
    return places[1:]


def _legend(page: Page, number: int, name: str) -> None:
    """A name of a series in its colour, two in a row above the chart; a series without a name has none."""
    first, last = (("F", "H"), ("I", "K"))[number % 2]
    row = 14 + number // 2
    words = f'=IF({name}=" ","","\N{BLACK SQUARE} "&{name})'
    page.legend(f"{first}{row}", f"{last}{row}", words, _COLOURS[number])


TOP = 4
"""Row of the headers. [-]"""
COLOUR = "56B4E9"
_HEADERS = ("name", "value", "unit", "80 % from", "80 % to", "what it is")
_SENTENCES = ("answer", "reason")
"""Results that the subtitle shows."""


@dataclass(frozen=True)
class NumberPage:
    """Sheet of a page, and the first result of each of its sections, in the order of the results."""

    form: str
    sheet: str
    sections: Mapping[str, str]


def number_pages() -> dict[str, NumberPage]:
    """The pages by form.

    >>> number_pages()["chip"].sections["peak_flop_rate_bf16"]
    'Machine'
    """
    pages = {}
    for row in resources.rows("workbook/number_pages.csv"):
        parts = [part.partition(" = ") for part in row["sections: words = first result"].split("; ")]
        sections = {first: words for words, _, first in parts}
        pages[row["form"]] = NumberPage(row["form"], row["sheet"], sections)
    return pages


def number_page(
    workbook: Workbook, form: str, front: str, cells: Mapping[str, str], results: Mapping[str, str], live: Live
) -> None:
    """Add the page of a form."""
    page = number_pages()[form]
    sheet: Any = workbook.create_sheet(page.sheet)
    title(sheet, page.sheet)
    home(sheet, "F1", front)
    live.styled(sheet["A2"], f'=IFERROR({results["answer"]}&"","")', "xlperf subtitle")
    sheet["A2"].alignment = Alignment(horizontal="left", vertical="top", wrap_text=True)
    sheet.merge_cells("A2:F3")
    sheet.row_dimensions[2].height = sheet.row_dimensions[3].height = 16
    column_widths(sheet, 42, 24, 14, 14, 14, 80)
    for place, words in enumerate(_HEADERS, start=1):
        put(sheet.cell(TOP, place), words, "xlperf header" if place != 2 else "xlperf header result")
    row = _section(sheet, TOP + 1, "Entries")
    for column in table_schema(form).columns:
        if column.name in cells:
            formula = f'=IF({cells[column.name]}&""="","blank",{cells[column.name]})'
            _line(sheet, row, column, live, formula, entry_format(column))
            row += 1
    for words, column, band in _results(page, form):
        if words:
            row = _section(sheet, row, words)
        formula = f'=IFERROR(IF({results[column.name]}&""="","none",{results[column.name]}),"none")'
        code = number_format(column)
        _line(sheet, row, column, live, formula, code)
        for letter, name in zip("DE", band, strict=False):
            live.styled(sheet[f"{letter}{row}"], f'=IFERROR({results[name]}+0,"")', "xlperf computed", code)
        row += 1
    sheet.freeze_panes = f"A{TOP + 1}"
    sheet.sheet_properties.tabColor = COLOUR
    page_setup(sheet, TOP, area=f"A1:F{row - 1}", landscape=False)


def _results(page: NumberPage, form: str) -> Iterator[tuple[str, Column, tuple[str, ...]]]:
    """Each result that has a line of its own: words of a section that begins, column, names of the ends of its band."""
    columns = [column for column in results_of(form).columns if column.name not in _SENTENCES]
    names = [column.name for column in columns]
    bands: dict[str, tuple[str, str]] = {}
    for place, name in enumerate(names):
        stem = name.removesuffix("_low")
        if stem != name:
            bands[stem if stem in names else names[place - 1]] = (name, f"{stem}_high")
    ends = {name for band in bands.values() for name in band}
    for column in columns:
        if column.name not in ends:
            yield page.sections.get(column.name, ""), column, bands.get(column.name, ())


def _section(sheet: Any, row: int, words: str) -> int:
    put(sheet[f"A{row}"], words, "xlperf heading")
    sheet.row_dimensions[row].height = 22
    return row + 1


_SENTENCE = 22
"""Letters from which on a text takes the columns beside it too. [-]"""


def _line(sheet: Any, row: int, column: Column, live: Live, formula: str, code: str) -> None:
    put(sheet[f"A{row}"], column.header.partition(" (")[0], "xlperf key")
    shown = live.styled(sheet[f"B{row}"], formula, "xlperf computed", code)
    put(sheet[f"C{row}"], "" if column.unit == "-" else column.unit, "xlperf computed", wrapped=False)
    for letter in "DE":
        put(sheet[f"{letter}{row}"], None, "xlperf computed")
    put(sheet[f"F{row}"], _in_a_line(column.meaning), "xlperf reason", wrapped=False)
    sheet[f"F{row}"].alignment = Alignment(horizontal="left", vertical="center", indent=1)
    sentence = isinstance(shown, str) and len(shown) > _SENTENCE
    if sentence:  # over the unit and the band, which a text has not
        sheet.merge_cells(f"B{row}:E{row}")
    place = "left" if sentence else "right"
    sheet[f"B{row}"].alignment = Alignment(horizontal=place, vertical="center", wrap_text=True)
    sheet.row_dimensions[row].height = 4.0 + 11.0 * (lines_of(shown, 54.0) if sentence else 1)


LINE = 115
"""Letters of a meaning that fit in its cell. [-]"""


def _in_a_line(meaning: str) -> str:
    """The clauses of a meaning that fit in a line, the first one always.

    >>> _in_a_line("Link; blank: none"), _in_a_line("Link; " + "x" * 200)
    ('Link; blank: none', 'Link')
    """
    words, *clauses = meaning.split("; ")
    for clause in clauses:
        if len(words) + len(clause) + 2 > LINE:
            break
        words += f"; {clause}"
    return words


_FUNCTIONS_TOP, _RANGES = 5, 7
"""Row of the headers of the functions, and column of the ranges that the examples read. [-]"""


def functions_sheet(workbook: Workbook) -> Worksheet:
    """Add the sheet ``functions``, made from the registry."""
    sheet: Worksheet = workbook.create_sheet("functions")
    title(sheet, "Functions", "What cells can ask: arguments, units, and an example that works.")
    home(sheet)
    put(sheet["A3"], texts("functions")[0], "xlperf note")
    sheet.merge_cells("A3:C3")
    sheet.row_dimensions[3].height = 26
    places, below = _ranges(sheet)
    rows = [
        (one.name, one.doc, one.call, f"={one.example(places)}", "block" if one.spills else "cell")
        for one in functions().values()
    ]
    end = _reference_table(
        sheet, _FUNCTIONS_TOP, ("function", "what it returns [unit]", "call", "example", "returns"), rows, "functions"
    )
    every = {(one.name, one.doc): one for each in functions().values() for one in each.arguments}.values()
    meanings = [(one.name, one.doc.rstrip("."), _known_in(one), "yes" if one.optional else "") for one in every]
    first = max(end, below) + 3
    put(sheet.cell(first - 1, 1), "Arguments", "xlperf heading")
    end = _reference_table(sheet, first, ("argument", "what it is", "of", "may be left out"), meanings, "arguments")
    column_widths(sheet, 38, 74, 52, 58, 10, 3, 24, 20, 8, 22, 14)
    sheet.freeze_panes = f"B{_FUNCTIONS_TOP + 1}"
    page_setup(sheet, _FUNCTIONS_TOP, area=f"A{_FUNCTIONS_TOP}:E{end - 1}", heading="Functions")
    return sheet


def _reference_table(
    sheet: Worksheet, top: int, headers: tuple[str, ...], rows: Sequence[tuple[str, ...]], name: str
) -> int:
    """Write a native table with wrapped text; the row below it."""
    for column, words in enumerate(headers, start=1):
        put(sheet.cell(top, column), words, "xlperf header")
    for number, row in enumerate(rows, start=top + 1):
        for column, words in enumerate(row, start=1):
            put(sheet.cell(number, column), words, "xlperf key" if column == 1 else "xlperf reason", wrapped=True)
        lines = max(-(-len(words) // width) for words, width in zip(row[1:4], (80, 56, 62), strict=False))
        sheet.row_dimensions[number].height = 4.0 + 12.5 * lines
    area = f"A{top}:{get_column_letter(len(headers))}{top + len(rows)}"
    sheet.add_table(NativeTable(displayName=f"reference_{name}", ref=area))
    return top + len(rows) + 1


def _ranges(sheet: Worksheet) -> tuple[dict[str, str], int]:
    """Write the ranges of the examples, with their cells, and the row below them."""
    places, row = {}, _FUNCTIONS_TOP
    for name, cells in example_ranges().items():
        put(sheet.cell(row, _RANGES), f"Example: {name}", "xlperf heading")
        for number, values in enumerate(cells, start=row + 1):
            for column, value in enumerate(values, start=_RANGES):
                put(sheet.cell(number, column), value, "xlperf input" if column > _RANGES else "xlperf key")
        last = get_column_letter(_RANGES + max(map(len, cells)) - 1)
        places[name] = f"{get_column_letter(_RANGES)}{row + 1}:{last}{row + len(cells)}"
        row += len(cells) + 2
    return places, row


def _known_in(argument: Argument) -> str:
    """Functions that an argument belongs to, in words."""
    results: list[Function] = [one for one in functions().values() if argument in one.arguments]
    return "many functions" if len(results) > 5 else ", ".join(one.name for one in results)
