"""Settings of a launch file in the order in which they stand: arguments of commands, keys of YAML, TOML and JSON."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from xlperf.catalog.shell_text import Shell

DEEPEST = 30
"""Levels of nested keys at the most. [-]"""
_TABLE = re.compile(r"^\[[\w.\-\"]+\]\s*(#.*)?$", re.MULTILINE)
_KEY = re.compile(r"^(\s*)((?:-\s+)*)([\"']?)([-\w.+/]+)\3\s*:(?:\s+(.*)|\s*)$")
_ITEM = re.compile(r"^(\s*)-\s+(.*)$")
_OPTION = re.compile(r"--?[A-Za-z][\w.\-]*")
_DOTTED = re.compile(r"[+~]{0,2}[A-Za-z_][\w.\-/]*")
_INSIDE = re.compile(r"\S\s+(--[a-z][\w-]+|[a-z_]+\.[a-z_.]+=)")
_END = re.compile(r"[|&;<>()]|\d?>&?\d?|.*[^-\w]>.*")


_DUMPED = re.compile(
    r"^[^\w\n]{0,40}(?:\w{1,40}\]?: ?)?[ \t]{1,40}([a-z][a-z0-9_]{1,60}) \.{2,60} (\S.{0,500})$", re.MULTILINE
)
_ENGINES = ("ServerArgs(", "non-default args: {")
MOST_ENGINE = 20_000
"""Characters of the arguments that an engine prints. [-]"""
_PAIR = re.compile(r"'?([a-z][a-z0-9_]+)'?\s*[=:]\s*('[^']*'|\"[^\"]*\"|[\w.+-]+)")
_TYPED = re.compile(r"(?:torch|AttnBackend|\w+Backend)\.\w+")
FEWEST_DUMPED = 5
"""Arguments that a log has to list to be taken for one. [-]"""


class Setting(NamedTuple):
    """A name as it is written, ``--tp-size``, ``trainer.devices=`` or ``vllm serve``, and what follows."""

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
        return self.name + shown if self.name.endswith("=") else f"{self.name} {shown}".rstrip()


def settings_of(text: str, given: Mapping[str, str] | None = None, commands: Sequence[str] = ()) -> list[list[Setting]]:
    """Settings of a launch file, command by command; YAML and TOML are one.

    ``text``: arguments, a shell script, YAML or TOML. ``given``: variables of the environment. ``commands``: commands
    whose first argument has no name, as ``vllm serve``.
    """
    logged = logged_settings(text)
    if logged:
        return [logged]
    if _TABLE.search(text):
        try:
            return [list(_flat(tomllib.loads(text), "", 0))]
        except (tomllib.TOMLDecodeError, RecursionError):
            pass
    if _is_yaml(text):
        return [list(_yaml(text, given or {}, commands))]
    found = []
    for command in Shell(given or {}).commands(text):
        if isinstance(command, list):
            found.append(list(_of_words(command, commands)))
        elif _is_yaml(command):
            found.append(list(_yaml(command, {}, commands)))
    return found


def logged_settings(text: str) -> list[Setting]:
    """Arguments that a log lists at its start, or that the JSON of a benchmark states; none where it is neither.

    ``text``: megatron-LM's list of arguments; the engine arguments that vLLM and SGLang print; JSON.
    """
    found = [(name, value.strip()) for name, value in _DUMPED.findall(text)]
    if len(found) < FEWEST_DUMPED:
        starts = [text.find(one) + len(one) for one in _ENGINES if one in text]
        lines = [text[start : start + MOST_ENGINE].partition("\n")[0] for start in starts]
        found = [pair for line in lines for pair in _PAIR.findall(line)]
    if found:
        stated = {name: value.strip("'\"") for name, value in found if not _TYPED.search(value)}
        if stated.get("group_query_attention") == "False":
            stated.pop("num_query_groups", None)
        if stated.get("num_experts") in ("None", "0"):
            stated = {name: value for name, value in stated.items() if not name.startswith("moe_")}
        return [Setting(f"{name}:", (value,)) for name, value in stated.items()]
    if text.lstrip().startswith("{"):
        try:
            return [one for one in _flat(json.loads(text), "", 0) if not one.name.endswith("s:") or one.argument]
        except (ValueError, RecursionError):
            return []
    return []


def _of_words(words: Sequence[str], commands: Sequence[str], depth: int = 0) -> Iterator[Setting]:
    """Settings of the words of one command, and of commands inside quotes."""
    inside = [word for word in words if _INSIDE.search(word) and not _OPTION.match(word)]
    for word in inside if depth < DEEPEST else ():
        yield from _of_words(word.split(), commands, depth + 1)
    words = [word for word in words if word not in inside]
    if len(words) == 2 and _KEY.match(" ".join(words)):  # a key of YAML among the lines of a script
        yield Setting(words[0], (words[1],))
        return
    joined = [" ".join(words[place : place + 2]) for place in range(len(words))]
    for place, word in enumerate(words):
        named = next((one for one in commands if one in (word.rpartition("/")[2], joined[place])), "")
        if named:
            following = words[place + len(named.split()) : place + len(named.split()) + 1]
            if following and not following[0].startswith("-"):
                yield Setting(named, tuple(following))
            continue
        head, equals, after = word.partition("=")
        if _OPTION.fullmatch(head):
            rest: list[str] = [after] if equals else []
            for other in () if equals else words[place + 1 :]:
                if _OPTION.fullmatch(other.partition("=")[0]) or _END.fullmatch(other):
                    break
                rest.append(other)
            yield from _with_json(head, tuple(rest))
        elif equals and _DOTTED.fullmatch(head):
            yield Setting(f"{head.lstrip('+~')}=", (after,))


def _with_json(name: str, arguments: tuple[str, ...]) -> Iterator[Setting]:
    """A setting, and those inside where its argument is a JSON object."""
    yield Setting(name, arguments)
    if arguments and arguments[0].startswith("{"):
        try:
            yield from _flat(json.loads(arguments[0]), name, 0)
        except (ValueError, RecursionError):
            return


def _flat(value: object, name: str, depth: int) -> Iterator[Setting]:
    if isinstance(value, dict) and depth < DEEPEST:
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key), depth + 1)
    elif isinstance(value, list):
        yield Setting(f"{name}:", tuple(str(one) for one in value))
    elif value is not None:
        yield Setting(f"{name}:", (str(value),))


def _is_yaml(text: str) -> bool:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    keys = sum(bool(_KEY.match(line)) for line in lines)
    alike = keys + sum(bool(_ITEM.match(line)) and not _KEY.match(line) for line in lines)
    return keys > 0 and alike >= 0.6 * len(lines) and not text.startswith("#!")


def _yaml(text: str, given: Mapping[str, str], commands: Sequence[str]) -> Iterator[Setting]:
    """Keys of nested mappings by their path; items of lists are words of a command."""
    path: list[tuple[int, str]] = []
    items: list[str] = []
    block: tuple[int, list[str]] | None = None
    shell = Shell(given)
    for line in [*text.splitlines(), ""]:
        depth = len(line) - len(line.lstrip())
        if block is not None:
            if not line.strip() or depth > block[0]:
                block[1].append(line)
                continue
            yield from (one for group in settings_of("\n".join(block[1]), given, commands) for one in group)
            block = None
        key = _KEY.match(line)
        if key is None:
            item = _ITEM.match(line)
            if item is not None:
                items += shell.words(_uncommented(item.group(2)))
            continue
        if items:
            yield from _of_words(items, commands)
            items = []
        indent = len(key.group(1)) + len(key.group(2))
        path = [one for one in path if one[0] < indent][:DEEPEST]
        value = _uncommented(key.group(5) or "")
        path.append((indent, key.group(4)))
        if value[:1] in "|>" and value:
            block = indent, []
        elif value:
            name = ".".join(own for _, own in path)
            listed = re.fullmatch(r"\[(.*)\]", value)
            words = [one.strip().strip("\"'") for one in listed.group(1).split(",")] if listed else [_plain(value)]
            yield Setting(f"{name}:", tuple(shell.filled(word) for word in words))
    if items:
        yield from _of_words(items, commands)
    if block is not None:
        yield from (one for group in settings_of("\n".join(block[1]), given, commands) for one in group)


def _uncommented(text: str) -> str:
    return re.sub(r"(^|\s)#.*$", "", text).strip()


def _plain(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value
