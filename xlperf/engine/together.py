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
    """Plans that a search waits for; wishes with the same key make a block."""

    key: Hashable
    plans: Table
    work: Callable[[Table], Any]
    of_rows: Callable[[Any, slice], Any]


def in_block(
    key: Hashable, plans: Table, work: Callable[[Table], Done], of_rows: Callable[[Done, slice], Done]
) -> Done:  # fmt: skip
    """Result of some work on plans, in one block with the plans of searches that wait for the same work.

    ``of_rows`` takes the result of some rows out of the result of the block.
    """
    lane: _Lane | None = getattr(_here, "lane", None)
    if lane is None or plans.auto or plans.own or not plans.columns.keys() <= plans.schema.by_name.keys():
        return work(plans)
    # Rules of software read the modes of all plans of a block together.
    modes = tuple(sorted(set(plans.text("mode").tolist()))) if "mode" in plans else ()
    result: Done = lane.waited(_Wish((key, plans.kind, modes, *plans.columns), plans, work, of_rows))
    return result


class _Lane:
    """A search in a thread of its own, which runs only while all others wait."""

    def __init__(self, task: Callable[[], Any]) -> None:
        self.wish: _Wish | None = None
        self.go, self.stopped = threading.Semaphore(0), threading.Semaphore(0)
        context = copy_context()
        threading.Thread(target=lambda: context.run(self._run, task), daemon=True).start()
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


def together(tasks: Sequence[Callable[[], Done]], keep: Callable[[int, Done], None]) -> None:
    """Run searches in lockstep and hand on each result with its number; InputError, after all, has every fault.

    Of the waiting blocks the one whose kind of work came first is made first: a search that is at a later stage waits
    for the others.
    """
    faults: list[Fault] = []
    for number, outcome in enumerate(_outcomes(tasks)):
        try:
            keep(number, outcome())
        except InputError as error:
            faults += error.faults
    if faults:
        raise InputError(faults)


def _outcomes(tasks: Sequence[Callable[[], Any]]) -> list[Callable[[], Any]]:
    if len(tasks) < 2 or sys.platform == "emscripten":  # a browser has no threads
        return [_outcome(task) for task in tasks]
    lanes = [_Lane(task) for task in tasks]
    stages: dict[Hashable, int] = {}
    while True:
        blocks = defaultdict[Hashable, list[tuple[_Lane, _Wish]]](list)
        for lane in lanes:
            if lane.wish is not None:
                stages.setdefault(lane.wish.key, len(stages))
                blocks[lane.wish.key].append((lane, lane.wish))
        if not blocks:
            return [lane.outcome for lane in lanes]
        block = blocks[min(blocks, key=stages.__getitem__)]
        for (lane, _), lane.outcome in zip(block, _granted([wish for _, wish in block]), strict=True):
            lane.resume()


def _granted(wishes: Sequence[_Wish]) -> list[Callable[[], Any]]:
    """Outcomes of wishes with one key, made as one block; each alone if the block has a fault."""
    first = wishes[0]
    if len(wishes) > 1:
        with suppress(InputError):
            whole = first.work(stacked([wish.plans for wish in wishes]))
            ends = np.cumsum([0, *(len(wish.plans) for wish in wishes)]).tolist()
            return [partial(first.of_rows, whole, slice(*pair)) for pair in pairwise(ends)]
    return [_outcome(partial(wish.work, wish.plans)) for wish in wishes]
