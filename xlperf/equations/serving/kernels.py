"""Kernels of a served layer with their FLOP, traffic and time: GEMMs, dense, sparse and linear attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, array, beside, side_by_side, some, total
from xlperf.equations.hardware.attention import (
    attention_time,
    core_attention_flop,
    decode_attention_time,
    engine_decode_attention_time,
    tiled_heads,
    visible_pairs,
)
from xlperf.equations.hardware.gemm import gemm_time
from xlperf.equations.hardware.roofline import CORE, WIDE, MatrixRate, scan_time, score_time, transfer_time
from xlperf.equations.model.blocks import Shard
from xlperf.equations.model.cores import FULL, Core, Flash, Prompts, Read, Scores, Steps, Stream, cores_of
from xlperf.equations.model.linear_attention import Scan
from xlperf.equations.model.model import Architecture, Model
from xlperf.equations.model.operators import BOTH_PHASES, DECODING, FEED_FORWARD_OPERATORS, ServingGemms, cache_elements
from xlperf.equations.plan.serving_plan import PARTS, InferencePlan, LayerPart
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
        in_layer = len(self.names) - self.once
        return total(self.time[..., :in_layer] * self.calls[..., :in_layer])

    def pass_time(self) -> Array:
        """Time of what runs once per pass, (rows, phases). [s]"""
        in_layer = len(self.names) - self.once
        return total(self.time[..., in_layer:] * self.calls[..., in_layer:])


def by_phase(values: Array, num_phases: int) -> Array:
    """Operators of the phases in sequence, (rows, phases x operators), as (rows, phases, operators).

    >>> by_phase(np.array([[1.0, 2.0, 3.0, 4.0]]), 2).tolist()
    [[[1.0, 2.0], [3.0, 4.0]]]
    """
    return values.reshape(len(values), num_phases, values.shape[1] // num_phases)


def wide_attention(model: Model, plan: InferencePlan, architecture: Architecture) -> np.ndarray:
    """Plans whose attention layers stay in 16 bits, (rows,). Published mixtures in 4 bits narrow the feed-forward
    layers only (DeepSeek-R1 on B200, TensorRT-LLM technical blog 1; gpt-oss, arXiv:2508.10925, section 2.1). Other
    checkpoints do so too (Llama 3 in FP8, arXiv:2407.21783, section 6.2): the plan states it.
    """
    stated = (plan.wide_attention > 0.0) & (plan.weight_size < plan.activation_size)
    if not architecture.experts:
        return np.asarray(stated)
    return np.asarray(plan.four_bits & (model.wide_attention > 0.0) | stated)


def _columns(flags: np.ndarray, num_rows: int) -> np.ndarray:
    """Flags of the operators for every row, in column order."""
    return np.repeat(flags, num_rows).reshape(num_rows, len(flags), order="F")


class _Stored(NamedTuple):
    """Formats of products with weights, (rows, operators)."""

    narrow: np.ndarray  # whether a product has the precision of the plan and not 16 bits
    weight_size: Array  # bytes of a weight [B]
    input_size: Array  # bytes of an element of the other input [B]


def _stored(products: ServingGemms, deployment: Deployment) -> _Stored:
    """Formats of products: that of the plan, 16 bits, or those of the parts of a checkpoint."""
    architecture, plan = deployment.architecture, deployment.plan
    narrow = _columns(products.narrow, len(plan.weight_size))
    if architecture.experts or (plan.wide_attention > 0.0).any():
        attention = _columns(products.attention, len(narrow))
        narrow = np.asarray(narrow & ~(attention & wide_attention(deployment.model, plan, architecture)[:, None]))
    activation = plan.activation_size[:, None]
    input_size = np.where(narrow, plan.input_size[:, None], activation)
    weight_size = np.where(narrow, plan.weight_size[:, None], activation)
    for _, stated, sizes in _stated_parts(products, plan):
        weight_size = np.where(stated, sizes[0][:, None], weight_size)
        input_size = np.where(stated, sizes[1][:, None], input_size)
    return _Stored(narrow, weight_size, input_size)


def _stated_parts(products: ServingGemms, plan: InferencePlan) -> Iterator[tuple[str, np.ndarray, tuple[Array, Array]]]:
    """Parts of a checkpoint with formats of their own, their products (rows, operators), and bytes of the formats."""
    for part in PARTS:
        sizes = plan.part_sizes(part)
        if sizes is not None:
            yield part, _columns(products.part == part, len(plan)) & ~np.isnan(sizes[0])[:, None], sizes


def stored_sizes(deployment: Deployment, products: ServingGemms) -> Array:
    """Bytes of a stored weight of each product, (rows, operators). [B]"""
    return _stored(products, deployment).weight_size


def _gemm_kernels(
    deployment: Deployment, products: ServingGemms, stored: _Stored
) -> tuple[MatrixRate, Mapping[str, Array]]:
    """Matrix units and constants of each product, by its precision and grouping."""
    kernels, plan, narrow = deployment.kernels, deployment.plan, stored.narrow
    constants, rate = kernels["gemm"], deployment.device.rate()
    if some(plan.weight_size != plan.activation_size):
        wide = kernels["gemm_wide"]
        peak = np.where(narrow, rate.peak_flop_rate, deployment.device.rate(WIDE).peak_flop_rate)
        constants = {
            name: values if np.array_equal(values, wide[name]) else np.where(narrow, values, wide[name])
            for name, values in constants.items()
        }
        rate = rate._replace(peak_flop_rate=peak)
    for part, stated, _ in _stated_parts(products, plan):
        kernel = kernels[f"gemm_{part}"]
        constants = {name: np.where(stated, kernel[name], values) for name, values in constants.items()}
        peak = deployment.device.rate().peak_flop_rate * kernel["peak_ratio"]
        rate = rate._replace(peak_flop_rate=np.where(stated, peak, rate.peak_flop_rate))
    if some(products.grouped):  # products of experts lose some of the rate of dense ones, and have tiles of few rows
        experts = kernels["serving_experts"]
        slower = {"compute_efficiency": "product_slowdown", "memory_efficiency": "memory_slowdown"}
        grouped = _columns(products.grouped, len(narrow))
        changed = {name: constants[name] / np.where(grouped, experts[factor], 1.0) for name, factor in slower.items()}
        changed["least_tile_rows"] = np.where(grouped, 0.0, constants["least_tile_rows"])
        constants = {**constants, **changed}
    unpacked = stored.weight_size < stored.input_size
    if some(unpacked):  # weights that are unpacked in registers are multiplied there, by few rows
        constants = {**constants, "least_tile_rows": np.where(unpacked, 0.0, constants["least_tile_rows"])}
    return rate, constants


def _gemm_bytes(products: ServingGemms, plan: InferencePlan, stored: _Stored) -> tuple[Array, Array]:
    """Mean bytes of an input element, each input in its own precision, and traffic of one call."""
    gemms, activation = products.gemms, plan.activation_size[:, None]
    inputs = stored.input_size * gemms.m + stored.weight_size * gemms.n
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
    feed_forward = np.array([name in FEED_FORWARD_OPERATORS for name in names])
    return np.asarray(calls * np.where(feed_forward, experts[:, None], attention[:, None])[:, None])


def product_rate(deployment: Deployment, products: ServingGemms) -> MatrixRate:
    """Matrix units at the precision of each product, (rows, operators), or (rows, 1) if all are alike."""
    return _gemm_kernels(deployment, products, _stored(products, deployment))[0]


def product_times(deployment: Deployment, products: ServingGemms) -> tuple[Array, Array]:
    """Traffic and time of products with weights, (rows, operators) each. [B, s]"""
    plan, gemms = deployment.plan, products.gemms
    stored = _stored(products, deployment)
    element_size, traffic = _gemm_bytes(products, plan, stored)
    rate, constants = _gemm_kernels(deployment, products, stored)
    shape = gemms.m, gemms.n, gemms.k, gemms.batch, element_size, plan.activation_size[:, None]
    return traffic, gemm_time(deployment.device, constants, *shape, rate=rate, stack="serving")


Work = tuple[Array, Array, Array]
"""FLOP, traffic and time of a kernel, (rows, 1). [FLOP, B, s]"""


def _prompts(deployment: Deployment, batching: Batching) -> Prompts:
    """Prompts of one round on a rank; rounds follow each other, each over all its prompts."""
    plan = deployment.plan
    return Prompts(
        Shard(deployment.model, plan.attention_parallel),
        deployment.architecture,
        plan.activation_size,
        number=batching.own_prompts / batching.rounds,
        passes=batching.passes / batching.rounds,
        length=plan.prompt_length,
        new=plan.new_tokens,
        own=plan.own_tokens,
        # Global attention grows with the square of a prompt: its mean is that of the mean and more.
        longer=1.0 + plan.prompt_variation * plan.prompt_variation,
        context_parallel=plan.context_parallel,
    )


def _steps(deployment: Deployment, sequences: Array) -> Steps:
    """Sequences of a decode step on a rank, at two contexts: the mean less and plus the standard deviation. The context
    grows by one token per step. The two give the mean time, exactly for a cubic polynomial of the context. A step meets
    requests with long outputs more often than short ones, as often as they have steps.
    """
    plan = deployment.plan
    steps = np.maximum(plan.output_length - 1.0, 1.0) * (1.0 + plan.output_variation * plan.output_variation)
    mean = (plan.prompt_length + 0.5 * (steps + 1.0))[:, None]
    spread = np.sqrt((steps * steps - 1.0) / 12.0)[:, None]
    return Steps(
        Shard(deployment.model, plan.attention_parallel),
        deployment.architecture,
        plan.activation_size,
        sequences=sequences,
        tokens=1.0 + plan.drafted_tokens,
        contexts=beside(mean - spread, mean + spread),
        context_parallel=plan.context_parallel,
    )


def _flash(deployment: Deployment, call: Prompts, kernel: Flash) -> Work:
    """Flash attention of a prefill pass; queries gather entries of their own through the last-level cache."""
    plan, device, passes = deployment.plan, deployment.device, call.passes[:, None]
    columns = tuple(values[:, None] for values in (*kernel[:7], plan.attention_size))
    batch, heads, groups, queries, keys, head_size, causal, size = columns
    time = attention_time(device, deployment.kernels["attention"], *columns, rate=device.rate(CORE))
    if kernel.cached is None:
        more = array(kernel.longer)[..., None]
        flop = core_attention_flop(batch, heads, head_size, visible_pairs(queries, keys, causal) / passes) * more
        traffic = 2.0 * (batch * head_size) * ((heads * queries + groups * keys) * size / passes)
        return flop, traffic, time / passes * more
    flop = 4.0 * call.queries[:, None] * heads * head_size * keys
    traffic = 2.0 * batch * head_size * (heads * queries + groups * kernel.cached[:, None]) * size / passes
    elements = cache_elements(deployment.model, plan.attention_parallel, deployment.architecture.one_vector)
    gathered = (call.queries * kernel.keys * elements * plan.attention_size)[:, None]
    return flop, traffic, np.fmax(time / passes, transfer_time(gathered, device.l2_bandwidth))


def _read(deployment: Deployment, call: Steps, kernel: Read) -> Work:
    """Attention of a decode step, at its mean context: whole tiles of query rows for each head of keys."""
    plan, device, rate = deployment.plan, deployment.device, deployment.device.rate(CORE)
    shard = call.near if kernel.near else call.shard
    model = shard.model
    latent, size, heads = call.architecture.one_vector, plan.kv_size[:, None], shard.heads[:, None]
    constants = deployment.kernels[decode_family(call.architecture)]
    tokens = np.ones_like(heads) if kernel.alone else call.tokens[:, None]
    sequences = (call.sequences * call.tokens if kernel.alone else call.sequences)[:, None]
    read_heads, read_size = shard.groups[:, None], model.head_size[:, None]
    computed = multiplied = tokens * heads
    if latent:
        read_heads, read_size = np.full_like(heads, 0.5), cache_elements(model, call.shard.ranks, True)[:, None]
        # A tile of the matrix units holds so many query rows, be they there or not.
        multiplied = np.maximum(multiplied, constants["tile_rows"])
        rotated = np.where(model.latent_attention > 0.0, model.qk_rope_head_size, 0.0)[:, None]
        computed = multiplied = multiplied * (1.0 - 0.5 * rotated / read_size)
    shape = sequences, multiplied, read_heads, kernel.entries, read_size, size
    if latent or kernel.alone:
        time = decode_attention_time(device, constants, *shape, rate)
    else:  # who states a tile of the matrix units has a kernel that shares keys
        stated = plan.attention_tile_rows[:, None]
        time = engine_decode_attention_time(device, constants, *shape, stated, rate)
        computed = tiled_heads(multiplied, read_heads, np.where(np.isnan(stated), constants["tile_rows"], stated))
    middle = 0.5 * (kernel.entries[:, :1] + kernel.entries[:, 1:])
    flop = core_attention_flop(sequences, computed, read_size, middle)
    return flop, 2.0 * (sequences * read_size) * (read_heads * middle * size), 0.5 * (time[:, :1] + time[:, 1:])


def _scores(deployment: Deployment, call: Prompts | Steps, kernel: Scores) -> Work:
    """Products on the matrix units beside their traffic, at the mean of two contexts if there are two; in a decode step
    of latent attention also the small kernels of the index.
    """
    device, (flop, traffic) = deployment.device, kernel
    flop, traffic = (values[:, None] if values.ndim < 2 else values for values in (flop, traffic))
    work = flop, traffic, score_time(device, deployment.kernels, flop, traffic)
    if flop.shape[-1] == 1:
        return work
    flop, traffic, time = (0.5 * (values[:, :1] + values[:, 1:]) for values in work)
    if call.architecture.one_vector:
        time = time + deployment.kernels["attention_latent"]["index_time"]
    return flop, traffic, time


def _scan(deployment: Deployment, call: Prompts | Steps, kernel: Scan | Stream) -> Work:
    flop, traffic, *chunks = (values[:, None] for values in kernel)
    return flop, traffic, scan_time(deployment.device, deployment.kernels, flop, traffic, *chunks)


_WORK: Mapping[type, Callable[..., Work]] = {
    Flash: _flash, Read: _read, Scores: _scores, Scan: _scan, Stream: _scan,
}  # fmt: skip


def core_work(deployment: Deployment, batching: Batching, phase: int) -> dict[Core, Work]:
    """Work of each core of a layer in a prefill pass or a decode step.

    If the index selects everything, selected layers cost as much as full ones. Each of 1,000 tokens attends to the last
    200 at most, 180 in the mean: 4 x 1,000 x 10 x 100 x 180 FLOP.

    >>> from ideal_machine import deployment, sparse
    >>> from xlperf.equations.model.cores import SELECTED
    >>> from xlperf.equations.serving.deployment import batching_of
    >>> served = deployment(sparse())
    >>> core_work(served, batching_of(served.plan), 0)[SELECTED][0].tolist()
    [[720000000.0]]
    """
    cores, work = cores_of(deployment.architecture), {}
    if phase == DECODING:
        steps = _steps(deployment, np.ceil(batching.sequences / deployment.plan.data_parallel_attention))
        kernels = [core.decode(steps) for core in cores]
        return {c: _WORK[type(k)](deployment, steps, k) for c, k in zip(cores, kernels, strict=True)}
    prompts = _prompts(deployment, batching)
    for core in cores:
        kernel = core.prefill(prompts)
        work[core] = flop, traffic, time = _WORK[type(kernel)](deployment, prompts, kernel)
        if core.covered is not None:
            covered = core.covered(deployment.model, prompts.length)[:, None]
            pairs = zip(work[FULL], (flop, traffic, time), strict=True)
            flop, traffic, time = (np.where(covered, *pair) for pair in pairs)
            work[core] = flop, traffic, time
    return work


def decode_family(architecture: Architecture) -> str:
    """Calibration family of attention in a decode step."""
    return "attention_latent" if architecture.one_vector else "attention_decode"


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
    cores = cores_of(deployment.architecture)
    work = [kernel for phase in phases for kernel in core_work(deployment, batching, phase).values()]
    calls = side_by_side(*[core.share(deployment.model) for core in cores] * len(phases))
    flop, traffic, time, calls = (
        by_phase(values, len(phases)) for values in (*(beside(*values) for values in zip(*work, strict=True)), calls)
    )
    names = tuple(core.name for core in cores)
    return KernelTimes(names, 0, traffic, time, of_part(names, calls, deployment.plan)), flop
