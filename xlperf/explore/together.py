"""Several searches whose evaluations of plans are joined: one large block takes less time than many small ones.

Each search runs in its own thread, one thread at a time, until it has plans to evaluate. When all of them wait, equal
evaluations become one call. Rows of a block do not affect each other, so each search gets the results that it would
get alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar, copy_context
from threading import Semaphore, Thread
from typing import Any, NamedTuple, TypeVar

import numpy as np

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.explore.search import stacked

Result = TypeVar("Result")


class _Question(NamedTuple):
    """An evaluation that a search waits for."""

    function: Callable[..., Any]
    plans: Table
    catalog: Catalog
    options: tuple[tuple[str, Any], ...]

    @property
    def kind(self) -> object:
        """What equal evaluations have in common, whatever their plans."""
        return self.function, id(self.catalog), self.options

    @property
    def block(self) -> object:
        """What plans of one block have in common: rules of software read the columns and modes of all of them."""
        return tuple(self.plans.columns), frozenset(self.plans["mode"].tolist() if "mode" in self.plans else ())


class _Ended(BaseException):
    """Ends the thread of a search whose result is no longer needed."""


class _Search:
    """A search in a thread that waits at every evaluation."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.question: _Question | None = None
        self.answer: Any = None
        self.result: Any = None
        self.error: BaseException | None = None
        self._may_run, self._has_stopped, self._is_over = Semaphore(0), Semaphore(0), False
        Thread(target=copy_context().run, args=(self._run, work), name="xlperf search", daemon=True).start()

    def _run(self, work: Callable[[], Any]) -> None:
        _current.set(self)
        try:
            self._wait()
            self.result = work()
        except BaseException as error:  # for the thread that reads the result
            self.error = error
        self._has_stopped.release()

    def _wait(self) -> None:
        self._may_run.acquire()
        if self._is_over:
            raise _Ended

    def ask(self, question: _Question) -> Any:
        """The answer to a question; the thread stops until :meth:`resume`."""
        self.question = question
        self._has_stopped.release()
        self._wait()
        return self.answer

    def resume(self) -> None:
        """Let the thread run to its next question or its end."""
        self.question = None
        self._may_run.release()
        self._has_stopped.acquire()

    def end(self) -> None:
        """End the thread at its question."""
        self._is_over = True
        self._may_run.release()


_current: ContextVar[_Search | None] = ContextVar("current search", default=None)
"""The search of this thread, if it is one of several."""


def jointly(function: Callable[..., Any], plans: Table, catalog: Catalog, **options: Any) -> Any:
    """``function(plans, catalog, **options)``, in one call with the plans of the other searches of :func:`together`.

    It returns a table, or an array whose last axis has the plans.
    """
    search = _current.get()
    if search is None:
        return function(plans, catalog, **options)
    return search.ask(_Question(function, plans, catalog, tuple(sorted(options.items()))))


def together(works: Sequence[Callable[[], Result]]) -> list[Result]:
    """Results of searches, the same as if each ran alone. The first error of a search is raised."""
    if len(works) < 2 or sys.platform == "emscripten":  # a browser has no threads
        return [work() for work in works]
    searches = [_Search(work) for work in works]
    order: list[object] = []  # kinds of questions, the first one asked first
    waiting, ready = searches, searches
    try:
        while waiting:
            for search in ready:
                search.resume()
                if search.error is not None:
                    raise search.error
            waiting = [search for search in waiting if search.question is not None]
            kinds = [search.question.kind for search in waiting if search.question is not None]
            order += [kind for kind in dict.fromkeys(kinds) if kind not in order]
            # Only the earliest kind is answered: searches that are ahead wait until the others catch up.
            first = min(map(order.index, kinds), default=0)
            ready = [search for search, kind in zip(waiting, kinds, strict=True) if order.index(kind) == first]
            _answer(ready)
    finally:
        for search in waiting:
            search.end()
    return [search.result for search in searches]


def _answer(searches: Sequence[_Search]) -> None:
    """Answer questions of one kind, in one call for all plans that can share a block."""
    blocks: dict[object, list[tuple[_Search, _Question]]] = {}
    for search in searches:
        if search.question is not None:
            blocks.setdefault(search.question.block, []).append((search, search.question))
    for block in blocks.values():
        tables = [question.plans for _, question in block]
        function, _, catalog, options = block[0][1]
        result = function(stacked(tables) if len(tables) > 1 else tables[0], catalog, **dict(options))
        start = 0
        for (search, _), plans in zip(block, tables, strict=True):
            rows = np.arange(start, start := start + len(plans))
            search.answer = result.take(rows) if isinstance(result, Table) else result[..., rows]
