"""Results of separate pools: prompts are prefilled in one, their caches sent to the other and decoded there."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from xlperf.arrays import Array, divide
from xlperf.inference.load import Service, Steady, pooled_state
from xlperf.inference.loaded import (
    MOST_OPEN,
    Serving,
    Stream,
    decoding_line,
    places_of,
    prompts_together,
    streamed,
    token_rates,
)
from xlperf.inference.results import serving_memory
from xlperf.network.collectives import collective_time
from xlperf.workload.serving import DECODING, PREFILL


def _transfer_time(serving: Serving, receiver: Serving) -> Array:
    """Time to send the cache of a prompt from a replica that prefilled it to one that decodes it.

    Parameters
    ----------
    serving : Serving
        Pool of the prefill, (rows,).
    receiver : Serving
        Pool of decoding, (rows,).

    Returns
    -------
    Array
        (rows,). [s]
    """
    plan, other = serving.plan, receiver.plan
    memory = serving_memory(receiver.model, receiver.plan, receiver.architecture)
    context = other.prompt_length + other.running_output
    one = memory["kv_cache_size"] * (other.prompt_length / context) * other.pipeline_parallel
    if receiver.architecture.linear_attention:
        # The state of linear attention is sent whole, however long the prompt.
        state, share = memory["state_size"], other.prompt_length / context
        one = (memory["kv_cache_size"] - state) * share + state / (1.0 + other.draft_tokens)
        one = one * other.pipeline_parallel
    # Each rank of a copy of the attention sends or receives its part at the same time.
    mine, theirs = (each.attention_parallel * each.context_parallel for each in (plan, other))
    size = (one / np.minimum(mine / theirs, 1.0))[:, None] / plan.pipeline_parallel[:, None]
    apart = plan.replica_ranks[:, None]
    pair = np.full_like(size, 2.0)
    return collective_time("point_to_point", size, pair, apart, serving.network, serving.kernels["point_to_point"])[
        :, 0
    ]


class Pools(NamedTuple):
    """Two pools in steady state, (rows,).

    Attributes
    ----------
    decoding : Serving
        The pool that decodes, with the batch that it decodes.
    prefilling : Serving
        The pool that prefills, with the prompts that it takes together.
    service : Service
        Times of a replica of each.
    steady : Steady
        Both together.
    results : dict
        Of the decoding batch, as a static one.
    transfer : Array
        Time to send the cache of a prompt, (rows,). [s]
    places : Array
        Requests that the cache of a decoding replica has room for, (rows,). [-]
    """

    decoding: Serving
    prefilling: Serving
    service: Service
    steady: Steady
    results: dict[str, Array]
    transfer: Array
    places: Array


def pools_of(decoding: Serving, prefilling: Serving, stream: Stream, requests: Array) -> Pools:
    """Two pools with a number of requests in flight.

    Parameters
    ----------
    decoding : Serving
        The pool that decodes; its plan counts its own accelerators, (rows,).
    prefilling : Serving
        The pool that prefills; its plan counts its own accelerators, (rows,).
    stream : Stream
        Requests, (rows,).
    requests : Array
        Requests in flight over both pools, (rows,). [-]

    Returns
    -------
    Pools
        Their steady state.
    """
    plan, other = decoding.plan, prefilling.plan
    steps = np.maximum(plan.output_length - 1.0, 0.0) / plan.tokens_per_step
    decoders, prefillers = np.maximum(plan.num_replicas, 1.0), np.maximum(other.num_replicas, 1.0)
    room = places_of(decoding)
    # A plan that has room for no request keeps its numbers.
    places, room = np.maximum(room, 1.0), np.where(room >= 1.0, room, np.inf)
    active = np.minimum(np.ceil(np.maximum(requests / decoders, 1.0)), places)
    arriving = ~np.isnan(stream.request_rate)
    if arriving.any():
        active = np.where(arriving, np.minimum(places, MOST_OPEN), active)
        requests = np.where(arriving, prefillers, requests)
    prompts = prompts_together(other, requests / prefillers, steps, stream.waiting_share)
    together = prefilling.with_batch(prompts, prompts)
    prefill = together.times((PREFILL,))[:, 0]
    parts = prompts * np.maximum(np.minimum(other.pipeline_parallel, requests), 1.0)

    def service_at(full: Serving, per_token: Array) -> Service:
        base, slope = decoding_line(full, steps, per_token)
        return Service(prefill, prefill / parts, base, slope, steps, stream.waiting_share)

    def state_of(service: Service) -> Steady:
        closed = pooled_state(service, requests, prefillers, decoders, places, transfer)
        if not arriving.any():
            return closed
        rate = np.where(arriving, stream.request_rate, 0.0)
        opened = service.pooled_open_state(rate, prefillers, decoders, room, transfer, stream.prompt_variation)
        return Steady(*(np.where(arriving, *pair) for pair in zip(opened, closed, strict=True)))

    ones = np.ones_like(active)
    full = decoding.with_batch(active, ones)
    service = service_at(full, full.times((DECODING,))[:, 0] / plan.tokens_per_step)
    transfer = _transfer_time(prefilling, decoding)
    steady = state_of(service)
    full = decoding.with_batch(np.maximum(np.minimum(np.ceil(steady.running), places), 1.0), ones)
    results = full.results((DECODING,))
    service = service_at(full, results["tpot"])
    steady = state_of(service)
    return Pools(full, together, service, steady, results, transfer, places)


def pooled_results(decoding: Serving, prefilling: Serving, stream: Stream, requests: Array) -> dict[str, Array]:
    """Results of separate pools for prefill and decoding.

    Parameters
    ----------
    decoding : Serving
        The pool that decodes; its plan counts its own accelerators, (rows,).
    prefilling : Serving
        The pool that prefills; its plan counts its own accelerators, (rows,).
    stream : Stream
        Requests, (rows,).
    requests : Array
        Requests in flight over both pools, (rows,). [-]

    Returns
    -------
    dict of str to Array
        Columns of inference_results, (rows,), of both pools together; memory is that of the decoding pool.
    """
    plan, other = decoding.plan, prefilling.plan
    decoders, prefillers = np.maximum(plan.num_replicas, 1.0), np.maximum(other.num_replicas, 1.0)
    pools = pools_of(decoding, prefilling, stream, requests)
    service, steady = pools.service, pools.steady
    most = prompts_together(other, np.inf + 0.0 * requests, service.steps, stream.waiting_share)
    prefill = prefilling.with_batch(most, most).prefill_unless(pools.prefilling, service.prefill_time)
    step = decoding.with_batch(pools.places, np.ones_like(most)).times((DECODING,))[:, 0]
    sent = prefillers * most * other.pipeline_parallel / prefill
    decoded = divide(decoders * pools.places, service.steps * step, np.inf)
    best = np.maximum(np.minimum(sent, decoded), steady.rate)
    both = replace(decoding, plan=replace(plan, num_accelerators=plan.num_accelerators + other.num_accelerators))
    found = streamed(
        both, stream, service, steady, pools.results, best, steady.rate, prefillers, np.zeros_like(prefillers)
    )
    paid = token_rates(both.plan, steady.rate, other.num_accelerators / both.plan.num_accelerators)
    return {**found, **paid, "prefill_time": service.prefill_time}
