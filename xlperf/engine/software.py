"""Blank columns of plans filled with what their software does by default at its release."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from xlperf.base.arrays import Array, array, distinct_rows, is_repeated, mapped, repeated, some
from xlperf.base.errors import Fault, InputError
from xlperf.base.units import UNITS
from xlperf.catalog.calibration import declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.cells import shown
from xlperf.catalog.schema import Column, column, unit_of
from xlperf.catalog.table import Table, Words
from xlperf.engine.catalog_arrays import catalog_arrays
from xlperf.engine.join import Named, choice_codes, named_rows, software_words
from xlperf.equations.model.model import Model
from xlperf.equations.plan.records import (
    PRECISION_CODES,
    PRECISIONS,
    PlanColumns,
    Precision,
    Remark,
    Rule,
    broken_rules,
)
from xlperf.equations.plan.serving_plan import PARTS, InferencePlan
from xlperf.interop.checkpoints import AUTO, SIXTEEN_BITS, CheckpointFormats, formats_of_checkpoint
from xlperf.interop.software import (
    NUMBERS,
    STACKS,
    STATED,
    Condition,
    Default,
    Quantity,
    StackRule,
    quantity,
    software_defaults,
    stack_of_software,
)
from xlperf.interop.software import stack_rules as rules_of_stack

_WIDE = "bf16"
_STATED = ("activation_precision", "kv_precision")
_MOST_RESOLUTIONS = 4096  # cached formats of a catalog [-]
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


_resolutions: WeakKeyDictionary[Catalog, dict[tuple[object, ...], _Resolved]] = WeakKeyDictionary()


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
    rows = np.flatnonzero(_any_of(stated, (AUTO, "mxfp4")))
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
    choices = {name: plans.text(name) for name in ("precision", "model", *_STATED)}
    choices["precision"] = plans.filled("precision")
    wide, software = plans.number("wide_attention"), software_words(plans)
    ranks = plans.number("tensor_parallel", 1.0) / plans.number("expert_parallel", 1.0)
    keys = named.accelerators, named.models, software.codes, wide > 0.0, ranks, *choices.values()
    first, which = distinct_rows(*(values[rows] for values in keys))
    known, resolved = _resolutions.setdefault(catalog, {}), []
    for key in zip(*(values[rows[first]].tolist() for values in keys), strict=True):
        machine, model, code, is_wide, share, *words = key
        stack = stack_of_software(str(software.words[code]))
        key = machine, model, stack, is_wide, share, *words
        if key not in known:
            if len(known) >= _MOST_RESOLUTIONS:
                known.clear()
            shapes, (stated, name, *given) = catalog_arrays(catalog, named.accelerators), map(str, words)
            formats = formats_of_checkpoint(catalog.tables["models"], model, name, stated)
            padding = _padding(Model.of_rows(shapes.model[:, model]), share) if formats.main == "mxfp4" else 1.0
            known[key] = _plan_columns(formats, _Machine(shapes.peaks[machine]), stack, is_wide, given, padding)
        resolved.append(known[key])
    columns: dict[str, np.ndarray] = {}
    for name in ("precision", *_STATED):
        own = choices[name][rows[first]].tolist()
        words = [each.words.get(name, word) for each, word in zip(resolved, own, strict=True)]
        columns[name] = choices[name].astype(object)
        columns[name][rows] = np.array(words, dtype=object)[which]
    columns["wide_attention"] = wide.copy()
    columns["wide_attention"][rows] = np.array([each.wide_attention for each in resolved])[which]
    for name in dict.fromkeys(name for each in resolved for name in each.parts):
        columns[name] = np.full(len(plans), np.nan)
        columns[name][rows] = np.array([each.parts.get(name, np.nan) for each in resolved])[which]
    return replace(plans, columns={**plans.columns, **columns})


def _product(stored: str, machine: _Machine, activations: str) -> str:
    """Precision in which weights are multiplied: of the activations that the checkpoint or the plan states, else of the
    weights if the machine has a peak rate of it, else 16 bits. MXFP4 is a format of weights alone: machines with FP4
    units multiply it by FP8 activations.
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


Mask = np.ndarray
_Plan = Any
_SIGNS: dict[str, Callable[[Array, Array], Mask]] = {
    "=": np.equal, "!=": np.not_equal, ">": np.greater, "<": np.less,
    "multiple_of": lambda value, operand: _whole(value / operand),
    "multiple_or_divisor": lambda value, operand: _whole(value / operand) | _whole(operand / value),
    "at_most": np.less_equal, "at_least": np.greater_equal,
    "in_equal_pieces": lambda value, pieces: np.ceil(value / np.ceil(value / pieces)) == pieces,
}  # fmt: skip
_OPERATORS: dict[str, Callable[[Array, Array], Array]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide,
}  # fmt: skip


def _whole(values: Array) -> Mask:
    return np.asarray(values == np.floor(values))


@cache
def _read(name: str) -> Callable[[_Plan, Model], Any]:
    """Function that reads a number, a column of plans, or one of their models."""
    if name.replace(".", "", 1).isdigit():
        number = np.asarray(float(name))
        return lambda plan, model: number
    of_model = attrgetter(name.removeprefix("model."))
    return (lambda plan, model: of_model(model)) if name.startswith("model.") else lambda plan, model: of_model(plan)


def _evaluated(subject: Quantity) -> Callable[[_Plan, Model], Array]:
    """Function that evaluates a quantity of plans from left to right, (rows,)."""
    (_, first), *others = [(_OPERATORS[sign], _read(name)) for sign, name in subject]

    def evaluated(plan: _Plan, model: Model) -> Array:
        result = array(first(plan, model))
        for operate, read in others:
            result = operate(result, array(read(plan, model)))
        return result

    return evaluated


def _codes(kind: str, name: str, words: str) -> list[float]:
    codes = choice_codes(kind, name)
    return [codes[word] for word in words.split()]


@cache
def _operand(kind: str, condition: Condition) -> Quantity:
    """Right side of a condition; a word of a choice as its code."""
    name = condition.subject[0][1]
    chosen = condition.sign in ("=", "!=") and not name.startswith("model.") and column(kind, name).kind == "choice"
    return (("+", str(_codes(kind, name, condition.other)[0])),) if chosen else quantity(condition.other)


@cache
def _met(kind: str, condition: Condition) -> Callable[[_Plan, Model], Mask]:
    """Function that tells which plans meet a condition, which several rules may share."""
    subject, operand = _evaluated(condition.subject), _evaluated(_operand(kind, condition))
    compare = _SIGNS[condition.sign]

    def met(plan: _Plan, model: Model) -> Mask:
        known: dict[object, Mask] = plan.conditions
        if met not in known:
            known[met] = compare(subject(plan, model), operand(plan, model))
        return known[met]

    return met


def _has_words(name: str, words: str, plan: _Plan) -> Mask:
    """Whether a text column has any of some words."""
    wanted, stated = frozenset(words.split()), plan.words(name)
    texts = stated[:1].tolist() if is_repeated(stated) else set(stated.tolist())
    known = {text: bool(wanted & frozenset(str(text).split())) for text in texts}
    return mapped(known.__getitem__, stated, np.bool_)


def _broken(kind: str, rule: StackRule, whole: bool) -> Callable[[_Plan, Model], Mask]:
    """Function that tells which plans break a rule; ``whole`` reads every column even if conditions exclude all."""
    conditions, refused = [_met(kind, condition) for condition in rule.when], _refuses(kind, rule)

    def broken(plan: _Plan, model: Model) -> Mask:
        concerned: Mask = np.asarray(True)
        for met in conditions:
            concerned = concerned & met(plan, model)
            if not (whole or some(concerned)):
                return concerned
        return np.asarray(concerned & refused(plan, model))

    return broken


def _refuses(kind: str, rule: StackRule) -> Callable[[_Plan, Model], Mask]:
    """Function that tells which plans a rule refuses if its conditions hold."""
    subject, name = _evaluated(rule.subject), rule.subject[0][1]
    if rule.rule == "blank":
        return lambda plan, model: np.isfinite(subject(plan, model))
    if rule.rule in NUMBERS:
        operand_of, compare = _evaluated(quantity(rule.operand)), _SIGNS[rule.rule]

        def unequal(plan: _Plan, model: Model) -> Mask:
            value, operand = subject(plan, model), operand_of(plan, model)
            return np.asarray(np.isfinite(value) & np.isfinite(operand) & ~compare(value, operand))

        return unequal
    declared, refused = column(kind, name), rule.rule == "none_of"
    if declared.kind == "text":
        return lambda plan, _: (plan.words(name) != "") & (_has_words(name, rule.operand, plan) == refused)
    is_number = declared.kind == "number"
    listed = [float(word) for word in rule.operand.split()] if is_number else _codes(kind, name, rule.operand)
    return lambda plan, _: ~np.isnan(getattr(plan, name)) & (_any_of(getattr(plan, name), listed) == refused)


@cache
def rules_of(kind: str, stack: str, whole: bool = False) -> tuple[Rule[Any], ...]:
    """Rules of a stack as rules of plans; ``whole``: rules read all columns that they name, for open plans."""

    def of(rule: StackRule) -> Rule[Any]:
        sentence, breaks = f"{STACKS[stack].title} refuses this: {rule.says}", _broken(kind, rule, whole)

        def broken(plan: Any, model: Model) -> Mask:
            with np.errstate(all="ignore"):
                return breaks(plan, model)

        return Rule(broken if whole else breaks, sentence)  # refusals() ignores errors itself

    return tuple(map(of, rules_of_stack(kind, stack)))


def refusals(kind: str, plan: PlanColumns, model: Model, software: Words, illegal: np.ndarray) -> list[Remark]:
    """Legal plans that their stack or engine does not start, and why."""
    remarks: list[Remark] = []
    for code, name in enumerate(software.words):
        stack = stack_of_software(str(name))
        if stack and (of_stack := (software.codes == code) & ~illegal).any():
            with np.errstate(all="ignore"):
                broken = broken_rules(rules_of(kind, stack), plan, model)
            remarks += [Remark(each.rows & of_stack, each.sentence, each.values) for each in broken]
    return remarks


RELEASE = "software_release"
REPLICA = "replica"  # default of a micro batch: the whole batch of a replica
_FLAGS = {"yes": 1.0, "no": 0.0}
_LAYERS, _GENERATION, _MEMORY = "layers", "generation", "device_gib"


class _Plans:
    """Plans whose blanks are being filled, of which some columns are still searched."""

    def __init__(self, plans: Table, catalog: Catalog, models: np.ndarray, searched: frozenset[str]) -> None:
        self.table = plans
        self._catalog, self._models, self._searched = catalog, models, searched

    def fill(self, default: Default, rows: np.ndarray) -> None:
        """Fill blanks of some rows with the settings of a default whose conditions hold."""
        settings = {name: value for name, value in default.settings.items() if name not in self._searched}
        if not settings or not self._searched.isdisjoint(default.conditions):
            return
        rows = self.holding(default, rows)
        for name, value in settings.items() if some(rows) else ():
            column = self.table.schema.by_name[name]
            values, blank = self._stated(column)
            filled = rows & blank
            if some(filled):
                given = self._replica_batch() if value == REPLICA else _value(column, value)
                self.table = self.table.with_columns({name: np.where(filled, given, values)})

    def holding(self, default: Default, rows: np.ndarray) -> np.ndarray:
        """Rows, of some, in which all conditions of a default hold."""
        for name, words in default.conditions.items():
            if some(rows):
                rows = rows & self._holds(name, words)
        return rows

    def _stated(self, column: Column) -> tuple[np.ndarray, np.ndarray]:
        """A column, and where it is blank."""
        if column.is_text:
            words = self.table.text(column.name)
            return words, np.asarray(words == "", dtype=bool)
        numbers = self.table.number(column.name)
        return numbers, np.isnan(numbers)

    def _holds(self, name: str, words: tuple[str, ...]) -> np.ndarray:
        """Rows in which a condition on a column, the kind of layers, or the machine holds."""
        if name == _LAYERS:
            mixture = self._catalog.tables["models"].number("num_experts")[self._models] > 0.0
            return np.asarray(mixture == ("mixture" in words))
        if name in (_GENERATION, _MEMORY):
            rows = self._catalog.rows("accelerators", self.table.text("accelerator"), self.table, "accelerator")
            accelerators = self._catalog.tables["accelerators"]
            if name == _GENERATION:
                return _any_of(accelerators.text("generation")[rows], words)
            least, below = words[0].split("..")
            size = accelerators.number("memory_capacity")[rows] / UNITS["GiB"].factor
            return np.asarray((size >= float(least or 0.0)) & (size < float(below or math.inf)))
        column = self.table.schema.by_name[name]
        if words in ((), (STATED,)):
            blank = self._stated(column)[1]
            return ~blank if words else blank
        return _any_of(self.table.filled(name), [_value(column, word) for word in words])

    def _replica_batch(self) -> Array:
        """Sequences of a replica and step; 1 if the batch is blank. [-]"""
        degrees = [self.table.filled(f"{name}_parallel") for name in ("tensor", "pipeline", "context")]
        stated, ranks = self.table.number("data_parallel"), degrees[0] * degrees[1] * degrees[2]
        replicas = np.where(np.isnan(stated), self.table.number("num_accelerators") / ranks, stated)
        batch = self.table.number("global_batch_size") / replicas
        return np.where(np.isnan(batch), 1.0, batch)


def _any_of(values: np.ndarray, words: Collection[float | str]) -> np.ndarray:
    return np.asarray(np.logical_or.reduce([np.asarray(values == word, dtype=bool) for word in words]))


def _value(column: Column, word: str) -> float | str:
    if column.is_text:
        return word
    return _FLAGS[word] if word in _FLAGS else float(word) * unit_of(column).factor


def _by_release(plans: Table) -> Iterator[tuple[np.ndarray, str, str]]:
    """Rows of each software and release of plans."""
    names = plans.filled("software")
    releases = plans.text(RELEASE) if RELEASE in plans else repeated("", len(names), object)
    if is_repeated(names) and is_repeated(releases):
        yield np.ones(len(names), dtype=bool), str(names[0]), str(releases[0])
        return
    codes: dict[tuple[str, str], int] = {}
    pairs = zip(names.tolist(), releases.tolist(), strict=True)
    of_row = np.array([codes.setdefault(pair, len(codes)) for pair in pairs])
    for (name, release), code in codes.items():
        yield of_row == code, name, release


def with_software_defaults(plans: Table, catalog: Catalog, models: np.ndarray, searched: Collection[str] = ()) -> Table:
    """Plans with blanks filled by ``software_defaults.csv``; other blanks have the schema's default. ``models``: rows
    of the plans in the sheet models; ``searched``: columns that a search leaves open. InputError for a release that
    cannot be compared.
    """
    result, faults = _Plans(plans, catalog, models, frozenset(searched)), []
    for rows, name, release in _by_release(plans):
        try:
            defaults = software_defaults(plans.kind, name, release)
        except ValueError:
            problem = f"software release must be a number such as 0.5.10 or 25.04, got {shown(release)}"
            faults += [Fault(plans.place(int(row), RELEASE), problem) for row in np.flatnonzero(rows)]
            continue
        for default in defaults:
            result.fill(default, rows)
    if faults:
        raise InputError(faults)
    return result.table


def memory_constants(plans: Table, catalog: Catalog, models: np.ndarray) -> dict[str, Array]:
    """Constants of the family serving_memory that hold at the releases of plans, NaN elsewhere, (rows, 1)."""
    filled, constants = _Plans(plans, catalog, models, frozenset()), declared_constants()["serving_memory"]
    result: dict[str, Array] = {}
    for rows, name, release in _by_release(plans):
        for default in software_defaults("memory", name, release):
            held = filled.holding(default, rows)
            for constant, value in default.settings.items():
                factor = UNITS[constants[constant].unit].factor
                column = result.setdefault(constant, np.full((len(plans), 1), np.nan))
                column[held & np.isnan(column[:, 0])] = float(value) * factor
    return result
