"""Fit of what allocators hold: known constants found again, from published plans with made-up memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from shipped import shipped_measured

from xlperf import load_catalog
from xlperf.base.units import factor
from xlperf.calibrate.fit_published import FEWEST_MEMORY_ROWS, fit_memory
from xlperf.calibrate.fitter import FittedConstant, calibration_table, joined_tables
from xlperf.measurements.comparison import predicted
from xlperf.measurements.published import Published
from xlperf.measurements.training import training_plans

KNOWN = {"activation_share": 0.3, "gathered_share": 0.6, "allocator_share": 0.1, "allocator_base": 2.0**29}
STACK = "nanotron"


def stack_rows(count: int) -> Published:
    training = shipped_measured().training
    rows = [
        row
        for row, kind in enumerate(training.text["mem_kind"])
        if "reserved" in kind and "after_pp_fix=true" not in training.text["notes"][row].casefold()
    ]
    return training.take(rows[:count])


def constants(values: dict[str, float]) -> list[FittedConstant]:
    return [
        FittedConstant("training_memory", "any", "any", STACK, name, value, "", 0, np.nan, "", "")
        for name, value in values.items()
    ]


def test_known_constants_of_an_allocator_are_found_again() -> None:
    catalog = load_catalog().with_tables([calibration_table([])])
    rows = stack_rows(120)
    known = joined_tables(catalog.tables["calibration"], calibration_table(constants(KNOWN)))
    plans = training_plans(rows, catalog.with_tables([known]))
    accelerators = catalog.tables["accelerators"]
    kept_back = accelerators.filled("reserved_memory")[
        catalog.rows("accelerators", plans.plans.text("accelerator"), plans.plans, "accelerator")
    ]
    memory = np.full(len(rows), np.nan)
    memory[plans.index] = (predicted(plans).number("memory_reserved") - kept_back) / 2.0**30
    made = replace(rows, number={**rows.number, "peak_mem_gb": memory})
    result = {row.constant: row for row in fit_memory(made, catalog, "2026-01-01")}
    assert set(result) == set(KNOWN)
    assert result["activation_share"].value == pytest.approx(KNOWN["activation_share"], rel=0.05)
    assert result["gathered_share"].value == pytest.approx(KNOWN["gathered_share"], rel=0.05)
    assert result["allocator_share"].value == pytest.approx(KNOWN["allocator_share"], rel=0.05)
    assert result["allocator_base"].value == pytest.approx(KNOWN["allocator_base"], rel=0.05)
    assert result["allocator_base"].error < 0.002
    of_stack = sum(name == STACK for name in plans.plans.text("software").tolist())
    assert of_stack > FEWEST_MEMORY_ROWS
    assert all(row.software == STACK and row.num_rows == of_stack for row in result.values())


def test_too_few_rows_and_papers_are_not_fitted() -> None:
    catalog = load_catalog()
    assert fit_memory(stack_rows(FEWEST_MEMORY_ROWS - 1), catalog, "") == []
    rows = stack_rows(60)
    papers = replace(rows, text={**rows.text, "group": ["papers"] * len(rows)})
    assert fit_memory(papers, catalog, "") == []


@pytest.mark.slow
def test_the_shipped_constants_of_allocators_are_what_a_fit_gives() -> None:
    """The same bits: the part of ``calibrate --fit`` that takes seconds and stands on no other.

    A constant that its more general level gives has no row.
    """
    catalog = load_catalog()
    result = fit_memory(shipped_measured().training, catalog.with_tables([calibration_table([])]), "")
    table = catalog.tables["calibration"]
    names = ("family", "generation", "precision", "software", "constant")
    keys = zip(*(table.text(name).tolist() for name in names), strict=True)
    shipped = dict(zip(keys, table.number("value").tolist(), strict=True))
    given = {tuple(getattr(one, name) for name in names): one.value * factor(one.unit) for one in result}
    assert given
    for key, value in given.items():
        family, generation, precision, software, constant = key
        words = (np.array([word], dtype=object) for word in (generation, precision, software))
        general = float(catalog.calibration.constants(family, *words)[0][constant][0, 0])
        assert shipped.get(key, general) == value, key
