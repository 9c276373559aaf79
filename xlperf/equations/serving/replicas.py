"""Replicas that prefill and decode in turn: their cycle by requests in flight, and those that a rate leads to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, divide
from xlperf.equations.serving.demand import Cycle, Demand, bounded_rise, mean_pass, octave, split_passes
from xlperf.equations.serving.halves import HalfPasses
from xlperf.equations.serving.load import Service

_MOST_TRIES = 60
_GRID = np.array([1.0, 8.0])
"""Requests in flight that are tried first where they arrive at a rate. [-]"""


class OpenState(NamedTuple):
    """Replicas whose requests arrive at a rate, (rows,).

    Attributes
    ----------
    running : Array
        Requests in flight, infinite where the rate exceeds the capacity. [-]
    step : Array
        Time of a step with them. [s]
    prefill : Array
        Time of a pass of the prefill. [s]
    prompts : Array
        Prompts of a pass. [-]
    share : Array
        Time of the replica per prompt. [s]
    step_slope : Array
        Time that a request adds to a step. [s]
    least_share : Array
        Time of the replica per prompt with a full cache. [s]
    capacity : Array
        Requests per second that a replica serves with a full cache. [request/s]
    """

    running: Array
    step: Array
    prefill: Array
    prompts: Array
    share: Array
    step_slope: Array
    least_share: Array
    capacity: Array

    def placed(self, rows: np.ndarray, number: int) -> OpenState:
        """These rows among so many, NaN for the others."""
        every = np.full((len(self), number), np.nan)
        every[:, rows] = np.stack(self)
        return OpenState(*every)

    def service(self, service: Service, stages: Array) -> Service:
        """Times of replicas in this state; the line of a step goes through the time that it has there.

        Where the rate exceeds the capacity, and where there is none, they stay as they are.
        """
        found = service._replace(
            prefill_time=self.prefill,
            prefill_share=self.share,
            step_base=self.step - self.step_slope * self.running,
            step_slope=self.step_slope,
            interval=self.prefill / stages,
        )
        known = np.isfinite(self.running)
        return Service(*(np.where(known, *pair) for pair in zip(found, service, strict=True)))


class Found(NamedTuple):
    """Times of replicas with some numbers of requests in flight, and others that were asked for with them.

    Attributes
    ----------
    cycle : Cycle
        Of the numbers of requests, (number, rows).
    steps : Array
        Of other steps, (other number, rows). [s]
    prefills : Array
        Of other passes of the prefill, (other number, rows). [s]
    """

    cycle: Cycle
    steps: Array
    prefills: Array


class Replicas(NamedTuple):
    """Replicas that prefill and decode in turn, (rows,), and the requests that they have room for."""

    halves: HalfPasses
    demand: Demand
    places: Array

    def take(self, rows: np.ndarray) -> Replicas:
        """Those of some of the plans."""
        return Replicas(self.halves.take(rows), self.demand.take(rows), self.places[rows])

    def cycles(
        self, requests: Array, batches: Sequence[Array] = (), prompts: Sequence[Array] = (), detailed: bool = False
    ) -> Found:
        """Times with some numbers of requests in flight.

        Parameters
        ----------
        requests : Array
            Requests in flight, 1 or more, up to the places, (number, rows). [-]
        batches : sequence of Array
            Other batches, (rows,), whose steps are asked for in the same call. [-]
        prompts : sequence of Array
            Other prompts, (rows,), whose passes are. [-]
        detailed : bool, default False
            Whether the step of the first of ``batches`` will be asked for in detail.

        Returns
        -------
        Found
            Linear between two whole batches, as :meth:`Demand.whole_batches` has them.
        """
        demand, number = self.demand, len(requests)
        lower, upper = demand.whole_batches(requests, self.places)
        sides = np.concatenate([lower, upper])
        # Of a whole batch only the step of the smaller one is asked for.
        mean = demand.prompts(np.concatenate([np.where(requests == upper, upper, lower), upper]))
        steps, passes = self.halves.times(
            np.concatenate([*(each[None] for each in batches), sides]),
            np.concatenate([*(each[None] for each in prompts), *split_passes(mean)]),
            detailed,
        )
        low, high = steps[len(batches) :][:number], steps[len(batches) :][number:]
        step = np.concatenate([low, bounded_rise(lower, upper, low, high)])
        smaller, larger = passes[len(prompts) :][: 2 * number], passes[len(prompts) :][2 * number :]
        prefill = mean_pass(mean, smaller, larger)
        ends = np.stack([step, prefill, mean, sides * demand.shared(sides, mean, prefill)])
        share = divide(requests - lower, upper - lower, 1.0)
        cycle = ends[:, :number] + (ends[:, number:] - ends[:, :number]) * share
        return Found(Cycle(*cycle), steps[: len(batches)], passes[: len(prompts)])

    def at_rate(self, rate: Array) -> OpenState:
        r"""State with requests that arrive at a rate: requests b in flight for which a cycle carries that rate.

        .. math:: b = \lambda\,\left(N\,t(b) + b\,s(b)\right)

        The cycle is linear between whole batches; those on both sides are searched for.

        Parameters
        ----------
        rate : Array
            Requests that arrive per second at a replica, (rows,). [request/s]

        Returns
        -------
        OpenState
            (rows,).
        """
        grid = np.minimum(_GRID[:, None], self.places)
        grid = np.concatenate([grid, self.places[None]])
        cycles = np.stack(self.cycles(grid).cycle)
        work = self.demand.steps * cycles[0] + cycles[3]
        found = np.full((6, len(rate)), np.nan)
        found[0] = np.where(np.isnan(work[-1] + rate), np.nan, np.inf)
        rows = np.flatnonzero(rate * work[-1] < self.places)
        first = np.argmax(rate * work < grid, axis=0)[rows]
        search, rate, high = self.take(rows), rate[rows], grid[first, rows]
        above, before = cycles[:, first, rows], np.maximum(first - 1, 0)
        single = cycles[:, 0, rows] * np.array([1.0, 1.0, 1.0, 0.0])[:, None]
        low = np.where(first > 0, grid[before, rows], 0.0)
        below = np.where(first > 0, cycles[:, before, rows], single)
        for turn in range(_MOST_TRIES):
            if not len(rows):
                break
            before, after = (search.demand.steps * each[0] + each[3] for each in (below, above))
            slope = (after - before) / (high - low)
            running = rate * (before - low * slope) / np.maximum(1.0 - rate * slope, 1e-12)
            running = np.minimum(np.maximum(running, low), high)
            done = high <= np.maximum(2.0 * low, 1.0)
            rise = (above - below) / (high - low)
            state = below + rise * (running - low)
            share = np.where(running > 0.0, state[3] / np.where(running > 0.0, running, 1.0), rise[3])
            found[:, rows[done]] = np.stack([running, *state[:3], share, rise[0]])[:, done]
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
                enough = rate * (search.demand.steps * at[0] + at[3]) < number
                lower, higher = ~enough & (number > low), enough & (number < high)
                low, high = np.where(lower, number, low), np.where(higher, number, high)
                below, above = np.where(lower, at, below), np.where(higher, at, above)
        return OpenState._make([*found, cycles[3, -1] / self.places, self.places / work[-1]])
