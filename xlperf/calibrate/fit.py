"""The calibration sheet from measurements: kernels, then training stacks and serving engines.

Each fit builds on the previous one: stacks and engines are fitted on top of the kernels. The same rows give the same
sheet. Rows of ``group`` papers and of unseen groups are in no fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from xlperf.base.errors import Fault, InputError, nearest
from xlperf.base.resources import workbook
from xlperf.calibrate.fit_kernels import fit_kernels
from xlperf.calibrate.fit_published import fit_memory, fit_serving, fit_training, least_value
from xlperf.calibrate.fitter import FittedConstant, Parameter, calibration_table, pooled_parameters, without_repeats
from xlperf.calibrate.published_errors import plans_of, rows_of_machines, seen_rows
from xlperf.catalog.calibration import ANY
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.measurements.kernels import read_kernels
from xlperf.measurements.published import KINDS, Published, read_published

Step = Callable[[str], None]
SOURCES = {"training": "published rows of the sheet training", "inference": "published rows of the sheet inference"}
"""Prefix of the source of a constant fitted on published rows, by kind."""
_BUILT_ON = {"nim": "tensorrt-llm"}
"""Servers that are built on an engine."""


@dataclass(frozen=True)
class Measured:
    """Data of a calibration: kernel measurements, published training rows and published inference rows."""

    kernels: Sequence[Mapping[str, object]]
    training: Published
    inference: Published

    @property
    def machines(self) -> list[Published]:
        """Published rows on accelerators that are fitted by vendor line (CDNA, TPU, Gaudi, Trainium)."""
        return [rows_of_machines(rows) for rows in (self.training, self.inference)]

    def without(self, name: str, catalog: Catalog) -> Measured:
        """Measurements with an accelerator, a generation, a software or a source left out.

        ``name`` is case-insensitive; a source matches by source_id or by its beginning. Variants of a software and
        servers built on it are left out too; kernel rows are dropped only for accelerators. Raises InputError if
        ``name`` matches no accelerator, generation, used software or source.
        """
        gone = accelerators_of(name, catalog)
        if gone:
            kept = [
                rows.take([row for row, gpu in enumerate(rows.text["gpu"]) if gpu.casefold() not in gone])
                for rows in (self.training, self.inference)
            ]
            kernels = [row for row in self.kernels if str(row["gpu"]).casefold() not in gone]
            return Measured(kernels, *kept)
        wanted, sheets = name.casefold(), (self.training, self.inference)
        used = {rows.kind: software_of(rows, catalog) for rows in sheets}
        table = catalog.tables["accelerators"]
        known = sorted({str(kind) for kind in table.text("generation")})
        known += sorted({software for rows in used.values() for software in rows if software})
        if wanted not in known:
            return self._without_source(name, [*known, *sorted(str(chip) for chip in table.text("accelerator"))])
        kept = [
            rows.take([row for row, software in enumerate(used[rows.kind]) if not belongs_to(software, wanted)])
            for rows in sheets
        ]
        return Measured(self.kernels, *kept)

    def _without_source(self, name: str, known: Sequence[str]) -> Measured:
        """Measurements without the published rows of a source; ``known`` lists alternative names for an error
        message.
        """
        sheets = (self.training, self.inference)
        sources = sorted({source for rows in sheets for source in rows.text["source_id"]})
        if not any(of_source(source, name) for source in sources):
            problem = (
                f'unknown generation, accelerator, software or source "{name}"; {nearest(name, [*known, *sources])}'
            )
            raise InputError(Fault("--leave-out", problem))
        kept = [
            rows.take([row for row, source in enumerate(rows.text["source_id"]) if not of_source(source, name)])
            for rows in sheets
        ]
        return Measured(self.kernels, *kept)


def of_source(source: str, name: str) -> bool:
    """Whether a source_id equals a name or begins with it: a paper and its tables, releases of one list.

    >>> of_source("nemo_25.04", "NeMo_25.04"), of_source("nemo_25.04", "nemo"), of_source("nemo_25.04", "nemo_25")
    (True, True, False)
    """
    return f"{source.casefold()}_".startswith(f"{name.casefold()}_")


def accelerators_of(name: str, catalog: Catalog) -> set[str]:
    """Accelerators, casefolded, of a generation, or the single accelerator of that name; empty if it is neither."""
    table, wanted = catalog.tables["accelerators"], name.casefold()
    chips = [str(chip).casefold() for chip in table.text("accelerator")]
    kinds = [str(kind).casefold() for kind in table.text("generation")]
    return {chip for chip, kind in zip(chips, kinds, strict=True) if wanted in (chip, kind)}


def software_of(published: Published, catalog: Catalog) -> list[str]:
    """Software that the plan of each row names, casefolded; "" for a row that is no plan."""
    plans = plans_of(published, catalog)
    result = [""] * len(published)
    for row, software in zip(plans.index.tolist(), plans.plans.filled("software").tolist(), strict=True):
        result[row] = str(software).casefold()
    return result


def belongs_to(software: str, name: str) -> bool:
    """Whether a software equals the named one, is a variant of it, or is a server built on it.

    >>> belongs_to("nim", "tensorrt-llm"), belongs_to("tensorrt-llm-0", "tensorrt-llm"), belongs_to("vllm", "sglang")
    (True, True, False)
    """
    return software == name or software.startswith(f"{name}-") or _BUILT_ON.get(software) == name


def read_measured(path: str | Path | None = None) -> Measured:
    """Measurements of a workbook with the sheets ``kernels``, ``training`` and ``inference``, without unseen rows.

    ``path`` defaults to the shipped ``validation.xlsx``. Raises InputError if a sheet is missing or a value is invalid.
    """
    source = Path(path) if path is not None else workbook("validation.xlsx")
    by_name = {rows.kind: seen_rows(rows) for rows in read_published(source)}
    missing = [kind for kind in KINDS if kind not in by_name]
    if missing:
        raise InputError(Fault(source.name, f"has no sheet {' and no sheet '.join(missing)} with a column row_id"))
    return Measured(read_kernels(source), by_name["training"], by_name["inference"])


def fit_all(
    measured: Measured, catalog: Catalog, date: str, step: Step | None = None, values_only: bool = False
) -> list[FittedConstant]:
    """Fit every constant of the calibration sheet: kernels, training stacks, serving engines.

    ``step`` receives the name of each fit before it starts: kernels, memory, training, serving. With ``values_only``
    the training stacks have the constants of the catalog's calibration, and the search starts from their values;
    otherwise that calibration is not used.
    """
    say = step if step is not None else _nothing
    say("kernels")
    done = fit_kernels(measured.kernels, _with(catalog, []), date)
    say("memory")
    memory = fit_memory(measured.training, _with(catalog, done), date)
    say("training")  # a step may wait for an allocator without room
    known = training_constants(catalog.tables["calibration"], date) if values_only else []
    done += fit_training(measured.training, _with(catalog, [*done, *memory]), date, known) + memory
    say("serving")
    done += fit_serving(measured.inference, _with(catalog, done), date)
    return without_repeats(done)


def training_constants(table: Table, date: str, kind: str = "training") -> list[FittedConstant]:
    """Constants of a calibration sheet that were fitted on published runs of a kind, excluding memory."""

    def text(name: str, row: int) -> str:
        return str(table.text(name)[row])

    value, count, error, year = (table.number(name) for name in ("value", "num_rows", "error", "year"))
    return [
        FittedConstant(
            family=text("family", row),
            generation=text("generation", row),
            precision=text("precision", row),
            software=text("software", row),
            constant=text("constant", row),
            value=float(value[row]),
            fit_set=text("fit_set", row),
            num_rows=int(count[row]),
            error=float(error[row]),
            date=date,
            source=text("source", row),
            year=float(year[row]),
            kind=text("kind", row),
            notes=text("notes", row),
        )
        for row in range(len(table))
        if text("source", row).startswith(SOURCES[kind])
        and count[row] > 0.0
        and not text("family", row).endswith("_memory")
    ]


def as_parameters(table: Table, kind: str, memory: bool = False) -> tuple[list[Parameter], list[int]]:
    """Constants fitted on published rows of a kind as parameters for a refit, and their rows in the sheet.

    ``memory`` selects constants of memory instead of times.
    """
    source, family, count = table.text("source"), table.text("family"), table.number("num_rows")
    rows = [
        row
        for row in range(len(table))
        if str(source[row]).startswith(SOURCES[kind])
        and count[row] > 0.0
        and str(family[row]).endswith("_memory") == memory
    ]
    names = ("family", "constant", "generation", "precision", "software")
    text = {name: [str(word).casefold() for word in table.text(name, ANY)] for name in names}
    value = table.number("value")
    return pooled_parameters(
        [
            Parameter(
                family=text["family"][row],
                constant=text["constant"][row],
                generation=text["generation"][row],
                precision=text["precision"][row],
                software=text["software"][row],
                start=float(value[row]),
                low=least_value("memory" if memory else kind, text["family"][row], text["constant"][row]),
            )
            for row in rows
        ],
        rows,
    )


def _nothing(_: str) -> None:
    return None


def _with(catalog: Catalog, constants: Sequence[FittedConstant]) -> Catalog:
    return catalog.with_tables([calibration_table(constants)])
