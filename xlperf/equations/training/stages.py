"""What the stages of a pipeline hold: layers by kind, embedding, output head, MTP modules, and their parameters.

Kernels, communication and memory of a step are made from the contents of three stages: the first, one in the middle,
and the last.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, ceil_div, ones, side_by_side, some
from xlperf.equations.model.model import (
    Model,
    attention_matrix_parameters,
    layer_matrices,
    layer_small_parameters,
    router_parameters,
)
from xlperf.equations.model.transformer import expert_parameters
from xlperf.equations.plan.pipeline import first_stage_layers, last_stage_layers, layers_through_stage, stage_layers
from xlperf.equations.plan.training_plan import TrainingPlan
from xlperf.equations.training.adapters import AdapterParameters, adapter_parameters

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
    """

    layers: Array
    mixtures: Array
    embedding: Array
    head: Array
    mtp: Array

    @property
    def dense(self) -> Array:
        """Layers with a dense feed-forward block. [-]"""
        return np.asarray(self.layers - self.mixtures)

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


class RankParameters(NamedTuple):
    """Parameters of each block on one rank, (rows,). [-]

    Attributes
    ----------
    attention : Array
        Attention of a layer, with norms and biases. [-]
    mlp : Array
        Dense feed-forward block. [-]
    shared : Array
        Router and shared experts of a mixture. [-]
    experts : Array
        Routed experts of a mixture. [-]
    embedding : Array
        Input embedding with learned positions. [-]
    head : Array
        Output head; 0 where it is the embedding of the same stage. [-]
    mtp : Array
        What an MTP module has beside its layer. [-]
    small : Array
        Norms and biases of a layer. [-]
    router : Array
        Router of a mixture. [-]
    adapters : AdapterParameters
        Low-rank adapters of a layer. [-]
    """

    attention: Array
    mlp: Array
    shared: Array
    experts: Array
    embedding: Array
    head: Array
    mtp: Array
    small: Array
    router: Array
    adapters: AdapterParameters


class StageParameters(NamedTuple):
    """Parameters of a stage on one rank, before sharding over replicas, shaped as its contents. [-]

    Attributes
    ----------
    dense : Array
        All but routed experts. [-]
    experts : Array
        Routed experts. [-]
    trained : Array
        Those of ``dense`` that have gradients and optimizer state. [-]
    trained_experts : Array
        Those of ``experts``. [-]
    """

    dense: Array
    experts: Array
    trained: Array
    trained_experts: Array


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
        return StageContents(layers + mtp, mixtures, embedding, head, mtp)

    return Pipeline(
        stage(first, True, one, single, single * plan.mtp_layers),
        stage(middle, False, none, none, none),
        stage(last, False, none, one, plan.mtp_layers + none),
    )


def pacing_contents(model: Model, plan: TrainingPlan, pipeline: Pipeline, contents: StageContents) -> StageContents:
    """What the stages hold as far as the pace of the pipeline depends on it.

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
    pacing = contents._replace(
        layers=side_by_side(layers, middle.layers, last.layers),
        mixtures=side_by_side(mixtures, middle.mixtures, last.mixtures),
    )
    return pacing.mirrored(plan.dualpipe)


def _mtp_mixtures(model: Model, mtp: Array) -> Array:
    """Mixtures of experts among the layers of MTP modules: their layers are like the last ones of the model."""
    return np.where(model.num_moe_layers > 0, mtp, 0.0)


def rank_parameters(model: Model, plan: TrainingPlan) -> RankParameters:
    """Parameters that one rank holds of each block, before any sharding over replicas.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    plan : TrainingPlan
        Degrees, (rows,). [-]

    Returns
    -------
    RankParameters
        Parameters by block. [-]
    """
    tensor = plan.tensor_parallel
    hidden, gated = model.hidden_size, model.gated_mlp
    compressed = np.where(
        model.latent_attention > 0,
        hidden * (model.q_lora_rank + model.kv_lora_rank + model.qk_rope_head_size),
        0.0,
    )
    small, router = layer_small_parameters(model), router_parameters(model)
    attention = (attention_matrix_parameters(model) - compressed) / tensor + compressed + small
    table = ceil_div(model.vocab_size, tensor) * hidden
    return RankParameters(
        attention=attention,
        mlp=expert_parameters(hidden, model.ffn_hidden_size, gated) / tensor,
        shared=expert_parameters(hidden, model.shared_ffn_hidden_size, gated) / tensor + router,
        experts=model.num_experts
        / plan.expert_parallel
        * expert_parameters(hidden, model.expert_ffn_hidden_size, gated)
        / plan.expert_tensor_parallel,
        embedding=table + model.learned_positions * hidden,
        head=np.where((model.tied_embeddings > 0) & (plan.pipeline_parallel < 2), 0.0, table),
        mtp=2.0 * hidden**2 / tensor + 3.0 * (1.0 + model.layer_norm) * hidden,
        small=small,
        router=router,
        adapters=adapter_parameters(model, plan, tensor),
    )


def _columns(values: Array, contents: StageContents) -> Array:
    """Values of plans against contents of one stage or of several."""
    return values[:, None] if contents.layers.ndim > 1 else values


def stage_parameters(
    model: Model, plan: TrainingPlan, held: RankParameters, contents: StageContents
) -> StageParameters:
    """Parameters of stages on one rank.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    plan : TrainingPlan
        Degrees and adapters, (rows,). [-]
    held : RankParameters
        Parameters of each block, (rows,). [-]
    contents : StageContents
        What the stages hold. [-]

    Returns
    -------
    StageParameters
        Shaped as ``contents``. With DualPipe a rank has two stages. [-]
    """
    shared = np.where(model.num_experts > 0, held.shared, 0.0)
    attention, mlp, shared, routed, embedding, head, mtp, copies = (
        _columns(values, contents)
        for values in (held.attention, held.mlp, shared, held.experts, held.embedding, held.head, held.mtp,
                       plan.weight_copies)
    )  # fmt: skip
    blocks = contents.layers * attention + contents.dense * mlp + contents.mixtures * shared
    outside = contents.embedding * embedding + contents.head * head + contents.mtp * mtp
    dense, experts = copies * (blocks + outside), copies * contents.mixtures * routed
    if not some(plan.frozen):
        return StageParameters(dense, experts, dense, experts)
    beside_attention, beside_mlp = (_columns(values, contents) for values in held.adapters)
    frozen = _columns(plan.frozen, contents)
    adapters = contents.layers * beside_attention + contents.dense * beside_mlp
    adapters = np.where(frozen, copies * adapters, 0.0)
    dense = dense + adapters
    return StageParameters(dense, experts, np.where(frozen, adapters, dense), np.where(frozen, 0.0, experts))


def quantized_weights(plan: TrainingPlan, held: RankParameters, contents: StageContents) -> Array:
    """GEMM weights of stages that products take in low precision, excluding routed experts.

    Parameters
    ----------
    plan : TrainingPlan
        Schedule, (rows,). [-]
    held : RankParameters
        Parameters of each block, (rows,). [-]
    contents : StageContents
        What the stages hold. [-]

    Returns
    -------
    Array
        Parameters without norms, biases and routers, shaped as ``contents``. [-]
    """
    attention, mlp, shared, copies = (
        _columns(values, contents)
        for values in (held.attention - held.small, held.mlp, held.shared - held.router, plan.weight_copies)
    )
    return np.asarray(copies * (contents.layers * attention + contents.dense * mlp + contents.mixtures * shared))


def fullest_parameters(model: Model, plan: TrainingPlan, held: RankParameters, pipeline: Pipeline) -> StageParameters:
    """Parameters of the largest stage: a full one with the embedding, or the last one if it trains MTP modules.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    plan : TrainingPlan
        Degrees and MTP modules, (rows,). [-]
    held : RankParameters
        Parameters of each block, (rows,). [-]
    pipeline : Pipeline
        What the stages hold. [-]

    Returns
    -------
    StageParameters
        On one rank, (rows,). [-]
    """
    single = plan.pipeline_parallel < 2
    one = ones(held.embedding)
    full = pipeline.middle._replace(embedding=one, head=np.where(single, 1.0, 0.0))
    found = stage_parameters(model, plan, held, full)
    if not some(plan.mtp_layers):
        return found
    alone = stage_parameters(model, plan, held, pipeline.first)
    last = stage_parameters(model, plan, held, pipeline.last._replace(embedding=one))  # modules need a copy of it
    with_mtp = (np.where(single, *pair) for pair in zip(alone, map(np.maximum, found, last), strict=True))
    return StageParameters(*(np.where(plan.mtp_layers > 0, *pair) for pair in zip(with_mtp, found, strict=True)))
