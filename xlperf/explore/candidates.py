"""Candidates of a search: the legal plans that a plan with ``auto`` cells expands to, and which of them fit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypedDict, Unpack

import numpy as np

from xlperf.base.arrays import Array, combined, distinct_rows, power
from xlperf.base.errors import Fault, InputError, raise_faults
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import OWN_RUNS, auto_columns, canonical, mapping_columns, split_header
from xlperf.catalog.table import Table, place_of_row
from xlperf.engine import evaluate
from xlperf.engine.tables import bounds, fitting
from xlperf.equations.plan.dimensions import PLACEHOLDERS, REPLICA
from xlperf.equations.plan.serving_plan import MODE_RULES, REQUEST_RULES, SERVING_RULES
from xlperf.equations.plan.training_plan import TRAINING_RULES
from xlperf.explore import mappings
from xlperf.explore.objectives import TARGETS, Limit, Objective
from xlperf.explore.space import MOST_PLANS, SPLIT, WHOLE, Part, Rules, Space, TooMany, grid, space_of

MOST_CANDIDATES = MOST_PLANS  # most candidates of one plan by default [-]
PART = 2**19  # candidates that one block holds if there are more than MOST_CANDIDATES [-]
COUNTS_SHARE = 16
"""The search thins the numbers of accelerators if all of them make more than 1/16 of the allowed plans. [-]"""
_LOADS = ("batch_size", "concurrency")
KINDS: dict[str, tuple[Callable[[Space], None], Rules]] = {
    "training": (mappings.cross_training, [(mappings.PartialTraining, rule) for rule in TRAINING_RULES]),
    "inference": (mappings.cross_inference, [
        *((mappings.PartialInference, rule) for rule in (*MODE_RULES, *REQUEST_RULES, *SERVING_RULES)),
        *((mappings.PartialPrefill, rule) for rule in SERVING_RULES),
    ]),
}  # fmt: skip
"""By kind of plan: the function that crosses the searched columns, and the rules that candidates must satisfy."""


class Bounds(TypedDict, total=False):
    """Bounds of a search: the largest number of candidates of a plan, and of accelerators tried for ``auto``."""

    most: int
    most_accelerators: float


class Candidates(NamedTuple):
    """Candidates of a plan with ``auto`` cells."""

    plans: Table  # one row per candidate, at least one; a tie goes to the earlier row
    searched: tuple[str, ...]  # the columns with more than one value, in sheet order
    counts: mappings.Counts | None = None  # numbers of accelerators, if the plan leaves them to the search
    even: bool = False  # whether the search skips uneven virtual-pipeline chunks to limit the number of plans


def searched_column(kind: str, header: str, place: str) -> str:
    """The column that a header names. Raises InputError, with ``place``, if a search cannot choose its values."""
    name = canonical(kind, split_header(header)[0])
    if name not in auto_columns(kind):
        words = [known.replace("_", " ") for known in auto_columns(kind)]
        problem = f'"{header.strip()}" cannot be auto in {kind} plans, only these can: {", ".join(words)}'
        raise InputError(Fault(place, problem))
    return name


def with_auto(plans: Table, headers: Sequence[str], place: str) -> Table:
    """Plans with ``auto`` in every cell of some columns; InputError, with ``place``, if one is not searchable."""
    columns, auto = dict(plans.columns), dict(plans.auto)
    for header in headers:
        column = plans.schema.by_name[searched_column(plans.kind, header, place)]
        columns[column.name] = column.array(["" if column.is_text else np.nan] * len(plans))
        auto[column.name] = np.ones(len(plans), dtype=bool)
    return replace(plans, columns=columns, auto=auto).in_order()


def with_mapping(plans: Table, fixed: Collection[str] = ()) -> Table:
    """Plans with ``auto`` in each blank mapping column; a given load of an inference plan stays."""
    columns, auto = dict(plans.columns), dict(plans.auto)
    none = np.zeros(len(plans), dtype=bool)
    loaded = none
    for name in (*_LOADS, "request_rate") if plans.kind == "inference" else ():
        loaded = loaded | ~np.isnan(plans.number(name)) | auto.get(name, none) | (name in fixed)
    for name in mapping_columns(plans.kind):
        text = plans.schema.by_name[name].is_text
        values = plans.text(name) if text else plans.number(name)
        blank = (values == "" if text else np.isnan(values)) & ~(loaded & (name in _LOADS))
        if name not in fixed and blank.any():
            columns[name], auto[name] = values, auto.get(name, none) | blank
    return replace(plans, columns=columns, auto=auto).in_order()


def auto_faults(plans: Table) -> list[Fault]:
    """A fault for each ``auto`` in a column that a search cannot choose."""
    known = ", ".join(name.replace("_", " ") for name in auto_columns(plans.kind))
    return [
        Fault(plans.place(int(row), name), f"{name.replace('_', ' ')} cannot be auto, only these can: {known}")
        for name, mask in plans.auto.items()
        if name not in auto_columns(plans.kind)
        for row in np.flatnonzero(mask)
    ]


def candidates(
    plan: Table,
    catalog: Catalog,
    values: Mapping[str, np.ndarray] | None = None,
    counts: Array | None = None,
    num_points: int = 1,
    most: int = MOST_CANDIDATES,
    most_accelerators: float = mappings.MOST_ACCELERATORS,
    part: Part | None = None,
    limits: Sequence[Limit] = (),
) -> Candidates:
    """All legal combinations of the values of ``auto`` cells and of columns with stated values.

    Values of ``auto``: degrees that divide the accelerators and their dimension (heads, experts, expert widths,
    sequence); stages up to the layers, and their chunks; micro batches that divide a replica's batch, or powers of two
    up to 64 if the global batch is blank; the numbers of accelerators of :func:`xlperf.explore.mappings.sold_counts`,
    thinned if there are too many plans; every word of a choice; requests in flight in up to 24 geometric steps up to
    the memory's and the targets' limit. Candidates exclude duplicates, combinations that the rules of plans forbid, and
    mappings that the plan's software does not start, unless it starts none.

    If no candidate is legal, the result is the plan with its defaults, whose evaluation gives the reason. Raises
    InputError if there are too many plans, a name is unknown, or ``auto`` is in a column that cannot be searched.
    """
    values = values or {}
    faults = auto_faults(plan)
    raise_faults(faults)
    known = auto_columns(plan.kind)
    auto = {name for name, mask in plan.auto.items() if mask.any()} - set(values)
    asked = {name: values.get(name) for name in known if (name in values or name in auto) and name not in _LOADS}
    plain = Table(plan.kind, plan.columns, plan.place)
    base = grid(plain, {name: column for name, column in values.items() if name not in asked}, most)
    load = open_load(plan, values)
    stacks = mappings.stacks_of(base)
    ladders = _ladders(base, catalog, most_accelerators, counts) if "num_accelerators" in auto else None
    few = most // (COUNTS_SHARE * (NUM_POINTS if load else num_points))
    chunks = (True, False) if "virtual_pipeline" in auto else (True,)
    attempts = [(step, uneven) for step in (mappings.STEPS if ladders else mappings.STEPS[-1:]) for uneven in chunks]
    attempts = attempts if part is None else attempts[-1:]

    def crossed(rules: Rules) -> Space:
        """The space at the finest thinning that does not exceed the limit on plans."""
        for step, uneven in attempts:
            steps[:] = [mappings.thinned(ladder, step) for ladder in ladders[0]] if ladders else []
            last = (step, uneven) == attempts[-1]
            space = space_of(base, asked, catalog, rules, most if last else few, steps, part or WHOLE)
            space.uneven = uneven
            try:
                KINDS[plan.kind][0](space)
                break
            except TooMany:
                if last:
                    raise
        return space

    steps: list[Array] = []
    legal = KINDS[plan.kind][1]
    space = crossed([*legal, *mappings.rules_of_stacks(base, stacks)])
    if stacks and not len(space) and part is None:  # every candidate is refused
        space = crossed(legal)
    space.most = most
    tried = ladders[1]._replace(tried=np.unique(np.concatenate(steps))) if ladders else None
    result = space.table() if len(space) else plain
    if load and len(space):
        result = _loaded(result, catalog, load, space, limits)
    order = plan.schema.by_name
    searched = tuple(name for name in order if name in auto or name in values)
    return Candidates(result, searched, tried, not space.uneven)


def uneven_chunks(
    plans: Table, catalog: Catalog, searched: Sequence[str], among: Sequence[float] | None = None
) -> Table:
    """Training plans with uneven virtual-pipeline chunks: every number (``among`` some) that equal chunks leave out."""
    rows = first_of_each(plans, searched, "virtual_pipeline")
    models = catalog.rows("models", plans.text("model"), plans, "model")
    layers, stages = catalog.tables["models"]["num_layers"][models][rows], plans.filled("pipeline_parallel")[rows]
    # Every number of chunks up to a layer per chunk that deals layers unevenly
    deepest = np.where(stages > 1.0, np.floor((layers + PLACEHOLDERS) / stages), 0.0)
    index = np.repeat(np.arange(len(rows)), deepest.astype(np.intp))
    chunks = np.asarray(np.arange(len(index)) - np.searchsorted(index, index) + 1, dtype=np.float64)
    uneven = ~mappings.equal_chunks(chunks, stages[index], layers[index])
    uneven &= True if among is None else np.isin(chunks, among)
    chunked = plans.take(rows[index[uneven]])
    result = replace(chunked, columns={**chunked.columns, "virtual_pipeline": chunks[uneven]})
    return result.take(mappings.started(result, catalog))


def first_of_each(plans: Table, searched: Sequence[str], without: str) -> np.ndarray:
    """First row of each group of plans that differ only in the searched column ``without``, in order."""
    names = [name for name in searched if name != without and name in plans]
    return np.sort(np.unique(codes_of(plans, names), return_index=True)[1])


def open_load(plan: Table, values: Mapping[str, np.ndarray]) -> str:
    """The load column that the search chooses between one request and the largest load, or "" if the plan states it."""
    auto = [name for name in _LOADS if name not in values and name in plan.auto and plan.auto[name].any()]
    return auto[-1] if auto else ""


def candidate_parts(
    plan: Table,
    catalog: Catalog,
    values: Mapping[str, np.ndarray] | None = None,
    counts: Array | None = None,
    part: Part = WHOLE,
    most_accelerators: float = mappings.MOST_ACCELERATORS,
    limits: Sequence[Limit] = (),
) -> Iterator[Candidates]:
    """Candidates of a part of a space, at least one block; splits parts that would need too much memory."""
    try:
        result = candidates(
            plan, catalog, values, counts, most=PART, most_accelerators=most_accelerators, part=part, limits=limits
        )
    except TooMany:
        if part.of > SPLIT:
            raise
        for smaller in part.smaller:
            yield from candidate_parts(plan, catalog, values, counts, smaller, most_accelerators, limits)
    else:
        yield result


def _ladders(base: Table, catalog: Catalog, most: float, only: Array | None) -> tuple[list[Array], mappings.Counts]:
    """Numbers of accelerators to try: for each row of the base plans, and for all rows together."""
    units, totals = mappings.server_sizes(base, catalog)
    known = {pair: mappings.sold_counts(*pair, most) for pair in zip(units.tolist(), totals.tolist(), strict=True)}
    if only is not None:
        known = {pair: counts[np.isin(counts, only)] for pair, counts in known.items()}
    each = [known[pair] for pair in zip(units.tolist(), totals.tolist(), strict=True)]
    sold = np.unique(np.concatenate(list(known.values())))
    return each, mappings.Counts(sold, sold, float(units[0]) if len(set(units.tolist())) == 1 else float("nan"))


def _loaded(plans: Table, catalog: Catalog, load: str, space: Space, limits: Sequence[Limit]) -> Table:
    """Plans at each load to try; a plan whose memory holds no request gets one request per replica."""
    if (~np.isnan(plans.number("request_rate"))).any():
        problem = f"{load.replace('_', ' ')} is auto beside a request rate: give one of them"
        raise InputError(Fault(plans.place(0, load), problem))
    rows, batches, replicas = load_steps(plans, catalog, limits=limits)
    if not len(rows):
        return plans
    space.count(len(rows))
    loaded = plans.take(rows)
    return replace(loaded, columns={**loaded.columns, load: batches * replicas if load == "concurrency" else batches})


def expanded(
    plans: Table, catalog: Catalog, without: Collection[str] = (), num_points: int = 1, **bounds: Unpack[Bounds]
) -> Table:
    """Plans in which all candidates of a row replace the row, if any cell of it is ``auto``."""
    auto = {name: mask for name, mask in plans.auto.items() if name not in without}
    plain = replace(plans, auto=auto)
    if not any(mask.any() for mask in auto.values()):
        return replace(plans, auto={})
    parts: list[Table] = []
    faults: list[Fault] = []
    for row in range(len(plans)):
        try:
            parts.append(candidates(plain.take([row]), catalog, num_points=num_points, **bounds).plans)
        except InputError as error:
            faults += error.faults
    raise_faults(faults)
    first = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    columns = {name: np.concatenate([part[name] for part in parts]) for name in plans.columns}
    return Table(plans.kind, columns, partial(place_of_row, plans.place, first))


NUM_POINTS = 24
LOADS = ("concurrency", "batch_size", "request_rate")
FINER = 64  # loads to try around the load of a good plan [-]
RISING = ("ttft", "tpot", "latency", "queue_time")
"""Prefixes of results that rise with the load: a limit on such a result bounds the load."""


def load_steps(
    plans: Table, catalog: Catalog, num_points: int = NUM_POINTS, limits: Sequence[Limit] = ()
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers of requests in flight to try: geometric steps from one per replica to the memory's and the targets'
    limit.

    ``plans``: inference plans; their own load does not matter. ``num_points``: most steps per plan. ``limits``: limits
    on results beside the targets; limits on times bound the load. Returns per step: the row of the plan, requests per
    replica, and replicas. Illegal plans, and plans that do not fit or miss a target with a single request, have no
    steps.
    """
    # The load that the memory has room for, from a plan with one request per replica
    columns = {**plans.columns, **dict.fromkeys(LOADS, np.full(len(plans), np.nan))}
    copies = replicas(plans)
    single = Table(plans.kind, {**columns, "concurrency": copies}, plans.place, plans.auto)
    memory = fitting(single, catalog)
    most = np.array(memory["max_batch_size"]) if memory is not None else np.full(len(plans), np.nan)
    bounds = [limit for limit in limits if limit.sign in ("<", "<=") and limit.column.name.startswith(RISING)]
    targets = any(name in plans for name in TARGETS.values())
    continuous = plans.filled("mode") == "continuous"
    some = np.flatnonzero((most >= 1.0) & continuous)
    # The load that the targets allow: a result with continuous batching, else by bisection
    if targets and len(some):
        at_targets = evaluate(single.take(some), catalog).number("batch_at_targets")
        most[some] = np.where(np.isnan(at_targets), most[some], at_targets)
    some = np.flatnonzero((most >= 1.0) & (~continuous if not bounds else True))
    if (targets or bounds) and len(some):
        most[some] = _largest_load(single.take(some), copies[some], most[some], catalog, bounds)
    # Geometric steps up to it
    rows = np.flatnonzero(most >= 1.0)
    steps = [np.unique(np.round(power(room, np.linspace(0.0, 1.0, num_points)))) for room in most[rows].tolist()]
    index = np.repeat(rows, [len(batches) for batches in steps])
    return index, np.concatenate([*steps, np.zeros(0)]), copies[index]


def _largest_load(plans: Table, copies: Array, most: Array, catalog: Catalog, limits: Sequence[Limit]) -> Array:
    """Largest number of requests per replica within the targets and limits of plans, by bisection; 0 if none is."""
    plain = replace(plans, columns={n: v for n, v in plans.columns.items() if n not in TARGETS.values()})
    names = {*TARGETS, *(limit.column.name for limit in limits)}
    asked = names if all(limit.probability == Limit._field_defaults["probability"] for limit in limits) else None
    low, high = np.zeros(len(plans)), np.floor(most) + 1.0
    tried = np.floor(most)
    while len(rows := np.flatnonzero(high - low > 1.0)):
        load = {"concurrency": (tried * copies)[rows]}
        trial = plain.take(rows)
        results = evaluate(replace(trial, columns={**trial.columns, **load}), catalog, results=asked)
        good = np.ones(len(rows), dtype=bool)
        for limit in limits:
            good &= limit.kept(results)
        for name, target in TARGETS.items():
            good &= ~(results.number(name) > plans.number(target)[rows])
        low[rows] = np.where(good, tried[rows], low[rows])
        high[rows] = np.where(good, high[rows], tried[rows])
        middle = np.floor(np.sqrt(np.maximum(low, 1.0) * high))
        tried = np.clip(middle, low + 1.0, high - 1.0)
    return low


def replicas(plans: Table) -> np.ndarray:
    """Replicas that decode, of inference plans. [-]"""
    total, asked = plans.number("num_accelerators"), plans.number("prefill_accelerators")
    pools = plans.filled("mode") == "disaggregated"
    apart = np.where(np.isnan(asked), np.floor(0.5 * total), asked) + np.nan_to_num(plans.number("expert_accelerators"))
    decode = np.where(pools, total - apart, total)
    ranks = np.prod([plans.filled(each.size) for each in REPLICA], axis=0)
    return np.asarray(np.maximum(np.floor(decode / ranks), 1.0))


def finer_loads(plans: Table, load: str, width: float, most: Array) -> Table:
    """Plans at further whole numbers of requests per replica around their load, evenly spaced if there are many."""
    copies = replicas(plans) if load == "concurrency" else np.ones(len(plans))
    center = np.maximum(np.round(plans.number(load) / copies), 1.0)
    # Whole loads within the width around the load, without the load itself
    low, high = np.maximum(np.floor(center / width), 1.0), np.maximum(np.minimum(np.ceil(center * width), most), center)
    steps = [np.unique(np.round(np.linspace(*ends, FINER))) for ends in zip(low.tolist(), high.tolist(), strict=True)]
    finer = [result[result != load_] for result, load_ in zip(steps, center.tolist(), strict=True)]
    index = np.repeat(np.arange(len(plans)), [len(result) for result in finer])
    finer_plans = plans.take(index)
    loads = np.concatenate([*finer, np.zeros(0)]) * copies[index]
    return replace(finer_plans, columns={**finer_plans.columns, load: loads})


MEMORY_LEAST, MEMORY_BLOCK = 4096, 65_536  # plans whose memory is evaluated together [-]
ROUNDING = 1e-9  # relative difference of two sums, or of a bound to a result, that rounding may hide [-]
_MICRO_BATCH = "micro_batch_size"
_KERNELS = (_MICRO_BATCH, "tensor_parallel", "context_parallel", "expert_parallel", "expert_tensor_parallel",
            "sequence_parallel", "context_method", "recompute", "zero_stage")  # fmt: skip


def codes_of(plans: Table, names: Sequence[str]) -> np.ndarray:
    """One number for each combination of values in some columns, (rows,): equal for equal combinations."""
    return combined((plans[name] for name in names), len(plans))


def by_kernels(plans: Table, rows: np.ndarray) -> np.ndarray:
    """Rows in an order that puts plans with equal kernels side by side, so that a batch of plans times few."""
    names = [name for name in _KERNELS if name in plans]
    return np.asarray(rows[np.argsort(codes_of(plans.take(rows), names), kind="stable")])


_LEAST: Mapping[str, str | float] = {"recompute": "none", "zero_stage": 2.0}  # values of the fastest passes


def by_bounds(
    plans: Table, catalog: Catalog, rows: np.ndarray, objective: Objective
) -> tuple[np.ndarray, Array | None]:
    """Rows by the least loss that they may have, and these losses; unchanged, and None, if the objective has no bound.
    Plans that differ in recomputation and ZeRO alone have one bound.
    """
    # One plan of each bound, with the least recomputation and sharding
    some = plans.take(rows)
    first, group = distinct_rows(*(values for name, values in some.columns.items() if name not in _LEAST))
    order = by_kernels(some.take(first), np.arange(len(first)))
    fastest = some.take(first[order])
    least = {
        name: np.full(len(first), value, dtype=fastest[name].dtype) for name, value in _LEAST.items() if name in fastest
    }
    best = bounds(replace(fastest, columns={**fastest.columns, **least}), catalog, objective.column.name)
    if best is None:
        return rows, None
    # Losses of all rows, the least first; unknown ones may be anything
    losses, loss = np.empty(len(first)), objective.loss(best)
    losses[order] = np.where(np.isnan(loss), -np.inf, loss - ROUNDING * np.abs(loss))
    losses = losses[group]
    order = np.argsort(losses, kind="stable")
    return rows[order], losses[order]


def fits_of(plans: Table, catalog: Catalog) -> tuple[Array, Array]:
    """Whether training plans fit: 1 or 0, NaN if illegal; and the reserved memory of those that fit, (rows,). [-, B]

    Plans that differ only in the micro batch form a group, evaluated from the smallest one up until the first or the
    last stage is beyond the memory: neither needs less for a larger micro batch, since the activations in flight are
    those of a number of micro-batches up to all of them, which have the same tokens together. Stages in between have
    one micro-batch less in flight, and may need less. The largest micro batch may be the only one of a step, whose
    gradients are freed or sharded: of it only weights and optimizer state show that it does not fit.
    """
    fits, reserved = np.zeros((2, len(plans)))
    if len(catalog.tables[OWN_RUNS]):  # which correct the memory of each plan in its own way
        group = np.arange(len(plans))
    else:
        group = codes_of(plans, [name for name in plans.columns if name != _MICRO_BATCH])
    # Rows by group and micro batch: each group still to evaluate stands from ``place`` to ``ends``
    order = np.lexsort((plans.filled(_MICRO_BATCH), group))
    ends = np.flatnonzero(np.append(group[order[1:]] != group[order[:-1]], True))
    place = np.append(0, ends[:-1] + 1)
    while len(place):
        # The next micro batches of every group in one call
        number = np.minimum(max(MEMORY_LEAST // len(place), 1), ends - place + 1)  # of micro batches of each group
        first = np.cumsum(number) - number
        rows = order[np.repeat(place - first, number) + np.arange(number.sum())]
        fits[rows], reserved[rows], ends_of, rests = _memory(plans, catalog, rows)
        # Groups with a stage beyond the memory go on to their largest micro batch alone
        beyond, never = (np.logical_or.reduceat(each > 1.0 + ROUNDING, first) for each in (ends_of, rests))
        place = np.maximum(place + number, np.where(beyond, ends, 0))
        more = (place <= ends) & ~never
        place, ends = place[more], ends[more]
    return fits, reserved


def _memory(plans: Table, catalog: Catalog, rows: np.ndarray) -> Array:
    """Whether plans fit, their reserved memory [B], shares of the capacity of the end stages and of the state."""
    blocks = []
    for start in range(0, len(rows), MEMORY_BLOCK):
        memory = fitting(plans.take(rows[start : start + MEMORY_BLOCK]), catalog)
        assert memory is not None
        ends = np.fmax(memory["memory_first_stage"], memory["memory_last_stage"])
        state = memory["memory_weights"] + memory["memory_optimizer"]
        shares = ends / memory["memory_capacity"], state / memory["memory_capacity"]
        blocks.append(np.stack([memory["fits"], memory["memory_reserved"], *shares]))
    return np.concatenate(blocks, axis=1)
