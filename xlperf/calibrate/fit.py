"""The calibration sheet from measurements: kernels, then training stacks and serving engines with their bands.

Each fit stands on the one before: stacks and engines are fitted on top of the kernels. The same rows give the same
sheet. Rows of ``group`` papers are in no fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from xlperf.base.errors import Fault, InputError, nearest
from xlperf.base.resources import workbook
from xlperf.calibrate.cross_validation import SOURCES, refitted
from xlperf.calibrate.fit_bands import with_checks
from xlperf.calibrate.fit_engines import BUILT_ON
from xlperf.calibrate.fit_kernels import fit_kernels
from xlperf.calibrate.fit_memory import fit_memory
from xlperf.calibrate.fit_serving import fit_serving
from xlperf.calibrate.fit_stacks import fit_training
from xlperf.calibrate.fitted_constants import FittedConstant, calibration_table, rounded
from xlperf.calibrate.kernel_measurements import read_kernels
from xlperf.calibrate.published import KINDS, Published, package_rows, read_published
from xlperf.calibrate.published_inference import inference_plans
from xlperf.calibrate.published_training import training_plans
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table

Step = Callable[[str], None]
_ROUNDS = 2


@dataclass(frozen=True)
class Measured:
    """What a calibration is fitted on: kernel measurements, published training rows and published inference rows."""

    kernels: Sequence[Mapping[str, object]]
    training: Published
    inference: Published

    def without(self, name: str, catalog: Catalog) -> Measured:
        """The rows of other generations of accelerators, or of other software.

        Parameters
        ----------
        name : str
            Generation as the accelerators sheet calls it, or software as plans call it; case does not matter.
            Variants of a software and servers that are built on it go with it; measured kernels stay.
        catalog : Catalog
            Which accelerator is of which generation.

        Raises
        ------
        InputError
            When no accelerator is of that generation and no run used that software.
        """
        table = catalog.tables["accelerators"]
        kinds = [str(kind).casefold() for kind in table.text("generation")]
        wanted = name.casefold()
        used = {rows.kind: software_of(rows, catalog) for rows in (self.training, self.inference)}
        if wanted not in kinds:
            known = sorted({str(kind) for kind in table.text("generation")})
            known += sorted({software for rows in used.values() for software in rows if software})
            if wanted not in known:
                problem = f'unknown generation or software "{name}"; {nearest(name, known)}'
                raise InputError(Fault("--leave-out", problem))
            kept = [
                rows.take([row for row, software in enumerate(used[rows.kind]) if not belongs_to(software, wanted)])
                for rows in (self.training, self.inference)
            ]
            return Measured(self.kernels, *kept)
        names = [str(name).casefold() for name in table.text("accelerator")]
        gone = {one for one, kind in zip(names, kinds, strict=True) if kind == wanted}
        kept = [
            rows.take([row for row, gpu in enumerate(rows.text["gpu"]) if gpu.casefold() not in gone])
            for rows in (self.training, self.inference)
        ]
        kernels = [row for row in self.kernels if str(row["gpu"]).casefold() not in gone]
        return Measured(kernels, *kept)


def software_of(published: Published, catalog: Catalog) -> list[str]:
    """Software that the plan of each row names, casefolded; "" for a row that is no plan."""
    plans = training_plans(published, catalog) if published.kind == "training" else inference_plans(published, catalog)
    found = [""] * len(published)
    for row, software in zip(plans.index.tolist(), plans.plans.filled("software").tolist(), strict=True):
        found[row] = str(software).casefold()
    return found


def belongs_to(software: str, name: str) -> bool:
    """Whether a software is another one, a variant of it, or a server that is built on it.

    >>> belongs_to("nim", "tensorrt-llm"), belongs_to("tensorrt-llm-0", "tensorrt-llm"), belongs_to("vllm", "sglang")
    (True, True, False)
    """
    return software == name or software.startswith(f"{name}-") or BUILT_ON.get(software) == name


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


def fit_all(
    measured: Measured, catalog: Catalog, date: str, step: Step | None = None, values_only: bool = False
) -> list[FittedConstant]:
    """Fit every constant of the calibration sheet.

    Parameters
    ----------
    measured : Measured
        Rows to fit on.
    catalog : Catalog
        Accelerators, networks and models; its calibration is not used but for ``values_only``.
    date : str
        Date that the rows carry.
    step : callable, optional
        Called with the name of each fit before it starts: kernels, training,
        training together, memory, serving, bands.
    values_only : bool, default False
        Whether to take from the calibration of the catalog which constants training stacks have, and to start from
        their values; which they need is the longest search of all.

    Returns
    -------
    list of FittedConstant
        Rows of the sheet in their order: documented settings, kernels, training stacks, serving engines, bands.
    """
    say = step if step is not None else _nothing
    done = documented_constants(date)
    say("kernels")
    done += fit_kernels(measured.kernels, _with(catalog, done), date)
    done += kernels_of_stacks(done)
    say("training")
    done += (
        training_constants(catalog.tables["calibration"], date)
        if values_only
        else fit_training(measured.training, _with(catalog, done), date)
    )
    say("training together")
    done = _together(done, measured.training, catalog)
    say("memory")
    done += fit_memory(measured.training, _with(catalog, done), date)
    say("serving")
    done += fit_serving(measured.inference, _with(catalog, done), date)
    done = list({(row.family, row.generation, row.precision, row.software, row.constant): row for row in done}.values())
    say("bands")
    return with_checks(done, (measured.training, measured.inference), catalog, date)


def kernels_of_stacks(fitted: Sequence[FittedConstant]) -> list[FittedConstant]:
    """Constants of the attention library that a training stack calls, as constants of the stack.

    ``attention_libraries.csv`` says which library that is, and where it is documented.

    Parameters
    ----------
    fitted : sequence of FittedConstant
        With constants of libraries that were measured apart.
    """
    return [
        replace(row, software=use["software"], notes=f"kernels of {row.software}: {use['reference']}")
        for use in package_rows("attention_libraries.csv")
        for row in fitted
        if (row.family, row.generation, row.software) == (use["family"], use["generation"], use["kernels"])
    ]


def training_constants(table: Table, date: str) -> list[FittedConstant]:
    """Constants of a calibration sheet that were fitted on published training runs, memory and bands left out.

    Parameters
    ----------
    table : Table
        Calibration sheet.
    date : str
        Date that the rows get.
    """
    kept = [
        row
        for row, (source, family) in enumerate(zip(table.text("source"), table.text("family"), strict=True))
        if str(source).startswith(SOURCES["training"]) and not str(family).endswith(("_band", "_memory"))
    ]
    value, count, error, year = (table.number(name) for name in ("value", "num_rows", "error", "year"))

    def text(name: str, row: int) -> str:
        return str(table.text(name)[row])

    return [
        FittedConstant(
            text("family", row),
            text("generation", row),
            text("precision", row),
            text("software", row),
            text("constant", row),
            float(value[row]),
            text("fit_set", row),
            int(count[row]),
            float(error[row]),
            date,
            text("source", row),
            float(year[row]),
            text("kind", row),
            text("notes", row),
        )
        for row in kept
    ]


def _together(constants: Sequence[FittedConstant], published: Published, catalog: Catalog) -> list[FittedConstant]:
    """The constants with those of all software fitted again together, from the values that each was found with."""
    known = _with(catalog, constants)
    for _ in range(_ROUNDS):
        known = refitted(published, known)
    values = known.tables["calibration"].number("value").tolist()
    return [replace(one, value=rounded(value)) for one, value in zip(constants, values, strict=True)]


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
            kind=row["kind"],
            notes=row["notes"],
        )
        for row in package_rows("documented_constants.csv")
    ]


def fitted_calibration(
    catalog: Catalog,
    date: str,
    path: str | Path | None = None,
    step: Step | None = None,
    values_only: bool = False,
) -> Table:
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
    values_only : bool, default False
        As for :func:`fit_all`.
    """
    return calibration_table(fit_all(read_measured(path), catalog, date, step, values_only))
