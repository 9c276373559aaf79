"""Results of separate pools: prompts are prefilled in one, their caches sent to the other and decoded there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from xlperf.arrays import Array, divide
from xlperf.inference.halves import HalfPasses
from xlperf.inference.load import Service, Steady, pooled_state
from xlperf.inference.loaded import MOST_OPEN, Demand, demand_of, half_of, streamed
from xlperf.inference.results import Room, batch_results
from xlperf.inference.serving import Serving, Stream
from xlperf.network.collectives import collective_time


class PoolLoad(NamedTuple):
    """What the state of two pools follows from, (rows,).

    Attributes
    ----------
    halves : HalfPasses
        Times of a replica of each.
    demand : Demand
        What requests ask of them.
    prefillers : Array
        Replicas that prefill. [-]
    decoders : Array
        Replicas that decode. [-]
    places : Array
        Requests that the cache of a decoding replica has room for, 1 or more. [-]
    limit : Array
        The same, infinite where there is room for none: such a plan keeps its numbers. [-]
    transfer : Array
        Time to send the cache of a prompt. [s]
    request_rate : Array
        Requests that arrive; NaN: the number in flight is constant. [request/s]
    prompt_variation : Array
        Coefficient of variation of the prompts. [-]
    """

    halves: HalfPasses
    demand: Demand
    prefillers: Array
    decoders: Array
    places: Array
    limit: Array
    transfer: Array
    request_rate: Array
    prompt_variation: Array

    def take(self, rows: np.ndarray) -> PoolLoad:
        """That of some of the plans."""
        return PoolLoad(self.halves.take(rows), self.demand.take(rows), *(values[rows] for values in self[2:]))

    def state(self, service: Service, requests: Array) -> Steady:
        """Both pools together, with a constant number of requests in flight or with requests that arrive."""
        closed = pooled_state(service, requests, self.prefillers, self.decoders, self.places, self.transfer)
        arriving = ~np.isnan(self.request_rate)
        if not arriving.any():
            return closed
        rate = np.where(arriving, self.request_rate, 0.0)
        opened = service.pooled_open_state(
            rate, self.prefillers, self.decoders, self.limit, self.transfer, self.prompt_variation
        )
        return Steady(*(np.where(arriving, *pair) for pair in zip(opened, closed, strict=True)))


class Pools(NamedTuple):
    """Two pools of the same plans, (rows,).

    Attributes
    ----------
    decoding : Serving
        The pool that decodes; its plan counts its own accelerators.
    prefilling : Serving
        The pool that prefills; its plan counts its own accelerators.
    room : Room
        Memory of a decoding replica.
    load : PoolLoad
        What their state follows from.
    """

    decoding: Serving
    prefilling: Serving
    room: Room
    load: PoolLoad


class PoolState(NamedTuple):
    """Two pools in steady state, (rows,) or (number, rows).

    Attributes
    ----------
    service : Service
        Times of a replica of each.
    steady : Steady
        Both together.
    batch : Array
        Requests that a replica decodes together. [-]
    prompts : Array
        Prompts that a replica prefills together. [-]
    best : Array
        Requests per second that both pools can take. [request/s]
    """

    service: Service
    steady: Steady
    batch: Array
    prompts: Array
    best: Array


def pools_of(both: Serving, decoding: Serving, prefilling: Serving, stream: Stream) -> Pools:
    """Two pools of the same plans.

    Parameters
    ----------
    both : Serving
        The pools that decode, then, in the same order, those that prefill, (2 x rows,).
    decoding : Serving
        The former alone; its plan counts its own accelerators, (rows,).
    prefilling : Serving
        The latter alone; its plan counts its own accelerators, (rows,).
    stream : Stream
        Requests, (rows,).

    Returns
    -------
    Pools
        Each by itself and what their state follows from, (rows,).
    """
    plan, other, room = decoding.plan, prefilling.plan, decoding.room()
    load = PoolLoad(
        HalfPasses(both, pools=True),
        demand_of(plan, other, stream),
        np.maximum(other.num_replicas, 1.0),
        np.maximum(plan.num_replicas, 1.0),
        np.maximum(room.places, 1.0),
        np.where(room.places >= 1.0, room.places, np.inf),
        _transfer_time(prefilling, decoding, room.memory),
        stream.request_rate,
        stream.prompt_variation,
    )
    return Pools(decoding, prefilling, room, load)


def _transfer_time(prefilling: Serving, decoding: Serving, memory: Mapping[str, Array]) -> Array:
    """Time to send the cache of a prompt from a replica that prefilled it to one that decodes it, (rows,). [s]"""
    plan, other = prefilling.plan, decoding.plan
    context = other.prompt_length + other.running_output
    one = memory["kv_cache_size"]
    if decoding.architecture.linear_attention:
        # The state of linear attention is sent whole, however long the prompt, and without those of drafts.
        state = memory["state_size"]
        one = one - state + state * (context / other.prompt_length) / (1.0 + other.draft_tokens)
    one = one * (other.prompt_length / context) * other.pipeline_parallel
    # Each rank of a copy of the attention sends or receives its part at the same time.
    mine, theirs = (each.attention_parallel * each.context_parallel for each in (plan, other))
    size = (one / np.minimum(mine / theirs, 1.0))[:, None] / plan.pipeline_parallel[:, None]
    apart, pair = plan.replica_ranks[:, None], np.full_like(size, 2.0)
    constants = prefilling.kernels["point_to_point"]
    return collective_time("point_to_point", size, pair, apart, prefilling.network, constants)[:, 0]


def pool_state(load: PoolLoad, requests: Array, detailed: bool = False) -> PoolState:
    """Two pools with some numbers of requests in flight.

    Parameters
    ----------
    load : PoolLoad
        What their state follows from, (rows,).
    requests : Array
        Requests in flight over both pools, (rows,) or (number, rows). [-]
    detailed : bool, default False
        Whether the step of the first number will be asked for in detail.

    Returns
    -------
    PoolState
        Times, state and capacity, in the shape of the requests.
    """
    halves, demand, arriving = load.halves, load.demand, ~np.isnan(load.request_rate)
    shape, number = requests.shape, requests.size // len(load.places)
    batch = np.minimum(np.ceil(np.maximum(requests / load.decoders, 1.0)), load.places)
    if arriving.any():
        batch = np.where(arriving, np.minimum(load.places, MOST_OPEN), batch)
        requests = np.where(arriving, load.prefillers, requests)
    prompts = demand.prompts(requests / load.prefillers)
    steps, prefills = halves.times(
        _stacked(batch, half_of(batch), load.places), _stacked(prompts, demand.most_prompts), detailed
    )
    prefill, step, half = (times.reshape(shape) for times in (prefills[:-1], steps[:number], steps[number:-1]))
    share = demand.shared(requests, prompts, prefill)
    service = demand.service(batch, step, half, prefill, share)
    steady, first = load.state(service, requests), batch
    batch = np.maximum(np.minimum(np.ceil(steady.running), load.places), 1.0)
    if not np.array_equal(batch, first):
        later, _ = halves.times(_stacked(batch, half_of(batch)), _stacked(prompts)[:0], detailed)
        service = demand.service(batch, later[:number].reshape(shape), later[number:].reshape(shape), prefill, share)
        steady = load.state(service, requests)
    sent = load.prefillers * demand.most_prompts * demand.stages / prefills[-1]
    decoded = divide(load.decoders * load.places, service.steps * steps[-1], np.inf)
    return PoolState(service, steady, batch, prompts, np.maximum(np.minimum(sent, decoded), steady.rate))


def _stacked(*values: Array) -> Array:
    """Arrays (rows,) and (number, rows) one above the other."""
    return np.concatenate([each.reshape(-1, each.shape[-1]) for each in values])


def pooled_results(pools: Pools, stream: Stream, requests: Array) -> dict[str, Array]:
    """Results of separate pools for prefill and decoding.

    Parameters
    ----------
    pools : Pools
        As :func:`pools_of` has them, (rows,).
    stream : Stream
        Requests, (rows,).
    requests : Array
        Requests in flight over both pools, (rows,). [-]

    Returns
    -------
    dict of str to Array
        Columns of inference_results, (rows,), of both pools together; memory is that of the decoding pool.
    """
    plan, other = pools.decoding.plan, pools.prefilling.plan
    service, steady, batch, _, best = pool_state(pools.load, requests, detailed=True)
    running = pools.load.halves.step(batch)
    loaded = replace(plan, batch_size=running.batch)
    results = batch_results(loaded, pools.room.with_batch(loaded), service.prefill_time, running.parts, running.bound)
    whole = replace(plan, num_accelerators=plan.num_accelerators + other.num_accelerators)
    prefillers = pools.load.prefillers
    found = streamed(whole, stream, service, steady, results, best, steady.rate, prefillers, np.zeros_like(prefillers))
    share = other.num_accelerators / whole.num_accelerators
    return {**found, "prefill_share": share, "prefill_time": service.prefill_time}
