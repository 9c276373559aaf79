"""Power of training from the work of a step."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from xlperf.base.arrays import Array
from xlperf.equations.hardware.power import Machine, WorkRates, accelerator_power, traffic_from_memory
from xlperf.equations.model.model import Model
from xlperf.equations.plan.training_plan import TrainingPlan
from xlperf.equations.training.step import MESSAGE_PARTS


def training_power(machine: Machine, model: Model, plan: TrainingPlan, results: Mapping[str, Array]) -> Array:
    """Mean power of an accelerator over a training step; links draw power for hidden messages too.

    Heuristic, this work: :func:`accelerator_power` of the operations of a step, which bring a byte each
    ``compute_intensity`` of them.

    Parameters
    ----------
    machine : tuple
        Accelerators with limits and constants.
    model : Model
        Trained models, (rows,).
    plan : TrainingPlan
        Precision and degrees, (rows,).
    results : mapping of str to Array
        Times and utilisation of the step, (rows,).

    Returns
    -------
    Array
        (rows,). [W]
    """
    (device, _, constants), step = machine, results["step_time"]
    sending = np.minimum(
        sum((results[name] for name in (*MESSAGE_PARTS, "hidden_communication_time")), 0.0 * step) / step, 1.0
    )
    flop = results["hfu"] * device.peak_flop_rate[:, 0]
    traffic = flop / constants["compute_intensity"][:, 0]
    width = np.where(model.ffn_hidden_size > 0.0, model.ffn_hidden_size, model.hidden_size) / plan.tensor_parallel
    missing = traffic_from_memory(device, width, model.hidden_size, plan.tokens, plan.product_size)
    rates = WorkRates(flop, 0.0 * step, traffic, missing, sending, np.ones_like(step))
    return accelerator_power(*machine, plan.product_size, rates)
