"""What runs beside what in a training step: exchanges of experts, tensor and data parallelism, graphs; and its tax."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from shipped import shipped_published
from training_samples import plans
from training_samples import result as time

from xlperf.calibrate.fitter import FittedConstant, calibration_table, joined_tables
from xlperf.catalog.calibration import Calibration
from xlperf.catalog.catalog import Catalog
from xlperf.engine import evaluate, explain
from xlperf.measurements.published import published_columns, published_rows
from xlperf.measurements.training import training_plans

H100 = "H100-SXM-80GB"
MIXTURE = {
    "model": "DeepSeek-V3",
    "accelerator": H100,
    "num_accelerators": 512,
    "pipeline_parallel": 8,
    "expert_parallel": 64,
    "global_batch_size": 4096,
    "sequence_length": 4096,
    "token_dispatch": "once",
}
DENSE = {
    "model": "Meta-Llama-3.1-70B",
    "accelerator": H100,
    "num_accelerators": 64,
    "tensor_parallel": 8,
    "pipeline_parallel": 1,
    "global_batch_size": 64,
    "sequence_length": 8192,
}


def with_constant(catalog: Catalog, family: str, name: str, value: float, software: str = "megatron") -> Catalog:
    row = FittedConstant(family, "hopper", "any", software, name, value, "", 0, math.nan, "", "")
    return catalog.with_tables([joined_tables(catalog.tables["calibration"], calibration_table([row]))])


def test_an_exchange_beside_another_micro_batch_leaves_only_its_tax(catalog: Catalog) -> None:
    """Short against the kernels of a layer, it is hidden but for the tax; never is more than all of it seen."""
    row = {**MIXTURE, "pipeline_parallel": 1, "num_accelerators": 64, "global_batch_size": 128}  # one stage
    waited = time(catalog, row, "time_expert_parallel", expert_parallel=8)
    for tax in (0.0, 0.3, 1.0):
        taxed = with_constant(catalog, "experts", "overlap_tax", tax)
        beside = time(taxed, row, "time_expert_parallel", expert_parallel=8, expert_overlap="yes")
        assert beside == pytest.approx(tax * waited, rel=1e-9, abs=1e-12)


def test_what_does_not_fit_beside_the_kernels_is_waited_for(catalog: Catalog) -> None:
    slow = with_constant(catalog, "experts", "exchange_slowdown", 4.0)
    slow = with_constant(slow, "experts", "overlap_tax", 0.0)
    waited = time(slow, MIXTURE, "time_expert_parallel")
    beside = time(slow, MIXTURE, "time_expert_parallel", expert_overlap="yes")
    parts = ("time_forward", "time_backward", "time_overhead")  # an exchange also runs while the host is waited for
    kernels = sum(time(slow, MIXTURE, name) for name in parts)
    assert beside < waited
    assert beside >= waited - 1.0001 * kernels


def test_a_token_that_goes_to_few_nodes_crosses_few_links(catalog: Catalog) -> None:
    """Eight experts of 256 lie in 5.25 of 8 nodes on average: a limit of 8 changes nothing, of 4 and of 1 it does."""
    exchanged = [time(catalog, MIXTURE, "time_expert_parallel", dispatch_nodes=nodes) for nodes in (None, 8, 4, 1)]
    assert exchanged[0] == exchanged[1] > exchanged[2] > exchanged[3] > 0.0
    inside = {**MIXTURE, "expert_parallel": 8}
    assert time(catalog, inside, dispatch_nodes=1) == time(catalog, inside), "one node holds them all"


def test_a_token_that_goes_to_few_ranks_is_sent_fewer_times(catalog: Catalog) -> None:
    """Eight experts of 256 lie on 5.25 of 8 ranks on average; on one rank at most, a copy is sent for eight."""
    inside = {**MIXTURE, "expert_parallel": 8}
    whole, eight, three, one = (time(catalog, inside, dispatch_ranks=ranks) for ranks in (None, 8, 3, 1))
    assert whole == eight > three > one
    sent = [time(catalog, inside, "time_expert_parallel", dispatch_ranks=ranks) for ranks in (2, 1)]
    assert 1.5 < sent[0] / sent[1] <= 2.0
    across = [time(catalog, MIXTURE, "time_expert_parallel", dispatch_ranks=ranks) for ranks in (None, 1)]
    assert across[1] == time(catalog, MIXTURE, "time_expert_parallel", dispatch_nodes=1) < across[0]


def test_chunks_of_a_pipeline_are_reduced_beside_each_other(catalog: Catalog) -> None:
    """One chunk has its own last pass alone; of more, the others' passes hide all that the last one is not."""
    untaxed = with_constant(catalog, "training_software", "overlap_tax", 0.0)
    row = {**DENSE, "num_accelerators": 2048, "pipeline_parallel": 8, "global_batch_size": 512}
    seen = [time(untaxed, row, "time_data_parallel", virtual_pipeline=chunks) for chunks in (1, 2, 5, 10)]
    assert seen[0] > seen[1] > seen[2] > seen[3]
    whole = time(untaxed, row, "time_data_parallel", data_overlap="no")
    assert whole > seen[0]
    assert time(untaxed, row, "time_data_parallel", data_overlap="no", virtual_pipeline=5) == pytest.approx(whole)


def test_graphs_take_the_host_out_of_the_step(catalog: Catalog) -> None:
    slow = with_constant(catalog, "experts", "launch_time", 1e-4)
    slow = with_constant(slow, "experts", "layer_overhead_time", 2e-2)
    slow = with_constant(slow, "training_software", "layer_overhead_time", 1e-2)
    padded = {**MIXTURE, "expert_capacity": 1}
    waits = [time(slow, padded, "time_overhead", graphs=graphs) for graphs in ("none", "layers", "step")]
    assert waits[0] >= waits[1] > waits[2] == 0.0
    dense = {**DENSE, "micro_batch_size": 1}
    assert time(slow, dense, "time_overhead") > time(slow, dense, "time_overhead", graphs="layers") == 0.0


def test_a_graph_of_whole_layers_takes_the_experts_that_are_padded(catalog: Catalog) -> None:
    """Counts of tokens change nothing then: no launch and no wait is left, and no kernel changes."""
    slow = with_constant(catalog, "experts", "launch_time", 1e-4)
    padded = {**MIXTURE, "expert_capacity": 1}
    assert time(slow, padded, "time_overhead", graphs="layers") > 0.0
    assert time(slow, padded, "time_overhead", graphs="whole-layers") == 0.0
    kernels = [time(slow, padded, "time_backward", graphs=graphs) for graphs in ("none", "whole-layers")]
    assert kernels[0] == kernels[1]


def test_graphs_of_a_step_need_what_graphs_of_whole_layers_need(catalog: Catalog) -> None:
    """One rule for part and whole: Qwen3-30B on H100 in BF16, whose dropless experts wait for counts of tokens.

    Megatron-LM pull request 5728 publishes 240 TFLOP/s for this model on H100; a step graph would have made 375. Fused
    grouped products in MXFP8 take the counts from memory (Megatron-Bridge recipes for GB200: full iteration graphs).
    """
    row = {"model": "Qwen3-30B-A3B", "accelerator": "H100-SXM-80GB", "num_accelerators": 16, "pipeline_parallel": 2}
    row |= {"virtual_pipeline": 24, "expert_parallel": 8, "global_batch_size": 512, "software": "nemo"}
    for graphs in ("step", "whole-layers"):
        results = evaluate(plans({**row, "graphs": graphs}), catalog)
        assert np.isnan(results.number("step_time")[0])
        wanted = f"graphs {graphs} need an expert capacity (or products in mxfp8 or fp4): the host waits for the counts"
        assert results["reason"][0].startswith(wanted)
        padded = {**row, "graphs": graphs, "expert_capacity": 1}
        narrow = {**row, "graphs": graphs, "accelerator": "GB200-NVL72", "precision": "mxfp8"}
        assert (evaluate(plans(padded, narrow), catalog).number("step_time") > 0.0).all()
    assert evaluate(plans({**row, "graphs": "layers"}), catalog).number("step_time")[0] > 0.0


def test_each_expert_of_a_rank_waits_for_its_launches(catalog: Catalog) -> None:
    """256 experts on 64 ranks are 4 each: 3 x 4 x 0.1 ms for each of 8 mixtures of a stage and micro-batch."""
    none = with_constant(catalog, "experts", "launch_time", 0.0)
    some = with_constant(catalog, "experts", "launch_time", 1e-4)
    row = {**MIXTURE, "pipeline_parallel": 1, "num_accelerators": 64, "global_batch_size": 128}
    more = time(some, row, "time_overhead") - time(none, row, "time_overhead")
    assert more == pytest.approx(2 * 58 * 3 * 4 * 1e-4, rel=1e-9)
    again = time(some, row, "time_overhead", recompute="full") - time(none, row, "time_overhead", recompute="full")
    assert again == pytest.approx(2 * 58 * 4 * 4 * 1e-4, rel=1e-9)


def test_experts_with_a_capacity_have_no_counts_to_wait_for(catalog: Catalog) -> None:
    """The host knows how many tokens each expert takes and keeps its lead, forward and where it computes again."""
    none, some = (with_constant(catalog, "training_software", "layer_overhead_time", value) for value in (0.0, 1e-3))
    row = {**MIXTURE, "pipeline_parallel": 1, "num_accelerators": 64, "global_batch_size": 128}
    for recompute in ("none", "full"):
        padded = [time(known, row, "time_overhead", recompute=recompute, expert_capacity=1) for known in (none, some)]
        assert padded[0] == pytest.approx(padded[1], rel=1e-12)
        assert padded[1] < time(some, row, "time_overhead", recompute=recompute)


def test_a_layer_of_experts_waits_for_the_counts_of_tokens(catalog: Catalog) -> None:
    """Then for the launches of one layer: in each forward pass of 58 mixtures, two micro-batches; not backward."""
    some = with_constant(catalog, "training_software", "layer_overhead_time", 1e-3)
    none = with_constant(catalog, "training_software", "layer_overhead_time", 0.0)
    row = {**MIXTURE, "pipeline_parallel": 1, "num_accelerators": 64, "global_batch_size": 128}
    for recompute, passes in (("none", 1), ("full", 2)):
        more = time(some, row, "time_overhead", recompute=recompute) - time(
            none, row, "time_overhead", recompute=recompute
        )
        assert more == pytest.approx(2 * 58 * passes * 1e-3, rel=1e-9)
    for graphs, capacity in (("layers", math.nan), ("step", 1.0)):
        captured = {**row, "graphs": graphs, "expert_capacity": capacity}
        assert time(some, captured) == time(none, captured)


def test_tensor_parallelism_is_waited_for_as_far_as_a_plan_says(catalog: Catalog) -> None:
    """With half hidden: none shows all of it, both passes show half, and gradients alone, as a blank, in between."""
    half = with_constant(catalog, "training_software", "tensor_parallel_overlap", 0.5)
    shown = {kind: time(half, DENSE, "time_tensor_parallel", tensor_overlap=kind) for kind in ("none", "gradients")}
    both = time(half, DENSE, "time_tensor_parallel", tensor_overlap="all")
    assert shown["gradients"] == time(half, DENSE, "time_tensor_parallel")
    assert shown["none"] == pytest.approx(2.0 * both, rel=1e-12)
    assert both < shown["gradients"] < shown["none"]


def test_sequence_parallelism_gathers_twice_in_the_backward_pass(catalog: Catalog) -> None:
    """Two blocks of 80 layers, 8 micro-batches; the embedding and the output projection are in the forward pass."""
    half = with_constant(catalog, "training_software", "tensor_parallel_overlap", 0.5)
    shown = explain(plans({**DENSE, "tensor_overlap": "none"}), half)
    row = {name: at for at, name in enumerate(shown["operator"].tolist())}
    at_gather, at_scatter = row["tensor-parallel gather"], row["tensor-parallel scatter"]
    of_gradients = row["tensor-parallel gather of gradients"]
    forward, backward = 8 * (2 * 80 + 2), 8 * 2 * 80
    assert (shown["calls"][at_gather], shown["calls"][at_scatter]) == (forward + backward, forward + backward)
    assert (shown["calls"][of_gradients], shown["time"][of_gradients]) == (backward, shown["time"][at_gather])
    gather, scatter = float(shown["time"][at_gather]), float(shown["time"][at_scatter])
    waited = {
        "none": forward * (gather + scatter) + backward * (2.0 * gather + scatter),
        "gradients": forward * (gather + scatter) + backward * (gather + 0.5 * (gather + scatter)),
        "all": 0.5 * (forward * (gather + scatter) + backward * (2.0 * gather + scatter)),
    }
    for kind, expected in waited.items():
        result = time(half, DENSE, "time_tensor_parallel", tensor_overlap=kind)
        assert result == pytest.approx(expected, rel=1e-9), kind


def test_hidden_communication_of_data_parallelism_leaves_its_tax(catalog: Catalog) -> None:
    window = with_constant(catalog, "training_software", "data_parallel_overlap", 1.0)
    row = {**DENSE, "zero_stage": 3, "tensor_parallel": 1, "micro_batch_size": 1}
    times = [
        time(with_constant(window, "training_software", "overlap_tax", tax), row, "time_data_parallel")
        for tax in (0.0, 0.25, 0.5)
    ]
    assert times[0] < times[1] < times[2]
    assert times[2] - times[1] == pytest.approx(times[1] - times[0], rel=1e-9)


def test_a_reduction_that_sets_the_pace_hides_what_kernels_lose_to_it(catalog: Catalog) -> None:
    """On a network fifty times slower weights and gradients move all the time: the tax is not paid on top of that."""
    links = catalog.tables["networks"]
    narrow = {**links.columns, "link_bandwidth": 0.02 * links.number("link_bandwidth")}
    slow = catalog.with_tables([replace(links, columns=narrow)])
    slow = with_constant(slow, "training_software", "data_parallel_overlap", 1.0)
    row = {**DENSE, "zero_stage": 3, "tensor_parallel": 1, "micro_batch_size": 1}
    times = [time(with_constant(slow, "training_software", "overlap_tax", tax), row) for tax in (0.0, 0.3, 1.0)]
    assert times[0] == times[1] < times[2]


STEP_GRAPH = {"graphs": "step", "expert_capacity": 1}


@pytest.mark.parametrize("change", [{}, {"expert_overlap": "yes"}, STEP_GRAPH, {"attention": "standard"}])
def test_an_explanation_accounts_for_the_step(catalog: Catalog, change: dict[str, object]) -> None:
    row = {**MIXTURE, **change}
    operators = explain(plans(row), catalog)
    assert operators["exposed_time"].sum() == pytest.approx(time(catalog, row), rel=1e-9)


def test_standard_attention_of_compressed_heads_has_their_sizes(catalog: Catalog) -> None:
    """Scores over 192 wide queries, values 128 wide; 128 heads of 4,096 tokens squared."""
    operators = explain(plans({**MIXTURE, "attention": "standard"}), catalog)
    names = operators["operator"].tolist()
    for name, depth in (("attention scores", 192), ("attention values", 128)):
        row = next(i for i, shown in enumerate(names) if shown == name and operators["phase"][i] == "forward")
        assert operators["flop"][row] == pytest.approx(2.0 * 128 * 4096**2 * depth, rel=1e-9)
    assert time(catalog, MIXTURE, attention="standard") > time(catalog, MIXTURE)


def test_tensors_of_dtensor_are_copied_beside_their_collectives(catalog: Catalog) -> None:
    """pytorch issue 88838: Llama 3 8B on 8 H100, eager, 26.9 % MFU on eight shards, 22.4 on two with four ranks each.

    The ratio is 0.833; all of it, copies included, is exposed. What was gathered stays, and is not gathered again.
    """
    row = {"model": "Llama3-8B", "accelerator": "H100-96GB-HBM2e-500W", "num_accelerators": 8, "sequence_length": 8192}
    row |= {"global_batch_size": 8, "zero_stage": 3, "recompute": "full", "software": "torchtitan", "compiled": "no"}
    split = {**row, "tensor_parallel": 4, "micro_batch_size": 4, "tensor_overlap": "none"}
    assert time(catalog, split, "mfu") / time(catalog, row, "mfu") == pytest.approx(0.224 / 0.269, rel=0.03)
    copy = 2.0 * (4 * 8192 * 4096 * 2.0) / (0.65 * 2.4e12)  # 268 MB read and written at 0.65 of 2.4 TB/s
    for software, calls, copies in (("torchtitan", 66, 260), ("megatron", 130, 0)):
        shown = explain(plans({**split, "recompute": "none", "software": software}), catalog)
        operators = shown.text("operator").tolist()
        rows = [row for row, name in enumerate(operators) if name.startswith("tensor-parallel")]
        assert shown.number("calls")[operators.index("tensor-parallel gather")] == calls
        alone = (shown.number("calls") * shown.number("time"))[rows].sum()
        assert shown.number("exposed_time")[rows].sum() - alone == pytest.approx(copies * copy, rel=1e-6, abs=1e-9)


def test_rows_of_a_block_keep_their_bits(catalog: Catalog) -> None:
    changes: list[dict[str, object]] = [
        {}, {"expert_overlap": "yes"}, STEP_GRAPH, {"graphs": "layers", "tensor_overlap": "gradients"},
        {"dispatch_nodes": 4}, {"attention": "standard"},
    ]  # fmt: skip
    table = plans(*({**MIXTURE, **change} for change in changes))
    together = evaluate(table.take(np.arange(60) % len(table)), catalog)
    for row in range(len(table)):
        alone = evaluate(table.take([row]), catalog)
        for name, values in alone.columns.items():
            assert repr(values[0]) == repr(together[name][row]) == repr(together[name][row + 54]), (name, row)


@pytest.mark.parametrize(
    ("printed", "source", "software", "release"),
    [
        ("NeMo", "a blog", "nemo-bridge", ""),
        ("Megatron-Bridge", "a blog", "nemo-bridge", ""),
        ("nemo", "docs [26.02 NeMo Container / Pre-Training]", "nemo-bridge", "26.02"),
        ("nemo", "a README (v25.05)", "nemo", "25.05"),
        ("nemo", "bignlp-training:22.09", "nemo-2022", "22.09"),
        ("megatron", "a blog", "megatron", ""),
    ],
)
def test_the_name_and_the_release_say_which_stack_ran(
    printed: str, source: str, software: str, release: str, catalog: Catalog
) -> None:
    """A source that nobody has seen, whose blanks then mean what that stack does."""
    columns = list(published_columns()["training"])
    stated = {
        "row_id": "A", "source_id": "elsewhere", "source": source, "group": "moe", "software": printed,
        "model": "Qwen3-30B-A3B", "gpu": "GB200-NVL72", "n_gpus": "8", "tp": "1", "pp": "1", "ep": "8", "gbs": "512",
        "mbs": "4", "seq_len": "4096", "precision": "mxfp8", "iter_time_s": "1", "metric_kind": "throughput",
    }  # fmt: skip
    published = published_rows(columns, [[stated.get(name, "") for name in columns]], lambda row, column: column)
    plan = training_plans(published, catalog).plans
    assert [plan.text(name)[0] for name in ("software", "software_release")] == [software, release]
    assert [plan.text(name)[0] for name in ("graphs", "token_dispatch", "cross_entropy")] == ["", "", ""]


def test_kernels_of_a_stack_are_those_of_its_attention_library() -> None:
    fitted = [
        FittedConstant("attention", "hopper", "bf16", name, "compute_efficiency", value, "a", 3, 0.1, "d", "s")
        for name, value in (("any", 0.8), ("flashattention-2", 0.5))
    ]
    known = Calibration(calibration_table(fitted))
    stacks = ("nanotron", "torch-fsdp", "torchtitan", "megatron")
    values = known.values_of("attention", ["compute_efficiency"], [("hopper", "bf16", name) for name in stacks])
    assert values[:, 0].tolist() == [0.5, 0.5, 0.5, 0.8]


def test_pytorch_fsdp_is_one_stack_compiled_and_another_eager(catalog: Catalog) -> None:
    """Whichever of the two is named; only vector kernels, what hides messages and bands tell them apart."""
    row = {**DENSE, "model": "Meta-Llama-3.1-8B", "tensor_parallel": 1, "zero_stage": 3, "cross_entropy": "fused"}
    row["recompute"] = "none"
    names = ("step_time", "time_forward", "step_time_high", "memory")
    for generation in (H100, "A100-SXM4-80GB"):
        row["accelerator"] = generation
        result = {(software, compiled): [time(catalog, row, name, software=software, compiled=compiled)
                                        for name in names]
                 for software in ("torchtitan", "torch-fsdp") for compiled in (None, "yes", "no")}  # fmt: skip
        fused, eager = result["torchtitan", None], result["torch-fsdp", None]
        assert fused == result["torchtitan", "yes"] == result["torch-fsdp", "yes"]
        assert eager == result["torchtitan", "no"] == result["torch-fsdp", "no"]
        assert fused[0] < eager[0]


def test_what_is_not_compiled_runs_its_vector_kernels_as_eager_pytorch(catalog: Catalog) -> None:
    row = {**DENSE, "tensor_parallel": 1, "num_accelerators": 8, "global_batch_size": 8, "software": "home-made"}

    def kernels(compiled: str | None, software: str = "home-made") -> dict[str, float]:
        shown = explain(plans({**row, "compiled": compiled, "software": software}), catalog)
        return dict(zip(shown["operator"].tolist(), shown["time"].tolist(), strict=True))

    own, yes, no = kernels(None), kernels("yes"), kernels("no")
    eager, slowdown = kernels(None, "torch-fsdp"), own["qkv"] / kernels(None, "torch-fsdp")["qkv"]
    assert own == yes, "nobody measured how it fuses: as vector kernels were measured"
    for name in ("mlp norm", "activation gradient", "rotary embedding"):
        assert no[name] == pytest.approx(slowdown * eager[name], rel=1e-9) and no[name] > 2.0 * yes[name]
    assert all(no[name] == own[name] for name in ("qkv", "mlp down", "flash attention"))


def test_fused_experts_take_their_activation_in(catalog: Catalog) -> None:
    row = {"model": "Mixtral-8x7B-v0.1", "accelerator": H100, "num_accelerators": 8, "expert_parallel": 8}
    shown = {kind: explain(plans({**row, "graphs": kind}), catalog)["operator"].tolist() for kind in ("none", "step")}
    assert "activation" in shown["none"] and "activation" not in shown["step"]


def test_biases_of_experts_are_kernels_of_their_own(catalog: Catalog) -> None:
    """gpt-oss: 4 copies of 4,096 tokens by 3 x 2,880 elements, 28 bytes each forward and 36 backward."""
    row = {"model": "gpt-oss-120b", "accelerator": H100, "num_accelerators": 64, "expert_parallel": 64}
    operators = explain(plans({**row, "sequence_length": 4096}), catalog)
    names = operators["operator"].tolist()
    for name, size in (("expert biases", 28.0), ("expert bias gradients", 36.0)):
        assert operators["traffic"][names.index(name)] == pytest.approx(4 * 4096 * 3 * 2880 * size, rel=1e-12)
    assert "expert biases" not in explain(plans({**row, "graphs": "step"}), catalog)["operator"].tolist()


def test_experts_are_split_over_tensor_ranks_where_a_stack_does_so(catalog: Catalog) -> None:
    published = shipped_published()[0]
    ids = published.text["row_id"]
    result = training_plans(published.take([ids.index("T00418"), ids.index("T00635")]), catalog).plans
    assert result["expert_tensor_parallel"].tolist() == [4.0, 1.0]
    assert result["tensor_parallel"].tolist() == [4.0, 4.0]


def test_gradients_that_are_added_up_apart_cost_a_pass_over_them(catalog: Catalog) -> None:
    """Each micro-batch reads its 16-bit gradients and the FP32 sum and writes that; the products write 16 bits."""
    row = {**DENSE, "zero_stage": 1}
    table = plans({**row, "gradient_accumulation": "separate"})
    operators = explain(table, catalog, 0)
    added = np.char.endswith(operators["operator"].astype(str), "gradient accumulation")
    result = evaluate(table, catalog)
    weights = result["memory_weights"][0] / 2.0 - 128256 * 8192 / 8  # the embedding is looked up, not multiplied
    assert operators["traffic"][added] @ operators["calls"][added] == pytest.approx(8 * 10.0 * weights, rel=0.01)
    fused, apart = (time(catalog, row, gradient_accumulation=way) for way in ("fused", "separate"))
    assert 1.0 < apart / fused < 1.1
    less = time(catalog, row, gradient_accumulation="separate", global_batch_size=8)
    assert apart - fused > 3.0 * (less - time(catalog, row, global_batch_size=8)), "in every micro-batch"


FSDP = {
    "model": "Llama3-70B",
    "accelerator": "H200-SXM-141GB",
    "num_accelerators": 64,
    "tensor_parallel": 4,
    "zero_stage": 3,
    "global_batch_size": 128,
    "micro_batch_size": 2,
    "sequence_length": 4096,
    "recompute": "full",
    "gradient_accumulation": "separate",
    "cross_entropy": "plain",
}


def test_gradients_that_are_added_up_whole_are_reduced_once_and_stay_in_memory(catalog: Catalog) -> None:
    """FSDP's no_sync: weights are gathered for each of the four micro-batches, gradients reduced after the last."""
    shards, whole = plans(FSDP), plans({**FSDP, "gradient_accumulation": "whole"})
    calls = {}
    for way, table in (("shards", shards), ("whole", whole)):
        operators = explain(table, catalog, 0)
        for name in ("gradient reduction", "weight gathering"):
            calls[way, name] = float(operators["calls"][operators["operator"] == name].sum())
    assert calls == {
        ("shards", "gradient reduction"): 4.0,
        ("shards", "weight gathering"): 8.0,
        ("whole", "gradient reduction"): 1.0,
        ("whole", "weight gathering"): 8.0,
    }
    before, after = evaluate(shards, catalog), evaluate(whole, catalog)
    assert after["time_data_parallel"][0] < before["time_data_parallel"][0]
    assert after["memory_gradients"][0] == pytest.approx(16.0 * before["memory_gradients"][0], rel=1e-6)
    kept = {**FSDP, "gradient_accumulation": "whole", "global_batch_size": 32}
    one, other = evaluate(plans(kept), catalog), evaluate(plans({**kept, "gradient_accumulation": "separate"}), catalog)
    assert one["step_time"][0] == other["step_time"][0] and one["memory"][0] == other["memory"][0], "one micro-batch"
    unsharded = [
        evaluate(plans({**FSDP, "zero_stage": 1, "gradient_accumulation": way}), catalog)
        for way in ("separate", "whole")
    ]
    assert unsharded[0]["step_time"][0] == unsharded[1]["step_time"][0], "whole in any case"


def test_logits_that_every_rank_gathers_cost_memory_and_a_gathering(catalog: Catalog) -> None:
    split, whole = plans(FSDP), plans({**FSDP, "cross_entropy": "gathered"})
    before, after = evaluate(split, catalog), evaluate(whole, catalog)
    logits = 2 * 4096 * 128256
    more = after["memory_activations"][0] - before["memory_activations"][0]
    assert 0.5 * 14 * 0.75 * logits < more <= 14 * 0.75 * logits, "the other three quarters, 14 bytes each"
    operators = explain(whole, catalog, 0)
    gathered = operators["operator"] == "gathering of logits"
    assert operators["traffic"][gathered].sum() == pytest.approx(2.0 * logits)
    assert operators["calls"][gathered].sum() == 4.0
    assert after["time_tensor_parallel"][0] > before["time_tensor_parallel"][0]
    assert not (explain(split, catalog, 0)["operator"] == "gathering of logits").any()
    alone = {**FSDP, "tensor_parallel": 1}
    one, other = (time(catalog, alone, cross_entropy=way) for way in ("plain", "gathered"))
    assert one == other, "one rank has all logits"


def test_gradients_that_wait_for_the_last_backward_pass_are_seen_in_full(catalog: Catalog) -> None:
    far = {**DENSE, "num_accelerators": 512, "global_batch_size": 512}
    beside, after = (time(catalog, far, "time_data_parallel", data_overlap=way) for way in ("yes", "no"))
    assert after > beside
    alone = {**DENSE, "num_accelerators": 8, "global_batch_size": 8, "zero_stage": 0}
    assert time(catalog, alone, data_overlap="no") == time(catalog, alone), "one replica has nothing to reduce"
