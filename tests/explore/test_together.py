"""Searches whose evaluations are joined: what each would find alone, in few calls; other accelerators beside Serve."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pytest

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.explore.forms import answer_of, form_of, table_of
from xlperf.explore.together import jointly, together

ASKED = {"model": "Meta-Llama-3.1-8B", "accelerator": "H100-SXM-80GB", "users": "700", "speed_per_user": "30",
         "prompt_length": "900", "output_length": "200"}  # fmt: skip


class Counting:
    """Squares of concurrencies, and how many plans each call had."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def squares(self, plans: Table, _: Catalog, more: float = 0.0) -> np.ndarray:
        self.calls.append(len(plans))
        return np.stack([plans.number("concurrency") ** 2 + more, plans.number("concurrency")])


def asks(function: object, catalog: Catalog, *loads: list[float], more: float = 0.0) -> list[list[float]]:
    """What a search that evaluates plans of these loads, one list after the other, reads."""
    plans = [Table("inference", {"concurrency": np.array(load)}) for load in loads]
    return [jointly(function, own, catalog, more=more)[0].tolist() for own in plans]  # type: ignore[arg-type]


def test_each_search_reads_its_own_rows_of_one_call(catalog: Catalog) -> None:
    counting = Counting()
    works = [
        partial(asks, counting.squares, catalog, [1.0, 2.0], [3.0]),
        partial(asks, counting.squares, catalog, [4.0], []),
    ]
    assert together(works) == [[[1.0, 4.0], [9.0]], [[16.0], []]]
    assert counting.calls == [3, 1]


def test_a_search_that_is_ahead_waits_for_the_others(catalog: Catalog) -> None:
    first, then = Counting(), Counting()

    def both(*loads: list[float]) -> list[list[float]]:
        return asks(first.squares, catalog, *loads) + asks(then.squares, catalog, [5.0])

    assert together([partial(both, [1.0]), partial(both, [1.0], [2.0], [3.0])])[0] == [[1.0], [25.0]]
    assert (first.calls, then.calls) == ([2, 1, 1], [2])


def test_evaluations_with_other_options_are_calls_of_their_own(catalog: Catalog) -> None:
    counting = Counting()
    works = [partial(asks, counting.squares, catalog, [2.0], more=more) for more in (0.0, 1.0, 0.0)]
    assert together(works) == [[[4.0]], [[5.0]], [[4.0]]]
    assert sorted(counting.calls) == [1, 2]


def test_the_error_of_a_search_is_raised_and_no_thread_stays(catalog: Catalog) -> None:
    def fails() -> list[list[float]]:
        asks(Counting().squares, catalog, [1.0])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        together([partial(asks, Counting().squares, catalog, [1.0], [2.0], [3.0]), fails])
    for thread in threading.enumerate():
        if thread.name == "xlperf search":
            thread.join(60.0)
            assert not thread.is_alive()


def test_other_accelerators_cost_what_serve_says_of_each(catalog: Catalog) -> None:
    others = table_of(form_of("serve", ASKED), "others", catalog)
    names = others["accelerator"].tolist()
    assert "H100-SXM-80GB" not in names
    assert {"H200-SXM-141GB", "B200-SXM-180GB", "MI300X"} <= set(names)
    for row, name in enumerate(names):
        alone = answer_of(form_of("serve", ASKED | {"accelerator": name}), catalog)
        for column in ("accelerators", "fleet_cost_per_million_output_tokens", "power"):
            assert others.number(column)[row] == alone[column], (name, column)
        assert (others["software"][row], others["mode"][row]) == (alone["software"], alone["mode"])
    costs = others.number("fleet_cost_per_million_output_tokens")
    assert (np.diff(costs) >= 0.0).all()


def test_other_accelerators_are_mapped_anew(catalog: Catalog) -> None:
    fixed = ASKED | {"tensor_parallel": "8", "hour_price": "9", "software": "vllm"}
    tables = [table_of(form_of("serve", asked), "others", catalog) for asked in (ASKED, fixed)]
    assert [table["accelerator"].tolist() for table in tables][1:] == [tables[0]["accelerator"].tolist()]
    assert tables[1].number("accelerators").tolist() == tables[0].number("accelerators").tolist()


def test_a_demand_that_no_other_accelerator_serves_has_no_rows(catalog: Catalog) -> None:
    assert len(table_of(form_of("serve", ASKED | {"speed_per_user": "50000"}), "others", catalog)) == 0
