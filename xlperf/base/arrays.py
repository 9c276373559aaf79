"""Array helpers that every equation uses, records of columns, and rules and remarks about their rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeAlias, TypeVar, overload

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]
Numeric: TypeAlias = npt.ArrayLike
_FLOAT64 = np.dtype(np.float64)
_SUMS, _BLOCK, _MANY = 8, 128, 512
_ONE_ROW = {(), (1,)}
_ONE_FOR_ALL = (0,)
_FEW_ROWS = 64


class Columns:
    """Columns of a sheet by name: ``device.num_dies``. The schema of the sheet gives unit and meaning of each.

    A column is read when it is first asked for: a row pays for what its equations use.

    >>> node = Columns({"wafer_price": np.array([9346.0])}.__getitem__)
    >>> node.wafer_price.tolist()
    [9346.0]
    """

    def __init__(self, read: Callable[[str], np.ndarray]) -> None:
        self._read = read

    def __getattr__(self, name: str) -> np.ndarray:
        if name.startswith("_"):  # no column: what copy and pickle look for
            raise AttributeError(name)
        found = self.__dict__[name] = self._read(name)
        return found

    def take(self, rows: npt.NDArray[Any]) -> Columns:
        """Columns of some of the rows."""
        return Columns(lambda name: getattr(self, name)[rows])


def array(values: Any) -> Array:
    """Values as a float64 array; the argument is never changed.

    >>> array([1, 2]).dtype
    dtype('float64')
    """
    if type(values) is np.ndarray and values.dtype is _FLOAT64:
        return values
    return np.asarray(values, dtype=np.float64)


def ceil_div(amount: Numeric, size: Numeric) -> Array:
    """Number of pieces of ``size`` that hold ``amount``.

    >>> float(ceil_div(9, 4))
    3.0
    """
    return np.asarray(np.ceil(array(amount) / array(size)))


def some(values: npt.NDArray[Any]) -> bool:
    """Whether any value is true or not 0; on few rows several times as fast as ``any``.

    >>> some(np.array([False, True])), some(np.zeros(2))
    (True, False)
    """
    if values.size == 1:
        return bool(values.item())
    if values.strides == _ONE_FOR_ALL and values.size:
        return bool(values[0])
    return bool(np.count_nonzero(values))


def rows_of(values: npt.NDArray[Any], rows: npt.NDArray[np.int64], axis: int = 0) -> npt.NDArray[Any]:
    """Rows of a table of arrays; where all are the same row, one that all share, which takes no memory.

    >>> rows_of(np.array([1.0, 2.0]), np.array([1, 0, 1])).tolist()
    [2.0, 1.0, 2.0]
    """
    index = rows.astype(np.intp, copy=False)  # of 32 bits in a browser
    if len(rows) < _FEW_ROWS or (rows != rows[0]).any():
        return values.take(index, axis=axis)
    one = values.take(index[:1], axis=axis)
    return np.broadcast_to(one, (*one.shape[:axis], len(rows), *one.shape[axis + 1 :]))


def ones(values: npt.NDArray[Any]) -> Array:
    """Ones in the shape of some values.

    >>> ones(np.zeros(2)).tolist()
    [1.0, 1.0]
    """
    found = np.empty(values.shape)
    found.fill(1.0)
    return found


def divide(numerator: Numeric, denominator: Numeric, where_zero: float = 0.0) -> Array:
    """Quotient, with ``where_zero`` where the denominator is 0 (NaN stays NaN).

    >>> divide([1.0, 1.0], [2.0, 0.0]).tolist()
    [0.5, 0.0]
    """
    top, bottom = array(numerator), array(denominator)
    zero = bottom == 0
    quotient = np.asarray(top / np.where(zero, 1.0, bottom))
    return np.asarray(np.where(zero & ~np.isnan(top), where_zero, quotient), dtype=np.float64)


def total(values: Numeric) -> Array:
    """Sum over the last axis, in the same order for one row as for a million.

    Parameters
    ----------
    values : numeric
        Any shape with the reduced axis last.

    Returns
    -------
    numeric
        The sum, one axis fewer.
    """
    terms = array(values)
    if terms.shape[-1:] == (1,):
        return terms[..., 0]
    number = terms.shape[-1] if terms.ndim > 1 else 0
    if terms.size < _MANY or not 0 < number <= _BLOCK:
        return np.asarray(np.add.reduce(np.ascontiguousarray(terms), -1))
    # As numpy adds up one row, column by column for all: terms in turn go to eight sums, those left over to the whole.
    whole = number - number % _SUMS if number >= _SUMS else 1
    sums = [terms[..., column].copy() for column in range(min(whole, _SUMS))]
    for column in range(len(sums), whole):
        sums[column % _SUMS] += terms[..., column]
    while len(sums) > 1:
        sums = [sums[index] + sums[index + 1] for index in range(0, len(sums), 2)]
    found = sums[0]
    for column in range(whole, number):
        found += terms[..., column]
    return np.asarray(found)


def side_by_side(*values: Numeric) -> Array:
    """Values on a new last axis, broadcast against each other.

    Parameters
    ----------
    *values : numeric
        Arrays that broadcast against each other.

    Returns
    -------
    numeric
        Their common shape, and as many columns as values.

    >>> side_by_side([1.0, 2.0], 3.0).tolist()
    [[1.0, 3.0], [2.0, 3.0]]
    """
    arrays = [array(value) for value in values]
    shapes = {value.shape for value in arrays}
    if shapes <= _ONE_ROW:
        row = np.concatenate([value.reshape(1) for value in arrays] if () in shapes else arrays)
        return row[None] if (1,) in shapes else row
    shape = shapes.pop() if len(shapes) == 1 else np.broadcast(*arrays).shape
    # Column after column in memory: a column that many plans share is then read along with each.
    out = np.empty((*shape, len(arrays)), order="F")
    for index, value in enumerate(arrays):
        out[..., index] = value
    return out


def beside(*values: Array) -> Array:
    """Columns of several arrays beside each other, one column after the other in memory.

    Parameters
    ----------
    *values : Array
        Alike but for the number of columns, the last axis.

    Returns
    -------
    Array
        All their columns.

    >>> beside(np.array([[1.0], [2.0]]), np.array([[3.0, 4.0], [5.0, 6.0]])).tolist()
    [[1.0, 3.0, 4.0], [2.0, 5.0, 6.0]]
    """
    if len(values[0]) == 1:
        return np.concatenate(values, axis=-1)
    out = np.empty((*values[0].shape[:-1], sum(each.shape[-1] for each in values)), order="F")
    return np.concatenate(values, axis=-1, out=out)


def distinct_rows(*columns: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """First of the rows that are alike in some columns, and which of these each row is like.

    >>> first, which = distinct_rows(np.array([4.0, 2.0, 4.0]), np.array([np.nan, 1.0, np.nan]))
    >>> first.tolist(), which.tolist()
    ([1, 0], [1, 0, 1])
    """
    codes = np.zeros(len(columns[0]), dtype=np.int64)
    for values in columns:
        if values.strides == _ONE_FOR_ALL:
            continue
        bits = np.ascontiguousarray(array(values)).view(np.int64)
        if (bits != bits[0]).any():
            known, inverse = np.unique(bits, return_inverse=True)
            codes = codes * len(known) + inverse
            if len(known) > 2**20:  # no overflow of the codes
                codes = np.unique(codes, return_inverse=True)[1]
    _, first, which = np.unique(codes, return_index=True, return_inverse=True)
    return first, which


# --- records of columns ----------------------------------------------------------------------------------------------

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


P = TypeVar("P", bound=PlanColumns)
M = TypeVar("M")
_PLACE = re.compile(r"\{([\w.]+)\}")


@dataclass(frozen=True)
class Rule(Generic[P, M]):
    """A rule of legality as data: where a plan breaks it, and the reason.

    ``reason`` names columns in braces, ``{tensor_parallel}`` of the plan, ``{model.num_layers}`` of its model, and
    ``{words.recompute_modules}`` what the sheet says. ``column`` is an optional column that the rule is about: a
    sheet without it cannot break the rule.
    """

    broken: Callable[[P, M], np.ndarray]
    reason: str
    column: str = ""

    def values(self, plan: P, model: M) -> tuple[np.ndarray, ...]:
        """The columns that the reason names, (rows,) each."""
        return tuple(_named(name, plan, model) for name in _PLACE.findall(self.reason))


class Remark(NamedTuple):
    """A sentence about some plans: which, and what it says of them; ``{}`` takes the row's values."""

    rows: np.ndarray
    sentence: str
    values: tuple[np.ndarray, ...] = ()

    def take(self, rows: slice) -> Remark:
        """The sentence about some of the plans."""
        return Remark(self.rows[rows], self.sentence, tuple(values[rows] for values in self.values))


def _named(name: str, plan: PlanColumns, model: object) -> np.ndarray:
    kind, _, column = name.rpartition(".")
    if kind == "words":
        return plan.words(column)
    return np.asarray(getattr(model if kind == "model" else plan, column))


def broken_rules(rules: Sequence[Rule[P, M]], plan: P, model: M) -> list[Remark]:
    """The rules that some of the plans break.

    Parameters
    ----------
    rules : sequence of Rule
        In the order in which they are said.
    plan : PlanColumns
        Plans, (rows,).
    model : Model
        Their models, (rows,).

    Returns
    -------
    list of Remark
        Which plans break each of them, and the reason.
    """
    found = []
    for rule in rules:
        if rule.column and not plan.has(rule.column):
            continue
        rows = rule.broken(plan, model)
        if rows.item() if rows.size == 1 else some(rows):
            found.append(Remark(rows, _PLACE.sub("{}", rule.reason), rule.values(plan, model)))
    return found


def remarks_of_rows(remarks: Sequence[Remark], num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Join the sentences about each row.

    Parameters
    ----------
    remarks : sequence of Remark
        In the order in which they are said.
    num_rows : int
        Rows of the table.

    Returns
    -------
    tuple of np.ndarray
        Whether there is any (bool), and the sentences joined by "; " (object array of str).
    """
    remarked = np.zeros(num_rows, dtype=bool)
    sentences = np.full(num_rows, "", dtype=object)
    for remark in remarks:
        if not (remark.rows.item() if num_rows == 1 else some(remark.rows)):
            continue
        rows = np.flatnonzero(remark.rows)
        remarked[rows] = True
        before = sentences[rows].tolist()
        sentences[rows] = [
            f"{one}; {more}" if one else more for one, more in zip(before, _said(remark, rows), strict=True)
        ]
    return remarked, sentences


def _said(remark: Remark, rows: np.ndarray) -> list[str]:
    """The sentence for some rows; equal values are put into words once."""
    if not remark.values:
        return [remark.sentence.format()] * len(rows)
    columns = [_in_words(column[rows].tolist()) for column in remark.values]
    parts = remark.sentence.split("{}")
    if len(parts) == 2 and len(columns) == 1:
        return [f"{parts[0]}{word}{parts[1]}" for word in columns[0]]
    if len(parts) == 3 and len(columns) == 2:
        first, middle, last = parts
        return [f"{first}{one}{middle}{other}{last}" for one, other in zip(*columns, strict=True)]
    return [remark.sentence.format(*words) for words in zip(*columns, strict=True)]


def _in_words(values: list[object]) -> list[str]:
    """Values of a column as a sentence says them; equal ones are put into words once."""
    known = {value: _plain(value) for value in set(values)}
    return [known[value] for value in values]


def _plain(value: object) -> str:
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else f"{value:g}"
    return str(value)
