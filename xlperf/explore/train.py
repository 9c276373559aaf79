"""The mapping of a training run: degrees, schedule, precision, recomputation, sharding and offload, chosen together.

A branch-and-bound search. The step time without recomputation is a lower bound for each choice of degrees; in its order
the search tries every way to save memory, and ends if no remaining bound is below the best plan that fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.tables import fitting, numbers
from xlperf.explore.candidates import Candidates, candidates
from xlperf.explore.fleet_plans import with_columns
from xlperf.explore.mappings import refused_reasons, stacks_of
from xlperf.explore.objectives import objective_of
from xlperf.explore.search import ranked, stacked
from xlperf.explore.search_results import Search

SEARCHED = (
    "tensor_parallel", "pipeline_parallel", "virtual_pipeline", "context_parallel", "expert_parallel",
    "pipeline_schedule", "micro_batch_size", "recompute", "zero_stage", "offload_optimizer",
)  # fmt: skip
"""Searched columns of a form; the columns of :data:`FOLLOWING` follow if they are open."""
FOLLOWING = ("recompute_modules", "recompute_layers", "expert_overlap")
DEGREES = SEARCHED[:7]
PRECISIONS = ("bf16", "fp8-current", "fp8-block", "mxfp8", "fp4")
"""Precisions of products for ``auto``, as far as a machine has a peak rate."""
MOST = 200_000
"""Most choices of degrees of a form: a few seconds of work. [-]"""
BLOCK = 192
"""Choices of degrees in one block, each with every way to save memory. [-]"""
MOST_BLOCKS = 24
"""Most blocks: if memory is short in all of them, the answer is the best plan tried. [-]"""
KEPT = 32
"""Best plans that a block returns. [-]"""
FIRST = 4096
"""Fastest choices of degrees of one precision that the other precisions try. [-]"""
_MODULES = (
    "core_attention", "norm", "mlp", "norm mlp", "activation", "norm activation", "latent", "norm latent activation",
    "moe", "norm latent moe", "norm mlp latent activation",
)  # fmt: skip
_LAYERS = (0.25, 0.5, 0.75)
"""Shares of the layers of a stage that full recomputation covers, if its chunk is the whole stage."""


class Way(NamedTuple):
    """A way to save memory: columns of plans, NaN and "" if blank; ``share`` of the layers of a stage."""

    recompute: str
    modules: str = ""
    share: float = float("nan")
    zero: float = float("nan")


def ways(plan: Table, catalog: Catalog) -> list[Way]:
    """Ways to save memory that a form leaves open; ways without recomputation come first.

    ``plan``: one row with ``auto`` in its open columns. The result excludes modules that the model lacks.
    """
    row = catalog.rows("models", plan.text("model"), plan, "model")
    models = catalog.tables["models"]
    lacking = {"activation", "moe"} if np.isnan(models.number("num_experts")[row][0]) else set()
    lacking |= set() if str(models.text("attention_type")[row][0]) == "MLA" else {"latent"}
    known = [modules for modules in _MODULES if not lacking & set(modules.split())]

    def open_(name: str) -> bool:
        return name in plan.auto and bool(plan.auto[name][0])

    recomputed = [
        Way("none"),
        *(Way("selective", modules) for modules in known),
        *(Way("full", "", share) for share in _LAYERS),
        Way("full"),
    ]
    if not open_("recompute"):
        recomputed = [Way(str(plan.text("recompute")[0]))]
    zeros = [_least_sharding(plan), 2.0, 3.0] if open_("zero_stage") else [float("nan")]
    offloaded = plan.filled("offload_optimizer")[0] > 0.0
    return [way._replace(zero=zero) for zero in zeros for way in recomputed if not (offloaded and zero > 1.0)]


def _least_sharding(plan: Table) -> float:
    """Lowest ZeRO stage that the software starts and that shards the optimizer."""
    return 2.0 if stacks_of(plan) == ("torchtitan",) else 1.0


def best_mapping(plan: Table, catalog: Catalog) -> Search:
    """The fastest mapping of a training plan that fits and that its software starts; offload if nothing else fits.

    ``plan``: one row; its columns of :data:`SEARCHED` and its precision may be ``auto``. Returns one plan; one that
    does not fit if none does.
    """
    open_precision = bool("precision" in plan.auto and plan.auto["precision"][0])
    precisions = PRECISIONS if open_precision else (str(plan.filled("precision")[0]),)
    result: Search | None = None
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


def _better(first: Search, second: Search) -> bool:
    """Whether a search has a better kind of plan, or a faster one of the same kind."""
    times = [search.results.number("step_time")[0] for search in (first, second)]
    return first.kind < second.kind or (first.kind == second.kind and bool(times[0] < times[1]))


def _of_precision(plan: Table, catalog: Catalog, known: Table | None) -> tuple[Search, Table]:
    """The fastest mapping with the precision of a plan, and its fastest choices of degrees.

    ``known``: fastest choices of degrees of another precision; None: all are tried.
    """
    shapes = [name for name, mask in plan.auto.items() if mask[0] and name not in DEGREES]
    blank = {"recompute": "none", "zero_stage": _least_sharding(plan)}
    fixed = {name: blank.get(name, float("nan")) for name in shapes}
    if known is None:
        tried = candidates(with_columns(plan, **fixed), catalog, most=MOST)
        degrees = _overlapped(tried.plans, catalog)
    else:
        degrees = with_columns(known, precision=str(plan.filled("precision")[0]))
    choices = ways(plan, catalog)
    row = catalog.rows("models", plan.text("model"), plan, "model")
    layers = float(catalog.tables["models"].number("num_layers")[row][0])
    least_memory = next(way for way in reversed(choices) if np.isnan(way.zero) or way.zero == choices[0].zero)
    smallest = _crossed(degrees, [least_memory], layers)
    room = _fitting(smallest, catalog)
    least = np.full(len(degrees), np.nan)
    least[room] = _times(degrees.take(room), catalog) if len(room) else least[room]
    order = room[np.argsort(least[room], kind="stable")]
    order = order[np.isfinite(least[order])]
    best, best_of_blocks, number = np.inf, [], len(degrees)
    for start in range(0, min(len(order), BLOCK * MOST_BLOCKS), BLOCK):
        block = order[start : start + BLOCK]
        if least[block[0]] >= best:
            break
        rows = _crossed(degrees.take(block), choices, layers)
        rows = rows.take(_fitting(rows, catalog))
        rows = rows.take(np.flatnonzero([not why for why in refused_reasons(rows, catalog)])) if len(rows) else rows
        number += len(rows)
        if len(rows):
            times = _times(rows, catalog)
            fastest = np.argsort(times, kind="stable")[:KEPT]
            best_of_blocks.append(rows.take(fastest))
            best = min(best, float(times[fastest[0]]))
    goal = objective_of("training", "step_time")
    searched = tuple(name for name in plan.schema.by_name if name in plan.auto)
    last = stacked(best_of_blocks) if best_of_blocks else smallest.take(order[:KEPT] if len(order) else slice(0, KEPT))
    first = degrees.take(order[:FIRST] if len(order) else slice(0, FIRST))
    return replace(ranked(Candidates(last, searched), catalog, goal), num_tried=number), first


def _times(plans: Table, catalog: Catalog) -> Array:
    """Step time of plans, NaN if a plan is illegal. [s]"""
    result = numbers(plans, catalog)
    assert result is not None
    return result.number("step_time")


def _fitting(plans: Table, catalog: Catalog) -> np.ndarray:
    """Rows that fit."""
    result = fitting(plans, catalog)
    assert result is not None
    return np.flatnonzero(result["fits"] == 1.0)


def _overlapped(plans: Table, catalog: Catalog) -> Table:
    """Plans without, and with, overlap of the expert all-to-all if the software starts it."""
    several = np.flatnonzero(plans.filled("expert_parallel") > 1.0)
    if not len(several) or not np.isnan(plans.number("expert_overlap")).all():
        return plans
    with_overlap = with_columns(plans.take(several), expert_overlap=1.0)
    started = np.flatnonzero([not why for why in refused_reasons(with_overlap, catalog)])
    return stacked([plans, with_overlap.take(started)]) if len(started) else plans


def _crossed(plans: Table, choices: Sequence[Way], num_layers: float) -> Table:
    """Plans with every way to save memory: ZeRO-2 and 3 without a pipeline, shares of layers if a stage is a chunk.

    ``num_layers``: of the model [-].
    """
    taken = plans.take(np.repeat(np.arange(len(plans)), len(choices)))
    which = np.tile(np.arange(len(choices)), len(plans))
    share, zero = (np.array([way[place] for way in choices], dtype=np.float64)[which] for place in (2, 3))
    stages = taken.filled("pipeline_parallel")
    columns: dict[str, object] = {
        "recompute": np.array([way.recompute for way in choices], dtype=object)[which],
        "recompute_modules": np.array([way.modules for way in choices], dtype=object)[which],
        "recompute_layers": np.ceil(share * num_layers / stages),
    }
    if not (np.isnan(zero).all() and "zero_stage" in taken):
        columns["zero_stage"] = zero
    least = choices[0].zero
    deeper = (zero != least) & ~(np.isnan(zero) & np.isnan(least))
    deep = (stages == 1.0) & ~(taken.number("expert_overlap") > 0.0)
    legal = (~deeper | deep) & (np.isnan(share) | (taken.filled("virtual_pipeline") == 1.0))
    return with_columns(taken, **columns).take(np.flatnonzero(legal))
