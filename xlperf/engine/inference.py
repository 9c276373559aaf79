"""Inference plans evaluated: defaults, legality, prefill and decode, energy and cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from xlperf.base.arrays import Array
from xlperf.catalog.calibration import Calibration
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.bands import band_ends, full_cache
from xlperf.engine.join import Joined, Named, architecture_codes, architecture_of, in_batches, join, named_rows
from xlperf.engine.notes import add_notes, basis_words, extrapolation_notes, gibibytes, rounded_down, unpriced_notes
from xlperf.engine.pools import mode_rules, pool_plans, pool_rows
from xlperf.equations.cost.tokens import ALL_IN, Terms, mean_terms, split_costs, token_costs
from xlperf.equations.hardware.kernels import launched_ahead
from xlperf.equations.model.model import Architecture
from xlperf.equations.plan.precisions import PRECISION_CODES
from xlperf.equations.plan.rules import Remark, remarks_of_rows
from xlperf.equations.plan.serving_plan import (
    InferencePlan,
    attention_precision,
    cache_precision,
    distinct_names,
    inference_plan,
    product_precision,
)
from xlperf.equations.plan.serving_rules import precision_rules, serving_rules, serving_warnings, unmodelled_rules
from xlperf.equations.serving import (
    BOUNDS,
    BatchTimes,
    Deployment,
    Stream,
    loaded_results,
    memory_of,
    operating,
    pool_state,
    pooled_results,
    pooled_target_results,
    pools_of,
    serving_results,
    target_results,
)
from xlperf.equations.serving.queueing import first_of_run

_KERNELS = ("gemm", "vector", "all_reduce", "engine_all_reduce", "all_gather", "point_to_point")
_EXCHANGES = ("all_to_all", "reduce_scatter")
_ATTENTION = ("attention", "attention_decode")
_LATENT = ("attention", "attention_latent")
_LINEAR = ("linear_attention",)
# Constants that stand beside those of their engine or kernel, which say whether a plan is extrapolated.
_UNSAID = (
    "serving_memory",
    "engine_all_reduce",
    "serving_load",
    "serving_host",
    "serving_attention",
    "serving_experts",
    "attention_latent",
    "linear_attention",
)
_MODES = ("static", "continuous", "disaggregated")
_RING = {"ring": 1, "all-gather": 0}
_AT_TARGETS = ("batch_at_targets", "tokens_per_second_at_targets")
_BANDS = ("serving_band", "capacity_band")
_OF_SETTING = ("serving_software", "serving_memory", "serving_load", "serving_host", "serving_attention", *_BANDS)


@dataclass(frozen=True)
class ServingSetting:
    """What serving a block of plans depends on, and what the catalog says of it, (rows,)."""

    serving: Deployment
    load: Mapping[str, Array]
    bands: Mapping[str, Mapping[str, Array]]
    extrapolated: list[tuple[str, np.ndarray]]
    rules: list[Remark]
    max_sequence_length: Array
    accelerators: np.ndarray
    terms: Terms
    rented: np.ndarray

    def take(self, rows: slice) -> ServingSetting:
        """That of some of the plans."""
        return ServingSetting(
            self.serving.take(rows),
            {name: values[rows] for name, values in self.load.items()},
            {family: {name: v[rows] for name, v in constants.items()} for family, constants in self.bands.items()},
            [(family, far[rows]) for family, far in self.extrapolated],
            [remark.take(rows) for remark in self.rules],
            self.max_sequence_length[rows],
            self.accelerators[rows],
            self.terms.take(rows),
            self.rented[rows],
        )


def _constants(
    calibration: Calibration, joined: Joined, attention: np.ndarray, stored: np.ndarray, architecture: Architecture
) -> tuple[dict[str, Mapping[str, Array]], list[tuple[str, np.ndarray]]]:
    found: dict[str, Mapping[str, Array]] = {}
    extrapolated: list[tuple[str, np.ndarray]] = []
    attention_keys = joined.keys_for(attention)
    found["gemm_wide"], _ = calibration.constants_of("gemm", joined.wide_keys)
    for families, keys in (
        ((*_KERNELS, *(_EXCHANGES if architecture.experts else ())), joined.keys),
        (("serving_experts",) if architecture.experts else (), joined.keys_named(stored)),
        (_LATENT if architecture.latent_attention else _ATTENTION, attention_keys),
        (_LINEAR if architecture.linear_attention else (), joined.keys),
        (_OF_SETTING, joined.keys),
    ):
        for family in families:
            found[family], far = calibration.constants_of(family, keys)
            if family not in _UNSAID:
                extrapolated.append((family, far))
    if not architecture.latent_attention:
        decode, slower = found["attention_decode"], found["serving_attention"]["memory_slowdown"]
        found["attention_decode"] = {**decode, "memory_efficiency": decode["memory_efficiency"] / slower}
    return found, extrapolated


def _host_times(software: Mapping[str, Array], slowdown: Array, launching: Array | None = None) -> dict[str, Array]:
    """Times of the software on the processors that stand beside the accelerators."""
    found = {name: values * slowdown if name.endswith("_time") else values for name, values in software.items()}
    if launching is not None:
        found["kernel_overhead_time"] = software["kernel_overhead_time"] * launching
    return found


def serving_setting(plans: Table, catalog: Catalog, named: Named, architecture: Architecture) -> ServingSetting:
    """Everything that serving a block of plans depends on.

    Parameters
    ----------
    plans : Table
        Inference plans.
    catalog : Catalog
        What they refer to.
    named : Named
        Rows that they name.
    architecture : Architecture
        Structure that their models share.

    Returns
    -------
    ServingSetting
        Arguments of the equations.
    """
    precision, given = plans.filled("precision"), plans.text("activation_precision")
    codes, (weights, caches, activations) = distinct_names(precision, plans.text("kv_precision"), given)
    product = product_precision(activations, weights)
    multiplied = plans
    if "activation_precision" in plans:
        multiplied = replace(plans, columns={**plans.columns, "precision": product[codes]})
    joined = join(multiplied, catalog, named)
    words = attention_precision(cache_precision(caches, product), product).tolist()
    attention = np.array([PRECISION_CODES[word] for word in words], dtype=np.int64)[codes]
    plan = inference_plan(
        plans.number("num_accelerators"),
        plans.filled("tensor_parallel"),
        plans.filled("pipeline_parallel"),
        plans.number("prompt_length"),
        plans.number("output_length"),
        plans.number("batch_size"),
        plans.number("concurrency"),
        weights,
        caches,
        plans.filled("prefill_tokens"),
        plans.filled("expert_parallel"),
        plans.filled("data_parallel_attention"),
        plans.filled("prefix_hit_rate"),
        plans.filled("draft_tokens"),
        plans.filled("acceptance_rate"),
        plans.filled("draft_layers"),
        activations,
        plans.filled("context_parallel"),
        np.asarray(plans.codes("context_method", _RING), dtype=np.float64),
        plans.filled("output_variation"),
        plans.filled("prompt_variation"),
        (plans.filled("expert_dispatch") == "nodes").astype(np.float64),
        plans.filled("two_batch_overlap"),
        plans.filled("graphs"),
        plans.number("memory_fraction"),
        codes,
    )
    stored = np.array([PRECISION_CODES[word] for word in weights.tolist()], dtype=np.int64)[codes]
    constants, extrapolated = _constants(catalog.calibration, joined, attention, stored, architecture)
    slowdown = constants["serving_host"]["host_slowdown"]
    if (plan.graphs == 0.0).any():
        eager, _ = catalog.calibration.constants_of("serving_eager", joined.keys)
        constants["serving_eager"] = _host_times(eager, slowdown)
    peak = joined.peak_for(attention)
    serving = Deployment(
        joined.model,
        joined.device,
        replace(joined.device, peak_flop_rate=peak[:, None]),
        joined.wide_device,
        joined.network,
        plan,
        launched_ahead({family: values for family, values in constants.items() if family not in _OF_SETTING}),
        {
            **_host_times(constants["serving_software"], slowdown, constants["serving_host"]["launch_slowdown"]),
            **constants["serving_memory"],
        },
        joined.reserved_memory,
        architecture,
    )
    return ServingSetting(
        serving,
        constants["serving_load"],
        {family: constants[family] for family in _BANDS},
        extrapolated,
        joined.rules,
        joined.max_sequence_length,
        joined.accelerators,
        joined.terms,
        joined.rented,
    )


def _pool_settings(
    plans: Table, catalog: Catalog, named: Named, architecture: Architecture
) -> tuple[ServingSetting, ServingSetting, ServingSetting, Array]:
    """Both pools of plans as rows of one setting, each alone, and the requests in flight."""
    both, requests = pool_plans(plans)
    setting = serving_setting(both, catalog, pool_rows(plans, named, catalog), architecture)
    rows = len(plans)
    return setting, setting.take(slice(0, rows)), setting.take(slice(rows, 2 * rows)), requests


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
    named = named_rows(plans, catalog)
    codes = architecture_codes(named, catalog) * len(_MODES)
    codes = codes + plans.codes("mode", {mode: code for code, mode in enumerate(_MODES)})
    apart = None if "request_rate" not in plans else ~np.isnan(plans["request_rate"])

    def evaluated(some: Table, rows: Named, code: int) -> dict[str, np.ndarray]:
        return _evaluate(some, catalog, rows, *_kind(code))

    return in_batches(plans, catalog, named, codes, evaluated, apart)


def _kind(code: int) -> tuple[Architecture, str]:
    return architecture_of(code // len(_MODES)), _MODES[code % len(_MODES)]


def _stream(plans: Table, setting: ServingSetting, pool_requests: Array | None = None) -> Stream:
    """Requests; ``pool_requests`` are in flight over separate pools."""
    share, run = setting.load["waiting_share"][:, 0], plans.number("run_requests")
    if pool_requests is not None:
        first = first_of_run(run, pool_requests)
        share = first + (1.0 - first) * share
    return Stream(
        plans.number("request_rate"),
        plans.filled("prompt_variation"),
        plans.number("ttft_target"),
        plans.number("tpot_target"),
        share,
        run,
        plans.filled("polling_steps"),
        plans.filled("gathering_steps"),
        plans.filled("prefill_first"),
    )


def phase_servings(plans: Table, catalog: Catalog) -> tuple[Deployment, Deployment]:
    """What a prefill and a step of decoding of one plan are computed with, at the batches that it runs with.

    Parameters
    ----------
    plans : Table
        One legal inference plan.
    catalog : Catalog
        What it refers to.

    Returns
    -------
    tuple of Deployment
        Of the prefill and of decoding: the same but for separate pools.
    """
    named = named_rows(plans, catalog)
    architecture = architecture_of(int(architecture_codes(named, catalog)[0]))
    mode = str(plans.filled("mode")[0])
    if mode == "disaggregated":
        both, setting, first, requests = _pool_settings(plans, catalog, named, architecture)
        pools = pools_of(both.serving, setting.serving, first.serving, _stream(plans, setting, requests))
        state = pool_state(pools.load, requests)
        one = np.ones_like(requests)
        return pools.prefilling.with_batch(one, state.prompts), pools.decoding.with_batch(state.batch, one)
    setting = serving_setting(plans, catalog, named, architecture)
    serving = setting.serving
    if mode == "continuous":
        serving = operating(serving, _stream(plans, setting)).running
    return serving, serving


def _evaluate(
    plans: Table, catalog: Catalog, named: Named, architecture: Architecture, mode: str
) -> dict[str, np.ndarray]:
    rules: list[Remark] = []
    whole, prefilling = plans.number("num_accelerators"), None
    if mode == "disaggregated":
        both, setting, first, requests = _pool_settings(plans, catalog, named, architecture)
        prefilling, stream = first, _stream(plans, setting, requests)
        owned = [pool.serving.plan.num_accelerators for pool in (setting, first)]
        rules = [
            Remark(
                (owned[0] < 1.0) | (owned[1] < 1.0),
                "{} accelerators cannot be divided into a prefill pool and a decoding pool; set prefill accelerators",
                (whole,),
            ),
            *(
                Remark(remark.rows, f"prefill pool: {remark.sentence}", remark.values)
                for remark in (*first.rules, *serving_rules(first.serving.plan, first.serving.model))
            ),
        ]
    else:
        setting = serving_setting(plans, catalog, named, architecture)
        stream = _stream(plans, setting)
    serving = setting.serving
    plan, searched = serving.plan, not (np.isnan(stream.first_target) & np.isnan(stream.token_target)).all()
    with np.errstate(all="ignore"):
        if mode == "disaggregated":
            pools = pools_of(both.serving, serving, first.serving, stream)
            results = pooled_results(pools, stream, requests)
            if searched:
                results |= pooled_target_results(pools, stream)
        elif mode == "continuous":
            operation = operating(serving, stream)
            results = loaded_results(serving, stream, operation)
            if searched:
                results |= target_results(serving, stream, operation.memory.max_batch_size, operation.times)
        else:
            results = serving_results(serving)
            if searched:
                results |= target_results(serving, stream, results["max_batch_size"], BatchTimes.of(serving))
        results = {**dict.fromkeys(_AT_TARGETS, np.full(len(plans), np.nan)), **results}
        rules += [
            *mode_rules(plans, mode),
            *setting.rules,
            *unmodelled_rules(
                plans.filled("mode"),
                plans.number("request_rate"),
                plans.number("batch_size"),
                plans.number("concurrency"),
            ),
            *precision_rules(plans.text("activation_precision"), plans.filled("precision")),
            *serving_rules(plan, serving.model),
            Remark(
                np.isinf(results["ttft"]),
                "request rate {} is more than the deployment can serve: at most {} requests/s",
                (stream.request_rate, rounded_down(results["max_request_rate"])),
            ),
        ]
        illegal, reason = remarks_of_rows(rules, len(plans))
        low, high = band_ends(mode, full_cache(results["running_batch"], results["max_batch_size"]), setting.bands)
        results["tpot_low"], results["tpot_high"] = results["tpot"] * low, results["tpot"] * high
        results["tokens_per_second_per_user"] = 1.0 / results["tpot"]
        results |= _costs(plan, setting, prefilling or setting, whole, results)
    codes = results["bound"]
    bound = np.full(len(plans), "", dtype=object)
    for code, word in enumerate(BOUNDS):
        bound[(codes == code) & ~illegal] = word
    capacity = results["memory_capacity"]
    usable = results.pop("memory_usable")
    notes = [_memory_note(~illegal & (results["fits"] < 1), "", results["memory"], usable, capacity)]
    if prefilling is not None:
        prompt = replace(prefilling.serving.plan, output_length=np.ones(len(plans)))
        memory = memory_of(replace(prefilling.serving, plan=prompt))
        room = memory.with_batch(prompt)
        lacking = ~illegal & (room.used > room.usable)
        notes.append(_memory_note(lacking, "prefill pool: one prompt ", room.used, room.usable, memory.capacity))
        results["fits"] = np.where(lacking, 0.0, results["fits"])
    notes += [
        *(
            Remark(remark.rows & ~illegal, remark.sentence, remark.values)
            for remark in serving_warnings(plan, setting.max_sequence_length)
        ),
        *unpriced_notes(illegal, catalog, _pool_prices(setting, prefilling)),
        *extrapolation_notes(setting.extrapolated, illegal),
    ]
    add_notes(reason, notes)
    numbers = results
    if illegal.any():
        numbers = {
            name: values if name == "memory_capacity" else np.where(illegal, np.nan, values)
            for name, values in results.items()
        }
    rented = None if prefilling is None else prefilling.rented
    basis = basis_words(setting.rented, numbers["accelerator_hour_cost"], rented)
    return {**numbers, "bound": bound, "cost_basis": basis, "reason": reason}


def _memory_note(lacking: np.ndarray, pool: str, used: Array, usable: Array, capacity: Array) -> Remark:
    sizes = gibibytes(used), gibibytes(np.minimum(usable, capacity)), gibibytes(capacity)
    return Remark(lacking, f"{pool}needs {{}} GiB, the engine may use {{}} GiB of {{}} GiB", sizes)


def _costs(
    plan: InferencePlan,
    decoding: ServingSetting,
    prefilling: ServingSetting,
    whole: Array,
    results: Mapping[str, Array],
) -> dict[str, Array]:
    """What the tokens of plans cost; the two settings are the same but for separate pools."""
    share, rate = results["prefill_share"], results["tokens_per_second"]
    terms = mean_terms(decoding.terms, prefilling.terms, share)
    lengths = plan.prompt_length, plan.output_length
    return {
        **token_costs(terms, whole, rate, ALL_IN["inference"]),
        **split_costs(decoding.terms, prefilling.terms, share, whole, rate, *lengths),
        "accelerator_hour_cost": terms.cost_rate,
    }


def _pool_prices(decoding: ServingSetting, prefilling: ServingSetting | None) -> dict[str, tuple[np.ndarray, Array]]:
    """Accelerators of the pools of plans and what they cost, by a word for the pool; one where both are the same."""
    found = {"": (decoding.accelerators, decoding.terms.cost_rate)}
    if prefilling is not None:
        same = prefilling.accelerators == decoding.accelerators
        cost_rate = np.where(same, 0.0, prefilling.terms.cost_rate)
        found["prefill "] = prefilling.accelerators, cost_rate
    return found
