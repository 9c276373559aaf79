"""What worksheet functions compute: cells in, cells out, one evaluation per plan.

A host hands over a function name and its arguments as cell values; a :class:`Session` answers with a block of cell
values. Two tables at the end say which reader each kind of argument has, and which handler each kind of answer.
Nothing here raises for bad input: a cell that cannot be shown is a :class:`CellError` with a code and words.
"""

from __future__ import annotations

import sys
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from xlperf.addin.cells import (
    Block,
    CellError,
    FunctionError,
    Outcome,
    Outcomes,
    Plans,
    block_of,
    chosen_columns,
    given_block,
    position_of,
    read_block,
    read_plans_of,
    read_table,
    shown_column,
    words_of,
)
from xlperf.addin.equations import equation_block, read_choice, read_numbers
from xlperf.addin.functions import STAND_INS, Argument, Function, functions
from xlperf.addin.handles import HANDLE_PREFIX, CatalogStore, UnknownHandleError, content_of, handle_of
from xlperf.base.errors import Fault, InputError, nearest
from xlperf.catalog.cells import is_blank, shown, table_kind
from xlperf.catalog.part import part_of
from xlperf.catalog.schema import EVERY_TABLE, FORMS, PLAN_TABLES, Column, results_of, split_header, table_schema
from xlperf.catalog.table import CASES

if TYPE_CHECKING:
    from xlperf.catalog.catalog import Catalog
    from xlperf.catalog.table import Table
    from xlperf.explore.diagnose import Diagnosis
    from xlperf.explore.found import Search
    from xlperf.explore.uncertainty import Uncertainty

MOST_IN_CELLS = 200_000
"""Plans that the cells with auto of a plan may stand for: a few seconds of work."""
TOP_PLANS = 10
MOST_WORDS = 180
"""Letters of a fault that the line of an answer has room for."""
MOST_CATALOGS_KEPT = 8
RECALCULATE = "recalculate all (Ctrl+Shift+F9 in LibreOffice, Ctrl+Alt+F9 in Excel)"

Keyed = tuple[str, "Catalog"]
"""A catalog with its handle; "" for the installed one."""


class Engine:
    """The calls that a session makes into xlperf; a test may put its own in place."""

    def installed(self) -> Catalog:
        """The catalog that xlperf ships."""
        from xlperf.catalog.catalog import load_catalog

        return load_catalog()

    def evaluate(self, rows: Table, catalog: Catalog) -> Table:
        """Results of plans, or of rows of another kind.

        Plans with ``auto`` are searched, and the reason says what was chosen.
        """
        if rows.kind not in PLAN_TABLES:
            return self._evaluate_others(rows, catalog)
        if rows.auto:
            from xlperf.explore.auto import evaluate_resolved

            return evaluate_resolved(rows, catalog, most=MOST_IN_CELLS)[1]
        from xlperf.engine import evaluate

        return evaluate(rows, catalog)

    @staticmethod
    def _evaluate_others(rows: Table, catalog: Catalog) -> Table:
        from xlperf.engine.designs import evaluate_designs
        from xlperf.engine.devices import evaluate_devices
        from xlperf.engine.operations import evaluate_operations
        from xlperf.engine.ownership import evaluate_servers

        if rows.kind in FORMS:
            from xlperf.explore.forms import evaluate_forms

            return evaluate_forms(rows, catalog)
        if rows.kind == "servers":
            return evaluate_servers(rows.in_case(catalog.case))
        if rows.kind == "chiplets":
            return evaluate_designs(rows.in_case(catalog.case), catalog)
        return (evaluate_devices if rows.kind == "devices" else evaluate_operations)(rows, catalog)

    def resolve(self, plans: Table, catalog: Catalog) -> Table:
        """Plans with the value that a search chooses in the place of every ``auto``."""
        from xlperf.explore.auto import resolve

        return resolve(plans, catalog, most=MOST_IN_CELLS).plans

    def search(self, plan: Table, catalog: Catalog, objective: str, top: int) -> Search:
        """The best of what a plan stands for."""
        from xlperf.explore.search import search

        return search(plan, catalog, objective, top=top, most=MOST_IN_CELLS)

    def frontier(self, plans: Table, catalog: Catalog, values: Mapping[str, Any]) -> tuple[Table, Table]:
        """Plans and results of the points of the Pareto frontier."""
        from xlperf.explore.frontier import frontier

        return frontier(plans, catalog, values)

    def diagnose(self, plan: Table, catalog: Catalog, measured: Sequence[str], before: Sequence[str]) -> Diagnosis:
        """What would explain that a run is slower or faster than its plan."""
        from xlperf.explore.diagnose import diagnose, read_measured

        readings = read_measured(plan.kind, measured, before)
        return diagnose(self.resolve(plan, catalog) if plan.auto else plan, catalog, readings)

    def explain(self, plans: Table, catalog: Catalog) -> Table:
        """Operators of one plan."""
        from xlperf.engine import explain

        return explain(self.resolve(plans, catalog) if plans.auto else plans, catalog)


class Session:
    """State of one host: catalogs by handle and the results of recent plans.

    Parameters
    ----------
    store : CatalogStore, optional
        Where tables that cells name are kept.
    engine : Engine, optional
        What computes.
    """

    def __init__(self, store: CatalogStore | None = None, engine: Engine | None = None) -> None:
        self.engine = engine or Engine()
        self._store = store or CatalogStore()
        self._installed: Catalog | None = None
        self._catalogs: OrderedDict[str, Catalog] = OrderedDict()
        self._outcomes = Outcomes()
        self.frontiers: WeakKeyDictionary[Catalog, dict[object, Block]] = WeakKeyDictionary()

    def call(self, name: str, arguments: Sequence[Any]) -> Block:
        """Block of cells that a worksheet function shows.

        Parameters
        ----------
        name : str
            ``XLPERF_STEP_TIME`` ...
        arguments : sequence
            Each a cell value, None where it is left out, or a sequence of rows.

        Returns
        -------
        list of list
            Numbers, texts, flags and :class:`CellError`; one row and column at least.
        """
        function = functions().get(name)
        try:
            if function is None:
                raise FunctionError("#NAME?", f"unknown function {name}; run `xlperf install` again")
            return self._answered(function, arguments)
        except FunctionError as error:
            found = error.error
        except InputError as error:
            found = CellError("#VALUE!", words_of(error))
        except Exception as error:
            traceback.print_exc(file=sys.stderr)  # the log of the worker
            found = CellError("#VALUE!", f"internal error of xlperf: {type(error).__name__}: {error}")
        return [[found.message if function is not None and function.says_faults else found]]

    def others(self, name: str, arguments: Sequence[Any], rows: Sequence[Sequence[Any]]) -> list[Any]:
        """Cells that a function shows for other plans under the header of a call, evaluated together.

        Parameters
        ----------
        name : str
            A function that shows one cell for a plan.
        arguments : sequence
            Those of the call: plan, catalog, header.
        rows : sequence of sequence
            Cells of each plan.

        Returns
        -------
        list
            One cell per row; None for a row that needs a call of its own: blank, faulty or to be searched.
        """
        cells: list[Any] = [None] * len(rows)
        function = functions().get(name)
        sure = [number for number, row in enumerate(rows) if not any(map(_is_auto, row))]
        if function is None or not function.is_per_plan or not sure:
            return cells
        with suppress(FunctionError, InputError):  # the call itself says what is wrong
            _, catalog, header = [*arguments, None, None][:3]
            key, content = self.catalog(catalog)
            plans = read_block([rows[number] for number in sure], header)
            outcomes = self._outcomes.together(key, plans, lambda table: self.engine.evaluate(table, content))
            for number, outcome in zip(sure, outcomes, strict=False):  # blank rows at the end are no plans
                cells[number] = None if outcome is None else _cells_of(function, outcome)[0]
        return cells

    def _answered(self, function: Function, arguments: Sequence[Any]) -> Block:
        known = function.arguments
        if known[-1].kind == "tables":
            arguments = [list(arguments)]
        elif len(arguments) > len(known):
            raise FunctionError("#VALUE!", f"{function.name} has {len(known)} arguments, got {len(arguments)}")
        cells = {argument.name: cell for argument, cell in zip_longest(known, arguments)}
        read = ((argument.kind, READERS[argument.kind](self, function, argument, cells)) for argument in known)
        if function.answer == "equation":
            return equation_block(function, [value for _, value in read])
        return ANSWERS[function.answer](self, function, dict(read))

    # --- catalogs

    def install(self, catalog: Catalog) -> None:
        """Take a catalog for the one that is meant where cells name none."""
        if self._installed is not catalog:
            self._installed, self._outcomes = catalog, Outcomes()

    def put(self, blocks: Sequence[Block]) -> str:
        """Handle of the installed catalog with these tables in the place of its own."""
        handle = handle_of(content_of(blocks))
        if handle not in self._catalogs:
            self._remember(handle, with_blocks(self._installed_catalog(), blocks))
        return self._store.put(blocks)

    def catalog(self, cells: Any) -> Keyed:
        """The catalog that cells name; the installed one where they are blank."""
        block = block_of(cells)
        handle = block[0][0] if block else None
        if is_blank(handle) or handle == 0:  # an empty cell arrives as 0 in LibreOffice
            return "", self._installed_catalog()
        if not isinstance(handle, str) or not handle.strip().startswith(HANDLE_PREFIX) or len(block) > 1:
            raise FunctionError("#VALUE!", f"catalog must be what XLPERF_CATALOG returned, got {shown(handle)}")
        handle = handle.strip()
        if handle not in self._catalogs:
            try:
                blocks = self._store.get(handle)
            except UnknownHandleError:
                raise FunctionError("#REF!", f"the catalog {handle} is not known here; {RECALCULATE}") from None
            self._remember(handle, with_blocks(self._installed_catalog(), blocks))
        self._catalogs.move_to_end(handle)
        return handle, self._catalogs[handle]

    def outcome(self, plans: Plans, catalog: Keyed) -> Outcome:
        """Results of plans or other rows, evaluated once."""
        key, content = catalog
        return self._outcomes.of(key, plans, lambda table: self.engine.evaluate(table, content))

    def _remember(self, handle: str, catalog: Catalog) -> None:
        self._catalogs[handle] = catalog
        while len(self._catalogs) > MOST_CATALOGS_KEPT:
            self._catalogs.popitem(last=False)

    def _installed_catalog(self) -> Catalog:
        if self._installed is None:
            self._installed = self.engine.installed()
        return self._installed


def with_blocks(catalog: Catalog, blocks: Sequence[Block]) -> Catalog:
    """A catalog with tables of cells in the place of its own, in the case that a single cell names."""
    tables: dict[str, Table] = {}
    case = "base"
    for block in blocks:
        if _is_case(block):
            case = str(block[0][0])
            continue
        kind = table_kind(block[0])
        if kind not in EVERY_TABLE:
            raise InputError(Fault("", "XLPERF_CATALOG takes catalog tables, got a table of plans"))
        if kind in tables:
            raise InputError(Fault("", f"two tables of {kind} were given to XLPERF_CATALOG"))
        tables[kind] = read_table(kind, block[0], block[1:])
    return catalog.with_tables(list(tables.values())).in_case(case)


def _is_case(block: Block) -> bool:
    return len(block) == 1 and len(block[0]) == 1 and block[0][0] in CASES


# --- readers: the cells of an argument, by its kind ------------------------------------------------------------------


_PLANS = ("plans", "plan", *PLAN_TABLES)


def _read_rows(_: Session, function: Function, argument: Argument, cells: Mapping[str, Any]) -> Plans:
    kind = "" if function.rows in _PLANS else function.rows
    plans = read_block(cells[argument.name], cells["header"], kind)
    if function.rows in PLAN_TABLES and plans.kind != function.rows:
        problem = f"these are {plans.kind} plans, {function.name} takes {function.rows} plans"
        raise FunctionError("#VALUE!", f"{problem}; use XLPERF_{plans.kind.upper()}")
    if function.rows == "plan" and len(plans.rows) != 1:
        raise FunctionError("#VALUE!", f"{function.name} takes one plan, got {len(plans.rows)}")
    return plans


def _read_plan_or_table(session: Session, function: Function, argument: Argument, cells: Mapping[str, Any]) -> Any:
    """A catalog table as a block; everything else as plans."""
    block = block_of(cells[argument.name])
    if block and len(block[0]) > 2 and not block_of(cells["header"]):
        names = {split_header(cell)[0] for cell in block[0] if isinstance(cell, str)}
        keys = {table_schema(kind).key.name for kind in EVERY_TABLE}
        if not {"model", "accelerator"} <= names and names & keys and table_kind(block[0]) in EVERY_TABLE:
            return block
    return _read_rows(session, function, argument, cells)


def _read_tables(_: Session, function: Function, argument: Argument, cells: Mapping[str, Any]) -> list[Block]:
    blocks = [block for block in map(block_of, cells[argument.name]) if block and block != [[CASES[1]]]]
    if not blocks:
        raise FunctionError("#VALUE!", f"give {function.name} at least one table with its header row")
    return blocks


def _read_names(_: Session, __: Function, argument: Argument, cells: Mapping[str, Any]) -> list[str]:
    """Names of results: one per cell, or several with commas between."""
    stated = [cell for row in block_of(cells[argument.name]) for cell in row if not is_blank(cell) and cell != 0]
    return [part for cell in stated for part in str(cell).split(",") if part.strip()]


def _read_quantity(_: Session, function: Function, argument: Argument, cells: Mapping[str, Any]) -> str:
    """Result of designs, servers, devices or operations that a cell names; that of the function where it is blank."""
    block = given_block(cells[argument.name])
    if not block:
        if not function.result:
            problem = f"{argument.name} is missing; name one result of {function.rows}, as memory bandwidth"
            raise FunctionError("#VALUE!", problem)
        return function.result
    known = results_of(function.rows).by_name
    name = split_header(str(block[0][0]))[0]
    if len(block) > 1 or len(block[0]) > 1 or name not in known:
        hint, what = nearest(name, known).replace("_", " "), function.rows.replace("chiplets", "designs")
        problem = f"{argument.name} must be the name of one result of {what}, got {shown(block[0][0])}; {hint}"
        raise FunctionError("#VALUE!", problem)
    return name


def _read_lines(_: Session, __: Function, argument: Argument, cells: Mapping[str, Any]) -> list[tuple[Any, Block]]:
    """Columns to vary: the first cell of each row and the others that are not blank."""
    rows = [row for row in given_block(cells[argument.name]) if not all(is_blank(cell) for cell in row)]
    return [(row[0], [cell for cell in row[1:] if not is_blank(cell)]) for row in rows]


def _read_texts(_: Session, __: Function, argument: Argument, cells: Mapping[str, Any]) -> list[str]:
    """Rows of one text, ``step time=38 s``, or of a result and its number."""
    rows = [[cell for cell in row if not is_blank(cell)] for row in given_block(cells[argument.name])]
    return ["=".join(str(cell) for cell in row) for row in rows if row]


def _read_count(_: Session, __: Function, argument: Argument, cells: Mapping[str, Any]) -> int:
    block = given_block(cells[argument.name])
    number = block[0][0] if block else None
    if is_blank(number) or number == 0:
        return TOP_PLANS
    if not (isinstance(number, float) and number >= 1.0 and number.is_integer()):
        raise FunctionError("#VALUE!", f"{argument.name} must be a whole number of at least 1, got {shown(number)}")
    return int(number)


def _read_text(_: Session, __: Function, argument: Argument, cells: Mapping[str, Any]) -> str:
    block = given_block(cells[argument.name])
    return "" if not block or is_blank(block[0][0]) or block[0][0] == 0 else str(block[0][0])


# --- answers: the block of a function, from its arguments by kind ----------------------------------------------------

Given = Mapping[str, Any]


def _value(session: Session, function: Function, given: Given) -> Block:
    return _column(_cells_of(function, session.outcome(given["rows"], given["catalog"])))


def _cells_of(function: Function, outcome: Outcome) -> Sequence[Any]:
    """What a function shows for each plan."""
    if function.answer == "check":
        return outcome.words()
    kind = outcome.plans.kind
    result = STAND_INS.get((kind, function.result), function.result)
    if result not in results_of(kind).by_name:
        raise FunctionError("#VALUE!", f"{result.replace('_', ' ')} is no result of {kind} plans")
    return outcome.column(result)


def _quantity(session: Session, function: Function, given: Given) -> Block:
    outcome = session.outcome(given["rows"], given["catalog"])
    result = given.get("quantity", function.result)
    if result == "answer":
        cells = outcome.column(result)
        return _column([f"No answer: {_in_short(c.message)}" if isinstance(c, CellError) else c for c in cells])
    return _column(outcome.words() if (function.rows, result) == ("chiplets", "reason") else outcome.column(result))


def _in_short(message: str) -> str:
    """A fault of a form in a line: without the name of the form, cut where it becomes a list."""
    words = message.partition(", ")[2] if message.startswith(tuple(f"{form}, " for form in FORMS)) else message
    return words if len(words) <= MOST_WORDS else f"{words[: MOST_WORDS - 4].rpartition(' ')[0]} ..."


def _results(session: Session, _: Function, given: Given) -> Block:
    plans: Plans = given["rows"]
    columns = chosen_columns(plans, given["results"])
    outcome = session.outcome(plans, given["catalog"])
    cells = [
        outcome.column(one.name) if one.is_result else _resolved(session, plans, one, given["catalog"])
        for one in columns
    ]
    return _side_by_side(columns, cells)


def _resolved(session: Session, plans: Plans, column: Column, catalog: Keyed) -> list[Any]:
    """Cells of a column of the plans; in the place of ``auto`` what was chosen."""
    place = position_of(plans, column.name)
    cells = ["" if row[place] is None else row[place] for row in plans.rows]
    for number, cell in enumerate(cells):
        if _is_auto(cell):
            with suppress(InputError):  # the results of the row say what is wrong with it
                table = session.engine.resolve(read_plans_of(plans, number, number + 1), catalog[1])
                cells[number] = _plan_cells(table, column.name)[0]
    return cells


def _is_auto(cell: object) -> bool:
    return isinstance(cell, str) and cell.strip().casefold() == "auto"


def _operators(session: Session, _: Function, given: Given) -> Block:
    table = session.engine.explain(read_plans_of(given["rows"]), given["catalog"][1])
    columns = [column for column in table.schema.columns if column.name in table]
    # what an operator has not (the k of a norm) stays empty
    return _side_by_side(columns, [_without_errors(shown_column(table, column.name)) for column in columns])


def _search(session: Session, _: Function, given: Given) -> Block:
    from xlperf.explore.candidates import with_mapping
    from xlperf.explore.search import SHOWN

    plan = read_plans_of(given["rows"])
    plan = plan if plan.auto else with_mapping(plan)
    if not plan.auto:
        raise FunctionError("#VALUE!", "no cell of the plan says auto: write it where a value is to be chosen")
    found = session.engine.search(plan, given["catalog"][1], given["text"], given["count"])
    if not found.found:
        raise FunctionError("#N/A", found.words)
    names = list(dict.fromkeys([found.objective.column.name, *SHOWN[plan.kind]]))
    cells = [_plan_cells(found.plans, name) for name in found.searched]
    cells += [shown_column(found.results, name) for name in names]
    known = results_of(plan.kind).by_name
    columns = [plan.schema.by_name[name] for name in found.searched] + [known[name] for name in names]
    return _side_by_side(columns, cells)


def _diagnosis(session: Session, _: Function, given: Given) -> Block:
    measured = given["measured"]
    if not measured:
        raise FunctionError("#VALUE!", "nothing was measured: give a result and its number, as step time and 38")
    found = session.engine.diagnose(read_plans_of(given["rows"]), given["catalog"][1], measured, given["before"])
    if not len(found.explanations):
        return _column(reading.words for reading in found.readings)
    table = found.explanations
    return _side_by_side(table.schema.columns, [shown_column(table, name) for name in table.columns])


def _frontier(session: Session, _: Function, given: Given) -> Block:
    """Points of a frontier; a chart asks for them cell by cell."""
    plans: Plans = given["rows"]
    part = part_of(given["catalog"][1], read_plans_of(plans))
    key = plans, repr((given["vary"], given["results"]))
    known = session.frontiers.setdefault(part, {})
    if key not in known:
        known[key] = _points(session, plans, part, given)
    return known[key]


def _points(session: Session, plans: Plans, catalog: Catalog, given: Given) -> Block:
    from xlperf.explore.candidates import with_auto
    from xlperf.explore.frontier import SHOWN, Frontier, distinguishing_columns
    from xlperf.explore.vary import read_values

    is_auto = [[str(cell).strip().casefold() for cell in cells] == ["auto"] for _, cells in given["vary"]]
    stated = [line for line, auto in zip(given["vary"], is_auto, strict=True) if not auto]
    searched = [str(name) for (name, _), auto in zip(given["vary"], is_auto, strict=True) if auto]
    values = read_values(plans.kind, stated, "vary")
    table = with_auto(read_plans_of(plans), searched, "vary")
    found, reached = session.engine.frontier(table, catalog, values)
    if not len(found):
        raise FunctionError("#N/A", "no plan at no load is legal, fits in memory and keeps the targets")
    if given["results"]:
        columns = chosen_columns(replace(plans, header=tuple(found.columns)), given["results"])
    else:
        inputs = distinguishing_columns(Frontier(found, reached), {**table.auto, **values}, named=len(table) > 1)
        known = results_of(plans.kind).by_name
        columns = [found.schema.by_name[name] for name in inputs] + [known[name] for name in SHOWN]
    cells = [
        shown_column(reached, one.name) if one.is_result else _without_errors(shown_column(found, one.name))
        for one in columns
    ]
    return _side_by_side(columns, cells)


def _drawn(session: Session, given: Given, banded: bool = True) -> Uncertainty:
    """Plans with their uncertain inputs; of a sensitivity the usual ones where none are given."""
    from xlperf.explore.samples import LATIN_HYPERCUBE, Sampling
    from xlperf.explore.sweep import Sweep
    from xlperf.explore.uncertainty import DRAWS, Uncertainty, usual_ranges
    from xlperf.explore.vary import read_variation

    catalog = given["catalog"][1]
    plans = session.engine.resolve(read_plans_of(given["rows"]), catalog)
    asked = read_variation(plans.kind, _lines(given), "vary")
    if asked.auto:
        raise FunctionError("#VALUE!", f"{asked.auto[0]} is auto: write a range, or auto in the plans")
    varied = asked.varied if banded or asked.varied or asked.values else usual_ranges(plans)
    sweep = Sweep(plans, catalog, asked.values, varied, Sampling(DRAWS, LATIN_HYPERCUBE))
    return Uncertainty(sweep, given["text"] or "cost", banded)


def _lines(given: Given) -> list[tuple[str, list[str]]]:
    """Columns and their values or ranges, as a command line has them."""
    return [(str(name), [str(cell) for cell in cells]) for name, cells in given["vary"]]


def _as_block(found: Table) -> Block:
    columns = [column for column in found.schema.columns if column.name in found]
    return _side_by_side(columns, [_without_errors(shown_column(found, column.name)) for column in columns])


def _uncertainty(session: Session, _: Function, given: Given) -> Block:
    return _as_block(_drawn(session, given).summary())


def _sensitivity(session: Session, _: Function, given: Given) -> Block:
    return _as_block(_drawn(session, given, banded=False).effects())


def _worth(session: Session, _: Function, given: Given) -> Block:
    from xlperf.explore.search import stacked
    from xlperf.explore.worth import read_changes, usual_changes, worth

    catalog, plans = given["catalog"][1], read_plans_of(given["rows"])
    changes = read_changes(plans.kind, _lines(given), "changes")
    each = [plans.take([row]) for row in range(len(plans))]
    return _as_block(stacked([worth(one, catalog, changes or usual_changes(one, catalog)) for one in each]))


def _check(session: Session, function: Function, given: Given) -> Block:
    found = given["plan or table"]
    if isinstance(found, Plans):
        return _column(_cells_of(function, session.outcome(found, given["catalog"])))
    with_blocks(given["catalog"][1], [found])
    return [["ok"]]


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


READERS: Mapping[str, Callable[[Session, Function, Argument, Mapping[str, Any]], Any]] = {
    "rows": _read_rows,
    "plan or table": _read_plan_or_table,
    "catalog": lambda session, _, argument, cells: session.catalog(cells[argument.name]),
    "header": lambda _, __, ___, ____: None,  # it is read with the rows that it is the header of
    "results": _read_names,
    "quantity": _read_quantity,
    "vary": _read_lines,
    "measured": _read_texts,
    "before": _read_texts,
    "count": _read_count,
    "text": _read_text,
    "tables": _read_tables,
    "number": lambda _, __, argument, cells: read_numbers(argument, cells[argument.name]),
    "choice": lambda _, __, argument, cells: read_choice(argument, cells[argument.name]),
}
"""What reads the cells of an argument, by its kind in the registry."""

ANSWERS: Mapping[str, Callable[[Session, Function, Given], Block]] = {
    "handle": lambda session, _, given: [[session.put(given["tables"])]],
    "value": _value,
    "quantity": _quantity,
    "results": _results,
    "operators": _operators,
    "search": _search,
    "frontier": _frontier,
    "diagnosis": _diagnosis,
    "uncertainty": _uncertainty,
    "sensitivity": _sensitivity,
    "worth": _worth,
    "check": _check,
}
"""What answers a function, by its answer in the registry; an equation is computed from its arguments in order."""
