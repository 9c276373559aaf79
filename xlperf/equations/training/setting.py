"""Inputs of a training step, and the parameters on a rank by block and by pipeline stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from xlperf.base.arrays import (
    Array,
    Numeric,
    array,
    ceil_div,
    distinct_rows,
    divide,
    known_or,
    ones,
    side_by_side,
    some,
    total,
)
from xlperf.equations.hardware.roofline import WIDE, Device
from xlperf.equations.model.blocks import (
    EXPERTS,
    LATENT,
    LATENT_SPACE,
    MLP,
    PLAIN,
    ROUTER,
    SHARED_EXPERT,
    Block,
    Gemms,
    Shard,
    Tokens,
    expanded,
    products,
    weights,
)
from xlperf.equations.model.model import Architecture, Model
from xlperf.equations.model.operators import (
    Vectors,
    attention_matrix_parameters,
    index_parameters,
    layer_matrices,
    layer_small_parameters,
    linear_matrix_parameters,
    linear_vector_parameters,
    whole_model,
)
from xlperf.equations.network.topologies import Network
from xlperf.equations.plan.records import WORD, AdapterModules, Recompute, derived
from xlperf.equations.plan.training_plan import TrainingPlan

PLACES = ("attention", "mlp")
_NOT_WEIGHTS = ("attention scores", "attention values")


class AdapterParameters(NamedTuple):
    """Parameters of the adapters of one layer, (rows,): beside the attention and beside a dense feed-forward. [-]"""

    attention: Array
    mlp: Array


def _adapted(place: str, gemms: Gemms, plan: TrainingPlan) -> Array:
    """1 for products of a place with an adapter, (rows, operators)."""
    chosen = np.array([place == "attention" and name != "attention output" for name in gemms.names])
    everywhere = (plan.adapter_modules == AdapterModules.ALL)[:, None]
    return np.where(plan.frozen[:, None] & (chosen | everywhere), np.sign(gemms.batch), 0.0)


def adapter_gemms(place: str, gemms: Gemms, plan: TrainingPlan) -> Gemms:
    """Products of the adapters of a place: down to the rank, and up from it; a batch of 0 without an adapter.

    Rank 16 beside a product of depth 100 and 300 columns:

    >>> plan = {"adapter_rank": np.array([16.0]), "adapter_modules": np.array([AdapterModules.ALL])}
    >>> one = np.ones((1, 1))
    >>> pair = adapter_gemms("mlp", Gemms(("up",), 8.0 * one, 300.0 * one, 100.0 * one, one), TrainingPlan(plan))
    >>> pair.n.tolist(), pair.k.tolist()
    ([[16.0, 300.0]], [[100.0, 16.0]])
    """
    present = _adapted(place, gemms, plan)
    rank = np.maximum(plan.adapter_rank, 1.0)[:, None] * np.ones_like(gemms.n)
    names = tuple(f"{name} adapter {side}" for side in ("in", "out") for name in gemms.names)
    columns = (gemms.m, gemms.m), (rank, gemms.n), (gemms.k, rank), (present, present)
    return Gemms(names, *(np.concatenate(pair, axis=-1) for pair in columns))


def adapter_vectors(place: str, gemms: Gemms, plan: TrainingPlan, backward: bool) -> Vectors:
    """Element-wise adds of LoRA outputs to the outputs of their products; backward, of input gradients."""
    side = gemms.k if backward else gemms.n
    traffic = 3.0 * plan.element_size * total(_adapted(place, gemms, plan) * gemms.m * side)
    return Vectors((f"{place} adapter sums{' of gradients' if backward else ''}",), traffic[:, None])


def adapter_parameters(model: Model, plan: TrainingPlan, tensor_parallel: Array) -> AdapterParameters:
    """Parameters of the adapters of one layer on one rank: r (k + n) for each product (LoRA, arXiv:2106.09685). [-]"""
    shard = Shard(model, tensor_parallel)
    tokens = Tokens(*[ones(plan.adapter_rank)] * 4)

    def size(block: Block) -> Array:
        gemms = products(expanded(block), shard, tokens)
        return np.asarray(plan.adapter_rank * total(_adapted(block.place, gemms, plan) * (gemms.k + gemms.n)))

    attention, is_latent = size(PLAIN), model.latent_attention > 0
    if some(is_latent):
        attention = np.where(is_latent, size(LATENT), attention)
    return AdapterParameters(attention, size(MLP))


def model_adapters(model: Model, plan: TrainingPlan) -> Array:
    """LoRA parameters of a whole model, (rows,): adapters of every attention and dense feed-forward block. [-]

    Llama 3.1 8B, rank 16: 32 x 16 x (4096 + 6144 + 4096 + 4096 + 4096 + 28672 + 14336 + 4096).

    >>> from ideal_machine import LLAMA
    >>> plan = {"adapter_rank": np.array([16.0]), "adapter_modules": np.array([AdapterModules.ALL])}
    >>> model_adapters(LLAMA, TrainingPlan(plan)).tolist()
    [35651584.0]
    """
    layer = adapter_parameters(model, plan, np.ones_like(model.num_layers))
    return np.asarray(model.num_layers * layer.attention + model.num_dense_layers * layer.mlp)


def frozen_products(names: tuple[str, ...], plan: TrainingPlan) -> np.ndarray:
    """Weight-gradient products of frozen weights, which are not computed, (rows, operators).

    >>> plan = TrainingPlan({"adapter_rank": np.array([16.0])})
    >>> frozen_products(("qkv input gradient", "qkv weight gradient"), plan).tolist()
    [[False, True]]
    """
    gradients = np.array(
        [
            name.endswith("weight gradient") and " adapter " not in name and not name.startswith(_NOT_WEIGHTS)
            for name in names
        ]
    )
    return np.asarray(plan.frozen[:, None] & gradients)


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

    .. math:: l = \lceil L / p \rceil, \quad
        l_{first} = \max(\lfloor L / p \rfloor, l - \lfloor (p l - L) / 2 \rfloor), \quad
        l_{last} = \max(\lfloor L / p \rfloor, l - \lceil (p l - L) / 2 \rceil)

    If the layers do not divide evenly, the first stage (with the embedding) and the last stage (with the output
    projection) have fewer [1]_. Chunks may differ in size if all stages have the same sizes in the same order (96
    layers on 8 stages of 5 chunks: 3, 3, 2, 2, 2) [2]_, [3]_.

    Llama 3 405B: 126 layers on 16 stages of 8, with one layer less at each end.

    >>> tuple(map(float, stage_layers(126, 16)))
    (7.0, 8.0, 7.0)

    Parameters
    ----------
    num_layers : Layers L of the model. [-]
    pipeline_parallel : Stages p. [-]

    Returns
    -------
    first : Layers of the first stage. [-]
    middle : Layers l of the largest stage. [-]
    last : Layers of the last stage. [-]

    References
    ----------
    .. [1] A. Grattafiori et al., "The Llama 3 herd of models", 2024, arXiv:2407.21783, section 3.3.2.
    .. [2] D. Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM",
       2021, arXiv:2104.04473, section 2.2.
    .. [3] NVIDIA, Megatron-LM, --pipeline-model-parallel-layout (layers of each chunk of each stage).
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
    # equal shares: MTP modules count as layers of the last stage
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
    # work of a stage in layers: the output head counts by its weights
    head = model.vocab_size * model.hidden_size / layer_matrices(model, experts_per_token=True)
    share = (model.num_layers + head) / stages
    start = before = _layers_through_stage(share, model.num_layers)
    largest = np.zeros_like(start)
    for stage in range(2, int(np.max(np.where(plan.split_by_cost, stages, 1.0)))):
        after = np.where(stage < stages, _layers_through_stage(stage * share, model.num_layers), before)
        largest, before = np.maximum(largest, after - before), after
    return start, largest, model.num_layers - before


def _mixture_layers(model: Model, layers: Array, stages: Array, first: bool) -> Array:
    """Mixture-of-experts layers of the first stage or of a later one, (rows,). [-] Dense layers lead the first stage
    (DeepSeek) or alternate with mixtures (Llama 4); later stages have as many mixtures as fit. DeepSeek-V3 with four
    layers per stage: 1 on the first stage, 4 on each later one.
    """
    if not some(model.num_moe_layers):
        return np.zeros(layers.shape)
    # mixtures after leading dense layers, or spread evenly; a single stage has all of them
    share = layers * model.num_moe_layers / model.num_layers
    leading = model.moe_layer_step <= 1
    if some(model.num_bare_layers) or some(model.uneven):
        leading = leading & (model.num_bare_layers <= 0) & (model.uneven <= 0)
    later = np.where(leading, np.minimum(layers, model.num_moe_layers), share)
    start = np.where(leading, layers - np.minimum(model.num_dense_layers, layers), share)
    alone = np.minimum(np.maximum(2.0 - stages, 0.0), 1.0)
    return np.asarray(alone * share + (1.0 - alone) * (start if first else later))


def pipeline_contents(model: Model, plan: TrainingPlan) -> Pipeline:
    """Contents of the first (embedding), a middle and the last stage (output head, MTP modules) of a pipeline."""
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
    """Layers with attention, with linear attention, and with a dense feed-forward block, evenly over the stages."""
    whole = layers + mtp
    uneven = some(model.uneven)
    if not some(model.num_linear_layers) and not uneven:
        return whole, np.zeros(whole.shape), np.asarray(whole - mixtures)
    # even shares of linear layers and of layers without attention (bare)
    linear, bare = (layers * kind / model.num_layers for kind in (model.num_linear_layers, model.num_bare_layers))
    dense = np.where(model.num_bare_layers > 0, bare + mtp, whole) - mixtures
    attention = whole - linear - bare
    if uneven:
        attention = attention + layers * model.num_parallel_layers / model.num_layers
        share = layers * model.num_dense_layers / model.num_layers + np.where(model.num_moe_layers > 0, 0.0, mtp)
        dense = np.where(model.uneven > 0, share, dense)
    return attention, np.asarray(linear), np.maximum(dense, 0.0)


def pacing_contents(model: Model, plan: TrainingPlan, pipeline: Pipeline, contents: StageContents) -> StageContents:
    """Stage contents that set the pace of the pipeline, (rows, 3); with DualPipe every rank has both ends. Unless the
    plan states its layers, the first stage counts as large as the middle stages, which set the pace anyway: 30 layers
    on four stages (7, 8, 8, 7) count as 8, 8, 7.
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


class RankParameters(NamedTuple):
    """Parameters of each block on one rank, before sharding over replicas, (rows,). [-]"""

    attention: Array  # attention of a layer, with norms and biases
    linear: Array  # linear attention of a layer, with norms; 0 without any
    mlp: Array  # dense feed-forward block
    shared: Array  # router and shared experts of a mixture
    experts: Array  # routed experts of a mixture
    embedding: Array  # input embedding with learned positions
    head: Array  # output head; 0 if tied to the embedding of the same stage
    mtp: Array  # an MTP module without its layer
    small: Array  # norms and biases of a layer
    linear_small: Array  # norms, convolution and decays of a linear attention layer
    router: Array  # router of a mixture
    adapters: AdapterParameters  # low-rank adapters of a layer


class StageParameters(NamedTuple):
    """Parameters of a stage on one rank, before sharding over replicas, of the shape of its contents. [-]"""

    dense: Array  # all except routed experts
    experts: Array  # routed experts
    trained: Array  # dense parameters with gradients and optimizer state
    trained_experts: Array  # routed experts with gradients and optimizer state


def _layer_embeddings(model: Model, tensor_parallel: Array) -> Array | float:
    """Embeddings of the layers on a rank, on the first stage beside the input embedding. [-]"""
    if not some(model.per_layer_size):
        return 0.0
    return ceil_div(model.vocab_size, tensor_parallel) * model.num_layers * model.per_layer_size


def rank_parameters(shard: Shard, plan: TrainingPlan) -> RankParameters:
    """Parameters of each block on one rank, before sharding over replicas."""
    model, tensor, hidden = shard.model, plan.tensor_parallel, shard.model.hidden_size
    # norms, biases and routers, whole on every rank; vocabulary split over tensor ranks
    small, router = layer_small_parameters(model), weights(ROUTER, shard)
    table, none = ceil_div(model.vocab_size, tensor) * hidden, np.zeros(tensor.shape)
    linear, linear_small, norm, experts, sparse = none, none, none, none, none
    if some(model.num_linear_layers) or some(model.uneven):  # a layer of one block has one norm
        norm = (2.0 - model.num_blocks) * (1.0 + model.layer_norm) * hidden
        small = small - norm
        norms = model.num_blocks * (1.0 + model.layer_norm) * hidden
        linear_small = linear_vector_parameters(whole_model(model)) / tensor + norms
        linear = linear_matrix_parameters(shard) + linear_small
    router = router + norm
    if some(model.num_selected_layers):  # whole on every rank, averaged over the layers
        sparse = divide(index_parameters(model), model.num_attention_layers)
    if some(model.num_experts):
        experts = ceil_div(model.num_experts, plan.expert_parallel) * weights(EXPERTS, shard)
    return RankParameters(
        attention=attention_matrix_parameters(shard) + small + sparse,
        linear=linear,
        mlp=weights(MLP, shard) + norm,
        shared=weights(SHARED_EXPERT, shard) + router + weights(LATENT_SPACE, shard),
        experts=experts,
        embedding=table + model.learned_positions * hidden + _layer_embeddings(model, tensor),
        head=np.where((model.tied_embeddings > 0) & (plan.pipeline_parallel < 2), 0.0, table),
        mtp=2.0 * hidden**2 / tensor + 3.0 * (1.0 + model.layer_norm) * hidden,
        small=small,
        linear_small=linear_small,
        router=router,
        adapters=adapter_parameters(model, plan, tensor) if some(plan.frozen) else AdapterParameters(none, none),
    )


def _columns(values: Array, contents: StageContents) -> Array:
    """Values of plans of the shape (rows,) or (rows, 1) that broadcasts against the contents."""
    return values[:, None] if contents.layers.ndim > 1 else values


def stage_parameters(
    model: Model, plan: TrainingPlan, ranks: RankParameters, contents: StageContents
) -> StageParameters:
    """Parameters of stages on one rank, of the shape of ``contents``; with DualPipe a rank has two stages."""
    shared = np.where(model.num_experts > 0, ranks.shared, 0.0)
    attention, mlp, shared, routed, embedding, head, mtp, copies = (
        _columns(values, contents)
        for values in (ranks.attention, ranks.mlp, shared, ranks.experts, ranks.embedding, ranks.head, ranks.mtp,
                       plan.weight_copies)
    )  # fmt: skip
    # counts x parameters, of the shape of the contents
    blocks = contents.attention * attention + contents.dense * mlp + contents.mixtures * shared
    if some(model.num_linear_layers):
        blocks = blocks + contents.linear * _columns(ranks.linear, contents)
    outside = contents.embedding * embedding + contents.head * head + contents.mtp * mtp
    dense, experts = copies * (blocks + outside), copies * contents.mixtures * routed
    if not some(plan.frozen):
        return StageParameters(dense, experts, dense, experts)
    # LoRA trains the adapters alone
    beside_attention, beside_mlp = (_columns(values, contents) for values in ranks.adapters)
    frozen = _columns(plan.frozen, contents)
    adapters = contents.attention * beside_attention + contents.dense * beside_mlp
    adapters = np.where(frozen, copies * adapters, 0.0)
    dense = dense + adapters
    return StageParameters(dense, experts, np.where(frozen, adapters, dense), np.where(frozen, 0.0, experts))


def quantized_weights(plan: TrainingPlan, ranks: RankParameters, contents: StageContents) -> Array:
    """GEMM weights stored in low precision, excluding routed experts, norms, biases and routers. [-]"""
    attention, mlp, shared, copies = (
        _columns(values, contents)
        for values in (ranks.attention - ranks.small, ranks.mlp, ranks.shared - ranks.router, plan.weight_copies)
    )
    blocks = contents.attention * attention + contents.dense * mlp + contents.mixtures * shared
    blocks = blocks + contents.linear * _columns(ranks.linear - ranks.linear_small, contents)
    return np.asarray(copies * blocks)


def _largest_stage(model: Model, plan: TrainingPlan, ranks: RankParameters, pipeline: Pipeline) -> StageParameters:
    """Parameters of the largest stage: a middle one with the embedding, or the last one if it trains MTP modules."""
    single = plan.pipeline_parallel < 2
    one = ones(ranks.embedding)
    middle = pipeline.middle._replace(embedding=one, head=np.where(single, 1.0, 0.0))
    largest = stage_parameters(model, plan, ranks, middle)
    if not some(plan.mtp_layers):
        return largest
    alone = stage_parameters(model, plan, ranks, pipeline.first)
    last = stage_parameters(model, plan, ranks, pipeline.last._replace(embedding=one))  # modules have a copy of it
    with_mtp = (np.where(single, *pair) for pair in zip(alone, map(np.maximum, largest, last), strict=True))
    return StageParameters(*(np.where(plan.mtp_layers > 0, *pair) for pair in zip(with_mtp, largest, strict=True)))


MASK = 1.0  # bytes of an element of a dropout mask [B]
STORED = 1.0 + WORD / 128.0  # bytes of an activation stored in FP8, with an FP32 scale per 128 elements [B]
STORED_OUTPUT = 1.5 + WORD / 128.0  # bytes of an attention output stored in 12 bits (E5M6), with its scale [B]
NOT_OF_KERNELS = frozenset(
    "num_accelerators data_parallel pipeline_parallel virtual_pipeline pipeline_schedule"
    " global_batch_size recompute zero_stage reshard_after_forward".split()
)
"""Columns that kernels of a micro-batch do not depend on, but for recomputation, regathering and sums of gradients."""
OF_EXPERTS = frozenset({"expert_parallel", "expert_tensor_parallel"})
"""Columns that only kernels of experts depend on."""
_FEW_PLANS = 64  # plans below which looking for distinct kernels takes longer than it saves [-]
_SAMPLE, _MOST_IN_SAMPLE, _MOST_DISTINCT = 512, 0.95, 0.5  # rows of a sample; largest shares of distinct rows [-]
Constants = Mapping[str, Mapping[str, Array]]


class Part(NamedTuple):
    """Operators of one phase of a step, timed together."""

    phase: str
    family: str  # calibration constants that time the operators
    names: tuple[str, ...]
    place: str  # block of the model: attention, mlp, moe, head...
    calls: Array  # per pass, (rows, operators) [-]
    time: Array  # of one call, (rows, operators) [s]
    gemms: Gemms | None = None
    traffic: Array | None = None  # [B]
    precision: int = WIDE  # class of its operators
    flop: Array | None = None  # [FLOP]

    @property
    def total_time(self) -> Array:
        """Time of one pass, (rows,). [s]"""
        return total(self.calls * self.time)

    def time_of(self, ending: str) -> Array:
        """Time of one pass of the operators with an ending of their names, "" for all, (rows,). [s]"""
        if not ending:
            return self.total_time
        columns = _ending(self.names, ending)
        if columns is None:
            return 0.0 * self.total_time
        return total(self.calls[:, columns] * self.time[:, columns])


@lru_cache(maxsize=256)
def _ending(names: tuple[str, ...], ending: str) -> slice | list[int] | None:
    """Positions of the names with an ending."""
    index = [position for position, name in enumerate(names) if name.endswith(ending)]
    if not index:
        return None
    whole = slice(index[0], index[-1] + 1)
    return whole if len(index) == whole.stop - whole.start else index


@dataclass(frozen=True, eq=False)
class Setting:
    """Inputs of a training step."""

    model: Model
    device: Device
    network: Network
    plan: TrainingPlan
    constants: Constants  # kernel family -> name -> (rows, 1); ``gemm_wide`` for GEMMs at the wider precision
    architecture: Architecture
    alike: np.ndarray | None = None  # rows of one number have the same model, devices and constants

    def distinct_kernels(self, without: frozenset[str] = frozenset()) -> tuple[Setting, np.ndarray] | None:
        """The setting of one plan per distinct set of kernels, and the set of each plan; None if most sets differ.
        ``without``: columns that the kernels do not depend on.
        """
        plan, rows = self.plan, len(self.plan)
        if self.alike is None or rows < _FEW_PLANS:
            return None
        columns = [self.alike, plan.regathers & plan.quantized, plan.recompute_codes]  # casts of gathered weights
        columns += [each for name, each in plan.numbers.items() if each.ndim and name not in NOT_OF_KERNELS | without]
        if some(plan.adds_separately):  # to the gradients of the rank or of its shard
            shards = plan.zero_shards, plan.expert_zero_shards
            columns += [np.where(plan.sums_shards, ranks, 1.0) for ranks in shards]
        # worthwhile if few rows are distinct: of a sample first, then of all
        for number, most in ((_SAMPLE, _MOST_IN_SAMPLE), (rows, _MOST_DISTINCT)):
            first, which = distinct_rows(*(values[:number] for values in columns))
            if len(first) > most * len(which):
                return None

        def selected(values: Array) -> Array:
            return values[first] if values.ndim and len(values) == rows else values

        def rows_of(record: Any) -> Any:
            return replace(record, **{each.name: selected(getattr(record, each.name)) for each in fields(record)})

        constants = {
            family: {name: selected(values) for name, values in columns.items()}
            for family, columns in self.constants.items()
        }
        plans = plan.take(first)
        if some(plan.recompute == Recompute.SELECTIVE):  # the recomputation of all plans is timed, and used by some
            plans = plans.replaced(recompute=np.full(len(first), Recompute.SELECTIVE))
        machine = rows_of(self.model), rows_of(self.device), self.network
        return Setting(*machine, plans, constants, self.architecture), which

    @derived
    def pipeline(self) -> Pipeline:
        """Contents of the first, a middle and the last stage. [-]"""
        return pipeline_contents(self.model, self.plan)

    @derived
    def contents(self) -> StageContents:
        """Contents of the three stages side by side, (rows, 3). [-]"""
        return self.pipeline.stages()

    @derived
    def parameters(self) -> RankParameters:
        """Parameters of each block on one rank. [-]"""
        return rank_parameters(self.shard, self.plan)

    @derived
    def fullest(self) -> StageParameters:
        """Parameters of the largest stage on one rank. [-]"""
        return _largest_stage(self.model, self.plan, self.parameters, self.pipeline)

    @derived
    def stream_size(self) -> Array:
        """Bytes of the residual stream of a micro-batch on one rank of the context, (rows,). [B]"""
        return np.asarray(self.plan.tokens * self.model.hidden_size * self.plan.element_size)

    @derived
    def shard(self) -> Shard:
        """The model on one tensor-parallel rank."""
        return Shard(self.model, self.plan.tensor_parallel, self.plan.expert_tensor_parallel)

    @derived
    def narrow_share(self) -> Array:
        """Share of the layers whose products have the precision of the plan, (rows,); the others are wide. [-]"""
        return np.asarray(1.0 - self.plan.wide_layers / self.model.num_layers)

    @derived
    def routed(self) -> tuple[Array, Array, Array]:
        """Tokens that a rank routes; token copies over all experts of the busiest rank; experts per rank. [-]"""
        model, plan = self.model, self.plan
        routed = plan.tokens / plan.stream_ranks
        experts = ceil_div(model.num_experts, plan.expert_parallel)  # of the busiest rank
        share = experts * plan.expert_parallel / model.num_experts
        # load of the busiest rank over the mean: a fixed capacity, or the imbalance of the plan
        filled = np.where(np.isnan(plan.expert_capacity), plan.expert_imbalance, plan.expert_capacity)
        copies = routed * model.top_k * plan.expert_tensor_parallel * filled * share
        return routed, copies, experts
