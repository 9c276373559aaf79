"""Rows of the operator table that ``explain`` gives, and which resource bounds each operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from xlperf.base.arrays import Array
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table
from xlperf.equations.hardware.device import Device

Row = dict[str, object]


def operators_table(rows: list[Row]) -> Table:
    """Rows of operators as a table of kind ``operators``.

    Parameters
    ----------
    rows : list of dict
        Column name -> value in the units used inside; missing numbers are NaN.

    Returns
    -------
    Table
        One row per operator.
    """
    columns: dict[str, np.ndarray] = {}
    for column in table_schema("operators").columns:
        if column.is_text:
            columns[column.name] = np.array([str(row.get(column.name, "")) for row in rows], dtype=object)
        else:
            columns[column.name] = np.array([row.get(column.name, np.nan) for row in rows], dtype=np.float64)
    return Table("operators", columns)


def operator_row(
    phase: str, name: str, family: str, calls: float, time: float, exposed: float | None = None, **numbers: float
) -> Row:
    """One operator; total time, exposed time and arithmetic intensity follow from the rest.

    Parameters
    ----------
    phase, name, family : str
        Where it runs, what it is, which calibration times it.
    calls : float
        Times per step or phase. [-]
    time : float
        Time of one call in full. [s]
    exposed : float, optional
        Part of one call that nothing hides; all of it where it is not given. [s]
    **numbers : float
        Other number columns of ``operators``, in the units used inside.

    Returns
    -------
    dict
        A row for :func:`operators_table`.
    """
    row: Row = {"phase": phase, "operator": name, "family": family, "calls": calls, "time": time}
    row.update(numbers)
    row["total_time"] = calls * time
    row["exposed_time"] = calls * (time if exposed is None else exposed)
    traffic = numbers.get("traffic", np.nan)
    row["arithmetic_intensity"] = numbers.get("flop", np.nan) / traffic if traffic > 0 else np.nan
    return row


BOUNDS = ("compute", "memory", "overhead")
_TWICE, _WITHOUT_LIMIT = 2.0, 2.0**40


def _faster(device: Device, units: float, memory: float) -> Device:
    """An accelerator whose units, caches and power limit, and whose main memory, are so many times as fast."""
    return replace(
        device,
        peak_flop_rate=units * device.peak_flop_rate,
        vector_flop_rate=units * device.vector_flop_rate,
        l2_bandwidth=units * device.l2_bandwidth,
        thermal_design_power=units * device.thermal_design_power,
        memory_bandwidth=memory * device.memory_bandwidth,
    )


def operator_bounds(times: Callable[[Callable[[Device], Device]], list[Array]]) -> list[np.ndarray]:
    """What bounds each of some operators.

    Parameters
    ----------
    times : callable
        Arrays of the times of calls, from what each accelerator is replaced by. [s]

    Returns
    -------
    list of array of str
        ``compute``: units, caches and power limit of twice the rate would gain most; ``memory``: main memory of twice
        the bandwidth; ``overhead``: half of the time that neither shortens. Arrays of the same shapes.
    """
    found = [times(lambda device: device)]
    for units, memory in ((_TWICE, 1.0), (1.0, _TWICE), (_WITHOUT_LIMIT, _WITHOUT_LIMIT)):
        found.append(times(lambda device, units=units, memory=memory: _faster(device, units, memory)))  # type: ignore[misc]
    words = np.array(BOUNDS, dtype=object)
    return [
        words[np.argmax([whole - compute, whole - memory, 0.5 * rest], axis=0)]
        for whole, compute, memory, rest in zip(*found, strict=True)
    ]
