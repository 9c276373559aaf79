"""Blank columns of plans filled with what their software does by default at its release."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.cells import shown
from xlperf.catalog.schema import Column, unit_of
from xlperf.catalog.table import Table, coded_words
from xlperf.interop.software import STATED, Default, software_defaults

RELEASE = "software_release"
REPLICA = "replica"
"""Default of a micro batch: the whole batch of a replica."""
_FLAGS = {"yes": 1.0, "no": 0.0}
_LAYERS, _GENERATION = "layers", "generation"


class _Plans:
    """Plans whose blank columns are being filled, some of their columns searched."""

    def __init__(self, plans: Table, catalog: Catalog, models: np.ndarray, searched: Collection[str]) -> None:
        self.table, self._plans, self._catalog, self._models = plans, plans, catalog, models
        self._searched = searched

    def fill(self, default: Default, rows: np.ndarray) -> None:
        """Fill blanks of some rows with the settings of a default whose conditions hold."""
        if not self._searched.isdisjoint(default.conditions):  # type: ignore[attr-defined]
            return
        for name, words in default.conditions.items():
            rows = rows & self._holds(name, words)
        if not rows.any():
            return
        for name, value in default.settings.items():
            if name in self._searched:
                continue
            column = self.table.schema.by_name[name]
            values = self.table.text(name) if column.is_text else self.table.number(name)
            filled = rows & ((values == "") if column.is_text else np.isnan(values))
            if filled.any():
                given = self._replica_batch() if value == REPLICA else _value(column, value)
                self.table = self.table.with_columns({name: np.where(filled, given, values).astype(values.dtype)})

    def _holds(self, name: str, words: tuple[str, ...]) -> np.ndarray:
        if name == _LAYERS:
            mixture = self._catalog.tables["models"].number("num_experts")[self._models] > 0.0
            return np.asarray(mixture if words == ("mixture",) else ~mixture)
        if name == _GENERATION:
            rows = self._catalog.rows("accelerators", self._plans.text("accelerator"), self._plans, "accelerator")
            return np.isin(self._catalog.tables["accelerators"].text("generation").astype(str)[rows], words)
        column = self.table.schema.by_name[name]
        stated = self.table.text(name) if column.is_text else self.table.number(name)
        blank = stated == "" if column.is_text else np.isnan(stated)
        if words in ((), (STATED,)):
            return np.asarray(blank if not words else ~blank)
        values = self.table.filled(name)
        return (
            np.isin(values.astype(str), words)
            if column.is_text
            else np.isin(values, [_value(column, word) for word in words])
        )

    def _replica_batch(self) -> Array:
        """Sequences of a replica and step, 1 where the batch is blank. [-]"""
        degrees = [self.table.filled(f"{name}_parallel") for name in ("tensor", "pipeline", "context")]
        replicas = self.table.number("num_accelerators") / (degrees[0] * degrees[1] * degrees[2])
        stated = self.table.number("data_parallel")
        batch = self.table.number("global_batch_size") / np.where(np.isnan(stated), replicas, stated)
        return np.where(np.isnan(batch), 1.0, batch)


def _value(column: Column, word: str) -> float | str:
    if column.is_text:
        return word
    return _FLAGS[word] if word in _FLAGS else float(word) * unit_of(column).factor


def with_software_defaults(plans: Table, catalog: Catalog, models: np.ndarray, searched: Collection[str] = ()) -> Table:
    """Plans with their blanks filled by ``software_defaults.csv``; blanks that it leaves have the schema's default.

    ``models``: their rows of the sheet models; ``searched``: columns that a search leaves open. InputError for a
    release that cannot be compared.
    """
    declared = plans.schema.by_name["software"].default
    names = plans.text("software", declared).tolist()
    releases = plans.text(RELEASE).tolist() if RELEASE in plans else [""] * len(names)
    pairs = coded_words(list(zip(names, releases, strict=True)))  # type: ignore[arg-type]
    defaults: list[tuple[Default, ...]] = []
    faults = []
    for code, (name, release) in enumerate(pairs.words):
        try:
            defaults.append(software_defaults(plans.kind, name, release))
        except ValueError:
            problem = f"software release must be a number such as 0.5.10 or 25.04, got {shown(release)}"
            rows = np.flatnonzero(pairs.codes == code)
            faults += [Fault(plans.place(int(row), RELEASE), problem) for row in rows]
    if faults:
        raise InputError(faults)
    result = _Plans(plans, catalog, models, frozenset(searched))
    for code, own in enumerate(defaults):
        rows = pairs.codes == code
        for default in own:
            result.fill(default, rows)
    return result.table
