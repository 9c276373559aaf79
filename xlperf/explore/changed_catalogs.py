"""Catalogs with changed numbers, in rows that plans name and in rows that their accelerators derive from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError, nearest
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import MARK, Table, aliases
from xlperf.engine.devices import FOLLOWING, designs_with_devices
from xlperf.engine.join import POOLS, pool_rows
from xlperf.engine.prices import rows_by_device
from xlperf.explore.vary import CALIBRATION, REACHED, Varied

_OF_ACCELERATORS = ("servers", "chiplets")  # sheets whose rows name the accelerator
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
    """Rows of names or other spellings in a sheet; -1 for unknown names."""
    result = catalog.known_rows(kind, names)
    if kind == "technology" and (result < 0).any():
        spelled = {word.casefold(): row for row, word in aliases(catalog.tables[kind])}
        others = [spelled.get(str(name).strip().casefold(), -1) for name in names.tolist()]
        result = np.where(result < 0, np.array(others, dtype=np.int64), result)
    return result


def reached_rows(catalog: Catalog, accelerators: np.ndarray) -> dict[str, np.ndarray]:
    """Rows of each sheet of :data:`REACHED` that rows of accelerators derive from, ascending."""
    by_name: dict[str, np.ndarray] = {"accelerators": np.unique(accelerators)}
    for sheet in _OF_ACCELERATORS:
        made_for = catalog.known_rows("accelerators", catalog.tables[sheet].text("accelerator"))
        by_name[sheet] = np.flatnonzero(np.isin(made_for, by_name["accelerators"]))
    for sheet in ("accelerators", "chiplets", "devices", "technology"):
        table = _sheet(catalog, sheet)
        for column, target in _NAMED[sheet].items():
            if (sheet, column) == ("chiplets", "device"):  # a stated accelerator does not follow from it
                continue
            names = table.text(column)[by_name.get(sheet, np.zeros(0, dtype=np.int64))]
            if sheet == "accelerators" and column != "device":  # derived ones have the node of their device
                names = names[table.text("device")[by_name[sheet]] == ""]
            rows = _rows_named(catalog, target, names[names != ""]) if (names != "").any() else np.zeros(0, np.int64)
            known = by_name.get(target, np.zeros(0, dtype=np.int64))
            by_name[target] = np.unique(np.concatenate([known, rows[rows >= 0]]))
        if sheet == "accelerators" and len(by_name["devices"]):
            made_as = catalog.known_rows("devices", catalog.tables["chiplets"].text("device"))
            designs = np.flatnonzero(np.isin(made_as, by_name["devices"]))
            by_name["chiplets"] = np.unique(np.concatenate([by_name["chiplets"], designs]))
    return {sheet: by_name[sheet] for sheet in REACHED if len(by_name.get(sheet, ()))}


def copied_rows(
    catalog: Catalog,
    accelerators: Table,
    pairs: Pairs,
    changes: Mapping[tuple[str, str], tuple[Array, bool]],
    blanks: Mapping[str, Sequence[str]],
) -> list[Table]:
    """Duplicate every catalog row that copies of accelerators derive from, with the varied values, under suffixed
    names; returns the sheets with the copies, accelerators included.

    The copies are the last rows of ``accelerators``, ``pairs`` their rows and codes. ``changes``: by sheet and column
    the value or factor of each code, and whether it is a factor. ``blanks``: columns to leave blank by sheet.
    """
    originals, codes = pairs
    copies: dict[str, set[tuple[int, int]]] = {
        "accelerators": set(zip(originals.tolist(), codes.tolist(), strict=True))
    }
    for row in np.unique(originals).tolist():
        mine = codes[originals == row].tolist()
        for sheet, rows in reached_rows(catalog, np.array([row])).items():
            copies.setdefault(sheet, set()).update((each, code) for each in rows.tolist() for code in mine)
    tables = []
    for sheet in copies:
        table, is_new = _sheet(catalog, sheet), sheet != "accelerators"
        if is_new:
            numbers, marks = np.array(sorted(copies[sheet]), dtype=np.int64).T
            columns = dict(table.take(numbers).columns)
        else:  # whose names and numbers have been changed
            table, marks = accelerators.take(slice(len(accelerators) - len(codes))), codes
            columns = dict(accelerators.take(slice(len(table), None)).columns)
        named = {column: target for column, target in _NAMED.get(sheet, {}).items() if column in columns}
        named |= {"accelerator": "accelerators"} if sheet in _OF_ACCELERATORS else {}
        for column, target in named.items():
            if target in copies:
                columns[column] = _marked(catalog, target, columns[column], marks, copies[target])
        columns |= {name: np.full(len(marks), np.nan) for name in blanks.get(sheet, ())}
        for (kind, name), (values, factors) in changes.items():
            if kind == sheet and is_new:
                columns[name] = table.filled(name)[numbers] * values[marks] if factors else values[marks]
        if is_new:
            columns[table.schema.key.name] = _with_codes(columns[table.schema.key.name], marks)
        tables.append(replace(table, columns=_appended(table, columns)))
    return tables


def _appended(table: Table, copies: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Columns of a table with copies below it, blank in its own rows if it lacks the column."""
    before = {name: table[name] if name in table else np.full(len(table), np.nan) for name in copies}
    return {name: np.concatenate([before[name], values]) for name, values in copies.items()}


def _with_codes(names: np.ndarray, codes: np.ndarray) -> np.ndarray:
    pairs = zip(names.tolist(), codes.tolist(), strict=True)
    return np.array([f"{name}{MARK}{code}" for name, code in pairs], dtype=object)


def _sheet(catalog: Catalog, kind: str) -> Table:
    """A sheet; for chiplets with the package and process nodes of their device."""
    table = catalog.tables[kind]
    if kind != "chiplets" or not (table.text("device") != "").any():
        return table
    whole = designs_with_devices(table, catalog)
    return table.with_columns({name: whole.text(name) for name in _BY_DEVICE})


def _marked(
    catalog: Catalog, target: str, names: np.ndarray, codes: np.ndarray, copies: set[tuple[int, int]]
) -> np.ndarray:
    """Row names of a sheet, with the code's suffix if a copy exists for the code."""
    rows, table = _rows_named(catalog, target, names), catalog.tables[target]
    is_copied = [pair in copies for pair in zip(rows.tolist(), codes.tolist(), strict=True)]
    return np.where(is_copied, _with_codes(table.text(table.schema.key.name)[rows], codes), names)


def with_rows_by_device(catalog: Catalog, plans: Table, sheets: set[str]) -> Catalog:
    """The catalog with rows of varied prices and servers for accelerators that derive from a device."""
    wanted = [sheet for sheet in ("prices", "servers") if sheet in sheets]
    if not wanted:
        return catalog
    accelerators = np.concatenate([*_named_accelerators(catalog, plans).values()])
    results = [rows_by_device(catalog, sheet, accelerators[accelerators >= 0]) for sheet in wanted]
    changed = [table for table in results if len(table) > len(catalog.tables[table.kind])]
    return catalog.with_tables(changed, checked=True) if changed else catalog


def blanked_prices(catalog: Catalog, plans: Table, sheets: set[str]) -> dict[str, tuple[str, ...]]:
    """Price columns to leave blank, by sheet, so that varied servers and chiplets determine the cost."""
    accelerators = catalog.rows("accelerators", plans.text("accelerator"), plans, "accelerator")
    designed = sheets & {"chiplets", "packages", "process_nodes"}
    if not designed and "servers" not in sheets:
        return {}
    derived = catalog.tables["accelerators"].text("device")[accelerators] != ""
    if derived.any() and "servers" not in sheets:  # its price follows from its device
        return {}
    for sheet in ("servers", *(["chiplets"] if designed else [])):
        known = catalog.known_rows("accelerators", catalog.tables[sheet].text("accelerator"))
        lacking = np.flatnonzero(~np.isin(accelerators, known) & ~(derived & (sheet == "chiplets")))
        if len(lacking):
            row = int(lacking[0])
            name = catalog.tables["accelerators"].text("accelerator")[accelerators[row]]
            problem = f'"{name}" has no row in the sheet {sheet}, which its cost would follow from'
            raise InputError(Fault(plans.place(row % len(plans), "accelerator"), problem))
    return {"prices": ("rental_price", "capex"), **({"servers": ("accelerator_price",)} if designed else {})}


def changed_catalog(catalog: Catalog, plans: Table, changes: Sequence[tuple[Varied, float | str]]) -> Catalog:
    """The catalog with other values or factors of columns in the rows that plans name."""
    sheets = {varied.sheet for varied, _ in changes}
    catalog = with_rows_by_device(catalog, plans, sheets)
    tables = {
        sheet: (table := catalog.tables[sheet]).with_columns(dict.fromkeys(names, np.full(len(table), np.nan)))
        for sheet, names in blanked_prices(catalog, plans, sheets).items()
    }
    for varied, value in changes:
        table = tables.get(varied.sheet, catalog.tables[varied.sheet])
        rows = sheet_rows(catalog, plans, varied)
        values = np.array(table.text(varied.stored) if varied.is_text else table.number(varied.stored))
        if isinstance(value, str):
            column = table_schema(varied.sheet).by_name[varied.name]
            if column.kind == "reference":  # in the spelling of the row
                known = catalog.tables[column.reference]
                row = catalog.rows(column.reference, np.array([value], dtype=object), plans, varied.column.name)
                value = str(known.text(known.schema.key.name)[row][0])
            values[rows] = value
        else:
            values[rows] = table.filled(varied.stored)[rows] * value if varied.factors else value
        if not varied.is_text and np.isnan(values[rows]).any():
            problem = f"{varied.sheet}.{varied.name.replace('_', ' ')} is blank there: give values, not factors"
            raise InputError(Fault(plans.place(0, "accelerator"), problem))
        tables[varied.sheet] = table.with_columns({varied.stored: values})
    return catalog.with_tables(list(tables.values()), checked=True)


def with_value(plan: Table, catalog: Catalog, varied: Varied, value: float | str) -> tuple[Table, Catalog]:
    """A plan and a catalog with another value of a plan column, or of the sheet rows that the plan names."""
    if varied.sheet != plan.kind:
        return plan, changed_catalog(catalog, plan, [(varied, value)])
    return plan.with_columns({varied.name: multiplied(plan, varied, np.full(len(plan), value))}).in_order(), catalog


def multiplied(plans: Table, varied: Varied, values: Array) -> Array:
    """Values of a column of plans, or the plans' own values times factors; InputError for a factor on a blank cell."""
    if not varied.factors:
        return values
    stated = plans.filled(varied.name)
    blank = np.flatnonzero(np.isnan(stated))
    if len(blank):
        problem = f"{varied.name.replace('_', ' ')} is blank there: give values, not factors"
        raise InputError(Fault(plans.place(int(blank[0]), varied.name), problem))
    return np.asarray(stated * values)


def sheet_rows(catalog: Catalog, plans: Table, varied: Varied) -> np.ndarray:
    """Rows of a sheet that plans name."""
    if varied.sheet == "models":
        return catalog.rows("models", plans.text("model"), plans, "model")
    if varied.sheet == CALIBRATION:
        return _constant_rows(catalog, varied.name)
    machines = catalog.rows("accelerators", plans.text("accelerator"), plans, "accelerator")
    given = plans.text("network")
    stated = given
    for pool in _pools_of(plans):
        of_pool = catalog.rows("accelerators", plans.text(f"{pool}_accelerator"), plans, f"{pool}_accelerator")
        separate = (of_pool >= 0) & _may_be_separate(plans)
        named = plans.text(f"{pool}_network")
        named = np.where(named == "", stated, named)
        machines, given = (np.concatenate([machines, of_pool[separate]]), np.concatenate([given, named[separate]]))
    accelerators = catalog.tables["accelerators"]

    def refused(row: int, problem: str) -> InputError:
        name = accelerators.text("accelerator")[machines[row]]
        return InputError(Fault(plans.place(row % len(plans), "accelerator"), problem.format(f'"{name}"')))

    if varied.sheet in REACHED:
        reached = reached_rows(catalog, machines).get(varied.sheet)
        if reached is None:
            raise refused(0, f"{{}} follows from no row of the sheet {varied.sheet}: name a device in its row")
        return reached
    if varied.sheet == "accelerators":
        is_text, name = accelerators.schema.by_name[varied.name].is_text, varied.name
        blank = accelerators.text(name) == "" if is_text else np.isnan(accelerators.number(name))
        derived = np.flatnonzero(((accelerators.text("device") != "") & blank)[machines])
        if len(derived) and name in FOLLOWING:
            words = "of {} follows from a device: vary devices, technology, cores, memories or links"
            raise refused(int(derived[0]), f"{name.replace('_', ' ')} {words}")
        return np.unique(machines)
    if varied.sheet == "prices":
        rows = catalog.price_rows[machines]
        if (rows < 0).any():
            raise refused(int(np.argmax(rows < 0)), "{} has no row in the sheet prices")
        return np.unique(rows)
    names = np.where(given == "", accelerators.text("default_network")[machines], given)
    return np.concatenate([catalog.network_tiers(str(name)) for name in dict.fromkeys(names.tolist())])


def _constant_rows(catalog: Catalog, name: str) -> np.ndarray:
    """Rows of a constant in all generations and software, or the one row of a full name."""
    table = catalog.tables[CALIBRATION]
    if "/" in name:
        values = np.flatnonzero([name_.casefold() == name for name_ in table.text("calibration").tolist()])
    else:
        family, constant = name.split(".")
        values = np.flatnonzero((table.text("family") == family) & (table.text("constant") == constant))
    if not len(values):
        known = sorted({f"{a}.{b}" for a, b in zip(table["family"].tolist(), table["constant"].tolist(), strict=True)})
        raise InputError(Fault("", f'calibration has no constant "{name}"; {nearest(name, known)}'))
    return values


_MARKED = re.compile(f"{MARK}[0-9]+")


def row_catalog(
    catalog: Catalog, plans: Table, changes: Sequence[tuple[Varied, Array]], owned: bool = False
) -> tuple[Catalog, Table]:
    """One catalog with private rows per plan, so that all variants evaluate in one call, and the plans that name them;
    the results equal an evaluation with :func:`changed_catalog` plan by plan.

    Plans with equal numbers share the copied rows; :func:`unmarked` removes the suffixes from results. ``owned``:
    whether ownership cost needs the purchase rows of accelerators.
    """
    if not changes or not len(plans):
        return catalog, plans
    # Distinct points of changed numbers: the code of a plan names its point
    stated = np.array([values for _, values in changes])
    points, code = np.unique(stated, axis=1, return_inverse=True)
    code = code.reshape(-1)  # numpy 2.0.0 returns a row of them
    changed_catalog(catalog, plans, [(varied, float(points[row, 0])) for row, (varied, _) in enumerate(changes)])
    sheets = {varied.sheet for varied, _ in changes}
    catalog = with_rows_by_device(catalog, plans, sheets)
    blanks = blanked_prices(catalog, plans, sheets)
    tables: dict[str, Table] = {}
    columns = dict(plans.columns)

    def copied(kind: str, rows: np.ndarray, codes: np.ndarray) -> None:
        """Append copies of rows of a sheet, with the numbers of their codes."""
        table = catalog.tables[kind]
        key = table.schema.key.name
        results = dict(table.take(rows).columns)
        for row, (varied, _) in enumerate(changes):
            if varied.sheet == kind:
                given = points[row][codes]
                results[varied.name] = table.filled(varied.name)[rows] * given if varied.factors else given
        results |= {name: np.full(len(rows), np.nan) for name in blanks.get(kind, ())}
        results[key] = _with_codes(results[key], codes)
        tables[kind] = Table(kind, _appended(table, results))

    def pairs(*rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Distinct pairs of a row of a sheet and a code."""
        numbers = [rows_[rows_ >= 0] * np.int64(points.shape[1]) + code[rows_ >= 0] for rows_ in rows]
        return np.divmod(np.unique(np.concatenate(numbers)), points.shape[1])

    if "models" in sheets:
        rows = catalog.rows("models", plans.text("model"), plans, "model")
        copied("models", *pairs(rows))
        columns["model"] = _with_codes(catalog.tables["models"]["model"][rows], code)
    accelerators = catalog.tables["accelerators"]
    named = _named_accelerators(catalog, plans)
    if "networks" in sheets:
        given = plans.text("network")
        # Tiers of each network at each point, and those of pools with a network of their own
        names = np.where(given == "", accelerators.text("default_network")[named["accelerator"]], given)
        index = catalog.network_index(names, plans, "network")
        others = {pool: pool_networks(plans, catalog, index, pool) for pool in _pools_of(plans)}
        numbers, codes = pairs(index, *others.values())
        tiers = [catalog.network_tiers(catalog.networks[number]) for number in numbers.tolist()]
        rows = np.concatenate([np.zeros(0, dtype=np.int64), *tiers])
        copied("networks", rows, np.repeat(codes, [len(results) for results in tiers]))
        known = np.array([*catalog.networks, ""], dtype=object)
        columns["network"] = np.where(index >= 0, _with_codes(known[index], code), "")
        for pool, pool_index in others.items():
            columns[f"{pool}_network"] = np.where(pool_index != index, _with_codes(known[pool_index], code), "")
    if sheets & {"accelerators", "prices", *REACHED}:
        for column, rows in named.items():
            columns[column] = np.where(rows >= 0, _with_codes(accelerators["accelerator"][rows], code), "")
        rows, codes = pairs(*named.values())
        copied("accelerators", rows, codes)
        priced = catalog.price_rows[rows] >= 0
        copied("prices", catalog.price_rows[rows][priced], codes[priced])
        if owned or sheets & set(REACHED):
            deep = {
                (varied.sheet, varied.name): (points[row], varied.factors) for row, (varied, _) in enumerate(changes)
            }
            for table in copied_rows(catalog, tables["accelerators"], (rows, codes), deep, blanks):
                tables[table.kind] = table
    return catalog.with_tables(list(tables.values()), checked=True), replace(plans, columns=columns)


def _named_accelerators(catalog: Catalog, plans: Table) -> dict[str, np.ndarray]:
    """Rows of the accelerators that plans name, by column; -1 for a blank."""
    columns = ("accelerator", *(f"{pool}_accelerator" for pool in _pools_of(plans)))
    return {name: catalog.rows("accelerators", plans.text(name), plans, name) for name in columns}


def _pools_of(plans: Table) -> list[str]:
    """Separate prefill and expert pools for which plans name accelerators."""
    return [pool for pool in POOLS if f"{pool}_accelerator" in plans]


def _may_be_separate(plans: Table) -> np.ndarray:
    """Whether plans have separate pools, or a search may give them some."""
    return np.asarray((plans.filled("mode") == "disaggregated") | plans.auto.get("mode", False))


def pool_networks(plans: Table, catalog: Catalog, networks: np.ndarray, pool: str) -> np.ndarray:
    """Network positions of a pool: the pool's own, else the plan's, else the default of its accelerators."""
    rows = catalog.rows("accelerators", plans.text(f"{pool}_accelerator"), plans, f"{pool}_accelerator")
    default = np.where(rows >= 0, catalog.default_networks[np.maximum(rows, 0)], networks)
    values = np.where(plans.text("network") == "", default, networks)
    pool_index = pool_rows(plans, catalog, values, "network", pool)
    return np.where(_may_be_separate(plans), pool_index, networks)


def unmarked(results: Table) -> Table:
    """Results whose texts name the original rows instead of the copies of :func:`row_catalog`."""
    words = {name: results[name].tolist() for name in ("reason", "trust_reason") if name in results}
    return results.with_columns(
        {
            name: np.array([_MARKED.sub("", text) if MARK in text else text for text in texts], dtype=object)
            for name, texts in words.items()
        }
    )
