"""The operators of a dense transformer layer, forward and backward, as an axis of arrays.

Shapes are (rows, operators): one row per plan, one column per operator, so that a roofline call covers every
operator of every plan. Tokens are those that one rank sees in one pass: sequences x length.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.arrays import Array, Numeric, array, ceil_div
from xlperf.workload.model import Model


class Gemms(NamedTuple):
    """Matrix products (rows, operators): C of (m, n) from depth k, ``batch`` of them in one call. [-]"""

    names: tuple[str, ...]
    m: Array
    n: Array
    k: Array
    batch: Array

    @property
    def flop(self) -> Array:
        """Operations of one call. [FLOP]"""
        return np.asarray(2.0 * self.m * self.n * self.k * self.batch)


class Vectors(NamedTuple):
    """Kernels bound by memory (rows, operators): bytes moved by one call. [B]"""

    names: tuple[str, ...]
    traffic: Array


def _stack(*columns: Array) -> Array:
    return np.stack(np.broadcast_arrays(*columns), axis=-1)


def layer_gemms(model: Model, tokens: Array, tensor_parallel: Array) -> Gemms:
    """Matrix products with weights of one layer in the forward pass, on one tensor-parallel rank.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    tokens : Array
        Tokens of one pass, (rows,). [-]
    tensor_parallel : Array
        Ranks that share each matrix, (rows,). [-]

    Returns
    -------
    Gemms
        qkv, attention output, MLP up (with the gate), MLP down. [-]
    """
    heads = ceil_div(model.num_attention_heads, tensor_parallel)
    groups = ceil_div(model.num_query_groups, tensor_parallel)
    ffn = model.ffn_hidden_size / tensor_parallel
    width = heads * model.head_size
    hidden = model.hidden_size
    n = _stack((heads + 2.0 * groups) * model.head_size, hidden, (1.0 + model.gated_mlp) * ffn, hidden)
    k = _stack(hidden, width, hidden, ffn)
    m = np.broadcast_to(tokens[:, None], n.shape)
    return Gemms(("qkv", "attention output", "mlp up", "mlp down"), m, n, k, np.ones_like(n))


def logits_gemm(model: Model, tokens: Array, tensor_parallel: Array) -> Gemms:
    """Output projection, vocabulary split over the tensor-parallel ranks.

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
    """
    n = ceil_div(model.vocab_size, tensor_parallel)[:, None]
    ones = np.ones_like(n)
    return Gemms(("logits",), tokens[:, None] * ones, n, model.hidden_size[:, None] * ones, ones)


def backward_gemms(forward: Gemms) -> Gemms:
    """Gradients of a forward product: by its input (m, k, n), then by its weight (k, n, m).

    Parameters
    ----------
    forward : Gemms
        Products of the forward pass. [-]

    Returns
    -------
    Gemms
        Input gradients, then weight gradients. [-]
    """
    names = tuple(f"{name} {side}" for side in ("input gradient", "weight gradient") for name in forward.names)
    return Gemms(
        names,
        np.concatenate([forward.m, forward.k], axis=-1),
        np.concatenate([forward.k, forward.n], axis=-1),
        np.concatenate([forward.n, forward.m], axis=-1),
        np.concatenate([forward.batch, forward.batch], axis=-1),
    )


def attention_gemms(model: Model, batch_size: Array, sequence_length: Array, tensor_parallel: Array) -> Gemms:
    """Scores and weighted sum of standard (unfused) attention in the forward pass.

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
    """
    products = batch_size * ceil_div(model.num_attention_heads, tensor_parallel)
    length = sequence_length
    return Gemms(
        ("attention scores", "attention values"),
        _stack(length, length),
        _stack(length, model.head_size),
        _stack(model.head_size, length),
        _stack(products, products),
    )


def forward_vectors(
    model: Model,
    tokens: Array,
    score_elements: Array,
    tensor_parallel: Array,
    sequence_parallel: Array,
    element_size: Array,
    mask_size: Numeric,
) -> Vectors:
    """Kernels of one layer in the forward pass that are not matrix products.

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

    Returns
    -------
    Vectors
        Norms, residual additions with dropout, rotary embedding, activation function, softmax, its dropout. [B]
    """
    shared = np.where(sequence_parallel > 0, tensor_parallel, 1.0)
    stream = tokens * model.hidden_size / shared
    heads = ceil_div(model.num_attention_heads, tensor_parallel)
    groups = ceil_div(model.num_query_groups, tensor_parallel)
    rotated = tokens * (heads + groups) * model.head_size
    hidden = tokens * model.ffn_hidden_size / tensor_parallel
    dropped, mask = model.dropout, model.dropout * array(mask_size)
    traffic = _stack(
        4.0 * stream * element_size,
        stream * (6.0 * element_size + 2.0 * mask),
        2.0 * (model.rotary + model.query_key_norm) * rotated * element_size,
        (2.0 + model.gated_mlp) * hidden * element_size,
        2.0 * score_elements * element_size,
        score_elements * (2.0 * dropped * element_size + mask),
    )
    names = ("norms", "residual and dropout", "rotary embedding", "activation", "softmax", "attention dropout")
    return Vectors(names, traffic)


def backward_vectors(
    model: Model,
    tokens: Array,
    score_elements: Array,
    tensor_parallel: Array,
    sequence_parallel: Array,
    element_size: Array,
    mask_size: Numeric,
) -> Vectors:
    """Kernels of one layer in the backward pass that are not matrix products.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    tokens : Array
        Tokens of one pass, (rows,). [-]
    score_elements : Array
        Attention scores kept in memory, (rows,): heads x queries x keys with standard attention, else 0. [-]
    tensor_parallel : Array
        Ranks that share each matrix, (rows,). [-]
    sequence_parallel : Array
        1 where the kernels between the matrices are split over those ranks too, (rows,). [-]
    element_size : Array
        Bytes of an activation, (rows,). [B]
    mask_size : Array
        Bytes of an element of a dropout mask, (rows,). [B]

    Returns
    -------
    Vectors
        The gradients of the kernels of :func:`forward_vectors`, and those of the biases. [B]
    """
    shared = np.where(sequence_parallel > 0, tensor_parallel, 1.0)
    stream = tokens * model.hidden_size / shared
    heads = ceil_div(model.num_attention_heads, tensor_parallel)
    groups = ceil_div(model.num_query_groups, tensor_parallel)
    rotated = tokens * (heads + groups) * model.head_size
    hidden = tokens * model.ffn_hidden_size / tensor_parallel
    dropped, mask = model.dropout, model.dropout * array(mask_size)
    projected = tokens * (heads + 2.0 * groups) * model.head_size
    traffic = _stack(
        6.0 * stream * element_size,
        stream * (2.0 * element_size + 4.0 * dropped * element_size + 2.0 * mask),
        2.0 * (model.rotary + 1.5 * model.query_key_norm) * rotated * element_size,
        (3.0 + 2.0 * model.gated_mlp) * hidden * element_size,
        3.0 * score_elements * element_size,
        score_elements * (2.0 * dropped * element_size + mask),
        (model.bias_qkv * projected + model.bias_all * (hidden + 2.0 * stream)) * element_size,
    )
    names = (
        "norms gradient",
        "residual and dropout gradient",
        "rotary embedding gradient",
        "activation gradient",
        "softmax gradient",
        "attention dropout gradient",
        "bias gradients",
    )
    return Vectors(names, traffic)


def cast_traffic(gemms: Gemms, element_size: Array, storage_size: Array) -> Array:
    """Bytes moved to quantise the inputs of products whose precision is below the storage precision.

    Each input is read once in storage precision and written twice in the narrow one: as it stands for this pass
    and transposed for the weight gradient.

    Parameters
    ----------
    gemms : Gemms
        Products of the forward pass. [-]
    element_size : Array
        Bytes of an element in the products, (rows,). [B]
    storage_size : Array
        Bytes of an element as stored between them, (rows,). [B]

    Returns
    -------
    Array
        Traffic of the casts of one layer, (rows,); 0 where both precisions are the same. [B]
    """
    elements = np.ascontiguousarray(gemms.m * gemms.k).sum(axis=-1)
    return np.asarray(elements * (storage_size + 2.0 * element_size) * (element_size < storage_size))
