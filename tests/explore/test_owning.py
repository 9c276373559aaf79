"""The worth of a measured run: against draws of what it may find and of the needs that are left after it."""

from __future__ import annotations

import numpy as np
import pytest

from xlperf.base.arrays import log
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.learning import ends_after_a_run
from xlperf.explore.money import Hours
from xlperf.explore.objectives import band_factor
from xlperf.explore.uncertainty import UNREAD, owned_run

PLAN = {"model": "Meta-Llama-3.1-8B", "accelerator": "H100-SXM-80GB", "num accelerators": 16, "sequence length": 8192,
        "global batch size": 64}  # fmt: skip


@pytest.mark.parametrize(("count", "unit"), [(7.0, 8.0), (14.0, 8.0), (40.0, 8.0), (3000.0, 8.0), (60.0, 72.0)])
def test_a_run_is_worth_the_mean_of_what_it_may_find(catalog: Catalog, count: float, unit: float) -> None:
    """In whole servers the middle of the band alone may need no other number with and without a run."""
    plan = table_from_rows("training", list(PLAN), [list(PLAN.values())])
    results, own, rent = evaluate(plan, catalog), 1.2, 1.7
    hours = Hours(rent, rent, own, "", "", Table("ownership_results", {}))
    answer = owned_run(count, unit, 1.0, 1.0, hours, plan, results)

    def least(needs: np.ndarray) -> float:
        numbers, missing = np.unique(np.append(needs, 0.0))[:, None], np.minimum(own, rent) * needs.mean()
        return float((own * numbers[:, 0] + rent * np.maximum(needs - numbers, 0.0).mean(axis=1)).min() - missing)

    def needs(scores: np.ndarray) -> np.ndarray:
        return np.asarray(unit * np.ceil(count * band_factor(results, "step_time", scores) / unit))

    middle, spread = UNREAD["step_time"]
    logs = np.array([log(results.number(f"step_time_{end}") / results.number("step_time")) for end in ("low", "high")])
    left = (ends_after_a_run(plan, results.columns, "step_time", logs) / logs).mean()
    draws = np.random.default_rng(2)
    means = middle + np.sqrt(spread**2 - left**2) * draws.standard_normal(300)
    before = least(needs(middle + spread * draws.standard_normal(4000)))
    after = np.mean([least(needs(one + left * draws.standard_normal(300))) for one in means])
    assert answer["run_regret"] == pytest.approx(before, rel=0.06)
    assert answer["run_worth"] == pytest.approx(before - after, rel=0.15, abs=0.02 * before)
    assert 0.0 < answer["run_worth"] < answer["run_regret"]
