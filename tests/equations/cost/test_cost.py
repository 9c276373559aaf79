"""Cost of ownership: worked examples, limits, units."""

from __future__ import annotations

import math

import numpy as np
import pytest

from xlperf.base.units import YEAR, factor
from xlperf.equations.cost.tco import accelerator_cost_rate, cost_per_token, energy_per_token

HOURLY = factor("USD/h")
OWNED = {
    "capex": 31_119.5 / (1.0 - 0.19),
    "life": 4.0 * YEAR,
    "utilization": 0.8,
    "server_power": 1275.0,
    "power_usage_effectiveness": 1.25,
    "energy_price": 0.08 * factor("USD/kWh"),
    "opex_share": 0.0,
}


def test_owned_h100_costs_a_dollar_and_a_half_per_hour() -> None:
    """HGX price with 19 % for the network, four years in a straight line, 80 % used, 8 cents: 1.50 USD per hour."""
    assert accelerator_cost_rate(math.nan, **OWNED) / HOURLY == pytest.approx(1.50, abs=0.01)


def test_published_price_of_a_million_tokens() -> None:
    """2.00 USD per hour at 85 tokens per second are 6.54 USD per million tokens."""
    assert cost_per_token(2.0 * HOURLY, 1.0, 85.0) / factor("USD/Mtoken") == pytest.approx(6.54, abs=0.005)


def test_rent_is_all_in() -> None:
    rented = accelerator_cost_rate(2.0 * HOURLY, **OWNED)
    assert rented == 2.0 * HOURLY
    nothing_else = dict.fromkeys(OWNED, math.nan)
    assert accelerator_cost_rate(2.0 * HOURLY, **nothing_else) == 2.0 * HOURLY


def test_rented_and_owned_rows_side_by_side() -> None:
    rates = accelerator_cost_rate([math.nan, 2.0 * HOURLY], **OWNED)
    assert rates[0] == accelerator_cost_rate(math.nan, **OWNED)
    assert rates[1] == 2.0 * HOURLY


@pytest.mark.parametrize("missing", sorted(OWNED))
def test_an_owner_who_does_not_say_all_has_no_cost(missing: str) -> None:
    assert np.isnan(accelerator_cost_rate(math.nan, **{**OWNED, missing: math.nan}))


def test_parts_of_an_owned_accelerator() -> None:
    """Hardware falls with life and use, opex follows the price, energy depends on neither."""
    energy = OWNED["server_power"] * OWNED["power_usage_effectiveness"] * OWNED["energy_price"]
    assert energy == pytest.approx(1.275 * 1.25 * 0.08 / 3600.0)
    rate = accelerator_cost_rate(math.nan, **OWNED)
    longer = accelerator_cost_rate(math.nan, **{**OWNED, "life": 2.0 * OWNED["life"]})
    assert longer - energy == pytest.approx(0.5 * (rate - energy))
    idle = accelerator_cost_rate(math.nan, **{**OWNED, "utilization": 0.4})
    assert idle - energy == pytest.approx(2.0 * (rate - energy))
    with_opex = accelerator_cost_rate(math.nan, **{**OWNED, "opex_share": 0.25})
    assert with_opex - energy == pytest.approx(2.0 * (rate - energy)), "a quarter a year over four years is the price"


def test_energy_and_cost_follow_accelerators_over_rate() -> None:
    assert energy_per_token(1200.0, 8.0, 96.0) == 100.0
    np.testing.assert_allclose(cost_per_token(3.0, [1.0, 2.0], [6.0, 6.0]), [0.5, 1.0])


def test_no_tokens_of_a_kind_cost_nothing() -> None:
    assert cost_per_token(2.0, 8.0, math.inf) == 0.0
