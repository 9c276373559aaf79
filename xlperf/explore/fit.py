"""The calibration sheet from measurements: kernels, then training stacks and serving engines with their bands.

Each fit stands on the one before: stacks and engines are fitted on top of the kernels. The same rows give the same
sheet. Rows of ``group`` papers are in no fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.errors import Fault, InputError, nearest
from xlperf.explore.fit_kernels import fit_kernels
from xlperf.explore.fit_memory import fit_memory
from xlperf.explore.fit_rows import FittedConstant, calibration_table
from xlperf.explore.fit_serving import fit_serving
from xlperf.explore.fit_stacks import fit_training
from xlperf.explore.kernel_rows import read_kernels
from xlperf.explore.published import KINDS, Published, package_rows, read_published
from xlperf.resources import workbook

Step = Callable[[str], None]


@dataclass(frozen=True)
class Measured:
    """What a calibration is fitted on: kernel measurements, published training rows and published inference rows."""

    kernels: Sequence[Mapping[str, object]]
    training: Published
    inference: Published

    def without(self, generation: str, catalog: Catalog) -> Measured:
        """The rows of other generations of accelerators.

        Parameters
        ----------
        generation : str
            Generation as the accelerators sheet calls it; case does not matter.
        catalog : Catalog
            Which accelerator is of which generation.

        Raises
        ------
        InputError
            When no accelerator is of that generation.
        """
        table = catalog.tables["accelerators"]
        kinds = [str(kind).casefold() for kind in table.text("generation")]
        if generation.casefold() not in kinds:
            known = sorted({str(kind) for kind in table.text("generation")})
            raise InputError(Fault("--leave-out", f'unknown generation "{generation}"; {nearest(generation, known)}'))
        names = [str(name).casefold() for name in table.text("accelerator")]
        gone = {name for name, kind in zip(names, kinds, strict=True) if kind == generation.casefold()}
        kept = {}
        for rows in (self.training, self.inference):
            kept[rows.kind] = rows.take([row for row, gpu in enumerate(rows.text["gpu"]) if gpu.casefold() not in gone])
        kernels = [row for row in self.kernels if str(row["gpu"]).casefold() not in gone]
        return Measured(kernels, kept["training"], kept["inference"])


def read_measured(path: str | Path | None = None) -> Measured:
    """Measurements of a workbook with the sheets ``kernels``, ``training`` and ``inference``.

    Parameters
    ----------
    path : path-like, optional
        Workbook; default: the shipped ``validation.xlsx``.

    Raises
    ------
    InputError
        When a sheet is missing or a value will not do.
    """
    source = Path(path) if path is not None else workbook("validation.xlsx")
    found = {rows.kind: rows for rows in read_published(source)}
    missing = [kind for kind in KINDS if kind not in found]
    if missing:
        raise InputError(Fault(source.name, f"has no sheet {' and no sheet '.join(missing)} with a column row_id"))
    return Measured(read_kernels(source), found["training"], found["inference"])


def fit_all(measured: Measured, catalog: Catalog, date: str, step: Step | None = None) -> list[FittedConstant]:
    """Fit every constant of the calibration sheet.

    Parameters
    ----------
    measured : Measured
        Rows to fit on.
    catalog : Catalog
        Accelerators, networks and models; its calibration is not used.
    date : str
        Date that the rows carry.
    step : callable, optional
        Called with the name of each fit before it starts: kernels, training, memory, serving.

    Returns
    -------
    list of FittedConstant
        Rows of the sheet in their order: documented settings, kernels, training stacks, serving engines.
    """
    say = step if step is not None else _nothing
    done = documented_constants(date)
    say("kernels")
    done += fit_kernels(measured.kernels, _with(catalog, done), date)
    done += kernels_of_stacks(done)
    say("training")
    done += fit_training(measured.training, _with(catalog, done), date)
    say("memory")
    done += fit_memory(measured.training, _with(catalog, done), date)
    say("serving")
    done += fit_serving(measured.inference, _with(catalog, done), date)
    return list({(row.family, row.generation, row.precision, row.software, row.constant): row for row in done}.values())


def kernels_of_stacks(fitted: Sequence[FittedConstant]) -> list[FittedConstant]:
    """Constants of the attention library that a training stack calls, as constants of the stack.

    ``stack_kernels.csv`` says which library that is, and where it is documented.

    Parameters
    ----------
    fitted : sequence of FittedConstant
        With constants of libraries that were measured apart.
    """
    return [
        replace(row, software=use["software"], notes=f"kernels of {row.software}: {use['reference']}")
        for use in package_rows("stack_kernels.csv")
        for row in fitted
        if (row.family, row.generation, row.software) == (use["family"], use["generation"], use["kernels"])
    ]


def _nothing(_: str) -> None:
    return None


def _with(catalog: Catalog, constants: Sequence[FittedConstant]) -> Catalog:
    return catalog.with_tables([calibration_table(constants)])


def documented_constants(date: str) -> list[FittedConstant]:
    """Settings of stacks that are written down where they come from: read, not fitted.

    Parameters
    ----------
    date : str
        Date that the rows carry.
    """
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
            date=date,
            source=row["source"],
            year=float(row["year"]),
            kind="datasheet",
            notes=row["notes"],
        )
        for row in package_rows("documented_constants.csv")
    ]


def fitted_calibration(catalog: Catalog, date: str, path: str | Path | None = None, step: Step | None = None) -> Table:
    """The calibration sheet fitted anew.

    Parameters
    ----------
    catalog : Catalog
        Accelerators, networks and models.
    date : str
        Date that the rows carry.
    path : path-like, optional
        Workbook of measurements; default: the shipped ``validation.xlsx``.
    step : callable, optional
        Called with the name of each fit before it starts.
    """
    return calibration_table(fit_all(read_measured(path), catalog, date, step))


def left_out(catalog: Catalog, generation: str, path: str | Path | None = None) -> Catalog:
    """The catalog with a calibration that has seen no measurement of one generation.

    Parameters
    ----------
    catalog : Catalog
        Accelerators, networks and models.
    generation : str
        Generation to leave out.
    path : path-like, optional
        Workbook of measurements; default: the shipped ``validation.xlsx``.

    Raises
    ------
    InputError
        When no accelerator is of that generation.
    """
    measured = read_measured(path).without(generation, catalog)
    return catalog.with_tables([calibration_table(fit_all(measured, catalog, ""))])
