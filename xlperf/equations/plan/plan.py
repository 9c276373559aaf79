"""A training plan as arrays, and the rules that make it legal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from xlperf.base.arrays import Array
from xlperf.equations.model.model import Model
from xlperf.equations.plan.rules import Remark

RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL = 0.0, 1.0, 2.0
SCHEDULES = ("1f1b", "interleaved", "gpipe", "zero-bubble", "dualpipe")
INTERLEAVED, GPIPE, ZERO_BUBBLE, DUALPIPE = 1.0, 2.0, 3.0, 4.0
CONTEXT_METHODS = ("ring", "all-gather", "ulysses")
RING, ALL_GATHER, ULYSSES = 0.0, 1.0, 2.0
PLACEHOLDERS = 2.0
"""Layers that the embedding and the output projection may count as when layers are dealt to stages. [-]"""
TENSOR_OVERLAPS = ("none", "gradients", "all")
OVERLAPS_ALL = 2.0
GRAPHS = ("none", "layers", "step")
GRAPH_OF_STEP = 2.0
ADAPTER_MODULES = ("all", "qkv")
ADAPT_ALL = 0.0
QUANTIZED_COPIES = ("none", "kept", "primary")
KEPT, PRIMARY = 1.0, 2.0
LAYOUTS = 2.0
"""Narrow copies of a tensor: products read it along rows in one pass and along columns in the other. [-]"""
CROSS_ENTROPIES = ("parallel", "fused", "plain")
FUSED, PLAIN = 1.0, 2.0
RECOMPUTE_MODULES = ("core_attention", "mlp", "moe", "norm", "activation", "latent", "products")
DIMENSIONS = ("tp", "cp", "ep", "dp", "pp")


@dataclass(frozen=True, eq=False)
class TrainingPlan:
    """Columns of training plans, one entry per plan; every field has shape (rows,).

    Attributes
    ----------
    num_accelerators : Array
        Accelerators of the run. [-]
    tensor_parallel : Array
        Ranks that share each matrix. [-]
    sequence_parallel : Array
        1 where activations between the matrices are split over those ranks. [-]
    pipeline_parallel : Array
        Stages. [-]
    virtual_pipeline : Array
        Model chunks per stage. [-]
    first_stage_layers, last_stage_layers : Array
        Layers of the ends of the pipeline; NaN: shared evenly. [-]
    dealt_by_cost : Array
        1 where stages take layers in order until they exceed their share of the work. [-]
    schedule : Array
        Code of the order of passes: position in SCHEDULES. [-]
    pipeline_overlap : Array
        1 where transfers between stages run beside the computation of the steady state, as interleaving and DualPipe
        allow. [-]
    context_parallel : Array
        Ranks that share a sequence. [-]
    context_method : Array
        Code of how they exchange keys and values: position in CONTEXT_METHODS. [-]
    context_balance : Array
        1 where causal attention is shared evenly over those ranks. [-]
    expert_parallel : Array
        Ranks that share the experts. [-]
    expert_tensor_parallel : Array
        Ranks that share one expert. [-]
    expert_imbalance : Array
        Tokens of the fullest expert rank over the mean. [-]
    expert_capacity : Array
        Tokens that each expert takes over the mean; NaN where none is dropped or padded. [-]
    dispatch_size : Array
        Bytes of an element sent to experts. [B]
    dispatch_copies : Array
        1 where a token is sent once for each of its experts, not once to each place that holds any. [-]
    dispatch_nodes : Array
        Most innermost network domains that the experts of one token lie in; infinite: not limited. [-]
    expert_overlap : Array
        1 where tokens are sent beside the computation of another micro-batch. [-]
    tensor_overlap : Array
        Code of the communication of tensor parallelism that may run beside the products: position in TENSOR_OVERLAPS.
        [-]
    graphs : Array
        Code of what the host launches at once: position in GRAPHS. [-]
    tensor_stride, context_stride, data_stride, stage_stride : Array
        Distance of neighbouring ranks of a group. [-]
    expert_stride, expert_tensor_stride, expert_data_stride : Array
        The same for the groups of the experts. [-]
    data_parallel : Array
        Replicas. [-]
    zero_stage : Array
        0 to 3: what is sharded over the replicas. [-]
    zero_group : Array
        Ranks that share one set of shards; infinite: all that hold the same weights. [-]
    global_batch_size : Array
        Sequences per step. [-]
    micro_batch_size : Array
        Sequences per pass. [-]
    sequence_length : Array
        Tokens per sequence. [-]
    recompute : Array
        0 none, 1 selective, 2 full. [-]
    recompute_modules : Array
        What selective recomputation covers: one bit for each of RECOMPUTE_MODULES. [-]
    recompute_layers : Array
        Layers of a stage that are computed again; infinite: all. [-]
    recompute_group : Array
        Layers that full recomputation computes again together. [-]
    cross_entropy : Array
        Code of the kernels of the loss: position in CROSS_ENTROPIES. [-]
    flash_attention : Array
        1 for a fused attention kernel, 0 for standard attention. [-]
    mtp_layers : Array
        Multi-token prediction modules that are trained beside the model. [-]
    adapter_rank : Array
        Rank of low-rank adapters beside frozen weights; 0 where all weights are trained. [-]
    adapter_modules : Array
        Code of the products that have one: position in ADAPTER_MODULES. [-]
    adam : Array
        1 for Adam (two moments), 0 for SGD with momentum (one). [-]
    product_size : Array
        Bytes of an element in the matrix products, scales included. [B]
    cast_reads : Array
        How often a tensor is read to make it as narrow as the products take it. [-]
    fused_reads : Array
        The same of what a norm or an activation puts out; -1 where that writes it narrow in place of wide. [-]
    turns : Array
        1 where a narrow tensor can be turned into the other layout. [-]
    quantized_copies : Array
        Code of what stays narrow beside the products: position in QUANTIZED_COPIES. [-]
    wide_layers : Array
        Layers whose products stay as wide as the activations. [-]
    element_size : Array
        Bytes of a weight and of an activation between the products. [B]
    gradient_size : Array
        Bytes of an element of the gradient buffer. [B]
    moment_size : Array
        Bytes of an element of the optimizer's moments. [B]
    master_size : Array
        Bytes per weight that the optimizer keeps beside 16-bit weights. [B]
    stores_narrow : Array
        1 where activations wait for the backward pass in FP8 that no product keeps so anyway. [-]
    """

    num_accelerators: Array
    tensor_parallel: Array
    sequence_parallel: Array
    pipeline_parallel: Array
    virtual_pipeline: Array
    first_stage_layers: Array
    last_stage_layers: Array
    dealt_by_cost: Array
    schedule: Array
    pipeline_overlap: Array
    context_parallel: Array
    context_method: Array
    context_balance: Array
    expert_parallel: Array
    expert_tensor_parallel: Array
    expert_imbalance: Array
    expert_capacity: Array
    dispatch_size: Array
    dispatch_copies: Array
    dispatch_nodes: Array
    expert_overlap: Array
    tensor_overlap: Array
    graphs: Array
    tensor_stride: Array
    context_stride: Array
    data_stride: Array
    stage_stride: Array
    expert_stride: Array
    expert_tensor_stride: Array
    expert_data_stride: Array
    data_parallel: Array
    zero_stage: Array
    zero_group: Array
    global_batch_size: Array
    micro_batch_size: Array
    sequence_length: Array
    recompute: Array
    recompute_modules: Array
    recompute_layers: Array
    recompute_group: Array
    cross_entropy: Array
    flash_attention: Array
    mtp_layers: Array
    adapter_rank: Array
    adapter_modules: Array
    adam: Array
    product_size: Array
    cast_reads: Array
    fused_reads: Array
    turns: Array
    quantized_copies: Array
    wide_layers: Array
    element_size: Array
    gradient_size: Array
    moment_size: Array
    master_size: Array
    stores_narrow: Array

    @cached_property
    def num_micro_batches(self) -> Array:
        """Micro-batches that one replica runs per step. [-]"""
        return np.asarray(self.global_batch_size / (self.data_parallel * self.micro_batch_size))

    @cached_property
    def tokens(self) -> Array:
        """Tokens of one micro-batch on one rank of the context. [-]"""
        return np.asarray(self.micro_batch_size * self.sequence_length / self.context_parallel)

    @property
    def gpipe(self) -> Array:
        """1 where all forward passes run before the first backward pass. [-]"""
        return np.asarray(self.schedule == GPIPE, dtype=np.float64)

    @cached_property
    def weight_copies(self) -> Array:
        """Copies of the weights in one pipeline: 2 with DualPipe, where mirrored ranks hold the same two stages. [-]"""
        return np.where(self.schedule == DUALPIPE, 2.0, 1.0)

    @cached_property
    def shards(self) -> Array:
        """Ranks that hold the same weights outside the experts: replicas x context x copies in a pipeline. [-]"""
        return np.asarray(self.data_parallel * self.context_parallel * self.weight_copies)

    @cached_property
    def expert_replicas(self) -> Array:
        """Ranks of a pipeline stage that hold the same experts. [-]"""
        ranks = self.tensor_parallel * self.context_parallel * self.data_parallel
        return np.asarray(ranks / (self.expert_parallel * self.expert_tensor_parallel))

    @cached_property
    def expert_shards(self) -> Array:
        """Ranks that hold the same experts. [-]"""
        return np.asarray(self.expert_replicas * self.weight_copies)

    @cached_property
    def zero_shards(self) -> Array:
        """Ranks over which what ZeRO shards is split, outside the experts. [-]"""
        return np.asarray(np.minimum(self.zero_group, self.shards))

    @cached_property
    def expert_zero_shards(self) -> Array:
        """Ranks over which what ZeRO shards of the experts is split. [-]"""
        return np.asarray(np.minimum(self.zero_group, self.expert_shards))

    @property
    def quantized(self) -> np.ndarray:
        """Where products take narrower elements than activations have. [-]"""
        return np.asarray(self.product_size < self.element_size)

    @property
    def keeps_copies(self) -> np.ndarray:
        """Where narrow copies outlive the product that they were made for. [-]"""
        return np.asarray(self.quantized & (self.quantized_copies > 0))

    @cached_property
    def regathers(self) -> np.ndarray:
        """Where sharded weights are gathered for every micro-batch; a pipeline keeps them for the whole step. [-]"""
        return np.asarray((self.zero_stage > 2) & (self.pipeline_parallel < 2))

    def again(self, module: str) -> Array:
        """1 where selective recomputation covers a module of RECOMPUTE_MODULES. [-]"""
        found = self._recomputed.get(module)
        if found is None:
            bit = 2.0 ** RECOMPUTE_MODULES.index(module)
            asked = np.floor(self.recompute_modules / bit) % 2.0
            found = self._recomputed[module] = asked * (self.recompute == RECOMPUTE_SELECTIVE)
        return found

    @cached_property
    def _recomputed(self) -> dict[str, Array]:
        """What :meth:`again` has found."""
        return {}

    @cached_property
    def more_modules(self) -> np.ndarray:
        """Where selective recomputation covers more than the core of the attention. [-]"""
        return np.asarray((self.recompute == RECOMPUTE_SELECTIVE) & (self.recompute_modules != 1.0))

    @property
    def layers_divisor(self) -> Array:
        """Model chunks over all stages. [-]"""
        return np.asarray(self.pipeline_parallel * self.virtual_pipeline)


def _fraction(values: Array) -> np.ndarray:
    return np.asarray(values != np.floor(values))


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
    """
    strides: dict[str, Array] = {}
    distance = np.ones_like(next(iter(sizes.values())))
    for name in order.split("-"):
        if name in sizes:
            strides[name] = distance
            distance = distance * sizes[name]
    return strides


def training_rules(plan: TrainingPlan, model: Model) -> list[Remark]:
    """Rules that a training plan must keep.

    Parameters
    ----------
    plan : TrainingPlan
        Degrees and batch, (rows,). [-]
    model : Model
        Shapes, (rows,). [-]

    Returns
    -------
    list of Remark
        Each with a sentence that says what is wrong and what would do.
    """
    whole = (
        ("num accelerators", plan.num_accelerators),
        ("tensor parallel", plan.tensor_parallel),
        ("pipeline parallel", plan.pipeline_parallel),
        ("virtual pipeline", plan.virtual_pipeline),
        ("data parallel", plan.data_parallel),
        ("context parallel", plan.context_parallel),
        ("expert parallel", plan.expert_parallel),
        ("expert tensor parallel", plan.expert_tensor_parallel),
        ("global batch size", plan.global_batch_size),
        ("micro batch size", plan.micro_batch_size),
        ("sequence length", plan.sequence_length),
    )
    ranks = plan.tensor_parallel * plan.pipeline_parallel * plan.data_parallel * plan.context_parallel
    experts = model.num_experts
    dense = experts <= 0
    chunks = plan.layers_divisor
    heads = model.num_attention_heads
    per_replica = plan.global_batch_size / (plan.data_parallel * plan.micro_batch_size)
    rules = [Remark(_fraction(values), f"{name} must be a whole number, is {{}}", (values,)) for name, values in whole]
    rules += [
        Remark(
            ranks != plan.num_accelerators,
            "tensor {} x context {} x pipeline {} x data {} parallel is {} ranks, not the {} accelerators of the plan",
            (
                plan.tensor_parallel,
                plan.context_parallel,
                plan.pipeline_parallel,
                plan.data_parallel,
                ranks,
                plan.num_accelerators,
            ),
        ),
        Remark(
            dense & ((plan.expert_parallel > 1) | (plan.expert_tensor_parallel > 1)),
            "the model has no experts: expert parallel {} and expert tensor parallel {} must be 1",
            (plan.expert_parallel, plan.expert_tensor_parallel),
        ),
        Remark(
            ~dense & _fraction(experts / plan.expert_parallel),
            "expert parallel {} does not divide the {} experts",
            (plan.expert_parallel, experts),
        ),
        Remark(
            ~dense & _fraction(plan.expert_replicas),
            "expert parallel {} x expert tensor parallel {} does not divide the {} ranks of a pipeline stage",
            (
                plan.expert_parallel,
                plan.expert_tensor_parallel,
                plan.tensor_parallel * plan.context_parallel * plan.data_parallel,
            ),
        ),
        Remark(
            dense & ~np.isnan(plan.expert_capacity),
            "the model has no experts to give a capacity of {}",
            (plan.expert_capacity,),
        ),
        Remark(
            ~np.isnan(plan.expert_capacity) & (plan.expert_imbalance > 1),
            "experts with a capacity ({}) are filled alike: leave expert imbalance ({}) out",
            (plan.expert_capacity, plan.expert_imbalance),
        ),
        Remark(
            (plan.expert_parallel > 1) & (plan.tensor_parallel > 1) & (plan.sequence_parallel < 1),
            "expert parallel {} with tensor parallel {} needs sequence parallel",
            (plan.expert_parallel, plan.tensor_parallel),
        ),
        Remark(
            ~dense & _fraction(model.expert_ffn_hidden_size / plan.expert_tensor_parallel),
            "expert tensor parallel {} does not divide the width {} of an expert",
            (plan.expert_tensor_parallel, model.expert_ffn_hidden_size),
        ),
        Remark(
            (plan.context_parallel > 1) & _fraction(plan.sequence_length / (2.0 * plan.context_parallel)),
            "context parallel {} needs a sequence length ({}) that is a multiple of twice as much",
            (plan.context_parallel, plan.sequence_length),
        ),
        Remark(
            (plan.context_method == ULYSSES)
            & (plan.context_parallel > 1)
            & _fraction(model.num_query_groups / (plan.tensor_parallel * plan.context_parallel)),
            "ulysses context parallel {} x tensor parallel {} does not divide the {} key and value heads",
            (plan.context_parallel, plan.tensor_parallel, model.num_query_groups),
        ),
        Remark(
            (plan.schedule == ZERO_BUBBLE) & (plan.virtual_pipeline > 1),
            "the zero-bubble schedule has no virtual pipeline, plan asks for {}",
            (plan.virtual_pipeline,),
        ),
        Remark(
            (plan.schedule == DUALPIPE) & (_fraction(plan.pipeline_parallel / 2.0) | (plan.virtual_pipeline > 1)),
            "dualpipe needs an even number of stages and no virtual pipeline, plan has {} and {}",
            (plan.pipeline_parallel, plan.virtual_pipeline),
        ),
        Remark(
            (plan.schedule == DUALPIPE) & (per_replica < 2.0 * plan.pipeline_parallel),
            "dualpipe needs at least twice as many micro-batches ({}) as stages ({})",
            (per_replica, plan.pipeline_parallel),
        ),
        Remark(
            (plan.flash_attention < 1) & (plan.context_parallel > 1) & (plan.context_method == RING),
            "standard attention needs whole rows of scores, a ring brings them in pieces: use flash, or context method"
            " all-gather or ulysses",
        ),
        Remark(
            _fraction(heads / plan.tensor_parallel),
            "tensor parallel {} does not divide the {} attention heads",
            (plan.tensor_parallel, heads),
        ),
        Remark(
            _fraction(model.ffn_hidden_size / plan.tensor_parallel),
            "tensor parallel {} does not divide the feed-forward width {}",
            (plan.tensor_parallel, model.ffn_hidden_size),
        ),
        Remark(
            chunks > model.num_layers + PLACEHOLDERS,
            "pipeline {} x virtual pipeline {} needs more layers than the model's {}",
            (plan.pipeline_parallel, plan.virtual_pipeline, model.num_layers),
        ),
        Remark(
            (plan.virtual_pipeline > 1) & (plan.pipeline_parallel < 2),
            "virtual pipeline {} needs pipeline parallel of 2 or more",
            (plan.virtual_pipeline,),
        ),
        Remark(
            (plan.virtual_pipeline > 1) & _fraction(per_replica / plan.pipeline_parallel) & ~_fraction(per_replica),
            "interleaving needs a number of micro-batches ({}) that pipeline parallel {} divides",
            (per_replica, plan.pipeline_parallel),
        ),
        Remark(
            (plan.virtual_pipeline > 1) & (plan.gpipe > 0),
            "the gpipe schedule has no virtual pipeline, plan asks for {}",
            (plan.virtual_pipeline,),
        ),
        Remark(
            _fraction(per_replica) | (per_replica < 1),
            "global batch {} is not a whole number of micro-batches of {} on {} replicas",
            (plan.global_batch_size, plan.micro_batch_size, plan.data_parallel),
        ),
        Remark(
            (plan.sequence_parallel > 0) & _fraction(plan.sequence_length / plan.tensor_parallel),
            "sequence parallel needs a sequence length ({}) that tensor parallel {} divides",
            (plan.sequence_length, plan.tensor_parallel),
        ),
        Remark(
            np.isfinite(plan.zero_group) & (plan.zero_stage < 1),
            "zero group size {} needs ZeRO stage 1 or more",
            (plan.zero_group,),
        ),
        Remark(
            _fraction(plan.shards / plan.zero_shards)
            | (~dense & _fraction(plan.expert_shards / plan.expert_zero_shards)),
            "zero group size {} does not divide the {} ranks that hold the same weights (of experts: {})",
            (plan.zero_group, plan.shards, plan.expert_shards),
        ),
        Remark(
            (plan.zero_stage == 2) & (plan.pipeline_parallel > 1),
            "ZeRO stage {} with pipeline parallel {}: gradients of all micro-batches must stay, use stage 0, 1 or 3",
            (plan.zero_stage, plan.pipeline_parallel),
        ),
    ]
    return rules
