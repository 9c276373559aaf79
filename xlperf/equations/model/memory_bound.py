"""Memory-bound kernels of a transformer layer, forward and backward: norms, residuals, activations, moves of tokens."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ceil_div, side_by_side
from xlperf.equations.model.model import Model


class Vectors(NamedTuple):
    """Memory-bound kernels (rows, operators): traffic of one call. [B]"""

    names: tuple[str, ...]
    traffic: Array


def _rotated(model: Model, tokens: Array, tensor_parallel: Array, latent: bool) -> Array:
    heads = ceil_div(model.num_attention_heads, tensor_parallel)
    if latent:
        return np.asarray(tokens * (heads + 1.0) * model.qk_rope_head_size)
    return np.asarray(tokens * (heads + ceil_div(model.num_query_groups, tensor_parallel)) * model.head_size)


def attention_vectors(
    model: Model,
    tokens: Array,
    score_elements: Array,
    tensor_parallel: Array,
    sequence_parallel: Array,
    element_size: Array,
    mask_size: Numeric,
    latent: bool,
    backward: bool,
) -> Vectors:
    """Memory-bound kernels of one attention block: norm, residual, rotary embedding, softmax, dropout.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    tokens : Array
        Tokens of one pass, (rows,). [-]
    score_elements : Array
        Attention scores written to memory, (rows,): heads x queries x keys with standard attention, else 0. [-]
    tensor_parallel : Array
        Ranks that share each matrix, (rows,). [-]
    sequence_parallel : Array
        1 where the kernels between the matrices are split over those ranks too, (rows,). [-]
    element_size : Array
        Bytes of an activation, (rows,). [B]
    mask_size : Array
        Bytes of an element of a dropout mask, (rows,). [B]
    latent : bool
        Multi-head latent attention: heads are assembled from compressed parts. [-]
    backward : bool
        The gradients of these kernels instead. [-]

    Returns
    -------
    Vectors
        Norm, residual addition with dropout, rotary embedding, softmax, its dropout; backward also biases. [B]

    Examples
    --------
    A token of Llama 3.1 8B: the norm moves 2 x 4096 elements of 2 bytes, the residual 3 x 4096, rotation 2 x 40 x 128.

    >>> llama = Model(*np.array([[32, 4096, 32, 8, 128, 14336, 128256, 1, 0, 0, 1, 0, 0, 0, 0, 0, 32.0]]).T)
    >>> one, none = np.ones(1), np.zeros(1)
    >>> attention_vectors(llama, one, none, one, none, 2.0 * one, 1.0, latent=False, backward=False).traffic.tolist()
    [[16384.0, 24576.0, 20480.0, 0.0, 0.0]]
    """
    shared = 1.0 + (tensor_parallel - 1.0) * sequence_parallel
    stream = tokens * model.hidden_size / shared
    rotated = _rotated(model, tokens, tensor_parallel, latent)
    dropped, mask = model.dropout, model.dropout * array(mask_size)
    heads = ceil_div(model.num_attention_heads, tensor_parallel)
    compressed = (model.q_lora_rank + model.kv_lora_rank) * tokens
    assembled = tokens * heads * (2.0 * model.qk_head_size + model.v_head_size) if latent else 0.0 * tokens
    if not backward:
        columns = (
            (2.0 * stream + 2.0 * compressed) * element_size,
            stream * (3.0 * element_size + mask),
            2.0 * ((model.rotary + model.query_key_norm) * rotated + assembled) * element_size,
            2.0 * score_elements * element_size,
            score_elements * (2.0 * dropped * element_size + mask),
        )
        return Vectors(("attention norm", "attention residual", "rotary embedding", "softmax", "attention dropout"),
                       side_by_side(*columns))  # fmt: skip
    groups = ceil_div(model.num_query_groups, tensor_parallel)
    projected = tokens * (heads + 2.0 * groups) * model.head_size
    gradients = (
        (3.0 * stream + 3.0 * compressed) * element_size,
        stream * ((1.0 + 2.0 * dropped) * element_size + mask),
        2.0 * ((model.rotary + 1.5 * model.query_key_norm) * rotated + assembled) * element_size,
        3.0 * score_elements * element_size,
        score_elements * (2.0 * dropped * element_size + mask),
        (model.bias_qkv * projected + model.bias_all * stream) * element_size,
    )
    names = ("attention norm gradient", "attention residual gradient", "rotary embedding gradient", "softmax gradient",
             "attention dropout gradient", "attention bias gradients")  # fmt: skip
    return Vectors(names, side_by_side(*gradients))


def mlp_vectors(
    model: Model,
    tokens: Array,
    inner_elements: Array,
    copied_elements: Array,
    tensor_parallel: Array,
    sequence_parallel: Array,
    element_size: Array,
    mask_size: Numeric,
    backward: bool,
) -> Vectors:
    """Memory-bound kernels of one feed-forward block: norm, residual, activation, token permutation.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    tokens : Array
        Tokens of one pass, (rows,). [-]
    inner_elements : Array
        Outputs of the activation function, (rows,): tokens x width, over all experts of the rank. [-]
    copied_elements : Array
        Elements of the copies of tokens that are sent to experts, (rows,); 0 in a dense block. [-]
    tensor_parallel : Array
        Ranks that share each matrix, (rows,). [-]
    sequence_parallel : Array
        1 where the kernels between the matrices are split over those ranks too, (rows,). [-]
    element_size : Array
        Bytes of an activation, (rows,). [B]
    mask_size : Array
        Bytes of an element of a dropout mask, (rows,). [B]
    backward : bool
        The gradients of these kernels instead. [-]

    Returns
    -------
    Vectors
        Norm, residual addition with dropout, activation function, moves of tokens to and from experts. [B]

    Examples
    --------
    A token of Llama 3.1 8B: the norm moves 2 x 4096 elements of 2 bytes, the residual 3 x 4096, SwiGLU 3 x 14336.

    >>> llama = Model(*np.array([[32, 4096, 32, 8, 128, 14336, 128256, 1, 0, 0, 1, 0, 0, 0, 0, 0, 32.0]]).T)
    >>> one, none = np.ones(1), np.zeros(1)
    >>> found = mlp_vectors(llama, one, 14336.0 * one, none, one, none, 2.0 * one, 1.0, backward=False)
    >>> found.traffic.tolist()
    [[16384.0, 24576.0, 86016.0, 0.0]]
    """
    shared = 1.0 + (tensor_parallel - 1.0) * sequence_parallel
    stream = tokens * model.hidden_size / shared
    dropped, mask = model.dropout, model.dropout * array(mask_size)
    moved = 4.0 * copied_elements * element_size
    if not backward:
        columns = (
            2.0 * stream * element_size,
            stream * (3.0 * element_size + mask),
            (2.0 + model.gated_mlp) * inner_elements * element_size,
            moved,
        )
        return Vectors(("mlp norm", "mlp residual", "activation", "moves of tokens"), side_by_side(*columns))
    gradients = (
        3.0 * stream * element_size,
        stream * ((1.0 + 2.0 * dropped) * element_size + mask),
        (3.0 + 2.0 * model.gated_mlp) * inner_elements * element_size,
        moved,
        model.bias_all * (inner_elements + stream) * element_size,
    )
    names = ("mlp norm gradient", "mlp residual gradient", "activation gradient", "moves of tokens gradient",
             "mlp bias gradients")  # fmt: skip
    return Vectors(names, side_by_side(*gradients))


def expert_bias_vectors(
    model: Model, copies: Array, ffn_size: Array, element_size: Array, word_size: Numeric, backward: bool
) -> Vectors:
    """Memory-bound kernels of expert biases, weighted by the router's probability.

    No grouped product takes them in: the bias times the probability is made in FP32, added, put together over the
    experts and rounded, each by a kernel of its own; backward likewise, with sums for bias and probability.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    copies : Array
        Copies of tokens that the experts of a rank see, 0 without biases, (rows,). [-]
    ffn_size : Array
        Width of an expert on one rank, (rows,). [-]
    element_size : Array
        Bytes of an activation, (rows,). [B]
    word_size : numeric
        Bytes of an element of FP32. [B]
    backward : bool
        The gradients of these kernels instead. [-]

    Returns
    -------
    Vectors
        Both products together. [B]

    Examples
    --------
    Ten copies of 2 x 500 + 1,000 elements, twice 2 bytes and six times 4: 20,000 x 28.

    >>> from types import SimpleNamespace
    >>> model = SimpleNamespace(gated_mlp=np.ones(1), hidden_size=np.array([1000.0]))
    >>> expert_bias_vectors(model, *np.array([[10.0], [500.0], [2.0]]), 4.0, backward=False).traffic.tolist()
    [[560000.0]]
    """
    elements = copies * ((1.0 + model.gated_mlp) * ffn_size + model.hidden_size)
    words = 8.0 if backward else 6.0
    traffic = elements * (2.0 * element_size + words * array(word_size))
    return Vectors(("expert bias gradients" if backward else "expert biases",), traffic[:, None])


def mtp_vectors(model: Model, tokens: Array, split: Array, element_size: Array, backward: bool) -> Vectors:
    """Norms and concatenation of an MTP module (memory-bound kernels).

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    tokens : Array
        Tokens of one pass, (rows,). [-]
    split : Array
        Ranks that share the tokens between the matrices, (rows,). [-]
    element_size : Array
        Bytes of an activation, (rows,). [B]
    backward : bool
        The gradients of these kernels instead. [-]

    Returns
    -------
    Vectors
        Norms of hidden state, of embedding and of the output; putting the first two side by side. [B]

    Examples
    --------
    Ten tokens of 1,000 elements of 2 bytes on two ranks, 10 kB: norms pass over them six times, concatenation four.

    >>> from types import SimpleNamespace
    >>> model = SimpleNamespace(hidden_size=np.array([1000.0]))
    >>> mtp_vectors(model, *np.array([[10.0], [2.0], [2.0]]), backward=False).traffic.tolist()
    [[60000.0, 40000.0]]
    """
    stream = tokens * model.hidden_size / split * element_size
    if backward:
        return Vectors(("mtp norm gradients", "mtp concatenation gradient"), side_by_side(9.0 * stream, 4.0 * stream))
    return Vectors(("mtp norms", "mtp concatenation"), side_by_side(6.0 * stream, 4.0 * stream))
