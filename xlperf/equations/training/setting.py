"""What a training step depends on, and the parameters that the stages of its pipeline hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from xlperf.base.arrays import Array, ceil_div, distinct_rows, divide, ones, some, total
from xlperf.equations.hardware.roofline import Device
from xlperf.equations.model.blocks import (
    EXPERTS,
    LATENT_SPACE,
    LINEAR,
    MLP,
    ROUTER,
    SHARED_EXPERT,
    Gemms,
    Shard,
    weights,
)
from xlperf.equations.model.model import Architecture, Model
from xlperf.equations.model.parameters import (
    attention_matrix_parameters,
    index_parameters,
    layer_small_parameters,
    linear_vector_parameters,
    whole_model,
)
from xlperf.equations.network.topologies import Network
from xlperf.equations.plan.records import WORD, Recompute, derived
from xlperf.equations.plan.training_plan import TrainingPlan
from xlperf.equations.training.adapters import AdapterParameters, adapter_parameters
from xlperf.equations.training.stages import Pipeline, StageContents, pipeline_contents


class RankParameters(NamedTuple):
    """Parameters of each block on one rank, (rows,). [-]

    Attributes
    ----------
    attention : Array
        Attention of a layer, with norms and biases. [-]
    linear : Array
        Linear attention of a layer, with norms; 0 without any. [-]
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
    linear_small : Array
        Norms, convolution and decays of a layer of linear attention. [-]
    router : Array
        Router of a mixture. [-]
    adapters : AdapterParameters
        Low-rank adapters of a layer. [-]
    """

    attention: Array
    linear: Array
    mlp: Array
    shared: Array
    experts: Array
    embedding: Array
    head: Array
    mtp: Array
    small: Array
    linear_small: Array
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

    Examples
    --------
    Llama 3.1 8B on two ranks: 41,943,040 / 2 and two norms of 4,096; 176,160,768 / 2; half of the vocabulary.

    >>> from ideal_machine import LLAMA as llama
    >>> plan = {"tensor_parallel": 2.0, "pipeline_parallel": 1.0, "adapter_rank": 0.0, "expert_tensor_parallel": 1.0}
    >>> held = rank_parameters(llama, TrainingPlan({name: np.array([value]) for name, value in plan.items()}))
    >>> [float(values[0]) for values in (held.attention, held.mlp, held.embedding)]
    [20979712.0, 88080384.0, 262668288.0]
    """
    tensor, hidden = plan.tensor_parallel, model.hidden_size
    shard = Shard(model, tensor, plan.expert_tensor_parallel, even=True)
    small, router = layer_small_parameters(model), weights(ROUTER, shard)
    table, none = ceil_div(model.vocab_size, tensor) * hidden, np.zeros(tensor.shape)
    linear, linear_small, norm, experts, sparse = none, none, none, none, none
    if some(model.num_linear_layers):  # a layer of one block has one norm
        norm = (2.0 - model.num_blocks) * (1.0 + model.layer_norm) * hidden
        small = small - norm
        norms = model.num_blocks * (1.0 + model.layer_norm) * hidden
        linear_small = linear_vector_parameters(whole_model(model)) / tensor + norms
        linear = weights(LINEAR, shard) + linear_small
    router = router + norm
    if some(model.num_selected_layers):  # every rank holds the whole index; mean over the layers
        sparse = divide(index_parameters(model), model.num_attention_layers)
    if some(model.num_experts):
        experts = ceil_div(model.num_experts, plan.expert_parallel) * weights(EXPERTS, shard)
    return RankParameters(
        attention=attention_matrix_parameters(shard) + small + sparse,
        linear=linear,
        mlp=weights(MLP, shard) + norm,
        shared=weights(SHARED_EXPERT, shard) + router + weights(LATENT_SPACE, shard),
        experts=experts,
        embedding=table + model.learned_positions * hidden,
        head=np.where((model.tied_embeddings > 0) & (plan.pipeline_parallel < 2), 0.0, table),
        mtp=2.0 * hidden**2 / tensor + 3.0 * (1.0 + model.layer_norm) * hidden,
        small=small,
        linear_small=linear_small,
        router=router,
        adapters=adapter_parameters(model, plan, tensor) if some(plan.frozen) else AdapterParameters(none, none),
    )


def _columns(values: Array, contents: StageContents) -> Array:
    """Values of plans, broadcast against the contents of one stage or of several."""
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

    Examples
    --------
    Two layers of 10 and of 20 parameters and an embedding of 100:

    >>> from types import SimpleNamespace
    >>> held = RankParameters(*np.zeros((len(RankParameters._fields), 1)))
    >>> held = held._replace(attention=np.array([10.0]), mlp=np.array([20.0]), embedding=np.array([100.0]))
    >>> contents = StageContents(*np.array([2.0, 0.0, 1.0, 0.0, 0.0, 2.0, 0.0, 2.0])[:, None])
    >>> plan = SimpleNamespace(weight_copies=np.ones(1), frozen=np.array([False]))
    >>> model = SimpleNamespace(num_experts=np.zeros(1), num_linear_layers=np.zeros(1))
    >>> stage_parameters(model, plan, held, contents).dense.tolist()
    [160.0]
    """
    shared = np.where(model.num_experts > 0, held.shared, 0.0)
    attention, mlp, shared, routed, embedding, head, mtp, copies = (
        _columns(values, contents)
        for values in (held.attention, held.mlp, shared, held.experts, held.embedding, held.head, held.mtp,
                       plan.weight_copies)
    )  # fmt: skip
    blocks = contents.attention * attention + contents.dense * mlp + contents.mixtures * shared
    if some(model.num_linear_layers):
        blocks = blocks + contents.linear * _columns(held.linear, contents)
    outside = contents.embedding * embedding + contents.head * head + contents.mtp * mtp
    dense, experts = copies * (blocks + outside), copies * contents.mixtures * routed
    if not some(plan.frozen):
        return StageParameters(dense, experts, dense, experts)
    beside_attention, beside_mlp = (_columns(values, contents) for values in held.adapters)
    frozen = _columns(plan.frozen, contents)
    adapters = contents.attention * beside_attention + contents.dense * beside_mlp
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

    Examples
    --------
    Two layers of 10 - 1 and of 20 weights, kept once:

    >>> from types import SimpleNamespace
    >>> held = RankParameters(*np.zeros((len(RankParameters._fields), 1)))
    >>> held = held._replace(attention=np.array([10.0]), small=np.array([1.0]), mlp=np.array([20.0]))
    >>> contents = StageContents(*np.array([2.0, 0.0, 0.0, 0.0, 0.0, 2.0, 0.0, 2.0])[:, None])
    >>> quantized_weights(SimpleNamespace(weight_copies=np.ones(1)), held, contents).tolist()
    [58.0]
    """
    attention, mlp, shared, copies = (
        _columns(values, contents)
        for values in (held.attention - held.small, held.mlp, held.shared - held.router, plan.weight_copies)
    )
    blocks = contents.attention * attention + contents.dense * mlp + contents.mixtures * shared
    blocks = blocks + contents.linear * _columns(held.linear - held.linear_small, contents)
    return np.asarray(copies * blocks)


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

    Examples
    --------
    Eight layers of 10 and 20 parameters and the embedding; the output head is on another stage.

    >>> from types import SimpleNamespace
    >>> held = RankParameters(*np.zeros((len(RankParameters._fields), 1)))
    >>> held = held._replace(attention=np.array([10.0]), mlp=np.array([20.0]), embedding=np.array([100.0]))
    >>> contents = StageContents(*np.zeros((len(StageContents._fields), 1)))
    >>> contents = contents._replace(attention=np.array([8.0]), dense=np.array([8.0]))
    >>> plan = SimpleNamespace(**dict.fromkeys(("mtp_layers", "frozen"), np.zeros(1)), weight_copies=np.ones(1))
    >>> plan.pipeline_parallel = 4.0
    >>> model = SimpleNamespace(num_experts=np.zeros(1), num_linear_layers=np.zeros(1))
    >>> fullest_parameters(model, plan, held, SimpleNamespace(middle=contents)).dense.tolist()
    [340.0]
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


MASK = 1.0
"""Bytes of an element of a dropout mask. [B]"""
STORED = 1.0 + WORD / 128.0
"""Bytes of an input of an activation function that waits in FP8, with an FP32 scale for each 128. [B]"""
STORED_OUTPUT = 1.5 + WORD / 128.0
"""Bytes of an element of the output of attention that waits in 12 bits (E5M6), with its share of a scale. [B]"""

NOT_OF_KERNELS = frozenset(
    "num_accelerators data_parallel pipeline_parallel virtual_pipeline pipeline_schedule"
    " global_batch_size recompute zero_stage reshard_after_forward".split()
)
"""Columns that the kernels of a micro-batch do not depend on, but for whether and which are run or gathered anew."""
_FEW_PLANS, _MOST_DISTINCT = 64, 0.5
Constants = Mapping[str, Mapping[str, Array]]


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
    flop: Array | None = None

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
    with ``gemm_wide`` for the products at that wider precision. Rows with one number in ``alike`` have the same model,
    devices and constants.
    """

    model: Model
    device: Device
    wide_device: Device
    network: Network
    plan: TrainingPlan
    constants: Constants
    architecture: Architecture
    alike: np.ndarray | None = None

    def distinct_kernels(self) -> tuple[Setting, np.ndarray] | None:
        """The setting of one plan of each kind whose kernels differ, and of which kind each plan is.

        None where most kinds are of one plan. The network stays that of all plans: no kernel reads it.
        """
        plan, rows = self.plan, len(self.plan)
        if self.alike is None or rows < _FEW_PLANS:
            return None
        columns = [values for name, values in plan.numbers.items() if name not in NOT_OF_KERNELS and values.ndim]
        first, which = distinct_rows(self.alike, plan.regathers, plan.recompute_codes, *columns)
        if len(first) > _MOST_DISTINCT * rows:
            return None

        def taken(values: Array) -> Array:
            return values[first] if values.ndim and len(values) == rows else values

        def some_of(record: Any) -> Any:
            return replace(record, **{one.name: taken(getattr(record, one.name)) for one in fields(record)})

        constants = {
            family: {name: taken(values) for name, values in columns.items()}
            for family, columns in self.constants.items()
        }
        devices = some_of(self.device), some_of(self.wide_device)
        own = plan.take(first)
        if some(plan.recompute == Recompute.SELECTIVE):  # what the others would run again is timed and not used
            own = own.replaced(recompute=np.full(len(first), Recompute.SELECTIVE))
        return Setting(some_of(self.model), *devices, self.network, own, constants, self.architecture), which

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
    def shard(self) -> Shard:
        """The model on one tensor-parallel rank."""
        ungated = replace(self.model, attention_gate=0.0 * self.model.attention_gate)
        return Shard(ungated, self.plan.tensor_parallel, self.plan.expert_tensor_parallel)

    @property
    def heads(self) -> Array:
        """Heads of queries on a rank, (rows,). [-]"""
        return self.shard.heads

    @property
    def key_heads(self) -> Array:
        """Heads of keys and values on a rank without latent attention, (rows,). [-]"""
        return self.shard.groups

    @derived
    def routed(self) -> tuple[Array, Array, Array]:
        """Tokens that a rank routes, their copies over all experts of the fullest rank, and experts of a rank. [-]"""
        model, plan = self.model, self.plan
        routed = plan.tokens / np.where(plan.sequence_parallel > 0, plan.tensor_parallel, 1.0)
        experts = ceil_div(model.num_experts, plan.expert_parallel)  # of the fullest rank, and its share of the tokens
        share = experts * plan.expert_parallel / model.num_experts
        filled = np.where(np.isnan(plan.expert_capacity), plan.expert_imbalance, plan.expert_capacity)
        copies = routed * model.top_k * plan.expert_tensor_parallel * filled * share
        return routed, copies, experts
