"""Cache of a request on a serving rank: keys and values, index keys, states, and pages of tokens in flight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ceil_div, divide, some
from xlperf.equations.model.blocks import Shard
from xlperf.equations.model.cores import LOCAL, cores_of, keeps_states
from xlperf.equations.model.model import Architecture, Model
from xlperf.equations.model.serving import cache_elements, cache_ratio
from xlperf.equations.plan.serving_plan import InferencePlan

_BUFFERED_LAYERS = 2.0
_NARROW, _WIDE = 1.0, 2.0
"""Bytes of an element of an FP8 cache and of a 16-bit one. [B]"""
_SCALED = 1.03125
"""Bytes of an FP8 element with its share of a scale: 4 B for 128 elements, or 1 B for 64 rounded up. [B]"""
_PAGE, _WINDOW_PAGE, _ALIGNMENT = 256.0, 64.0, 576.0
"""Tokens of a page of compressed entries and of recent tokens; bytes that pages of FP8 latents are multiples of."""
_STATE_PAGES = (4.0, 8.0)
"""Tokens of a page of states that selected and that compressed layers compress. [-]"""


def _cache_with_states(cache_size: Numeric, states_size: Numeric, state_slots: Numeric, state_share: Numeric) -> Array:
    """Cache bytes per sequence of a hybrid model, including the memory that it leaves idle in the other pool.

    An engine with one pool gives keys, values and states what they need. One that splits its memory beforehand, with
    slots of states for each running request, has room for the smaller number of sequences of its two pools (SGLang,
    kv_cache_configurator.py: mamba-full-memory-ratio).

    One pool; keys of 60 in 0.6, five states of 20 in 0.4; keys of 180 in the same:

    >>> _cache_with_states([60.0, 60.0, 180.0], 20.0, [1.0, 5.0, 5.0], [0.0, 0.4, 0.4]).round(9).tolist()
    [80.0, 250.0, 300.0]
    """
    keys, states, share = array(cache_size), array(state_slots) * array(states_size), array(state_share)
    pools = np.maximum(divide(keys, 1.0 - share), divide(states, share))
    return np.asarray(np.where(share > 0.0, pools, keys + states) + 0.0 * (keys + states + share))


def _cache_tokens(model: Model, plan: InferencePlan, architecture: Architecture, context: Array, whole: Array) -> Array:
    """Cached tokens of a context on one of the ranks that share it, mean over the layers, (rows,). [-]

    ``whole``: 1 if the engine holds the whole history of windowed layers, which sparse attention never needs.
    """
    whole = 0.0 * whole if architecture.sparse_attention else whole
    caching = ((core, core.entries) for core in cores_of(architecture))
    far, near = cache_ratio(model, plan.attention_parallel, architecture)
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
    """Bytes of an element of the cache, mean over a vector, (rows,). [B]

    Latent vectors of sparse attention in FP8 have scales of groups, and their rotated part in 16 bits (FlashMLA:
    656 B for 512 + 64 elements; 584 B for 448 + 64).
    """
    if not (architecture.sparse_attention and architecture.one_vector):
        return plan.kv_size
    width = np.where(model.shared_key_value > 0.0, model.head_size, model.kv_lora_rank + model.qk_rope_head_size)
    rotated = divide(model.qk_rope_head_size, width)
    narrow = (1.0 - rotated) * _SCALED + rotated * _WIDE
    return np.where((plan.kv_size == _NARROW) & (scaled > 0.0), narrow, plan.kv_size)


def tokens_in_flight(window: Numeric, batch_tokens: Numeric, context: Numeric) -> Array:
    r"""Tokens of a layer that attends within a window for which a prefill holds pages.

    .. math:: n = \min\left(w - 1 + b,\ c\right)

    Parameters
    ----------
    window : numeric
        Window w of the layer. [-]
    batch_tokens : numeric
        Tokens b of the passes that are in flight. [-]
    context : numeric
        Tokens c of the request. [-]

    Returns
    -------
    tokens : numeric
        Tokens with pages. [-]

    References
    ----------
    .. [1] vLLM, v1/kv_cache_interface.py, SlidingWindowSpec.max_admission_blocks_per_request.

    Examples
    --------
    A window of 128 tokens and a pass of 8,192:

    >>> tokens_in_flight(128.0, 8192.0, [100.0, 1e6]).tolist()
    [100.0, 8319.0]
    """
    return np.asarray(np.minimum(array(window) - 1.0 + array(batch_tokens), array(context)))


def _local_in_flight(
    model: Model, plan: InferencePlan, engine: Mapping[str, Array], token_size: Array, context: Array
) -> Array:
    """Pages that layers with a window hold during the prefill of a request, beside their window, (rows,). [B]"""
    batches = engine["in_flight_batches"] * (1.0 - engine["whole_history"])
    window = np.where(np.isfinite(model.window), model.window, 0.0)
    held = tokens_in_flight(window, batches * plan.prefill_tokens, context) - np.minimum(window, context)
    share = np.where(batches > 0.0, model.num_local_layers / model.num_layers, 0.0)
    return np.asarray(share * token_size * np.maximum(held, 0.0) / plan.context_parallel)


def _compressed_pages(model: Model, batch_tokens: Array, context: Array, element_size: Array) -> tuple[Array, Array]:
    """Pages of a request with compressed entries while it decodes, and those of its prefill beside them, (rows,). [B]

    All pages are as large as the entries of 256 tokens in all layers: selected and compressed entries, and index keys.
    The window of each layer, and the FP32 states that layers compress (keys and scores, of twice the ratio where
    entries overlap), take pages of fewer tokens from the same pool (vLLM 0.20 v1/core/kv_cache_utils.py; vLLM issue
    54703 lists pages of 1,002,240 B of DeepSeek-V4-Flash: 256, 64, 64, 4 and 8 tokens).
    """
    aligned = np.where(element_size < _WIDE, _ALIGNMENT, 1.0)

    def page(entries: Array | float, size: Array) -> Array:
        return np.asarray(ceil_div(entries * size, aligned) * aligned)

    vector, key = model.head_size * element_size, model.index_size * model.index_key_size
    selected, compressed, indexes = model.num_selected_layers, model.num_compressed_layers, model.num_index_layers
    stride = selected * page(_PAGE / model.selected_ratio, vector) + indexes * page(_PAGE / model.selected_ratio, key)
    stride = stride + compressed * page(_PAGE / model.compressed_ratio, vector)
    windows = model.num_local_layers + selected + compressed
    of_windows = ceil_div(windows * page(_WINDOW_PAGE, vector), stride)
    first, second = _STATE_PAGES
    overlapping = 2.0 * model.selected_ratio

    def pages(in_flight: Array | float) -> Array:
        def of(window: Array, tokens: float) -> Array:
            return np.asarray(ceil_div(tokens_in_flight(window, in_flight, context), tokens) + 1.0)

        states = np.where(selected > 0.0, of(overlapping, first), 0.0)
        states = states + np.where(compressed > 0.0, of(model.compressed_ratio, second), 0.0)
        return np.asarray(ceil_div(context, _PAGE) + of_windows * of(model.sparse_window, _WINDOW_PAGE) + states)

    decoding = pages(1.0)
    return stride * decoding, stride * np.maximum(pages(batch_tokens) - decoding, 0.0)


class CacheSizes(NamedTuple):
    """Cache of one sequence on the fullest rank, (rows,). [B]"""

    sequence: Array  # with its states
    prefix: Array  # shared prefix
    keys: Array  # keys and values of the sequence, without states and set-aside memory
    in_flight: Array  # pages of a prefill beside the sequence, of one request at a time


def cache_sizes(
    model: Model, plan: InferencePlan, architecture: Architecture, engine: Mapping[str, Array], held: Array
) -> CacheSizes:
    """Cache of one sequence with a share ``held`` of its output, of the shared prefix, and of tokens in flight."""
    whole = engine["whole_history"]
    layers = np.ceil(model.num_layers / plan.pipeline_parallel) + plan.layers_drafted
    token_size = layers * cache_elements(model, plan.attention_parallel, architecture.one_vector)
    element = _element_size(model, plan, architecture, engine["scaled_latents"])
    own_context = plan.new_tokens + held * plan.running_output
    cache = token_size * _cache_tokens(model, plan, architecture, own_context, whole) * element
    prefix = token_size * _cache_tokens(model, plan, architecture, plan.prefix_tokens, whole) * element
    if some(plan.kv_offload > 0.0):  # two layers on their way stay
        here = 1.0 - plan.kv_offload * np.maximum(1.0 - _BUFFERED_LAYERS / layers, 0.0)
        cache, prefix = cache * here, prefix * here
    for core in cores_of(architecture):
        if core.index is not None:
            keys = layers * core.share(model) * core.index(model)
            cache, prefix = cache + keys * own_context, prefix + keys * plan.prefix_tokens
    in_flight = _local_in_flight(model, plan, engine, token_size * element, own_context)
    if architecture.sparse_attention:
        stages = layers / model.num_layers
        paged, flying = _compressed_pages(
            model, engine["in_flight_batches"] * plan.prefill_tokens, own_context, element
        )
        pages = (engine["in_flight_batches"] > 0.0) & (
            (model.selected_ratio > 1.0) | (model.num_compressed_layers > 0.0)
        )
        cache = np.where(pages, stages * paged, cache)
        in_flight = np.where(pages, stages * flying, in_flight)
    if not keeps_states(architecture):
        return CacheSizes(cache, prefix, cache, in_flight)
    state = rank_states_size(model, plan, architecture)
    slots = np.where(np.isnan(plan.state_slots), engine["state_slots"], plan.state_slots)
    # States of a limited number of requests and of no prefix are counted; keys and values have the rest.
    counted = (slots == 1.0) & ~np.isnan(plan.max_running_batch)
    share = np.where((state > 0.0) & ~counted, engine["state_share"], 0.0)
    first = np.where(plan.prefix_tokens > 0.0, state, 0.0)
    whole_sequence = _cache_with_states(cache, state, slots + plan.draft_tokens, share)
    return CacheSizes(whole_sequence, _cache_with_states(prefix, first, 1.0, share), cache, in_flight)
