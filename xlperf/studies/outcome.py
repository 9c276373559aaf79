"""Records of studies: workbook with settings and plans in; tables, charts and findings out."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache, partial
from importlib import import_module
from itertools import groupby, product
from pathlib import Path
from string import Formatter

import numpy as np

from xlperf.base import resources
from xlperf.base.errors import Fault, InputError, nearest, raise_faults
from xlperf.catalog.cards import beside
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.cells import number_of
from xlperf.catalog.cells import shown as cell_words
from xlperf.catalog.check import name_faults
from xlperf.catalog.read import read_catalog_tables, read_plan_tables
from xlperf.catalog.schema import Column, Part, table_schema, unit_of
from xlperf.catalog.table import Table, column_letters
from xlperf.catalog.xlsx import Cells, Workbook
from xlperf.engine.software import peak_names

Value = float | str | bool | None
SettingValue = float | str | tuple[str, ...] | tuple[float, ...]
Columns = list[tuple[Column | str, Iterable[object]]]
"""Heads of columns, of the schema or declared in columns.csv, and their values."""
_SHEETS = ("training", "inference", "networks", "models")
_ALTERNATIVES = " | "


@dataclass(frozen=True)
class Setting:
    """A value that a reader may change in the sheet ``study``; ``kind`` is number, text, numbers or texts.

    A cell lists values with commas between.
    """

    name: str
    kind: str
    default: SettingValue
    unit: str
    meaning: str


@dataclass(frozen=True)
class Finding:
    """A sentence with a short tag; ``tone`` is good, plain, warning or bad."""

    tag: str
    words: str
    tone: str = "plain"


@dataclass(frozen=True)
class Chart:
    """A chart of the columns of a sheet."""

    kind: str  # bars (horizontal), columns, lines or points
    title: str
    x: str  # Column of the labels, or of the horizontal axis
    y: Sequence[str]  # Columns of the series
    x_title: str = ""  # With unit
    y_title: str = ""  # With unit
    stacked: bool = False
    log_x: bool = False
    log_y: bool = False
    rows: tuple[int, int] | None = None  # First row, and the row after the last; None: all
    by: str = ""  # Column that names the series of a row; rows of a series are adjacent, one y


@dataclass(frozen=True)
class StudySheet:
    """A sheet of a study: one table, charts above it."""

    name: str  # At most 31 characters
    heading: str  # Content of the table in one sentence
    columns: Sequence[Column]  # Of the schema, or from own_column
    rows: Sequence[Sequence[Value]]  # Values in the unit of their column, or None
    charts: Sequence[Chart] = ()
    shaded: Sequence[str] = ()  # Columns of one heat map, light to dark

    def __post_init__(self) -> None:
        for by in {chart.by for chart in self.charts} - {""}:
            names = [name for name, _ in groupby(self.values(by))]
            if len(set(names)) < len(names):
                raise ValueError(f'sheet {self.name}: rows of a series of "{by}" are apart: {names}')

    @property
    def parts(self) -> list[Part]:
        """The columns of the table with their values in the units used inside."""
        each = [(column, self.values(column.name)) for column in self.columns]
        return [
            (column, np.array(["" if value is None else str(value) for value in values], dtype=object))
            if column.is_text
            else (column, self.numbers(column.name) * unit_of(column).factor)
            for column, values in each
        ]

    def values(self, column: str) -> list[Value]:
        """Values of a column."""
        index = [label.name for label in self.columns].index(column)
        return [row[index] for row in self.rows]

    def numbers(self, column: str) -> np.ndarray:
        """Values of a column of numbers, NaN where there is none."""
        return np.array([np.nan if value is None else value for value in self.values(column)], dtype=float)


@dataclass(frozen=True)
class Outcome:
    """Findings, sheets, and plans with results; ``catalog`` has derived devices, ``facts`` numbers of the advice."""

    findings: Sequence[Finding]
    sheets: Sequence[StudySheet]
    catalog: Catalog
    plans: Sequence[tuple[Table, Table]] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def short(self) -> Sequence[Finding]:
        """The first finding, which answers the question in two sentences."""
        return self.findings[:1]


@dataclass(frozen=True)
class Inputs:
    """Inputs of a study: the catalog with the rows of its workbook, plans by kind, settings by name."""

    catalog: Catalog
    plans: Mapping[str, Table]
    settings: Mapping[str, SettingValue]
    origin: str = ""

    @property
    def place(self) -> str:
        """The sheet of the settings in messages."""
        return f"{self.origin} [study]"

    def table(self, kind: str) -> Table:
        """Plans of a kind; InputError if the workbook has none."""
        if kind not in self.plans:
            raise InputError(Fault(self.origin, f"has no {kind} plans, which this study needs; fill the sheet {kind}"))
        return self.plans[kind]

    def number(self, name: str) -> float:
        """A setting of kind number."""
        value = self.settings[name]
        assert isinstance(value, float | int)
        return float(value)

    def text(self, name: str) -> str:
        """A setting of kind text."""
        return str(self.settings[name])

    def words(self, name: str) -> tuple[str, ...]:
        """A setting of kind texts."""
        value = self.settings[name]
        assert isinstance(value, tuple)
        return tuple(str(entry) for entry in value)

    def numbers(self, name: str) -> tuple[float, ...]:
        """A setting that is a list of numbers."""
        value = self.settings[name]
        assert isinstance(value, tuple)
        return tuple(float(entry) for entry in value)


@dataclass(frozen=True)
class Study:
    """A question, and the function that answers it."""

    name: str  # As in the command
    title: str
    question: str
    published: str  # Published figure with its source, or why there is none
    advice: str  # For an architect; {fact} is a fact of the outcome
    analyse: Callable[[Inputs], Outcome] = field(compare=False)
    settings: Sequence[Setting] = ()

    def advised(self, facts: Mapping[str, str]) -> str:
        """The advice with the facts of an outcome, without clauses that lack a fact."""
        clauses = [
            clause.format(**facts)
            for clause in self.advice.rstrip(".").split("; ")
            if {name for _, name, _, _ in Formatter().parse(clause) if name} <= set(facts)
        ]
        words = "; ".join(clauses)
        return f"{words[:1].upper()}{words[1:]}."

    def rows(self) -> dict[str, list[dict[str, object]]]:
        """Rows of the sheets of the shipped workbook: plans, and rows for the catalog.

        A cell ``a | b`` makes one row for each value, the first such column varying slowest; ``{column}`` is the value
        of another column of the row.
        """
        sheets: dict[str, list[dict[str, object]]] = {}
        for kind in _SHEETS:
            numbers = {column.name for column in table_schema(kind).columns if column.kind == "number"}
            rows = [row for line in _lines(kind, self.name) for row in _expanded(line, numbers)]
            if rows:
                sheets[kind] = rows
        return sheets


def _lines(file: str, study: str | None = None) -> list[dict[str, str]]:
    return [row for row in resources.rows(f"studies/{file}.csv") if study is None or row.pop("study") == study]


def _expanded(line: Mapping[str, str], numbers: Container[str]) -> list[dict[str, object]]:
    alternatives = [cell.split(_ALTERNATIVES) for cell in line.values()]
    grid = [dict(zip(line, cells, strict=True)) for cells in product(*alternatives)]
    rows = [{name: cell.format(**row) for name, cell in row.items() if cell} for row in grid]
    return [{name: float(cell) if name in numbers else cell for name, cell in row.items()} for row in rows]


def _setting(line: Mapping[str, str]) -> Setting:
    name, kind = line["setting"].replace(" ", "_"), line["kind"]
    return Setting(name, kind, setting_value(kind, line["value"]), line["unit"], line["meaning"])


def setting_value(kind: str, text: object, number: Callable[[object], float] | None = None) -> SettingValue:
    """The value of a setting (number, text, numbers or texts) from its cell; ``number`` converts one entry.

    >>> setting_value("numbers", "1, 2.5")
    (1.0, 2.5)
    """
    to_number = number or (lambda cell: float(str(cell)))
    if kind == "number":
        return to_number(text)
    words = str(text).strip()
    if kind == "text":
        return words
    parts = [part.strip() for part in words.split(",") if part.strip()]
    return tuple(to_number(part) for part in parts) if kind == "numbers" else tuple(parts)


def setting_text(value: SettingValue) -> float | str:
    """Text of a cell for a setting: lists with commas between their entries.

    >>> setting_text((1.0, 2.5, 3e6))
    '1, 2.5, 3000000'
    """
    if isinstance(value, tuple):
        return ", ".join(f"{entry:.12g}" if isinstance(entry, float | int) else entry for entry in value)
    return value


NAMES = tuple(line["study"] for line in _lines("studies"))  # names of the studies


@cache
def _study(name: str) -> Study:
    line = next(line for line in _lines("studies") if line["study"] == name)
    module, _, function = line["analysis"].partition(".")
    analyse = getattr(import_module(f"xlperf.studies.{module}"), function)
    settings = tuple(map(_setting, _lines("settings", name)))
    return Study(name, line["title"], line["question"], line["published"], line["advice"], analyse, settings)


def study(name: str) -> Study:
    """The study of a name in :data:`NAMES`, without regard to case; InputError if there is none.

    >>> study("Recompute").name
    'recompute'
    """
    wanted = name.strip().casefold()
    if wanted not in NAMES:
        raise InputError(Fault("--study", f'no study is named "{name}"; {nearest(name, NAMES)}'))
    return _study(wanted)


def own_column(name: str, unit: str = "-", meaning: str = "", kind: str = "result") -> Column:
    """A column of a study in the shape of a schema column."""
    unit = "" if kind in ("text", "result-text", "name") else unit
    return Column("study", name, kind, unit, "", "", (), "", False, meaning or name)


@cache
def _declared(file: str) -> dict[str, list[dict[str, str]]]:
    """Rows of sheets.csv, columns.csv or charts.csv by sheet."""
    by_sheet: dict[str, list[dict[str, str]]] = {}
    for line in _lines(file):
        by_sheet.setdefault(line["sheet"], []).append(line)
    return by_sheet


def _column(kind: str, name: str, facts: Mapping[str, object], key: bool) -> Column:
    """A column as columns.csv declares it, names with ``*`` for series; else one of labels."""
    for line in _declared("columns").get(kind, ()):
        if name == line["column"] or (not key and fnmatchcase(name, line["column"])):
            return own_column(name, line["unit"], line["meaning"].format(**facts))
    return own_column(name, kind="name" if key else "result-text")


def charts_of(
    sheet: str, series: Sequence[str] = (), rows: tuple[int, int] | None = None, **facts: object
) -> list[Chart]:
    """Charts that charts.csv declares for a sheet; ``series`` are the columns that it writes as ``*``."""
    return [
        Chart(
            line["kind"],
            line["title"].format(**facts),
            line["x"].format(**facts),
            tuple(series) if line["y"] == "*" else line["y"].split(),
            line["x title"].format(**facts),
            line["y title"],
            "stacked" in line["look"],
            "log x" in line["look"],
            "log y" in line["look"],
            rows,
            line["by"],
        )
        for line in _declared("charts").get(sheet, ())
    ]


def sheet_of(
    kind: str,
    columns: Iterable[tuple[Column | str, Iterable[object]]],
    charts: Sequence[Chart] | None = None,
    name: str = "",
    series: Sequence[str] = (),
    **facts: object,
) -> StudySheet:
    """A sheet that sheets.csv, columns.csv and charts.csv declare, from the values of its columns.

    ``facts`` stand in its heading, columns and charts. A column that is not declared holds labels, the key if it is
    first. NaN becomes None; a flag 1 or 0 a bool. ``charts`` take the place of declared charts.
    """
    heads: list[Column] = []
    values: list[list[Value]] = []
    for head, entries in columns:
        heads.append(_column(kind, head, facts, not heads) if isinstance(head, str) else head)
        values.append([_value(value, heads[-1].kind == "result-flag") for value in entries])
    line = _declared("sheets")[kind][0]
    drawn = charts_of(kind, series, None, **facts) if charts is None else charts
    rows = list(zip(*values, strict=True))
    heading, shaded = line["heading"].format(**facts), series if line["heat map"] else ()
    return StudySheet(name or kind, heading, heads, rows, drawn, shaded)


def _value(value: object, flag: bool) -> Value:
    if isinstance(value, float | int | np.number) and not isinstance(value, bool):
        number = float(value)
        return None if np.isnan(number) else bool(number) if flag else number
    return value if isinstance(value, bool) else str(value) if value not in (None, "") else None


def pivot_of(
    kind: str,
    key: str,
    keys: Iterable[object],
    series: Sequence[str],
    values: np.ndarray | Sequence[Sequence[object]],
    charts: Sequence[Chart] | None = None,
    name: str = "",
    **facts: object,
) -> StudySheet:
    """A sheet with a row for each key and a column for each series of one quantity, values (keys, series)."""
    columns = [(entry, [row[i] for row in values]) for i, entry in enumerate(series)]
    return sheet_of(kind, [(key, keys), *columns], charts, name, series, **facts)


def positions(values: Iterable[object]) -> tuple[list[str], np.ndarray]:
    """Distinct values in order of appearance, and the position of every value among them.

    >>> positions(["b", "a", "b"])
    (['b', 'a'], array([0, 1, 0]))
    """
    words = [str(value) for value in values]
    names = list(dict.fromkeys(words))
    place = {name: i for i, name in enumerate(names)}
    return names, np.array([place[word] for word in words], dtype=np.int64)


def runs(values: Sequence[object]) -> list[tuple[int, int]]:
    """Runs of equal values: the first row of each, and the row after its last.

    >>> runs(["a", "a", "b"])
    [(0, 2), (2, 3)]
    """
    ends = [i for i in range(1, len(values)) if values[i] != values[i - 1]]
    return list(zip([0, *ends], [*ends, len(values)], strict=True)) if values else []


def comparable(plans: Table, *columns: str) -> np.ndarray:
    """A group number for each plan; plans of a group differ only in their name and the named columns."""
    compared = [name for name in plans.columns if name not in ("name", *columns)]
    return positions("\n".join(str(plans[name][i]) for name in compared) for i in range(len(plans)))[1]


def row_named(table: Table, name: str, what: str, place: str) -> int:
    """Row of a name in a table, without regard to case; InputError if there is none."""
    names = [str(known) for known in table[table.schema.key.name]]
    row = next((row for row, known in enumerate(names) if known.casefold() == name.casefold()), None)
    if row is None:
        raise InputError(Fault(place, f'no {what} is named "{name}"; {nearest(name, names)}'))
    return row


def shown(results: Table, name: str) -> np.ndarray:
    """A result column in the unit of its header."""
    values: np.ndarray = results[name] / unit_of(results.schema.by_name[name]).factor
    return values


def result_columns(
    results: Table, names: Iterable[str], rows: slice | np.ndarray = slice(None)
) -> list[tuple[Column, np.ndarray]]:
    """Columns of results for :func:`sheet_of`, numbers in the unit of their header."""
    fields = results.schema.by_name
    return [
        (fields[name], (results[name] if fields[name].kind != "result" else shown(results, name))[rows])
        for name in names
    ]


def peak_rates(plans: Table, catalog: Catalog) -> np.ndarray:
    """Dense peak of each plan's accelerator in the precision of the plan. [FLOP/s]"""
    machines = catalog.tables["accelerators"]
    rows = catalog.rows("accelerators", plans["accelerator"], plans, "accelerator")
    columns = peak_names(plans, catalog)
    return np.array([machines.number(name)[row] for name, row in zip(columns, rows.tolist(), strict=True)])


def span(values: Iterable[float], digits: int = 0) -> str:
    """Smallest and largest of the finite values, as ``4 to 8``.

    >>> span([8.0, 4.0]), span([2.0])
    ('4 to 8', '2')
    """
    finite = [value for value in values if math.isfinite(value)]
    ends = [f"{value:,.{digits}f}" for value in (min(finite), max(finite))] if finite else ["-"]
    return " to ".join(dict.fromkeys(ends))


def figures(value: float) -> str:
    """A finite number with three significant digits, thousands apart; whole numbers in full.

    >>> figures(0.27182), figures(5.4999), figures(87890.1), figures(2.0)
    ('0.272', '5.50', '87,890', '2')
    """
    if value == 0.0 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.{max(2 - math.floor(math.log10(abs(value))), 0)}f}"


IN_SHORT = "In short"  # tag of the finding that answers the question of a study: two sentences with numbers


def in_short(*sentences: str, tone: str = "good") -> Finding:
    """The finding that answers the question of a study, from two sentences without full stops."""
    return Finding(IN_SHORT, " ".join(f"{words[:1].upper()}{words[1:]}." for words in sentences), tone)


@cache
def _templates() -> dict[str, dict[str, str]]:
    return {line["finding"]: line for line in _lines("findings")}


def finding(name: str, tone: str = "", /, **facts: object) -> Finding:
    """A finding that findings.csv words, with facts in it.

    >>> finding("memory never pays", case="growth 10 %").tag
    'growth 10 %'
    """
    line = _templates()[name]
    return Finding(line["tag"].format(**facts), line["words"].format(**facts), tone or line["tone"])


SHEET = "study"


def study_workbook(name: str) -> Path:
    """Path of the shipped workbook of a study.

    >>> study_workbook("recompute").name
    'recompute.xlsx'
    """
    return resources.template("studies") / f"{name}.xlsx"


def read_inputs(study: Study, path: str | Path | None = None, catalog: str | Path | None = None) -> Inputs:
    """Inputs of a study from its workbook or the shipped one, with rows that replace catalog rows of the same name."""
    source = Path(path) if path is not None else study_workbook(study.name)
    settings, faults = _settings(study, source)
    tables, more = read_catalog_tables(source, required=False)
    faults += more
    plans: list[Table] = []
    with Workbook(source) as book:
        has_plans = any(book.sheet(kind) is not None for kind in ("training", "inference"))
    if has_plans:
        plans, more = read_plan_tables(source)
        faults += more
    raise_faults(faults)
    merged = with_rows(load_catalog(catalog), tables)
    faults = name_faults(plans, merged)
    raise_faults(faults)
    return Inputs(merged, {table.kind: _whole(table) for table in plans if len(table)}, settings, source.name)


def _whole(table: Table) -> Table:
    """A table with every column of its schema, blank if the source lacks it."""
    columns = {
        column.name: table.text(column.name) if column.is_text else table.number(column.name)
        for column in table.schema.columns
    }
    return replace(table, columns=columns)


def with_rows(catalog: Catalog, tables: Iterable[Table]) -> Catalog:
    """A catalog with rows added; a row replaces rows of the same name."""
    added = [beside(catalog.tables[table.kind], [table]) for table in tables if len(table)]
    return catalog.with_tables(added) if added else catalog


def _settings(study: Study, path: Path) -> tuple[dict[str, SettingValue], list[Fault]]:
    """Settings of the sheet, defaults for missing settings, and every fault."""
    values = {setting.name: setting.default for setting in study.settings}
    by_name = {setting.name: setting for setting in study.settings}
    faults: list[Fault] = []
    with Workbook(path) as book:
        sheet = book.sheet(SHEET)
        cells: Cells = book.cells(sheet) if sheet is not None else {}
        name = book.name
    head = next((row for row in sorted(cells) if str(cells[row].get(1, "")).strip().casefold() == "setting"), None)
    for row in [] if head is None else [row for row in sorted(cells) if row > head]:
        word = str(cells[row].get(1) or "").strip()
        if not word:
            continue
        setting = by_name.get(word.casefold().replace(" ", "_"))
        if setting is None:
            hint = partial(nearest, word, tuple(entry.replace("_", " ") for entry in by_name))
            place = f"{name} [{SHEET}!{column_letters(1)}{row}]"
            faults.append(Fault(place, f'no setting "{word}" in the study {study.name}', hint))
            continue
        value = cells[row].get(2)
        if value is None or value == "":
            continue
        try:
            values[setting.name] = setting_value(setting.kind, value, partial(_number, setting))
        except ValueError as problem:
            faults.append(Fault(f"{name} [{SHEET}!{column_letters(2)}{row}]", str(problem)))
    return values, faults


def _number(setting: Setting, value: object) -> float:
    number = float("nan")
    if not isinstance(value, bool) and isinstance(value, int | float | str):
        number = number_of(value) if isinstance(value, str) else float(value)
    if not np.isfinite(number):
        raise ValueError(f"{setting.name.replace('_', ' ')} must be a number, got {cell_words(value)}")
    return number
