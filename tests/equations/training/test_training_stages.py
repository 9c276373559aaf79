"""Layers dealt to stages by the work they are: what nanotron does, held against its own loop."""

from __future__ import annotations

import numpy as np
import pytest

from xlperf.calibrate.fitter import FittedConstant, calibration_table, joined_tables
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.engine import evaluate
from xlperf.engine.join import join
from xlperf.engine.training import training_plan
from xlperf.equations.model.operators import layer_matrices
from xlperf.equations.training.setting import _layers_through_stage, stages_of

PLAN: dict[str, object] = {
    "model": "Llama3-8B", "accelerator": "H100-SXM-80GB", "num_accelerators": 16, "pipeline_parallel": 4,
    "tensor_parallel": 2, "global_batch_size": 64, "sequence_length": 4096, "stage_dealing": "cost",
}  # fmt: skip


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def results(catalog: Catalog, *plans: dict[str, object]) -> dict[str, np.ndarray]:
    names = list(dict.fromkeys(name for plan in plans for name in plan))
    rows = [[plan.get(name) for name in names] for plan in plans]
    table = table_from_rows("training", names, rows, lambda row, column: f"test row {row + 1}, {column}")
    return dict(evaluate(table, catalog).columns)


def dealt_one_by_one(num_layers: int, head: float, stages: int) -> list[int]:
    """Layers of each stage as a loop over layers gives them: a stage ends with the one that passes its threshold."""
    result, stage, work = [0] * stages, 0, 0.0
    for _ in range(num_layers):
        result[stage] += 1
        work += 1.0
        if work > (num_layers + head) * (stage + 1) / stages:
            stage += 1
    return result


@pytest.mark.parametrize("stages", [2, 3, 4, 5, 8, 16])
@pytest.mark.parametrize(("num_layers", "head"), [(16, 4.0), (28, 2.667), (32, 2.29), (80, 0.31)])
def test_layers_through_a_stage_are_those_of_the_loop(num_layers: int, head: float, stages: int) -> None:
    ends = _layers_through_stage(np.arange(1, stages) * (num_layers + head) / stages, num_layers)
    dealt = np.diff(np.concatenate([[0.0], ends, [num_layers]]))
    assert dealt.tolist() == dealt_one_by_one(num_layers, head, stages)


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
def test_stages_of_a_plan_dealt_by_cost(catalog: Catalog, stages: int) -> None:
    row = {**PLAN, "pipeline_parallel": stages}
    table = table_from_rows("training", list(row), [list(row.values())], lambda row, column: column)
    joined = join(table, catalog)
    model = joined.model
    first, middle, last = stages_of(
        model,
        training_plan(table, joined, {"gradient_size": np.full((1, 1), 4.0), "unfused_kernels": np.zeros((1, 1))}),
    )
    head = float(model.vocab_size[0] * model.hidden_size[0] / layer_matrices(model, True)[0])
    if stages == 1:
        assert (first[0], last[0]) == (32.0, 32.0)
        return
    every = dealt_one_by_one(32, head, stages)
    assert (first[0], last[0]) == (every[0], every[-1])
    assert middle[0] == max(every[1:-1], default=0)


def test_a_full_first_stage_holds_more_and_the_last_one_less(catalog: Catalog) -> None:
    """Llama 3 8B, vocabulary of 128,256: the output projection is the work of 2.4 layers, so the last stage has 5."""
    result = results(catalog, PLAN, {**PLAN, "stage_dealing": "even"})
    assert result["memory_first_stage"][0] > result["memory_first_stage"][1]
    assert result["memory_last_stage"][0] < result["memory_last_stage"][1]
    assert result["layer_time"][0] == pytest.approx(result["layer_time"][1])
    single = {**PLAN, "pipeline_parallel": 1}
    alone = results(catalog, single, {**single, "stage_dealing": "even"})
    assert alone["step_time"][0] == alone["step_time"][1] and alone["memory"][0] == alone["memory"][1]


def test_the_slowest_stage_waits_while_a_micro_batch_passes_the_others(catalog: Catalog) -> None:
    """With twice the micro-batches the bubble is the same, and with two stages shorter than one pass of the first."""
    two = {**PLAN, "pipeline_parallel": 2, "num_accelerators": 4}
    result = results(catalog, two, {**two, "global_batch_size": 128})
    assert result["time_pipeline_bubble"][0] == pytest.approx(result["time_pipeline_bubble"][1], rel=1e-12)
    assert 0.0 < result["time_pipeline_bubble"][0] < result["step_time"][0] / 64.0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"first_stage_layers": 8}, "stage dealing cost leaves no choice of the layers of the first or last stage"),
        ({"virtual_pipeline": 2}, "stage dealing cost has no virtual pipeline, plan asks for 2"),
        ({"pipeline_schedule": "dualpipe"}, "stage dealing cost has no dualpipe schedule"),
    ],
)
def test_dealing_that_cannot_be_is_said(catalog: Catalog, change: dict[str, object], reason: str) -> None:
    result = results(catalog, {**PLAN, **change})
    assert reason in result["reason"][0].split("; ") and np.isnan(result["step_time"][0])


def test_rows_dealt_in_both_ways_are_the_same_together_and_alone(catalog: Catalog) -> None:
    plans = [
        PLAN,
        {**PLAN, "stage_dealing": "even"},
        {**PLAN, "pipeline_parallel": 2},
        {**PLAN, "pipeline_parallel": 8},
    ]
    many = results(catalog, *plans)
    for row, plan in enumerate(plans):
        for name, values in results(catalog, plan).items():
            assert repr(values[0]) == repr(many[name][row]), (name, row)


def test_shards_of_each_tensor_pass_a_ring_once_a_step(catalog: Catalog) -> None:
    """32 layers under ZeRO-1, none under ZeRO-0 and 3: 1 step between machines and 6 within, of 8 ranks on 2."""
    each = 1e-4
    slices = FittedConstant(
        "training_software", "any", "any", "megatron", "shard_overhead_time", each, "", 0, 0.0, "", ""
    )
    slow = catalog.with_tables([joined_tables(catalog.tables["calibration"], calibration_table([slices]))])
    base = {**PLAN, "pipeline_parallel": 1, "stage_dealing": "even", "software": "megatron"}
    plans = [{**base, "zero_stage": stage} for stage in (0, 1, 3)]
    plans.append({**base, "num_accelerators": 8})
    more = results(slow, *plans)["step_time"] - results(catalog, *plans)["step_time"]
    inside = 3.4 / 14.0  # a step over NVLink over one over the network
    assert more == pytest.approx([0.0, 32.0 * (1.0 + 6.0 * inside) * each, 0.0, 32.0 * 3.0 * inside * each], abs=1e-12)
