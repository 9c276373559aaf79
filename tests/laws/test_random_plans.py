"""The plans that the laws are held on: reproducible, legal, and of every kind that there is."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from laws.random_plans import MODES, is_legal, kind_of, legal_plans
from laws.samples import NUMBER, plans_of, results_of

from xlperf.catalog.schema import table_schema

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("mode", MODES)
def test_plans_are_legal_and_mostly_fit(mode: str) -> None:
    plans, results = plans_of(mode), results_of(mode)
    assert is_legal(plans, results).all()
    assert 0.2 < np.mean(results["fits"] == 1.0) < 1.0, "those that fit, and some that do not"
    assert len(set(plans["model"])) > NUMBER // 3
    assert len(set(plans["accelerator"])) > NUMBER // 4


def test_the_same_seed_draws_the_same_plans() -> None:
    one, other = (legal_plans("static", 10, seed) for seed in (1, 2))
    assert one["model"].tolist() == legal_plans("static", 10, 1)["model"].tolist() != other["model"].tolist()


@pytest.mark.parametrize("kind", ["training", "inference"])
def test_every_option_is_drawn(kind: str) -> None:
    """Each word of each choice, both flags and more than one number of each column, all modes together.

    Modes of a load are drawn as those of a number in flight are: few of them show what is theirs alone.
    """
    seen: dict[str, Counter[object]] = {}
    numbers = {"training": 200, "static": 120, "continuous": 120, "disaggregated": 120}
    for mode in MODES:
        if kind_of(mode) == kind:
            plans = legal_plans(mode, numbers.get(mode, 60))
            for name, values in plans.columns.items():
                seen.setdefault(name, Counter()).update(value for value in values.tolist() if value == value)
    for column in table_schema(kind).columns:
        result = seen[column.name]
        if column.kind == "choice":
            assert set(column.choices) <= set(result), f"{column.name}: draw it in random_plans.py"
        elif column.kind == "flag":
            assert len(result) == 2, f"{column.name}: draw it in random_plans.py"
        else:
            assert len(result) > 1, f"{column.name}: draw it in random_plans.py"
