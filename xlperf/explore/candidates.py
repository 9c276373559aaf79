"""Candidates of a search: the legal plans that a plan with ``auto`` cells expands to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypedDict, Unpack

import numpy as np

from xlperf.base.arrays import Array, power
from xlperf.base.errors import Fault, InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import auto_columns, canonical, mapping_columns, split_header
from xlperf.catalog.table import Table, place_of_row
from xlperf.engine import evaluate
from xlperf.engine.tables import fitting
from xlperf.equations.plan.dimensions import PLACEHOLDERS, REPLICA
from xlperf.equations.plan.serving_plan import MODE_RULES, REQUEST_RULES, SERVING_RULES
from xlperf.equations.plan.training_plan import TRAINING_RULES
from xlperf.explore.mappings import (
    MOST_ACCELERATORS,
    STEPS,
    Counts,
    PartialInference,
    PartialPrefill,
    PartialTraining,
    cross_inference,
    cross_training,
    equal_chunks,
    server_sizes,
    sold_counts,
    thinned,
)
from xlperf.explore.objectives import TARGETS, Limit
from xlperf.explore.space import MOST_PLANS, SPLIT, WHOLE, Part, Rules, Space, TooMany, grid, space_of
from xlperf.explore.started import refused_reasons, rules_of_stacks, stacks_of

MOST_CANDIDATES = MOST_PLANS
"""Most candidates of one plan by default. [-]"""
PART = 2**19
"""Candidates that are made at once if they are more than :data:`MOST_CANDIDATES`. [-]"""
COUNTS_SHARE = 16
"""Numbers of accelerators are tried in steps if all of them make more than this part of the plans allowed. [-]"""
_LOADS = ("batch_size", "concurrency")
KINDS: dict[str, tuple[Callable[[Space], None], Rules]] = {
    "training": (cross_training, [(PartialTraining, rule) for rule in TRAINING_RULES]),
    "inference": (
        cross_inference,
        [
            *((PartialInference, rule) for rule in (*MODE_RULES, *REQUEST_RULES, *SERVING_RULES)),
            *((PartialPrefill, rule) for rule in SERVING_RULES),
        ],
    ),
}
"""What crosses the columns of a kind of plan, and the rules of legality that the candidates keep."""


class Bounds(TypedDict, total=False):
    """Bounds of a search: most candidates of a plan, and most accelerators tried for ``auto``."""

    most: int
    most_accelerators: float


class Candidates(NamedTuple):
    """Candidates of a plan with ``auto`` cells.

    - ``plans``: one row for each, in the order in which equal ones are preferred: at least one.
    - ``searched``: columns whose values were tried, in the order of the sheet.
    - ``counts``: numbers of accelerators, if they are searched.
    - ``even``: whether numbers of chunks of a stage were left out where chunks are not of one size, to have fewer
      plans.
    """

    plans: Table
    searched: tuple[str, ...]
    counts: Counts | None = None
    even: bool = False


def searched_column(kind: str, header: str, place: str) -> str:
    """The column that a header names, if a search can choose its values.

    ``header``: name of a column. ``place``: where it stands, for the message. Raises InputError where it is none.
    """
    name = canonical(kind, split_header(header)[0])
    if name not in auto_columns(kind):
        words = [known.replace("_", " ") for known in auto_columns(kind)]
        problem = f'"{header.strip()}" cannot be auto in {kind} plans, only these can: {", ".join(words)}'
        raise InputError(Fault(place, problem))
    return name


def with_auto(plans: Table, headers: Sequence[str], place: str) -> Table:
    """Plans whose cells in some columns all say ``auto``.

    ``headers``: columns. ``place``: if these stand, for the messages. Raises InputError where a column is not
    searched.
    """
    columns, auto = dict(plans.columns), dict(plans.auto)
    for header in headers:
        name = searched_column(plans.kind, header, place)
        text = plans.schema.by_name[name].is_text
        columns[name] = np.full(len(plans), "" if text else np.nan, dtype=object if text else np.float64)
        auto[name] = np.ones(len(plans), dtype=bool)
    order = [column.name for column in plans.schema.columns if column.name in columns]
    return replace(plans, columns={name: columns[name] for name in order}, auto=auto)


def with_mapping(plans: Table, kept: Collection[str] = ()) -> Table:
    """Plans whose mapping says ``auto`` where they leave it blank: every column of :func:`mapping_columns`.

    The load of an inference plan stays if it is given.

    ``kept``: columns that stay as they are.
    """
    columns, auto = dict(plans.columns), dict(plans.auto)
    none = np.zeros(len(plans), dtype=bool)
    loaded = none
    for name in (*_LOADS, "request_rate") if plans.kind == "inference" else ():
        loaded = loaded | ~np.isnan(plans.number(name)) | auto.get(name, none) | (name in kept)
    for name in mapping_columns(plans.kind):
        text = plans.schema.by_name[name].is_text
        values = plans.text(name) if text else plans.number(name)
        blank = (values == "" if text else np.isnan(values)) & ~(loaded & (name in _LOADS))
        if name not in kept and blank.any():
            columns[name] = values
            auto[name] = auto.get(name, none) | blank
    order = [column.name for column in plans.schema.columns if column.name in columns]
    return replace(plans, columns={name: columns[name] for name in order}, auto=auto)


def auto_faults(plans: Table) -> list[Fault]:
    """Cells that say ``auto`` in a column that a search does not choose.

    Returns one for each cell.
    """
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
    most_accelerators: float = MOST_ACCELERATORS,
    part: Part | None = None,
    limits: Sequence[Limit] = (),
) -> Candidates:
    """All legal combinations of the values of ``auto`` cells and of columns with stated values.

    Tried for ``auto``: degrees that divide the accelerators, and what they share out (heads, experts, widths of
    experts, sequences); stages up to the layers, and chunks of them; micro batches that divide the batch of a
    replica, or powers of two up to 64 if the global batch is blank; the numbers of accelerators of
    :func:`xlperf.explore.mappings.sold_counts`, in steps if all make too many plans; every word of a choice;
    requests in flight in up to 24 steps of equal ratio up to what memory holds and targets allow. What the
    rules of plans forbid by these columns alone is left out, and so is what makes the same plan again, and what the
    stack of the plan does not start, unless it starts none.

    - ``plan``: one training or inference plan.
    - ``catalog``: what it refers to.
    - ``values``: values to try for columns, in the units used inside: in place of ``auto`` or of a value.
    - ``counts``: the only numbers of accelerators tried for ``auto`` [-].
    - ``num_points``: loads that each plan gets afterwards [-].
    - ``most``: plans at the most.
    - ``most_accelerators``: largest number of accelerators tried for ``auto`` [-].
    - ``part``: which part of them, if they are too many to be made at once.
    - ``limits``: what results must keep; those on times bound the loads that are tried for ``auto``.

    If nothing is left, the plan with its defaults is returned: its evaluation says what is wrong. Raises InputError
    if there are too many, a name is unknown, or ``auto`` stands in a column that is not searched.
    """
    values = values or {}
    faults = auto_faults(plan)
    if faults:
        raise InputError(faults)
    known = auto_columns(plan.kind)
    auto = {name for name, mask in plan.auto.items() if mask.any()} - set(values)
    asked = {name: values.get(name) for name in known if (name in values or name in auto) and name not in _LOADS}
    plain = Table(plan.kind, plan.columns, plan.place)
    base = grid(plain, {name: column for name, column in values.items() if name not in asked}, most)
    load = open_load(plan, values)
    stacks = stacks_of(base)
    ladders = _ladders(base, catalog, most_accelerators, counts) if "num_accelerators" in auto else None
    few = most // (COUNTS_SHARE * (NUM_POINTS if load else num_points))
    chunks = (True, False) if "virtual_pipeline" in auto else (True,)
    attempts = [(step, uneven) for step in (STEPS if ladders else STEPS[-1:]) for uneven in chunks]
    attempts = attempts if part is None else attempts[-1:]

    def crossed(rules: Rules) -> Space:
        """The space in the finest steps that do not make too many plans."""
        for step, uneven in attempts:
            steps[:] = [thinned(ladder, step) for ladder in ladders.each] if ladders else []
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
    space = crossed([*legal, *rules_of_stacks(base, stacks)])
    if stacks and not len(space) and part is None:  # every candidate is refused
        space = crossed(legal)
    space.most = most
    tried = ladders.all._replace(tried=np.unique(np.concatenate(steps))) if ladders else None
    result = space.table() if len(space) else plain
    if load and len(space):
        result = _loaded(result, catalog, load, space, limits)
    order = plan.schema.by_name
    searched = tuple(name for name in order if name in auto or name in values)
    return Candidates(result, searched, tried, not space.uneven)


def uneven_chunks(plans: Table, catalog: Catalog, searched: Sequence[str]) -> Table:
    """Training plans with uneven virtual-pipeline chunks: every number of chunks that equal ones do not cover.

    ``plans``: training plans whose virtual pipeline was chosen among those with chunks of equal size. ``catalog``: with
    the models. ``searched``: columns that were tried. Returns one row for each plan and number of chunks; of plans that
    differ in that number alone the first counts. Plans that their stack does not start are left out.
    """
    rows = first_of_each(plans, searched, "virtual_pipeline")
    models = catalog.rows("models", plans.text("model"), plans, "model")
    layers, stages = catalog.tables["models"]["num_layers"][models][rows], plans.filled("pipeline_parallel")[rows]
    deepest = np.where(stages > 1.0, np.floor((layers + PLACEHOLDERS) / stages), 0.0)
    index = np.repeat(np.arange(len(rows)), deepest.astype(np.intp))
    chunks = np.asarray(np.arange(len(index)) - np.searchsorted(index, index) + 1, dtype=np.float64)
    uneven = ~equal_chunks(chunks, stages[index], layers[index])
    taken = plans.take(rows[index[uneven]])
    result = replace(taken, columns={**taken.columns, "virtual_pipeline": chunks[uneven]})
    started = [not why for why in refused_reasons(result, catalog)]
    return result.take(np.flatnonzero(started))


def first_of_each(plans: Table, searched: Sequence[str], without: str) -> np.ndarray:
    """First row of each group of plans that differ in one searched column only, in their order."""
    names = [name for name in searched if name != without and name in plans]
    keys = zip(*(plans[name].tolist() for name in names), strict=True) if names else [()] * len(plans)
    first: dict[object, int] = {}
    for row, key in enumerate(keys):
        first.setdefault(tuple(None if value != value else value for value in key), row)
    return np.array(list(first.values()), dtype=np.int64)


def open_load(plan: Table, values: Mapping[str, np.ndarray]) -> str:
    """The load that a search chooses between one request and the most: the column, or "" if it is given."""
    auto = [name for name in _LOADS if name not in values and name in plan.auto and plan.auto[name].any()]
    return auto[-1] if auto else ""


def candidate_parts(
    plan: Table,
    catalog: Catalog,
    values: Mapping[str, np.ndarray] | None = None,
    counts: Array | None = None,
    part: Part = WHOLE,
    most_accelerators: float = MOST_ACCELERATORS,
    limits: Sequence[Limit] = (),
) -> Iterator[Candidates]:
    """Candidates of a part of a space, split further where they would take too much memory at once.

    Parameters
    ----------
    plan, catalog, values, counts, part, most_accelerators, limits
        As for :func:`candidates`.

    Yields
    ------
    Candidates
        Consecutive parts, one at least.
    """
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


class _Ladders(NamedTuple):
    """Numbers of accelerators to try: for each row of the base plans, and for all rows together."""

    each: list[Array]
    all: Counts


def _ladders(base: Table, catalog: Catalog, most: float, only: Array | None) -> _Ladders:
    units, totals = server_sizes(base, catalog)
    known = {pair: sold_counts(*pair, most) for pair in zip(units.tolist(), totals.tolist(), strict=True)}
    if only is not None:
        known = {pair: counts[np.isin(counts, only)] for pair, counts in known.items()}
    each = [known[pair] for pair in zip(units.tolist(), totals.tolist(), strict=True)]
    sold = np.unique(np.concatenate(list(known.values())))
    return _Ladders(each, Counts(sold, sold, float(units[0]) if len(set(units.tolist())) == 1 else float("nan")))


def _loaded(plans: Table, catalog: Catalog, load: str, space: Space, limits: Sequence[Limit]) -> Table:
    """Plans at each load to try; a plan whose memory holds no request is kept with one request per replica."""
    if (~np.isnan(plans.number("request_rate"))).any():
        problem = f"{load.replace('_', ' ')} is auto beside a request rate: give one of them"
        raise InputError(Fault(plans.place(0, load), problem))
    rows, batches, replicas = load_steps(plans, catalog, limits=limits)
    if not len(rows):
        return plans
    space.count(len(rows))
    taken = plans.take(rows)
    return replace(taken, columns={**taken.columns, load: batches * replicas if load == "concurrency" else batches})


def expanded(
    plans: Table,
    catalog: Catalog,
    without: Collection[str] = (),
    num_points: int = 1,
    **bounds: Unpack[Bounds],
) -> Table:
    """Plans with every row that says ``auto`` replaced by all its candidates.

    ``without``: columns whose ``auto`` is left blank. ``num_points``: loads that each plan gets afterwards.
    ``**bounds``: most candidates of a plan, and most accelerators tried for ``auto``. Returns the rows of the first
    plan, then those of the second ...; places are those of the plans. Raises InputError as :func:`candidates`, with the
    faults of all rows.
    """
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
    if faults:
        raise InputError(faults)
    first = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    columns = {name: np.concatenate([part[name] for part in parts]) for name in plans.columns}
    return Table(plans.kind, columns, partial(place_of_row, plans.place, first))


NUM_POINTS = 24
LOADS = ("concurrency", "batch_size", "request_rate")
FINER = 64
"""Loads that are tried around that of a good plan. [-]"""
RISING = ("ttft", "tpot", "latency", "queue_time")
"""First words of results that rise with the load: a limit on them bounds it."""


def load_steps(
    plans: Table, catalog: Catalog, num_points: int = NUM_POINTS, limits: Sequence[Limit] = ()
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers of requests in flight to try, from one per replica to as many as memory holds and targets allow.

    ``plans``: inference plans; their own load does not matter. ``num_points``: steps of each plan at the most, in equal
    ratios. ``limits``: what results must keep beside the targets of the plans; those on times bound the load. Of each
    step: the plan, requests of a replica, and replicas. Plans that are illegal, that do not fit with a single request
    or then miss a target have none.
    """
    columns = {**plans.columns, **dict.fromkeys(LOADS, np.full(len(plans), np.nan))}
    copies = replicas(plans)
    single = Table(plans.kind, {**columns, "concurrency": copies}, plans.place, plans.auto)
    memory = fitting(single, catalog)
    most = np.array(memory["max_batch_size"]) if memory is not None else np.full(len(plans), np.nan)
    bounds = [one for one in limits if one.sign in ("<", "<=") and one.column.name.startswith(RISING)]
    targets = any(name in plans for name in TARGETS.values())
    continuous = plans.filled("mode") == "continuous"
    some = np.flatnonzero((most >= 1.0) & continuous)
    if targets and len(some):
        kept = evaluate(single.take(some), catalog).number("batch_at_targets")
        most[some] = np.where(np.isnan(kept), most[some], kept)
    some = np.flatnonzero((most >= 1.0) & (~continuous if not bounds else True))
    if (targets or bounds) and len(some):
        most[some] = _largest_kept(single.take(some), copies[some], most[some], catalog, bounds)
    rows = np.flatnonzero(most >= 1.0)
    steps = [np.unique(np.round(power(room, np.linspace(0.0, 1.0, num_points)))) for room in most[rows].tolist()]
    index = np.repeat(rows, [len(batches) for batches in steps])
    return index, np.concatenate([*steps, np.zeros(0)]), copies[index]


def _largest_kept(plans: Table, copies: Array, most: Array, catalog: Catalog, limits: Sequence[Limit]) -> Array:
    """Largest number of requests per replica at which plans keep their targets and limits; 0 if none does."""
    plain = replace(plans, columns={n: v for n, v in plans.columns.items() if n not in TARGETS.values()})
    names = {*TARGETS, *(one.column.name for one in limits)}
    asked = names if all(one.probability == Limit._field_defaults["probability"] for one in limits) else None
    low, high = np.zeros(len(plans)), np.floor(most) + 1.0
    tried = np.floor(most)
    while len(rows := np.flatnonzero(high - low > 1.0)):
        load = {"concurrency": (tried * copies)[rows]}
        own = plain.take(rows)
        results = evaluate(replace(own, columns={**own.columns, **load}), catalog, results=asked)
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
    """Copies of the model that decode, of plans of inference. [-]"""
    total, asked = plans.number("num_accelerators"), plans.number("prefill_accelerators")
    pools = plans.filled("mode") == "disaggregated"
    apart = np.where(np.isnan(asked), np.floor(0.5 * total), asked) + np.nan_to_num(plans.number("expert_accelerators"))
    decode = np.where(pools, total - apart, total)
    ranks = np.prod([plans.filled(each.size) for each in REPLICA], axis=0)
    return np.asarray(np.maximum(np.floor(decode / ranks), 1.0))


def finer_loads(plans: Table, load: str, width: float, most: Array) -> Table:
    """Plans at further whole numbers of requests per replica around their load, evenly spaced if there are many.

    ``load``: concurrency or batch_size. ``width``: ratio of the ends to the load. ``most``: requests that a replica
    has memory for. :data:`FINER` rows for each plan at the most, without its own load.
    """
    copies = replicas(plans) if load == "concurrency" else np.ones(len(plans))
    own = np.maximum(np.round(plans.number(load) / copies), 1.0)
    low, high = np.maximum(np.floor(own / width), 1.0), np.maximum(np.minimum(np.ceil(own * width), most), own)
    steps = [np.unique(np.round(np.linspace(*ends, FINER))) for ends in zip(low.tolist(), high.tolist(), strict=True)]
    kept = [result[result != one] for result, one in zip(steps, own.tolist(), strict=True)]
    index = np.repeat(np.arange(len(plans)), [len(result) for result in kept])
    taken = plans.take(index)
    return replace(taken, columns={**taken.columns, load: np.concatenate([*kept, np.zeros(0)]) * copies[index]})
