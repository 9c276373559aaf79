"""Launch scripts, arguments, YAML, TOML and logs as text, read without running anything.

PyYAML reads YAML: every scalar is the word that is written, ``no`` and ``1e-4`` too. ``log_settings.csv`` has a pattern
for each line of a stack's start or of a benchmark's report. A setting becomes a column of the plan. A fact, whose name
starts with ``=``, holds for the logged run alone: it rules causes out and contradicts plans.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from math import prod
from typing import Any, NamedTuple

import yaml

from xlperf.base.resources import stack_rows
from xlperf.interop.launch_shell import MOST_VALUE, Call, Shell

try:
    from yaml import CSafeLoader as _Loader
except ImportError:  # without libyaml
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]

MOST_NODES = 50_000  # values of a text at the most, each counted as often as aliases repeat it
_YAML_KEY = re.compile(r"([\"']?)([-\w.+/@]{1,200})\1\s*:(?:\s+(.*)|\s*)$", re.DOTALL)
_DOCUMENT = re.compile(r"^---(?=\s|$)", re.MULTILINE)
_QUOTED = re.compile(r"(?<=: )\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_HERE_DOCUMENT = re.compile(
    r"^[^\s:#][^\n:#]{0,300}<<-?[ ]?['\"]?[A-Za-z_]\w{0,40}['\"]?[ ]*(?:>[^\n]{0,300})?$", re.MULTILINE
)


class _Scalars(_Loader):
    """Constructs words, lists and mappings; mappings with ``<<`` are merged, and tags have no meaning."""


_Scalars.yaml_implicit_resolvers = {"<": [("tag:yaml.org,2002:merge", re.compile("^<<$"))]}


def _untagged(loader: Any, _: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return str(node.value)


_Scalars.add_multi_constructor("", _untagged)


def loaded(text: str, loads: Callable[[str], Any] = json.loads) -> Any:
    """Content of a text of JSON, or of another language; None for any other text, and for one that nests too deep."""
    try:
        return loads(text)
    except (ValueError, RecursionError):
        return None


def is_yaml(text: str) -> bool:
    """Whether most lines of a text are keys or items of YAML; a script that writes YAML to a file is none."""
    if text.startswith("#!") or _HERE_DOCUMENT.search(text):
        return False
    lines = [line.strip() for line in _QUOTED.sub("", text).splitlines()]
    lines = [line for line in lines if line and not line.startswith("#") and line != "---"]
    alike = [_YAML_KEY.fullmatch(line.lstrip("- ")[:500]) is not None for line in lines]
    items = [line.startswith("- ") or line[:1] in "]}" for line in lines]
    either = sum(one or other for one, other in zip(alike, items, strict=True))
    return any(alike) and either >= 0.6 * len(lines)


def documents(text: str, whole: bool = True) -> list[Any]:
    r"""Mappings, lists and words of the documents of a YAML text; without documents that are no YAML or multiply.

    >>> documents("{a: &x {fp8: no}, b: {<<: *x, lr: 1e-4}}")
    [{'a': {'fp8': 'no'}, 'b': {'fp8': 'no', 'lr': '1e-4'}}]
    >>> documents("{{ .Values }}: [\n---\na: 1")
    [{'a': '1'}]
    """
    results, sizes = [], dict[int, float]()
    try:
        loader = _Scalars(text)
        while loader.check_node():
            node = loader.get_node()
            if node is None or _size(node, sizes) > MOST_NODES:
                return []
            results.append(loader.construct_document(node))
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        pieces = _DOCUMENT.split(text) if whole else []
        return [one for piece in pieces if len(pieces) > 1 for one in documents(piece, whole=False)]
    return results


def _size(node: yaml.Node, sizes: dict[int, float]) -> float:
    """Values inside a node, aliases expanded; endless for a node that contains itself."""
    if id(node) not in sizes:
        sizes[id(node)] = float("inf")
        inner = [one for pair in node.value for one in pair] if isinstance(node, yaml.MappingNode) else node.value
        sizes[id(node)] = 1.0 + sum(_size(one, sizes) for one in inner if isinstance(one, yaml.Node))
    return sizes[id(node)]


_CLIENT_ONLY = "serving"  # stack of the report of a benchmark that does not name its engine
_TITAN = {
    "pp": "--parallelism.pipeline_parallel_degree", "cp": "--parallelism.context_parallel_degree",
    "tp": "--parallelism.tensor_parallel_degree", "ep": "--parallelism.expert_parallel_degree",
    "dp_replicate": "--parallelism.data_parallel_replicate_degree",
    "dp_shard": "--parallelism.data_parallel_shard_degree",
}  # fmt: skip
_RANKS = ("pp", "dp_replicate", "dp_shard", "dp", "cp", "tp")
_MESH = re.compile(r"Building \d-D device mesh with \[([^\]\n]{1,200})\], \[([\d, ]{1,100})\]")
_DEGREES = re.compile(r"device mesh with parallelism: ((?:\w{1,20}=\d{1,6}(?:, )?){1,12})")
_COUNTED = {
    name: re.compile(rf"{words}:\s{{1,60}}(\d{{1,12}})")
    for name, words in (
        ("requests", "Successful requests"),
        ("isl", "Total input tokens"),
        ("osl", "Total generated tokens"),
    )
}


REPORT = "Serving Benchmark Result"
_REPORT_END = re.compile(r"^[^\w\n]{0,40}={20,}\s*$", re.MULTILINE)


def last_report(text: str) -> str:
    r"""The last of several reports of a benchmark, before the text above the first one.

    >>> last_report(f"a\n== {REPORT} ==\n1\n{'=' * 30}\nb\n== {REPORT} ==\n2\n").split()
    ['b', '==', 'Serving', 'Benchmark', 'Result', '==', '2', 'a', '==']
    """
    parts = text.split(REPORT)
    return f"{_REPORT_END.split(parts[-2], 1)[-1]}{REPORT}{parts[-1]}{parts[0]}" if len(parts) > 2 else text


class LogLines(NamedTuple):
    """Settings by flags of the ``stack`` that wrote a log ("" for none or an unnamed engine), and facts by column."""

    stack: str
    settings: Mapping[str, str]
    facts: Mapping[str, str]


def log_lines(text: str) -> LogLines:
    """Settings and facts of the lines of a log; none for a text that is no log of a known stack.

    >>> log_lines("[titan] INFO - Model llama3 8B size: 8,030,261,248 total parameters").settings["--model.flavor"]
    '8B'
    """
    text = last_report(text)
    evidence = [row for row in stack_rows("log_evidence") if row["words"] in text]
    stack = next((row["stack"] for row in evidence if row["stack"] != _CLIENT_ONLY), "")
    settings: dict[str, str] = {}
    facts: dict[str, str] = {}
    if evidence:
        reported = any(row["client_report"] and row["stack"] in (stack or _CLIENT_ONLY) for row in evidence)
        kinds = {stack, *((_CLIENT_ONLY,) if reported else ())}
        for row in stack_rows("log_settings"):
            match = re.search(row["pattern"], text) if kinds & {*row["stack"].split()} else None
            stated, name = "" if match is None else _stated(match, row["value"]), row["setting"]
            if stated not in ("", "None"):
                target, key = (facts, name[1:]) if name.startswith("=") else (settings, name)
                target.setdefault(key, stated)
        settings |= dict(_mesh(text)) if stack == "torchtitan" else {}
        settings |= dict(_client(text)) if reported else {}
    return LogLines(stack, settings, facts)


def _stated(match: re.Match[str], value: str) -> str:
    if value == "#":
        return str(len(re.findall(r"\d+", match[1])))
    if value == "%":
        return f"{float(match[1]) / 100.0:.6g}"
    return value or match[1]


def _mesh(text: str) -> Iterator[tuple[str, str]]:
    """Degrees of torchtitan's device mesh, and the ranks of all of them."""
    mesh, stated = _MESH.search(text), _DEGREES.search(text)
    if mesh:
        names, sizes = re.findall(r"\w+", mesh[1]), re.findall(r"\d+", mesh[2])
        degrees = dict(zip(names, map(int, sizes), strict=False))
    elif stated:
        degrees = {name: int(size) for name, size in re.findall(r"(\w+)=(\d+)", stated[1])}
    else:
        return
    yield "--nproc_per_node", str(prod(degrees.get(name, 1) for name in _RANKS))
    yield from ((flag, str(degrees[name])) for name, flag in _TITAN.items() if degrees.get(name, 1) > 1)


def _client(text: str) -> Iterator[tuple[str, str]]:
    """Mean lengths of the requests of a benchmark's client."""
    counted = {name: pattern.search(text) for name, pattern in _COUNTED.items()}
    requests = counted.pop("requests")
    if requests and float(requests[1]) > 0.0:
        yield from ((name, f"{float(one[1]) / float(requests[1]):.6g}") for name, one in counted.items() if one)


LONGEST_NAME = 200  # characters of a setting that are looked at for its name
MOST_SETTINGS = 20_000  # settings of one text at the most
MOST_POINTS = 300  # points of a line of TOML at the most: its reader takes the square of the parts of a key
_NESTED = 3  # texts within texts that are read: here-documents of here-documents
COMMAND = "$0"  # name of the setting whose arguments are the first words of a command
DEEPEST = 30  # levels of nested keys at the most
_TABLE = re.compile(r"^\[[\w.\-\"]+\]\s*(#.*)?$", re.MULTILINE)
_OPTION = re.compile(r"--?[A-Za-z][\w.\-]*")
_DOTTED = re.compile(r"[+~]{0,2}[A-Za-z_][\w.\-/]*")
_INSIDE = re.compile(r"\S\s+(--[a-z][\w-]+|[a-z_]+\.[a-z_.]+=)|python3? -m [\w.]{1,80} [^\n]{0,400}?\b[a-z_]{2,60}=")
_END = re.compile(r"[|&;<>()]|\d?>&?\d?|.*[^-\w]>.*")


_DUMPED = re.compile(
    r"^[^\w\n]{0,40}(?:\w{1,40}\]?: ?)?[ \t]{1,40}([a-z][a-z0-9_]{1,60}) \.{2,60} (\S.{0,500})$", re.MULTILINE
)
_PRINTED = re.compile(r"^.{0,100}?\bConfig param ([a-z]\w{1,80}): (\S.{0,500})$", re.MULTILINE)  # MaxText
MOST_ENGINE = 20_000  # characters of the arguments that an engine prints
_PAIR = re.compile(r"(?<![a-z0-9_])([a-z][a-z0-9_]{1,60})'?\s*[=:]\s*('[^']*'|\"[^\"]*\"|[\w.+-]++(?!\s*=))")
_TYPED = re.compile(r"(?:torch|Backend)\.\w")
_SCRIPT = re.compile(r"[^\s=]*\.(?:sh|bash|sbatch|slurm)")
_STARTERS = ("bash", "sh", "zsh", "source", ".", "sbatch", "srun", "exec", "nohup", "time", "sudo", "mpirun", "ssh")
_DEFAULTED = re.compile(r"\$\{([A-Za-z_]\w*):([^-=+?{}$:][^{}$]*)?\}")
_ENVIRONMENT = re.compile(r"\$\{(?:oc\.)?env:\s*([A-Za-z_]\w*)\s*(?:,([^{}$]*))?\}")
_REFERENCE = re.compile(r"\$\{(\.*)([A-Za-z_][\w.\-]*)\}")
_ARRAY = re.compile(r"\$\{[A-Za-z_]\w*\[[@*]\]\}")
_BRACED = re.compile(r"\$\{(\w{1,100})(?:[^{}]|\$\{[^{}]{0,100}\}){0,200}\}")
_LATENT = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
"""Arguments of latent attention, which Megatron-LM prints for any model."""
FEWEST_DUMPED = 5  # fewest arguments by which a log is recognised


class Setting(NamedTuple):
    """A name as it is written (``--tp-size``, ``trainer.devices=``, ``$VARIABLE``) and the arguments behind it."""

    name: str
    arguments: tuple[str, ...]

    @property
    def argument(self) -> str:
        """The first argument; "" for a switch."""
        return self.arguments[0] if self.arguments else ""

    @property
    def words(self) -> str:
        """As it is written."""
        shown = " ".join(self.arguments)
        if self.name == "$@":
            return shown
        if self.name.startswith("$") and self.arguments:
            return f"{self.name[1:]}={shown}"
        return self.name + shown if self.name.endswith("=") else f"{self.name} {shown}".rstrip()


def settings_of(
    text: str, given: Mapping[str, str] | None = None, commands: Sequence[str] = (), nested: int = 0
) -> list[list[Setting]]:
    """Arguments of each command of a text; YAML, TOML, JSON and logs are one. Endless for an endless script."""
    logged = logged_settings(text)
    if logged:
        return [logged]
    if _TABLE.search(text) and max(line.count(".") for line in text.splitlines()) < MOST_POINTS:
        settings = list(islice(flat(loaded(text, tomllib.loads)), MOST_SETTINGS))
        if settings:
            return [settings]
    if is_yaml(text):
        stated = list(islice(_yaml_settings(text, given or {}, commands, nested), MOST_SETTINGS))
        values = {one.name: one.argument for one in stated}
        return [[Setting(name, tuple(_referred(name, word, values) for word in words)) for name, words in stated]]
    results = []
    shell = Shell(given or {})
    for command in shell.commands(text):
        if isinstance(command, Call):
            results.append(list(_of_call(command, commands)))
        elif nested < _NESTED and command.strip():
            inside = settings_of(command, shell.variables, commands, nested + 1)
            results += [group for group in inside if len(group) > 1 or (group and group[0].name.endswith(":"))]
    return results


def handed_to(words: Sequence[str]) -> str:
    """The script that a command starts, "" if it starts a program."""
    if not words or not (_SCRIPT.fullmatch(words[0]) or words[0].rpartition("/")[2] in _STARTERS):
        return ""
    return next((word for word in words[:LONGEST_NAME] if _SCRIPT.fullmatch(word)), "")


def _of_call(call: Call, commands: Sequence[str]) -> Iterator[Setting]:
    """Settings of a command: its first words, its arguments, and variables that it hands over."""
    if ("ray", "start") in pairwise(call.words):  # joins a cluster
        return
    script = handed_to(call.words)
    first = [word[:LONGEST_NAME] for word in call.words[:6] if not word.startswith("-")]
    first += [word for word in (script, next((one for one in call.words if one.endswith(".py")), "")) if word]
    yield Setting(COMMAND, tuple(dict.fromkeys(first)))
    if script:
        behind = call.words[call.words.index(script) + 1 :]
        options = (place for place, word in enumerate(behind) if _ends(word) or "=" in word)
        numbers = behind[: next(options, len(behind))]
        if any(word.isdigit() for word in numbers):
            yield Setting("$@", (script, *numbers))
    yield from islice(_of_words(call.words, commands), MOST_SETTINGS)
    handed = {**call.exported, **call.before} if script else dict(call.before)
    for place, word in enumerate(call.words):
        if word in ("-e", "--env", "--export") or word.startswith("--export="):
            listed = word.partition("=")[2] or (call.words[place + 1] if place + 1 < len(call.words) else "")
            pairs = (one.partition("=") for one in listed.split(","))
            handed |= {name: value for name, equals, value in pairs if equals and name.isidentifier()}
    for name, value in handed.items():
        if script and _INSIDE.search(f"x {value}"):
            yield from _of_words(value.split(), commands)
        else:
            yield Setting(f"${name}", (value,))


def logged_settings(text: str) -> list[Setting]:
    """Settings that a log states at its start, or that the JSON of a benchmark states; none if it is neither."""
    logged = log_lines(text)
    results = [(name, value.strip()) for pattern in (_DUMPED, _PRINTED) for name, value in pattern.findall(text)]
    if len(results) < FEWEST_DUMPED:
        before = [row["words"] for row in stack_rows("log_evidence") if row["arguments"]]
        starts = [text.find(words) + len(words) for words in before if words in text]
        lines = [text[start : start + MOST_ENGINE].partition("\n")[0] for start in starts]
        results = [pair for line in lines for pair in _PAIR.findall(line)]
    if results:
        stated = {name: value.strip("'\"") for name, value in results if not _TYPED.search(value)}
        if stated.get("group_query_attention") == "False":
            stated.pop("num_query_groups", None)
        if stated.get("num_experts") in ("None", "0"):
            stated = {name: value for name, value in stated.items() if not name.startswith("moe_")}
        if stated.get("multi_latent_attention") == "False":
            stated = {name: value for name, value in stated.items() if name not in _LATENT}
        return [*lined_settings(logged), *(Setting(f"{name}:", (value,)) for name, value in stated.items())]
    if logged.stack and logged.settings:
        return lined_settings(logged)
    if text.lstrip().startswith("{"):
        listed = islice(flat(loaded(text)), MOST_SETTINGS)
        return [one for one in listed if not one.name.endswith("s:") or one.argument]
    return []


def lined_settings(lines: LogLines) -> list[Setting]:
    """Settings that lines of a log state, as the arguments of a launch line."""
    return [Setting(name, (value,)) for name, value in lines.settings.items()]


def _of_words(words: Sequence[str], commands: Sequence[str], depth: int = 0) -> Iterator[Setting]:
    """Settings of the words of one command, and of commands inside quotes."""
    outside: list[str] = []
    for word in words:
        if depth < DEEPEST and _INSIDE.search(word) and not _OPTION.match(word):
            yield from _of_words(word.split(), commands, depth + 1)
        else:
            outside.append(word)
    words = outside
    if len(words) == 2 and _YAML_KEY.fullmatch(" ".join(words)):  # a key of YAML among the lines of a script
        yield Setting(words[0], (words[1],))
        return
    joined = [" ".join(words[place : place + 2]) for place in range(len(words))]
    yield from (Setting(word, ()) for word in words if _ARRAY.fullmatch(word))
    for place, word in enumerate(words):
        whole = (word.rpartition("/")[2], joined[place].rpartition("/")[2])
        named = next((one for one in commands if one in whole), "")
        if named:
            behind = place + len(named.split())
            behind += words[behind : behind + 1] == ["serve"]  # trtllm-serve serve MODEL
            following = words[behind : behind + 1]
            if following and not following[0].startswith("-"):
                yield Setting(named, tuple(following))
            continue
        if word == "-m" and "." in "".join(words[place + 1 : place + 2]):  # a module of Python
            continue
        head, equals, after = word.partition("=")
        if _OPTION.fullmatch(head):
            rest: list[str] = [after] if equals else []
            after_ = place + 1
            while not equals and after_ < len(words) and not _ends(words[after_]):
                rest.append(words[after_])
                after_ += 1
            yield from _with_json(head, tuple(rest))
        elif equals and _DOTTED.fullmatch(head):
            yield Setting(f"{head.lstrip('+~')}=", (after.rstrip(",").strip("\"'"),))  # a comma of Python


def _ends(word: str) -> bool:
    """Whether a word ends the arguments of the option before it."""
    return bool(_OPTION.fullmatch(word.partition("=")[0]) or _END.fullmatch(word) or _ARRAY.fullmatch(word))


def _with_json(name: str, arguments: tuple[str, ...]) -> Iterator[Setting]:
    """A setting, and the settings inside if its argument is a JSON object."""
    yield Setting(name, arguments)
    if arguments and arguments[0].startswith("{"):
        text = _BRACED.sub(r"$\1", arguments[0])  # a variable without a value is no JSON, but a word of YAML
        inside = loaded(text) or next(iter(documents(text)), None)
        yield from flat(inside, name.removesuffix(":")) if isinstance(inside, dict) else ()


_GROUPED = re.compile(r"-?\d{1,3}(?:_\d{3})+")


def flat(value: object, name: str = "", depth: int = 0, whole: bool = False) -> Iterator[Setting]:
    """Settings of nested mappings by their path; ``whole``: also of mappings inside lists."""
    if isinstance(value, dict) and depth < DEEPEST:
        for key, inner in value.items():
            path = f"{name}.{str(key)[:LONGEST_NAME]}" if name else str(key)[:LONGEST_NAME]
            yield from flat(inner, path, depth + 1, whole)
    elif isinstance(value, list):
        listed = tuple(str(one)[:MOST_VALUE] for one in value if not isinstance(one, dict | list))
        if listed or not value or not whole:
            yield Setting(f"{name}:", listed)
        for one in value if whole and depth < DEEPEST else ():
            if isinstance(one, dict | list):
                yield from flat(one, name, depth + 1, whole)
    elif value is not None:
        word = str(value)[:MOST_VALUE]
        yield Setting(f"{name}:", (word.replace("_", "") if _GROUPED.fullmatch(word) else word,))


def _referred(name: str, value: str, values: Mapping[str, str]) -> str:
    """A value, or the one of the key that it refers to, as ``${model.seq_length}`` or ``${.seq_length}``."""
    for _ in range(_NESTED):
        match = _REFERENCE.fullmatch(value)
        if match is None:
            break
        points, path = match.groups()
        above = name.removesuffix(":").split(".")[: -len(points)] if points else []
        name = f"{'.'.join([*above, path])}:"
        if name not in values and not points:  # a package of Hydra, whose name the file does not repeat
            name = name.partition(".")[2]
        if name not in values:
            break
        value = values[name]
    return value


def _yaml_settings(text: str, given: Mapping[str, str], commands: Sequence[str], nested: int) -> Iterator[Setting]:
    shell = Shell(given)

    def filled(value: str) -> str:
        for pattern in (_DEFAULTED, _ENVIRONMENT):
            value = pattern.sub(lambda match: given.get(match[1], match[0] if match[2] is None else match[2]), value)
        return shell.filled(value)

    for setting in (one for document in documents(text) for one in flat(document, whole=True)):
        if "\n" in setting.argument:
            if nested < _NESTED:
                inside = settings_of(setting.argument, given, commands, nested + 1)
                yield from (one for group in inside for one in group)
        elif len(setting.arguments) > 1 and any(word[:1] == "-" or "=" in word for word in setting.arguments):
            yield from _of_words([word for one in setting.arguments for word in shell.words(one)], commands)
        elif setting.argument:
            yield from _with_json(setting.name, tuple(filled(word) for word in setting.arguments[:MOST_SETTINGS]))
