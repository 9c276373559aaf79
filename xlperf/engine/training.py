"""Training plans evaluated: defaults, legality, the step, energy and cost."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from xlperf.base.arrays import Array, some
from xlperf.catalog.calibration import Calibration, Keys, coded_words
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.join import Joined, Named, architecture_codes, architecture_of, in_batches, join, named_rows
from xlperf.engine.notes import add_notes, extrapolation_notes, gibibytes
from xlperf.engine.run import run_results
from xlperf.engine.token_costs import ALL_IN, basis_words, token_costs, unpriced_notes
from xlperf.equations.cost.tco import run_cost
from xlperf.equations.hardware.kernels import casts_apart, launched_ahead
from xlperf.equations.model.model import Architecture, Model
from xlperf.equations.plan.plan import (
    ADAPTER_MODULES,
    CONTEXT_METHODS,
    CROSS_ENTROPIES,
    DIMENSIONS,
    GRAPHS,
    INTERLEAVED,
    PRIMARY,
    QUANTIZED_COPIES,
    RECOMPUTE_FULL,
    RECOMPUTE_MODULES,
    RECOMPUTE_SELECTIVE,
    SCHEDULES,
    TENSOR_OVERLAPS,
    TrainingPlan,
    group_strides,
    training_rules,
)
from xlperf.equations.plan.rules import Remark, remarks_of_rows
from xlperf.equations.training import Setting, step
from xlperf.equations.training.setting import WORD
from xlperf.equations.training.stages import stage_rules

DEFAULT_SEQUENCE_LENGTH = 4096.0
MICRO_BATCHES_PER_STAGE = 4.0
_KERNELS = ("gemm", "experts", "vector", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point")
_WIDE_KERNELS = ("attention", "attention_backward")
_SOFTWARE = ("training_software", "training_memory", "training_calls", "training_band")
_CODES = {
    "recompute": {"none": 0, "selective": 1, "full": 2},
    "pipeline_schedule": {word: code for code, word in enumerate(SCHEDULES)},
    "context_method": {word: code for code, word in enumerate(CONTEXT_METHODS)},
    "cross_entropy": {word: code for code, word in enumerate(CROSS_ENTROPIES)},
    "attention": {"standard": 0, "flash": 1},
    "optimizer": {"sgd": 0, "adam": 1},
    "adapter_modules": {word: code for code, word in enumerate(ADAPTER_MODULES)},
    "moment_precision": {"fp32": 4, "bf16": 2, "fp8": 1},  # bytes
    "master_weights": {"fp32": 4, "remainder": 2, "none": 0},  # bytes
    "activation_storage": {"wide": 0, "fp8": 1},
    "stage_dealing": {"even": 0, "cost": 1},
    "quantized_copies": {word: code for code, word in enumerate(QUANTIZED_COPIES)},
    "dispatch_precision": {"bf16": 0, "fp8": 1},
    "token_dispatch": {"once": 0, "copies": 1},
    "tensor_overlap": {word: code for code, word in enumerate(TENSOR_OVERLAPS)},
    "graphs": {word: code for code, word in enumerate(GRAPHS)},
}


def _or_else(values: Array, fallback: Array | float) -> Array:
    blank = np.isnan(values)
    return np.where(blank, fallback, values) if some(blank) else values


def plan_of(plans: Table, joined: Joined, gradient_size: Array) -> TrainingPlan:
    """A table of training plans with its blanks filled.

    Parameters
    ----------
    plans : Table
        Plans as read.
    joined : Joined
        What they refer to.
    gradient_size : Array
        Bytes of an element of the gradient buffer, (rows,). [B]

    Returns
    -------
    TrainingPlan
        Every field filled, (rows,).
    """
    accelerators = plans.number("num_accelerators")
    tensor, context = plans.filled("tensor_parallel"), plans.filled("context_parallel")
    stages = plans.filled("pipeline_parallel")
    experts, expert_tensor = plans.filled("expert_parallel"), plans.filled("expert_tensor_parallel")
    replicas = _or_else(plans.number("data_parallel"), accelerators / (tensor * stages * context))
    micro = plans.filled("micro_batch_size")
    longest = _or_else(joined.max_sequence_length, DEFAULT_SEQUENCE_LENGTH)
    copies = tensor * context * replicas / (experts * expert_tensor)
    dense_strides, expert_strides = _strides(plans, tensor, context, replicas, stages, experts, expert_tensor, copies)
    return TrainingPlan(
        num_accelerators=accelerators,
        tensor_parallel=tensor,
        sequence_parallel=_or_else(plans.number("sequence_parallel"), np.where(tensor > 1, 1.0, 0.0)),
        pipeline_parallel=stages,
        virtual_pipeline=plans.filled("virtual_pipeline"),
        first_stage_layers=plans.number("first_stage_layers"),
        last_stage_layers=plans.number("last_stage_layers"),
        dealt_by_cost=_codes(plans, "stage_dealing"),
        schedule=_codes(plans, "pipeline_schedule"),
        pipeline_overlap=plans.filled("pipeline_overlap"),
        context_parallel=context,
        context_method=_codes(plans, "context_method"),
        context_balance=plans.filled("context_balance"),
        expert_parallel=experts,
        expert_tensor_parallel=expert_tensor,
        expert_imbalance=plans.filled("expert_imbalance"),
        expert_capacity=plans.number("expert_capacity"),
        dispatch_size=np.where(_codes(plans, "dispatch_precision") > 0.0, 1.0, joined.element_size),
        dispatch_copies=_codes(plans, "token_dispatch"),
        dispatch_nodes=_or_else(plans.number("dispatch_nodes"), np.inf),
        expert_overlap=plans.filled("expert_overlap"),
        tensor_overlap=_codes(plans, "tensor_overlap"),
        graphs=_codes(plans, "graphs"),
        tensor_stride=dense_strides["tp"],
        context_stride=dense_strides["cp"],
        data_stride=dense_strides["dp"],
        stage_stride=dense_strides["pp"],
        expert_stride=expert_strides["ep"],
        expert_tensor_stride=expert_strides["tp"],
        expert_data_stride=expert_strides["dp"],
        data_parallel=replicas,
        zero_stage=plans.filled("zero_stage"),
        zero_group=_or_else(plans.number("zero_group_size"), np.inf),
        global_batch_size=_or_else(
            plans.number("global_batch_size"), replicas * micro * MICRO_BATCHES_PER_STAGE * stages
        ),
        micro_batch_size=micro,
        sequence_length=_or_else(plans.number("sequence_length"), np.minimum(DEFAULT_SEQUENCE_LENGTH, longest)),
        recompute=_codes(plans, "recompute"),
        recompute_modules=_modules_of(plans),
        recompute_layers=_or_else(plans.number("recompute_layers"), np.inf),
        recompute_group=plans.filled("recompute_group"),
        cross_entropy=_codes(plans, "cross_entropy"),
        flash_attention=_codes(plans, "attention"),
        adapter_rank=_or_else(plans.number("adapter_rank"), 0.0),
        adapter_modules=_codes(plans, "adapter_modules"),
        mtp_layers=plans.filled("train_mtp") * joined.model.num_mtp_layers,
        adam=_codes(plans, "optimizer"),
        product_size=joined.product_size,
        cast_reads=joined.casts[0],
        fused_reads=joined.casts[1],
        turns=joined.casts[2],
        quantized_copies=_codes(plans, "quantized_copies"),
        wide_layers=plans.filled("wide_layers"),
        element_size=joined.element_size,
        gradient_size=gradient_size,
        moment_size=_codes(plans, "moment_precision"),
        master_size=_codes(plans, "master_weights"),
        stores_narrow=_codes(plans, "activation_storage"),
    )


def _modules_of(plans: Table) -> Array:
    """Modules that each plan computes again, as bits."""
    default = plans.schema.by_name["recompute_modules"].default
    if "recompute_modules" not in plans:
        return np.full(len(plans), _modules(default))
    found = coded_words(plans["recompute_modules"].tolist())
    return np.asarray(np.array([_modules(words or default) for words in found.words])[found.codes])


@lru_cache(maxsize=1024)
def _modules(words: str) -> float:
    """Modules to compute again as bits; NaN for a word that is none of them."""
    named = set(words.replace(",", " ").split())
    if not named <= set(RECOMPUTE_MODULES):
        return float("nan")
    return float(sum(2**index for index, name in enumerate(RECOMPUTE_MODULES) if name in named))


def _codes(plans: Table, column: str) -> Array:
    return plans.codes(column, _CODES[column]).astype(np.float64)


def _strides(
    plans: Table,
    tensor: Array,
    context: Array,
    replicas: Array,
    stages: Array,
    experts: Array,
    expert_tensor: Array,
    copies: Array,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Strides of the groups outside and inside the experts, for each row's dimension order."""
    default = plans.schema.by_name["dimension_order"].default
    named = coded_words(plans["dimension_order"].tolist()) if "dimension_order" in plans else None
    distinct = [order or default for order in named.words] if named else [default]
    if named is None or len(distinct) == 1:
        found = (
            group_strides(distinct[0], {"tp": tensor, "cp": context, "dp": replicas, "pp": stages}),
            group_strides(distinct[0], {"tp": expert_tensor, "ep": experts, "dp": copies, "pp": stages}),
        )
        one = np.ones_like(tensor)
        return {**dict.fromkeys(DIMENSIONS, one), **found[0]}, {**dict.fromkeys(DIMENSIONS, one), **found[1]}
    dense: dict[str, Array] = {name: np.ones_like(tensor) for name in DIMENSIONS}
    inner: dict[str, Array] = {name: np.ones_like(tensor) for name in DIMENSIONS}
    for code, order in enumerate(distinct):
        rows = np.flatnonzero(named.codes == code)
        outside = {"tp": tensor[rows], "cp": context[rows], "dp": replicas[rows], "pp": stages[rows]}
        inside = {"tp": expert_tensor[rows], "ep": experts[rows], "dp": copies[rows], "pp": stages[rows]}
        for strides, sizes in ((dense, outside), (inner, inside)):
            for name, values in group_strides(order, sizes).items():
                strides[name][rows] = values
    return dense, inner


@lru_cache(maxsize=1024)
def _is_order(order: str) -> bool:
    """Whether a dimension order names every dimension once."""
    return sorted(order.split("-")) == sorted(DIMENSIONS)


def _order_rules(plans: Table, plan: TrainingPlan) -> list[Remark]:
    rules = []
    if "dimension_order" in plans:
        orders = plans["dimension_order"]
        wrong = np.array([order != "" and not _is_order(order) for order in orders.tolist()], dtype=bool)
        sentence = f"dimension order {{}} must name {', '.join(DIMENSIONS)} once each, joined by hyphens"
        rules.append(Remark(wrong, sentence, (orders,)))
    rules.append(
        Remark(
            (plan.schedule == INTERLEAVED) & (plan.virtual_pipeline < 2),
            "an interleaved schedule needs virtual pipeline of 2 or more, is {}",
            (plan.virtual_pipeline,),
        )
    )
    return rules


def _asked_rules(plans: Table, plan: TrainingPlan, model: Model) -> list[Remark]:
    """What a plan asks for and its model or its precision does not have; only columns that a sheet gives count."""
    rules = []
    if "train_mtp" in plans:
        asked = (plans.filled("train_mtp") > 0) & ~(model.num_mtp_layers > 0)
        rules.append(Remark(asked, "the model has no multi-token prediction modules to train"))
        frozen = (plan.mtp_layers > 0) & (plan.adapter_rank > 0)
        rules.append(Remark(frozen, "multi-token prediction modules are not trained beside adapters"))
    if "adapter_modules" in plans:
        modules = plans.text("adapter_modules")
        rules.append(
            Remark((modules != "") & (plan.adapter_rank <= 0), "adapter modules {} need an adapter rank", (modules,))
        )
    if "quantized_copies" in plans:
        copies = plans.text("quantized_copies")
        sentence = "quantized copies {} need products in FP8, INT8 or FP4"
        rules.append(Remark((copies != "") & ~plan.quantized, sentence, (copies,)))
    if "master_weights" in plans:
        split = (plan.master_size > 0.0) & (plan.master_size < WORD)
        primary = plan.quantized & (plan.quantized_copies == PRIMARY)
        sentence = (
            "master weights remainder need 16-bit weights beside them: not fp32, tf32 or quantized copies primary"
        )
        rules.append(Remark(split & (primary | (plan.element_size >= WORD)), sentence))
    if "wide_layers" in plans:
        wide = plan.wide_layers
        rules += [
            Remark((wide > 0) & ~plan.quantized, "wide layers {} need products in FP8, INT8 or FP4", (wide,)),
            Remark(wide > model.num_layers, "wide layers {} are more than the model's {}", (wide, model.num_layers)),
        ]
    return rules


def _recompute_rules(plans: Table, plan: TrainingPlan, model: Model) -> list[Remark]:
    """Options of recomputation that contradict each other or the model; only those that a sheet gives are looked at."""
    rules = []
    none, selective, full = (plan.recompute == mode for mode in (0.0, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL))
    if "recompute_modules" in plans:
        asked = plans.text("recompute_modules")
        rules = [
            Remark(
                np.isnan(plan.recompute_modules),
                f"recompute modules {{}} must be of {', '.join(RECOMPUTE_MODULES)}, with spaces between",
                (asked,),
            ),
            Remark((asked != "") & ~selective, "recompute modules {} need recompute selective", (asked,)),
            Remark(
                (plan.again("moe") > 0) & (model.num_experts <= 0),
                "the model has no experts to recompute",
            ),
            Remark(
                (plan.again("latent") > 0) & (model.latent_attention <= 0),
                "the model has no latent attention to recompute",
            ),
        ]
    if "recompute_layers" in plans:
        layers = plans.number("recompute_layers")
        rules.append(
            Remark(~np.isnan(layers) & none, "recompute layers {} need recompute selective or full", (layers,))
        )
    if "recompute_group" in plans:
        group = plan.recompute_group
        rules.append(Remark((group > 1) & ~full, "recompute group {} needs recompute full", (group,)))
    return rules


def constants_of(
    calibration: Calibration, joined: Joined
) -> tuple[dict[str, Mapping[str, Array]], list[tuple[str, np.ndarray]]]:
    """Calibration constants of every family that a step uses.

    Parameters
    ----------
    calibration : Calibration
        Constants of the catalog.
    joined : Joined
        Plans with their keys.

    Returns
    -------
    tuple
        Family -> constants (rows, 1); and family -> rows whose generation or software has none of its own.
    """
    found: dict[str, Mapping[str, Array]] = {}
    extrapolated: list[tuple[str, np.ndarray]] = []

    def look_up(name: str, family: str, keys: Keys) -> None:
        found[name], far = calibration.constants_of(family, keys)
        extrapolated.append((family, far))

    for family in _KERNELS:
        look_up(family, family, joined.keys)
    look_up("gemm_wide", "gemm", joined.wide_keys)
    for family in _WIDE_KERNELS:
        look_up(family, family, joined.wide_keys)
    for family in _SOFTWARE:
        look_up(family, family, joined.keys)
    return found, extrapolated


def _gradient_size(plans: Table, default: Array) -> Array:
    """Bytes of an element of the gradient buffer, where a plan says so, else of its software. [B]"""
    if "gradient_precision" not in plans:
        return default
    sizes = {"fp32": 4.0, "bf16": 2.0, "": np.nan}
    return _or_else(np.array([sizes[word] for word in plans.text("gradient_precision").tolist()]), default)


def training_setting(
    plans: Table, catalog: Catalog, named: Named, architecture: Architecture
) -> tuple[Setting, Joined, list[tuple[str, np.ndarray]]]:
    """Everything that the step of a block of plans of one architecture depends on.

    Parameters
    ----------
    plans : Table
        Training plans.
    catalog : Catalog
        What they refer to.
    named : Named
        Rows that they name.
    architecture : Architecture
        Structure that their models share.

    Returns
    -------
    tuple
        Setting, the joined rows, and which families are extrapolated for which rows.
    """
    joined = join(plans, catalog, named)
    constants, extrapolated = constants_of(catalog.calibration, joined)
    plan = plan_of(plans, joined, _gradient_size(plans, constants["training_memory"]["gradient_size"][:, 0]))
    kernels = casts_apart(launched_ahead(constants))
    setting = Setting(joined.model, joined.device, joined.wide_device, joined.network, plan, kernels, architecture)
    return setting, joined, extrapolated


def evaluate_training(plans: Table, catalog: Catalog) -> dict[str, np.ndarray]:
    """Results of a block of training plans.

    Parameters
    ----------
    plans : Table
        Training plans.
    catalog : Catalog
        What they refer to.

    Returns
    -------
    dict of str to array
        Every column of ``training_results``, in the units used inside.
    """
    named = named_rows(plans, catalog)
    codes = architecture_codes(named, catalog)

    def evaluated(piece: Table, rows: Named, code: int) -> dict[str, np.ndarray]:
        return _evaluate(piece, catalog, rows, architecture_of(code))

    return in_batches(plans, catalog, named, codes, evaluated)


def _used(extrapolated: list[tuple[str, np.ndarray]], plan: TrainingPlan, model: Model) -> list[tuple[str, np.ndarray]]:
    """Extrapolated families of rows whose step really uses them."""
    shown = [(family, mask) for family, mask in extrapolated if some(mask)]
    if not shown:
        return []
    tensor, shards, split = plan.tensor_parallel > 1, plan.shards > 1, plan.sequence_parallel > 0
    sharded, context = plan.zero_stage > 0, plan.context_parallel > 1
    pairs = (tensor & split) | (shards & sharded)
    uses = {
        "experts": model.num_experts > 0,
        "all_reduce": (tensor & ~split) | (shards & ~sharded),
        "all_gather": pairs,
        "reduce_scatter": pairs,
        "all_to_all": (plan.expert_parallel > 1) | context,
        "point_to_point": (plan.pipeline_parallel > 1) | context,
        "attention": plan.flash_attention > 0,
        "attention_backward": plan.flash_attention > 0,
    }
    return [(family, mask & uses[family] if family in uses else mask) for family, mask in shown]


def _evaluate(plans: Table, catalog: Catalog, named: Named, architecture: Architecture) -> dict[str, np.ndarray]:
    setting, joined, extrapolated = training_setting(plans, catalog, named, architecture)
    plan = setting.plan
    with np.errstate(all="ignore"):
        results = dict(step(setting).results)
        rules = [*joined.rules, *_order_rules(plans, plan), *training_rules(plan, joined.model)]
        rules += _asked_rules(plans, plan, joined.model) + _recompute_rules(plans, plan, joined.model)
        rules += stage_rules(joined.model, plan)
        if architecture.linear_attention:
            rules.append(
                Remark(
                    joined.model.num_linear_layers > 0.0,
                    "model {} has linear attention layers, which are modelled when it serves, not when it is trained",
                    (plans.text("model"),),
                )
            )
        illegal, reason = remarks_of_rows(rules, len(plans))
        band = setting.constants["training_band"]
        capacity = joined.device.memory_capacity[:, 0]
        low, high = ("mixture_low", "mixture_high") if architecture.experts else ("step_low", "step_high")
        results["step_time_low"] = results["step_time"] * band[low][:, 0]
        results["step_time_high"] = results["step_time"] * band[high][:, 0]
        results["memory_reserved"] = results["memory_reserved"] + joined.reserved_memory
        results["memory_capacity"] = capacity
        results["fits"] = np.where(results["memory_reserved"] <= capacity, 1.0, 0.0)
        terms, count = joined.terms, plan.num_accelerators
        results |= token_costs(terms, count, results["tokens_per_second"], ALL_IN["training"])
        results["accelerator_hour_cost"] = terms.cost_rate
        results["step_cost"] = run_cost(terms.cost_rate, count, results["step_time"])
        results |= run_results(plans, plan, joined, results)
    too_large = ~illegal & (results["fits"] < 1)
    longer = Remark(
        ~illegal & (plan.sequence_length > joined.max_sequence_length),
        "sequence length {} is beyond the model's {}",
        (plan.sequence_length, joined.max_sequence_length),
    )
    notes = [longer, *unpriced_notes(illegal, catalog, {"": (joined.accelerators, terms.cost_rate)})]
    notes += extrapolation_notes(_used(extrapolated, plan, joined.model), illegal)
    if some(too_large):
        sizes = gibibytes(results["memory_reserved"]), gibibytes(capacity)
        notes.insert(0, Remark(too_large, "needs {} GiB of {} GiB", sizes))
    add_notes(reason, notes)
    if some(illegal):
        for name, values in results.items():
            if name != "memory_capacity":
                results[name] = np.where(illegal, np.nan, values)
    basis = basis_words(joined.rented, results["accelerator_hour_cost"])
    return {**results, "cost_basis": basis, "reason": reason}
