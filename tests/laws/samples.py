"""What the laws share: all plans of a mode with their results, and a sentence that shows the plan that breaks a law."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from laws.random_plans import MODES, is_legal, legal_rows, table_of
from xlperf.arrays import Array
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.table import Table
from xlperf.evaluate import evaluate

NUMBER, SEED = (int(os.environ.get(name, value)) for name, value in (("XLPERF_LAWS", "60"), ("XLPERF_LAWS_SEED", "0")))
"""Plans of each mode, and which; a longer run: ``XLPERF_LAWS=2000 XLPERF_LAWS_SEED=1 pytest tests/laws``."""
SERVING = tuple(mode for mode in MODES if mode != "training")


@cache
def shipped() -> Catalog:
    """The shipped catalog, read once."""
    return load_catalog()


@cache
def plans_of(mode: str, number: int = NUMBER) -> Table:
    """Legal plans of a mode."""
    return table_of("training" if mode == "training" else "inference", legal_rows(mode, number, SEED))


@cache
def results_of(mode: str, number: int = NUMBER) -> Table:
    """Their results on the shipped catalog."""
    return evaluate(plans_of(mode, number), shipped())


def all_of(kind: str) -> tuple[Table, dict[str, slice]]:
    """Plans of all modes of a kind in one table, and the rows of each mode."""
    modes = ("training",) if kind == "training" else SERVING
    tables = [plans_of(mode) for mode in modes]
    columns = {name: np.concatenate([table[name] for table in tables]) for name in tables[0].columns}
    ends = np.cumsum([len(table) for table in tables]).tolist()
    rows = {mode: slice(end - len(table), end) for mode, table, end in zip(modes, tables, ends, strict=True)}
    return Table(kind, columns), rows


def changed(plans: Table, change: Mapping[str, Any]) -> Table:
    """Plans with some columns replaced; a single value stands for a column of them."""
    columns = dict(plans.columns)
    for name, value in change.items():
        text = columns[name].dtype == object
        columns[name] = np.array(np.broadcast_to(value, (len(plans),)), dtype=object if text else np.float64)
    return Table(plans.kind, columns, plans.place)


def with_columns(catalog: Catalog, kind: str, columns: Sequence[str], change: Callable[[Array], Any]) -> Catalog:
    """A catalog with some columns of a table changed."""
    table = catalog.tables[kind]
    new = {column: change(table[column]) for column in columns}
    return catalog.with_tables([Table(kind, {**table.columns, **new}, table.place)])


def tokens_per_step(plans: Table) -> Array:
    """Expected tokens of a decode step with drafts: 1 + a + a^2 + ... [-]"""
    drafts, rate = plans.filled("draft_tokens"), plans.filled("acceptance_rate")
    most = int(drafts.max())
    return 1.0 + sum(np.where(drafts >= each, rate**each, 0.0) for each in range(1, most + 1))


def cells_of(plans: Table, row: int) -> str:
    """The cells of a plan that are not blank, in the units used inside."""
    cells = {name: values[row] for name, values in plans.columns.items()}
    return ", ".join(f"{name}={value}" for name, value in cells.items() if value == value and value != "")


def hold(law: str, good: np.ndarray, plans: Table, **shown: Array) -> None:
    """Fail with the first plan that breaks a law, its values, and the number of such plans."""
    broken = np.flatnonzero(~good)
    if len(broken):
        row = int(broken[0])
        values = ", ".join(f"{name} {values[row]}" for name, values in shown.items())
        raise AssertionError(f"{law}: {len(broken)} of {len(good)} plans, such as {cells_of(plans, row)}: {values}")


def both_legal(plans: Table, *results: Table) -> np.ndarray:
    """Plans that have numbers in all of several results."""
    return np.logical_and.reduce([is_legal(plans, each) for each in results])
