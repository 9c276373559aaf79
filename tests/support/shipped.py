"""Shipped files, each read once in a process: several tests look at the same rows, and none changes them."""

from __future__ import annotations

from functools import cache
from typing import Any

from device_samples import without_technology

from xlperf.base.resources import workbook
from xlperf.calibrate.published_errors import Measured, seen_rows
from xlperf.catalog.table import Table
from xlperf.measurements.kernels import read_kernels
from xlperf.measurements.published import Published, read_published
from xlperf.workbook.build import read_parts, read_tables
from xlperf.workbook.front.start import example_tables


@cache
def shipped_tables() -> dict[str, Table]:
    """Sheets of the shipped workbook."""
    return read_tables(workbook())


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
def shipped_parts() -> dict[str, list[list[Any]]]:
    """Cells of the sheets of the shipped validation workbook."""
    return read_parts(workbook("validation.xlsx"))
