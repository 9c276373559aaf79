"""Every operator of a pass of the prefill and of a step of decoding: its time, and how often it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, beside, divide, side_by_side, total
from xlperf.equations.hardware.attention import attention_time, decode_attention_time, visible_pairs
from xlperf.equations.hardware.device import Device
from xlperf.equations.hardware.kernels import vector_time
from xlperf.equations.model.model import Architecture, Model
from xlperf.equations.model.operators import Gemms
from xlperf.equations.model.serving import (
    BOTH_PHASES,
    DECODING,
    DENSE,
    ONCE_GEMMS,
    ONCE_VECTORS,
    PREFILL,
    attention_calls,
    cache_elements,
    linear_share,
    serving_gemms,
    serving_vectors,
)
from xlperf.equations.network.topologies import Network
from xlperf.equations.plan.serving_plan import InferencePlan
from xlperf.equations.serving.batching import Batching, batching_of, serving_shape
from xlperf.equations.serving.messages import (
    ALL_REDUCE,
    CONTEXT,
    EXCHANGE,
    GATHERING,
    TRANSFER,
    hidden_exchange,
    serving_messages,
)
from xlperf.equations.serving.products import product_times
from xlperf.equations.serving.recurrent import LinearBatch, decode_recurrence, prefill_scan

MATRIX, ATTENTION, VECTOR, COMMUNICATION, FIXED = range(5)

VECTOR_FLOP = 2.0
_LOGIT_SIZE = 4.0


class ServingWork(NamedTuple):
    """Every operator of a pass of the prefill and of a step of decoding, with its time and how often it runs.

    Attributes
    ----------
    gemms : Gemms
        Products, (rows, 2 phases x products of a phase). [-]
    gemm_calls : Array
        Their calls per layer, or per pass for the last of each phase. [-]
    gemm_traffic : Array
        Bytes of one product. [B]
    gemm_time : Array
        Time of one product. [s]
    gemm_peak : Array
        Peak rate of the precision that it is computed in. [FLOP/s]
    vector_names : tuple of str
        Other kernels, of both phases.
    vector_traffic : Array
        Bytes of one other kernel, (rows, 2 phases x kernels of a phase). [B]
    vector_calls : Array
        Its calls per layer, or per pass for the last two. [-]
    vector_time : Array
        Time of one call. [s]
    context : Array
        Mean length of the cache over the steps of decoding, (rows,). [-]
    attention_flop : Array
        Attention of one layer that sees everything, then of one that attends locally and of one of linear attention
        where there are such, decoding at the mean context, (rows, 2 phases x kinds). [FLOP]
    attention_traffic : Array
        Its bytes, (rows, 2 phases x kinds). [B]
    attention_time : Array
        Its time, decoding averaged over the steps, (rows, 2 phases x kinds). [s]
    attention_calls : Array
        Its calls per layer, (rows, 2 phases x kinds). [-]
    message_size : Array
        All-reduce, gathering of logits, transfer to the next stage, exchange of tokens between experts, and of keys
        and values or outputs between the ranks that share prompts, (rows, 2, 5). [B]
    message_time, message_alone : Array
        Their times, (rows, 2, 5): what is exposed, and in full. [s]
    message_calls : Array
        All-reduces, exchanges with experts and between ranks that share prompts, of one layer, (rows, 3). [-]
    layer_overhead : Array
        Fixed cost of the software per layer, (rows, 2). [s]
    layer_launches : Array
        Time in which the host launches the kernels of a layer; 0 where a graph launches them, (rows, phases). [s]
    pass_overhead : Array
        Fixed cost of the software per pass or step, (rows, 2). [s]
    layers : Array
        Layers on the critical path of the prefill and of a step, (rows, 2). [-]
    passes : Array
        Passes on it. [-]
    transfers : Array
        Transfers between stages on it. [-]
    parts : Array
        Time of a layer and of what runs once per pass, by part, (rows, 2, 2, 5). [s]
    """

    gemms: Gemms
    gemm_calls: Array
    gemm_traffic: Array
    gemm_time: Array
    gemm_peak: Array
    vector_names: tuple[str, ...]
    vector_traffic: Array
    vector_calls: Array
    vector_time: Array
    context: Array
    attention_flop: Array
    attention_traffic: Array
    attention_time: Array
    attention_calls: Array
    message_size: Array
    message_time: Array
    message_alone: Array
    message_calls: Array
    layer_overhead: Array
    layer_launches: Array
    pass_overhead: Array
    layers: Array
    passes: Array
    transfers: Array
    parts: Array


def _attention(
    model: Model,
    device: Device,
    plan: InferencePlan,
    batching: Batching,
    kernels: Mapping[str, Mapping[str, Array]],
    architecture: Architecture,
    phases: tuple[int, ...],
) -> tuple[Array, Array, Array, Array]:
    """Mean context, and FLOP, traffic and time (rows, phases x kinds) of the attention of one layer.

    The steps of decoding see contexts that grow by one token. Their mean is taken at two contexts, the mean less and
    plus the standard deviation, which is exact for a time that is a cubic polynomial of the context.
    """
    # A step meets requests with long outputs more often than short ones, as often as they have steps.
    steps = np.maximum(plan.output_length - 1.0, 1.0) * (1.0 + plan.output_variation * plan.output_variation)
    mean = (plan.prompt_length + 0.5 * (steps + 1.0))[:, None]
    spread = np.sqrt((steps * steps - 1.0) / 12.0)[:, None]
    ranks, latent = plan.attention_parallel, architecture.latent_attention
    heads = np.ceil(model.num_attention_heads / ranks)[:, None]
    groups = np.ceil(model.num_query_groups / ranks)[:, None]
    # Kernels of one part after the other, each over all its prompts.
    prompts, passes = ((values / batching.rounds)[:, None] for values in (batching.own_prompts, batching.passes))
    sequences = np.ceil(batching.sequences / plan.attention_replicas)[:, None]
    prompt, new = plan.prompt_length[:, None], plan.new_tokens[:, None]
    size, cache_size = plan.attention_size[:, None], plan.kv_size[:, None]
    drafted = (1.0 + plan.draft_tokens)[:, None]
    head_size = model.head_size[:, None]
    family, read_heads, read_size = "attention_decode", groups, head_size
    multiplied = drafted * heads
    if latent:
        head_size = 0.5 * (model.qk_head_size + model.v_head_size)[:, None]
        groups = heads
        # One compressed vector is key and value of all heads: half a key and value pair of its width.
        family, read_heads = "attention_latent", np.full_like(heads, 0.5)
        read_size = cache_elements(model, ranks, True)[:, None]
        # A tile of the matrix units holds so many query rows, be they there or not.
        multiplied = np.maximum(multiplied, kernels[family]["tile_rows"])
        multiplied = multiplied * (1.0 - 0.5 * model.qk_rope_head_size[:, None] / read_size)
    split = plan.context_parallel[:, None]
    shared = split > 1.0
    # Of a prompt that ranks share each computes an early and a late part: queries see the mean of its keys.
    own = plan.own_tokens[:, None]
    seen = np.where(shared, prompt - 0.5 * (new - own), prompt)
    shapes = [(prompts, own, seen, np.ones_like(prompt))]
    # The work of attention to everything grows with the square of a prompt: its mean is that of the mean and more.
    spread_of = [1.0 + (plan.prompt_variation * plan.prompt_variation)[:, None], np.ones_like(prompt)]
    contexts = [beside(mean - spread, mean + spread)]
    if architecture.local_attention:
        window = np.minimum(model.window[:, None], prompt)
        chunked = model.chunked[:, None]
        keys = np.where(chunked > 0.0, window, window * (1.0 - window / (2.0 * prompt)))
        shapes.append((prompts * np.maximum(own / window, 1.0), np.minimum(own, window), keys, chunked))
        # Beyond its first chunk a token sees half of one on average.
        reach = np.where(chunked > 0.0, 0.5, 1.0) * model.window[:, None]
        contexts.append(np.where(contexts[0] <= model.window[:, None], contexts[0], reach))
    kinds: list[tuple[Array, Array, Array]] = []
    linear = LinearBatch(prompts[:, 0], passes[:, 0], sequences[:, 0]) if architecture.linear_attention else None
    for (batch, queries, keys, causal), more in zip(shapes if PREFILL in phases else (), spread_of, strict=False):
        span = attention_time(
            device, kernels["attention"], batch, heads, groups, queries, keys, head_size, causal, size
        )
        flop = 4.0 * (batch * head_size) * heads * (visible_pairs(queries, keys, causal) / passes) * more
        traffic = 2.0 * (batch * head_size) * ((heads * queries + groups * keys) * size / passes)
        kinds.append((flop, traffic, span / passes * more))
    if linear is not None and PREFILL in phases:
        kinds.append(prefill_scan(model, device, plan, linear, kernels))
    for context in contexts if DECODING in phases else ():
        context = context / split
        span = decode_attention_time(
            device, kernels[family], sequences, multiplied, read_heads, context, read_size, cache_size
        )
        middle = 0.5 * (context[:, :1] + context[:, 1:])
        flop = 4.0 * (sequences * read_size) * multiplied * middle
        traffic = 2.0 * (sequences * read_size) * (read_heads * middle * cache_size)
        kinds.append((flop, traffic, 0.5 * (span[:, :1] + span[:, 1:])))
    if linear is not None and DECODING in phases:
        kinds.append(decode_recurrence(model, device, plan, linear, kernels))
    work, moved, spent = (beside(*values) for values in zip(*kinds, strict=True))
    return mean[:, 0], work, moved, spent


def serving_work(
    model: Model,
    device: Device,
    attention_device: Device,
    wide_device: Device,
    network: Network,
    plan: InferencePlan,
    kernels: Mapping[str, Mapping[str, Array]],
    software: Mapping[str, Array],
    architecture: Architecture = DENSE,
    phases: tuple[int, ...] = BOTH_PHASES,
) -> ServingWork:
    """Operators of both phases, or of one of them, with their times.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    device : Device
        Accelerators with the peak of the precision of the products, (rows, 1).
    attention_device : Device
        The same with the peak of the precision of attention, (rows, 1).
    wide_device : Device
        The same with the peak of the precision of the products that a narrow precision leaves out, (rows, 1): logits,
        the choice of experts, and attention beside experts in 4 bits.
    network : Network
        Tiers, (rows, tiers).
    plan : InferencePlan
        Degrees, lengths, batch, (rows,).
    kernels : mapping of str to mapping of str to Array
        Calibration constants (rows, 1) of the families gemm, gemm_wide of those products, attention,
        attention_decode, attention_latent, vector, all_reduce, engine_all_reduce, all_gather, all_to_all,
        reduce_scatter, point_to_point, serving_experts and linear_attention.
    software : mapping of str to Array
        Constants (rows, 1) of the family serving_software.
    architecture : Architecture, default DENSE
        Structure that the models share.
    phases : tuple of int, default both
        PREFILL, DECODING or both, in that order: axes of phases have no other.

    Returns
    -------
    ServingWork
        Times of one call each, and how often each is called.
    """
    batching = batching_of(plan)
    shape = serving_shape(plan, batching)
    if architecture.experts:
        shape = shape._replace(favoured_share=kernels["serving_experts"]["favoured_share"][:, 0])
    activation = plan.activation_size
    products = serving_gemms(model, shape, architecture, phases)
    gemms = products.gemms
    gemm_traffic, product, peak = product_times(products, device, wide_device, plan, kernels, architecture)
    output_size = activation[:, None]
    logit_size = np.full_like(activation, _LOGIT_SIZE)
    vectors = serving_vectors(model, shape, architecture, activation, logit_size, phases)
    vector = vector_time(device, kernels["vector"], vectors.traffic, vectors.traffic * (VECTOR_FLOP / output_size))
    attention = _attention(model, attention_device, plan, batching, kernels, architecture, phases)
    kind_calls = attention_calls(model, architecture, phases)
    message_size, message_time, message_calls = serving_messages(
        model, network, plan, shape, kernels, architecture, batching.own_prompts, batching.passes, phases
    )
    message_alone = message_time.copy()
    if PREFILL in phases and np.any(plan.context_parallel > 1.0):
        each = attention[-1] * kind_calls
        hiding = total(each[:, : each.shape[1] // len(phases)])
        message_time[:, 0, CONTEXT] = hidden_exchange(
            message_time[:, 0, CONTEXT], hiding, plan.ring, plan.context_parallel
        )
    sequences = np.ceil(batching.sequences / plan.attention_replicas)
    served = side_by_side(shape.prefill_sampled * plan.attention_replicas, sequences)[:, list(phases)]
    prefill = np.array([1.0, 0.0])[list(phases)]
    each_served = prefill * software["request_overhead_time"] + (1.0 - prefill) * software["token_overhead_time"]
    blocks = (0.5 * model.num_blocks)[:, None] if architecture.linear_attention else 1.0
    layer_overhead = blocks * software["layer_overhead_time"] + 0.0 * served
    if architecture.experts:
        mixed = (model.num_moe_layers / model.num_layers)[:, None]
        layer_overhead = layer_overhead + mixed * kernels["serving_experts"]["layer_overhead_time"]
    work = ServingWork(
        gemms,
        products.calls,
        gemm_traffic,
        product,
        peak,
        vectors.names,
        vectors.traffic,
        vectors.calls,
        vector,
        *attention,
        kind_calls,
        message_size,
        message_time,
        message_alone,
        message_calls,
        layer_overhead,
        0.0 * served,
        prefill * software["prefill_overhead_time"] + served * each_served,
        *[served] * 4,
    )
    launched = _kernels(work)
    if architecture.latent_attention:
        launched = launched + kernels["attention_latent"]["prefill_kernels"]
    if architecture.linear_attention:
        launched = launched + linear_share(model)[:, None] * kernels["linear_attention"]["prefill_kernels"]
    launches = prefill * software["kernel_overhead_time"] * launched
    if np.any(plan.graphs == 0.0):
        eager = kernels["serving_eager"]["launch_time"]
        # The gaps between the kernels of a graph are part of what the host takes without one.
        waited = eager * _kernels(work) - work.layer_overhead
        launches = np.where((plan.graphs[:, None] == 0.0) & (prefill == 0.0), waited, launches)
    work = work._replace(layer_launches=launches)
    work = work._replace(parts=_parts(work))
    if architecture.experts and np.any(plan.two_batches > 0.0):
        work = _overlapped(work, batching, phases, kernels["serving_experts"]["exchange_share"])
    layers, passes, transfers = _critical_path(work, model, plan, batching, phases)
    return work._replace(layers=layers, passes=passes, transfers=transfers)


def _overlapped(work: ServingWork, batching: Batching, phases: tuple[int, ...], share: Array) -> ServingWork:
    """Exchanges with experts as far as the other half of the batch computes for a shorter time than they take.

    In the prefill they take a share of the multiprocessors from what is computed meanwhile; in decoding the network's
    adapters send by themselves. What a pass costs once is not paid for each half.
    """
    halves = side_by_side(batching.prefill_halves, batching.decode_halves)[:, list(phases)]
    exchanges, time = work.message_calls[:, 1, None], work.message_time.copy()
    whole = time[..., EXCHANGE]
    computed = total(work.parts[:, :, 0]) - exchanges * whole
    beside = divide(computed, exchanges + 0.0 * computed)
    taken = share * (np.array(phases) == PREFILL)
    seen = np.maximum(whole - beside, 0.0) + taken * np.minimum(whole, beside)
    time[..., EXCHANGE] = np.where(halves > 1.0, seen, whole)
    work = work._replace(message_time=time, pass_overhead=work.pass_overhead / halves)
    return work._replace(parts=_parts(work))


def _phases(values: Array, num_phases: int) -> Array:
    return values.reshape(len(values), num_phases, values.shape[1] // num_phases)


def _kernels(work: ServingWork) -> Array:
    """Kernels of a layer, (rows, phases)."""
    phases = work.message_time.shape[1]
    products = total(_phases(work.gemm_calls, phases)[..., :-ONCE_GEMMS])
    others = total(_phases(work.vector_calls, phases)[..., :-ONCE_VECTORS])
    attention = total(_phases(work.attention_calls, phases))
    return np.asarray(products + others + attention + total(work.message_calls)[:, None])


def _parts(work: ServingWork) -> Array:
    """Times (rows, phases, 2, 5): of a layer and of what runs once; matrix attention vector communication fixed."""
    phases = work.message_time.shape[1]
    parts = np.zeros((len(work.context), phases, 2, 5), order="F")
    matrix = _phases(work.gemm_time * work.gemm_calls, phases)
    attention = _phases(work.attention_time * work.attention_calls, phases)
    vector = _phases(work.vector_time * work.vector_calls, phases)
    parts[:, :, 0, MATRIX] = total(matrix[..., :-ONCE_GEMMS])
    parts[:, :, 1, MATRIX] = total(matrix[..., -ONCE_GEMMS:])
    parts[:, :, 0, ATTENTION] = total(attention)
    parts[:, :, 0, VECTOR] = total(vector[..., :-ONCE_VECTORS])
    parts[:, :, 1, VECTOR] = total(vector[..., -ONCE_VECTORS:])
    reduces, exchanges, contexts = (work.message_calls[:, index, None] for index in range(3))
    each = work.message_time
    parts[:, :, 0, COMMUNICATION] = reduces * each[..., ALL_REDUCE] + exchanges * each[..., EXCHANGE]
    parts[:, :, 0, COMMUNICATION] += contexts * each[..., CONTEXT]
    parts[:, :, 1, COMMUNICATION] = each[..., ALL_REDUCE] + each[..., GATHERING]
    # Without graphs the host launches every kernel: what it takes beyond the kernels of a layer is waited for.
    launching = np.maximum(work.layer_launches - total(parts[:, :, 0]), 0.0)
    parts[:, :, 0, FIXED] = work.layer_overhead + launching
    parts[:, :, 1, FIXED] = work.pass_overhead
    return parts


def _critical_path(
    work: ServingWork, model: Model, plan: InferencePlan, batching: Batching, phases: tuple[int, ...]
) -> tuple[Array, Array, Array]:
    """Layers, passes and transfers (rows, phases) on the critical path of the prefill and of a step of decoding."""
    stages, layers, turns = plan.pipeline_parallel, model.num_layers, batching.micro_batches
    fullest = np.ceil(layers / stages)
    linked = np.minimum(stages - 1.0, 1.0)
    found = []
    if PREFILL in phases:
        more = batching.passes - 1.0
        found.append((layers + more * fullest, 1.0 + more, stages - 1.0 + more * linked))
    if DECODING in phases:
        each = total(work.parts[:, -1])
        layer, once, transfer = each[:, 0], each[:, 1], work.message_time[:, -1, TRANSFER]
        walk = layers * layer + once + (stages - 1.0) * transfer
        turn = turns * (fullest * layer + once + linked * transfer)
        turning = turn > walk
        # Drafted tokens pass a share of the layers one after the other before the step that checks them.
        drafting = 1.0 + plan.draft_tokens * plan.draft_layers / layers
        halves = batching.decode_halves
        found.append(
            (
                halves * np.where(turning, turns * fullest, layers) * drafting,
                halves * np.where(turning, turns, 1.0) * (1.0 + plan.draft_tokens),
                halves * np.where(turning, turns * linked, stages - 1.0),
            )
        )
    path_layers, passes, transfers = (side_by_side(*values) for values in zip(*found, strict=True))
    return path_layers, passes, transfers


def phase_times(work: ServingWork) -> Array:
    """Times of the whole prefill and of one step of decoding on the critical path, by part.

    Parameters
    ----------
    work : ServingWork
        Operators and times.

    Returns
    -------
    Array
        (rows, phases, 5): matrix products, attention, other kernels, communication, fixed costs. [s]
    """
    parts = work.parts
    found = work.layers[..., None] * parts[:, :, 0] + work.passes[..., None] * parts[:, :, 1]
    found[..., COMMUNICATION] += work.transfers * work.message_time[..., TRANSFER]
    return found
