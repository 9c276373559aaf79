"""Widening of bands for unmeasured conditions: errors with a condition left out of the fit beside the row's model.

The bands hold for left-out models. They are too narrow for an engine without measurements in the plan's format, on its
generation, for its kind of layers or under its kind of load, and for a new source. Each condition is left out of the
fit together with the row's model: the engine's rows in that condition, the rows of all engines in it, the whole
engine, or the source (except for rows whose engine, model and accelerator another source measured). Kernels keep their
constants. The score is the error over the half-width of the band made from other models; it sets
:data:`xlperf.engine.trust.LACKED` and the constant ``widening`` of serving. The constants ``source`` and
``mixture_source`` come from runs read later, since the earlier sources were in sight when settings were chosen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from xlperf.base.arrays import Array
from xlperf.calibrate.bands import SHARE, bands_left_out
from xlperf.calibrate.cross_validation import left_out_together
from xlperf.calibrate.published_errors import QUANTITIES, Errors, configuration_weights, plans_to_fit, weighted_quantile
from xlperf.catalog.catalog import Catalog
from xlperf.engine.trust import LACKED, SOFTWARE, UNKNOWN, Condition, format_and_load, layers_of, model_traits
from xlperf.equations.plan.records import band_end
from xlperf.measurements.comparison import FIRST_TOKEN
from xlperf.measurements.published import Published, PublishedPlans

HEADER = (
    "quantity", "left out beside the model", "number", "configurations", "bias", "80 % quantile of the score",
    "in the band", "in the widened band",
)  # fmt: skip
_MODEL = "nothing"
_SOFTWARE = "its engine"
_SOURCE = "its source"
_READ = f"{_SOURCE}, where others measured the same"


def conditions_table(published: Published, catalog: Catalog) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """One line per quantity and condition left out; each configuration counts once."""
    plans = plans_to_fit(published, catalog)
    entries, errors = left_out_together(plans, QUANTITIES, _groups)
    bands = np.log(bands_left_out(replace(entries, by_models=errors[_MODEL])).high)
    anything = np.array([""], dtype=object)
    constants = catalog.calibration.constants("serving_band", anything, anything, anything)[0]
    half_width = {name: float(values[0, 0]) for name, values in constants.items()}
    dense = np.array([name.endswith("/nan") for name in entries.model.tolist()])
    read = _measured_by_others(plans, entries)
    every = np.full(len(entries), True)
    lines: list[tuple[str, ...]] = []
    for quantity in sorted(set(entries.quantity.tolist())):
        for name, error in [*errors.items(), (_READ, errors[_SOURCE])]:
            own = {_SOURCE: ~read, _READ: read}.get(name, every)
            known = own & (entries.quantity == quantity) & ~np.isnan(error + bands)
            which = "read_" if name == _READ else ""
            least = half_width[f"first_{which}source"] if quantity == FIRST_TOKEN else 0.0
            source = np.where(dense[known], half_width[f"{which}source"], half_width[f"{which}mixture_source"])
            added = np.maximum(source, least) * (name in (_SOURCE, _SOFTWARE, _READ))
            width = np.full(known.sum(), 1.0 + half_width["widening"] * distance_of(name))
            wide = band_end(bands[known], width, added)
            lines.append((quantity, name, *_cells(entries.take(known), error[known], bands[known], wide)))
    return HEADER, lines


def distance_of(name: str) -> float:
    """Distance of a plan from the measurements without a condition; the bands already cover a new model. [-]

    >>> [distance_of(name) for name in ("nothing", "its engine", "format of its engine", "format", "its source")]
    [0.0, 2.0, 0.5, 2.0, 0.0]
    """
    whole = {_MODEL: 0.0, _READ: 0.0, _SOURCE: 0.0, _SOFTWARE: SOFTWARE}
    return whole.get(name, LACKED if name.endswith(_SOFTWARE) else UNKNOWN)


def _sources(plans: PublishedPlans, entries: Errors) -> np.ndarray:
    source = plans.published.text["source_id"]
    return np.array([source[plans.index[plan]] for plan in entries.plan.tolist()], dtype=object)


def _measured_by_others(plans: PublishedPlans, entries: Errors) -> np.ndarray:
    """Whether another source also measured the engine, model and accelerator of each entry."""
    chips = [name.partition("/")[2] for name in entries.family.tolist()]
    cells = list(zip(entries.software.tolist(), entries.model.tolist(), chips, strict=True))
    sources: dict[tuple[str, str, str], set[str]] = {}
    for cell, source in zip(cells, _sources(plans, entries).tolist(), strict=True):
        sources.setdefault(cell, set()).add(source)
    return np.array([len(sources[cell]) > 1 for cell in cells])


def _groups(plans: PublishedPlans, entries: Errors) -> Mapping[str, Sequence[np.ndarray]]:
    """Groups left out together, by name: a row's model plus a condition of its software or of all engines."""
    catalog, table = plans.catalog, plans.plans
    words = format_and_load(table)
    shapes = model_traits(catalog)[0]
    models = catalog.rows("models", table.text("model"), table, "model")
    parts = [words.words[code].split("/") for code in words.codes[entries.plan].tolist()]
    kinds = [layers_of(shapes[models[at]]) for at in entries.plan.tolist()]
    places = zip(entries.generation.tolist(), parts, kinds, strict=True)
    asked = [Condition(str(one), form, load, kind) for one, (form, load), kind in places]
    by_name: dict[str, Sequence[np.ndarray]] = {
        _MODEL: [entries.model],
        _SOURCE: [entries.model, _sources(plans, entries)],
        _SOFTWARE: [entries.model, entries.software],
    }
    for name in Condition._fields:
        values = np.array([getattr(one, name) for one in asked], dtype=object)
        if len(set(values.tolist())) < 2:
            continue
        own = np.array([f"{a}/{b}" for a, b in zip(entries.software, values, strict=True)], dtype=object)
        by_name[f"{name} of {_SOFTWARE}"] = [entries.model, own]
        by_name[name] = [entries.model, values]
    return by_name


def _cells(entries: Errors, errors: Array, bands: Array, wide: Array) -> tuple[str, ...]:
    weight, size = configuration_weights(entries), np.abs(errors)
    inside = [100.0 * float((size <= width) @ weight) / weight.sum() for width in (bands, wide)]
    return (
        f"{len(entries)}",
        f"{round(weight.sum())}",
        f"{100.0 * math.expm1(weighted_quantile(errors, weight, 0.5)):+.1f} %",
        f"{weighted_quantile(size / bands, weight, SHARE):.2f}",
        *(f"{share:.0f} %" for share in inside),
    )
