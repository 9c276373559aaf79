"""What a training stack or serving engine was measured in, and which of the conditions of a plan it was not.

Four conditions of a plan can be new to its software although its model or its accelerator is known: the generation of
the accelerators, the format that its products and weights are in, the layers of its model (dense, with experts, linear,
sparse) and, in serving, how requests are batched. One that other software was measured in is a quarter of software that
nobody measured at all, which lacks all four (:data:`LACKED`); one that nobody measured counts like a generation that
nobody measured (:data:`UNKNOWN`). What leaving them out of the fit costs stands in ``workbooks/accuracy.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table, Words

LACKED = 0.5  # distance of each condition that others were measured in: four of them are software never measured [-]
UNKNOWN = 2.0  # distance of each condition that nobody measured; that of a generation is in the machine's part [-]
# Names of precisions whose products and conversions are much alike
_FORMATS = {
    "fp16": "16-bit", "bf16": "16-bit", "fp8-current": "fp8", "fp8-block": "fp8", "fp8-tensor": "fp8", "mxfp8": "fp8",
}  # fmt: skip
_LINEAR = ("linear", "mamba")
_LOADS = {"static": "in static batches", "continuous": "with continuous batching", "disaggregated": "in separate pools"}
_WORDS = {"generation": "on {}", "format": "in {}", "layers": "for models {}", "load": "{}"}


class Condition(NamedTuple):
    """Conditions of a plan or of published runs: see the module; ``load`` is blank in training."""

    generation: str
    format: str
    load: str
    layers: str


def layers_of(shape: str) -> str:
    """Kind of layers of a shape as :func:`xlperf.engine.trust.model_traits` names it.

    >>> layers_of("4096/14336/32/nan 8 heads"), layers_of("4096/1024/32/512 2 heads 3 linear : 1 full")
    ('dense', 'linear with experts')
    """
    size, _, attention = shape.partition(" ")
    kinds = ["linear"] if any(word in attention.casefold() for word in _LINEAR) else []
    kinds += ["sparse"] if size.startswith("sparse/") else []
    mixture = not size.endswith("/nan")
    return " ".join([*kinds, "with experts"]) if mixture else " ".join([*kinds, "dense"])


@cache
def _format_codes(kind: str) -> tuple[dict[str, int], tuple[str, ...]]:
    """Code of the format of each precision of a kind of plan, and the formats."""
    column = table_schema(kind).by_name["precision"]
    formats = [_FORMATS.get(word, word) for word in column.choices]
    order = tuple(dict.fromkeys(formats))
    codes = {word: order.index(name) for word, name in zip(column.choices, formats, strict=True)}
    return {**codes, "": codes[str(column.default)]}, order


def format_and_load(plans: Table) -> Words:
    """Format of the layers of each plan and, in serving, how requests are batched, as one word: ``fp8/continuous``."""
    codes, formats = _format_codes(plans.kind)
    unknown = len(formats)
    if "precision" in plans:
        format_code = np.array([codes.get(str(word), unknown) for word in plans["precision"].tolist()], dtype=np.int64)
    else:
        format_code = np.full(len(plans), codes[""], dtype=np.int64)
    if plans.kind == "training":
        return Words(format_code, [f"{name}/" for name in (*formats, "")])
    modes = {name: code for code, name in enumerate(_LOADS)}
    load = np.array([modes.get(str(mode), len(_LOADS)) for mode in plans.filled("mode").tolist()], dtype=np.int64)
    words = [f"{name}/{mode}" for name in (*formats, "") for mode in (*_LOADS, "")]
    return Words(format_code * (len(_LOADS) + 1) + load, words)


@lru_cache(maxsize=65_536)
def lacked(known: Sequence[Condition], asked: Condition) -> tuple[str, ...]:
    """Names of the conditions of a plan that none of some runs were in; blank ones are not asked for.

    ``known``: conditions of the runs. ``asked``: of the plan.
    """
    pairs = zip(Condition._fields, asked, strict=True)
    return tuple(name for name, value in pairs if value and all(getattr(one, name) != value for one in known))


def in_words(asked: Condition, names: Sequence[str]) -> str:
    """Some conditions of a plan in words.

    >>> in_words(Condition("hopper", "fp8", "static", "dense"), ["generation", "load"])
    'on hopper nor in static batches'
    """
    values = asked._asdict()
    return " nor ".join(_WORDS[name].format(_LOADS.get(values[name], values[name])) for name in names)
