"""The catalog: what exists, with look-ups by name that are fast for one row and for a million."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import repeat
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from xlperf.base.errors import Fault, Hint, InputError, nearest
from xlperf.catalog.calibration import Calibration, calibration_rows
from xlperf.catalog.cells import shown
from xlperf.catalog.schema import CATALOG_TABLES, EVERY_TABLE, OPTIONAL_TABLES, table_schema
from xlperf.catalog.table import Spellings, Table, aliases

if TYPE_CHECKING:
    import hashlib


_BLANK, _UNKNOWN = -1, -2
_MOST_LISTED = 8
_WHOLE = ("calibration", "my_cluster")
"""Sheets that stand for themselves in any file: their rows belong together."""
_DESIGNS = "chiplets"
"""The sheet whose rows are all costed together: those that name what another sheet no longer has are left out."""


class Catalog:
    """Accelerators, networks, models, prices and calibration; never changed once it is made.

    Use :func:`load_catalog` or :meth:`from_tables`.

    Attributes
    ----------
    tables : mapping of str to Table
        By kind: accelerators, networks, models, prices, calibration; process_nodes, packages, chiplets and servers,
        technology, memories, links, cores and devices, which have no rows where the source lacks them.
    origin : str
        Name of the file shown to users.
    calibration : Calibration
        Constants by family, generation, precision and software.
    networks : tuple of str
        Names of the networks, in the order of their first rows.
    case : str
        ``low``, ``base`` or ``high``: of prices and of the bands of answers.
    """

    case = "base"

    def __init__(self, tables: Mapping[str, Table], origin: str, strict: Iterable[str] = EVERY_TABLE) -> None:
        absent = {kind: _empty(kind) for kind in OPTIONAL_TABLES if kind not in tables}
        given = {**tables, **absent}
        self.origin = origin
        self._indexes = {kind: _index(given[kind]) for kind in EVERY_TABLE}
        strict = tuple(strict)
        if _DESIGNS not in strict:
            given[_DESIGNS] = _of_what_is_known(given, self._indexes)
            self._indexes[_DESIGNS] = _index(given[_DESIGNS])
        faults = catalog_faults(given, self._indexes, strict)
        if faults:
            raise InputError(faults)
        self.tables: Mapping[str, Table] = MappingProxyType(_with_exact_references(given, self._indexes))
        self._spellings: dict[str, Spellings] = {}
        self._taken: dict[str, dict[str, str]] = {}
        self.calibration = Calibration(self.tables["calibration"])
        names: dict[str, str] = {}
        for name in self.tables["networks"].text("network").tolist():
            names.setdefault(name.casefold(), name)
        self.networks = tuple(names.values())
        self._network_index: dict[str, int] = {"": _BLANK}
        self._network_index.update({name: index for index, name in enumerate(names)})

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled as its tables, which were checked before."""
        return Catalog, (dict(self.tables), self.origin, ()), {"case": self.case}

    @classmethod
    def from_tables(cls, tables: Sequence[Table], origin: str) -> Catalog:
        """Make a catalog of one table of each kind; a kind that is not given has no rows.

        Raises InputError when rows refer to names that no table has, or calibration rows are unknown.
        """
        return cls({**{kind: _empty(kind) for kind in CATALOG_TABLES}, **{t.kind: t for t in tables}}, origin)

    def with_tables(self, tables: Sequence[Table], checked: bool = False) -> Catalog:
        """Replace the tables of the same kind; rows of the others that refer to names now gone are not used.

        ``checked``: the tables are those of a catalog with changed numbers, whose names were checked before. Raises
        InputError when the given rows refer to names that neither they nor the other tables have.
        """
        given = {table.kind: table.in_case(self.case) for table in tables}
        found = Catalog({**self.tables, **given}, self.origin, strict=() if checked else tuple(given))
        found.case = self.case
        return found

    def in_case(self, case: str) -> Catalog:
        """The catalog with the values of a case, ``low`` or ``high``, where its sheets give some; ``base``: itself."""
        if case == self.case:
            return self
        found = Catalog({kind: table.in_case(case) for kind, table in self.tables.items()}, self.origin, strict=())
        found.case = case
        return found

    @cached_property
    def fingerprint(self) -> str:
        """Short hash of the content: names, values in the units used inside, and text.

        The same for a file and for the same rows sent by a spreadsheet host, in whatever order and with whatever
        spelling of headers, flags and choices.
        """
        import hashlib

        digest = hashlib.sha256() if self.case == "base" else hashlib.sha256(self.case.encode())
        for kind in EVERY_TABLE:
            if kind in CATALOG_TABLES or len(self.tables[kind]):
                hash_table(digest, self.tables[kind])
        return digest.hexdigest()[:16]

    def rows(self, kind: str, names: np.ndarray, plans: Table, column: str) -> np.ndarray:
        """Rows of names in a table, without regard to case, by alias or however they are spelled.

        ``kind``: table to look in; in ``networks`` a name means the row of its first tier. ``names``: what to look for,
        one entry per plan. ``plans``: whose names they are, for the messages. ``column``: column of the plans that
        holds them. Returns row indexes; -1 where a name is blank. Raises InputError for every name that is not known,
        with the nearest that are, or that may mean several.
        """
        return self._find(self._indexes[kind], kind, names, plans, column)

    def known_rows(self, kind: str, names: np.ndarray) -> np.ndarray:
        """Row indexes of names in a table, -1 where it has none: its own table may have been replaced."""
        index = self._indexes[kind]
        return np.array([index.get(str(name).casefold(), _BLANK) for name in names.tolist()], dtype=np.int64)

    def taken(self, kind: str) -> Mapping[str, str]:
        """Names looked up in a table so far that it does not have as they are spelled: what each was taken as."""
        return self._taken.get(kind, {})

    def network_index(self, names: np.ndarray, plans: Table, column: str) -> np.ndarray:
        """Positions of names in :attr:`networks` and in the rows of :attr:`network_arrays`, as :meth:`rows`."""
        return self._find(self._network_index, "networks", names, plans, column)

    def network_tiers(self, name: str) -> np.ndarray:
        """Rows of one network in the table ``networks``, innermost tier first; none for an unknown name."""
        return np.array(self._tiers.get(name.casefold(), []), dtype=np.int64)

    @cached_property
    def _tiers(self) -> Mapping[str, list[int]]:
        """Rows of each network by its casefolded name, innermost tier first."""
        table = self.tables["networks"]
        found: dict[str, list[int]] = {}
        for row, name in enumerate(table.text("network").tolist()):
            found.setdefault(name.casefold(), []).append(row)
        tier = table.number("tier").tolist()
        return {name: sorted(rows, key=lambda row: tier[row]) for name, rows in found.items()}

    @cached_property
    def network_arrays(self) -> Mapping[str, np.ndarray]:
        """Number columns of the networks, shape (networks, tiers), short ones padded with their last tier.

        Blanks have the schema's defaults. ``topology`` holds positions in the schema's choices, ``num_tiers``
        (networks,) how many tiers are real.
        """
        table = self.tables["networks"]
        tiers = [self._tiers[name.casefold()] for name in self.networks]
        depth = max((len(rows) for rows in tiers), default=1)
        index = np.array([[*rows, *[rows[-1]] * (depth - len(rows))] for rows in tiers], dtype=np.int64)
        index = index.reshape(len(tiers), depth)
        arrays: dict[str, np.ndarray] = {"num_tiers": np.array([len(rows) for rows in tiers], dtype=np.int64)}
        for declared in table.schema.columns:
            if declared.kind in ("number", "flag"):
                arrays[declared.name] = table.filled(declared.name)[index]
        choices = table_schema("networks").by_name["topology"].choices
        codes = np.array([choices.index(text) for text in table.filled("topology").tolist()], dtype=np.int64)
        arrays["topology"] = codes[index]
        return MappingProxyType(arrays)

    @cached_property
    def default_networks(self) -> np.ndarray:
        """Position in :attr:`networks` of the default network of each accelerator; -1 where it has none."""
        return self._positions(self.tables["accelerators"].text("default_network"), self._network_index)

    @cached_property
    def price_rows(self) -> np.ndarray:
        """Row in ``prices`` of each accelerator; -1 where it has no price."""
        return self._positions(self.tables["accelerators"].text("accelerator"), self._indexes["prices"])

    def _positions(self, names: np.ndarray, index: Mapping[str, int]) -> np.ndarray:
        return np.array([index.get(name.casefold(), _BLANK) for name in names.tolist()], dtype=np.int64)

    def _find(self, index: dict[str, int], kind: str, names: np.ndarray, plans: Table, column: str) -> np.ndarray:
        found = list(map(index.get, names.tolist(), repeat(_UNKNOWN)))
        if _UNKNOWN in found:
            problems: dict[str, tuple[str, Hint]] = {}
            faults = []
            for row, name in enumerate(names.tolist()):
                if found[row] != _UNKNOWN:
                    continue
                at = index.get(name.strip().casefold(), _UNKNOWN)
                if at == _UNKNOWN and name not in problems:
                    if kind not in self._spellings:
                        self._spellings[kind] = Spellings(self.tables[kind])
                    meant = self._spellings[kind].names(name)
                    if len(meant) == 1:
                        at = index[meant[0].casefold()]
                        self._taken.setdefault(kind, {})[name] = meant[0]
                    else:
                        problems[name] = _unknown(name, self.tables[kind], meant)
                if at == _UNKNOWN:
                    faults.append(Fault(plans.place(row, column), *problems[name]))
                else:
                    index[name] = found[row] = at
            if faults:
                raise InputError(faults)
        return np.array(found, dtype=np.int64)


def load_catalog(path: str | os.PathLike[str] | None = None) -> Catalog:
    """Read the catalog sheets of a workbook.

    ``path``: workbook; a catalog sheet that it lacks is the one of the workbook that comes with xlperf. CSV and Parquet
    tables, and a workbook with one catalog sheet alone, add their rows to the shipped sheet (:func:`laid_over`).
    Without a path the shipped workbook itself, which is read once: its rows stay in the user's cache until it changes.
    Raises InputError with every fault of the workbook, in one line each.
    """
    from xlperf.base.resources import workbook
    from xlperf.catalog.cache import cache_tables, cached_tables

    source = Path(path) if path is not None else workbook()
    if path is not None and not _same_file(source, workbook()):
        return _own_catalog(source)
    stamp = _stamp(source)
    if _installed.get("stamp") != stamp or stamp is None:
        faults: list[Fault] = []
        tables = cached_tables(source)
        if tables is None:
            from xlperf.catalog.read import read_catalog_tables

            tables, faults = read_catalog_tables(source, required=True)
            if not faults:
                cache_tables(source, tables)
        known = {**{kind: _empty(kind) for kind in EVERY_TABLE}, **{table.kind: table for table in tables}}
        _installed["catalog"] = _checked(known, source.name, EVERY_TABLE, faults)
        _installed["stamp"] = stamp
    catalog = _installed["catalog"]
    assert isinstance(catalog, Catalog)
    return catalog


def _own_catalog(source: Path) -> Catalog:
    """The catalog of a user's file: its rows over the shipped rows, or its sheets in place of the shipped sheets."""
    from xlperf.catalog.read import is_table_file, read_catalog_tables

    tables, faults = read_catalog_tables(source, required=False)
    own = {table.kind: table for table in tables}
    installed = load_catalog().tables if len(own) < len(EVERY_TABLE) else {}
    if is_table_file(source) or len(own) == 1:
        own = {kind: laid_over(table, installed.get(kind, _empty(kind))) for kind, table in own.items()}
    return _checked({**installed, **own}, source.name, tuple(own), faults)


def laid_over(own: Table, shipped: Table) -> Table:
    """A user's rows, followed by the shipped rows whose names they leave free.

    A name or an alias of ``own`` replaces the shipped row of that name and is no longer an alias of another row. A
    network is replaced with all of its tiers. Calibration and own runs are not chosen by name and stay as they are.
    """
    key = own.schema.key.name
    if own.kind in _WHOLE or key not in own:
        return own
    new = {str(name).strip().casefold() for name in (*own[key].tolist(), *(word for _, word in aliases(own)))}
    rest = shipped.take([row for row, name in enumerate(shipped.text(key).tolist()) if name.casefold() not in new])
    columns = {}
    for column in own.schema.columns:
        if column.name in own or column.name in rest:
            read = Table.text if column.is_text else Table.number
            columns[column.name] = np.concatenate([read(own, column.name), read(rest, column.name)])
    if "aliases" in columns:
        words = [text.split(";") for text in rest.text("aliases")]
        free = [";".join(word for word in each if word.strip().casefold() not in new) for each in words]
        columns["aliases"][len(own) :] = free

    def place(row: int, column: str) -> str:
        return own.place(row, column) if row < len(own) else rest.place(row - len(own), column)

    return Table(own.kind, columns, place)


_installed: dict[str, object] = {}


def _stamp(path: Path) -> tuple[str, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return str(path), found.st_mtime_ns, found.st_size


def _same_file(path: Path, other: Path) -> bool:
    return path.exists() and other.exists() and path.samefile(other)


def _checked(tables: Mapping[str, Table], origin: str, strict: Sequence[str], faults: list[Fault]) -> Catalog:
    if faults:
        indexes = {kind: _index(table) for kind, table in tables.items()}
        known = set(faults)
        more = [fault for fault in catalog_faults(tables, indexes, strict) if fault not in known]
        raise InputError([*faults, *more])
    return Catalog(tables, origin, strict)


def catalog_faults(
    tables: Mapping[str, Table], indexes: Mapping[str, Mapping[str, int]], strict: Iterable[str] = EVERY_TABLE
) -> list[Fault]:
    """Faults between tables: names that no table has, unknown calibration constants.

    ``tables``, ``indexes``: by kind: the table, and its rows by casefolded name. ``strict``: kinds whose references are
    checked.
    """
    faults = []
    for kind in EVERY_TABLE:
        if kind not in strict or kind not in tables:
            continue
        table = tables[kind]
        for column in table.schema.columns:
            if column.kind != "reference" or column.name not in table:
                continue
            other = tables[column.reference]
            for row, name in enumerate(table[column.name].tolist()):
                if name.casefold() not in indexes[column.reference]:
                    meant = Spellings(other).names(name)
                    if len(meant) != 1:
                        words = _unknown(name, other, meant)
                        faults.append(Fault(table.place(row, column.name), *words))
        if kind == "calibration":
            found = calibration_rows(table)[1]
            faults += [Fault(table.place(row, name), problem, hint) for row, name, problem, hint in found]
    return faults


def _of_what_is_known(tables: Mapping[str, Table], indexes: Mapping[str, Mapping[str, int]]) -> Table:
    """The designs that can be costed: the other tables have all that they name, and all that their devices name."""
    table = tables[_DESIGNS]
    spelled: dict[str, Spellings] = {}

    def lost(kind: str, row: int) -> bool:
        own = tables[kind]
        for column in own.schema.columns:
            if column.kind != "reference" or column.name not in own or column.reference == "accelerators":
                continue
            name, other = own.text(column.name)[row], column.reference
            if not name:
                continue
            found = indexes[other].get(name.casefold(), _UNKNOWN)
            if found == _UNKNOWN:
                spelled.setdefault(other, Spellings(tables[other]))
                meant = spelled[other].names(name)
                found = indexes[other][meant[0].casefold()] if len(meant) == 1 else _UNKNOWN
            if found == _UNKNOWN or lost(other, found):
                return True
        return False

    kept = [row for row in range(len(table)) if not lost(_DESIGNS, row)]
    return table if len(kept) == len(table) else table.take(kept)


def _with_exact_references(tables: Mapping[str, Table], indexes: dict[str, dict[str, int]]) -> Mapping[str, Table]:
    """Tables whose references are names of rows, however they are spelled; their indexes follow."""
    exact = dict(tables)
    for kind in EVERY_TABLE:
        for column in tables[kind].schema.columns:
            if column.kind != "reference" or column.name not in tables[kind]:
                continue
            names = tables[kind][column.name].tolist()
            other = sorted({name for name in names if name.casefold() not in indexes[column.reference]})
            if not other:
                continue
            spellings = Spellings(tables[column.reference])
            meant = {name: spellings.names(name) for name in other}
            taken = {name: found[0] for name, found in meant.items() if len(found) == 1}
            if taken:
                values = np.array([taken.get(name, name) for name in names], dtype=object)
                exact[kind] = replace(exact[kind], columns={**exact[kind].columns, column.name: values})
                indexes[kind] = _index(exact[kind])
    return exact


def _unknown(name: str, table: Table, meant: Sequence[str] = ()) -> tuple[str, Hint]:
    """Message for a name that is unknown or ambiguous, and a hint at the names that may be meant."""
    key = table.schema.key.name
    if meant:
        listed = ", ".join(meant[:_MOST_LISTED])
        listed += f" and {len(meant) - _MOST_LISTED} more" if len(meant) > _MOST_LISTED else ""
        return f"{key.replace('_', ' ')} {shown(name)} may be one of several", lambda: f"write one of {listed}"

    def hint() -> str:
        known = dict.fromkeys(text for text in table.text(key).tolist() if text)
        known.update(dict.fromkeys(word for _, word in aliases(table)))
        return nearest(name, known)

    return f"unknown {key} {shown(name)}", hint


def _index(table: Table) -> dict[str, int]:
    index = {"": _BLANK}
    for row, name in enumerate(table.text(table.schema.key.name).tolist()):
        index.setdefault(name.casefold(), row)
    if table.kind == "models":
        for row, word in aliases(table):
            index.setdefault(word.casefold(), row)
    return index


def _empty(kind: str) -> Table:
    columns = table_schema(kind).columns
    return Table(kind, {c.name: np.zeros(0, dtype=object if c.is_text else np.float64) for c in columns})


def hash_table(digest: hashlib._Hash, table: Table) -> None:
    """Feed a table to a hash: columns that hold anything by name, rows by key."""
    keys = [text.casefold() for text in table.text(table.schema.key.name).tolist()]
    tiers = table.number("tier").tolist() if table.kind == "networks" else [0.0] * len(keys)
    order = np.array(sorted(range(len(keys)), key=lambda row: (keys[row], tiers[row])), dtype=np.int64)
    digest.update(f"\x1d{table.kind}\x1d{len(keys)}".encode())
    for name in sorted(table.columns):
        values = table[name][order]
        if values.dtype == object:
            if any(values):
                digest.update(f"\x1e{name}\x1e{chr(31).join(values.tolist())}".encode())
        elif not np.isnan(values).all():
            canonical = np.where(np.isnan(values), np.nan, values + 0.0)
            digest.update(f"\x1e{name}\x1e".encode() + canonical.astype("<f8").tobytes())


_NAMED = ("accelerators", "models", "networks")
"""Tables whose rows plans name; of the others a part has all rows, excluding those of other accelerators."""
_OWN_RUNS = "my_cluster"
_MOST_PARTS = 64
_parts: OrderedDict[bytes, Catalog] = OrderedDict()
_digests: WeakKeyDictionary[Catalog, dict[str, bytes]] = WeakKeyDictionary()


def part_of(catalog: Catalog, plans: Table, beside: Sequence[str] = ()) -> Catalog:
    """The rows of a catalog that plans or forms name, with every table that no name chooses rows of.

    ``catalog``: the whole. ``plans``: plans or forms; their columns that refer to accelerators, models and networks say
    which rows. ``beside``: further accelerators that are looked at, where the catalog has them. Returns the same object
    for the same content; the whole where runs of one's own cluster correct plans. Raises InputError for every name that
    is not known.
    """
    if len(catalog.tables[_OWN_RUNS]):
        return catalog
    rows = {kind: [np.zeros(0, dtype=np.int64)] for kind in _NAMED}
    for column in plans.schema.columns:
        if column.reference in rows and column.name in plans:
            rows[column.reference].append(catalog.rows(column.reference, plans[column.name], plans, column.name))
    rows["accelerators"].append(catalog.known_rows("accelerators", np.array(beside, dtype=object)))
    chosen = {kind: np.unique(np.concatenate(found)) for kind, found in rows.items()}
    return _part(catalog, {kind: found[found >= 0] for kind, found in chosen.items()})


def _part(catalog: Catalog, chosen: dict[str, np.ndarray]) -> Catalog:
    tables = {kind: catalog.tables[kind].take(chosen[kind]) for kind in ("accelerators", "models")}
    networks = catalog.tables["networks"]
    names = [*networks.text("network")[chosen["networks"]], *tables["accelerators"].text("default_network")]
    tables["networks"] = _rows_of(networks, "network", names)
    names = ["", *tables["accelerators"].text("accelerator")]
    for kind, table in catalog.tables.items():
        for column in table.schema.columns:
            if column.reference == "accelerators":
                tables[kind] = _rows_of(table, column.name, names)
    digest = hashlib.sha256(f"{catalog.origin}\x1c{catalog.case}".encode())
    known = _digests.setdefault(catalog, {})
    for kind in EVERY_TABLE:
        if kind in tables:
            hash_table(digest, tables[kind])
            continue
        if kind not in known:
            own = hashlib.sha256()
            hash_table(own, catalog.tables[kind])
            known[kind] = own.digest()
        digest.update(known[kind])
    key = digest.digest()
    if key not in _parts:
        part = Catalog({**catalog.tables, **tables}, catalog.origin, strict=())
        part.case = catalog.case
        _parts[key] = part
    _parts.move_to_end(key)
    while len(_parts) > _MOST_PARTS:
        _parts.popitem(last=False)
    return _parts[key]


def _rows_of(table: Table, column: str, names: Sequence[str]) -> Table:
    """Rows of a table that refer to names, in the order of the table."""
    wanted = {str(name).casefold() for name in names}
    return table.take(np.array([str(name).casefold() in wanted for name in table.text(column).tolist()], dtype=bool))
