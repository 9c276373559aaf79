"""A day of services that share machines: copies by hour, what starting them costs, and the training beside them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from xlperf.base.arrays import Array, total
from xlperf.base.errors import Fault, InputError
from xlperf.base.units import HOUR, MILLION, percent
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.explore.fleet_plans import COUNT, LOAD, Demand, Fleet
from xlperf.explore.mappings import server_sizes
from xlperf.explore.money import hours_of, serving, sized
from xlperf.explore.objectives import GOOD, PLAN, TABLES, Answer, dollars, no_answer, one_plan, short_name
from xlperf.explore.search import stacked
from xlperf.explore.serve import serve_answer, serving_ways
from xlperf.explore.space import with_columns
from xlperf.explore.train import SEARCHED, best_mapping, in_whole_batches

HOURS = "hours"  # table by hour beside an answer
DAY = 24
_SERVED = ("model", "accelerator", "prompt_length", "output_length", "speed_per_user", "ttft_target", "software",
           "hour_price")  # fmt: skip
"""Entries that the form Serve has too."""
_MOST_UNITS = 256  # most units of training accelerators; larger fleets train in larger units [-]


_OTHER = re.compile(r"(\S.*?)\s+(\d+(?:\.\d+)?)(?:\s*/s)?(?:\s*([+-]\d{1,3})\s*h?)?")
"""Another model of the machines: name, requests per second, and hours by which its day is shifted."""


class Trained(NamedTuple):
    """Training on units of accelerators: their size [-], tokens per second of each number of units from 0, and plan."""

    unit: float
    rates: Array
    power: Array
    plan: Table


def load_by_hour(form: Table) -> Array:
    """Requests per second of the hours of a form's day. Raises InputError for other than 24 numbers of at least 0."""
    text = form.word("load_by_hour")
    try:
        load = np.array([float(word) for word in text.replace(",", " ").replace(";", " ").split()])
    except ValueError:
        load = np.zeros(0)
    if load.shape != (DAY,) or not (np.isfinite(load) & (load >= 0.0)).all() or not load.any():
        problem = (
            f"load by hour must be 24 numbers of at least 0 and not all 0, got {len(load)} numbers in {text!r:.60}"
        )
        raise InputError(Fault(form.place(0, "load_by_hour"), problem))
    return np.asarray(load / (total(load) / DAY) * form.stated("request_rate"))


def copies_by_hour(needed: Array, start_hours: float) -> Array:
    """Copies that run in each hour of a day that repeats: a copy stays up over a gap that is shorter than its start.

    Copies are alike, so that the k-th serves in the hours that need k copies, and each gap of it is a choice of its
    own: to start again takes ``start_hours`` of a machine, to stay up the hours of the gap.
    """
    running = needed.copy()
    for level in np.unique(needed[needed > 0.0]).tolist():
        busy = np.flatnonzero(needed >= level)
        for first, then in zip(busy.tolist(), [*busy.tolist()[1:], busy[0] + DAY], strict=True):
            gap = np.arange(first + 1, then) % DAY
            if len(gap) < start_hours:
                running[gap] = np.maximum(running[gap], level)
    return running


def day_answer(form: Table, catalog: Catalog) -> Answer:
    """Copies by hour, accelerator-hours, cost, energy, and the training beside them, with the table of hours.

    ``form``: one row of kind ``day``. Returns results of the kind ``day_results``. Raises InputError for a load that is
    no day, and for a fleet that is smaller than the busiest hour needs.
    """
    others = []
    for other in _other_forms(form, catalog):
        apart = _answers(other, _ways(other, catalog), [], np.nan, catalog)
        if not apart:
            return no_answer(f"{other.word('model')}: {_no_way(other, catalog)}")
        others.append(min(apart, key=_cost)[1])
    ways = _ways(form, catalog)
    if not ways:
        return no_answer(_no_way(form, catalog))
    least, stated = min(_most(way, others) for way in ways), form.stated("accelerators")
    if stated < least:
        hour = f"the {least:,.0f} of the busiest hour with the copies that start"
        problem = f"accelerators {stated:,.0f} are fewer than {hour}; give more"
        raise InputError(Fault(form.place(0, "accelerators"), problem))
    ways = [way for way in ways if not stated < _most(way, others)]
    # Ways are compared on the accelerators that each needs, so that more of them change no way.
    answer, best = min(_answers(form, ways, others, np.nan, catalog), key=_cost)
    return _answers(form, [best], others, stated, catalog)[0][0] if stated > _most(best, others) else answer


def _other_forms(form: Table, catalog: Catalog) -> list[Table]:
    """Forms of the other models that share the machines. Raises InputError for a part that is none."""
    place, forms = form.place(0, "other_models"), []
    load = load_by_hour(form) / form.stated("request_rate")
    for part in filter(None, map(str.strip, form.text("other_models")[0].split(";"))):
        read = _OTHER.fullmatch(part)
        if read is None or not 0.0 < float(read[2]) < np.inf:
            words = "names with requests per second, as Qwen3-32B 20; Qwen3-8B 50 +8 h"
            problem = f"other models must be {words}, got {part!r:.60}"
            raise InputError(Fault(place, problem))
        row = catalog.rows("models", np.array([read[1]], dtype=object), form, "other_models")[0]
        words = " ".join(f"{share:.9g}" for share in np.roll(load, int(read[3] or 0)).tolist())
        columns = {"model": catalog.tables["models"]["model"][row], "request_rate": float(read[2])}
        columns |= {"load_by_hour": words, "training_model": "", "software": ""}
        forms.append(with_columns(form, **columns))
    return forms


class Service(NamedTuple):
    """A way to serve a model over a day."""

    rates: Array  # requests per second by hour [1/s]
    fleet: Fleet
    asked: Table  # form Serve of its busiest hour
    copies: Array  # copies by hour, those that stay up over short gaps included [-]
    serves: Array  # their accelerators in whole servers [-]
    starts: Array  # accelerators beside them on which copies of the next hours start [-]
    size: float  # accelerators of a copy [-]
    each: float  # power of an accelerator at full load [W]

    @property
    def busy(self) -> Array:
        """Load over what the copies of an hour could take. [-]"""
        each = float(self.fleet.plan.number(LOAD)[0] / self.fleet.results.number("latency")[0])
        return np.minimum(self.rates / (each * np.maximum(self.copies, 1.0)), 1.0)


def _most(way: Service, others: Sequence[Service]) -> float:
    """Accelerators of the busiest hour of all models: one that is handed over serves only after its start. [-]"""
    return float(np.sum([one.serves + one.starts for one in (way, *others)], axis=0).max())


def _cost(answered: tuple[Answer, Service]) -> float:
    return float(np.nan_to_num(answered[0]["day_cost"], nan=np.inf))


def _ways(form: Table, catalog: Catalog) -> list[Service]:
    """Ways to serve the model of a form: the cheapest for the busiest hour may have copies too large for the day."""
    rates = load_by_hour(form)
    asked = _serving(form, float(rates.max()))
    fleets = serving_ways(asked, catalog)
    return [
        _by_hour(fleet, asked, rates, form.value("start_time") / HOUR, catalog)
        for fleet in fleets[: 1 if np.ptp(rates) == 0.0 else None]
    ]


def _no_way(form: Table, catalog: Catalog) -> str:
    asked = _serving(form, float(load_by_hour(form).max()))
    return str(serve_answer(asked, catalog).get("reason", "")) or "no way to serve keeps the targets"


def _answers(
    form: Table, ways: Sequence[Service], others: Sequence[Service], count: float, catalog: Catalog
) -> list[tuple[Answer, Service]]:
    """Days of ways to serve beside other models, on ``count`` accelerators or those of the busiest hour."""
    return [(_answer(form, way, others, count if count == count else _most(way, others), catalog), way) for way in ways]


def _serving(form: Table, rate: float) -> Table:
    """The form Serve for the busiest hour."""
    columns = {name: form.filled(name) for name in _SERVED}
    asked = Table("serve", columns, form.place, {name: mask for name, mask in form.auto.items() if name in columns})
    return with_columns(asked, request_rate=rate)


def _by_hour(fleet: Fleet, asked: Table, rates: Array, start: float, catalog: Catalog) -> Service:
    speed, first = asked.value("speed_per_user"), asked.stated("ttft_target")
    sizes = [
        sized(serving(fleet, Demand(np.nan, max(float(rate), 1e-9), 1.0 / speed, first), catalog), catalog)
        for rate in rates
    ]
    needed = np.array([float(np.ceil(one.whole()[0])) for one in sizes])
    accelerators = np.array([one.accelerators for one in sizes])
    copies = copies_by_hour(needed, start)
    serves = np.array([accelerators[needed == running].max() for running in copies])
    added = np.maximum(serves - np.roll(serves, 1), 0.0)
    starts = sum((np.roll(added, -1 - hour) for hour in range(int(np.ceil(start)))), np.zeros(DAY))
    return Service(rates, fleet, asked, copies, serves, starts, sizes[0].size, sizes[0].each)


def _answer(form: Table, way: Service, others: Sequence[Service], count: float, catalog: Catalog) -> Answer:
    """A day of a way to serve, beside other models, on so many accelerators."""
    start = form.value("start_time") / HOUR
    is_paid_by_hour = form.word("payment") == "hours"
    every, copies, rates = (way, *others), way.copies, way.rates
    serves = np.sum([one.serves for one in every], axis=0)
    starting = np.sum([one.starts for one in every], axis=0) * start / max(np.ceil(start), 1.0)
    trained = _training(form, count - serves.min(), catalog)
    units = np.floor((count - serves - starting) / trained.unit) if trained else np.zeros(DAY)
    restart = form.value("restart_time") if trained else 0.0
    used, tokens = best_units(units, trained.rates, restart) if trained else (np.zeros(DAY), 0.0)
    training = used * (trained.unit if trained else 0.0)
    idle = count - serves - starting - training
    share, power = form.value("idle_power_share"), np.zeros(DAY)
    for one in every:
        floor = share * one.each
        power += one.serves * (floor + (one.each - floor) * one.busy)
    power += starting * way.each + idle * share * way.each
    if trained:
        power += trained.power[used.astype(np.int64)]
    hour = hours_of(way.asked, way.fleet.plan, way.fleet.results, catalog)[0].paid
    paid = total(serves + starting + training) if is_paid_by_hour else count * DAY
    fixed = count * DAY * HOUR * hour
    value = float(total(training)) * HOUR * hour
    cost = float(paid) * HOUR * hour - value
    outputs = sum(float(total(one.rates)) for one in every) * HOUR * form.value("output_length")
    fleet = way.fleet
    answer: Answer = {
        "accelerators": count,
        "least_accelerators": float(serves.min()),
        "copies": float(copies.max()),
        "copy_size": way.size,
        "separate_accelerators": sum(float(one.serves.max()) for one in every),
        "serving_hours": float(total(serves)) * HOUR,
        "starting_hours": float(total(starting)) * HOUR,
        "idle_hours": float(total(idle)) * HOUR,
        "training_hours": float(total(training)) * HOUR,
        "starts": sum(float(total(np.maximum(one.copies - np.roll(one.copies, 1), 0.0))) for one in every),
        "utilization": sum(float(total(one.busy * one.serves)) for one in every) / float(total(serves)),
        "day_cost": cost,
        "fixed_cost": fixed,
        "saved_share": 1.0 - cost / fixed if fixed > 0.0 else np.nan,
        "cost_per_million_output_tokens": cost / outputs,
        "training_tokens": float(tokens),
        "training_value": value,
        "day_energy": float(total(power)) * HOUR,
        PLAN: fleet.plan,
        "software": fleet.plan.word("software"),
        **{name: str(fleet.results[name][0]) for name in ("trust", "trust_reason")},
        "defaults_used": f"Copies start in {start * 60.0:g} min; an idle accelerator draws "
        f"{percent(form.filled('idle_power_share')[0], 0)} of its power; "
        f"{'' if form.stated_word('load_by_hour') else 'an office day; '}hours of the day have their mean load",
    }
    table = {
        "hour": np.arange(float(DAY)),
        "request_rate": rates,
        "copies": copies,
        "serving": serves,
        "starting": starting,
        "other_models": serves - way.serves,
        "training": training,
        "idle": idle,
        "power": power,
    }
    answer[TABLES] = {HOURS: Table("day_hours", table)}
    answer["answer"] = _sentence(form, answer, len(others))
    return answer


def _training(form: Table, most: float, catalog: Catalog) -> Trained | None:
    """Tokens per second and power of a training run on each number of units; None without a model or room."""
    if not form.text("training_model")[0]:
        return None
    columns: dict[str, Any] = {"model": form.text("training_model"), "accelerator": form.text("accelerator")}
    columns |= {name: form.filled(name) for name in ("sequence_length", "global_batch_size", "precision")}
    plan = one_plan("training", columns | {COUNT: most}, SEARCHED, form)
    server = float(server_sizes(plan, catalog)[0][0])
    unit = form.stated("training_unit")
    start = unit if unit == unit else server
    mapping: Table | None = None
    while mapping is None and start <= most:
        searched = best_mapping(with_columns(plan, num_accelerators=start), catalog)
        mapping = searched.plans.take([0]) if searched.kind == GOOD else None
        start = start if mapping is not None else 2.0 * start
    if mapping is None:
        return None
    start *= max(np.ceil(most / start / _MOST_UNITS), 1.0)
    numbers = np.arange(1.0, np.floor(most / start) + 1.0)
    plans = stacked([mapping] * len(numbers))
    ranks = np.prod([mapping.filled(name)[0] for name in ("tensor_parallel", "pipeline_parallel", "context_parallel")])
    batch = form.value("global_batch_size")
    plans = in_whole_batches(with_columns(plans, num_accelerators=numbers * start), numbers * start / ranks, batch)
    results = evaluate(plans, catalog)
    useful = np.nan_to_num(results.number("tokens_per_second") * batch / plans.number("global_batch_size"))
    power = np.nan_to_num(results.number("grid_power"))
    return Trained(start, np.concatenate([[0.0], useful]), np.concatenate([[0.0], power]), mapping)


def best_units(room: Array, rates: Array, restart: float) -> tuple[Array, float]:
    """Units that train in each hour of a day that repeats, and the tokens of the day, with a loss at each change.

    ``room``: units free by hour; ``rates``: tokens per second by units [1/s]; ``restart``: lost at a change [s]. Exact,
    by dynamic programming from every state of the hour with the least room.
    """
    room = np.minimum(room, len(rates) - 1.0)
    first = int(np.argmin(room))
    order = np.roll(np.arange(DAY), -first)
    whole, less = rates * HOUR, rates * (HOUR - restart)
    best, chosen = -np.inf, np.zeros(DAY)
    for state in range(int(room[first]) + 1):
        value = np.full(len(rates), -np.inf)
        value[state] = 0.0
        before = []
        for hour in [*order[1:].tolist(), first]:
            stay, change = value + whole, value.max() + less
            before.append(np.where(stay >= change, np.arange(len(rates)), int(value.argmax())))
            value = np.maximum(stay, change)
            value[int(room[hour]) + 1 :] = -np.inf
        if value[state] > best:
            best = float(value[state])
            place, path = state, []
            for step in reversed(before):
                path.append(place)
                place = int(step[place])
            chosen[[*order[1:].tolist(), first]] = path[::-1]
    return chosen, best


def _sentence(form: Table, answer: Answer, others: int) -> str:
    accelerator, model = short_name(form.stated_word("accelerator")), form.stated_word("model")
    beside = f" and {others} other model{'s' * (others > 1)}" if others else ""
    apart = f" ({answer['separate_accelerators']:,.0f} if each had its own)" if others else ""
    words = (
        f"{answer['accelerators']:,.0f} {accelerator} serve the busiest hour of {model}{beside}{apart}, "
        f"{answer['least_accelerators']:,.0f} the quietest; "
        f"a day takes {answer['serving_hours'] / HOUR:,.0f} accelerator-hours"
    )
    if answer["day_cost"] == answer["day_cost"]:
        words += f" and costs {dollars(answer['day_cost'])}, "
        words += f"{percent(answer['saved_share'], 0)} less than all of them all day"
    if answer["training_tokens"]:
        tokens = f"{answer['training_tokens'] / MILLION:,.0f} M tokens a day"
        words += f"; beside it {form.text('training_model')[0]} trains on {tokens}"
    return words + "."
