"""Custom chips, and accelerators of the catalog in their place: cost, power, and serving throughput of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from xlperf.base.arrays import Array, added
from xlperf.base.units import UNITS, percent
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.devices import accelerators_of, device_cost_parts
from xlperf.explore.chip_designs import CHIP, Designs, counted, designs_of
from xlperf.explore.fleet_plans import CHUNK, COUNT, DPA, EP, NEVER, PP, TP, Demand, Machines, crossed, replica_size
from xlperf.explore.fleet_pools import CHUNKS, WHOLE, FleetMappings
from xlperf.explore.mappings import started
from xlperf.explore.objectives import Answer, dollars, no_answer, slower
from xlperf.explore.search import stacked
from xlperf.explore.serve import replicas_of
from xlperf.explore.space import with_columns

ENGINE = str(table_schema("inference").by_name["software"].default)  # serving engine for the comparison of accelerators
BEST = 2  # mappings per accelerator that the search refines [-]
_STAGES = (2.0, 4.0, 8.0)  # trial pipeline stages [-]
_COARSE = CHUNKS[:2]  # prefill token budgets of the first round [-]


class Copies(NamedTuple):
    """The fastest copy on each of several accelerators, row by row."""

    plans: Table  # the nearest one if no copy reaches the speed
    results: Table
    reasons: list[str]  # why no copy reaches the speed, or ""
    slower: list[float]  # factor on its times in the case of the catalog


def fastest_copies(asked: Sequence[Table], catalog: Catalog) -> Copies:
    """The copy with the most output tokens per second and accelerator at the requested speed per user."""
    formats = [replicas_of(form, catalog) for form in asked]
    speeds = [form.value("speed_per_user") for form in asked]
    groups: dict[object, list[int]] = {}
    for row, plan in enumerate(formats):
        at = catalog.rows("accelerators", plan.text("accelerator"), plan, "accelerator")
        network = str(catalog.tables["accelerators"].text("default_network")[at][0])
        same = [(name, str(values[0])) for name, values in plan.columns.items() if name != "accelerator"]
        groups.setdefault((network, speeds[row], *same), []).append(row)
    plans: dict[int, Table] = {}
    results: dict[int, Table] = {}
    for rows in groups.values():
        names = [str(formats[row].text("accelerator")[0]) for row in rows]
        best = _Search(formats[rows[0]], names, 1.0 / speeds[rows[0]], catalog).best()
        reached = evaluate(best, catalog)
        for number, row in enumerate(rows):
            plans[row], results[row] = best.take([number]), reached.take([number])
    order = range(len(asked))
    further = [slower(results[row], "tpot", catalog) for row in order]
    result = Copies(stacked([plans[row] for row in order]), stacked([results[row] for row in order]), [], further)
    return result._replace(reasons=[_reason(result, row, speeds[row]) for row in order])


class _Search:
    """The search on accelerators of one network, which share mappings and weight formats."""

    def __init__(self, replica: Table, names: Sequence[str], tpot: float, catalog: Catalog) -> None:
        """``replica``: plan of a replica on the first of the accelerators ``names``."""
        self.names, self.tpot, self.catalog = names, tpot, catalog
        machines = Machines.of(replica, "", catalog, False)
        self.space = FleetMappings(replica, [ENGINE], Demand(1.0, np.nan, tpot, np.nan), machines, catalog)

    def best(self) -> Table:
        """The best plan on each accelerator at its largest load; with one request if none satisfies the speed."""
        plans = crossed(self.started(self.coarse()), CHUNK, _COARSE)
        chips = np.arange(len(self.names)).repeat(len(plans))
        every, scores, loads = self.tried(plans.take(np.tile(np.arange(len(plans)), len(self.names))), chips)
        near = _best_rows(scores, every, chips, BEST)
        finer = [self.finer(every.take(near[chip])) for chip in range(len(self.names))]
        finer_chips = np.repeat(np.arange(len(finer)), [len(tried) for tried in finer])
        more, better, larger = self.tried(stacked(finer), finer_chips)
        every, chips = stacked([every, more]), np.concatenate([chips, finer_chips])
        scores, loads = np.concatenate([scores, better]), np.concatenate([loads, larger])
        best = _best_rows(scores, every, chips, 1)
        rows = np.concatenate([best[chip] for chip in range(len(self.names))])
        return with_columns(every.take(rows), concurrency=np.maximum(loads[rows], 1.0))

    def coarse(self) -> Table:
        """Mappings of the first round."""
        plans = self.space.mapped(WHOLE, self.space.sizes(WHOLE), stages=(1.0, *_STAGES))
        size, replicas, group = (plans.number(name) for name in (TP, DPA, EP))
        ends = ((replicas == 1.0) | (replicas == size)) & ((group == 1.0) | (group == size))
        return plans.take(
            np.flatnonzero(ends & ((plans.number(PP) == 1.0) | (replica_size(plans) <= self.space.most(WHOLE))))
        )

    def finer(self, near: Table) -> Table:
        """Every expert group, dispatch and overlap around some plans, and the other prefill token budgets."""
        if not self.space.experts:
            return crossed(near, CHUNK, CHUNKS)
        shapes = dict.fromkeys(zip(*(near.number(name).tolist() for name in (TP, DPA, PP)), strict=True))
        mapped = [
            self.space.mapped(WHOLE, [size], data_parallel_attention=replicas, stages=[stages])
            for size, replicas, stages in shapes
        ]
        plans = stacked(mapped)
        more = [options for options in self.space.other_options(plans) if len(options)]
        return crossed(self.started(stacked([plans, *more])), CHUNK, CHUNKS)

    def started(self, plans: Table) -> Table:
        """One-pool plans that are legal and that the engine starts."""
        plans = self.space.stated(WHOLE, plans)
        return plans.take(started(plans, self.catalog))

    def tried(self, plans: Table, chips: np.ndarray) -> tuple[Table, Array, Array]:
        """Plans on accelerators, tokens per second and accelerator at the speed target, and largest loads."""
        names = np.array(self.names, dtype=object)[chips]
        every = with_columns(plans, accelerator=names, ttft_target=NEVER, tpot_target=self.tpot)
        results = evaluate(every, self.catalog)
        load = np.nan_to_num(results.number("batch_at_targets")) * every.number(COUNT) / replica_size(every)
        made = np.nan_to_num(results.number("tokens_per_second_at_targets")) / every.number(COUNT)
        alone = np.nan_to_num(results.number("tokens_per_second_per_user")) * (results.number("fits") == 1.0)
        need = np.nan_to_num(results.number("memory") - results.number("memory_capacity"), nan=np.inf)
        # Without a copy that keeps the speed the fastest one counts, without one that fits the smallest.
        nearest = np.where(alone > 0.0, -1.0 / np.maximum(alone, 1e-9), -NEVER * (1.0 + np.maximum(need, 0.0)))
        score = np.where((made > 0.0) & (load >= 1.0), made, nearest)
        return with_columns(every, ttft_target=np.nan, tpot_target=np.nan), score, np.round(load)


def _best_rows(scores: Array, plans: Table, chips: np.ndarray, each: int) -> dict[int, np.ndarray]:
    """Rows with the best scores of each accelerator; ties go to the smaller copy."""
    order = np.lexsort((plans.number(CHUNK), plans.number(COUNT), -scores))
    return {chip: order[chips[order] == chip][:each] for chip in set(chips.tolist())}


def _reason(copies: Copies, row: int, speed: float) -> str:
    """The limit that the fastest copy misses, by how much, and a remedy; "" if it satisfies all."""
    results = copies.results.take([row])
    model = str(copies.plans.text("model")[row])
    why = results.stated_word("reason").split(";")[0]
    if np.isnan(results.number("memory")[0]):
        return why
    if results.number("fits")[0] != 1.0:
        count = float(copies.plans.number(COUNT)[row])
        return f"{model} on {count:,.0f} accelerators {why}: more stacks of memory, or weights of fewer bits"
    user = results.stated("tokens_per_second_per_user")
    if 1.0 / results.stated("tpot") >= speed * (1.0 - 1e-6):
        return ""
    return (
        f"a user of {model} alone gets {user:,.0f} token/s at most, and {speed:,.0f} are asked for "
        f"({speed / user:,.1f} times as many): more memory bandwidth, or a lower speed"
    )


BESIDE = "B200-SXM-180GB"  # reference accelerator for a chip
_RATES = (
    "peak_flop_rate_bf16", "peak_flop_rate_fp8", "memory_capacity", "memory_bandwidth", "thermal_design_power",
)  # fmt: skip
_DEVICE = ("unit_cost", "capex", "memory_stacks", "num_multiprocessors", "power_compute")
_LOSSES = ("package_defects", "wasted_dies", "wasted_memory")
CHIP_PARTS = {
    "cost_dies": "raw_dies", "cost_defects": "die_defects", "cost_package": "raw_package", "cost_memory": "memory",
    "cost_test": "test", "cost_board": "board_cost", "cost_design": "nre_per_unit",
}  # fmt: skip
_WORTH = "tokens_per_thousand_dollars"


def chip_answers(forms: Sequence[Table], catalog: Catalog) -> list[Answer]:
    """Cost and serving throughput of the chips of forms, or of the accelerators that they name."""
    named = [form.stated_word("accelerator") for form in forms]
    custom = [row for row, name in enumerate(named) if not name]
    designs = designs_of([forms[row] for row in custom], catalog) if custom else None
    answers: list[Answer] = [{} for _ in forms]
    names = dict(enumerate(named))
    if designs is not None:
        built = [number for number, reason in enumerate(designs.reasons) if not reason]
        for number, row in enumerate(custom):
            names[row] = _free_name(catalog, number)
            if reason := designs.reasons[number]:
                answers[row] = no_answer(reason)
        catalog = _with_chips(designs, built, [names[custom[number]] for number in built], catalog)
        for number, answer in zip(built, _of_devices(designs, built, catalog), strict=True):
            cache = float(forms[custom[number]].number("cache")[0])
            answers[custom[number]] = answer | ({"cache": cache} if cache == cache else {})  # the area rounds it
    judged = [row for row, answer in enumerate(answers) if named[row] or not answer.get("reason")]
    beside = catalog.known_rows("accelerators", np.array([BESIDE], dtype=object))[0] >= 0
    asked = {row: _asked(forms[row], names[row]) for row in judged}
    references = {row: _asked(forms[row], BESIDE) for row in judged if beside and not named[row]}
    served = _served([*asked.values(), *references.values()], catalog)
    for row, table in asked.items():
        result = served[_key(table)]
        answers[row] |= result if named[row] else {name: result[name] for name in (*_RATES, RATE, _WORTH)}
        answers[row]["reason"] = "; ".join(filter(None, (result["reason"], str(answers[row].get("unmade", "")))))
        if named[row]:
            tokens, words = answers[row][RATE], f"No answer: {answers[row]['reason']}."
            answers[row]["answer"] = f"{named[row]}: {tokens:,.0f} token/s" if tokens == tokens else words
        else:
            reference = served[_key(references[row])] if row in references else None
            answers[row]["answer"] = _chip_sentence(forms[row], answers[row], reference)
    return answers


def chip_row(form: Table, catalog: Catalog, derived: bool = False) -> tuple[Table, Table]:
    """The chip of a form as rows of ``accelerators`` (``derived``: that only references the device) and ``devices``."""
    designs, known = designs_of([form], catalog), catalog.tables
    extended = catalog.with_tables([_without(known[kind], CHIP) for kind in ("devices", "accelerators")])
    extended = _with_chips(designs, [0], [CHIP], extended)
    at = int(extended.known_rows("accelerators", np.array([CHIP], dtype=object))[0])
    row = (extended.tables["accelerators"] if derived else accelerators_of(extended).table).take([at])
    alike = row.stated_word("generation")
    notes = "kernels and network as of a B200" if alike else ""
    words = {"source": "xlperf chip", "kind": "assumption", "notes": notes} | ({} if derived else {"device": ""})
    return _noted(row, words), _noted(designs.devices, {"source": "xlperf chip", "kind": "assumption"})


def _noted(row: Table, words: dict[str, str]) -> Table:
    """A row with words in some columns, and without its blank ones."""
    columns = {**row.columns, **{name: np.array([word], dtype=object) for name, word in words.items()}}
    filled = [name for name in row.schema.by_name if name in columns and columns[name][0] not in ("", np.nan)]
    return Table(row.kind, {name: columns[name] for name in filled if columns[name][0] == columns[name][0]}, row.place)


def _without(table: Table, name: str) -> Table:
    return table.take(np.flatnonzero(table.text(table.schema.key.name) != name))


def _free_name(catalog: Catalog, number: int) -> str:
    name = f"{CHIP} {number + 1}"
    while any(catalog.known_rows(kind, np.array([name], dtype=object))[0] >= 0 for kind in ("accelerators", "devices")):
        name += "'"
    return name


def _with_chips(designs: Designs, rows: Sequence[int], names: Sequence[str], catalog: Catalog) -> Catalog:
    """A catalog with chips as devices and as accelerators, with kernels and network of the reference accelerator."""
    if not rows:
        return catalog
    table = catalog.tables["accelerators"]
    like = int(catalog.known_rows("accelerators", np.array([BESIDE], dtype=object))[0])
    named = np.array(names, dtype=object)
    copied = {name: table.text(name)[like] if like >= 0 else "" for name in ("generation", "default_network")}
    columns = {name: np.full(len(rows), value, dtype=object) for name, value in copied.items()}
    chips = Table("accelerators", columns | {"accelerator": named, "device": named}, table.place)
    devices = designs.devices.take(list(rows))
    devices = Table("devices", {**devices.columns, "device": named}, devices.place)
    both = ((catalog.tables["devices"], devices), (table, chips))
    return catalog.with_tables([replace(stacked([first, second]), place=first.place) for first, second in both])


def _of_devices(designs: Designs, rows: Sequence[int], catalog: Catalog) -> list[Answer]:
    """Results of chips that derive from their devices."""
    results, devices = designs.results.take(list(rows)), designs.devices.take(list(rows))
    numbers = {name: results.number(name) for name in _DEVICE}
    numbers |= {name: devices.number(name) for name in ("num_dies", "die_area")}
    numbers |= {"cache": results.number("l2_capacity"), "temperature": designs.temperature[list(rows)]}
    priced = np.flatnonzero(~np.isnan(numbers["unit_cost"]))
    parts = device_cost_parts(devices.take(priced), catalog) if len(priced) else None
    if parts is not None:
        losses = np.array(
            [added(values) for values in zip(*(parts.number(part).tolist() for part in _LOSSES), strict=True)]
        )
        known = {name: parts.number(part) for name, part in CHIP_PARTS.items()} | {"cost_losses": losses}
        for name, values in known.items():
            numbers[name] = np.full(len(rows), np.nan)
            numbers[name][priced] = values
    answers: list[Answer] = []
    for row, number in enumerate(rows):
        answer: Answer = {name: float(values[row]) for name, values in numbers.items()}
        answer |= {"limited_by": str(results["limited_by"][row]), "chosen": designs.chosen[number]}
        unpriced = np.isnan(answer["unit_cost"])
        answers.append(answer | {"unmade": str(results["reason"][row]) if unpriced else ""})
    return answers


def _asked(form: Table, accelerator: str) -> Table:
    names = ("model", "precision", "prompt_length", "output_length", "speed_per_user")
    columns: dict[str, Any] = {name: form.filled(name) for name in names}
    return Table("serve", columns | {"accelerator": np.array([accelerator], dtype=object)}, form.place)


def _key(asked: Table) -> tuple[str, ...]:
    return tuple(str(values[0]) for values in asked.columns.values())


def _served(asked: Sequence[Table], catalog: Catalog) -> dict[tuple[str, ...], Answer]:
    """Rates and serving throughput of accelerators, by question."""
    every = {_key(table): table for table in asked}
    if not every:
        return {}
    result = fastest_copies(list(every.values()), catalog)
    return {key: _rates(result, row, catalog) for row, key in enumerate(every)}


def _rates(copies: Copies, number: int, catalog: Catalog) -> Answer:
    plan, every = copies.plans.take([number]), accelerators_of(catalog)
    row = int(catalog.rows("accelerators", plan["accelerator"], plan, "accelerator")[0])
    answer: Answer = {rate: float(every.table.number(rate)[row]) for rate in _RATES}
    price = int(catalog.price_rows[row])
    listed = float(catalog.tables["prices"].number("capex")[price]) if price >= 0 else np.nan
    capex = float(every.capex[row])
    answer["capex"] = capex if capex == capex else listed
    good = not copies.reasons[number]
    tokens = float(copies.results.number(RATE)[number]) / copies.slower[number] if good else np.nan
    answer |= {RATE: tokens, _WORTH: 1000.0 * tokens / answer["capex"], "reason": copies.reasons[number]}
    return answer


def _chip_sentence(form: Table, answer: Answer, other: Answer | None) -> str:
    size = f"{answer['num_dies']:.0f} × {answer['die_area']:,.0f} mm² at {form.text('technology')[0]}"
    cost = f" cost {dollars(answer['unit_cost'])} to make" if answer["unit_cost"] == answer["unit_cost"] else ""
    rate = f"{answer['memory_bandwidth'] / UNITS['TB/s'].factor:.1f} TB/s"
    memory = f"{counted(answer['memory_stacks'], 'stack')} of {form.text('memory')[0]} ({rate})"
    made = f"{size} with {memory}{cost}"
    tokens = answer[RATE]
    if tokens != tokens:
        return f"No answer: {made}, and {answer['reason']}."
    if other is None or not other[RATE] > 0.0:
        return f"{made}; one serves {tokens:,.0f} token/s."
    ratio, worth = tokens / other[RATE], answer[_WORTH] / other[_WORTH]
    per_dollar = (
        f", {_times(worth)} per dollar of its price: {_price_bases(form, answer, other)}" if worth == worth else ""
    )
    unpriced = "" if per_dollar else f" ({answer['reason'] or 'its price is not known'})"
    return f"{made}; one serves {_times(ratio)} the tokens of a B200{per_dollar}{unpriced}."


def _price_bases(form: Table, answer: Answer, other: Answer) -> str:
    """The price of a chip and of the accelerator beside it, and what each is made of."""
    share = percent(float(form.filled("margin_share")[0]), 0)
    listed = f"{dollars(other[PRICE])} on the sheet prices"
    return f"{dollars(answer[PRICE])} with its server at a margin of {share}, against {listed}"


def _times(ratio: float) -> str:
    """A ratio in words: one decimal, two digits of a small one."""
    return f"{ratio:.1f}×" if ratio >= 0.1 else f"{ratio:.2g}×"


ALIKE = 1e-4  # relative difference within which rates and costs of chips count as equal [-]


RATE, COST, PRICE = "tokens_per_second_per_accelerator", "unit_cost", "capex"


AREA_STEP, POWER_STEP, CACHE_STEP = 0.05, 0.05, 0.25
"""Finite-difference steps of die area, power and cache, over the chip's own. [-]"""


def frontier_of(results: Table) -> Array:
    """Pareto frontier of tokens per second against unit cost: 1 on it, 0 dominated, NaN without an answer."""
    rate, cost = results.number(RATE), results.number(COST)
    more, less = 1.0 + ALIKE, 1.0 - ALIKE
    better = (rate[None, :] > more * rate[:, None]) & (cost[None, :] <= more * cost[:, None])
    cheaper = (rate[None, :] >= less * rate[:, None]) & (cost[None, :] < less * cost[:, None])
    beaten = (better | cheaper).any(axis=1)
    return np.where(np.isnan(rate + cost), np.nan, np.where(beaten, 0.0, 1.0))


class _Step(NamedTuple):
    """A change of one entry: its words, unit and number of units; the column, its value before, and the change."""

    words: str
    unit: str
    size: float
    column: str
    before: float
    change: float


def chip_worth(form: Table, answer: Answer, answers_of: Callable[[Table], list[Answer]]) -> Table:
    """Worth of the next mm2, stack, W and MB of cache: added tokens at equal tokens per dollar of the price.

    Finite differences of the form's answer: every other choice stays, and the area and cost budgets are lifted. If more
    has no room, the result is the worth of the last unit.
    """
    fixed = {name: answer[name] for name in ("num_dies", "die_area", "cache", "memory_stacks")}
    fixed |= {"area_budget": np.nan, "cost_budget": np.nan}
    limit = form.stated("power_budget")
    limit = limit if limit == limit else float(answer["thermal_design_power"])
    dies, area, cache = (float(answer[name]) for name in ("num_dies", "die_area", "cache"))
    steps = (
        _Step("silicon", "mm2", AREA_STEP * dies * area, "die_area", area, AREA_STEP * area),
        _Step("memory", "stack", 1.0, "memory_stacks", float(answer["memory_stacks"]), 1.0),
        _Step("power", "W", POWER_STEP * limit, "power_budget", limit, POWER_STEP * limit),
        _Step("cache", "MB", CACHE_STEP * cache / UNITS["MB"].factor, "cache", cache, CACHE_STEP * cache),
    )
    changes: list[dict[str, float]] = [{}]
    for step in steps:
        changes += [{step.column: step.before + step.change}, {step.column: step.before - step.change}]
    stated = {step.column: form.number(step.column)[0] for step in steps} | fixed
    columns = {name: [change.get(name, value) for change in changes] for name, value in stated.items()}
    base, *others = answers_of(with_columns(form.take([0] * len(changes)), **columns))
    lines = [
        _line(step, base, *pair) for step, pair in zip(steps, zip(others[::2], others[1::2], strict=True), strict=True)
    ]
    return Table.of_lines("chip_worth", lines)


def _line(step: _Step, base: Answer, more: Answer, less: Answer) -> dict[str, object]:
    """Tokens and price of one more unit, or of the last unit if more has no room."""

    def rate(answer: Answer) -> float:
        return float(answer.get(RATE, np.nan))

    up = rate(more) == rate(more)
    changed, sign = (more, 1.0) if up else (less, -1.0)
    added = sign * (rate(changed) - rate(base)) / step.size
    price = sign * (float(changed.get(PRICE, np.nan)) - float(base[PRICE])) / step.size
    price = price if abs(price * step.size) > ALIKE * float(base[PRICE]) else 0.0
    worth = added / rate(base) * float(base[PRICE])
    return {
        "change": step.words,
        "step": sign * step.size,
        "unit": step.unit,
        "rate": added,
        "worth": worth,
        "price": price,
        "verdict": verdict_of(worth, price, up),
    }


def verdict_of(worth: float, price: float, has_room: bool) -> str:
    """Whether one more unit pays, in words.

    >>> verdict_of(12.0, 3.0, True), verdict_of(-2.0, 0.0, True), verdict_of(1.0, 3.0, False)
    ('pays', 'too much', 'too dear; more has no room')
    """
    if worth != worth:
        return "no room for more or less"
    words = "pays" if worth > price else "no use" if worth == 0.0 else "too much" if worth < 0.0 else "too dear"
    return words if has_room else f"{words}; more has no room"
