"""Commands on published measurements: ``validate`` and ``calibrate``."""

from __future__ import annotations

import datetime
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from xlperf.base.errors import InputError
from xlperf.catalog.schema import displayed, parts, viewed_columns
from xlperf.cli.command import catalog_of, command
from xlperf.cli.output import (
    STANDARD,
    TextColumn,
    is_workbook,
    narrowed,
    progress,
    say,
    standard_output,
    terminal_width,
    write_sheets,
    wrote,
)

if TYPE_CHECKING:
    from xlperf.catalog.catalog import Catalog
    from xlperf.catalog.table import Table
    from xlperf.measurements.published import Published

Lines = tuple[tuple[str, ...], list[tuple[str, ...]]]


@command()
def validate(
    files: tuple[str, ...],
    output: str | None,
    leave_out: str | None,
    cross_validate: bool,
    kernels: bool,
    own_runs: bool,
    choice: bool,
    pairs: bool,
    readme: str | None,
    catalog: str | None,
) -> int:
    """Compare predictions with published measurements."""
    only = {
        "--cross-validate": cross_validate,
        "--kernels": kernels,
        "--own": own_runs,
        "--choice": choice,
        "--pairs": pairs,
        "--readme": readme is not None,
    }
    named = [name for name, chosen in only.items() if chosen]
    if len(named) > 1 or (named and leave_out is not None):
        raise click.UsageError(f"{named[0]} goes with no other option but --catalog, and files where it takes them")
    if files and named and named[0] not in ("--own", "--choice", "--pairs"):
        raise click.UsageError(f"{named[0]} takes the shipped measurements")
    if output is not None and named:
        raise click.UsageError(f"{named[0]} prints a table; -o writes the errors of runs")
    known = catalog_of(catalog, None)
    if readme is not None:
        from xlperf.calibrate.accuracy import Page, write_tables

        placed = write_tables(Path(readme), Page(_measured_rows(()), known, _announced))
        wrote(readme, len(placed), "table")
    elif own_runs:
        _own_accuracy(files, known)
    elif kernels:
        return _kernels(known)
    elif choice or pairs:
        _compared(pairs, files, known)
    elif cross_validate:
        _cross_validate(known)
    else:
        return _validated(files, output, leave_out, known)
    return 0


def _validated(files: tuple[str, ...], output: str | None, leave_out: str | None, known: Catalog) -> int:
    """Show and write the errors of published rows; 1 if a tolerance is missed."""
    from xlperf.calibrate.validate import validate as validated

    with progress(0, "published runs") as done:
        report = validated(files or None, known, leave_out, done)
    _write(output, report.csv_text(), len(report.records), "error")
    if output != STANDARD:
        for title, header, rows in report.tables():
            if rows:
                say(title, *_aligned(header, rows), "")
    if not files and leave_out is None and output is None:
        from xlperf.calibrate.accuracy import Page

        table = Page(_measured_rows(()), known, _announced).expected()
        say("What to expect: publishers that no fit has read, as first predicted", *_aligned(*table), "")
    for line in report.missed():
        say(f"missed: {line}", err=True)
    return report.exit_code


@command()
def calibrate(
    fit: bool,
    own_runs: bool,
    measurements: str | None,
    mine: tuple[str, ...],
    date: datetime.datetime | None,
    output: str | None,
    catalog: str | None,
) -> None:
    """Show the calibration, or fit it to measured kernels and published runs."""
    if not fit and (measurements or date or own_runs):
        raise click.UsageError("--measurements, --date and --own-runs need --fit")
    if own_runs and output is not None and not output.lower().endswith(".csv"):
        raise click.UsageError("--own-runs writes .csv")
    known = catalog_of(catalog, None)
    if mine:
        if fit:
            raise click.UsageError("--mine goes without --fit")
        _own_runs(mine, known, catalog, output)
        return
    if own_runs:
        _fit_own_runs(known, measurements, output)
        return
    table = known.tables["calibration"]
    if fit:
        from xlperf.calibrate.fit import fitted_calibration, refitted_bands, refitted_machines
        from xlperf.calibrate.published_errors import read_measured

        day, measured = f"{date or datetime.datetime.now():%Y-%m-%d}", read_measured(measurements)
        known = known.with_tables([fitted_calibration(known, day, measured, _announced)])
        _announced("machines")
        known = refitted_machines(measured, known, day)
        _announced("bands")
        table = refitted_bands(_published([measurements] if measurements else []), known, day)
    if output is None:
        say(*_constants(table))
    else:
        _write_table(output, table, catalog, "constant")


def _constants(table: Table) -> list[str]:
    """The calibration as lines: what a constant holds for in a column, without the words that mean everything."""
    names = viewed_columns("calibration")
    viewed = {one.name: displayed(one, values)[1] for one, values in parts(table)}
    viewed["value"] = [f"{value:.4g}" for value in table.number("value").tolist()]
    scopes = zip(*(viewed[name] for name in names[:4] if name in viewed), strict=True)
    columns = [
        TextColumn(
            "for", "", [", ".join(word for word in scope if word != "any").replace("_", " ") for scope in scopes], False
        )
    ]
    for name in (one for one in names[4:] if one in viewed):
        cells = [cell.replace("_", " ") for cell in viewed[name]]
        columns.append(TextColumn(name.replace("num_", ""), "", cells, not table.schema.by_name[name].is_text))
    return narrowed(columns, terminal_width())


def _write_table(output: str, table: Table, catalog: str | None, noun: str) -> None:
    """Write a table as a sheet of a workbook with the catalog, or by itself."""
    from xlperf.base.resources import workbook as shipped

    if is_workbook(output):
        from xlperf.workbook.build import read_tables, write_workbook

        write_workbook(output, {**read_tables(catalog or shipped()), table.kind: table})
    else:
        write_sheets(output, [(table.kind, parts(table))])
    wrote(output, len(table), noun)


def _own_runs(files: Sequence[str], known: Catalog, catalog: str | None, output: str | None) -> None:
    """Show each of the user's runs before and after, and their lessons, and write them."""
    from xlperf.calibrate.validate import effects, own_runs
    from xlperf.catalog.read import read_plans
    from xlperf.engine.lessons import lessons

    tables = [table for path in files for table in read_plans(path)]
    runs = own_runs(tables, known)
    taught = known.with_tables([runs])
    if taught.orphans.why.get(runs.kind):
        raise InputError(taught.orphans.faults)
    header = ("run", "result", "unit", "measured", "predicted", "80 % band", "now", "80 % band now")

    def banded(now: float, low: float, high: float) -> tuple[str, str]:
        return f"{now:.4g}", "-" if math.isnan(low) else f"{low:.4g} to {high:.4g}"

    lines = [
        (run.run, run.result, run.unit, f"{run.measured:.4g}", *banded(*run.before), *banded(*run.after))
        for run in effects(taught)
    ]
    say(*_aligned(header, lines), err=output is not None)
    say(*(f"own runs: {lesson.words()}" for lesson in lessons(taught)), err=output is not None)
    if output is not None:
        _write_table(output, runs, catalog, "run")


def _measured_rows(files: Sequence[str]) -> list[Published]:
    """Published rows of files, with rows of measured power, by default of the shipped workbook."""
    from xlperf.base.resources import workbook
    from xlperf.measurements.published import read_power

    paths = [Path(path) for path in files] or [workbook("validation.xlsx")]
    return [*_published(files), *(rows for path in paths for rows in read_power(path))]


def _own_accuracy(files: Sequence[str], known: Catalog) -> None:
    """Show errors of rows of left-out sources after own runs of them."""
    from xlperf.calibrate.own_fit import accuracies, accuracy_table, sources_as_they_are, sources_left_out

    rows = _measured_rows(files)
    sources = sources_as_they_are(rows, known) if files else sources_left_out(rows, known, _announced)
    _show("Other rows of sources left out of the fit, after own runs", accuracy_table(accuracies(sources)))


def _fit_own_runs(known: Catalog, measurements: str | None, output: str | None) -> None:
    """Fit the process over own runs on left-out sources; show or write its constants."""
    from xlperf.calibrate.own_fit import effects_csv, fitted_effects, sources_left_out

    sources = sources_left_out(_measured_rows([measurements] if measurements else []), known, _announced)
    text = effects_csv(fitted_effects(sources, _announced))
    if output is None:
        say(*text.splitlines())
    else:
        _write(output, text, len(text.splitlines()) - 1, "constant")


def _published(files: Sequence[str]) -> list[Published]:
    """Published rows of files, by default of the shipped workbook."""
    from xlperf.base.resources import workbook
    from xlperf.measurements.published import read_published

    paths = [Path(path) for path in files] or [workbook("validation.xlsx")]
    return [rows for path in paths for rows in read_published(path)]


def _write(output: str | None, text: str, number: int, noun: str) -> None:
    """Write text to a file or to standard output."""
    from xlperf.base.files import replaced

    if output == STANDARD:
        standard_output().write(text)
    elif output is not None:
        with replaced(output) as temporary:
            temporary.write_text(text, encoding="utf-8", newline="")
        wrote(output, number, noun)


def _cross_validate(catalog: Catalog) -> None:
    from xlperf.calibrate.accuracy import cross_validated_errors, cross_validation_table
    from xlperf.calibrate.published_errors import read_measured

    measured = read_measured()
    with progress(0, "evaluations of all rows") as done:
        errors = cross_validated_errors((measured.training, measured.inference), catalog, lambda _: done(1))
    _show("Models left out of the fit", cross_validation_table(errors))


def _compared(pairs: bool, files: Sequence[str], catalog: Catalog) -> None:
    """Show how good the choice among measured alternatives is, or how well ratios of pairs of runs are predicted."""
    from xlperf.calibrate import choice

    with progress(0, "published runs") as done:
        published = _published(files)
        if pairs:
            runs = choice.runs_of(published if files else [*published, choice.collected_pairs()], catalog, done)
            title, table = "Pairs of runs", choice.pair_table([*choice.pairs_of(runs), *choice.repeats_of(runs)])
        else:
            chosen = choice.choices(choice.alternatives_of(published, catalog, done))
            title, table = "Choice among measured alternatives", choice.choice_table(chosen)
    _show(title, table)


def _kernels(catalog: Catalog) -> int:
    from xlperf.base.resources import workbook
    from xlperf.calibrate.accuracy import kernel_errors, kernel_table
    from xlperf.measurements.kernels import read_kernels

    errors = kernel_errors(read_kernels(workbook("validation.xlsx")), catalog)
    _show("Held-out kernel shapes", kernel_table(errors))
    missed = [one for one in errors if one.missed and not one.accelerator]
    for one in missed:
        say(f"missed: {one.operation}: median {100.0 * one.median:.1f} %, asked for {100.0 * one.bar:.0f} %", err=True)
    return 1 if missed else 0


def _show(title: str, table: Lines) -> None:
    """Print a table."""
    say(title, *_aligned(*table))


def _announced(name: str) -> None:
    if sys.stderr.isatty():
        say(f"fitting {name}", err=True)


def _aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of text under their header, as wide as the terminal; numbers are aligned to the right."""
    columns = []
    for name, *cells in zip(header, *rows, strict=True):
        is_number = all(cell[:1].isdigit() or cell[:1] in ("", "-", "+") for cell in cells)
        columns.append(TextColumn(name, "", cells, is_number))
    return narrowed(columns, terminal_width())
