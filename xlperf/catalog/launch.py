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
from fnmatch import fnmatchcase
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from xlperf.base.errors import Fault, InputError
from xlperf.base.resources import rows
from xlperf.catalog.launch_rules import LACKS, Stated, plan_of, settled, stack_of
from xlperf.catalog.launch_shell import Endless
from xlperf.catalog.launch_text import COMMAND, DEEPEST, Setting, handed_to, logged_settings, moves, settings_of
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import split_header, table_schema, unit_of
from xlperf.catalog.table import Table

MARK = "# xlperf:"
MOST_TEXT = 1_000_000
"""Characters of a launch file at the most. [-]"""
MOST_SHOWN = 120
"""Settings of a message, and characters of each, at the most. [-]"""
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)")
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
def _variables(kind: str) -> Mapping[str, tuple[Flag, ...]]:
    """Variables of the environment that mean a column whatever script reads them."""
    found: dict[str, list[Flag]] = {}
    for row in rows("catalog/launch_variables.csv"):
        for name in row["variable"].split() if row["kind"] == kind else ():
            flag = Flag("", "environment", kind, name, row["column"], row["value"], row["argument"])
            found.setdefault(name, []).append(flag)
    return {name: tuple(own) for name, own in found.items()}


@cache
def _still_variables() -> tuple[str, ...]:
    """Patterns of variables that alter neither time nor memory: paths, addresses, settings of libraries."""
    found = rows("catalog/launch_variables.csv")
    return tuple(name for row in found if not row["column"] for name in row["variable"].split())


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
    told = plan_of(stack, _told([settings_of(line, commands=_commands()) for line in lines], stack).values)
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
    """The plan of a launch file, and its remarks.

    ``unknown``: settings that are not in the table. ``open``: settings whose variables have to be given. ``unread``:
    settings that move a result and have no column; none unless the text is read in part. ``notes``: assumptions.
    """

    plan: Table
    unknown: list[str]
    open: list[str]
    unread: list[str]
    notes: list[str]


def read_launch(
    text: str,
    name: str,
    stack: str = "",
    given: Mapping[str, str] | None = None,
    models: Table | None = None,
    partial: bool = False,
) -> Launch:
    """The plan of a launch line, script, YAML or TOML file, or of a log or result that lists its arguments.

    ``text``: arguments, with or without what :func:`launch_lines` adds in comments. ``name``: what the text is called,
    for messages. ``stack``: one of :func:`stacks`; "": the one that the text names, or that most of its flags are of.
    ``given``: columns of the plan, and variables of the environment, that the text does not say. ``models``: among
    these a model is found by its name or its dimensions. ``partial``: settings that move a result and are not read
    become remarks. Raises InputError if there is no flag of a stack, values are wrong, the text does not say what a
    plan must, or it has settings that move a result and are not read.
    """
    logged = logged_settings(text[:MOST_TEXT])
    if len(text) > MOST_TEXT and not logged:
        raise InputError(Fault(name, f"has more than {MOST_TEXT:,} characters: it is no launch line"))
    said = [line[len(MARK) :].strip() for line in text.splitlines() if line.startswith(MARK)]
    named = next((line.split()[0] for line in said if line and "=" not in line and line.split()[0] in stacks()), "")
    try:
        groups = [[logged] if logged else settings_of(text, given, _commands())]
    except Endless as error:
        raise InputError(Fault(name, f"{error}: it is no launch script")) from None
    if named:  # an argument per line, as launch_lines writes them
        groups = [[[one for group in groups[0] for one in group]]]
    stack = stack or named or max(stacks(), key=lambda own: _fit(groups, own))
    told = _told(groups, stack)
    kind = flags(stack)[0].kind
    columns = {split_header(key)[0]: value for key, value in (given or {}).items()}
    columns = {key: value for key, value in columns.items() if key in table_schema(kind).by_name}
    notes: list[str] = []
    plan = plan_of(stack, {**told.values, **columns}, models, notes) | columns
    marked = {split_header(key)[0]: value.strip() for key, equals, value in map(_parted, said) if equals}
    plan |= marked
    lacks = plan.pop(LACKS, "")
    if not told.values and not marked:
        problem = f"has no flag of {', '.join(stacks())}"
        if told.scripts or told.started:
            problem += f"; it starts {listed([*told.scripts, *told.started])}: read that file, or give what it gets"
        raise InputError(Fault(name, problem))
    plan = {column: value for column, value in plan.items() if value != ""}
    given_columns = columns.keys() | marked.keys()
    open_ = [words for words, column in told.open if not settled(column, given_columns, plan, told.scripts)]
    unknown = [] if logged else list(dict.fromkeys(told.unknown))
    unread = [words for words in unknown if moves(words) or words in told.handed]
    if not partial:
        _refuse(name, unread, open_)
    notes += [f"what {_last(script)} sets itself is not read" for script in dict.fromkeys(told.scripts)]
    return Launch(
        _plan_table(kind, plan, name, open_, lacks), [one for one in unknown if one not in unread], open_, unread, notes
    )


def _parted(line: str) -> tuple[str, str, str]:
    return line.partition("=")


def _refuse(name: str, unread: Sequence[str], asked: Sequence[str]) -> None:
    """Raise InputError if settings that move a result are not read, or their variables are not known."""
    remedy = "or --partial to read the rest"
    faults = []
    if unread:
        problem = f"has settings that move a result and are not read: {listed(unread)}"
        faults.append(Fault(name, f"{problem}: give what they mean with --set, {remedy}"))
    if asked:
        variable = _VARIABLE.search(" ".join(asked))
        shown = f"--set {variable.group(1)}=..." if variable else "--set"
        faults.append(Fault(name, f"has variables without a value: {listed(asked)}: give them with {shown}, {remedy}"))
    if faults:
        raise InputError(faults)


def listed(words: Sequence[str]) -> str:
    """Settings in a message: the first ones, cut.

    ``words``: settings as they are written.

    >>> listed(["--a 1", "--b 2"])
    '--a 1; --b 2'
    """
    shown = [one if len(one) <= MOST_SHOWN else f"{one[:MOST_SHOWN]}..." for one in words[:MOST_SHOWN]]
    rest = len(words) - len(shown)
    return "; ".join([*shown, *([f"and {rest:,} more"] if rest else [])])


def _plan_table(kind: str, told: Stated, name: str, asked: Sequence[str], lacks: str) -> Table:
    lacking = [column.header for column in table_schema(kind).columns if column.required and column.name not in told]
    if lacking:
        also = f" (open: {listed(asked)})" if asked else ""
        remedy = f"add --set '{lacking[0]}=...', or a line {MARK} {lacking[0]} = ..."
        if lacks and "model" in lacking:
            raise InputError(Fault(name, lacks))
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


def _fit(groups: Sequence[Sequence[Sequence[Setting]]], stack: str) -> float:
    """Score of how well flags match a stack: known columns count most, unknown flags against it."""
    known = _by_name(stack)
    variables = _variables(flags(stack)[0].kind)
    found = 0.0
    for setting in (one for text in groups for group in text for one in group):
        if setting.name[0] == "$":
            found += 0.5 * (setting.name[1:].upper() in variables)
            continue
        own = _candidates(known, setting.name)
        found += (1.0 + any(flag.column for flag in own)) if own else -0.1
    return found


class _Told(NamedTuple):
    """What commands of a stack say.

    ``values``: by column; ``unknown``: settings that are not in the table; ``open``: settings without a value, and
    their columns; ``handed``: unknown values that another script gets; ``scripts``: scripts that get values or give
    them; ``started``: others.
    """

    values: Stated
    unknown: list[str]
    open: list[tuple[str, str]]
    handed: list[str]
    scripts: list[str]
    started: list[str]


def _told(groups: Sequence[Sequence[Sequence[Setting]]], stack: str) -> _Told:
    """Values that flags set, later ones replacing earlier ones, and variables that a script is started with.

    Commands without a flag of the stack say nothing.
    """
    known = _by_name(stack)
    variables = _variables(flags(stack)[0].kind)
    told = _Told({}, [], [], [], [], [])
    around: Stated = {}
    for group in (group for text in groups for group in text):
        starts = [one.arguments for one in group if one.name == COMMAND]
        script = next(filter(None, map(handed_to, starts)), "")
        found = [(one, _candidates(known, one.name)) for one in group if one.name[0] != "$"]
        handed = [(one, variables.get(one.name[1:].upper(), ())) for one in group if one.name[0] == "$"]
        handed = [(one, own) for one, own in handed if one.name != COMMAND]
        degrees = sum(flag.column[:1] not in ("", "@") for _, own in handed for flag in own[:1])
        if not any(own for _, own in found) and not (script and degrees):
            sourced = script and starts[0][0] in ("source", ".")
            (told.scripts if sourced else told.started).extend([script] if script else [])
            continue
        if script:
            told.scripts.append(script)
            told.values["@handed"] = script
        told.values.update({f"@sign {sign}": "yes" for sign in _signs(group)})
        for one, own in handed:
            _take(told, around, one, own, script if one.argument and _counts(one) else "")
        for setting, own in found:
            if own or not _SHORT.fullmatch(setting.name):
                _take(told, told.values, setting, own, "")
    return told._replace(values={**around, **told.values})


def _signs(group: Sequence[Setting]) -> Iterator[str]:
    """Words by which a wrapper is known: of its command, and values of its configuration."""
    for one in group:
        if one.name == COMMAND:
            plain = [word.rpartition("/")[2] for word in one.arguments]
            yield from (*plain, *(f"{first} {second}" for first, second in pairwise(plain)))
        elif one.name.endswith("config:"):
            yield one.argument


def _counts(variable: Setting) -> bool:
    """Whether a variable may move a result: not a path, an address, or a setting of a library."""
    name = variable.name[1:].upper()
    return moves(variable.words) or not any(fnmatchcase(name, pattern) for pattern in _still_variables())


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _take(told: _Told, values: Stated, setting: Setting, own: Sequence[Flag], script: str) -> None:
    """Add a setting to what is known; ``script``: the other script that gets it, if it may move a result there."""
    if not own:
        if setting.name[0] != "$":
            told.unknown.append(setting.words)
        elif setting.name[1:2] == "{":
            told.open.append((setting.words, f"@array {setting.name}"))
        elif script:
            told.unknown.append(setting.words)
            told.handed.append(setting.words)
        return
    if "$" in setting.argument and not (own[0].column == "@config" and "$" not in _last(setting.argument)):
        column = next((flag.column for flag in own if flag.column), "")
        told.open.extend([(setting.words, column)] if column else [])
        return
    value = _value(own, setting)
    if value is None:
        told.unknown.append(setting.words)
        told.handed.extend([setting.words] if script else [])
    else:
        values |= value


def _candidates(known: Mapping[str, tuple[Flag, ...]], name: str) -> tuple[Flag, ...]:
    """Flags of a name: as it is, or, for keys of nested mappings, by the end of its path or by its beginning."""
    plain = _plain(name)
    found = known.get(plain)
    if found is not None:
        return found
    parts = plain.split(".", DEEPEST)
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
