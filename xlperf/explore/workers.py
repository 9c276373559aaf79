"""Parallel work: blocks of a long table on all cores or a Dask cluster, in order and in the memory of a few blocks; and
half of the forms of a search in a second process of a spreadsheet's worker.

The second process starts while a workbook opens, or at the first search that could use it, and stays, with its own
caches, until the worker ends. Other users of xlperf search in one process, which starts sooner than a second one would.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from ctypes import CDLL
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from itertools import chain, count, islice
from pathlib import Path
from tempfile import mkstemp
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from xlperf import __version__
from xlperf.base.errors import Fault, InputError
from xlperf.base.files import scratch_folder
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table, nowhere

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


Work = Callable[[Sequence[Table], Catalog], list[Done]]
"""Results of some forms, one each: a function of a module, which another process finds by its name."""

_MOST_CATALOGS = 8
_catalogs: OrderedDict[int, Catalog] = OrderedDict()
"""Catalogs that this process received, by their number there: one object each, whose results stay known."""
_sent: WeakKeyDictionary[Catalog, tuple[int, Catalog]] = WeakKeyDictionary()
"""Numbers of catalogs here, and the catalogs without the places of their cells, which no other process can have."""
_numbers = count()


class SecondProcess:
    """A process that computes half of the forms of a search, once it is allowed and has started."""

    def __init__(self) -> None:
        self.is_allowed = False
        self._pool: Executor | None = None
        self.started: Future[int] = Future()
        """Its process id."""
        self.ready: Future[Any] = Future()
        """Its first search."""

    def allow(self) -> None:
        """Let searches of this process use a second one, where the machine has two cores."""
        self.is_allowed = all_processes() > 1

    def start(self, work: Work[Any], forms: Sequence[Table], catalog: Catalog) -> None:
        """Start the process, if it is allowed, with a first search that fills its caches."""
        if self._pool is not None or not self.is_allowed:
            return
        from concurrent.futures.process import ProcessPoolExecutor  # a browser has no processes
        from multiprocessing import get_context

        self._pool = ProcessPoolExecutor(1, get_context("spawn"), end_with_parent)
        self.started = self._pool.submit(os.getpid)
        self.ready = self._pool.submit(_task(work, forms, catalog))

    def submitted(self, work: Work[Done], forms: Sequence[Table], catalog: Catalog) -> Future[list[Done]] | None:
        """The future results of forms; None if this process has to compute them itself."""
        try:
            self.start(work, (), catalog)
            if self._pool is not None and self.ready.done():
                return self._pool.submit(_task(work, forms, catalog))
        except RuntimeError:  # the process was killed, or this one ends
            self.end()
        return None

    def end(self) -> None:
        """End the process; the next search starts another."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = None


second = SecondProcess()


def in_halves(work: Work[Done], forms: Sequence[Table], catalog: Catalog) -> list[Done]:
    """Results of ``work`` for some forms: of the first half from this process, of the rest from a second one.

    A fault of the second half is found again here, where forms know the cells they come from.
    """
    half = (len(forms) + 1) // 2
    other = second.submitted(work, forms[half:], catalog) if forms[half:] else None
    if other is None:
        return work(forms, catalog)
    first = work(forms[:half], catalog)
    try:
        rest: list[Done] = other.result()
    except InputError:
        rest = work(forms[half:], catalog)
    except (OSError, RuntimeError):  # it was killed
        second.end()
        rest = work(forms[half:], catalog)
    return first + rest


def _task(work: Work[Done], forms: Sequence[Table], catalog: Catalog) -> Callable[[], list[Done]]:
    """Some work as another process can receive it: without the places of cells."""
    if catalog not in _sent:
        tables = {kind: replace(table, place=nowhere) for kind, table in catalog.tables.items()}
        bare = Catalog(tables, catalog.origin, strict=())
        bare.case = catalog.case
        _sent[catalog] = next(_numbers), bare
    return partial(_of_catalog, work, [replace(form, place=nowhere) for form in forms], *_sent[catalog])


def _of_catalog(work: Work[Done], forms: Sequence[Table], number: int, catalog: Catalog) -> list[Done]:
    """Results of forms for a catalog that has a number in the process that started this one."""
    catalog = _catalogs.setdefault(number, catalog)
    _catalogs.move_to_end(number)
    while len(_catalogs) > _MOST_CATALOGS:
        _catalogs.popitem(last=False)
    return work(forms, catalog)
