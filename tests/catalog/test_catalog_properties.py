"""What holds for any header, value, table and byte: found by random examples, the same ones each time."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import show
from hypothesis import example, given, settings
from hypothesis import strategies as st
from work import examples
from workbook_samples import sheets, write

from xlperf.base.errors import InputError
from xlperf.base.units import UNITS
from xlperf.catalog.cells import parse_header
from xlperf.catalog.parse import parse_rows, table_from_columns, table_from_rows
from xlperf.catalog.read import read_catalog_tables, read_plans
from xlperf.catalog.schema import CATALOG_TABLES, PLAN_TABLES, Column, known_units, schema, unit_of

NUMBERS = [
    column for kind in (*CATALOG_TABLES, *PLAN_TABLES) for column in schema()[kind].columns if column.kind == "number"
]
CELLS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["auto", "#N/A", "yes", "1", "nan", "1e400", " ", "=1", "H100"]),
)
HEADERS = st.one_of(
    st.sampled_from([column.header for kind in PLAN_TABLES for column in schema()[kind].columns]),
    st.text(max_size=12),
    st.none(),
    st.floats(),
)


@st.composite
def spelled(draw: st.DrawFn, column: Column) -> str:
    """A header of a column in some spelling, without its unit."""
    words = column.name.split("_")
    joined = draw(st.sampled_from(["_", " ", "  ", "-", "_ "])).join(words)
    return draw(st.sampled_from([str.lower, str.upper, str.title]))(f"{draw(st.sampled_from(['', ' ']))}{joined}")


@given(st.data())
def test_a_header_in_any_spelling_and_unit_gives_the_same_value(data: st.DataObject) -> None:
    column = data.draw(st.sampled_from(NUMBERS))
    symbol = data.draw(st.sampled_from(known_units(unit_of(column).dimension)))
    header = f"{data.draw(spelled(column))}{data.draw(st.sampled_from([' ', '', chr(10)]))}({symbol})"
    (field,) = parse_header(column.table, [header]).fields
    assert field.column is column
    assert field.factor == UNITS[symbol].factor
    low, high, _ = column.limits
    inside = unit_of(column).factor * data.draw(st.floats(max(low, 1.0), min(high, 1e6)))
    inside = float(math.ceil(inside)) if field.whole else inside
    table, _ = parse_rows(column.table, [header], [[inside / field.factor]], lambda row, position: "")
    value = float(table[column.name][0])
    assert (
        math.isnan(value)
        if field.whole and inside / field.factor * field.factor != inside
        else math.isclose(value, inside, rel_tol=1e-15)
    )


@given(st.data())
def test_a_unit_of_another_dimension_is_refused(data: st.DataObject) -> None:
    column = data.draw(st.sampled_from(NUMBERS))
    symbol = data.draw(st.sampled_from([s for s, unit in UNITS.items() if unit.dimension != unit_of(column).dimension]))
    parsed = parse_header(column.table, [f"{column.name} ({symbol})"])
    assert parsed.fields == ()
    assert any(f"cannot be in {symbol}; known: " in fault.problem for fault in parsed.faults)


@given(st.lists(HEADERS, max_size=6), st.lists(st.lists(CELLS, max_size=7), max_size=4), st.sampled_from(PLAN_TABLES))
@settings(max_examples=examples(50))
def test_any_cells_give_a_table_or_faults_with_places(header: list[Any], rows: list[list[Any]], kind: str) -> None:
    table, faults = parse_rows(kind, header, rows, lambda row, position: f"<{row},{position}>")
    for name, values in table.columns.items():
        column = table.schema.by_name[name]
        assert values.dtype == (object if column.is_text else np.float64)
        if column.kind == "choice":
            assert set(values) <= {"", *column.choices}
        if not column.is_text:
            assert not np.isinf(values).any()
    for fault in faults:
        assert fault.place.startswith("<") and fault.problem
        assert len(str(fault).splitlines()) == 1


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(1e-3, 1e12), st.booleans()), min_size=1, max_size=20))
def test_text_numbers_and_cells_of_a_table_are_the_same_bits(rows: list[tuple[int, float, bool]]) -> None:
    names = ["num accelerators", "request rate", "data parallel attention"]
    others: dict[str, Any] = {"model": "m", "accelerator": "a", "prompt length": 7, "output length": 8}
    cells = [[count, rate, 1, *others.values()] for count, rate, _ in rows]
    header = [*names, *others]
    table = table_from_rows("inference", header, cells)
    as_text = {name: np.array([str(row[at]) for row in cells], dtype=object) for at, name in enumerate(header)}
    again = table_from_columns("inference", as_text)
    as_numbers = {
        name: np.array([row[at] for row in cells], dtype=object if name in ("model", "accelerator") else float)
        for at, name in enumerate(header)
    }
    third = table_from_columns("inference", as_numbers)
    for name in table.columns:
        np.testing.assert_array_equal(table[name], again[name])
        np.testing.assert_array_equal(table[name], third[name])


@given(
    rows=st.lists(
        st.tuples(
            st.text("abcXYZ019 -._äß", min_size=1, max_size=12).filter(str.strip),
            st.integers(1, 10**14),
            st.sampled_from([True, False, None, "yes", "NO"]),
        ),
        min_size=1,
        max_size=6,
        unique_by=lambda row: row[0].strip().casefold(),
    )
)
@settings(max_examples=15)
def test_what_is_written_is_read_and_shown(rows: list[tuple[str, int, Any]], tmp_path_factory: Any) -> None:
    path: Path = tmp_path_factory.mktemp("properties") / "study.xlsx"
    content = {
        "models": [
            sheets()["models"][0],
            *([name, None, 1, size, 1, 1, 1, flag, None, None] for name, size, flag in rows),
        ]
    }
    content["models"][0][3] = "hidden size"
    write(path, content)
    (table,), faults = read_catalog_tables(path, required=False)
    assert not faults
    assert table["model"].tolist() == [name.strip() for name, _, _ in rows]
    assert table["hidden_size"].tolist() == [row[3] for row in content["models"][1:]]
    lines = show(path).splitlines()
    assert len(lines) == len(rows) + 2
    for line, row in zip(lines[2:], content["models"][1:], strict=True):
        cells = line.split("\t")
        assert cells[0] == row[0]
        assert float(cells[3]) == row[3]


@given(st.binary(max_size=200))
@example(b"PK\x05\x06" + bytes(18))
@example(b'model,accelerator,num_accelerators\n"a')
@settings(max_examples=examples(60))
def test_any_bytes_are_refused_in_whole_lines(content: bytes) -> None:
    path = Path(_folder / "plans.csv"), Path(_folder / "plans.xlsx")
    for one in path:
        one.write_bytes(content)
        with pytest.raises(InputError) as caught:
            read_plans(one)
        for fault in caught.value.faults:
            assert fault.place and fault.problem
            assert len(str(fault).splitlines()) == 1


@given(st.data())
@settings(max_examples=examples(40))
def test_a_workbook_with_flipped_bytes_is_read_or_refused(data: st.DataObject) -> None:
    path = _folder / "flipped.xlsx"
    content = bytearray(_intact())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(content))
    try:
        show(path)
        read_plans(path)
    except InputError as error:
        assert error.faults


@pytest.fixture(autouse=True, scope="module")
def _own_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    global _folder, _bytes
    _folder = tmp_path_factory.mktemp("bytes")
    _bytes = write(_folder / "intact.xlsx", sheets()).read_bytes()


_folder = Path()
_bytes = b""


def _intact() -> bytes:
    return _bytes
