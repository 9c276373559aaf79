"""Conditions in which software was measured, and the conditions of a plan that it lacks.

A plan has four: generation of the accelerators, format of GEMMs and weights, kind of the model's layers (dense, with
experts, linear, sparse), and in serving the batching of requests. A condition in which only other software was measured
counts a quarter of unmeasured software, which lacks all four (:data:`LACKED`); a condition without any measurement
counts as an unmeasured generation (:data:`UNKNOWN`). ``workbooks/accuracy.md`` has the errors with each left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table, Words

LACKED = 0.5  # distance per condition in which only other software was measured; four equal unmeasured software [-]
UNKNOWN = 2.0  # distance per condition without any measurement, generations excluded [-]
# Precisions with similar GEMMs and conversions
_FORMATS = {
    "fp16": "16-bit", "bf16": "16-bit", "fp8-current": "fp8", "fp8-block": "fp8", "fp8-tensor": "fp8", "mxfp8": "fp8",
}  # fmt: skip
_LINEAR = ("linear", "mamba")
_LOADS = {"static": "in static batches", "continuous": "with continuous batching", "disaggregated": "in separate pools"}
_WORDS = {"generation": "on {}", "format": "in {}", "layers": "for models {}", "load": "{}"}


class Condition(NamedTuple):
    """Conditions of a plan or of published runs; ``load`` is blank in training."""

    generation: str
    format: str
    load: str
    layers: str


def layers_of(shape: str) -> str:
    """Kind of layers of a shape of :func:`xlperf.engine.trust.model_traits`.

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
    """Code of the format of each precision, and the formats."""
    column = table_schema(kind).by_name["precision"]
    formats = [_FORMATS.get(word, word) for word in column.choices]
    order = tuple(dict.fromkeys(formats))
    codes = {word: order.index(name) for word, name in zip(column.choices, formats, strict=True)}
    return {**codes, "": codes[str(column.default)]}, order


def format_and_load(plans: Table) -> Words:
    """Format of each plan's layers and, in serving, its batching as one word: ``fp8/continuous``."""
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
    """Conditions of a plan, unless blank, in which none of the ``known`` runs were."""
    pairs = zip(Condition._fields, asked, strict=True)
    return tuple(name for name, value in pairs if value and all(getattr(run, name) != value for run in known))


def in_words(asked: Condition, names: Sequence[str]) -> str:
    """Conditions of a plan in words.

    >>> in_words(Condition("hopper", "fp8", "static", "dense"), ["generation", "load"])
    'on hopper nor in static batches'
    """
    values = asked._asdict()
    return " nor ".join(_WORDS[name].format(_LOADS.get(values[name], values[name])) for name in names)
