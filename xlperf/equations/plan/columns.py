"""Plans as records of columns: what the schema of a sheet declares becomes the arguments of equations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Generic, Self, TypeVar, overload

import numpy as np

from xlperf.base.arrays import Array, Columns

Owner = TypeVar("Owner")
Value = TypeVar("Value")


class derived(Generic[Owner, Value]):  # noqa: N801 - a decorator, written as a property is
    """A property that is computed when it is first asked for, and kept.

    ``functools.cached_property`` takes a lock before Python 3.12, which a plan with forty of them notices.

    >>> class Die(PlanColumns):
    ...     area = derived(lambda die: die.width * die.height)
    >>> Die({"width": np.array([26.0]), "height": np.array([33.0])}).area.tolist()
    [858.0]
    """

    def __init__(self, compute: Callable[[Owner], Value]) -> None:
        self._compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type[Owner], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, record: None, owner: type[Owner]) -> Self: ...

    @overload
    def __get__(self, record: Owner, owner: type[Owner]) -> Value: ...

    def __get__(self, record: Owner | None, owner: type[Owner]) -> Self | Value:
        if record is None:
            return self
        found = record.__dict__[self._name] = self._compute(record)
        return found


class PlanColumns(Columns):
    """Columns of plans by name: ``plan.tensor_parallel``.

    The schema of a sheet says which columns there are: a number as it is, a yes or no as 1 or 0, a choice as its
    position among the choices. What follows from columns is a property of a subclass. A record never changes.
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Array: ...

    else:

        def __getattr__(self, name):
            raise AttributeError(f"{type(self).__name__} has no column {name}")

    def __init__(
        self,
        columns: Mapping[str, np.ndarray],
        words: Mapping[str, np.ndarray] | None = None,
        given: Collection[str] = (),
    ) -> None:
        """Columns by name; what the sheet says in those of words; and which columns the sheet has at all."""
        self.__dict__.update(columns, _columns=columns, _words=words or {}, _given=given)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} is read-only; replaced() makes a changed record")

    def __len__(self) -> int:
        columns: Mapping[str, np.ndarray] = self.__dict__["_columns"]
        return next((len(values) for values in columns.values() if values.ndim), 1)

    @property
    def numbers(self) -> Mapping[str, Array]:
        """The columns of numbers by name."""
        columns: Mapping[str, np.ndarray] = self.__dict__["_columns"]
        return {name: values for name, values in columns.items() if values.dtype != object}

    def has(self, name: str) -> bool:
        """Whether the sheet has a column; else every row has its default."""
        return name in self.__dict__["_given"]

    def words(self, name: str) -> np.ndarray:
        """What the sheet says in a column of words, (rows,); "" where it says nothing."""
        stated: Mapping[str, np.ndarray] = self.__dict__["_words"]
        return stated[name] if name in stated else np.full(len(self), "", dtype=object)

    def take(self, rows: np.ndarray | slice) -> Self:
        """The record of some rows, in the order given; a column of one value for all keeps it."""
        columns, words = (
            {name: values[rows] if values.ndim else values for name, values in self.__dict__[kind].items()}
            for kind in ("_columns", "_words")
        )
        return type(self)(columns, words, self.__dict__["_given"])

    def replaced(self, **columns: np.ndarray) -> Self:
        """A record with some columns changed or added; what follows from columns follows anew."""
        return type(self)({**self.__dict__["_columns"], **columns}, self.__dict__["_words"], self.__dict__["_given"])
