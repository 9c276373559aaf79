"""Disaggregated serving: one pool prefills prompts and sends their KV caches to another, which decodes.

The decoding pool may itself be two: one for attention, one for experts and other feed-forward layers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, divide
from xlperf.equations.model.cores import keeps_states
from xlperf.equations.plan.serving_plan import InferencePlan
from xlperf.equations.serving.continuous import (
    arriving_latency,
    batch_memory,
    batch_times,
    step_bound,
    streamed,
    with_request_latency,
)
from xlperf.equations.serving.deployment import Deployment, RequestLatency
from xlperf.equations.serving.load import (
    POOL_SHARES,
    BatchTimes,
    RequestLoad,
    Times,
    bounded_rise,
    expert_pool_memory,
    half_of,
    octave,
    request_load,
    split_step,
    whole_sizes,
)
from xlperf.equations.serving.memory import ReplicaMemory, memory_of, rank_states_size
from xlperf.equations.serving.messages import pool_message_time
from xlperf.equations.serving.pool_queueing import Curve, PoolTimes, pooled_open_state, pooled_run_rate, pooled_state
from xlperf.equations.serving.queueing import PlaceWait, Service, Steady, first_of_run, place_wait, step_line

_MOST_MOVES, _DOWN_RUNNING, _DOWN_PROMPTS = 32, 0.05, 0.75  # most moves of the batches around a state; largest falls
_LAST_MOVES, _NEXT_OCTAVE = 28, (0.9, 1.1)  # the last moves go to adjacent batches, so that the search does not cycle
_SAME = 1e-12  # relative tolerance of batch sizes [-]
_EVENLY = 12.0  # squared width of a uniform distribution over its variance [-]
_UNEVEN = 0.01  # coefficient of variation of the time of equal requests, assumed: it disperses the waves of a run [-]
_FIRST_OPEN, SHARE_RUNNING = (
    16.0,
    0.75,
)  # first guess: decode batch of open arrivals; decoding fraction in closed loops


class PoolLoad(NamedTuple):
    """Load on a prefill and a decode pool, (rows,)."""

    times: BatchTimes  # step and pass times of a replica of each pool
    workload: RequestLoad  # per-request workload
    prefill_replicas: Array  # [-]
    decode_replicas: Array  # [-]
    places: Array  # requests that fit into the cache of a decode replica, 1 or more [-]
    transfer: Array  # time to send the cache of a prompt [s]
    request_rate: Array  # arrival rate; NaN: constant number in flight [request/s]
    prompt_variation: Array  # coefficient of variation of prompt lengths [-]
    output_variation: Array  # coefficient of variation of output lengths [-]
    arrival_variation: Array  # coefficient of variation of interarrival times [-]
    wave_spread: Array  # squared dispersion of the requests of a wave, a fraction of a cycle [-]
    request_latency: Array  # time of a single request outside the engine [s]
    crowd_latency: Array  # added time outside the engine per further request on a prefill replica [s]

    def take(self, rows: np.ndarray) -> PoolLoad:
        """Select rows."""
        times, workload, *numbers = self
        return PoolLoad(times.take(rows), workload.take(rows), *(values[rows] for values in numbers))

    def state(self, times: PoolTimes, requests: Array) -> tuple[Steady, Array]:
        """Steady state of closed loops or of open arrivals, and prompts per prefill pass."""
        outside = RequestLatency(self.request_latency, self.crowd_latency)
        closed = pooled_state(times, requests, outside.time(requests / self.prefill_replicas))
        arriving = ~np.isnan(self.request_rate)
        if not arriving.any():
            return closed
        rate = np.where(arriving, self.request_rate, 0.0) + 0.0 * requests
        opened = pooled_open_state(times, rate, self.prompt_variation, self.arrival_variation)
        steady = Steady(*(np.where(arriving, *pair) for pair in zip(opened[0], closed[0], strict=True)))
        return steady, np.where(arriving, opened[1], closed[1])


class Pools(NamedTuple):
    """Pools of disaggregated plans, (rows,); the plan of each pool counts its own accelerators."""

    decoding: Deployment
    prefilling: Deployment
    memory: ReplicaMemory  # memory of a decode replica
    load: PoolLoad
    experts: Deployment  # expert pools, (expert pools,)
    split: np.ndarray  # row of each expert pool's plan, (expert pools,)


class PoolState(NamedTuple):
    """Two pools in steady state, (rows,) or (number, rows)."""

    service: Service  # service demand on a replica of each pool
    steady: Steady  # state of both pools together
    batch: Array  # decode batch of a replica [-]
    prompts: Array  # prompts per prefill pass, rounded down [-]
    prefill: Array  # time of such a pass [s]
    best: Array  # capacity of both pools [request/s]
    place_wait: PlaceWait  # wait of open arrivals for a place in a decode batch


def pools_of(pools: Deployment, requests: Array, split: np.ndarray) -> Pools:
    """Prefill, decode and expert pools of disaggregated plans, one after the other in ``pools``, and their load."""
    number = len(requests)
    decoding, prefilling = pools.take(slice(0, number)), pools.take(slice(number, 2 * number))
    decode_plan, prefill_plan, memory = decoding.plan, prefilling.plan, memory_of(decoding)
    # A plan whose cache fits no request is evaluated with one.
    places = np.maximum(memory.places(decode_plan), 1.0)
    first = first_of_run(decode_plan.run_requests, requests)
    load = PoolLoad(
        BatchTimes.of_pools(pools, number, split),
        request_load(decode_plan, prefilling, first, np.zeros(number), np.ones(number), whole_prompts=True),
        np.maximum(prefill_plan.num_replicas, 1.0),
        np.maximum(decode_plan.num_replicas, 1.0),
        places,
        _transfer_time(prefilling, decoding, memory),
        decode_plan.request_rate,
        decode_plan.prompt_variation,
        decode_plan.output_variation,
        decode_plan.arrival_variation,
        _wave_spread(decode_plan, requests),
        *_request_latency(decoding, prefilling),
    )
    return Pools(decoding, prefilling, memory, load, pools.take(slice(2 * number, None)), split)


def _request_latency(decoding: Deployment, prefilling: Deployment) -> RequestLatency:
    """Time of requests outside the loops of the engines of both pools, one after the other."""
    first, second = prefilling.request_latency, decoding.request_latency
    return RequestLatency(first.alone + decoding.text_latency.alone, second.crowd)


def _wave_spread(plan: InferencePlan, requests: Array) -> Array:
    """Squared dispersion of the requests of a wave in the middle of a run by their outputs, over a cycle, (rows,)."""
    waves = plan.run_requests / requests
    variance = plan.output_variation * plan.output_variation + _UNEVEN * _UNEVEN
    spread = _EVENLY * variance * 0.5 * waves
    return np.where(np.isnan(waves), np.inf, spread)


def _transfer_time(prefilling: Deployment, decoding: Deployment, memory: ReplicaMemory) -> Array:
    """Time to send the cache of a prompt, shared prefix excluded, from a prefill to a decode replica, (rows,). [s]"""
    plan, decode_plan = prefilling.plan, decoding.plan
    context = decode_plan.new_tokens + decode_plan.running_output
    size = memory.keys_size
    if keeps_states(decoding.architecture):  # of a fixed size; states of drafts are not sent
        states = rank_states_size(decoding.model, decode_plan, decoding.architecture)
        size = size + states * (context / decode_plan.new_tokens)
    size = size * (decode_plan.new_tokens / context) * decode_plan.pipeline_parallel
    # All ranks of an attention replica send or receive their parts at the same time.
    senders, receivers = (each.attention_parallel * each.context_parallel for each in (plan, decode_plan))
    size = (size / np.minimum(senders / receivers, 1.0)) / plan.pipeline_parallel
    return pool_message_time((size, size), plan.replica_ranks, (prefilling, decoding), plan.transfer_bandwidth)


class _Ends(NamedTuple):
    """Pass and step times at the ends of their ranges, (rows,)."""

    one_prefill: Array  # pass of one prompt [s]
    full_prefill: Array  # pass of the most prompts [s]
    largest_batch: Array  # decode batch at or above the places [-]
    largest_step: Array  # its step time [s]
    places: Array  # requests in the cache of a decode replica [-]
    decode_capacity: Array  # of the decode pool [request/s]


class _Sides(NamedTuple):
    """Decode batches and prompts per pass below and above a state, (number, rows). [-]"""

    batch: Array
    larger_batch: Array
    prompts: Array
    more_prompts: Array


def _sides(load: PoolLoad, running: Array, prompts: Array) -> _Sides:
    """Computed batches around a state."""
    return _Sides(*whole_sizes(running), *octave(prompts, load.workload.max_prefill_prompts))


def _between(value: Array, low: Array, high: Array) -> np.ndarray:
    """Whether low <= value <= high within rounding."""
    return np.asarray((value >= low * (1.0 - _SAME)) & (value <= high * (1.0 + _SAME)))


def _settled(
    load: PoolLoad, ends: _Ends, requests: Array, sides: _Sides, times: Times, moves: int
) -> tuple[Array, Array, Array, Array]:
    """State (6, number, rows), prompts of a pass, step and pass times, solved until it is between computed batches."""
    workload, number = load.workload, len(requests)
    most, zeros = workload.max_prefill_prompts, 0.0 * requests
    # Step and pass time curves through the batches on both sides and the largest batch.
    step, prefill = times.steps[:number], times.prefills[:number]
    larger_step = bounded_rise(sides.batch, sides.larger_batch, step, times.steps[number:])
    larger_pass = bounded_rise(sides.prompts, sides.more_prompts, prefill, times.prefills[number:])
    steps = np.stack([step, larger_step, ends.largest_step + zeros])
    passes = np.stack([prefill, larger_pass, ends.full_prefill + zeros])
    pool_times = PoolTimes(
        pass_times=Curve.through(np.stack([sides.prompts, sides.more_prompts, most + zeros]), passes),
        one_prefill=ends.one_prefill,
        full_prefill=ends.full_prefill,
        max_prefill_prompts=most,
        overlap=workload.prefill_overlap,
        burst=workload.burst_fraction,
        wave_spread=load.wave_spread,
        prefill_replicas=load.prefill_replicas,
        step_times=Curve.through(np.stack([sides.batch, sides.larger_batch, ends.largest_batch + zeros]), steps),
        decode_steps=workload.decode_steps,
        decode_replicas=load.decode_replicas,
        places=ends.places,
        decode_capacity=ends.decode_capacity,
        transfer=load.transfer,
    )
    steady, prompts = load.state(pool_times, requests)
    running = np.clip(np.where(np.isinf(steady.running), 1.0, steady.running), 1.0, ends.places)
    # Batches to move to: extrapolation below the computed batches is bounded per move.
    down, up = _NEXT_OCTAVE if moves <= _LAST_MOVES else (_DOWN_RUNNING, np.inf)
    near_batch = np.clip(running, down * sides.batch, up * sides.larger_batch)
    near_prompts = np.maximum(prompts, _DOWN_PROMPTS * sides.prompts)
    settled = _between(near_batch, sides.batch, sides.larger_batch)
    settled &= _between(near_prompts, sides.prompts, sides.more_prompts)
    results = np.stack(steady), prompts, pool_times.step_times.time(running), pool_times.pass_times.time(prompts)
    rows = np.flatnonzero(~settled.all(axis=0) & ~np.isnan(near_batch + near_prompts).any(axis=0))
    if not len(rows) or not moves:
        return results
    part = load.take(rows)
    moved = _sides(part, np.maximum(near_batch[:, rows], 1.0), np.maximum(near_prompts[:, rows], 1.0))
    times = part.times.at(
        np.concatenate([moved.batch, moved.larger_batch]), np.concatenate([moved.prompts, moved.more_prompts])
    )
    ends = _Ends(*(values[rows] for values in ends))
    settled_part = _settled(part, ends, requests[:, rows], moved, times, moves - 1)
    for values, part_values in zip(results, settled_part, strict=True):
        values[..., rows] = part_values
    return results


class _Settled(NamedTuple):
    """Settled state of two pools, (number, rows)."""

    steady: Steady
    prompts: Array  # prompts per prefill pass [-]
    step: Array  # [s]
    prefill: Array  # prefill pass [s]
    capacity: Array  # (rows,) [request/s]


def _settled_pools(load: PoolLoad, requests: Array) -> _Settled:
    """Settled state at given numbers of requests in flight, (number, rows)."""
    workload, places = load.workload, load.places
    most, one = workload.max_prefill_prompts, np.ones_like(places)
    # Times around a first guess of the state and at the ends of the ranges, in one call.
    lower, upper = whole_sizes(places)
    guess = np.where(np.isnan(load.request_rate), SHARE_RUNNING * requests / load.decode_replicas, _FIRST_OPEN)
    sides = _sides(load, np.clip(guess, 1.0, places), np.ones_like(guess))
    times = load.times.at(
        np.stack([*sides.batch, *sides.larger_batch, lower, upper]),
        np.stack([*sides.prompts, *sides.more_prompts, one, most]),
    )
    one_prefill, full_prefill = times.prefills[-2], bounded_rise(one, most, *times.prefills[-2:])
    # Capacity of the decode pool: a step with a full cache, interpolated between two computed batches.
    step, largest_step = times.steps[-2], bounded_rise(lower, upper, *times.steps[-2:])
    full_step = step + (largest_step - step) * divide(places - lower, upper - lower)
    decode_capacity = divide(load.decode_replicas * places, workload.decode_steps * full_step, np.inf)
    ends = _Ends(one_prefill, full_prefill, upper, largest_step, places, decode_capacity)
    around = Times(*(values[:-2] for values in times))
    state, prompts, step, prefill = _settled(load, ends, requests, sides, around, _MOST_MOVES)
    prefill_capacity = load.prefill_replicas * most * workload.prefill_overlap / full_prefill
    return _Settled(Steady(*state), prompts, step, prefill, np.minimum(prefill_capacity, decode_capacity))


def pooled_steady(load: PoolLoad, requests: Array) -> Steady:
    """Steady state of two pools at given numbers of requests in flight, from interpolated times."""
    return _queued(load, _settled_pools(load, requests).steady)[0]


def _queued(load: PoolLoad, steady: Steady) -> tuple[Steady, PlaceWait]:
    """State with the wait of open arrivals for a place, and that wait; each decode replica has a queue of its own."""
    arriving = ~np.isnan(load.request_rate)
    utilisation = steady.running / load.places
    wait = place_wait(load.places, utilisation, steady.decode_time, load.arrival_variation, load.output_variation)
    wait = wait.chosen((load.workload.decode_steps > 0.0) | np.isinf(steady.running)).chosen(arriving)
    return steady._replace(queue_time=np.where(arriving, wait.mean, steady.queue_time)), wait


def pool_state(load: PoolLoad, requests: Array, detailed: bool = False) -> PoolState:
    """Steady state of two pools at numbers of requests in flight; ``detailed``: with times of its integer batches."""
    workload, arriving, shape, places = load.workload, ~np.isnan(load.request_rate), requests.shape, load.places
    requests = requests.reshape(-1, shape[-1])
    number = len(requests)
    state, prompts, step, prefill, capacity = _settled_pools(load, requests)
    running = np.clip(np.where(np.isinf(state.running), 1.0, state.running), 1.0, places)
    batch, whole_prompts = np.ceil(running), np.floor(prompts)
    line, passes = (step, 0.0 * step), prefill
    if detailed or arriving.any():
        # Times of the integer batches; open arrivals need the slope of the step time as well.
        half = np.where(arriving, half_of(batch), batch)
        steps, passes, *_ = load.times.at(np.concatenate([batch, half]), whole_prompts, detailed)
    if arriving.any():
        line = step_line(running, step, half, np.where(arriving, np.minimum(steps[number:], step), step))
    share = prefill / (prompts * workload.prefill_overlap)
    capacity = capacity + 0.0 * share
    fixed = (value + 0.0 * share for value in (workload.decode_steps, workload.burst_fraction))
    service = Service(*(value.reshape(shape) for value in (prefill, share, *line, *fixed)))
    steady = Steady(*(value.reshape(shape) for value in state))
    steady, waiting = _queued(load, steady)
    batch, whole_prompts, passes, capacity = (
        value.reshape(shape) for value in (batch, whole_prompts, passes, capacity)
    )
    return PoolState(service, steady, batch, whole_prompts, passes, capacity, waiting)


def pooled_results(pools: Pools, requests: Array, detailed: bool = True) -> dict[str, Array]:
    """Results of disaggregated pools, with or without an expert pool; ``detailed``: with the parts of a step."""
    plan, prefill_plan, load = pools.decoding.plan, pools.prefilling.plan, pools.load
    service, steady, batch, _, prefill, capacity, wait = pool_state(load, requests, detailed)
    # The decode batch as a static batch.
    loaded = plan.replaced(batch_size=batch)
    results = batch_memory(pools.memory.filled(loaded), pools.memory)
    if detailed:
        step = load.times.step(batch)
        results |= {**batch_times(loaded, prefill, step.parts), "bound": step_bound(loaded, step.bound)}
    count = plan.num_accelerators + prefill_plan.num_accelerators
    if len(pools.split):
        count[pools.split] += pools.experts.plan.num_accelerators
        results |= _expert_pool_results(pools, batch)
    # The stream of requests over all accelerators; queues of both pools count as queue time.
    whole, replicas = plan.replaced(num_accelerators=count), load.prefill_replicas
    rate = _run_rate(load, plan, steady)
    results = streamed(whole, service, steady, results, capacity, rate, replicas, np.zeros_like(replicas), wait)
    results["queue_time"] = steady.queue_time + steady.prefill_wait
    handled = steady._replace(running=steady.running * (load.decode_replicas / replicas))
    outside = _request_latency(pools.decoding, pools.prefilling)
    results = with_request_latency(results, plan, arriving_latency(plan, handled, outside))
    return {**results, "prefill_share": prefill_plan.num_accelerators / whole.num_accelerators}


def _run_rate(load: PoolLoad, plan: InferencePlan, steady: Steady) -> Array:
    """Requests per second: of a finite run with varying outputs, else of the steady state, (rows,)."""
    rate = steady.rate
    rows = np.flatnonzero(~np.isnan(plan.run_requests) & np.isnan(load.request_rate) & (plan.output_variation > 0.0))
    if not len(rows):
        return rate
    ones = np.ones((1, len(rows)))
    last = load.times.take(rows).at(ones, ones[:0]).steps[0]
    running, rate = (steady.running * load.decode_replicas)[rows], rate.copy()
    numbers = plan.run_requests[rows], load.workload.decode_steps[rows], last, plan.output_variation[rows]
    rate[rows] = pooled_run_rate(rate[rows], running, *numbers)
    return rate


def _expert_pool_results(pools: Pools, batch: Array) -> dict[str, Array]:
    """Result columns of expert pools; NaN for plans without one, (rows,)."""
    running, experts = batch[pools.split], pools.experts
    step, memory = split_step(pools.decoding.take(pools.split), experts, running), expert_pool_memory(experts, running)
    columns = {
        **dict(zip(POOL_SHARES, step.shares.T, strict=True)),
        "expert_memory": memory.used,
        "expert_memory_usable": memory.usable,
        "needed_batches": np.where(step.needed > step.batches, step.needed, np.nan),
    }
    results = {name: np.full(len(batch), np.nan) for name in columns}
    for name, values in columns.items():
        results[name][pools.split] = values
    return results
