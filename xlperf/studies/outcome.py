"""What a study is and what it gives: settings in, tables with charts and findings out. No spreadsheet is known here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from xlperf.base.errors import Fault, InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import Column, unit_of
from xlperf.catalog.table import Table

Value = float | str | bool | None
Rows = Sequence[Mapping[str, object]]


@dataclass(frozen=True)
class Setting:
    """A number or a text that a reader may change in the sheet ``study``.

    ``default`` says by its type what the value is: a number, a text, or a list of texts or numbers, which a cell holds
    with commas between.
    """

    name: str
    default: float | str | tuple[str, ...] | tuple[float, ...]
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
    """A chart of the columns of a sheet.

    Attributes
    ----------
    kind : str
        ``bars`` (horizontal), ``columns``, ``lines`` or ``points``.
    title : str
    x : str
        Column of the labels of bars and columns, or of the horizontal axis.
    y : sequence of str
        Columns of the series.
    x_title, y_title : str
        What the axes are, with units.
    stacked : bool
        Whether bars and columns follow each other.
    log_x, log_y : bool
        Whether an axis is logarithmic.
    rows : tuple of int, optional
        First row that is drawn, and the first that is not; all when not given.
    """

    kind: str
    title: str
    x: str
    y: Sequence[str]
    x_title: str = ""
    y_title: str = ""
    stacked: bool = False
    log_x: bool = False
    log_y: bool = False
    rows: tuple[int, int] | None = None


@dataclass(frozen=True)
class StudySheet:
    """A sheet of a study: one table, charts above it.

    Attributes
    ----------
    name : str
        Name of the sheet, at most 31 characters.
    heading : str
        What the table shows, in one sentence.
    columns : sequence of Column
        Of the schema, or made by :func:`own_column`.
    rows : sequence of sequence
        Values in the unit of their column; None or NaN where there is none.
    charts : sequence of Chart
    shaded : sequence of str
        Columns whose numbers are shaded together, from low (light) to high (dark): a map.
    """

    name: str
    heading: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Value]]
    charts: Sequence[Chart] = ()
    shaded: Sequence[str] = ()

    def values(self, column: str) -> list[Value]:
        """Values of a column."""
        index = [found.name for found in self.columns].index(column)
        return [row[index] for row in self.rows]


@dataclass(frozen=True)
class Outcome:
    """What a study found: findings, sheets, and plans with their results for the sheets that any report has.

    ``catalog`` is what the plans were computed with: devices that the study derived are rows of it.
    """

    findings: Sequence[Finding]
    sheets: Sequence[StudySheet]
    catalog: Catalog
    plans: Sequence[tuple[Table, Table]] = ()


@dataclass(frozen=True)
class Inputs:
    """What a study starts from: the catalog with the rows that its workbook adds, plans by kind, settings by name."""

    catalog: Catalog
    plans: Mapping[str, Table]
    settings: Mapping[str, float | str | tuple[str, ...] | tuple[float, ...]]
    origin: str = ""

    def table(self, kind: str) -> Table:
        """Plans of a kind that the study needs.

        Raises
        ------
        InputError
            When the workbook has none.
        """
        if kind not in self.plans:
            raise InputError(Fault(self.origin, f"has no {kind} plans, which this study needs; fill the sheet {kind}"))
        return self.plans[kind]

    def number(self, name: str) -> float:
        """A setting that is a number."""
        value = self.settings[name]
        assert isinstance(value, float | int)
        return float(value)

    def text(self, name: str) -> str:
        """A setting that is a text."""
        return str(self.settings[name])

    def words(self, name: str) -> tuple[str, ...]:
        """A setting that is a list of texts."""
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
    """A question and how it is answered.

    Attributes
    ----------
    name : str
        As the command takes it.
    title, question : str
        Heads of the report.
    published : str
        Which published figure it reproduces, with its source, or why none could be had.
    analyse : callable
        From inputs to an outcome.
    settings : sequence of Setting
    rows : callable
        Rows of the sheets of the study's workbook as it comes: plans, and rows that are added to the catalog.
    full : mapping
        Settings that ``--full`` takes the place of.
    """

    name: str
    title: str
    question: str
    published: str
    analyse: Callable[[Inputs], Outcome]
    settings: Sequence[Setting] = ()
    rows: Callable[[], Mapping[str, Rows]] = dict
    full: Mapping[str, float | str | tuple[str, ...] | tuple[float, ...]] = field(default_factory=dict)


def own_column(name: str, unit: str = "-", meaning: str = "", kind: str = "result") -> Column:
    """A column that only a study has, in the shape of a schema column.

    Parameters
    ----------
    name : str
        Words joined by underscores.
    unit : str
        A unit symbol, or - for a number without one.
    meaning : str
        For the comment of the header.
    kind : str
        ``result`` for numbers, ``text`` for labels, ``name`` for the key.
    """
    return Column("study", name, kind, "" if kind in ("text", "name") else unit, "", "", (), "", False, meaning or name)


def shown(results: Table, name: str) -> np.ndarray:
    """A result column in the unit that a reader sees.

    Parameters
    ----------
    results : Table
    name : str
        A column of numbers.
    """
    values: np.ndarray = results[name] / unit_of(results.schema.by_name[name]).factor
    return values


def wide(
    keys: Sequence[Value], series: Sequence[str], values: Mapping[tuple[Value, str], float]
) -> list[tuple[Value, ...]]:
    """Rows of a table with a line for each key and a column for each series; None where there is no value.

    >>> wide([1.0, 2.0], ["a", "b"], {(1.0, "a"): 5.0, (2.0, "b"): 6.0})
    [(1.0, 5.0, None), (2.0, None, 6.0)]
    """
    return [(key, *(values.get((key, name)) for name in series)) for key in keys]


def order(values: Iterable[str]) -> list[str]:
    """Distinct values in the order of their first appearance.

    >>> order(["b", "a", "b"])
    ['b', 'a']
    """
    return list(dict.fromkeys(str(value) for value in values))
