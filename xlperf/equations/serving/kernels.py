"""Kernels of a served layer with their FLOP, traffic and time: GEMMs, dense, sparse and linear attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, beside, ceil_div, some, total
from xlperf.equations.hardware.attention import (
    attention_time,
    core_attention_flop,
    decode_attention_time,
    engine_decode_attention_time,
    tiled_heads,
    visible_pairs,
)
from xlperf.equations.hardware.gemm import gemm_time
from xlperf.equations.hardware.roofline import CORE, WIDE, MatrixRate, linear_attention_time, transfer_time, vector_time
from xlperf.equations.model.blocks import Shard
from xlperf.equations.model.linear_attention import (
    chunked_scan,
    recurrent_state_size,
    recurrent_step_flop,
    recurrent_step_traffic,
)
from xlperf.equations.model.model import Architecture, Model
from xlperf.equations.model.serving import (
    BOTH_PHASES,
    DECODING,
    FEED_FORWARD_OPERATORS,
    PREFILL,
    ServingGemms,
    attention_calls,
    cache_elements,
)
from xlperf.equations.model.sparse_attention import (
    ATTENTION_KINDS,
    entries_seen,
    index_flop,
    index_traffic,
    scores_per_entry,
)
from xlperf.equations.plan.records import WORD
from xlperf.equations.plan.serving_plan import InferencePlan, LayerPart
from xlperf.equations.serving.deployment import Batching, Deployment


class KernelTimes(NamedTuple):
    """Kernels of one kind in each phase: those of a layer, then the last ``once`` of them, which run once per pass."""

    names: tuple[str, ...]
    once: int  # how many run once per pass
    traffic: Array  # bytes that one call reads and writes, (rows, phases, kernels) [B]
    time: Array  # time of one call, (rows, phases, kernels) [s]
    calls: Array  # calls per layer, or per pass, (rows, phases, kernels) [-]

    def layer_calls(self) -> Array:
        """Calls in a layer, (rows, phases). [-]"""
        return total(self.calls[..., : len(self.names) - self.once])

    def layer_time(self) -> Array:
        """Time of a layer, (rows, phases). [s]"""
        own = len(self.names) - self.once
        return total(self.time[..., :own] * self.calls[..., :own])

    def pass_time(self) -> Array:
        """Time of what runs once per pass, (rows, phases). [s]"""
        own = len(self.names) - self.once
        return total(self.time[..., own:] * self.calls[..., own:])


def by_phase(values: Array, num_phases: int) -> Array:
    """Operators of the phases in sequence, (rows, phases x operators), as (rows, phases, operators).

    >>> by_phase(np.array([[1.0, 2.0, 3.0, 4.0]]), 2).tolist()
    [[[1.0, 2.0], [3.0, 4.0]]]
    """
    return values.reshape(len(values), num_phases, values.shape[1] // num_phases)


def wide_attention(model: Model, plan: InferencePlan, architecture: Architecture) -> np.ndarray:
    """Plans whose attention layers stay in 16 bits, (rows,).

    Published mixtures in 4 bits narrow the feed-forward layers only (DeepSeek-R1 on B200, TensorRT-LLM technical blog
    1; gpt-oss, arXiv:2508.10925, section 2.1). Other checkpoints do so too (Llama 3 in FP8, arXiv:2407.21783, section
    6.2): the plan states it.
    """
    stated = (plan.wide_attention > 0.0) & (plan.weight_size < plan.activation_size)
    if not architecture.experts:
        return np.asarray(stated)
    return np.asarray(plan.four_bits & (model.wide_attention > 0.0) | stated)


def _columns(flags: np.ndarray, num_rows: int) -> np.ndarray:
    """Flags of the operators for every row, in column order."""
    return np.repeat(flags, num_rows).reshape(num_rows, len(flags), order="F")


def _narrow(products: ServingGemms, deployment: Deployment, plan: InferencePlan) -> np.ndarray:
    """Products in the precision of the plan, (rows, operators)."""
    architecture = deployment.architecture
    narrow = _columns(products.narrow, len(plan.weight_size))
    if not architecture.experts and not (plan.wide_attention > 0.0).any():
        return narrow
    attention = _columns(products.attention, len(narrow))
    return np.asarray(narrow & ~(attention & wide_attention(deployment.model, plan, architecture)[:, None]))


def _gemm_kernels(
    deployment: Deployment, products: ServingGemms, narrow: np.ndarray
) -> tuple[MatrixRate, Mapping[str, Array]]:
    """Matrix units and constants of each product, by its precision and grouping."""
    kernels, plan = deployment.kernels, deployment.plan
    constants, rate = kernels["gemm"], deployment.device.rate()
    if some(plan.weight_size != plan.activation_size):
        wide = kernels["gemm_wide"]
        peak = np.where(narrow, rate.peak_flop_rate, deployment.device.rate(WIDE).peak_flop_rate)
        constants = {
            name: values if np.array_equal(values, wide[name]) else np.where(narrow, values, wide[name])
            for name, values in constants.items()
        }
        rate = rate._replace(peak_flop_rate=peak)
    if some(products.grouped):
        experts = kernels["serving_experts"]
        slower = {"compute_efficiency": "product_slowdown", "memory_efficiency": "memory_slowdown"}
        grouped = _columns(products.grouped, len(narrow))
        changed = {name: constants[name] / np.where(grouped, experts[factor], 1.0) for name, factor in slower.items()}
        changed["least_tile_rows"] = np.where(grouped, 0.0, constants["least_tile_rows"])
        constants = {**constants, **changed}
    alone = plan.weight_size < plan.input_size
    if some(alone):  # weights that are unpacked in registers are multiplied there, by few rows
        short = np.where(narrow & alone[:, None], 0.0, constants["least_tile_rows"])
        constants = {**constants, "least_tile_rows": short}
    return rate, constants


def _gemm_bytes(products: ServingGemms, plan: InferencePlan, narrow: np.ndarray) -> tuple[Array, Array]:
    """Mean bytes of an input element, each input in its own precision, and traffic of one call."""
    gemms = products.gemms
    activation = plan.activation_size[:, None]
    rows_size = np.where(narrow, plan.input_size[:, None], activation)
    weight_size = np.where(narrow, plan.weight_size[:, None], activation)
    inputs = rows_size * gemms.m + weight_size * gemms.n
    traffic = gemms.k * inputs + activation * gemms.m * gemms.n
    return inputs / (gemms.m + gemms.n), gemms.batch * traffic


def of_part(names: tuple[str, ...], calls: Array, plan: InferencePlan) -> Array:
    """Calls of kernels in a pool, (rows, phases, kernels); 0 for the layers that another pool computes.

    >>> plan = InferencePlan({"layer_part": np.array([LayerPart.EXPERTS])})
    >>> of_part(("qkv", "mlp up"), np.ones((1, 1, 2)), plan).tolist()
    [[[0.0, 1.0]]]
    """
    experts, attention = plan.computes(LayerPart.EXPERTS), plan.computes(LayerPart.ATTENTION)
    if experts is None or attention is None:
        return calls
    own = np.array([name in FEED_FORWARD_OPERATORS for name in names])
    return np.asarray(calls * np.where(own, experts[:, None], attention[:, None])[:, None])


def product_rate(deployment: Deployment, products: ServingGemms) -> MatrixRate:
    """Matrix units at the precision of each product, (rows, operators), or (rows, 1) if all are alike."""
    return _gemm_kernels(deployment, products, _narrow(products, deployment, deployment.plan))[0]


def product_times(deployment: Deployment, products: ServingGemms) -> tuple[Array, Array]:
    """Traffic and time of products with weights, (rows, operators) each. [B, s]"""
    plan, gemms = deployment.plan, products.gemms
    narrow = _narrow(products, deployment, plan)
    element_size, traffic = _gemm_bytes(products, plan, narrow)
    rate, constants = _gemm_kernels(deployment, products, narrow)
    output_size = plan.activation_size[:, None]
    shape = gemms.m, gemms.n, gemms.k, gemms.batch
    device = deployment.device
    time = gemm_time(device, constants, *shape, element_size, output_size, rate=rate, stack="serving")
    return traffic, time


def state_size(model: Model, plan: InferencePlan) -> Array:
    """Bytes that a sequence holds in one layer of linear attention on one rank, (rows,), whatever its length. [B]

    The state of the heads of the rank and the last inputs of its convolution, once more for each drafted token (gated
    delta net: arXiv:2412.06464, section 3.4).
    """
    shard = Shard(model, plan.attention_parallel)
    state = recurrent_state_size(
        shard.value_heads, model.linear_key_size, model.linear_value_size, model.linear_state_size
    )
    inputs = (model.linear_convolution - 1.0) * (2.0 * shard.linear_keys + shard.linear_values)
    window = inputs * plan.activation_size
    return np.asarray((1.0 + plan.drafted_tokens) * (state + window))


def _prefill_scan(deployment: Deployment, batching: Batching) -> tuple[Array, Array, Array]:
    """FLOP, traffic and time (rows, 1) of one layer of linear attention in a prefill pass. [FLOP, B, s]"""
    model, plan = deployment.model, deployment.plan
    prompts, passes = batching.own_prompts / batching.rounds, batching.passes / batching.rounds
    tokens = prompts * plan.own_tokens / passes
    together = np.maximum(prompts / passes, 1.0)
    follow = np.minimum(plan.own_tokens, tokens)
    scan = chunked_scan(Shard(model, plan.attention_parallel), tokens, together, follow, plan.activation_size)
    flop, traffic, chunks = (values[:, None] for values in scan)
    constants = deployment.kernels["linear_attention"]
    device = deployment.device
    return flop, traffic, linear_attention_time(device, constants, traffic, flop, chunks, device.rate(CORE))


def _decode_recurrence(deployment: Deployment, sequences: Array) -> tuple[Array, Array, Array]:
    """FLOP, traffic and time (rows, 1) of one layer of linear attention in a decode step, which moves states."""
    model, plan = deployment.model, deployment.plan
    each = 1.0 + plan.drafted_tokens
    ranks = plan.attention_parallel
    heads, key_heads = ceil_div(model.linear_value_heads, ranks), ceil_div(model.linear_key_heads, ranks)
    sizes = (model.linear_key_size, model.linear_value_size)
    flop = recurrent_step_flop(sequences * each, heads, *sizes)
    bytes_of = (plan.activation_size, model.linear_state_size)
    traffic = recurrent_step_traffic(sequences, each, heads, key_heads, *sizes, *bytes_of)
    time = vector_time(deployment.device, deployment.kernels["vector"], traffic[:, None], flop[:, None])
    return flop[:, None], traffic[:, None], time


def _prefill_attention(deployment: Deployment, batching: Batching) -> list[tuple[Array, Array, Array]]:
    """FLOP, traffic and time (rows, 1) of global, then of local and sparse attention of a layer in a prefill pass."""
    model, plan = deployment.model, deployment.plan
    ranks, latent = plan.attention_parallel, deployment.architecture.latent_attention
    heads = np.ceil(model.num_attention_heads / ranks)[:, None]
    groups = heads if latent else np.ceil(model.num_query_groups / ranks)[:, None]
    head_size = (0.5 * (model.qk_head_size + model.v_head_size) if latent else model.head_size)[:, None]
    # Kernels of one part after the other, each over all its prompts.
    prompts, passes = ((values / batching.rounds)[:, None] for values in (batching.own_prompts, batching.passes))
    prompt, new, size = plan.prompt_length[:, None], plan.new_tokens[:, None], plan.attention_size[:, None]
    # Of a prompt that ranks share each computes an early and a late part: queries see the mean of its keys.
    own = plan.own_tokens[:, None]
    seen = np.where(plan.context_parallel[:, None] > 1.0, prompt - 0.5 * (new - own), prompt)
    # Global attention grows with the square of a prompt: its mean is that of the mean and more.
    longer = 1.0 + (plan.prompt_variation * plan.prompt_variation)[:, None]
    shapes = [(prompts, own, seen, np.ones_like(prompt), longer)]
    if deployment.architecture.local_attention:
        window = np.minimum(model.window[:, None], prompt)
        chunked = model.chunked[:, None]
        keys = np.where(chunked > 0.0, window, window * (1.0 - window / (2.0 * prompt)))
        cut = prompts * np.maximum(own / window, 1.0)
        shapes.append((cut, np.minimum(own, window), keys, chunked, np.ones_like(prompt)))
    kinds, device, rate = [], deployment.device, deployment.device.rate(CORE)
    for batch, queries, keys, causal, more in shapes:
        shape = batch, heads, groups, queries, keys, head_size, causal, size
        time = attention_time(device, deployment.kernels["attention"], *shape, rate=rate)
        flop = core_attention_flop(batch, heads, head_size, visible_pairs(queries, keys, causal) / passes) * more
        traffic = 2.0 * (batch * head_size) * ((heads * queries + groups * keys) * size / passes)
        kinds.append((flop, traffic, time / passes * more))
    if deployment.architecture.sparse_attention:
        kinds += prefill_sparse(deployment, batching, kinds[0])
    return kinds


def _decode_attention(deployment: Deployment, sequences: Array) -> list[tuple[Array, Array, Array]]:
    """FLOP, traffic and mean time (rows, 1) of global, then of local and sparse attention of a layer in a decode step.

    The context grows by one token per step. Two contexts, the mean less and plus the standard deviation, give the mean
    time, exactly for a cubic polynomial of the context. A kernel computes whole tiles of query rows for each head of
    keys.
    """
    model, plan, kernels = deployment.model, deployment.plan, deployment.kernels
    ranks = plan.attention_parallel
    heads = np.ceil(model.num_attention_heads / ranks)[:, None]
    family, drafted = "attention_decode", (1.0 + plan.drafted_tokens)[:, None]
    read_heads, read_size = np.ceil(model.num_query_groups / ranks)[:, None], model.head_size[:, None]
    multiplied: Array = drafted * heads
    if deployment.architecture.one_vector:
        # One compressed vector is key and value of all heads: half a key and value pair of its width.
        family, read_heads = "attention_latent", np.full_like(heads, 0.5)
        read_size = cache_elements(model, ranks, True)[:, None]
        # A tile of the matrix units holds so many query rows, be they there or not.
        multiplied = np.maximum(multiplied, kernels[family]["tile_rows"])
        multiplied = multiplied * (1.0 - 0.5 * model.qk_rope_head_size[:, None] / read_size)
        computed = multiplied
    else:
        stated = plan.attention_tile_rows
        rows = np.where(np.isnan(stated), kernels[family]["tile_rows"][:, 0], stated)
        computed = tiled_heads(multiplied, read_heads, rows[:, None])
    # A step meets requests with long outputs more often than short ones, as often as they have steps.
    steps = np.maximum(plan.output_length - 1.0, 1.0) * (1.0 + plan.output_variation * plan.output_variation)
    mean = (plan.prompt_length + 0.5 * (steps + 1.0))[:, None]
    spread = np.sqrt((steps * steps - 1.0) / 12.0)[:, None]
    contexts = [beside(mean - spread, mean + spread)]
    if deployment.architecture.local_attention:
        # Beyond its first chunk a token sees half of one on average.
        reach = np.where(model.chunked[:, None] > 0.0, 0.5, 1.0) * model.window[:, None]
        contexts.append(np.where(contexts[0] <= model.window[:, None], contexts[0], reach))
    size, kinds, rate = plan.kv_size[:, None], [], deployment.device.rate(CORE)
    for context in contexts:
        context = context / plan.context_parallel[:, None]
        called = deployment.device, kernels[family], sequences[:, None], multiplied, read_heads
        shape = context, read_size, size
        if deployment.architecture.one_vector:
            time = decode_attention_time(*called, *shape, rate)
        else:  # who states a tile of the matrix units has a kernel that shares keys
            time = engine_decode_attention_time(*called, *shape, plan.attention_tile_rows[:, None], rate)
        middle = 0.5 * (context[:, :1] + context[:, 1:])
        flop = core_attention_flop(sequences[:, None], computed, read_size, middle)
        traffic = 2.0 * (sequences[:, None] * read_size) * (read_heads * middle * size)
        kinds.append((flop, traffic, 0.5 * (time[:, :1] + time[:, 1:])))
    if deployment.architecture.sparse_attention:
        one = multiplied / drafted
        if deployment.architecture.one_vector:  # tiles of the matrix units hold the heads of one token
            part = 1.0 - 0.5 * model.qk_rope_head_size[:, None] / read_size
            one = np.maximum(heads, kernels[family]["tile_rows"]) * part
        kinds += decode_sparse(deployment, sequences, contexts[0], (one, read_heads, read_size))
    return kinds


def attention_kernels(
    deployment: Deployment, batching: Batching, phases: tuple[int, ...] = BOTH_PHASES
) -> tuple[KernelTimes, Array]:
    """Attention of a layer, one kernel for each kind, and their FLOP; a decode step at its mean context.

    Keys and values of 1,001 tokens of width 1,000 in 16 bits at 1 TB/s, in a decode step of one request:

    >>> from ideal_machine import deployment
    >>> from xlperf.equations.serving.deployment import batching_of
    >>> served = deployment()
    >>> kernels, flop = attention_kernels(served, batching_of(served.plan), (DECODING,))
    >>> kernels.traffic.tolist(), kernels.time.tolist()
    ([[[4004000.0]]], [[[4.004e-06]]])
    """
    architecture = deployment.architecture
    sequences = np.ceil(batching.sequences / deployment.plan.data_parallel_attention)
    kinds: list[tuple[Array, Array, Array]] = []
    if PREFILL in phases:
        kinds += _prefill_attention(deployment, batching)
        if architecture.linear_attention:
            kinds.append(_prefill_scan(deployment, batching))
    if DECODING in phases:
        kinds += _decode_attention(deployment, sequences)
        if architecture.linear_attention:
            kinds.append(_decode_recurrence(deployment, sequences))
    local = ("local attention",) if architecture.local_attention else ()
    linear = ("linear attention",) if architecture.linear_attention else ()
    sparse = ATTENTION_KINDS if architecture.sparse_attention else ()
    calls = attention_calls(deployment.model, architecture, phases)
    flop, traffic, time, calls = (
        by_phase(values, len(phases)) for values in (*(beside(*values) for values in zip(*kinds, strict=True)), calls)
    )
    names = ("attention", *local, *sparse, *linear)
    return KernelTimes(names, 0, traffic, time, of_part(names, calls, deployment.plan)), flop


Work = tuple[Array, Array, Array]


def _index(deployment: Deployment, queries: Array, seen: Array, cached: Array) -> Work:
    """FLOP, traffic and time (rows, 1) of the index of a layer: scores by the matrix units, then the selection."""
    model, plan = deployment.model, deployment.plan
    heads = Shard(model, plan.attention_parallel).index_heads
    flop = index_flop(queries, seen, heads, model.index_size)[:, None]
    sizes = (model.index_size, model.index_key_size, scores_per_entry(model, heads), WORD)
    traffic = index_traffic(queries, seen, cached, *sizes)[:, None]
    constants, device = deployment.kernels["attention"], deployment.device
    compute = flop / (constants["compute_efficiency"] * device.rate(CORE).peak_flop_rate)
    moved = vector_time(device, deployment.kernels["vector"], traffic, 0.0)
    return flop, traffic, np.maximum(compute, moved)


def _gathered(deployment: Deployment, time: Array, queries: Array, entries: Array, size: Array) -> Array:
    """Time of attention whose queries each gather entries of their own through the last-level cache. [s]"""
    elements = cache_elements(deployment.model, deployment.plan.attention_parallel, deployment.architecture.one_vector)
    gathered = (queries * entries * elements * size)[:, None]
    return np.fmax(time, transfer_time(gathered, deployment.device.l2_bandwidth))


def prefill_sparse(deployment: Deployment, batching: Batching, whole: Work) -> list[Work]:
    """Sparse attention of a layer in a prefill pass: selected entries, index, compressed entries.

    Each query of a chunk attends to its own entries and to a window; latent attention is then absorbed as in decoding.
    If the index selects everything, selected layers cost as much as full ones: FLOP, traffic and time ``whole``.

    Each of 1,000 tokens attends to the last 200 at most, 180 in the mean: 4 x 1,000 x 10 x 100 x 180 FLOP.

    >>> from ideal_machine import deployment, sparse
    >>> from xlperf.equations.serving.deployment import batching_of
    >>> served = deployment(sparse())
    >>> selected, _, _ = prefill_sparse(served, batching_of(served.plan), (np.ones((1, 1)),) * 3)
    >>> selected[0].tolist()
    [[720000000.0]]
    """
    model, plan, latent = deployment.model, deployment.plan, deployment.architecture.latent_attention
    prompts, passes = batching.own_prompts / batching.rounds, batching.passes / batching.rounds
    heads = np.ceil(model.num_attention_heads / plan.attention_parallel)
    groups = np.ceil(model.num_query_groups / plan.attention_parallel)
    head_size = model.head_size
    if latent:
        groups, head_size = np.ones_like(heads), model.kv_lora_rank + 0.5 * model.qk_rope_head_size
    start, end = plan.prompt_length - plan.new_tokens, plan.prompt_length
    near = entries_seen(start, end, 1.0, model.sparse_window)
    queries, device, rate = prompts * plan.own_tokens / passes, deployment.device, deployment.device.rate(CORE)
    longer = 1.0 + plan.prompt_variation * plan.prompt_variation

    def attended(entries: Array) -> Work:
        shape = (prompts, heads, groups, plan.own_tokens, entries, head_size, 0.0 * heads, plan.attention_size)
        columns = (values[:, None] for values in shape)
        time = attention_time(device, deployment.kernels["attention"], *columns, rate=rate) / passes[:, None]
        flop = (4.0 * queries * heads * head_size * entries)[:, None]
        moved = 2.0 * prompts * head_size * (heads * plan.own_tokens + groups * end) * plan.attention_size / passes
        return flop, moved[:, None], _gathered(deployment, time, queries, entries, plan.attention_size)

    selected = attended(entries_seen(start, end, model.selected_ratio, model.index_top_k) + near)
    covered = (model.index_top_k >= end / model.selected_ratio) & (model.selected_ratio == 1.0)
    flop, traffic, time = (np.where(covered[:, None], *pair) for pair in zip(whole, selected, strict=True))
    seen = entries_seen(start, end, model.selected_ratio, np.inf) * longer
    index = _index(deployment, queries, seen, prompts / passes * end / model.selected_ratio)
    compressed = attended(entries_seen(start, end, model.compressed_ratio, np.inf) * longer + near)
    return [(flop, traffic, time), index, compressed]


def decode_sparse(deployment: Deployment, sequences: Array, contexts: Array, shape: tuple[Array, ...]) -> list[Work]:
    """Sparse attention of a layer in a decode step: selected entries, index, compressed entries.

    ``contexts``: contexts below and above the mean, (rows, 2). ``shape``: heads multiplied for one token, heads read
    and their width, (rows, 1). Each token reads its own entries.

    Keys and values of the 200 selected entries, 10 heads of 100 in 16 bits; the index scores 1,000 of 100 elements.

    >>> from ideal_machine import ONE, deployment, sparse
    >>> shape = np.array([[10.0]]), np.array([[10.0]]), np.array([[100.0]])
    >>> selected, index, _ = decode_sparse(deployment(sparse()), ONE, np.array([[900.0, 1100.0]]), shape)
    >>> selected[1].tolist(), index[0].tolist()
    ([[800000.0]], [[200000.0]])
    """
    model, plan, kernels = deployment.model, deployment.plan, deployment.kernels
    family = "attention_latent" if deployment.architecture.one_vector else "attention_decode"
    queries = (sequences * (1.0 + plan.drafted_tokens))[:, None]
    (heads, read_heads, read_size), device = shape, deployment.device
    size, near = plan.kv_size[:, None], np.minimum(contexts, model.sparse_window[:, None])

    def attended(entries: Array) -> Work:
        time = decode_attention_time(
            device, kernels[family], queries, heads, read_heads, entries, read_size, size, device.rate(CORE)
        )
        middle = 0.5 * (entries[:, :1] + entries[:, 1:])
        flop = core_attention_flop(queries, heads, read_size, middle)
        traffic = 2.0 * (queries * read_size) * (read_heads * middle * size)
        return flop, traffic, 0.5 * (time[:, :1] + time[:, 1:])

    scored = contexts / model.selected_ratio[:, None]
    selected = attended(np.minimum(scored, model.index_top_k[:, None]) + near)
    ends = [_index(deployment, queries[:, 0], scored[:, side], sequences * scored[:, side]) for side in range(2)]
    flop, traffic, time = (0.5 * (low + high) for low, high in zip(*ends, strict=True))
    compressed = attended(contexts / model.compressed_ratio[:, None] + near)
    return [selected, (flop, traffic, time), compressed]
