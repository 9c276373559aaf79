"""Work on blocks of a long table by all cores or by a Dask cluster, results in order, in the memory of a few blocks."""

from __future__ import annotations

import os
import signal
import threading
import time
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
from uuid import uuid4

from xlperf import __version__
from xlperf.base.errors import Fault, InputError
from xlperf.base.files import scratch_folder

SERIAL_BLOCKS = 3
"""Blocks that one process computes before others have started. [-]"""
LARGE = 2**16
"""Content of files that processes hand over as one: a pipe is read while this process computes, bit by bit. [B]"""
_AHEAD = 2
_CONNECT = "30s"
_TRIES = 5
"""How often workers are prepared where one of them leaves meanwhile. [-]"""
_worker: dict[str, Callable[[Any], Any]] = {}

Task = TypeVar("Task")
Done = TypeVar("Done")


def all_processes() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worked(
    work: Callable[[Task], Done], tasks: Iterable[Task], processes: int, scheduler: str | None = None
) -> Iterator[Done]:
    """What work makes of tasks, in their order, by several processes if there are enough of them.

    Parameters
    ----------
    work : callable
        Sent to each process once.
    tasks : iterable
        Taken as they are needed: a few are under way at a time.
    processes : int
        Processes that work, this one among them. [-]
    scheduler : str, optional
        Address of a Dask scheduler whose workers work instead.

    Yields
    ------
    object
        One for each task.

    Raises
    ------
    InputError
        If a process ended before its task was done; if there is no such cluster, or it has another xlperf.
    """
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
    """A task on its way to the processes of a pool, some of which start with it: Ctrl-C is for this process alone."""
    if not hasattr(signal, "pthread_sigmask"):
        return pool.submit(_done, task)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a process inherits it
    try:
        return pool.submit(_done, task)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_here(work: Callable[[Any], Any], folder: Path) -> None:
    """What a process needs to work: large results wait in files of a folder."""
    _worker["work"] = work
    _worker["file"] = lambda content: _written(content, folder)


def _start(work: Callable[[Any], Any], folder: Path) -> None:
    """Prepare a worker process: it ends when the process that asked for it is killed."""
    _start_here(work, folder)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _done(task: Any) -> Any:
    """A result; if it is a file's content, or has some, that is handed over as a file."""
    done = _worker["work"](task)
    _trimmed()
    content = getattr(done, "content", done)
    if not isinstance(content, bytes) or len(content) < LARGE:
        return done
    written = _worker["file"](content)
    return written if content is done else done._replace(content=written)


@cache
def _trim() -> Callable[[int], int]:
    """Gives memory that is free back to the system, if the C library can (glibc)."""
    try:
        return cast("Callable[[int], int]", CDLL(None).malloc_trim)
    except (AttributeError, OSError, TypeError):
        return int


def _trimmed() -> None:
    """A block of arrays leaves holes in the heap, which every process would keep."""
    _trim()(0)


def _written(content: bytes, folder: Path) -> Path:
    handle, name = mkstemp(dir=folder)
    with os.fdopen(handle, "wb") as stream:
        stream.write(content)
    return Path(name)


def _taken(result: Any) -> Any:
    """A result with its content, from its file where it is in one."""
    written = getattr(result, "content", result)
    if not isinstance(written, Path):
        return result
    content = written.read_bytes()
    written.unlink()
    return content if written is result else result._replace(content=content)


def _in_order(
    work: Callable[[Task], Any], submit: Callable[[Task], Future[Any]], tasks: Iterator[Task], processes: int
) -> Iterator[Any]:
    """Results in the order of their tasks; while the others are busy this process does a task as well."""
    waiting: deque[Future[Any]] = deque()
    for task in tasks:
        if sum(not future.done() for future in waiting) < processes:
            waiting.append(submit(task))
        else:
            own: Future[Any] = Future()
            own.set_result(work(task))
            waiting.append(own)
        while waiting and (waiting[0].done() or len(waiting) > 2 * processes):
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _by_cluster(work: Callable[[Task], Done], tasks: Iterator[Task], scheduler: str) -> Iterator[Done]:
    """As :func:`worked`, on a Dask cluster; the blocks of a worker that dies are computed by another."""
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
        name = f"xlperf-{uuid4().hex}"
        _prepare_workers(client, scheduler, _plugin(distributed, work, name), name)
        try:
            waiting: deque[Any] = deque()
            for task in tasks:
                waiting.append(client.submit(_done_by, name, task, pure=False))
                while len(waiting) > _AHEAD * max(sum(client.nthreads().values()), 1):
                    yield _gathered(distributed, waiting.popleft())
            while waiting:
                yield _gathered(distributed, waiting.popleft())
        finally:
            client.unregister_worker_plugin(name)


def _prepare_workers(client: Any, scheduler: str, plugin: Any, name: str) -> None:
    """Give the workers their work, those that are left where one leaves meanwhile."""
    for left in reversed(range(_TRIES)):
        try:
            _check_versions(client, scheduler)
            client.register_plugin(plugin, name=name)
            return
        except OSError as error:
            if not left:
                problem = (
                    f"workers at {scheduler} left while they were prepared; run again: blocks that are done are kept"
                )
                raise InputError(Fault("--scheduler", problem)) from error
            time.sleep(1.0)


def _check_versions(client: Any, scheduler: str) -> None:
    """Refuse workers that would give other numbers."""
    try:
        result = client.run(_version)
    except ModuleNotFoundError:
        raise InputError(Fault("--scheduler", f"the workers at {scheduler} have no xlperf: install it there")) from None
    other = sorted(set(result.values()) - {__version__})
    if other:
        problem = f"a worker has xlperf {other[0]}, this is {__version__}: install the same everywhere"
        raise InputError(Fault("--scheduler", problem))


def _version() -> str:
    from xlperf import __version__ as found

    return found


def _plugin(distributed: Any, work: Callable[[Any], Any], name: str) -> Any:
    """What puts the work into each worker, those that start later included."""
    methods = {
        "setup": lambda self, worker: _prepare(name, work),
        "teardown": lambda self, worker: _prepare(name, None),
    }
    return type("Prepared", (distributed.WorkerPlugin,), methods)()


def _prepare(name: str, work: Callable[[Any], Any] | None) -> None:
    """Keep or forget work in this process; named by its module, so that each process has its own."""
    if work is None:
        _worker.pop(name, None)
    else:
        _worker[name] = work


def _done_by(name: str, task: Any) -> Any:
    return _worker[name](task)


def _gathered(distributed: Any, future: Any) -> Any:
    try:
        return future.result()
    except distributed.KilledWorker:
        problem = "several workers died over one block (too little memory?): start workers with more"
        raise InputError(Fault("--scheduler", problem)) from None
