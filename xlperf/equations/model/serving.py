"""Operators of a served decoder: one prefill pass, then one decode step.

Columns are the same operators for both phases, prefill first: the operators of a layer, then those that run once per
pass. An operator that only some layers have is called less than once per layer. Serving engines fuse more than training
stacks: the residual addition into the norm, the write of the cache into the rotation of the keys. Latent attention
decodes absorbed: queries are projected into the compressed space and values out of it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, ceil_div, divide, side_by_side, some
from xlperf.equations.hardware.roofline import PLANNED
from xlperf.equations.model.blocks import (
    EXPERTS,
    FEED_FORWARD,
    MLP,
    SHARED_EXPERT,
    Block,
    Gemms,
    Operator,
    Shard,
    Tokens,
    products,
)
from xlperf.equations.model.experts import Popularity, activated_experts, busiest_rank_load, preference_variance
from xlperf.equations.model.layers import layer_blocks
from xlperf.equations.model.linear_kinds import KINDS
from xlperf.equations.model.model import Architecture, Model, linear_share
from xlperf.equations.model.operators import concatenated
from xlperf.equations.model.sparse_attention import stream_passes

PREFILL, DECODING = 0, 1
BOTH_PHASES = (PREFILL, DECODING)
ONCE_GEMMS = 1
ONCE_VECTORS = 2

_LINEAR_VECTORS = ("short convolution", "gated norm")
_LAYER_VECTORS = ("norms and residual", "rotary embedding and cache", "activation")
_EXPERT_VECTORS = ("activation of experts", "moves of tokens")
_ONCE_VECTORS = ("embedding and last norm", "sampling")
COPIED_VECTORS = ("norms and residual", "embedding and last norm")
"""Kernels over whole hidden states: every rank of a tensor-parallel group computes all of them."""
FEED_FORWARD_OPERATORS = frozenset(
    (*(name for block in FEED_FORWARD for name in block.names), "activation", *_EXPERT_VECTORS)
)
"""Operators that an expert pool computes; the attention pool has all others."""
SAMPLING_PASSES = 2.0
_CONVOLUTION_PASSES = 4.0  # a prompt is transposed before its convolution: read and written twice

_ALL, _NONE = np.full(1, 1.0), np.zeros(1)
_NO_PART = np.full(1, "", dtype=object)


class ServingShape(NamedTuple):
    """Per-rank workload of a prefill pass and a decode step, and how the model is split; fields (rows,)."""

    prefill_tokens: Array  # tokens of an attention replica in a prefill pass [-]
    decode_tokens: Array  # the same in a decode step [-]
    prefill_routed: Array  # tokens of all replicas that share the experts in a prefill pass [-]
    decode_routed: Array  # the same in a decode step [-]
    prefill_sampled: Array  # tokens with logits in a prefill pass [-]
    attention_parallel: Array  # ranks that share the heads, the dense feed-forward layer and the vocabulary [-]
    expert_parallel: Array  # ranks that share the experts [-]
    expert_tensor_parallel: Array  # ranks that share each expert [-]
    # Keys that the prompt chunks of a prefill pass attend to (cached, of earlier chunks and their own), over all ranks
    # that share the prompts: latent attention expands them all. [-]
    prefill_context: Array
    favoured_share: Array = _ALL  # as in Popularity [-]
    hot_share: Array = _NONE  # as in Popularity [-]
    absorbed_share: Array = _NONE  # share of the layers whose latent attention is absorbed in the prefill: sparse ones
    redundant_experts: Array = _NONE  # additional copies of experts [-]

    @property
    def popularity(self) -> Popularity:
        """How unevenly routers visit experts."""
        return Popularity(self.favoured_share, self.hot_share)

    def of(self, phase: int) -> tuple[Array, Array, Array]:
        """Tokens of a replica, tokens of all replicas, and tokens with logits in a phase. [-]"""
        if phase:
            return self.decode_tokens, self.decode_routed, self.decode_tokens
        return self.prefill_tokens, self.prefill_routed, self.prefill_sampled


class ServingGemms(NamedTuple):
    """GEMMs of the prefill and of a decode step."""

    gemms: Gemms  # prefill, then decoding, (rows, operators) [-]
    calls: Array  # calls per layer, or per pass for the last of each phase, (rows, operators) [-]
    narrow: np.ndarray  # whether weights and inputs are stored in the precision of the plan, (operators,)
    attention: np.ndarray  # whether a product belongs to an attention layer, (operators,)
    grouped: np.ndarray  # whether it is one of all experts of a rank together, (operators,)
    part: np.ndarray = _NO_PART  # its part of the checkpoint as in :func:`part_of`, (operators,)


class ServingVectors(NamedTuple):
    """Memory-bound kernels, (rows, operators): prefill, then decode."""

    names: tuple[str, ...]
    traffic: Array  # of one call [B]
    calls: Array  # per layer for the operators of a layer, per pass for those that run once [-]


def _expert_load(model: Model, tokens: Array, shape: ServingShape) -> tuple[Array, Array]:
    """Tokens of an expert, and activated experts, on the busiest rank of a pass. [-]"""
    ranks, slots = shape.expert_parallel, model.num_experts + shape.redundant_experts
    held = ceil_div(slots, ranks)
    share = held * ranks / slots  # of the fullest rank over the mean, if experts do not divide
    hit = activated_experts(slots, model.top_k, tokens, shape.popularity) / ranks * share
    hit = busiest_rank_load(np.minimum(hit, held), ranks, held)
    copies = tokens * model.top_k / ranks * share
    # Redundant experts are placed to balance the load that lasts.
    lasting = preference_variance(model.num_experts, model.top_k, held, shape.favoured_share)
    lasting = np.where(shape.redundant_experts > 0.0, 0.0, lasting)
    copies = np.minimum(busiest_rank_load(copies, ranks, lasting=lasting), tokens * np.minimum(model.top_k, held))
    return copies / hit, hit


class LayerShares(NamedTuple):
    """Shares of the layers that have a block, (rows,). [-]"""

    attention: Array  # attention of any kind
    linear: Array  # linear attention or a state space
    dense: Array  # a dense feed-forward block
    experts: Array  # a mixture of experts

    def of(self, place: str) -> Array:
        """Share of the layers with the blocks of a place."""
        return self[("attention", "linear", "mlp", "moe").index(place)]


def layer_shares(model: Model, architecture: Architecture) -> LayerShares:
    """Shares of the layers that have attention, linear attention, a dense feed-forward block or experts."""
    one, none = np.ones_like(model.num_layers), np.zeros_like(model.num_layers)
    experts = model.num_moe_layers / model.num_layers if architecture.experts else none
    if not architecture.counted:
        return LayerShares(one, none, one - experts, experts)
    attention, dense = (
        divide(count, model.num_layers) for count in (model.num_attention_layers, model.num_dense_layers)
    )
    return LayerShares(attention, linear_share(model), dense, experts)


def part_of(block: Block, operator: Operator, architecture: Architecture) -> str:
    """Part of a checkpoint whose precision a product has, "" for that of the plan and for products in 16 bits.

    >>> from xlperf.equations.model.blocks import HEAD, MLP
    >>> part_of(HEAD, HEAD.operators[0], Architecture(False, False, False))
    'head'
    >>> [part_of(MLP, MLP.operators[0], Architecture(False, experts, False)) for experts in (False, True)]
    ['', 'mlp']
    """
    if block.place == "head":
        return "head"
    if block.served(operator) != PLANNED:
        return ""
    if block.place in ("attention", "linear"):
        return "attention"
    if block is SHARED_EXPERT:
        return "shared"
    return "mlp" if block is MLP and architecture.experts else ""


@lru_cache
def _flags(architecture: Architecture, num_phases: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Products in the precision of the plan, of attention layers, grouped ones, and their parts, (operators,) each."""
    pairs = [(block, operator) for block in layer_blocks(architecture) for operator in block.operators] * num_phases
    narrow = np.array([block.served(operator) == PLANNED for block, operator in pairs])
    attention = np.array([block.place in ("attention", "linear") for block, _ in pairs])
    part = np.array([part_of(block, operator, architecture) for block, operator in pairs], dtype=object)
    return narrow, attention, np.array([block is EXPERTS for block, _ in pairs]), part


def serving_gemms(
    model: Model, shape: ServingShape, architecture: Architecture, phases: tuple[int, ...] = BOTH_PHASES
) -> ServingGemms:
    """Products with weights of a layer, then the output projection, on the busiest rank, phase after phase.

    Columns of Llama 3.1 8B in a decode step: (32 + 2 x 8) x 128, 4096, 2 x 14336, 4096 and the vocabulary.

    >>> from ideal_machine import LLAMA
    >>> shape = ServingShape(*[np.ones(1)] * 9)
    >>> serving_gemms(LLAMA, shape, Architecture(False, False, False), (DECODING,)).gemms.n.tolist()
    [[6144.0, 4096.0, 28672.0, 4096.0, 128256.0]]
    """
    shard = Shard(model, shape.attention_parallel, shape.expert_tensor_parallel)
    shares, one = layer_shares(model, architecture), np.ones_like(model.num_layers)
    gemms, calls = [], []
    for phase in phases:
        tokens, routed, sampled = shape.of(phase)
        context, absorbed = (tokens, one) if phase else (shape.prefill_context, one * shape.absorbed_share)
        experts = _expert_load(model, routed, shape) if architecture.experts else ()
        seen = Tokens(tokens, tokens, sampled, context, *experts)
        for block in layer_blocks(architecture):
            gemms.append(products(block, shard, seen))
            share = one if block.place == "head" else shares.of(block.place)
            for operator in block.operators:
                often = share
                if operator.absorbed is not None:
                    often = often * (absorbed if operator.absorbed else one - absorbed)
                for part in (operator.exists, operator.layers):
                    often = often if part is None else often * part(model)
                calls.append(often)
    return ServingGemms(concatenated(*gemms), side_by_side(*calls), *_flags(architecture, len(phases)))


def cache_elements(model: Model, attention_parallel: Array, latent: bool) -> Array:
    """KV-cache elements per token, layer and rank, (rows,). [-]

    Ranks share the key and value heads; a ``latent`` vector (compressed vector and rotated part of the key of MLA,
    DeepSeek-V2, arXiv:2405.04434, table 1; shared vector of DeepSeek-V4) is the same on every rank.
    """
    if latent:
        elements = model.kv_lora_rank + model.qk_rope_head_size + 0.0 * attention_parallel
        if not some(model.shared_key_value):
            return np.asarray(elements)
        return np.where(model.shared_key_value > 0.0, model.head_size + 0.0 * elements, elements)
    return np.asarray(2.0 * ceil_div(model.num_query_groups, attention_parallel) * model.head_size)


def _rotation_traffic(model: Model, ranks: Array, element_size: Array) -> Array:
    """Traffic per token of the rotation of queries and keys and the write of the cache. [B]"""
    groups = np.ceil(model.num_query_groups / ranks)
    rotated = (np.ceil(model.num_attention_heads / ranks) + groups) * model.head_size * (1.0 + model.query_key_norm)
    return np.asarray(2.0 * (rotated + groups * model.head_size) * element_size)


def cache_ratio(model: Model, attention_parallel: Array, architecture: Architecture) -> tuple[Array | float, ...]:
    """Entries of layers that attend to everything and of layers with a window, in those of the attention block. [-]

    Layers that use keys and values of an earlier layer cache none.
    """
    if not architecture.shapes:
        return 1.0, 1.0
    far, near = (cache_elements(each, attention_parallel, False) for each in (model, model.local))
    return model.kv_share, model.local_kv_share * divide(near, far)


def serving_vectors(
    model: Model,
    shape: ServingShape,
    architecture: Architecture,
    element_size: Array,
    logit_size: Array,
    phases: tuple[int, ...] = BOTH_PHASES,
) -> ServingVectors:
    """Kernels of a layer, then of a pass, that are not matrix products, on the busiest rank, phase after phase.

    ``element_size``: bytes of an activation; ``logit_size``: bytes of a logit when tokens are sampled, (rows,). [B]
    """
    ranks = shape.attention_parallel
    heads = np.ceil(model.num_attention_heads / ranks)
    stream = model.hidden_size * element_size
    if architecture.latent_attention:
        compressed = 2.0 * (model.q_lora_rank + model.kv_lora_rank)
        cached = (2.0 * (heads + 1.0) * model.qk_rope_head_size + compressed) * element_size
    else:
        cached = _rotation_traffic(model, ranks, element_size)
    if architecture.shapes:
        near = divide(model.num_local_layers, model.num_attention_layers)
        cached = near * _rotation_traffic(model.local, ranks, element_size) + (1.0 - near) * cached
    gated = (2.0 + model.gated_mlp) * model.ffn_hidden_size / ranks * element_size
    logits = SAMPLING_PASSES * model.vocab_size * logit_size
    mixed_streams = stream_passes(model) if some(model.residual_streams > 1.0) else 0.0 * stream
    columns, calls = [], []
    one, shares = np.ones_like(stream), layer_shares(model, architecture)
    norms = one * model.num_blocks if architecture.counted else 2.0 * one
    if architecture.linear_attention:
        shard = Shard(model, ranks)
        channels = KINDS[architecture.linear_kind].channels(shard) * element_size
        normed = 3.0 * shard.linear_values * element_size
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
