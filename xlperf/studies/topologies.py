"""Study topologies: the same plans on networks of different shape and equal bandwidth per accelerator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from xlperf.base.units import UNITS
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.operations import evaluate_operations
from xlperf.equations.training.step import STEP_PARTS
from xlperf.studies.outcome import (
    Chart,
    Finding,
    Inputs,
    Outcome,
    StudySheet,
    comparable,
    in_short,
    own_column,
    pivot_of,
    positions,
    result_columns,
    sheet_of,
)

_OPERATIONS = ("all_reduce", "all_to_all")


def analyse(inputs: Inputs) -> Outcome:
    """Time of a step by part on every network, and of two collectives among all accelerators."""
    plans = inputs.table("training")
    results = evaluate(plans, inputs.catalog)
    names, networks = plans.text("name"), plans.text("network")
    group = comparable(plans, "network")
    spans = [np.flatnonzero(group == i) for i in range(group.max() + 1)]
    labels = [str(names[span[0]]).partition(" on ")[0] for span in spans]
    step = results["step_time"]
    best = np.array([np.fmin.reduce(step[span]) for span in spans])
    over = step / best[group]
    charts = [
        Chart(
            "bars",
            f"Step time: {label}",
            "network",
            STEP_PARTS,
            y_title="s",
            stacked=True,
            rows=(int(span[0]), int(span[-1]) + 1),
        )
        for span, label in zip(spans, labels, strict=True)
        if span[-1] - span[0] + 1 == len(span)
    ]
    table = sheet_of(
        "topologies",
        "The same plans on every network: where the time of a step goes.",
        [
            ("plan", names),
            ("network", networks),
            ("model", [labels[i] for i in group]),
            *result_columns(results, ("step_time",)),
            (own_column("over_the_best", "-", "Step time over that on the best network for this plan"), over),
            *result_columns(results, (*STEP_PARTS, "reason")),
        ],
        charts,
    )
    collectives = _collectives(inputs, positions(networks)[0])
    findings = [
        *_short(
            inputs, [(label, span) for span, label in zip(spans, labels, strict=True)], networks, over, collectives
        ),
        *(
            finding
            for span, label in zip(spans, labels, strict=True)
            for finding in _order(span, label, networks, over)
        ),
        *_torus(collectives),
    ]
    return Outcome(findings, [table, collectives], inputs.catalog, [(plans, results)])


def _collectives(inputs: Inputs, networks: list[str]) -> StudySheet:
    """Time of one all-reduce and one all-to-all among all accelerators of each network."""
    plans, count = inputs.table("training"), inputs.number("collective_accelerators")
    pairs = [(network, operation) for network in networks for operation in _OPERATIONS]
    columns = {
        "operation": np.array([operation.replace("_", "-") for _, operation in pairs], dtype=object),
        "network": np.array([network for network, _ in pairs], dtype=object),
        "accelerator": np.full(len(pairs), plans.text("accelerator")[0], dtype=object),
        "stack": np.full(len(pairs), "training", dtype=object),
        "size": np.full(len(pairs), inputs.number("collective_size") * UNITS["MB"].factor),
        "group": np.full(len(pairs), count),
    }
    results = evaluate_operations(Table("operations", columns, lambda *_: inputs.place), inputs.catalog)
    times = results["time"].reshape(len(networks), len(_OPERATIONS)) / UNITS["ms"].factor
    return pivot_of(
        "collectives",
        f"One collective of {inputs.number('collective_size'):g} MB among {count:g} accelerators.",
        ("network", networks),
        _OPERATIONS,
        times,
        "ms",
        charts=[Chart("bars", "Time of a collective", "network", _OPERATIONS, y_title="ms")],
    )


def _short(
    inputs: Inputs, groups: Sequence[tuple[str, np.ndarray]], networks: np.ndarray, over: np.ndarray, table: StudySheet
) -> Iterator[Finding]:
    """The slowest network of each plan, and the collective with the largest slowdown."""
    clauses = []
    for label, span in groups:
        legal = span[np.isfinite(over[span])]
        if len(legal) > 1:
            slow, fast = (legal[pick(over[legal])] for pick in (np.argmax, np.argmin))
            clauses.append(f"{over[slow]:.1f} times as long on {networks[slow]} as on {networks[fast]} ({label})")
    times = {name: table.numbers(name) for name in _OPERATIONS}
    if not clauses or not all(np.isfinite(time).any() for time in times.values()):
        return
    names = table.values("network")
    parts = []
    for operation, time in times.items():
        slow, fast = int(np.nanargmax(time)), int(np.nanargmin(time))
        what = operation.replace("_", "-")
        parts.append(f"{time[slow] / time[fast]:.0f} times for an {what} ({names[slow]} against {names[fast]})")
    yield in_short(
        f"a step of the same plan takes {' and '.join(clauses)}",
        f"one collective of {inputs.number('collective_size'):g} MB among {inputs.number('collective_accelerators'):g} "
        f"accelerators differs by {' and '.join(parts)}",
    )


def _order(span: np.ndarray, label: str, networks: np.ndarray, over: np.ndarray) -> Iterator[Finding]:
    legal = span[np.isfinite(over[span])]
    if len(legal) > 1:
        order = legal[np.argsort(over[legal], kind="stable")]
        slow = ", ".join(f"{networks[i]} {over[i]:.2f}" for i in order[-3:])
        words = f"{label.capitalize()}: {networks[order[0]]} is best; the slowest, as times of the best, are {slow}."
        yield Finding("Networks", words)


def _torus(collectives: StudySheet) -> Iterator[Finding]:
    values = {str(row[0]): np.array(row[1:], dtype=float) for row in collectives.rows}
    base, *tori = ("flat switch", "flat torus 8x8x8", "flat torus 32x16")
    if {base, *tori} <= set(values):
        ratios = {name: values[name] / values[base] for name in tori}
        parts = [f"{name} {reduce:.1f} and {exchange:.1f}" for name, (reduce, exchange) in ratios.items()]
        words = (
            f"Times of a flat switch of the same bandwidth for an all-reduce and an all-to-all: {', '.join(parts)}; "
            "the all-to-all grows with the longest ring."
        )
        yield Finding("Torus", words)
