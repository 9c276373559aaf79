"""Rates, utilisation and power of a training step, and results of whole runs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from xlperf.base.arrays import Array, ceil_div, some
from xlperf.equations.hardware.attention import core_attention_flop
from xlperf.equations.hardware.failures import checkpoint_interval, domain_failure_rate, goodput
from xlperf.equations.hardware.power import Machine, WorkRates, accelerator_power, traffic_from_memory
from xlperf.equations.model import operators
from xlperf.equations.model.blocks import EXPERTS, MLP, SHARED_EXPERT, weights
from xlperf.equations.model.cores import cores_of
from xlperf.equations.model.model import Model
from xlperf.equations.plan.dimensions import MESSAGE_PARTS
from xlperf.equations.plan.records import Recompute
from xlperf.equations.plan.training_plan import TrainingPlan
from xlperf.equations.training.setting import Setting, model_adapters


def _recomputed_flop(setting: Setting, scores: Array, forward: Array, layers: Array) -> Array:
    """Recomputed FLOP per token, averaged over the layers of a full stage, (rows,). [FLOP]"""
    model, plan = setting.model, setting.plan
    # attention again; the last product of a dense block may be skipped
    repeated = plan.again("core_attention") * scores
    left_out = 1.0 - setting.constants["training_calls"]["last_product"][:, 0]
    left_out = 2.0 * left_out * model.num_dense_layers * model.ffn_hidden_size * model.hidden_size
    if some(plan.more_modules):  # whole blocks again
        shard = operators.whole_model(model)
        dense, mixture = weights(MLP, shard), model.top_k * weights(EXPERTS, shard) + weights(SHARED_EXPERT, shard)
        again = plan.again("mlp") * model.num_dense_layers * dense + plan.again("moe") * model.num_moe_layers * mixture
        output = model.num_attention_heads * model.v_head_size * model.hidden_size
        again = again + plan.again("attention_output") * model.num_attention_layers * output
        repeated = repeated + 2.0 * again - plan.again("mlp") * left_out
        repeated = np.where(plan.again("products") > 0, 0.5 * (forward - scores), repeated)
    repeated = np.where(plan.recompute == Recompute.FULL, forward - left_out, repeated)
    return np.asarray(np.minimum(plan.recompute_layers / layers, 1.0) * repeated)


def _scores_of_shapes(setting: Setting) -> Array:
    """FLOP of attention per token if layers with a window have heads of their own, (rows,). [FLOP]"""
    result = np.zeros_like(setting.plan.sequence_length)
    for core in cores_of(setting.architecture):
        if core.keys:
            keys, model = core.keys(setting.model, setting.plan.sequence_length), core.shapes(setting.model)
            head_size = 0.5 * (model.qk_head_size + model.v_head_size)
            result = result + core.layers(model) * core_attention_flop(1.0, model.num_attention_heads, head_size, keys)
    return result


def _flop_per_token(setting: Setting) -> tuple[Array, Array, Array]:
    """FLOP of the model per trained token, recomputed ones, and the saving of a causal mask, (rows,) each. [FLOP]
    Trained MTP modules count; frozen weights have no gradients, their adapters all three products.
    """
    model, plan, mtp = setting.model, setting.plan, setting.plan.mtp_layers
    # attention over all keys that a core sees; a causal mask saves half of it in layers that see everything
    cores = cores_of(setting.architecture)
    keys = sum(core.layers(model) * core.keys(model, plan.sequence_length) for core in cores if core.keys)
    head_size = 0.5 * (model.qk_head_size + model.v_head_size)
    scores = core_attention_flop(1.0, model.num_attention_heads, head_size, keys)
    if setting.architecture.shapes:
        scores = _scores_of_shapes(setting)
    whole = model.num_global_layers * plan.sequence_length
    masked = 0.5 * core_attention_flop(1.0, model.num_attention_heads, head_size, whole)
    # active parameters, with those of trained MTP modules
    active = operators.matrix_parameters(model, experts_per_token=True)
    if some(mtp):
        module = operators.layer_matrices(model, experts_per_token=True) + 2.0 * model.hidden_size**2
        active = active + mtp * (module + model.hidden_size * model.vocab_size)
        scores, masked = (count * (1.0 + mtp / model.num_attention_layers) for count in (scores, masked))
    for core in cores:
        if core.other_flop is not None:
            scores = scores + core.layers(model) * core.other_flop(model, plan.sequence_length)
    flop = 6.0 * (active + 0.5 * scores)  # forward and backward (arXiv:2104.04473, section 5.1)
    head = (1.0 + mtp) * 2.0 * model.hidden_size * model.vocab_size
    recomputed = _recomputed_flop(setting, scores, flop / 3.0 - head, setting.pipeline.middle.layers)
    if some(plan.frozen):
        flop = np.where(plan.frozen, flop - 2.0 * active + 6.0 * model_adapters(model, plan), flop)
    return flop, recomputed, 3.0 * masked


def training_rates(setting: Setting, step_time: Array) -> dict[str, Array]:
    r"""Tokens and model FLOP per second, and their share of the peak rate: the columns of training_results by name.

    .. math:: \mathrm{MFU} = \frac{B s F}{n t P}

    with the FLOP :math:`F` of the model per trained token: six per active parameter of matrix products, and attention
    over the whole sequence (PaLM, arXiv:2204.02311, appendix B). HFU adds recomputation. The causal MFU counts half of
    the attention of layers that attend to everything (Megatron-Bridge, flop_utils.py).
    """
    plan, peak = setting.plan, setting.device.peak_flop_rate[:, 0]
    flop, recomputed, masked = _flop_per_token(setting)
    rate = plan.global_batch_size * plan.sequence_length / step_time
    per_accelerator = rate / plan.num_accelerators
    return {
        "tokens_per_second": rate,
        "tokens_per_second_per_accelerator": per_accelerator,
        "model_flop_rate": per_accelerator * flop,
        "mfu": per_accelerator * flop / peak,
        "mfu_causal": per_accelerator * (flop - masked) / peak,
        "hfu": per_accelerator * (flop + recomputed) / peak,
    }


def causal_ratio(setting: Setting) -> Array:
    """MFU with half of the attention, as a causal mask leaves it, over MFU with all of it, (rows,). [-]

    A layer of 12 M active parameters and an output projection of 1 M, attention of 4 x 1,000 FLOP per key:

    >>> from ideal_machine import setting
    >>> float(causal_ratio(setting(sequence_length=1000))[0].round(4))
    0.9333
    """
    model, plan = setting.model, setting.plan
    keys = model.num_global_layers * plan.sequence_length
    head_size = 0.5 * (model.qk_head_size + model.v_head_size)
    scores = core_attention_flop(1.0, model.num_attention_heads, head_size, keys)
    return np.asarray(1.0 - 1.5 * scores / _flop_per_token(setting)[0])


def run_results(model: Model, plan: TrainingPlan, step_time: Array) -> dict[str, Array]:
    """Steps, checkpoint size (trained weights) and interval, goodput and time of a run, (rows,); NaN without tokens."""
    steps = ceil_div(plan.training_tokens, plan.global_batch_size * plan.sequence_length)
    parameters = operators.parameter_count(model) + np.where(plan.mtp_layers > 0, operators.mtp_parameters(model), 0.0)
    parameters = np.where(plan.frozen, model_adapters(model, plan), parameters)
    # weights and optimizer state, master weights included; any accelerator stops the run (Llama 3, table 5)
    size = np.where(np.isnan(steps), np.nan, parameters * (plan.element_size + plan.optimizer_size))
    write_time, failures = size / plan.checkpoint_bandwidth, plan.accelerator_mtbf / plan.num_accelerators
    # failures of accelerators and of whole domains, and the checkpoint interval that they make best
    rate = domain_failure_rate(plan.num_accelerators, plan.failure_domain, plan.failure_domain_mtbf)
    failures = np.where(np.isnan(rate), failures, failures / (1.0 + failures * rate))
    interval = checkpoint_interval(write_time, failures)
    share = goodput(interval, write_time, failures, plan.restart_time)
    return {
        "run_steps": steps,
        "checkpoint_size": size,
        "checkpoint_interval": interval,
        "goodput": share,
        "run_time": steps * step_time / share,
    }


def training_power(machine: Machine, model: Model, plan: TrainingPlan, results: Mapping[str, Array]) -> Array:
    """Mean power of an accelerator over a training step, (rows,). [W] Heuristic, this work: :func:`accelerator_power`
    of the operations of a step, one byte per ``compute_intensity`` of them; links draw power for hidden messages too.
    """
    device, step = machine.device, results["step_time"]
    sending = np.minimum(
        sum((results[name] for name in (*MESSAGE_PARTS, "hidden_communication_time")), 0.0 * step) / step, 1.0
    )
    # work rates over the step: FLOP, traffic of the matrix units, share of it from main memory
    flop = results["hfu"] * device.peak_flop_rate[:, 0]
    traffic = flop / machine.constants["compute_intensity"][:, 0]
    width = np.where(model.ffn_hidden_size > 0.0, model.ffn_hidden_size, model.hidden_size) / plan.tensor_parallel
    missing = traffic_from_memory(device, width, model.hidden_size, plan.tokens, plan.product_size)
    rates = WorkRates(flop, 0.0 * step, traffic, missing, sending, np.ones_like(step))
    return accelerator_power(*machine, plan.product_size, rates)
