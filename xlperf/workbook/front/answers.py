"""The sheets ``Serve``, ``Train`` and ``Build a chip``: a form, its answer, tables and charts of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

from openpyxl.utils import get_column_letter

from xlperf.catalog.schema import Column, results_of, table_schema
from xlperf.explore.chips import ALIKE, AREA_STEP, CACHE_STEP, POWER_STEP
from xlperf.explore.forms import AXES
from xlperf.explore.train import TRAINING_PARTS
from xlperf.interop.software import STACKS, searched_engines
from xlperf.workbook.charts import label_values
from xlperf.workbook.data_sheets import TRUST, column_validation
from xlperf.workbook.front.formulas import worded
from xlperf.workbook.front.layout import (
    AMBER,
    BLUE,
    DASH,
    GREEN,
    GREY,
    MONEY,
    ORANGE,
    SKY,
    Axis,
    Page,
    engine_named,
    front_words,
    scatter,
    stated,
    unless_refused,
)
from xlperf.workbook.style import INK, MUTED, NAVY, signed_format

_GOOD = "00734F"
Asked = Callable[..., str]
"""Formula of a result of questions asked in rows, by its words and a row."""


def answer_sheet(page: Page, form: str, others: list[str]) -> None:
    """Fill the sheet of a form and the sheet that holds its numbers; ``others`` are accelerators to compare with."""
    area, cells = page.form(form)
    if form == "serve":
        _compared(page, area)
    fill = {"serve": _serve, "train": _train, "chip": _chip}[form]
    fill(page, cells, page.results(form, area), others)


def _words(page: Page, form: str) -> None:
    """Notes, sentence, tiles, evidence, assumptions, costs and power of a form, as front_words.csv words them."""
    cells = page.entries | page.answers
    rows = front_words(form)
    said = {place: [stated(row["words"], cells) for row in every] for place, every in rows.items()}
    page.opening(form)
    page.how_sure(worded(rows["sure"][0]["value"], cells), said["sure"])
    page.texts(rows["assumed"][0]["label"], said["assumed"])
    if "cost" not in rows:
        return
    # rented, owned and bought tokens at the left, power, energy and carbon at the right
    page.heading("F34", rows["cost heading"][0]["label"], "K")
    page.heads("HIK", 35, rows["cost heading"][0]["words"].split("|"))
    for at, row in enumerate(rows["cost"], start=36):
        costs = [_or_blank(cells[name]) if name != "-" else None for name in row["value"].split()]
        line = zip("FHIK", (row["label"].format_map(cells), *costs), ("", "0.00", MONEY, "0.00"), strict=True)
        page.line(at, line, last="K")
    page.heading("M34", "Power, energy, carbon", "R")
    for at, words in enumerate(said["power"], start=35):
        page.put(f"M{at}", unless_refused(words), "text", last=f"R{at}")
    if "own" in rows:
        page.heading("M38", rows["own"][0]["label"], "R")
        page.put("M39", unless_refused(said["own"][0]), "text", last="R40")


def _or_blank(cell: str) -> str:
    return f'=IFERROR(IF({cell}="","",{cell}),"")'


def _or_dash(cell: str) -> str:
    return f'=IF({cell}="","{DASH}",{cell})'


def _asked_rows(page: Page, letters: Iterable[str], rows: Sequence[int], asked: Asked, words: Iterable[str]) -> None:
    """Results of questions in rows of the numbers, a column for each result."""
    for letter, result in zip(letters, words, strict=True):
        for row in rows:
            page.calc(f"{letter}{row}", f'=IFERROR({asked(result, row)},"")')


def _numbers_of(page: Page, letters: Iterable[str], rows: Sequence[int], asked: Asked, words: Iterable[str]) -> None:
    """Numbers of questions in rows, each out of one call for all rows."""
    results = [asked(result) for result in words]
    for number, row in enumerate(rows, start=1):
        for letter, result in zip(letters, results, strict=True):
            page.calc(f"{letter}{row}", f'=IFERROR(INDEX({result},{number})+0,"")')


_LABELS = {stack.software: stack.label for stack in STACKS.values()}
_ENGINES = {engine: _LABELS[engine] for engine in searched_engines() if _LABELS.get(engine)}
"""Names of engines as people write them, short enough for a column."""
CURVE = 8
"""Points of a curve of throughput against speed per user. [-]"""
_COLOURS = (BLUE, SKY, GREEN, AMBER, MUTED, INK)
_CURVES = (("D", "E"), ("K", "L"), ("M", "N"), ("O", "P"), ("Q", "R"), ("S", "T"))
"""Columns of speed and throughput of each way."""
_WAYS = 6
"""Ways to serve that the sheet lists: three engines, one pool or two. [-]"""
_OTHERS_TOP = 6 + len(results_of("serve").columns)
_WAYS_TOP = _OTHERS_TOP + 10
"""Rows of the headers below all results: of other accelerators, and of the question for each way."""
_NUM_OTHERS = 5
"""Other accelerators that the sheet lists."""
_ANSWERS = ("AK", "AL", "AM", "AN", "AO", "AP", "AQ")
"""Columns of answers beside the forms of the same question, right of all their entries."""


def _serve(page: Page, cells: dict[str, str], r: dict[str, str], _: list[str]) -> None:
    columns = [column for column in table_schema("serve").columns if column.name in cells]
    # every way to serve, the cheapest first: forms below all results
    rows = range(_WAYS_TOP + 1, _WAYS_TOP + 1 + _WAYS)
    asked = page.again(columns, cells, rows[0], [{"way": float(row - _WAYS_TOP)} for row in rows])
    wanted = (
        "software",
        "prefill accelerators",
        "copy size",
        "accelerators",
        "accelerators sure",
        "fleet cost per million output tokens",
        "trust",
    )
    page.row(_ANSWERS, _WAYS_TOP, wanted)
    _asked_rows(page, _ANSWERS, rows, asked, wanted)
    _words(page, "serve")
    _ways_table(page)
    _curve(page, cells, r, asked)
    page.heading("F13", "Throughput against speed per user", "K")
    lines = [page.points(x, y, (24, 24 + CURVE), colour) for (x, y), colour in zip(_CURVES, _COLOURS, strict=True)]
    lines.append(page.points("G", "I", (24, 27), MUTED, dash="dash"))
    chart = scatter([*lines, page.points("G", "H", (24, 25), ORANGE, "diamond")])
    x, y = Axis("token/s for a user", "0"), Axis("token/s per accelerator", "#,##0", grid=True)
    page.place(chart, "F14:K27", x, y, (0.14, 0.03, 0.83, 0.80), (0.50, 0.03, 0.47, 0.28))
    _others_table(page, r["fleet_cost_per_million_output_tokens"])
    page.put("F39", f'=IFERROR({r["api_answer"]}&"","")', "text", last="K42")


def _curve(page: Page, cells: dict[str, str], r: dict[str, str], asked: Asked) -> None:
    """Throughput against speed per user of every way, from row 24; and the answer and the speed asked for."""
    for number, (x, y) in enumerate(_CURVES):
        name = f"'{page.sheet.title}'!$M${15 + number}"
        page.row((x, y), 24, ("speed per user", f'=IF({name}="","{DASH}",{name})'))
        for point in range(1, CURVE + 1):
            for letter, name in ((x, "curve speed"), (y, "curve throughput")):
                result = asked(f"{name} {point}", _WAYS_TOP + 1 + number)
                page.calc(f"{letter}{24 + point}", f"=IFERROR({result},NA())")
    rate, asked_for = r["tokens_per_second_per_accelerator"], f"={cells['speed_per_user']}"
    page.row("GHI", 24, ("x", "this answer", "asked for"))
    page.row("GH", 25, (f"={r['tokens_per_second_per_user']}", f"={rate}"))
    page.row("GI", 26, (asked_for, 0))
    page.row("GI", 27, (asked_for, f"=IFERROR(2*{rate},0)"))
    page.data["H25"].number_format = "#,##0"


def _compared(page: Page, area: str) -> None:
    """The same question on other accelerators, each mapped anew, from column AK on."""
    columns = [column.name for column in table_schema("serve_others").columns]
    page.row(_ANSWERS[:4], _OTHERS_TOP, ("name", "number", "cost", "power"))
    wanted = ("accelerator", "accelerators", "fleet_cost_per_million_output_tokens", "power")
    for letter, name in zip(_ANSWERS, wanted, strict=False):
        for row in range(1, _NUM_OTHERS + 1):
            asked = f'INDEX(XLPERF_SERVE({area},"others",catalog),{row + 1},{columns.index(name) + 1})'
            value = f'{asked}&""' if name == "accelerator" else f"{asked}+0"
            page.calc(f"{letter}{_OTHERS_TOP + row}", f'=IFERROR({value},"")')


def _ways_table(page: Page) -> None:
    page.heading("M13", "Ways to serve this, cheapest first", "R")
    page.heads("OPQR", 14, ("number", "80 % sure", "$/M out", "trust"))
    for row in range(15, 15 + _WAYS):
        engine, prefill, size, number, sure, cost, trust = (
            f"{page.source}${letter}${row + _WAYS_TOP - 14}" for letter in _ANSWERS
        )
        pools = f'IF({prefill}="",{size},{prefill}&"+"&({size}-{prefill}))'
        words = f'=IF({number}="","",{engine_named(engine, _ENGINES)}&" "&{pools})'
        whole = "".join(f'IF(LEFT({trust},8)="{badge[:8]}","{badge.lower()}",' for badge in TRUST)
        values = (words, f"={number}", f"={sure}", f"={cost}", f'={whole}""{")" * len(TRUST)}')
        page.line(row, zip("MOPQR", values, ("", "#,##0", "#,##0", '0.00"   "', ""), strict=True))
        page.put(f"R{row}", None, "cell small")


def _others_table(page: Page, cost_here: str) -> None:
    page.heading("M21", "Other accelerators, cheapest first", "R")
    page.heads("OPQR", 22, ("number", "$/M out", "vs this", "MW"))
    for row in range(23, 23 + _NUM_OTHERS):
        values = [f"={page.source}${letter}${row + _OTHERS_TOP - 22}" for letter in _ANSWERS[:4]]
        values.append(f'=IFERROR(P{row}/{cost_here}-1,"")')
        page.line(row, zip("MOPRQ", values, ("", "#,##0", "0.00", "0.00", signed_format("0 %", 2, "+")), strict=True))
    page.in_colour("Q23:Q27", "=AND(ISNUMBER($Q23),$Q23<0)", _GOOD)
    page.in_colour("Q23:Q27", "=AND(ISNUMBER($Q23),$Q23>0)", ORANGE)


SIZES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Numbers of accelerators that the answer is held against, over its own. [-]"""
_SIZED = ("AK", "AL", "AM", "AN")
"""Columns that hold time, cost, utilisation and energy of the run on other numbers of accelerators."""
_MEMORY = ("weights", "gradients", "optimizer", "activations", "reserve", "free")


def _train(page: Page, cells: dict[str, str], r: dict[str, str], _: list[str]) -> None:
    # shares of a step, useful and lost time in series of their own; memory by part
    _step_parts(page, r)
    page.row("EFGHIJ", 18, ["allocator" if name == "reserve" else name for name in _MEMORY])
    page.row("EFGHIJ", 19, [f"=IFERROR(MAX({r[f'memory_{name}']},0),0)" for name in _MEMORY])
    page.calc("D19", "memory")
    # the same run on fewer and on more accelerators, each mapped anew
    sizes = [{"num_accelerators": f"={r['accelerators']}*{size}", "deadline": "auto"} for size in SIZES]
    asked = page.again(table_schema("train").columns, cells, 23, sizes, 4)
    wanted = ("run time", "paid run cost", "mfu", "run energy")
    page.row(_SIZED, 22, wanted)
    _asked_rows(page, _SIZED, range(23, 23 + len(SIZES)), asked, wanted)
    _words(page, "train")
    _train_charts(page)
    page.heading("M20", "Fewer or more accelerators, each mapped anew", "R")
    page.heads("MOPQR", 21, ("number", "days", "USD", "MFU", "MWh"))
    for row in range(22, 22 + len(SIZES)):
        values = [_or_dash(f"{page.source}{column}{row + 1}") for column in _SIZED]
        count = f'=IFERROR({page.source}J{row + 1},"")'
        numbers = ("#,##0", "0.0", MONEY, "0 %", "#,##0")
        page.line(row, zip("MOPQR", (count, *values), numbers, strict=True), first="cell")
    page.in_colour(f"M22:R{21 + len(SIZES)}", f"$M22={r['accelerators']}", BLUE)


def _step_parts(page: Page, r: Mapping[str, str]) -> None:
    """Parts of a step, useful and lost time in series of their own; a part without time has no number."""
    page.row("DEF", 2, ("part", "useful", "lost"))
    for row, (name, words) in enumerate(TRAINING_PARTS.items(), start=3):
        page.calc(f"D{row}", words)
        page.calc(f"{'E' if row <= 4 else 'F'}{row}", f"=IFERROR({r[f'share_{name}']}+0,NA())")


def _train_charts(page: Page) -> None:
    page.heading("F13", "Where a step goes: share of its time", "K")
    last = 2 + len(TRAINING_PARTS)
    chart: Any = page.bars("D", (2, last), "E F", (BLUE, ORANGE), "[>=0.0005]0.0 %", gap=30)
    for series, colour in zip(chart.series, (BLUE, ORANGE), strict=True):
        label_values(series, "outEnd", colour, True)
    page.legend("F14", "H14", "\N{BLACK SQUARE} useful", BLUE)
    page.legend("I14", "K14", "\N{BLACK SQUARE} lost", ORANGE)
    page.place(chart, "F15:K27", Axis(), Axis(number="0 %", hidden=True), (0.27, 0.02, 0.66, 0.95))
    page.heading("M13", "Memory of the fullest accelerator (GiB)", "R")
    colours = (BLUE, SKY, GREEN, AMBER, MUTED, "E6EAEE")
    chart = page.bars("D", (18, 19), "E F G H I J", colours, "[>=3]0", gap=20, stacked=True)
    for series, colour in zip(chart.series, ("FFFFFF", INK, "FFFFFF", INK, "FFFFFF", INK), strict=True):
        label_values(series, "ctr", colour, True)
    page.place(chart, "M14:R18", Axis(hidden=True), Axis(number="0", hidden=True), (0.01, 0.03, 0.97, 0.45), "b")


_COSTS = (
    ("dies", "cost_dies", "K"), ("bad dies", "cost_defects", "K"), ("package", "cost_package", "M"),
    ("memory", "cost_memory", "L"), ("losses", "cost_losses", "M"), ("test", "cost_test", "M"),
    ("board", "cost_board", "N"), ("design", "cost_design", "N"),
)  # fmt: skip
_SOLD_RESULTS = (
    ("FP8 (PFLOP/s)", "peak flop rate fp8", "/1000", "0.0"), ("memory (GiB)", "memory capacity", "", "0"),
    ("bandwidth (TB/s)", "memory bandwidth", "", "0.0"), ("design power (W)", "thermal design power", "", "#,##0"),
    ("system price (USD)", "capex", "", "#,##0"), ("token/s each", "tokens per second per accelerator", "", "#,##0"),
    ("token/s per k USD", "tokens per thousand dollars", "", "0.0"),
)  # fmt: skip
_CHIPS = prod(map(len, AXES.values()))
"""Chips of the table. [-]"""
_NUMBERS, _WORTH = 80, 130
"""Rows of the first chip of the table, and of the chip whose changes are valued, on the sheet with the numbers. [-]"""
_AROUND, _SHOWN = 42, 49
"""Rows of the heading and of the first chip of the table, below the form on the front sheet. [-]"""
_RATE, _COST, _POWER, _BEST, _ALL_X, _REST, _FRONT, _REASON = "BA", "BB", "BC", "BD", "BE", "BF", "BG", "BH"
"""Columns of the chips of the table, right of the entries of the form: token/s, cost, power, whether the chip is on the
frontier; chart columns; why there is no answer."""
_CHANGES = (
    ("mm\N{SUPERSCRIPT TWO} of silicon", "die_area", AREA_STEP), ("stack of memory", "memory_stacks", 0.0),
    ("W of power", "power_budget", POWER_STEP), ("MB of cache", "cache", CACHE_STEP),
)  # fmt: skip
"""Budgets whose next unit is valued: words, entry, and change over the chip's own; 0: by one unit."""


def _chip(page: Page, cells: dict[str, str], r: dict[str, str], others: list[str]) -> None:
    columns = table_schema("chip").columns
    # cost of a unit part by part, each on the sum of the earlier parts
    heads = ("part", "USD", "below", "silicon", "memory", "package and test", "board and design", "all")
    page.row("HIJKLMNO", 2, heads)
    for row, (words, name, column) in enumerate(_COSTS, start=3):
        page.row(
            "IH",
            row,
            (f"=IFERROR(MAX({r[name]},0),0)", f'="{words}"&CHAR(10)&IF(I{row}>0,TEXT(I{row},"#,##0"),"{DASH}")'),
        )
        amounts = [f"=I{row}" if letter == column else 0 for letter in "KLMN"]
        page.row("JKLMNO", row, (0 if row == 3 else f"=J{row - 1}+I{row - 1}", *amounts, 0))
    whole = f'="unit"&CHAR(10)&IF(I11>0,TEXT(I11,"#,##0"),"{DASH}")'
    page.row("IHJKLMNO", 11, ("=SUM(I3:I10)", whole, 0, 0, 0, 0, 0, "=I11"))
    # accelerators on offer: forms from column H on, a column of answers for each
    asked = page.again(columns, cells, 21, [{"accelerator": name} for name in others], 8)
    page.calc("D1", "beside what is sold")
    for row, (words, result, _, _) in enumerate(_SOLD_RESULTS, start=3):
        page.calc(f"D{row}", words)
        for letter, number in zip("EFG", range(len(others)), strict=False):
            page.calc(f"{letter}{row}", f'=IFERROR(INDEX({asked(result)},{number + 1})+0,"")')
    _chips(page, columns, cells, _axes(page), r)
    _changes(page, columns, cells, r)
    _words(page, "chip")
    _chip_charts(page)
    _sold(page, others)
    _worth(page)
    _list(page)


def _axes(page: Page) -> dict[str, list[str]]:
    """The yellow cells with the values that the chips of the table have, by entry, below the first screen."""
    page.heading(f"B{_AROUND}", "Chips around this one: the values to combine, all else as in the form", "R")
    names: dict[str, list[str]] = {}
    for row, (name, values) in enumerate(AXES.items(), start=_AROUND + 1):
        column = table_schema("chip").by_name[name]
        page.put(f"B{row}", column.header, "label")
        for letter, last, value in zip("CDF", ("C", "D", "G"), values, strict=False):
            look = "" if column.is_text else "#,##0"
            page.put(f"{letter}{row}", value if column.is_text else float(value), "input", look, last=f"{last}{row}")
            page.validate(f"{letter}{row}", column_validation(column, f"{letter}{row}"))
            names.setdefault(name, []).append(f"'{page.sheet.title}'!${letter}${row}")
    return names


def _chips(
    page: Page,
    columns: Sequence[Column],
    cells: Mapping[str, str],
    axes: Mapping[str, Sequence[str]],
    r: Mapping[str, str],
) -> None:
    """Every combination of the values in yellow, evaluated together, and which of them no other beats."""
    changed = [
        {
            name: f'=IF({cell}="",IF({cells[name]}="","",{cells[name]}),{cell})'
            for name, cell in zip(axes, combined, strict=True)
        }
        for combined in product(*axes.values())
    ]
    asked = page.again(columns, cells, _NUMBERS, changed, 1)
    first, last = _NUMBERS, _NUMBERS + _CHIPS - 1
    heads = ("token/s", "cost", "W", "best value", "USD", "chips", "best value")
    page.row((_RATE, _COST, _POWER, _BEST, _ALL_X, _REST, _FRONT), first - 1, heads)
    wanted = ("tokens per second per accelerator", "unit cost", "thermal design power")
    _numbers_of(page, (_RATE, _COST, _POWER), range(first, last + 1), asked, wanted)
    rates, costs = (f"${letter}${first}:${letter}${last}" for letter in (_RATE, _COST))
    more, less = 1.0 + ALIKE, 1.0 - ALIKE
    for row in range(first, last + 1):
        page.calc(f"{_REASON}{row}", f'=IFERROR(INDEX({asked("reason")},{row - first + 1})&"","")')
        rate, cost = f"{_RATE}{row}", f"{_COST}{row}"
        better = f'COUNTIFS({rates},">"&{rate}*{more},{costs},"<="&{cost}*{more})'
        cheaper = f'COUNTIFS({rates},">="&{rate}*{less},{costs},"<"&{cost}*{less})'
        best = f'=IF(AND(ISNUMBER({rate}),ISNUMBER({cost})),IF({better}+{cheaper}=0,1,0),"")'
        drawn = [f"=IF({_BEST}{row}={value},{rate},NA())" for value in (0, 1)]
        page.row((_BEST, _ALL_X, _REST, _FRONT), row, (best, f"=IF(ISNUMBER({cost}),{cost},NA())", *drawn))
    page.row(("BI", "BJ"), 79, ("this chip, USD", "this chip"))
    own = (r["unit_cost"], r["tokens_per_second_per_accelerator"])
    page.row(("BI", "BJ"), 80, [f"=IFERROR({result}+0,NA())" for result in own])


def _changes(page: Page, columns: Sequence[Column], cells: Mapping[str, str], r: Mapping[str, str]) -> None:
    """The chip with its choices fixed, then with more and with less of each budget; the gains from column BD on."""
    chosen = {name: r[name] for name in ("num_dies", "die_area", "cache", "memory_stacks")}
    held = {name: f"={cell}" for name, cell in chosen.items()} | {"area_budget": "auto", "cost_budget": "auto"}
    power = f"IF(ISNUMBER({cells['power_budget']}),{cells['power_budget']},{r['thermal_design_power']})"
    have = chosen | {"power_budget": power}
    changed: list[dict[str, Any]] = [held]
    sizes = []
    for _, name, share in _CHANGES:
        step = f"{share}*{have[name]}" if share else "1"
        changed += [held | {name: f"={have[name]}{sign}{step}"} for sign in "+-"]
        sizes.append(f"{step}*{r['num_dies']}" if name == "die_area" else step)
    asked = page.again(columns, cells, _WORTH, changed, 1)
    wanted = ("tokens per second per accelerator", "capex")
    page.row((_RATE, _COST), _WORTH - 1, wanted)
    _numbers_of(page, (_RATE, _COST), range(_WORTH, _WORTH + len(changed)), asked, wanted)
    letters = ("BD", "BE", "BF", "BG", "BH", "BI")
    page.row(letters, _WORTH - 1, ("what", "by", "token/s each", "price each", "worth each", "verdict"))
    for number, ((words, _, _), size) in enumerate(zip(_CHANGES, sizes, strict=True)):
        row, more, less = _WORTH + number, _WORTH + 2 * number + 1, _WORTH + 2 * number + 2
        gained, paid = (
            f"IF(ISNUMBER({_RATE}{more}),{letter}{more}-${letter}${_WORTH},${letter}${_WORTH}-{letter}{less})"
            for letter in (_RATE, _COST)
        )
        verdict = f'IF(BH{row}>BG{row},"pays",IF(BH{row}=0,"no use",IF(BH{row}<0,"too much","too dear")))'
        line = (
            words,
            f"={size}",
            f'=IFERROR({gained}/BE{row},"")',
            f'=IFERROR(IF(ABS({paid})>{ALIKE}*${_COST}${_WORTH},{paid}/BE{row},0),"")',
            f'=IFERROR(BF{row}/${_RATE}${_WORTH}*${_COST}${_WORTH},"")',
            f'=IF(AND(ISNUMBER(BH{row}),ISNUMBER(BG{row})),{verdict},"")',
        )
        page.row(letters, row, line)


def _chip_charts(page: Page) -> None:
    page.heading("F13", "What a unit costs (USD)", "K")
    colours = ("", BLUE, AMBER, SKY, GREY, NAVY)
    chart: Any = page.bars("H", (2, 11), "J K L M N O", colours, "#,##0", lying=False, gap=18, stacked=True)
    page.place(chart, "F14:K20", Axis(size=7), Axis(number="#,##0", hidden=True), (0.01, 0.03, 0.98, 0.74))
    link = f'=HYPERLINK("#\'{page.sheet.title}\'!B{_AROUND}","Chips around this one (table below)")'
    page.heading("F21", link, "K")
    rows = _NUMBERS - 1, _NUMBERS - 1 + _CHIPS
    others, frontier = (
        page.points(_ALL_X, y, rows, colour, "circle", size=6) for y, colour in ((_REST, GREY), (_FRONT, BLUE))
    )
    chart = scatter([others, frontier, page.points("BI", "BJ", (_NUMBERS - 1, _NUMBERS), ORANGE, "diamond")])
    chart.x_axis.scaling.min = None
    x, y = Axis("USD a unit", '#,##0,"k"'), Axis("token/s", "#,##0", grid=True)
    page.place(chart, "F22:K28", x, y, (0.14, 0.03, 0.83, 0.66), (0.15, 0.02, 0.22, 0.36))


def _worth(page: Page) -> None:
    """Worth of the next unit of each budget in purchase price, its cost, and whether it pays."""
    page.heading("M23", "What one more is worth (USD of the price)", "R")
    page.heads("OPQR", 24, ("token/s", "worth", "costs", "verdict"))
    for number in range(len(_CHANGES)):
        words, *values = (f"{page.source}${column}${_WORTH + number}" for column in ("BD", "BF", "BH", "BG", "BI"))
        line = (f"={words}", *map(_or_dash, values))
        page.line(25 + number, zip("MOPQR", line, ("", "#,##0.0", "#,##0", "#,##0", ""), strict=True))
    page.in_colour("R25:R28", '$R25="pays"', _GOOD)


def _list(page: Page) -> None:
    """The chips of the table, the frontier in colour; a chip without an answer shows the reason."""
    heads = ("technology", "memory stacks", "cache (MB)", "dies", "token/s", "USD a unit", "W", "best value")
    letters = "BCDFGHIJ"
    for letter, words in zip(letters, heads, strict=True):
        page.put(f"{letter}{_SHOWN - 1}", words, "head" if letter != "B" else "tall head left")
    page.put(f"M{_SHOWN - 1}", "no answer because", "head")
    names = [column.name for column in table_schema("chip").columns]
    columns = (*(get_column_letter(1 + names.index(name)) for name in AXES), _RATE, _COST, _POWER)
    looks = ("", "0", "#,##0", "0", "#,##0", "#,##0", "#,##0", "")
    last = _SHOWN + _CHIPS - 1
    for row in range(_SHOWN, last + 1):
        at, source = row - _SHOWN + _NUMBERS, page.source
        best = f'=IF({source}${_BEST}${at}=1,"\N{BLACK CIRCLE}","")'
        page.line(row, zip(letters, (*(f"={source}${column}${at}" for column in columns), best), looks, strict=True))
        page.put(f"M{row}", f"={source}${_REASON}${at}", "cell left")
        page.rule(f"B{row}:R{row}")
    page.in_colour(f"B{_SHOWN}:J{last}", f'$J{_SHOWN}<>""', BLUE)


def _sold(page: Page, others: list[str]) -> None:
    page.heading("M13", "Against accelerators on sale", "R")
    heads = ("this chip", *(name.split("-")[0] for name in others))
    for letter, words in zip("OPQR", heads, strict=False):
        page.put(f"{letter}14", words, "head")
    for row, (words, result, scale, number) in enumerate(_SOLD_RESULTS, start=15):
        mine = next(f"B{at}" for at in range(3, 60) if str(page.data[f"A{at}"].value).split(" (")[0] == result)
        cells = (mine, *(f"{column}{row - 12}" for column in "EFG"))
        values = (words, *(f'=IFERROR({page.source}{cell}{scale},"{DASH}")' for cell in cells))
        page.line(row, zip("MOPQR", values, ("", *[number] * 4), strict=True))
