"""Blank columns of plans filled with what their software does by default at its release."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from xlperf.base.arrays import Array, is_repeated, repeated
from xlperf.base.errors import Fault, InputError
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
        for name, words in default.conditions.items():
            rows = rows & self._holds(name, words)
            if not rows.any():
                return
        for name, value in settings.items():
            column = self.table.schema.by_name[name]
            values, blank = self._stated(column)
            filled = rows & blank
            if filled.any():
                given = self._replica_batch() if value == REPLICA else _value(column, value)
                self.table = self.table.with_columns({name: np.where(filled, given, values)})

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


def with_software_defaults(plans: Table, catalog: Catalog, models: np.ndarray, searched: Collection[str] = ()) -> Table:
    """Plans with blanks filled by ``software_defaults.csv``; other blanks have the schema's default.

    ``models``: rows of the plans in the sheet models; ``searched``: columns that a search leaves open. InputError for a
    release that cannot be compared.
    """
    pairs = plans.filled("software"), plans.text(RELEASE)
    codes: dict[tuple[str, str], int] = {}
    if all(map(is_repeated, pairs)):
        codes[(pairs[0][0], pairs[1][0])] = 0
        of_row = repeated(0, len(plans))
    else:
        named = zip(*(words.tolist() for words in pairs), strict=True)
        of_row = np.array([codes.setdefault(pair, len(codes)) for pair in named])
    result, faults = _Plans(plans, catalog, models, frozenset(searched)), []
    for (name, release), code in codes.items():
        rows = of_row == code
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
