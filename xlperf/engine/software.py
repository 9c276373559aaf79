"""Blank columns of plans filled with what their software does by default at its release."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from xlperf.base.arrays import Array, is_repeated, repeated
from xlperf.base.errors import Fault, InputError
from xlperf.base.units import UNITS
from xlperf.catalog.calibration import declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.cells import shown
from xlperf.catalog.schema import Column, unit_of
from xlperf.catalog.table import Table
from xlperf.interop.software import STATED, Default, software_defaults

RELEASE = "software_release"
REPLICA = "replica"
"""Default of a micro batch: the whole batch of a replica."""
_FLAGS = {"yes": 1.0, "no": 0.0}
_LAYERS, _GENERATION = "layers", "generation"


class _Plans:
    """Plans whose blanks are being filled, of which some columns are still searched."""

    def __init__(self, plans: Table, catalog: Catalog, models: np.ndarray, searched: frozenset[str]) -> None:
        self.table = plans
        self._catalog, self._models, self._searched = catalog, models, searched

    def fill(self, default: Default, rows: np.ndarray) -> None:
        """Fill blanks of some rows with the settings of a default whose conditions hold."""
        settings = {name: value for name, value in default.settings.items() if name not in self._searched}
        if not settings or not self._searched.isdisjoint(default.conditions):
            return
        rows = self.holding(default, rows)
        for name, value in settings.items() if rows.any() else ():
            column = self.table.schema.by_name[name]
            values, blank = self._stated(column)
            filled = rows & blank
            if filled.any():
                given = self._replica_batch() if value == REPLICA else _value(column, value)
                self.table = self.table.with_columns({name: np.where(filled, given, values)})

    def holding(self, default: Default, rows: np.ndarray) -> np.ndarray:
        """Rows, of some, in which all conditions of a default hold."""
        for name, words in default.conditions.items():
            if rows.any():
                rows = rows & self._holds(name, words)
        return rows

    def _stated(self, column: Column) -> tuple[np.ndarray, np.ndarray]:
        """A column, and where it is blank."""
        if column.is_text:
            words = self.table.text(column.name)
            return words, np.asarray(words == "", dtype=bool)
        numbers = self.table.number(column.name)
        return numbers, np.isnan(numbers)

    def _holds(self, name: str, words: tuple[str, ...]) -> np.ndarray:
        """Rows in which a condition on a column, the kind of layers, or the machine's generation holds."""
        if name == _LAYERS:
            mixture = self._catalog.tables["models"].number("num_experts")[self._models] > 0.0
            return np.asarray(mixture == ("mixture" in words))
        if name == _GENERATION:
            rows = self._catalog.rows("accelerators", self.table.text("accelerator"), self.table, "accelerator")
            return _any_of(self._catalog.tables["accelerators"].text("generation")[rows], words)
        column = self.table.schema.by_name[name]
        if words in ((), (STATED,)):
            blank = self._stated(column)[1]
            return ~blank if words else blank
        return _any_of(self.table.filled(name), [_value(column, word) for word in words])

    def _replica_batch(self) -> Array:
        """Sequences of a replica and step; 1 if the batch is blank. [-]"""
        degrees = [self.table.filled(f"{name}_parallel") for name in ("tensor", "pipeline", "context")]
        stated, ranks = self.table.number("data_parallel"), degrees[0] * degrees[1] * degrees[2]
        replicas = np.where(np.isnan(stated), self.table.number("num_accelerators") / ranks, stated)
        batch = self.table.number("global_batch_size") / replicas
        return np.where(np.isnan(batch), 1.0, batch)


def _any_of(values: np.ndarray, words: Collection[float | str]) -> np.ndarray:
    return np.asarray(np.logical_or.reduce([np.asarray(values == word, dtype=bool) for word in words]))


def _value(column: Column, word: str) -> float | str:
    if column.is_text:
        return word
    return _FLAGS[word] if word in _FLAGS else float(word) * unit_of(column).factor


def _by_release(plans: Table) -> Iterator[tuple[np.ndarray, str, str]]:
    """Rows of each software and release of plans."""
    names = plans.filled("software")
    releases = plans.text(RELEASE) if RELEASE in plans else repeated("", len(names), object)
    if is_repeated(names) and is_repeated(releases):
        yield np.ones(len(names), dtype=bool), str(names[0]), str(releases[0])
        return
    codes: dict[tuple[str, str], int] = {}
    pairs = zip(names.tolist(), releases.tolist(), strict=True)
    of_row = np.array([codes.setdefault(pair, len(codes)) for pair in pairs])
    for (name, release), code in codes.items():
        yield of_row == code, name, release


def with_software_defaults(plans: Table, catalog: Catalog, models: np.ndarray, searched: Collection[str] = ()) -> Table:
    """Plans with blanks filled by ``software_defaults.csv``; other blanks have the schema's default.

    ``models``: rows of the plans in the sheet models; ``searched``: columns that a search leaves open. InputError for a
    release that cannot be compared.
    """
    result, faults = _Plans(plans, catalog, models, frozenset(searched)), []
    for rows, name, release in _by_release(plans):
        try:
            defaults = software_defaults(plans.kind, name, release)
        except ValueError:
            problem = f"software release must be a number such as 0.5.10 or 25.04, got {shown(release)}"
            faults += [Fault(plans.place(int(row), RELEASE), problem) for row in np.flatnonzero(rows)]
            continue
        for default in defaults:
            result.fill(default, rows)
    if faults:
        raise InputError(faults)
    return result.table


def memory_constants(plans: Table, catalog: Catalog, models: np.ndarray) -> dict[str, Array]:
    """Constants of the family serving_memory that hold at the releases of plans, NaN elsewhere, (rows, 1)."""
    filled, constants = _Plans(plans, catalog, models, frozenset()), declared_constants()["serving_memory"]
    result: dict[str, Array] = {}
    for rows, name, release in _by_release(plans):
        for default in software_defaults("memory", name, release):
            held = filled.holding(default, rows)
            for constant, value in default.settings.items():
                factor = UNITS[constants[constant].unit].factor
                column = result.setdefault(constant, np.full((len(plans), 1), np.nan))
                column[held & np.isnan(column[:, 0])] = float(value) * factor
    return result
