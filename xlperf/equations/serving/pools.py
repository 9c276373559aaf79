"""Results of separate pools: prompts are prefilled in one, their caches sent to the other and decoded there.

The pool that decodes may be two: one for attention, one for experts and other feed-forward layers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, divide
from xlperf.equations.plan.serving_plan import InferencePlan
from xlperf.equations.serving.communication import pool_message_time
from xlperf.equations.serving.deployment import Deployment, RequestLatency
from xlperf.equations.serving.expert_pools import POOL_SHARES, expert_pool_memory, split_step
from xlperf.equations.serving.load import (
    BatchTimes,
    RequestLoad,
    Times,
    bounded_rise,
    half_of,
    octave,
    request_load,
    whole_sizes,
)
from xlperf.equations.serving.memory import ReplicaMemory, memory_of, rank_states_size
from xlperf.equations.serving.place_queue import PlaceWait, place_wait
from xlperf.equations.serving.pool_queueing import Curve, PoolTimes, pooled_open_state, pooled_run_rate, pooled_state
from xlperf.equations.serving.queueing import Service, Steady, step_line
from xlperf.equations.serving.results import (
    arriving_latency,
    batch_memory,
    batch_times,
    step_bound,
    streamed,
    with_request_latency,
)
from xlperf.equations.serving.runs import first_of_run

# Moves to the batches around a state, one or two for almost all plans; and how far down one goes [-]
_MOST_MOVES, _DOWN_RUNNING, _DOWN_PROMPTS = 32, 0.05, 0.75
# The last moves go to the batches next to those before, so that none is passed over again and again [-]
_LAST_MOVES, _NEXT_OCTAVE = 28, (0.9, 1.1)
# Batches so near each other are the same: which side of a batch a state is on is not a matter of rounding [-]
_SAME = 1e-12
_EVENLY = 12.0  # square of the width of a range over the variance of numbers spread evenly over it [-]
# Coefficient of variation of how long equal requests take, assumed: without it waves would stay together for ever
_UNEVEN = 0.01
# First guess: requests that a replica decodes where they arrive at a rate, else a share of those in flight [-]
_FIRST_OPEN, _SHARE_RUNNING = 16.0, 0.75


class PoolLoad(NamedTuple):
    """What the state of two pools follows from, (rows,)."""

    times: BatchTimes  # times of a replica of each
    workload: RequestLoad  # what requests ask of them
    prefillers: Array  # replicas that prefill [-]
    decoders: Array  # replicas that decode [-]
    places: Array  # requests that the cache of a decoding replica has room for, 1 or more [-]
    transfer: Array  # time to send the cache of a prompt [s]
    request_rate: Array  # requests that arrive; NaN: the number in flight is constant [request/s]
    prompt_variation: Array  # coefficient of variation of the prompts [-]
    output_variation: Array  # coefficient of variation of the outputs [-]
    arrival_variation: Array  # coefficient of variation of the times between arrivals [-]
    apart: Array  # how far the lengths of outputs set the requests of a run apart, as `PoolTimes` has it [-]
    request_latency: Array  # time that a request which is alone spends outside the engine [s]
    # What each further request on a prefilling replica adds: the process that takes its requests in handles all of them
    # [s]
    crowd_latency: Array

    def take(self, rows: np.ndarray) -> PoolLoad:
        """The same of some of the plans."""
        times, workload, *numbers = self
        return PoolLoad(times.take(rows), workload.take(rows), *(values[rows] for values in numbers))

    def state(self, times: PoolTimes, requests: Array) -> tuple[Steady, Array]:
        """State with a constant number of requests in flight or with requests that arrive, and prompts of a pass."""
        outside = RequestLatency(self.request_latency, self.crowd_latency)
        closed = pooled_state(times, requests, outside.time(requests / self.prefillers))
        arriving = ~np.isnan(self.request_rate)
        if not arriving.any():
            return closed
        rate = np.where(arriving, self.request_rate, 0.0) + 0.0 * requests
        opened = pooled_open_state(times, rate, self.prompt_variation, self.arrival_variation)
        steady = Steady(*(np.where(arriving, *pair) for pair in zip(opened[0], closed[0], strict=True)))
        return steady, np.where(arriving, opened[1], closed[1])


class Pools(NamedTuple):
    """Two pools of the same plans, (rows,)."""

    decoding: Deployment  # the pool that decodes; its plan counts its own accelerators
    prefilling: Deployment  # the pool that prefills; its plan counts its own accelerators
    memory: ReplicaMemory  # memory of a decoding replica
    load: PoolLoad  # what their state follows from
    experts: Deployment  # expert pools of some of the plans, (expert pools,)
    split: np.ndarray  # those plans, (expert pools,)


class PoolState(NamedTuple):
    """Two pools in steady state, (rows,) or (number, rows)."""

    service: Service  # times of a replica of each
    steady: Steady  # both together
    batch: Array  # requests that a replica decodes together [-]
    prompts: Array  # prompts of a pass of the prefill, rounded down [-]
    prefill: Array  # time of a pass with as many [s]
    best: Array  # requests per second that both pools can take [request/s]
    place_wait: PlaceWait  # wait for a place to decode of requests that arrive at a rate


def pools_of(every: Deployment, requests: Array, split: np.ndarray) -> Pools:
    """The prefill, decoding and expert pools of plans, and the load that they share."""
    number = len(requests)
    decoding, prefilling = every.take(slice(0, number)), every.take(slice(number, 2 * number))
    plan, other, memory = decoding.plan, prefilling.plan, memory_of(decoding)
    # A plan that has room for no request keeps its numbers.
    places = np.maximum(memory.places(plan), 1.0)
    first = first_of_run(plan.run_requests, requests)
    load = PoolLoad(
        BatchTimes.of_pools(every, number, split),
        request_load(plan, other, first, np.zeros(number), np.ones(number), whole_prompts=True),
        np.maximum(other.num_replicas, 1.0),
        np.maximum(plan.num_replicas, 1.0),
        places,
        _transfer_time(prefilling, decoding, memory),
        plan.request_rate,
        plan.prompt_variation,
        plan.output_variation,
        plan.arrival_variation,
        _set_apart(plan, requests),
        *decoding.request_latency,
    )
    return Pools(decoding, prefilling, memory, load, every.take(slice(2 * number, None)), split)


def _set_apart(plan: InferencePlan, requests: Array) -> Array:
    """Square of the part of a cycle that outputs set the requests of a wave apart, in the middle of a run; (rows,)."""
    waves = plan.run_requests / requests
    variance = plan.output_variation * plan.output_variation + _UNEVEN * _UNEVEN
    apart = _EVENLY * variance * 0.5 * waves
    return np.where(np.isnan(waves), np.inf, apart)


def _transfer_time(prefilling: Deployment, decoding: Deployment, memory: ReplicaMemory) -> Array:
    """Time to send the cache of a prompt from a replica that prefilled it to one that decodes it, (rows,). [s]

    The prefix that all prompts have in common is there already. Pools of unlike machines share no tier but the
    outermost of each, and the slower of both sets the pace.
    """
    plan, other = prefilling.plan, decoding.plan
    context = other.new_tokens + other.running_output
    one = memory.keys_size
    if decoding.architecture.linear_attention:
        # The state of linear attention is sent whole, however long the prompt, and without those of drafts.
        one = one + rank_states_size(decoding.model, other) * (context / other.new_tokens)
    one = one * (other.new_tokens / context) * other.pipeline_parallel
    # Each rank of an attention replica sends or receives its part at the same time.
    mine, theirs = (each.attention_parallel * each.context_parallel for each in (plan, other))
    size = (one / np.minimum(mine / theirs, 1.0)) / plan.pipeline_parallel
    return pool_message_time((size, size), plan.replica_ranks, (prefilling, decoding), plan.transfer_bandwidth)


class _Ends(NamedTuple):
    """Times of two pools with the smallest and the largest batches, (rows,), and requests and capacity of a replica."""

    alone: Array
    filled: Array
    most: Array
    last: Array
    places: Array
    decoded: Array


class _Sides(NamedTuple):
    """Batches of the decoding pool and prompts of a prefill pass on both sides of a state, (number, rows). [-]"""

    batch: Array
    larger_batch: Array
    prompts: Array
    more_prompts: Array


def _sides(load: PoolLoad, running: Array, prompts: Array) -> _Sides:
    """Batches and prompts on both sides of a state: powers of two, prompts up to what a pass takes."""
    return _Sides(*whole_sizes(running), *octave(prompts, load.workload.max_prefill_prompts))


def _between(value: Array, low: Array, high: Array) -> np.ndarray:
    """Whether a value lies between two others, or on one of them but for its rounding."""
    return np.asarray((value >= low * (1.0 - _SAME)) & (value <= high * (1.0 + _SAME)))


def _settled(
    load: PoolLoad, ends: _Ends, requests: Array, sides: _Sides, times: Times, turn: int
) -> tuple[Array, Array, Array, Array]:
    """State (6, number, rows), prompts of a pass, and times of a step and of a pass, (number, rows).

    Times are linear between powers of two. Where the state is not between those that were taken they are moved.
    """
    workload, number = load.workload, len(requests)
    step, prefill = times.steps[:number], times.prefills[:number]
    most, same = workload.max_prefill_prompts, 0.0 * requests
    larger_step = bounded_rise(sides.batch, sides.larger_batch, step, times.steps[number:])
    larger_pass = bounded_rise(sides.prompts, sides.more_prompts, prefill, times.prefills[number:])
    steps = np.stack([step, larger_step, ends.last + same])
    passes = np.stack([prefill, larger_pass, ends.filled + same])
    found = PoolTimes(
        pass_times=Curve.through(np.stack([sides.prompts, sides.more_prompts, most + same]), passes),
        one_prefill=ends.alone,
        full_prefill=ends.filled,
        max_prefill_prompts=most,
        stages=workload.pipeline_stages,
        burst=workload.burst_fraction,
        apart=load.apart,
        prefill_replicas=load.prefillers,
        step_times=Curve.through(np.stack([sides.batch, sides.larger_batch, ends.most + same]), steps),
        decode_steps=workload.decode_steps,
        decode_replicas=load.decoders,
        places=ends.places,
        decode_capacity=ends.decoded,
        transfer=load.transfer,
    )
    steady, prompts = load.state(found, requests)
    running = np.clip(np.where(np.isinf(steady.running), 1.0, steady.running), 1.0, ends.places)
    # Below its batches the line is only a guess: a state far below is approached in steps.
    down, up = _NEXT_OCTAVE if turn <= _LAST_MOVES else (_DOWN_RUNNING, np.inf)
    near_batch = np.clip(running, down * sides.batch, up * sides.larger_batch)
    near_prompts = np.maximum(prompts, _DOWN_PROMPTS * sides.prompts)
    settled = _between(near_batch, sides.batch, sides.larger_batch)
    settled &= _between(near_prompts, sides.prompts, sides.more_prompts)
    results = np.stack(steady), prompts, found.step_times.time(running), found.pass_times.time(prompts)
    rows = np.flatnonzero(~settled.all(axis=0) & ~np.isnan(near_batch + near_prompts).any(axis=0))
    if not len(rows) or not turn:
        return results
    some, batch, fewer = load.take(rows), near_batch[:, rows], near_prompts[:, rows]
    moved = _sides(some, np.maximum(batch, 1.0), np.maximum(fewer, 1.0))
    times = some.times.at(
        np.concatenate([moved.batch, moved.larger_batch]), np.concatenate([moved.prompts, moved.more_prompts])
    )
    ends = _Ends(*(values[rows] for values in ends))
    for whole, part in zip(results, _settled(some, ends, requests[:, rows], moved, times, turn - 1), strict=True):
        whole[..., rows] = part
    return results


class _Settled(NamedTuple):
    """Two pools, (number, rows): state, prompts of a pass, times of a step and of a pass, and capacity (rows,)."""

    steady: Steady
    prompts: Array
    step: Array
    prefill: Array
    capacity: Array


def _settled_pools(load: PoolLoad, requests: Array) -> _Settled:
    """State of two pools at given numbers of requests in flight, (number, rows)."""
    workload, places = load.workload, load.places
    most, one = workload.max_prefill_prompts, np.ones_like(places)
    whole, more = whole_sizes(places)
    guess = np.where(np.isnan(load.request_rate), _SHARE_RUNNING * requests / load.decoders, _FIRST_OPEN)
    sides = _sides(load, np.clip(guess, 1.0, places), np.ones_like(guess))
    known = load.times.at(
        np.stack([*sides.batch, *sides.larger_batch, whole, more]),
        np.stack([*sides.prompts, *sides.more_prompts, one, most]),
    )
    alone, filled = known.prefills[-2], bounded_rise(one, most, *known.prefills[-2:])
    step, last = known.steps[-2], bounded_rise(whole, more, *known.steps[-2:])
    full = step + (last - step) * divide(places - whole, more - whole)
    decoded = divide(load.decoders * places, workload.decode_steps * full, np.inf)
    ends, times = _Ends(alone, filled, more, last, places, decoded), Times(*(values[:-2] for values in known))
    values, prompts, step, prefill = _settled(load, ends, requests, sides, times, _MOST_MOVES)
    capacity = np.minimum(load.prefillers * most * workload.pipeline_stages / filled, decoded)
    return _Settled(Steady(*values), prompts, step, prefill, capacity)


def pooled_steady(load: PoolLoad, requests: Array) -> Steady:
    """Steady state of two pools at given numbers of requests in flight, without the times of its whole batches."""
    return _queued(load, _settled_pools(load, requests).steady)[0]


def _queued(load: PoolLoad, steady: Steady) -> tuple[Steady, PlaceWait]:
    """State of two pools with the wait for a place of requests that arrive at a rate, and that wait."""
    arriving = ~np.isnan(load.request_rate)
    waiting = _place_wait(load, steady).chosen(arriving)
    return steady._replace(queue_time=np.where(arriving, waiting.mean, steady.queue_time)), waiting


def pool_state(load: PoolLoad, requests: Array, detailed: bool = False) -> PoolState:
    """Steady state of two pools at given numbers of requests in flight."""
    workload, arriving, shape, places = load.workload, ~np.isnan(load.request_rate), requests.shape, load.places
    requests = requests.reshape(-1, shape[-1])
    number = len(requests)
    values, prompts, step, prefill, capacity = _settled_pools(load, requests)
    running = np.clip(np.where(np.isinf(values.running), 1.0, values.running), 1.0, places)
    batch, fewer = np.ceil(running), np.floor(prompts)
    half = np.where(arriving, half_of(batch), batch)
    steps, passes, *_ = load.times.at(np.concatenate([batch, half]), fewer, detailed)
    line = step, 0.0 * step
    if arriving.any():
        line = step_line(running, step, half, np.where(arriving, np.minimum(steps[number:], step), step))
    share = prefill / (prompts * workload.pipeline_stages)
    capacity = capacity + 0.0 * share
    fixed = (value + 0.0 * share for value in (workload.decode_steps, workload.burst_fraction))
    service = Service(*(value.reshape(shape) for value in (prefill, share, *line, *fixed)))
    steady = Steady(*(value.reshape(shape) for value in values))
    steady, waiting = _queued(load, steady)
    batch, fewer, passes, capacity = (value.reshape(shape) for value in (batch, fewer, passes, capacity))
    return PoolState(service, steady, batch, fewer, passes, capacity, waiting)


def _place_wait(load: PoolLoad, steady: Steady) -> PlaceWait:
    """Wait for a place of the decoding replicas, each with a queue of its own, where requests arrive at a rate."""
    varied = steady.running / load.places, steady.decode_time, load.arrival_variation, load.output_variation
    found = place_wait(load.places, *varied)
    return found.chosen((load.workload.decode_steps > 0.0) | np.isinf(steady.running))


def pooled_results(pools: Pools, requests: Array) -> dict[str, Array]:
    """Results of separate pools for prefill and decoding, the latter with or without an expert pool."""
    plan, other = pools.decoding.plan, pools.prefilling.plan
    service, steady, batch, _, prefill, best, waiting = pool_state(pools.load, requests, detailed=True)
    running = pools.load.times.step(batch)
    loaded = plan.replaced(batch_size=running.batch)
    results = {
        **batch_times(loaded, prefill, running.parts),
        **batch_memory(pools.memory.filled(loaded), pools.memory),
        "bound": step_bound(loaded, running.bound),
    }
    count = plan.num_accelerators + other.num_accelerators
    if len(pools.split):
        count[pools.split] += pools.experts.plan.num_accelerators
        results |= _of_expert_pools(pools, running.batch)
    whole = plan.replaced(num_accelerators=count)
    prefillers = pools.load.prefillers
    rate = _run_rate(pools.load, plan, steady)
    found = streamed(whole, service, steady, results, best, rate, prefillers, np.zeros_like(prefillers), waiting)
    found["queue_time"] = steady.queue_time + steady.prefill_wait
    handled = steady._replace(running=steady.running * (pools.load.decoders / prefillers))
    found = with_request_latency(found, plan, arriving_latency(plan, handled, pools.decoding.request_latency))
    return {**found, "prefill_share": other.num_accelerators / whole.num_accelerators}


def _run_rate(load: PoolLoad, plan: InferencePlan, steady: Steady) -> Array:
    """Requests per second of a run whose outputs vary, else those of the steady state; (rows,)."""
    rate = steady.rate
    rows = np.flatnonzero(~np.isnan(plan.run_requests) & np.isnan(load.request_rate) & (plan.output_variation > 0.0))
    if not len(rows):
        return rate
    ones = np.ones((1, len(rows)))
    last = load.times.take(rows).at(ones, ones[:0]).steps[0]
    running, rate = (steady.running * load.decoders)[rows], rate.copy()
    numbers = plan.run_requests[rows], load.workload.decode_steps[rows], last, plan.output_variation[rows]
    rate[rows] = pooled_run_rate(rate[rows], running, *numbers)
    return rate


def _of_expert_pools(pools: Pools, batch: Array) -> dict[str, Array]:
    """Columns of inference_results about expert pools; NaN for plans without one, (rows,)."""
    running, experts = batch[pools.split], pools.experts
    step, held = split_step(pools.decoding.take(pools.split), experts, running), expert_pool_memory(experts, running)
    found = {
        **dict(zip(POOL_SHARES, step.shares.T, strict=True)),
        "expert_memory": held.used,
        "expert_memory_usable": held.usable,
        "needed_batches": np.where(step.needed > step.batches, step.needed, np.nan),
    }
    results = {name: np.full(len(batch), np.nan) for name in found}
    for name, values in found.items():
        results[name][pools.split] = values
    return results
