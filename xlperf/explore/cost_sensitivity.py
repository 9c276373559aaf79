"""Which input of a cost decides: each takes its low and its high value while all others keep the base value."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from xlperf.base.errors import Fault, InputError, nearest
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import Column, results_of, table_schema, unit_of
from xlperf.catalog.table import Table
from xlperf.engine.lookup import CASES, uncertain_columns, values_in_case

MAIN_RESULT = {"chiplets": "bill_of_materials", "servers": "cost_rate"}
_NODES = ("node", "base_node")


def cost_sensitivity(table: Table, catalog: Catalog, result: str = "") -> Table:
    """What the low and the high value of each uncertain input makes of one result: the table of a tornado chart.

    Parameters
    ----------
    table : Table
        Chiplet designs or servers.
    catalog : Catalog
        Process nodes and packages that designs name.
    result : str, default ""
        Result of designs or servers; "" for the bill of materials of a design and the hour of a server.

    Returns
    -------
    Table
        ``cost_sensitivity``: per design or server the inputs that have a low or a high value, the one that moves
        the result most first; numbers in the units of their sheets.

    Raises
    ------
    InputError
        When there is no such result, or a row has a fault.
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

    def values(own: Table, with_catalog: Catalog) -> np.ndarray:
        found: np.ndarray = _results(own, with_catalog)[name] / unit_of(shown).factor
        return found

    base = values(table, catalog)
    found: list[list[tuple[float, Column, dict[str, float], dict[str, float]]]] = [[] for _ in range(len(table))]
    for source, place in _sources(table, catalog):
        for column in uncertain_columns(source):
            declared = source.schema.by_name[column]
            changed = {}
            for case in ("low", "high"):
                other = Table(
                    source.kind, {**source.columns, column: values_in_case(source, column, case)}, source.place
                )
                changed[case] = (
                    values(other, catalog) if source is table else values(table, catalog.with_tables([other]))
                )
            for row in range(len(table)):
                at = place(row)
                if at < 0:
                    continue
                inputs = {
                    case: _plain(values_in_case(source, column, case)[at] / unit_of(declared).factor) for case in CASES
                }
                outcome = {
                    "low": float(changed["low"][row]),
                    "base": float(base[row]),
                    "high": float(changed["high"][row]),
                }
                swing = max(outcome.values()) - min(outcome.values())
                if swing > 0.0:
                    found[row].append((swing, declared, inputs, outcome))
    return _table(table, shown, found)


def _results(table: Table, catalog: Catalog) -> Table:
    if table.kind == "servers":
        from xlperf.engine.servers import evaluate_servers

        return evaluate_servers(table)
    from xlperf.engine.designs import evaluate_designs

    return evaluate_designs(table, catalog)


def _sources(table: Table, catalog: Catalog) -> list[tuple[Table, Callable[[int], int]]]:
    """Tables with inputs, and which of their rows a design or server uses; -1 where it uses none."""
    sources: list[tuple[Table, Callable[[int], int]]] = [(table, lambda row: row)]
    if table.kind == "chiplets":
        packages = catalog.rows("packages", table.text("package"), table, "package")
        sources.append((catalog.tables["packages"], lambda row: int(packages[row])))
        nodes = catalog.rows("process_nodes", table.text("node"), table, "node")
        sources.append((catalog.tables["process_nodes"], lambda row: int(nodes[row])))
    return sources


def _plain(value: float) -> float:
    """A number as a sheet shows it, without what a factor of a unit leaves in the last digits."""
    return float(f"{value:.12g}")


def _table(
    table: Table, shown: Column, found: list[list[tuple[float, Column, dict[str, float], dict[str, float]]]]
) -> Table:
    names = table.text(table.schema.key.name)
    rows: list[tuple[object, ...]] = []
    for row, entries in enumerate(found):
        for rank, (swing, declared, inputs, outcome) in enumerate(sorted(entries, key=lambda e: -e[0]), start=1):
            rows.append(
                (
                    str(names[row]), shown.header, float(rank), declared.header, declared.table,
                    *(inputs[case] for case in CASES), *(outcome[case] for case in CASES), swing,
                )
            )  # fmt: skip
    columns = {
        column.name: np.array([entry[place] for entry in rows], dtype=object if column.is_text else np.float64)
        for place, column in enumerate(table_schema("cost_sensitivity").columns)
    }
    return Table("cost_sensitivity", columns)
