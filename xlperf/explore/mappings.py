"""Values of ``auto``: degrees, batches, schedules, numbers of accelerators as sold; plans that software starts, and its
optional settings that make a plan faster.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from xlperf.base.arrays import Array, log2, octave_below, some
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import column
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.software import rules_of
from xlperf.engine.tables import in_block
from xlperf.equations.model.model import Model
from xlperf.equations.plan.dimensions import (
    EXPERT_STAGE,
    PLACEHOLDERS,
    POOL_DEGREES,
    RANKS,
    REPLICA,
    SERVING_DIMENSIONS,
    Dimension,
)
from xlperf.equations.plan.records import Rule, mask, remarks_of_rows
from xlperf.equations.plan.serving_plan import InferencePlan, LayerPart
from xlperf.equations.plan.training_plan import BLANKS, TrainingPlan
from xlperf.explore.space import (
    Mask,
    NotChosen,
    PartialPlan,
    Rules,
    Space,
    Where,
    common_divisor,
    divides,
    divisors,
    powers_of_two,
    space_of,
    with_columns,
)
from xlperf.interop.launch_stacks import flags
from xlperf.interop.launch_start import Shape
from xlperf.interop.software import STACKS, stack_of_software

if TYPE_CHECKING:
    from xlperf.explore.objectives import Search


MOST_MICRO_BATCH = 64.0  # largest trial micro batch if the global batch is blank [-]
POOL_PARTS = 16.0  # least number of steps in which the size of a separate pool varies [-]


class PartialTraining(PartialPlan, TrainingPlan):
    """Training plans with some searched columns still open."""

    blanks = BLANKS


def cross_training(space: Space) -> None:
    """Cross a space of training plans, which is changed, with every searched column; InputError if there are too many.

    Of values that make the same plan only the first counts; the search skips the schedule gpipe, which takes as long as
    1f1b and more memory.
    """
    space.cross_accelerators()
    _cross_ranks(space)
    for dimension in EXPERT_STAGE:
        plan = space.plan()
        space.cross(dimension.size, divisors, _divided(plan.stage_ranks, dimension, plan.model))
    _cross_with(space, "sequence_parallel", (0.0, 1.0), "tensor_parallel")
    _cross_with(space, "context_method", column("training", "context_method").choices, "context_parallel")
    _cross_schedules(space)
    for name in ("recompute", "precision"):
        space.cross(name, column("training", name).choices)
    space.cross("zero_stage", (0.0, 1.0, 2.0, 3.0))


def equal_chunks(chunks: Array, stages: Array, layers: Array) -> Mask:
    """Whether chunks of stages have equal numbers of layers, with or without embedding and output projection."""
    whole = [divides(chunks * stages, layers + more) for more in range(int(PLACEHOLDERS) + 1)]
    return np.asarray((chunks == 1.0) | np.logical_or.reduce(whole))


def _known_ranks(plan: PartialPlan, dimensions: Sequence[Dimension]) -> Array:
    return np.asarray(np.prod([plan.known(each.size) for each in dimensions], axis=0))


def _divided(number: Array, dimension: Dimension, model: Model) -> Array:
    """Number whose divisors are candidates of a degree: common divisor of the ranks and of the model's dimension."""
    return number if dimension.divides is None else common_divisor(number, dimension.divides(model))


def _cross_ranks(space: Space) -> None:
    """Dimensions of all ranks: divisors of the accelerators that the earlier degrees leave."""
    for dimension in RANKS:

        def fits(plan: PartialTraining, dimension: Dimension = dimension) -> Mask:
            fits = divides(_known_ranks(plan, RANKS), plan.num_accelerators)
            return fits if dimension.most is None else fits & (plan.known(dimension.size) <= dimension.most(plan.model))

        plan = space.plan()
        left = np.asarray(plan.num_accelerators / _known_ranks(plan, RANKS))
        space.cross(dimension.size, divisors, _divided(left, dimension, plan.model), fits)
    if "micro_batch_size" in space.asked:  # replicas of which no micro batch divides the batch
        plan = space.plan()
        batch = plan.filled("global_batch_size")
        space.keep(np.isnan(batch) | divides(plan.data_parallel, np.nan_to_num(batch)))


def _cross_with(space: Space, name: str, values: Sequence[float | str], degree: str) -> None:
    """A column whose values make the same plan while a degree is 1."""
    space.cross(name, values, distinct=lambda plan: (plan.filled(name) == values[0]) | (plan.known(degree) > 1.0))


def _cross_schedules(space: Space) -> None:
    """Virtual-pipeline chunks, micro batch and schedule."""

    def even(plan: PartialTraining) -> Mask:
        return equal_chunks(plan.virtual_pipeline, plan.known("pipeline_parallel"), plan.model.num_layers)

    def distinct(plan: PartialTraining) -> Mask:
        """Stages in chunks are interleaved, one stage has no order."""
        schedule, chunks = plan.filled("pipeline_schedule"), plan.known("virtual_pipeline")
        other = (plan.known("pipeline_parallel") > 1.0) & (schedule != "gpipe")
        return np.asarray(np.where(schedule == "1f1b", chunks == 1.0, other))

    plan = space.plan()
    stages = plan.known("pipeline_parallel")
    most = np.where(stages > 1.0, np.maximum(np.floor((plan.model.num_layers + PLACEHOLDERS) / stages), 1.0), 1.0)
    even_only = None if space.uneven else even
    space.cross("virtual_pipeline", lambda number: np.arange(1.0, number + 1.0).tolist(), most, even_only)
    plan = space.plan()
    of_replica = plan.filled("global_batch_size") / plan.data_parallel
    every = powers_of_two(MOST_MICRO_BATCH)  # if the batch is blank
    space.cross("micro_batch_size", lambda batch: every if np.isnan(batch) else divisors(batch), of_replica)
    space.cross("pipeline_schedule", column("training", "pipeline_schedule").choices, distinct=distinct)


class PartialInference(PartialPlan, InferencePlan):
    """Inference plans with some searched columns still open; the decode pool of separate pools."""

    pool = ""
    open = frozenset({"batch_size", "concurrency"})

    @cached_property
    def separate(self) -> Mask:
        """Whether a separate pool prefills."""
        return np.asarray(self.filled("mode") == "disaggregated")

    @cached_property
    def unsized(self) -> Mask:
        """Whether the sizes of separate pools are still open."""
        try:
            self.filled("prefill_accelerators"), self.filled("expert_accelerators")
        except NotChosen:
            return self.separate
        return np.zeros(len(self), dtype=bool)

    @cached_property
    def most_accelerators(self) -> Array:
        """Accelerators of the pool; all if there is one pool, or if pools have no sizes yet. [-]"""
        total = self.filled("num_accelerators")
        sized = self.separate & ~self.unsized
        if not sized.any():
            return total
        given = self.filled("prefill_accelerators")
        prefill = np.where(np.isnan(given), np.floor(0.5 * total), given)
        decode = total - prefill - np.nan_to_num(self.filled("expert_accelerators"))
        return np.where(sized, prefill if self.pool else decode, total)

    @cached_property
    def num_accelerators(self) -> Array:
        """Accelerators of the pool. [-]"""
        if self.unsized.any():
            raise NotChosen
        return self.most_accelerators

    @cached_property
    def split(self) -> Mask:
        """Whether decoding has, or will have, an expert pool."""
        if "expert_accelerators" in self._space.asked:
            return self.separate
        return np.asarray(self.separate & ~np.isnan(self.filled("expert_accelerators")))

    def computes(self, part: float) -> Array | None:
        """1 if the pool computes a part of its layers, otherwise 0."""
        return np.where(self.split & (self.pool == "") & (part == LayerPart.EXPERTS), 0.0, 1.0)

    @cached_property
    def expert_parallel(self) -> Array:
        """Expert-parallel degree inside the pool; 1 if the experts have a separate pool. [-]"""
        return np.where(self.split & (self.pool == ""), 1.0, self.filled("expert_parallel"))

    @cached_property
    def known_ranks(self) -> Array:
        """Ranks of a replica by the degrees chosen so far. [-]"""
        return np.asarray(np.prod([self.known(each.size) for each in REPLICA], axis=0))

    @cached_property
    def two_batch_overlap(self) -> Array:
        """Two-batch overlap of one pool; separate pools leave it open, since either may dispatch. [-]"""
        if self.separate.any():
            raise NotChosen
        return self.filled("two_batch_overlap")

    @mask
    def sent_to_nodes(self) -> Mask:
        """Dispatch by node in one pool; separate pools leave it open, since either may dispatch tokens to experts."""
        if self.separate.any():
            raise NotChosen
        return np.asarray(self.filled("expert_dispatch") == "nodes")


class PartialPrefill(PartialInference):
    """The prefill pool: a blank degree of its own defaults to the decode pool's."""

    pool = "prefill_"

    @property
    def concerned(self) -> Mask:
        """Whether a plan has a prefill pool."""
        return self.separate

    def filled(self, name: str) -> np.ndarray:
        """A column of the plans for this pool."""
        shared = super().filled(name)
        if name not in POOL_DEGREES:
            return shared
        given = super().filled(f"prefill_{name}")
        return np.where(np.isnan(given), shared, given)


def cross_inference(space: Space) -> None:
    """Cross a space of inference plans, which is changed, with every searched column except the load."""
    space.cross("mode", column("inference", "mode").choices)
    space.cross_accelerators()
    _cross_degrees(space, PartialInference)
    _cross_with(space, "context_method", column("inference", "context_method").choices, "context_parallel")
    ways = column("inference", "expert_dispatch").choices
    for name, values, alone in (("expert_dispatch", ways, ways[0]), ("two_batch_overlap", (0.0, 1.0), 0.0)):

        def legal(plan: PartialPlan, name: str = name, alone: float | str = alone) -> Mask:
            """Whether attention ranks dispatch tokens to experts, or the option is off."""
            sent = (plan.model.num_experts > 0.0) & (plan.known("data_parallel_attention") > 1.0)
            return np.asarray((plan.filled(name) == alone) | sent)

        space.cross(name, values, legal=legal)
    _cross_degrees(space, PartialPrefill)
    _cross_pools(space)
    for name in ("precision", "kv_precision"):
        space.cross(name, column("inference", name).choices)


def _cross_degrees(space: Space, record: type[PartialInference]) -> None:
    """Degrees of one pool: the only one, the decode pool or the prefill pool."""

    def fits(plan: PartialPlan) -> Mask:
        """Whether replicas divide the accelerators of their pool; of unsized pools, whether both have room."""
        pool = plan.seen_as(record)
        other = plan.seen_as(PartialInference).known_ranks if record.pool else 1.0
        room = pool.known_ranks + other <= pool.most_accelerators
        return np.where(pool.unsized, room, divides(pool.known_ranks, pool.most_accelerators))

    def left() -> Array:
        """Accelerators left for a replica; unsized pools get all of them plus a half, as a mark for :func:`_sizes`."""
        plan = space.plan(record)
        left = plan.most_accelerators / plan.known_ranks
        return np.asarray(np.where(plan.unsized, plan.most_accelerators + 0.5, left))

    def cross(name: str, values: Callable[[float], list[float]], number: Array, legal: Where | None = None) -> None:
        blank = ~space.plan(record).separate if record.pool else None
        space.cross(f"{record.pool}{name}", values, number, legal, blank=blank)

    for dimension in SERVING_DIMENSIONS:
        if dimension in REPLICA:
            cross(dimension.size, _sizes, left(), fits)
            continue
        plan = space.plan(record)
        groups = _divided(plan.known("tensor_parallel"), dimension, plan.model)
        if dimension.divides and not record.pool:  # experts in a pool of their own are split over its ranks
            groups = np.where(plan.split, dimension.divides(plan.model), groups)
        cross(dimension.size, divisors, groups)


def _sizes(left: float) -> list[float]:
    """Trial degrees: divisors of the accelerators left; an extra half adds all powers of two."""
    whole = float(np.floor(left))
    return divisors(whole) if whole == left else sorted({*divisors(whole), *powers_of_two(whole)})


def _cross_pools(space: Space) -> None:
    """Accelerators of the prefill pool and of the expert pool: whole replicas of all pools."""

    def attending(plan: PartialPlan) -> Array:
        """Accelerators of the decode pools, including the expert pool."""
        prefill = plan.filled("prefill_accelerators")
        total = plan.filled("num_accelerators")
        return np.asarray(total - np.where(np.isnan(prefill), np.floor(0.5 * total), prefill))

    def shared(plan: PartialPlan) -> Mask:
        decode = attending(plan)
        whole = divides(plan.seen_as(PartialPrefill).known_ranks, plan.filled("prefill_accelerators"))
        try:
            decode = decode - np.nan_to_num(plan.filled("expert_accelerators"))
        except NotChosen:
            return np.asarray(decode > 0.0) & whole
        return np.asarray(decode > 0.0) & whole & divides(plan.seen_as(PartialInference).known_ranks, decode)

    def with_experts(plan: PartialPlan) -> Mask:
        experts, ranks = plan.filled("expert_accelerators"), plan.seen_as(PartialInference).known_ranks
        attention = attending(plan) - np.nan_to_num(experts)
        whole = (attention > 0.0) & divides(ranks, attention)
        replicas = np.where(whole, attention / ranks, 1.0)
        split = divides(replicas * plan.known("expert_parallel"), experts)
        return np.asarray(np.where(np.isnan(experts), True, whole & split))

    # The prefill pool first, then the expert pool out of what it leaves
    plan = space.plan()
    total = plan.filled("num_accelerators")
    space.cross("prefill_accelerators", _pool_sizes, total, shared, blank=~plan.separate)
    plan = space.plan()
    total = plan.filled("num_accelerators")
    space.cross("expert_accelerators", _pool_sizes, total, with_experts, blank=~plan.separate)
    space.cross("ping_pong_batches", _PING_PONG)


_PING_PONG = (1.0, 2.0, 3.0, 4.0)  # trial micro-batches of an attention and an expert pool [-]


def _pool_sizes(total: float) -> list[float]:
    """Trial sizes of a separate pool: 16 to 32 steps of a power of two."""
    step = float(octave_below(max(total / POOL_PARTS, 1.0)))
    return [float(number) for number in np.arange(step, total, step)]


MOST_ACCELERATORS = 16_384  # largest number of accelerators tried for ``auto`` by default [-]
STEPS = (1.0, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0)
"""Ratios of neighbouring trial numbers of accelerators, from every number sold to powers of two. [-]"""
_CUBES = re.compile(r"\s*(\d+)\s*d\s*of\s*(\d+)\s*", re.IGNORECASE)


class Counts(NamedTuple):
    """Numbers of accelerators that are sold, and the tried ones among them, from the smallest. [-]"""

    sold: Array
    tried: Array
    unit: float  # accelerators of a server or pod; NaN if machines differ in it

    @property
    def words(self) -> str:
        """The tried numbers in words: ``all 2,051 numbers of accelerators from 1 to 16,384 tried (...)``."""
        unit = f" of {self.unit:,.0f}" if self.unit == self.unit else ""
        every = len(self.tried) == len(self.sold)
        part, near = ("all", "") if every else (f"{len(self.tried):,} of", ", all next to the best")
        return (
            f"{part} {len(self.sold):,} numbers of accelerators from {self.sold[0]:,.0f} to {self.sold[-1]:,.0f} tried"
            f"{near} (powers of two, parts of a server or pod{unit} and whole ones)"
        )

    def between(self, counts: Array) -> Array:
        """Untried numbers that are sold, between the neighbours of some tried ones."""
        places = np.searchsorted(self.tried, np.unique(counts))
        below = np.searchsorted(self.tried, self.sold, side="right")
        near = self.sold[np.isin(below, [places, places + 1])]
        return np.asarray(near[~np.isin(near, self.tried)])

    def also(self, more: Array) -> Counts:
        """With further numbers tried."""
        return self._replace(tried=np.union1d(self.tried, more))


def server_sizes(plans: Table, catalog: Catalog) -> tuple[Array, Array]:
    """Accelerators of a server or pod, and of the whole network, of each plan; 1 and infinity without a network.

    The outermost tier joins servers (8 accelerators of a DGX, 72 of an NVL72); a torus of cubes joins cubes (64 of a
    TPU v4).
    """
    accelerators, networks = catalog.tables["accelerators"], catalog.tables["networks"]
    rows = catalog.rows("accelerators", plans.text("accelerator"), plans, "accelerator")
    given = plans.text("network")
    names = np.where(given == "", accelerators.text("default_network")[rows], given).tolist()
    known = {}
    for name in set(names):
        tiers = catalog.network_tiers(str(name))
        sizes = networks.number("size")[tiers]
        cubes = [_CUBES.fullmatch(str(text)) for text in networks.text("dimensions")[tiers[:1]].tolist()]
        unit = sizes[-2] if len(sizes) > 1 else sizes[-1] if len(sizes) else 1.0
        if cubes and cubes[0]:
            unit = math.prod([float(cubes[0][2])] * int(cubes[0][1]))
        known[name] = unit, (sizes.max() if len(sizes) else np.inf)
    units, totals = zip(*(known[name] for name in names), strict=True)
    return np.array(units), np.array(totals)


def sold_counts(unit: float, total: float, most: float) -> Array:
    """Trial numbers of accelerators up to ``most``: powers of two, divisors of a server (``unit``) and whole servers.

    >>> sold_counts(8.0, 65536.0, 40.0).tolist()
    [1.0, 2.0, 4.0, 8.0, 16.0, 24.0, 32.0, 40.0]
    >>> sold_counts(12.0, 30.0, 100.0).tolist()
    [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0]
    """
    bound = np.floor(min(most, total))
    parts = np.arange(1.0, np.minimum(unit, bound) + 1.0)
    whole = unit * np.arange(1.0, np.floor(bound / unit) + 1.0)
    powers = 2.0 ** np.arange(0.0, 64.0)
    values = np.unique(np.concatenate([powers, parts[unit % parts == 0.0], whole]))
    return np.asarray(values[values <= bound])


def thinned(counts: Array, step: float) -> Array:
    """A sparser list of ascending numbers: the first, powers of two, and others at least a ratio ``step`` above the one
    before; all for a ratio of 1, none for 2 or more.

    >>> thinned(sold_counts(8.0, 65536.0, 100.0), 1.5).tolist()
    [1.0, 2.0, 4.0, 8.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0]
    """
    if step <= 1.0:
        return counts
    sparse: list[float] = []
    for count in counts.tolist():
        if not sparse or log2(count) % 1.0 == 0.0 or (step < 2.0 and count >= step * sparse[-1]):
            sparse.append(count)
    return np.array(sparse)


_RECORDS: dict[str, tuple[type[PartialPlan], ...]] = {
    "training": (PartialTraining,),
    "inference": (PartialInference, PartialPrefill),
}
"""Records that the rules of software read, by kind of plan."""


def stacks_of(plans: Table) -> tuple[str, ...]:
    """Software of plans with known rules, in order of the plans."""
    names = {stack_of_software(str(name)) for name in set(plans.filled("software").tolist())}
    return tuple(stack for stack in STACKS if stack in names)


def rules_of_stacks(plans: Table, stacks: Collection[str], whole: bool = True) -> Rules:
    """Rules of the software of plans in the form that spaces read; each of several stacks concerns its own plans;
    ``whole``: rules read all columns that they name.
    """
    kind = plans.kind
    alike = len(set(plans.filled("software").tolist())) == 1

    def of(rule: Rule[Any], stack: str) -> Rule[Any]:
        def broken(plan: Any, model: Any) -> np.ndarray:
            rows = rule.broken(plan, model)
            if not some(rows):
                return rows
            names = plan.filled("software").tolist()
            starts = {name: stack_of_software(str(name)) == stack for name in set(names)}
            return np.asarray(rows & np.array([starts[name] for name in names], dtype=bool))

        return rule if alike else replace(rule, broken=broken)

    return [
        (record, of(rule, stack))
        for stack in stacks
        for rule in rules_of(kind, stack, whole)
        for record in _RECORDS[kind]
    ]


def _refused(plans: Table, catalog: Catalog) -> Iterator[tuple[Rule[Any], Any, np.ndarray]]:
    """Rules of their software that some plans break, the plans as the rule reads them, and the rows that break it."""
    rules = rules_of_stacks(plans, stacks_of(plans), whole=False)
    if not rules:
        return
    space = space_of(plans, {}, catalog, rules[:1], len(plans))
    records: dict[type[PartialPlan], Any] = {record: space.plan(record) for record, _ in rules}
    with np.errstate(all="ignore"):
        for record, rule in rules:
            plan = records[record]
            try:
                rows = rule.broken(plan, plan.model)
            except NotChosen:
                continue
            if some(rows):
                yield rule, plan, rows if plan.concerned is None else rows & plan.concerned


def refused_reasons(plans: Table, catalog: Catalog, stack: str = "") -> list[str]:
    """Why the software of each plan (or ``stack`` instead) does not start it, "" if it does or has no rules."""
    if stack:
        named = np.full(len(plans), STACKS[stack].software, dtype=object)
        plans = replace(plans.with_columns({"software": named}), auto={})
    result = [""] * len(plans)
    for rule, plan, rows in _refused(plans, catalog):
        every = np.broadcast_to(rows, len(plans))
        _, words = remarks_of_rows([rule.remark(every, plan, plan.model)], len(plans))
        for row in np.flatnonzero(every).tolist():
            result[row] = result[row] or str(words[row])
    return result


def started(plans: Table, catalog: Catalog) -> np.ndarray:
    """Rows of the plans that their software starts."""

    def starting(block: Table) -> np.ndarray:
        starts = np.ones(len(block), dtype=bool)
        for _, _, rows in _refused(block, catalog):
            starts &= ~rows
        return starts

    return np.flatnonzero(in_block(("started", id(catalog)), plans, starting, np.ndarray.__getitem__))


def shape_of(plan: Table, catalog: Catalog) -> Shape:
    """Facts of the model and servers of one plan that a launch line needs."""
    models = catalog.tables["models"]
    row = int(catalog.rows("models", plan.text("model"), plan, "model")[0])
    model = {name: values[row] for name, values in models.columns.items() if values[row] == values[row]}
    return Shape(model, float(server_sizes(plan, catalog)[0][0]))


SWITCHES: Mapping[str, Mapping[str, float | str]] = {
    "training": {"compiled": 1.0, "attention": "flash", "tensor_overlap": "all", "cross_entropy": "fused",
                 "data_overlap": 1.0, "pipeline_overlap": 1.0, "graphs": "layers"},
    "inference": {"graphs": 1.0},
}  # fmt: skip
"""Optional settings of the software, switched on."""
MINIMISED = {"training": "step_time", "inference": "latency"}
"""Result that they make smaller, by kind of plan: at fixed requests in flight, latency determines throughput."""
_WORTH = 0.005  # least relative speedup for which a setting is switched on [-]


def flagged(software: str, wanted: Mapping[str, str]) -> dict[str, str]:
    """The settings, by column, that the stack of a software has a flag for."""
    stack = stack_of_software(software)
    known = {(flag.column, flag.value) for flag in flags(stack)} if stack else set()
    return {name: word for name, word in wanted.items() if (name, word) in known}


def switched(searched: Search, catalog: Catalog, switches: Mapping[str, float | str]) -> Search:
    """The best plan with the settings that make it faster, fit, and that its software starts."""
    best = searched.taken(np.zeros(1, dtype=np.int64))
    name = MINIMISED[best.plans.kind]
    for setting, value in switches.items():
        if best.plans.filled(setting)[0] == value:
            continue
        plan = with_columns(best.plans, **{setting: value})
        results = evaluate(plan, catalog)
        gain = best.results.number(name)[0] / results.number(name)[0] - 1.0
        if gain > _WORTH and results.number("fits")[0] == 1.0 and not refused_reasons(plan, catalog)[0]:
            best = replace(best, plans=plan, results=results)
    return best
