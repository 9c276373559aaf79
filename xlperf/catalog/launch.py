"""Launch lines of training and serving stacks: the arguments of a plan, and the plan of arguments.

``launch_flags.csv`` says which flag of which version is which column. What a stack has no flag for (the accelerator,
the network, lengths of a benchmark ...) stands in comment lines that start with ``# xlperf:``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from xlperf.base.errors import Fault, InputError
from xlperf.base.resources import rows
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import split_header, table_schema, unit_of
from xlperf.catalog.table import Table

MARK = "# xlperf:"
MOST_TEXT = 1_000_000
"""Characters of a launch file at the most. [-]"""


class Flag(NamedTuple):
    """A flag of a stack: ``value`` and ``argument`` are "" where the argument is the value of the column."""

    stack: str
    version: str
    kind: str
    flag: str
    column: str
    value: str
    argument: str


@cache
def flags(stack: str) -> tuple[Flag, ...]:
    """Flags of a stack.

    >>> flags("megatron")[0].flag
    '--tensor-model-parallel-size'
    """
    return tuple(Flag(**row) for row in rows("catalog/launch_flags.csv") if row["stack"] == stack)


@cache
def stacks() -> tuple[str, ...]:
    """Stacks that there are flags of."""
    return tuple(dict.fromkeys(row["stack"] for row in rows("catalog/launch_flags.csv")))


def launch_lines(plan: Table, stack: str) -> list[str]:
    """Arguments of one plan, one per line.

    Parameters
    ----------
    plan : Table
        One plan.
    stack : str
        One of :func:`stacks`.

    Raises
    ------
    InputError
        Where the stack does not run plans of this kind.
    """
    known = flags(stack)
    if known[0].kind != plan.kind:
        fitting = [name for name in stacks() if flags(name)[0].kind == plan.kind]
        problem = f"{stack} runs {known[0].kind} plans; for {plan.kind} plans: {', '.join(fitting)}"
        raise InputError(Fault("--for", problem))
    stated = _stated(plan)
    lines = []
    for flag in known:
        value = stated.get(flag.column)
        if value is None or (flag.value and flag.value != value):
            continue
        argument = flag.argument if flag.value else value
        lines.append(flag.flag + argument if flag.flag.endswith("=") else f"{flag.flag} {shlex.quote(argument)}")
    lines = [line.removesuffix(" ''") for line in lines]
    told, _ = _told(lines, stack)
    rest = [f"{MARK} {name} = {value}" for name, value in stated.items() if told.get(name) != value]
    return [f"{MARK} {stack} {known[0].version}", *rest, *lines]


def _stated(plan: Table) -> dict[str, str]:
    """What a plan states, as a sheet would have it."""
    found = {}
    for column in plan.schema.by_name.values():
        if column.name not in plan:
            continue
        value = plan[column.name][0]
        if column.name in plan.auto and plan.auto[column.name][0]:
            found[column.name] = "auto"
        elif column.is_text:
            found |= {column.name: str(value)} if value else {}
        elif value == value:
            number = float(value) / unit_of(column).factor
            words = {1.0: "yes", 0.0: "no"} if column.kind == "flag" else {}
            found[column.name] = words.get(float(value), f"{number:.15g}")
    return found


def read_launch(text: str, name: str, stack: str = "") -> tuple[Table, list[str]]:
    """The plan of a launch line or script.

    Parameters
    ----------
    text : str
        Arguments, with or without what :func:`launch_lines` adds in comments.
    name : str
        What the text is called, for messages.
    stack : str, default ""
        One of :func:`stacks`; "": the one that the text names, or that most of its flags are of.

    Returns
    -------
    tuple
        The plan, and flags that are not in the table.

    Raises
    ------
    InputError
        Where there is no flag of a stack, or values are wrong, or the text does not say what a plan must.
    """
    if len(text) > MOST_TEXT:
        raise InputError(Fault(name, f"has more than {MOST_TEXT:,} characters: it is no launch line"))
    lines = text.replace("\\\n", " ").splitlines()
    said = [line[len(MARK) :].strip() for line in lines if line.startswith(MARK)]
    named = next((line.split()[0] for line in said if line and "=" not in line and line.split()[0] in stacks()), "")
    plain = [line for line in lines if not line.lstrip().startswith("#")]
    stack = stack or named or max(stacks(), key=lambda own: len(_told(plain, own)[0]))
    told, unknown = _told(plain, stack)
    for key, equals, value in (line.partition("=") for line in said):
        told |= {split_header(key)[0]: value.strip()} if equals else {}
    if not told:
        raise InputError(Fault(name, f"has no flag of {', '.join(stacks())}"))
    kind = flags(stack)[0].kind
    lacking = [column.header for column in table_schema(kind).columns if column.required and column.name not in told]
    if lacking:
        problem = f"does not say {', '.join(lacking)}: add a line for each, as {MARK} {lacking[0]} = ..."
        raise InputError(Fault(name, problem))
    known = table_schema(kind).by_name
    cells = [_cell(value, column in known and not known[column].is_text) for column, value in told.items()]
    return table_from_rows(kind, list(told), [cells], lambda _, column: f"{name} [{column}]"), unknown


def _cell(text: str, number: bool) -> str | float:
    """An argument as a cell has it."""
    if number:
        with suppress(ValueError):
            return float(text)
    return text


def _told(lines: Sequence[str], stack: str) -> tuple[dict[str, str], list[str]]:
    """Columns that flags say, the later over the earlier, and the flags that are not known."""
    known: dict[str, list[Flag]] = {}
    for flag in flags(stack):
        known.setdefault(_plain(flag.flag), []).append(flag)
    told: dict[str, str] = {}
    unknown: list[str] = []
    words = _words(lines)
    for place, word in enumerate(words):
        head, equals, after = word.partition("=")
        if not (word.startswith("--") or (equals and re.fullmatch(r"[\w.+]+", head))):
            continue
        key = _plain(head) + ("" if word.startswith("--") else "=")
        following = words[place + 1] if place + 1 < len(words) else ""
        argument = after if equals else "" if following.startswith("--") else following
        found = _value(known.get(key, []), argument)
        if found is None:
            unknown.append(word if equals or not argument else f"{word} {argument}")
        else:
            told |= found
    return told, unknown


def _value(candidates: Sequence[Flag], argument: str) -> Mapping[str, str] | None:
    for flag in candidates:
        if not flag.value:
            return {flag.column: argument}
        if not flag.argument or flag.argument.casefold() == argument.casefold():
            return {flag.column: flag.value}
    return None


def _plain(flag: str) -> str:
    return flag.replace("_", "-").casefold()


def _words(lines: Sequence[str]) -> list[str]:
    found: list[str] = []
    for line in lines:
        try:
            found += shlex.split(line, comments=True)
        except ValueError:  # a quote that is not closed on its line
            found += line.split()
    return found
