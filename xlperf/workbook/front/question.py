"""The sheet of any question: its form, its answer, and the first table beside the answer with a chart of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openpyxl.utils import get_column_letter

from xlperf.catalog.schema import Column, Question, results_of, shown_columns, table_schema
from xlperf.workbook.front.layout import AMBER, BLUE, GREEN, ORANGE, Axis, Page, scatter
from xlperf.workbook.style import number_format

_ROWS, _FIRST = 11, 3
"""Rows of the table; row of the first among the numbers. [-]"""
_SHOWN = 17
"""Row of the first on the sheet, below a head of three lines. [-]"""
_COLOURS = (BLUE, ORANGE, GREEN, AMBER)


def question_sheet(page: Page, question: Question) -> None:
    """Fill the sheet of a question, and the sheet that holds its numbers."""
    page.fill(question.words)
    area, _ = page.form(question.form)
    r = page.results(question.form, area)
    page.beside(question.form, r)
    page.answer(f"={r['answer']}")
    page.tiles(_tiles(question.form, r))
    columns = _numbers(page, question, area, r)
    _table(page, question, columns)
    _chart(page, question, columns)
    notes = [f'{r[name]}&""' for name in shown_columns(f"{question.form}_results", "note")]
    reason = f'{r["trust_reason"]}&""' if "trust" in r else '""'
    page.how_sure(r.get("trust", '"A FORECAST"'), (reason, *notes[3:]))
    page.texts("Assumptions", notes[:3])


def _tiles(form: str, r: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
    """The six results of the view ``tile``: label, value, number format, 80 % band."""
    tiles = []
    for name in shown_columns(f"{form}_results", "tile"):
        column = results_of(form).by_name[name]
        code, band = _format(column), '""'
        if f"{name}_low" in r:
            low, high = (f'TEXT({r[f"{name}_{end}"]},"#,##0.00")' for end in ("low", "high"))
            band = f'"80 %: "&{low}&" \N{EN DASH} "&{high}'
        tiles.append((_title(column.header), r[name], code, band))
    return tiles


def _format(column: Column) -> str:
    """Number format of a column; large amounts of money in millions."""
    code = number_format(column)
    if column.unit != "USD":
        return code
    return f'[>=100000]#,##0.00,," M";[<=-100000]-#,##0.00,," M";{code.rpartition(";")[2]}'


def _title(words: str) -> str:
    """Words with a capital, times to the first and per token in capitals, and long ones as they fit."""
    words = words.replace("cost per million output tokens (USD/Mtoken)", "USD per M output tokens")
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
        for row in range(_ROWS):
            asked = f'INDEX(XLPERF_{question.form.upper()}({area},"{name}",catalog),{row + 2},{number + 1})'
            page.calc(f"{letter}{_FIRST + row}", f"=IFERROR({asked}{more},{blank})")
    return places


def _table(page: Page, question: Question, columns: Mapping[str, tuple[str, Column]]) -> None:
    """The columns of the view ``front``: the first at the left, the others side by side up to the right edge."""
    name, words = next(iter(question.tables.items()))
    page.heading("M13", words, "R")
    shown = shown_columns(question.table(name), "front")
    for number, (letter, own) in enumerate(zip(("M", *"NOPQR"[6 - len(shown) :]), shown, strict=True)):
        place, column = columns[own]
        page.put(f"{letter}14", column.header, "tall head", last=f"{letter}16")
        for row in range(_ROWS):
            look = "cell left" if number == 0 else "cell"
            code = "" if column.is_text else _format(column)
            page.put(f"{letter}{_SHOWN + row}", f'=IFERROR({page.source}{place}{_FIRST + row},"")', look, code)
    for row in range(_SHOWN, _SHOWN + _ROWS):
        page.rule(f"M{row}:R{row}")


def _chart(page: Page, question: Question, columns: Mapping[str, tuple[str, Column]]) -> None:
    """Lines or bars of columns of the table over another one."""
    kind, along, *drawn = question.chart
    (x, across), own = columns[along], [columns[name] for name in drawn]
    words = f"{', '.join(column.words for _, column in own)} against {across.words}"
    page.heading("F13", question.chart_words or _title(words), "K")
    rows, up = (_FIRST - 1, _FIRST - 1 + _ROWS), own[0][1]
    if kind != "line":
        letters = " ".join(letter for letter, _ in own)
        stacked, colours = kind == "stacked", _COLOURS[: len(own)]
        form = number_format(up)
        lying = kind == "lying"
        chart: Any = page.bars(x, rows, letters, colours, form, lying=lying, stacked=stacked, formats=False)
    else:
        chart = scatter([page.points(x, y, rows, colour) for (y, _), colour in zip(own, _COLOURS, strict=False)])
    axes = Axis(across.header, number_format(across)), Axis(up.header if len(own) == 1 else "", "General", grid=True)
    plot = (0.14, 0.03, 0.83, 0.78)
    if kind == "lying":
        axes, plot = (Axis(size=8), Axis(number="#,##0", hidden=True)), (0.5, 0.02, 0.46, 0.94)
    page.place(chart, "F14:K27", *axes, plot, (0.55, 0.03, 0.42, 0.2) if len(own) > 1 else "")
