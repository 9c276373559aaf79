"""Tables of chips: forms with varied entries, their Pareto frontier, and the worth of more of each budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError
from xlperf.base.units import UNITS
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.cells import parse_header
from xlperf.catalog.schema import auto_columns, first_words, table_schema
from xlperf.catalog.table import Table
from xlperf.explore.fleet_plans import with_columns
from xlperf.explore.forms import answers_of, form_of
from xlperf.explore.search_results import Answer
from xlperf.explore.vary import read_variation

MOST_CHIPS = 2_000
"""Largest number of chips in one table. [-]"""
ALIKE = 1e-4
"""Relative difference within which rates and costs of chips count as equal. [-]"""
RATE, COST, PRICE = "tokens_per_second_per_accelerator", "unit_cost", "capex"
AREA_STEP, POWER_STEP, CACHE_STEP = 0.05, 0.05, 0.25
"""Finite-difference steps of die area, power and cache, over the chip's own. [-]"""


AXES: dict[str, tuple[str, ...]] = {
    "technology": ("4 nm", "3 nm", "2 nm"), "memory_stacks": ("4", "6"), "cache": ("32", "128", "320"),
    "num_dies": ("1", "2"),
}  # fmt: skip
"""Varied entries in the table of the front sheet, with their first values."""


class _Column(NamedTuple):
    """Values of an entry of a form, and which of them are ``auto``."""

    values: list[float | str]
    auto: list[bool]


def varied_forms(form: Table, lines: Sequence[tuple[str, Sequence[str]]], place: str) -> tuple[Table, list[str]]:
    """A form with every combination of values of some entries; the last entry changes fastest.

    ``form``: one row of a question. ``lines``: header of an entry, and its values: numbers, factors as ``x2``,
    ``auto`` and names. Returns the forms and the varied entries. Raises InputError, at ``place``, with every fault.
    """
    columns: dict[str, _Column] = {}
    faults: list[Fault] = []
    for header, words in lines:
        try:
            name, column = _read(form, header, [word.strip() for word in words], place)
            if name in columns:
                raise InputError(Fault(place, f"{name.replace('_', ' ')} is given twice"))
            columns[name] = column
        except InputError as error:
            faults += error.faults
    if faults:
        raise InputError(faults)
    number = int(np.prod([len(column.values) for column in columns.values()], dtype=np.int64))
    if number > MOST_CHIPS:
        raise InputError(Fault(place, f"these are {number:,} rows; a table has {MOST_CHIPS:,} at the most"))
    rows = list(product(*(range(len(column.values)) for column in columns.values())))
    varied = {name: np.repeat(values, number) for name, values in form.columns.items()}
    auto = {name: np.repeat(mask, number) for name, mask in form.auto.items()}
    for (name, column), index in zip(columns.items(), zip(*rows, strict=True), strict=True):
        values = object if table_schema(form.kind).by_name[name].is_text else np.float64
        varied[name] = np.array(column.values, dtype=values)[list(index)]
        auto[name] = np.array(column.auto, dtype=bool)[list(index)]
    known = [name for name in table_schema(form.kind).by_name if name in varied]
    return Table(form.kind, {name: varied[name] for name in known}, lambda _, column: form.place(0, column), auto), [
        *columns
    ]


def first_chips() -> Iterator[Table]:
    """Forms of the table of chips in the shipped workbook, in blocks."""
    lines = [(name.replace("_", " "), values) for name, values in AXES.items()]
    forms, _ = varied_forms(form_of("chip", first_words("chip")), lines, "")
    return (forms.take(slice(start, start + 6)) for start in range(0, len(forms), 6))


def _read(form: Table, header: str, words: Sequence[str], place: str) -> tuple[str, _Column]:
    """An entry and its values."""
    kind, stated = form.kind, [word for word in words if word.casefold() != "auto"]
    if not stated:
        field = next(iter(parse_header(kind, [header]).fields), None)
        if field is None:
            read_variation(kind, [(header, ["1"])], place)  # says which entries there are
            raise InputError(Fault(place, f"unknown entry {header}"))
        name, values = field.column.name, []
    else:
        asked = read_variation(kind, [(header, stated)], place)
        for variation in asked.varied:
            if variation.sheet != kind or variation.shape:
                example = {"chip": "cache=64,128", "serve": "users=1000,5000"}.get(kind, "num accelerators=128,256")
                problem = f"{variation.column.name}: write values of an entry of xlperf {kind}, as {example}; "
                raise InputError(Fault(place, f"{problem}xlperf evaluate varies the sheets"))
        if asked.varied:
            name = asked.varied[0].name
            first = float(form.filled(name)[0])
            if np.isnan(first):
                raise InputError(Fault(place, f"{name.replace('_', ' ')} is auto: write values, no factors"))
            values = (first * asked.varied[0].values).tolist()
        else:
            name, numbers = next(iter(asked.values.items()))
            values = numbers.tolist()
    blank: float | str = "" if table_schema(kind).by_name[name].is_text else np.nan
    if len(stated) < len(words) and name not in auto_columns(kind):
        raise InputError(Fault(place, f"{name.replace('_', ' ')} cannot be auto: write values"))
    auto = [False] * len(values)
    if len(stated) < len(words):
        place_of_auto = [word.casefold() for word in words].index("auto")
        values.insert(place_of_auto, blank)
        auto.insert(place_of_auto, True)
    return name, _Column(values, auto)


def frontier_of(results: Table) -> Array:
    """Pareto frontier of tokens per second against unit cost: 1 on it, 0 for a dominated chip, NaN without an answer.

    ``results``: of kind ``chip_results``. Differences within :data:`ALIKE` do not count.
    """
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


def chip_worth(form: Table, answer: Answer, catalog: Catalog) -> Table:
    """Worth of the next mm2, stack, W and MB of cache: added tokens at equal tokens per dollar of the price.

    Finite differences of the form's answer: every other choice stays, and the area and cost budgets are lifted. If more
    has no room, the result is the worth of the last unit.

    ``form``: one row of kind ``chip``. ``answer``: of the form, with a price. Returns ``chip_worth``.
    """
    fixed = {"num_dies": answer["num_dies"], "die_area": answer["die_area"], "cache": answer["cache"],
            "memory_stacks": answer["memory_stacks"], "area_budget": np.nan, "cost_budget": np.nan}  # fmt: skip
    limit = float(form.number("power_budget")[0])
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
    forms = with_columns(form.take([0] * len(changes)), **{
        name: [change.get(name, stated) for change in changes]
        for name, stated in {**{step.column: form.number(step.column)[0] for step in steps}, **fixed}.items()
    })  # fmt: skip
    result = answers_of(forms, catalog)
    base = result[0]
    lines = [_line(step, base, result[2 * number + 1], result[2 * number + 2]) for number, step in enumerate(steps)]
    known = table_schema("chip_worth").columns
    columns = {
        column.name: np.array([line[column.name] for line in lines], dtype=object if column.is_text else np.float64)
        for column in known
    }
    return Table("chip_worth", columns)


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
        "change": step.words, "step": sign * step.size, "unit": step.unit, "rate": added, "worth": worth,
        "price": price, "verdict": verdict_of(worth, price, up),
    }  # fmt: skip


def verdict_of(worth: float, price: float, has_room: bool) -> str:
    """Whether one more unit pays, in words.

    >>> verdict_of(12.0, 3.0, True), verdict_of(-2.0, 0.0, True), verdict_of(1.0, 3.0, False)
    ('pays', 'less of it pays', 'does not pay; more has no room')
    """
    if worth != worth:
        return "no room for more or less"
    words = (
        "pays" if worth > price else "no use" if worth == 0.0 else "less of it pays" if worth < 0.0 else "does not pay"
    )
    return words if has_room else f"{words}; more has no room"
