"""Inference plans evaluated: defaults, legality, prefill and decode, energy and cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from xlperf.arrays import Array
from xlperf.catalog.calibration import Calibration
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.cost.tco import building_power, cost_per_token, energy_per_token, token_rate_per_power
from xlperf.evaluate.join import Joined, join
from xlperf.evaluate.notes import add_notes, extrapolation_notes, gibibytes
from xlperf.hardware.device import Device
from xlperf.hardware.kernels import launched_ahead
from xlperf.inference import BOUNDS, serving_results
from xlperf.parallel.plan import Rule, broken_rules
from xlperf.parallel.serving_plan import (
    InferencePlan,
    attention_precision,
    cache_precision,
    inference_plan,
    serving_rules,
    serving_warnings,
    unmodelled_rules,
)
from xlperf.workload.model import Model

_KERNELS = ("gemm", "vector", "all_reduce", "all_gather", "point_to_point")
_ATTENTION = ("attention", "attention_decode")
_EXTRA = ("input_token_rate", "output_token_rate")


@dataclass(frozen=True)
class ServingSetting:
    """What serving a block of plans depends on: the arguments of :func:`xlperf.inference.serving_results`."""

    joined: Joined
    attention_device: Device
    plan: InferencePlan
    kernels: Mapping[str, Mapping[str, Array]]
    software: Mapping[str, Array]
    band: Mapping[str, Array]
    extrapolated: list[tuple[str, np.ndarray]]


def _constants(
    calibration: Calibration, joined: Joined, attention: np.ndarray
) -> tuple[dict[str, Mapping[str, Array]], list[tuple[str, np.ndarray]]]:
    found: dict[str, Mapping[str, Array]] = {}
    extrapolated: list[tuple[str, np.ndarray]] = []
    attention_keys = joined.keys_for(attention)
    for families, keys in (
        (_KERNELS, joined.keys),
        (_ATTENTION, attention_keys),
        (("serving_software", "serving_band"), joined.keys),
    ):
        for family in families:
            found[family], far = calibration.constants_of(family, keys)
            extrapolated.append((family, far))
    return found, extrapolated


def serving_setting(plans: Table, catalog: Catalog) -> ServingSetting:
    """Everything that serving a block of plans depends on.

    Parameters
    ----------
    plans : Table
        Inference plans.
    catalog : Catalog
        What they refer to.

    Returns
    -------
    ServingSetting
        Arguments of the equations.
    """
    joined = join(plans, catalog)
    precision = plans.filled("precision")
    cache = cache_precision(plans.text("kv_precision"), precision)
    attention = attention_precision(cache, precision)
    plan = inference_plan(
        plans.number("num_accelerators"),
        plans.filled("tensor_parallel"),
        plans.filled("pipeline_parallel"),
        plans.number("prompt_length"),
        plans.number("output_length"),
        plans.number("batch_size"),
        plans.number("concurrency"),
        precision,
        plans.text("kv_precision"),
    )
    constants, extrapolated = _constants(catalog.calibration, joined, attention)
    peak = joined.peak_for(attention)
    return ServingSetting(
        joined=joined,
        attention_device=replace(joined.device, peak_flop_rate=peak[:, None]),
        plan=plan,
        kernels=launched_ahead(constants),
        software=constants["serving_software"],
        band=constants["serving_band"],
        extrapolated=extrapolated,
    )


def _architecture_rules(names: np.ndarray, model: Model) -> list[Rule]:
    kinds = (
        (model.num_experts > 0, "is a mixture of experts"),
        (model.latent_attention > 0, "has latent attention"),
        (model.num_local_layers > 0, "has layers that attend locally"),
    )
    return [Rule(found, f"model {{}} {words}, whose serving is not modelled yet", (names,)) for found, words in kinds]


def evaluate_inference(plans: Table, catalog: Catalog) -> dict[str, np.ndarray]:
    """Results of a block of inference plans.

    Parameters
    ----------
    plans : Table
        Inference plans.
    catalog : Catalog
        What they refer to.

    Returns
    -------
    dict of str to array
        Every column of ``inference_results``, in the units used inside.
    """
    setting = serving_setting(plans, catalog)
    joined, plan = setting.joined, setting.plan
    with np.errstate(all="ignore"):
        results = serving_results(
            joined.model,
            joined.device,
            setting.attention_device,
            joined.network,
            plan,
            setting.kernels,
            setting.software,
            joined.reserved_memory,
        )
        rules = [
            *joined.rules,
            *_architecture_rules(plans.text("model"), joined.model),
            *unmodelled_rules(
                plans.filled("mode"),
                plans.number("request_rate"),
                plans.filled("expert_parallel"),
                plans.filled("data_parallel_attention"),
                plans.filled("context_parallel"),
            ),
            *serving_rules(plan, joined.model),
        ]
        illegal, reason = broken_rules(rules, len(plans))
        power = building_power(joined.server_power, joined.power_usage_effectiveness)
        rate = results["tokens_per_second"]
        ranks = plan.tensor_parallel * plan.pipeline_parallel
        results["tpot_low"] = results["tpot"] * setting.band["step_low"][:, 0]
        results["tpot_high"] = results["tpot"] * setting.band["step_high"][:, 0]
        results["tokens_per_second_per_megawatt"] = token_rate_per_power(rate, plan.num_accelerators, power)
        results["energy_per_token"] = energy_per_token(power, plan.num_accelerators, rate)
        for side in ("input", "output"):
            results[f"cost_per_million_{side}_tokens"] = cost_per_token(
                joined.cost_rate, ranks, results[f"{side}_token_rate"]
            )
    for name in _EXTRA:
        del results[name]
    codes = results["bound"]
    bound = np.full(len(plans), "", dtype=object)
    for code, word in enumerate(BOUNDS):
        bound[(codes == code) & ~illegal] = word
    capacity = results["memory_capacity"]
    notes = [
        Rule(
            ~illegal & (results["fits"] < 1),
            "needs {} GiB, the engine may use {} GiB of {} GiB",
            (
                gibibytes(results["memory"]),
                gibibytes(capacity * setting.software["memory_fraction"][:, 0] - joined.reserved_memory),
                gibibytes(capacity),
            ),
        ),
        *(
            Rule(rule.broken & ~illegal, rule.sentence, rule.values)
            for rule in serving_warnings(plan, joined.max_sequence_length)
        ),
        *extrapolation_notes(setting.extrapolated, illegal),
    ]
    add_notes(reason, notes)
    numbers = results
    if illegal.any():
        numbers = {
            name: values if name == "memory_capacity" else np.where(illegal, np.nan, values)
            for name, values in results.items()
        }
    return {**numbers, "bound": bound, "reason": reason}
