"""Validation of devices: derived rates and capacities against those that the accelerator states."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.errors import Fault
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import column, unit_of
from xlperf.catalog.table import Table
from xlperf.engine.devices import evaluate_devices
from xlperf.equations.hardware.derived_device import PEAKS

TOLERANCE = 0.20
"""Largest relative difference that is let pass: budgets say no more than this."""
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
    """Compare devices with the accelerators that their rows name.

    ``devices``: rows of kind ``devices``; those that name no accelerator are left out. Returns kind
    ``device_comparison``: a row for each quantity that the accelerator states, in the units shown; links are those of
    the innermost tier of its default network unless its row has its own. The difference is NaN where the device cannot
    be built. Raises InputError when a device names what the catalog does not have.
    """
    named = np.flatnonzero(devices.text("compared_with") != "")
    own = devices.take(named)
    results = evaluate_devices(own, catalog, costs=False)
    rows = catalog.rows("accelerators", own.text("compared_with"), own, "compared_with")
    accelerators = catalog.tables["accelerators"]
    stated = {name: accelerators.number(name)[rows] for name in COMPARED}
    stated["link_bandwidth"] = np.where(
        np.isnan(stated["link_bandwidth"]), _links(catalog, rows), stated["link_bandwidth"]
    )
    lines = []
    for row in range(len(own)):
        for name in COMPARED:
            if not np.isnan(stated[name][row]):
                shown = column("devices_results", name)
                values = [values[name][row] / unit_of(shown).factor for values in (results, stated)]
                lines.append((str(own["device"][row]), str(own["compared_with"][row]), shown.header, *values))
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
    """Link bandwidth of the innermost tier of the default networks of accelerators."""
    if not catalog.networks:
        return np.full(len(rows), np.nan)
    networks = catalog.default_networks[rows]
    first = catalog.network_arrays["link_bandwidth"][np.maximum(networks, 0), 0]
    return np.asarray(np.where(networks >= 0, first, np.nan))


def device_faults(catalog: Catalog, tolerance: float = TOLERANCE) -> list[Fault]:
    """Devices that cannot be built, and those that are far from the accelerator that they are compared with.

    ``catalog``: whose devices are looked at. ``tolerance``: largest relative difference that is let pass. In the order
    of the sheet.
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
    for line in np.flatnonzero(np.abs(compared["difference"]) > tolerance).tolist():
        words = f"{compared['derived'][line]:.4g}, {compared['accelerator'][line]} has {compared['stated'][line]:.4g}"
        problem = f"{compared['quantity'][line]} of device {compared['device'][line]} is {words}"
        place = devices.place(position[compared["device"][line]], "compared_with")
        faults.append(Fault(place, f"{problem} ({compared['difference'][line]:+.1%})"))
    return faults
