"""Notes in the column ``reason`` of legal plans: what does not fit, what was assumed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from xlperf.base.arrays import Array, decade, some
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.equations.hardware.power import PowerLimits
from xlperf.equations.plan.records import Remark, remarks_of_rows


def gibibytes(values: Array) -> Array:
    """Bytes in GiB, rounded for a sentence.

    ``values``: sizes [B]. With one decimal.
    """
    return np.asarray(np.round(values / 2.0**30, 1))


def rounded_down(values: Array) -> Array:
    """Limits for a sentence, rounded down to four digits.

    >>> rounded_down(np.array([122.456, 0.0123456])).tolist()
    [122.4, 0.01234]

    ``values``: above 0, in any unit. With four digits.
    """
    scale = 1000.0 / decade(np.where((values > 0.0) & (values < np.inf), values, 1.0))
    return np.asarray(np.floor(values * scale) / scale)


def extrapolation_notes(extrapolated: list[tuple[str, np.ndarray]], illegal: np.ndarray) -> list[Remark]:
    """One note for the rows that use calibration fitted on other generations or software.

    ``extrapolated``: family, and the rows that have no constants of their own in it. At most one.
    """
    shown = [
        (family, mask)
        for family, mask in extrapolated
        if some(mask) and not family.endswith(("_band", "_memory", "_calls"))
    ]
    if not shown:
        return []
    pattern = np.zeros(len(illegal), dtype=np.int64)
    for bit, (_, mask) in enumerate(shown):
        pattern |= np.where(mask & ~illegal, 1 << bit, 0)
    if not some(pattern):
        return []
    values = pattern.tolist()
    names = {
        value: ", ".join(
            dict.fromkeys(family.replace("_", " ") for bit, (family, _) in enumerate(shown) if value >> bit & 1)
        )
        for value in set(values)
    }
    named = np.array([names[value] for value in values], dtype=object)
    return [Remark(pattern > 0, "calibration extrapolated: {}", (named,))]


def limit_notes(limits: PowerLimits, illegal: np.ndarray) -> list[Remark]:
    """Where a lowered power limit slows long products and to what share of their clock.

    ``limits``: of the plans, (rows,).
    """
    lowered = ~illegal & (limits.kept < limits.own)
    if not some(lowered):
        return []
    numbers = limits.kept, np.round(100.0 * limits.clock_share), limits.own
    slowed = "power limit {} W: the clock of long products falls to {} % of that at {} W"
    return [Remark(lowered & (limits.clock_share < 1.0), slowed, numbers)]


def name_notes(plans: Table, catalog: Catalog, illegal: np.ndarray) -> list[Remark]:
    """Notes on names that are spelled unlike the catalog's, with the row that each was taken for.

    ``plans``: training or inference plans whose names were looked up. Returns one per column at most.
    """
    notes = []
    for column in plans.schema.columns:
        taken = catalog.taken(column.reference) if column.kind == "reference" and column.name in plans else {}
        if taken:
            names = plans.text(column.name)
            exact = np.array([taken.get(name, "") for name in names.tolist()], dtype=object)
            words = f"{column.name.replace('_', ' ')} {{}} taken as {{}}"
            notes.append(Remark((exact != "") & ~illegal, words, (names, exact)))
    return notes


def add_notes(reason: np.ndarray, notes: list[Remark]) -> None:
    """Append the sentences of notes to the reasons of their rows, in place."""
    shown, sentences = remarks_of_rows(notes, len(reason))
    rows = np.flatnonzero(shown)
    if len(rows):
        pairs = zip(reason[rows].tolist(), sentences[rows].tolist(), strict=True)
        reason[rows] = [f"{before}; {words}" if before else words for before, words in pairs]


BASES = ("", "own", "rent")
"""Words of ``cost_basis``: no price; capex over life, energy and running cost; the rental price."""


def basis_words(rented: np.ndarray, cost_rate: Array, other: np.ndarray | None = None) -> np.ndarray:
    """How plans are priced, in words.

    ``rented``: whether the accelerator has a rental price, (rows,). ``cost_rate``: cost of the mean accelerator; NaN
    where a price is missing, (rows,) [USD/s]. ``other``: the same as ``rented`` of the pool that prefills. Returns
    ``rent``, ``own``, ``rent and own`` or "".
    """
    words = np.where(rented, BASES[2], BASES[1]).astype(object)
    if other is not None:
        words[rented != other] = "rent and own"
    words[np.isnan(cost_rate)] = BASES[0]
    return words


def unpriced_notes(
    illegal: np.ndarray, catalog: Catalog, pools: Mapping[str, tuple[np.ndarray, Array]]
) -> list[Remark]:
    """Why plans have no cost.

    ``pools``: by a word that names the pool: rows of its accelerators, and what one of them costs, (rows,). At most one
    for each pool.
    """
    names = catalog.tables["accelerators"].text("accelerator")
    notes = []
    for pool, (rows, cost_rate) in pools.items():
        unpriced = ~illegal & np.isnan(cost_rate)
        if unpriced.any():
            words = f"no cost: the sheet prices has neither a rental price nor a capex for {pool}accelerator {{}}"
            notes.append(Remark(unpriced, words, (names[rows],)))
    return notes
