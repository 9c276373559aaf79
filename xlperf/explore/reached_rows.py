"""Rows of sheets that plans reach through their accelerators: device, node, core, memory, package, design, server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from xlperf.base.arrays import Array
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import MARK, Table, aliases
from xlperf.engine.devices import designs_with_devices

REACHED = (
    "servers", "chiplets", "devices", "cores", "technology", "memories", "links", "packages", "process_nodes"
)  # fmt: skip
"""Sheets whose numbers can be varied: of the rows that accelerators of plans are made of, designed or bought as."""
_OF_ACCELERATORS = ("servers", "chiplets")
"""Those whose rows name the accelerator."""
_BY_DEVICE = ("package", "node", "base_node")
_NAMED = {
    "chiplets": {"device": "devices", "package": "packages", "node": "process_nodes", "base_node": "process_nodes"},
    "accelerators": {"device": "devices", "technology_node": "technology", "memory_type": "memories"},
    "devices": {"technology": "technology", "base_technology": "technology", "core": "cores", "memory": "memories",
                "link": "links", "die_link": "links", "package": "packages"},
    "cores": {"technology": "technology"},
    "technology": {"process_node": "process_nodes"},
}  # fmt: skip
"""Columns that name rows of other sheets, by sheet."""
Pairs = tuple[np.ndarray, np.ndarray]


def _rows_named(catalog: Catalog, kind: str, names: np.ndarray) -> np.ndarray:
    """Rows of names or other spellings of a sheet; -1 for those it does not have."""
    found = catalog.known_rows(kind, names)
    if kind == "technology" and (found < 0).any():
        spelled = {word.casefold(): row for row, word in aliases(catalog.tables[kind])}
        others = [spelled.get(str(name).strip().casefold(), -1) for name in names.tolist()]
        found = np.where(found < 0, np.array(others, dtype=np.int64), found)
    return found


def reached_rows(catalog: Catalog, accelerators: np.ndarray) -> dict[str, np.ndarray]:
    """Rows of each of :data:`REACHED` that accelerators are made of.

    ``accelerators``: rows of the sheet accelerators. By sheet, in ascending order; none of a sheet that no accelerator
    reaches. The node that a core is stated at is not the accelerator's own.
    """
    found: dict[str, np.ndarray] = {"accelerators": np.unique(accelerators)}
    for sheet in _OF_ACCELERATORS:
        made_for = catalog.known_rows("accelerators", catalog.tables[sheet].text("accelerator"))
        found[sheet] = np.flatnonzero(np.isin(made_for, found["accelerators"]))
    for sheet in ("accelerators", "chiplets", "devices", "technology"):
        for column, target in _NAMED[sheet].items():
            if (sheet, column) == ("chiplets", "device"):  # a stated accelerator does not follow from it
                continue
            table = _sheet(catalog, sheet)
            names = table.text(column)[found.get(sheet, np.zeros(0, dtype=np.int64))]
            if sheet == "accelerators" and column != "device":  # derived ones have the node of their device
                names = names[table.text("device")[found[sheet]] == ""]
            rows = _rows_named(catalog, target, names[names != ""]) if (names != "").any() else np.zeros(0, np.int64)
            known = found.get(target, np.zeros(0, dtype=np.int64))
            found[target] = np.unique(np.concatenate([known, rows[rows >= 0]]))
        if sheet == "accelerators" and len(found["devices"]):
            made_as = catalog.known_rows("devices", catalog.tables["chiplets"].text("device"))
            own = np.flatnonzero(np.isin(made_as, found["devices"]))
            found["chiplets"] = np.unique(np.concatenate([found["chiplets"], own]))
    return {sheet: found[sheet] for sheet in REACHED if len(found.get(sheet, ()))}


def copied_rows(
    catalog: Catalog,
    accelerators: Table,
    pairs: Pairs,
    changes: Mapping[tuple[str, str], tuple[Array, bool]],
    blanks: Mapping[str, Sequence[str]],
) -> list[Table]:
    """Copies under marked names of everything that copies of accelerators are made of, with the numbers of their codes.

    ``accelerators``: with the copies of accelerators as its last rows. ``pairs``: row and code of each copied
    accelerator. ``changes``: by sheet and column: value or factor of each code, and whether it is a factor. ``blanks``:
    by sheet: columns that are left blank, so that what varies counts. Returns the sheets with the copies, the
    accelerators among them.
    """
    own, codes = pairs
    copies: dict[str, set[tuple[int, int]]] = {}
    for row in np.unique(own).tolist():
        mine = codes[own == row].tolist()
        for sheet, rows in reached_rows(catalog, np.array([row])).items():
            copies.setdefault(sheet, set()).update((each, code) for each in rows.tolist() for code in mine)
    tables = []
    for sheet in ("accelerators", *copies):
        table = accelerators if sheet == "accelerators" else _sheet(catalog, sheet)
        if sheet == "accelerators":
            numbers, marks = np.arange(len(table) - len(own), len(table)), codes
        else:
            ordered = sorted(copies[sheet])
            numbers, marks = (np.array([pair[part] for pair in ordered], dtype=np.int64) for part in (0, 1))
        columns = {name: values[numbers] for name, values in table.columns.items()}
        for column, target in _NAMED.get(sheet, {}).items():
            if column in columns and target in copies:
                columns[column] = _marked(catalog, target, columns[column], marks, copies[target])
        if sheet in _OF_ACCELERATORS:
            columns["accelerator"] = _marked_accelerators(catalog, columns["accelerator"], marks, pairs)
        for name in blanks.get(sheet, ()):
            columns[name] = np.full(len(numbers), np.nan)
        for (kind, name), (values, factors) in changes.items():
            if kind == sheet and sheet != "accelerators":
                given = values[marks]
                columns[name] = table.number(name)[numbers] * given if factors else given
        if sheet != "accelerators":
            key = table.schema.key.name
            columns[key] = np.array(
                [f"{name}{MARK}{mark}" for name, mark in zip(columns[key], marks, strict=True)], object
            )
        kept = {name: table[name] if name in table.columns else np.full(len(table), np.nan) for name in columns}
        if sheet == "accelerators":
            kept = {name: values[: len(table) - len(own)] for name, values in kept.items()}
        tables.append(replace(table, columns={name: np.concatenate([kept[name], columns[name]]) for name in columns}))
    return tables


def _sheet(catalog: Catalog, kind: str) -> Table:
    """A sheet; chiplets with the package and nodes of the device that they name."""
    table = catalog.tables[kind]
    if kind != "chiplets" or not (table.text("device") != "").any():
        return table
    whole = designs_with_devices(table, catalog)
    return replace(table, columns={**table.columns, **{name: whole.text(name) for name in _BY_DEVICE}})


def _marked_accelerators(catalog: Catalog, names: np.ndarray, codes: np.ndarray, pairs: Pairs) -> np.ndarray:
    """Names of accelerators, those that were copied for their code under the marked name."""
    known, copies = (
        catalog.tables["accelerators"].text("accelerator"),
        set(zip(*(one.tolist() for one in pairs), strict=True)),
    )
    rows = catalog.known_rows("accelerators", names)
    found = [
        f"{known[row]}{MARK}{code}" if (row, code) in copies else name
        for name, row, code in zip(names.tolist(), rows.tolist(), codes.tolist(), strict=True)
    ]
    return np.array(found, dtype=object)


def _marked(
    catalog: Catalog, target: str, names: np.ndarray, codes: np.ndarray, copies: set[tuple[int, int]]
) -> np.ndarray:
    """Names of rows of a sheet, those that were copied for their code under the marked name."""
    rows, key = _rows_named(catalog, target, names), catalog.tables[target].schema.key.name
    known = catalog.tables[target].text(key)
    found = [
        f"{known[row]}{MARK}{code}" if (row, code) in copies else name
        for name, row, code in zip(names.tolist(), rows.tolist(), codes.tolist(), strict=True)
    ]
    return np.array(found, dtype=object)
