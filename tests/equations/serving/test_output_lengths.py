"""Outputs of different lengths: one distribution for the end of a run, its last requests and its short answers."""

from __future__ import annotations

import numpy as np
import pytest
from serving_simulator import drawn_lengths

from xlperf.equations.serving.queueing import longest_output, output_length, uneven_time

SHARES = (np.arange(200_000) + 0.5) / 200_000


@pytest.mark.parametrize("variation", [0.0, 0.064, 0.3, 3.0**-0.5, 0.6, 0.98, 1.0, 1.02, 1.37])
def test_lengths_have_the_mean_and_the_variation_that_are_asked_for(variation: float) -> None:
    lengths = output_length(SHARES, variation)
    assert (lengths >= 0.0).all() and (np.diff(lengths) >= 0.0).all()
    assert lengths.mean() == pytest.approx(1.0, rel=2e-3)
    assert lengths.std() == pytest.approx(variation, abs=0.03 * variation)


@pytest.mark.parametrize("variation", [0.064, 3.0**-0.5, 0.98, 1.0, 1.37])
def test_quantiles_are_those_of_drawn_lengths(variation: float) -> None:
    drawn = drawn_lengths(variation, 400_000, np.random.default_rng(2))
    for share in (0.01, 0.1, 0.5, 0.9, 0.99):
        assert output_length(share, variation) == pytest.approx(np.quantile(drawn, share), rel=0.03, abs=2e-3)


@pytest.mark.parametrize("at", [3.0**-0.5, 1.0])
def test_lengths_do_not_jump_where_the_form_changes(at: float) -> None:
    below, above = (output_length([0.001, 0.1, 0.5, 0.9, 0.999], at * (1.0 + side * 1e-9)) for side in (-1.0, 1.0))
    assert below == pytest.approx(above, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("variation", [0.064, 3.0**-0.5, 1.0])
@pytest.mark.parametrize("number", [16, 64, 512])
def test_the_longest_of_a_run(variation: float, number: int) -> None:
    random = np.random.default_rng(3)
    seen = np.mean([drawn_lengths(variation, number, random).max() for _ in range(2_000)]) - 1.0
    assert longest_output(float(number), variation) == pytest.approx(seen, rel=0.25)


def test_short_answers_make_the_mean_per_token_longer_and_equal_ones_do_not() -> None:
    """The mean of stall / tokens of answers between 1 and N is about ln N times that of answers of N / 2."""
    ones = np.ones(4)
    result, *_ = uneven_time(10.0 * ones, 500.0 * ones, np.inf * ones, np.array([0.0, 0.3, 3.0**-0.5, 1.0]))
    assert result[0] == 0.0 and (np.diff(result) > 0.0).all()
    assert result[2] == pytest.approx(0.01 * ((1.0 + np.log(1000.0)) / 2.0 - 1.0), rel=0.05)
