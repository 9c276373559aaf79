"""Flags of the stacks: which setting of which version is which column of a plan, and what its argument means.

``launch_flags.csv`` has those of stacks that plans are written for as well, ``config_flags.csv`` those of stacks that
are read only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from xlperf.base.resources import rows
from xlperf.interop.launch_rules import Stated
from xlperf.interop.launch_stacks import plain
from xlperf.interop.launch_text import DEEPEST, Setting

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
    own = [row for row in rows("interop/config_flags.csv") if row["stack"] == stack]
    base = "nemo" if stack == "bridge" else stack
    own += [row for row in rows("interop/launch_flags.csv") if row["stack"] == base]
    return tuple(Flag(**row) for row in own)


@cache
def stacks() -> tuple[str, ...]:
    """Stacks that plans are written for."""
    return tuple(dict.fromkeys(row["stack"] for row in rows("interop/launch_flags.csv")))


@cache
def read_stacks() -> tuple[str, ...]:
    """Stacks whose files are read: those that plans are written for, and those of configuration files."""
    return (*stacks(), *dict.fromkeys(row["stack"] for row in rows("interop/config_flags.csv")))


@cache
def by_name(stack: str) -> Mapping[str, tuple[Flag, ...]]:
    """Flags of a stack by their names, without regard to case and dashes."""
    found: dict[str, list[Flag]] = {}
    for flag in flags(stack):
        found.setdefault(plain(flag.flag), []).append(flag)
    return {name: tuple(own) for name, own in found.items()}


def candidates_of(known: Mapping[str, tuple[Flag, ...]], name: str, exact: bool = False) -> tuple[Flag, ...]:
    """Flags of a name: as it is, or, for keys of nested mappings, by the end of its path or by its beginning.

    ``known``: flags by name. ``name``: as it is written. ``exact``: not by the end of its path.
    """
    whole = plain(name)
    found = known.get(whole)
    if found is not None:
        return found
    parts = whole.split(".", DEEPEST)
    for start in range(1, 1 if exact else len(parts)):
        end = ".".join(parts[start:])
        found = known.get(end.lstrip("-")) if "-" in end or start < len(parts) - 1 else None
        if found is not None:
            return found
    for end_ in range(len(parts) - 1, 0, -1):
        found = known.get(".".join([*parts[:end_], "*"]))
        if found is not None:
            return found
    return ()


def value_of(candidates: Sequence[Flag], setting: Setting) -> Stated | None:
    """Columns and quantities that a setting states, none where it alters nothing, None where its value is not known.

    ``candidates``: flags of its name. ``setting``: as it is written.
    """
    argument = setting.argument.casefold()
    if not setting.arguments and any(flag.argument.casefold() == "true" for flag in candidates):
        argument = "true"  # a switch
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
