"""Hit rates of sessions: laws of the closed forms, and a simulated LRU cache as their judge."""

from __future__ import annotations

import math

import numpy as np
import pytest
from session_judge import Case, simulated_hit_rate

from xlperf.equations.serving import sessions as equations
from xlperf.explore.session_states import Sessions


def sessions_of(case: Case) -> Sessions:
    """The sessions of a case."""
    tokens = case.first, case.added, case.generated, case.common
    return Sessions(case.turns, *tokens, case.think, case.variation)


def prompt(case: Case) -> tuple[float, float, float]:
    """Common, own and new tokens of the mean prompt."""
    return sessions_of(case).prompt


def hit_rate(case: Case) -> float:
    """Share of the prompt tokens in the cache, by the closed forms."""
    sessions = sessions_of(case)
    common, own, new = sessions.prompt
    rate = np.asarray(case.sessions / (case.turn + sessions.thinking))
    age = sessions.age(np.asarray([case.capacity]), rate, np.asarray(case.turn), np.ones(1))[0]
    kept = float(equations.within_time(age, case.think, case.variation))
    return float((common + own * kept) / (common + own + new))


def random_case(seed: int) -> Case:
    """Sessions of an agent or a chat, and a tier that holds from few to all of them."""
    random = np.random.default_rng(seed)
    turns = int(random.integers(2, 40))
    first, added, generated, common = (float(random.uniform(*ends)) for ends in (
        (200, 8000), (50, 3000), (20, 1000), (0, 8000)
    ))  # fmt: skip
    sessions = int(random.integers(40, 300))
    think, turn = float(random.uniform(2, 120)), float(random.uniform(1, 20))
    kind = Sessions(turns, first, added, generated, common, think, 1.0)
    running, waiting = kind.prompt[1] + added + 0.5 * generated, kind.waiting
    at_once = sessions * turn / (turn + think * (turns - 1) / turns)
    capacity = common + at_once * running * 1.3 + float(random.uniform(0.1, 1.2)) * (sessions - at_once) * waiting
    return Case(sessions, turns, first, added, generated, common, think, float(random.uniform(0.5, 2.5)), turn,
                capacity)  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_closed_forms_are_within_three_points_of_a_simulated_lru_cache(seed: int) -> None:
    case = random_case(seed)
    assert hit_rate(case) == pytest.approx(simulated_hit_rate(case, seed), abs=0.03), case


def test_an_endless_cache_gives_the_reused_share_and_none_gives_nothing_of_a_session() -> None:
    for seed in range(20):
        case = random_case(seed)
        common, own, new = prompt(case)
        endless = Case(**{**vars(case), "capacity": np.inf})
        assert hit_rate(endless) == (common + own) / (common + own + new)
        nothing = Case(**{**vars(case), "capacity": 0.0, "common": 0.0})
        assert hit_rate(nothing) == 0.0
        sizes = [
            hit_rate(Case(**{**vars(case), "capacity": case.capacity * size})) for size in np.geomspace(0.3, 30, 10)
        ]
        assert sizes == sorted(sizes)


def test_the_reused_share_is_that_of_the_turns_one_by_one() -> None:
    of_turns = [Sessions(turns, 1000.0, 200.0, 100.0, 0.0, 60.0, 1.0) for turns in range(1, 8)]
    parts = [(0.0, 1000.0)] + [(one.last, 200.0) for one in of_turns[:-1]]
    assert of_turns[-1].prompt[1:] == pytest.approx(np.mean(parts, axis=0))
    assert of_turns[-1].waiting == pytest.approx(np.mean([part[0] for part in parts[1:]]))
    assert [one.last for one in of_turns[:3]] == [1100.0, 1400.0, 1700.0]


def test_a_tier_holds_its_sessions_and_the_common_prefix_once() -> None:
    given = 3.0, 5.0, 10.0, 60.0, 1.0, 4000.0, 4500.0, 8000.0
    alone, shared = (float(equations.cached_tokens(90.0, *given, common)) for common in (0.0, 6000.0))
    assert shared == alone + 6000.0
    twice = float(equations.cached_tokens(90.0, 6.0, *given[1:], 6000.0))
    assert twice == pytest.approx(2.0 * alone + 6000.0)


def test_the_normal_and_log_normal_formulas_are_those_of_the_error_function() -> None:
    scores = np.linspace(-6.5, 6.5, 400)
    exact = [0.5 * math.erfc(-score / math.sqrt(2.0)) for score in scores]
    assert equations.normal_probability(scores) == pytest.approx(exact, rel=1e-8, abs=1e-14)
    random = np.random.default_rng(7)
    drawn = 30.0 * np.exp(0.8 * random.standard_normal(400_000) - 0.32)
    variation = math.sqrt(math.expm1(0.64))
    for time in (5.0, 30.0, 200.0):
        assert float(equations.within_time(time, 30.0, variation)) == pytest.approx((drawn <= time).mean(), abs=0.003)
        mean = float(equations.mean_within_time(time, 30.0, variation))
        assert mean == pytest.approx(np.minimum(drawn, time).mean(), rel=0.01)
    assert equations.within_time([9.9, 10.1], 10.0, 0.0).tolist() == [0.0, 1.0]
