"""Results of served plans beside times and memory: costs, power, bands, notes in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from xlperf.base.arrays import Array, divide, exp, log, total
from xlperf.catalog.catalog import Catalog
from xlperf.engine.notes import (
    add_notes,
    basis_words,
    edge_notes,
    extrapolation_notes,
    gibibytes,
    limit_notes,
    unpriced_notes,
)
from xlperf.engine.own_runs import Corrections, narrowed, own_runs_note, source_width
from xlperf.engine.trust import NOT_SHOWN, band_ends, ends_together
from xlperf.equations.cost.tokens import (
    ALL_IN,
    drawn_terms,
    energy_per_token,
    mean_terms,
    pool_mean,
    split_costs,
    token_costs,
)
from xlperf.equations.hardware.power import Machine
from xlperf.equations.plan.records import Remark, broken_rules
from xlperf.equations.plan.serving_plan import InferencePlan
from xlperf.equations.plan.serving_rules import WARNINGS
from xlperf.equations.serving import BOUNDS, memory_of
from xlperf.equations.serving.energy import ServedWork, expert_pool_power, results_at_rate, serving_power
from xlperf.equations.serving.results import band_of_time, full_cache

if TYPE_CHECKING:
    from xlperf.engine.inference import Served, ServingSetting

# States of an accelerator and the parts of a decode step in which it is in them
_STATES = {
    "decode": ("time_matrix", "time_attention", "time_vector"),
    "message": ("time_communication",),
    "host": ("time_overhead",),
}
# Results that remarks need and the sheet does not have
_NOT_SHOWN = ("memory_usable", "request_cache", "expert_memory_usable", "needed_batches")


def prompt_memory(pool: ServingSetting) -> tuple[tuple[Array, Array, Array], np.ndarray]:
    """What one prompt needs of a prefill pool, what the engine may use and the capacity [B]; where that is too much."""
    prompt = pool.plan.replaced(output_length=np.ones(len(pool.plan)))
    memory = memory_of(replace(pool.deployment, plan=prompt))
    held = memory.with_batch(prompt)
    return (held.used, held.usable, memory.capacity), held.used > held.usable


def fitting_rows(served: Served, results: Mapping[str, Array], illegal: np.ndarray) -> Array:
    """1 where all pools of plans fit in memory, else 0, (rows,)."""
    return _where_none_lacks(_lacking_memory(served, results, illegal), results["fits"])


def _where_none_lacks(lacking: Sequence[Remark], fits: Array) -> Array:
    return np.where(np.logical_or.reduce([remark.rows for remark in lacking]), 0.0, fits)


def reported(
    served: Served,
    catalog: Catalog,
    mode: str,
    results: Mapping[str, Array],
    illegal: np.ndarray,
    reason: np.ndarray,
    known: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """Results with bands, costs, words and notes; NaN where a plan is illegal. Notes are added to ``reason``."""
    setting, pool, own = served.setting, served.prefilling, served.own
    lacking = _lacking_memory(served, results, illegal)
    whole = {name: values for name, values in results.items() if name not in _NOT_SHOWN}
    whole |= {"fits": _where_none_lacks(lacking, results["fits"]), "tokens_per_second_per_user": 1.0 / results["tpot"]}
    whole |= _costs(served, whole)
    whole |= _shares(whole)
    whole |= _bands(served, mode, whole, known, own)
    if own is not None:
        whole |= narrowed(whole, own.width)
        add_notes(reason, [own_runs_note(own, illegal)])
    bound = np.full(len(illegal), "", dtype=object)
    for code, word in enumerate(BOUNDS):
        bound[(results["bound"] == code) & ~illegal] = word
    add_notes(reason, [*lacking, *_notes(served, catalog, results, illegal)])
    if illegal.any():
        whole = {
            name: values if name == "memory_capacity" else np.where(illegal, np.nan, values)
            for name, values in whole.items()
        }
    rented = None if pool is None else pool.rented
    basis = basis_words(setting.rented, whole["accelerator_hour_cost"], rented)
    words = {name: np.where(illegal, "", values) for name, values in known.items() if name not in NOT_SHOWN}
    return {**whole, **words, "bound": bound, "cost_basis": basis, "reason": reason}


def _bands(
    served: Served, mode: str, results: Mapping[str, Array], known: Mapping[str, np.ndarray], own: Corrections | None
) -> dict[str, Array]:
    """Ends of the 80 % bands; those of rates, cost and energy are made of those of their parts.

    At a given rate of requests a plan's output is that rate, in whatever time. ``known``: as
    :func:`xlperf.engine.trust.trust` has it. ``own``: corrections by runs of the user's own.
    """
    setting = served.setting
    full = full_cache(results["running_batch"], results["max_batch_size"])
    constants = {name: values[:, 0] for name, values in setting.bands["serving_band"].items()}
    width = 1.0 + constants["widening"] * known["distance"]
    layers = "mixture_source" if setting.deployment.architecture.experts else "source"
    new, read = constants[layers], constants[f"read_{layers}"]
    source = source_width(known["unread"], own, new, read)
    late = source_width(
        known["unread"],
        own,
        np.maximum(new, constants["first_source"]),
        np.maximum(read, constants["first_read_source"]),
    )
    time, first = (
        exp(band_of_time(mode, full, setting.bands, width, prefix, more))
        for prefix, more in (("", source), ("first_", late))
    )
    memory = exp(band_ends(setting.bands["serving_band"], "memory", width))
    given = ~np.isnan(served.stated.request_rate)
    decoding = results["latency"] - results["ttft"]
    found: dict[str, Array] = {}
    whole = [
        np.where(given, 1.0, (results["ttft"] * first[at] + decoding * time[at]) / results["latency"]) for at in (0, 1)
    ]
    for at, end, sign in ((0, "low", -1.0), (1, "high", 1.0)):
        energy = ends_together(log(whole[at]), setting.power[f"log_power_{end}"][:, 0], sign)
        cost = results["cost_per_million_output_tokens"]
        found |= {
            f"tpot_{end}": results["tpot"] * time[at],
            f"ttft_{end}": results["ttft"] * first[at],
            f"tokens_per_second_{end}": results["tokens_per_second"] / whole[1 - at],
            f"memory_{end}": results["memory"] * memory[at],
            f"energy_per_token_{end}": results["energy_per_token"] * energy,
            f"cost_per_million_output_tokens_{end}": cost * whole[at],
        }
    return found


def _lacking_memory(served: Served, results: Mapping[str, Array], illegal: np.ndarray) -> list[Remark]:
    """Which legal plans need more memory than there is: on replicas, for one prompt in a prefill pool, for experts."""
    usable, capacity = results["memory_usable"], results["memory_capacity"]
    remarks = [_memory_note(~illegal & (results["fits"] < 1), "", results["memory"], usable, capacity)]
    if served.prefilling is not None:
        sizes, lacking = prompt_memory(served.prefilling)
        remarks.append(_memory_note(~illegal & lacking, "prefill pool: one prompt ", *sizes))
    if served.experts is not None:
        held, room, whole = results["expert_memory"], results["expert_memory_usable"], np.full(len(illegal), np.nan)
        whole[served.split] = memory_of(served.experts.deployment).capacity
        remarks.append(_memory_note(~illegal & (held > room), "expert pool: ", held, room, whole))
    return remarks


def _notes(served: Served, catalog: Catalog, results: Mapping[str, Array], illegal: np.ndarray) -> list[Remark]:
    """What a reader of legal plans should know beside what does not fit."""
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
        *_window_notes(setting, illegal),
        *unpriced_notes(illegal, catalog, _pool_prices(served)),
        *_limit_notes(served, illegal),
        *extrapolation_notes(setting.extrapolated, illegal),
    ]


def _window_notes(setting: ServingSetting, illegal: np.ndarray) -> list[Remark]:
    """A note on engines that keep the whole history in layers with a sliding window: their cache, and that without."""
    model, plan = setting.deployment.model, setting.plan
    whole = setting.deployment.software["whole_history"][:, 0] > 0.0
    longer = np.asarray(whole & (model.num_local_layers > 0.0) & (plan.context_length > model.window))
    if not longer.any():
        return []
    far = model.num_layers - model.num_local_layers
    ratio = model.num_layers / (far + model.num_local_layers * np.minimum(model.window / plan.context_length, 1.0))
    words = (
        "keeps the whole history in layers with a window of {} tokens, {} times the cache of an engine that does not"
    )
    return [Remark(longer & ~illegal, f"the engine {words}", (model.window, np.round(ratio, 1)))]


def _limit_notes(served: Served, illegal: np.ndarray) -> list[Remark]:
    """What a lowered power limit does to each pool; one whose accelerators are those that decode says it with them."""

    def of_pool(setting: ServingSetting, unsaid: np.ndarray) -> list[Remark]:
        return limit_notes(setting.limits, unsaid)

    decoding, number = served.setting, len(illegal)
    found = of_pool(decoding, illegal)
    for words, pool, rows in (
        ("prefill pool: ", served.prefilling, np.arange(number)),
        ("expert pool: ", served.experts, served.split),
    ):
        if pool is not None:
            same = pool.accelerators == decoding.accelerators[rows]
            found += [note.of_rows(rows, number, words) for note in of_pool(pool, illegal[rows] | same)]
    return found


def _memory_note(lacking: np.ndarray, pool: str, used: Array, usable: Array, capacity: Array) -> Remark:
    sizes = gibibytes(used), gibibytes(np.minimum(usable, capacity)), gibibytes(capacity)
    return Remark(lacking, f"{pool}needs {{}} GiB, the engine may use {{}} GiB of {{}} GiB", sizes)


def _costs(served: Served, results: Mapping[str, Array]) -> dict[str, Array]:
    """What the tokens of plans cost; each pool by its own terms."""
    share, rate, whole = results["prefill_share"], results["tokens_per_second"], served.stated.num_accelerators
    power = _power(served, results)
    decoding, prefilling = (
        drawn_terms(each.terms, drawn, each.limits.own)
        for each, drawn in zip((served.setting, served.prefilling or served.setting), power, strict=True)
    )
    decode_power, expert_power = power[0], np.full_like(rate, np.nan)
    if served.experts is not None:
        rows, experts, part = served.split, served.experts, _expert_share(served)
        own, other = _expert_power(served, experts, results)
        of_attention = drawn_terms(served.setting.terms.take(rows), own, served.setting.limits.take(rows).own)
        both = mean_terms(of_attention, drawn_terms(experts.terms, other, experts.limits.own), part)
        decoding = decoding.with_rows(rows, both)
        decode_power, expert_power = (values.copy() for values in (decode_power, expert_power))
        decode_power[rows], expert_power[rows] = own, other
        power[0][rows] = pool_mean(own, other, part)
    terms, drawn = mean_terms(decoding, prefilling, share), pool_mean(*power, share)
    lengths = served.stated.prompt_length, served.stated.output_length
    return {
        **token_costs(terms, whole, rate, ALL_IN["inference"]),
        **split_costs(decoding, prefilling, share, whole, rate, *lengths),
        "accelerator_hour_cost": terms.cost_rate,
        "accelerator_power": drawn,
        "decode_power": decode_power,
        "prefill_power": power[1],
        "expert_power": expert_power,
        "accelerator_energy_per_token": energy_per_token(drawn, whole, rate),
    }


def _shares(results: Mapping[str, Array]) -> dict[str, Array]:
    """Memory over its capacity, and shares of a decode step."""
    times = {state: total(np.stack([results[name] for name in names], axis=-1)) for state, names in _STATES.items()}
    step = total(np.stack(list(times.values()), axis=-1))
    return {
        "memory_share": results["memory"] / results["memory_capacity"],
        "compute_share": divide(times["decode"], step),
        "communication_share": divide(times["message"], step),
    }


def power_at_rate(served: Served, results: Mapping[str, Array], rate: Array) -> Array:
    """Mean power of an accelerator, (rows,), were the same work done at another rate of tokens, (rows,). [W]"""
    same = results_at_rate(results, rate)
    return pool_mean(*_power(served, same), same["prefill_share"])


def _power(served: Served, results: Mapping[str, Array]) -> tuple[Array, Array]:
    """Mean power of an accelerator while it decodes and while it prefills, or of the pools that do."""
    decoding, prefilling = served.setting, served.prefilling or served.setting
    first, second = decoding.deployment, prefilling.deployment
    plan = _with_sizes(served.stated, first.plan)
    machines = (
        Machine(first.device, decoding.limits, decoding.power),
        Machine(second.device, prefilling.limits, prefilling.power),
    )
    work = ServedWork(first.model, plan, first.architecture, results, first.popularity)
    return serving_power(machines, work)


def _with_sizes(stated: InferencePlan, plan: InferencePlan) -> InferencePlan:
    """Plans as the sheet has them with the bytes of weights, inputs and activations, (rows,)."""
    return stated.replaced(**{name: getattr(plan, name) for name in ("weight_size", "input_size", "activation_size")})


def _expert_share(served: Served) -> Array:
    """Share of expert pools among the accelerators that decode, (expert pools,). [-]"""
    counts = [each[served.split] for each in (served.setting.plan.num_accelerators, served.stated.expert_accelerators)]
    return np.asarray(counts[1] / (counts[0] + counts[1]))


def _expert_power(served: Served, experts: ServingSetting, results: Mapping[str, Array]) -> tuple[Array, Array]:
    """Mean power of an accelerator of the attention pools and of the expert pools, (expert pools,). [W]"""
    rows, setting = served.split, served.setting
    own = setting.deployment.take(rows)
    power = {name: values[rows] for name, values in setting.power.items()}
    machines = (
        Machine(own.device, setting.limits.take(rows), power),
        Machine(experts.deployment.device, experts.limits, experts.power),
    )
    plan = _with_sizes(served.stated.take(rows), own.plan)
    counts = own.plan.num_accelerators, experts.plan.num_accelerators
    some = {name: values[rows] for name, values in results.items() if isinstance(values, np.ndarray)}
    work = ServedWork(own.model, plan, own.architecture, some, own.popularity)
    return expert_pool_power(machines, work, counts)


def _pool_prices(served: Served) -> dict[str, tuple[np.ndarray, Array]]:
    """Accelerators of the pools of plans and what they cost, by a word for the pool; one where all are the same."""
    decoding, prefilling = served.setting, served.prefilling
    found = {"": (decoding.accelerators, decoding.terms.cost_rate)}
    if prefilling is not None:
        same = prefilling.accelerators == decoding.accelerators
        cost_rate = np.where(same, 0.0, prefilling.terms.cost_rate)
        found["prefill "] = prefilling.accelerators, cost_rate
    if served.experts is not None:
        accelerators, cost_rate = decoding.accelerators.copy(), np.zeros(len(decoding.accelerators))
        same = served.experts.accelerators == accelerators[served.split]
        accelerators[served.split] = served.experts.accelerators
        cost_rate[served.split] = np.where(same, 0.0, served.experts.terms.cost_rate)
        found["expert "] = accelerators, cost_rate
    return found
