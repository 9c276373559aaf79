"""Results of replicas that serve a stream of requests: continuous batching."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, divide, side_by_side, some
from xlperf.equations.plan.serving_plan import InferencePlan
from xlperf.equations.serving.deployment import Deployment
from xlperf.equations.serving.load import (
    BatchTimes,
    Cycle,
    RequestLoad,
    bounded_rise,
    half_of,
    octave,
    request_load,
)
from xlperf.equations.serving.memory import ReplicaMemory, memory_of
from xlperf.equations.serving.place_queue import PlaceWait, place_wait
from xlperf.equations.serving.queueing import Service, Steady, closed_state
from xlperf.equations.serving.results import (
    QUANTILE_NAMES,
    arriving_latency,
    batch_memory,
    batch_times,
    step_bound,
    streamed,
    with_request_latency,
)
from xlperf.equations.serving.runs import (
    first_of_run,
    in_turn,
    run_rate,
    run_state,
    run_wait,
    staying_together,
    uneven_time,
)

_MOST_TRIES = 60
_GRID = np.array([1.0, 8.0])  # requests in flight that are tried first where they arrive at a rate [-]


_STEP, _PREFILLS = (Cycle._fields.index(name) for name in ("step", "prefills"))


def _cycle_time(workload: RequestLoad, cycle: Cycle | Array) -> Array:
    """Time in which a replica serves each request in flight once: its decode steps and all prefills, (rows,). [s]

    ``cycle``: its times, or arrays in their order.
    """
    return np.asarray(workload.decode_steps * cycle[_STEP] + cycle[_PREFILLS])


class OpenState(NamedTuple):
    """Replicas whose requests arrive at a rate, (rows,)."""

    running: Array  # requests in flight, infinite where the rate exceeds the capacity [-]
    step: Array  # time of a step with them [s]
    prefill: Array  # time of a pass of the prefill [s]
    prompts: Array  # prompts of a pass [-]
    share: Array  # time of the replica per prompt [s]
    saving: Array  # time that a prompt takes less in the decode steps of others [s]
    longest: Array  # time that a pass of it adds to such a step, 0 where they alternate [s]
    step_slope: Array  # time that a request adds to a step [s]
    least_share: Array  # time of the replica per prompt with a full cache [s]
    capacity: Array  # requests per second that a replica serves with a full cache [request/s]

    def placed(self, rows: np.ndarray, number: int) -> OpenState:
        """These rows among so many, NaN for the others."""
        every = np.full((len(self), number), np.nan)
        every[:, rows] = np.stack(self)
        return OpenState(*every)

    def place_wait(self, plan: InferencePlan, rate: Array, places: Array) -> PlaceWait:
        """Wait for a place: each is held for b / lambda, its own prefill and those of others included (Little's law)."""
        hold = self.running / rate
        own = np.where(np.isinf(self.running), 0.0, np.minimum(divide(self.share, hold, 0.0), 1.0))
        prompts, outputs = own * plan.prompt_variation, (1.0 - own) * plan.output_variation
        varied = np.sqrt(prompts * prompts + outputs * outputs)
        found = place_wait(places, self.running / places, hold, plan.arrival_variation, varied)
        return found.chosen((plan.tokens_after_first > 0.0) | np.isinf(self.running))

    def service(self, service: Service) -> Service:
        """Times of replicas in this state; the line of a step goes through the time that it has there.

        Where the rate exceeds the capacity, and where there is none, they stay as they are.
        """
        line = self.step - self.step_slope * self.running, self.step_slope
        longest = np.where(np.isinf(service.longest), np.inf, self.longest)
        found = Service(self.prefill, self.share, *line, *service.per_request, self.saving, longest)
        known = np.isfinite(self.running)
        return Service(*(np.where(known, *pair) for pair in zip(found, service, strict=True)))


class Found(NamedTuple):
    """Times of replicas with some numbers of requests in flight, and others that were asked for with them."""

    cycle: Cycle  # of the numbers of requests, (number, rows)
    steps: Array  # of other steps, (other number, rows) [s]
    prefills: Array  # of other passes of the prefill, (other number, rows) [s]


class Replicas(NamedTuple):
    """Replicas that prefill and decode in turn, (rows,), and the requests that they have room for."""

    times: BatchTimes
    workload: RequestLoad
    places: Array

    def take(self, rows: np.ndarray) -> Replicas:
        """The same of some of the plans."""
        return Replicas(self.times.take(rows), self.workload.take(rows), self.places[rows])

    def cycles(
        self, requests: Array, batches: Sequence[Array] = (), prompts: Sequence[Array] = (), detailed: bool = False
    ) -> Found:
        """Times with some numbers of requests in flight."""
        workload, number = self.workload, len(requests)
        lower, upper = workload.whole_batches(requests, self.places)
        sides = np.concatenate([lower, upper])
        # Of a whole batch only the step of the smaller one is asked for.
        mean = workload.prompts(np.concatenate([np.where(requests == upper, upper, lower), upper]))
        fewer, most = workload.whole_prompts(mean)
        steps, passes, step_parts, pass_parts = self.times.at(
            np.concatenate([*(each[None] for each in batches), sides]),
            np.concatenate([*(each[None] for each in prompts), fewer, most]),
            detailed,
        )
        low, high = steps[len(batches) :][:number], steps[len(batches) :][number:]
        step = np.concatenate([low, bounded_rise(lower, upper, low, high)])
        smaller, larger = passes[len(prompts) :][: 2 * number], passes[len(prompts) :][2 * number :]
        # Some passes take more prompts than the others.
        more = divide(mean - fewer, most - fewer, 0.0)
        prefill = (1.0 - more) * smaller + more * larger
        prefills, saving, longest = sides * workload.shared(sides, mean, prefill), 0.0 * prefill, 0.0 * prefill
        if some(workload.mixed):
            of_step, of_pass = step_parts[len(batches) :], pass_parts[len(prompts) :]
            few = workload.mixed_times(sides, fewer, smaller, of_step, of_pass[: 2 * number])
            many = workload.mixed_times(sides, most, larger, of_step, of_pass[2 * number :])
            saving, longest = ((1.0 - more) * less + more * rest for less, rest in zip(few, many, strict=True))
            saving = saving / mean
            prefills = prefills - (sides - 1.0) * saving
        ends = np.stack([step, prefill, mean, prefills, saving, longest])
        share = divide(requests - lower, upper - lower, 1.0)
        cycle = ends[:, :number] + (ends[:, number:] - ends[:, :number]) * share
        return Found(Cycle(*cycle), steps[: len(batches)], passes[: len(prompts)])

    def at_rate(self, rate: Array) -> OpenState:
        r"""State with requests that arrive at a rate: requests b in flight for which a cycle carries that rate.

        .. math:: b = \lambda\,\left(N\,t(b) + b\,s(b)\right)

        The cycle is linear between whole batches; those on both sides are searched for.
        """
        grid = np.minimum(_GRID[:, None], self.places)
        grid = np.concatenate([grid, self.places[None]])
        cycles = np.stack(self.cycles(grid).cycle)
        work = _cycle_time(self.workload, cycles)
        found = np.full((8, len(rate)), np.nan)
        found[0] = np.where(np.isnan(work[-1] + rate), np.nan, np.inf)
        rows = np.flatnonzero(rate * work[-1] < self.places)
        first = np.argmax(rate * work < grid, axis=0)[rows]
        search, rate, high = self.take(rows), rate[rows], grid[first, rows]
        above, before = cycles[:, first, rows], np.maximum(first - 1, 0)
        single = cycles[:, 0, rows] * np.array([1.0, 1.0, 1.0, 0.0, 1.0, 1.0])[:, None]
        low = np.where(first > 0, grid[before, rows], 0.0)
        below = np.where(first > 0, cycles[:, before, rows], single)
        for turn in range(_MOST_TRIES):
            if not len(rows):
                break
            before, after = (_cycle_time(search.workload, each) for each in (below, above))
            slope = (after - before) / (high - low)
            running = rate * (before - low * slope) / np.maximum(1.0 - rate * slope, 1e-12)
            running = np.minimum(np.maximum(running, low), high)
            done = high <= np.maximum(2.0 * low, 1.0)
            rise = (above - below) / (high - low)
            state = below + rise * (running - low)
            saving, longest = state[_PREFILLS + 1 :]
            spent = state[_PREFILLS] + np.maximum(running - 1.0, 0.0) * saving
            share = np.where(running > 0.0, spent / np.where(running > 0.0, running, 1.0), rise[_PREFILLS])
            found[:, rows[done]] = np.stack([running, *state[:_PREFILLS], share, saving, longest, rise[_STEP]])[:, done]
            left = np.flatnonzero(~done)
            rows, search, rate, low, high = rows[left], search.take(left), rate[left], low[left], high[left]
            below, above, guess = below[:, left], above[:, left], np.maximum(running[left], 1.0)
            if not len(rows):
                break
            if turn % 3 == 2:
                guess = np.sqrt(np.maximum(low, 1.0) * high)
            first, second = octave(guess, high)
            tried = np.stack([first, np.where(second > first, second, np.minimum(2.0 * first, high))])
            for number, at in zip(tried, np.stack(search.cycles(tried).cycle).transpose(1, 0, 2), strict=True):
                enough = rate * _cycle_time(search.workload, at) < number
                lower, higher = ~enough & (number > low), enough & (number < high)
                low, high = np.where(lower, number, low), np.where(higher, number, high)
                below, above = np.where(lower, at, below), np.where(higher, at, above)
        return OpenState._make([*found, cycles[_PREFILLS, -1] / self.places, self.places / work[-1]])


class Operation(NamedTuple):
    """Replicas in steady state, (rows,)."""

    service: Service  # times of a replica with the batch that it decodes
    steady: Steady  # its state
    results: dict[str, Array]  # of that batch as a static one
    places: Array  # requests that the cache has room for, 1 or more [-]
    capacity: Array  # requests per second that a replica serves with a full cache [request/s]
    running: Deployment  # the plan at the batch that it decodes
    memory: ReplicaMemory  # memory of a replica
    times: BatchTimes  # times that are known of it
    # What times per token over requests are longer for outputs of a run that vary: mean and quantiles, (rows, 4) [s]
    uneven: Array
    place_wait: PlaceWait | None = None  # wait for a place of requests that arrive at a rate


def operating(deployment: Deployment) -> Operation:
    """Steady state of replicas under a stream of requests: decode batch and prompts of a prefill pass."""
    plan, memory, times = deployment.plan, memory_of(deployment), BatchTimes.of(deployment)
    workload = request_load(plan, plan, deployment.burst_fraction, deployment.mixed, deployment.balance_rows)
    replicas = np.maximum(plan.num_replicas, 1.0)
    arriving = ~np.isnan(plan.request_rate)
    # A plan that has room for no request keeps its numbers.
    places = np.maximum(memory.places(plan), 1.0)
    requests = np.maximum(plan.concurrency / replicas, 1.0)
    active, ends = np.minimum(requests, places), ~np.isnan(plan.run_requests)
    sloped = ends | (plan.polling_steps > 1.0) | (plan.gathering_steps > 0.0)
    rate, state = plan.request_rate / replicas, None
    if arriving.any():
        rows = np.flatnonzero(arriving)
        every = Replicas(times, workload, places)
        state = (every if len(rows) == len(rate) else every.take(rows)).at_rate(rate[rows]).placed(rows, len(rate))
        active = np.where(
            arriving, np.clip(np.ceil(np.where(np.isinf(state.running), 1.0, state.running)), 1.0, places), active
        )
    batch, (prompts, _) = np.ceil(active), workload.whole_prompts(workload.prompts(active))
    # A run that ends needs a step with another batch, and requests that are held back for some steps.
    burst = np.maximum(np.minimum(batch, workload.max_prefill_prompts), 1.0)
    asked = [prompts, *([burst] if ends.any() else [])]
    # Capacity and times at a rate are known already.
    most = np.where(arriving, active, places)
    cycles, steps, passes = Replicas(times, workload, most).cycles(
        np.stack([active, most]), [batch, np.where(sloped, half_of(active), batch)], asked, True
    )
    cycle, full = (Cycle(*(values[at] for values in cycles)) for at in (0, 1))
    service = workload.service(active, cycle, np.where(sloped, steps[1], cycle.step))
    outside, uneven = deployment.request_latency.time(requests), np.zeros((len(requests), 4))
    steady = closed_state(service, requests, places, outside)
    capacity = places / _cycle_time(workload, full)
    if ends.any():
        share, one = workload.shared(active, burst, passes[1]), np.ones_like(burst)
        line = service.step_base, service.step_slope
        early = Service(
            passes[1], share, *line, service.decode_steps, one, service.turn_steps, service.saving, service.longest
        )
        run = plan.run_requests / replicas
        starting = closed_state(early, requests, places, outside)
        # Where prompts do not go first, requests of equal length stay in the groups of one pass.
        grouped = in_turn(service, steady, passes[1], burst, active)
        together, passed = (
            staying_together(service.decode_steps, in_step, plan.output_variation)
            for in_step in (plan.prefill_first, 1.0 - plan.prefill_first)
        )
        steady = run_state(grouped, steady, passed, 0.0 * passed, plan.run_requests)
        # Only those that there is room for start at once.
        first = first_of_run(run, active)
        uneven = (first + (1.0 - first) * together)[:, None] * _uneven(early, starting, active, plan)
        steady = run_state(starting, steady, first, together, plan.run_requests)
        steady = steady._replace(queue_time=run_wait(steady.queue_time, requests, run))
    waiting = None
    if state is not None:
        waiting = state.place_wait(plan, rate, places).chosen(arriving)
        service, capacity = (
            state.service(service),
            np.where(arriving, state.capacity, capacity),
        )
        interval = state.prefill / workload.pipeline_stages
        opened = service.open_state(
            rate,
            plan.prompt_variation,
            state.running,
            state.least_share,
            interval,
            plan.arrival_variation,
            waiting.mean,
        )
        steady = Steady(*(np.where(arriving, *pair) for pair in zip(opened, steady, strict=True)))
    running = times.step(batch)
    loaded = deployment.with_batch(batch, prompts)
    results = {
        **batch_times(loaded.plan, passes[0], running.parts),
        **batch_memory(memory.filled(loaded.plan), memory),
        "bound": step_bound(loaded.plan, running.bound),
    }
    return Operation(service, steady, results, places, capacity, loaded, memory, times, uneven, waiting)


def _uneven(early: Service, starting: Steady, active: Array, plan: InferencePlan) -> Array:
    """Time per token that short answers of a burst take longer than long ones, mean and quantiles, (rows, 4). [s]

    ``early``: times of a replica with passes of a burst. ``starting``: its state. ``active``: requests that start.
    """
    if not some(plan.output_variation > 0.0):
        return np.zeros((len(active), 4))
    stall = 2.0 * np.maximum(starting.decode_time - early.decode_steps * early.step_time(active), 0.0)
    longest = np.where(plan.prefill_first > 0.0, np.inf, np.minimum(early.longest, early.prefill_time))
    return side_by_side(*uneven_time(stall, np.maximum(early.decode_steps, 1.0), longest, plan.output_variation))


def loaded_results(deployment: Deployment, operation: Operation) -> dict[str, Array]:
    """Results of continuous batching, as :func:`xlperf.equations.serving.serving_results` has them for a static batch."""
    plan, service, steady, places = deployment.plan, operation.service, operation.steady, operation.places
    replicas, arriving = np.maximum(plan.num_replicas, 1.0), ~np.isnan(plan.request_rate)
    best = np.where(arriving, operation.capacity, np.maximum(operation.capacity, steady.rate)) * replicas
    rate = steady.rate
    if not np.isnan(plan.run_requests).all():
        active = np.minimum(np.maximum(plan.concurrency / replicas, 1.0), places)
        run = plan.run_requests / replicas
        of_run = run_rate(service, active, run, rate, active / rate, plan.output_variation)
        rate = np.where(arriving, rate, of_run)
    # With fewer requests than replicas the others are idle.
    busy = np.where(arriving, replicas, np.minimum(replicas, plan.concurrency))
    one = np.ones_like(replicas)
    results = streamed(plan, service, steady, operation.results, best, rate * busy, one, one, operation.place_wait)
    for at, name in enumerate(("tpot", *(f"tpot_{quantile}" for quantile in QUANTILE_NAMES))):
        results[name] = results[name] + operation.uneven[:, at]
    return with_request_latency(results, plan, arriving_latency(plan, steady, deployment.request_latency))
