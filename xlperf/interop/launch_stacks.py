"""Stacks of launch files: how a file is recognised, which settings move a result, and which flag is which column.

``rl_arguments.csv`` maps arguments of a stack to options of ``xlperf rl``; arguments of one option multiply.
``meaning``: ``prompts`` counts prompts rather than rollouts, ``together`` a switch for rollouts and trainer that take
turns, ``at most`` a limit that stands for a length unless another argument states it.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from xlperf.base.errors import Fault, InputError
from xlperf.base.resources import rows, stack_folders, stack_rows
from xlperf.catalog.table import Table, aliases
from xlperf.interop.config_rules import Stated
from xlperf.interop.launch_python import RECIPE, is_python, python_settings
from xlperf.interop.launch_shell import MOST_VALUE
from xlperf.interop.launch_text import (
    DEEPEST,
    LONGEST_NAME,
    MOST_POINTS,
    MOST_SETTINGS,
    Setting,
    documents,
    flat,
    is_yaml,
    loaded,
)
from xlperf.interop.software import STACKS

_MOST_DIGITS = 9
_ENGINES = ("vllm", "sglang")
_NEEDED = ("prompts-per-step", "samples-per-prompt")
_OF_ROLLOUTS = ("grpo.", "actor_rollout_ref.", "policy.generation.")


def rl_question(stack: str, settings: Iterable[Setting]) -> str:
    """The command that asks about a run, "" for a text that states nothing of rollouts.

    >>> words = {"data.train_batch_size=": "64", "actor_rollout_ref.rollout.n=": "8", "trainer.nnodes=": "2"}
    >>> rl_question("verl", [Setting(name, (value,)) for name, value in words.items()])
    'xlperf rl --prompts-per-step 64 --samples-per-prompt 8'
    """
    stated = {one.name[:LONGEST_NAME].strip("-=:").casefold(): one.argument for one in settings}
    off = [
        name.removesuffix("enabled")
        for name, value in stated.items()
        if name.endswith(".enabled") and value.casefold() == "false"
    ]
    options, together, open_ = dict[str, str](), False, set[str]()
    for row in rows("interop/rl_arguments.csv"):
        value, option = stated.get(row["argument"]), row["option"]
        if row["stack"] != stack or value is None or row["argument"].startswith(tuple(off)):
            continue
        if option == "model":
            name = value.rstrip("/").rpartition("/")[2]
            options |= {option: name} if name and not set(name) & set("${}") else {}
        elif option == "rollout-software":
            options |= {option: value} if value in _ENGINES else {}
        elif row["meaning"] == "together":
            together = value.casefold() not in ("false", "null", "none")
        elif "$" in value:
            open_.add(option)
        elif value.isdecimal() and 0 < len(value) <= _MOST_DIGITS and int(value):
            samples = int(options.get("samples-per-prompt", "1")) if row["meaning"] == "prompts" else 1
            if option == "num-accelerators":  # nodes, and accelerators of each
                samples = int(options.get(option, "1"))
                (open_.discard if option in options else open_.add)(option)
            options[option] = str(int(value) * samples)
    options = {name: value for name, value in options.items() if name not in open_}
    if not options.keys() & set(_NEEDED) and not any(name.startswith(_OF_ROLLOUTS) for name in stated):
        return ""
    engines = int(options.pop("rollout-accelerators", "0")) * int(options.get("rollout-tensor-parallel", "1"))
    if engines:
        options["rollout-accelerators"] = "0" if together else str(engines)
        if not together and "num-accelerators" in options:
            options["num-accelerators"] = str(int(options["num-accelerators"]) + engines)
    if "longest-output" in options:
        options["output-length"] = str(max(int(options["longest-output"]) // 2, 1))
    return shlex.join(["xlperf", "rl", *(word for name, value in options.items() for word in (f"--{name}", value))])


_TABLE = re.compile(r"^\[\[?[\w.\-\" ]{1,200}\]\]?[ \t]*(?:#.*)?$", re.MULTILINE)
_REFERENCE = re.compile(r"\$\{(?:oc\.env:)?([\w.]{1,100})(?:[,:]\s*([^${}]{0,200}))?\}")


class Config(NamedTuple):
    """Settings of a configuration file.

    ``kind``: yaml, toml, json, python; Primus for a wrapper whose settings are another stack's; "" for any other file.
    """

    kind: str
    settings: list[Setting]


def config_of(text: str, given: Mapping[str, str] | None = None) -> Config:
    """Settings of a configuration file, none if the text is a script or a log."""
    kind, result = "", list[Setting]()
    if text.lstrip().startswith("{"):
        kind, result = "json", list(flat(loaded(text), whole=True))
    elif _TABLE.search(text) and max(line.count(".") for line in text.splitlines()) < MOST_POINTS:
        kind, result = "toml", list(flat(loaded(text, tomllib.loads), whole=True))
    if not result and is_python(text):
        kind, result = "python", list(python_settings(text, (given or {}).get(RECIPE, "")))
    if not result and is_yaml(text):
        stated = (one for document in documents(text) for one in flat(document, whole=True))
        result = [one for one in stated if one.argument and "\n" not in one.argument]
        kind = "yaml" if result else ""
    settings = _filled(result[:MOST_SETTINGS], given or {})
    inside = _of_primus(settings) or _of_flagscale(settings)
    return Config("Primus", inside) if inside else Config(kind, settings)


_MODELS_OF_PRIMUS = {"torchtitan": "model.name:", "maxtext": "model_name:"}
"""Frameworks of Primus with settings of their own, and their setting for the model."""


def _of_primus(settings: Sequence[Setting]) -> list[Setting]:
    """Settings of the framework that a module of Primus starts, by its own names; none for Megatron-LM."""
    stated = {one.name: one.argument for one in settings}
    for name, framework in stated.items():
        if name.startswith("modules.") and name.endswith(".framework:") and framework in _MODELS_OF_PRIMUS:
            module = name.removesuffix("framework:")
            model = stated.get(f"{module}model:", "").removesuffix(".yaml")
            inside = [Setting("config:", (stated.get(f"{module}config:", ""),))]
            if framework == "torchtitan" and model.endswith("-fp8"):  # its file of the model has the converter
                model = model.removesuffix("-fp8")
                inside.append(Setting("model.converters:", ("quantize.linear.float8",)))
            inside += [Setting(_MODELS_OF_PRIMUS[framework], (model,))] if model else []
            begin = f"{module}overrides."
            return [
                *inside,
                *(one._replace(name=one.name.removeprefix(begin)) for one in settings if one.name.startswith(begin)),
            ]
    return []


def _of_flagscale(settings: Sequence[Setting]) -> list[Setting]:
    """Arguments of Megatron-LM, which FlagScale groups by what they are for."""
    if not any(one.name.startswith("system.") and "model_parallel_size" in one.name for one in settings):
        return []
    return [
        one._replace(name=one.name.rpartition(".")[2])
        for one in settings
        if one.name.startswith(("system.", "model.", "data."))
    ]


def _filled(settings: Sequence[Setting], given: Mapping[str, str]) -> list[Setting]:
    """Settings with references and environment variables filled in; unknown references remain."""
    stated = {one.name.rstrip(":="): one.argument for one in settings}

    def value(match: re.Match[str]) -> str:
        name, default = match.groups()
        result = given.get(name, stated.get(name, default if default is not None else match.group(0)))[:LONGEST_NAME]
        return result if "${" not in result or result == match.group(0) else match.group(0)

    return [
        one._replace(arguments=tuple(_REFERENCE.sub(value, word)[:MOST_VALUE] for word in one.arguments))
        if any("${" in word for word in one.arguments)
        else one
        for one in settings
    ]


LONGEST_LINE = 1_000  # characters of a line in which the place of a setting is looked up
MOST_LINES = 5_000  # lines in which the place of a setting is looked up
MOST_TEXT = 1_000_000  # characters of a launch file at the most
MOST_SEARCHED = 200_000  # characters that are searched for the words of a stack
_SERVERS = {
    "vllm": ("vllm serve", "vllm.entrypoints", "dynamo.vllm"),
    "sglang": ("sglang.launch_server", "sglang serve", "dynamo.sglang"),
    "trtllm": ("trtllm-serve", "trtllm-bench", "dynamo.trtllm"),
}
"""Commands that start the server of an engine."""
_NOTHING = ("false", "none", "null", "no", "off")
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_ENDING = re.compile(r"_(?:pretrain|finetune|sft|peft|lora|perf)\w*$|_config$")


def started_server(text: str) -> str:
    """The engine whose server a script starts; "" if it starts none, or servers of several."""
    result = [own for own, words in _SERVERS.items() if any(word in text for word in words)]
    return result[0] if len(result) == 1 else ""


def plain(name: str) -> str:
    """A setting name without regard to case, dashes and the sign after it."""
    return name.strip().removesuffix("=").removesuffix(":").lstrip("-").replace("_", "-").casefold()


def readable() -> str:
    """Titles of the stacks that are read, for messages."""
    titles = dict.fromkeys(row["title"] for row in stack_rows("evidence") if row["read"] == "yes")
    engines = [stack.title for stack in STACKS.values() if stack.label]
    return ", ".join([*(title for title in titles if not title.startswith("a ")), *engines])


def claimed(text: str, config: Config, groups: Iterable[Sequence[Setting]], name: str) -> str:
    """The first stack with evidence in a file, "" if none, ``serving`` for an engine; InputError for one not read."""
    settings = config.settings or [one for group in groups for one in group]
    names = frozenset(plain(one.name)[:LONGEST_NAME] for one in settings)
    options = frozenset(plain(one.name) for one in settings if one.name.startswith("-"))
    searched = _COMMENT.sub("", text[:MOST_SEARCHED])
    for row in stack_rows("evidence"):
        if _holds(row["evidence"], names, options, searched):
            if row["read"] == "no":
                question = rl_question(row["stack"], settings)
                if question:
                    words = f"trains by reinforcement learning ({row['title']}), which this does not read: ask"
                    words += f" {question}, with accelerators and the mean output length"
                    words += ", here half of the longest" if "--output-length" in question else ""
                    raise InputError(Fault(name, words))
                raise InputError(Fault(name, f"looks like {row['title']}: not read; read are {readable()}"))
            return row["stack"]
    return ""


def title_of(stack: str) -> str:
    """Name of a stack in its makers' spelling, also of one that is read only."""
    titles = (row["title"] for row in stack_rows("evidence") if row["stack"] == stack)
    return STACKS[stack].title if stack in STACKS else next(titles, stack)


@cache
def software_of(stack: str) -> tuple[str, str]:
    """Software of the calibration for a stack that is read only, and how far it was measured; "" for another."""
    result = (row for row in stack_rows("evidence") if row["stack"] == stack)
    return next(((row["software"], row["remark"]) for row in result), ("", ""))


def _holds(evidence: str, names: frozenset[str], options: frozenset[str], text: str) -> bool:
    if evidence.startswith("text:"):
        return evidence[5:] in text
    for part in evidence.split():
        key = plain(part)
        if part.startswith("-"):
            result = key in options
        elif part.startswith("*."):
            end = key[2:].removesuffix(".*")
            inside = part.endswith(".*")
            result = any(f".{end}." in f".{one}." and (inside or one.endswith(end)) for one in names if end in one)
        elif part.endswith(".*"):
            result = any(one.startswith(key[:-1]) for one in names)
        else:
            result = key in names
        if not result:
            return False
    return True


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str], tuple[str, ...], frozenset[str]], ...]:
    return tuple(
        (
            row["verdict"],
            re.compile(row["pattern"]),
            tuple(row["neutral"].split()),
            frozenset(row["settled by"].split()),
        )
        for row in rows("interop/launch_words.csv")
    )


def switched_off(settings: Iterable[Setting]) -> frozenset[str]:
    """Names of settings whose value is false or none: settings whose names go on after theirs have no effect."""
    return frozenset(plain(one.name) for one in settings if one.arguments and one.argument.casefold() in _NOTHING)


def verdict(setting: Setting, off: frozenset[str] = frozenset()) -> str:
    """``moves``, ``harmless``, or "" for a setting without a pattern.

    A setting that would move a result is harmless if its value changes nothing or if ``off`` has its feature.

    >>> verdict(Setting("--expert-parallel", ("4",))), verdict(Setting("expert_parallel:", ("1",)))
    ('moves', 'harmless')
    """
    name = plain(setting.name)[-LONGEST_NAME:]
    for result, pattern, neutral, _ in _patterns():
        if pattern.search(name):
            if result != "moves":
                return result
            argument = " ".join(setting.arguments).casefold()
            over = (name[: end.start()] for end in re.finditer(r"[.-]", name))
            return "harmless" if (argument or "true") in neutral or any(one in off for one in over) else result
    return "harmless" if setting.argument.casefold() in _NOTHING else ""


def kind_of(words: str, off: frozenset[str] = frozenset()) -> str:
    """As :func:`verdict`, for a setting as it is written.

    >>> kind_of("--ulysses_parallel_size 8"), kind_of("--ulysses_parallel_size 1"), kind_of("--log-interval 10")
    ('moves', 'harmless', 'harmless')
    """
    return verdict(_setting_of(words), off)


def given_instead(words: str, columns: Collection[str]) -> bool:
    """Whether columns that are given say what a setting means that is not read.

    >>> given_instead("remat_policy: custom", ["recompute"]), given_instead("remat_policy: custom", ["precision"])
    (True, False)
    """
    name = plain(_setting_of(words).name)[-LONGEST_NAME:]
    settling = next((one for _, pattern, _, one in _patterns() if pattern.search(name)), frozenset[str]())
    return not settling.isdisjoint(columns)


def moves(words: str) -> bool:
    """Whether a setting, as it is written, moves a result."""
    return kind_of(words) == "moves"


def _setting_of(words: str) -> Setting:
    name, *rest = re.split(r"[=:\s]+", words[: 2 * LONGEST_NAME].strip(), maxsplit=1)
    return Setting(name, tuple(one.strip("\"'") for one in rest[0].split()) if rest and rest[0] else ())


def placed(words: str, text: str) -> str:
    """A setting as it is written, with its line in the text if it is found."""
    line = _line_of(text, _setting_of(words).name) if "\n" in text.strip() else 0
    return f"{words} (line {line})" if line else words


def _line_of(text: str, key: str) -> int:
    """Line of the last part of a key's path, searched after the lines of the earlier parts; 0 if there is none."""
    lines = text[:MOST_SEARCHED].splitlines()[:MOST_LINES]
    place = 0
    for part in [key] if key.startswith("-") else key.split(".")[-3:]:
        pattern = re.compile(rf"(?:^|\W){re.escape(part.strip('-'))}(?!\w)")
        result = next((row for row in range(place, len(lines)) if pattern.search(lines[row][:LONGEST_LINE])), -1)
        if result < 0:
            return 0
        place = result
    return place + 1


def own_model(stack: str, quantities: Mapping[str, str], models: Table | None, name: str) -> str:
    """Model of the catalog behind a stack's own name, "" if none is known; InputError if the catalog lacks it."""
    named = " ".join(quantities[key] for key in ("@model", "@flavor") if quantities.get(key))
    sized = " ".join(quantities[key] for key in ("@family", "@size") if quantities.get(key))
    spelled = [one for one in (named, sized if quantities.get("@size") else "") if one]
    for text in spelled:
        for cut in (text.removesuffix(".yaml"), text.rstrip("/").rpartition("/")[2], _ENDING.sub("", text)):
            for row in stack_rows("models"):
                if row["stack"] in (stack, "any") and _letters(row["name"]) == _letters(cut):
                    if not row["model"]:
                        problem = f'its model "{text}" is none of the catalog ({row["source"]})'
                        raise InputError(Fault(name, f"{problem}: give --set model=..., or a row of models"))
                    return row["model"]
    if stack != "bridge" or models is None:
        return ""
    known = _by_letters(models)
    return next(
        (known[_letters(_ENDING.sub("", text))] for text in spelled if _letters(_ENDING.sub("", text)) in known), sized
    )


def _letters(text: str) -> str:
    return "".join(re.findall(r"[a-z0-9]+", text[:LONGEST_NAME].casefold()))


def _by_letters(models: Table) -> dict[str, str]:
    """Models by their spellings without punctuation, if a spelling names one model alone."""
    names = [str(one) for one in models.text("model").tolist()]
    words: dict[str, set[str]] = {}
    for spelling, model in [*((one, one) for one in names), *((one, names[row]) for row, one in aliases(models))]:
        words.setdefault(_letters(spelling), set()).add(model)
    return {letters: next(iter(own)) for letters, own in words.items() if len(own) == 1}


_ON, _OFF = ("true", "yes", "1", "on"), ("false", "no", "0", "off")


class Flag(NamedTuple):
    """A flag of a stack: ``value`` and ``argument`` are "" if the argument is the value of the column.

    ``column`` is a column of the plan, a quantity of the stack that starts with ``@``, or "" for a flag that alters
    neither time nor memory; ``argument`` is ``*`` if all words that follow belong to the flag.
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
    """Flags of a stack; InputError if the folder of the stack is incomplete."""
    own = [row for row in stack_rows("settings") if row["stack"] == stack]
    base = "nemo" if stack == "bridge" else stack
    own += [row for row in stack_rows("flags") if row["stack"] == base]
    lacking = "stack.csv" if stack in stacks() and stack not in STACKS else "" if own else "flags.csv or settings.csv"
    if lacking:
        raise InputError(Fault(f"interop/stacks/{stack}", f"has no {lacking} with a row of the stack"))
    return tuple(Flag(**row) for row in own)


def stacks() -> tuple[str, ...]:
    """Stacks that plans are written for."""
    return stack_folders("flags")


def read_stacks() -> tuple[str, ...]:
    """Stacks whose files are read: launch stacks and stacks of configuration files."""
    return (*stacks(), *stack_folders("settings"))


def kind_of_stack(stack: str) -> str:
    """Kind of the plans of a stack."""
    return flags(stack)[0].kind


@cache
def by_name(stack: str) -> Mapping[str, tuple[Flag, ...]]:
    """Flags of a stack by their names, without regard to case and dashes."""
    result: dict[str, list[Flag]] = {}
    for flag in flags(stack):
        result.setdefault(plain(flag.flag), []).append(flag)
    return {name: tuple(own) for name, own in result.items()}


def candidates_of(known: Mapping[str, tuple[Flag, ...]], name: str, exact: bool = False) -> tuple[Flag, ...]:
    """Flags of a name: as it is, or, for keys of nested mappings, by the end of its path or by its beginning."""
    whole = plain(name)
    result = known.get(whole)
    if result is not None:
        return result
    parts = whole.split(".", DEEPEST)
    for start in range(1, 1 if exact else len(parts)):
        end = ".".join(parts[start:])
        result = known.get(end.lstrip("-")) if "-" in end or start < len(parts) - 1 else None
        if result is not None:
            return result
    for end_ in range(len(parts) - 1, 0, -1):
        result = known.get(".".join([*parts[:end_], "*"]))
        if result is not None:
            return result
    return _abbreviated(known, whole) if name.startswith("--") else ()


_SHORTEST = 8  # letters of an abbreviated flag at the least: shorter ones may be of other programs of the line


def _abbreviated(known: Mapping[str, tuple[Flag, ...]], name: str) -> tuple[Flag, ...]:
    """Flags that begin with a name, as parsers of Python take it, if all of them set one column."""
    if len(name) < _SHORTEST or "." in name:
        return ()
    own = [flags for whole, flags in known.items() if whole.startswith(name)]
    columns = {flag.column for flags in own for flag in flags}
    return own[0] if len(columns) == 1 and "" not in columns else ()


def value_of(candidates: Sequence[Flag], setting: Setting) -> Stated | None:
    """Columns and quantities of a setting, none if it alters nothing, None for an unknown value."""
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
    switches = {"true": _ON, "false": _OFF}
    known = [flag for flag in candidates if flag.argument.casefold() in switches]
    if not known or argument not in _ON + _OFF:
        return None
    alike = (flag for flag in known if argument in switches[flag.argument.casefold()])
    return next(({flag.column: flag.value} for flag in alike), {})


@cache
def variables(kind: str) -> Mapping[str, tuple[Flag, ...]]:
    """Variables of the environment that mean a column whatever script reads them."""
    result: dict[str, list[Flag]] = {}
    for row in rows("interop/launch_variables.csv"):
        for name in row["variable"].split() if row["kind"] == kind else ():
            flag = Flag("", "environment", kind, name, row["column"], row["value"], row["argument"])
            result.setdefault(name, []).append(flag)
    return {name: tuple(own) for name, own in result.items()}


@cache
def still_variables() -> tuple[str, ...]:
    """Patterns of variables that alter neither time nor memory: paths, addresses, settings of libraries."""
    result = rows("interop/launch_variables.csv")
    return tuple(name for row in result if not row["column"] for name in row["variable"].split())


MOST_SHOWN = 120  # settings of a message, and characters of each, at the most


def listed(words: Sequence[str]) -> str:
    """Settings in a message: the first ones, cut."""
    shown = [one if len(one) <= MOST_SHOWN else f"{one[:MOST_SHOWN]}..." for one in words[:MOST_SHOWN]]
    rest = len(words) - len(shown)
    return "; ".join([*shown, *([f"and {rest:,} more"] if rest else [])])


def last(path: str) -> str:
    """The last part of a path."""
    return path.rpartition("/")[2]


def config_in(file: Path) -> Config | None:
    """Settings of a configuration file; None if it is no text."""
    with suppress(OSError, UnicodeDecodeError):
        return config_of(file.read_text(encoding="utf-8"))
    return None


def file_beside(path: str, folder: Path | None) -> Path | None:
    """A file that a launch file refers to, if it lies in the folder or where the path leads from there."""
    reference = Path(path)
    if folder is None or ".." in reference.parts:
        return None
    places = [folder / reference.name, *([] if reference.is_absolute() else [folder / reference])]
    return next((one for one in places if one.is_file() and one.stat().st_size <= MOST_TEXT), None)


def mounted(text: str, path: str) -> str:
    """A path inside a container as its host has it, if the text mounts a folder there (``-v HOST:PATH``).

    >>> mounted("docker run -v /data/Qwen3-32B:/model:ro vllm/vllm-openai --model /model", "/model")
    '/data/Qwen3-32B'
    """
    parts = path.split("/")
    for end in range(min(len(parts), DEEPEST), 1, -1) if path.startswith("/") else ():
        inside = re.escape("/".join(parts[:end]))
        match = re.search(rf"(?:^|(?<=[\s\"']))([^\s:\"'=]{{2,300}}):{inside}/?(?::[a-z,]{{1,20}})?(?=[\s\"']|$)", text)
        if match and "$" not in match[1]:
            return "/".join([match[1], *parts[end:]])
    return path


def writes(script: str, file: str) -> bool:
    """Whether a script writes a file, by its name or by a variable that holds it.

    >>> writes('CONFIG="a.yml"; cat > $CONFIG << EOF', "a.yml"), writes("cat a.yml", "a.yml")
    (True, False)
    """
    held = re.findall(rf"\b([A-Za-z_]\w*)=[\"']?[^\s\"']*{re.escape(file)}", script)
    names = [re.escape(file), *(rf"\$\{{?{name}\b" for name in held[:MOST_SHOWN])]
    return re.search(rf"(?:>|\btee\b)[^\n;&|]*(?:{'|'.join(names)})", script) is not None
