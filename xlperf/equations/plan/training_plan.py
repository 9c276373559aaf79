"""A training plan: the columns of the sheet, their defaults, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, known_or, some
from xlperf.equations.model.model import Model
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

FP32_SIZE, BF16_SIZE, FP8_SIZE = 4.0, 2.0, 1.0
"""Bytes of an element of a gradient, a moment or a master weight, and of a token sent to experts. [B]"""
DEFAULT_SEQUENCE_LENGTH = 4096.0
"""Tokens of a sequence where neither the plan nor its model says otherwise. [-]"""
MICRO_BATCHES_PER_STAGE = 4.0
"""Micro-batches of a replica per pipeline stage where a plan leaves the global batch open. [-]"""
UNLIMITED = ("dispatch_nodes", "dispatch_ranks", "zero_group_size", "recompute_layers")
"""Columns whose blank means that there is no limit."""
PLACEHOLDERS = 2.0
"""Layer-equivalents of embedding and output projection together when layers are split over stages. [-]"""
RECOMPUTE_MODULES = ("core_attention", "mlp", "moe", "norm", "activation", "latent", "products", "attention_output")
NO_MODULES = "none"
"""What the recompute modules of a plan without selective recomputation may say."""
DIMENSIONS = ("tp", "cp", "ep", "dp", "pp")
LAYOUTS = 2.0
"""Copies of a quantized tensor: products read it by rows in one pass and by columns in the other. [-]"""
ANY_LAYOUT = 1.0
"""The same where one scale holds for a whole tensor and the matrix units read it by rows and by columns. [-]"""


class TrainingPlan(PlanColumns):
    """Columns of training plans as the sheet ``training`` has them, (rows,), and what follows from them.

    Attributes
    ----------
    mtp_layers : Array
        Multi-token prediction modules that are trained beside the model. [-]
    product_size : Array
        Bytes of an element in the matrix products, scales included. [B]
    element_size : Array
        Bytes of a weight and of an activation between the products. [B]
    gradient_size : Array
        Bytes of an element of the gradient buffer. [B]
    cast_reads : Array
        Passes over a tensor to cast it to the precision of the products. [-]
    fused_reads : Array
        The same for outputs of norms and activations; -1 where those write the quantized tensor directly. [-]
    turns : Array
        1 where a quantized tensor can be transposed. [-]
    layouts : Array
        Copies of a quantized tensor that products read: 1 or 2. [-]
    gathered_layouts : Array
        Copies of a quantized tensor that ranks send each other: 1 where the other can be made of it. [-]
    copied_gathers : Array
        1 where sequences are the second dimension of what ranks gather and scatter (DTensor): whole tensors are copied
        beside it, and what was gathered stays for the backward pass. [-]
    """

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
        """Bytes per weight that the optimizer keeps beside 16-bit weights; the remainder is the other 16 bits. [B]"""
        less = np.where(self.master_weights == MasterWeights.REMAINDER, FP32_SIZE - BF16_SIZE, 0.0)
        return np.where(self.master_weights == MasterWeights.FP32, FP32_SIZE, less)

    @derived
    def optimizer_size(self) -> Array:
        """Bytes of optimizer state per parameter. [B]"""
        return optimizer_element_size(self.adam, self.element_size, WORD, self.moment_size, self.master_size)

    @derived
    def dispatch_size(self) -> Array:
        """Bytes of an element sent to experts. [B]"""
        return np.where(self.dispatch_precision == DispatchPrecision.FP8, FP8_SIZE, self.element_size)

    @derived
    def flash_attention(self) -> Array:
        """1 for a fused attention kernel, 0 for standard attention. [-]"""
        return np.where(self.attention == Attention.STANDARD, 0.0, 1.0)

    @derived
    def stores_fp8(self) -> np.ndarray:
        """Where activations wait for the backward pass in FP8 that no product keeps so anyway. [-]"""
        return np.asarray(self.activation_storage == ActivationStorage.FP8)

    @derived
    def split_by_cost(self) -> np.ndarray:
        """Where stages take layers in order until they exceed their share of the work. [-]"""
        return np.asarray(self.stage_dealing == StageDealing.COST)

    @derived
    def dualpipe(self) -> np.ndarray:
        """Where mirrored ranks hold the same two stages and micro-batches enter at both ends. [-]"""
        return np.asarray(self.pipeline_schedule == PipelineSchedule.DUALPIPE)

    @derived
    def frozen(self) -> np.ndarray:
        """Where weights are frozen and low-rank adapters are trained beside them. [-]"""
        return np.asarray(self.adapter_rank > 0)

    @derived
    def ends_given(self) -> np.ndarray:
        """Where the plan says how many layers the first or the last stage has. [-]"""
        return np.asarray(~np.isnan(self.first_stage_layers) | ~np.isnan(self.last_stage_layers))

    @derived
    def given_layers(self) -> Array:
        """Layers of the stages whose layers are given. [-]"""
        return known_or(self.first_stage_layers, 0.0) + known_or(self.last_stage_layers, 0.0)

    @derived
    def open_stages(self) -> Array:
        """Stages whose layers are not given. [-]"""
        given = ~np.isnan(self.first_stage_layers), ~np.isnan(self.last_stage_layers)
        return np.asarray(self.pipeline_parallel - given[0] - given[1])

    @derived
    def ranks(self) -> Array:
        """Accelerators that the degrees need. [-]"""
        ranks = self.tensor_parallel * self.pipeline_parallel * self.data_parallel * self.context_parallel
        return np.asarray(ranks)

    @derived
    def stage_ranks(self) -> Array:
        """Ranks of a pipeline stage. [-]"""
        return np.asarray(self.tensor_parallel * self.context_parallel * self.data_parallel)

    @derived
    def num_micro_batches(self) -> Array:
        """Micro-batches that one replica runs per step. [-]"""
        return np.asarray(self.global_batch_size / (self.data_parallel * self.micro_batch_size))

    @derived
    def tokens(self) -> Array:
        """Tokens of one micro-batch on one rank of the context. [-]"""
        return np.asarray(self.micro_batch_size * self.sequence_length / self.context_parallel)

    @property
    def gpipe(self) -> Array:
        """1 where all forward passes run before the first backward pass. [-]"""
        return np.asarray(self.pipeline_schedule == PipelineSchedule.GPIPE, dtype=np.float64)

    @derived
    def weight_copies(self) -> Array:
        """Copies of the weights in one pipeline: 2 with DualPipe, where mirrored ranks hold the same two stages. [-]"""
        return np.where(self.dualpipe, 2.0, 1.0)

    @derived
    def shards(self) -> Array:
        """Ranks that hold the same weights outside the experts: replicas x context x copies in a pipeline. [-]"""
        return np.asarray(self.data_parallel * self.context_parallel * self.weight_copies)

    @derived
    def expert_replicas(self) -> Array:
        """Ranks of a pipeline stage that hold the same experts. [-]"""
        return np.asarray(self.stage_ranks / (self.expert_parallel * self.expert_tensor_parallel))

    @derived
    def expert_shards(self) -> Array:
        """Ranks that hold the same experts. [-]"""
        return np.asarray(self.expert_replicas * self.weight_copies)

    @derived
    def zero_shards(self) -> Array:
        """Ranks over which what ZeRO shards is split, outside the experts. [-]"""
        return np.asarray(np.minimum(self.zero_group_size, self.shards))

    @derived
    def expert_zero_shards(self) -> Array:
        """Ranks over which what ZeRO shards of the experts is split. [-]"""
        return np.asarray(np.minimum(self.zero_group_size, self.expert_shards))

    @property
    def quantized(self) -> np.ndarray:
        """Where products take narrower elements than activations have. [-]"""
        return np.asarray(self.product_size < self.element_size)

    @property
    def keeps_copies(self) -> np.ndarray:
        """Where quantized copies stay in memory after the product that they were made for. [-]"""
        return np.asarray(self.quantized & (self.quantized_copies != QuantizedCopies.NONE))

    @derived
    def regathers(self) -> np.ndarray:
        """Where sharded weights are gathered for every micro-batch. [-]"""
        return np.asarray((self.zero_stage > 2) & (self.reshard_after_forward > 0))

    @derived
    def keeps_gathered(self) -> np.ndarray:
        """Where gathered weights stay whole from the forward to the backward pass. [-]"""
        return np.asarray((self.zero_stage > 2) & (self.reshard_after_forward < 1))

    @derived
    def gathers_once(self) -> np.ndarray:
        """Where sharded weights are gathered once a step and whole gradients stay until its end. [-]"""
        return np.asarray(self.keeps_gathered & (self.pipeline_parallel > 1))

    @derived
    def gathers_forward(self) -> np.ndarray:
        """Where sharded weights are gathered in each forward pass and stay until the backward pass. [-]"""
        return np.asarray(self.keeps_gathered & (self.pipeline_parallel < 2))

    @derived
    def reduces_each(self) -> np.ndarray:
        """Where gradients are reduced for every micro-batch, unless they are added up whole. [-]"""
        return np.asarray(self.regathers | self.gathers_forward | self.scatters)

    @derived
    def scatters(self) -> np.ndarray:
        """Where sharded gradients are reduced for every micro-batch with whole weights: ZeRO-2 in a pipeline. [-]"""
        return np.asarray((self.zero_stage == 2) & (self.pipeline_parallel > 1) & ~self.keeps_sums)

    @derived
    def keeps_sums(self) -> np.ndarray:
        """Where gradients that would be sharded are added up whole on every rank and reduced once a step. [-]"""
        whole = self.gradient_accumulation == GradientAccumulation.WHOLE
        return np.asarray(whole & (self.zero_stage > 1) & (self.num_micro_batches > 1))

    @derived
    def sums_shards(self) -> np.ndarray:
        """Where gradients are reduced before they are added up, so that a rank adds up its shards alone. [-]"""
        early = (self.pipeline_parallel < 2) | self.scatters | self.regathers
        return np.asarray((self.zero_stage > 1) & early & ~self.keeps_sums)

    @derived
    def adds_separately(self) -> np.ndarray:
        """Where gradients of weights are added to their sum in a pass of its own. [-]"""
        return np.asarray((self.gradient_accumulation >= GradientAccumulation.SEPARATE) & ~self.frozen)

    @derived
    def plain_loss(self) -> np.ndarray:
        """Where every step of the loss is a kernel with an output of its own: also of its parts, not compiled. [-]"""
        whole = (self.cross_entropy == CrossEntropy.PLAIN) | (self.cross_entropy == CrossEntropy.GATHERED)
        return np.asarray(whole | (self.cross_entropy == CrossEntropy.CHUNKED) & (self.compiled == 0.0))

    @derived
    def gathers_again(self) -> Array:
        """1 where backward passes gather the input of a block once more: its shard alone was kept. [-]

        DTensor keeps what it gathered, unless the norm before it is computed again.
        """
        recomputed = np.maximum(self.again("norm"), self.again("products"))
        return np.asarray(np.where(self.copied_gathers > 0.0, recomputed, 1.0))

    @derived
    def captures_experts(self) -> np.ndarray:
        """Where a graph holds experts too: the sizes of their inputs must be known when it is captured. [-]"""
        return np.asarray((self.graphs == Graphs.STEP) | (self.graphs == Graphs.WHOLE_LAYERS))

    @derived
    def counts_in_memory(self) -> np.ndarray:
        """Where grouped products take the counts of tokens from memory, so that the host need not know them. [-]

        The fused kernels of MXFP8 and FP4, whose tensors cannot be turned (Transformer Engine on cuDNN).
        """
        return np.asarray(self.turns < 1.0)

    @derived
    def narrow_loss(self) -> np.ndarray:
        """Where a plain loss is computed in the precision of the logits, without FP32 copies of them. [-]"""
        return np.asarray(self.plain_loss & (self.loss_precision == LossPrecision.BF16))

    @derived
    def loss_size(self) -> Array:
        """Bytes of an element of the softmax and of its gradient. [B]"""
        return np.where(self.narrow_loss, self.element_size, WORD)

    @derived
    def loss_shards(self) -> Array:
        """Ranks over which the logits of the loss are split: one where every tensor-parallel rank gathers them. [-]"""
        return np.where(self.cross_entropy == CrossEntropy.GATHERED, 1.0, self.tensor_parallel)

    def again(self, module: str) -> Array:
        """1 where selective recomputation covers a module of RECOMPUTE_MODULES. [-]"""
        found = self._recomputed.get(module)
        if found is None:
            codes, modules = self._modules
            asked = np.array([float(module in names) for names in modules])[codes]
            found = self._recomputed[module] = asked * (self.recompute == Recompute.SELECTIVE)
        return found

    @derived
    def _recomputed(self) -> dict[str, Array]:
        """What :meth:`again` has found."""
        return {}

    @derived
    def _modules(self) -> tuple[np.ndarray, list[frozenset[str]]]:
        """Which of the distinct choices of modules to recompute each plan has, and the modules of those."""
        codes, words = _distinct(self, "recompute_modules")
        return codes, [_names(text) for text in words]

    @property
    def recompute_codes(self) -> np.ndarray:
        """Which of the distinct choices of modules to recompute each plan has. [-]"""
        return self._modules[0]

    @derived
    def unknown_modules(self) -> np.ndarray:
        """Where a module to recompute is none of RECOMPUTE_MODULES. [-]"""
        codes, modules = self._modules
        return np.asarray(np.array([not names <= set(RECOMPUTE_MODULES) for names in modules], dtype=bool)[codes])

    @property
    def names_modules(self) -> np.ndarray:
        """Where the plan names modules to recompute. [-]"""
        words = self.words("recompute_modules")
        return np.asarray((words != "") & (words != NO_MODULES))

    @derived
    def more_modules(self) -> np.ndarray:
        """Where selective recomputation covers more than the core of the attention. [-]"""
        codes, modules = self._modules
        more = np.array([names != {"core_attention"} for names in modules], dtype=bool)[codes]
        return np.asarray((self.recompute == Recompute.SELECTIVE) & more)

    @derived
    def misnamed_order(self) -> np.ndarray:
        """Where the dimension order does not name each of DIMENSIONS once. [-]"""
        codes, orders = _distinct(self, "dimension_order")
        misnamed = [sorted(order.split("-")) != sorted(DIMENSIONS) for order in orders]
        return np.asarray(np.array(misnamed, dtype=bool)[codes])

    @derived
    def strides(self) -> dict[str, Array]:
        """Distance of neighbouring ranks of the groups of each dimension, outside the experts. [-]"""
        sizes = {
            "tp": self.tensor_parallel,
            "cp": self.context_parallel,
            "dp": self.data_parallel,
            "pp": self.pipeline_parallel,
        }
        return self._strides(sizes)

    @derived
    def expert_strides(self) -> dict[str, Array]:
        """The same of the groups of the experts. [-]"""
        sizes = {
            "tp": self.expert_tensor_parallel,
            "ep": self.expert_parallel,
            "dp": self.expert_replicas,
            "pp": self.pipeline_parallel,
        }
        return self._strides(sizes)

    def _strides(self, sizes: Mapping[str, Array]) -> dict[str, Array]:
        codes, orders = _distinct(self, "dimension_order")
        if len(orders) == 1:
            return {**dict.fromkeys(DIMENSIONS, np.ones_like(self.tensor_parallel)), **group_strides(orders[0], sizes)}
        strides = {name: np.ones_like(self.tensor_parallel) for name in DIMENSIONS}
        for code, order in enumerate(orders):
            rows = np.flatnonzero(codes == code)
            own = {name: values[rows] for name, values in sizes.items()}
            for name, values in group_strides(order, own).items():
                strides[name][rows] = values
        return strides

    @property
    def num_chunks(self) -> Array:
        """Model chunks over all stages. [-]"""
        return np.asarray(self.pipeline_parallel * self.virtual_pipeline)


def group_strides(order: str, sizes: Mapping[str, Array]) -> dict[str, Array]:
    """Distance of neighbouring ranks of each group when groups take neighbouring accelerators in an order.

    Parameters
    ----------
    order : str
        Dimensions from the innermost, joined by hyphens: ``tp-cp-ep-dp-pp``. [-]
    sizes : mapping of str to Array
        Ranks of each dimension, (rows,); a dimension that is missing has one. [-]

    Returns
    -------
    dict of str to Array
        Dimension -> stride, (rows,). [-]

    Examples
    --------
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


def _distinct(plan: TrainingPlan, name: str) -> tuple[np.ndarray, list[str]]:
    """Which of the distinct words of a column each plan has, and those words."""
    column = getattr(plan, name)
    if not plan.has(name):
        return np.zeros(len(column), dtype=np.int64), [str(column[0])] if len(column) else []
    words = column.tolist()
    codes = {word: code for code, word in enumerate(dict.fromkeys(words))}
    return np.array(list(map(codes.__getitem__, words)), dtype=np.int64), list(codes)


@lru_cache(maxsize=1024)
def _names(text: str) -> frozenset[str]:
    """Modules that a text names, with spaces or commas between; no modules for the word ``none``."""
    return frozenset() if text == NO_MODULES else frozenset(text.replace(",", " ").split())


BLANKS: Mapping[str, Callable[[TrainingPlan, Array], Array | float]] = {
    "data_parallel": lambda plan, _: (
        plan.num_accelerators / (plan.tensor_parallel * plan.pipeline_parallel * plan.context_parallel)
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
"""What a blank stands for, by column: it follows from columns before it and the longest sequence of the model."""


def with_defaults(plan: TrainingPlan, model: Model, max_sequence_length: Array, gradient_size: Array) -> TrainingPlan:
    """Fill the blanks whose default follows from other columns, from the model or from the software.

    Parameters
    ----------
    plan : TrainingPlan
        As the sheet has it, (rows,).
    model : Model
        Shapes, (rows,).
    max_sequence_length : Array
        Longest sequence of the models, NaN where unknown, (rows,). [-]
    gradient_size : Array
        Bytes of an element of the gradient buffer of the software, (rows,). [B]

    Returns
    -------
    TrainingPlan
        Data parallel: what the other degrees leave of the accelerators. Sequence parallel: where tensor parallel is
        above 1. Resharding after the forward pass: without a pipeline. Global batch: four micro-batches per stage and
        replica. Sequence: 4096 tokens, or the model's longest.

    Examples
    --------
    64 accelerators, 8 x 4 of them for a copy: two copies with four micro-batches for each of four stages.

    >>> from types import SimpleNamespace
    >>> sizes = {"num_accelerators": 64.0, "tensor_parallel": 8.0, "pipeline_parallel": 4.0, "context_parallel": 1.0}
    >>> sizes |= {"micro_batch_size": 1.0, "train_mtp": 0.0, **dict.fromkeys(("gradient_precision", *BLANKS), np.nan)}
    >>> plan = TrainingPlan({name: np.array([size]) for name, size in sizes.items()})
    >>> plan = with_defaults(plan, SimpleNamespace(num_mtp_layers=0.0), np.array([8192.0]), np.array([4.0]))
    >>> [float(values[0]) for values in (plan.data_parallel, plan.global_batch_size, plan.sequence_length)]
    [2.0, 32.0, 4096.0]
    """
    filled: dict[str, np.ndarray] = {}
    for name, follows in BLANKS.items():
        values = getattr(plan, name)
        if some(np.isnan(values)):
            filled[name] = np.where(np.isnan(values), follows(plan, max_sequence_length), values)
            if name == "data_parallel":  # the only one that others follow from
                plan = plan.replaced(data_parallel=filled[name])
    stated = np.where(plan.gradient_precision == GradientPrecision.FP32, FP32_SIZE, BF16_SIZE)
    return plan.replaced(
        mtp_layers=np.asarray(plan.train_mtp * model.num_mtp_layers),
        gradient_size=np.where(np.isnan(plan.gradient_precision), gradient_size, stated),
        **filled,
    )


def used_families(model: Model, plan: TrainingPlan) -> dict[str, np.ndarray]:
    """Which plans use the kernels and collectives that not every step needs.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    plan : TrainingPlan
        Degrees, (rows,). [-]

    Returns
    -------
    dict of str to np.ndarray
        By family of calibration constants, (rows,).

    Examples
    --------
    Tensor and sequence parallelism within stages, ZeRO-1 between replicas:

    >>> from types import SimpleNamespace
    >>> sizes = {"tensor_parallel": 8, "sequence_parallel": 1, "shards": 4, "zero_stage": 1, "context_parallel": 1}
    >>> sizes |= {"expert_parallel": 1, "pipeline_parallel": 2, "flash_attention": 1}
    >>> plan = SimpleNamespace(**{name: np.array([size]) for name, size in sizes.items()})
    >>> model = SimpleNamespace(num_experts=np.zeros(1), num_linear_layers=np.zeros(1))
    >>> [family for family, used in used_families(model, plan).items() if used.all()]
    ['all_gather', 'reduce_scatter', 'point_to_point', 'attention', 'attention_backward']
    """
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
