"""Fixed costs of serving engines from published latencies: layer, step and request, per engine and generation.

Times are linear in the three costs, so their coefficients come from predictions with one cost at a time; the costs
with the least sum of absolute relative errors are then a linear program, which outliers do not pull.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from xlperf.arrays import Array
from xlperf.catalog.calibration import ANY, declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.cells import table_from_rows
from xlperf.catalog.table import Table
from xlperf.evaluate import evaluate
from xlperf.explore.measurements import FIRST_TOKEN, TIME_PER_TOKEN, Record, compare
from xlperf.explore.published import Published
from xlperf.explore.published_inference import inference_plans
from xlperf.units import factor

FAMILY = "serving_software"
COSTS = ("layer_overhead_time", "step_overhead_time", "request_overhead_time")
NEVER_FITTED = ("papers",)
"""Groups of published rows that no constant may be fitted on."""

_STEP = 1e-4
_UNIT = "us"
_RATES = ("tokens_per_s", "tokens_per_s_per_gpu")


@dataclass(frozen=True)
class FitRows:
    """Measured times beside what they are made of.

    Attributes
    ----------
    records : tuple of Record
        One published value each, predicted without fixed costs.
    software : np.ndarray
        Engine of each.
    generation : np.ndarray
        Accelerator generation of each.
    times : Array
        Measured time in the unit of the prediction: 1 / rate for rates. [s]
    base : Array
        Predicted time without fixed costs. [s]
    slopes : Array
        Seconds per second of each of :data:`COSTS`, (records, 3). [-]
    """

    records: tuple[Record, ...]
    software: np.ndarray
    generation: np.ndarray
    times: Array
    base: Array
    slopes: Array

    def take(self, rows: np.ndarray) -> FitRows:
        """Some rows."""
        return FitRows(
            tuple(self.records[row] for row in rows.tolist()),
            self.software[rows],
            self.generation[rows],
            self.times[rows],
            self.base[rows],
            self.slopes[rows],
        )


def _with_costs(catalog: Catalog, costs: Sequence[float]) -> Catalog:
    """The catalog with the same three costs for every engine."""
    table = catalog.tables["calibration"]
    header = [column.name for column in table.schema.columns]
    kept = np.flatnonzero(~np.isin(table.text("constant"), COSTS) | (table.text("family") != FAMILY))
    rows: list[list[object]] = [[_cell(table, name, row) for name in header] for row in kept.tolist()]
    for name, cost in zip(COSTS, costs, strict=True):
        added = {"calibration": f"{FAMILY}/{name}", "family": FAMILY, "constant": name, "value": cost, "unit": "s"}
        rows.append([added.get(column) for column in header])
    return catalog.with_tables([table_from_rows("calibration", header, rows)])


def _cell(table: Table, name: str, row: int) -> object:
    if name not in table:
        return None
    value = table[name][row]
    return None if value == "" or value != value else value


def _predictions(published: Published, catalog: Catalog, costs: Sequence[float]) -> tuple[list[Record], Table]:
    plans = inference_plans(published, _with_costs(catalog, costs))
    return compare(plans, evaluate(plans.plans, plans.catalog)), plans.plans


def _time(record: Record, value: float) -> float:
    unit = {"ttft_ms": "ms", "tpot_ms": "ms"}.get(record.metric, "s")
    return 1.0 / value if record.metric in _RATES else value * factor(unit)


def fit_rows(published: Published, catalog: Catalog) -> FitRows:
    """Published rows that fixed costs can be fitted on, beside what their times are made of.

    Parameters
    ----------
    published : Published
        Inference rows; those of :data:`NEVER_FITTED` groups and those without a prediction are left out.
    catalog : Catalog
        With the calibration of the kernels.

    Returns
    -------
    FitRows
        Primary times per token and times to the first token.
    """
    allowed = [row for row, group in enumerate(published.text["group"]) if group.casefold() not in NEVER_FITTED]
    published = published.take(allowed)
    base, plans = _predictions(published, catalog, (0.0, 0.0, 0.0))
    steps = [_predictions(published, catalog, np.eye(len(COSTS))[index] * _STEP)[0] for index in range(len(COSTS))]
    chosen = [
        index
        for index, record in enumerate(base)
        if record.primary and record.covered and record.quantity in (TIME_PER_TOKEN, FIRST_TOKEN)
    ]
    name_of = {name: row for row, name in enumerate(plans.text("name").tolist())}
    rows = np.array([name_of[base[index].row_id] for index in chosen], dtype=np.int64)
    accelerators = catalog.rows("accelerators", plans.text("accelerator"), plans, "accelerator")
    times = np.array([_time(base[index], base[index].measured) for index in chosen])
    predicted = np.array([_time(base[index], base[index].predicted) for index in chosen])
    moved = [[_time(base[index], step[index].predicted) for step in steps] for index in chosen]
    slopes = (np.array(moved).reshape(len(chosen), len(COSTS)) - predicted[:, None]) / _STEP
    return FitRows(
        tuple(base[index] for index in chosen),
        plans.text("software")[rows],
        catalog.tables["accelerators"].text("generation")[accelerators[rows]],
        times,
        predicted,
        slopes,
    )


def _separable(slopes: Array) -> list[int]:
    """Costs that the rows tell apart: an earlier cost explains nothing of what a later one adds."""
    chosen: list[int] = []
    for index in (0, 2, 1):
        column = slopes[:, index]
        if not np.any(column > 0.0):
            continue
        kept = slopes[:, chosen]
        left = column - kept @ np.linalg.lstsq(kept, column, rcond=None)[0] if chosen else column
        if np.linalg.norm(left) > 0.05 * np.linalg.norm(column):
            chosen.append(index)
    return sorted(chosen)


def fixed_costs(rows: FitRows) -> dict[str, float]:
    """Costs with the least sum of absolute relative errors; a cost that the rows cannot tell apart keeps its default.

    Parameters
    ----------
    rows : FitRows
        At least one row.

    Returns
    -------
    dict of str to float
        Fitted costs by name. [s]
    """
    from scipy.optimize import linprog

    declared = declared_constants()[FAMILY]
    relative = rows.slopes / rows.times[:, None]
    fitted = _separable(relative)
    fixed = [index for index in range(len(COSTS)) if index not in fitted]
    defaults = np.array([declared[COSTS[index]].default for index in fixed])
    rest = (rows.times - rows.base) / rows.times - relative[:, fixed] @ defaults
    count = len(rest)
    matrix = relative[:, fitted] * _STEP
    errors = np.eye(count)
    solution = linprog(
        np.concatenate([np.zeros(len(fitted)), np.ones(count)]),
        A_ub=np.block([[matrix, -errors], [-matrix, -errors]]),
        b_ub=np.concatenate([rest, -rest]),
        bounds=[(0.0, declared[COSTS[index]].high / _STEP) for index in fitted] + [(0.0, None)] * count,
        method="highs-ds",
    )
    return {COSTS[index]: float(value) * _STEP for index, value in zip(fitted, solution.x, strict=False)}


def residuals(rows: FitRows, costs: dict[str, float]) -> Array:
    """Absolute relative errors of the times with fixed costs.

    Parameters
    ----------
    rows : FitRows
        Measured times and what they are made of.
    costs : dict of str to float
        Costs by name; those that are missing are the declared defaults. [s]

    Returns
    -------
    Array
        One per row. [-]
    """
    declared = declared_constants()[FAMILY]
    values = np.array([costs.get(name, declared[name].default) for name in COSTS])
    times = rows.base + rows.slopes @ values
    return np.asarray(np.abs(times / rows.times - 1.0))


def _groups(rows: FitRows, least: int) -> Iterator[tuple[str, str, FitRows]]:
    """Engines on a generation that has enough rows, then engines on any."""
    pairs = sorted(set(zip(rows.software.tolist(), rows.generation.tolist(), strict=True)))
    for software in sorted({pair[0] for pair in pairs}):
        of_software = rows.software == software
        for generation in [pair[1] for pair in pairs if pair[0] == software]:
            group = rows.take(np.flatnonzero(of_software & (rows.generation == generation)))
            if _count(group) >= least:
                yield software, generation, group
        yield software, ANY, rows.take(np.flatnonzero(of_software))


def _count(rows: FitRows) -> int:
    return len({record.row_id for record in rows.records})


def _calibration_rows(
    software: str, generation: str, rows: FitRows, costs: dict[str, float], fitted: Sequence[str], why: str
) -> list[dict[str, object]]:
    """One row of the sheet for each cost."""
    error = round(float(np.median(residuals(rows, costs))), 4)
    sources = "; ".join(sorted({record.source_id for record in rows.records}))
    return [
        {
            "calibration": f"{FAMILY}/{generation}/{ANY}/{software}/{name}",
            "family": FAMILY,
            "generation": generation,
            "precision": ANY,
            "software": software,
            "constant": name,
            "value": float(f"{value / factor(_UNIT):.4g}"),
            "unit": _UNIT,
            "fit_set": sources,
            "num_rows": _count(rows),
            "error": error,
            "source": f"published latencies: {sources}",
            "kind": "measured" if name in fitted else "assumption",
            "notes": why if name in fitted else "the rows cannot tell this cost from the others: declared default",
        }
        for name, value in costs.items()
    ]


def fit_serving(
    published: Published, catalog: Catalog, date: str, year: int, least_rows: int = 16
) -> list[dict[str, object]]:
    """Fit the fixed costs of serving engines.

    Engines without rows of their own get the median of the engines.

    Parameters
    ----------
    published : Published
        Inference rows to fit on; rows of :data:`NEVER_FITTED` groups are left out whatever is given.
    catalog : Catalog
        With the calibration of the kernels, which is taken as it is.
    date : str
        Date of the fit.
    year : int
        Year of the date.
    least_rows : int, default 16
        Rows that an engine on one generation needs for constants of its own.

    Returns
    -------
    list of dict
        Rows of the sheet ``calibration`` by column, in a fixed order.
    """
    defaults = {name: declared_constants()[FAMILY][name].default for name in COSTS}
    rows = fit_rows(published, catalog)
    found: list[dict[str, object]] = []
    engines: list[dict[str, float]] = []
    for software, generation, group in _groups(rows, least_rows):
        fitted = fixed_costs(group)
        costs = {**defaults, **fitted}
        if generation == ANY:
            engines.append(costs)
        found += _calibration_rows(
            software, generation, group, costs, tuple(fitted), "least sum of absolute relative errors"
        )
    if engines:
        costs = {name: float(np.median([engine[name] for engine in engines])) for name in COSTS}
        found += _calibration_rows(ANY, ANY, rows, costs, COSTS, "median of the engines")
    return [{**row, "date": date, "year": year} for row in found]
