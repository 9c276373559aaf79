"""Unit symbols and the factor of each to the internal unit of its quantity.

Internal units: B, B/s, FLOP, FLOP/s, s, Hz, W, J, USD, mm2, kg. No other module has decimal factors. A header has its
unit in parentheses: ``memory bandwidth (TB/s)``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from xlperf.base.errors import nearest

HOUR = 3600.0
DAY = 24.0 * HOUR
YEAR = 8766.0 * HOUR
MILLION = 1e6

_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_SMALL = {"m": 1e-3, "u": 1e-6, "µ": 1e-6, "n": 1e-9, "p": 1e-12}


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit symbol, its internal unit and the factor to it."""

    symbol: str
    dimension: str
    factor: float


_EVERY, _NONE = {**_DECIMAL, **_BINARY}, {"": 1.0}
_DOWN = {**_NONE, **_SMALL}
_TABLE: tuple[tuple[str, str, float, dict[str, float]], ...] = (
    ("-", "-", 1.0, _NONE),
    ("1", "-", 1.0, _NONE),
    ("%", "-", 0.01, _NONE),
    ("", "-", 1.0, {prefix: _DECIMAL[prefix] for prefix in ("k", "M", "G", "T")}),
    ("B", "B", 1.0, _EVERY),
    ("B/s", "B/s", 1.0, _EVERY),
    ("bit/s", "B/s", 1.0 / 8.0, _DECIMAL),
    *((symbol, symbol, 1.0, _DECIMAL) for symbol in ("FLOP", "FLOP/s", "FLOP/B", "W", "J", "Hz", "USD", "token/s")),
    ("s", "s", 1.0, _DOWN),
    ("J/B", "J/B", 1.0, _DOWN),
    ("J/bit", "J/B", 8.0, _DOWN),
    ("J/FLOP", "J/FLOP", 1.0, _DOWN),
    ("min", "s", 60.0, _NONE),
    ("h", "s", HOUR, _NONE),
    ("day", "s", 24.0 * HOUR, _NONE),
    ("year", "s", YEAR, _NONE),
    ("kWh", "J", 1e3 * HOUR, _NONE),
    ("MWh", "J", 1e6 * HOUR, _NONE),
    ("USD/h", "USD/s", 1.0 / HOUR, _NONE),
    ("USD/s", "USD/s", 1.0, _NONE),
    ("USD/kWh", "USD/J", 1.0 / (1e3 * HOUR), _NONE),
    ("USD/MWh", "USD/J", 1.0 / (1e6 * HOUR), _NONE),
    ("USD/J", "USD/J", 1.0, _NONE),
    ("USD/GB", "USD/B", 1e-9, _NONE),
    ("USD/B", "USD/B", 1.0, _NONE),
    ("USD/Mtoken", "USD/token", 1e-6, _NONE),
    ("USD/token", "USD/token", 1.0, _NONE),
    ("token/USD", "token/USD", 1.0, _NONE),
    ("Mtoken/USD", "token/USD", 1e6, _NONE),
    ("J/token", "J/token", 1.0, _NONE),
    ("token/s/W", "token/s/W", 1.0, _NONE),
    ("token/s/MW", "token/s/W", 1e-6, _NONE),
    ("request/s", "request/s", 1.0, _NONE),
    ("mm2", "mm2", 1.0, _NONE),
    ("cm2", "mm2", 100.0, _NONE),
    ("1/mm2", "1/mm2", 1.0, _NONE),
    ("1/cm2", "1/mm2", 0.01, _NONE),
    ("mm", "mm", 1.0, _NONE),
    ("um", "mm", 1e-3, _NONE),
    ("cm", "mm", 10.0, _NONE),
    ("USD/mm2", "USD/mm2", 1.0, _NONE),
    ("M/mm2", "1/mm2", 1e6, _NONE),
    ("um2/bit", "mm2/B", 8e-6, _NONE),
    ("mm2/B", "mm2/B", 1.0, _NONE),
    ("W/mm2", "W/mm2", 1.0, _NONE),
    ("V", "V", 1.0, _NONE),
    ("degC", "K", 1.0, _NONE),
    ("mm2*K/W", "mm2/(W/K)", 1.0, _NONE),
    ("B/s/mm", "B/s/mm", 1.0, {prefix: _DECIMAL[prefix] for prefix in ("", "G", "T")}),
    ("USD/GB/s", "USD/(B/s)", 1e-9, _NONE),
    ("USD/TFLOP/s", "USD/(FLOP/s)", 1e-12, _NONE),
    ("USD/W", "USD/W", 1.0, _NONE),
    ("USD/kW", "USD/W", 1e-3, _NONE),
    ("kg", "kg", 1.0, _NONE),
    ("t", "kg", 1e3, _NONE),
    ("kg/h", "kg/s", 1.0 / HOUR, _NONE),
    ("kg/s", "kg/s", 1.0, _NONE),
    ("kg/kWh", "kg/J", 1.0 / (1e3 * HOUR), _NONE),
    ("g/kWh", "kg/J", 1e-3 / (1e3 * HOUR), _NONE),
    ("kg/J", "kg/J", 1.0, _NONE),
    ("kg/cm2", "kg/mm2", 0.01, _NONE),
    ("kg/mm2", "kg/mm2", 1.0, _NONE),
    ("kg/GB", "kg/B", 1e-9, _NONE),
    ("kg/GiB", "kg/B", 1.0 / 2**30, _NONE),
    ("kWh/cm2", "J/mm2", 1e3 * HOUR * 0.01, _NONE),
    ("J/mm2", "J/mm2", 1.0, _NONE),
    ("kg/Mtoken", "kg/token", 1e-6, _NONE),
)
"""Symbol, internal unit, factor, and prefixes of the symbol."""

UNITS: dict[str, Unit] = {
    prefix + symbol: Unit(prefix + symbol, dimension, scale * factor)
    for symbol, dimension, factor, prefixes in _TABLE
    for prefix, scale in prefixes.items()
}


def unit(symbol: str) -> Unit:
    """A unit by its symbol, case-sensitive (GB and Gbit, m and M); KeyError with the nearest symbols."""
    known = UNITS.get(symbol.strip().replace("²", "2"))
    if known is None:
        raise KeyError(f'unknown unit "{symbol}"; {nearest(symbol, UNITS)}')
    return known


def factor(symbol: str) -> float:
    """Factor from a unit to the internal unit.

    >>> factor("GiB")
    1073741824.0
    """
    return unit(symbol).factor


def percent(fraction: float, digits: int = 1, signed: bool = False) -> str:
    """A fraction in percent as text; a dash for NaN.

    >>> percent(0.123), percent(0.123, 0), percent(0.123, signed=True), percent(math.nan)
    ('12.3 %', '12 %', '+12.3 %', '-')
    """
    return "-" if math.isnan(fraction) else f"{100.0 * fraction:{'+' if signed else ''}.{digits}f} %"
