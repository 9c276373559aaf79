"""The report: what it says, what it is made of, that it is the same each time, and that it opens in LibreOffice."""

from __future__ import annotations

import datetime
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import report_samples as samples
from openpyxl import Workbook, load_workbook
from openpyxl.worksheet.worksheet import Worksheet

from xlperf import resources
from xlperf.catalog import schema as schema_module
from xlperf.catalog.schema import Column, TableSchema, column, schema, table_schema
from xlperf.catalog.table import Table
from xlperf.errors import InputError, XlperfError
from xlperf.excel.build_template import main as build_template
from xlperf.excel.report import report_workbook, write_report
from xlperf.excel.report_data import Plans, Report
from xlperf.excel.report_findings import findings
from xlperf.excel.save import workbook_bytes
from xlperf.excel.style import (
    add_styles,
    cell_value,
    data_rows,
    fitted_format,
    number_format,
    put,
    table_name,
    write_table,
)

DAY = datetime.date(2026, 11, 21)
CHART = "{http://schemas.openxmlformats.org/drawingml/2006/chart}"
MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
ERRORS = ("#NAME?", "#VALUE!", "#REF!", "#DIV/0!", "#NUM!", "#N/A", "#NULL!", "Err:5")


def write(path: Path, study: str = "") -> None:
    (training, trained), (inference, served) = samples.training(), samples.inference()
    plans, results = [training, inference], [trained, served]
    write_report(path, samples.catalog(), plans, results, date=DAY, study=study, explain=samples.explain)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("report") / "report.xlsx"
    write(made, "a study")
    return made


@pytest.fixture(scope="module")
def book(path: Path) -> Workbook:
    return load_workbook(path)


@pytest.fixture(scope="module")
def parts(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as package:
        return {name: package.read(name) for name in package.namelist()}


def records(sheet: Worksheet, table: str | None = None) -> list[dict[str, object]]:
    """Rows of a native table by header."""
    found = sheet.tables[table or table_name(sheet.title)]
    header, *rows = sheet[found.ref]
    return [{str(h.value): cell.value for h, cell in zip(header, row, strict=True)} for row in rows]


def words(sheet: Worksheet) -> str:
    return "\n".join(str(cell.value) for row in sheet.iter_rows() for cell in row if cell.value is not None)


def test_sheets_stand_in_reading_order(book: Workbook) -> None:
    assert book.sheetnames == [
        "summary",
        "training",
        "step time",
        "inference",
        "inference time",
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
    rows = records(book[kind])
    assert len(rows) == len(plans)
    for name in plans.columns:
        assert column(kind, name).header in rows[0]
    for declared in table_schema(f"{kind}_results").columns:
        shown = [row[declared.header] for row in rows]
        assert shown == [cell_value(declared, value) for value in results[declared.name].tolist()]


def test_numbers_are_in_the_unit_that_the_header_says(book: Workbook) -> None:
    _, results = samples.training()
    first = records(book["training"])[0]
    assert first["memory (GiB)"] == pytest.approx(results["memory"][0] / 2**30, rel=1e-15)
    assert first["cost per million tokens (USD/Mtoken)"] == pytest.approx(
        results["cost_per_million_tokens"][0] * 1e6, rel=1e-15
    )
    _, served = samples.inference()
    ttft = records(book["inference"])[0]["ttft (ms)"]
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
                    assert formats == {"0.0%"}
                elif top.value != "value":
                    assert "General" not in formats, (sheet.title, top.value)


def test_refused_plans_are_blank_with_their_reason(book: Workbook) -> None:
    for row in records(book["training"])[-2:]:
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


def test_every_text_stays_text() -> None:
    workbook = Workbook()
    add_styles(workbook)
    sheet = workbook.worksheets[0]
    for text in ("=1+1", "+1", "-1", "@SUM(A1)", "#N/A", "2026-01-01", "a\x00b"):
        cell = put(sheet["A1"], text)
        assert cell.data_type == "s"
        assert cell.value == text.replace("\x00", "\N{REPLACEMENT CHARACTER}")


def test_summary_counts_and_links(book: Workbook) -> None:
    sheet = book["summary"]
    text = words(sheet)
    assert "26 training plans and 24 inference plans" in text
    assert samples.catalog().fingerprint in text
    assert "xlperf report: a study" in text
    links = {cell.hyperlink.location for row in sheet.iter_rows() for cell in row if cell.hyperlink}
    assert links == {f"'{name}'!A1" for name in book.sheetnames if name != "summary"}


def findings_of(*groups: tuple[Table, Table]) -> dict[str, str]:
    made = tuple(Plans(plans, results) for plans, results in groups)
    report = Report(samples.catalog(), made, (), DAY, "", "0")
    found: dict[str, str] = {}
    for finding in findings(report):
        found.setdefault(finding.tag, finding.words)
    return found


def test_findings_name_the_best_plans_that_fit() -> None:
    plans, results = samples.training()
    said = findings_of((plans, results))
    good = results["fits"] == 1
    names = Plans(plans, results).names
    for tag, name, lowest in (
        ("Fastest training", "tokens_per_second", False),
        ("Best MFU", "mfu", False),
        ("Cheapest training", "cost_per_million_tokens", True),
    ):
        values = np.where(good, results[name], np.inf if lowest else -np.inf)
        assert said[tag].startswith(names[int(values.argmin() if lowest else values.argmax())])
    assert f"{100 * results['mfu'][good].max():.1f} %" in said["Best MFU"]


def test_findings_never_praise_a_plan_that_does_not_fit() -> None:
    plans, results = samples.training(6)
    columns = dict(results.columns)
    columns["fits"] = np.array([0.0, 1.0, 1.0, 1.0, np.nan, np.nan])
    columns["mfu"] = np.array([0.9, 0.3, 0.2, 0.1, np.nan, np.nan])
    said = findings_of((plans, Table(results.kind, columns)))
    assert "30.0 %" in said["Best MFU"]
    assert "1 training plan does not fit" in said["Does not fit"]


def test_findings_say_by_how_much_plans_do_not_fit_and_why_plans_are_refused() -> None:
    plans, results = samples.training()
    said = findings_of((plans, results))
    need, have = results["memory_reserved"], results["memory_capacity"]
    over = np.nanmax(np.where(results["fits"] == 0, (need - have) / have, np.nan))
    assert f"{100 * over:.1f} % too much" in said["Does not fit"]
    assert said["Refused"].startswith("2 training plans are refused")
    assert "does not divide the 7 query groups" in said["Refused"]


def test_findings_change_with_the_numbers() -> None:
    plans, results = samples.inference()
    columns = dict(results.columns)
    columns["tpot"] = columns["tpot"].copy()
    columns["tpot"][7] = 1e-6
    assert findings_of((plans, Table(results.kind, columns)))["Fastest answers"].startswith(str(plans["name"][7]))


def test_shares_of_the_step_add_up_to_all_of_it(book: Workbook) -> None:
    for row in records(book["step time"], "step_time_training"):
        shares = [value for name, value in row.items() if name.endswith("(%)")]
        assert sum(value for value in shares if isinstance(value, float)) == pytest.approx(100.0)


def test_time_that_no_part_explains_is_shown() -> None:
    plans, results = samples.training(8)
    columns = dict(results.columns)
    columns["time_data_parallel"] = np.zeros(8)
    made = report_workbook(
        samples.catalog(), [plans], [Table(results.kind, columns)], date=DAY, explain=samples.explain
    )
    rows = records(made["step time"], "step_time_training")
    assert all(isinstance(row["other (%)"], float) and row["other (%)"] > 0 for row in rows)
    assert "data parallel (%)" not in rows[0]


def test_memory_shows_the_reserve_and_the_capacity(book: Workbook) -> None:
    _, results = samples.training()
    for row, need, have in zip(
        records(book["memory"], "memory_training"), results["memory_reserved"], results["memory_capacity"], strict=False
    ):
        names = ("weights", "gradients", "optimizer", "activations", "reserve")
        stack = sum(float(str(row[f"{name} (GiB)"])) for name in names)
        assert stack == pytest.approx(need / 2**30)
        assert row["memory capacity (GiB)"] == pytest.approx(have / 2**30)


def test_roofline_shows_every_operator_of_the_chosen_plans(book: Workbook) -> None:
    rows = records(book["roofline"], "operators")
    assert len(rows) == 4 * 12
    product = next(row for row in rows if row["family"] == "gemm")
    rate = float(str(product["flop (GFLOP)"])) / float(str(product["time (us)"])) * 1e9 / 1e-6 / 1e12
    assert product["flop rate (TFLOP/s)"] == pytest.approx(rate)
    assert {row["flop rate (TFLOP/s)"] for row in rows if row["family"] == "all_reduce"} == {None}
    roofs = [row for row in records(book["roofline"], "roofs") if row["roof flop rate (TFLOP/s)"] is not None]
    assert {str(row["series"]).split(" bf16")[0] for row in roofs} == {"H100", "A100 80GB"}
    assert max(float(str(row["roof flop rate (TFLOP/s)"])) for row in roofs) == pytest.approx(989.4)


def test_assumptions_list_the_catalog_rows_used_and_no_others(book: Workbook) -> None:
    assert [row["accelerator"] for row in records(book["accelerators"])] == ["A100 80GB", "H100", "B200"]
    assert [row["model"] for row in records(book["models"])] == list(samples._SIZE)
    assert {row["network"] for row in records(book["networks"])} == {"A100 80GB pod", "H100 pod", "B200 pod"}
    assert {row["generation"] for row in records(book["calibration"])} == {"ampere", "hopper"}
    used = records(book["assumptions"], "rows_used")
    counts = {
        kind: len(records(book[kind])) for kind in ("accelerators", "networks", "models", "prices", "calibration")
    }
    assert {kind: sum(row["sheet"] == kind for row in used) for kind in counts} == counts
    assert all(row["source"] and row["year"] and row["kind"] for row in used)
    text = words(book["assumptions"])
    assert "No calibration row names blackwell" in text
    assert "8 plans extrapolate" in text
    assert samples.catalog().fingerprint in text


def test_reasons_hold_every_plan_with_a_reason_the_refused_first(book: Workbook) -> None:
    rows = records(book["reasons"])
    reasons = [str(r) for kind in ("training", "inference") for r in getattr(samples, kind)()[1]["reason"] if r]
    assert sorted(str(row["reason"]) for row in rows) == sorted(reasons)
    states = [row["state"] for row in rows]
    assert states == sorted(states, key=["refused", "does not fit", "fits, with a remark"].index)
    assert states.count("refused") == 2


def test_every_table_has_frozen_headers_print_titles_and_header_comments(book: Workbook) -> None:
    for sheet in book:
        assert sheet.freeze_panes, sheet.title
        assert sheet.print_title_rows, sheet.title
        assert sheet.page_setup.orientation == "landscape"
        assert sheet.page_setup.fitToWidth >= 1
        assert sheet.sheet_properties.pageSetUpPr.fitToPage
        assert "&P" in sheet.oddFooter.right.text
        for table in sheet.tables.values():
            assert all(cell.comment is not None for cell in sheet[table.ref][0]), (sheet.title, table.name)


def test_tables_are_legal(parts: dict[str, bytes]) -> None:
    names: list[str] = []
    for name, data in parts.items():
        if not name.startswith("xl/tables/"):
            continue
        root = ElementTree.fromstring(data)
        names.append(root.attrib["displayName"])
        headers = [entry.attrib["name"] for entry in root.iter(f"{MAIN}tableColumn")]
        assert len({header.casefold() for header in headers}) == len(headers), name
        assert re.fullmatch(r"[A-Za-z_\\][\w.\\]*", names[-1])
        assert not re.fullmatch(r"[A-Za-z]{1,3}\d+|[RrCc]", names[-1])
    assert len({name.casefold() for name in names}) == len(names) >= 14


def test_tables_of_a_sheet_do_not_overlap(book: Workbook) -> None:
    for sheet in book:
        seen: set[str] = set()
        for table in sheet.tables.values():
            cells = {cell.coordinate for row in sheet[table.ref] for cell in row}
            assert not cells & seen
            seen |= cells


def test_every_chart_series_carries_its_points_and_they_are_those_of_the_cells(
    parts: dict[str, bytes], book: Workbook
) -> None:
    charts = {name: ElementTree.fromstring(data) for name, data in parts.items() if name.startswith("xl/charts/chart")}
    assert len(charts) == 2 + 2 + 2 + 1
    for name, root in charts.items():
        deleted = [entry.attrib["val"] for entry in root.iter(f"{CHART}delete")]
        assert "0" in deleted, name
        assert root.find(f".//{CHART}title//{CHART}overlay").attrib["val"] == "0"
        assert not root.findall(f".//{CHART}externalData")
        for series in root.iter(f"{CHART}ser"):
            for tag in ("tx", "val" if series.find(f"{CHART}val") is not None else "yVal"):
                assert series.find(f"{CHART}{tag}") is not None
            for kind in ("numRef", "strRef"):
                for reference in series.iter(f"{CHART}{kind}"):
                    check_cache(reference, book, kind.replace("Ref", "Cache"))


def check_cache(reference: ElementTree.Element, book: Workbook, kind: str) -> None:
    title, area = re.fullmatch(r"'?([^'!]+)'?!(.+)", reference.findtext(f"{CHART}f", "")).groups()
    found = book[title][area.replace("$", "")]
    cells = [row[0] for row in found] if isinstance(found, tuple) else [found]
    cache = reference.find(f"{CHART}{kind}")
    assert cache is not None
    assert cache.find(f"{CHART}ptCount").attrib["val"] == str(len(cells))
    points = {int(p.attrib["idx"]): p.findtext(f"{CHART}v") for p in cache.iter(f"{CHART}pt")}
    assert points
    for place, cell in enumerate(cells):
        if cell.value is None:
            assert place not in points
        elif kind == "numCache":
            assert float(points[place]) == pytest.approx(cell.value, rel=1e-15)
        else:
            assert points[place] == str(cell.value)


def test_capacity_is_a_line_over_the_memory_columns(parts: dict[str, bytes]) -> None:
    lined = [
        root
        for root in (ElementTree.fromstring(data) for name, data in parts.items() if name.startswith("xl/charts/chart"))
        if root.find(f".//{CHART}lineChart") is not None
    ]
    assert len(lined) == 2
    for root in lined:
        name = root.findtext(
            f".//{CHART}lineChart/{CHART}ser/{CHART}tx/{CHART}strRef/{CHART}strCache/{CHART}pt/{CHART}v"
        )
        assert name == "memory capacity (GiB)"
        axes = {entry.attrib["val"] for entry in root.findall(f".//{CHART}lineChart/{CHART}axId")}
        assert axes == {entry.attrib["val"] for entry in root.findall(f".//{CHART}barChart/{CHART}axId")}


def test_many_plans_go_to_several_charts_and_nothing_is_dropped_silently() -> None:
    plans, results = samples.training(130)
    made = report_workbook(samples.catalog(), [plans], [results], date=DAY, explain=samples.explain)
    sheet = made["step time"]
    assert len(sheet._charts) == 2 * 4
    assert len(records(sheet, "step_time_training")) == 96
    assert "34 plans not shown" in words(sheet)
    assert len(records(made["training"])) == 130


def test_one_kind_of_plan_alone(tmp_path: Path) -> None:
    plans, results = samples.inference(3)
    made = report_workbook(samples.catalog(), [plans], [results], date=DAY, explain=samples.explain)
    assert "training" not in made.sheetnames
    assert "step time" not in made.sheetnames
    assert "inference time" in made.sheetnames


def test_all_plans_refused() -> None:
    plans, results = samples.training(2)
    made = report_workbook(samples.catalog(), [plans], [results], date=DAY, explain=samples.explain)
    assert not {"step time", "memory", "roofline"} & set(made.sheetnames)
    assert len(records(made["reasons"])) == 2
    assert "2 training plans are refused" in words(made["summary"])


def test_a_new_result_column_appears_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    known = schema()["training_results"]
    new = [
        Column("training_results", "time_rebalancing", "result", "s", "", "", (), "", False, "A part of a later day"),
        Column("training_results", "memory_buffers", "result", "GiB", "", "", (), "", False, "Another part"),
    ]
    grown = {**schema(), "training_results": TableSchema("training_results", (*known.columns, *new))}
    monkeypatch.setattr(schema_module, "schema", lambda: grown)
    plans, results = samples.training(8)
    columns = {**results.columns, "time_rebalancing": np.full(8, 0.5), "memory_buffers": np.full(8, 2.0**30)}
    made = report_workbook(
        samples.catalog(), [plans], [Table(results.kind, columns)], date=DAY, explain=samples.explain
    )
    assert records(made["training"])[0]["time rebalancing (s)"] == 0.5
    assert "rebalancing (%)" in records(made["step time"], "step_time_training")[0]
    assert records(made["memory"], "memory_training")[0]["buffers (GiB)"] == 1.0


def test_same_input_gives_the_same_bytes(path: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; import test_report; test_report.write(Path(sys.argv[1]), 'a study')"
    )
    again = tmp_path / "again.xlsx"
    environment = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": str(Path(__file__).parent), "TZ": "Asia/Tokyo"}
    subprocess.run([sys.executable, "-c", program, str(again)], env=environment, check=True, timeout=120)
    assert again.read_bytes() == path.read_bytes()


def test_document_properties_are_those_of_the_report(book: Workbook) -> None:
    properties = book.properties
    assert properties.title == "xlperf report: a study"
    assert properties.created == properties.modified == datetime.datetime(2026, 11, 21)
    assert samples.catalog().fingerprint in properties.keywords


def test_template_is_what_its_command_builds(tmp_path: Path) -> None:
    build_template([str(tmp_path / "report.xlsx")])
    assert (tmp_path / "report.xlsx").read_bytes() == resources.template("report.xlsx").read_bytes()


def test_a_run_that_is_killed_half_way_leaves_the_old_file_whole(tmp_path: Path) -> None:
    old = tmp_path / "report.xlsx"
    write(old)
    before = old.read_bytes()
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "import test_report\n"
        "def cut(self, data):\n"
        "    with self.open('wb') as stream:\n"
        "        stream.write(data[: len(data) // 2])\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "Path.write_bytes = cut\n"
        "test_report.write(Path(sys.argv[1]), 'new')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run([sys.executable, "-c", program, str(old)], env=environment, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert old.read_bytes() == before
    write(old, "new")
    assert load_workbook(old).properties.title == "xlperf report: new"


def test_a_run_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "report.xlsx"
    old.write_bytes(b"old")

    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError) as caught:
        write(old)
    assert str(caught.value) == (
        f"{old}: cannot be written (no space left on device); close it where it is open, or choose another folder"
    )
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.xlsx"]
    assert old.read_bytes() == b"old"


def test_paths_that_cannot_be_written_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        write(tmp_path)
    assert str(caught.value) == f"{tmp_path}: is a folder; give a file name such as report.xlsx"
    lost = tmp_path / "nowhere" / "report.xlsx"
    with pytest.raises(InputError) as caught:
        write(lost)
    assert str(caught.value) == f'{lost}: there is no folder "{lost.parent}"; make it first'


def test_a_folder_that_may_not_be_written_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused(*_: object, **__: object) -> tuple[int, str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", refused)
    with pytest.raises(InputError) as caught:
        write(tmp_path / "report.xlsx")
    assert "cannot be written (permission denied)" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_plans_is_one_line() -> None:
    with pytest.raises(InputError) as caught:
        report_workbook(samples.catalog(), [], [], date=DAY, explain=samples.explain)
    assert str(caught.value) == "samples.xlsx: holds no plans; fill the sheets training or inference"


def test_results_of_other_plans_are_refused() -> None:
    plans, _ = samples.training(4)
    _, results = samples.inference(4)
    with pytest.raises(XlperfError):
        report_workbook(samples.catalog(), [plans], [results], date=DAY, explain=samples.explain)


def test_every_column_of_the_schema_has_a_number_format_that_excel_reads() -> None:
    for table in schema().values():
        for entry in table.columns:
            code = number_format(entry)
            assert code
            if entry.kind in ("number", "result"):
                assert code == "General" or "0" in code
            assert code.count(";") <= 2
            assert fitted_format(entry, [0.0, 0.0123, 4.5]).count(";") <= 2


def test_data_rows_turn_units_flags_blanks_and_auto() -> None:
    plans = Table(
        "training",
        {
            "model": np.array(["a", ""], dtype=object),
            "sequence_parallel": np.array([1.0, np.nan]),
            "tensor_parallel": np.array([8.0, np.nan]),
        },
        auto={"tensor_parallel": np.array([False, True])},
    )
    columns = [column("training", name) for name in ("model", "sequence_parallel", "tensor_parallel", "optimizer")]
    assert data_rows(plans, columns) == [["a", "yes", 8, None], [None, None, "auto", None]]


def test_an_empty_table_is_still_a_table() -> None:
    workbook = load_workbook(resources.template("report.xlsx"))
    area = write_table(workbook["prices"], table_schema("prices").columns, [], "A4")
    assert area.startswith("A4:") and area.endswith("5")
    again = load_workbook(io.BytesIO(workbook_bytes(workbook)))
    assert again["prices"].tables["prices"].ref == area


def test_capacity_of_far_too_large_plans_does_not_flatten_the_chart() -> None:
    plans, results = samples.training(6)
    columns = dict(results.columns)
    columns["memory_weights"] = columns["memory_weights"] * 500
    made = report_workbook(
        samples.catalog(), [plans], [Table(results.kind, columns)], date=DAY, explain=samples.explain
    )
    chart = made["memory"]._charts[0]
    assert chart.y_axis.scaling.max == pytest.approx(160.0)
    assert "cut off" in chart.title.tx.rich.p[0].r[0].t


def test_report_opens_in_libreoffice_without_an_error_cell(path: Path, tmp_path: Path) -> None:
    office = shutil.which("soffice")
    if office is None:
        pytest.skip("LibreOffice is not installed: soffice is not on the path")
    command = [office, f"-env:UserInstallation={(tmp_path / 'profile').as_uri()}", "--headless", "--norestore"]
    for kind in ("pdf", "xlsx:Calc MS Excel 2007 XML"):
        done = subprocess.run(
            [*command, "--convert-to", kind, "--outdir", str(tmp_path), str(path)],
            capture_output=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    ours = load_workbook(path, data_only=True)
    theirs = load_workbook(tmp_path / "report.xlsx", data_only=True, read_only=True)
    assert theirs.sheetnames == ours.sheetnames
    for sheet in ours:
        for left, right in zip(
            sheet.iter_rows(values_only=True), theirs[sheet.title].iter_rows(values_only=True), strict=False
        ):
            for a, b in zip(left, right, strict=False):
                assert not (isinstance(b, str) and b.startswith(ERRORS)), (sheet.title, b)
                if isinstance(a, str) or a is None:
                    assert (a or None) == (b or None)
                else:
                    assert b == pytest.approx(a, rel=1e-12)


def test_plans_can_be_reordered_without_changing_a_row() -> None:
    plans, results = samples.training(10)
    order = np.arange(10)[::-1]
    turned = replace(plans, columns={k: v[order] for k, v in plans.columns.items()})
    turned_results = replace(results, columns={k: v[order] for k, v in results.columns.items()})
    made = [
        records(report_workbook(samples.catalog(), [p], [r], date=DAY, explain=samples.explain)["training"])
        for p, r in ((plans, results), (turned, turned_results))
    ]
    assert made[0] == made[1][::-1]


def test_aliases_and_other_spellings_are_one_model_and_one_accelerator() -> None:
    plans, results = samples.training(10)
    columns = dict(plans.columns)
    columns["accelerator"] = np.array([str(n).upper() if i % 2 else n for i, n in enumerate(columns["accelerator"])])
    columns["model"] = np.array([str(n).lower() for n in columns["model"]], dtype=object)
    respelt = Table(plans.kind, {**columns, "accelerator": columns["accelerator"].astype(object)})
    made = [
        report_workbook(samples.catalog(), [p], [results], date=DAY, explain=samples.explain) for p in (plans, respelt)
    ]
    tables = [records(book["summary"], "best_training") for book in made]
    for one, other in zip(*tables, strict=True):
        assert (one["model"], one["accelerator"]) == (other["model"], other["accelerator"])
    assert [row["accelerator"] for row in records(made[1]["accelerators"])] == ["A100 80GB", "H100", "B200"]


def test_nothing_fits() -> None:
    plans, results = samples.training(6)
    columns = {**results.columns, "fits": np.where(np.isnan(results["fits"]), np.nan, 0.0)}
    made = report_workbook(
        samples.catalog(), [plans], [Table(results.kind, columns)], date=DAY, explain=samples.explain
    )
    text = words(made["summary"])
    assert "4 training plans do not fit in memory" in text
    assert "Fastest training" not in text
    assert "best_training" not in made["summary"].tables


def test_results_with_few_columns() -> None:
    plans, results = samples.inference(5)
    few = Table(results.kind, {name: results[name] for name in ("ttft", "tpot", "fits", "reason")})
    made = report_workbook(samples.catalog(), [plans], [few], date=DAY, explain=samples.explain)
    assert not {"inference time", "memory"} & set(made.sheetnames)
    assert [name for name in records(made["inference"])[0] if "ms" in name] == ["ttft (ms)", "tpot (ms)"]
