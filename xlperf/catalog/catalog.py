"""The catalog of hardware, models and prices, with look-ups by name that are fast for one row and for a million."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import repeat
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from xlperf.base.arrays import is_repeated, repeated
from xlperf.base.errors import Fault, Hint, InputError, raise_faults
from xlperf.base.files import cache_folder, store, stored
from xlperf.base.resources import workbook
from xlperf.catalog import spellings
from xlperf.catalog.calibration import Calibration, calibration_rows
from xlperf.catalog.cells import shown
from xlperf.catalog.schema import CATALOG_TABLES, EVERY_TABLE, OPTIONAL_TABLES, OWN_RUNS, table_schema
from xlperf.catalog.table import NamedCells, SheetCells, Table, aliases, stacked

_calibration_of = lru_cache(maxsize=8)(Calibration)
_WHOLE = ("calibration", OWN_RUNS)  # sheets whose rows belong together in any file


class Catalog:
    """Accelerators, networks, models, prices, calibration by :func:`load_catalog` or :meth:`from_tables`; immutable."""

    case = "base"  # low, base or high: of prices and of the bands of answers
    _as_measured: Catalog | None = None

    def __init__(self, tables: Mapping[str, Table], origin: str, strict: Iterable[str] = EVERY_TABLE) -> None:
        absent = {kind: _empty(kind) for kind in OPTIONAL_TABLES if kind not in tables}
        given = {**tables, **absent}
        self.origin = origin  # name of the file shown to users
        self._indexes = {kind: spellings.index_of(given[kind]).copy() for kind in EVERY_TABLE}
        strict = tuple(strict)
        faults = _constant_faults(given["calibration"]) if "calibration" in strict else []
        raise_faults(faults)
        given, self.orphans = spellings.without_orphans(given, self._indexes, strict)
        if spellings.DESIGNS not in strict:
            given[spellings.DESIGNS] = spellings.of_what_is_known(given, self._indexes)
            self._indexes[spellings.DESIGNS] = spellings.index_of(given[spellings.DESIGNS]).copy()
        self.tables: Mapping[str, Table] = MappingProxyType(spellings.with_exact_references(given, self._indexes))
        self._taken: dict[str, dict[str, str]] = {}
        self.calibration = _calibration_of(self.tables["calibration"])
        names: dict[str, str] = {}
        for name in self.tables["networks"].text("network").tolist():
            names.setdefault(name.casefold(), name)
        self.networks = tuple(names.values())  # in the order of their first rows
        self._network_index: dict[str, int] = {"": spellings.BLANK}
        self._network_index.update({name: index for index, name in enumerate(names)})

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled as its tables, which were checked before."""
        own = replace(self.orphans, faults=[Fault(fault.place, fault.problem) for fault in self.orphans.faults])
        state = {"case": self.case, "orphans": own, "_as_measured": self._as_measured}
        return Catalog, (dict(self.tables), self.origin, ()), state

    @classmethod
    def from_tables(cls, tables: Sequence[Table], origin: str) -> Catalog:
        """A catalog of given tables, the others empty, without rows that refer to unknown names (:attr:`orphans`)."""
        return cls({**{kind: _empty(kind) for kind in CATALOG_TABLES}, **{t.kind: t for t in tables}}, origin)

    def with_tables(self, tables: Sequence[Table], checked: bool = False) -> Catalog:
        """Replace tables and, unless ``checked``, leave out rows that refer to unknown names (:attr:`orphans`)."""
        given = {table.kind: table.in_case(self.case) for table in tables}
        result = Catalog({**self.tables, **given}, self.origin, strict=() if checked else tuple(given))
        result.case = self.case
        result.orphans = self.orphans.beside(given, result.orphans)
        if OWN_RUNS not in given and len(self.tables[OWN_RUNS]):
            result._as_measured = self.as_measured
        return result

    @property
    def as_measured(self) -> Catalog:
        """The catalog that the user's runs were given with: later changes of hardware do not change what they teach."""
        return self if self._as_measured is None else self._as_measured

    def in_case(self, case: str) -> Catalog:
        """The catalog with the values of a case, ``low`` or ``high``, if its sheets give some; ``base``: itself."""
        if case == self.case:
            return self
        result = Catalog({kind: table.in_case(case) for kind, table in self.tables.items()}, self.origin, strict=())
        result.case, result.orphans, result._as_measured = case, self.orphans, self._as_measured
        return result

    @cached_property
    def fingerprint(self) -> str:
        """Short hash of names, values in the units used inside, and text, whatever the order and the spelling."""
        digest = hashlib.sha256() if self.case == "base" else hashlib.sha256(self.case.encode())
        for kind in EVERY_TABLE:
            if kind in CATALOG_TABLES or len(self.tables[kind]):
                hash_table(digest, self.tables[kind])
        return digest.hexdigest()[:16]

    def rows(self, kind: str, names: np.ndarray, plans: Table, column: str) -> np.ndarray:
        """Rows of names in a table, by any spelling; InputError for unknown and ambiguous names at their cells."""
        return self._find(self._indexes[kind], kind, names, plans, column)

    def known_rows(self, kind: str, names: np.ndarray) -> np.ndarray:
        """Row indexes of names in a table, -1 if it has none: its own table may have been replaced."""
        return _positions(names, self._indexes[kind])

    def taken(self, kind: str) -> Mapping[str, str]:
        """Names looked up so far that the table spells otherwise, each with its reading."""
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
        by_name: dict[str, list[int]] = {}
        for row, name in enumerate(table.text("network").tolist()):
            by_name.setdefault(name.casefold(), []).append(row)
        tier = table.number("tier").tolist()
        return {name: sorted(rows, key=lambda row: tier[row]) for name, rows in by_name.items()}

    @cached_property
    def network_arrays(self) -> Mapping[str, np.ndarray]:
        """Number columns of networks with defaults, (networks, tiers), short ones padded with their last tier.
        ``topology`` holds positions in the schema's choices, ``num_tiers`` (networks,) the number of real tiers.
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
        """Position in :attr:`networks` of the default network of each accelerator; -1 if it has none."""
        return _positions(self.tables["accelerators"].text("default_network"), self._network_index)

    @cached_property
    def price_rows(self) -> np.ndarray:
        """Row in ``prices`` of each accelerator; -1 if it has no price."""
        return self.known_rows("prices", self.tables["accelerators"].text("accelerator"))

    def _find(self, index: dict[str, int], kind: str, names: np.ndarray, plans: Table, column: str) -> np.ndarray:
        if is_repeated(names):
            return repeated(self._find(index, kind, names[:1], plans, column)[0], len(names), np.int64)
        result = list(map(index.get, names.tolist(), repeat(spellings.UNKNOWN)))
        if spellings.UNKNOWN in result:
            problems: dict[str, tuple[str, Hint | None]] = {}
            faults = []
            for row, name in enumerate(names.tolist()):
                if result[row] != spellings.UNKNOWN:
                    continue
                at = index.get(name.strip().casefold(), spellings.UNKNOWN)
                if at == spellings.UNKNOWN and name not in problems:
                    meant = self._names.meant(kind, name)
                    at = index.get(meant[0].casefold(), spellings.UNKNOWN) if len(meant) == 1 else spellings.UNKNOWN
                    if at != spellings.UNKNOWN:
                        self._taken.setdefault(kind, {})[name] = meant[0]
                    else:
                        problems[name] = self._lacking(kind, name, meant)
                if at == spellings.UNKNOWN:
                    faults.append(Fault(plans.place(row, column), *problems[name]))
                else:
                    index[name] = result[row] = at
            raise_faults(faults)
        return np.array(result, dtype=np.int64)

    @cached_property
    def _names(self) -> spellings.Names:
        """Names of rows, of rows that are left out too."""
        return spellings.Names({**self.tables, **self.orphans.whole})

    def _lacking(self, kind: str, name: str, meant: Sequence[str]) -> tuple[str, Hint | None]:
        """Why a name has no row: it is unknown, ambiguous, or its row names something that no table has."""
        exact = meant[0] if len(meant) == 1 else name.strip()
        why = self.orphans.why.get(kind, {}).get(exact.casefold())
        if why is None:
            shipped = [] if meant else load_catalog()._names.meant(kind, name)
            known = " and ".join(shipped[:3])
            says = f"xlperf ships {known}: take the row from a workbook of xlperf new FILE --all"
            problem, hint = spellings.unknown(name, self.tables[kind], meant)
            return problem, (lambda: says) if shipped else hint
        return f"{self.tables[kind].schema.key.name.replace('_', ' ')} {shown(exact)}{spellings.NOT_USABLE}{why}", None


def _positions(names: np.ndarray, index: Mapping[str, int]) -> np.ndarray:
    return np.array([index.get(str(name).casefold(), spellings.BLANK) for name in names.tolist()], dtype=np.int64)


def load_catalog(path: str | os.PathLike[str] | None = None) -> Catalog:
    """The catalog of a workbook with the shipped sheets in place of absent ones; without a path the shipped catalog,
    cached. CSV and Parquet tables, and a workbook with one sheet alone, add their rows to the shipped sheet
    (:func:`laid_over`).
    """
    source, shipped = Path(path) if path is not None else workbook(), workbook()
    if source != shipped and not (source.exists() and shipped.exists() and source.samefile(shipped)):
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
    """A user's rows, followed by the shipped rows whose names they leave free; a network is replaced whole."""
    key = own.schema.key.name
    if own.kind in _WHOLE or key not in own:
        return own
    new = {str(name).strip().casefold() for name in (*own[key].tolist(), *(word for _, word in aliases(own)))}
    rest = shipped.take([row for row, name in enumerate(shipped.text(key).tolist()) if name.casefold() not in new])
    if "aliases" in rest:
        words = [text.split(";") for text in rest["aliases"]]
        free = [";".join(word for word in each if word.strip().casefold() not in new) for each in words]
        rest = rest.with_columns({"aliases": np.array(free, dtype=object)})
    return stacked([own, rest])


_installed: dict[str, object] = {}


def _stamp(path: Path) -> tuple[str, int, int] | None:
    try:
        result = path.stat()
    except OSError:
        return None
    return str(path), result.st_mtime_ns, result.st_size


def _checked(tables: Mapping[str, Table], origin: str, strict: Sequence[str], faults: list[Fault]) -> Catalog:
    if faults:
        indexes = {kind: spellings.index_of(table).copy() for kind, table in tables.items()}
        known = set(faults)
        more = [
            *spellings.without_orphans(tables, indexes, strict)[1].faults,
            *_constant_faults(tables.get("calibration")),
        ]
        raise InputError([*faults, *(fault for fault in more if fault not in known)])
    return Catalog(tables, origin, strict)


def _constant_faults(table: Table | None) -> list[Fault]:
    """Unknown constants of the calibration."""
    result = calibration_rows(table)[1] if table is not None else []
    return [Fault(table.place(row, name), problem, hint) for row, name, problem, hint in result if table is not None]


def _empty(kind: str) -> Table:
    columns = table_schema(kind).columns
    return Table(kind, {column.name: column.array([]) for column in columns})


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


@lru_cache(maxsize=64)
def _digest_of(table: Table) -> bytes:
    digest = hashlib.sha256()
    hash_table(digest, table)
    return digest.digest()


_NAMED = ("accelerators", "models", "networks")
"""Tables whose rows plans name; a part of a catalog has all rows of other tables, except rows of unused
accelerators.
"""
_MOST_PARTS = 64
_parts: OrderedDict[bytes, Catalog] = OrderedDict()


def part_of(catalog: Catalog, plans: Table, beside: Sequence[str] = ()) -> Catalog:
    """Rows that plans or forms name, with accelerators ``beside``, and tables whose rows no name chooses, but no prices
    of later years, which no plan reads; InputError for unknown names. The same object for the same content, and the
    whole catalog if runs of the user's cluster correct plans.
    """
    if len(catalog.tables[OWN_RUNS]):
        return catalog
    rows = {kind: [np.zeros(0, dtype=np.int64)] for kind in _NAMED}
    for column in plans.schema.columns:
        if column.reference in rows and column.name in plans:
            rows[column.reference].append(catalog.rows(column.reference, plans[column.name], plans, column.name))
    rows["accelerators"].append(catalog.known_rows("accelerators", np.array(beside, dtype=object)))
    chosen = {kind: np.unique(np.concatenate(result)) for kind, result in rows.items()}
    return _part(catalog, {kind: result[result >= 0] for kind, result in chosen.items()})


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
    tables["generations"] = catalog.tables["generations"].take(slice(0))
    digest = hashlib.sha256(f"{catalog.origin}\x1c{catalog.case}".encode())
    whole = {**catalog.tables, **tables}
    for kind in EVERY_TABLE:
        digest.update(_digest_of(whole[kind]))
    key = digest.digest()
    if key not in _parts:
        part = Catalog(whole, catalog.origin, strict=())
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


MOST_FILES = 4  # files that stay in the cache folder, the newest


def cached_tables(path: Path, folder: Path | None = None) -> list[Table] | None:
    """Tables of a workbook from its cache; None if it lacks them, or another user may have written it."""
    try:
        target = _file(path, folder)
        with stored(target) as stream:
            if not _ours_alone(os.fstat(stream.fileno())) or not _ours_alone(target.parent.stat()):
                return None
            seal, _, content = stream.read().partition(b"\n")
        if seal.decode("ascii") != _digest(content):
            return None
        return [_restored(path.name, table) for table in json.loads(content)]
    except (OSError, ValueError, TypeError, KeyError):
        return None


def cache_tables(path: Path, tables: Sequence[Table], folder: Path | None = None) -> None:
    """Write the tables of a workbook without faults to the cache; nothing happens if it cannot be written."""
    content = json.dumps([_described(table) for table in tables], separators=(",", ":")).encode("ascii")
    with contextlib.suppress(OSError):
        target = _file(path, folder)
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _ours_alone(target.parent.stat()):
            return
        with contextlib.suppress(FileNotFoundError):
            if not _ours_alone(target.stat()):
                target.unlink()
        store(target, _digest(content).encode("ascii") + b"\n" + content)
        kept = [file for file in target.parent.iterdir() if not file.name.startswith(".")]
        files = sorted(kept, key=lambda file: file.stat().st_mtime_ns, reverse=True)
        for old in files[MOST_FILES:]:
            old.unlink()


def _ours_alone(status: os.stat_result) -> bool:
    """Whether a file or folder belongs to this user and nobody else may write it; who may could forge the cache."""
    if sys.platform in ("win32", "emscripten"):  # the user's profile, or a browser's memory: the bits say nothing
        return True
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _file(path: Path, folder: Path | None) -> Path:
    """Cache file of a workbook, by its content and the state of the modules that read it."""
    beside = Path(__file__).parent
    readers = [file for file in beside.iterdir() if file.suffix in (".py", ".csv")]
    states = [(file.name, file.stat()) for file in sorted([*readers, *(beside.parent / "base").glob("units.*")])]
    read_by = "\n".join(f"{name} {state.st_size} {state.st_mtime_ns}" for name, state in states)
    return (folder or cache_folder() / "workbooks") / f"{_digest(path.read_bytes() + read_by.encode())}.json"


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _described(table: Table) -> dict[str, Any]:
    """A table as JSON can hold it: columns, and the cells of their values."""
    cells = table.place
    assert isinstance(cells, NamedCells) and isinstance(cells.locate, SheetCells)  # it was read from a sheet
    return {
        "kind": table.kind,
        "columns": {name: values.tolist() for name, values in table.columns.items()},
        "sheet": cells.locate.sheet,
        "header_row": cells.locate.header_row,
        "rows": [cells.locate.rows[row] for row in cells.rows],
        "sheet_columns": list(cells.locate.columns),
        "positions": dict(cells.positions),
    }


def _restored(book: str, known: dict[str, Any]) -> Table:
    declared = table_schema(known["kind"]).by_name
    columns = {name: declared[name].array(values) for name, values in known["columns"].items()}
    cells = SheetCells(book, known["sheet"], known["header_row"], known["rows"], known["sheet_columns"])
    return Table(known["kind"], columns, NamedCells(cells, range(len(known["rows"])), known["positions"]))
