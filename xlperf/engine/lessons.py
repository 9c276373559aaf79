"""What the user's measured runs teach, in words with numbers, and the faults of runs that teach nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from xlperf.base.arrays import exp, expm1, log
from xlperf.base.errors import Fault, InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import PLAN_TABLES
from xlperf.engine.learning import PARTS, WORDS, OwnRuns, Process, own_runs_of
from xlperf.engine.tables import evaluate

_SMALL, _MOST = 0.02, 0.5  # least log change of the time of the runs that a part is named for, and its share [-]
OUTLIER = float(log(2.0))  # log ratio between a run and its prediction by the other runs from which it is named [-]


def own_runs(catalog: Catalog, kind: str) -> OwnRuns | None:
    """The user's runs of a kind of plan; None without any. Raises InputError if one teaches nothing."""
    return own_runs_of(catalog, kind, lambda plans, known: evaluate(plans, known).columns)


def run_faults(catalog: Catalog) -> list[Fault]:
    """Runs of a catalog that are illegal or have no possible measured value."""
    faults: dict[Fault, None] = {}
    for kind in PLAN_TABLES:
        try:
            own_runs(catalog, kind)
        except InputError as error:
            faults |= dict.fromkeys(error.faults)
    return list(faults)


@dataclass(frozen=True)
class Lesson:
    """What runs taught about a quantity: median factor, and median errors of the runs without and with each other.
    ``left_out``: errors of each run predicted by the others; NaN with a single run. ``outliers``: runs at least twice
    as far from their prediction by the others, with the factor between them. ``part``: the part of the time that
    changes it most, with the factor on that part; blank if none changes it by 2 %.
    """

    quantity: str
    runs: int
    factor: float
    before: float
    after: float
    left_out: float
    outliers: tuple[tuple[str, float], ...]
    part: tuple[str, float] = ("", 1.0)

    def words(self) -> str:
        """The lesson as a sentence."""
        count = f"{self.runs} run{'s' * (self.runs > 1)}"
        text = f"your {WORDS[self.quantity].format(f'{self.factor:.2f}')} ({count})"
        if self.part[0] and not self.outliers:
            text += f", most of it in {self.part[0]}, which takes {self.part[1]:.3g} times as long"
        if math.isnan(self.left_out):
            text += f"; without it the prediction is {100.0 * self.before:.1f} % off"
        else:
            text += f"; error of the runs {100.0 * self.before:.1f} % before, {100.0 * self.after:.1f} % after"
            text += f", {100.0 * self.left_out:.1f} % of each predicted by the others"
        for name, factor in self.outliers:
            text += f"; {name} is {factor:.3g} times what {'the others say' if self.runs > 1 else 'was predicted'}"
            text += ": is it this plan, in this unit?"
        return text


def lessons(catalog: Catalog) -> list[Lesson]:
    """What the user's runs teach, by kind of plan and quantity."""
    result: list[Lesson] = []
    for kind in PLAN_TABLES:
        runs = own_runs(catalog, kind)
        if runs is not None:
            result += [_lesson(runs, quantity, process) for quantity, process in runs.processes.items()]
    return result


def _lesson(runs: OwnRuns, quantity: str, process: Process) -> Lesson:
    count, places, ratios = len(process.ratios), process.places, process.ratios
    after = process.learned(places)
    expected = np.zeros(count)
    for row in range(count) if count > 1 else ():
        others = np.delete(np.arange(count), row)
        left = replace(process, places=places.take(others), ratios=ratios[others])
        expected[row] = left.learned(places.take(np.array([row]))).mean[0]
    names = runs.plans.text("name")[runs.rows[quantity]]
    far = np.abs(ratios - expected) >= OUTLIER
    outliers = [(str(names[row]), float(exp(ratios[row] - expected[row]))) for row in np.flatnonzero(far).tolist()]
    errors = [float(np.median(np.abs(exp(-ratios + mean) - 1.0))) for mean in (0.0, after.mean, expected)]
    left_out = errors[2] if count > 1 else math.nan
    factor = float(exp(np.median(after.mean)))
    part = _largest_part(process, PARTS.get(quantity, ()), float(log(factor)))
    return Lesson(quantity, count, factor, errors[0], errors[1], left_out, tuple(outliers), part)


def _largest_part(process: Process, names: Sequence[str], change: float) -> tuple[str, float]:
    """The part of the time with most of a log change of the time of the runs, and how many times as long it takes;
    blank if no part has half of the change.
    """
    if not names:
        return "", 1.0
    count = len(names)
    parts = np.concatenate([np.zeros((1, count)), np.eye(count)])  # plans of no part, and of one part alone
    places = process.places.take(np.zeros(count + 1, dtype=np.int64))
    means = process.learned(places._replace(parts=parts)).mean
    shares = process.places.parts.mean(axis=0)
    effect = (means[1:] - means[0]) * shares  # of a part on the logarithm of the whole time
    largest = int(np.argmax(np.abs(effect)))
    if abs(effect[largest]) < _SMALL or effect[largest] / change < _MOST:
        return "", 1.0
    factor = max(1.0 + float(expm1(effect[largest]) / shares[largest]), 0.0)
    name = names[largest].removeprefix("time_").replace("_", " ")
    return name.replace("prefill share", "prompts between tokens"), factor
