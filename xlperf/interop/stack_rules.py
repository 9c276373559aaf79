"""Rules and defaults of training and serving stacks as data: ``rules.csv`` and ``choices.csv``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from xlperf.base.resources import stack_rows

TITLES = {"megatron": "Megatron-Core", "nemo": "NeMo", "torchtitan": "torchtitan", "deepspeed": "DeepSpeed",
          "vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}  # fmt: skip
"""Stacks whose rules are known, and their names in sentences."""
_SOFTWARE = {"tensorrt-llm": "trtllm", "nemo-bridge": "nemo"}
_RELEASE = re.compile(r"-\d[\d.]*$")
NUMBERS = ("multiple_of", "multiple_or_divisor", "at_most", "at_least", "in_equal_pieces")


class Quantity(NamedTuple):
    """Columns and numbers with signs between them: the first has the sign ``+``."""

    terms: tuple[tuple[str, str], ...]


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

    ``text``: columns and numbers with signs between them.

    >>> quantity("sequence_length / context_parallel").terms
    (('+', 'sequence_length'), ('/', 'context_parallel'))
    """
    words = ["+", *text.split()]
    return Quantity(tuple(zip(words[::2], words[1::2], strict=True)))


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
    """Stack whose rules a software of plans keeps, whatever its release; "" if none are known.

    >>> stack_of_software("vllm-0.8"), stack_of_software("nemo-bridge"), stack_of_software("in-house")
    ('vllm', 'nemo', '')
    """
    name = _RELEASE.sub("", software.casefold())
    stack = _SOFTWARE.get(name, name)
    return stack if stack in TITLES else ""


def broken_line(stack: str, lines: Sequence[str]) -> str:
    """The first rule about flags that arguments of a stack break, "" if they break none.

    ``lines``: arguments, one per line: ``--recompute-granularity full``.

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


_OTHERS = {"cross_entropy": "parallel"}
"""Choices of software without a row of its own, by column: Megatron-LM's."""


@cache
def _stated(column: str) -> dict[tuple[str, str], str]:
    """Choices of a column by software and the word of its column ``compiled``."""
    table = stack_rows("choices")
    return {(row["software"], row["compiled"]): row["value"] for row in table if row["column"] == column}


def software_default(column: str, software: str, compiled: bool = False) -> str:
    """Choice that software takes in a column that a plan leaves blank.

    ``compiled``: whether the plan states that its kernels are compiled.

    >>> [software_default("cross_entropy", *how) for how in (("nemo",), ("torchtitan",), ("torchtitan", True))]
    ['fused', 'plain', 'fused']
    """
    stated, name = _stated(column), software.strip().casefold()
    plain = stated.get((name, ""), _OTHERS[column])
    return stated.get((name, "yes"), plain) if compiled else plain
