"""YAML of launch files, read by PyYAML: every scalar is the word that is written, ``no`` and ``1e-4`` too."""

from __future__ import annotations

import re
from typing import Any

import yaml

try:
    from yaml import CSafeLoader as _Loader
except ImportError:  # without libyaml
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]

MOST_NODES = 50_000
"""Values of a text at the most, each counted as often as aliases repeat it. [-]"""
_KEY = re.compile(r"([\"']?)([-\w.+/@]{1,200})\1\s*:(?:\s+(.*)|\s*)$", re.DOTALL)
_HERE_DOCUMENT = re.compile(r"^[^\s:#][^\n:#]{0,300}<<-?[ ]?['\"]?[A-Za-z_]\w{0,40}['\"]?[ ]*$", re.MULTILINE)


class _Words(_Loader):
    """Constructs words, lists and mappings; mappings with ``<<`` are merged, and tags have no meaning."""


_Words.yaml_implicit_resolvers = {"<": [("tag:yaml.org,2002:merge", re.compile("^<<$"))]}


def _untagged(loader: Any, _: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return str(node.value)


_Words.add_multi_constructor("", _untagged)


def is_yaml(text: str) -> bool:
    """Whether most lines of a text are keys or items of YAML; a script that writes YAML to a file is none.

    >>> is_yaml("model: llama3"), is_yaml("torchrun train.py --tp 8")
    (True, False)
    """
    if text.startswith("#!") or _HERE_DOCUMENT.search(text):
        return False
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#") and line != "---"]
    alike = [_KEY.fullmatch(line.lstrip("- ")[:500]) is not None for line in lines]
    items = [line.startswith("- ") or line[:1] in "]}" for line in lines]
    either = sum(one or other for one, other in zip(alike, items, strict=True))
    return any(alike) and either >= 0.6 * len(lines)


def documents(text: str) -> list[Any]:
    """Mappings, lists and words of the documents of a YAML text; none for a text that is no YAML or multiplies itself.

    >>> documents("{a: &x {fp8: no}, b: {<<: *x, lr: 1e-4}}")
    [{'a': {'fp8': 'no'}, 'b': {'fp8': 'no', 'lr': '1e-4'}}]
    >>> documents("{{ .Values }}: [")
    []
    """
    results, sizes = [], dict[int, float]()
    try:
        loader = _Words(text)
        while loader.check_node():
            node = loader.get_node()
            if node is None or _size(node, sizes) > MOST_NODES:
                return []
            results.append(loader.construct_document(node))
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        return []
    return results


def _size(node: yaml.Node, sizes: dict[int, float]) -> float:
    """Values inside a node, aliases expanded; endless for a node that contains itself."""
    if id(node) not in sizes:
        sizes[id(node)] = float("inf")
        inner = [one for pair in node.value for one in pair] if isinstance(node, yaml.MappingNode) else node.value
        sizes[id(node)] = 1.0 + sum(_size(one, sizes) for one in inner if isinstance(one, yaml.Node))
    return sizes[id(node)]
