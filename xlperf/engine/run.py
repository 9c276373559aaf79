"""Whole training runs: only for plans that say how many tokens they train on."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from xlperf.base.arrays import Array, some
from xlperf.catalog.table import Table
from xlperf.engine.join import Joined
from xlperf.equations.cost.tco import carbon_of_energy
from xlperf.equations.cost.tokens import run_cost
from xlperf.equations.model.model import mtp_parameters, parameter_count
from xlperf.equations.plan.memory import optimizer_element_size
from xlperf.equations.plan.training_plan import TrainingPlan
from xlperf.equations.training import run
from xlperf.equations.training.adapters import adapter_parameters
from xlperf.equations.training.setting import WORD

COLUMNS = (
    "run_steps",
    "checkpoint_size",
    "checkpoint_interval",
    "goodput",
    "run_time",
    "run_cost",
    "run_energy",
    "run_carbon",
)


def run_results(plans: Table, plan: TrainingPlan, joined: Joined, results: Mapping[str, Array]) -> dict[str, Array]:
    """Results of the runs of a block of plans.

    Parameters
    ----------
    plans : Table
        Training plans.
    plan : TrainingPlan
        The same with blanks filled.
    joined : Joined
        What they refer to.
    results : mapping of str to Array
        With the time of a step.

    Returns
    -------
    dict of str to Array
        Each of :data:`COLUMNS`, NaN where a plan names no tokens.
    """
    if "training_tokens" not in plans or np.isnan(plans.number("training_tokens")).all():
        return dict.fromkeys(COLUMNS, np.full(len(plans), np.nan))
    steps = run.num_steps(plans.number("training_tokens"), plan.global_batch_size, plan.sequence_length)
    asked = np.where(np.isnan(steps), np.nan, 1.0)
    state = optimizer_element_size(plan.adam, plan.element_size, WORD, plan.moment_size, plan.master_size)
    parameters = parameter_count(joined.model) + np.where(plan.mtp_layers > 0, mtp_parameters(joined.model), 0.0)
    frozen = plan.frozen
    if some(frozen):
        model = joined.model
        layer = adapter_parameters(model, plan, np.ones_like(model.num_layers))
        adapters = model.num_layers * layer.attention + model.num_dense_layers * layer.mlp
        parameters = np.where(frozen, adapters, parameters)
    size = asked * run.checkpoint_size(parameters, plan.element_size, state)
    write_time = size / plans.filled("checkpoint_bandwidth")
    failures = run.time_between_failures(plans.filled("accelerator_mtbf"), plan.num_accelerators)
    interval = run.checkpoint_interval(write_time, failures)
    share = run.goodput(interval, write_time, failures, plans.filled("restart_time"))
    time = run.run_time(steps, results["step_time"], share)
    energy = joined.terms.power * plan.num_accelerators * time
    return {
        "run_steps": steps,
        "checkpoint_size": size,
        "checkpoint_interval": interval,
        "goodput": share,
        "run_time": time,
        "run_cost": run_cost(joined.terms.cost_rate, plan.num_accelerators, time),
        "run_energy": energy,
        "run_carbon": carbon_of_energy(energy, joined.terms.carbon_intensity),
    }
