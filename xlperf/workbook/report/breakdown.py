"""Breakdown of time and memory as stacked charts with their tables; print areas of a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.pagebreak import Break

from xlperf.base.arrays import added
from xlperf.catalog.schema import Column
from xlperf.workbook.charts import bars_in_a_limit, colour, horizontal_bars
from xlperf.workbook.report.data import (
    GOOD,
    TOO_LARGE,
    Drawn,
    Plans,
    drawn_table,
    extra_column,
    number_words,
    plural,
    report_columns,
    short,
)
from xlperf.workbook.style import CM_PER_LETTER, chart_rows, even_rows, page_setup, place_chart, put, width_of

if TYPE_CHECKING:
    from openpyxl import Workbook
    from openpyxl.worksheet.worksheet import Worksheet


MOST_PLANS = 96
_PER_CHART = 28
_TOP = 4
_BETWEEN = 3  # rows from the end of a table to the next chart; the page ends with the table
_SHARE_WIDTH, _SIDE_WIDTH, _GAP = 19.4, 11.6, 0.2


class _Field(NamedTuple):
    """A column of the table under the charts: its name, its values, and its colour in the charts."""

    column: Column
    values: Sequence[Any]
    colour: str


class _Time(NamedTuple):
    """Words on the time of a plan, and results on a second chart beside its parts."""

    time: str
    unit: str
    of: str
    title: str
    beside: tuple[str, ...]
    beside_title: str
    axis: str


_TIMES = {
    "training": _Time("step_time", "s", "step time", "Where the step time goes", ("mfu", "hfu"),
                      "Utilisation of the peak", "of the dense peak"),
    "inference": _Time("tpot", "ms", "decode step", "Where the time of a decode step goes",
                       ("prefill_time", "decode_time"), "Prefill and decode", "of a request"),
}  # fmt: skip
_Charts = Callable[[Drawn, tuple[int, int], str, float], Iterator[tuple[Any, float]]]
"""Charts of some rows of a table, words on these rows and a height; each with its distance from the left."""


def time_sheet(sheet: Worksheet, group: Plans) -> None:
    """Fill the sheet with the parts of the time of a training step or of a decode step and a request."""
    rows, look = _shown(group), _TIMES[group.kind]
    each = total = group.number(look.time)[rows]
    if group.kind == "inference":
        parts = [group.number(part.name)[rows] for part in group.time_parts()]
        total = np.nansum(parts, axis=0) if parts else np.full(len(rows), np.nan)
    shares = _shares(group, rows, total, look.of)
    beside = [_field(group, rows, name) for name in look.beside if np.isfinite(group.number(name)[rows]).any()]
    words = [f"{number_words(time)} {look.unit}" for time in each]
    labels = [f"{name} \N{MIDDLE DOT} {time}" for name, time in zip(_names(group, rows), words, strict=True)]
    stacked = group.kind == "inference"

    def charts(table: Drawn, page: tuple[int, int], which: str, height: float) -> Iterator[tuple[Any, float]]:
        plans, size = table.cells("plan", page), (_SHARE_WIDTH, height)
        parts, others = ([table.part(f.column.name, f.colour, page) for f in fields] for fields in (shares, beside))
        yield horizontal_bars(look.title + which, plans, parts, "share (%)", "0", size, most=100), 0.0
        if others:
            side = horizontal_bars(
                look.beside_title, plans, others, look.axis, "0%", (_SIDE_WIDTH, height), percent=stacked,
                stacked=stacked, show_labels=False,
            )  # fmt: skip
            yield side, _SHARE_WIDTH + _GAP

    _block(sheet, group, labels, [*shares, *beside], _TOP, charts)


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
        capacity = _field(group, rows, "memory_capacity")
        words = f"{group.kind.capitalize()}: memory of the accelerator that needs most"
        charts = partial(_memory_charts, words, parts, capacity)
        top = _block(sheet, group, _names(group, rows), [*parts, capacity, fits], top, charts) + _BETWEEN


def _memory_charts(
    words: str, parts: Sequence[_Field], limit: _Field, table: Drawn, page: tuple[int, int], which: str, height: float
) -> Iterator[tuple[Any, float]]:
    """Memory by part as stacked bars, each in a frame as long as the capacity."""
    capacities = [value for value in limit.values if value is not None]
    needs = [added(value or 0.0 for value in row) for row in zip(*(part.values for part in parts), strict=True)]
    most, note = None, ""
    if capacities and max(needs[page[0] : page[1]]) > 2 * max(capacities):
        most = 20.0 * ceil(2 * max(capacities) / 20.0)
        note = f" (bars above {most:,.0f} GiB are cut off)"
    *drawn, frame = (table.part(field.column.name, field.colour, page) for field in (*parts, limit))
    title, size = words + which + note, (_SHARE_WIDTH + _GAP + _SIDE_WIDTH, height)
    yield bars_in_a_limit(title, table.cells("plan", page), drawn, frame, "memory (GiB)", "#,##0", size, most), 0.0


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


def _block(
    sheet: Worksheet, group: Plans, labels: list[str], fields: Sequence[_Field], top: int, charts: _Charts
) -> int:
    """Charts of the plans, page by page, below them their table, and how many are left out; the last row in use."""
    count = len(labels)
    step = max(1, ceil(count / max(1, ceil(count / _PER_CHART))))
    pages = [(start, min(start + step, count)) for start in range(0, count, step)]
    height = max(7.0, 4.2 + 0.55 * max((last - first for first, last in pages), default=0))
    each = chart_rows(height)
    header = top + each * len(pages) + 1
    even_rows(sheet, top, header)
    sheet.column_dimensions["A"].width = 54
    rows = [list(row) for row in zip(labels, *(field.values for field in fields), strict=True)]
    columns = [*report_columns("plan", kind=group.kind), *(field.column for field in fields)]
    name = f"{sheet.title}_{group.kind}".replace(" ", "_")
    table = drawn_table(sheet, columns, rows, header, name, widths=True)
    if top != _TOP:
        sheet.row_breaks.append(Break(id=top - _BETWEEN))
    for place, page in enumerate(pages):
        sheet.row_breaks.append(Break(id=top + (place + 1) * each - 1))
        which = f", {page[0] + 1} to {page[1]} of {count}" if len(pages) > 1 else ""
        for chart, left in charts(table, page, which, height):
            place_chart(sheet, chart, top + place * each, left)
    last, left_out = table.last, len(group) - count
    if left_out:
        last += 1
        put(sheet.cell(last, 1), f"{plural(left_out, 'plan')} not shown: see the sheet reasons.", "xlperf note")
    page_setup(sheet, header)
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
    last = sheet.max_row  # openpyxl looks through all cells
    while row < last and room > 0.0:
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
