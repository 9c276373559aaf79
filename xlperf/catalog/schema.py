"""The schema as data: every column of every sheet, its unit, bounds, default and meaning; and the questions.

``schema/<table>.csv`` declares the columns of each table; readers, checks, drop-downs and the guide follow. Marks:
``auto`` may replace a value; ``whole`` numbers; columns of the ``mapping``; the ``group`` of results that add up;
``larger`` is better; and where a column is ``shown``: ``answer`` in a terminal, ``tile`` and ``note`` on its sheet,
``front`` for a table. A row of ``questions.csv`` is a form with its results and tables. Commands import this module
before they run: it imports numpy only where it computes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlperf.base import resources
from xlperf.base.errors import printable
from xlperf.base.units import UNITS, Unit

if TYPE_CHECKING:
    import numpy as np

    from xlperf.catalog.table import Table


@dataclass(frozen=True)
class Question:
    """A question and its views.

    ``sheet``: its front sheet. ``words``: the title there. ``sliders``: entries that a slider of a page may move: the
    first with a number. ``tables``: titles of the tables beside the answer; sheets show the first. ``chart``:
    ``line``, ``bars``, ``stacked`` or ``lying`` bars and columns of that table, the abscissa first. ``chart_words``:
    its title, "" by its columns. ``marked``: the result that stands first in the row of the answer. ``reads``: catalog
    sheets of this question alone. ``rows``: of the first table on the sheet, most of them.
    """

    form: str
    sheet: str
    words: str
    sliders: tuple[tuple[str, ...], ...]
    tables: Mapping[str, str]
    chart: tuple[str, ...]
    chart_words: str
    marked: str
    reads: tuple[str, ...]
    rows: int

    def table(self, name: str) -> str:
        """Schema of a table beside the answer: ``sessions_tiers``."""
        return f"{self.form}_{name}"


@cache
def questions() -> dict[str, Question]:
    """The questions by form."""
    known = {}
    for row in resources.rows("catalog/questions.csv"):
        chart, _, chart_words = row["chart"].partition(" = ")
        tables = [part.split(" = ") for part in row["tables: name = words"].split("; ") if part]
        known[row["form"]] = Question(
            row["form"],
            row["sheet"],
            row["question"],
            tuple(tuple(names.split("|")) for names in row["sliders"].split()),
            dict(tables),
            tuple(chart.split()),
            chart_words,
            row["marked"],
            tuple(row["reads"].split()),
            int(row["rows"] or 11),
        )
    return known


def titled(schema: str, name: str) -> str:
    """Title of a table beside the answer to a question, or its name.

    >>> titled("serve_results", "ways"), titled("search", "inputs")
    ('Ways to serve', 'Inputs')
    """
    question = questions().get(schema.partition("_")[0])
    return (question.tables if question else {}).get(name, name.replace("_", " ").capitalize())


CATALOG_TABLES = ("accelerators", "networks", "models", "prices", "calibration")
COST_TABLES = ("process_nodes", "packages", "chiplets", "servers")
"""Catalog tables of the cost half: no plan of training or inference needs them."""
TECHNOLOGY_TABLES = ("technology", "memories", "links", "cores", "devices")
"""Technology tables from which accelerators are derived; only accelerators that name a device need them."""
OWN_RUNS = "own_runs"
OWN_TABLES = (OWN_RUNS,)  # catalog tables of the user alone: measured runs, which predictions are corrected by
MARKET_TABLES = ("api_prices",)  # market prices for comparison with answers; no plan needs them
QUESTION_TABLES = tuple(dict.fromkeys(kind for one in questions().values() for kind in one.reads))
"""Catalog tables that a question reads beside its form."""
OPTIONAL_TABLES = (*COST_TABLES, *MARKET_TABLES, *QUESTION_TABLES, *TECHNOLOGY_TABLES, *OWN_TABLES)
"""Catalog tables that a workbook may lack."""
EVERY_TABLE = (*CATALOG_TABLES, *OPTIONAL_TABLES)
PLAN_TABLES = ("training", "inference")
MEASURED, ERROR = "measured_", "error_"  # prefixes of columns: measured results beside plans, and errors beside results
OWN = "own"  # table of the user's own columns beside the schema's
FORMS = tuple(questions())  # forms of the front sheets: a question, answered by a solver of :mod:`xlperf.explore.forms`
_QUANTILE = re.compile(r"[_ ](?:median|ninetieth|ninety[_ ]ninth)$")
_HEADER = re.compile(r"^(?P<name>.*?)\s*(?:[(\[](?P<unit>[^()\[\]]*)[)\]])?\s*$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a sheet.

    ``kind`` is one of name, text, number, flag, choice, reference, result, result-flag, result-text.
    ``unit`` is the unit that a header without one means, and the unit in which results are shown. ``instead`` is the
    column of the same row that fills a required one that is blank; "" if nothing does.
    """

    table: str
    name: str
    kind: str
    unit: str
    default: str
    bounds: str
    choices: tuple[str, ...]
    reference: str
    required: bool
    meaning: str
    instead: str = ""
    may_be_auto: bool = False  # whether the word ``auto`` may stand in place of a value
    is_whole: bool = False  # whether values are whole numbers
    is_mapping: bool = False  # whether the column places the model on accelerators
    is_larger_better: bool = False  # whether a search maximises the result; else it minimises it
    group: str = ""  # group of results that add up to a total
    shown: tuple[str, ...] = ()  # views that show the column by default, and its place: ``search:1``
    is_text: bool = field(init=False, repr=False, compare=False)  # text, else float64 with flags as 0, 1 or NaN

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_text", self.kind in ("name", "text", "choice", "reference", "result-text"))

    @property
    def header(self) -> str:
        """Header as xlperf writes it: ``memory bandwidth (TB/s)``; of the user's own column as it is written."""
        if self.table == OWN:
            return self.name
        return f"{self.words} ({self.unit})" if self.unit not in ("", "-") else self.words

    @property
    def words(self) -> str:
        """Name as a person writes it: ``memory bandwidth``."""
        return self.name.replace("_", " ")

    def amount(self, value: float, digits: str = "") -> str:
        """A number in the unit used inside as the column shows it, with its unit: ``4 TB/s``."""
        unit = f" {self.unit}" if self.unit not in ("", "-") else ""
        number = value / unit_of(self).factor
        return f"{number:{digits}}{unit}" if digits else f"{brief(number)}{unit}"

    def array(self, values: Sequence[object]) -> np.ndarray:
        """Values of the column as an array, of objects if they are text."""
        import numpy as np  # not by commands that only show the schema

        return np.array(values, dtype=object if self.is_text else np.float64)

    @property
    def is_result(self) -> bool:
        """Whether xlperf computes it."""
        return self.kind.startswith("result")

    @property
    def entries(self) -> tuple[str, ...]:
        """Words that a choice or a flag may hold, ``auto`` last if allowed; none for other kinds."""
        words = ("yes", "no") if self.kind == "flag" else self.choices
        return (*words, "auto") if words and self.may_be_auto else words

    @property
    def limits(self) -> tuple[float, float, bool]:
        """Lowest and highest value allowed, and whether the lowest itself is excluded."""
        if not self.bounds:
            return float("-inf"), float("inf"), False
        low, _, high = self.bounds.partition("..")
        return float(low.lstrip(">=")), float(high or "inf"), low[0] == ">" and low[1] != "="

    @property
    def has_ceiling(self) -> bool:
        """Whether the highest value allowed only catches a unit that is off by a thousand: ``>0..20`` GHz."""
        return self.bounds.startswith(">") and ".." in self.bounds

    @property
    def bounds_text(self) -> str:
        """The bounds in words, a ceiling left out: ``a number above 0 (TB/s)``."""
        low, high, exclusive = self.limits
        if not self.bounds:
            words = "a number"
        elif high != float("inf") and not self.has_ceiling:
            words = f"a number from {low:g} to {high:g}"
        else:
            words = f"a number {'above' if exclusive else 'of at least'} {low:g}"
        return f"{words} ({self.unit})" if self.unit not in ("", "-") else words


@dataclass(frozen=True)
class TableSchema:
    """The columns of one sheet; the first is its key and names its kind."""

    name: str
    columns: tuple[Column, ...]
    # Optional: measurements of plans (measured_step_time), prediction over measurement less 1 (error_step_time)
    measured: tuple[Column, ...] = ()
    by_name: dict[str, Column] = field(init=False, repr=False, compare=False)
    key: Column = field(init=False, repr=False, compare=False)  # First column
    references: tuple[Column, ...] = field(init=False, repr=False, compare=False)  # columns that name rows of tables

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {column.name: column for column in (*self.columns, *self.measured)})
        object.__setattr__(self, "key", self.columns[0])
        object.__setattr__(self, "references", tuple(column for column in self.columns if column.kind == "reference"))


@cache
def schema() -> dict[str, TableSchema]:
    """All tables by name; tables of results are separate (``training_results``, ``inference_results``)."""
    rows = {path.stem: _columns(path) for path in sorted(Path(__file__).with_name("schema").glob("*.csv"))}
    beside = {name: columns for kind in PLAN_TABLES for name, columns in _measured(kind, rows[f"{kind}_results"])}
    beside[OWN_RUNS] = _of_own_runs(rows, [column for kind in PLAN_TABLES for column in beside[kind]])
    return {name: TableSchema(name, tuple(columns), beside.get(name, ())) for name, columns in rows.items()}


def _columns(path: Path) -> list[Column]:
    """Columns that a file of the schema declares; marks that it has no column for are blank."""
    columns = []
    for row in resources.rows(f"catalog/schema/{path.name}"):
        mark, names = row.get("required", ""), ("unit", "default", "bounds", "reference", "group")
        marks = {"may_be_auto": "auto", "is_whole": "whole", "is_mapping": "mapping", "is_larger_better": "larger"}
        others: dict[str, Any] = {name: row.get(name, "") for name in names}
        others |= {name: row.get(word) == "yes" for name, word in marks.items()}
        others |= {"required": mark == "yes", "choices": tuple(row.get("choices", "").split())}
        others["shown"] = tuple(row.get("shown", "").split())
        others["instead"] = mark.removeprefix("without ") if mark.startswith("without ") else ""
        columns.append(Column(path.stem, row["column"], row["kind"], meaning=row["meaning"], **others))
    return columns


def _measured(kind: str, results: Sequence[Column]) -> Iterator[tuple[str, tuple[Column, ...]]]:
    """Columns for measured values of each result in numbers of a plan table, and for errors of its predictions."""
    numbers = [one for one in results if one.kind == "result" and not one.name.endswith(("_low", "_high"))]
    beside: dict[str, Any] = {"table": kind, "kind": "number", "bounds": ">0"}
    errors = "Prediction over measurement less 1: "
    yield kind, tuple(replace(c, name=MEASURED + c.name, meaning=f"Measured: {c.meaning}", **beside) for c in numbers)
    beside_results = (replace(c, name=ERROR + c.name, unit="-", meaning=errors + c.meaning) for c in numbers)
    yield f"{kind}_results", tuple(beside_results)


def _of_own_runs(rows: dict[str, list[Column]], measured: Sequence[Column]) -> tuple[Column, ...]:
    """Columns of a measured run beside its sheet: other settings of plans and results. Choices join."""
    beside: dict[str, Column] = {}
    shown_already = {column.name for column in rows[OWN_RUNS]} | {"name"}
    for column in (*rows["training"], *rows["inference"], *measured):
        if column.name in shown_already:
            continue
        known, own = beside.get(column.name), replace(column, table=OWN_RUNS, default="", may_be_auto=False)
        if known is not None and known.kind != own.kind:
            own = replace(own, kind="text", choices=())
        elif known is not None:
            own = replace(known, choices=tuple(dict.fromkeys((*known.choices, *own.choices))))
        beside[column.name] = replace(own, required=False, is_mapping=False)
    return tuple(beside.values())


def mean_of(result: str) -> str:
    """Result whose median or other quantile over requests a result is; the result itself if it is no quantile.

    >>> mean_of("ttft_ninety_ninth"), mean_of("tpot median"), mean_of("step time")
    ('ttft', 'tpot', 'step time')
    """
    return _QUANTILE.sub("", result)


@cache
def table_schema(name: str) -> TableSchema:
    """Schema of one table; results of owned plans have the columns of plans and of owners."""
    own = {owned_kind(kind): kind for kind in PLAN_TABLES}.get(name)
    if own is None:
        return schema()[name]
    results = results_of(own)
    beside = [one for one in schema()["ownership"].columns if one.kind == "result" and one.name not in results.by_name]
    return TableSchema(name, (*results.columns, *beside), results.measured)


def owned_kind(plan_table: str) -> str:
    """Name of the table of plan results with the owner's results beside them."""
    return f"{plan_table}_owned_results"


def column(table: str, name: str) -> Column:
    """One column of one table."""
    return schema()[table].by_name[name]


@cache
def results_of(plan_table: str) -> TableSchema:
    """Schema of the results of a plan table."""
    return schema()[f"{plan_table}_results"]


@cache
def unit_of(column_: Column) -> Unit:
    """The unit that a header of this column means when it states none; words of a study's own unit scale nothing."""
    return UNITS.get(column_.unit, UNITS["-"])


@cache
def auto_columns(table: str) -> tuple[str, ...]:
    """Columns of plans and forms in which the word ``auto`` lets a search choose the value."""
    return tuple(column.name for column in schema()[table].columns if column.may_be_auto)


@cache
def mapping_columns(table: str) -> tuple[str, ...]:
    """Columns of plans that place the model on accelerators."""
    return tuple(column.name for column in schema()[table].columns if column.is_mapping)


@cache
def grouped(table: str, group: str) -> tuple[str, ...]:
    """Results of a group, which add up to a total: the parts of the memory, of the time."""
    return tuple(column.name for column in schema()[table].columns if column.group == group)


@cache
def shown_columns(table: str, view: str) -> tuple[str, ...]:
    """Columns that a view shows by default, in its order."""
    places = [
        (int(place), column.name)
        for column in schema()[table].columns
        for name, _, place in (word.partition(":") for word in column.shown)
        if name == view
    ]
    return tuple(name for _, name in sorted(places))


def known_units(dimension: str) -> list[str]:
    """Unit symbols of one dimension, the plain spelling of each."""
    return [symbol for symbol, unit in UNITS.items() if unit.dimension == dimension and symbol not in ("1", "µs")]


@lru_cache(maxsize=4096)
def split_header(text: str) -> tuple[str, str | None]:
    """Canonical column name and unit symbol of a header, None without a unit.

    >>> split_header("memory bandwidth (TB/s)")
    ('memory_bandwidth', 'TB/s')
    >>> split_header("Peak FLOP rate BF16")
    ('peak_flop_rate_bf16', None)
    """
    match = _HEADER.match(text.strip())
    assert match is not None  # the pattern matches any text
    name = re.sub(r"[\s_\-]+", "_", match["name"].rstrip(" ?:*").strip() or match["name"].strip()).casefold()
    symbol = match["unit"]
    return name, symbol.strip() if symbol is not None else None


def own_column(header: str, is_text: bool) -> Column:
    """A column of the user's own, of text or of numbers without a unit."""
    kind = "text" if is_text else "number"
    return Column(OWN, header, kind, "" if is_text else "-", "", "", (), "", False, "Column of the user's own")


_LAYOUTS = dict.fromkeys(
    ("parallelism", "parallelization", "parallelisation", "parallelstrategy", "parallelconfig", "parallellayout"),
    "tensor parallel, pipeline parallel, expert parallel",
)
AMBIGUOUS = {
    "training": {**_LAYOUTS, **dict.fromkeys(("batch", "batchsize"), "global batch size, micro batch size")},
    "inference": {
        **_LAYOUTS,
        **dict.fromkeys(
            ("dp", "dpsize", "dpdegree", "dataparallel", "dataparallelsize", "dataparallelism"),
            "data parallel attention; replicas of the whole model follow from num accelerators",
        ),
        "seqlen": "prompt length, output length",
        "sequencelength": "prompt length, output length",
        "contextlength": "prompt length, output length",
    },
}
"""Headers of the trade that may mean several columns of plans of a kind, with these columns; by :func:`squeezed`."""


def squeezed(name: str) -> str:
    """Letters and digits of a header, for comparison: ``# GPUs`` and ``num_gpus`` are the same.

    >>> squeezed("# GPUs"), squeezed("Seq-Len")
    ('numgpus', 'seqlen')
    """
    return re.sub(r"[\W_]+", "", name.replace("#", "num ").casefold())


@cache
def _trade() -> tuple[dict[str, dict[str, str]], dict[str, frozenset[str]]]:
    """Columns by the headers of the trade, by kind of table; and the counted nouns of each column."""
    columns: dict[str, dict[str, str]] = {kind: {} for kind in (*PLAN_TABLES, *FORMS)}
    nouns: dict[str, frozenset[str]] = {}
    for row in resources.rows("catalog/aliases.csv"):
        nouns[row["column"]] = frozenset(row["counts"].split())
        for kind in row["tables"].split() or columns:
            if kind in columns and row["column"] in table_schema(kind).by_name:
                words = map(squeezed, filter(None, row["aliases"].split(";")))
                columns[kind].update(dict.fromkeys(words, row["column"]))
    return columns, nouns


@cache
def choice_aliases() -> dict[str, str]:
    """Choices by other spellings of them.

    >>> choice_aliases()["bfloat16"], choice_aliases()["fp8-e4m3"]
    ('bf16', 'fp8')
    """
    rows = resources.rows("catalog/choice_aliases.csv")
    return {spelled: row["choice"] for row in rows for spelled in row["aliases"].split(";")}


def counted_nouns(column_: Column) -> frozenset[str]:
    """Nouns in a header that replace the unit of a count: tokens, requests, GPUs."""
    return _trade()[1].get(column_.name, frozenset())


@lru_cache(maxsize=4096)
def canonical(kind: str, name: str) -> str:
    """Name of the column of a table that a :func:`split_header` name means, by the schema or as the trade calls it;
    else the name.

    >>> canonical("inference", "isl"), canonical("training", "#_gpus"), canonical("training", "isl")
    ('prompt_length', 'num_accelerators', 'isl')
    """
    sheet = table_schema(kind)
    return name if name in sheet.by_name else _trade()[0].get(kind, {}).get(squeezed(name), name)


def trade_names(kind: str) -> list[str]:
    """Headers of the trade for columns of a kind, squeezed."""
    return list(_trade()[0].get(kind, ()))


def plan_names(header: Iterable[object]) -> set[str]:
    """Columns of plans of either kind that a header row names; unknown headers remain as written.

    >>> sorted(plan_names(["GPU", "ISL", "owner", None]))
    ['accelerator', 'owner', 'prompt_length']
    """
    names = [split_header(cell)[0] for cell in header if isinstance(cell, str) and cell.strip()]
    return {meant for name in names for meant in _meant_in_plans(name)}


@lru_cache(maxsize=4096)
def _meant_in_plans(name: str) -> tuple[str, ...]:
    """Columns of plans of either kind that a header may mean; itself if it means none."""
    meant = [canonical(kind, name) for kind in PLAN_TABLES]
    known = [one for one in meant if any(one in table_schema(kind).by_name for kind in PLAN_TABLES)]
    return tuple(dict.fromkeys(known)) or (name,)


def first_words(kind: str) -> dict[str, str]:
    """Initial values of the form of a kind, by column."""
    forms = resources.rows("workbook/forms.csv")
    return {row["column"]: row["value"] for row in forms if row["form"] == kind and row["column"]}


Part = tuple[Column, "np.ndarray"]  # A column and its values in the unit used inside
DIGITS, _IN_FULL = 4, 10_000.0
FLAGS = ("flag", "result-flag")


def parts(*tables: Table) -> list[Part]:
    """Columns of tables of equal length side by side, with their schema; a table's own ones after the others."""
    columns: list[Part] = []
    for table in tables:
        columns += [(table.schema.by_name[name], values) for name, values in table.columns.items()]
        columns += [(own_column(header, values.dtype == object), values) for header, values in table.own.items()]
    return columns


def shown(column: Column, values: np.ndarray) -> np.ndarray:
    """Values in the unit of the column; entries of a sheet as typed, 15 rather than 15.000000000000002."""
    import numpy as np

    factor = unit_of(column).factor
    if column.is_text or factor == 1.0:
        return values
    scaled = values / factor
    if column.table in EVERY_TABLE or column.table in PLAN_TABLES:
        entered = np.array([float(f"{value:.15g}") for value in scaled.tolist()])
        scaled = np.where(entered * factor == values, entered, scaled)
    return scaled


def values_of(column: Column, values: np.ndarray) -> list[str | float | bool | None]:
    """Values for JSON, in the unit of the column: whole numbers without a point, None if blank or not finite."""
    if column.is_text:
        return [str(value) or None for value in values.tolist()]
    if column.kind in FLAGS:
        return [bool(value) if value == value else None for value in values.tolist()]
    return [
        None if not math.isfinite(value) else int(value) if value.is_integer() and abs(value) < 2.0**53 else value
        for value in shown(column, values).tolist()
    ]


def cells(column: Column, values: np.ndarray) -> list[str]:
    """Values as people read them: numbers with the same decimals, flags as yes and no; "" if blank."""
    inside = shown(column, values).tolist()
    if column.is_text:
        return [printable(title_of(column, str(value))) for value in inside]
    if column.kind in FLAGS:
        return [{1.0: "yes", 0.0: "no"}.get(value, "") for value in inside]
    if column.name == "year":
        return [f"{value:.0f}" if value == value else "" for value in inside]
    return [rounded(value) for value in inside] if column.name in _MIXED else alike(inside)


_RELEASED = re.compile(r"(?P<name>.{1,40}?[A-Za-z])[\s:@=]+v?(?P<release>\d[\w.+-]{0,30})")
_MIXED = ("value_before", "value_after")  # Results with another quantity in each row: their decimals are not alike


@cache
def software_title(software: str) -> str:
    """Name of a stack or an engine in its makers' spelling; its release, if it has one, as in the name.

    >>> software_title("vllm"), software_title("sglang-0.5"), software_title("my-engine")
    ('vLLM', 'SGLang-0.5', 'my-engine')
    """
    titles = {row["software"]: row["title"] for row in resources.stack_rows("stack")}
    named, dash, release = software.rpartition("-")
    known = named in titles and release[:1].isdigit()
    return f"{titles[named]}{dash}{release}" if known else titles.get(software, software)


@lru_cache(maxsize=4096)
def spelled_software(text: str) -> tuple[str, str]:
    """Stack or engine that a person's spelling means, and the release beside its name; other names as they are.

    >>> spelled_software("vLLM v0.8.5"), spelled_software("TRT-LLM"), spelled_software("vllm-0.6")
    (('vllm', '0.8.5'), ('tensorrt-llm', ''), ('vllm-0.6', ''))
    """
    named = _RELEASED.fullmatch(text.strip())
    name, release = (named["name"], named["release"]) if named else (text, "")
    software = _software_words().get(squeezed(name), "")
    return (software, release) if software else (text, "")


@cache
def _software_words() -> dict[str, str]:
    """Software of stacks by its titles, labels, names and other spellings, squeezed."""
    rows = [(row["software"], word) for row in resources.stack_rows("stack") for word in (*row.values(),)[:4]]
    known = {software for software, _ in rows}
    rows += [(choice, word) for word, choice in choice_aliases().items() if choice in known]
    return {squeezed(word): software for software, word in rows if word}


def title_of(column: Column, word: str) -> str:
    """A word of a column as people read it: stacks and engines by their titles."""
    return software_title(word) if column.name.endswith("software") else word


def displayed(column: Column, values: np.ndarray) -> tuple[str, list[str]]:
    """Unit and cells of a column as people read it: shares in per cent, no unit for a plain number."""
    if column.name in PER_CENT and column.kind in ("number", "result"):
        return "%", per_cent(values.tolist(), 1 if column.name in _ROUGH else 2)
    return column.unit if column.unit not in ("", "-") else "", cells(column, values)


PER_CENT = (
    "memory_used", "head_room", "mfu", "mfu_causal", "hfu", "goodput", "effective_share", "elastic_share", "wait_share",
    "spare_share", "limit_share", "efficiency", "percentile", "idle_share", "saved_share", "utilization", "share",
    "unmet_share", "reused_share", "hit_rate", "hit_rate_accelerator", "hit_rate_host", "hit_rate_drive",
    "hit_rate_remote", "waiting_wins", "availability", "unavailability_without_spares", "unit_unavailability",
    "discount_rate", "probability", "remainder", "enough_share",
)  # fmt: skip
"""Results without a unit that people read in per cent."""
_ROUGH = ("probability", "remainder")  # Of these, what is never known to more than one decimal


def per_cent(shares: Sequence[float], most: int = 2) -> list[str]:
    """Shares in per cent with one decimal; with ``most`` if one of them is within 1 % of nothing or of all.

    A share that is not all never reads 100: it has more decimals.

    >>> per_cent([0.0904]), per_cent([0.5, 0.9986, 1.0]), per_cent([0.5, float("nan")]), per_cent([0.999953])
    (['9.0'], ['50.00', '99.86', '100.00'], ['50', ''], ['99.995'])
    """
    known = [share for share in shares if math.isfinite(share)]
    near = any(_NONE < min(abs(share), abs(1.0 - share)) < _NEAR for share in known)
    whole = all(abs(100.0 * share - round(100.0 * share)) < _NONE for share in known)
    decimals = 0 if whole else most if near else 1
    return [
        f"{100.0 * share:,.{_decimals(share, decimals) if most > 1 else decimals}f}" if math.isfinite(share) else ""
        for share in shares
    ]


def _decimals(share: float, least: int) -> int:
    """Decimals of a share in per cent, enough to tell it from all."""
    if not _NONE < 1.0 - share < _NEAR:
        return least
    decimals, halves = 0, 50.0 * (1.0 - share)
    while decimals < least or halves < 1.0:
        decimals, halves = decimals + 1, 10.0 * halves
    return decimals


_NONE, _NEAR = 1e-9, 0.01  # Shares that count as nothing, and as near nothing or all. [-]


def band_end(value: float) -> str:
    """An end of a band: as :func:`rounded`, from 10,000 on three significant digits.

    >>> band_end(32458.2), band_end(216.0), band_end(29.4512)
    ('32,500', '216', '29.45')
    """
    return rounded(float(f"{value:.3g}") if abs(value) >= _IN_FULL else value)


@cache
def viewed_columns(table: str) -> tuple[str, ...]:
    """Columns that a terminal shows of a table, in their order: rows of ``catalog/shown.csv``."""
    return tuple(row["column"] for row in resources.rows("catalog/shown.csv") if row["table"] == table)


def brief(value: float) -> str:
    """Four significant digits for a sentence, without trailing zeros; from 10,000 on in full.

    >>> brief(4.0), brief(0.012345), brief(302312.0)
    ('4', '0.01235', '302,312')
    """
    return f"{value:,.0f}" if abs(value) >= _IN_SENTENCES else f"{value:.4g}"


_IN_SENTENCES = 1e4  # from here on a number of four digits has an exponent [-]


def rounded(value: float) -> str:
    """Four significant digits, whole numbers in full.

    >>> [rounded(value) for value in (1234567.0, 6591.4, 0.0123456, 12.3456, float("nan"))]
    ['1,234,567', '6,591', '0.01235', '12.35', '']
    """
    if math.isnan(value):
        return ""
    if math.isinf(value) or value == 0.0:
        return f"{value:g}"
    if abs(value) >= _IN_FULL or value.is_integer():
        return f"{value:,.0f}"
    decimals = DIGITS - 1 - _place(value)
    return f"{value:,.{decimals}f}" if decimals <= DIGITS + 4 else f"{value:.{DIGITS - 1}e}"


def _place(value: float) -> int:
    """Power of ten of the first digit of a number."""
    return int(f"{value:.16e}".partition("e")[2])


def alike(values: Sequence[float]) -> list[str]:
    """Numbers of a column with the same decimals: four digits of the middle one, five of the largest at the most.

    Whole numbers have none.

    >>> alike([1927.0, 414.9, 213.34]), alike([3.449, 0.0, 2.4e-07]), alike([8.0, 16.0])
    (['1,927.0', '414.9', '213.3'], ['3.449', '0.000', '0.000'], ['8', '16'])
    """
    sizes = sorted(abs(value) for value in values if value and math.isfinite(value))
    if all(size.is_integer() for size in sizes):
        return [rounded(value) for value in values]
    places = len(sizes) // 2, len(sizes) // 10, -1
    middle, small, large = (_place(sizes[place]) for place in places)
    decimals = max(min(DIGITS - 1 - middle, DIGITS - large), min(1 - small, 2), 0)
    if decimals > DIGITS + 4:
        return [rounded(value) for value in values]
    shown = (round(value, decimals) + 0.0 for value in values)  # no -0
    return [f"{value:,.{decimals}f}" if math.isfinite(value) else rounded(value) for value in shown]
