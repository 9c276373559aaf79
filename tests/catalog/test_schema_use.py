"""No column without a use: what the schema declares is read or written by code, and results have what it declares."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import xlperf
from xlperf.base.resources import table, workbook
from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.read import read_plans
from xlperf.catalog.schema import EVERY_TABLE, MEASURED, PLAN_TABLES, results_of, schema
from xlperf.engine import evaluate

FOR_READERS = {"vendor", "links_per_peer"}
"""Columns that people write for people: nothing follows from them."""


@cache
def words_of_the_code() -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
    """Names, attributes, keywords and strings of the package, and patterns of what f-strings may say."""
    words = set(re.findall(r"\w+", table("workbook/front_words.csv").read_text(encoding="utf-8")))
    patterns: set[str] = set()
    for path in sorted(Path(xlperf.__file__).parent.rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if id(node) in docstrings:
                continue
            if isinstance(node, ast.Attribute):
                words.add(node.attr)
            elif isinstance(node, (ast.keyword, ast.arg)):
                words.add(node.arg or "")
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                words.add(node.target.id)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value:
                words.update(re.findall(r"\w+", node.value))
            elif isinstance(node, ast.JoinedStr):
                parts = [re.escape(str(one.value)) if isinstance(one, ast.Constant) else "" for one in node.values]
                if any(len(part) >= 3 for part in parts) and not re.search(r"\\ |\\\(|:", "".join(parts)):
                    patterns.add(r"\w+".join(parts) if "" in parts else "".join(parts))
    return frozenset(words), tuple(map(re.compile, sorted(patterns)))


@pytest.mark.parametrize("table", schema())
def test_every_column_is_read_or_written(table: str) -> None:
    words, patterns = words_of_the_code()
    unused = [
        column.name
        for column in schema()[table].columns
        if column.name.removeprefix(MEASURED) not in words | FOR_READERS
        and not any(one.fullmatch(column.name) for one in patterns)
    ]
    assert not unused


@pytest.mark.parametrize("kind", PLAN_TABLES)
def test_results_have_the_columns_that_the_schema_declares(kind: str) -> None:
    plans = next(table for table in read_plans(workbook()) if table.kind == kind)
    results = evaluate(plans.take([0]), load_catalog())
    assert list(results.columns) == [column.name for column in results_of(kind).columns]


@pytest.mark.parametrize("table", [*EVERY_TABLE, *PLAN_TABLES])
def test_defaults_and_bounds_agree(table: str) -> None:
    for column in schema()[table].columns:
        if column.default and column.kind == "number":
            low, high, exclusive = column.limits
            assert low <= float(column.default) <= high and not (exclusive and float(column.default) == low), column
        if column.default and column.kind == "choice":
            assert column.default in column.choices, column
