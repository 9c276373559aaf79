"""Formats of a checkpoint as columns of plans: precision ``auto`` takes the precision of each part of the model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.catalog_arrays import catalog_arrays
from xlperf.engine.join import Named, named_rows, software_words
from xlperf.equations.model.model import Model
from xlperf.equations.plan.records import PRECISION_CODES, PRECISIONS, Precision
from xlperf.equations.plan.serving_plan import PARTS, InferencePlan
from xlperf.interop.checkpoints import AUTO, SIXTEEN_BITS, CheckpointFormats, formats_of_checkpoint
from xlperf.interop.software import STACKS, stack_of_software

_WIDE = "bf16"
_STATED = ("activation_precision", "kv_precision")
_PADDED_HIDDEN, _PADDED_WIDTH = 256.0, 128.0
"""Multiples to which engines pad the hidden size and the width of a rank's part of an MXFP4 expert (vLLM 0.11
quantization/mxfp4.py Mxfp4MoEMethod.create_weights). [-]"""


class _Machine(NamedTuple):
    """Peak rates of an accelerator by precision, NaN if it states none. [FLOP/s]"""

    peaks: Array

    def computes(self, precision: str) -> bool:
        return bool(self.peaks[PRECISION_CODES[precision]] > 0.0)


class _Resolved(NamedTuple):
    """Columns of one plan: words, and the bytes and peak ratios of parts with a precision of their own."""

    words: Mapping[str, str]
    wide_attention: float
    parts: Mapping[str, float]


def with_formats(plans: Table, catalog: Catalog, named: Named) -> Table:
    """Plans whose precision is one that the equations compute with.

    ``auto``, also a blank, becomes the precision of each part of the checkpoint: that of the routed experts, or of the
    feed-forward layers of a dense model, is the precision of the plan; parts that differ from it get columns of their
    own (:data:`xlperf.equations.plan.serving_plan.PARTS`). Weights in FP8 and FP4 are multiplied in 16 bits on
    accelerators without a peak rate of their precision. ``fp8`` becomes ``fp8-block`` if the published checkpoint of
    the model has a scale for each block.
    """
    stated = plans.filled("precision")
    blocks = _blocks_of_published(plans, catalog, named, stated)
    rows = np.flatnonzero(np.isin(stated, (AUTO, "mxfp4")))
    if not len(rows):
        return _with_blocks(plans, stated, blocks) if blocks.any() or "precision" not in plans else plans
    return _resolved(_with_blocks(plans, stated, blocks), rows, catalog, named)


def computed_formats(plans: Table, catalog: Catalog) -> Table:
    """Plans as :func:`with_formats` has them; of training plans the same."""
    return with_formats(plans, catalog, named_rows(plans, catalog)) if plans.kind == "inference" else plans


def peak_names(plans: Table, catalog: Catalog) -> list[str]:
    """Column of the sheet accelerators with the peak rate of the matrix products of each plan."""
    plans = computed_formats(plans, catalog)
    stored = plans.filled("precision")
    products = plans.text("activation_precision") if plans.kind == "inference" else np.full_like(stored, "")
    return [f"peak_flop_rate_{PRECISIONS[str(name)].peak}" for name in np.where(products == "", stored, products)]


def _blocks_of_published(plans: Table, catalog: Catalog, named: Named, stated: np.ndarray) -> np.ndarray:
    """Plans in fp8 whose published checkpoint has block scales, (rows,)."""
    models = catalog.tables["models"]
    if "fp8_blocks" not in models or "precision" not in plans:
        return np.zeros(len(plans), dtype=bool)
    return np.asarray((stated == "fp8") & (models.filled("fp8_blocks")[named.models] > 0.0))


def _with_blocks(plans: Table, stated: np.ndarray, blocks: np.ndarray) -> Table:
    """Plans with precision fp8-block; an activation precision of fp8 is then blank: the precision of the weights."""
    columns = {**plans.columns, "precision": np.where(blocks, "fp8-block", stated).astype(object)}
    if "activation_precision" in plans:
        activations = plans.filled("activation_precision")
        columns["activation_precision"] = np.where(blocks & (activations == "fp8"), "", activations)
    return replace(plans, columns=columns)


def _resolved(plans: Table, rows: np.ndarray, catalog: Catalog, named: Named) -> Table:
    """Plans with the formats of their checkpoints in some rows; rows that agree in everything share one look-up."""
    stated, names = plans.filled("precision"), plans.text("model")
    given = {name: plans.text(name) for name in _STATED}
    wide = plans.number("wide_attention")
    software = software_words(plans)
    stacks = [stack_of_software(str(word)) for word in software.words]
    shapes = catalog_arrays(catalog, named.accelerators)
    peaks = shapes.peaks
    ranks = plans.number("tensor_parallel", 1.0) / plans.number("expert_parallel", 1.0)
    columns: dict[str, np.ndarray] = {"precision": stated.copy()}
    columns |= {name: values.astype(object).copy() for name, values in given.items()}
    columns["wide_attention"] = wide.copy()
    known: dict[tuple[object, ...], _Resolved] = {}
    for row in rows.tolist():
        machine, model = int(named.accelerators[row]), int(named.models[row])
        choices = [str(values[row]) for values in (stated, names, *given.values())]
        stack = stacks[software.codes[row]]
        key = machine, model, stack, bool(wide[row] > 0.0), float(ranks[row]), *choices
        if key not in known:
            formats = formats_of_checkpoint(catalog.tables["models"], model, choices[1], choices[0])
            units = _Machine(peaks[machine])
            padding = _padding(Model.of_rows(shapes.model[:, model]), ranks[row]) if formats.main == "mxfp4" else 1.0
            known[key] = _plan_columns(formats, units, stack, bool(wide[row] > 0.0), choices[2:], padding)
        found = known[key]
        for name, word in found.words.items():
            columns[name][row] = word
        columns["wide_attention"][row] = found.wide_attention
        for name, value in found.parts.items():
            if name not in columns:
                columns[name] = np.full(len(plans), np.nan)
            columns[name][row] = value
    return replace(plans, columns={**plans.columns, **columns})


def _product(stored: str, machine: _Machine, activations: str) -> str:
    """Precision in which weights are multiplied: of the activations that the checkpoint or the plan states, else of the
    weights if the machine has a peak rate of it, else 16 bits.

    MXFP4 is a format of weights alone: machines with FP4 units multiply it by FP8 activations.
    """
    precision = PRECISIONS[stored]
    if stored in SIXTEEN_BITS:
        return stored
    if activations and activations in precision.products:
        fallen_back = activations not in SIXTEEN_BITS and not machine.computes(activations) and stored != activations
        return _WIDE if fallen_back else activations
    if stored == "mxfp4":
        return "fp8" if machine.computes("fp4") else _WIDE
    if precision.peak == _WIDE or (stored != "int8" and not machine.computes(stored)):
        return _WIDE
    return stored


def _plan_columns(
    formats: CheckpointFormats, machine: _Machine, stack: str, wide: bool, given: Sequence[str], padding: float
) -> _Resolved:
    """Columns of a plan that serves a checkpoint on a machine with an engine; ``padding``: of its experts."""
    stated_activations, stated_cache = given
    activations = stated_activations or formats.activations
    main = formats.main
    product = _product(main, machine, activations)
    words = {"precision": main, "activation_precision": stated_activations or ("" if product == main else product)}
    sixteen = product if product in SIXTEEN_BITS else _WIDE
    if not stated_cache:
        keeps_sixteen = stack in STACKS and STACKS[stack].cache != ""
        words["kv_precision"] = sixteen if keeps_sixteen or not formats.cache else formats.cache
    of_parts = {name: _WIDE if name == "attention" and wide else formats.parts[name] for name in PARTS}
    narrow = main not in SIXTEEN_BITS
    wide_attention = narrow and of_parts["attention"] in SIXTEEN_BITS
    forced = formats.leaves_attention and PRECISIONS[main].served_size < 1.0
    # The columns of the plan express one precision, beside attention layers and an output head in 16 bits.
    alike = all(of_parts[name] == main for name in ("mlp", "shared")) and of_parts["head"] in SIXTEEN_BITS
    expressed = alike and (wide_attention or (of_parts["attention"] == main and not forced))
    parts: dict[str, float] = {}
    if padding > 1.0 or formats.wide_share:
        parts["main_weight_size"] = padding * _stored_size(PRECISIONS[main], formats.wide_share)
    if expressed and not formats.wide_share:
        return _Resolved(words, float(wide_attention or wide), parts)
    for name, stored in of_parts.items():
        multiplied = _product(stored, machine, activations)
        size = _stored_size(PRECISIONS[stored], formats.wide_share if name != "head" else 0.0)
        parts[f"{name}_weight_size"] = size
        parts[f"{name}_product_size"] = PRECISIONS[multiplied].input_size
        parts[f"{name}_product"] = float(PRECISION_CODES[multiplied])
    return _Resolved(words, float(wide_attention or wide), parts)


def _padding(model: Model, ranks: float) -> float:
    """Stored elements of an expert over its own: kernels of MXFP4 need whole multiples of its sizes. [-]"""
    hidden, width = float(model.expert_hidden_size), float(model.expert_ffn_hidden_size) / max(float(ranks), 1.0)
    if not hidden * width > 0.0:
        return 1.0
    sizes = (hidden, _PADDED_HIDDEN), (width, _PADDED_WIDTH)
    return math.prod(math.ceil(size / multiple) * multiple / size for size, multiple in sizes)


def _stored_size(precision: Precision, wide_share: float) -> float:
    """Mean bytes of a weight over all layers, some of which stay in 16 bits. [B]"""
    return precision.served_size + wide_share * max(precision.element_size - precision.served_size, 0.0)


_OF_PART = ("weight_size", "product_size", "product")
_OF_PARTS = ("main_weight_size", *(f"{part}_{name}" for part in PARTS for name in _OF_PART))


def has_parts(plans: Table) -> bool:
    """Whether :func:`with_formats` has given any plan sizes that its stated columns alone do not have."""
    return any(name in plans.columns for name in _OF_PARTS)


def with_parts(plan: InferencePlan, plans: Table) -> InferencePlan:
    """A plan record with the formats of parts that :func:`with_formats` has added to a table."""
    columns = {name: plans.columns[name] for name in _OF_PARTS if name in plans.columns}
    return plan.replaced(**columns) if columns else plan
