"""Attention blocks of layers of unlike shapes, what some models add to attention, and the block of each model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from xlperf.base.arrays import Array, divide, some
from xlperf.equations.model.blocks import LATENT, PLAIN, SHARED_VECTOR, Block, Operator, Shard, positive
from xlperf.equations.model.model import Model


def _hidden(model: Model, shard: Shard) -> Array:
    return model.hidden_size


def _values(model: Model, shard: Shard) -> Array:
    return np.asarray(shard.heads * model.v_head_size)


def _unlike_qkv(model: Model, shard: Shard) -> Array:
    """Queries of every layer; keys and values of layers that project their own, or keys that are the values too."""
    queries = shard.heads * (1.0 + model.attention_gate) * model.qk_head_size
    groups = model.kv_share * shard.groups
    return np.asarray(queries + groups * (model.qk_head_size + model.value_projection * model.v_head_size))


def _of_local(model: Model) -> Array:
    return divide(model.num_local_layers, model.num_attention_layers)


def _of_global(model: Model) -> Array:
    return np.asarray(1.0 - _of_local(model))


UNLIKE = Block(  # layers with a window have heads of their own (Gemma 4, MiMo-V2)
    "attention",
    (
        Operator("qkv", _unlike_qkv, _hidden, _unlike_qkv, layers=_of_global),
        Operator("attention output", _hidden, _values, _values, layers=_of_global),
        Operator(
            "local qkv",
            lambda m, s: _unlike_qkv(s.local.model, s.local),
            _hidden,
            lambda m, s: _unlike_qkv(s.local.model, s.local),
            layers=_of_local,
        ),
        Operator(
            "local attention output",
            _hidden,
            lambda m, s: _values(s.local.model, s.local),
            lambda m, s: _values(s.local.model, s.local),
            layers=_of_local,
        ),
    ),
)


def _embedded(model: Model, shard: Shard) -> Array:
    return np.maximum(model.per_layer_size, 1.0)


_EMBEDS = positive(lambda m: m.per_layer_size)
ADDITIONS = Block(
    "attention",
    (
        Operator(
            "attention gate",
            lambda m, s: np.maximum(m.latent_gate / s.ranks, 1.0),
            _hidden,
            lambda m, s: m.latent_gate / s.ranks,
            exists=positive(lambda m: m.latent_gate),
        ),
        # An embedding of each layer, projected from the token's, gated and added (Gemma 3n, Gemma 4)
        Operator("layer embedding", _embedded, _hidden, lambda m, s: m.per_layer_size, exists=_EMBEDS),
        Operator("layer embedding gate", _embedded, _hidden, lambda m, s: m.per_layer_size, exists=_EMBEDS),
        Operator("layer embedding output", _hidden, _embedded, lambda m, s: m.per_layer_size, exists=_EMBEDS),
    ),
)


def attention_of(model: Model, formula: Callable[[Block], Array]) -> Array:
    """A quantity of the attention block of each model, (rows,): plain, latent, of a shared vector or of two shapes."""
    result = formula(PLAIN)
    kinds = ((LATENT, model.latent_attention), (SHARED_VECTOR, model.shared_key_value), (UNLIKE, model.local_heads))
    for block, mask in kinds:
        if some(mask):
            result = np.where(mask > 0.0, formula(block), result)
    added = model.latent_gate + model.per_layer_size
    return np.where(added > 0.0, result + formula(ADDITIONS), result) if some(added) else result
