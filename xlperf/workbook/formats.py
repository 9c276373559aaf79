"""Number formats of columns: by name, by unit, or by how large the values are."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from xlperf.catalog.schema import Column

_COUNT = "#,##0"
_FORMATS = {
    "%": "0.0",
    "s": "[=0]0;[<10]0.0000;#,##0.00",
    "ms": "[=0]0;[<100]0.000;#,##0.0",
    "us": "[=0]0;[<1000]0.0##;#,##0",
    "h": "#,##0.0",
    "day": "#,##0.0",
    "year": "0.0#",
    "token/s": "[<100]0.00;#,##0",
    "token/s/MW": _COUNT,
    "request/s": "0.0##",
    "GiB": "[=0]0;[<10]0.00;#,##0.0",
    "MiB": "#,##0.0",
    "KiB": _COUNT,
    "MB": "[<100]0.00;#,##0",
    "TB/s": "0.00#",
    "GB/s": "#,##0.0##",
    "GHz": "0.000",
    "TFLOP/s": "#,##0.0",
    "GFLOP": "[<100]0.000;#,##0",
    "FLOP/B": "[<100]0.0;#,##0",
    "W": _COUNT,
    "MWh": "[<10]0.000;#,##0",
    "min": "#,##0.0",
    "T": "[<1]0.0000;#,##0.0##",
    "J/token": "[<10]0.0000;#,##0.0",
    "USD": _COUNT,
    "USD/h": "[<10]0.000;#,##0.0",
    "USD/kWh": "0.000",
    "USD/mm2": "[<100]0.00##;#,##0",
    "MUSD": "#,##0.0",
    "1/cm2": "0.00#",
    "kg/cm2": "0.00#",
    "kg/kWh": "0.00#",
    "kWh/cm2": "0.00#",
    "USD/kW": _COUNT,
    "USD/Mtoken": "[<10]0.0000;#,##0.00",
    "mm2": "#,##0.0",
    "G": "#,##0.0##",
}
_BY_NAME = {
    "year": "0",
    "value": "General",
    "error": "0.0%",
    "mfu": "0.0%",
    "hfu": "0.0%",
    "goodput": "0.0%",
    "utilization": "0%",
    "opex_share": "0.0%",
    "power_usage_effectiveness": "0.00",
    "oversubscription": "0.0#",
}
_SHARES = ("_yield", "_share", "_ratio", "_coverage", "discount_rate", "dies_per_wafer")


def number_format(column: Column) -> str:
    """Number format of a column, by its name or else by its unit.

    Parameters
    ----------
    column : Column
        A column of the schema.

    Returns
    -------
    str
        An Excel number format.

    >>> from xlperf.catalog.schema import column
    >>> number_format(column("training_results", "mfu"))
    '0.0%'
    """
    if column.is_text or column.kind in ("flag", "result-flag"):
        return "General"
    if column.unit in ("", "-"):
        share = column.name.endswith(_SHARES)
        return _BY_NAME.get(column.name, "0.0##" if share else _COUNT)
    return _FORMATS.get(column.unit, "[<10]0.00##;#,##0.0")


def fitted_format(column: Column, shown: Iterable[Any]) -> str:
    """Number format of a result column with as many decimals as its values ask for, so that points stand in a line.

    Parameters
    ----------
    column : Column
        A column of the schema.
    shown : iterable
        Its values as cells show them.

    Returns
    -------
    str
        An Excel number format: three figures of all but the smallest values, powers of ten where that shows nothing.

    >>> from xlperf.catalog.schema import column
    >>> fitted_format(column("training_results", "step_time"), [5.2148, 39.08, 0.0])
    '[=0]0;[<0.005]0.0E+00;#,##0.00'

    Sections with a condition lose the sign of what is below 0, so changes are shown without powers of ten.

    >>> fitted_format(column("cost_bridge", "cost_change"), [0.0472, -0.0114])
    '#,##0.0000;-#,##0.0000;0'
    """
    own = [v for v in shown if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)]
    numbers = sorted(abs(v) for v in own if v)
    if (
        column.table == "study"
        and column.unit == "-"
        and numbers
        and all(number.is_integer() for number in map(float, numbers))
    ):
        return _COUNT
    if not column.is_result or column.unit in ("", "%") or not numbers:
        return number_format(column)
    if column.unit == "-" and column.table != "study":
        return number_format(column)
    decimals = min(max(2 - math.floor(math.log10(numbers[len(numbers) // 10])), 0), 4)
    digits = f"#,##0.{'0' * decimals}" if decimals else "#,##0"
    if min(own) < 0.0:
        return f"{digits};-{digits};0"
    return f"[=0]0;[<{0.5 * 10**-decimals:.{decimals + 1}f}]0.0E+00;{digits}"
