"""Optimizer state, activations and KV cache beyond the accelerator's memory: memory falls, time grows, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate, explain

SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
GB = 1e9


def table(kind: str, base: dict[str, Any], rows: tuple[dict[str, Any], ...]) -> Table:
    full = [{**base, **row} for row in rows]
    header = list(dict.fromkeys(name for row in full for name in row))
    cells = [[row.get(name, "") for name in header] for row in full]
    return table_from_rows(kind, header, cells, lambda row, column: f"row {row} {column}")


def trained(*rows: dict[str, Any]) -> Table:
    base = {"model": "Llama3-70B", "accelerator": "H100-SXM-80GB", "num_accelerators": 64, "tensor_parallel": 8,
            "pipeline_parallel": 2, "global_batch_size": 64, "sequence_length": 4096}  # fmt: skip
    return table("training", base, rows)


def served(*rows: dict[str, Any]) -> Table:
    base = {"model": "Llama3-70B", "accelerator": "H100-SXM-80GB", "num_accelerators": 4, "tensor_parallel": 4,
            "precision": "fp8", "prompt_length": 8192, "output_length": 128, "batch_size": 16,
            "software": "vllm"}  # fmt: skip
    return table("inference", base, rows)


def with_host(factor: float) -> Catalog:
    """The catalog with links to hosts and their memory so many times as fast."""
    catalog = load_catalog()
    accelerators = catalog.tables["accelerators"]
    names = ("host_bandwidth", "host_memory_bandwidth", "drive_bandwidth")
    columns = {name: factor * accelerators.filled(name) for name in names}
    return catalog.with_tables([Table("accelerators", {**accelerators.columns, **columns}, accelerators.place)])


@pytest.mark.parametrize("name", ["offload_optimizer", "offload_activations", "kv_offload"])
def test_nothing_offloaded_is_the_plan_without_to_the_last_bit(name: str) -> None:
    plans = served if name == "kv_offload" else trained
    result = evaluate(plans({}, {name: 0.0}), load_catalog())
    for column in result.columns:
        values = result[column]
        assert values[0] == values[1] or values[0] != values[0], column


@pytest.mark.parametrize("name", ["offload_optimizer", "offload_activations"])
def test_memory_of_training_falls_and_the_step_grows(name: str) -> None:
    result = evaluate(trained(*({name: share} for share in SHARES)), load_catalog())
    memory, time = result.number("memory"), result.number("step_time")
    assert (np.diff(memory) < 0.0).all() and (np.diff(time) >= 0.0).all() and time[-1] > time[0]
    parts = sum(result.number(column) for column in result.columns if column.startswith("time_"))
    assert parts == pytest.approx(time, rel=1e-12)


def test_cache_on_the_host_makes_room_and_steps_longer() -> None:
    result = evaluate(served(*({"kv_offload": share} for share in SHARES)), load_catalog())
    memory, batch = result.number("memory_kv_cache"), result.number("max_batch_size")
    assert (np.diff(memory) < 0.0).all() and (np.diff(batch) > 0.0).all()
    for name in ("tpot", "ttft"):
        assert (np.diff(result.number(name)) >= 0.0).all(), name
    assert result.number("tpot")[-1] > result.number("tpot")[0]


def test_drives_are_slower_than_host_memory_and_a_faster_host_never_slower() -> None:
    rows = [{"offload_optimizer": 1.0}, {"offload_optimizer": 1.0, "offload_target": "drive"}]
    time = evaluate(trained(*rows), load_catalog()).number("step_time")
    assert time[1] > time[0]
    whole = [evaluate(trained({"offload_optimizer": 1.0, "offload_activations": 1.0}), with_host(factor))
             for factor in (0.25, 1.0, 4.0, 1e6)]  # fmt: skip
    steps = [entry.number("step_time")[0] for entry in whole]
    assert steps == sorted(steps, reverse=True)
    plain = evaluate(trained({}), load_catalog())
    assert steps[-1] == pytest.approx(plain.number("step_time")[0], rel=0.01)  # an endless host costs nothing
    tpot = [evaluate(served({"kv_offload": 0.5}), with_host(factor)).number("tpot")[0] for factor in (0.5, 1.0, 1e6)]
    assert tpot == sorted(tpot, reverse=True)
    assert tpot[-1] == evaluate(served({}), load_catalog()).number("tpot")[0]


def test_state_on_the_host_takes_its_bytes_over_its_bandwidths() -> None:
    """Of the shard of a rank: 28 bytes a parameter at 50 GB/s of memory, 2 over 50 GB/s of the link; gradients hide."""
    result = evaluate(trained({}, {"offload_optimizer": 1.0}), load_catalog())
    state = result.number("memory_optimizer")[0]
    number = state / 12.0
    gradient = result.number("memory_gradients")[0] / (12.0 * number / 12.0 * 4.0)  # ZeRO-1 over 4 replicas
    added = result.number("time_optimizer")[1] - result.number("time_optimizer")[0]
    assert result.number("memory_optimizer")[1] == 0.0
    assert added == pytest.approx(number * ((24.0 + gradient + 2.0) / (50 * GB) + 2.0 / (50 * GB)), rel=0.06)


def test_operators_of_an_offloaded_plan_add_up() -> None:
    plans = trained({"offload_optimizer": 0.5, "offload_activations": 1.0})
    rows, result = explain(plans, load_catalog()), evaluate(plans, load_catalog())
    assert rows.number("exposed_time").sum() == pytest.approx(result.number("step_time")[0], rel=1e-9)
    plans = served({"kv_offload": 0.5})
    rows, result = explain(plans, load_catalog()), evaluate(plans, load_catalog())
    decode = rows.number("exposed_time")[rows.text("phase") == "decode"].sum()
    assert decode == pytest.approx(result.number("tpot")[0], rel=1e-9)


@pytest.mark.parametrize("plans", [trained, served])
def test_drives_without_anything_to_offload_are_refused(plans: Any) -> None:
    reason = evaluate(plans({"offload_target": "drive"}), load_catalog()).text("reason")[0]
    assert "offload target drive needs" in reason
