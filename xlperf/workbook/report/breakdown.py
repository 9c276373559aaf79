"""Breakdown of time and memory as stacked charts with their tables; print areas of a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.pagebreak import Break

from xlperf.base.arrays import added
from xlperf.catalog.schema import Column
from xlperf.workbook.charts import Cells, Part, bars_in_a_limit, colour, horizontal_bars
from xlperf.workbook.package import write_table
from xlperf.workbook.report.data import GOOD, TOO_LARGE, Plans, extra_column, number_words, plural, short
from xlperf.workbook.style import CM_PER_LETTER, chart_rows, even_rows, page_setup, place_chart, put, width_of

if TYPE_CHECKING:
    from openpyxl import Workbook
    from openpyxl.worksheet.worksheet import Worksheet


MOST_PLANS = 96
_PER_CHART = 28
_TOP = 4
_BETWEEN = 3  # rows from the end of a table to the next chart; the page ends with the table
_SHARE_WIDTH, _SIDE_WIDTH, _GAP = 20.5, 12.5, 0.3


@dataclass(frozen=True)
class _Field:
    """A column of the table under the charts: its name, its values, and its colour in the charts."""

    column: Column
    values: Sequence[Any]
    colour: str


def step_time_sheet(sheet: Worksheet, group: Plans) -> None:
    """Fill the sheet with the parts of a training step's time."""
    rows = _shown(group)
    total = group.number("step_time")[rows]
    shares = _shares(group, rows, total, "step time")
    beside = [_field(group, rows, name) for name in ("mfu", "hfu") if np.isfinite(group.number(name)[rows]).any()]
    labels = [f"{name} \N{MIDDLE DOT} {number_words(t)} s" for name, t in zip(_names(group, rows), total, strict=True)]
    block = _Block(sheet, group, labels, [*shares, *beside], _TOP)
    block.share_charts(
        "Where the step time goes", len(shares), "Utilisation of the peak", "of the dense peak", "0%", stacked=False
    )
    _finish(sheet, block)


def inference_time_sheet(sheet: Worksheet, group: Plans) -> None:
    """Fill the sheet with the parts of the time of a decode step and of a request."""
    rows = _shown(group)
    parts = [group.number(part.name)[rows] for part in group.time_parts()]
    total = np.nansum(parts, axis=0) if parts else np.full(len(rows), np.nan)
    shares = _shares(group, rows, total, "decode step")
    names = ("prefill_time", "decode_time")
    beside = [_field(group, rows, name) for name in names if np.isfinite(group.number(name)[rows]).any()]
    each = group.number("tpot")[rows]
    labels = [f"{name} \N{MIDDLE DOT} {number_words(t)} ms" for name, t in zip(_names(group, rows), each, strict=True)]
    block = _Block(sheet, group, labels, [*shares, *beside], _TOP)
    block.share_charts(
        "Where the time of a decode step goes", len(shares), "Prefill and decode", "of a request", "0%", stacked=True
    )
    _finish(sheet, block)


def memory_sheet(sheet: Worksheet, groups: Sequence[Plans]) -> None:
    """Fill the sheet of memory by part against the capacity."""
    top = _TOP
    for group in groups:
        rows = _shown(group)
        parts = [
            _Field(
                extra_column(part.name.removeprefix("memory_"), part.unit, part.meaning),
                _listed(group.number(part.name)[rows]),
                colour(part.name, place),
            )
            for place, part in enumerate(group.memory_parts())
        ]
        reserve = group.number("memory_reserved")[rows] - group.number("memory")[rows]
        if np.isfinite(reserve).any():
            column = extra_column("reserve", "GiB", "What the allocator and the runtime keep beside the plan")
            parts.append(_Field(column, _listed(np.maximum(reserve, 0.0)), colour("memory_reserve")))
        flags = group.results.number("fits")[rows]
        states = [bool(flag) if flag == flag else None for flag in flags]
        fits = _Field(group.results.schema.by_name["fits"], states, colour("other"))
        fields = [*parts, _field(group, rows, "memory_capacity"), fits]
        block = _Block(sheet, group, _names(group, rows), fields, top)
        block.memory_charts(f"{group.kind.capitalize()}: memory of the accelerator that needs most", len(parts))
        top = _finish(sheet, block) + _BETWEEN


def _shown(group: Plans) -> np.ndarray:
    """Plans with numbers, not more than charts can hold."""
    return group.where(GOOD, TOO_LARGE)[:MOST_PLANS]


def _names(group: Plans, rows: np.ndarray) -> list[str]:
    return [short(group.names[row], 52) for row in rows]


def _listed(values: np.ndarray) -> list[Any]:
    return [float(value) if np.isfinite(value) else None for value in values]


def _field(group: Plans, rows: np.ndarray, name: str) -> _Field:
    return _Field(group.results.schema.by_name[name], _listed(group.number(name)[rows]), colour(name))


def _shares(group: Plans, rows: np.ndarray, total: np.ndarray, of: str) -> list[_Field]:
    """Parts as shares of a total, and the remainder if they do not add up to it."""
    fields: list[_Field] = []
    rest = np.ones(len(rows))
    for part in group.time_parts():
        with np.errstate(invalid="ignore", divide="ignore"):
            share = group.number(part.name)[rows] / total
        rest = rest - np.nan_to_num(share)
        fields.append(
            _Field(
                extra_column(part.name.removeprefix("time_"), "%", f"Share of the {of}. {part.meaning}"),
                _listed(100 * share),
                colour(part.name, len(fields)),
            )
        )
    if (np.abs(rest) > 0.002).any():
        fields.append(
            _Field(extra_column("other", "%", f"Share of the {of} in no part"), _listed(100 * rest), colour("other"))
        )
    return fields


class _Block:
    """Charts, and below them the table that they are drawn from."""

    def __init__(self, sheet: Worksheet, group: Plans, labels: list[str], fields: Sequence[_Field], top: int) -> None:
        self.sheet, self.group, self.fields, self.top = sheet, group, fields, top
        self.count = len(labels)
        charts = max(1, ceil(self.count / _PER_CHART))
        step = max(1, ceil(self.count / charts))
        self.pages = [(start, min(start + step, self.count)) for start in range(0, self.count, step)]
        self.header_row = top
        self.labels = labels

    @property
    def last_row(self) -> int:
        """Last row of the table."""
        return self.header_row + max(1, self.count)

    @property
    def _height(self) -> float:
        """Height of a chart with a bar for each plan of a page. [cm]"""
        return max(7.0, 4.2 + 0.55 * max((last - first for first, last in self.pages), default=0))

    def _write(self, height: float) -> None:
        """Write the table below as many charts of one height as there are pages."""
        self.chart_rows = chart_rows(height)
        self.header_row = self.top + self.chart_rows * len(self.pages) + 1
        even_rows(self.sheet, self.top, self.header_row)
        key = extra_column("plan", "", f"Plan of the sheet {self.group.kind}", "name")
        self.sheet.column_dimensions["A"].width = 54
        rows = [list(row) for row in zip(self.labels, *(field.values for field in self.fields), strict=True)]
        name = f"{self.sheet.title}_{self.group.kind}".replace(" ", "_")
        columns = [key, *(field.column for field in self.fields)]
        write_table(self.sheet, columns, rows, f"A{self.header_row}", name, freeze=None, fitted=True)
        if self.top != _TOP:
            self.sheet.row_breaks.append(Break(id=self.top - _BETWEEN))
        for page in range(1, len(self.pages) + 1):
            self.sheet.row_breaks.append(Break(id=self.top + page * self.chart_rows - 1))

    def _cells(self, column: int, page: tuple[int, int]) -> Cells:
        return Cells(self.sheet, column, self.header_row + 1 + page[0], self.header_row + page[1])

    def _part(self, position: int, page: tuple[int, int]) -> Part:
        header = Cells(self.sheet, position + 2, self.header_row, self.header_row)
        return Part(header, self._cells(position + 2, page), self.fields[position].colour)

    def _place(self, chart: Any, page: int, left: float) -> None:
        place_chart(self.sheet, chart, self.top + page * self.chart_rows, left)

    def _of(self, page: tuple[int, int]) -> str:
        if len(self.pages) == 1:
            return ""
        return f", {page[0] + 1} to {page[1]} of {self.count}"

    def share_charts(self, words: str, shares: int, beside: str, axis: str, number: str, *, stacked: bool) -> None:
        """Shares of a whole as stacked bars, and a second chart beside them."""
        height = self._height
        self._write(height)
        for place, page in enumerate(self.pages):
            labels = self._cells(1, page)
            chart = horizontal_bars(
                words + self._of(page),
                labels,
                [self._part(position, page) for position in range(shares)],
                axis_title="share (%)",
                number="0",
                size=(_SHARE_WIDTH, height),
                most=100,
            )
            self._place(chart, place, 0.0)
            others = [self._part(position, page) for position in range(shares, len(self.fields))]
            if others:
                side = horizontal_bars(
                    beside,
                    labels,
                    others,
                    axis_title=axis,
                    number=number,
                    percent=stacked,
                    stacked=stacked,
                    show_labels=False,
                    size=(_SIDE_WIDTH, height),
                )
                self._place(side, place, _SHARE_WIDTH + _GAP)

    def memory_charts(self, words: str, parts: int) -> None:
        """Memory by part as stacked bars, each in a frame as long as the capacity."""
        height = self._height
        self._write(height)
        capacities = [value for value in self.fields[parts].values if value is not None]
        needs = [
            added(value or 0.0 for value in row) for row in zip(*(f.values for f in self.fields[:parts]), strict=True)
        ]
        for place, page in enumerate(self.pages):
            most = None
            note = ""
            if capacities and max(needs[page[0] : page[1]]) > 2 * max(capacities):
                most = 20.0 * ceil(2 * max(capacities) / 20.0)
                note = f" (bars above {most:,.0f} GiB are cut off)"
            chart = bars_in_a_limit(
                words + self._of(page) + note,
                self._cells(1, page),
                [self._part(position, page) for position in range(parts)],
                self._part(parts, page),
                axis_title="memory (GiB)",
                number="#,##0",
                size=(_SHARE_WIDTH + _GAP + _SIDE_WIDTH, height),
                most=most,
            )
            self._place(chart, place, 0.0)


def _finish(sheet: Worksheet, block: _Block) -> int:
    """Say which plans are left out, set up the print; the last row that is used."""
    last = block.last_row
    left_out = len(block.group) - block.count
    if left_out:
        last += 1
        put(sheet.cell(last, 1), f"{plural(left_out, 'plan')} not shown: see the sheet reasons.", "xlperf note")
    page_setup(sheet, block.header_row)
    sheet.freeze_panes = f"A{_TOP}"
    return last


_PLAN_SHEETS = {"training": "step_time", "inference": "ttft"}
"""Sheets of plans and the first column of their results: the plans themselves are named in column A."""
_CHARTS = ("step time", "inference time", "limits", "memory", "roofline", "token cost", "accelerator cost")
"""Sheets whose charts are printed, not the tables that these are drawn from."""
_ALL_PLANS = ("step time", "inference time", "memory")
"""Sheets with charts of all plans, twenty or so each."""
_LONG = {"cost bridge": 45, "reasons": 30, "assumptions": 40, "calibration": 40, "models": 24, "networks": 40}
"""Sheets of which so many rows are printed. [-]"""
_WIDEST = 220.0
"""Letters of a page of a table across. [-]"""
_PLANS_WIDE = 280.0
"""Letters of a page of results of plans across. [-]"""
_MOST_PLANS = 60
"""Plans whose results are printed. [-]"""
_MOST_ROWS = 130
"""Rows of a study's table that are printed, about three pages. [-]"""
_EMU_PER_CM = 360000
_PAGE_SHAPE = 0.75
"""Height over width of a page, with a little more, which shrinks the print by as much."""
_NOTE = "further rows and columns: in the workbook"


def set_paper(workbook: Workbook, brief: bool = False) -> None:
    """Limit the printed part of each sheet, so that a report of a hundred plans stays a document of thirty pages.

    ``workbook``: report, changed in place. ``brief``: whether to print only the first results and the first charts of
    all plans: a study of hundreds of plans has its findings on sheets of its own.
    """
    for sheet in workbook.worksheets:
        if sheet.title in _PLAN_SHEETS:
            _results(sheet, _PLAN_SHEETS[sheet.title], 1 if brief else 2)
        elif sheet.title in _CHARTS:
            _charts(sheet, brief and sheet.title in _ALL_PLANS)
        elif sheet.title in _LONG or sheet.title in ("accelerators", "prices"):
            _first_page(sheet, _LONG.get(sheet.title, 40))
        elif sheet.title == "chiplets or one die":
            sheet.row_breaks.brk = []
            page_setup(sheet, pages_high=2)


def _results(sheet: Worksheet, first: str, pages: int) -> None:
    """The first results of plans on some pages, beside their names: as many columns as can be read."""
    table = next(iter(sheet.tables.values()), None)
    if table is None:
        return
    header = int(str(sheet.print_title_rows).rpartition("$")[2])
    names = {str(sheet.cell(header, column).value).split(" (")[0]: column for column in range(1, sheet.max_column + 1)}
    start = names.get(first.replace("_", " "))
    last = names.get("reason", sheet.max_column + 1) - 1
    if start is None or last <= start:
        return
    end, letters = start, _width(sheet, 1) + _width(sheet, start)
    while end < last and letters + _width(sheet, end + 1) <= _PLANS_WIDE:
        end += 1
        letters += _width(sheet, end)
    bottom = min(header + _MOST_PLANS // 2 * pages, sheet.max_row, _last_row(sheet, header, letters, pages))
    sheet.print_area = f"{get_column_letter(start)}{header}:{get_column_letter(end)}{bottom}"
    pages = 1 if bottom <= _last_row(sheet, header, letters) else pages
    sheet.page_setup.fitToWidth, sheet.page_setup.fitToHeight = 1, pages
    _note(sheet)


def first_rows(sheet: Worksheet) -> None:
    """Print of a long table of a study the first rows, on as many pages as they take.

    ``sheet``: sheet of a study with its print area.
    """
    if sheet.max_row <= _MOST_ROWS:
        return
    area = str(sheet.print_area).rpartition("!")[2].replace("$", "")
    sheet.print_area = area.rstrip("0123456789") + str(_MOST_ROWS)
    _note(sheet)


def _charts(sheet: Worksheet, only_first: bool) -> None:
    """Charts alone, with the title of the sheet above the first."""
    inside: Any = sheet
    if not inside._charts:
        return
    spans = sorted(
        (row, row + chart_rows(chart.height) - 1, left + chart.width)
        for chart in inside._charts
        for row, left in [_corner(sheet, chart.anchor)]
    )
    if only_first:
        spans = [span for span in spans if span[0] == spans[0][0]]
    blocks: list[list[int]] = []
    for first, last, _ in spans:
        if blocks and first <= blocks[-1][1] + 2:
            blocks[-1][1] = max(blocks[-1][1], last)
        else:
            blocks.append([first, last])
    blocks[0][0] = 1
    right = _column_at(sheet, max(end for _, _, end in spans))
    sheet.print_area = ",".join(f"A{first}:{right}{last}" for first, last in blocks)
    _repeat_nothing(sheet)
    _note(sheet)


def _corner(sheet: Worksheet, anchor: Any) -> tuple[int, float]:
    """Row of a chart, at column A if it is anchored at a cell, and its distance from the left [cm]."""
    if isinstance(anchor, str):
        return int(anchor.lstrip("A")), 0.0
    corner = anchor._from
    return corner.row + 1, CM_PER_LETTER * width_of(sheet, 1, corner.col) + corner.colOff / _EMU_PER_CM


def _width(sheet: Worksheet, number: int) -> float:
    return width_of(sheet, number, number)


def _column_at(sheet: Worksheet, distance: float) -> str:
    """The column that a distance from the left edge falls into [cm]."""
    column, reached = 0, 0.0
    while reached < distance and column < 200:
        column += 1
        reached += _width(sheet, column) * CM_PER_LETTER
    return get_column_letter(max(column, 1))


def _first_page(sheet: Worksheet, rows: int) -> None:
    """The first rows of a table, and as many columns as a page takes."""
    letters, columns = 0.0, 0
    while columns < sheet.max_column and (columns == 0 or letters + _width(sheet, columns + 1) <= _WIDEST):
        columns += 1
        letters += _width(sheet, columns)
    inside: Any = sheet
    first = 4 if inside.oddHeader.left.text else 1  # a heading in the margin stands for the title of the sheet
    last = min(rows, sheet.max_row, _last_row(sheet, first, letters))
    sheet.print_area = f"A{first}:{get_column_letter(columns)}{last}"
    _repeat_nothing(sheet)
    sheet.page_setup.fitToWidth = sheet.page_setup.fitToHeight = 1
    _note(sheet)


def _last_row(sheet: Worksheet, first: int, letters: float, pages: int = 1) -> int:
    """Last row of pages that are filled from side to side: more rows would make all of them smaller."""
    row, room = first, pages * _PAGE_SHAPE * letters * CM_PER_LETTER * 72.0 / 2.54
    while row < sheet.max_row and room > 0.0:
        room -= sheet.row_dimensions[row].height or 15.0
        row += 1
    return row


def _repeat_nothing(sheet: Worksheet) -> None:
    """Clear the print titles of a sheet, which openpyxl sets and does not unset."""
    inside: Any = sheet
    inside._print_rows = inside._print_cols = None


def _note(sheet: Worksheet) -> None:
    footer: Any = sheet.oddFooter
    footer.left.text = f"&8xlperf \N{MIDDLE DOT} {_NOTE}"
