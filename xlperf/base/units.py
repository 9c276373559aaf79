"""Unit symbols and the factor of each to the one unit that xlperf uses inside.

Inside there is one unit per quantity: B, B/s, FLOP, FLOP/s, s, Hz, W, J, USD, mm2, kg. Factors of a thousand or a
billion stand here and nowhere else. A header says its unit in parentheses: ``memory bandwidth (TB/s)``.
"""

from __future__ import annotations

from dataclasses import dataclass

from xlperf.base.errors import nearest

HOUR = 3600.0
YEAR = 8766.0 * HOUR
MILLION = 1e6

_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_SMALL = {"m": 1e-3, "u": 1e-6, "µ": 1e-6, "n": 1e-9, "p": 1e-12}


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit symbol: its dimension (the symbol used inside) and its factor to it."""

    symbol: str
    dimension: str
    factor: float


def _table() -> dict[str, Unit]:
    units: dict[str, Unit] = {}

    def add(symbol: str, dimension: str, factor: float) -> None:
        units[symbol] = Unit(symbol, dimension, factor)

    for symbol in ("-", "1"):
        add(symbol, "-", 1.0)
    add("%", "-", 0.01)
    for prefix in ("k", "M", "G", "T"):
        add(prefix, "-", _DECIMAL[prefix])
    for prefix, factor in {**_DECIMAL, **_BINARY}.items():
        add(f"{prefix}B", "B", factor)
        add(f"{prefix}B/s", "B/s", factor)
    for prefix, factor in _DECIMAL.items():
        add(f"{prefix}bit/s", "B/s", factor / 8.0)
        add(f"{prefix}FLOP", "FLOP", factor)
        add(f"{prefix}FLOP/s", "FLOP/s", factor)
        add(f"{prefix}FLOP/B", "FLOP/B", factor)
        add(f"{prefix}W", "W", factor)
        add(f"{prefix}J", "J", factor)
        add(f"{prefix}Hz", "Hz", factor)
        add(f"{prefix}USD", "USD", factor)
        add(f"{prefix}token/s", "token/s", factor)
    for prefix, factor in {"": 1.0, **_SMALL}.items():
        add(f"{prefix}s", "s", factor)
        add(f"{prefix}J/B", "J/B", factor)
        add(f"{prefix}J/bit", "J/B", 8.0 * factor)
        add(f"{prefix}J/FLOP", "J/FLOP", factor)
    add("min", "s", 60.0)
    add("h", "s", HOUR)
    add("day", "s", 24.0 * HOUR)
    add("year", "s", YEAR)
    add("kWh", "J", 1e3 * HOUR)
    add("MWh", "J", 1e6 * HOUR)
    add("USD/h", "USD/s", 1.0 / HOUR)
    add("USD/s", "USD/s", 1.0)
    add("USD/kWh", "USD/J", 1.0 / (1e3 * HOUR))
    add("USD/MWh", "USD/J", 1.0 / (1e6 * HOUR))
    add("USD/J", "USD/J", 1.0)
    add("USD/GB", "USD/B", 1e-9)
    add("USD/B", "USD/B", 1.0)
    add("USD/Mtoken", "USD/token", 1e-6)
    add("USD/token", "USD/token", 1.0)
    add("token/USD", "token/USD", 1.0)
    add("Mtoken/USD", "token/USD", 1e6)
    add("J/token", "J/token", 1.0)
    add("token/s/W", "token/s/W", 1.0)
    add("token/s/MW", "token/s/W", 1e-6)
    add("request/s", "request/s", 1.0)
    add("mm2", "mm2", 1.0)
    add("cm2", "mm2", 100.0)
    add("1/mm2", "1/mm2", 1.0)
    add("1/cm2", "1/mm2", 0.01)
    add("mm", "mm", 1.0)
    add("um", "mm", 1e-3)
    add("cm", "mm", 10.0)
    add("USD/mm2", "USD/mm2", 1.0)
    add("M/mm2", "1/mm2", _DECIMAL["M"])
    add("um2/bit", "mm2/B", 8e-6)
    add("mm2/B", "mm2/B", 1.0)
    add("W/mm2", "W/mm2", 1.0)
    add("V", "V", 1.0)
    for prefix in ("", "G", "T"):
        add(f"{prefix}B/s/mm", "B/s/mm", _DECIMAL[prefix])
    add("USD/GB/s", "USD/(B/s)", 1e-9)
    add("USD/W", "USD/W", 1.0)
    add("USD/kW", "USD/W", 1e-3)
    add("kg", "kg", 1.0)
    add("t", "kg", 1e3)
    add("kg/h", "kg/s", 1.0 / HOUR)
    add("kg/s", "kg/s", 1.0)
    add("kg/kWh", "kg/J", 1.0 / (1e3 * HOUR))
    add("kg/J", "kg/J", 1.0)
    add("kg/cm2", "kg/mm2", 0.01)
    add("kg/mm2", "kg/mm2", 1.0)
    add("kg/GB", "kg/B", 1e-9)
    add("kg/GiB", "kg/B", 1.0 / 2**30)
    add("kWh/cm2", "J/mm2", 1e3 * HOUR * 0.01)
    add("J/mm2", "J/mm2", 1.0)
    add("kg/Mtoken", "kg/token", 1e-6)
    return units


UNITS: dict[str, Unit] = _table()


def unit(symbol: str) -> Unit:
    """Look a unit symbol up; case matters (GB and Gbit differ, so do m and M).

    Raises
    ------
    KeyError
        With a message that names the nearest known symbols.

    >>> unit("TB/s").factor
    1000000000000.0
    >>> unit("Gbit/s").factor
    125000000.0
    """
    found = UNITS.get(symbol.strip().replace("²", "2"))
    if found is None:
        raise KeyError(f'unknown unit "{symbol}"; {nearest(symbol, UNITS)}')
    return found


def factor(symbol: str) -> float:
    """Factor from a unit to the unit used inside.

    >>> factor("GiB")
    1073741824.0
    """
    return unit(symbol).factor
