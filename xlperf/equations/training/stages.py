"""Contents of pipeline stages (layers by kind, embedding, output head, MTP modules) and the bubbles of schedules.

Kernels, communication and memory of a step are made from the contents of three stages: the first, one in the middle,
and the last.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ceil_div, ones, side_by_side, some
from xlperf.equations.model.model import Model
from xlperf.equations.model.parameters import layer_matrices
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


def stage_layers(num_layers: Numeric, pipeline_parallel: Numeric) -> tuple[Array, Array, Array]:
    r"""Layers of the first stage, of the fullest one in between, and of the last, however many chunks they have.

    .. math::

        l = \lceil L / p \rceil, \quad
        l_{first} = \max(\lfloor L / p \rfloor, l - \lfloor (p l - L) / 2 \rfloor), \quad
        l_{last} = \max(\lfloor L / p \rfloor, l - \lceil (p l - L) / 2 \rceil)

    Where the layers do not divide evenly, what is missing to full stages is shared by the first, which also holds the
    embedding, and the last, which also holds the output projection [1]_. Chunks of a stage may differ in size (96
    layers on 8 stages of 5 chunks: 3, 3, 2, 2, 2) where all stages have the same sizes in the same order [2]_, [3]_.

    Parameters
    ----------
    num_layers : numeric
        Layers L of the model. [-]
    pipeline_parallel : numeric
        Stages p. [-]

    Returns
    -------
    first : numeric
        Layers of the first stage. [-]
    middle : numeric
        Layers l of the fullest stage. [-]
    last : numeric
        Layers of the last stage. [-]

    References
    ----------
    .. [1] A. Grattafiori et al., "The Llama 3 herd of models", 2024, arXiv:2407.21783, section 3.3.2.
    .. [2] D. Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM",
       2021, arXiv:2104.04473, section 2.2.
    .. [3] NVIDIA, Megatron-LM, --pipeline-model-parallel-layout (layers of each chunk of each stage).

    Examples
    --------
    Llama 3 405B: 126 layers on 16 stages of 8 miss two layers, one at each end.

    >>> tuple(map(float, stage_layers(126, 16)))
    (7.0, 8.0, 7.0)
    """
    full = np.asarray(ceil_div(num_layers, pipeline_parallel))
    missing = array(pipeline_parallel) * full - array(num_layers)
    even = np.floor(array(num_layers) / array(pipeline_parallel))
    first = np.maximum(even, full - np.floor(missing / 2.0))
    return np.asarray(first), full, np.asarray(np.maximum(even, full - np.ceil(missing / 2.0)))


def layers_through_stage(work: Numeric, num_layers: Numeric) -> Array:
    r"""Layers of all stages up to one that takes layers in order until its share of the work is exceeded.

    .. math:: N = \min(\lfloor w \rfloor + 1, L)

    Parameters
    ----------
    work : numeric
        Work w of the stages up to this one if all had the same, the output projection included, in layers. [-]
    num_layers : numeric
        Layers L of the model. [-]

    Returns
    -------
    layers : numeric
        Layers up to the end of this stage. [-]

    References
    ----------
    .. [1] Hugging Face, nanotron, src/nanotron/models/base.py, build_model: a stage ends with the block that exceeds
       its threshold.

    Examples
    --------
    32 layers and an output head that counts as 2.4, on 3 stages: the twelfth layer exceeds a share of 11.47.

    >>> float(layers_through_stage(11.47, 32))
    12.0
    """
    return np.asarray(np.minimum(np.floor(array(work)) + 1.0, array(num_layers)))


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

    Examples
    --------
    DeepSeek-V3 with its MTP module on 16 stages: 4, 14 x 4, 1.

    >>> model = Model.of(num_layers=61, hidden_size=7168, ffn_hidden_size=18432, vocab_size=129280, num_dense_layers=3)
    >>> ends = dict.fromkeys(("first_stage_layers", "last_stage_layers"), np.array([np.nan]))
    >>> plan = {"pipeline_parallel": np.array([16.0]), "mtp_layers": np.ones(1), "stage_dealing": np.zeros(1), **ends}
    >>> [float(layers[0]) for layers in stages_of(model, TrainingPlan(plan))]
    [4.0, 4.0, 1.0]
    """
    ahead = np.where(plan.pipeline_parallel > 1, MODULE_LAYERS * plan.mtp_layers, 0.0)
    shape = model.num_layers + ahead, plan.pipeline_parallel
    first, middle, last = stage_layers(*shape)
    last = np.maximum(last - ahead, 0.0)
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

    Examples
    --------
    DeepSeek-V3, four layers on each of 16 stages: three dense ones lead the first stage.

    >>> from types import SimpleNamespace
    >>> layers = {"num_layers": 61.0, "num_moe_layers": 58.0, "num_dense_layers": 3.0, "num_bare_layers": 0.0}
    >>> layers["moe_layer_step"] = 1.0
    >>> model = SimpleNamespace(**{name: np.array([count]) for name, count in layers.items()})
    >>> [mixture_layers(model, np.array([4.0]), np.array([16.0]), first).tolist() for first in (True, False)]
    [[1.0], [4.0]]
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
    """Contents of the first, a middle and the last stage of a pipeline.

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

    Examples
    --------
    Llama 3.1 8B on four stages: eight layers on each, the embedding on the first, the output head on the last.

    >>> from ideal_machine import LLAMA as llama
    >>> ends = dict.fromkeys(("first_stage_layers", "last_stage_layers"), np.array([np.nan]))
    >>> plan = {"pipeline_parallel": np.array([4.0]), "mtp_layers": np.zeros(1), "stage_dealing": np.zeros(1), **ends}
    >>> pipeline = pipeline_contents(llama, TrainingPlan(plan))
    >>> [(float(stage.layers[0]), float(stage.embedding[0]), float(stage.head[0])) for stage in pipeline]
    [(8.0, 1.0, 0.0), (8.0, 0.0, 0.0), (8.0, 0.0, 1.0)]
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
    """Stage contents that set the pace of the pipeline.

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

    Examples
    --------
    30 layers on four stages, 7, 8, 8 and 7: the first counts as full.

    >>> model = Model.of(num_layers=30, hidden_size=4096)
    >>> plan = {"pipeline_parallel": np.array([4.0]), "mtp_layers": np.zeros(1), "stage_dealing": np.zeros(1)}
    >>> plan |= dict.fromkeys(("first_stage_layers", "last_stage_layers"), np.array([np.nan]))
    >>> plan = TrainingPlan({**plan, "pipeline_schedule": np.array([0.0])})
    >>> pipeline = pipeline_contents(model, plan)
    >>> pacing_contents(model, plan, pipeline, pipeline.stages()).layers.tolist()
    [[8.0, 8.0, 7.0]]
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
    """Mixture-of-experts layers in MTP modules, whose layers are like the last layers of the model."""
    return np.where(model.num_moe_layers > 0, mtp, 0.0)


def pipeline_bubble_time(micro_batch_time: Numeric, pipeline_parallel: Numeric, virtual_pipeline: Numeric) -> Array:
    r"""Idle time of a stage in one step: the pipeline fills and drains once.

    .. math:: t = \frac{p - 1}{v} t_{mb}

    Parameters
    ----------
    micro_batch_time : numeric
        Forward and backward of one micro-batch on one stage, all its chunks. [s]
    pipeline_parallel : numeric
        Stages p. [-]
    virtual_pipeline : numeric
        Chunks v per stage. [-]

    Returns
    -------
    time : numeric
        Idle time per step. [s]

    References
    ----------
    .. [1] D. Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM",
       2021, arXiv:2104.04473, section 2.2.

    Examples
    --------
    >>> float(pipeline_bubble_time(0.1, 8, 2))  # 7 / 2 x 0.1 s
    0.35
    """
    return np.asarray((array(pipeline_parallel) - 1.0) / array(virtual_pipeline) * array(micro_batch_time))


def zero_bubble_time(
    forward_time: Numeric, backward_time: Numeric, weight_gradient_time: Numeric, pipeline_parallel: Numeric
) -> Array:
    r"""Idle time of a stage under ZB-H1: weight gradients fill the drain of the pipeline.

    .. math:: t = (p - 1) (F + B - W)

    Parameters
    ----------
    forward_time : numeric
        Forward pass F of one micro-batch on one stage. [s]
    backward_time : numeric
        Gradient B by the inputs, of one micro-batch on one stage. [s]
    weight_gradient_time : numeric
        Gradient W by the weights. [s]
    pipeline_parallel : numeric
        Stages p. [-]

    Returns
    -------
    time : numeric
        Idle time per step, at least 0. [s]

    References
    ----------
    .. [1] P. Qi et al., "Zero bubble pipeline parallelism", 2023, arXiv:2401.10241, table 1.

    Examples
    --------
    >>> float(zero_bubble_time(0.01, 0.01, 0.01, 4))  # 3 x (10 + 10 - 10) ms
    0.03
    """
    idle = array(forward_time) + array(backward_time) - array(weight_gradient_time)
    return np.asarray((array(pipeline_parallel) - 1.0) * np.maximum(idle, 0.0))


def dualpipe_bubble_time(
    overlapped_time: Numeric, backward_time: Numeric, weight_gradient_time: Numeric, pipeline_parallel: Numeric
) -> Array:
    r"""Idle time of a stage under DualPipe: two directions, forward and backward passes run together.

    .. math:: t = \left(\frac{p}{2} - 1\right) (F\&B + B - 3 W)

    Parameters
    ----------
    overlapped_time : numeric
        One forward and one full backward pass that run together, F&B. [s]
    backward_time : numeric
        Full backward pass B of one micro-batch on one stage. [s]
    weight_gradient_time : numeric
        Gradient W by the weights. [s]
    pipeline_parallel : numeric
        Stages p. [-]

    Returns
    -------
    time : numeric
        Idle time per step, at least 0. [s]

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V3 technical report", 2024, arXiv:2412.19437, table 2.

    Examples
    --------
    >>> float(dualpipe_bubble_time(0.03, 0.02, 0.01, 8))  # 3 x (30 + 20 - 3 x 10) ms
    0.06
    """
    idle = array(overlapped_time) + array(backward_time) - 3.0 * array(weight_gradient_time)
    return np.asarray(np.maximum(array(pipeline_parallel) / 2.0 - 1.0, 0.0) * np.maximum(idle, 0.0))
