"""Formats of published checkpoints: precision of each part, by columns of the sheet models and by names of variants.

A row of ``models`` states the formats of the checkpoint of its name. ``checkpoint_formats.csv`` has the formats of
variants by words of their names (``-FP8``, ``-AWQ``, ``quantized.w8a8``) and of the values of ``--quantization``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from xlperf.base.resources import rows
from xlperf.catalog.table import Table, copied_name

AUTO = "auto"  # word of a precision that is the checkpoint's own
WIDE = "bf16"
SIXTEEN_BITS = ("fp32", "fp16", "bf16")
_PARTS = {"attention": "attention_precision", "mlp": "mlp_precision", "shared": "shared_expert_precision",
          "head": "head_precision"}  # fmt: skip
FORMAT_COLUMNS = ("expert_precision", *_PARTS.values(), "checkpoint_activations", "checkpoint_kv_precision")
"""Columns of the sheet models with precisions of the published checkpoint."""
_LONGEST = 200


def bits_of(precision: str) -> str:
    """Format of weights, whatever their scales: 16 bits, FP8, FP4, INT8 or INT4."""
    if precision in SIXTEEN_BITS:
        return "16"
    return "fp4" if precision.endswith("fp4") else precision.partition("-")[0]


class CheckpointFormats(NamedTuple):
    """Precision of each part of a checkpoint.

    ``main``: of routed experts, or of the feed-forward layers of a dense model. ``parts``: of attention, dense
    feed-forward layers (``mlp``), shared experts and embeddings with the output head. ``activations``, ``cache``: as
    the checkpoint states them, "" if it does not. ``wide_share``: share of the layers that stay in 16 bits.
    ``leaves_attention``: whether 4-bit plans keep the attention layers of this model in 16 bits.
    """

    main: str
    parts: Mapping[str, str]
    activations: str
    cache: str
    wide_share: float
    leaves_attention: bool
    source: str

    @property
    def is_quantised(self) -> bool:
        """Whether any part has fewer than 16 bits."""
        return any(each not in SIXTEEN_BITS for each in (self.main, *self.parts.values()))


class Variant(NamedTuple):
    """Formats of checkpoints of a kind, a row of ``checkpoint_formats.csv``.

    ``words``: pattern of words of their names, with an owner if it has a stroke. ``methods``: values of
    ``--quantization``. ``layers``: precision of the linear layers of the decoder. ``attention``: that of its attention
    layers, if it differs; ``others``: that of shared experts and dense layers beside routed experts. ``wide_layers``:
    layers in 16 bits. ``activations``, ``kv_precision``: as the checkpoint states them.
    """

    words: str
    methods: str
    layers: str
    attention: str
    others: str
    wide_layers: str
    activations: str
    kv_precision: str
    source: str

    def names(self, checkpoint: str) -> bool:
        """Whether the name of a checkpoint says this."""
        text = checkpoint if "/" in self.words else checkpoint.rpartition("/")[2]
        pattern = rf"(^|[-_. ])({self.words})([-_. ]|$)"
        return bool(self.words and re.search(pattern, text, re.IGNORECASE))


_VARIANTS = tuple(Variant(**row) for row in rows("catalog/checkpoint_formats.csv"))


@lru_cache(maxsize=4096)
def variant_of_name(name: str) -> Variant | None:
    """Formats that the name of a checkpoint states, None if it states none.

    >>> variant_of_name("Qwen2.5-72B-Instruct-AWQ").layers, variant_of_name("Llama-3.1-70B-quantized.w8a8").layers
    ('int4-128', 'int8')
    >>> variant_of_name("openai/gpt-oss-120b") is None
    True
    """
    return next((one for one in _VARIANTS if one.names(name[:_LONGEST].rstrip("/"))), None)


@lru_cache(maxsize=256)
def variant_of_method(method: str) -> Variant | None:
    """Formats of a value of ``--quantization``, None if it states none."""
    return next((each for each in _VARIANTS if method.casefold() in each.methods.split()), None)


def states_format(names: np.ndarray) -> np.ndarray:
    """Names of models that state a format, which their row of the catalog may not have, (rows,)."""
    return np.array([variant_of_name(str(name)) is not None for name in names.tolist()], dtype=bool)


def formats_of_checkpoint(models: Table, row: int, name: str, stated: str = AUTO) -> CheckpointFormats:
    """Formats of a checkpoint by its name, which may say more than that of its row of the sheet models.

    ``stated``: precision of a plan beside ``auto``, whose products depend on the machine: that of all linear layers.
    """
    name = copied_name(name)
    text = {column: str(models.text(column)[row]) if column in models else "" for column in FORMAT_COLUMNS}
    flag = {name: bool(models.filled(name)[row] > 0.0) for name in ("fp8_blocks", "wide_attention") if name in models}
    has_experts = models.number("num_experts")[row] > 0.0
    leaves = bool(has_experts and flag.get("wide_attention", True))
    own = copied_name(str(models.text("model")[row]))
    if stated != AUTO:
        return _of_variant(Variant("", "", stated, "", "", "", "", "", ""), models, row, flag)
    variant = variant_of_name(name)
    known = any(text[column] for column in FORMAT_COLUMNS)
    if variant is None and not known:
        variant = variant_of_name(own)
    stored = text["expert_precision"] or text["mlp_precision"]
    is_native = known and variant is not None and stored.partition("-")[0] == variant.layers.partition("-")[0]
    if variant is not None and not is_native:  # the row says in more detail what the words of its name say
        return _of_variant(variant, models, row, flag)
    parts = {part: text[column] or WIDE for part, column in _PARTS.items()}
    main = (text["expert_precision"] if has_experts else text["mlp_precision"]) or WIDE
    # A part that the model lacks does not tell it apart from a checkpoint of one precision.
    dense = models.number("first_dense_layers", 0.0)[row] > 0.0 or models.number("moe_layer_step", 1.0)[row] > 1.0
    if not has_experts or not dense:
        parts["mlp"] = main
    if not models.number("num_shared_experts", 0.0)[row] > 0.0:
        parts["shared"] = main
    wide = float(models.number("wide_layers", 0.0)[row]) / float(models.number("num_layers")[row])
    source = str(models.text("checkpoint_source")[row])
    cache = text["checkpoint_kv_precision"]
    return CheckpointFormats(main, parts, text["checkpoint_activations"], cache, wide, leaves, source)


def _of_variant(variant: Variant, models: Table, row: int, flag: Mapping[str, bool]) -> CheckpointFormats:
    """Formats of a variant of the model of a row; ``flag``: its flags."""
    stored = variant.layers
    if stored == "fp8":
        stored = "fp8-block" if flag.get("fp8_blocks") else "fp8-tensor"
    leaves = bool(models.number("num_experts")[row] > 0.0 and flag.get("wide_attention", True))
    attention = variant.attention or (WIDE if leaves and stored.endswith("fp4") else stored)
    others = variant.others or stored
    if not models.number("num_shared_experts", 0.0)[row] > 0.0 and not models.number("first_dense_layers")[row] > 0.0:
        others = stored
    parts = {"attention": attention, "mlp": others, "shared": others, "head": WIDE}
    cache = "" if stored == "fp8-block" else variant.kv_precision
    wide = float(variant.wide_layers or 0.0) / float(models.number("num_layers")[row])
    return CheckpointFormats(stored, parts, variant.activations, cache, wide, leaves, variant.source)
