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
from xlperf.parallel.pipeline import last_stage_layers, pipeline_bubble_time, stage_layers
from xlperf.parallel.plan import RECOMPUTE_FULL, RECOMPUTE_SELECTIVE
from xlperf.training.communication import Communication, communication_of
from xlperf.training.kernels import kernel_parts, phase_time
from xlperf.training.memory import layer_and_head_parameters, memory_of
from xlperf.training.setting import WORD, Part, Setting
from xlperf.workload.transformer import attention_flop, layer_matrix_parameters, training_flop_per_token


class Step(NamedTuple):
    """A step in pieces: kernels, collectives, and how often the critical stage runs each."""

    parts: list[Part]
    communication: Communication
    results: dict[str, Array]
    layers: Array
    head: Array
    embedding: Array
    optimizer_traffic: Array
    optimizer_time: Array


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
    software = {name: values[:, 0] for name, values in setting.constants["training_software"].items()}
    parts = kernel_parts(setting)
    stages, chunks, batches = plan.pipeline_parallel, plan.virtual_pipeline, plan.num_micro_batches
    slowdown = software["kernel_slowdown"]
    core = slowdown * phase_time(parts, "forward", "attention")
    forward = slowdown * phase_time(parts, "forward", "layer") + core
    backward = slowdown * phase_time(parts, "backward", "layer")
    full = plan.recompute == RECOMPUTE_FULL
    again = np.where(full, forward, np.where(plan.recompute == RECOMPUTE_SELECTIVE, core, 0.0))

    layer_parameters, embedding_parameters, head_parameters = layer_and_head_parameters(model, plan)
    full_layers = stage_layers(model.num_layers, stages, chunks)
    last_layers = last_stage_layers(model.num_layers, stages, chunks)
    parameters = full_layers * layer_parameters + embedding_parameters + np.where(stages < 2, head_parameters, 0.0)
    communication = communication_of(setting, parameters)

    split = plan.sequence_parallel > 0
    visible = 1.0 - software["tensor_parallel_overlap"]
    once = visible * np.where(
        split, communication.tensor_gather + communication.tensor_scatter, communication.tensor_reduce
    )
    passes = np.where(full, 3.0, 2.0)
    tensor = 2.0 * passes * once
    host = software["layer_overhead_time"]
    waiting = np.maximum(host - forward - 2.0 * once, 0.0) * (passes - 1.0) + np.maximum(
        host - backward - 2.0 * once, 0.0
    )

    head_forward = slowdown * phase_time(parts, "forward", "head")
    head_backward = slowdown * phase_time(parts, "backward", "head")
    embedding = slowdown * phase_time(parts, "forward", "embedding")
    layer_time = forward + backward + again + tensor + waiting
    head_time = head_forward + head_backward + once
    embedding_time = embedding + once
    is_last = last_layers * layer_time + head_time > full_layers * layer_time + embedding_time
    has_head = np.where(is_last | (stages < 2), 1.0, 0.0)
    has_embedding = np.where(is_last & (stages > 1), 0.0, 1.0)
    layers = np.where(is_last & (stages > 1), last_layers, full_layers)

    transfer = np.where(stages > 1, 2.0 * chunks * communication.stage_transfer, 0.0)
    stage_time = full_layers * layer_time + transfer
    bubble = pipeline_bubble_time(stage_time, stages, chunks)

    window = software["data_parallel_overlap"]
    forward_window = window * (full_layers * forward + head_forward)
    backward_window = window * (full_layers * (backward + again) + head_backward)
    sharded = plan.zero_stage > 2
    repeats = np.where(sharded, batches, 1.0)
    gathers = np.where(sharded, 2.0, 1.0) * communication.weight_gather
    data = repeats * (
        np.maximum(communication.gradient_reduce + np.where(sharded, 0.5, 0.0) * gathers - backward_window, 0.0)
        + np.maximum(np.where(sharded, 0.5, 1.0) * gathers - forward_window, 0.0)
    )

    owners = np.where(plan.zero_stage > 0, plan.data_parallel, 1.0)
    state = optimizer_element_size(plan.adam, plan.element_size, WORD)
    touched = 2.0 * plan.gradient_size + 2.0 * state + plan.element_size
    cleared = np.where(plan.zero_stage > 1, owners, 1.0)
    optimizer_traffic = parameters * (touched / owners + plan.gradient_size / cleared)
    optimizer = vector_time(setting.device, setting.constants["vector"], optimizer_traffic[:, None], 0.0)[:, 0]

    times = {
        "time_forward": batches * (layers * forward + has_head * head_forward + has_embedding * embedding),
        "time_backward": batches * (layers * backward + has_head * head_backward),
        "time_recompute": batches * layers * again,
        "time_tensor_parallel": batches * (layers * tensor + (has_head + has_embedding) * once),
        "time_context_parallel": np.zeros_like(batches),
        "time_expert_parallel": np.zeros_like(batches),
        "time_pipeline_communication": batches * transfer,
        "time_pipeline_bubble": bubble,
        "time_data_parallel": data,
        "time_optimizer": optimizer,
        "time_overhead": batches * layers * waiting,
    }
    step_time = total(np.stack(list(times.values()), axis=-1))
    flop = training_flop_per_token(
        model.num_layers,
        layer_matrix_parameters(
            model.hidden_size,
            model.num_attention_heads,
            model.num_query_groups,
            model.head_size,
            model.ffn_hidden_size,
            model.gated_mlp,
        ),
        model.hidden_size,
        model.vocab_size,
        model.num_attention_heads,
        model.head_size,
        plan.sequence_length,
    )
    scores = model.num_layers * attention_flop(
        1.0, model.num_attention_heads, 1.0, plan.sequence_length, model.head_size
    )
    head_flop = 2.0 * model.hidden_size * model.vocab_size
    recomputed = np.where(full, flop / 3.0 - head_flop, np.where(plan.recompute == RECOMPUTE_SELECTIVE, scores, 0.0))
    tokens = plan.global_batch_size * plan.sequence_length
    rate = tokens / step_time
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
    return Step(parts, communication, results, layers, has_head, has_embedding, optimizer_traffic, optimizer)
