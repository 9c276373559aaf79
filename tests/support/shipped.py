"""Shipped files, each read once in a process: several tests look at the same rows, and none changes them."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from device_samples import without_technology
from openpyxl import Workbook

from xlperf.addin.worker import Session
from xlperf.base.resources import workbook
from xlperf.calibrate.accuracy import Page
from xlperf.calibrate.published_errors import Measured, seen_rows
from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.table import Table
from xlperf.measurements.kernels import read_kernels
from xlperf.measurements.published import Published, read_published
from xlperf.workbook import build
from xlperf.workbook.build import read_parts, read_tables
from xlperf.workbook.data_sheets import table_of
from xlperf.workbook.front.formulas import Live
from xlperf.workbook.front.start import example_tables
from xlperf.workbook.package import data_rows


@cache
def shipped_tables() -> dict[str, Table]:
    """Sheets of the shipped workbook."""
    return read_tables(workbook())


@cache
def shipped_book(data_only: bool = False) -> Workbook:
    """The shipped workbook as openpyxl reads it, which takes more than a second: with formulas, or with values."""
    return openpyxl.load_workbook(workbook(), data_only=data_only)


@cache
def shipped_session() -> Session:
    """A session of the installed catalog, which answers once what several tests ask of the front sheets."""
    return Session()


@cache
def shipped_build() -> bytes:
    """The shipped workbook built anew of its rows.

    Of the catalog and in the session that other tests have asked too, which know the answers.
    """
    shipped, tables, live_cells = load_catalog(), shipped_tables(), build.start.live_cells
    same = build._catalog({kind: shipped.tables[kind] for kind in tables if kind in shipped.tables})
    assert same.fingerprint == build._catalog(tables).fingerprint, "the workbook's catalog has no chiplets beside these"

    def in_session(*given: Any) -> Live:
        live = live_cells(*given)
        live.session = shipped_session()
        return live

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_catalog", lambda _: shipped)
        patch.setattr(build.start, "live_cells", in_session)
        return build.workbook_package(tables)


@cache
def few_rows() -> dict[str, Table]:
    """Sheets of the shipped workbook with some rows of each, without technology and the front sheets that need it.

    A workbook of them is built and opened faster; a sheet of all rows differs in its length alone.
    """
    return without_technology(example_tables(shipped_tables()))


@cache
def shipped_published() -> list[Published]:
    """Published rows of training and of inference."""
    return read_published(workbook("validation.xlsx"))


@cache
def shipped_kernels() -> list[dict[str, str]]:
    """Measured kernels."""
    return read_kernels(workbook("validation.xlsx"))


@cache
def shipped_measured() -> Measured:
    """Published rows and kernels that a fit sees: as ``read_measured`` has them."""
    training, inference = (seen_rows(rows) for rows in shipped_published())
    return Measured(shipped_kernels(), training, inference)


@cache
def shipped_page() -> Page:
    """The accuracy page of the published rows."""
    return Page(shipped_published(), load_catalog(), lambda _: None)


@cache
def shipped_parts() -> dict[str, list[list[Any]]]:
    """Cells of the sheets of the shipped validation workbook."""
    return read_parts(workbook("validation.xlsx"))


def plain_workbook(path: Path, tables: Mapping[str, Table | Sequence[Mapping[str, Any]]]) -> Path:
    """A workbook of some sheets as a person types them, headers and rows alone: made in a tenth of a second."""
    book = Workbook(write_only=True)
    for kind, given in tables.items():
        table = given if isinstance(given, Table) else table_of(kind, given)
        columns = [column for column in table.schema.by_name.values() if column.name in table and not column.is_result]
        sheet = book.create_sheet(kind)
        for row in ([column.header for column in columns], *data_rows(table, columns)):
            sheet.append(row)
    book.save(path)
    return path


def with_cells(path: Path, sheet: str, cells: Mapping[str, float]) -> Path:
    """The shipped workbook with other numbers in some cells, written without openpyxl, which takes seconds."""
    names = openpyxl.load_workbook(workbook(), read_only=True).sheetnames
    part = f"xl/worksheets/sheet{names.index(sheet) + 1}.xml"
    with zipfile.ZipFile(workbook()) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            text = source.read(name)
            for cell, value in cells.items() if name == part else ():
                number = re.compile(rb'(?<=<c r="%b")([^>]*>)<v>[^<]*</v>' % cell.encode())
                text, count = number.subn(rb"\g<1><v>%b</v>" % repr(value).encode(), text)
                assert count == 1, cell
            target.writestr(name, text)
    return path
