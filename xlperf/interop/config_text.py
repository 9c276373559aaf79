"""Configuration files of training stacks as settings: YAML, TOML, JSON and Python recipes, read without running them.

A key is its path in nested mappings, ``parallelism.dp``; a list under a key is its arguments.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from xlperf.interop.launch_text import DEEPEST, LONGEST_NAME, MOST_POINTS, MOST_SETTINGS, Setting

MOST_VALUE = 20_000
"""Characters of a value at the most. [-]"""
_KEY = re.compile(r"([\"']?)([-\w.+/@]{1,200})\1\s*:(?:\s+(.*)|\s*)$", re.DOTALL)
_TABLE = re.compile(r"^\[\[?[\w.\-\" ]{1,200}\]\]?[ \t]*(?:#.*)?$", re.MULTILINE)
_DASHES = re.compile(r"(?:-[ \t]{1,40}){1,30}")
_SCALAR = re.compile(r"(?:[&!]\S{1,100}\s+)?(.*)", re.DOTALL)
_REFERENCE = re.compile(r"\$\{(?:oc\.env:)?([\w.]{1,100})(?:[,:]\s*([^${}]{0,200}))?\}")
_PYTHON = re.compile(r"^(?:import|from)\s+[\w.]{1,100}", re.MULTILINE)
_ASSIGNED = re.compile(r"^\s*(?:\w{1,60}\.)?((?:[a-z_]\w{0,60}\.){1,6}\w{1,60})\s*=\s*([^=#\s][^#\n]{0,200})")
_KEYWORD = re.compile(r"\b([a-z_]\w{1,60})\s*=\s*(None|True|False|[\d_.e+\-]{1,30}|\"[^\"\n]{0,100}\"|'[^'\n]{0,100}')")
_RECIPE = re.compile(r"\b([a-z]\w{1,60}?_(?:pretrain|finetune|sft|peft|perf)\w{0,20}_config)\b")


class Config(NamedTuple):
    """Settings of a configuration file. ``kind``: yaml, toml, json, python, or "" for a file of another kind."""

    kind: str
    settings: list[Setting]


def config_of(text: str, given: Mapping[str, str] | None = None) -> Config:
    """Settings of a configuration file, none if the text is a script or a log.

    ``text``: YAML, TOML, JSON or a Python recipe. ``given``: variables of the environment.
    """
    kind, result = "", list[Setting]()
    if text.lstrip().startswith("{"):
        kind, result = "json", _nested(text, json.loads)
    elif _TABLE.search(text) and max(line.count(".") for line in text.splitlines()) < MOST_POINTS:
        kind, result = "toml", _nested(text, tomllib.loads)
    if not result and _PYTHON.search(text):
        kind, result = "python", list(_python(text))
    if not result:
        text = _on_one_line(text)
        result = list(_yaml(text)) if _mostly_keys(text) else []
        kind = "yaml" if result else ""
    return Config(kind, _filled(result[:MOST_SETTINGS], given or {}))


def _nested(text: str, loads: object) -> list[Setting]:
    assert callable(loads)
    try:
        result = list(_flat(loads(text), "", 0))
    except (ValueError, RecursionError):
        return []
    return result[:MOST_SETTINGS]


def _flat(value: object, name: str, depth: int) -> Iterator[Setting]:
    if isinstance(value, dict) and depth < DEEPEST:
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key), depth + 1)
    elif isinstance(value, list):
        yield Setting(f"{name}:", tuple(str(one)[:MOST_VALUE] for one in value))
    elif value is not None:
        yield Setting(f"{name}:", (str(value)[:MOST_VALUE],))


def _on_one_line(text: str) -> str:
    """A text of YAML without the further lines of values in double quotes."""
    lines, inside = [], False
    for line in text.splitlines():
        quotes = line.count('"') - line.count('\\"')
        if inside:
            inside = quotes % 2 == 0
            continue
        inside = quotes % 2 == 1 and re.match(r"\s*[-\w.]{1,100}:\s+\"", line[:300]) is not None
        lines.append(line)
    return "\n".join(lines)


def _mostly_keys(text: str) -> bool:
    """Whether most lines are keys or items, as those of YAML are."""
    if text.startswith("#!"):
        return False
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#") and line != "---"]
    alike = [_KEY.fullmatch(line.lstrip("- ")[:500]) is not None for line in lines]
    items = [line.startswith("- ") or line[:1] in "]}" for line in lines]
    either = sum(one or other for one, other in zip(alike, items, strict=True))
    return any(alike) and either >= 0.6 * len(lines)


def _yaml(text: str) -> Iterator[Setting]:
    """Keys of nested mappings by their path; the items of a list are the arguments of its key."""
    path: list[tuple[int, str]] = []
    items: tuple[str, list[str]] | None = None
    block = -1
    for line in text.splitlines():
        line = line[:MOST_VALUE]
        bare = line.strip()
        depth = len(line) - len(line.lstrip())
        if block >= 0 and (not bare or depth > block):
            continue
        block = -1
        if not bare or bare.startswith("#") or bare == "---":
            continue
        dashes = _DASHES.match(bare)
        if dashes is not None:
            depth, bare = depth + dashes.end(), bare[dashes.end() :]
        listed = dashes is not None
        key = _KEY.fullmatch(bare)
        if key is None:
            if listed and path:
                name = ".".join(own for _, own in path if own)
                if items is None or items[0] != name:
                    if items is not None:
                        yield Setting(f"{items[0]}:", tuple(items[1]))
                    items = name, []
                items[1].append(_scalar(bare))
            continue
        if items is not None:
            yield Setting(f"{items[0]}:", tuple(items[1]))
            items = None
        path = [one for one in path if one[0] < depth][:DEEPEST]
        path.append((depth, key.group(2)))
        name = ".".join(own for _, own in path)
        value = _scalar(key.group(3) or "")
        if value[:1] in "|>" and value:
            block = depth
        elif value.startswith("{") and value.endswith("}"):
            yield from _inline(name, value)
        elif value.startswith("[") and value.endswith("]"):
            yield Setting(f"{name}:", tuple(_scalar(one) for one in value[1:-1].split(",") if one.strip()))
        elif value:
            yield Setting(f"{name}:", (value,))
    if items is not None:
        yield Setting(f"{items[0]}:", tuple(items[1]))


def _inline(name: str, value: str) -> Iterator[Setting]:
    """Keys of a mapping on one line."""
    for one in value[1:-1].split(","):
        key, colon, rest = one.partition(":")
        if colon and rest.strip():
            yield Setting(f"{name}.{_scalar(key)}:", (_scalar(rest),))


def _scalar(text: str) -> str:
    """A value without its comment, its quotes, and its anchor or tag."""
    text = re.sub(r"(?:^|\s)#.*$", "", text[:MOST_VALUE]).strip()
    match = _SCALAR.fullmatch(text)
    text = match.group(1) if match and text[:1] in ("&", "!") else text
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _python(text: str) -> Iterator[Setting]:
    """Assignments of a recipe in Python to its configuration; names and keyword arguments of recipes that it calls."""
    for name in dict.fromkeys(_RECIPE.findall(text[: 10 * MOST_VALUE])):
        yield Setting("recipe=", (name,))
    for line in text.splitlines():
        assigned = _ASSIGNED.match(line[:500])
        if assigned is not None:
            yield Setting(f"{assigned.group(1)}=", (assigned.group(2).strip().rstrip(",").strip("\"'"),))
        elif not re.match(r"\s*(?:import|from|def|class|#)\b", line):
            for name, value in _KEYWORD.findall(line[:500]):
                yield Setting(f"{name}=", (value.strip("\"'"),))


def _filled(settings: Sequence[Setting], given: Mapping[str, str]) -> list[Setting]:
    """Settings with references to others and to variables of the environment filled in; those not known stay."""
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
