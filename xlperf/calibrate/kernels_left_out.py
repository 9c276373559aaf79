"""Errors of kernels of accelerators, or of whole generations, that were left out of the fit of kernel constants."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError, nearest
from xlperf.base.units import factor
from xlperf.calibrate.accuracy import LONG, KernelError, calibrated_time
from xlperf.calibrate.fit_kernels import fit_kernels
from xlperf.calibrate.fitted_constants import calibration_table
from xlperf.calibrate.kernel_measurements import Row, measurements
from xlperf.catalog.catalog import Catalog

_OPERATIONS = {"gemm": "matrix product over 50 us", "attention": "flash attention"}
_KINDS = ("gemm", "gemm_max", "attention")


def kernel_errors_left_out(rows: Sequence[Row], catalog: Catalog, names: Sequence[str]) -> list[KernelError]:
    """Errors of products and attention of accelerators that nothing was fitted on.

    Each name is left out alone: the constants of its generation, if others of it were measured, or those that all
    accelerators share predict every one of its rows.

    ``rows``: columns of the sheet ``kernels`` of ``validation.xlsx``. ``catalog``: accelerators; its calibration is not
    used. ``names``: generations or accelerators; case does not matter. Returns each operation over all names, then name
    by name; ``accelerator`` is the name. Raises InputError when no kernel of a name was measured.
    """
    kernels = [row for row in rows if row.get("kind") in _KINDS]
    found: dict[str, dict[str, Array]] = {operation: {} for operation in _OPERATIONS.values()}
    for name in names:
        gone = _accelerators(catalog, name)
        mine = [row for row in kernels if str(row.get("gpu")).casefold() in gone]
        if not mine:
            known = sorted({str(row.get("gpu")) for row in kernels} | set(catalog.tables["accelerators"]["generation"]))
            raise InputError(Fault("--leave-out", f'no kernel of "{name}" was measured; {nearest(name, known)}'))
        fitted = fit_kernels([row for row in kernels if str(row.get("gpu")).casefold() not in gone], catalog, "")
        refitted = catalog.with_tables([calibration_table(fitted)])
        for family, measured in measurements(mine, refitted).families.items():
            if family in _OPERATIONS:
                chosen = (measured.time > LONG * factor("us")) | (family != "gemm")
                error = np.abs(calibrated_time(measured, refitted) / measured.time - 1.0)
                found[_OPERATIONS[family]][name] = error[chosen]
    errors = []
    for operation, sizes in found.items():
        if sizes:
            errors.append(_error(operation, "", np.concatenate(list(sizes.values()))))
            errors += [_error(operation, name, own) for name, own in sizes.items()] if len(sizes) > 1 else []
    return errors


def _accelerators(catalog: Catalog, name: str) -> set[str]:
    """Accelerators of a generation, or the one of a name, casefolded."""
    table = catalog.tables["accelerators"]
    pairs = zip(table.text("accelerator").tolist(), table.text("generation").tolist(), strict=True)
    wanted = name.casefold()
    return {own.casefold() for own, kind in pairs if wanted in (own.casefold(), kind.casefold())}


def _error(operation: str, name: str, sizes: Array) -> KernelError:
    median, p90 = float(np.median(sizes)), float(np.quantile(sizes, 0.9))
    return KernelError(operation, name, "", len(sizes), median, p90, math.nan)
