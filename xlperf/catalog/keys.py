"""Keys of catalog tables: no name twice, tiers of a network without gaps, aliases that mean one model."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from xlperf.catalog.table import Table
from xlperf.catalog.values import shown


def key_faults(table: Table) -> list[tuple[int, str, str]]:
    """What is wrong with the keys of a catalog table: (row, column, problem).

    Names are compared without case, as Excel does. The key of a network row is its name and tier; the key of a
    calibration row its name, and what it is for.
    """
    key = table.schema.key.name
    if key not in table:
        return []
    if table.kind == "networks":
        return _tier_faults(table)
    faults = _duplicates(table, [key], key)
    if table.kind == "models":
        faults += _alias_faults(table)
    if table.kind == "calibration" and not faults:
        faults += _duplicates(table, ["family", "generation", "precision", "software", "constant"], "constant")
    return faults


def aliases(table: Table) -> list[tuple[int, str]]:
    """Other spellings of models: (row, spelling)."""
    return [
        (row, word.strip())
        for row, text in enumerate(table.text("aliases").tolist())
        for word in str(text).split(";")
        if word.strip()
    ]


def _duplicates(table: Table, columns: list[str], shown_at: str) -> list[tuple[int, str, str]]:
    words = shown_at.replace("_", " ")
    default = "any" if len(columns) > 1 else ""
    parts = [[str(value).casefold() for value in table.text(column, default)] for column in columns]
    first: dict[tuple[str, ...], int] = {}
    faults = []
    for row, key in enumerate(zip(*parts, strict=True)):
        if not key[-1]:
            continue
        if key in first:
            name = shown(table[shown_at][row] if len(columns) == 1 else "/".join(key))
            where = table.place(first[key], shown_at)
            faults.append((row, shown_at, f"duplicate {words} {name}; the first is at {where}"))
        first.setdefault(key, row)
    return faults


def _alias_faults(table: Table) -> list[tuple[int, str, str]]:
    owner = {str(name).casefold(): row for row, name in enumerate(table["model"].tolist()) if name}
    faults = []
    for row, word in aliases(table):
        other = owner.setdefault(word.casefold(), row)
        if other != row:
            faults.append((row, "aliases", f"alias {shown(word)} already means model {shown(table['model'][other])}"))
    return faults


def _tier_faults(table: Table) -> list[tuple[int, str, str]]:
    tiers, sizes = table.number("tier"), table.number("size")
    groups: dict[str, list[int]] = {}
    for row, name in enumerate(table["network"].tolist()):
        if name and not np.isnan(tiers[row]):
            groups.setdefault(str(name).casefold(), []).append(row)
    faults = []
    for rows in groups.values():
        rows.sort(key=lambda row: float(tiers[row]))
        name = shown(table["network"][rows[0]])
        for inner, outer in pairwise(rows):
            if tiers[outer] == tiers[inner]:
                where = table.place(min(inner, outer), "tier")
                problem = f"duplicate tier {tiers[outer]:g} of network {name}; the first is at {where}"
                faults.append((max(inner, outer), "tier", problem))
            elif sizes[outer] <= sizes[inner]:
                problem = f"size of tier {tiers[outer]:g} of network {name} must be above the {sizes[inner]:g} of"
                faults.append((outer, "size", f"{problem} tier {tiers[inner]:g}, got {sizes[outer]:g}"))
        present = sorted({int(tiers[row]) for row in rows})
        missing = [tier for tier in range(1, present[-1]) if tier not in present]
        if missing:
            listed = ", ".join(str(tier) for tier in missing)
            faults.append((rows[0], "tier", f"network {name} lacks tier {listed}; tiers count from 1 without gaps"))
    return faults
