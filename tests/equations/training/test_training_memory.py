"""Memory of a training rank: what the papers print, what modules free, what a stage holds."""

from __future__ import annotations

import numpy as np
import pytest
from equations.training.test_training_overlap import with_constant
from training_samples import plans, results

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.engine import evaluate, explain
from xlperf.engine.catalog_arrays import catalog_models
from xlperf.equations.model.blocks import MLP, weights
from xlperf.equations.model.operators import attention_matrix_parameters, whole_model

GIB = 2.0**30
DENSE = {
    "model": "Meta-Llama-3.1-8B",
    "accelerator": "H100-SXM-80GB",
    "num_accelerators": 64,
    "tensor_parallel": 2,
    "pipeline_parallel": 4,
    "global_batch_size": 256,
    "sequence_length": 8192,
}
MIXTURE = {
    "model": "DeepSeek-V3",
    "accelerator": "H100-SXM-80GB",
    "num_accelerators": 1024,
    "pipeline_parallel": 16,
    "expert_parallel": 64,
    "global_batch_size": 2048,
    "sequence_length": 4096,
}


def test_korthikanti_2022_figure_1_weights_and_optimizer(catalog: Catalog) -> None:
    """The figure counts the layers of a rank alone (no embedding, norms or biases), at 18 bytes per parameter."""
    stated = {"megatron-22B": (8, 1, 45.56), "GPT3-175B": (8, 8, 45.56), "turing-530B": (8, 35, 31.64),
              "megatron-1T": (8, 64, 32.96)}  # fmt: skip
    models, _ = catalog_models(catalog)
    names = catalog.tables["models"].text("model").tolist()
    each = 18.0
    shard = whole_model(models)
    layer = attention_matrix_parameters(shard) + weights(MLP, shard)
    for name, (tensor, stages, gibibytes) in stated.items():
        row = names.index(name)
        held = models.num_layers[row] / stages * layer[row] / tensor * each / GIB
        assert held == pytest.approx(gibibytes, rel=0.02), name


def test_korthikanti_2022_figure_7_share_of_activations(catalog: Catalog) -> None:
    """Percent of the tensor-parallel baseline: sequence parallel, selective, both, full."""
    stated = {
        "megatron-22B": (66.84, 49.42, 16.18, 7.64),
        "GPT3-175B": (62.04, 56.53, 18.49, 8.71),
        "turing-530B": (58.31, 62.04, 20.27, 9.42),
        "megatron-1T": (58.31, 62.04, 20.27, 9.42),
    }
    errors = []
    for model, shares in stated.items():
        base = {
            "model": model,
            "accelerator": "A100-SXM4-80GB",
            "num_accelerators": 8,
            "tensor_parallel": 8,
            "sequence_length": 2048,
            "attention": "standard",
        }
        ways = [("no", "none"), ("yes", "none"), ("no", "selective"), ("yes", "selective"), ("no", "full")]
        plans = [{**base, "sequence_parallel": split, "recompute": mode} for split, mode in ways]
        kept = results(catalog, *plans)["memory_layer_activations"]
        errors += (100.0 * kept[1:] / kept[0] / np.array(shares) - 1.0).tolist()
    assert np.abs(errors).mean() < 0.01
    assert np.abs(errors).max() < 0.02


def test_simumax_b200_peak_allocated_gib(catalog: Catalog) -> None:
    """Dense cases of 4 and 12 layers on 8 B200, cross-entropy fused; 70B and 405B shapes."""
    common = {"accelerator": "B200-SXM-180GB", "num_accelerators": 8, "cross_entropy": "fused"}
    cases = [
        ("Llama3-70B-l12", 2, 1, 1, 4096, 16, 60.68),
        ("Llama3-70B-l12", 8, 1, 1, 4096, 4, 28.29),
        ("Llama3-70B-l12", 2, 1, 4, 32768, 4, 68.43),
        ("Llama3-70B-l12", 1, 1, 8, 32768, 4, 104.51),
        ("Llama3.1-405B-l4", 1, 2, 1, 4096, 16, 87.08),
        ("Llama3.1-405B-l4", 8, 1, 1, 4096, 4, 38.57),
        ("Llama3.1-405B-l4", 2, 1, 4, 131072, 4, 118.13),
        ("Llama3-70B-l12", 1, 2, 1, 4096, 16, 66.55),
        ("Llama3-70B-l12", 2, 1, 4, 131072, 4, 112.67),
        ("Llama3.1-405B-l4", 1, 1, 8, 32768, 4, 139.22),
    ]
    known = {name.casefold() for name in catalog.tables["models"].text("model").tolist()}
    cases = [case for case in cases if case[0].casefold() in known]
    assert cases, "the layer-reduced models are not in the catalog"
    plans = [
        {
            **common,
            "model": model,
            "tensor_parallel": tensor,
            "pipeline_parallel": stages,
            "context_parallel": context,
            "context_method": "ulysses",
            "sequence_length": length,
            "global_batch_size": batch,
        }
        for model, tensor, stages, context, length, batch, _ in cases
    ]
    result = results(catalog, *plans)["memory"] / GIB
    errors = result / np.array([case[-1] for case in cases]) - 1.0
    assert np.abs(errors).mean() < 0.01
    assert np.abs(errors).max() < 0.02


def test_every_module_frees_what_it_keeps_and_costs_time(catalog: Catalog) -> None:
    modes = ["mlp", "norm", "activation", "products", "mlp norm", "attention_output", "core_attention attention_output"]
    plans = [{**DENSE, "recompute": "none"}]
    plans += [{**DENSE, "recompute": "selective", "recompute_modules": mode} for mode in modes]
    plans += [{**DENSE, "recompute": "full"}]
    result = results(catalog, *plans)
    kept, again = result["memory_layer_activations"], result["time_recompute"]
    assert again[0] == 0.0
    assert (again[1:-1] > 0.0).all() and (again[1:-1] < again[-1]).all()
    assert (kept[1:6] < kept[0]).all() and (kept[1:-1] > kept[-1]).all()
    tokens, element, split, held = 8192, 2, 2, 4 * 8  # micro-batches in flight x layers of a stage
    assert kept[0] - kept[2] == pytest.approx(2 * tokens * 4096 * element / split * held)
    assert kept[0] - kept[3] == pytest.approx(tokens * 14336 * element / split * held)
    assert again[5] == pytest.approx(again[1] + again[2] / 2, rel=1e-2)  # the norm of the mlp is in the mlp
    assert kept[6] == kept[0]  # the input of the product is there only if attention runs again
    assert kept[0] - kept[7] == pytest.approx(tokens * 4096 * element / split * held)


def test_what_no_gradient_needs_is_not_computed_again(catalog: Catalog) -> None:
    """A layer of three widths of 14,336: JAX leaves out the last of its products, a third of those of the block."""
    asked = [{"recompute": "full"}, {"recompute": "selective", "recompute_modules": "mlp"}]
    dense = {**DENSE, "num_accelerators": 8, "tensor_parallel": 1, "pipeline_parallel": 1, "virtual_pipeline": 1}
    plans = [{**dense, "software": software, **one} for one in asked for software in ("jax-like", "maxtext")]
    result = results(catalog, *plans)
    whole, less = result["hfu"] / result["mfu"] - 1.0, result["time_recompute"]
    last = 32 * 2 * 4096 * 14336
    flop = result["model_flop_rate"] / result["tokens_per_second_per_accelerator"]
    assert (whole[[0, 2]] - whole[[1, 3]]) * flop[0] == pytest.approx(last)
    assert less[3] == pytest.approx(2.0 / 3.0 * less[2], rel=0.15)
    assert 0.65 < less[1] / less[0] < 0.8


def test_modules_of_mixtures_and_latent_attention(catalog: Catalog) -> None:
    modes = ["core_attention", "moe", "latent", "norm latent"]
    plans = [{**MIXTURE, "recompute": "selective", "recompute_modules": mode} for mode in modes]
    result = results(catalog, {**MIXTURE, "recompute": "none"}, *plans)
    kept, times = result["memory_layer_activations"], result["step_time"]
    assert kept[0] == kept[1] > kept[3] > kept[4]
    assert kept[2] < kept[0]
    assert (times[1:] > times[0]).all() and times[4] > times[3]
    assert result["time_expert_parallel"][2] == pytest.approx(1.5 * result["time_expert_parallel"][0])
    more = result["hfu"] / result["mfu"]
    assert more[0] == 1.0 and (more[1:3] > 1.0).all()


def test_block_and_uniform_recomputation(catalog: Catalog) -> None:
    base = {**DENSE, "pipeline_parallel": 1}
    layers = [0, 8, 16, 32, 100, None]
    result = results(catalog, *({**base, "recompute": "full", "recompute_layers": count} for count in layers))
    none = results(catalog, {**base, "recompute": "none"})
    kept = result["memory_layer_activations"]
    assert kept[0] == pytest.approx(none["memory_layer_activations"][0]) and result["time_recompute"][0] == 0.0
    assert kept[3] == kept[4] == kept[5] and result["time_recompute"][3] == result["time_recompute"][5]
    np.testing.assert_allclose(np.diff(kept[:3]), (kept[3] - kept[0]) / 4, rtol=1e-12)
    assert result["time_recompute"][1] == pytest.approx(result["time_recompute"][3] / 4)
    groups = results(catalog, *({**base, "recompute": "full", "recompute_group": count} for count in (1, 2, 4)))
    assert groups["memory_layer_activations"] == pytest.approx(kept[3] / np.array([1.0, 2.0, 4.0]))
    assert (np.diff(groups["step_time"]) == 0).all()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"recompute": "selective", "recompute_modules": "mlp bias"},
         "recompute modules mlp bias must be of core_attention, mlp, moe, norm, activation, latent, products, "
         "attention_output, with spaces between"),
        ({"recompute": "full", "recompute_modules": "mlp"}, "recompute modules mlp need recompute selective"),
        ({"recompute": "selective", "recompute_modules": "none"}, "recompute selective needs modules: recompute "
         "modules are none"),
        ({"recompute": "selective", "recompute_modules": "moe"}, "the model has no experts to recompute"),
        ({"recompute": "selective", "recompute_modules": "latent"}, "the model has no latent attention to recompute"),
        ({"recompute": "none", "recompute_layers": 2}, "recompute layers 2 need recompute selective or full"),
        ({"recompute": "selective", "recompute_group": 2}, "recompute group 2 needs recompute full"),
    ],
)  # fmt: skip
def test_recomputation_that_cannot_be_is_said(catalog: Catalog, change: dict[str, object], reason: str) -> None:
    result = results(catalog, {**DENSE, **change})
    assert result["reason"][0] == reason
    assert np.isnan(result["step_time"][0]) and np.isnan(result["memory"][0])


def test_rows_with_and_without_modules_are_the_same_together_and_alone(catalog: Catalog) -> None:
    plans: list[dict[str, object]] = [
        DENSE,
        {**DENSE, "recompute": "selective"},
        {**DENSE, "recompute": "selective", "recompute_modules": "mlp norm"},
        {**DENSE, "recompute": "full", "recompute_layers": 3},
        {**DENSE, "recompute": "full", "recompute_group": 2, "cross_entropy": "fused"},
        {**MIXTURE, "recompute": "selective", "recompute_modules": "moe latent products"},
        MIXTURE,
        {**DENSE, "software": "maxtext", "recompute": "full"},
        {**DENSE, "software": "maxtext", "recompute": "selective", "recompute_modules": "mlp attention_output"},
    ]
    many = results(catalog, *plans)
    for row, plan in enumerate(plans):
        alone = results(catalog, plan)
        for name, values in alone.items():
            assert repr(values[0]) == repr(many[name][row]), (name, row)


def test_an_explanation_with_modules_accounts_for_the_step(catalog: Catalog) -> None:
    for plan in (
        {**DENSE, "recompute": "selective", "recompute_modules": "mlp norm"},
        {**DENSE, "recompute": "full", "recompute_layers": 3},
        {**DENSE, "recompute": "selective", "recompute_modules": "products"},
    ):
        table = table_from_rows("training", list(plan), [list(plan.values())], lambda row, column: column)
        operators, result = explain(table, catalog, 0), evaluate(table, catalog)
        repeated = operators["total_time"][operators["phase"] == "recompute"].sum()
        assert repeated == pytest.approx(result["time_recompute"][0], rel=1e-9)


def test_kernels_of_the_loss_differ_by_their_copies(catalog: Catalog) -> None:
    alone = {**DENSE, "num_accelerators": 1, "tensor_parallel": 1, "pipeline_parallel": 1, "global_batch_size": 4}
    result = results(catalog, *({**alone, "cross_entropy": way} for way in ("fused", "parallel", "plain")))
    steps = np.diff(result["memory"]) / (8192 * 128256)
    np.testing.assert_allclose(steps, [4.0, 8.0], rtol=1e-12)
    assert result["step_time"][0] < result["step_time"][1]


def test_a_chunked_loss_has_an_eighth_of_the_logits_and_a_compiled_one_a_gradient_beside_them(catalog: Catalog) -> None:
    alone = {**DENSE, "num_accelerators": 1, "tensor_parallel": 1, "pipeline_parallel": 1, "global_batch_size": 4}
    alone["micro_batch_size"] = 1
    ways = {"cross_entropy": "plain"}, {"cross_entropy": "chunked"}, {"cross_entropy": "fused"}
    for compiled, fused in (("yes", 4.0), ("no", 2.0)):
        rows = ({**alone, "software": "torchtitan", "compiled": compiled, **way} for way in ways)
        memory = results(catalog, *rows)["memory"]
        expected = np.array([14.0, 14.0 / 8.0, fused]) - fused
        np.testing.assert_allclose((memory - memory[2]) / (8192 * 128256), expected, atol=1e-9)


def test_what_a_plan_does_not_say_of_compilation_is_what_its_software_does(catalog: Catalog) -> None:
    """Compiled: a loss in parts takes as long as a fused one; not compiled: as long as a plain one. Other kernels of a
    stack are its own where the plan does not say, and those of eager PyTorch where it says that nothing is compiled.
    """
    alone = {**DENSE, "num_accelerators": 1, "tensor_parallel": 1, "pipeline_parallel": 1, "global_batch_size": 4}
    for software, compiled, other in (("torchtitan", "yes", "fused"), ("torchtune", "no", "plain")):
        rows = [
            {**alone, "software": software, "cross_entropy": loss, "compiled": said}
            for loss in ("chunked", "fused", "plain", "parallel")
            for said in ("", compiled)
        ]
        result = results(catalog, *rows, {**alone, "software": software, "cross_entropy": other})
        for name in ("memory", *(["step_time"] if compiled == "yes" else [])):
            assert (result[name][0:8:2] == result[name][1:8:2]).all(), (software, name)
        assert result["step_time"][0] == result["step_time"][8]


TITAN = {"model": "Qwen3-32B", "accelerator": "H100-SXM-80GB", "sequence_length": 4096, "recompute": "full"}
TITAN |= {"zero_stage": 3, "software": "torchtitan", "tensor_overlap": "none"}


def test_torchtitan_without_compilation_keeps_the_copies_of_its_loss(catalog: Catalog) -> None:
    """torchtitan pull request 1690 (H100 of 95 GiB): 43.45, 70.79 and 63.27 GiB reserved, no room for 64 sequences.

    Qwen3-32B, tensor parallel 8, full recomputation, not compiled; 81.85 GiB compiled on one server.
    """
    eager = [
        {**TITAN, "num_accelerators": number, "tensor_parallel": 8, "micro_batch_size": batch, "compiled": "no",
         "global_batch_size": batch * number / 8}
        for number, batch in ((32, 16), (32, 32), (64, 32), (32, 64))
    ]  # fmt: skip
    fused = {**TITAN, "num_accelerators": 8, "micro_batch_size": 2, "global_batch_size": 16, "compiled": "yes"}
    result = results(catalog, *eager, fused)
    reserved = result["memory_reserved"] / GIB
    np.testing.assert_allclose(reserved[[0, 1, 2, 4]], [43.45, 70.79, 63.27, 81.85], rtol=0.06)
    assert reserved[3] > 95.0 and result["fits"][3] == 0.0


def test_torchtitan_that_says_nothing_of_compilation_has_the_loss_of_its_own_default(catalog: Catalog) -> None:
    """torchtitan pull request 1884 (Llama 3 8B, two ranks of the context, not compiled): 44.84 GiB, 5,615 token/s."""
    row = {**TITAN, "model": "Llama3-8B", "num_accelerators": 4, "context_parallel": 2, "global_batch_size": 2}
    result = results(catalog, {**row, "sequence_length": 8192})
    assert result["memory_reserved"][0] / GIB == pytest.approx(44.84, rel=0.06)
    assert result["tokens_per_second_per_accelerator"][0] == pytest.approx(5615.0, rel=0.06)


@pytest.mark.parametrize(
    ("software", "compiled", "loss"),
    [
        ("megatron", "", "parallel"), ("nemo", "", "fused"), ("nemo-bridge", "", "fused"), ("Torchtitan", "", "plain"),
        ("torchtitan", "yes", "fused"), ("torchtitan", "no", "plain"), ("torch-fsdp", "yes", "fused"),
        ("torch-fsdp", "", "plain"), ("torchtune", "", "chunked"), ("home-made", "", "parallel"),
    ],
)  # fmt: skip
def test_a_loss_that_a_plan_does_not_state_is_that_of_its_software(
    catalog: Catalog, software: str, compiled: str, loss: str
) -> None:
    row = {**DENSE, "software": software, "compiled": compiled}
    for name in ("memory", "step_time"):
        stated, blank = results(catalog, {**row, "cross_entropy": loss}, row)[name]
        assert stated == blank


def test_the_fused_loss_of_megatron_bridge_leaves_a_run_room(catalog: Catalog) -> None:
    """Megatron-Bridge issue 949: Qwen3-30B with micro-batches of 8 and two ranks for the experts ran on 80 GB."""
    row = {"model": "Qwen3-30B-A3B", "accelerator": "H100-SXM-80GB", "num_accelerators": 16, "pipeline_parallel": 2}
    row |= {"virtual_pipeline": 2, "expert_parallel": 2, "micro_batch_size": 8, "global_batch_size": 512}
    row |= {"sequence_length": 4096, "recompute": "full"}
    result = results(catalog, {**row, "software": "nemo"}, {**row, "software": "nemo", "cross_entropy": "plain"})
    assert result["fits"].tolist() == [1.0, 0.0]


SEVEN = {"model": "mdk7b", "num layers": 30, "hidden size": 4096, "num attention heads": 32, "num query groups": 32}
SEVEN |= {"ffn hidden size": 10880, "vocab size": 50304, "gated mlp": "yes", "tied embeddings": "no"}
SEVEN |= {"position embedding": "rope", "normalization": "rmsnorm", "linear bias": "none", "attention type": "MHA"}
SEVEN |= {"query key norm": "no", "source": "fixstars/mdk"}


def test_an_fp8_run_with_16_bit_gradients_fits_and_one_that_does_not_state_them_says_so(catalog: Catalog) -> None:
    """fixstars/mdk, 6.4 B parameters on 16 H100: 68.9 GiB allocated at the peak, 41.4 between steps, 69.5 reserved.

    FP8 products over --fp16, whose gradients Megatron-LM adds up in 16 bits unless a flag says FP32: 12.0 GiB each of
    weights and gradients, 11.2 of FP8 copies, 4.5 of optimizer state and 1.5 of the FP32 gradients of a shard.
    """
    own = catalog.with_tables([table_from_rows("models", list(SEVEN), [list(SEVEN.values())])])
    row = {"model": "mdk7b", "accelerator": "H100-SXM-80GB", "num_accelerators": 16, "micro_batch_size": 2}
    row |= {"global_batch_size": 1024, "sequence_length": 4096, "precision": "fp8", "zero_stage": 1}
    result = results(own, {**row, "gradient_precision": "bf16"}, row)
    assert result["memory"][0] / GIB == pytest.approx(68.9, rel=0.02)
    assert result["fits"].tolist() == [1.0, 0.0]
    parts = [result[f"memory_{part}"][0] for part in ("weights", "gradients", "optimizer")]
    assert sum(parts) / GIB == pytest.approx(41.4 - 1.5, rel=0.02)
    assert "gradient precision is not stated: it fits in 7" in result["reason"][1]


def test_a_plain_loss_split_over_ranks_keeps_one_tensor_more(catalog: Catalog) -> None:
    """Per logit 14 bytes whole on every rank, 18 on an eighth of the vocabulary."""
    base = {**DENSE, "tensor_parallel": 8, "pipeline_parallel": 1, "num_accelerators": 8, "global_batch_size": 4}
    result = results(catalog, *({**base, "cross_entropy": way} for way in ("gathered", "plain", "parallel")))
    whole, part = 8192 * 128256, 8192 * 128256 / 8
    steps = -np.diff(result["memory"])
    np.testing.assert_allclose(steps, [14.0 * whole - 18.0 * part, 12.0 * part], rtol=1e-12)


def test_gradients_of_autograd_are_not_there_when_the_loss_has_its_logits(catalog: Catalog) -> None:
    """Of one micro-batch the peak is in the loss without gradients or behind it with them; of two both together."""
    freed = with_constant(catalog, "training_memory", "freed_gradients", 1.0)
    alone = {**DENSE, "num_accelerators": 1, "tensor_parallel": 1, "pipeline_parallel": 1, "global_batch_size": 1}
    alone |= {"micro_batch_size": 1, "zero_stage": 0, "cross_entropy": "fused"}
    twice, full = {**alone, "global_batch_size": 2}, {**alone, "recompute": "full"}
    kept, made = (results(one, alone, twice, full) for one in (catalog, freed))
    assert made["memory"][1] == kept["memory"][1] and kept["memory"][0] == kept["memory"][1]
    parts = ("memory_weights", "memory_gradients", "memory_optimizer", "memory_activations")
    for row in range(3):
        assert sum(made[name][row] for name in parts) == pytest.approx(made["memory"][row], rel=1e-12)
    assert made["memory_gradients"][0] in (0.0, kept["memory_gradients"][0])
    assert made["memory_gradients"][2] == kept["memory_gradients"][2]  # little is kept: the peak is at the end
    assert (made["memory"][[0, 2]] < kept["memory"][[0, 2]]).all()


def test_sharded_gradients_keep_room_of_their_own(catalog: Catalog) -> None:
    freed = with_constant(catalog, "training_memory", "freed_gradients", 1.0)
    base = {**DENSE, "tensor_parallel": 1, "pipeline_parallel": 1, "num_accelerators": 8, "zero_stage": 3}
    base |= {"global_batch_size": 64, "micro_batch_size": 8, "sequence_length": 8192}
    kept, made = results(catalog, base), results(freed, base)
    assert kept["memory"][0] - made["memory"][0] == pytest.approx(kept["memory_gradients"][0], rel=1e-12)
    assert made["memory_reserved"][0] == pytest.approx(kept["memory_reserved"][0], rel=1e-12)


def test_what_nothing_fuses_is_kept(catalog: Catalog) -> None:
    """Each of two norms keeps its input in FP32 in place of 16 bits, and the gate its output; none of it recomputed."""
    alone = {**DENSE, "num_accelerators": 1, "tensor_parallel": 1, "pipeline_parallel": 1, "global_batch_size": 1}
    alone |= {"micro_batch_size": 1, "sequence_length": 4096, "compiled": "yes"}
    eager = {**alone, "compiled": "no"}
    again = [{**one, "recompute": "selective", "recompute_modules": "norm activation"} for one in (alone, eager)]
    kept = results(catalog, alone, eager, *again)["memory_layer_activations"]
    assert kept[1] - kept[0] == pytest.approx(32 * 4096 * (2 * 4 * 4096 + 2 * 14336), rel=1e-12)
    assert kept[3] == kept[2]
    layer_norms = {**alone, "model": "GPT3-175B", "sequence_length": 2048}
    same = results(catalog, layer_norms, {**layer_norms, "compiled": "no"})["memory_layer_activations"]
    assert same[0] == same[1]


def test_a_mixture_that_is_recomputed_whole_keeps_its_input_whatever_products_are_kept(catalog: Catalog) -> None:
    mixture = {**DENSE, "model": "Mixtral-8x7B-v0.1", "recompute": "selective", "num_accelerators": 64}
    ways = "products", "products moe", "moe"
    kept = results(catalog, *({**mixture, "recompute_modules": way} for way in ways))["memory_layer_activations"]
    assert kept[1] < 0.6 * kept[0] and kept[1] == pytest.approx(kept[2], rel=0.1)  # attention keeps other products


def test_a_loss_in_16_bits_has_no_wide_copies(catalog: Catalog) -> None:
    """Four 16-bit tensors of the logits for one and three in FP32; 12 bytes of a logit are moved for 36."""
    alone = {**DENSE, "num_accelerators": 1, "tensor_parallel": 1, "pipeline_parallel": 1, "global_batch_size": 4}
    for way in ("plain", "gathered"):
        wide, narrow = ({**alone, "cross_entropy": way, "loss_precision": width} for width in ("fp32", "bf16"))
        result = results(catalog, {**alone, "cross_entropy": way}, wide, narrow)
        sizes = result["memory"]
        assert sizes[0] == sizes[1] and sizes[1] - sizes[2] == pytest.approx(6.0 * 8192 * 128256, rel=1e-12)
        assert result["step_time"][2] < result["step_time"][1] == result["step_time"][0]
        moved = []
        for row in (wide, narrow):
            shown = explain(plans(row), catalog)
            loss = [str(name).startswith("cross-entropy") for name in shown["operator"]]
            moved.append(shown["traffic"][np.array(loss)].sum())
        assert moved == [36.0 * 8192 * 128256, 12.0 * 8192 * 128256]
    for way in ("fused", "parallel"):
        result = results(catalog, *({**alone, "cross_entropy": way, "loss_precision": one} for one in ("fp32", "bf16")))
        assert result["memory"][0] == result["memory"][1] and result["step_time"][0] == result["step_time"][1]


def test_sharded_weights_of_stage_3_are_the_master_copy(catalog: Catalog) -> None:
    base = {**DENSE, "tensor_parallel": 1, "pipeline_parallel": 1, "num_accelerators": 64}
    result = results(catalog, {**base, "zero_stage": 0}, {**base, "zero_stage": 3})
    state = ("memory_weights", "memory_gradients", "memory_optimizer")
    whole, sharded = (sum(result[name][row] for name in state) for row in (0, 1))
    assert sharded * 64 / whole == pytest.approx(16 / 18)


HYBRID = {**DENSE, "tensor_parallel": 1, "pipeline_parallel": 1, "zero_stage": 3}


def test_hybrid_sharding_trades_memory_for_the_slow_network(catalog: Catalog) -> None:
    """Shards within a node of 8: eight times the state of 64 shards, and only an eighth of the gradients leaves it."""
    result = results(catalog, HYBRID, *({**HYBRID, "zero_group_size": size} for size in (64, 8, 1)))
    state = result["memory_weights"] + result["memory_gradients"] + result["memory_optimizer"]
    np.testing.assert_allclose(state / state[0], [1.0, 1.0, 8.0, 64.0], rtol=1e-12)
    assert result["step_time"][0] == result["step_time"][1]
    slow = results(catalog, *({**HYBRID, "global_batch_size": 1024, "sequence_length": 512, "zero_group_size": size}
                              for size in (64, 8)))["time_data_parallel"]  # fmt: skip
    assert slow[1] < slow[0]


def test_hybrid_sharding_of_stage_1_moves_as_many_bytes_as_a_hierarchy(catalog: Catalog) -> None:
    plan = {**HYBRID, "zero_stage": 1}
    result = results(catalog, *({**plan, "zero_group_size": size} for size in (64, 16, 8)))
    assert (np.diff(result["memory_optimizer"]) > 0).all()
    assert (result["memory_weights"] == result["memory_weights"][0]).all()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"zero_group_size": 24}, "zero group size 24 does not divide the 64 ranks that hold the same weights "
         "(of experts: 64)"),
        ({"zero_group_size": 8, "zero_stage": 0}, "zero group size 8 needs ZeRO stage 1 or more"),
    ],
)  # fmt: skip
def test_groups_that_cannot_be_are_said(catalog: Catalog, change: dict[str, object], reason: str) -> None:
    assert results(catalog, {**HYBRID, **change})["reason"][0] == reason


def test_a_pipeline_keeps_gathered_weights_and_whole_gradients(catalog: Catalog) -> None:
    base = {**DENSE, "tensor_parallel": 1, "pipeline_parallel": 4}
    result = results(catalog, *({**base, "zero_stage": stage} for stage in (1, 3)))
    assert result["memory_weights"][1] > result["memory_weights"][0]
    assert result["memory_gradients"][1] == result["memory_gradients"][0]  # each is freed as it is scattered
    assert result["time_data_parallel"][1] == pytest.approx(result["time_data_parallel"][0], rel=0.5)


def test_reserved_memory_of_sharded_gradients_does_not_jump_where_the_peak_moves_to_the_end(catalog: Catalog) -> None:
    """Longer sequences move the peak from the end of the backward pass to the loss: memory and reserved grow evenly."""
    row = {"model": "Meta-Llama-3.1-8B", "accelerator": "H100-SXM-80GB", "num_accelerators": 2, "zero_stage": 3,
           "software": "torchtitan", "global_batch_size": 2, "recompute": "full", "cross_entropy": "plain"}  # fmt: skip
    result = results(catalog, *({**row, "sequence_length": length} for length in range(7808, 8705, 64)))
    memory, reserved = result["memory"], result["memory_reserved"]
    slopes = np.diff(memory)
    assert slopes.max() > 5.0 * slopes.min() > 0.0, "the peak moves among these lengths"
    assert (np.abs(np.diff(reserved)) < 0.005 * reserved[1:]).all()
