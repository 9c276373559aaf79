"""The shipped workbook in a real LibreOffice: every cell equals the engine, and edits reach what depends on them."""

from __future__ import annotations

import io
import re
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import openpyxl
import pytest
from device_samples import without_technology
from shipped import few_rows, shipped_tables

from xlperf.addin.cells import shown_column
from xlperf.addin.worker import Engine
from xlperf.base.resources import workbook
from xlperf.base.units import YEAR
from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.read import read_plans
from xlperf.catalog.schema import split_header, table_schema
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.devices import evaluate_designs
from xlperf.engine.ownership import evaluate_servers
from xlperf.workbook.build import workbook_package
from xlperf.workbook.front import start
from xlperf.workbook.front.layout import NUMBERS, SHEETS

pytestmark = pytest.mark.usefixtures("closed")


@pytest.fixture
def shipped(tmp_path):
    return Path(shutil.copy(workbook(), tmp_path / "xlperf.xlsx"))


@cache
def opened(path, data_only=False):
    """A workbook that stays as it is while a test runs, which openpyxl takes more than a second to read."""
    return openpyxl.load_workbook(path, data_only=data_only)


def every_cell_equals_the_engine(office, path):
    assert compare_plans(office, path, load_catalog(path)) > 400
    assert not any("#NAME?" in row for name in office("sheets") for row in office.values(name, used(office, name)))


def used(office, name):
    rows, columns = office("used", sheet=name)
    return f"A1:{openpyxl.utils.get_column_letter(columns)}{rows}"


def compare_plans(office, path, catalog):
    """Compare the result columns of both plan sheets with the engine; how many cells were compared."""
    book = opened(path)
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
                result = cells[row + 1][position]
                if function == "check":
                    assert result == (value or "ok")
                else:
                    assert result == getattr(value, "code", value), (plans.kind, row, header)
                compared += 1
    return compared


def front_cells(office, path):
    """Formulas of the front sheets: cell, what the file has beside it, what LibreOffice computed."""
    formulas, stored = opened(path), opened(path, data_only=True)
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


def front_sheets_compute_what_the_file_shows(office, path):
    different = []
    for place, stored, computed in front_cells(office, path):
        same = stored == computed or (stored in (None, "", 0) and computed in (None, "", 0.0))
        if not same and isinstance(stored, int | float) and isinstance(computed, float):
            same = computed == pytest.approx(stored, rel=1e-12)
        if not same:
            different.append((place, stored, computed))
    assert different == []


def front_sheets_follow_an_entry(office):
    first = office.value("Serve", "F5")
    office("enter", sheet="Serve", area="C10", value=20000)
    assert office.value("Serve", "F5") != first and "20,000 users" in office.value("Serve", "F5")
    office("enter", sheet="Serve", area="C6", value="DeepSek-V3")
    line = office.value("Serve", "F5")
    assert line.startswith("No answer") and "DeepSeek-V3" in line
    assert office.value("Serve", "F9") == "\N{EN DASH}"
    assert not any("#" in str(cell) for row in office.values("Serve", "A1:R33") for cell in row)


def handle_cell(path):
    """Sheet and cell that hold the handle of the workbook's own catalog."""
    sheet, _, cell = opened(path).defined_names["catalog"].attr_text.replace("$", "").partition("!")
    return sheet.strip("'"), cell


def every_cell_equals_the_engine_after_an_edit_of_a_bandwidth(office, shipped):
    """Cells that depend on the bandwidth move, and no others; the edit stays."""
    book = opened(shipped)
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


def test_a_workbook_in_a_window_computes_its_sheets_and_follows_edits(office, shipped):
    """The opening of a workbook takes most of the time: one test of what is in it and of edits."""
    office.open(shipped, hidden=False)
    every_cell_equals_the_engine(office, shipped)
    front_sheets_compute_what_the_file_shows(office, shipped)
    front_sheets_follow_an_entry(office)
    every_cell_equals_the_engine_after_an_edit_of_a_bandwidth(office, shipped)


def test_rows_typed_under_a_table_are_of_it_and_saved(office, tmp_path, monkeypatch):
    """Rows are typed on the next blank row of a sheet: hardware of one's own, and a plan that names it as people do.

    A few rows of each sheet, without front sheets, whose forms are answered anew for each edit of the catalog.
    """
    monkeypatch.setattr(start, "question_sheets", lambda *_: None)
    path = tmp_path / "few.xlsx"
    path.write_bytes(workbook_package(few_rows()))
    office.open(path)
    book, letter = opened(path), openpyxl.utils.get_column_letter

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

    before = office.values("checks", used(office, "checks"))
    handle = office.value(*handle_cell(path))
    typed("accelerators", "H100-SXM-80GB", {"accelerator": "My Chip", "memory_bandwidth": 6.0, "aliases": "MC1"})
    assert office.value(*handle_cell(path)) != handle
    plan = next(table for table in read_plans(path) if table.kind == "training")
    changes = {"name": "mine", "accelerator": "mc1"}
    names, row = typed("training", plan["name"][0], changes)

    def result(name):
        return office.value("training", f"{letter(names.index(name) + 1)}{row}")

    assert "accelerator mc1 taken as My Chip" in result("reason")
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


def test_a_workbook_counts_as_unmodified_until_edits_of_a_package_and_a_server_move_costs(office, tmp_path):
    """One without charts, which LibreOffice itself marks as modified when their numbers are computed anew."""
    stated = without_technology(shipped_tables())
    tables = {**few_rows(), **{kind: stated[kind] for kind in ("chiplets", "servers", "accelerators")}}
    tables = {kind: table for kind, table in tables.items() if kind not in ("models", "training", "inference")}
    path = tmp_path / "costs.xlsx"
    book = openpyxl.load_workbook(io.BytesIO(workbook_package({**tables, "training": [], "inference": []})))
    for sheet in book.worksheets:
        sheet._charts.clear()
    book.save(path)
    office.open(path)
    assert office("modified") is False

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
