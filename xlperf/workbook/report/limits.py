"""Parts of time and memory of plans, their limits (roofline, throughput against speed per user)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from openpyxl.worksheet.pagebreak import Break

from xlperf.base import resources
from xlperf.base.arrays import added
from xlperf.base.units import factor
from xlperf.catalog.schema import Column, column, table_schema, unit_of
from xlperf.catalog.table import Table
from xlperf.engine.devices import accelerators_of
from xlperf.engine.software import peak_names
from xlperf.workbook.charts import SERIES, Points, bars_in_a_limit, colour, curve_chart, horizontal_bars
from xlperf.workbook.package import data_rows
from xlperf.workbook.report.data import (
    GOOD,
    TOO_LARGE,
    Drawn,
    Plans,
    Report,
    drawn_table,
    extra_column,
    number_words,
    or_blank,
    plural,
    report_columns,
    short,
)
from xlperf.workbook.style import chart_rows, even_rows, page_setup, place_chart, put

if TYPE_CHECKING:
    from openpyxl.worksheet.worksheet import Worksheet

    from xlperf.catalog.catalog import Catalog


MOST_PLANS = 96
_PER_CHART = 28
_TOP = 4
_BETWEEN = 3  # rows from the end of a table to the next chart; the page ends with the table
_SHARE_WIDTH, _SIDE_WIDTH, _GAP = 17.4, 13.6, 0.2


class _Field(NamedTuple):
    """A column of the table under the charts: its name, its values, and its colour in the charts."""

    column: Column
    values: Sequence[Any]
    colour: str


_TIMES = {row["sheet"]: row for row in resources.rows("workbook/report_times.csv")}
"""Words on the time of a plan, and results on a second chart beside its parts."""
_Charts = Callable[[Drawn, tuple[int, int], str, float], Iterator[tuple[Any, float]]]
"""Charts of some rows of a table, words on these rows and a height; each with its distance from the left."""


def time_sheet(sheet: Worksheet, group: Plans) -> None:
    """Fill the sheet with the parts of the time of a training step or of a decode step and a request."""
    rows, look = group.where(GOOD, TOO_LARGE)[:MOST_PLANS], _TIMES[group.kind]
    each = total = group.number(look["time"])[rows]
    if group.kind == "inference":
        parts = [group.number(part.name)[rows] for part in group.time_parts()]
        total = np.nansum(parts, axis=0) if parts else np.full(len(rows), np.nan)
    shares = _shares(group, rows, total, look["of"])
    beside = [
        _field(group, rows, name) for name in look["beside"].split() if np.isfinite(group.number(name)[rows]).any()
    ]
    words = [f"{number_words(time)} {look['unit']}" for time in each]
    labels = [f"{short(group.names[row])} \N{MIDDLE DOT} {time}" for row, time in zip(rows, words, strict=True)]
    stacked = group.kind == "inference"

    def charts(table: Drawn, page: tuple[int, int], which: str, height: float) -> Iterator[tuple[Any, float]]:
        plans, size = table.cells("plan", page), (_SHARE_WIDTH, height)
        parts, others = ([table.part(f.column.name, f.colour, page) for f in fields] for fields in (shares, beside))
        yield horizontal_bars(look["title"] + which, plans, parts, "share (%)", "0", size, most=100), 0.0
        if others:
            side = horizontal_bars(
                look["beside_title"],
                plans,
                others,
                look["axis"],
                "0 %",
                (_SIDE_WIDTH, height),
                percent=stacked,
                stacked=stacked,
            )
            yield side, _SHARE_WIDTH + _GAP

    _block(sheet, group, labels, [*shares, *beside], _TOP, charts)


def memory_sheet(sheet: Worksheet, groups: Sequence[Plans]) -> None:
    """Fill the sheet of memory by part against the capacity."""
    top = _TOP
    for group in groups:
        rows = group.where(GOOD, TOO_LARGE)[:MOST_PLANS]
        parts = [
            _Field(
                extra_column(part.name.removeprefix("memory_"), part.unit, part.meaning),
                or_blank(group.number(part.name)[rows]),
                colour(part.name, place),
            )
            for place, part in enumerate(group.memory_parts())
        ]
        reserve = group.number("memory_reserved")[rows] - group.number("memory")[rows]
        if np.isfinite(reserve).any():
            column = extra_column("reserve", "GiB", "What the allocator and the runtime keep beside the plan")
            parts.append(_Field(column, or_blank(np.maximum(reserve, 0.0)), colour("memory_reserve")))
        flags = group.results.number("fits")[rows]
        states = [bool(flag) if flag == flag else None for flag in flags]
        fits = _Field(group.results.schema.by_name["fits"], states, colour("other"))
        capacity = _field(group, rows, "memory_capacity")
        words = f"{group.kind.capitalize()}: memory of the accelerator that needs most"
        charts = partial(_memory_charts, words, parts, capacity)
        top = (
            _block(sheet, group, [short(group.names[row]) for row in rows], [*parts, capacity, fits], top, charts)
            + _BETWEEN
        )


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


def _field(group: Plans, rows: np.ndarray, name: str) -> _Field:
    return _Field(group.results.schema.by_name[name], or_blank(group.number(name)[rows]), colour(name))


def _shares(group: Plans, rows: np.ndarray, total: np.ndarray, of: str) -> list[_Field]:
    """Parts as shares of a total, and the remainder if they do not add up to it."""
    fields, rest = list[_Field](), np.ones(len(rows))
    for part in group.time_parts():
        with np.errstate(invalid="ignore", divide="ignore"):
            share = group.number(part.name)[rows] / total
        rest = rest - np.nan_to_num(share)
        fields.append(
            _Field(
                extra_column(part.name.removeprefix("time_"), "%", f"Share of the {of}. {part.meaning}"),
                or_blank(100 * share),
                colour(part.name, len(fields)),
            )
        )
    if (np.abs(rest) > 0.002).any():
        fields.append(
            _Field(extra_column("other", "%", f"Share of the {of} in no part"), or_blank(100 * rest), colour("other"))
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


Limits = Callable[[Table, "Catalog"], tuple[Table, Table]]
"""Plans at every load, and their results; none if nothing fits."""
MOST_CURVES = 8
_WIDTH, _HEIGHT = 32.0, 14.0
_MARKERS = ("circle", "square", "diamond", "triangle")
USER, ACCELERATOR = "tokens_per_second_per_user", "tokens_per_second_per_accelerator"
_LIMITS = ("max_batch_size", "batch_at_targets", "tokens_per_second_at_targets")
_SHOWN = (USER, ACCELERATOR, "ttft", "tpot", "running_batch", "queue_time")


class Curve(NamedTuple):
    """Throughput against speed per user: one plan at every load, and its own results."""

    name: str
    plans: Table
    results: Table
    own: Table


def curves(group: Plans | None, catalog: Catalog, limits: Limits | None = None) -> list[Curve]:
    """Plans with targets, then the best plan of each model on each accelerator, at every load."""
    if group is None:
        return []
    if limits is None:
        from xlperf.explore.sweep import points

        limits = points
    rate = group.number(ACCELERATOR)
    best: dict[tuple[str, str], int] = {}
    good = group.where(GOOD).tolist()
    wanted = ~(np.isnan(group.plans.number("ttft_target")) & np.isnan(group.plans.number("tpot_target")))
    for row in good:
        pair = (group.models[row], group.accelerators[row])
        if pair not in best or rate[row] > rate[best[pair]]:
            best[pair] = row
    items = []
    for row in list(dict.fromkeys([*(row for row in good if wanted[row]), *best.values()]))[:MOST_CURVES]:
        plans, results = limits(group.plans.take([row]), catalog)
        if len(plans):
            items.append(Curve(short(group.names[row]), plans, results, group.results.take([row])))
    return items


def limits_sheet(sheet: Worksheet, drawn: list[Curve]) -> None:
    """Fill the sheet of limits: a chart, a line of limits for each plan, and a line for each load."""
    first = _TOP + chart_rows(_HEIGHT) + 1
    even_rows(sheet, _TOP, first)
    sheet.column_dimensions["A"].width = 54
    key = report_columns("plan", kind="inference")
    known = [column("inference_results", name) for name in _LIMITS]
    rows = [
        [curve.name, *data_rows(curve.results, known[:1])[0], *data_rows(curve.own, known[1:])[0], *_tops(curve)]
        for curve in drawn
    ]
    heads = [*key, *known, *report_columns("limits")]
    limits = drawn_table(sheet, heads, rows, first, "limits", "Limits", widths=True)
    load = column("inference", "concurrency")
    shown = [column("inference_results", name) for name in _SHOWN]
    lines = [
        [curve.name, *plan, *result]
        for curve in drawn
        for plan, result in zip(data_rows(curve.plans, [load]), data_rows(curve.results, shown), strict=True)
    ]
    loads = drawn_table(sheet, [*key, load, *shown], lines, first + len(rows) + 3, "loads", "Loads")
    sheet.row_breaks.append(Break(id=first - 2))
    points = []
    ends = np.cumsum([0, *(len(curve.plans) for curve in drawn)]).tolist()
    for place, span in enumerate(pairwise(ends)):
        name, colour = limits.cells("plan", (place, place + 1)), SERIES[place % len(SERIES)]
        x, y = (loads.cells(known, span) for known in (USER, ACCELERATOR))
        points.append(Points(name, x, y, colour, _MARKERS[place % len(_MARKERS)], width=1.25))
    x_title, y_title = "speed for a user (token/s)", "throughput of an accelerator (token/s)"
    chart = curve_chart("Throughput against interactivity", points, x_title, y_title, (_WIDTH, _HEIGHT), log="xy")
    sheet.add_chart(chart, f"A{_TOP}")
    page_setup(sheet, loads.top)
    sheet.freeze_panes = f"A{_TOP}"


def _tops(curve: Curve) -> list[float]:
    """Largest throughput per accelerator and its load, largest speed per user, most requests, as cells show them."""
    rate, user = (
        curve.results.number(name) / unit_of(column("inference_results", name)).factor for name in (ACCELERATOR, USER)
    )
    requests = curve.results.number("tokens_per_second") / curve.plans.number("output_length")
    top = int(np.argmax(rate))
    return [float(rate[top]), float(curve.plans.number("concurrency")[top]), float(user.max()), float(requests.max())]


Explain = Callable[[Table, "Catalog", int], Table]
_ROOFLINE_HEIGHT = 14.0
_ROOFLINE_WIDTH = 31.2
_PLAN_COLOURS = SERIES[:7]
_ROOF_COLOURS = ("44515E", "8A6D3B", "3B6E8A", "7A4B7A", "55703F", "8A3B3B")
_DASHES = ("solid", "dash", "sysDot", "dashDot", "lgDash", "lgDashDot")
_PHASE_MARKERS = {"forward": "circle", "backward": "triangle", "prefill": "square", "decode": "diamond"}
_MOST_ROOFLINES = 2
_RANK = {"training": "mfu", "inference": "tokens_per_second_per_accelerator"}


def leading_plans(group: Plans) -> list[int]:
    """The best plan of each accelerator, for the accelerators that rank first."""
    rows = group.where(GOOD)
    if not len(rows):
        rows = group.where(TOO_LARGE)
    value = np.nan_to_num(group.number(_RANK[group.kind])[rows])
    by_name: dict[str, int] = {}
    for row in rows[np.argsort(-value, kind="stable")].tolist():
        by_name.setdefault(group.accelerators[row], row)
    return list(by_name.values())[:_MOST_ROOFLINES]


class _Roof(NamedTuple):
    """Peak rate and memory bandwidth of one accelerator in one precision. [FLOP/s, B/s]"""

    name: str
    peak: float
    bandwidth: float


def _roofs(report: Report) -> list[_Roof]:
    accelerators = accelerators_of(report.catalog).table
    roofs = []
    for group, row, _ in report.operators:
        index = int(report.index("accelerators", group)[row])
        name = str(accelerators["accelerator"][index])
        (name_of_peak,) = peak_names(group.plans.take([row]), report.catalog)
        precision = name_of_peak.removeprefix("peak_flop_rate_")
        bandwidth = float(accelerators["memory_bandwidth"][index])
        peak = float(accelerators.number(f"peak_flop_rate_{precision}")[index])
        if not np.isfinite(peak):
            precision, peak = "bf16", float(accelerators["peak_flop_rate_bf16"][index])
        rates = f"{number_words(peak / factor('TFLOP/s'))} TFLOP/s, {number_words(bandwidth / factor('TB/s'))} TB/s"
        roofs.append(_Roof(f"{name} {precision}: {rates}", peak, bandwidth))
    return list({roof.name: roof for roof in roofs}.values())


def roofline_sheet(sheet: Worksheet, report: Report) -> None:
    """Fill the sheet that draws operators of a few plans under the rooflines of their accelerators."""
    schema = table_schema("operators")
    rows: list[list[float | bool | str | None]] = []
    spans: list[tuple[str, str, tuple[int, int]]] = []  # plan, phase, drawn rows
    for group, row, table in report.operators:
        label = short(group.names[row])
        columns = [column for column in schema.columns if column.name in table]
        flop, time = table["flop"], table["time"]
        with np.errstate(divide="ignore", invalid="ignore"):
            reached = flop / time / factor("TFLOP/s")
        drawn = (flop > 0) & (table["traffic"] > 0) & (time > 0)
        phases = table.text("phase")
        shown = data_rows(table, columns)
        for phase in list(dict.fromkeys([str(name) for name in phases])):
            members = np.flatnonzero(phases == phase)
            members = members[np.argsort(~drawn[members], kind="stable")]
            count = int(drawn[members].sum())
            if count:
                spans.append((label, phase, (len(rows), len(rows) + count)))
            rows += [[label, *shown[i], float(reached[i]) if drawn[i] else None] for i in members.tolist()]
    columns = [column for column in schema.columns if all(column.name in table for _, _, table in report.operators)]
    header = _TOP + chart_rows(_ROOFLINE_HEIGHT) + 1
    even_rows(sheet, _TOP, header)
    sheet.column_dimensions["A"].width = 54
    key, rate = report_columns("operators")
    operators = drawn_table(sheet, [key, *columns, rate], rows, header, "operators", widths=True)
    sheet.row_breaks.append(Break(id=header - 1))
    _roofline_chart(sheet, report, spans, operators)
    page_setup(sheet, header)
    sheet.freeze_panes = f"A{_TOP}"


def _roofline_chart(
    sheet: Worksheet, report: Report, spans: list[tuple[str, str, tuple[int, int]]], operators: Drawn
) -> None:
    """Draw the operators and the rooflines; their names and corners are in a second table below."""
    roofs = _roofs(report)
    axes = ("arithmetic_intensity", "flop_rate")
    x, y = (np.array([value for value in operators.cells(name).values if value], dtype=float) for name in axes)
    x_low, x_high = _decades(np.concatenate([x, [roof.peak / roof.bandwidth for roof in roofs]]))
    y_low, _ = _decades(np.concatenate([y, [roof.peak / factor("TFLOP/s") for roof in roofs]]))
    intensity = unit_of(table_schema("operators").by_name["arithmetic_intensity"]).factor
    lines: list[list[float | str | None]] = [[f"{label}: {phase}", None, None] for label, phase, _ in spans]
    for roof in roofs:
        slope = roof.bandwidth / factor("TFLOP/s")
        for at in (max(x_low, y_low / slope), roof.peak / roof.bandwidth, x_high):
            lines.append([roof.name, at / intensity, min(roof.peak / factor("TFLOP/s"), at * slope)])
    below = operators.top + operators.count + 3
    table = drawn_table(sheet, report_columns("roofs"), lines, below, "roofs", "Series of the chart", fitted=False)
    labels = list(dict.fromkeys([label for label, _, _ in spans]))
    points = []
    for i, (label, phase, span) in enumerate(spans):
        along, up = (operators.cells(name, span) for name in axes)
        shade = _PLAN_COLOURS[labels.index(label) % len(_PLAN_COLOURS)]
        points.append(Points(table.cells("series", (i, i + 1)), along, up, shade, _PHASE_MARKERS.get(phase, "x")))
    for i in range(len(roofs)):
        first = len(spans) + 3 * i
        along, up = (table.cells(name, (first, first + 3)) for name in ("roof_intensity", "roof_flop_rate"))
        shade, dash = _ROOF_COLOURS[i % len(_ROOF_COLOURS)], _DASHES[i % len(_DASHES)]
        name = table.cells("series", (first, first + 1))
        points.append(Points(name, along, up, shade, "none", width=1.75, dash=dash))
    words, size = "Roofline: operators of the chosen plans, one accelerator", (_ROOFLINE_WIDTH, _ROOFLINE_HEIGHT)
    titles = "arithmetic intensity (FLOP/B of main memory)", "FLOP rate (TFLOP/s)"
    sheet.add_chart(curve_chart(words, points, *titles, size, log="xy"), f"A{_TOP}")


def _decades(values: np.ndarray) -> tuple[float, float]:
    """Powers of ten around all values, six at the most below the highest."""
    values = values[np.isfinite(values) & (values > 0)]
    high = np.ceil(np.log10(values.max()) + 0.05)
    low = max(np.floor(np.log10(values.min())), high - 6)
    return float(10.0**low), float(10.0**high)
