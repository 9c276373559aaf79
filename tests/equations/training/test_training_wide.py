"""Training beyond dense models: experts, latent and local attention, context, schedules, placement."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from training_samples import plans
from training_samples import result as time

from xlperf.calibrate.fitter import FittedConstant, calibration_table
from xlperf.catalog.calibration import declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine import evaluate, explain
from xlperf.engine.catalog_arrays import catalog_models
from xlperf.equations.model.model import distinct_share
from xlperf.equations.model.operators import parameter_count

H100 = "H100-SXM-80GB"
DENSE = {
    "model": "Meta-Llama-3.1-70B",
    "accelerator": H100,
    "num_accelerators": 64,
    "tensor_parallel": 4,
    "pipeline_parallel": 4,
    "global_batch_size": 64,
    "sequence_length": 8192,
}
MIXTURE = {
    "model": "Mixtral-8x7B-v0.1",
    "accelerator": H100,
    "num_accelerators": 64,
    "pipeline_parallel": 4,
    "expert_parallel": 8,
    "global_batch_size": 256,
    "sequence_length": 4096,
}
LATENT = {
    "model": "DeepSeek-V3",
    "accelerator": H100,
    "num_accelerators": 1024,
    "tensor_parallel": 2,
    "pipeline_parallel": 16,
    "expert_parallel": 64,
    "global_batch_size": 8192,
    "recompute": "full",
}
LOCAL = {"model": "Gemma-2-27B", "accelerator": H100, "num_accelerators": 16, "tensor_parallel": 8}
BOTH = {"model": "gpt-oss-120b", "accelerator": H100, "num_accelerators": 64, "expert_parallel": 64}


def test_architectures_do_not_meet_in_a_block(catalog: Catalog) -> None:
    """The same bits alone, among others of its kind and among other kinds."""
    table = plans(DENSE, MIXTURE, LATENT, LOCAL, BOTH, {**DENSE, "context_parallel": 2}, {**DENSE, "zero_stage": 0})
    together = evaluate(table.take(np.arange(70) % len(table)), catalog)
    for row in range(len(table)):
        alone = evaluate(table.take([row]), catalog)
        assert not np.isnan(alone["step_time"][0]), alone["reason"][0]
        for name, values in alone.columns.items():
            assert repr(values[0]) == repr(together[name][row]) == repr(together[name][row + 63]), (name, row)


@pytest.mark.parametrize("row", [DENSE, MIXTURE, LATENT, LOCAL, BOTH, {**DENSE, "context_parallel": 2}])
def test_an_explanation_accounts_for_the_step(catalog: Catalog, row: dict[str, object]) -> None:
    operators = explain(plans(row), catalog)
    assert operators["exposed_time"].sum() == pytest.approx(time(catalog, row), rel=1e-9)


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("Mixtral-8x7B-v0.1", 46.7, 12.9),
        ("Mixtral-8x22B-v0.1", 140.6, 39.1),
        ("Qwen3-235B-A22B", 235.1, 22.2),
        ("DeepSeek-V3", 671.0, 37.6),
        ("Kimi-K2-Instruct", 1026.4, 32.9),
        ("gpt-oss-120b", 116.8, 5.7),
        ("Gemma-2-27B", 27.2, 27.2),
    ],
)
def test_parameters_of_published_models(catalog: Catalog, name: str, total: float, active: float) -> None:
    """Billions, as the model cards have them; the input embedding counts as active."""
    models, _ = catalog_models(catalog)
    row = catalog.tables["models"]["model"].tolist().index(name)
    assert parameter_count(models)[row] / 1e9 == pytest.approx(total, rel=0.005)
    assert parameter_count(models, experts_per_token=True)[row] / 1e9 == pytest.approx(active, rel=0.01)


def test_experts_are_shared_over_their_ranks(catalog: Catalog) -> None:
    """Eight experts on 1, 2, 4, 8 ranks: what is not an expert stays, the rest divides."""
    weights = [time(catalog, MIXTURE, "memory_weights", expert_parallel=degree) for degree in (1, 2, 4, 8)]
    experts = [2 * (weights[0] - weights[1]), 4 * (weights[1] - weights[2]), 8 * (weights[2] - weights[3])]
    assert experts == pytest.approx([experts[0]] * 3, rel=1e-9)
    assert experts[0] == pytest.approx(8 * 8 * 3 * 4096 * 14336 * 2, rel=1e-9)  # 8 layers of a stage, 8 experts, BF16


def test_expert_exchange_costs_nothing_on_one_rank(catalog: Catalog) -> None:
    assert time(catalog, MIXTURE, "time_expert_parallel", expert_parallel=1) == 0.0
    assert time(catalog, MIXTURE, "time_expert_parallel") > 0.0
    half = time(catalog, MIXTURE, "time_expert_parallel", dispatch_precision="fp8")
    assert half < time(catalog, MIXTURE, "time_expert_parallel")


def test_a_token_goes_once_to_each_place_of_its_experts() -> None:
    assert distinct_share(8.0, 1.0) == pytest.approx(1.0)
    assert distinct_share(2.0, 2.0) == pytest.approx(0.75), "two of two places are met by three in four pairs"
    assert distinct_share(1e9, 8.0) == pytest.approx(1.0, rel=1e-6)
    many = distinct_share([64.0, 8.0, 2.0], 8.0)
    assert many.tolist() == sorted(many.tolist(), reverse=True)


def test_few_nodes_exchange_less_than_the_experts_of_a_token_say(catalog: Catalog) -> None:
    row = {**LATENT, "pipeline_parallel": 8, "tensor_parallel": 1, "num_accelerators": 512, "global_batch_size": 4096}
    exchange = [time(catalog, row, "time_expert_parallel", expert_parallel=ranks) for ranks in (8, 16, 32, 64)]
    assert exchange == sorted(exchange)


def test_embedding_and_output_may_count_as_layers(catalog: Catalog) -> None:
    row = {"model": "Meta-Llama-3.1-405B", "accelerator": "GB200-NVL72", "num_accelerators": 256, "tensor_parallel": 4,
           "pipeline_parallel": 16, "global_batch_size": 1536, "sequence_length": 8192}  # fmt: skip
    even = time(catalog, row, virtual_pipeline=4)
    assert time(catalog, row, virtual_pipeline=8) == pytest.approx(even, rel=0.2), "126 layers on 128 chunks"
    results = evaluate(plans({**row, "virtual_pipeline": 16}), catalog)
    assert np.isnan(results.number("step_time")[0])
    assert "needs more layers than the model's 126" in results.text("reason")[0]


def test_a_ring_runs_the_attention_in_batches(catalog: Catalog) -> None:
    row = {**DENSE, "context_parallel": 2, "pipeline_parallel": 2, "network": "DGX-H100"}
    cores = {}
    for method in ("ring", "all-gather"):
        operators = explain(plans({**row, "context_method": method}), catalog)
        chosen = [at for at, name in enumerate(operators.text("operator").tolist()) if name == "flash attention"]
        merged = [name for name in operators.text("operator").tolist() if name == "merge of partial attention"]
        assert len(merged) == (method == "ring")
        cores[method] = float(operators.number("total_time")[chosen].sum())
    assert 0.9 < cores["ring"] / cores["all-gather"] < 1.4, "the same work in smaller pieces, more even ones"


def test_models_with_experts_have_a_wider_band(catalog: Catalog) -> None:
    declared = {name: one.default for name, one in declared_constants()["band"].items()}
    bare = catalog.with_tables([calibration_table([])])
    # A pair that this stack has published runs of: elsewhere a source and a distance are added.
    known = {"software": "torch-fsdp2", "num_accelerators": 8, "pipeline_parallel": 1}
    mixture = {**MIXTURE, "model": "Qwen3-30B-A3B", **known}
    for row, factor in ((DENSE, 1.0), (mixture, declared["step_mixture"])):
        results = evaluate(plans(row), bare)
        step = results.number("step_time")
        for end in ("low", "high"):
            width = factor * declared["step"]
            assert np.abs(np.log(results.number(f"step_time_{end}") / step)) == pytest.approx(width, rel=1e-4)


def test_the_host_pays_per_tensor_parallel_rank(catalog: Catalog) -> None:
    slow = FittedConstant("training_software", "any", "any", "any", "rank_overhead_time", 5e-3, "", 0, 0.0, "", "")
    bare, held = (catalog.with_tables([calibration_table(rows)]) for rows in ([], [slow]))
    assert time(held, {**DENSE, "software": "x"}) > 1.2 * time(bare, {**DENSE, "software": "x"})
    alone = {**DENSE, "software": "x", "tensor_parallel": 1, "pipeline_parallel": 16}
    assert time(held, alone) == time(bare, alone)
    inside = {**DENSE, "software": "x", "num_accelerators": 8, "tensor_parallel": 8, "pipeline_parallel": 1}
    assert time(held, inside) == time(bare, inside), "only runs over several machines"


def test_experts_inputs_are_cast_one_by_one(catalog: Catalog) -> None:
    """A product of each expert, and a cast or two beside it in narrow formats.

    Of the overhead alone: a longer step hides more of the exchange of gradients.
    """
    one = FittedConstant("experts", "any", "any", "any", "launch_time", 1e-3, "", 0, 0.0, "", "")
    none = replace(one, value=0.0)
    slow, quick = (catalog.with_tables([calibration_table([row])]) for row in (one, none))
    added = []
    for name in ("bf16", "fp8", "fp8-current"):
        table = plans({**MIXTURE, "precision": name})
        after, before = (evaluate(table, constants)["time_overhead"][0] for constants in (slow, quick))
        added.append(after - before)
    assert [added[1] / added[0], added[2] / added[0]] == pytest.approx([2.0, 3.0])


def _waits(catalog: Catalog, name: str, value: float, **row: object) -> float:
    """What a constant of calls adds to a step of a stack without constants of its own. [s]"""
    one = FittedConstant("training_calls", "any", "any", "any", name, value, "", 0, 0.0, "", "")
    bare, waits = (catalog.with_tables([calibration_table(rows)]) for rows in ([], [one]))
    return time(waits, {**DENSE, **row}) - time(bare, {**DENSE, **row})


def test_gradients_that_nothing_shards_may_be_added_up_tensor_by_tensor(catalog: Catalog) -> None:
    """2 ms for each of the 20 layers of a stage and each of 4 replicas."""
    assert _waits(catalog, "reduction_time", 2e-3, zero_stage=0) == pytest.approx(0.16)
    assert _waits(catalog, "reduction_time", 2e-3, zero_stage=1) == 0.0


def test_an_allocator_without_room_waits_in_each_micro_batch(catalog: Catalog) -> None:
    """What is held beyond 94 % of the memory is given back and asked for again: the expected wait, half of it there."""
    sizes, bare = (1, 4), catalog.with_tables([calibration_table([])])
    row = {**DENSE, "tensor_parallel": 8}
    share = [evaluate(plans({**row, "micro_batch_size": size}), bare)["memory_share"][0] for size in sizes]
    for size, held in zip(sizes, share, strict=True):
        more = _waits(catalog, "retry_time", 0.5, tensor_parallel=8, micro_batch_size=size)
        reserve = 1.0 / 79.6  # of the driver, outside the allocator
        assert more == pytest.approx(0.5 * 32 / size / (1.0 + (0.94 / (held - reserve)) ** 40), rel=0.02)
        assert (more > 0.9 * 0.5 * 32 / size) == (held > 1.05) and (more < 0.1) == (held < 0.8)
    assert min(share) < 0.8 and max(share) > 1.05


def test_an_unbalanced_router_is_never_faster(catalog: Catalog) -> None:
    times = [time(catalog, MIXTURE, expert_imbalance=share) for share in (1.0, 1.3, 2.0)]
    assert times == sorted(times)
    assert times[2] > times[0]


def test_expert_parallel_may_exceed_data_parallel(catalog: Catalog) -> None:
    """Parallel folding: 1,024 ranks as TP 2, PP 16, EP 64 leave 32 replicas of the attention, one of each expert."""
    assert time(catalog, LATENT) > 0


def test_context_parallel_splits_tokens_and_activations(catalog: Catalog) -> None:
    base = {**DENSE, "pipeline_parallel": 1, "tensor_parallel": 8, "num_accelerators": 16, "global_batch_size": 16}
    alone, split = (evaluate(plans({**base, "context_parallel": size}), catalog) for size in (1, 2))
    assert split["memory_layer_activations"][0] == pytest.approx(alone["memory_layer_activations"][0] / 2, rel=1e-6)
    assert alone["time_context_parallel"][0] == 0.0
    for method in ("all-gather", "ulysses"):
        changed = {**base, "context_parallel": 2, "context_method": method, "tensor_parallel": 4, "num_accelerators": 8}
        assert time(catalog, changed, "time_context_parallel") > 0.0


def test_schedules_idle_less_from_gpipe_to_zero_bubble(catalog: Catalog) -> None:
    base = {**DENSE, "global_batch_size": 128}
    bubbles = {
        schedule: time(catalog, base, "time_pipeline_bubble", pipeline_schedule=schedule)
        for schedule in ("gpipe", "1f1b", "zero-bubble", "dualpipe")
    }
    chunks = time(catalog, base, "time_pipeline_bubble", virtual_pipeline=5)
    assert bubbles["gpipe"] == bubbles["1f1b"]
    assert bubbles["zero-bubble"] < bubbles["1f1b"]
    assert bubbles["dualpipe"] < bubbles["zero-bubble"]
    assert chunks == pytest.approx(bubbles["1f1b"] / 5, rel=0.05)
    memory = [time(catalog, base, "memory", pipeline_schedule=name) for name in ("1f1b", "gpipe", "dualpipe")]
    assert memory[1] > memory[0]
    assert memory[2] > memory[0]


def test_ranks_of_both_directions_share_what_the_ends_have_more(catalog: Catalog) -> None:
    """A rank of DualPipe has a stage of each end: half of its micro-batches meet the head, half the embedding."""
    plan = {**DENSE, "pipeline_parallel": 8, "global_batch_size": 256}

    def work(way: str, stages: tuple[int, int]) -> float:
        result = evaluate(plans({**plan, "pipeline_schedule": way, "first_stage_layers": stages[0],
                                "last_stage_layers": stages[1]}), catalog)  # fmt: skip
        return float(result["time_forward"][0])

    ends, between = (13, 13), (4, 4)  # 54 and 72 layers lie on six stages in between
    first, last = work("1f1b", (25, 1)), work("1f1b", (1, 25))
    assert work("dualpipe", (25, 1)) == work("dualpipe", (1, 25)) < min(first, last)
    assert work("dualpipe", ends) == pytest.approx(work("dualpipe", (25, 1)))
    assert work("1f1b", ends) > work("dualpipe", ends)
    assert work("dualpipe", between) == work("1f1b", between)


def test_placement_decides_which_groups_leave_the_machine(catalog: Catalog) -> None:
    """Stages innermost put transfers on the fast tier, and the gradients of the replicas on the slow one."""
    base = {**DENSE, "tensor_parallel": 1, "pipeline_parallel": 8, "zero_stage": 0}
    outer = evaluate(plans({**base, "dimension_order": "tp-cp-ep-dp-pp"}), catalog)
    inner = evaluate(plans({**base, "dimension_order": "tp-pp-cp-ep-dp"}), catalog)
    assert inner["time_pipeline_communication"][0] < outer["time_pipeline_communication"][0]
    assert inner["time_data_parallel"][0] > outer["time_data_parallel"][0]


def test_windows_make_long_sequences_cheaper(catalog: Catalog) -> None:
    """Half of Gemma 2's layers see 4,096 tokens: shorter sequences save nothing, long ones much."""
    full = catalog.tables["models"]
    row = full["model"].tolist().index("Gemma-2-27B")
    pattern, window = full["attention_pattern"].copy(), full["sliding_window"].copy()
    pattern[row], window[row] = "", np.nan
    everywhere = catalog.with_tables(
        [Table("models", {**full.columns, "attention_pattern": pattern, "sliding_window": window})]
    )
    ratio = [
        time(catalog, LOCAL, sequence_length=length) / time(everywhere, LOCAL, sequence_length=length)
        for length in (2048, 65536)
    ]
    assert ratio[0] > 0.97
    assert ratio[1] < 0.9


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({**MIXTURE, "expert_parallel": 16}, "expert parallel 16 is more than the 8 experts"),
        ({**DENSE, "expert_parallel": 2}, "the model has no experts: expert parallel 2 and expert tensor parallel 1"),
        ({**MIXTURE, "tensor_parallel": 2, "sequence_parallel": "no"}, "needs sequence parallel"),
        ({**DENSE, "context_parallel": 3, "num_accelerators": 48}, "context parallel 3 needs a sequence length (8192)"),
        ({**DENSE, "attention": "standard", "context_parallel": 2}, "standard attention needs whole rows of scores"),
        ({**DENSE, "pipeline_schedule": "dualpipe", "global_batch_size": 16}, "dualpipe needs at least twice as many"),
        ({**DENSE, "dimension_order": "tp-dp"}, "dimension order tp-dp must name tp, cp, ep, dp, pp once each"),
    ],
)
def test_illegal_plans_say_why(catalog: Catalog, row: dict[str, object], reason: str) -> None:
    results = evaluate(plans(row), catalog)
    assert reason in results["reason"][0]
    assert np.isnan(results["step_time"][0])
