"""Worksheet functions: the registry, arguments as hosts send them, errors, catalogs by handle, one evaluation."""

from __future__ import annotations

import keyword
import os
import re

import pytest
from fake_engine import FakeEngine

from xlperf.addin.answers import ANSWERS, equations
from xlperf.addin.cells import CellError
from xlperf.addin.functions import functions
from xlperf.addin.handles import CatalogStore, UnknownHandleError, content_of, handle_of
from xlperf.addin.worker import READERS, Session
from xlperf.base.units import UNITS
from xlperf.catalog.schema import EVERY_TABLE, PLAN_TABLES, results_of, schema
from xlperf.cli import run

HEADER = ["name", "model", "accelerator", "num_accelerators", "tensor parallel"]
ROW = ["a", "M", "A", 8.0, 2.0]
INFERENCE_HEADER = ["model", "accelerator", "num accelerators", "prompt length", "output length"]
INFERENCE_ROW = ["M", "A", 8.0, 100.0, 20.0]
ACCELERATORS = [
    ["accelerator", "generation", "peak FLOP rate BF16 (TFLOP/s)", "memory capacity (GiB)", "memory bandwidth (TB/s)",
     "thermal design power (W)"],
    ["A", "x", 100.0, 80.0, 2.0, 400.0],
]  # fmt: skip


@pytest.fixture
def engine():
    return FakeEngine()


@pytest.fixture
def session(tmp_path, engine):
    return Session(CatalogStore(tmp_path / "catalogs"), engine)


def one(block):
    assert len(block) == 1
    assert len(block[0]) == 1
    return block[0][0]


# --- the registry


def test_every_result_is_a_function():
    names = {column.name for kind in PLAN_TABLES for column in results_of(kind).columns}
    assert {function.result for function in functions().values() if function.answer == "value"} == names
    for name in names:
        assert f"XLPERF_{name.upper()}" in functions()


def test_the_registry_and_the_session_know_the_same_words():
    registry = functions().values()
    arguments = [argument for function in registry for argument in function.arguments]
    assert {function.answer for function in registry} == {*ANSWERS, "equation", "value"}
    assert {argument.kind for argument in arguments} == set(READERS)
    assert {function.name for function in registry if function.answer == "equation"} == set(equations())
    for argument in arguments:
        if argument.kind == "number":
            low, high, _ = argument.limits
            assert low < high
            assert argument.unit in UNITS
            assert argument.optional == bool(argument.default)
        elif argument.kind == "choice":
            assert argument.default in argument.choices
        elif argument.kind == "tables":
            assert all(table in argument.doc for table in EVERY_TABLE)
    for function in registry:
        if function.answer == "quantity":
            assert function.result == "" or function.result in results_of(function.rows).by_name
        if "rows" in {argument.kind for argument in function.arguments}:
            assert function.rows in ("plan", "plans", *schema())


def test_functions_that_the_design_names():
    named = (
        "XLPERF_CATALOG XLPERF_STEP_TIME XLPERF_MEMORY XLPERF_MFU XLPERF_TTFT XLPERF_TPOT"
        " XLPERF_COST_PER_MILLION_TOKENS XLPERF_TRAINING XLPERF_INFERENCE XLPERF_EXPLAIN XLPERF_CHECK"
    )
    assert set(named.split()) <= set(functions())


def test_a_wizard_lists_twelve_functions_first():
    listed: dict[str, list[str]] = {}
    for name, function in functions().items():
        listed.setdefault(function.category, []).append(name)
    assert sorted(listed) == ["xlperf", "xlperf analysis", "xlperf cost", "xlperf results"]
    assert len(listed["xlperf"]) == 12 and {"XLPERF", "XLPERF_SERVE", "XLPERF_CHECK"} < set(listed["xlperf"])
    results = {name for name, function in functions().items() if function.answer == "value"}
    assert set(listed["xlperf results"]) == results


VBA_WORDS = set(
    """
    and as boolean byref byte byval call case const currency date debug declare default dim do double
    each else empty end enum error event exit false for friend function get global goto if in integer is
    let like long loop me mod name new next not nothing null object on option optional or paramarray
    preserve print private property public redim rem resume return select set single static step stop
    string sub then to true type until variant wend while with write xor caller
    """.split()
)


@pytest.mark.parametrize("function", functions().values(), ids=lambda function: function.name)
def test_names_and_texts_are_legal_in_every_host(function):
    assert re.fullmatch(r"XLPERF(_[A-Z]+)*", function.name)
    assert len(function.doc) <= 255  # what Excel's function wizard takes
    assert function.doc.endswith(".")
    if function.answer == "value":
        assert re.search(r"\[.+\]", function.doc), "a value says its unit"
    optional = [argument.optional for argument in function.arguments]
    assert optional == sorted(optional), "optional arguments come last"
    for argument in function.arguments:
        assert re.fullmatch(r"[a-z]+", argument.name)
        assert argument.name not in VBA_WORDS
        assert not keyword.iskeyword(argument.name)
        assert 0 < len(argument.doc) <= 255
        assert argument.doc.endswith(".")


def test_units_of_both_kinds_are_said_where_they_differ():
    assert functions()["XLPERF_TIME_OVERHEAD"].doc.count("[") == 2
    assert "[ms]" in functions()["XLPERF_TTFT"].doc


# --- three ways to give a plan


def test_card_table_and_row_with_header_are_one_plan(session, engine):
    card = [[name, value] for name, value in zip(HEADER, ROW, strict=True)]
    assert one(session.call("XLPERF_STEP_TIME", [card])) == 0.125
    assert one(session.call("XLPERF_STEP_TIME", [[HEADER, ROW]])) == 0.125
    assert one(session.call("XLPERF_STEP_TIME", [[ROW], None, [HEADER]])) == 0.125
    assert engine.evaluated == [1], "one plan, one evaluation"


def test_rows_as_tuples_and_blanks_as_libreoffice_sends_them(session):
    rows = (tuple(HEADER), tuple(ROW), ("", "", "", "", ""))
    assert one(session.call("XLPERF_STEP_TIME", [rows, 0.0, 0.0])) == 0.125


def test_table_gives_one_result_per_plan(session, engine):
    table = [HEADER, ROW, ["b", "M", "A", 4.0, None], [None] * 5, ["c", "M", "A", 2.0, 1.0], [None] * 5]
    assert session.call("XLPERF_STEP_TIME", [table]) == [[0.125], [0.25], [""], [0.5]]
    assert session.call("XLPERF_MEMORY", [table]) == [[8.0], [4.0], [""], [2.0]]
    assert engine.evaluated == [3]


def test_a_plan_whose_inputs_are_blank_is_blank_even_beside_results(session):
    header = [*HEADER, "step time (s)"]
    table = [header, [*ROW, 1.0], [None, None, None, None, None, "#N/A"], [*ROW, 1.0]]
    assert session.call("XLPERF_STEP_TIME", [table]) == [[0.125], [""], [0.125]]


def test_a_blank_row_is_a_blank_cell(session):
    assert one(session.call("XLPERF_STEP_TIME", [[["", "", "", "", ""]], None, [HEADER]])) == ""


def test_display_units_and_flags(session):
    assert one(session.call("XLPERF_MEMORY", [[HEADER, ROW]])) == 8.0  # GiB
    assert one(session.call("XLPERF_FITS", [[HEADER, ROW]])) is True
    assert one(session.call("XLPERF_TTFT", [[INFERENCE_HEADER, INFERENCE_ROW]])) == 8.0  # ms
    assert one(session.call("XLPERF_BOUND", [[INFERENCE_HEADER, INFERENCE_ROW]])) == "memory"


def test_cost_of_an_inference_plan_is_all_of_it_over_its_output_tokens(session):
    table = [INFERENCE_HEADER, INFERENCE_ROW]
    both = [one(session.call(f"XLPERF_COST_PER_MILLION_{which}", [table]))
            for which in ("TOKENS", "OUTPUT_TOKENS_ALL_IN")]  # fmt: skip
    assert both[0] == both[1] == pytest.approx(8.0)


# --- errors


def test_illegal_plan_is_not_available_and_check_says_why(session):
    table = [HEADER, ["a", "M", "A", 7.0, 1.0], ROW]
    assert session.call("XLPERF_STEP_TIME", [table]) == [[CellError("#N/A", "7 is odd")], [0.125]]
    assert session.call("XLPERF_CHECK", [table]) == [["7 is odd"], ["ok"]]


def test_a_bad_cell_is_an_error_in_its_own_row(session):
    table = [HEADER, ROW, ["b", "M", "A", "many", 1.0], ["c", "?", "A", 4.0, 1.0], ROW]
    values = [row[0] for row in session.call("XLPERF_STEP_TIME", [table])]
    assert values[0] == values[3] == 0.125
    assert [value.code for value in values[1:3]] == ["#VALUE!", "#VALUE!"]
    words = [row[0] for row in session.call("XLPERF_CHECK", [table])]
    assert (
        words[1] == 'training "b", num accelerators: num accelerators must be a whole number of at least 1, got "many"'
    )
    assert words[2] == 'training "c", model: unknown model "?"'
    assert words[0] == words[3] == "ok"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([None], "#VALUE!", "the plan is empty; a range of another workbook is read only while that workbook is open"),
        ([[HEADER]], "#VALUE!", "there is no plan below the header row; give header if it stands elsewhere"),
        ([[ROW], None, [HEADER[:3]]], "#VALUE!", "the plan has 5 columns, its header 3"),
        ([[ROW], None, [HEADER, ROW]], "#VALUE!", "header must be one row, got 2"),
        ([[HEADER, ROW], "A100"], "#VALUE!", 'catalog must be what XLPERF_CATALOG returned, got "A100"'),
        ([[HEADER, ROW], None, None, 1.0], "#VALUE!", "XLPERF_STEP_TIME has 3 arguments, got 4"),
        (
            [[HEADER[1:], [*ROW[1:-1], 0.5]]],
            "#VALUE!",
            "training, tensor parallel: tensor parallel must be a whole number of at least 1, got 0.5",
        ),
        (
            [[["model", "M"], ["accelerator", "A"]]],
            "#VALUE!",
            'training header: the column "num accelerators" is missing',
        ),
    ],
)
def test_bad_arguments(session, arguments, code, words):
    assert one(session.call("XLPERF_STEP_TIME", arguments)) == CellError(code, words)


def test_unknown_column_is_named_by_every_function(session):
    table = [[*HEADER, "tensor paralel"], [*ROW, 1.0]]
    error = one(session.call("XLPERF_STEP_TIME", [table]))
    assert error.code == "#VALUE!"
    assert 'unknown column "tensor paralel"; did you mean tensor parallel' in error.message
    assert one(session.call("XLPERF_CHECK", [table])) == error.message


def test_result_of_the_other_kind_of_plan(session):
    assert one(session.call("XLPERF_TTFT", [[HEADER, ROW]])).message == (
        "ttft is no result of training plans, and this is one, as it has no prompt length"
    )


def test_unknown_function_asks_for_an_install(session):
    error = one(session.call("XLPERF_NONSENSE", []))
    assert error == CellError("#NAME?", "unknown function XLPERF_NONSENSE; run `xlperf install` again")


def test_a_bug_is_an_error_value_and_not_the_end(session, engine, capsys):
    engine.evaluate = lambda plans, catalog, results: 1 / 0
    error = one(session.call("XLPERF_STEP_TIME", [[HEADER, ROW]]))
    assert error.code == "#VALUE!"
    assert "ZeroDivisionError" in error.message
    assert "Traceback" in capsys.readouterr().err


# --- blocks


def test_block_of_results(session):
    block = session.call("XLPERF_TRAINING", [[HEADER, ROW, ["b", "M", "A", 7.0, 1.0]]])
    schema = results_of("training")
    assert block[0] == [column.header for column in schema.columns]
    assert len(block) == 3
    place = [column.name for column in schema.columns].index("step_time")
    assert block[1][place] == 0.125
    assert block[2][place] == CellError("#N/A", "7 is odd")


def test_block_of_chosen_results(session):
    block = session.call("XLPERF_TRAINING", [[HEADER, ROW], "name, Step time (s),fits"])
    assert block == [["name", "step time (s)", "fits"], ["a", 0.125, True]]
    block = session.call("XLPERF_TRAINING", [[HEADER, ROW], [["step_time"], ["memory"], [""]]])
    assert block == [["step time (s)", "memory (GiB)"], [0.125, 8.0]]
    error = one(session.call("XLPERF_TRAINING", [[HEADER, ROW], "step time, mfuu"]))
    assert error.message == 'results: unknown result "mfuu"; did you mean mfu, mfu causal, hfu?'


def test_block_of_the_other_kind(session):
    error = one(session.call("XLPERF_INFERENCE", [[HEADER, ROW]]))
    assert error.message == "these are training plans, XLPERF_INFERENCE takes inference plans; use XLPERF_TRAINING"


def test_explain_shows_operators_with_units(session):
    block = session.call("XLPERF_EXPLAIN", [[HEADER, ROW]])
    assert block == [["operator", "k", "time (us)"], ["qkv", 4.0, 2.0], ["norm", "", 3.0]]
    assert one(session.call("XLPERF_EXPLAIN", [[HEADER, ROW, ROW]])).message == "XLPERF_EXPLAIN takes one plan, got 2"


# --- catalogs


def with_bandwidth(bandwidth):
    rows = [list(row) for row in ACCELERATORS]
    rows[1][4] = bandwidth
    return rows


def test_an_edit_in_a_table_changes_the_handle_and_the_results(session):
    slow = one(session.call("XLPERF_CATALOG", [with_bandwidth(2.0)]))
    fast = one(session.call("XLPERF_CATALOG", [with_bandwidth(4.0)]))
    assert re.fullmatch(r"xlperf:[0-9a-f]{24}", slow)
    assert slow != fast
    assert slow == one(session.call("XLPERF_CATALOG", [tuple(map(tuple, with_bandwidth(2.0)))]))
    assert slow == one(session.call("XLPERF_CATALOG", [[*with_bandwidth(2), ["", "", None, "", "", ""]]])), "as Excel"
    times = [one(session.call("XLPERF_STEP_TIME", [[HEADER, ROW], handle])) for handle in ("", slow, fast, [[slow]])]
    assert times == [0.125, 0.0625, 0.03125, 0.0625]


def test_a_handle_survives_a_restart(session, tmp_path):
    handle = one(session.call("XLPERF_CATALOG", [with_bandwidth(2.0)]))
    again = Session(CatalogStore(tmp_path / "catalogs"), FakeEngine())
    assert one(again.call("XLPERF_STEP_TIME", [[HEADER, ROW], handle])) == 0.0625


def test_an_unknown_handle_says_recalculate_all(session):
    handle = "xlperf:" + "0" * 24
    error = one(session.call("XLPERF_STEP_TIME", [[HEADER, ROW], handle]))
    assert error.code == "#REF!"
    assert "recalculate all" in error.message
    assert "recalculate all" in one(session.call("XLPERF_CHECK", [[HEADER, ROW], handle]))


def test_bad_tables(session, tmp_path):
    broken = with_bandwidth("fast")
    error = one(session.call("XLPERF_CATALOG", [broken]))
    assert error.code == "#VALUE!"
    expected = 'accelerators "A", memory bandwidth: memory bandwidth must be a number above 0 (TB/s), got "fast"'
    assert error.message == expected
    assert one(session.call("XLPERF_CHECK", [broken])) == expected
    assert one(session.call("XLPERF_CHECK", [ACCELERATORS])) == "ok"
    assert not (tmp_path / "catalogs").exists(), "what cannot be read is not kept"
    assert "at least one table" in one(session.call("XLPERF_CATALOG", [])).message
    assert "two tables of accelerators" in one(session.call("XLPERF_CATALOG", [ACCELERATORS, ACCELERATORS])).message
    assert "got a table of plans" in one(session.call("XLPERF_CATALOG", [[HEADER, ROW]])).message


def test_store_is_bounded_and_forgets_what_was_used_least_recently(tmp_path):
    store = CatalogStore(tmp_path, most_files=3)
    handles = [store.put([[["accelerator"], [f"A{number}"]]]) for number in range(3)]
    for age, handle in enumerate(handles):
        os.utime(tmp_path / (handle.split(":")[1] + ".json"), (1000 - age, 1000 - age))
    store.get(handles[2])
    newest = store.put([[["accelerator"], ["B"]]])
    assert len(list(tmp_path.iterdir())) == 3
    assert store.get(handles[2]) == [[["accelerator"], ["A2"]]]
    assert store.get(handles[0])
    assert store.get(newest)
    with pytest.raises(UnknownHandleError):
        store.get(handles[1])


def test_store_is_bounded_in_bytes(tmp_path):
    store = CatalogStore(tmp_path, most_bytes=1000)
    for number in range(5):
        newest = store.put([[["accelerator"], [f"{number}" * 400]]])
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1000
    assert store.get(newest)


def test_a_changed_file_in_the_store_is_not_believed(tmp_path):
    store = CatalogStore(tmp_path)
    handle = store.put([ACCELERATORS])
    path = tmp_path / (handle.split(":")[1] + ".json")
    path.write_bytes(path.read_bytes().replace(b"400", b"401"))
    with pytest.raises(UnknownHandleError):
        store.get(handle)


@pytest.mark.parametrize("handle", ["xlperf:../../../../etc/passwd", "xlperf:", "xlperf:" + "g" * 24, "x"])
def test_a_handle_is_no_path(tmp_path, handle):
    with pytest.raises(UnknownHandleError):
        CatalogStore(tmp_path).get(handle)


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    handle = CatalogStore(tmp_path / "file").put([ACCELERATORS])
    assert handle == handle_of(content_of([ACCELERATORS]))


def test_floats_are_kept_to_the_last_bit(tmp_path):
    values = [0.1, 1 / 3, 5e-324, 1.7976931348623157e308, 2.0**53 + 2, -0.0]
    store = CatalogStore(tmp_path)
    kept = store.get(store.put([[values]]))[0][0]
    assert [value.hex() for value in kept] == [value.hex() for value in values]


# --- one evaluation


def test_evaluations_are_shared_and_bounded(session, engine, monkeypatch):
    for name in ("XLPERF_STEP_TIME", "XLPERF_MEMORY", "XLPERF_FITS", "XLPERF_CHECK", "XLPERF_TRAINING"):
        session.call(name, [[HEADER, ROW]])
    assert engine.evaluated == [1, 1], "once for the first result, once for all"
    monkeypatch.setattr("xlperf.addin.cells.MOST_CACHED_ROWS", 2)
    for count in (1.0, 2.0, 3.0):
        session.call("XLPERF_STEP_TIME", [[HEADER, ["a", "M", "A", count, 1.0]]])
    session.call("XLPERF_STEP_TIME", [[HEADER, ["a", "M", "A", 3.0, 1.0]]])
    assert engine.evaluated == [1, 1, 1, 1, 1]
    session.call("XLPERF_STEP_TIME", [[HEADER, ROW]])
    assert len(engine.evaluated) == 6, "forgotten, so evaluated again"


def test_a_cell_computes_what_it_shows_and_a_second_function_all(session, engine, monkeypatch):
    asked = []
    evaluate = engine.evaluate
    monkeypatch.setattr(
        engine, "evaluate", lambda plans, catalog, results: asked.append(results) or evaluate(plans, catalog)
    )
    for count in (1.0, 2.0):
        session.call("XLPERF_STEP_TIME", [[HEADER, ["a", "M", "A", count, 1.0]]])
    assert asked == [{"step_time"}, {"step_time"}]
    for count in (2.0, 3.0):
        session.call("XLPERF_CHECK", [[HEADER, ["a", "M", "A", count, 1.0]]])
        session.call("XLPERF_STEP_TIME", [[HEADER, ["a", "M", "A", count, 1.0]]])
    assert asked[2:] == [None, None]


def test_after_an_edit_of_the_catalog_the_plans_of_a_sheet_are_evaluated_together(session, engine):
    rows = [["a", "M", "A", count, 1.0] for count in (1.0, 2.0, 7.0, 4.0)] + [["b", "?", "A", 1.0, 1.0]]
    before = [one(session.call("XLPERF_STEP_TIME", [[row], "", [HEADER]])) for row in rows]
    assert engine.evaluated == [1, 1, 1, 1, 1]
    handle = one(session.call("XLPERF_CATALOG", [with_bandwidth(2.0)]))
    after = [one(session.call("XLPERF_STEP_TIME", [[row], handle, [HEADER]])) for row in rows]
    assert before[:2] + before[3:4] == [1.0, 0.5, 0.25]
    assert after[:2] + after[3:4] == [0.5, 0.25, 0.125]
    assert after[2] == before[2] == CellError("#N/A", "7 is odd")
    assert after[4] == before[4] == CellError("#VALUE!", 'training "b", model: unknown model "?"')
    assert engine.evaluated[5:] == [5, 4, 1], "the first cell brought the others along; the faulty one is asked alone"


def test_plans_beside_one_are_evaluated_with_it_and_shown_as_by_a_call_of_their_own(session, engine):
    others = [["a", "M", "A", count, 1.0] for count in (1.0, 2.0, 7.0)]
    alone = [["b", "?", "A", 1.0, 1.0], ["c", "M", "A", "auto", 1.0], [None] * 5, ["d", "M", "A", "many", 1.0]]
    for name in ("XLPERF_STEP_TIME", "XLPERF_MFU", "XLPERF_CHECK"):
        arguments = [[others[0]], None, [HEADER]]
        cells = session.others(name, arguments, [*alone, *others])
        assert cells == [None] * 4 + [one(session.call(name, [[row], None, [HEADER]])) for row in others]
    assert engine.evaluated == [4, 3, 4, 3, 1], "the sound ones twice at most; the unknown model each time"
    assert session.others("XLPERF_TRAINING", [[others[0]], None, [HEADER]], others) == [None] * 3
    assert session.others("XLPERF_MFU", [[others[0]], "no handle", [HEADER]], others) == [None] * 3
    assert session.others("XLPERF_MFU", [[others[0]], None, [["no such column"] * 5]], others) == [None] * 3


def test_true_is_not_one(session):
    session.call("XLPERF_STEP_TIME", [[HEADER, ["a", "M", "A", 1.0, 1.0]]])
    error = one(session.call("XLPERF_STEP_TIME", [[HEADER, ["a", "M", "A", True, 1.0]]]))
    assert error.code == "#VALUE!"


def test_the_command_lists_every_function_and_its_arguments(capsys):
    assert run(["install", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("(")[0] for line in lines] == list(functions())
    assert run(["install", "--list", "step time"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("XLPERF_STEP_TIME(plan, [catalog], [header])\n") and "  header: " in shown
    assert run(["install", "--list", "no such name"]) == 2
    assert capsys.readouterr().err == '"no such name": is in the name of no function; xlperf install --list lists all\n'
