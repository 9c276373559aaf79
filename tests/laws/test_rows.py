"""A row of a table depends on nothing but itself: any order, any company, one row or a thousand, the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from laws.random_plans import MODES, kind_of, legal_rows, table_of
from laws.samples import NUMBER, SEED
from work import examples

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine import evaluate

pytestmark = pytest.mark.slow

KINDS = ("training", "inference")


def bits(results: Table) -> list[tuple[object, ...]]:
    """Every result of each row; numbers as the bits that they are."""
    columns = [
        (values + 0.0).view(np.uint64) if values.dtype == np.float64 else values for values in results.columns.values()
    ]
    return list(zip(*(values.tolist() for values in columns), strict=True))


def differences(one: list[tuple[object, ...]], other: list[tuple[object, ...]], names: list[str]) -> dict[int, str]:
    """By row: which results are unlike."""
    return {
        row: ", ".join(name for name, a, b in zip(names, first, second, strict=True) if a != b)
        for row, (first, second) in enumerate(zip(one, other, strict=True))
        if first != second
    }


@pytest.fixture(scope="module")
def plans() -> dict[str, Table]:
    """All modes together, some plans that are illegal among them."""
    rows: dict[str, list[dict[str, object]]] = {kind: [] for kind in KINDS}
    for mode in MODES:
        more = 2 if mode == "disaggregated" else 1  # two pools meet in one table
        rows[kind_of(mode)] += legal_rows(mode, more * NUMBER, SEED)
    for kind in KINDS:
        rows[kind] += [{**row, "tensor_parallel": 3, "pipeline_parallel": 7} for row in rows[kind][::40]]
    return {kind: table_of(kind, rows[kind]) for kind in KINDS}


@pytest.fixture(scope="module")
def alone(plans: dict[str, Table], catalog: Catalog) -> dict[str, list[tuple[object, ...]]]:
    """Results of each plan in a table of its own."""
    return {
        kind: [bits(evaluate(table.take([row]), catalog))[0] for row in range(len(table))]
        for kind, table in plans.items()
    }


@pytest.fixture(scope="module")
def together(plans: dict[str, Table], catalog: Catalog) -> dict[str, Table]:
    """Results of all plans of a kind in one table."""
    return {kind: evaluate(table, catalog) for kind, table in plans.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_any_order_gives_the_same_bits(
    kind: str, plans: dict[str, Table], alone: dict[str, list[tuple[object, ...]]], catalog: Catalog
) -> None:
    """Each row four times, all of them shuffled."""
    table = plans[kind]
    rows = np.random.default_rng(5).permutation(np.tile(np.arange(len(table)), 4))
    result = evaluate(table.take(rows), catalog)
    unlike = differences(bits(result), [alone[kind][row] for row in rows.tolist()], list(result.columns))
    assert not unlike, f"{len(unlike)} of {len(rows)} rows differ from the same row alone, such as {_some(unlike)}"


def _some(unlike: dict[int, str]) -> str:
    row = next(iter(unlike))
    return f"row {row} in {unlike[row]}"


@pytest.mark.parametrize("kind", KINDS)
def test_any_company_gives_the_same_bits(
    kind: str, plans: dict[str, Table], alone: dict[str, list[tuple[object, ...]]], catalog: Catalog
) -> None:
    """A few rows at a time; what fails is the smallest company that does."""
    table = plans[kind]
    several = st.lists(st.integers(0, len(table) - 1), min_size=2, max_size=12)

    @settings(max_examples=examples(15))
    @given(several)
    @example([0, 0])
    def law(rows: list[int]) -> None:
        result = evaluate(table.take(rows), catalog)
        unlike = differences(bits(result), [alone[kind][row] for row in rows], list(result.columns))
        assert not unlike, _some(unlike)

    law()


@pytest.mark.parametrize(
    ("kind", "names", "left_out"),
    [
        ("training", ["step_time"], "memory"),
        ("training", ["mfu"], "memory"),
        ("training", ["memory", "fits"], "step_time"),
        ("training", ["memory_middle_stage", "time_forward"], ""),
        ("training", ["energy_per_token"], ""),
        ("training", ["reason"], ""),
        ("inference", ["tpot"], ""),  # blank where one token is put out: notes say why
        ("inference", ["latency"], "memory"),
        ("inference", ["tokens_per_second_at_targets", "batch_at_targets"], "tpot"),
        ("inference", ["fits", "max_batch_size"], "memory"),
    ],
)
def test_results_asked_for_alone_are_those_of_all(
    plans: dict[str, Table], together: dict[str, Table], catalog: Catalog, kind: str, names: list[str], left_out: str
) -> None:
    table = plans[kind]
    if "batch_at_targets" in names:  # those without a target have none, and notes say why
        table = table.take(np.flatnonzero(table.text("mode") != "static")[::2])
        targets = dict.fromkeys(("ttft_target", "tpot_target"), np.full(len(table), 3.0))
        table = replace(table, columns={**table.columns, **targets})
    whole = evaluate(table, catalog) if "batch_at_targets" in names else together[kind]
    some = evaluate(table, catalog, results=names)
    assert left_out not in some
    assert set(names) <= set(some.columns)
    blank = np.zeros(len(whole), dtype=bool)
    for name in set(some.columns) - {"reason"}:
        np.testing.assert_array_equal(some[name], whole[name], name)
        blank |= some[name] != some[name]
    assert some["reason"][blank].tolist() == whole["reason"][blank].tolist()
