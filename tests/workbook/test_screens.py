"""What a reader sees on the sheets: nothing cut, decimals below each other, even rows, no claim beside a refusal."""

from __future__ import annotations

import operator
import re
from typing import Any

import openpyxl
import pytest
from openpyxl.utils import get_column_letter
from shipped import shipped_book

from xlperf.base import resources
from xlperf.catalog.schema import FORMS, questions, results_of, table_schema
from xlperf.explore.train import TRAINING_PARTS
from xlperf.studies.outcome import Chart, StudySheet
from xlperf.workbook import axes, charts
from xlperf.workbook.data_sheets import DATA_SHEETS, VERDICT, header_row
from xlperf.workbook.front.formulas import Live, _shown
from xlperf.workbook.front.layout import DASH, SHEETS, Page, form_rows, front_words, shortened
from xlperf.workbook.front.question import _spread
from xlperf.workbook.package import Formulas, lines_of
from xlperf.workbook.report import summary
from xlperf.workbook.style import shown_width

KINDS = tuple(DATA_SHEETS)


@pytest.fixture(scope="module")
def values() -> Any:
    return shipped_book(data_only=True)


@pytest.fixture(scope="module")
def book() -> Any:
    return shipped_book()


def width(sheet: Any, column: int) -> float:
    dimension = sheet.column_dimensions[get_column_letter(column)]
    return 0.0 if dimension.hidden else float(dimension.width)


# --- data sheets


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_shows_its_numbers_whole_and_with_the_same_decimals(values: Any, kind: str) -> None:
    """A narrow column shows ###; a format with # behind its point gives each row decimals of its own."""
    sheet, top = values[kind], header_row(kind)
    for column in range(1, sheet.max_column + 1):
        cells = [sheet.cell(row, column) for row in range(top + 1, sheet.max_row + 1)]
        numbers = [cell for cell in cells if isinstance(cell.value, int | float) and not isinstance(cell.value, bool)]
        if not numbers or not sheet.cell(top, column).value:
            continue
        where = f"{kind}: {sheet.cell(top, column).value}"
        codes = {cell.number_format for cell in numbers}
        assert len(codes) == 1, where
        (code,) = codes
        assert "#" not in code.rpartition(";")[2].partition(".")[2], f"{where}: {code}"
        tiny = "E+00" in code  # small numbers as powers of ten
        decimals = code.rpartition(";")[2].partition(".")[2].count("0") + 2 * code.count("%")
        assert tiny or all(round(cell.value, decimals) != 0.0 for cell in numbers if cell.value), f"{where}: {code}"
        if width(sheet, column):
            assert shown_width(code, [cell.value for cell in numbers]) <= width(sheet, column) + 0.01, where


@pytest.mark.parametrize("kind", KINDS)
def test_a_title_is_not_cut_and_rows_are_as_high_as_their_texts(values: Any, kind: str) -> None:
    sheet, top = values[kind], header_row(kind)
    first, *others = [cell for cell in sheet[1] if cell.value is not None]
    assert first.value == DATA_SHEETS[kind].title
    before = sum(width(sheet, column) for column in range(first.column, others[0].column))
    assert before >= 2.0 * len(str(first.value)), "the next cell in the row begins behind the title"
    table = sheet.tables[kind].ref
    last = int(re.sub("[A-Z]", "", table.partition(":")[2]))
    heights = {sheet.row_dimensions[row].height for row in range(top + 1, last + 1)}
    assert len(heights) == 1, "rows are even"
    cells = [cell for row in sheet.iter_rows(min_row=top + 1, max_row=last) for cell in row]
    texts = [cell for cell in cells if sheet.cell(top, cell.column).value in ("aliases", "source", "notes")]
    wide = {cell.row for cell in texts if len(str(cell.value or "")) > width(sheet, cell.column) > 0.0}
    wrapped = any(cell.alignment.wrap_text for cell in cells)
    assert wrapped == (heights != {16.0})
    assert wrapped or len(wide) <= 0.25 * sum(sheet.cell(row, 1).value is not None for row in range(top + 1, last + 1))


def test_the_verdict_counts_every_check(book: Any, values: Any) -> None:
    """The range of the verdict once ended above the last check, and sheets said ok beside a red sheet of checks."""
    (last,) = {int(row) for row in re.findall(r"checks!\$D\$5:\$D\$(\d+)", VERDICT)}
    verdicts = {
        row: cell.value for row in range(5, values["checks"].max_row + 1) if (cell := values["checks"][f"D{row}"]).value
    }
    checks = [row for row, verdict in verdicts.items() if verdict in ("ok", "check")]
    assert len(checks) > 50 and max(checks) <= last
    faults = sum(verdict == "check" for verdict in verdicts.values())
    assert str(values["checks"]["B3"].value).endswith("ok") == (faults == 0)
    assert "check" not in verdicts.values(), "the shipped workbook has nothing to look at"


# --- front sheets


def test_an_entry_shows_the_value_that_it_has(book: Any) -> None:
    """Counts have no decimals: a rate of 0.7 was once shown as 1."""
    for sheet, form in zip(SHEETS, FORMS, strict=False):
        for row in range(5, 5 + len(form_rows(form))):
            cell = book[sheet][f"C{row}"]
            if isinstance(cell.value, int | float) and cell.number_format in ("#,##0", "0"):
                assert float(cell.value).is_integer(), f"{sheet}!C{row} {cell.value}"


LONGEST_NOTE = 23
"""Letters that fit below a tile. [-]"""
COMPARED = {"<": operator.lt, ">=": operator.ge}
LONGEST_TILE = 7
"""Letters that fit in a tile. [-]"""
LONGEST_BESIDE = 46
"""Letters that fit beside a badge. [-]"""


def tile(cell: Any) -> str:
    """A number as its cell shows it: the section of its size, in thousands for each comma at the end."""
    for section in cell.number_format.split(";"):
        condition = re.match(r"\[([<>]=?)(-?\d+)\]", section)
        if not condition or COMPARED[condition[1]](cell.value, float(condition[2])):
            break
    code = re.sub(r"\[.*?\]", "", section)
    digits = re.search(r"[#0][#0,.]*%?", code)
    if digits is None:  # words instead of a number
        return code.strip('"')
    scale = 1000.0 ** (len(digits[0]) - len(digits[0].rstrip(",")))
    return code.replace(digits[0], _shown(abs(cell.value) / scale, digits[0].rstrip(","))).replace('"', "")


@pytest.mark.parametrize("form", FORMS)
def test_a_question_has_six_tiles_with_words_that_fit(form: str, values: Any) -> None:
    rows = front_words(form)["tile"]
    assert len(rows) == 6
    entries = {one.column for one in form_rows(form) if not isinstance(one, str)}
    known = set(results_of(form).by_name) | entries
    for row in rows:
        assert row["label"] and row["words"] and len(row["label"]) <= LONGEST_NOTE, row
        assert set(re.findall(r"\{(\w+)", row["value"] + row["words"])) <= known, row
    sheet = values[SHEETS[FORMS.index(form)]]
    assert len(str(sheet["H30"].value or "")) <= LONGEST_BESIDE
    notes = [str(sheet[f"{letter}11"].value or "") for letter in "FHJMOQ"]
    assert all(0 < len(note) <= LONGEST_NOTE for note in notes), notes
    shown = [tile(sheet[f"{letter}9"]) for letter in "FHJMOQ"]
    assert all(0 < len(words) <= LONGEST_TILE for words in shown), shown


LETTERS_ACROSS, LINE = 66, 9.8
"""Letters of a line of small type across half of a front sheet, and its height. [-], [pt]"""


@pytest.mark.parametrize("sheet", [question.sheet for question in questions().values() if question.chart])
def test_the_assumptions_of_an_answer_fit_their_place(values: Any, sheet: str) -> None:
    """Those of spares once lost their first and last line."""
    notes = [str(cell.value) for row in range(30, 46) if (cell := values[sheet][f"M{row}"]).value]
    one = page(sheet)
    one.fill("")
    one.answer('="8 H100 serve them"')
    one.texts("Assumptions", [f'"{note}"' for note in notes], long=True)
    areas = [area for area in one.sheet.merged_cells.ranges if area.coord.startswith("M3")]
    assert len(areas) == len(notes) > 0
    for area in areas:
        room = sum(one.sheet.row_dimensions[row].height for row in range(area.min_row, area.max_row + 1))
        note = one.live.values[sheet, f"M{area.min_row}"]
        assert LINE * lines_of(note, LETTERS_ACROSS) <= room, note


def page(sheet: str = "Serve") -> Page:
    book = openpyxl.Workbook()
    return Page(book.create_sheet(sheet), book.create_sheet("calc serve"), Live(Formulas(), None, known=True))


def test_a_refusal_stands_alone() -> None:
    """Beside a sentence that begins with No, no tile, badge or note claims anything; beside an answer all do."""
    for sentence, number, badge in (("No answer: too fast", DASH, DASH), ("8 H100 serve them", 8.0, "MEASURED")):
        one = page()
        one.answer(f'="{sentence}"')
        one.tiles([("Accelerators", "2*4", "#,##0", '"of 8"')] * 6)
        one.how_sure('"MEASURED"', ('"3 published runs"', '"80 % band"', '"more"'))
        one.texts("Assumptions", ('"rent"', '"power"'))
        shown = {cell: value for (sheet, cell), value in one.live.values.items() if sheet == "Serve"}
        assert [shown["F9"], shown["F30"]] == [number, badge]
        others = [shown[cell] for cell in ("F11", "H30", "F31", "F33", "M30", "M32")]
        assert all(bool(words) != sentence.startswith("No ") for words in others)


@pytest.mark.parametrize("sheet", SHEETS)
def test_every_claim_of_a_front_sheet_asks_whether_there_is_an_answer(book: Any, sheet: str) -> None:
    claims = [f"{letter}{row}" for letter in "FHJMOQ" for row in (9, 11)] + ["F30", "F31", "M30"]
    for cell in claims:
        assert 'LEFT($F$5,3)="No "' in str(book[sheet][cell].value), f"{sheet}!{cell}"
    here = [book[sheet][f"{letter}2"] for letter in "HJMOQ"]
    assert [f'"{sheet}")' in str(cell.value) for cell in here].count(True) == 1, (
        "the way to all sheets says where one is"
    )


def test_an_entry_left_open_says_beside_it_what_it_takes() -> None:
    for form in FORMS:
        for one in form_rows(form):
            assert isinstance(one, str) or one.value not in ("", "auto") or one.beside, f"{form}: {one}"


def test_bars_of_few_rows_stand_over_the_whole_chart() -> None:
    """Three years of the eleven places: evenly in the middle."""
    one, question = page(), questions()["fleet"]
    for row in range(3, 3 + question.rows):
        one.calc(f"D{row}", 2023 + row if row < 6 else "")
        one.calc(f"E{row}", 10 * row if row < 6 else "=NA()")
    along, up = _spread(one, question, ["D", "E"])
    shown = {row: one.live.values["calc serve", f"{along}{row}"] for row in range(3, 14)}
    assert {row: year for row, year in shown.items() if year != ""} == {5: 2026, 8: 2027, 11: 2028}
    assert [one.live.values["calc serve", f"{up}{row}"] for row in (5, 8, 11)] == [30, 40, 50]


def test_a_long_sentence_is_cut_with_dots() -> None:
    one = page()
    one.calc("B3", "No answer: " + "x" * 900)
    one.answer(shortened("'calc serve'!$B$3"))
    words = one.live.values["Serve", "F5"]
    assert len(words) == 300 and words.endswith("...") and words.startswith("No answer: ")


def test_every_part_of_a_step_has_a_name_and_a_share(values: Any, book: Any) -> None:
    """A slot without a name, or a name without a number, says nothing; a part without time has no bar and no label."""
    numbers = values["calc train"]
    rows = range(3, 3 + len(TRAINING_PARTS))
    assert [numbers[f"D{row}"].value for row in rows] == list(TRAINING_PARTS.values())
    drawn = [
        [numbers[f"{letter}{row}"] for letter in "EF" if numbers[f"{letter}{row}"].value is not None] for row in rows
    ]
    assert [len(cells) for cells in drawn] == [1] * len(TRAINING_PARTS)
    assert sum(cell.value for (cell,) in drawn) == pytest.approx(1.0)
    formats = {book["calc train"][cell.coordinate].number_format for (cell,) in drawn}
    assert formats == {"[>=0.0005]0.0 %;;"}


@pytest.mark.parametrize("kind", KINDS)
def test_no_column_but_those_of_sources_is_wider_than_half_a_window(values: Any, kind: str) -> None:
    """One cell of 126 letters once moved the columns behind it out of the window."""
    sheet, top = values[kind], header_row(kind)
    wide = [
        str(sheet.cell(top, column).value) for column in range(1, sheet.max_column + 1) if width(sheet, column) > 66
    ]
    assert set(wide) <= {"source", "checkpoint source", "notes", "reason"}, wide


# --- reports and charts


def test_a_row_of_headers_is_as_high_as_its_longest_words() -> None:
    low, high = (summary._head_height(["model", "plan", words, *["next"] * 6])
                 for words in ("USD", "USD per million output tokens, prompts included (rent)"))  # fmt: skip
    assert high >= low + 3 * 11.0


@pytest.mark.parametrize("numbers", [[0.0457, 0.0333], [3920.0], [-620.0, 980.0], [1.36], [250_000.0]])
def test_labels_of_an_axis_fit_and_have_the_same_decimals(numbers: list[float]) -> None:
    chart = charts.bar_chart("", "bar", None, "stacked", 100)
    axes.space_ticks(chart.y_axis, numbers, 6.0)
    axis = chart.y_axis
    steps = (axis.scaling.max - axis.scaling.min) / axis.majorUnit
    assert 1 <= round(steps, 6) <= 6 and axis.scaling.min <= min(0.0, *numbers) and axis.scaling.max >= max(numbers)
    decimals = axis.number_format.formatCode.partition(".")[2].count("0")
    assert round(axis.majorUnit, decimals) == pytest.approx(axis.majorUnit)


def test_rows_of_a_series_are_adjacent() -> None:
    """A series whose rows are apart is drawn in pieces, each with a name of its own in the legend."""
    columns = [table_schema("rl_splits").by_name[name] for name in ("rollouts", "step_time")]
    chart = Chart("lines", "words", "rollouts", ["step_time"], by="rollouts")
    StudySheet("rl modes", "words", columns, [(1.0, 2.0), (1.0, 3.0), (2.0, 3.0)], (chart,))
    with pytest.raises(ValueError, match="are apart"):
        StudySheet("rl modes", "words", columns, [(1.0, 2.0), (2.0, 3.0), (1.0, 3.0)], (chart,))


def test_prose_writes_units_one_way() -> None:
    """Sentences have a space before %, as 80 %, and write token/s as headers and axes do."""
    texts = {path: path.read_text(encoding="utf-8") for path in resources.table("explore").rglob("*.py")}
    assert len(texts) > 20
    for path, text in texts.items():
        assert not re.findall(r":\.\d%\}", text), path
        assert not re.findall(r"\btokens/s\b", text), path
    for row in resources.rows("workbook/front_words.csv"):
        assert not re.findall(r"\d%\"", row["words"]), row
