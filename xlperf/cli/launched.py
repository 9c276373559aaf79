"""Plans of launch files and logs, as commands read them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from xlperf.base.errors import Fault, InputError
from xlperf.cli.command import Chosen, catalog_of, read_one
from xlperf.cli.output import STANDARD, say

if TYPE_CHECKING:
    from xlperf.catalog.table import Table

_LAUNCH_FILES = (".log", ".out", ".txt", ".sh", ".bash", ".yaml", ".yml", ".toml", ".json", ".py")
"""Endings of launch files, configurations and logs, which no table of plans has."""
_RESULTS = (".log", ".out", ".txt", ".json")
"""Endings of those that may state what was measured."""


def launched_plan(file: str, stack: str | None, given: tuple[str, ...], partial: bool, catalog: str | None) -> Table:
    """The plan of a launch file or a log with the entries of ``--set``; remarks go to standard error."""
    from xlperf.interop.launch import read_launch
    from xlperf.interop.launch_stacks import MOST_TEXT

    wrong = [text for text in given if not text.partition("=")[2]]
    if wrong:
        raise click.UsageError(f'--set must be as accelerator=H100-SXM-80GB, got "{wrong[0]}"')
    try:
        with sys.stdin if file == STANDARD else Path(file).open(encoding="utf-8") as stream:
            text = stream.read(MOST_TEXT + 1)
    except UnicodeDecodeError:
        raise InputError(Fault(file, "is no text in UTF-8")) from None
    name = "standard input" if file == STANDARD else Path(file).name
    stated = {key.strip(): value.strip() for key, _, value in (one.partition("=") for one in given)}
    folder = None if file == STANDARD else Path(file).parent
    models = catalog_of(catalog, None).tables["models"]
    launched = read_launch(text, name, stack or "", stated, models, partial, folder)
    listed = (
        ("moves a result, not read", launched.unread),
        ("not read", launched.unknown),
        ("variables not known; give them with --set", launched.open),
    )
    for words, flags in listed:
        if flags:
            say(f"note: {name}: {words}: {'; '.join(dict.fromkeys(flags))}", err=True)
    for note in launched.notes:
        say(f"note: {name}: {note}", err=True)
    return launched.plan


def is_launch_file(file: str) -> bool:
    """Whether a file is no table of plans by its ending, but a launch file, a configuration or a log."""
    return Path(file).suffix.casefold() in _LAUNCH_FILES


def is_log(file: str) -> bool:
    """Whether a file may state what was measured, by its ending."""
    return Path(file).suffix.casefold() in _RESULTS


def plan_or_launched(file: str, chosen: Chosen, given: tuple[str, ...], catalog: str | None) -> Table:
    """The chosen plan of a file of plans, or the plan of a launch file or a log."""
    if is_launch_file(file):
        return launched_plan(file, None, given, False, catalog)
    if given:
        raise click.UsageError("--set is for a log or a launch file; edit the plans, or give --vary")
    return read_one(file, chosen)
