"""Data of a report: plans with their results in words, and the catalog rows used with their sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from openpyxl.styles import Alignment
from openpyxl.utils import get_column_letter

from xlperf.base import resources
from xlperf.base.errors import XlperfError
from xlperf.catalog.calibration import precision_key, shared_precision
from xlperf.catalog.schema import CATALOG_TABLES, Column, unit_of
from xlperf.catalog.table import Table
from xlperf.engine.devices import accelerators_of
from xlperf.engine.join import POOLS, pool_rows
from xlperf.engine.ownership import evaluate_ownership
from xlperf.engine.prices import first_rows
from xlperf.workbook.charts import Cells, Part
from xlperf.workbook.package import data_rows, write_table
from xlperf.workbook.style import BAD_INK, WARN_INK, column_widths, page_setup, put, tab

if TYPE_CHECKING:
    from openpyxl.worksheet.worksheet import Worksheet

    from xlperf.catalog.catalog import Catalog
    from xlperf.studies.outcome import Finding


REPORT_NAME = "xlperf_report"
"""Name of the second cell of a report, by which the add-in knows it and draws no page ends over it."""
REFUSED = "refused"
TOO_LARGE = "does not fit"
GOOD = "fits"
MEMORY_VIEWS = frozenset(
    f"memory_{what}"
    for what in (
        "reserved",
        "capacity",
        "layer_activations",
        "first_stage",
        "middle_stage",
        "last_stage",
        "low",
        "high",
        "share",
    )
)
"""Memory results outside the parts: totals, ends of a band, and parts of parts."""


@dataclass(frozen=True)
class Plans:
    """Plans of one kind with their results, row by row; with a catalog, names are spelled as there."""

    plans: Table
    results: Table
    catalog: Catalog | None = None

    def __post_init__(self) -> None:
        if len(self.plans) != len(self.results) or self.results.kind != f"{self.plans.kind}_results":
            raise XlperfError(f"results of {self.plans.kind} plans do not match their plans")

    def __len__(self) -> int:
        return len(self.plans)

    @property
    def kind(self) -> str:
        """``training`` or ``inference``."""
        return self.plans.kind

    @property
    def inputs(self) -> list[Column]:
        """Plan columns that at least one plan fills."""
        return [column for column in self.plans.schema.by_name.values() if is_filled(self.plans, column)]

    @property
    def outputs(self) -> list[Column]:
        """Result columns, all that were computed."""
        return [column for column in self.results.schema.by_name.values() if column.name in self.results]

    def number(self, name: str) -> np.ndarray:
        """A result in the unit that the reader sees; NaN throughout if it was not computed."""
        column = self.results.schema.by_name.get(name)
        if column is None or name not in self.results:
            return np.full(len(self), np.nan)
        return self.results[name] / unit_of(column).factor

    def _called(self, kind: str, column: str) -> list[str]:
        names = self.plans.text(column)
        if self.catalog is None:
            return [str(name) for name in names]
        table = self.catalog.tables[kind]
        known = table.text(table.schema.key.name)
        return [str(known[row]) for row in self.catalog.rows(kind, names, self.plans, column)]

    @cached_property
    def models(self) -> list[str]:
        """Model of each plan as the catalog spells it, so that aliases are one model."""
        return self._called("models", "model")

    @cached_property
    def accelerators(self) -> list[str]:
        """Accelerator of each plan as the catalog spells it."""
        return self._called("accelerators", "accelerator")

    @cached_property
    def names(self) -> list[str]:
        """A name for each plan: its own, or model and accelerators."""
        shown = []
        for i, name in enumerate(self.plans.text("name")):
            count = self.plans.number("num_accelerators", 1.0)[i]
            shown.append(str(name) or f"{self.models[i]} on {count:g} x {self.accelerators[i]}")
        return shown

    @cached_property
    def states(self) -> list[str]:
        """Refused, does not fit, or fits; by the first result and the column ``fits``."""
        first = self.number(self.outputs[0].name)
        fits = self.results.number("fits")
        return [
            REFUSED if not np.isfinite(value) else TOO_LARGE if fit == 0 else GOOD
            for value, fit in zip(first, fits, strict=True)
        ]

    def where(self, *states: str) -> np.ndarray:
        """Rows in one of the states."""
        return np.flatnonzero(np.isin(np.array(self.states, dtype=object), states))

    def time_parts(self) -> list[Column]:
        """Parts of the time of a step that are not zero in every plan."""
        return self._present([column for column in self.outputs if column.name.startswith("time_")])

    def memory_parts(self) -> list[Column]:
        """Parts of the memory of the fullest accelerator that are not zero in every plan."""
        named = [column for column in self.outputs if column.name.startswith("memory_")]
        return self._present([column for column in named if column.name not in MEMORY_VIEWS])

    def _present(self, columns: list[Column]) -> list[Column]:
        return [column for column in columns if np.nansum(self.number(column.name)) > 0]


@dataclass(frozen=True)
class Report:
    """All that a report shows."""

    catalog: Catalog
    groups: tuple[Plans, ...]
    operators: tuple[tuple[Plans, int, Table], ...]
    date: date
    study: str
    version: str
    found: tuple[Finding, ...] = ()

    def group(self, kind: str) -> Plans | None:
        """Plans of one kind, None if there are none."""
        return next((group for group in self.groups if group.kind == kind and len(group)), None)

    def index(self, kind: str, group: Plans) -> np.ndarray:
        """Row of the accelerators or of the models that each plan names."""
        column = {"models": "model", "accelerators": "accelerator"}[kind]
        result: np.ndarray = self.catalog.rows(kind, group.plans.text(column), group.plans, column)
        return result

    def used(self, kind: str) -> np.ndarray:
        """Rows of a catalog table that the plans use, in the order of the table."""
        accelerators, table = self.catalog.tables["accelerators"], self.catalog.tables[kind]
        names: set[str] = set()
        rows = [np.zeros(0, dtype=np.int64)]
        for group in self.groups:
            machines = self.index("accelerators", group)
            pools = [pool_rows(group.plans, self.catalog, machines, pool=pool) for pool in POOLS]
            machines = np.concatenate([machines, *pools])
            rows.append(self.index("models", group) if kind == "models" else machines)
            shown = accelerators.text("accelerator")[machines]
            if kind == "networks":
                given = np.tile(group.plans.text("network"), 1 + len(POOLS))
                shown = np.where(given == "", accelerators.text("default_network")[machines], given)
            names.update(str(name).casefold() for name in shown)
        if kind in ("accelerators", "models"):
            return np.unique(np.concatenate(rows))
        return np.flatnonzero([str(name).casefold() in names for name in table.text(table.schema.key.name)])


def is_filled(table: Table, column: Column) -> bool:
    """Whether any row of a table has a value in a column."""
    if column.name not in table:
        return False
    values = table[column.name]
    searched = column.name in table.auto and table.auto[column.name].any()
    return bool(searched or ((values != "") if column.is_text else ~np.isnan(values)).any())


def extra_column(name: str, unit: str, meaning: str, kind: str = "result") -> Column:
    """A column that only a report has, in the shape of a schema column."""
    return Column("report", name, kind, unit, "", "", (), "", False, meaning)


def report_columns(table: str, **facts: str) -> list[Column]:
    """Columns of a table of a report, from report_columns.csv."""
    return [
        extra_column(*(row[part].format(**facts) for part in ("column", "unit", "meaning", "kind")))
        for row in resources.rows("workbook/report_columns.csv")
        if row["table"] == table
    ]


@dataclass(frozen=True)
class Drawn:
    """A native table of a report whose columns charts refer to."""

    sheet: Worksheet
    names: list[str]  # Columns, from the first of the sheet
    top: int  # Row of the headers
    count: int  # Rows below them

    @property
    def last(self) -> int:
        """Last row; a table without rows has a blank one."""
        return self.top + max(self.count, 1)

    def head(self, name: str) -> Cells:
        """The header of a column."""
        return Cells(self.sheet, self.names.index(name) + 1, self.top, self.top)

    def cells(self, name: str, rows: tuple[int, int] | None = None) -> Cells:
        """Values of a column, of some rows: the first, from 0 on, and the row after the last."""
        first, end = rows or (0, self.count)
        return Cells(self.sheet, self.names.index(name) + 1, self.top + 1 + first, self.top + end)

    def both(self, name: str, rows: tuple[int, int] | None = None) -> tuple[Cells, Cells]:
        """The header of a column and its values."""
        return self.head(name), self.cells(name, rows)

    def part(self, name: str, colour: str, rows: tuple[int, int] | None = None) -> Part:
        """A column as bars of a colour."""
        return Part(*self.both(name, rows), colour)


def drawn_table(
    sheet: Worksheet,
    columns: Sequence[Column],
    rows: Sequence[Sequence[Any]],
    top: int,
    name: str,
    title: str = "",
    widths: bool = False,
    fitted: bool = True,
) -> Drawn:
    """Write a table that charts are drawn from, its headers in a row, a title in the row above."""
    if title:
        put(sheet.cell(top - 1, 1), title, "xlperf heading")
    write_table(sheet, columns, rows, f"A{top}", name, freeze=None, widths=widths, fitted=fitted)
    return Drawn(sheet, [column.name for column in columns], top, len(rows))


def or_blank(values: np.ndarray) -> list[float | None]:
    """Numbers as cells show them, blank if not finite."""
    return [float(value) if np.isfinite(value) else None for value in values]


def short(text: str, most: int = 72) -> str:
    """A text cut to a length, with an ellipsis at the cut.

    >>> short("Llama", 10)
    'Llama'
    """
    return text if len(text) <= most else text[: most - 1].rstrip() + "\N{HORIZONTAL ELLIPSIS}"


def number_words(value: float) -> str:
    """A number as a reader would say it: three or four figures, thousands apart.

    >>> number_words(1234567.0), number_words(0.01234), number_words(12.345)
    ('1,230,000', '0.0123', '12.3')
    """
    if value == 0 or not np.isfinite(value):
        return "0" if value == 0 else "unknown"
    digits = max(0, 2 - int(np.floor(np.log10(abs(value)))))
    rounded = round(value, 2 - int(np.floor(np.log10(abs(value)))))
    return f"{rounded:,.{digits}f}"


def listed(words: Sequence[str], most: int = 4) -> str:
    """Words in a row, the last after "and"; says how many more there are.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    if len(words) > most:
        return f"{', '.join(words[:most])} and {len(words) - most} more"
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)


def plural(count: int, word: str) -> str:
    """A count with its noun.

    >>> plural(1, "plan"), plural(2, "plan")
    ('1 plan', '2 plans')
    """
    return f"{count:,} {word}{'' if count == 1 else 's'}"


_TOP = 4
_WORDS = {GOOD: "fits, with a remark", TOO_LARGE: "does not fit", REFUSED: "refused"}
_MEANINGS = [(row["name"], row["meaning"]) for row in resources.rows("workbook/assumptions.csv")]


def calibration_rows(report: Report) -> np.ndarray:
    """Rows of the calibration sheet that the plans can draw on: their generations, precisions and software."""
    table = report.catalog.tables["calibration"]
    generation = report.catalog.tables["accelerators"].text("generation")
    keys: dict[str, set[str]] = {"generation": set(), "precision": set(), "software": set()}
    keys["generation"].update(map(str, generation[report.used("accelerators")]))
    for group in report.groups:
        for name in ("precision", "software"):
            default = group.plans.schema.by_name[name].default
            keys[name].update(map(str, group.plans.text(name, default)))
    if {"fp16", "int4"} & {value.lower() for value in keys["precision"]}:
        keys["precision"].add("bf16")
    for value in tuple(keys["precision"]):
        keys["precision"] |= {precision_key(value), shared_precision(value)}
    keep = np.ones(len(table), dtype=bool)
    for name, values in keys.items():
        known = {value.casefold() for value in values} | {"any", ""}
        keep &= np.array([str(value).casefold() in known for value in table.text(name)], dtype=bool)
    return np.flatnonzero(keep)


def used_rows(report: Report, kind: str) -> Table:
    """The rows of a catalog table that the plans of a report use."""
    rows = calibration_rows(report) if kind == "calibration" else report.used(kind)
    if kind == "accelerators":
        return accelerators_of(report.catalog).table.take(rows)
    return report.catalog.tables[kind].take(rows)


def used_designs(report: Report) -> np.ndarray:
    """Rows of the sheet chiplets whose accelerators the plans use."""
    designs = report.catalog.tables["chiplets"]
    if not len(designs):
        return np.zeros(0, dtype=np.int64)
    rows = first_rows(designs, report.catalog, report.used("accelerators"))
    return np.array(sorted({row for row in rows.tolist() if row >= 0}), dtype=np.int64)


def owned_groups(report: Report) -> list[tuple[Plans, Table]]:
    """Plans with their owner's costs; groups without a server for any plan are left out."""
    if not len(report.catalog.tables["servers"]):
        return []
    owned = [(group, evaluate_ownership(group.plans, report.catalog, results=group.results)) for group in report.groups]
    return [(group, costs) for group, costs in owned if np.isfinite(costs["hour_cost"]).any()]


def catalog_sheet(sheet: Worksheet, report: Report, kind: str) -> None:
    """Fill the sheet that shows the rows of one catalog table that the plans use."""
    table = used_rows(report, kind)
    columns = [column for column in table.schema.columns if is_filled(table, column)] or [table.schema.key]
    names = [column.name for column in columns]
    area = write_table(sheet, columns, data_rows(table, columns), f"A{_TOP}", kind, one_line=names)
    wide = sum(sheet.column_dimensions[get_column_letter(i)].width for i in range(1, len(columns) + 1))
    pages = max(1, round(wide / 190))
    words = f"{kind.capitalize()} used"
    page_setup(sheet, _TOP, area=area, pages_wide=pages, key_columns="A:A", heading=words)


def assumptions_sheet(sheet: Worksheet, report: Report) -> None:
    """Fill the sheet of assumptions behind the numbers."""
    row = _TOP
    for name, value in _facts(report):
        put(sheet.cell(row, 1), name, "xlperf key")
        cell = put(sheet.cell(row, 2), value, "xlperf text")
        cell.alignment = Alignment(vertical="center", wrap_text=True, indent=1)
        sheet.merge_cells(start_row=row, start_column=2, end_row=row, end_column=7)
        sheet.row_dimensions[row].height = 14.0 * max(1, -(-len(value) // 125)) + 2
        row += 1
    row += 1
    put(sheet.cell(row, 1), "Catalog rows used", "xlperf heading")
    sheet.row_dimensions[row].height = 22
    columns = report_columns("rows_used")
    rows = [row for kind in CATALOG_TABLES if kind != "calibration" for row in _register(report, kind)]
    rows += _register_calibration(used_rows(report, "calibration"))
    column_widths(sheet, 44, 14, 12, 9, 60, 60, 2)
    write_table(sheet, columns, rows, f"A{row + 1}", "rows_used", freeze=None, widths=False)
    sheet.freeze_panes = f"A{_TOP}"
    page_setup(sheet, row + 1)


def _register(report: Report, kind: str) -> list[list[Any]]:
    """A line for each row of a catalog table that is used."""
    table = used_rows(report, kind)
    tiers, years = table.number("tier"), table.number("year")
    rows: list[list[Any]] = []
    for i, name in enumerate(table.text(table.schema.key.name)):
        shown = f"{name}, tier {tiers[i]:g}" if kind == "networks" else str(name)
        texts = [str(table.text(text)[i]) for text in ("kind", "source", "notes")]
        rows.append([shown, kind, texts[0], int(years[i]) if years[i] == years[i] else None, texts[1], texts[2]])
    return rows


def _register_calibration(table: Table) -> list[list[Any]]:
    """A line for each family, generation, precision and software: its constants were fitted together."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for i in range(len(table)):
        key = tuple(str(table.text(name)[i]) for name in ("family", "generation", "precision", "software"))
        groups.setdefault(key, []).append(i)
    rows: list[list[Any]] = []
    for key, members in groups.items():
        first = members[0]
        year, error = table.number("year")[first], table.number("error")[first]
        said = [plural(len(members), "constant"), str(table.text("fit_set")[first])]
        if error == error:
            said.append(f"error {100 * float(error):.1f} %")
        if table.text("date")[first]:
            said.append(f"fitted {table.text('date')[first]}")
        texts = [str(table.text(text)[first]) for text in ("kind", "source")]
        notes = "; ".join(text for text in said if text)
        name = ", ".join(word for word in key if word not in ("", "any"))
        rows.append([name, "calibration", texts[0], int(year) if year == year else None, texts[1], notes])
    return rows


def _facts(report: Report) -> list[tuple[str, str]]:
    calibration = report.catalog.tables["calibration"].take(calibration_rows(report))
    fitted = [str(date) for date in calibration.text("date") if date]
    # generations that no calibration row names: their constants are extrapolated
    known = {str(name).casefold() for name in report.catalog.tables["calibration"].text("generation")}
    generations = map(str, used_rows(report, "accelerators").text("generation"))
    missing = sorted({name for name in generations if name.casefold() not in known})
    extrapolated = sum(
        sum("extrapolated" in str(reason) for reason in group.results.text("reason")) for group in report.groups
    )
    words = "Every generation has calibration rows of its own."
    if not len(calibration):
        words = "The calibration sheet holds no row for these plans: defaults stand in for all of its constants."
    elif missing:
        words = f"No calibration row names {listed(missing, 8)}: constants of other generations stand in."
    if extrapolated:
        words += f" {plural(extrapolated, 'plan')} extrapolate; their reasons say so."
    facts = [
        ("xlperf", f"version {report.version}"),
        ("catalog", f"{report.catalog.origin}, fingerprint {report.catalog.fingerprint}"),
        ("date", report.date.isoformat()),
        ("calibration", f"{plural(len(calibration), 'row')}{f', last fit {max(fitted)}' if fitted else ''}. {words}"),
    ]
    return facts + _MEANINGS


def reasons_sheet(sheet: Worksheet, groups: Sequence[Plans]) -> None:
    """Fill the sheet that lists every plan with a reason: refused plans first, then plans that do not fit, then
    remarks.
    """
    columns = report_columns("reasons")
    order = [REFUSED, TOO_LARGE, GOOD]
    rows: list[tuple[int, list[Any]]] = []
    for group in groups:
        reasons = group.results.text("reason")
        for i, state in enumerate(group.states):
            if reasons[i] or state != GOOD:
                machine = (group.models[i], group.accelerators[i])
                cells = [group.names[i], group.kind, i + 1, *machine, _WORDS[state], reasons[i]]
                rows.append((order.index(state), cells))
    rows.sort(key=lambda row: row[0])
    if any(state == REFUSED for group in groups for state in group.states):  # red means that something is wrong
        tab(sheet, BAD_INK)
    elif any(state == TOO_LARGE for group in groups for state in group.states):
        tab(sheet, WARN_INK)
    column_widths(sheet, 50, 12, 8, 24, 20, 22, 84)  # of which a page takes all
    write_table(sheet, columns, [cells for _, cells in rows], f"A{_TOP}", "reasons", widths=False)
    if not rows:
        put(sheet.cell(_TOP + 1, 1), "No plan has a reason: all are legal and fit.", "xlperf text")
    page_setup(sheet, _TOP)
