"""Studies a100-to-b200 and topologies: a speed-up factor by factor, and the same plans on other networks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from xlperf.base import resources
from xlperf.base.errors import Fault, InputError, nearest
from xlperf.base.units import UNITS
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.operations import evaluate_operations
from xlperf.equations.training.step import STEP_PARTS
from xlperf.studies.outcome import (
    Finding,
    Inputs,
    Outcome,
    StudySheet,
    charts_of,
    comparable,
    in_short,
    peak_rates,
    pivot_of,
    positions,
    result_columns,
    sheet_of,
    with_rows,
)

# Of a factor: its meaning, and which columns of the plan and of its accelerator it takes from the new machine.
# Of a factor: which columns of the plan and of its accelerator it takes from the new machine.
_FACTORS: Mapping[str, tuple[str, str]] = {
    row["factor"]: (row["columns of the plan"], row["columns of the accelerator"])
    for row in resources.rows("studies/factors.csv")
}
_Change = Mapping[str, object]
_HANDICAPS: Mapping[str, _Change] = {
    "full recompute in place of selective": {"recompute": "full", "sequence_parallel": 0.0},
    "8 micro-batches for each pipeline": {"micro_batches": 8.0},
    "2 micro-batches for each pipeline": {"micro_batches": 2.0, "virtual_pipeline": 1.0},
    "tensor parallel 16, over nodes": {"tensor_parallel": 16.0, "pipeline_parallel": 4.0},
    "TF32 in place of FP16": {"precision": "tf32"},
}
"""Ways to run the old machine badly, one at a time; none is a published way to train this model."""
_RATE = "tokens_per_second_per_accelerator"


def speed_up(inputs: Inputs) -> Outcome:
    """Speed-up of every old and new plan, its factors and ceilings, and the conditions of a claimed speed-up."""
    plans, catalog = inputs.table("training"), inputs.catalog
    names = [str(name) for name in plans.text("name")]
    starts, ends = (_positions(names, inputs, setting) for setting in ("old_plans", "new_plans"))
    factors = list(dict.fromkeys([*(factor for factor in inputs.words("order") if factor in _FACTORS), *_FACTORS]))
    pairs = [(start, end) for end in ends for start in starts]
    chains = [_chain(plans, catalog, start, end, factors) for start, end in pairs]
    devices = [device for _, devices in chains for device in devices]
    columns = {name: np.concatenate([device[name] for device in devices]) for name in devices[0].columns}
    wider = with_rows(catalog, [Table("accelerators", columns)])
    results = evaluate(plans, catalog)
    speeds = results[_RATE]
    steps = np.array([evaluate(steps, wider)[_RATE] for steps, _ in chains])
    gains = steps[:, 1:] / steps[:, :-1]
    totals = np.array([speeds[end] / speeds[start] for start, end in pairs])
    labels = [f"{names[start]} to {names[end]}" for start, end in pairs]
    rest = [float(total / np.prod(gain)) for total, gain in zip(totals, gains, strict=True)]
    gained = [(factor, gains[:, i]) for i, factor in enumerate(factors)]
    taken_apart = sheet_of("factors", [("from_and_to", labels), *gained, ("rest", rest), ("total", totals)])
    claimed, claim, needed = _claim(inputs, plans, starts, ends, results)
    findings = [*_short(plans, pairs, factors, gains, totals, needed), *_findings(names, pairs, gains, totals, factors)]
    findings += claim
    sheets = [taken_apart, _by_factor(labels, factors, gains), _ceilings(inputs, plans, starts, ends, speeds), *claimed]
    return Outcome(findings, sheets, catalog, [(plans, results)])


def _by_factor(labels: Sequence[str], factors: Sequence[str], gains: np.ndarray) -> StudySheet:
    """The same speed-ups with a row for each factor, one bar per pair in charts."""
    keys = [label.replace(" ", "_").replace(",", "") for label in labels]
    half = -(-len(keys) // 2)
    charts = [chart for part in (keys[:half], keys[half:]) if part for chart in charts_of("gain by factor", part)]
    return pivot_of("gain by factor", "factor", factors, keys, gains.T, charts)


def _positions(names: Sequence[str], inputs: Inputs, setting: str) -> list[int]:
    """Plans with names that start with the words of a setting."""
    rows: list[int] = []
    for word in inputs.words(setting):
        prefix = [i for i, name in enumerate(names) if name.casefold().startswith(word.casefold())]
        if not prefix:
            place = f"{inputs.origin} [study, {setting.replace('_', ' ')}]"
            raise InputError(Fault(place, f'no plan starts with "{word}"; {nearest(word, names)}'))
        rows += prefix
    return rows


def _chain(plans: Table, catalog: Catalog, start: int, end: int, factors: Sequence[str]) -> tuple[Table, list[Table]]:
    """Plans from one row to another, a factor at a time, and the accelerators between them."""
    accelerators = catalog.tables["accelerators"]
    old, new = catalog.rows("accelerators", plans["accelerator"][[start, end]], plans, "accelerator")
    device = {name: values[[old]] for name, values in accelerators.columns.items()}
    row = {name: values[start] for name, values in plans.columns.items()}
    rows, devices = [row], []
    for place, factor in enumerate(factors):
        plan_columns, device_columns = _FACTORS[factor]
        name = f"{start}-{end} with {', '.join(factors[: place + 1])}"
        device = {**device, **{key: accelerators[key][[new]] for key in device_columns.split() if key in accelerators}}
        device["accelerator"] = np.array([name], dtype=object)
        devices.append(replace(accelerators.take([old]), columns=device))
        row = {**row, **{key: plans[key][end] for key in plan_columns.split() if key in plans}, "accelerator": name}
        rows.append(row)
    return _plans_of(rows, [str(plans["name"][start]), *factors], plans), devices


def _plans_of(rows: Sequence[Mapping[str, object]], names: Sequence[str], like: Table) -> Table:
    columns = {
        key: np.array([row[key] for row in rows], dtype=like[key].dtype) for key in like.columns if key != "name"
    }
    return Table("training", {"name": np.array(names, dtype=object), **columns})


def _ceilings(
    inputs: Inputs, plans: Table, starts: Sequence[int], ends: Sequence[int], speeds: np.ndarray
) -> StudySheet:
    """Predicted speed-ups beside their bounds, the ratios of peak rates and bandwidths."""
    table = inputs.catalog.tables["accelerators"]
    rows = inputs.catalog.rows("accelerators", plans["accelerator"], plans, "accelerator")
    peak = peak_rates(plans, inputs.catalog)
    bandwidth = table["memory_bandwidth"][rows]
    start, end = np.array(list(product(starts, ends))).T
    total, compute = speeds[end] / speeds[start], peak[end] / peak[start]
    return sheet_of(
        "ceilings",
        [
            ("from_and_to", [f"{plans['name'][i]} to {plans['name'][j]}" for i, j in zip(start, end, strict=True)]),
            ("total", total),
            ("compute_ceiling", compute),
            ("reached", total / compute),
            ("memory_bandwidth_ratio", bandwidth[end] / bandwidth[start]),
        ],
    )


def _claim(
    inputs: Inputs, plans: Table, starts: Sequence[int], ends: Sequence[int], results: Table
) -> tuple[list[StudySheet], list[Finding], str]:
    """A sentence on a claimed speed-up: the utilisation of the old machine, or the handicaps of its baseline."""
    target, speeds, mfu = inputs.number("claimed_gain"), results[_RATE], results["mfu"]
    best = max(starts, key=lambda row: speeds[row])
    gains = speeds[list(ends)] / speeds[best]
    needed = mfu[best] * gains / target
    names = [str(plans["name"][end]) for end in ends]
    claim = sheet_of(
        "claim",
        [
            ("new_plan", names),
            ("gain", gains),
            ("claimed", [target] * len(names)),
            ("missing_factor", target / gains),
            ("mfu_of_the_old_plan", [100 * mfu[best]] * len(names)),
            ("mfu_needed", 100 * needed),
        ],
        target=target,
        plan=plans["name"][best],
    )
    base = {name: values[best] for name, values in plans.columns.items()}
    replicas = float(base["num_accelerators"]) / (float(base["tensor_parallel"]) * float(base["pipeline_parallel"]))
    rows = []
    for change in _HANDICAPS.values():
        changed = dict(change)
        micro_batches = changed.pop("micro_batches", None)
        batch = float(base["global_batch_size"]) if micro_batches is None else float(str(micro_batches)) * replicas
        rows.append({**base, "global_batch_size": batch, **changed})
    slower = speeds[best] / evaluate(_plans_of(rows, list(_HANDICAPS), plans), inputs.catalog)[_RATE]
    order = np.argsort(-np.nan_to_num(slower), kind="stable")
    columns = [("handicap", [list(_HANDICAPS)[i] for i in order]), ("times_slower", slower[order])]
    handicaps = sheet_of("handicaps", columns, plan=plans["name"][best])
    if not np.isfinite(gains).any() or not np.isfinite(slower).any():
        no = "no plan of the old and of the new machine could be computed"
        return [claim, handicaps], [Finding("Claim", f"{no.capitalize()}.", "warning")], no
    most, worst = int(np.nanargmax(gains)), int(order[0])
    words = (
        f"No honest baseline gives {target:g} times: over the best old plan the most is {gains[most]:.1f} "
        f"({names[most]}), a factor of {target / gains[most]:.1f} short. The old machine would have to train at "
        f"{100 * needed[most]:.0f} % of its peak, where that plan reaches {100 * mfu[best]:.0f} %."
    )
    made = gains[most] * slower[worst]
    enough = "more than" if made >= target else "still below"
    explained = (
        f"The claim needs a baseline run badly: {list(_HANDICAPS)[worst]} alone makes the old machine "
        f"{slower[worst]:.1f} times slower and the gain {made:.0f}, {enough} {target:g}; that says how the old machine "
        "was run, not what the new one does."
    )
    short = (
        f"{target:g} times would need an old machine at {100 * needed[most]:.0f} % of its peak, where its best plan "
        f"reaches {100 * mfu[best]:.0f} %: against that plan the gain is {gains[most]:.1f} at the most"
    )
    return [claim, handicaps], [Finding("Claim", words, "warning"), Finding("Handicap", explained, "warning")], short


def _short(
    plans: Table,
    pairs: Sequence[tuple[int, int]],
    factors: Sequence[str],
    gains: np.ndarray,
    totals: np.ndarray,
    needed: str,
) -> Iterator[Finding]:
    """The speed-up with its largest factor, and the condition of a claimed speed-up."""
    known = [place for place in range(len(pairs)) if np.isfinite(totals[place])]
    if not known:
        return
    old, new = (positions(plans.text("accelerator")[[pair[end] for pair in pairs]])[0] for end in (0, 1))
    models = positions(plans.text("model")[[pair[0] for pair in pairs]])[0]
    names = [str(name) for name in plans.text("name")]
    least, most = (pick(known, key=lambda place: totals[place]) for pick in (min, max))
    ends = [f"{totals[i]:.1f} times ({names[pairs[i][1]]} against {names[pairs[i][0]]})" for i in (least, most)]
    mean = np.exp(np.mean([np.log(gains[place]) for place in known], axis=0))
    largest = [f"{factors[i]} {mean[i]:.1f}" for i in np.argsort(-mean)[:3]]
    yield in_short(
        f"per accelerator {' and '.join(new)} trains {' and '.join(models)} {ends[0]} to {ends[1]} as fast as "
        f"{' and '.join(old)}, most of it by {', '.join(largest)} in the mean",
        needed,
    )


def _findings(
    names: Sequence[str],
    pairs: Sequence[tuple[int, int]],
    gains: np.ndarray,
    totals: np.ndarray,
    factors: Sequence[str],
) -> Iterator[Finding]:
    for (start, end), gain, total in zip(pairs, gains, totals, strict=True):
        if np.isfinite(total):
            largest = ", ".join(f"{factors[i]} {gain[i]:.2f}" for i in np.argsort(-gain)[:3])
            words = f"{names[end]} is {total:.1f} times as fast per accelerator as {names[start]}; most of it is "
            yield Finding("Gain", f"{words}{largest}.", "good")


_OPERATIONS = ("all_reduce", "all_to_all")


def topologies(inputs: Inputs) -> Outcome:
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
        chart
        for span, label in zip(spans, labels, strict=True)
        if span[-1] - span[0] + 1 == len(span)
        for chart in charts_of("topologies", STEP_PARTS, (int(span[0]), int(span[-1]) + 1), label=label)
    ]
    table = sheet_of(
        "topologies",
        [
            ("plan", names),
            ("network", networks),
            ("model", [labels[i] for i in group]),
            *result_columns(results, ("step_time",)),
            ("over_the_best", over),
            *result_columns(results, (*STEP_PARTS, "reason")),
        ],
        charts,
    )
    collectives = _collectives(inputs, positions(networks)[0])
    findings = [
        *_networks_short(
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
    size = inputs.number("collective_size")
    return pivot_of("collectives", "network", networks, _OPERATIONS, times, size=size, count=count)


def _networks_short(
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
