"""The operators of a dense transformer layer, forward and backward, as an axis of arrays.

Shapes are (rows, operators): one row per plan, one column per operator, so that a roofline call covers every
operator of every plan. Tokens are those that one rank sees in one pass: sequences x length.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, beside, ceil_div, ones, side_by_side
from xlperf.equations.model.model import Model


class Gemms(NamedTuple):
    """Matrix products (rows, operators): C of (m, n) from depth k, ``batch`` of them in one call. [-]"""

    names: tuple[str, ...]
    m: Array
    n: Array
    k: Array
    batch: Array

    @property
    def columns(self) -> tuple[Array, Array, Array, Array]:
        """Rows m, columns n and depth k of a product, and products of one call, (rows, operators) each. [-]"""
        return self.m, self.n, self.k, self.batch

    @property
    def flop(self) -> Array:
        """Operations of one call. [FLOP]"""
        return np.asarray(2.0 * self.m * self.n * self.k * self.batch)


def attention_projections(model: Model, tokens: Array, tensor_parallel: Array, latent: bool) -> Gemms:
    """Projection GEMMs of one attention block in the forward pass, on one tensor-parallel rank.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    tokens : Array
        Tokens of one pass, (rows,). [-]
    tensor_parallel : Array
        Ranks that share the heads, (rows,). [-]
    latent : bool
        Multi-head latent attention: compressions are computed whole on every rank. [-]

    Returns
    -------
    Gemms
        qkv and attention output; or compressions, expansions and attention output. [-]

    Examples
    --------
    Llama 3.1 8B on two ranks: (32 + 8 + 8) x 128 / 2 columns of queries, keys and values; 32 x 128 / 2 deep.

    >>> llama = Model(*np.array([[32, 4096, 32, 8, 128, 14336, 128256, 1, 0, 0, 1, 0, 0, 0, 0, 0, 32.0]]).T)
    >>> found = attention_projections(llama, np.array([4096.0]), np.array([2.0]), latent=False)
    >>> found.n.tolist(), found.k.tolist()
    ([[3072.0, 4096.0]], [[4096.0, 2048.0]])
    """
    heads = ceil_div(model.num_attention_heads, tensor_parallel)
    hidden = model.hidden_size
    if not latent:
        groups = ceil_div(model.num_query_groups, tensor_parallel)
        n = side_by_side((heads + 2.0 * groups) * model.head_size, hidden)
        k = side_by_side(hidden, heads * model.head_size)
        names: tuple[str, ...] = ("qkv", "attention output")
        batch = ones(n)
    else:
        queries, rank = heads * model.qk_head_size, model.q_lora_rank
        nope = model.qk_head_size - model.qk_rope_head_size
        compressed = np.where(rank > 0.0, rank, hidden)
        n = side_by_side(
            compressed,
            queries,
            model.kv_lora_rank + model.qk_rope_head_size,
            heads * (nope + model.v_head_size),
            hidden,
        )
        k = side_by_side(hidden, compressed, hidden, model.kv_lora_rank, heads * model.v_head_size)
        names = ("query compression", "query expansion", "key and value compression", "key and value expansion",
                 "attention output")  # fmt: skip
        one = ones(rank)
        batch = side_by_side(np.where(rank > 0.0, 1.0, 0.0), one, one, one, one)
    return Gemms(names, np.repeat(tokens[:, None], len(names), axis=-1), n, k, batch)


def mlp_gemms(model: Model, tokens: Array, ffn_size: Array, name: str) -> Gemms:
    """Up and down GEMMs of a feed-forward layer.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    tokens : Array
        Tokens of one pass, (rows,). [-]
    ffn_size : Array
        Width of the layer on one rank, (rows,). [-]
    name : str
        What the layer is called. [-]

    Returns
    -------
    Gemms
        Up (with the gate) and down. [-]

    Examples
    --------
    Gate and up of Llama 3.1 8B on two ranks are one product of 2 x 7168 columns:

    >>> llama = Model(*np.array([[32, 4096, 32, 8, 128, 14336, 128256, 1, 0, 0, 1, 0, 0, 0, 0, 0, 32.0]]).T)
    >>> mlp_gemms(llama, np.array([4096.0]), np.array([7168.0]), "mlp").n.tolist()
    [[14336.0, 4096.0]]
    """
    n = side_by_side((1.0 + model.gated_mlp) * ffn_size, model.hidden_size)
    k = side_by_side(model.hidden_size, ffn_size)
    return Gemms((f"{name} up", f"{name} down"), side_by_side(tokens, tokens), n, k, ones(n))


def concatenated(*groups: Gemms) -> Gemms:
    """Groups of GEMMs joined along the axis of operators.

    Parameters
    ----------
    *groups : Gemms
        In order. [-]

    Returns
    -------
    Gemms
        One group. [-]

    Examples
    --------
    >>> one = np.array([[1.0]])
    >>> found = concatenated(*(Gemms((name,), one, one, one, one) for name in ("up", "down")))
    >>> found.names, found.m.shape
    (('up', 'down'), (1, 2))
    """
    names = tuple(name for group in groups for name in group.names)
    return Gemms(names, *(beside(*values) for values in zip(*(g[1:] for g in groups), strict=True)))


def logits_gemm(model: Model, tokens: Array, tensor_parallel: Array) -> Gemms:
    """LM-head GEMM, vocabulary split over the tensor-parallel ranks.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    tokens : Array
        Tokens whose logits are computed, (rows,). [-]
    tensor_parallel : Array
        Ranks that share the vocabulary, (rows,). [-]

    Returns
    -------
    Gemms
        One product. [-]

    Examples
    --------
    The vocabulary of Llama 3.1 8B on two ranks:

    >>> llama = Model(*np.array([[32, 4096, 32, 8, 128, 14336, 128256, 1, 0, 0, 1, 0, 0, 0, 0, 0, 32.0]]).T)
    >>> logits_gemm(llama, np.array([4096.0]), np.array([2.0])).n.tolist()
    [[64128.0]]
    """
    n = ceil_div(model.vocab_size, tensor_parallel)[:, None]
    return Gemms(("logits",), tokens[:, None], n, model.hidden_size[:, None], ones(n))


def backward_gemms(forward: Gemms) -> Gemms:
    """Backward GEMMs of forward ones: input gradients (m, k, n), then weight gradients (k, n, m).

    Parameters
    ----------
    forward : Gemms
        Products of the forward pass. [-]

    Returns
    -------
    Gemms
        Input gradients, then weight gradients. [-]

    Examples
    --------
    >>> one = np.array([[1.0]])
    >>> found = backward_gemms(Gemms(("up",), 2.0 * one, 3.0 * one, 5.0 * one, one))
    >>> found.m.tolist(), found.n.tolist(), found.k.tolist()
    ([[2.0, 5.0]], [[5.0, 3.0]], [[3.0, 2.0]])
    """
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


def attention_gemms(model: Model, batch_size: Array, sequence_length: Array, tensor_parallel: Array) -> Gemms:
    """Score and value GEMMs of unfused attention in the forward pass.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    batch_size : Array
        Sequences of one pass, (rows,). [-]
    sequence_length : Array
        Queries and keys of a sequence, (rows,). [-]
    tensor_parallel : Array
        Ranks that share the heads, (rows,). [-]

    Returns
    -------
    Gemms
        Two batched products without weights. [-]

    Examples
    --------
    32 heads of 128 on two ranks, 100 queries and keys: 2 x 100 x 100 x 128 x 16 each.

    >>> from types import SimpleNamespace
    >>> heads, size = np.array([32.0]), np.array([128.0])
    >>> model = SimpleNamespace(num_attention_heads=heads, qk_head_size=size, v_head_size=size)
    >>> attention_gemms(model, np.array([1.0]), np.array([100.0]), np.array([2.0])).flop.tolist()
    [[40960000.0, 40960000.0]]
    """
    products = batch_size * ceil_div(model.num_attention_heads, tensor_parallel)
    length = sequence_length
    return Gemms(
        ("attention scores", "attention values"),
        side_by_side(length, length),
        side_by_side(length, model.v_head_size),
        side_by_side(model.qk_head_size, length),
        side_by_side(products, products),
    )


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
