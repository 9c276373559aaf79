"""Constants of kernels and collectives on machines with few measurements, pooled towards what all machines share.

Machines of NVIDIA have sweeps of shapes and groups of their own (:mod:`xlperf.calibrate.fit_kernels`). Of the others a
handful of rows may be all there is. They are fitted by line of generations (cdna of cdna3 and cdna4): a generation is
pooled towards its line, a line towards the constants that hold for any machine. ``machine_kernels.csv`` says which
constants that is done for, and how strongly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.units import factor
from xlperf.calibrate.fit_kernels import backward_constants, row_weights
from xlperf.calibrate.fitted_constants import FittedConstant, rounded
from xlperf.calibrate.fitter import Parameter, Problem, Solution, solve
from xlperf.calibrate.kernel_measurements import KernelRows, Row, measurements, predicted_time, take_rows
from xlperf.calibrate.published import package_rows
from xlperf.catalog.calibration import ANY, Calibration, declared_constants, generation_line
from xlperf.catalog.catalog import Catalog

SOURCE = "rows of the sheet kernels in validation.xlsx, pooled"
_COMPANY = "nvidia"
_STEP = 1e-6
_SHARES = ("compute_efficiency", "memory_efficiency", "bandwidth_efficiency")
_STARTS = (1.0, 10.0, 100.0)
_LAUNCH_SHARE = 0.25
_LARGE = 16.0
_OF_LINES = 0.3
"""Pull of a line towards any machine, over that of a generation towards its line. [-]"""
_FEW = 20
"""Rows of a group below which none is held back."""
_BACKWARD_RATIO = 0.87
"""Rate of the backward over that of the forward pass: medians of 188 rows of AITER with 16-bit sums of dq."""
_BACKWARD = ("compute_efficiency", "softmax_flop", "tile_time", "energy_per_flop")


@dataclass(frozen=True)
class _Group:
    """Measurements of a family on the generations of a line, in one precision."""

    family: str
    line: str
    precision: str
    rows: KernelRows

    @property
    def generations(self) -> list[str]:
        """Generations of the line that have rows."""
        return sorted(set(self.rows.generation))


def machine_lines(catalog: Catalog) -> dict[str, str]:
    """Generations of accelerators that are fitted by line, and the line of each.

    Parameters
    ----------
    catalog : Catalog
        Accelerators with their vendors.

    Returns
    -------
    dict of str to str
        Generation to line, casefolded.

    >>> from xlperf.catalog.catalog import load_catalog
    >>> machine_lines(load_catalog())["cdna3"]
    'cdna'
    """
    table = catalog.tables["accelerators"]
    pairs = zip(table.text("generation").tolist(), table.text("vendor").tolist(), strict=True)
    kinds = sorted({str(kind).casefold() for kind, vendor in pairs if str(vendor).casefold() != _COMPANY})
    return {kind: generation_line(kind) for kind in kinds}


def fit_machine_kernels(rows: Sequence[Row], catalog: Catalog, date: str) -> list[FittedConstant]:
    """Fit kernels and collectives of machines by line and generation.

    Parameters
    ----------
    rows : sequence of mapping
        Columns of the sheet ``kernels`` of ``validation.xlsx``.
    catalog : Catalog
        With a calibration whose constants of any machine the lines are pooled towards.
    date : str
        Date that the rows carry.

    Returns
    -------
    list of FittedConstant
        In a fixed order; the same rows give the same constants.
    """
    found: list[FittedConstant] = []
    for group in _groups(rows, catalog):
        parameters, base = _parameters(group, catalog.calibration)
        if not parameters:
            continue
        first = np.array([one.first for one in parameters])
        starting = np.array([one.constant == "launch_time" for one in parameters])
        starts = [np.where(starting, first * share, first) for share in _STARTS]
        solution = solve(_problem(group, parameters, base), parameters, starts)
        found += _sheet_rows(group, parameters, solution, date)
        if group.family == "attention":
            found += _backward(group, _constants(group, parameters, solution, base), date)
    return found + _as_all_reduce(found)


def _groups(rows: Sequence[Row], catalog: Catalog) -> list[_Group]:
    lines = machine_lines(catalog)
    fitted = {(row["family"], row["precision"]) for row in package_rows("machine_kernels.csv")}
    members: dict[tuple[str, str, str], list[int]] = {}
    families = measurements(rows, catalog).families
    for family, own in families.items():
        starts = _starts_across_nodes(own)
        for at, (generation, precision) in enumerate(zip(own.generation, own.precision, strict=True)):
            key = precision if (family, precision) in fitted else ANY
            if generation in lines and (family, key) in fitted and not starts[at]:
                members.setdefault((family, lines[generation], key), []).append(at)
    return [_Group(*key, take_rows(families[key[0]], index, catalog)) for key, index in sorted(members.items())]


def _starts_across_nodes(rows: KernelRows) -> np.ndarray:
    """Collectives between nodes with messages so small that the network's latency is all that they measure."""
    if "message_size" not in rows.arguments:
        return np.full(len(rows), False)
    outside = rows.arguments["group_size"] > rows.machine.network.size[:, 0]
    return np.asarray(outside & (rows.arguments["message_size"] < _LARGE * factor("MiB")))


def _parameters(group: _Group, calibration: Calibration) -> tuple[list[Parameter], dict[str, float]]:
    """Constants of the line, then those of its generations; and what holds for any machine."""
    key = (np.array([part], dtype=object) for part in (ANY, group.precision, ANY))
    shared, _ = calibration.constants(group.family, *key)
    base = {name: float(values[0, 0]) for name, values in shared.items()}
    found: list[Parameter] = []
    for row in package_rows("machine_kernels.csv"):
        if (row["family"], row["precision"]) != (group.family, group.precision):
            continue
        declared = declared_constants()[group.family][row["constant"]]
        if row["base"]:
            base[row["constant"]] = float(row["base"])
            continue
        line = Parameter(
            group.family,
            row["constant"],
            group.line,
            group.precision,
            start=_inside(base[row["constant"]] or 0.1 * (declared.default or declared.high), declared.low, declared.high),
            centre=_inside(base[row["constant"]], declared.low, declared.high),
            low=_LAUNCH_SHARE * base[row["constant"]] if row["constant"] == "launch_time" else math.nan,
            high=1.0 if row["constant"] in _SHARES else math.nan,
            pull=_OF_LINES * float(row["pull"]),
        )
        parent = len(found)
        found.append(line)
        if row["level"] != "line" and group.generations != [group.line]:
            pull = float(row["pull"])
            found += [replace(line, generation=kind, parent=parent, pull=pull) for kind in group.generations]
    return found, base


def _inside(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def _problem(group: _Group, parameters: Sequence[Parameter], base: Mapping[str, float]) -> Problem:
    rows = group.rows
    names = {one.constant for one in parameters}
    generation = np.array(rows.generation, dtype=object)
    users = np.array([[one.generation in (group.line, kind) for kind in rows.generation] for one in parameters])

    def residuals(trials: Array) -> Array:
        return np.array([np.log(_times(rows, generation, parameters, values, base, names) / rows.time) for values in trials])

    weights = np.where(rows.held_back & (len(rows) > _FEW), 0.0, row_weights(rows))
    return Problem(residuals, weights, users, step=_STEP)


def _times(
    rows: KernelRows,
    generation: np.ndarray,
    parameters: Sequence[Parameter],
    values: Array,
    base: Mapping[str, float],
    names: set[str],
) -> Array:
    """Time of every measurement under trial values: those of its generation, else of its line."""
    constants = {name: np.full((len(rows), 1), base[name]) for name in base}
    for one, value in zip(parameters, values.tolist(), strict=True):  # lines stand before their generations
        own = (generation == one.generation) | (one.parent < 0)
        constants[one.constant] = np.where(own[:, None], value, constants[one.constant])
    return np.asarray(predicted_time(rows, constants))[:, 0]


def _constants(
    group: _Group, parameters: Sequence[Parameter], solution: Solution, base: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """All constants of the family by generation, and by line."""
    found = {}
    for kind in dict.fromkeys([group.line, *group.generations]):
        own = dict(base)
        for one, value in zip(parameters, solution.values.tolist(), strict=True):
            if one.generation in (group.line, kind):
                own[one.constant] = value
        found[kind] = own
    return found


def _sheet_rows(
    group: _Group, parameters: Sequence[Parameter], solution: Solution, date: str
) -> list[FittedConstant]:
    rows = group.rows
    found = []
    for one, value, identified in zip(parameters, solution.values.tolist(), solution.identified.tolist(), strict=True):
        own = np.array([one.generation in (group.line, kind) for kind in rows.generation])
        fitted = own & ~(rows.held_back & (len(rows) > _FEW))
        held = own & ~fitted
        error = float(np.median(np.abs(np.expm1(solution.residuals[held if held.any() else own]))))
        if one.parent >= 0 and not identified:
            continue
        sources = " ".join(sorted({source for source, mine in zip(rows.source_id, own, strict=True) if mine}))
        pooled = "the line" if one.parent >= 0 else "what holds for any machine"
        found.append(
            FittedConstant(
                one.family,
                one.generation,
                one.precision,
                ANY,
                one.constant,
                rounded(value / factor(one.declared.unit)),
                f"{sources}: {int(fitted.sum())} of {int(own.sum())} rows",
                int(fitted.sum()) if identified else 0,
                rounded(error),
                date,
                SOURCE,
                kind="measured" if identified else "assumption",
                notes=f"pooled towards {pooled}" if identified else f"unidentifiable parameter; held at {pooled}",
            )
        )
    return found


def _backward(group: _Group, forward: Mapping[str, Mapping[str, float]], date: str) -> list[FittedConstant]:
    """Backward pass of attention, from the forward pass and the measured ratio of their efficiencies."""
    found = []
    for kind, constants in forward.items():
        for name, value in backward_constants(constants, _BACKWARD_RATIO).items():
            if name in _BACKWARD:
                found.append(
                    FittedConstant(
                        "attention_backward",
                        kind,
                        group.precision,
                        ANY,
                        name,
                        rounded(value / factor(declared_constants()["attention_backward"][name].unit)),
                        "",
                        0,
                        math.nan,
                        date,
                        SOURCE,
                        kind="assumption",
                        notes=f"forward pass, efficiency times {_BACKWARD_RATIO} as of AITER on MI300X and MI355X",
                    )
                )
    return found


def _as_all_reduce(found: Sequence[FittedConstant]) -> list[FittedConstant]:
    """Other collectives of lines on which the all-reduce alone was measured."""
    names = ("launch_time", "low_latency_efficiency", "bandwidth_efficiency", "outer_efficiency")
    known = {(one.family, one.generation) for one in found}
    return [
        replace(
            one,
            family=family,
            fit_set="",
            kind="assumption",
            error=math.nan,
            num_rows=0,
            notes="as all_reduce of the machine",
        )
        for family in ("all_gather", "reduce_scatter", "all_to_all")
        for one in found
        if one.family == "all_reduce" and one.constant in names and (family, one.generation) not in known
    ]
