"""What waits in memory between passes and steps, in which precision: moments, master weights, stored activations."""

from __future__ import annotations

import numpy as np
import pytest
from training_samples import results

from xlperf.catalog.catalog import Catalog

DENSE: dict[str, object] = {
    "model": "Llama3-8B", "accelerator": "H100-SXM-80GB", "num_accelerators": 1, "global_batch_size": 1,
    "sequence_length": 8192, "zero_stage": 0, "software": "in-house",
}  # fmt: skip
DEEPSEEK: dict[str, object] = {
    "model": "DeepSeek-V3", "accelerator": "H800-SXM-80GB", "num_accelerators": 2048, "software": "in-house",
    "pipeline_parallel": 16, "pipeline_schedule": "dualpipe", "expert_parallel": 64, "zero_stage": 1,
    "expert_overlap": "yes", "dispatch_precision": "fp8", "dispatch_nodes": 4, "global_batch_size": 15360,
    "sequence_length": 4096, "precision": "fp8-block", "recompute": "selective",
    "recompute_modules": "norm latent activation", "train_mtp": "yes",
}  # fmt: skip
SAVING: dict[str, object] = {"moment_precision": "bf16", "activation_storage": "fp8"}


def test_optimizer_memory_follows_its_precisions(catalog: Catalog) -> None:
    """Two moments of 4, 2 and 1 bytes beside a master copy of 4, or 2, or none."""
    changes = ({}, {"moment_precision": "bf16"}, {"moment_precision": "fp8"}, {"master_weights": "remainder"},
               {"master_weights": "none"}, {"moment_precision": "bf16", "master_weights": "none"})  # fmt: skip
    result = results(catalog, *({**DENSE, **change} for change in changes))
    shares = result["memory_optimizer"] / result["memory_weights"]
    assert shares * 2.0 == pytest.approx([12.0, 8.0, 6.0, 10.0, 8.0, 4.0])
    assert (np.diff(result["time_optimizer"][:3]) < 0).all()  # less is read and written


def test_sharded_weights_without_a_master_copy_rest_in_16_bits(catalog: Catalog) -> None:
    shared = {**DENSE, "num_accelerators": 8, "global_batch_size": 8, "zero_stage": 3}
    result = results(catalog, shared, {**shared, "master_weights": "none"}, {**shared, "master_weights": "remainder"})
    assert result["memory_weights"][0] == result["memory_weights"][2] == 2.0 * result["memory_weights"][1]
    assert (result["memory_optimizer"] == result["memory_optimizer"][0]).all()  # the moments alone


def test_stored_activations_by_hand(catalog: Catalog) -> None:
    """Llama 3 8B: gate and up of 14,336 from 2 to 1 byte, output of attention of 4,096 from 2 to 1.5, with scales."""
    scale = 4.0 / 128.0
    saved = 32.0 * 8192.0 * (2.0 * 14336.0 * (1.0 - scale) + 4096.0 * (0.5 - scale))
    result = results(catalog, DENSE, {**DENSE, "activation_storage": "fp8"})
    assert -np.diff(result["memory_layer_activations"])[0] == pytest.approx(saved, rel=1e-12)
    narrow = {**DENSE, "precision": "fp8-block"}  # its output projection keeps a copy in FP8, which goes as well
    result = results(catalog, narrow, {**narrow, "activation_storage": "fp8"})
    more = 32.0 * 8192.0 * 4096.0 * (1.0 + scale)
    assert -np.diff(result["memory_layer_activations"])[0] == pytest.approx(saved + more, rel=1e-12)


def test_stored_activations_leave_what_is_computed_again(catalog: Catalog) -> None:
    full = {**DENSE, "recompute": "full"}
    result = results(catalog, full, {**full, "activation_storage": "fp8"})
    assert result["memory_layer_activations"][0] == result["memory_layer_activations"][1]
    half = {**DENSE, "recompute": "selective", "recompute_modules": "products"}
    result = results(catalog, half, {**half, "activation_storage": "fp8"})
    assert result["memory_layer_activations"][1] < result["memory_layer_activations"][0]


def test_deepseek_v3_fits_on_its_2048_accelerators(catalog: Catalog) -> None:
    """The report's mapping and precisions (sections 3.1 to 3.3): 16 stages, experts over 64 ranks, ZeRO-1."""
    result = results(catalog, {**DEEPSEEK, **SAVING}, DEEPSEEK)
    assert "GiB" not in result["reason"][0] and result["memory_reserved"][0] < result["memory_capacity"][0]
    assert "needs 9" in result["reason"][1]
    assert result["memory_reserved"][0] > 0.85 * result["memory_capacity"][0]


def test_deepseek_v3_activations_of_a_token_by_hand(catalog: Catalog) -> None:
    """A stage of four mixture layers keeps 17 micro-batches; bytes of a token and layer counted one by one."""
    narrow, hidden, width = 1.0 + 4.0 / 128.0, 7168.0, 2048.0
    attention = 2.0 * hidden + 2.0 * (2.0 * 1536.0 + 2.0 * 512.0 + 64.0) + (narrow + 0.5) * 128.0 * 128.0
    mixture = 2.0 * hidden + 8.0 * hidden * narrow + (8.0 + 1.0) * 2.0 * width * narrow
    plan = {**DEEPSEEK, **SAVING, "train_mtp": "no", "first_stage_layers": 3, "last_stage_layers": 2,
            "cross_entropy": "fused"}  # fmt: skip
    result = results(catalog, plan)
    assert result["memory_middle_stage"][0] > result["memory_last_stage"][0]
    assert result["memory_layer_activations"][0] == pytest.approx(
        17.0 * 4.0 * 4096.0 * (attention + mixture), rel=1e-12
    )


@pytest.mark.parametrize("change", [{"precision": "fp32"}, {"precision": "fp8", "quantized_copies": "primary"}])
def test_a_remainder_needs_16_bit_weights(catalog: Catalog, change: dict[str, object]) -> None:
    result = results(catalog, {**DENSE, **change, "master_weights": "remainder"})
    assert result["reason"][0] == (
        "master weights remainder need 16-bit weights beside them: not fp32, tf32 or quantized copies primary"
    )
    assert np.isnan(result["step_time"][0])


def test_rows_in_several_precisions_are_the_same_together_and_alone(catalog: Catalog) -> None:
    plans = [DENSE, {**DENSE, **SAVING}, {**DENSE, "master_weights": "remainder"}, {**DEEPSEEK, **SAVING}, DEEPSEEK]
    many = results(catalog, *plans)
    for row, plan in enumerate(plans):
        for name, values in results(catalog, plan).items():
            assert repr(values[0]) == repr(many[name][row]), (name, row)
