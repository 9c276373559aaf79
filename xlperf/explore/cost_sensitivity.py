"""Which input of a cost decides: each takes its low and its high value while all others keep the base value."""

from __future__ import annotations

import numpy as np

from xlperf.base.errors import Fault, InputError, nearest
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import Column, results_of, table_schema, unit_of
from xlperf.catalog.table import CASES, Table, uncertain_columns, values_in_case
from xlperf.engine.designs import designs_with_devices

MAIN_RESULT = {"chiplets": "bill_of_materials", "servers": "cost_rate"}


def cost_sensitivity(table: Table, catalog: Catalog, result: str = "") -> Table:
    """What the low and the high value of each uncertain input makes of one result: the table of a tornado chart.

    ``table``: chiplet designs or servers. ``catalog``: process nodes and packages that designs name. ``result``: result
    of designs or servers; "" for the bill of materials of a design and the hour of a server. Returns
    ``cost_sensitivity``: per design or server the inputs that have a low or a high value, the one that moves the result
    most first; numbers in the units of their sheets. Raises InputError when there is no such result, or a row has a
    fault.
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
        for column in uncertain_columns(source):
            header, unit = source.schema.by_name[column].header, unit_of(source.schema.by_name[column]).factor
            inputs = {case: values_in_case(source, column, case) for case in CASES}
            results = {"base": base}
            for case in ("low", "high"):
                other = Table(source.kind, {**source.columns, column: inputs[case]}, source.place)
                own = (other, catalog) if source is table else (table, catalog.with_tables([other]))
                results[case] = _result(*own, shown)
            for row in np.flatnonzero(used >= 0).tolist():
                outcome = {case: float(results[case][row]) for case in CASES}
                swing = max(outcome.values()) - min(outcome.values())
                if swing > 0.0:
                    swings.append((row, -swing))
                    line = {"input": header, "sheet": source.kind, "swing": swing}
                    line |= {f"value_{case}": _plain(inputs[case][used[row]] / unit) for case in CASES}
                    lines.append(line | {f"result_{case}": outcome[case] for case in CASES})
    names = table.text(table.schema.key.name)
    order = sorted(range(len(lines)), key=swings.__getitem__)
    last, rank = -1, 0
    for place in order:
        row = swings[place][0]
        last, rank = row, rank + 1 if row == last else 1
        lines[place] |= {"subject": str(names[row]), "result": shown.header, "rank": float(rank)}
    columns = {
        column.name: np.array(
            [lines[place][column.name] for place in order], dtype=object if column.is_text else np.float64
        )
        for column in table_schema("cost_sensitivity").columns
    }
    return Table("cost_sensitivity", columns)


def _result(table: Table, catalog: Catalog, shown: Column) -> np.ndarray:
    """One result of designs or servers, in the unit in which it is shown."""
    if table.kind == "servers":
        from xlperf.engine.ownership import evaluate_servers

        found = evaluate_servers(table, catalog=catalog)
    else:
        from xlperf.engine.designs import evaluate_designs

        found = evaluate_designs(table, catalog)
    return np.asarray(found[shown.name] / unit_of(shown).factor)


def _sources(table: Table, catalog: Catalog) -> list[tuple[Table, np.ndarray]]:
    """Tables with inputs, and the row of them that each design or server uses; -1 where it uses none."""
    sources = [(table, np.arange(len(table)))]
    for kind, column in (("packages", "package"), ("process_nodes", "node")) if table.kind == "chiplets" else ():
        sources.append((catalog.tables[kind], catalog.rows(kind, table.text(column), table, column)))
    return sources


def _plain(value: float) -> float:
    """A number as a sheet shows it, without what a factor of a unit leaves in the last digits."""
    return float(f"{value:.12g}")
