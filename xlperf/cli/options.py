"""Input of commands: the catalog and the plans that their options name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from xlperf.base.errors import Fault, InputError, nearest
from xlperf.cli.command import Chosen, Sheets
from xlperf.cli.output import say

if TYPE_CHECKING:
    from xlperf.catalog.catalog import Catalog
    from xlperf.catalog.table import Table
    from xlperf.explore.candidates import Bounds


def catalog_of(given: str | Sheets | None, source: str | None) -> Catalog:
    """The catalog of ``--catalog``, else of the workbook ``source`` with the plans, else the shipped one; with the
    user's measured runs of ``--measured``, and their lessons on standard error.

    Rows that refer to unknown names are listed on standard error and left out. Raises InputError with every fault of
    the workbook, or if the workbook of ``--catalog`` has no catalog sheet.
    """
    from xlperf.catalog.catalog import load_catalog
    from xlperf.catalog.check import left_out
    from xlperf.catalog.read import is_workbook

    sheets = given if isinstance(given, Sheets) else Sheets(given)
    own = source if source is not None and is_workbook(source) else None
    note_unread(sheets.path, own)
    catalog = load_catalog(sheets.path or own)
    say(*(f"note: {line}" for line in left_out(catalog)), err=True)
    return with_measured(catalog, sheets.measured) if isinstance(given, Sheets) else catalog


def with_measured(catalog: Catalog, files: Sequence[str]) -> Catalog:
    """The catalog with the measured runs of some files beside its own; lists their lessons on standard error."""
    from xlperf.catalog.schema import OWN_RUNS

    if files:
        from pathlib import Path

        from xlperf.calibrate.validate import read_own_runs

        for file in files:
            catalog = catalog.with_tables([read_own_runs(Path(file), catalog)])
            if catalog.orphans.why.get(OWN_RUNS):
                raise InputError(catalog.orphans.faults)
    if len(catalog.tables[OWN_RUNS]):
        from xlperf.engine.lessons import lessons

        say(*(f"own runs: {lesson.words()}" for lesson in lessons(catalog)), err=True)
    return catalog


def note_unread(given: str | None, own: str | None) -> None:
    """Name on standard error each sheet that looks like a catalog sheet but is not read.

    Raises InputError if a workbook cannot be read, or the one of ``--catalog`` has no catalog sheet.
    """
    from xlperf.catalog.check import unread_in

    say(*(f"note: {fault}" for fault in unread_in(given, own)), err=True)


def catalog_for(given: str | Sheets | None, plans: str, tables: list[Table]) -> Catalog:
    """The catalog of plans. Unknown names of all plans are refused at once, before any plan is evaluated.

    Corrected spellings are listed on standard error.
    """
    from xlperf.catalog.check import name_faults

    catalog = catalog_of(given, plans)
    faults = name_faults(tables, catalog)
    if faults:
        raise InputError(faults)
    note_names(tables, catalog)
    for table in tables:
        note_own(table.own)
    return catalog


def note_own(headers: Iterable[str]) -> None:
    """Say on standard error which columns of plans xlperf does not know."""
    listed = ", ".join(headers)
    if listed:
        say(f"note: columns that are not read: {listed}", err=True)


def note_names(tables: Sequence[Table], catalog: Catalog) -> None:
    """List on standard error the names that were corrected to a known spelling."""
    from xlperf.catalog.check import taken_names

    say(*(f"note: {words}" for words in taken_names(tables, catalog)), err=True)


def without_auto(plans: Table, catalog: Catalog, bounds: Bounds) -> Table:
    """Plans with every ``auto`` resolved; standard error lists the choices."""
    if not plans.auto:
        return plans
    from xlperf.explore.asked_search import plan_name
    from xlperf.explore.auto import resolve

    resolved = resolve(plans, catalog, **bounds)
    for row, words in resolved.notes.items():
        say(f"{plan_name(plans, row)}: {words}", err=True)
    return resolved.plans


def read_chosen(plans: str, chosen: Chosen) -> list[Table]:
    """Plans of a file: the one that is named, else all that the sheet or the file has."""
    from xlperf.catalog.read import read_plans

    tables = read_plans(plans, sheet=chosen.sheet)
    return [_picked(tables, plans, chosen)] if chosen.is_one else tables


def read_one_kind(plans: str, chosen: Chosen) -> Table:
    """The plans that are meant, all training or all inference."""
    tables = read_chosen(plans, chosen)
    if len(tables) > 1:
        raise InputError(Fault(plans, f"holds both kinds of plans: give --sheet {tables[0].kind}"))
    return tables[0]


def read_one(plans: str, chosen: Chosen) -> Table:
    """The chosen plan of a file, the first by default."""
    tables = read_chosen(plans, chosen)
    return tables[0] if chosen.is_one else _picked(tables, plans, chosen)


def _picked(tables: list[Table], plans: str, chosen: Chosen) -> Table:
    """Plans by row or by name; a row number counts within one sheet, a name is looked for in all."""
    row, name, _ = chosen
    if name is None:
        index = (row or 1) - 1
        if index >= len(tables[0]):
            problem = f"--row {row} is beyond the last of {len(tables[0])} {tables[0].kind} plans"
            raise InputError(Fault(plans, problem))
        return tables[0].take([index])
    rows = [(table, index, str(text)) for table in tables for index, text in enumerate(table.text("name").tolist())]
    matches = [(table, index) for table, index, text in rows if text.casefold() == name.strip().casefold()]
    if len(matches) > 1:
        places = " and ".join(table.place(index, "name") for table, index in matches[:2])
        raise InputError(Fault(plans, f'{len(matches)} plans are named "{name}", at {places}; give --sheet and --row'))
    if not matches:
        hint = nearest(name, [text for *_, text in rows if text])
        raise InputError(Fault(plans, f'no plan is named "{name}"; {hint}'))
    table, index = matches[0]
    return table.take([index])
