"""Input of commands: the catalog and the plans that their options name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from xlperf.base.errors import Fault, InputError, nearest
from xlperf.cli.command import Chosen
from xlperf.cli.output import say

if TYPE_CHECKING:
    import numpy as np

    from xlperf.catalog.catalog import Catalog
    from xlperf.catalog.table import Table
    from xlperf.explore.candidates import Bounds
    from xlperf.explore.vary import Varied

TOP = 10
"""Plans that are shown of each row by default. [-]"""


def catalog_of(given: str | None, source: str | None) -> Catalog:
    """The catalog of ``--catalog``, else of the workbook that holds the rows, else the shipped one.

    ``given``: workbook that ``--catalog`` names. ``source``: file of the rows, whether a workbook or not. Rows that
    name what no table has are named on standard error and left out. Raises InputError with every fault of the
    workbook; where the one that was asked for has no sheet of a catalog.
    """
    from xlperf.catalog.catalog import load_catalog
    from xlperf.catalog.read import is_workbook

    own = source if source is not None and is_workbook(source) else None
    note_unread(given, own)
    catalog = load_catalog(given or own)
    if catalog.orphans.faults:
        left_out = InputError(catalog.orphans.faults).lines()
        say(*(f"note: left out: {line}" for line in left_out), err=True)
    return catalog


def note_unread(given: str | None, own: str | None) -> None:
    """Name sheets on standard error that are not read, but look as if they should be.

    ``given``: workbook that ``--catalog`` names; it must have at least one sheet of a catalog. ``own``: workbook of the
    rows. Raises InputError where a workbook cannot be read, or the one that was given has no sheet of a catalog.
    """
    from xlperf.catalog.ods import open_workbook
    from xlperf.catalog.read import is_table_file, unread_sheets
    from xlperf.catalog.schema import EVERY_TABLE

    if given is not None and is_table_file(given):
        given = None
    for path in dict.fromkeys(filter(None, (own, given))):
        with open_workbook(path) as book:
            unread = unread_sheets(book)
            if path == given and not any(book.sheet(kind) for kind in EVERY_TABLE):
                raise InputError([*unread, Fault(book.name, f"has no sheet of a catalog: {', '.join(EVERY_TABLE)}")])
        for fault in unread:
            say(f"note: {fault}", err=True)


def vary_line(text: str) -> tuple[str, list[str]]:
    """A column and its values: ``tensor parallel=1,2,4``."""
    name, equals, values = text.partition("=")
    if not equals:
        raise click.UsageError(f'--vary takes COLUMN=VALUES, got "{text}"')
    return name, values.split(",")


def varied(
    table: Table, vary: Sequence[str], of_catalog: bool = False
) -> tuple[Table, dict[str, np.ndarray], tuple[Varied, ...]]:
    """Plans whose columns of ``--vary COLUMN=auto`` say so, values of the other ones, and what is searched one by one.

    The latter, with ``of_catalog``: values of the catalog, factors of columns of the plans, and targets.
    """
    from xlperf.explore.candidates import with_auto
    from xlperf.explore.objectives import TARGETS
    from xlperf.explore.vary import Varied, read_variation

    found = read_variation(table.kind, [vary_line(text) for text in vary], "--vary")
    for one in found.varied:
        if one.shape:
            raise InputError(Fault("--vary", f"{one.column.name}: a search needs values, not a range"))
        if not of_catalog:
            what = (
                f"a factor of {one.name.replace('_', ' ')}"
                if one.sheet == table.kind
                else f"{one.column.name}, of the catalog"
            )
            problem = f"a frontier takes no {what}; xlperf evaluate --vary and a search without --frontier do"
            raise InputError(Fault("--vary", problem))
    targets = [name for name in found.values if of_catalog and name in TARGETS.values()]
    alone = [Varied(table.kind, name, found.values[name], False) for name in targets]
    values = {name: tried for name, tried in found.values.items() if name not in targets}
    return with_auto(table, found.auto, "--vary"), values, (*alone, *found.varied)


def catalog_for(given: str | None, plans: str, tables: list[Table]) -> Catalog:
    """The catalog of plans; names that it lacks are refused for all plans at once, before any is evaluated.

    Names that it spells otherwise are said on standard error.
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
    """Say on standard error which names of rows were taken for others; they were looked up before."""
    from xlperf.catalog.check import taken_names

    say(*(f"note: {words}" for words in taken_names(tables, catalog)), err=True)


def without_auto(plans: Table, catalog: Catalog, bounds: Bounds) -> Table:
    """Plans with a value in the place of every ``auto``; what was chosen is said on standard error."""
    if not plans.auto:
        return plans
    from xlperf.explore.auto import resolve

    found = resolve(plans, catalog, **bounds)
    for row, words in found.notes.items():
        say(f"{plan_name(plans, row)}: {words}", err=True)
    return found.plans


def plan_name(plans: Table, row: int = 0) -> str:
    """Name of a plan; where it stands if it has none."""
    return str(plans.text("name")[row]) or plans.place(row, "name")


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
    """The one plan of a file that is meant; the first where none is named."""
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
    names = [(table, index, str(own)) for table in tables for index, own in enumerate(table.text("name").tolist())]
    found = [(table, index) for table, index, own in names if own.casefold() == name.strip().casefold()]
    if len(found) > 1:
        places = " and ".join(own.place(index, "name") for own, index in found[:2])
        raise InputError(Fault(plans, f'{len(found)} plans are named "{name}", at {places}; give --sheet and --row'))
    if not found:
        hint = nearest(name, [own for _, _, own in names if own])
        raise InputError(Fault(plans, f'no plan is named "{name}"; {hint}'))
    table, index = found[0]
    return table.take([index])
