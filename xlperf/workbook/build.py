"""``python -m xlperf.workbook.build``: the shipped workbooks, written anew from the rows that they hold.

The rows of a workbook are the truth. They are read, and everything else (styles, formulas, drop-downs, comments,
checks, values beside the formulas) is made from the schema: the same rows give the same bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xlperf.base.errors import InputError
from xlperf.base.resources import workbook as shipped
from xlperf.catalog.schema import CATALOG_TABLES, OPTIONAL_TABLES, PLAN_TABLES, schema
from xlperf.catalog.table import Table

Rows = Sequence[Mapping[str, object]]
KINDS = (*PLAN_TABLES, *CATALOG_TABLES)


def table_of(kind: str, rows: Rows) -> Table:
    """Rows as a table.

    Parameters
    ----------
    kind : str
        Name of a data sheet.
    rows : sequence of mapping
        Values by column name, in the units of the schema; flags are yes or no, blanks None or absent.

    Returns
    -------
    Table
        In the units used inside.

    Raises
    ------
    InputError
        With every fault of the rows.
    """
    from xlperf.catalog.parse import table_from_rows

    names = [column.name for column in schema()[kind].columns]
    unknown = sorted({name for row in rows for name in row} - set(names))
    header = [*names, *unknown]
    return table_from_rows(kind, header, [[row.get(name) for name in header] for row in rows])


def read_tables(path: str | Path) -> dict[str, Table]:
    """Data sheets of a workbook by kind.

    Raises
    ------
    InputError
        With every fault of every sheet.
    """
    from xlperf.catalog.read import read_catalog_tables, read_plan_tables

    catalog, faults = read_catalog_tables(path, required=True)
    plans, more = read_plan_tables(path)
    if faults or more:
        raise InputError([*faults, *more])
    return {table.kind: table for table in (*catalog, *plans)}


def workbook_package(tables: Mapping[str, Table | Rows], values: bool = True, examples: bool = True) -> bytes:
    """The workbook of some tables.

    Parameters
    ----------
    tables : mapping
        By kind, a Table or rows (:func:`table_of`); a kind that is not given gets an empty sheet, one of the tables
        of cost and technology none.
    values : bool
        Whether to evaluate the plans and to put the values beside the formulas.
    examples : bool
        Whether the cards of the front sheet are filled in.

    Returns
    -------
    bytes
        An .xlsx file; equal tables give equal bytes.
    """
    from openpyxl import Workbook

    from xlperf.workbook.build_checks import checks_sheet
    from xlperf.workbook.build_front import front_sheet
    from xlperf.workbook.build_package import Formulas, packed
    from xlperf.workbook.build_sheets import data_sheet
    from xlperf.workbook.build_tco import tco_sheet
    from xlperf.workbook.style import add_styles

    full: dict[str, Table] = {}
    for kind in (*KINDS, *OPTIONAL_TABLES):
        given = tables.get(kind, ())
        table = given if isinstance(given, Table) else table_of(kind, given)
        if kind in KINDS or len(table):
            full[kind] = table
    results: dict[str, dict[str, list[Any]]] = {}
    cards: dict[str, dict[str, Any]] = {}
    handle = None
    if values:
        from xlperf.workbook.build_values import card_results, catalog_handle, live_results

        results = live_results(full)
        cards = card_results(full)
        handle = catalog_handle(full)
    formulas = Formulas()
    book = Workbook()
    book.remove(book.worksheets[0])
    add_styles(book)
    front_sheet(book, full, cards, handle, formulas, examples)
    for kind in full:
        data_sheet(book, full[kind], results.get(kind, {}), formulas, full)
    tco_sheet(book, full, results, formulas)
    checks_sheet(book, full, results, formulas)
    book.properties.creator = "xlperf"
    book.properties.title = "xlperf"
    return packed(book, formulas)


def write_workbook(path: str | Path, tables: Mapping[str, Table | Rows], values: bool = True) -> None:
    """Write the workbook of some tables; see :func:`workbook_package`.

    Parameters
    ----------
    path : str or Path
        File to write or to replace whole.
    tables : mapping
        By kind, a Table or rows.
    values : bool
        Whether to put values beside the formulas.

    Raises
    ------
    InputError
        With every fault of the rows, or when the file cannot be written.
    """
    from xlperf.workbook.save import replace_file

    replace_file(path, workbook_package(tables, values))


def build(path: str | Path | None = None, replaced: Mapping[str, Table | Rows] | None = None) -> Path:
    """Write a shipped workbook anew from the rows that it holds.

    Parameters
    ----------
    path : str or Path, optional
        Workbook; by default the one that comes with xlperf.
    replaced : mapping, optional
        Tables that take the place of those that the workbook holds: a new calibration.

    Returns
    -------
    Path
        The workbook.
    """
    target = Path(path) if path is not None else shipped()
    write_workbook(target, {**read_tables(target), **(replaced or {})})
    return target


def main(arguments: Sequence[str] | None = None) -> int:
    """Rebuild ``xlperf.xlsx``, or ``validation.xlsx`` with ``--validation``; a path names another file."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    validation = "--validation" in given
    paths = [word for word in given if word != "--validation"]
    if len(paths) > 1 or any(word.startswith("-") for word in paths):
        sys.stderr.write("usage: python -m xlperf.workbook.build [--validation] [WORKBOOK]\n")
        return 2
    path = paths[0] if paths else None
    try:
        if validation:
            from xlperf.workbook.build_validation import build_validation

            target = build_validation(path)
        else:
            target = build(path)
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
