"""A training plan: the columns of the sheet, their defaults, and quantities that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from xlperf.base.arrays import Array, known_or, some
from xlperf.equations.model.model import Model
from xlperf.equations.plan.dimensions import (
    AXES,
    DENSE,
    EXPERT_STAGE,
    EXPERTS,
    RANKS,
    REPLICAS,
    SEQUENCE,
    STAGE,
    TRAINING_DIMENSIONS,
    fraction,
    group_strides,
    has_experts,
    product,
    product_of_words,
    whole_number,
)
from xlperf.equations.plan.records import (
    WORD,
    ActivationStorage,
    Attention,
    CrossEntropy,
    Derived,
    DispatchPrecision,
    GradientAccumulation,
    GradientPrecision,
    Graphs,
    LossPrecision,
    MasterWeights,
    MomentPrecision,
    OffloadTarget,
    Optimizer,
    PipelineSchedule,
    PlanColumns,
    QuantizedCopies,
    Recompute,
    Rule,
    StageDealing,
    derived,
    mask,
    quantity,
)

# bytes of an element of a gradient, a moment or a master weight, and of a token sent to experts [B]
FP32_SIZE, BF16_SIZE, FP8_SIZE = 4.0, 2.0, 1.0
DEFAULT_SEQUENCE_LENGTH = 4096.0  # tokens, at most the longest context of the model [-]
MICRO_BATCHES_PER_STAGE = 4.0  # micro-batches of a replica per pipeline stage if the global batch is blank [-]
UNLIMITED = ("dispatch_nodes", "dispatch_ranks", "zero_group_size", "recompute_layers")  # a blank has no limit
RECOMPUTE_MODULES = ("core_attention", "mlp", "moe", "norm", "activation", "latent", "products", "attention_output")
NO_MODULES = "none"  # recompute modules of a plan without selective recomputation
LAYOUTS = 2.0  # copies of a quantized tensor: GEMMs read rows in one pass and columns in the other [-]
ANY_LAYOUT = 1.0  # copies of a tensor with one scale on matrix units that read rows and columns [-]


def _distinct(plan: PlanColumns, name: str) -> tuple[np.ndarray, list[str]]:
    """Code of each plan's word in a column, and the distinct words by code."""
    column = getattr(plan, name)
    if not plan.has(name):
        return np.zeros(len(column), dtype=np.int64), [str(column[0])] if len(column) else []
    words = column.tolist()
    codes = {word: code for code, word in enumerate(dict.fromkeys(words))}
    return np.array(list(map(codes.__getitem__, words)), dtype=np.int64), list(codes)


def _by_word(words: tuple[np.ndarray, list[str]], holds: Callable[[str], bool]) -> np.ndarray:
    """Whether a condition holds for the word of each plan, (rows,); ``words`` as in :func:`_distinct`."""
    codes, distinct = words
    return np.asarray(np.array([holds(word) for word in distinct], dtype=bool)[codes])


@lru_cache(maxsize=1024)
def _names(text: str) -> frozenset[str]:
    """Modules in a text with spaces or commas between; none for the word ``none``."""
    return frozenset() if text == NO_MODULES else frozenset(text.replace(",", " ").split())


class TrainingPlan(PlanColumns):
    """Columns of training plans as the sheet ``training`` has them, (rows,), and quantities that follow from them."""

    # Filled in by the engine from the model, the precision and the software.
    mtp_layers: Array  # multi-token prediction modules trained with the model [-]
    product_size: Array  # bytes of a GEMM input element, scales included [B]
    element_size: Array  # bytes of a weight and of an activation between GEMMs [B]
    gradient_size: Array  # bytes of an element of the gradient buffer [B]
    cast_reads: Array  # passes over a tensor to cast it to the GEMM precision [-]
    fused_reads: Array  # the same for outputs of norms and activations; -1 if these write the quantized tensor [-]
    turns: Array  # 1 if a quantized tensor can be transposed [-]
    layouts: Array  # copies of a quantized tensor that GEMMs read: 1 or 2 [-]
    gathered_layouts: Array  # copies of a quantized tensor in a collective: 1 if ranks make the second copy of it [-]
    # 1 for DTensor, whose sequences are the second dimension of gathered tensors: collectives copy whole tensors, and
    # gathered inputs stay in memory for the backward pass [-]
    copied_gathers: Array

    # 1 for Adam (two moments), 0 for SGD with momentum (one) [-]
    adam = quantity(lambda plan: np.where(plan.optimizer == Optimizer.ADAM, 1.0, 0.0))

    @derived
    def moment_size(self) -> Array:
        """Bytes of an element of the optimizer's moments. [B]"""
        narrow = np.where(self.moment_precision == MomentPrecision.FP8, FP8_SIZE, BF16_SIZE)
        return np.where(self.moment_precision == MomentPrecision.FP32, FP32_SIZE, narrow)

    @derived
    def master_size(self) -> Array:
        """Bytes of master weight beside a 16-bit weight: an FP32 copy, the low 16 bits, or none. [B]"""
        less = np.where(self.master_weights == MasterWeights.REMAINDER, FP32_SIZE - BF16_SIZE, 0.0)
        return np.where(self.master_weights == MasterWeights.FP32, FP32_SIZE, less)

    @derived
    def optimizer_size(self) -> Array:
        """Bytes of optimizer state per parameter: moments (two of Adam), and master weights beside narrower ones. [B]

        Source: P. Micikevicius et al., "Mixed precision training", 2017, arXiv:1710.03740.
        """
        return (1.0 + self.adam) * self.moment_size + np.where(self.element_size < WORD, self.master_size, 0.0)

    # Bytes of an element of a token sent to experts [B]
    dispatch_size = quantity(
        lambda plan: np.where(plan.dispatch_precision == DispatchPrecision.FP8, FP8_SIZE, plan.element_size)
    )
    # 1 for a fused attention kernel, 0 for standard attention [-]
    flash_attention = quantity(lambda plan: np.where(plan.attention == Attention.STANDARD, 0.0, 1.0))
    # Activations that no GEMM stores in FP8 anyway wait in FP8 for the backward pass
    stores_fp8 = mask(lambda plan: plan.activation_storage == ActivationStorage.FP8)
    # Stages take layers in order until their share of the work is exceeded (nanotron)
    split_by_cost = mask(lambda plan: plan.stage_dealing == StageDealing.COST)
    # DualPipe: mirrored ranks hold the same two stages and micro-batches enter at both ends
    dualpipe = mask(lambda plan: plan.pipeline_schedule == PipelineSchedule.DUALPIPE)
    # LoRA: weights are frozen and low-rank adapters are trained
    frozen = mask(lambda plan: plan.adapter_rank > 0)
    # The plan states the layers of the first or the last stage
    ends_given = mask(lambda plan: ~np.isnan(plan.first_stage_layers) | ~np.isnan(plan.last_stage_layers))
    # Layers of the stages with stated layers [-]
    given_layers = quantity(lambda plan: known_or(plan.first_stage_layers, 0.0) + known_or(plan.last_stage_layers, 0.0))

    # Stages without stated layers [-]
    open_stages = quantity(
        lambda plan: plan.pipeline_parallel - ~np.isnan(plan.first_stage_layers) - ~np.isnan(plan.last_stage_layers)
    )
    # Accelerators that the degrees need [-]
    ranks = quantity(lambda plan: product(plan, RANKS))
    # Ranks of a pipeline stage [-]
    stage_ranks = quantity(lambda plan: product(plan, STAGE))
    # Micro-batches per replica and step [-]
    num_micro_batches = quantity(lambda plan: plan.global_batch_size / (plan.data_parallel * plan.micro_batch_size))
    # Tokens of a micro-batch per rank [-]
    tokens = quantity(lambda plan: plan.micro_batch_size * plan.sequence_length / product(plan, SEQUENCE))
    # Ranks that share the residual stream: those of tensor parallelism with sequence parallelism [-]
    stream_ranks = quantity(lambda plan: np.where(plan.sequence_parallel > 0, plan.tensor_parallel, 1.0))
    # 1 for GPipe: all forward passes precede the first backward pass [-]
    gpipe = quantity(lambda plan: np.asarray(plan.pipeline_schedule == PipelineSchedule.GPIPE, dtype=np.float64))
    # Copies of the weights in one pipeline: 2 with DualPipe [-]
    weight_copies = quantity(lambda plan: np.where(plan.dualpipe, 2.0, 1.0))
    # Ranks that hold the same dense weights: over replicas, the context, and the copies in a pipeline [-]
    shards = quantity(lambda plan: product(plan, REPLICAS) * plan.weight_copies)
    # Ranks of a pipeline stage that hold the same experts [-]
    expert_replicas = quantity(lambda plan: plan.stage_ranks / product(plan, EXPERT_STAGE))
    # Ranks that hold the same experts, copies in a pipeline included [-]
    expert_shards = quantity(lambda plan: plan.expert_replicas * plan.weight_copies)
    # Ranks over which ZeRO splits the state of dense weights [-]
    zero_shards = quantity(lambda plan: np.minimum(plan.zero_group_size, plan.shards))
    # Ranks over which ZeRO splits the state of experts [-]
    expert_zero_shards = quantity(lambda plan: np.minimum(plan.zero_group_size, plan.expert_shards))
    # GEMM inputs are narrower than activations
    quantized = mask(lambda plan: plan.product_size < plan.element_size)
    # Quantized copies stay in memory after their GEMM
    keeps_copies = mask(lambda plan: plan.quantized & (plan.quantized_copies != QuantizedCopies.NONE))
    # ZeRO-3 with resharding: weights are gathered in both passes of every micro-batch
    regathers = mask(lambda plan: (plan.zero_stage > 2) & (plan.reshard_after_forward > 0))
    # ZeRO-3 without resharding: gathered weights stay whole from the forward to the backward pass
    keeps_gathered = mask(lambda plan: (plan.zero_stage > 2) & (plan.reshard_after_forward < 1))
    # ZeRO-3 in a pipeline: weights are gathered once a step and whole gradients stay until its end
    gathers_once = mask(lambda plan: plan.keeps_gathered & (plan.pipeline_parallel > 1))
    # ZeRO-3 without a pipeline: weights gathered in a forward pass stay until its backward pass
    gathers_forward = mask(lambda plan: plan.keeps_gathered & (plan.pipeline_parallel < 2))
    # Gradients are reduced for every micro-batch, unless they are accumulated whole
    reduces_each = mask(lambda plan: plan.regathers | plan.gathers_forward | plan.scatters)
    # ZeRO-2 in a pipeline: gradients are reduce-scattered for every micro-batch, weights are whole
    scatters = mask(lambda plan: (plan.zero_stage == 2) & (plan.pipeline_parallel > 1) & ~plan.keeps_sums)

    # Every rank accumulates whole gradients, reduced once a step, although ZeRO would shard them
    keeps_sums = mask(
        lambda plan: (
            (plan.gradient_accumulation == GradientAccumulation.WHOLE)
            & (plan.zero_stage > 1)
            & (plan.num_micro_batches > 1)
        )
    )
    # Gradients are reduce-scattered for every micro-batch and accumulated sharded
    sums_shards = mask(
        lambda plan: (
            (plan.zero_stage > 1) & ((plan.pipeline_parallel < 2) | plan.scatters | plan.regathers) & ~plan.keeps_sums
        )
    )
    # A separate kernel adds weight gradients to their sum
    adds_separately = mask(lambda plan: (plan.gradient_accumulation >= GradientAccumulation.SEPARATE) & ~plan.frozen)

    @derived
    def plain_loss(self) -> np.ndarray:
        """Every step of the loss is a kernel with its own output; chunked losses too unless compiled. [-]"""
        whole = (self.cross_entropy == CrossEntropy.PLAIN) | (self.cross_entropy == CrossEntropy.GATHERED)
        return np.asarray(whole | (self.cross_entropy == CrossEntropy.CHUNKED) & (self.compiled == 0.0))

    @derived
    def gathers_again(self) -> Array:
        """1 if the backward pass gathers the input of a block again; with DTensor for recomputed norms alone. [-]"""
        recomputed = np.maximum(self.again("norm"), self.again("products"))
        return np.asarray(np.where(self.copied_gathers > 0.0, recomputed, 1.0))

    # CUDA graphs include experts, whose input sizes must be known at capture
    captures_experts = mask(lambda plan: (plan.graphs == Graphs.STEP) | (plan.graphs == Graphs.WHOLE_LAYERS))
    # Grouped GEMMs read token counts from memory, so that the host need not know them: the fused kernels of MXFP8 and
    # FP4, whose tensors cannot be transposed (Transformer Engine on cuDNN)
    counts_in_memory = mask(lambda plan: plan.turns < 1.0)
    # A plain loss in the precision of the logits, without FP32 copies of them
    narrow_loss = mask(lambda plan: plan.plain_loss & (plan.loss_precision == LossPrecision.BF16))
    # Bytes of an element of the softmax and of its gradient [B]
    loss_size = quantity(lambda plan: np.where(plan.narrow_loss, plan.element_size, WORD))
    # Ranks over which the logits of the loss are split: 1 if every tensor-parallel rank gathers them [-]
    loss_shards = quantity(
        lambda plan: np.where(plan.cross_entropy == CrossEntropy.GATHERED, 1.0, plan.tensor_parallel)
    )

    def again(self, module: str) -> Array:
        """1 if selective recomputation covers a module of RECOMPUTE_MODULES. [-]"""
        if module not in self._recomputed:
            named = _by_word(self._modules, lambda text: module in _names(text))
            self._recomputed[module] = 1.0 * named * (self.recompute == Recompute.SELECTIVE)
        return self._recomputed[module]

    _recomputed: Derived[Any, dict[str, Array]] = derived(lambda _: {})  # results of :meth:`again`
    # Code of each plan's choice of recomputed modules, and the choices by code
    _modules: Derived[Any, tuple[np.ndarray, list[str]]] = derived(lambda plan: _distinct(plan, "recompute_modules"))
    recompute_codes = mask(lambda plan: plan._modules[0])
    # A module to recompute is not one of RECOMPUTE_MODULES
    unknown_modules = mask(
        lambda plan: _by_word(plan._modules, lambda text: not _names(text) <= set(RECOMPUTE_MODULES))
    )
    # The plan names modules to recompute
    names_modules = mask(
        lambda plan: (plan.words("recompute_modules") != "") & (plan.words("recompute_modules") != NO_MODULES)
    )
    # Selective recomputation covers more than the attention core
    more_modules = mask(
        lambda plan: (
            (plan.recompute == Recompute.SELECTIVE)
            & _by_word(plan._modules, lambda text: _names(text) != {"core_attention"})
        )
    )
    # The dimension order does not name each of AXES once
    misnamed_order = mask(
        lambda plan: _by_word(
            _distinct(plan, "dimension_order"), lambda order: sorted(order.split("-")) != sorted(AXES)
        )
    )
    # Distance of neighbouring ranks of a group by axis, in dense and in expert layers [-]
    strides: Derived[Any, dict[str, Array]] = derived(lambda plan: plan._strides(DENSE))
    expert_strides: Derived[Any, dict[str, Array]] = derived(lambda plan: plan._strides(EXPERTS))

    def _strides(self, grid: str) -> dict[str, Array]:
        sizes = {each.axis: getattr(self, each.size) for each in TRAINING_DIMENSIONS if grid in each.grids}
        codes, orders = _distinct(self, "dimension_order")
        strides = {axis: np.ones_like(self.tensor_parallel) for axis in AXES}
        if len(orders) == 1:
            return {**strides, **group_strides(orders[0], sizes)}
        for code, order in enumerate(orders):
            rows = np.flatnonzero(codes == code)
            for axis, values in group_strides(order, {axis: size[rows] for axis, size in sizes.items()}).items():
                strides[axis][rows] = values
        return strides

    # Model chunks over all stages [-]
    num_chunks = quantity(lambda plan: plan.pipeline_parallel * plan.virtual_pipeline)


BLANKS: Mapping[str, Callable[[TrainingPlan, Array], Array | float]] = {
    "data_parallel": lambda plan, _: (
        plan.num_accelerators / product(plan, (each for each in RANKS if not each.remainder))
    ),
    "sequence_parallel": lambda plan, _: np.where(plan.tensor_parallel > 1, 1.0, 0.0),
    "reshard_after_forward": lambda plan, _: np.where(plan.pipeline_parallel > 1, 0.0, 1.0),
    "global_batch_size": lambda plan, _: (
        plan.data_parallel * plan.micro_batch_size * MICRO_BATCHES_PER_STAGE * plan.pipeline_parallel
    ),
    "sequence_length": lambda _, longest: np.fmin(DEFAULT_SEQUENCE_LENGTH, longest),
    "adapter_rank": lambda *_: 0.0,
    **dict.fromkeys(UNLIMITED, lambda *_: np.inf),
}
"""Value of a blank, by column, from the columns before it and the longest sequence of the model."""


def with_defaults(plan: TrainingPlan, model: Model, max_sequence_length: Array, gradient_size: Array) -> TrainingPlan:
    """Fill blanks by :data:`BLANKS`, MTP modules by the model, and the gradient buffer by the software. [B]"""
    filled: dict[str, np.ndarray] = {}
    for name, follows in BLANKS.items():
        values = getattr(plan, name)
        if some(np.isnan(values)):
            filled[name] = np.where(np.isnan(values), follows(plan, max_sequence_length), values)
            if name == "data_parallel":  # the global batch follows from it
                plan = plan.replaced(data_parallel=filled[name])
    stated = np.where(plan.gradient_precision == GradientPrecision.FP32, FP32_SIZE, BF16_SIZE)
    return plan.replaced(
        mtp_layers=np.asarray(plan.train_mtp * model.num_mtp_layers),
        gradient_size=np.where(np.isnan(plan.gradient_precision), gradient_size, stated),
        **filled,
    )


def used_families(model: Model, plan: TrainingPlan) -> dict[str, np.ndarray]:
    """Families of calibration constants that not every step needs -> plans that use them, (rows,)."""
    tensor, shards, split = plan.tensor_parallel > 1, plan.shards > 1, plan.sequence_parallel > 0
    sharded, context = plan.zero_stage > 0, plan.context_parallel > 1
    pairs = (tensor & split) | (shards & sharded)
    flash = plan.flash_attention > 0
    return {
        "experts": model.num_experts > 0,
        "all_reduce": (tensor & ~split) | (shards & ~sharded),
        "all_gather": pairs,
        "reduce_scatter": pairs,
        "all_to_all": (plan.expert_parallel > 1) | context,
        "point_to_point": (plan.pipeline_parallel > 1) | context,
        "attention": flash,
        "attention_backward": flash,
        "linear_attention": model.num_linear_layers > 0,
    }


def _lacks_layers(plan: TrainingPlan, model: Model) -> np.ndarray:
    """Stages without given layers get less than one layer per chunk, or no stage takes the remaining layers."""
    rest = model.num_layers - plan.given_layers
    lacking = np.where(plan.open_stages > 0, rest < plan.open_stages * plan.virtual_pipeline, rest != 0)
    return np.asarray(plan.ends_given & (plan.pipeline_parallel >= 2) & lacking)


def _lacks_remainder(plan: TrainingPlan) -> np.ndarray:
    """The optimizer stores the low 16 bits of weights whose high 16 bits no rank has."""
    split = (plan.master_size > 0.0) & (plan.master_size < FP32_SIZE)
    primary = plan.quantized & (plan.quantized_copies == QuantizedCopies.PRIMARY)
    return np.asarray(split & (primary | (plan.element_size >= FP32_SIZE)))


# fmt: off
TRAINING_RULES: tuple[Rule[TrainingPlan], ...] = (
    Rule(lambda plan, _: (plan.words("dimension_order") != "") & plan.misnamed_order,
         f"dimension order {{words.dimension_order}} must name {', '.join(AXES)} once each, joined by hyphens",
         "dimension_order"),
    Rule(lambda plan, _: (plan.pipeline_schedule == PipelineSchedule.INTERLEAVED) & (plan.virtual_pipeline < 2),
         "an interleaved schedule needs virtual pipeline of 2 or more, is {virtual_pipeline}", "pipeline_schedule"),
    *(whole_number(each.size, "" if each.remainder else each.size) for each in TRAINING_DIMENSIONS if each.stated),
    whole_number("virtual_pipeline", "virtual_pipeline"),
    *map(whole_number, ("num_accelerators", "global_batch_size", "micro_batch_size", "sequence_length")),
    Rule(lambda plan, _: plan.ranks != plan.num_accelerators,
         f"{product_of_words(RANKS)} is {{ranks}} ranks, not the {{num_accelerators}} accelerators of the plan"),
    *(rule for dimension in TRAINING_DIMENSIONS for rule in dimension.rules),
    Rule(lambda plan, model: ~has_experts(model) & ~np.isnan(plan.expert_capacity),
         "the model has no experts to give a capacity of {expert_capacity}", "expert_capacity"),
    Rule(lambda plan, model: (has_experts(model) & np.isnan(plan.expert_capacity) & plan.captures_experts
                              & ~plan.counts_in_memory),
         "graphs {words.graphs} need an expert capacity (or products in mxfp8 or fp4): the host waits for the counts of"
         " tokens", "graphs"),
    Rule(lambda plan, _: ~np.isnan(plan.expert_capacity) & (plan.expert_imbalance > 1),
         "experts with a capacity ({expert_capacity}) are filled alike: leave expert imbalance ({expert_imbalance})"
         " out", "expert_capacity"),
    Rule(lambda plan, _: (plan.pipeline_schedule == PipelineSchedule.ZERO_BUBBLE) & (plan.virtual_pipeline > 1),
         "the zero-bubble schedule has no virtual pipeline, plan asks for {virtual_pipeline}", "pipeline_schedule"),
    Rule(lambda plan, _: plan.dualpipe & (fraction(plan.pipeline_parallel / 2.0) | (plan.virtual_pipeline > 1)),
         "dualpipe needs an even number of stages and no virtual pipeline, plan has {pipeline_parallel} and"
         " {virtual_pipeline}", "pipeline_schedule"),
    Rule(lambda plan, _: plan.dualpipe & (plan.num_micro_batches < 2.0 * plan.pipeline_parallel),
         "dualpipe needs at least twice as many micro-batches ({num_micro_batches}) as stages ({pipeline_parallel})",
         "pipeline_schedule"),
    Rule(lambda plan, _: ((plan.virtual_pipeline > 1) & fraction(plan.num_micro_batches / plan.pipeline_parallel)
                          & ~fraction(plan.num_micro_batches)),
         "interleaving needs a number of micro-batches ({num_micro_batches}) that pipeline parallel {pipeline_parallel}"
         " divides", "virtual_pipeline"),
    Rule(lambda plan, _: (plan.virtual_pipeline > 1) & (plan.pipeline_schedule == PipelineSchedule.GPIPE),
         "the gpipe schedule has no virtual pipeline, plan asks for {virtual_pipeline}", "pipeline_schedule"),
    Rule(lambda plan, _: fraction(plan.num_micro_batches) | (plan.num_micro_batches < 1),
         "global batch {global_batch_size} is not a whole number of micro-batches of {micro_batch_size} on"
         " {data_parallel} replicas"),
    Rule(lambda plan, _: np.isfinite(plan.zero_group_size) & (plan.zero_stage < 1),
         "zero group size {zero_group_size} needs ZeRO stage 1 or more", "zero_group_size"),
    Rule(lambda plan, model: (fraction(plan.shards / plan.zero_shards)
                              | (has_experts(model) & fraction(plan.expert_shards / plan.expert_zero_shards))),
         "zero group size {zero_group_size} does not divide the {shards} ranks that hold the same weights (of experts:"
         " {expert_shards})"),
    Rule(lambda plan, _: ((plan.reshard_after_forward != np.where(plan.pipeline_parallel > 1, 0.0, 1.0))
                          & (plan.zero_stage < 3)),
         "reshard after forward needs ZeRO stage 3, plan has {zero_stage}", "reshard_after_forward"),
    Rule(lambda plan, _: (plan.offload_target == OffloadTarget.DRIVE) & (plan.offload_optimizer <= 0),
         "offload target drive needs optimizer state to offload: set offload optimizer", "offload_target"),
    Rule(lambda plan, model: (plan.train_mtp > 0) & ~(model.num_mtp_layers > 0),
         "the model has no multi-token prediction modules to train", "train_mtp"),
    Rule(lambda plan, _: (plan.mtp_layers > 0) & plan.frozen,
         "multi-token prediction modules are not trained beside adapters", "train_mtp"),
    Rule(lambda plan, _: (plan.words("adapter_modules") != "") & ~plan.frozen,
         "adapter modules {words.adapter_modules} need an adapter rank", "adapter_modules"),
    Rule(lambda plan, _: (plan.words("quantized_copies") != "") & ~plan.quantized,
         "quantized copies {words.quantized_copies} need products in FP8, INT8 or FP4", "quantized_copies"),
    Rule(lambda plan, _: _lacks_remainder(plan),
         "master weights remainder need 16-bit weights beside them: not fp32, tf32 or quantized copies primary",
         "master_weights"),
    Rule(lambda plan, _: (plan.wide_layers > 0) & ~plan.quantized,
         "wide layers {wide_layers} need products in FP8, INT8 or FP4", "wide_layers"),
    Rule(lambda plan, model: plan.wide_layers > model.num_layers,
         "wide layers {wide_layers} are more than the model's {model.num_layers}", "wide_layers"),
    Rule(lambda plan, _: plan.unknown_modules,
         f"recompute modules {{words.recompute_modules}} must be of {', '.join(RECOMPUTE_MODULES)}, with spaces"
         " between", "recompute_modules"),
    Rule(lambda plan, _: plan.names_modules & (plan.recompute != Recompute.SELECTIVE),
         "recompute modules {words.recompute_modules} need recompute selective", "recompute_modules"),
    Rule(lambda plan, _: (plan.words("recompute_modules") == NO_MODULES) & (plan.recompute == Recompute.SELECTIVE),
         "recompute selective needs modules: recompute modules are none", "recompute_modules"),
    Rule(lambda plan, model: (plan.again("moe") > 0) & ~has_experts(model),
         "the model has no experts to recompute", "recompute_modules"),
    Rule(lambda plan, model: (plan.again("latent") > 0) & (model.latent_attention <= 0),
         "the model has no latent attention to recompute", "recompute_modules"),
    Rule(lambda plan, _: np.isfinite(plan.recompute_layers) & (plan.recompute == Recompute.NONE),
         "recompute layers {recompute_layers} need recompute selective or full", "recompute_layers"),
    Rule(lambda plan, _: (plan.recompute_group > 1) & (plan.recompute != Recompute.FULL),
         "recompute group {recompute_group} needs recompute full", "recompute_group"),
    Rule(lambda plan, _: plan.split_by_cost & plan.ends_given,
         "stage dealing cost leaves no choice of the layers of the first or last stage", "stage_dealing"),
    Rule(lambda plan, _: plan.split_by_cost & (plan.virtual_pipeline > 1),
         "stage dealing cost has no virtual pipeline, plan asks for {virtual_pipeline}", "stage_dealing"),
    Rule(lambda plan, _: plan.split_by_cost & plan.dualpipe,
         "stage dealing cost has no dualpipe schedule", "stage_dealing"),
    Rule(lambda plan, _: plan.split_by_cost & (plan.mtp_layers > 0),
         "stage dealing cost has no multi-token prediction modules", "stage_dealing"),
    Rule(_lacks_layers,
         "first and last stage take {given_layers} of {model.num_layers} layers: what is left does not give each chunk"
         " of {open_stages} stages in between a layer"),
    Rule(lambda plan, model: (model.num_selected_layers > 0.0) & (plan.flash_attention < 1),
         "sparse attention has no standard kernel; use flash", "attention"),
    Rule(lambda plan, model: (model.num_selected_layers > 0.0) & plan.frozen,
         "adapters beside sparse attention are not modelled; train all weights", "adapter_rank"),
    Rule(lambda plan, model: (model.num_linear_layers > 0.0) & plan.frozen,
         "adapters beside layers of linear attention are not modelled; train all weights", "adapter_rank"),
    Rule(lambda plan, model: ((model.uneven + model.local_heads + model.per_layer_size + model.latent_gate > 0.0)
                              & plan.frozen),
         "adapters of layers that differ in their blocks or heads are not modelled; train all weights", "adapter_rank"),
    Rule(lambda plan, model: (model.local_heads > 0.0) & (plan.flash_attention < 1),
         "layers with a window whose heads differ have no standard kernel; use flash", "attention"),
)
# fmt: on
"""Rules of a plan by itself and with its model, in the order of their sentences in ``reason``."""
