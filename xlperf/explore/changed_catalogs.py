"""Catalogs with changed numbers: in the rows that plans name, and in those that their accelerators are made of."""

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
from xlperf.engine.server_prices import rows_by_device
from xlperf.explore.vary import CALIBRATION, REACHED, Varied

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
    result = catalog.known_rows(kind, names)
    if kind == "technology" and (result < 0).any():
        spelled = {word.casefold(): row for row, word in aliases(catalog.tables[kind])}
        others = [spelled.get(str(name).strip().casefold(), -1) for name in names.tolist()]
        result = np.where(result < 0, np.array(others, dtype=np.int64), result)
    return result


def reached_rows(catalog: Catalog, accelerators: np.ndarray) -> dict[str, np.ndarray]:
    """Rows of each of :data:`REACHED` that accelerators are made of.

    ``accelerators``: rows of the sheet accelerators. By sheet, in ascending order; none of a sheet that no accelerator
    reaches. The node that a core is stated at is not the accelerator's own.
    """
    by_name: dict[str, np.ndarray] = {"accelerators": np.unique(accelerators)}
    for sheet in _OF_ACCELERATORS:
        made_for = catalog.known_rows("accelerators", catalog.tables[sheet].text("accelerator"))
        by_name[sheet] = np.flatnonzero(np.isin(made_for, by_name["accelerators"]))
    for sheet in ("accelerators", "chiplets", "devices", "technology"):
        for column, target in _NAMED[sheet].items():
            if (sheet, column) == ("chiplets", "device"):  # a stated accelerator does not follow from it
                continue
            table = _sheet(catalog, sheet)
            names = table.text(column)[by_name.get(sheet, np.zeros(0, dtype=np.int64))]
            if sheet == "accelerators" and column != "device":  # derived ones have the node of their device
                names = names[table.text("device")[by_name[sheet]] == ""]
            rows = _rows_named(catalog, target, names[names != ""]) if (names != "").any() else np.zeros(0, np.int64)
            known = by_name.get(target, np.zeros(0, dtype=np.int64))
            by_name[target] = np.unique(np.concatenate([known, rows[rows >= 0]]))
        if sheet == "accelerators" and len(by_name["devices"]):
            made_as = catalog.known_rows("devices", catalog.tables["chiplets"].text("device"))
            own = np.flatnonzero(np.isin(made_as, by_name["devices"]))
            by_name["chiplets"] = np.unique(np.concatenate([by_name["chiplets"], own]))
    return {sheet: by_name[sheet] for sheet in REACHED if len(by_name.get(sheet, ()))}


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
                columns[name] = table.filled(name)[numbers] * given if factors else given
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
    results = [
        f"{known[row]}{MARK}{code}" if (row, code) in copies else name
        for name, row, code in zip(names.tolist(), rows.tolist(), codes.tolist(), strict=True)
    ]
    return np.array(results, dtype=object)


def _marked(
    catalog: Catalog, target: str, names: np.ndarray, codes: np.ndarray, copies: set[tuple[int, int]]
) -> np.ndarray:
    """Names of rows of a sheet, those that were copied for their code under the marked name."""
    rows, key = _rows_named(catalog, target, names), catalog.tables[target].schema.key.name
    known = catalog.tables[target].text(key)
    results = [
        f"{known[row]}{MARK}{code}" if (row, code) in copies else name
        for name, row, code in zip(names.tolist(), rows.tolist(), codes.tolist(), strict=True)
    ]
    return np.array(results, dtype=object)


def with_rows_by_device(catalog: Catalog, plans: Table, sheets: set[str]) -> Catalog:
    """The catalog with rows of prices and servers for accelerators of plans that follow from a device and have none.

    Such a row leaves blank what the device says, so that a number of it can be varied.

    ``sheets``: what varies: rows are made for prices and servers among them.
    """
    wanted = [sheet for sheet in ("prices", "servers") if sheet in sheets]
    if not wanted:
        return catalog
    columns = ("accelerator", *(f"{pool}_accelerator" for pool in _pools_of(plans)))
    own = np.concatenate([catalog.rows("accelerators", plans.text(name), plans, name) for name in columns])
    results = [rows_by_device(catalog, sheet, own[own >= 0]) for sheet in wanted]
    changed = [table for table in results if len(table) > len(catalog.tables[table.kind])]
    return catalog.with_tables(changed, checked=True) if changed else catalog


def blanked_prices(catalog: Catalog, plans: Table, sheets: set[str]) -> dict[str, tuple[str, ...]]:
    """Prices that are left blank so that servers or chiplets that vary count: by sheet, columns.

    The hour of an accelerator follows from its server if the sheet prices has no price, and its price there from
    its chiplets if the server's row has none.

    ``sheets``: what varies. Raises InputError where an accelerator has no row of servers, or of chiplets where they
    vary, which its cost would follow from.
    """
    own = catalog.rows("accelerators", plans.text("accelerator"), plans, "accelerator")
    designed = sheets & {"chiplets", "packages", "process_nodes"}
    if not designed and "servers" not in sheets:
        return {}
    derived = catalog.tables["accelerators"].text("device")[own] != ""
    if derived.any() and "servers" not in sheets:  # its price follows from its device
        return {}
    for sheet in ("servers", *(["chiplets"] if designed else [])):
        known = catalog.known_rows("accelerators", catalog.tables[sheet].text("accelerator"))
        lacking = np.flatnonzero(~np.isin(own, known) & ~(derived & (sheet == "chiplets")))
        if len(lacking):
            row = int(lacking[0])
            name = catalog.tables["accelerators"].text("accelerator")[own[row]]
            problem = f'"{name}" has no row in the sheet {sheet}, which its cost would follow from'
            raise InputError(Fault(plans.place(row % len(plans), "accelerator"), problem))
    return {"prices": ("rental_price", "capex"), **({"servers": ("accelerator_price",)} if designed else {})}


def changed_catalog(catalog: Catalog, plans: Table, changes: Sequence[tuple[Varied, float | str]]) -> Catalog:
    """The catalog with other values in the rows that plans name.

    ``plans``: whose accelerators, networks, models and prices are meant. ``changes``: column, and its value or factor.
    Raises InputError where a row has nothing to multiply, an accelerator follows from a device, or a plan names nothing
    there.
    """
    tables: dict[str, Table] = {}
    sheets = {varied.sheet for varied, _ in changes}
    catalog = with_rows_by_device(catalog, plans, sheets)
    for sheet, names in blanked_prices(catalog, plans, sheets).items():
        blank = {name: np.full(len(catalog.tables[sheet]), np.nan) for name in names}
        tables[sheet] = replace(catalog.tables[sheet], columns={**catalog.tables[sheet].columns, **blank})
    for varied, value in changes:
        table = tables.get(varied.sheet, catalog.tables[varied.sheet])
        rows = sheet_rows(catalog, plans, varied)
        values = np.array(table.text(varied.stored) if varied.is_text else table.number(varied.stored))
        if isinstance(value, str):
            values[rows] = _known_name(catalog, plans, varied, value)
        else:
            values[rows] = table.filled(varied.stored)[rows] * value if varied.factors else value
        if not varied.is_text and np.isnan(values[rows]).any():
            problem = f"{varied.sheet}.{varied.name.replace('_', ' ')} is blank there: give values, not factors"
            raise InputError(Fault(plans.place(0, "accelerator"), problem))
        tables[varied.sheet] = replace(table, columns={**table.columns, varied.stored: values})
    return catalog.with_tables(list(tables.values()), checked=True)


def _known_name(catalog: Catalog, plans: Table, varied: Varied, word: str) -> str:
    """A word of a column; where it names a row of another sheet its name there."""
    column = table_schema(varied.sheet).by_name[varied.name]
    if column.kind != "reference":
        return word
    row = int(catalog.rows(column.reference, np.array([word], dtype=object), plans, varied.column.name)[0])
    table = catalog.tables[column.reference]
    return str(table.text(table.schema.key.name)[row])


def with_value(plan: Table, catalog: Catalog, varied: Varied, value: float | str) -> tuple[Table, Catalog]:
    """A plan and a catalog with another value of a column of the plan, or of the rows of a sheet that it names."""
    if varied.sheet != plan.kind:
        return plan, changed_catalog(catalog, plan, [(varied, value)])
    columns = {**plan.columns, varied.name: multiplied(plan, varied, np.full(len(plan), value))}
    order = [column.name for column in plan.schema.columns if column.name in columns]
    auto = {name: mask for name, mask in plan.auto.items() if name != varied.name}
    return replace(plan, columns={name: columns[name] for name in order}, auto=auto), catalog


def multiplied(plans: Table, varied: Varied, values: Array) -> Array:
    """Values of a column of plans, or what the plans have times factors.

    Raises InputError where there is nothing to multiply.
    """
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
    own = catalog.rows("accelerators", plans.text("accelerator"), plans, "accelerator")
    given = plans.text("network")
    stated = given
    for pool in _pools_of(plans):
        other = catalog.rows("accelerators", plans.text(f"{pool}_accelerator"), plans, f"{pool}_accelerator")
        separate = (other >= 0) & _may_be_separate(plans)
        named = plans.text(f"{pool}_network")
        named = np.where(named == "", stated, named)
        own, given = np.concatenate([own, other[separate]]), np.concatenate([given, named[separate]])
    accelerators = catalog.tables["accelerators"]
    if varied.sheet in REACHED:
        rows = reached_rows(catalog, own).get(varied.sheet)
        if rows is None:
            name = accelerators.text("accelerator")[own[0]]
            problem = f'"{name}" follows from no row of the sheet {varied.sheet}: name a device in its row'
            raise InputError(Fault(plans.place(0, "accelerator"), problem))
        return rows
    if varied.sheet == "accelerators":
        derived = np.flatnonzero((accelerators.text("device")[own] != "") & _is_blank(accelerators, varied.name)[own])
        if len(derived) and varied.name in FOLLOWING:
            row = int(derived[0])
            name = accelerators.text("accelerator")[own[row]]
            words = varied.name.replace("_", " ")
            problem = f'{words} of "{name}" follows from a device: vary devices, technology, cores, memories or links'
            raise InputError(Fault(plans.place(row % len(plans), "accelerator"), problem))
        return np.unique(own)
    if varied.sheet == "prices":
        rows = catalog.price_rows[own]
        lacking = np.flatnonzero(rows < 0)
        if len(lacking):
            row = int(lacking[0])
            problem = f'"{accelerators.text("accelerator")[own[row]]}" has no row in the sheet prices'
            raise InputError(Fault(plans.place(row % len(plans), "accelerator"), problem))
        return np.unique(rows)
    names = np.where(given == "", accelerators.text("default_network")[own], given)
    tiers = [catalog.network_tiers(str(name)) for name in dict.fromkeys(names.tolist())]
    return np.concatenate(tiers)


def _is_blank(table: Table, name: str) -> np.ndarray:
    """Whether each row of a table leaves a column blank."""
    return np.asarray(table.text(name) == "" if table.schema.by_name[name].is_text else np.isnan(table.number(name)))


def _constant_rows(catalog: Catalog, name: str) -> np.ndarray:
    """Rows of a constant of a family, whatever its generation and software, or the one row of a name."""
    table = catalog.tables[CALIBRATION]
    if "/" in name:
        values = np.flatnonzero([one.casefold() == name for one in table.text("calibration").tolist()])
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
    """A catalog with rows of its own for each plan, which have that plan's numbers; and the plans that name them.

    One table of plans is then evaluated whole, whatever number of catalogs it stands for: the rows that a plan names
    are copied under marked names, once for all plans with the same numbers. :func:`unmarked` removes the marks.

    ``plans``: whose accelerators, networks, models and prices are meant. ``changes``: column, and its value or factor
    for each plan, (rows,). ``owned``: whether owners are asked for too, who need the rows that accelerators are bought
    as. Returns the results of the plans are those of :func:`changed_catalog` for each of them.
    Raises InputError as :func:`changed_catalog`.
    """
    if not changes or not len(plans):
        return catalog, plans
    stated = np.array([values for _, values in changes])
    points, code = np.unique(stated, axis=1, return_inverse=True)
    code = code.reshape(-1)  # numpy 2.0.0 returns a row of them
    changed_catalog(catalog, plans, [(one, float(points[row, 0])) for row, (one, _) in enumerate(changes)])
    sheets = {one.sheet for one, _ in changes}
    catalog = with_rows_by_device(catalog, plans, sheets)
    blanks = blanked_prices(catalog, plans, sheets)
    tables: dict[str, Table] = {}
    columns = dict(plans.columns)

    def marked(names: np.ndarray, codes: np.ndarray) -> np.ndarray:
        results = [f"{name}{MARK}{one}" for name, one in zip(names.tolist(), codes.tolist(), strict=True)]
        return np.array(results, dtype=object)

    def copied(kind: str, rows: np.ndarray, codes: np.ndarray) -> None:
        """Append copies of rows of a sheet, with the numbers of their codes."""
        table = catalog.tables[kind]
        key = table.schema.key.name
        results = {name: values[rows] for name, values in table.columns.items()}
        for row, (one, _) in enumerate(changes):
            if one.sheet == kind:
                given = points[row][codes]
                results[one.name] = table.filled(one.name)[rows] * given if one.factors else given
        results |= {name: np.full(len(rows), np.nan) for name in blanks.get(kind, ())}
        results[key] = marked(results[key], codes)
        before = {name: table[name] if name in table else np.full(len(table), np.nan) for name in results}
        tables[kind] = Table(kind, {name: np.concatenate([before[name], results[name]]) for name in results})

    def pairs(*rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Distinct pairs of a row of a sheet and a code."""
        numbers = [one[one >= 0] * np.int64(points.shape[1]) + code[one >= 0] for one in rows]
        return np.divmod(np.unique(np.concatenate(numbers)), points.shape[1])

    if "models" in sheets:
        rows = catalog.rows("models", plans.text("model"), plans, "model")
        copied("models", *pairs(rows))
        columns["model"] = marked(catalog.tables["models"]["model"][rows], code)
    accelerators = catalog.tables["accelerators"]
    own = catalog.rows("accelerators", plans.text("accelerator"), plans, "accelerator")
    if "networks" in sheets:
        given = plans.text("network")
        names = np.where(given == "", accelerators.text("default_network")[own], given)
        index = catalog.network_index(names, plans, "network")
        others = {pool: pool_networks(plans, catalog, index, pool) for pool in _pools_of(plans)}
        numbers, codes = pairs(index, *others.values())
        tiers = [catalog.network_tiers(catalog.networks[number]) for number in numbers.tolist()]
        rows = np.concatenate([np.zeros(0, dtype=np.int64), *tiers])
        copied("networks", rows, np.repeat(codes, [len(results) for results in tiers]))
        known = np.array([*catalog.networks, ""], dtype=object)
        columns["network"] = np.where(index >= 0, marked(known[index], code), "")
        for pool, other in others.items():
            columns[f"{pool}_network"] = np.where(other != index, marked(known[other], code), "")
    if sheets & {"accelerators", "prices", *REACHED}:
        names, results = accelerators["accelerator"], [own]
        columns["accelerator"] = marked(names[own], code)
        for column in (f"{pool}_accelerator" for pool in _pools_of(plans)):
            results.append(catalog.rows("accelerators", plans.text(column), plans, column))
            columns[column] = np.where(results[-1] >= 0, marked(names[results[-1]], code), "")
        rows, codes = pairs(*results)
        copied("accelerators", rows, codes)
        priced = catalog.price_rows[rows] >= 0
        copied("prices", catalog.price_rows[rows][priced], codes[priced])
        if owned or sheets & set(REACHED):
            deep = {(one.sheet, one.name): (points[row], one.factors) for row, (one, _) in enumerate(changes)}
            for table in copied_rows(catalog, tables["accelerators"], (rows, codes), deep, blanks):
                tables[table.kind] = table
    return catalog.with_tables(list(tables.values()), checked=True), replace(plans, columns=columns)


def _pools_of(plans: Table) -> list[str]:
    """Pools beside the one that decodes which plans name accelerators of."""
    return [pool for pool in POOLS if f"{pool}_accelerator" in plans]


def _may_be_separate(plans: Table) -> np.ndarray:
    """Whether plans have pools of their own, or may be given them by a search."""
    return np.asarray((plans.filled("mode") == "disaggregated") | plans.auto.get("mode", False))


def pool_networks(plans: Table, catalog: Catalog, networks: np.ndarray, pool: str) -> np.ndarray:
    """Positions of the networks of pools: as given, else of the plan, else of their accelerators."""
    rows = catalog.rows("accelerators", plans.text(f"{pool}_accelerator"), plans, f"{pool}_accelerator")
    default = np.where(rows >= 0, catalog.default_networks[np.maximum(rows, 0)], networks)
    values = np.where(plans.text("network") == "", default, networks)
    own = pool_rows(plans, catalog, values, "network", pool)
    return np.where(_may_be_separate(plans), own, networks)


def unmarked(results: Table) -> Table:
    """Results whose words name the rows of the sheets, not the copies of :func:`row_catalog`."""
    words = {
        name: np.array(
            [_MARKED.sub("", text) if MARK in text else text for text in results[name].tolist()], dtype=object
        )
        for name in ("reason", "trust_reason")
        if name in results
    }
    return replace(results, columns={**results.columns, **words})
