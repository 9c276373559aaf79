"""Measured times of kernels by class beside those that are predicted, and as measured results of a plan."""

from __future__ import annotations

from collections.abc import Sequence

from xlperf.base.units import UNITS
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.profile import COMMUNICATION, Profile
from xlperf.catalog.table import Table
from xlperf.engine import evaluate, explain

COMPUTED = "time forward + time backward + time recompute + time optimizer"
"""Results of a training step that kernels other than messages take."""
EXCHANGED = (
    "time tensor parallel + time context parallel + time expert parallel + time pipeline communication + "
    "time data parallel"
)
"""Results of a training step in which only messages are under way."""
OF_CLASS = {"matrix": "time matrix", "attention": "time attention", "vector": "time vector",
            COMMUNICATION: "time communication"}  # fmt: skip
"""Results of a decode step by class of kernels."""
_FAMILIES = {"gemm": "matrix", "experts": "matrix", "attention": "attention", "attention_backward": "attention"}
_FEWEST = 1e-7


def measured_texts(kind: str, found: Profile) -> list[str]:
    """What a profile measures, as ``--measured`` takes it.

    ``kind``: ``training`` or ``inference``: a profile of serving is one of decode steps. ``found``: times per step.
    """
    if kind == "training":
        pairs = [(COMPUTED, found.computed), (EXCHANGED, found.exposed)]
    else:
        pairs = [(OF_CLASS[name], time) for name, time in found.times.items() if name in OF_CLASS]
    return [f"{name}={time:.9g} s" for name, time in pairs if time > _FEWEST]


def by_class(plan: Table, catalog: Catalog, found: Profile) -> list[str]:
    """Lines: class of kernels, measured and predicted time of a step, and their ratio.

    ``found``: times per step.
    """
    predicted = _training(plan, catalog) if plan.kind == "training" else _serving(plan, catalog)
    ms = UNITS["ms"].factor
    names = [*dict.fromkeys([*predicted, *found.times])]
    lines = [f"{'class':14} {'measured (ms)':>14} {'predicted (ms)':>15} {'ratio':>6}"]
    for name in names:
        own = [found.times.get(name, float("nan")), predicted.get(name, float("nan"))]
        shown = [f"{value / ms:.4g}" if value == value else "-" for value in own]
        ratio = f"{own[0] / own[1]:.2f}" if own[0] == own[0] and own[1] > 0.0 else "-"
        lines.append(f"{name:14} {shown[0]:>14} {shown[1]:>15} {ratio:>6}")
    return lines


def _training(plan: Table, catalog: Catalog) -> dict[str, float]:
    """Kernel times of a step by class, whether they overlap or not."""
    table = explain(plan, catalog)
    times: dict[str, float] = {}
    texts: Sequence[str] = [str(name) for name in table.text("family")]
    for name, time in zip(texts, table.number("total_time").tolist(), strict=True):
        own = _FAMILIES.get(name, "vector" if name == "vector" else COMMUNICATION if name else "")
        if own and time == time:
            times[own] = times.get(own, 0.0) + time
    return times


def _serving(plan: Table, catalog: Catalog) -> dict[str, float]:
    """Kernel times of a decode step by class."""
    results = evaluate(plan, catalog)
    return {name: float(results.number(result.replace(" ", "_"))[0]) for name, result in OF_CLASS.items()}
