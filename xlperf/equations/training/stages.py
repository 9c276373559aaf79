"""Contents of pipeline stages (layers by kind, embedding, output head, MTP modules) and the bubbles of schedules.

Kernels, communication and memory of a step follow from three stages: the first, a middle one, and the last.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ceil_div, known_or, ones, side_by_side, some
from xlperf.equations.model.model import Model
from xlperf.equations.model.operators import layer_matrices
from xlperf.equations.plan.training_plan import TrainingPlan

MODULE_LAYERS = 2.0  # layer-equivalents of an MTP module with its output head in stage partitioning [-]


class StageContents(NamedTuple):
    """Contents of a stage: counts of shape (rows,), or (rows, 3) for the first, a middle and the last stage. [-]"""

    layers: Array  # transformer layers, including layers of multi-token prediction (MTP) modules
    mixtures: Array  # layers with a mixture of experts
    embedding: Array  # input embeddings
    head: Array  # output heads
    mtp: Array  # MTP modules
    attention: Array  # layers with an attention block: all except in hybrid models
    linear: Array  # layers with a block of linear attention
    dense: Array  # layers with a dense feed-forward block

    @property
    def mixers(self) -> Array:
        """Layers with attention of either kind. [-]"""
        return np.asarray(self.attention + self.linear)

    def mirrored(self, rows: np.ndarray) -> StageContents:
        """DualPipe ``rows`` hold both ends on each rank: first and last stage become the mean of both."""
        if not some(rows):
            return self
        mean = (0.5 * (values[:, :1] + values[:, 2:]) for values in self)
        ends = np.array([True, False, True]) & rows[:, None]
        return StageContents(*(np.where(ends, half, values) for half, values in zip(mean, self, strict=True)))


class Pipeline(NamedTuple):
    """Contents of the first stage, of the largest middle stage, and of the last; a single stage is the first."""

    first: StageContents
    middle: StageContents
    last: StageContents

    def stages(self) -> StageContents:
        """All three side by side, (rows, 3)."""
        return StageContents(*(side_by_side(*kinds) for kinds in zip(*self, strict=True)))


def stage_layers(num_layers: Numeric, pipeline_parallel: Numeric) -> tuple[Array, Array, Array]:
    r"""Layers of the first stage, of the largest middle stage, and of the last, for any number of chunks.

    .. math::

        l = \lceil L / p \rceil, \quad
        l_{first} = \max(\lfloor L / p \rfloor, l - \lfloor (p l - L) / 2 \rfloor), \quad
        l_{last} = \max(\lfloor L / p \rfloor, l - \lceil (p l - L) / 2 \rceil)

    If the layers do not divide evenly, the first stage (with the embedding) and the last stage (with the output
    projection) have fewer [1]_. Chunks may differ in size if all stages have the same sizes in the same order (96
    layers on 8 stages of 5 chunks: 3, 3, 2, 2, 2) [2]_, [3]_.

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
        Layers l of the largest stage. [-]
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
    Llama 3 405B: 126 layers on 16 stages of 8, with one layer less at each end.

    >>> tuple(map(float, stage_layers(126, 16)))
    (7.0, 8.0, 7.0)
    """
    full = np.asarray(ceil_div(num_layers, pipeline_parallel))
    missing = array(pipeline_parallel) * full - array(num_layers)
    even = np.floor(array(num_layers) / array(pipeline_parallel))
    first = np.maximum(even, full - np.floor(missing / 2.0))
    return np.asarray(first), full, np.asarray(np.maximum(even, full - np.ceil(missing / 2.0)))


def _layers_through_stage(work: Numeric, num_layers: Numeric) -> Array:
    """Layers of all stages up to a stage that takes layers in order until its share of the work is exceeded.

    Hugging Face, nanotron, build_model: a stage ends with the block that exceeds its threshold. 32 layers and an output
    head that counts as 2.4, on 3 stages: the twelfth layer exceeds a share of 11.47.

    >>> float(_layers_through_stage(11.47, 32))
    12.0
    """
    return np.asarray(np.minimum(np.floor(array(work)) + 1.0, array(num_layers)))


def stages_of(model: Model, plan: TrainingPlan) -> tuple[Array, Array, Array]:
    """Layers of the first, the largest middle and the last stage, excluding MTP modules, (rows,). [-]

    Stages split by cost take layers until each exceeds its share of the work; otherwise the middle stages share evenly
    the layers that the ends do not take. A trained MTP module with its head counts as two layers of the last stage: for
    DeepSeek-V3 on 16 stages 4, 14 x 4 and 1, as in Megatron-Bridge.
    """
    ahead = np.where(plan.pipeline_parallel > 1, MODULE_LAYERS * plan.mtp_layers, 0.0)
    first, middle, last = stage_layers(model.num_layers + ahead, plan.pipeline_parallel)
    last = np.maximum(last - ahead, 0.0)
    if some(plan.split_by_cost):
        split = plan.split_by_cost & (plan.pipeline_parallel > 1)
        pairs = zip(_by_cost(model, plan), (first, middle, last), strict=True)
        first, middle, last = (np.where(split, *pair) for pair in pairs)
    given = plan.ends_given
    if not some(given):
        return first, middle, last
    # stages without stated layers: equal shares, in chunks of one size
    chunks = plan.virtual_pipeline
    share = chunks * ceil_div(model.num_layers - plan.given_layers, np.maximum(plan.open_stages, 1.0) * chunks)
    middle = np.where(given, np.where(plan.open_stages > 0, share, 0.0), middle)
    first, last = np.where(given, middle, first), np.where(given, middle, last)
    return known_or(plan.first_stage_layers, first), middle, known_or(plan.last_stage_layers, last)


def _by_cost(model: Model, plan: TrainingPlan) -> tuple[Array, Array, Array]:
    """Layers of stages that take layers in order until each exceeds its share of the work."""
    stages = plan.pipeline_parallel
    head = model.vocab_size * model.hidden_size / layer_matrices(model, experts_per_token=True)
    share = (model.num_layers + head) / stages
    start = before = _layers_through_stage(share, model.num_layers)
    largest = np.zeros_like(start)
    for stage in range(2, int(np.max(np.where(plan.split_by_cost, stages, 1.0)))):
        after = np.where(stage < stages, _layers_through_stage(stage * share, model.num_layers), before)
        largest, before = np.maximum(largest, after - before), after
    return start, largest, model.num_layers - before


def _mixture_layers(model: Model, layers: Array, stages: Array, first: bool) -> Array:
    """Mixture-of-experts layers of the first stage or of a later one, (rows,). [-]

    Dense layers lead the first stage (DeepSeek) or alternate with mixtures (Llama 4); later stages have as many
    mixtures as fit. DeepSeek-V3 with four layers per stage: 1 on the first stage, 4 on each later one.
    """
    if not some(model.num_moe_layers):
        return np.zeros(layers.shape)
    share = layers * model.num_moe_layers / model.num_layers
    leading = model.moe_layer_step <= 1
    if some(model.num_bare_layers) or some(model.uneven):
        leading = leading & (model.num_bare_layers <= 0) & (model.uneven <= 0)
    later = np.where(leading, np.minimum(layers, model.num_moe_layers), share)
    start = np.where(leading, layers - np.minimum(model.num_dense_layers, layers), share)
    alone = np.minimum(np.maximum(2.0 - stages, 0.0), 1.0)
    return np.asarray(alone * share + (1.0 - alone) * (start if first else later))


def pipeline_contents(model: Model, plan: TrainingPlan) -> Pipeline:
    """Contents of the first, a middle and the last stage of a pipeline.

    The embedding is on the first stage, output head and MTP modules are on the last; a single stage has everything.
    """
    first, middle, last = stages_of(model, plan)
    middle = np.where(middle > 0, middle, np.maximum(first, last))
    stages = plan.pipeline_parallel
    single = np.where(stages < 2, 1.0, 0.0)
    every, none = ones(single), np.zeros(single.shape)

    def stage(layers: Array, start: bool, embedding: Array, head: Array, mtp: Array) -> StageContents:
        mixtures = _mixture_layers(model, layers, stages, start) + _mtp_mixtures(model, mtp)
        kinds = _layer_kinds(model, layers, mtp, mixtures)
        return StageContents(layers + mtp, mixtures, embedding, head, mtp, *kinds)

    return Pipeline(
        stage(first, True, every, single, single * plan.mtp_layers),
        stage(middle, False, none, none, none),
        stage(last, False, none, every, plan.mtp_layers + none),
    )


def _layer_kinds(model: Model, layers: Array, mtp: Array, mixtures: Array) -> tuple[Array, Array, Array]:
    """Layers with attention, with linear attention, and with a dense feed-forward block.

    The kinds of layers of a hybrid model are split evenly over the stages.
    """
    whole = layers + mtp
    uneven = some(model.uneven)
    if not some(model.num_linear_layers) and not uneven:
        return whole, np.zeros(whole.shape), np.asarray(whole - mixtures)
    linear, bare = (layers * kind / model.num_layers for kind in (model.num_linear_layers, model.num_bare_layers))
    dense = np.where(model.num_bare_layers > 0, bare + mtp, whole) - mixtures
    attention = whole - linear - bare
    if uneven:
        attention = attention + layers * model.num_parallel_layers / model.num_layers
        share = layers * model.num_dense_layers / model.num_layers + np.where(model.num_moe_layers > 0, 0.0, mtp)
        dense = np.where(model.uneven > 0, share, dense)
    return attention, np.asarray(linear), np.maximum(dense, 0.0)


def pacing_contents(model: Model, plan: TrainingPlan, pipeline: Pipeline, contents: StageContents) -> StageContents:
    """Stage contents that set the pace of the pipeline, (rows, 3); with DualPipe every rank has both ends.

    Unless the plan states its layers, the first stage counts as large as the middle stages, which set the pace anyway:
    30 layers on four stages (7, 8, 8, 7) count as 8, 8, 7.
    """
    first, middle, last = pipeline
    settled = ~np.isnan(plan.first_stage_layers) | plan.split_by_cost
    layers = np.where(settled, first.layers, middle.layers + first.mtp)
    mixtures = np.where(settled, first.mixtures, middle.mixtures + _mtp_mixtures(model, first.mtp))
    attention, linear, dense = _layer_kinds(model, layers - first.mtp, first.mtp, mixtures)
    start = {"layers": layers, "mixtures": mixtures, "attention": attention, "linear": linear, "dense": dense}
    pacing = {name: side_by_side(values, getattr(middle, name), getattr(last, name)) for name, values in start.items()}
    return contents._replace(**pacing).mirrored(plan.dualpipe)


def _mtp_mixtures(model: Model, mtp: Array) -> Array:
    """Mixture-of-experts layers in MTP modules, whose layers are like the last layer of the model."""
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
    r"""Idle time of a stage under DualPipe: two directions, forward and backward passes overlap.

    .. math:: t = \left(\frac{p}{2} - 1\right) (F\&B + B - 3 W)

    Parameters
    ----------
    overlapped_time : numeric
        One forward and one full backward pass that overlap, F&B. [s]
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
