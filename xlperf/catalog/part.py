"""The part of a catalog that plans name: they have the results of the whole there, whatever other rows become.

A spreadsheet sends a whole catalog anew when one of its cells is edited. A search of plans that do not name the edited
row gives what it gave before; asked of its part, which is the same object as long as its content is, it is known.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np

from xlperf.catalog.catalog import Catalog, hash_table
from xlperf.catalog.schema import EVERY_TABLE
from xlperf.catalog.table import Table

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
