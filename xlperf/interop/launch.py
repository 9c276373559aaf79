"""Launch lines of training and serving stacks: the arguments of a plan, and the plan of arguments.

``flags.csv`` maps the flags of each version to columns; flags without a column alter neither time nor memory.
Comment lines that start with ``# xlperf:`` hold columns without a flag (accelerator, network, lengths of a benchmark).
Columns that several arguments decide together follow from quantities of the stack (``@data``, ``@tensor``) by
:mod:`xlperf.interop.launch_rules`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from xlperf.base.errors import Fault, InputError, nearest
from xlperf.base.resources import stack_rows
from xlperf.catalog.cells import shown
from xlperf.catalog.parse import table_from_columns
from xlperf.catalog.schema import canonical, split_header, table_schema, unit_of
from xlperf.catalog.table import Table
from xlperf.interop.checkpoints import mentioned_models
from xlperf.interop.config_rules import UNREAD, Stated
from xlperf.interop.launch_containers import containers_of, engine_of_image, parts_of, uneven_stages, with_pools
from xlperf.interop.launch_python import RECIPE, recipes_of
from xlperf.interop.launch_rules import CONFIG, LACKS, OF_MODEL, plan_of, settled, stack_of
from xlperf.interop.launch_shell import Endless
from xlperf.interop.launch_stacks import (
    MOST_SHOWN,
    MOST_TEXT,
    Config,
    Flag,
    claimed,
    config_in,
    config_of,
    file_beside,
    flags,
    given_instead,
    kind_of,
    last,
    listed,
    mounted,
    moves,
    own_model,
    placed,
    read_stacks,
    readable,
    software_of,
    stacks,
    started_server,
    switched_off,
    writes,
)
from xlperf.interop.launch_start import Shape, filled, script, start_flags, started_values
from xlperf.interop.launch_text import (
    REPORT,
    LogLines,
    Setting,
    lined_settings,
    log_lines,
    logged_settings,
    settings_of,
)
from xlperf.interop.launch_told import Told, defaults_of_others, fit, models_started, told_by
from xlperf.interop.software import STACKS, broken_line, stack_named

MARK = "# xlperf:"
_VARIABLE = re.compile(r"\$[{(]{0,2}([A-Za-z_]\w*|\d+)")
_FILE = re.compile(r"(?<![\w/.~}-])[\w./~-]{1,200}\.(?:sh|ya?ml|toml|json)\b")
_CLIENT = re.compile(r"--backend[= ]{1,9}[\"']?(vllm|sglang)\b")
_OF_RECIPE = ("micro_batch_size", "tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel",
              "recompute")  # fmt: skip
MOST_OTHERS = 3  # files of a message that a script names
_ZERO = frozenset({"zero_stage", "zero_group_size", "offload_activations", "tensor_parallel"})
"""Columns that a DeepSpeed configuration decides if another stack refers to it."""
_LAUNCHERS = frozenset({"@nodes", "@accelerators_per_node"})  # quantities that torchrun states by itself
_NAMES = {*OF_MODEL, "@checkpoint", "@beside", "num_accelerators", "accelerator"} - {"@config"}
"""What a file of training may name without a setting of it: a model, its dimensions, machines, other programs."""
FEWEST_GUESSED = 2  # fewest settings by which flags alone decide the stack of a training
Groups = Sequence[Sequence[Sequence[Setting]]]  # settings of texts, command by command


_COMMANDS = tuple(stack.command for stack in STACKS.values() if stack.command)
"""Commands whose first argument is the model."""


LOG = "(log)"  # suffixes of version names that occur in logs and results alone


def launch_lines(plan: Table, stack: str, shape: Shape | None = None) -> list[str]:
    """Arguments of a plan, one per line; with the shape of its model, the commands that start it."""
    known = flags(stack)
    if known[0].kind != plan.kind:
        fitting = [name for name in stacks() if flags(name)[0].kind == plan.kind]
        problem = f"{stack} runs {known[0].kind} plans; for {plan.kind} plans: {', '.join(fitting)}"
        raise InputError(Fault("--for", problem))
    stated = _stated(plan)
    versions = tuple(filter(None, STACKS[stack].versions.split("|")))
    if shape is None:
        lines = [line for _, line in _arguments(known, stack_of(stack, stated), versions)]
        texts = [settings_of(line, commands=_COMMANDS) for line in lines]
    else:
        asked = filled(stated, shape, plan.kind)
        values = started_values(stack, asked, stack_of(stack, asked), shape)
        written = [("", line) for line in start_flags(stack, asked, shape)]
        written += _arguments(known, values, versions)
        broken = broken_line(stack, [line for _, line in written])
        if broken:
            raise InputError(Fault(plan.place(0, "model"), f"{STACKS[stack].title} would not start: {broken}"))
        lines = script(stack, written, asked, shape)
        texts = [_as_one(settings_of("\n".join(lines), commands=_COMMANDS))]
    told = plan_of(stack, told_by(texts, stack).values)
    rest = {name: value for name, value in stated.items() if told.get(name) != value}
    rest |= {name: "" for name in told if name not in stated}
    marked = [f"{MARK} {name} = {value}".rstrip() for name, value in rest.items()]
    return [f"{MARK} {stack} {_version(known)}", *marked, *lines]


def _version(known: Sequence[Flag]) -> str:
    """The newest version of the stack that a flag of a column is of."""
    own = [flag.version for flag in known if flag.column and flag.version[-1].isdigit()]
    own = [version for version in own if version.split()[0] == own[0].split()[0]]
    return max(own, key=lambda version: [int(part) for part in version.rpartition(" ")[2].split(".")])


def _arguments(known: Sequence[Flag], stated: Mapping[str, str], written: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """A line for each column with the first flag that sets it, and the version of the flag."""
    done = set()
    for flag in known:
        value = stated.get(flag.column)
        if (
            flag.version.endswith(LOG)
            or not flag.column
            or flag.column in done
            or value is None
            or (flag.value and flag.value != value)
            or (written and not flag.version.startswith(written))
        ):
            continue
        listed = flag.argument == "*" and not flag.value
        if "auto" in (value, flag.argument) or (listed and flag.column not in ("@captured", "@converters")):
            continue
        done.add(flag.column)
        argument = value if listed else "" if flag.argument == "*" else flag.argument if flag.value else value
        if flag.flag.endswith("="):
            line = flag.flag + argument
        elif flag.flag[:1] == "-" or " " in flag.flag or flag.flag in _COMMANDS:
            line = f"{flag.flag} {shlex.quote(argument)}".removesuffix(" ''")
        else:
            line = f"{flag.flag}: {argument}"
        yield flag.version, line


def _stated(plan: Table) -> Stated:
    """Stated columns of a plan as a sheet would show them."""
    result = {}
    for column in plan.schema.by_name.values():
        if column.name not in plan:
            continue
        value = plan[column.name][0]
        if column.name in plan.auto and plan.auto[column.name][0]:
            result[column.name] = "auto"
        elif column.is_text:
            result |= {column.name: str(value)} if value else {}
        elif value == value:
            number = float(value) / unit_of(column).factor
            words = {1.0: "yes", 0.0: "no"} if column.kind == "flag" else {}
            result[column.name] = words.get(float(value), f"{number:.15g}")
    return result


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


class Commands(NamedTuple):
    """Settings of a launch file or a log, command by command, and the stack that reads them.

    ``text`` and ``given``: with the command of a container in place of its manifest, and its variables. ``logged``:
    settings that a log states. ``own_lines``: lines that xlperf itself wrote. ``release``: of the engine's image.
    ``guessed``: whether nothing but its flags speaks for the stack.
    """

    text: str
    given: Mapping[str, str] | None
    stack: str
    groups: Groups
    logged: list[Setting]
    lines: LogLines
    own_lines: list[str]
    release: str
    guessed: bool


def commands_of(text: str, name: str, stack: str = "", given: Mapping[str, str] | None = None) -> Commands:
    """Settings of a launch file or a log by a stack, "" for the one that recognises it; InputError if none does."""
    logged, lines = logged_settings(text[:MOST_TEXT]), log_lines(text[:MOST_TEXT])
    if len(text) > MOST_TEXT and not logged:
        raise InputError(Fault(name, f"has more than {MOST_TEXT:,} characters: it is no launch line"))
    engine, release = ("", "") if logged else engine_of_image(text)
    containers = None if logged else containers_of(text)
    if containers is not None:
        text, given = containers[0], {**containers[1], **(given or {})}
        engine, release = engine_of_image(text) if not release else (engine, release)
    own_lines = [line[len(MARK) :].strip() for line in text.splitlines() if line.startswith(MARK)]
    named = next(
        (line.split()[0] for line in own_lines if line and "=" not in line and line.split()[0] in stacks()), ""
    )
    try:
        groups: Groups = [[logged] if logged else [*settings_of(text, given, _COMMANDS), lined_settings(lines)]]
    except Endless as error:
        raise InputError(Fault(name, f"{error}: it is no launch script")) from None
    if named:  # an argument per line, as launch_lines writes them
        groups = [_as_one(groups[0])]
    elif not logged or text.lstrip().startswith("{"):
        stack = stack or (stack_named(engine) if engine else "")
        stack, groups = _recognised(text, groups, stack, given or {}, name)
    known = stack or named or lines.stack
    client = "" if known else _CLIENT.search(text)
    stack = known or (client and client[1]) or max(stacks(), key=lambda own: fit(groups, own))
    own = release if stack == stack_named(engine) else ""
    return Commands(text, given, stack, groups, logged, lines, own_lines, own, not (known or logged))


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

    ``stack``: "" for the stack that recognises the text, or owns most of its flags. ``given``: columns and variables
    that it lacks. ``beside``: folder for configurations that it refers to. InputError if no stack recognises the text,
    a value is wrong, a column is missing, or a setting that moves a result is not read.
    """
    whole, read = text, commands_of(text, name, stack, given)
    text, given, stack, groups, logged, lines, own_lines = read[:7]
    kind = flags(stack)[0].kind

    # Values that the commands set: of the servers or the run, and of a separate prefill pool.
    parts = parts_of(groups[0])
    told, first = told_by([parts.main, *groups[1:]], stack), told_by([parts.prefill], stack)
    started = models_started([parts.main, *groups[1:]], stack)
    if len(started) > 1 and "model" not in (given or {}):
        raise InputError(Fault(name, f"starts servers of {listed(started)}: keep the lines of one of them"))
    told.unknown.extend(first.unknown)
    told.open.extend(first.open)
    if "@model" in told.values:
        told.values["@model"] = mounted(whole[:MOST_TEXT], told.values["@model"])

    # Values of files that they refer to; the lines of steps of a log do not say which flags were given.
    notes: list[str] = []
    of_reference = _referenced(told.values, beside) if "@deepspeed" in told.values else []
    if lines.stack and logged in ([], lined_settings(lines)):
        told.values.setdefault("@handed", name)
        notes.append(f"is a log without arguments of {stack}: settings that --set does not give have xlperf's defaults")
    of_reference += _options(told.values, text, stack, beside, notes)

    # The plan of the values of both pools; columns that the user gives or that the text marks come last.
    columns = _columns_of(given or {}, kind, text)
    model = "" if "model" in columns else own_model(stack, told.values, models, name)
    own = {"@mentioned": mentioned_models(f"{name}\n{text}"), **({"model": model} if model else {})}
    release = lines.facts.get("software_release", read.release)
    released = {"software_release": release} if release else {}
    plan = plan_of(stack, {**released, **told.values, **own, **columns}, models, notes)
    alike = {"model": plan["model"]} if "model" in plan else {}
    pools = plan_of(stack, {**first.values, **alike}) if parts.prefill else {}
    plan = with_pools(plan, parts.copies, pools, parts.prefill_copies) | columns
    lacks, rules = (
        plan.pop(LACKS, ""),
        [f"{key[len(UNREAD) :]}: {plan.pop(key)}" for key in [*plan] if key[0] == UNREAD],
    )
    if stack not in stacks():
        notes += _remarks(stack, plan, told.values, columns)
        plan.setdefault("software", software_of(stack)[0])
    parted = [line.partition("=") for line in own_lines]
    marked = {canonical(kind, split_header(key)[0]): value.strip() for key, equals, value in parted if equals}
    plan = {column: value for column, value in (plan | marked).items() if value != ""}
    given_columns = columns.keys() | marked.keys()
    if not marked and not lines.stack:
        _check_settings(told, read, whole, name)

    # Values without a meaning here: that the user has to give, that move a result, and the others.
    counted = kind == "training" and len(_LAUNCHERS & told.values.keys()) == 1 and "num_accelerators" not in told.values
    open_ = [words for words, column in told.open if not settled(column, given_columns, plan, told.scripts, counted)]
    off = switched_off(one for texts in groups for group in texts for one in group)
    unknown = [] if logged and stack in (*stacks(), lines.stack) else [*dict.fromkeys(told.unknown)]
    kinds = {words: "moves" if words in told.handed else kind_of(words, off) for words in unknown}
    moving = [words for words, effect in kinds.items() if effect == "moves"]
    uneven = [f"{name}={value}" for name, value in uneven_stages(text)]
    unread = [words for words in (*moving, *rules, *uneven, *of_reference) if not given_instead(words, given_columns)]
    if beside is not None and {"@num_layers", "@hidden_size"} <= told.values.keys() and kind == "training":
        lacks = lacks.replace(f" {CONFIG} ", f" {shlex.quote(str(beside / name))} ")
    faults: list[Fault] = []
    if not partial and not (lacks and not unread and open_ and all("MODEL" in words for words in open_)):
        shown = [placed(words, text) for words in unread[:MOST_SHOWN]]
        faults = _refused(name, "" if read.guessed else stack, [*shown, *unread[MOST_SHOWN:]], open_)
    faults += _lacking(kind, plan, name, open_, lacks)
    if faults:
        raise InputError(faults)

    notes += _assumed(plan, text, whole) if kind == "inference" else ()
    notes += defaults_of_others(told, given_columns, text if MARK not in text else "")
    harmless = [words for words in unknown if not kinds[words]]
    return Launch(_plan_table(kind, plan, name), harmless, open_, unread, notes)


def _check_settings(told: Told, read: Commands, whole: str, name: str) -> None:
    """InputError if a text sets nothing of a run but its launcher and its name, or too little for a guessed stack."""
    training = flags(read.stack)[0].kind == "training"
    named = (*_LAUNCHERS, *(_NAMES if training or read.guessed else ()), "@handed")
    settings = (*told.values, *(column for _, column in told.open))
    own_values = [key for key in settings if key not in named and not key.startswith(("@sign ", "@array "))]
    elsewhere = {"@handed", "@config"} & told.values.keys()  # settings of another file, which a note names
    if len(own_values) >= (FEWEST_GUESSED if read.guessed and training and not elsewhere else 1):
        return
    if "@beside" in told.values and not (told.scripts or told.started):
        problem = f"states no setting of a training run: {last(told.values['@beside'])} does not train"
        raise InputError(Fault(name, problem))
    claimed(whole, Config("", []), [], name)  # raises for one that is not read
    raise _no_flag(name, read.text, [*told.scripts, *told.started], any(key in _NAMES for key in told.values))


def _assumed(plan: Stated, text: str, whole: str) -> Iterator[str]:
    """Notes on a serving plan: one report of several, and a load and a server that nothing states.

    ``whole``: with the image of the engine.
    """
    if text.count(REPORT) > 1:
        yield f"holds {text.count(REPORT)} reports of a benchmark: the last one is read"
    if not {"batch_size", "concurrency", "request_rate"} & plan.keys():
        yield "no load is stated, here xlperf's default: one request at a time (--set concurrency=...)"
    if "tensor_parallel" not in plan and not (started_server(text) or engine_of_image(whole)[0]):
        yield "states no server, here xlperf's default: tensor parallel 1 (--set 'tensor parallel=...')"


def _columns_of(given: Mapping[str, str], kind: str, text: str) -> dict[str, str]:
    """Columns of plans among stated values: TP is a column, unless it is a variable of the script."""
    columns = {}
    for key, value in given.items():
        column = split_header(key)[0]
        is_off = key.isupper() and value.casefold() in ("false", "no", "off")  # a variable of a benchmark
        if (key == column or not re.search(rf"\$\{{?{re.escape(key)}\b", text)) and not is_off:
            columns[canonical(kind, column)] = value
    return {key: value for key, value in columns.items() if key in table_schema(kind).by_name}


def _no_flag(name: str, text: str, started: Sequence[str], named: bool) -> InputError:
    """A text without a flag of a stack; ``started``: scripts that it starts, which may have them. ``named``: whether it
    names a model or accelerators and no more.
    """
    problem = "states no setting of a training run" if named else f"has no flag of {', '.join(read_stacks())}"
    others = started or list(dict.fromkeys(_FILE.findall(text[:MOST_TEXT])))[-MOST_OTHERS:]
    if re.search(r"\$\{?1\b", text[:MOST_TEXT]):
        problem += "; it takes arguments: give them with --set 1=..."
    if others:
        verb = "starts" if started else "names"
        problem += f"; it {verb} {listed(others)}: read that file, or give what it gets"
    return InputError(Fault(name, problem))


def _as_one(groups: Sequence[Sequence[Setting]]) -> list[list[Setting]]:
    """Settings of several commands as one command's."""
    return [[one for group in groups for one in group]]


def _refused(name: str, stack: str, unread: Sequence[str], asked: Sequence[str]) -> list[Fault]:
    """Faults of settings that move a result and are not read, and of unknown variables.

    ``stack``: "" for one that flags alone decide, whose name would mislead.
    """
    remedy = "or --partial to read the rest"
    faults = []
    if unread:
        of = f"of {stack} " if stack else ""
        problem = f"has settings {of}that move a result and are not read: {listed(unread)}"
        faults.append(Fault(name, f"{problem}: give what they mean with --set, {remedy}"))
    if asked:
        variable = _VARIABLE.search(" ".join(asked))
        shown = f"--set {variable.group(1)}=..." if variable else "--set"
        shown += ", arguments of the script with --set 1=..." if re.search(r"\$\{?\d", " ".join(asked)) else ""
        faults.append(Fault(name, f"has variables without a value: {listed(asked)}: give them with {shown}, {remedy}"))
    return faults


def _recognised(text: str, groups: Groups, stack: str, given: Mapping[str, str], name: str) -> tuple[str, Groups]:
    """The stack that recognises a file, "" if flags have to decide, and the settings to read it by."""
    recipes = recipes_of(text)
    if len(recipes) > 1 and given.get(RECIPE) not in recipes:
        shown = f"{listed(recipes[:MOST_OTHERS])}{', ...' if len(recipes) > MOST_OTHERS else ''}"
        problem = f"defines {len(recipes)} recipes ({shown}): give one with --set {RECIPE}={recipes[0]}"
        raise InputError(Fault(name, problem))
    config = config_of(text, given)
    if any(one.name.startswith("-") or ".-" in one.name for group in groups[0] for one in group):
        config = Config("", [])  # commands inside YAML are read as commands
    result = stack or claimed(text, config, groups[0], name)
    if not result and config.kind:
        remedy = f"--for names one; read are {readable()}"
        raise InputError(Fault(name, f"is a configuration ({config.kind}) that no stack recognises; {remedy}"))
    if result == "serving":
        groups = [[config.settings]] if config.kind == "python" else groups
        serving = [own for own in stacks() if flags(own)[0].kind == "inference"]
        return started_server(text) or max(serving, key=lambda own: fit(groups, own)), groups
    if config.kind and (result not in stacks() or config.kind in ("python", "Primus")):
        groups = [[config.settings]]
    return result or started_server(text), groups


def _referenced(values: Stated, beside: Path | None) -> list[str]:
    """Put the settings of a DeepSpeed configuration in place of its name; returns those that move a result unread."""
    inside = file_beside(values["@deepspeed"], beside)
    config = config_in(inside) if inside is not None else None
    if inside is None or config is None or config.kind != "json":
        return []
    result = told_by([[config.settings]], "deepspeed")
    values.pop("@deepspeed")
    values |= {key: value for key, value in result.values.items() if key in _ZERO and value != "auto"}
    if result.values.get("@offload", "none") != "none":
        values["offload_optimizer"] = result.values.get("@ratio", "1")
    return [f"{words} ({inside.name})" for words in result.unknown if moves(words)]


def _options(values: Stated, text: str, stack: str, beside: Path | None, notes: list[str]) -> list[str]:
    """Add the settings of the configuration that a start names; settings that move a result and are not read."""
    path = values.pop("@options", "") or values.get("@config", "")
    shipped = last(path).removesuffix(".toml")
    stock = next((row for row in stack_rows("stock") if (row["stack"], row["name"]) == (stack, shipped)), None)
    if stock is not None and file_beside(path, beside) is None:
        values.pop("@config", "")
        values |= {**told_by([settings_of(stock["settings"])], stack).values, **values}
        notes.append(f"{shipped} is taken as {stock['source']} has it: {stock['settings']}")
        return []
    if not path.endswith((".yaml", ".yml", ".json", ".toml")):
        return []
    inside = file_beside(path, beside)
    if inside is None:
        if writes(text, last(path)):
            return []
        if "@config" in values:
            notes.append(f"what {last(path)} sets is not read: it is not beside the file")
            return []
        return [f"{path}, which is not beside it"]
    config = config_in(inside)
    if config is None:
        return [f"{path}, which is no text that can be read"]
    values.pop("@config", "")
    result = told_by([[config.settings]], stack)
    values |= {**result.values, **values}
    return [f"{words} ({inside.name})" for words in result.unknown if moves(words)]


def _remarks(stack: str, plan: Stated, values: Stated, columns: Mapping[str, str]) -> list[str]:
    """Notes on a plan that was read from a configuration file: its software, and values that the file leaves open."""
    remark = software_of(stack)[1]
    notes = [remark] if remark else []
    stated, wanted = plan_of(stack, values).get("num_accelerators", ""), columns.get("num_accelerators", "")
    if stated and wanted and stated != wanted:
        notes.append(f"the file states {stated} accelerators, --set {wanted}: replicas and batch follow --set")
    asked = ["global_batch_size", "sequence_length", *(_OF_RECIPE if stack == "bridge" else ())]
    asked += ["virtual_pipeline"] if stack == "bridge" and plan.get("pipeline_parallel", "1") != "1" else []
    absent = [name.replace("_", " ") for name in asked if name not in plan]
    if absent:
        by = "the recipe decides" if stack == "bridge" else "not stated"
        notes.append(f"{by}, here xlperf's defaults: {', '.join(absent)}")
    return notes


def _lacking(kind: str, told: Stated, name: str, asked: Sequence[str], lacks: str) -> list[Fault]:
    """Faults of the mandatory columns that a plan lacks; ``lacks``: why it has no model."""
    lacking = [column.header for column in table_schema(kind).columns if column.required and column.name not in told]
    faults = [Fault(name, lacks)] if lacks and "model" in lacking else []
    lacking = [header for header in lacking if header != "model" or not faults]
    if lacking:
        also = f" (open: {listed(asked)})" if asked else ""
        sets = " ".join(f"--set '{one}=...'" for one in lacking)
        remedy = f"add {sets}, or a line {MARK} {lacking[0]} = ..."
        faults.append(Fault(name, f"does not say {', '.join(lacking)}{also}: {remedy}"))
    return faults


def _plan_table(kind: str, told: Stated, name: str) -> Table:
    known = table_schema(kind).by_name
    cells = {column: np.array([value], dtype=object) for column, value in told.items()}
    table = table_from_columns(kind, cells, lambda _, column: f"{name} [{column}]")
    if table.own:
        column = next(iter(table.own))
        hint = partial(nearest, column, [one.replace("_", " ") for one in known])
        raise InputError(Fault(f"{name} [{column}]", f"unknown column {shown(column)}", hint))
    return table
