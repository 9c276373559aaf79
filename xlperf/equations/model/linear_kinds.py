"""Blocks that mix tokens by a state of a fixed size, each kind declared once: products, weights, scan and state.

:data:`KINDS` lists them; ``linear_kind`` of a model is a position in the list. The first kind has the products of gated
delta net and Mamba-2, which ``state_space`` tells apart. A new kind is an entry here and a word in the attention
pattern of the sheet ``models``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from xlperf.base.arrays import Array, some
from xlperf.equations.hardware.roofline import WIDE
from xlperf.equations.model.blocks import LINEAR, Block, Operator, Shard
from xlperf.equations.model.linear_attention import Scan, chunked_scan, recurrent_state_size, state_space_scan
from xlperf.equations.model.model import Model

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


def _low_rank(saved: float) -> tuple[Operator, Operator]:
    """Low-rank gates: all of them down to their ranks together, and up to the width of the values."""
    return (
        Operator("linear attention gate compression", _rank, _hidden, _rank, exists=_ranked),
        Operator(
            "linear attention gate expansion", _values, _rank, lambda m, s: saved * s.linear_values, exists=_ranked
        ),
    )


def _original_vectors(shard: Shard) -> Array:
    """Convolution, decay of each head, gated norm; of Mamba-2 also biases, skips, all scales (arXiv:2405.21060)."""
    model, more = shard.model, shard.model.state_space
    channels = 2.0 * shard.linear_keys + shard.linear_values
    norm = model.linear_value_size + more * (shard.linear_values - model.linear_value_size)
    return np.asarray((model.linear_convolution + more) * channels + (2.0 + more) * shard.value_heads + norm)


ORIGINAL = LinearKind("gated delta net or Mamba-2", LINEAR, _all_channels, _original_vectors, chunked_scan)
MAMBA_1 = LinearKind(  # arXiv:2312.00752: a state of each channel; its inputs are projected from the channels
    "Mamba-1",
    Block(
        "linear",
        (
            Operator(
                "linear attention input",
                lambda m, s: 2.0 * s.linear_values,
                _hidden,
                lambda m, s: 3.0 * s.linear_values,
            ),
            Operator(
                "state space inputs",
                lambda m, s: m.linear_rank + 2.0 * m.linear_key_size,
                _values,
                lambda m, s: m.linear_rank + 2.0 * m.linear_key_size,
            ),
            Operator("state space step", _values, _rank, _values),
            _OUTPUT,
        ),
    ),
    _value_channels,
    lambda s: (s.model.linear_convolution + 3.0 + s.model.linear_key_size) * s.linear_values,
    lambda *_: None,
)


def _full_gates(model: Model) -> Array:
    """Gates of Kimi delta attention without a low rank: both, one, or none, by the ranks that are stated. [-]"""
    return np.asarray(2.0 - np.minimum(np.round(model.linear_rank / np.maximum(model.linear_key_size, 1.0)), 2.0))


KIMI_DELTA = LinearKind(  # arXiv:2510.26692: a decay for each channel of the keys, and an output gate, of low rank
    "Kimi delta attention",
    Block(
        "linear",
        (
            Operator(
                "linear attention input",
                lambda m, s: 2.0 * s.linear_keys + (1.0 + _full_gates(m)) * s.linear_values,
                _hidden,
                lambda m, s: 2.0 * _all_channels(s),
            ),
            Operator(
                "linear attention gates", lambda m, s: s.value_heads, _hidden, lambda m, s: s.value_heads, served=WIDE
            ),
            *_low_rank(2.0),
            _OUTPUT,
        ),
    ),
    _all_channels,
    lambda s: s.model.linear_convolution * _all_channels(s) + s.value_heads + s.linear_keys + s.model.linear_value_size,
    chunked_scan,
)
LIGHTNING = LinearKind(  # arXiv:2501.08313: fixed decays, an output gate
    "lightning attention",
    Block(
        "linear",
        (
            Operator(
                "linear attention input",
                lambda m, s: 2.0 * (s.linear_keys + s.linear_values),
                _hidden,
                lambda m, s: 2.0 * (s.linear_keys + s.linear_values),
            ),
            _OUTPUT,
        ),
    ),
    lambda s: 0.0 * s.linear_values,
    _value_channels,
    state_space_scan,
)
RWKV_7 = LinearKind(  # arXiv:2503.14456: decay, learning rate, value mix and gate of low rank
    "RWKV-7",
    Block(
        "linear",
        (
            Operator(
                "linear attention input", lambda m, s: _all_channels(s), _hidden, lambda m, s: 2.0 * _all_channels(s)
            ),
            *_low_rank(4.0),
            _OUTPUT,
        ),
    ),
    lambda s: 2.0 * s.linear_values,
    lambda s: _SHIFTED * s.linear_values,
    chunked_scan,
)
SHORT_CONVOLUTION = LinearKind(  # LFM2, arXiv:2511.23404: a gated convolution alone
    "short convolution",
    Block(
        "linear",
        (
            Operator(
                "linear attention input",
                lambda m, s: 3.0 * s.linear_values,
                _hidden,
                lambda m, s: 4.0 * s.linear_values,
            ),
            _OUTPUT,
        ),
    ),
    _value_channels,
    lambda s: s.model.linear_convolution * s.linear_values,
    lambda *_: None,
    stateful=False,
)
KINDS = (ORIGINAL, MAMBA_1, KIMI_DELTA, LIGHTNING, RWKV_7, SHORT_CONVOLUTION)
"""Kinds by ``linear_kind`` of a model."""


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
    """FLOP and traffic of the scan of Mamba-1 token after token on chip; 0 for a convolution alone. [FLOP, B]

    The state stays on chip; input, step, gate and output of each channel move, and the inputs and outputs of the state
    (arXiv:2312.00752, section 3.3.2; 9 operations for each element of the state).
    """
    model = shard.model
    stateful = linear_of(model, lambda kind: np.full_like(tokens, float(kind.stateful)))
    flop = _SCAN_FLOP * tokens * shard.linear_values * model.linear_key_size
    moved = _SCAN_TENSORS * shard.linear_values + 2.0 * model.linear_key_size
    return np.asarray(stateful * flop), np.asarray(stateful * tokens * moved * element_size)
