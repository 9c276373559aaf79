"""The question ``train``: the mapping of a training run, chosen together, with its time, cost and memory.

A branch-and-bound search. The step time without recomputation is a lower bound for each choice of degrees; in its order
the search tries every way to save memory, and ends if no remaining bound is below the best plan that fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from xlperf.base.arrays import Array, added, ceil_div
from xlperf.base.errors import Fault, InputError
from xlperf.base.units import DAY, HOUR, MILLION, percent
from xlperf.catalog.calibration import ANY, generation_line
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import results_of, software_title, table_schema
from xlperf.catalog.table import Table
from xlperf.engine.software import with_software_defaults
from xlperf.engine.tables import fitting, numbers
from xlperf.equations.plan.dimensions import RANKS
from xlperf.explore import objectives
from xlperf.explore.candidates import Candidates, candidates, uneven_chunks
from xlperf.explore.mappings import (
    MOST_ACCELERATORS,
    flagged,
    refused_reasons,
    server_sizes,
    sold_counts,
    stacks_of,
    started,
    switched,
)
from xlperf.explore.money import cost_words, fastest_fed, hours_of, lacking_words, run_beyond_power, stated_prices
from xlperf.explore.search import ranked, stacked
from xlperf.explore.space import divides, divisors, powers_of_two, with_columns
from xlperf.explore.uncertainty import owned_run

SEARCHED = (
    "tensor_parallel", "pipeline_parallel", "virtual_pipeline", "context_parallel", "expert_parallel",
    "pipeline_schedule", "micro_batch_size", "recompute", "zero_stage", "offload_optimizer",
)  # fmt: skip
"""Searched columns of a form; the columns of :data:`FOLLOWING` follow if they are open."""
FOLLOWING = ("recompute_modules", "recompute_layers", "expert_overlap", "context_method")
DEGREES = SEARCHED[:7]
PRECISIONS = ("bf16", "fp8-current", "fp8-block", "mxfp8", "fp4")
"""Precisions of products for ``auto``, as far as a machine has a peak rate."""
MOST = 200_000  # most choices of degrees of a form: a few seconds of work [-]
BLOCK = 192  # choices of degrees in one block, each with every way to save memory [-]
MOST_BLOCKS = 24  # most blocks: if memory is short in all of them, the answer is the best plan tried [-]
KEPT = 32  # best plans that a block returns [-]
VARIED, RECHUNKED = 64, 8
"""Best plans that get every exchange of context-parallel ranks, and every number of uneven pipeline chunks. [-]"""
FIRST = 4096  # fastest choices of degrees of one precision that the other precisions try [-]
_MODULES = (
    "core_attention", "norm", "mlp", "norm mlp", "activation", "norm activation", "latent", "norm latent activation",
    "moe", "norm latent moe", "norm mlp latent activation",
)  # fmt: skip
_CHUNKS = (2.0, 3.0, 4.0, 6.0, 8.0, 12.0)  # trial numbers of uneven virtual-pipeline chunks in large spaces [-]
_LAYERS = (0.25, 0.5, 0.75)
"""Shares of the layers of a stage that full recomputation covers, if its chunk is the whole stage."""


class Way(NamedTuple):
    """A way to save memory: columns of plans, NaN and "" if blank; ``share`` of the layers of a stage."""

    recompute: str
    modules: str = ""
    share: float = float("nan")
    zero: float = float("nan")


def ways(plan: Table, catalog: Catalog) -> list[Way]:
    """Ways to save memory that a form leaves open; ways without recomputation come first."""
    row = catalog.rows("models", plan.text("model"), plan, "model")
    models = catalog.tables["models"]
    lacking = {"activation", "moe"} if np.isnan(models.number("num_experts")[row][0]) else set()
    lacking |= set() if str(models.text("attention_type")[row][0]) == "MLA" else {"latent"}
    known = [modules for modules in _MODULES if not lacking & set(modules.split())]
    if _of_torchtitan(plan):
        known = [""]  # it has no choice of modules

    def open_(name: str) -> bool:
        return name in plan.auto and bool(plan.auto[name][0])

    recomputed = [
        Way("none"),
        *(Way("selective", modules) for modules in known),
        *(Way("full", "", share) for share in _LAYERS),
        Way("full"),
    ]
    stated = "" if open_("recompute") else str(plan.text("recompute")[0])
    if stated:  # of which modules is open
        recomputed = [way for way in recomputed if way.recompute == stated] if stated == "selective" else [Way(stated)]
    zeros = [_least_sharding(plan), 2.0, 3.0] if open_("zero_stage") else [float("nan")]
    offloaded = plan.filled("offload_optimizer")[0] > 0.0
    return [way._replace(zero=zero) for zero in zeros for way in recomputed if not (offloaded and zero > 1.0)]


def _least_sharding(plan: Table) -> float:
    """Lowest ZeRO stage that the software starts and that shards the optimizer."""
    return 2.0 if _of_torchtitan(plan) else 1.0


def _of_torchtitan(plan: Table) -> bool:
    return stacks_of(plan) == ("torchtitan",)


def in_whole_batches(plans: Table, replicas: Array, batch: float) -> Table:
    """Training plans whose global batch is the next one that their replicas share in whole micro-batches."""
    micro = np.minimum(plans.filled("micro_batch_size"), np.maximum(np.floor(batch / replicas), 1.0))
    whole = ceil_div(batch, micro * replicas) * micro * replicas
    return with_columns(plans, micro_batch_size=micro, global_batch_size=whole)


def best_mapping(plan: Table, catalog: Catalog) -> objectives.Search:
    """The fastest mapping of a training plan that fits and that its software starts; offload if nothing else fits."""
    open_precision = bool("precision" in plan.auto and plan.auto["precision"][0])
    precisions = PRECISIONS if open_precision else (str(plan.filled("precision")[0]),)
    result: objectives.Search | None = None
    for offload in (0.0, 1.0):
        asked = plan
        if "offload_optimizer" in plan.auto and plan.auto["offload_optimizer"][0]:
            asked = with_columns(plan, offload_optimizer=offload)
        elif offload > 0.0:
            break
        degrees: Table | None = None
        for precision in precisions:
            mapping, degrees = _of_precision(with_columns(asked, precision=precision), catalog, degrees)
            if result is None or _better(mapping, result):
                result = mapping
        if result is not None and result.found:
            break
    assert result is not None
    return replace(result, searched=tuple(name for name in plan.schema.by_name if name in plan.auto))


def _better(first: objectives.Search, second: objectives.Search) -> bool:
    times = [search.results.number("step_time")[0] for search in (first, second)]
    return first.kind < second.kind or (first.kind == second.kind and bool(times[0] < times[1]))


def _of_precision(plan: Table, catalog: Catalog, known: Table | None) -> tuple[objectives.Search, Table]:
    """The fastest mapping with the precision of a plan, and its fastest degrees, among ``known`` ones if given."""
    shapes = [name for name, mask in plan.auto.items() if mask[0] and name not in DEGREES]
    blank = {"recompute": "none", "zero_stage": _least_sharding(plan)}
    fixed = {name: blank.get(name, float("nan")) for name in shapes}
    if known is None:
        tried = candidates(with_columns(plan, **fixed), catalog, most=MOST)
        plans = tried.plans
        if tried.even and "virtual_pipeline" in tried.searched:
            plans = stacked([plans, uneven_chunks(plans, catalog, tried.searched, _CHUNKS)])
        degrees = _overlapped(plans, catalog)
    else:
        degrees = with_columns(known, precision=str(plan.filled("precision")[0]))
    choices = ways(plan, catalog)
    row = catalog.rows("models", plan.text("model"), plan, "model")
    layers = float(catalog.tables["models"].number("num_layers")[row][0])
    least_memory = next(way for way in reversed(choices) if np.isnan(way.zero) or way.zero == choices[0].zero)
    smallest = _crossed(degrees, [least_memory], layers)
    room = _fitting(smallest, catalog)
    deep = np.flatnonzero(degrees.filled("pipeline_parallel") == 1.0)  # which ZeRO-3 may make room for
    room = np.union1d(room, deep[_fitting(_crossed(degrees.take(deep), choices[-1:], layers), catalog)])
    least = np.full(len(degrees), np.nan)
    least[room] = _times(degrees.take(room), catalog) if len(room) else least[room]
    order = room[np.argsort(least[room], kind="stable")]
    order = order[np.isfinite(least[order])]
    # Stated columns may rule out every mapping that the software starts: the answer then says why it does not.
    starts = len(started(degrees.take(order[:BLOCK]), catalog)) > 0
    best, best_of_blocks, number = np.inf, [], len(degrees)
    for start in range(0, min(len(order), BLOCK * MOST_BLOCKS), BLOCK):
        block = order[start : start + BLOCK]
        if least[block[0]] >= best:
            break
        rows = _crossed(degrees.take(block), choices, layers)
        rows = rows.take(_fitting(rows, catalog))
        rows = rows.take(started(rows, catalog)) if starts else rows
        number += len(rows)
        if len(rows):
            times = _times(rows, catalog)
            fastest = np.argsort(times, kind="stable")[:KEPT]
            best_of_blocks.append(rows.take(fastest))
            best = min(best, float(times[fastest[0]]))
    goal = objectives.objective_of("training", "step_time")
    searched = tuple(name for name in plan.schema.by_name if name in plan.auto)
    last = stacked(best_of_blocks) if best_of_blocks else smallest.take(order[:KEPT] if len(order) else slice(0, KEPT))
    if best_of_blocks:
        near = last.take(np.argsort(_times(last, catalog), kind="stable")[:VARIED])
        last = _varied(last, near, searched, starts, catalog)
    first = degrees.take(order[:FIRST] if len(order) else slice(0, FIRST))
    return replace(ranked(Candidates(last, searched), catalog, goal), num_tried=number), first


def _varied(plans: Table, fastest: Table, searched: Sequence[str], starts: bool, catalog: Catalog) -> Table:
    """Plans, and the fastest ones with other chunks and other exchanges between context-parallel ranks."""
    results = [plans]
    if "virtual_pipeline" in searched:
        results.append(uneven_chunks(fastest.take(slice(0, RECHUNKED)), catalog, searched))
    split = (fastest.filled("context_parallel") > 1.0) & (fastest.text("context_method") == "")
    rows = fastest.take(np.flatnonzero(split))
    for method in ("all-gather", "ulysses"):
        more = with_columns(rows, context_method=method)
        results.append(more.take(started(more, catalog)) if starts else more)
    return stacked([with_columns(each, context_method=each.text("context_method")) for each in results if len(each)])


def _times(plans: Table, catalog: Catalog) -> Array:
    result = numbers(plans, catalog)
    assert result is not None
    return result.number("step_time")


def _fitting(plans: Table, catalog: Catalog) -> np.ndarray:
    result = fitting(plans, catalog)
    assert result is not None
    return np.flatnonzero(result["fits"] == 1.0)


def _overlapped(plans: Table, catalog: Catalog) -> Table:
    """Plans without, and with, overlap of the expert all-to-all if the software starts it."""
    several = np.flatnonzero(plans.filled("expert_parallel") > 1.0)
    if not len(several) or not np.isnan(plans.number("expert_overlap")).all():
        return plans
    with_overlap = with_columns(plans.take(several), expert_overlap=1.0)
    starting = with_overlap.take(started(with_overlap, catalog))
    return stacked([plans, starting]) if len(starting) else plans


def _crossed(plans: Table, choices: Sequence[Way], num_layers: float) -> Table:
    """Plans with every way to save memory: ZeRO-2 and 3 without a pipeline, shares of layers if a stage is a chunk."""
    taken = plans.take(np.repeat(np.arange(len(plans)), len(choices)))
    which = np.tile(np.arange(len(choices)), len(plans))
    share, zero = (np.array([way[place] for way in choices], dtype=np.float64)[which] for place in (2, 3))
    stages = taken.filled("pipeline_parallel")
    # Recomputation of each way, in layers of a stage
    columns: dict[str, object] = {
        "recompute": np.array([way.recompute for way in choices], dtype=object)[which],
        "recompute_modules": np.array([way.modules for way in choices], dtype=object)[which],
        "recompute_layers": np.ceil(share * num_layers / stages),
    }
    if not (np.isnan(zero).all() and "zero_stage" in taken):
        columns["zero_stage"] = zero
    least = choices[0].zero
    # A deeper ZeRO stage has no pipeline, and a share of the layers needs stages of one chunk
    deeper = (zero != least) & ~(np.isnan(zero) & np.isnan(least))
    legal = (~deeper | (stages == 1.0)) & (np.isnan(share) | (taken.filled("virtual_pipeline") == 1.0))
    return with_columns(taken, **columns).take(np.flatnonzero(legal))


FIRST_COUNT = 256.0  # accelerators of the first trial for a deadline [-]


MOST_TURNS, EFFICIENT = 24, 0.85
"""Trial numbers of accelerators for a deadline; least ratio of a run's accelerator time to the first trial's. [-]"""


TERA = MILLION * MILLION


TRAINING_PARTS = {
    "forward": "forward", "backward": "backward", "recompute": "recomputation", "tensor_parallel": "tensor parallel",
    "context_parallel": "context parallel", "expert_parallel": "expert parallel",
    "pipeline_communication": "between stages", "pipeline_bubble": "pipeline bubble",
    "data_parallel": "data parallel", "optimizer": "optimizer", "overhead": "overhead",
}  # fmt: skip
"""Parts of a step by result name, and in words; the first two train, the others are losses."""


_MEMORY = ("weights", "gradients", "optimizer", "activations")


GRAPHS = {"graphs": "layers"}
"""CUDA graphs, switched on if the best mapping allows them: some ways to save memory exclude them."""


_UNMEASURED = "A training stack of which no run is published"


def train_answer(form: Table, catalog: Catalog) -> objectives.Answer:
    """The fastest mapping of a form's training run, with its time, cost and memory."""
    names = ("num_accelerators", "deadline", "facility_power_limit")
    count, deadline, limit = (float(form.number(name)[0]) for name in names)
    if count == count:
        return _powered(form, _mapped(form, count, catalog), catalog)
    if deadline != deadline and limit == limit:
        return _powered(form, _fed(form, catalog), catalog)
    if deadline != deadline:
        problem = "num accelerators, a deadline or a facility power limit must be given"
        raise InputError(Fault(form.place(0, "num_accelerators"), problem))
    result = _fewest(form, deadline, catalog)
    if result.kind != objectives.GOOD:
        return _refused(result)
    if _keeps(result, deadline):
        return _powered(form, result, catalog)
    count = float(result.plans.number("num_accelerators")[0])
    days, words = result.results.number("run_time")[0] / DAY, objectives.short_name(str(form.text("accelerator")[0]))
    return objectives.no_answer(
        f"{count:,.0f} {words} still take {days:,.0f} days; give them more days or a larger batch"
    )


def _powered(form: Table, searched: objectives.Search, catalog: Catalog) -> objectives.Answer:
    """The answer of a mapping within the facility power limit; else the reason, and the run that the limit feeds."""
    limit = float(form.number("facility_power_limit")[0])
    answer = _run(form, searched, catalog)
    if searched.kind != objectives.GOOD or limit != limit:
        return answer
    if answer["power"] <= limit:
        each = answer["power"] / answer["accelerators"]
        return answer | {"accelerators_in_power": float(np.floor(limit / each * (1.0 + 1e-9)))}
    fed = _fed(form, catalog)
    return run_beyond_power(form, answer, _run(form, fed, catalog) if fed.kind == objectives.GOOD else {})


def _fed(form: Table, catalog: Catalog) -> objectives.Search:
    """The fastest run that the facility power limit feeds."""
    limit = float(form.number("facility_power_limit")[0])
    return fastest_fed(limit, *_promising(form, catalog), partial(_mapped, form, catalog=catalog))


def _keeps(searched: objectives.Search, deadline: float) -> bool:
    return searched.kind == objectives.GOOD and bool(searched.results.number("run_time")[0] <= deadline)


def _fewest(form: Table, deadline: float, catalog: Catalog) -> objectives.Search:
    """The run on the fewest accelerators, in whole servers, that satisfies a deadline; else the fastest run tried.

    Upward from the first number that fits, the trials start at the number that satisfies the deadline at 85 % of its
    accelerator time: numbers with equal stages first, then others below the first one that is enough.
    """
    every, counts = _promising(form, catalog)
    last = len(counts) - 1
    place = int(np.searchsorted(counts, FIRST_COUNT))
    while True:
        result = _mapped(form, float(counts[min(place, last)]), catalog)
        place = int(np.searchsorted(counts, 4.0 * counts[min(place, last)]))
        if result.kind == objectives.GOOD or place > last:
            break
    best = result
    if result.kind != objectives.GOOD:
        return result
    work = float(result.plans.number("num_accelerators")[0] * result.results.number("run_time")[0])
    first = EFFICIENT * work / deadline
    larger = counts[min(int(np.searchsorted(counts, first)), last) :].tolist()
    for place, count in enumerate(larger[:MOST_TURNS]):
        result = _mapped(form, count, catalog)
        if _keeps(result, deadline):
            between = every[(every >= first) & (every < count) & ~np.isin(every, larger[:place])]
            spread = np.unique(np.linspace(0, len(between) - 1, MOST_TURNS // 2).astype(np.intp))
            fewer = (_mapped(form, each, catalog) for each in between[spread if len(between) else slice(0)].tolist())
            return next((run for run in fewer if _keeps(run, deadline)), result)
        faster = (
            result.kind == objectives.GOOD and result.results.number("run_time")[0] < best.results.number("run_time")[0]
        )
        best = result if faster else best
    return best


def _promising(form: Table, catalog: Catalog) -> tuple[Array, Array]:
    """Numbers of accelerators in whole servers with replicas that divide the batch: with any number of stages, and with
    divisors of the layers, the embedding and the output projection included or not, or powers of two.
    """
    unit, total = (float(value[0]) for value in server_sizes(_plan(form, 1.0, catalog), catalog))
    counts = sold_counts(unit, total, MOST_ACCELERATORS)
    row = catalog.rows("models", form.text("model"), form, "model")
    heads, layers = (catalog.tables["models"].number(name)[row][0] for name in ("num_attention_heads", "num_layers"))
    stages = {*divisors(layers, layers + 1.0, layers + 2.0), *powers_of_two(layers)}
    shared = float(form.number("global_batch_size")[0]) * float(heads)
    counts = counts[counts >= min(unit, counts[-1])]
    good = [
        np.logical_or.reduce([divides(counts / number, shared) & divides(number, counts) for number in numbers])
        for numbers in (np.arange(1.0, layers + 1.0).tolist(), stages)
    ]
    return counts[good[0]], counts[good[1]]


def _stack(form: Table, catalog: Catalog) -> str:
    """Training software of a form's accelerator: the default, or the software measured on its generation."""
    default = str(table_schema("training").by_name["software"].default)
    row = catalog.rows("accelerators", form.text("accelerator"), form, "accelerator")
    accelerators, measured = catalog.tables["accelerators"], catalog.tables["calibration"]
    if str(accelerators.text("vendor")[row][0]).casefold() in ("", "nvidia"):
        return default
    line = generation_line(str(accelerators.text("generation")[row][0]))
    keys = zip(*(measured.text(name) for name in ("family", "generation", "software")), strict=True)
    names = sorted({stack for family, of, stack in keys if family == "training_software" and of == line} - {ANY})
    return default if default in names else (*names, ANY)[0]


def _started(form: Table, software: str, catalog: Catalog) -> dict[str, str]:
    """Faster ways than its default that a stack has a flag for, whatever the mapping."""
    row = catalog.rows("models", form.text("model"), form, "model")
    wanted = {"tensor_overlap": "all", "cross_entropy": "fused"}
    if catalog.tables["models"].number("num_experts")[row][0] > 0.0:
        wanted |= {"token_dispatch": "once"}
    return flagged(software, wanted)


def _plan(form: Table, count: float, catalog: Catalog) -> Table:
    names = ("model", "accelerator", "training_tokens", "sequence_length", "global_batch_size")
    columns: dict[str, Any] = {name: form[name] for name in names}
    open_precision = bool("precision" in form.auto and form.auto["precision"][0])
    software = _stack(form, catalog)
    columns |= {"precision": form.text("precision") if open_precision else form.filled("precision")}
    columns |= {"num_accelerators": count, "software": software}
    columns |= {**_started(form, software, catalog), **stated_prices(form)}
    known = form.schema.by_name
    columns |= {name: form.text(name) if known[name].is_text else form.number(name) for name in SEARCHED}
    return objectives.one_plan("training", columns, (*SEARCHED, "precision"), form)


def _mapped(form: Table, count: float, catalog: Catalog) -> objectives.Search:
    plan = _plan(form, count, catalog)
    result = best_mapping(plan, catalog)
    switches = flagged(str(plan.text("software")[0]), GRAPHS)
    return switched(result, catalog, switches) if result.kind == objectives.GOOD else result


def _run(form: Table, searched: objectives.Search, catalog: Catalog) -> objectives.Answer:
    if searched.kind != objectives.GOOD:
        return _refused(searched)
    plan, results = searched.plans, searched.results
    names = (
        "run_time", "run_energy", "run_carbon", "mfu", "goodput", "step_time", "step_time_low", "step_time_high",
        "memory_reserved", "memory_capacity", "cost_per_million_tokens", "energy_per_token",
        "carbon_per_million_tokens",
    )  # fmt: skip
    answer: objectives.Answer = {name: float(results.number(name)[0]) for name in names}
    answer |= {"power": float(results.number("grid_power")[0]), objectives.PLAN: plan}
    longer = objectives.slower(results, "step_time", catalog)
    answer |= {name: answer[name] * longer for name in ("run_time", "run_energy", "run_carbon", "step_time")}
    answer["mfu"] /= longer
    chosen = results_of("train").by_name
    for name in (*SEARCHED, *FOLLOWING, "precision"):
        answer[name] = str(plan.filled(name)[0]) if chosen[name].is_text else float(plan.filled(name)[0])
    rows = catalog.rows("models", plan.text("model"), plan, "model")
    run = with_software_defaults(plan, catalog, rows)
    answer |= {name: str(run.filled(name)[0]) for name in ("tensor_overlap", "cross_entropy", "graphs")}
    experts = catalog.tables["models"].number("num_experts")[rows][0] > 0.0
    answer["token_dispatch"] = str(run.filled("token_dispatch")[0]) if experts else ""
    if answer["context_parallel"] == 1.0:
        answer["context_method"] = ""
    answer["recompute_modules"] = answer["recompute_modules"] if answer["recompute"] == "selective" else "none"
    count = float(plan.number("num_accelerators")[0])
    pieces = np.prod([plan.filled(each.size)[0] for each in RANKS if not each.remainder])
    answer |= {"accelerators": count, "data_parallel": count / float(pieces)}
    hours = hours_of(form, plan, results, catalog)[0]
    answer |= hours.results | hours.costs("run_cost", answer["run_time"] * count)
    answer |= {"paid_run_cost": answer["run_cost"], "run_cost": float(results.number("run_cost")[0]) * longer}
    for end in ("low", "high"):
        share = answer[f"step_time_{end}"] / answer["step_time"]
        answer[f"run_time_{end}"] = answer["run_time"] * share
        answer[f"run_cost_{end}"] = answer["run_cost"] * share
    answer |= {f"memory_{part}": float(results.number(f"memory_{part}")[0]) for part in _MEMORY}
    answer["memory_reserve"] = answer["memory_reserved"] - added(answer[f"memory_{part}"] for part in _MEMORY)
    answer["memory_free"] = answer["memory_capacity"] - answer["memory_reserved"]
    step = float(results.number("step_time")[0])
    shares = {part: float(results.number(f"time_{part}")[0]) / step for part in TRAINING_PARTS}
    answer |= {f"share_{part}": share for part, share in shares.items()}
    answer["largest_loss"] = TRAINING_PARTS[max(list(TRAINING_PARTS)[2:], key=lambda part: np.nan_to_num(shares[part]))]
    answer["price_basis"] = hours.basis
    answer |= {name: str(results[name][0]) for name in ("trust", "trust_reason")}
    stack = str(plan.filled("software")[0])
    answer["defaults_used"] = (_UNMEASURED if stack == ANY else software_title(stack)) + (
        f", {plan.filled('optimizer')[0]}, "
        f"{plan.filled('attention')[0]} attention{_switched_words(plan)}; an accelerator fails every "
        f"{plan.filled('accelerator_mtbf')[0] / HOUR:,.0f} h, {plan.filled('restart_time')[0] / 60.0:.0f} min lost"
    )
    cost = cost_words(form, hours, answer["run_time"] * count)
    reason = refused_reasons(plan, catalog)[0]
    refused = f" {reason}." if reason else ""
    answer["answer"] = _training_sentence(form, answer, cost) + refused + lacking_words(hours)
    date = float(np.nan_to_num(form.number("deadline")[0], nan=answer["run_time"]))
    unit = float(np.lcm(int(pieces), int(server_sizes(plan, catalog)[0][0])))
    return answer | owned_run(count, unit, answer["run_time"], date, hours, plan, results)


def _switched_words(plan: Table) -> str:
    words = {"cross_entropy": "{} cross entropy", "graphs": "CUDA graphs of the {}"}
    return "".join(f", {words[name].format(plan.text(name)[0])}" for name in words if name in plan)


def _training_sentence(form: Table, answer: objectives.Answer, cost: str) -> str:
    accelerator, model = objectives.short_name(str(form.text("accelerator")[0])), str(form.text("model")[0])
    tokens, time = form.number("training_tokens")[0] / TERA, answer["run_time"]
    many = f"{tokens:,.3g} T" if tokens >= 0.01 else f"{1000.0 * tokens:,.3g} B"
    lasts = f"{time / DAY:,.1f} days" if time >= DAY else f"{time / HOUR:,.3g} h"
    return (
        f"{answer['accelerators']:,.0f} {accelerator} train {model} on {many} tokens in {lasts}{cost} at "
        f"{percent(answer['mfu'], 0)} MFU; largest loss: {answer['largest_loss']}."
    )


def _refused(search: objectives.Search) -> objectives.Answer:
    """The reason why no mapping fits or is legal, from the nearest one, and the remedy."""
    count, reason = float(search.plans.number("num_accelerators")[0]), str(search.results["reason"][0]).split(";")[0]
    stated = " and ".join(name.replace("_", " ") for name in SEARCHED if name not in search.searched)
    remedies = ["more accelerators"] * (search.kind == objectives.TOO_LARGE) + [f"{stated} left open"] * bool(stated)
    would = f"; {' or '.join(remedies)} may do" if remedies else ""
    words = objectives.short_of_memory(count, objectives.short_name(search.plans.text("accelerator")[0]), reason)
    words = f"on {count:,.0f} accelerator{'s' * (count != 1.0)}: {reason}" if words == reason else words
    return objectives.no_answer(words + would)
