"""Inference plans evaluated: joined to the catalog, legality, results by mode, costs and notes."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from xlperf.base.arrays import Array
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table, Words
from xlperf.engine.conditions import format_and_load
from xlperf.engine.join import (
    Named,
    architecture_codes,
    groups_of,
    in_batches,
    load_carbon_share,
    named_rows,
    software_words,
)
from xlperf.engine.models import architecture_of
from xlperf.engine.notes import (
    add_notes,
    name_notes,
    rounded_down,
)
from xlperf.engine.served import Served, ServingSetting, served_plans
from xlperf.engine.served_results import fitting_rows, power_at_rate, prompt_memory, reported
from xlperf.engine.stack_rules import refusals
from xlperf.engine.trust import coordinates, trust
from xlperf.equations.plan.records import Remark, broken_rules, remarks_of_rows
from xlperf.equations.plan.serving_rules import (
    CAPACITY_RULES,
    EXPERT_POOL_RULES,
    MODE_RULES,
    POOL_RULES,
    REQUEST_RULES,
    SERVING_RULES,
)
from xlperf.equations.serving import (
    BatchTimes,
    loaded_results,
    memory_of,
    operating,
    pooled_results,
    pooled_target_results,
    serving_results,
    serving_times,
    target_results,
)
from xlperf.equations.serving.continuous import Operation
from xlperf.equations.serving.expert_pools import POOL_SHARES, expert_pool_memory
from xlperf.equations.serving.memory import most_running
from xlperf.equations.serving.pools import Pools
from xlperf.equations.serving.results import QUANTILE_NAMES

_MODES = ("static", "continuous", "disaggregated")
_OF_EXPERTS = ("expert_memory", "expert_memory_usable", "needed_batches", *POOL_SHARES)
_AT_TARGETS = ("batch_at_targets", "tokens_per_second_at_targets")
_TIMES = (
    *("ttft", "tpot", "tpot_itl", "latency", "tokens_per_second", "tokens_per_second_per_accelerator"),
    *(f"{name}_{quantile}" for name in ("ttft", "tpot") for quantile in QUANTILE_NAMES),
    *("queue_time", "running_batch", "max_request_rate", "prefill_time", "decode_time", "prefill_share"),
    *("time_matrix", "time_attention", "time_vector", "time_communication", "time_overhead"),
)
# Results by the equations that they take alone; cost, energy, bands, badges and notes take all of them
_GROUPS = {
    **dict.fromkeys(_TIMES, "times"),
    **dict.fromkeys(("fits", "max_batch_size"), "memory"),
    **dict.fromkeys(_AT_TARGETS, "targets"),
}


def evaluate_inference(plans: Table, catalog: Catalog, results: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """Results of a block of inference plans.

    ``results``: columns that are asked for: equations that they do not take are left out. All by default. Returns every
    column of ``inference_results``, in the units used inside; or those asked for and what comes with them, and a
    ``reason`` that says why a plan is illegal but has no notes.
    """
    named = named_rows(plans, catalog)
    codes = _codes(plans, catalog, named)
    rated = None if "request_rate" not in plans else ~np.isnan(plans["request_rate"])
    groups = groups_of(results, _GROUPS)

    def evaluated(some: Table, rows: Named, code: int) -> dict[str, np.ndarray]:
        served, mode = _served(some, catalog, rows, code)
        with np.errstate(all="ignore"):
            found = _results(served, mode) if groups is None else _asked_for(served, mode, groups)
            illegal, reason = remarks_of_rows(_broken(served, found), len(some))
            found = {**dict.fromkeys((*_AT_TARGETS, *_OF_EXPERTS), np.full(len(some), np.nan)), **found}
            if groups is not None:
                if "memory" in groups:
                    found["fits"] = fitting_rows(served, found, illegal)
                names = [name for name, group in _GROUPS.items() if group in groups]
                return {**{name: np.where(illegal, np.nan, found[name]) for name in names}, "reason": reason}
            at = coordinates(some, found)
            stack, conditions = software_words(some), format_and_load(some)
            known = trust("inference", catalog, rows.models, rows.accelerators, stack, conditions, at)
            add_notes(reason, _refused(served, stack, illegal))
            numbers = reported(served, catalog, mode, found, illegal, reason, known)
            add_notes(numbers["reason"], name_notes(some, catalog, illegal))
            if "load_by_hour" in some:
                met = load_carbon_share(some, catalog, rows.accelerators)
                numbers["carbon_per_million_tokens"] = met * numbers["carbon_per_million_tokens"]
            return numbers

    return in_batches(plans, catalog, named, codes, evaluated, rated)


def power_at_rates(plans: Table, catalog: Catalog, rates: Array) -> Array:
    """Mean power of an accelerator of plans were the same work done at given rates of tokens, (rows,). [W]

    ``plans``: inference plans without expert pools. ``rates``: tokens per second of the deployments, (rows,). NaN where
    a plan is illegal.
    """
    named = named_rows(plans, catalog)
    codes, found = _codes(plans, catalog, named), np.full(len(plans), np.nan)
    for code in sorted(set(codes.tolist())):
        rows = np.flatnonzero(codes == code)
        served, mode = _served(plans.take(rows), catalog, named.take(rows), code)
        with np.errstate(all="ignore"):
            results = _results(served, mode)
            illegal, _ = remarks_of_rows(_broken(served, results), len(rows))
            found[rows] = np.where(illegal, np.nan, power_at_rate(served, results, rates[rows]))
    return found


def _codes(plans: Table, catalog: Catalog, named: Named) -> np.ndarray:
    """Architecture and mode of plans: rows of one code are evaluated together."""
    codes = architecture_codes(named, catalog) * len(_MODES)
    return np.asarray(codes + plans.codes("mode", {mode: code for code, mode in enumerate(_MODES)}))


def _served(plans: Table, catalog: Catalog, named: Named, code: int) -> tuple[Served, str]:
    """Plans of a code of :func:`_codes`, and their mode."""
    architecture, mode = architecture_of(code // len(_MODES)), _MODES[code % len(_MODES)]
    return served_plans(plans, catalog, named, architecture, mode), mode


def serving_memory(plans: Table, catalog: Catalog) -> dict[str, np.ndarray]:
    """Memory of a block of inference plans without their times: a small part of the work of evaluating them.

    ``plans``: inference plans without a rate of requests. Returns ``max_batch_size`` as in their results, NaN where a
    plan is illegal; ``fits`` 0 where it does not fit, NaN where it is illegal, 1 where it fits or where its load alone
    can tell.
    """
    named = named_rows(plans, catalog)

    def evaluated(some: Table, rows: Named, code: int) -> dict[str, np.ndarray]:
        served, mode = _served(some, catalog, rows, code)
        deployment = served.setting.deployment
        with np.errstate(all="ignore"):
            memory = memory_of(deployment)
            one = np.ones(len(some))
            held = memory.with_batch(deployment.plan if mode == "static" else deployment.with_batch(one, one).plan)
            lacking = held.used > held.usable
            if mode != "static":  # no more requests run than have room
                lacking &= memory.max_batch_size < 1.0
            if served.prefilling is not None:
                lacking |= prompt_memory(served.prefilling)[1]
            if served.experts is not None:
                experts = expert_pool_memory(served.experts.deployment, np.ones(len(served.split)))
                lacking[served.split] |= experts.used > experts.usable
            most = memory.max_batch_size
            legal = np.ones(len(some), dtype=bool)
            for remark in _broken(served, {"max_request_rate": one, "ttft": one}):
                legal &= ~remark.rows
        fits = np.where(lacking, 0.0, 1.0)
        return {"max_batch_size": np.where(legal, most, np.nan), "fits": np.where(legal, fits, np.nan)}

    return in_batches(plans, catalog, named, _codes(plans, catalog, named), evaluated)


def _times(served: Served, mode: str) -> dict[str, Array]:
    """Times and rates of plans of one mode; memory too where they depend on it."""
    return serving_times(served.setting.deployment) if mode == "static" else _loaded(served)[0]


def _loaded(served: Served) -> tuple[dict[str, Array], Operation | Pools]:
    """Results under a stream of requests of plans of one mode, and the steady state that they are of."""
    deployment = served.setting.deployment
    pools = served.pools()
    if pools is not None and served.requests is not None:
        return pooled_results(pools, served.requests), pools
    operation = operating(deployment)
    return loaded_results(deployment, operation), operation


def _asked_for(served: Served, mode: str, groups: frozenset[str]) -> dict[str, Array]:
    """Results of plans of one mode that some groups of equations give, and what legality reads of them."""
    alone, static = groups == {"targets"}, mode == "static"
    if alone and not static and np.isnan(served.stated.request_rate).all():
        deployment, pools = served.setting.deployment, served.pools()
        if pools is not None:
            found = pooled_target_results(pools)
        else:
            most = most_running(deployment.plan, memory_of(deployment).max_batch_size)
            found = target_results(deployment, most, BatchTimes.of(deployment))
        return found | {"ttft": np.zeros(len(served.stated))}
    return _results(served, mode) if "targets" in groups or (static and "memory" in groups) else _times(served, mode)


def _results(served: Served, mode: str) -> dict[str, Array]:
    """Times, rates and memory of plans of one mode, and the largest load under targets of time where there are any."""
    deployment = served.setting.deployment
    plan = deployment.plan
    searched = not (np.isnan(plan.ttft_target) & np.isnan(plan.tpot_target)).all()
    if mode == "static":
        results, state = serving_results(deployment), None
    else:
        results, state = _loaded(served)
    if not searched:
        return results
    if isinstance(state, Pools):
        return results | pooled_target_results(state)
    times = BatchTimes.of(deployment) if state is None else state.times
    return results | target_results(deployment, most_running(plan, results["max_batch_size"]), times)


def _said(setting: ServingSetting) -> list[Remark]:
    """Remarks of the catalog on plans; without a peak rate for narrow products, the products that the machine has."""
    narrow, wide = setting.deployment.device.peak_flop_rate, setting.deployment.wide_device.peak_flop_rate
    lacks = (np.isnan(narrow) & ~np.isnan(wide))[:, 0]
    remedy = "give activation precision bf16: the weights alone are then narrow"
    return [*setting.remarks, *([Remark(lacks, remedy)] if lacks.any() else [])]


def _refused(served: Served, stack: Words, illegal: np.ndarray) -> list[Remark]:
    """Which legal plans, or prefill pools of theirs, their engine does not start."""
    setting, pool = served.setting, served.prefilling
    found = refusals("inference", setting.plan, setting.deployment.model, stack, illegal)
    if pool is None:
        return found
    own = refusals("inference", pool.plan, pool.deployment.model, stack, illegal)
    return [*found, *(Remark(each.rows, f"prefill pool: {each.sentence}", each.values) for each in own)]


def _broken(served: Served, results: Mapping[str, Array]) -> list[Remark]:
    """The rules that plans break, in the order in which they are said."""
    stated, setting, pool = served.stated, served.setting, served.prefilling
    model, remarks = setting.deployment.model, []
    if pool is not None:
        sizes = stated.replaced(
            decode_pool_size=setting.plan.num_accelerators, prefill_pool_size=pool.plan.num_accelerators
        )
        remarks += broken_rules(POOL_RULES, sizes, model)
        of_pool = (*_said(pool), *broken_rules(SERVING_RULES, pool.plan, pool.deployment.model))
        remarks += [Remark(each.rows, f"prefill pool: {each.sentence}", each.values) for each in of_pool]
    if served.experts is not None:
        experts = served.experts
        own = (*_said(experts), *broken_rules(EXPERT_POOL_RULES, experts.plan, experts.deployment.model))
        remarks += [each.of_rows(served.split, len(stated), "expert pool: ") for each in own]
    loaded = stated
    if np.isinf(results["ttft"]).any():
        loaded = stated.replaced(
            ttft=results["ttft"],
            max_request_rate=rounded_down(results["max_request_rate"]),
            max_batch_size=results["max_batch_size"],
        )
    return [
        *remarks,
        *broken_rules(MODE_RULES, stated, model),
        *_said(setting),
        *broken_rules(REQUEST_RULES, stated, model),
        *broken_rules(SERVING_RULES, setting.plan, model),
        *(broken_rules(CAPACITY_RULES, loaded, model) if loaded is not stated else ()),
    ]
