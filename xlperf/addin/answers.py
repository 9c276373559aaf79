"""Answers of worksheet functions: the block of cells of each kind of answer, from the arguments of a call by kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from xlperf.addin.cells import (
    Block,
    CellError,
    FunctionError,
    Plans,
    block_of,
    chosen_columns,
    given_block,
    is_auto,
    position_of,
    read_plans_of,
    shown_column,
    words_of,
)
from xlperf.addin.functions import Argument, Function
from xlperf.addin.handles import with_blocks
from xlperf.base.errors import InputError, nearest
from xlperf.base.units import UNITS, YEAR
from xlperf.catalog.catalog import part_of
from xlperf.catalog.cells import parse_header, shown
from xlperf.catalog.schema import FORMS, Column, questions, results_of, split_header, unit_of

if TYPE_CHECKING:
    from xlperf.addin.worker import Keyed, Session
    from xlperf.catalog.catalog import Catalog
    from xlperf.catalog.table import Table
    from xlperf.explore.uncertainty import Uncertainty
    from xlperf.explore.vary import Variation


MOST_IN_CELLS = 200_000  # plans that the cells with auto of a plan may stand for: a few seconds of work
_FORM = re.compile(rf'^({"|".join(FORMS)})( "[^"]*")?, ')
MOST_WORDS = 180  # letters of a fault that the line of an answer has room for

Given = Mapping[str, Any]


def _quantity(session: Session, function: Function, given: Given) -> Block:
    result = given.get("quantity", function.result)
    session.compares |= (function.rows, result) == ("serve", "others")
    outcome = session.outcome(given["rows"], given["catalog"])
    if function.rows in FORMS and result in questions()[function.rows].tables:
        return _as_block(session.engine.table(read_plans_of(given["rows"]), result, given["catalog"][1]))
    if result == "answer":
        cells = outcome.column(result)
        return _column([f"No answer: {_in_short(c.message)}" if isinstance(c, CellError) else c for c in cells])
    return _column(outcome.words() if (function.rows, result) == ("chiplets", "reason") else outcome.column(result))


def _in_short(message: str) -> str:
    """A fault of a form in a line: without the name of the form, cut at a list."""
    words = re.sub(r"^([^:]{1,60}): (?=\1 )", "", _FORM.sub("", message))
    return words if len(words) <= MOST_WORDS else f"{words[: MOST_WORDS - 4].rpartition(' ')[0]} ..."


def _results(session: Session, _: Function, given: Given) -> Block:
    plans: Plans = given["rows"]
    columns = chosen_columns(plans, given["results"])
    asked = frozenset(one.name for one in columns if one.is_result)
    outcome = session.outcome(plans, given["catalog"], asked if given["results"] else None)
    cells = [
        outcome.column(one.name) if one.is_result else _resolved(session, plans, one, given["catalog"])
        for one in columns
    ]
    return _side_by_side(columns, cells)


def _named(session: Session, function: Function, given: Given) -> Block:
    """Results by name, a column each, in the unit that a name states."""
    plans: Plans = given["rows"]
    names: list[str] = given["results"]
    try:
        if not names:
            raise FunctionError("#VALUE!", "result is missing; name one, as step time or ttft")
        columns = chosen_columns(plans, names)
        scales = [_scale(name, column) for name, column in zip(names, columns, strict=True)]
    except (FunctionError, InputError) as error:
        words = words_of(error) if isinstance(error, InputError) else error.error.message
        session.misuse(plans, f"{function.name}: {words}")
        raise
    rows = _results(session, function, {**given, "results": names})[1:]
    return [
        [
            cell * scale if isinstance(cell, float) and scale != 1.0 else cell
            for cell, scale in zip(row, scales, strict=True)
        ]
        for row in rows
    ]


def _scale(name: str, column: Column) -> float:
    """Factor from the unit of a column to the unit in the name by which a cell asks for it."""
    symbol = split_header(name)[1]
    if symbol is None or symbol == column.unit:
        return 1.0
    own, other = unit_of(column), UNITS.get(symbol)
    if other is None or other.dimension != own.dimension or not column.is_result:
        raise FunctionError("#VALUE!", f'"{name.strip()}": {column.header} has no unit {symbol}')
    return own.factor / other.factor


def _resolved(session: Session, plans: Plans, column: Column, catalog: Keyed) -> list[Any]:
    """Cells of a column of the plans, with the choices for ``auto``."""
    place = position_of(plans, column.name)
    cells = ["" if row[place] is None else row[place] for row in plans.rows]
    for number, cell in enumerate(cells):
        if is_auto(cell):
            with suppress(InputError):  # the results of the row say what is wrong with it
                table = session.engine.resolve(read_plans_of(plans, number, number + 1), catalog[1])
                cells[number] = _plan_cells(table, column.name)[0]
    return cells


def _search(session: Session, _: Function, given: Given) -> Block:
    from xlperf.explore.candidates import with_auto, with_mapping
    from xlperf.explore.objectives import LIMITED_BY, limits_of
    from xlperf.explore.search import SHOWN, search

    plan = read_plans_of(given["rows"])
    asked = _columns_of_plans(plan.kind, given)
    plan = with_auto(plan, asked.auto, "vary")
    plan = plan if plan.auto or asked.values else with_mapping(plan)
    if not plan.auto and not asked.values:
        raise FunctionError("#VALUE!", "no cell of the plan says auto: write it where a value is to be chosen")
    goals = [text for text in given["text"].split(",") if text.strip()]
    limits = limits_of(plan.kind, given["limits"], "limits", owned=True)
    answer = search(
        plan,
        given["catalog"][1],
        (*goals, "")[0],
        limits,
        asked.values,
        given["count"],
        rivals=goals[1:],
        most=MOST_IN_CELLS,
    )
    if not answer.found:
        raise FunctionError("#N/A", answer.words)
    known = answer.results.schema.by_name
    wanted = [one.column.name for one in (answer.objective, *answer.rivals)]
    wanted += [limit.column.name for limit in answer.limits]
    names = list(dict.fromkeys(name for name in (*wanted, *SHOWN[plan.kind]) if name in known))
    cells = [_plan_cells(answer.plans, name) for name in answer.searched]
    cells += [shown_column(answer.results, name) for name in names]
    columns = [plan.schema.by_name[name] for name in answer.searched] + [known[name] for name in names]
    return _side_by_side([*columns, LIMITED_BY], [*cells, answer.limited_by.tolist()])


def _columns_of_plans(kind: str, given: Given) -> Variation:
    """The varied columns, which must be columns of the plans."""
    from xlperf.explore.vary import read_variation

    asked = read_variation(kind, _lines(given), "vary")
    if asked.varied:
        raise FunctionError("#VALUE!", f"vary: {asked.varied[0].column.name}: write values of a column of the plans")
    return asked


def _diagnosis(session: Session, _: Function, given: Given) -> Block:
    from xlperf.explore.diagnose import diagnose, read_measured
    from xlperf.explore.remedy import remedy

    if not given["measured"]:
        raise FunctionError("#VALUE!", "nothing was measured: give a result and its number, as step time and 38")
    plan, catalog = read_plans_of(given["rows"]), given["catalog"][1]
    readings = read_measured(plan.kind, given["measured"], given["before"])
    plan = session.engine.resolve(plan, catalog)
    diagnosis = diagnose(plan, catalog, readings)
    measured = [reading.measured for reading in diagnosis.readings] if diagnosis.near else ()
    lines = remedy(plan, catalog, measured).lines
    if not len(diagnosis.explanations):
        return _column([*(reading.words for reading in diagnosis.readings), *lines])
    table = diagnosis.explanations
    block = _side_by_side(table.schema.columns, [shown_column(table, name) for name in table.columns])
    return [*block, *(["", line, *[""] * (len(block[0]) - 2)] for line in lines)]


def _frontier(session: Session, _: Function, given: Given) -> Block:
    """Points of a frontier; a chart asks for them cell by cell."""
    plans: Plans = given["rows"]
    part = part_of(given["catalog"][1], read_plans_of(plans))
    key = plans, repr((given["vary"], given["results"]))
    known = session.frontiers.setdefault(part, {})
    if key not in known:
        known[key] = _points(plans, part, given)
    return known[key]


def _points(plans: Plans, catalog: Catalog, given: Given) -> Block:
    from xlperf.explore.candidates import with_auto
    from xlperf.explore.sweep import SHOWN, distinguishing_columns, frontier

    asked = _columns_of_plans(plans.kind, given)
    values = asked.values
    table = with_auto(read_plans_of(plans), asked.auto, "vary")
    points, reached = answer = frontier(table, catalog, values)
    if not len(points):
        raise FunctionError("#N/A", "no plan at no load is legal, fits in memory and keeps the targets")
    if given["results"]:
        columns = chosen_columns(replace(plans, header=tuple(points.columns)), given["results"])
    else:
        inputs = distinguishing_columns(answer, {**table.auto, **values}, named=len(table) > 1)
        known = results_of(plans.kind).by_name
        columns = [points.schema.by_name[name] for name in inputs] + [known[name] for name in SHOWN]
    cells = [
        shown_column(reached, one.name) if one.is_result else _without_errors(shown_column(points, one.name))
        for one in columns
    ]
    return _side_by_side(columns, cells)


def _drawn(session: Session, given: Given, banded: bool = True) -> Uncertainty:
    """Plans with their uncertain inputs; a sensitivity without inputs varies the usual ones."""
    from xlperf.explore.objectives import limits_of
    from xlperf.explore.sweep import Sweep
    from xlperf.explore.uncertainty import DRAWS, Uncertainty, sheet_ranges, usual_ranges
    from xlperf.explore.vary import LATIN_HYPERCUBE, Sampling, read_variation

    catalog = given["catalog"][1]
    plans = session.engine.resolve(read_plans_of(given["rows"]), catalog)
    asked = read_variation(plans.kind, _lines(given), "vary")
    if asked.auto:
        raise FunctionError("#VALUE!", f"{asked.auto[0]} is auto: write a range, or auto in the plans")
    varied = asked.varied if banded or asked.varied or asked.values else usual_ranges(plans, catalog)
    varied = (*varied, *sheet_ranges(plans, catalog, varied))
    sweep = Sweep(plans, catalog, asked.values, varied, Sampling(DRAWS, LATIN_HYPERCUBE))
    limits = tuple(limits_of(plans.kind, given.get("limits", ()), "limits"))
    return Uncertainty(sweep, given["text"] or "cost", banded, limits=limits)


def _lines(given: Given) -> list[tuple[str, list[str]]]:
    """Columns and their values or ranges, as a command line has them."""
    return [(str(name), [str(cell) for cell in cells]) for name, cells in given["vary"]]


def _as_block(table: Table) -> Block:
    """A table with its header; missing values, such as the k of a norm, are empty."""
    columns = [column for column in table.schema.columns if column.name in table]
    return _side_by_side(columns, [_without_errors(shown_column(table, column.name)) for column in columns])


def _worth(session: Session, _: Function, given: Given) -> Block:
    from xlperf.explore.objectives import limits_of
    from xlperf.explore.search import stacked
    from xlperf.explore.solve import read_changes, usual_changes, worth

    catalog, plans = given["catalog"][1], read_plans_of(given["rows"])
    changes = read_changes(plans.kind, _lines(given), "changes")
    each = [plans.take([row]) for row in range(len(plans))]
    limits = limits_of(plans.kind, given["limits"], "limits")
    tables = [worth(plan, catalog, changes or usual_changes(plan, catalog, limits), limits) for plan in each]
    return _as_block(stacked(tables))


def _check(session: Session, function: Function, given: Given) -> Block:
    checked = given["plan or table"]
    if isinstance(checked, Plans):
        own = [shown(checked.header[position]) for position in parse_header(checked.kind, checked.header).own]
        more = f"; not read: {', '.join(own)}" if own else ""
        more += f"; {session.misused[checked]}" if checked in session.misused else ""
        return _column(f"{words}{more}" for words in session.outcome(checked, given["catalog"]).cells(function))
    known: Catalog = given["catalog"][1]
    before = set(known.orphans.faults)
    faults = [fault for fault in with_blocks(known, [checked]).orphans.faults if fault not in before]
    return [[words_of(InputError(faults)) if faults else "ok"]]


def _column(cells: Iterable[Any]) -> Block:
    return [[cell] for cell in cells]


def _side_by_side(columns: Sequence[Column], cells: Sequence[Sequence[Any]]) -> Block:
    """A header row with units, and columns of cells below it."""
    return [[column.header for column in columns], *(list(row) for row in zip(*cells, strict=True))]


def _without_errors(cells: Sequence[Any]) -> list[Any]:
    return ["" if isinstance(cell, CellError) else cell for cell in cells]


def _plan_cells(plans: Table, name: str) -> list[Any]:
    """Cells of a column of plans without units: numbers, words, TRUE and FALSE; blanks are empty."""
    values = plans[name].tolist() if name in plans else [""] * len(plans)
    flag = plans.schema.by_name[name].kind == "flag"
    return ["" if value != value else bool(value) if flag else value for value in values]


ANSWERS: Mapping[str, Callable[[Session, Function, Given], Block]] = {
    "handle": lambda session, _, given: [[session.put(given["tables"])]],
    "quantity": _quantity,
    "results": _results,
    "named": _named,
    "operators": lambda session, _, given: _as_block(
        session.engine.explain(read_plans_of(given["rows"]), given["catalog"][1])
    ),
    "search": _search,
    "frontier": _frontier,
    "diagnosis": _diagnosis,
    "uncertainty": lambda session, _, given: _as_block(_drawn(session, given).summary()),
    "sensitivity": lambda session, _, given: _as_block(_drawn(session, given, banded=False).effects()),
    "worth": _worth,
    "check": _check,
}
"""What answers a function, by its answer in the registry, excluding one result of each plan and equations."""


BUILDING_LIFE = 15.0 * YEAR
MOST_CELLS = 4_000_000  # cells that one call may fill


class Numbers(NamedTuple):
    """Cells of one argument in the unit used inside, NaN for bad cells."""

    values: np.ndarray
    faults: np.ndarray  # number of the fault of each cell in ``words``, -1 for none
    words: list[str]


def equations() -> Mapping[str, Callable[..., Any]]:
    """What computes the functions of the registry whose answer is ``equation``, with their arguments in order."""
    from xlperf.equations.cost import dies, tco

    def die_yield(area: Any, density: Any, model: str, clustering: Any, ratio: Any, layers: Any) -> Any:
        return dies.die_yield(model, dies.critical_defects(area, density, ratio), clustering, layers)

    def hour_cost(
        capex: Any,
        life: Any,
        rate: Any,
        power: Any,
        effectiveness: Any,
        energy: Any,
        used: Any,
        upkeep: Any,
        facility: Any,
        residual: Any,
    ) -> Any:
        recovery = tco.capital_recovery_rate(rate, life, residual)
        building = tco.capital_recovery_rate(rate, BUILDING_LIFE)
        return tco.owned_cost_rate(capex, recovery, facility, building, upkeep, 0.0, power, effectiveness, energy, used)

    return {
        "XLPERF_DIES_PER_WAFER": lambda *sizes: dies.dies_by_rule(sizes[-1], *sizes[:-1]),
        "XLPERF_DIE_YIELD": die_yield,
        "XLPERF_DIE_COST": lambda price, count, passed, sort: dies.good_die_cost(
            dies.raw_die_cost(price, count), sort, passed
        ),
        "XLPERF_HOUR_COST": hour_cost,
    }


def equation_block(function: Function, inputs: Sequence[Numbers | str]) -> Block:
    """Cells of an equation whose arguments broadcast; a bad cell gives an error in its own cell."""
    given = [one for one in inputs if isinstance(one, Numbers)]
    try:
        shape = np.broadcast_shapes(*(one.values.shape for one in given))
    except ValueError:
        shapes = dict.fromkeys(one.values.shape for one in given if one.values.size > 1)
        sizes = ", ".join(f"{rows} x {columns}" for rows, columns in shapes)
        words = f"ranges of {sizes} cells do not go together; give a column and a row, or ranges of one size"
        raise FunctionError("#VALUE!", words) from None
    if np.prod(shape, dtype=float) > MOST_CELLS:
        raise FunctionError("#VALUE!", f"a table of {shape[0]:,} x {shape[1]:,} cells is more than {MOST_CELLS:,}")
    with np.errstate(all="ignore"):
        values = [one.values if isinstance(one, Numbers) else one for one in inputs]
        numbers = np.broadcast_to(equations()[function.name](*values), shape) / UNITS[function.unit].factor
    block: Block = [
        [cell if np.isfinite(cell) else CellError("#NUM!", "these numbers have no result") for cell in row]
        for row in numbers.tolist()
    ]
    for one in given:
        if one.words:
            spread = np.broadcast_to(one.faults, shape)
            for row, column in np.argwhere(spread >= 0).tolist():
                block[row][column] = CellError("#VALUE!", one.words[spread[row, column]])
    return block


def read_choice(argument: Argument, cells: Any) -> str:
    """The word of a choice; a blank cell gives the default."""
    block = given_block(cells)
    if not block:
        return argument.default
    given = block[0][0] if len(block) == len(block[0]) == 1 else None
    word = str(given).strip().casefold().replace(" ", "-")
    if word not in argument.choices:
        got = shown(given) if given is not None else "a range"
        raise FunctionError(
            "#VALUE!",
            f"{argument.name} must be one of {', '.join(argument.choices)}, got {got}; "
            f"{nearest(word, argument.choices, 1)}",
        )
    return word


def read_numbers(argument: Argument, cells: Any) -> Numbers:
    """Numbers of the cells of one argument; blank cells give the default."""
    block = block_of(cells)
    if not block:
        if not argument.default:
            raise FunctionError("#VALUE!", f"{argument.name} must be given: {argument.bounds_text}")
        block = [[float(argument.default)]]
    low, high, exclusive = argument.limits
    values, faults = np.full((len(block), len(block[0])), np.nan), np.full((len(block), len(block[0])), -1)
    words: list[str] = []
    for row, across in enumerate(block):
        for column, cell in enumerate(across):
            if isinstance(cell, float) and (cell > low if exclusive else cell >= low) and cell <= high:
                values[row, column] = cell
                continue
            faults[row, column] = len(words)
            got = "an empty cell" if cell is None else shown(cell)
            words.append(f"{argument.name} must be {argument.bounds_text}, got {got}")
    with np.errstate(over="ignore"):
        return Numbers(values * UNITS[argument.unit].factor, faults, words)
