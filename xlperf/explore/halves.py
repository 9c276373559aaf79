"""Searches of a spreadsheet's worker on two cores: half of the forms here, the other half in a second process.

The process starts while a workbook opens, or at the first search that could use it, and stays, with its own caches,
until the worker ends. Other users of xlperf search in one process, which starts sooner than a second one would.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from xlperf.base.errors import InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table, nowhere
from xlperf.explore.workers import all_processes, end_with_parent

Done = TypeVar("Done")
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
