"""Documented constants as rows of a calibration sheet, and catalogs that do without some."""

from __future__ import annotations

import math
from dataclasses import replace

from xlperf.base import resources
from xlperf.calibrate.fitter import FittedConstant, and_constants
from xlperf.catalog.calibration import declared_constants
from xlperf.catalog.catalog import Catalog


def documented(*names: str) -> list[FittedConstant]:
    """Documented constants of some names, in declared units."""
    return [
        FittedConstant(
            family=row["family"],
            generation=row["generation"],
            precision=row["precision"],
            software=row["software"],
            constant=row["constant"],
            value=float(row["value"]),
            fit_set="",
            num_rows=0,
            error=math.nan,
            date="",
            source=row["source"],
        )
        for row in resources.rows("catalog/documented_constants.csv")
        if row["constant"] in names
    ]


def without_documented(catalog: Catalog, *names: str) -> Catalog:
    """Catalog in which documented constants of some names have the declared default."""
    declared = declared_constants()
    rows = [replace(one, value=declared[one.family][one.constant].default) for one in documented(*names)]
    return and_constants(catalog, rows)
