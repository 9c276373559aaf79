"""Time of an optimizer step, from the operators of a layer up.

Arrays have shape (rows,) but for operators, which have (rows, operators). The step is built for the critical
stage: the slower of a full stage and the last one, which holds the output projection.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.arrays import Array, total
from xlperf.hardware.kernels import vector_time
from xlperf.parallel.memory import optimizer_element_size
from xlperf.parallel.pipeline import (
    dualpipe_bubble_time,
    last_stage_layers,
    pipeline_bubble_time,
    stage_layers,
    zero_bubble_time,
)
from xlperf.parallel.plan import DUALPIPE, RECOMPUTE_FULL, RECOMPUTE_SELECTIVE, ZERO_BUBBLE
from xlperf.training.communication import Communication, communication_of, context_time
from xlperf.training.kernels import kernel_parts, phase_time
from xlperf.training.memory import memory_of, mixture_layers, rank_parameters
from xlperf.training.setting import WORD, Part, Setting
from xlperf.workload.parameters import matrix_parameters
from xlperf.workload.transformer import attention_flop, training_flop_per_token

FORWARD, BACKWARD = 0, 1


class Counts(NamedTuple):
    """How often the critical stage runs each place per micro-batch, (rows,). [-]"""

    layers: Array
    global_layers: Array
    local_layers: Array
    dense: Array
    mixtures: Array
    head: Array
    embedding: Array

    def at(self, place: str) -> Array:
        """Count of a place of :mod:`xlperf.training.kernels`. [-]"""
        return {
            "attention": self.layers,
            "core": self.global_layers,
            "local core": self.local_layers,
            "mlp": self.dense,
            "moe": self.mixtures,
            "head": self.head,
            "embedding": self.embedding,
        }[place]


class Step(NamedTuple):
    """A step in pieces: kernels, collectives, and how often the critical stage runs each."""

    parts: list[Part]
    communication: Communication
    results: dict[str, Array]
    counts: Counts
    optimizer_traffic: Array
    optimizer_time: Array


class _Stage(NamedTuple):
    """Times of one micro-batch on one stage, (rows,). [s]"""

    forward: Array
    backward: Array
    again: Array
    weight_gradients: Array
    tensor: Array
    context: Array
    expert: Array
    waiting: Array

    @property
    def time(self) -> Array:
        shown = (self.forward, self.backward, self.again, self.tensor, self.context, self.expert, self.waiting)
        return total(np.stack(np.broadcast_arrays(*shown), axis=-1))


class _Blocks(NamedTuple):
    """Times of one block, (rows,), by place: kernels forward and backward, weight gradients, communication. [s]"""

    forward: dict[str, Array]
    backward: dict[str, Array]
    weight_gradients: dict[str, Array]
    tensor: Array
    context_forward: Array
    context_backward: Array
    expert: Array
    shared: Array


_PLACES = ("attention", "core", "local core", "mlp", "moe", "head", "embedding")


def _blocks(setting: Setting, parts: list[Part], communication: Communication) -> _Blocks:
    software = {name: values[:, 0] for name, values in setting.constants["training_software"].items()}
    slowdown = software["kernel_slowdown"]
    forward = {place: slowdown * phase_time(parts, "forward", place) for place in _PLACES}
    backward = {place: slowdown * phase_time(parts, "backward", place) for place in _PLACES}
    weights = {place: slowdown * phase_time(parts, "backward", place, "weight gradient") for place in _PLACES}
    split = setting.plan.sequence_parallel > 0
    visible = 1.0 - software["tensor_parallel_overlap"]
    pair = communication.tensor_gather.time + communication.tensor_scatter.time
    context = context_time(setting, communication, forward["core"], backward["core"])
    return _Blocks(
        forward,
        backward,
        weights,
        visible * np.where(split, pair, communication.tensor_reduce.time),
        context[:, FORWARD],
        context[:, BACKWARD],
        2.0 * communication.expert_exchange.time + communication.expert_gather.time + communication.expert_scatter.time,
        np.where(setting.model.shared_ffn_hidden_size > 0, 1.0, 0.0),
    )


def _counts(setting: Setting, layers: Array, mixtures: Array, head: Array, embedding: Array) -> Counts:
    model = setting.model
    local = layers * model.num_local_layers / model.num_layers
    return Counts(layers, layers - local, local, layers - mixtures, mixtures, head, embedding)


def _stage(setting: Setting, blocks: _Blocks, counts: Counts) -> _Stage:
    plan = setting.plan
    host = counts.layers * setting.constants["training_software"]["layer_overhead_time"][:, 0]
    host = host + counts.mixtures * setting.constants["experts"]["layer_overhead_time"][:, 0]
    full = plan.recompute == RECOMPUTE_FULL
    selective = plan.recompute == RECOMPUTE_SELECTIVE

    def summed(times: dict[str, Array], places: tuple[str, ...]) -> Array:
        return np.asarray(sum(counts.at(place) * times[place] for place in places))

    layer_places = _PLACES[:5]
    layer_forward, layer_backward = summed(blocks.forward, layer_places), summed(blocks.backward, layer_places)
    core = summed(blocks.forward, ("core", "local core"))
    again = np.where(full, layer_forward, np.where(selective, core, 0.0))
    passes = np.where(full, 3.0, 2.0)
    once = counts.layers + counts.dense + counts.mixtures * blocks.shared
    tensor = blocks.tensor * (passes * once + counts.head + counts.embedding)
    context = counts.layers * ((passes - 1.0) * blocks.context_forward + blocks.context_backward)
    expert = counts.mixtures * passes * blocks.expert
    idle = np.maximum(host - layer_forward - blocks.tensor * once, 0.0) * (passes - 1.0)
    idle = idle + np.maximum(host - layer_backward - blocks.tensor * once, 0.0)
    return _Stage(
        forward=layer_forward + summed(blocks.forward, ("head", "embedding")),
        backward=layer_backward + summed(blocks.backward, ("head", "embedding")),
        again=again,
        weight_gradients=summed(blocks.weight_gradients, _PLACES),
        tensor=tensor,
        context=context,
        expert=expert,
        waiting=idle,
    )


def _bubble(setting: Setting, stage: _Stage, transfer: Array) -> Array:
    plan = setting.plan
    stages, chunks = plan.pipeline_parallel, plan.virtual_pipeline
    whole = stage.time + transfer
    share = 0.5 * (stage.tensor + stage.context + stage.expert + transfer)
    forward = stage.forward + share
    backward = stage.backward + stage.again + stage.waiting + share
    weights = np.minimum(stage.weight_gradients, backward)
    filled = zero_bubble_time(forward, backward - weights, weights, stages)
    both = dualpipe_bubble_time(forward + backward, backward, weights, stages)
    plain = pipeline_bubble_time(whole, stages, chunks)
    return np.where(plan.schedule == ZERO_BUBBLE, filled, np.where(plan.schedule == DUALPIPE, both, plain))


def _data_parallel_time(setting: Setting, communication: Communication, stage: _Stage) -> Array:
    """Exposed reduction of gradients and gathering of weights; ZeRO-3 repeats both for every micro-batch."""
    plan = setting.plan
    window = setting.constants["training_software"]["data_parallel_overlap"][:, 0]
    sharded = plan.zero_stage > 2
    repeats = np.where(sharded, plan.num_micro_batches, 1.0)
    reduce = communication.gradient_reduce.time + communication.expert_gradient_reduce.time
    gather = communication.weight_gather.time + communication.expert_weight_gather.time
    behind_backward = reduce + np.where(sharded, gather, 0.0)
    return np.asarray(
        repeats
        * (
            np.maximum(behind_backward - window * (stage.backward + stage.again), 0.0)
            + np.maximum(gather - window * stage.forward, 0.0)
        )
    )


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
    full_layers = stage_layers(model.num_layers, stages, chunks)
    last_layers = last_stage_layers(model.num_layers, stages, chunks)
    full_mixtures = mixture_layers(model, full_layers, stages, first=False)
    last_mixtures = mixture_layers(model, last_layers, stages, first=False)
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
    experts = full_mixtures * held.experts
    communication = communication_of(setting, parameters, experts)
    blocks = _blocks(setting, parts, communication)

    ones, none = np.ones_like(single), np.zeros_like(single)
    full = _stage(setting, blocks, _counts(setting, full_layers, full_mixtures, single, ones))
    last = _stage(setting, blocks, _counts(setting, last_layers, last_mixtures, ones, single))
    middle = _stage(setting, blocks, _counts(setting, full_layers, full_mixtures, none, none))
    is_last = (last.time > full.time) & (stages > 1)
    counts = Counts(*(np.where(is_last, b, a) for a, b in zip(
        _counts(setting, full_layers, full_mixtures, single, ones),
        _counts(setting, last_layers, last_mixtures, ones, single), strict=True)))  # fmt: skip
    critical = _Stage(*(np.where(is_last, b, a) for a, b in zip(full, last, strict=True)))

    transfer = np.where(stages > 1, 2.0 * chunks * communication.stage_transfer.time, 0.0)
    bubble = _bubble(setting, middle, transfer)
    data = _data_parallel_time(setting, communication, full)

    owners = np.where(plan.zero_stage > 0, plan.shards, 1.0)
    expert_owners = np.where(plan.zero_stage > 0, plan.expert_shards, 1.0)
    state = optimizer_element_size(plan.adam, plan.element_size, WORD)
    touched = 2.0 * plan.gradient_size + 2.0 * state + plan.element_size
    sharded = plan.zero_stage > 1
    cleared = plan.gradient_size * (
        parameters / np.where(sharded, owners, 1.0) + experts / np.where(sharded, expert_owners, 1.0)
    )
    optimizer_traffic = touched * (parameters / owners + experts / expert_owners) + cleared
    optimizer = vector_time(setting.device, setting.constants["vector"], optimizer_traffic[:, None], 0.0)[:, 0]

    times = {
        "time_forward": batches * critical.forward,
        "time_backward": batches * critical.backward,
        "time_recompute": batches * critical.again,
        "time_tensor_parallel": batches * critical.tensor,
        "time_context_parallel": batches * critical.context,
        "time_expert_parallel": batches * critical.expert,
        "time_pipeline_communication": batches * transfer,
        "time_pipeline_bubble": bubble,
        "time_data_parallel": data,
        "time_optimizer": optimizer,
        "time_overhead": batches * critical.waiting,
    }
    step_time = total(np.stack(np.broadcast_arrays(*times.values()), axis=-1))
    seen = model.num_global_layers * plan.sequence_length + model.num_local_layers * np.minimum(
        model.window, plan.sequence_length
    )
    head_size = 0.5 * (model.qk_head_size + model.v_head_size)
    scores = attention_flop(1.0, model.num_attention_heads, 1.0, seen, head_size)
    met = matrix_parameters(model, experts_per_token=True)
    flop = training_flop_per_token(met, 0.5 * scores)
    head_flop = 2.0 * model.hidden_size * model.vocab_size
    recomputed = np.where(
        plan.recompute == RECOMPUTE_FULL,
        flop / 3.0 - head_flop,
        np.where(plan.recompute == RECOMPUTE_SELECTIVE, scores, 0.0),
    )
    rate = plan.global_batch_size * plan.sequence_length / step_time
    per_accelerator = rate / plan.num_accelerators
    peak = setting.device.peak_flop_rate[:, 0]
    results = {
        "step_time": step_time,
        **times,
        "tokens_per_second": rate,
        "tokens_per_second_per_accelerator": per_accelerator,
        "model_flop_rate": per_accelerator * flop,
        "mfu": per_accelerator * flop / peak,
        "hfu": per_accelerator * (flop + recomputed) / peak,
        **memory_of(setting),
    }
    return Step(parts, communication, results, counts, optimizer_traffic, optimizer)
