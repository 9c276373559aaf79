"""Training over logic nodes, memory and network generations and allocations of the area; where each stops helping."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product

import numpy as np

from xlperf.base.errors import Fault, InputError
from xlperf.base.units import UNITS
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.studies.derived import derived, device_row, with_devices
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
    own_column,
    wide,
)

_BLOCK = 16384  # plans that are evaluated at a time
_STOPS = 0.05  # gain of a generation below which it is said to help no more


def _rows() -> Mapping[str, Rows]:
    """Networks of five generations: links inside the node are those of the device, adapters and nodes grow."""
    networks: list[dict[str, object]] = []
    for generation, (nodes, bandwidth) in enumerate(((8, 25), (8, 50), (16, 100), (72, 200), (144, 400)), start=1):
        name = f"generation {generation}"
        common: dict[str, object] = {
            "network": name,
            "source": "study technology-nodes",
            "year": 2026,
            "kind": "assumption",
        }
        inside = {"tier": 1, "size": nodes, "topology": "switch", "link_bandwidth": 450, "latency": 1.5}
        beyond = {"tier": 2, "size": 65536, "topology": "fat-tree", "link_bandwidth": bandwidth, "latency": 5}
        networks += [{**common, **inside}, {**common, **beyond}]
    plan: dict[str, object] = {
        "name": "plan",
        "model": "GPT3-175B",
        "accelerator": "B200-SXM-180GB",
        "num_accelerators": 1024,
        "global_batch_size": 1024,
        "sequence_length": 2048,
        "precision": "bf16",
        "software": "nemo",
    }
    return {"training": [plan], "networks": networks}


def _grid(inputs: Inputs, plan: Table) -> Table:
    """The plan with every mapping of the grid that its accelerators allow."""
    count = float(plan["num_accelerators"][0])
    layers = inputs.catalog.tables["models"]["num_layers"][
        inputs.catalog.rows("models", plan["model"][:1], plan, "model")[0]
    ]
    rows: list[dict[str, object]] = []
    for tensor, pipeline, micro, recompute, stage in product(
        inputs.numbers("tensor_parallel"),
        inputs.numbers("pipeline_parallel"),
        inputs.numbers("micro_batches"),
        inputs.words("recomputes"),
        inputs.numbers("zero_stages"),
    ):
        replicas = count / (tensor * pipeline)
        if replicas < 1 or replicas % 1 or layers % pipeline or (stage > 1 and pipeline > 1):
            continue
        if float(plan["global_batch_size"][0]) % (replicas * micro):
            continue
        chunks = [v for v in (6.0, 4.0, 3.0, 2.0) if pipeline > 1 and (layers / pipeline) % v == 0]
        rows.append(
            {
                "tensor_parallel": tensor,
                "pipeline_parallel": pipeline,
                "virtual_pipeline": chunks[0] if chunks else 1.0,
                "micro_batch_size": micro,
                "recompute": recompute,
                "zero_stage": stage,
            }
        )
    if not rows:
        raise InputError(Fault(f"{inputs.origin} [study]", "no mapping of the grid divides the accelerators"))
    base = plan.take(np.zeros(len(rows), dtype=np.int64))
    columns = dict(base.columns)
    for name in rows[0]:
        kind = object if isinstance(rows[0][name], str) else np.float64
        columns[name] = np.array([row[name] for row in rows], dtype=kind)
    return Table("training", columns)


_Case = tuple[str, str, tuple[str, str], float]


def _devices(inputs: Inputs) -> tuple[Catalog, list[_Case], list[str]]:
    place = f"{inputs.origin} [study]"
    links, networks = inputs.words("links"), inputs.words("networks")
    if len(links) != len(networks):
        raise InputError(Fault(place, f"{len(links)} links and {len(networks)} networks; they go together in pairs"))
    pairs = list(zip(links, networks, strict=True))
    cases = list(product(inputs.words("nodes"), inputs.words("memories"), pairs, inputs.numbers("compute_shares")))
    names = [f"{node}, {memory}, {pair[1]}, {100 * share:.0f} % compute" for node, memory, pair, share in cases]
    changes = {
        "technology": np.array([case[0] for case in cases], dtype=object),
        "memory": np.array([case[1] for case in cases], dtype=object),
        "link": np.array([case[2][0] for case in cases], dtype=object),
        "compute_share": np.array([case[3] for case in cases]),
        "cache_share": np.full(len(cases), inputs.number("cache_share")),
        "power_budget": np.full(len(cases), inputs.number("power_budget")),
        "num_cores": np.full(len(cases), np.nan),
        "package": np.full(len(cases), "", dtype=object),
    }
    base = device_row(inputs.catalog, inputs.text("device"), place)
    own = [case[2][1] for case in cases]
    return with_devices(inputs.catalog, base, names, changes, inputs.text("generation"), own), cases, names


def _best(plans: Table, catalog: Catalog, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """For each device the lowest step time of the plans that fit, and which plan that is."""
    count = len(plans)
    times, chosen = np.full(len(names), np.nan), np.zeros(len(names), dtype=np.int64)
    step = max(_BLOCK // count, 1)
    for start in range(0, len(names), step):
        own = names[start : start + step]
        columns = {name: np.tile(values, len(own)) for name, values in plans.columns.items()}
        columns["accelerator"] = np.repeat(np.array(own, dtype=object), count)
        results = evaluate(Table("training", columns), catalog)
        time = np.where(results.number("fits") == 1, results["step_time"], np.inf).reshape(len(own), count)
        place = np.argmin(time, axis=1)
        lowest = time[np.arange(len(own)), place]
        times[start : start + step] = np.where(np.isfinite(lowest), lowest, np.nan)
        chosen[start : start + step] = place
    return times, chosen


def _analyse(inputs: Inputs) -> Outcome:
    plan = inputs.table("training").take([0])
    plans = _grid(inputs, plan)
    catalog, cases, names = _devices(inputs)
    times, chosen = _best(plans, catalog, names)
    nodes, memories, networks = inputs.words("nodes"), inputs.words("memories"), inputs.words("networks")
    shape = (len(nodes), len(memories), len(networks), len(inputs.numbers("compute_shares")))
    cube = times.reshape(shape)
    best = np.where(np.isfinite(cube), cube, np.inf).min(axis=3)
    best = np.where(np.isfinite(best), best, np.nan)
    sheets = [
        _lines("nodes by memory", "node", nodes, memories, best[:, :, -1], f"the network of {networks[-1]}"),
        _lines("nodes by network", "node", nodes, networks, best[:, -1, :], f"{memories[-1]}"),
        _lines("memories by node", "memory", memories, nodes, best[:, :, -1].T, f"the network of {networks[-1]}"),
        _shares(inputs, nodes, cube[:, -1, -1, :]),
        _table(names, cases, times, chosen, plans, derived(catalog, names)),
    ]
    findings = [
        *_stops(nodes, memories, networks, best),
        Finding("Grid", f"{len(names):,} devices, each with the best of {len(plans)} plans that fit in its memory."),
    ]
    kept = _kept(cube, shape)
    shown_plans = _plans(plans, [names[i] for i in kept], chosen[kept])
    return Outcome(findings, sheets, catalog, [(shown_plans, evaluate(shown_plans, catalog))])


def _kept(cube: np.ndarray, shape: tuple[int, int, int, int]) -> np.ndarray:
    """The best device of each node: what the report's other sheets show."""
    flat = np.where(np.isfinite(cube), cube, np.inf).reshape(shape[0], -1)
    rows: np.ndarray = np.argmin(flat, axis=1) + np.arange(shape[0]) * flat.shape[1]
    kept: np.ndarray = rows[np.isfinite(flat.min(axis=1))]
    return kept if len(kept) else rows[:1]


def _plans(plans: Table, names: Sequence[str], chosen: np.ndarray) -> Table:
    columns = {name: values[chosen] for name, values in plans.columns.items()}
    columns["accelerator"] = np.array(list(names), dtype=object)
    columns["name"] = np.array(list(names), dtype=object)
    return Table("training", columns)


def _lines(
    name: str, key: str, keys: Sequence[str], series: Sequence[str], values: np.ndarray, rest: str
) -> StudySheet:
    found = {
        (keys[i], series[j]): float(values[i, j])
        for i, j in product(range(len(keys)), range(len(series)))
        if np.isfinite(values[i, j])
    }
    return StudySheet(
        name,
        f"Time of a step with the best allocation and plan of each; with {rest}.",
        [own_column(key, kind="name"), *(own_column(entry, "s", "Time of a training step") for entry in series)],
        wide(list(keys), list(series), {(k, s): v for (k, s), v in found.items()}),
        [Chart("lines", "Time of a step", key, list(series), key, "s", log_y=True)],
        shaded=list(series),
    )


def _shares(inputs: Inputs, nodes: Sequence[str], values: np.ndarray) -> StudySheet:
    shares = inputs.numbers("compute_shares")
    found: dict[tuple[Value, str], float] = {
        (float(shares[j]), nodes[i]): float(values[i, j])
        for i, j in product(range(len(nodes)), range(len(shares)))
        if np.isfinite(values[i, j])
    }
    return StudySheet(
        "allocation",
        "Time of a step over the share of the dies that is cores, at the last memory and network.",
        [
            own_column("compute_share", "-", "Share of the compute dies for cores"),
            *(own_column(node, "s", "Time of a training step") for node in nodes),
        ],
        wide(list(shares), list(nodes), found),
        [Chart("lines", "Time of a step", "compute_share", list(nodes), "share for cores", "s", log_y=True)],
        shaded=list(nodes),
    )


def _table(
    names: Sequence[str],
    cases: Sequence[_Case],
    times: np.ndarray,
    chosen: np.ndarray,
    plans: Table,
    devices: Table,
) -> StudySheet:
    numbers = (
        ("peak_flop_rate_bf16", "TFLOP/s"),
        ("memory_bandwidth", "TB/s"),
        ("memory_capacity", "GiB"),
        ("thermal_design_power", "W"),
    )
    rows: list[tuple[Value, ...]] = []
    for i, (name, (node, memory, (link, network), share)) in enumerate(zip(names, cases, strict=True)):
        own = [float(devices[column][i] / UNITS[unit].factor) for column, unit in numbers]
        at = int(chosen[i])
        words = (
            f"TP {plans['tensor_parallel'][at]:.0f}, PP {plans['pipeline_parallel'][at]:.0f}, "
            f"micro {plans['micro_batch_size'][at]:.0f}, {plans['recompute'][at]} recompute, "
            f"ZeRO {plans['zero_stage'][at]:.0f}"
        )
        time = float(times[i])
        rows.append((name, node, memory, link, network, share, *own, time, words if time == time else None))
    return StudySheet(
        "devices",
        "Every device of the grid with its numbers and its best plan; no time: no plan of the grid fits.",
        [
            own_column("device", kind="name"),
            *(own_column(name, kind="text") for name in ("node", "memory", "link", "network")),
            own_column("compute_share", "-"),
            *(own_column(column, unit) for column, unit in numbers),
            own_column("step_time", "s", "Time of a training step with the best plan"),
            own_column("best_plan", kind="text"),
        ],
        rows,
    )


def _stops(
    nodes: Sequence[str], memories: Sequence[str], networks: Sequence[str], best: np.ndarray
) -> Iterator[Finding]:
    for axis, (what, keys) in enumerate((("node", nodes), ("memory", memories), ("network", networks))):
        for words, other in (("the last of all else", -1), ("the first of all else", 0)):
            index: list[int | slice] = [other, other, other]
            index[axis] = slice(None)
            times = best[tuple(index)]
            if not np.isfinite(times).any():
                continue
            legal = [(key, float(time)) for key, time in zip(keys, times, strict=True) if np.isfinite(time)]
            gain = legal[0][1] / legal[-1][1]
            found = None
            for (before, slow), (_, fast) in pairwise(legal):
                if found is None and slow / fast - 1 < _STOPS:
                    found = before
                elif slow / fast - 1 >= _STOPS:
                    found = None
            said = f"with {words}, from {legal[0][0]} to {legal[-1][0]} a step is {gain:.2f} times as fast"
            if found is not None and found != legal[-1][0]:
                said += f"; beyond {found} each next one gives less than {100 * _STOPS:.0f} %"
            yield Finding(what.capitalize(), f"{said[0].upper()}{said[1:]}.", "good" if other else "plain")


STUDY = Study(
    name="technology-nodes",
    title="Technology nodes against memory and network",
    question="How far do smaller logic nodes speed up training before memory and network hold them back?",
    published=(
        "arXiv 2407.14645 explores nodes from 12 nm to 1 nm with memory and network generations under budgets of area, "
        "power and perimeter; its numbers could not be had. One set of constants gives memory, links, SRAM and power "
        "of A100, H100, B200 and MI300X within 20 %, which a test holds. 1.4 and 1 nm are scenarios."
    ),
    analyse=_analyse,
    settings=(
        Setting("device", "B200 from budgets", "-", "Row of the sheet devices that is varied"),
        Setting(
            "nodes",
            ("12 nm", "10 nm", "7 nm", "5 nm", "3 nm", "2 nm", "1.4 nm", "1 nm"),
            "-",
            "Rows of the sheet technology",
        ),
        Setting("memories", ("HBM2", "HBM2e", "HBM3", "HBM3e", "HBM4", "HBM4e"), "-", "Rows of the sheet memories"),
        Setting(
            "links",
            ("NVLink 3", "NVLink 4", "NVLink 5", "NVLink 6", "Co-packaged optics"),
            "-",
            "Links of the device inside a node, rows of the sheet links; one for each network",
        ),
        Setting(
            "networks",
            ("generation 1", "generation 2", "generation 3", "generation 4", "generation 5"),
            "-",
            "Networks of the nodes, rows of the sheet networks of this workbook",
        ),
        Setting(
            "compute_shares",
            (0.2, 0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75),
            "-",
            "Allocations: share of the compute dies for cores",
        ),
        Setting("cache_share", 0.195, "-", "Share for cache of what cores and interfaces leave"),
        Setting("power_budget", 1200.0, "W", "Power of a package"),
        Setting("generation", "blackwell", "-", "Generation whose kernel efficiencies are taken"),
        Setting("tensor_parallel", (4.0, 8.0), "-", "Grid of plans: tensor parallel"),
        Setting("pipeline_parallel", (4.0, 8.0, 16.0), "-", "Grid of plans: pipeline parallel"),
        Setting("micro_batches", (1.0, 2.0), "-", "Grid of plans: micro-batch"),
        Setting("recomputes", ("none", "full"), "-", "Grid of plans: recompute"),
        Setting("zero_stages", (1.0,), "-", "Grid of plans: ZeRO stage; above 1 only without pipeline"),
    ),
    rows=_rows,
    full={
        "tensor_parallel": (1.0, 2.0, 4.0, 8.0, 16.0),
        "pipeline_parallel": (1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
        "micro_batches": (1.0, 2.0, 4.0, 8.0),
        "recomputes": ("none", "selective", "full"),
        "zero_stages": (1.0, 3.0),
    },
)
