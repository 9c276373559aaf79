"""Chips of one's own, and accelerators of the catalog in their place: cost, power, and what they serve of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xlperf.base.arrays import added
from xlperf.base.units import UNITS
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.devices import accelerators_of, device_cost_parts
from xlperf.explore.chip_designs import CHIP, Designs, counted, designs_of
from xlperf.explore.chip_rates import Copies, fastest_copies
from xlperf.explore.search import stacked
from xlperf.explore.search_results import Answer, dollars

BESIDE = "B200-SXM-180GB"
"""Accelerator that a chip is compared with."""
_RATES = (
    "peak_flop_rate_bf16", "peak_flop_rate_fp8", "memory_capacity", "memory_bandwidth", "thermal_design_power",
)  # fmt: skip
_DEVICE = ("unit_cost", "capex", "memory_stacks", "num_multiprocessors", "power_compute")
_LOSSES = ("package_defects", "wasted_dies", "wasted_memory")
CHIP_PARTS = {
    "cost_dies": "raw_dies", "cost_defects": "die_defects", "cost_package": "raw_package", "cost_memory": "memory",
    "cost_test": "test", "cost_board": "board_cost", "cost_design": "nre_per_unit",
}  # fmt: skip
_TOKENS, _WORTH = "tokens_per_second_per_accelerator", "tokens_per_thousand_dollars"


def chip_answers(forms: Sequence[Table], catalog: Catalog) -> list[Answer]:
    """What the chips of forms, or the accelerators that they name, cost and serve.

    ``forms``: rows of kind ``chip``, each a table of its own. ``catalog``: technology, models and the accelerators to
    hold them against. Returns results of the kind ``chip_results``, the same for a form whatever others are asked.
    Raises InputError where a name is unknown.
    """
    named = [str(form.text("accelerator")[0]) for form in forms]
    own = [row for row, name in enumerate(named) if not name]
    designs = designs_of([forms[row] for row in own], catalog) if own else None
    answers: list[Answer] = [{} for _ in forms]
    names = dict(enumerate(named))
    if designs is not None:
        built = [number for number, reason in enumerate(designs.reasons) if not reason]
        for number, row in enumerate(own):
            names[row] = _free_name(catalog, number)
            answers[row] = _unbuilt(designs.reasons[number])
        catalog = _with_chips(designs, built, [names[own[number]] for number in built], catalog)
        for number, answer in zip(built, _of_devices(designs, built, catalog), strict=True):
            cache = float(forms[own[number]].number("cache")[0])
            answers[own[number]] = answer | ({"cache": cache} if cache == cache else {})  # the area rounds it
    judged = [row for row, answer in enumerate(answers) if named[row] or not answer.get("reason")]
    beside = catalog.known_rows("accelerators", np.array([BESIDE], dtype=object))[0] >= 0
    asked = {row: _asked(forms[row], names[row]) for row in judged}
    others = {row: _asked(forms[row], BESIDE) for row in judged if beside and not named[row]}
    served = _served([*asked.values(), *others.values()], catalog)
    for row, table in asked.items():
        found = served[_key(table)]
        answers[row] |= found if named[row] else {name: found[name] for name in (*_RATES, _TOKENS, _WORTH)}
        answers[row]["reason"] = "; ".join(filter(None, (found["reason"], str(answers[row].get("unmade", "")))))
        if named[row]:
            answers[row]["answer"] = _sentence_of(named[row], answers[row])
        else:
            other = served[_key(others[row])] if row in others else None
            answers[row]["answer"] = _chip_sentence(forms[row], answers[row], other)
    return answers


def chip_row(form: Table, catalog: Catalog, derived: bool = False) -> tuple[Table, Table]:
    """The chip of a form as a row of the sheet ``accelerators``, and as one of the sheet ``devices``.

    ``form``: one row of kind ``chip`` whose chip can be built. ``derived``: whether the first names the second, from
    which its numbers and its cost follow; else it has every number and no cost.
    """
    designs, known = designs_of([form], catalog), catalog.tables
    own = catalog.with_tables([_without(known[kind], CHIP) for kind in ("devices", "accelerators")])
    own = _with_chips(designs, [0], [CHIP], own)
    at = int(own.known_rows("accelerators", np.array([CHIP], dtype=object))[0])
    row = (own.tables["accelerators"] if derived else accelerators_of(own).table).take([at])
    alike = str(row.text("generation")[0])
    notes = "kernels and network as of a B200" if alike else ""
    said = {"source": "xlperf chip", "kind": "assumption", "notes": notes} | ({} if derived else {"device": ""})
    return _noted(row, said), _noted(designs.devices, {"source": "xlperf chip", "kind": "assumption"})


def _noted(row: Table, words: dict[str, str]) -> Table:
    """A row with words in some columns, and without its blank ones."""
    columns = {**row.columns, **{name: np.array([said], dtype=object) for name, said in words.items()}}
    filled = [name for name in row.schema.by_name if name in columns and columns[name][0] not in ("", np.nan)]
    return Table(row.kind, {name: columns[name] for name in filled if columns[name][0] == columns[name][0]}, row.place)


def _without(table: Table, name: str) -> Table:
    """A table without the row of a name."""
    return table.take(np.flatnonzero(table.text(table.schema.key.name) != name))


def _free_name(catalog: Catalog, number: int) -> str:
    """A name that no accelerator and no device of a catalog has."""
    name = f"{CHIP} {number + 1}"
    while any(catalog.known_rows(kind, np.array([name], dtype=object))[0] >= 0 for kind in ("accelerators", "devices")):
        name += "'"
    return name


def _with_chips(designs: Designs, rows: Sequence[int], names: Sequence[str], catalog: Catalog) -> Catalog:
    """A catalog with chips as devices and as accelerators, of the kernels and the network of the accelerator beside."""
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
    return catalog.with_tables([_below(first, second) for first, second in both])


def _below(table: Table, rows: Table) -> Table:
    """A table with rows below it, at the places of the first."""
    joined = stacked([table, rows])
    return Table(table.kind, joined.columns, table.place)


def _unbuilt(reason: str) -> Answer:
    return {"reason": reason, "answer": f"No answer: {reason}."} if reason else {}


def _of_devices(designs: Designs, rows: Sequence[int], catalog: Catalog) -> list[Answer]:
    """Results of chips that follow from their devices."""
    results, devices = designs.results.take(list(rows)), designs.devices.take(list(rows))
    numbers = {name: results.number(name) for name in _DEVICE}
    numbers |= {name: devices.number(name) for name in ("num_dies", "die_area")}
    numbers |= {"cache": results.number("l2_capacity")}
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
    """The question that an accelerator is judged by, of kind ``serve``."""
    columns: dict[str, Any] = {"model": form.text("model"), "precision": form.filled("precision")}
    columns |= {"accelerator": np.array([accelerator], dtype=object)}
    columns |= {name: form.number(name) for name in ("prompt_length", "output_length")}
    return Table("serve", columns | {"speed_per_user": form.filled("speed_per_user")}, form.place)


def _key(asked: Table) -> tuple[str, ...]:
    return tuple(str(values[0]) for values in asked.columns.values())


def _served(asked: Sequence[Table], catalog: Catalog) -> dict[tuple[str, ...], Answer]:
    """Rates of accelerators and what they serve, by the question."""
    every = {_key(table): table for table in asked}
    if not every:
        return {}
    found = fastest_copies(list(every.values()), catalog)
    return {key: _rates(found, row, catalog) for row, key in enumerate(every)}


def _rates(found: Copies, number: int, catalog: Catalog) -> Answer:
    plan, every = found.plans.take([number]), accelerators_of(catalog)
    row = int(catalog.rows("accelerators", plan["accelerator"], plan, "accelerator")[0])
    answer: Answer = {rate: float(every.table.number(rate)[row]) for rate in _RATES}
    price = int(catalog.price_rows[row])
    listed = float(catalog.tables["prices"].number("capex")[price]) if price >= 0 else np.nan
    capex = float(every.capex[row])
    answer["capex"] = capex if capex == capex else listed
    good = not found.reasons[number]
    tokens = float(found.results.number(_TOKENS)[number]) / found.slower[number] if good else np.nan
    answer |= {_TOKENS: tokens, _WORTH: 1000.0 * tokens / answer["capex"], "reason": found.reasons[number]}
    return answer


def _sentence_of(accelerator: str, answer: Answer) -> str:
    """What an accelerator of the catalog serves."""
    tokens = answer[_TOKENS]
    return f"{accelerator}: {tokens:,.0f} tokens/s" if tokens == tokens else f"No answer: {answer['reason']}."


def _chip_sentence(form: Table, answer: Answer, other: Answer | None) -> str:
    size = f"{answer['num_dies']:.0f} × {answer['die_area']:,.0f} mm² at {form.text('technology')[0]}"
    cost = f" cost {dollars(answer['unit_cost'])} to make" if answer["unit_cost"] == answer["unit_cost"] else ""
    rate = f"{answer['memory_bandwidth'] / UNITS['TB/s'].factor:.1f} TB/s"
    memory = f"{counted(answer['memory_stacks'], 'stack')} of {form.text('memory')[0]} ({rate})"
    made = f"{size} with {memory}{cost}"
    tokens = answer[_TOKENS]
    if tokens != tokens:
        return f"No answer: {made}, and {answer['reason']}."
    if other is None or not other[_TOKENS] > 0.0:
        return f"{made}; one serves {tokens:,.0f} tokens/s."
    ratio, worth = tokens / other[_TOKENS], answer[_WORTH] / other[_WORTH]
    per_dollar = f", {_times(worth)} per dollar of its price" if worth == worth else ""
    unpriced = "" if per_dollar else f" ({answer['reason'] or 'its price is not known'})"
    return f"{made}; one serves {_times(ratio)} the tokens of a B200{per_dollar}{unpriced}."


def _times(ratio: float) -> str:
    """A ratio in words: one decimal, two digits of a small one."""
    return f"{ratio:.1f}×" if ratio >= 0.1 else f"{ratio:.2g}×"
