"""From one machine to the next: a speed-up taken apart into recomputation, compute, memory, network, precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.studies.outcome import Chart, Finding, Inputs, Outcome, Rows, Setting, Study, StudySheet, Value, own_column
from xlperf.studies.source import with_rows

# What a factor takes over from the new plan (columns of training) and from its accelerator (columns of accelerators).
_FACTORS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "recompute": (("recompute", "recompute_modules", "recompute_layers", "recompute_group"), ()),
    "attention": (("attention",), ()),
    "batch": (("num_accelerators", "data_parallel", "global_batch_size"), ()),
    "software": (("software", "zero_stage", "zero_group_size", "cross_entropy", "sequence_parallel"), ("generation",)),
    "compute": (
        (),
        (
            "peak_flop_rate_fp32",
            "peak_flop_rate_tf32",
            "peak_flop_rate_bf16",
            "peak_flop_rate_fp8",
            "peak_flop_rate_int8",
            "peak_flop_rate_fp4",
            "num_multiprocessors",
            "clock_rate",
            "l2_capacity",
            "l2_bandwidth",
            "shared_memory_capacity",
            "shared_memory_bandwidth",
        ),
    ),
    "power": ((), ("thermal_design_power", "num_compute_dies", "die_area", "technology_node", "year")),
    "memory": ((), ("memory_bandwidth", "memory_type")),
    "network": (("network",), ("default_network",)),
    "capacity": (
        (
            "tensor_parallel",
            "pipeline_parallel",
            "virtual_pipeline",
            "pipeline_schedule",
            "context_parallel",
            "micro_batch_size",
            "sequence_parallel",
        ),
        ("memory_capacity", "reserved_memory"),
    ),
    "precision": (("precision",), ()),
}
_Change = tuple[str, dict[str, object]]
_BASE: Mapping[str, object] = {"model": "GPT3-175B", "sequence_length": 2048}


def _rows() -> Mapping[str, Rows]:
    """The plans of the paper on recomputation on A100, and NVIDIA's published plan on B200, at the same count."""
    old = {
        **_BASE,
        "accelerator": "A100-SXM4-80GB",
        "num_accelerators": 512,
        "tensor_parallel": 8,
        "pipeline_parallel": 8,
        "virtual_pipeline": 3,
        "global_batch_size": 512,
        "micro_batch_size": 1,
        "precision": "fp16",
        "attention": "standard",
        "zero_stage": 0,
    }
    new = {
        **_BASE,
        "accelerator": "B200-SXM-180GB",
        "num_accelerators": 512,
        "tensor_parallel": 4,
        "pipeline_parallel": 4,
        "virtual_pipeline": 6,
        "global_batch_size": 2048,
        "micro_batch_size": 2,
        "software": "nemo",
        "attention": "flash",
        "recompute": "none",
        "zero_stage": 1,
    }
    return {
        "training": [
            {"name": "old, full recompute", **old, "recompute": "full", "sequence_parallel": "no"},
            {"name": "old, selective recompute", **old, "recompute": "selective", "sequence_parallel": "yes"},
            {"name": "new, BF16", **new, "precision": "bf16"},
            {"name": "new, FP8", **new, "precision": "fp8"},
            {"name": "new, FP4", **new, "precision": "fp4"},
        ]
    }


def _device(catalog: Catalog, name: str, row: int, **changed: object) -> Table:
    """A row of the accelerators under another name with some values of another row."""
    table = catalog.tables["accelerators"].take([row])
    columns = {column: values.copy() for column, values in table.columns.items()}
    columns["accelerator"] = np.array([name], dtype=object)
    for column, value in changed.items():
        if column in columns:
            columns[column] = np.array([value], dtype=columns[column].dtype)
    return replace(table, columns=columns)


def _stack(tables: Sequence[Table]) -> Table:
    names = tables[0].columns
    columns = {name: np.concatenate([table[name] for table in tables]) for name in names}
    return Table(tables[0].kind, columns)


def _chain(plans: Table, catalog: Catalog, start: int, end: int, factors: Sequence[str]) -> tuple[Table, list[Table]]:
    """Plans from one row to another, a factor at a time, and the accelerators between them."""
    accelerators = catalog.tables["accelerators"]
    old, new = (
        int(catalog.rows("accelerators", plans["accelerator"][[row]], plans, "accelerator")[0]) for row in (start, end)
    )
    current = {name: values[start] for name, values in plans.columns.items()}
    changed: dict[str, object] = {}
    rows = [dict(current)]
    devices: list[Table] = []
    for factor in factors:
        plan_columns, device_columns = _FACTORS[factor]
        current.update({name: plans[name][end] for name in plan_columns if name in plans})
        changed.update({name: accelerators[name][new] for name in device_columns if name in accelerators})
        name = f"{start}-{end} with {', '.join(factors[: factors.index(factor) + 1])}"
        devices.append(_device(catalog, name, old, **changed))
        current["accelerator"] = name
        rows.append(dict(current))
    columns = {
        name: np.array([row[name] for row in rows], dtype=plans[name].dtype) for name in plans.columns if name != "name"
    }
    labels = [f"{plans['name'][start]}", *factors]
    return Table("training", {"name": np.array(labels, dtype=object), **columns}), devices


def _speed(results: Table) -> np.ndarray:
    rate: np.ndarray = results["tokens_per_second_per_accelerator"]
    return rate


def _analyse(inputs: Inputs) -> Outcome:
    plans, catalog = inputs.table("training"), inputs.catalog
    names = [str(name) for name in plans.text("name")]
    starts, ends = (_positions(names, inputs, setting) for setting in ("old_plans", "new_plans"))
    factors = [factor for factor in inputs.words("order") if factor in _FACTORS]
    factors += [factor for factor in _FACTORS if factor not in factors]
    pairs = [(start, end) for end in ends for start in starts]
    chains = [_chain(plans, catalog, start, end, factors) for start, end in pairs]
    wider = with_rows(catalog, [_stack([device for _, devices in chains for device in devices])])
    results = evaluate(plans, catalog)
    speeds = _speed(results)
    factor_rows: list[tuple[Value, ...]] = []
    gains: dict[tuple[int, int], np.ndarray] = {}
    for (start, end), (steps, _) in zip(pairs, chains, strict=True):
        speed = _speed(evaluate(steps, wider))
        gains[start, end] = speed[1:] / speed[:-1]
        total = float(speeds[end] / speeds[start])
        rest = float(total / np.prod(gains[start, end]))
        factor_rows.append((f"{names[start]} to {names[end]}", *map(float, gains[start, end]), rest, total))
    sheets = [
        StudySheet(
            "factors",
            "Gain in tokens per second and accelerator, taken apart: each factor is the gain when it is taken over "
            "after those before it. The factors multiply to the total.",
            [
                own_column("from_and_to", kind="name"),
                *(own_column(f, "-", _MEANINGS[f]) for f in factors),
                own_column("rest", "-", "What the factors leave out; 1 where they explain all"),
                own_column("total", "-", "Tokens per second and accelerator of the new plan over those of the old"),
            ],
            factor_rows,
            [
                *(
                    Chart(
                        "bars",
                        f"Factors of {names[end]}",
                        "from_and_to",
                        factors,
                        y_title="times as fast",
                        rows=(place * len(starts), (place + 1) * len(starts)),
                    )
                    for place, end in enumerate(ends)
                ),
                Chart("bars", "Total gain", "from_and_to", ("total",), y_title="times as fast"),
            ],
        ),
        _ceilings(inputs, plans, starts, ends, speeds),
    ]
    target = inputs.number("claimed_gain")
    variants, listed = _variants(inputs, plans, starts, ends, target)
    sheets.append(variants)
    findings = [*_findings(names, pairs, factors, gains, speeds, results), listed]
    return Outcome(findings, sheets, catalog, [(plans, results)])


_MEANINGS = {
    "recompute": "Recomputation of activations as in the new plan",
    "attention": "Flash attention instead of the standard one",
    "batch": "Count of accelerators and global batch of the new plan",
    "software": "Software stack, sharding of the optimizer, and the kernel efficiencies measured on the new generation",
    "compute": "Peak rates, multiprocessors, clock and on-chip memories of the new accelerator",
    "power": "Thermal design power of the new accelerator: what clock large matrix products can hold",
    "memory": "Memory bandwidth of the new accelerator",
    "network": "Network of the new accelerator",
    "capacity": "Memory of the new accelerator, and the parallel degrees and micro-batch that it allows",
    "precision": "Number format of the new plan",
}


def _positions(names: Sequence[str], inputs: Inputs, setting: str) -> list[int]:
    from xlperf.base.errors import Fault, InputError, nearest

    found: list[int] = []
    for word in inputs.words(setting):
        prefix = [i for i, name in enumerate(names) if name.casefold().startswith(word.casefold())]
        if not prefix:
            place = f"{inputs.origin} [study, {setting.replace('_', ' ')}]"
            raise InputError(Fault(place, f'no plan starts with "{word}"; {nearest(word, names)}'))
        found += prefix
    return found


def _ceilings(
    inputs: Inputs, plans: Table, starts: Sequence[int], ends: Sequence[int], speeds: np.ndarray
) -> StudySheet:
    """Gains beside the ratios of peak rates and bandwidths."""
    table = inputs.catalog.tables["accelerators"]
    rows = inputs.catalog.rows("accelerators", plans["accelerator"], plans, "accelerator")
    precision = plans.text("precision", "bf16")

    def peak(i: int) -> float:
        kind = "bf16" if precision[i] == "fp16" else str(precision[i])
        return float(table[f"peak_flop_rate_{kind}"][rows[i]])

    found: list[tuple[Value, ...]] = []
    for start, end in product(starts, ends):
        compute = peak(end) / peak(start)
        bandwidth = float(table["memory_bandwidth"][rows[end]] / table["memory_bandwidth"][rows[start]])
        total = float(speeds[end] / speeds[start])
        label = f"{plans['name'][start]} to {plans['name'][end]}"
        found.append((label, total, compute, total / compute, bandwidth))
    return StudySheet(
        "ceilings",
        "The gain beside the ratio of the dense peaks of the two formats and the ratio of memory bandwidths.",
        [
            own_column("from_and_to", kind="name"),
            own_column("total", "-", "Gain in tokens per second and accelerator"),
            own_column("compute_ceiling", "-", "Peak of the new plan's format over the peak of the old plan's"),
            own_column("reached", "-", "Gain over the compute ceiling"),
            own_column("memory_bandwidth_ratio", "-", "Memory bandwidth of the new accelerator over that of the old"),
        ],
        found,
        [Chart("bars", "Gain and ceiling", "from_and_to", ("total", "compute_ceiling"), y_title="times")],
    )


def _variants(
    inputs: Inputs, plans: Table, starts: Sequence[int], ends: Sequence[int], target: float
) -> tuple[StudySheet, Finding]:
    """Changes of the baseline that would reach a claimed gain: recompute, batch, scale-up domain, count, precision."""
    changes: list[tuple[str, dict[str, object]]] = []
    first = starts[0]
    base = {name: values[first] for name, values in plans.columns.items()}
    replicas = float(base["num_accelerators"]) / (float(base["tensor_parallel"]) * float(base["pipeline_parallel"]))
    recomputes: tuple[_Change, ...] = (
        ("full recompute", {"recompute": "full", "attention": "standard"}),
        ("selective recompute", {"recompute": "selective", "attention": "standard"}),
        ("no recompute, flash attention", {"recompute": "none", "attention": "flash"}),
    )
    batches: tuple[_Change, ...] = (
        ("batch as planned", {}),
        ("8 micro-batches", {"global_batch_size": 8 * replicas}),
        ("2 micro-batches", {"global_batch_size": 2 * replicas, "virtual_pipeline": 1.0}),
    )
    domains: tuple[_Change, ...] = (
        ("tensor parallel in the node", {}),
        ("tensor parallel 16, over nodes", {"tensor_parallel": 16.0, "pipeline_parallel": 4.0}),
    )
    counts: tuple[_Change, ...] = (
        ("equal count", {}),
        ("eight times the old count", {"num_accelerators": 8 * float(base["num_accelerators"])}),
    )
    precisions: tuple[_Change, ...] = (("16 bit", {}), ("TF32", {"precision": "tf32"}))
    for parts in product(recomputes, batches, domains, counts, precisions):
        changed: dict[str, object] = {}
        for _, part in parts:
            changed.update(part)
        if "num_accelerators" in changed:
            changed["global_batch_size"] = 8 * float(str(changed.get("global_batch_size", base["global_batch_size"])))
        changes.append((", ".join(words for words, _ in parts), {**base, **changed, "sequence_parallel": 1.0}))
    columns = {
        name: np.array([change[name] for _, change in changes], dtype=plans[name].dtype)
        for name in plans.columns
        if name != "name"
    }
    table = Table("training", {"name": np.array([words for words, _ in changes], dtype=object), **columns})
    old = _speed(evaluate(table, inputs.catalog))
    new = _speed(evaluate(plans.take(list(ends)), inputs.catalog))
    rows: list[tuple[Value, ...]] = []
    reaching: list[str] = []
    for (words, _), speed in zip(changes, old, strict=True):
        own = [float(value / speed) for value in new]
        rows.append((words, *own))
        for end, gain in zip(ends, own, strict=True):
            if abs(gain / target - 1) < 0.1:
                reaching.append(f"{plans['name'][end]} against {words} ({gain:.1f})")
    ends_named = [f"gain_of_{str(plans['name'][end]).replace(' ', '_').replace(',', '')}" for end in ends]
    sheet = StudySheet(
        "baselines",
        f"The new plans against other ways to run the old machine: which would give the claimed {target:g} times.",
        [own_column("baseline", kind="name"), *(own_column(name, "-", "Gain per accelerator") for name in ends_named)],
        rows,
        shaded=ends_named,
    )
    if not reaching:
        gains = [gain for row in rows for gain in row[1:] if isinstance(gain, float) and gain == gain]
        if not gains:
            return sheet, Finding("Claim", "No plan of the old and of the new machine could be computed.", "warning")
        best = max(gains)
        return sheet, Finding(
            "Claim",
            f"No change of the baseline tried comes within 10 % of {target:g} times; the most is {best:.1f}.",
            "warning",
        )
    words = f"{len(reaching)} of {len(rows) * len(ends)} pairs come within 10 % of {target:g} times: "
    words += f"{'; '.join(reaching[:4])}{' and more' if len(reaching) > 4 else ''}."
    return sheet, Finding("Claim", words)


def _findings(
    names: Sequence[str],
    pairs: Sequence[tuple[int, int]],
    factors: Sequence[str],
    gains: Mapping[tuple[int, int], np.ndarray],
    speeds: np.ndarray,
    results: Table,
) -> Iterator[Finding]:
    for start, end in pairs:
        total = speeds[end] / speeds[start]
        if not np.isfinite(total):
            continue
        order = np.argsort(-gains[start, end])
        largest = ", ".join(f"{factors[i]} {gains[start, end][i]:.2f}" for i in order[:3])
        words = f"{names[end]} is {total:.1f} times as fast per accelerator as {names[start]}; most of it is {largest}."
        yield Finding("Gain", words, "good")


STUDY = Study(
    name="a100-to-b200",
    title="From A100 to B200, factor by factor",
    question="How much faster does a B200 train GPT-3 175B than an A100, and what makes the difference?",
    published=(
        "Published rows give 10.7 times (1,600 tokens per second and B200 in FP8, NeMo 25.02, over 149 on A100 with "
        "selective recompute, Korthikanti et al. 2022) and 14.2 times over 113 with full recompute. The about 35 times "
        "of arXiv 2407.14645 rest on assumptions that its abstract does not give: the sheet baselines tries some."
    ),
    analyse=_analyse,
    settings=(
        Setting("old_plans", ("old",), "-", "Plans of the old machine: how their names start"),
        Setting("new_plans", ("new",), "-", "Plans of the new machine: how their names start"),
        Setting(
            "order",
            (
                "recompute",
                "attention",
                "batch",
                "compute",
                "power",
                "memory",
                "network",
                "capacity",
                "software",
                "precision",
            ),
            "-",
            "Order in which the factors are taken over; any that is left out comes last",
        ),
        Setting("claimed_gain", 35.0, "-", "Gain for which baselines are looked for"),
    ),
    rows=_rows,
)
