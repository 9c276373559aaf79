"""Predictions of a generation of accelerators, or of a software, that the calibration has seen no measurement of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from xlperf.calibrate.cross_validation import SOURCES, refitted
from xlperf.calibrate.fit import belongs_to, read_measured, software_of
from xlperf.calibrate.fit_kernels import fit_kernels
from xlperf.calibrate.fitted_constants import calibration_table, joined_tables
from xlperf.calibrate.published import Published
from xlperf.catalog.calibration import ANY, SOFTWARE_FAMILIES
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table


def rows_of(published: Published, catalog: Catalog, name: str) -> Published:
    """Rows of a generation of accelerators or of a software.

    Parameters
    ----------
    published : Published
        Rows of one kind.
    catalog : Catalog
        Which accelerator is of which generation.
    name : str
        Generation, or software as plans call it; case does not matter.
    """
    wanted = name.casefold()
    if wanted in generations(catalog):
        found = generation_of(published, catalog)
        return published.take([row for row, kind in enumerate(found) if kind == wanted])
    used = software_of(published, catalog)
    return published.take([row for row, software in enumerate(used) if software == wanted])


def generations(catalog: Catalog) -> set[str]:
    """Generations of the accelerators of a catalog, casefolded."""
    return {str(kind).casefold() for kind in catalog.tables["accelerators"].text("generation")}


def generation_of(published: Published, catalog: Catalog) -> list[str]:
    """Generation of the accelerator of each row, casefolded; "" where the catalog does not have it."""
    table = catalog.tables["accelerators"]
    names = table.text("accelerator").tolist()
    kinds = table.text("generation").tolist()
    known = {name.casefold(): kind.casefold() for name, kind in zip(names, kinds, strict=True)}
    return [known.get(name.casefold(), "") for name in published.text["gpu"]]


def left_out(catalog: Catalog, name: str, path: str | Path | None = None) -> Catalog:
    """The catalog with a calibration that has seen no measurement of a generation or of a software.

    Kernels are fitted again without a generation. Of the software's constants those of what is left out go, the
    others are fitted again without its rows; software that is unknown has the median of what is known.

    Parameters
    ----------
    catalog : Catalog
        With the calibration that was fitted on everything.
    name : str
        Generation of accelerators, or software as plans call it.
    path : path-like, optional
        Workbook of measurements; default: the shipped ``validation.xlsx``.

    Raises
    ------
    InputError
        When no accelerator is of that generation and no run used that software.
    """
    kept = read_measured(path).without(name, catalog)
    wanted = name.casefold()
    software = wanted not in generations(catalog)
    table = catalog.tables["calibration"]
    kernels = not_published(table)
    if not software:
        documented = table.take([row for row in kernels if table.text("kind")[row] == "datasheet"])
        base = joined_tables(documented, calibration_table(fit_kernels(kept.kernels, catalog, "")))
    else:
        base = table.take(kernels)
    others = [row for row in range(len(table)) if row not in set(kernels)]
    remaining = [row for row in others if not _concerns(table, row, wanted, software)]
    known = catalog.with_tables([joined_tables(base, table.take(remaining))])
    for rows in (kept.training, kept.inference):
        known = refitted(rows, known)
    return known.with_tables([_with_medians(known.tables["calibration"])])


def not_published(table: Table) -> list[int]:
    """Rows of a calibration sheet that do not come from published runs: kernels and documented settings."""
    source = table.text("source")
    return [row for row in range(len(table)) if not str(source[row]).startswith(tuple(SOURCES.values()))]


def _concerns(table: Table, row: int, name: str, software: bool) -> bool:
    if software:
        return belongs_to(str(table.text("software", ANY)[row]).casefold(), name)
    return str(table.text("generation", ANY)[row]).casefold() == name


def _with_medians(table: Table) -> Table:
    """What holds for any software, as the median of the software that has constants of its own."""
    value = np.array(table["value"], dtype=np.float64)
    texts: dict[str, Sequence[str]] = {
        name: [str(text).casefold() for text in table.text(name, ANY)]
        for name in ("family", "constant", "generation", "software")
    }
    published = set(range(len(table))) - set(not_published(table))
    for row in sorted(published):
        if texts["family"][row] not in SOFTWARE_FAMILIES or texts["software"][row] != ANY:
            continue
        same = [
            other
            for other in published
            if texts["software"][other] != ANY
            and all(texts[name][other] == texts[name][row] for name in ("family", "constant", "generation"))
        ]
        if same:
            value[row] = np.median(value[same])
    return Table("calibration", {**table.columns, "value": value}, table.place)
