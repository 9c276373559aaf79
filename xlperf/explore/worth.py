"""What more of something is worth: the best plan with it and without it, at equal cost per token.

A plan with a request rate is judged at the largest rate that keeps its targets and limits: at a given rate a token
costs the same whatever the machine could do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import monotonic
from typing import NamedTuple, Unpack

import numpy as np

from xlperf.base.errors import Fault, InputError, nearest
from xlperf.base.units import YEAR
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import Column, results_of, table_schema, unit_of
from xlperf.catalog.table import CASES, Table, uncertain_columns, values_in_case
from xlperf.engine.devices import designs_with_devices
from xlperf.engine.tables import Progress
from xlperf.equations.cost.tokens import break_even_cost_rate
from xlperf.equations.hardware.derived_device import PEAKS
from xlperf.equations.plan.records import PRECISIONS
from xlperf.explore.candidates import Bounds
from xlperf.explore.changed_catalogs import changed_catalog, sheet_rows, with_value
from xlperf.explore.objectives import TARGETS, Limit, Objective, objective_of
from xlperf.explore.open_loads import EXACT, best_plan, is_open
from xlperf.explore.search_results import Search
from xlperf.explore.vary import Varied, read_variation
from xlperf.explore.workers import worked

STEP = 1.01
"""Factor of the change whose worth is asked if none is stated. [-]"""
AREA = "die_area"
LONG = 3.0
"""Time of all searches from which on processes share them: as long as these take to start. [s]"""
ROUNDING = 1e-12
"""Share by which equal costs may differ, as sums of other numbers round. [-]"""
SMALL = 0.1
"""Share of a number up to which a change is small: what the last unit is worth is then asked as well. [-]"""
_WITH_AREA = (
    *(f"peak_flop_rate_{name}" for name in PEAKS),
    "l2_capacity",
    "l2_bandwidth",
)
RATE = "tokens_per_second_per_accelerator"
MONTH = YEAR / 12.0
"""[s]"""


Change = Varied | Limit
"""A number of the plans or of a catalog sheet with what it changes to, or a limit that is looser by :data:`STEP`."""


def usual_changes(plan: Table, catalog: Catalog, limits: Sequence[Limit] = ()) -> list[Change]:
    """One per cent more of what decides most plans, and of every limit.

    Memory bandwidth, memory, peak rate, area of the compute dies (with rates and cache in proportion) and power of the
    accelerators, bandwidth of their links, and where the plan has them its targets and its power limit. Of accelerators
    that follow from a device area and power of that device, rate and capacity of its memory, and those links.

    ``limits``: what the plans must keep. Returns those of which the sheets have a number to change.
    """
    peak = f"peak_flop_rate_{PRECISIONS[str(plan.filled('precision')[0])].peak}"
    row = catalog.rows("accelerators", plan.text("accelerator"), plan, "accelerator")
    if catalog.tables["accelerators"].text("device")[row][0]:
        names = [
            ("devices", AREA),
            ("devices", "power_budget"),
            ("memories", "pin_rate"),
            ("memories", "layer_capacity"),
        ]
    else:
        own = ("memory_bandwidth", "memory_capacity", peak, AREA, "thermal_design_power")
        names = [("accelerators", name) for name in own]
    names += [("networks", "link_bandwidth"), (plan.kind, "power_limit")]
    if plan.kind == "inference":
        names += [(plan.kind, name) for name in TARGETS.values()]
    changes = [Varied(sheet, name, np.array([STEP]), True) for sheet, name in names]
    return [*(one for one in changes if _is_stated(plan, catalog, one)), *limits]


def _is_stated(plan: Table, catalog: Catalog, one: Varied) -> bool:
    try:
        return not np.isnan(_stated(plan, catalog, one)).any()
    except InputError:  # an accelerator that follows from no such row
        return False


def read_changes(kind: str, lines: Sequence[tuple[str, Sequence[str]]], place: str) -> list[Varied]:
    """Numbers of the plans or of catalog sheets and what they change to, from lines of a column and its values.

    ``lines``: as of :func:`xlperf.explore.vary.read_variation`. ``place``: where they stand, for the messages. Raises
    InputError where one is no list of numbers.
    """
    asked = read_variation(kind, lines, place)
    known = table_schema(kind).by_name
    texts = [name for name in asked.values if known[name].kind != "number"]
    if asked.auto or texts or any(one.shape or one.column.kind != "number" for one in asked.varied):
        raise InputError(Fault(place, "what a change is worth takes numbers, as 'accelerators.memory bandwidth=x1.1'"))
    return [*(Varied(kind, name, values, False) for name, values in asked.values.items()), *asked.varied]


def worth(
    plan: Table,
    catalog: Catalog,
    changes: Sequence[Change],
    limits: Sequence[Limit] = (),
    progress: Progress | None = None,
    processes: int = 1,
    **bounds: Unpack[Bounds],
) -> Table:
    """What more of each number is worth per accelerator and month, with the best plan before and after.

    An accelerator that makes tokens cheaper may cost more until a token costs as much as before: that difference, over
    the change. It is exactly 0 if the best plan does not use more. Cells that say ``auto`` are chosen anew. Of a
    small change what the last unit is worth is asked as well: if a plan only just fits, one less is another plan.

    ``changes``: numbers of the plan or of catalog sheets, with the factors or values that they change to; limits to
    loosen. ``limits``: what the plans must keep, beside their own targets. ``progress``: called with the number of
    plans of each block that is done. ``processes``: processes that share the searches if these take long; the
    answer is the same. ``**bounds``: most candidates of a plan, and most accelerators tried for ``auto``. Returns
    ``worth``: a row for each change, blank if no plan fits and keeps the limits. Raises InputError as
    :func:`xlperf.explore.search.search` and :func:`xlperf.explore.changed_catalogs.changed_catalog`.
    """
    cost = objective_of(plan.kind, "cost")
    start = monotonic()
    before = best_plan(plan, catalog, cost.column.name, limits, progress, processes, **bounds)
    asked: list[tuple[int, float, float]] = []  # change, what the number is now, and what it changes to
    tasks: list[tuple[int, float, float]] = []
    for number, one in enumerate(changes):
        first = one.bound if isinstance(one, Limit) else _first(plan, catalog, one)
        for second in _values(one, first):
            asked.append((number, first, second))
            tasks.append((number, first, second))
            if _is_small(first, second):
                tasks.append((number, first, 2.0 * first - second))
    shared = processes if (monotonic() - start) * len(tasks) > LONG else 1
    searches = _Searches(plan, catalog, limits, cost.column.name, changes, bounds)
    by_name: dict[tuple[int, float, float], Search] = {}
    for task, one_found in zip(tasks, worked(searches.best, tasks, shared), strict=True):
        by_name[task] = one_found
        if progress is not None:
            progress(one_found.num_tried)
    lines: list[dict[str, object]] = []
    for number, first, second in asked:
        three = before, by_name[number, first, second], by_name.get((number, first, 2.0 * first - second))
        lines.append(_line(plan, changes[number], (first, second), cost, three))
    return _table("worth", lines)


class _Searches(NamedTuple):
    """Searches of one plan with other numbers: sent to every process that shares them."""

    plan: Table
    catalog: Catalog
    limits: Sequence[Limit]
    objective: str
    changes: Sequence[Change]
    bounds: Bounds

    def best(self, task: tuple[int, float, float]) -> Search:
        """The best plan with one change: which, what the number is now, and what it changes to."""
        number, first, second = task
        own, known, kept = changed(self.plan, self.catalog, self.limits, self.changes[number], first, second)
        return best_plan(own, known, self.objective, kept, **self.bounds)


def _values(one: Change, first: float) -> list[float]:
    """What a number changes to."""
    if isinstance(one, Limit):
        return [first * (STEP if one.sign in ("<", "<=") else 2.0 - STEP)]
    return [first * value if one.factors else value for value in one.values.tolist()]


def _is_small(first: float, second: float) -> bool:
    return bool(abs(second - first) <= SMALL * abs(first))


def break_even(
    plan: Table,
    others: Sequence[str],
    catalog: Catalog,
    limits: Sequence[Limit] = (),
    progress: Progress | None = None,
    processes: int = 1,
    **bounds: Unpack[Bounds],
) -> Table:
    """At which cost of an hour other accelerators make tokens as cheaply as that of a plan.

    The cost of a token is that of an hour over the tokens of an hour: the best plan does not depend on the price, which
    may be unknown.

    ``plan``: one training or inference plan; its cells that say ``auto`` are chosen for each accelerator. ``others``:
    accelerators, each with its default network. ``limits``: what they must keep. ``progress``: called with the number
    of plans of each block that is done. ``processes``: processes that share a large search. ``**bounds``: most
    candidates of a plan, and most accelerators tried for ``auto``. Returns ``break_even``: a row for each accelerator,
    blank if no plan fits and keeps the limits. Raises InputError as :func:`xlperf.explore.search.search`.
    """
    cost = objective_of(plan.kind, "cost").column.name

    def best(own: Table, objective: str) -> Search:
        return best_plan(own, catalog, objective, limits, progress, processes, **bounds)

    def cost_of(searched: Search) -> float:
        return float(searched.results[cost][0]) if searched.found else np.nan

    here = best(plan, cost)
    lines: list[dict[str, object]] = []
    for other in others:
        swapped = {"accelerator": np.array([other], dtype=object), "network": np.array([""], dtype=object)}
        own = replace(plan, columns={**plan.columns, **swapped})
        there = best(own, cost)
        hour = float(there.results["accelerator_hour_cost"][0])
        if hour == hour:
            even = break_even_cost_rate(hour, cost_of(there), cost_of(here))
        else:  # without a price tokens decide, and what they cost at one dollar a second tells the rest
            there = best(own, RATE)
            made = float(there.results[RATE][0]) if there.found else np.nan
            even = break_even_cost_rate(1.0, 1.0 / made, cost_of(here))
        lines.append(
            {
                "plan": str(plan.text("name")[0]) or plan.place(0, "name"),
                "accelerator": str(plan["accelerator"][0]),
                "against": other,
                "cost": cost_of(here),
                "cost_against": cost_of(there),
                "hour_cost_against": hour,
                "break_even_hour_cost": float(even),
                "chosen": there.chosen_words if there.found else there.words,
            }
        )
    return _table("break_even", lines)


def _table(kind: str, lines: Sequence[dict[str, object]]) -> Table:
    columns = {
        name: np.array([line[name] for line in lines], dtype=object if declared.is_text else np.float64)
        for name, declared in table_schema(kind).by_name.items()
    }
    return Table(kind, columns)


def _line(
    plan: Table,
    one: Change,
    values: tuple[float, float],
    cost: Objective,
    result: tuple[Search, Search, Search | None],
) -> dict[str, object]:
    declared = one.column if isinstance(one, Limit) else one.declared
    unit = unit_of(declared).factor
    first, second = (value / unit for value in values)  # of a network with several tiers that of the innermost
    before, after, less = result
    now, then = _cost(before, cost), _cost(after, cost)
    alike = 10.0 * EXACT if is_open(plan) else ROUNDING
    last = np.nan if less is None or not less.found else _gain(less, _cost(less, cost), now, alike) / (second - first)
    if isinstance(one, Limit) and one.sign in (">", ">="):
        last = -last
    same = before.chosen_words == after.chosen_words
    return {
        "plan": str(plan.text("name")[0]) or plan.place(0, "name"),
        "input": declared.header,
        "sheet": "limit" if isinstance(one, Limit) else one.sheet,
        "value_before": first,
        "value_after": second,
        "cost_before": now,
        "cost_after": then,
        "worth": _gain(after, now, then, alike) / abs(second - first),
        "worth_of_last": abs(last) if last == 0.0 else last,
        "chosen": after.words if not after.found else "the same plan" if same else after.chosen_words,
    }


def _cost(searched: Search, cost: Objective) -> float:
    return float(searched.results[cost.column.name][0]) if searched.found else np.nan


def _gain(cheaper: Search, dear: float, cheap: float, alike: float) -> float:
    """What an accelerator may cost more a month until a token costs as before; nothing if costs differ by rounding.

    ``alike``: share by which equal costs may differ [-]. Returns a number of dollars. [USD]
    """
    gain = dear / cheap - 1.0
    return float(cheaper.results["accelerator_hour_cost"][0]) * MONTH * (0.0 if abs(gain) < alike else gain)


def _stated(plan: Table, catalog: Catalog, one: Varied) -> np.ndarray:
    """Value that the plan, or the catalog row that it names, states."""
    if one.sheet == plan.kind:
        return plan.number(one.name)
    return np.asarray(catalog.tables[one.sheet].number(one.stored)[sheet_rows(catalog, plan, one)])


def _first(plan: Table, catalog: Catalog, one: Varied) -> float:
    """The number that changes; InputError where it is blank."""
    result = float(_stated(plan, catalog, one)[0])
    if np.isnan(result):
        problem = (
            f"{one.declared.name.replace('_', ' ')} of the sheet {one.sheet} is blank: there is no number to change"
        )
        raise InputError(Fault(plan.place(0, one.name if one.sheet == plan.kind else "accelerator"), problem))
    return result


def changed(
    plan: Table, catalog: Catalog, limits: Sequence[Limit], one: Change, first: float, value: float
) -> tuple[Table, Catalog, Sequence[Limit]]:
    """The plan, the catalog and the limits with another number."""
    if isinstance(one, Limit):
        return plan, catalog, [limit._replace(bound=value) if limit == one else limit for limit in limits]
    ratio = value / first
    if (one.sheet, one.name) != ("accelerators", AREA):
        return *with_value(plan, catalog, one, ratio if one.factors else value), limits
    table = catalog.tables["accelerators"]
    rows = sheet_rows(catalog, plan, one)
    names = [name for name in (AREA, *_WITH_AREA) if not np.isnan(table.number(name)[rows]).any()]
    changes = [(Varied("accelerators", name, np.array([ratio]), True), ratio) for name in names]
    return plan, changed_catalog(catalog, plan, changes), limits


MAIN_RESULT = {"chiplets": "bill_of_materials", "servers": "cost_rate"}


def cost_sensitivity(table: Table, catalog: Catalog, result: str = "") -> Table:
    """What the low and the high value of each uncertain input makes of one result: the table of a tornado chart.

    ``table``: chiplet designs or servers. ``catalog``: process nodes and packages that designs name. ``result``: result
    of designs or servers; "" for the bill of materials of a design and the hour of a server. Returns
    ``cost_sensitivity``: per design or server the inputs that have a low or a high value, the one that moves the result
    most first; numbers in the units of their sheets. Raises InputError when there is no such result, or a row has a
    fault.
    """
    kind = table.kind
    known = results_of(kind).by_name
    name = result.strip().casefold().replace(" ", "_") or MAIN_RESULT[kind]
    if name not in known or known[name].is_text:
        numbers = [column.name.replace("_", " ") for column in known.values() if not column.is_text]
        elsewhere = [sheet for sheet in MAIN_RESULT if name in results_of(sheet).by_name]
        hint = f"it is one of the sheet {elsewhere[0]}" if elsewhere else nearest(name, numbers)
        raise InputError(Fault("--tornado", f'"{result}" is no result of {kind}; {hint}'))
    shown = known[name]

    table = designs_with_devices(table, catalog) if kind == "chiplets" else table
    base = _result(table, catalog, shown)
    lines: list[dict[str, object]] = []
    swings: list[tuple[int, float]] = []
    for source, used in _sources(table, catalog):
        for cell_column in uncertain_columns(source):
            header, unit = source.schema.by_name[cell_column].header, unit_of(source.schema.by_name[cell_column]).factor
            inputs = {case: values_in_case(source, cell_column, case) for case in CASES}
            results = {"base": base}
            for case in ("low", "high"):
                other = Table(source.kind, {**source.columns, cell_column: inputs[case]}, source.place)
                own = (other, catalog) if source is table else (table, catalog.with_tables([other]))
                results[case] = _result(*own, shown)
            for row in np.flatnonzero(used >= 0).tolist():
                outcome = {case: float(results[case][row]) for case in CASES}
                swing = max(outcome.values()) - min(outcome.values())
                if swing > 0.0:
                    swings.append((row, -swing))
                    line = {"input": header, "sheet": source.kind, "swing": swing}
                    line |= {f"value_{case}": _plain(inputs[case][used[row]] / unit) for case in CASES}
                    lines.append(line | {f"result_{case}": outcome[case] for case in CASES})
    names = table.text(table.schema.key.name)
    order = sorted(range(len(lines)), key=swings.__getitem__)
    last, rank = -1, 0
    for place in order:
        row = swings[place][0]
        last, rank = row, rank + 1 if row == last else 1
        lines[place] |= {"subject": str(names[row]), "result": shown.header, "rank": float(rank)}
    columns = {
        column.name: np.array(
            [lines[place][column.name] for place in order], dtype=object if column.is_text else np.float64
        )
        for column in table_schema("cost_sensitivity").columns
    }
    return Table("cost_sensitivity", columns)


def _result(table: Table, catalog: Catalog, shown: Column) -> np.ndarray:
    """One result of designs or servers, in the unit in which it is shown."""
    if table.kind == "servers":
        from xlperf.engine.ownership import evaluate_servers

        result = evaluate_servers(table, catalog=catalog)
    else:
        from xlperf.engine.devices import evaluate_designs

        result = evaluate_designs(table, catalog)
    return np.asarray(result[shown.name] / unit_of(shown).factor)


def _sources(table: Table, catalog: Catalog) -> list[tuple[Table, np.ndarray]]:
    """Tables with inputs, and the row of them that each design or server uses; -1 where it uses none."""
    sources = [(table, np.arange(len(table)))]
    for kind, cell_column in (("packages", "package"), ("process_nodes", "node")) if table.kind == "chiplets" else ():
        sources.append((catalog.tables[kind], catalog.rows(kind, table.text(cell_column), table, cell_column)))
    return sources


def _plain(value: float) -> float:
    """A number as a sheet shows it, without what a factor of a unit leaves in the last digits."""
    return float(f"{value:.12g}")
