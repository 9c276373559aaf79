"""A workbook for a user to start from: the shipped catalog and plans, or empty sheets with their headers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from xlperf.catalog.table import Table


def new_workbook(path: str | Path, empty: bool = False) -> None:
    """Write a new workbook with drop-downs, header comments, live formulas and checks.

    Parameters
    ----------
    path : str or Path
        File to write; one that exists is replaced.
    empty : bool
        Whether all sheets but the calibration are left empty, for a catalog of one's own.

    Raises
    ------
    InputError
        When the file cannot be written.
    """
    from xlperf.base.resources import workbook
    from xlperf.workbook.build import Rows, read_tables, workbook_package
    from xlperf.workbook.save import replace_file

    shipped: Mapping[str, Table | Rows] = read_tables(workbook())
    if empty:
        shipped = {"calibration": shipped["calibration"]}
    replace_file(path, workbook_package(shipped, values=not empty, examples=not empty))
