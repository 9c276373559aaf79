"""Memory of the fullest rank of a training step: weights, gradients, optimizer state and activations."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ceil_div, side_by_side, some
from xlperf.equations.plan.records import WORD, CrossEntropy, QuantizedCopies, Recompute, TensorOverlap
from xlperf.equations.plan.training_plan import TrainingPlan
from xlperf.equations.training.activations import LayerActivations, layer_activations
from xlperf.equations.training.setting import (
    MASK,
    Setting,
    StageContents,
    StageParameters,
    quantized_weights,
    stage_parameters,
)

_GATHERED_LAYERS = 2.0  # layers whose weights ZeRO-3 gathers at a time: one that computes and the next one [-]
_BUFFERED_LAYERS = 2.0  # layers whose activations are on their way to or from the host [-]
_LOSS_PARTS = 8.0
"""Parts of the tokens whose logits a chunked loss makes one after the other (torchtitan and torchtune). [-]"""
_MTP_STREAMS = 5.0
"""Tensors as large as the residual stream that an MTP module keeps: inputs of norms and of its projection. [-]"""


def in_flight_micro_batches(
    num_micro_batches: Numeric, pipeline_parallel: Numeric, virtual_pipeline: Numeric, gpipe: Numeric = 0.0
) -> Array:
    r"""Micro-batches whose activations the first stage holds at the peak, in units of all its layers.

    .. math:: n = \min\left(m, p \left(1 + \frac{p - 1}{p v} [v > 1]\right)\right)

    The first stage starts one micro-batch per stage before the first gradient returns; interleaved, it runs p - 1
    passes of chunks further ahead, each with 1 / v of its layers. Source: V. Korthikanti et al., "Reducing activation
    recomputation in large transformer models", 2022, arXiv:2205.05198, section 4.2.3.

    One chunk: as many as stages; two chunks on 4 stages: 4 (1 + 3/8).

    >>> in_flight_micro_batches(32, 4, [1, 2]).tolist()
    [4.0, 5.5]

    Parameters
    ----------
    num_micro_batches : Micro-batches m per step. [-]
    pipeline_parallel : Stages p. [-]
    virtual_pipeline : Chunks v per stage. [-]
    gpipe : 1 where all forward passes run first: all m are then in flight. [-]

    Returns
    -------
    count : Micro-batches in flight. [-]
    """
    stages, chunks = array(pipeline_parallel), array(virtual_pipeline)
    batches, all_kept = array(num_micro_batches), array(gpipe)
    extra = (chunks > 1.0) * (stages - 1.0) / (stages * chunks)
    held = all_kept * batches + (1.0 - all_kept) * stages * (1.0 + extra)
    return np.asarray(np.minimum(batches, held))


def _in_flight(plan: TrainingPlan, single: np.ndarray) -> Array:
    """Micro-batches with activations on the first, the second and the last stage, (rows, 3). [-]"""
    stages, chunks, batches = plan.pipeline_parallel, plan.virtual_pipeline, plan.num_micro_batches
    # the second stage is a pass of a chunk behind the first; the last starts its backward pass at once
    first = in_flight_micro_batches(batches, stages, chunks, plan.gpipe)
    step = np.where(chunks > 1.0, 1.0 / chunks, 1.0)
    second = np.where(plan.gpipe > 0, batches, np.maximum(np.minimum(batches, first - step), 1.0))
    last = np.where(plan.gpipe > 0, batches, np.minimum(batches, ((chunks - 1.0) * stages + 1.0) / chunks))
    in_flight = side_by_side(first, second, np.where(single, first, last))
    return np.where(plan.dualpipe[:, None], np.minimum(batches, stages + 1.0)[:, None], in_flight)


def _saved(plan: TrainingPlan, size: LayerActivations, contents: StageContents) -> tuple[Array, Array]:
    """Bytes that the layers of each stage save per micro-batch, and those of layers during recomputation, (rows, 3)."""
    layers, mixtures, plains = contents.layers, contents.mixtures, contents.dense
    plains = np.where(plains + mixtures > 0.0, plains, layers)  # layers without feed-forward blocks save as dense ones
    dense, mixture, dense_whole, mixture_whole = (values[:, None] for values in size)
    saved = plains * dense + mixtures * mixture
    if not some(plan.recompute > 0):
        return saved, np.zeros(saved.shape)
    # recomputed layers save their inputs, in groups one for the group; during recomputation a group is there whole
    share = np.where(plan.recompute[:, None] > 0, np.minimum(plan.recompute_layers[:, None] / layers, 1.0), 1.0)
    plain = plains * dense_whole + mixtures * mixture_whole
    group = np.where(plan.recompute == Recompute.FULL, plan.recompute_group, 1.0)[:, None]
    one, least = np.where(mixtures > 0, mixture_whole, dense_whole), np.where(mixtures > 0, mixture, dense)
    return share * saved / group + (1.0 - share) * plain, np.minimum(group, layers) * one - least


def kept_activations(setting: Setting) -> Array:
    """Activations of one micro-batch that the layers of each stage save for the backward pass, (rows, 3). [B]"""
    return _saved(setting.plan, layer_activations(setting), setting.contents.mirrored(setting.plan.dualpipe))[0]


def _logits(setting: Setting) -> Array:
    """Bytes of the logits of a micro-batch and their gradients, (rows,); a compiled loss keeps its inputs.

    A fused loss replaces the logits by their gradient; one that is split over the vocabulary has 16-bit logits and an
    FP32 softmax, which the gradient replaces [1]_. An unfused one has logits, log-softmax, its gradient and the
    gradient of the loss, in FP32 under autocast [2]_, and one FP32 tensor more if it is split over the vocabulary [3]_.

    References
    ----------
    .. [1] M. Shoeybi et al., "Megatron-LM", 2019, arXiv:1909.08053, section 3 (loss split over the vocabulary).
    .. [2] PyTorch documentation, Automatic Mixed Precision package, CUDA ops that autocast to float32.
    .. [3] PyTorch, torch/distributed/tensor/parallel/loss.py, _nll_loss_and_log_softmax_backward.
    """
    plan = setting.plan
    chunked, fused = plan.cross_entropy == CrossEntropy.CHUNKED, plan.cross_entropy == CrossEntropy.FUSED
    number = plan.tokens * ceil_div(setting.model.vocab_size, plan.loss_shards)
    plain, split = plan.plain_loss | chunked, plan.loss_shards > 1.0
    each = plan.element_size + (1.0 - fused) * plan.loss_size + (2.0 + split) * plain * plan.loss_size
    size = number * each + np.where(fused & (plan.compiled > 0), number * plan.element_size, 0.0)
    return np.asarray(size / np.where(chunked, _LOSS_PARTS, 1.0))


def _activations(setting: Setting, contents: StageContents, modules: Array) -> tuple[Array, Array, Array]:
    """Saved activations of the layers of each stage, the peak, and the last of them, (rows, 3) each. [B]

    The peak is in the recomputation of layers or in the loss, with logits, their gradients, and the residual stream
    before and after its gather. The last are the activations of one layer, at the end of the backward pass.
    ``modules``: MTP modules of the stages.
    """
    model, plan = setting.model, setting.plan
    single = plan.pipeline_parallel < 2
    # activations of the layers for all micro-batches in flight, less those on the host
    in_flight = _in_flight(plan, single)
    saved, working = _saved(plan, layer_activations(setting), contents)
    saved_layers = in_flight * saved
    buffers = np.minimum(_BUFFERED_LAYERS * saved / np.maximum(contents.layers, 1.0), saved_layers)
    saved_layers = saved_layers - plan.offload_activations[:, None] * (saved_layers - buffers)
    # residual stream of a rank, and gathered over the tensor-parallel ranks; loss, dropout mask of the embedding
    whole_stream = setting.stream_size
    stream = whole_stream / plan.stream_ranks
    saved_layers = saved_layers + in_flight * modules * (_MTP_STREAMS * stream)[:, None]
    gathered = np.where(plan.stream_ranks > 1.0, whole_stream, 0.0)
    loss = (1.0 + plan.mtp_layers) * _logits(setting) + 2.0 * stream + whole_stream + gathered
    mask = model.dropout * MASK * whole_stream / plan.element_size / plan.stream_ranks * in_flight[:, 0]
    pair = 2.0 * gathered  # the gathered input of a block and its gradient
    extra = side_by_side(mask + np.where(single, loss, pair), pair, loss)
    last = working + saved / np.maximum(contents.layers, 1.0)
    return saved_layers, saved_layers + np.maximum(working, extra), last


def _sharded(setting: Setting, size: Array, since: float, dense: Array, experts: Array) -> Array:
    """Bytes of a rank of a buffer that ZeRO shards from a stage on, (rows, 3). [B]"""
    plan = setting.plan
    sharded = (plan.zero_stage >= since)[:, None]
    own = dense * size / np.where(sharded, plan.zero_shards[:, None], 1.0)
    if not setting.architecture.experts:
        return own
    shards = np.where(sharded, plan.expert_zero_shards[:, None], 1.0)
    return np.asarray(own + experts * size / shards)


def _weights(setting: Setting, contents: StageContents, parameters: StageParameters) -> Array:
    """Weights of each stage, (rows, 3), with the gathered ones if ZeRO-3 does not reshard. [B] ZeRO-3 shards in FP32
    are the master copy and are offloaded with the optimizer; quantized copies stay on the rank unless sharded weights
    are gathered anew.
    """
    plan = setting.plan
    element = plan.element_size[:, None]
    # shards of ZeRO-3: master weights, on the accelerator or the host
    masters = ((plan.zero_stage > 2) & (plan.master_size > 0) & ~plan.frozen)[:, None]
    master = np.maximum(element, WORD)
    resting = np.where(masters, master - plan.offload_optimizer[:, None] * (master - element), element)
    weights = _sharded(setting, resting, 3.0, parameters.dense, parameters.experts)
    # weights that stay whole between forward and backward pass
    gathered = np.where(plan.zero_shards[:, None] > 1, parameters.dense, 0.0)
    gathered = gathered + np.where(plan.expert_zero_shards[:, None] > 1, parameters.experts, 0.0)
    weights = weights + np.where(plan.keeps_gathered[:, None], element * gathered, 0.0)
    return weights + _quantized_copies(setting, contents, parameters)


def _quantized_copies(setting: Setting, contents: StageContents, parameters: StageParameters) -> Array | float:
    """Bytes that quantized copies add to the weights of each stage, (rows, 3); 0 if no plan stores any. [B]"""
    plan = setting.plan
    if not some(plan.keeps_copies):
        return 0.0
    quantized = quantized_weights(plan, setting.parameters, contents) + parameters.experts
    return np.where(plan.regathers, 0.0, _quantized_growth(setting))[:, None] * quantized


def _gradients(setting: Setting, parameters: StageParameters, heads: Array) -> tuple[Array, Array]:
    """Gradient buffer of each stage, and weight gradients on their way into it, (rows, 3). [B]"""
    model, plan, held = setting.model, setting.plan, setting.parameters
    dense, experts = parameters.trained, parameters.trained_experts
    size, copy = plan.gradient_size[:, None], setting.constants["training_memory"]["gradient_copy_size"]
    gradients = _sharded(setting, size, 2.0, dense, experts) + _sharded(setting, copy, 2.0, dense, experts)
    # gradients of the largest block before they are added to the buffer
    one_expert = held.experts * plan.expert_parallel / np.maximum(model.num_experts, 1.0)
    block = np.maximum(held.attention, held.linear) + np.where(model.num_dense_layers > 0, held.mlp, 0.0)
    block = block + np.where(model.num_experts > 0, held.shared + one_expert, 0.0)
    passing = np.maximum(plan.element_size[:, None] * (block[:, None] + heads) - copy * (dense + experts), 0.0)
    # Weights gathered once, or gradients added up whole: none leaves before the last micro-batch.
    gradients = np.where((plan.gathers_once | plan.keeps_sums)[:, None], size * (dense + experts), gradients)
    return gradients, np.where(plan.frozen[:, None], 0.0, passing)


def _optimizer_state(setting: Setting, parameters: StageParameters) -> Array:
    """Optimizer state of each stage, (rows, 3); ZeRO-3 shards in FP32 replace the master weights. [B]"""
    plan = setting.plan
    state = plan.optimizer_size
    masters = (plan.zero_stage > 2) & (plan.master_size > 0)
    state = np.where(masters, (1.0 + plan.adam) * plan.moment_size, state)[:, None]
    return _sharded(
        setting, state * (1.0 - plan.offload_optimizer)[:, None], 1.0, parameters.trained, parameters.trained_experts
    )


def _quantized_growth(setting: Setting) -> Array:
    """Bytes per GEMM weight that its quantized copies add, (rows,); negative if they replace it. [B]"""
    plan = setting.plan
    replaced = np.where(plan.quantized_copies == QuantizedCopies.PRIMARY, plan.element_size, 0.0)
    return np.asarray(
        np.where(plan.keeps_copies, setting.narrow_share * (plan.layouts * plan.product_size - replaced), 0.0)
    )


def _regathered(setting: Setting, contents: StageContents, heads: Array) -> Array:
    """Weights that ZeRO-3 gathers for a micro-batch, and gradients of a layer before they are scattered, (rows, 3)."""
    plan, held = setting.plan, setting.parameters
    layers, mixtures = contents.layers, contents.mixtures
    # parameters of the largest layer that are sharded
    split, experts_split = plan.zero_shards[:, None] > 1, plan.expert_zero_shards[:, None] > 1
    growth = _quantized_growth(setting)[:, None]
    experts = np.where(experts_split & (mixtures > 0), held.experts[:, None], 0.0)
    mlp = np.where(setting.model.num_dense_layers > 0, held.mlp, 0.0)[:, None]
    block = np.where(mixtures > 0, held.shared[:, None], mlp)
    block = block + np.maximum(held.attention, held.linear)[:, None]
    layer = np.where(split, block, 0.0) + experts
    reduced = np.maximum(layer, np.where(split, heads, 0.0)) * plan.gradient_size[:, None]
    gathered = np.minimum(_GATHERED_LAYERS, layers) * layer * (plan.element_size[:, None] + growth)
    return np.asarray(gathered + np.where(plan.frozen[:, None], 0.0, reduced))


def memory_of(setting: Setting) -> dict[str, Array]:
    """Memory of the fullest of the first, a middle and the last stage: parts, their sum, and reserved memory. [B]

    14.0 M parameters with weights of 2 B, gradients of 4 B, and 12 B of moments and master weights:

    >>> from ideal_machine import setting
    >>> memory = memory_of(setting())
    >>> [float(memory[f"memory_{part}"][0]) for part in ("weights", "gradients", "optimizer")]
    [28004000.0, 56008000.0, 168024000.0]
    """
    plan, held = setting.plan, setting.parameters
    contents, modules = setting.contents, setting.contents.mtp
    heads = contents.head * held.head[:, None]
    # MTP modules need a copy of the embedding, where their rank has none.
    copied = np.where((modules > 0) & ~plan.dualpipe[:, None], 1.0, contents.embedding)
    contents = contents._replace(embedding=copied)
    contents = contents.mirrored(plan.dualpipe)
    parameters = stage_parameters(setting.model, plan, held, contents)

    activations_of_layers, activations, last = _activations(setting, contents, modules)
    weights, optimizer = _weights(setting, contents, parameters), _optimizer_state(setting, parameters)
    gradients, passing = _gradients(setting, parameters, heads)
    if some(plan.regathers):
        passing = np.where(plan.regathers[:, None], _regathered(setting, contents, heads), passing)
    # gradients that only the backward pass allocates take the room of activations that it has freed
    software = setting.constants["training_memory"]
    freed, apart = _frees_gradients(setting), 0.0 * gradients
    if some(freed):
        before = activations + np.where(plan.regathers[:, None], passing, 0.0)
        ends = freed & (gradients + last + passing > before)
        # Sharded gradients are made by collectives on a stream of their own: neither has the room of the other again.
        own_stream = freed & ((plan.zero_stage > 1) & (plan.zero_shards > 1))[:, None]
        apart = np.where(own_stream, np.where(ends, np.maximum(before - last - passing, 0.0), gradients), 0.0)
        gradients = np.where(freed & ~ends, 0.0, gradients)
        activations_of_layers = np.where(ends, np.minimum(activations_of_layers, last), activations_of_layers)
        activations = np.where(freed, np.where(ends, last + passing, before), activations + passing)
    else:
        activations = activations + passing
    stage_total = weights + gradients + optimizer + activations

    # the fullest of the stages that exist
    stages, none = plan.pipeline_parallel, np.zeros(len(stage_total))
    present = side_by_side(none, np.where(stages > 2, 0.0, -np.inf), np.where(stages < 2, -np.inf, 0.0))
    worst = np.argmax(np.where(np.isnan(stage_total), 0.0, stage_total) + present, axis=-1)
    rows = np.arange(len(worst))
    memory = stage_total[rows, worst]
    first, middle, last_total = stage_total.T
    return {
        "memory": memory,
        "memory_first_stage": first,
        "memory_middle_stage": np.where(stages > 2, middle, np.nan),
        "memory_last_stage": np.where(stages < 2, np.nan, last_total),
        "memory_weights": weights[rows, worst],
        "memory_gradients": gradients[rows, worst],
        "memory_optimizer": optimizer[rows, worst],
        "memory_activations": activations[rows, worst],
        "memory_layer_activations": activations_of_layers[rows, worst],
        "memory_reserved": (
            memory
            + apart[rows, worst]
            + software["gathered_share"][:, 0] * _gathered_inputs(setting, contents)[rows, worst]
        )
        * (1.0 + software["allocator_share"][:, 0])
        + software["allocator_base"][:, 0],
    }


def _frees_gradients(setting: Setting) -> np.ndarray:
    """Plans whose backward pass alone allocates gradients: none exists when it begins, (rows, 1). With several
    micro-batches the first one leaves gradients for the next; in a pipeline, for those in flight.
    """
    plan, software = setting.plan, setting.constants["training_memory"]
    once = (plan.num_micro_batches < 2) & (plan.pipeline_parallel < 2)
    return np.asarray((software["freed_gradients"] > 0.0) & once[:, None])


def _gathered_inputs(setting: Setting, contents: StageContents) -> Array:
    """Inputs of products of one micro-batch that are gathered over the tensor-parallel ranks, (rows, 3). [B] The
    allocator reuses memory of the communication stream only after the accelerator has passed the collective: if the
    host runs ahead, after the layers of a whole pass. Inputs of attention and dense feed-forward layers count.
    """
    plan = setting.plan
    gathers = (plan.tensor_parallel > 1) & (plan.sequence_parallel > 0) & (plan.tensor_overlap > TensorOverlap.NONE)
    size = np.where(gathers, setting.stream_size, 0.0)
    return np.asarray(size[:, None] * (contents.mixers + contents.dense))
