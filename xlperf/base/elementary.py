r"""Logarithm, exponential, power and cube root from basic operations alone: the same bits on every machine.

C libraries and numpy's vector instructions round these functions each in their own way. Sums, products, quotients and
square roots are rounded alike everywhere (IEEE 754), and so is whatever is made of them in a fixed order. Errors are
below 1.5 units in the last place, those of :func:`power` below :math:`2 + 2 |\ln y|` for a result y.

References
----------
.. [1] K. C. Ng, "e_log.c" and "e_exp.c", in fdlibm 5.3, Sun Microsystems, 1995: reductions and polynomials.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, some

_Value: TypeAlias = Any
"""A float or an array: kernels use operators that both round alike."""
_BLOCK = 4096
"""Elements that pass through a kernel at once, so that its intermediate values stay in the cache. [-]"""
_FEW = 8
"""Elements up to which floats one by one are faster than arrays. [-]"""
_ROUNDING = 1.5 * 2.0**52
"""Added and taken away again it leaves the nearest whole number."""
_MANTISSA_BITS = 52
_ROOT_HALF, _ROOT_HALF_BITS = float.fromhex("0x1.6a09e667f3bcdp-1"), 0x3FE6A09E667F3BCD
_PER_LN2 = float.fromhex("0x1.71547652b82fep+0")
_LN2_HIGH, _LN2_LOW = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")
"""ln 2 in two parts; products of the first with whole numbers below 2^20 are exact."""
_LOG = (
    float.fromhex("0x1.2f112df3e5244p-3"),
    float.fromhex("0x1.39a09d078c69fp-3"),
    float.fromhex("0x1.7466496cb03dep-3"),
    float.fromhex("0x1.c71c51d8e78afp-3"),
    float.fromhex("0x1.2492494229359p-2"),
    float.fromhex("0x1.999999997fa04p-2"),
    float.fromhex("0x1.5555555555593p-1"),
)
_EXP = (
    float.fromhex("0x1.6376972bea4d0p-25"),
    float.fromhex("-0x1.bbd41c5d26bf1p-20"),
    float.fromhex("0x1.1566aaf25de2cp-14"),
    float.fromhex("-0x1.6c16c16bebd93p-9"),
    float.fromhex("0x1.555555555553ep-3"),
)
"""Coefficients of the polynomials, from the highest power."""
_CBRT = (-0.1713872265, 0.7376565081, -1.2944948515, 1.7282241574)
"""Polynomial of r^(-1/3) between 0.909 and 1.1, to 1.5e-6: the seed's cube over its argument is in between."""
_CBRT_SEED = 0x2A9F7893 << 32
"""Two thirds of the bits of 1.0, less what makes the errors of the seed's straight line alike: 3.2 % at most."""
_TINY = 2.0**-1022
"""Smaller numbers have fewer digits and count as 0."""
_LEAST, _LARGEST = -708.0, 709.0
"""Exponents between which nothing overflows or loses digits. [-]"""


def log(value: Numeric) -> Array:
    """Natural logarithm; -inf of 0, NaN below it.

    Parameters
    ----------
    value : numeric
        0 or more. [-]

    >>> log([1.0, 2.718281828459045, 0.0]).tolist()
    [0.0, 1.0, -inf]
    """
    return _positive(_log, array(value))


def log2(value: Numeric) -> Array:
    """Logarithm to base 2, exact for powers of two; -inf of 0, NaN below it.

    Parameters
    ----------
    value : numeric
        0 or more. [-]

    >>> log2([1.0, 8.0, 10.0]).tolist()
    [0.0, 3.0, 3.321928094887362]
    """
    return _positive(_log2, array(value))


def exp(exponent: Numeric) -> Array:
    """Exponential.

    Parameters
    ----------
    exponent : numeric
        Exponent. [-]

    >>> exp([0.0, 1.0, -1000.0]).tolist()
    [1.0, 2.718281828459045, 0.0]
    """
    return _bounded(_exp, array(exponent))


def expm1(exponent: Numeric) -> Array:
    """Exponential less one, accurate near an exponent of 0 as well.

    Parameters
    ----------
    exponent : numeric
        Exponent. [-]

    >>> expm1([0.0, 1e-20, 1.0]).tolist()
    [0.0, 1e-20, 1.718281828459045]
    """
    return _bounded(_expm1, array(exponent))


def power(base: Numeric, exponent: Numeric) -> Array:
    """Power of a base that is not negative; NaN for other bases and where an argument is NaN.

    Parameters
    ----------
    base : numeric
        0 or more. [-]
    exponent : numeric
        Exponent; 0 gives 1, 1 the base itself. [-]

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

    Parameters
    ----------
    value : numeric
        0 or more. [-]

    >>> cbrt([0.0, 8.0, 10.0]).tolist()
    [0.0, 2.0, 2.154434690031884]
    """
    return _positive(_cbrt, array(value))


def decade(value: Numeric) -> Array:
    """Largest power of ten that is not above a value; NaN where there is none.

    Parameters
    ----------
    value : numeric
        Above 0. [-]

    >>> decade([1000.0, 999.0, 0.02]).tolist()
    [1000.0, 100.0, 0.01]
    """
    known = array(value)
    place = np.searchsorted(_TENS, known, side="right") - 1
    return np.asarray(np.where((place >= 0) & (known < np.inf), _TENS[place], np.nan))


def octave_below(value: Numeric) -> Array:
    """Largest power of two that is not above a value.

    Parameters
    ----------
    value : numeric
        Above 0, and no smaller than 1e-300. [-]

    >>> octave_below([1.0, 7.9, 8.0]).tolist()
    [1.0, 4.0, 8.0]
    """
    bits = np.ascontiguousarray(array(value)).view(np.int64)
    return np.asarray((bits & _EXPONENT_BITS).view(np.float64)).reshape(np.shape(value))


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
    if values.size <= _BLOCK:
        return np.asarray(kernel(flat)).reshape(values.shape)
    found = np.empty(values.size)
    for start in range(0, values.size, _BLOCK):
        found[start : start + _BLOCK] = kernel(flat[start : start + _BLOCK])
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
    """As arrays of them: the same logarithm, product and exponential."""
    if exponent == 1.0:
        return base
    product: float = exponent * _log(base)
    return float(_exp(product)) if _LEAST < product < _LARGEST else float(exp(product))


def _cbrt(value: _Value) -> _Value:
    """A seed from the exponent, a polynomial, and a step of Halley's."""
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


_TENS = np.array([float(f"1e{digits}") for digits in range(-307, 309)])
_EXPONENT_BITS = np.int64(0x7FF0000000000000)
