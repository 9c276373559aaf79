"""Limits of serving: the largest batch, and throughput of an accelerator against speed for a user at every load."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from openpyxl.worksheet.pagebreak import Break

from xlperf.catalog.schema import column, unit_of
from xlperf.catalog.table import Table
from xlperf.workbook.charts import Cells, Points, log_scatter
from xlperf.workbook.report_breakdown import CM_PER_ROW, extra_column
from xlperf.workbook.report_data import GOOD, Plans, short
from xlperf.workbook.style import page_setup, put
from xlperf.workbook.tables import data_rows, write_table

if TYPE_CHECKING:
    from openpyxl.worksheet.worksheet import Worksheet

    from xlperf.catalog.catalog import Catalog

Limits = Callable[[Table, "Catalog"], tuple[Table, Table]]
"""Plans at every load, and their results; none where nothing fits."""

MOST_CURVES = 8
_TOP = 4
_WIDTH, _HEIGHT = 34.0, 17.0
_COLOURS = ("2F6DB5", "E08A2E", "2E9E8F", "C0392B", "8C6BB1", "5B8C3A", "C98BB9", "44515E")
_MARKERS = ("circle", "square", "diamond", "triangle")
USER, ACCELERATOR = "tokens_per_second_per_user", "tokens_per_second_per_accelerator"
_LIMITS = ("max_batch_size", "batch_at_targets", "tokens_per_second_at_targets")
_SHOWN = (USER, ACCELERATOR, "ttft", "tpot", "running_batch", "queue_time")


class Curve(NamedTuple):
    """One plan with its name at every load, and its own results."""

    name: str
    plans: Table
    results: Table
    own: Table


def curves(group: Plans | None, catalog: Catalog, limits: Limits | None = None) -> list[Curve]:
    """Plans with targets, then the best plan of each model on each accelerator, at every load."""
    if group is None:
        return []
    if limits is None:
        from xlperf.explore.frontier import points

        limits = points
    rate = group.number(ACCELERATOR)
    best: dict[tuple[str, str], int] = {}
    good = group.where(GOOD).tolist()
    wanted = ~(np.isnan(group.plans.number("ttft_target")) & np.isnan(group.plans.number("tpot_target")))
    for row in good:
        pair = (group.models[row], group.accelerators[row])
        if pair not in best or rate[row] > rate[best[pair]]:
            best[pair] = row
    found = []
    for row in list(dict.fromkeys([*(row for row in good if wanted[row]), *best.values()]))[:MOST_CURVES]:
        plans, results = limits(group.plans.take([row]), catalog)
        if len(plans):
            found.append(Curve(short(group.names[row], 52), plans, results, group.results.take([row])))
    return found


def limits_sheet(sheet: Worksheet, drawn: list[Curve]) -> None:
    """Fill the sheet of limits: a chart, a line of limits for each plan, and a line for each load."""
    first = _TOP + int(np.ceil(_HEIGHT / CM_PER_ROW)) + 2
    for row in range(_TOP, first):
        sheet.row_dimensions[row].height = 15.0
    sheet.column_dimensions["A"].width = 54
    key = extra_column("plan", "", "Plan of the sheet inference", "name")
    put(sheet.cell(first - 1, 1), "Limits", "xlperf heading")
    tops = [
        extra_column("most_tokens_per_second_per_accelerator", "token/s", "Most of all loads"),
        extra_column("requests_in_flight_then", "-", "Load with the most tokens per second and accelerator"),
        extra_column("most_tokens_per_second_per_user", "token/s", "Most of all loads"),
        extra_column("most_requests_per_second", "request/s", "Most of all loads, over the whole deployment"),
    ]
    known = [column("inference_results", name) for name in _LIMITS]
    rows: list[list[float | bool | str | None]] = [
        [curve.name, *data_rows(curve.results, known[:1])[0], *data_rows(curve.own, known[1:])[0], *_tops(curve)]
        for curve in drawn
    ]
    write_table(sheet, [key, *known, *tops], rows, f"A{first}", "limits", freeze=None, fitted=True)
    second = first + len(rows) + 3
    put(sheet.cell(second - 1, 1), "Loads", "xlperf heading")
    load = column("inference", "concurrency")
    shown = [column("inference_results", name) for name in _SHOWN]
    lines: list[list[float | bool | str | None]] = []
    spans = []
    for curve in drawn:
        spans.append((len(lines), len(lines) + len(curve.plans) - 1))
        lines += [
            [curve.name, *plan, *result]
            for plan, result in zip(data_rows(curve.plans, [load]), data_rows(curve.results, shown), strict=True)
        ]
    write_table(sheet, [key, load, *shown], lines, f"A{second}", "loads", freeze=None, widths=False, fitted=True)
    sheet.row_breaks.append(Break(id=first - 2))
    _chart(sheet, first, second, spans)
    page_setup(sheet, second)
    sheet.freeze_panes = f"A{_TOP}"


def _tops(curve: Curve) -> list[float]:
    """Most tokens per accelerator, the load then, most tokens per user and most requests, as cells show them."""
    rate, user = (
        curve.results.number(name) / unit_of(column("inference_results", name)).factor for name in (ACCELERATOR, USER)
    )
    requests = curve.results.number("tokens_per_second") / curve.plans.number("output_length")
    top = int(np.argmax(rate))
    return [float(rate[top]), float(curve.plans.number("concurrency")[top]), float(user.max()), float(requests.max())]


def _chart(sheet: Worksheet, first: int, second: int, spans: list[tuple[int, int]]) -> None:
    points = []
    ends: list[list[float]] = [[], []]
    for place, (start, stop) in enumerate(spans):
        cells = [Cells(sheet, at, second + 1 + start, second + 1 + stop) for at in (3, 4)]
        for values, axis in zip(ends, cells, strict=True):
            values += [float(value) for value in axis.values if value]
        name = Cells(sheet, 1, first + 1 + place, first + 1 + place)
        colour, marker = _COLOURS[place % len(_COLOURS)], _MARKERS[place % len(_MARKERS)]
        points.append(Points(name, cells[0], cells[1], colour, marker, joined=True))
    x_range, y_range = ((10.0 ** np.floor(np.log10(min(v))), 10.0 ** np.ceil(np.log10(max(v)))) for v in ends)
    chart = log_scatter(
        "Throughput against interactivity",
        points,
        x_title="speed for a user (token/s)",
        y_title="throughput of an accelerator (token/s)",
        x_range=x_range,
        y_range=y_range,
        size=(_WIDTH, _HEIGHT),
    )
    sheet.add_chart(chart, f"A{_TOP}")
