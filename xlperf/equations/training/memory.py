"""Memory of the fullest rank of a training step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, ceil_div, side_by_side, some
from xlperf.equations.model.model import Model, attention_matrix_parameters, layer_small_parameters, router_parameters
from xlperf.equations.model.transformer import expert_parameters
from xlperf.equations.plan.choices import CrossEntropy, QuantizedCopies, Recompute
from xlperf.equations.plan.memory import logits_size, optimizer_element_size, weights_size
from xlperf.equations.plan.pipeline import in_flight_micro_batches
from xlperf.equations.plan.training_plan import LAYOUTS, TrainingPlan
from xlperf.equations.training.activations import LayerActivations, layer_activations
from xlperf.equations.training.adapters import AdapterParameters, adapter_parameters
from xlperf.equations.training.setting import MASK, WORD, Setting


class RankParameters(NamedTuple):
    """Parameters on one rank, (rows,): of the blocks of a layer, of the embedding and of the head.

    ``mtp`` is what a multi-token prediction module has beside its layer. [-]
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

    def narrow(self, layers: Array, mixtures: Array) -> Array:
        """Weights of the products of so many layers, routed experts apart: what a narrow precision covers. [-]"""
        dense = (layers - mixtures) * self.mlp
        return np.asarray(layers * (self.attention - self.small) + dense + mixtures * (self.shared - self.router))


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
        Attention with norms and biases; dense feed-forward; router with shared experts; routed experts; embedding
        with learned positions; output projection; entry and exit of a multi-token prediction module; then, among
        those of a layer, norms and biases, and the router; adapters. [-]
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
    table = ceil_div(model.vocab_size, tensor) * hidden
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
        adapters=adapter_parameters(model, plan, tensor)
        if some(plan.frozen)
        else AdapterParameters(np.zeros(table.shape), np.zeros(table.shape)),
    )


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


def _in_flight(plan: TrainingPlan, single: np.ndarray) -> Array:
    """Micro-batches whose activations the first, the second and the last stage keep, (rows, 3)."""
    stages, chunks, batches = plan.pipeline_parallel, plan.virtual_pipeline, plan.num_micro_batches
    first = in_flight_micro_batches(batches, stages, chunks, plan.gpipe)
    step = np.where(chunks > 1.0, 1.0 / chunks, 1.0)
    second = np.where(plan.gpipe > 0, batches, np.maximum(np.minimum(batches, first - step), 1.0))
    last = np.where(plan.gpipe > 0, batches, np.minimum(batches, ((chunks - 1.0) * stages + 1.0) / chunks))
    found = side_by_side(first, second, np.where(single, first, last))
    both_ways = plan.dualpipe
    if some(both_ways):
        found = np.where(both_ways[:, None], np.minimum(batches, stages + 1.0)[:, None], found)
    return found


def _kept(plan: TrainingPlan, size: LayerActivations, layers: Array, mixtures: Array) -> tuple[Array, Array]:
    """Bytes that the layers of each stage keep per micro-batch, and those of layers while they are computed again."""
    dense, mixture, dense_whole, mixture_whole = (values[:, None] for values in size)
    kept = (layers - mixtures) * dense + mixtures * mixture
    if not some(plan.recompute > 0):
        return kept, np.zeros(kept.shape)
    share = np.where(plan.recompute[:, None] > 0, np.minimum(plan.recompute_layers[:, None] / layers, 1.0), 1.0)
    plain = (layers - mixtures) * dense_whole + mixtures * mixture_whole
    group = np.where(plan.recompute == Recompute.FULL, plan.recompute_group, 1.0)[:, None]
    one, least = np.where(mixtures > 0, mixture_whole, dense_whole), np.where(mixtures > 0, mixture, dense)
    return share * kept / group + (1.0 - share) * plain, np.minimum(group, layers) * one - least


def _narrow_growth(setting: Setting) -> Array:
    """Bytes per weight of a product that its narrow copies add, (rows,); less than 0 where they replace it. [B]"""
    plan = setting.plan
    replaced = np.where(plan.quantized_copies == QuantizedCopies.PRIMARY, plan.element_size, 0.0)
    share = 1.0 - plan.wide_layers / setting.model.num_layers
    return np.asarray(np.where(plan.keeps_copies, share * (LAYOUTS * plan.product_size - replaced), 0.0))


_AT_ONCE = 2.0
"""Layers whose weights are gathered at a time: one that computes and the next one. [-]"""


def _in_transit(
    held: RankParameters,
    layers: Array,
    mixtures: Array,
    heads: Array,
    dense_split: np.ndarray,
    experts_split: np.ndarray,
    gathered_size: Array,
    gradient_size: Array,
) -> tuple[Array, Array]:
    """Bytes of gathered weights and of the whole gradients of a layer before they are scattered, (rows, stages).

    Only what is split over several ranks is gathered: no more layers than there are.
    """
    experts = np.where(experts_split & (mixtures > 0), held.experts[:, None], 0.0)
    block = np.where(mixtures > 0, held.shared[:, None], held.mlp[:, None]) + held.attention[:, None]
    layer = np.where(dense_split, block, 0.0) + experts
    reduced = np.maximum(layer, np.where(dense_split, heads, 0.0))
    return np.minimum(_AT_ONCE, layers) * layer * gathered_size, reduced * gradient_size


def memory_of(setting: Setting, held: RankParameters) -> dict[str, Array]:
    """Memory of the fullest of the first, the second and the last stage.

    Parameters
    ----------
    setting : Setting
        Model, plan and calibration. [-]
    held : RankParameters
        As :func:`rank_parameters` has it. [-]

    Returns
    -------
    dict of str to Array
        Parts, their sum ``memory``, and ``memory_reserved`` with the allocator's share. [B]
    """
    model, plan = setting.model, setting.plan
    stages = plan.pipeline_parallel
    single = stages < 2
    first, full, last = setting.stages
    layers = side_by_side(first, full, last)
    mixtures = side_by_side(
        mixture_layers(model, first, stages, first=True),
        mixture_layers(model, full, stages, first=False),
        mixture_layers(model, last, stages, first=False),
    )
    zero = np.zeros(full.shape)
    outside = side_by_side(held.embedding + np.where(single, held.head, 0.0), zero, held.head)
    mtp = plan.mtp_layers
    if some(mtp):  # on the last stage, with a copy of the embedding but where its ranks have the first stage too
        ahead = side_by_side(np.where(single, mtp, 0.0), zero, np.where(single, 0.0, mtp))
        layers = layers + ahead
        mixtures = mixtures + np.where(model.num_moe_layers > 0, 1.0, 0.0)[:, None] * ahead
        outside = outside + ahead * held.mtp[:, None]
        outside[:, 2] += np.where((ahead[:, 2] > 0) & (~plan.dualpipe), held.embedding, 0.0)
    paired = plan.dualpipe
    for ends in (layers, mixtures, outside) if some(paired) else ():  # a rank has a stage of each end
        ends[np.ix_(paired, np.array([0, 2]))] = 0.5 * (ends[paired, 0] + ends[paired, 2])[:, None]
    copies = plan.weight_copies[:, None]
    dense = copies * (
        layers * held.attention[:, None]
        + (layers - mixtures) * held.mlp[:, None]
        + mixtures * np.where(model.num_experts > 0, held.shared, 0.0)[:, None]
        + outside
    )
    routed = copies * mixtures * held.experts[:, None]

    in_flight = _in_flight(plan, single)
    kept, working = _kept(plan, layer_activations(setting), layers, mixtures)
    layer_kept = in_flight * kept
    tensor_ranks = np.where(plan.sequence_parallel > 0, plan.tensor_parallel, 1.0)
    whole_stream = plan.tokens * model.hidden_size * plan.element_size
    stream = whole_stream / tensor_ranks
    if some(mtp):  # inputs of the norms, and what the projection reads
        layer_kept = layer_kept + in_flight * ahead * (5.0 * stream)[:, None]
    logits = logits_size(
        plan.tokens * ceil_div(model.vocab_size, plan.tensor_parallel),
        plan.element_size,
        WORD,
        plan.cross_entropy == CrossEntropy.FUSED,
        plan.cross_entropy == CrossEntropy.PLAIN,
    )
    gathered = np.where(tensor_ranks > 1.0, whole_stream, 0.0)
    loss = (1.0 + mtp) * logits + 2.0 * stream + whole_stream + gathered
    mask = model.dropout * MASK * whole_stream / plan.element_size / tensor_ranks * in_flight[:, 0]
    pair = 2.0 * gathered  # the gathered input of a block and its gradient
    extra = side_by_side(mask + np.where(single, loss, pair), pair, loss)
    activations = layer_kept + np.maximum(working, extra)

    element, gradient = plan.element_size[:, None], plan.gradient_size[:, None]
    state = optimizer_element_size(plan.adam, plan.element_size, WORD, plan.moment_size, plan.master_size)
    stage = plan.zero_stage[:, None]
    sharded_weights = (plan.zero_stage > 2) & (plan.master_size > 0)  # kept in FP32: they are the master copy
    state = np.where(sharded_weights, (1.0 + plan.adam) * plan.moment_size, state)[:, None]
    frozen = plan.frozen[:, None]
    masters = sharded_weights[:, None] & ~frozen
    resting = np.where(masters, np.maximum(element, WORD), element)
    trained, trained_experts = dense, routed
    if some(frozen):
        adapters = layers * held.adapters.attention[:, None] + (layers - mixtures) * held.adapters.mlp[:, None]
        adapters = np.where(frozen, copies * adapters, 0.0)
        dense = dense + adapters
        trained, trained_experts = np.where(frozen, adapters, dense), np.where(frozen, 0.0, routed)

    def sharded(size: Array, since: float, parameters: Array, experts: Array) -> Array:
        shards = np.where(stage >= since, plan.zero_shards[:, None], 1.0)
        own = weights_size(parameters, size, shards)
        if not setting.architecture.experts:
            return own
        expert_shards = np.where(stage >= since, plan.expert_zero_shards[:, None], 1.0)
        return np.asarray(own + weights_size(experts, size, expert_shards))

    weights = sharded(resting, 3.0, dense, routed)
    gradients, optimizer = (
        sharded(size, since, trained, trained_experts) for size, since in ((gradient, 2.0), (state, 1.0))
    )
    copy = setting.constants["training_memory"]["gradient_copy_size"]
    heads = side_by_side(np.where(single, held.head, 0.0), zero, held.head)
    one_expert = held.experts * plan.expert_parallel / np.maximum(model.num_experts, 1.0)
    block = held.attention + np.where(model.num_dense_layers > 0, held.mlp, 0.0)
    block = block + np.where(model.num_experts > 0, held.shared + one_expert, 0.0)
    passing = element * (block[:, None] + heads)  # weight gradients on their way into the buffer
    if some(copy > 0.0):
        gradients = gradients + sharded(copy, 2.0, trained, trained_experts)
        passing = np.maximum(passing - copy * (trained + trained_experts), 0.0)
    passing = np.where(frozen, 0.0, passing)
    dense_split, experts_split = plan.zero_shards[:, None] > 1, plan.expert_zero_shards[:, None] > 1
    held_whole = (plan.zero_stage > 2) & (stages > 1)  # gathered once, and no gradient leaves before the last one
    if some(held_whole):
        whole = np.where(dense_split, dense, 0.0) + np.where(experts_split, routed, 0.0)
        weights = weights + np.where(held_whole[:, None], element * whole, 0.0)
        gradients = np.where(held_whole[:, None], gradient * (trained + trained_experts), gradients)
    narrow: Array | float = 0.0
    if some(plan.keeps_copies):
        narrow = _narrow_growth(setting)[:, None]
        layouts = copies * held.narrow(layers.T, mixtures.T).T + routed
        weights = weights + np.where(plan.regathers[:, None], 0.0, narrow) * layouts
    if some(plan.regathers):
        gathered, reduced = _in_transit(
            held, layers, mixtures, heads, dense_split, experts_split, element + narrow, gradient
        )
        in_transit = gathered + np.where(frozen, 0.0, reduced)
        passing = np.where(plan.regathers[:, None], in_transit, passing)
    activations = activations + passing
    stage_total = weights + gradients + optimizer + activations
    present = side_by_side(zero, np.where(stages > 2, 0.0, -np.inf), np.where(single, -np.inf, 0.0))
    worst = np.argmax(np.where(np.isnan(stage_total), 0.0, stage_total) + present, axis=-1)
    rows = np.arange(len(worst))
    memory = stage_total[rows, worst]
    software = setting.constants["training_memory"]
    return {
        "memory": memory,
        "memory_first_stage": stage_total[:, 0],
        "memory_middle_stage": np.where(stages > 2, stage_total[:, 1], np.nan),
        "memory_last_stage": np.where(single, np.nan, stage_total[:, 2]),
        "memory_weights": weights[rows, worst],
        "memory_gradients": gradients[rows, worst],
        "memory_optimizer": optimizer[rows, worst],
        "memory_activations": activations[rows, worst],
        "memory_layer_activations": layer_kept[rows, worst],
        "memory_reserved": memory * (1.0 + software["allocator_share"][:, 0]) + software["allocator_base"][:, 0],
    }
