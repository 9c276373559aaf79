"""A real LibreOffice: the add-in is installed into a private profile, and its cells are compared with the engine."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import signal
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import openpyxl
import pytest
from host_calls import NETWORK
from libreoffice_office import Office, python_with_uno
from openpyxl.worksheet.formula import ArrayFormula

from xlperf.addin.cells import shown_column
from xlperf.addin.functions import functions
from xlperf.addin.libreoffice import install, uninstall
from xlperf.addin.worker import Engine
from xlperf.base.errors import HostError
from xlperf.base.resources import workbook
from xlperf.base.units import YEAR
from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.read import read_plans
from xlperf.catalog.schema import results_of, split_header, table_schema
from xlperf.catalog.table import Table
from xlperf.engine import evaluate, evaluate_designs, evaluate_servers
from xlperf.workbook.build import read_tables, workbook_package
from xlperf.workbook.question_look import NUMBERS, SHEETS


@pytest.fixture(scope="module")
def office(tmp_path_factory):
    if not sys.platform.startswith("linux"):
        pytest.skip("LibreOffice is driven on Linux only")
    if shutil.which("soffice") is None or python_with_uno() is None:
        pytest.skip("LibreOffice Calc or its Python module uno is not installed")
    office = Office(tmp_path_factory.mktemp("libreoffice"))
    said = install(office.options)
    assert sys.executable in said
    office.start()
    yield office
    office.end()


@pytest.fixture(autouse=True)
def closed(request):
    yield
    office = request.node.funcargs.get("office")
    if office is not None and office.driver is not None:
        with contextlib.suppress(AssertionError):
            office("close")


@pytest.fixture
def shipped(tmp_path):
    return Path(shutil.copy(workbook(), tmp_path / "xlperf.xlsx"))


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


@pytest.fixture(scope="module")
def catalog():
    return load_catalog()


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


@pytest.mark.parametrize("hidden", [True, False], ids=["hidden", "with a window"])
def test_every_cell_of_the_shipped_workbook_equals_the_engine_to_the_last_bit(office, shipped, hidden):
    office.open(shipped, hidden=hidden)
    compared = compare_plans(office, shipped, load_catalog(shipped))
    assert compared > 400
    assert not any("#NAME?" in row for name in office("sheets") for row in office.values(name, used(office, name)))


def test_a_workbook_that_is_opened_counts_as_unmodified(office, tmp_path):
    """One without charts, which LibreOffice itself marks as modified when their numbers are computed anew."""
    tables = {kind: table for kind, table in read_tables(workbook()).items() if kind != "models"}
    path = tmp_path / "plain.xlsx"
    book = openpyxl.load_workbook(io.BytesIO(workbook_package({**tables, "training": [], "inference": []})))
    for sheet in book.worksheets:
        sheet._charts.clear()
    book.save(path)
    office.open(path)
    assert office("modified") is False


def used(office, name):
    rows, columns = office("used", sheet=name)
    return f"A1:{openpyxl.utils.get_column_letter(columns)}{rows}"


def compare_plans(office, path, catalog):
    """Compare the result columns of both plan sheets with the engine; how many cells were compared."""
    book = openpyxl.load_workbook(path)
    compared = 0
    for plans in read_plans(path):
        results = Engine().evaluate(plans, catalog)  # what a cell with auto gets too
        table = book[plans.kind].tables[plans.kind]
        cells = office.values(plans.kind, table.ref)
        formulas = office("cells", sheet=plans.kind, area=table.ref)
        for position, header in enumerate(cells[0]):
            called = re.search(r"XLPERF[._](\w+)\(", formulas[1][position].get("formula") or "", re.IGNORECASE)
            if not called:
                continue
            function = called[1].lower()
            name = "reason" if function == "check" else function
            for row, value in enumerate(shown_column(results, name)):
                found = cells[row + 1][position]
                if function == "check":
                    assert found == (value or "ok")
                else:
                    assert found == getattr(value, "code", value), (plans.kind, row, header)
                compared += 1
    return compared


def front_cells(office, path):
    """Formulas of the front sheets: cell, what the file has beside it, what LibreOffice computed."""
    formulas, stored = openpyxl.load_workbook(path), openpyxl.load_workbook(path, data_only=True)
    for name in (*SHEETS, *NUMBERS):
        shown = office.values(name, used(office, name))
        for row in formulas[name].iter_rows():
            for cell in row:
                if cell.data_type == "f" and cell.row <= len(shown):
                    yield (
                        f"{name}!{cell.coordinate}",
                        stored[name][cell.coordinate].value,
                        shown[cell.row - 1][cell.column - 1],
                    )


def test_front_sheets_compute_what_the_file_shows_and_follow_an_entry(office, shipped):
    office.open(shipped)
    different = []
    for place, stored, computed in front_cells(office, shipped):
        same = stored == computed or (stored in (None, "", 0) and computed in (None, "", 0.0))
        if not same and isinstance(stored, int | float) and isinstance(computed, float):
            same = computed == pytest.approx(stored, rel=1e-12)
        if not same:
            different.append((place, stored, computed))
    assert different == []
    first = office.value("Serve", "F5")
    office("enter", sheet="Serve", area="C11", value=20000)
    assert office.value("Serve", "F5") != first and "20,000 users" in office.value("Serve", "F5")
    office("enter", sheet="Serve", area="C6", value="DeepSek-V3")
    line = office.value("Serve", "F5")
    assert line.startswith("No answer") and "DeepSeek-V3" in line
    assert office.value("Serve", "F9") == "\N{EN DASH}"
    assert not any("#" in str(cell) for row in office.values("Serve", "A1:R33") for cell in row)


def handle_cell(path):
    """Sheet and cell that hold the handle of the workbook's own catalog."""
    sheet, _, cell = openpyxl.load_workbook(path).defined_names["catalog"].attr_text.replace("$", "").partition("!")
    return sheet.strip("'"), cell


def test_an_edit_of_a_bandwidth_moves_the_cells_that_depend_on_it(office, shipped):
    office.open(shipped)
    book = openpyxl.load_workbook(shipped)
    area = book["accelerators"].tables["accelerators"].ref
    top, left = re.match(r"([A-Z]+)(\d+)", area).group(2, 1)
    cells = office.values("accelerators", area)
    position = next(place for place, text in enumerate(cells[0]) if split_header(text)[0] == "memory_bandwidth")
    plans = {table.kind: table for table in read_plans(shipped)}
    name = plans["inference"]["accelerator"][0]
    place = next(number for number, cells_ in enumerate(cells) if cells_[0] == name)
    column = openpyxl.utils.get_column_letter(openpyxl.utils.column_index_from_string(left) + position)
    handle = office.value(*handle_cell(shipped))
    before = {kind: office.values(kind, book[kind].tables[kind].ref) for kind in plans}

    office("enter", sheet="accelerators", area=f"{column}{int(top) + place}", value=cells[place][position] * 2)

    assert office.value(*handle_cell(shipped)) != handle
    after = {kind: office.values(kind, book[kind].tables[kind].ref) for kind in plans}
    for kind, table in plans.items():
        moved = [one != other for one, other in zip(before[kind][1:], after[kind][1:], strict=True)]
        uses = [accelerator == name for accelerator in table["accelerator"]]
        assert any(uses)
        assert not any(moved[len(uses) :]), "blank rows stay blank"
        assert moved[: len(uses)] == uses, "all plans on this accelerator and no others"
    rows = [list(cells_) for cells_ in cells]
    rows[place][position] *= 2
    edited = load_catalog(shipped).with_tables([table_from_rows("accelerators", rows[0], rows[1:])])
    compare_plans(office, shipped, edited)


def stretches(flags):
    """First and last place of each run of flags that are set."""
    ends = [number for number, flag in enumerate(flags) if flag != (number > 0 and flags[number - 1])]
    ends += [len(flags)] * (len(ends) % 2)
    return [(first, after - 1) for first, after in zip(ends[::2], ends[1::2], strict=True)]


def test_a_row_typed_under_a_table_belongs_to_it(office, shipped, tmp_path):
    """On the next blank row of a sheet: hardware of one's own, and a plan that names it as people write names."""
    book, letter = openpyxl.load_workbook(shipped), openpyxl.utils.get_column_letter

    def typed(kind, like, changes):
        area = book[kind].tables[kind].ref
        top, bottom = (int(number) for number in re.findall(r"\d+", area))
        cells = office.values(kind, area)
        names = [split_header(text)[0] if isinstance(text, str) else "" for text in cells[0]]
        source = next(row for row in cells[1:] if row[0] == like)
        schema = table_schema(kind).by_name
        place = next(number for number, row in enumerate(cells) if number and not row[0])
        assert 0 < bottom - top - place < 10, "blank rows are left inside the table"
        given = (changes.get(name, value) for name, value in zip(names, source, strict=True))
        own = ["" if value is None else value for value in given]
        for first, last in stretches([name in schema for name in names]):
            area = f"{letter(first + 1)}{top + place}:{letter(last + 1)}{top + place}"
            office("fill", sheet=kind, area=area, rows=[own[first : last + 1]])
        return names, top + place

    before = office.open(shipped) or office.values("checks", used(office, "checks"))
    handle = office.value(*handle_cell(shipped))
    typed("accelerators", "H100-SXM-80GB", {"accelerator": "My Chip", "memory_bandwidth": 6.0, "aliases": "MC1"})
    assert office.value(*handle_cell(shipped)) != handle
    plans = read_plans(shipped)
    plan = next(table for table in plans if table.kind == "training")
    changes = {"name": "mine", "accelerator": "mc1"}
    names, row = typed("training", plan["name"][0], changes)

    def result(name):
        return office.value("training", f"{letter(names.index(name) + 1)}{row}")

    assert result("reason").startswith("accelerator mc1 taken as My Chip")
    time_ = result("step_time")
    assert isinstance(time_, float)
    now = office.values("checks", used(office, "checks"))
    assert [one[1] for one, other in zip(now, before, strict=True) if one[3] == "check" != other[3]] == []
    saved = tmp_path / "saved.xlsx"
    office("save_as", path=str(saved))
    office("close")
    catalog = load_catalog(saved)
    assert catalog.tables["accelerators"]["accelerator"].tolist()[-1] == "My Chip"
    own = next(table for table in read_plans(saved) if table.kind == "training")
    assert own["name"].tolist()[-1] == "mine"
    assert shown_column(evaluate(own.take([len(own) - 1]), catalog), "step_time") == [time_]
    office.open(saved)
    assert result("step_time") == time_
    names, next_row = typed("training", plan["name"][0], {"name": "another"})
    assert next_row == row + 1
    row = next_row
    assert isinstance(result("step_time"), float)


def test_edits_of_a_package_and_a_server_move_the_costs_that_depend_on_them(office, tmp_path):
    tables = read_tables(workbook())
    path = tmp_path / "costs.xlsx"
    path.write_bytes(workbook_package({**tables, "training": [], "inference": []}))
    office.open(path)
    book = openpyxl.load_workbook(path)

    def column(kind, name):
        area = book[kind].tables[kind].ref
        cells = office.values(kind, area)
        place = next(number for number, text in enumerate(cells[0]) if split_header(text)[0] == name)
        letter = openpyxl.utils.get_column_letter(place + 1)
        return {row[0]: (row[place], f"{letter}{number}") for number, row in enumerate(cells[1:], start=5) if row[0]}

    def costs():
        return [{name: value for name, (value, _) in column(kind, result).items()}
                for kind, result in (("chiplets", "unit_cost"), ("servers", "cost_rate"))]  # fmt: skip

    before = costs()
    price, cell = column("packages", "carrier_wafer_price")["CoWoS-S"]
    office("enter", sheet="packages", area=cell, value=2 * price)
    server, (life, cell) = next(iter(column("servers", "life").items()))
    office("enter", sheet="servers", area=cell, value=life + 1)
    after = costs()
    packages, servers, designs = (tables[kind] for kind in ("packages", "servers", "chiplets"))
    doubled = np.where(packages["package"] == "CoWoS-S", 2.0, 1.0) * packages["carrier_wafer_price"]
    longer = np.where(servers["server"] == server, YEAR, 0.0) + servers["life"]
    edited = load_catalog(path).with_tables([Table("packages", packages.columns | {"carrier_wafer_price": doubled})])
    units = shown_column(evaluate_designs(designs, edited), "unit_cost")
    hours = shown_column(evaluate_servers(Table("servers", servers.columns | {"life": longer})), "cost_rate")
    wanted = [dict(zip(designs["chiplet"], units, strict=True)), dict(zip(servers["server"], hours, strict=True))]
    moved = [{name for name in now if now[name] != old[name]} for now, old in zip(after, before, strict=True)]
    assert moved == [{name for name, package in zip(designs["chiplet"], designs["package"], strict=True)
                      if package == "CoWoS-S"}, {server}]  # fmt: skip
    assert after == wanted


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
        found = office.values("s", f"H2:I{last}")
        assert [line[0] for line in found] == expected(catalog, plans, "step_time")
        assert [line[1] for line in found] == [words or "ok" for words in expected(catalog, plans, "reason")]

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
    found = [line[0] for line in office.values("s", "H2:H301")]
    wanted = expected(catalog, rows, "step_time")
    wanted[38], wanted[39], wanted[297] = wanted[1], expected(catalog, rows, "mfu")[39], 2 * wanted[297]
    assert found == wanted
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
    found = [line[0] for line in office.values("s", "H2:H2001")]
    assert office.reads() - before < 1000, "a message for each of 2,000 cells is a read for each at least"
    sound = [number for number in range(2000) if number not in (700, 900, 1100)]
    assert [found[number] for number in sound] == expected(catalog, [rows[number] for number in sound], "step_time")
    assert [found[700], found[900], found[1100]] == ["#VALUE!", "#VALUE!", ""]
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
