"""Searches side by side: the answers of each alone, and an error of one is its own."""

import threading

import numpy as np
import pytest

from xlperf.base.errors import Fault, InputError
from xlperf.catalog.table import Table
from xlperf.engine.together import in_block, together


def doubled(seen):
    """Work that notes the rows of each block and doubles their batch sizes."""

    def work(plans):
        seen.append(len(plans))
        if (plans.number("batch_size") < 0.0).any():
            raise InputError(Fault("", f"{plans.number('batch_size')} below 0"))
        return 2.0 * plans.number("batch_size")

    return work


def search(work, *sizes):
    """A search that asks once for each of some sizes, and adds up what it gets."""

    def task():
        plans = [Table("inference", {"batch_size": np.array([size, size])}) for size in sizes]
        return sum(float(in_block("double", own, work, np.ndarray.__getitem__).sum()) for own in plans)

    return task


def results(tasks):
    """Results of searches, in their order."""
    known: dict[int, float] = {}
    together(tasks, known.__setitem__)
    return list(known.values())


def test_waiting_searches_share_a_block() -> None:
    seen: list[int] = []
    work = doubled(seen)
    assert results([search(work, 1.0, 2.0), search(work, 3.0, 4.0), search(work, 5.0)]) == [12.0, 28.0, 20.0]
    assert seen == [6, 4]
    assert not [thread for thread in threading.enumerate() if thread is not threading.main_thread() and thread.daemon]


def test_a_search_that_is_ahead_waits_for_the_others() -> None:
    seen: list[int] = []
    early = doubled(seen)

    def late():
        plans = Table("inference", {"batch_size": np.array([7.0])})
        first = in_block("first", plans, early, np.ndarray.__getitem__)
        return float(first[0]) + search(early, 1.0)()

    assert results([late, late, search(early, 1.0)]) == [18.0, 18.0, 4.0]
    assert seen == [2, 6]


def test_a_fault_belongs_to_its_search() -> None:
    known: dict[int, float] = {}
    sizes = (-1.0, 1.0, -2.0)
    with pytest.raises(InputError, match="below 0") as caught:
        together([search(doubled([]), size) for size in sizes], known.__setitem__)
    assert known == {1: 4.0} and len(caught.value.faults) == 2


def test_alone_a_search_asks_itself() -> None:
    seen: list[int] = []
    assert results([search(doubled(seen), 1.0, 2.0)]) == [12.0]
    assert seen == [2, 2]
