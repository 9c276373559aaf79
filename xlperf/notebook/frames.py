"""Input of notebooks: plans as DataFrames or dicts, a catalog, and the values of options.

Columns are named as on the sheets, with or without their unit, ``sequence length`` or ``sequence_length``.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from xlperf.base.errors import Fault, InputError, OptionError
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.cells import plan_kind
from xlperf.catalog.check import left_out, name_faults, taken_names, unread_in
from xlperf.catalog.parse import table_from_columns
from xlperf.catalog.table import Table
from xlperf.explore.vary import vary_line

Plans: TypeAlias = pd.DataFrame | Mapping[str, object] | Iterable[Mapping[str, object]]
"""A DataFrame, a mapping (one plan) or mappings; plans with a ``prompt length`` serve, all others train."""
GivenCatalog: TypeAlias = Catalog | str | os.PathLike[str] | None
"""A Catalog, or the path of a file as of ``--catalog``; None for the catalog of xlperf."""
Texts: TypeAlias = str | Sequence[str]  # one text, or several as of an option that may be repeated
Vary: TypeAlias = Mapping[str, object] | Texts
"""Values by column, ``{"tensor parallel": [1, 2], "networks.link bandwidth": "x0.5..x2"}``, or texts as of --vary."""
DELAY = 1.0  # time after which a notebook draws a bar [s]


def frame_of(plans: Plans) -> pd.DataFrame:
    """Plans as a DataFrame."""
    if isinstance(plans, pd.DataFrame):
        return plans
    if isinstance(plans, pd.Series):  # a row of a DataFrame
        return plans.to_frame().T
    rows = [plans] if isinstance(plans, Mapping) else list(plans) if isinstance(plans, Iterable) else None
    other = plans if rows is None else next((row for row in rows if not isinstance(row, Mapping)), None)
    if rows is None or other is not None:
        raise InputError(Fault("plans", f"must be a DataFrame, a dict or a list of dicts, got {type(other).__name__}"))
    return pd.DataFrame(rows, dtype=object)


def table_of(frame: pd.DataFrame) -> Table:
    """Plans as a table; InputError names each cell that cannot be read."""
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
        warnings.warn(f"columns that are not read: {', '.join(table.own)}", stacklevel=4)
    return table


def _place(index: pd.Index, row: int, column: str) -> str:
    if row < 0:
        return f'plans["{column}"]'
    label = repr(index[[row]].tolist()[0])
    return f'plans.loc[{label}, "{column}"]' if column else f"plans.loc[{label}]"


def one_plan(plan: Plans, function: str) -> Table:
    """The one plan that a function takes."""
    table = table_of(frame_of(plan))
    if len(table) != 1:
        raise InputError(Fault("plans", f"{function} takes one plan, got {len(table)}; choose a row"))
    return table


def catalog_of(given: GivenCatalog) -> tuple[Catalog, list[str]]:
    """The catalog that is given, and notes on sheets and rows of it that are not used."""
    if isinstance(given, Catalog):
        return given, left_out(given)
    if given is None or isinstance(given, (str, os.PathLike)):
        unread = unread_in(None if given is None else os.fspath(given))
        known = load_catalog(given)
        return known, [*map(str, unread), *left_out(known)]
    raise InputError(Fault("catalog", f"must be a Catalog or the path of a workbook, got {type(given).__name__}"))


def catalog_for(given: GivenCatalog, table: Table) -> tuple[Catalog, list[str]]:
    """The catalog of plans, and notes, on names that it spells otherwise too; InputError has every unknown name."""
    known, notes = catalog_of(given)
    faults = name_faults([table], known)
    if faults:
        raise InputError(faults)
    return known, [*notes, *taken_names([table], known)]


def text_of(value: object) -> str:
    """A value as the text of an option.

    >>> [text_of(value) for value in (8.0, np.float64(0.5), True, "x0.5..x2")]
    ['8', '0.5', 'yes', 'x0.5..x2']
    """
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    return f"{value:.15g}" if isinstance(value, (float, np.floating)) else str(value)


def texts_of(option: str, given: Texts | Mapping[str, object]) -> list[str]:
    """The texts of an option that may be repeated; a mapping gives a text for each entry.

    >>> texts_of("--measured", {"step time": 38.0})
    ['step time=38']
    """
    if isinstance(given, Mapping):
        return [f"{name}={text_of(value)}" for name, value in given.items()]
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, Iterable) or not all(isinstance(text, (str, os.PathLike)) for text in texts):
        raise OptionError(f"{option} takes a text or a list of texts, got {given!r}")
    return list(map(str, texts))


def lines_of(vary: Vary) -> list[tuple[str, list[str]]]:
    """Columns and the texts of their values.

    >>> lines_of({"tensor parallel": [1, 2], "precision": "bf16,fp8"})
    [('tensor parallel', ['1', '2']), ('precision', ['bf16', 'fp8'])]
    """
    if not isinstance(vary, Mapping):
        return [vary_line(text) for text in texts_of("--vary", vary)]
    lines = []
    for name, values in vary.items():
        if isinstance(values, Iterable) and not isinstance(values, str):
            texts = list(map(text_of, values))
        else:
            texts = text_of(values).split(",")
        lines.append((str(name), texts))
    return lines


def whole_number(option: str, value: object, least: int = 1) -> int:
    """A whole number as of an option; InputError for any other value."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(Fault(option, f"must be a whole number above {least - 1}, got {value!r}"))
    return int(value)


@contextmanager
def progress(length: int, label: str) -> Iterator[Callable[[int], None]]:
    """A bar in a notebook, if tqdm is installed; yields a function that adds the number of items done."""
    bar: Any = None
    if "ipykernel" in sys.modules:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a text stands in for a widget
            try:
                from tqdm.auto import tqdm

                bar = tqdm(total=length or None, desc=label, leave=False, delay=DELAY)
            except ModuleNotFoundError:
                pass

    def advance(done: int) -> None:
        if bar is not None:
            bar.update(done)

    try:
        yield advance
    finally:
        if bar is not None:
            bar.close()
