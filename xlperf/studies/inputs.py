"""Reads the workbook of a study: settings in a sheet ``study``, plans, and rows added to the catalog."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from xlperf.base import resources
from xlperf.base.errors import Fault, InputError, nearest
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.cells import number_of, shown
from xlperf.catalog.check import name_faults
from xlperf.catalog.read import read_catalog_tables, read_plan_tables
from xlperf.catalog.table import Table, column_letters
from xlperf.catalog.xlsx import Cells, Workbook
from xlperf.studies.outcome import Inputs, Setting, SettingValue, Study, setting_value

SHEET = "study"


def study_workbook(name: str) -> Path:
    """Path of the shipped workbook of a study.

    >>> study_workbook("recompute").name
    'recompute.xlsx'
    """
    return resources.template("studies") / f"{name}.xlsx"


def read_inputs(
    study: Study, path: str | Path | None = None, catalog: str | Path | None = None, full: bool = False
) -> Inputs:
    """Inputs of a study from its workbook or the shipped one, with rows that replace catalog rows of the same name.

    ``catalog``: workbook with other catalog sheets; ``full``: settings of the long run. Raises InputError with every
    fault of the workbook.
    """
    source = Path(path) if path is not None else study_workbook(study.name)
    settings, faults = _settings(study, source)
    tables, more = read_catalog_tables(source, required=False)
    faults += more
    plans: list[Table] = []
    with Workbook(source) as book:
        has_plans = any(book.sheet(kind) is not None for kind in ("training", "inference"))
    if has_plans:
        plans, more = read_plan_tables(source)
        faults += more
    if faults:
        raise InputError(faults)
    known = with_rows(load_catalog(catalog), tables)
    faults = name_faults(plans, known)
    if faults:
        raise InputError(faults)
    if full:
        settings = {**settings, **study.full}
    return Inputs(known, {table.kind: _whole(table) for table in plans if len(table)}, settings, source.name)


def _whole(table: Table) -> Table:
    """A table with every column of its schema, blank if the source lacks it."""
    columns = {column.name: _filled(table, column.name, column.is_text) for column in table.schema.columns}
    return replace(table, columns=columns)


def with_rows(catalog: Catalog, tables: Iterable[Table]) -> Catalog:
    """A catalog with rows added; a row replaces rows of the same name."""
    added = [_joined(catalog.tables[table.kind], table) for table in tables if len(table)]
    return catalog.with_tables(added) if added else catalog


def _joined(old: Table, new: Table) -> Table:
    key = old.schema.key.name
    named = {str(name).casefold() for name in new.text(key)}
    keep = np.array([str(name).casefold() not in named for name in old.text(key)], dtype=bool)
    remaining = old.take(np.flatnonzero(keep))
    columns: dict[str, np.ndarray] = {}
    for column in old.schema.columns:
        if column.name in old or column.name in new:
            both = [_filled(table, column.name, column.is_text) for table in (remaining, new)]
            columns[column.name] = np.concatenate(both)
    size = len(remaining)

    def place(row: int, column: str) -> str:
        return remaining.place(row, column) if row < size else new.place(row - size, column)

    return Table(old.kind, columns, place)


def _filled(table: Table, column: str, is_text: bool) -> np.ndarray:
    if column in table:
        return table[column]
    return np.full(len(table), "", dtype=object) if is_text else np.full(len(table), np.nan)


def _settings(study: Study, path: Path) -> tuple[dict[str, SettingValue], list[Fault]]:
    """Settings of the sheet, defaults for missing settings, and every fault."""
    values = {setting.name: setting.default for setting in study.settings}
    known = {setting.name: setting for setting in study.settings}
    faults: list[Fault] = []
    with Workbook(path) as book:
        sheet = book.sheet(SHEET)
        cells: Cells = book.cells(sheet) if sheet is not None else {}
        name = book.name
    head = next((row for row in sorted(cells) if str(cells[row].get(1, "")).strip().casefold() == "setting"), None)
    for row in [] if head is None else [row for row in sorted(cells) if row > head]:
        word = str(cells[row].get(1) or "").strip()
        if not word:
            continue
        setting = known.get(word.casefold().replace(" ", "_"))
        if setting is None:
            hint = partial(nearest, word, tuple(entry.replace("_", " ") for entry in known))
            place = f"{name} [{SHEET}!{column_letters(1)}{row}]"
            faults.append(Fault(place, f'no setting "{word}" in the study {study.name}', hint))
            continue
        value = cells[row].get(2)
        if value is None or value == "":
            continue
        try:
            values[setting.name] = setting_value(setting.kind, value, partial(_number, setting))
        except ValueError as problem:
            faults.append(Fault(f"{name} [{SHEET}!{column_letters(2)}{row}]", str(problem)))
    return values, faults


def _number(setting: Setting, value: object) -> float:
    number = float("nan")
    if not isinstance(value, bool) and isinstance(value, int | float | str):
        number = number_of(value) if isinstance(value, str) else float(value)
    if not np.isfinite(number):
        raise ValueError(f"{setting.name.replace('_', ' ')} must be a number, got {shown(value)}")
    return number
