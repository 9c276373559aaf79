"""Studies of machines: a speed-up factor by factor, and networks."""

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
from xlperf.studies import outcome

_FACTORS: Mapping[str, tuple[str, str]] = {
    row["factor"]: (row["columns of the plan"], row["columns of the accelerator"])
    for row in resources.rows("studies/factors.csv")
}
"""Columns of the plan and of its accelerator that each factor takes from the new machine."""
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


def speed_up(inputs: outcome.Inputs) -> outcome.Outcome:
    """Speed-up of every old and new plan, its factors and ceilings, and the conditions of a claimed speed-up."""
    plans, catalog = inputs.table("training"), inputs.catalog
    names = [str(name) for name in plans.text("name")]
    starts, ends = (_positions(names, inputs, setting) for setting in ("old_plans", "new_plans"))
    factors = list(dict.fromkeys([*(factor for factor in inputs.words("order") if factor in _FACTORS), *_FACTORS]))
    pairs = [(start, end) for end in ends for start in starts]
    chains = [_chain(plans, catalog, start, end, factors) for start, end in pairs]
    devices = [device for _, devices in chains for device in devices]
    columns = {name: np.concatenate([device[name] for device in devices]) for name in devices[0].columns}
    wider = outcome.with_rows(catalog, [Table("accelerators", columns)])
    results = evaluate(plans, catalog)
    speeds = results[_RATE]
    steps = np.array([evaluate(steps, wider)[_RATE] for steps, _ in chains])
    gains = steps[:, 1:] / steps[:, :-1]
    totals = np.array([speeds[end] / speeds[start] for start, end in pairs])
    labels = [f"{names[start]} to {names[end]}" for start, end in pairs]
    taken_apart = outcome.sheet_of(
        "factors",
        [
            ("from_and_to", labels),
            *zip(factors, gains.T, strict=True),
            ("rest", totals / np.prod(gains, axis=1)),
            ("total", totals),
        ],
    )
    # the same speed-ups with a row for each factor, one bar per pair in charts
    keys = [label.replace(" ", "_").replace(",", "") for label in labels]
    half = -(-len(keys) // 2)
    charts = [one for part in (keys[:half], keys[half:]) if part for one in outcome.charts_of("gain by factor", part)]
    by_factor = outcome.pivot_of("gain by factor", "factor", factors, keys, gains.T, charts)
    claimed, claim, needed = _claim(inputs, plans, starts, ends, results)
    findings = [*_short(plans, pairs, factors, gains, totals, needed)]
    for (start, end), gain, total in zip(pairs, gains, totals, strict=True):
        if np.isfinite(total):
            largest = ", ".join(f"{factors[i]} {gain[i]:.2f}" for i in np.argsort(-gain)[:3])
            findings.append(outcome.finding("gain", new=names[end], total=total, old=names[start], largest=largest))
    sheets = [taken_apart, by_factor, _ceilings(inputs, plans, starts, ends, speeds), *claimed]
    return outcome.Outcome([*findings, *claim], sheets, catalog, [(plans, results)])


def _positions(names: Sequence[str], inputs: outcome.Inputs, setting: str) -> list[int]:
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
    inputs: outcome.Inputs, plans: Table, starts: Sequence[int], ends: Sequence[int], speeds: np.ndarray
) -> outcome.StudySheet:
    """Predicted speed-ups beside their bounds, the ratios of peak rates and bandwidths."""
    rows = inputs.catalog.rows("accelerators", plans["accelerator"], plans, "accelerator")
    peaks = outcome.peak_rates(plans, inputs.catalog)
    bandwidths = inputs.catalog.tables["accelerators"]["memory_bandwidth"]
    start, end = np.array(list(product(starts, ends))).T
    total, compute, bandwidth = (each[end] / each[start] for each in (speeds, peaks, bandwidths[rows]))
    labels = [f"{plans['name'][i]} to {plans['name'][j]}" for i, j in zip(start, end, strict=True)]
    columns: outcome.Columns = [
        ("from_and_to", labels),
        ("total", total),
        ("compute_ceiling", compute),
        ("reached", total / compute),
        ("memory_bandwidth_ratio", bandwidth),
    ]
    return outcome.sheet_of("ceilings", columns)


def _claim(
    inputs: outcome.Inputs, plans: Table, starts: Sequence[int], ends: Sequence[int], results: Table
) -> tuple[list[outcome.StudySheet], list[outcome.Finding], str]:
    """A sentence on a claimed speed-up: the utilisation of the old machine, or the handicaps of its baseline."""
    target, speeds = inputs.number("claimed_gain"), results[_RATE]
    best = max(starts, key=lambda row: speeds[row])
    gains, mfu = speeds[list(ends)] / speeds[best], results["mfu"][best]
    needed, mfu = 100 * (mfu * gains / target), 100 * mfu  # [%]
    names, count = [str(plans["name"][end]) for end in ends], len(ends)
    columns: outcome.Columns = [
        ("new_plan", names),
        ("gain", gains),
        ("claimed", [target] * count),
        ("missing_factor", target / gains),
        ("mfu_of_the_old_plan", [mfu] * count),
        ("mfu_needed", needed),
    ]
    claim = outcome.sheet_of("claim", columns, target=target, plan=plans["name"][best])
    base = {name: values[best] for name, values in plans.columns.items()}
    replicas = float(base["num_accelerators"]) / (float(base["tensor_parallel"]) * float(base["pipeline_parallel"]))
    rows = []
    for change in _HANDICAPS.values():
        changed = dict(change)
        micro_batches = changed.pop("micro_batches", None)
        batch = float(base["global_batch_size"]) if micro_batches is None else float(str(micro_batches)) * replicas
        rows.append({**base, "global_batch_size": batch, **changed})
    changes = list(_HANDICAPS)
    slower = speeds[best] / evaluate(_plans_of(rows, changes, plans), inputs.catalog)[_RATE]
    order = np.argsort(-np.nan_to_num(slower), kind="stable")
    handicaps = outcome.sheet_of(
        "handicaps",
        [("handicap", [changes[i] for i in order]), ("times_slower", slower[order])],
        plan=plans["name"][best],
    )
    if not np.isfinite(gains).any() or not np.isfinite(slower).any():
        words = "no plan of the old and of the new machine could be computed"
        return [claim, handicaps], [outcome.finding("no claim")], words
    most, worst = int(np.nanargmax(gains)), int(order[0])
    made = gains[most] * slower[worst]
    findings = [
        outcome.finding(
            "claim",
            target=target,
            gain=gains[most],
            plan=names[most],
            short=target / gains[most],
            needed=needed[most],
            mfu=mfu,
        ),
        outcome.finding(
            "handicap",
            change=changes[worst],
            slower=slower[worst],
            made=made,
            enough="more than" if made >= target else "still below",
            target=target,
        ),
    ]
    short = (
        f"{target:g} times would need an old machine at {needed[most]:.0f} % of its peak, where its best plan "
        f"reaches {mfu:.0f} %: against that plan the gain is {gains[most]:.1f} at the most"
    )
    return [claim, handicaps], findings, short


def _short(
    plans: Table,
    pairs: Sequence[tuple[int, int]],
    factors: Sequence[str],
    gains: np.ndarray,
    totals: np.ndarray,
    needed: str,
) -> Iterator[outcome.Finding]:
    """The speed-up with its largest factor, and the condition of a claimed speed-up."""
    computed = [place for place in range(len(pairs)) if np.isfinite(totals[place])]
    if not computed:
        return
    old, new = (outcome.positions(plans.text("accelerator")[[pair[end] for pair in pairs]])[0] for end in (0, 1))
    models = outcome.positions(plans.text("model")[[pair[0] for pair in pairs]])[0]
    names = [str(name) for name in plans.text("name")]
    least, most = (pick(computed, key=lambda place: totals[place]) for pick in (min, max))
    ends = [f"{totals[i]:.1f} times ({names[pairs[i][1]]} against {names[pairs[i][0]]})" for i in (least, most)]
    mean = np.exp(np.mean([np.log(gains[place]) for place in computed], axis=0))
    largest = [f"{factors[i]} {mean[i]:.1f}" for i in np.argsort(-mean)[:3]]
    yield outcome.in_short(
        f"per accelerator {' and '.join(new)} trains {' and '.join(models)} {ends[0]} to {ends[1]} as fast as "
        f"{' and '.join(old)}, most of it by {', '.join(largest)} in the mean",
        needed,
    )


_OPERATIONS = ("all_reduce", "all_to_all")


def topologies(inputs: outcome.Inputs) -> outcome.Outcome:
    """Time of a step by part on every network, and of two collectives among all accelerators."""
    plans = inputs.table("training")
    results = evaluate(plans, inputs.catalog)
    names, networks = plans.text("name"), plans.text("network")
    group = outcome.comparable(plans, "network")
    spans = [np.flatnonzero(group == i) for i in range(group.max() + 1)]
    labels = [str(names[span[0]]).partition(" on ")[0] for span in spans]
    step = results["step_time"]
    over = step / np.array([np.fmin.reduce(step[span]) for span in spans])[group]
    charts = [
        chart
        for span, label in zip(spans, labels, strict=True)
        if span[-1] - span[0] + 1 == len(span)
        for chart in outcome.charts_of("topologies", STEP_PARTS, (int(span[0]), int(span[-1]) + 1), label=label)
    ]
    columns: outcome.Columns = [
        ("plan", names),
        ("network", networks),
        ("model", [labels[i] for i in group]),
        *outcome.result_columns(results, ("step_time",)),
        ("over_the_best", over),
        *outcome.result_columns(results, (*STEP_PARTS, "reason")),
    ]
    collectives = _collectives(inputs, outcome.positions(networks)[0])
    # plans of each label, the fastest network first
    ranked = {}
    for span, label in zip(spans, labels, strict=True):
        legal = span[np.isfinite(over[span])]
        if len(legal) > 1:
            ranked[label] = legal[np.argsort(over[legal], kind="stable")]
    findings = [*_networks_short(inputs, ranked, networks, over, collectives)]
    for label, order in ranked.items():
        slow = ", ".join(f"{networks[i]} {over[i]:.2f}" for i in order[-3:])
        findings.append(outcome.finding("networks", model=label.capitalize(), best=networks[order[0]], slow=slow))
    sheets = [outcome.sheet_of("topologies", columns, charts), collectives]
    return outcome.Outcome([*findings, *_torus(collectives)], sheets, inputs.catalog, [(plans, results)])


def _collectives(inputs: outcome.Inputs, networks: list[str]) -> outcome.StudySheet:
    """Time of one all-reduce and one all-to-all among all accelerators of each network."""
    accelerator, pairs = inputs.table("training").text("accelerator")[0], list(product(networks, _OPERATIONS))
    size, count = inputs.number("collective_size"), inputs.number("collective_accelerators")
    columns = {
        "operation": np.array([operation.replace("_", "-") for _, operation in pairs], dtype=object),
        "network": np.array([network for network, _ in pairs], dtype=object),
        "accelerator": np.full(len(pairs), accelerator, dtype=object),
        "stack": np.full(len(pairs), "training", dtype=object),
        "size": np.full(len(pairs), size * UNITS["MB"].factor),
        "group": np.full(len(pairs), count),
    }
    results = evaluate_operations(Table("operations", columns, lambda *_: inputs.place), inputs.catalog)
    times = results["time"].reshape(len(networks), len(_OPERATIONS)) / UNITS["ms"].factor
    return outcome.pivot_of("collectives", "network", networks, _OPERATIONS, times, size=size, count=count)


def _networks_short(
    inputs: outcome.Inputs,
    ranked: Mapping[str, np.ndarray],
    networks: np.ndarray,
    over: np.ndarray,
    table: outcome.StudySheet,
) -> Iterator[outcome.Finding]:
    """The slowest network of each plan, and the collective with the largest slowdown."""
    clauses = []
    for label, order in ranked.items():
        slow, fast = order[int(np.argmax(over[order]))], order[0]
        clauses.append(f"{over[slow]:.1f} times as long on {networks[slow]} as on {networks[fast]} ({label})")
    times = {name: table.numbers(name) for name in _OPERATIONS}
    if not clauses or not all(np.isfinite(time).any() for time in times.values()):
        return
    names, parts = table.values("network"), []
    for operation, time in times.items():
        slow, fast = int(np.nanargmax(time)), int(np.nanargmin(time))
        against = f"({names[slow]} against {names[fast]})"
        parts.append(f"{time[slow] / time[fast]:.0f} times for an {operation.replace('_', '-')} {against}")
    yield outcome.in_short(
        f"a step of the same plan takes {' and '.join(clauses)}",
        f"one collective of {inputs.number('collective_size'):g} MB among {inputs.number('collective_accelerators'):g} "
        f"accelerators differs by {' and '.join(parts)}",
    )


def _torus(collectives: outcome.StudySheet) -> Iterator[outcome.Finding]:
    values = {str(row[0]): np.array(row[1:], dtype=float) for row in collectives.rows}
    base, *tori = ("flat switch", "flat torus 8x8x8", "flat torus 32x16")
    if {base, *tori} <= set(values):
        ratios = {name: values[name] / values[base] for name in tori}
        parts = [f"{name} {reduce:.1f} and {exchange:.1f}" for name, (reduce, exchange) in ratios.items()]
        yield outcome.finding("torus", tori=", ".join(parts))
