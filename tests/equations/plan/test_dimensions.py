"""Records of parallel dimensions, held to the schema and to the results of the engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from training_samples import H100, plans

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import PLAN_TABLES, auto_columns, table_schema
from xlperf.engine import evaluate
from xlperf.equations.network.collectives import OPERATIONS
from xlperf.equations.plan.dimensions import POOL_DEGREES, SERVING_DIMENSIONS, TRAINING_DIMENSIONS, Dimension, degrees
from xlperf.equations.training import communication
from xlperf.equations.training.setting import Setting

STATE = {"weights": "memory_weights", "gradients": "memory_gradients", "optimizer": "memory_optimizer"}
KINDS = {"training": TRAINING_DIMENSIONS, "inference": SERVING_DIMENSIONS}
PLAN = {
    "model": "Mixtral-8x7B", "accelerator": H100, "num_accelerators": 64, "tensor_parallel": 2, "pipeline_parallel": 2,
    "context_parallel": 2, "expert_parallel": 2, "expert_tensor_parallel": 1, "zero_stage": 0, "global_batch_size": 64,
    "sequence_length": 8192, "sequence_parallel": "yes",
}  # fmt: skip


@pytest.mark.parametrize("kind", PLAN_TABLES)
def test_degrees_are_columns_and_can_be_searched(kind: str) -> None:
    stated = [each.size for each in KINDS[kind] if each.stated]
    assert set(stated) <= set(table_schema(kind).by_name) and set(stated) <= set(auto_columns(kind))
    columns = set(table_schema(kind).by_name)
    degrees = {
        name for name in columns if name.endswith("_parallel") and not name.startswith(("prefill_", "measured_"))
    }
    assert degrees - {"sequence_parallel"} <= set(stated), "a degree without a record"
    if kind == "inference":
        assert {f"prefill_{name}" for name in POOL_DEGREES} <= columns


def test_the_default_order_of_ranks_is_the_order_of_the_records() -> None:
    order = str(table_schema("training").by_name["dimension_order"].default)
    assert tuple(order.split("-")) == tuple(dict.fromkeys(each.axis for each in TRAINING_DIMENSIONS))


def test_messages_are_collectives_with_a_result() -> None:
    results = table_schema("training_results").by_name
    for dimension in TRAINING_DIMENSIONS:
        assert set(dimension.messages.values()) <= set(OPERATIONS) and dimension.time in results
    names = [name for dimension in TRAINING_DIMENSIONS for name in dimension.messages]
    assert len(names) == len(set(names))


def test_every_message_of_a_record_has_a_size(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that is declared and never sent would take no time, without a word."""
    sizes: dict[str, np.ndarray] = {}
    timed = communication._timed

    def noted(setting: Setting, messages: dict[str, Any]) -> Any:
        sizes.update({name: message.size for name, message in messages.items()})
        return timed(setting, messages)

    monkeypatch.setattr(communication, "_timed", noted)
    row = {**PLAN, "data_parallel": 8, "zero_stage": 3, "expert_tensor_parallel": 2, "cross_entropy": "gathered"}
    evaluate(plans(row), catalog)
    assert set(sizes) == {name for dimension in TRAINING_DIMENSIONS for name in dimension.messages}
    assert not [name for name, size in sizes.items() if not (size > 0.0).all()]


@pytest.mark.parametrize("dimension", [each for each in TRAINING_DIMENSIONS if each.stated], ids=lambda each: each.size)
def test_state_is_split_by_the_dimensions_that_say_so(catalog: Catalog, dimension: Dimension) -> None:
    """A degree twice as large: less of the state in ``shards``, as much of all other state."""
    few = {**PLAN, "data_parallel": 8}
    many = {**few, dimension.size: 2 * int(few[dimension.size])}
    if dimension.remainder:
        many["global_batch_size"] = 128
    for row in (few, many):
        row["num_accelerators"] = int(np.prod([int(row[each.size]) for each in degrees(TRAINING_DIMENSIONS, "dense")]))
    results = evaluate(plans(few, many), catalog)
    for state, name in STATE.items():
        before, after = results.number(name)
        assert (after < before) == (state in dimension.shards), f"{state}: {before} and {after}"


def test_degrees_of_a_grid_end_with_the_remainder() -> None:
    assert [each.size for each in degrees(TRAINING_DIMENSIONS, "dense")] == [
        "tensor_parallel", "context_parallel", "pipeline_parallel", "data_parallel",
    ]  # fmt: skip
