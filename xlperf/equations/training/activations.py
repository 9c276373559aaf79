"""Activations that a layer keeps for its backward pass, as recomputation and low precision leave them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, divide, ones, some
from xlperf.equations.model.blocks import EXPERTS, MLP, SHARED_EXPERT, Block, saved_elements
from xlperf.equations.model.layers import attention_of
from xlperf.equations.model.linear_attention import KINDS
from xlperf.equations.plan.records import WORD, AdapterModules, ContextMethod, Recompute
from xlperf.equations.plan.training_plan import TrainingPlan
from xlperf.equations.training.kernels import CORES, LAYER_PLACES
from xlperf.equations.training.setting import MASK, STORED, STORED_OUTPUT, Part, Setting

_BLOCKS = 2.0  # blocks of a layer, each with residual streams of its own to keep [-]


class LayerActivations(NamedTuple):
    """Bytes of one layer and micro-batch, (rows,): dense layer and mixture of experts. [B]"""

    dense: Array  # saved with the recomputation of the plan
    mixture: Array
    dense_whole: Array  # saved without recomputation
    mixture_whole: Array


class _Inputs(NamedTuple):
    """Inputs of the products of one layer, (rows,)."""

    attention: Array
    dense: Array
    mixture: Array


def _feed_forward_inputs(setting: Setting) -> tuple[Array, Array]:
    """Elements that products of a dense feed-forward layer and of a mixture read, without recomputed ones. [-]"""
    model, plan = setting.model, setting.plan
    norm, activation, products = (1.0 - plan.again(name) for name in ("norm", "activation", "products"))
    stream = norm * plan.tokens * model.hidden_size / plan.stream_ranks
    inner = activation * plan.tokens / plan.tensor_parallel  # tokens of an element of the inner width
    dense = products * (1.0 - plan.again("mlp")) * (stream + inner * model.ffn_hidden_size)
    if not setting.architecture.experts:
        return dense, dense
    _, copies, _ = setting.routed
    width = model.expert_ffn_hidden_size / plan.expert_tensor_parallel
    received = copies * (model.expert_hidden_size + activation * width)
    shared = np.where(model.shared_ffn_hidden_size > 0, stream + inner * model.shared_ffn_hidden_size, 0.0)
    return dense, products * (1.0 - plan.again("moe")) * (received + shared)


def _freed_inputs(setting: Setting) -> _Inputs:
    """Bytes of the inputs of frozen products without adapters, which no weight gradient needs. [B]"""
    plan = setting.plan
    dense, mixture = _feed_forward_inputs(setting)
    frozen = np.where(plan.frozen, plan.element_size, 0.0)
    alone = np.where(plan.adapter_modules == AdapterModules.ALL, 0.0, frozen)
    return _Inputs(0.0 * dense, alone * dense, (frozen if setting.architecture.experts else alone) * mixture)


class _Mixers(NamedTuple):
    """Mixers and layers per feed-forward block, (rows,): one attention and one layer if no hybrid. [-]"""

    attention: Array
    linear: Array
    layers: Array

    @property
    def each(self) -> Array:
        """Mixers of either kind, each with a norm and a residual stream of its own. [-]"""
        return self.attention + self.linear


def _linear_block(setting: Setting) -> Block:
    return KINDS[setting.architecture.linear_kind].block


def _mixers(setting: Setting) -> _Mixers:
    """Mixers and layers for each feed-forward block."""
    model = setting.model
    one = ones(setting.plan.tokens)
    if not setting.architecture.counted:
        return _Mixers(one, 0.0 * one, one)
    blocks = model.num_dense_layers + model.num_moe_layers
    blocks = np.where(blocks > 0.0, blocks, model.num_layers)  # of models without feed-forward blocks: layers
    hybrid = (model.num_linear_layers > 0.0) | (model.uneven > 0.0)
    numbers = model.num_attention_layers, model.num_linear_layers, model.num_layers
    return _Mixers(*(np.where(hybrid, number / blocks, rest) for number, rest in zip(numbers, (1, 0, 1), strict=True)))


def _narrow_inputs(setting: Setting, mixers: _Mixers) -> _Inputs | None:
    """Bytes that quantized inputs of products add, instead of norm and activation outputs, beside attention outputs."""
    model, plan = setting.model, setting.plan
    if not some(plan.keeps_copies):
        return None
    share = np.where(plan.keeps_copies & ~plan.frozen, setting.narrow_share, 0.0)
    # outputs of norms and activations in the narrow format, and the attention output in both
    change = share * (plan.product_size - plan.element_size)
    norm, products = (1.0 - plan.again(name) for name in ("norm", "products"))
    stream = plan.tokens * model.hidden_size / plan.stream_ranks
    output = plan.tokens * model.num_attention_heads * model.v_head_size / plan.tensor_parallel
    beside = np.where(plan.stores_fp8, 0.0, share * plan.product_size)
    attention = products * (norm * change * mixers.each * stream + beside * mixers.attention * output)
    dense, mixture = _feed_forward_inputs(setting)
    return _Inputs(attention, change * dense, change * mixture)


def _block(setting: Setting, inner: Array) -> Array:
    r"""Activations that an attention or feed-forward block saves, excluding attention scores, (rows,). [B]

    .. math:: S = e n \left(\frac{2 h}{t_s} + w\right) + \delta \mu \frac{n h}{t_s}

    n tokens of width h, shared by t_s ranks between blocks; w elements per token between norm and residual (``inner``)
    of e bytes; dropout masks of mu bytes. Source: V. Korthikanti et al., "Reducing activation recomputation in large
    transformer models", 2022, arXiv:2205.05198, section 4.1 and equations 1 to 4.
    """
    model, plan = setting.model, setting.plan
    hidden = model.hidden_size / plan.stream_ranks
    mask = model.dropout * MASK * plan.tokens * hidden
    return np.asarray(plan.element_size * plan.tokens * (2.0 * hidden + inner) + mask)


class _Widths(NamedTuple):
    """Saved elements of attention on a rank, (rows,). [-]"""

    output: Array  # per token, output of the core attention
    expanded: Array  # per token, queries, keys and values of MLA after expansion
    projected: Array  # per token, queries, keys and values with compressed ones
    scores: Array  # of a micro-batch; 0 with flash attention


def _widths(setting: Setting) -> _Widths:
    model, plan = setting.model, setting.plan
    shard = setting.shard
    scores = (1.0 - plan.flash_attention) * shard.heads * plan.tokens * plan.sequence_length
    output = shard.heads * model.v_head_size
    if setting.architecture.shapes:
        near = divide(model.num_local_layers, model.num_attention_layers)
        output = near * shard.local.heads * model.local_v_head_size + (1.0 - near) * output
    expanded = shard.heads * (2.0 * model.qk_head_size + model.v_head_size)
    saved = attention_of(model, lambda block: saved_elements(block, shard))
    return _Widths(output, expanded, saved - output, scores)


class _Unfused(NamedTuple):
    """Additional activations of unfused PyTorch kernels, (rows,). [B] A root-mean-square norm saves its input in FP32
    and its product with the weights; a gated activation function its output before the gate. Layer norms and activation
    functions without a gate are one kernel in PyTorch too.
    """

    norm: Array
    element: Array


def _unfused(setting: Setting) -> _Unfused | None:
    """Additional activations of norms and activation functions that no compiler fuses; None if all are fused."""
    model, plan = setting.model, setting.plan
    unfused = np.where(np.isnan(plan.compiled), 0.0, 1.0 - plan.compiled)
    if not some(unfused > 0.0):
        return None
    vectors = np.where(model.layer_norm > 0, 0.0, unfused) * plan.tokens * model.hidden_size / plan.stream_ranks
    return _Unfused(vectors * np.maximum(WORD, plan.element_size), unfused * model.gated_mlp * plan.element_size)


def _gathered_inputs(setting: Setting) -> Array:
    """Bytes that a block saves beyond its shard if it does not gather its input again, (rows,). [B]"""
    plan = setting.plan
    split = (plan.sequence_parallel > 0) & (plan.gathers_again < 1.0)
    return np.where(split, setting.stream_size * (1.0 - 1.0 / plan.tensor_parallel), 0.0)


class _Saved(NamedTuple):
    """Saved activations of the blocks of a layer, (rows,). [B]"""

    attention: Array
    dense: Array
    mixture: Array
    inner: Array  # elements between the products of a dense feed-forward layer [-]
    expert_inner: Array  # elements between the products of a mixture of experts [-]
    output_size: Array  # bytes of an element of the attention output [B]
    before_size: Array  # bytes of an element that an activation function reads [B]


def _saved_attention(setting: Setting, mixers: _Mixers, widths: _Widths) -> Array:
    """Bytes that the attention block of a layer saves, mean over the kinds of layers, (rows,). [B]"""
    model, plan = setting.model, setting.plan
    attention = _block(setting, widths.projected + widths.output) + _score_size(setting) * widths.scores
    if some(model.residual_streams > 1.0):
        streams = (model.residual_streams - 1.0) * plan.tokens * model.hidden_size * plan.element_size
        attention = attention + _BLOCKS * streams / plan.stream_ranks
    exchanged = (plan.context_method == ContextMethod.ULYSSES) & (plan.context_parallel > 1)
    if some(exchanged):  # the output is saved on both sides of the exchange
        attention = attention + np.where(exchanged, plan.tokens * widths.output * plan.element_size, 0.0)
    if setting.architecture.linear_attention:
        linear = _block(setting, saved_elements(_linear_block(setting), setting.shard))
        attention = mixers.attention * attention + np.where(mixers.linear > 0.0, mixers.linear * linear, 0.0)
    return attention


def _score_size(setting: Setting) -> Array:
    """Bytes per attention score: the softmax, and with dropout its output and mask. [B]"""
    dropout = setting.model.dropout
    return np.asarray(setting.plan.element_size * (1.0 + dropout) + dropout * MASK)


def _saved_by_blocks(setting: Setting, mixers: _Mixers, widths: _Widths) -> _Saved:
    """Bytes that blocks save without recomputation."""
    model, plan = setting.model, setting.plan
    element, shard = plan.element_size, setting.shard
    attention = _saved_attention(setting, mixers, widths)
    dense = mixture = _block(setting, saved_elements(MLP, shard))
    inner = expert_inner = plan.tokens * model.ffn_hidden_size / plan.tensor_parallel
    if setting.architecture.experts:
        # Router probabilities are applied inside the experts: senders save none of the results (arXiv:2504.14960).
        _, copies, _ = setting.routed
        has_shared = model.shared_ffn_hidden_size > 0.0
        shared = _block(setting, np.where(has_shared, saved_elements(SHARED_EXPERT, shard), 0.0))
        mixture = shared + element * copies * (model.expert_hidden_size + saved_elements(EXPERTS, shard))
        expert_ffn = model.expert_ffn_hidden_size / plan.expert_tensor_parallel
        expert_inner = copies * expert_ffn + plan.tokens * model.shared_ffn_hidden_size / plan.tensor_parallel
    # frozen weights, quantized inputs, gathered inputs, unfused kernels and FP8 storage each change what is saved
    if some(plan.frozen):
        freed = _freed_inputs(setting)
        dense, mixture = dense - freed.dense, mixture - freed.mixture
    narrow = _narrow_inputs(setting, mixers)
    if narrow is not None:
        attention, dense = attention + narrow.attention, dense + narrow.dense
        mixture = mixture + narrow.mixture
    if some(plan.copied_gathers):
        gathered = _gathered_inputs(setting)
        attention, dense, mixture = attention + mixers.each * gathered, dense + gathered, mixture + gathered
    unfused = _unfused(setting)
    if unfused is not None:
        norm, activation = (1.0 - plan.again(name) for name in ("norm", "activation"))
        attention = attention + norm * mixers.each * unfused.norm
        dense = dense + norm * unfused.norm + activation * unfused.element * inner
        mixture = mixture + norm * unfused.norm + activation * unfused.element * expert_inner
    output_size = before_size = element
    if some(plan.stores_fp8):
        stored = plan.stores_fp8
        output_size, before_size = np.where(stored, STORED_OUTPUT, element), np.where(stored, STORED, element)
        up = (1.0 + model.gated_mlp) * (element - before_size)
        attention = attention - mixers.attention * plan.tokens * widths.output * (element - output_size)
        dense, mixture = dense - up * inner, mixture - up * expert_inner
    return _Saved(attention, dense, mixture, inner, expert_inner, output_size, before_size)


def _after_recomputation(setting: Setting, mixers: _Mixers, widths: _Widths, saved: _Saved, stream: Array) -> _Saved:
    """Bytes that blocks save if some modules are recomputed."""
    model, plan = setting.model, setting.plan
    element = plan.element_size
    attention, dense, mixture, inner, expert_inner, output_size, before_size = saved
    if some(widths.scores):
        again = plan.again("core_attention") * (mixers.attention * _score_size(setting) * widths.scores)
        attention = attention - np.where(plan.recompute == Recompute.SELECTIVE, again, 0.0)
    if some(plan.more_modules):
        # outputs of recomputed norms, activations and latent expansions are not saved
        norm, activation = plan.again("norm"), plan.again("activation")
        again_mlp, again_moe = plan.again("mlp"), plan.again("moe")
        expansion = plan.again("latent") * (mixers.attention * plan.tokens * widths.expanded * element)
        latent = np.where(model.latent_attention > 0, expansion, 0.0)
        projected = plan.again("attention_output")  # its input comes again, and so does the input of what follows
        core = plan.again("core_attention") * projected * mixers.attention * widths.output * output_size
        attention = attention - norm * mixers.each * stream - latent - plan.tokens * core
        less = norm * stream + activation * inner * element
        dense = np.where(again_mlp > 0, (1.0 - projected) * stream, dense - less)
        mixture = np.where(again_moe > 0, stream, mixture - norm * stream - activation * expert_inner * element)
        # "products": half of the outputs of products are computed again, the other half is saved
        inputs, outputs = mixers.attention * widths.projected, mixers.attention * widths.output * output_size
        if setting.architecture.linear_attention:
            shard = setting.shard
            inputs = inputs + mixers.linear * (saved_elements(_linear_block(setting), shard) - shard.linear_values)
            outputs = outputs + mixers.linear * shard.linear_values * element
        output = mixers.each * stream + plan.tokens * outputs
        products = plan.again("products") > 0
        half = 0.5 * element * plan.tokens * (inputs + 2.0 * mixers.each * model.hidden_size)
        up = 0.5 * before_size * (1.0 + model.gated_mlp)
        attention = np.where(products, output + half, attention)
        dense = np.where(products, up * inner, dense)
        mixture = np.where(products & ~(again_moe > 0), up * expert_inner, mixture)
    return saved._replace(attention=attention, dense=dense, mixture=mixture)


def layer_activations(setting: Setting) -> LayerActivations:
    """Bytes that a dense layer and a mixture of experts save, with and without the recomputation of the plan. [B]

    1,000 tokens in 16 bits: 6 x 1,000 elements of each by attention, 2 x 1,000 + 2 x 4,000 by the MLP.

    >>> from ideal_machine import setting
    >>> layer_activations(setting()).dense.tolist()
    [32000000.0]
    """
    plan, mixers, widths = setting.plan, _mixers(setting), _widths(setting)
    saved = _saved_by_blocks(setting, mixers, widths)
    unfused = 1.0 + setting.constants["training_memory"]["activation_share"][:, 0]

    def layers(blocks: _Saved) -> tuple[Array, Array]:
        dense = blocks.dense
        if setting.architecture.uneven:
            dense = np.where(setting.model.num_dense_layers > 0.0, dense, 0.0)
        return unfused * (blocks.attention + dense), unfused * (blocks.attention + blocks.mixture)

    whole = layers(saved)
    if not some(plan.recompute > 0):
        return LayerActivations(*whole, *whole)
    stream = setting.stream_size / plan.stream_ranks
    full = plan.recompute == Recompute.FULL
    less = layers(_after_recomputation(setting, mixers, widths, saved, stream))
    dense, mixture = (np.where(full, mixers.layers * stream, size) for size in less)
    return LayerActivations(dense, mixture, *whole)


LAST_PRODUCT = "mlp down"
_PRODUCTS = {"expansion": "latent", "attention output": "attention_output"}
_VECTORS = {"norm": "norm", "activation": "activation"}  # modules that recompute operators by the ending of their names


def selected_share(plan: TrainingPlan, part: Part, last_product: Array) -> Array | None:
    """Share of the operators of a forward part that selective recomputation repeats, (rows, operators); None: none.

    ``last_product``: share for the last product of a dense block, (rows, 1). No gradient needs its output: a framework
    that knows the needs of the backward pass skips it (JAX, saved values with jax.checkpoint), others repeat the whole
    block.
    """
    if part.place in CORES:
        return np.asarray(plan.again("core_attention")[:, None] * np.ones_like(part.time))
    if part.place not in LAYER_PLACES or not some(plan.more_modules):
        return None
    products = plan.again("products")
    block = {"mlp": "mlp", "moe": "moe"}.get(part.place)
    whole = plan.again(block) if block else 0.0 * products
    is_product = part.family == "gemm"
    everything = np.maximum(whole, 0.5 * products if is_product else products)
    share = everything[:, None] * np.ones_like(part.time)
    for ending, module in (_PRODUCTS if is_product else _VECTORS).items():
        index = [position for position, name in enumerate(part.names) if name.endswith(ending)]
        share[:, index] = np.maximum(share[:, index], plan.again(module)[:, None])
    if part.place == "mlp" and part.names[-1] == LAST_PRODUCT:
        share[:, -1:] = np.where(whole[:, None] > 0.0, last_product, 1.0) * share[:, -1:]
    return share
