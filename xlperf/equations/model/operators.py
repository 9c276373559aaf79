"""Backward products, products of attention without weights, and memory-bound kernels of a trained layer.

Shapes are (rows, operators): one row per plan, one column per operator. Tokens are those of one pass on one rank. Of
each kernel's tensors a table gives the passes forward and backward; biases have gradients alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, beside, ceil_div, divide, ones, side_by_side, some
from xlperf.equations.hardware.roofline import PLANNED
from xlperf.equations.model import blocks
from xlperf.equations.model.cores import stream_passes
from xlperf.equations.model.layers import attention_of, layer_blocks
from xlperf.equations.model.linear_attention import KINDS, linear_of
from xlperf.equations.model.model import (
    Architecture,
    Model,
    Popularity,
    activated_experts,
    busiest_rank_load,
    linear_share,
    preference_variance,
)


class Vectors(NamedTuple):
    """Memory-bound kernels (rows, operators)."""

    names: tuple[str, ...]
    traffic: Array  # of one call [B]


class Between(NamedTuple):
    """How a plan stores the tensors between the products of a layer, (rows,)."""

    stream: Array  # elements of the residual stream on a rank [-]
    element_size: Array  # bytes of an activation [B]
    mask_size: Numeric  # bytes of an element of a dropout mask [B]


def backward_gemms(forward: blocks.Gemms) -> blocks.Gemms:
    """Products of the backward pass: input gradients (m, k, n), then weight gradients (k, n, m)."""
    return blocks.Gemms(
        _gradient_names(forward.names),
        beside(forward.m, forward.k),
        beside(forward.k, forward.n),
        beside(forward.n, forward.m),
        beside(forward.batch, forward.batch),
    )


@lru_cache(maxsize=64)
def _gradient_names(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{name} {side}" for side in ("input gradient", "weight gradient") for name in names)


def concatenated(*groups: blocks.Gemms) -> blocks.Gemms:
    """Groups of products joined along the axis of operators."""
    names = tuple(name for group in groups for name in group.names)
    return blocks.Gemms(names, *(beside(*values) for values in zip(*(group[1:] for group in groups), strict=True)))


def attention_gemms(shard: blocks.Shard, batch_size: Array, sequence_length: Array) -> blocks.Gemms:
    """Score and value products of unfused attention in the forward pass."""
    model, length = shard.model, sequence_length
    heads = batch_size * shard.heads
    return blocks.Gemms(
        ("attention scores", "attention values"),
        side_by_side(length, length),
        side_by_side(length, model.v_head_size),
        side_by_side(model.qk_head_size, length),
        side_by_side(heads, heads),
    )


def _residual(model: Model, between: Between, backward: bool) -> Array:
    """Traffic of a residual addition with dropout. [B]"""
    passes = 1.0 + 2.0 * model.dropout if backward else 3.0
    return between.stream * (passes * between.element_size + model.dropout * array(between.mask_size))


def attention_vectors(
    shard: blocks.Shard, tokens: Array, score_elements: Array, between: Between, latent: bool, backward: bool
) -> Vectors:
    """Norm, residual, rotary embedding, softmax and its dropout of an attention block; backward also biases. [B]
    ``score_elements``: attention scores written to memory; 0 with flash attention. ``latent``: heads of MLA are
    assembled from compressed parts.
    """
    model, element, stream = shard.model, between.element_size, between.stream
    if latent:
        rotated = np.asarray(tokens * (shard.heads + 1.0) * model.qk_rope_head_size)
        assembled = tokens * shard.heads * (2.0 * model.qk_head_size + model.v_head_size)
    else:
        rotated, assembled = np.asarray(tokens * (shard.heads + shard.groups) * model.head_size), 0.0 * tokens
    compressed = (model.q_lora_rank + model.kv_lora_rank) * tokens
    # Passes over the elements of each kernel: a backward kernel also reads the gradient.
    norms, normed, scores = (3.0, 1.5, 3.0) if backward else (2.0, 1.0, 2.0)
    columns = [
        norms * (stream + compressed) * element,
        _residual(model, between, backward),
        2.0 * ((model.rotary + normed * model.query_key_norm) * rotated + assembled) * element,
        scores * score_elements * element,
        score_elements * (2.0 * model.dropout * element + model.dropout * array(between.mask_size)),
    ]
    names = ("attention norm", "attention residual", "rotary embedding", "softmax", "attention dropout")
    if not backward:
        return Vectors(names, side_by_side(*columns))
    projected = tokens * (shard.heads + 2.0 * shard.groups) * model.head_size
    columns.append((model.bias_qkv * projected + model.bias_all * stream) * element)
    return Vectors((*_gradients(names), "attention bias gradients"), side_by_side(*columns))


def _gradients(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{name} gradient" for name in names)


def mlp_vectors(
    model: Model, inner_elements: Array, copied_elements: Array, between: Between, backward: bool
) -> Vectors:
    """Norm, residual, activation function and token permutation of a feed-forward block; backward also biases. [B]

    ``inner_elements``: outputs of the activation function, tokens x width, over all experts of the rank.
    ``copied_elements``: elements of the copies of tokens that are sent to experts; 0 in a dense block. A token of Llama
    3.1 8B: the norm moves 2 x 4096 elements of 2 bytes, the residual 3 x 4096, SwiGLU 3 x 14336.

    >>> between, inner = Between(*np.array([[4096.0], [2.0], [1.0]])), np.array([14336.0])
    >>> mlp_vectors(Model.of(gated_mlp=1), inner, np.zeros(1), between, backward=False).traffic.tolist()
    [[16384.0, 24576.0, 86016.0, 0.0]]
    """
    element, stream = between.element_size, between.stream
    norms, activations, gates = (3.0, 3.0, 2.0) if backward else (2.0, 2.0, 1.0)
    columns = [
        norms * stream * element,
        _residual(model, between, backward),
        (activations + gates * model.gated_mlp) * inner_elements * element,
        4.0 * copied_elements * element,
    ]
    names = ("mlp norm", "mlp residual", "activation", "moves of tokens")
    if not backward:
        return Vectors(names, side_by_side(*columns))
    columns.append(model.bias_all * (inner_elements + stream) * element)
    return Vectors((*_gradients(names), "mlp bias gradients"), side_by_side(*columns))


def expert_bias_vectors(
    model: Model, copies: Array, ffn_size: Array, element_size: Array, word_size: Numeric, backward: bool
) -> Vectors:
    """Kernels of expert biases, weighted by the router's probability. [B] No grouped product fuses them: separate
    kernels multiply bias and probability in FP32, add, combine the experts and round; the backward pass also sums over
    the copies for the gradients of bias and probability.
    """
    elements = copies * ((1.0 + model.gated_mlp) * ffn_size + model.hidden_size)
    words = 8.0 if backward else 6.0
    traffic = elements * (2.0 * element_size + words * array(word_size))
    return Vectors(("expert bias gradients" if backward else "expert biases",), traffic[:, None])


def mtp_vectors(model: Model, between: Between, backward: bool) -> Vectors:
    """Norms of hidden state, embedding and output of an MTP module, and the concatenation of the first two. [B]"""
    stream = between.stream * between.element_size
    if backward:
        return Vectors(("mtp norm gradients", "mtp concatenation gradient"), side_by_side(9.0 * stream, 4.0 * stream))
    return Vectors(("mtp norms", "mtp concatenation"), side_by_side(6.0 * stream, 4.0 * stream))


def linear_vectors(shard: blocks.Shard, tokens: Array, between: Between, backward: bool) -> Vectors:
    """Norm, residual, short convolution and gated norm of a block of linear attention. [B] A gated delta net transposes
    the input and output of its convolution (heuristic, this work: passes per tensor).
    """
    model, values = shard.model, shard.linear_values
    turned = 4.0 - 2.0 * np.where(model.linear_kind > 0.0, 1.0, model.state_space)
    convolved = turned * tokens * linear_of(model, lambda kind: kind.channels(shard))
    passes = (3.0, 1.0, 2.0, 5.0) if backward else (2.0, 3.0, 1.0, 3.0)
    elements = (between.stream, between.stream, convolved, tokens * values)
    names = ("linear attention norm", "linear attention residual", "short convolution", "gated norm")
    traffic = side_by_side(*(times * each * between.element_size for times, each in zip(passes, elements, strict=True)))
    return Vectors(_gradients(names) if backward else names, traffic)


@lru_cache(maxsize=2)  # several results of a plan count the parameters of its model
def whole_model(model: Model) -> blocks.Shard:
    """A model on one rank."""
    return blocks.Shard(model, ones(model.num_layers))


def attention_matrix_parameters(shard: blocks.Shard) -> Array:
    """GEMM weights of the attention block of a layer, plain or latent, (rows,). [-]"""
    return attention_of(shard.model, lambda block: blocks.weights(block, shard))


def layer_vector_parameters(shard: blocks.Shard, query_key_norm: Array | float) -> Array:
    """Scales and biases of a layer on one rank, excluding norms of compressed queries, keys and values, (rows,). [-]"""
    model = shard.model
    norms = 2.0 * (1.0 + model.layer_norm) * model.hidden_size + 2.0 * query_key_norm * model.head_size
    qkv = model.bias_qkv * model.head_size * (shard.heads + 2.0 * shard.groups)
    inner = (1.0 + model.gated_mlp) * (model.ffn_hidden_size / shard.ranks)
    return np.asarray(norms + qkv + model.bias_all * (inner + 2.0 * model.hidden_size) + mixing_parameters(model))


def mixing_parameters(model: Model) -> Array:
    """Weights of the hyper-connections of a layer, (rows,): of its n streams each of two blocks reads a sum, writes n
    shares and mixes them by n x n shares (DeepSeek-V4). [-]
    """
    streams = model.residual_streams
    return np.asarray(np.where(streams > 1.0, 2.0 * (2.0 + streams) * streams * streams * model.hidden_size, 0.0))


def linear_vector_parameters(shard: blocks.Shard) -> Array:
    """Weights of a linear-attention layer outside products, (rows,): convolution, decays, gated norm. [-]"""
    return linear_of(shard.model, lambda kind: kind.vectors(shard))


def linear_matrix_parameters(shard: blocks.Shard) -> Array:
    """GEMM weights of a linear-attention layer, (rows,). [-]"""
    return linear_of(shard.model, lambda kind: blocks.weights(kind.block, shard))


def layer_small_parameters(model: Model) -> Array:
    """Scales and biases of one layer with attention and a dense feed-forward layer, (rows,). [-]"""
    plain = layer_vector_parameters(whole_model(model), model.query_key_norm)
    return np.asarray(plain + model.q_lora_rank + model.kv_lora_rank)


def embedding_parameters(model: Model, tied_embeddings: Array) -> Array:
    """Weights of the input embedding, learned positions and output projection, (rows,). [-]"""
    tables = (2.0 - tied_embeddings) * model.vocab_size + model.learned_positions
    result = np.asarray(tables * model.hidden_size)
    if some(model.per_layer_size):
        result = result + model.vocab_size * model.num_layers * model.per_layer_size
    return result


def index_parameters(model: Model) -> Array:
    """Weights of index and cache compression of all sparse layers, excluding attention itself, (rows,). [-]"""
    return np.asarray(model.num_attention_layers * blocks.weights(blocks.INDEX, whole_model(model)))


def _all_attention(model: Model) -> Array:
    """GEMM weights of the attention blocks of all layers, (rows,). [-]"""
    sparse = index_parameters(model) if some(model.num_selected_layers) else 0.0
    shard = whole_model(model)
    if not some((model.num_linear_layers > 0.0) | (model.uneven > 0.0)):
        return np.asarray(model.num_layers * attention_matrix_parameters(shard) + sparse)
    linear = model.num_linear_layers * linear_matrix_parameters(shard)
    return np.asarray(model.num_attention_layers * attention_matrix_parameters(shard) + linear + sparse)


def _all_small(model: Model) -> Array:
    """Scales and biases of all layers, (rows,). [-]"""
    result = model.num_layers * layer_small_parameters(model)
    if not some((model.num_linear_layers > 0.0) | (model.uneven > 0.0)):
        return np.asarray(result)
    others = model.num_layers - model.num_attention_layers
    result = result - others * 2.0 * model.query_key_norm * model.head_size
    result = result - (2.0 - model.num_blocks) * model.num_layers * (1.0 + model.layer_norm) * model.hidden_size
    return np.asarray(result + model.num_linear_layers * linear_vector_parameters(whole_model(model)))


def feed_forward_parameters(model: Model, experts_per_token: bool) -> tuple[Array, Array]:
    """Weights of a dense feed-forward layer and of a mixture with its router, or of one token's experts. [-]"""
    shard = whole_model(model)
    visited = model.top_k if experts_per_token else model.num_experts
    mixture = visited * blocks.weights(blocks.EXPERTS, shard)
    for block in (blocks.SHARED_EXPERT, blocks.ROUTER, blocks.LATENT_SPACE):
        mixture = mixture + blocks.weights(block, shard)
    return blocks.weights(blocks.MLP, shard), np.asarray(mixture)


def matrix_parameters(model: Model, experts_per_token: bool) -> Array:
    """GEMM weights of the whole model, LM head included, (rows,). [-]

    Llama 3.1 8B: 32 x (4096 x (32 + 8 + 8 + 32) x 128 + 3 x 4096 x 14336) + 4096 x 128256.

    >>> from ideal_machine import LLAMA
    >>> matrix_parameters(LLAMA, True).tolist()
    [7504658432.0]
    """
    dense, mixture = feed_forward_parameters(model, experts_per_token)
    return np.asarray(
        _all_attention(model)
        + model.num_dense_layers * dense
        + model.num_moe_layers * np.where(model.num_moe_layers > 0, mixture, 0.0)
        + model.hidden_size * model.vocab_size
    )


def layer_matrices(model: Model, experts_per_token: bool) -> Array:
    """GEMM weights of the last layer, (rows,): a mixture of experts if the model has any. [-]"""
    dense, mixture = feed_forward_parameters(model, experts_per_token)
    return np.asarray(
        attention_matrix_parameters(whole_model(model)) + np.where(model.num_moe_layers > 0, mixture, dense)
    )


def mtp_parameters(model: Model) -> Array:
    """Parameters of the MTP modules, (rows,), excluding the shared embedding and LM head. [-] A module has a layer, the
    projection of hidden state beside embedding, and norms of both and of its output (DeepSeek-V3, arXiv:2412.19437,
    section 2.2).
    """
    hidden = model.hidden_size
    layer = layer_matrices(model, False) + layer_small_parameters(model)
    return np.asarray(model.num_mtp_layers * (layer + 2.0 * hidden**2 + 3.0 * (1.0 + model.layer_norm) * hidden))


def parameter_count(model: Model, experts_per_token: bool = False) -> Array:
    """Total or active parameters of a model, (rows,): layers, embeddings, LM head, final norm. [-]

    Llama 3.1 8B has 8.03 billion.

    >>> from ideal_machine import LLAMA
    >>> parameter_count(LLAMA).tolist()
    [8030261248.0]
    """
    outside = embedding_parameters(model, model.tied_embeddings) + (1.0 + model.layer_norm) * model.hidden_size
    projection = model.hidden_size * model.vocab_size
    return np.asarray(matrix_parameters(model, experts_per_token) - projection + _all_small(model) + outside)


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
    (*(name for block in blocks.FEED_FORWARD for name in block.names), "activation", *_EXPERT_VECTORS)
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

    gemms: blocks.Gemms  # prefill, then decoding, (rows, operators) [-]
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


def part_of(block: blocks.Block, operator: blocks.Operator, architecture: Architecture) -> str:
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
    if block is blocks.SHARED_EXPERT:
        return "shared"
    return "mlp" if block is blocks.MLP and architecture.experts else ""


@lru_cache
def _flags(architecture: Architecture, num_phases: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Products in the precision of the plan, of attention layers, grouped ones, and their parts, (operators,) each."""
    pairs = [(block, operator) for block in layer_blocks(architecture) for operator in block.operators] * num_phases
    narrow = np.array([block.served(operator) == PLANNED for block, operator in pairs])
    attention = np.array([block.place in ("attention", "linear") for block, _ in pairs])
    part = np.array([part_of(block, operator, architecture) for block, operator in pairs], dtype=object)
    return narrow, attention, np.array([block is blocks.EXPERTS for block, _ in pairs]), part


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
    shard = blocks.Shard(model, shape.attention_parallel, shape.expert_tensor_parallel)
    shares, one = layer_shares(model, architecture), np.ones_like(model.num_layers)
    gemms, calls = [], []
    # Calls of a product: layers with its block, the form of latent attention it is of, and layers of its own kind.
    for phase in phases:
        tokens, routed, sampled = shape.of(phase)
        context, absorbed = (tokens, one) if phase else (shape.prefill_context, one * shape.absorbed_share)
        experts = _expert_load(model, routed, shape) if architecture.experts else ()
        seen = blocks.Tokens(tokens, tokens, sampled, context, *experts)
        for block in layer_blocks(architecture):
            gemms.append(blocks.products(block, shard, seen))
            share = one if block.place == "head" else shares.of(block.place)
            for operator in block.operators:
                number = share
                if operator.absorbed is not None:
                    number = number * (absorbed if operator.absorbed else one - absorbed)
                for part in (operator.exists, operator.layers):
                    number = number if part is None else number * part(model)
                calls.append(number)
    return ServingGemms(concatenated(*gemms), side_by_side(*calls), *_flags(architecture, len(phases)))


def cache_elements(model: Model, attention_parallel: Array, latent: bool) -> Array:
    """KV-cache elements per token, layer and rank, (rows,). [-] Ranks share the key and value heads; a ``latent``
    vector (compressed vector and rotated part of the key of MLA, DeepSeek-V2, arXiv:2405.04434, table 1; shared vector
    of DeepSeek-V4) is the same on every rank.
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
    """Entries of layers that attend to everything and of layers with a window, in those of the attention block. [-]"""
    if not architecture.shapes:
        return 1.0, 1.0
    whole, local = (cache_elements(layers, attention_parallel, False) for layers in (model, model.local))
    return model.kv_share, model.local_kv_share * divide(local, whole)


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
    # Bytes of a token: residual stream; rotation and cache of attention; gate of the feed-forward layer; logits.
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
    # Kernels of each phase, and their calls in a layer.
    columns, calls = [], []
    one, shares = np.ones_like(stream), layer_shares(model, architecture)
    norms = one * model.num_blocks if architecture.counted else 2.0 * one
    if architecture.linear_attention:
        shard = blocks.Shard(model, ranks)
        channels = KINDS[architecture.linear_kind].channels(shard) * element_size
        normed = 3.0 * shard.linear_values * element_size
        cached = cached + 3.0 * model.attention_gate * heads * model.head_size * element_size
    for phase in phases:
        tokens, routed, sampled = shape.of(phase)
        columns += [tokens * (4.0 + mixed_streams) * stream, tokens * cached, tokens * gated]
        calls += [norms, shares.attention, shares.dense]
        if architecture.experts:
            # Gates of routed and shared experts; tokens that are copied to their experts and added up again.
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
