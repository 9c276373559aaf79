"""Training plans evaluated: defaults, legality, the step, energy and cost."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from xlperf.base.arrays import Array, some
from xlperf.catalog.calibration import Calibration, Keys
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.columns import plan_columns
from xlperf.engine.join import Joined, Named, architecture_codes, architecture_of, in_batches, join, named_rows
from xlperf.engine.notes import add_notes, basis_words, extrapolation_notes, gibibytes, unpriced_notes
from xlperf.engine.run import run_results
from xlperf.equations.cost.tokens import ALL_IN, run_cost, token_costs
from xlperf.equations.hardware.kernels import casts_apart, launched_ahead
from xlperf.equations.model.model import Architecture, Model
from xlperf.equations.plan.rules import Remark, broken_rules, remarks_of_rows
from xlperf.equations.plan.training_plan import TrainingPlan, with_defaults
from xlperf.equations.plan.training_rules import TRAINING_RULES
from xlperf.equations.training import Setting, step

_KERNELS = ("gemm", "experts", "vector", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point")
_WIDE_KERNELS = ("attention", "attention_backward")
_SOFTWARE = ("training_software", "training_memory", "training_calls", "training_band")


def training_plan(plans: Table, joined: Joined, gradient_size: Array) -> TrainingPlan:
    """A table of training plans with its blanks filled.

    Parameters
    ----------
    plans : Table
        Plans as read.
    joined : Joined
        What they refer to.
    gradient_size : Array
        Bytes of an element of the gradient buffer of their software, (rows,). [B]

    Returns
    -------
    TrainingPlan
        Every column, (rows,).
    """
    reads, fused_reads, turns = joined.casts
    stated = plan_columns(plans, TrainingPlan).replaced(
        product_size=joined.product_size,
        element_size=joined.element_size,
        cast_reads=reads,
        fused_reads=fused_reads,
        turns=turns,
    )
    return with_defaults(stated, joined.model, joined.max_sequence_length, gradient_size)


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
    plan = training_plan(plans, joined, constants["training_memory"]["gradient_size"][:, 0])
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
        rules = [*joined.rules, *broken_rules(TRAINING_RULES, plan, joined.model)]
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
