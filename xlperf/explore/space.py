"""Spaces of plans: grids of stated values, and the combinations of searched columns, crossed one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.cells import BadValue, is_blank, parse_header
from xlperf.catalog.parse import convert
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table, place_of_row
from xlperf.engine.catalog_arrays import catalog_arrays
from xlperf.equations.model.model import Model

MOST_PLANS = 1_000_000
"""Rows of a grid at the most: more is a slip rather than a wish, and does not fit in memory."""


def read_values(
    kind: str, lines: Sequence[tuple[object, Sequence[object]]], place: str = "", from_text: bool = False
) -> dict[str, np.ndarray]:
    """Values to try for some columns of plans.

    Parameters
    ----------
    kind : str
        ``training`` or ``inference``.
    lines : sequence of (object, sequence)
        A header of a plan column, with or without a unit, and the values to try; blanks are left out.
    place : str
        Where the lines stand, for the messages.
    from_text : bool, default False
        Whether numbers arrive as text, as on a command line.

    Returns
    -------
    dict of str to array
        Canonical column -> values in the units used inside.

    Raises
    ------
    InputError
        With every fault.
    """
    faults: list[Fault] = []
    values: dict[str, np.ndarray] = {}
    for header, cells in lines:
        parsed = parse_header(kind, [header])
        found_faults = [Fault(place, one.problem, one.hint) for one in parsed.faults if one.position == 0]
        if found_faults or not parsed.fields:
            faults += found_faults or [Fault(place, f'"{header}" is no column of {kind} plans')]
            continue
        field = parsed.fields[0]
        found: list[float | str] = []
        for cell in cells:
            if is_blank(cell):
                continue
            try:
                value = convert(replace(field), cell, from_text)
            except BadValue as bad:
                faults.append(Fault(place, str(bad)))
                continue
            if value is None:
                faults.append(Fault(place, f"{field.words} is auto: write values"))
            elif value not in found:
                found.append(value)
        if field.column.name in values:
            faults.append(Fault(place, f"{field.words} is given twice"))
        elif not found and not faults:
            faults.append(Fault(place, f"{field.words} has no values to try"))
        values[field.column.name] = np.array(found, dtype=object if field.column.is_text else np.float64)
    if faults:
        raise InputError(faults)
    return values


def grid(plans: Table, values: Mapping[str, np.ndarray], most: int = MOST_PLANS) -> Table:
    """Every plan with every combination of the values, which replace what the plan has in these columns.

    Parameters
    ----------
    plans : Table
        Training or inference plans.
    values : mapping of str to array
        Column -> values, in the units used inside.
    most : int
        Rows of the grid at the most.

    Returns
    -------
    Table
        The combinations of the first plan, then those of the second ...; the last column changes fastest. Places are
        those of the plans.

    Raises
    ------
    InputError
        Where the grid has more rows than there may be.
    """
    sizes = [len(column) for column in values.values()]
    count = int(np.prod(sizes, dtype=np.float64))
    if count * len(plans) > most:
        problem = f"the grid has {count * len(plans):,} plans, more than {most:,} (--most of the commands)"
        raise InputError(Fault("", problem))
    spread = plans.take(np.repeat(np.arange(len(plans)), count))
    columns = dict(spread.columns)
    each = count
    for name, column in values.items():
        each //= max(len(column), 1)
        columns[name] = np.tile(np.repeat(column, each), len(spread) // max(each * len(column), 1))
    auto = {name: mask for name, mask in spread.auto.items() if name not in values}
    order = [column.name for column in table_schema(plans.kind).columns if column.name in columns]
    return Table(plans.kind, {name: columns[name] for name in order}, spread.place, auto)


class TooMany(InputError):
    """More combinations than there may be."""


Mask = npt.NDArray[np.bool_]
Legal = Callable[[Any], Mask]
Value = Array | float


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


def common_divisor(one: Array, other: Array) -> Array:
    """Largest whole number that divides two; that of what is no whole number is 1.

    >>> common_divisor(np.array([12.0, 2.5]), np.array([8.0, 5.0])).tolist()
    [4.0, 1.0]
    """
    whole = (one == np.floor(one)) & (other == np.floor(other)) & (one >= 1.0) & (other >= 1.0)
    pair = (np.where(whole, values, 1.0).astype(np.int64) for values in (one, other))
    return np.gcd(*pair).astype(np.float64)


def powers_of_two(most: float) -> list[float]:
    """1, 2, 4 ... up to a number.

    >>> powers_of_two(9.0)
    [1.0, 2.0, 4.0, 8.0]
    """
    return [2.0**power for power in range(64) if 2.0**power <= most]


_BATCH = 16_384


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
    counts : sequence of array
        Numbers of accelerators that ``auto`` stands for, of each row of the base. [-]
    uneven : bool
        Whether chunks of a stage that do not share the layers out evenly are tried too.
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
    counts: Sequence[Array] = ()
    uneven: bool = True
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

    def cross_listed(
        self,
        name: str,
        number: Array,
        listed: Callable[[float], Sequence[float]],
        legal: Legal,
        blank: Callable[[], Mask] | None = None,
    ) -> None:
        """Cross the combinations with values that follow from a number of each, if the column is searched.

        As :meth:`cross`, but the values to try differ from one combination to the next and are few of many:
        divisors of what is left of the accelerators.

        Parameters
        ----------
        name : str
            Column.
        number : array
            What the values of each combination follow from, (combinations,).
        listed : callable
            Values to try for such a number, in the order in which equal plans are preferred.
        legal : callable
            For values, one per combination: where they may stand.
        blank : callable, optional
            As for :meth:`cross`.
        """
        if name not in self.asked or self.asked[name] is not None:
            self.cross(name, (), legal, blank=blank)
            return
        without = blank() if blank is not None else ~self.all
        numbers, which = np.unique(np.where(without, -1.0, number), return_inverse=True)
        lists = [[float("nan")] if one < 0.0 else listed(one) for one in numbers.tolist()]
        sizes = np.array([len(values) for values in lists], dtype=np.int64)
        starts = np.cumsum(sizes) - sizes
        flat = np.array([value for values in lists for value in values])
        kept, found, total = [], [], 0
        whole, taken = self.rows, dict(self.found)
        for start in range(0, len(whole), _BATCH):
            own = which[start : start + _BATCH]
            index = np.repeat(np.arange(start, start + len(own)), sizes[own])
            first = np.repeat(np.cumsum(sizes[own]) - sizes[own], sizes[own])
            values = flat[np.repeat(starts[own], sizes[own]) + np.arange(len(index)) - first]
            self.rows, self.found = whole[index], {key: column[index] for key, column in taken.items()}
            good = np.isnan(values) | legal(values)
            kept.append(index[good])
            found.append(values[good])
            total += len(kept[-1])
            self.count(total)
        self.rows, self.found = whole, taken
        self.keep(np.concatenate([*kept, np.zeros(0, dtype=np.int64)]))
        self.found[name] = np.concatenate([*found, np.zeros(0)])

    def cross_accelerators(self) -> None:
        """Cross the combinations with numbers of accelerators: those that their machines are sold in."""
        sold: dict[float, Mask] = {}
        for row, counts in enumerate(self.counts):
            for count in counts.tolist():
                sold.setdefault(count, np.zeros(len(self.counts), dtype=bool))[row] = True
        domain = sorted(sold)
        self.cross("num_accelerators", domain, lambda _: self.all, lambda value: sold[value][self.rows])

    def count(self, number: int) -> None:
        """Refuse more combinations than there may be."""
        if number > self.most:
            words = ", ".join(name.replace("_", " ") for name in self.asked)
            problem = (
                f"more than {self.most:,} plans to try: write values for some of {words}, or allow more (--most of the "
                "commands)"
            )
            raise TooMany(Fault(self.base.place(0, next(iter(self.asked), "")), problem))

    def keep(self, index: np.ndarray) -> None:
        """Some combinations, by mask or by number, in the order given."""
        self.rows = self.rows[index]
        self.found = {name: values[index] for name, values in self.found.items()}

    def table(self) -> Table:
        """The combinations as plans; places are those of the plan."""
        taken = {name: values[self.rows] for name, values in self.base.columns.items()}
        columns = {**taken, **self.found}
        order = [column.name for column in self.base.schema.columns if column.name in columns]
        place = partial(place_of_row, self.base.place, self.rows)
        return Table(self.base.kind, {name: columns[name] for name in order}, place)


def space_of(
    base: Table, asked: Mapping[str, np.ndarray | None], catalog: Catalog, most: int, counts: Sequence[Array] = ()
) -> Space:
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
    counts : sequence of array
        Numbers of accelerators that ``auto`` stands for, of each row of the base. [-]

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
    space = Space(base, asked, Model(*arrays.model[:, rows]), arrays.max_sequence_length[rows], most, counts)
    space.count(len(base))
    return space
