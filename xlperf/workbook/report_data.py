"""What a report is about: plans with their results, what became of each, and how to say a number in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from xlperf.base.errors import XlperfError
from xlperf.catalog.schema import Column, unit_of
from xlperf.catalog.table import Table
from xlperf.engine.join import POOLS, pool_rows

if TYPE_CHECKING:
    from xlperf.catalog.catalog import Catalog
    from xlperf.studies.outcome import Finding

REFUSED = "refused"
TOO_LARGE = "does not fit"
GOOD = "fits"
MEMORY_VIEWS = frozenset(f"memory_{what}" for what in (
    "reserved", "capacity", "layer_activations", "first_stage", "middle_stage", "last_stage",
    "low", "high", "share",
))  # fmt: skip
"""Results that are no part of the memory beside the others: wholes, ends of a band, and what is within a part."""


@dataclass(frozen=True)
class Plans:
    """Plans of one kind with their results, row by row; with a catalog, names are spelled as there."""

    plans: Table
    results: Table
    catalog: Catalog | None = None

    def __post_init__(self) -> None:
        if len(self.plans) != len(self.results) or self.results.kind != f"{self.plans.kind}_results":
            raise XlperfError(f"results of {self.plans.kind} plans do not match their plans")

    def __len__(self) -> int:
        return len(self.plans)

    @property
    def kind(self) -> str:
        """``training`` or ``inference``."""
        return self.plans.kind

    @property
    def inputs(self) -> list[Column]:
        """Plan columns that at least one plan fills."""
        return [column for column in self.plans.schema.by_name.values() if is_filled(self.plans, column)]

    @property
    def outputs(self) -> list[Column]:
        """Result columns, all that were computed."""
        return [column for column in self.results.schema.by_name.values() if column.name in self.results]

    def number(self, name: str) -> np.ndarray:
        """A result in the unit that the reader sees; NaN throughout where it was not computed."""
        column = self.results.schema.by_name.get(name)
        if column is None or name not in self.results:
            return np.full(len(self), np.nan)
        return self.results[name] / unit_of(column).factor

    def _called(self, kind: str, column: str) -> list[str]:
        names = self.plans.text(column)
        if self.catalog is None:
            return [str(name) for name in names]
        table = self.catalog.tables[kind]
        known = table.text(table.schema.key.name)
        return [str(known[row]) for row in self.catalog.rows(kind, names, self.plans, column)]

    @cached_property
    def models(self) -> list[str]:
        """Model of each plan as the catalog spells it, so that aliases are one model."""
        return self._called("models", "model")

    @cached_property
    def accelerators(self) -> list[str]:
        """Accelerator of each plan as the catalog spells it."""
        return self._called("accelerators", "accelerator")

    @cached_property
    def names(self) -> list[str]:
        """A name for each plan: its own, or model and accelerators."""
        shown = []
        for i, name in enumerate(self.plans.text("name")):
            count = self.plans.number("num_accelerators", 1.0)[i]
            shown.append(str(name) or f"{self.models[i]} on {count:g} x {self.accelerators[i]}")
        return shown

    @cached_property
    def states(self) -> list[str]:
        """Refused, does not fit, or fits; by the first result and the column ``fits``."""
        first = self.number(self.outputs[0].name)
        fits = self.results.number("fits")
        return [
            REFUSED if not np.isfinite(value) else TOO_LARGE if fit == 0 else GOOD
            for value, fit in zip(first, fits, strict=True)
        ]

    def where(self, *states: str) -> np.ndarray:
        """Rows in one of the states."""
        return np.flatnonzero(np.isin(np.array(self.states, dtype=object), states))

    def time_parts(self) -> list[Column]:
        """Parts of the time of a step, but those that are zero in every plan."""
        return self._present([column for column in self.outputs if column.name.startswith("time_")])

    def memory_parts(self) -> list[Column]:
        """Parts of the memory of the accelerator that needs most, but those that are zero in every plan."""
        named = [column for column in self.outputs if column.name.startswith("memory_")]
        return self._present([column for column in named if column.name not in MEMORY_VIEWS])

    def _present(self, columns: list[Column]) -> list[Column]:
        return [column for column in columns if np.nansum(self.number(column.name)) > 0]


@dataclass(frozen=True)
class Report:
    """All that a report shows."""

    catalog: Catalog
    groups: tuple[Plans, ...]
    operators: tuple[tuple[Plans, int, Table], ...]
    date: date
    study: str
    version: str
    found: tuple[Finding, ...] = ()

    def group(self, kind: str) -> Plans | None:
        """Plans of one kind, None where there are none."""
        return next((group for group in self.groups if group.kind == kind and len(group)), None)

    def index(self, kind: str, group: Plans) -> np.ndarray:
        """Row of the accelerators or of the models that each plan names."""
        column = {"models": "model", "accelerators": "accelerator"}[kind]
        found: np.ndarray = self.catalog.rows(kind, group.plans.text(column), group.plans, column)
        return found

    def used(self, kind: str) -> np.ndarray:
        """Rows of a catalog table that the plans use, in the order of the table."""
        table = self.catalog.tables[kind]
        if kind in ("accelerators", "models"):
            rows = [self.index(kind, group) for group in self.groups]
            if kind == "accelerators":
                rows += [
                    pool_rows(group.plans, self.catalog, self.index(kind, group), pool=pool)
                    for pool in POOLS
                    for group in self.groups
                ]
            return np.unique(np.concatenate(rows)) if rows else np.zeros(0, dtype=np.int64)
        accelerators = self.catalog.tables["accelerators"]
        names: set[str] = set()
        for group in self.groups:
            own = self.index("accelerators", group)
            own = np.concatenate([own, *(pool_rows(group.plans, self.catalog, own, pool=pool) for pool in POOLS)])
            if kind == "networks":
                given = np.tile(group.plans.text("network"), 1 + len(POOLS))
                shown = np.where(given == "", accelerators.text("default_network")[own], given)
            else:
                shown = accelerators.text("accelerator")[own]
            names.update(str(name).casefold() for name in shown)
        return np.array(
            [i for i, name in enumerate(table[table.schema.key.name]) if name.casefold() in names], dtype=int
        )


def is_filled(table: Table, column: Column) -> bool:
    """Whether any row of a table has a value in a column."""
    if column.name not in table:
        return False
    values = table[column.name]
    if column.name in table.auto and table.auto[column.name].any():
        return True
    return bool((values != "").any() if column.is_text else (~np.isnan(values)).any())


def extra_column(name: str, unit: str, meaning: str, kind: str = "result") -> Column:
    """A column that only a report has, in the shape of a schema column."""
    return Column("report", name, kind, unit, "", "", (), "", False, meaning)


def short(text: str, most: int = 46) -> str:
    """A text cut to a length, with an ellipsis where it was cut.

    >>> short("Llama", 10)
    'Llama'
    """
    return text if len(text) <= most else text[: most - 1].rstrip() + "\N{HORIZONTAL ELLIPSIS}"


def number_words(value: float) -> str:
    """A number as a reader would say it: three or four figures, thousands apart.

    >>> number_words(1234567.0), number_words(0.01234), number_words(12.345)
    ('1,230,000', '0.0123', '12.3')
    """
    if value == 0 or not np.isfinite(value):
        return "0" if value == 0 else "unknown"
    digits = max(0, 2 - int(np.floor(np.log10(abs(value)))))
    rounded = round(value, 2 - int(np.floor(np.log10(abs(value)))))
    return f"{rounded:,.{digits}f}"


def percent_words(share: float) -> str:
    """A share in percent.

    >>> percent_words(0.4567)
    '45.7 %'
    """
    return f"{100 * share:.1f} %"


def listed(words: Sequence[str], most: int = 4) -> str:
    """Words in a row, the last after "and"; says how many more there are.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    if len(words) > most:
        return f"{', '.join(words[:most])} and {len(words) - most} more"
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)


def distinct(values: Iterator[str] | Sequence[str]) -> list[str]:
    """Values without repeats, in the order of their first appearance."""
    return list(dict.fromkeys(values))


def plural(count: int, word: str) -> str:
    """A count with its noun.

    >>> plural(1, "plan"), plural(2, "plan")
    ('1 plan', '2 plans')
    """
    return f"{count:,} {word}{'' if count == 1 else 's'}"
