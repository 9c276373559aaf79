"""What the ranks of a replica send each other in a layer and in a pass, with its time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from xlperf.arrays import Array
from xlperf.network.collectives import collective_time, quick_all_reduce_time
from xlperf.network.tiers import Network
from xlperf.parallel.serving_plan import InferencePlan
from xlperf.workload.model import Architecture, Model
from xlperf.workload.serving import ServingShape

ALL_REDUCE, GATHERING, TRANSFER, EXCHANGE = range(4)


def _distinct_ranks(model: Model, ranks: Array) -> Array:
    """Ranks that the experts of one token are on, expected under even routing, (rows,)."""
    chosen = np.power(1.0 - 1.0 / ranks, np.minimum(model.top_k, model.num_experts))
    return np.asarray(ranks * (1.0 - chosen))


def _exchange(
    model: Model,
    network: Network,
    plan: InferencePlan,
    tokens: Array,
    kernels: Mapping[str, Mapping[str, Array]],
) -> tuple[Array, Array]:
    """Bytes sent and time of sending tokens to experts and back, (rows, 2): the fastest of three ways.

    Each token goes to the ranks of its experts; or once to each machine that has some of them, whose ranks pass it on
    at the same time; or all tokens go to all ranks and the results are added up.
    """
    group = plan.tensor_parallel[:, None]
    hidden = model.hidden_size[:, None]
    there = np.minimum(plan.input_size, plan.activation_size)[:, None]
    back = plan.activation_size[:, None]
    reached = _distinct_ranks(model, plan.expert_parallel)[:, None] * plan.expert_tensor_parallel[:, None]
    # A rank of several that share the heads sends its share of their tokens.
    own = tokens / plan.attention_parallel[:, None] * hidden
    sent = own * reached
    direct = collective_time("all_to_all", sent * there, group, 1.0, network, kernels["all_to_all"])
    direct = direct + collective_time("all_to_all", sent * back, group, 1.0, network, kernels["all_to_all"])
    inside = np.minimum(network.size[:, :1], group)
    machines = np.ceil(group / inside)
    once = own * machines * (1.0 - np.power(1.0 - 1.0 / machines, np.minimum(model.top_k, model.num_experts)[:, None]))
    relayed = 0.0 * direct
    for size in (there, back):
        across = collective_time("all_to_all", once * size, machines, inside, network, kernels["all_to_all"])
        within = collective_time("all_to_all", sent * size, inside, 1.0, network, kernels["all_to_all"])
        relayed = relayed + np.maximum(across, within)
    direct = np.where(machines > 1.0, np.minimum(direct, relayed), direct)
    spread = own * group
    shared = collective_time("all_gather", spread * there, group, 1.0, network, kernels["all_gather"])
    shared = shared + collective_time("reduce_scatter", spread * back, group, 1.0, network, kernels["reduce_scatter"])
    return sent * (there + back), np.minimum(direct, shared)


def serving_messages(
    model: Model,
    network: Network,
    plan: InferencePlan,
    shape: ServingShape,
    kernels: Mapping[str, Mapping[str, Array]],
    architecture: Architecture,
) -> tuple[Array, Array, Array]:
    """Messages of both phases: all-reduce, gathering of logits, transfer to the next stage, exchange with experts.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    network : Network
        Tiers, (rows, tiers).
    plan : InferencePlan
        Degrees, (rows,).
    shape : ServingShape
        Tokens of both phases. [-]
    kernels : mapping of str to mapping of str to Array
        Calibration constants (rows, 1) of the collectives.
    architecture : Architecture
        Structure that the models share.

    Returns
    -------
    size : Array
        One message, (rows, 2, 4). [B]
    time : Array
        Its time, (rows, 2, 4). [s]
    calls : Array
        All-reduces and exchanges of one layer, (rows, 2). [-]
    """
    ranks, stages = plan.attention_parallel[:, None], plan.pipeline_parallel[:, None]
    tokens = np.stack([shape.prefill_tokens, shape.decode_tokens], axis=-1)
    sampled = np.stack([shape.prefill_sampled, shape.decode_tokens], axis=-1)
    hidden = tokens * (model.hidden_size * plan.activation_size)[:, None]
    logits = sampled * (model.vocab_size * plan.activation_size)[:, None]
    sizes = np.stack([hidden, logits, hidden, 0.0 * hidden], axis=-1)
    times = 0.0 * sizes
    group = ranks
    reduces = np.full_like(plan.tensor_parallel, 2.0)
    exchanges = np.zeros_like(reduces)
    if np.any(ranks != 1.0):
        found = collective_time("all_reduce", hidden, group, 1.0, network, kernels["all_reduce"])
        quick = quick_all_reduce_time(hidden, group, network, kernels["engine_all_reduce"])
        inside = group <= network.size[:, :1]
        times[..., ALL_REDUCE] = np.where(inside, np.minimum(found, quick), found)
        times[..., GATHERING] = collective_time("all_gather", logits, ranks, 1.0, network, kernels["all_gather"])
    if np.any(stages != 1.0):
        times[..., TRANSFER] = collective_time(
            "point_to_point", hidden, stages, plan.tensor_parallel[:, None], network, kernels["point_to_point"]
        )
    if architecture.experts and np.any(plan.attention_replicas != 1.0):
        size, time = _exchange(model, network, plan, tokens, kernels)
        sizes[..., EXCHANGE] = size
        apart = plan.attention_replicas > 1.0
        times[..., EXCHANGE] = np.where(apart[:, None], time, 0.0)
        exchanges = np.where(apart, model.num_moe_layers / model.num_layers, 0.0)
        reduces = reduces - exchanges
    return sizes, times, np.stack([reduces, exchanges], axis=-1)
