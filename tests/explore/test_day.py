"""A day of a service: a flat one is Serve, starts and training are optimal, and hours and energy add up."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest
from scipy.optimize import linprog

from xlperf.base.errors import InputError
from xlperf.base.units import HOUR
from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.schema import first_words, shown_columns
from xlperf.explore.day import HOURS, best_units, copies_by_hour, day_answer
from xlperf.explore.forms import form_of
from xlperf.explore.objectives import TABLES, Answer
from xlperf.explore.serve import serve_answer

SMALL = {"model": "Meta-Llama-3.1-8B", "accelerator": "H100-SXM-80GB", "request_rate": "80", "hour_price": "2"}


@cache
def answer(**words: str) -> Answer:
    return day_answer(form_of("day", SMALL | words), load_catalog())


def test_a_flat_day_is_serve() -> None:
    flat = answer(load_by_hour=" ".join(["1"] * 24))
    asked = {"users": "", "ttft_target": "", "software": ""}
    words = {name: word for name, word in first_words("serve").items() if name in ("model", "accelerator")} | asked
    words |= {"prompt_length": "2000", "output_length": "500", "speed_per_user": "20"} | SMALL
    served = serve_answer(form_of("serve", words), load_catalog())
    assert flat["accelerators"] == flat["least_accelerators"] == served["accelerators"]
    assert flat["day_cost"] == pytest.approx(served["monthly_cost"] / 730.0 * 24.0, rel=1e-9)
    assert flat["starts"] == flat["starting_hours"] == flat["saved_share"] == 0.0
    assert flat["cost_per_million_output_tokens"] == pytest.approx(
        served["fleet_cost_per_million_output_tokens"], rel=1e-9
    )


def test_models_share_machines_by_the_hour() -> None:
    """Hours of a fleet are the sums of those of its models; days that differ need fewer machines together."""
    alone, other = answer(request_rate="400"), answer(model="Qwen3-8B", request_rate="300")
    same, later = (answer(request_rate="400", other_models=f"Qwen3-8B 300{shift}") for shift in ("", " +12 h"))
    tables = [result[TABLES][HOURS] for result in (alone, other, same, later)]
    serving = [table.number("serving") for table in tables]
    assert (serving[2] == serving[0] + serving[1]).all()
    assert (serving[3] == serving[0] + np.roll(serving[1], 12)).all()
    assert same["accelerators"] == serving[2].max() <= same["separate_accelerators"]
    assert later["accelerators"] < later["separate_accelerators"] == same["separate_accelerators"]
    assert same["separate_accelerators"] == alone["accelerators"] + other["accelerators"]
    for result, name in product((same, later), ("serving_hours", "starts")):
        assert result[name] == pytest.approx(alone[name] + other[name])
    for table, result in zip(tables, (alone, other, same, later), strict=True):
        parts = sum(table.number(name) for name in ("serving", "starting", "training", "idle"))
        assert parts == pytest.approx(result["accelerators"])
    assert "and 1 other model (" in later["answer"]


@pytest.mark.parametrize("start", ["0", "20", "90"])
def test_a_model_starts_on_machines_that_another_has_left(start: str) -> None:
    """Two models, of which one rises in the hour in which the other falls: a start takes a machine of nobody."""
    halves = " ".join(["1"] * 12 + ["8"] * 12)
    words = {"request_rate": "400", "load_by_hour": halves, "start_time": start}
    alone, both = answer(**words), answer(**words, other_models="Meta-Llama-3.1-8B 400 +12 h")
    parts = alone[TABLES][HOURS].number("serving"), np.roll(alone[TABLES][HOURS].number("serving"), 12)
    handed = [sum(max(part[hour - 1], part[hour]) for part in parts) for hour in range(24)]
    assert alone["accelerators"] == max(parts[0])
    assert both["accelerators"] == (max(sum(parts)) if start == "0" else max(handed))
    assert both["starting_hours"] == pytest.approx(2.0 * alone["starting_hours"])


@pytest.mark.parametrize("start", [0.2, 1.5, 3.0, 7.5])
def test_copies_cost_least(start: float) -> None:
    """24 hours and up to 8 copies, against a linear programme whose matrix is that of a network."""
    draws = np.random.default_rng(5)
    for _ in range(20):
        needed = draws.integers(0, 9, 24).astype(float)
        running = copies_by_hour(needed, start)
        assert (running >= needed).all()
        cost = running.sum() + start * np.maximum(running - np.roll(running, 1), 0.0).sum()
        hours = np.eye(24)
        rise = np.hstack([hours - np.roll(hours, -1, axis=1), -hours])
        least = linprog(
            np.concatenate([np.ones(24), np.full(24, start)]), A_ub=rise, b_ub=np.zeros(24),
            bounds=[(need, None) for need in needed] + [(0.0, None)] * 24,
        )  # fmt: skip
        assert cost == pytest.approx(least.fun, abs=1e-6)


def test_training_makes_most_tokens() -> None:
    """Hours that repeat in blocks of eight, against every choice of units in each block and a few inside."""
    draws = np.random.default_rng(3)
    rates = np.array([0.0, 1.0, 1.9, 2.5])
    for _ in range(10):
        room = np.repeat(draws.integers(0, 4, 4), 6).astype(float)
        restart = float(draws.choice([0.0, 600.0, 3000.0]))
        units, tokens = best_units(room, rates, restart)
        assert (units <= room).all()
        assert tokens == pytest.approx(_tokens(units, rates, restart))
        blocks = product(*(range(int(most) + 1) for most in room[::6]))
        assert tokens >= max(_tokens(np.repeat(np.array(some, float), 6), rates, restart) for some in blocks) - 1e-6
        for hour in range(24):
            for other in range(int(room[hour]) + 1):
                changed = units.copy()
                changed[hour] = other
                assert tokens >= _tokens(changed, rates, restart) - 1e-6


def _tokens(units: np.ndarray, rates: np.ndarray, restart: float) -> float:
    changed = (units != np.roll(units, 1)) & (units > 0.0)
    return float((rates[units.astype(int)] * (HOUR - restart * changed)).sum())


def test_hours_and_energy_add_up() -> None:
    known = answer(training_model="Meta-Llama-3.1-8B", request_rate="400", payment="fleet")
    table = known[TABLES][HOURS]
    parts = [table.number(name) for name in ("serving", "starting", "training", "idle")]
    assert np.allclose(np.sum(parts, axis=0), known["accelerators"])
    hours = [known[f"{name}_hours"] / HOUR for name in ("serving", "starting", "training", "idle")]
    assert sum(hours) == pytest.approx(24.0 * known["accelerators"])
    assert known["day_energy"] == pytest.approx(table.number("power").sum() * HOUR, rel=1e-12)
    assert known["training_tokens"] > 0.0
    assert known["day_cost"] + known["training_value"] == pytest.approx(known["fixed_cost"], rel=1e-12)
    alone = answer(request_rate="400", payment="fleet")
    assert alone["day_energy"] < known["day_energy"]
    assert alone["day_cost"] == pytest.approx(alone["fixed_cost"])


@pytest.mark.parametrize(
    "words",
    [
        {"request_rate": "400"},
        {"request_rate": "400", "payment": "fleet"},
        {"request_rate": "300", "training_model": "Meta-Llama-3.1-8B"},
        {"request_rate": "300", "training_model": "Meta-Llama-3.1-8B", "payment": "fleet"},
        {"model": "Meta-Llama-3.1-70B", "request_rate": "20"},
    ],
)
def test_stating_the_answer_gives_the_answer(words: dict[str, str]) -> None:
    first = answer(**words)
    second = answer(**words, accelerators=f"{first['accelerators']:.0f}")
    for name in ("answer", "software", "copy_size", "day_cost", "training_tokens"):
        assert second[name] == first[name], name


def test_serve_takes_the_copy_that_it_chose() -> None:
    """The same number, pools and cost where the size of a copy is stated as it was chosen; engines may tie."""
    asked = {"prompt_length": "2000", "output_length": "500", "model": "Meta-Llama-3.1-70B", "request_rate": "20"}
    first = serve_answer(form_of("serve", SMALL | asked), load_catalog())
    stated = {"num_accelerators": f"{first['copy_size']:.0f}"}
    again = serve_answer(form_of("serve", SMALL | asked | stated), load_catalog())
    assert [again[name] for name in ("accelerators", "copy_size", "mode", "monthly_cost")] == [
        first[name] for name in ("accelerators", "copy_size", "mode", "monthly_cost")
    ]


def test_words() -> None:
    assert "accelerator-hours" in answer()["answer"]
    slow, fast = answer(start_time="600"), answer()
    assert slow["starts"] <= fast["starts"] and slow["serving_hours"] >= fast["serving_hours"]
    assert answer(speed_per_user="100000")["answer"].startswith("No answer")
    for wrong, words in (
        ({"load_by_hour": "1 2 3"}, "24 numbers"),
        ({"other_models": "Qwen3-8B"}, "got 'Qwen3-8B'"),
        *(
            ({"other_models": f"Qwen3-8B {words}"}, "got 'Qwen3-8B ")
            for words in ("1.2.3", "9" * 400, "5 +" + "9" * 30)
        ),
        ({"other_models": "Qwen3-8Z 20"}, "unknown model"),
        ({"load_by_hour": " ".join(["-1"] * 24)}, "24 numbers"),
        ({"accelerators": "1", "request_rate": "400"}, "fewer than the"),
    ):
        with pytest.raises(InputError, match=words):
            answer(**wrong)


def test_what_the_sheet_shows_of_an_hour_adds_up_to_the_fleet() -> None:
    shown, busy = shown_columns("day_hours", "front"), answer(training_model="Meta-Llama-3.1-8B")
    uses = [name for name in ("serving", "starting", "training", "idle") if name in shown]
    np.testing.assert_allclose(sum(busy[TABLES][HOURS][name] for name in uses), busy["accelerators"])
