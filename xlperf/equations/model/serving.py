"""Operators of a served decoder: one prefill pass, then one decode step.

Columns are the same operators for both phases, prefill first: those of a layer, then those that run once per
pass. What only some layers have is called less than once per layer. Serving engines fuse more than training stacks:
the residual addition into the norm, the write of the cache into the rotation of the keys. Latent attention decodes
absorbed: queries are carried into the compressed space and values out of it, so that the cache is read as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, ceil_div, divide, side_by_side, some
from xlperf.equations.model.experts import (
    Popularity,
    activated_experts,
    busiest_rank_load,
    expert_gemms,
    latent_gemms,
    preference_variance,
    router_gemm,
)
from xlperf.equations.model.linear_attention import PROJECTIONS, linear_gemms, linear_widths
from xlperf.equations.model.model import Architecture, Model, linear_share, local_share
from xlperf.equations.model.operators import Gemms, concatenated, logits_gemm, mlp_gemms
from xlperf.equations.model.sparse_attention import (
    SHARED,
    SPARSE,
    shared_vector_gemms,
    sparse_gemm_shares,
    sparse_gemms,
    sparse_shares,
    stream_passes,
)

PREFILL, DECODING = 0, 1
BOTH_PHASES = (PREFILL, DECODING)
ONCE_GEMMS = 1
ONCE_VECTORS = 2

_PLAIN = ("qkv", "attention output")
_LATENT = (
    "query compression",
    "query expansion",
    "key and value compression",
    "key and value expansion",
    "query absorption",
    "value expansion",
    "attention output",
)
_OF_ATTENTION = frozenset((*_PLAIN, *_LATENT, *PROJECTIONS, *SPARSE, *SHARED))
_LINEAR_VECTORS = ("short convolution", "gated norm")
_LAYER_VECTORS = ("norms and residual", "rotary embedding and cache", "activation")
_EXPERT_VECTORS = ("activation of experts", "moves of tokens")
_ONCE_VECTORS = ("embedding and last norm", "sampling")
COPIED_VECTORS = ("norms and residual", "embedding and last norm")
"""Kernels over whole hidden states: every rank of a tensor-parallel group computes all of them."""
SAMPLING_PASSES = 2.0
_WIDE = (
    "key and value expansion",
    "query absorption",
    "value expansion",
    "linear attention gates",
    "index weights",
    "router",
    "logits",
)
_CONVOLUTION_PASSES = 4.0  # a prompt is transposed before its convolution: read and written twice


_ALL, _NONE = np.full(1, 1.0), np.zeros(1)


class ServingShape(NamedTuple):
    """Per-rank workload of a prefill pass and a decode step, and how the model is split; fields (rows,).

    Attributes
    ----------
    prefill_tokens : Array
        Tokens of its replica of the attention layers in a pass of the prefill. [-]
    decode_tokens : Array
        The same in a decode step. [-]
    prefill_routed : Array
        Tokens of all replicas that share the experts in a pass of the prefill. [-]
    decode_routed : Array
        The same in a decode step. [-]
    prefill_sampled : Array
        Tokens whose logits are computed in a pass of the prefill. [-]
    attention_parallel : Array
        Ranks that share the heads, the dense feed-forward layer and the vocabulary. [-]
    expert_parallel : Array
        Ranks that share the experts. [-]
    expert_tensor_parallel : Array
        Ranks that share each expert. [-]
    prefill_context : Array
        Keys that the chunks of prompts in a pass of the prefill attend to, cached, of earlier chunks and their own:
        latent attention expands them all; those of all ranks that share the prompts. [-]
    favoured_share, hot_share : Array, default 1 and 0
        How unevenly routers visit experts, as :class:`Popularity` has it. [-]
    absorbed_share : Array, default 0
        Share of the layers whose latent attention is absorbed in the prefill too: sparse ones. [-]
    redundant_experts : Array, default 0
        Copies of experts that the ranks hold beside them. [-]
    """

    prefill_tokens: Array
    decode_tokens: Array
    prefill_routed: Array
    decode_routed: Array
    prefill_sampled: Array
    attention_parallel: Array
    expert_parallel: Array
    expert_tensor_parallel: Array
    prefill_context: Array
    favoured_share: Array = _ALL
    hot_share: Array = _NONE
    absorbed_share: Array = _NONE
    redundant_experts: Array = _NONE

    @property
    def popularity(self) -> Popularity:
        """How unevenly routers visit experts."""
        return Popularity(self.favoured_share, self.hot_share)

    def of(self, phase: int) -> tuple[Array, Array, Array]:
        """Tokens, tokens of all replicas, and tokens with logits: of the prefill (0) or of decoding (1)."""
        if phase:
            return self.decode_tokens, self.decode_routed, self.decode_tokens
        return self.prefill_tokens, self.prefill_routed, self.prefill_sampled


class ServingGemms(NamedTuple):
    """GEMMs of the prefill and of a decode step.

    Attributes
    ----------
    gemms : Gemms
        Prefill, then decoding, (rows, operators). [-]
    calls : Array
        Calls per layer, or per pass for the last of each phase. [-]
    narrow : np.ndarray
        Whether weights and inputs are stored in the precision of the plan, (operators,).
    attention : np.ndarray
        Whether a product belongs to an attention layer, (operators,).
    grouped : np.ndarray
        Whether it is one of all experts of a rank together, (operators,).
    """

    gemms: Gemms
    calls: Array
    narrow: np.ndarray
    attention: np.ndarray
    grouped: np.ndarray


class ServingVectors(NamedTuple):
    """Memory-bound kernels, (rows, operators): prefill, then decode.

    Attributes
    ----------
    names : tuple of str
        Operators of both phases.
    traffic : Array
        Bytes of one call. [B]
    calls : Array
        Calls per layer for the operators of a layer, per pass for the others. [-]
    """

    names: tuple[str, ...]
    traffic: Array
    calls: Array


def _attention_products(
    model: Model, tokens: Array, expanded: Array, ranks: Array, architecture: Architecture, absorbed: Array
) -> tuple[Gemms, Sequence[Array]]:
    """Projections of an attention block, and calls of each: latent attention is absorbed, or expands the compressed."""
    heads, hidden, one = ceil_div(model.num_attention_heads, ranks), model.hidden_size, np.ones_like(model.num_layers)
    if architecture.shared_key_value:
        return shared_vector_gemms(model, tokens, ranks), [one] * len(SHARED)
    if not architecture.latent_attention:
        groups = ceil_div(model.num_query_groups, ranks)
        queries = heads * (1.0 + model.attention_gate)
        n = side_by_side((queries + 2.0 * groups) * model.head_size, hidden)
        k = side_by_side(hidden, heads * model.head_size)
        return Gemms(_PLAIN, np.broadcast_to(tokens[:, None], n.shape), n, k, np.ones_like(n)), [one, one]
    rank, nope, values = model.kv_lora_rank, model.qk_head_size - model.qk_rope_head_size, model.v_head_size
    queries = np.where(model.q_lora_rank > 0.0, model.q_lora_rank, hidden)
    products = (  # rows, columns, depth, how many, calls
        (tokens, queries, hidden, one, np.where(model.q_lora_rank > 0.0, 1.0, 0.0)),
        (tokens, heads * model.qk_head_size, queries, one, one),
        (tokens, rank + model.qk_rope_head_size, hidden, one, one),
        (expanded, heads * (nope + values), rank, one, one - absorbed),
        (tokens, rank, nope, heads, absorbed),
        (tokens, values, rank, heads, absorbed),
        (tokens, hidden, heads * values, one, one),
    )
    *shape, calls = zip(*products, strict=True)
    return Gemms(_LATENT, *(side_by_side(*column) for column in shape)), calls


def _expert_gemms(model: Model, tokens: Array, shape: ServingShape, replica_tokens: Array) -> Gemms:
    """Grouped products of the busiest rank's experts, shared experts, router."""
    ranks, slots = shape.expert_parallel, model.num_experts + shape.redundant_experts
    held = ceil_div(slots, ranks)
    share = held * ranks / slots  # of the fullest rank over the mean, where the experts do not divide
    hit = activated_experts(slots, model.top_k, tokens, shape.popularity) / ranks * share
    hit = busiest_rank_load(np.minimum(hit, held), ranks, held)
    copies = tokens * model.top_k / ranks * share
    # Tokens bring their experts one by one: even loads even out. Copies of experts beside them are placed to balance.
    lasting = preference_variance(model.num_experts, model.top_k, held, shape.favoured_share)
    lasting = np.where(shape.redundant_experts > 0.0, 0.0, lasting)
    copies = np.minimum(busiest_rank_load(copies, ranks, lasting=lasting), tokens * np.minimum(model.top_k, held))
    ffn = model.expert_ffn_hidden_size / shape.expert_tensor_parallel
    shared = mlp_gemms(
        model, replica_tokens, np.maximum(model.shared_ffn_hidden_size / shape.attention_parallel, 1.0), "shared expert"
    )
    return concatenated(expert_gemms(model, copies / hit, hit, ffn), shared, router_gemm(model, replica_tokens))


class LayerShares(NamedTuple):
    """Shares of the layers that have a block, (rows,).

    Attributes
    ----------
    attention : Array
        Attention, of whichever kind. [-]
    linear : Array
        Linear attention or a state space. [-]
    dense : Array
        A dense feed-forward block. [-]
    experts : Array
        A mixture of experts. [-]
    """

    attention: Array
    linear: Array
    dense: Array
    experts: Array


def layer_shares(model: Model, architecture: Architecture) -> LayerShares:
    """Shares of the layers that have attention, linear attention, a dense feed-forward block or experts.

    Parameters
    ----------
    model : Model
        Layers by kind, (rows,). [-]
    architecture : Architecture
        Structure that the models share: a kind that none has is left out.

    Returns
    -------
    LayerShares
        (rows,). [-]

    Examples
    --------
    DeepSeek-V3: 3 of 61 layers are dense.

    >>> from types import SimpleNamespace
    >>> model = SimpleNamespace(num_layers=np.array([61.0]), num_moe_layers=np.array([58.0]))
    >>> shares = layer_shares(model, Architecture(True, True, False))
    >>> [float(share[0]) for share in shares]
    [1.0, 0.0, 0.049, 0.951]
    """
    one, none = np.ones_like(model.num_layers), np.zeros_like(model.num_layers)
    experts = model.num_moe_layers / model.num_layers if architecture.experts else none
    if not architecture.linear_attention:
        return LayerShares(one, none, one - experts, experts)
    attention, dense = (divide(own, model.num_layers) for own in (model.num_attention_layers, model.num_dense_layers))
    return LayerShares(attention, linear_share(model), dense, experts)


def _products_of_phase(
    model: Model, shape: ServingShape, architecture: Architecture, phase: int
) -> Iterator[tuple[Gemms, Sequence[Array]]]:
    """Products of the blocks of a layer, then of the output, and calls of each per layer or pass, (rows,)."""
    tokens, routed, sampled = shape.of(phase)
    ranks, shares, one = shape.attention_parallel, layer_shares(model, architecture), np.ones_like(model.num_layers)
    decoding = phase == DECODING
    expanded, absorbed = (tokens, one) if decoding else (shape.prefill_context, one * shape.absorbed_share)
    gemms, calls = _attention_products(model, tokens, expanded, ranks, architecture, absorbed)
    yield gemms, [shares.attention * each for each in calls]
    if architecture.sparse_attention:
        yield sparse_gemms(model, tokens, ranks), [shares.attention * each for each in sparse_gemm_shares(model)]
    if architecture.linear_attention:
        gates = shares.linear * (1.0 - model.state_space)
        yield linear_gemms(model, tokens, ranks), [shares.linear, gates, shares.linear]
    yield mlp_gemms(model, tokens, model.ffn_hidden_size / ranks, "mlp"), [shares.dense] * 2
    if architecture.experts:
        shared = np.where(model.shared_ffn_hidden_size > 0.0, shares.experts, 0.0)
        own = shares.experts
        yield _expert_gemms(model, routed, shape, tokens), [own, own, shared, shared, own]
    if architecture.latent_experts:
        yield latent_gemms(model, tokens), [shares.experts * (model.moe_latent_size > 0.0)] * 2
    yield logits_gemm(model, sampled, ranks), [one]


def serving_gemms(
    model: Model, shape: ServingShape, architecture: Architecture, phases: tuple[int, ...] = BOTH_PHASES
) -> ServingGemms:
    """Matrix products with weights of one layer and of the output, on the busiest rank.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    shape : ServingShape
        Tokens of both phases, and how the model is split. [-]
    architecture : Architecture
        Structure that the models share.
    phases : tuple of int, default both
        PREFILL, DECODING or both, in that order.

    Returns
    -------
    ServingGemms
        Those of a layer, then the output projection, for the prefill, then for decoding. [-]

    Examples
    --------
    Columns of Llama 3.1 8B in a decode step: (32 + 2 x 8) x 128, 4096, 2 x 14336, 4096 and the vocabulary.

    >>> llama = Model(*np.array([[32, 4096, 32, 8, 128, 14336, 128256, 1, 0, 0, 1, 0, 0, 0, 0, 0, 32.0]]).T)
    >>> found = serving_gemms(llama, ServingShape(*[np.ones(1)] * 9), Architecture(False, False, False), (DECODING,))
    >>> found.gemms.n.tolist()
    [[6144.0, 4096.0, 28672.0, 4096.0, 128256.0]]
    """
    products = [block for phase in phases for block in _products_of_phase(model, shape, architecture, phase)]
    gemms = concatenated(*(block for block, _ in products))
    calls = side_by_side(*(each for _, own in products for each in own))
    narrow = np.array([name not in _WIDE for name in gemms.names])
    attention = np.array([name in _OF_ATTENTION for name in gemms.names])
    grouped = np.array([name.startswith("experts") for name in gemms.names])
    return ServingGemms(gemms, calls, narrow, attention, grouped)


def cache_elements(model: Model, attention_parallel: Array, latent: bool) -> Array:
    """KV-cache elements per token, layer and rank.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    attention_parallel : Array
        Ranks that share the heads, (rows,): key and value heads are split, the latent vector is not. [-]
    latent : bool
        One vector per token for all heads, the same on every rank: of multi-head latent attention the compressed
        vector and the rotated part of the key.

    Returns
    -------
    Array
        Elements, (rows,). [-]

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V2: A strong, economical, and efficient mixture-of-experts language model", 2024,
       arXiv:2405.04434, table 1.

    Examples
    --------
    Llama 3.1 8B on four ranks: keys and values of two heads of 128.

    >>> llama = Model(*np.array([[32, 4096, 32, 8, 128, 14336, 128256, 1, 0, 0, 1, 0, 0, 0, 0, 0, 32.0]]).T)
    >>> cache_elements(llama, np.array([4.0]), latent=False).tolist()
    [512.0]
    """
    if latent:
        found = model.kv_lora_rank + model.qk_rope_head_size + 0.0 * attention_parallel
        if not some(model.shared_key_value):
            return np.asarray(found)
        return np.where(model.shared_key_value > 0.0, model.head_size + 0.0 * found, found)
    return np.asarray(2.0 * ceil_div(model.num_query_groups, attention_parallel) * model.head_size)


def serving_vectors(
    model: Model,
    shape: ServingShape,
    architecture: Architecture,
    element_size: Array,
    logit_size: Array,
    phases: tuple[int, ...] = BOTH_PHASES,
) -> ServingVectors:
    """Kernels of one layer and of one pass that are not matrix products, on the busiest rank.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    shape : ServingShape
        Tokens of both phases, and how the model is split. [-]
    architecture : Architecture
        Structure that the models share.
    element_size : Array
        Bytes of an activation, (rows,). [B]
    logit_size : Array
        Bytes of a logit when tokens are sampled, (rows,). [B]
    phases : tuple of int, default both
        PREFILL, DECODING or both, in that order.

    Returns
    -------
    ServingVectors
        Those of a layer, then those of a pass, for the prefill, then for decoding.

    Examples
    --------
    A token of Llama 3.1 8B in 2 bytes, logits in 4: 4 x 8192; 2 x (40 + 8) x 256; 3 x 28672; 4 x 8192; 8 x 128256.

    >>> llama = Model(*np.array([[32, 4096, 32, 8, 128, 14336, 128256, 1, 0, 0, 1, 0, 0, 0, 0, 0, 32.0]]).T)
    >>> shape, sizes = ServingShape(*[np.ones(1)] * 9), np.array([[2.0], [4.0]])
    >>> serving_vectors(llama, shape, Architecture(False, False, False), *sizes, (DECODING,)).traffic.tolist()
    [[32768.0, 24576.0, 86016.0, 32768.0, 1026048.0]]
    """
    ranks = shape.attention_parallel
    heads = np.ceil(model.num_attention_heads / ranks)
    groups = np.ceil(model.num_query_groups / ranks)
    stream = model.hidden_size * element_size
    if architecture.latent_attention:
        compressed = 2.0 * (model.q_lora_rank + model.kv_lora_rank)
        cached = (2.0 * (heads + 1.0) * model.qk_rope_head_size + compressed) * element_size
    else:
        rotated = (heads + groups) * model.head_size * (1.0 + model.query_key_norm)
        cached = 2.0 * (rotated + groups * model.head_size) * element_size
    gated = (2.0 + model.gated_mlp) * model.ffn_hidden_size / ranks * element_size
    logits = SAMPLING_PASSES * model.vocab_size * logit_size
    mixed_streams = stream_passes(model) if some(model.residual_streams > 1.0) else 0.0 * stream
    columns, calls = [], []
    one, shares = np.ones_like(stream), layer_shares(model, architecture)
    norms = one * model.num_blocks if architecture.linear_attention else 2.0 * one
    if architecture.linear_attention:
        keys, values, _ = linear_widths(model, ranks)
        channels, normed = (2.0 * keys + values) * element_size, 3.0 * values * element_size
        cached = cached + 3.0 * model.attention_gate * heads * model.head_size * element_size
    for phase in phases:
        tokens, routed, sampled = shape.of(phase)
        columns += [tokens * (4.0 + mixed_streams) * stream, tokens * cached, tokens * gated]
        calls += [norms, shares.attention, shares.dense]
        if architecture.experts:
            copies = routed * model.top_k / shape.expert_parallel
            width = model.expert_ffn_hidden_size / shape.expert_tensor_parallel
            shared = tokens * model.shared_ffn_hidden_size / ranks
            moved = 4.0 * copies * (model.expert_hidden_size * element_size)
            columns += [(2.0 + model.gated_mlp) * (copies * width + shared) * element_size, moved]
            calls += [shares.experts, shares.experts]
        if architecture.linear_attention:
            # A token of decoding shifts the window of its sequence: all but the oldest input stay.
            passes = 2.0 * model.linear_convolution if phase else _CONVOLUTION_PASSES
            columns += [tokens * passes * channels, tokens * normed]
            calls += [shares.linear, shares.linear]
        columns += [tokens * 4.0 * stream, sampled * logits]
        calls += [2.0 * one, one]
    structure = (*_LAYER_VECTORS, *(_EXPERT_VECTORS if architecture.experts else ()))
    names = (*structure, *(_LINEAR_VECTORS if architecture.linear_attention else ()), *_ONCE_VECTORS)
    return ServingVectors(names * len(phases), side_by_side(*columns), side_by_side(*calls))


def attention_calls(model: Model, architecture: Architecture, phases: tuple[int, ...] = BOTH_PHASES) -> Array:
    """Shares of the layers with full, local and linear attention.

    Parameters
    ----------
    model : Model
        Layers, (rows,). [-]
    architecture : Architecture
        Structure that the models share: a kind that none has is left out.
    phases : tuple of int, default both
        PREFILL, DECODING or both, in that order.

    Returns
    -------
    Array
        Adds up to 1 in each phase but for layers without any and for the index, (rows, phases x kinds). [-]

    Examples
    --------
    Qwen3-Next: 12 of 48 layers attend to everything, 36 have linear attention.

    >>> from types import SimpleNamespace
    >>> layers = {"num_layers": 48.0, "num_linear_layers": 36.0, "num_bare_layers": 0.0}
    >>> model = SimpleNamespace(**{name: np.array([count]) for name, count in layers.items()})
    >>> attention_calls(model, Architecture(False, False, False, linear_attention=True), (DECODING,)).tolist()
    [[0.25, 0.75]]
    """
    if not (architecture.local_attention or architecture.linear_attention or architecture.sparse_attention):
        return np.ones((len(model.num_layers), len(phases)))
    local = [local_share(model)] if architecture.local_attention else []
    linear = [linear_share(model)] if architecture.linear_attention else []
    sparse: tuple[Array, ...] = ()
    everywhere = 1.0 - sum([*local, *linear])
    if architecture.linear_attention:
        everywhere = everywhere - divide(model.num_bare_layers, model.num_layers)
    if architecture.sparse_attention:
        sparse = sparse_shares(model)
        everywhere = divide(model.num_global_layers, model.num_layers)
    return side_by_side(*[everywhere, *local, *sparse, *linear] * len(phases))
