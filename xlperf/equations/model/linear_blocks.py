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

    Examples
    --------
    Qwen3-Next on two ranks: 16 key heads and 32 value heads of 128.

    >>> from types import SimpleNamespace
    >>> sizes = dict.fromkeys(("linear_key_size", "linear_value_size"), np.array([128.0]))
    >>> model = SimpleNamespace(linear_key_heads=np.array([16.0]), linear_value_heads=np.array([32.0]), **sizes)
    >>> [float(width[0]) for width in linear_widths(model, np.array([2.0]))]
    [1024.0, 2048.0, 16.0]
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

    Examples
    --------
    Columns of Qwen3-Next on two ranks: 2 x (1,024 + 2,048), two gates of 16 heads, the hidden size.

    >>> from types import SimpleNamespace
    >>> sizes = dict.fromkeys(("linear_key_size", "linear_value_size"), np.array([128.0]))
    >>> sizes |= {"hidden_size": np.array([2048.0]), "state_space": np.zeros(1)}
    >>> model = SimpleNamespace(linear_key_heads=np.array([16.0]), linear_value_heads=np.array([32.0]), **sizes)
    >>> linear_gemms(model, np.array([1.0]), np.array([2.0])).n.tolist()
    [[6144.0, 32.0, 2048.0]]
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

    Examples
    --------
    One token of one head of width 1 as in :func:`chunk_scan_flop`; 4,096 tokens pass 64 chunks one after the other.

    >>> from types import SimpleNamespace
    >>> names = "linear_value_heads linear_key_size linear_value_size linear_state_size".split()
    >>> model = SimpleNamespace(**dict.fromkeys(names, np.ones(1)), state_space=np.zeros(1))
    >>> scan = chunked_scan(model, *np.array([[1.0], [0.0], [4096.0], [1.0], [2.0]]))
    >>> scan.flop.tolist(), scan.chunks.tolist()
    ([4742.0], [64.0])
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

    Examples
    --------
    >>> scan_gradient(Scan(2.0, 4.0, 3.0))
    Scan(flop=5.0, traffic=10.0, chunks=6.0)
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

    Examples
    --------
    A token of width 100, keys of 10 and values of 20, 2 bytes each: 2 x 100, 3 x 100, 4 x (10 + 10 + 20), 3 x 20.

    >>> from types import SimpleNamespace
    >>> sizes = {"linear_key_heads": 1.0, "linear_value_heads": 2.0, "linear_key_size": 10.0, "linear_value_size": 10.0}
    >>> sizes = {name: np.array([size]) for name, size in {**sizes, "hidden_size": 100.0, "state_space": 0.0}.items()}
    >>> one = np.ones(1)
    >>> linear_vectors(SimpleNamespace(**sizes), one, one, one, 2.0 * one, backward=False).traffic.tolist()
    [[400.0, 600.0, 320.0, 120.0]]
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

    Examples
    --------
    Keys of 10, values of 20 in two heads: 2 x 10 + 3 x 20 + 2 + (2 x 10 + 20).

    >>> from types import SimpleNamespace
    >>> sizes = {"linear_key_heads": 1.0, "linear_value_heads": 2.0, "linear_key_size": 10.0, "linear_value_size": 10.0}
    >>> sizes = {name: np.array([size]) for name, size in {**sizes, "num_layers": 1.0, "state_space": 0.0}.items()}
    >>> [float(width[0]) for width in linear_kept_widths(SimpleNamespace(**sizes))]
    [122.0, 20.0]
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

    Examples
    --------
    Hidden size 100, keys of 10, values of 20 in two heads: 100 x (20 + 60) + 2 x 100 x 2; 4 x 40 + 2 x 2 + 10.

    >>> from types import SimpleNamespace
    >>> sizes = {"linear_key_heads": 1.0, "linear_value_heads": 2.0, "linear_key_size": 10.0, "linear_value_size": 10.0}
    >>> model = SimpleNamespace(**sizes, hidden_size=100.0, linear_convolution=4.0, state_space=0.0)
    >>> [float(weights) for weights in linear_layer_parameters(model)]
    [8400.0, 174.0]
    """
    keys = model.linear_key_heads * model.linear_key_size
    values = model.linear_value_heads * model.linear_value_size
    matrices = linear_attention_parameters(model.hidden_size, keys, values)
    gates = linear_gate_parameters(model.hidden_size, model.linear_value_heads) * (1.0 - 0.5 * model.state_space)
    small = linear_attention_small_parameters(
        keys, values, model.linear_value_heads, model.linear_value_size, model.linear_convolution, model.state_space
    )
    return np.asarray(matrices + gates), small
