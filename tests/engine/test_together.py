"""Searches side by side: the answers of each alone, and an error of one is its own."""

import threading
from functools import partial

import numpy as np
import pytest

from xlperf.base.errors import Fault, InputError
from xlperf.catalog.table import Table
from xlperf.engine.tables import MOST, in_block, together


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


def test_waiting_searches_share_a_block() -> None:
    seen: list[int] = []
    work = doubled(seen)
    assert together([search(work, 1.0, 2.0), search(work, 3.0, 4.0), search(work, 5.0)]) == [12.0, 28.0, 20.0]
    assert seen == [6, 4]
    for thread in threading.enumerate():
        if thread.name == "xlperf search":
            thread.join(60.0)
            assert not thread.is_alive()


def test_a_search_that_is_ahead_waits_for_the_others() -> None:
    seen: list[int] = []
    early = doubled(seen)

    def late():
        plans = Table("inference", {"batch_size": np.array([7.0])})
        first = in_block("first", plans, early, np.ndarray.__getitem__)
        return float(first[0]) + search(early, 1.0)()

    assert together([late, late, search(early, 1.0)]) == [18.0, 18.0, 4.0]
    assert seen == [2, 6]


def test_a_fault_belongs_to_its_search() -> None:
    ended = []

    def task(size):
        ended.append(search(doubled([]), size)())

    with pytest.raises(InputError, match="below 0") as caught:
        together([partial(task, size) for size in (-1.0, 1.0, -2.0, -1.0)])
    assert ended == [4.0] and len(caught.value.faults) == 2


def test_many_searches_run_in_groups() -> None:
    seen: list[int] = []
    assert together([search(doubled(seen), float(size)) for size in range(MOST + 1)])[-1] == 4.0 * MOST
    assert seen == [2 * MOST, 2]


def test_alone_a_search_asks_itself() -> None:
    seen: list[int] = []
    assert together([search(doubled(seen), 1.0, 2.0)]) == [12.0]
    assert seen == [2, 2]
