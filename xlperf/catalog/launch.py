"""Launch lines of training and serving stacks: the arguments of a plan, and the plan of arguments.

``launch_flags.csv`` says which flag of which version is which column; rows without a column are flags that alter
neither time nor memory. What a stack has no flag for (the accelerator, the network, lengths of a benchmark ...) stands
in comment lines that start with ``# xlperf:``. Columns that several arguments decide together follow from quantities of
the stack (``@data``, ``@tensor``) by :mod:`xlperf.catalog.launch_rules`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import NamedTuple

from xlperf.base.errors import Fault, InputError, nearest
from xlperf.base.resources import rows
from xlperf.catalog.cells import shown
from xlperf.catalog.launch_rules import Stated, plan_of, stack_of
from xlperf.catalog.launch_text import Setting, logged_settings, settings_of
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import canonical, split_header, table_schema, unit_of
from xlperf.catalog.table import Table

MARK = "# xlperf:"
MOST_TEXT = 1_000_000
"""Characters of a launch file at the most. [-]"""
_SHORT = re.compile(r"-[A-Za-z]|[A-Z_][A-Z0-9_]*=")
"""Options of other commands on the same line, and variables: not listed where they are not known."""
_ON, _OFF = ("true", "yes", "1", "on"), ("false", "no", "0", "off")


class Flag(NamedTuple):
    """A flag of a stack: ``value`` and ``argument`` are "" where the argument is the value of the column.

    ``column`` is a column of the plan, a quantity of the stack that starts with ``@``, or "" for a flag that alters
    neither time nor memory; ``argument`` is ``*`` where all words that follow belong to the flag.
    """

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


@cache
def _by_name(stack: str) -> Mapping[str, tuple[Flag, ...]]:
    found: dict[str, list[Flag]] = {}
    for flag in flags(stack):
        found.setdefault(_plain(flag.flag), []).append(flag)
    return {name: tuple(own) for name, own in found.items()}


@cache
def _commands() -> tuple[str, ...]:
    """Commands whose first argument is the model."""
    return tuple(dict.fromkeys(row["flag"] for row in rows("catalog/launch_flags.csv") if row["flag"] in _POSITIONAL))


LOG = "(log)"
"""How versions of names end that stand in logs and results alone."""
_POSITIONAL = ("vllm serve", "trtllm-serve")


def launch_lines(plan: Table, stack: str) -> list[str]:
    """Arguments of one plan, one per line.

    ``stack``: one of :func:`stacks`. Raises InputError where the stack does not run plans of this kind.
    """
    known = flags(stack)
    if known[0].kind != plan.kind:
        fitting = [name for name in stacks() if flags(name)[0].kind == plan.kind]
        problem = f"{stack} runs {known[0].kind} plans; for {plan.kind} plans: {', '.join(fitting)}"
        raise InputError(Fault("--for", problem))
    stated = _stated(plan)
    lines = list(_arguments(known, stack_of(stack, stated)))
    told = plan_of(stack, _told([settings_of(line, commands=_commands()) for line in lines], stack)[0])
    rest = {name: value for name, value in stated.items() if told.get(name) != value}
    rest |= {name: "" for name in told if name not in stated}
    marked = [f"{MARK} {name} = {value}".rstrip() for name, value in rest.items()]
    return [f"{MARK} {stack} {_version(known)}", *marked, *lines]


def _version(known: Sequence[Flag]) -> str:
    """The newest version of the stack that a flag of a column is of."""
    own = [flag.version for flag in known if flag.column and flag.version[-1].isdigit()]
    own = [version for version in own if version.split()[0] == own[0].split()[0]]
    return max(own, key=lambda version: [int(part) for part in version.rpartition(" ")[2].split(".")])


def _arguments(known: Sequence[Flag], stated: Mapping[str, str]) -> Iterator[str]:
    """A line for each column, with the first flag that says it."""
    done = set()
    for flag in known:
        value = stated.get(flag.column)
        if (
            flag.version.endswith(LOG)
            or not flag.column
            or flag.column in done
            or value is None
            or (flag.value and flag.value != value)
        ):
            continue
        listed = flag.argument == "*" and not flag.value
        if "auto" in (value, flag.argument) or (listed and flag.column != "@captured"):
            continue
        done.add(flag.column)
        argument = value if listed else "" if flag.argument == "*" else flag.argument if flag.value else value
        if flag.flag.endswith("="):
            yield flag.flag + argument
        elif flag.flag[:1] == "-" or " " in flag.flag or flag.flag in _POSITIONAL:
            yield f"{flag.flag} {shlex.quote(argument)}".removesuffix(" ''")
        else:
            yield f"{flag.flag}: {argument}"


def _stated(plan: Table) -> Stated:
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


class Launch(NamedTuple):
    """The plan of a launch file, flags that are not in the table, and those whose variables have to be given."""

    plan: Table
    unknown: list[str]
    open: list[str]


def read_launch(
    text: str, name: str, stack: str = "", given: Mapping[str, str] | None = None, models: Table | None = None
) -> Launch:
    """The plan of a launch line, script, YAML or TOML file, or of a log or result that lists its arguments.

    ``text``: arguments, with or without what :func:`launch_lines` adds in comments. ``name``: what the text is called,
    for messages. ``stack``: one of :func:`stacks`; "": the one that the text names, or that most of its flags are of.
    ``given``: columns of the plan, and variables of the environment, that the text does not say. ``models``: among
    these a model is found by its name or its dimensions. Raises InputError where there is no flag of a stack, or values
    are wrong, or the text does not say what a plan must.
    """
    logged = logged_settings(text[:MOST_TEXT])
    if len(text) > MOST_TEXT and not logged:
        raise InputError(Fault(name, f"has more than {MOST_TEXT:,} characters: it is no launch line"))
    said = [line[len(MARK) :].strip() for line in text.splitlines() if line.startswith(MARK)]
    named = next((line.split()[0] for line in said if line and "=" not in line and line.split()[0] in stacks()), "")
    groups = [[logged] if logged else settings_of(text, given, _commands())]
    if named:  # an argument per line, as launch_lines writes them
        groups = [[[one for group in groups[0] for one in group]]]
    stack = stack or named or max(stacks(), key=lambda own: _fit(groups, own))
    quantities, unknown, open_ = _told(groups, stack)
    unknown = [] if logged else unknown
    kind = flags(stack)[0].kind
    known = table_schema(kind).by_name
    columns = {}
    for key, value in (given or {}).items():  # TP is a column, unless it is a variable of the script
        own = split_header(key)[0]
        columns[own if re.search(rf"\$\{{?{re.escape(key)}\b", text) else canonical(kind, own)] = value
    told = plan_of(stack, {**quantities, **{key: value for key, value in columns.items() if key in known}}, models)
    told |= {key: value for key, value in columns.items() if key in known}
    for key, equals, value in (line.partition("=") for line in said):
        told |= {canonical(kind, split_header(key)[0]): value.strip()} if equals else {}
    if not quantities and not any("=" in line for line in said):
        raise InputError(Fault(name, f"has no flag of {', '.join(stacks())}"))
    told = {column: value for column, value in told.items() if value != ""}
    return Launch(_plan_table(flags(stack)[0].kind, told, name, open_), unknown, open_)


def _plan_table(kind: str, told: Stated, name: str, asked: Sequence[str]) -> Table:
    lacking = [column.header for column in table_schema(kind).columns if column.required and column.name not in told]
    if lacking:
        also = f" (open: {', '.join(asked)})" if asked else ""
        remedy = f"add --set '{lacking[0]}=...', or a line {MARK} {lacking[0]} = ..."
        raise InputError(Fault(name, f"does not say {', '.join(lacking)}{also}: {remedy}"))
    known = table_schema(kind).by_name
    cells = [_cell(value, column in known and not known[column].is_text) for column, value in told.items()]
    table = table_from_rows(kind, list(told), [cells], lambda _, column: f"{name} [{column}]")
    if table.own:
        column = next(iter(table.own))
        hint = partial(nearest, column, [one.replace("_", " ") for one in known])
        raise InputError(Fault(f"{name} [{column}]", f"unknown column {shown(column)}", hint))
    return table


def _cell(text: str, number: bool) -> str | float:
    """An argument as a cell has it."""
    if number:
        with suppress(ValueError):
            return float(text)
    return text


def _fit(groups: Sequence[Sequence[Sequence[Setting]]], stack: str) -> float:
    """Score of how well flags match a stack: known columns count most, unknown flags against it."""
    known = _by_name(stack)
    found = 0.0
    for setting in (one for text in groups for group in text for one in group):
        own = _candidates(known, setting.name)
        found += (1.0 + any(flag.column for flag in own)) if own else -0.1
    return found


def _told(groups: Sequence[Sequence[Sequence[Setting]]], stack: str) -> tuple[Stated, list[str], list[str]]:
    """Values that flags set, later ones replacing earlier ones; unknown flags; flags whose variables are unknown.

    Commands without a flag of the stack say nothing.
    """
    known = _by_name(stack)
    told: Stated = {}
    unknown: list[str] = []
    open_: list[str] = []
    for group in (group for text in groups for group in text):
        found = [(setting, _candidates(known, setting.name)) for setting in group]
        if not any(own for _, own in found):
            continue
        for setting, own in found:
            if not own:
                unknown += [] if _SHORT.fullmatch(setting.name) else [setting.words]
                continue
            if "$" in setting.argument:
                open_ += [setting.words] if any(flag.column for flag in own) else []
                continue
            value = _value(own, setting)
            if value is None:
                unknown.append(setting.words)
            else:
                told |= value
    return told, unknown, open_


def _candidates(known: Mapping[str, tuple[Flag, ...]], name: str) -> tuple[Flag, ...]:
    """Flags of a name: as it is, or, for keys of nested mappings, by the end of its path or by its beginning."""
    plain = _plain(name)
    found = known.get(plain)
    if found is not None:
        return found
    parts = plain.split(".")
    for start in range(1, len(parts)):
        end = ".".join(parts[start:])
        found = known.get(end.lstrip("-")) if "-" in end or start < len(parts) - 1 else None
        if found is not None:
            return found
    for end_ in range(len(parts) - 1, 0, -1):
        found = known.get(".".join([*parts[:end_], "*"]))
        if found is not None:
            return found
    return ()


def _value(candidates: Sequence[Flag], setting: Setting) -> Stated | None:
    argument = setting.argument.casefold()
    if argument in ("null", "none", "???") and not any(flag.argument.casefold() == argument for flag in candidates):
        return {}
    for flag in candidates:
        if not flag.column:
            return {}
        if flag.argument == "*":
            return {flag.column: flag.value or " ".join(setting.arguments)}
        if not flag.value and not flag.argument:
            return {flag.column: setting.argument}
        if not flag.argument:  # a switch
            return {} if argument in _OFF else {flag.column: flag.value}
        if flag.argument.casefold() == argument:
            return {flag.column: flag.value or argument}
    numbers = {"true": _ON, "false": _OFF}
    known = [flag for flag in candidates if flag.argument.casefold() in numbers]
    if known and argument in _ON + _OFF:
        alike = [flag for flag in known if argument in numbers[flag.argument.casefold()]]
        return {alike[0].column: alike[0].value} if alike else {}
    return None


def _plain(flag: str) -> str:
    return flag.strip().removesuffix("=").removesuffix(":").lstrip("-").replace("_", "-").casefold()
