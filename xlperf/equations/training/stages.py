"""What the stages of a pipeline hold: layers by kind, embedding, output head and MTP modules.

Kernels, communication and memory of a step are made from the contents of three stages: the first, one in the middle,
and the last.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, ceil_div, ones, side_by_side, some
from xlperf.equations.model.model import Model
from xlperf.equations.model.parameters import layer_matrices
from xlperf.equations.plan.pipeline import first_stage_layers, last_stage_layers, layers_through_stage, stage_layers
from xlperf.equations.plan.training_plan import TrainingPlan

MODULE_LAYERS = 2.0
"""Layer-equivalents of a multi-token prediction module with its output head in stage partitioning. [-]"""


class StageLayers(NamedTuple):
    """Layers of the first stage, of the fullest one in between (0 without any), and of the last, (rows,). [-]"""

    first: Array
    middle: Array
    last: Array


class StageContents(NamedTuple):
    """What a stage holds: counts of shape (rows,), or (rows, 3) for the first, a middle and the last stage. [-]

    Attributes
    ----------
    layers : Array
        Transformer layers, those of multi-token prediction (MTP) modules included. [-]
    mixtures : Array
        Layers among them whose feed-forward block is a mixture of experts. [-]
    embedding : Array
        Input embeddings. [-]
    head : Array
        Output heads. [-]
    mtp : Array
        MTP modules. [-]
    attention : Array
        Layers with an attention block: all but in hybrid models. [-]
    linear : Array
        Layers with a block of linear attention. [-]
    dense : Array
        Layers with a dense feed-forward block. [-]
    """

    layers: Array
    mixtures: Array
    embedding: Array
    head: Array
    mtp: Array
    attention: Array
    linear: Array
    dense: Array

    @property
    def mixers(self) -> Array:
        """Layers with attention of either kind. [-]"""
        return np.asarray(self.attention + self.linear)

    def mirrored(self, rows: np.ndarray) -> StageContents:
        """Three stages where, in some rows, a rank holds one of each end (DualPipe): the mean of both ends."""
        if not some(rows):
            return self
        mean = (0.5 * (values[:, :1] + values[:, 2:]) for values in self)
        ends = np.array([True, False, True]) & rows[:, None]
        return StageContents(*(np.where(ends, half, values) for half, values in zip(mean, self, strict=True)))


class Pipeline(NamedTuple):
    """Contents of the first stage, of the fullest one in between, and of the last; of one stage alone the first."""

    first: StageContents
    middle: StageContents
    last: StageContents

    def stages(self) -> StageContents:
        """All three beside each other, (rows, 3)."""
        return StageContents(*(side_by_side(*kinds) for kinds in zip(*self, strict=True)))


def stages_of(model: Model, plan: TrainingPlan) -> StageLayers:
    """Layers of the stages of a pipeline, excluding MTP modules.

    Split by cost, each stage takes layers until it exceeds its share of the work. Otherwise what the ends do not take
    is shared evenly by the stages in between. A trained MTP module counts with its output head as two layers of the
    last stage, which has two fewer of the model for each: for DeepSeek-V3 on 16 stages 4, 14 x 4 and 1, as
    Megatron-Bridge lays it out.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    plan : TrainingPlan
        Stages, chunks, and layers of the ends where they are given, (rows,). [-]

    Returns
    -------
    StageLayers
        Of the model's layers. [-]
    """
    ahead = np.where(plan.pipeline_parallel > 1, MODULE_LAYERS * plan.mtp_layers, 0.0)
    shape = model.num_layers + ahead, plan.pipeline_parallel
    first, middle = first_stage_layers(*shape), stage_layers(*shape)
    last = np.maximum(last_stage_layers(*shape) - ahead, 0.0)
    if some(plan.split_by_cost):
        first, middle, last = _by_cost(model, plan, StageLayers(first, middle, last))
    given = plan.ends_given
    if not some(given):
        return StageLayers(first, middle, last)
    starts, ends = ~np.isnan(plan.first_stage_layers), ~np.isnan(plan.last_stage_layers)
    share = np.where(given, _between(model, plan), middle)
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
    start = layers_through_stage(share, model.num_layers)
    fullest = np.zeros_like(start)
    before = start
    for stage in range(2, int(np.max(np.where(plan.split_by_cost, stages, 1.0)))):
        after = np.where(stage < stages, layers_through_stage(stage * share, model.num_layers), before)
        fullest, before = np.maximum(fullest, after - before), after
    split = plan.split_by_cost & (stages > 1)
    found = StageLayers(start, fullest, model.num_layers - before)
    return StageLayers(*(np.where(split, one, other) for one, other in zip(found, even, strict=True)))


def _between(model: Model, plan: TrainingPlan) -> Array:
    """Layers of a stage whose layers are not given, chunks of one size; 0 where all are given."""
    chunks = plan.virtual_pipeline
    even = chunks * ceil_div(model.num_layers - plan.given_layers, np.maximum(plan.open_stages, 1.0) * chunks)
    return np.asarray(np.where(plan.open_stages > 0, even, 0.0) + 0.0 * model.num_layers)


def mixture_layers(model: Model, layers: Array, stages: Array, first: bool) -> Array:
    """Mixture-of-experts layers among the layers of a stage.

    Dense layers stand at the start (DeepSeek) or in between (Llama 4); a later stage has as many mixtures as fit.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    layers : Array
        Layers of the stage, (rows,). [-]
    stages : Array
        Pipeline stages, (rows,). [-]
    first : bool
        Whether it is the first stage. [-]

    Returns
    -------
    Array
        Mixture-of-experts layers, (rows,). [-]
    """
    if not some(model.num_moe_layers):
        return np.zeros(layers.shape)
    share = layers * model.num_moe_layers / model.num_layers
    leading = model.moe_layer_step <= 1
    if some(model.num_bare_layers):
        leading = leading & (model.num_bare_layers <= 0)
    later = np.where(leading, np.minimum(layers, model.num_moe_layers), share)
    start = np.where(leading, layers - np.minimum(model.num_dense_layers, layers), share)
    alone = np.minimum(np.maximum(2.0 - stages, 0.0), 1.0)
    return np.asarray(alone * share + (1.0 - alone) * (start if first else later))


def pipeline_contents(model: Model, plan: TrainingPlan) -> Pipeline:
    """What the stages of a pipeline hold.

    The embedding is on the first stage, output head and MTP modules on the last; a single stage has everything.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    plan : TrainingPlan
        Stages, and how layers are split over them, (rows,). [-]

    Returns
    -------
    Pipeline
        Contents of its stages. [-]
    """
    first, middle, last = stages_of(model, plan)
    middle = np.where(middle > 0, middle, np.maximum(first, last))
    stages = plan.pipeline_parallel
    single = np.where(stages < 2, 1.0, 0.0)
    one, none = ones(single), np.zeros(single.shape)

    def stage(layers: Array, start: bool, embedding: Array, head: Array, mtp: Array) -> StageContents:
        mixtures = mixture_layers(model, layers, stages, start) + _mtp_mixtures(model, mtp)
        kinds = _layer_kinds(model, layers, mtp, mixtures)
        return StageContents(layers + mtp, mixtures, embedding, head, mtp, *kinds)

    return Pipeline(
        stage(first, True, one, single, single * plan.mtp_layers),
        stage(middle, False, none, none, none),
        stage(last, False, none, one, plan.mtp_layers + none),
    )


def _layer_kinds(model: Model, layers: Array, mtp: Array, mixtures: Array) -> tuple[Array, Array, Array]:
    """Layers with attention, with linear attention, and with a dense feed-forward block, of layers and MTP modules.

    Layers of a hybrid model are split over the stages evenly by kind.
    """
    whole = layers + mtp
    if not some(model.num_linear_layers):
        return whole, np.zeros(whole.shape), np.asarray(whole - mixtures)
    linear, bare = (layers * kind / model.num_layers for kind in (model.num_linear_layers, model.num_bare_layers))
    dense = np.where(model.num_bare_layers > 0, bare + mtp, whole) - mixtures
    return whole - linear - bare, np.asarray(linear), np.maximum(dense, 0.0)


def pacing_contents(model: Model, plan: TrainingPlan, pipeline: Pipeline, contents: StageContents) -> StageContents:
    """What the pace of the pipeline depends on: contents of the stages.

    Unless a plan settles its layers, the first stage counts as full as those in between: they set the pace anyway.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    plan : TrainingPlan
        Stages, and how layers are split over them, (rows,). [-]
    pipeline : Pipeline
        As :func:`pipeline_contents` has it. [-]
    contents : StageContents
        Its stages beside each other, (rows, 3). [-]

    Returns
    -------
    StageContents
        The same with another first stage, and with both ends on each rank with DualPipe, (rows, 3). [-]
    """
    first, middle, last = pipeline
    settled = ~np.isnan(plan.first_stage_layers) | plan.split_by_cost
    layers = np.where(settled, first.layers, middle.layers + first.mtp)
    mixtures = np.where(settled, first.mixtures, middle.mixtures + _mtp_mixtures(model, first.mtp))
    attention, linear, dense = _layer_kinds(model, layers - first.mtp, first.mtp, mixtures)
    pacing = contents._replace(
        layers=side_by_side(layers, middle.layers, last.layers),
        mixtures=side_by_side(mixtures, middle.mixtures, last.mixtures),
        attention=side_by_side(attention, middle.attention, last.attention),
        linear=side_by_side(linear, middle.linear, last.linear),
        dense=side_by_side(dense, middle.dense, last.dense),
    )
    return pacing.mirrored(plan.dualpipe)


def _mtp_mixtures(model: Model, mtp: Array) -> Array:
    """Mixtures of experts among the layers of MTP modules: their layers are like the last ones of the model."""
    return np.where(model.num_moe_layers > 0, mtp, 0.0)
