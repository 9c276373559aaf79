"""A training plan: the columns of the sheet, their defaults, and quantities that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, known_or, some
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
    group_strides,
    product,
)
from xlperf.equations.plan.records import (
    WORD,
    ActivationStorage,
    Attention,
    CrossEntropy,
    DispatchPrecision,
    GradientAccumulation,
    GradientPrecision,
    Graphs,
    LossPrecision,
    MasterWeights,
    MomentPrecision,
    Optimizer,
    PipelineSchedule,
    PlanColumns,
    QuantizedCopies,
    Recompute,
    StageDealing,
    derived,
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


class TrainingPlan(PlanColumns):
    """Columns of training plans as the sheet ``training`` has them, (rows,), and quantities that follow from them.

    Flags are 1 or 0; masks are True for the rows that their text describes.
    """

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

    @derived
    def adam(self) -> Array:
        """1 for Adam (two moments), 0 for SGD with momentum (one). [-]"""
        return np.where(self.optimizer == Optimizer.ADAM, 1.0, 0.0)

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
        """Bytes of optimizer state per parameter. [B]"""
        return optimizer_element_size(self.adam, self.element_size, WORD, self.moment_size, self.master_size)

    @derived
    def dispatch_size(self) -> Array:
        """Bytes of an element of a token sent to experts. [B]"""
        return np.where(self.dispatch_precision == DispatchPrecision.FP8, FP8_SIZE, self.element_size)

    @derived
    def flash_attention(self) -> Array:
        """1 for a fused attention kernel, 0 for standard attention. [-]"""
        return np.where(self.attention == Attention.STANDARD, 0.0, 1.0)

    @derived
    def stores_fp8(self) -> np.ndarray:
        """Activations that no GEMM stores in FP8 anyway wait in FP8 for the backward pass. [-]"""
        return np.asarray(self.activation_storage == ActivationStorage.FP8)

    @derived
    def split_by_cost(self) -> np.ndarray:
        """Stages take layers in order until their share of the work is exceeded (nanotron). [-]"""
        return np.asarray(self.stage_dealing == StageDealing.COST)

    @derived
    def dualpipe(self) -> np.ndarray:
        """DualPipe: mirrored ranks hold the same two stages and micro-batches enter at both ends. [-]"""
        return np.asarray(self.pipeline_schedule == PipelineSchedule.DUALPIPE)

    @derived
    def frozen(self) -> np.ndarray:
        """LoRA: weights are frozen and low-rank adapters are trained. [-]"""
        return np.asarray(self.adapter_rank > 0)

    @derived
    def ends_given(self) -> np.ndarray:
        """The plan states the layers of the first or the last stage. [-]"""
        return np.asarray(~np.isnan(self.first_stage_layers) | ~np.isnan(self.last_stage_layers))

    @derived
    def given_layers(self) -> Array:
        """Layers of the stages with stated layers. [-]"""
        return known_or(self.first_stage_layers, 0.0) + known_or(self.last_stage_layers, 0.0)

    @derived
    def open_stages(self) -> Array:
        """Stages without stated layers. [-]"""
        given = ~np.isnan(self.first_stage_layers), ~np.isnan(self.last_stage_layers)
        return np.asarray(self.pipeline_parallel - given[0] - given[1])

    @derived
    def ranks(self) -> Array:
        """Accelerators that the degrees need. [-]"""
        return product(self, RANKS)

    @derived
    def stage_ranks(self) -> Array:
        """Ranks of a pipeline stage. [-]"""
        return product(self, STAGE)

    @derived
    def num_micro_batches(self) -> Array:
        """Micro-batches per replica and step. [-]"""
        return np.asarray(self.global_batch_size / (self.data_parallel * self.micro_batch_size))

    @derived
    def tokens(self) -> Array:
        """Tokens of a micro-batch per rank. [-]"""
        return np.asarray(self.micro_batch_size * self.sequence_length / product(self, SEQUENCE))

    @property
    def gpipe(self) -> Array:
        """1 for GPipe: all forward passes precede the first backward pass. [-]"""
        return np.asarray(self.pipeline_schedule == PipelineSchedule.GPIPE, dtype=np.float64)

    @derived
    def weight_copies(self) -> Array:
        """Copies of the weights in one pipeline: 2 with DualPipe. [-]"""
        return np.where(self.dualpipe, 2.0, 1.0)

    @derived
    def shards(self) -> Array:
        """Ranks that hold the same dense weights: over replicas, the context, and the copies in a pipeline. [-]"""
        return np.asarray(product(self, REPLICAS) * self.weight_copies)

    @derived
    def expert_replicas(self) -> Array:
        """Ranks of a pipeline stage that hold the same experts. [-]"""
        return np.asarray(self.stage_ranks / product(self, EXPERT_STAGE))

    @derived
    def expert_shards(self) -> Array:
        """Ranks that hold the same experts, copies in a pipeline included. [-]"""
        return np.asarray(self.expert_replicas * self.weight_copies)

    @derived
    def zero_shards(self) -> Array:
        """Ranks over which ZeRO splits the state of dense weights. [-]"""
        return np.asarray(np.minimum(self.zero_group_size, self.shards))

    @derived
    def expert_zero_shards(self) -> Array:
        """Ranks over which ZeRO splits the state of experts. [-]"""
        return np.asarray(np.minimum(self.zero_group_size, self.expert_shards))

    @property
    def quantized(self) -> np.ndarray:
        """GEMM inputs are narrower than activations. [-]"""
        return np.asarray(self.product_size < self.element_size)

    @property
    def keeps_copies(self) -> np.ndarray:
        """Quantized copies stay in memory after their GEMM. [-]"""
        return np.asarray(self.quantized & (self.quantized_copies != QuantizedCopies.NONE))

    @derived
    def regathers(self) -> np.ndarray:
        """ZeRO-3 with resharding: weights are gathered in both passes of every micro-batch. [-]"""
        return np.asarray((self.zero_stage > 2) & (self.reshard_after_forward > 0))

    @derived
    def keeps_gathered(self) -> np.ndarray:
        """ZeRO-3 without resharding: gathered weights stay whole from the forward to the backward pass. [-]"""
        return np.asarray((self.zero_stage > 2) & (self.reshard_after_forward < 1))

    @derived
    def gathers_once(self) -> np.ndarray:
        """ZeRO-3 in a pipeline: weights are gathered once a step and whole gradients stay until its end. [-]"""
        return np.asarray(self.keeps_gathered & (self.pipeline_parallel > 1))

    @derived
    def gathers_forward(self) -> np.ndarray:
        """ZeRO-3 without a pipeline: weights gathered in a forward pass stay until its backward pass. [-]"""
        return np.asarray(self.keeps_gathered & (self.pipeline_parallel < 2))

    @derived
    def reduces_each(self) -> np.ndarray:
        """Gradients are reduced for every micro-batch, unless they are accumulated whole. [-]"""
        return np.asarray(self.regathers | self.gathers_forward | self.scatters)

    @derived
    def scatters(self) -> np.ndarray:
        """ZeRO-2 in a pipeline: gradients are reduce-scattered for every micro-batch, weights are whole. [-]"""
        return np.asarray((self.zero_stage == 2) & (self.pipeline_parallel > 1) & ~self.keeps_sums)

    @derived
    def keeps_sums(self) -> np.ndarray:
        """Every rank accumulates whole gradients, reduced once a step, although ZeRO would shard them. [-]"""
        whole = self.gradient_accumulation == GradientAccumulation.WHOLE
        return np.asarray(whole & (self.zero_stage > 1) & (self.num_micro_batches > 1))

    @derived
    def sums_shards(self) -> np.ndarray:
        """Gradients are reduce-scattered for every micro-batch and accumulated sharded. [-]"""
        early = (self.pipeline_parallel < 2) | self.scatters | self.regathers
        return np.asarray((self.zero_stage > 1) & early & ~self.keeps_sums)

    @derived
    def adds_separately(self) -> np.ndarray:
        """A separate kernel adds weight gradients to their sum. [-]"""
        return np.asarray((self.gradient_accumulation >= GradientAccumulation.SEPARATE) & ~self.frozen)

    @derived
    def plain_loss(self) -> np.ndarray:
        """Every step of the loss is a kernel with its own output; chunked losses too unless compiled. [-]"""
        whole = (self.cross_entropy == CrossEntropy.PLAIN) | (self.cross_entropy == CrossEntropy.GATHERED)
        return np.asarray(whole | (self.cross_entropy == CrossEntropy.CHUNKED) & (self.compiled == 0.0))

    @derived
    def gathers_again(self) -> Array:
        """1 if the backward pass gathers the input of a block again, of which only the shard is in memory. [-]

        DTensor keeps the gathered input, unless selective recomputation covers the norm before it.
        """
        recomputed = np.maximum(self.again("norm"), self.again("products"))
        return np.asarray(np.where(self.copied_gathers > 0.0, recomputed, 1.0))

    @derived
    def captures_experts(self) -> np.ndarray:
        """CUDA graphs include experts, whose input sizes must be known at capture. [-]"""
        return np.asarray((self.graphs == Graphs.STEP) | (self.graphs == Graphs.WHOLE_LAYERS))

    @derived
    def counts_in_memory(self) -> np.ndarray:
        """Grouped GEMMs read token counts from memory, so that the host need not know them. [-]

        The fused kernels of MXFP8 and FP4, whose tensors cannot be transposed (Transformer Engine on cuDNN).
        """
        return np.asarray(self.turns < 1.0)

    @derived
    def narrow_loss(self) -> np.ndarray:
        """A plain loss in the precision of the logits, without FP32 copies of them. [-]"""
        return np.asarray(self.plain_loss & (self.loss_precision == LossPrecision.BF16))

    @derived
    def loss_size(self) -> Array:
        """Bytes of an element of the softmax and of its gradient. [B]"""
        return np.where(self.narrow_loss, self.element_size, WORD)

    @derived
    def loss_shards(self) -> Array:
        """Ranks over which the logits of the loss are split: 1 if every tensor-parallel rank gathers them. [-]"""
        return np.where(self.cross_entropy == CrossEntropy.GATHERED, 1.0, self.tensor_parallel)

    def again(self, module: str) -> Array:
        """1 if selective recomputation covers a module of RECOMPUTE_MODULES. [-]"""
        covered = self._recomputed.get(module)
        if covered is None:
            codes, modules = self._modules
            named = np.array([float(module in names) for names in modules])[codes]
            covered = self._recomputed[module] = named * (self.recompute == Recompute.SELECTIVE)
        return covered

    @derived
    def _recomputed(self) -> dict[str, Array]:
        """Results of :meth:`again`."""
        return {}

    @derived
    def _modules(self) -> tuple[np.ndarray, list[frozenset[str]]]:
        """Code of each plan's choice of recomputed modules, and the modules by code."""
        codes, words = _distinct(self, "recompute_modules")
        return codes, [_names(text) for text in words]

    @property
    def recompute_codes(self) -> np.ndarray:
        """Code of each plan's choice of recomputed modules. [-]"""
        return self._modules[0]

    @derived
    def unknown_modules(self) -> np.ndarray:
        """A module to recompute is not one of RECOMPUTE_MODULES. [-]"""
        codes, modules = self._modules
        return np.asarray(np.array([not names <= set(RECOMPUTE_MODULES) for names in modules], dtype=bool)[codes])

    @property
    def names_modules(self) -> np.ndarray:
        """The plan names modules to recompute. [-]"""
        words = self.words("recompute_modules")
        return np.asarray((words != "") & (words != NO_MODULES))

    @derived
    def more_modules(self) -> np.ndarray:
        """Selective recomputation covers more than the attention core. [-]"""
        codes, modules = self._modules
        more = np.array([names != {"core_attention"} for names in modules], dtype=bool)[codes]
        return np.asarray((self.recompute == Recompute.SELECTIVE) & more)

    @derived
    def misnamed_order(self) -> np.ndarray:
        """The dimension order does not name each of AXES once. [-]"""
        codes, orders = _distinct(self, "dimension_order")
        misnamed = [sorted(order.split("-")) != sorted(AXES) for order in orders]
        return np.asarray(np.array(misnamed, dtype=bool)[codes])

    @derived
    def strides(self) -> dict[str, Array]:
        """Distance of neighbouring ranks of a group in dense layers, by axis. [-]"""
        return self._strides(DENSE)

    @derived
    def expert_strides(self) -> dict[str, Array]:
        """Distance of neighbouring ranks of a group in expert layers, by axis. [-]"""
        return self._strides(EXPERTS)

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

    @property
    def num_chunks(self) -> Array:
        """Model chunks over all stages. [-]"""
        return np.asarray(self.pipeline_parallel * self.virtual_pipeline)


def _distinct(plan: TrainingPlan, name: str) -> tuple[np.ndarray, list[str]]:
    """Code of each plan's word in a column, and the distinct words by code."""
    column = getattr(plan, name)
    if not plan.has(name):
        return np.zeros(len(column), dtype=np.int64), [str(column[0])] if len(column) else []
    words = column.tolist()
    codes = {word: code for code, word in enumerate(dict.fromkeys(words))}
    return np.array(list(map(codes.__getitem__, words)), dtype=np.int64), list(codes)


@lru_cache(maxsize=1024)
def _names(text: str) -> frozenset[str]:
    """Modules in a text with spaces or commas between; none for the word ``none``."""
    return frozenset() if text == NO_MODULES else frozenset(text.replace(",", " ").split())


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
    """Fill blanks by :data:`BLANKS`, MTP modules by the model, and the gradient buffer by the software.

    ``max_sequence_length`` [-] is NaN if unknown; ``gradient_size`` [B] is the element size that the software uses.
    """
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
        Bytes e of a weight. [B]
    word_size : numeric
        Bytes w of a full word, 4 for FP32; weights of fewer bytes have master weights. [B]
    moment_size : numeric
        Bytes e_m of an element of a moment. [B]
    master_size : numeric
        Bytes e_w in addition to a 16-bit weight: 4 for an FP32 copy, 2 for the missing bits, 0 for none. [B]

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
