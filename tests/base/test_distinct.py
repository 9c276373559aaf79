"""Distinct values and rows: the same groups as comparison of every pair finds, for any columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlperf.base.arrays import coded, combined, distinct_rows, is_repeated, mapped, repeated, taken

NUMBERS = st.sampled_from([0.0, 1.0, 2.0, 7.0, 0.5, 1e9, -3.0, float("nan")])
COLUMNS = st.integers(0, 80).flatmap(
    lambda rows: st.lists(st.lists(NUMBERS, min_size=rows, max_size=rows), min_size=1, max_size=6)
)


def keys(columns: list[list[float]]) -> list[tuple[Any, ...]]:
    return [tuple("nan" if value != value else value for value in row) for row in zip(*columns, strict=True)]


@given(COLUMNS)
def test_rows_have_one_number_if_they_are_equal(columns: list[list[float]]) -> None:
    arrays, rows = [np.array(column, dtype=np.float64) for column in columns], keys(columns)
    for codes in (combined(arrays, len(rows)), distinct_rows(*arrays)[1]):
        assert len(set(codes.tolist())) == len(set(rows)) == len(set(zip(rows, codes.tolist(), strict=True)))
    first, which = distinct_rows(*arrays)
    assert [rows[at] for at in first[which].tolist()] == rows
    assert first.tolist() == [rows.index(rows[at]) for at in first.tolist()]


@pytest.mark.parametrize("number", [0, 1, 3, 100])
def test_a_repeated_column_is_what_it_is_as_an_array(number: int) -> None:
    column, rows = repeated("a", number, object), np.arange(number)[::-1]
    assert column.tolist() == ["a"] * number
    assert coded(column)[1] == min(number, 1)
    assert mapped({"a": 2.0}.__getitem__, column, float).tolist() == [2.0] * number
    assert taken(column, rows).tolist() == column.tolist()
    assert taken(column, np.zeros(number, dtype=bool)).tolist() == []
    assert is_repeated(column) == (number == 100)
