"""A day of a service: copies by hour, what starting them costs, and the training that fits beside them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from xlperf.base.arrays import Array, total
from xlperf.base.errors import Fault, InputError
from xlperf.base.units import HOUR, MILLION, percent
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.explore.fleet_plans import COUNT, LOAD, Demand, Fleet, with_columns
from xlperf.explore.mappings import server_sizes
from xlperf.explore.money import hours_of, serving, sized
from xlperf.explore.objectives import GOOD, PLAN, TABLES, Answer, dollars, no_answer, one_plan, short_name
from xlperf.explore.search import stacked
from xlperf.explore.serve import serve_answer, serving_ways
from xlperf.explore.train import SEARCHED, best_mapping, in_whole_batches

HOURS = "hours"  # table by hour beside an answer
DAY = 24
_SERVED = ("model", "accelerator", "prompt_length", "output_length", "speed_per_user", "ttft_target", "software",
           "hour_price")  # fmt: skip
"""Entries that the form Serve has too."""
_MOST_UNITS = 256  # most units of training accelerators; larger fleets train in larger units [-]


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
    rates = load_by_hour(form)
    asked = _serving(form, float(rates.max()))
    fleets = serving_ways(asked, catalog)
    if not fleets:
        reason = str(serve_answer(asked, catalog).get("reason", "")) or "no way to serve keeps the targets"
        return no_answer(reason)
    # The cheapest way for the busiest hour may have copies too large to follow the day.
    ways = [(fleet, _by_hour(fleet, asked, rates, catalog)) for fleet in fleets[: 1 if np.ptp(rates) == 0.0 else None]]
    least, stated = min(needs.most for _, needs in ways), form.stated("accelerators")
    if stated < least:
        problem = f"accelerators {stated:,.0f} are fewer than the {least:,.0f} of the busiest hour; give more"
        raise InputError(Fault(form.place(0, "accelerators"), problem))
    ways = [way for way in ways if not stated < way[1].most]
    answers = [_answer(form, rates, fleet, needs, needs.most, asked, catalog) for fleet, needs in ways]
    # Ways are compared on the accelerators that each needs, so that more of them change no way.
    best = int(np.argmin([np.nan_to_num(answer["day_cost"], nan=np.inf) for answer in answers]))
    if not stated > ways[best][1].most:
        return answers[best]
    return _answer(form, rates, *ways[best], stated, asked, catalog)


def _serving(form: Table, rate: float) -> Table:
    """The form Serve for the busiest hour."""
    columns = {name: form.filled(name) for name in _SERVED}
    asked = Table("serve", columns, form.place, {name: mask for name, mask in form.auto.items() if name in columns})
    return with_columns(asked, request_rate=rate)


class Fleets(NamedTuple):
    """Copies and accelerators in whole servers by hour, and power of an accelerator at full load. [W]"""

    copies: Array
    accelerators: Array
    size: float
    each: float

    @property
    def most(self) -> float:
        """Accelerators of the busiest hour. [-]"""
        return float(self.accelerators.max())


def _by_hour(fleet: Fleet, asked: Table, rates: Array, catalog: Catalog) -> Fleets:
    speed, first = asked.value("speed_per_user"), asked.stated("ttft_target")
    sizes = [
        sized(serving(fleet, Demand(np.nan, max(float(rate), 1e-9), 1.0 / speed, first), catalog), catalog)
        for rate in rates
    ]
    return Fleets(
        np.array([float(np.ceil(one.whole()[0])) for one in sizes]), np.array([one.accelerators for one in sizes]),
        sizes[0].size, sizes[0].each,
    )  # fmt: skip


def _answer(
    form: Table, rates: Array, fleet: Fleet, needs: Fleets, count: float, asked: Table, catalog: Catalog
) -> Answer:
    """A day of a way to serve on so many accelerators."""
    start = form.value("start_time") / HOUR
    is_paid_by_hour = form.word("payment") == "hours"
    copies = copies_by_hour(needs.copies, start)
    serves = np.array([needs.accelerators[needs.copies == running].max() for running in copies])
    added = np.maximum(serves - np.roll(serves, 1), 0.0)
    starting = _before(added, start)
    starting = np.minimum(starting, count - serves)
    trained = _training(form, count - serves.min(), catalog)
    units = np.floor((count - serves - starting) / trained.unit) if trained else np.zeros(DAY)
    restart = form.value("restart_time") if trained else 0.0
    used, tokens = best_units(units, trained.rates, restart) if trained else (np.zeros(DAY), 0.0)
    training = used * (trained.unit if trained else 0.0)
    idle = count - serves - starting - training
    each = float(fleet.plan.number(LOAD)[0] / fleet.results.number("latency")[0])
    busy = np.minimum(rates / (each * np.maximum(copies, 1.0)), 1.0)
    floor = form.value("idle_power_share") * needs.each
    power = serves * (floor + (needs.each - floor) * busy) + starting * needs.each + idle * floor
    if trained:
        power += trained.power[used.astype(np.int64)]
    hour = hours_of(asked, fleet.plan, fleet.results, catalog)[0].paid
    paid = total(serves + starting + training) if is_paid_by_hour else count * DAY
    fixed = count * DAY * HOUR * hour
    value = float(total(training)) * HOUR * hour
    cost = float(paid) * HOUR * hour - value
    outputs = float(total(rates)) * HOUR * form.value("output_length")
    answer: Answer = {
        "accelerators": count, "least_accelerators": float(serves.min()), "copies": float(copies.max()),
        "copy_size": needs.size, "serving_hours": float(total(serves)) * HOUR,
        "starting_hours": float(total(starting)) * HOUR, "idle_hours": float(total(idle)) * HOUR,
        "training_hours": float(total(training)) * HOUR,
        "starts": float(total(np.maximum(copies - np.roll(copies, 1), 0.0))),
        "utilization": float(total(busy * serves) / total(serves)), "day_cost": cost, "fixed_cost": fixed,
        "saved_share": 1.0 - cost / fixed if fixed > 0.0 else np.nan, "cost_per_million_output_tokens": cost / outputs,
        "training_tokens": float(tokens), "training_value": value,
        "day_energy": float(total(power)) * HOUR, PLAN: fleet.plan, "software": fleet.plan.word("software"),
        **{name: str(fleet.results[name][0]) for name in ("trust", "trust_reason")},
        "defaults_used": f"Copies start in {start * 60.0:g} min; an idle accelerator draws "
        f"{percent(form.filled('idle_power_share')[0], 0)} of its power; "
        f"{'' if form.stated_word('load_by_hour') else 'an office day; '}hours of the day have their mean load",
    }  # fmt: skip
    table = {
        "hour": np.arange(float(DAY)), "request_rate": rates, "copies": copies, "serving": serves, "starting": starting,
        "training": training, "idle": idle, "power": power,
    }  # fmt: skip
    answer[TABLES] = {HOURS: Table("day_hours", table)}
    answer["answer"] = _sentence(form, answer)
    return answer


def _before(added: Array, start: float) -> Array:
    """Mean accelerators that start in each hour, spread over the hours before they serve."""
    spread = int(max(np.ceil(start), 1.0))
    return np.asarray(np.sum([np.roll(added, -hour) for hour in range(1, spread + 1)], axis=0) * start / spread)


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


def _sentence(form: Table, answer: Answer) -> str:
    accelerator, model = short_name(form.stated_word("accelerator")), form.stated_word("model")
    words = (
        f"{answer['accelerators']:,.0f} {accelerator} serve the busiest hour of {model}, "
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
