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
from functools import cache
from pathlib import Path
from typing import NamedTuple

from xlperf.base.errors import Fault, InputError
from xlperf.base.resources import rows
from xlperf.catalog.config_rules import UNREAD
from xlperf.catalog.config_text import Config, config_of
from xlperf.catalog.launch_rules import Stated, plan_of, stack_of
from xlperf.catalog.launch_stacks import (
    claimed,
    own_model,
    plain,
    readable,
    software_of,
    switched_off,
    unread_fault,
    verdict,
)
from xlperf.catalog.launch_text import Setting, logged_settings, settings_of
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import split_header, table_schema, unit_of
from xlperf.catalog.table import Table

MARK = "# xlperf:"
MOST_TEXT = 1_000_000
"""Characters of a launch file at the most. [-]"""
_SHORT = re.compile(r"-[A-Za-z]|[A-Z_][A-Z0-9_]*=")
"""Options of other commands on the same line, and variables: not listed where they are not known."""
_LAUNCHERS = frozenset({"@nodes", "@accelerators_per_node"})
"""Quantities that torchrun states by itself."""
_ZERO = frozenset({"zero_stage", "zero_group_size", "offload_activations", "tensor_parallel"})
"""Columns that a DeepSpeed configuration decides where another stack refers to it."""
Groups = Sequence[Sequence[Sequence[Setting]]]
"""Settings of texts, command by command."""
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
    own = [row for row in rows("catalog/config_flags.csv") if row["stack"] == stack]
    base = "nemo" if stack == "bridge" else stack
    own += [row for row in rows("catalog/launch_flags.csv") if row["stack"] == base]
    return tuple(Flag(**row) for row in own)


@cache
def stacks() -> tuple[str, ...]:
    """Stacks that plans are written for."""
    return tuple(dict.fromkeys(row["stack"] for row in rows("catalog/launch_flags.csv")))


@cache
def read_stacks() -> tuple[str, ...]:
    """Stacks whose files are read: those that plans are written for, and those of configuration files."""
    return (*stacks(), *dict.fromkeys(row["stack"] for row in rows("catalog/config_flags.csv")))


@cache
def _by_name(stack: str) -> Mapping[str, tuple[Flag, ...]]:
    found: dict[str, list[Flag]] = {}
    for flag in flags(stack):
        found.setdefault(plain(flag.flag), []).append(flag)
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
    """The plan of a launch file, flags that are not in the table, those whose variables have to be given, and notes."""

    plan: Table
    unknown: list[str]
    open: list[str]
    notes: list[str]


def read_launch(
    text: str,
    name: str,
    stack: str = "",
    given: Mapping[str, str] | None = None,
    models: Table | None = None,
    partial: bool = False,
    beside: Path | None = None,
) -> Launch:
    """The plan of a launch line, script or configuration file, or of a log or result that lists its arguments.

    ``text``: arguments, with or without what :func:`launch_lines` adds in comments. ``name``: what the text is called,
    for messages. ``stack``: one of :func:`read_stacks`; "": the one that recognises the text, or that most of its flags
    are of. ``given``: columns of the plan, and variables of the environment, that the text does not say. ``models``:
    among these a model is found by its name or its dimensions. ``partial``: leave settings out that move a result and
    are not read. ``beside``: folder of the file, in which files that it refers to are looked up. Raises InputError
    where no stack recognises the text, or values are wrong, or the text does not say what a plan must.
    """
    logged = logged_settings(text[:MOST_TEXT])
    if len(text) > MOST_TEXT and not logged:
        raise InputError(Fault(name, f"has more than {MOST_TEXT:,} characters: it is no launch line"))
    given = given or {}
    said = [line[len(MARK) :].strip() for line in text.splitlines() if line.startswith(MARK)]
    named = next((line.split()[0] for line in said if line and "=" not in line and line.split()[0] in stacks()), "")
    groups = [[logged] if logged else settings_of(text, given, _commands())]
    if named:  # an argument per line, as launch_lines writes them
        groups = [[[one for group in groups[0] for one in group]]]
    elif not logged or text.lstrip().startswith("{"):
        stack, groups = _recognised(text, groups, stack, given, name)
    stack = stack or named or max(stacks(), key=lambda own: _fit(groups, own))
    columns = {split_header(key)[0]: value for key, value in given.items()}
    quantities, unknown, open_ = _told(groups, stack)
    if not quantities.keys() - _LAUNCHERS and not any("=" in line for line in said):
        raise InputError(Fault(name, f"has no flag of {', '.join(read_stacks())}"))
    notes: list[str] = []
    faults: list[Fault] = []
    if "@deepspeed" in quantities and beside is not None:
        faults += _referenced(quantities, beside)
    if not logged or stack not in stacks():
        off = switched_off(one for texts in groups for group in texts for one in group)
        faults += [unread_fault(one, text, name, stack) for one in unknown if verdict(one, off) == "moves"]
        unknown = [one for one in unknown if verdict(one, off) == ""]
    else:
        unknown = []
    if stack not in stacks():
        deciding = {one.name for one in open_ if _columns(stack, one) - _LAUNCHERS}
        faults += [unread_fault(one, text, name, stack) for one in open_ if one.name in deciding]
    known = table_schema(flags(stack)[0].kind).by_name
    own = {key: value for key, value in columns.items() if key in known}
    if "model" not in own:
        model = own_model(stack, quantities, models, name)
        own |= {"model": model} if model else {}
    told = plan_of(stack, {**quantities, **own}, models)
    faults += [unread_fault(Setting(key[len(UNREAD) :], (told.pop(key),)), text, name, stack)
               for key in list(told) if key.startswith(UNREAD)]  # fmt: skip
    if stack not in stacks():
        notes = _notes(stack, told, quantities, columns)
        told.setdefault("software", software_of(stack)[0])
    told |= {key: value for key, value in columns.items() if key in known}
    for key, equals, value in (line.partition("=") for line in said):
        told |= {split_header(key)[0]: value.strip()} if equals else {}
    if faults and not partial:
        raise InputError(faults)
    notes += [fault.brief for fault in dict.fromkeys(faults)]
    told = {column: value for column, value in told.items() if value != ""}
    if "model" not in told and "@num_layers" in quantities:
        size = f"{quantities['@num_layers']} layers of hidden size {quantities.get('@hidden_size', '?')}"
        problem = f"its model ({size}) is none of the catalog: give --set model=..., or a row of models"
        raise InputError(Fault(name, problem))
    asked = [one.words for one in open_]
    plan = _plan_table(flags(stack)[0].kind, told, name, asked)
    return Launch(plan, [one.words for one in unknown], asked, notes)


def _recognised(
    text: str, groups: Groups, stack: str, given: Mapping[str, str], name: str
) -> tuple[str, Groups]:
    """The stack that recognises a file, "" where flags have to decide, and the settings that it is read by."""
    config = config_of(text, given)
    if any(one.name.startswith("-") or ".-" in one.name for group in groups[0] for one in group):
        config = Config("", [])  # commands inside YAML are read as commands
    found = stack or claimed(text, config, groups[0], name)
    if not found and config.kind:
        remedy = f"--for names one; read are {readable()}"
        raise InputError(Fault(name, f"is a configuration ({config.kind}) that no stack recognises; {remedy}"))
    if found == "serving":
        serving = [own for own in stacks() if flags(own)[0].kind == "inference"]
        return max(serving, key=lambda own: _fit(groups, own)), groups
    if config.kind and (found not in stacks() or config.kind == "python"):
        groups = [[config.settings]]
    return found, groups


def _referenced(quantities: Stated, beside: Path) -> list[Fault]:
    """Replace the reference to a DeepSpeed configuration by its settings, if it lies in the folder of the file."""
    reference = Path(quantities["@deepspeed"])
    inside = [path for path in (beside / reference.name, beside / reference) if path.is_file()]
    if ".." in reference.parts or reference.is_absolute() or not inside or inside[0].stat().st_size > MOST_TEXT:
        return []
    try:
        text = inside[0].read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return []
    config = config_of(text)
    if config.kind != "json":
        return []
    found, unknown, _ = _told([[config.settings]], "deepspeed")
    quantities.pop("@deepspeed")
    quantities |= {key: value for key, value in found.items() if key in _ZERO and value != "auto"}
    if found.get("@offload", "none") != "none":
        quantities["offload_optimizer"] = found.get("@ratio", "1")
    return [unread_fault(one, text, inside[0].name, "deepspeed") for one in unknown if verdict(one) == "moves"]


def _notes(stack: str, told: Stated, quantities: Stated, columns: Mapping[str, str]) -> list[str]:
    """What a user has to know of a plan that was read from a configuration file."""
    software, remark = software_of(stack)
    notes = [f"software {software}: {remark}"] if remark else []
    stated = plan_of(stack, quantities).get("num_accelerators", "")
    wanted = columns.get("num_accelerators", "")
    if stated and wanted and float(stated) != float(wanted):
        notes.append(f"the file states {stated} accelerators, --set {wanted}: replicas and batch follow --set")
    absent = [name.replace("_", " ") for name in ("global_batch_size", "sequence_length")
              if name not in told and name not in columns]  # fmt: skip
    if stack == "bridge":
        absent += [name.replace("_", " ") for name in ("tensor_parallel", "recompute") if name not in told]
    if absent:
        by = "the recipe decides" if stack == "bridge" else "not stated"
        notes.append(f"{by}, here xlperf's defaults: {', '.join(absent)}")
    return notes


def _plan_table(kind: str, told: Stated, name: str, asked: Sequence[str]) -> Table:
    lacking = [column.header for column in table_schema(kind).columns if column.required and column.name not in told]
    if lacking:
        also = f" (open: {', '.join(asked)})" if asked else ""
        remedy = f"add --set '{lacking[0]}=...', or a line {MARK} {lacking[0]} = ..."
        raise InputError(Fault(name, f"does not say {', '.join(lacking)}{also}: {remedy}"))
    known = table_schema(kind).by_name
    cells = [_cell(value, column in known and not known[column].is_text) for column, value in told.items()]
    return table_from_rows(kind, list(told), [cells], lambda _, column: f"{name} [{column}]")


def _cell(text: str, number: bool) -> str | float:
    """An argument as a cell has it."""
    if number:
        with suppress(ValueError):
            return float(text)
    return text


def _fit(groups: Groups, stack: str) -> float:
    """Score of how well flags match a stack: known columns count most, unknown flags against it."""
    known = _by_name(stack)
    found = 0.0
    for setting in (one for text in groups for group in text for one in group):
        own = _candidates(known, setting.name)
        found += (1.0 + any(flag.column for flag in own)) if own else -0.1
    return found


def _told(groups: Groups, stack: str) -> tuple[Stated, list[Setting], list[Setting]]:
    """Values that flags set, later ones replacing earlier ones; unknown flags; flags whose variables are unknown.

    Commands without a flag of the stack say nothing.
    """
    known, exact = _by_name(stack), stack not in stacks() and stack != "bridge"
    told: Stated = {}
    unknown: list[Setting] = []
    open_: list[Setting] = []
    for group in (group for text in groups for group in text):
        found = [(setting, _candidates(known, setting.name, exact)) for setting in group]
        if not any(own for _, own in found):
            continue
        for setting, own in found:
            if not own:
                unknown += [] if _SHORT.fullmatch(setting.name) else [setting]
                continue
            if "$" in setting.argument:
                open_ += [setting] if any(flag.column for flag in own) else []
                continue
            value = _value(own, setting)
            if value is None:
                unknown.append(setting)
            else:
                told |= value
    return told, unknown, open_


def _columns(stack: str, setting: Setting) -> set[str]:
    """Columns and quantities that a setting decides."""
    return {flag.column for flag in _candidates(_by_name(stack), setting.name)}


def _candidates(known: Mapping[str, tuple[Flag, ...]], name: str, exact: bool = False) -> tuple[Flag, ...]:
    """Flags of a name: as it is, or, for keys of nested mappings, by the end of its path or by its beginning.

    ``exact``: not by the end of its path.
    """
    own = plain(name)
    found = known.get(own)
    if found is not None:
        return found
    parts = own.split(".")
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


def _value(candidates: Sequence[Flag], setting: Setting) -> Stated | None:
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
