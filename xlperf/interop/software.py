"""Stacks and engines as data: ``stack.csv`` and ``rules.csv`` of each, and defaults by release.

A line of ``software_defaults.csv`` of kind ``training`` or ``inference`` gives the meaning of blank columns of a plan;
a line of kind ``memory`` gives constants of the family serving_memory; a line of kind ``launch`` gives the effect of a
command without a flag where a blank column means something else. ``device_defaults.csv`` has the lines that go by the
memory of the accelerator.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from xlperf.base import resources
from xlperf.base.resources import stack_rows

FILE, DEVICE_FILE = "software_defaults.csv", "device_defaults.csv"
STATED = "*"
"""Value of a condition on a column that is not blank."""
_RELEASE = re.compile(
    r"v?(?P<numbers>\d+(?:\.\d+)*)"
    r"(?:[-.+]?(?P<before>alpha|beta|a|b|rc|dev)[\w.+-]*|(?P<after>[-.]?post)\d*[\w.+-]*|[-+]\w[\w.+-]*)?"
)
_NAMED = re.compile(r"-(\d[\d.]*)$")

Release = tuple[int, ...]


class Default(NamedTuple):
    """Settings of a software where all conditions hold.

    ``conditions``: words of a column of the plan, of ``layers`` (dense or mixture) or of the accelerator's
    ``generation``, or ``device_gib``, its memory ``from..below``; no words for a blank column, :data:`STATED` for any
    value.
    """

    conditions: Mapping[str, tuple[str, ...]]
    settings: Mapping[str, str]
    reference: str


def release_of(text: str) -> Release:
    """Numbers of a release in order: candidates are before it, corrections after it. ValueError for other words.

    >>> release_of("v0.5.10"), release_of("1.2.0rc6.post2"), release_of("0.4.6.post1")
    ((0, 5, 10, 0), (1, 2, 0, -1), (0, 4, 6, 1))
    """
    match = _RELEASE.fullmatch(text.strip().casefold())
    if match is None:
        raise ValueError(text)
    return *map(int, match["numbers"].split(".")), -1 if match["before"] else 1 if match["after"] else 0


def pairs(words: str) -> dict[str, str]:
    """Names and values of ``name=value; name=value``."""
    parts = (part.partition("=") for part in filter(None, map(str.strip, words.split(";"))))
    return {name.strip(): value.strip() for name, _, value in parts}


@cache
def _lines(kind: str) -> tuple[tuple[tuple[str, ...], Release, Release, Default], ...]:
    lines = []
    for row in (*resources.rows(f"interop/{DEVICE_FILE}"), *resources.rows(f"interop/{FILE}")):
        if row["kind"] == kind:
            conditions = {name: tuple(value.split()) for name, value in pairs(row["condition"]).items()}
            since, until = (release_of(row[name]) if row[name] else () for name in ("since", "until"))
            default = Default(conditions, pairs(row["settings"]), row["reference"])
            lines.append((tuple(row["software"].split("|")), since, until, default))
    return tuple(lines)


@lru_cache(maxsize=4096)
def calibrated_release(kind: str, software: str, release: str) -> str:
    """Name of the releases that a release of a training stack or an engine was measured with. The newest ones have the
    name of the line without an end, else the name of the software; a blank release means them, and so does one that
    cannot be compared.

    >>> [calibrated_release("inference", "vllm", release) for release in ("0.5.4", "v0.6.3.post1", "0.12.0", "")]
    ['vllm-0', 'vllm-0.6', 'vllm-0.8', 'vllm']
    >>> [calibrated_release("training", "nemo", release) for release in ("22.09", "25.04.01", "25.09", "")]
    ['nemo-2022', 'nemo', 'nemo-bridge', 'nemo-bridge']
    """
    try:
        at = release_of(release) if release else None
    except ValueError:
        at = None
    name = software.strip().casefold()
    known = (row for row in resources.stack_rows("releases") if (row["kind"], row["software"]) == (kind, name))
    ended = (row["name"] for row in known if not row["until"] or (at is not None and at < release_of(row["until"])))
    return next(ended, software)


@lru_cache(maxsize=256)
def measured_before(kind: str, software: str) -> tuple[tuple[str, str], ...]:
    """Releases at which the measured speed of a software changed, and its name before each, the latest first; none
    more than 18 months older than the last such release of any software, which few still run.

    >>> measured_before("inference", "sglang")
    (('0.5.5', 'sglang-0.5'), ('0.4.5.post1', 'sglang-0.4'))
    >>> measured_before("inference", "tensorrt-llm")
    (('0.18', 'tensorrt-llm-0.17'),)
    """
    name, known = software.strip().casefold(), resources.stack_rows("releases")
    first = max(_months(row["date"]) for row in known) - _RECENT
    lines = (row for row in known if (row["kind"], row["software"]) == (kind, name) and row["until"])
    return tuple((row["until"], row["name"]) for row in lines if _months(row["date"]) >= first)[::-1]


_RECENT = 18


def _months(date: str) -> int:
    """Months of a date such as 2025-04; 0 for a blank."""
    year, _, month = date.partition("-")
    return 12 * int(year) + int(month) if date else 0


@lru_cache(maxsize=4096)
def software_defaults(kind: str, software: str, release: str = "") -> tuple[Default, ...]:
    """Defaults of a software at a release, in their order: the first that gives a setting counts. A blank release is
    the one in the software's name, else the newest that is no candidate. ValueError for a release that cannot be
    compared.

    >>> [default.settings for default in software_defaults("inference", "sglang", "0.5.9")][4:6]
    [{'graph_tokens': '0'}, {'state_slots': '3'}]
    >>> [default.settings["tensor_overlap"] for default in software_defaults("training", "Megatron")]
    ['gradients']
    >>> [len(software_defaults("training", "torchtitan", release)) for release in ("", "0.2.2", "0.3.0")]
    [9, 9, 10]
    """
    name = software.strip().casefold()
    named = _NAMED.search(name)
    at = release_of(release or (named[1] if named else "")) if release or named else None
    return tuple(
        default
        for patterns, since, until, default in _lines(kind)
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        and (at >= since if at is not None else since[-1:] != (-1,))
        and (not until or (at is not None and at < until))
    )


@lru_cache(maxsize=256)
def releases_with_changes(kind: str, software: str) -> tuple[str, ...]:
    """Releases from which defaults of a software no longer hold; none if its name is of a release.

    >>> releases_with_changes("memory", "vllm"), releases_with_changes("memory", "vllm-0.6")
    (('0.17', '0.8', '0.25', '0.26'), ())
    """
    name = software.strip().casefold()
    matching = (
        ".".join(map(str, until[:-1]))
        for patterns, _, until, _ in _lines(kind)
        if until and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    )
    return () if _NAMED.search(name) else tuple(dict.fromkeys(matching))


class Stack(NamedTuple):
    """A stack that plans are meant for, a row of ``stack.csv``; blank where it does not apply.

    ``title``: name in sentences; of an engine that *Serve* names also ``label``, for a column. ``software``: of its
    plans; ``also``: other software that it starts. ``versions``: beginnings of the versions whose flags are written
    together, separated by strokes. ``command``: command whose first argument is the model. ``server``, ``client``:
    beginnings of a start and of its benchmark, whose flags have ``client_version``. ``unnamed``: remark on a model that
    the stack has no name of. ``request_limit``: requests that its limit counts, of ``all`` replicas of the attention
    layers or of a ``copy``. ``cache``: format of the KV cache without a flag, whatever the weights.
    """

    stack: str
    title: str
    label: str
    software: str
    also: str
    versions: str
    command: str
    server: str
    client: str
    client_version: str
    unnamed: str
    request_limit: str
    cache: str


STACKS = {row["stack"]: Stack(**row) for row in stack_rows("stack")}
_OF_SOFTWARE = {name: one.stack for one in STACKS.values() for name in (one.software, *one.also.split())}
_RELEASE_SUFFIX = re.compile(r"-\d[\d.]*$")
NUMBERS = ("multiple_of", "multiple_or_divisor", "at_most", "at_least", "in_equal_pieces")


Quantity = tuple[tuple[str, str], ...]
"""Columns and numbers with the signs before them: the first has the sign ``+``."""


class Condition(NamedTuple):
    """A comparison that restricts a rule: ``sign`` is ``= != > <`` or ``multiple_of``; ``other`` a quantity or word."""

    subject: Quantity
    sign: str
    other: str


class StackRule(NamedTuple):
    """A rule of a stack; ``says``: the sentence about a plan that breaks it, with columns in braces."""

    stack: str
    rule: str
    subject: Quantity
    operand: str
    when: tuple[Condition, ...]
    says: str
    source: str


@cache
def quantity(text: str) -> Quantity:
    """A quantity from its words."""
    words = ["+", *text.split()]
    return tuple(zip(words[::2], words[1::2], strict=True))


@cache
def stack_rules(kind: str, stack: str) -> tuple[StackRule, ...]:
    """Rules of a stack for plans of a kind, in the order of their messages."""
    results = []
    for row in stack_rows("rules"):
        if row["kind"] == kind and stack in row["stacks"].split():
            parts = [
                re.split(r" (multiple_of|!=|[=<>]) ", part, maxsplit=1) for part in row["when"].split(" and ") if part
            ]
            when = tuple(Condition(quantity(subject), sign, other) for subject, sign, other in parts)
            subject = quantity(row["subject"])
            results.append(StackRule(stack, row["rule"], subject, row["operand"], when, row["says"], row["source"]))
    return tuple(results)


def stack_of_software(software: str) -> str:
    """Stack whose rules a software of plans follows, whatever its release; "" if none are known.

    >>> stack_of_software("vllm-0.8"), stack_of_software("nemo-bridge"), stack_of_software("in-house")
    ('vllm', 'nemo', '')
    """
    return stack_named(_RELEASE_SUFFIX.sub("", software.casefold()))


def stack_named(software: str) -> str:
    """Stack that has or starts a software of exactly this name; "" if there is none."""
    return software if software in STACKS else _OF_SOFTWARE.get(software, "")


def searched_engines() -> list[str]:
    """Serving engines that *Serve* compares, in the order of its drop-down."""
    return list(dict.fromkeys(row["engine"] for row in stack_rows("engine") if row["searched"] == "yes"))


_OWN = "nvidia"  # vendor whose engines run on an accelerator without one: a custom chip


@lru_cache(maxsize=256)
def engines_on(vendor: str, generation: str) -> tuple[str, ...]:
    """Engines, of any release, that run on a generation; all of the vendor if no engine names the generation. A custom
    chip without a vendor has NVIDIA's.

    >>> [name for name in engines_on("nvidia", "blackwell") if name.startswith("sglang")]
    ['sglang', 'sglang-0.5']
    """
    of_vendor = [row for row in stack_rows("engine") if row["vendor"] == (vendor.casefold() or _OWN)]
    runs = [row for row in of_vendor if not row["generations"] or generation.casefold() in row["generations"].split()]
    named = {word for row in of_vendor for word in row["generations"].split()}
    return tuple(dict.fromkeys(row["engine"] for row in (runs if generation.casefold() in named else of_vendor)))


def broken_line(stack: str, lines: Sequence[str]) -> str:
    """The first rule about flags that arguments of a stack break, "" if they break none.

    >>> broken_line("torchtitan", ["--training.seq_len 4096", "--parallelism.enable_async_tensor_parallel"])
    'asynchronous tensor parallelism needs --compile.enable'
    """

    def stated(flag: str) -> bool:
        return any(line == flag or line.startswith((f"{flag} ", f"{flag}=")) for line in lines)

    for row in stack_rows("rules"):
        if row["kind"] == "launch" and stack in row["stacks"].split():
            first, other = stated(row["subject"]), stated(row["operand"])
            broken = {"needs": not first, "requires": first and not other, "excludes": first and other}
            if broken[row["rule"]]:
                return row["says"]
    return ""
