"""Time of an optimizer step, from the operators of a layer up.

Arrays have shape (rows,) but for operators, which have (rows, operators). The step is built for the critical
stage: the slower of a full stage and the last one, which holds the output projection.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, ones, side_by_side, some, total
from xlperf.equations.hardware.kernels import vector_time
from xlperf.equations.model.model import Model, layer_matrices, matrix_parameters
from xlperf.equations.model.transformer import attention_flop, expert_parameters, training_flop_per_token
from xlperf.equations.plan.choices import Graphs, PipelineSchedule, QuantizedCopies, Recompute
from xlperf.equations.plan.memory import optimizer_element_size
from xlperf.equations.plan.pipeline import (
    dualpipe_bubble_time,
    exposed_transfer_time,
    pipeline_bubble_time,
    zero_bubble_time,
)
from xlperf.equations.plan.training_plan import LAYOUTS
from xlperf.equations.training.adapters import adapter_parameters
from xlperf.equations.training.communication import Communication, communication_of, context_time, tensor_times
from xlperf.equations.training.kernels import kernel_parts
from xlperf.equations.training.memory import RankParameters, memory_of, mixture_layers, rank_parameters
from xlperf.equations.training.recompute import selected_share
from xlperf.equations.training.setting import WORD, Part, Setting

FORWARD, BACKWARD, WEIGHTS, AGAIN = 0, 1, 2, 3
_FULL, _LAST, _MIDDLE = 0, 1, 2


class Step(NamedTuple):
    """A step in pieces: kernels, collectives, and calls of each place per micro-batch on the critical stage."""

    parts: list[Part]
    communication: Communication
    results: dict[str, Array]
    counts: dict[str, Array]
    optimizer_traffic: Array
    optimizer_time: Array


class _Stage(NamedTuple):
    """Times of one micro-batch on a stage, (rows,) or (rows, kinds of stages); spans are kernels of a pass with what
    they wait for of the host and the context. [s]
    """

    forward: Array
    backward: Array
    again: Array
    weight_gradients: Array
    tensor: Array
    context: Array
    expert: Array
    waiting: Array
    backward_waiting: Array
    forward_span: Array
    backward_span: Array

    def passes(self, transfer: Array | float = 0.0) -> tuple[Array, Array]:
        """Forward and backward pass, each with half of the communication of tensor and expert parallelism. [s]"""
        share = 0.5 * (self.tensor + self.expert + transfer)
        return self.forward_span + share, self.backward_span + share

    @property
    def time(self) -> Array:
        shown = (self.forward, self.backward, self.again, self.tensor, self.context, self.expert, self.waiting)
        return total(side_by_side(*shown))

    def kind(self, index: int | Array) -> _Stage:
        """The stages of one kind, or of the kind that each row names."""
        if isinstance(index, int):
            return _Stage(*(values[:, index] for values in self))
        rows = np.arange(len(index))
        return _Stage(*(values[rows, index] for values in self))


class _Blocks(NamedTuple):
    """Times of one block: kernels (rows, places); tensor by pass (rows, 2); context by pass, of layers that attend to
    everything and of local ones (rows, 2, 2); others (rows,). [s]
    """

    forward: Array
    backward: Array
    weight_gradients: Array
    tensor: Array
    context: Array
    exchange: Array
    expert: Array
    again: Array


PLACES = ("attention", "core", "local core", "mlp", "moe", "head", "embedding", "mtp")
_LAYERS, _OUTSIDE, CORES = slice(0, 5), slice(5, 8), (1, 2)


def _blocks(setting: Setting, parts: list[Part], communication: Communication) -> _Blocks:
    slowdown = setting.constants["training_software"]["kernel_slowdown"]
    plan = setting.plan
    selective = some(plan.recompute == Recompute.SELECTIVE)
    times = np.zeros((4, len(slowdown), len(PLACES)))
    for part in parts:
        place = PLACES.index(part.place)
        times[FORWARD if part.phase == "forward" else BACKWARD, :, place] += part.total_time
        if part.phase == "backward" and part.family == "gemm":
            times[WEIGHTS, :, place] += part.time_of("weight gradient")
        if selective and part.phase == "forward":
            share = selected_share(plan, part)
            if share is not None:
                times[AGAIN, :, place] += total(part.calls * part.time * share)
    times *= slowdown
    exchange = setting.constants["experts"]["exchange_slowdown"][:, 0] * communication.expert_exchange.time
    return _Blocks(
        times[FORWARD],
        times[BACKWARD],
        times[WEIGHTS],
        tensor_times(setting, communication),
        np.stack([context_time(setting, communication, *times[:2, :, place]) for place in CORES], axis=-1),
        2.0 * exchange,
        communication.expert_gather.time + communication.expert_scatter.time,
        times[AGAIN],
    )


def _counts(model: Model, layers: Array, mixtures: Array, head: Array, embedding: Array, mtp: Array) -> Array:
    """Calls of each place per micro-batch, (..., places), of stages with so many layers."""
    local = layers * (model.num_local_layers / model.num_layers)[:, None]
    return side_by_side(layers, layers - local, local, layers - mixtures, mixtures, head, embedding, mtp)


def _stages(setting: Setting, blocks: _Blocks, counts: Array) -> _Stage:
    """Times of kinds of stages, (rows, kinds), from the calls of each place, (rows, kinds, places)."""
    plan, constants = setting.plan, setting.constants
    layers, mixtures = counts[..., 0], counts[..., 4]
    software = constants["training_software"]
    ranks = np.where(plan.tensor_parallel > 1, plan.tensor_parallel, 0.0)[:, None]
    host = (layers - mixtures) * software["layer_overhead_time"] + layers * software["rank_overhead_time"] * ranks
    apart = np.zeros(host.shape)
    if some(plan.graphs != Graphs.NONE):
        host = np.where((plan.graphs != Graphs.NONE)[:, None], 0.0, host)
    if setting.architecture.experts:
        launched = np.where(plan.graphs[:, None] < Graphs.STEP, mixtures, 0.0)
        experts = (setting.model.num_experts / plan.expert_parallel)[:, None]
        host = host + launched * constants["experts"]["layer_overhead_time"]
        apart = launched * experts * constants["experts"]["launch_time"]
    full = (plan.recompute == Recompute.FULL)[:, None]
    selective = (plan.recompute == Recompute.SELECTIVE)[:, None]
    share = np.minimum(plan.recompute_layers[:, None] / layers, 1.0)
    passes = 2.0 + np.where(full, share, 0.0)
    forward = counts * blocks.forward[:, None, :]
    backward = counts * blocks.backward[:, None, :]
    layer_forward, layer_backward = total(forward[..., _LAYERS]), total(backward[..., _LAYERS])
    repeated = total((counts * blocks.again[:, None, :])[..., _LAYERS])
    again = share * np.where(full, layer_forward, np.where(selective, repeated, 0.0))
    shared = np.where(setting.model.shared_ffn_hidden_size > 0, 1.0, 0.0)
    once = layers + counts[..., 3] + mixtures * (shared[:, None] if np.ndim(shared) else shared)
    tensor, tensor_backward = blocks.tensor[:, FORWARD, None], blocks.tensor[:, BACKWARD, None]
    cores = counts[..., None, CORES[0] : CORES[1] + 1]
    context = total(cores * blocks.context[:, None])
    exchanged, exchanged_back = context[..., FORWARD], context[..., BACKWARD]
    waiting = np.maximum(host - layer_forward - tensor * once - exchanged, 0.0) + apart
    waiting_back = np.maximum(host - layer_backward - tensor_backward * once - exchanged_back, 0.0) + 2.0 * apart
    whole_forward = layer_forward + total(forward[..., _OUTSIDE])
    whole_backward = layer_backward + total(backward[..., _OUTSIDE])
    whole_waiting = waiting * (passes - 1.0) + waiting_back
    whole_context = exchanged * (passes - 1.0) + exchanged_back
    blocks_again: Array | float = 0.0
    exchanges = mixtures * passes
    if some(plan.more_modules):
        mlp, moe = share * plan.again("mlp")[:, None], share * plan.again("moe")[:, None]
        blocks_again = mlp * counts[..., 3] + moe * (once - layers - counts[..., 3])
        exchanges = exchanges + moe * mixtures
    exchange = exchanges * blocks.exchange[:, None]
    if some(plan.expert_overlap):
        computed = layer_forward + layer_backward + again + whole_waiting + whole_context
        hidden = plan.expert_overlap[:, None] * np.minimum(exchange, computed)
        exchange = exchange - (1.0 - constants["experts"]["overlap_tax"]) * hidden
    return _Stage(
        forward=whole_forward,
        backward=whole_backward,
        again=again,
        weight_gradients=total(counts * blocks.weight_gradients[:, None, :]),
        tensor=tensor * ((passes - 1.0) * once + blocks_again + total(counts[..., _OUTSIDE])) + tensor_backward * once,
        context=whole_context,
        expert=exchange + exchanges * blocks.expert[:, None],
        waiting=whole_waiting,
        backward_waiting=whole_waiting - waiting,
        forward_span=whole_forward + waiting + exchanged,
        backward_span=whole_backward + again + whole_waiting - waiting + whole_context - exchanged,
    )


def _bubble(setting: Setting, stage: _Stage, transfer: Array) -> Array:
    plan = setting.plan
    stages, chunks = plan.pipeline_parallel, plan.virtual_pipeline
    plain = pipeline_bubble_time(stage.time + transfer, stages, chunks)
    if not some(plan.pipeline_schedule >= PipelineSchedule.ZERO_BUBBLE):
        return plain
    forward, backward = stage.passes(transfer)
    weights = np.minimum(stage.weight_gradients, backward)
    # where the host is waited for, half of what it launches in a backward pass are gradients of weights
    weights = np.maximum(weights, np.minimum(weights + stage.backward_waiting, 0.5 * backward))
    filled = zero_bubble_time(forward, backward - weights, weights, stages)
    both = dualpipe_bubble_time(forward + backward, backward, weights, stages)
    return np.where(
        plan.pipeline_schedule == PipelineSchedule.ZERO_BUBBLE, filled, np.where(plan.dualpipe, both, plain)
    )


def _uneven_bubble(stages: Array, critical: Array, between: Array) -> Array:
    """Time in which the slowest stage waits while one micro-batch passes all others, of which so many full ones."""
    others = stages[:, _FULL] + stages[:, _LAST] + between * stages[:, _MIDDLE]
    return np.asarray(others - stages[np.arange(len(critical)), critical])


def _data_parallel_time(setting: Setting, communication: Communication, stage: _Stage) -> Array:
    """Exposed reduction of gradients and gathering of weights; ZeRO-3 repeats both for every micro-batch, but for what
    passes between groups of shards.
    """
    plan = setting.plan
    window = setting.constants["training_software"]["data_parallel_overlap"][:, 0]
    tax = setting.constants["training_software"]["overlap_tax"][:, 0]
    sharded = plan.regathers
    repeats = np.where(sharded, plan.num_micro_batches, 1.0)
    reduce = communication.gradient_reduce.time + communication.expert_gradient_reduce.time
    gather = communication.weight_gather.time + communication.expert_weight_gather.time
    behind_backward = reduce + np.where(sharded, gather, 0.0)
    between = communication.group_reduce.time + communication.expert_group_reduce.time
    hidden = window * stage.backward_span

    def seen(time: Array, beside: Array) -> Array:
        behind = np.minimum(time, beside)
        return np.asarray(time - (1.0 - tax) * behind)

    forward = seen(gather, window * stage.forward_span)
    last = seen(behind_backward + between, hidden) + forward
    return np.asarray((repeats - 1.0) * (seen(behind_backward, hidden) + forward) + last)


def _sharding_time(setting: Setting, layers: Array) -> Array | float:
    """Time in which the host hands out the shards of a stage's layers, once a step, (rows,). [s]"""
    plan, each = setting.plan, setting.constants["training_software"]["shard_overhead_time"][:, 0]
    if not some(each):
        return 0.0
    between = (plan.zero_stage > 0) & (plan.zero_stage < 3) & (plan.zero_shards > 1)
    return np.where(between, layers * plan.zero_shards * each, 0.0)


def _recomputed_flop(setting: Setting, scores: Array, forward: Array, layers: Array) -> Array:
    """FLOP per token that are computed again, averaged over the layers of a full stage, (rows,). [FLOP]"""
    model, plan = setting.model, setting.plan
    found = plan.again("core_attention") * scores
    if some(plan.more_modules):
        dense = expert_parameters(model.hidden_size, model.ffn_hidden_size, model.gated_mlp)
        width = model.top_k * model.expert_ffn_hidden_size + model.shared_ffn_hidden_size
        mixture = expert_parameters(model.hidden_size, width, model.gated_mlp)
        again = plan.again("mlp") * model.num_dense_layers * dense + plan.again("moe") * model.num_moe_layers * mixture
        found = np.where(plan.again("products") > 0, 0.5 * (forward - scores), found + 2.0 * again)
    found = np.where(plan.recompute == Recompute.FULL, forward, found)
    return np.asarray(np.minimum(plan.recompute_layers / layers, 1.0) * found)


def _copied_weights(setting: Setting, narrow: Array) -> Array:
    """Bytes moved once a step to make the narrow copies of the weights; where gathered ones were not cast before."""
    plan = setting.plan
    share = 1.0 - plan.wide_layers / setting.model.num_layers
    cast = plan.cast_reads * plan.element_size + LAYOUTS * plan.product_size
    turned = LAYOUTS * plan.product_size  # gathered in one layout, read and written once more in the other
    primary = (plan.quantized_copies == QuantizedCopies.PRIMARY) & (plan.turns > 0)
    each = np.where(primary, turned, np.where(plan.regathers, 0.0, cast))
    return np.where(plan.keeps_copies & ~plan.frozen, share * narrow * each, 0.0)


def _with_mtp(
    setting: Setting, held: RankParameters, parameters: Array, experts: Array, layers: Array, mixtures: Array
) -> tuple[Array, Array]:
    """Parameters of the fullest stage where the last one, of so many layers, trains modules of its own as well."""
    model, plan = setting.model, setting.plan
    mtp = plan.mtp_layers
    mixed = np.where(model.num_moe_layers > 0, mtp, 0.0)
    shared = np.where(model.num_experts > 0, held.shared, 0.0)
    modules = mtp * (held.attention + held.mtp) + (mtp - mixed) * held.mlp + mixed * shared
    last = layers * held.attention + (layers - mixtures) * held.mlp + mixtures * shared + held.embedding + held.head
    routed = (mixtures + mixed) * held.experts
    single, trained = plan.pipeline_parallel < 2, mtp > 0
    copies = plan.weight_copies
    fullest = np.where(single, parameters + modules, np.maximum(parameters, copies * (last + modules)))
    fullest_routed = np.where(single, experts + mixed * held.experts, np.maximum(experts, copies * routed))
    return np.where(trained, fullest, parameters), np.where(trained, fullest_routed, experts)


def _met_adapters(setting: Setting) -> Array:
    """Parameters of adapters that a token meets, (rows,). [-]"""
    model = setting.model
    layer = adapter_parameters(model, setting.plan, np.ones_like(model.num_layers))
    return np.asarray(model.num_layers * layer.attention + model.num_dense_layers * layer.mlp)


def _met_with_mtp(setting: Setting, met: Array, scores: Array) -> tuple[Array, Array]:
    """Weights and attention FLOP that a token meets, with those of the modules that are trained."""
    model, mtp = setting.model, setting.plan.mtp_layers
    module = layer_matrices(model, experts_per_token=True) + 2.0 * model.hidden_size**2
    return met + mtp * (module + model.hidden_size * model.vocab_size), scores * (1.0 + mtp / model.num_layers)


def step(setting: Setting) -> Step:
    """Time and memory of one optimizer step.

    Parameters
    ----------
    setting : Setting
        Model, device, network, plan and calibration. [-]

    Returns
    -------
    Step
        Pieces and results; ``results`` has the columns of ``training_results`` that are physics. [s, B]
    """
    model, plan = setting.model, setting.plan
    stages, chunks, batches = plan.pipeline_parallel, plan.virtual_pipeline, plan.num_micro_batches
    parts = kernel_parts(setting)
    start_layers, full_layers, last_layers = setting.stages
    full_layers = np.where(full_layers > 0, full_layers, np.maximum(start_layers, last_layers))
    full_mixtures = mixture_layers(model, full_layers, stages, first=False)
    last_mixtures = mixture_layers(model, last_layers, stages, first=False)
    first_layers, first_mixtures = full_layers, full_mixtures
    starts = ~np.isnan(plan.first_stage_layers) | (plan.split_by_cost)
    if some(starts):
        first_layers = np.where(starts, start_layers, full_layers)
        first_mixtures = np.where(starts, mixture_layers(model, start_layers, stages, first=True), full_mixtures)
    single = np.where(stages < 2, 1.0, 0.0)

    held = rank_parameters(model, plan)
    dense = full_layers - full_mixtures
    parameters = (
        full_layers * held.attention
        + dense * held.mlp
        + full_mixtures * np.where(model.num_experts > 0, held.shared, 0.0)
        + held.embedding
        + single * held.head
    )
    parameters = plan.weight_copies * parameters
    experts = plan.weight_copies * full_mixtures * held.experts
    mtp = plan.mtp_layers
    mtp_mixtures = np.where(model.num_moe_layers > 0, mtp, 0.0)
    if some(mtp):
        parameters, experts = _with_mtp(setting, held, parameters, experts, last_layers, last_mixtures)
    narrow = plan.weight_copies * held.narrow(full_layers, full_mixtures)
    trained, trained_experts = parameters, experts
    frozen = plan.frozen
    if some(frozen):
        adapters = full_layers * held.adapters.attention + dense * held.adapters.mlp
        adapters = np.where(frozen, plan.weight_copies * adapters, 0.0)
        parameters = parameters + adapters
        trained, trained_experts = np.where(frozen, adapters, parameters), np.where(frozen, 0.0, experts)
    communication = communication_of(setting, parameters, experts, narrow, trained, trained_experts)
    blocks = _blocks(setting, parts, communication)

    one, none = ones(single), np.zeros(single.shape)
    ahead = side_by_side(single * mtp, mtp, none)
    counts = _counts(
        model,
        side_by_side(first_layers + single * mtp, last_layers + mtp, full_layers),
        side_by_side(first_mixtures + single * mtp_mixtures, last_mixtures + mtp_mixtures, full_mixtures),
        side_by_side(single, one, none) + ahead,
        side_by_side(one, single, none) + ahead,
        ahead,
    )
    paired = plan.dualpipe
    if some(paired):  # half of the micro-batches meet the first stage, half the last
        counts[paired, :_MIDDLE] = 0.5 * (counts[paired, _FULL] + counts[paired, _LAST])[:, None]
    kinds = _stages(setting, blocks, counts)
    times_of_kinds = kinds.time
    which = np.where((times_of_kinds[:, _LAST] > times_of_kinds[:, _FULL]) & (stages > 1), _LAST, _FULL)
    if some(starts) or some(paired):
        slowest = times_of_kinds[:, _MIDDLE] > np.maximum(times_of_kinds[:, _LAST], times_of_kinds[:, _FULL])
        which = np.where(slowest & (stages > 2), _MIDDLE, which)
    critical = kinds.kind(which)
    critical_counts = counts[np.arange(len(which)), which]

    transfer = np.where(stages > 1, 2.0 * chunks * communication.stage_transfer.time, 0.0)
    bubble = _bubble(setting, kinds.kind(_MIDDLE), transfer)
    dealt = plan.split_by_cost & (stages > 1)
    if some(dealt):
        between = (model.num_layers - start_layers - last_layers) / full_layers
        bubble = np.where(dealt, _uneven_bubble(times_of_kinds + transfer[:, None], which, between), bubble)
    overlapped = np.where(((chunks > 1) | paired) & (plan.pipeline_overlap > 0), 1.0, 0.0)
    transfers = exposed_transfer_time(
        communication.stage_transfer.time, *critical.passes(), batches, stages, chunks, overlapped
    )
    data = _data_parallel_time(setting, communication, kinds.kind(_FULL))

    owners = np.where(plan.zero_stage > 0, plan.zero_shards, 1.0)
    expert_owners = np.where(plan.zero_stage > 0, plan.expert_zero_shards, 1.0)
    state = optimizer_element_size(plan.adam, plan.element_size, WORD, plan.moment_size, plan.master_size)
    touched = 2.0 * plan.gradient_size + 2.0 * state + plan.element_size
    sharded = (plan.zero_stage > 1) & (stages < 2)
    cleared = plan.gradient_size * (
        trained / np.where(sharded, owners, 1.0) + trained_experts / np.where(sharded, expert_owners, 1.0)
    )
    optimizer_traffic = touched * (trained / owners + trained_experts / expert_owners) + cleared
    if some(plan.keeps_copies):
        optimizer_traffic = optimizer_traffic + _copied_weights(setting, narrow + experts)
    optimizer = vector_time(setting.device, setting.constants["vector"], optimizer_traffic[:, None], 0.0)[:, 0]

    times = {
        "time_forward": batches * critical.forward,
        "time_backward": batches * critical.backward,
        "time_recompute": batches * critical.again,
        "time_tensor_parallel": batches * critical.tensor,
        "time_context_parallel": batches * critical.context,
        "time_expert_parallel": batches * critical.expert,
        "time_pipeline_communication": transfers,
        "time_pipeline_bubble": bubble,
        "time_data_parallel": data,
        "time_optimizer": optimizer,
        "time_overhead": batches * critical.waiting + _sharding_time(setting, full_layers),
    }
    step_time = total(side_by_side(*times.values()))
    seen = model.num_global_layers * plan.sequence_length + model.num_local_layers * np.minimum(
        model.window, plan.sequence_length
    )
    head_size = 0.5 * (model.qk_head_size + model.v_head_size)
    scores = attention_flop(1.0, model.num_attention_heads, 1.0, seen, head_size)
    met = matrix_parameters(model, experts_per_token=True)
    if some(mtp):
        met, scores = _met_with_mtp(setting, met, scores)
    flop = training_flop_per_token(met, 0.5 * scores)
    head_flop = (1.0 + mtp) * 2.0 * model.hidden_size * model.vocab_size
    recomputed = _recomputed_flop(setting, scores, flop / 3.0 - head_flop, full_layers)
    if some(frozen):  # no gradients of frozen weights, all three products of adapters
        flop = np.where(frozen, flop - 2.0 * met + 6.0 * _met_adapters(setting), flop)
    rate = plan.global_batch_size * plan.sequence_length / step_time
    per_accelerator = rate / plan.num_accelerators
    peak = setting.device.peak_flop_rate[:, 0]
    results = {
        "step_time": step_time,
        **times,
        "layer_time": times_of_kinds[:, _MIDDLE] / full_layers,
        "tokens_per_second": rate,
        "tokens_per_second_per_accelerator": per_accelerator,
        "model_flop_rate": per_accelerator * flop,
        "mfu": per_accelerator * flop / peak,
        "hfu": per_accelerator * (flop + recomputed) / peak,
        **memory_of(setting, held),
    }
    called = {place: critical_counts[:, index] for index, place in enumerate(PLACES)}
    return Step(parts, communication, results, called, optimizer_traffic, optimizer)
