"""Arrays of every equation: float64, broadcasting, look-up; logarithms, powers, cube roots with portable bits.

The elementary functions use sums, products, quotients and square roots in a fixed order, which IEEE 754 rounds alike on
every machine, unlike C libraries and numpy's vector instructions. Logarithm and exponential follow fdlibm 5.3 (K. C.
Ng, Sun Microsystems, 1995). Errors are below 1.6 units in the last place; :func:`power`
below 2 plus twice the logarithm of the result.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]
Numeric: TypeAlias = npt.ArrayLike
_FLOAT64 = np.dtype(np.float64)
_MOST = np.finfo(np.float64).max
_SUMS, _BLOCK, _MANY = 8, 128, 512
_ONE_ROW = {(), (1,)}
_ONE_FOR_ALL = (0,)
_FEW_ROWS = 64
_PER_ROW, _MOST_CODES = 8, 2**62
_Value: TypeAlias = Any  # A float or an array; both round the operators of a kernel alike
_SPAN = 4096  # elements per pass of a kernel, so that intermediate values stay in the cache [-]
_FEW = 8  # largest number of elements for which floats one by one are faster than arrays [-]
_ROUNDING = 1.5 * 2.0**52  # adding and subtracting it rounds to the nearest whole number
_MANTISSA_BITS = 52
_ROOT_HALF, _ROOT_HALF_BITS = 0.7071067811865476, 0x3FE6A09E667F3BCD
_PER_LN2 = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
"""ln 2 in two parts; the first times a whole number below 2^20 is exact."""
_LOG = (
    0.14798198605116586, 0.15313837699209373, 0.1818357216161805, 0.22222198432149784,
    0.2857142874366239, 0.3999999999940942, 0.6666666666666735,
)  # fmt: skip
_EXP = (
    4.1381367970572385e-08, -1.6533902205465252e-06, 6.613756321437934e-05,
    -0.0027777777777015593, 0.16666666666666602,
)  # fmt: skip
"""Coefficients of the polynomials, from the highest power."""
_CBRT = (-0.1713872265, 0.7376565081, -1.2944948515, 1.7282241574)
"""Polynomial of r^(-1/3) for r in 0.909 to 1.1, the range of the seed's cube over its argument; error 1.5e-6."""
_CBRT_SEED = 0x2A9F7893 << 32  # two thirds of the bits of 1.0, shifted to balance the errors of the seed, 3.2 % at most
_TINY = 2.0**-1022  # smaller numbers have fewer digits and count as 0
_LEAST, _LARGEST = -708.0, 709.0  # range of exponents without overflow or lost digits [-]
_TENS = np.array([float(f"1e{digits}") for digits in range(-307, 309)])
_EXPONENT_BITS = np.int64(0x7FF0000000000000)


class Columns:
    """Columns of a sheet by name, read on first use: ``device.num_dies``. The schema has unit and meaning.

    >>> node = Columns({"wafer_price": np.array([9346.0])}.__getitem__)
    >>> node.wafer_price.tolist()
    [9346.0]
    """

    def __init__(self, read: Callable[[str], np.ndarray]) -> None:
        self._read = read

    def __getattr__(self, name: str) -> np.ndarray:
        if name.startswith("_"):  # copy and pickle ask for methods, not columns
            raise AttributeError(name)
        values = self.__dict__[name] = self._read(name)
        return values

    def take(self, rows: npt.NDArray[Any]) -> Columns:
        """Columns at selected rows."""
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
    """Quotient rounded up: pieces of ``size`` for ``amount``.

    >>> float(ceil_div(9, 4))
    3.0
    """
    return np.asarray(np.ceil(array(amount) / array(size)))


def some(values: npt.NDArray[Any]) -> bool:
    """Whether any value is true or nonzero; several times as fast as ``any`` on few rows.

    >>> some(np.array([False, True])), some(np.zeros(2))
    (True, False)
    """
    if values.size == 1:
        return bool(values.item())
    if values.strides == _ONE_FOR_ALL and values.size:
        return bool(values[0])
    return bool(np.count_nonzero(values))


def is_repeated(column: npt.NDArray[Any]) -> bool:
    """Whether a column has one value for all of several rows, in a view of a single element.

    >>> is_repeated(np.broadcast_to(1.0, 3)), is_repeated(np.ones(3))
    (True, False)
    """
    return column.strides == _ONE_FOR_ALL and column.size > 1


def repeated(value: Any, number: int, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
    """A column of one value; a view of a single element if rows are many.

    >>> repeated(1.0, 3).tolist()
    [1.0, 1.0, 1.0]
    """
    if number < _FEW_ROWS:
        return np.full(number, value, dtype=dtype)
    return np.broadcast_to(np.array(value, dtype=dtype), number)


def mapped(look_up: Callable[[Any], Any], column: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """A function of each value of a column, or of the only value of a repeated one.

    >>> mapped({"a": 1.0, "b": 2.0}.__getitem__, np.array(["b", "a"], dtype=object), float).tolist()
    [2.0, 1.0]
    """
    if is_repeated(column):
        return repeated(look_up(column[0]), len(column), dtype)
    return np.array(list(map(look_up, column.tolist())), dtype=dtype)


def taken(column: npt.NDArray[Any], rows: npt.NDArray[Any] | slice) -> npt.NDArray[Any]:
    """Rows of a column by number, mask or slice, then a view; a repeated column stays one.

    >>> taken(np.array([4.0]), np.zeros(2, dtype=int)).tolist()
    [4.0, 4.0]
    """
    if isinstance(rows, slice) or not (is_repeated(column) or (len(column) == 1 and len(rows) >= _FEW_ROWS)):
        return np.asarray(column[rows])
    number = int(np.count_nonzero(rows)) if rows.dtype == np.bool_ else len(rows)
    return np.broadcast_to(column[:1] if number else column[:0], number)


def in_sequence(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | slice:
    """Consecutive numbers of rows as a slice, others unchanged.

    >>> in_sequence(np.array([2, 3, 4])), in_sequence(np.array([2, 4])).tolist()
    (slice(2, 5, None), [2, 4])
    """
    consecutive = len(rows) and not np.count_nonzero(rows[1:] - rows[:-1] != 1)
    return slice(int(rows[0]), int(rows[-1]) + 1) if consecutive else rows


def rows_of(values: npt.NDArray[Any], rows: npt.NDArray[np.int64], axis: int = 0) -> npt.NDArray[Any]:
    """Rows of a table of arrays; a view without memory of its own if all rows are the same.

    >>> rows_of(np.array([1.0, 2.0]), np.array([1, 0, 1])).tolist()
    [2.0, 1.0, 2.0]
    """
    index = rows.astype(np.intp, copy=False)  # of 32 bits in a browser
    if len(rows) < _FEW_ROWS or (not is_repeated(rows) and (rows != rows[0]).any()):
        return values.take(index, axis=axis)
    first = values.take(index[:1], axis=axis)
    return np.broadcast_to(first, (*first.shape[:axis], len(rows), *first.shape[axis + 1 :]))


def ones(values: npt.NDArray[Any]) -> Array:
    """Ones in the shape of an array.

    >>> ones(np.zeros(2)).tolist()
    [1.0, 1.0]
    """
    result = np.empty(values.shape)
    result.fill(1.0)
    return result


def divide(numerator: Numeric, denominator: Numeric, where_zero: float = 0.0) -> Array:
    """Quotient, or ``where_zero`` for a denominator of 0 (NaN stays NaN).

    >>> divide([1.0, 1.0], [2.0, 0.0]).tolist()
    [0.5, 0.0]
    """
    top, bottom = array(numerator), array(denominator)
    zero = bottom == 0
    if not some(zero):
        return np.asarray(top / bottom)
    quotient = np.asarray(top / np.where(zero, 1.0, bottom))
    return np.asarray(np.where(zero & ~np.isnan(top), where_zero, quotient), dtype=np.float64)


def known_or(values: Numeric, other: Numeric) -> Array:
    """Values, with another number for NaN; three times as fast as ``np.nan_to_num``.

    >>> known_or([1.0, np.nan], np.inf).tolist()
    [1.0, inf]
    """
    known = array(values)
    return np.where(np.isnan(known), other, known)


def finite(values: Array) -> Array:
    """Values with 0 for NaN and the largest number for infinity, as ``np.nan_to_num`` in a quarter of its time.

    >>> finite(np.array([1.0, np.nan, -np.inf])).tolist()
    [1.0, 0.0, -1.7976931348623157e+308]
    """
    known = np.where(np.isnan(values), 0.0, values)
    return np.asarray(np.minimum(np.maximum(known, -_MOST), _MOST))


def total(values: Numeric) -> Array:
    """Sum over the last axis, in the same order for one row and for a million."""
    terms = array(values)
    if terms.shape[-1:] == (1,):
        return terms[..., 0]
    number = terms.shape[-1] if terms.ndim > 1 else 0
    if terms.size < _MANY or not 0 < number <= _BLOCK:
        return np.asarray(np.add.reduce(np.ascontiguousarray(terms), -1))
    # The order of numpy for one row, column by column for all rows: eight interleaved sums, then the leftover terms.
    whole = number - number % _SUMS if number >= _SUMS else 1
    sums = [terms[..., column].copy() for column in range(min(whole, _SUMS))]
    for column in range(len(sums), whole):
        sums[column % _SUMS] += terms[..., column]
    while len(sums) > 1:
        sums = [sums[index] + sums[index + 1] for index in range(0, len(sums), 2)]
    for column in range(whole, number):
        sums[0] += terms[..., column]
    return np.asarray(sums[0])


def added(values: Iterable[float]) -> float:
    """Sum of numbers from left to right, without the compensation of ``sum`` from Python 3.12 on."""
    return reduce(float.__add__, values, 0.0)


def side_by_side(*values: Numeric) -> Array:
    """Values on a new last axis, broadcast against each other."""
    arrays = [array(value) for value in values]
    shapes = {value.shape for value in arrays}
    if shapes == {(1,)}:
        return np.concatenate(arrays)[None]
    if shapes <= _ONE_ROW:
        row = np.array([value.item() for value in arrays])
        return row[None] if (1,) in shapes else row
    shape = shapes.pop() if len(shapes) == 1 else np.broadcast(*arrays).shape
    # Column-major memory keeps a column of many plans contiguous.
    out = np.empty((*shape, len(arrays)), order="F")
    for index, value in enumerate(arrays):
        out[..., index] = value
    return out


def beside(*values: Array) -> Array:
    """Columns of several arrays side by side, in column-major memory."""
    if len(values[0]) == 1:
        return np.concatenate(values, axis=-1)
    out = np.empty((*values[0].shape[:-1], sum(each.shape[-1] for each in values)), order="F")
    return np.concatenate(values, axis=-1, out=out)


def coded(column: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], int]:
    """A number from 0 for each distinct value of a column, with equal bits for equal numbers; and how many there are.

    >>> codes, number = coded(np.array([4.0, 2.0, 4.0, np.nan]))
    >>> codes.tolist(), number
    ([1, 0, 1, 2], 3)
    """
    if is_repeated(column):
        return np.broadcast_to(np.int64(0), len(column)), 1
    if column.dtype == np.object_:
        seen = {value: code for code, value in enumerate(dict.fromkeys(column.tolist()))}
        return mapped(seen.__getitem__, column, np.int64), len(seen)
    bits = np.ascontiguousarray(column, dtype=None if column.dtype == _FLOAT64 else np.int64)
    places = _places(bits) if bits.dtype == _FLOAT64 else bits
    if places is not None and places.size and places.min() >= 0 and places.max() <= _PER_ROW * places.size:
        return _ranked(places)
    bits = bits.view(np.int64)
    if not (bits != bits[:1]).any():
        return np.zeros(len(bits), dtype=np.int64), min(len(bits), 1)
    known, codes = np.unique(bits, return_inverse=True)
    return codes, len(known)


def _places(column: Array) -> npt.NDArray[np.int64] | None:
    """Whole numbers as integers, one more than the largest of them for NaN; None for other numbers."""
    if not column.size or column.view(np.int64).min() < 0:  # negative, -0.0 included
        return None
    largest = np.fmax.reduce(column)
    if not largest < _PER_ROW * column.size:
        return None
    whole = np.where(np.isnan(column), largest + 1.0, column)
    places = whole.astype(np.int64)
    return places if (places == whole).all() else None


def _ranked(codes: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], int]:
    """Codes without gaps, in the same order; and how many there are."""
    present = np.zeros(int(codes.max()) + 1, dtype=bool)
    present[codes] = True
    rank = np.cumsum(present)
    return (rank - 1)[codes], int(rank[-1])


def combined(columns: Iterable[npt.NDArray[Any]], number_of_rows: int) -> npt.NDArray[np.int64]:
    """A number for each distinct combination of values of columns, (rows,).

    >>> combined([np.array([4.0, 2.0, 4.0]), np.array(["a", "a", "b"], dtype=object)], 3).tolist()
    [2, 0, 3]
    """
    codes, number = np.zeros(number_of_rows, dtype=np.int64), 1
    for column in columns:
        values, size = coded(column)
        if size > 1:
            if number * size > _MOST_CODES:
                codes, number = coded(codes)
            codes, number = codes * size + values, number * size
    return codes


def distinct_rows(*columns: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Index of the first row of each distinct combination, and the combination of each row.

    >>> first, which = distinct_rows(np.array([4.0, 2.0, 4.0]), np.array([np.nan, 1.0, np.nan]))
    >>> first.tolist(), which.tolist()
    ([1, 0], [1, 0, 1])
    """
    rows = len(columns[0])
    which, number = coded(combined(columns, rows))
    first = np.zeros(number, dtype=np.int64)
    first[which[::-1]] = np.arange(rows - 1, -1, -1)
    return first, which


def log(value: Numeric) -> Array:
    """Natural logarithm; -inf of 0, NaN below it.

    >>> log([1.0, 2.718281828459045, 0.0]).tolist()
    [0.0, 1.0, -inf]
    """
    return _positive(_log, array(value))


def log2(value: Numeric) -> Array:
    """Logarithm to base 2, exact for powers of two; -inf of 0, NaN below it.

    >>> log2([1.0, 8.0, 10.0]).tolist()
    [0.0, 3.0, 3.321928094887362]
    """
    return _positive(_log2, array(value))


def exp(exponent: Numeric) -> Array:
    """Exponential.

    >>> exp([0.0, 1.0, -1000.0]).tolist()
    [1.0, 2.718281828459045, 0.0]
    """
    return _bounded(_exp, array(exponent))


def expm1(exponent: Numeric) -> Array:
    """Exponential less one, accurate near 0.

    >>> expm1([0.0, 1e-20, 1.0]).tolist()
    [0.0, 1e-20, 1.718281828459045]
    """
    return _bounded(_expm1, array(exponent))


def power(base: Numeric, exponent: Numeric) -> Array:
    """Power of a base of at least 0, 1 for an exponent of 0; NaN for negative bases and NaN arguments.

    >>> power([4.0, 0.0, 3.0], [0.5, 0.0, 1.0]).tolist()
    [2.0, 1.0, 3.0]
    """
    of, by = array(base), array(exponent)
    if of.shape != by.shape:
        shape = np.broadcast(of, by).shape
        of, by = (each if each.shape == shape else np.broadcast_to(each, shape) for each in (of, by))
    if of.size <= _FEW:
        pairs = list(zip(of.ravel().tolist(), by.ravel().tolist(), strict=True))
        if all(_TINY <= root < math.inf and abs(by) < _LARGEST for root, by in pairs):
            return np.array([_power(root, by) for root, by in pairs]).reshape(of.shape)
    plain = (by == 0.0) | (by == 1.0)
    known = np.where(by == 1.0, of, 1.0 + 0.0 * of) if some(plain) else of
    if np.count_nonzero(plain) == plain.size:
        return np.asarray(known)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(plain, known, exp(by * log(of))))


def cbrt(value: Numeric) -> Array:
    """Cube root; NaN below 0.

    >>> cbrt([0.0, 8.0, 10.0]).tolist()
    [0.0, 2.0, 2.154434690031884]
    """
    return _positive(_cbrt, array(value))


def decade(value: Numeric) -> Array:
    """Largest power of ten up to a value; NaN if there is none.

    >>> decade([1000.0, 999.0, 0.02]).tolist()
    [1000.0, 100.0, 0.01]
    """
    known = array(value)
    place = np.searchsorted(_TENS, known, side="right") - 1
    return np.asarray(np.where((place >= 0) & (known < np.inf), _TENS[place], np.nan))


def octave_below(value: Numeric) -> Array:
    """Largest power of two up to a value above 1e-300.

    >>> octave_below([1.0, 7.9, 8.0]).tolist()
    [1.0, 4.0, 8.0]
    """
    known = array(value)
    return np.where(known < np.inf, (known.view(np.int64) & _EXPONENT_BITS).view(np.float64), known)


def _positive(kernel: Callable[[_Value], _Value], values: Array) -> Array:
    """A kernel of positive numbers, and its limits at 0 and infinity."""
    if values.size <= _FEW:
        few = values.ravel().tolist()
        if all(_TINY <= number < math.inf for number in few):
            return np.array([kernel(number) for number in few]).reshape(values.shape)
    sound = (values >= _TINY) & (values < np.inf)
    if np.count_nonzero(sound) == values.size:
        return _in_blocks(kernel, values)
    result = _in_blocks(kernel, np.where(sound, values, 1.0))
    at_zero = 0.0 if kernel is _cbrt else -np.inf
    limits = np.where((values >= 0.0) & (values < _TINY), at_zero, np.where(values > 0.0, values, np.nan))
    return np.asarray(np.where(sound, result, limits))


def _bounded(kernel: Callable[[_Value], _Value], values: Array) -> Array:
    """A kernel of exponents, and its limits beyond overflow and underflow."""
    if values.size <= _FEW:
        few = values.ravel().tolist()
        if all(_LEAST < number < _LARGEST for number in few):
            return np.array([kernel(number) for number in few]).reshape(values.shape)
    if np.count_nonzero((values > _LEAST) & (values < _LARGEST)) == values.size:
        return _in_blocks(kernel, values)
    unknown = np.isnan(values)
    bounded = np.minimum(np.maximum(np.where(unknown, 0.0, values), _LEAST - 40.0), _LARGEST + 1.0)
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.where(unknown, values, _in_blocks(kernel, bounded)))


def _in_blocks(kernel: Callable[[_Value], _Value], values: Array) -> Array:
    flat = values.reshape(-1)
    if values.size <= _SPAN:
        return np.asarray(kernel(flat)).reshape(values.shape)
    result = np.empty(values.size)
    for start in range(0, values.size, _SPAN):
        result[start : start + _SPAN] = kernel(flat[start : start + _SPAN])
    return result.reshape(values.shape)


# Kernels change their intermediate values in place, never an argument.


def _polynomial(value: _Value, first: float, *others: float) -> _Value:
    """By Horner's scheme, from the highest power."""
    result = value * first
    for factor in others[:-1]:
        result += factor
        result *= value
    result += others[-1]
    return result


def _logarithm(value: _Value) -> tuple[_Value, _Value, _Value]:
    """k, f and f - log(1 + f) of a value (1 + f) 2^k with 1 + f in sqrt(1/2) to sqrt(2)."""
    if isinstance(value, float):
        f, k = math.frexp(value)
        if f < _ROOT_HALF:
            f, k = 2.0 * f, k - 1
    else:
        bits = value.view(np.int64) - _ROOT_HALF_BITS
        bits >>= _MANTISSA_BITS
        k = bits + 0.0
        bits <<= _MANTISSA_BITS
        np.subtract(value.view(np.int64), bits, out=bits)
        f = bits.view(np.float64)
    f -= 1.0
    s = f / (f + 2.0)
    z = s * s
    series = _polynomial(z, *_LOG)
    series *= z
    rest = f * f
    rest *= 0.5
    series += rest
    series *= s
    rest -= series
    return k, f, rest


def _log(value: _Value) -> _Value:
    k, f, rest = _logarithm(value)
    rest -= k * _LN2_LOW
    rest -= f
    k *= _LN2_HIGH
    k -= rest
    return k


def _log2(value: _Value) -> _Value:
    k, f, rest = _logarithm(value)
    f -= rest
    f *= _PER_LN2
    k += f
    return k


def _scaled(value: _Value, k: _Value) -> _Value:
    return math.ldexp(value, int(k)) if isinstance(value, float) else np.ldexp(value, k.astype(np.int32))


def _rise(exponent: _Value) -> tuple[_Value, _Value]:
    """K and e^r - 1 of an exponent k ln 2 + r with r at most ln 2 / 2."""
    k = exponent * _PER_LN2
    k += _ROUNDING
    k -= _ROUNDING
    high = exponent - k * _LN2_HIGH
    low = k * _LN2_LOW
    r = high - low
    square = r * r
    share = _polynomial(square, *_EXP)
    share *= square
    share = r - share
    r *= share
    share = 2.0 - share
    r /= share
    low -= r
    high -= low
    return k, high


def _exp(exponent: _Value) -> _Value:
    k, rise = _rise(exponent)
    rise += 1.0
    return _scaled(rise, k)


def _expm1(exponent: _Value) -> _Value:
    k, rise = _rise(exponent)
    return _scaled(rise, k) + (_scaled(0.0 * rise + 1.0, k) - 1.0)


def _power(base: float, exponent: float) -> float:
    """Power of arrays: exponential of the exponent times the logarithm of the base."""
    if exponent == 1.0:
        return base
    product: float = exponent * _log(base)
    return float(_exp(product)) if _LEAST < product < _LARGEST else float(exp(product))


def _cbrt(value: _Value) -> _Value:
    """Cube root: a first guess from exponent and polynomial, then a step of Halley's method."""
    if isinstance(value, float):
        (bits,) = struct.unpack("<q", struct.pack("<d", value))
        (root,) = struct.unpack("<d", struct.pack("<q", bits // 3 + _CBRT_SEED))
    else:
        bits = value.view(np.int64) // 3
        bits += _CBRT_SEED
        root = bits.view(np.float64)
    cube = root * root
    cube *= root
    cube /= value
    root *= _polynomial(cube, *_CBRT)
    cube = root * root
    cube *= root
    step = cube - value
    cube += cube
    cube += value
    step /= cube
    step *= root
    root -= step
    return root
