"""Linear attention (gated delta net) and state spaces (Mamba-2): recurrent state, scan in chunks, decode step.

Each value head keeps a state of key width x value width. Decoding reads and writes it once per token, whatever the
context. A prompt is cut into chunks, within which tokens attend to each other by matrix products; the state passes
from chunk to chunk, one after the other. Projections and the short convolution are counted separately.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ceil_div, some
from xlperf.equations.hardware.roofline import WIDE
from xlperf.equations.model.blocks import LINEAR, Block, Operator, Shape, Shard
from xlperf.equations.model.model import Model

CHUNK = 64.0  # tokens of a chunk in the published kernels (flash-linear-attention, which vLLM and SGLang carry)
STATE_SPACE_CHUNK = 128.0
"""Tokens of a chunk of Mamba-2 (chunk_size in the configurations of Nemotron-H and Nemotron 3)."""


def recurrent_state_size(value_heads: Numeric, key_size: Numeric, value_size: Numeric, element_size: Numeric) -> Array:
    r"""Recurrent state per sequence and layer.

    .. math:: S = n d_k d_v e

    Source: S. Yang, J. Kautz and A. Hatamizadeh, "Gated delta networks: improving Mamba2 with delta rule", 2024,
    arXiv:2412.06464, equation 10.

    >>> float(recurrent_state_size(64.0, 128.0, 128.0, 4.0)) / 2**20
    4.0

    Parameters
    ----------
    value_heads : Value heads n on this accelerator. [-]
    key_size : Width d_k of a key head. [-]
    value_size : Width d_v of a value head. [-]
    element_size : Bytes e of an element of the state. [B]

    Returns
    -------
    size : State, the same at every context. [B]
    """
    return np.asarray(array(value_heads) * array(key_size) * array(value_size) * array(element_size))


def chunk_scan_flop(tokens: Numeric, value_heads: Numeric, key_size: Numeric, value_size: Numeric) -> Array:
    r"""FLOP of a chunked scan of the gated delta rule (chunks of C tokens).

    Within a chunk products of keys, the solution of their triangle, keys and values carried through it, scores and
    outputs; with the state three products of all tokens: what it predicts, what it outputs, how it changes.

    .. math:: F = T n \left(6 C d_k + 4 C d_v + C^2 + 6 d_k d_v\right)

    Source: S. Yang et al., "Parallelizing linear transformers with the delta rule over sequence length", 2024,
    arXiv:2406.06484, section 3.2.

    >>> float(chunk_scan_flop(1.0, 1.0, 1.0, 1.0))  # 64 x (6 + 4 + 64) + 6
    4742.0

    Parameters
    ----------
    tokens : Tokens T. [-]
    value_heads : Value heads n on this accelerator. [-]
    key_size : Width d_k of a key head. [-]
    value_size : Width d_v of a value head. [-]

    Returns
    -------
    flop : Operations of the forward pass, C being :data:`CHUNK`. [FLOP]
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

    Source: S. Yang and Y. Zhang, "FLA: a Triton-based library for hardware-efficient implementations of linear
    attention mechanism", 2024, github.com/fla-org/flash-linear-attention (kernels of the gated delta rule).

    >>> float(chunk_scan_traffic(1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0))  # 7 + 6 + 2 x 64 + 2 / 64, no state kept
    141.03

    Parameters
    ----------
    tokens : Tokens T of all sequences. [-]
    sequences : Sequences b whose state is read before and written after. [-]
    value_heads : Value heads n on this accelerator. [-]
    key_size : Width d_k of a key head. [-]
    value_size : Width d_v of a value head. [-]
    element_size : Bytes e of an activation. [B]
    state_element_size : Bytes e_s of an element of a state that is kept, and of products of keys before their triangle
        is solved. [B]

    Returns
    -------
    traffic : Bytes of the forward pass, C being :data:`CHUNK`. [B]
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

    Source: T. Dao and A. Gu, "Transformers are SSMs: generalized models and efficient algorithms through structured
    state space duality", 2024, arXiv:2405.21060, section 6.

    >>> float(state_space_scan_flop(1.0, 1.0, 1.0, 1.0, 1.0))  # 2 x 128 for the scores, 2 x 128 + 4 for a head
    516.0

    Parameters
    ----------
    tokens : Tokens T. [-]
    value_heads : Heads n on this accelerator. [-]
    key_heads : Groups m on it, each with projections into and out of the state. [-]
    key_size : Width d_k of the state. [-]
    value_size : Width d_v of a head. [-]

    Returns
    -------
    flop : Operations of the forward pass, C being :data:`STATE_SPACE_CHUNK`. [FLOP]
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

    Source: T. Dao and A. Gu, "Transformers are SSMs: generalized models and efficient algorithms through structured
    state space duality", 2024, arXiv:2405.21060, section 6.

    3 of the head and 4 of its group, no state kept:

    >>> float(state_space_scan_traffic(1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0))
    7.0

    Parameters
    ----------
    tokens : Tokens T of all sequences. [-]
    sequences : Sequences b whose state is read before and written after. [-]
    value_heads : Heads n on this accelerator. [-]
    key_heads : Groups m on it. [-]
    key_size : Width d_k of the state. [-]
    value_size : Width d_v of a head. [-]
    element_size : Bytes e of an activation. [B]
    state_element_size : Bytes e_s of an element of a state. [B]

    Returns
    -------
    traffic : Bytes of the forward pass, C being :data:`STATE_SPACE_CHUNK`. [B]
    """
    heads, groups, keys, values = array(value_heads), array(key_heads), array(key_size), array(value_size)
    inputs = array(element_size) * (3.0 * heads * values + 4.0 * groups * keys)
    between = 4.0 * heads * keys * values / STATE_SPACE_CHUNK + 2.0 * STATE_SPACE_CHUNK * groups
    states = 2.0 * array(sequences) * recurrent_state_size(heads, keys, values, state_element_size)
    return np.asarray(array(tokens) * (inputs + array(state_element_size) * between) + states)


def recurrent_step_flop(tokens: Numeric, value_heads: Numeric, key_size: Numeric, value_size: Numeric) -> Array:
    r"""FLOP of the recurrent delta rule per decode step: decay, prediction, state update, output.

    .. math:: F = 7 T n d_k d_v

    Source: S. Yang, J. Kautz and A. Hatamizadeh, "Gated delta networks: improving Mamba2 with delta rule", 2024,
    arXiv:2412.06464, equation 10.

    >>> float(recurrent_step_flop(2.0, 3.0, 4.0, 5.0))  # 7 x 2 x 3 x 4 x 5
    840.0

    Parameters
    ----------
    tokens : Tokens T. [-]
    value_heads : Value heads n on this accelerator. [-]
    key_size : Width d_k of a key head. [-]
    value_size : Width d_v of a value head. [-]

    Returns
    -------
    flop : Operations of the vector units. [FLOP]
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

    Source: S. Yang, J. Kautz and A. Hatamizadeh, "Gated delta networks: improving Mamba2 with delta rule", 2024,
    arXiv:2412.06464, equation 10.

    The state of 2 x 3 x 4 bytes read and written, 2 x 2 x (2 + 3) bytes in and out:

    >>> float(recurrent_step_traffic(1.0, 1.0, 1.0, 1.0, 2.0, 3.0, 2.0, 4.0))
    68.0

    Parameters
    ----------
    sequences : Sequences b. [-]
    tokens_per_sequence : Tokens t of each: 1, and those drafted. [-]
    value_heads : Value heads n on this accelerator. [-]
    key_heads : Query and key heads m on it. [-]
    key_size : Width d_k of a key head. [-]
    value_size : Width d_v of a value head. [-]
    element_size : Bytes e of an activation. [B]
    state_element_size : Bytes e_s of an element of the state. [B]

    Returns
    -------
    traffic : Bytes read and written. [B]
    """
    tokens, values = array(tokens_per_sequence), array(value_heads) * array(value_size)
    state = recurrent_state_size(value_heads, key_size, value_size, state_element_size)
    inputs = 2.0 * tokens * array(element_size) * (array(key_heads) * array(key_size) + values)
    return np.asarray(array(sequences) * ((1.0 + tokens) * state + inputs))


_BACKWARD_WORK, _BACKWARD_CHUNKS = 2.5, 2.0


class Scan(NamedTuple):
    """Work of a scan in chunks, (rows,)."""

    flop: Array  # operations of the matrix units [FLOP]
    traffic: Array  # bytes read and written [B]
    chunks: Array  # consecutive chunks of a sequence [-]


def chunked_scan(shard: Shard, tokens: Array, sequences: Array, length: Array, element_size: Array) -> Scan:
    """Forward scan of one block of linear attention over a pass on a rank, of the kind of its model. ``sequences``:
    sequences whose state is read before and written after. ``length``: consecutive tokens of a sequence in the pass.
    [-] ``element_size``: bytes of an activation. [B]
    """
    model, heads = shard.model, shard.value_heads
    sizes = (model.linear_key_size, model.linear_value_size)
    flop = chunk_scan_flop(tokens, heads, *sizes)
    bytes_of = (element_size, model.linear_state_size)
    traffic = chunk_scan_traffic(tokens, sequences, heads, *sizes, *bytes_of)
    chunk = np.full_like(tokens, CHUNK)
    space = model.state_space > 0.0
    if some(space):
        other = state_space_scan(shard, tokens, sequences, length, element_size)
        flop, traffic = np.where(space, other.flop, flop), np.where(space, other.traffic, traffic)
        chunk = np.where(space, STATE_SPACE_CHUNK, chunk)
    return Scan(flop, traffic, ceil_div(length, chunk))


def state_space_scan(shard: Shard, tokens: Array, sequences: Array, length: Array, element_size: Array) -> Scan:
    """Forward scan with one decay per head, Mamba-2 or lightning attention; arguments as in :func:`chunked_scan`."""
    model, heads, groups = shard.model, shard.value_heads, shard.split(shard.model.linear_key_heads)
    sizes = (model.linear_key_size, model.linear_value_size)
    flop = state_space_scan_flop(tokens, heads, groups, *sizes)
    bytes_of = (element_size, model.linear_state_size)
    traffic = state_space_scan_traffic(tokens, sequences, heads, groups, *sizes, *bytes_of)
    return Scan(flop, traffic, ceil_div(length, STATE_SPACE_CHUNK))


def scan_gradient(forward: Scan) -> Scan:
    """Work of the gradients of a scan.

    Scores and states of chunks are computed again, then each product of the forward pass has two: 2.5 times the work,
    as for flash attention. States pass through the chunks forwards, their gradients backwards (heuristic, this work:
    counted on the kernels of Mamba-2, 10 products with the state to 4, 4 within a chunk to 2).

    >>> scan_gradient(Scan(2.0, 4.0, 3.0))
    Scan(flop=5.0, traffic=10.0, chunks=6.0)
    """
    return Scan(_BACKWARD_WORK * forward.flop, _BACKWARD_WORK * forward.traffic, _BACKWARD_CHUNKS * forward.chunks)


_SCAN_FLOP = 9.0  # of Mamba-1 per channel and element of its state: discretisation, update, output [FLOP]
_SCAN_TENSORS = 4.0  # input, step, gate and output of a scan of Mamba-1 [-]
_SHIFTED = 14.0  # vectors as wide as the stream in a block of RWKV-7: mixes with the last token, decays, norms [-]


@dataclass(frozen=True)
class LinearKind:
    """One kind of block with a state."""

    name: str
    block: Block
    channels: Callable[[Shard], Array]  # inputs of the short convolution per token on a rank [-]
    vectors: Callable[[Shard], Array]  # weights outside products on a rank [-]
    scan: Callable[[Shard, Array, Array, Array, Array], Scan | None]  # as chunked_scan; None: selective_scan_work
    stateful: bool = True  # whether heads have states beside the last inputs of the convolution


def _hidden(model: Model, shard: Shard) -> Array:
    return model.hidden_size


def _values(model: Model, shard: Shard) -> Array:
    return shard.linear_values


def _rank(model: Model, shard: Shard) -> Array:
    return np.maximum(model.linear_rank, 1.0)


def _all_channels(shard: Shard) -> Array:
    return np.asarray(2.0 * shard.linear_keys + shard.linear_values)


def _value_channels(shard: Shard) -> Array:
    return shard.linear_values


_OUTPUT = Operator("linear attention output", _hidden, _values, lambda m, s: 2.0 * s.linear_values)


def _ranked(model: Model) -> Array:
    return np.where(model.linear_rank > 0.0, 1.0, 0.0)


def _input(width: Shape, saved: Shape) -> Operator:
    return Operator("linear attention input", width, _hidden, saved)


def _low_rank(saved: float) -> tuple[Operator, Operator]:
    """Low-rank gates: all of them down to their ranks together, and up to the width of the values."""
    expansion = Operator("linear attention gate expansion", _values, _rank, lambda m, s: saved * s.linear_values)
    return (
        Operator("linear attention gate compression", _rank, _hidden, _rank, exists=_ranked),
        expansion._replace(exists=_ranked),
    )


def _original_vectors(shard: Shard) -> Array:
    """Convolution, decay of each head, gated norm; of Mamba-2 also biases, skips, all scales (arXiv:2405.21060)."""
    model, more = shard.model, shard.model.state_space
    channels = 2.0 * shard.linear_keys + shard.linear_values
    norm = model.linear_value_size + more * (shard.linear_values - model.linear_value_size)
    return np.asarray((model.linear_convolution + more) * channels + (2.0 + more) * shard.value_heads + norm)


def _state_inputs(model: Model, shard: Shard) -> Array:
    return np.asarray(model.linear_rank + 2.0 * model.linear_key_size)


def _full_gates(model: Model) -> Array:
    """Gates of Kimi delta attention without a low rank: both, one, or none, by the ranks that are stated. [-]"""
    return np.asarray(2.0 - np.minimum(np.round(model.linear_rank / np.maximum(model.linear_key_size, 1.0)), 2.0))


def _keys_and_values(model: Model, shard: Shard) -> Array:
    return np.asarray(2.0 * (shard.linear_keys + shard.linear_values))


# fmt: off
ORIGINAL = LinearKind("gated delta net or Mamba-2", LINEAR, _all_channels, _original_vectors, chunked_scan)
MAMBA_1 = LinearKind(  # arXiv:2312.00752: a state of each channel; its inputs are projected from the channels
    "Mamba-1",
    Block("linear", (
        _input(lambda m, s: 2.0 * s.linear_values, lambda m, s: 3.0 * s.linear_values),
        Operator("state space inputs", _state_inputs, _values, _state_inputs),
        Operator("state space step", _values, _rank, _values),
        _OUTPUT,
    )),
    _value_channels,
    lambda s: (s.model.linear_convolution + 3.0 + s.model.linear_key_size) * s.linear_values,
    lambda *_: None,
)
KIMI_DELTA = LinearKind(  # arXiv:2510.26692: a decay for each channel of the keys, and an output gate, of low rank
    "Kimi delta attention",
    Block("linear", (
        _input(lambda m, s: 2.0 * s.linear_keys + (1.0 + _full_gates(m)) * s.linear_values,
               lambda m, s: 2.0 * _all_channels(s)),
        Operator("linear attention gates", lambda m, s: s.value_heads, _hidden, lambda m, s: s.value_heads,
                 served=WIDE),
        *_low_rank(2.0),
        _OUTPUT,
    )),
    _all_channels,
    lambda s: s.model.linear_convolution * _all_channels(s) + s.value_heads + s.linear_keys + s.model.linear_value_size,
    chunked_scan,
)
LIGHTNING = LinearKind(  # arXiv:2501.08313: fixed decays, an output gate
    "lightning attention", Block("linear", (_input(_keys_and_values, _keys_and_values), _OUTPUT)),
    lambda s: 0.0 * s.linear_values, _value_channels, state_space_scan,
)
RWKV_7 = LinearKind(  # arXiv:2503.14456: decay, learning rate, value mix and gate of low rank
    "RWKV-7",
    Block("linear", (
        _input(lambda m, s: _all_channels(s), lambda m, s: 2.0 * _all_channels(s)), *_low_rank(4.0), _OUTPUT)),
    lambda s: 2.0 * s.linear_values, lambda s: _SHIFTED * s.linear_values, chunked_scan,
)
SHORT_CONVOLUTION = LinearKind(  # LFM2, arXiv:2511.23404: a gated convolution alone
    "short convolution",
    Block("linear", (_input(lambda m, s: 3.0 * s.linear_values, lambda m, s: 4.0 * s.linear_values), _OUTPUT)),
    _value_channels, lambda s: s.model.linear_convolution * s.linear_values, lambda *_: None, stateful=False,
)
# fmt: on
KINDS = (ORIGINAL, MAMBA_1, KIMI_DELTA, LIGHTNING, RWKV_7, SHORT_CONVOLUTION)  # kinds by ``linear_kind`` of a model


def linear_of(model: Model, formula: Callable[[LinearKind], Array]) -> Array:
    """A quantity of the linear block of each model, by its kind, (rows,)."""
    result = formula(ORIGINAL)
    if not some(model.linear_kind):
        return result
    for code, kind in enumerate(KINDS[1:], 1):
        mask = model.linear_kind == code
        if some(mask):
            result = np.where(mask, formula(kind), result)
    return np.asarray(result)


def linear_state_size(shard: Shard, element_size: Array) -> Array:
    """State of the heads of a rank and the last inputs of its convolution (arXiv:2412.06464, section 3.4). [B]"""
    model = shard.model
    state = recurrent_state_size(
        shard.value_heads, model.linear_key_size, model.linear_value_size, model.linear_state_size
    )

    def of_kind(kind: LinearKind) -> Array:
        inputs = (model.linear_convolution - 1.0) * kind.channels(shard)
        return np.asarray((state if kind.stateful else 0.0) + inputs * element_size)

    return linear_of(model, of_kind)


def selective_scan_work(shard: Shard, tokens: Array, element_size: Array) -> tuple[Array, Array]:
    """FLOP and traffic of the scan of Mamba-1 token after token on chip; 0 for a convolution alone. [FLOP, B] The state
    stays on chip; input, step, gate and output of each channel move, and the inputs and outputs of the state
    (arXiv:2312.00752, section 3.3.2; 9 operations for each element of the state).
    """
    model = shard.model
    stateful = linear_of(model, lambda kind: np.full_like(tokens, float(kind.stateful)))
    flop = _SCAN_FLOP * tokens * shard.linear_values * model.linear_key_size
    moved = _SCAN_TENSORS * shard.linear_values + 2.0 * model.linear_key_size
    return np.asarray(stateful * flop), np.asarray(stateful * tokens * moved * element_size)
