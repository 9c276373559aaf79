"""Memory of a serving rank: weights, key-value cache, activations of a prefill, and the largest batch that fits."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ceil_div, divide, some
from xlperf.equations.hardware.roofline import WIDE
from xlperf.equations.model.blocks import EXPERTS, FEED_FORWARD, INDEX, Block, Operator, Shard, weights
from xlperf.equations.model.layers import layer_blocks
from xlperf.equations.model.model import Architecture, Model, linear_share
from xlperf.equations.model.operators import embedding_parameters, layer_vector_parameters, linear_vector_parameters
from xlperf.equations.model.serving import cache_elements, layer_shares, part_of
from xlperf.equations.plan.records import WORD
from xlperf.equations.plan.serving_plan import InferencePlan, LayerPart
from xlperf.equations.serving.cache import cache_sizes
from xlperf.equations.serving.deployment import Deployment
from xlperf.equations.serving.kernels import wide_attention


@cache
def _by_width(block: Block) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
    """Products of a block with weights in the precision of the plan, and in 16 bits."""
    if block is INDEX:
        return block.operators, ()
    wide = tuple(operator for operator in block.operators if block.served(operator) == WIDE)
    return tuple(operator for operator in block.operators if operator not in wide), wide


def _layer_weights(shard: Shard, plan: InferencePlan, architecture: Architecture) -> tuple[Array, Array]:
    """GEMM weights of a mean layer on one rank, (rows,): stored in the precision of the plan, and in 16 bits. [-]"""
    model, shares = shard.model, layer_shares(shard.model, architecture)
    attends, feeds = _share(plan, LayerPart.ATTENTION), _share(plan, LayerPart.EXPERTS)
    wide_layers = wide_attention(model, plan, architecture)
    low, wide = np.zeros(()), np.zeros(())
    for block in layer_blocks(architecture)[:-1]:  # all but the output projection
        share = shares.of(block.place) * (feeds if block in FEED_FORWARD else attends)
        if block is EXPERTS:
            share = share * ceil_div(model.num_experts + plan.redundant_experts, plan.expert_parallel)
        narrow_products, wide_products = _by_width(block)
        if wide_products:
            wide = wide + share * weights(block, shard, wide_products)
        if narrow_products:
            held = share * weights(block, shard, narrow_products)
            if block.place in ("attention", "linear"):
                wide, held = wide + np.where(wide_layers, held, 0.0), np.where(wide_layers, 0.0, held)
            low = low + held
    return np.asarray(low), np.asarray(wide)


def _layer_weights_by_part(shard: Shard, plan: InferencePlan, architecture: Architecture) -> Array:
    """GEMM weights of a mean layer on one rank, each part in its own precision, (rows,). [B]"""
    model, shares = shard.model, layer_shares(shard.model, architecture)
    attends, feeds = _share(plan, LayerPart.ATTENTION), _share(plan, LayerPart.EXPERTS)
    size = np.zeros(())
    for block in layer_blocks(architecture)[:-1]:  # all but the output projection
        share = shares.of(block.place) * (feeds if block in FEED_FORWARD else attends)
        if block is EXPERTS:
            share = share * ceil_div(model.num_experts + plan.redundant_experts, plan.expert_parallel)
        for products, narrow in zip(_by_width(block), (True, False), strict=True):
            if products:
                sizes = plan.part_sizes(part_of(block, products[0], architecture)) if narrow else None
                stored = plan.activation_size if not narrow else plan.weight_size if sizes is None else sizes[0]
                size = size + share * weights(block, shard, products) * stored
    return np.asarray(size)


def _share(plan: InferencePlan, part: float) -> Array | float:
    """1 if a pool computes a part of its layers, else 0, (rows,); 1 if every pool computes all. [-]"""
    own = plan.computes(part)
    return 1.0 if own is None else own


def _layer_small_parameters(shard: Shard, architecture: Architecture) -> Array:
    """Scales and biases of a mean layer on one rank, (rows,). [-]"""
    model = shard.model
    attention = layer_vector_parameters(shard, model.query_key_norm)
    if not architecture.counted:
        return attention
    without = layer_vector_parameters(shard, 0.0)
    attended = model.num_attention_layers / model.num_layers
    norms = (2.0 - model.num_blocks) * (1.0 + model.layer_norm) * model.hidden_size
    linear = linear_share(model) * linear_vector_parameters(shard)
    return np.asarray(attended * attention + (1.0 - attended) * without - norms + linear)


def rank_weights_size(model: Model, plan: InferencePlan, architecture: Architecture) -> Array:
    """Weights of the fullest rank, (rows,): its layers, those of its draft module, and its share of one table. [B]"""
    stages = plan.pipeline_parallel
    layers = np.ceil(model.num_layers / stages) + plan.layers_drafted
    shard = Shard(model, plan.attention_parallel, plan.expert_tensor_parallel)
    small = _layer_small_parameters(shard, architecture)
    # A first and a last stage that are not the same hold one table each, tied or not.
    tied = np.where(stages > 1.0, 1.0, model.tied_embeddings)
    tables = embedding_parameters(model, tied)
    narrow, wide = _layer_weights(shard, plan, architecture)
    attends = _share(plan, LayerPart.ATTENTION)
    small, tables = small * attends, tables * attends
    layer = narrow * plan.weight_size + (small + wide) * plan.activation_size
    size = np.asarray(layers * layer + tables * plan.activation_size / plan.attention_parallel)
    own = plan.part_sizes("head")
    if own is None:
        return size
    # Embeddings stay in 16 bits; an output projection of its own has the precision of the checkpoint's.
    layer = _layer_weights_by_part(shard, plan, architecture) + small * plan.activation_size
    output = np.where(tied > 0.0, 0.0, embedding_parameters(model, np.ones_like(tied))) * attends
    of_tables = (tables - output) * plan.activation_size + output * own[0]
    return np.where(np.isnan(own[0]), size, layers * layer + of_tables / plan.attention_parallel)


_ROOT_OF_THREE = 1.7320508075688772
_LEAST_MULTICAST = 2.0
"""Ranks up to which collectives do not add up in the switch. [-]"""


_OF_ENGINE = (
    "memory_fraction",
    "of_free_memory",
    "activations_included",
    "driver_memory",
    "reserve",
    "reserve_per_token",
    "reserve_per_rank",
    "whole_history",
    "reserved_output",
    "sampled_requests",
    "sampled_logit_size",
    "graph_memory",
    "runtime_per_rank",
    "multicast_per_rank",
    "state_share",
    "state_slots",
    "in_flight_batches",
    "scaled_latents",
)


def _cache_budget(
    shown_memory: Numeric,
    free_memory: Numeric,
    weights_size: Numeric,
    memory_fraction: Numeric,
    of_free_memory: Numeric,
) -> Array:
    """Bytes that an engine leaves for the cache and for the activations that its share covers; below 0 without room.

    An engine takes a share of the whole memory, weights included (vLLM, gpu_memory_utilization), or of the memory that
    weights leave (TensorRT-LLM, free_gpu_memory_fraction).

    >>> _cache_budget(80.0, 79.0, 70.0, 0.9, [0.0, 1.0]).tolist()
    [2.0, 8.1]
    """
    weights, share = array(weights_size), array(memory_fraction)
    whole, free = share * array(shown_memory) - weights, share * (array(free_memory) - weights)
    return np.asarray(np.where(array(of_free_memory) > 0.0, free, whole) + 0.0 * (free + whole + array(of_free_memory)))


def _sampling_peak(
    activations_size: Numeric,
    hidden_state_size: Numeric,
    sampled_requests: Numeric,
    vocab_size: Numeric,
    logit_size: Numeric,
    runtime_size: Numeric,
) -> Array:
    """Bytes beside the weights that an engine measures before it gives the remainder of its share to the cache.

    It runs its longest prefill with dummy tokens, then samples a token for each of the most requests: their logits in
    16 and 32 bits, sorted, with indices and the sort buffer, beside the hidden states of the prefill (llm-d-benchmark,
    config_explorer/empirical-vllm-memory-results.md, 2025: eight starts of vLLM on H100).

    Llama 3.1 8B with 8,192 tokens and 1,024 requests on one H100 (measured 4.76 + 0.13 GiB):

    >>> size = _sampling_peak(0.86e9, 8192 * 4096 * 2.0, 1024.0, 128256.0, 38.3, 0.0)
    >>> round(float(size) / 2**30, 2)
    4.75
    """
    sampled = array(hidden_state_size) + array(sampled_requests) * array(vocab_size) * array(logit_size)
    return np.asarray(np.maximum(array(activations_size), sampled) + array(runtime_size))


def usable_memory(
    memory_capacity: Numeric,
    reserved_memory: Numeric,
    weights_size: Numeric,
    activations_size: Numeric,
    cache_budget: Numeric,
    activation_share: Numeric,
) -> Array:
    r"""Bytes available to weights, cache and activations together.

    .. math:: M = \min\left(S_w + S_a + B - s S_a,\ C - R\right)

    Parameters
    ----------
    memory_capacity : numeric
        Memory C of the accelerator. [B]
    reserved_memory : numeric
        Memory R of the driver. [B]
    weights_size : numeric
        Weights S_w of one rank. [B]
    activations_size : numeric
        Activations S_a of a prefill pass. [B]
    cache_budget : numeric
        Bytes B that the engine leaves for the cache, from :func:`_cache_budget`. [B]
    activation_share : numeric
        Share s of the activations that this budget covers. [-]

    Returns
    -------
    size : numeric
        For weights, cache and activations together. [B]

    References
    ----------
    .. [1] NVIDIA, TensorRT-LLM documentation, "Memory usage of TensorRT-LLM".

    >>> float(usable_memory(80.0, 1.0, 20.0, 4.0, 50.0, 1.0)), float(usable_memory(80.0, 1.0, 20.0, 4.0, 70.0, 0.0))
    (70.0, 79.0)
    """
    activations = array(activations_size)
    covered = array(weights_size) + activations + array(cache_budget) - array(activation_share) * activations
    return np.asarray(np.minimum(covered, array(memory_capacity) - array(reserved_memory)))


def _prefill_working_set(
    hidden_size: Numeric,
    projected_size: Numeric,
    attention_size: Numeric,
    ffn_hidden_size: Numeric,
    gated_mlp: Numeric,
    vocab_size: Numeric,
    prompt_length: Numeric,
    prefill_tokens: Numeric,
    tensor_parallel: Numeric,
    element_size: Numeric,
    logit_size: Numeric,
) -> Array:
    """Activation bytes per sequence in a prefill pass, which frees the activations of each layer.

    The residual stream and its norm live through the layer; beside them the larger of attention (projections and
    output) and feed-forward layer; then the logits of the last token (arXiv:2309.06180, section 2).

    Four tokens of 2 (16 + 96 / 2) B and the 100 / 2 logits of 4 B:

    >>> float(_prefill_working_set(8.0, 12.0, 8.0, 32.0, 1.0, 100.0, 10.0, 4.0, 2.0, 2.0, 4.0))
    712.0
    """
    split = array(tensor_parallel)
    attention = array(projected_size) + array(attention_size)
    widest = np.maximum(attention, (2.0 + array(gated_mlp)) * array(ffn_hidden_size))
    tokens = np.minimum(array(prompt_length), array(prefill_tokens))
    layer = array(element_size) * tokens * (2.0 * array(hidden_size) + widest / split)
    return np.asarray(layer + array(logit_size) * array(vocab_size) / split)


def largest_batch(
    free_memory: Numeric,
    kv_cache_size: Numeric,
    working_set_size: Numeric,
    most_sequences: Numeric,
    pipeline_parallel: Numeric,
) -> Array:
    r"""Largest batch whose cache and working set fit beside the weights.

    A batch of b runs as p micro-batches of m = ceil(b / p) sequences. Its memory is the smaller of a line that grows
    with m and a constant, so the larger of the two solutions is the answer.

    .. math:: \max b : \quad b\,S_{kv} + \min(m, m_{max})\,S_w \le M

    Parameters
    ----------
    free_memory : numeric
        Memory M beside the weights. [B]
    kv_cache_size : numeric
        Cache S_kv of one sequence at its longest, above 0. [B]
    working_set_size : numeric
        Activations S_w of one sequence in a prefill pass, above 0. [B]
    most_sequences : numeric
        Sequences of one pass at most, 1 or more. [-]
    pipeline_parallel : numeric
        Stages p. [-]

    Returns
    -------
    batch_size : numeric
        Whole number; 0 if no sequence fits. [-]

    References
    ----------
    .. [1] W. Kwon et al., "Efficient memory management for large language model serving with PagedAttention", 2023,
       arXiv:2309.06180, section 2.

    >>> largest_batch(100.0, [10.0, 10.0], 5.0, [2.0, 100.0], 1.0).tolist()  # 100 >= 9 x 10 + 2 x 5; 100 >= 6 (10 + 5)
    [9.0, 6.0]
    """
    free, cache, work = array(free_memory), array(kv_cache_size), array(working_set_size)
    stages = array(pipeline_parallel)
    capped = np.floor(divide(free - array(most_sequences) * work, cache))
    rounds = np.floor(divide(free, stages * cache + work))
    more = np.floor(divide(free - (rounds + 1.0) * work, cache))
    growing = np.maximum(rounds * stages, more)
    return np.asarray(np.maximum(np.maximum(capped, growing), 0.0))


class BatchMemory(NamedTuple):
    """Memory of the fullest rank of a replica with its batch, (rows,). [B]"""

    weights: Array
    kv_cache: Array  # of the batch
    activations: Array  # of a prefill pass
    usable: Array  # limit for the three together

    @property
    def used(self) -> Array:
        """Weights, cache and activations together. [B]"""
        return np.asarray(self.weights + self.kv_cache + self.activations)


def most_running(plan: InferencePlan, room: Array) -> Array:
    """Largest number of requests that a replica runs together, (rows,): room, and the limit of the scheduler. [-]"""
    most = plan.max_running_batch
    return np.where(np.isnan(most), room, np.minimum(room, most))


class ReplicaMemory(NamedTuple):
    """Memory of the fullest rank of a replica, whatever its batch, (rows,)."""

    weights: Array  # of the rank [B]
    kv_cache_size: Array  # of one sequence at its longest, without the shared prefix, as in _cache_with_states [B]
    prefix_cache_size: Array  # of that prefix, once for each attention replica [B]
    in_flight_size: Array  # cache of the tokens of a prefill in flight, likewise [B]
    keys_size: Array  # keys and values of a sequence at its longest, without states and set-aside memory [B]
    working_set_size: Array  # activations of one sequence in a prefill pass [B]
    max_prefill_sequences: Array  # largest number of sequences in one prefill pass [-]
    capacity: Array  # memory of an accelerator [B]
    reserved: Array  # memory of its driver [B]
    budget: Array  # memory that the engine leaves for the cache, as in cache_budget [B]
    activation_share: Array  # share of the activations that the budget covers [-]
    max_batch_size: Array  # largest batch that fits, whole; 0 if no sequence fits [-]
    admitted: Array  # requests of a stream that run together: as many as fit with the room reserved for each [-]
    max_concurrency: Array  # cache memory over the cache of one sequence at its longest, as engines log it [-]

    @property
    def once(self) -> Array:
        """Cache that an attention replica holds once: of the shared prefix and of tokens in flight. [B]"""
        return np.asarray(self.prefix_cache_size + self.in_flight_size)

    def places(self, plan: InferencePlan) -> Array:
        """Requests that a replica runs at once, (rows,): as many as fit, up to the limit of the plan. [-]"""
        return most_running(plan, self.admitted)

    def filled(self, plan: InferencePlan) -> InferencePlan:
        """The plan with its batch limited to whole sequences at their longest."""
        batch = np.where(self.max_batch_size >= 1.0, np.minimum(plan.batch_size, self.max_batch_size), plan.batch_size)
        return plan.replaced(batch_size=batch)

    def with_batch(self, plan: InferencePlan) -> BatchMemory:
        """Memory with the batch of a plan that is otherwise the same."""
        own = np.ceil(plan.batch_size / plan.data_parallel_attention)
        prefilled = np.ceil(plan.micro_batch_size / plan.data_parallel_attention)
        activations = np.minimum(prefilled, self.max_prefill_sequences) * self.working_set_size
        usable = usable_memory(
            self.capacity, self.reserved, self.weights, activations, self.budget, self.activation_share
        )
        return BatchMemory(self.weights, own * self.kv_cache_size + self.once, activations, usable)


def _held_output(reserved_output: Numeric, together: Numeric, output_variation: Numeric = 0.0) -> Array:
    """Share of its output for which a request of a stream holds cache, mean over its life, a half to 1. [-]

    Requests that arrive at random times have written half of their outputs. An engine that never evicts reserves the
    whole output, one that preempts a share of the remainder (arXiv:2309.06180, section 4.5). A burst grows together,
    less the outputs that end early: with a coefficient of variation v, outputs end over a share sqrt(3) v of the time
    (heuristic, this work).

    >>> _held_output([0.0, 0.1, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]).tolist()
    [0.5, 0.55, 1.0, 1.0]
    >>> _held_output(0.0, 1.0, [0.0, 0.25, 1.0]).round(3).tolist()  # a burst; 1 - 0.433 of it still grows together
    [1.0, 0.783, 0.5]
    """
    grown = array(together) * (1.0 - np.minimum(_ROOT_OF_THREE * array(output_variation), 1.0))
    return np.asarray(0.5 * (1.0 + np.maximum(array(reserved_output), grown)))


def _sequence_activations(model: Model, plan: InferencePlan, architecture: Architecture) -> Array:
    """Activations of a sequence in a prefill pass, (rows,). [B]"""
    ranks = plan.attention_parallel
    projected = (model.num_attention_heads + 2.0 * model.num_query_groups) * model.head_size
    attended = model.num_attention_heads * model.head_size
    if architecture.latent_attention:
        projected = model.num_attention_heads * (2.0 * model.qk_head_size + model.v_head_size)
        attended = model.num_attention_heads * model.v_head_size
    if architecture.shapes:
        near = model.local
        projected = np.maximum(projected, (near.num_attention_heads + 2.0 * near.num_query_groups) * near.head_size)
        attended = np.maximum(attended, near.num_attention_heads * near.head_size)
    if architecture.linear_attention:
        # Queries with their gate; or all projections of linear attention and its output.
        projected = projected + model.attention_gate * attended
        whole = Shard(model, np.ones_like(ranks))
        keys, values = whole.linear_keys, whole.linear_values
        linear = np.where(model.num_linear_layers > 0.0, 2.0 * keys + 2.0 * values, 0.0)
        projected, attended = np.maximum(projected + attended, linear + values), 0.0 * attended
    widest = model.ffn_hidden_size
    if architecture.experts:
        copies = model.top_k * model.expert_ffn_hidden_size * ranks / plan.expert_tensor_parallel
        copies = copies * plan.data_parallel_attention / plan.expert_parallel + model.shared_ffn_hidden_size
        widest = np.where(model.num_dense_layers > 0.0, np.maximum(widest, copies), copies)
        # Outputs of experts before they are added up: a rank has those of all tokens unless tokens are dispatched.
        dispatched = plan.data_parallel_attention / plan.expert_parallel
        outputs = np.where(plan.data_parallel_attention > 1.0, dispatched, 1.0) * model.top_k * model.hidden_size
        widest = widest + outputs * ranks / (2.0 + model.gated_mlp)
    widths = model.hidden_size, projected, attended, widest, model.gated_mlp, model.vocab_size
    tokens = plan.own_tokens, plan.prefill_tokens
    working_set = _prefill_working_set(*widths, *tokens, ranks, plan.activation_size, WORD)
    # Beside their own keys and values, the ranks of a prompt hold those they work on and those on their way.
    elements = cache_elements(model, ranks, architecture.one_vector)
    passing = np.where(plan.context_parallel > 1.0, 2.0 * elements * plan.attention_size, 0.0)
    return np.asarray(working_set + passing * np.minimum(*tokens))


def _measured_at_start(model: Model, plan: InferencePlan, engine: dict[str, Array], activations: Array) -> Array:
    """Memory beside the weights that the engine measures before it sizes the cache, (rows,). [B]"""
    most = plan.max_running_batch / plan.data_parallel_attention
    requests = np.minimum(np.where(np.isnan(most), engine["sampled_requests"], most), plan.prefill_tokens)
    requests = requests * _share(plan, LayerPart.ATTENTION)  # accelerators for experts alone choose none
    hidden = plan.prefill_tokens * model.hidden_size * plan.activation_size
    ranks = plan.replica_ranks
    multicast = np.where(ranks > _LEAST_MULTICAST, engine["multicast_per_rank"], 0.0)
    runtime = (engine["runtime_per_rank"] + multicast) * ranks
    runtime = runtime + np.where(plan.graphs > 0.0, engine["graph_memory"], 0.0)
    return _sampling_peak(activations, hidden, requests, model.vocab_size, engine["sampled_logit_size"], runtime)


def memory_of(deployment: Deployment) -> ReplicaMemory:
    """Memory of the replicas of plans, the share of their engine, and the largest batch that fits.

    14.0 M weights in 16 bits; keys and values of 1,002 tokens of width 1,000 in 16 bits.

    >>> from ideal_machine import deployment
    >>> memory = memory_of(deployment())
    >>> memory.weights.tolist(), memory.kv_cache_size.tolist()
    ([28004000.0], [4008000.0])
    """
    model, plan, architecture = deployment.model, deployment.plan, deployment.architecture
    engine = {name: values[:, 0] for name, values in deployment.software.items() if name in _OF_ENGINE}
    capacity, reserved = deployment.device.memory_capacity[:, 0], deployment.reserved_memory
    weights = rank_weights_size(model, plan, architecture)
    sizes = cache_sizes(model, plan, architecture, engine, np.ones_like(capacity))
    once = sizes.prefix + sizes.in_flight
    working_set = _sequence_activations(model, plan, architecture)
    most = np.maximum(plan.prefill_tokens / plan.own_tokens, 1.0)
    outside = engine["reserve"] + engine["reserve_per_token"] * plan.prefill_tokens
    outside = outside + engine["reserve_per_rank"] * plan.replica_ranks
    shown = capacity - engine["driver_memory"]
    default = np.maximum(engine["memory_fraction"] - outside / shown, 0.0)
    share = np.where(np.isnan(plan.memory_fraction), default, plan.memory_fraction)
    beside = engine["runtime_per_rank"] * plan.replica_ranks
    budget = _cache_budget(shown, capacity - reserved - beside, weights, share, engine["of_free_memory"])
    covered = engine["activations_included"] * np.where(engine["of_free_memory"] > 0.0, share, 1.0)
    # What an engine measures at its start is taken off once for all batches.
    measures = engine["sampled_logit_size"] > 0.0
    budget = np.where(measures, budget - _measured_at_start(model, plan, engine, most * working_set), budget)
    covered = np.where(measures, 0.0, covered)
    # The batch fits what the engine takes, and the memory of the accelerator.
    rooms = (budget, covered), (capacity - reserved - weights, np.ones_like(capacity))

    def fitting(of_sequence: Array) -> Array:
        largest = [
            largest_batch(free - once, of_sequence, activations * working_set, most, plan.pipeline_parallel)
            for free, activations in rooms
        ]
        return np.asarray(np.minimum(*largest) * plan.data_parallel_attention)

    admitted = batch = fitting(sizes.sequence)
    run = np.maximum(plan.run_requests, 1.0)
    together = np.where(np.isnan(plan.concurrency / run), 0.0, np.minimum(plan.concurrency / run, 1.0))
    held = _held_output(engine["reserved_output"], together, plan.output_variation)
    if some(held < 1.0):
        mean = cache_sizes(model, plan, architecture, engine, held).sequence
        # One whole request has to fit before any runs.
        admitted = np.where(batch >= 1.0, np.maximum(fitting(mean), batch), batch)
    # In part, with the activations of a full prefill pass: at least the whole batch, and less than one more. An engine
    # with pages of tokens in flight counts them for each request.
    spare = np.minimum(*(free - sizes.prefix - activations * most * working_set for free, activations in rooms))
    ratio = np.maximum(divide(spare, sizes.sequence + sizes.in_flight), 0.0) * plan.data_parallel_attention
    concurrency = np.where(sizes.in_flight > 0.0, ratio, np.maximum(ratio, batch))
    sequence = sizes.sequence, sizes.prefix, sizes.in_flight, sizes.keys, working_set, most
    return ReplicaMemory(weights, *sequence, capacity, reserved, budget, covered, batch, admitted, concurrency)
