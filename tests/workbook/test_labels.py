"""Words and numbers of sheets: titles are the names of tabs, labels fit their cells, no number is shown as -0.00."""

from __future__ import annotations

import re
from typing import Any

import pytest
from shipped import shipped_book, shipped_tables

from xlperf.catalog.schema import PLAN_TABLES, Column, questions, results_of, shown_columns, table_schema
from xlperf.workbook.data_sheets import DATA_SHEETS
from xlperf.workbook.front.layout import SHEETS, front_words
from xlperf.workbook.front.question import LINE, number_pages
from xlperf.workbook.package import write_table
from xlperf.workbook.plain_formulas import TITLE
from xlperf.workbook.report.data import extra_column, short
from xlperf.workbook.style import fitted_format, new_book, signed_format


def squeezed(words: str) -> str:
    return words.casefold().replace("_", "").replace(" ", "")


# --- titles


def test_a_title_is_the_name_of_its_tab() -> None:
    """Tab technology was titled Logic nodes, so that the list of sheets named what no tab is called."""
    titles = {kind: words.title for kind, words in DATA_SHEETS.items()} | {"tco": TITLE}
    assert {kind: squeezed(title) for kind, title in titles.items()} == {kind: squeezed(kind) for kind in titles}


def test_every_sheet_of_the_workbook_is_titled_as_its_tab() -> None:
    """But the forms, whose titles are their questions, and the list of all sheets."""
    book = shipped_book()
    for sheet in (
        one for one in book.worksheets if one.sheet_state == "visible" and one.title not in ("start", *SHEETS)
    ):
        title = next(cell.value for cell in sheet[1] if cell.value is not None)
        assert squeezed(str(title)) == squeezed(sheet.title)


# --- labels

HEAD = 10.5
"""Letters of a word that a narrow column of a front sheet shows, a narrow letter counted half. [-]"""


def wide(word: str) -> float:
    return len(word) - 0.5 * sum(letter in "iljtf" for letter in word)


@pytest.mark.parametrize("form", [form for form, question in questions().items() if question.chart])
def test_every_word_of_a_head_fits_its_column(form: str) -> None:
    """The head accelerators was shrunk below what can be read."""
    question = questions()[form]
    table = question.table(next(iter(question.tables)))
    heads = {name: table_schema(table).by_name[name].header for name in shown_columns(table, "front")}
    heads |= {row["label"]: row["words"] for row in front_words(form).get("head", ()) if row["words"][0] != "="}
    words = [word for head in heads.values() for word in head.split()]
    assert len(heads) >= 3 and [word for word in words if wide(word) > HEAD] == []
    assert wide("accelerators") > HEAD


@pytest.mark.parametrize("form", list(number_pages()))
def test_every_meaning_of_a_page_of_numbers_fits_its_line(form: str) -> None:
    """Its first clause does, which is shown always; longer ones were shrunk."""
    columns = [*table_schema(form).columns, *results_of(form).columns]
    first = {column.name: column.meaning.partition("; ")[0] for column in columns}
    assert {name: words for name, words in first.items() if len(words) > LINE} == {}


def test_a_band_has_the_digits_of_its_value() -> None:
    """A run of 73.1 days had a band of 60.06 to 88.88, which touched the words beside it."""
    sheet = shipped_book()[number_pages()["train"].sheet]
    bands = [row for row in sheet.iter_rows(min_row=5) if row[3].value is not None]
    assert len(bands) >= 3
    for row in bands:
        assert row[1].number_format == row[3].number_format == row[4].number_format, row[0].value


def test_a_table_below_another_breaks_no_word_of_a_head() -> None:
    """The second table narrowed the columns of the first: gradient|s."""
    sheet: Any = new_book().create_sheet("tables")
    columns = [extra_column(name, "GiB", "Part") for name in ("plan", "gradients", "provisioned_megawatt")]
    write_table(sheet, columns, [["a", 1.0, 2.0]], "A1", "first", freeze=None)
    wide_ones = [sheet.column_dimensions[letter].width for letter in "ABC"]
    narrow = [extra_column(name, "", "Part") for name in ("plan", "kv", "x")]
    write_table(sheet, narrow, [["a", 1.0, 2.0]], "A9", "second", freeze=None)
    assert [sheet.column_dimensions[letter].width for letter in "ABC"] == wide_ones
    sheet.column_dimensions["C"].width = 5.0
    write_table(sheet, columns, [["a", 1.0, 2.0]], "A19", "third", freeze=None, widths=False)
    assert sheet.column_dimensions["C"].width >= 1.1 * len("provisioned") + 3.0


def test_labels_of_charts_name_a_shipped_plan_whole() -> None:
    """The last words tell plans apart: a name of 66 letters was cut after 52."""
    names = [str(name) for kind in PLAN_TABLES for name in shipped_tables()[kind]["name"]]
    assert len(names) > 50 and [name for name in names if short(name) != name] == []


# --- signs


def shown(value: float, code: str) -> str:
    """A number below 0 as a program shows it: in the section that takes it."""
    sections = code.split(";")
    for section in sections:
        condition = re.match(r"\[([<>]=?)(-?[\d.]+)\]", section)
        if not condition:
            continue
        beyond = {"<": value < float(condition[2]), "<=": value <= float(condition[2]),
                  ">": value > float(condition[2]), ">=": value >= float(condition[2])}  # fmt: skip
        if beyond[condition[1]]:
            break
    else:
        section = sections[-1] if "[" in code else sections[min(1, len(sections) - 1)]
    if '"' in section or "E" in section or not re.search("[#0]", section):
        return section.strip('"')
    body = re.sub(r"\[.*?\]", "", section)
    decimals = sum(map(body.partition(".")[2].count, "#0"))
    return f"-{abs(value) * (100.0 if '%' in body else 1.0):.{decimals}f}"


@pytest.mark.parametrize(("value", "words"), [(-0.004, "0.00"), (-0.006, "-0.01"), (-1234.5, "-1234.50")])
def test_a_change_that_is_rounded_to_zero_has_no_sign(value: float, words: str) -> None:
    column: Column = table_schema("cost_bridge").by_name["cost_change"]
    assert shown(value, "#,##0.00;-#,##0.00") == (words if words != "0.00" else "-0.00")
    for code in (signed_format("#,##0.00", 2), fitted_format(column, [4.72, -1.14])):
        assert shown(value, code) == words


def test_no_sheet_shows_a_negative_zero() -> None:
    for sheet in shipped_book(data_only=True).worksheets:
        for cell in (cell for row in sheet.iter_rows() for cell in row if isinstance(cell.value, float)):
            if cell.value < 0.0 and cell.number_format != "General":
                assert not re.fullmatch(r"-[0.]+", shown(cell.value, cell.number_format)), f"{sheet.title}!{cell}"
