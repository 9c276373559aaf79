"""Collectives of a training step: the messages of each parallelism, and the time of one call of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, side_by_side, some
from xlperf.equations.model.model import Model
from xlperf.equations.network.collectives import collective_time
from xlperf.equations.plan.records import ContextMethod, QuantizedCopies, Recompute, TokenDispatch
from xlperf.equations.plan.training_plan import TrainingPlan
from xlperf.equations.training.setting import Setting, StageParameters, quantized_weights


class Collective(NamedTuple):
    """One call of a collective operation, (rows,): its operation, seconds and bytes."""

    operation: str
    time: Array
    message_size: Array


class _Message(NamedTuple):
    """A call to be timed, (rows,): operation, bytes, ranks of the group and their stride; repeated ``calls`` times."""

    operation: str
    size: Array
    group: Array
    stride: Array
    calls: Array | None = None


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


def _timed(setting: Setting, messages: dict[str, _Message]) -> Communication:
    """Time of all messages: those of one operation together; groups of one rank cost nothing."""
    silent = Collective("", 0.0 * setting.plan.tokens, 0.0 * setting.plan.tokens)
    found = dict.fromkeys(Communication._fields, silent)
    needed: dict[str, list[str]] = {}
    for name, message in messages.items():
        found[name] = Collective(message.operation, 0.0 * message.size, message.size)
        if some(message.group != 1.0):
            needed.setdefault(message.operation, []).append(name)
    for operation, names in needed.items():
        same = [messages[name] for name in names]
        size, group, stride = map(side_by_side, *((each.size, each.group, each.stride) for each in same))
        time = collective_time(operation, size, group, stride, setting.network, setting.constants[operation])
        for column, name in enumerate(names):
            found[name] = Collective(operation, time[:, column], messages[name].size)
    for name, message in messages.items():
        if message.calls is not None:
            found[name] = Collective(message.operation, message.calls * found[name].time, message.calls * message.size)
    return Communication(**found)


def distinct_share(num_places: Numeric, top_k: Numeric) -> Array:
    r"""Share of a token's copies that are sent when it goes once to each place that holds any of its experts.

    Experts are chosen evenly; a place is a rank, or a node where the group spans several. None of k experts is at a
    place with probability (1 - 1/n)^k, so that a token goes to n (1 - (1 - 1/n)^k) places, out of k copies.

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

    Examples
    --------
    Two experts on 8 ranks: 4 (1 - 49/64).

    >>> float(distinct_share(8, 2))
    0.9375
    """
    places, chosen = array(num_places), array(top_k)
    missed = np.ones(np.broadcast(places, chosen).shape)
    others = 1.0 - 1.0 / places
    most = np.fmax.reduce(chosen, axis=None, initial=0.0)
    least = np.fmin.reduce(chosen, axis=None, initial=most)
    for count in range(int(most)):
        missed = np.where(chosen > count, missed * others, missed) if count >= least else missed * others
    return np.asarray(places / np.maximum(chosen, 1.0) * (1.0 - missed))


def _tensor_messages(setting: Setting) -> dict[str, _Message]:
    """Activations between the blocks of a layer: an all-reduce, or with sequence parallelism its two halves."""
    plan = setting.plan
    split, stride = plan.sequence_parallel > 0, plan.strides["tp"]
    whole, halves = np.where(split, 1.0, plan.tensor_parallel), np.where(split, plan.tensor_parallel, 1.0)
    return {
        "tensor_reduce": _Message("all_reduce", setting.stream_size, whole, stride),
        "tensor_gather": _Message("all_gather", setting.stream_size, halves, stride),
        "tensor_scatter": _Message("reduce_scatter", setting.stream_size, halves, stride),
    }


def _context_messages(setting: Setting) -> dict[str, _Message]:
    """Keys and values of a part of the sequence: passed on in a ring, gathered, or exchanged for heads (Ulysses)."""
    model, plan = setting.model, setting.plan
    heads = setting.heads
    groups = np.where(model.latent_attention > 0, heads, setting.key_heads)
    pair = model.qk_head_size + model.v_head_size
    keys_and_values = plan.tokens * groups * pair * plan.element_size
    queries_and_output = plan.tokens * heads * pair * plan.element_size

    def message(operation: str, method: float, size: Array) -> _Message:
        group = np.where(plan.context_method == method, plan.context_parallel, 1.0)
        return _Message(operation, size, group, plan.strides["cp"])

    whole = keys_and_values * plan.context_parallel
    return {
        "context_step": message("point_to_point", ContextMethod.RING, keys_and_values),
        "context_gather": message("all_gather", ContextMethod.ALL_GATHER, whole),
        "context_exchange": message("all_to_all", ContextMethod.ULYSSES, queries_and_output + keys_and_values),
    }


def _sent_share(setting: Setting) -> Array:
    """Share of the copies of tokens that are sent to experts: once to each rank or node, or a copy for each expert."""
    model, plan = setting.model, setting.plan
    inside = np.maximum(setting.network.size[:, 0] / plan.expert_strides["ep"], 1.0)
    across = plan.expert_parallel / np.minimum(inside, plan.expert_parallel)
    share = distinct_share(np.where(across > 1.0, across, plan.expert_parallel), model.top_k)
    share = np.where(across > 1.0, np.minimum(share, plan.dispatch_nodes / np.maximum(model.top_k, 1.0)), share)
    share = np.where(plan.token_dispatch == TokenDispatch.COPIES, 1.0, share)
    # buffers of one size for each expert
    return np.where(np.isnan(plan.expert_capacity), share, plan.expert_capacity)


def _expert_messages(setting: Setting) -> dict[str, _Message]:
    """Tokens sent to the ranks of their experts, and gathered within the ranks that share an expert."""
    model, plan = setting.model, setting.plan
    routed, _, _ = setting.routed
    copies = routed * model.top_k * model.expert_hidden_size
    sent = _sent_share(setting) * copies * plan.dispatch_size
    stream = copies * plan.element_size * plan.expert_tensor_parallel
    shared = plan.expert_tensor_parallel, plan.expert_strides["tp"]
    return {
        "expert_exchange": _Message("all_to_all", sent, plan.expert_parallel, plan.expert_strides["ep"]),
        "expert_gather": _Message("all_gather", stream, *shared),
        "expert_scatter": _Message("reduce_scatter", stream, *shared),
    }


def _saved_size(setting: Setting) -> Array:
    """Bytes per GEMM weight that a gathering in low precision saves, (rows,). [B]"""
    plan = setting.plan
    if not some(plan.quantized):
        return np.zeros(len(plan))
    primary = plan.quantized & (plan.quantized_copies == QuantizedCopies.PRIMARY) & (plan.turns > 0)
    share = np.where(primary, 1.0 - plan.wide_layers / setting.model.num_layers, 0.0)
    return np.asarray(share * (plan.element_size - plan.product_size))


def _replica_messages(setting: Setting, parameters: StageParameters, quantized: Array) -> dict[str, _Message]:
    """Gradients reduced over replicas and weights gathered from their shards, outside routed experts.

    What is sharded is reduced in two steps: scattered within the ranks that share one set of shards, then added up
    between such groups. With adapters only what is trained has to be gathered, except by ZeRO-3.
    """
    model, plan = setting.model, setting.plan
    shards = np.where(plan.zero_stage > 0, plan.zero_shards, 1.0)
    stride = np.minimum(plan.strides["cp"], plan.strides["dp"])
    tensors = setting.constants["training_calls"]["tensors_per_layer"][:, 0]
    calls = np.maximum(tensors * (model.num_layers / plan.pipeline_parallel), 1.0)
    gradients = parameters.trained * plan.gradient_size
    weights = parameters.dense * plan.element_size - quantized * _saved_size(setting)
    only_trained = plan.frozen & (plan.zero_stage < 3)
    weights = np.where(only_trained, parameters.trained * plan.element_size, weights)
    groups = plan.shards / shards
    return {
        "gradient_reduce": _Message("reduce_scatter", gradients / calls, shards, stride, calls),
        "group_reduce": _Message("all_reduce", gradients / shards / calls, groups, stride * shards, calls),
        "weight_gather": _Message("all_gather", weights / calls, shards, stride, calls),
    }


def _expert_replica_messages(setting: Setting, parameters: StageParameters) -> dict[str, _Message]:
    """The same for routed experts."""
    plan = setting.plan
    shards = np.where(plan.zero_stage > 0, plan.expert_zero_shards, 1.0)
    stride = plan.expert_strides["dp"]
    gradients = parameters.trained_experts * plan.gradient_size
    weights = parameters.experts * (plan.element_size - _saved_size(setting))
    weights = np.where(plan.frozen & (plan.zero_stage < 3), 0.0, weights)
    groups = plan.expert_shards / shards
    return {
        "expert_gradient_reduce": _Message("reduce_scatter", gradients, shards, stride),
        "expert_group_reduce": _Message("all_reduce", gradients / shards, groups, stride * shards),
        "expert_weight_gather": _Message("all_gather", weights, shards, stride),
    }


def communication_of(setting: Setting) -> Communication:
    """Time and size of every collective of a step.

    Parameters
    ----------
    setting : Setting
        Model, network, plan and calibration. [-]

    Returns
    -------
    Communication
        Seconds and bytes, (rows,). [s, B]
    """
    plan = setting.plan
    quantized = quantized_weights(plan, setting.parameters, setting.pipeline.middle)
    messages = {
        **_tensor_messages(setting),
        **_context_messages(setting),
        "stage_transfer": _Message(
            "point_to_point", setting.stream_size / plan.tensor_parallel, plan.pipeline_parallel, plan.strides["pp"]
        ),
        **_replica_messages(setting, setting.fullest, quantized),
    }
    if setting.architecture.experts:
        messages |= _expert_messages(setting)
        messages |= _expert_replica_messages(setting, setting.fullest)
    return _timed(setting, messages)


class CollectiveCalls(NamedTuple):
    """Calls of one collective in a step, (rows,): the result that holds their time, a name, one call, and how many."""

    result: str
    name: str
    collective: Collective
    calls: Array


def collective_calls(setting: Setting, found: Communication, counts: Mapping[str, Array]) -> list[CollectiveCalls]:
    """Calls of every collective in a step on its critical stage, those of one result after the other.

    A block reduces over its tensor-parallel ranks once in each pass (with sequence parallelism gathers and scatters,
    and gathers twice backward); experts are sent to and from once in each pass; ZeRO-3 gathers weights in both passes
    of every micro-batch.

    Parameters
    ----------
    setting : Setting
        Model, plan and calibration. [-]
    found : Communication
        One call of each collective, (rows,). [s]
    counts : mapping of str to Array
        Calls of each place per micro-batch on that stage, and its ``layers``, (rows,). [-]

    Returns
    -------
    list of CollectiveCalls
        Also those that a plan does not have, with 0 calls. [-]
    """
    plan, batches = setting.plan, setting.plan.num_micro_batches
    attention, mixtures = counts["attention"], counts["moe"]
    share = np.minimum(plan.recompute_layers / counts["layers"], 1.0)
    passes = 2.0 + share * (plan.recompute == Recompute.FULL)  # forward, backward, and forward again
    mlp_again, moe_again = (share * plan.again(module) for module in ("mlp", "moe"))

    shared = np.where(setting.model.shared_ffn_hidden_size > 0, 1.0, 0.0)
    blocks = attention + counts.get("linear", 0.0) + counts["mlp"] + mixtures * shared
    outside = counts["head"] + counts["embedding"] + counts["mtp"]
    blocks_again = mlp_again * counts["mlp"] + moe_again * mixtures * shared
    reductions = batches * (passes * blocks + blocks_again + outside)
    split = plan.sequence_parallel > 0
    exchanges = batches * mixtures * (passes + moe_again)
    slower = setting.constants["experts"]["exchange_slowdown"][:, 0]
    exchange = found.expert_exchange._replace(time=slower * found.expert_exchange.time)
    attended, turns = batches * attention, plan.context_parallel - 1.0
    transfers = batches * 2.0 * plan.virtual_pipeline * (plan.pipeline_parallel > 1)
    repeats = np.where(plan.regathers | plan.scatters, batches, 1.0)
    gathers = np.where(plan.regathers, 2.0 * repeats, 1.0)
    whole = plan.zero_stage < 1
    sharded, unsharded, between = (
        np.where(whole, 0.0, repeats),
        np.where(whole, repeats, 0.0),
        np.where(whole, 0.0, 1.0),
    )
    listed: dict[str, tuple[tuple[str, Collective, Array], ...]] = {
        "time_tensor_parallel": (
            ("tensor-parallel gather", found.tensor_gather, np.where(split, reductions + batches * blocks, 0.0)),
            ("tensor-parallel scatter", found.tensor_scatter, np.where(split, reductions, 0.0)),
            ("tensor-parallel reduction", found.tensor_reduce, np.where(split, 0.0, reductions)),
        ),
        "time_expert_parallel": (
            ("expert exchange", exchange, 2.0 * exchanges),
            ("expert gather", found.expert_gather, exchanges),
            ("expert scatter", found.expert_scatter, exchanges),
        ),
        "time_context_parallel": (
            ("context exchange of a ring", found.context_step, attended * turns * (passes + 1.0)),
            ("context gathering", found.context_gather, attended * (passes + 1.0)),
            ("context exchange of heads", found.context_exchange, attended * passes),
        ),
        "time_pipeline_communication": (("stage transfer", found.stage_transfer, transfers),),
        "time_data_parallel": (
            ("gradient reduction", found.group_reduce, unsharded),
            ("gradient reduction", found.gradient_reduce, sharded),
            ("expert gradient reduction", found.expert_group_reduce, unsharded),
            ("expert gradient reduction", found.expert_gradient_reduce, sharded),
            ("gradient reduction between groups", found.group_reduce, between),
            ("expert gradient reduction between groups", found.expert_group_reduce, between),
            ("weight gathering", found.weight_gather, gathers),
            ("expert weight gathering", found.expert_weight_gather, gathers),
        ),
    }
    return [CollectiveCalls(result, *one) for result, calls in listed.items() for one in calls]


def used_families(model: Model, plan: TrainingPlan) -> dict[str, np.ndarray]:
    """Which plans use the kernels and collectives that not every step needs.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    plan : TrainingPlan
        Degrees, (rows,). [-]

    Returns
    -------
    dict of str to np.ndarray
        By family of calibration constants, (rows,).

    Examples
    --------
    Tensor and sequence parallelism within stages, ZeRO-1 between replicas:

    >>> from types import SimpleNamespace
    >>> sizes = {"tensor_parallel": 8, "sequence_parallel": 1, "shards": 4, "zero_stage": 1, "context_parallel": 1}
    >>> sizes |= {"expert_parallel": 1, "pipeline_parallel": 2, "flash_attention": 1}
    >>> plan = SimpleNamespace(**{name: np.array([size]) for name, size in sizes.items()})
    >>> model = SimpleNamespace(num_experts=np.zeros(1), num_linear_layers=np.zeros(1))
    >>> [family for family, used in used_families(model, plan).items() if used.all()]
    ['all_gather', 'reduce_scatter', 'point_to_point', 'attention', 'attention_backward']
    """
    tensor, shards, split = plan.tensor_parallel > 1, plan.shards > 1, plan.sequence_parallel > 0
    sharded, context = plan.zero_stage > 0, plan.context_parallel > 1
    pairs = (tensor & split) | (shards & sharded)
    flash = plan.flash_attention > 0
    return {
        "experts": model.num_experts > 0,
        "all_reduce": (tensor & ~split) | (shards & ~sharded),
        "all_gather": pairs,
        "reduce_scatter": pairs,
        "all_to_all": (plan.expert_parallel > 1) | context,
        "point_to_point": (plan.pipeline_parallel > 1) | context,
        "attention": flash,
        "attention_backward": flash,
        "linear_attention": model.num_linear_layers > 0,
    }
