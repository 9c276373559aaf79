"""Memory of a serving rank: weights, key-value cache, activations of a prefill, and the largest batch that fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ceil_div, divide, some
from xlperf.equations.model.blocks import Shard
from xlperf.equations.model.cores import LOCAL, cores_of, keeps_states
from xlperf.equations.model.model import Architecture, Model
from xlperf.equations.model.operators import cache_elements, cache_ratio
from xlperf.equations.plan.records import WORD, HostCompute, OffloadTarget
from xlperf.equations.plan.serving_plan import InferencePlan, LayerPart, holds_weights
from xlperf.equations.serving.deployment import Deployment, rank_adapter_size, resident_adapters
from xlperf.equations.serving.queueing import ROOT_OF_THREE
from xlperf.equations.serving.weights import computed_share, host_weights_size, rank_weights_size

_BUFFERED_LAYERS = 2.0  # layers on the accelerator, one computing and one on its way, when others are in the host
_NARROW, _WIDE = 1.0, 2.0
"""Bytes of an element of an FP8 cache and of a 16-bit one. [B]"""
_SCALED = 1.03125
"""Bytes of an FP8 element with its share of a scale of 4 B for 128 elements. [B]"""
_GROUP, _WORDS = 64.0, 8.0
"""Elements with a scale of 1 B in models with one vector for keys and values, whose scales are multiples of 8 B."""
_PAGE, _WINDOW_PAGE, _ALIGNMENT = 256.0, 64.0, 576.0
"""Tokens of a page of compressed entries and of recent tokens; bytes that pages of FP8 latents are multiples of."""
_FEWEST_HEADS = 64.0  # heads of the smaller kernel of latent attention
_GATHERED = 4.0  # prompts whose entries are widened at once
_STATE_PAGES = (4.0, 8.0)
"""Tokens of a page of states that selected and that compressed layers compress. [-]"""


def _cache_with_states(cache_size: Numeric, states_size: Numeric, state_slots: Numeric, state_share: Numeric) -> Array:
    """Cache bytes per sequence of a hybrid model, including the memory that it leaves idle in the other pool.

    An engine with one pool gives keys, values and states what they need. One that splits its memory beforehand, with
    slots of states for each running request, has room for the smaller number of sequences of its two pools (SGLang,
    kv_cache_configurator.py: mamba-full-memory-ratio). One pool; keys of 60 in 0.6, five states of 20 in 0.4; keys of
    180 in the same:

    >>> _cache_with_states([60.0, 60.0, 180.0], 20.0, [1.0, 5.0, 5.0], [0.0, 0.4, 0.4]).round(9).tolist()
    [80.0, 250.0, 300.0]
    """
    keys, states, share = array(cache_size), array(state_slots) * array(states_size), array(state_share)
    pools = np.maximum(divide(keys, 1.0 - share), divide(states, share))
    return np.asarray(np.where(share > 0.0, pools, keys + states) + 0.0 * (keys + states + share))


_ALIKE = 1.25
"""Ratio of the layers of two kinds up to which the larger number is the size of their groups. [-]"""


def _padded_share(layers: Array, others: Array) -> Array:
    """Layers of a kind with those that fill its last group over its own: an engine gives pages to groups of layers of
    one kind, as many in each group as the rarer kind has (vLLM v1/core/kv_cache_utils.py,
    _get_kv_cache_groups_uniform_page_size: "Add 8 padding layers" for Gemma-3-27B).

    >>> _padded_share(np.array([52.0, 10.0, 18.0, 4.0]), np.array([10.0, 52.0, 18.0, 0.0])).round(3).tolist()
    [1.154, 1.0, 1.0, 1.0]
    """
    least, most = np.minimum(layers, others), np.maximum(layers, others)
    group = np.where(most < _ALIKE * least, most, least)
    return np.where(least > 0.0, divide(ceil_div(layers, np.maximum(group, 1.0)) * group, layers), 1.0)


def _cache_tokens(
    model: Model, plan: InferencePlan, architecture: Architecture, context: Array, whole: Array, batches: Array
) -> Array:
    """Cached tokens of a context on one of its ranks, mean over the layers. ``whole``: windows are cached whole;
    with ``batches`` in flight, layers with a window and others have pages by groups. [-]
    """
    whole = 0.0 * whole if architecture.sparse_attention else whole
    caching = ((core, core.entries) for core in cores_of(architecture))
    far, near = cache_ratio(model, plan.attention_parallel, architecture)
    if some(model.num_local_layers > 0.0) and not architecture.sparse_attention:
        local, grouped = model.num_local_layers, batches > 0.0
        far = far * np.where(grouped, _padded_share(model.num_global_layers, local), 1.0)
        near = near * np.where(grouped, _padded_share(local, model.num_global_layers), 1.0)
    entries = [
        core.layers(model) * cached(model, context, whole, plan.context_parallel) * (near if core is LOCAL else far)
        for core, cached in caching
        if cached is not None
    ]
    return np.asarray(sum(entries[1:], entries[0]) / model.num_layers)


def rank_states_size(model: Model, plan: InferencePlan, architecture: Architecture) -> Array:
    """States of a sequence on the fullest stage, (rows,), excluding those of drafts. [B]"""
    layers = np.ceil(model.num_layers / plan.pipeline_parallel) + plan.layers_drafted
    shard, states = Shard(model, plan.attention_parallel), np.zeros_like(layers)
    for core in cores_of(architecture):
        if core.state is not None:
            states = states + layers * core.share(model) * core.state(shard, plan.activation_size)
    return states


def _element_size(model: Model, plan: InferencePlan, architecture: Architecture, scaled: Array) -> Array:
    """Bytes of an element of the cache, mean over a vector, (rows,). [B] Latent vectors of sparse attention in FP8 have
    scales of groups, and their rotated part in 16 bits (FlashMLA: 656 B for 512 + 64 elements; 584 B for 448 + 64).
    """
    if not (architecture.sparse_attention and architecture.one_vector):
        return plan.kv_size
    width = np.where(model.shared_key_value > 0.0, model.head_size, model.kv_lora_rank + model.qk_rope_head_size)
    rotated = divide(model.qk_rope_head_size, width)
    plain = (1.0 - rotated) * width
    scales = ceil_div(plain, _GROUP * _WORDS) * _WORDS
    scaled_size = np.where(model.shared_key_value > 0.0, 1.0 + divide(scales, plain), _SCALED)
    narrow = (1.0 - rotated) * scaled_size + rotated * _WIDE
    return np.where((plan.kv_size == _NARROW) & (scaled > 0.0), narrow, plan.kv_size)


def _tokens_in_flight(window: Array, batch_tokens: Array | float, context: Array) -> Array:
    """Tokens for which a layer with a window holds pages in a prefill, with ``batch_tokens`` in passes. [-]

    Source: vLLM, v1/kv_cache_interface.py, SlidingWindowSpec.max_admission_blocks_per_request. A window of 128 tokens
    and a pass of 8,192:

    >>> _tokens_in_flight(128.0, 8192.0, np.array([100.0, 1e6])).tolist()
    [100.0, 8319.0]
    """
    return np.asarray(np.minimum(window - 1.0 + batch_tokens, context))


def _local_in_flight(model: Model, plan: InferencePlan, batches: Array, token_size: Array, context: Array) -> Array:
    """Pages that layers with a window hold during the prefill of a request, beside their window, (rows,). [B]"""
    window = np.where(np.isfinite(model.window), model.window, 0.0)
    held = _tokens_in_flight(window, batches * plan.prefill_tokens, context) - np.minimum(window, context)
    local = model.num_local_layers * _padded_share(model.num_local_layers, model.num_global_layers)
    share = np.where(batches > 0.0, local / model.num_layers, 0.0)
    return np.asarray(share * token_size * np.maximum(held, 0.0) / plan.context_parallel)


def _compressed_pages(
    model: Model, batch_tokens: Array, context: Array, element_size: Array, even: Array
) -> tuple[Array, Array]:
    """Pages of a request with compressed entries while it decodes, and those of its prefill beside them, (rows,). [B]

    All pages are as large as the entries of 256 tokens in all layers: selected and compressed entries, and index keys.
    The window of each layer, and the FP32 states that layers compress (keys and scores, of twice the ratio where
    entries overlap), take pages of fewer tokens from the same pool (vLLM 0.20 v1/core/kv_cache_utils.py; vLLM issue
    54703 lists pages of 1,002,240 B of DeepSeek-V4-Flash: 256, 64, 64, 4 and 8 tokens). With ``even`` pages, all kinds
    have as many layers as the largest group of one kind: 22 of 43 windows (vLLM issue 44376, release 0.22).
    """
    aligned = np.where(element_size < _WIDE, _ALIGNMENT, 1.0)

    def page(entries: Array | float, size: Array) -> Array:
        return np.asarray(ceil_div(entries * size, aligned) * aligned)

    vector, key = model.head_size * element_size, model.index_size * model.index_key_size
    selected, compressed, indexes = model.num_selected_layers, model.num_compressed_layers, model.num_index_layers
    windows, most = model.num_local_layers + selected + compressed, np.maximum(selected, compressed)
    # Layers of each kind once kinds have as many layers as the largest group; 0 if pages are not even.
    groups = np.maximum(np.round(divide(windows, most)), 1.0)
    layers = np.where(even > 0.0, np.maximum(most, ceil_div(windows, groups)), 0.0)
    # Bytes of a page of all layers, and how many such pages the windows of the layers take.
    stride = np.maximum(selected, layers) * page(_PAGE / model.selected_ratio, vector)
    stride = stride + np.maximum(indexes, layers) * page(_PAGE / model.selected_ratio, key)
    stride = stride + np.maximum(compressed, layers) * page(_PAGE / model.compressed_ratio, vector)
    of_windows = ceil_div(windows * page(_WINDOW_PAGE, vector), stride)
    selected_page, compressed_page = _STATE_PAGES
    overlapping = 2.0 * model.selected_ratio

    def pages(in_flight: Array | float) -> Array:
        """Pages with so many tokens in passes: of entries, of windows, and of states."""

        def window_pages(window: Array, page_tokens: float) -> Array:
            return np.asarray(ceil_div(_tokens_in_flight(window, in_flight, context), page_tokens) + 1.0)

        states = np.where(selected > 0.0, window_pages(overlapping, selected_page), 0.0)
        states = states + np.where(compressed > 0.0, window_pages(model.compressed_ratio, compressed_page), 0.0)
        windows = of_windows * window_pages(model.sparse_window, _WINDOW_PAGE)
        return np.asarray(ceil_div(context, _PAGE) + windows + states)

    # A request that decodes has one token in a pass; its prefill has more.
    decoding = pages(1.0)
    return stride * decoding, stride * np.maximum(pages(batch_tokens) - decoding, 0.0)


class CacheSizes(NamedTuple):
    """Cache of one sequence on the fullest rank, (rows,). [B]"""

    sequence: Array  # with its states
    prefix: Array  # shared prefix
    keys: Array  # keys and values of the sequence, without states and set-aside memory
    in_flight: Array  # pages of a prefill beside the sequence, of one request at a time
    offloaded: Array  # keys and values of the sequence and of the shared prefix in the host's memory


def cache_sizes(
    model: Model, plan: InferencePlan, architecture: Architecture, engine: Mapping[str, Array], held: Array
) -> CacheSizes:
    """Cache of one sequence with a share ``held`` of its output, of the shared prefix, and of tokens in flight."""
    whole = engine["whole_history"]
    layers = np.ceil(model.num_layers / plan.pipeline_parallel) + plan.layers_drafted
    token_size = layers * cache_elements(model, plan.attention_parallel, architecture.one_vector)
    element = _element_size(model, plan, architecture, engine["scaled_latents"])
    own_context = plan.new_tokens + held * plan.running_output
    batches = engine["in_flight_batches"] * (1.0 - whole)
    cache = token_size * _cache_tokens(model, plan, architecture, own_context, whole, batches) * element
    prefix = token_size * _cache_tokens(model, plan, architecture, plan.prefix_tokens, whole, batches) * element
    offloaded = np.where(plan.offload_target == OffloadTarget.HOST, plan.kv_offload, 0.0) * (cache + prefix)
    if some(plan.kv_offload > 0.0):  # two layers on their way stay
        on_device = 1.0 - plan.kv_offload * np.maximum(1.0 - _BUFFERED_LAYERS / layers, 0.0)
        cache, prefix = cache * on_device, prefix * on_device
    # Index keys of sparse attention.
    for core in cores_of(architecture):
        if core.index is not None:
            keys = layers * core.share(model) * core.index(model)
            cache, prefix = cache + keys * own_context, prefix + keys * plan.prefix_tokens
    in_flight = _local_in_flight(model, plan, batches, token_size * element, own_context)
    if architecture.sparse_attention:
        # drafts attend within the window
        stages = np.ceil(model.num_layers / plan.pipeline_parallel) / model.num_layers
        paged, prefilling = _compressed_pages(
            model, engine["in_flight_batches"] * plan.prefill_tokens, own_context, element, engine["even_pages"]
        )
        pages = (engine["in_flight_batches"] > 0.0) & _compresses(model)
        cache = np.where(pages, stages * paged, cache)
        in_flight = np.where(pages, stages * prefilling, in_flight)
    if not keeps_states(architecture):
        return CacheSizes(cache, prefix, cache, in_flight, offloaded)
    state = rank_states_size(model, plan, architecture)
    slots = np.where(np.isnan(plan.state_slots), engine["state_slots"], plan.state_slots)
    # States of a limited number of requests and of no prefix are counted; keys and values have the rest.
    counted = (slots == 1.0) & ~np.isnan(plan.max_running_batch)
    share = np.where((state > 0.0) & ~counted, engine["state_share"], 0.0)
    first = np.where(plan.prefix_tokens > 0.0, state, 0.0)
    whole_sequence = _cache_with_states(cache, state, slots + plan.draft_tokens, share)
    return CacheSizes(whole_sequence, _cache_with_states(prefix, first, 1.0, share), cache, in_flight, offloaded)


_LEAST_MULTICAST = 2.0
"""Ranks up to which collectives do not add up in the switch. [-]"""


def _cache_budget(shown: Numeric, free: Numeric, weights: Numeric, share: Numeric, of_free: Numeric) -> Array:
    """Bytes for the cache and covered activations: a share of the whole memory that an engine sees, weights included
    (vLLM, gpu_memory_utilization), or of the memory that weights leave (TensorRT-LLM, free_gpu_memory_fraction).

    >>> _cache_budget(80.0, 79.0, 70.0, 0.9, [0.0, 1.0]).tolist()
    [2.0, 8.1]
    """
    whole, left = array(share) * array(shown) - array(weights), array(share) * (array(free) - array(weights))
    return np.asarray(np.where(array(of_free) > 0.0, left, whole) + 0.0 * (left + whole + array(of_free)))


def _sampling_peak(
    activations: Array, hidden: Array, requests: Numeric, vocab_size: Array, logit_size: Numeric
) -> Array:
    """Bytes of the longest prefill, or of its hidden states with the logits of sampled requests."""
    sampled = array(hidden) + array(requests) * array(vocab_size) * array(logit_size)
    return np.asarray(np.maximum(array(activations), sampled))


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

    Source: NVIDIA, TensorRT-LLM documentation, "Memory usage of TensorRT-LLM".

    >>> float(usable_memory(80.0, 1.0, 20.0, 4.0, 50.0, 1.0)), float(usable_memory(80.0, 1.0, 20.0, 4.0, 70.0, 0.0))
    (70.0, 79.0)

    Parameters
    ----------
    memory_capacity : Memory C of the accelerator. [B]
    reserved_memory : Memory R of the driver. [B]
    weights_size : Weights S_w of one rank. [B]
    activations_size : Activations S_a of a prefill pass. [B]
    cache_budget : Bytes B that the engine leaves for the cache, from :func:`_cache_budget`. [B]
    activation_share : Share s of the activations that this budget covers. [-]

    Returns
    -------
    size : For weights, cache and activations together. [B]
    """
    activations = array(activations_size)
    covered = array(weights_size) + activations + array(cache_budget) - array(activation_share) * activations
    return np.asarray(np.minimum(covered, array(memory_capacity) - array(reserved_memory)))


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

    Source: W. Kwon et al., "Efficient memory management for large language model serving with PagedAttention", 2023,
    arXiv:2309.06180, section 2.

    >>> largest_batch(100.0, [10.0, 10.0], 5.0, [2.0, 100.0], 1.0).tolist()  # 100 >= 9 x 10 + 2 x 5; 100 >= 6 (10 + 5)
    [9.0, 6.0]

    Parameters
    ----------
    free_memory : Memory M beside the weights. [B]
    kv_cache_size : Cache S_kv of one sequence at its longest, above 0. [B]
    working_set_size : Activations S_w of one sequence in a prefill pass, above 0. [B]
    most_sequences : Sequences of one pass at most, 1 or more. [-]
    pipeline_parallel : Stages p. [-]

    Returns
    -------
    batch_size : Whole number; 0 if no sequence fits. [-]
    """
    free, cache, work = array(free_memory), array(kv_cache_size), array(working_set_size)
    stages = array(pipeline_parallel)
    # Micro-batches of the most sequences of a pass; or of m = rounds sequences, and some of m + 1.
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
    host: Array | float = 0.0  # in the memory of the host, for an accelerator

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
    adapters: Array  # resident adapters, part of the weights [B]
    adapter_load_time: Array  # mean time in which a request's adapter comes from the host [s]
    host_size: Array  # weights and adapters in the memory of the host, for an accelerator [B]
    host_cache_size: Array  # cache of a sequence in the memory of the host, likewise [B]
    host_capacity: Array  # memory of the host, likewise [B]

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
        host = self.host_size + own * self.host_cache_size
        return BatchMemory(self.weights, own * self.kv_cache_size + self.once, activations, usable, host)


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
    grown = array(together) * (1.0 - np.minimum(ROOT_OF_THREE * array(output_variation), 1.0))
    return np.asarray(0.5 * (1.0 + np.maximum(array(reserved_output), grown)))


def _compresses(model: Model) -> np.ndarray:
    """Whether some layers cache compressed entries, (rows,)."""
    return np.asarray((model.selected_ratio > 1.0) | (model.num_compressed_layers > 0.0))


def _kernel_heads(model: Model, ranks: Array) -> Array:
    """Heads of outputs, and of queries beside those projected, that the ranks of a replica hold for kernels of 64 or
    128 heads (vLLM models/deepseek_v4.py: padded_heads, FlashMLA). [-]
    """
    own = model.num_attention_heads / ranks
    padded = np.where(own <= _FEWEST_HEADS, _FEWEST_HEADS, np.maximum(own, 2.0 * _FEWEST_HEADS))
    return np.asarray(ranks * padded * np.where(own < padded, 2.0, 1.0))


def _gathered_size(model: Model, plan: InferencePlan) -> Array:
    """Entries and recent tokens of the prompts of a prefill that layers with compressed entries widen to 16 bits, for
    four prompts of the longest context (vLLM models/deepseek_v4/nvidia/flashmla.py, PREFILL_CHUNK_SIZE). [B]
    """
    longest = np.fmax(plan.max_context, plan.context_length)
    entries = longest / np.maximum(model.selected_ratio, 1.0) + model.sparse_window + plan.prefill_tokens
    return np.asarray(np.where(_compresses(model), _GATHERED * entries * model.head_size * _WIDE, 0.0))


def _sequence_activations(model: Model, plan: InferencePlan, architecture: Architecture) -> Array:
    """Activations of a sequence in a prefill pass, (rows,). [B]"""
    ranks = plan.attention_parallel
    projected = (model.num_attention_heads + 2.0 * model.num_query_groups) * model.head_size
    attended = model.num_attention_heads * model.head_size
    if architecture.latent_attention:
        projected = model.num_attention_heads * (2.0 * model.qk_head_size + model.v_head_size)
        attended = model.num_attention_heads * model.v_head_size
    if architecture.sparse_attention:
        attended = np.where(_compresses(model), _kernel_heads(model, ranks) * model.head_size, attended)
    if architecture.shapes:
        near = model.local
        projected = np.maximum(projected, (near.num_attention_heads + 2.0 * near.num_query_groups) * near.head_size)
        attended = np.maximum(attended, near.num_attention_heads * near.head_size)
    projected = projected + model.attention_gate * attended  # queries with their gate
    if architecture.linear_attention:
        # Or all projections of linear attention and its output.
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
    # The residual streams and their norm (of several, those that a block reads and those that it writes) live through
    # the layer; beside them the larger of attention (projections and output) and feed-forward layer; then the logits of
    # the last token (arXiv:2309.06180, section 2; vLLM models/deepseek_v4.py, hc_pre and hc_post).
    widest = np.maximum(projected + attended, (2.0 + model.gated_mlp) * widest)
    tokens = np.minimum(plan.own_tokens, plan.prefill_tokens)
    working_set = plan.activation_size * tokens * (2.0 * model.residual_streams * model.hidden_size + widest / ranks)
    working_set = working_set + WORD * model.vocab_size / ranks
    # Beside their own keys and values, the ranks of a prompt hold those they work on and those on their way.
    elements = cache_elements(model, ranks, architecture.one_vector)
    passing = np.where(plan.context_parallel > 1.0, 2.0 * elements * plan.attention_size, 0.0)
    return np.asarray(working_set + passing * tokens)


def _measured_at_start(
    model: Model, plan: InferencePlan, architecture: Architecture, engine: dict[str, Array], activations: Array
) -> Array:
    """Bytes beside the weights that an engine measures before it gives the rest of its share to the cache, (rows,).

    It runs its longest prefill with dummy tokens, then samples a token for each of the most requests: their logits in
    16 and 32 bits, sorted, with indices and the sort buffer, beside the hidden states of the prefill (llm-d-benchmark,
    config_explorer/empirical-vllm-memory-results.md, 2025: eight starts of vLLM on H100).
    """
    most = plan.max_running_batch / plan.data_parallel_attention
    requests = np.minimum(np.where(np.isnan(most), engine["sampled_requests"], most), plan.prefill_tokens)
    requests = requests * computed_share(plan, LayerPart.ATTENTION)  # accelerators for experts alone choose none
    hidden = plan.prefill_tokens * model.hidden_size * plan.activation_size
    ranks = plan.replica_ranks
    multicast = np.where(ranks > _LEAST_MULTICAST, engine["multicast_per_rank"], 0.0)
    runtime = (engine["runtime_per_rank"] + multicast) * ranks
    runtime = runtime + np.where(plan.graphs > 0.0, engine["graph_memory"], 0.0)
    decoder = _sampling_peak(activations, hidden, requests, model.vocab_size, engine["sampled_logit_size"])
    if "encoder_peak" in engine:  # the largest images are encoded first, and their tokens kept
        decoder = np.maximum(decoder + engine["encoder_kept"], engine["encoder_peak"])
    if architecture.sparse_attention:
        runtime = runtime + _gathered_size(model, plan)
    return np.asarray(decoder + runtime)


def memory_of(deployment: Deployment) -> ReplicaMemory:
    """Memory of the replicas of plans, the share of their engine, and the largest batch that fits.

    14.0 M weights in 16 bits; keys and values of 1,002 tokens of width 1,000 in 16 bits.

    >>> from ideal_machine import deployment
    >>> memory = memory_of(deployment())
    >>> memory.weights.tolist(), memory.kv_cache_size.tolist()
    ([28004000.0], [4008000.0])
    """
    model, plan, architecture = deployment.model, deployment.plan, deployment.architecture
    engine = {name: values[:, 0] for name, values in deployment.software.items()}
    capacity, reserved = deployment.device.memory_capacity[:, 0], deployment.reserved_memory
    weights, host_size = rank_weights_size(model, plan, architecture), np.zeros_like(capacity)
    if holds_weights(plan):
        host_size = host_weights_size(model, plan, architecture)
        # Of weights that move in each step, two layers are on the accelerator.
        stages = np.ceil(model.num_layers / plan.pipeline_parallel) + plan.layers_drafted
        buffered = np.where(plan.host_compute == HostCompute.STREAM, np.minimum(_BUFFERED_LAYERS / stages, 1.0), 0.0)
        weights = weights - host_size * (1.0 - buffered)
    adapter, resident = rank_adapter_size(model, plan), resident_adapters(plan)
    weights, host_size = weights + resident * adapter, host_size + (plan.adapters - resident) * adapter
    if "encoder_memory" in engine:
        weights = weights + engine["encoder_memory"]
    sizes = cache_sizes(model, plan, architecture, engine, np.ones_like(capacity))
    once = sizes.prefix + sizes.in_flight
    working_set = _sequence_activations(model, plan, architecture)
    most = np.maximum(plan.prefill_tokens / plan.own_tokens, 1.0)
    # The share of the memory that the engine takes, less what it sets aside for passes and ranks.
    outside = engine["reserve"] + engine["reserve_per_token"] * plan.prefill_tokens
    outside = outside + engine["reserve_per_rank"] * plan.replica_ranks
    shown = capacity - engine["driver_memory"]
    default = np.maximum(engine["memory_fraction"] - outside / shown, 0.0) * engine.get("encoder_share", 1.0)
    share = np.where(np.isnan(plan.memory_fraction), default, plan.memory_fraction)
    beside = engine["runtime_per_rank"] * plan.replica_ranks
    # What an engine measures at its start is taken off once for all batches; others count what collectives leave.
    measures = engine["sampled_logit_size"] > 0.0
    seen = np.where(measures, shown, shown - beside)
    budget = _cache_budget(seen, capacity - reserved - beside, weights, share, engine["of_free_memory"])
    covered = engine["activations_included"] * np.where(engine["of_free_memory"] > 0.0, share, 1.0)
    budget = np.where(
        measures, budget - _measured_at_start(model, plan, architecture, engine, most * working_set), budget
    )
    covered = np.where(measures, 0.0, covered)
    # Sequences of which the host has room for the part of the cache that is there.
    ranks = engine["ranks"]
    left = deployment.device.host_memory_capacity[:, 0] - ranks * host_size
    hosted = np.floor(np.maximum(divide(left, ranks * sizes.offloaded, np.inf), 0.0))
    # The batch fits what the engine takes, and the memory of the accelerator.
    rooms = (budget, covered), (capacity - reserved - weights, np.ones_like(capacity))

    def fitting(of_sequence: Array) -> Array:
        largest = [
            largest_batch(free - once, of_sequence, activations * working_set, most, plan.pipeline_parallel)
            for free, activations in rooms
        ]
        return np.asarray(np.minimum(np.minimum(*largest), hosted) * plan.data_parallel_attention)

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
    host = (
        resident * adapter,
        deployment.adapter_load_time,
        ranks * host_size,
        ranks * sizes.offloaded,
        deployment.device.host_memory_capacity[:, 0],
    )
    return ReplicaMemory(weights, *sequence, capacity, reserved, budget, covered, batch, admitted, concurrency, *host)
