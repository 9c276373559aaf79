"""Arrays and numbers that every equation uses: float64, broadcasting, look-up; logarithms, powers, cube roots.

The latter are made of basic operations alone and have the same bits on every machine. C libraries and numpy's vector
instructions round them each in their own way; sums, products, quotients and square roots are rounded alike everywhere
(IEEE 754), and so is whatever is made of them in a fixed order. Reductions and polynomials of logarithm and exponential
are those of fdlibm 5.3 (K. C. Ng, Sun Microsystems, 1995). Errors are below 1.6 units in the last place, those of
:func:`power` below 2 and twice the logarithm of the result.
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
_SUMS, _BLOCK, _MANY = 8, 128, 512
_ONE_ROW = {(), (1,)}
_ONE_FOR_ALL = (0,)
_FEW_ROWS = 64
_Value: TypeAlias = Any
"""A float or an array: kernels use operators that both round alike."""
_SPAN = 4096
"""Elements that pass through a kernel at once, so that its intermediate values stay in the cache. [-]"""
_FEW = 8
"""Elements up to which floats one by one are faster than arrays. [-]"""
_ROUNDING = 1.5 * 2.0**52
"""Added and taken away again it leaves the nearest whole number."""
_MANTISSA_BITS = 52
_ROOT_HALF, _ROOT_HALF_BITS = 0.7071067811865476, 0x3FE6A09E667F3BCD
_PER_LN2 = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
"""ln 2 in two parts; products of the first with whole numbers below 2^20 are exact."""
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
"""Polynomial of r^(-1/3) between 0.909 and 1.1, to 1.5e-6: the seed's cube over its argument is in between."""
_CBRT_SEED = 0x2A9F7893 << 32
"""Two thirds of the bits of 1.0, less what makes the errors of the seed's straight line alike: 3.2 % at most."""
_TINY = 2.0**-1022
"""Smaller numbers have fewer digits and count as 0."""
_LEAST, _LARGEST = -708.0, 709.0
"""Exponents between which nothing overflows or loses digits. [-]"""
_TENS = np.array([float(f"1e{digits}") for digits in range(-307, 309)])
_EXPONENT_BITS = np.int64(0x7FF0000000000000)


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


def known_or(values: Numeric, other: Numeric) -> Array:
    """Values, and another number where they are not known (NaN): a third of the time of ``np.nan_to_num``.

    >>> known_or([1.0, np.nan], np.inf).tolist()
    [1.0, inf]
    """
    known = array(values)
    return np.where(np.isnan(known), other, known)


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


def added(values: Iterable[float]) -> float:
    """Sum of numbers from left to right: that of Python rounds otherwise from 3.12 on."""
    return reduce(float.__add__, values, 0.0)


def side_by_side(*values: Numeric) -> Array:
    """Values on a new last axis, broadcast against each other."""
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
    """Columns of several arrays beside each other, one column after the other in memory."""
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
    """Exponential less one, accurate near an exponent of 0 as well.

    >>> expm1([0.0, 1e-20, 1.0]).tolist()
    [0.0, 1e-20, 1.718281828459045]
    """
    return _bounded(_expm1, array(exponent))


def power(base: Numeric, exponent: Numeric) -> Array:
    """Power of a base that is not negative, 1 for an exponent of 0; NaN for other bases and where an argument is NaN.

    >>> power([4.0, 0.0, 3.0], [0.5, 0.0, 1.0]).tolist()
    [2.0, 1.0, 3.0]
    """
    of, by = np.broadcast_arrays(array(base), array(exponent))
    if of.size <= _FEW:
        pairs = list(zip(of.ravel().tolist(), by.ravel().tolist(), strict=True))
        if all(_TINY <= one < math.inf and abs(other) < _LARGEST for one, other in pairs):
            return np.array([_power(one, other) for one, other in pairs]).reshape(of.shape)
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
    """Largest power of ten that is not above a value; NaN where there is none.

    >>> decade([1000.0, 999.0, 0.02]).tolist()
    [1000.0, 100.0, 0.01]
    """
    known = array(value)
    place = np.searchsorted(_TENS, known, side="right") - 1
    return np.asarray(np.where((place >= 0) & (known < np.inf), _TENS[place], np.nan))


def octave_below(value: Numeric) -> Array:
    """Largest power of two that is not above a value, which is above 1e-300.

    >>> octave_below([1.0, 7.9, 8.0]).tolist()
    [1.0, 4.0, 8.0]
    """
    known = array(value)
    return np.where(known < np.inf, (known.view(np.int64) & _EXPONENT_BITS).view(np.float64), known)


def _positive(kernel: Callable[[_Value], _Value], values: Array) -> Array:
    """A kernel of numbers above 0, and its limits at 0 and infinity."""
    if values.size <= _FEW:
        few = values.ravel().tolist()
        if all(_TINY <= one < math.inf for one in few):
            return np.array([kernel(one) for one in few]).reshape(values.shape)
    sound = (values >= _TINY) & (values < np.inf)
    if np.count_nonzero(sound) == values.size:
        return _in_blocks(kernel, values)
    found = _in_blocks(kernel, np.where(sound, values, 1.0))
    at_zero = 0.0 if kernel is _cbrt else -np.inf
    limits = np.where((values >= 0.0) & (values < _TINY), at_zero, np.where(values > 0.0, values, np.nan))
    return np.asarray(np.where(sound, found, limits))


def _bounded(kernel: Callable[[_Value], _Value], values: Array) -> Array:
    """A kernel of exponents, and its limits where the result overflows or vanishes."""
    if values.size <= _FEW:
        few = values.ravel().tolist()
        if all(_LEAST < one < _LARGEST for one in few):
            return np.array([kernel(one) for one in few]).reshape(values.shape)
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
    found = np.empty(values.size)
    for start in range(0, values.size, _SPAN):
        found[start : start + _SPAN] = kernel(flat[start : start + _SPAN])
    return found.reshape(values.shape)


# Kernels change no argument, and their own intermediate values in place: an operator such as += is the same sum.


def _polynomial(value: _Value, first: float, *others: float) -> _Value:
    """By Horner's scheme, from the highest power."""
    found = value * first
    for factor in others[:-1]:
        found += factor
        found *= value
    found += others[-1]
    return found


def _logarithm(value: _Value) -> tuple[_Value, _Value, _Value]:
    """k, f and f - log(1 + f), where a value is (1 + f) 2^k and 1 + f between the root of a half and that of two."""
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
    """K and e^r - 1, where an exponent is k ln 2 + r and r at most half of ln 2."""
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
