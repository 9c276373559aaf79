"""Launch files, configurations and logs as files: their endings, reading one, and remarks on what was not read."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path

from xlperf.base.errors import Fault, InputError, OptionError
from xlperf.catalog.table import Table
from xlperf.interop.launch import Launch, read_launch
from xlperf.interop.launch_stacks import MOST_TEXT

STANDARD = "-"  # standard input as a file
_LAUNCH_FILES = (".log", ".out", ".txt", ".sh", ".bash", ".yaml", ".yml", ".toml", ".json", ".py")
"""Endings of launch files, configurations and logs, which no table of plans has."""
_RESULTS = (".log", ".out", ".txt", ".json")
"""Endings of those that may state what was measured."""


def is_launch_file(file: str) -> bool:
    """Whether a file is no table of plans by its ending, but a launch file, a configuration or a log."""
    return Path(file).suffix.casefold() in _LAUNCH_FILES


def is_log(file: str) -> bool:
    """Whether a file may state what was measured, by its ending."""
    return Path(file).suffix.casefold() in _RESULTS


def launch_of_file(
    file: str, models: Table, given: Iterable[str] = (), stack: str = "", partial: bool = False
) -> tuple[Launch, list[str]]:
    """The plan of a launch file or a log by :func:`read_launch`, with the entries of ``--set``, and remarks on what is
    not read.
    """
    wrong = next((text for text in given if not text.partition("=")[2]), None)
    if wrong is not None:
        raise OptionError(f'--set must be as accelerator=H100-SXM-80GB, got "{wrong}"')
    stated = {key.strip(): value.strip() for key, _, value in (one.partition("=") for one in given)}
    try:
        with nullcontext(sys.stdin) if file == STANDARD else Path(file).open(encoding="utf-8") as stream:
            text = stream.read(MOST_TEXT + 1)
    except UnicodeDecodeError:
        raise InputError(Fault(file, "is no text in UTF-8")) from None
    name, folder = ("standard input", None) if file == STANDARD else (Path(file).name, Path(file).parent)
    launched = read_launch(text, name, stack, stated, models, partial, folder)
    listed = (
        ("moves a result, not read", launched.unread),
        ("not read", launched.unknown),
        ("variables not known; give them with --set", launched.open),
    )
    remarks = [f"{words}: {'; '.join(dict.fromkeys(flags))}" for words, flags in listed if flags]
    return launched, [f"{name}: {remark}" for remark in (*remarks, *launched.notes)]
