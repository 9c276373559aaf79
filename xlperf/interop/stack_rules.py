"""Training and serving stacks as data: ``stack.csv`` and ``rules.csv`` of each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from xlperf.base.resources import stack_rows


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
_RELEASE = re.compile(r"-\d[\d.]*$")
NUMBERS = ("multiple_of", "multiple_or_divisor", "at_most", "at_least", "in_equal_pieces")


Quantity = tuple[tuple[str, str], ...]
"""Columns and numbers with the signs before them: the first has the sign ``+``."""


class Condition(NamedTuple):
    """A comparison that restricts a rule: ``sign`` is ``= != > <`` or ``multiple_of``; ``other`` a quantity or word."""

    subject: Quantity
    sign: str
    other: str


class StackRule(NamedTuple):
    """A rule of a stack.

    ``says``: the sentence about a plan that breaks it, with columns in braces. ``source``: file and check of the stack.
    """

    stack: str
    rule: str
    subject: Quantity
    operand: str
    when: tuple[Condition, ...]
    says: str
    source: str


@cache
def quantity(text: str) -> Quantity:
    """A quantity from its words.

    >>> quantity("sequence_length / context_parallel")
    (('+', 'sequence_length'), ('/', 'context_parallel'))
    """
    words = ["+", *text.split()]
    return tuple(zip(words[::2], words[1::2], strict=True))


def _condition(text: str) -> Condition:
    subject, sign, other = re.split(r" (multiple_of|!=|[=<>]) ", text, maxsplit=1)
    return Condition(quantity(subject), sign, other)


@cache
def stack_rules(kind: str, stack: str) -> tuple[StackRule, ...]:
    """Rules of a stack for plans of a kind, in the order of their messages."""
    results = []
    for row in stack_rows("rules"):
        if row["kind"] == kind and stack in row["stacks"].split():
            when = tuple(map(_condition, row["when"].split(" and "))) if row["when"] else ()
            subject = quantity(row["subject"])
            results.append(StackRule(stack, row["rule"], subject, row["operand"], when, row["says"], row["source"]))
    return tuple(results)


def stack_of_software(software: str) -> str:
    """Stack whose rules a software of plans follows, whatever its release; "" if none are known.

    >>> stack_of_software("vllm-0.8"), stack_of_software("nemo-bridge"), stack_of_software("in-house")
    ('vllm', 'nemo', '')
    """
    return stack_named(_RELEASE.sub("", software.casefold()))


def stack_named(software: str) -> str:
    """Stack that has or starts a software of exactly this name; "" if there is none."""
    return software if software in STACKS else _OF_SOFTWARE.get(software, "")


def searched_engines() -> list[str]:
    """Serving engines that *Serve* compares, in the order of its drop-down.

    >>> searched_engines()
    ['sglang', 'vllm', 'tensorrt-llm']
    """
    return list(dict.fromkeys(row["engine"] for row in stack_rows("engine") if row["searched"] == "yes"))


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
