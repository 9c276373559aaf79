"""Launch lines of training and serving stacks: the arguments of a plan, and the plan of arguments.

``launch_flags.csv`` says which flag of which version is which column; rows without a column are flags that alter
neither time nor memory. What a stack has no flag for (the accelerator, the network, lengths of a benchmark ...) stands
in comment lines that start with ``# xlperf:``. Columns that several arguments decide together follow from quantities of
the stack (``@data``, ``@tensor``); what a stack does where a flag is not given stands in ``launch_defaults.csv``,
beside what a blank column means here.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import NamedTuple

import numpy as np

from xlperf.base.errors import Fault, InputError
from xlperf.base.resources import rows
from xlperf.catalog.launch_text import Setting, logged_settings, settings_of
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import split_header, table_schema, unit_of
from xlperf.catalog.table import Table, aliases, words_of

Stated = dict[str, str]
SOFTWARE = {"megatron": "megatron", "nemo": "nemo", "torchtitan": "torchtitan", "vllm": "vllm", "sglang": "sglang",
            "trtllm": "tensorrt-llm"}  # fmt: skip
"""The software of plans that a stack runs."""
OWN_SOFTWARE = {"training": "megatron", "inference": "tensorrt-llm"}
"""What a blank software is."""
_DIMENSIONS = ("num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "ffn_hidden_size", "num_experts",
               "top_k")  # fmt: skip
_MODULES = {"core_attn": "core_attention", "layernorm": "norm", "mla_up_proj": "latent", "mlp": "mlp", "moe": "moe",
            "moe_act": "activation"}  # fmt: skip
_NARROW = (("fp8", r"fp8|w8a8"), ("fp4", r"(nv|mx)?fp4"), ("int4", r"awq|gptq|int4|w4a16"), ("int8", r"int8"))
_CAPTURED = tuple(float(size) for size in (1, 2, 4, 8, 16, 32, 64, 128, *range(256, 3073, 256)))
"""Tokens of a pass that TensorRT-LLM captures graphs for where piecewise graphs are on. [-]"""
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
    columns = {split_header(key)[0]: value for key, value in (given or {}).items()}
    known = table_schema(flags(stack)[0].kind).by_name
    told = plan_of(stack, {**quantities, **{key: value for key, value in columns.items() if key in known}}, models)
    told |= {key: value for key, value in columns.items() if key in known}
    for key, equals, value in (line.partition("=") for line in said):
        told |= {split_header(key)[0]: value.strip()} if equals else {}
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


@cache
def stack_defaults(stack: str) -> tuple[tuple[str, str, str], ...]:
    """Column, what blank means in a plan, and what the stack does without its flag, where the two differ."""
    found = rows("catalog/launch_defaults.csv")
    return tuple((row["column"], row["blank"], row["without"]) for row in found if row["stack"] == stack)


def plan_of(stack: str, told: Mapping[str, str], models: Table | None = None) -> Stated:
    """Columns of the plan that arguments of a stack mean.

    ``stack``: whose arguments. ``told``: columns and own quantities of the stack that its flags state. ``models``:
    among these a model is found by its name or its dimensions.
    """
    plan = {name: value for name, value in told.items() if not name.startswith("@")}
    _RULES[stack](plan, told)
    if "model" not in plan:
        model = _model(told, models)
        plan |= {"model": model} if model else {}
    if stack in ("vllm", "sglang", "trtllm"):
        _precision_of_name(plan, told.get("@model", ""))
        _running(plan, told, stack)
    for column, blank, without in stack_defaults(stack):
        needed = column != "sequence_parallel" or _number(plan, "tensor_parallel", 1.0) > 1.0
        if column not in plan and needed and blank != without:
            plan[column] = without
    if SOFTWARE[stack] != OWN_SOFTWARE["training" if stack in ("megatron", "nemo", "torchtitan") else "inference"]:
        plan.setdefault("software", SOFTWARE[stack])
    return plan


def stack_of(stack: str, stated: Mapping[str, str]) -> Stated:
    """The reverse of :func:`plan_of` for flags that follow from several columns; other columns stay as they are."""
    found = dict(stated)
    for column, blank, without in stack_defaults(stack):
        needed = column != "sequence_parallel" or _number(stated, "tensor_parallel", 1.0) > 1.0
        if column not in found and needed and blank != without:
            found[column] = blank
    replicas = _number(stated, "data_parallel_attention", 1.0)
    tensor = _number(stated, "tensor_parallel", 1.0)
    if stack == "megatron" and found.get("precision", "").startswith(("fp8", "mxfp8")):
        found |= {"@fp8": "hybrid", "@fp8_recipe": found["precision"], "precision": "bf16"}
    if stack == "vllm":
        found["@tensor"] = _text(tensor / replicas)
        if replicas > 1.0:
            found["@data"] = _text(replicas)
        if _number(stated, "expert_parallel", 1.0) > 1.0:
            found["@experts"] = "yes"
    elif stack in ("sglang", "trtllm"):
        found["@tensor"] = _text(tensor)
        if replicas > 1.0:
            found |= {"@attention": "yes"} | ({"@data": _text(replicas)} if stack == "sglang" else {})
    if stack == "trtllm" and "graph_tokens" in stated:
        most = _number(stated, "graph_tokens")
        found["@pieces"] = "yes" if most > 0.0 else "no"
        if most > 0.0:
            sizes = [size for size in _CAPTURED if size < most]
            found["@captured"] = f"[{','.join(_text(size) for size in [*sizes, most])}]"
    if stack in ("vllm", "sglang", "trtllm"):
        if "model" in stated:
            found["@model"] = stated["model"]
        if "max_running_batch" in stated:
            found["@running"] = _text(_number(stated, "max_running_batch") / _limited_alone(stack, replicas))
        elif "batch_size" in stated:
            found["@running"] = stated["batch_size"]
    return found


def _limited_alone(stack: str, replicas: float) -> float:
    """Replicas of the attention layers that the limit of requests of a stack holds for one by one: all but SGLang's."""
    return 1.0 if stack == "sglang" else replicas


def _running(plan: Stated, told: Mapping[str, str], stack: str) -> None:
    """The limit of requests of an engine: of a batch that is given by itself, or of what runs of a load."""
    if "@running" not in told:
        return
    most = _number(told, "@running")
    if "concurrency" in plan or "request_rate" in plan:
        if most >= 1.0:
            copies = _limited_alone(stack, _number(plan, "data_parallel_attention", 1.0))
            plan["max_running_batch"] = _text(most * copies)
    else:
        plan["batch_size"] = told["@running"]


def _megatron(plan: Stated, told: Mapping[str, str]) -> None:
    _accelerators(plan, told)
    if "@fp8" in told:  # a recipe alone switches nothing on
        plan["precision"] = told.get("@fp8_recipe", "fp8")
    layers, chunk = _number(told, "@num_layers"), _number(told, "@layers_per_chunk")
    if layers and chunk:
        chunks = layers / (_number(plan, "pipeline_parallel", 1.0) * chunk)
        if chunks >= 1.0 and chunks % 1.0 == 0.0:
            plan["virtual_pipeline"] = _text(chunks)
    if _number(plan, "virtual_pipeline", 1.0) > 1.0:
        plan.setdefault("pipeline_schedule", "interleaved")
    _recomputation(plan, told)
    if _number(told, "@optimizer_instances", 1.0) > 1.0 and "num_accelerators" in plan:
        ranks = np.prod([_number(plan, f"{name}_parallel", 1.0) for name in ("tensor", "pipeline", "context")])
        replicas = _number(plan, "num_accelerators") / float(ranks)
        plan["zero_group_size"] = _text(replicas / _number(told, "@optimizer_instances"))


def _recomputation(plan: Stated, told: Mapping[str, str]) -> None:
    if plan.get("recompute") == "selective" and "@recompute_modules" in told:
        words = re.split(r"[\s,\[\]\"']+", told["@recompute_modules"])
        known = [_MODULES[word] for word in words if word in _MODULES]
        plan["recompute_modules"] = " ".join(dict.fromkeys(known)) or "core_attention"
    number = _number(told, "@recompute_num_layers")
    if plan.get("recompute") == "full" and number:
        if told.get("@recompute_method") == "block":
            plan["recompute_layers"] = _text(number)
        elif number > 1.0:
            plan["recompute_group"] = _text(number)


def _torchtitan(plan: Stated, told: Mapping[str, str]) -> None:
    _accelerators(plan, told)
    local = _number(told, "@local_batch")
    pipeline = _number(plan, "pipeline_parallel", 1.0)
    if local:
        micro = _number(told, "@pipeline_batch", 1.0) if pipeline > 1.0 else local
        plan["micro_batch_size"] = _text(micro)
    if "float8" in told.get("@converters", "") and not plan.get("precision", "").startswith("fp8"):
        plan["precision"] = "fp8-current"
    if "mx" in told.get("@converters", "").replace("[", " ").split():
        plan["precision"] = "mxfp8"
    replicas, shards = _number(told, "@replicas", 1.0), _number(told, "@shards", -1.0)
    if replicas > 1.0:
        if shards == 1.0:
            plan["zero_stage"] = "0"
        elif shards > 1.0:
            plan["zero_group_size"] = _text(shards)
    if "global_batch_size" in plan and _number(plan, "global_batch_size") <= 0.0:
        plan.pop("global_batch_size")
    if "global_batch_size" not in plan and local and "num_accelerators" in plan:
        ranks = pipeline * _number(plan, "tensor_parallel", 1.0) * _number(plan, "context_parallel", 1.0)
        plan["global_batch_size"] = _text(local * _number(plan, "num_accelerators") / ranks)


def _vllm(plan: Stated, told: Mapping[str, str]) -> None:
    tensor, data = _number(told, "@tensor", 1.0), _number(told, "@data", 1.0)
    ranks = tensor * data
    if told.get("@experts") == "yes":
        plan["tensor_parallel"], plan["expert_parallel"] = _text(ranks), _text(ranks)
        if data > 1.0:
            plan["data_parallel_attention"] = _text(data)
    elif "@tensor" in told:
        plan["tensor_parallel"] = _text(tensor)
    _captured(plan, told)
    _engine(plan, ranks)


def _sglang(plan: Stated, told: Mapping[str, str]) -> None:
    tensor, data = _number(told, "@tensor", 1.0), _number(told, "@data", 1.0)
    shared = told.get("@attention") == "yes"
    if "@tensor" in told:
        plan["tensor_parallel"] = _text(tensor)
    if shared and data > 1.0:
        plan["data_parallel_attention"] = _text(data)
    _captured(plan, told)
    _engine(plan, tensor * (1.0 if shared else data))


def _trtllm(plan: Stated, told: Mapping[str, str]) -> None:
    tensor = _number(told, "@tensor", 1.0)
    if "@tensor" in told:
        plan["tensor_parallel"] = _text(tensor)
    if told.get("@attention") == "yes":
        plan["data_parallel_attention"] = _text(tensor)
    if "@pieces" in told:
        plan["graph_tokens"] = _text(_largest(told, _CAPTURED[-1]) if told["@pieces"] == "yes" else 0.0)
    _engine(plan, tensor)


def _captured(plan: Stated, told: Mapping[str, str]) -> None:
    """Sizes in a list say no more than the largest one where that is not given by itself."""
    if "@captured" in told and plan.get("graphs") != "no":
        plan.setdefault("graph_tokens", _text(_largest(told, 0.0)))


def _largest(told: Mapping[str, str], default: float) -> float:
    """The largest of the sizes that graphs are captured for."""
    sizes = [float(word) for word in re.findall(r"\d{1,9}", told.get("@captured", ""))]
    return max(sizes, default=default)


def _engine(plan: Stated, ranks: float) -> None:
    whole = ranks * _number(plan, "pipeline_parallel", 1.0) * _number(plan, "context_parallel", 1.0)
    plan.setdefault("num_accelerators", _text(whole))
    for name in ("prefill_tokens", "polling_steps"):
        if name in plan and _number(plan, name) < 1.0:
            plan.pop(name)
    if plan.get("request_rate", "").casefold() == "inf":
        plan.pop("request_rate")
    if "concurrency" in plan or "request_rate" in plan:
        plan.setdefault("mode", "continuous")


_RULES: dict[str, Callable[[Stated, Mapping[str, str]], None]] = {
    "megatron": _megatron,
    "nemo": _megatron,
    "torchtitan": _torchtitan,
    "vllm": _vllm,
    "sglang": _sglang,
    "trtllm": _trtllm,
}


def _accelerators(plan: Stated, told: Mapping[str, str]) -> None:
    number = _number(told, "@accelerators_per_node")
    if number:
        plan.setdefault("num_accelerators", _text(number * _number(told, "@nodes", 1.0)))


def _model(told: Mapping[str, str], models: Table | None) -> str:
    named = " ".join(told[name] for name in ("@model", "@flavor") if told.get(name))
    if models is None:
        return named
    spelled = _spelled(models) if named else {}
    for text in (named, named.rstrip("/").rpartition("/")[2]):
        for cut in _shorter(text):
            if _joined(cut) in spelled:
                return spelled[_joined(cut)]
    stated = {name: _number(told, f"@{name}") for name in _DIMENSIONS}
    if not stated["num_layers"] or not stated["hidden_size"]:
        return named
    fits = np.ones(len(models), dtype=bool)
    for name, value in stated.items():
        column = models.number(name)
        if value:
            fits &= column == value
        elif name == "num_experts":
            fits &= ~(column > 1.0)
    return str(models.text("model")[np.flatnonzero(fits)[0]]) if fits.any() else named


def _spelled(models: Table) -> dict[str, str]:
    names = [str(name) for name in models.text("model").tolist()]
    found = {_joined(spelling): names[row] for row, spelling in aliases(models)}
    return found | {_joined(name): name for name in names}


def _joined(text: str) -> str:
    return "".join(words_of(text))


def _shorter(text: str) -> list[str]:
    """A model name, and the name without a suffix of precision, date or use."""
    words = re.split(r"[-_ ]+", text)
    found = ["-".join(words[:end]) for end in range(len(words), max(len(words) - 4, 0), -1)]
    return [text, *found]


def _precision_of_name(plan: Stated, model: str) -> None:
    """A checkpoint whose name says how its weights are stored."""
    if "precision" in plan:
        return
    for precision, pattern in _NARROW:
        if re.search(rf"(^|[-_/. ])({pattern})([-_. ]|$)", model, re.IGNORECASE):
            plan["precision"] = precision
            return


def _number(told: Mapping[str, str], name: str, default: float = 0.0) -> float:
    with suppress(ValueError):
        value = float(told.get(name, default))
        return value if math.isfinite(value) else default
    return default


def _text(value: float) -> str:
    return f"{value:.15g}"
