"""Searches in two processes: the same ways as in one, also after the second one was killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace

import pytest

from xlperf.base.errors import InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.explore import serve, workers
from xlperf.explore.forms import form_of
from xlperf.explore.others import on_other_accelerators
from xlperf.explore.serve import searched_each, serving_each, serving_ways
from xlperf.explore.space import with_columns
from xlperf.explore.workers import SecondProcess


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> Iterator[SecondProcess]:
    process = SecondProcess()
    monkeypatch.setattr(workers, "second", process)
    process.is_allowed = True
    yield process
    process.end()


def forms(*speeds: str) -> list[Table]:
    words = {"model": "Qwen3-8B", "accelerator": "H100-SXM-80GB", "users": "50", "software": "vllm",
             "mode": "continuous", "prompt_length": "500", "output_length": "100"}  # fmt: skip
    return [form_of("serve", words | {"speed_per_user": speed}) for speed in speeds]


def test_two_processes_find_what_one_finds(catalog: Catalog, second: SecondProcess) -> None:
    tables = {kind: replace(table, place=lambda row, name: "") for kind, table in catalog.tables.items()}
    catalog = Catalog(tables, "a workbook", strict=())
    serving_each(forms("20", "30"), catalog)  # starts it
    process = second.started.result()
    assert second.ready.result() == []
    speeds = "21", "31", "41"
    prices = [ways[0].price for ways in serving_each(forms(*speeds), catalog)]
    idle = second.submitted(searched_each, [], catalog)
    assert idle is not None and idle.result() == [], "it computed its half and waits"
    second.is_allowed = False
    assert prices == [
        serving_ways(with_columns(form, hours_per_month=700.0), catalog)[0].price for form in forms(*speeds)
    ]
    second.is_allowed = True
    unknown = with_columns(forms("22")[0], software="tgi")
    with pytest.raises(InputError, match='unknown serving engine "tgi"'):
        serving_each([*forms("23"), unknown], catalog)
    os.kill(process, signal.SIGKILL)
    for speeds in (("24", "34"), ("25", "35")):
        assert [len(ways) for ways in serving_each(forms(*speeds), catalog)] == [1, 1], "this process searches the rest"
    assert second.started.result() != process, "another one has started"


def test_a_comparison_answers_the_form_as_well(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    form = forms("26")[0]
    on_other_accelerators(form, catalog)
    monkeypatch.setattr(serve, "search_of", None)
    assert serving_ways(form, catalog)
    assert serving_ways(with_columns(form, way=2.0, kv_precision=""), catalog), "blanks are no entries"


def test_known_ways_are_bounded(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_MOST_KNOWN", 2)
    first = forms("27")[0]
    prices = [serving_each([with_columns(first, hour_price=price)], catalog)[0] for price in (1.0, 2.0, 3.0, 4.0)]
    cached, _ = serve._cached(first, catalog)
    assert len(cached) == 2 and [len(ways) for ways in prices] == [1, 1, 1, 1]
