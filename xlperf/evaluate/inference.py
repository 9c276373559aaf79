"""Inference plans evaluated: defaults, legality, prefill and decode, energy and cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from xlperf.arrays import Array
from xlperf.catalog.calibration import Calibration
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.cost.systems import carbon_of_energy
from xlperf.cost.tco import building_power, cost_per_token, energy_per_token, rate_per_cost, token_rate_per_power
from xlperf.evaluate.bands import band_ends, full_cache
from xlperf.evaluate.join import Joined, Named, architecture_codes, architecture_of, join, named_rows
from xlperf.evaluate.notes import add_notes, extrapolation_notes, gibibytes
from xlperf.evaluate.pieces import in_pieces
from xlperf.evaluate.precisions import PRECISION_CODES
from xlperf.hardware.device import Device
from xlperf.hardware.kernels import launched_ahead
from xlperf.inference import (
    BOUNDS,
    Serving,
    Stream,
    loaded_results,
    operating,
    pooled_results,
    pooled_target_results,
    pools_of,
    target_results,
)
from xlperf.parallel.rules import Rule, broken_rules
from xlperf.parallel.serving_memory import usable_memory
from xlperf.parallel.serving_plan import (
    InferencePlan,
    attention_precision,
    cache_precision,
    distinct_names,
    inference_plan,
    product_precision,
)
from xlperf.parallel.serving_rules import precision_rules, serving_rules, serving_warnings, unmodelled_rules
from xlperf.workload.model import Architecture

_KERNELS = ("gemm", "vector", "all_reduce", "engine_all_reduce", "all_gather", "point_to_point")
_EXCHANGES = ("all_to_all", "reduce_scatter")
_ATTENTION = ("attention", "attention_decode")
_LATENT = ("attention", "attention_latent")
_LINEAR = ("linear_attention",)
# Constants that stand beside those of their engine or kernel, which say whether a plan is extrapolated.
_UNSAID = (
    "engine_all_reduce",
    "serving_load",
    "serving_host",
    "serving_attention",
    "serving_experts",
    "attention_latent",
    "linear_attention",
)
_MODES = ("static", "continuous", "disaggregated")
_POOL_DEGREES = (
    "tensor_parallel",
    "pipeline_parallel",
    "context_parallel",
    "expert_parallel",
    "data_parallel_attention",
)
_RING = {"ring": 1, "all-gather": 0}
_AT_TARGETS = ("batch_at_targets", "tokens_per_second_at_targets")
_BANDS = ("serving_band", "capacity_band")
_EXTRA = ("input_token_rate", "output_token_rate")


@dataclass(frozen=True)
class ServingSetting:
    """What serving a block of plans depends on."""

    joined: Joined
    attention_device: Device
    plan: InferencePlan
    architecture: Architecture
    kernels: Mapping[str, Mapping[str, Array]]
    software: Mapping[str, Array]
    load: Mapping[str, Array]
    bands: Mapping[str, Mapping[str, Array]]
    extrapolated: list[tuple[str, np.ndarray]]

    @property
    def serving(self) -> Serving:
        """The arguments of :func:`xlperf.inference.serving_results`."""
        joined = self.joined
        return Serving(
            joined.model,
            joined.device,
            self.attention_device,
            joined.wide_device,
            joined.network,
            self.plan,
            self.kernels,
            self.software,
            joined.reserved_memory,
            self.architecture,
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
        (("serving_software", "serving_load", "serving_host", "serving_attention", *_BANDS), joined.keys),
    ):
        for family in families:
            found[family], far = calibration.constants_of(family, keys)
            if family not in _UNSAID:
                extrapolated.append((family, far))
    if not architecture.latent_attention:
        decode, slower = found["attention_decode"], found["serving_attention"]["memory_slowdown"]
        found["attention_decode"] = {**decode, "memory_efficiency": decode["memory_efficiency"] / slower}
    return found, extrapolated


def _host_times(software: Mapping[str, Array], slowdown: Array) -> dict[str, Array]:
    """Times of the software on the processors that stand beside the accelerators."""
    return {name: values * slowdown if name.endswith("_time") else values for name, values in software.items()}


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
        codes,
    )
    stored = np.array([PRECISION_CODES[word] for word in weights.tolist()], dtype=np.int64)[codes]
    constants, extrapolated = _constants(catalog.calibration, joined, attention, stored, architecture)
    slowdown = constants["serving_host"]["host_slowdown"]
    if (plan.graphs == 0.0).any():
        eager, _ = catalog.calibration.constants_of("serving_eager", joined.keys)
        constants["serving_eager"] = _host_times(eager, slowdown)
    peak = joined.peak_for(attention)
    return ServingSetting(
        joined=joined,
        attention_device=replace(joined.device, peak_flop_rate=peak[:, None]),
        plan=plan,
        architecture=architecture,
        kernels=launched_ahead(constants),
        software=_host_times(constants["serving_software"], slowdown),
        load=constants["serving_load"],
        bands={family: constants[family] for family in _BANDS},
        extrapolated=extrapolated,
    )


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

    return in_pieces(plans, catalog, named, codes, evaluated, apart)


def _kind(code: int) -> tuple[Architecture, str]:
    return architecture_of(code // len(_MODES)), _MODES[code % len(_MODES)]


def _stream(plans: Table, setting: ServingSetting) -> Stream:
    return Stream(
        plans.number("request_rate"),
        plans.filled("prompt_variation"),
        plans.number("ttft_target"),
        plans.number("tpot_target"),
        setting.load["waiting_share"][:, 0],
        plans.number("run_requests"),
    )


def phase_servings(plans: Table, catalog: Catalog) -> tuple[Serving, Serving]:
    """What a prefill and a step of decoding of one plan are computed with, at the batches that it runs with.

    Parameters
    ----------
    plans : Table
        One legal inference plan.
    catalog : Catalog
        What it refers to.

    Returns
    -------
    tuple of Serving
        Of the prefill and of decoding: the same but for separate pools.
    """
    named = named_rows(plans, catalog)
    architecture = architecture_of(int(architecture_codes(named, catalog)[0]))
    mode = str(plans.filled("mode")[0])
    if mode == "disaggregated":
        decoding, prefilling, requests = _pools(plans, catalog, architecture)
        setting = serving_setting(decoding, catalog, named, architecture)
        first = serving_setting(prefilling, catalog, named_rows(prefilling, catalog), architecture)
        pools = pools_of(setting.serving, first.serving, _stream(plans, setting), requests)
        return pools.prefilling, pools.decoding
    setting = serving_setting(plans, catalog, named, architecture)
    serving = setting.serving
    if mode == "continuous":
        serving = operating(serving, _stream(plans, setting)).running
    return serving, serving


def _mode_rules(plans: Table, mode: str) -> list[Rule]:
    """Refuse columns that say something only in another mode."""
    given = {"prefill_accelerator": plans.text("prefill_accelerator") != ""}
    for name in ("accelerators", *_POOL_DEGREES):
        given[f"prefill_{name}"] = ~np.isnan(plans.number(f"prefill_{name}"))
    pools = [Rule(found, f"{name.replace('_', ' ')} needs mode disaggregated") for name, found in given.items()]
    varied = [
        Rule(plans.filled(f"{name}_variation") > 0.0, f"{name} variation needs mode continuous or disaggregated")
        for name in ("prompt", "output")
    ]
    run = Rule(~np.isnan(plans.number("run_requests")), "run requests needs mode continuous")
    return {"static": [*pools, *varied, run], "continuous": pools, "disaggregated": [run]}[mode]


def _dispatch(plans: Table, without: np.ndarray) -> dict[str, np.ndarray]:
    """Columns of the exchange with experts, blank for some plans."""
    found = {name: plans[name] for name in ("expert_dispatch", "two_batch_overlap") if name in plans}
    return {
        name: np.where(without, "" if values.dtype == object else np.nan, values).astype(values.dtype)
        for name, values in found.items()
    }


def _pools(plans: Table, catalog: Catalog, architecture: Architecture) -> tuple[Table, Table, Array]:
    """Plans of the decoding pool and of the prefill pool, and the requests in flight over both."""
    total = plans.number("num_accelerators")
    asked = plans.number("prefill_accelerators")
    given = plans.text("prefill_accelerator")
    own = {name: plans.filled(name) for name in _POOL_DEGREES}
    other = {}
    for name in _POOL_DEGREES:
        values = plans.number(f"prefill_{name}")
        other[name] = np.where(np.isnan(values), own[name], values)
    prefill = np.where(np.isnan(asked), np.floor(0.5 * total), asked)
    decode = total - prefill
    decoders = decode / (own["tensor_parallel"] * own["context_parallel"] * own["pipeline_parallel"])
    batch, concurrency = plans.number("batch_size"), plans.number("concurrency")
    requests = np.where(np.isnan(concurrency), np.where(np.isnan(batch), 1.0, batch) * decoders, concurrency)
    blank = np.full(len(plans), np.nan)
    one = np.ones(len(plans))
    accelerator = np.where(given == "", plans.text("accelerator"), given).astype(object)
    shared = {**plans.columns, "concurrency": blank, "batch_size": one}
    # How tokens are sent to experts says nothing for a pool that sends none while the other does.
    here, there = (each["data_parallel_attention"] > 1.0 for each in (own, other))
    decoding = {**shared, "num_accelerators": decode, **_dispatch(plans, ~here & there)}
    prefilling = {**shared, **other, "num_accelerators": prefill, "accelerator": accelerator}
    prefilling |= _dispatch(plans, ~there & here)
    return Table(plans.kind, decoding, plans.place), Table(plans.kind, prefilling, plans.place), np.asarray(requests)


def _evaluate(
    plans: Table, catalog: Catalog, named: Named, architecture: Architecture, mode: str
) -> dict[str, np.ndarray]:
    rules: list[Rule] = []
    whole = plans.number("num_accelerators")
    if mode == "disaggregated":
        decoding, prefilling, requests = _pools(plans, catalog, architecture)
        setting = serving_setting(decoding, catalog, named, architecture)
        first = serving_setting(prefilling, catalog, named_rows(prefilling, catalog), architecture)
        rules = [
            Rule(
                (decoding.number("num_accelerators") < 1.0) | (prefilling.number("num_accelerators") < 1.0),
                "{} accelerators cannot be divided into a prefill pool and a decoding pool; set prefill accelerators",
                (whole,),
            ),
            *(
                Rule(rule.broken, f"prefill pool: {rule.sentence}", rule.values)
                for rule in (*first.joined.rules, *serving_rules(first.plan, first.joined.model))
            ),
        ]
    else:
        setting = serving_setting(plans, catalog, named, architecture)
    joined, plan = setting.joined, setting.plan
    stream = _stream(plans, setting)
    with np.errstate(all="ignore"):
        if mode == "disaggregated":
            results = pooled_results(setting.serving, first.serving, stream, requests)
        elif mode == "continuous":
            results = loaded_results(setting.serving, stream)
        else:
            results = setting.serving.results()
        if not (np.isnan(stream.first_target) & np.isnan(stream.token_target)).all():
            if mode == "disaggregated":
                results |= pooled_target_results(setting.serving, first.serving, stream)
            else:
                results |= target_results(setting.serving, stream)
        results = {**dict.fromkeys(_AT_TARGETS, np.full(len(plans), np.nan)), **results}
        rules += [
            *_mode_rules(plans, mode),
            *joined.rules,
            *unmodelled_rules(
                plans.filled("mode"),
                plans.number("request_rate"),
                plans.number("batch_size"),
                plans.number("concurrency"),
            ),
            *precision_rules(plans.text("activation_precision"), plans.filled("precision")),
            *serving_rules(plan, joined.model),
            Rule(
                np.isinf(results["ttft"]),
                "request rate {} is more than the deployment can serve, about {}",
                (stream.request_rate, np.round(results["max_request_rate"], 3)),
            ),
        ]
        illegal, reason = broken_rules(rules, len(plans))
        power = building_power(joined.server_power, joined.power_usage_effectiveness)
        rate = results["tokens_per_second"]
        ranks = plan.replica_ranks
        low, high = band_ends(mode, full_cache(results["running_batch"], results["max_batch_size"]), setting.bands)
        results["tpot_low"], results["tpot_high"] = results["tpot"] * low, results["tpot"] * high
        results["tokens_per_second_per_user"] = 1.0 / results["tpot"]
        results["tokens_per_second_per_megawatt"] = token_rate_per_power(rate, whole, power)
        results["energy_per_token"] = energy_per_token(power, whole, rate)
        results["carbon_per_million_tokens"] = carbon_of_energy(results["energy_per_token"], joined.carbon_intensity)
        results["accelerator_hour_cost"] = joined.cost_rate
        results["tokens_per_dollar"] = rate_per_cost(rate, whole, joined.cost_rate)
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
                gibibytes(
                    usable_memory(
                        capacity,
                        joined.reserved_memory,
                        results["memory_weights"],
                        setting.software["memory_fraction"][:, 0],
                    )
                ),
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
