"""Parallel dimensions as records: degree, groups of ranks, sharded state, collectives, rules and place in the search.

Products of degrees, strides of groups, shards of weights and tokens, rules of legality and the candidates of a search
follow from these records. A new dimension is a record here, a row of the schema, and the sizes of its messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array
from xlperf.equations.model.model import Model
from xlperf.equations.plan.records import ContextMethod, PlanColumns, Rule

PLACEHOLDERS = 2.0
"""Layer-equivalents of embedding and output projection together when layers are split over stages. [-]"""
DENSE, EXPERTS, WITHIN = "dense", "experts", "within"
"""Grids of ranks: dense layers; expert layers; groups within the tensor-parallel ranks of a serving replica."""


class Dimension(NamedTuple):
    """A parallel dimension: a degree whose groups of ranks split some of the state of a model."""

    size: str  # column of plans with the degree, or a property that follows from columns
    axis: str  # word of the dimension order: groups of one axis have one place in the order of ranks
    grids: tuple[str, ...]  # grids that it is an axis of
    # state that its ranks split: weights, gradients, optimizer, activations, tokens, experts, kv
    shards: frozenset[str] = frozenset()
    time: str = ""  # result with its exposed communication
    messages: Mapping[str, str] = {}  # message -> collective operation
    rules: tuple[Rule[PlanColumns], ...] = ()  # legality with a model and with other dimensions
    stated: bool = True  # whether it is a column, which must be whole and which a search may choose
    remainder: bool = False  # a blank takes the accelerators that the other degrees leave
    divides: Callable[[Model], Array] | None = None  # the search tries divisors of this number alone
    most: Callable[[Model], Array] | None = None  # largest degree that the search tries

    @property
    def words(self) -> str:
        """Name in a sentence: ``tensor parallel``."""
        return self.size.replace("_", " ")


def fraction(values: Array) -> np.ndarray:
    """True for values that are not whole numbers."""
    return np.asarray(values != np.floor(values))


def has_experts(model: Model) -> np.ndarray:
    """True for mixture-of-experts models."""
    return np.asarray(model.num_experts > 0.0)


def whole_number(name: str, column: str = "") -> Rule[PlanColumns]:
    """The rule that a column holds whole numbers; blanks pass. ``column`` as in :class:`Rule`."""
    reason = f"{name.replace('_', ' ')} must be a whole number, is {{{name}}}"
    return Rule(lambda plan, _: np.asarray(getattr(plan, name) > np.floor(getattr(plan, name))), reason, column)


def degrees(dimensions: Iterable[Dimension], grid: str) -> tuple[Dimension, ...]:
    """Dimensions of a grid whose degree is a column, the remainder last."""
    return tuple(sorted((each for each in dimensions if each.stated and grid in each.grids), key=lambda d: d.remainder))


def product_of_words(dimensions: Iterable[Dimension]) -> str:
    """Degrees in a reason: ``tensor {tensor_parallel} x context {context_parallel} parallel``."""
    return " x ".join(f"{each.words.split()[0]} {{{each.size}}}" for each in dimensions) + " parallel"


def product(plan: PlanColumns, dimensions: Iterable[Dimension]) -> Array:
    """Product of degrees, (rows,). [-]"""
    sizes = [getattr(plan, each.size) for each in dimensions]
    ranks = sizes[0]
    for size in sizes[1:]:
        ranks = ranks * size
    return np.asarray(ranks)


def group_strides(order: str, sizes: Mapping[str, Array]) -> dict[str, Array]:
    """Distance of neighbouring ranks of the groups of each axis, (rows,). [-]

    ``order`` names axes from the innermost; neighbouring ranks of the first are neighbouring accelerators.

    >>> sizes = {"tp": np.array([8.0]), "dp": np.array([4.0]), "pp": np.array([2.0])}
    >>> {name: float(stride[0]) for name, stride in group_strides("tp-cp-ep-dp-pp", sizes).items()}
    {'tp': 1.0, 'dp': 8.0, 'pp': 32.0}
    """
    strides: dict[str, Array] = {}
    distance = np.ones_like(next(iter(sizes.values())))
    for name in order.split("-"):
        if name in sizes:
            strides[name] = distance
            distance = distance * sizes[name]
    return strides


_STATE = frozenset(("weights", "gradients", "optimizer"))
_LINEAR_CONTEXT = Rule[PlanColumns](
    lambda plan, model: (model.num_linear_layers > 0.0) & (plan.context_parallel > 1),
    "context parallel {context_parallel} is not modelled for layers of linear attention; use 1",
    "context_parallel",
)
_SPARSE_CONTEXT = Rule[PlanColumns](
    lambda plan, model: (model.num_selected_layers > 0.0) & (plan.context_parallel > 1),
    "context parallel {context_parallel} is not modelled for sparse attention; use 1",
    "context_parallel",
)
_UNLIKE_CONTEXT = Rule[PlanColumns](
    lambda plan, model: (model.local_heads > 0.0) & (plan.context_parallel > 1),
    "context parallel {context_parallel} is not modelled for layers with a window whose heads differ; use 1",
    "context_parallel",
)


def _uneven_width(model: Model) -> np.ndarray:
    """True for models without dense layers, or with layers of unlike widths, of which the mean needs not divide."""
    return np.asarray((model.uneven > 0.0) & (fraction(model.ffn_hidden_size) | (model.num_dense_layers <= 0.0)))


# fmt: off
TRAINING_DIMENSIONS = (
    Dimension(
        "tensor_parallel", "tp", (DENSE,), shards=_STATE | {"activations"}, time="time_tensor_parallel",
        messages={"tensor_reduce": "all_reduce", "tensor_gather": "all_gather", "tensor_gradient_gather": "all_gather",
                  "tensor_scatter": "reduce_scatter", "logits_gather": "all_gather"},
        rules=(
            Rule(lambda plan, model: fraction(model.num_attention_heads / plan.tensor_parallel),
                 "tensor parallel {tensor_parallel} does not divide the {model.num_attention_heads} attention heads"),
            Rule(lambda plan, model: ~_uneven_width(model) & fraction(model.ffn_hidden_size / plan.tensor_parallel),
                 "tensor parallel {tensor_parallel} does not divide the feed-forward width {model.ffn_hidden_size}"),
            Rule(lambda plan, model: ((model.num_linear_layers > 0.0)
                                      & ((model.linear_key_heads > 1)
                                         & fraction(model.linear_key_heads / plan.tensor_parallel)
                                         | fraction(model.linear_value_heads / plan.tensor_parallel))),
                 "tensor parallel {tensor_parallel} does not divide the {model.linear_key_heads} key and"
                 " {model.linear_value_heads} value heads of linear attention"),
            Rule(lambda plan, _: (plan.sequence_parallel > 0) & fraction(plan.sequence_length / plan.tensor_parallel),
                 "sequence parallel needs a sequence length ({sequence_length}) that tensor parallel {tensor_parallel}"
                 " divides"),
        ),
        divides=lambda model: model.num_attention_heads,
    ),
    Dimension(
        "context_parallel", "cp", (DENSE,), shards=frozenset(("tokens", "activations")), time="time_context_parallel",
        messages={"context_step": "point_to_point", "context_gather": "all_gather", "context_exchange": "all_to_all"},
        rules=(
            Rule(lambda plan, _: ((plan.context_parallel > 1)
                                  & fraction(0.5 * plan.sequence_length / plan.context_parallel)),
                 "context parallel {context_parallel} needs a sequence length ({sequence_length}) that is a multiple of"
                 " twice as much", "context_parallel"),
            Rule(lambda plan, model: (
                     (plan.context_method == ContextMethod.ULYSSES) & (plan.context_parallel > 1)
                     & fraction(model.num_query_groups / (plan.tensor_parallel * plan.context_parallel))
                 ),
                 "ulysses context parallel {context_parallel} x tensor parallel {tensor_parallel} does not divide the"
                 " {model.num_query_groups} key and value heads", "context_method"),
            Rule(lambda plan, _: ((plan.flash_attention < 1) & (plan.context_parallel > 1)
                                  & (plan.context_method == ContextMethod.RING)),
                 "standard attention needs whole rows of scores, a ring brings them in pieces: use flash, or context"
                 " method all-gather or ulysses", "attention"),
            _LINEAR_CONTEXT,
            _SPARSE_CONTEXT, _UNLIKE_CONTEXT,
        ),
    ),
    Dimension(
        "expert_parallel", "ep", (EXPERTS,), shards=_STATE | {"experts"}, time="time_expert_parallel",
        messages={"expert_exchange": "all_to_all"},
        rules=(
            Rule(lambda plan, model: (~has_experts(model)
                                      & ((plan.expert_parallel > 1) | (plan.expert_tensor_parallel > 1))),
                 "the model has no experts: expert parallel {expert_parallel} and expert tensor parallel"
                 " {expert_tensor_parallel} must be 1"),
            Rule(lambda plan, model: has_experts(model) & (plan.expert_parallel > model.num_experts),
                 "expert parallel {expert_parallel} is more than the {model.num_experts} experts"),
            Rule(lambda plan, model: has_experts(model) & fraction(plan.expert_replicas),
                 "expert parallel {expert_parallel} x expert tensor parallel {expert_tensor_parallel} does not divide"
                 " the {stage_ranks} ranks of a pipeline stage"),
            Rule(lambda plan, _: (plan.expert_parallel > 1) & (plan.tensor_parallel > 1) & (plan.sequence_parallel < 1),
                 "expert parallel {expert_parallel} with tensor parallel {tensor_parallel} needs sequence parallel"),
        ),
        divides=lambda model: np.maximum(model.num_experts, 1.0),
    ),
    Dimension(
        "expert_tensor_parallel", "tp", (EXPERTS,), shards=_STATE | {"activations"}, time="time_expert_parallel",
        messages={"expert_gather": "all_gather", "expert_scatter": "reduce_scatter"},
        rules=(
            Rule(lambda plan, model: (has_experts(model)
                                      & fraction(model.expert_ffn_hidden_size / plan.expert_tensor_parallel)),
                 "expert tensor parallel {expert_tensor_parallel} does not divide the width"
                 " {model.expert_ffn_hidden_size} of an expert"),
        ),
        divides=lambda model: np.where(model.num_experts > 0.0, model.expert_ffn_hidden_size, 1.0),
    ),
    Dimension(
        "data_parallel", "dp", (DENSE,), time="time_data_parallel",
        messages={"gradient_reduce": "reduce_scatter", "group_reduce": "all_reduce", "weight_gather": "all_gather"},
        remainder=True,
    ),
    Dimension(
        "expert_replicas", "dp", (EXPERTS,), time="time_data_parallel",
        messages={"expert_gradient_reduce": "reduce_scatter", "expert_group_reduce": "all_reduce",
                  "expert_weight_gather": "all_gather"},
        stated=False,
    ),
    Dimension(
        "pipeline_parallel", "pp", (DENSE, EXPERTS), shards=_STATE, time="time_pipeline_communication",
        messages={"stage_transfer": "point_to_point"},
        rules=(
            Rule(lambda plan, model: plan.num_chunks > model.num_layers + PLACEHOLDERS,
                 "pipeline {pipeline_parallel} x virtual pipeline {virtual_pipeline} needs more layers than the model's"
                 " {model.num_layers}"),
            Rule(lambda plan, _: (plan.virtual_pipeline > 1) & (plan.pipeline_parallel < 2),
                 "virtual pipeline {virtual_pipeline} needs pipeline parallel of 2 or more", "virtual_pipeline"),
            Rule(lambda plan, _: (plan.ends_given > 0) & (plan.pipeline_parallel < 2),
                 "layers of the first or last stage need pipeline parallel of 2 or more"),
        ),
        most=lambda model: model.num_layers + PLACEHOLDERS,
    ),
)
# fmt: on
"""Of training plans, in the usual order of ranks from the innermost. ZeRO splits state over ``dp`` and ``cp`` too."""
AXES = tuple(dict.fromkeys(each.axis for each in TRAINING_DIMENSIONS))
MESSAGE_PARTS = tuple(dict.fromkeys(each.time for each in sorted(TRAINING_DIMENSIONS, key=lambda d: d.axis == "dp")))
"""Results with exposed communication, the reduction of gradients last."""
RANKS = degrees(TRAINING_DIMENSIONS, DENSE)  # dimensions whose product is the number of accelerators of a training plan
REPLICAS = tuple(each for each in RANKS if "weights" not in each.shards)  # dimensions whose ranks hold the same weights
SEQUENCE = tuple(each for each in RANKS if "tokens" in each.shards)  # dimensions that split the tokens of a micro-batch
STAGE = tuple(each for each in RANKS if each.axis != "pp")  # dimensions of the ranks of a pipeline stage
EXPERT_STAGE = tuple(each for each in degrees(TRAINING_DIMENSIONS, EXPERTS) if each.axis != "pp")
"""Dimensions that split the experts of a pipeline stage."""


# --- serving ----------------------------------------------------------------------------------------------------------


def _computes_ffn(plan: PlanColumns) -> np.ndarray:
    """True for pools that compute the feed-forward layers."""
    return np.asarray(plan.ffn_part > 0.0)


def _splits_linear_heads(kind: str) -> Rule[PlanColumns]:
    """The rule that tensor parallelism divides the key or value heads of linear attention."""
    name = f"linear_{kind}_heads"
    return Rule(
        # the only group of a state space is on every rank
        lambda plan, model: (
            (model.num_linear_layers > 0.0)
            & (getattr(model, name) > 1.0)
            & fraction(getattr(model, name) / plan.attention_parallel)
        ),
        f"tensor parallel {{attention_parallel}} does not divide the {{model.{name}}} {kind} heads of linear attention",
    )


EXPERTS_NEEDED = Rule[PlanColumns](
    lambda plan, model: (plan.expert_parallel > 1.0) & ~has_experts(model),
    "expert parallel {expert_parallel} needs a mixture of experts; use 1",
)
EXPERTS_DIVIDE = Rule[PlanColumns](
    lambda plan, model: has_experts(model) & (plan.expert_parallel > model.num_experts + plan.redundant_experts),
    "expert parallel {expert_parallel} is more than the {model.num_experts} experts and their copies; set redundant"
    " experts",
)
EXPERT_WIDTH = Rule[PlanColumns](
    lambda plan, model: (
        _computes_ffn(plan) & has_experts(model) & fraction(model.expert_ffn_hidden_size / plan.expert_tensor_parallel)
    ),
    "{expert_tensor_parallel} ranks that share an expert do not divide its width {model.expert_ffn_hidden_size}",
)
DENSE_WIDTH = Rule[PlanColumns](
    lambda plan, model: (
        _computes_ffn(plan)
        & (model.num_dense_layers > 0.0)
        & ~_uneven_width(model)
        & fraction(model.ffn_hidden_size / plan.attention_parallel)
    ),
    "tensor parallel {attention_parallel} does not divide the feed-forward width {model.ffn_hidden_size}",
)

# fmt: off
SERVING_DIMENSIONS = (
    Dimension(
        "tensor_parallel", "tp", (DENSE,), shards=frozenset(("weights", "activations", "kv")),
        rules=(
            Rule(lambda plan, model: fraction(model.num_attention_heads / plan.attention_parallel),
                 "tensor parallel {attention_parallel} does not divide the {model.num_attention_heads} attention"
                 " heads"),
            Rule(lambda plan, model: ((model.latent_attention == 0.0) & (model.shared_key_value == 0.0)
                                      & fraction(model.num_query_groups / plan.attention_parallel)
                                      & fraction(plan.attention_parallel / model.num_query_groups)),
                 "tensor parallel {attention_parallel} and the {model.num_query_groups} key and value heads do not"
                 " divide one another"),
            *map(_splits_linear_heads, ("key", "value")),
            DENSE_WIDTH,
        ),
    ),
    Dimension(
        "pipeline_parallel", "pp", (DENSE,), shards=frozenset(("weights", "kv")),
        rules=(
            Rule(lambda plan, model: plan.pipeline_parallel > model.num_layers,
                 "pipeline parallel {pipeline_parallel} needs more layers than the model's {model.num_layers}"),
        ),
    ),
    Dimension(
        "context_parallel", "cp", (DENSE,), shards=frozenset(("tokens", "activations", "kv")),
        rules=(
            Rule(lambda plan, _: 2.0 * plan.context_parallel > np.maximum(plan.prompt_length, 2.0),
                 "context parallel {context_parallel} needs two tokens of the prompt on each rank, the prompt has"
                 " {prompt_length}"),
            _LINEAR_CONTEXT,
            _SPARSE_CONTEXT, _UNLIKE_CONTEXT,
        ),
    ),
    Dimension(
        "data_parallel_attention", "tp", (WITHIN,), shards=frozenset(("tokens", "kv")),
        rules=(
            Rule(lambda plan, _: fraction(plan.attention_parallel),
                 "data parallel attention {data_parallel_attention} does not divide tensor parallel {tensor_parallel}"),
        ),
    ),
    Dimension(
        "expert_parallel", "tp", (WITHIN,), shards=frozenset(("experts",)),
        rules=(
            EXPERTS_NEEDED,
            Rule(lambda plan, _: fraction(plan.expert_tensor_parallel),
                 "expert parallel {expert_parallel} does not divide tensor parallel {tensor_parallel}"),
            EXPERTS_DIVIDE,
            EXPERT_WIDTH,
        ),
        divides=lambda model: np.maximum(model.num_experts, 1.0),
    ),
)
# fmt: on
"""Of inference plans, in the order of the search."""
REPLICA = degrees(SERVING_DIMENSIONS, DENSE)  # dimensions whose product is the ranks of a serving replica
POOL_DEGREES = tuple(each.size for each in SERVING_DIMENSIONS)
"""Degrees that the prefill pool of separate pools has by itself."""
