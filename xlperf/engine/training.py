"""Training plans evaluated: defaults, legality, the step, energy and cost."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np

from xlperf.base.arrays import Array, exp, some, total
from xlperf.catalog.calibration import COMPILED, Calibration, gathers_sequences
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.join import (
    Joined,
    Named,
    architecture_codes,
    constants_by_family,
    groups_of,
    in_batches,
    join,
    named_rows,
    plan_columns,
    run_carbon_share,
    where_legal,
)
from xlperf.engine.learning import Corrections, corrected_memory, corrected_training, corrections
from xlperf.engine.models import architecture_of
from xlperf.engine.notes import (
    add_notes,
    basis_words,
    extrapolation_notes,
    gibibytes,
    limit_notes,
    name_notes,
    training_remedies,
    unpriced_notes,
)
from xlperf.engine.software import refusals, with_software_defaults
from xlperf.engine.trust import NOT_SHOWN, band_width, coordinates, ends_together, format_and_load, trust
from xlperf.equations.cost.tco import (
    ALL_IN,
    Terms,
    carbon_of_energy,
    drawn_terms,
    energy_per_token,
    run_cost,
    token_costs,
)
from xlperf.equations.hardware.power import Machine
from xlperf.equations.hardware.roofline import stack_constants
from xlperf.equations.model.cores import own_families
from xlperf.equations.model.model import Architecture, Model
from xlperf.equations.network.collectives import OPERATIONS
from xlperf.equations.plan.dimensions import MESSAGE_PARTS
from xlperf.equations.plan.records import FP4, Remark, broken_rules, remarks_of_rows
from xlperf.equations.plan.training_plan import (
    ANY_LAYOUT,
    BF16_SIZE,
    LAYOUTS,
    TRAINING_RULES,
    TrainingPlan,
    used_families,
    with_defaults,
)
from xlperf.equations.training.memory import memory_of
from xlperf.equations.training.rates import causal_ratio, run_results, training_power, training_rates
from xlperf.equations.training.setting import Setting
from xlperf.equations.training.step import COMPUTE_PARTS, STEP_PARTS, least_step_time, step

_KERNELS, _FUSED_KERNELS = ("gemm", "experts", *OPERATIONS), ("vector",)
_ATTENTION = ("attention", "attention_backward")
# Training results that follow from the step time
RATES = ("tokens_per_second", "tokens_per_second_per_accelerator", "model_flop_rate", "mfu", "mfu_causal", "hfu")
# Result columns of whole runs, for plans with training tokens
RUN_COLUMNS = ("run_steps", "checkpoint_size", "checkpoint_interval", "goodput", "run_time",
               "run_cost", "run_energy", "run_carbon")  # fmt: skip
_MEMORY = ("memory", *(f"memory_{part}" for part in (
    "weights", "gradients", "optimizer", "activations", "layer_activations", "first_stage", "middle_stage",
    "last_stage", "reserved", "capacity", "share")), "fits")  # fmt: skip
_COST = ("energy_per_token", "grid_power", "cost_per_million_tokens", "tokens_per_dollar",
         "tokens_per_second_per_megawatt", "carbon_per_million_tokens", "accelerator_power",
         "accelerator_energy_per_token", "accelerator_hour_cost", "step_cost", *RUN_COLUMNS)  # fmt: skip
# Results by the only group of equations that they need; bands, badges and words need all groups
_GROUPS = {
    **dict.fromkeys(
        ("step_time", *STEP_PARTS, "layer_time", "hidden_communication_time", "compute_share", "communication_share"),
        "times",
    ),
    **dict.fromkeys(RATES, "rates"),
    **dict.fromkeys(_MEMORY, "memory"),
    **dict.fromkeys(_COST, "cost"),
}
NUMBERS = tuple(_GROUPS)  # numeric results without bands
_MEMORY_FAMILY = "training_memory"
_POWER = "power"
_SOFTWARE = ("training_software", _MEMORY_FAMILY, "training_calls", "band")


def training_plan(plans: Table, joined: Joined, memory: Mapping[str, Array]) -> TrainingPlan:
    """A table of training plans with its defaults; ``memory``: memory constants of their software, (rows, 1). Matrix
    units with an FP4 rate read 8-bit inputs by rows and by columns, so that tensor-wide scales need no transposed copy
    (Transformer Engine, FP8 current scaling). ``compiled`` stays NaN for stacks with fused kernels of their own.
    """
    reads, fused_reads, turns, whole = joined.casts
    read_both_ways = (whole > 0) & ~np.isnan(joined.peaks[:, FP4])
    stated = plan_columns(plans, TrainingPlan)
    compiling = np.array([word.casefold() == COMPILED for word in joined.software.words])[joined.software.codes]
    gathers = np.array([float(gathers_sequences(word)) for word in joined.software.words])[joined.software.codes]
    default = np.where(memory["unfused_kernels"][:, 0] > 0.0, 0.0, np.where(compiling, 1.0, math.nan))
    stated = stated.replaced(
        compiled=np.where(np.isnan(stated.compiled), default, stated.compiled),
        copied_gathers=gathers,
        product_size=joined.product_size,
        element_size=joined.element_size,
        cast_reads=reads,
        fused_reads=fused_reads,
        turns=turns,
        layouts=np.where(read_both_ways, ANY_LAYOUT, LAYOUTS),
        gathered_layouts=np.where(whole > 0, ANY_LAYOUT, LAYOUTS),
    )
    return with_defaults(stated, joined.model, joined.max_sequence_length, memory["gradient_size"][:, 0])


def step_constants(
    calibration: Calibration, joined: Joined, architecture: Architecture, only_memory: bool = False
) -> tuple[dict[str, Mapping[str, Array]], list[tuple[str, np.ndarray]]]:
    """Calibration constants (rows, 1) of every family that a step uses, and by family the rows that extrapolate."""
    if only_memory:
        return constants_by_family(calibration, [((_MEMORY_FAMILY,), joined.keys)])
    wide = ("gemm_wide", *own_families(architecture))
    kernels = (_KERNELS, joined.keys), (_FUSED_KERNELS, joined.fused_keys)
    wider = (wide, joined.wide_keys), (_ATTENTION, joined.attention_keys)
    wanted = *kernels, *wider, ((*_SOFTWARE, _POWER), joined.keys)
    return constants_by_family(calibration, wanted, beside=(_POWER,))


def training_setting(
    plans: Table, catalog: Catalog, named: Named, architecture: Architecture, only_memory: bool = False
) -> tuple[Setting, Joined, list[tuple[str, np.ndarray]]]:
    """Setting of a block of plans of one architecture, the joined rows, and the extrapolated rows by family."""
    joined = join(plans, catalog, named)
    constants, extrapolated = step_constants(catalog.calibration, joined, architecture, only_memory)
    plan = training_plan(plans, joined, constants[_MEMORY_FAMILY])
    kernels = constants if only_memory else stack_constants(constants, input_casts=False)
    # Codes of rows with equal models, devices and calibration.
    alike = (named.models * len(catalog.tables["accelerators"]) + named.accelerators) * len(joined.keys.distinct)
    alike = alike + joined.keys.codes
    if joined.fused_keys is not joined.keys:
        alike = alike * len(joined.fused_keys.distinct) + joined.fused_keys.codes
    if joined.attention_keys is not joined.wide_keys:
        alike = alike * len(joined.attention_keys.distinct) + joined.attention_keys.codes
    machine = joined.model, joined.device, joined.network
    return Setting(*machine, plan, kernels, architecture, alike), joined, extrapolated


def evaluate_training(
    plans: Table, catalog: Catalog, results: Collection[str] | None = None, reasons: bool = True
) -> dict[str, np.ndarray]:
    """Results of a block of training plans: the columns of ``training_results``, or ``results`` alone, in internal
    units; then ``reason`` gives the broken rules of illegal plans without notes, or nothing without ``reasons``.
    """
    named = named_rows(plans, catalog)
    plans = with_software_defaults(plans, catalog, named.models)
    codes = architecture_codes(named, catalog)
    groups = groups_of(results, _GROUPS)

    def evaluated(piece: Table, rows: Named, code: int) -> dict[str, np.ndarray]:
        return _evaluate(piece, catalog, rows, architecture_of(code), groups, reasons)

    return in_batches(plans, catalog, named, codes, evaluated)


BOUNDED = ("step_time", *(name for name in RATES if name != "hfu"))  # results with bounds; hfu counts recomputation


def best_results(plans: Table, catalog: Catalog) -> dict[str, np.ndarray]:
    """Bounds of the :data:`BOUNDED` results without own runs: the step time of plans that recompute nothing and have
    ZeRO stage 2 is at least, and their rates are at most, that of all plans that differ in these columns alone.
    """
    named = named_rows(plans, catalog)
    plans = with_software_defaults(plans, catalog, named.models)

    def evaluated(piece: Table, rows: Named, code: int) -> dict[str, np.ndarray]:
        setting, joined, _ = training_setting(piece, catalog, rows, architecture_of(code))
        with np.errstate(all="ignore"):
            time = least_step_time(setting)
            rates = training_rates(setting, time)
            for name in ("mfu", "mfu_causal"):
                rates[name] = rates[name] * joined.power.clock_share
        return {"step_time": time, **{name: rates[name] for name in BOUNDED if name in rates}}

    return in_batches(plans, catalog, named, architecture_codes(named, catalog), evaluated)


def _used(extrapolated: list[tuple[str, np.ndarray]], plan: TrainingPlan, model: Model) -> list[tuple[str, np.ndarray]]:
    """Extrapolated families, restricted to the rows whose step uses them."""
    shown = [(family, mask) for family, mask in extrapolated if some(mask)]
    used = used_families(model, plan) if shown else {}
    return [(family, mask & used[family] if family in used else mask) for family, mask in shown]


def _run_results(plan: TrainingPlan, joined: Joined, terms: Terms, step_time: Array) -> dict[str, Array]:
    """Results of whole runs; NaN without training tokens."""
    if np.isnan(plan.training_tokens).all():
        return dict.fromkeys(RUN_COLUMNS, np.full(len(plan), np.nan))
    results = run_results(joined.model, plan, step_time)
    count = plan.num_accelerators
    energy = terms.power * count * results["run_time"]
    return {
        **results,
        "run_cost": run_cost(terms.cost_rate, count, results["run_time"]),
        "run_energy": energy,
        "run_carbon": carbon_of_energy(energy, terms.carbon_intensity),
    }


def _utilisation_notes(setting: Setting, results: Mapping[str, Array], illegal: np.ndarray) -> list[Remark]:
    """Causes of a utilisation above 1."""
    mfu, hfu = results["mfu"], results["hfu"]
    if not some(~illegal & (hfu > 1.0)):
        return []
    causal = mfu * causal_ratio(setting)
    skipped = "is above 1: it counts attention over whole sequences, of which a causal mask skips half"
    fast = "MFU {} is above 1: measured products of this generation run above the peak that the sheet states"
    shown, legal = np.round(mfu, 3), ~illegal
    return [
        Remark(
            legal & (mfu > 1.0) & (causal <= 1.0), f"MFU {{}} {skipped}; without it {{}}", (shown, np.round(causal, 3))
        ),
        Remark(legal & (mfu <= 1.0) & (hfu > 1.0), f"HFU {{}} {skipped}", (np.round(hfu, 3),)),
        Remark(legal & (causal > 1.0), fast, (shown,)),
    ]


def _times_and_rates(
    setting: Setting, times: Mapping[str, Array], own: Corrections | None, rates: bool
) -> dict[str, Array]:
    """Corrected times of the step with shares of its critical stage, and rates and utilisation on request."""
    results = dict(times) if own is None else corrected_training(times, own)
    if rates:
        results = {**results, **training_rates(setting, results["step_time"])}
    for name, parts in (("compute_share", COMPUTE_PARTS), ("communication_share", MESSAGE_PARTS)):
        results[name] = total(np.stack([results[part] for part in parts], axis=-1)) / results["step_time"]
    return results


def _memory(setting: Setting, joined: Joined, own: Corrections | None) -> dict[str, Array]:
    """Memory of the fullest rank, and whether it fits."""
    results, capacity = memory_of(setting), joined.device.memory_capacity[:, 0]
    if own is not None:
        results = corrected_memory(results, own)
    reserved = results["memory_reserved"] + joined.reserved_memory
    return {
        **results,
        "memory_reserved": reserved,
        "memory_capacity": capacity,
        "memory_share": reserved / capacity,
        "fits": np.where(reserved <= capacity, 1.0, 0.0),
    }


def _costs(setting: Setting, joined: Joined, results: Mapping[str, Array], own: Corrections | None) -> dict[str, Array]:
    """Power, energy, and cost of tokens, steps and whole runs."""
    plan, time = setting.plan, results["step_time"]
    machine = Machine(setting.device, joined.power, setting.constants[_POWER])
    drawing = results if own is None else own.drawing(results, hfu=results["hfu"] * own.factor("step_time"))
    power = training_power(machine, joined.model, plan, drawing)
    if own is not None:
        power = power * own.factor("accelerator_power")
    terms = drawn_terms(joined.terms, power, joined.power.own)
    return {
        **token_costs(terms, plan.num_accelerators, results["tokens_per_second"], ALL_IN["training"]),
        "accelerator_power": power,
        "accelerator_energy_per_token": energy_per_token(power, plan.num_accelerators, results["tokens_per_second"]),
        "accelerator_hour_cost": terms.cost_rate,
        "step_cost": run_cost(terms.cost_rate, plan.num_accelerators, time),
        **_run_results(plan, joined, terms, time),
    }


def _bands(
    setting: Setting, results: Mapping[str, Array], known: Mapping[str, np.ndarray], own: Corrections | None
) -> dict[str, Array]:
    """Ends of the 80 % bands by trust and own runs; rates, cost and energy combine the bands of their parts."""
    band, experts = setting.constants["band"], setting.architecture.experts
    widths = band_width(band, "step", known, experts), band_width(band, "memory", known, experts), band["power"][:, 0]
    log_time, log_memory, log_power = (np.stack([-width, width]) for width in widths)
    if own is not None:
        log_time, log_memory = own.ends("step_time", log_time), own.ends("memory", log_memory)
        log_power = own.ends("accelerator_power", log_power)
    time, memory = exp(log_time), exp(log_memory)
    ends: dict[str, Array] = {}
    for index, (end, sign) in enumerate((("low", -1.0), ("high", 1.0))):
        energy = ends_together(log_time[index], log_power[index], sign)
        ends |= {
            f"step_time_{end}": results["step_time"] * time[index],
            f"tokens_per_second_{end}": results["tokens_per_second"] / time[1 - index],
            f"memory_{end}": results["memory"] * memory[index],
            f"energy_per_token_{end}": results["energy_per_token"] * energy,
            f"cost_per_million_tokens_{end}": results["cost_per_million_tokens"] * time[index],
        }
    return ends


def _evaluate(
    plans: Table,
    catalog: Catalog,
    named: Named,
    architecture: Architecture,
    groups: frozenset[str] | None,
    reasons: bool,
) -> dict[str, np.ndarray]:
    needed = frozenset(_GROUPS.values()) if groups is None else groups
    only_memory = needed == {"memory"}
    setting, joined, extrapolated = training_setting(plans, catalog, named, architecture, only_memory)
    plan = setting.plan
    results: dict[str, Array] = {}
    with np.errstate(all="ignore"):
        rules = [*joined.rules, *broken_rules(TRAINING_RULES, plan, joined.model)]
        illegal, reason = remarks_of_rows(rules, len(plans), worded=groups is None or reasons)
        times = step(setting).results if needed & {"times", "rates", "cost"} else {}
        own = corrections(plans, catalog, named, times, evaluate_training)
        if times:
            results |= _times_and_rates(setting, times, own, bool(needed & {"rates", "cost"}))
        if "memory" in needed:
            results |= _memory(setting, joined, own)
        if "cost" in needed:
            results |= _costs(setting, joined, results, own)
            if "start_hour" in plans:
                share = run_carbon_share(plans, catalog, joined.accelerators, results["run_time"])
                results["run_carbon"] = share * results["run_carbon"]
        # Utilisation refers to the stated peak rate, at whatever clock the power limit leaves.
        utilisation = [name for name in ("mfu", "mfu_causal", "hfu") if name in results]
        results |= {name: results[name] * joined.power.clock_share for name in utilisation}
        if groups is not None:
            return where_legal(results, illegal) | {"reason": reason}
        at = coordinates(plans, results, plan.sequence_length)
        conditions = format_and_load(plans)
        known = trust("training", catalog, named.models, named.accelerators, joined.software, conditions, at)
        results |= _bands(setting, results, known, own)
    sizes = gibibytes(results["memory_reserved"]), gibibytes(results["memory_capacity"])
    lacking = ~illegal & (results["fits"] < 1)
    longer = ~illegal & (plan.sequence_length > joined.max_sequence_length)
    lengths = plan.sequence_length, joined.max_sequence_length
    notes = [
        *refusals("training", plan, joined.model, joined.software, illegal),
        Remark(lacking, "needs {} GiB of {} GiB", sizes),
        *training_remedies(plan, results, lacking),
        _open_gradients(plan, results, illegal),
        Remark(longer, "sequence length {} is beyond the model's {}", lengths),
        *unpriced_notes(illegal, catalog, {"": (joined.accelerators, joined.terms.cost_rate)}),
        *limit_notes(joined.power, illegal),
        *_utilisation_notes(setting, results, illegal),
        *extrapolation_notes(_used(extrapolated, plan, joined.model), illegal),
        *([] if own is None else own.notes(illegal)),
        *name_notes(plans, catalog, illegal),
    ]
    add_notes(reason, notes)
    results = where_legal(results, illegal)
    words = {name: np.where(illegal, "", values) for name, values in known.items() if name not in NOT_SHOWN}
    basis = basis_words(joined.rented, results["accelerator_hour_cost"])
    return {**results, **words, "cost_basis": basis, "reason": reason}


def _open_gradients(plan: TrainingPlan, results: Mapping[str, Array], illegal: np.ndarray) -> Remark:
    """Plans that exceed memory with FP32 gradients by default, and would fit with 16-bit gradients."""
    halved = results["memory_reserved"] - 0.5 * results["memory_gradients"]
    unstated = np.isnan(plan.gradient_precision) & (plan.gradient_size > BF16_SIZE)
    fitting = ~illegal & (results["fits"] < 1) & unstated & (halved <= results["memory_capacity"])
    return Remark(fitting, "gradient precision is not stated: it fits in {} GiB with bf16", (gibibytes(halved),))
