"""Blocks of the layers of a model, by its architecture."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from xlperf.base.arrays import Array, divide, some
from xlperf.equations.model.blocks import (
    EXPERTS,
    HEAD,
    INDEX,
    LATENT,
    LATENT_SPACE,
    MLP,
    PLAIN,
    ROUTER,
    SHARED_EXPERT,
    SHARED_VECTOR,
    Block,
    Operator,
    Shard,
    positive,
)
from xlperf.equations.model.linear_attention import KINDS
from xlperf.equations.model.model import Architecture, Model


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


def _local_qkv(model: Model, shard: Shard) -> Array:
    return _unlike_qkv(shard.local.model, shard.local)


def _local_values(model: Model, shard: Shard) -> Array:
    return _values(shard.local.model, shard.local)


def _embedded(model: Model, shard: Shard) -> Array:
    return np.maximum(model.per_layer_size, 1.0)


_EMBEDS = positive(lambda m: m.per_layer_size)

# fmt: off
# Layers with a window have heads of their own (Gemma 4, MiMo-V2).
UNLIKE = Block("attention", (
    Operator("qkv", _unlike_qkv, _hidden, _unlike_qkv, layers=_of_global),
    Operator("attention output", _hidden, _values, _values, layers=_of_global),
    Operator("local qkv", _local_qkv, _hidden, _local_qkv, layers=_of_local),
    Operator("local attention output", _hidden, _local_values, _local_values, layers=_of_local),
))
# An output gate; an embedding of each layer, projected from the token's, gated and added (Gemma 3n, Gemma 4).
ADDITIONS = Block("attention", (
    Operator("attention gate", lambda m, s: np.maximum(m.latent_gate / s.ranks, 1.0), _hidden,
             lambda m, s: m.latent_gate / s.ranks, exists=positive(lambda m: m.latent_gate)),
    Operator("layer embedding", _embedded, _hidden, lambda m, s: m.per_layer_size, exists=_EMBEDS),
    Operator("layer embedding gate", _embedded, _hidden, lambda m, s: m.per_layer_size, exists=_EMBEDS),
    Operator("layer embedding output", _hidden, _embedded, lambda m, s: m.per_layer_size, exists=_EMBEDS),
))
# fmt: on


def attention_of(model: Model, formula: Callable[[Block], Array]) -> Array:
    """A quantity of the attention block of each model, (rows,): plain, latent, of a shared vector or of two shapes."""
    result = formula(PLAIN)
    kinds = ((LATENT, model.latent_attention), (SHARED_VECTOR, model.shared_key_value), (UNLIKE, model.local_heads))
    for block, mask in kinds:
        if some(mask):
            result = np.where(mask > 0.0, formula(block), result)
    added = model.latent_gate + model.per_layer_size
    return np.where(added > 0.0, result + formula(ADDITIONS), result) if some(added) else result


@cache
def layer_blocks(architecture: Architecture) -> tuple[Block, ...]:
    """Blocks of the layers and the output projection, for the models of an architecture."""
    attention = LATENT if architecture.latent_attention else UNLIKE if architecture.shapes else PLAIN
    blocks = (
        (SHARED_VECTOR if architecture.shared_key_value else attention, True),
        (ADDITIONS, architecture.additions),
        (INDEX, architecture.sparse_attention),
        (KINDS[architecture.linear_kind].block, architecture.linear_attention),
        (MLP, True),
        (EXPERTS, architecture.experts),
        (SHARED_EXPERT, architecture.experts),
        (ROUTER, architecture.experts),
        (LATENT_SPACE, architecture.latent_experts),
        (HEAD, True),
    )
    return tuple(block for block, exists in blocks if exists)
