"""An answer as a page to send: one HTML file with charts, tables and sliders, which needs no network.

The sliders move over answers to similar questions, which are computed when the page is written. Tables make a page as
well: findings in words, and each table below its charts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from html import escape
from itertools import product
from math import prod
from string import Template
from typing import Any, NamedTuple

import numpy as np

from xlperf import __version__
from xlperf.base import resources
from xlperf.base.errors import InputError, printable
from xlperf.base.files import replaced
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.cells import number_of
from xlperf.catalog.schema import (
    Part,
    cells,
    column,
    displayed,
    questions,
    results_of,
    rounded,
    shown_columns,
    software_title,
    unit_of,
)
from xlperf.catalog.table import Table, stacked
from xlperf.engine.tables import Progress
from xlperf.explore.forms import TOGETHER, Answered, Shown, answers_of, answers_table, asked_form, nested_parts
from xlperf.explore.objectives import no_answer
from xlperf.explore.workers import worked

MOST_ROWS = 30  # rows that are shown of a table [-]
_MOST_PARAGRAPHS = 10  # sentences from which on a page tabulates them [-]


def text(words: str) -> str:
    """A text for HTML: markup is escaped, and characters that hide text are written out."""
    return escape(printable(words))


def row(words: Sequence[str], numbers: Sequence[bool], tag: str = "td", mark: str = "") -> str:
    """A row of cells; numbers have a class of their own. ``mark``: class of the row."""
    marks = [' class="number"' if number else "" for number in numbers]
    inside = [f"<{tag}{mark}>{text(word)}</{tag}>" for word, mark in zip(words, marks, strict=True)]
    of_row = f' class="{mark}"' if mark else ""
    return f"<tr{of_row}>{''.join(inside)}</tr>"


def band_words(one: Shown) -> str:
    """The band of a result in words, "" without one."""
    return f"80 % band {one.band}" if one.band else ""


def card(results: Sequence[Shown]) -> str:
    """Results below each other, with their bands."""
    lines = [(one.header, one.words, band_words(one)) for one in results]
    return f"<table>{''.join(row(line, (False, True, False)) for line in lines)}</table>"


def table(block: Sequence[Part]) -> str:
    """Columns with any value, below their names and units."""
    read = [(column, *displayed(column, values[:MOST_ROWS])) for column, values in block]
    filled = [(column, unit, words) for column, unit, words in read if any(words)]
    if not filled:
        return ""
    numbers = [not column.is_text for column, _, _ in filled]
    units = [unit for _, unit, _ in filled]
    head = row([column.words for column, _, _ in filled], numbers, "th")
    head += row(units, numbers, "th") if any(units) else ""
    lines = [row(words, numbers) for words in zip(*(words for _, _, words in filled), strict=True)]
    count = len(block[0][1])
    more = f"<p>{count - MOST_ROWS:,} more rows</p>" if count > MOST_ROWS else ""
    return f"<table><thead>{head}</thead><tbody>{''.join(lines)}</tbody></table>{more}"


_WIDTH, _BAR, _LETTER, _WORDS = 640, 24, 7.2, 90
"""Width of a chart, height of a bar, widths of a letter of a label and of the words behind a bar. [pixel]"""
_HEIGHT, _MARGIN = 260, 52


class Bar(NamedTuple):
    """A bar of a chart; ``low`` and ``high`` are the ends of its band, NaN without one."""

    label: str
    value: float
    words: str
    low: float = float("nan")
    high: float = float("nan")


def bars(title: str, drawn: Sequence[Bar]) -> str:
    """Bars below each other from zero, each with its words, and with its band as a line."""
    most = max((max(bar.value, bar.high if bar.high == bar.high else 0.0) for bar in drawn), default=0.0)
    if not most > 0.0:
        return ""
    left = min(max(190.0, _LETTER * max(len(bar.label) for bar in drawn) + 10.0), 0.6 * _WIDTH)
    scale, room = (_WIDTH - left - _WORDS) / most, int((left - 10.0) / _LETTER)
    lines = []
    for place, bar in enumerate(drawn):
        label = bar.label if len(bar.label) <= room else f"{bar.label[: room - 1]}\N{HORIZONTAL ELLIPSIS}"
        top = place * _BAR
        end = left + scale * bar.value
        lines.append(f'<text x="{left - 8:.1f}" y="{top + 16}" text-anchor="end">{text(label)}</text>')
        lines.append(f'<rect x="{left:.1f}" y="{top + 3}" width="{end - left:.1f}" height="{_BAR - 6}"/>')
        if bar.low == bar.low:
            ends = [left + scale * value for value in (bar.low, bar.high)]
            lines.append(f'<path d="M{ends[0]:.1f} {top + 12}H{ends[1]:.1f}"/>')
            end = max(end, ends[1])
        lines.append(f'<text x="{end + 6:.1f}" y="{top + 16}">{text(bar.words)}</text>')
    return svg(title, _BAR * len(drawn), lines)


def curve(
    title: str, points: Sequence[tuple[float, float]], marked: tuple[float, float] | None, names: Sequence[str]
) -> str:
    """A line through points from zero, with a marked point if there is one and the names of the axes."""
    points = [point for point in points if point[0] == point[0] and point[1] == point[1]]
    most = [max(values) for values in zip(*points, *([marked] if marked else []), strict=True)]
    if not all(value > 0.0 for value in most):
        return ""
    marks = [ticks(value) for value in most]
    most = [each[-1] for each in marks]
    width, height = _WIDTH - 2 * _MARGIN, _HEIGHT - 2 * _MARGIN

    def at(point: tuple[float, float]) -> tuple[float, float]:
        return _MARGIN + width * point[0] / most[0], _HEIGHT - _MARGIN - height * point[1] / most[1]

    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(at, points))
    mark = '<circle cx="{:.1f}" cy="{:.1f}" r="6"/>'.format(*at(marked)) if marked else ""
    bottom, right = _HEIGHT - _MARGIN, _WIDTH - _MARGIN
    lines = [
        f'<path d="M{_MARGIN} {_MARGIN}V{bottom}H{right}"/>',
        f'<polyline points="{drawn}"/>',
        mark,
        f'<text x="{_WIDTH / 2:.0f}" y="{_HEIGHT - 12}" text-anchor="middle">{text(names[0])}</text>',
        f'<text x="{_MARGIN}" y="{_MARGIN - 16}">{text(names[1])}</text>',
    ]
    for along in marks[0]:
        x = at((along, 0.0))[0]
        lines.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{along:,.10g}</text>')
    for up in marks[1]:
        y = at((0.0, up))[1] + 4.0
        lines.append(f'<text x="{_MARGIN - 6}" y="{y:.1f}" text-anchor="end">{up:,.10g}</text>')
    return svg(title, _HEIGHT, lines)


def ticks(most: float) -> list[float]:
    """Round numbers along an axis from 0, five steps at the most, the last at or above the largest value.

    >>> ticks(43.6), ticks(1429.0)
    ([0.0, 10.0, 20.0, 30.0, 40.0, 50.0], [0.0, 500.0, 1000.0, 1500.0])
    """
    power = 10.0 ** math.floor(math.log10(most))
    step = next(each * power for each in (0.2, 0.25, 0.5, 1.0, 2.0) if most <= 5.0 * each * power)
    return [step * number for number in range(math.ceil(most / step - 1e-9) + 1)]


def svg(title: str, height: int, lines: Sequence[str]) -> str:
    """A drawing of some height with its title above it."""
    label = text(title)
    inside = "".join(lines)
    return (
        f'<figure><figcaption>{label}</figcaption><svg role="img" aria-label="{label}" '
        f'viewBox="0 0 {_WIDTH} {height}">{inside}</svg></figure>'
    )


FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0), (0.5, 1.0, 2.0)  # values of the two sliders, as factors of the entry [-]
_POINTS = 8  # points of the curve of a copy; the mark is on the one at full load [-]


class Axis(NamedTuple):
    """An entry that a slider moves, and the texts of its values."""

    name: str
    texts: list[str]
    place: int  # of the question as asked


class Question(NamedTuple):
    """A question, the entries that vary, and the catalog."""

    kind: str
    form: Mapping[str, str]
    axes: tuple[Axis, ...]
    catalog: Catalog

    def __len__(self) -> int:
        return prod(len(axis.texts) for axis in self.axes)

    @property
    def entries(self) -> list[dict[str, str]]:
        """Entries of each point, the last axis fastest."""
        names = [axis.name for axis in self.axes]
        return [dict(zip(names, texts, strict=True)) for texts in product(*(axis.texts for axis in self.axes))]

    def answered(self, numbers: Sequence[int]) -> list[tuple[str, list[Shown]]]:
        """The answers of some points in words, and their results; of entries that exclude each other the fault."""
        tables = [asked_form(self.kind, {**self.form, **self.entries[number]})[1] for number in numbers]
        with suppress(InputError):
            answers_of(stacked(tables), self.catalog)
        return [self._point(table) for table in tables]

    def _point(self, form: Table) -> tuple[str, list[Shown]]:
        try:
            answers = answers_of(form, self.catalog)
        except InputError as error:
            answers = [no_answer(error.faults[0].problem)]
        answer = Answered({}, form, answers_table(form, answers))
        return answer.words, _tiles(answer)


def question_of(answer: Answered, catalog: Catalog, varied: Mapping[str, Sequence[str]] | None = None) -> Question:
    """The questions that the sliders of an answer reach: values of ``varied`` entries, or of the usual ones."""
    if varied:
        chosen = tuple(Axis(name, [*texts], texts.index(answer.form[name])) for name, texts in varied.items())
        return Question(answer.kind, answer.form, chosen, catalog)
    axes = []
    for names, factors in zip(questions()[answer.kind].sliders, FACTORS, strict=False):
        name = next((name for name in names if number_of(answer.form.get(name, "")) > 0.0), None)
        if name is not None:
            axes.append(_axis(answer, name, factors))
    return Question(answer.kind, answer.form, tuple(axes), catalog)


def _axis(answer: Answered, name: str, factors: tuple[float, ...]) -> Axis:
    declared, asked = column(answer.kind, name), number_of(answer.form[name])
    low, high, _ = declared.limits
    values = [asked * factor for factor in factors]
    values = [max(1.0, float(round(value))) if declared.is_whole else value for value in values]
    values = list(dict.fromkeys(value for value in values if value == asked or low < value <= high))
    return Axis(
        name, [f"{value:.6g}" if value != asked else answer.form[name] for value in values], values.index(asked)
    )


def _tiles(answer: Answered) -> list[Shown]:
    """The results with a tile; blank if there is no answer."""
    known = {one.name: one for one in answer.card}
    schema = results_of(answer.kind).by_name
    names = shown_columns(f"{answer.kind}_results", "tile")
    return [known.get(name, Shown(name, schema[name].header, "")) for name in names]


def write_page(output: str, answer: Answered, asked: Question, processes: int, done: Progress) -> None:
    """Write an answer as a page; the file is replaced when the page is complete."""
    points: list[tuple[str, list[Shown]]] = []
    numbers = range(len(asked))
    for block in worked(asked.answered, (numbers[at : at + TOGETHER] for at in numbers[::TOGETHER]), processes):
        points += block
        done(len(block))
    page = _page(answer, asked, points)
    with replaced(output) as temporary:
        temporary.write_text(page, encoding="utf-8", newline="\n")


def _page(answer: Answered, asked: Question, points: list[tuple[str, list[Shown]]]) -> str:
    tiles, trust = _tiles(answer), str(answer.answer.get("trust", ""))
    nested, titles = nested_parts(answer), questions()[answer.kind].tables
    lines = [
        f'<div class="tile"><span>{text(one.header)}</span><b id="tile-{place}">{text(one.words)}</b>'
        f'<small id="band-{place}">{text(band_words(one))}</small></div>'
        for place, one in enumerate(tiles)
    ]
    if trust:
        lines.append(f'<div class="tile"><span>trust, as asked</span><b>{text(trust.lower())}</b></div>')
    grid = {
        "axes": [list(map(_said, axis.texts)) for axis in asked.axes],
        "points": [
            dict(zip(("answer", "more"), _parted(words), strict=True))
            | {"tiles": [[one.words, band_words(one)] for one in shown]}
            for words, shown in points
        ],
    }
    titled = [(text(titles[name]), table(block)) for name, block in nested.items() if block]
    sections = [f'<h2>{title}</h2><div class="wide">{inside}</div>' for title, inside in titled]
    first, more = _parted(answer.words)
    template = Template(resources.table("page/answer.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=text(f"xlperf {__version__}: {answer.kind}"),
        answer=text(first),
        more=text(more),
        beside="".join(f"<p>{text(line)}</p>" for line in (*answer.beside, *answer.missed)),
        sliders="".join(_slider(answer.kind, place, axis) for place, axis in enumerate(asked.axes)),
        tiles="".join(lines),
        charts="".join(_charts(answer)),
        tables="".join(sections),
        others=_others(asked, points),
        notes="".join(f"<li>{text(line)}</li>" for line in answer.notes),
        card=card(answer.card),
        grid=json.dumps(grid).replace("<", "\\u003c"),
    )


def _parted(words: str) -> tuple[str, str]:
    """The first sentence of an answer, and the sentences after it.

    >>> _parted("8 H200 serve it for $0.70. It is an estimate. Or so.")
    ('8 H200 serve it for $0.70.', 'It is an estimate. Or so.')
    """
    first, stop, more = words.partition(". ")
    return f"{first}{stop.strip()}", more


def _slider(kind: str, place: int, axis: Axis) -> str:
    now = text(_said(axis.texts[axis.place]))
    return (
        f'<label>{text(column(kind, axis.name).header)}: <output id="value-{place}">{now}</output>'
        f'<input type="range" id="axis-{place}" min="0" max="{len(axis.texts) - 1}" value="{axis.place}">'
        "</label>"
    )


def _said(entry: str) -> str:
    """An entry with its thousands parted.

    >>> _said("40000"), _said("0.25"), _said("3 nm")
    ('40,000', '0.25', '3 nm')
    """
    return f"{float(entry):,.0f}" if entry.isdigit() and len(entry) > 3 else entry


def _others(asked: Question, points: list[tuple[str, list[Shown]]]) -> str:
    """The table of all points; the question as asked in bold, without results that repeat an entry."""
    entries = [column(asked.kind, axis.name) for axis in asked.axes]
    given = [[*map(_said, words.values())] for words in asked.entries]
    results = [[one.words for one in shown] for _, shown in points]
    repeated = [*zip(*given, strict=True)]
    kept = [at for at, words in enumerate(zip(*results, strict=True)) if words not in repeated]
    heads = [one.header for one in entries] + [points[0][1][at].header for at in kept]
    numbers = [not one.is_text for one in entries] + [True] * len(kept)
    first = {axis.name: axis.texts[axis.place] for axis in asked.axes}
    rows = []
    for own, words, entry, (said, _) in zip(given, results, asked.entries, points, strict=True):
        if any(words):
            rows.append(row([*own, *(words[at] for at in kept)], numbers, mark="asked" * (entry == first)))
        else:  # the reason in place of results
            reason = f'<td colspan="{len(kept)}">{text(_parted(said)[0])}</td></tr>'
            rows.append(row(own, numbers[: len(own)], mark="asked" * (entry == first)).replace("</tr>", reason))
    return f"<table><thead>{row(heads, numbers, 'th')}</thead><tbody>{''.join(rows)}</tbody></table>"


def _charts(answer: Answered) -> Iterator[str]:
    """Charts of an answer: of a fleet the curve of a copy and the ways, of a run its step, of a chip its cost."""
    if answer.refused:
        return
    values: dict[str, Any] = answer.answer
    if answer.kind == "serve":
        numbers = range(1, _POINTS + 1)
        points = [(float(values[f"curve_speed_{at}"]), float(values[f"curve_throughput_{at}"])) for at in numbers]
        own = float(values["tokens_per_second_per_user"]), float(values["tokens_per_second_per_accelerator"])
        names = "speed of a user (token/s)", "throughput of an accelerator (token/s)"
        yield curve("Throughput against speed; the mark is the full load", points, own, names)
        ways = answer.nested["ways"]
        yield bars("Accelerators of each way to serve, with 80 % bands", [_bar(ways, at) for at in range(len(ways))])
        return
    drawn: list[Bar] = []
    if questions()[answer.kind].chart:
        yield from _of_table(answer)
        return
    start, title = ("share_", "Parts of a step") if answer.kind == "train" else ("cost_", "Cost of a unit (USD)")
    for name, value in values.items():
        if name.startswith(start) and value > 0.0:
            one = results_of(answer.kind).by_name[name]
            words = f"{100.0 * value:.1f} %" if start == "share_" else rounded(value / unit_of(one).factor)
            drawn.append(Bar(one.words.partition(" ")[2], float(value), words))
    yield bars(title, drawn)


def _of_table(answer: Answered) -> Iterator[str]:
    """Charts of the first table beside an answer: one of each column that its sheet draws."""
    question = questions()[answer.kind]
    name, title = next(iter(question.tables.items()))
    table, (kind, along, *drawn) = answer.nested[name], question.chart
    across, values = table.schema.by_name[along], answer.answer
    for over in (table.schema.by_name[up] for up in drawn):
        if kind == "line":
            ends = (table.number(one.name) / unit_of(one).factor for one in (across, over))
            points = zip(*(end.tolist() for end in ends), strict=True)
            yield curve(title, list(points), None, (across.header, over.header))
            continue
        labels, heights = cells(across, table[along]), np.nan_to_num(table.number(over.name))
        heading = question.chart_words if kind == "stacked" else title
        named = values.get(f"{over.name}_name") or over.header
        yield bars(f"{heading}: {named}", list(map(Bar, labels, heights.tolist(), cells(over, heights))))


def _bar(ways: Table, at: int) -> Bar:
    way: dict[str, Any] = {name: values[at] for name, values in ways.columns.items()}
    pools = ", two pools" if way["prefill_accelerators"] == way["prefill_accelerators"] else ""
    count, low, high = (float(way[f"accelerators{end}"]) for end in ("", "_low", "_high"))
    return Bar(f"{at + 1}: {software_title(str(way['software']))}{pools}", count, rounded(count), low, high)


def write_tables(
    output: str,
    title: str,
    lines: Sequence[str],
    tables: Sequence[tuple[str, list[Part]]],
    charts: Sequence[str] | None = None,
) -> None:
    """Write tables as a page, with ``charts`` or one of the first result above each; replaced when complete."""
    drawn = [_chart(block) for _, block in tables] if charts is None else charts
    template = resources.table("page/answer.html").read_text(encoding="utf-8")
    head = Template(template.partition("<body>")[0]).substitute(title=text(f"xlperf {__version__}: {title}"))
    body = [f"<h1>{text(title)}</h1>", *_sentences(lines)]
    for (name, block), above in zip(tables, drawn, strict=True):
        drawings = f'<div class="charts">{above}</div>' if above else ""
        body += [f"<h2>{text(name.capitalize())}</h2>", drawings, f'<div class="wide">{table(block)}</div>']
    with replaced(output) as temporary:
        page = "\n".join([f"{head}<body>", *filter(None, body), "</body>\n</html>\n"])
        temporary.write_text(page, encoding="utf-8", newline="\n")


def _sentences(lines: Sequence[str]) -> list[str]:
    """Paragraphs; more of them than a screen takes, each with a heading, are rows of a table, their parts on lines."""
    headed = [line.partition(": ") for line in lines]
    if len(lines) < _MOST_PARAGRAPHS or not all(words for _, _, words in headed):
        return [f"<p>{text(line)}</p>" for line in lines]
    parts = [(text(head), ";<br>".join(map(text, words.split("; ")))) for head, _, words in headed]
    return ['<table class="said">', *(f"<tr><th>{head}</th><td>{words}</td></tr>" for head, words in parts), "</table>"]


def _chart(block: Sequence[Part]) -> str:
    """Bars of the first result, each with the names and the entries that differ between the rows; "" if none does."""
    numbers = [part for part in block if part[0].is_result and not part[0].is_text]
    results = [part for part in numbers if np.nanmax(part[1], initial=0.0) > 0.0]
    inputs = {column.words: cells(column, values[:MOST_ROWS]) for column, values in block if not column.is_result}
    named = {name: words for name, words in inputs.items() if len(set(words)) > 1}
    if not (results and named) or len(block[0][1]) < 2:
        return ""
    one, values = results[0]
    for most in range(1, len(named) + 1):  # as few entries as tell all rows apart
        used = list(named)[:most]
        labels = [", ".join(filter(None, row)) for row in zip(*(named[name] for name in used), strict=True)]
        if len(set(labels)) == len(labels):
            break
    drawn = np.nan_to_num(values[:MOST_ROWS]).tolist()
    return bars(f"{one.header} by {', '.join(used)}", list(map(Bar, labels, drawn, cells(one, values[:MOST_ROWS]))))
