"""Training plans evaluated: defaults, legality, the step, energy and cost."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from xlperf.arrays import Array
from xlperf.catalog.calibration import Calibration, Keys
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.cost.tco import building_power, cost_per_token, energy_per_token
from xlperf.evaluate.join import Joined, join
from xlperf.evaluate.notes import add_notes, extrapolation_notes, gibibytes
from xlperf.parallel.plan import Rule, TrainingPlan, broken_rules, training_rules
from xlperf.training import Setting, Step, step

DEFAULT_SEQUENCE_LENGTH = 4096.0
MICRO_BATCHES_PER_STAGE = 4.0
DEFAULT_ORDER = "tp-cp-ep-dp-pp"
_KERNELS = ("gemm", "vector", "all_reduce", "all_gather", "reduce_scatter", "point_to_point")
_WIDE_KERNELS = ("attention", "attention_backward")
_SOFTWARE = ("training_software", "training_memory", "training_band")
_RECOMPUTE = {"none": 0.0, "selective": 1.0, "full": 2.0}
_NOT_MODELLED = (
    ("context_parallel", "context parallel"),
    ("expert_parallel", "expert parallel"),
    ("expert_tensor_parallel", "expert tensor parallel"),
)


def _flag(values: np.ndarray, word: str) -> Array:
    return np.asarray(values == word, dtype=np.float64)


def _or_else(values: Array, fallback: Array | float) -> Array:
    return np.where(np.isnan(values), fallback, values)


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
    tensor = plans.filled("tensor_parallel")
    stages = plans.filled("pipeline_parallel")
    replicas = _or_else(plans.number("data_parallel"), accelerators / (tensor * stages))
    micro = plans.filled("micro_batch_size")
    longest = _or_else(joined.max_sequence_length, DEFAULT_SEQUENCE_LENGTH)
    words = plans.filled("recompute").tolist()
    return TrainingPlan(
        num_accelerators=accelerators,
        tensor_parallel=tensor,
        sequence_parallel=_or_else(plans.number("sequence_parallel"), np.where(tensor > 1, 1.0, 0.0)),
        pipeline_parallel=stages,
        virtual_pipeline=plans.filled("virtual_pipeline"),
        gpipe=_flag(plans.filled("pipeline_schedule"), "gpipe"),
        data_parallel=replicas,
        zero_stage=plans.filled("zero_stage"),
        global_batch_size=_or_else(
            plans.number("global_batch_size"), replicas * micro * MICRO_BATCHES_PER_STAGE * stages
        ),
        micro_batch_size=micro,
        sequence_length=_or_else(plans.number("sequence_length"), np.minimum(DEFAULT_SEQUENCE_LENGTH, longest)),
        recompute=np.array([_RECOMPUTE[word] for word in words]),
        flash_attention=_flag(plans.filled("attention"), "flash"),
        adam=_flag(plans.filled("optimizer"), "adam"),
        product_size=joined.product_size,
        element_size=joined.element_size,
        gradient_size=gradient_size,
    )


def _unmodelled(plans: Table) -> list[Rule]:
    rules = []
    for column, words in _NOT_MODELLED:
        values = plans.filled(column)
        rules.append(Rule(values > 1, f"{words} {{}} is not modelled yet, only 1", (values,)))
    schedule = plans.filled("pipeline_schedule")
    rules.append(
        Rule(
            (schedule == "zero-bubble") | (schedule == "dualpipe"),
            "pipeline schedule {} is not modelled yet: use 1f1b, interleaved or gpipe",
            (schedule,),
        )
    )
    rules.append(
        Rule(
            (schedule == "interleaved") & (plans.filled("virtual_pipeline") < 2),
            "an interleaved schedule needs virtual pipeline of 2 or more, is {}",
            (plans.filled("virtual_pipeline"),),
        )
    )
    order = plans.filled("dimension_order")
    rules.append(
        Rule(order != DEFAULT_ORDER, f"dimension order {{}} is not modelled yet, only {DEFAULT_ORDER}", (order,))
    )
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


def training_setting(plans: Table, catalog: Catalog) -> tuple[Setting, Joined, list[tuple[str, np.ndarray]]]:
    """Everything that the step of a block of plans depends on.

    Parameters
    ----------
    plans : Table
        Training plans.
    catalog : Catalog
        What they refer to.

    Returns
    -------
    tuple
        Setting, the joined rows, and which families are extrapolated for which rows.
    """
    joined = join(plans, catalog)
    constants, extrapolated = constants_of(catalog.calibration, joined)
    plan = plan_of(plans, joined, constants["training_memory"]["gradient_size"][:, 0])
    return (
        Setting(joined.model, joined.device, joined.wide_device, joined.network, plan, constants),
        joined,
        extrapolated,
    )


def training_step(plans: Table, catalog: Catalog) -> Step:
    """The step of a block of plans in pieces, for explanations.

    Parameters
    ----------
    plans : Table
        Training plans.
    catalog : Catalog
        What they refer to.

    Returns
    -------
    Step
        Kernels, collectives and results.
    """
    with np.errstate(all="ignore"):
        return step(training_setting(plans, catalog)[0])


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
    setting, joined, extrapolated = training_setting(plans, catalog)
    plan = setting.plan
    with np.errstate(all="ignore"):
        results = dict(step(setting).results)
        rules = [*joined.rules, *_unmodelled(plans), *training_rules(plan, joined.model)]
        illegal, reason = broken_rules(rules, len(plans))
        band = setting.constants["training_band"]
        capacity = joined.device.memory_capacity[:, 0]
        results["step_time_low"] = results["step_time"] * band["step_low"][:, 0]
        results["step_time_high"] = results["step_time"] * band["step_high"][:, 0]
        results["memory_reserved"] = results["memory_reserved"] + joined.reserved_memory
        results["memory_capacity"] = capacity
        results["fits"] = np.where(results["memory_reserved"] <= capacity, 1.0, 0.0)
        power = building_power(joined.server_power, joined.power_usage_effectiveness)
        rate = results["tokens_per_second"]
        results["energy_per_token"] = energy_per_token(power, plan.num_accelerators, rate)
        results["cost_per_million_tokens"] = cost_per_token(joined.cost_rate, plan.num_accelerators, rate)
    del results["worst_stage_parameters"]
    capacity_rule = Rule(
        ~illegal & (results["fits"] < 1),
        "needs {} GiB of {} GiB",
        (gibibytes(results["memory_reserved"]), gibibytes(capacity)),
    )
    longer = Rule(
        ~illegal & (plan.sequence_length > joined.max_sequence_length),
        "sequence length {} is beyond the model's {}",
        (plan.sequence_length, joined.max_sequence_length),
    )
    notes = [capacity_rule, longer, *extrapolation_notes(extrapolated, illegal)]
    add_notes(reason, notes)
    for name, values in results.items():
        if name != "memory_capacity":
            results[name] = np.where(illegal, np.nan, values)
    return {**results, "reason": reason}
