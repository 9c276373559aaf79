"""Array helpers that every equation uses: float64, broadcasting, whole-number division, look-up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

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

    ``values``: any shape with the reduced axis last. Returns the sum, one axis fewer.
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
