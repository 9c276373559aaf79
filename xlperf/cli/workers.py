"""Work on blocks of a long table by all cores, results in order, in the memory of a few blocks."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from multiprocessing import get_context, parent_process
from typing import Any, TypeVar

from xlperf.base.errors import Fault, InputError

SERIAL_BLOCKS = 3
"""Blocks that one process computes before others have started. [-]"""
_worker: dict[str, Callable[[Any], Any]] = {}

Task = TypeVar("Task")
Done = TypeVar("Done")


def all_processes() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worked(work: Callable[[Task], Done], tasks: Iterable[Task], processes: int) -> Iterator[Done]:
    """What work makes of tasks, in their order, by several processes where there are enough of them.

    Parameters
    ----------
    work : callable
        Sent to each process once.
    tasks : iterable
        Taken as they are needed: a few are under way at a time.
    processes : int
        Processes that work, this one among them. [-]

    Yields
    ------
    object
        One for each task.

    Raises
    ------
    InputError
        Where a process ended before its task was done.
    """
    coming = iter(tasks)
    first = list(islice(coming, SERIAL_BLOCKS + 1))
    if processes == 1 or len(first) <= SERIAL_BLOCKS:
        yield from map(work, chain(first, coming))
        return
    with ProcessPoolExecutor(processes - 1, get_context("spawn"), _start, (work,)) as pool:
        try:
            yield from _in_order(work, lambda task: pool.submit(_done, task), chain(first, coming), processes)
        except BrokenProcessPool:
            problem = "ended before its block was done (too little memory?): run again with fewer --processes"
            raise InputError(Fault("a process", problem)) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _start(work: Callable[[Any], Any]) -> None:
    """Prepare a worker process: it ends when the process that asked for it is killed."""
    _worker["work"] = work
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _done(task: Any) -> Any:
    return _worker["work"](task)


def _in_order(
    work: Callable[[Task], Done], submit: Callable[[Task], Future[Done]], tasks: Iterator[Task], processes: int
) -> Iterator[Done]:
    """Results in the order of their tasks; while the others are busy this process does a task as well."""
    waiting: deque[Future[Done]] = deque()
    for task in tasks:
        if sum(not future.done() for future in waiting) < processes:
            waiting.append(submit(task))
        else:
            own: Future[Done] = Future()
            own.set_result(work(task))
            waiting.append(own)
        while waiting and (waiting[0].done() or len(waiting) > 2 * processes):
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
