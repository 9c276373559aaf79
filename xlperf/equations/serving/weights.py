"""Weights of a serving rank: of its layers, of its share of a table, and what of them lies in the host's memory."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from xlperf.base.arrays import Array, ceil_div
from xlperf.equations.hardware.roofline import WIDE
from xlperf.equations.model.blocks import EXPERTS, FEED_FORWARD, INDEX, Block, Operator, Shard, weights
from xlperf.equations.model.layers import layer_blocks
from xlperf.equations.model.model import Architecture, Model, linear_share
from xlperf.equations.model.operators import (
    embedding_parameters,
    layer_shares,
    layer_vector_parameters,
    linear_vector_parameters,
    part_of,
)
from xlperf.equations.plan.serving_plan import InferencePlan, LayerPart
from xlperf.equations.serving.deployment import Deployment
from xlperf.equations.serving.kernels import wide_attention


@cache
def _by_width(block: Block) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
    """Products of a block with weights in the precision of the plan, and in 16 bits."""
    if block is INDEX:
        return block.operators, ()
    wide = tuple(operator for operator in block.operators if block.served(operator) == WIDE)
    return tuple(operator for operator in block.operators if operator not in wide), wide


def _layer_weights(
    shard: Shard, plan: InferencePlan, architecture: Architecture, blocks: tuple[Block, ...]
) -> tuple[Array, Array]:
    """GEMM weights of blocks of a mean layer on one rank, (rows,): in the precision of the plan, and in 16 bits. [-]"""
    model, shares = shard.model, layer_shares(shard.model, architecture)
    attends, feeds = computed_share(plan, LayerPart.ATTENTION), computed_share(plan, LayerPart.EXPERTS)
    wide_layers = wide_attention(model, plan, architecture)
    low, wide = np.zeros(()), np.zeros(())
    for block in blocks:
        share = shares.of(block.place) * (feeds if block in FEED_FORWARD else attends)
        if block is EXPERTS:
            share = share * ceil_div(model.num_experts + plan.redundant_experts, plan.expert_parallel)
        narrow_products, wide_products = _by_width(block)
        if wide_products:
            wide = wide + share * weights(block, shard, wide_products)
        if narrow_products:
            held = share * weights(block, shard, narrow_products)
            if block.place in ("attention", "linear"):
                wide, held = wide + np.where(wide_layers, held, 0.0), np.where(wide_layers, 0.0, held)
            low = low + held
    return np.asarray(low), np.asarray(wide)


def _layer_weights_by_part(
    shard: Shard, plan: InferencePlan, architecture: Architecture, blocks: tuple[Block, ...]
) -> Array:
    """GEMM weights of blocks of a mean layer on one rank, each part in its own precision, (rows,). [B]"""
    model, shares = shard.model, layer_shares(shard.model, architecture)
    attends, feeds = computed_share(plan, LayerPart.ATTENTION), computed_share(plan, LayerPart.EXPERTS)
    size = np.zeros(())
    for block in blocks:
        share = shares.of(block.place) * (feeds if block in FEED_FORWARD else attends)
        if block is EXPERTS:
            share = share * ceil_div(model.num_experts + plan.redundant_experts, plan.expert_parallel)
        for products, narrow in zip(_by_width(block), (True, False), strict=True):
            if products:
                sizes = plan.part_sizes(part_of(block, products[0], architecture)) if narrow else None
                stored = plan.activation_size if not narrow else plan.weight_size if sizes is None else sizes[0]
                size = size + share * weights(block, shard, products) * stored
    return np.asarray(size)


def computed_share(plan: InferencePlan, part: float) -> Array | float:
    """1 if a pool computes a part of its layers, else 0, (rows,); 1 if every pool computes all. [-]"""
    own = plan.computes(part)
    return 1.0 if own is None else own


def _layer_small_parameters(shard: Shard, architecture: Architecture) -> Array:
    """Scales and biases of a mean layer on one rank, (rows,). [-]"""
    model = shard.model
    attention = layer_vector_parameters(shard, model.query_key_norm)
    if not architecture.counted:
        return attention
    without = layer_vector_parameters(shard, 0.0)
    attended = model.num_attention_layers / model.num_layers
    norms = (2.0 - model.num_blocks) * (1.0 + model.layer_norm) * model.hidden_size
    linear = linear_share(model) * linear_vector_parameters(shard)
    return np.asarray(attended * attention + (1.0 - attended) * without - norms + linear)


def rank_weights_size(model: Model, plan: InferencePlan, architecture: Architecture) -> Array:
    """Weights of the fullest rank, (rows,): its layers, those of its draft module, and its share of one table. [B]"""
    stages = plan.pipeline_parallel
    layers = np.ceil(model.num_layers / stages) + plan.layers_drafted
    shard = Shard(model, plan.attention_parallel, plan.expert_tensor_parallel)
    small = _layer_small_parameters(shard, architecture)
    # A first and a last stage that are not the same hold one table each, tied or not.
    tied = np.where(stages > 1.0, 1.0, model.tied_embeddings)
    tables = embedding_parameters(model, tied)
    blocks = layer_blocks(architecture)[:-1]  # all but the output projection
    narrow, wide = _layer_weights(shard, plan, architecture, blocks)
    attends = computed_share(plan, LayerPart.ATTENTION)
    small, tables = small * attends, tables * attends
    layer = narrow * plan.weight_size + (small + wide) * plan.activation_size
    size = np.asarray(layers * layer + tables * plan.activation_size / plan.attention_parallel)
    own = plan.part_sizes("head")
    if own is None:
        return size
    # Embeddings stay in 16 bits; an output projection of its own has the precision of the checkpoint's.
    layer = _layer_weights_by_part(shard, plan, architecture, blocks) + small * plan.activation_size
    output = np.where(tied > 0.0, 0.0, embedding_parameters(model, np.ones_like(tied))) * attends
    of_tables = (tables - output) * plan.activation_size + output * own[0]
    return np.where(np.isnan(own[0]), size, layers * layer + of_tables / plan.attention_parallel)


def host_weights_size(model: Model, plan: InferencePlan, architecture: Architecture) -> Array:
    """GEMM weights of the fullest rank that lie in the host's memory, (rows,). [B]

    Half of the experts of a layer of 64 M weights in 16 bits:

    >>> from ideal_machine import deployment, experts
    >>> served = deployment(experts(), host_experts_share=0.5)
    >>> host_weights_size(served.model, served.plan, served.architecture).tolist()
    [64000000.0]
    """
    layers = np.ceil(model.num_layers / plan.pipeline_parallel) + plan.layers_drafted
    shard = Shard(model, plan.attention_parallel, plan.expert_tensor_parallel)

    def size(blocks: tuple[Block, ...]) -> Array:
        narrow, wide = _layer_weights(shard, plan, architecture, blocks)
        layer, own = narrow * plan.weight_size + wide * plan.activation_size, plan.part_sizes("head")
        if own is not None:
            layer = np.where(np.isnan(own[0]), layer, _layer_weights_by_part(shard, plan, architecture, blocks))
        return np.asarray(layers * layer)

    blocks = layer_blocks(architecture)[:-1]
    others = plan.host_weights_share * size(tuple(block for block in blocks if block is not EXPERTS))
    return np.asarray(plan.host_experts_share * size((EXPERTS,)) + others if EXPERTS in blocks else others)


def with_stated_host_weights(deployment: Deployment) -> Deployment:
    """Plans whose bytes of weights in the host's memory are shares of all weights of the layers."""
    plan, ones = deployment.plan, np.ones(len(deployment.plan))
    if np.isnan(plan.host_weights).all():
        return deployment
    every = plan.replaced(host_experts_share=ones, host_weights_share=ones)
    share = np.minimum(plan.host_weights / host_weights_size(deployment.model, every, deployment.architecture), 1.0)
    experts = np.where(deployment.model.num_experts > 0.0, share, 0.0)
    stated = ~np.isnan(plan.host_weights)
    shares = {"host_experts_share": experts, "host_weights_share": share}
    columns = {name: np.where(stated, values, getattr(plan, name)) for name, values in shares.items()}
    return replace(deployment, plan=plan.replaced(**columns))
