"""Optimal allocation: the split of a device's area and shoreline with the best objective under its power budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import column, unit_of
from xlperf.catalog.table import Table, place_of_row
from xlperf.engine import evaluate
from xlperf.engine.devices import evaluate_devices
from xlperf.equations.hardware.derived_device import PEAKS

MOST_TENSOR_PARALLEL = 64
MICRO_BATCHES = (1.0, 2.0, 4.0)
RECOMPUTE = ("none", "selective", "full")
_LEFT_OUT = ("data_parallel", "first_stage_layers", "last_stage_layers", "recompute_layers")
BATCHES = tuple(2.0**power for power in range(10))


def plan_grid(plan: Table, catalog: Catalog) -> Table:
    """Grid of mappings around one plan, one per row.

    Training: tensor and pipeline parallel in powers of two (pipelines also of any length up to 16 that divides the
    layers), expert parallel in powers of two for MoE models, micro batches of 1, 2 and 4, recomputation none, selective
    and full, and virtual pipelines of 1 and as in the plan, at the plan's global batch. Inference: tensor, pipeline and
    expert parallel alike, and batches of 1 to 512 in powers of two if the plan leaves its batch size and concurrency
    blank. Data parallelism follows, stages share layers evenly, and every other column stays as in the plan. The
    evaluation reports illegal plans.

    Raises InputError if the catalog lacks the model, a training plan leaves its global batch size blank (step times of
    different batches do not compare), or ``auto`` is in a column that the grid does not try.
    """
    row = int(catalog.rows("models", plan.text("model"), plan, "model")[0])
    models = catalog.tables["models"]
    layers, experts = models["num_layers"][row], models.number("num_experts", 0.0)[row]
    count = plan.number("num_accelerators")[0]
    training = plan.kind == "training"
    if training and np.isnan(plan.number("global_batch_size")[0]):
        problem = "global batch size must be given: step times of different batches do not compare"
        raise InputError(Fault(plan.place(0, "global_batch_size"), problem))
    tensor = [2.0**power for power in range(12) if 2.0**power <= min(count, MOST_TENSOR_PARALLEL)]
    pipeline = [float(n) for n in range(1, int(min(count, layers)) + 1) if _even(n) or (n <= 16 and layers % n == 0)]
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
    for number, name in enumerate(names):
        values = [point[number] for point in points]
        columns[name] = np.array(values, dtype=object if name == "recompute" else np.float64)
    return Table(plan.kind, columns, partial(place_of_row, plan.place, rows))


def _even(number: int) -> bool:
    return number & (number - 1) == 0


OBJECTIVES = {
    "training": {"step-time": "step_time", "cost": "cost_per_million_tokens", "energy": "energy_per_token"},
    "inference": {
        "latency": "latency",
        "ttft": "ttft",
        "tpot": "tpot",
        "cost": "cost_per_million_output_tokens_all_in",
        "energy": "energy_per_token",
    },
}
"""Objective names and the result that each minimises, by kind of plan."""
POPULATION = 24
GENERATIONS = 16
_COMPUTE, _CACHE, _EDGE, _LINKS = (0.1, 0.9), (0.02, 0.95), (0.05, 0.95), (0.02, 0.98)
_ROUNDING = 1e-6
_UNBUILT = 1e3
"""Penalty of a device that cannot be built, over the objective of the given device."""

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Allocation:
    """The best area and shoreline shares of a device.

    - ``device``: the device with these shares, one row of kind ``devices``.
    - ``derived``: its derived numbers, one row of ``devices_results``.
    - ``plan``, ``outcome``: its best plan of the grid, and the results of this plan.
    - ``value``, ``start``: objective at the best and at the given shares, each with its best plan, in internal units.
      ``start`` is NaN if no plan runs on the device as given.
    - ``num_evaluations``: plans evaluated.
    """

    device: Table
    derived: Table
    plan: Table
    outcome: Table
    value: float
    start: float
    num_evaluations: int


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
        free = [_CACHE, _EDGE]
        if not self.based:
            free.append(_COMPUTE)
        if self.linked:
            free.append(_LINKS)
        return free

    def start(self) -> Array:
        """The given shares as a point in the optimiser's bounds."""
        share = {name: float(self.device.filled(name)[0]) for name in _SHARES}
        edge = share["memory_shoreline_share"]
        point = [share["cache_share"], edge]
        if not self.based:
            point.append(share["compute_share"])
        if self.linked:
            point.append(share["link_shoreline_share"] / max(1.0 - edge, 1e-3))
        low, high = np.array(self.bounds()).T
        return np.asarray(np.clip(point, low, high))

    def devices(self, points: Array) -> Table:
        """One device per column of points, (variables, devices)."""
        count = points.shape[1]
        rows_of_device = np.zeros(count, dtype=np.int64)
        columns = {name: values[rows_of_device] for name, values in self.device.columns.items()}
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
        count, number = len(devices), len(self.grid)
        rows_of_device = np.zeros(count, dtype=np.int64)
        columns = {name: values[rows_of_device] for name, values in self.accelerator.columns.items()}
        columns["accelerator"] = columns["device"] = devices["device"]
        catalog = self.catalog.with_tables([devices, Table("accelerators", columns)])
        rows = np.tile(np.arange(number), count)
        asked = {name: values[rows] for name, values in self.grid.columns.items()}
        asked["accelerator"] = np.repeat(devices["device"], number)
        results = evaluate(Table(self.grid.kind, asked), catalog)
        self.count += len(rows)
        shape = (count, number)
        return results[self.column].reshape(shape), (results["fits"] == 1.0).reshape(shape)

    def values(self, devices: Table) -> Array:
        """Objective of every plan on every device, (devices, plans); infinite if the plan cannot run."""
        result, fits = self.judged(devices)
        runs = fits & ~np.isnan(result) & self.complete(devices)[:, None]
        return np.asarray(np.where(runs, result, np.inf))


_SHARES = ("compute_share", "cache_share", "memory_shoreline_share", "link_shoreline_share")


def optimal_allocation(
    plan: Table,
    catalog: Catalog,
    objective: str,
    seed: int = 1,
    population: int = POPULATION,
    generations: int = GENERATIONS,
    progress: Progress | None = None,
) -> Allocation:
    """Minimise an objective over the area and shoreline shares of a plan's device by differential evolution.

    The area shares of cores and cache and the shoreline shares of memory and links are free. Process node, die area,
    power budget and the core, memory and link technologies stay fixed, as does the area of the network on chip and
    control logic, so that more cache leaves fewer cores. Every core that fits is active except spares. The objective of
    a candidate is its best plan of :func:`xlperf.explore.allocate.plan_grid`. Generations are evaluated whole; the same
    seed gives the same result.

    - ``plan``: one plan whose accelerator names a device.
    - ``objective``: a key of :data:`OBJECTIVES` for the kind of plan.
    - ``population``: candidates of a generation [-].
    - ``generations``: generations after the first [-].
    - ``progress``: called with 1 after each generation.

    The result is never worse than the given shares. Raises InputError if scipy is not installed, the kind of plan lacks
    the objective, the accelerator names no device, or no plan of the grid runs on any candidate.
    """
    try:
        from scipy.optimize import differential_evolution
    except ImportError:
        raise InputError(Fault("scipy", "is not installed, an optimum of shares needs it: pip install scipy")) from None
    names = OBJECTIVES[plan.kind]
    if objective not in names:
        known = ", ".join(names)
        raise InputError(Fault("objective", f'"{objective}" is none of {plan.kind} plans; known: {known}'))
    device, accelerator = _device(plan, catalog)
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
    final = catalog.with_tables([_with_row(catalog.tables["devices"], named)])
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


def _device(plan: Table, catalog: Catalog) -> tuple[Table, Table]:
    """The device that a plan's accelerator names, and the accelerator; one row each."""
    row = catalog.rows("accelerators", plan.text("accelerator"), plan, "accelerator")
    accelerator = catalog.tables["accelerators"].take(row)
    if not accelerator.text("device")[0]:
        problem = f"accelerator {plan.text('accelerator')[0]} names no device: its numbers are stated, not derived"
        raise InputError(Fault(plan.place(0, "accelerator"), problem))
    at = catalog.rows("devices", accelerator.text("device"), accelerator, "device")
    return catalog.tables["devices"].take(at), accelerator


def _with_row(table: Table, row: Table) -> Table:
    """A table in which one row replaces the row of the same name."""
    key = table.schema.key.name
    name = str(row[key][0]).casefold()
    at = np.array([str(other).casefold() for other in table[key].tolist()]) == name
    columns = {}
    for each in table.schema.columns:
        text = each.is_text
        old = table.text(each.name) if text else table.number(each.name)
        new = row.text(each.name) if text else row.number(each.name)
        columns[each.name] = np.where(at, new[0], old).astype(object if text else np.float64)
    return Table(table.kind, columns, table.place)


TOLERANCE = 0.20
"""Relative difference between derived and stated numbers up to which budgets agree. [-]"""
COMPARED = (
    *(f"peak_flop_rate_{name}" for name in PEAKS if name != "fp32"),
    "memory_bandwidth",
    "memory_capacity",
    "l2_capacity",
    "link_bandwidth",
    "thermal_design_power",
)
"""Results of devices that accelerators state as well; vector rates are quoted at another clock than matrix rates."""


def reverse_check(devices: Table, catalog: Catalog) -> Table:
    """Compare derived devices with the accelerators in their column ``compared_with``.

    Devices that name no accelerator are left out. Returns kind ``device_comparison``: a row for each quantity that the
    accelerator states, in display units. The link bandwidth of an accelerator defaults to the innermost tier of its
    default network. The difference is NaN if the device cannot be built. Raises InputError if the catalog lacks a name.
    """
    named = np.flatnonzero(devices.text("compared_with") != "")
    compared = devices.take(named)
    results = evaluate_devices(compared, catalog, costs=False)
    rows = catalog.rows("accelerators", compared.text("compared_with"), compared, "compared_with")
    accelerators = catalog.tables["accelerators"]
    stated = {name: accelerators.number(name)[rows] for name in COMPARED}
    links = stated["link_bandwidth"]
    stated["link_bandwidth"] = np.where(np.isnan(links), _links(catalog, rows), links)
    lines = []
    for row in range(len(compared)):
        for name in COMPARED:
            if not np.isnan(stated[name][row]):
                shown = column("devices_results", name)
                values = [values[name][row] / unit_of(shown).factor for values in (results, stated)]
                lines.append((str(compared["device"][row]), str(compared["compared_with"][row]), shown.header, *values))
    words = [np.array([line[place] for line in lines], dtype=object) for place in range(3)]
    numbers = [np.array([line[place] for line in lines], dtype=np.float64) for place in (3, 4)]
    columns = {
        "device": words[0],
        "accelerator": words[1],
        "quantity": words[2],
        "derived": numbers[0],
        "stated": numbers[1],
        "difference": numbers[0] / numbers[1] - 1.0,
    }
    return Table("device_comparison", columns)


def _links(catalog: Catalog, rows: np.ndarray) -> Array:
    """Link bandwidth of the innermost tier of the accelerators' default networks."""
    if not catalog.networks:
        return np.full(len(rows), np.nan)
    networks = catalog.default_networks[rows]
    first = catalog.network_arrays["link_bandwidth"][np.maximum(networks, 0), 0]
    return np.asarray(np.where(networks >= 0, first, np.nan))


def device_faults(catalog: Catalog) -> list[Fault]:
    """Faults of devices, in sheet order: they cannot be built, or differ from their accelerator by over
    :data:`TOLERANCE`.
    """
    devices = catalog.tables["devices"]
    if not len(devices):
        return []
    results = evaluate_devices(devices, catalog, costs=False, strict=False)
    built = ~np.isnan(results["thermal_design_power"])
    faults = [
        Fault(
            devices.place(row, "device"), f"device {devices['device'][row]} cannot be built: {results['reason'][row]}"
        )
        for row in np.flatnonzero(~built).tolist()
    ]
    known = catalog.known_rows("accelerators", devices.text("compared_with")) >= 0
    rows = np.flatnonzero(built & known)
    compared = reverse_check(devices.take(rows), catalog)
    position = {str(devices["device"][row]): row for row in rows.tolist()}
    for line in np.flatnonzero(np.abs(compared["difference"]) > TOLERANCE).tolist():
        words = f"{compared['derived'][line]:.4g}, {compared['accelerator'][line]} has {compared['stated'][line]:.4g}"
        problem = f"{compared['quantity'][line]} of device {compared['device'][line]} is {words}"
        place = devices.place(position[compared["device"][line]], "compared_with")
        faults.append(Fault(place, f"{problem} ({compared['difference'][line]:+.1%})"))
    return faults
