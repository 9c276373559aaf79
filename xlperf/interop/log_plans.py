"""The plan that a log states: columns by its arguments and its lines, the defaults of its stack, and its model."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from xlperf.catalog.schema import table_schema
from xlperf.interop.launch import MOST_TEXT, told_by
from xlperf.interop.launch_flags import by_name, candidates_of, flags
from xlperf.interop.launch_rules import Stated, plan_of, stack_defaults
from xlperf.interop.launch_text import logged_settings
from xlperf.interop.log_text import log_lines

_WHOLE = ("non-default args: {", "ServerArgs(")
"""Words before lists of arguments that state all that differ from a default."""
_SWITCHED = frozenset({"graphs", "draft_tokens", "two_batch_overlap"})
"""Columns of serving that a flag turns on or off, whose absence from a whole list of arguments means the default."""
_ASSUMED = ("software", "num_accelerators", "mode")
"""Columns that follow from what a log does not say."""


class Logged(NamedTuple):
    """Columns of the plan of a run as its log states them.

    - ``stack``: that wrote the log, "" if none is recognised.
    - ``columns``: values as a sheet has them.
    - ``defaults``: columns that the log leaves at, or sets to, what a blank column means.
    - ``quantities``: of the stack and of the model, as :func:`xlperf.interop.launch_rules.plan_of` takes them.
    """

    stack: str
    columns: Stated
    defaults: frozenset[str]
    quantities: Stated


def read_logged(path: str | Path) -> Logged:
    """The plan that the beginning of a log states.

    ``path``: of the log; text of any encoding and length.
    """
    with Path(path).open(encoding="utf-8", errors="replace") as stream:
        return logged_plan(stream.read(MOST_TEXT))


def logged_plan(text: str) -> Logged:
    """The plan that a log states; nothing for a text that no stack is known by.

    ``text``: the beginning of the log.
    """
    lines, settings = log_lines(text), logged_settings(text)
    stack = lines.stack
    if not stack:
        return Logged("", {}, frozenset(), {})
    known = by_name(stack)
    stated = {flag.column for one in settings for flag in candidates_of(known, one.name)}
    told = told_by([[settings]], stack).values
    columns = plan_of(stack, told)
    whole = any(words in text for words in _WHOLE)
    if not whole:
        assumed = {column for column, *_ in stack_defaults(stack)} - stated
        columns = {name: value for name, value in columns.items() if name not in assumed}
    columns = {name: value for name, value in columns.items() if name[0] != "@" and name not in _ASSUMED}
    if "num_accelerators" in told:
        columns["num_accelerators"] = told["num_accelerators"]
    if "kv_precision" not in told:  # auto is what the checkpoint says
        columns.pop("kv_precision", None)
    columns |= lines.facts
    known_columns = table_schema(flags(stack)[0].kind).by_name
    possible = {flag.column for flag in flags(stack)} & _SWITCHED if whole else stated & known_columns.keys()
    return Logged(stack, columns, frozenset(possible - columns.keys()), told)
