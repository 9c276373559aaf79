"""Continuous batching: replicas that prefill and decode under a stream of requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, divide, side_by_side, some, total
from xlperf.equations.model.operators import DECODING, PREFILL
from xlperf.equations.plan.serving_plan import InferencePlan
from xlperf.equations.serving import phases, queueing
from xlperf.equations.serving.deployment import Deployment, RequestLatency
from xlperf.equations.serving.load import BatchTimes, Cycle, RequestLoad, bounded_rise, half_of, octave, request_load
from xlperf.equations.serving.memory import ReplicaMemory, memory_of
from xlperf.equations.serving.queueing import place_wait

_FEW_PLANS = 16
QUANTILE_NAMES = ("median", "ninetieth", "ninety_ninth")


def serving_times(deployment: Deployment) -> dict[str, Array]:
    """Times and rates of a static batch, which a replica holds from the first prompt to the last token."""
    return _times_of_parts(deployment, phases.phase_times(phases.serving_work(deployment)))


def _times_of_parts(deployment: Deployment, parts: Array) -> dict[str, Array]:
    prefill, plan = total(parts[:, PREFILL]), deployment.plan
    # A static batch is one request to the engine.
    outside = deployment.request_latency.time(np.ones_like(prefill))
    return with_request_latency(batch_times(plan, prefill, parts[:, DECODING]), plan, outside)


def serving_results(deployment: Deployment) -> dict[str, Array]:
    """Results of a static batch: times, rates, memory and limiting resource."""
    plan, number = deployment.plan, len(deployment.plan)
    doubled = number if number <= _FEW_PLANS else 0  # whose steps on faster machines cost less than a second call
    every = phases.with_doubled(deployment, np.arange(number)) if doubled else deployment
    work = phases.serving_work(every)
    bound = step_bound(plan, phases.serving_bound(every, work, doubled))
    times = _times_of_parts(deployment, phases.phase_times(work)[:number])
    return {**times, **batch_memory(plan, memory_of(deployment)), "bound": bound}


def batch_times(plan: InferencePlan, prefill: Array, parts: Array) -> dict[str, Array]:
    """Times and rates of a static batch, from its prefill time and the parts of a decode step (rows, 5)."""
    # All outputs start with the prefill's token; the others take a step each, shared by accepted drafts.
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
        "time_matrix": parts[:, phases.MATRIX] / tokens,
        "time_attention": parts[:, phases.ATTENTION] / tokens,
        "time_vector": parts[:, phases.VECTOR] / tokens,
        "time_communication": parts[:, phases.COMMUNICATION] / tokens,
        "time_overhead": parts[:, phases.FIXED] / tokens,
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
        "memory_adapters": memory.adapters,
        "adapter_load_time": memory.adapter_load_time,
        "memory_host": batch.host + 0.0 * used,
        "host_capacity": memory.host_capacity,
        "request_cache": memory.kv_cache_size,
        "places": memory.places(plan),
        "fits": np.where(np.isnan(used + usable), np.nan, used <= usable),
    }


def streamed(
    plan: InferencePlan,
    service: queueing.Service,
    steady: queueing.Steady,
    results: dict[str, Array],
    best: Array,
    rate: Array,
    prefill_replicas: Array,
    interrupting: Array,
    place_wait: queueing.PlaceWait | None = None,
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
        queueing.spread_quantiles(
            service, steady, tokens, *varied, side, prefill_replicas, interrupting, place_wait, plan.arrival_variation
        )
        for side in sides
    ]
    for name, *quantiles in zip(("ttft", "tpot"), *spread, strict=True):
        values = quantiles[0] if len(sides) == 1 else np.where(arriving[:, None], quantiles[1], quantiles[0])
        values = values if name == "ttft" else np.where(tokens[:, None] > 0.0, values, np.nan)
        results |= {f"{name}_{quantile}": values[:, index] for index, quantile in enumerate(QUANTILE_NAMES)}
    return results


def arriving_latency(plan: InferencePlan, steady: queueing.Steady, latency: RequestLatency) -> Array:
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


_MOST_ITERATIONS = 60
_GRID = np.array([1.0, 8.0])  # first trial values of the requests in flight under open arrivals [-]
_STEP, _PREFILLS = (Cycle._fields.index(name) for name in ("step", "prefills"))


def _cycle_time(workload: RequestLoad, cycle: Cycle | Array) -> Array:
    """Replica time to serve each request in flight once, prefills included, from a record or a stack, (rows,). [s]"""
    return np.asarray(workload.decode_steps * cycle[_STEP] + cycle[_PREFILLS])


class OpenState(NamedTuple):
    """Replicas under open arrivals, (rows,)."""

    running: Array  # requests in flight; infinite if the rate exceeds the capacity [-]
    step: Array  # decode step of all requests [s]
    prefill: Array  # prefill pass [s]
    prompts: Array  # prompts per pass [-]
    share: Array  # replica time per prompt [s]
    saving: Array  # time saved per prompt by chunked prefill in decode steps [s]
    longest: Array  # time that a prefill pass adds to a decode step; 0 if they alternate [s]
    step_slope: Array  # step time per request [s]
    least_share: Array  # replica time per prompt with a full cache [s]
    capacity: Array  # throughput of a replica with a full cache [request/s]

    def placed(self, rows: np.ndarray, number: int) -> OpenState:
        """Scatter to these rows of a larger block, NaN elsewhere."""
        every = np.full((len(self), number), np.nan)
        every[:, rows] = np.stack(self)
        return OpenState(*every)

    def place_wait(self, plan: InferencePlan, rate: Array, places: Array) -> queueing.PlaceWait:
        """Wait for a place, which each request holds for b / lambda (Little's law); 0 without decoding."""
        hold = self.running / rate
        prefill_share = np.where(np.isinf(self.running), 0.0, np.minimum(divide(self.share, hold, 0.0), 1.0))
        # The holding time varies with prompts and outputs, weighted by their shares of it.
        prompts, outputs = prefill_share * plan.prompt_variation, (1.0 - prefill_share) * plan.output_variation
        variation = np.sqrt(prompts * prompts + outputs * outputs)
        wait = place_wait(places, self.running / places, hold, plan.arrival_variation, variation)
        return wait.chosen((plan.tokens_after_first > 0.0) | np.isinf(self.running))

    def service(self, service: queueing.Service) -> queueing.Service:
        """Service demand in this state; unchanged beyond the capacity and in rows without open arrivals."""
        line = self.step - self.step_slope * self.running, self.step_slope
        longest = np.where(np.isinf(service.longest), np.inf, self.longest)
        loaded = queueing.Service(self.prefill, self.share, *line, *service.per_request, self.saving, longest)
        known = np.isfinite(self.running)
        return queueing.Service(*(np.where(known, *pair) for pair in zip(loaded, service, strict=True)))


class CycleTimes(NamedTuple):
    """Times of replicas by requests in flight, with further steps and passes of the same call."""

    cycle: Cycle  # (number, rows)
    steps: Array  # further decode steps, (further number, rows) [s]
    prefills: Array  # further prefill passes, (further number, rows) [s]


class Replicas(NamedTuple):
    """Replicas that both prefill and decode, (rows,)."""

    times: BatchTimes
    workload: RequestLoad
    places: Array  # most requests in flight [-]

    def take(self, rows: np.ndarray) -> Replicas:
        """Select rows."""
        return Replicas(self.times.take(rows), self.workload.take(rows), self.places[rows])

    def cycles(
        self, requests: Array, batches: Sequence[Array] = (), prompts: Sequence[Array] = (), detailed: bool = False
    ) -> CycleTimes:
        """Times by requests in flight (number, rows), interpolated between computed batches; further ones."""
        workload, number = self.workload, len(requests)
        # Computed batches on both sides, and integer prompts around the mean of their passes.
        lower, upper = workload.whole_batches(requests, self.places)
        sides = np.concatenate([lower, upper])
        mean = workload.prompts(np.concatenate([np.where(requests == upper, upper, lower), upper]))
        fewer, more = workload.whole_prompts(mean)
        steps, passes, step_parts, pass_parts = self.times.at(
            np.concatenate([*(each[None] for each in batches), sides]),
            np.concatenate([*(each[None] for each in prompts), fewer, more]),
            detailed,
        )
        low, high = steps[len(batches) :][:number], steps[len(batches) :][number:]
        step = np.concatenate([low, bounded_rise(lower, upper, low, high)])
        smaller, larger = passes[len(prompts) :][: 2 * number], passes[len(prompts) :][2 * number :]
        # Mean pass: a fraction of the passes has the larger number of prompts.
        fraction = divide(mean - fewer, more - fewer, 0.0)
        prefill = (1.0 - fraction) * smaller + fraction * larger
        prefills, saving, longest = sides * workload.shared(sides, mean, prefill), 0.0 * prefill, 0.0 * prefill
        if some(workload.mixed):
            # Chunked prefill: savings in shared steps, and the time that a pass adds to a step.
            mixed_steps, mixed_passes = step_parts[len(batches) :], pass_parts[len(prompts) :]
            few = workload.mixed_times(sides, fewer, smaller, mixed_steps, mixed_passes[: 2 * number])
            many = workload.mixed_times(sides, more, larger, mixed_steps, mixed_passes[2 * number :])
            saving, longest = ((1.0 - fraction) * low + fraction * high for low, high in zip(few, many, strict=True))
            saving = saving / mean
            prefills = prefills - (sides - 1.0) * saving
        # Interpolation between the two batches.
        ends = np.stack([step, prefill, mean, prefills, saving, longest])
        share = divide(requests - lower, upper - lower, 1.0)
        cycle = ends[:, :number] + (ends[:, number:] - ends[:, :number]) * share
        return CycleTimes(Cycle(*cycle), steps[: len(batches)], passes[: len(prompts)])

    def at_rate(self, rate: Array) -> OpenState:
        r"""State under open arrivals: the requests b in flight whose cycle carries the rate of a replica.

        .. math:: b = \lambda\,\left(N\,t(b) + b\,s(b)\right)

        The cycle is linear between computed batches; the search brackets b between two of them.
        """
        # Brackets from a grid that ends at a full cache.
        grid = np.minimum(_GRID[:, None], self.places)
        grid = np.concatenate([grid, self.places[None]])
        cycles = np.stack(self.cycles(grid).cycle)
        work = _cycle_time(self.workload, cycles)
        states = np.full((8, len(rate)), np.nan)
        states[0] = np.where(np.isnan(work[-1] + rate), np.nan, np.inf)
        rows = np.flatnonzero(rate * work[-1] < self.places)
        first = np.argmax(rate * work < grid, axis=0)[rows]
        search, rate, high = self.take(rows), rate[rows], grid[first, rows]
        above, before = cycles[:, first, rows], np.maximum(first - 1, 0)
        empty = cycles[:, 0, rows] * np.array([1.0, 1.0, 1.0, 0.0, 1.0, 1.0])[:, None]
        low = np.where(first > 0, grid[before, rows], 0.0)
        below = np.where(first > 0, cycles[:, before, rows], empty)
        for iteration in range(_MOST_ITERATIONS):
            if not len(rows):
                break
            # Root of the line through the bracket; final if no computed batch is within.
            time_below, time_above = (_cycle_time(search.workload, each) for each in (below, above))
            slope = (time_above - time_below) / (high - low)
            running = rate * (time_below - low * slope) / np.maximum(1.0 - rate * slope, 1e-12)
            running = np.minimum(np.maximum(running, low), high)
            done = high <= np.maximum(2.0 * low, 1.0)
            rise = (above - below) / (high - low)
            state = below + rise * (running - low)
            saving, longest = state[_PREFILLS + 1 :]
            prefills = state[_PREFILLS] + np.maximum(running - 1.0, 0.0) * saving
            share = np.where(running > 0.0, prefills / np.where(running > 0.0, running, 1.0), rise[_PREFILLS])
            columns = np.stack([running, *state[:_PREFILLS], share, saving, longest, rise[_STEP]])
            states[:, rows[done]] = columns[:, done]
            left = np.flatnonzero(~done)
            rows, search, rate, low, high = rows[left], search.take(left), rate[left], low[left], high[left]
            below, above, guess = below[:, left], above[:, left], np.maximum(running[left], 1.0)
            if not len(rows):
                break
            # Narrow the bracket to the powers of two around the guess; every third time to its geometric mean.
            if iteration % 3 == 2:
                guess = np.sqrt(np.maximum(low, 1.0) * high)
            first, second = octave(guess, high)
            trials = np.stack([first, np.where(second > first, second, np.minimum(2.0 * first, high))])
            for trial, cycle in zip(trials, np.stack(search.cycles(trials).cycle).transpose(1, 0, 2), strict=True):
                sufficient = rate * _cycle_time(search.workload, cycle) < trial
                lower, higher = ~sufficient & (trial > low), sufficient & (trial < high)
                low, high = np.where(lower, trial, low), np.where(higher, trial, high)
                below, above = np.where(lower, cycle, below), np.where(higher, cycle, above)
        return OpenState._make([*states, cycles[_PREFILLS, -1] / self.places, self.places / work[-1]])


class Operation(NamedTuple):
    """Replicas in steady state, (rows,)."""

    service: queueing.Service  # service demand at the decode batch
    steady: queueing.Steady
    results: dict[str, Array]  # of the decode batch as a static batch
    places: Array  # requests that fit into the cache, 1 or more [-]
    capacity: Array  # throughput of a replica with a full cache [request/s]
    running: Deployment  # the deployment at its decode batch
    memory: ReplicaMemory
    times: BatchTimes
    uneven: Array  # added time per token from varying outputs of a run: mean and quantiles, (rows, 4) [s]
    place_wait: queueing.PlaceWait | None = None  # wait of open arrivals for a place


def operating(deployment: Deployment, bounded: bool = True) -> Operation:
    """Steady state of replicas under a stream of requests; ``bounded``: with the limiting resource of decode steps."""
    plan, memory, times = deployment.plan, memory_of(deployment), BatchTimes.of(deployment)
    times.bounded = bounded
    workload = request_load(plan, deployment, deployment.burst_fraction, deployment.mixed, deployment.balance_rows)
    replicas = np.maximum(plan.num_replicas, 1.0)
    arriving = ~np.isnan(plan.request_rate)
    # Requests in flight; a plan whose cache fits no request is evaluated with one.
    places = np.maximum(memory.places(plan), 1.0)
    requests = np.maximum(plan.concurrency / replicas, 1.0)
    active, ends = np.minimum(requests, places), ~np.isnan(plan.run_requests)
    rate, state = plan.request_rate / replicas, None
    if arriving.any():
        rows = np.flatnonzero(arriving)
        block = Replicas(times, workload, places)
        state = (block if len(rows) == len(rate) else block.take(rows)).at_rate(rate[rows]).placed(rows, len(rate))
        running = np.clip(np.ceil(np.where(np.isinf(state.running), 1.0, state.running)), 1.0, places)
        active = np.where(arriving, running, active)
    # Times of the decode batch, of a full cache, of a burst in finite runs, and of half a batch if the slope matters.
    batch, (prompts, _) = np.ceil(active), workload.whole_prompts(workload.prompts(active))
    burst = np.maximum(np.minimum(batch, workload.max_prefill_prompts), 1.0)
    sloped = ends | (plan.polling_steps > 1.0) | (plan.gathering_steps > 0.0)
    largest = np.where(arriving, active, places)
    cycles, steps, passes = Replicas(times, workload, largest).cycles(
        np.stack([active, largest]),
        [batch, np.where(sloped, half_of(active), batch)],
        [prompts, burst] if ends.any() else [prompts],
        detailed=True,
    )
    cycle, full = (Cycle(*(values[at] for values in cycles)) for at in (0, 1))
    # Closed loop with a constant number of requests in flight.
    service = workload.service(active, cycle, np.where(sloped, steps[1], cycle.step))
    outside, uneven = deployment.request_latency.time(requests), np.zeros((len(requests), 4))
    steady = queueing.closed_state(service, requests, places, outside)
    capacity = places / _cycle_time(workload, full)
    if ends.any():
        # Finite runs: all requests start at once, in passes of a burst.
        early = service._replace(
            prefill_time=passes[1],
            prefill_share=workload.shared(active, burst, passes[1]),
            burst_fraction=np.ones_like(burst),
        )
        run = plan.run_requests / replicas
        starting = queueing.closed_state(early, requests, places, outside)
        # Requests of equal length stay in the groups of one pass unless prefills have priority.
        grouped = queueing.in_turn(service, steady, passes[1], burst, active)
        # Requests of a burst end in one step, and their successors come together: a whole burst if prefills have
        # priority, else those of one pass. Lengths are uniform.
        spread = np.maximum(2.0 * queueing.ROOT_OF_THREE * plan.output_variation * service.decode_steps, 1.0)
        together, passed = plan.prefill_first / spread, (1.0 - plan.prefill_first) / spread
        steady = queueing.run_state(grouped, steady, passed, 0.0 * passed, plan.run_requests)
        first = queueing.first_of_run(run, active)
        uneven = (first + (1.0 - first) * together)[:, None] * _uneven(early, starting, active, plan)
        steady = queueing.run_state(starting, steady, first, together, plan.run_requests)
        # Of the initial requests the first waits for no place, the last as long as a later request: half on average.
        queue_time = steady.queue_time * (1.0 - 0.5 * queueing.first_of_run(run, requests))
        steady = steady._replace(queue_time=queue_time)
    wait = None
    if state is not None:
        wait = state.place_wait(plan, rate, places).chosen(arriving)
        service, capacity = state.service(service), np.where(arriving, state.capacity, capacity)
        interval = state.prefill / workload.prefill_overlap
        opened = service.open_state(
            rate, plan.prompt_variation, state.running, state.least_share, interval, plan.arrival_variation, wait.mean
        )
        steady = queueing.Steady(*(np.where(arriving, *pair) for pair in zip(opened, steady, strict=True)))
    # The decode batch as a static batch.
    step = times.step(batch)
    loaded = deployment.with_batch(batch, prompts)
    results = {
        **batch_times(loaded.plan, passes[0], step.parts),
        **batch_memory(memory.filled(loaded.plan), memory),
        "bound": step_bound(loaded.plan, step.bound),
    }
    return Operation(service, steady, results, places, capacity, loaded, memory, times, uneven, wait)


def _uneven(early: queueing.Service, starting: queueing.Steady, active: Array, plan: InferencePlan) -> Array:
    """Added time per token of short answers in a burst over long ones, mean and quantiles, (rows, 4). [s]"""
    if not some(plan.output_variation > 0.0):
        return np.zeros((len(active), 4))
    stall = 2.0 * np.maximum(starting.decode_time - early.decode_steps * early.step_time(active), 0.0)
    longest = np.where(plan.prefill_first > 0.0, np.inf, np.minimum(early.longest, early.prefill_time))
    return side_by_side(
        *queueing.uneven_time(stall, np.maximum(early.decode_steps, 1.0), longest, plan.output_variation)
    )


def loaded_results(deployment: Deployment, operation: Operation) -> dict[str, Array]:
    """Result columns of continuous batching, as :func:`serving_results` has them for a static batch."""
    plan, service, steady, places = deployment.plan, operation.service, operation.steady, operation.places
    replicas, arriving = np.maximum(plan.num_replicas, 1.0), ~np.isnan(plan.request_rate)
    best = np.where(arriving, operation.capacity, np.maximum(operation.capacity, steady.rate)) * replicas
    rate = steady.rate
    if not np.isnan(plan.run_requests).all():
        active = np.minimum(np.maximum(plan.concurrency / replicas, 1.0), places)
        run = plan.run_requests / replicas
        finite = queueing.run_rate(service, active, run, rate, active / rate, plan.output_variation)
        rate = np.where(arriving, rate, finite)
    # With fewer requests than replicas, some replicas are idle.
    busy = np.where(arriving, replicas, np.minimum(replicas, plan.concurrency))
    one = np.ones_like(replicas)
    results = streamed(plan, service, steady, operation.results, best, rate * busy, one, one, operation.place_wait)
    for at, name in enumerate(("tpot", *(f"tpot_{quantile}" for quantile in QUANTILE_NAMES))):
        results[name] = results[name] + operation.uneven[:, at]
    return with_request_latency(results, plan, arriving_latency(plan, steady, deployment.request_latency))
