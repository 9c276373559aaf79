"""Prefills and steps of several batches: as one by one, each distinct one computed once; sums in any layout."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.plans import plans_of

from xlperf.base.arrays import total
from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.table import Table
from xlperf.engine.join import architecture_codes, named_rows, plan_columns
from xlperf.engine.models import architecture_of
from xlperf.engine.served import serving_setting
from xlperf.equations.plan.serving_plan import InferencePlan
from xlperf.equations.serving.deployment import Deployment
from xlperf.equations.serving.load import BatchTimes
from xlperf.equations.serving.phases import FIXED, MATRIX, phase_times, serving_work


def serving_of(plans: Table) -> Deployment:
    catalog = load_catalog()
    named = named_rows(plans, catalog)
    architecture = architecture_of(int(architecture_codes(named, catalog)[0]))
    return serving_setting(plans, plan_columns(plans, InferencePlan), catalog, named, architecture).deployment


def alike(number: int) -> Table:
    """Plans of dense models, which go through the equations together."""
    catalog = load_catalog()
    plans = plans_of(catalog, 8 * number, "continuous", seed=3)
    codes = architecture_codes(named_rows(plans, catalog), catalog)
    return plans.take(np.flatnonzero(codes == 0)[:number])


@pytest.mark.parametrize("number", [2, 400])
def test_times_are_those_of_each_batch_alone(number: int) -> None:
    serving = serving_of(alike(number))
    batches = np.stack([np.full(number, 5.0), np.arange(number) + 1.0, np.full(number, 5.0)])
    prompts = np.stack([np.ones(number), np.full(number, 2.0)])
    with np.errstate(all="ignore"):
        times = BatchTimes.of(serving)
        steps, prefills, step_parts, _ = times.at(batches, prompts, detailed=True)
        for result, batch in zip(steps, batches, strict=True):
            work = serving_work(serving.with_batch(batch, np.ones(number)), (1,))
            assert result.tobytes() == total(phase_times(work)[:, 0]).tobytes()
        alone = phase_times(serving_work(serving.with_batch(batches[1], np.ones(number)), (1,)))[:, 0]
        assert step_parts[1].tobytes() == alone[:, [MATRIX, FIXED]].tobytes()
        for result, together in zip(prefills, prompts, strict=True):
            work = serving_work(serving.with_batch(np.ones(number), together), (0,))
            assert result.tobytes() == total(phase_times(work)[:, 0]).tobytes()
        step = times.step(batches[0])
    assert total(step.parts).tobytes() == steps[0].tobytes()
    assert not np.isnan(step.bound[~np.isnan(steps[0])]).any()


def test_what_is_known_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    serving, rows = serving_of(alike(100)), []
    whole = Deployment.with_batch
    monkeypatch.setattr(
        Deployment, "with_batch", lambda self, batch, prompts: rows.append(len(batch)) or whole(self, batch, prompts)
    )
    two, three, one = (np.full(100, value) for value in (2.0, 3.0, 1.0))
    times = BatchTimes.of(serving)
    with np.errstate(all="ignore"):
        times.at(np.stack([two, three, two]), one[None])
        assert sorted(rows) == [100, 200]
        times.at(np.stack([three, two]), one[None])
        assert sum(rows) == 300
        some = times.take(np.array([1, 4]))
        some.at(np.stack([two[:2], np.array([2.0, 7.0])]), one[None, :2])
    assert sum(rows) == 301


@pytest.mark.parametrize("columns", [1, 3, 7, 8, 9, 16, 23, 128, 130])
def test_sums_are_the_same_in_every_layout(columns: int) -> None:
    random = np.random.default_rng(columns)
    terms = random.random((700, columns)) * 10.0 ** random.integers(-8, 8, (700, columns))
    together = total(terms)
    assert total(np.asfortranarray(terms)).tobytes() == together.tobytes()
    alone = np.concatenate([total(terms[row : row + 1]) for row in range(700)])
    assert alone.tobytes() == together.tobytes()
