"""Spares and failure domains: the binomial against scipy and exact fractions, wide domains against every outcome."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from xlperf.base.units import DAY, HOUR
from xlperf.equations.hardware.failures import WideDomain, domain_failure_rate, down_shares

sizes = st.integers(1, 200_000)
shares = st.floats(1e-9, 1.0 - 1e-9)


@given(sizes, shares, st.integers(0, 300))
def test_enough_units_equals_scipy(units: int, share: float, spares: int) -> None:
    found = float(down_shares(units, share, [], spares).sum())
    assert found == pytest.approx(stats.binom.cdf(spares, units, share), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("units", "spares", "share"), [(10, 2, (1, 7)), (72, 8, (1, 50)), (300, 30, (3, 40))])
def test_enough_units_equals_exact_fractions(units: int, spares: int, share: tuple[int, int]) -> None:
    down = Fraction(*share)
    exact = sum(comb(units, j) * down**j * (1 - down) ** (units - j) for j in range(spares + 1))
    found = float(down_shares(units, share[0] / share[1], [], spares).sum())
    assert found == pytest.approx(float(exact), rel=1e-12)


def test_limits_of_enough_units() -> None:
    assert [down_shares(9.0, 0.0, [], spares).sum() for spares in (0, 3)] == [1.0, 1.0]
    assert [down_shares(9.0, 1.0, [], spares).sum() for spares in (8, 9)] == [0.0, 1.0]
    assert np.isnan(down_shares([np.nan, 9.0], [0.1, np.nan], [], 1)).all()


def every_outcome(units: int, share: float, domains: list[WideDomain]) -> np.ndarray:
    """Shares of the units down by brute force: every domain and unit up or down."""
    groups = [(tuple(range(unit, unit + 1)), share) for unit in range(units)]
    for domain in domains:
        size = int(domain.units)
        groups += [(tuple(range(s, min(s + size, units))), domain.unavailability) for s in range(0, units, size)]
    result = np.zeros(units + 1)
    for outcome in product((False, True), repeat=len(groups)):
        chance, down = 1.0, set()
        for fails, (members, each) in zip(outcome, groups, strict=True):
            chance *= each if fails else 1.0 - each
            down |= set(members) if fails else set()
        result[len(down)] += chance
    return result


@pytest.mark.parametrize(
    ("units", "domains"),
    [(6, [WideDomain(3, 0.05)]), (7, [WideDomain(3, 0.05)]), (7, [WideDomain(2, 0.1), WideDomain(4, 0.02)]),
     (5, [WideDomain(8, 0.3)]), (6, [])],
)  # fmt: skip
def test_wide_domains_equal_every_outcome(units: int, domains: list[WideDomain]) -> None:
    expected = every_outcome(units, 0.1, domains)
    np.testing.assert_allclose(down_shares(float(units), 0.1, domains, units), expected, rtol=1e-12, atol=1e-15)
    cut = down_shares(float(units), 0.1, domains, 2)
    np.testing.assert_allclose(cut, expected[:3], rtol=1e-12)


@pytest.mark.parametrize(("units", "most"), [(90, 90), (2048, 300), (16384, 900)])
def test_domains_that_never_fail_leave_the_binomial(units: int, most: int) -> None:
    found = down_shares(float(units), 0.02, [WideDomain(2, 0.0), WideDomain(9 * 2, 0.0)], most)
    np.testing.assert_allclose(np.cumsum(found), stats.binom.cdf(np.arange(most + 1), units, 0.02), atol=1e-11)


def test_a_wide_domain_needs_more_spares_than_as_many_single_failures() -> None:
    together = down_shares(90.0, 0.001, [WideDomain(9, 0.01)], 3).sum()
    alone = down_shares(90.0, 1.0 - 0.999 * 0.99, [], 3).sum()
    assert together < alone


def test_rows_are_the_same_alone_and_together() -> None:
    units = np.array([20.0, 33.0, 64.0])
    domains = [WideDomain(9, 0.01)]
    together = down_shares(units, 0.02, domains, 12)
    for row, number in enumerate(units):
        assert down_shares(number, 0.02, domains, 12).tobytes() == together[row].tobytes()


def test_llama_3_table_5_counts_419_interruptions() -> None:
    """arXiv:2407.21783: 268 of accelerators, 53 of nodes, 35 of switches and cables, 63 of software in 54 days."""
    window = 54 * DAY
    counts = {1: 268 + 63, 8: 53, 16: 35}
    mtbf = {size: window * 16384 / size / count for size, count in counts.items()}
    rate = sum(float(domain_failure_rate(16384, size, mtbf[size])) for size in counts)
    assert rate * window == pytest.approx(419)


@pytest.mark.parametrize(("accelerators", "hours"), [(16384, 1.8), (131072, 0.23)])
def test_meta_research_cluster_projects_these_intervals(accelerators: int, hours: float) -> None:
    """arXiv:2410.21680: 6.50 failures per thousand node-days of RSC-1, and the intervals that it projects."""
    rate = float(domain_failure_rate(accelerators, 8, 1000 * DAY / 6.5))
    assert 1.0 / rate / HOUR == pytest.approx(hours, rel=0.03)
