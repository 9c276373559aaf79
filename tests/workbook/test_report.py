"""The report: what it says, and what it says when plans, results or the catalog differ."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import report_samples as samples
from openpyxl import Workbook, load_workbook
from openpyxl.utils import range_boundaries

from xlperf.base.resources import workbook
from xlperf.base.units import factor
from xlperf.catalog import schema as schema_module
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.read import read_plans
from xlperf.catalog.schema import CATALOG_TABLES, Column, TableSchema, column, schema, table_schema
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.explore.search import resolve
from xlperf.studies.outcome import Finding
from xlperf.workbook import style
from xlperf.workbook.data_sheets import DATA_SHEETS
from xlperf.workbook.package import cell_value, column_width
from xlperf.workbook.report.book import report_workbook
from xlperf.workbook.report.data import Plans
from xlperf.workbook.report.summary import finding_rows


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("report") / "report.xlsx"
    samples.write(made, "a study")
    return made


def test_a_long_heading_of_a_finding_is_shown_whole() -> None:
    sheet = style.new_book().create_sheet("summary")
    style.column_widths(sheet, 21)
    row = finding_rows(sheet, [Finding("Least memory left, training", "Little", "plain")], 1, 3, 100)
    assert row == 2 and sheet.row_dimensions[1].height >= 2 * 13.5


def test_capitals_take_more_room_than_small_letters() -> None:
    trust = column("training_results", "trust")
    assert column_width(trust, ["EXTRAPOLATED"]) >= 1.2 * len("EXTRAPOLATED") + 3.0 > column_width(trust, ["measured"])


def test_reasons_are_printed(book: Workbook) -> None:
    sheet = book["reasons"]
    last = range_boundaries(str(sheet.print_area).rpartition("!")[2].replace("$", ""))[2]
    assert last == sheet.max_column


@pytest.fixture(scope="module")
def book(path: Path) -> Workbook:
    return load_workbook(path)


@pytest.fixture(scope="module")
def parts(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as package:
        return {name: package.read(name) for name in package.namelist()}


def test_sheets_stand_in_reading_order(book: Workbook) -> None:
    assert book.sheetnames == [
        "summary",
        "training",
        "step time",
        "inference",
        "inference time",
        "limits",
        "memory",
        "roofline",
        "reasons",
        "assumptions",
        "accelerators",
        "networks",
        "models",
        "prices",
        "calibration",
    ]


@pytest.mark.parametrize("kind", ["training", "inference"])
def test_plan_sheet_shows_every_plan_with_every_result_in_the_unit_of_its_header(book: Workbook, kind: str) -> None:
    plans, results = getattr(samples, kind)()
    rows = samples.records(book[kind])
    assert len(rows) == len(plans)
    for name in plans.columns:
        assert column(kind, name).header in rows[0]
    for declared in table_schema(f"{kind}_results").columns:
        shown = [row[declared.header] for row in rows]
        assert shown == [cell_value(declared, value) for value in results[declared.name].tolist()]


def test_numbers_are_in_the_unit_that_the_header_says(book: Workbook) -> None:
    _, results = samples.training()
    first = samples.records(book["training"])[0]
    assert first["memory (GiB)"] == pytest.approx(results["memory"][0] / 2**30, rel=1e-15)
    assert first["cost per million tokens (USD/Mtoken)"] == pytest.approx(
        results["cost_per_million_tokens"][0] * 1e6, rel=1e-15
    )
    _, served = samples.inference()
    ttft = samples.records(book["inference"])[0]["ttft (ms)"]
    assert ttft == pytest.approx(served["ttft"][0] * 1e3, rel=1e-15)


def test_every_number_has_a_format_and_utilisation_is_in_percent(book: Workbook) -> None:
    for sheet in book:
        for table in sheet.tables.values():
            header, *rows = sheet[table.ref]
            for top, *cells in zip(header, *rows, strict=True):
                formats = {
                    cell.number_format
                    for cell in cells
                    if isinstance(cell.value, int | float) and not isinstance(cell.value, bool)
                }
                if top.value in ("mfu", "hfu"):
                    assert formats == {"0.0 %"}
                elif top.value != "value":
                    assert "General" not in formats, (sheet.title, top.value)


def test_refused_plans_are_blank_with_their_reason(book: Workbook) -> None:
    for row in samples.records(book["training"])[-2:]:
        assert row["step time (s)"] is None
        assert row["fits"] is None
        assert "does not divide" in str(row["reason"])


def test_conditional_formats_mark_what_does_not_fit_and_what_is_refused(book: Workbook) -> None:
    for kind in ("training", "inference"):
        sheet = book[kind]
        letters = {cell.value: cell.column_letter for cell in sheet[4]}
        first = letters["step time (s)" if kind == "training" else "ttft (ms)"]
        rules = {rule.formula[0] for area in sheet.conditional_formatting for rule in area.rules}
        fits = f"${letters['fits']}5"
        assert rules == {f"AND(ISLOGICAL({fits}),NOT({fits}))", f"ISBLANK(${first}5)"}


def test_text_that_looks_like_a_formula_stays_text(book: Workbook, parts: dict[str, bytes]) -> None:
    cell = next(cell for cell in book["training"]["A"] if cell.value == "=1+1 is a name")
    assert cell.data_type == "s"
    assert not [name for name, data in parts.items() if name.startswith("xl/worksheets/") and b"<f>" in data]


def test_no_page_and_no_program_cuts_a_chart() -> None:
    for count in (3, 26, 130):
        made = samples.made_of(*samples.training(count))
        for sheet in made.worksheets:
            assert not samples.faults_on_paper(sheet), (count, sheet.title)
    groups = samples.training(26), samples.inference()
    both = report_workbook(samples.catalog(), *(list(each) for each in zip(*groups, strict=True)), date=samples.DAY,
                           explain=samples.explain, limits=samples.limits)  # fmt: skip
    for sheet in both.worksheets:
        assert not samples.faults_on_paper(sheet), sheet.title


def test_tables_of_the_summary_stand_whole_on_a_page() -> None:
    """Between two breaks there is no more than a page takes; a table and its heading have no break inside."""
    groups = samples.training(130), samples.inference()
    made = report_workbook(samples.catalog(), *(list(each) for each in zip(*groups, strict=True)), date=samples.DAY,
                           explain=samples.explain, limits=samples.limits)  # fmt: skip
    sheet = made["summary"]
    ends = [each.id for each in sheet.row_breaks.brk]
    for table in sheet.tables.values():
        top, bottom = range_boundaries(table.ref)[1::2]
        assert not [end for end in ends if int(top or 0) - 1 <= end < int(bottom or 0)]
    page = style.page_height(style.CM_PER_LETTER * style.width_of(sheet, 1, 10))
    last = range_boundaries(str(sheet.print_area).rpartition("!")[2].replace("$", ""))[3]
    for first, end in pairwise([0, *ends, int(last or 0)]):
        assert style.height_of(sheet, first + 1, end) <= page


def test_summary_counts_and_links(book: Workbook) -> None:
    sheet = book["summary"]
    text = samples.words(sheet)
    assert "26 training plans and 24 inference plans" in text
    assert samples.catalog().fingerprint in text
    assert "xlperf report: a study" in text
    links = {cell.hyperlink.location for row in sheet.iter_rows() for cell in row if cell.hyperlink}
    assert links == {f"'{name}'!A1" for name in book.sheetnames if name != "summary"}


def test_a_report_on_paper_is_its_charts_and_the_first_page_of_its_tables(book: Workbook) -> None:
    assert book["memory"].print_title_rows is None
    areas = str(book["memory"].print_area).split(",")
    tables = [range_boundaries(table.ref) for table in book["memory"].tables.values()]
    for area in areas:
        first, last = range_boundaries(area.rpartition("!")[2].replace("$", ""))[1::2]
        assert not any(top <= last and first <= bottom for _, top, _, bottom in tables)
    assert range_boundaries(str(book["calibration"].print_area).rpartition("!")[2].replace("$", ""))[3] <= 40
    few, many = book["training"], samples.made_of(*samples.training(130))["training"]
    for sheet, last in ((few, 4 + 26), (many, 4 + 60)):  # rows of one line: a page takes sixty
        assert (sheet.page_setup.fitToWidth, sheet.page_setup.fitToHeight) == (1, 1)
        assert range_boundaries(str(sheet.print_area).rpartition("!")[2].replace("$", ""))[3] == last


def test_plans_begin_with_the_inputs_that_matter_and_the_results_of_the_workbook(book: Workbook) -> None:
    for kind in ("training", "inference"):
        sheet, words = book[kind], DATA_SHEETS[kind]
        folds = [(own.min, own.max) for own in sheet.column_dimensions.values() if own.hidden]
        folded = {place for first, last in folds for place in range(first, last + 1)}
        headers = [str(cell.value).split(" (")[0].replace(" ", "_") for cell in sheet[4] if cell.column not in folded]
        inputs = [name for name in words.in_sight if name in headers]
        assert folded and headers[: len(inputs) + 2] == ["name", *inputs, words.results[0]]
        results = [name for name in words.results if name in headers and name != "reason"]
        assert headers[len(inputs) + 1 :][: len(results)] == results and headers[-1] == "reason"


def test_shares_of_the_step_add_up_to_all_of_it(book: Workbook) -> None:
    for row in samples.records(book["step time"], "step_time_training"):
        shares = [value for name, value in row.items() if name.endswith("(%)")]
        assert sum(value for value in shares if isinstance(value, float)) == pytest.approx(100.0)


def test_memory_shows_the_reserve_and_the_capacity(book: Workbook) -> None:
    _, results = samples.training()
    rows = samples.records(book["memory"], "memory_training")
    for row, need, have in zip(rows, results["memory_reserved"], results["memory_capacity"], strict=False):
        names = ("weights", "gradients", "optimizer", "activations", "reserve")
        stack = sum(float(str(row[f"{name} (GiB)"])) for name in names)
        assert stack == pytest.approx(need / 2**30)
        assert row["memory capacity (GiB)"] == pytest.approx(have / 2**30)


def test_limits_of_the_best_plan_of_each_model_on_each_accelerator(book: Workbook) -> None:
    plans, results = samples.inference()
    rows, points = (samples.records(book["limits"], name) for name in ("limits", "loads"))
    group = Plans(plans, results)
    pairs = {(group.models[row], group.accelerators[row]) for row in group.where("fits")}
    assert len(rows) == min(len(pairs), 8)
    assert len(points) == 3 * len(rows)
    for row in rows:
        mine = [point for point in points if point["plan"] == row["plan"]]
        assert row["max batch size"] == 16
        best = max(mine, key=lambda point: float(str(point["tokens per second per accelerator (token/s)"])))
        assert (
            row["most tokens per second per accelerator (token/s)"]
            == (best["tokens per second per accelerator (token/s)"])
        )
        assert row["requests in flight then"] == best["concurrency"] == 16
        assert row["most tokens per second per user (token/s)"] == 100.0
        assert row["most requests per second (request/s)"] in [25.0 * 16 / output for output in (200, 256, 1024)]
    charts = book["limits"]._charts
    assert len(charts) == 1
    assert len(charts[0].series) == len(rows)


def test_roofline_shows_every_operator_of_the_chosen_plans(book: Workbook) -> None:
    rows = samples.records(book["roofline"], "operators")
    assert len(rows) == 4 * 12
    product = next(row for row in rows if row["family"] == "gemm")
    rate = float(str(product["flop (GFLOP)"])) / float(str(product["time (us)"])) * 1e9 / 1e-6 / 1e12
    assert product["flop rate (TFLOP/s)"] == pytest.approx(rate)
    assert {row["flop rate (TFLOP/s)"] for row in rows if row["family"] == "all_reduce"} == {None}
    roofs = [row for row in samples.records(book["roofline"], "roofs") if row["roof flop rate (TFLOP/s)"] is not None]
    assert {str(row["series"]).split(" bf16")[0] for row in roofs} == {"H100", "A100 80GB"}
    assert max(float(str(row["roof flop rate (TFLOP/s)"])) for row in roofs) == pytest.approx(989.4)


def test_assumptions_list_the_catalog_rows_used_and_no_others(book: Workbook) -> None:
    assert [row["accelerator"] for row in samples.records(book["accelerators"])] == ["A100 80GB", "H100", "B200"]
    assert [row["model"] for row in samples.records(book["models"])] == list(samples._SIZE)
    assert {row["network"] for row in samples.records(book["networks"])} == {"A100 80GB pod", "H100 pod", "B200 pod"}
    assert {row["generation"] for row in samples.records(book["calibration"])} == {"ampere", "hopper"}
    used = samples.records(book["assumptions"], "rows_used")
    counts = {kind: len(samples.records(book[kind])) for kind in CATALOG_TABLES}
    assert counts["calibration"] == 4
    counts["calibration"] = 2  # constants that were fitted together
    assert {kind: sum(row["sheet"] == kind for row in used) for kind in counts} == counts
    assert all(row["source"] and row["year"] and row["kind"] for row in used)
    text = samples.words(book["assumptions"])
    assert "No calibration row names blackwell" in text
    assert "8 plans extrapolate" in text
    assert samples.catalog().fingerprint in text


def test_reasons_hold_every_plan_with_a_reason_the_refused_first(book: Workbook) -> None:
    rows = samples.records(book["reasons"])
    reasons = [str(r) for kind in ("training", "inference") for r in getattr(samples, kind)()[1]["reason"] if r]
    assert sorted(str(row["reason"]) for row in rows) == sorted(reasons)
    states = [row["state"] for row in rows]
    assert states == sorted(states, key=["refused", "does not fit", "fits, with a remark"].index)
    assert states.count("refused") == 2


def test_a_new_result_column_appears_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    known = schema()["training_results"]
    new = [
        Column("training_results", "time_rebalancing", "result", "s", "", "", (), "", False, "A part of a later day"),
        Column("training_results", "memory_buffers", "result", "GiB", "", "", (), "", False, "Another part"),
    ]
    grown = {**schema(), "training_results": TableSchema("training_results", (*known.columns, *new))}
    monkeypatch.setattr(schema_module, "schema", lambda: grown)
    table_schema.cache_clear()
    try:
        plans, results = samples.training(8)
        columns = {**results.columns, "time_rebalancing": np.full(8, 0.5), "memory_buffers": np.full(8, 2.0**30)}
        made = samples.made_of(plans, Table(results.kind, columns))
    finally:
        table_schema.cache_clear()
    assert samples.records(made["training"])[0]["time rebalancing (s)"] == 0.5
    assert "rebalancing (%)" in samples.records(made["step time"], "step_time_training")[0]
    assert samples.records(made["memory"], "memory_training")[0]["buffers (GiB)"] == 1.0


def test_plans_can_be_reordered_without_changing_a_row() -> None:
    plans, results = samples.training(10)
    order = np.arange(10)[::-1]
    turned = replace(plans, columns={k: v[order] for k, v in plans.columns.items()})
    turned_results = replace(results, columns={k: v[order] for k, v in results.columns.items()})
    made = [samples.records(samples.made_of(p, r)["training"]) for p, r in ((plans, results), (turned, turned_results))]
    assert made[0] == made[1][::-1]


def test_aliases_and_other_spellings_are_one_model_and_one_accelerator() -> None:
    plans, results = samples.training(10)
    columns = dict(plans.columns)
    columns["accelerator"] = np.array([str(n).upper() if i % 2 else n for i, n in enumerate(columns["accelerator"])])
    columns["model"] = np.array([str(n).lower() for n in columns["model"]], dtype=object)
    respelt = Table(plans.kind, {**columns, "accelerator": columns["accelerator"].astype(object)})
    made = [samples.made_of(p, results) for p in (plans, respelt)]
    tables = [samples.records(book["summary"], "best_training") for book in made]
    for one, other in zip(*tables, strict=True):
        assert (one["model"], one["accelerator"]) == (other["model"], other["accelerator"])
    assert [row["accelerator"] for row in samples.records(made[1]["accelerators"])] == ["A100 80GB", "H100", "B200"]


def test_parts_of_the_shipped_plans_add_up_to_their_wholes(catalog: Catalog) -> None:
    """What a chart stacks is what there is: no result that is a view of another, and none left out."""
    for given in read_plans(workbook()):
        plans = resolve(given, catalog).plans
        group = Plans(plans, evaluate(plans, catalog), catalog)
        memory = sum(np.nan_to_num(group.number(part.name)) for part in group.memory_parts())
        np.testing.assert_allclose(memory, group.number("memory"), rtol=1e-12)
        assert all(part.unit == group.results.schema.by_name["memory"].unit for part in group.memory_parts())
        if plans.kind == "training":
            time = sum(np.nan_to_num(group.number(part.name)) for part in group.time_parts())
            np.testing.assert_allclose(time, group.number("step_time"), rtol=1e-9)


def test_the_memory_sheet_stacks_no_more_than_the_memory_reserved(catalog: Catalog, tmp_path: Path) -> None:
    plans = next(table for table in read_plans(workbook()) if table.kind == "training").take([2, 3])
    results = evaluate(plans, catalog)
    book = report_workbook(catalog, [plans], [results], date=samples.DAY)
    rows = [[cell.value for cell in row] for row in book["memory"].iter_rows()]
    top = next(number for number, row in enumerate(rows) if row[0] == "plan")
    stacked = [
        place for place, name in enumerate(rows[top][1:], 1) if name and "capacity" not in name and name != "fits"
    ]
    for row, reserved in zip(rows[top + 1 : top + 3], results["memory_reserved"] / factor("GiB"), strict=True):
        assert sum(row[place] or 0.0 for place in stacked) == pytest.approx(reserved, rel=1e-9)


def test_a_printed_page_ends_with_its_table(book: Workbook) -> None:
    """No rows stand between a table and the break before the next chart: they could fill a page of their own."""
    sheet = book["memory"]
    ends = sorted(range_boundaries(table.ref)[3] for table in sheet.tables.values())
    first = ends[0] + bool(sheet.cell(ends[0] + 1, 1).value)  # a line may say how many plans are left out
    assert len(ends) == 2 and first in {each.id for each in sheet.row_breaks.brk}
