"""What it costs to leave a condition out of the fit together with the model of a row: by how much bands must be wider.

The bands hold for models left out. A plan whose software was never measured in its format, on its generation, for its
kind of layers or under its kind of load stands farther away. Each of these is left out of the fit beside the model of
the row: the rows of the same software in that condition, or those of all software in it; and the software as a whole.
Kernels keep their constants. What the score (error over the half-width of the band made from other models) becomes is
what :data:`xlperf.engine.conditions.LACKED` and the constants ``widening`` rest on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from xlperf.base.arrays import Array
from xlperf.calibrate.bands import SHARE, bands_left_out
from xlperf.calibrate.cross_validation import left_out_together
from xlperf.calibrate.published import Published, PublishedPlans
from xlperf.calibrate.published_errors import QUANTITIES, Errors, configuration_weights, plans_to_fit, weighted_quantile
from xlperf.catalog.catalog import Catalog
from xlperf.engine.conditions import LACKED, UNKNOWN, Condition, format_and_load, layers_of
from xlperf.engine.trust import SOFTWARE, model_traits

HEADER = (
    "rows", "quantity", "left out beside the model", "number", "configurations", "bias", "80 % quantile of the score",
    "in the band", "in the widened band",
)  # fmt: skip
_WIDENING = {"training": "training_band", "inference": "serving_band"}
_MODEL = "nothing"
_SOFTWARE = "its software"


def conditions_table(published: Sequence[Published], catalog: Catalog) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """A line for each kind of row, quantity and condition left out; each configuration counts once.

    ``published``: rows that the constants of the catalog were fitted on. ``catalog``: with that calibration.
    """
    lines: list[tuple[str, ...]] = []
    for rows in published:
        plans = plans_to_fit(rows, catalog)
        entries, errors = left_out_together(plans, QUANTITIES, _groups)
        bands = np.log(bands_left_out(replace(entries, by_models=errors[_MODEL])).high)
        widening = float(catalog.calibration.constants(_WIDENING[rows.kind], *_ANY)[0]["widening"][0, 0])
        for quantity in sorted(set(entries.quantity.tolist())):
            for name, error in errors.items():
                known = (entries.quantity == quantity) & ~np.isnan(error + bands)
                wide = 1.0 + widening * distance_of(name)
                lines.append(
                    (rows.kind, quantity, name, *_cells(entries.take(known), error[known], bands[known], wide))
                )
    return HEADER, lines


_ANY = tuple(np.array([""], dtype=object) for _ in range(3))


def distance_of(name: str) -> float:
    """Distance that plans have from what is left out; the model itself is in the bands already. [-]

    >>> [distance_of(name) for name in ("nothing", "its software", "format of its software", "format")]
    [0.0, 2.0, 0.5, 2.0]
    """
    if name in (_MODEL, _SOFTWARE):
        return SOFTWARE * (name == _SOFTWARE)
    return LACKED if name.endswith(_SOFTWARE) else UNKNOWN


def _groups(plans: PublishedPlans, entries: Errors) -> Mapping[str, Sequence[np.ndarray]]:
    """What is left out together, by name: the model of a row, and a condition of its software or of all software."""
    catalog, table = plans.catalog, plans.plans
    words = format_and_load(table)
    shapes = model_traits(catalog)[0]
    models = catalog.rows("models", table.text("model"), table, "model")
    parts = [words.words[code].split("/") for code in words.codes[entries.plan].tolist()]
    kinds = [layers_of(shapes[models[at]]) for at in entries.plan.tolist()]
    places = zip(entries.generation.tolist(), parts, kinds, strict=True)
    asked = [Condition(str(one), form, load, kind) for one, (form, load), kind in places]
    found: dict[str, Sequence[np.ndarray]] = {_MODEL: [entries.model], _SOFTWARE: [entries.model, entries.software]}
    for name in Condition._fields:
        values = np.array([getattr(one, name) for one in asked], dtype=object)
        if len(set(values.tolist())) < 2:
            continue
        own = np.array([f"{a}/{b}" for a, b in zip(entries.software, values, strict=True)], dtype=object)
        found[f"{name} of {_SOFTWARE}"] = [entries.model, own]
        found[name] = [entries.model, values]
    return found


def _cells(entries: Errors, errors: Array, bands: Array, wide: float) -> tuple[str, ...]:
    weight, score = configuration_weights(entries), np.abs(errors) / bands
    inside = [100.0 * float((score <= width) @ weight) / weight.sum() for width in (1.0, wide)]
    return (
        f"{len(entries)}",
        f"{round(weight.sum())}",
        f"{100.0 * math.expm1(weighted_quantile(errors, weight, 0.5)):+.1f} %",
        f"{weighted_quantile(score, weight, SHARE):.2f}",
        *(f"{share:.0f} %" for share in inside),
    )
