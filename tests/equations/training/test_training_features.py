"""Training: what a plan and a model may ask for beyond degrees and batch."""

from __future__ import annotations

import numpy as np
import pytest
from shipped import shipped_published
from training_samples import H100, NARROW, plans, result

from xlperf.base.resources import rows, stack_rows
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine import evaluate, explain
from xlperf.engine.catalog_arrays import catalog_models
from xlperf.engine.join import architecture_codes, named_rows
from xlperf.engine.models import architecture_of
from xlperf.engine.training import training_setting
from xlperf.equations.model.model import distinct_share
from xlperf.equations.model.operators import mtp_parameters, parameter_count
from xlperf.equations.training.setting import stages_of
from xlperf.measurements.training import training_plans

DENSE = {
    "model": "Meta-Llama-3.1-70B",
    "accelerator": H100,
    "num_accelerators": 64,
    "tensor_parallel": 4,
    "pipeline_parallel": 4,
    "global_batch_size": 64,
    "sequence_length": 8192,
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


def test_two_stages_with_given_layers_idle_and_reduce_gradients(catalog: Catalog) -> None:
    """No stage in between: the bubble and the gradients are those of the fuller end."""
    row = {**DENSE, "num_accelerators": 64, "pipeline_parallel": 2}
    even = {name: result(catalog, row, name) for name in ("time_pipeline_bubble", "time_data_parallel")}
    given = {name: result(catalog, row, name, first_stage_layers=40, last_stage_layers=40) for name in even}
    assert given == even and even["time_pipeline_bubble"] > 0.0


# --- time of a layer, standard attention ---------------------------------------------------------------------------


def test_layers_make_up_the_step_of_one_replica(catalog: Catalog) -> None:
    """One stage, one replica: the layers, and on top the embedding, the head and the optimizer."""
    row = {**DENSE, "num_accelerators": 8, "tensor_parallel": 8, "pipeline_parallel": 1, "global_batch_size": 4}
    step = result(catalog, row)
    layers = 80.0 * 4.0 * result(catalog, row, "layer_time")
    outside = result(catalog, row, "time_optimizer") + result(catalog, row, "time_data_parallel")
    assert 0.90 * step < layers < step - outside


def test_standard_attention_with_latent_attention_and_context(catalog: Catalog) -> None:
    """Scores are written: slower and larger than flash; each rank of a context keeps its share of them."""
    row = {**LATENT, "recompute": "none"}
    assert result(catalog, row, attention="standard") > result(catalog, row)
    scores = result(catalog, row, "memory_layer_activations", attention="standard") - result(
        catalog, row, "memory_layer_activations"
    )
    # 15 micro-batches in flight on the second stage of 4 layers, 64 heads, 4096 x 4096 scores of 2 bytes
    assert scores == pytest.approx(15.0 * 4.0 * 64.0 * 4096.0**2 * 2.0, rel=1e-9)
    dense = {**DENSE, "attention": "standard", "context_method": "all-gather", "global_batch_size": 128}
    whole = result(catalog, dense, "memory_layer_activations", pipeline_parallel=4)
    half = result(catalog, dense, "memory_layer_activations", context_parallel=2, pipeline_parallel=4)
    assert half == pytest.approx(whole / 2.0, rel=1e-9)


# --- multi-token prediction ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ahead(catalog: Catalog) -> Catalog:
    """The catalog with the module of DeepSeek-V3 and one, made up, of Llama 3.1 8B."""
    table = catalog.tables["models"]
    names = table.text("model").tolist()
    modules = np.array([1.0 if name in ("DeepSeek-V3", "Meta-Llama-3.1-8B") else np.nan for name in names])
    return catalog.with_tables([Table("models", {**table.columns, "num_mtp_layers": modules}, table.place)])


TRAINED = {"model": "DeepSeek-V3", "accelerator": H100, "num_accelerators": 256, "pipeline_parallel": 4}
TRAINED |= {"expert_parallel": 64, "global_batch_size": 1024, "sequence_length": 4096, "recompute": "full"}
ONE = {"model": "Meta-Llama-3.1-8B", "accelerator": H100, "num_accelerators": 1, "global_batch_size": 4}


def test_deepseek_v3_weights_file_has_a_module_of_its_own(ahead: Catalog) -> None:
    """README_WEIGHTS: 671 billion of the model beside 11.5 billion that the module does not share."""
    models = ahead.tables["models"].text("model").tolist()
    model = catalog_models(ahead)[0]
    row = models.index("DeepSeek-V3")
    attention = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    experts = 257 * 3 * 7168 * 2048 + 256 * 7168
    small = 2 * 7168 + 1536 + 512 + 3 * 7168
    assert mtp_parameters(model)[row] == attention + experts + small + 2 * 7168**2
    assert mtp_parameters(model)[row] == pytest.approx(11.5e9, rel=0.01)
    assert parameter_count(model)[row] == pytest.approx(671e9, rel=0.01)
    assert np.all(mtp_parameters(model)[np.array(models) == "Mixtral-8x7B-v0.1"] == 0.0)


def test_a_trained_module_is_a_layer_a_projection_and_a_head(ahead: Catalog) -> None:
    """By hand for Llama 3.1 8B: model FLOP, weights and optimizer, kept activations of one sequence."""
    plain, trained = ({**ONE, "train_mtp": flag, "sequence_length": 4096} for flag in ("no", "yes"))
    rate = [result(ahead, row, "model_flop_rate") * result(ahead, row) for row in (plain, trained)]
    layer = 2 * 4096 * 128 * 40 + 3 * 4096 * 14336
    met = layer + 2 * 4096**2 + 4096 * 128256 + 2 * 4096 * 4096
    assert rate[1] - rate[0] == pytest.approx(6.0 * met * 4096 * 4, rel=1e-9)
    own = layer + 2 * 4096 + 2 * 4096**2 + 3 * 4096
    for part, size in (("memory_weights", 2.0), ("memory_optimizer", 12.0)):
        grown = result(ahead, trained, part) - result(ahead, plain, part)
        assert grown == pytest.approx(own * size, rel=1e-9)
    kept = result(ahead, plain, "memory_layer_activations") / 32.0
    grown = result(ahead, trained, "memory_layer_activations") - 32.0 * kept
    assert grown == pytest.approx(kept + 5.0 * 4096 * 4096 * 2, rel=1e-9)


def test_a_module_and_its_head_count_as_layers_of_the_last_stage(ahead: Catalog) -> None:
    """Megatron-Bridge: Et*4|(t*4|)*14tmL on 16 stages; on 4 stages 16, 16, 16 and 13, the slowest as before."""
    table = plans({**TRAINED, "train_mtp": "yes", "num_accelerators": 1024, "pipeline_parallel": 16})
    named = named_rows(table, ahead)
    setting = training_setting(table, ahead, named, architecture_of(int(architecture_codes(named, ahead)[0])))[0]
    assert [float(layers[0]) for layers in stages_of(setting.model, setting.plan)] == [4.0, 4.0, 1.0]
    plain = result(ahead, TRAINED)
    trained = result(ahead, TRAINED, train_mtp="yes")
    assert trained == pytest.approx(plain, rel=0.01)
    heavy = {**TRAINED, "first_stage_layers": 15, "last_stage_layers": 16}
    assert result(ahead, heavy, train_mtp="yes") > result(ahead, heavy) * (1.0 + 1.0 / 62.0)
    assert result(ahead, heavy, "memory", train_mtp="yes") > result(ahead, heavy, "memory")


def test_modules_that_a_model_lacks_are_not_trained(ahead: Catalog) -> None:
    results = evaluate(plans({**DENSE, "train_mtp": "yes"}), ahead)
    assert np.isnan(results["step_time"][0])
    assert results["reason"][0] == "the model has no multi-token prediction modules to train"


def test_rows_with_and_without_modules_are_the_same_together_and_alone(ahead: Catalog) -> None:
    table = plans(TRAINED, {**TRAINED, "train_mtp": "yes"}, {**LATENT, "train_mtp": "yes"}, LATENT, TRAINED)
    together = evaluate(table, ahead)
    for row in range(len(table)):
        alone = evaluate(table.take([row]), ahead)
        for name, values in alone.columns.items():
            assert repr(values[0]) == repr(together[name][row]), (name, row)


@pytest.mark.parametrize("row", [ONE, {**TRAINED, "first_stage_layers": 15, "last_stage_layers": 16}])
def test_an_explanation_with_modules_accounts_for_the_step(ahead: Catalog, row: dict[str, object]) -> None:
    table = plans({**row, "train_mtp": "yes"})
    parts = explain(table, ahead)
    kernels = np.isin(parts.text("phase"), ["forward", "backward", "recompute"])
    spent = parts.number("exposed_time")[kernels].sum()
    results = evaluate(table, ahead)
    assert spent == pytest.approx(
        sum(float(results[name][0]) for name in ("time_forward", "time_backward", "time_recompute")), rel=1e-9
    )
    assert "mtp projection" in parts.text("operator").tolist()


def test_published_rows_train_modules_where_they_say_so(ahead: Catalog, catalog: Catalog) -> None:
    shipped = next(rows for rows in shipped_published() if rows.kind == "training")
    names = shipped.text["row_id"]
    rows = shipped.take([names.index(name) for name in ("T00337", "T00322", "T02763")])
    with_modules = training_plans(rows, ahead).plans.filled("train_mtp").tolist()
    assert [bool(flag > 0) for flag in with_modules] == [True, False, True]
    table = catalog.tables["models"]
    columns = {name: values for name, values in table.columns.items() if name != "num_mtp_layers"}
    without = catalog.with_tables([Table("models", columns, table.place)])
    assert not (training_plans(rows, without).plans.filled("train_mtp") > 0).any()


def test_checkpoints_hold_the_modules_that_are_trained(ahead: Catalog) -> None:
    row = {**TRAINED, "training_tokens": 14.8}
    grown = result(ahead, row, "checkpoint_size", train_mtp="yes") - result(ahead, row, "checkpoint_size")
    assert grown == pytest.approx(14.0 * mtp_parameters(catalog_models(ahead)[0]).max(), rel=1e-6)


# --- adapters ------------------------------------------------------------------------------------------------------

TUNED = {"model": "Meta-Llama-3.1-8B", "accelerator": H100, "num_accelerators": 2, "global_batch_size": 8}
TUNED |= {"sequence_length": 4096, "zero_stage": 0}
RANK = 16.0
EVERYWHERE = RANK * (4096 + 6144 + 4096 + 4096 + 4096 + 2 * 14336 + 14336 + 4096)
QKV = RANK * (4096 + 6144)


def test_memory_of_adapters_by_hand(catalog: Catalog) -> None:
    """Weights grow by the adapters; gradients and optimizer are those of the adapters alone."""
    whole = result(catalog, TUNED, "memory_weights")
    for modules, size in (("all", EVERYWHERE), ("qkv", QKV)):
        tuned = {**TUNED, "adapter_rank": RANK, "adapter_modules": modules}
        assert result(catalog, tuned, "memory_weights") - whole == pytest.approx(32 * size * 2.0)
        assert result(catalog, tuned, "memory_gradients") == pytest.approx(32 * size * 4.0)
        assert result(catalog, tuned, "memory_optimizer") == pytest.approx(32 * size * 12.0)
    freed = result(catalog, {**TUNED, "adapter_rank": RANK}, "memory_layer_activations") - result(
        catalog, {**TUNED, "adapter_rank": RANK, "adapter_modules": "qkv"}, "memory_layer_activations"
    )
    assert freed == pytest.approx(32 * 4096 * (4096 + 14336) * 2.0)


def test_kernels_of_adapters_run_once_a_layer_and_micro_batch(catalog: Catalog) -> None:
    """8 sequences on 2 ranks are 4 micro batches of 32 layers; a sum reads both outputs and writes one, in 2 B."""
    operators = explain(plans({**TUNED, "adapter_rank": RANK}), catalog)
    of_adapters = ["adapter" in name for name in operators["operator"]]
    assert operators["calls"][of_adapters].tolist() == [4.0 * 32.0] * sum(of_adapters) != []
    traffic = dict(zip(operators["operator"], operators["traffic"], strict=True))
    assert traffic["attention adapter sums"] == 4096 * (6144 + 4096) * 3 * 2
    assert traffic["mlp adapter sums"] == 4096 * (2 * 14336 + 4096) * 3 * 2


def test_flop_of_adapters_by_hand(catalog: Catalog) -> None:
    """Two products of each frozen weight in place of three, three of each adapter."""
    tuned = {**TUNED, "adapter_rank": RANK}
    flop = [
        result(catalog, row, "model_flop_rate") * 2.0 * result(catalog, row) / (8.0 * 4096.0) for row in (TUNED, tuned)
    ]
    met = 32 * (4096 * 128 * 80 + 3 * 4096 * 14336) + 4096 * 128256
    assert flop[0] - flop[1] == pytest.approx(2.0 * met - 6.0 * 32 * EVERYWHERE, rel=1e-9)


def test_frozen_weights_are_cheaper_to_train(catalog: Catalog) -> None:
    tuned = {**TUNED, "adapter_rank": RANK}
    for part in ("step_time", "memory", "time_backward", "time_optimizer"):
        assert result(catalog, tuned, part) < result(catalog, TUNED, part)
    assert result(catalog, tuned, "time_forward") > result(catalog, TUNED, "time_forward")
    assert result(catalog, tuned, adapter_modules="qkv") < result(catalog, tuned)
    parts = explain(plans(tuned), catalog).text("operator").tolist()
    assert "qkv weight gradient" not in parts and "qkv adapter in weight gradient" in parts
    assert "mlp adapter sums" in parts


def test_sharded_frozen_weights_are_gathered_and_not_reduced(catalog: Catalog) -> None:
    sharded = {**TUNED, "zero_stage": 3, "num_accelerators": 8}
    tuned = {**sharded, "adapter_rank": RANK}
    outcome = {}
    for name, row in (("whole", sharded), ("tuned", tuned)):
        parts = explain(plans(row), catalog)
        rows = parts.text("operator").tolist()
        outcome[name] = [
            float(parts.number("traffic")[rows.index(kind)]) for kind in ("gradient reduction", "weight gathering")
        ]
    assert outcome["tuned"][0] == pytest.approx(32 * EVERYWHERE * 4.0)
    assert outcome["tuned"][1] - outcome["whole"][1] == pytest.approx(32 * EVERYWHERE * 2.0)
    assert result(catalog, tuned, "memory_weights") < 0.6 * result(catalog, sharded, "memory_weights")


def test_experts_are_frozen_without_adapters(catalog: Catalog) -> None:
    row = {"model": "Mixtral-8x7B-v0.1", "accelerator": H100, "num_accelerators": 8, "expert_parallel": 8}
    row |= {"global_batch_size": 8, "sequence_length": 4096, "adapter_rank": RANK}
    attention = RANK * (4096 + 6144 + 4096 + 4096)
    assert result(catalog, row, "memory_gradients", zero_stage=0) == pytest.approx(32 * attention * 4.0)
    assert "experts up weight gradient" not in explain(plans(row), catalog).text("operator").tolist()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"adapter_modules": "qkv"}, "adapter modules qkv need an adapter rank"),
        (
            {**TRAINED, "train_mtp": "yes", "adapter_rank": 8},
            "multi-token prediction modules are not trained beside adapters",
        ),
    ],
)
def test_adapters_that_cannot_be_are_said(ahead: Catalog, change: dict[str, object], reason: str) -> None:
    assert evaluate(plans({**TUNED, **change}), ahead)["reason"][0] == reason


def test_rows_with_and_without_adapters_are_the_same_together_and_alone(catalog: Catalog) -> None:
    table = plans(
        TUNED,
        {**TUNED, "adapter_rank": 8},
        {**TUNED, "adapter_rank": 64, "adapter_modules": "qkv", "precision": "fp8", "zero_stage": 3},
        {**TUNED, "precision": "fp8"},
        {**LATENT, "adapter_rank": 16},
        LATENT,
    )
    together = evaluate(table, catalog)
    for row in range(len(table)):
        alone = evaluate(table.take([row]), catalog)
        assert not np.isnan(alone["step_time"][0]), alone["reason"][0]
        for name, values in alone.columns.items():
            assert repr(values[0]) == repr(together[name][row]), (name, row)


@pytest.mark.parametrize("row", [{**TUNED, "adapter_rank": 16}, {**NARROW, "precision": "fp4", "wide_layers": 4}])
def test_explanations_of_adapters_and_casts_account_for_the_step(catalog: Catalog, row: dict[str, object]) -> None:
    parts = explain(plans(row), catalog)
    kernels = np.isin(parts.text("phase"), ["forward", "backward", "recompute"])
    spent = sum(result(catalog, row, name) for name in ("time_forward", "time_backward", "time_recompute"))
    assert parts.number("exposed_time")[kernels].sum() == pytest.approx(spent, rel=1e-9)


def test_checkpoints_of_adapters_hold_no_frozen_weights(catalog: Catalog) -> None:
    size = result(catalog, {**TUNED, "adapter_rank": RANK, "training_tokens": 0.001}, "checkpoint_size")
    assert size == pytest.approx(14.0 * 32 * EVERYWHERE)


# --- capacity of experts, gradients, memory by stage ---------------------------------------------------------------

ROUTED = {"model": "Mixtral-8x7B-v0.1", "accelerator": H100, "num_accelerators": 64, "expert_parallel": 8}
ROUTED |= {"pipeline_parallel": 4, "global_batch_size": 256, "sequence_length": 4096, "token_dispatch": "once"}


def test_capacity_decides_what_experts_take_and_what_is_sent(catalog: Catalog) -> None:
    """A capacity of 1 is a balanced router whose copies are all sent; more is padding, less drops tokens."""
    times = [result(catalog, ROUTED, expert_capacity=capacity) for capacity in (0.75, 1.0, 1.25)]
    assert times[0] < times[1] < times[2]
    for part in ("time_forward", "time_backward"):
        assert result(catalog, ROUTED, part, expert_capacity=1.0) == result(catalog, ROUTED, part)
        assert result(catalog, ROUTED, part, expert_capacity=1.25) == result(
            catalog, ROUTED, part, expert_imbalance=1.25
        )
    parts = [explain(plans({**ROUTED, **change}), catalog) for change in ({}, {"expert_capacity": 1.25})]
    sent = [float(part.number("traffic")[part.text("operator").tolist().index("expert exchange")]) for part in parts]
    copies = 4096.0 * 4096.0 * 2.0 * 2.0  # tokens x width x experts of a token x bytes
    assert sent[1] == pytest.approx(1.25 * copies)
    assert sent[0] == pytest.approx(float(distinct_share(8.0, 2.0)) * copies)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({**DENSE, "expert_capacity": 1.25}, "the model has no experts to give a capacity of 1.25"),
        (
            {**ROUTED, "expert_capacity": 1.25, "expert_imbalance": 1.5},
            "experts with a capacity (1.25) are filled alike: leave expert imbalance (1.5) out",
        ),
    ],
)
def test_capacities_that_cannot_be_are_said(catalog: Catalog, row: dict[str, object], reason: str) -> None:
    assert evaluate(plans(row), catalog)["reason"][0] == reason


def test_gradients_in_16_bits_are_half_as_large(catalog: Catalog) -> None:
    row = {**DENSE, "software": "megatron"}
    wide, narrow, blank = (
        [result(catalog, row, name, gradient_precision=word) for name in ("memory_gradients", "time_data_parallel")]
        for word in ("fp32", "bf16", "")
    )
    assert wide == blank
    assert narrow[0] == pytest.approx(wide[0] / 2.0) and narrow[1] <= wide[1]


def test_memory_by_stage(catalog: Catalog) -> None:
    """The worst of the stages is the memory of the plan; the last stage holds the logits and one micro-batch."""
    stages = [f"memory_{place}_stage" for place in ("first", "middle", "last")]
    outcome = [result(catalog, DENSE, name) for name in stages]
    assert max(outcome) == result(catalog, DENSE, "memory") and outcome[0] > outcome[1] > outcome[2]
    one = {**DENSE, "pipeline_parallel": 1}
    assert result(catalog, one, "memory_first_stage") == result(catalog, one, "memory")
    assert all(np.isnan(result(catalog, one, name)) for name in stages[1:])
    two = {**DENSE, "pipeline_parallel": 2}
    assert np.isnan(result(catalog, two, "memory_middle_stage")) and result(catalog, two, "memory_last_stage") > 0.0


# --- which attention a plan runs -----------------------------------------------------------------------------------


def test_flash_attention_2_is_slower_where_a_machine_has_faster_kernels(catalog: Catalog) -> None:
    """On Hopper attention takes 1.3 to 2.5 times as long, and other kernels do not; Ampere has no faster ones."""
    own, second = (explain(plans({**DENSE, "attention": way}), catalog) for way in ("flash", "flash-2"))
    columns = [(one.text("operator").tolist(), one.number("time").tolist()) for one in (own, second)]
    time = [dict(zip(*one, strict=True)) for one in columns]
    kernels = [name for name in time[0] if not np.isnan(time[0][name]) and name != "step"]
    moved = {name: time[1][name] / time[0][name] for name in kernels if time[1][name] != time[0][name]}
    assert {name for name in moved if "flash attention" in name} == {"flash attention", "flash attention gradient"}
    assert 1.3 < moved["flash attention"] < 2.5 and 1.3 < moved["flash attention gradient"] < 2.5
    assert not any(word in name for name in moved for word in ("mlp", "qkv", "norm", "optimizer"))
    older = {**DENSE, "accelerator": "A100-SXM4-80GB"}
    assert result(catalog, older, attention="flash-2") == result(catalog, older)


def test_a_stack_that_has_flash_attention_2_alone_is_the_same_with_it(catalog: Catalog) -> None:
    for software in ("nanotron", "nanotron-pp-fix"):
        row = {**DENSE, "software": software}
        assert result(catalog, row, attention="flash-2") == result(catalog, row)
    together = evaluate(plans({**DENSE, "attention": "flash-2"}, DENSE, {**DENSE, "attention": "standard"}), catalog)
    alone = [result(catalog, DENSE, attention=way) for way in ("flash-2", "flash", "standard")]
    assert result(catalog, {**DENSE, "attention": "flash-3"}) == result(catalog, DENSE)
    assert together["step_time"].tolist() == alone


ALIKE = {"tensor_overlap": "all", "data_overlap": "yes", "recompute": "none", "gradient_accumulation": "fused"}
ALIKE |= {"compiled": "yes"}
"""What some stacks do by default and others do not."""


def test_stacks_take_the_attention_that_their_documentation_names(catalog: Catalog) -> None:
    """On Hopper slower than a stack of which nothing is known, on Ampere the same; nobody's name, nobody's kernels."""
    for software in ("deepspeed", "litgpt", "axolotl", "flash-linear-attention", "flash-attention training"):
        row = {**DENSE, "software": software, "cross_entropy": "parallel", **ALIKE}
        assert result(catalog, row) == result(catalog, row, attention="flash-2")
        assert result(catalog, row) > 1.02 * result(catalog, row, software="nobody's")
        assert result(catalog, row, attention="flash-3") == result(catalog, row, software="nobody's")
        older = {**row, "accelerator": "A100-SXM4-80GB"}
        assert result(catalog, older) == result(catalog, older, software="nobody's")
        assert result(catalog, older, attention="flash-3") == result(catalog, older)
    swift = {**DENSE, "software": "megatron-swift", **ALIKE}
    assert result(catalog, swift) == pytest.approx(result(catalog, swift, software="megatron"), rel=0.03)
    assert result(catalog, swift) < 0.97 * result(catalog, swift, software="nobody's")
    compiled = {**DENSE, "software": "olmo-core", **ALIKE, "zero_stage": 1, "cross_entropy": "fused"}
    assert result(catalog, compiled) == result(catalog, compiled, software="torchtitan")


def test_what_is_known_of_the_kernels_of_stacks_is_well_formed(catalog: Catalog) -> None:
    table = stack_rows("kernels")
    assert len({row["software"] for row in table}) == len(table) > 10
    own = set(catalog.tables["calibration"].text("software").tolist())
    own |= {row["software"] for row in rows("catalog/documented_constants.csv")}
    for row in table:
        assert row["software"] == row["software"].casefold() and row["reference"]
        assert row["gathers"] in ("", "dtensor") and not (row["kernels"] and row["attention"])
        assert row["kernels"] or row["attention"] or row["gathers"]
        assert {row["kernels"] or row["attention"] or row["software"]} <= own


# --- balance of causal attention -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["ring", "all-gather", "ulysses"])
def test_an_uneven_context_waits_for_its_last_rank(catalog: Catalog, method: str) -> None:
    """Of 4 parts the last sees 3 others whole and half of itself: 3.5 of 8 against 2, as attention alone counts."""
    row = {**DENSE, "num_accelerators": 64, "context_parallel": 4, "tensor_parallel": 2, "pipeline_parallel": 2}
    row |= {"context_method": method, "sequence_length": 131072, "global_batch_size": 16}

    def attention(balance: str) -> float:
        parts = explain(plans({**row, "context_balance": balance}), catalog)
        chosen = parts.text("operator") == "flash attention"
        return float(parts.number("exposed_time")[chosen].sum())

    ratio = attention("no") / attention("yes")
    assert ratio == 1.0 if method == "ulysses" else ratio == pytest.approx(7.0 / 4.0, rel=0.03)
    alone = {**DENSE, "context_balance": "no"}
    assert result(catalog, alone) == result(catalog, DENSE)
