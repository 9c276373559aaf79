"""Devices of a study: rows of the sheet devices with some columns varied, as accelerators of a catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from xlperf.base.errors import Fault, InputError, nearest
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine.devices import accelerators_of
from xlperf.studies.source import with_rows


def device_row(catalog: Catalog, name: str, place: str) -> int:
    """Position of a device by its name.

    Raises
    ------
    InputError
        When the sheet devices has none of that name.
    """
    names = [str(value) for value in catalog.tables["devices"].text("device")]
    for row, known in enumerate(names):
        if known.casefold() == name.casefold():
            return row
    raise InputError(Fault(place, f'no device is named "{name}"; {nearest(name, names)}'))


def with_devices(
    catalog: Catalog,
    base: int,
    names: Sequence[str],
    changes: Mapping[str, np.ndarray],
    generation: str,
    networks: Sequence[str] | np.ndarray,
) -> Catalog:
    """A catalog with a device and an accelerator for each variant of one row of the sheet devices.

    Parameters
    ----------
    catalog : Catalog
    base : int
        Row of the device that is varied.
    names : sequence of str
        Names of the variants, of devices and accelerators alike.
    changes : mapping of str to array
        Columns of the sheet devices in the units used inside, one value per variant.
    generation : str
        Generation whose calibration the accelerators take.
    networks : sequence of str
        Default network of each accelerator.

    Returns
    -------
    Catalog
    """
    count = len(names)
    table = catalog.tables["devices"].take(np.full(count, base))
    columns = {name: values.copy() for name, values in table.columns.items()}
    columns["device"] = np.array(list(names), dtype=object)
    columns.update(changes)
    rows = [[name, generation, network, name] for name, network in zip(names, networks, strict=True)]
    accelerators = table_from_rows("accelerators", ["accelerator", "generation", "default_network", "device"], rows)
    return with_rows(catalog, [Table("devices", columns), accelerators])


def derived(catalog: Catalog, names: Sequence[str]) -> Table:
    """Rows of the accelerators with the numbers that follow from their devices, in the order of the names."""
    table = accelerators_of(catalog).table
    position = {str(name): row for row, name in enumerate(table.text("accelerator"))}
    return table.take([position[name] for name in names])


def for_each(plans: Table, names: Sequence[str]) -> Table:
    """Every plan on every accelerator, accelerators of a plan side by side.

    Parameters
    ----------
    plans : Table
    names : sequence of str
        Accelerators.
    """
    columns = dict(plans.take(np.repeat(np.arange(len(plans)), len(names))).columns)
    columns["accelerator"] = np.array(list(names) * len(plans), dtype=object)
    named = [f"{plan}: {name}" for plan in plans.text("name") for name in names]
    columns["name"] = np.array(named, dtype=object)
    return Table(plans.kind, columns)
