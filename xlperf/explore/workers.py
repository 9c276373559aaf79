"""Parallel work on blocks of a long table, by all cores or a Dask cluster; ordered results, memory of a few blocks."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from ctypes import CDLL
from functools import cache
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from tempfile import mkstemp
from typing import Any, TypeVar, cast

from xlperf import __version__
from xlperf.base.errors import Fault, InputError
from xlperf.base.files import scratch_folder

SERIAL_BLOCKS = 3  # blocks that one process computes before others have started [-]
LARGE = 2**16
"""Size of results from which on processes exchange them as files, since reading a pipe delays this process. [B]"""
_AHEAD = 2
_CONNECT = "30s"
_worker: dict[str, Callable[[Any], Any]] = {}

Task = TypeVar("Task")
Done = TypeVar("Done")


def all_processes() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worked(
    work: Callable[[Task], Done], tasks: Iterable[Task], processes: int, scheduler: str | None = None
) -> Iterator[Done]:
    """Results of tasks, in their order, by several processes if there are enough tasks."""
    if scheduler is not None:
        yield from _by_cluster(work, iter(tasks), scheduler)
        return
    coming = iter(tasks)
    first = list(islice(coming, SERIAL_BLOCKS + 1))
    if processes == 1 or len(first) <= SERIAL_BLOCKS:
        yield from map(work, chain(first, coming))
        return
    from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor  # a browser has no processes
    from multiprocessing import get_context

    with (
        scratch_folder() as folder,
        ProcessPoolExecutor(processes - 1, get_context("spawn"), _start, (work, folder)) as pool,
    ):
        try:
            _start_here(work, folder)
            result = _in_order(_done, lambda task: _submitted(pool, task), chain(first, coming), processes)
            yield from map(_taken, result)
        except BrokenProcessPool:
            problem = "ended before its block was done (too little memory?): run again with fewer --processes"
            raise InputError(Fault("a process", problem)) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _submitted(pool: Executor, task: Any) -> Future[Any]:
    """Submit a task to a pool, whose processes may start with it; only this process handles Ctrl-C."""
    if not hasattr(signal, "pthread_sigmask"):
        return pool.submit(_done, task)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a process inherits it
    try:
        return pool.submit(_done, task)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_here(work: Callable[[Any], Any], folder: Path) -> None:
    """State of a process that works: the work, and the folder for large results."""
    _worker["work"] = work
    _worker["file"] = lambda content: _written(content, folder)


def _start(work: Callable[[Any], Any], folder: Path) -> None:
    _start_here(work, folder)
    end_with_parent()


def end_with_parent() -> None:
    """Let this process end when the one that started it does, however that ends."""
    from multiprocessing import parent_process

    parent = parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _done(task: Any) -> Any:
    """A result; a large file content in it goes through a file."""
    done = _worker["work"](task)
    _trimmed()
    content = getattr(done, "content", done)
    if not isinstance(content, bytes) or len(content) < LARGE:
        return done
    written = _worker["file"](content)
    return written if content is done else done._replace(content=written)


@cache
def _trim() -> Callable[[int], int]:
    """Return free memory to the system, if the C library can (glibc)."""
    try:
        return cast("Callable[[int], int]", CDLL(None).malloc_trim)
    except (AttributeError, OSError, TypeError):
        return int


def _trimmed() -> None:
    """Trim the heap: a block of arrays leaves holes that every process would retain."""
    _trim()(0)


def _written(content: bytes, folder: Path) -> Path:
    handle, name = mkstemp(dir=folder)
    with os.fdopen(handle, "wb") as stream:
        stream.write(content)
    return Path(name)


def _taken(result: Any) -> Any:
    written = getattr(result, "content", result)
    if not isinstance(written, Path):
        return result
    content = written.read_bytes()
    written.unlink()
    return content if written is result else result._replace(content=content)


def _in_order(
    work: Callable[[Task], Any], submit: Callable[[Task], Future[Any]], tasks: Iterator[Task], processes: int
) -> Iterator[Any]:
    """Results in the order of their tasks; this process also works while all others are busy."""
    waiting: deque[Future[Any]] = deque()
    for task in tasks:
        if sum(not future.done() for future in waiting) < processes:
            waiting.append(submit(task))
        else:
            local: Future[Any] = Future()
            local.set_result(work(task))
            waiting.append(local)
        while waiting and (waiting[0].done() or len(waiting) > 2 * processes):
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _by_cluster(work: Callable[[Task], Done], tasks: Iterator[Task], scheduler: str) -> Iterator[Done]:
    """As :func:`worked`, on a Dask cluster; another worker repeats the blocks of a worker that dies."""
    try:
        distributed: Any = import_module("distributed")
    except ImportError:
        raise InputError(Fault("--scheduler", 'needs Dask: pip install "xlperf[cluster]"')) from None
    try:
        client = distributed.Client(scheduler, timeout=_CONNECT, set_as_default=False)
    except (OSError, ValueError) as error:
        words = " ".join(str(error).split())[:200]
        raise InputError(Fault("--scheduler", f"no Dask scheduler answers at {scheduler}: {words}")) from None
    with client:
        _check_versions(client, scheduler)
        waiting: deque[Any] = deque()
        for task in tasks:
            waiting.append(client.submit(work, task, pure=False))
            while len(waiting) > _AHEAD * max(sum(client.nthreads().values()), 1):
                yield _gathered(distributed, waiting.popleft())
        while waiting:
            yield _gathered(distributed, waiting.popleft())


def _check_versions(client: Any, scheduler: str) -> None:
    """Refuse workers that would give other numbers; workers that leave meanwhile do not count."""
    answers = client.run(_version, on_error="return").values()
    if any(isinstance(answer, ModuleNotFoundError) for answer in answers):
        raise InputError(Fault("--scheduler", f"the workers at {scheduler} have no xlperf: install it there"))
    other = sorted({answer for answer in answers if isinstance(answer, str)} - {__version__})
    if other:
        problem = f"a worker has xlperf {other[0]}, this is {__version__}: install the same everywhere"
        raise InputError(Fault("--scheduler", problem))


def _version() -> str:
    from xlperf import __version__ as installed

    return installed


def _gathered(distributed: Any, future: Any) -> Any:
    try:
        return future.result()
    except distributed.KilledWorker:
        problem = "several workers died over one block (too little memory?): start workers with more"
        raise InputError(Fault("--scheduler", problem)) from None
