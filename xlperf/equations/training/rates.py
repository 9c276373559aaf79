"""Training rates: tokens and model FLOP per second, and model and hardware FLOP utilisation."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, some
from xlperf.equations.model.linear import recurrent_step_flop
from xlperf.equations.model.model import attention_flop, training_flop_per_token
from xlperf.equations.model.parameters import expert_parameters, layer_matrices, matrix_parameters
from xlperf.equations.model.sparse import index_flop, sparse_keys
from xlperf.equations.plan.records import Recompute
from xlperf.equations.training.adapters import model_adapters
from xlperf.equations.training.setting import Setting


def _recomputed_flop(setting: Setting, scores: Array, forward: Array, layers: Array) -> Array:
    """FLOP per token that are computed again, averaged over the layers of a full stage, (rows,). [FLOP]"""
    model, plan = setting.model, setting.plan
    found = plan.again("core_attention") * scores
    if some(plan.more_modules):
        dense = expert_parameters(model.hidden_size, model.ffn_hidden_size, model.gated_mlp)
        routed = model.top_k * model.expert_ffn_hidden_size * (model.expert_hidden_size / model.hidden_size)
        mixture = expert_parameters(model.hidden_size, routed + model.shared_ffn_hidden_size, model.gated_mlp)
        again = plan.again("mlp") * model.num_dense_layers * dense + plan.again("moe") * model.num_moe_layers * mixture
        found = np.where(plan.again("products") > 0, 0.5 * (forward - scores), found + 2.0 * again)
    found = np.where(plan.recompute == Recompute.FULL, forward, found)
    return np.asarray(np.minimum(plan.recompute_layers / layers, 1.0) * found)


def _flop_per_token(setting: Setting) -> tuple[Array, Array]:
    """FLOP of the model per trained token, and those computed again, (rows,). [FLOP]

    MTP modules count where they are trained; frozen weights have no gradients, their adapters all three products.
    """
    model, plan, mtp = setting.model, setting.plan, setting.plan.mtp_layers
    window = np.minimum(model.window, plan.sequence_length)
    keys = model.num_global_layers * plan.sequence_length + model.num_local_layers * window
    if setting.architecture.sparse_attention:
        keys = keys + sparse_keys(model, plan.sequence_length)
    head_size = 0.5 * (model.qk_head_size + model.v_head_size)
    scores = attention_flop(1.0, model.num_attention_heads, 1.0, keys, head_size)
    active = matrix_parameters(model, experts_per_token=True)
    if some(mtp):
        module = layer_matrices(model, experts_per_token=True) + 2.0 * model.hidden_size**2
        active = active + mtp * (module + model.hidden_size * model.vocab_size)
        scores = scores * (1.0 + mtp / model.num_attention_layers)
    if setting.architecture.linear_attention:
        states = recurrent_step_flop(1.0, model.linear_value_heads, model.linear_key_size, model.linear_value_size)
        scores = scores + model.num_linear_layers * states
    if setting.architecture.sparse_attention:
        entries = plan.sequence_length / model.selected_ratio
        scores = scores + model.num_index_layers * index_flop(1.0, entries, model.index_heads, model.index_size)
    flop = training_flop_per_token(active, 0.5 * scores)
    head = (1.0 + mtp) * 2.0 * model.hidden_size * model.vocab_size
    recomputed = _recomputed_flop(setting, scores, flop / 3.0 - head, setting.pipeline.middle.layers)
    if some(plan.frozen):
        flop = np.where(plan.frozen, flop - 2.0 * active + 6.0 * model_adapters(model, plan), flop)
    return flop, recomputed


def training_rates(setting: Setting, step_time: Array) -> dict[str, Array]:
    r"""Tokens and model FLOP per second, and the share of the peak rate that they are.

    .. math:: \mathrm{MFU} = \frac{B s F}{n t P}

    with the FLOP :math:`F` of the model per trained token: six per active parameter of matrix products, and attention
    over the whole sequence; HFU counts recomputation as well.

    Parameters
    ----------
    setting : Setting
        Model, device and plan. [-]
    step_time : Array
        Time of an optimizer step, (rows,). [s]

    Returns
    -------
    dict of str to Array
        Columns of training_results by name, (rows,): ``tokens_per_second``, ``tokens_per_second_per_accelerator``,
        ``model_flop_rate``, ``mfu`` and ``hfu``.

    References
    ----------
    .. [1] A. Chowdhery et al., "PaLM: scaling language modeling with pathways", 2022, arXiv:2204.02311, appendix B.
    """
    plan, peak = setting.plan, setting.device.peak_flop_rate[:, 0]
    flop, recomputed = _flop_per_token(setting)
    rate = plan.global_batch_size * plan.sequence_length / step_time
    per_accelerator = rate / plan.num_accelerators
    return {
        "tokens_per_second": rate,
        "tokens_per_second_per_accelerator": per_accelerator,
        "model_flop_rate": per_accelerator * flop,
        "mfu": per_accelerator * flop / peak,
        "hfu": per_accelerator * (flop + recomputed) / peak,
    }
