"""Pools of two kinds of machine in one plan: the link between them, prices, power, balance; one kind is the limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from work import calls

from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.explore.search import search

H100, H200, MI300X = "H100-SXM-80GB", "H200-SXM-141GB", "MI300X"
MACHINES = (
    "A100-SXM4-40GB", "A100-SXM4-80GB", H100, "H800-SXM-80GB", H200, "B200-SXM-180GB", "GB200-NVL72", MI300X, "MI355X",
    "TPUv5e", "TPUv6e", "L40S",
)  # fmt: skip


def pools(*rows: dict[str, Any]) -> Table:
    base = {"model": "Llama3-70B", "accelerator": H200, "num_accelerators": 32, "prefill_accelerators": 16,
            "tensor_parallel": 4, "prompt_length": 4096, "output_length": 512, "concurrency": 64, "precision": "fp8",
            "mode": "disaggregated", "software": "vllm"}  # fmt: skip
    full = [{**base, **row} for row in rows]
    header = list(dict.fromkeys(name for row in full for name in row))
    cells = [[row.get(name, "") for name in header] for row in full]
    return table_from_rows("inference", header, cells, lambda row, column: f"row {row} {column}")


def test_naming_the_same_machine_and_network_changes_no_bit() -> None:
    plain, named = {}, {"prefill_accelerator": H200, "prefill_network": "DGX-H200"}
    catalog = load_catalog()
    default = catalog.tables["accelerators"].text("default_network")[
        catalog.tables["accelerators"].text("accelerator").tolist().index(H200)
    ]
    result = evaluate(pools(plain, {**named, "prefill_network": default}), catalog)
    for column in result.schema.columns:
        values = result[column.name]
        assert values[0] == values[1] or values[0] != values[0], column.name


def test_cost_of_mixed_pools_is_that_of_each_at_its_price() -> None:
    result = evaluate(pools({"prefill_accelerator": MI300X}, {}, {"accelerator": MI300X}), load_catalog())
    mixed, own, other = result.number("accelerator_hour_cost")
    share = result.number("prefill_share")[0]
    assert mixed == pytest.approx(share * other + (1.0 - share) * own, rel=1e-12)
    power = result.number("accelerator_power")
    assert power[0] > 0.0 and result.number("energy_per_token")[0] > 0.0


def test_a_faster_link_between_the_pools_is_never_slower() -> None:
    """What a slow one takes for the cache of a prompt shows in the first token."""
    speeds = (0.5, 2.0, 10.0, 50.0, 400.0)
    rows = [{"prefill_accelerator": H100, "transfer_bandwidth": speed} for speed in speeds]
    first = evaluate(pools(*rows), load_catalog()).number("ttft")
    assert (np.diff(first) <= 0.0).all() and first[0] > first[-1]
    cache = 2.0 * 8 / 4 * 128 * 80 * 4096 * 2.0  # keys and values of a prompt on one of four ranks, 16 bits
    assert first[0] - first[-1] == pytest.approx(cache / 0.5e9, rel=0.1)


def test_unlike_machines_share_the_outermost_tier_alone() -> None:
    """Replicas of one kind lie in one machine; of two kinds the cache leaves through the adapters of both."""
    one, two = evaluate(pools({}, {"prefill_accelerator": H100}), load_catalog()).number("ttft")
    back = evaluate(pools({"accelerator": H100, "prefill_accelerator": H200}), load_catalog()).number("ttft")[0]
    assert np.isfinite([one, two, back]).all()
    slow = evaluate(pools({"prefill_accelerator": "A100-SXM4-80GB", "precision": "bf16"}), load_catalog())
    assert slow.number("fits")[0] == 1.0


@pytest.mark.parametrize("name", ["prefill_network", "transfer_bandwidth"])
def test_columns_of_pools_need_pools(name: str) -> None:
    value = "DGX-H100" if name == "prefill_network" else 25
    row = {"mode": "continuous", "prefill_accelerators": "", "num_accelerators": 4, name: value}
    assert (
        f"{name.replace('_', ' ')} needs mode disaggregated" in evaluate(pools(row), load_catalog()).text("reason")[0]
    )


def test_twelve_by_twelve_machines_are_searched_together() -> None:
    """Every pair of a decoding and a prefilling machine, accelerators divided between both by the search."""
    plan = pools({"prefill_accelerators": "auto", "num_accelerators": 64, "tensor_parallel": 8, "concurrency": 256,
                  "precision": "bf16"})  # fmt: skip
    machines = np.array(MACHINES, dtype=object)
    values = {"accelerator": machines, "prefill_accelerator": machines}
    count, result = calls(
        lambda: search(plan, load_catalog(), "cost_per_million_output_tokens_all_in", values=values, top=None)
    )
    assert count < 500_000  # 50,000 to 100,000; a search for each pair takes millions
    pairs = zip(
        result.plans.text("accelerator").tolist(), result.plans.text("prefill_accelerator").tolist(), strict=True
    )
    assert len(set(pairs)) > len(MACHINES) ** 2 / 4
    cost = result.results.number("cost_per_million_output_tokens_all_in")
    assert (np.diff(cost[np.isfinite(cost)]) >= 0.0).all()
