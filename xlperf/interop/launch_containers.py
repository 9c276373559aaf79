"""Containers of launch files: what manifests of Kubernetes and files of Docker Compose run, and releases of images."""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, NamedTuple

from xlperf.base.resources import rows
from xlperf.interop.launch_yaml import documents

MOST_IMAGES = 1_000
"""Words of a text that may name an image, at the most. [-]"""
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
