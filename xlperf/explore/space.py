"""Spaces of plans: grids of stated values, and the combinations of searched columns, crossed one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from xlperf.base.arrays import Array, is_repeated, mapped, repeated, rows_of, taken
from xlperf.base.errors import Fault, InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.catalog_arrays import catalog_arrays
from xlperf.engine.join import choice_codes
from xlperf.engine.software import with_software_defaults
from xlperf.equations.model.model import Model
from xlperf.equations.plan.records import PlanColumns, Rule

MOST_PLANS = 1_000_000  # most rows of a grid: more is usually a mistake, and does not fit in memory


def grid(plans: Table, values: Mapping[str, np.ndarray], most: int = MOST_PLANS) -> Table:
    """Every plan with every combination of values, the last column fastest; InputError for more than ``most``."""
    sizes = [len(column) for column in values.values()]
    count = int(np.prod(sizes, dtype=np.float64))
    if count * len(plans) > most:
        problem = f"the grid has {count * len(plans):,} plans, more than {most:,} (--most of the commands)"
        raise InputError(Fault("", problem))
    spread = plans.take(np.repeat(np.arange(len(plans)), count))
    chosen = np.indices(sizes).reshape(len(sizes), count)
    crossed = {name: np.tile(column[at], len(plans)) for (name, column), at in zip(values.items(), chosen, strict=True)}
    return replace(spread.with_columns(crossed).in_order(), own={})


class TooMany(InputError):
    """More combinations than are allowed."""


Mask = npt.NDArray[np.bool_]


def divisors(*counts: float) -> list[float]:
    """Divisors of any of some whole numbers, ascending; numbers below 1 and NaN have none.

    >>> divisors(12.0, 8.0)
    [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0]
    """
    result: set[float] = set()
    for count in set(counts):
        if not count >= 1.0:
            continue
        low = np.arange(1.0, np.floor(np.sqrt(count)) + 1.0)
        low = low[count % low == 0.0]
        result.update(low.tolist(), (count / low).tolist())
    return sorted(result)


def divides(size: Array | float, number: Array | float) -> Mask:
    """Whether a size divides a number.

    >>> divides(3.0, np.array([6.0, 7.0])).tolist()
    [True, False]
    """
    return np.asarray(np.mod(number, size) == 0.0)


def common_divisor(first: Array, second: Array) -> Array:
    """Greatest common divisor; 1 for numbers that are not whole.

    >>> common_divisor(np.array([12.0, 2.5]), np.array([8.0, 5.0])).tolist()
    [4.0, 1.0]
    """
    whole = (first == np.floor(first)) & (second == np.floor(second)) & (first >= 1.0) & (second >= 1.0)
    pair = (np.where(whole, values, 1.0).astype(np.int64) for values in (first, second))
    return np.gcd(*pair).astype(np.float64)


def powers_of_two(most: float) -> list[float]:
    """1, 2, 4 ... up to a number.

    >>> powers_of_two(9.0)
    [1.0, 2.0, 4.0, 8.0]
    """
    return [2.0**power for power in range(64) if 2.0**power <= most]


_BATCH = 16_384


class NotChosen(AttributeError):
    """A column that has no value yet, or that a space does not have."""


class PartialPlan(PlanColumns):
    """Plans of a space with some columns still open; reading an open column raises :class:`NotChosen`.

    Rules of legality accept it in place of a whole plan.
    """

    blanks: ClassVar[Mapping[str, Callable[..., Array | float]]] = {}
    """Defaults that follow from other columns and from the longest sequence of the model."""
    open: ClassVar[frozenset[str]] = frozenset()  # columns that are chosen after the columns of the space
    _space: Space
    _rows: np.ndarray | None
    _chosen: Mapping[str, np.ndarray]

    def __init__(
        self, space: Space, rows: np.ndarray | None = None, chosen: Mapping[str, np.ndarray] | None = None
    ) -> None:
        """Combinations of a space, or some of them; ``chosen``: values of a column under trial."""
        self.__dict__.update(_space=space, _rows=rows, _chosen=chosen or {})

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            column = self._space.base.schema.by_name.get(name)
            if column is None or column.kind not in ("number", "flag", "choice") or name in self.open:
                raise NotChosen(name)
            if hasattr(type(self), name):  # a property that reads an open column
                raise NotChosen(name)
            values = self.filled(name)
            if column.kind == "choice":
                codes = choice_codes(column.table, name)
                values = mapped(codes.__getitem__, values, np.float64)
            elif name in self.blanks and np.isnan(values[:1] if is_repeated(values) else values).any():
                follows = self.blanks[name](self, taken(self._space.longest, self._base_rows))
                values = np.where(np.isnan(values), follows, values)
            self.__dict__[name] = values
            return values

    def __len__(self) -> int:
        return len(self._space) if self._rows is None else len(self._rows)

    @property
    def _base_rows(self) -> np.ndarray:
        return self._space.rows if self._rows is None else taken(self._space.rows, self._rows)

    @property
    def concerned(self) -> Mask | None:
        """Plans to which the rules apply; None for all."""
        return None

    def seen_as(self, record: type[Record]) -> Record:
        """The same plans as another record."""
        return record(self._space, self._rows, self._chosen)

    def has(self, name: str) -> bool:
        """Whether the plans have a column; else every row has its default."""
        return name in self._space.asked or name in self._space.settled

    def words(self, name: str) -> np.ndarray:
        """A column of words of the plans; "" if it is blank."""
        space = self._space
        if name in space.asked:
            return self.filled(name)
        return taken(space.settled.text(name), self._base_rows)

    def filled(self, name: str) -> np.ndarray:
        """A column of the plans, with the default for blanks; NaN or "" if there is no default."""
        if name in self._chosen:
            return self._chosen[name]
        if name in self._space.found:
            return self._space.found[name] if self._rows is None else self._space.found[name][self._rows]
        if name in self._space.asked:
            raise NotChosen(name)
        return taken(self._space.settled.filled(name), self._base_rows)

    def known(self, name: str) -> Array:
        """A degree, 1 if it is blank or still open."""
        try:
            return np.asarray(np.nan_to_num(self.filled(name), nan=1.0))
        except NotChosen:
            return np.ones(len(self))

    @property
    def model(self) -> Model:
        """Shapes of the models."""
        return cast(Model, _ModelRows(self._space.model, self._base_rows))


Record = TypeVar("Record", bound=PartialPlan)
Rules = Sequence[tuple[type[PartialPlan], Rule[Any]]]


class _ModelRows:
    """Some rows of the shapes of models, indexed on access."""

    def __init__(self, model: Model, rows: np.ndarray) -> None:
        self._model, self._rows = model, rows

    def __getattr__(self, name: str) -> Array:
        values: Array = taken(np.asarray(getattr(self._model, name)), self._rows)
        self.__dict__[name] = values
        return values


Where = Callable[[Any], Mask]
SPLIT = 256  # combinations of the first columns from which on the space is split into parts [-]


class Part(NamedTuple):
    """One of equal consecutive parts of a space."""

    number: int
    of: int

    @property
    def smaller(self) -> list[Part]:
        """The eight parts of this part."""
        return [Part(8 * self.number + turn, 8 * self.of) for turn in range(8)]


WHOLE = Part(0, 1)


@dataclass
class Space:
    """Legal combinations of values of the searched columns, built column by column."""

    base: Table  # one plan, with every combination of the stated values of independent columns
    settled: Table  # the same with the defaults of its software
    asked: Mapping[str, np.ndarray | None]  # searched columns: stated values, None if candidates follow from the plan
    model: Model  # shapes of the models of the rows of the base
    longest: Array  # longest context of these models, NaN if unknown [-]
    # Rules of legality and the record that each reads; a rule applies once all of its columns are chosen. Rules that
    # read no searched column are left to the evaluation, which reports the fault.
    rules: Rules
    most: int  # combinations [-]
    counts: Sequence[Array] = ()  # numbers of accelerators for ``auto``, of each row of the base [-]
    uneven: bool = True  # whether uneven virtual-pipeline chunks are included
    part: Part = WHOLE  # the part of the combinations to make
    record: type[PartialPlan] = field(init=False)  # of the first rule: the source of candidates
    rows: np.ndarray = field(init=False)  # row of the base of each combination
    found: dict[str, np.ndarray] = field(init=False, default_factory=dict)  # values of the crossed columns
    _split: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.rows = np.arange(len(self.base)) if len(self.base) > 1 else repeated(0, len(self.base), np.int64)
        self.record = self.rules[0][0]
        plans = {record: self.plan(record) for record, _ in self.rules}
        self.rules = [(record, rule) for record, rule in self.rules if _broken(rule, plans[record]) is None]

    def __len__(self) -> int:
        return len(self.rows)

    def plan(self, record: type[PartialPlan] | None = None) -> Any:
        """The combinations in the form that rules and equations read."""
        return (record or self.record)(self)

    def cross(
        self,
        name: str,
        values: Sequence[float | str] | Callable[[float], Sequence[float]],
        number: Array | None = None,
        legal: Where | None = None,
        distinct: Where | None = None,
        blank: Mask | None = None,
    ) -> None:
        """Cross the combinations with the values of a searched column, and drop combinations that break a rule.

        ``values``: to try if none are stated, the preferred of equal plans first; or a function of ``number`` of each
        combination. ``legal``: an additional rule. ``distinct``: False if another value that is not stated makes the
        same plan. ``blank``: combinations in which the column has no meaning and stays blank.
        """
        if name not in self.asked:
            return
        stated = self.asked[name]
        if stated is not None:
            values, number, distinct = stated.tolist(), None, None
        if blank is None or not (stated is None or "mode" in self.asked):
            blank = np.zeros(len(self), dtype=bool)
        # Values to try, listed once per distinct number: list k stands in ``flat`` from ``starts[k]`` on
        numbers, which = np.unique(np.where(blank, -1.0, 0.0 if number is None else number), return_inverse=True)
        lists: list[Sequence[Any]] = [
            [float("nan")] if number_ < 0.0 else values(number_) if callable(values) else values
            for number_ in numbers.tolist()
        ]
        sizes = np.array([len(listed) for listed in lists], dtype=np.intp)
        starts = np.cumsum(sizes) - sizes
        text = self.base.schema.by_name[name].is_text
        flat = np.array([value for listed in lists for value in listed], dtype=object if text else np.float64)
        index_parts, result, total = [np.zeros(0, dtype=np.int64)], [flat[:0]], 0
        applied: set[int] = set()
        for start in range(0, len(self), _BATCH):
            batch = which[start : start + _BATCH]
            # Each combination of the batch beside each of its values
            index = np.repeat(np.arange(start, start + len(batch)), sizes[batch])
            first = np.repeat(np.cumsum(sizes[batch]) - sizes[batch], sizes[batch])
            tried = flat[np.repeat(starts[batch], sizes[batch]) + np.arange(len(index)) - first]
            plan = self.record(self, index, {name: tried})
            # Rules that can be told by now: those of the caller, then those of the plan
            good = np.ones(len(index), dtype=bool)
            for keeps in (legal, distinct):
                if keeps is not None:
                    good &= keeps(plan)
            plans = {self.record: plan} | {
                record: plan.seen_as(record) for record, _ in self.rules if record is not self.record
            }
            for place, (record, rule) in enumerate(self.rules):
                broken = _broken(rule, plans[record])
                if broken is not None:
                    applied.add(place)
                    good &= ~broken
            good |= blank[index]
            index_parts.append(index[good])
            result.append(tried[good])
            total += len(index_parts[-1])
            self.count(total)
        self.rules = [pair for place, pair in enumerate(self.rules) if place not in applied]
        self.keep(np.concatenate(index_parts))
        self.found[name] = np.concatenate(result)
        # Processes that share a search take their part once there are enough combinations
        if len(self) >= SPLIT and not self._split:
            self._split = True
            before, after = self.part.number, self.part.number + 1
            self.keep(np.arange(len(self) * before // self.part.of, len(self) * after // self.part.of))

    def cross_accelerators(self) -> None:
        """Cross the combinations with the numbers of accelerators in which their machines are sold."""
        self.cross("num_accelerators", lambda row: self.counts[int(row)].tolist(), self.rows.astype(np.float64))

    def count(self, number: int) -> None:
        """Refuse more combinations than are allowed."""
        if number > self.most:
            words = ", ".join(name.replace("_", " ") for name in self.asked)
            problem = (
                f"more than {self.most:,} plans to try: write values for some of {words}, or allow more (--most of the "
                "commands)"
            )
            raise TooMany(Fault(self.base.place(0, next(iter(self.asked), "")), problem))

    def keep(self, index: np.ndarray) -> None:
        """Retain some combinations, by mask or by number, in the order given."""
        rows = taken(self.rows, index)
        self.rows = rows if len(self.base) > 1 else np.broadcast_to(np.int64(0), len(rows))
        self.found = {name: taken(values, index) for name, values in self.found.items()}

    def table(self) -> Table:
        """The combinations as plans, at the places of the original plan."""
        return replace(self.base.take(self.rows).with_columns(self.found).in_order(), auto={}, own={})


def _broken(rule: Rule[Any], plan: PartialPlan) -> np.ndarray | None:
    """Which plans break a rule; None while a column that it reads is open."""
    if rule.column and not plan.has(rule.column):
        return np.zeros(len(plan), dtype=bool)
    try:
        broken = rule.broken(plan, plan.model)
        return broken if plan.concerned is None else broken & plan.concerned
    except NotChosen:
        return None


def space_of(
    base: Table,
    asked: Mapping[str, np.ndarray | None],
    catalog: Catalog,
    rules: Rules,
    most: int,
    counts: Sequence[Array] = (),
    part: Part = WHOLE,
) -> Space:
    """Search space of the base rows alone, before the searched columns."""
    rows = catalog.rows("models", base.text("model"), base, "model")
    arrays = catalog_arrays(catalog, np.zeros(0, dtype=np.int64))
    model, longest = Model.of_rows(rows_of(arrays.model, rows, axis=1)), arrays.max_sequence_length[rows]
    settled = with_software_defaults(base, catalog, rows, asked)
    space = Space(base, settled, asked, model, longest, rules, most, counts, part=part)
    space.count(len(base))
    return space


def with_columns(plans: Table, **columns: object) -> Table:
    """Plans with some columns replaced, in the order of the schema; a scalar counts for all rows, and none is auto."""
    known = plans.schema.by_name
    replaced = dict(plans.columns)
    for name, value in columns.items():
        kind = object if known[name].is_text else np.float64
        replaced[name] = np.array(np.broadcast_to(np.asarray(value, dtype=kind), len(plans)))
    auto = {name: mask for name, mask in plans.auto.items() if name not in columns}
    return replace(plans, columns={name: replaced[name] for name in known if name in replaced}, auto=auto)
