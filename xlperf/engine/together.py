"""Several searches side by side: plans that they evaluate at the same time are one block, hardly slower than one."""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np

from xlperf.base.errors import Fault, InputError
from xlperf.catalog.table import Table, stacked

Done = TypeVar("Done")
_here = threading.local()


class _Wish(NamedTuple):
    """Plans that a search waits for; wishes of one kind whose plans have the same columns and modes make a block."""

    kind: Hashable
    alike: Hashable
    plans: Table
    work: Callable[[Table], Any]
    of_rows: Callable[[Any, slice], Any]


def in_block(
    kind: Hashable, plans: Table, work: Callable[[Table], Done], of_rows: Callable[[Done, slice], Done]
) -> Done:
    """Result of some work on plans, in one block with the plans of searches that wait for the same work.

    ``of_rows`` takes the result of some rows out of the result of the block.
    """
    lane: _Lane | None = getattr(_here, "lane", None)
    if lane is None or plans.auto or plans.own or not plans.columns.keys() <= plans.schema.by_name.keys():
        return work(plans)
    # Rules of software read the modes of all plans of a block together.
    modes = tuple(sorted(set(plans.text("mode").tolist()))) if "mode" in plans else ()
    result: Done = lane.waited(_Wish(kind, (plans.kind, modes, *plans.columns), plans, work, of_rows))
    return result


class _Lane:
    """A search in a thread of its own, which runs only while all others wait."""

    def __init__(self, task: Callable[[], Any]) -> None:
        self.wish: _Wish | None = None
        self.outcome: Callable[[], Any]
        self.go, self.stopped = threading.Semaphore(0), threading.Semaphore(0)
        context = copy_context()
        threading.Thread(target=context.run, args=(self._run, task), name="xlperf search", daemon=True).start()
        self.resume()

    def _run(self, task: Callable[[], Any]) -> None:
        self.go.acquire()
        _here.lane = self
        self.outcome, self.wish = _outcome(task), None
        self.stopped.release()

    def resume(self) -> None:
        """Let the search run up to its next wish, or to its end."""
        self.go.release()
        self.stopped.acquire()

    def waited(self, wish: _Wish) -> Any:
        """The result that the search wishes, once another thread has it."""
        self.wish = wish
        self.stopped.release()
        self.go.acquire()
        return self.outcome()


def _outcome(work: Callable[[], Any]) -> Callable[[], Any]:
    """A function that returns the result of some work, or raises its error."""
    try:
        result = work()
    except Exception as error:
        return partial(_raised, error)
    return lambda: result


def _raised(error: Exception) -> Any:
    raise error


MOST = 16
"""Searches that run side by side; more have little to gain. [-]"""


def together(tasks: Sequence[Callable[[], Done]]) -> list[Done]:
    """Results of searches, which run in lockstep; InputError, after all have ended, has the distinct faults of each.

    The work that some search asked for first goes first: a search that is ahead waits until the others ask the same.
    """
    results: list[Done] = []
    faults: list[Fault] = []
    for start in range(0, len(tasks), MOST):
        for outcome in _outcomes(tasks[start : start + MOST]):
            try:
                results.append(outcome())
            except InputError as error:
                faults += [fault for fault in error.faults if fault not in faults]
    if faults:
        raise InputError(faults)
    return results


def _outcomes(tasks: Sequence[Callable[[], Any]]) -> list[Callable[[], Any]]:
    if len(tasks) < 2 or sys.platform == "emscripten":  # a browser has no threads
        return [_outcome(task) for task in tasks]
    lanes = [_Lane(task) for task in tasks]
    order: dict[Hashable, int] = {}  # kinds of work, the first one asked for first
    while waiting := [(lane, lane.wish) for lane in lanes if lane.wish is not None]:
        for _, wish in waiting:
            order.setdefault(wish.kind, len(order))
        first = min(order[wish.kind] for _, wish in waiting)
        blocks = defaultdict[Hashable, list[tuple[_Lane, _Wish]]](list)
        for lane, wish in waiting:
            if order[wish.kind] == first:
                blocks[wish.alike].append((lane, wish))
        for block in blocks.values():
            for (lane, _), outcome in zip(block, _granted([wish for _, wish in block]), strict=True):
                lane.outcome = outcome
                lane.resume()
    return [lane.outcome for lane in lanes]


def _granted(wishes: Sequence[_Wish]) -> list[Callable[[], Any]]:
    """Outcomes of wishes that make a block; each alone if the block has a fault."""
    first = wishes[0]
    if len(wishes) > 1:
        with suppress(InputError):
            whole = first.work(stacked([wish.plans for wish in wishes]))
            ends = np.cumsum([0, *(len(wish.plans) for wish in wishes)]).tolist()
            return [partial(first.of_rows, whole, slice(*pair)) for pair in pairwise(ends)]
    return [_outcome(partial(wish.work, wish.plans)) for wish in wishes]
