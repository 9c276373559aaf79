"""Checks of a catalog that need equations: does a model have the parameters that its row states?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xlperf.errors import Fault
from xlperf.evaluate.join import catalog_models
from xlperf.units import factor
from xlperf.workload.parameters import parameter_count

if TYPE_CHECKING:
    from xlperf.catalog.catalog import Catalog

TOLERANCE = 0.01


def parameter_faults(catalog: Catalog, tolerance: float = TOLERANCE) -> list[Fault]:
    """Dense models whose computed parameters are not the stated ones.

    Parameters
    ----------
    catalog : Catalog
        Whose models are looked at.
    tolerance : float, default 0.01
        Largest relative difference that is let pass. [-]

    Returns
    -------
    list of Fault
        One for each model that differs, in the order of the sheet.
    """
    table = catalog.tables["models"]
    models, unmodelled = catalog_models(catalog)
    stated = table.number("stated_parameters")
    computed = parameter_count(models)
    billion = factor("G")
    faults = []
    for row in np.flatnonzero((unmodelled == "") & (np.abs(computed / stated - 1.0) > tolerance)).tolist():
        problem = (
            f"{table['model'][row]} has {computed[row] / billion:.4g} billion parameters by its shape, "
            f"{stated[row] / billion:.4g} are stated ({computed[row] / stated[row] - 1.0:+.1%})"
        )
        faults.append(Fault(table.place(row, "stated_parameters"), problem))
    return faults
