"""Fleet sizing: the cheapest way to serve a model to all users at a requested speed, and the next cheapest ways.

A form (a row of the table ``serve``) states the demand. :mod:`xlperf.explore.fleets` finds the smallest fleet of each
serving engine with one pool and with two; the answer is the fleet with the fewest accelerators.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from xlperf.base.errors import Fault, InputError
from xlperf.base.units import MILLION, percent
from xlperf.catalog.catalog import Catalog, part_of
from xlperf.catalog.schema import software_title
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.devices import accelerators_of
from xlperf.engine.prices import PLAN_PRICES
from xlperf.engine.software import computed_formats, has_parts
from xlperf.engine.tables import together
from xlperf.equations.plan.records import PRECISIONS
from xlperf.explore import money
from xlperf.explore.fleet_plans import (
    DEGREES,
    LOAD,
    ONE,
    TWO,
    Demand,
    Fleet,
    Machines,
    crossed,
    engines_of,
    first_ways,
    in_slices,
    way_words,
)
from xlperf.explore.fleet_pools import STATE
from xlperf.explore.fleets import FleetSearch
from xlperf.explore.objectives import DECILE, Answer, band_factor, no_answer, short_name, short_of_memory
from xlperf.explore.search import stacked
from xlperf.explore.space import with_columns
from xlperf.explore.uncertainty import SURE, owning_answer, unread_score
from xlperf.explore.workers import in_halves
from xlperf.interop.checkpoints import AUTO, CheckpointFormats, bits_of, formats_of_checkpoint

_FLEET_COST = "fleet_cost_per_million_output_tokens"
_COPY_COSTS = ("cost_per_million_output_tokens", "cost_per_million_output_tokens_all_in")
_OF_COPY = (*_COPY_COSTS, "energy_per_token", "carbon_per_million_tokens")
"""Engine results of a copy at full load; the fleet also pays for head room and whole servers."""
_OF_STATE = (
    "tokens_per_second_per_accelerator", "tokens_per_second_per_user", "ttft", "tpot", "tpot_low", "tpot_high",
    "memory", "memory_capacity", "image_tokens_per_request", "encode_time",
)  # fmt: skip
"""Engine results of a copy and of its users."""
_OWNED_OF_COPY = tuple(f"owned_{name}" for name in _COPY_COSTS)
_ENDS = ("_low", "_high")
_AFTERWARDS = ("way", "payment", *PLAN_PRICES, "facility_power_limit", "hours_per_month")
"""Entries of a form that do not affect the choice of a copy."""
NOTHING = "none"
"""Word of a result without one: a cell with a blank text shows an error if the functions are not installed."""
_MOST_KNOWN = 512  # lists of ways in the cache of a part of a catalog, about 0.2 MB each [-]
_known: WeakKeyDictionary[Catalog, dict[object, list[Fleet]]] = WeakKeyDictionary()
"""Cached ways to serve a demand, as asked and at full load, and smallest fleets without prices and power, by the part
of the catalog that the form names.
"""


def serve_answer(form: Table, catalog: Catalog) -> Answer:
    """The cheapest fleet for the demand of a form, or the way that the form names."""
    fleets = serving_ways(form, catalog)
    if not fleets:
        asked = with_columns(form, users=1.0) if _is_open(form) else form
        ways = [] if fills_a_copy(form) else way_answers(asked, _every_way(asked, catalog), catalog)
        if not ways:
            return _refused(asked, catalog)
        filled = {} if _is_open(form) else serve_answer(_open(form), catalog)
        return money.beyond_power(asked, ways, filled)
    way = float(np.nan_to_num(form.number("way")[0], nan=1.0))
    if way != int(way) or way > len(fleets):
        each = "s are" if len(fleets) > 1 else " is"
        known = {"num_ways": float(len(fleets))}
        return no_answer(f"way {way:g} is asked for, and {len(fleets)} way{each} known") | known
    fleet = fleets[int(way) - 1]
    shown, size = _as_asked(form, catalog), money.sized(fleet, catalog)
    hours = money.hours_of(form, shown[int(way) - 1].plan, shown[int(way) - 1].results, catalog)[0]
    answer = _answer(form, fleets, int(way), shown, hours, catalog)
    return answer | owning_answer(size, hours, fleet.plan, fleet.results, float(form.filled("hours_per_month")[0]))


def way_answers(form: Table, fleets: list[Fleet], catalog: Catalog) -> list[Answer]:
    """Answers of all ways to serve the demand of a form."""
    if not fleets:
        return []
    shown = money.as_asked(form, fleets, catalog)
    plans, results = stacked([fleet.plan for fleet in shown]), stacked([fleet.results for fleet in shown])
    hours = money.hours_of(form, plans, results, catalog)
    return [_answer(form, fleets, way, shown, each, catalog) for way, each in enumerate(hours, start=1)]


def serving_ways(form: Table, catalog: Catalog) -> list[Fleet]:
    """Ways to serve the demand of a form within its facility power limit, the cheapest first."""
    cached, key = _cached(form, catalog)
    if key not in cached:
        cached[key] = _in_power(form, catalog)
    return cached[key]


def _as_asked(form: Table, catalog: Catalog) -> list[Fleet]:
    """All ways of :func:`serving_ways` with their copies at the load of the question."""
    cached, key = _cached(form, catalog, "as asked")
    if key not in cached:
        cached[key] = money.as_asked(form, serving_ways(form, catalog), catalog)
    return cached[key]


def serving_each(forms: Sequence[Table], catalog: Catalog) -> list[list[Fleet]]:
    """As :func:`serving_ways`, of several forms, whose searches share their evaluations."""
    places = [_cached(form, catalog) for form in forms]
    known = {number: cached[key] for number, (cached, key) in enumerate(places) if key in cached}
    lacking = [number for number in range(len(forms)) if number not in known]
    ways = in_halves(searched_each, [forms[number] for number in lacking], catalog)
    for number, fleets in zip(lacking, ways, strict=True):
        cached, key = places[number]
        known[number] = cached[key] = fleets
    return [known[number] for number in range(len(forms))]


def searched_each(forms: Sequence[Table], catalog: Catalog) -> list[list[Fleet]]:
    """As :func:`serving_ways`, of several forms in this process."""
    return together([partial(serving_ways, form, catalog) for form in forms])


def _cached(form: Table, catalog: Catalog, what: str = "ways") -> tuple[dict[object, list[Fleet]], object]:
    """Known ways for the part of the catalog that a form names, and the key of the form among them."""
    cached = _known.setdefault(part_of(catalog, form), {})
    for oldest in list(cached)[: max(len(cached) - _MOST_KNOWN, 0)]:
        del cached[oldest]
    return cached, (what, *stated_entries(form, ("way",)))


def stated_entries(form: Table, but: Collection[str]) -> tuple[tuple[str, str], ...]:
    """Entries of a form in words as a key, without blank ones and those of some names."""
    entries = ((name, str(values[0])) for name, values in sorted(form.columns.items()) if name not in but)
    return tuple((name, value) for name, value in entries if value not in ("", "nan"))


def _in_power(form: Table, catalog: Catalog) -> list[Fleet]:
    limit = float(form.number("facility_power_limit")[0])
    every = _every_way(form, catalog)
    within = [fleet for fleet in every if not money.sized(fleet, catalog).power > limit]
    if len(within) == len(every):
        return every
    most = _every_way(_open(form), catalog)
    # A copy that draws less may serve as many.
    resized = [money.serving(fleet, _demand(form), catalog) for fleet in most]
    within += [fleet for fleet in resized if not money.sized(fleet, catalog).power > limit]
    return first_ways(sorted(within, key=lambda fleet: fleet.price))


def _every_way(form: Table, catalog: Catalog) -> list[Fleet]:
    """Ways to serve with the prices of a form, regardless of power: each engine with one pool and with two."""
    if fills_a_copy(form):
        many = _every_way(with_columns(form, users=money.MANY_USERS), catalog)
        return money.filling_copy(many, catalog)
    if _is_open(form):
        limit = float(form.number("facility_power_limit")[0])
        many = _every_way(with_columns(form, users=money.MANY_USERS), catalog)
        result = money.filling(many, limit, catalog)
        # Whole copies of a large fleet may leave much of the power idle: smaller fleets have smaller copies.
        rough = max((fleet.users * limit / money.sized(fleet, catalog).power for fleet in many), default=0.0)
        shares, enough = [*money.SHARES_OF_POWER[rough > money.MANY_USERS]], money.NEARLY_FULL
        while shares and max((fleet.users for fleet in result), default=0.0) < enough * rough:
            share = shares.pop(0)
            users = max(share * rough, 1.0) / form.filled("active_share")[0]
            tried = _every_way(with_columns(form, users=users), catalog)
            result += money.filling(tried, limit, catalog)
            beyond = max((money.sized(fleet, catalog).power / limit for fleet in tried[:1]), default=1.0)
            if beyond > 1.0:  # next the size that the power of this one points to
                shares[:1], enough = [money.NEARLY_FULL * share / beyond][: len(shares)], money.WELL_FILLED
        return first_ways(sorted(result, key=lambda fleet: -fleet.users))
    fleets = _smallest_fleets(form, catalog)
    if not fleets:
        return []
    plans = stacked([fleet.plan for fleet in fleets])
    priced = money.with_prices(plans, form)
    if priced is plans:
        return fleets
    results = evaluate(priced, catalog)
    return [fleet._replace(plan=priced.take([row]), results=results.take([row])) for row, fleet in enumerate(fleets)]


def _is_open(form: Table) -> bool:
    """Whether a form asks for the most users of its facility power limit, or of a copy of so many accelerators."""
    stated = [not np.isnan(form.number(name)[0]) for name in _STATED]
    return not any(stated[:2]) and any(stated[2:])


_STATED = ("users", "request_rate", "facility_power_limit", "num_accelerators")


def _open(form: Table) -> Table:
    """A form that asks for the most users of its facility power limit."""
    return with_columns(form, users=np.nan, request_rate=np.nan)


def fills_a_copy(form: Table) -> bool:
    """Whether a form asks for the most users of one copy."""
    return _is_open(form) and bool(np.isnan(form.number("facility_power_limit")[0]))


def _smallest_fleets(form: Table, catalog: Catalog) -> list[Fleet]:
    """The smallest fleet of each engine and mode, independent of prices and power."""
    # A stated hour price holds for both kinds of accelerators, so that pools of two kinds are compared by number.
    key = bool(np.isnan(form.number("hour_price")[0])), *stated_entries(form, _AFTERWARDS)
    cached = _known.setdefault(part_of(catalog, form), {})
    if key not in cached:
        mode = str(form.text("mode")[0])
        modes = (mode,) if mode else (ONE, TWO)
        fleets = money.with_encoders(search_of(form, catalog).fleets(modes), catalog)
        cached[key] = _with_curves(fleets, catalog)
    return cached[key]


_CURVE = (0.0625, 0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
"""Relative loads of a copy at the points of its curve of throughput against speed per user. [-]"""


def _with_curves(fleets: list[Fleet], catalog: Catalog) -> list[Fleet]:
    """Fleets with the speed per user and the throughput per accelerator of their copies at several loads."""
    if not fleets:
        return fleets
    plans = crossed(stacked([fleet.plan for fleet in fleets]), LOAD, _CURVE)
    loads = plans.number(LOAD) * np.repeat([fleet.plan.number(LOAD)[0] for fleet in fleets], len(_CURVE))
    plans = with_columns(plans, concurrency=np.maximum(np.round(loads), 1.0))
    results = evaluate(plans, catalog, results=(*STATE, "tokens_per_second_per_accelerator"))
    drawn = np.where(results.number("fits") == 1.0, 1.0, np.nan)
    points = drawn / results.number("tpot"), drawn * results.number("tokens_per_second_per_accelerator")
    curves = np.stack(points).reshape(2, len(fleets), len(_CURVE))
    return [fleet._replace(curve=curves[:, number]) for number, fleet in enumerate(fleets)]


def search_of(form: Table, catalog: Catalog) -> FleetSearch:
    """The search for fleets that serve the demand of a form."""
    formats = replicas_of(form, catalog)
    narrow, wide = _CACHES
    is_open = not form.text("kv_precision")[0] and _computes_in(form, catalog)(narrow)
    prefill = str(form.text("prefill_accelerator")[0])
    machines = Machines.of(formats, prefill, catalog, bool(np.isnan(form.number("hour_price")[0])))
    return FleetSearch(
        formats, _engines(form, prefill, catalog), _demand(form), machines, catalog, wide if is_open else ""
    )


def _engines(form: Table, prefill: str, catalog: Catalog) -> list[str]:
    """Engines to compare: all that run on the accelerators of both pools."""
    result = engines_of(form, catalog)
    if not prefill:
        return result
    on_prefill = engines_of(with_columns(form, accelerator=prefill), catalog)
    both = [engine for engine in result if engine in on_prefill]
    if not both:
        words = f"no serving engine runs on both {form.text('accelerator')[0]} and {prefill}; leave it blank"
        raise InputError(Fault(form.place(0, "prefill_accelerator"), words))
    return both


def _demand(form: Table) -> Demand:
    users, rate = form.number("users")[0] * form.filled("active_share")[0], form.number("request_rate")[0]
    if np.isnan(users) and np.isnan(rate):
        problem = "give users or request rate, or a facility power limit or num accelerators of a copy that they fill"
        raise InputError(Fault(form.place(0, "users"), problem))
    size, load = (float(form.number(name)[0]) for name in ("num_accelerators", "concurrency"))
    tpot, ttft = 1.0 / float(form.filled("speed_per_user")[0]), float(form.number("ttft_target")[0])
    return Demand(float(users), float(rate), tpot, ttft, size, load)


_PRECISIONS = ("fp8", "bf16", "fp16")  # default precisions of a form: the first with a peak rate on the accelerator
_CACHES = ("fp8", "bf16")
"""Trial precisions of the KV cache if a form states none and the accelerator has both, the first one first."""
_WIDE = "bf16"  # precision of matrix products for weights in a precision without a peak rate on the accelerator


def _computes_in(form: Table, catalog: Catalog) -> Callable[[str], bool]:
    """Whether the accelerators of both pools have a peak rate of matrix products in a precision."""
    names = ("accelerator", "prefill_accelerator")
    rows = np.concatenate([catalog.rows("accelerators", form.text(name), form, name) for name in names])
    table, rows = accelerators_of(catalog).table, rows[rows >= 0]
    return lambda precision: bool((table.number(f"peak_flop_rate_{PRECISIONS[precision].peak}")[rows] > 0.0).all())


def _formats(form: Table, catalog: Catalog) -> list[dict[str, Any]]:
    """Columns of a plan for each weight format: the given one, or the accelerator's and the checkpoint's own.

    Weights in a precision without a peak rate on the accelerator are multiplied in 16 bits (weight-only). The KV cache
    is in FP8 if the accelerator computes in FP8, unless the form states its precision.
    """
    computes_in = _computes_in(form, catalog)
    supported = next((name for name in _PRECISIONS if computes_in(name)), "fp16")
    published = _published(form, catalog)
    own = bits_of(published.main) if published.is_quantised else ""
    stated = str(form.text("precision")[0])
    cache = str(form.text("kv_precision")[0]) or (_CACHES[0] if computes_in(_CACHES[0]) else "")
    results = []
    for precision in [stated] if stated else dict.fromkeys((supported, own or supported)):
        columns: dict[str, Any] = {"precision": np.array([AUTO if precision == own else precision], dtype=object)}
        if precision != own and not computes_in(precision) and computes_in(_WIDE):
            columns["activation_precision"] = np.array([_WIDE], dtype=object)
        columns["kv_precision"] = np.array([cache], dtype=object)
        results.append(columns)
    return results


def _published(plans: Table, catalog: Catalog) -> CheckpointFormats:
    """Formats of the checkpoint of a form's or a plan's model."""
    row = int(catalog.rows("models", plans.text("model"), plans, "model")[0])
    return formats_of_checkpoint(catalog.tables["models"], row, str(plans.text("model")[0]))


def replicas_of(form: Table, catalog: Catalog) -> Table:
    """Inference plans of one replica, a row for each format; open degrees of the form are blank."""
    columns: dict[str, Any] = {name: form[name] for name in ("model", "accelerator", "prompt_length", "output_length")}
    columns |= {name: form.number(name) for name in DEGREES}
    hits, drafts = form.filled("shared_prefix"), form.filled("draft_tokens")
    columns["shared_prefix"] = np.where(hits > 0.0, hits, np.nan)
    columns["draft_tokens"] = np.where(drafts > 0.0, drafts, np.nan)
    for name in ("host_experts_share", "host_weights_share"):
        columns[name] = np.where(form.number(name) > 0.0, form.number(name), np.nan)
    shown = form.filled("images") > 0.0
    for name in ("images", "image_width", "image_height"):
        columns[name] = np.where(shown, form.filled(name), np.nan)
    columns["encoder_split"] = np.where(shown, form.filled("encoder_split"), "")
    columns["acceptance_rate"] = np.where(drafts > 0.0, form.filled("acceptance_rate"), np.nan)
    formats = [Table("inference", columns | more, form.place) for more in _formats(form, catalog)]
    return with_columns(stacked([with_columns(plan) for plan in formats]))


def _answer(
    form: Table, fleets: list[Fleet], way: int, shown: list[Fleet], hours: money.Hours, catalog: Catalog
) -> Answer:
    """Answer with one of the ways; ``shown``: with their copies at the load of the question."""
    fleet, plan, results = fleets[way - 1], shown[way - 1].plan, shown[way - 1].results
    answer: Answer = {name: float(results.number(name)[0]) for name in (*_OF_STATE, *_OF_COPY)}
    fleet_size = money.sized(fleet, catalog)
    _, load, size, server, *_, longer, _ = fleet_size
    answer["tokens_per_second_per_accelerator"] /= longer
    copies, kinds = fleet_size.whole()
    answer |= {name: float(plan.number(name)[0]) for name in (*DEGREES, *_CHOSEN) if name in plan}
    answer |= {
        "copies": float(np.ceil(copies)),
        "copy_size": size,
        "concurrency": load,
        "users": (users := shown[way - 1].users),
    }
    answer["encode_accelerators"] = fleet_size.encoders(copies)
    answer |= {"server_size": server, "servers": fleet_size.servers, "way": float(way), "num_ways": float(len(fleets))}
    for number, (speed, rate) in enumerate(fleet.curve.T.tolist(), start=1):
        answer |= {f"curve_speed_{number}": speed, f"curve_throughput_{number}": rate / longer}
    answer["request_rate"] = users / float(results.number("latency")[0])
    rate = money.tokens_of(shown[way - 1])
    fleet_sizes = {"": sum(kinds)}
    scores = {"low": -DECILE, "high": DECILE, "sure": float(unread_score(SURE))}
    for end, score in scores.items():
        further = float(band_factor(fleet.results, "tpot", score)[0]) / longer
        fleet_sizes[f"_{end}"] = sum(fleet_size.whole(further)[1])
    count = fleet_sizes[""]
    answer |= {f"accelerators{end}": number for end, number in fleet_sizes.items()}
    answer |= hours.results | hours.costs(_FLEET_COST, count / rate)
    answer |= {f"cost{end}": number * hours.paid / rate for end, number in fleet_sizes.items() if end in _ENDS}
    answer |= {name: float(hours.ownership.number(name)[0]) for name in _OWNED_OF_COPY}
    month, power = float(form.filled("hours_per_month")[0]), fleet_size.power
    answer |= {"tokens_per_second": rate} | hours.costs("monthly_cost", count * month)
    answer |= {"power_per_accelerator": fleet_size.each, "power": power, "monthly_energy": power * month}
    answer["monthly_carbon"] = power * month * answer["carbon_per_million_tokens"] / answer["energy_per_token"]
    answer |= money.in_power(form, fleet_size, answer["request_rate"])
    answer["users_that_fit"] = fleet_size.copies_in(kinds) * load
    answer["head_room"] = answer["users_that_fit"] / fleet.users - 1.0
    answer |= money.used_shares(form, results) | {"users_used": fleet.users / answer["users_that_fit"]}
    answer["limit"] = money.limit_words(money.used_shares(form, fleet.results), answer["head_room"] >= _MANY - 1.0)
    answer["price_basis"] = hours.basis
    answer |= {name: str(plan.filled(name)[0]) for name in ("software", "mode")}
    answer["expert_dispatch"] = str(plan.text("expert_dispatch")[0])
    answer |= {name: str(results[name][0]) for name in ("trust", "trust_reason")}
    accelerator, other = short_name(plan.text("accelerator")[0]), str(plan.text("prefill_accelerator")[0])
    answer["prefill_accelerator"] = other if fleet_size.prefill else NOTHING
    names = f"{accelerator} and {kinds[1]:,.0f} {short_name(other)}" if fleet_size.prefill else accelerator
    cost = money.copy_words(form, answer)
    cost += money.cost_words(form, hours, count / rate * MILLION, " per million output tokens")
    words = _sentence(answer, kinds[0], names, in_slices(plan, catalog), cost)
    words += money.nearer_measured(fleets, way, accelerator)
    words += money.at_same_bill(shown) if way == 1 else ""
    stored = computed_formats(plan, catalog)
    weights = str(stored.text("precision")[0])
    products = str(stored.text("activation_precision")[0]) or weights
    is_own = str(plan.text("precision")[0]) == AUTO
    # A precision that a plan of the same copy takes: one word if all parts have it
    answer["precision"] = AUTO if has_parts(stored) else weights.removesuffix("-block") if is_own else weights
    words += _format_words(_published(plan, catalog), is_own, weights, products)
    usual = PRECISIONS[products].cache
    answer["kv_precision"] = str(plan.text("kv_precision")[0]) or usual
    words += "" if answer["kv_precision"] == usual else f" Cache in {answer['kv_precision'].upper()}."
    answer["answer"] = words + money.power_words(form, answer) + money.lacking_words(hours)
    full = money.tokens_of(fleet) / fleet.users
    return answer | money.against_api(form, catalog, answer, full) | {"defaults_used": _defaults(plan)}


_CHOSEN = (
    "prefill_accelerators", *(f"prefill_{name}" for name in DEGREES), "two_batch_overlap", "prefill_tokens",
    "redundant_experts", "max_running_batch",
)  # fmt: skip
"""Numbers of a plan that a way chooses beside its degrees."""


_MANY = 1.5  # ratio of accelerators of whole servers to accelerators in use from which an answer states both [-]


def _sentence(answer: Answer, count: float, accelerator: str, slices: bool, cost: str) -> str:
    unit = f"{'slice' if slices else 'server'}{'s' * (answer['servers'] != 1)}"
    used = answer["copies"] * answer["copy_size"] + (encoding := answer["encode_accelerators"])
    aside = [f"{used:,.0f} would do"] if answer["accelerators"] >= _MANY * used else []
    aside += [f"{encoding:,.0f} encode images"] if encoding else []
    many = f"{count:,.0f} {accelerator} in {answer['servers']:,.0f} {unit}"
    many += f" ({', '.join(aside)})" if aside else ""
    rate = answer["tokens_per_second_per_user"]  # NaN for requests of one token
    speed = f"{money.people(answer['users'])} {f'at {rate:,.0f} token/s' if rate == rate else 'with one token'} each"
    way = way_words(answer["software"], answer["mode"], answer)
    return f"{many} serve {speed}{cost} with {way}; {answer['limit']}."


_LABELS = {"fp4": "NVFP4"}  # names of formats in answers; others as their first word in capitals


def _format_words(published: CheckpointFormats, is_own: bool, weights: str, products: str) -> str:
    """A sentence on weights with wider products or other attention, or in an unpublished format; otherwise ""."""
    main = published.main if published.is_quantised else weights
    stored = _LABELS.get(main, main.partition("-")[0].upper())
    is_own = is_own or not published.is_quantised
    words = f" {stored if is_own else bits_of(weights).upper()} weights"
    widened = bits_of(products) != bits_of(weights)
    remarks = [f", products in {products}"] if widened else []
    attention = published.parts["attention"]
    if is_own and bits_of(attention) not in ("16", bits_of(main)):
        remarks.append(f"; attention in {bits_of(attention).upper()}")
    elif not is_own:
        remarks.append(f"; the published checkpoint has {stored}")
    return f"{words}{''.join(remarks)}." if remarks else ""


def _defaults(plan: Table) -> str:
    pools = "separate pools" if money.is_pooled(plan) else "continuous batching in one pool"
    engine = software_title(str(plan.filled("software")[0]))
    hits, drafts = (float(plan.filled(name)[0]) for name in ("shared_prefix", "draft_tokens"))
    prefixes = f"{percent(hits, 0)} of the prompts cached" if hits else "no shared prefixes"
    drafted = f"{drafts:g} tokens drafted a step" if drafts else "no speculative decoding"
    held = {"experts": "host_experts_share", "other weights": "host_weights_share"}
    shares = [(words, float(plan.filled(name)[0])) for words, name in held.items()]
    host = "".join(f"{percent(share, 0)} of the {words} in host memory, " for words, share in shares if share)
    return f"{engine}, {pools}, {prefixes}, {drafted}, {host}no spare servers"


def _refused(form: Table, catalog: Catalog) -> Answer:
    search = search_of(form, catalog)
    plans, demand = search.formats, search.demand
    tried = search.single_users()
    accelerator, model = short_name(plans.text("accelerator")[0]), str(plans.text("model")[0])
    results = evaluate(tried, catalog)
    good = results.number("fits") == 1.0
    if not good.any():
        lacks = np.flatnonzero(~np.isnan(results.number("memory")))
        row = int(lacks[-1]) if len(lacks) else -1
        reason = str(results["reason"][row]).split(";")[0] or f"no mapping of {model} fits on {accelerator}"
        reason = short_of_memory(float(tried.number("num_accelerators")[row]), accelerator, reason)
        return no_answer(reason + ("; larger copies or weights of fewer bits need less" if len(lacks) else ""))
    speed, first = results.number("tokens_per_second_per_user"), results.number("ttft")
    fastest, soonest = float(np.nanmax(speed[good])), float(np.nanmin(first[good]))
    beyond = []
    if 1.0 / demand.tpot > fastest:
        beyond.append(f"{1.0 / demand.tpot:,.0f} token/s are {1.0 / demand.tpot / fastest:,.1f} times as many")
    if demand.ttft < soonest:
        within = f"a first token within {money.seconds_words(demand.ttft)}"
        beyond.append(f"{within} is {soonest / demand.ttft:,.1f} times as soon")
    if not beyond and demand.load == demand.load:
        beyond.append(f"{demand.load:,.0f} users of one copy are too many")
    if not beyond and not demand.kept(results).any():
        in_time = float(np.nanmax(speed[good & (first <= demand.ttft)]))
        beyond.append(
            f"with a first token within {money.seconds_words(demand.ttft)} a user gets {in_time:,.0f} token/s at most"
        )
    beyond = beyond or ["with the prompts of all users they are not reached"]
    return no_answer(
        f"no copy of {model} on up to {tried.number('num_accelerators').max():,.0f} {accelerator} keeps these targets: "
        f"alone, a user gets {fastest:,.0f} token/s at most and the first token after {money.seconds_words(soonest)}; "
        f"{' and '.join(beyond)}: ask for less, or take a faster accelerator"
    )
