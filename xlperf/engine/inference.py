"""Inference plans evaluated: joined to the catalog, legality, results by mode, costs and notes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from xlperf.base.arrays import Array
from xlperf.catalog.calibration import Calibration
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table, Words
from xlperf.engine.conditions import format_and_load
from xlperf.engine.join import (
    POOLS,
    Joined,
    Named,
    architecture_codes,
    constants_by_family,
    groups_of,
    in_batches,
    join,
    load_carbon_share,
    named_rows,
    plan_columns,
    pool_rows,
    software_words,
)
from xlperf.engine.models import architecture_of
from xlperf.engine.notes import (
    add_notes,
    name_notes,
    rounded_down,
)
from xlperf.engine.own_runs import SHEET, Corrections, corrections
from xlperf.engine.served_results import fitting_rows, power_at_rate, prompt_memory, reported
from xlperf.engine.stack_rules import refusals
from xlperf.engine.trust import coordinates, trust
from xlperf.equations.cost.tokens import Terms
from xlperf.equations.hardware.power import PowerLimits
from xlperf.equations.model.model import Architecture
from xlperf.equations.network.collectives import OPERATIONS
from xlperf.equations.plan.records import FP4, PRECISION_CODES, Remark, broken_rules, remarks_of_rows
from xlperf.equations.plan.serving_plan import InferencePlan, pool_plans, with_defaults
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
    Deployment,
    loaded_results,
    memory_of,
    operating,
    pooled_results,
    pooled_target_results,
    pools_of,
    serving_results,
    serving_times,
    target_results,
)
from xlperf.equations.serving.continuous import Operation
from xlperf.equations.serving.deployment import engine_constants, with_copied_groups
from xlperf.equations.serving.expert_pools import POOL_SHARES, expert_pool_memory
from xlperf.equations.serving.memory import most_running
from xlperf.equations.serving.pools import Pools
from xlperf.equations.serving.results import BAND_FAMILIES, QUANTILE_NAMES, band_of_mode

_EXPERTS = ("all_to_all", "reduce_scatter")
_KERNELS = ("gemm", "vector", "engine_all_reduce", *(name for name in OPERATIONS if name not in _EXPERTS))
_ATTENTION = {False: ("attention", "attention_decode"), True: ("attention", "attention_latent")}
_LINEAR = ("linear_attention",)
# Constants that stand beside those of their engine or kernel, which say whether a plan is extrapolated.
_BESIDE_OTHERS = (
    "gemm_wide",
    "serving_eager",
    "serving_memory",
    "engine_all_reduce",
    "serving_load",
    "serving_host",
    "serving_attention",
    "serving_experts",
    "attention_latent",
    "linear_attention",
    "power",
)
_MODES = ("static", "continuous", "disaggregated")
_OF_EXPERTS = ("expert_memory", "expert_memory_usable", "needed_batches", *POOL_SHARES)
_AT_TARGETS = ("batch_at_targets", "tokens_per_second_at_targets")
_BANDS = ("serving_band", "capacity_band")
_POWER = "power"
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
_SOFTWARE = ("serving_software", "serving_memory", "serving_load", "serving_host", "serving_attention", *_BANDS)


@dataclass(frozen=True)
class ServingSetting:
    """A block of served plans with their model, accelerators, calibration, prices and limits, (rows,)."""

    deployment: Deployment
    bands: Mapping[str, Mapping[str, Array]]
    power: Mapping[str, Array]
    extrapolated: list[tuple[str, np.ndarray]]
    remarks: list[Remark]
    max_sequence_length: Array
    accelerators: np.ndarray
    terms: Terms
    rented: np.ndarray
    limits: PowerLimits

    @property
    def plan(self) -> InferencePlan:
        """The plans with their defaults."""
        return self.deployment.plan

    def take(self, rows: slice) -> ServingSetting:
        """The setting of some of the plans; of their columns the numbers alone."""
        return ServingSetting(
            self.deployment.take(rows),
            {family: {name: v[rows] for name, v in constants.items()} for family, constants in self.bands.items()},
            {name: values[rows] for name, values in self.power.items()},
            [(family, far[rows]) for family, far in self.extrapolated],
            [remark.take(rows) for remark in self.remarks],
            self.max_sequence_length[rows],
            self.accelerators[rows],
            self.terms.take(rows),
            self.rented[rows],
            self.limits.take(rows),
        )


@dataclass(frozen=True)
class Served:
    """Plans of one mode: as the sheet has them, and the setting of their replicas or of each of their pools.

    Of separate pools ``setting`` is that of the pools that decode, (rows,), ``prefilling`` of those that prefill,
    (rows,), ``experts`` of the expert pools of the plans ``split``, and ``every`` of all of them one after the other.
    """

    stated: InferencePlan
    setting: ServingSetting
    every: ServingSetting | None = None
    prefilling: ServingSetting | None = None
    experts: ServingSetting | None = None
    split: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    requests: Array | None = None
    own: Corrections | None = None

    def pools(self) -> Pools | None:
        """The separate pools of the plans, if they have any."""
        if self.every is None or self.requests is None:
            return None
        return pools_of(self.every.deployment, self.requests, self.split)


def _constants(
    calibration: Calibration, joined: Joined, plan: InferencePlan, architecture: Architecture
) -> tuple[dict[str, Mapping[str, Array]], list[tuple[str, np.ndarray]]]:
    eager = ("serving_eager",) if (plan.graphs == 0.0).any() else ()
    # Matrix units without FP4 widen FP4 weights by the kernels of INT4 weights: measured runs of MXFP4 count as those.
    widened = (plan.stored_in_table == FP4) & np.isnan(joined.peaks[:, FP4])
    stored = np.where(widened, PRECISION_CODES["int4"], plan.stored_in_table)
    wanted = (
        (("gemm_wide",), joined.wide_keys),
        ((*_KERNELS, *(_EXPERTS if architecture.experts else ())), joined.keys),
        (("serving_experts",) if architecture.experts else (), joined.keys_named(stored)),
        (_ATTENTION[architecture.one_vector], joined.keys_for(plan.attention_in_table)),
        (_LINEAR if architecture.linear_attention else (), joined.keys),
        ((*_SOFTWARE, _POWER, *eager), joined.keys),
    )
    return constants_by_family(calibration, wanted, beside=_BESIDE_OTHERS)


def serving_setting(
    plans: Table, plan: InferencePlan, catalog: Catalog, named: Named, architecture: Architecture
) -> ServingSetting:
    """Model, accelerators, calibration, prices and limits of a block of plans."""
    if plan.has("activation_precision"):
        plans = replace(plans, columns={**plans.columns, "precision": plan.product_precision})
    joined = join(plans, catalog, named)
    constants, extrapolated = _constants(catalog.calibration, joined, plan, architecture)
    bands = {family: constants.pop(family) for family in _BANDS}
    power = constants.pop(_POWER)
    kernels, software = engine_constants(constants, architecture)
    peak = joined.peak_for(plan.attention_in_table)
    whole = with_defaults(plan)
    deployment = Deployment(
        with_copied_groups(joined.model, whole, software["ranks"][:, 0]),
        joined.device,
        replace(joined.device, peak_flop_rate=peak[:, None]),
        joined.wide_device,
        joined.network,
        whole,
        kernels,
        software,
        joined.reserved_memory,
        architecture,
    )
    facts = joined.max_sequence_length, joined.accelerators, joined.terms, joined.rented, joined.power
    return ServingSetting(deployment, bands, power, extrapolated, joined.rules, *facts)


def as_published(plans: Table, catalog: Catalog, named: Named) -> Table:
    """Plans whose FP8 is that of the published checkpoint: scaled by blocks where the sheet models says so.

    ``plans``: inference plans. Returns the same with precision fp8-block in place of fp8 for these models; an
    activation precision of fp8 is then that of the weights, as where it is blank.
    """
    models = catalog.tables["models"]
    if "fp8_blocks" not in models or "precision" not in plans:
        return plans
    stated = plans.filled("precision")
    blocks = (stated == "fp8") & (models.filled("fp8_blocks")[named.models] > 0.0)
    if not blocks.any():
        return plans
    columns = {**plans.columns, "precision": np.where(blocks, "fp8-block", stated)}
    if "activation_precision" in plans:
        written = plans.filled("activation_precision")
        columns["activation_precision"] = np.where(blocks & (written == "fp8"), "", written)
    return replace(plans, columns=columns)


def served_plans(plans: Table, catalog: Catalog, named: Named, architecture: Architecture, mode: str) -> Served:
    """Plans of one mode with the setting of their replicas or pools.

    ``plans``: inference plans of one mode. ``mode``: static, continuous or disaggregated.
    """
    plans = as_published(plans, catalog, named)
    stated = plan_columns(plans, InferencePlan)
    if mode != "disaggregated":
        served = Served(stated, serving_setting(plans, stated, catalog, named, architecture))
        return _corrected(served, plans, catalog, named, mode)
    pools, requests, split = pool_plans(stated)
    number, rows = len(plans), np.arange(len(plans))
    every = np.concatenate([rows, rows, split])

    def of_pools(own: np.ndarray, prefill: np.ndarray, experts: np.ndarray) -> np.ndarray:
        return np.concatenate([own, prefill, experts[split]])

    accelerators, networks = (
        of_pools(own, *(pool_rows(plans, catalog, own, column, pool) for pool in POOLS))
        for own, column in ((named.accelerators, "accelerator"), (named.networks, "network"))
    )
    every_plans = plans.take(every)
    columns = {**every_plans.columns, "num_accelerators": pools.num_accelerators}
    given = [f"{pool}_accelerator" for pool in POOLS]
    if any(name in plans for name in given):
        own = plans.text("accelerator")
        words = (plans.text(name) for name in given)
        columns["accelerator"] = of_pools(own, *(np.where(word == "", own, word) for word in words))
    every_named = Named(named.models[every], accelerators, networks)
    setting = serving_setting(replace(every_plans, columns=columns), pools, catalog, every_named, architecture)
    first, second = setting.take(slice(0, number)), setting.take(slice(number, 2 * number))
    experts = setting.take(slice(2 * number, None)) if len(split) else None
    return _corrected(Served(stated, first, setting, second, experts, split, requests), plans, catalog, named, mode)


def _corrected(served: Served, plans: Table, catalog: Catalog, named: Named, mode: str) -> Served:
    """Served plans whose passes take longer or shorter by what runs of the user's own cluster say."""
    if not len(catalog.tables[SHEET]):
        return served
    band = band_of_mode(mode, full=False)
    ends = served.setting.bands[BAND_FAMILIES[band]]
    widths = [ends[f"log_{first}{band}_high"][:, 0] for first in ("", "first_")]
    own = corrections(plans, catalog, named.models, named.accelerators, *widths)

    def scaled(setting: ServingSetting) -> ServingSetting:
        rows = np.arange(len(plans))
        rows = np.concatenate([rows, rows, served.split])[: len(setting.deployment.plan)]
        rows = served.split if setting is served.experts else rows
        scales = {"time_scale": own.time, "prefill_scale": own.first_token}
        columns = {name: values[rows][:, None] for name, values in scales.items()}
        software = {**setting.deployment.software, **columns}
        return replace(setting, deployment=replace(setting.deployment, software=software))

    others = served.every, served.prefilling, served.experts
    every, prefilling, experts = (None if each is None else scaled(each) for each in others)
    return replace(served, setting=scaled(served.setting), every=every, prefilling=prefilling, experts=experts, own=own)


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
