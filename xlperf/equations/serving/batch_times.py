"""Times of prefills and of decode steps at several batch sizes of the same plans: each distinct one computed once.

The load on a replica is found from a few batches of the same plan. Those that are asked for together go through the
equations of the operators as rows of one call; what is known is not computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, total
from xlperf.equations.model.serving import BOTH_PHASES, DECODING, PREFILL
from xlperf.equations.serving.deployment import Deployment
from xlperf.equations.serving.expert_pools import split_step
from xlperf.equations.serving.phases import (
    FIXED,
    MATRIX,
    phase_times,
    scaled_times,
    serving_bound,
    serving_work,
)

_BATCH = 8192
"""Rows that go through the equations together: their arrays stay in the processor's cache. [-]"""
_FEW = 64
"""Up to so many rows one call of both phases is faster than a call of each. [-]"""


_SHARED = [MATRIX, FIXED]
"""Parts of a pass that a step which is computed with it does not pay again: weights are read once. [-]"""


class Times(NamedTuple):
    """Times of decode steps and of prefills that were asked for, (number, rows) each. [s]

    ``step_parts`` and ``prefill_parts`` are those of matrix products and of fixed costs, (number, rows, 2).
    """

    steps: Array
    prefills: Array
    step_parts: Array
    prefill_parts: Array


class DecodeStep(NamedTuple):
    """A decode step in detail, (rows,).

    Attributes
    ----------
    batch : Array
        Requests that it decodes. [-]
    parts : Array
        Its time by part, as :func:`xlperf.equations.serving.phases.phase_times` has it, (rows, 5). [s]
    bound : Array
        What bounds it, a position in :data:`xlperf.equations.serving.phases.BOUNDS`. [-]
    """

    batch: Array
    parts: Array
    bound: Array


class _Known(NamedTuple):
    """Cached times of one phase with their parts, (number, rows, 3), by batch size, (number, rows)."""

    batches: Array
    times: Array

    def take(self, rows: np.ndarray) -> _Known:
        """The same of some of the plans."""
        return _Known(self.batches.take(rows, axis=1), self.times.take(rows, axis=1))


class _Asked:
    """Batches of one phase that are asked for, (number, rows), and which of them have to be computed.

    ``again`` are rows whose first batch is computed, known or not.
    """

    def __init__(self, known: _Known, asked: Array, again: np.ndarray) -> None:
        self.known, self.before = known, len(known.batches)
        self.batches = np.concatenate([known.batches, asked])
        own = np.arange(self.before, len(self.batches))[:, None]
        same = (asked[:, None] == self.batches).argmax(axis=1) if len(asked) else own
        self.same = np.where(np.isnan(asked), own, same)
        self.new = self.same == own
        if len(again):
            self.new[0, again] = True
        self.numbers, self.rows = np.nonzero(self.new)

    @property
    def values(self) -> Array:
        """Batches to compute, one after the other: first those of all rows of the first number."""
        return np.asarray(self.batches[self.before + self.numbers, self.rows])

    def answered(self, computed: Array) -> tuple[_Known, Array]:
        """What is known with the times that were computed, and those that were asked for."""
        times = np.concatenate([self.known.times, np.empty((*self.same.shape, 1 + len(_SHARED)))])
        asked = times[self.before :]
        asked[self.numbers, self.rows] = computed
        if len(computed) < self.same.size:
            numbers, rows = np.nonzero(~self.new)
            asked[numbers, rows] = times[self.same[numbers, rows], rows]
            kept = np.concatenate([np.ones(self.before, dtype=bool), self.new.any(axis=1)])
            return _Known(self.batches[kept], times[kept]), asked
        return _Known(self.batches, times), asked


def _slice(rows: np.ndarray) -> np.ndarray | slice:
    """Rows as a slice, which copies nothing, where each follows the one before: else as they are.

    Rows of several batches come back to the first plan: the first and the last of them do not tell.
    """
    follows = not np.count_nonzero(rows[1:] - rows[:-1] != 1)
    return slice(int(rows[0]), int(rows[-1]) + 1) if follows else rows


def _with_total(parts: Array) -> Array:
    """Sum of the parts (rows, 5), and those of _SHARED, (rows, 3)."""
    return np.concatenate([total(parts)[:, None], parts[:, _SHARED]], axis=1)


@dataclass
class BatchTimes:
    """Times of prefills and of decode steps of a block of plans at the batch sizes that are asked for, (rows,).

    Attributes
    ----------
    deployment : Deployment
        Model, accelerators, plan, calibration; the batch of its plan has no meaning.
    rows : dict of int to np.ndarray
        Rows of the deployment that prefill and that decode.
    known : dict of int to _Known
        Times of each phase that are known.
    experts : np.ndarray, optional
        Rows of the deployment that are the expert pools of those that decode, -1 where there is none.
    """

    deployment: Deployment
    rows: dict[int, np.ndarray]
    known: dict[int, _Known]
    experts: np.ndarray | None = None
    detailed: list[tuple[np.ndarray, DecodeStep]] = field(default_factory=list)

    @classmethod
    def of(cls, deployment: Deployment) -> BatchTimes:
        """Times of plans whose replicas prefill and decode."""
        every = np.arange(len(deployment.plan.batch_size))
        return cls._unknown(deployment, dict.fromkeys(BOTH_PHASES, every), None)

    @classmethod
    def of_pools(cls, deployment: Deployment, num_plans: int, split: np.ndarray) -> BatchTimes:
        """Times of separate pools: first those that decode, then those that prefill, then expert pools of some."""
        every, experts = np.arange(num_plans), None
        if len(split):
            experts = np.full(num_plans, -1)
            experts[split] = 2 * num_plans + np.arange(len(split))
        return cls._unknown(deployment, {PREFILL: every + num_plans, DECODING: every}, experts)

    @classmethod
    def _unknown(cls, deployment: Deployment, rows: dict[int, np.ndarray], experts: np.ndarray | None) -> BatchTimes:
        nothing = np.empty((0, len(rows[DECODING])))
        known = _Known(nothing, np.empty((*nothing.shape, 1 + len(_SHARED))))
        return cls(deployment, rows, dict.fromkeys(BOTH_PHASES, known), experts)

    def take(self, rows: np.ndarray) -> BatchTimes:
        """The same of some of the plans, with the times that are known of them."""
        own = {phase: every[rows] for phase, every in self.rows.items()}
        known = {phase: known.take(rows) for phase, known in self.known.items()}
        return BatchTimes(self.deployment, own, known, self.experts)

    def at(self, batches: Array, prompts: Array, detailed: bool = False) -> Times:
        """Times of steps with some numbers of requests, and of prefills of some numbers of prompts.

        Parameters
        ----------
        batches : Array
            Requests that are decoded together, (number, rows). [-]
        prompts : Array
            Prompts that are prefilled together, (other number, rows). [-]
        detailed : bool, default False
            Whether :meth:`step` will be asked for the first of the batches.

        Returns
        -------
        Times
            Of the steps and of the prefills, in the shapes of batches and prompts. [s]
        """
        again = self._step(batches[0])[1] if detailed else np.empty(0, dtype=np.int64)
        prefill = _Asked(self.known[PREFILL], prompts, again[:0])
        decoding = _Asked(self.known[DECODING], batches, again)
        first = int(np.searchsorted(decoding.numbers, 1)) if detailed else 0
        rows = self.rows[PREFILL][prefill.rows], self.rows[DECODING][decoding.rows]
        few = 0 < len(rows[0]) <= _FEW - len(rows[1]) < _FEW
        if few and (self.experts is None or (self.experts[rows[1]] < 0).all()):
            prefills, steps, bound = self._both(rows, (prefill.values, decoding.values))
        else:
            prefills, _ = self._pieces(PREFILL, rows[0], prefill, 0)
            steps, bound = self._pieces(DECODING, rows[1], decoding, first)
        if first:
            self.detailed.append(
                (decoding.rows[:first], DecodeStep(decoding.values[:first], steps[:first], bound[:first]))
            )
        self.known[PREFILL], passed = prefill.answered(_with_total(prefills))
        self.known[DECODING], stepped = decoding.answered(_with_total(steps))
        return Times(stepped[..., 0], passed[..., 0], stepped[..., 1:], passed[..., 1:])

    def step(self, batch: Array) -> DecodeStep:
        """A step with a number of requests in detail.

        Parameters
        ----------
        batch : Array
            Requests that are decoded together, (rows,). [-]

        Returns
        -------
        DecodeStep
            NaN where the batch is, (rows,).
        """
        found, lacking = self._step(batch)
        if len(lacking):
            self.at(batch[None], np.empty((0, len(batch))), detailed=True)
            found, _ = self._step(batch)
        return found

    def _step(self, batch: Array) -> tuple[DecodeStep, np.ndarray]:
        """A step in detail where it is known, and the rows where it is not."""
        found = DecodeStep(batch, np.full((len(batch), 5), np.nan), np.full(len(batch), np.nan))
        lacking = ~np.isnan(batch)
        for rows, kept in self.detailed:
            same = kept.batch == batch[rows]
            some = rows[same]
            found.parts[some], found.bound[some], lacking[some] = kept.parts[same], kept.bound[same], False
        return found, np.flatnonzero(lacking)

    def _both(self, rows: Sequence[np.ndarray], values: Sequence[Array]) -> tuple[Array, Array, Array]:
        """Parts (rows, 5) of prefills and of steps, and bounds of steps, from one call of both phases for all rows."""
        prefills = len(rows[0])
        ones = [np.ones(len(every)) for every in rows]
        served = self.deployment.take(np.concatenate(rows))
        served = served.with_batch(np.concatenate([ones[0], values[1]]), np.concatenate([values[0], ones[1]]))
        work = serving_work(served)
        parts = scaled_times(phase_times(work), served, (PREFILL, DECODING))
        return parts[:prefills, PREFILL], parts[prefills:, DECODING], serving_bound(served, work)[prefills:]

    def _pieces(self, phase: int, rows: np.ndarray, asked: _Asked, bounded: int) -> tuple[Array, Array]:
        """Parts (rows, 5) of one phase, and bounds of the first rows."""
        parts, bound, values = np.empty((len(rows), 5)), np.empty(bounded), asked.values
        for start in range(0, len(rows), _BATCH):
            some = slice(start, start + _BATCH)
            chosen = rows[some]
            served = self.deployment.take(_slice(chosen))
            ones = np.ones(len(chosen))
            served = served.with_batch(*((ones, values[some]) if phase == PREFILL else (values[some], ones)))
            work = serving_work(served, (phase,))
            parts[some] = scaled_times(phase_times(work), served, (phase,))[:, 0]
            if start < bounded:
                bound[some] = serving_bound(served, work)[: bounded - start]
        if phase == DECODING and self.experts is not None:
            partners = self.experts[rows]
            split = np.flatnonzero(partners >= 0)
            attention, experts = (self.deployment.take(some[split]) for some in (rows, partners))
            step = split_step(attention, experts, values[split])
            parts[split] = step.parts
            asked_for = split < bounded
            bound[split[asked_for]] = step.bound[asked_for]
        return parts, bound
