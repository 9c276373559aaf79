"""The question Sessions: hit rates and times that agree, more memory, stated sessions, one line where it is wrong."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from xlperf.addin.worker import Session
from xlperf.base.errors import InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import first_words
from xlperf.explore.forms import answer_of, form_of, tables_of
from xlperf.explore.objectives import TABLES

ASKED = {**first_words("sessions"), "software": "sglang", "num_accelerators": "2"}
KNOWN: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}


def answered(catalog: Catalog, **changed: str) -> dict[str, Any]:
    """The answer to the form of the sheet on two accelerators with some entries changed."""
    key = tuple(sorted(changed.items()))
    if key not in KNOWN:
        KNOWN[key] = answer_of(form_of("sessions", ASKED | changed), catalog)
    return KNOWN[key]


def test_the_parts_of_an_answer_agree(catalog: Catalog) -> None:
    answer = answered(catalog)
    tiers = answer["hit_rate_accelerator"] + answer["hit_rate_host"]
    assert tiers == pytest.approx(answer["hit_rate"]) and answer["hit_rate_host"] > 0.0
    assert answer["hit_rate"] < answer["reused_share"] < 1.0
    think = 30.0 * 19.0 / 20.0
    alive = answer["running_sessions"] * (answer["turn_time"] + think) / answer["turn_time"]
    assert answer["sessions_per_copy"] == pytest.approx(alive)  # Little's law
    assert answer["running_sessions"] < answer["resident_sessions"] < answer["sessions_per_copy"]
    assert answer["ttft_later"] <= 2.0 and 1.0 / answer["tpot"] >= 20.0
    hour = answer["hour_price"] * answer["copy_size"]
    assert answer["cost_per_session"] == pytest.approx(hour * 20.0 / answer["turn_rate"])
    assert answer["cost_per_million_output_tokens"] == pytest.approx(answer["cost_per_session"] / (20.0 * 200.0))


def test_more_memory_of_the_host_never_hits_less_and_endless_memory_hits_all(catalog: Catalog) -> None:
    memory = answered(catalog)[TABLES]["memory"]
    for name, sign in (("hit_rate", 1.0), ("sessions_per_copy", 1.0), ("cost_per_session", -1.0)):
        assert bool((sign * np.diff(memory.number(name)) > -1e-9).all()), name
    endless = answered(catalog, host_memory="1e9")
    assert endless["hit_rate"] == pytest.approx(endless["reused_share"], abs=1e-9)
    none = answered(catalog, host_tier="")
    assert none["hit_rate"] == pytest.approx(memory.number("hit_rate")[0]) and len(none[TABLES]["memory"]) == 0
    assert np.isnan(none.get("host_worth_per_month", np.nan))


def test_turns_wait_up_to_the_target_at_every_size_of_the_memory(catalog: Catalog) -> None:
    """An engine that limits its batch may let turns wait: neither limit of a session makes first tokens jump."""
    memory = answered(catalog, software="tensorrt-llm")[TABLES]["memory"]
    assert bool((memory.number("ttft_later") <= 2.0).all() and (memory.number("ttft_later") > 1.7).all())
    assert bool((np.diff(memory.number("sessions_per_copy")) > -1e-9).all())


def test_slower_tiers_hold_what_faster_ones_evict_and_load_longer(catalog: Catalog) -> None:
    tiers = answered(catalog, host_memory="100", drive_tier="Drive NVMe")[TABLES]["tiers"]
    assert tiers.text("tier").tolist() == ["accelerators", "Host PCIe 5", "Drive NVMe"]
    assert bool((np.diff(tiers.number("eviction_time")) >= 0.0).all())
    loads = tiers.number("load_time")
    assert loads[2] > loads[1] or tiers.number("hit_rate")[1] == 0.0
    together = answered(catalog, load_overlap="yes")["ttft_later"], answered(catalog, load_overlap="no")["ttft_later"]
    assert together[0] < together[1]


def test_stated_sessions_take_the_copies_that_hold_them_evenly(catalog: Catalog) -> None:
    most = answered(catalog)["sessions_per_copy"]
    many = answered(catalog, sessions="1000")
    assert many["copies"] == np.ceil(1000.0 / most)
    assert many["sessions_per_copy"] * many["copies"] == pytest.approx(1000.0)
    assert many["accelerators"] == 2.0 * many["copies"]


def test_stated_sessions_take_the_fewest_accelerators_of_copies_of_all_sizes(catalog: Catalog) -> None:
    """3,000 sessions took 16 accelerators in copies of 8, which cost least when full, and 10 of one hold them."""
    asked = {"model": "Qwen3-30B-A3B", "accelerator": "H200-SXM-141GB", "software": "vllm", "sessions": "3000",
             "turns": "12", "first_tokens": "3000", "added_tokens": "600", "generated_tokens": "300",
             "think_time": "45", "common_tokens": "2500"}  # fmt: skip
    free, *sizes = (
        answer_of(form_of("sessions", asked | size), catalog)
        for size in ({}, {"num_accelerators": "1"}, {"num_accelerators": "8"})
    )
    assert free["accelerators"] <= sizes[0]["accelerators"] < sizes[1]["accelerators"]


def test_longer_thinking_sessions_are_more_and_hit_less_on_the_accelerators(catalog: Catalog) -> None:
    quick, slow = (answered(catalog, think_time=time) for time in ("5", "300"))
    assert slow["sessions_per_copy"] > quick["sessions_per_copy"]
    assert slow["hit_rate_accelerator"] < quick["hit_rate_accelerator"]


def test_an_impossible_form_says_why_in_a_line(catalog: Catalog) -> None:
    fast = answered(catalog, speed_per_user="5000")
    assert fast["answer"].startswith("No answer: ") and "token/s" in fast["answer"]
    assert tables_of(form_of("sessions", ASKED | {"speed_per_user": "5000"}), catalog)["memory"].columns == {}
    for entry, words in (("-1", "host memory must be a number of at least 0"), ("many", "host memory")):
        with pytest.raises(InputError, match=words):
            form_of("sessions", ASKED | {"host_memory": entry})
    with pytest.raises(InputError, match='unknown kv_tier "Host PCIe 7"'):
        answered(catalog, host_tier="Host PCIe 7")


def test_a_table_beside_the_answer_is_asked_by_its_name_in_cells() -> None:
    session = Session()
    card = [[name.replace("_", " "), value] for name, value in ASKED.items() if value not in ("", "auto")]
    card = [[name, float(value) if value.replace(".", "").isdigit() else value] for name, value in card]
    block = session.call("XLPERF_SESSIONS", [card, "memory"])
    assert block[0][:3] == ["host memory (GB)", "hit rate", "sessions per copy"] and len(block) == 11
    assert all(isinstance(value, float) for row in block[1:] for value in row[:5])
    ((rate,),) = session.call("XLPERF_SESSIONS", [card, "hit rate"])
    assert rate == pytest.approx(block[5][1])


ONE_STAGE = {"pipeline_parallel": "1"}
MAPPINGS = ({"tensor_parallel": "1"}, {"tensor_parallel": "2", "software": "vllm"})


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("replicas", [2, 4])
def test_a_copy_of_several_replicas_holds_the_sessions_of_each(
    catalog: Catalog, mapping: dict[str, str], replicas: int
) -> None:
    one, several = (
        answered(catalog, **ONE_STAGE, **mapping, num_accelerators=str(int(mapping["tensor_parallel"]) * number))
        for number in (1, replicas)
    )
    alike = ("sessions_per_accelerator", "cache_per_session", "tokens_per_session", "hit_rate", "hit_rate_accelerator",
             "ttft_first", "ttft_later", "turn_time", "eviction_time", "cost_per_session", "host_worth_per_month",
             "best_host_memory")  # fmt: skip
    for names, ratio in (
        (alike, 1.0),
        (("cache_tokens", "copy_size", "resident_sessions", "running_sessions", "turn_rate"), replicas),
    ):
        assert [several[name] for name in names] == pytest.approx([ratio * one[name] for name in names])
    rows = [answer[TABLES]["memory"].number("sessions_per_copy") for answer in (several, one)]
    assert rows[0] == pytest.approx(replicas * rows[1])


def test_stated_sessions_are_spread_over_the_replicas_of_all_copies(catalog: Catalog) -> None:
    asked = {**ONE_STAGE, "tensor_parallel": "2", "sessions": "1000"}
    one, several = (answered(catalog, **asked, num_accelerators=size) for size in ("2", "8"))
    assert several["sessions_per_copy"] * several["copies"] == pytest.approx(1000.0)
    assert one["accelerators"] <= several["accelerators"] < one["accelerators"] + 8.0
    assert several["running_sessions"] * several["copies"] == pytest.approx(one["running_sessions"] * one["copies"])


def test_more_accelerators_in_a_copy_never_hold_fewer_sessions_each(catalog: Catalog) -> None:
    answers = [answered(catalog, num_accelerators=size) for size in ("2", "4", "8")]
    for small, large in pairwise(answers):
        assert large["cost_per_session"] <= small["cost_per_session"] * 1.001
        assert large["sessions_per_accelerator"] >= small["sessions_per_accelerator"] * 0.999


def test_the_best_memory_of_the_host_does_not_depend_on_the_size_that_a_form_states(catalog: Catalog) -> None:
    sizes = ("0", "100", "320", "512", "5000")
    answers = {size: answered(catalog, host_memory=size) for size in sizes}
    assert len({answer["best_host_memory"] for answer in answers.values()}) == 1
    for size, answer in answers.items():
        memory = answer[TABLES]["memory"]
        stated = np.isclose(memory.number("host_memory"), float(size) * 1e9)
        assert stated.sum() == 1 and not stated[-1] and len(memory) <= 11
        assert "saves $0.00" not in answer["answer"] or answer["host_worth_per_month"] == 0.0
        assert answer["best_host_memory"] in memory.number("host_memory")
        row = memory.take(np.flatnonzero(stated))
        assert row.stated("sessions_per_copy") == pytest.approx(answer["sessions_per_copy"], rel=1e-3)
        assert answer["host_worth_per_month"] == memory["worth_per_month"][int(np.argmax(stated)) + 1]
