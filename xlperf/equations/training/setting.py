"""What a training step depends on, and what the stages of its pipeline hold.

A stage holds layers by kind, embedding, output head and MTP modules, and their parameters. Kernels, communication and
memory of a step are made from the contents of three stages: the first, one in the middle, and the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ceil_div, ones, side_by_side, some, total
from xlperf.equations.hardware.kernels import Device
from xlperf.equations.model.model import (
    Architecture,
    Model,
    attention_matrix_parameters,
    layer_matrices,
    layer_small_parameters,
    router_parameters,
)
from xlperf.equations.model.operators import Gemms
from xlperf.equations.model.transformer import expert_parameters
from xlperf.equations.network.topologies import Network
from xlperf.equations.plan.pipeline import first_stage_layers, last_stage_layers, layers_through_stage, stage_layers
from xlperf.equations.plan.records import derived
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
    table, none = ceil_div(model.vocab_size, tensor) * hidden, np.zeros(tensor.shape)
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
        adapters=adapter_parameters(model, plan, tensor) if some(plan.frozen) else AdapterParameters(none, none),
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


WORD = 4.0
"""Bytes of an FP32 element: logits, master weights, moments. [B]"""
MASK = 1.0
"""Bytes of an element of a dropout mask. [B]"""
STORED = 1.0 + WORD / 128.0
"""Bytes of an input of an activation function that waits in FP8, with an FP32 scale for each 128. [B]"""
STORED_OUTPUT = 1.5 + WORD / 128.0
"""Bytes of an element of the output of attention that waits in 12 bits (E5M6), with its share of a scale. [B]"""

Constants = Mapping[str, Mapping[str, Array]]


def optimizer_element_size(
    adam: Numeric, element_size: Numeric, word_size: Numeric, moment_size: Numeric, master_size: Numeric
) -> Array:
    r"""Bytes of optimizer state per parameter: moments, and master weights beside narrower ones.

    .. math:: e_o = (1 + \alpha) e_m + [e < w] e_w

    Parameters
    ----------
    adam : numeric
        Alpha: 1 for two moments (Adam), 0 for one (SGD with momentum). [-]
    element_size : numeric
        Bytes e of a weight; where it is below a word something of the master weights is kept beside it. [B]
    word_size : numeric
        Bytes w of a full word, 4 for FP32. [B]
    moment_size : numeric
        Bytes e_m of an element of a moment. [B]
    master_size : numeric
        Bytes e_w kept in addition to a 16-bit weight: 4 for an FP32 copy, 2 for the missing bits, 0 for none. [B]

    Returns
    -------
    size : numeric
        Bytes per parameter. [B]

    References
    ----------
    .. [1] P. Micikevicius et al., "Mixed precision training", 2017, arXiv:1710.03740.
    .. [2] DeepSeek-AI, "DeepSeek-V3 technical report", 2024, arXiv:2412.19437, section 3.3.3 (moments in BF16).

    Examples
    --------
    Mixed-precision Adam: two FP32 moments and an FP32 copy beside 16-bit weights.

    >>> float(optimizer_element_size(1, 2, 4, 4, 4))
    12.0
    """
    word, weight = array(word_size), array(element_size)
    narrow = np.where(np.isnan(weight + word), np.nan, weight < word)
    return np.asarray((1.0 + array(adam)) * array(moment_size) + narrow * array(master_size))


class Part(NamedTuple):
    """Operators of one phase: their names, the family that times them, calls per pass and seconds per call."""

    phase: str
    family: str
    names: tuple[str, ...]
    place: str
    calls: Array
    time: Array
    gemms: Gemms | None = None
    traffic: Array | None = None
    wide: bool = False

    @property
    def total_time(self) -> Array:
        """Time of one pass, (rows,). [s]"""
        return total(self.calls * self.time)

    def time_of(self, ending: str) -> Array:
        """Time of one pass of the operators whose name ends so; all of them for "", (rows,). [s]"""
        if not ending:
            return self.total_time
        chosen = _ending(self.names, ending)
        if chosen is None:
            return 0.0 * self.total_time
        return total(self.calls[:, chosen] * self.time[:, chosen])


@lru_cache(maxsize=256)
def _ending(names: tuple[str, ...], ending: str) -> slice | list[int] | None:
    """Columns of the names that end so."""
    index = [position for position, name in enumerate(names) if name.endswith(ending)]
    if not index:
        return None
    whole = slice(index[0], index[-1] + 1)
    return whole if len(index) == whole.stop - whole.start else index


@dataclass(frozen=True, eq=False)
class Setting:
    """What a step depends on: model, device, network, plan and calibration.

    ``device`` carries the peak of the products' precision, ``wide_device`` that of 16 bits (or wider), at which
    attention and the output projection run; ``constants`` maps a kernel family to its constants of shape (rows, 1),
    with ``gemm_wide`` for the products at that wider precision.
    """

    model: Model
    device: Device
    wide_device: Device
    network: Network
    plan: TrainingPlan
    constants: Constants
    architecture: Architecture

    @derived
    def pipeline(self) -> Pipeline:
        """What the stages of the pipeline hold. [-]"""
        return pipeline_contents(self.model, self.plan)

    @derived
    def contents(self) -> StageContents:
        """The same of the first, a middle and the last stage beside each other, (rows, 3). [-]"""
        return self.pipeline.stages()

    @derived
    def parameters(self) -> RankParameters:
        """Parameters of each block on one rank. [-]"""
        return rank_parameters(self.model, self.plan)

    @derived
    def fullest(self) -> StageParameters:
        """Parameters of the largest stage on one rank. [-]"""
        return fullest_parameters(self.model, self.plan, self.parameters, self.pipeline)

    @derived
    def stream_size(self) -> Array:
        """Bytes of the residual stream of a micro-batch on one rank of the context, (rows,). [B]"""
        return np.asarray(self.plan.tokens * self.model.hidden_size * self.plan.element_size)

    @derived
    def heads(self) -> Array:
        """Heads of queries on a rank, (rows,). [-]"""
        return ceil_div(self.model.num_attention_heads, self.plan.tensor_parallel)

    @derived
    def key_heads(self) -> Array:
        """Heads of keys and values on a rank without latent attention, (rows,). [-]"""
        return ceil_div(self.model.num_query_groups, self.plan.tensor_parallel)

    @derived
    def routed(self) -> tuple[Array, Array, Array]:
        """Tokens that a rank routes, their copies over all experts of the fullest rank, and experts of a rank. [-]"""
        model, plan = self.model, self.plan
        routed = plan.tokens / np.where(plan.sequence_parallel > 0, plan.tensor_parallel, 1.0)
        experts = model.num_experts / plan.expert_parallel
        filled = np.where(np.isnan(plan.expert_capacity), plan.expert_imbalance, plan.expert_capacity)
        copies = routed * model.top_k * plan.expert_tensor_parallel * filled
        return routed, copies, experts
