"""References between rows of catalog tables: their resolution, and rows that name something unknown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from xlperf.base.errors import MOST_FAULTS_SHOWN, Fault, Hint, nearest
from xlperf.catalog.cells import shown
from xlperf.catalog.schema import EVERY_TABLE, Column
from xlperf.catalog.spellings import Spellings
from xlperf.catalog.table import Table, aliases

BLANK, UNKNOWN = -1, -2
_MOST_LISTED = 8
DESIGNS = "chiplets"  # the sheet whose rows are all costed together; rows with a reference that is gone are left out

NOT_USABLE = " cannot be used: "
"""Part of the message for a name whose row has an unknown reference; the fault of that row follows."""

Index = MutableMapping[str, dict[str, int]]  # rows of tables by casefolded name, by kind


def index_of(table: Table) -> dict[str, int]:
    """Rows of a table by casefolded name, and of models by alias; a blank is :data:`BLANK`."""
    index = {"": BLANK}
    for row, name in enumerate(table.text(table.schema.key.name).tolist()):
        index.setdefault(name.casefold(), row)
    if table.kind == "models":
        for row, word in aliases(table):
            index.setdefault(word.casefold(), row)
    return index


@dataclass
class Orphans:
    """Rows left out of a catalog because they name something that no table has."""

    faults: list[Fault] = field(default_factory=list)  # one for each cell with an unknown name
    why: dict[str, dict[str, str]] = field(default_factory=dict)  # reason by kind and casefolded name of a row left out
    whole: dict[str, Table] = field(default_factory=dict)  # tables with such rows, by kind

    def beside(self, replaced: Iterable[str], other: Orphans) -> Orphans:
        """These orphans without rows of replaced tables, and the orphans of another catalog."""
        gone = set(replaced)
        why = {kind: names for kind, names in self.why.items() if kind not in gone}
        whole = {kind: table for kind, table in self.whole.items() if kind not in gone}
        faults = self.faults if why else []
        return Orphans([*faults, *other.faults], {**why, **other.why}, {**whole, **other.whole})


class Names:
    """Names of the rows of tables, however they are spelled."""

    def __init__(self, tables: Mapping[str, Table]) -> None:
        self._tables = tables
        self._spelled: dict[str, Spellings] = {}

    def meant(self, kind: str, name: str) -> list[str]:
        """Names of rows of a table that a name may mean."""
        if kind not in self._spelled:
            self._spelled[kind] = Spellings(self._tables[kind])
        return self._spelled[kind].names(name)

    def row(self, kind: str, name: str, index: Mapping[str, int]) -> int:
        """Row of a name in an index of a table; UNKNOWN for an unknown or ambiguous name."""
        row = index.get(name.strip().casefold(), UNKNOWN)
        meant = self.meant(kind, name) if row == UNKNOWN else []
        return index.get(meant[0].casefold(), UNKNOWN) if len(meant) == 1 else row


def references(table: Table) -> list[Column]:
    """Columns of a table that name rows of other tables."""
    return [column for column in table.schema.references if column.name in table]


def without_orphans(
    tables: Mapping[str, Table], indexes: Index, strict: Sequence[str]
) -> tuple[dict[str, Table], Orphans]:
    """Tables without rows that name something unknown, directly or through rows; ``strict`` kinds are checked."""
    left, result, names = dict(tables), Orphans(), Names(tables)
    again = True
    while again:
        again = False
        for kind in (kind for kind in EVERY_TABLE if kind in strict and kind in left):
            lost = _lost_rows(left, indexes, kind, names, result)
            if lost:
                again = True
                result.whole.setdefault(kind, left[kind])
                keys = left[kind].text(left[kind].schema.key.name)
                for row, words in lost.items():
                    result.why.setdefault(kind, {}).setdefault(str(keys[row]).casefold(), words)
                kept = [row for row in range(len(left[kind])) if str(keys[row]).casefold() not in result.why[kind]]
                left[kind] = left[kind].take(kept)
                indexes[kind] = index_of(left[kind])
    return left, result


def _lost_rows(
    tables: Mapping[str, Table], indexes: Index, kind: str, names: Names, orphans: Orphans
) -> dict[int, str]:
    """Rows of a table whose references have no row, with the reason of each; ``orphans`` gets new faults."""
    lost: dict[int, str] = {}
    table = tables[kind]
    for column in references(table):
        other = column.reference
        for row, name in enumerate(table[column.name].tolist()):
            if row in lost or name.casefold() in indexes[other]:
                continue
            meant = names.meant(other, name)
            exact = (meant[0] if len(meant) == 1 else name).casefold()
            if exact in indexes[other]:
                continue
            words = orphans.why.get(other, {}).get(exact, "")
            if not words:
                fault = Fault(table.place(row, column.name), *unknown(name, tables[other], meant))
                words = str(fault) if len(orphans.faults) < MOST_FAULTS_SHOWN else fault.brief
                orphans.faults.append(fault)
            lost[row] = words
    return lost


def of_what_is_known(tables: Mapping[str, Table], indexes: Mapping[str, Mapping[str, int]]) -> Table:
    """The designs that can be costed: the other tables have all that they name, and all that their devices name."""
    table, names = tables[DESIGNS], Names(tables)

    def lost(kind: str, row: int) -> bool:
        for column in references(tables[kind]):
            other, name = column.reference, str(tables[kind].text(column.name)[row])
            if name and other != "accelerators":
                result = names.row(other, name, indexes[other])
                if result == UNKNOWN or lost(other, result):
                    return True
        return False

    kept = [row for row in range(len(table)) if not lost(DESIGNS, row)]
    return table if len(kept) == len(table) else table.take(kept)


def with_exact_references(tables: Mapping[str, Table], indexes: Index) -> Mapping[str, Table]:
    """Tables whose references are names of rows, however they are spelled; their indexes follow."""
    exact, spelled = dict(tables), Names(tables)
    for kind in EVERY_TABLE:
        for column in references(tables[kind]):
            names = tables[kind][column.name].tolist()
            other = {name for name in names if name.casefold() not in indexes[column.reference]}
            meant = {name: spelled.meant(column.reference, name) for name in other}
            taken = {name: result[0] for name, result in meant.items() if len(result) == 1}
            if taken:
                values = np.array([taken.get(name, name) for name in names], dtype=object)
                exact[kind] = replace(exact[kind], columns={**exact[kind].columns, column.name: values})
                indexes[kind] = index_of(exact[kind])
    return exact


def unknown(name: str, table: Table, meant: Sequence[str] = ()) -> tuple[str, Hint]:
    """Message for a name that is unknown or ambiguous, and a hint at the names that may be meant."""
    key = table.schema.key.name
    if len(meant) > 1:
        listed = ", ".join(meant[:_MOST_LISTED])
        listed += f" and {len(meant) - _MOST_LISTED} more" if len(meant) > _MOST_LISTED else ""
        return f"{key.replace('_', ' ')} {shown(name)} may be one of several", lambda: f"write one of {listed}"

    def hint() -> str:
        wanted = re.sub(r"^\d+ *x *", "", name.rpartition("/")[2] or name, flags=re.IGNORECASE)  # 8x H100
        spelled = Spellings(table)
        begun = spelled.names(wanted) or spelled.begun_by(wanted)
        if 0 < len(begun) <= _MOST_LISTED:
            return f"did you mean {', '.join(begun)}?"
        known = dict.fromkeys(text for text in table.text(key).tolist() if text)
        known.update(dict.fromkeys(word for _, word in aliases(table)))
        return nearest(wanted, known)

    return f"unknown {key} {shown(name)}", hint
