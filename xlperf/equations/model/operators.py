"""Backward products, products of attention without weights, and memory-bound kernels of a trained layer.

Shapes are (rows, operators): one row per plan, one column per operator. Tokens are those of one pass on one rank. Of
each kernel's tensors a table gives the passes forward and backward; biases have gradients alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, beside, side_by_side
from xlperf.equations.model.blocks import Gemms, Shard
from xlperf.equations.model.model import Model


class Vectors(NamedTuple):
    """Memory-bound kernels (rows, operators)."""

    names: tuple[str, ...]
    traffic: Array  # of one call [B]


class Between(NamedTuple):
    """How a plan stores the tensors between the products of a layer, (rows,)."""

    stream: Array  # elements of the residual stream on a rank [-]
    element_size: Array  # bytes of an activation [B]
    mask_size: Numeric  # bytes of an element of a dropout mask [B]


def backward_gemms(forward: Gemms) -> Gemms:
    """Products of the backward pass: input gradients (m, k, n), then weight gradients (k, n, m)."""
    return Gemms(
        _gradient_names(forward.names),
        beside(forward.m, forward.k),
        beside(forward.k, forward.n),
        beside(forward.n, forward.m),
        beside(forward.batch, forward.batch),
    )


@lru_cache(maxsize=64)
def _gradient_names(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{name} {side}" for side in ("input gradient", "weight gradient") for name in names)


def concatenated(*groups: Gemms) -> Gemms:
    """Groups of products joined along the axis of operators."""
    names = tuple(name for group in groups for name in group.names)
    return Gemms(names, *(beside(*values) for values in zip(*(group[1:] for group in groups), strict=True)))


def attention_gemms(shard: Shard, batch_size: Array, sequence_length: Array) -> Gemms:
    """Score and value products of unfused attention in the forward pass."""
    model, length = shard.model, sequence_length
    heads = batch_size * shard.heads
    return Gemms(
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
    shard: Shard, tokens: Array, score_elements: Array, between: Between, latent: bool, backward: bool
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
    ``copied_elements``: elements of the copies of tokens that are sent to experts; 0 in a dense block.

    A token of Llama 3.1 8B: the norm moves 2 x 4096 elements of 2 bytes, the residual 3 x 4096, SwiGLU 3 x 14336.

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
    """Kernels of expert biases, weighted by the router's probability. [B]

    No grouped product fuses them: separate kernels multiply bias and probability in FP32, add, combine the experts and
    round; the backward pass also sums over the copies for the gradients of bias and probability.
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


def linear_vectors(shard: Shard, tokens: Array, between: Between, backward: bool) -> Vectors:
    """Norm, residual, short convolution and gated norm of a block of linear attention. [B]

    A gated delta net transposes the input and output of its convolution (heuristic, this work: passes per tensor).
    """
    model, values = shard.model, shard.linear_values
    convolved = (4.0 - 2.0 * model.state_space) * tokens * (2.0 * shard.linear_keys + values)
    passes = (3.0, 1.0, 2.0, 5.0) if backward else (2.0, 3.0, 1.0, 3.0)
    elements = (between.stream, between.stream, convolved, tokens * values)
    names = ("linear attention norm", "linear attention residual", "short convolution", "gated norm")
    traffic = side_by_side(*(times * each * between.element_size for times, each in zip(passes, elements, strict=True)))
    return Vectors(_gradients(names) if backward else names, traffic)
