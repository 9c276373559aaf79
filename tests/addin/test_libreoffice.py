"""Cells of one's own sheets in a real LibreOffice, whose add-in is in a private profile, compared with the engine."""

from __future__ import annotations

import os
import re
import signal
import time
import zipfile

import openpyxl
import pytest
from host_calls import NETWORK
from openpyxl.worksheet.formula import ArrayFormula

from xlperf.addin.cells import shown_column
from xlperf.addin.functions import functions
from xlperf.addin.libreoffice import uninstall
from xlperf.base.errors import HostError
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import results_of
from xlperf.engine import evaluate

pytestmark = pytest.mark.usefixtures("closed")


@pytest.fixture
def sheet(tmp_path):
    """A workbook with one sheet that a test fills; saved as Excel would save it, without values of formulas."""
    path = tmp_path / "book.xlsx"

    def save(rows, **cells):
        book = openpyxl.Workbook()
        book.active.title = "s"
        for row in rows:
            book.active.append(row)
        for cell, value in cells.items():
            book.active[cell] = value
        book.save(path)
        return path

    return save


HEADER = ["name", "model", "accelerator", "num accelerators", "tensor parallel", "data parallel"]


@pytest.fixture(scope="module")
def row(catalog):
    """A plan of the shipped catalog that is legal."""
    accelerator = next(name for name in catalog.tables["accelerators"]["accelerator"] if "H100" in name)
    model = next(name for name in catalog.tables["models"]["model"] if "8B" in name)
    return ["first", model, accelerator, 8, 8, 1]


def expected(catalog, rows, name, header=HEADER, kind="training"):
    results = evaluate(table_from_rows(kind, header, rows), catalog)
    return shown_column(results, name)


def test_version_is_known(office):
    assert re.match(r"\d+\.\d+", office("version"))


def test_a_result_by_its_name_is_read_from_a_file_and_saved(office, sheet, catalog, row, tmp_path):
    path = sheet([HEADER, row], H1='=XLPERF(A1:F2,"mfu")', H2='=XLPERF(A1:F2,"step time (ms)")')
    office.open(path)
    office("recalculate")
    assert office.value("s", "H1") == expected(catalog, [row], "mfu")[0]
    assert office.value("s", "H2") == pytest.approx(1000.0 * expected(catalog, [row], "step_time")[0])
    office("save_as", path=str(tmp_path / "saved.xlsx"))
    office("close")
    saved = openpyxl.load_workbook(tmp_path / "saved.xlsx")["s"]
    assert saved["H1"].value == '=XLPERF(A1:F2,"mfu")'
    office.open(tmp_path / "saved.xlsx")
    assert office.value("s", "H1") == expected(catalog, [row], "mfu")[0]


def test_card_table_and_spill_in_one_sheet(office, sheet, catalog, row):
    second = ["second", *row[1:3], 16, 8, 2]
    rows = [HEADER, row, second]
    path = sheet(rows)
    office.open(path)
    for number, value in enumerate(row):
        office("enter", sheet="s", area=f"H{number + 1}", value=HEADER[number])
        office("enter", sheet="s", area=f"I{number + 1}", value=value)
    times = expected(catalog, [row, second], "step_time")
    office("enter", sheet="s", area="K1", formula="=XLPERF_STEP_TIME(H1:I6)")
    office("enter", sheet="s", area="K2", formula="=XLPERF_STEP_TIME(A3:F3;;A1:F1)")
    office("enter", sheet="s", area="K3:K4", array="=XLPERF_STEP_TIME(A1:F3)")
    assert office.values("s", "K1:K4") == [[times[0]], [times[1]], [times[0]], [times[1]]]
    columns = [column.name for column in results_of("training").columns]
    last = openpyxl.utils.get_column_letter(len(columns))
    office("enter", sheet="s", area=f"A10:{last}12", array="=XLPERF_TRAINING(A1:F3)")
    block = office.values("s", f"A10:{last}12")
    assert block[0] == [column.header for column in results_of("training").columns]
    for position, name in enumerate(columns):
        values = expected(catalog, [row, second], name)
        assert [block[1][position], block[2][position]] == [getattr(value, "code", value) for value in values]
    office("enter", sheet="s", area="A15:C17", array='=XLPERF_TRAINING(A1:F3;"name,mfu,reason")')
    assert [line[0] for line in office.values("s", "A15:A17")] == ["name", "first", "second"]
    office("enter", sheet="s", area="A20:D24", array="=XLPERF_EXPLAIN(H1:I6)")
    operators = office.values("s", "A20:D24")
    assert operators[0][:2] == ["phase", "operator"]
    assert all(isinstance(line[3], float) for line in operators[1:])


NUM_CHAINED = 40


@pytest.mark.parametrize(
    ("where", "formula"),
    [
        ("s", "=G{k}*1"),
        ("s", "=IF(H{above}>0;{wanted};1)"),
        ("s", '=IF(INDIRECT("H{above}")>0;{wanted};1)'),
        ("other", "=IF($s.H{above}>0;{wanted};1)"),
    ],
    ids=["plain cells", "the result above", "through text", "through another sheet"],
)
def test_a_plan_may_depend_on_the_result_of_another(office, sheet, catalog, row, where, formula):
    """The rows beside a new plan are read when it is computed: none may turn into an error by that."""
    rows = [[f"plan {number}", *row[1:3], 8 * (number % 5 + 1), 8, number % 5 + 1, number % 5 + 1]
            for number in range(NUM_CHAINED)]  # fmt: skip
    last = NUM_CHAINED + 1
    path = sheet([[*HEADER, "copy"], *rows])
    book = openpyxl.load_workbook(path)
    book.create_sheet("other")
    book.save(path)
    office.open(path)
    first = 2 if formula == "=G{k}*1" else 3
    chained = [[formula.format(k=k, above=k - 1, wanted=rows[k - 2][5])] for k in range(first, last + 1)]
    office("fill_formulas", sheet=where, area=f"F{first}:F{last}", rows=chained)
    if where == "other":
        links = [[f"=$other.F{k}"] for k in range(first, last + 1)]
        office("fill_formulas", sheet="s", area=f"F{first}:F{last}", rows=links)
    calls = [
        [f"=XLPERF_STEP_TIME(A{k}:F{k};;A$1:F$1)", f"=XLPERF_CHECK(A{k}:F{k};;A$1:F$1)"] for k in range(2, last + 1)
    ]
    office("fill_formulas", sheet="s", area=f"H2:I{last}", rows=calls)

    def compare():
        plans = [one[:6] for one in rows]
        result = office.values("s", f"H2:I{last}")
        assert [line[0] for line in result] == expected(catalog, plans, "step_time")
        assert [line[1] for line in result] == [words or "ok" for words in expected(catalog, plans, "reason")]

    compare()
    office("recalculate")
    compare()
    rows[0][3], rows[0][4] = 4, 4
    office("enter", sheet="s", area="D2", value=4.0)
    office("enter", sheet="s", area="E2", value=4.0)
    compare()


def test_a_column_of_formulas_is_what_it_was_after_opening(office, sheet, catalog, row):
    """Formulas that are filled down on opening: those that differ, and looks of cells, stay as they were."""
    rows = [[f"plan {number}", *row[1:3], 8 * (number + 1), 8, number + 1] for number in range(300)]
    path = sheet([HEADER, *rows])
    book = openpyxl.load_workbook(path)
    cells = book.active
    for k in range(2, 302):
        cells[f"H{k}"] = f"=XLPERF_STEP_TIME(A{k}:F{k},,A$1:F$1)"
        cells[f"H{k}"].number_format = "0.00" if k < 150 else "0.000E+00"
    cells["H40"], cells["H41"] = "=XLPERF_STEP_TIME(A3:F3,,A$1:F$1)", "=XLPERF_MFU(A41:F41,,A$1:F$1)"
    cells["H299"] = "=XLPERF_STEP_TIME(A299:F299,,A$1:F$1)*2"
    book.save(path)
    office.open(path)
    result = [line[0] for line in office.values("s", "H2:H301")]
    wanted = expected(catalog, rows, "step_time")
    wanted[38], wanted[39], wanted[297] = wanted[1], expected(catalog, rows, "mfu")[39], 2 * wanted[297]
    assert result == wanted
    office("save_as", path=str(path.with_name("again.xlsx")))
    saved = openpyxl.load_workbook(path.with_name("again.xlsx")).active
    for k in range(2, 302):
        assert saved[f"H{k}"].value.replace(" ", "") == cells[f"H{k}"].value
        assert saved[f"H{k}"].number_format == cells[f"H{k}"].number_format


def test_two_thousand_new_cells_are_a_few_messages(office, sheet, catalog, row):
    rows = [[f"plan {number}", *row[1:3], 8 * (number + 1), 8, number + 1] for number in range(2000)]
    rows[700][1] = "no such model"
    rows[900][5] = "many"
    rows[1100] = [None] * 6
    office.open(sheet([HEADER, *rows]))
    formulas = [[f"=XLPERF_STEP_TIME(A{k}:F{k};;A$1:F$1)"] for k in range(2, 2002)]
    office("enter", sheet="s", area="H2", formula="=XLPERF_STEP_TIME(A2:F2;;A$1:F$1)")  # the worker stands ready
    before = office.reads()
    office("fill_formulas", sheet="s", area="H2:H2001", rows=formulas)
    result = [line[0] for line in office.values("s", "H2:H2001")]
    assert office.reads() - before < 1000, "a message for each of 2,000 cells is a read for each at least"
    sound = [number for number in range(2000) if number not in (700, 900, 1100)]
    assert [result[number] for number in sound] == expected(catalog, [rows[number] for number in sound], "step_time")
    assert [result[700], result[900], result[1100]] == ["#VALUE!", "#VALUE!", ""]
    office("enter", sheet="s", area="H2", formula="=XLPERF_CHECK(A702:F702;;A1:F1)")
    assert office.value("s", "H2").startswith('training "plan 700", model: unknown model "no such model"')


def test_frontier_spills(office, sheet, row):
    plan = {"model": row[1], "accelerator": row[2], "num accelerators": 8, "tensor parallel": 8,
            "prompt length": 1000, "output length": 100, "mode": "continuous"}  # fmt: skip
    path = sheet([["name", "value"], *map(list, plan.items())])
    office.open(path)
    for column, value in enumerate(["precision", "bf16", "fp8"]):
        office("enter", sheet="s", area=f"{'DEF'[column]}1", value=value)
    for column, value in enumerate(["concurrency", 1, 64]):
        office("enter", sheet="s", area=f"{'DEF'[column]}2", value=value)
    office("enter", sheet="s", area="A12:C16", array='=XLPERF_FRONTIER(A2:B8;D1:F2;"precision,concurrency,tpot")')
    block = office.values("s", "A12:C16")
    assert block[0] == ["precision", "concurrency", "tpot (ms)"]
    points = [line for line in block[1:] if isinstance(line[2], float)]
    assert len(points) >= 2
    assert [line[2] for line in points] == sorted((line[2] for line in points), reverse=True)
    office("enter", sheet="s", area="H1", formula="=INDEX(XLPERF_FRONTIER(A2:B8);1;1)")
    assert office.value("s", "H1") == "concurrency"


def test_search_chooses_what_a_card_leaves_open(office, sheet, row):
    plan = {"model": row[1], "accelerator": row[2], "num accelerators": 8, "global batch size": 32,
            "tensor parallel": "auto", "recompute": "auto"}  # fmt: skip
    office.open(sheet([["name", "value"], *map(list, plan.items())]))
    office("enter", sheet="s", area="D1", formula="=XLPERF_STEP_TIME(A2:B7)")
    office("enter", sheet="s", area="D2", formula="=XLPERF_CHECK(A2:B7)")
    office("enter", sheet="s", area="A12:C14", array="=XLPERF_SEARCH(A2:B7;2)")
    block = office.values("s", "A12:C14")
    assert block[0] == ["tensor parallel", "recompute", "step time (s)"]
    assert office.value("s", "D1") == block[1][2] <= block[2][2]
    assert office.value("s", "D2").startswith(f"auto: tensor parallel {block[1][0]:g}, recompute {block[1][1]}: least")


def test_error_codes_and_their_words(office, sheet, row):
    illegal = ["illegal", *row[1:4], 3, 1]
    bad = ["bad", *row[1:3], "many", 1, 1]
    unknown = ["unknown", "no such model", *row[2:]]
    formulas = {f"H{number}": f"=XLPERF_STEP_TIME(A{number}:F{number},,A1:F1)" for number in range(2, 6)} | {
        f"I{number}": f"=XLPERF_CHECK(A{number}:F{number},,A1:F1)" for number in range(2, 6)
    }
    formulas["H7"] = '=XLPERF_STEP_TIME(A2:F2,"xlperf:000000000000000000000000",A1:F1)'
    formulas["I7"] = '=XLPERF_CHECK(A2:F2,"xlperf:000000000000000000000000",A1:F1)'
    formulas["H8"] = "=XLPERF_CATALOG(A1:F2)"
    formulas["H9"] = "=ISNA(H2)+2*ISERR(H3)+4*ISERROR(H7)+8*IFERROR(H5,1)"
    office.open(sheet([HEADER, illegal, bad, unknown, row], **formulas))
    assert [line[0] for line in office.values("s", "H2:H4")] == ["#N/A", "#VALUE!", "#VALUE!"]
    words = [line[0] for line in office.values("s", "I2:I5")]
    assert words[0] not in ("", "ok")
    assert words[1] == (
        'training "bad", num accelerators: num accelerators must be a whole number of at least 1, got "many"'
    )
    assert words[2].startswith('training "unknown", model: unknown model "no such model"')
    assert office.value("s", "H7") == "#REF!"
    assert "recalculate all (Ctrl+Shift+F9" in office.value("s", "I7")
    assert office.value("s", "H8") == "#VALUE!"
    assert office.value("s", "H9") == 1 + 2 + 4 + 8 * office.value("s", "H5")


def test_a_text_that_looks_like_a_formula_stays_text(office, sheet, row):
    path = sheet([HEADER, row])
    book = openpyxl.load_workbook(path)
    for cell in ("H1", "H2"):
        book["s"][cell].value = "=XLPERF_STEP_TIME(A1:F2)"
        book["s"][cell].data_type = "s"
    book["s"]["H3"] = "=XLPERF_STEP_TIME(A1:F2)"
    book.save(path)
    office.open(path)
    assert office.values("s", "H1:H2") == [["=XLPERF_STEP_TIME(A1:F2)"]] * 2
    assert [line[0]["formula"] for line in office("cells", sheet="s", area="H1:H2")] == [None, None]
    assert isinstance(office.value("s", "H3"), float)


def test_array_formulas_and_names_are_known_on_load(office, sheet, catalog, row):
    second = ["second", *row[1:3], 16, 8, 2]
    path = sheet([HEADER, row, second])
    book = openpyxl.load_workbook(path)
    book["s"]["H1"] = ArrayFormula("H1:H2", "=XLPERF_STEP_TIME(A1:F3)")
    book.defined_names["quickest"] = openpyxl.workbook.defined_name.DefinedName(
        "quickest", attr_text="MIN(XLPERF_STEP_TIME(s!$A$1:$F$3))"
    )
    book["s"]["I1"] = "=quickest*1"
    book.save(path)
    office.open(path)
    times = expected(catalog, [row, second], "step_time")
    assert office.values("s", "H1:H2") == [[time] for time in times]
    assert office.value("s", "I1") == min(times)


def test_a_saved_workbook_has_the_names_that_excel_knows(office, sheet, catalog, row, tmp_path):
    office.open(sheet([HEADER, row], H1='=IF(TRUE,XLPERF_STEP_TIME(A1:F2),"XLPERF.STEP_TIME(")'))
    office("enter", sheet="s", area="H2:H2", array="=XLPERF_MFU(A1:F2)")
    saved = tmp_path / "saved.xlsx"
    office("save_as", path=str(saved))
    for count in (8.0, 16.0):  # the second save is over a file that we rewrote
        book = openpyxl.load_workbook(saved)
        assert re.sub(r"\s|TRUE\(\)|TRUE", "", book["s"]["H1"].value) == (
            '=IF(,XLPERF_STEP_TIME(A1:F2),"XLPERF.STEP_TIME(")'
        )
        assert book["s"]["H2"].value.text == "=XLPERF_MFU(A1:F2)"
        assert openpyxl.load_workbook(saved, data_only=True)["s"]["D2"].value == (8 if count == 8.0 else 16)
        office("enter", sheet="s", area="D2", value=16.0)
        office("enter", sheet="s", area="F2", value=2.0)
        office("save")
    office("close")
    office.open(saved)
    again = [*row[:3], 16, 8, 2]
    assert office.value("s", "H1") == expected(catalog, [again], "step_time")[0]
    assert office.value("s", "H2") == expected(catalog, [again], "mfu")[0]


def test_values_that_a_file_was_saved_with_are_computed_anew(office, sheet, catalog, row, tmp_path):
    office.open(sheet([HEADER, row], H1="=XLPERF_STEP_TIME(A1:F2)", H2="=H1*2"))
    saved = tmp_path / "saved.xlsx"
    office("save_as", path=str(saved))
    office("close")
    stale = tmp_path / "stale.xlsx"
    with zipfile.ZipFile(saved) as source, zipfile.ZipFile(stale, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            if name == "xl/worksheets/sheet1.xml":
                data, count = re.subn(rb"(</f><v>)[^<]*(</v>)", rb"\g<1>123\g<2>", data)
                assert count == 2
            target.writestr(name, data)
    office.open(stale)
    time_ = expected(catalog, [row], "step_time")[0]
    assert office.values("s", "H1:H2") == [[time_], [time_ * 2]]


@pytest.fixture
def linked(sheet, row):
    """A plan, its network as a table of the sheet, the handle of that table, and the step time of the plan."""
    rows = [[*HEADER, "network"], [*row, "N"], [], *NETWORK]
    return sheet(rows, J1="=XLPERF_CATALOG(A4:E5)", J2="=XLPERF_STEP_TIME(A1:G2,J1)")


@pytest.fixture
def linked_time(catalog, row):
    own = catalog.with_tables([table_from_rows("networks", NETWORK[0], NETWORK[1:])])
    return expected(own, [[*row, "N"]], "step_time", [*HEADER, "network"])[0]


def test_a_worker_that_dies_is_replaced_and_handles_survive(office, linked, linked_time):
    office.open(linked)
    handle = office.value("s", "J1")
    assert office.value("s", "J2") == linked_time
    (worker,) = office.workers()
    os.kill(worker, signal.SIGKILL)
    formula, other = "=XLPERF_STEP_TIME(A1:G2;J1)", "=XLPERF_DIE_YIELD(100;0.1)"
    for entered in (formula, other, formula):
        office("enter", sheet="s", area="J2", formula=entered)
        assert (office.value("s", "J2") == linked_time) == (entered == formula)
    (again,) = office.workers()
    assert again != worker
    assert office.value("s", "J1") == handle


def test_handles_survive_a_restart_and_the_worker_ends_with_its_host(office, linked, linked_time):
    office.open(linked)
    handle = office.value("s", "J1")
    assert re.fullmatch(r"xlperf:[0-9a-f]{24}", handle)
    workers = office.workers()
    assert len(workers) == 1
    office.end()
    for _ in range(100):
        if not office.workers():
            break
        time.sleep(0.1)
    assert not office.workers()
    office.start()
    book = openpyxl.load_workbook(linked)
    book["s"]["J1"] = handle  # the text alone: what it names was kept
    book.save(linked)
    office.open(linked)
    assert office.value("s", "J2") == linked_time


def test_the_function_wizard_shows_texts_with_units(office):
    office.open("private:factory/scalc")
    for name in ("XLPERF_STEP_TIME", "XLPERF_CATALOG", "XLPERF_COST_PER_MILLION_TOKENS"):
        function = functions()[name]
        about = office("wizard", name=name)
        assert about["description"] == function.doc
        names = [argument[0].rstrip("0123456789 ") for argument in about["arguments"]]
        assert names[: len(function.arguments)] == [argument.name for argument in function.arguments]
        assert about["arguments"][0][1] == function.arguments[0].doc


def test_uninstall_takes_it_out(office):
    office.end()
    assert uninstall(office.options) == "xlperf is no longer installed in LibreOffice"
    with pytest.raises(HostError, match=r"^xlperf is not installed in LibreOffice$"):
        uninstall(office.options)
    office.start()
    office.open("private:factory/scalc")
    assert office("wizard", name="XLPERF_STEP_TIME") is None
