"""Blocks of the layers of a model, by its architecture."""

from __future__ import annotations

from functools import cache

from xlperf.equations.model.attention_blocks import ADDITIONS, UNLIKE
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
)
from xlperf.equations.model.linear_kinds import KINDS
from xlperf.equations.model.model import Architecture


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
