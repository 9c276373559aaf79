"""The one registry of worksheet functions: names, arguments, texts of wizards; and the blocks that buttons write.

CSV files beside this module are the data, with a function for each result of the schema. Every host is generated from
the registry: ``answer`` names the handler of a function, ``kind`` the reader of an argument. A formula in a block
refers to its plan by distance (R1C1), so that a block works at any cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from string import Formatter

from xlperf.base.resources import rows, table
from xlperf.catalog.schema import PLAN_TABLES, results_of

PREFIX = "XLPERF_"
RESULTS = "xlperf results"  # where a function wizard lists the functions of one result each
PLACES = ("plan_address", "header_address")
"""Further arguments that the add-in of Excel hands over: where a plan and its header stand."""
# A result that only one kind of plan has, and the result that stands for it in the other kind.
STAND_INS = {("inference", "cost_per_million_tokens"): "cost_per_million_output_tokens_all_in"}
_SPILLING = ("results", "operators", "frontier", "search", "diagnosis", "uncertainty", "sensitivity", "worth")


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a worksheet function; every argument is a cell or a range of cells."""

    name: str
    doc: str
    kind: str  # the way to read its cells: a key of :data:`xlperf.addin.worker.READERS`
    optional: bool = False
    unit: str = "-"
    default: str = ""
    bounds: str = ""
    choices: tuple[str, ...] = ()

    @property
    def repeated(self) -> bool:
        """Whether a call may give it any number of times."""
        return self.kind == "tables"

    @property
    def limits(self) -> tuple[float, float, bool]:
        """Lowest and highest number allowed, and whether the lowest itself is excluded."""
        low, _, high = self.bounds.partition("..")
        return float(low.lstrip(">=")), float(high or "inf"), low.startswith(">") and not low.startswith(">=")

    @property
    def bounds_text(self) -> str:
        """Allowed numbers in words: ``a number above 0 (mm)``."""
        low, high, exclusive = self.limits
        if high != float("inf"):
            words = f"a number above {low:g} up to {high:g}" if exclusive else f"a number from {low:g} to {high:g}"
        else:
            words = f"a number {'above' if exclusive else 'of at least'} {low:g}"
        return words if self.unit == "-" else f"{words} ({self.unit})"


@dataclass(frozen=True, slots=True)
class Function:
    """One worksheet function."""

    name: str
    doc: str
    arguments: tuple[Argument, ...]
    # ``value`` (one result per plan), ``equation`` (a number, or a table for ranges), or a key of
    # :data:`xlperf.addin.answers.ANSWERS`
    answer: str
    rows: str = ""  # ``plans`` or ``plan`` of either kind, or a table of the schema
    result: str = ""  # the result column that it shows
    unit: str = ""  # of an equation
    category: str = RESULTS
    arguments_of_example: str = ""  # that work; a range of :func:`example_ranges` as its name in braces

    @property
    def says_faults(self) -> bool:
        """Whether a fault is a text in its cell rather than an error of the spreadsheet."""
        return self.answer == "check"

    @property
    def is_per_plan(self) -> bool:
        """Whether it shows one cell for one plan, so that adjacent plans can be computed together."""
        return self.answer in ("value", "check", "named")

    @property
    def call(self) -> str:
        """How it is called: ``XLPERF_STEP_TIME(plan, [catalog], [header])``."""
        words = [f"[{one.name}]" if one.optional else one.name for one in self.arguments]
        return f"{self.name}({', '.join(words)}{', ...' if self.arguments[-1].repeated else ''})"

    def example(self, places: Mapping[str, str]) -> str:
        """A formula that works, without the equals sign, its ranges at the places given by name.

        >>> functions()["XLPERF_STEP_TIME"].example({"training": "A1:B5"})
        'XLPERF_STEP_TIME(A1:B5)'
        """
        return f"{self.name}({self.arguments_of_example.format_map(places)})"

    @property
    def example_ranges(self) -> tuple[str, ...]:
        """Names of the ranges that its example reads."""
        return tuple(name for _, name, _, _ in Formatter().parse(self.arguments_of_example) if name)

    @property
    def spills(self) -> bool:
        """Whether it returns a header row and rows below it."""
        return self.answer in _SPILLING


_OF_EXPERT_POOLS = ("expert_memory", "attention_pool_share", "expert_pool_share", "expert_link_share", "expert_power")
"""Results that only a plan with a pool of accelerators for its experts has."""


@cache
def functions() -> dict[str, Function]:
    """Every worksheet function by name, in the order in which a wizard lists them."""
    known = _arguments()
    registry = {}
    for row in rows("addin/functions.csv"):
        name = row["function"]
        arguments = tuple(known.get((name, own)) or known["", own] for own in row["arguments"].split())
        known_by = (row["answer"], row["rows"], row["result"], row["unit"], row["category"], row["example"])
        registry[name] = Function(name, row["meaning"], arguments, *known_by)
    of_plans = tuple(known["", own] for own in ("plan", "catalog", "header"))
    for result in dict.fromkeys(column.name for kind in PLAN_TABLES for column in results_of(kind).columns):
        name = PREFIX + result.upper()
        kind = next(kind for kind in PLAN_TABLES if result in results_of(kind).by_name)
        example = "{experts}" if result in _OF_EXPERT_POOLS else f"{{{kind}}}"
        about = (of_plans, "value", "plans", result)
        registry[name] = Function(name, _meaning(result), *about, arguments_of_example=example)
    return registry


@cache
def result_functions() -> frozenset[str]:
    """Names of the functions that show one result."""
    return frozenset(name for name, function in functions().items() if function.answer == "value")


@cache
def example_ranges() -> dict[str, tuple[tuple[str | float, ...], ...]]:
    """Rows of cells of the ranges that examples read, by name.

    >>> example_ranges()["measured"]
    (('step time', 40.0),)
    """
    ranges: dict[str, tuple[tuple[str | float, ...], ...]] = {}
    for row in rows("addin/examples.csv"):
        cells = tuple(float(cell) if cell.replace(".", "").isdigit() else cell for cell in row["cells"].split(" | "))
        ranges[row["range"]] = (*ranges.get(row["range"], ()), cells)
    return ranges


def _arguments() -> dict[tuple[str, str], Argument]:
    """Arguments by function and name; shared arguments have the function ""."""
    arguments = {}
    for row in rows("addin/arguments.csv"):
        choices, unit, default = tuple(row["choices"].split()), row["unit"] or "-", row["default"]
        words = row["meaning"]
        if row["kind"] in ("number", "choice"):
            words += f": {', '.join(choices)}" if choices else f" [{unit}]" if unit != "-" else ""
            words += f"; left out: {default}." if default else "."
        about = (row["kind"], row["optional"] == "yes", unit, default, row["bounds"], choices)
        for function in row["function"].split() or [""]:
            arguments[function, row["argument"]] = Argument(row["argument"], words, *about)
    return arguments


def _meaning(result: str) -> str:
    """Text of the function of a result, with its unit, for the kinds of plan that have the result."""
    texts = {}
    for kind in PLAN_TABLES:
        column = results_of(kind).by_name.get(STAND_INS.get((kind, result), result))
        if column is not None:
            unit = {"result-flag": "TRUE or FALSE", "result-text": "text"}.get(column.kind, column.unit or "-")
            texts[kind] = f"{column.meaning} [{unit}]."
    if len(set(texts.values())) == 1:
        return f"{next(iter(texts.values()))} {' and '.join(texts).capitalize()} plans."
    return " ".join(f"{kind.capitalize()}: {words}" for kind, words in texts.items())


def glue(name: str) -> str:
    """A file that is copied into hosts."""
    return table(f"addin/glue/{name}").read_text(encoding="utf-8")


def archive(parts: Mapping[str, bytes]) -> bytes:
    """A zip archive of the files of a host; equal parts give equal bytes."""
    import io
    import zipfile

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as files:
        for name, content in parts.items():
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.compress_type, info.create_system, info.external_attr = zipfile.ZIP_DEFLATED, 3, 0o644 << 16
            files.writestr(info, content)
    return packed.getvalue()


_BLOCK_RANGES = ("plan", "measured")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a block: two cells, or a formula whose block of results starts in the first one."""

    kind: str  # ``title``, ``input``, ``result`` or ``block``
    label: str
    value: str | float = ""  # of a result or block the formula, its ranges as R1C1


@cache
def blocks() -> dict[str, tuple[Row, ...]]:
    """Rows of each block by name.

    >>> blocks()["serve"][7]
    Row(kind='input', label='ttft target (ms)', value=2000.0)
    """
    known = {}
    for name, group in groupby(rows("addin/blocks.csv"), lambda row: row["block"]):
        written: list[Row] = []
        lines: dict[str, list[int]] = {}
        for row in group:
            kind, label, text = row["row"], row["label"], row["value"]
            if kind in _BLOCK_RANGES:
                lines.setdefault(kind, []).append(len(written))
                written.append(Row("input", label, float(text) if text.replace(".", "").isdigit() else text))
            elif kind == "block":
                written += [Row("title", label), Row(kind, "", _formula(text, lines, len(written) + 1, 0))]
            else:
                written.append(Row(kind, label, _formula(text, lines, len(written), 1) if text else ""))
        known[name] = tuple(written)
    return known


def _formula(text: str, lines: dict[str, list[int]], row: int, column: int) -> str:
    """A formula in a row and column of a block, with the ranges of the block in the place of their names."""
    left, right = (f"C[{shift}]" if shift else "C" for shift in (-column, 1 - column))
    places = {name: f"R[{each[0] - row}]{left}:R[{each[-1] - row}]{right}" for name, each in lines.items()}
    return f"={text.format_map(places)}"
