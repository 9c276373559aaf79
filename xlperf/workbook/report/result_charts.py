"""Charts of result tables: columns, answer in words; charts below designs and servers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from openpyxl.chart.series import SeriesLabel
from openpyxl.utils import get_column_letter, range_boundaries

from xlperf.catalog.schema import grouped
from xlperf.workbook.data_sheets import BLANK_ROWS, DATA_SHEETS, HEADER_ROW, sheet_columns
from xlperf.workbook.front.formulas import Live
from xlperf.workbook.front.layout import AMBER, BLUE, GREEN, GREY, ORANGE, SKY, Axis, bars, place
from xlperf.workbook.report.data import number_words, short
from xlperf.workbook.style import MUTED, NAVY, put

if TYPE_CHECKING:
    from xlperf.catalog.schema import Column


MOST_ROWS = 36
"""Rows that a chart draws. [-]"""
SPEED, THROUGHPUT = "tokens_per_second_per_user", "tokens_per_second_per_accelerator"
_HEADLINES = (
    "step_time", "tpot", "time", "hour_cost", "cost_per_million_tokens", "cost_per_million_output_tokens_all_in",
    "tokens_per_second",
)  # fmt: skip
"""Results of plans that a chart shows, the first that a table has, if the command asked for none."""
Rows = Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Kind:
    """Look of a chart for tables with some columns.

    - ``words``: title of the chart.
    - ``look``: ``bars``, ``stacked``, ``waterfall``, ``tornado``, ``points`` or ``lines``.
    - ``labels``: columns whose texts name a row; none: its name and the differing inputs.
    - ``values``: drawn columns: amounts of bars; change and level of a waterfall; low, base and high of a tornado; x
      and y of points.
    - ``within``: only rows with the first row's value in this column.
    - ``descending``: whether the largest comes first.
    - ``answer``: the first row in words; "" names the lowest and the highest.
    - ``limit``: limit of stacked bars, drawn as a frame around each.
    """

    words: str
    look: str
    labels: tuple[str, ...]
    values: tuple[str, ...]
    within: str = ""
    descending: bool = False
    answer: str = ""
    limit: str = ""

    @property
    def of_one(self) -> bool:
        """Whether the values are shares of a whole, shown in per cent."""
        return self.words.startswith("Share of")


KINDS = (
    Kind("Time of operators, all calls", "bars", ("phase", "operator"), ("total_time",), "", True, "Longest operator"),
    Kind("From the cost at the sheet prices to the owner's", "waterfall", ("line",), ("cost_change", "cost"), "plan"),
    Kind("From the prediction to the measurement", "waterfall", ("step",), ("difference", "value"), "result"),
    Kind("5th, 50th and 95th percentile", "bars", ("plan",), ("p5", "p50", "p95"), "result"),
    Kind("Which input decides: swing of the result", "bars", ("input",), ("swing",), "plan", True, "Largest swing"),
    Kind("Which input decides", "tornado", ("input",), ("result_low", "result_base", "result_high"), "subject"),
    Kind("Worth of the change, an accelerator and month", "bars", ("plan", "input"), ("worth",), "", True,
         "Worth most"),
    Kind("Price of an hour at which tokens cost the same", "bars", ("plan", "against"),
         ("break_even_hour_cost", "hour_cost_against")),
    Kind("Derived over stated", "bars", ("device", "quantity"), ("difference",)),
    Kind("Cost of a unit by part", "stacked", (), grouped("chiplets_results", "unit")),
    Kind("An hour of one accelerator by part", "stacked", (), grouped("servers_results", "hour")),
    Kind("An hour of one accelerator by part", "stacked", (), grouped("ownership", "hour")),
    Kind("Cost of a unit", "bars", ("device",), ("unit_cost",)),
    Kind("Time of the operation", "bars", (), ("time",)),
    Kind("How likely each cause is", "bars", ("cause",), ("probability",), "", True, "Most likely"),
    Kind("Share of each budget in use", "bars", (), ("memory_used", "speed_used", "ttft_used", "users_used")),
    Kind("Share of a step by part", "stacked", (), grouped("train_results", "step share")),
    Kind("Cost of a unit by part", "stacked", (), grouped("chip_results", "unit")),
)  # fmt: skip
"""Drawings by the columns of a table; the first one with all of its values applies."""


@dataclass(frozen=True)
class Drawing:
    """Numbers of a chart, on its sheet below it.

    - ``columns``: drawn columns, one for each list of ``values``.
    - ``values``: numbers in the unit of their column; None if there is none.
    - ``series``: of points and lines the series of each row; empty for bars.
    - ``title``: words of the chart, with omissions.
    - ``answer``: the message of the table, in a line.
    """

    kind: Kind
    labels: list[str]
    columns: list[Column]
    values: list[list[float | None]]
    series: list[str] = field(default_factory=list)
    title: str = ""
    answer: str = ""


def drawings(name: str, columns: Sequence[Column], rows: Rows, wanted: Sequence[str] = ()) -> list[Drawing]:
    """Charts of a table of results; none without a number to draw.

    ``name``: of its sheet. ``rows``: values as cells show them. ``wanted``: columns that the command asked for, drawn
    first: objectives, results, the column that a solution varies.
    """
    place = {column.name: i for i, column in enumerate(columns)}
    if name == "frontier":
        result = _points(columns, rows, (SPEED, THROUGHPUT), "Throughput against speed per user")
        if result is not None and len(result.labels) > 2:
            return [result]
    if name == "chips":
        result = _points(columns, rows, ("unit_cost", THROUGHPUT), "Tokens per second against the cost of a unit")
        if result is not None:
            return [result]
    for kind in KINDS:
        if {*kind.values, *kind.labels, *filter(None, [kind.within])} <= set(place):
            result = _bars(kind, columns, rows)
            return [result] if result is not None else []
    return [result for result in _of_plans(columns, rows, place, wanted) if result is not None]


def _of_plans(
    columns: Sequence[Column], rows: Rows, place: dict[str, int], wanted: Sequence[str]
) -> list[Drawing | None]:
    """Plans: requested results against each other or over the varied column, and memory by part."""
    asked = [name for name in wanted if name in place and any(_number(row[place[name]]) is not None for row in rows)]
    names = [*asked, *(n for n in _HEADLINES if n in place and any(_number(row[place[n]]) is not None for row in rows))]
    if not names:
        return []
    first: Drawing | None
    varied = _varied_number(columns, rows)
    if len(asked) > 1 and len(rows) > 2:
        first = _points(columns, rows, (asked[0], asked[1]), "Plans that nothing beats in both")
    elif varied and names[0] != varied and len({row[place[varied]] for row in rows}) > 2:
        first = _points(columns, rows, (varied, names[0]), _words(columns[place[names[0]]]), "lines")
    else:
        first = _bars(Kind(_words(columns[place[names[0]]]), "bars", (), (names[0],)), columns, rows)
    parts = [
        column.name for column in columns
        if column.name.startswith("memory_") and column.is_result and column.name in _MEMORY
        and any(_number(row[place[column.name]]) for row in rows)
    ]  # fmt: skip
    memory = Kind(
        "Memory of the accelerator that needs most, by part", "stacked", (), tuple(parts),
        limit="memory_capacity" if "memory_capacity" in place else "",
    )  # fmt: skip
    return [first, _bars(memory, columns, rows) if parts else None]


_MEMORY = (*grouped("training_results", "memory"), "memory_kv_cache")


def _words(column: Column) -> str:
    words = column.name.replace("_", " ").replace("num ", "number of ")
    known = {"ttft": "Time to first token", "tpot": "Time per output token", "mfu": "MFU", "hfu": "HFU"}
    return known.get(words, words.capitalize())


def _number(value: Any) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known else None


def differing(columns: Sequence[Column], rows: Rows) -> list[int]:
    """Places of the inputs, other than names, that are not the same in every row."""
    return [
        i for i, column in enumerate(columns)
        if not column.is_result and column.kind != "name" and column.name not in ("name", "source", "notes", "year")
        and len({row[i] for row in rows}) > 1
    ]  # fmt: skip


def _varied_number(columns: Sequence[Column], rows: Rows) -> str:
    """The one input of numbers that varies within the rows of each name; "" if there is none or several."""
    places = [i for i in differing(columns, rows) if all(_number(row[i]) is not None for row in rows)]
    keys = [i for i, column in enumerate(columns) if column.name == "name"]
    if not keys or not places:
        return ""
    groups = {row[keys[0]] for row in rows}
    inside = [i for i in places if any(len({row[i] for row in rows if row[keys[0]] == name}) > 1 for name in groups)]
    others = [i for i in differing(columns, rows) if i not in inside]
    steady = all(len({row[i] for row in rows if row[keys[0]] == name}) == 1 for i in others for name in groups)
    return columns[inside[0]].name if len(inside) == 1 and steady else ""


def row_names(columns: Sequence[Column], rows: Rows) -> list[str]:
    """A text for each row: its name, with differing inputs if several rows share the name."""
    key = next((i for i, c in enumerate(columns) if c.kind == "name" or c.name in ("name", "plan")), None)
    names = [str(row[key] or "") if key is not None else "" for row in rows]
    if len(set(names)) == len(names) and all(names):
        return [short(name, 60) for name in names]
    places = differing(columns, rows)
    if key is not None:  # what a name says need not be said again
        groups = [[row for row, own in zip(rows, names, strict=True) if own == name] for name in dict.fromkeys(names)]
        inside = [i for i in places if any(len({row[i] for row in group}) > 1 for group in groups)]
        places = inside or places
    said = []
    for name, row in zip(names, rows, strict=True):
        parts = [
            f"{columns[i].name.replace('_', ' ').split('.')[-1]} {_shown(row[i])}" for i in places if row[i] is not None
        ]
        own = [name] if len(set(names)) > 1 and name else []
        said.append(short(", ".join([*own, *parts]) or name or "this answer", 72))
    return [f"{i}: {text}" if said.count(text) > 1 else text for i, text in enumerate(said, start=1)]


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _bars(kind: Kind, columns: Sequence[Column], rows: Rows) -> Drawing | None:
    """Rows with their amounts, in order, as many as a chart takes."""
    place = {column.name: i for i, column in enumerate(columns)}
    if kind.within:
        rows = [row for row in rows if row[place[kind.within]] == rows[0][place[kind.within]]]
    names = row_names(columns, rows)
    if kind.labels:
        told = [name for name in kind.labels if len({row[place[name]] for row in rows}) > 1 or len(kind.labels) == 1]
        most = 34 if kind.look == "waterfall" else 72
        names = [short(": ".join(str(row[place[name]] or "") for name in told or kind.labels), most) for row in rows]
    count = len(kind.values)
    at = [place[name] for name in (*kind.values, *filter(None, [kind.limit]))]
    results = [(name, [_number(row[i]) for i in at]) for name, row in zip(names, rows, strict=True)]
    results = [(name, numbers) for name, numbers in results if any(number is not None for number in numbers[:count])]
    if not results:
        return None
    if kind.descending:
        results.sort(key=lambda entry: -abs(entry[1][0] or 0.0))
    shown = results[:MOST_ROWS]
    left = f", {len(shown)} of {len(results):,} rows" if len(results) > len(shown) else ""
    title = f"{kind.words}{left}"
    if kind.within and len({row[place[kind.within]] for row in rows}) == 1:
        title = f"{title}: {short(str(rows[0][place[kind.within]]), 40)}"
    used = [i for i in range(len(at)) if kind.look != "stacked" or any(numbers[i] for _, numbers in shown)]
    used = used or list(range(len(at)))
    own = [columns[at[i]] for i in used]
    values = [[numbers[i] for _, numbers in shown] for i in used]
    subject = str(rows[0][place[kind.within]]) if kind.within else ""
    answer = _answer(kind, own, [(name, numbers[:count]) for name, numbers in results], subject)
    return Drawing(kind, [name for name, _ in shown], own, values, [], title, answer)


def _points(
    columns: Sequence[Column], rows: Rows, names: tuple[str, str], words: str, look: str = "points"
) -> Drawing | None:
    """Rows as points of two of their numbers, a series for each plan, or model and accelerator."""
    place = {column.name: i for i, column in enumerate(columns)}
    along, up = (place[name] for name in names)
    kept = [row for row in rows if _number(row[along]) is not None and _number(row[up]) is not None]
    if not kept:
        return None
    series = [str(row[place["name"]] or "") if "name" in place else "" for row in kept]
    if len(set(series)) > 10:
        series = [""] * len(kept)
    if "frontier" in place:
        series = ["beaten by none" if row[place["frontier"]] else "others" for row in kept]
    order = sorted(range(len(kept)), key=lambda i: (series.index(series[i]), kept[i][along]))
    kept, series = [kept[i] for i in order], [series[i] or "plans" for i in order]
    own = [columns[along], columns[up]]
    labels = row_names(columns, kept)
    values = [[_number(row[i]) for row in kept] for i in (along, up)]
    kind = Kind(words, look, (), names)
    top = max(kept, key=lambda row: row[up])
    ends = [
        f"{_words(columns[i]).lower()} of {number_words(top[i])} {columns[i].unit.strip('-')}".strip()
        for i in (up, along)
    ]
    name = f" ({top[place['name']]})" if "name" in place and top[place["name"]] else ""
    answer = f"Highest {ends[0]} at {ends[1]}{name}."
    return Drawing(kind, labels, own, values, series, words, answer)


def _answer(
    kind: Kind, columns: Sequence[Column], sequence: Sequence[tuple[str, Sequence[float | None]]], subject: str
) -> str:
    """Message of a table: the first row, or the lowest and the highest of its rows; of stacked parts, of their sums.

    ``subject``: subject of the rows, if only one subject is drawn.
    """
    column = columns[0]

    unit = f" {column.unit}" if column.unit not in ("", "-") else ""

    def said(entry: tuple[str, float]) -> str:
        return f"{number_words(entry[1])}{unit} ({entry[0]})"

    words = _words(column)
    filled = [(name, [value or 0.0 for value in own]) for name, own in sequence]
    if kind.look == "tornado":
        name, ends = max(filled, key=lambda entry: abs(entry[1][2] - entry[1][0]))
        from_, else_, to = map(number_words, ends)
        return f"{subject}: {name} decides most, {from_} to {to}{unit} in place of {else_}."
    if kind.look == "waterfall":
        name, (step, _) = max(filled[1:-1] or filled, key=lambda entry: abs(entry[1][0]))
        start, end = (number_words(own[1]) for _, own in (filled[0], filled[-1]))
        return f"From {start} to {end}{unit} ({subject}); the largest step is {name}, {number_words(step)}."
    if len(columns) == 3 and kind.look == "bars":
        name, numbers = sequence[0]
        low, middle, high = (number_words(number or 0.0) for number in numbers)
        return f"{subject}: {middle}, in nine draws of ten {low} to {high} ({name})."
    entries = [(name, own[0]) for name, own in sequence if own[0] is not None]
    if kind.look == "stacked":
        words, entries = kind.words.removesuffix(" by part").removesuffix(","), [
            (name, sum(value or 0.0 for value in own)) for name, own in sequence
        ]  # fmt: skip
    if not entries:
        return ""
    if kind.answer:
        return f"{kind.answer}: {said(entries[0])}."
    least, most = (pick(entries, key=lambda entry: entry[1]) for pick in (min, max))
    if least[1] == most[1]:
        return f"{words}: {said(least)}{f', as all {len(entries)} rows' if len(entries) > 1 else ''}."
    return f"{words}: lowest {said(least)}, highest {said(most)}."


@dataclass(frozen=True)
class CostChart:
    """Heading of a chart, and the columns that its bars are made of."""

    heading: str
    parts: tuple[str, ...]


CHARTS = {
    "chiplets": CostChart(
        "Cost of a unit by part (USD): the cells above, stacked",
        grouped("chiplets_results", "unit"),
    ),
    "servers": CostChart(
        "An hour of one accelerator by part (USD): the cells above, stacked",
        grouped("servers_results", "hour"),
    ),
}  # fmt: skip
_COLOURS = (BLUE, "7FB8DA", AMBER, "F2D08B", "C08A5A", GREEN, "8CCBB5", GREY, MUTED, NAVY)
_COLOURS_OF_HOUR = (BLUE, SKY, GREEN, GREY, AMBER, MUTED, ORANGE)


def cost_charts(book: Any, live: Live) -> None:
    """Add a chart below each sheet of :data:`CHARTS` that the workbook has, if it has rows.

    ``book``: changed in place. ``live``: its values of formulas become the points of the charts.
    """
    for kind, own in CHARTS.items():
        if kind not in book.sheetnames:
            continue
        sheet = book[kind]
        edges: Any = range_boundaries(sheet.tables[kind].ref)
        last = edges[3] - BLANK_ROWS
        if last <= HEADER_ROW or sheet.cell(HEADER_ROW + 1, 1).value is None:
            continue
        values = live.formulas.values.get(kind, {})
        for row in sheet.iter_rows(min_row=HEADER_ROW, max_row=last):
            live.values |= {(kind, cell.coordinate): values.get(cell.coordinate, cell.value) for cell in row}
        names, in_sight = [column.name for column in sheet_columns(kind)], DATA_SHEETS[kind].in_sight
        letters = " ".join(get_column_letter(names.index(name) + 1) for name in own.parts)
        colours = _COLOURS if kind == "chiplets" else _COLOURS_OF_HOUR
        chart = bars(
            sheet, "A", (HEADER_ROW, last), letters, colours, "#,##0", live, gap=35, stacked=True, formats=False
        )
        for series, name in zip(chart.series, own.parts, strict=True):
            series.tx = SeriesLabel(v=name.replace("nre", "design").replace("_", " "))
        chart.visible_cells_only = False  # a part may stand in a column that is folded
        chart.y_axis.crosses = "max"
        top = edges[3] + 2
        end_row = top + max(14, 6 + 2 * (last - HEADER_ROW))
        put(sheet[f"A{top}"], own.heading, "xlperf heading")
        sheet.print_area = f"A{HEADER_ROW - 1}:{get_column_letter(len(names))}{end_row}"
        first, end = (get_column_letter(names.index(name) + 1) for name in (in_sight[0], DATA_SHEETS[kind].results[3]))
        place(
            chart,
            sheet,
            f"{first}{top + 1}:{end}{end_row}",
            Axis(),
            Axis(number="#,##0" if kind == "chiplets" else "0.0", grid=True),
            (0.19, 0.02, 0.62, 0.88),
            (0.83, 0.02, 0.16, 0.90 if kind == "chiplets" else 0.30),
        )
