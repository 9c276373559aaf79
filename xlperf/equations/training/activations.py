"""Activations that the layers of a training step keep for their backward pass, as recomputation leaves them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, some
from xlperf.equations.plan.choices import AdapterModules, ContextMethod, Recompute
from xlperf.equations.plan.memory import attention_activation_size, expert_activation_size, mlp_activation_size
from xlperf.equations.training.setting import MASK, STORED, STORED_OUTPUT, Setting


class LayerActivations(NamedTuple):
    """Bytes of one layer and micro-batch, (rows,): kept, and all of them while the layer is computed. [B]

    ``dense`` and ``mixture`` hold what a layer that recomputes keeps, ``dense_whole`` and ``mixture_whole`` what one
    that does not keeps.
    """

    dense: Array
    mixture: Array
    dense_whole: Array
    mixture_whole: Array


class _Inputs(NamedTuple):
    """Bytes of one layer in the inputs of products, (rows,). [B]"""

    attention: Array
    dense: Array
    mixture: Array


def _freed_inputs(setting: Setting) -> _Inputs:
    """Inputs of frozen products without an adapter: no weight gradient asks for them."""
    model, plan = setting.model, setting.plan
    element, tensor = plan.element_size, plan.tensor_parallel
    stream = plan.tokens * model.hidden_size * element / np.where(plan.sequence_parallel > 0, tensor, 1.0)
    frozen = np.where(plan.frozen, 1.0, 0.0)
    alone = np.where(plan.adapter_modules == AdapterModules.ALL, 0.0, frozen)
    norm, activation = (1.0 - plan.again(name) for name in ("norm", "activation"))
    again = (1.0 - plan.again("products")) * (1.0 - plan.again("mlp"))
    dense = alone * again * (norm * stream + activation * plan.tokens * model.ffn_hidden_size / tensor * element)
    if not setting.architecture.experts:
        return _Inputs(0.0 * dense, dense, dense)
    _, copies, _ = setting.routed
    width = model.expert_ffn_hidden_size / plan.expert_tensor_parallel
    received = copies * (model.hidden_size + activation * width) * element
    shared = norm * stream + activation * plan.tokens * model.shared_ffn_hidden_size / tensor * element
    shared = np.where(model.shared_ffn_hidden_size > 0, shared, 0.0)
    again = (1.0 - plan.again("products")) * (1.0 - plan.again("moe"))
    return _Inputs(0.0 * dense, dense, frozen * again * (received + shared))


def _narrow_inputs(setting: Setting) -> _Inputs | None:
    """Inputs of products that are kept narrow: in place of norm and activation outputs, beside the attention's."""
    model, plan = setting.model, setting.plan
    if not some(plan.keeps_copies):
        return None
    tensor, narrow = plan.tensor_parallel, plan.product_size
    share = np.where(plan.keeps_copies & ~plan.frozen, 1.0 - plan.wide_layers / model.num_layers, 0.0)
    saved = share * (narrow - plan.element_size)
    stream = plan.tokens * model.hidden_size / np.where(plan.sequence_parallel > 0, tensor, 1.0)
    norm, activation, products = (1.0 - plan.again(name) for name in ("norm", "activation", "products"))
    output = plan.tokens * model.num_attention_heads * model.v_head_size / tensor
    beside = np.where(plan.stores_fp8, 0.0, share * narrow)
    attention = products * (norm * saved * stream + beside * output)
    inner = plan.tokens * model.ffn_hidden_size / tensor
    dense = products * (1.0 - plan.again("mlp")) * saved * (norm * stream + activation * inner)
    if not setting.architecture.experts:
        return _Inputs(attention, dense, dense)
    _, copies, _ = setting.routed
    width = model.expert_ffn_hidden_size / plan.expert_tensor_parallel
    received = copies * (model.hidden_size + activation * width)
    shared = norm * stream + activation * plan.tokens * model.shared_ffn_hidden_size / tensor
    shared = np.where(model.shared_ffn_hidden_size > 0, shared, 0.0)
    return _Inputs(attention, dense, products * (1.0 - plan.again("moe")) * saved * (received + shared))


def layer_activations(setting: Setting) -> LayerActivations:
    """Bytes that a dense layer and a mixture of experts keep.

    Parameters
    ----------
    setting : Setting
        Model, plan and calibration. [-]

    Returns
    -------
    LayerActivations
        With and without the recomputation of the plan. [B]
    """
    model, plan = setting.model, setting.plan
    tensor, sequence, element = plan.tensor_parallel, plan.sequence_parallel, plan.element_size
    scores = (1.0 - plan.flash_attention) * setting.heads * plan.tokens * plan.sequence_length
    width = model.num_attention_heads * model.v_head_size
    compressed = tensor * (2.0 * model.q_lora_rank + 2.0 * model.kv_lora_rank + model.qk_rope_head_size)
    expanded = model.num_attention_heads * (2.0 * model.qk_head_size + model.v_head_size)
    latent = model.latent_attention > 0
    plain = width + 2.0 * model.num_query_groups * model.head_size
    projected = np.where(latent, expanded + compressed, plain)
    common = (tensor, sequence, element, MASK)

    attention = attention_activation_size(
        plan.tokens, model.hidden_size, projected, width, scores, model.dropout, *common
    )
    exchanged = (plan.context_method == ContextMethod.ULYSSES) & (plan.context_parallel > 1)
    if some(exchanged):  # the output is kept on both sides of the exchange
        attention = attention + np.where(exchanged, plan.tokens * width / tensor * element, 0.0)
    dense = mlp_activation_size(
        plan.tokens, model.hidden_size, model.ffn_hidden_size, model.gated_mlp, model.dropout, *common
    )
    mixture = dense
    inner = expert_inner = plan.tokens * model.ffn_hidden_size / tensor
    if setting.architecture.experts:
        _, copies, _ = setting.routed
        shared = mlp_activation_size(
            plan.tokens, model.hidden_size, model.shared_ffn_hidden_size, model.gated_mlp, model.dropout, *common
        )
        expert_ffn = model.expert_ffn_hidden_size / plan.expert_tensor_parallel
        mixture = shared + expert_activation_size(copies, model.hidden_size, expert_ffn, model.gated_mlp, element)
        expert_inner = copies * expert_ffn + plan.tokens * model.shared_ffn_hidden_size / tensor
    if some(plan.frozen):
        freed = _freed_inputs(setting)
        dense, mixture = dense - freed.dense, mixture - freed.mixture
    narrow = _narrow_inputs(setting)
    if narrow is not None:
        attention, dense = attention + narrow.attention, dense + narrow.dense
        mixture = mixture + narrow.mixture
    output_size = before_size = element  # of the output of attention; of what an activation function reads
    if some(plan.stores_fp8):
        stored = plan.stores_fp8
        output_size, before_size = np.where(stored, STORED_OUTPUT, element), np.where(stored, STORED, element)
        up = (1.0 + model.gated_mlp) * (element - before_size)
        attention = attention - plan.tokens * width / tensor * (element - output_size)
        dense, mixture = dense - up * inner, mixture - up * expert_inner
    unfused = 1.0 + setting.constants["training_memory"]["activation_share"][:, 0]
    whole, mixture_whole = unfused * (attention + dense), unfused * (attention + mixture)
    if not some(plan.recompute > 0):
        return LayerActivations(whole, mixture_whole, whole, mixture_whole)

    stream = plan.tokens * model.hidden_size * element / np.where(sequence > 0, tensor, 1.0)
    full, selective = plan.recompute == Recompute.FULL, plan.recompute == Recompute.SELECTIVE
    if some(scores):
        kept_scores = attention_activation_size(0.0, 0.0, 0.0, 0.0, scores, model.dropout, *common)
        attention = attention - np.where(selective, plan.again("core_attention") * kept_scores, 0.0)
    if some(plan.more_modules):
        norm, activation = plan.again("norm"), plan.again("activation")
        again_mlp, again_moe = plan.again("mlp"), plan.again("moe")
        expansion = plan.tokens * expanded / tensor * element
        attention = attention - norm * stream - np.where(latent, plan.again("latent") * expansion, 0.0)
        dense = np.where(again_mlp > 0, stream, dense - norm * stream - activation * inner * element)
        mixture = np.where(again_moe > 0, stream, mixture - norm * stream - activation * expert_inner * element)
        output = stream + plan.tokens * width / tensor * output_size
        products = plan.again("products") > 0
        half = 0.5 * element * plan.tokens * (projected / tensor + 2.0 * model.hidden_size)
        up = 0.5 * before_size * (1.0 + model.gated_mlp)
        attention = np.where(products, output + half, attention)
        dense, mixture = np.where(products, up * inner, dense), np.where(products, up * expert_inner, mixture)
    return LayerActivations(
        np.where(full, stream, unfused * (attention + dense)),
        np.where(full, stream, unfused * (attention + mixture)),
        whole,
        mixture_whole,
    )
