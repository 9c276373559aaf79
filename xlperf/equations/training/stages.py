"""Layers of the stages of a pipeline: shared out evenly, or as a plan gives those of the two ends."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, ceil_div, some
from xlperf.equations.model.model import Model, layer_matrices
from xlperf.equations.plan.pipeline import first_stage_layers, last_stage_layers, layers_dealt, stage_layers
from xlperf.equations.plan.training_plan import TrainingPlan

MODULE_LAYERS = 2.0
"""Layers that a multi-token prediction module with its output projection counts as when layers are dealt. [-]"""


class StageLayers(NamedTuple):
    """Layers of the first stage, of a full stage in between, and of the last stage, (rows,). [-]"""

    first: Array
    full: Array
    last: Array


def stages_of(model: Model, plan: TrainingPlan) -> StageLayers:
    """Layers of the kinds of stages of a plan.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    plan : TrainingPlan
        Stages, chunks, and layers of the ends where they are given, (rows,). [-]

    Returns
    -------
    StageLayers
        Dealt by cost, each stage has layers until its share of the work is exceeded. Otherwise what the ends do not
        take is shared evenly by the stages in between; a multi-token prediction module that is
        trained counts with its output projection as two layers of the last stage, which has so many fewer of the
        model: for DeepSeek-V3 on 16 stages 4, 14 x 4 and 1, as Megatron-Bridge lays it out. [-]
    """
    ahead = np.where(plan.pipeline_parallel > 1, MODULE_LAYERS * plan.mtp_layers, 0.0)
    shape = model.num_layers + ahead, plan.pipeline_parallel
    first, full = first_stage_layers(*shape), stage_layers(*shape)
    last = np.maximum(last_stage_layers(*shape) - ahead, 0.0)
    if some(plan.split_by_cost):
        first, full, last = _by_cost(model, plan, StageLayers(first, full, last))
    given = plan.ends_given
    if not some(given):
        return StageLayers(first, full, last)
    starts, ends = ~np.isnan(plan.first_stage_layers), ~np.isnan(plan.last_stage_layers)
    share = np.where(given, _between(model, plan), full)
    return StageLayers(
        np.where(starts, plan.first_stage_layers, np.where(given, share, first)),
        share,
        np.where(ends, plan.last_stage_layers, np.where(given, share, last)),
    )


def _by_cost(model: Model, plan: TrainingPlan, even: StageLayers) -> StageLayers:
    """Layers of stages that take them in order until each exceeds its share of the work."""
    stages = plan.pipeline_parallel
    head = model.vocab_size * model.hidden_size / layer_matrices(model, experts_per_token=True)
    share = (model.num_layers + head) / stages
    start = layers_dealt(share, model.num_layers)
    fullest = np.zeros_like(start)
    before = start
    for stage in range(2, int(np.max(np.where(plan.split_by_cost, stages, 1.0)))):
        after = np.where(stage < stages, layers_dealt(stage * share, model.num_layers), before)
        fullest, before = np.maximum(fullest, after - before), after
    dealt = plan.split_by_cost & (stages > 1)
    found = StageLayers(start, fullest, model.num_layers - before)
    return StageLayers(*(np.where(dealt, one, other) for one, other in zip(found, even, strict=True)))


def _between(model: Model, plan: TrainingPlan) -> Array:
    """Layers of a stage whose layers are not given, chunks of one size; 0 where all are given."""
    chunks = plan.virtual_pipeline
    even = chunks * ceil_div(model.num_layers - plan.given_layers, np.maximum(plan.open_stages, 1.0) * chunks)
    return np.asarray(np.where(plan.open_stages > 0, even, 0.0) + 0.0 * model.num_layers)
