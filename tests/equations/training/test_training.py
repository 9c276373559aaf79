"""Training: identities, limits, legality, and what the papers print."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate, explain

HEADER = (
    "name model accelerator num_accelerators tensor_parallel sequence_parallel pipeline_parallel virtual_pipeline "
    "data_parallel zero_stage global_batch_size micro_batch_size sequence_length precision recompute attention"
).split()
A100 = "A100-SXM4-80GB"
H100 = "H100-SXM-80GB"
GIB = 2.0**30

LEGAL = [
    ["gpt3", "GPT3-175B", A100, 64, 8, "yes", 8, 3, None, 0, 64, 1, 2048, "fp16", "selective", "standard"],
    ["22b", "megatron-22B", A100, 8, 8, "no", 1, 1, None, 0, 4, 4, 2048, "fp16", "full", "standard"],
    ["8b", "Meta-Llama-3.1-8B", H100, 64, 1, None, 1, 1, None, 1, 256, 1, 4096, "bf16", "none", "flash"],
    ["8b fsdp", "Meta-Llama-3.1-8B", H100, 64, 1, None, 1, 1, None, 3, 256, 1, 4096, "bf16", "full", "flash"],
    ["70b fp8", "Meta-Llama-3.1-70B", H100, 512, 4, "yes", 4, 5, None, 1, 512, 1, 8192, "fp8", "none", "flash"],
    ["405b", "Meta-Llama-3.1-405B", H100, 1024, 8, "yes", 16, 1, None, 1, 512, 1, 8192, "bf16", "full", "flash"],
]


def plans(rows: list[list[object]]) -> Table:
    return table_from_rows("training", HEADER, rows, lambda row, column: f"test row {row + 1}, {column}")


def changed(row: list[object], **values: object) -> list[object]:
    return [values.get(name, value) for name, value in zip(HEADER, row, strict=True)]


def test_the_parts_of_a_step_add_up(catalog: Catalog) -> None:
    results = evaluate(plans(LEGAL), catalog)
    parts = [name for name in results.columns if name.startswith("time_")]
    assert len(parts) >= 11
    total = sum(results[name] for name in parts)
    np.testing.assert_allclose(total, results["step_time"], rtol=1e-12)
    assert (np.array([results[name] for name in parts]) >= 0).all()


def test_memory_parts_add_up_and_nothing_is_refused(catalog: Catalog) -> None:
    results = evaluate(plans(LEGAL), catalog)
    parts = ("memory_weights", "memory_gradients", "memory_optimizer", "memory_activations")
    np.testing.assert_allclose(sum(results[name] for name in parts), results["memory"], rtol=1e-12)
    assert (results["memory_reserved"] > results["memory"]).all()
    assert not np.isnan(results["step_time"]).any()


def test_one_row_is_the_same_row_among_a_thousand_to_the_last_bit(catalog: Catalog) -> None:
    table = plans(LEGAL)
    many = evaluate(table.take(np.arange(3001) % len(LEGAL)), catalog)
    for row in range(len(LEGAL)):
        alone = evaluate(table.take([row]), catalog)
        for name, values in alone.columns.items():
            for index in (row, row + 2 * len(LEGAL), 3000 - (3000 - row) % len(LEGAL)):
                assert repr(values[0]) == repr(many[name][index]), (name, row, index)


def test_an_explanation_accounts_for_the_step(catalog: Catalog) -> None:
    table = plans(LEGAL)
    results = evaluate(table, catalog)
    for row in range(len(LEGAL)):
        operators = explain(table, catalog, row)
        assert operators["exposed_time"].sum() == pytest.approx(results["step_time"][row], rel=1e-9)
        assert set(operators["bound"]) <= {"compute", "memory", "network", "overhead"}


def test_hfu_is_mfu_unless_something_is_computed_again(catalog: Catalog) -> None:
    base = LEGAL[2]
    results = evaluate(plans([changed(base, recompute=mode) for mode in ("none", "selective", "full")]), catalog)
    assert results["hfu"][0] == results["mfu"][0]
    assert results["hfu"][1] > results["mfu"][1]
    assert results["hfu"][2] / results["mfu"][2] == pytest.approx(4 / 3, rel=0.06)


@pytest.mark.parametrize(
    ("column", "part"),
    [
        ("memory_bandwidth", "time_forward"),
        ("peak_flop_rate_bf16", "time_backward"),
        ("peak_flop_rate_bf16", "step_time"),
    ],
)
def test_faster_hardware_is_never_slower(catalog: Catalog, column: str, part: str) -> None:
    accelerators = catalog.tables["accelerators"]
    table = plans(LEGAL)
    times = [evaluate(table, catalog)[part]]
    for factor in (1.3, 2.0):
        columns = {**accelerators.columns, column: accelerators[column] * factor}
        times.append(evaluate(table, catalog.with_tables([Table("accelerators", columns)]))[part])
    assert (times[1] <= times[0]).all()
    assert (times[2] <= times[1]).all()
    assert (times[2] < times[0]).any()


def test_more_link_bandwidth_is_never_slower(catalog: Catalog) -> None:
    networks = catalog.tables["networks"]
    faster = {**networks.columns, "link_bandwidth": networks["link_bandwidth"] * 2}
    table = plans(LEGAL)
    before = evaluate(table, catalog)
    after = evaluate(table, catalog.with_tables([Table("networks", faster)]))
    assert (after["step_time"] <= before["step_time"]).all()
    assert after["time_tensor_parallel"][0] < before["time_tensor_parallel"][0]


def test_one_replica_and_one_stage_cost_no_communication(catalog: Catalog) -> None:
    row = changed(LEGAL[2], num_accelerators=1, global_batch_size=4)
    results = evaluate(plans([row]), catalog)
    for name in ("time_data_parallel", "time_tensor_parallel", "time_pipeline_bubble", "time_pipeline_communication"):
        assert results[name][0] == 0.0


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_sharding_keeps_every_byte_somewhere(catalog: Catalog, stage: int) -> None:
    results = evaluate(plans([changed(LEGAL[2], zero_stage=zero) for zero in (0, stage)]), catalog)
    names = ["memory_optimizer", "memory_gradients", "memory_weights"]
    if stage > 2:  # weights are sharded in FP32: they are the master copy
        both = results["memory_weights"] + results["memory_optimizer"]
        assert both[1] * 64 == pytest.approx(results["memory_optimizer"][0], rel=1e-12)
        names = ["memory_gradients", "memory_gradients", "memory_gradients"]
    for name in names[:stage]:
        assert results[name][1] * 64 == pytest.approx(results[name][0], rel=1e-12)
    for name in names[stage:]:
        assert results[name][1] == results[name][0]


def test_korthikanti_2022_figure_1_activations_per_accelerator(catalog: Catalog) -> None:
    """GiB on the first stage: tensor-parallel baseline, and with sequence parallel and selective recomputation."""
    stated = {
        "megatron-22B": (8, 1, 1, 4, 59.25, 9.56),
        "GPT3-175B": (64, 8, 3, 1, 66.84, 12.35),
        "turing-530B": (280, 35, 3, 1, 114.02, 23.08),
        "megatron-1T": (512, 64, 1, 1, 131.25, 26.56),
    }
    for model, (count, stages, chunks, micro, baseline, best) in stated.items():
        common = {
            "model": model,
            "num_accelerators": count,
            "pipeline_parallel": stages,
            "virtual_pipeline": chunks,
            "micro_batch_size": micro,
            "global_batch_size": micro * max(stages, 1) * 4,
        }
        rows = [
            changed(LEGAL[0], **common, sequence_parallel="no", recompute="none"),
            changed(LEGAL[0], **common, sequence_parallel="yes", recompute="selective"),
        ]
        kept = evaluate(plans(rows), catalog)["memory_layer_activations"] / GIB
        assert kept[0] == pytest.approx(baseline, rel=0.01), model
        assert kept[1] == pytest.approx(best, rel=0.01), model


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tensor_parallel": 6, "num_accelerators": 48},
         "tensor parallel 6 does not divide the 32 attention heads; "
         "tensor parallel 6 does not divide the feed-forward width 14336; "
         "sequence parallel needs a sequence length (4096) that tensor parallel 6 divides"),
        ({"data_parallel": 32},
         "tensor 1 x context 1 x pipeline 1 x data 32 parallel is 32 ranks, not the 64 accelerators of the plan"),
        ({"pipeline_parallel": 64}, "pipeline 64 x virtual pipeline 1 needs more layers than the model's 32"),
        ({"virtual_pipeline": 2}, "virtual pipeline 2 needs pipeline parallel of 2 or more"),
        ({"global_batch_size": 100}, "global batch 100 is not a whole number of micro-batches of 1 on 64 replicas"),
        ({"accelerator": A100, "precision": "fp8"}, "accelerator A100-SXM4-80GB states no peak rate for precision fp8"),
    ],
)  # fmt: skip
def test_an_illegal_plan_has_a_reason_and_no_numbers(catalog: Catalog, change: dict[str, object], reason: str) -> None:
    results = evaluate(plans([LEGAL[2], changed(LEGAL[2], **change)]), catalog)
    assert results["reason"][1] == reason
    assert np.isnan(results["step_time"][1])
    assert np.isnan(results["memory"][1])
    assert np.isnan(results["fits"][1])
    assert not np.isnan(results["step_time"][0])


def test_a_plan_that_does_not_fit_keeps_its_numbers(catalog: Catalog) -> None:
    results = evaluate(plans([changed(LEGAL[2], model="Meta-Llama-3.1-70B")]), catalog)
    assert results["fits"][0] == 0.0
    assert results["step_time"][0] > 0
    assert results["reason"][0].startswith("needs ")
    assert "GiB of 79." in results["reason"][0]


def test_blanks_take_the_documented_defaults(catalog: Catalog) -> None:
    header = ["model", "accelerator", "num_accelerators", "tensor_parallel", "pipeline_parallel"]
    short = table_from_rows("training", header, [["Meta-Llama-3.1-8B", H100, 64, 2, 4]], lambda r, c: "x")
    row = ["", "Meta-Llama-3.1-8B", H100, 64, 2, "yes", 4, 1, 8, 1, 8 * 4 * 4, 1, 4096, "bf16", "none", "flash"]
    left, right = evaluate(short, catalog), evaluate(plans([row]), catalog)
    for name in left.columns:
        assert repr(left[name][0]) == repr(right[name][0]), name


def test_causal_mfu_counts_half_of_attention(catalog: Catalog) -> None:
    """Megatron-Bridge counts what a causal mask leaves: 6 FLOP per weight and 6 s h per layer and token, not 12.

    Llama 3 8B at 8,192 tokens: 6 x 7.505 G and 12.9 G FLOP a token with all of it. Windows of Gemma 3 stay as they
    are.
    """
    base = changed(LEGAL[2], sequence_length=8192)
    result = evaluate(plans([base, changed(base, model="Gemma-3-27B"), changed(base, sequence_length=128)]), catalog)
    ratio = result.number("mfu_causal") / result.number("mfu")
    weights, scores = 6.0 * 7_504_658_432, 12.0 * 32 * 4096 * 8192
    assert ratio[0] == pytest.approx((weights + 0.5 * scores) / (weights + scores), rel=1e-9)
    assert 1.0 > ratio[1] > ratio[0] and 1.0 > ratio[2] > 0.99


MT_NLG = {"model": "MT-NLG-530B", "accelerator": A100, "num_accelerators": 2240, "tensor_parallel": 8}
MT_NLG |= {"sequence_parallel": "yes", "pipeline_parallel": 35, "virtual_pipeline": 3, "global_batch_size": 2240}
MT_NLG |= {"sequence_length": 2048, "precision": "fp16", "recompute": "selective", "attention": "standard"}
MT_NLG |= {"pipeline_schedule": "interleaved", "zero_stage": 0, "tensor_overlap": "gradients"}


def test_mt_nlg_530b_on_eight_replicas_as_megatron_of_2022_ran_it(catalog: Catalog) -> None:
    """arXiv:2205.05198 section 6.3: 39.15 s. Its Megatron-LM waits for transfers between stages and for gradients.

    A plan that leaves those columns blank is a later Megatron-LM, whose transfers are hidden: a tenth faster.
    """
    blank, waits = dict(MT_NLG), {**MT_NLG, "pipeline_overlap": "no", "data_overlap": "no"}
    header = list(waits)
    table = table_from_rows("training", header, [[row.get(name) for name in header] for row in (waits, blank)])
    result = evaluate(table, catalog).number("step_time")
    assert result[0] == pytest.approx(39.15, rel=0.02)
    assert 0.88 * result[0] < result[1] < 0.92 * result[0]


@pytest.mark.parametrize(
    ("kind", "loss", "gradient"),
    [("parallel", 2 + 9 * 4, 2 + 3 * 4), ("fused", 3 * 2, 2 * 2), ("plain", 2 + 3 * 4, 2 + 5 * 4)],
)
def test_traffic_of_the_loss_by_hand(catalog: Catalog, kind: str, loss: int, gradient: int) -> None:
    """Bytes per logit: the 16-bit one and copies of 32 bits, or 16-bit passes alone where they are fused.

    Megatron-Core's vocab_parallel_cross_entropy, forward: a copy, its largest, what is left of it, the exponential, its
    sum and a division: 1 + 1 + 2 + 2 + 1 + 2 words; backward a product with the gradient of the loss and a copy: 2 + 1.
    """
    row = plans([LEGAL[2]])
    operators = explain(replace(row, columns={**row.columns, "cross_entropy": np.array([kind], dtype=object)}), catalog)
    traffic = dict(zip(operators["operator"], operators["traffic"], strict=True))
    assert traffic["cross-entropy"] == 4096 * 128256 * loss
    assert traffic["cross-entropy gradient"] == 4096 * 128256 * gradient


def test_products_of_standard_attention_by_hand(catalog: Catalog) -> None:
    """GPT-3 on 8 ranks, 2 sequences at a time: 12 of 96 heads of 128 each, 2048 queries against 2048 keys."""
    operators = explain(plans([changed(LEGAL[0], micro_batch_size=2)]), catalog)
    shapes = {
        name: tuple(float(operators[axis][at]) for axis in ("m", "n", "k", "batch"))
        for at, name in enumerate(operators["operator"])
        if operators["phase"][at] == "forward"
    }
    assert shapes["attention scores"] == (2048.0, 2048.0, 128.0, 2 * 12.0)
    assert shapes["attention values"] == (2048.0, 128.0, 2048.0, 2 * 12.0)
