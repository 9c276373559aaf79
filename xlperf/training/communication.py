"""Collectives of a training step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.arrays import Array
from xlperf.network.collectives import collective_time
from xlperf.parallel.plan import TrainingPlan
from xlperf.training.setting import Setting, columns


def _stride(plan: TrainingPlan) -> tuple[Array, Array]:
    """Distance of neighbouring data-parallel and pipeline ranks."""
    return plan.tensor_parallel, plan.tensor_parallel * plan.data_parallel


class Communication(NamedTuple):
    """Seconds and bytes of the collectives of a plan, (rows,); tensor-parallel ones per layer and direction."""

    tensor_reduce: Array
    tensor_gather: Array
    tensor_scatter: Array
    stage_transfer: Array
    gradient_reduce: Array
    weight_gather: Array
    tensor_message: Array
    stage_message: Array
    gradient_message: Array
    weight_message: Array


def communication_of(setting: Setting, parameters: Array) -> Communication:
    """Time and size of every collective of a step.

    Parameters
    ----------
    setting : Setting
        Model, network, plan and calibration. [-]
    parameters : Array
        Parameters of the fullest stage on one tensor-parallel rank, (rows,). [-]

    Returns
    -------
    Communication
        Seconds and bytes, (rows,). [s, B]
    """
    plan, network, constants = setting.plan, setting.network, setting.constants
    data_stride, stage_stride = _stride(plan)
    tensor_message = plan.tokens * setting.model.hidden_size * plan.element_size
    stage_message = tensor_message / plan.tensor_parallel
    gradient_message = parameters * plan.gradient_size
    weight_message = parameters * plan.element_size
    group = columns(plan.tensor_parallel, plan.data_parallel)
    stride = columns(np.ones_like(data_stride), data_stride)
    reduce = collective_time(
        "all_reduce", columns(tensor_message, gradient_message), group, stride, network, constants["all_reduce"]
    )
    gather = collective_time(
        "all_gather", columns(tensor_message, weight_message), group, stride, network, constants["all_gather"]
    )
    scatter = collective_time(
        "reduce_scatter", columns(tensor_message, gradient_message), group, stride, network, constants["reduce_scatter"]
    )
    transfer = collective_time(
        "point_to_point",
        stage_message[:, None],
        plan.pipeline_parallel[:, None],
        stage_stride[:, None],
        network,
        constants["point_to_point"],
    )
    return Communication(
        tensor_reduce=reduce[:, 0],
        tensor_gather=gather[:, 0],
        tensor_scatter=scatter[:, 0],
        stage_transfer=transfer[:, 0],
        gradient_reduce=np.where(plan.zero_stage > 0, scatter[:, 1], reduce[:, 1]),
        weight_gather=np.where(plan.zero_stage > 0, gather[:, 1], 0.0),
        tensor_message=tensor_message,
        stage_message=stage_message,
        gradient_message=gradient_message,
        weight_message=weight_message,
    )
