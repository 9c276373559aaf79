"""Notes on plans without a release: the requests that earlier releases of the engine have room for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from xlperf.base.arrays import Array, repeated, some
from xlperf.catalog.calibration import declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.served import Served
from xlperf.engine.software import RELEASE, memory_constants
from xlperf.equations.plan.records import Remark
from xlperf.equations.serving.memory import memory_of
from xlperf.interop.software import release_of, releases_with_changes

_MUCH = 0.15
"""Largest relative difference of the requests at once without a note. [-]"""
_BEFORE = "rc"


def release_notes(
    plans: Table,
    served: Served,
    catalog: Catalog,
    models: np.ndarray,
    results: Mapping[str, Array],
    illegal: np.ndarray,
) -> list[Remark]:
    """Room for requests before the last release in which an engine's accounting of memory changed much.

    A plan without a release has the newest one; a log or a recipe may be of any.
    """
    names = plans.filled("software")
    stated = plans.text(RELEASE) != "" if RELEASE in plans else np.zeros(len(plans), dtype=bool)
    open_rows = ~(illegal | stated)
    changed = {str(name): releases_with_changes("memory", str(name)) for name in set(names[open_rows].tolist())}
    deployment, newest, notes = served.setting.deployment, results["max_concurrency"], []
    declared = declared_constants()["serving_memory"]
    now = memory_constants(plans, catalog, models) if any(changed.values()) else {}
    for release in sorted({each for releases in changed.values() for each in releases}, key=release_of, reverse=True):
        rows = open_rows & np.array([release in changed.get(name, ()) for name in names.tolist()])
        columns = {**plans.columns, RELEASE: repeated(release + _BEFORE, len(plans), object)}
        then, software = memory_constants(replace(plans, columns=columns), catalog, models), dict(deployment.software)
        for name in {**now, **then}:
            # What the newest release changed was as declared before.
            unset = np.full((len(plans), 1), np.nan)
            same, values = np.isnan(now.get(name, unset)), then.get(name, unset)
            earlier = np.where(same, software[name], declared[name].default)
            software[name] = np.where(np.isnan(values), earlier, values)
        before = memory_of(replace(deployment, software=software)).max_concurrency
        larger = np.maximum(before, newest)
        rows &= (np.abs(before - newest) > _MUCH * larger) & (larger >= 1.0)
        if some(rows):
            open_rows = open_rows & ~rows  # the latest change alone
            words = "no release is stated, so the newest is meant: {} before {} has room for {} such requests, not {}"
            sizes = (np.array([float(f"{value:.3g}") for value in each.tolist()]) for each in (before, newest))
            notes.append(Remark(rows, words, (names, repeated(release, len(plans), object), *sizes)))
    return notes
