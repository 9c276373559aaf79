"""Every kind of bad cell, header, name and file has its exact line, and the command exits with 2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Outcome
from openpyxl import load_workbook
from workbook_samples import Sheets, refused, set_cell, sheets, without_column, write

from xlperf.addin.cells import read_block, read_plans_of
from xlperf.base.errors import InputError
from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.cells import ErrorValue
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.read import read_plans
from xlperf.catalog.schema import EVERY_TABLE, PLAN_TABLES

Command = Callable[..., Outcome]

UNITS_OF_BANDWIDTH = (
    "B/s, kB/s, MB/s, GB/s, TB/s, PB/s, EB/s, KiB/s, MiB/s, GiB/s, TiB/s, bit/s, kbit/s, Mbit/s, Gbit/s, Tbit/s, "
    "Pbit/s, Ebit/s"
)
BANDWIDTH = "xlperf.xlsx [accelerators!E2]: memory bandwidth must be a number above 0 (TB/s)"
YEAR = "xlperf.xlsx [accelerators!J2]: year must be a whole number from 1990 to 2100"
CELLS: list[tuple[str, Any, str]] = [
    ("accelerators!E2", "n/a", f'{BANDWIDTH}, got "n/a"'),
    ("accelerators!E2", 0, f"{BANDWIDTH}, got 0"),
    ("accelerators!E2", -3.35, f"{BANDWIDTH}, got -3.35"),
    ("accelerators!E2", 3350, "xlperf.xlsx [accelerators!E2]: memory bandwidth must be at most 250 (TB/s), got 3350"),
    ("accelerators!E2", True, f"{BANDWIDTH}, got TRUE"),
    ("accelerators!E2", "3.35", f'{BANDWIDTH}, got the text "3.35"; enter it as a number'),
    ("accelerators!E2", "inf", f'{BANDWIDTH}, got "inf"'),
    ("accelerators!E2", "#N/A", f"{BANDWIDTH}, got the error #N/A"),
    ("accelerators!E2", "#REF!", f"{BANDWIDTH}, got the error #REF!"),
    (
        "accelerators!E2",
        None,
        "xlperf.xlsx [accelerators!E2]: memory bandwidth is missing; it must be a number above 0 (TB/s)",
    ),
    (
        "accelerators!E2",
        "=2*1.7",
        "xlperf.xlsx [accelerators!E2]: memory bandwidth is a formula without a saved value; open and save it once in "
        "Excel or LibreOffice, or enter a value",
    ),
    ("accelerators!B2", None, "xlperf.xlsx [accelerators!B2]: generation is missing"),
    ("accelerators!B2", True, "xlperf.xlsx [accelerators!B2]: generation must be text, got TRUE"),
    ("accelerators!B2", "#NAME?", "xlperf.xlsx [accelerators!B2]: generation must be text, got the error #NAME?"),
    ("accelerators!J2", 2022.5, f"{YEAR}, got 2022.5"),
    ("accelerators!J2", 20, f"{YEAR}, got 20"),
    (
        "accelerators!H2",
        "guess",
        'xlperf.xlsx [accelerators!H2]: kind must be one of datasheet, measured, estimate, assumption, got "guess"',
    ),
    (
        "accelerators!G2",
        "DGX-H10",
        'xlperf.xlsx [accelerators!G2]: unknown network "DGX-H10"; did you mean DGX-H100, DGX-A100?',
    ),
    (
        "accelerators!A3",
        "h100",
        'xlperf.xlsx [accelerators!A3]: duplicate accelerator "h100"; the first is at xlperf.xlsx [accelerators!A2]\n'
        'xlperf.xlsx [prices!A3]: unknown accelerator "A100"; did you mean H100?',
    ),
    (
        "networks!B3",
        1,
        'xlperf.xlsx [networks!B3]: duplicate tier 1 of network "DGX-H100"; the first is at xlperf.xlsx [networks!B2]',
    ),
    ("networks!B3", 3, 'xlperf.xlsx [networks!B2]: network "DGX-H100" lacks tier 2; tiers count from 1 without gaps'),
    (
        "networks!C3",
        8,
        'xlperf.xlsx [networks!C3]: size of tier 2 of network "DGX-H100" must be above the 8 of tier 1, got 8',
    ),
    ("networks!E2", -1, "xlperf.xlsx [networks!E2]: latency must be a number of at least 0 (us), got -1"),
    ("models!B3", "llama2-7B", 'xlperf.xlsx [models!B3]: alias "llama2-7B" already means model "llama-2-7b"'),
    ("models!H2", "maybe", 'xlperf.xlsx [models!H2]: gated mlp must be yes or no, got "maybe"'),
    ("models!H2", 2, "xlperf.xlsx [models!H2]: gated mlp must be yes or no, got 2"),
    ("models!C2", "auto", 'xlperf.xlsx [models!C2]: num layers must be a whole number of at least 1, got "auto"'),
    ("prices!A2", "H200", 'xlperf.xlsx [prices!A2]: unknown accelerator "H200"; did you mean H100, A100?'),
    ("prices!C2", None, "xlperf.xlsx [prices!C2]: year is missing; it must be a whole number from 1990 to 2100"),
    ("calibration!G2", "fast", 'xlperf.xlsx [calibration!G2]: value must be a number, got "fast"'),
    ("calibration!B2", "gem", 'xlperf.xlsx [calibration!B2]: unknown family "gem"; did you mean gemm?'),
    (
        "calibration!H2",
        "GB",
        'xlperf.xlsx [calibration!H2]: unit of gemm launch_time cannot be "GB"; known: s, ms, us, µs, ns, ps, min, h, '
        "day, year",
    ),
    (
        "calibration!G2",
        400,
        "xlperf.xlsx [calibration!G2]: gemm launch_time must be a number from 0 to 50 (us), got 400",
    ),
    ("training!D2", 0, "xlperf.xlsx [training!D2]: num accelerators must be a whole number of at least 1, got 0"),
    ("training!E2", 2.5, "xlperf.xlsx [training!E2]: tensor parallel must be a whole number of at least 1, got 2.5"),
    ("training!B2", None, "xlperf.xlsx [training!B2]: model is missing"),
    ("training!B3", "gpt-4", 'xlperf.xlsx [training!B3]: unknown model "gpt-4"; did you mean gpt-3?'),
    ("training!C3", "H10", 'xlperf.xlsx [training!C3]: unknown accelerator "H10"; did you mean H100, A100?'),
    (
        "training!F2",
        "bf17",
        "xlperf.xlsx [training!F2]: precision must be one of fp32, tf32, fp16, bf16, fp8, fp8-current, fp8-block, "
        'mxfp8, int8, fp4, got "bf17"',
    ),
]
HEADERS: list[tuple[str, Any, str]] = [
    (
        "accelerators!E1",
        "memory bandwith (TB/s)",
        'xlperf.xlsx [accelerators]: the column "memory bandwidth (TB/s)" is missing\n'
        'xlperf.xlsx [accelerators!E1]: unknown column "memory bandwith (TB/s)"; did you mean memory bandwidth, '
        "host memory bandwidth, shared memory bandwidth?",
    ),
    (
        "accelerators!E1",
        "memory bandwidth (TBps)",
        f"xlperf.xlsx [accelerators!E1]: unknown unit (TBps) of memory bandwidth; known: {UNITS_OF_BANDWIDTH}",
    ),
    (
        "accelerators!E1",
        "memory bandwidth (GB)",
        f"xlperf.xlsx [accelerators!E1]: memory bandwidth cannot be in GB; known: {UNITS_OF_BANDWIDTH}",
    ),
    (
        "accelerators!B1",
        "generation (GB)",
        "xlperf.xlsx [accelerators!B1]: generation has no unit, the header says (GB)",
    ),
    (
        "accelerators!I1",
        "Kind",
        'xlperf.xlsx [accelerators!I1]: duplicate column "Kind"; the first is at xlperf.xlsx [accelerators!H1]',
    ),
    (
        "training!E1",
        "tensor paralel",
        'xlperf.xlsx [training!E1]: unknown column "tensor paralel"; did you mean tensor parallel, time tensor '
        "parallel, expert tensor parallel?",
    ),
]


@pytest.mark.parametrize(("address", "value", "message"), CELLS + HEADERS)
def test_bad_cell_is_named_in_its_exact_line(
    address: str, value: Any, message: str, tmp_path: Path, command: Command
) -> None:
    path = write(tmp_path / "xlperf.xlsx", set_cell(sheets(), address, value))
    outcome = command("check", path)
    assert outcome.err.rstrip("\n") == message
    assert outcome.code == 2
    assert outcome.out == ""


def test_missing_column(tmp_path: Path) -> None:
    path = write(tmp_path / "xlperf.xlsx", without_column(sheets(), "models", "num layers"))
    assert refused(load_catalog, path) == 'xlperf.xlsx [models]: the column "num layers" is missing'


def test_all_faults_of_all_sheets_come_at_once_in_reading_order(tmp_path: Path, command: Command) -> None:
    content = sheets()
    set_cell(content, "accelerators!E3", "n/a")
    set_cell(content, "accelerators!D2", -1)
    set_cell(content, "accelerators!C3", "x")
    set_cell(content, "prices!A2", "X100")
    set_cell(content, "calibration!B3", "gem")
    set_cell(content, "training!D2", None)
    outcome = command("check", write(tmp_path / "xlperf.xlsx", content))
    assert [line.split(":")[0] for line in outcome.err.splitlines()] == [
        "xlperf.xlsx [accelerators!D2]",
        "xlperf.xlsx [accelerators!C3]",
        "xlperf.xlsx [accelerators!E3]",
        "xlperf.xlsx [prices!A2]",
        "xlperf.xlsx [calibration!B3]",
        "xlperf.xlsx [training!D2]",
    ]
    assert outcome.code == 2


def test_row_below_a_table_is_not_lost_in_silence(tmp_path: Path) -> None:
    path = write(tmp_path / "xlperf.xlsx", sheets())
    book = load_workbook(path)
    book["prices"].append(["H100", 1, 2024])
    book.save(path)
    assert refused(load_catalog, path) == (
        'xlperf.xlsx [prices!A4]: row just below the table "prices" (A1:D3) is not part of it; extend the table over '
        "it, or leave a row free"
    )


def test_sheet_without_the_table_of_its_kind(tmp_path: Path) -> None:
    content = sheets()
    content["networks"] = [["some", "notes"], [1, 2]]
    path = write(tmp_path / "xlperf.xlsx", content, tables=False)
    assert refused(load_catalog, path) == (
        'xlperf.xlsx [networks]: the sheet has no table whose first header is "network"'
    )


def test_value_without_a_header(tmp_path: Path) -> None:
    content = sheets()
    set_cell(content, "training!G1", None)
    set_cell(content, "training!G2", 7)
    path = write(tmp_path / "xlperf.xlsx", content)
    assert refused(read_plans, path).startswith("xlperf.xlsx [training!G2]: a value without a header, got 7")


def test_missing_sheet(tmp_path: Path) -> None:
    path = write(tmp_path / "study.xlsx", {name: rows for name, rows in sheets().items() if name != "training"})
    assert refused(read_plans, path) == (
        'study.xlsx: there is no sheet "training" or "inference"; known: accelerators, networks, models, '
        "prices, calibration"
    )
    assert refused(lambda path: read_plans(path, sheet="price"), path) == (
        'study.xlsx: there is no sheet "price"; did you mean prices?'
    )


def test_workbook_without_any_of_the_sheets(tmp_path: Path, command: Command) -> None:
    path = write(tmp_path / "other.xlsx", {"Sheet1": [["a", "b"], [1, 2]]})
    outcome = command("check", path)
    assert (outcome.code, outcome.err) == (
        2,
        f"other.xlsx: has none of the sheets that xlperf reads: {', '.join((*EVERY_TABLE, *PLAN_TABLES))}\n",
    )


def test_plans_without_rows(tmp_path: Path) -> None:
    content = sheets()
    content["training"] = [content["training"][0], [None] * 6 + ["=1+1"]]
    path = write(tmp_path / "study.xlsx", content)
    assert refused(read_plans, path) == "study.xlsx: has no plans; fill at least one row"


# --- ranges of cells -----------------------------------------------------------------------------------------------


def test_cells_without_a_place_are_named_by_row_and_column() -> None:
    header = ["model", "accelerator", "num accelerators", "modle"]
    rows = [["a", "b", 8, None], ["a", ErrorValue("#REF!"), -1, None], [None, "b", 10**400, "red"]]
    assert refused(lambda kind: table_from_rows(kind, header, rows), "training").splitlines() == [
        'header, modle: unknown column "modle"; did you mean model, adapter modules?',
        "row 2, accelerator: accelerator must be text, got the error #REF!",
        "row 2, num accelerators: num accelerators must be a whole number of at least 1, got -1",
        "row 3, model: model is missing",
        "row 3, num accelerators: num accelerators must be a whole number of at least 1, got " + f'"1{"0" * 56}..."',
    ]


def test_faults_stay_in_their_lines_whatever_the_cells_hold(tmp_path: Path, command: Command) -> None:
    content = sheets()
    for address in ("accelerators!G2", "models!B3", "calibration!B2", "training!B3", "training!G1", "networks!E1"):
        set_cell(content, address, "a\nb\u2028c" + "d" * 500)
    outcome = command("check", write(tmp_path / "xlperf.xlsx", content))
    assert outcome.code == 2
    for line in outcome.err.splitlines():
        assert line.startswith("xlperf.xlsx [") and len(line) < 300


def test_card_names_the_value() -> None:
    card = [["model", "a"], ["accelerator", "b"], ["num accelerators", 8], ["memory", 9], ["recompute", "some"]]
    problem = refused(lambda cells: read_plans_of(read_block(cells, None)), card)
    assert problem == 'training, recompute: recompute must be one of none, selective, full, got "some"'


def test_the_sample_itself_is_fine(tmp_path: Path, command: Command) -> None:
    content: Sheets = sheets()
    outcome = command("check", write(tmp_path / "xlperf.xlsx", content))
    assert (outcome.code, outcome.err) == (0, "")


@pytest.mark.parametrize(
    ("header", "value", "line"),
    [
        ("clock rate (GHz)", 1410, "clock rate must be at most 20 (GHz), got 1410"),
        ("clock rate (MHz)", 1.7e6, "clock rate must be at most 20000 (MHz), got 1700000"),
        ("peak flop rate bf16", 989_000, "peak flop rate bf16 must be at most 300000 (TFLOP/s), got 989000"),
        ("memory capacity", 81_920, "memory capacity must be at most 16384 (GiB), got 81920"),
        ("thermal design power", 700_000, "thermal design power must be at most 50000 (W), got 700000"),
        ("memory energy", 4200, "memory energy must be at most 200 (pJ/bit), got 4200"),
    ],
)
def test_a_unit_that_is_off_by_a_thousand_is_refused(header: str, value: float, line: str) -> None:
    head = [
        "accelerator",
        "generation",
        "peak flop rate bf16",
        "memory capacity",
        "memory bandwidth",
        "thermal design power",
    ]
    row: list[object] = ["X", "hopper", 989, 80, 3.35, 700]
    if header in head:
        row[head.index(header)] = value
    else:
        head, row = [*head, header], [*row, value]
    with pytest.raises(InputError) as error:
        table_from_rows("accelerators", [*head, "source", "year"], [[*row, "a test", 2024]])
    assert [fault.problem for fault in error.value.faults] == [line]
