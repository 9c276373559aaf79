"""Activations that a layer keeps for its backward pass, as recomputation and low precision leave them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ones, some
from xlperf.equations.model.linear_attention import linear_kept_widths
from xlperf.equations.plan.records import WORD, AdapterModules, ContextMethod, Recompute
from xlperf.equations.plan.training_plan import TrainingPlan
from xlperf.equations.training.kernels import CORES, LAYER_PLACES
from xlperf.equations.training.setting import MASK, STORED, STORED_OUTPUT, Part, Setting


def attention_activation_size(
    tokens: Numeric,
    hidden_size: Numeric,
    projected_size: Numeric,
    attention_size: Numeric,
    score_elements: Numeric,
    dropout: Numeric,
    tensor_parallel: Numeric,
    sequence_parallel: Numeric,
    element_size: Numeric,
    mask_size: Numeric,
) -> Array:
    r"""Activations that one attention block keeps for its backward pass.

    .. math::

        S = e n \left(\frac{2 h}{t_s} + \frac{w + o}{t}\right) + \delta \mu \frac{n h}{t_s}
        + (e (1 + \delta) + \delta \mu) A

    With w = 3 h, o = h, e = 2, mu = 1, dropout, standard attention and one rank: 11 s b h + 5 a s^2 b + 2 s b h.

    Parameters
    ----------
    tokens : numeric
        Tokens n of a micro-batch. [-]
    hidden_size : numeric
        Width h of the residual stream. [-]
    projected_size : numeric
        Width w of queries, keys and values together. [-]
    attention_size : numeric
        Width o of the output of the attention. [-]
    score_elements : numeric
        Attention scores A that the rank keeps; 0 with flash attention. [-]
    dropout : numeric
        Delta: 1 where dropout is applied and its masks are kept. [-]
    tensor_parallel : numeric
        Ranks t that share each matrix. [-]
    sequence_parallel : numeric
        1 where norms and residuals are split over them too: t_s is then t, else 1. [-]
    element_size : numeric
        Bytes e of an activation. [B]
    mask_size : numeric
        Bytes mu of an element of a dropout mask. [B]

    Returns
    -------
    size : numeric
        Bytes of one block and micro-batch. [B]

    References
    ----------
    .. [1] V. Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022,
       arXiv:2205.05198, section 4.1 and equations 1 to 4.

    Examples
    --------
    GPT-3, one sequence of 2,048 tokens: 13 x 24 MiB and 5 x 384 MiB.

    >>> float(attention_activation_size(2048, 12288, 36864, 12288, 96 * 2048**2, 1, 1, 0, 2, 1)) / 2**20
    2232.0
    """
    split = array(tensor_parallel)
    shared = 1.0 + (split - 1.0) * array(sequence_parallel)
    element, count, hidden = array(element_size), array(tokens), array(hidden_size)
    mask = array(dropout) * array(mask_size)
    inner = (array(projected_size) + array(attention_size)) / split
    kept = element * count * (2.0 * hidden / shared + inner) + mask * count * hidden / shared
    return np.asarray(kept + (element * (1.0 + array(dropout)) + mask) * array(score_elements))


def mlp_activation_size(
    tokens: Numeric,
    hidden_size: Numeric,
    ffn_hidden_size: Numeric,
    gated_mlp: Numeric,
    dropout: Numeric,
    tensor_parallel: Numeric,
    sequence_parallel: Numeric,
    element_size: Numeric,
    mask_size: Numeric,
) -> Array:
    r"""Activations that one dense feed-forward block keeps for its backward pass.

    .. math:: S = e n \left(\frac{2 h}{t_s} + \frac{(2 + \gamma) f}{t}\right) + \delta \mu \frac{n h}{t_s}

    With f = 4 h, e = 2, mu = 1, dropout, no gate and one rank: 19 s b h + 2 s b h.

    Parameters
    ----------
    tokens : numeric
        Tokens n of a micro-batch. [-]
    hidden_size : numeric
        Width h of the residual stream. [-]
    ffn_hidden_size : numeric
        Width f of the feed-forward layer. [-]
    gated_mlp : numeric
        Gamma: 1 with a gate matrix. [-]
    dropout : numeric
        Delta: 1 where dropout is applied and its mask is kept. [-]
    tensor_parallel : numeric
        Ranks t that share each matrix. [-]
    sequence_parallel : numeric
        1 where norms and residuals are split over them too: t_s is then t, else 1. [-]
    element_size : numeric
        Bytes e of an activation. [B]
    mask_size : numeric
        Bytes mu of an element of a dropout mask. [B]

    Returns
    -------
    size : numeric
        Bytes of one block and micro-batch. [B]

    References
    ----------
    .. [1] V. Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022,
       arXiv:2205.05198, section 4.1 and equations 1 to 4.

    Examples
    --------
    GPT-3, one sequence of 2,048 tokens: 21 x 24 MiB.

    >>> float(mlp_activation_size(2048, 12288, 49152, 0, 1, 1, 0, 2, 1)) / 2**20
    504.0
    """
    split = array(tensor_parallel)
    shared = 1.0 + (split - 1.0) * array(sequence_parallel)
    element, count, hidden = array(element_size), array(tokens), array(hidden_size)
    inner = (2.0 + array(gated_mlp)) * array(ffn_hidden_size) / split
    mask = array(dropout) * array(mask_size)
    return np.asarray(element * count * (2.0 * hidden / shared + inner) + mask * count * hidden / shared)


def expert_activation_size(
    received_tokens: Numeric,
    hidden_size: Numeric,
    ffn_hidden_size: Numeric,
    gated_mlp: Numeric,
    element_size: Numeric,
) -> Array:
    r"""Activations that the routed experts of one rank keep for the backward pass of a layer.

    .. math:: S = e n \left(h + (2 + \gamma) f\right)

    Router probabilities are applied inside the experts, so that what comes back to the sender need not be kept.

    Parameters
    ----------
    received_tokens : numeric
        Copies n of tokens that its experts see. [-]
    hidden_size : numeric
        Width h of the residual stream. [-]
    ffn_hidden_size : numeric
        Width f of an expert on the rank. [-]
    gated_mlp : numeric
        Gamma: 1 with a gate matrix. [-]
    element_size : numeric
        Bytes e of an activation. [B]

    Returns
    -------
    size : numeric
        Bytes of one layer and micro-batch. [B]

    References
    ----------
    .. [1] D. Liu et al., "MoE parallel folding", 2025, arXiv:2504.14960 (token dispatcher: permuted inputs are kept).

    Examples
    --------
    >>> float(expert_activation_size(1000, 4096, 1024, 1, 2))  # 2 x 1000 x (4096 + 3 x 1024)
    14336000.0
    """
    inner = array(hidden_size) + (2.0 + array(gated_mlp)) * array(ffn_hidden_size)
    return np.asarray(array(element_size) * array(received_tokens) * inner)


_BLOCKS = 2.0
"""Blocks of a layer, each with residual streams of its own to keep. [-]"""


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
    """Inputs of frozen GEMMs without adapters, which are not kept: no weight gradient uses them."""
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
    received = copies * (model.expert_hidden_size + activation * width) * element
    shared = norm * stream + activation * plan.tokens * model.shared_ffn_hidden_size / tensor * element
    shared = np.where(model.shared_ffn_hidden_size > 0, shared, 0.0)
    again = (1.0 - plan.again("products")) * (1.0 - plan.again("moe"))
    return _Inputs(0.0 * dense, dense, frozen * again * (received + shared))


class _Mixers(NamedTuple):
    """Mixers and layers per feed-forward block, (rows,): one attention and one layer unless the model is a hybrid.

    A hybrid is counted by its feed-forward blocks: mixers that outnumber them fall to each by their share. [-]
    """

    attention: Array
    linear: Array
    layers: Array

    @property
    def each(self) -> Array:
        """Mixers of either kind, each with a norm and a residual stream of its own. [-]"""
        return self.attention + self.linear


def _mixers(setting: Setting) -> _Mixers:
    """Mixers and layers for each feed-forward block."""
    model = setting.model
    one = ones(setting.plan.tokens)
    if not setting.architecture.linear_attention:
        return _Mixers(one, 0.0 * one, one)
    blocks, hybrid = model.num_dense_layers + model.num_moe_layers, model.num_linear_layers > 0.0
    numbers = model.num_attention_layers, model.num_linear_layers, model.num_layers
    return _Mixers(*(np.where(hybrid, number / blocks, rest) for number, rest in zip(numbers, (1, 0, 1), strict=True)))


def _narrow_inputs(setting: Setting, mixers: _Mixers) -> _Inputs | None:
    """Quantized GEMM inputs kept for the backward pass: in place of norm and activation outputs, beside attention's."""
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
    attention = products * (norm * saved * mixers.each * stream + beside * mixers.attention * output)
    inner = plan.tokens * model.ffn_hidden_size / tensor
    dense = products * (1.0 - plan.again("mlp")) * saved * (norm * stream + activation * inner)
    if not setting.architecture.experts:
        return _Inputs(attention, dense, dense)
    _, copies, _ = setting.routed
    width = model.expert_ffn_hidden_size / plan.expert_tensor_parallel
    received = copies * (model.expert_hidden_size + activation * width)
    shared = norm * stream + activation * plan.tokens * model.shared_ffn_hidden_size / tensor
    shared = np.where(model.shared_ffn_hidden_size > 0, shared, 0.0)
    return _Inputs(attention, dense, products * (1.0 - plan.again("moe")) * saved * (received + shared))


def _linear_activations(setting: Setting) -> Array:
    """Activations of one linear-attention or state-space block. [B]"""
    model, plan = setting.model, setting.plan
    inner, output = linear_kept_widths(model)
    return attention_activation_size(
        plan.tokens, model.hidden_size, inner, output, 0.0, model.dropout, plan.tensor_parallel,
        plan.sequence_parallel, plan.element_size, MASK,
    )  # fmt: skip


class _Widths(NamedTuple):
    """Widths of the vectors of attention that are kept, summed over heads, and its scores, (rows,). [-]"""

    output: Array
    expanded: Array
    projected: Array
    scores: Array


def _widths(setting: Setting) -> _Widths:
    model, plan = setting.model, setting.plan
    tensor = plan.tensor_parallel
    scores = (1.0 - plan.flash_attention) * setting.heads * plan.tokens * plan.sequence_length
    width = model.num_attention_heads * model.v_head_size
    compressed = tensor * (2.0 * model.q_lora_rank + 2.0 * model.kv_lora_rank + model.qk_rope_head_size)
    expanded = model.num_attention_heads * (2.0 * model.qk_head_size + model.v_head_size)
    plain = width + 2.0 * model.num_query_groups * model.head_size
    projected = np.where(model.latent_attention > 0, expanded + compressed, plain)
    if setting.architecture.shared_key_value:
        vector = tensor * (model.head_size + 2.0 * model.q_lora_rank)
        projected = np.where(
            model.shared_key_value > 0, width + vector + model.output_groups * model.output_lora_rank, projected
        )
    return _Widths(width, expanded, projected, scores)


class _Unfused(NamedTuple):
    """What kernels of PyTorch, one after the other, keep beyond fused ones, (rows,). [B]

    A root-mean-square norm: its input in FP32 in place of 16 bits, and what it multiplies with its weights. A gated
    activation function: its output before the product with the other half, each element between the products. Layer
    norms and activation functions without a gate are one kernel there too.
    """

    norm: Array
    element: Array


def _unfused(setting: Setting) -> _Unfused | None:
    """What norms and activation functions keep besides where no compiler fuses them; None where all are fused."""
    model, plan = setting.model, setting.plan
    unfused = np.where(np.isnan(plan.compiled), 0.0, 1.0 - plan.compiled)
    if not some(unfused > 0.0):
        return None
    ranks = np.where(plan.sequence_parallel > 0, plan.tensor_parallel, 1.0)
    vectors = np.where(model.layer_norm > 0, 0.0, unfused) * plan.tokens * model.hidden_size / ranks
    return _Unfused(vectors * np.maximum(WORD, plan.element_size), unfused * model.gated_mlp * plan.element_size)


def _gathered_inputs(setting: Setting) -> Array:
    """What a block keeps beyond its shard where the input that its ranks gathered stays, (rows,). [B]"""
    plan = setting.plan
    split = (plan.sequence_parallel > 0) & (plan.gathers_again < 1.0)
    return np.where(split, setting.stream_size * (1.0 - 1.0 / plan.tensor_parallel), 0.0)


class _Kept(NamedTuple):
    """What blocks keep: attention, a dense feed-forward layer and a mixture of experts, (rows,). [B]

    ``inner`` and ``expert_inner`` are elements between the products of the latter two [-]; the sizes are those of an
    element of the output of attention, and of what an activation function reads [B].
    """

    attention: Array
    dense: Array
    mixture: Array
    inner: Array
    expert_inner: Array
    output_size: Array
    before_size: Array


def _kept_attention(setting: Setting, mixers: _Mixers, widths: _Widths) -> Array:
    """Bytes that the attention block of a layer keeps, the mean over kinds of layers, (rows,). [B]"""
    model, plan = setting.model, setting.plan
    tensor, sequence, element = plan.tensor_parallel, plan.sequence_parallel, plan.element_size
    attention = attention_activation_size(
        plan.tokens, model.hidden_size, widths.projected, widths.output, widths.scores, model.dropout, tensor, sequence,
        element, MASK,
    )  # fmt: skip
    if some(model.residual_streams > 1.0):
        streams = (model.residual_streams - 1.0) * plan.tokens * model.hidden_size * element
        attention = attention + _BLOCKS * streams / np.where(sequence > 0, tensor, 1.0)
    exchanged = (plan.context_method == ContextMethod.ULYSSES) & (plan.context_parallel > 1)
    if some(exchanged):  # the output is kept on both sides of the exchange
        attention = attention + np.where(exchanged, plan.tokens * widths.output / tensor * element, 0.0)
    if setting.architecture.linear_attention:
        linear = np.where(mixers.linear > 0.0, mixers.linear * _linear_activations(setting), 0.0)
        attention = mixers.attention * attention + linear
    return attention


def _kept(setting: Setting, mixers: _Mixers, widths: _Widths) -> _Kept:
    """Bytes that blocks keep where nothing is recomputed."""
    model, plan = setting.model, setting.plan
    tensor, element = plan.tensor_parallel, plan.element_size
    attention = _kept_attention(setting, mixers, widths)
    common = (model.gated_mlp, model.dropout, tensor, plan.sequence_parallel, element, MASK)
    dense = mixture = mlp_activation_size(plan.tokens, model.hidden_size, model.ffn_hidden_size, *common)
    inner = expert_inner = plan.tokens * model.ffn_hidden_size / tensor
    if setting.architecture.experts:
        _, copies, _ = setting.routed
        shared = mlp_activation_size(plan.tokens, model.hidden_size, model.shared_ffn_hidden_size, *common)
        expert_ffn = model.expert_ffn_hidden_size / plan.expert_tensor_parallel
        mixture = shared + expert_activation_size(
            copies, model.expert_hidden_size, expert_ffn, model.gated_mlp, element
        )
        expert_inner = copies * expert_ffn + plan.tokens * model.shared_ffn_hidden_size / tensor
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
        attention = attention - mixers.attention * plan.tokens * widths.output / tensor * (element - output_size)
        dense, mixture = dense - up * inner, mixture - up * expert_inner
    return _Kept(attention, dense, mixture, inner, expert_inner, output_size, before_size)


def _kept_again(setting: Setting, mixers: _Mixers, widths: _Widths, kept: _Kept, stream: Array) -> _Kept:
    """The same where some modules are recomputed."""
    model, plan = setting.model, setting.plan
    tensor, element = plan.tensor_parallel, plan.element_size
    attention, dense, mixture, inner, expert_inner, output_size, before_size = kept
    if some(widths.scores):
        each = attention_activation_size(
            0.0, 0.0, 0.0, 0.0, widths.scores, model.dropout, tensor, plan.sequence_parallel, element, MASK
        )
        again = plan.again("core_attention") * (mixers.attention * each)
        attention = attention - np.where(plan.recompute == Recompute.SELECTIVE, again, 0.0)
    if some(plan.more_modules):
        norm, activation = plan.again("norm"), plan.again("activation")
        again_mlp, again_moe = plan.again("mlp"), plan.again("moe")
        expansion = plan.again("latent") * (mixers.attention * plan.tokens * widths.expanded / tensor * element)
        latent = np.where(model.latent_attention > 0, expansion, 0.0)
        projected = plan.again("attention_output")  # its input comes again, and so does the input of what follows
        core = plan.again("core_attention") * projected * mixers.attention * widths.output * output_size
        attention = attention - norm * mixers.each * stream - latent - plan.tokens * core / tensor
        less = norm * stream + activation * inner * element
        dense = np.where(again_mlp > 0, (1.0 - projected) * stream, dense - less)
        mixture = np.where(again_moe > 0, stream, mixture - norm * stream - activation * expert_inner * element)
        inputs, outputs = mixers.attention * widths.projected, mixers.attention * widths.output * output_size
        if setting.architecture.linear_attention:
            own = linear_kept_widths(model)
            inputs, outputs = inputs + mixers.linear * own[0], outputs + mixers.linear * own[1] * element
        output = mixers.each * stream + plan.tokens * outputs / tensor
        products = plan.again("products") > 0
        half = 0.5 * element * plan.tokens * (inputs / tensor + 2.0 * mixers.each * model.hidden_size)
        up = 0.5 * before_size * (1.0 + model.gated_mlp)
        attention = np.where(products, output + half, attention)
        dense = np.where(products, up * inner, dense)
        mixture = np.where(products & ~(again_moe > 0), up * expert_inner, mixture)
    return kept._replace(attention=attention, dense=dense, mixture=mixture)


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

    Examples
    --------
    1,000 tokens in 16 bits: 6 x 1,000 elements of each by attention, 2 x 1,000 + 2 x 4,000 by the MLP.

    >>> from ideal_machine import setting
    >>> layer_activations(setting()).dense.tolist()
    [32000000.0]
    """
    plan, mixers, widths = setting.plan, _mixers(setting), _widths(setting)
    kept = _kept(setting, mixers, widths)
    unfused = 1.0 + setting.constants["training_memory"]["activation_share"][:, 0]

    def layers(blocks: _Kept) -> tuple[Array, Array]:
        return unfused * (blocks.attention + blocks.dense), unfused * (blocks.attention + blocks.mixture)

    whole = layers(kept)
    if not some(plan.recompute > 0):
        return LayerActivations(*whole, *whole)
    ranks = np.where(plan.sequence_parallel > 0, plan.tensor_parallel, 1.0)
    stream = plan.tokens * setting.model.hidden_size * plan.element_size / ranks
    full = plan.recompute == Recompute.FULL
    less = layers(_kept_again(setting, mixers, widths, kept, stream))
    dense, mixture = (np.where(full, mixers.layers * stream, size) for size in less)
    return LayerActivations(dense, mixture, *whole)


LAST_PRODUCT = "mlp down"
_PRODUCTS = {"expansion": "latent", "attention output": "attention_output"}
_VECTORS = {"norm": "norm", "activation": "activation"}
"""Modules that recompute operators by the ending of their names."""


def selected_share(plan: TrainingPlan, part: Part, last_product: Array) -> Array | None:
    """Share of the operators of a forward part that selective recomputation runs again.

    No gradient needs the output of the last product of a dense block: a framework that knows what the backward pass
    needs leaves it out, others run the whole block again [1]_.

    Parameters
    ----------
    plan : TrainingPlan
        With the modules that it names, (rows,). [-]
    part : Part
        Operators of the forward pass. [-]
    last_product : Array
        Share of the last product of a recomputed dense block that is run again, (rows, 1). [-]

    Returns
    -------
    Array, optional
        Shares, (rows, operators), 0 for rows that do not recompute selectively; None where it is 0 for all. [-]

    References
    ----------
    .. [1] JAX documentation, "Control autodiff's saved values with jax.checkpoint".

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> plan = SimpleNamespace(again=lambda name: np.array([1.0 if name == "mlp" else 0.0]), more_modules=np.ones(1))
    >>> part = SimpleNamespace(place="mlp", family="gemm", names=("mlp up", "mlp down"), time=np.ones((1, 2)))
    >>> selected_share(plan, part, np.zeros((1, 1))).tolist()
    [[1.0, 0.0]]
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
