"""Weights of a serving rank: of its layers, of its share of a table, and the time of what lies in the host's memory.

Processors multiply weights of the host there, or the link moves them to the accelerator each step.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from xlperf.base.arrays import Array, ceil_div, side_by_side, total
from xlperf.equations.hardware.roofline import WIDE, exposed_offload_time
from xlperf.equations.model import operators
from xlperf.equations.model.blocks import EXPERTS, FEED_FORWARD, Block, Operator, Shard, weights
from xlperf.equations.model.layers import layer_blocks
from xlperf.equations.model.model import Architecture, Model, linear_share
from xlperf.equations.plan.records import HostCompute, HostExperts
from xlperf.equations.plan.serving_plan import InferencePlan, LayerPart
from xlperf.equations.serving.deployment import Deployment
from xlperf.equations.serving.kernels import KernelTimes, by_phase, stored_sizes, wide_attention


@cache
def _by_width(block: Block) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
    """Products of a block with weights in the precision of the plan, and in 16 bits."""
    wide = tuple(operator for operator in block.operators if block.served(operator) == WIDE)
    return tuple(operator for operator in block.operators if operator not in wide), wide


def _block_shares(model: Model, plan: InferencePlan, architecture: Architecture, block: Block) -> Array:
    """Blocks of a kind on a rank per layer: layers that have it, in pools that compute it, times its experts. [-]"""
    part = LayerPart.EXPERTS if block in FEED_FORWARD else LayerPart.ATTENTION
    share = operators.layer_shares(model, architecture).of(block.place) * computed_share(plan, part)
    if block is EXPERTS:
        share = share * ceil_div(model.num_experts + plan.redundant_experts, plan.expert_parallel)
    return np.asarray(share)


def _layer_weights(
    shard: Shard, plan: InferencePlan, architecture: Architecture, blocks: tuple[Block, ...]
) -> tuple[Array, Array]:
    """GEMM weights of blocks of a mean layer on one rank, (rows,): in the precision of the plan, and in 16 bits. [-]"""
    model, narrow, wide = shard.model, np.zeros(()), np.zeros(())
    wide_layers = wide_attention(model, plan, architecture)
    for block in blocks:
        share = _block_shares(model, plan, architecture, block)
        narrow_products, wide_products = _by_width(block)
        if wide_products:
            wide = wide + share * weights(block, shard, wide_products)
        if narrow_products:
            number = share * weights(block, shard, narrow_products)
            if block.place in ("attention", "linear"):  # attention layers may stay in 16 bits
                wide, number = wide + np.where(wide_layers, number, 0.0), np.where(wide_layers, 0.0, number)
            narrow = narrow + number
    return np.asarray(narrow), np.asarray(wide)


def _layer_weights_by_part(
    shard: Shard, plan: InferencePlan, architecture: Architecture, blocks: tuple[Block, ...]
) -> Array:
    """GEMM weights of blocks of a mean layer on one rank, each part in its own precision, (rows,). [B]"""
    size = np.zeros(())
    for block in blocks:
        share = _block_shares(shard.model, plan, architecture, block)
        for products, narrow in zip(_by_width(block), (True, False), strict=True):
            if products:
                sizes = plan.part_sizes(operators.part_of(block, products[0], architecture)) if narrow else None
                stored = plan.activation_size if not narrow else plan.weight_size if sizes is None else sizes[0]
                size = size + share * weights(block, shard, products) * stored
    return np.asarray(size)


def computed_share(plan: InferencePlan, part: float) -> Array | float:
    """1 if a pool computes a part of its layers, else 0, (rows,); 1 if every pool computes all. [-]"""
    computed = plan.computes(part)
    return 1.0 if computed is None else computed


def _layer_small_parameters(shard: Shard, architecture: Architecture) -> Array:
    """Scales and biases of a mean layer on one rank, (rows,). [-]"""
    model = shard.model
    mixing = operators.mixing_parameters(model)  # in FP32: twice the bytes of the others
    attention = operators.layer_vector_parameters(shard, model.query_key_norm) + mixing
    if not architecture.counted:
        return attention
    without = operators.layer_vector_parameters(shard, 0.0) + mixing
    attended = model.num_attention_layers / model.num_layers
    norms = (2.0 - model.num_blocks) * (1.0 + model.layer_norm) * model.hidden_size
    linear = linear_share(model) * operators.linear_vector_parameters(shard)
    return np.asarray(attended * attention + (1.0 - attended) * without - norms + linear)


def rank_weights_size(model: Model, plan: InferencePlan, architecture: Architecture) -> Array:
    """Weights of the fullest rank, (rows,): its layers, those of its draft module, and its share of one table. [B]"""
    stages = plan.pipeline_parallel
    layers = np.ceil(model.num_layers / stages) + plan.layers_drafted
    shard = Shard(model, plan.attention_parallel, plan.expert_tensor_parallel)
    small = _layer_small_parameters(shard, architecture)
    # A first and a last stage that are not the same hold one table each, tied or not.
    tied = np.where(stages > 1.0, 1.0, model.tied_embeddings)
    tables = operators.embedding_parameters(model, tied)
    blocks = layer_blocks(architecture)[:-1]  # all but the output projection
    narrow, wide = _layer_weights(shard, plan, architecture, blocks)
    attends = computed_share(plan, LayerPart.ATTENTION)
    small, tables = small * attends, tables * attends
    layer = narrow * plan.weight_size + (small + wide) * plan.activation_size
    size = np.asarray(layers * layer + tables * plan.activation_size / plan.attention_parallel)
    head_sizes = plan.part_sizes("head")
    if head_sizes is None:
        return size
    # Embeddings stay in 16 bits; an output projection of its own has the precision of the checkpoint's.
    layer = _layer_weights_by_part(shard, plan, architecture, blocks) + small * plan.activation_size
    output = np.where(tied > 0.0, 0.0, operators.embedding_parameters(model, np.ones_like(tied))) * attends
    of_tables = (tables - output) * plan.activation_size + output * head_sizes[0]
    return np.where(np.isnan(head_sizes[0]), size, layers * layer + of_tables / plan.attention_parallel)


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
        layer, head_sizes = narrow * plan.weight_size + wide * plan.activation_size, plan.part_sizes("head")
        if head_sizes is not None:
            layer = np.where(np.isnan(head_sizes[0]), layer, _layer_weights_by_part(shard, plan, architecture, blocks))
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


def _rarest_visits(held: Array, favoured_share: Array, hot_share: Array) -> Array:
    """Share of the visits of experts that the least used ones receive, a share ``held`` of all, (rows,). [-]

    Routers prefer a share s of the experts; the others receive a share (1 - s)^3 of the visits that do not go to a few
    hot ones. The host holds the others first (heuristic, this work). Half of the experts of an even router; the half
    that is not preferred; the same if 0.2 of the visits go to a few:

    >>> _rarest_visits(np.asarray(0.5), np.array([1.0, 0.5, 0.5]), np.array([0.0, 0.0, 0.2])).tolist()
    [0.5, 0.125, 0.1]
    """
    rare = 1.0 - favoured_share
    within, beyond = np.minimum(held, rare), np.maximum(held - rare, 0.0)
    visits = within * rare * rare + beyond / favoured_share * (1.0 - rare * rare * rare)
    shown = (1.0 - hot_share) * visits
    return np.asarray(np.where(held < 1.0, shown, held + 0.0 * shown))


def _work_shares(deployment: Deployment) -> tuple[Array, Array, Array]:
    """Shares of the work of routed experts and of other products on host weights, and handovers of a layer, (rows,)."""
    plan, model = deployment.plan, deployment.model
    held, others = plan.host_experts_share, plan.host_weights_share
    rarest = plan.host_experts == HostExperts.RAREST
    work = np.where(rarest, _rarest_visits(held, *deployment.popularity), held)
    mixed = model.num_moe_layers / model.num_layers
    # Layers next to each other on the host hand over once; with some experts of each layer there, each layer does.
    handovers = np.maximum(mixed * np.where(rarest & (held > 0.0), 1.0, held), others)
    return work, others, handovers


def with_host_weights(
    deployment: Deployment,
    shape: operators.ServingShape,
    products: operators.ServingGemms,
    gemms: KernelTimes,
    busy: tuple[Array, Array],
    parts: Array,
    phases: tuple[int, ...],
) -> tuple[KernelTimes, Array]:
    """Products that stay on the accelerator, and the time of a layer, (rows, phases), for weights on the host.

    ``busy``: times of the kernels of a layer and of their launches, which hide behind them.

    The processors multiply them where they are, or they move over the link and the accelerator multiplies. With
    prefetch they move while it computes; routed experts of a decode step are known only after the router, so their
    move is exposed.
    """
    plan, device, software, number = deployment.plan, deployment.device, deployment.software, len(phases)
    experts, others, handovers = _work_shares(deployment)
    in_layer = len(gemms.names) - gemms.once
    shapes, grouped = products.gemms, products.grouped[: len(gemms.names)][:in_layer]
    share = np.where(grouped, experts[:, None], others[:, None])[:, None]
    calls = share * gemms.calls[..., :in_layer]
    weights = by_phase(shapes.batch * shapes.k * shapes.n * stored_sizes(deployment, products), number)[..., :in_layer]
    flop = by_phase(2.0 * shapes.batch * shapes.m * shapes.n * shapes.k, number)[..., :in_layer]
    # The ranks of an accelerator share its host.
    memory, link, rate = (
        values / software["ranks"]
        for values in (
            software["offload_efficiency"] * device.host_memory_bandwidth,
            device.host_bandwidth,
            device.host_flop_rate,
        )
    )
    tokens = side_by_side(*(shape.of(phase)[0] for phase in phases))
    passed = tokens * (deployment.model.hidden_size * plan.activation_size)[:, None]
    # On the host: weights are read once (roofline); activations go there and come back (heuristic, this work).
    there = total(calls * np.maximum(weights / memory[..., None], flop / rate[..., None]))
    there = there + handovers[:, None] * (software["handover_time"] + 2.0 * passed / link)
    # On the accelerator: weights move over the link.
    moved = total(calls * weights)
    late = np.where(np.array(phases) == operators.PREFILL, 0.0, total(np.where(grouped, calls * weights, 0.0)))
    behind = np.where(plan.host_prefetch[:, None] > 0.0, total(parts[:, :, 0]), 0.0)
    waits = exposed_offload_time(moved - late, link, behind) + late / link
    saved, (running, launches) = total(calls * gemms.time[..., :in_layer]), busy
    # Launches that products on the accelerator hid are seen where the host does those products.
    there = there + np.maximum(launches - (running - saved), 0.0) - np.maximum(launches - running, 0.0)
    # The processors compute where the plan says so, or where it leaves the choice and they are faster.
    stated = plan.host_compute[:, None]
    faster = (stated == HostCompute.FASTER) & (there - saved < waits)
    computes = (stated == HostCompute.CPU) | faster
    kept = gemms.calls.copy(order="K")
    kept[..., :in_layer] = kept[..., :in_layer] - np.where(computes[..., None], calls, 0.0)
    return gemms._replace(calls=kept), np.where(computes, there, waits)
