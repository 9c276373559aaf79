"""A row's numbers are its own: in any order, in any company, alone or among thousands, the same to the last bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
from benchmarks.designs import random_designs
from benchmarks.plans import columns_of as training_columns
from serving_plans import columns_of, plans_of, spiced

from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_columns, table_from_rows
from xlperf.catalog.table import Table, nowhere
from xlperf.engine import evaluate, join
from xlperf.engine.devices import evaluate_designs, evaluate_devices
from xlperf.engine.ownership import evaluate_ownership
from xlperf.workbook.data_sheets import table_of

pytestmark = pytest.mark.slow

_MORE = 300
_UNTARGETED = {name: np.full(_MORE, np.nan) for name in ("ttft_target", "tpot_target")}
Evaluate = Callable[[Table], Table]


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def groups_of(rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def differing(evaluated: Evaluate, table: Table, whole: Table, rows: np.ndarray) -> dict[str, list[int]]:
    """Columns of results, and the rows of the whole table that have other ones when only some are evaluated."""
    result, differs = evaluated(table.take(rows)), {}
    for name, values in whole.columns.items():
        before, after = values[rows], result[name]
        same = before == after
        if before.dtype != object:
            same |= np.isnan(before) & np.isnan(after)
        if not same.all():
            differs[name] = rows[~same.astype(bool)].tolist()
    return differs


def check_apart(evaluated: Evaluate, table: Table, sizes: tuple[int, ...], whole: Table | None = None) -> None:
    """In another order, and in up to 5 companies of some sizes drawn from it."""
    whole = evaluated(table) if whole is None else whole
    order = np.random.default_rng(4).permutation(len(table))
    assert differing(evaluated, table, whole, order) == {}
    for size in sizes:
        for rows in groups_of(order[: 5 * size], size):
            assert differing(evaluated, table, whole, rows) == {}


def test_serving_plans_of_all_modes(catalog: Catalog) -> None:
    plans = plans_of(48)
    whole = evaluate(plans, catalog)
    for mode in ("static", "continuous", "disaggregated"):
        assert (~np.isnan(whole["latency"][plans.text("mode") == mode])).sum() > 7
    check_apart(partial(evaluate, catalog=catalog), plans, (1, 7, 41), whole)


def test_four_disaggregated_plans_that_once_took_each_others_times(catalog: Catalog) -> None:
    header = (
        "model", "mode", "precision", "accelerator", "num accelerators", "software", "tensor parallel",
        "pipeline parallel", "context parallel", "data parallel attention", "prompt length", "output length",
        "kv precision", "concurrency", "prefill accelerators",
    )  # fmt: skip
    rows = (
        ("int4", "MI355X", 32, "vllm", 4, 2, 1, 4, 128, 64, "", 128, 16),
        ("int4", "H200-SXM-141GB", 4, "nim", 1, 1, 1, 1, 4000, 2000, "", 8, 2),
        ("fp8", "H200-SXM-141GB", 4, "sglang", 1, 1, 2, 1, 128, 2000, "", 256, 2),
        ("fp8", "H200-SXM-141GB", 128, "nim", 8, 4, 1, 8, 128, 64, "bf16", 512, 64),
    )
    plans = table_from_rows("inference", header, [("DeepSeek-V3", "disaggregated", *row) for row in rows])
    assert (evaluate(plans, catalog)["tpot"] > 0.0).all()
    check_apart(partial(evaluate, catalog=catalog), plans, (1, 2, 3))


@pytest.mark.parametrize("kind", ["training", "inference"])
def test_plans_with_any_cell_of_the_sheet_changed(catalog: Catalog, kind: str) -> None:
    columns = training_columns(catalog, 160) if kind == "training" else columns_of(40, seed=7)
    plans = table_from_columns(kind, spiced(columns, kind, catalog), nowhere)
    check_apart(partial(evaluate, catalog=catalog), plans, (9, 120) if kind == "training" else (9,))


def test_more_plans_than_go_through_the_equations_together(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "BATCH", 180)
    plans = table_from_columns("inference", {**columns_of(_MORE, seed=5), **_UNTARGETED}, nowhere)
    evaluated = partial(evaluate, catalog=catalog)
    whole, order = evaluated(plans), np.random.default_rng(8).permutation(_MORE)
    assert differing(evaluated, plans, whole, order) == {}
    assert differing(evaluated, plans, whole, order[:200]) == {}


def test_costs_to_an_owner(catalog: Catalog) -> None:
    plans = plans_of(20, seed=9)
    check_apart(partial(evaluate_ownership, catalog=catalog), plans, (1, 11))


def test_designs_of_chiplets(catalog: Catalog) -> None:
    check_apart(partial(evaluate_designs, catalog=catalog), random_designs(catalog, 300, 3), (1, 30))


def test_devices_that_follow_from_technology(catalog: Catalog) -> None:
    random = np.random.default_rng(6)
    names = {kind: catalog.tables[kind].columns for kind in ("technology", "cores", "memories", "links")}
    keys = {kind: next(iter(columns.values())).tolist() for kind, columns in names.items()}
    rows = [
        {
            "device": f"device {number}",
            "technology": str(random.choice(keys["technology"])),
            "core": str(random.choice(keys["cores"])),
            "memory": str(random.choice(keys["memories"])),
            "link": str(random.choice(keys["links"])),
            "die_area": float(random.uniform(100.0, 1600.0)),
        }
        for number in range(120)
    ]
    check_apart(partial(evaluate_devices, catalog=catalog, strict=False), table_of("devices", rows), (1, 13))
