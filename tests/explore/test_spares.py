"""Spares of runs and services: published interruptions and effective times, limits, and the cheapest number."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from single_numbers import printed

from xlperf.base.errors import InputError
from xlperf.base.units import DAY, HOUR
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.explore.forms import form_of
from xlperf.explore.objectives import TABLES, Answer
from xlperf.explore.spares import STEPS, Work, spares_answer

ROWS = Path(__file__).parents[2] / "workbooks/rows/xlperf/failures.csv"
RUN = {"accelerator": "H100-SXM-80GB", "num_accelerators": 16384, "model": "Meta-Llama-3.1-405B", "copy_size": 128}
SERVICE = {"workload": "serving", "accelerator": "H100-SXM-80GB", "num_accelerators": 80, "copy_size": 8}


@cache
def catalog() -> Catalog:
    return load_catalog(ROWS)


def ask(entries: dict[str, Any], **changed: Any) -> Answer:
    return spares_answer(
        form_of("spares", {name: str(value) for name, value in (entries | changed).items()}), catalog()
    )


def test_llama_3_has_419_interruptions_in_54_days_and_trains_more_than_90_percent_of_them() -> None:
    """arXiv:2407.21783 table 5; 54 days with all that is lost."""
    share = ask(RUN)["effective_share"]
    answer = ask(RUN, run_time=54 * share)
    assert answer["run_time"] / DAY == pytest.approx(54)
    assert answer["interruptions"] == pytest.approx(printed("F01"), rel=1e-3)
    assert 0.90 < answer["effective_share"] < 0.97
    assert answer["checkpoint_size"] == pytest.approx(405.85e9 * 14, rel=0.01)


def test_byterobust_trains_97_percent_of_three_months() -> None:
    """arXiv:2509.16293: 9,600 H100 with warm standbys and checkpoints in memory; rates of Llama 3."""
    answer = ask(RUN, num_accelerators=9600, copy_size=64, checkpoint_tier="memory", spare_kind="warm")
    assert answer["effective_share"] == pytest.approx(printed("F02") / 100.0, abs=0.01)


def test_the_rows_of_the_stepfun_trace_give_the_time_that_its_servers_were_down() -> None:
    """3,231 of 139,200 server days of the trace, faults that overlap counted once."""
    answer = ask(RUN, fleet="StepFun trace", num_accelerators=800, copy_size=8)
    assert answer["unit_unavailability"] == pytest.approx(3231.3 / (400 * 348), rel=0.04)


def test_meta_research_cluster_has_the_interval_that_it_projects() -> None:
    """arXiv:2410.21680: 1.8 h at 16,384 accelerators."""
    assert ask(RUN, fleet="Meta RSC-1")["interruption_interval"] / HOUR == pytest.approx(printed("F03"), rel=0.01)


def test_copies_of_a_service_are_binomial() -> None:
    """One kind of failure, its time until a copy serves again included."""
    rates = {"fleet": "Meta RSC-1", "repair_time": 50, "restart_time": 60}
    answer = ask(SERVICE, **rates)
    down = 51.0 / (51.0 + 3692.3)
    table = answer[TABLES][STEPS]
    exact = stats.binom.cdf(table["spares"], 10 + table["spares"], down)
    np.testing.assert_allclose(table["availability"], exact, rtol=1e-9)
    fewest = int(answer["spares_for_availability"])
    assert answer["spares"] == fewest and exact[fewest] >= 0.999 > exact[fewest - 1]
    assert answer["shortage_per_year"] == pytest.approx((1 - answer["availability"]) * 365.25 * DAY)


def test_stating_the_answer_gives_the_answer() -> None:
    for entries in (RUN, SERVICE | {"availability": 0.999}):
        chosen = ask(entries)
        assert ask(entries, spares=f"{chosen['spares']:.0f}")["answer"] == chosen["answer"]


def test_the_cheapest_number_of_spares_is_that_of_brute_force() -> None:
    for changed in ({}, {"shortage": "elastic"}, {"checkpoint_tier": "local"}):
        answer = ask(RUN, **changed)
        costs = [ask(RUN, **changed, spares=int(answer["spares"]) + more)["useful_hour_cost"] for more in range(-3, 4)]
        assert np.argmin(costs) == 3
        assert costs[3] == pytest.approx(answer["useful_hour_cost"], rel=1e-12)
        assert answer["useful_hour_cost"] == np.nanmin(answer[TABLES][STEPS]["useful_hour_cost"])


def test_more_spares_and_elastic_runs_and_better_machines_help() -> None:
    table = ask(RUN)[TABLES][STEPS]
    assert (np.diff(table["availability"]) >= 0).all()
    few = ask(RUN, spares=40)
    assert few["elastic_share"] > few["wait_share"] == few["effective_share"]
    assert ask(RUN, spares=40, shortage="elastic")["effective_share"] == few["elastic_share"]
    base = ask(RUN, spares=60)
    for changed in ({"accelerator_mtbf": 200000}, {"repair_time": 24}, {"restart_time": 3}):
        assert ask(RUN, spares=60, **changed)["effective_share"] > base["effective_share"], changed


def test_a_cold_spare_costs_its_swap_after_each_lost_machine() -> None:
    warm, cold = ask(RUN, spares=80), ask(RUN, spares=80, spare_kind="cold", swap_time=20)
    lost = (419 - 63) / 419 * 20 * 60
    assert cold["lost_per_interruption"] - warm["lost_per_interruption"] == pytest.approx(lost, rel=2e-3)
    service = ask(SERVICE, spares=3)
    swapped = ask(SERVICE, spares=3, spare_kind="cold", swap_time=60)
    failures = HOUR / service["interruption_interval"]
    assert swapped["availability"] == pytest.approx(service["availability"] * np.exp(-failures), rel=1e-9)


def test_a_run_loses_what_checkpoints_and_restarts_take() -> None:
    """In the limit of machines that never fail only the snapshots remain, further and further apart."""
    sure = dict.fromkeys(("accelerator_mtbf", "node_mtbf", "switch_mtbf", "software_mtbf"), 1e15)
    answer = ask(RUN, **sure)
    assert answer["spares"] == 0 and answer["effective_share"] > 1 - 1e-5


def test_a_rack_fails_as_a_whole_unless_it_has_slack() -> None:
    entries = {"accelerator": "GB200-NVL72", "num_accelerators": 9216, "fleet": "GB200 NVL72", "model": "DeepSeek-V3"}
    whole, slack = ask(entries), ask(entries, unit_slack=8)
    assert whole["unit_size"] == 72 and whole["units"] == 128
    rack, feed = 24 / (8760 + 24), 9 / (50000 + 9)
    assert slack["unit_unavailability"] == pytest.approx(1.0 - (1.0 - rack) * (1.0 - feed), rel=1e-2)
    assert slack["spares"] < whole["spares"]
    assert "A unit stops with the first of its 72 accelerators: state a unit slack" in whole["answer"]
    assert slack["answer"].endswith("A run uses 64 of the 72 accelerators of a unit.")


@pytest.mark.parametrize("slack", [0, 7, 8, 16])
def test_slack_covers_domains_that_are_smaller_than_the_largest_in_a_unit(slack: int) -> None:
    """A rack of 72 with nodes of 8 and switches of 16, against drawn outcomes."""
    fleet = {"accelerator_mtbf": 10000, "node_mtbf": 9000, "switch_mtbf": 38000, "repair_time": 200}
    found = ask(RUN | {"num_accelerators": 7200, "unit_size": 72, "copy_size": 72}, unit_slack=slack, **fleet)
    draws = np.random.default_rng(3)
    down = np.zeros((60000, 72), dtype=bool)
    for size, mtbf in ((1, 10000), (8, 9000), (16, 38000)):
        for first in range(0, 72, size):
            down[:, first : first + size] |= (draws.random(len(down)) < 200 / (200 + mtbf))[:, None]
    assert found["unit_unavailability"] == pytest.approx((down.sum(axis=1) > slack).mean(), rel=0.03, abs=0.001)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"fleet": "Llama 4"}, 'unknown fleet "Llama 4" of the sheet failures; '),
        ({"fleet": "Meta RSC-1", "rack_mtbf": 1000}, "rack size must be given with rack mtbf: the fleet has none"),
        ({"model": ""}, "a training run needs a model or the checkpoint size"),
        ({"num_accelerators": 64}, "copy size is 128, more than num accelerators, 64"),
        ({"unit_size": 20000, "copy_size": ""}, "unit size is 20,000, more than num accelerators, 16,384"),
        ({"unit_slack": 8}, "unit slack is 8: a unit has 8 accelerators, of which one must work at least"),
        ({"availability": 1000}, "availability must be at most 0.999999, got 1000"),
        ({"availability": 99.99}, r"at most 0.999999 \(write 0.9999 for 99.99 %\), got 99.99"),
    ],
)
def test_bad_entries_are_named(entries: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        ask(RUN, **entries)


def test_an_answer_says_which_accelerators_count_and_what_a_year_takes() -> None:
    """A service of 50 accelerators in copies of 8 takes 7 copies; without spares it loses what one copy is down."""
    odd, even = ask(SERVICE, num_accelerators=50), ask(SERVICE, num_accelerators=56)
    more = " 50 accelerators are no whole number of copies of 8: the answer is of 56."
    assert odd["answer"] == even["answer"] + more
    assert f"{even['interruptions']:,.1f} failures of copies a year; the spares cost $" in even["answer"]
    assert even["answer"].endswith(" a year.")
    none = even[TABLES][STEPS]["effective_share"][0]
    assert 1.0 - even["unit_unavailability"] == pytest.approx(none, abs=1e-4)
    assert "replicas of 128: the last is smaller" in ask(RUN, num_accelerators=16400)["answer"]


def test_what_no_number_of_spares_gives_is_no_answer() -> None:
    assert ask(RUN, spares=0)["answer"].startswith("No answer: with 0 spares a run on 2,048 units")
    answer = ask(SERVICE, num_accelerators=800, spare_kind="cold")
    assert answer["answer"].startswith("No answer: no number of spares") and "99.9" in answer["reason"]


def test_every_row_has_a_source_and_every_fleet_each_domain_once() -> None:
    with ROWS.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert all(row["source"] and row["year"] for row in rows)
    assert len({(row["fleet"], row["domain"]) for row in rows}) == len(rows)


def test_no_spares_are_tried_where_most_units_are_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerators that fail each 64 h took 103 s, 2,048 spares and a warning of an overflow."""
    terms = []
    shares = Work.shares
    monkeypatch.setattr(Work, "shares", lambda work, spares, most: terms.append(most) or shares(work, spares, most))
    with np.errstate(all="raise", under="ignore", divide="ignore"):
        answer = ask(RUN, accelerator_mtbf=64)
    assert answer["reason"].endswith("that waits for repairs hardly ever trains; it needs shortage elastic")
    assert len(terms) == 1 and terms[0] < 100
    elastic = ask(RUN, accelerator_mtbf=64, shortage="elastic")["reason"]
    assert elastic.endswith(
        "that goes on with fewer copies hardly ever trains; it needs shorter repairs or rarer failures"
    )
