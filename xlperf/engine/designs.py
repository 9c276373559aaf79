"""Cost of the chiplet designs of the sheet ``chiplets``, block by block."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from xlperf.base.arrays import Columns
from xlperf.base.errors import Fault, InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import results_of
from xlperf.catalog.table import Table, columns_of
from xlperf.equations.cost.designs import DesignRule, design_cost, design_rules

BLOCK = 16_384
"""Rows that go through the equations together."""

Progress = Callable[[int], None]


def evaluate_designs(
    designs: Table, catalog: Catalog, case: str = "base", placed: bool = False, progress: Progress | None = None
) -> Table:
    """Cost of every chiplet design of a table, by part.

    ``designs``: rows of kind ``chiplets``. ``catalog``: process nodes and packages that they name. ``case``: ``low``,
    ``base`` or ``high``: which of the prices and yields that have a low and a high value. ``placed``: count whole dies
    on a grid instead of the closed formula; slow. ``progress``: called with the number of rows of each block that is
    done. Returns ``chiplets_results``, one row per design, in the units used inside. A design of which no die fits on a
    wafer, or none is good, has NaN and a reason. Raises InputError when a design names a node or package that the
    catalog does not have, lacks what its other cells ask for, or has a die that is larger than the reticle of a node
    without stitching.
    """
    schema = results_of("chiplets")
    designs = designs_with_devices(designs, catalog)
    blocks = []
    for start in range(0, max(len(designs), 1), BLOCK):
        block = designs if len(designs) <= BLOCK else designs.take(slice(start, start + BLOCK))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            blocks.append(_block(block, catalog, case, placed))
        if progress is not None:
            progress(len(block))
    columns = {
        column.name: blocks[0][column.name] if len(blocks) == 1 else np.concatenate([b[column.name] for b in blocks])
        for column in schema.columns
    }
    return Table(schema.name, columns, designs.place)


def designs_with_devices(designs: Table, catalog: Catalog) -> Table:
    """Chiplet designs whose blank cells follow from the device that they name.

    ``designs``: rows of kind ``chiplets``. ``catalog``: devices that they name, and what those are made of.
    """
    named = np.flatnonzero(designs.text("device") != "") if "device" in designs else np.zeros(0, dtype=np.int64)
    if not len(named):
        return designs
    from xlperf.engine.devices import design_of_devices

    rows = catalog.rows("devices", designs.text("device")[named], designs.take(named), "device")
    made = design_of_devices(catalog.tables["devices"].take(rows), catalog, Table("chiplets", {}))
    columns = dict(designs.columns)
    for name, values in made.columns.items():
        if name != "chiplet":
            blank = "" if values.dtype == object else np.nan
            own = columns.get(name, np.full(len(designs), blank, dtype=values.dtype)).copy()
            given = own[named]
            own[named] = np.where(given == "" if own.dtype == object else np.isnan(given), values, given)
            columns[name] = own
    return Table("chiplets", columns, designs.place)


def _block(designs: Table, catalog: Catalog, case: str, placed: bool) -> dict[str, np.ndarray]:
    def named(kind: str, column: str) -> Columns:
        none = np.full(len(designs), -1)
        rows = catalog.rows(kind, designs.text(column), designs, column) if column in designs else none
        return columns_of(catalog.tables[kind], rows, case)

    design, package = columns_of(designs, case=case), named("packages", "package")
    node, base_node = named("process_nodes", "node"), named("process_nodes", "base_node")
    _refuse(designs, design_rules(design, node, base_node, package))
    found = design_cost(design, node, base_node, package, placed)
    reason = np.full(len(designs), "", dtype=object)
    made, passed = ~np.isnan(found["raw_die_cost"]), ~np.isnan(found["good_die_cost"])
    reason[np.isnan(found["unit_cost"])] = "base dies or carrier do not fit on a wafer, or none is good"
    reason[made & ~passed] = "no compute die is good"
    reason[~made] = "no compute die fits on a wafer"
    return {**found, "reason": reason}


def _refuse(designs: Table, rules: Sequence[DesignRule]) -> None:
    """Raise every rule that a design breaks."""
    names = designs.text("package")
    faults = [
        Fault(
            designs.place(row, rule.column),
            rule.sentence.format(package=names[row], **{name: values[row] for name, values in rule.values.items()}),
        )
        for rule in rules
        for row in np.flatnonzero(rule.broken).tolist()
    ]
    if faults:
        raise InputError(faults)
