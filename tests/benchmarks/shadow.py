"""Shadow prices beside differences of optima found by trying every plan, without the search.

The worth of more of a number is the right-sided difference of the optimum over the change that its row states, per
unit; that of the last unit the left-sided one. Where two plans change places the sides differ and neither is a
derivative: half the change then has another difference, and the row names the plan that takes over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import column, unit_of
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.explore.solve import MONTH, changed, usual_changes, worth
from xlperf.explore.vary import Varied

NEAR = 0.05
ACCELERATORS = ("H100-SXM-80GB", "H200-SXM-141GB", "B200-SXM-180GB", "A100-SXM4-80GB")
TRAIN = ("name", "model", "accelerator", "num accelerators", "global batch size", "tensor parallel",
         "pipeline parallel", "micro batch size", "recompute")  # fmt: skip
SERVE = ("name", "model", "accelerator", "num accelerators", "prompt length", "output length", "precision", "mode",
         "ttft target", "tpot target", "tensor parallel", "concurrency")  # fmt: skip
LOADS = 1024
"""Requests in flight on a replica that are tried, one by one. [-]"""


class Case(NamedTuple):
    """A plan that leaves its mapping open, and every plan that it may become."""

    asked: Table
    every: Table


class Check(NamedTuple):
    """What is worth what, and what differences of optima say of the same change and of half of it. [USD]"""

    name: str
    worth: float
    difference: float
    half: float
    same_plan: bool

    @staticmethod
    def near(found: float, reference: float) -> bool:
        """Whether two are equal or within 5 %."""
        return found == reference or (reference != 0.0 and abs(found / reference - 1.0) <= NEAR)


def training(random: np.random.Generator) -> Case:
    """Llama 3 70B on 64 accelerators: every split over tensors, stages and replicas, micro batch and recomputation."""
    accelerator = str(random.choice(ACCELERATORS))
    number, batch = 64, int(64 * random.integers(1, 17))
    first = ["t", "Llama3-70B", accelerator, number, batch]
    rows = [
        [*first, tensor, stages, micro, recompute]
        for tensor in _divisors(number)
        for stages in _divisors(number // tensor)
        for micro in _divisors(batch // (number // tensor // stages))
        if batch % (number // tensor // stages) == 0
        for recompute in ("none", "selective", "full")
    ]
    asked = table_from_rows("training", TRAIN, [[*first, *["auto"] * 4]])
    return Case(asked, table_from_rows("training", TRAIN, rows))


def serving(random: np.random.Generator) -> Case:
    """Llama 3.1 70B on 8 accelerators under targets: every tensor degree, loads one request after another."""
    accelerator, number = str(random.choice(ACCELERATORS[:3])), 8
    lengths = [int(random.choice([500, 2000, 8000])), int(random.choice([100, 500]))]
    words = [str(random.choice(["bf16", "fp8"])), str(random.choice(["continuous", "static"]))]
    targets = [int(random.choice([300, 1000, 3000])), int(random.choice([10, 15, 25, 50]))]
    first = ["s", "Meta-Llama-3.1-70B", accelerator, number, *lengths, *words, *targets]
    rows = [[*first, tensor, load * (number // tensor)] for tensor in _divisors(number) for load in range(1, LOADS + 1)]
    asked = table_from_rows("inference", SERVE, [[*first, "auto", "auto"]])
    return Case(asked, table_from_rows("inference", SERVE, rows))


def _divisors(number: int) -> list[int]:
    return [part for part in range(1, number + 1) if number % part == 0]


def optimum(case: Case, catalog: Catalog, change: Varied, first: float, value: float) -> tuple[float, float]:
    """Least cost of a token of all plans that fit and keep their targets, and what an accelerator costs a month."""
    plans, known, _ = changed(case.every, catalog, (), change, first, value)
    results = evaluate(plans, known)
    good = results["fits"] == 1.0
    cost = "cost_per_million_tokens"
    if plans.kind == "inference":
        good &= (results["ttft"] <= plans.number("ttft_target")) & (results["tpot"] <= plans.number("tpot_target"))
        cost = "cost_per_million_output_tokens_all_in"
    costs = np.where(good, results[cost], np.inf)
    best = int(np.nanargmin(costs))
    return float(costs[best]), float(results["accelerator_hour_cost"][best]) * MONTH


def checks(catalog: Catalog, make: Callable[[np.random.Generator], Case], seed: int) -> Iterator[list[Check]]:
    """Scenarios without end, those without a plan that keeps its targets left out: one more unit, and the last one."""
    random = np.random.default_rng(seed)
    while True:
        case = make(random)
        changes = [one for one in usual_changes(case.asked, catalog) if isinstance(one, Varied)]
        one = changes[int(random.integers(0, len(changes)))]
        price = worth(case.asked, catalog, [one])
        if np.isnan(price["worth"][0]) or np.isnan(price["worth_of_last"][0]):
            continue
        before, after = float(price["value_before"][0]), float(price["value_after"][0])
        unit = unit_of(column(one.sheet, one.name)).factor
        here, month = optimum(case, catalog, one, before * unit, before * unit)
        found = []
        for name, side in (("worth", 1.0), ("worth_of_last", -1.0)):
            slopes = []
            for share in (1.0, 0.5):
                step = side * share * (after - before)
                there, paid = optimum(case, catalog, one, before * unit, (before + step) * unit)
                dear, cheap, hour = (here, there, paid) if side > 0.0 else (there, here, month)
                slopes.append(hour * (dear / cheap - 1.0) / abs(step))
            same = price["chosen"][0] == "the same plan"
            found.append(Check(one.name, float(price[name][0]), *slopes, same))
        yield found


def report(catalog: Catalog, number: int, seed: int) -> list[str]:
    """How many of scenarios are within 5 %, in words, for training and for serving."""
    lines = []
    for make in (training, serving):
        found = [both for both, _ in zip(checks(catalog, make, seed), range(number), strict=False)]
        for side, name in enumerate(("one more unit", "the last unit")):
            own = [both[side] for both in found]
            near = sum(Check.near(one.worth, one.difference) for one in own)
            half = sum(Check.near(one.worth, one.half) for one in own)
            lines.append(
                f"{number} shadow prices of {name}, {make.__name__}, seed {seed}: {near} within 5 % of the difference"
                f" of optima over all plans, {half} of that over half the change"
            )
    return lines
