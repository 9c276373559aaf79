"""Rules of legality hold in separate pools as in one pool."""

from __future__ import annotations

import pytest

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.engine import evaluate
from xlperf.equations.plan.serving_plan import SERVING_RULES

BROKEN: dict[str, dict[str, object]] = {
    "offload_target": {"offload target": "drive"},
    "host_experts_share": {"host experts share": 0.5},
    "adapters": {"adapters": 4},
    "resident_adapters": {"resident adapters": 4},
    "redundant_experts": {"redundant experts": 8},
}
"""Entries that break a rule of each column, by the column that the sheet needs for the rule to matter."""


def test_every_rule_of_a_column_is_tried() -> None:
    of_parser = {"context_parallel"}  # fractions of ranks are refused as cells
    assert {rule.column for rule in SERVING_RULES} - {""} == BROKEN.keys() | of_parser


@pytest.mark.parametrize("column", BROKEN)
def test_separate_pools_break_the_rules_of_one_pool(catalog: Catalog, column: str) -> None:
    """A dense model with half of its experts in host memory was legal in separate pools, and Serve's answer."""
    plan = {"model": "Meta-Llama-3.1-8B", "accelerator": "H200-SXM-141GB", "num accelerators": 2,
            "prompt length": 2000, "output length": 100, "concurrency": 8, **BROKEN[column]}  # fmt: skip
    modes = [["continuous", None], ["disaggregated", 1]]
    rows = [[*plan.values(), *mode] for mode in modes]
    table = table_from_rows("inference", [*plan, "mode", "prefill accelerators"], rows)
    one, two = evaluate(table, catalog)["reason"]
    assert column.replace("_", " ") in one
    assert set(one.split("; ")) <= set(two.split("; "))
