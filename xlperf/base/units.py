"""Unit symbols and the factor of each to the internal unit of its quantity.

Internal units: B, B/s, FLOP, FLOP/s, s, Hz, W, J, USD, mm2, kg. No other module has decimal factors. A header has its
unit in parentheses: ``memory bandwidth (TB/s)``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from xlperf.base import resources
from xlperf.base.errors import nearest

HOUR = 3600.0
DAY = 24.0 * HOUR
YEAR = 8766.0 * HOUR
MILLION = 1e6

_PREFIXES = {
    "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18, "Ki": 2.0**10, "Mi": 2.0**20,
    "Gi": 2.0**30, "Ti": 2.0**40, "m": 1e-3, "u": 1e-6, "µ": 1e-6, "n": 1e-9, "p": 1e-12,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit symbol, its internal unit and the factor to it."""

    symbol: str
    dimension: str
    factor: float


def _units() -> Iterator[Unit]:
    """Units of ``units.csv`` with each of their prefixes; a factor is ``times`` over ``per``."""
    for row in resources.rows("base/units.csv"):
        factor = float(row["times"]) / float(row["per"] or 1.0)
        for prefix in row["prefixes"].replace("-", "").split(" "):
            yield Unit(prefix + row["unit"], row["inside"], _PREFIXES[prefix] * factor)


UNITS: dict[str, Unit] = {unit.symbol: unit for unit in _units()}


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
