"""The process that computes for a spreadsheet host, and its session: cells in, cells out, one evaluation per plan.

``python -m xlperf.addin.worker`` answers lines of JSON (:mod:`xlperf.addin.client`), opens no port and ends with its
input. A :class:`Session` answers a function name and arguments with a block of cells: :data:`READERS` read each kind of
argument, :data:`xlperf.addin.answers.ANSWERS` give each kind of answer. Bad input becomes a :class:`CellError`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, BinaryIO
from weakref import WeakKeyDictionary

from xlperf import __version__
from xlperf.addin import handles
from xlperf.addin.answers import ANSWERS, MOST_IN_CELLS, equation_block, read_choice, read_numbers
from xlperf.addin.cells import (
    Asked,
    Block,
    CellError,
    FunctionError,
    Outcome,
    Outcomes,
    Plans,
    asked_of,
    block_of,
    given_block,
    is_auto,
    read_block,
    words_of,
)
from xlperf.addin.functions import Argument, Function, functions, result_functions
from xlperf.addin.host import by_own_function
from xlperf.base.errors import InputError, nearest
from xlperf.catalog.cards import find_card
from xlperf.catalog.cells import is_blank, shown, table_kind
from xlperf.catalog.schema import (
    EVERY_TABLE,
    FORMS,
    PLAN_TABLES,
    first_words,
    plan_names,
    questions,
    results_of,
    split_header,
    table_schema,
)
from xlperf.catalog.table import CASES

if TYPE_CHECKING:
    from xlperf.catalog.catalog import Catalog
    from xlperf.catalog.table import Table

TOP_PLANS = 10
MOST_CATALOGS_KEPT = 8
MOST_LOGGED = 1_000  # different faults of functions that the log of a worker holds [-]
LONGEST_REQUEST = 256 * 2**20
_OF_A_SESSION = ("handle", "check")  # answers that store a catalog, or tell of earlier calls
SHORTEST = 0.005  # processor time of a question, not of a form, whose answer is worth keeping [s]
RECALCULATE = "recalculate all (Ctrl+Shift+F9 in LibreOffice, Ctrl+Alt+F9 in Excel)"

Keyed = tuple[str, "Catalog"]  # A catalog with its handle; "" for the installed one


class Engine:
    """The calls that a session makes into xlperf; a test may put its own in place."""

    def installed(self) -> Catalog:
        """The catalog that xlperf ships."""
        from xlperf.catalog.catalog import load_catalog

        return load_catalog()

    def evaluate(self, rows: Table, catalog: Catalog, results: Asked = None) -> Table:
        """Results of plans, at least the requested ones, or of other rows; ``auto`` is searched."""
        if rows.kind in PLAN_TABLES and rows.auto:
            from xlperf.explore.search import evaluate_resolved

            return evaluate_resolved(rows, catalog, most=MOST_IN_CELLS)[1]
        if rows.kind in PLAN_TABLES:
            from xlperf.engine import evaluate

            return evaluate(rows, catalog, results=results)
        from xlperf.engine.devices import evaluate_designs, evaluate_devices
        from xlperf.engine.operations import evaluate_operations
        from xlperf.engine.ownership import evaluate_servers

        if rows.kind in FORMS:
            from xlperf.explore.forms import evaluate_forms

            return evaluate_forms(rows, catalog)
        if rows.kind == "servers":
            return evaluate_servers(rows.in_case(catalog.case), catalog=catalog)
        if rows.kind == "chiplets":
            return evaluate_designs(rows.in_case(catalog.case), catalog)
        return (evaluate_devices if rows.kind == "devices" else evaluate_operations)(rows, catalog)

    def table(self, form: Table, name: str, catalog: Catalog) -> Table:
        """A table beside the answer to a form of one row."""
        from xlperf.explore.forms import table_of

        return table_of(form, name, catalog)

    def resolve(self, plans: Table, catalog: Catalog) -> Table:
        """Plans with the value that a search chooses in the place of every ``auto``."""
        from xlperf.explore.search import resolve

        return resolve(plans, catalog, most=MOST_IN_CELLS).plans if plans.auto else plans

    def explain(self, plans: Table, catalog: Catalog) -> Table:
        """Operators of one plan."""
        from xlperf.engine import explain

        return explain(self.resolve(plans, catalog), catalog)


class Session:
    """State of one host: catalogs by handle and the results of recent plans."""

    process_id: int | None = 0  # no other process answers

    def __init__(self, store: handles.CatalogStore | None = None, engine: Engine | None = None) -> None:
        self.engine: Engine = engine or Engine()
        self._store = store or handles.CatalogStore()
        self._installed: Catalog | None = None
        self._catalogs: OrderedDict[str, Catalog] = OrderedDict()
        self._outcomes = Outcomes()
        self._logged: set[str] = set()
        self.lasts = True  # whether the latest answer depends on its cells alone: no file, fault or earlier call
        self.is_of_form = False  # whether it is one of many of the same search
        self.misused: dict[Plans, str] = {}
        self.compares = False  # whether cells ask how other accelerators serve, which one search answers with the form
        self.frontiers: WeakKeyDictionary[Catalog, dict[object, Block]] = WeakKeyDictionary()

    def call(self, name: str, arguments: Sequence[Any]) -> Block:
        """Block of cells of a worksheet function; an argument is a cell value, None, or a sequence of rows."""
        function = functions().get(name)
        self.lasts = function is None or function.answer not in _OF_A_SESSION
        self.is_of_form = function is not None and function.rows in FORMS
        try:
            if function is None:
                raise FunctionError("#NAME?", f"unknown function {name}; run `xlperf install` again")
            return self._answered(function, arguments)
        except FunctionError as error:
            error_cell = error.error
        except InputError as error:
            error_cell = CellError("#VALUE!", words_of(error))
        except Exception as error:
            traceback.print_exc(file=sys.stderr)  # the log of the worker
            error_cell = CellError("#VALUE!", f"internal error of xlperf: {type(error).__name__}: {error}")
        self.lasts = False
        if function is not None and function.says_faults:
            return [[error_cell.message]]
        line = f"{name}: {error_cell.message}"
        if line not in self._logged and len(self._logged) < MOST_LOGGED:  # not every host can show an error's words
            self._logged.add(line)
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
        return [[error_cell]]

    def keeps(self, took: float) -> bool:
        """Whether the latest answer, which took so long, is worth keeping for the next session. [s]"""
        return self.lasts and (self.is_of_form or took >= SHORTEST)

    def call_with_others(
        self, name: str, arguments: Sequence[Any], others: Sequence[Sequence[Any]]
    ) -> tuple[Block, list[Any]]:
        """As :meth:`call`, and the answers of :meth:`others`, which come first: the plan itself is among them."""
        answers = self.others(name, arguments, others)
        return self.call(name, arguments), answers

    def others(self, name: str, arguments: Sequence[Any], rows: Sequence[Sequence[Any]]) -> list[Any]:
        """Cells of a per-plan function for other plans under one header; None for a row that needs its own call."""
        cells: list[Any] = [None] * len(rows)
        function = functions().get(name)
        sure = [number for number, row in enumerate(rows) if not any(map(is_auto, row))]
        if function is None or not function.is_per_plan or not sure:
            return cells
        with suppress(FunctionError, InputError):  # the call itself says what is wrong
            _, catalog, header = [*arguments, None, None][:3]
            key, content = self.catalog(catalog)
            plans = read_block([rows[number] for number in sure], header)
            asked = asked_of(function, plans.kind)
            outcomes = self._outcomes.together(
                key, plans, lambda table, names: self.engine.evaluate(table, content, names), asked
            )
            for number, outcome in zip(sure, outcomes, strict=False):  # blank rows at the end are no plans
                cells[number] = None if outcome is None else outcome.cells(function)[0]
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
        given = dict(read)
        if function.answer == "value":
            plans: Plans = given["rows"]
            outcome = self.outcome(plans, given["catalog"], self._asked(function, plans))
            return [[cell] for cell in outcome.cells(function)]
        return ANSWERS[function.answer](self, function, given)

    def _asked(self, function: Function, plans: Plans) -> Asked:
        """Results that a function needs from plans; XLPERF_CHECK reports from now on if there are none."""
        try:
            return asked_of(function, plans.kind)
        except FunctionError as error:
            self.misuse(plans, f"{function.name}: {error.error.message}")
            raise

    def misuse(self, plans: Plans, words: str) -> None:
        """Note what a cell asks of plans in vain: XLPERF_CHECK reports it for them from now on."""
        if len(self.misused) < MOST_LOGGED:
            self.misused[plans] = words

    # --- catalogs

    def install(self, catalog: Catalog) -> None:
        """Set the default catalog."""
        if self._installed is not catalog:
            self._installed, self._outcomes = catalog, Outcomes()

    def put(self, blocks: Sequence[Block]) -> str:
        """Handle of the installed catalog with these tables in the place of its own."""
        handle = handles.handle_of(handles.content_of(blocks))
        if handle not in self._catalogs:
            self._remember(handle, handles.with_blocks(self._installed_catalog(), blocks))
        return self._store.put(blocks)

    def catalog(self, cells: Any) -> Keyed:
        """The catalog of a handle in cells; the installed one for blank cells."""
        block = block_of(cells)
        handle = block[0][0] if block else None
        if is_blank(handle) or handle == 0:  # an empty cell arrives as 0 in LibreOffice
            return "", self._installed_catalog()
        if not isinstance(handle, str) or not handle.strip().startswith(handles.HANDLE_PREFIX) or len(block) > 1:
            raise FunctionError("#VALUE!", f"catalog must be what XLPERF_CATALOG returned, got {shown(handle)}")
        handle = handle.strip()
        if handle not in self._catalogs:
            try:
                blocks = self._store.get(handle)
            except handles.UnknownHandleError:
                raise FunctionError("#REF!", f"the catalog {handle} is not known here; {RECALCULATE}") from None
            self._remember(handle, handles.with_blocks(self._installed_catalog(), blocks))
        self._catalogs.move_to_end(handle)
        return handle, self._catalogs[handle]

    def outcome(self, plans: Plans, catalog: Keyed, results: Asked = None) -> Outcome:
        """Results of plans or other rows, at least the requested ones."""
        key, content = catalog
        return self._outcomes.of(key, plans, lambda table, names: self._evaluated(table, content, names), results)

    def _evaluated(self, rows: Table, catalog: Catalog, results: Asked) -> Table:
        if self.compares and rows.kind == "serve" and len(rows) == 1 and not rows.stated("way") > 0.0:
            with suppress(InputError):  # which the answer itself names
                self.engine.table(rows, "others", catalog)
        return self.engine.evaluate(rows, catalog, results)

    def _remember(self, handle: str, catalog: Catalog) -> None:
        self._catalogs[handle] = catalog
        while len(self._catalogs) > MOST_CATALOGS_KEPT:
            self._catalogs.popitem(last=False)

    def _installed_catalog(self) -> Catalog:
        if self._installed is None:
            self._installed = self.engine.installed()
        return self._installed


# --- readers: the cells of an argument, by its kind ------------------------------------------------------------------

_PLANS = ("plans", "plan", *PLAN_TABLES)
_TRACE = "trace"  # column that names a file


def _read_rows(session: Session, function: Function, argument: Argument, cells: Mapping[str, Any]) -> Plans:
    kind = "" if function.rows in _PLANS else function.rows
    plans = read_block(cells[argument.name], cells["header"], kind)
    names = [split_header(str(cell))[0] for cell in plans.header]
    if _TRACE in names and not all(is_blank(row[names.index(_TRACE)]) for row in plans.rows):
        session.lasts = False
    if function.rows in PLAN_TABLES and plans.kind != function.rows:
        problem = f"these are {plans.kind} plans, {function.name} takes {function.rows} plans"
        raise FunctionError("#VALUE!", f"{problem}; use XLPERF_{plans.kind.upper()}")
    if function.rows == "plan" and len(plans.rows) != 1:
        raise FunctionError("#VALUE!", f"{function.name} takes one plan, got {len(plans.rows)}")
    return plans


def _read_plan_or_table(session: Session, function: Function, argument: Argument, cells: Mapping[str, Any]) -> Any:
    """A catalog table as a block; everything else as plans."""
    block = block_of(cells[argument.name])
    bare = block and len(block[0]) > 2 and not block_of(cells["header"])
    if bare and find_card(block, PLAN_TABLES) is None:
        names = plan_names(block[0])
        keys = {table_schema(kind).key.name for kind in EVERY_TABLE}
        if not {"model", "accelerator"} <= names and names & keys and table_kind(block[0]) in EVERY_TABLE:
            return block
    return _read_rows(session, function, argument, cells)


def _read_tables(_: Session, function: Function, argument: Argument, cells: Mapping[str, Any]) -> list[Block]:
    blocks = [block for block in map(block_of, cells[argument.name]) if block and block != [[CASES[1]]]]
    if not blocks:
        raise FunctionError("#VALUE!", f"give {function.name} at least one table with its header row")
    return blocks


def _filled(cells: Any) -> Block:
    """The cells that are not blank, row by row."""
    rows = [[cell for cell in row if not is_blank(cell)] for row in given_block(cells)]
    return [row for row in rows if row]


def _names(cells: Any) -> list[str]:
    """Names of results: one per cell, or several with commas between."""
    stated = [str(cell) for row in _filled(cells) for cell in row if cell != 0]
    return [part for text in stated for part in text.split(",") if part.strip()]


def _read_quantity(_: Session, function: Function, argument: Argument, cells: Mapping[str, Any]) -> str:
    """The result of designs, servers, devices or operations in a cell; the default of the function if it is blank."""
    block = given_block(cells[argument.name])
    if not block:
        if not function.result:
            problem = f"{argument.name} is missing; name one result of {function.rows}, as memory bandwidth"
            raise FunctionError("#VALUE!", problem)
        return function.result
    tables = questions()[function.rows].tables if function.rows in FORMS else ()
    known = [*results_of(function.rows).by_name, *tables]
    name = split_header(str(block[0][0]))[0]
    if len(block) > 1 or len(block[0]) > 1 or name not in known:
        hint, what = nearest(name, known).replace("_", " "), function.rows.replace("chiplets", "designs")
        problem = f"{argument.name} must be the name of one result of {what}, got {shown(block[0][0])}; {hint}"
        raise FunctionError("#VALUE!", problem)
    return name


def _lines(cells: Any) -> list[tuple[Any, Block]]:
    """Columns to vary: the first cell of each row and the others that are not blank."""
    rows = [row for row in given_block(cells) if not all(map(is_blank, row))]
    return [(row[0], [cell for cell in row[1:] if not is_blank(cell)]) for row in rows]


def _texts(cells: Any) -> list[str]:
    """Rows of one text, ``step time=38 s``, or of a result and its number."""
    return ["=".join(map(str, row)) for row in _filled(cells)]


def _first(cells: Any) -> Any:
    """The first cell; None if it is blank or 0."""
    block = given_block(cells)
    return None if not block or is_blank(block[0][0]) or block[0][0] == 0 else block[0][0]


def _read_count(_: Session, __: Function, argument: Argument, cells: Mapping[str, Any]) -> int:
    number = _first(cells[argument.name])
    if number is None:
        return TOP_PLANS
    if not (isinstance(number, float) and number >= 1.0 and number.is_integer()):
        raise FunctionError("#VALUE!", f"{argument.name} must be a whole number of at least 1, got {shown(number)}")
    return int(number)


Reader = Callable[["Session", Function, Argument, Mapping[str, Any]], Any]


def _of_cells(read: Callable[[Any], Any]) -> Reader:
    return lambda _, __, argument, cells: read(cells[argument.name])


READERS: Mapping[str, Reader] = {
    "rows": _read_rows,
    "plan or table": _read_plan_or_table,
    "catalog": lambda session, _, argument, cells: session.catalog(cells[argument.name]),
    "header": lambda _, __, ___, ____: None,  # it is read with the rows that it is the header of
    "results": _of_cells(_names),
    "quantity": _read_quantity,
    "vary": _of_cells(_lines),
    "limits": _of_cells(lambda cells: [str(cell) for row in _filled(cells) for cell in row]),
    "measured": _of_cells(_texts),
    "before": _of_cells(_texts),
    "count": _read_count,
    "text": _of_cells(lambda cells: str(_first(cells) or "")),
    "tables": _read_tables,
    "number": lambda _, __, argument, cells: read_numbers(argument, cells[argument.name]),
    "choice": lambda _, __, argument, cells: read_choice(argument, cells[argument.name]),
}
"""What reads the cells of an argument, by its kind in the registry."""


# --- lines on pipes --------------------------------------------------------------------------------------------------


def answer(session: Session, line: bytes) -> bytes:
    """One line of answer to one line of request; anything else is answered with an error."""
    try:
        request = json.loads(line, parse_int=float)  # of an integer of hundreds of digits too
        function, arguments = request["function"], request["arguments"]
        if not isinstance(function, str) or not isinstance(arguments, list):
            raise TypeError
    except (ValueError, TypeError, KeyError, RecursionError):
        return _line(rows=[[CellError("#VALUE!", "the request is not one that this worker knows")]])
    if isinstance(request.get("others"), list):
        rows, others = session.call_with_others(function, arguments, request["others"])
        return _line(rows=rows, others=others)
    return _line(rows=session.call(function, arguments))


def _line(**answer: list[Any]) -> bytes:
    return json.dumps(answer, default=as_json, separators=(",", ":")).encode("ascii") + b"\n"


def as_json(value: object) -> object:
    """A cell that cannot be shown as the worker writes it."""
    if isinstance(value, CellError):
        return {"error": value.code, "message": value.message}
    raise TypeError(f"{type(value).__name__} is no cell value")


def serve(
    session: Session,
    requests: BinaryIO,
    answers: BinaryIO,
    longest: int = LONGEST_REQUEST,
    questions: handles.Questions | None = None,
) -> None:
    """Answer requests, a line each, until the input ends; those of earlier sessions at once."""
    answers.write(json.dumps({"version": __version__}).encode("ascii") + b"\n")
    answers.flush()
    asked = partial(answer, session)
    line = handles.first_line(requests, longest + 1, () if questions is None else _ahead(session, questions))
    while line:
        if len(line) > longest:
            while line and not line.endswith(b"\n"):
                line = requests.readline(longest)
            words = f"the cells of this call take more than {longest >> 20} MiB; give it fewer rows"
            answers.write(_line(rows=[[CellError("#VALUE!", words)]]))
        else:
            answers.write(asked(line) if questions is None else questions.answered(line, asked, session.keeps))
        answers.flush()
        line = requests.readline(longest + 1)
    if questions is not None:
        questions.save()


def _ahead(session: Session, questions: handles.Questions) -> Iterator[object]:
    """The catalog, and where no answers are stored those to questions of the shipped workbook, one at a time."""
    from xlperf.explore.forms import first_chips, first_forms, form_of
    from xlperf.explore.serve import searched_each
    from xlperf.explore.workers import second

    _, catalog = session.catalog(None)
    first = form_of("serve", first_words("serve"))
    if not questions or questions.ask([function.name for function in functions().values() if function.rows in FORMS]):
        second.start(searched_each, [first], catalog)
    if questions:
        return
    yield catalog
    yield from (session.engine.evaluate(form, catalog) for form in first_forms(catalog))
    yield session.engine.table(first, "others", catalog)
    yield from (session.engine.evaluate(forms, catalog) for forms in first_chips())


def main() -> None:
    """Serve the process's own pipes; prints go to standard error."""
    from xlperf.explore.workers import second

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the host; we end with our input
    with os.fdopen(os.dup(1), "wb") as answers, os.fdopen(os.dup(0), "rb") as requests:
        os.dup2(2, 1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        sys.stdout = sys.stderr
        second.allow()
        try:
            serve(Session(), requests, answers, questions=handles.Questions())
        except BrokenPipeError:
            os._exit(0)  # the host is gone


# --- calls of a page -------------------------------------------------------------------------------------------------


@cache
def _session() -> Session:
    return Session()


def answers(request: str) -> str:
    """Answers to calls of the Office add-in, whose page runs Python, both as JSON: ``[{"id": 1, "function": name,
    "arguments": [...]}]`` and ``[{"id": 1, "rows": [[...]]}]``. Single plans under one header are evaluated together.

    >>> answers('[{"id": 1, "function": "XLPERF_DIE_YIELD", "arguments": [100, 0.1]}]')
    '[{"id": 1, "rows": [[0.9052869546929831]]}]'
    """
    session, calls = _session(), json.loads(request, parse_int=float)
    for call in calls:
        asked = by_own_function(call["function"], call["arguments"], result_functions())
        call["function"], call["arguments"] = asked
    for name, arguments, rows in _together(calls):
        session.others(name, arguments, rows)  # their results are in the cache of the session then
    answered = [{"id": int(call["id"]), "rows": session.call(call["function"], call["arguments"])} for call in calls]
    return json.dumps(answered, default=as_json)


def _together(calls: list[dict[str, Any]]) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Function, arguments and rows of calls that ask for one result of plans under one header and catalog."""
    groups: dict[str, tuple[str, list[Any], list[Any]]] = {}
    for call in calls:
        name, arguments = call["function"], call["arguments"]
        function = functions().get(name)
        if function is None or not function.is_per_plan or len(arguments) < 3 or not arguments[2]:
            continue
        plan, *others = arguments
        if isinstance(plan, list) and len(plan) == 1:
            groups.setdefault(json.dumps([name, others]), (name, arguments, []))[2].append(plan[0])
    return (group for group in groups.values() if len(group[2]) > 1)


if __name__ == "__main__":
    main()
