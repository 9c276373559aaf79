"""Inference plans evaluated: legality, results by mode, costs and notes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from xlperf.base.arrays import Array, distinct_rows, mapped, some, total
from xlperf.base.units import UNITS
from xlperf.catalog.calibration import declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import OWN_RUNS
from xlperf.catalog.table import Table, Words
from xlperf.engine.join import (
    Named,
    architecture_codes,
    groups_of,
    in_batches,
    load_carbon_share,
    named_rows,
    software_words,
)
from xlperf.engine.learning import corrected_serving, corrections, with_targets
from xlperf.engine.models import architecture_of
from xlperf.engine.notes import add_notes, name_notes, rounded_down
from xlperf.engine.served import (
    Served,
    ServingSetting,
    fitting_rows,
    power_at_rate,
    prompt_memory,
    reported,
    served_plans,
)
from xlperf.engine.software import RELEASE, memory_constants, refusals, with_formats, with_software_defaults
from xlperf.engine.trust import coordinates, format_and_load, trust
from xlperf.equations.hardware.roofline import PLANNED, WIDE
from xlperf.equations.model.operators import DECODING
from xlperf.equations.plan.records import Remark, broken_rules, remarks_of_rows
from xlperf.equations.plan.serving_plan import (
    CAPACITY_RULES,
    EXPERT_POOL_RULES,
    MODE_RULES,
    POOL_RULES,
    REQUEST_RULES,
    SERVING_RULES,
)
from xlperf.equations.serving.continuous import (
    QUANTILE_NAMES,
    Operation,
    loaded_results,
    operating,
    serving_results,
    serving_times,
)
from xlperf.equations.serving.load import POOL_SHARES, BatchTimes, expert_pool_memory
from xlperf.equations.serving.memory import memory_of, most_running
from xlperf.equations.serving.phases import phase_times, serving_work
from xlperf.equations.serving.pools import Pools, pooled_results
from xlperf.equations.serving.targets import pooled_target_results, target_results
from xlperf.interop.software import engines_on, measured_before, release_of, releases_with_changes

_MODES = ("static", "continuous", "disaggregated")
_OF_EXPERTS = ("expert_memory", "expert_memory_usable", "needed_batches", *POOL_SHARES)
_AT_TARGETS = ("batch_at_targets", "tokens_per_second_at_targets")
_STATE = (
    *("ttft", "tpot", "tpot_itl", "latency", "tokens_per_second", "tokens_per_second_per_accelerator"),
    *(f"{name}_{quantile}" for name in ("ttft", "tpot") for quantile in QUANTILE_NAMES),
    *("queue_time", "running_batch", "max_request_rate", "decode_time", "prefill_share"),
)
_TIMES = ("prefill_time", "time_matrix", "time_attention", "time_vector", "time_communication", "time_overhead")
# Results by the only group of equations that they need; cost, energy, bands, badges and notes need all groups
_GROUPS = {
    **dict.fromkeys(_STATE, "state"),
    **dict.fromkeys(_TIMES, "times"),
    **dict.fromkeys(("fits", "max_batch_size"), "memory"),
    **dict.fromkeys(_AT_TARGETS, "targets"),
}


def evaluate_inference(plans: Table, catalog: Catalog, results: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """Results of a block of inference plans: the columns of ``inference_results``, or ``results`` alone, in internal
    units; then ``reason`` gives the broken rules of illegal plans without notes.
    """
    named = named_rows(plans, catalog)
    plans = with_software_defaults(plans, catalog, named.models)
    codes = _codes(plans, catalog, named)
    rated = None if "request_rate" not in plans else ~np.isnan(plans["request_rate"])
    groups = groups_of(results, _GROUPS)
    taught = len(catalog.tables[OWN_RUNS]) > 0

    def evaluated(block: Table, rows: Named, code: int) -> dict[str, np.ndarray]:
        wanted = groups if groups is None or not taught else groups | {"times"}
        served, mode = _served(block, catalog, rows, code)
        with np.errstate(all="ignore"):
            columns = _results(served, mode) if wanted is None else _selected(served, mode, wanted)
            own = corrections(block, catalog, rows, columns, evaluate_inference) if taught else None
            targeted = block if own is None else with_targets(block, own)
            if targeted is not block:
                served, mode = _served(targeted, catalog, rows, code)
                columns = _results(served, mode) if wanted is None else _selected(served, mode, wanted)
            uncorrected = columns
            if own is not None:
                columns = corrected_serving(columns, own, served.stated.request_rate)
            illegal, reason = remarks_of_rows(_broken(served, columns), len(block))
            columns = {**dict.fromkeys((*_AT_TARGETS, *_OF_EXPERTS), np.full(len(block), np.nan)), **columns}
            if groups is not None:
                if "memory" in groups:
                    columns["fits"] = fitting_rows(served, columns, illegal)
                names = [name for name, group in _GROUPS.items() if group in groups]
                return {**{name: np.where(illegal, np.nan, columns[name]) for name in names}, "reason": reason}
            block = with_formats(block, catalog, rows)
            at = coordinates(block, columns)
            stack, conditions = software_words(block), format_and_load(block)
            known = trust("inference", catalog, rows.models, rows.accelerators, stack, conditions, at)
            add_notes(reason, _refused(served, stack, illegal))
            numbers = reported(served, catalog, columns, illegal, reason, known, own)
            add_notes(numbers["reason"], release_notes(block, served, catalog, rows, code, uncorrected, illegal))
            add_notes(numbers["reason"], name_notes(block, catalog, illegal))
            if "load_by_hour" in block:
                share = load_carbon_share(block, catalog, rows.accelerators)
                numbers["carbon_per_million_tokens"] = share * numbers["carbon_per_million_tokens"]
            return numbers

    return in_batches(plans, catalog, named, codes, evaluated, rated)


def power_at_rates(plans: Table, catalog: Catalog, rates: Array) -> Array:
    """Mean power of an accelerator at given token rates (rows,), for plans without expert pools; NaN if illegal. [W]"""
    named = named_rows(plans, catalog)
    plans = with_software_defaults(plans, catalog, named.models)
    codes, power = _codes(plans, catalog, named), np.full(len(plans), np.nan)
    for code in sorted(set(codes.tolist())):
        rows = np.flatnonzero(codes == code)
        served, mode = _served(plans.take(rows), catalog, named.take(rows), code)
        with np.errstate(all="ignore"):
            results = _results(served, mode)
            illegal, _ = remarks_of_rows(_broken(served, results), len(rows))
            power[rows] = np.where(illegal, np.nan, power_at_rate(served, results, rates[rows]))
    return power


def _codes(plans: Table, catalog: Catalog, named: Named) -> np.ndarray:
    """Codes of architecture and mode: plans of one code are evaluated together."""
    codes = architecture_codes(named, catalog) * len(_MODES)
    return np.asarray(codes + plans.codes("mode", {mode: code for code, mode in enumerate(_MODES)}))


def _served(plans: Table, catalog: Catalog, named: Named, code: int) -> tuple[Served, str]:
    """Plans of a code of :func:`_codes`, and their mode."""
    architecture, mode = architecture_of(code // len(_MODES)), _MODES[code % len(_MODES)]
    return served_plans(plans, catalog, named, architecture, mode), mode


def serving_memory(plans: Table, catalog: Catalog) -> dict[str, np.ndarray]:
    """Memory of inference plans without a request rate, much faster than their times. ``max_batch_size`` as in the
    results; ``fits``: 0 if memory does not suffice, 1 if it does or if only the load can decide. Both are NaN for
    illegal plans.
    """
    named = named_rows(plans, catalog)
    plans = with_software_defaults(plans, catalog, named.models)

    def evaluated(block: Table, rows: Named, code: int) -> dict[str, np.ndarray]:
        served, mode = _served(block, catalog, rows, code)
        deployment = served.setting.deployment
        with np.errstate(all="ignore"):
            memory = memory_of(deployment)
            one = np.ones(len(block))
            batch = memory.with_batch(deployment.plan if mode == "static" else deployment.with_batch(one, one).plan)
            lacking = batch.used > batch.usable
            if mode != "static":  # the scheduler admits only requests that fit
                lacking &= memory.max_batch_size < 1.0
            lacking |= batch.host > memory.host_capacity
            if served.prefilling is not None:
                lacking |= prompt_memory(served.prefilling)[1]
            if served.experts is not None:
                experts = expert_pool_memory(served.experts.deployment, np.ones(len(served.split)))
                lacking[served.split] |= experts.used > experts.usable
            most = memory.max_batch_size
            legal = np.ones(len(block), dtype=bool)
            for remark in _broken(served, {"max_request_rate": one, "ttft": one}):
                legal &= ~remark.rows
        fits = np.where(lacking, 0.0, 1.0)
        return {"max_batch_size": np.where(legal, most, np.nan), "fits": np.where(legal, fits, np.nan)}

    return in_batches(plans, catalog, named, _codes(plans, catalog, named), evaluated)


def _loaded(served: Served, detailed: bool = True) -> tuple[dict[str, Array], Operation | Pools]:
    """Results under a stream of requests, and the steady state behind them; ``detailed``: with parts of a step."""
    deployment = served.setting.deployment
    pools = served.pools()
    if pools is not None and served.requests is not None:
        return pooled_results(pools, served.requests, detailed), pools
    operation = operating(deployment, detailed)
    return loaded_results(deployment, operation), operation


def _selected(served: Served, mode: str, groups: frozenset[str]) -> dict[str, Array]:
    """Results of some groups of equations, and the columns that legality needs."""
    static = mode == "static"
    if groups == {"targets"} and not static and np.isnan(served.stated.request_rate).all():
        deployment, pools = served.setting.deployment, served.pools()
        if pools is not None:
            columns = pooled_target_results(pools)
        else:
            most = most_running(deployment.plan, memory_of(deployment).max_batch_size)
            columns = target_results(deployment, most, BatchTimes.of(deployment))
        return columns | {"ttft": np.zeros(len(served.stated))}
    if "targets" in groups or (static and "memory" in groups):
        return _results(served, mode)
    return serving_times(served.setting.deployment) if static else _loaded(served, "times" in groups)[0]


def _results(served: Served, mode: str) -> dict[str, Array]:
    """Times, rates and memory of plans of one mode, and the largest load under latency targets, if any."""
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


def _catalog_remarks(setting: ServingSetting) -> list[Remark]:
    """Remarks of the catalog, with a remedy for matrix units without GEMMs of the narrow precision."""
    narrow, wide = (setting.deployment.device.rate(precision).peak_flop_rate for precision in (PLANNED, WIDE))
    lacks = (np.isnan(narrow) & ~np.isnan(wide))[:, 0]
    remedy = "give activation precision bf16: the weights alone are then narrow"
    return [*setting.remarks, *([Remark(lacks, remedy)] if lacks.any() else [])]


def _refused(served: Served, stack: Words, illegal: np.ndarray) -> list[Remark]:
    """Legal plans, or prefill pools, that their engine does not start."""
    setting, pool = served.setting, served.prefilling
    remarks = refusals("inference", setting.plan, setting.deployment.model, stack, illegal)
    if pool is not None:
        alone = pool.plan.replaced(prefill_accelerators=np.full(len(illegal), np.nan))  # it has no prefill pool itself
        of_pool = refusals("inference", alone, pool.deployment.model, stack, illegal)
        remarks += [Remark(each.rows, f"prefill pool: {each.sentence}", each.values) for each in of_pool]
    return remarks


def _broken(served: Served, results: Mapping[str, Array]) -> list[Remark]:
    """Rules that plans break, in the order of the reasons."""
    stated, setting, pool = served.stated, served.setting, served.prefilling
    model, remarks = setting.deployment.model, []
    if pool is not None:
        sizes = stated.replaced(
            decode_pool_size=setting.plan.num_accelerators, prefill_pool_size=pool.plan.num_accelerators
        )
        remarks += broken_rules(POOL_RULES, sizes, model)
        of_pool = (*_catalog_remarks(pool), *broken_rules(SERVING_RULES, pool.plan, pool.deployment.model))
        remarks += [Remark(each.rows, f"prefill pool: {each.sentence}", each.values) for each in of_pool]
    if served.experts is not None:
        experts = served.experts
        broken = broken_rules(EXPERT_POOL_RULES, experts.plan, experts.deployment.model)
        of_experts = (*_catalog_remarks(experts), *broken)
        remarks += [each.of_rows(served.split, len(stated), "expert pool: ") for each in of_experts]
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
        *_catalog_remarks(setting),
        *broken_rules(REQUEST_RULES, stated, model),
        *broken_rules(SERVING_RULES, setting.plan, model),
        *(broken_rules(CAPACITY_RULES, loaded, model) if loaded is not stated else ()),
    ]


_MUCH, _SLOWER = 0.15, 0.1  # largest relative differences of requests at once and of a step without a note [-]
_BEFORE = "rc"
_STEP = ("time_matrix", "time_attention", "time_vector", "time_communication", "time_overhead")


def release_notes(
    plans: Table,
    served: Served,
    catalog: Catalog,
    named: Named,
    code: int,
    results: Mapping[str, Array],
    illegal: np.ndarray,
) -> list[Remark]:
    """Room for requests, and time of a decode step, before the last release of an engine that changed them much.

    A plan without a release has the newest one; a log or a recipe may be of any.
    """
    stated = plans.text(RELEASE) != "" if RELEASE in plans else np.zeros(len(plans), dtype=bool)
    unstated = ~(illegal | stated)
    if not some(unstated):
        return []
    notes = [
        *_room_notes(plans, served, catalog, named.models, results["max_concurrency"], unstated),
        *_step_notes(plans, served, catalog, named, code, results, unstated),
    ]
    noted = np.logical_or.reduce([np.zeros(len(plans), dtype=bool), *(note.rows for note in notes)])
    return [Remark(noted, "no release is stated, so the newest is meant"), *notes]


def _room_notes(
    plans: Table, served: Served, catalog: Catalog, models: np.ndarray, newest: Array, open_rows: np.ndarray
) -> list[Remark]:
    """Room for requests before the last release in which an engine's accounting of memory changed much."""
    names = plans.filled("software")
    known = {name: releases_with_changes("memory", name) for name in set(names.tolist())}
    changed = {name: sorted(releases, key=release_of, reverse=True) for name, releases in known.items()}
    rows, releases = _each([(row, changed[names[row]]) for row in np.flatnonzero(open_rows).tolist()])
    if not len(rows):
        return []
    table, unset = plans.take(rows), np.full((len(rows), 1), np.nan)
    earlier = table.with_columns({RELEASE: releases + _BEFORE})
    now, then = (memory_constants(each, catalog, models[rows]) for each in (table, earlier))
    deployment, declared = served.setting.deployment.take(rows), declared_constants()["serving_memory"]
    software = dict(deployment.software)
    for name in {**now, **then}:
        # What the newest release changed was as declared before.
        same, values = np.isnan(now.get(name, unset)), then.get(name, unset)
        software[name] = np.where(np.isnan(values), np.where(same, software[name], declared[name].default), values)
    before = memory_of(replace(deployment, software=software)).max_concurrency
    larger = np.maximum(before, newest[rows])
    much = (np.abs(before - newest[rows]) > _MUCH * larger) & (larger >= 1.0)
    sentence = "{} before {} has room for {} such requests, not {}"
    return _latest(sentence, rows[much], names, releases[much], before[much], newest)


def _each(releases: Sequence[tuple[int, Sequence[str]]]) -> tuple[np.ndarray, np.ndarray]:
    """A row for each release of each plan, in order: the plan's row and the release."""
    pairs = [(row, release) for row, several in releases for release in several]
    rows = np.array([row for row, _ in pairs], dtype=np.int64)
    return rows, np.array([release for _, release in pairs], dtype=object)


def _latest(
    sentence: str, rows: np.ndarray, names: np.ndarray, releases: np.ndarray, before: Array, newest: Array
) -> list[Remark]:
    """A remark on the first of the ``releases`` of each row, with values before it, (changes,), and now, (plans,)."""
    if not len(rows):
        return []
    noted, until, then = np.zeros(len(names), dtype=bool), names.copy(), newest.copy()
    backwards = slice(None, None, -1)  # of equal rows, numpy keeps the last value
    noted[rows], until[rows[backwards]], then[rows[backwards]] = True, releases[backwards], before[backwards]
    return [Remark(noted, sentence, (names, until, _brief(then), _brief(newest)))]


def _brief(values: Array) -> Array:
    """Values with three digits."""
    return np.array([float(f"{value:.3g}") for value in values.tolist()])


def _step_notes(
    plans: Table,
    served: Served,
    catalog: Catalog,
    named: Named,
    code: int,
    results: Mapping[str, Array],
    open_rows: np.ndarray,
) -> list[Remark]:
    """Decode step before the last release of an engine whose measured speed differs much; without expert pools.

    Plans of one static batch have none: they are about kernels, and a second evaluation would double their time.
    """
    loaded = open_rows & (plans.filled("mode") != "static") & (results["running_batch"] > 0.0)
    loaded[served.split] = False
    rows = np.flatnonzero(loaded).tolist()
    names, machines = plans.filled("software"), catalog.tables["accelerators"]
    keys = list(zip(names.tolist(), named.accelerators.tolist(), strict=True))
    # Names of earlier releases that run on the accelerator, the latest first, and the release that each precedes.
    until: dict[str, str] = {}
    earlier: dict[tuple[str, int], list[str]] = {}
    for name, machine in {keys[row] for row in rows}:
        runs = engines_on(machines.text("vendor")[machine], machines.text("generation")[machine])
        until |= {before: release for release, before in measured_before(plans.kind, name)}
        earlier[name, machine] = [before for _, before in measured_before(plans.kind, name) if before in runs]
    of, software = _each([(row, earlier[keys[row]]) for row in rows])
    if not len(of):
        return []
    # Distinct rows are evaluated once.
    batch = np.maximum(np.round(results["running_batch"]), 1.0)
    same = served.setting.deployment.alike
    first, which = distinct_rows(*(each[of] for each in (same, batch, named.models, named.accelerators)), software)
    again, columns = of[first], {"software": software[first]}
    older, _ = _served(plans.take(again).with_columns(columns), catalog, named.take(again), code)
    before = _step_times(older, batch[again])[which]
    now = total(np.stack([results[name] for name in _STEP], axis=-1))
    much = np.abs(before - now[of]) > _SLOWER * np.maximum(before, now[of])
    releases = mapped(until.__getitem__, software[much], object)
    sentence, unit = "{} before {} takes {} ms for a decode step, not {}", UNITS["ms"].factor
    return _latest(sentence, of[much], names, releases, before[much] / unit, now / unit)


def _step_times(served: Served, batch: Array) -> Array:
    """Decode steps of replicas or decode pools at given batches. [s]"""
    deployment = served.setting.deployment.with_batch(batch, np.ones_like(batch))
    return total(phase_times(serving_work(deployment, (DECODING,)))[:, 0])
