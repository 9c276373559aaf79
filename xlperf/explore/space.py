"""A space of plans: the combinations of values of some columns that keep the rules, built column by column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from xlperf.arrays import Array
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.errors import Fault, InputError
from xlperf.evaluate.columns import catalog_arrays
from xlperf.workload.model import Model

MOST_ACCELERATORS = {"training": 16_384, "inference": 512}
"""Accelerators that a search of their number goes up to, by kind of plan. [-]"""

Mask = npt.NDArray[np.bool_]
Legal = Callable[[Any], Mask]


def divisors(*counts: float) -> list[float]:
    """Whole numbers that divide any of some counts, from the smallest.

    Parameters
    ----------
    *counts : float
        Whole numbers; those below 1 and NaN have no divisors. [-]

    Returns
    -------
    list of float
        Each once.

    >>> divisors(12.0, 8.0)
    [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0]
    """
    found: set[float] = set()
    for count in set(counts):
        if not count >= 1.0:
            continue
        low = np.arange(1.0, np.floor(np.sqrt(count)) + 1.0)
        low = low[count % low == 0.0]
        found.update(low.tolist(), (count / low).tolist())
    return sorted(found)


def divides(size: Array | float, number: Array | float) -> Mask:
    """Whether whole parts of a size make up a number.

    >>> divides(3.0, np.array([6.0, 7.0])).tolist()
    [True, False]
    """
    return np.asarray(np.mod(number, size) == 0.0)


def powers_of_two(most: float) -> list[float]:
    """1, 2, 4 ... up to a number.

    >>> powers_of_two(9.0)
    [1.0, 2.0, 4.0, 8.0]
    """
    return [2.0**power for power in range(64) if 2.0**power <= most]


@dataclass
class Space:
    """Combinations so far: rows of plans, and the values that columns of them take.

    Attributes
    ----------
    base : Table
        One plan, with every combination of the stated values of columns that no other depends on.
    asked : mapping of str to array or None
        Columns that are searched: the stated values, None where the rules say which there are.
    model : Model
        Shapes of the models of the rows of the base.
    longest : array
        Longest context of these models, NaN where it is not known. [-]
    most : int
        Combinations at the most.
    rows : array of int
        Which row of the base each combination has.
    found : dict of str to array
        Values of the columns that were crossed, one per combination.
    """

    base: Table
    asked: Mapping[str, np.ndarray | None]
    model: Model
    longest: Array
    most: int
    rows: np.ndarray = field(init=False)
    found: dict[str, np.ndarray] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.rows = np.arange(len(self.base))

    def __len__(self) -> int:
        return len(self.rows)

    def number(self, name: str) -> Array:
        """Values of a number column with the default where it is blank; NaN where that is none."""
        return self.found[name] if name in self.found else np.asarray(self.base.filled(name)[self.rows])

    def text(self, name: str) -> np.ndarray:
        """Values of a text column with the default where it is blank."""
        return self.found[name] if name in self.found else self.base.filled(name)[self.rows]

    def known(self, name: str) -> Array:
        """Values of a degree, 1 where it is blank or not crossed yet."""
        if name in self.asked and name not in self.found:
            return np.ones(len(self))
        return np.nan_to_num(self.number(name), nan=1.0)

    def above_one(self, name: str) -> Mask:
        """Where a degree is above 1."""
        return np.asarray(self.known(name) > 1.0)

    def shape(self, name: str) -> Array:
        """A column of the model of each combination."""
        return np.asarray(getattr(self.model, name)[self.rows])

    @property
    def all(self) -> Mask:
        """True for each combination."""
        return np.ones(len(self), dtype=bool)

    def cross(
        self,
        name: str,
        domain: Sequence[float | str],
        legal: Legal,
        apart: Legal | None = None,
        blank: Callable[[], Mask] | None = None,
    ) -> None:
        """Cross the combinations with the values of a column, if it is searched.

        Parameters
        ----------
        name : str
            Column.
        domain : sequence
            Values to try where none are stated, in the order in which equal plans are preferred.
        legal : callable
            For a value: which combinations it may stand in, (combinations,).
        apart : callable, optional
            The same for values of the domain alone: False where another value makes the same plan.
        blank : callable, optional
            Which combinations the column says nothing in: there it stays blank.

        Raises
        ------
        InputError
            Where the combinations become more than there may be.
        """
        if name not in self.asked:
            return
        stated = self.asked[name]
        values = list(domain) if stated is None else stated.tolist()
        without = blank() if blank is not None and (stated is None or "mode" in self.asked) else ~self.all
        kept = []
        for value in values:
            good = ~without & legal(value)
            if stated is None and apart is not None:
                good = good & apart(value)
            kept.append(np.flatnonzero(good))
        if without.any():
            values.append(float("nan"))
            kept.append(np.flatnonzero(without))
        index = np.concatenate(kept) if kept else np.zeros(0, dtype=np.int64)
        self.count(len(index))
        which = np.repeat(np.arange(len(values)), [len(rows) for rows in kept])
        order = np.argsort(index, kind="stable")
        self.keep(index[order])
        text = self.base.schema.by_name[name].is_text
        self.found[name] = np.array(values, dtype=object if text else np.float64)[which[order]]

    def count(self, number: int) -> None:
        """Refuse more combinations than there may be."""
        if number > self.most:
            words = ", ".join(name.replace("_", " ") for name in self.asked)
            problem = (
                f"more than {self.most:,} plans to try: write values for some of {words}, or allow more (--most of the "
                "commands)"
            )
            raise InputError(Fault(self.base.place(0, next(iter(self.asked), "")), problem))

    def keep(self, index: np.ndarray) -> None:
        """Some combinations, by mask or by number, in the order given."""
        self.rows = self.rows[index]
        self.found = {name: values[index] for name, values in self.found.items()}

    def table(self) -> Table:
        """The combinations as plans; places are those of the plan."""
        place = self.base.place
        taken = {name: values[self.rows] for name, values in self.base.columns.items()}
        columns = {**taken, **self.found}
        order = [column.name for column in self.base.schema.columns if column.name in columns]
        rows = self.rows
        return Table(
            self.base.kind, {name: columns[name] for name in order}, lambda row, column: place(int(rows[row]), column)
        )


def space_of(base: Table, asked: Mapping[str, np.ndarray | None], catalog: Catalog, most: int) -> Space:
    """A space that has nothing but the rows of its base.

    Parameters
    ----------
    base : Table
        One plan, with every combination of the stated values of columns that no other depends on.
    asked : mapping of str to array or None
        Columns that are searched.
    catalog : Catalog
        With the models.
    most : int
        Combinations at the most.

    Returns
    -------
    Space
        To be crossed.

    Raises
    ------
    InputError
        Where a model is not known, or the base has more rows than there may be.
    """
    rows = catalog.rows("models", base.text("model"), base, "model")
    arrays = catalog_arrays(catalog, np.zeros(0, dtype=np.int64))
    space = Space(base, asked, Model(*arrays.model[:, rows]), arrays.max_sequence_length[rows], most)
    space.count(len(base))
    return space
