"""Money over years: book values and annuities are two views of the same purchase, and depreciation adds up."""

from __future__ import annotations

import numpy as np
import pytest

from xlperf.equations.cost.tco import (
    annuity_book_value,
    capital_recovery_rate,
    compounded_price,
    present_value,
    straight_line_depreciation,
)

LIFE, PRICE = 5.0, 40_000.0


@pytest.mark.parametrize("rate", [0.0, 0.08, 0.154])
@pytest.mark.parametrize("residual", [0.0, 0.2])
def test_selling_at_the_book_value_leaves_the_annuity(rate: float, residual: float) -> None:
    """Whenever the owner sells, what he paid at the end of each year until then is the annuity."""
    annuity = PRICE * float(capital_recovery_rate(rate, LIFE, residual, 1.0))
    ages = np.arange(6.0)
    values = annuity_book_value(PRICE, rate, LIFE, ages, residual, 1.0)
    assert values[0] == pytest.approx(PRICE, rel=1e-12) and values[-1] == pytest.approx(residual * PRICE, abs=1e-6)
    np.testing.assert_allclose(values[:-1] * (1.0 + rate) - values[1:], annuity, rtol=1e-9)
    paid = present_value(annuity, rate, ages[1:], 1.0).cumsum() + present_value(values[1:], rate, ages[1:], 1.0)
    np.testing.assert_allclose(paid, PRICE, rtol=1e-9)


def test_beyond_its_life_a_machine_keeps_the_residual_value() -> None:
    assert float(annuity_book_value(PRICE, 0.1, LIFE, 9.0, 0.2, 1.0)) == pytest.approx(0.2 * PRICE)
    assert float(straight_line_depreciation(PRICE, LIFE, 7.0, 1.0)) == 0.0


def test_depreciation_of_all_years_is_the_loss_of_value() -> None:
    parts = straight_line_depreciation(PRICE, 4.5, np.arange(8.0), 1.0, 0.1)
    assert parts.sum() == pytest.approx(0.9 * PRICE, rel=1e-12)
    assert parts[0] == pytest.approx(0.9 * PRICE / 4.5) and parts[4] == pytest.approx(0.9 * PRICE / 9.0)


def test_compound_changes_and_discounts_are_inverse() -> None:
    grown = compounded_price(PRICE, 0.08, 3.0, 1.0)
    assert float(present_value(grown, 0.08, 3.0, 1.0)) == pytest.approx(PRICE, rel=1e-12)
    assert compounded_price(PRICE, 0.0, np.arange(3.0), 1.0).tolist() == [PRICE] * 3
    assert compounded_price(PRICE, -1.0, np.array([0.0, 1.0, 2.0]), 1.0).tolist() == [PRICE, 0.0, 0.0]
