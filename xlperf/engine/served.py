"""Served plans with their settings (replicas or pools), and their results besides times and rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from xlperf.base.arrays import Array, divide, exp, log, total
from xlperf.catalog.calibration import Calibration
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.join import POOLS, Joined, Named, constants_by_family, join, plan_columns, pool_rows, where_legal
from xlperf.engine.learning import Corrections
from xlperf.engine.notes import (
    add_notes,
    basis_words,
    edge_notes,
    extrapolation_notes,
    first_token_ends,
    host_note,
    limit_notes,
    memory_note,
    serving_remedies,
    unpriced_notes,
    window_notes,
)
from xlperf.engine.software import memory_constants, with_formats, with_parts
from xlperf.engine.trust import NOT_SHOWN, band_width, ends_together
from xlperf.engine.vision import encoder_constants, encoder_results, pool_note, with_image_tokens
from xlperf.equations.cost.tco import (
    ALL_IN,
    Terms,
    drawn_terms,
    energy_per_token,
    mean_terms,
    pool_mean,
    split_costs,
    token_costs,
)
from xlperf.equations.hardware.power import Machine, PowerLimits
from xlperf.equations.model.cores import own_families
from xlperf.equations.model.model import Architecture
from xlperf.equations.network.collectives import OPERATIONS
from xlperf.equations.plan.records import FP4, PRECISION_CODES, Remark, broken_rules
from xlperf.equations.plan.serving_plan import (
    PARTS,
    SERVED_PRECISIONS,
    WARNINGS,
    InferencePlan,
    pool_plans,
    with_defaults,
)
from xlperf.equations.serving.deployment import (
    Deployment,
    engine_constants,
    expert_constants,
    with_copied_groups,
    with_stated_states,
)
from xlperf.equations.serving.energy import ServedWork, expert_pool_power, results_at_rate, serving_power
from xlperf.equations.serving.memory import memory_of
from xlperf.equations.serving.phases import BOUNDS
from xlperf.equations.serving.pools import Pools, pools_of
from xlperf.equations.serving.weights import with_stated_host_weights

_EXPERTS = ("all_to_all", "reduce_scatter")
_KERNELS = ("gemm", "vector", "engine_all_reduce", *(name for name in OPERATIONS if name not in _EXPERTS))
_ATTENTION = {False: ("attention", "attention_decode"), True: ("attention", "attention_latent")}
# Families that never mark a plan as extrapolated; the family of their engine or kernel does
_BESIDE_OTHERS = ("gemm_wide", "serving_eager", "serving_memory", "engine_all_reduce", "serving_load", "serving_host",
                  "serving_attention", "serving_experts", "attention_latent", "linear_attention", "power")  # fmt: skip
_IN_TABLE = np.array([PRECISION_CODES[name] for name in SERVED_PRECISIONS])
_OF_FORMATS = ("precision", "activation_precision", "kv_precision", "wide_attention")
_SOFTWARE = ("serving_software", "serving_memory", "serving_load", "serving_host", "serving_attention", "band")


@dataclass(frozen=True)
class ServingSetting:
    """A block of served plans with their model, accelerators, calibration, prices and limits, (rows,)."""

    deployment: Deployment
    band: Mapping[str, Array]  # calibrated half-widths of bands
    power: Mapping[str, Array]  # calibrated power constants
    extrapolated: list[tuple[str, np.ndarray]]  # family, and rows without constants of their own
    remarks: list[Remark]  # rules that need the catalog
    max_sequence_length: Array  # of the model [token]
    accelerators: np.ndarray  # rows of the sheet accelerators
    terms: Terms  # prices and power
    rented: np.ndarray  # whether the price is a rent
    limits: PowerLimits

    @property
    def plan(self) -> InferencePlan:
        """The plans with their defaults."""
        return self.deployment.plan

    def take(self, rows: slice) -> ServingSetting:
        """Select rows; of plan columns the numbers alone."""
        band, power = ({name: values[rows] for name, values in each.items()} for each in (self.band, self.power))
        extrapolated = [(family, far[rows]) for family, far in self.extrapolated]
        remarks, deployment = [remark.take(rows) for remark in self.remarks], self.deployment.take(rows)
        facts = self.max_sequence_length[rows], self.accelerators[rows], self.terms.take(rows), self.rented[rows]
        return ServingSetting(deployment, band, power, extrapolated, remarks, *facts, self.limits.take(rows))


@dataclass(frozen=True)
class Served:
    """Plans of one mode with the settings of their replicas or pools."""

    stated: InferencePlan  # as in the sheet
    setting: ServingSetting  # of replicas or decode pools, (rows,)
    all_pools: ServingSetting | None = None  # decode, prefill and expert pools, one after the other
    prefilling: ServingSetting | None = None  # of prefill pools, (rows,)
    experts: ServingSetting | None = None  # of expert pools, (expert pools,)
    split: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # row of each expert pool
    requests: Array | None = None  # in flight over all pools

    def pools(self) -> Pools | None:
        """Pools of disaggregated plans, else None."""
        if self.all_pools is None or self.requests is None:
            return None
        return pools_of(self.all_pools.deployment, self.requests, self.split)


def _constants(
    calibration: Calibration, joined: Joined, plan: InferencePlan, architecture: Architecture
) -> tuple[dict[str, Mapping[str, Array]], list[tuple[str, np.ndarray]]]:
    eager = ("serving_eager",) if (plan.graphs == 0.0).any() else ()
    # Matrix units without FP4 or FP8 run weights of these formats with the kernels of INT4 weights.
    peaks = np.where(plan.four_bits, joined.peaks[:, FP4], joined.peak_for(plan.stored_in_table))
    widened = plan.is_float & np.isnan(peaks)
    stored = np.where(widened, PRECISION_CODES["int4"], plan.stored_in_table)
    wanted = (
        (("gemm_wide",), joined.wide_keys),
        ((*_KERNELS, *(_EXPERTS if architecture.experts else ())), joined.keys),
        (("serving_experts",) if architecture.experts else (), joined.keys_named(stored)),
        (_ATTENTION[architecture.one_vector], joined.keys_for(plan.attention_in_table)),
        (own_families(architecture), joined.keys),
        ((*_SOFTWARE, "power", *eager), joined.keys),
    )
    constants, extrapolated = constants_by_family(calibration, wanted, beside=_BESIDE_OTHERS)
    if architecture.experts:
        constants["serving_experts"] = expert_constants(constants["serving_experts"], plan, joined.device)
    for part in PARTS:
        if plan.part_sizes(part) is not None:
            constants[f"gemm_{part}"] = _of_part(calibration, joined, plan, part)
    return constants, extrapolated


def _of_part(calibration: Calibration, joined: Joined, plan: InferencePlan, part: str) -> Mapping[str, Array]:
    """GEMM constants of a part with its own precision, and its peak rate relative to that of the plan, (rows, 1)."""
    own, of_plan = getattr(plan, f"{part}_product"), _IN_TABLE[plan.product_codes]
    codes = np.where(np.isnan(own), of_plan, own).astype(np.int64)
    constants = constants_by_family(calibration, [(("gemm",), joined.keys_for(codes))], beside=("gemm",))[0]["gemm"]
    peaks = joined.peak_for(codes), joined.device.rate().peak_flop_rate[:, 0]
    return {**constants, "peak_ratio": np.where(codes == of_plan, 1.0, divide(*peaks))[:, None]}


def serving_setting(
    plans: Table, plan: InferencePlan, catalog: Catalog, named: Named, architecture: Architecture
) -> ServingSetting:
    """Model, accelerators, calibration, prices and limits of a block of plans."""
    if plan.has("activation_precision"):
        plans = replace(plans, columns={**plans.columns, "precision": plan.product_precision})
    joined = join(plans, catalog, named)
    constants, extrapolated = _constants(catalog.calibration, joined, plan, architecture)
    band, power = constants.pop("band"), constants.pop("power")
    kernels, software = engine_constants(constants, architecture)
    for name, values in memory_constants(plans, catalog, named.models).items():
        software[name] = np.where(np.isnan(values), software[name], values)
    complete = with_defaults(plan)
    machine = joined.device, joined.network, kernels, software["kernel_overhead_time"]
    of_images, no_encoder = encoder_constants(plans, plan, catalog, named.models, machine)
    software |= of_images
    deployment = Deployment(
        model=with_copied_groups(with_stated_states(joined.model, plan), complete, software["ranks"][:, 0]),
        device=joined.device.with_attention(joined.peak_for(plan.attention_in_table)),
        network=joined.network,
        plan=complete,
        kernels=kernels,
        software=software,
        reserved_memory=joined.reserved_memory,
        architecture=architecture,
    )
    facts = joined.max_sequence_length, joined.accelerators, joined.terms, joined.rented, joined.power
    deployment = with_stated_host_weights(deployment)
    return ServingSetting(deployment, band, power, extrapolated, [*joined.rules, *no_encoder], *facts)


def served_plans(plans: Table, catalog: Catalog, named: Named, architecture: Architecture, mode: str) -> Served:
    """Plans of one ``mode`` (static, continuous, disaggregated) with the settings of their replicas or pools."""
    plans = with_image_tokens(plans, catalog, named.models)
    sheet, plans = plans, with_formats(plans, catalog, named)
    stated = with_parts(plan_columns(plans, InferencePlan), plans)
    if mode != "disaggregated":
        return Served(stated, serving_setting(plans, stated, catalog, named, architecture))
    # One table of all pools: decode, prefill, expert.
    pools, requests, split = pool_plans(stated)
    number, rows = len(plans), np.arange(len(plans))
    rows = np.concatenate([rows, rows, split])

    def of_pools(decode: np.ndarray, prefill: np.ndarray, experts: np.ndarray) -> np.ndarray:
        return np.concatenate([decode, prefill, experts[split]])

    accelerators, networks = (
        of_pools(decode, *(pool_rows(plans, catalog, decode, column, pool) for pool in POOLS))
        for decode, column in ((named.accelerators, "accelerator"), (named.networks, "network"))
    )
    pool_table = sheet.take(rows)
    columns = {**pool_table.columns, "num_accelerators": pools.num_accelerators}
    names = [f"{pool}_accelerator" for pool in POOLS]
    if any(name in plans for name in names):
        decode = plans.text("accelerator")
        words = (plans.text(name) for name in names)
        columns["accelerator"] = of_pools(decode, *(np.where(word == "", decode, word) for word in words))
    pool_names = Named(named.models[rows], accelerators, networks)
    pool_table = replace(pool_table, columns=columns)
    if plans is not sheet:
        pool_table, pools = _formats_of_pools(pool_table, pools, catalog, pool_names)
    setting = serving_setting(pool_table, pools, catalog, pool_names, architecture)
    decoding, prefilling = setting.take(slice(0, number)), setting.take(slice(number, 2 * number))
    experts = setting.take(slice(2 * number, None)) if len(split) else None
    return Served(stated, decoding, setting, prefilling, experts, split, requests)


def _formats_of_pools(
    table: Table, pools: InferencePlan, catalog: Catalog, named: Named
) -> tuple[Table, InferencePlan]:
    """Pools with the products that their own accelerators compute in the formats of the checkpoint."""
    table = with_formats(table, catalog, named)
    own = plan_columns(table, InferencePlan)
    columns = {name: getattr(own, name) for name in _OF_FORMATS}
    return table, with_parts(pools.replaced(**columns), table)


# Parts of a decode step by the state of the accelerator: computing, sending, waiting for the host
_STATES = (("time_matrix", "time_attention", "time_vector"), ("time_communication",), ("time_overhead",))
# Results that only remarks use
_NOT_SHOWN = ("memory_usable", "host_capacity", "request_cache", "places", "expert_memory_usable", "needed_batches")


def prompt_memory(pool: ServingSetting) -> tuple[tuple[Array, Array, Array], np.ndarray]:
    """Memory of one prompt in a prefill pool (needed, usable, capacity) [B], and whether it exceeds the usable part."""
    prompt = pool.plan.replaced(output_length=np.ones(len(pool.plan)))
    memory = memory_of(replace(pool.deployment, plan=prompt))
    batch = memory.with_batch(prompt)
    return (batch.used, batch.usable, memory.capacity), batch.used > batch.usable


def fitting_rows(served: Served, results: Mapping[str, Array], illegal: np.ndarray) -> Array:
    """1 for plans whose pools all fit in memory, else 0, (rows,)."""
    return _fits(_lacking_memory(served, results, illegal), results["fits"])


def _fits(lacking: Sequence[Remark], fits: Array) -> Array:
    return np.where(np.logical_or.reduce([remark.rows for remark in lacking]), 0.0, fits)


def reported(
    served: Served,
    catalog: Catalog,
    results: Mapping[str, Array],
    illegal: np.ndarray,
    reason: np.ndarray,
    known: Mapping[str, np.ndarray],
    own: Corrections | None,
) -> dict[str, np.ndarray]:
    """Results with bands, costs, words and notes, the last added to ``reason``; NaN for illegal plans."""
    setting, pool = served.setting, served.prefilling
    lacking = _lacking_memory(served, results, illegal)
    whole = {name: values for name, values in results.items() if name not in _NOT_SHOWN}
    whole |= {"fits": _fits(lacking, results["fits"]), "tokens_per_second_per_user": 1.0 / results["tpot"]}
    requests = whole["tokens_per_second"] / served.stated.output_length
    whole |= encoder_results((pool or setting).deployment.software, requests)
    whole |= _costs(served, whole, own)
    whole |= _shares(whole)
    whole |= _bands(served, {**results, **whole}, known, own)
    if own is not None:
        add_notes(reason, own.notes(illegal))
    bound = np.full(len(illegal), "", dtype=object)
    for code, word in enumerate(BOUNDS):
        bound[(results["bound"] == code) & ~illegal] = word
    add_notes(reason, [*lacking, pool_note(whole, illegal), *_notes(served, catalog, results, illegal)])
    whole = where_legal(whole, illegal)
    basis = basis_words(setting.rented, whole["accelerator_hour_cost"], None if pool is None else pool.rented)
    words = {name: np.where(illegal, "", values) for name, values in known.items() if name not in NOT_SHOWN}
    return {**whole, **words, "bound": bound, "cost_basis": basis, "reason": reason}


def _bands(
    served: Served, results: Mapping[str, Array], known: Mapping[str, np.ndarray], own: Corrections | None
) -> dict[str, Array]:
    """Ends of the 80 % bands; rates, cost and energy combine those of their parts; a request rate fixes the output."""
    band, experts = served.setting.band, served.setting.deployment.architecture.experts
    time, first = (band_width(band, name, known, experts) for name in ("token", "first"))
    given = ~np.isnan(served.stated.request_rate)
    load = np.where(given, served.stated.request_rate / results["max_request_rate"], 0.0)
    queue = np.where(given, results["queue_time"] / results["ttft"], 0.0)
    # A wait grows as rho / (1 - rho): near saturation a small error of the rate is a large one of the wait.
    waiting = time * (queue / np.maximum(1.0 - load, 0.1))
    first = np.sqrt(first * first + waiting * waiting)
    widths = {"tpot": time, "ttft": first, "accelerator_power": band["power"][:, 0]}
    logs = {name: np.stack([-width, width]) for name, width in widths.items()}
    if own is not None:
        logs = {name: own.ends(name, ends) for name, ends in logs.items()}
    time, first = exp(logs["tpot"]), exp(logs["ttft"])
    memory = exp(np.array([[-1.0], [1.0]]) * band["serving_memory"][:, 0])
    # Latency combines both; costs follow it unless the rate is given.
    decoding = results["latency"] - results["ttft"]
    latency = [
        np.where(given, 1.0, (results["ttft"] * first[end] + decoding * time[end]) / results["latency"])
        for end in (0, 1)
    ]
    first_token = first_token_ends(served.stated, served.setting.plan, results, first, time)
    ends: dict[str, Array] = {}
    for index, end, sign in ((0, "low", -1.0), (1, "high", 1.0)):
        energy = ends_together(log(latency[index]), logs["accelerator_power"][index], sign)
        cost = results["cost_per_million_output_tokens"]
        ends |= {
            f"tpot_{end}": results["tpot"] * time[index],
            f"ttft_{end}": first_token[index],
            f"tokens_per_second_{end}": results["tokens_per_second"] / latency[1 - index],
            f"memory_{end}": results["memory"] * memory[index],
            f"energy_per_token_{end}": results["energy_per_token"] * energy,
            f"cost_per_million_output_tokens_{end}": cost * latency[index],
        }
    return ends


def _lacking_memory(served: Served, results: Mapping[str, Array], illegal: np.ndarray) -> list[Remark]:
    """Legal plans that exceed the memory of replicas, of a prefill pool with one prompt, or of an expert pool."""
    usable, capacity = results["memory_usable"], results["memory_capacity"]
    own = ~illegal & (results["fits"] < 1)
    remarks = [memory_note(own, "", results["memory"], usable, capacity)]
    remarks.append(host_note(~illegal, results["memory_host"], results["host_capacity"]))
    remarks += serving_remedies(served.setting.plan, results, own)
    if served.prefilling is not None:
        sizes, lacking = prompt_memory(served.prefilling)
        remarks.append(memory_note(~illegal & lacking, "prefill pool: one prompt ", *sizes))
    if served.experts is not None:
        used, usable = results["expert_memory"], results["expert_memory_usable"]
        capacity = np.full(len(illegal), np.nan)
        capacity[served.split] = memory_of(served.experts.deployment).capacity
        remarks.append(memory_note(~illegal & (used > usable), "expert pool: ", used, usable, capacity))
    return remarks


def _notes(served: Served, catalog: Catalog, results: Mapping[str, Array], illegal: np.ndarray) -> list[Remark]:
    """Notes on legal plans besides their memory."""
    setting, notes, needed = served.setting, [], results["needed_batches"]
    if served.experts is not None:
        stated = served.stated.ping_pong_batches
        words = "ping pong batches {} do not hide the messages between attention and experts: {} would"
        notes.append(Remark(~illegal & (needed > stated), words, (stated, needed)))
    limited = setting.plan.replaced(max_sequence_length=setting.max_sequence_length)
    warnings = broken_rules(WARNINGS, limited, setting.deployment.model)
    return [
        *notes,
        *edge_notes(served.stated, setting.plan, results, illegal),
        *(Remark(each.rows & ~illegal, each.sentence, each.values) for each in warnings),
        *window_notes(setting.deployment, illegal),
        *unpriced_notes(illegal, catalog, _pool_prices(served)),
        *_limit_notes(served, illegal),
        *extrapolation_notes(setting.extrapolated, illegal),
    ]


def _limit_notes(served: Served, illegal: np.ndarray) -> list[Remark]:
    """Effects of a lowered power limit by pool; pools with the decode pool's accelerators need no note of their own."""
    decoding, number = served.setting, len(illegal)
    notes = limit_notes(decoding.limits, illegal)
    for words, pool, rows in (
        ("prefill pool: ", served.prefilling, np.arange(number)),
        ("expert pool: ", served.experts, served.split),
    ):
        if pool is not None:
            same = pool.accelerators == decoding.accelerators[rows]
            of_pool = limit_notes(pool.limits, illegal[rows] | same)
            notes += [note.of_rows(rows, number, words) for note in of_pool]
    return notes


def _costs(served: Served, results: Mapping[str, Array], own: Corrections | None) -> dict[str, Array]:
    """Cost and power of tokens, each pool on its own terms."""
    share, rate, count = results["prefill_share"], results["tokens_per_second"], served.stated.num_accelerators
    drawing = results if own is None else own.drawing(results)
    power = _power(served, drawing)
    if own is not None:
        before, after = (pool_mean(*power, each["prefill_share"]) for each in (drawing, results))
        drawn = own.factor("accelerator_power", len(rate)) * divide(before, after)
        power = power[0] * drawn, power[1] * drawn
    decoding, prefilling = (
        drawn_terms(each.terms, watts, each.limits.own)
        for each, watts in zip((served.setting, served.prefilling or served.setting), power, strict=True)
    )
    decode_power, expert_power = power[0].copy(), np.full_like(rate, np.nan)
    if served.experts is not None:
        # Decode terms and power: means of the attention and the expert pool.
        rows, experts = served.split, served.experts
        counts = served.setting.plan.num_accelerators[rows], served.stated.expert_accelerators[rows]
        expert_share = np.asarray(counts[1] / (counts[0] + counts[1]))
        attention_watts, expert_watts = _expert_power(served, experts, drawing)
        if own is not None:
            attention_watts, expert_watts = attention_watts * drawn[rows], expert_watts * drawn[rows]
        limits = served.setting.limits.take(rows)
        attention_terms = drawn_terms(served.setting.terms.take(rows), attention_watts, limits.own)
        expert_terms = drawn_terms(experts.terms, expert_watts, experts.limits.own)
        decoding = decoding.with_rows(rows, mean_terms(attention_terms, expert_terms, expert_share))
        decode_power[rows], expert_power[rows] = attention_watts, expert_watts
        power[0][rows] = pool_mean(attention_watts, expert_watts, expert_share)
    terms, mean_power = mean_terms(decoding, prefilling, share), pool_mean(*power, share)
    lengths = served.stated.prompt_length, served.stated.output_length
    return {
        **token_costs(terms, count, rate, ALL_IN["inference"]),
        **split_costs(decoding, prefilling, share, count, rate, *lengths),
        "accelerator_hour_cost": terms.cost_rate,
        "accelerator_power": mean_power,
        "decode_power": decode_power,
        "prefill_power": power[1],
        "expert_power": expert_power,
        "accelerator_energy_per_token": energy_per_token(mean_power, count, rate),
    }


def _shares(results: Mapping[str, Array]) -> dict[str, Array]:
    """Memory over its capacity, and shares of a decode step."""
    times = [total(np.stack([results[name] for name in names], axis=-1)) for names in _STATES]
    step = total(np.stack(times, axis=-1))
    return {
        "memory_share": results["memory"] / results["memory_capacity"],
        "compute_share": divide(times[0], step),
        "communication_share": divide(times[1], step),
    }


def power_at_rate(served: Served, results: Mapping[str, Array], rate: Array) -> Array:
    """Mean power of an accelerator for the same work at another token rate, (rows,). [W]"""
    same = results_at_rate(results, rate)
    return pool_mean(*_power(served, same), same["prefill_share"])


def _power(served: Served, results: Mapping[str, Array]) -> tuple[Array, Array]:
    """Mean power of an accelerator while it decodes and while it prefills, or of each pool. [W]"""
    decoding, prefilling = served.setting, served.prefilling or served.setting
    first, second = decoding.deployment, prefilling.deployment
    plan = _with_sizes(served.stated, first.plan)
    machine = Machine(first.device, decoding.limits, decoding.power)
    machines = machine, Machine(second.device, prefilling.limits, prefilling.power)
    work = ServedWork(first.model, plan, first.architecture, results, first.popularity)
    return serving_power(machines, work)


def _with_sizes(stated: InferencePlan, plan: InferencePlan) -> InferencePlan:
    """Plans of the sheet with the bytes of weights, inputs and activations, (rows,)."""
    return stated.replaced(**{name: getattr(plan, name) for name in ("weight_size", "input_size", "activation_size")})


def _expert_power(served: Served, experts: ServingSetting, results: Mapping[str, Array]) -> tuple[Array, Array]:
    """Mean power of an accelerator of the attention pools and of the expert pools, (expert pools,). [W]"""
    rows, setting = served.split, served.setting
    attention = setting.deployment.take(rows)
    power = {name: values[rows] for name, values in setting.power.items()}
    machines = (
        Machine(attention.device, setting.limits.take(rows), power),
        Machine(experts.deployment.device, experts.limits, experts.power),
    )
    plan = _with_sizes(served.stated.take(rows), attention.plan)
    counts = attention.plan.num_accelerators, experts.plan.num_accelerators
    of_rows = {name: values[rows] for name, values in results.items() if isinstance(values, np.ndarray)}
    work = ServedWork(attention.model, plan, attention.architecture, of_rows, attention.popularity)
    return expert_pool_power(machines, work, counts)


def _pool_prices(served: Served) -> dict[str, tuple[np.ndarray, Array]]:
    """Accelerators of the pools and their cost rate by the pool's word; one entry if all are the same."""
    decoding, prefilling = served.setting, served.prefilling
    prices = {"": (decoding.accelerators, decoding.terms.cost_rate)}
    if prefilling is not None:
        same = prefilling.accelerators == decoding.accelerators
        cost_rate = np.where(same, 0.0, prefilling.terms.cost_rate)
        prices["prefill "] = prefilling.accelerators, cost_rate
    if served.experts is not None:
        accelerators, cost_rate = decoding.accelerators.copy(), np.zeros(len(decoding.accelerators))
        same = served.experts.accelerators == accelerators[served.split]
        accelerators[served.split] = served.experts.accelerators
        cost_rate[served.split] = np.where(same, 0.0, served.experts.terms.cost_rate)
        prices["expert "] = accelerators, cost_rate
    return prices
