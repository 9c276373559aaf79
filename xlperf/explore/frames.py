"""Pandas DataFrames of plans and results, for ``xlperf.evaluate``, ``xlperf.explain`` and ``xlperf.search``.

Columns are named as on the sheets, with or without their unit, ``sequence length`` or ``sequence_length``; results have
headers with units, ``step time (s)``. A call imports pandas.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from xlperf.base.errors import Fault, InputError
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.cells import plan_kind
from xlperf.catalog.measured_runs import as_runs, beside
from xlperf.catalog.parse import table_from_columns
from xlperf.catalog.schema import OWN_RUNS, unit_of
from xlperf.catalog.table import Table
from xlperf.engine.tables import explain as explain_table
from xlperf.engine.tables import refuse_auto
from xlperf.explore.auto import evaluate_resolved, resolve
from xlperf.explore.objectives import limits_of
from xlperf.explore.search import search as search_table

if TYPE_CHECKING:
    import pandas as pd

    Plans = pd.DataFrame | Mapping[str, object] | Iterable[Mapping[str, object]]


def evaluate(
    plans: Plans, catalog: Catalog | str | os.PathLike[str] | None = None, measured: Plans | None = None
) -> pd.DataFrame:
    """Results of plans, row for row, in the units of their headers.

    ``plans``: a DataFrame, a mapping (one plan) or an iterable of mappings; blank cells have defaults, a search chooses
    ``auto`` cells. Plans with a ``prompt length`` serve, all others train. ``catalog``: a Catalog, or the path of a
    workbook that holds one; by default the catalog of xlperf. ``measured``: runs of your own, plans with columns as
    ``measured step time (s)``, which correct the predictions. Returns a DataFrame with the index of ``plans``; the
    results of an illegal plan are NaN, with the fault in ``reason``. Raises InputError with a line for each cell that
    cannot be read.

    >>> plan = {"model": "Llama3-70B", "accelerator": "H100-SXM-80GB", "num accelerators": 64, "tensor parallel": 8}
    >>> results = evaluate([plan, {**plan, "tensor parallel": 3}])
    >>> results["reason"].str.contains("tensor parallel").tolist()
    [False, True]
    """
    frame = _frame(plans)
    _, results = evaluate_resolved(_table(frame), _taught(_catalog(catalog), measured))
    return _shown(results, frame.index)


def explain(
    plan: Plans, catalog: Catalog | str | os.PathLike[str] | None = None, measured: Plans | None = None
) -> pd.DataFrame:
    """Operators of one plan: FLOP, bytes, total and exposed time, and the bottleneck of each.

    ``plan``, ``catalog``, ``measured``: as for :func:`evaluate`. Returns a row for each operator; none for an illegal
    plan. Raises InputError as :func:`evaluate`, and if there is more than one plan.
    """
    known = _taught(_catalog(catalog), measured)
    return _shown(explain_table(resolve(_one(plan, "explain"), known).plans, known))


def search(
    plan: Plans,
    catalog: Catalog | str | os.PathLike[str] | None = None,
    objective: str = "",
    limits: Sequence[str] = (),
    top: int = 10,
    measured: Plans | None = None,
) -> pd.DataFrame:
    """The best of all candidates of a plan with ``auto`` cells.

    ``plan``, ``catalog``, ``measured``: as for :func:`evaluate`. ``objective``: a result to optimise, such as
    ``cost``; by default the objective of the command. ``limits``: limits on results, such as ``ttft<=500``. ``top``:
    most plans to return. Returns the columns of the plans beside their results, the best first. Raises InputError as
    :func:`evaluate`, if there is more than one plan, and if an objective or limit is not a result.
    """
    import pandas as pd

    table = _one(plan, "search")
    if not isinstance(objective, str):
        raise InputError(Fault("objective", f"must be the name of a result, got {type(objective).__name__}"))
    if isinstance(limits, str) or not isinstance(limits, Sequence) or not all(isinstance(one, str) for one in limits):
        raise InputError(Fault("limits", f"must be a list of texts such as 'ttft<=500', got {limits!r}"))
    if isinstance(top, bool) or not isinstance(top, (int, np.integer)) or top < 1:
        raise InputError(Fault("top", f"must be a whole number above 0, got {top!r}"))
    known = _taught(_catalog(catalog), measured)
    result = search_table(table, known, objective, limits_of(table.kind, limits, owned=True), top=top)
    return pd.concat([_shown(result.plans), _shown(result.results)], axis=1)


def _frame(plans: Plans) -> pd.DataFrame:
    import pandas as pd

    if isinstance(plans, pd.DataFrame):
        return plans
    if isinstance(plans, pd.Series):  # a row of a DataFrame
        return plans.to_frame().T
    rows = [plans] if isinstance(plans, Mapping) else list(plans) if isinstance(plans, Iterable) else None
    other = plans if rows is None else next((row for row in rows if not isinstance(row, Mapping)), None)
    if rows is None or other is not None:
        raise InputError(Fault("plans", f"must be a DataFrame, a dict or a list of dicts, got {type(other).__name__}"))
    return pd.DataFrame(rows, dtype=object)


def _catalog(given: Catalog | str | os.PathLike[str] | None) -> Catalog:
    if isinstance(given, Catalog):
        return given
    if given is None or isinstance(given, (str, os.PathLike)):
        return load_catalog(given)
    raise InputError(Fault("catalog", f"must be a Catalog or the path of a workbook, got {type(given).__name__}"))


def _taught(catalog: Catalog, measured: Plans | None) -> Catalog:
    """The catalog with measured runs beside its own."""
    if measured is None:
        return catalog
    runs = _table(_frame(measured))
    refuse_auto(runs)
    taught = catalog.with_tables([beside(catalog.tables[OWN_RUNS], [as_runs(runs)])])
    if taught.orphans.why.get(OWN_RUNS):
        raise InputError(taught.orphans.faults)
    return taught


def _table(frame: pd.DataFrame) -> Table:
    import pandas as pd

    columns: dict[str, np.ndarray] = {}
    for position, name in enumerate(map(str, frame.columns)):
        if name in columns:
            raise InputError(Fault("plans", f'column "{name}" stands twice; one is enough'))
        values = frame.iloc[:, position]
        if pd.api.types.is_bool_dtype(values.dtype) and not values.hasnans:
            columns[name] = values.to_numpy(dtype=bool)
        elif pd.api.types.is_numeric_dtype(values.dtype) and not pd.api.types.is_bool_dtype(values.dtype):
            columns[name] = values.to_numpy(dtype=np.float64, na_value=np.nan)
        else:
            columns[name] = values.astype(object).where(values.notna(), None).to_numpy(dtype=object)

    table = table_from_columns(plan_kind(tuple(columns)), columns, partial(_place, frame.index))
    if table.own:
        warnings.warn(f"columns that are not read: {', '.join(table.own)}", stacklevel=3)
    return table


def _place(index: pd.Index, row: int, column: str) -> str:
    return f'plans["{column}"]' if row < 0 else f'plans.loc[{index[[row]].tolist()[0]!r}, "{column}"]'


def _one(plan: Plans, function: str) -> Table:
    table = _table(_frame(plan))
    if len(table) != 1:
        raise InputError(Fault("plans", f"{function} takes one plan, got {len(table)}; choose a row"))
    return table


def _shown(table: Table, index: Any = None) -> pd.DataFrame:
    """Columns in the units of their headers; flags are True, False or NA."""
    import pandas as pd

    shown: dict[str, object] = {}
    for name, values in table.columns.items():
        column = table.schema.by_name[name]
        if values.dtype == object:
            shown[column.header] = values
        elif column.kind in ("flag", "result-flag"):
            flags = [None if value != value else value == 1.0 for value in values.tolist()]
            shown[column.header] = pd.Series(flags, dtype="boolean").array
        else:
            shown[column.header] = values / unit_of(column).factor
    return pd.DataFrame(shown, index=index)


__all__ = ["evaluate", "explain", "search"]
