"""Collectives of a training step: one call each, with its bytes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, side_by_side, some
from xlperf.equations.network.collectives import collective_time
from xlperf.equations.plan.choices import ContextMethod, QuantizedCopies, TensorOverlap, TokenDispatch
from xlperf.equations.training.setting import Setting


class Collective(NamedTuple):
    """One call of a collective operation, (rows,): its operation, seconds and bytes."""

    operation: str
    time: Array
    message_size: Array


class Communication(NamedTuple):
    """Collectives of a plan, each (rows,); those of layers per block and direction.

    ``tensor_*`` of the activations between blocks, ``context_*`` of keys and values (one ring step, one gathering,
    one exchange), ``expert_exchange`` one dispatch or combination, ``expert_*`` within an expert's tensor-parallel
    group, ``stage_transfer`` between stages, ``gradient_reduce`` and ``weight_gather`` within a group that shares one
    set of shards, ``group_reduce`` between such groups (between all replicas where nothing is sharded).
    """

    tensor_reduce: Collective
    tensor_gather: Collective
    tensor_scatter: Collective
    context_step: Collective
    context_gather: Collective
    context_exchange: Collective
    expert_exchange: Collective
    expert_gather: Collective
    expert_scatter: Collective
    stage_transfer: Collective
    gradient_reduce: Collective
    group_reduce: Collective
    weight_gather: Collective
    expert_gradient_reduce: Collective
    expert_group_reduce: Collective
    expert_weight_gather: Collective


def _call(setting: Setting, operation: str, *calls: tuple[Array, Array, Array]) -> list[Collective]:
    """Several calls of one operation, (message size, group size, stride) each, timed together; groups of 1 cost 0."""
    needed = [index for index, (_, group, _) in enumerate(calls) if some(group != 1.0)]
    found = [Collective(operation, 0.0 * message, message) for message, _, _ in calls]
    if needed:
        message, group, stride = (side_by_side(*values) for values in zip(*(calls[i] for i in needed), strict=True))
        time = collective_time(operation, message, group, stride, setting.network, setting.constants[operation])
        for column, index in enumerate(needed):
            found[index] = Collective(operation, time[:, column], found[index].message_size)
    return found


def distinct_share(num_places: Numeric, top_k: Numeric) -> Array:
    r"""Share of a token's copies that are sent when it goes once to each place that holds any of its experts.

    Experts are chosen evenly; a place is a rank, or a node where the group spans several.

    .. math:: f = \frac{n}{k} \left(1 - \left(1 - \frac{1}{n}\right)^k\right)

    Parameters
    ----------
    num_places : numeric
        Places n that share the experts. [-]
    top_k : numeric
        Experts k of a token. [-]

    Returns
    -------
    share : numeric
        Copies that are sent over the experts of a token. [-]

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V3 technical report", 2024, arXiv:2412.19437, section 3.2.2.
    """
    places, chosen = array(num_places), array(top_k)
    missed = np.ones(np.broadcast(places, chosen).shape)
    others = 1.0 - 1.0 / places
    most = np.fmax.reduce(chosen, axis=None, initial=0.0)
    least = np.fmin.reduce(chosen, axis=None, initial=most)
    for count in range(int(most)):
        missed = np.where(chosen > count, missed * others, missed) if count >= least else missed * others
    return np.asarray(places / np.maximum(chosen, 1.0) * (1.0 - missed))


def communication_of(
    setting: Setting,
    parameters: Array,
    expert_parameters: Array,
    narrow_parameters: Array,
    trained_parameters: Array,
    trained_expert_parameters: Array,
) -> Communication:
    """Time and size of every collective of a step.

    Parameters
    ----------
    setting : Setting
        Model, network, plan and calibration. [-]
    parameters : Array
        Parameters of the fullest stage on one rank, routed experts apart, (rows,). [-]
    expert_parameters : Array
        Parameters of its routed experts, (rows,). [-]
    narrow_parameters : Array
        Those among the former that are weights of products of the layers, (rows,). [-]
    trained_parameters : Array
        Parameters that have gradients, routed experts apart, (rows,). [-]
    trained_expert_parameters : Array
        Those of its routed experts, (rows,). [-]

    Returns
    -------
    Communication
        Seconds and bytes, (rows,). [s, B]
    """
    model, plan = setting.model, setting.plan
    tensor, context = plan.tensor_parallel, plan.context_parallel
    stream = plan.tokens * model.hidden_size * plan.element_size
    split, sharded = plan.sequence_parallel > 0, plan.zero_stage > 0
    pair_call = (stream, np.where(split, tensor, 1.0), plan.strides["tp"])
    reduce_call = (stream, np.where(split, 1.0, tensor), plan.strides["tp"])
    stride = np.minimum(plan.strides["cp"], plan.strides["dp"])
    gradients = trained_parameters * plan.gradient_size
    sharded_ranks = np.where(sharded, plan.zero_shards, 1.0)
    tensors = setting.constants["training_calls"]["tensors_per_layer"][:, 0]
    calls = np.maximum(tensors * (model.num_layers / plan.pipeline_parallel), 1.0)
    primary = plan.quantized & (plan.quantized_copies == QuantizedCopies.PRIMARY) & (plan.turns > 0)
    saved = np.where(primary, 1.0 - plan.wide_layers / model.num_layers, 0.0) * (plan.element_size - plan.product_size)
    weights = parameters * plan.element_size - narrow_parameters * saved
    expert_weights_size = expert_parameters * (plan.element_size - saved)
    frozen = plan.frozen & (plan.zero_stage < 3)  # only what is trained has to be gathered
    if some(frozen):
        weights = np.where(frozen, trained_parameters * plan.element_size, weights)
        expert_weights_size = np.where(frozen, 0.0, expert_weights_size)
    weights_call = (weights / calls, sharded_ranks, stride)
    scatter_call = (gradients / calls, sharded_ranks, stride)
    whole_call = (gradients / sharded_ranks / calls, plan.shards / sharded_ranks, stride * sharded_ranks)

    def repeated(call: Collective) -> Collective:
        """All calls of a step, one for each tensor."""
        return Collective(call.operation, calls * call.time, calls * call.message_size)

    heads = setting.heads
    groups = np.where(model.latent_attention > 0, heads, setting.key_heads)
    pair = model.qk_head_size + model.v_head_size
    keys_and_values = plan.tokens * groups * pair * plan.element_size
    queries_and_output = plan.tokens * heads * pair * plan.element_size
    ring, gather, exchange = (
        (np.where(plan.context_method == method, context, 1.0), plan.strides["cp"])
        for method in (ContextMethod.RING, ContextMethod.ALL_GATHER, ContextMethod.ULYSSES)
    )
    context_gather = (keys_and_values * context, *gather)
    context_exchange = (queries_and_output + keys_and_values, *exchange)

    if setting.architecture.experts:
        routed, _, _ = setting.routed
        copies = routed * model.top_k * model.hidden_size
        inside = np.minimum(
            np.maximum(setting.network.size[:, 0] / plan.expert_strides["ep"], 1.0), plan.expert_parallel
        )
        across = plan.expert_parallel / inside
        share = distinct_share(np.where(across > 1.0, across, plan.expert_parallel), model.top_k)
        share = np.where(across > 1.0, np.minimum(share, plan.dispatch_nodes / np.maximum(model.top_k, 1.0)), share)
        share = np.where(plan.token_dispatch == TokenDispatch.COPIES, 1.0, share)
        padded = ~np.isnan(plan.expert_capacity)  # buffers of one size for each expert
        if some(padded):
            share = np.where(padded, plan.expert_capacity, share)
        exchange_call = (share * copies * plan.dispatch_size, plan.expert_parallel, plan.expert_strides["ep"])
        expert_stream = copies * plan.element_size * plan.expert_tensor_parallel
        expert_call = (expert_stream, plan.expert_tensor_parallel, plan.expert_strides["tp"])
        expert_stride = plan.expert_strides["dp"]
        expert_sharded = np.where(sharded, plan.expert_zero_shards, 1.0)
        expert_gradients = trained_expert_parameters * plan.gradient_size
        expert_weights = (expert_weights_size, expert_sharded, expert_stride)
        expert_scatter = (expert_gradients, expert_sharded, expert_stride)
        expert_reduce = (
            expert_gradients / expert_sharded,
            plan.expert_shards / expert_sharded,
            expert_stride * expert_sharded,
        )
        gathers = _call(setting, "all_gather", pair_call, weights_call, context_gather, expert_call, expert_weights)
        scatters = _call(setting, "reduce_scatter", pair_call, scatter_call, expert_call, expert_scatter)
        reduces = _call(setting, "all_reduce", reduce_call, whole_call, expert_reduce)
        exchanges = _call(setting, "all_to_all", context_exchange, exchange_call)
    else:
        none = Collective("", 0.0 * stream, 0.0 * stream)
        gathers = [*_call(setting, "all_gather", pair_call, weights_call, context_gather), none, none]
        scatters = [*_call(setting, "reduce_scatter", pair_call, scatter_call), none, none]
        reduces = [*_call(setting, "all_reduce", reduce_call, whole_call), none]
        exchanges = [*_call(setting, "all_to_all", context_exchange), none]
    transfers = _call(
        setting,
        "point_to_point",
        (stream / tensor, plan.pipeline_parallel, plan.strides["pp"]),
        (keys_and_values, *ring),
    )

    return Communication(
        tensor_reduce=reduces[0],
        tensor_gather=gathers[0],
        tensor_scatter=scatters[0],
        context_step=transfers[1],
        context_gather=gathers[2],
        context_exchange=exchanges[0],
        expert_exchange=exchanges[1],
        expert_gather=gathers[3],
        expert_scatter=scatters[2],
        stage_transfer=transfers[0],
        gradient_reduce=repeated(scatters[1]),
        group_reduce=repeated(reduces[1]),
        weight_gather=repeated(gathers[1]),
        expert_gradient_reduce=scatters[3],
        expert_group_reduce=reduces[2],
        expert_weight_gather=gathers[4],
    )


def tensor_times(setting: Setting, communication: Communication) -> Array:
    """Tensor-parallel communication of one block that is waited for, forward and backward.

    With sequence parallelism the backward pass gathers twice: the gradients of the output, and the input of which only
    the shard was kept (arXiv:2205.05198, section 4.2.2). Where nothing but gradients overlaps, that of the input runs
    beside the gradients of the inputs and the reduction beside those of the weights; the gradients of the output are
    waited for.

    Parameters
    ----------
    setting : Setting
        Plan and calibration. [-]
    communication : Communication
        Collectives, (rows,). [s]

    Returns
    -------
    Array
        Time that the rank waits, forward and backward, (rows, 2). [s]
    """
    plan = setting.plan
    split = plan.sequence_parallel > 0
    gather, scatter = communication.tensor_gather.time, communication.tensor_scatter.time
    time = np.where(split, gather + scatter, communication.tensor_reduce.time)
    hidden = setting.constants["training_software"]["tensor_parallel_overlap"][:, 0]
    forward = time * (1.0 - np.where(plan.tensor_overlap == TensorOverlap.ALL, hidden, 0.0))
    again = np.where(split, gather, 0.0)
    beside = np.where(split & (plan.tensor_overlap != TensorOverlap.ALL), again + scatter, time + again)
    return side_by_side(
        forward, time + again - np.where(plan.tensor_overlap != TensorOverlap.NONE, hidden, 0.0) * beside
    )


def context_time(setting: Setting, communication: Communication, forward_core: Array, backward_core: Array) -> Array:
    """Exposed context-parallel communication of one attention block, forward and backward.

    A ring hides each exchange behind the attention of the block that is already there; gathering and Ulysses'
    exchanges are waited for. The backward pass moves keys, values and their gradients.

    Parameters
    ----------
    setting : Setting
        Plan, (rows,). [-]
    communication : Communication
        Collectives, (rows,). [s]
    forward_core : Array
        Attention proper of one layer forward, (rows,). [s]
    backward_core : Array
        The same backward, (rows,). [s]

    Returns
    -------
    Array
        Time that the rank waits, forward and backward, (rows, 2). [s]
    """
    plan = setting.plan
    size = plan.context_parallel
    step = communication.context_step.time
    steps = size - 1.0
    ring = side_by_side(
        steps * np.maximum(step - forward_core / size, 0.0), steps * np.maximum(2.0 * step - backward_core / size, 0.0)
    )
    waited = communication.context_exchange.time
    gathered = communication.context_gather.time
    ring[:, 0] += gathered + waited
    ring[:, 1] += 2.0 * gathered + waited
    return ring
