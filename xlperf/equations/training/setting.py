"""Inputs of a training step, and the parameters on a rank by block and by pipeline stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from xlperf.base.arrays import Array, ceil_div, distinct_rows, divide, ones, some, total
from xlperf.equations.hardware.roofline import WIDE, Device
from xlperf.equations.model.blocks import EXPERTS, LATENT_SPACE, MLP, ROUTER, SHARED_EXPERT, Gemms, Shard, weights
from xlperf.equations.model.model import Architecture, Model
from xlperf.equations.model.operators import (
    attention_matrix_parameters,
    index_parameters,
    layer_small_parameters,
    linear_matrix_parameters,
    linear_vector_parameters,
    whole_model,
)
from xlperf.equations.network.topologies import Network
from xlperf.equations.plan.records import WORD, Recompute, derived
from xlperf.equations.plan.training_plan import TrainingPlan
from xlperf.equations.training.adapters import AdapterParameters, adapter_parameters
from xlperf.equations.training.stages import Pipeline, StageContents, pipeline_contents


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


def rank_parameters(model: Model, plan: TrainingPlan) -> RankParameters:
    """Parameters of each block on one rank, before sharding over replicas.

    Llama 3.1 8B on two ranks: 41,943,040 / 2 and two norms of 4,096; 176,160,768 / 2; half of the vocabulary.
    """
    tensor, hidden = plan.tensor_parallel, model.hidden_size
    shard = Shard(model, tensor, plan.expert_tensor_parallel)
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
_FEW_PLANS, _MOST_DISTINCT = 64, 0.5
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

    def distinct_kernels(self) -> tuple[Setting, np.ndarray] | None:
        """The setting of one plan per distinct set of kernels, and the set of each plan; None if most sets differ.

        The network stays whole: no kernel depends on it.
        """
        plan, rows = self.plan, len(self.plan)
        if self.alike is None or rows < _FEW_PLANS:
            return None
        columns = [values for name, values in plan.numbers.items() if name not in NOT_OF_KERNELS and values.ndim]
        if some(plan.adds_separately):  # to the gradients of the rank or of its shard
            shards = plan.zero_shards, plan.expert_zero_shards
            columns += [np.where(plan.sums_shards, ranks, 1.0) for ranks in shards]
        first, which = distinct_rows(self.alike, plan.regathers, plan.recompute_codes, *columns)
        if len(first) > _MOST_DISTINCT * rows:
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
        return rank_parameters(self.model, self.plan)

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

    @property
    def heads(self) -> Array:
        """Query heads of a rank, (rows,). [-]"""
        return self.shard.heads

    @property
    def key_heads(self) -> Array:
        """Key and value heads of a rank without latent attention, (rows,). [-]"""
        return self.shard.groups

    @derived
    def routed(self) -> tuple[Array, Array, Array]:
        """Tokens that a rank routes; token copies over all experts of the busiest rank; experts per rank. [-]"""
        model, plan = self.model, self.plan
        routed = plan.tokens / np.where(plan.sequence_parallel > 0, plan.tensor_parallel, 1.0)
        experts = ceil_div(model.num_experts, plan.expert_parallel)  # of the busiest rank
        share = experts * plan.expert_parallel / model.num_experts
        filled = np.where(np.isnan(plan.expert_capacity), plan.expert_imbalance, plan.expert_capacity)
        copies = routed * model.top_k * plan.expert_tensor_parallel * filled * share
        return routed, copies, experts
