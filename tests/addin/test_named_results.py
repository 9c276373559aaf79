"""XLPERF(plan, "step time"): results by their names, in the unit of the header or the one that a cell names."""

from __future__ import annotations

import pytest

from xlperf.addin.functions import example_ranges, functions
from xlperf.addin.worker import Session
from xlperf.catalog.schema import PLAN_TABLES, results_of


@pytest.fixture(scope="module")
def session():
    return Session()


def plan(kind):
    return [list(row) for row in example_ranges()[kind]]


@pytest.mark.parametrize("kind", PLAN_TABLES)
def test_every_result_has_the_value_of_its_own_function(session, kind):
    names = [column.name for column in results_of(kind).columns]
    together = session.call("XLPERF", [plan(kind), ", ".join(names).replace("_", " ")])
    alone = [session.call(f"XLPERF_{name.upper()}", [plan(kind)])[0][0] for name in names]
    assert together == [alone]


def test_units_that_a_name_states_are_those_of_the_cell(session):
    seconds, milliseconds = session.call("XLPERF", [plan("training"), "step time, Step_Time (ms)"])[0]
    assert (
        milliseconds == pytest.approx(1000.0 * seconds)
        and seconds == session.call("XLPERF_STEP_TIME", [plan("training")])[0][0]
    )
    gibibytes, gigabytes = session.call("XLPERF", [plan("inference"), "memory (GiB),memory (GB)"])[0]
    assert gigabytes == pytest.approx(gibibytes * 2**30 / 10**9)


def test_rows_of_a_table_and_names_in_cells(session):
    header, row = map(list, zip(*plan("training"), strict=True))
    other = [128.0 if name == "num accelerators" else cell for name, cell in zip(header, row, strict=True)]
    block = session.call("XLPERF", [[row, other], [["mfu", "tensor parallel"]], None, [header]])
    single = session.call("XLPERF_MFU", [[row, other], None, [header]])
    assert block == [[*mfu, 8.0] for mfu in single]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("step tme", 'unknown result "step tme"; did you mean'),
        ("step time (GB)", '"step time (GB)": step time (s) has no unit GB'),
        ("fits (s)", '"fits (s)": fits has no unit s'),
        ("ttft", 'unknown result "ttft"'),
        (None, "result is missing; name one"),
    ],
)
def test_a_bad_name_is_an_error_that_check_explains(name, words):
    session = Session()
    (cell,) = session.call("XLPERF", [plan("training"), name])[0]
    assert cell.code == "#VALUE!" and words in cell.message
    assert words in session.call("XLPERF_CHECK", [plan("training")])[0][0]


def test_it_is_in_the_registry_of_all_hosts():
    assert functions()["XLPERF"].call == "XLPERF(plan, result, [catalog], [header])"
