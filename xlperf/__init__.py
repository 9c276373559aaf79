"""xlperf: performance, memory and cost of training and serving large language models, from a spreadsheet.

A *plan* is a row: a model on accelerators with its parallel degrees, batch and precision.
:func:`evaluate` turns plans into results, :func:`explain` shows the operators of one, :func:`search` finds the best
that ``auto`` stands for; :func:`serve`, :func:`train`, :func:`chip` and :func:`sessions` answer a question. Each
function asks as the command of its name, takes DataFrames or dicts and gives a DataFrame. :func:`load_catalog` and
:func:`read_plans` read the sheets into tables, which :func:`xlperf.engine.evaluate` takes.
Names are imported when they are first used, so that ``import xlperf`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xlperf.base.errors import InputError, XlperfError
    from xlperf.catalog.catalog import Catalog, load_catalog
    from xlperf.catalog.read import read_plans
    from xlperf.catalog.table import Table
    from xlperf.notebook.functions import (
        chip,
        day,
        diagnose,
        evaluate,
        explain,
        fleet,
        quote,
        rl,
        search,
        serve,
        sessions,
        solve,
        spares,
        sweep,
        train,
        uncertainty,
        validate,
        with_own_runs,
        worth,
    )

__version__ = "0.1.0"

_FUNCTIONS = (
    "chip day diagnose evaluate explain fleet quote rl search serve sessions solve spares sweep train uncertainty "
    "validate with_own_runs worth"
).split()
_PUBLIC = dict.fromkeys(_FUNCTIONS, "xlperf.notebook.functions") | {
    "InputError": "xlperf.base.errors",
    "XlperfError": "xlperf.base.errors",
    "Table": "xlperf.catalog.table",
    "Catalog": "xlperf.catalog.catalog",
    "load_catalog": "xlperf.catalog.catalog",
    "read_plans": "xlperf.catalog.read",
}

__all__ = [
    "Catalog",
    "InputError",
    "Table",
    "XlperfError",
    "__version__",
    "chip",
    "day",
    "diagnose",
    "evaluate",
    "explain",
    "fleet",
    "load_catalog",
    "quote",
    "read_plans",
    "rl",
    "search",
    "serve",
    "sessions",
    "solve",
    "spares",
    "sweep",
    "train",
    "uncertainty",
    "validate",
    "with_own_runs",
    "worth",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'xlperf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
