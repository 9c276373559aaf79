"""Plans from files and from ranges of cells: workbooks, CSV, Parquet, cards."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from xlperf.base.errors import Fault, InputError
from xlperf.catalog.cells import (
    is_blank,
    parse_coded,
    parse_header,
    plan_kind,
    table_from_columns,
    table_from_rows,
    table_kind,
)
from xlperf.catalog.csvfile import STANDARD, read_csv
from xlperf.catalog.parquetfile import read_parquet
from xlperf.catalog.schema import PLAN_TABLES, split_header, table_schema
from xlperf.catalog.table import Place, Table, nowhere
from xlperf.catalog.workbook import raise_faults, read_catalog_tables, read_plan_tables

__all__ = [
    "card_to_table",
    "plan_kind",
    "read_designs",
    "read_plans",
    "table_from_columns",
    "table_from_rows",
    "table_kind",
]

_ENDINGS = (".xlsx", ".xlsm", ".csv", ".txt", ".tsv", ".parquet")
DESIGN_TABLES = ("chiplets", "servers")


def read_plans(path: str | os.PathLike[str], sheet: str | None = None, kind: str | None = None) -> list[Table]:
    """Read the plans of a workbook, a CSV or Parquet file, or CSV on standard input.

    Parameters
    ----------
    path : path-like
        ``.xlsx`` (sheets ``training`` and ``inference``), ``.csv``, ``.parquet``, or ``-`` for standard input.
    sheet : str, optional
        The only sheet of a workbook to read.
    kind : str, optional
        ``training`` or ``inference``; default: inference where there is a prompt length.

    Returns
    -------
    list of Table
        One table per kind that has plans, at least one. Result columns of the file are left out.

    Raises
    ------
    InputError
        With every fault found.
    """
    ending = Path(path).suffix.casefold()
    if str(path) != STANDARD and ending in (".xlsx", ".xlsm"):
        tables, faults = read_plan_tables(path, sheet, kind)
    elif sheet is not None:
        raise InputError(Fault(Path(path).name, "has no sheets; leave the sheet out"))
    elif str(path) == STANDARD or ending in (".csv", ".txt", ".tsv"):
        tables, faults = _csv_plans(path, kind)
    elif ending == ".parquet":
        tables, faults = _parquet_plans(Path(path), kind)
    elif Path(path).is_dir():
        raise InputError(Fault(str(path), "is a folder; a file of plans is meant"))
    elif not Path(path).exists():
        raise InputError(Fault(str(path), "there is no such file"))
    else:
        known = "a workbook (.xlsx), .csv or .parquet"
        raise InputError(Fault(Path(path).name, f'plans must be {known}, got the ending "{ending}"'))
    raise_faults(faults)
    filled = [table for table in tables if len(table)]
    if not filled:
        name = "standard input" if str(path) == STANDARD else Path(path).name
        raise InputError(Fault(name, "has no plans; fill at least one row"))
    return filled


def read_designs(path: str | os.PathLike[str], sheet: str | None = None, kinds: Sequence[str] = DESIGN_TABLES) -> Table:
    """Read what has a cost: chiplet designs, servers or plans; or rows of another catalog sheet.

    Parameters
    ----------
    path : path-like
        ``.csv`` or ``-`` for standard input, ``.parquet``, or a workbook. A header ``chiplet`` or ``server`` says
        which it is; plans have a ``model``.
    sheet : str, optional
        Which sheet of a workbook: ``chiplets``, ``servers``, ``training`` or ``inference``; by default ``chiplets``
        where it has rows, else ``servers``.
    kinds : sequence of str, optional
        Catalog sheets that are meant; plans are read beside chiplets and servers alone.

    Returns
    -------
    Table
        Of one of these kinds, at least one row.

    Raises
    ------
    InputError
        With every fault found.
    """
    name, ending = "standard input" if str(path) == STANDARD else Path(path).name, Path(path).suffix.casefold()
    faults: list[Fault]
    if str(path) != STANDARD and ending in (".xlsx", ".xlsm") and sheet in PLAN_TABLES:
        return read_plans(path, sheet, sheet)[0]
    if str(path) != STANDARD and ending in (".xlsx", ".xlsm"):
        found, faults = read_catalog_tables(path, required=False)
        wanted = kinds if sheet is None else (sheet,)
        tables = sorted((table for table in found if table.kind in wanted and len(table)), key=_kind)
        if not tables:
            raise_faults(faults)
            raise InputError(Fault(name, f"has no rows in a sheet named {' or '.join(wanted)}"))
        table = tables[0]
    elif sheet is not None:
        raise InputError(Fault(name, "has no sheets; leave the sheet out"))
    elif str(path) == STANDARD or ending in (".csv", ".txt", ".tsv"):
        file = read_csv(path)
        table, faults = parse_coded(_design_kind(name, file.header, kinds), file.header, file.columns, file.locate)
    elif ending == ".parquet":
        plans, faults = _parquet_plans(Path(path), None, partial(_design_kind, kinds=kinds))
        table = plans[0]
    elif not Path(path).exists():
        raise InputError(Fault(str(path), "there is no such file"))
    else:
        raise InputError(
            Fault(name, f'designs must be a workbook (.xlsx), .csv or .parquet, got the ending "{ending}"')
        )
    raise_faults(faults)
    if not len(table):
        raise InputError(Fault(name, "has no designs; fill at least one row"))
    return table


def _kind(table: Table) -> str:
    return table.kind


def _design_kind(name: str, header: Sequence[object], kinds: Sequence[str]) -> str:
    names = [split_header(cell)[0] for cell in header if isinstance(cell, str)]
    costed = tuple(kinds) == DESIGN_TABLES
    if costed and "model" in names:  # plans, also with the server that an earlier run found for them
        return plan_kind(header)
    for kind in kinds:
        if table_schema(kind).key.name in names:
            return kind
    keys = " or ".join(f'"{table_schema(kind).key.name}"' for kind in kinds)
    words = f"needs a column {keys} with the names of the {'designs' if costed else kinds[0]}"
    if costed:
        words += ', or "model" for plans'
    raise InputError(Fault(name, f"{words}, got {', '.join(names[:6])}"))


def _csv_plans(path: str | os.PathLike[str], kind: str | None) -> tuple[list[Table], list[Fault]]:
    file = read_csv(path)
    table, faults = parse_coded(kind or plan_kind(file.header), file.header, file.columns, file.locate)
    return [table], faults


def _parquet_plans(
    path: Path, kind: str | None, kind_of: Callable[[str, Sequence[object]], str] | None = None
) -> tuple[list[Table], list[Fault]]:
    def meant(header: Sequence[object]) -> str:
        return kind or (kind_of(path.name, header) if kind_of is not None else plan_kind(header))

    def wanted(header: Sequence[str]) -> set[int]:
        parsed = parse_header(meant(header), header)
        return {field.position for field in parsed.fields} | set(parsed.unnamed)

    header, columns = read_parquet(path, wanted)

    def locate(row: int, position: int) -> str:
        column = f"column {header[position]}" if position >= 0 else ""
        return f"{path.name} [{', '.join(filter(None, [f'row {row + 1}' if row >= 0 else '', column])) or 'columns'}]"

    table, faults = parse_coded(meant(header), header, columns, locate)
    return [table], faults


def card_to_table(cells: Sequence[Sequence[object]], kind: str | None = None, place: Place = nowhere) -> Table:
    """A card, two columns of names and values, as a table of one plan.

    Parameters
    ----------
    cells : sequence of sequence
        Rows of (name, value); rows without a name are left out.
    kind : str, optional
        Kind of the plan, or of any other sheet; default: inference if there is a prompt length, else training.
    place : callable, optional
        As in :func:`table_from_rows`; the row is always 0.

    Raises
    ------
    InputError
        With every fault of the card.

    >>> card_to_table([["model", "llama"], ["accelerator", "H100"], ["num accelerators", 8]])["model"]
    array(['llama'], dtype=object)
    """
    named = [(row[0], row[1] if len(row) > 1 else None) for row in cells if len(row) and not is_blank(row[0])]
    header = [name for name, _ in named]
    return table_from_rows(kind or plan_kind(header), header, [[value for _, value in named]], place, skip_empty=False)
