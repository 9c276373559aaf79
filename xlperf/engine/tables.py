"""Tables of plans in, tables of results out: ``evaluate`` and ``explain``; searches side by side share their blocks."""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np

from xlperf.base.errors import Fault, InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import ERROR, MEASURED, OWN_RUNS, results_of
from xlperf.catalog.table import Table, stacked
from xlperf.engine.inference import evaluate_inference, serving_memory

BLOCK = 65_536  # rows that are looked up together

Progress = Callable[[int], None]


def _training(
    plans: Table, catalog: Catalog, results: Collection[str] | None = None, reasons: bool = True
) -> dict[str, np.ndarray]:
    """Results of training plans; the import of their equations takes 0.2 s where byte code is not cached."""
    from xlperf.engine.training import evaluate_training

    return evaluate_training(plans, catalog, results, reasons)


def refuse_auto(plans: Table) -> None:
    """Raise InputError for every cell ``auto``, which a search has to expand first."""
    faults = [
        Fault(
            plans.place(int(row), column), f"{column.replace('_', ' ')} is auto: a search has to choose a value first"
        )
        for column, mask in plans.auto.items()
        for row in np.flatnonzero(mask)
    ]
    if faults:
        raise InputError(faults)


def evaluate(
    plans: Table, catalog: Catalog, progress: Progress | None = None, results: Collection[str] | None = None
) -> Table:
    """Performance, memory and cost of every plan of a table, in internal units, or ``results`` alone, to the last bit.
    An illegal plan has NaN and a reason, one beyond memory ``fits`` 0; ``progress`` gets the rows of each finished
    block.
    """
    if progress is None:
        chosen = None if results is None else frozenset(results)
        key = "evaluate", id(catalog), chosen
        return in_block(key, plans, lambda block: _evaluated(block, catalog, None, chosen), Table.take)
    return _evaluated(plans, catalog, progress, results)


def _evaluated(plans: Table, catalog: Catalog, progress: Progress | None, results: Collection[str] | None) -> Table:
    refuse_auto(plans)
    block_of = evaluate_inference if plans.kind == "inference" else _training
    schema = results_of(plans.kind)
    blocks = []
    for start in range(0, max(len(plans), 1), BLOCK):
        block = plans if len(plans) <= BLOCK else plans.take(slice(start, start + BLOCK))
        blocks.append(block_of(block, catalog, results))
        if progress is not None:
            progress(len(block))
    measured = {name.removeprefix(MEASURED) for name in plans.columns if name.startswith(MEASURED)}
    columns: dict[str, np.ndarray] = {}
    for name in [column.name for column in schema.columns if results is None or column.name in blocks[0]]:
        columns[name] = blocks[0][name] if len(blocks) == 1 else np.concatenate([block[name] for block in blocks])
        if name in measured:
            columns[ERROR + name] = columns[name] / plans[MEASURED + name] - 1.0
    table = Table(schema.name, columns, plans.place)
    return table if results is None else _explained(table, results, lambda: _evaluated(plans, catalog, None, None))


def _explained(table: Table, results: Collection[str], whole: Callable[[], Table]) -> Table:
    """Selected results; all of them if one is blank in a legal plan, since only complete notes give the reason."""
    legal = table["reason"] == ""
    if all(column.name in table for column in table.schema.columns):
        return table
    blank = [name for name, values in table.columns.items() if values.dtype != object and np.isnan(values[legal]).any()]
    if any(name in results for name in blank):
        return whole()
    return replace(table, columns={name: values for name, values in table.columns.items() if name not in blank})


def fitting(plans: Table, catalog: Catalog) -> dict[str, np.ndarray] | None:
    """Legality and memory of plans, much faster than :func:`evaluate`; None for plans with a request rate. ``fits`` as
    in the results, NaN for an illegal plan, 1 also if only the load of an inference plan can decide; with
    ``memory_reserved`` [B] for training, ``max_batch_size`` for inference.
    """
    if plans.kind == "training":
        return _training(plans, catalog, ("memory_reserved", "fits"), reasons=False)
    if not np.isnan(plans.number("request_rate")).all():
        return None
    return in_block(("fitting", id(catalog)), plans, lambda block: serving_memory(block, catalog), _of_rows)


def _of_rows(known: dict[str, np.ndarray], rows: slice) -> dict[str, np.ndarray]:
    return {name: values[rows] for name, values in known.items()}


def numbers(plans: Table, catalog: Catalog, results: Collection[str] = ()) -> Table | None:
    """Numeric results of training plans without bands, trust and reasons, fast; None for inference."""
    if plans.kind != "training":
        return None
    from xlperf.engine.training import NUMBERS

    wanted = results if results and {*results} <= {*NUMBERS} else NUMBERS
    columns = _training(plans, catalog, wanted, reasons=False)
    del columns["reason"]
    return Table("training_results", columns)


def bounds(plans: Table, catalog: Catalog, result: str) -> Table | None:
    """Bounds of a result, and of others, of training plans that differ in recomputation and ZeRO stage alone; the given
    plans recompute nothing and have ZeRO stage 2. None if the result has no bound, or own runs correct it.
    """
    if plans.kind != "training" or len(catalog.tables[OWN_RUNS]):
        return None
    from xlperf.engine.training import BOUNDED, best_results

    return Table("training_results", best_results(plans, catalog)) if result in BOUNDED else None


def explain(plans: Table, catalog: Catalog, row: int = 0) -> Table:
    """Operators of one plan with FLOP, bytes, time and bound; no rows for an illegal plan."""
    one = plans.take(slice(row, row + 1))
    refuse_auto(one)
    if plans.kind == "training":
        from xlperf.engine.operators import explain_training

        return explain_training(one, catalog)
    from xlperf.engine.operators import explain_inference

    return explain_inference(one, catalog)


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
