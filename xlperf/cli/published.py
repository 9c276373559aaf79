"""Commands on published measurements: ``validate`` and ``calibrate``."""

from __future__ import annotations

import csv
import datetime
import io
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import click

from xlperf.base.errors import Fault, InputError
from xlperf.catalog.parts import parts, viewed_columns
from xlperf.cli.command import command
from xlperf.cli.options import catalog_of
from xlperf.cli.output import (
    STANDARD,
    aligned,
    is_workbook,
    progress,
    say,
    standard_output,
    text_table,
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
    files: tuple[str, ...], output: str | None, leave_out: tuple[str, ...], cross_validate: bool, kernels: bool,
    machines: bool, conditions: bool, own_runs: bool, choice: bool, pairs: bool, deployments: bool, baseline: bool,
    readme: str | None, catalog: str | None,
) -> int:  # fmt: skip
    """Compare predictions with published measurements."""
    if baseline and (leave_out or output == STANDARD):
        raise click.UsageError("--baseline goes with neither --leave-out nor -o -")
    own = (cross_validate, kernels, machines, conditions, deployments).count(True)
    refused = files or baseline or output or own > 1 or (leave_out and (own > kernels or readme))
    if own and refused:
        raise click.UsageError(
            "--cross-validate, --kernels, --machines, --conditions and --deployments take the shipped measurements "
            "and no other option but --readme and --catalog, or --kernels --leave-out"
        )
    if choice + pairs > 1 or ((choice or pairs) and (leave_out or baseline or own)):
        raise click.UsageError(f"--{'pairs' if pairs else 'choice'} goes with files, -o, --readme and --catalog only")
    if len(leave_out) > 1 and output is not None:
        raise click.UsageError("-o goes with one --leave-out")
    if own_runs and (own or leave_out or baseline or output or choice or pairs):
        raise click.UsageError("--own goes with files, --readme and --catalog only")
    known = catalog_of(catalog, None)
    if own_runs:
        return _own_accuracy(files, known, readme)
    if kernels:
        return _kernels_left_out(known, leave_out) if leave_out else _kernels(known, readme)
    if choice or pairs:
        return _compared(pairs, files, known, output, readme)
    if cross_validate:
        _cross_validate(known, readme)
    elif machines or conditions or deployments:
        name = "machines" if machines else "conditions" if conditions else "deployments"
        title, table = _left_out(name, known)
        _show(title, name, table, readme)
    elif len(leave_out) > 1 or (leave_out and readme is not None):
        from xlperf.calibrate.accuracy import left_out_table

        table, _ = left_out_table(_published(files), known, leave_out)
        _show("Generations, software and sources left out of the fit", "left-out", table, readme)
    else:
        return _validated(files, output, leave_out, baseline, readme, known)
    return 0


def _validated(
    files: tuple[str, ...], output: str | None, leave_out: Sequence[str], baseline: bool, readme: str | None,
    known: Catalog,
) -> int:  # fmt: skip
    """Show and write the errors of published rows; 1 if a tolerance is missed."""
    from xlperf.calibrate.unseen import unseen_table
    from xlperf.calibrate.validate import validate as validated

    with progress(0, "published runs") as done:
        report = validated(files or None, known, leave_out[0] if leave_out else None, done)
    _write(output, report.csv_text(), len(report.records), "error")
    unseen = unseen_table(report.records)
    if readme is not None:
        texts = {"accuracy": report.readme_table(), "refused": report.refused_table()}
        _replace_tables(Path(readme), {"unseen": unseen}, texts)
    if output != STANDARD:
        for title, header, rows in report.tables():
            if rows:
                say(title, *_aligned(header, rows), "")
        if unseen[1]:
            say("Rows read after the model was made, as first predicted and today", *_aligned(*unseen), "")
    if baseline:
        _show_baseline(files, known)
    for line in report.missed():
        say(f"missed: {line}", err=True)
    return report.exit_code


@command()
def calibrate(
    fit: bool, values_only: bool, machines: bool, own_runs: bool, measurements: str | None, mine: tuple[str, ...],
    date: datetime.datetime | None, output: str | None, catalog: str | None,
) -> None:  # fmt: skip
    """Show the calibration, or fit it to measured kernels and published runs."""
    if not fit and (measurements or date or values_only or machines or own_runs):
        raise click.UsageError("--measurements, --date, --values-only, --machines and --own-runs need --fit")
    if own_runs and (values_only or machines or (output is not None and not output.lower().endswith(".csv"))):
        raise click.UsageError("--own-runs goes with neither --values-only nor --machines, and writes .csv")
    if machines and values_only:
        raise click.UsageError("--machines chooses no constants: leave --values-only out")
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
        from xlperf.calibrate.bands import fitted_calibration, refit_machines
        from xlperf.calibrate.fit import read_measured

        day = f"{date or datetime.datetime.now():%Y-%m-%d}"
        if not machines:
            table = fitted_calibration(known, day, measurements, _announced, values_only)
        _announced("machines")
        table = refit_machines(read_measured(measurements), known.with_tables([table]), day)
    if output is None:
        shown = [part for part in parts(table) if part[0].name in viewed_columns("calibration")]
        say(*text_table(shown))
    else:
        _write_table(output, table, catalog, "constant")


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
    from xlperf.calibrate.own_runs import effects, own_runs
    from xlperf.catalog.read import read_plans
    from xlperf.engine.lessons import lessons

    tables = [table for path in files for table in read_plans(path)]
    runs = own_runs(tables, known)
    taught = known.with_tables([runs])
    if taught.orphans.why.get(runs.kind):
        raise InputError(taught.orphans.faults)
    header = ("run", "result", "unit", "measured", "predicted", "80 % band", "now", "80 % band now")
    lines = []
    for run in effects(taught):
        bands = [
            (f"{now:.4g}", "-" if math.isnan(low) else f"{low:.4g} to {high:.4g}")
            for now, low, high in (run.before, run.after)
        ]
        lines.append((run.run, run.result, run.unit, f"{run.measured:.4g}", *bands[0], *bands[1]))
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


def _own_accuracy(files: Sequence[str], known: Catalog, readme: str | None) -> int:
    """Show errors of rows of left-out sources after own runs of them."""
    from xlperf.calibrate.own_fit import accuracies, accuracy_table, sources_as_they_are, sources_left_out

    rows = _measured_rows(files)
    sources = sources_as_they_are(rows, known) if files else sources_left_out(rows, known, _announced)
    _show(
        "Other rows of sources left out of the fit, after own runs",
        "own-runs",
        accuracy_table(accuracies(sources)),
        readme,
    )
    return 0


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


def _show_baseline(files: Sequence[str], catalog: Catalog) -> None:
    """Median errors of the step time beside one constant MFU, by group and by source."""
    from xlperf.calibrate.validate import against_constant_mfu

    published = _published(files)
    for by in ("group", "source_id"):
        header = (by.removesuffix("_id"), "count", "predicted", "constant mfu")
        lines = [
            (one.key, f"{one.count}", f"{100.0 * one.predicted:.1f} %", f"{100.0 * one.constant_mfu:.1f} %")
            for one in against_constant_mfu(published, catalog, by)
        ]
        if lines:
            say("Median error beside one constant MFU", *_aligned(header, lines), "")


def _cross_validate(catalog: Catalog, readme: str | None) -> None:
    from xlperf.calibrate.accuracy import cross_validated_errors, cross_validation_table, short_table
    from xlperf.calibrate.fit import read_measured

    measured = read_measured()
    with progress(0, "evaluations of all rows") as done:
        errors = cross_validated_errors((measured.training, measured.inference), catalog, lambda _: done(1))
    table = cross_validation_table(errors)
    if readme is not None:
        _replace_tables(Path(readme), {"cross-validation": table, "models-left-out": short_table(table)})
    _show("Models left out of the fit", "cross-validation", table, None)


def _left_out(name: str, catalog: Catalog) -> tuple[str, Lines]:
    """Title and errors of machines or conditions left out of the fit, or of published deployments."""
    from xlperf.calibrate.fit import read_measured

    if name == "conditions":
        from xlperf.calibrate.conditions import conditions_table

        title = "Conditions left out of the fit beside the model of each row"
        return title, conditions_table(read_measured().inference, catalog)
    if name == "machines":
        from xlperf.calibrate.bands import machines_table
        from xlperf.calibrate.fit_machines import errors_left_out

        measured = read_measured()
        errors = errors_left_out(measured.machines, catalog, measured.kernels)
        return "Machines beyond NVIDIA, sources left out of the fit", machines_table(errors, measured, catalog)
    from xlperf.calibrate.deployments import deployment_table, deployments

    with progress(0, "published deployments") as done:
        return "Published deployments", deployment_table(deployments(catalog, done))


def _compared(pairs: bool, files: Sequence[str], catalog: Catalog, output: str | None, readme: str | None) -> int:
    """Show how good the choice among measured alternatives is, or how well ratios of pairs of runs are predicted; with
    an output, also write a line per choice or pair.
    """
    from xlperf.calibrate.choice import alternatives_of, choice_lines, choice_table, choices
    from xlperf.calibrate.pairs import collected_pairs, pair_lines, pair_table, pairs_of, runs_of
    from xlperf.catalog.csv_files import harmless

    with progress(0, "published runs") as done:
        published = _published(files)
        if pairs:
            compared = pairs_of(runs_of(published if files else [*published, collected_pairs()], catalog, done))
            title, name, lines, table = "Pairs of runs", "ratio", pair_lines(compared), pair_table(compared)
        else:
            chosen = choices(alternatives_of(published, catalog, done))
            title, name, lines, table = (
                "Choice among measured alternatives", "choice", choice_lines(chosen), choice_table(chosen)
            )  # fmt: skip
    if output is not None:
        stream = io.StringIO()
        csv.writer(stream, lineterminator="\n").writerows([harmless(word) for word in line] for line in lines)
        _write(output, stream.getvalue(), len(lines) - 1, name)
    if output != STANDARD:
        _show(title, "pairs" if pairs else "choice", table, readme)
    return 0


def _kernels(catalog: Catalog, readme: str | None) -> int:
    from xlperf.base.resources import workbook
    from xlperf.calibrate.accuracy import kernel_errors, kernel_table
    from xlperf.measurements.kernels import read_kernels

    errors = kernel_errors(read_kernels(workbook("validation.xlsx")), catalog)
    if readme is not None:
        _replace_tables(Path(readme), {"kernels": kernel_table(errors, whole=True)})
    _show("Held-out kernel shapes", "kernels", kernel_table(errors), None)
    missed = [one for one in errors if one.missed and not one.accelerator]
    for one in missed:
        say(f"missed: {one.operation}: median {100.0 * one.median:.1f} %, asked for {100.0 * one.bar:.0f} %", err=True)
    return 1 if missed else 0


def _kernels_left_out(catalog: Catalog, names: Sequence[str]) -> int:
    from xlperf.base.resources import workbook
    from xlperf.calibrate.accuracy import kernel_errors_left_out, kernel_table
    from xlperf.measurements.kernels import read_kernels

    errors = kernel_errors_left_out(read_kernels(workbook("validation.xlsx")), catalog, names)
    header, lines = kernel_table(errors)
    header = ("operation", "left out", "", "shapes", *header[4:])
    shown = [at for at in range(len(header)) if at not in (2, len(header) - 1)]
    table = tuple(header[at] for at in shown), [tuple(line[at] for at in shown) for line in lines]
    _show("Kernels left out of the fit", "kernels", table, None)
    return 0


def _show(title: str, name: str, table: Lines, readme: str | None) -> None:
    """Print a table, and put it between its markers in a text file."""
    header, lines = table
    if readme is not None:
        _replace_tables(Path(readme), {name: table})
    say(title, *_aligned(header, lines))


def _announced(name: str) -> None:
    if sys.stderr.isatty():
        say(f"fitting {name}", err=True)


def _replace_tables(path: Path, tables: Mapping[str, Lines], texts: Mapping[str, str] = MappingProxyType({})) -> None:
    """Replace tables and texts between their markers in a text file, which must have at least one pair."""
    from xlperf.base.files import replaced
    from xlperf.calibrate.accuracy import markdown

    text, placed = path.read_text(encoding="utf-8"), False
    written = {**texts, **{name: markdown(name, table) for name, table in tables.items()}}
    for name, table in written.items():
        begin, end = (f"<!-- {name}: {part} -->" for part in ("begin", "end"))
        first, last = text.find(begin), text.find(end)
        if 0 <= first < last:
            text, placed = text[:first] + table + text[last + len(end) :].removeprefix("\n"), True
    if not placed:
        wanted = " or ".join(f"<!-- {name}: begin --> and <!-- {name}: end -->" for name in written)
        raise InputError(Fault(str(path), f"has no lines {wanted}, where the table goes"))
    with replaced(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def _aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of text under their header, line by line; numbers are aligned to the right."""
    columns = list(zip(header, *rows, strict=True))
    numbers = [all(word[:1].isdigit() or word in ("", "-") for word in words[1:]) for words in columns]
    return aligned([[words[0], "-" * max(map(len, words)), *words[1:]] for words in columns], numbers)
