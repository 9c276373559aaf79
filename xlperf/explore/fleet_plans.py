"""Plans and machines of fleets: the demand, a fleet of copies of a plan, servers, networks and serving engines."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from xlperf.base.arrays import Array, coded, log
from xlperf.base.errors import Fault, InputError, nearest
from xlperf.base.resources import stack_rows
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import software_title
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.trust import BADGES
from xlperf.explore.mappings import server_sizes
from xlperf.explore.search import stacked
from xlperf.explore.space import divisors, with_columns
from xlperf.interop.software import STACKS, engines_on, searched_engines

ONE, TWO = "continuous", "disaggregated"
TP, PP, EP, DPA = DEGREES = ("tensor_parallel", "pipeline_parallel", "expert_parallel", "data_parallel_attention")
PREFILL_POOL = "prefill_"  # start of the columns of the prefill pool
PREFILL_COUNT, PREFILL_DEGREES = "prefill_accelerators", tuple(f"{PREFILL_POOL}{name}" for name in DEGREES)
COUNT, LOAD = "num_accelerators", "concurrency"
CHUNK, RUNNING = "prefill_tokens", "max_running_batch"
OPTIONS = DISPATCH, _ = ("expert_dispatch", "two_batch_overlap")
"""Dispatch of tokens to experts, for attention replicas."""
EQUAL = 0.005  # relative excess over the smallest fleet up to which fleets count as equal [-]
_ALIKE = 0.02  # relative difference of speeds up to which they count as equal [-]
_QUARTERS = 4.0  # steps of the share of accelerators of whole servers in use [-]
FAR = 2.5  # ratio to the least need beyond which no engine and no option makes a mapping the best [-]
NEVER = 3e8  # A latency that every request satisfies: ten years [s]
ROUND = 1e-9
DISTINCT = (
    "software", "precision", "kv_precision", COUNT, "prefill_accelerators", *DEGREES,
    *PREFILL_DEGREES, CHUNK, RUNNING, LOAD, *OPTIONS,
)  # fmt: skip
"""Columns that distinguish the plans of a fleet search."""

COPY_SIZES = tuple(2.0**power for power in range(9))  # replica sizes of the first round, in accelerators [-]
WIDE, PARTS = 32.0, 8.0
"""From this number of ranks on, attention replicas and expert groups below 1/8 of it are skipped. [-]"""
_QUEUED = (0.1, 0.4, 1.0)
"""Trial times to the first token over their target, from which requests in flight follow for a rate. [-]"""
_BATCHED, _SOLVED = 0.5, 8  # share of a decode step that grows with the batch, and rounds of the estimate [-]
_TRIED = 5  # trial numbers of replicas of a pool around an estimate [-]


@dataclass(frozen=True)
class Demand:
    """Demand on a fleet in internal units; NaN for an unstated number."""

    users: float  # requests in flight; NaN: rate x latency
    rate: float
    tpot: float  # target
    ttft: float  # target
    size: float = float("nan")  # accelerators of one copy if given
    load: float = float("nan")  # users of one copy if given

    @property
    def is_rate(self) -> bool:
        """Whether requests arrive at a rate."""
        return self.users != self.users

    @property
    def queues(self) -> tuple[float, ...]:
        """Trial times to the first token over their target, which requests in flight at a given rate depend on."""
        return _QUEUED if self.is_rate and self.load != self.load else (0.0,)

    @property
    def first(self) -> float:
        """Target of the time to first token, or a time that every request satisfies. [s]"""
        return self.ttft if self.ttft == self.ttft else NEVER

    def kept(self, results: Table) -> np.ndarray:
        """Rows that fit and are within the targets."""
        slow = results.number("tpot") > self.tpot * (1.0 + ROUND)
        late = results.number("ttft") > self.ttft * (1.0 + ROUND)
        return np.asarray((results.number("fits") == 1.0) & ~slow & ~late)


class Fleet(NamedTuple):
    """A way to serve a demand: the plan of a copy at its largest load, its results, users in flight, accelerators."""

    plan: Table
    results: Table
    users: float
    used: float  # accelerators of whole copies
    accelerators: float  # of whole servers
    price: float  # of whole servers, with other prefill accelerators counted at their price ratio [-]
    tpot: float = float("nan")  # of its users [s]
    curve: Array = np.zeros((2, 0))  # output tokens per second per user and per accelerator, (2, loads), on request

    @property
    def way(self) -> tuple[str, str]:
        """Engine and mode."""
        return str(self.plan["software"][0]), str(self.plan["mode"][0])

    @property
    def words(self) -> str:
        """Engine and pools."""
        sizes = {name: float(self.plan.number(name)[0]) for name in (PREFILL_COUNT, *DEGREES, *PREFILL_DEGREES)}
        return way_words(*self.way, sizes | {"copy_size": float(self.plan.number(COUNT)[0])})

    @property
    def order(self) -> tuple[float, ...]:
        """Sort key: price of whole servers, trust, quarters of the servers in use, size of the copy, accelerators
        in use, speed of its users, no limit of requests that run together, throughput.
        """
        each = float(self.results.number("tokens_per_second_per_accelerator")[0])
        badge = BADGES.index(str(self.results["trust"][0])) if self.results["trust"][0] else len(BADGES)
        limited = not np.isnan(self.plan.number(RUNNING)[0])
        slow = float(np.round(log(np.fmax(self.tpot, ROUND)) / _ALIKE))
        used = float(np.round(_QUARTERS * self.used / self.accelerators))
        return self.price, badge, used, float(self.plan.number(COUNT)[0]), self.used, slow, limited, -each


def way_words(software: str, mode: str, sizes: Mapping[str, Any]) -> str:
    """Engine and pools of a way: ``SGLang, 96 prefill and 64 decode``."""
    if mode != TWO:
        return f"{software_title(software)} in one pool{_stage_words(sizes)}"
    prefill = sizes["prefill_accelerators"]
    first = f"{prefill:,.0f} prefill{_stage_words(sizes, PREFILL_POOL)}"
    return f"{software_title(software)}, {first} and {sizes['copy_size'] - prefill:,.0f} decode{_stage_words(sizes)}"


def _stage_words(sizes: Mapping[str, Any], pool: str = "") -> str:
    """The degrees of a pool with several pipeline stages.

    >>> _stage_words({TP: 8.0, PP: 2.0}), _stage_words({TP: 8.0, PP: 1.0})
    (' (TP8 x PP2)', '')
    """
    ranks, stages = sizes[f"{pool}{TP}"], sizes[f"{pool}{PP}"]
    return f" (TP{ranks:.0f} x PP{stages:.0f})" if stages > 1.0 else ""


def first_ways(fleets: Sequence[Fleet]) -> list[Fleet]:
    """The first fleet of each engine and mode."""
    best: dict[tuple[str, str], Fleet] = {}
    for fleet in fleets:
        best.setdefault(fleet.way, fleet)
    return list(best.values())


class Probed(NamedTuple):
    """Plans that serve, with the accelerators of a fleet of each and their share per user or request rate, (rows,)."""

    plans: Table
    fleet: Array
    need: Array

    @staticmethod
    def of(plans: Table, fleet: Array, need: Array) -> Probed:
        """The plans that serve at all."""
        rows = np.flatnonzero(np.isfinite(fleet) & (fleet > 0.0))
        return Probed(plans.take(rows), fleet[rows], need[rows])

    @staticmethod
    def joined(parts: Sequence[Probed]) -> Probed:
        """Distinct plans of several probes."""
        filled = [part for part in parts if len(part.plans)]
        if not filled:
            return parts[0]
        plans, fleets, needs = zip(*filled, strict=True)
        every = Probed(stacked(plans), np.concatenate(fleets), np.concatenate(needs))
        keys = distinct_keys(every.plans)
        return every.take(first_of_keys(np.arange(len(keys)), keys, 1))

    def near(self, ratio: float) -> Probed:
        """The plans whose fleets or needs are within a ratio to the least."""
        near = (self.fleet <= ratio * self.fleet.min()) | (self.need <= ratio * self.need.min())
        return self.take(np.flatnonzero(near))

    def smallest(self) -> Probed:
        """The plans by parts of their copies; fleets within :data:`EQUAL` of their engine's smallest count as equal."""
        least = least_of_keys(self.fleet, self.plans["software"]) if len(self.fleet) else self.fleet
        fleet = np.where(self.fleet <= (1.0 + EQUAL) * least, least, self.fleet)
        return Probed(self.plans, fleet, self.plans.number(COUNT) / parts_of(self.plans))

    def take(self, rows: np.ndarray) -> Probed:
        """Some of the plans."""
        return Probed(self.plans.take(rows), self.fleet[rows], self.need[rows])

    def best(self, each: int, *columns: str) -> Probed:
        """The cheapest plans of each value of some columns; ties go to the smaller copy."""
        order = np.lexsort((self.plans.number(COUNT), self.need, self.fleet))
        keys = list(zip(*(self.plans[name][order].tolist() for name in columns), strict=True)) if len(order) else []
        return self.take(first_of_keys(order, keys, each))


def crossed(plans: Table, name: str, values: Sequence[object]) -> Table:
    """Every plan with each value of a column."""
    kind = object if plans.schema.by_name[name].is_text else np.float64
    every = np.tile(np.array(values, dtype=kind), len(plans))
    return with_columns(plans.take(np.repeat(np.arange(len(plans)), len(values))), **{name: every})


def distinct_keys(plans: Table) -> list[tuple[object, ...]]:
    """A key of each plan, the same for equal plans."""
    columns = (plans[name].tolist() for name in DISTINCT if name in plans)
    return list(zip(*([value if value == value else None for value in values] for values in columns), strict=True))


_AT_TARGETS = ("batch_at_targets", "tokens_per_second_at_targets")
_MOST_ROWS = 100_000  # plans in the cache of each catalog
_rows: WeakKeyDictionary[Catalog, dict[bytes, tuple[float, float]]] = WeakKeyDictionary()
"""Cached loads within targets, by a digest of all values of a plan."""


def at_targets(plans: Table, catalog: Catalog) -> Array:
    """Largest load of a replica within the targets [-] and its token rate [token/s], 0 if none, (2, rows).

    They depend on no demand, so a process evaluates equal plans once.
    """
    cached = _rows.setdefault(catalog, {})
    names = sorted(plans.columns)
    rows = zip(*(plans[name].tolist() for name in names), strict=True)
    keys = [hashlib.sha256(repr((names, row)).encode()).digest() for row in rows]
    if fresh := [row for row, key in enumerate(keys) if key not in cached]:
        if len(cached) + len(fresh) > _MOST_ROWS:
            cached.clear()
            fresh = list(range(len(keys)))
        results = evaluate(plans.take(fresh), catalog, results=_AT_TARGETS)
        values = (np.nan_to_num(results.number(name)).tolist() for name in _AT_TARGETS)
        cached.update(zip([keys[row] for row in fresh], zip(*values, strict=True), strict=True))
    return np.array([cached[key] for key in keys]).T


def first_of_keys(order: np.ndarray, keys: Sequence[object], each: int) -> np.ndarray:
    """The first ``each`` rows of every key, in a given order."""
    number: dict[object, int] = {}
    rows = []
    for row, key in zip(order.tolist(), keys, strict=True):
        number[key] = number.get(key, 0) + 1
        rows += [row] * (number[key] <= each)
    return np.array(rows, dtype=np.int64)


def least_of_keys(values: Array, keys: np.ndarray) -> Array:
    """For each row the smallest value among the rows with its key."""
    index, number = coded(keys)
    least = np.full(number, np.inf)
    np.minimum.at(least, index, values)
    return np.asarray(least[index])


def network_tiers_of(plans: Table, catalog: Catalog) -> np.ndarray:
    """Rows of the network tiers of the accelerator of plans, the innermost first."""
    row = catalog.rows("accelerators", plans.text("accelerator"), plans, "accelerator")[0]
    return np.asarray(catalog.network_tiers(str(catalog.tables["accelerators"].text("default_network")[row])))


def in_slices(plans: Table, catalog: Catalog) -> bool:
    """Whether accelerators are sold in slices of any size, as on a torus, which has no servers."""
    tiers = network_tiers_of(plans, catalog)
    return len(tiers) > 0 and str(catalog.tables["networks"].text("topology")[tiers[0]]) == "torus"


class Pairs(NamedTuple):
    """Plans with a decoding and a prefill mapping, rates of a replica of each and times to first token, (rows,)."""

    plans: Table
    prefill: Array  # [request/s]
    decode: Array  # [request/s]
    batch: Array  # decode batch of a replica [-]
    first: Array  # target of the time to first token, or time of a full prefill pass without one [s]

    def rates(self, demand: Demand, output: float) -> tuple[Array, Array]:
        """Request rate of a demand for instant first tokens [request/s], and its share for timely ones [-]."""
        if demand.is_rate:
            return np.full(len(self.batch), demand.rate), np.ones(len(self.batch))
        decode_time = np.minimum(self.batch / self.decode, (output - 1.0) * demand.tpot)
        return np.asarray(demand.users / decode_time), np.asarray(decode_time / (decode_time + self.first))


def whole_replicas(pairs: Pairs, rate: Array, share: Array, demand: Demand, close: float) -> Array:
    """Estimated whole numbers of decode and prefill replicas for a rate and its timely share, (pool, rows). [-]

    ``close``: part of a replica that the estimate may be wrong by.

    Users in flight come back sooner from decode replicas that are not full, and need more prefill replicas.
    """
    decoders = np.maximum(np.ceil(rate * share / pairs.decode - close), 1.0)
    if demand.is_rate:
        return np.stack([decoders, np.ceil(rate * share / pairs.prefill - close)])
    places, time = decoders * pairs.batch, pairs.batch / pairs.decode
    for _ in range(_SOLVED):
        filled = np.minimum(demand.users / (places * (1.0 + pairs.first / time)), 1.0)
        time = pairs.batch / pairs.decode * (1.0 - _BATCHED * (1.0 - filled))
    return np.stack([decoders, np.ceil(places * filled / time / pairs.prefill - close)])


def degrees_of(size: float, every: bool) -> list[float]:
    """Trial degrees of attention replicas and expert groups: the divisors of a replica, or only its repeated halves."""
    result = set(divisors(size))
    if not every:
        halves = {size / 2.0**power for power in range(9)}
        result = {degree for degree in result if degree in halves or degree in COPY_SIZES}
    if size >= WIDE:
        result = {degree for degree in result if degree * PARTS >= size or degree == 1.0}
    return sorted(result)


def numbers_around(centers: Array, spreads: Array) -> tuple[np.ndarray, Array]:
    """Trial whole numbers around each center, and the place of its center; none around NaN.

    >>> numbers_around(np.array([2.2, np.nan]), np.array([1.0, 1.0]))[1].tolist()
    [1.0, 2.0, 3.0, 4.0]
    """
    ends = np.maximum(np.floor(centers - spreads), 1.0), np.maximum(np.ceil(centers + spreads), 1.0)
    steps = np.round(np.linspace(*ends, _TRIED)).T
    fresh = np.diff(steps, axis=1, prepend=0.0) > 0.0
    return np.nonzero(fresh)[0], steps[fresh]


class TriedNumbers:
    """Numbers of decode replicas of some rows that were tried, each once, with the smallest fleet of each row."""

    def __init__(self, estimates: Array) -> None:
        self.estimates, self.near = estimates, estimates
        self.least, self.best = np.full(len(estimates), np.inf), np.full(len(estimates), np.nan)
        self.bound = self.least  # smallest fleet of the engine of each row
        self.known = set[tuple[int, float]]()

    def fresh(self, spread: float) -> tuple[np.ndarray, Array]:
        """Rows and numbers around the best ones, over a share of the estimates, that were not tried."""
        rows, numbers = numbers_around(self.near, spread * self.estimates)
        pairs = list(zip(rows.tolist(), numbers.tolist(), strict=True))
        new = np.array([pair not in self.known for pair in pairs], dtype=bool)
        self.known.update(pairs)
        return rows[new], numbers[new]

    def add(self, rows: np.ndarray, numbers: Array, fleets: Array) -> None:
        """Adds fleets of some rows at some numbers."""
        order = np.lexsort((-fleets, rows))  # the smallest of a row last
        better = order[fleets[order] < self.least[rows[order]]]
        self.least[rows[better]], self.best[rows[better]] = fleets[better], numbers[better]

    def keep(self, engines: np.ndarray, ratio: float) -> None:
        """Leaves out rows whose smallest fleet is beyond a ratio to the smallest of their engine."""
        self.bound = least_of_keys(self.least, engines)
        self.near = np.where(np.isfinite(self.bound) & (self.least <= ratio * self.bound), self.best, np.nan)


_FEW, _REPLICAS = (250.0, 250.0, 500.0), (2.0, 4.0, 8.0)
"""Requests of a copy below which copies of several replicas are tried, so that requests need not divide evenly; and
numbers of replicas. [-]
"""


def copies_of_replicas(plans: Table, most: float) -> Table:
    """Copies of one replica with few requests as copies of several, of ``most`` accelerators at most."""
    several = crossed(plans, COUNT, _REPLICAS)  # times the accelerators and the load of one replica
    replicas, one = several.number(COUNT), np.repeat(np.arange(len(plans)), len(_REPLICAS))
    count, load = replicas * plans.number(COUNT)[one], plans.number(LOAD)[one]
    rows = np.flatnonzero((load < np.tile(_FEW, len(plans))) & (count <= most))
    return with_columns(several, num_accelerators=count, concurrency=replicas * load).take(rows)


_TRIALS = 400  # plans in one evaluation; further ones take longer than another evaluation saves [-]


def least_numbers(
    ends: tuple[Array, Array],
    likely: Array,
    tried: Callable[[np.ndarray, Array], tuple[Probed, np.ndarray]],
    near: Callable[[Array, Array], np.ndarray],
) -> tuple[Array, Array, Array]:
    """The least number of each row above the first end that is not short, with its fleet and need: infinite if left
    out.

    ``likely``: first numbers to try, (rows, numbers). ``tried``: probes of rows at numbers, and whether they are short.
    ``near``: whether rows count still, by the largest number that is short and the fleet known so far.
    """
    (low, high), number_of_rows = ends, len(likely)
    fleets, is_known = np.full((2, number_of_rows), np.inf), np.zeros(number_of_rows, dtype=bool)
    rows, steps = np.arange(number_of_rows), np.floor(likely)
    while len(rows):
        steps = np.maximum(np.minimum(steps, high[rows, None] - 1.0), low[rows, None] + 1.0)
        place, column = np.nonzero(np.diff(steps, axis=1, prepend=-1.0) > 0.0)
        index, numbers = rows[place], steps[place, column]
        probed, short = tried(index, numbers)
        # Ranges end at the first number that is enough, and begin at the last one before it.
        enough = np.flatnonzero(~short | (high - low <= 1.0)[index])
        chosen = enough[np.unique(index[enough], return_index=True)[1]]
        ended = index[chosen]
        high[ended], is_known[ended] = numbers[chosen], True
        fleets[:, ended] = probed.fleet[chosen], probed.need[chosen]
        before = numbers < high[index]
        np.maximum.at(low, index[before], numbers[before])
        rows = np.flatnonzero(near(low, fleets[0]) & ((high - low > 1.0) | ~is_known))
        # The next evaluation splits the ranges into as many parts as it has room for.
        parts = max(_TRIALS // max(len(rows), 1), 1) + 1
        steps = np.floor(np.linspace(low[rows], high[rows], parts + 1)).T[:, 1:-1]
    return high, *fleets


def replica_size(plans: Table, pool: str = "") -> Array:
    """Accelerators of a replica, all its stages together; ``pool``: start of the columns of its pool. [-]"""
    return np.asarray(plans.number(f"{pool}{TP}") * plans.number(f"{pool}{PP}"))


def with_pools(plans: Table, decoders: Array, prefillers: Array) -> Table:
    """Plans with given numbers of decode and prefill replicas."""
    prefill = prefillers * replica_size(plans, PREFILL_POOL)
    return with_columns(plans, num_accelerators=decoders * replica_size(plans) + prefill, prefill_accelerators=prefill)


def shared_loads(users: Array, loads: Array) -> Array:
    """Requests in flight of each of the fewest copies of some largest loads that ``users`` share evenly. [-]"""
    return np.asarray(np.ceil(users / np.ceil(users / loads * (1.0 - ROUND)) * (1.0 - ROUND)))


def in_copies(plans: Table, decoders: Array, prefillers: Array, users: Array, copies: Array, given: float) -> Table:
    """Copies of given numbers of replicas that share ``users`` or have a ``given`` load each."""
    load = np.ceil(users / copies * (1.0 - ROUND)) if given != given else given
    return with_columns(with_pools(plans, decoders, prefillers), concurrency=load)


def parts_of(plans: Table) -> Array:
    """Parts with equal shares of both pools that copies split into: the common divisor of their replicas. [-]"""
    prefill = np.nan_to_num(plans.number(PREFILL_COUNT))
    pools = (plans.number(COUNT) - prefill) / replica_size(plans), prefill / replica_size(plans, PREFILL_POOL)
    decoders, prefillers = (np.round(np.nan_to_num(pool)).astype(np.int64) for pool in pools)
    return np.where(prefillers > 0, np.gcd(decoders, prefillers), 1).astype(np.float64)


def in_parts(plans: Table) -> Table:
    """Copies with two pools that split into several parts, as those parts."""
    parts = parts_of(plans)
    whole = {name: plans.number(name) / parts for name in (COUNT, PREFILL_COUNT)}
    load = np.ceil(plans.number(LOAD) / parts * (1.0 - ROUND))
    return with_columns(plans, concurrency=load, **whole).take(np.flatnonzero(parts > 1.0))


def same_values(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Whether each of some values equals each of others, or both are blank, (first, second)."""
    codes, _ = coded(np.concatenate([first, second]))
    return np.asarray(codes[: len(first), None] == codes[len(first) :])


_PCIE = 64e9  # links up to PCIe 5, over which stages send less than tensor-parallel ranks [B/s]


class Machine(NamedTuple):
    """An accelerator, its unit of sale and its network. [-]"""

    accelerator: str
    unit: float  # accelerators of a server or pod
    server: float  # accelerators of one purchase, 1 in slices
    most: float  # accelerators of the network
    inner: float  # of its innermost tier
    is_fast: bool  # whether links inside a server are faster than PCIe

    @staticmethod
    def of(plans: Table, catalog: Catalog) -> Machine:
        """The accelerator that the first of some plans names."""
        unit, most = (float(sizes[0]) for sizes in server_sizes(plans, catalog))
        tiers = network_tiers_of(plans, catalog)
        networks = catalog.tables["networks"]
        inner = float(networks.number("size")[tiers[0]]) if len(tiers) else np.inf
        is_fast = len(tiers) == 0 or bool(networks.number("link_bandwidth")[tiers[0]] > _PCIE)
        server = 1.0 if in_slices(plans, catalog) else unit
        return Machine(str(plans.text("accelerator")[0]), unit, server, most, inner, is_fast)


class Machines(NamedTuple):
    """Machines that decode or do both, machines that prefill, and the price ratio of prefill to decode accelerators."""

    own: Machine
    prefill: Machine
    price: float = 1.0

    @staticmethod
    def of(formats: Table, prefill: str, catalog: Catalog, priced: bool) -> Machines:
        """Machines of plans, with a prefill pool of another accelerator if named; ``priced``: by rent or cost."""
        own = Machine.of(formats, catalog)
        if prefill in ("", own.accelerator):
            return Machines(own, own)
        others = with_columns(formats, accelerator=prefill)
        price = _price(formats, others, catalog) if priced else 1.0
        return Machines(own, Machine.of(others, catalog), price)

    @property
    def unlike(self) -> bool:
        """Whether the prefill pool has another kind of accelerator."""
        return self.prefill.accelerator != self.own.accelerator

    def counts(self, plans: Table, copies: Array) -> tuple[Array, Array]:
        """Accelerators of both kinds in copies of plans, (rows,). [-]"""
        whole = plans.number(COUNT)
        prefill = np.nan_to_num(plans.number(PREFILL_COUNT)) if self.unlike else np.zeros(len(whole))
        return copies * (whole - prefill), copies * prefill

    def in_servers(self, counts: tuple[Array, Array]) -> tuple[Array, Array]:
        """Accelerators of both kinds in whole servers, (rows,). [-]"""
        sizes = self.own.server, self.prefill.server
        decoding, prefill = (
            np.ceil(count / size * (1.0 - ROUND)) * size for count, size in zip(counts, sizes, strict=True)
        )
        return decoding, prefill

    def priced(self, counts: tuple[Array, Array]) -> Array:
        """Accelerators of the first kind at the price of some of both, (rows,). [-]"""
        return np.asarray(counts[0] + self.price * counts[1])


def _price(decode: Table, prefill: Table, catalog: Catalog) -> float:
    """Hourly cost of an accelerator over the hourly cost of another; 1 unless the catalog prices both."""
    alone = with_columns(
        stacked([prefill.take([0]), decode.take([0])]), mode=ONE, **dict.fromkeys((COUNT, LOAD, *DEGREES), 1)
    )
    ratio = np.divide(*evaluate(alone, catalog).number("accelerator_hour_cost"))
    return float(ratio) if np.isfinite(ratio) and ratio > 0.0 else 1.0


def engines_of(form: Table, catalog: Catalog) -> list[str]:
    """Serving engines to compare on the accelerator of a form: the form's engine, else all that run there."""
    table = catalog.tables["accelerators"]
    row = catalog.rows("accelerators", form.text("accelerator"), form, "accelerator")[0]
    vendor = str(table.text("vendor")[row])
    runs = engines_on(vendor, str(table.text("generation")[row]))
    result = [engine for engine in searched_engines() if engine in runs] or ["vllm"]
    asked = str(form.text("software")[0]).strip().casefold()
    asked = STACKS[asked].software if asked in STACKS else asked
    if not asked:
        return result
    if asked in runs:
        return [asked]
    place, accelerator = form.place(0, "software"), str(form.text("accelerator")[0])
    known = {row_["engine"] for row_ in stack_rows("engine")}
    if asked in known:
        names = ", ".join(result)
        problem = f"{software_title(asked)} does not run on {accelerator}; engines that do: {names}; or auto for all"
        raise InputError(Fault(place, problem))
    if catalog.calibration.knows_software("serving_software", asked):
        return [asked]
    words = nearest(asked, sorted(known))
    raise InputError(Fault(place, f'unknown serving engine "{form.text("software")[0]}"; {words}'))
