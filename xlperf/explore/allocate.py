"""Design of hardware: the best split of a device's area and shoreline, checks of devices, sensitivity of their cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError, nearest
from xlperf.base.units import percent
from xlperf.catalog.catalog import Catalog, laid_over
from xlperf.catalog.schema import Column, column, results_of, unit_of
from xlperf.catalog.table import CASES, Table, place_of_row, uncertain_columns, values_in_case
from xlperf.engine import evaluate
from xlperf.engine.devices import designs_with_devices, evaluate_devices
from xlperf.engine.tables import Progress
from xlperf.equations.hardware.derived_device import PEAKS

MOST_TENSOR_PARALLEL = 64
MICRO_BATCHES = (1.0, 2.0, 4.0)
RECOMPUTE = ("none", "selective", "full")
_LEFT_OUT = ("data_parallel", "first_stage_layers", "last_stage_layers", "recompute_layers")
BATCHES = tuple(2.0**power for power in range(10))


def plan_grid(plan: Table, catalog: Catalog) -> Table:
    """Mappings around one plan, legal or not: degrees in powers of two, micro batches, recomputation, or batches."""
    row = int(catalog.rows("models", plan.text("model"), plan, "model")[0])
    models = catalog.tables["models"]
    layers, experts = models["num_layers"][row], models.number("num_experts", 0.0)[row]
    count = plan.number("num_accelerators")[0]
    training = plan.kind == "training"
    if training and np.isnan(plan.number("global_batch_size")[0]):
        problem = "global batch size must be given: step times of different batches do not compare"
        raise InputError(Fault(plan.place(0, "global_batch_size"), problem))
    tensor = [2.0**power for power in range(12) if 2.0**power <= min(count, MOST_TENSOR_PARALLEL)]
    stages = range(1, int(min(count, layers)) + 1)
    pipeline = [float(n) for n in stages if not n & (n - 1) or (n <= 16 and layers % n == 0)]  # powers of two first
    expert = [2.0**power for power in range(12) if 2.0**power <= experts and experts % 2.0**power == 0] or [1.0]
    open_batch = np.isnan(plan.number("batch_size")[0]) and np.isnan(plan.number("concurrency")[0])
    context = np.nan_to_num(plan.number("context_parallel")[0], nan=1.0)
    splits = [
        (wide, deep)
        for wide, deep in product(tensor, pipeline)
        if wide * deep * context <= count and count % (wide * deep * context) == 0
    ]
    virtual = tuple(dict.fromkeys((1.0, float(np.nan_to_num(plan.number("virtual_pipeline")[0], nan=1.0)))))
    last: tuple[tuple[object, ...], ...] = (MICRO_BATCHES, RECOMPUTE, virtual) if training else ()
    if not training and open_batch:
        last = (BATCHES,)
    points = [(*split, *rest) for split in splits for rest in product(expert, *last)]
    names = ["tensor_parallel", "pipeline_parallel", "expert_parallel"]
    names += ["micro_batch_size", "recompute", "virtual_pipeline"] if training else ["batch_size"] * bool(last)
    tried = {*names, "data_parallel", *(() if training or not last else ("concurrency",))} - {"virtual_pipeline"}
    left = [name for name, mask in plan.auto.items() if mask.any() and name not in tried]
    if left:
        problem = "{} is auto, which this grid does not try: write a value"
        raise InputError([Fault(plan.place(0, name), problem.format(name.replace("_", " "))) for name in left])
    rows = np.zeros(len(points), dtype=np.int64)
    columns = {name: values[rows] for name, values in plan.columns.items() if name not in _LEFT_OUT}
    known = plan.schema.by_name
    columns |= {name: known[name].array([point[number] for point in points]) for number, name in enumerate(names)}
    return Table(plan.kind, columns, partial(place_of_row, plan.place, rows))


OBJECTIVES = {
    "training": {"step-time": "step_time", "cost": "cost_per_million_tokens", "energy": "energy_per_token"},
    "inference": {
        "latency": "latency", "ttft": "ttft", "tpot": "tpot", "cost": "cost_per_million_output_tokens_all_in",
        "energy": "energy_per_token",
    },
}  # fmt: skip
"""Objective names and the result that each minimises, by kind of plan."""
POPULATION, GENERATIONS = 24, 16  # candidates of a generation, and generations after the first [-]
_COMPUTE, _CACHE, _EDGE, _LINKS = (0.1, 0.9), (0.02, 0.95), (0.05, 0.95), (0.02, 0.98)
_SHARES = ("compute_share", "cache_share", "memory_shoreline_share", "link_shoreline_share")
_ROUNDING = 1e-6
_UNBUILT = 1e3  # penalty of a device that cannot be built, over the objective of the given device


@dataclass(frozen=True)
class Allocation:
    """The best area and shoreline shares of a device; one row in each table."""

    device: Table  # with these shares
    derived: Table  # ``devices_results``
    plan: Table  # its best plan of the grid
    outcome: Table  # results of the plan
    value: float  # objective at the best shares, in the internal unit
    start: float  # objective at the given shares; NaN if no plan runs on the device as given
    num_evaluations: int  # plans [-]


class _Judge:
    """Objective of devices with given shares: each device counts with its best plan."""

    def __init__(self, device: Table, accelerator: Table, grid: Table, catalog: Catalog, column: str) -> None:
        self.device, self.accelerator, self.catalog, self.column = device, accelerator, catalog, column
        self.grid = grid
        self.based = bool(device.filled("num_base_dies")[0] > 0.0)
        self.linked = bool(device.text("link")[0])
        self.other = float(np.nan_to_num(evaluate_devices(device, catalog)["area_share_other"][0]))
        self.count = 0

    def bounds(self) -> list[tuple[float, float]]:
        return [_CACHE, _EDGE, *([] if self.based else [_COMPUTE]), *([_LINKS] if self.linked else [])]

    def start(self) -> Array:
        """The given shares as a point in the optimiser's bounds."""
        compute, cache, edge, links = (self.device.value(name) for name in _SHARES)
        point = [cache, edge, *([] if self.based else [compute])]
        point += [links / max(1.0 - edge, 1e-3)] if self.linked else []
        low, high = np.array(self.bounds()).T
        return np.asarray(np.clip(point, low, high))

    def devices(self, points: Array) -> Table:
        """One device per column of points, (variables, devices)."""
        count = points.shape[1]
        columns = dict(self.device.take([0] * count).columns)
        columns["device"] = np.array([f"candidate {number + 1}" for number in range(count)], dtype=object)
        columns["num_cores"] = np.full(count, np.nan)
        rows = list(points)
        columns["cache_share"], columns["memory_shoreline_share"] = rows[0], rows[1]
        if not self.based:
            columns["compute_share"] = rows[2]
        columns["link_shoreline_share"] = (1.0 - rows[1]) * rows[-1] if self.linked else np.zeros(count)
        result = evaluate_devices(Table("devices", columns), self.catalog)
        left = result["area_share_cache"] + result["area_share_other"]
        most = 1.0 - np.divide(self.other, left, out=np.ones(count), where=left > self.other)
        columns["cache_share"] = np.minimum(rows[0], np.maximum(most, _CACHE[0]))
        return Table("devices", columns)

    def complete(self, devices: Table) -> np.ndarray:
        """Whether devices preserve the area of everything but cores, cache and interfaces."""
        rest = evaluate_devices(devices, self.catalog)["area_share_other"]
        return np.asarray(rest >= self.other * (1.0 - _ROUNDING))

    def judged(self, devices: Table) -> tuple[Array, np.ndarray]:
        """Objective of every plan of the grid on every device, NaN if illegal, and whether each plan fits."""
        shape = count, number = len(devices), len(self.grid)
        named = dict.fromkeys(("accelerator", "device"), devices["device"])
        accelerators = self.accelerator.take([0] * count).with_columns(named)
        catalog = self.catalog.with_tables([devices, Table("accelerators", accelerators.columns)])
        asked = self.grid.take(np.tile(np.arange(number), count))
        asked = asked.with_columns({"accelerator": np.repeat(devices["device"], number)})
        results = evaluate(Table(asked.kind, asked.columns), catalog)
        self.count += len(asked)
        return results[self.column].reshape(shape), (results["fits"] == 1.0).reshape(shape)

    def values(self, devices: Table) -> Array:
        """Objective of every plan on every device, (devices, plans); infinite if the plan cannot run."""
        result, fits = self.judged(devices)
        runs = fits & ~np.isnan(result) & self.complete(devices)[:, None]
        return np.asarray(np.where(runs, result, np.inf))


def optimal_allocation(
    plan: Table,
    catalog: Catalog,
    objective: str,
    seed: int = 1,
    population: int = POPULATION,
    generations: int = GENERATIONS,
    progress: Progress | None = None,
) -> Allocation:
    """Minimise an objective of :data:`OBJECTIVES` over the area and shoreline shares of a plan's device by differential
    evolution; the result is never worse than the given shares.

    The area shares of cores and cache and the shoreline shares of memory and links are free; node, die area, power,
    technologies and the area of other logic stay fixed. The objective of a candidate is its best plan of
    :func:`plan_grid`. ``progress`` is called with 1 after each generation.
    """
    from scipy.optimize import differential_evolution  # slow to import

    names = OBJECTIVES[plan.kind]
    if objective not in names:
        known = ", ".join(names)
        raise InputError(Fault("objective", f'"{objective}" is none of {plan.kind} plans; known: {known}'))
    accelerator = catalog.tables["accelerators"].take(
        catalog.rows("accelerators", plan.text("accelerator"), plan, "accelerator")
    )
    if not accelerator.text("device")[0]:
        problem = f"accelerator {plan.text('accelerator')[0]} names no device: its numbers are stated, not derived"
        raise InputError(Fault(plan.place(0, "accelerator"), problem))
    at = catalog.rows("devices", accelerator.text("device"), accelerator, "device")
    device = catalog.tables["devices"].take(at)
    judge = _Judge(device, accelerator, plan_grid(plan, catalog), catalog, names[objective])
    given = Table("devices", {**device.columns, "device": np.array(["as given"], dtype=object)})
    result, _ = judge.judged(given)
    legal = np.flatnonzero(~np.isnan(result[0]))
    if len(legal):
        judge.grid = judge.grid.take(legal)
    start = float(judge.values(given)[0].min())
    worst = _UNBUILT * start if np.isfinite(start) else _UNBUILT

    def cost(points: Array) -> Array:
        least = judge.values(judge.devices(points)).min(axis=1)
        return np.asarray(np.where(np.isfinite(least), least, worst))

    def done(*_: object, **__: object) -> None:
        if progress is not None:
            progress(1)

    optimum = differential_evolution(
        cost,
        judge.bounds(),
        x0=judge.start(),
        popsize=max(1, population // len(judge.bounds())),
        maxiter=generations,
        tol=1e-4,
        rng=seed,
        polish=False,
        init="sobol",
        updating="deferred",
        vectorized=True,
        callback=done,
    )
    best = judge.devices(np.asarray(optimum.x)[:, None])
    values = judge.values(best)[0]
    if values.min() >= start:
        best, values = given, judge.values(given)[0]
    if not np.isfinite(values.min()):
        raise InputError(Fault(plan.place(0, "accelerator"), "no plan of the grid can be run on any allocation"))
    chosen = int(np.argmin(values))
    named = Table("devices", {**best.columns, "device": device["device"]})
    final = catalog.with_tables([laid_over(named, catalog.tables["devices"])])
    shown = judge.grid.take([chosen])
    return Allocation(
        device=named,
        derived=evaluate_devices(named, final),
        plan=shown,
        outcome=evaluate(shown, final),
        value=float(values[chosen]),
        start=start if np.isfinite(start) else float("nan"),
        num_evaluations=judge.count,
    )


TOLERANCE = 0.20  # relative difference between derived and stated numbers up to which budgets agree [-]
COMPARED = (
    *(f"peak_flop_rate_{name}" for name in PEAKS if name != "fp32"), "memory_bandwidth", "memory_capacity",
    "l2_capacity", "link_bandwidth", "thermal_design_power",
)  # fmt: skip
"""Results of devices that accelerators state as well; vector rates are quoted at another clock than matrix rates."""


def reverse_check(devices: Table, catalog: Catalog) -> Table:
    """``device_comparison`` of derived devices with the numbers that their accelerators in ``compared_with`` state."""
    named = np.flatnonzero(devices.text("compared_with") != "")
    compared = devices.take(named)
    results = evaluate_devices(compared, catalog, costs=False)
    rows = catalog.rows("accelerators", compared.text("compared_with"), compared, "compared_with")
    accelerators = catalog.tables["accelerators"]
    stated = {name: accelerators.number(name)[rows] for name in COMPARED}
    if catalog.networks:
        links, networks = stated["link_bandwidth"], catalog.default_networks[rows]
        innermost = catalog.network_arrays["link_bandwidth"][np.maximum(networks, 0), 0]
        stated["link_bandwidth"] = np.where(np.isnan(links) & (networks >= 0), innermost, links)
    lines = []
    for row in range(len(compared)):
        for name in COMPARED:
            if not np.isnan(stated[name][row]):
                shown = column("devices_results", name)
                derived, given = (values[name][row] / unit_of(shown).factor for values in (results, stated))
                lines.append(
                    {
                        "device": str(compared["device"][row]),
                        "accelerator": str(compared["compared_with"][row]),
                        "quantity": shown.header,
                        "derived": derived,
                        "stated": given,
                        "difference": derived / given - 1.0,
                    }
                )
    return Table.of_lines("device_comparison", lines)


def device_faults(catalog: Catalog) -> list[Fault]:
    """Faults of devices: they cannot be built, or differ from their accelerator by over :data:`TOLERANCE`."""
    devices = catalog.tables["devices"]
    if not len(devices):
        return []
    results = evaluate_devices(devices, catalog, costs=False, strict=False)
    built = ~np.isnan(results["thermal_design_power"])
    faults = []
    for row in np.flatnonzero(~built).tolist():
        problem = f"device {devices['device'][row]} cannot be built: {results['reason'][row]}"
        faults.append(Fault(devices.place(row, "device"), problem))
    known = catalog.known_rows("accelerators", devices.text("compared_with")) >= 0
    rows = np.flatnonzero(built & known)
    compared = reverse_check(devices.take(rows), catalog)
    position = {str(devices["device"][row]): row for row in rows.tolist()}
    for line in np.flatnonzero(np.abs(compared["difference"]) > TOLERANCE).tolist():
        words = f"{compared['derived'][line]:.4g}, {compared['accelerator'][line]} has {compared['stated'][line]:.4g}"
        problem = f"{compared['quantity'][line]} of device {compared['device'][line]} is {words}"
        place = devices.place(position[compared["device"][line]], "compared_with")
        faults.append(Fault(place, f"{problem} ({percent(compared['difference'][line], signed=True)})"))
    return faults


MAIN_RESULT = {"chiplets": "bill_of_materials", "servers": "cost_rate"}


def cost_sensitivity(table: Table, catalog: Catalog, result: str = "") -> Table:
    """``cost_sensitivity`` of chiplet designs or servers, for a tornado chart: one result ("" for the bill of materials
    or the hour) at the low and the high value of each uncertain input, the largest swing first, in display units.
    """
    kind = table.kind
    known = results_of(kind).by_name
    name = result.strip().casefold().replace(" ", "_") or MAIN_RESULT[kind]
    if name not in known or known[name].is_text:
        numbers = [column.name.replace("_", " ") for column in known.values() if not column.is_text]
        elsewhere = [sheet for sheet in MAIN_RESULT if name in results_of(sheet).by_name]
        hint = f"it is one of the sheet {elsewhere[0]}" if elsewhere else nearest(name, numbers)
        raise InputError(Fault("--tornado", f'"{result}" is no result of {kind}; {hint}'))
    shown = known[name]

    table = designs_with_devices(table, catalog) if kind == "chiplets" else table
    base = _result(table, catalog, shown)
    lines: list[dict[str, object]] = []
    swings: list[tuple[int, float]] = []
    for source, used in _sources(table, catalog):
        for cell_column in uncertain_columns(source):
            header, unit = source.schema.by_name[cell_column].header, unit_of(source.schema.by_name[cell_column]).factor
            inputs = {case: values_in_case(source, cell_column, case) for case in CASES}
            results = {"base": base}
            for case in ("low", "high"):
                other = Table(source.kind, {**source.columns, cell_column: inputs[case]}, source.place)
                tables = (other, catalog) if source is table else (table, catalog.with_tables([other]))
                results[case] = _result(*tables, shown)
            for row in np.flatnonzero(used >= 0).tolist():
                outcome = {case: float(results[case][row]) for case in CASES}
                swing = max(outcome.values()) - min(outcome.values())
                if swing > 0.0:
                    swings.append((row, -swing))
                    line = {"input": header, "sheet": source.kind, "swing": swing}
                    line |= {f"value_{case}": _plain(inputs[case][used[row]] / unit) for case in CASES}
                    lines.append(line | {f"result_{case}": outcome[case] for case in CASES})
    names, ranks = table.text(table.schema.key.name), Counter[int]()
    order = sorted(range(len(lines)), key=swings.__getitem__)
    for place in order:
        row = swings[place][0]
        ranks[row] += 1
        lines[place] |= {"subject": str(names[row]), "result": shown.header, "rank": float(ranks[row])}
    return Table.of_lines("cost_sensitivity", [lines[place] for place in order])


def _result(table: Table, catalog: Catalog, shown: Column) -> np.ndarray:
    if table.kind == "servers":
        from xlperf.engine.ownership import evaluate_servers

        result = evaluate_servers(table, catalog=catalog)
    else:
        from xlperf.engine.devices import evaluate_designs

        result = evaluate_designs(table, catalog)
    return np.asarray(result[shown.name] / unit_of(shown).factor)


def _sources(table: Table, catalog: Catalog) -> Iterator[tuple[Table, np.ndarray]]:
    """Tables with inputs, and the row that each design or server uses; -1 if it uses none."""
    yield table, np.arange(len(table))
    for kind, cell_column in (("packages", "package"), ("process_nodes", "node")) if table.kind == "chiplets" else ():
        yield catalog.tables[kind], catalog.rows(kind, table.text(cell_column), table, cell_column)


def _plain(value: float) -> float:
    """A number in the precision of a sheet, without rounding residue of unit factors."""
    return float(f"{value:.12g}")
