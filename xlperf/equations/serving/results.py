"""Inference result columns: of a static batch, and under a stream of requests."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, divide, total
from xlperf.equations.model.serving import DECODING, PREFILL
from xlperf.equations.plan.serving_plan import InferencePlan
from xlperf.equations.serving.deployment import Deployment, RequestLatency
from xlperf.equations.serving.memory import ReplicaMemory, memory_of
from xlperf.equations.serving.phases import (
    ATTENTION,
    COMMUNICATION,
    FIXED,
    MATRIX,
    VECTOR,
    ServingWork,
    phase_times,
    serving_bound,
    serving_work,
)
from xlperf.equations.serving.place_queue import PlaceWait
from xlperf.equations.serving.queueing import Service, Steady, spread_quantiles

QUANTILE_NAMES = ("median", "ninetieth", "ninety_ninth")


def serving_times(deployment: Deployment) -> dict[str, Array]:
    """Times and rates of a static batch, which a replica holds from the first prompt to the last token."""
    return _times_of_work(deployment, serving_work(deployment))


def _times_of_work(deployment: Deployment, work: ServingWork) -> dict[str, Array]:
    parts, plan = phase_times(work), deployment.plan
    prefill = total(parts[:, PREFILL])
    # A static batch is one request to the engine.
    outside = deployment.request_latency.time(np.ones_like(prefill))
    return with_request_latency(batch_times(plan, prefill, parts[:, DECODING]), plan, outside)


def serving_results(deployment: Deployment) -> dict[str, Array]:
    """Results of a static batch: times, rates, memory and limiting resource."""
    work, plan = serving_work(deployment), deployment.plan
    bound = step_bound(plan, serving_bound(deployment, work))
    return {**_times_of_work(deployment, work), **batch_memory(plan, memory_of(deployment)), "bound": bound}


def batch_times(plan: InferencePlan, prefill: Array, parts: Array) -> dict[str, Array]:
    """Times and rates of a static batch, from its prefill time and the parts of a decode step (rows, 5)."""
    steps = plan.output_length - 1.0
    tokens = plan.tokens_per_step
    step = total(parts) / tokens
    decode = steps * step
    latency = prefill + decode
    rate = plan.concurrency * plan.output_length / latency
    per_token = np.where(steps > 0.0, step, np.nan)
    return {
        "ttft": prefill,
        "tpot": per_token,
        "tpot_itl": latency / plan.output_length,
        "latency": latency,
        "tokens_per_second": rate,
        "tokens_per_second_per_accelerator": rate / plan.num_accelerators,
        "prefill_time": prefill,
        "decode_time": decode,
        **{f"ttft_{quantile}": prefill for quantile in QUANTILE_NAMES},
        **{f"tpot_{quantile}": per_token for quantile in QUANTILE_NAMES},
        "queue_time": 0.0 * prefill,
        "running_batch": plan.batch_size + 0.0 * prefill,
        "max_request_rate": rate / plan.output_length,
        "time_matrix": parts[:, MATRIX] / tokens,
        "time_attention": parts[:, ATTENTION] / tokens,
        "time_vector": parts[:, VECTOR] / tokens,
        "time_communication": parts[:, COMMUNICATION] / tokens,
        "time_overhead": parts[:, FIXED] / tokens,
        "prefill_share": prefill / latency,
    }


def step_bound(plan: InferencePlan, bound: Array) -> Array:
    """Limiting resource of a decode step; NaN for plans without one."""
    return np.where(plan.output_length > 1.0, bound, np.nan)


def batch_memory(plan: InferencePlan, memory: ReplicaMemory) -> dict[str, Array]:
    """Memory of a static batch, and whether it fits."""
    batch = memory.with_batch(plan)
    used, usable = batch.used, batch.usable
    return {
        "memory": used,
        "memory_weights": batch.weights,
        "memory_kv_cache": batch.kv_cache,
        "memory_activations": batch.activations,
        "memory_capacity": memory.capacity,
        "max_batch_size": memory.max_batch_size,
        "max_concurrency": memory.max_concurrency,
        "kv_cache_tokens": memory.max_concurrency * plan.context_length,
        "memory_usable": usable,
        "request_cache": memory.kv_cache_size,
        "places": memory.places(plan),
        "fits": np.where(np.isnan(used + usable), np.nan, used <= usable),
    }


def streamed(
    plan: InferencePlan,
    service: Service,
    steady: Steady,
    results: dict[str, Array],
    best: Array,
    rate: Array,
    prefill_replicas: Array,
    interrupting: Array,
    place_wait: PlaceWait | None = None,
) -> dict[str, Array]:
    """Results under a stream of requests, from the steady state and ``results`` of the decode batch as a static batch.

    ``best`` is the capacity and ``rate`` the throughput of the deployment; ``interrupting`` is 1 if prefills interrupt
    decoding, 0 for a pool of their own.
    """
    arriving = ~np.isnan(plan.request_rate)
    tokens = plan.tokens_after_first
    first = steady.first_token + steady.queue_time
    latency = first + steady.decode_time
    per_token = np.where(tokens > 0.0, steady.decode_time / np.maximum(tokens, 1.0), np.nan)
    decoding = service.decode_steps * service.step_time(steady.running) / np.maximum(steady.running, 1.0)
    results = {
        **results,
        "ttft": first,
        "tpot": per_token,
        "tpot_itl": latency / plan.output_length,
        "latency": latency,
        "tokens_per_second": rate * plan.output_length,
        "tokens_per_second_per_accelerator": rate * plan.output_length / plan.num_accelerators,
        "queue_time": steady.queue_time,
        "running_batch": steady.running,
        "max_request_rate": best,
        "decode_time": steady.decode_time,
        "prefill_share": service.added_share / (service.added_share + decoding),
    }
    # Quantiles of closed loops and of open arrivals.
    varied = plan.prompt_variation, plan.output_variation
    sides = [side for side in (False, True) if (arriving == side).any()]
    spread = [
        spread_quantiles(
            service, steady, tokens, *varied, side, prefill_replicas, interrupting, place_wait, plan.arrival_variation
        )
        for side in sides
    ]
    for name, *quantiles in zip(("ttft", "tpot"), *spread, strict=True):
        values = quantiles[0] if len(sides) == 1 else np.where(arriving[:, None], quantiles[1], quantiles[0])
        values = values if name == "ttft" else np.where(tokens[:, None] > 0.0, values, np.nan)
        results |= {f"{name}_{quantile}": values[:, index] for index, quantile in enumerate(QUANTILE_NAMES)}
    return results


def arriving_latency(plan: InferencePlan, steady: Steady, latency: RequestLatency) -> Array:
    """Latency outside the engine that open arrivals add to a state; 0 for closed loops, whose cycle includes it. [s]"""
    running = np.where(np.isfinite(steady.running), steady.running, 1.0)
    return np.where(np.isnan(plan.request_rate), 0.0, latency.time(running))


def with_request_latency(results: dict[str, Array], plan: InferencePlan, outside: Array) -> dict[str, Array]:
    r"""Results with latency tau outside the engine added to the time to first token; decode steps do not change.

    The throughput of a closed loop falls as its latency L grows (Little's law); open arrivals keep their rate.

    .. math:: L' = L + \tau

    By definition.
    """
    latency = results["latency"] + outside
    slowdown = np.where(np.isnan(plan.request_rate), divide(results["latency"], latency, 1.0), 1.0)
    changed = {name: results[name] * slowdown for name in ("tokens_per_second", "tokens_per_second_per_accelerator")}
    for name in ("ttft", *(f"ttft_{quantile}" for quantile in QUANTILE_NAMES)):
        changed[name] = results[name] + outside
    return {**results, **changed, "latency": latency, "tpot_itl": latency / plan.output_length}
