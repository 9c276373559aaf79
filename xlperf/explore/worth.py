"""Worth of more of a quantity: the best plan with it and without it, at equal cost per token.

A plan with a request rate runs at the largest rate within its targets and limits: at a given rate the cost of a token
does not depend on the machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import NamedTuple, Unpack

import numpy as np

from xlperf.base.errors import Fault, InputError, nearest
from xlperf.base.units import YEAR
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import Column, results_of, table_schema, unit_of
from xlperf.catalog.table import CASES, Table, uncertain_columns, values_in_case
from xlperf.engine.devices import designs_with_devices
from xlperf.engine.software import peak_names
from xlperf.engine.tables import Progress
from xlperf.equations.cost.tokens import break_even_cost_rate
from xlperf.equations.hardware.derived_device import PEAKS
from xlperf.explore.candidates import Bounds
from xlperf.explore.changed_catalogs import changed_catalog, sheet_rows, with_value
from xlperf.explore.objectives import TARGETS, Limit, Objective, objective_of
from xlperf.explore.search_results import Search
from xlperf.explore.solve import EXACT, best_plan, is_open
from xlperf.explore.vary import Varied, read_variation
from xlperf.explore.workers import worked

STEP = 1.01
"""Default factor of the change. [-]"""
AREA = "die_area"
LONG = 3.0
"""Total time of the searches from which on processes share them: as long as the processes take to start. [s]"""
ROUNDING = 1e-12
"""Relative difference of equal costs through the rounding of sums. [-]"""
SMALL = 0.1
"""Relative size of a small change, for which the last unit is evaluated as well. [-]"""
_WITH_AREA = (*(f"peak_flop_rate_{name}" for name in PEAKS), "l2_capacity", "l2_bandwidth")
RATE = "tokens_per_second_per_accelerator"
MONTH = YEAR / 12.0
"""[s]"""


Change = Varied | Limit
"""A number of the plans or of a catalog sheet with its new value, or a limit to loosen by :data:`STEP`."""


def usual_changes(plan: Table, catalog: Catalog, limits: Sequence[Limit] = ()) -> list[Change]:
    """One per cent more of the stated inputs that dominate most plans, and of every limit.

    Memory bandwidth, memory, peak rate, area of the compute dies (with rates and cache in proportion) and power of the
    accelerators, bandwidth of their links, and the plan's targets and power limit. For derived accelerators: area and
    power of the device, rate and capacity of its memory, and the links.
    """
    (peak,) = peak_names(plan, catalog)
    row = catalog.rows("accelerators", plan.text("accelerator"), plan, "accelerator")
    if catalog.tables["accelerators"].text("device")[row][0]:
        names = [("devices", name) for name in (AREA, "power_budget")]
        names += [("memories", name) for name in ("pin_rate", "layer_capacity")]
    else:
        columns = ("memory_bandwidth", "memory_capacity", peak, AREA, "thermal_design_power")
        names = [("accelerators", name) for name in columns]
    names += [("networks", "link_bandwidth"), (plan.kind, "power_limit")]
    if plan.kind == "inference":
        names += [(plan.kind, name) for name in TARGETS.values()]
    changes = [Varied(sheet, name, np.array([STEP]), True) for sheet, name in names]
    return [*(change for change in changes if _is_stated(plan, catalog, change)), *limits]


def _is_stated(plan: Table, catalog: Catalog, change: Varied) -> bool:
    try:
        return not np.isnan(_stated(plan, catalog, change)).any()
    except InputError:  # an accelerator that follows from no such row
        return False


def read_changes(kind: str, lines: Sequence[tuple[str, Sequence[str]]], place: str) -> list[Varied]:
    """Changes of numbers of the plans or of catalog sheets, from lines of a column and its values; InputError, at
    ``place``, if a line is no list of numbers.
    """
    asked = read_variation(kind, lines, place)
    known = table_schema(kind).by_name
    texts = [name for name in asked.values if known[name].kind != "number"]
    if asked.auto or texts or any(varied.shape or varied.column.kind != "number" for varied in asked.varied):
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
    """``worth`` of more of each number per accelerator and month, with the best plan before and after: a row for each
    change, blank if no plan fits and satisfies the limits.

    The worth is the added cost of an accelerator at which a token costs as much as before, over the change. It is
    exactly 0 if the best plan does not use more. Cells with ``auto`` are chosen anew. For a small change the last unit
    is evaluated as well: if a plan only just fits, one unit less requires another plan.
    """
    cost = objective_of(plan.kind, "cost")
    start = monotonic()
    before = best_plan(plan, catalog, cost.column.name, limits, progress, processes, **bounds)
    asked: list[tuple[int, float, float]] = []  # change, present and new number
    less: list[tuple[int, float, float]] = []  # one unit less, of small changes
    for number, change in enumerate(changes):
        first = change.bound if isinstance(change, Limit) else _first(plan, catalog, change)
        for second in _values(change, first):
            asked.append((number, first, second))
            less += [(number, first, 2.0 * first - second)] if abs(second - first) <= SMALL * abs(first) else []
    tasks = [*asked, *less]
    shared = processes if (monotonic() - start) * len(tasks) > LONG else 1
    searches = _Searches(plan, catalog, limits, cost.column.name, changes, bounds)
    by_task: dict[tuple[int, float, float], Search] = {}
    for task, best in zip(tasks, worked(searches.best, tasks, shared), strict=True):
        by_task[task] = best
        if progress is not None:
            progress(best.num_tried)
    lines = []
    for number, first, second in asked:
        three = before, by_task[number, first, second], by_task.get((number, first, 2.0 * first - second))
        lines.append(_line(plan, changes[number], (first, second), cost, three))
    return Table.of_lines("worth", lines)


class _Searches(NamedTuple):
    """Searches of one plan with other numbers; each process that shares them receives a copy."""

    plan: Table
    catalog: Catalog
    limits: Sequence[Limit]
    objective: str
    changes: Sequence[Change]
    bounds: Bounds

    def best(self, task: tuple[int, float, float]) -> Search:
        """The best plan with one change, given by its number, its present and its new value."""
        number, first, second = task
        changed_plan, known, changed_limits = changed(
            self.plan, self.catalog, self.limits, self.changes[number], first, second
        )
        return best_plan(changed_plan, known, self.objective, changed_limits, **self.bounds)


def _values(change: Change, first: float) -> list[float]:
    """New values of a number."""
    if isinstance(change, Limit):
        return [first * (STEP if change.sign in ("<", "<=") else 2.0 - STEP)]
    return [first * value if change.factors else value for value in change.values.tolist()]


def break_even(
    plan: Table,
    others: Sequence[str],
    catalog: Catalog,
    limits: Sequence[Limit] = (),
    progress: Progress | None = None,
    processes: int = 1,
    **bounds: Unpack[Bounds],
) -> Table:
    """``break_even``: the hourly cost at which other accelerators, each with its default network, make tokens as
    cheaply as a plan's own, with ``auto`` cells chosen for each; blank if no plan fits and satisfies the limits.

    The cost of a token is the cost of an hour over the tokens of an hour: the best plan does not depend on the price,
    which may be unknown.
    """
    cost = objective_of(plan.kind, "cost").column.name

    def best(rival: Table, objective: str) -> Search:
        return best_plan(rival, catalog, objective, limits, progress, processes, **bounds)

    def cost_of(searched: Search) -> float:
        return float(searched.results[cost][0]) if searched.found else np.nan

    here = best(plan, cost)
    lines: list[dict[str, object]] = []
    for other in others:
        swapped = {"accelerator": np.array([other], dtype=object), "network": np.array([""], dtype=object)}
        rival = plan.with_columns(swapped)
        there = best(rival, cost)
        hour = float(there.results["accelerator_hour_cost"][0])
        if hour == hour:
            even = break_even_cost_rate(hour, cost_of(there), cost_of(here))
        else:  # without a price the token rate decides, at one dollar a second
            there = best(rival, RATE)
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
    return Table.of_lines("break_even", lines)


def _line(
    plan: Table,
    change: Change,
    values: tuple[float, float],
    cost: Objective,
    result: tuple[Search, Search, Search | None],
) -> dict[str, object]:
    declared = change.column if isinstance(change, Limit) else change.declared
    unit = unit_of(declared).factor
    first, second = (value / unit for value in values)  # of several network tiers the innermost
    before, after, less = result
    now, then = _cost(before, cost), _cost(after, cost)
    alike = 10.0 * EXACT if is_open(plan) else ROUNDING
    last = np.nan if less is None or not less.found else _gain(less, _cost(less, cost), now, alike) / (second - first)
    if isinstance(change, Limit) and change.sign in (">", ">="):
        last = -last
    same = before.chosen_words == after.chosen_words
    return {
        "plan": str(plan.text("name")[0]) or plan.place(0, "name"),
        "input": declared.header,
        "sheet": "limit" if isinstance(change, Limit) else change.sheet,
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
    """Added monthly cost of an accelerator at which a token costs as before; 0 if costs differ by rounding. [USD]"""
    gain = dear / cheap - 1.0
    return float(cheaper.results["accelerator_hour_cost"][0]) * MONTH * (0.0 if abs(gain) < alike else gain)


def _stated(plan: Table, catalog: Catalog, change: Varied) -> np.ndarray:
    """Value of the plan, or of the catalog row that it names."""
    if change.sheet == plan.kind:
        return plan.number(change.name)
    return np.asarray(catalog.tables[change.sheet].number(change.stored)[sheet_rows(catalog, plan, change)])


def _first(plan: Table, catalog: Catalog, change: Varied) -> float:
    """The present number; InputError if it is blank."""
    result = float(_stated(plan, catalog, change)[0])
    if np.isnan(result):
        name = change.declared.name.replace("_", " ")
        problem = f"{name} of the sheet {change.sheet} is blank: there is no number to change"
        raise InputError(Fault(plan.place(0, change.name if change.sheet == plan.kind else "accelerator"), problem))
    return result


def changed(
    plan: Table, catalog: Catalog, limits: Sequence[Limit], change: Change, first: float, value: float
) -> tuple[Table, Catalog, Sequence[Limit]]:
    """The plan, the catalog and the limits with another number."""
    if isinstance(change, Limit):
        return plan, catalog, [limit._replace(bound=value) if limit == change else limit for limit in limits]
    ratio = value / first
    if (change.sheet, change.name) != ("accelerators", AREA):
        return *with_value(plan, catalog, change, ratio if change.factors else value), limits
    table = catalog.tables["accelerators"]
    rows = sheet_rows(catalog, plan, change)
    names = [name for name in (AREA, *_WITH_AREA) if not np.isnan(table.number(name)[rows]).any()]
    changes = [(Varied("accelerators", name, np.array([ratio]), True), ratio) for name in names]
    return plan, changed_catalog(catalog, plan, changes), limits


MAIN_RESULT = {"chiplets": "bill_of_materials", "servers": "cost_rate"}


def cost_sensitivity(table: Table, catalog: Catalog, result: str = "") -> Table:
    """``cost_sensitivity`` of chiplet designs or servers, for a tornado chart: one result ("" for the bill of materials
    or the hour) at the low and the high value of each uncertain input, the largest swing first, in display units.
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
                tables = (other, catalog) if source is table else (table, catalog.with_tables([other]))
                results[case] = _result(*tables, shown)
            for row in np.flatnonzero(used >= 0).tolist():
                outcome = {case: float(results[case][row]) for case in CASES}
                swing = max(outcome.values()) - min(outcome.values())
                if swing > 0.0:
                    swings.append((row, -swing))
                    line = {"input": header, "sheet": source.kind, "swing": swing}
                    line |= {f"value_{case}": _plain(inputs[case][used[row]] / unit) for case in CASES}
                    lines.append(line | {f"result_{case}": outcome[case] for case in CASES})
    names, ranks = table.text(table.schema.key.name), Counter[int]()
    order = sorted(range(len(lines)), key=swings.__getitem__)
    for place in order:
        row = swings[place][0]
        ranks[row] += 1
        lines[place] |= {"subject": str(names[row]), "result": shown.header, "rank": float(ranks[row])}
    return Table.of_lines("cost_sensitivity", [lines[place] for place in order])


def _result(table: Table, catalog: Catalog, shown: Column) -> np.ndarray:
    """One result of designs or servers, in its display unit."""
    if table.kind == "servers":
        from xlperf.engine.ownership import evaluate_servers

        result = evaluate_servers(table, catalog=catalog)
    else:
        from xlperf.engine.devices import evaluate_designs

        result = evaluate_designs(table, catalog)
    return np.asarray(result[shown.name] / unit_of(shown).factor)


def _sources(table: Table, catalog: Catalog) -> Iterator[tuple[Table, np.ndarray]]:
    """Tables with inputs, and the row that each design or server uses; -1 if it uses none."""
    yield table, np.arange(len(table))
    for kind, cell_column in (("packages", "package"), ("process_nodes", "node")) if table.kind == "chiplets" else ():
        yield catalog.tables[kind], catalog.rows(kind, table.text(cell_column), table, cell_column)


def _plain(value: float) -> float:
    """A number in the precision of a sheet, without rounding residue of unit factors."""
    return float(f"{value:.12g}")
