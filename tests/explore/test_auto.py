"""``auto`` where users write it: in CSV files, workbook cells and cards; ``xlperf search``; XLPERF_SEARCH."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import csv_rows
from openpyxl import Workbook, load_workbook

from xlperf.addin.cells import CellError
from xlperf.addin.worker import Session
from xlperf.base.errors import InputError
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.read import read_plans
from xlperf.catalog.schema import mapping_columns
from xlperf.engine import evaluate
from xlperf.explore import search as resolving
from xlperf.explore.allocate import plan_grid
from xlperf.explore.candidates import candidates
from xlperf.explore.search import evaluate_resolved, resolve, search

H100 = "H100-SXM-80GB"
TRAIN = ["name", "model", "accelerator", "num_accelerators", "global_batch_size", "tensor_parallel", "recompute"]
ROWS: list[list[Any]] = [
    ["a", "Meta-Llama-3.1-8B", H100, 8, 32, "auto", "auto"],
    ["b", "Meta-Llama-3.1-8B", H100, 8, 32, 2, "none"],
    ["c", "Meta-Llama-3.1-405B", H100, 8, 32, "auto", "full"],
]
SERVE = ["name", "model", "accelerator", "num_accelerators", "prompt_length", "output_length", "tpot_target",
         "tensor_parallel", "batch_size"]  # fmt: skip
SERVED: list[list[Any]] = [["s", "Meta-Llama-3.1-8B", H100, 8, 1000, 200, 15, "auto", "auto"]]
Command = Callable[..., Any]


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def sheet(path: Path, header: list[str], rows: list[list[Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([header, *rows])
    return path


def read(text: str) -> list[dict[str, str]]:
    return csv_rows(text)


@pytest.fixture
def plans(tmp_path: Path) -> Path:
    return sheet(tmp_path / "plans.csv", TRAIN, ROWS)


# --- resolve


def test_rows_with_auto_get_the_best_and_others_stay(catalog: Catalog) -> None:
    table = table_from_rows("training", TRAIN, ROWS)
    resolved = resolve(table, catalog)
    assert not resolved.plans.auto
    assert sorted(resolved.notes) == [0, 2]
    best = search(table.take([0]), catalog)
    assert resolved.plans["tensor_parallel"].tolist()[:2] == [best.plans["tensor_parallel"][0], 2.0]
    assert resolved.plans["recompute"].tolist() == [best.plans["recompute"][0], "none", "full"]
    assert resolved.plans["name"].tolist() == ["a", "b", "c"]
    assert resolved.plans.place(2, "tensor_parallel") == table.place(2, "tensor_parallel")
    untouched = table.take([1])
    assert resolve(untouched, catalog).plans["tensor_parallel"].tolist() == [2.0]


def test_a_search_in_which_nothing_fits_names_the_degrees_to_free(catalog: Catalog) -> None:
    """The plan of a log states them, and searches of the rest of its mapping ended at "none fits"."""
    names = [*TRAIN, "pipeline_parallel"]
    words = [
        search(table_from_rows("training", names, [["c", "Meta-Llama-3.1-405B", H100, 8, 32, *degrees]]), catalog).words
        for degrees in ((8, "auto", 1), ("auto", "full", 1), ("auto", "full", "auto"), (8, "auto", ""))
    ]
    hints = [one.partition(" GiB; ")[2] for one in words]
    assert hints[0] == "auto for tensor parallel and pipeline parallel tries others"
    assert hints[1] == "auto for pipeline parallel tries others" and hints[2] == ""
    assert hints[3] == "auto for tensor parallel tries others"


def test_a_blank_column_of_the_sheet_forbids_nothing(catalog: Catalog) -> None:
    """A rule asks what a plan states: blank modules to recompute do not rule recompute none out."""
    blank = {"recompute_modules": "", "quantized_copies": "", "adapter_modules": "", "dimension_order": ""}
    names, row = [*TRAIN, *blank], [*ROWS[0], *blank.values()]
    plans = table_from_rows("training", names, [row], lambda row, column: column)
    alone = table_from_rows("training", TRAIN, ROWS[:1], lambda row, column: column)
    result = [candidates(table, catalog).plans.text("recompute").tolist() for table in (plans, alone)]
    assert result[0] == result[1] and {"none", "selective", "full"} <= set(result[0])


def test_resolved_plans_evaluate_to_the_same_numbers(catalog: Catalog) -> None:
    plans, results = evaluate_resolved(table_from_rows("training", TRAIN, ROWS), catalog)
    alone = evaluate(plans, catalog)
    for name, values in alone.columns.items():
        if name != "reason":
            assert np.array_equal(values, results[name], equal_nan=values.dtype != object), name
    words = results["reason"].tolist()
    best = search(table_from_rows("training", TRAIN, ROWS[:1]), catalog)
    assert words[0] == f"auto: {best.chosen_words}: {best.words}"
    assert best.chosen_words.startswith("tensor parallel ")
    assert words[1] == alone["reason"][1]
    assert "none fits: 4 plans tried, 4 legal, the smallest has memory reserved " in words[2]
    assert words[2].endswith(str(alone["reason"][2]))
    assert results["fits"].tolist() == [1.0, 1.0, 0.0]


def test_rows_that_differ_by_name_alone_are_searched_once(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        return search(*arguments, **options)

    monkeypatch.setattr(resolving, "search", counted)
    rows = [[name, *ROWS[0][1:3], 16, *ROWS[0][4:]] for name in "pqr"] + [["s", *ROWS[0][1:3], 16, 64, *ROWS[0][5:]]]
    resolve(table_from_rows("training", TRAIN, rows), catalog)
    assert len(calls) == 2
    resolve(table_from_rows("training", TRAIN, rows[:1]), catalog)
    assert len(calls) == 2
    table = catalog.tables["accelerators"]
    for own, number in ((False, 2), (True, 3)):  # a catalog in which the accelerator is another says something else
        faster = np.where((table["accelerator"] == H100) == own, 1.5, 1.0) * table["memory_bandwidth"]
        other = catalog.with_tables([replace(table, columns={**table.columns, "memory_bandwidth": faster})])
        resolve(table_from_rows("training", TRAIN, rows[:1]), other)
        assert len(calls) == number


def test_faults_of_all_rows_are_said_at_once(catalog: Catalog, tmp_path: Path, command: Command) -> None:
    header = [*TRAIN, "sequence_length"]
    rows = [[*ROWS[0], "auto"], [*ROWS[1], 4096], [*ROWS[2], "auto"]]
    done = command("evaluate", sheet(tmp_path / "plans.csv", header, rows))
    assert done.code == 2
    assert done.err.splitlines() == [
        f"plans.csv [line {line}, sequence length]: sequence length cannot be auto: no search chooses it, write a value"
        for line in (2, 4)
    ]
    with pytest.raises(InputError) as caught:
        resolve(table_from_rows("training", TRAIN, ROWS), catalog, most=3)
    assert [fault.place for fault in caught.value.faults] == ["row 1, tensor parallel", "row 3, tensor parallel"]


# --- commands


def test_evaluate_resolves_auto_in_a_csv_file(plans: Path, command: Command) -> None:
    done = command("evaluate", plans)
    assert done.code == 0
    rows = read(done.out)
    assert {row["tensor_parallel"] for row in rows} <= {"1", "2", "4", "8"}
    assert rows[0]["reason"].startswith(f"auto: tensor parallel {rows[0]['tensor_parallel']}, recompute ")
    again = command(
        "evaluate", sheet(plans.with_name("again.csv"), list(rows[0]), [list(row.values()) for row in rows])
    )
    assert [row["step_time"] for row in read(again.out)] == [row["step_time"] for row in rows]
    few = command("evaluate", plans, "--most", "3")
    assert few.code == 2
    assert "plans.csv [line 2, tensor parallel]: more than 3 plans to try: write values for some of tensor" in few.err


def test_search_writes_the_best_plans(plans: Path, tmp_path: Path, command: Command) -> None:
    out = tmp_path / "best.csv"
    done = command("search", plans, "--row", 1, "--top", 3, "-o", out)
    assert done.code == 0
    said = (
        r"a: least step time of \d+ that fit; 12 plans tried, 12 legal; "
        r"the first 2 are within 5 % and cannot be told apart\n.*best\.csv: 3 plans\n"
    )
    assert re.fullmatch(said, done.err)
    fit = int(done.err.split()[5])
    rows = read(out.read_text())
    times = [float(row["step_time"]) for row in rows]
    assert len(rows) == 3
    assert times == sorted(times)
    again = read(command("evaluate", out).out)
    assert [row["step_time"] for row in again] == [row["step_time"] for row in rows]
    whole = command("search", plans, "--row", 1, "--all", "-o", "-")
    assert len(read(whole.out)) == fit > 3
    shown = command("search", plans, "--row", 1, "--top", 1).out.splitlines()
    assert shown[0].split("  ")[:2] == ["name", "tensor parallel"]
    assert len(shown) == 4


def test_search_says_no_when_nothing_fits(plans: Path, command: Command) -> None:
    done = command("search", plans, "-o", "-")
    assert done.code == 1
    assert {row["name"] for row in read(done.out)} == {"a"}
    lines = done.err.splitlines()
    assert lines[1].startswith("c: none fits: 4 plans tried, 4 legal, the smallest has memory reserved ")
    none = command("search", plans, "--row", 1, "--limit", "step time<=1 ms")
    assert (none.code, none.out) == (1, "")
    assert re.search(
        r"none keeps step time <= 0.001 s: 12 plans tried, \d+ fit, the nearest has step time \d", none.err
    )


def test_search_varies_what_the_command_line_says(plans: Path, command: Command) -> None:
    options = ("--vary", "tensor parallel=auto", "--vary", "precision=bf16,fp8", "--objective", "cost", "--all")
    done = command("search", plans, "--name", "b", *options, "-o", "-")
    rows = read(done.out)
    assert done.code == 0
    assert {row["precision"] for row in rows} == {"bf16", "fp8"}
    assert {row["tensor_parallel"] for row in rows} == {"1", "2", "4", "8"} - {"1"} | {rows[0]["tensor_parallel"]}
    costs = [float(row["cost_per_million_tokens"]) for row in rows]
    assert costs == sorted(costs)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--row", "2"), "no cell says auto: write it where a value is to be chosen, or give --mapping or"),
        (("--vary", "sequence length=auto"), '--vary: "sequence length" cannot be auto in training plans, only'),
        (("--objective", "speed"), 'objective: "speed" is no result in numbers of training plans'),
        (("--limit", "speed<1", "--limit", "mfu"), '--limit: must be as "ttft<=500" or "memory<=70 GiB", got "mfu"'),
        (("--vary", "tensor parallel=x"), "--vary: tensor parallel must be a whole number of at least 1"),
        (("--row", "1", "--name", "a"), "give --row or --name, not both"),
        (("--most", "3"), "line 2, tensor parallel]: more than 3 plans to try"),
        (("-o", "out.txt"), "the output must end in .xlsx, .csv, .parquet or .json"),
    ],
)
def test_searches_that_are_refused(plans: Path, command: Command, options: tuple[str, ...], words: str) -> None:
    done = command("search", plans, *options)
    assert done.code == 2
    assert words in done.err


def test_both_kinds_go_to_a_workbook(tmp_path: Path, command: Command) -> None:
    book = Workbook()
    for number, (name, rows) in enumerate((("training", [TRAIN, *ROWS[:1]]), ("inference", [SERVE, *SERVED]))):
        page = book.create_sheet(name, number)
        for row in rows:
            page.append(row)
    path = tmp_path / "study.xlsx"
    book.save(path)
    out = tmp_path / "best.xlsx"
    done = command("search", path, "-o", out, "--top", 2)
    assert done.code == 0, done.err
    assert "s: most tokens per second per accelerator of " in done.err
    assert " that fit with tpot <= 15 ms" in done.err
    result = load_workbook(out)
    assert result.sheetnames == ["training", "inference", "asked"]
    cells = list(result["inference"].iter_rows(values_only=True))
    assert len(cells) == 3
    assert cells[1][cells[0].index("tpot (ms)")] <= 15
    refused = command("search", path, "-o", tmp_path / "best.csv")
    assert refused.code == 2
    assert "holds both kinds of plans: give --sheet training, or an .xlsx output" in refused.err
    report = command("report", path, "-o", tmp_path / "report.xlsx")
    assert report.code == 0, report.err
    shown = load_workbook(tmp_path / "report.xlsx")
    words = [
        str(cell) for page in shown for row in page.iter_rows(values_only=True) for cell in row if cell is not None
    ]
    assert any(re.match(r"auto: tensor parallel \d, recompute \w+: least step time of ", word) for word in words)
    assert not any(word == "auto" for word in words)


def test_explain_and_frontier_take_auto(tmp_path: Path, plans: Path, command: Command) -> None:
    done = command("explain", plans, "--row", 1)
    assert done.code == 0
    assert done.out == command("explain", plans, "--row", 1).out
    path = sheet(tmp_path / "serve.csv", SERVE, SERVED)
    best = read(command("search", path, "-o", "-", "--top", 1).out)[0]
    lines = command("search", "--frontier", path, "-o", tmp_path / "frontier.csv")
    assert lines.code == 0
    points = read((tmp_path / "frontier.csv").read_text())
    assert len({row["tensor_parallel"] for row in points}) > 1
    assert points[0]["tensor_parallel"] == best["tensor_parallel"]
    most, result = (float(row["tokens_per_second_per_accelerator"]) for row in (points[0], best))
    assert most <= result <= 1.01 * most, "a search also tries the whole requests around the best load of the curve"
    assert "tensor parallel" in command("search", "--frontier", path).out.splitlines()[0]


def test_other_commands_take_auto_or_refuse_it(plans: Path, tmp_path: Path, catalog: Catalog, command: Command) -> None:
    best = read(command("evaluate", plans).out)
    done = command("cost", plans)
    assert done.code == 0, done.err
    assert [row["tensor_parallel"] for row in read(done.out)] == [row["tensor_parallel"] for row in best]
    table = table_from_rows("training", [*TRAIN, "zero_stage"], [[*ROWS[0], "auto"]])
    with pytest.raises(InputError, match="row 1, zero stage: zero stage is auto, which this grid does not try: write"):
        plan_grid(table, catalog)
    assert len(plan_grid(table_from_rows("training", TRAIN, ROWS[:1]), catalog)) > 10


# --- cells


CARD = [[name.replace("_", " "), value] for name, value in zip(TRAIN, ROWS[0], strict=True)]


FULL = [["model", "Meta-Llama-3.1-8B"], ["accelerator", H100], ["num accelerators", 8.0]] + [
    [name.replace("_", " "), "none" if name == "recompute" else "no" if name == "sequence_parallel" else 1.0]
    for name in mapping_columns("training")
]


def one(block: Any) -> Any:
    assert len(block) == len(block[0]) == 1
    return block[0][0]


def test_scalar_functions_of_a_card_share_one_search(monkeypatch: pytest.MonkeyPatch, catalog: Catalog) -> None:
    session = Session()
    calls = []

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        return search(*arguments, **options)

    monkeypatch.setattr(resolving, "search", counted)
    table = table_from_rows("training", TRAIN, ROWS[:1])
    best = search(table, catalog)
    assert one(session.call("XLPERF_STEP_TIME", [CARD])) == best.results["step_time"][0]
    assert one(session.call("XLPERF_MFU", [CARD])) == best.results["mfu"][0]
    assert one(session.call("XLPERF_CHECK", [CARD])) == f"auto: {best.chosen_words}: {best.words}"
    block = session.call("XLPERF_TRAINING", [CARD, "name, tensor_parallel, recompute, step_time"])
    assert block[1] == ["a", *(best.plans[name][0] for name in best.searched), best.results["step_time"][0]]
    assert len(session.call("XLPERF_EXPLAIN", [CARD])) > 10
    assert len(calls) == 1


def test_search_spills_the_best_plans(catalog: Catalog) -> None:
    session = Session()
    block = session.call("XLPERF_SEARCH", [CARD, 3.0])
    assert block[0][:3] == ["tensor parallel", "recompute", "step time (s)"]
    table = table_from_rows("training", TRAIN, ROWS[:1])
    best = search(table, catalog, top=3)
    assert [row[:3] for row in block[1:]] == [
        list(row) for row in zip(*(best.plans[name] for name in best.searched), best.results["step_time"], strict=True)
    ]
    assert len(session.call("XLPERF_SEARCH", [CARD])) == 1 + min(10, best.num_good)
    cheap = session.call("XLPERF_SEARCH", [CARD, None, "cost"])
    assert cheap[0][2] == "cost per million tokens (USD/Mtoken)"
    serve = [[name, value] for name, value in zip(SERVE, SERVED[0], strict=True)]
    spilled = session.call("XLPERF_SEARCH", [serve, 2.0])
    assert spilled[0][:3] == ["tensor parallel", "batch size", "tokens per second per accelerator (token/s)"]
    assert len(spilled) == 3


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([CARD, 2.5], "#VALUE!", "top must be a whole number of at least 1, got 2.5"),
        ([CARD, -1.0], "#VALUE!", "top must be a whole number of at least 1, got -1"),
        ([CARD, None, "speed"], "#VALUE!", '"speed" is no result in numbers of training plans'),
        ([FULL], "#VALUE!", "no cell of the plan says auto"),
        ([[TRAIN, *ROWS[:2]]], "#VALUE!", "XLPERF_SEARCH takes one plan, got 2"),
        ([[TRAIN, ROWS[2]]], "#N/A", "none fits: 4 plans tried, 4 legal, the smallest has memory reserved"),
    ],
)
def test_searches_that_cells_refuse(arguments: list[Any], code: str, words: str) -> None:
    result = one(Session().call("XLPERF_SEARCH", arguments))
    assert isinstance(result, CellError)
    assert result.code == code
    assert words in result.message


def test_cells_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xlperf.addin.worker.MOST_IN_CELLS", 3)
    result = one(Session().call("XLPERF_STEP_TIME", [CARD]))
    assert isinstance(result, CellError)
    assert result.message.startswith(
        'training "a", tensor parallel: more than 3 plans to try: write values for some of'
    )


def test_a_blank_mapping_is_searched_whole(tmp_path: Path, command: Command) -> None:
    card = [["model", "Meta-Llama-3.1-8B"], ["accelerator", H100], ["num accelerators", 8.0],
            ["global batch size", 32.0], ["tensor parallel", 2.0]]  # fmt: skip
    block = Session().call("XLPERF_SEARCH", [card, 1.0])
    asked = [name.replace("_", " ") for name in mapping_columns("training") if name != "tensor_parallel"]
    assert [str(cell) for cell in block[0]][: len(asked)] == asked
    path = sheet(tmp_path / "plan.csv", [row[0] for row in card], [[row[1] for row in card]])
    done = command("search", path, "--mapping", "--top", 1, "-o", "-")
    assert done.code == 0
    assert float(read(done.out)[0]["step_time"]) == block[1][block[0].index("step time (s)")]
    serve = sheet(tmp_path / "serve.csv", SERVE[1:7], [SERVED[0][1:7]])
    open_load = read(command("search", serve, "--mapping", "--top", 1, "-o", "-").out)[0]
    assert float(open_load["concurrency"]) > 8
    given = sheet(tmp_path / "given.csv", [*SERVE[1:7], "batch_size"], [[*SERVED[0][1:7], 4]])
    kept = read(command("search", given, "--mapping", "--top", 1, "-o", "-").out)[0]
    assert (kept["batch_size"], kept.get("concurrency", "")) == ("4", "")
    varied = read(command("search", serve, "--mapping", "--vary", "batch size=1,2", "--top", 1, "-o", "-").out)[0]
    assert varied["batch_size"] in ("1", "2")
    assert varied.get("concurrency", "") == ""


def test_all_commands_take_auto_alike(tmp_path: Path, command: Command) -> None:
    serve = sheet(tmp_path / "serve.csv", SERVE[1:7], [SERVED[0][1:7]])
    auto = sheet(tmp_path / "auto.csv", [*SERVE[1:7], "tensor parallel"], [[*SERVED[0][1:7], "auto"]])
    by_option = command("search", "--frontier", serve, "--vary", "tensor parallel=auto", "-o", "-")
    assert by_option.code == 0
    assert by_option.out == command("search", "--frontier", auto, "-o", "-").out
    assert command("search", "--frontier", serve, "--vary", "tensor parallel=1..4", "-o", "-").code == 0
    card = [list(pair) for pair in zip(SERVE[1:7], SERVED[0][1:7], strict=True)]
    block = Session().call("XLPERF_FRONTIER", [card, [["tensor parallel", "auto"]]])
    assert [row[0] for row in block[1:]] == [float(row["tensor_parallel"]) for row in read(by_option.out)]
    for name, *options in (
        ("search", "--frontier", "--points", 2), ("explain",), ("cost",), ("evaluate",), ("search",),
        ("search", "--vary", "num accelerators=8", "--target", "ttft<=1e6"), ("evaluate", "--vary", "precision=bf16"),
    ):  # fmt: skip
        refused = command(name, auto, *options, "--most", 1)
        assert refused.code == 2, name
        assert "more than 1 plans to try" in refused.err or "more than 1 (--most" in refused.err
        assert len(refused.err.splitlines()) == 1
    chosen = command("explain", auto, "-o", "-")
    assert "auto: tensor parallel" in chosen.err
    counts = sheet(tmp_path / "counts.csv", SERVE[1:7], [[*SERVED[0][1:3], "auto", *SERVED[0][4:7]]])
    few = command("search", counts, "--most-accelerators", 24, "--objective", "num accelerators")
    assert few.code == 0
    assert "least num accelerators, then most tokens per second per accelerator" in few.err
    assert "from 1 to 24 tried (powers of two, parts of a server or pod of 8 and whole ones)" in few.err
    assert "from 1 to 16 tried" in read(command("evaluate", counts, "--most-accelerators", 16).out)[0]["reason"]


@pytest.mark.slow
def test_more_than_a_million_plans_are_tried_or_refused(plans: Path, command: Command) -> None:
    many = ("--vary", "global batch size=1..1100", "--vary", "sequence length=1..1000")
    refused = command("search", plans, "--row", 1, *many)
    assert (refused.code, "1,100,000 plans, more than 1,000,000 (--most" in refused.err) == (2, True)
    refused = command("search", plans, "--row", 1, *many, "--most", 30_000_000)
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    values = {"global_batch_size": 4.0 * np.arange(1.0, 1101.0), "sequence_length": np.arange(1.0, 1001.0)}
    asked = read_plans(str(plans))[0].take([1])
    assert len(candidates(asked, load_catalog(), values, most=1_100_000).plans) == 1_100_000
