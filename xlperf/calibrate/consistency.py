"""Checks of a catalog that need equations: does a model have the parameters that its row states?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xlperf.base.errors import Fault
from xlperf.base.units import factor
from xlperf.engine.catalog_arrays import catalog_models
from xlperf.equations.model.model import parameter_count

if TYPE_CHECKING:
    from xlperf.catalog.catalog import Catalog

TOLERANCE = 0.01


def parameter_faults(catalog: Catalog, tolerance: float = TOLERANCE) -> list[Fault]:
    """Models whose computed parameters are not the stated ones, in total and met by one token.

    Publishers count the active parameters with or without the input embedding, which is a look-up; either will do.
    A count stated in few digits may differ by a unit of the last: some publishers round down.

    Parameters
    ----------
    catalog : Catalog
        Whose models are looked at.
    tolerance : float, default 0.01
        Largest relative difference that is let pass. [-]

    Returns
    -------
    list of Fault
        One for each count that differs, in the order of the sheet.
    """
    table = catalog.tables["models"]
    models, unmodelled = catalog_models(catalog)
    active = parameter_count(models, experts_per_token=True)
    tables = models.vocab_size * models.hidden_size
    counts = (
        ("stated_parameters", "parameters", (parameter_count(models),)),
        ("stated_active_parameters", "active parameters", (active, active - tables)),
    )
    billion = factor("G")
    faults = []
    for column, words, candidates in counts:
        stated = table.number(column)
        differences = np.stack([np.abs(computed - stated) for computed in candidates], axis=-1)
        allowed = np.maximum(
            tolerance * stated, np.array([_last_digit(value) for value in (stated / billion)]) * billion
        )
        nearest = np.stack(candidates, axis=-1)[np.arange(len(table)), np.argmin(differences, axis=-1)]
        for row in np.flatnonzero((unmodelled == "") & (differences.min(axis=-1) > allowed)).tolist():
            problem = (
                f"{table['model'][row]} has {nearest[row] / billion:.4g} billion {words} by its shape, "
                f"{stated[row] / billion:.4g} are stated ({nearest[row] / stated[row] - 1.0:+.1%})"
            )
            faults.append(Fault(table.place(row, column), problem))
    return faults


def _last_digit(value: float) -> float:
    """A unit of the last digit of a number as it is written, 0 for more than two significant digits."""
    text = f"{value:.10g}"
    digits = text.replace(".", "").strip("0")
    if len(digits) > 2:
        return 0.0
    decimals = len(text.split(".")[1]) if "." in text else 0
    return float(10.0**-decimals)
