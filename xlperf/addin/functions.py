"""The one registry of worksheet functions: names, arguments and the texts that function wizards show.

Every host is generated from it: the LibreOffice add-in, the xlwings functions and the worker that computes. A new
result column in ``schema.csv`` is a new function without another line here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from xlperf.addin.equations import EQUATIONS, Input
from xlperf.catalog.schema import PLAN_TABLES, Column, results_of

PREFIX = "XLPERF_"
CATEGORY = "xlperf"
HANDLE_PREFIX = "xlperf:"


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a worksheet function; every argument is a cell or a range of cells."""

    name: str
    doc: str
    optional: bool = False
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """One worksheet function.

    ``shape`` says what it returns: ``handle`` (a text that names a catalog), ``values`` (one value per plan, as a
    column), ``block`` (a header row and rows below it), ``words`` (one text per plan), ``equation`` (a number, or a
    table where ranges are given), ``designs``, ``servers``, ``devices`` or ``operations`` (one value per design,
    server, device or operation). ``result`` is the result column that a function of one of these shapes, or of
    ``values``, shows.
    """

    name: str
    doc: str
    arguments: tuple[Argument, ...]
    shape: str
    result: str = ""
    category: str = CATEGORY


PLAN = Argument(
    "plan",
    "The plan: two columns (name, value); or a table with its header row; or rows of values whose header row is "
    "given as header.",
)
CATALOG = Argument("catalog", "What XLPERF_CATALOG returned; blank: the catalog that xlperf ships.", optional=True)
HEADER = Argument("header", "Header row of the plan, if the plan does not have it itself.", optional=True)
RESULTS = Argument(
    "results",
    'Which columns: a range of names or a text such as "name, step_time"; blank: every result.',
    optional=True,
)
SPILL = "In LibreOffice enter it with Ctrl+Shift+Enter."
VARY = Argument(
    "vary",
    "Values to try: in each row a plan column and its values to the right; all combinations are tried. Without "
    "concurrency, batch size or request rate among them, 24 loads up to full memory.",
    optional=True,
)
TOP = Argument("top", "How many plans, the best first; blank: 10.", optional=True)
OBJECTIVE = Argument(
    "objective",
    'Result to make best, as "step time", or cost, energy, throughput; blank: least step time, or most output tokens '
    "per second and accelerator.",
    optional=True,
)
TABLES = Argument(
    "table",
    "A table with its header row: accelerators, networks, models, prices, calibration, process_nodes, "
    "packages, chiplets, servers, technology, memories, links, cores or devices.",
    repeated=True,
)


DESIGN = Argument(
    "design",
    "A chiplet design: two columns (name, value); or a table with its header row; or rows of values whose header row "
    "is given as header. Columns as on the sheet chiplets.",
)
PART = Argument("part", 'Which part, by its name: "raw dies", "die yield" ...; blank: the whole module.', optional=True)


SERVER = Argument(
    "server",
    "A server with its finance: two columns (name, value); or a table with its header row; or rows of values whose "
    "header row is given as header. Columns as on the sheet servers.",
)
HOUR_PART = Argument(
    "part", 'Which part or result, by its name: "energy cost", "capex" ...; blank: the whole hour.', optional=True
)


DEVICE = Argument(
    "device",
    "A device: two columns (name, value); or a table with its header row; or rows of values whose header row is given "
    "as header. Columns as on the sheet devices.",
)
QUANTITY = Argument(
    "quantity",
    'What of it, by its name: "memory bandwidth", "thermal design power", "reason" ... as xlperf device shows.',
)


OPERATION = Argument(
    "operation",
    "A collective or kernel: two columns (name, value); or a table with its header row; or rows of values whose header "
    "row is given as header. Columns as the options of xlperf time: operation, accelerator, size, group, m, n, k ...",
)
RATE = Argument(
    "quantity", 'What of it, by its name: "bus bandwidth", "flop rate", "bound" ...; blank: the time.', optional=True
)


def _argument(own: Input) -> Argument:
    """An argument of an equation with its unit, default and what it may be."""
    words = own.doc if own.unit == "-" or own.choices else f"{own.doc} [{own.unit}]"
    if own.choices:
        words = f"{words}: {', '.join(own.choices)}"
    if own.default is None:
        return Argument(own.name, f"{words}.")
    default = own.default if isinstance(own.default, str) else f"{own.default:g}"
    return Argument(own.name, f"{words}; left out: {default}.", optional=True)


def _cost_functions() -> list[Function]:
    equations = [
        Function(PREFIX + name, f"{equation.doc} A column against a row gives a table.",
                 tuple(map(_argument, equation.inputs)), "equation")
        for name, equation in EQUATIONS.items()
    ]  # fmt: skip
    return [
        *equations,
        Function(
            "XLPERF_PACKAGE_COST",
            "Cost of one good module of a chiplet design: dies, package, memory, test and what is lost [USD]; or one "
            "part of it.",
            (DESIGN, PART, CATALOG, HEADER),
            "designs",
            "module_cost",
        ),
        Function(
            "XLPERF_ACCELERATOR_COST",
            "Cost of one accelerator of a chiplet design: module, board and its share of one-time costs [USD].",
            (DESIGN, CATALOG, HEADER),
            "designs",
            "unit_cost",
        ),
        Function(
            "XLPERF_SERVER_COST",
            "Cost of an accelerator-hour in a server that is owned: accelerator, server, network, building, upkeep and "
            "energy [USD/h]; or one part or other result of it, in the unit of the results of servers.",
            (SERVER, HOUR_PART, CATALOG, HEADER),
            "servers",
            "cost_rate",
        ),
        Function(
            "XLPERF_DEVICE",
            "What a device becomes of its node, budgets and shares: one of its rates, capacities, bandwidths, powers, "
            "areas or costs, in the unit of `xlperf device`.",
            (DEVICE, QUANTITY, CATALOG, HEADER),
            "devices",
        ),
    ]


def _plans(kind: str) -> Argument:
    return Argument("plans", f"A table of {kind} plans with its header row, or two columns (name, value).")


# A result that only one kind of plan has, and the result that stands for it in the other kind.
STAND_INS = {("inference", "cost_per_million_tokens"): "cost_per_million_output_tokens_all_in"}


def _unit_words(column: Column) -> str:
    if column.kind == "result-flag":
        return "TRUE or FALSE"
    return "text" if column.kind == "result-text" else column.unit or "-"


def _value_doc(name: str) -> str:
    """What a value function shows, with its unit, for the kinds of plan that have the result."""
    said = {}
    for kind in PLAN_TABLES:
        column = results_of(kind).by_name.get(STAND_INS.get((kind, name), name))
        if column is not None:
            said[kind] = f"{column.meaning} [{_unit_words(column)}]."
    if len(set(said.values())) == 1:
        return f"{next(iter(said.values()))} {' and '.join(said).capitalize()} plans."
    return " ".join(f"{kind.capitalize()}: {words}" for kind, words in said.items())


def _value_functions() -> list[Function]:
    names = dict.fromkeys(column.name for kind in PLAN_TABLES for column in results_of(kind).columns)
    return [
        Function(PREFIX + name.upper(), _value_doc(name), (PLAN, CATALOG, HEADER), "values", name) for name in names
    ]


@cache
def functions() -> dict[str, Function]:
    """Every worksheet function by name, in the order in which a wizard lists them."""
    fixed = [
        Function(
            "XLPERF_CATALOG",
            "Reads tables and returns a short text that names their content: the catalog of the other functions. A "
            "table that is given replaces the shipped one of its kind.",
            (TABLES,),
            "handle",
        ),
        *(
            Function(
                PREFIX + kind.upper(),
                f"All results of {kind} plans in one call: a header row with units, then one row per plan. {SPILL}",
                (_plans(kind), RESULTS, CATALOG, HEADER),
                "block",
            )
            for kind in PLAN_TABLES
        ),
        Function(
            "XLPERF_EXPLAIN",
            "The operators of one plan with FLOP, bytes, time and what the time waits for: a header row with units, "
            f"then one row per operator. {SPILL}",
            (PLAN, CATALOG, HEADER),
            "block",
        ),
        Function(
            "XLPERF_TIME",
            "Time of one collective or kernel by itself, as plans have it [us]; or its bandwidth, rate, bound or "
            "calibration, in the unit of `xlperf time`.",
            (OPERATION, RATE, CATALOG, HEADER),
            "operations",
            "time",
        ),
        Function(
            "XLPERF_FRONTIER",
            "Throughput of an accelerator against speed for a user: points of inference plans and loads that nothing "
            "beats in both, those that miss the plan's ttft target or tpot target left out. "
            f"{SPILL}",
            (_plans("inference"), VARY, RESULTS, CATALOG, HEADER),
            "block",
        ),
        Function(
            "XLPERF_SEARCH",
            "The best of all plans that the cells with auto of a plan stand for, or that a blank mapping leaves open: "
            f"legal, in memory, within targets. A header row, then a row per plan with choice and results. {SPILL}",
            (PLAN, TOP, OBJECTIVE, CATALOG, HEADER),
            "block",
        ),
        Function(
            "XLPERF_CHECK",
            "Says in words what is wrong with a plan, or with a table of the catalog, or what was assumed; ok where "
            "there is nothing to say.",
            (PLAN, CATALOG, HEADER),
            "words",
        ),
    ]
    return {function.name: function for function in fixed + _cost_functions() + _value_functions()}
