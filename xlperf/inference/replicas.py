"""Replicas that prefill and decode in turn: their cycle at any number of requests, and the number that a rate leads to."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.arrays import Array, divide
from xlperf.inference.demand import Demand, mean_pass, split_passes, unpadded_step
from xlperf.inference.halves import HalfPasses
from xlperf.inference.load import Service

_MOST_TRIES = 60


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
    """

    running: Array
    step: Array
    prefill: Array
    prompts: Array
    share: Array

    def placed(self, rows: np.ndarray, number: int) -> OpenState:
        """These rows among so many, NaN for the others."""
        every = np.full((len(self), number), np.nan)
        every[:, rows] = np.stack(self)
        return OpenState(*every)


class Replicas(NamedTuple):
    """Replicas that prefill and decode, (rows,): their times with any whole number of requests in flight."""

    halves: HalfPasses
    demand: Demand

    def take(self, rows: np.ndarray) -> Replicas:
        """Those of some of the plans."""
        return Replicas(self.halves.take(rows), self.demand.take(rows))

    def cycles(self, requests: Array) -> Array:
        """Time of a step and of a pass, prompts of a pass, and time of all prefills, (4, number, rows). [s, s, -, s]"""
        number, fewer, prompts = len(requests), self.demand.unpadded(requests), self.demand.prompts(requests)
        steps, passes = self.halves.times(
            np.concatenate([requests, fewer]), np.concatenate(split_passes(prompts))
        )
        step = unpadded_step(requests, steps[:number], fewer, steps[number:])
        prefill = mean_pass(prompts, passes[:number], passes[number:])
        return np.stack([step, prefill, prompts, requests * self.demand.shared(requests, prompts, prefill)])

    def at_rate(self, rate: Array, most: Array) -> OpenState:
        r"""State with requests that arrive at a rate: requests b in flight for which a cycle carries that rate.

        .. math:: b = \lambda\,\left(N\,t(b) + b\,s(b)\right)

        The cycle is taken as linear between whole numbers of requests, and those on both sides are searched for.

        Parameters
        ----------
        rate : Array
            Requests that arrive per second at a replica, (rows,). [request/s]
        most : Array
            Requests that it has room for, (rows,). [-]

        Returns
        -------
        OpenState
            (rows,).
        """
        steps, rows = self.demand.steps, np.arange(len(rate))
        low, high = np.zeros_like(rate), most + 0.0
        above, at_most = self.cycles(np.stack([np.ones_like(most), most])).transpose(1, 0, 2)
        below = above * np.array([1.0, 1.0, 1.0, 0.0])[:, None]
        found = np.full((5, len(rate)), np.nan)
        keeps = rate * (steps * at_most[0] + at_most[3]) < most
        found[0] = np.where(np.isnan(at_most[0] + rate), np.nan, np.inf)
        rows, search, above = np.flatnonzero(keeps), self, at_most
        search = search.take(rows)
        low, high, below, above, rate, steps = low[rows], high[rows], below[:, rows], above[:, rows], rate[rows], steps[rows]
        for turn in range(_MOST_TRIES):
            if not len(rows):
                break
            before, after = (steps * each[0] + each[3] for each in (below, above))
            slope = (after - before) / (high - low)
            running = np.clip(rate * (before - low * slope) / np.maximum(1.0 - rate * slope, 1e-12), low, high)
            done = high - low <= 1.0
            share = running - low
            state = below + (above - below) * (share / (high - low))
            ended = rows[done]
            work = np.where(running > 0.0, state[3] / np.where(running > 0.0, running, 1.0), 0.0)
            found[:, ended] = np.stack([running, state[0], state[1], state[2], work])[:, done]
            left = np.flatnonzero(~done)
            rows, search, low, high = rows[left], search.take(left), low[left], high[left]
            below, above, rate, steps, running = below[:, left], above[:, left], rate[left], steps[left], running[left]
            if not len(rows):
                break
            first = np.clip(np.floor(running), low, high - 1.0)
            if turn % 3 == 2:
                first = np.clip(np.floor(np.sqrt(np.maximum(low, 1.0) * high)), low, high - 1.0)
            tried = np.stack([np.maximum(first, 1.0), first + 1.0])
            for number, at in zip(tried, search.cycles(tried).transpose(1, 0, 2), strict=True):
                carried = rate * (steps * at[0] + at[3]) < number
                lower, higher = ~carried & (number > low), carried & (number < high)
                low, high = np.where(lower, number, low), np.where(higher, number, high)
                below, above = np.where(lower, at, below), np.where(higher, at, above)
        return OpenState(*found)


def service_at_rate(service: Service, state: OpenState, arriving: np.ndarray) -> Service:
    """Times of replicas in an open state: the line of the step goes through the time that it has there.

    Parameters
    ----------
    service : Service
        Times with a whole number of requests, (rows,).
    state : OpenState
        State at a rate, (rows,).
    arriving : np.ndarray
        Where there is one, (rows,).

    Returns
    -------
    Service
        (rows,).
    """
    slope = np.minimum(service.step_slope, divide(state.step, state.running, 0.0))
    found = service._replace(
        prefill_time=state.prefill,
        prefill_share=state.share,
        step_base=state.step - slope * state.running,
        step_slope=slope,
        prompts=state.prompts,
    )
    known = arriving & np.isfinite(state.running)
    return Service(*(np.where(known, *pair) for pair in zip(found, service, strict=True)))
