"""YAML of launch files, and the containers in it.

PyYAML reads it: every scalar is the word that is written, ``no`` and ``1e-4`` too. Manifests of Kubernetes and files of
Docker Compose run commands in containers; the tag of an image states a release.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, NamedTuple

import yaml

from xlperf.base.resources import rows

try:
    from yaml import CSafeLoader as _Loader
except ImportError:  # without libyaml
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]

MOST_NODES = 50_000  # values of a text at the most, each counted as often as aliases repeat it
_KEY = re.compile(r"([\"']?)([-\w.+/@]{1,200})\1\s*:(?:\s+(.*)|\s*)$", re.DOTALL)


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


def loaded(text: str, loads: Callable[[str], Any] = json.loads) -> Any:
    """Content of a text of JSON, or of another language; None for any other text, and for one that nests too deep."""
    try:
        return loads(text)
    except (ValueError, RecursionError):
        return None


def is_yaml(text: str) -> bool:
    """Whether most lines of a text are keys or items of YAML.

    >>> is_yaml("model: llama3"), is_yaml("torchrun train.py --tp 8")
    (True, False)
    """
    if text.startswith("#!"):
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


MOST_IMAGES = 1_000  # words of a text that may name an image, at the most
_HINT = re.compile(r"(?:^|[\s{,-])image\s*:")
_GPU_KEYS = ("gpu.product", "gke-accelerator", "instance-gpu-name")
"""Ends of the labels of a node that name its accelerator."""
_IMAGE = re.compile(r"(?<![\w/.:-])([\w.-]{1,100}(?::\d{1,5})?(?:/[\w.-]{1,100}){1,6}):([\w.+-]{1,100})")
_RELEASE = re.compile(r"v?\d+(?:\.\d+)+(?:[-.]?(?:post|rc)\d*)?")


class Containers(NamedTuple):
    """Commands of containers as a shell script, and columns that the manifest states beside them."""

    script: str
    columns: Mapping[str, str]


def containers_of(text: str) -> Containers | None:
    """What the containers of a YAML text run; None for a text without containers, or that is no YAML.

    >>> containers_of('{image: vllm/vllm-openai, args: [--model, a/b, "--tensor-parallel-size=8"]}').script
    'vllm serve --model a/b --tensor-parallel-size=8'
    """
    if not _HINT.search(text):
        return None
    nodes = list(_mappings(documents(text)))
    commands = [lines for node in nodes if (lines := _command_of(node))]
    if not commands:
        return None
    labels = ((str(key), value) for node in nodes for key, value in node.items() if isinstance(value, str))
    named = next((value for key, value in labels if key.endswith(_GPU_KEYS)), "")
    return Containers("\n".join(commands), {"accelerator": named} if named else {})


def _mappings(value: Any) -> Iterator[Mapping[Any, Any]]:
    """All mappings inside a value, outer ones first; one that aliases repeat comes once."""
    waiting, seen = deque([value]), set[int]()
    while waiting:
        one = waiting.popleft()
        if not isinstance(one, dict | list) or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, dict):
            yield one
        waiting.extend(one.values() if isinstance(one, dict) else one)


def _command_of(node: Mapping[Any, Any]) -> str:
    """Lines of a shell for one container: its variables, then its command; "" for another mapping."""
    image = node.get("image")
    words = [*_words(node.get("entrypoint")), *_words(node.get("command")), *_words(node.get("args"))]
    if not isinstance(image, str) or not words:
        return ""
    script = next((word for word in words if "\n" in word.strip() or len(shlex_words(word)) > 1), "")
    if words[0].rpartition("/")[2] in ("sh", "bash") and script:
        line = script
    else:
        started = next((row["command"] for row in _images() if fnmatchcase(image, row["pattern"])), "")
        entry = [] if not words[0].startswith("-") and "/" not in words[0] else shlex_words(started)
        line = shlex.join([*entry, *words])
    return "\n".join([*_variables(node.get("env", node.get("environment"))), line])


def _words(value: Any) -> list[str]:
    """Words of a command that is a list or a line."""
    if isinstance(value, str):
        return shlex_words(value) if "\n" not in value.strip() else [value]
    return [str(one) for one in value if not isinstance(one, dict | list)] if isinstance(value, list) else []


def shlex_words(text: str) -> list[str]:
    """Words of a line of a shell; parted at blanks where a quote is not closed."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _variables(stated: Any) -> Iterator[str]:
    """Assignments of a container's environment: a mapping, a list of NAME=value, or of name and value."""
    pairs: Sequence[tuple[Any, Any]] = ()
    if isinstance(stated, dict):
        pairs = list(stated.items())
    elif isinstance(stated, list):
        listed = [one.get("name") if isinstance(one, dict) else str(one).partition("=")[0] for one in stated]
        values = [one.get("value") if isinstance(one, dict) else str(one).partition("=")[2] for one in stated]
        pairs = list(zip(listed, values, strict=True))
    for name, value in pairs:
        if isinstance(name, str) and name.isidentifier() and isinstance(value, str):
            yield f"export {name}={shlex.quote(str(value))}"


def engine_of_image(text: str) -> tuple[str, str]:
    """Software and release of the first image of a serving engine in a text, "" if none is named.

    >>> engine_of_image("docker run --gpus all vllm/vllm-openai:v0.10.2 --model a/b")
    ('vllm', '0.10.2')
    >>> engine_of_image("image: lmsysorg/sglang:latest"), engine_of_image("redis/redis:v7.2.1")
    (('sglang', ''), ('', ''))
    """
    for image, tag in islice(_IMAGE.findall(text), MOST_IMAGES):
        own = next((row["software"] for row in _images() if fnmatchcase(image, row["pattern"])), "")
        if own:
            release = _RELEASE.match(tag)
            return own, release.group().removeprefix("v") if release else ""
    return "", ""


def _images() -> list[dict[str, str]]:
    return rows("interop/launch_images.csv")
