"""Linear attention (gated delta net) and state spaces (Mamba-2): parameters, state, scan, and operators of a block.

Each value head keeps a state of key width x value width. Decoding reads and writes it once per token, whatever the
context. A prompt is cut into chunks, within which tokens attend to each other by matrix products; the state passes
from chunk to chunk, one after the other. Projections and the short convolution are counted separately.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ceil_div, side_by_side, some
from xlperf.equations.model.model import Model
from xlperf.equations.model.operators import Gemms, Vectors

CHUNK = 64.0
"""Tokens of a chunk in the published kernels (flash-linear-attention, which vLLM and SGLang carry)."""
STATE_SPACE_CHUNK = 128.0
"""Tokens of a chunk of Mamba-2 (chunk_size in the configurations of Nemotron-H and Nemotron 3)."""


def linear_attention_parameters(hidden_size: Numeric, key_width: Numeric, value_width: Numeric) -> Array:
    r"""Projection weights of one linear-attention layer, excluding those of decay and writing strength.

    .. math:: P = h (2 k + 3 v)

    Parameters
    ----------
    hidden_size : numeric
        Width h of the residual stream. [-]
    key_width : numeric
        Width k of all key heads together, that of queries too. [-]
    value_width : numeric
        Width v of all value heads together, that of the output gate and of the output too. [-]

    Returns
    -------
    parameters : numeric
        Weights of the projections of queries, keys, values, gate and output. [-]

    References
    ----------
    .. [1] S. Yang, J. Kautz and A. Hatamizadeh, "Gated delta networks: improving Mamba2 with delta rule", 2024,
       arXiv:2412.06464, section 3.4.

    >>> float(linear_attention_parameters(4096.0, 2048.0, 8192.0))
    117440512.0
    """
    return np.asarray(array(hidden_size) * (2.0 * array(key_width) + 3.0 * array(value_width)))


def linear_gate_parameters(hidden_size: Numeric, value_heads: Numeric) -> Array:
    r"""Projection weights of the decay and beta gates of one linear-attention layer.

    .. math:: P = 2 h n

    Parameters
    ----------
    hidden_size : numeric
        Width h of the residual stream. [-]
    value_heads : numeric
        Value heads n: each has one of both. [-]

    Returns
    -------
    parameters : numeric
        Weights, which engines do not narrow. [-]

    References
    ----------
    .. [1] S. Yang, J. Kautz and A. Hatamizadeh, "Gated delta networks: improving Mamba2 with delta rule", 2024,
       arXiv:2412.06464, section 3.4.

    2 x 4096 x 32:

    >>> float(linear_gate_parameters(4096.0, 32.0))
    262144.0
    """
    return np.asarray(2.0 * array(hidden_size) * array(value_heads))


def linear_attention_small_parameters(
    key_width: Numeric,
    value_width: Numeric,
    value_heads: Numeric,
    value_size: Numeric,
    convolution: Numeric,
    state_space: Numeric = 0.0,
) -> Array:
    r"""Weights of one linear-attention layer outside GEMMs: convolution, decay of each head, gated norm.

    Mamba-2 has a bias of the convolution and a skip of each head more, and scales of the norm for all heads.

    .. math:: P = (c + \mu) (2 k + v) + (2 + \mu) n + (1 - \mu) d_v + \mu v

    Parameters
    ----------
    key_width : numeric
        Width k of all key heads together. [-]
    value_width : numeric
        Width v of all value heads together. [-]
    value_heads : numeric
        Value heads n, each with a rate of decay and a bias. [-]
    value_size : numeric
        Width d_v of one value head: scales of the norm of the output. [-]
    convolution : numeric
        Tokens c that the convolution of each channel sees. [-]
    state_space : numeric, default 0.0
        Mu: 1 for Mamba-2, 0 for a gated delta net. [-]

    Returns
    -------
    parameters : numeric
        Weights. [-]

    References
    ----------
    .. [1] S. Yang, J. Kautz and A. Hatamizadeh, "Gated delta networks: improving Mamba2 with delta rule", 2024,
       arXiv:2412.06464, section 3.4.
    .. [2] T. Dao and A. Gu, "Transformers are SSMs: generalized models and efficient algorithms through structured
       state space duality", 2024, arXiv:2405.21060, section 7.1.

    4 x (2 x 2 + 4) of the convolution, 2 of the decay, 4 of the norm:

    >>> float(linear_attention_small_parameters(2.0, 4.0, 1.0, 4.0, 4.0))
    38.0
    """
    channels, more = 2.0 * array(key_width) + array(value_width), array(state_space)
    norm = array(value_size) + more * (array(value_width) - array(value_size))
    return np.asarray((array(convolution) + more) * channels + (2.0 + more) * array(value_heads) + norm)


def recurrent_state_size(value_heads: Numeric, key_size: Numeric, value_size: Numeric, element_size: Numeric) -> Array:
    r"""Recurrent state per sequence and layer.

    .. math:: S = n d_k d_v e

    Parameters
    ----------
    value_heads : numeric
        Value heads n on this accelerator. [-]
    key_size : numeric
        Width d_k of a key head. [-]
    value_size : numeric
        Width d_v of a value head. [-]
    element_size : numeric
        Bytes e of an element of the state. [B]

    Returns
    -------
    size : numeric
        State, the same at every context. [B]

    References
    ----------
    .. [1] S. Yang, J. Kautz and A. Hatamizadeh, "Gated delta networks: improving Mamba2 with delta rule", 2024,
       arXiv:2412.06464, equation 10.

    >>> float(recurrent_state_size(64.0, 128.0, 128.0, 4.0)) / 2**20
    4.0
    """
    return np.asarray(array(value_heads) * array(key_size) * array(value_size) * array(element_size))


def convolution_state_size(
    key_width: Numeric, value_width: Numeric, convolution: Numeric, element_size: Numeric
) -> Array:
    r"""State of the short convolution per sequence and layer: its last inputs.

    .. math:: S = (c - 1) (2 k + v) e

    Parameters
    ----------
    key_width : numeric
        Width k of all key heads on this accelerator. [-]
    value_width : numeric
        Width v of all value heads on it. [-]
    convolution : numeric
        Tokens c that the convolution sees. [-]
    element_size : numeric
        Bytes e of an activation. [B]

    Returns
    -------
    size : numeric
        State, the same at every context. [B]

    References
    ----------
    .. [1] A. Gu and T. Dao, "Mamba: linear-time sequence modeling with selective state spaces", 2023,
       arXiv:2312.00752, section 3.4.

    3 tokens x (2 x 2 + 4) channels x 2 bytes:

    >>> float(convolution_state_size(2.0, 4.0, 4.0, 2.0))
    48.0
    """
    channels = 2.0 * array(key_width) + array(value_width)
    return np.asarray((array(convolution) - 1.0) * channels * array(element_size))


def chunk_scan_flop(tokens: Numeric, value_heads: Numeric, key_size: Numeric, value_size: Numeric) -> Array:
    r"""FLOP of a chunked scan of the gated delta rule (chunks of C tokens).

    Within a chunk products of keys, the solution of their triangle, keys and values carried through it, scores and
    outputs; with the state three products of all tokens: what it predicts, what it outputs, how it changes.

    .. math:: F = T n \left(6 C d_k + 4 C d_v + C^2 + 6 d_k d_v\right)

    Parameters
    ----------
    tokens : numeric
        Tokens T. [-]
    value_heads : numeric
        Value heads n on this accelerator. [-]
    key_size : numeric
        Width d_k of a key head. [-]
    value_size : numeric
        Width d_v of a value head. [-]

    Returns
    -------
    flop : numeric
        Operations of the forward pass, C being :data:`CHUNK`. [FLOP]

    References
    ----------
    .. [1] S. Yang et al., "Parallelizing linear transformers with the delta rule over sequence length", 2024,
       arXiv:2406.06484, section 3.2.

    64 x (6 + 4 + 64) + 6:

    >>> float(chunk_scan_flop(1.0, 1.0, 1.0, 1.0))
    4742.0
    """
    keys, values = array(key_size), array(value_size)
    inside = CHUNK * (6.0 * keys + 4.0 * values + CHUNK)
    return np.asarray(array(tokens) * array(value_heads) * (inside + 6.0 * keys * values))


def chunk_scan_traffic(
    tokens: Numeric,
    sequences: Numeric,
    value_heads: Numeric,
    key_size: Numeric,
    value_size: Numeric,
    element_size: Numeric,
    state_element_size: Numeric,
) -> Array:
    r"""Traffic of a chunked scan of the gated delta rule.

    Five kernels follow each other: products of keys; their triangle solved; keys and values carried through it; the
    states before each chunk; the outputs. Keys go by four times, queries once, carried keys twice, values once,
    carried and corrected values twice each, outputs once, states of chunks twice.

    .. math:: S = T n \left(e \left(7 d_k + 6 d_v + 2 C + 2 \frac{d_k d_v}{C}\right) + 2 C e_s\right)
        + 2 b n d_k d_v e_s

    Parameters
    ----------
    tokens : numeric
        Tokens T of all sequences. [-]
    sequences : numeric
        Sequences b whose state is read before and written after. [-]
    value_heads : numeric
        Value heads n on this accelerator. [-]
    key_size : numeric
        Width d_k of a key head. [-]
    value_size : numeric
        Width d_v of a value head. [-]
    element_size : numeric
        Bytes e of an activation. [B]
    state_element_size : numeric
        Bytes e_s of an element of a state that is kept, and of products of keys before their triangle is solved. [B]

    Returns
    -------
    traffic : numeric
        Bytes of the forward pass, C being :data:`CHUNK`. [B]

    References
    ----------
    .. [1] S. Yang and Y. Zhang, "FLA: a Triton-based library for hardware-efficient implementations of linear
       attention mechanism", 2024, github.com/fla-org/flash-linear-attention (kernels of the gated delta rule).

    7 + 6 + 2 x 64 + 2 / 64, no state kept:

    >>> float(chunk_scan_traffic(1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0))
    141.03
    """
    keys, values = array(key_size), array(value_size)
    elements = 7.0 * keys + 6.0 * values + 2.0 * CHUNK + 2.0 * keys * values / CHUNK
    each = elements * array(element_size) + 2.0 * CHUNK * array(state_element_size)
    states = 2.0 * array(sequences) * recurrent_state_size(value_heads, key_size, value_size, state_element_size)
    return np.asarray(array(tokens) * array(value_heads) * each + states)


def state_space_scan_flop(
    tokens: Numeric, value_heads: Numeric, key_heads: Numeric, key_size: Numeric, value_size: Numeric
) -> Array:
    r"""FLOP of a chunked Mamba-2 scan: scores of each group, outputs and states of each head.

    .. math:: F = T \left(2 C m d_k + n \left(2 C d_v + 4 d_k d_v\right)\right)

    Parameters
    ----------
    tokens : numeric
        Tokens T. [-]
    value_heads : numeric
        Heads n on this accelerator. [-]
    key_heads : numeric
        Groups m on it, each with projections into and out of the state. [-]
    key_size : numeric
        Width d_k of the state. [-]
    value_size : numeric
        Width d_v of a head. [-]

    Returns
    -------
    flop : numeric
        Operations of the forward pass, C being :data:`STATE_SPACE_CHUNK`. [FLOP]

    References
    ----------
    .. [1] T. Dao and A. Gu, "Transformers are SSMs: generalized models and efficient algorithms through structured
       state space duality", 2024, arXiv:2405.21060, section 6.

    2 x 128 for the scores, 2 x 128 + 4 for a head:

    >>> float(state_space_scan_flop(1.0, 1.0, 1.0, 1.0, 1.0))
    516.0
    """
    chunk, keys, values = STATE_SPACE_CHUNK, array(key_size), array(value_size)
    heads = array(value_heads) * (2.0 * chunk * values + 4.0 * keys * values)
    return np.asarray(array(tokens) * (2.0 * chunk * array(key_heads) * keys + heads))


def state_space_scan_traffic(
    tokens: Numeric,
    sequences: Numeric,
    value_heads: Numeric,
    key_heads: Numeric,
    key_size: Numeric,
    value_size: Numeric,
    element_size: Numeric,
    state_element_size: Numeric,
) -> Array:
    r"""Traffic of a chunked Mamba-2 scan.

    States of chunks are made from inputs, passed on, and read by the outputs with inputs and scores of each group:
    inputs twice, outputs once; projections into the state twice and out of it twice; states of chunks four times;
    scores twice.

    .. math:: S = T \left(e \left(3 n d_v + 4 m d_k\right) + e_s \left(4 \frac{n d_k d_v}{C} + 2 C m\right)\right)
        + 2 b n d_k d_v e_s

    Parameters
    ----------
    tokens : numeric
        Tokens T of all sequences. [-]
    sequences : numeric
        Sequences b whose state is read before and written after. [-]
    value_heads : numeric
        Heads n on this accelerator. [-]
    key_heads : numeric
        Groups m on it. [-]
    key_size : numeric
        Width d_k of the state. [-]
    value_size : numeric
        Width d_v of a head. [-]
    element_size : numeric
        Bytes e of an activation. [B]
    state_element_size : numeric
        Bytes e_s of an element of a state. [B]

    Returns
    -------
    traffic : numeric
        Bytes of the forward pass, C being :data:`STATE_SPACE_CHUNK`. [B]

    References
    ----------
    .. [1] T. Dao and A. Gu, "Transformers are SSMs: generalized models and efficient algorithms through structured
       state space duality", 2024, arXiv:2405.21060, section 6.

    3 of the head and 4 of its group, no state kept:

    >>> float(state_space_scan_traffic(1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0))
    7.0
    """
    heads, groups, keys, values = array(value_heads), array(key_heads), array(key_size), array(value_size)
    inputs = array(element_size) * (3.0 * heads * values + 4.0 * groups * keys)
    between = 4.0 * heads * keys * values / STATE_SPACE_CHUNK + 2.0 * STATE_SPACE_CHUNK * groups
    states = 2.0 * array(sequences) * recurrent_state_size(heads, keys, values, state_element_size)
    return np.asarray(array(tokens) * (inputs + array(state_element_size) * between) + states)


def recurrent_step_flop(tokens: Numeric, value_heads: Numeric, key_size: Numeric, value_size: Numeric) -> Array:
    r"""FLOP of the recurrent delta rule per decode step: decay, prediction, state update, output.

    .. math:: F = 7 T n d_k d_v

    Parameters
    ----------
    tokens : numeric
        Tokens T. [-]
    value_heads : numeric
        Value heads n on this accelerator. [-]
    key_size : numeric
        Width d_k of a key head. [-]
    value_size : numeric
        Width d_v of a value head. [-]

    Returns
    -------
    flop : numeric
        Operations of the vector units. [FLOP]

    References
    ----------
    .. [1] S. Yang, J. Kautz and A. Hatamizadeh, "Gated delta networks: improving Mamba2 with delta rule", 2024,
       arXiv:2412.06464, equation 10.

    7 x 2 x 3 x 4 x 5:

    >>> float(recurrent_step_flop(2.0, 3.0, 4.0, 5.0))
    840.0
    """
    return np.asarray(7.0 * array(tokens) * array(value_heads) * array(key_size) * array(value_size))


def recurrent_step_traffic(
    sequences: Numeric,
    tokens_per_sequence: Numeric,
    value_heads: Numeric,
    key_heads: Numeric,
    key_size: Numeric,
    value_size: Numeric,
    element_size: Numeric,
    state_element_size: Numeric,
) -> Array:
    r"""Traffic of the recurrent delta rule in a decode step.

    The state of each sequence is read once and written after each of its tokens: a draft that is refused goes back
    to the state before it.

    .. math:: S = b \left((1 + t)\, n d_k d_v e_s + 2 t e (m d_k + n d_v)\right)

    Parameters
    ----------
    sequences : numeric
        Sequences b. [-]
    tokens_per_sequence : numeric
        Tokens t of each: 1, and those drafted. [-]
    value_heads : numeric
        Value heads n on this accelerator. [-]
    key_heads : numeric
        Query and key heads m on it. [-]
    key_size : numeric
        Width d_k of a key head. [-]
    value_size : numeric
        Width d_v of a value head. [-]
    element_size : numeric
        Bytes e of an activation. [B]
    state_element_size : numeric
        Bytes e_s of an element of the state. [B]

    Returns
    -------
    traffic : numeric
        Bytes read and written. [B]

    References
    ----------
    .. [1] S. Yang, J. Kautz and A. Hatamizadeh, "Gated delta networks: improving Mamba2 with delta rule", 2024,
       arXiv:2412.06464, equation 10.

    The state of 2 x 3 x 4 bytes read and written, 2 x 2 x (2 + 3) bytes in and out:

    >>> float(recurrent_step_traffic(1.0, 1.0, 1.0, 1.0, 2.0, 3.0, 2.0, 4.0))
    68.0
    """
    tokens, values = array(tokens_per_sequence), array(value_heads) * array(value_size)
    state = recurrent_state_size(value_heads, key_size, value_size, state_element_size)
    inputs = 2.0 * tokens * array(element_size) * (array(key_heads) * array(key_size) + values)
    return np.asarray(array(sequences) * ((1.0 + tokens) * state + inputs))


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
