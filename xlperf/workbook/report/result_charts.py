"""The front of a workbook of results: its question, charts with answers in words, and links to the rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from openpyxl import Workbook

from xlperf.base import resources
from xlperf.base.arrays import added
from xlperf.catalog.schema import grouped
from xlperf.studies.outcome import runs
from xlperf.workbook import charts, style
from xlperf.workbook.axes import axis_number
from xlperf.workbook.report.data import Drawn, number_words, plural, short
from xlperf.workbook.style import title

if TYPE_CHECKING:
    from openpyxl.worksheet.worksheet import Worksheet

    from xlperf.catalog.schema import Column


MOST_ROWS = 36
"""Rows that a chart draws. [-]"""
SPEED, THROUGHPUT = "tokens_per_second_per_user", "tokens_per_second_per_accelerator"
_HEADLINES = (
    "step_time", "tpot", "time", "hour_cost", "cost_per_million_tokens", "cost_per_million_output_tokens_all_in",
    "tokens_per_second",
)  # fmt: skip
"""Results of plans that a chart shows, the first that a table has, if the command asked for none."""
_AXES = (
    ("frontier", (SPEED, THROUGHPUT), "Throughput against speed per user", 3),
    ("chips", ("unit_cost", THROUGHPUT), "Tokens per second against the cost of a unit", 1),
)
"""Sheets of points: their axes, their title, and how many points are worth a chart."""
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


def _columns_of(cell: str) -> tuple[str, ...]:
    """Columns in a cell of result_charts.csv, or of a group of a table's columns."""
    group = cell.removeprefix("group: ")
    return grouped(*group.split(" / ")) if group != cell else tuple(cell.split())


KINDS = [
    Kind(
        row["title"], row["look"], tuple(row["labels"].split()), _columns_of(row["values"]), row["within"],
        bool(row["largest first"]), row["answer"],
    )
    for row in resources.rows("workbook/result_charts.csv")
]  # fmt: skip
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
    """Charts of a table of results; none without a number to draw."""
    place = {column.name: i for i, column in enumerate(columns)}
    for sheet, axes, words, least in _AXES:
        if name == sheet:
            result = _points(columns, rows, axes, words)
            if result is not None and len(result.labels) >= least:
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


_KNOWN = {"ttft": "Time to first token", "tpot": "Time per output token", "mfu": "MFU", "hfu": "HFU"}


def _words(column: Column) -> str:
    words = column.name.replace("_", " ").replace("num ", "number of ")
    return _KNOWN.get(words, words.capitalize())


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
    """Message of a table: the first row, or the lowest and the highest of its rows; of stacked parts, of their sums."""
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


ASKED = "asked"
_WIDTH = 30.0
_MARKERS = ("circle", "square", "diamond", "triangle")
_MORE, _LESS = "D55E00", "009E73"
_FEW = 10.0
"""Counts up to which an axis is labelled at every one. [-]"""


def add_front(
    workbook: Workbook,
    command: str,
    asked: Mapping[str, str],
    tables: Mapping[str, tuple[Sequence[Column], Rows]],
    wanted: Sequence[str] = (),
    said: Sequence[str] = (),
) -> None:
    """Add the sheet with the question and a chart of the answer; the workbook opens on it.

    - ``workbook``: with the tables of results, each with its header in the first row.
    - ``command``: the command, such as ``xlperf search --frontier``.
    - ``asked``: its arguments, by name.
    - ``tables``: columns and rows of each sheet of results, as cells show them.
    - ``wanted``: columns that the command asked for, such as objectives.
    - ``said``: the command's answer in words; by default the message of the charts.
    """
    front: Any = workbook.create_sheet(ASKED)
    title(front, command, "What was asked, the answer in a chart, and the sheets that hold all rows.")
    style.column_widths(front, 46, *[15.0] * 9)
    row = style.heading(front, 4, "Asked")
    for name, value in asked.items():
        style.put(front.cell(row, 1), name.replace("_", " "), "xlperf key")
        style.put(front.cell(row, 2), value, "xlperf text", wrapped=False)
        row += 1
    drawn = [drawing for name, (columns, rows) in tables.items() for drawing in drawings(name, columns, rows, wanted)]
    answers = said or [drawing.answer for drawing in drawn if drawing.answer]
    if answers:
        row = style.heading(front, row + 1, "Answer")
        for words in answers:
            style.put(front.cell(row, 1), words, "xlperf text", wrapped=False)
            row += 1
    drawn = [drawing for drawing in drawn if len(drawing.labels) * len(drawing.columns) > 1] or drawn[:1]
    row = style.heading(front, row + 1, "Rows")
    for name, (_, rows) in tables.items():
        style.link(front.cell(row, 1), name, name)
        style.put(front.cell(row, 2), plural(len(rows), "row"), "xlperf text", wrapped=False)
        row += 1
    top = row + 1
    below = top + sum(style.chart_rows(_height(drawing)) + 1 for drawing in drawn)
    style.even_rows(front, top, below)
    for drawing in drawn:
        chart, below = _drawn(front, drawing, below)
        style.place_chart(front, chart, top)
        top += style.chart_rows(chart.height) + 1
    style.page_setup(front, area=f"A1:J{top}" if drawn else None, pages_high=1)  # what the charts are drawn from is not
    style.open_on(workbook, front)


def _height(drawing: Drawing) -> float:
    """Height of a chart. [cm]"""
    look = drawing.kind.look
    if look in ("points", "lines", "waterfall"):
        return 13.0
    lines = len(drawing.labels) * (1 if look in ("stacked", "tornado") else max(1.0, 0.7 * len(drawing.columns)))
    return max(5.5, 3.9 + 0.5 * lines)


def _drawn(sheet: Worksheet, drawing: Drawing, top: int) -> tuple[Any, int]:
    """The chart of a drawing, whose numbers are written from a row on; and the row below them."""
    row = style.heading(sheet, top + 1, f"Drawn above: {drawing.title}")
    heads = ["", *(_KNOWN.get(column.name, column.header) for column in drawing.columns)]
    values = [list(numbers) for numbers in drawing.values]
    look = drawing.kind.look
    if look == "waterfall":
        change, level = values
        whole = [i in (0, len(level) - 1) for i in range(len(level))]
        heads = ["", "below", drawing.columns[1].header]
        ends = [(end or 0.0, step or 0.0) for end, step in zip(level, change, strict=True)]
        values = [
            [0.0 if own else min(end, end - step) for own, (end, step) in zip(whole, ends, strict=True)],
            [end if own else abs(step) for own, (end, step) in zip(whole, ends, strict=True)],
        ]
    elif look == "tornado":
        low, base, high = ([value or 0.0 for value in numbers] for numbers in values)
        heads = ["", "low value adds", "high value adds"]
        values = [[x - b for x, b in zip(end, base, strict=True)] for end in (low, high)]
    sheet.row_dimensions[row].height = 42
    for column, words in enumerate(heads, start=1):
        style.put(sheet.cell(row, column), words, "xlperf header" if column == 1 else "xlperf header result")
    formats = [style.fitted_format(column, own) for column, own in zip(drawing.columns, values, strict=False)]
    for down, label in enumerate(drawing.labels, start=row + 1):
        style.put(sheet.cell(down, 1), label, "xlperf key")
        for column, numbers in enumerate(values, start=2):
            style.put(sheet.cell(down, column), numbers[down - row - 1], "xlperf computed", formats[column - 2])
    table = Drawn(sheet, [str(place) for place in range(len(values) + 1)], row, len(drawing.labels))
    return _chart(table, drawing, values), table.last + 1


def _chart(table: Drawn, drawing: Drawing, values: Sequence[Sequence[float | None]]) -> Any:
    """A native chart of the numbers of a table."""
    words, look, columns = drawing.title, drawing.kind.look, drawing.columns
    size, unit = (_WIDTH, _height(drawing)), columns[-1].header
    labels, *cells = (table.both(name) for name in table.names)
    known = [value for numbers in values for value in numbers if value is not None]
    if look in ("points", "lines"):
        return _scatter(table, drawing, size)
    if look == "waterfall":
        change = [value or 0.0 for value in drawing.values[0]]
        ends = (0, len(change) - 1)
        colours = [style.NAVY if i in ends else _MORE if step > 0.0 else _LESS for i, step in enumerate(change)]
        return charts.waterfall(words, labels[1], cells[0], cells[1], colours, unit, size)
    if look == "tornado":
        return charts.tornado(words, labels[1], cells[0], cells[1], columns[1].header, size)
    stacked = look == "stacked"
    parts = [
        charts.Part(
            head,
            numbers,
            charts.colour(column.name, i) if stacked and column.name.startswith("memory_") else charts.SERIES[i % 10],
        )
        for i, ((head, numbers), column) in enumerate(zip(cells, columns, strict=True))
    ]
    if columns[-1].name == drawing.kind.limit:
        return charts.bars_in_a_limit(
            words, labels[1], parts[:-1], parts[-1], columns[-1].unit, axis_number(known), size
        )
    reached = [added(v or 0.0 for v in row) for row in zip(*values, strict=True)] if stacked else known
    chart: Any = charts.horizontal_bars(
        words, labels[1], parts, unit if len(parts) == 1 else columns[-1].unit.strip("-"),
        "0 %" if drawing.kind.of_one else axis_number(reached), size, stacked=stacked,
        most=1.0 if drawing.kind.of_one and max(reached, default=0.0) <= 1.0 + 1e-9 else None,
    )  # fmt: skip
    if known and max(known) <= _FEW and all(value.is_integer() for value in known):
        chart.y_axis.majorUnit, chart.y_axis.number_format = 1, "#,##0"
    if len(parts) == 1:
        chart.legend = None
    if any(value < 0.0 for value in known):
        chart.y_axis.scaling.min = None
    return chart


def _scatter(table: Drawn, drawing: Drawing, size: tuple[float, float]) -> Any:
    """Points or lines, a series for each run of rows; its name is right of its first row."""
    points = []
    for place, span in enumerate(runs(drawing.series)):
        at = table.top + 1 + span[0]
        style.put(table.sheet.cell(at, 4), drawing.series[span[0]], "xlperf note")
        name = charts.Cells(table.sheet, 4, at, at)
        x, y = (table.cells(values, span) for values in table.names[1:])
        shade, marker = charts.SERIES[place % len(charts.SERIES)], _MARKERS[place % len(_MARKERS)]
        points.append(
            charts.spots(name, x, y, shade, marker)
            if drawing.kind.look == "points"
            else charts.curve(name, x, y, shade)
        )
    x_title, y_title = (column.header for column in drawing.columns)
    x_number, y_number = map(axis_number, drawing.values)
    chart: Any = charts.curve_chart(drawing.title, points, x_title, y_title, size, x_number=x_number, y_number=y_number)
    if len(points) == 1:
        chart.legend = None
    return chart
