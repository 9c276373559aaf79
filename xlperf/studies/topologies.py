"""The same plans of five dimensions on networks of different shape with the same bandwidth per accelerator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from xlperf.base.units import UNITS
from xlperf.engine import evaluate
from xlperf.engine.networks import network_of
from xlperf.equations.network.collectives import collective_time
from xlperf.studies.outcome import (
    Chart,
    Finding,
    Inputs,
    Outcome,
    Rows,
    Setting,
    Study,
    StudySheet,
    Value,
    order,
    own_column,
    wide,
)

_COUNT = 512
_WORD = "Same injection bandwidth for all: 450 GB/s in the node of 8, 50 GB/s beyond; flat ones 100 GB/s throughout"
_PARTS = (
    "time_forward",
    "time_backward",
    "time_tensor_parallel",
    "time_context_parallel",
    "time_expert_parallel",
    "time_pipeline_communication",
    "time_pipeline_bubble",
    "time_data_parallel",
    "time_optimizer",
    "time_overhead",
)
_TWO_TIERS = (
    ("fat-tree", {"topology": "fat-tree"}),
    ("fat-tree 4 to 1", {"topology": "fat-tree", "oversubscription": 4}),
    ("rails", {"topology": "rail"}),
    ("dragonfly", {"topology": "dragonfly", "dimensions": "8x8x8"}),
    ("torus of nodes", {"topology": "torus", "dimensions": "4x4x4"}),
    ("fully connected nodes", {"topology": "fully-connected"}),
)
_FLAT = (
    ("flat switch", {"topology": "switch"}),
    ("flat torus 8x8x8", {"topology": "torus", "dimensions": "8x8x8"}),
    ("flat torus 32x16", {"topology": "torus", "dimensions": "32x16"}),
    ("flat mesh 8x8x8", {"topology": "mesh", "dimensions": "8x8x8"}),
    ("flat dragonfly", {"topology": "dragonfly", "dimensions": "4x8x16"}),
)
_PLANS: tuple[tuple[str, dict[str, object]], ...] = (
    (
        "dense",
        {
            "model": "Meta-Llama-3.1-70B",
            "tensor_parallel": 8,
            "context_parallel": 2,
            "pipeline_parallel": 4,
            "virtual_pipeline": 5,
            "global_batch_size": 256,
            "sequence_length": 16384,
        },
    ),
    (
        "experts",
        {
            "model": "Qwen3-235B-A22B",
            "tensor_parallel": 4,
            "context_parallel": 2,
            "pipeline_parallel": 2,
            "expert_parallel": 32,
            "expert_tensor_parallel": 1,
            "global_batch_size": 512,
            "sequence_length": 8192,
        },
    ),
)


def _rows() -> Mapping[str, Rows]:
    """Two plans, one of a dense model and one with experts, on every network."""
    networks: list[dict[str, object]] = []
    for name, shape in _TWO_TIERS:
        inner = {"network": name, "tier": 1, "size": 8, "topology": "switch", "link_bandwidth": 450, "latency": 1.5}
        outer = {"network": name, "tier": 2, "size": _COUNT, "link_bandwidth": 50, "latency": 5, **shape}
        networks += [inner, outer]
    for name, shape in _FLAT:
        networks.append({"network": name, "tier": 1, "size": _COUNT, "link_bandwidth": 100, "latency": 2, **shape})
    for row in networks:
        row.update(source="study topologies", year=2026, kind="assumption", notes=_WORD)
    plans = [
        {
            "name": f"{label} on {network}",
            "accelerator": "H100-SXM-80GB",
            "network": network,
            "num_accelerators": _COUNT,
            "micro_batch_size": 1,
            "precision": "bf16",
            "recompute": "selective" if label == "dense" else "full",
            **plan,
        }
        for label, plan in _PLANS
        for network, _ in (*_TWO_TIERS, *_FLAT)
    ]
    return {"training": plans, "networks": networks}


def _analyse(inputs: Inputs) -> Outcome:
    plans = inputs.table("training")
    results = evaluate(plans, inputs.catalog)
    networks = [str(name) for name in plans.text("network")]
    skip = ("name", "network")
    key = ["\n".join(str(plans[c][i]) for c in plans.columns if c not in skip) for i in range(len(plans))]
    kinds = order(key)
    labels = {kind: _label(str(plans["name"][key.index(kind)])) for kind in kinds}
    step = results["step_time"]
    best = {kind: np.fmin.reduce([step[i] for i in range(len(plans)) if key[i] == kind]) for kind in kinds}
    fields = results.schema.by_name
    rows: list[tuple[Value, ...]] = [
        (
            str(plans["name"][i]),
            networks[i],
            labels[key[i]],
            float(step[i]),
            float(step[i] / best[key[i]]),
            *(float(results[part][i]) for part in _PARTS),
            str(results["reason"][i]) or None,
        )
        for i in range(len(plans))
    ]
    columns = [
        own_column("plan", kind="name"),
        own_column("network", kind="text"),
        own_column("model", kind="text"),
        fields["step_time"],
        own_column("over_the_best", "-", "Step time over that on the best network for this plan"),
        *(fields[part] for part in _PARTS),
        fields["reason"],
    ]
    charts = []
    for kind in kinds:
        span = [i for i in range(len(plans)) if key[i] == kind]
        if span[-1] - span[0] + 1 == len(span):
            title = f"Step time: {labels[kind]}"
            charts.append(
                Chart("bars", title, "network", _PARTS, y_title="s", stacked=True, rows=(span[0], span[-1] + 1))
            )
    table = StudySheet(
        "topologies", "The same plans on every network: where the time of a step goes.", columns, rows, charts
    )
    collectives = _collectives(inputs, order(networks))
    findings = [*_findings(rows, kinds, labels), *_collective_findings(collectives)]
    return Outcome(findings, [table, collectives], inputs.catalog, [(plans, results)])


def _label(name: str) -> str:
    return name.partition(" on ")[0]


def _collectives(inputs: Inputs, networks: list[str]) -> StudySheet:
    """Time of one all-reduce and one all-to-all among all accelerators of each network."""
    catalog = inputs.catalog
    count, size = inputs.number("collective_accelerators"), inputs.number("collective_size") * UNITS["MB"].factor
    found: dict[tuple[Value, str], float] = {}
    index = catalog.network_index(np.array(networks, dtype=object), inputs.table("training"), "network")
    for name, row in zip(networks, index, strict=True):
        network, _ = network_of(catalog, np.array([row]), np.array([count]))
        for operation in ("all_reduce", "all_to_all"):
            constants, _ = catalog.calibration.constants(
                operation, np.array(["hopper"]), np.array(["bf16"]), np.array([""])
            )
            time = collective_time(
                operation, np.array([[size]]), np.array([[count]]), np.array([[1.0]]), network, constants
            )
            found[name, operation] = float(np.ravel(time)[0]) / UNITS["ms"].factor
    return StudySheet(
        "collectives",
        f"One collective of {inputs.number('collective_size'):g} MB among {count:g} accelerators.",
        [own_column("network", kind="name"), own_column("all_reduce", "ms"), own_column("all_to_all", "ms")],
        wide(networks, ["all_reduce", "all_to_all"], found),
        [Chart("bars", "Time of a collective", "network", ("all_reduce", "all_to_all"), y_title="ms")],
    )


def _findings(rows: list[tuple[Value, ...]], kinds: list[str], labels: Mapping[str, str]) -> Iterator[Finding]:
    for kind in kinds:
        mine = [row for row in rows if row[2] == labels[kind] and isinstance(row[3], float) and row[3] == row[3]]
        mine.sort(key=lambda row: float(row[3] or 0))
        if len(mine) < 2:
            continue
        slow = ", ".join(f"{row[1]} {float(row[4] or 0):.2f}" for row in mine[-3:])
        words = f"{labels[kind].capitalize()}: {mine[0][1]} is best; the slowest, as times of the best, are {slow}."
        yield Finding("Networks", words)


def _collective_findings(sheet: StudySheet) -> Iterator[Finding]:
    values = {str(row[0]): (float(row[1] or 0), float(row[2] or 0)) for row in sheet.rows}
    base, *tori = ("flat switch", "flat torus 8x8x8", "flat torus 32x16")
    if base not in values or not all(name in values for name in tori):
        return
    parts = [
        f"{name} {values[name][0] / values[base][0]:.1f} and {values[name][1] / values[base][1]:.1f}" for name in tori
    ]
    words = (
        f"Times of a flat switch of the same bandwidth for an all-reduce and an all-to-all: {', '.join(parts)}; "
        "the all-to-all grows with the longest ring."
    )
    yield Finding("Torus", words)


STUDY = Study(
    name="topologies",
    title="The same plan on different networks",
    question="What do the shapes of networks cost a dense plan and a plan with experts?",
    published=(
        "arXiv 2507.02456 studies topologies; its figures could not be had. That the all-to-all of a torus is bound by "
        "its bisection, a quarter of the longest ring times the bytes per link, is a hand count and a test."
    ),
    analyse=_analyse,
    settings=(
        Setting("collective_size", 256.0, "MB", "Size of the collectives that are compared alone"),
        Setting("collective_accelerators", float(_COUNT), "-", "Accelerators of these collectives"),
    ),
    rows=_rows,
)
