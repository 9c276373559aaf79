"""Blocks of linear attention (gated delta net) or of a state space (Mamba-2): products, scan, memory-bound kernels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, ceil_div, side_by_side, some
from xlperf.equations.model.linear import (
    CHUNK,
    STATE_SPACE_CHUNK,
    chunk_scan_flop,
    chunk_scan_traffic,
    linear_attention_parameters,
    linear_attention_small_parameters,
    linear_gate_parameters,
    state_space_scan_flop,
    state_space_scan_traffic,
)
from xlperf.equations.model.model import Model
from xlperf.equations.model.operators import Gemms, Vectors

PROJECTIONS = ("linear attention input", "linear attention gates", "linear attention output")
_BACKWARD_WORK, _BACKWARD_CHUNKS = 2.5, 2.0


class Scan(NamedTuple):
    """Work of a scan in chunks, (rows,).

    Attributes
    ----------
    flop : Array
        Operations of the matrix units. [FLOP]
    traffic : Array
        Bytes read and written. [B]
    chunks : Array
        Chunks of a sequence, one after the other. [-]
    """

    flop: Array
    traffic: Array
    chunks: Array


def linear_widths(model: Model, ranks: Array) -> tuple[Array, Array, Array]:
    """Width of all key heads and of all value heads of linear attention on one rank, and its value heads.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    ranks : Array
        Ranks that share the heads, (rows,). [-]

    Returns
    -------
    tuple of Array
        Keys, values, value heads, (rows,). [-]
    """
    heads = ceil_div(model.linear_value_heads, ranks)
    keys = ceil_div(model.linear_key_heads, ranks) * model.linear_key_size
    return keys, np.asarray(heads * model.linear_value_size), heads


def linear_gemms(model: Model, tokens: Array, ranks: Array) -> Gemms:
    """Projections of a block of linear attention: queries, keys, values and gate; decay and writing; output.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    tokens : Array
        Tokens of one pass, (rows,). [-]
    ranks : Array
        Ranks that share the heads, (rows,). [-]

    Returns
    -------
    Gemms
        Input, gates (of Mamba-2 the step of each head comes with the input instead), output. [-]
    """
    keys, values, heads = linear_widths(model, ranks)
    hidden = model.hidden_size
    n = side_by_side(2.0 * (keys + values) + model.state_space * heads, 2.0 * heads, hidden)
    k = side_by_side(hidden, hidden, values)
    return Gemms(PROJECTIONS, np.broadcast_to(tokens[:, None], n.shape), n, k, np.ones_like(n))


def chunked_scan(
    model: Model, tokens: Array, sequences: Array, length: Array, ranks: Array, element_size: Array
) -> Scan:
    """Work of the scan of one block of linear attention over a pass, of whichever kind its model has.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    tokens : Array
        Tokens of one pass, (rows,). [-]
    sequences : Array
        Sequences whose state is read before and written after, (rows,). [-]
    length : Array
        Tokens of a sequence that follow each other in the pass, (rows,). [-]
    ranks : Array
        Ranks that share the heads, (rows,). [-]
    element_size : Array
        Bytes of an activation, (rows,). [B]

    Returns
    -------
    Scan
        Forward pass, (rows,). [FLOP, B, -]
    """
    heads, sizes = ceil_div(model.linear_value_heads, ranks), (model.linear_key_size, model.linear_value_size)
    flop = chunk_scan_flop(tokens, heads, *sizes)
    bytes_of = (element_size, model.linear_state_size)
    traffic = chunk_scan_traffic(tokens, sequences, heads, *sizes, *bytes_of)
    chunk = np.full_like(tokens, CHUNK)
    space = model.state_space > 0.0
    if some(space):
        groups = ceil_div(model.linear_key_heads, ranks)
        flop = np.where(space, state_space_scan_flop(tokens, heads, groups, *sizes), flop)
        other = state_space_scan_traffic(tokens, sequences, heads, groups, *sizes, *bytes_of)
        traffic, chunk = np.where(space, other, traffic), np.where(space, STATE_SPACE_CHUNK, chunk)
    return Scan(flop, traffic, ceil_div(length, chunk))


def scan_gradient(forward: Scan) -> Scan:
    """Work of the gradients of a scan.

    Scores and states of chunks are made again, then each product of the forward pass has two: 2.5 times the work as
    for flash attention. States pass through the chunks forwards, their gradients backwards (heuristic, this work:
    counted on the kernels of Mamba-2, where products with the state are 10 to 4 and those within a chunk 4 to 2).

    Parameters
    ----------
    forward : Scan
        Forward pass, (rows,). [FLOP, B, -]

    Returns
    -------
    Scan
        Backward pass, (rows,). [FLOP, B, -]
    """
    return Scan(_BACKWARD_WORK * forward.flop, _BACKWARD_WORK * forward.traffic, _BACKWARD_CHUNKS * forward.chunks)


def linear_vectors(
    model: Model, tokens: Array, ranks: Array, sequence_parallel: Array, element_size: Array, backward: bool
) -> Vectors:
    """Memory-bound kernels of one trained block of linear attention: norm, residual, short convolution, gated norm.

    A gated delta net transposes what its convolution reads and writes (heuristic, this work: passes over each tensor).

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    tokens : Array
        Tokens of one pass, (rows,). [-]
    ranks : Array
        Ranks that share the heads, (rows,). [-]
    sequence_parallel : Array
        1 where norm and residual are split over those ranks too, (rows,). [-]
    element_size : Array
        Bytes of an activation, (rows,). [B]
    backward : bool
        The gradients of these kernels instead. [-]

    Returns
    -------
    Vectors
        Traffic of one call each. [B]
    """
    keys, values, _ = linear_widths(model, ranks)
    stream = tokens * model.hidden_size / (1.0 + (ranks - 1.0) * sequence_parallel)
    convolved = (4.0 - 2.0 * model.state_space) * tokens * (2.0 * keys + values)
    passes = (3.0, 1.0, 2.0, 5.0) if backward else (2.0, 3.0, 1.0, 3.0)
    elements = (stream, stream, convolved, tokens * values)
    names = ("linear attention norm", "linear attention residual", "short convolution", "gated norm")
    traffic = side_by_side(*(times * each * element_size for times, each in zip(passes, elements, strict=True)))
    return Vectors(tuple(f"{name} gradient" for name in names) if backward else names, traffic)


def linear_kept_widths(model: Model) -> tuple[Array, Array]:
    """Activation widths per token of a trained linear-attention block: before its output projection, and the output.

    Projected inputs and the output of the scan; a gated delta net also keeps what its convolution puts out, the fused
    kernel of Mamba-2 makes that again.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]

    Returns
    -------
    tuple of Array
        Of all ranks together, (rows,). [-]

    References
    ----------
    .. [1] T. Dao and A. Gu, "Transformers are SSMs: generalized models and efficient algorithms through structured
       state space duality", 2024, arXiv:2405.21060, section 7 (what the kernel computes again).
    """
    keys, values, heads = linear_widths(model, np.ones_like(model.num_layers))
    convolved = (1.0 - model.state_space) * (2.0 * keys + values)
    return np.asarray(2.0 * keys + 3.0 * values + heads + convolved), values


def linear_layer_parameters(model: Model) -> tuple[Array, Array]:
    """Weights of one linear-attention block: in GEMMs, and outside them.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]

    Returns
    -------
    tuple of Array
        Matrices with those of the gates; convolution, decay and norm of the output, (rows,). [-]
    """
    keys = model.linear_key_heads * model.linear_key_size
    values = model.linear_value_heads * model.linear_value_size
    matrices = linear_attention_parameters(model.hidden_size, keys, values)
    gates = linear_gate_parameters(model.hidden_size, model.linear_value_heads) * (1.0 - 0.5 * model.state_space)
    small = linear_attention_small_parameters(
        keys, values, model.linear_value_heads, model.linear_value_size, model.linear_convolution, model.state_space
    )
    return np.asarray(matrices + gates), small
