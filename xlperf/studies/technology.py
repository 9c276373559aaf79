"""Studies dram and technology-nodes: a device with other memory, or another logic node, memory and network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product

import numpy as np

from xlperf.base.errors import Fault, InputError
from xlperf.base.units import UNITS
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.devices import accelerators_of
from xlperf.studies import outcome
from xlperf.studies.shares import best_shares, marginal

_PARTS = ("time_matrix", "time_attention", "time_vector", "time_communication", "time_overhead")
_BLOCK = 16384  # plans that are evaluated at a time
_STOPS = 0.05  # gain of a generation below which it is said to help no more


def with_devices(
    inputs: outcome.Inputs, names: Sequence[str], changes: Mapping[str, np.ndarray], networks: Sequence[str]
) -> Catalog:
    """The catalog with a device and an accelerator for each variant of the device in the settings."""
    devices = inputs.catalog.tables["devices"]
    base = outcome.row_named(devices, inputs.text("device"), "device", inputs.place)
    columns = dict(devices.take(np.full(len(names), base)).columns)
    columns |= {"device": np.array(list(names), dtype=object), **changes}
    rows = [[name, inputs.text("generation"), network, name] for name, network in zip(names, networks, strict=True)]
    accelerators = table_from_rows("accelerators", ["accelerator", "generation", "default_network", "device"], rows)
    return outcome.with_rows(inputs.catalog, [Table("devices", columns), accelerators])


def derived(catalog: Catalog, names: Sequence[str]) -> Table:
    """Rows of the accelerators with the numbers of their devices, in the order of the names."""
    table = accelerators_of(catalog).table
    position = {str(name): row for row, name in enumerate(table.text("accelerator"))}
    return table.take([position[name] for name in names])


def for_each(plans: Table, names: Sequence[str]) -> Table:
    """Every plan on every accelerator, accelerators of a plan side by side."""
    columns = dict(plans.take(np.repeat(np.arange(len(plans)), len(names))).columns)
    columns["accelerator"] = np.array(list(names) * len(plans), dtype=object)
    columns["name"] = np.array([f"{plan}: {name}" for plan in plans.text("name") for name in names], dtype=object)
    return Table(plans.kind, columns)


def memories(inputs: outcome.Inputs) -> outcome.Outcome:
    """Latency of inference over the memory technology, and the limit beyond it."""
    plans = inputs.table("inference")
    technologies, steps = inputs.words("memories"), inputs.numbers("further_steps")
    names = [f"{inputs.text('device')} with {memory}" for memory in technologies]
    changes = {"memory": np.array(technologies, dtype=object)}
    catalog = with_devices(inputs, names, changes, [inputs.text("network")] * len(names))
    catalog, further = _further(catalog, names[-1], steps)
    names += further
    labels = [*technologies, *(f"{technologies[-1]} x {step:g}" for step in steps)]
    devices = derived(catalog, names)
    bandwidth, capacity = outcome.shown(devices, "memory_bandwidth"), outcome.shown(devices, "memory_capacity")
    every = for_each(plans, names)
    results = evaluate(every, catalog)
    kinds, count = [str(name) for name in plans.text("name")], len(names)
    columns: outcome.Columns = [
        ("case", [f"{kind}: {label}" for kind, label in product(kinds, labels)]),
        ("plan", np.repeat(kinds, count)),
        ("memory", labels * len(kinds)),
        ("memory_bandwidth", np.tile(bandwidth, len(kinds))),
        ("memory_capacity", np.tile(capacity, len(kinds))),
        *outcome.result_columns(results, ("latency", "tpot", *_PARTS, "bound", "fits")),
    ]
    charts = [
        chart
        for i, kind in enumerate(kinds)
        for chart in outcome.charts_of("memories", _PARTS, (i * count, (i + 1) * count), kind=kind)
    ]
    tpot, bounds = (values.reshape(len(kinds), count) for values in (outcome.shown(results, "tpot"), results["bound"]))
    findings = [*_memories_short(kinds, labels, bandwidth, tpot, bounds)]
    for kind, time, bound in zip(kinds, tpot, bounds, strict=True):
        findings += _memory_findings(kind, labels, bandwidth, time, bound)
    legal = np.flatnonzero(np.isfinite(results["tpot"]))
    # speed-up over the slowest memory, by bandwidth; of memories equally fast, the last
    order = np.argsort(bandwidth, kind="stable")
    keys, last = np.unique(bandwidth[order][::-1], return_index=True)
    rows = order[::-1][last]
    ratios = [*(time[order[0]] / time[rows] for time in tpot), bandwidth[rows] / bandwidth[order[0]]]
    series = [*kinds, "memory_bandwidth_ratio"]
    gains = outcome.pivot_of("gain", "memory_bandwidth", keys, series, np.column_stack(ratios))
    sheets = [gains, outcome.sheet_of("memories", columns, charts)]
    return outcome.Outcome(findings, sheets, catalog, [(every.take(legal), results.take(legal))])


def _further(catalog: Catalog, last: str, steps: Sequence[float]) -> tuple[Catalog, list[str]]:
    """Accelerators like the last one with faster memory, by factor."""
    names = [f"{last} x {step:g}" for step in steps]
    if not names:
        return catalog, []
    columns = {name: values.copy() for name, values in derived(catalog, [last] * len(names)).columns.items()}
    columns["accelerator"] = np.array(names, dtype=object)
    columns["memory_bandwidth"] = columns["memory_bandwidth"] * np.array(steps)
    columns["device"] = np.full(len(names), "", dtype=object)
    return outcome.with_rows(catalog, [Table("accelerators", columns)]), names


def _rising(bandwidth: np.ndarray, tpot: np.ndarray) -> list[int]:
    """Rows with a time, in the order of their bandwidth."""
    return [int(i) for i in np.argsort(bandwidth, kind="stable") if np.isfinite(tpot[i])]


def _knee(bandwidth: np.ndarray, tpot: np.ndarray) -> int | None:
    """Knee of the speed-up: last row before it grows by less than half of the bandwidth; None without one."""
    for before, after in pairwise(_rising(bandwidth, tpot)):
        faster = bandwidth[after] / bandwidth[before]
        if faster >= 1.02 and np.log(tpot[before] / tpot[after]) / np.log(faster) < 0.5:
            return before
    return None


def _memories_short(
    kinds: Sequence[str], labels: Sequence[str], bandwidth: np.ndarray, tpot: np.ndarray, bounds: np.ndarray
) -> Iterator[outcome.Finding]:
    orders = [_rising(bandwidth, time) for time in tpot]
    computed = [place for place, order in enumerate(orders) if len(order) > 1]
    if not computed:
        return
    gain = {place: tpot[place][orders[place][0]] / tpot[place][orders[place][-1]] for place in computed}
    least, most = (pick(computed, key=lambda place: gain[place]) for pick in (min, max))
    first, last = orders[most][0], orders[most][-1]
    knees = {place: _knee(bandwidth, tpot[place]) for place in computed}
    clauses = [
        f"{bandwidth[at]:.1f} TB/s ({labels[at]}) for {kinds[place]}" for place, at in knees.items() if at is not None
    ]
    second = "more bandwidth helps to the end of what was tried"
    if clauses:
        limits = dict.fromkeys(str(bounds[place][orders[place][-1]]) for place in computed)
        second = (
            f"beyond {'; '.join(clauses)} less than half of a further gain in bandwidth shortens a token, limited in "
            f"the end by {' or '.join(limits)}"
        )
    yield outcome.in_short(
        f"{bandwidth[last] / bandwidth[first]:.0f} times the bandwidth of {labels[first]} makes a token "
        f"{gain[least]:.1f} ({kinds[least]}) to {gain[most]:.1f} times ({kinds[most]}) as fast",
        second,
    )


def _memory_findings(
    kind: str, labels: Sequence[str], bandwidth: np.ndarray, tpot: np.ndarray, bound: np.ndarray
) -> Iterator[outcome.Finding]:
    order = _rising(bandwidth, tpot)
    if len(order) < 2:
        return
    first, last = order[0], order[-1]
    ratio, gain = bandwidth[last] / bandwidth[first], tpot[first] / tpot[last]
    words = f"{kind}: {ratio:.0f} times the bandwidth of {labels[first]} makes a token {gain:.1f} times as fast"
    turned = next((i for i in order if bound[i] != "memory"), None)
    if turned is None:
        words += "; it is memory-bound to the end"
    elif bound[first] == "memory":
        words += f"; from {bandwidth[turned]:.1f} TB/s ({labels[turned]}) on it is limited by {bound[turned]}"
    else:
        words += f"; it is limited by {bound[turned]} with any memory"
    yield outcome.Finding("Memory", f"{words}.", "good")
    knee = _knee(bandwidth, tpot)
    if knee is not None:
        yield outcome.finding("knee", kind=kind, bandwidth=bandwidth[knee], label=labels[knee])


def nodes(inputs: outcome.Inputs) -> outcome.Outcome:
    """Training over logic nodes, memory and network generations and area allocations, and the saturation of each."""
    plans = _mappings(inputs, inputs.table("training").take([0]))
    catalog, cases, names = _variants(inputs)
    times, chosen = _best(plans, catalog, names)
    node_names, memory_names, network_names = (inputs.words(name) for name in ("nodes", "memories", "networks"))
    shares = inputs.numbers("compute_shares")
    cube = times.reshape(len(node_names), len(memory_names), len(network_names), len(shares))
    best = np.fmin.reduce(cube, axis=3)
    last_network = f"the network of {network_names[-1]}"
    sheets = [
        _lines("nodes by memory", "node", node_names, memory_names, best[:, :, -1], last_network),
        _lines("nodes by network", "node", node_names, network_names, best[:, -1, :], memory_names[-1]),
        _lines("memories by node", "memory", memory_names, node_names, best[:, :, -1].T, last_network),
        outcome.pivot_of("allocation", "compute_share", 100.0 * np.asarray(shares), node_names, cube[:, -1, -1, :].T),
    ]
    # the best device of each node: its shares, and what it should get next
    best_rows = _best_of_each_node(cube)
    rows = [row for row in best_rows if np.isfinite(times[row])]
    own_nodes = [cases[row][0] for row in rows]

    def timed(changed: Catalog, accelerators: Sequence[str]) -> np.ndarray:
        return _best(plans, changed, accelerators)[0]

    shared = best_shares(inputs, catalog, own_nodes, [names[row] for row in rows], timed)
    more = marginal(inputs, shared.catalog, own_nodes, shared.names, timed)
    sheets += [shared.sheet, *more.sheets, _devices_sheet(names, cases, times, chosen, plans, derived(catalog, names))]
    findings = [
        *_nodes_short(node_names, memory_names, network_names, best, more.limits),
        *_stops(node_names, memory_names, network_names, best),
        outcome.finding("grid", devices=len(names), plans=len(plans)),
        *shared.findings,
        *more.findings,
    ]
    columns = {name: values[chosen[best_rows]] for name, values in plans.columns.items()}
    best_names = np.array(names, dtype=object)[best_rows]
    best_plans = Table("training", {**columns, "accelerator": best_names, "name": best_names})
    newest = best[-1, -1, -1]
    gains = {"memory_gain": best[-1, 0, -1] / newest, "network_gain": best[-1, -1, 0] / newest}
    facts = {name: f"{gain:.1f}" for name, gain in gains.items() if np.isfinite(gain)} | {"last_node": node_names[-1]}
    facts = {**shared.facts, **more.facts, **facts}
    return outcome.Outcome(findings, sheets, catalog, [(best_plans, evaluate(best_plans, catalog))], facts)


def _mappings(inputs: outcome.Inputs, plan: Table) -> Table:
    """The plan with every mapping of the grid that its accelerators allow."""
    count, batch = (float(plan[name][0]) for name in ("num_accelerators", "global_batch_size"))
    row = inputs.catalog.rows("models", plan["model"][:1], plan, "model")[0]
    layers = inputs.catalog.tables["models"]["num_layers"][row]
    rows: list[tuple[float | str, ...]] = []
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
        if batch % (replicas * micro):
            continue
        chunks = [v for v in (6.0, 4.0, 3.0, 2.0) if pipeline > 1 and (layers / pipeline) % v == 0]
        rows.append((tensor, pipeline, chunks[0] if chunks else 1.0, micro, recompute, stage))
    if not rows:
        raise InputError(Fault(inputs.place, "no mapping of the grid divides the accelerators"))
    names = ("tensor_parallel", "pipeline_parallel", "virtual_pipeline", "micro_batch_size", "recompute", "zero_stage")
    columns = dict(plan.take(np.zeros(len(rows), dtype=np.int64)).columns)
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        columns[name] = np.array(values, dtype=object if isinstance(values[0], str) else np.float64)
    return Table("training", columns)


_Case = tuple[str, str, str, str, float]  # node, memory, link, network, share of the dies for cores


def _variants(inputs: outcome.Inputs) -> tuple[Catalog, list[_Case], list[str]]:
    """The catalog with every device of the grid, the cases and their names."""
    links, networks = inputs.words("links"), inputs.words("networks")
    if len(links) != len(networks):
        words = f"{len(links)} links and {len(networks)} networks; they go together in pairs"
        raise InputError(Fault(inputs.place, words))
    pairs = list(zip(links, networks, strict=True))
    grid = product(inputs.words("nodes"), inputs.words("memories"), pairs, inputs.numbers("compute_shares"))
    cases = [(node, memory, link, network, share) for node, memory, (link, network), share in grid]
    node, memory, link, network, share = (list(values) for values in zip(*cases, strict=True))
    names = [f"{case[0]}, {case[1]}, {case[3]}, {100 * case[4]:.0f} % compute" for case in cases]
    changes = {
        "technology": np.array(node, dtype=object),
        "memory": np.array(memory, dtype=object),
        "link": np.array(link, dtype=object),
        "compute_share": np.array(share),
        "cache_share": np.full(len(cases), inputs.number("cache_share")),
        "power_budget": np.full(len(cases), inputs.number("power_budget")),
        "num_cores": np.full(len(cases), np.nan),
        "package": np.full(len(cases), "", dtype=object),
    }
    return with_devices(inputs, names, changes, network), cases, names


def _best(plans: Table, catalog: Catalog, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """For each device the lowest step time of plans that fit, and the plan."""
    count = len(plans)
    times, chosen = np.full(len(names), np.nan), np.zeros(len(names), dtype=np.int64)
    step = max(_BLOCK // count, 1)
    for start in range(0, len(names), step):
        block = names[start : start + step]
        columns = {name: np.tile(values, len(block)) for name, values in plans.columns.items()}
        columns["accelerator"] = np.repeat(np.array(block, dtype=object), count)
        results = evaluate(Table("training", columns), catalog)
        time = np.where(results.number("fits") == 1, results["step_time"], np.inf).reshape(len(block), count)
        place = np.argmin(time, axis=1)
        lowest = time[np.arange(len(block)), place]
        times[start : start + step] = np.where(np.isfinite(lowest), lowest, np.nan)
        chosen[start : start + step] = place
    return times, chosen


def _best_of_each_node(cube: np.ndarray) -> np.ndarray:
    """Rows of the best device of each node, for the common sheets of the report."""
    flat = np.where(np.isfinite(cube), cube, np.inf).reshape(len(cube), -1)
    rows: np.ndarray = np.argmin(flat, axis=1) + np.arange(len(cube)) * flat.shape[1]
    best: np.ndarray = rows[np.isfinite(flat.min(axis=1))]
    return best if len(best) else rows[:1]


def _lines(
    name: str, key: str, keys: Sequence[str], series: Sequence[str], values: np.ndarray, rest: str
) -> outcome.StudySheet:
    charts = outcome.charts_of("step times", series, key=key)
    return outcome.pivot_of("step times", key, keys, series, values, charts, name, rest=rest)


def _devices_sheet(
    names: Sequence[str], cases: Sequence[_Case], times: np.ndarray, chosen: np.ndarray, plans: Table, devices: Table
) -> outcome.StudySheet:
    numbers = {
        "peak_flop_rate_bf16": "TFLOP/s",
        "memory_bandwidth": "TB/s",
        "memory_capacity": "GiB",
        "thermal_design_power": "W",
    }
    mappings = [
        f"TP {plans['tensor_parallel'][i]:.0f}, PP {plans['pipeline_parallel'][i]:.0f}, "
        f"micro {plans['micro_batch_size'][i]:.0f}, {plans['recompute'][i]} recompute, "
        f"ZeRO {plans['zero_stage'][i]:.0f}"
        for i in range(len(plans))
    ]
    best = [mappings[i] if time == time else None for i, time in zip(chosen, times, strict=True)]
    node, memory, link, network, share = zip(*cases, strict=True)
    columns: outcome.Columns = [
        ("device", names),
        ("node", node),
        ("memory", memory),
        ("link", link),
        ("network", network),
        ("compute_share", 100.0 * np.asarray(share, dtype=float)),
        *((column, devices[column] / UNITS[unit].factor) for column, unit in numbers.items()),
        ("step_time", times),
        ("best_plan", best),
    ]
    return outcome.sheet_of("devices", columns)


def _nodes_short(
    nodes: Sequence[str], memories: Sequence[str], networks: Sequence[str], best: np.ndarray, limits: str
) -> Iterator[outcome.Finding]:
    """Speed-up over all nodes with the newest and the oldest memory and network, and the limit of each node."""
    newest, oldest, memory, network = best[:, -1, -1], best[:, 0, 0], best[-1, 0, -1], best[-1, -1, 0]
    if np.isfinite([newest[0], newest[-1], oldest[0], oldest[-1], memory, network]).all():
        yield outcome.finding(
            "nodes short",
            nodes=(nodes[0], nodes[-1]),
            gain=(newest[0] / newest[-1], oldest[0] / oldest[-1]),
            newest=f"{memories[-1]} and the network of {networks[-1]}",
            oldest=f"{memories[0]} and that of {networks[0]}",
            memory=memory / newest[-1],
            network=network / newest[-1],
            limits=limits,
        )


def _stops(
    nodes: Sequence[str], memories: Sequence[str], networks: Sequence[str], best: np.ndarray
) -> Iterator[outcome.Finding]:
    """Speed-up along each axis with the others at their newest and oldest, and its saturation."""
    axes = ("node", nodes), ("memory", memories), ("network", networks)
    for axis, (what, keys) in enumerate(axes):
        others = " and ".join(word for word, _ in axes if word != what)
        for age, other in (("newest", -1), ("oldest", 0)):
            times = np.moveaxis(best, axis, 0)[:, other, other]
            legal = [(key, time) for key, time in zip(keys, times, strict=True) if np.isfinite(time)]
            if not legal:
                continue
            gain = legal[0][1] / legal[-1][1]
            steps = [slow / fast - 1 >= _STOPS for (_, slow), (_, fast) in pairwise(legal)]
            useful = len(steps) - next((i for i, helps in enumerate(reversed(steps)) if helps), len(steps))
            words = f"With {others} at their {age}, a step at {legal[-1][0]} is {gain:.2f} times as fast as at "
            words += legal[0][0]
            if useful < len(steps):
                words += f"; beyond {legal[useful][0]} each next one gives less than {100 * _STOPS:.0f} %"
            yield outcome.Finding(what.capitalize(), f"{words}.", "good" if other else "plain")
