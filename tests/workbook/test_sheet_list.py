"""The list of all sheets, pages of all numbers of an answer, and commands that give the answers of sheets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from conftest import Outcome
from openpyxl.utils import get_column_letter, range_boundaries
from shipped import shipped_book

from xlperf.catalog.schema import FORMS, first_words, results_of
from xlperf.workbook.front.layout import NUMBERS, SHEETS, form_rows
from xlperf.workbook.front.plan_card import NUMBERS as CARD_NUMBERS
from xlperf.workbook.front.question import TOP, number_pages


@pytest.fixture(scope="module")
def book() -> Any:
    return shipped_book()


def test_every_visible_sheet_leads_to_the_list_of_all_sheets_which_leads_to_each(book: Any) -> None:
    visible = [name for name in book.sheetnames if book[name].sheet_state == "visible"]
    assert set(book.sheetnames) - set(visible) == {*NUMBERS, CARD_NUMBERS}
    linked = [
        cell.hyperlink.location.partition("!")[0].strip("'") for row in book["start"] for cell in row if cell.hyperlink
    ]
    assert sorted(linked) == sorted(set(visible) - {"start"})
    fronts = {page.sheet: front for page, front in zip(number_pages().values(), SHEETS, strict=False)}
    for name in set(visible) - {"start", *SHEETS}:
        ways = [cell.hyperlink.location.partition("!")[0].strip("'") for cell in book[name][1] if cell.hyperlink]
        assert ways == [fronts.get(name, "start")], name
    for name in SHEETS:
        assert book[name]["H2"].value == '=HYPERLINK("#\'start\'!B1","All sheets")'


def test_a_page_of_numbers_has_every_entry_and_result_once(book: Any) -> None:
    values = shipped_book(data_only=True)
    for (form, page), calc in zip(number_pages().items(), NUMBERS, strict=False):
        lines = [row for row in values[page.sheet].iter_rows(min_row=TOP + 1, values_only=True) if row[5]]
        entries = [row for row in form_rows(form) if not isinstance(row, str)]
        shown = [str(row[0]) for row in lines]
        bands = sum(row[3] is not None for row in lines)
        assert len(shown) + 2 * bands + 2 == len(entries) + len(
            results_of(form).columns
        )  # the sentence and the reason are above the table
        assert set(page.sections) <= set(results_of(form).by_name)
        stored = {
            str(row[0].value): row[1].value for row in values[calc].iter_rows(min_row=3, max_col=2) if row[0].value
        }
        for name, value, *_ in lines[len(entries) :]:
            header = next(
                column.header for column in results_of(form).columns if column.header.partition(" (")[0] == name
            )
            assert value == stored[header] or value == "none", (page.sheet, name)


Command = Callable[..., Outcome]


@pytest.mark.parametrize(("kind", "sheet"), list(zip(FORMS, SHEETS, strict=False)))
def test_a_command_without_options_gives_the_answer_of_the_sheet(
    kind: str, sheet: str, command: Command, tmp_path: Path
) -> None:
    """On the terminal, and in a workbook that opens on it with a chart."""
    shown = shipped_book(data_only=True)[sheet]["F5"].value
    done = command(kind)
    assert (done.code, done.err) == (0, "")
    assert done.out.split("\n")[0] == shown
    assert f"asked: {next(iter(first_words(kind))).replace('_', ' ')}" in done.out
    assert command(kind, "-o", tmp_path / "answer.xlsx").code == 0
    book = openpyxl.load_workbook(tmp_path / "answer.xlsx")
    assert len(book.active._charts) == 1
    assert shown in [cell.value for row in book.active for cell in row]


PAPER = {8: (40.4, 27.4), 9: (28.1, 18.0)}
"""Room for cells on a landscape page of A3 and A4. [cm]"""
WIDTH, HEIGHT = 0.19, 2.54 / 72.0
"""A letter of a column, and a point of a row. [cm]"""


def test_every_sheet_is_printed_large_enough_to_read(book: Any) -> None:
    """At half size or larger, however many pages that takes: a page of 107 rows was once a stamp."""
    for sheet in (one for one in book.worksheets if one.sheet_state == "visible"):
        area = sheet.print_area or sheet.dimensions
        left, top, right, bottom = range_boundaries(area.rpartition("!")[2].replace("$", ""))
        columns = [sheet.column_dimensions[get_column_letter(at)] for at in range(left, right + 1)]
        wide = WIDTH * sum(float(one.width) for one in columns if not one.hidden)
        points = [sheet.row_dimensions[at].height or 15.0 for at in range(top, bottom + 1)]
        setup = sheet.page_setup
        room = sorted(PAPER[int(setup.paperSize)], reverse=setup.orientation == "landscape")
        scale = int(setup.fitToWidth or 1) * room[0] / wide
        if setup.fitToHeight:
            scale = min(scale, int(setup.fitToHeight) * room[1] / (HEIGHT * sum(points)))
        assert scale >= 0.5, f"{sheet.title}: {scale:.2f}"
