"""What worksheet functions compute: cells in, cells out, one evaluation per plan.

A host hands over a function name and its arguments as cell values; a :class:`Session` answers with a block of cell
values. Nothing here raises for bad input: a cell that cannot be shown is a :class:`CellError` with a code and words.
"""

from __future__ import annotations

import sys
import traceback
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xlperf.addin.blocks import (
    CellError,
    FunctionError,
    Plans,
    block_of,
    chosen_columns,
    position_of,
    read_block,
    read_plans_of,
    read_table,
    words_of,
)
from xlperf.addin.equations import equation_block
from xlperf.addin.functions import HANDLE_PREFIX, PREFIX, STAND_INS, Function, functions
from xlperf.addin.handles import Block, CatalogStore, UnknownHandleError, content_of, handle_of
from xlperf.addin.outcomes import Outcome, Outcomes, shown_column
from xlperf.base.errors import Fault, InputError, nearest
from xlperf.catalog.cells import is_blank, shown, table_kind
from xlperf.catalog.schema import EVERY_TABLE, Column, results_of, split_header, table_schema

if TYPE_CHECKING:
    from xlperf.catalog.catalog import Catalog
    from xlperf.catalog.table import Table
    from xlperf.explore.search import Search

MOST_IN_CELLS = 200_000
"""Plans that the cells with auto of a plan may stand for: a few seconds of work."""
TOP_PLANS = 10
MOST_CATALOGS_KEPT = 8
RECALCULATE = "recalculate all (Ctrl+Shift+F9 in LibreOffice, Ctrl+Alt+F9 in Excel)"


class Engine:
    """The calls that a session makes into xlperf; a test may put its own in place."""

    def installed(self) -> Catalog:
        """The catalog that xlperf ships."""
        from xlperf.catalog.catalog import load_catalog

        return load_catalog()

    def evaluate(self, plans: Table, catalog: Catalog) -> Table:
        """Results of plans; those with ``auto`` are searched, and the reason says what was chosen."""
        from xlperf.engine import evaluate

        if plans.auto:
            from xlperf.explore.auto import evaluate_resolved

            return evaluate_resolved(plans, catalog, MOST_IN_CELLS)[1]
        return evaluate(plans, catalog)

    def resolve(self, plans: Table, catalog: Catalog) -> Table:
        """Plans with the value that a search chooses in the place of every ``auto``."""
        from xlperf.explore.auto import resolve

        return resolve(plans, catalog, MOST_IN_CELLS).plans

    def search(self, plan: Table, catalog: Catalog, objective: str, top: int) -> Search:
        """The best of what a plan stands for."""
        from xlperf.explore.search import search

        return search(plan, catalog, objective, top=top, most=MOST_IN_CELLS)

    def evaluate_designs(self, designs: Table, catalog: Catalog) -> Table:
        """Cost of chiplet designs."""
        from xlperf.engine.designs import evaluate_designs

        return evaluate_designs(designs, catalog)

    def evaluate_servers(self, servers: Table, _: Catalog) -> Table:
        """Cost of accelerator-hours in servers."""
        from xlperf.engine.servers import evaluate_servers

        return evaluate_servers(servers)

    def frontier(self, plans: Table, catalog: Catalog, values: Mapping[str, Any]) -> tuple[Table, Table]:
        """Plans and results of the points that nothing beats."""
        from xlperf.explore.frontier import frontier

        return frontier(plans, catalog, values)

    def evaluate_devices(self, devices: Table, catalog: Catalog) -> Table:
        """What devices become of their budgets."""
        from xlperf.engine.devices import evaluate_devices

        return evaluate_devices(devices, catalog)

    def evaluate_operations(self, operations: Table, catalog: Catalog) -> Table:
        """Times of single collectives and kernels."""
        from xlperf.engine.operations import evaluate_operations

        return evaluate_operations(operations, catalog)

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
        self._store = store or CatalogStore()
        self._engine = engine or Engine()
        self._installed: Catalog | None = None
        self._catalogs: OrderedDict[str, Catalog] = OrderedDict()
        self._outcomes = Outcomes()

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
            return self._dispatch(function, arguments)
        except FunctionError as error:
            found = error.error
        except InputError as error:
            found = CellError("#VALUE!", words_of(error))
        except Exception as error:
            traceback.print_exc(file=sys.stderr)  # the log of the worker
            found = CellError("#VALUE!", f"internal error of xlperf: {type(error).__name__}: {error}")
        return [[found.message if function is not None and function.shape == "words" else found]]

    def _dispatch(self, function: Function, arguments: Sequence[Any]) -> Block:
        if function.shape == "handle":
            return [[self._handle(arguments)]]
        names = [argument.name for argument in function.arguments]
        if len(arguments) > len(names):
            raise FunctionError("#VALUE!", f"{function.name} has {len(names)} arguments, got {len(arguments)}")
        given = dict(zip(names, [*arguments, *[None] * (len(names) - len(arguments))], strict=True))
        if function.shape == "equation":
            return equation_block(function.name.removeprefix(PREFIX), list(given.values()))
        if function.shape == "designs":
            part = _part(given.get("part")) or function.result
            return [[cell] for cell in self._designs(part, given["design"], given["catalog"], given["header"])]
        if function.shape == "servers":
            part = _part(given["part"], "servers") or function.result
            return [
                [cell] for cell in self._designs(part, given["server"], given["catalog"], given["header"], "servers")
            ]
        if function.shape == "devices":
            quantity = _part(given["quantity"], "devices", "quantity")
            if not quantity:
                raise FunctionError("#VALUE!", "quantity is missing; name one result of devices, as memory bandwidth")
            return [
                [cell]
                for cell in self._designs(quantity, given["device"], given["catalog"], given["header"], "devices")
            ]
        if function.shape == "operations":
            quantity = _part(given["quantity"], "operations", "quantity") or function.result
            own = given["operation"], given["catalog"], given["header"], "operations"
            return [[cell] for cell in self._designs(quantity, *own)]
        if function.name == "XLPERF_CHECK":
            return self._check(given["plan"], given["catalog"], given["header"])
        plans = read_block(given.get("plan", given.get("plans")), given["header"])
        if function.shape == "values":
            return [[cell] for cell in self._values(function.result, plans, given["catalog"])]
        if function.name == "XLPERF_EXPLAIN":
            return self._explain(plans, given["catalog"])
        if function.name == "XLPERF_FRONTIER":
            return self._frontier(plans, given["vary"], given["results"], given["catalog"])
        if function.name == "XLPERF_SEARCH":
            return self._search(plans, given["top"], given["objective"], given["catalog"])
        kind = function.name.removeprefix("XLPERF_").lower()
        if plans.kind != kind:
            raise FunctionError("#VALUE!", f"these are {plans.kind} plans; use XLPERF_{plans.kind.upper()}")
        return self._block(plans, given["results"], given["catalog"])

    # --- catalogs

    def _handle(self, arguments: Sequence[Any]) -> str:
        blocks = [block for block in map(block_of, arguments) if block]
        if not blocks:
            raise FunctionError("#VALUE!", "give XLPERF_CATALOG at least one table with its header row")
        handle = handle_of(content_of(blocks))
        if handle not in self._catalogs:
            self._remember(handle, self._with_tables(self._installed_catalog(), blocks))
        return self._store.put(blocks)

    def _catalog(self, argument: Any) -> tuple[str, Catalog]:
        cells = block_of(argument)
        handle = cells[0][0] if cells else None
        if is_blank(handle) or handle == 0:  # an empty cell arrives as 0 in LibreOffice
            return "", self._installed_catalog()
        if not isinstance(handle, str) or not handle.strip().startswith(HANDLE_PREFIX) or len(cells) > 1:
            raise FunctionError("#VALUE!", f"catalog must be what XLPERF_CATALOG returned, got {shown(handle)}")
        handle = handle.strip()
        if handle not in self._catalogs:
            try:
                blocks = self._store.get(handle)
            except UnknownHandleError:
                raise FunctionError("#REF!", f"the catalog {handle} is not known here; {RECALCULATE}") from None
            self._remember(handle, self._with_tables(self._installed_catalog(), blocks))
        self._catalogs.move_to_end(handle)
        return handle, self._catalogs[handle]

    def _remember(self, handle: str, catalog: Catalog) -> None:
        self._catalogs[handle] = catalog
        while len(self._catalogs) > MOST_CATALOGS_KEPT:
            self._catalogs.popitem(last=False)

    def _installed_catalog(self) -> Catalog:
        if self._installed is None:
            self._installed = self._engine.installed()
        return self._installed

    @staticmethod
    def _with_tables(catalog: Catalog, blocks: Sequence[Block]) -> Catalog:
        tables: dict[str, Table] = {}
        for block in blocks:
            kind = table_kind(block[0])
            if kind not in EVERY_TABLE:
                raise InputError(Fault("", "XLPERF_CATALOG takes catalog tables, got a table of plans"))
            if kind in tables:
                raise InputError(Fault("", f"two tables of {kind} were given to XLPERF_CATALOG"))
            tables[kind] = read_table(kind, block[0], block[1:])
        return catalog.with_tables(list(tables.values()))

    # --- results

    def _outcome(self, plans: Plans, catalog: Any) -> Outcome:
        key, content = self._catalog(catalog)
        return self._outcomes.of(key, plans, lambda table: self._engine.evaluate(table, content))

    def _designs(self, result: str, design: Any, catalog: Any, header: Any, kind: str = "chiplets") -> list[Any]:
        designs = replace(read_block(design, header), kind=kind)
        key, content = self._catalog(catalog)
        compute = {
            "chiplets": self._engine.evaluate_designs,
            "servers": self._engine.evaluate_servers,
            "devices": self._engine.evaluate_devices,
            "operations": self._engine.evaluate_operations,
        }[kind]
        outcome = self._outcomes.of(key, designs, lambda table: compute(table, content))
        cells = outcome.column(result)
        if result == "reason" and kind == "chiplets":
            return [cell.message if isinstance(cell, CellError) else _words(cell, row)
                    for cell, row in zip(cells, outcome.rows, strict=True)]  # fmt: skip
        return cells

    def _values(self, result: str, plans: Plans, catalog: Any) -> list[Any]:
        result = STAND_INS.get((plans.kind, result), result)
        if result not in results_of(plans.kind).by_name:
            words = result.replace("_", " ")
            raise FunctionError("#VALUE!", f"{words} is no result of {plans.kind} plans")
        return self._outcome(plans, catalog).column(result)

    def _block(self, plans: Plans, results: Any, catalog: Any) -> Block:
        columns = chosen_columns(plans, results)
        outcome = self._outcome(plans, catalog)
        cells = []
        for column in columns:
            if column.is_result:
                cells.append(outcome.column(column.name))
            else:
                cells.append(self._given(plans, column, catalog))
        return [[column.header for column in columns], *(list(row) for row in zip(*cells, strict=True))]

    def _given(self, plans: Plans, column: Column, catalog: Any) -> list[Any]:
        """Cells of a column of the plans; in the place of ``auto`` what was chosen."""
        place = position_of(plans, column.name)
        cells = ["" if row[place] is None else row[place] for row in plans.rows]
        asked = [
            number for number, cell in enumerate(cells) if isinstance(cell, str) and cell.strip().lower() == "auto"
        ]
        _, content = self._catalog(catalog)
        for number in asked:
            with suppress(InputError):  # the results of the row say what is wrong with it
                table = self._engine.resolve(read_plans_of(plans, number, number + 1), content)
                cells[number] = _plan_cells(table, [column.name])[0][0]
        return cells

    def _search(self, plans: Plans, top: Any, objective: Any, catalog: Any) -> Block:
        from xlperf.explore.search import SHOWN

        _, content = self._catalog(catalog)
        if len(plans.rows) != 1:
            raise FunctionError("#VALUE!", f"XLPERF_SEARCH takes one plan, got {len(plans.rows)}")
        most = _cell(top)
        if most is not None and not (isinstance(most, float) and most >= 1.0 and most.is_integer()):
            raise FunctionError("#VALUE!", f"top must be a whole number of at least 1, got {shown(most)}")
        plan = read_plans_of(plans)
        if not plan.auto:
            from xlperf.explore.candidates import with_mapping

            plan = with_mapping(plan)
        if not plan.auto:
            raise FunctionError("#VALUE!", "no cell of the plan says auto: write it where a value is to be chosen")
        found = self._engine.search(plan, content, str(_cell(objective) or ""), int(most or TOP_PLANS))
        if not found.found:
            raise FunctionError("#N/A", found.words)
        names = list(dict.fromkeys([found.objective.column.name, *SHOWN[plans.kind]]))
        inputs = [plan.schema.by_name[name] for name in found.searched]
        known = results_of(plans.kind).by_name
        cells = _plan_cells(found.plans, found.searched) + [shown_column(found.results, name) for name in names]
        headers = [column.header for column in [*inputs, *(known[name] for name in names)]]
        return [headers, *(list(row) for row in zip(*cells, strict=True))]

    def _explain(self, plans: Plans, catalog: Any) -> Block:
        _, content = self._catalog(catalog)
        if len(plans.rows) != 1:
            raise FunctionError("#VALUE!", f"XLPERF_EXPLAIN takes one plan, got {len(plans.rows)}")
        table = self._engine.explain(read_plans_of(plans), content)
        columns = [column for column in table.schema.columns if column.name in table]
        # what an operator has not (the k of a norm) stays empty
        cells = [
            ["" if isinstance(cell, CellError) else cell for cell in shown_column(table, column.name)]
            for column in columns
        ]
        return [[column.header for column in columns], *(list(row) for row in zip(*cells, strict=True))]

    def _frontier(self, plans: Plans, vary: Any, results: Any, catalog: Any) -> Block:
        from xlperf.explore.candidates import with_auto
        from xlperf.explore.frontier import SHOWN, Frontier, told_apart
        from xlperf.explore.space import read_values

        _, content = self._catalog(catalog)
        if plans.kind != "inference":
            raise FunctionError("#VALUE!", "these are training plans; XLPERF_FRONTIER takes inference plans")
        lines = [] if vary == 0 else [row for row in block_of(vary) if not all(is_blank(cell) for cell in row)]
        given = [[cell for cell in row[1:] if not is_blank(cell)] for row in lines]
        auto = [[str(cell).strip().casefold() for cell in cells] == ["auto"] for cells in given]
        stated = [(row[0], cells) for row, cells, is_auto in zip(lines, given, auto, strict=True) if not is_auto]
        values = read_values(plans.kind, stated, "vary")
        headers = [str(row[0]) for row, is_auto in zip(lines, auto, strict=True) if is_auto]
        table = with_auto(read_plans_of(plans), headers, "vary")
        found, reached = self._engine.frontier(table, content, values)
        if not len(found):
            raise FunctionError("#N/A", "no plan at no load is legal, fits in memory and keeps the targets")
        inputs = told_apart(Frontier(found, reached), {**table.auto, **values}, named=len(table) > 1)
        if any(not is_blank(cell) and cell != 0 for row in block_of(results) for cell in row):
            everywhere = replace(plans, header=tuple(name for name in found.columns))
            columns = chosen_columns(everywhere, results)
        else:
            known = results_of(plans.kind).by_name
            columns = [found.schema.by_name[name] for name in inputs] + [known[name] for name in SHOWN]
        cells = [shown_column(reached if column.is_result else found, column.name) for column in columns]
        blank = [["" if isinstance(cell, CellError) and not column.is_result else cell for cell in values_]
                 for column, values_ in zip(columns, cells, strict=True)]  # fmt: skip
        return [[column.header for column in columns], *(list(row) for row in zip(*blank, strict=True))]

    # --- words

    def _check(self, plan: Any, catalog: Any, header: Any) -> Block:
        block = block_of(plan)
        if block and len(block[0]) > 2 and not block_of(header):
            names = {split_header(cell)[0] for cell in block[0] if isinstance(cell, str)}
            keys = {table_schema(kind).key.name for kind in EVERY_TABLE}
            if not {"model", "accelerator"} <= names and names & keys and table_kind(block[0]) in EVERY_TABLE:
                _, content = self._catalog(catalog)
                self._with_tables(content, [block])
                return [["ok"]]
        plans = read_block(plan, header)
        outcome = self._outcome(plans, catalog)
        reasons = outcome.column("reason")
        return [[cell.message if isinstance(cell, CellError) else _words(cell, row)]
                for cell, row in zip(reasons, outcome.rows, strict=True)]  # fmt: skip


def _cell(argument: Any) -> Any:
    """The one cell of an argument; None where it is blank."""
    cells = block_of(argument)
    value = cells[0][0] if cells else None
    return None if is_blank(value) or value == 0 else value  # an empty cell arrives as 0 in LibreOffice


def _plan_cells(plans: Table, names: Sequence[str]) -> list[list[Any]]:
    """Cells of columns of plans without units: numbers, words, TRUE and FALSE; blanks are empty."""
    cells: list[list[Any]] = []
    for name in names:
        values = plans[name].tolist() if name in plans else [""] * len(plans)
        flag = plans.schema.by_name[name].kind == "flag"
        cells.append(["" if value != value else bool(value) if flag else value for value in values])
    return cells


def _part(argument: Any, kind: str = "chiplets", word: str = "part") -> str:
    """Result of a design or device that a cell names; "" where it is blank."""
    cells = block_of(argument)
    if not cells or cells == [[0]]:  # an empty cell arrives as 0 in LibreOffice
        return ""
    known = results_of(kind).by_name
    name = split_header(str(cells[0][0]))[0]
    if len(cells) > 1 or len(cells[0]) > 1 or name not in known:
        hint = nearest(name, known).replace("_", " ")
        what = {"chiplets": "designs"}.get(kind, kind)
        raise FunctionError(
            "#VALUE!", f"{word} must be the name of one result of {what}, got {shown(cells[0][0])}; {hint}"
        )
    return name


def _words(reason: str, row: object) -> str:
    return "" if row is None else reason or "ok"
