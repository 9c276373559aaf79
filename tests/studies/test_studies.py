"""Studies: each finding is pinned by sign, order or knee; workbooks are what their modules give; reports open."""

from __future__ import annotations

import csv
import io
import math
import re
import zipfile
from dataclasses import replace
from datetime import date
from itertools import groupby
from pathlib import Path

import numpy as np
import openpyxl
import pytest
from conftest import show
from report_samples import faults_on_paper
from study_samples import cell, outcome, sheet

from xlperf.base import resources
from xlperf.base.errors import InputError
from xlperf.catalog.schema import displayed
from xlperf.equations.training.step import STEP_PARTS
from xlperf.page.studies import study_charts
from xlperf.studies import NAMES, study
from xlperf.studies import outcome as outcome_module
from xlperf.studies import study as shelved
from xlperf.studies.outcome import IN_SHORT, Chart, StudySheet, own_column, read_inputs, study_workbook
from xlperf.workbook.report.studies import (
    MOST_TABS,
    _colours_of_machines,
    _shades,
    study_package,
    study_sheets,
    write_study,
    write_study_report,
)
from xlperf.workbook.style import add_styles

MOST = [pytest.param(name, marks=pytest.mark.slow) if name == "mixed-pools" else name for name in NAMES]
PLANNED = [name for name in NAMES if any(row["study"] == name for kind in ("training", "inference")
                                         for row in resources.rows(f"studies/{kind}.csv"))]  # fmt: skip
"""Studies of plans that a reader may edit."""
SOME = [name if name in NAMES[:3] else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]


@pytest.mark.parametrize("name", MOST)
def test_the_workbook_of_a_study_is_what_its_module_gives(name: str, tmp_path: Path) -> None:
    made = tmp_path / f"{name}.xlsx"
    write_study(made, study(name))
    assert show(study_workbook(name)).splitlines()[1:] == show(made).splitlines()[1:]
    assert study_package(study(name)) == made.read_bytes()


def test_every_row_of_the_csv_files_belongs_to_a_study_or_to_a_sheet() -> None:
    folder = Path(outcome_module.__file__).parent
    sheets = {row["sheet"] for row in resources.rows("studies/sheets.csv")}
    for path in folder.glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
        assert rows
        if "study" in rows[0]:
            assert {row["study"] for row in rows} <= set(NAMES), path.name
        elif "sheet" in rows[0]:
            assert {row["sheet"].partition(":")[0] for row in rows} <= sheets, path.name
        assert not [row for row in rows if None in row or None in row.values()], path.name


def test_a_unit_that_xlperf_does_not_know_is_shown_and_scales_nothing() -> None:
    columns = [own_column("case", kind="name"), own_column("gain", "widgets/fortnight", "Widgets")]
    sheet_of_widgets = StudySheet("widgets", "words", columns, [("one", 1.5), ("two", 250.0), ("none", None)])
    part = sheet_of_widgets.parts[1]
    assert part[1].tolist()[:2] == [1.5, 250.0]
    assert displayed(*part) == ("widgets/fortnight", ["1.5", "250.0", ""])
    chart = Chart("bars", "Gain", "case", ["gain"], y_title="widgets/fortnight")
    assert "Gain: widgets/fortnight" in study_charts(replace(sheet_of_widgets, charts=(chart,)))


def test_a_grid_of_plans_is_written_once() -> None:
    """Alternatives are crossed, the first column slowest; braces take the value of another column."""
    plans = study("cost-performance").rows()["inference"]
    first = [(row["tensor_parallel"], row["batch_size"]) for row in plans[:10]]
    assert first == [*((1.0, 2.0**power) for power in range(9)), (2.0, 1.0)]
    assert plans[9]["name"] == "A100-SXM4-80GB, bf16, TP 2, batch 1"
    assert plans[9]["num_accelerators"] == 2.0


def _opened(path: Path, first: int) -> openpyxl.Workbook:
    """A report, its first sheets with their cells: openpyxl takes ten seconds for those of a thousand plans."""
    own = {f"xl/worksheets/sheet{number}.xml" for number in range(1, first + 1)}
    short = io.BytesIO()
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(short, "w") as target:
        for part in whole.namelist():
            text = whole.read(part)
            if part.startswith("xl/worksheets/sheet") and part not in own:
                start, end = text.index(b"<sheetData>"), text.index(b"</sheetData>")
                text = text[:start] + b"<sheetData>" + text[end:]
            target.writestr(part, text)
    return openpyxl.load_workbook(short)


@pytest.mark.parametrize("name", SOME)
def test_a_report_has_every_table_its_charts_and_no_error(name: str, tmp_path: Path) -> None:
    chosen = study(name)
    inputs = read_inputs(chosen)
    path = tmp_path / "report.xlsx"
    write_study_report(path, chosen, inputs, outcome(name), date=date(2026, 11, 21))
    book = _opened(path, len(outcome(name).sheets) + 1)
    own = ["study", *(result.name for result in outcome(name).sheets)]
    assert book.sheetnames[: len(own)] == own and "summary" not in book.sheetnames
    visible = [made.title for made in book.worksheets if made.sheet_state == "visible"]
    assert len(visible) <= MOST_TABS and visible[0] == "study"
    assert all(result.name in visible for result in outcome(name).sheets if result.charts)
    for made in book.worksheets[1:]:
        assert made["A3"].hyperlink.location == "'study'!A1", made.title
    links = {c.hyperlink.location for row in book["study"].iter_rows() for c in row if c.hyperlink}
    assert links == {f"'{title}'!A1" for title in visible if title != "study"}
    assert book.active is book["study"]
    titles = [chart.title.tx.rich.p[0].r[0].t for chart in book["study"]._charts]
    assert len(set(titles)) == len(titles), "two charts of the first sheet have one name"
    assert str(book["study"]["A2"].value).count(" plan") <= 2
    text = " ".join(str(c.value) for row in book["study"].iter_rows() for c in row if c.value is not None)
    for finding in outcome(name).findings:
        assert finding.words in text
    for result in outcome(name).sheets:
        made = book[result.name]
        assert len(made._charts) == len(result.charts)
        filled = sum(c.value is not None for row in made.iter_rows() for c in row)
        assert filled > len(result.rows)
        for row in made.iter_rows():
            assert not [c.coordinate for c in row if isinstance(c.value, str) and c.value.startswith("#")]
    assert outcome(name).findings
    if name not in NAMES[:2]:
        return
    again = tmp_path / "again.xlsx"
    write_study_report(again, chosen, inputs, outcome(name), date=date(2026, 11, 21))
    assert again.read_bytes() == path.read_bytes()


def test_axes_of_studies_have_names_and_lying_bars_no_logarithm() -> None:
    """A unit alone names no axis; LibreOffice turns the legend of lying bars without names at their ends."""
    rows = resources.rows("studies/charts.csv")
    assert len(rows) > 30
    for row in rows:
        along = [] if row["kind"] == "bars" else [row["x title"] or row["x"]]
        for words in (row["y title"], *along):
            assert re.search(r"[a-z{]{4}", words.partition("(")[0]), row
        assert row["kind"] != "bars" or "log y" not in row["look"], row


@pytest.mark.parametrize("name", MOST)
def test_advice_takes_its_numbers_from_the_results(name: str) -> None:
    """No number is typed into a study's advice; what it names is found, and without facts what needs none is left."""
    typed = re.sub(r"\{\w+\}|\b(mm2|FLOP)\b", "", study(name).advice)
    assert not re.search(r"\d", typed)
    said = study(name).advised(outcome(name).facts)
    assert "{" not in said and said.count(";") == study(name).advice.count(";")
    assert "{" not in study(name).advised({})


@pytest.mark.slow
def test_a_machine_has_one_colour_in_all_charts_of_a_study() -> None:
    """And no other series of a chart with machines has the colour of one."""
    result = outcome("mixed-pools")
    machines = _colours_of_machines(result)
    assert len(set(machines.values())) == len(machines) > 2
    for source in result.sheets:
        for chart in source.charts:
            shades = _shades(chart.y, machines)
            assert len(set(shades.values())) == len(shades)
            assert all(shades[name] == machines[name] for name in chart.y if name in machines)
            others = {shade for name, shade in shades.items() if name not in machines}
            assert not others & set(machines.values()) or not set(chart.y) & set(machines)


@pytest.mark.parametrize("name", MOST)
def test_a_chart_refers_to_columns_that_its_sheet_has(name: str) -> None:
    for made in outcome(name).sheets:
        names = [column.name for column in made.columns]
        assert len(set(names)) == len(names)
        for chart in made.charts:
            assert {chart.x, *chart.y} <= set(names), made.name


def test_a_speed_up_is_the_product_of_its_factors_and_near_what_was_published() -> None:
    """10.7 and 14.2 times: published rows on B200 in FP8 over A100 with selective and with full recompute."""
    factors = sheet("a100-to-b200", "factors")
    for row in factors.rows:
        gains = [float(value) for value in row[1:-1] if isinstance(value, float)]
        assert math.prod(gains) == pytest.approx(row[-1], rel=1e-9)
        assert gains[-1] == pytest.approx(1, rel=1e-9), "the factors explain all"
    assert cell(factors, "old, selective recompute to new, FP8", "total") == pytest.approx(10.7, rel=0.15)
    assert cell(factors, "old, full recompute to new, FP8", "total") == pytest.approx(14.2, rel=0.15)


def test_no_gain_is_above_the_ratio_of_peaks_times_the_recompute_saved() -> None:
    ceilings = sheet("a100-to-b200", "ceilings")
    assert cell(ceilings, "old, selective recompute to new, FP8", "compute_ceiling") == pytest.approx(14.42, abs=0.01)
    assert cell(ceilings, "old, selective recompute to new, FP4", "compute_ceiling") == pytest.approx(28.85, abs=0.01)
    for row in ceilings.rows:
        assert 0 < float(row[3] or 0) < 4 / 3


def test_a_claimed_gain_is_told_by_what_it_would_need() -> None:
    """No plan reaches 35 times; gain x missing factor is the claim, and the old machine's share of peak falls by it."""
    rows = sheet("a100-to-b200", "claim").rows
    for _, gain, claimed, missing, mfu, needed in (
        [float(v) if isinstance(v, float) else 0.0 for v in row] for row in rows
    ):
        assert gain * missing == pytest.approx(claimed) and claimed == 35.0 and gain < claimed
        assert needed * missing == pytest.approx(mfu)
    slower = sheet("a100-to-b200", "handicaps").numbers("times_slower")
    assert (slower > 1.0).all() and list(slower) == sorted(slower, reverse=True)
    words = {finding.tag: finding.words for finding in outcome("a100-to-b200").findings}
    assert words["Claim"].startswith("No honest baseline gives 35 times: ") and "Handicap" in words


def test_recompute_saves_memory_for_time() -> None:
    """Korthikanti et al. 2022: selective costs a few percent, full 30 to 40 %; activations fall in that order."""
    result = sheet("recompute", "recompute")
    for label in ("22B", "175B", "530B", "1T"):
        for sequence in ("", "sequence parallel, "):
            plans = [f"{label}, {sequence}recompute {mode}" for mode in ("none", "selective", "full")]
            none, selective, full = (cell(result, plan, "memory_activations") for plan in plans)
            assert none > selective > full
            steps = [cell(result, plan, "step_time") for plan in plans]
            assert 1 < steps[1] / steps[0] < 1.1
            assert 1.2 < steps[2] / steps[0] < 1.45
    mode = "sequence parallel, recompute selective"
    assert cell(result, f"175B, {mode}", "memory_activations") < 0.25 * cell(
        result, "175B, recompute none", "memory_activations"
    )


def test_decode_waits_for_memory_everywhere_and_prefill_turns_on_faster_machines() -> None:
    bounds = sheet("gemm-bounds", "bounds")
    machines = [column.name for column in bounds.columns][1:]
    for row in bounds.rows:
        if str(row[0]).startswith("decode"):
            assert set(row[1:]) == {"memory"}
    prefill = next(row for row in bounds.rows if row[0] == "prefill: mlp up")
    words = dict(zip(machines, prefill[1:], strict=True))
    assert words["Llama 2 13B on A100-SXM4-80GB"] == "compute"
    assert words["Llama 2 13B on B200-SXM-180GB"] == "memory"


def test_a_larger_ridge_asks_for_a_larger_batch() -> None:
    batch = sheet("gemm-bounds", "batch")
    turn = {name: cell(batch, "mlp up", f"Llama 2 13B on {name}") for name in ("A100-SXM4-80GB", "H100-SXM-80GB")}
    assert 150 <= turn["A100-SXM4-80GB"] < turn["H100-SXM-80GB"] <= 512


def test_flash_attention_gains_with_the_sequence() -> None:
    result = sheet("flash-attention", "attention")
    for machine in ("A100-SXM4-80GB", "H100-SXM-80GB"):
        rows = [row for row in result.rows if row[1] == machine]
        speed = [float(row[5] or 0) for row in rows]
        assert speed == sorted(speed)
        assert speed[0] > 1
        assert speed[-1] > 2
        for row in rows:
            length, ratio = float(row[2] or 0), float(row[8] or 0)
            assert ratio == pytest.approx(1 + 5 * 32 * length / (34 * 4096), rel=0.1)


def test_networks_stand_in_the_order_of_their_bandwidth() -> None:
    result = sheet("topologies", "topologies")
    parts = [result.numbers(part) for part in STEP_PARTS]
    np.testing.assert_allclose(np.sum(parts, axis=0), result.numbers("step_time"), rtol=1e-9)
    steps = {str(row[0]): float(row[3] or 0) for row in result.rows}
    assert not any(math.isnan(value) for value in steps.values())
    for kind in ("dense", "experts"):
        assert steps[f"{kind} on fat-tree"] <= steps[f"{kind} on dragonfly"]
        assert steps[f"{kind} on fat-tree"] < steps[f"{kind} on fat-tree 4 to 1"]
        assert (
            steps[f"{kind} on flat switch"] < steps[f"{kind} on flat torus 8x8x8"] < steps[f"{kind} on flat mesh 8x8x8"]
        )
    slow = {kind: steps[f"{kind} on torus of nodes"] / steps[f"{kind} on fat-tree"] for kind in ("dense", "experts")}
    assert slow["experts"] > slow["dense"], "the all-to-all suffers most"


def test_the_all_to_all_of_a_torus_grows_with_its_longest_ring() -> None:
    """Per axis of a torus, a quarter of its ring times what each sends, over its two links of the axis."""
    result = sheet("topologies", "collectives")
    cubic, flat = (cell(result, f"flat torus {shape}", "all_to_all") for shape in ("8x8x8", "32x16"))
    bandwidth = 100e9
    for time, ring, axes in ((cubic, 8, 3), (flat, 32, 2)):
        bound = 256e6 * ring / 8 / (bandwidth / (2 * axes)) * 1e3
        assert bound < time < 1.7 * bound
    assert flat / cubic == pytest.approx(32 / 8 * 2 / 3, rel=0.05)


def test_experts_give_more_parameters_for_less_than_their_cost() -> None:
    result = sheet("moe", "experts")
    dense = "dense, equal active"
    for name in ("8 experts, 2 active", "64 experts, 8 active"):
        assert cell(result, name, "active_parameters") == pytest.approx(
            cell(result, dense, "active_parameters"), rel=0.01
        )
        twin = f"dense, equal total to {name.partition(',')[0]}"
        assert cell(result, name, "parameters") == pytest.approx(cell(result, twin, "parameters"), rel=0.01)
        rate = cell(result, name, "tokens_per_second_per_accelerator")
        assert cell(result, twin, "tokens_per_second_per_accelerator") < rate
        assert rate < cell(result, dense, "tokens_per_second_per_accelerator")


def test_the_exposed_all_to_all_grows_with_expert_parallelism() -> None:
    widths = sheet("moe", "width")
    names = [column.name for column in widths.columns]
    for i, name in enumerate(names):
        if name.startswith("share_"):
            shares = [float(row[i]) for row in widths.rows if isinstance(row[i], float)]
            assert shares[0] == 0
            assert shares[-1] == max(shares) > 0


def test_experts_lose_their_bytes_as_the_batch_grows() -> None:
    decode = sheet("moe", "decode")
    ratio = [
        cell(decode, row[0], "64 experts, 8 active") / cell(decode, row[0], "dense, equal active")
        for row in decode.rows
    ]
    assert max(ratio[1:-1]) > ratio[0]


def test_the_best_and_the_worst_of_waiting_are_those_of_the_chart() -> None:
    """A sentence in USD once named a worst case beside a table with a larger loss, as the chart shows shares."""
    result = sheet("buy-or-wait", "buy or wait")
    shares = {str(row[0]): cell(result, row[0], "waiting_share") for row in result.rows}
    short = outcome("buy-or-wait").findings[0].words
    for case in (max(shares, key=shares.__getitem__), min(shares, key=shares.__getitem__)):
        ends = "cheaper" if shares[case] > 0.0 else "dearer"
        assert f"{abs(shares[case]):.1f} % {ends} than buying now with {case}" in short


def test_a_laxer_target_is_never_dearer() -> None:
    serving = sheet("cost-performance", "serving")
    for i in range(1, len(serving.columns)):
        costs = [float(row[i]) for row in serving.rows if isinstance(row[i], float)]
        assert costs == sorted(costs, reverse=True)
        assert costs


def test_a_frontier_falls() -> None:
    edge = sheet("cost-performance", "serving frontier")
    machines = [str(row[1]) for row in edge.rows]
    assert len(set(machines)) == len(list(groupby(machines))), "charts draw a series for each run of rows"
    for machine in set(machines):
        rows = [(float(row[2] or 0), float(row[3] or 0)) for row in edge.rows if row[1] == machine]
        assert [time for time, _ in rows] == sorted(time for time, _ in rows)
        costs = [cost for _, cost in rows]
        assert costs == sorted(set(costs), reverse=True)


def test_newer_machines_train_faster_for_each_accelerator() -> None:
    machines = sheet("cost-performance", "training machines")
    rate = [
        cell(machines, name, "tokens_per_second_per_accelerator")
        for name in ("A100-SXM4-80GB", "H100-SXM-80GB", "B200-SXM-180GB")
    ]
    assert rate == sorted(rate)


def test_a_study_of_ones_own_numbers(tmp_path: Path) -> None:
    """A reader halves the NVLink of A100 in the study's workbook: the gain to B200 grows."""
    mine = tmp_path / "mine.xlsx"
    write_study(mine, study("a100-to-b200"))
    book = openpyxl.load_workbook(mine)
    sheet_ = book["study"]
    for row in sheet_.iter_rows():
        if row[0].value == "claimed gain":
            row[1].value = 20
    networks = book.create_sheet("networks")
    networks.append(["network", "tier", "size", "topology", "link bandwidth (GB/s)", "latency (us)"])
    networks.append(["DGX-A100", 1, 8, "switch", 150, 3])
    networks.append(["DGX-A100", 2, 65536, "fat-tree", 25, 5])
    book.save(mine)
    inputs = read_inputs(study("a100-to-b200"), mine)
    assert inputs.number("claimed_gain") == 20
    changed = study("a100-to-b200").analyse(inputs)
    key = "old, selective recompute to new, FP8"
    assert cell(changed.sheets[0], key, "total") > 1.02 * cell(sheet("a100-to-b200", "factors"), key, "total")


def test_bad_studies_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match='no study is named "recompte"; did you mean recompute'):
        shelved("recompte")
    mine = tmp_path / "mine.xlsx"
    write_study(mine, study("gemm-bounds"))
    book = openpyxl.load_workbook(mine)
    book["study"]["B5"] = "1, two"
    book["study"]["A6"] = "batch size"
    book.save(mine)
    with pytest.raises(InputError) as problem:
        read_inputs(study("gemm-bounds"), mine)
    lines = str(problem.value).splitlines()
    assert lines[0] == 'mine.xlsx [study!B5]: batch sizes must be a number, got "two"'
    assert lines[1].startswith('mine.xlsx [study!A6]: no setting "batch size" in the study gemm-bounds; did you mean')


@pytest.mark.parametrize("name", MOST)
def test_a_study_begins_with_its_question_its_finding_in_two_sentences_and_what_to_do(name: str) -> None:
    (short,) = outcome(name).short
    assert short.tag == IN_SHORT
    sentences = short.words.rstrip(".").split(". ")
    assert len(sentences) == 2 and all(re.search(r"\d", words) for words in sentences), short.words
    book = openpyxl.Workbook()
    add_styles(book)
    book.worksheets[0].title = "summary"
    study_sheets(book, study(name), read_inputs(study(name)), outcome(name))
    sheet = book.worksheets[0]
    rows = [(sheet.cell(row, 1).value, sheet.cell(row, 2).value) for row in range(3, 6)]
    assert rows == [
        ("Question", study(name).question),
        (IN_SHORT, short.words),
        ("What to do", study(name).advised(outcome(name).facts)),
    ]
    charts = [chart for made in outcome(name).sheets for chart in made.charts]
    assert len(sheet._charts) == min(len(charts), 2)


@pytest.mark.parametrize("name", MOST)
def test_no_share_that_a_study_names_is_more_than_the_whole(name: str) -> None:
    """Shares are told as per cent once: 4 to 7 % of the dies, not 400 to 700."""
    told = [study(name).advised(outcome(name).facts), *(finding.words for finding in outcome(name).findings)]
    shares = [share for words in told for share in re.findall(r"([\d,.]+) % of (?:the|that|its|it)\b", words)]
    assert all(float(share.replace(",", "")) <= 100.0 for share in shares), told


@pytest.mark.parametrize("name", MOST)
def test_a_report_of_a_study_is_cut_nowhere_on_paper(name: str) -> None:
    """No page ends inside a chart, and every chart lies within what is printed, in the narrowest font."""
    book = openpyxl.Workbook()
    add_styles(book)
    book.worksheets[0].title = "summary"
    study_sheets(book, study(name), read_inputs(study(name)), outcome(name))
    for made in book.worksheets[:-1]:
        assert not faults_on_paper(made), made.title


@pytest.mark.parametrize("name", MOST)
def test_charts_have_few_labels(name: str) -> None:
    for made in outcome(name).sheets:
        for chart in made.charts:
            first, last = chart.rows or (0, len(made.rows))
            assert chart.kind not in ("bars", "columns") or last - first <= 45, made.name


def test_winners_of_cost_against_performance_say_what_they_rest_on() -> None:
    made = outcome("cost-performance").findings
    assert made[0].tag == "In short"
    assert "Extrapolated kernels:" in made[0].words or "measured kernels" in made[0].words


@pytest.mark.parametrize(("name", "kind"), [("recompute", "training"), ("dram", "inference")])
def test_a_workbook_without_plans_is_said(name: str, kind: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine.xlsx"
    write_study(mine, study(name))
    book = openpyxl.load_workbook(mine)
    del book[kind]
    book.save(mine)
    with pytest.raises(InputError, match=f"^mine.xlsx: has no {kind} plans, which this study needs"):
        study(name).analyse(read_inputs(study(name), mine))


@pytest.mark.parametrize(
    "name",
    [name if name in NAMES[:3] else pytest.param(name, marks=pytest.mark.slow)
     for name in PLANNED if name != "mixed-pools"],  # which takes the longest
)  # fmt: skip
def test_a_study_takes_plans_that_state_only_what_they_must(name: str, tmp_path: Path) -> None:
    """Columns that a reader deletes take their defaults; what is left is computed or refused with a reason."""
    mine = tmp_path / "mine.xlsx"
    write_study(mine, study(name))
    book = openpyxl.load_workbook(mine)
    for kind in {"training", "inference"} & set(book.sheetnames):
        result = book[kind]
        result.tables.clear()
        headers = [cell.value for cell in result[4]]
        for word in ("tensor parallel", "recompute", "precision", "pipeline parallel"):
            if word in headers:
                result.delete_cols(headers.index(word) + 1)
                headers.remove(word)
    book.save(mine)
    assert study(name).analyse(read_inputs(study(name), mine)).findings
