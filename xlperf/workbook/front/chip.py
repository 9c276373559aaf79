"""The sheet ``Build a chip``: a form, its answer, the worth of more of each budget, and a table of chips around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

from openpyxl.utils import get_column_letter

from xlperf.catalog.schema import table_schema
from xlperf.explore.chips import ALIKE, AREA_STEP, CACHE_STEP, POWER_STEP
from xlperf.explore.forms import AXES
from xlperf.workbook.data_sheets import column_validation
from xlperf.workbook.front.layout import AMBER, BLUE, DASH, GREY, ORANGE, SKY, Axis, Page, scatter
from xlperf.workbook.style import NAVY

SOLD = ("H100-SXM-80GB", "H200-SXM-141GB", "B200-SXM-180GB")
"""Accelerators for comparison with the chip, if the workbook has them."""
_COSTS = (
    ("dies", "cost_dies", "K"), ("bad dies", "cost_defects", "K"), ("package", "cost_package", "M"),
    ("memory", "cost_memory", "L"), ("losses", "cost_losses", "M"), ("test", "cost_test", "M"),
    ("board", "cost_board", "N"), ("design", "cost_design", "N"),
)  # fmt: skip
_COMPARED = (
    ("FP8 (PFLOP/s)", "peak flop rate fp8", "/1000", "0.0"), ("memory (GiB)", "memory capacity", "", "0"),
    ("bandwidth (TB/s)", "memory bandwidth", "", "0.0"), ("design power (W)", "thermal design power", "", "#,##0"),
    ("system price (USD)", "capex", "", "#,##0"), ("token/s each", "tokens per second per accelerator", "", "#,##0"),
    ("token/s per k USD", "tokens per thousand dollars", "", "0.0"),
)  # fmt: skip


_CHIPS = prod(map(len, AXES.values()))
"""Chips of the table. [-]"""
_NUMBERS = 80
"""Row of the first chip of the table, on the sheet with the numbers. [-]"""
_WORTH = 130
"""Row of the chip whose changes are worth something, on the sheet with the numbers. [-]"""
_SHOWN = 42
"""Row of the first chip of the table, on the front sheet. [-]"""
_RATE, _COST, _POWER, _BEST, _ALL_X, _REST, _FRONT = "X", "Y", "Z", "AA", "AB", "AC", "AD"
"""Result columns of the chips of the table: token/s, cost, power, whether the chip is on the frontier; and chart
columns.
"""
_CHANGES = (
    ("mm\N{SUPERSCRIPT TWO} of silicon", "die_area", AREA_STEP), ("stack of memory", "memory_stacks", 0.0),
    ("W of power", "power_budget", POWER_STEP), ("MB of cache", "cache", CACHE_STEP),
)  # fmt: skip
"""Budgets whose next unit is valued: words, entry, and change over the chip's own; 0: by one unit."""


def chip_sheet(page: Page, others: list[str]) -> None:
    """Fill the sheet, and the sheet that holds its numbers, from row 1 and column A on.

    ``others``: accelerators that the chip is held against.
    """
    page.fill("What would this accelerator be worth?")
    area, cells = page.form("chip")
    r = page.results("chip", area)
    _steps(page, r)
    _beside_others(page, cells, others)
    axes = _axes(page)
    _chips(page, cells, axes, r)
    _changes(page, cells, r)
    page.beside("chip", r)
    page.answer(f"={r['answer']}")
    share = f'"memory "&TEXT({r["cost_memory"]}/{r["unit_cost"]},"0 %")&" of it"'
    cores = f'"cores "&TEXT({r["power_compute"]}/{r["thermal_design_power"]},"0 %")&" of it"'
    tokens = r["tokens_per_second_per_accelerator"]
    own = (
        ("Cost of a unit", r["unit_cost"], '"$"#,##0', share),
        ("FP8 (PFLOP/s)", f"{r['peak_flop_rate_fp8']}/1000", "0.0", f'{r["num_multiprocessors"]}&" cores"'),
        ("Memory (GiB)", r["memory_capacity"], "0", f'{r["memory_stacks"]}&" stacks"'),
        ("Bandwidth (TB/s)", r["memory_bandwidth"], "0.0", f'{cells["memory"]}&""'),
        ("Power (W)", r["thermal_design_power"], "#,##0", cores),
        ("Serves (token/s)", tokens, "#,##0", f'"at "&{cells["speed_per_user"]}&" a user"'),
    )  # fmt: skip
    page.tiles(own)
    _charts(page)
    _table(page, others)
    _worth(page)
    _list(page)
    page.how_sure('"A FORECAST"', ('"the rules match six real accelerators within 20\N{NO-BREAK SPACE}%"',
             f'"Limited by: "&{r["limited_by"]}'))  # fmt: skip
    granted = '"Kernels and network as of a B200; costs as the cost sheets have them"'
    price = '"System price: cost / (1 - margin), twice that with server"'
    page.texts("Chosen and assumed", (f'"auto: "&{r["chosen"]}', granted, price))


def _steps(page: Page, r: dict[str, str]) -> None:
    """Cost of a unit part by part, each on the sum of the earlier parts; columns H to O, rows 2 to 11."""
    heads = ("part", "USD", "below", "silicon", "memory", "package and test", "board and design", "all")
    page.row("HIJKLMNO", 2, heads)
    for row, (words, name, column) in enumerate(_COSTS, start=3):
        page.calc(f"I{row}", f"=IFERROR(MAX({r[name]},0),0)")
        page.calc(f"H{row}", f'="{words}"&CHAR(10)&TEXT(I{row},"#,##0")')
        amounts = [f"=I{row}" if letter == column else 0 for letter in "KLMN"]
        page.row("JKLMNO", row, (0 if row == 3 else f"=J{row - 1}+I{row - 1}", *amounts, 0))
    whole = '="unit"&CHAR(10)&TEXT(I11,"#,##0")'
    page.row("IHJKLMNO", 11, ("=SUM(I3:I10)", whole, 0, 0, 0, 0, 0, "=I11"))


def _beside_others(page: Page, cells: Mapping[str, str], others: list[str]) -> None:
    """Accelerators on offer, a row each; their forms below row 20 from column H on, answers in columns D to G."""
    asked = page.again(table_schema("chip").columns, cells, 21, [{"accelerator": name} for name in others], 8)
    page.calc("D1", "beside what is sold")
    for row, (words, result, _, _) in enumerate(_COMPARED, start=3):
        page.calc(f"D{row}", words)
        for letter, number in zip("EFG", range(len(others)), strict=False):
            page.calc(f"{letter}{row}", f'=IFERROR(INDEX({asked(result)},{number + 1})+0,"")')


def _axes(page: Page) -> dict[str, list[str]]:
    """The yellow cells with the values that the chips of the table have, by entry, below the first screen."""
    page.heading("B35", "Chips around this one: the values to combine, all else as in the form", "R")
    names: dict[str, list[str]] = {}
    for row, (name, values) in enumerate(AXES.items(), start=36):
        column = table_schema("chip").by_name[name]
        page.put(f"B{row}", column.header, "label")
        for letter, last, value in zip("CDF", ("C", "D", "G"), values, strict=False):
            own = value if column.is_text else float(value)
            look = "" if column.is_text else "#,##0"
            page.put(f"{letter}{row}", own, "input", look, last=f"{last}{row}")
            validation = column_validation(column, f"{letter}{row}")
            if validation is not None:
                validation.add(f"{letter}{row}")
                page.sheet.add_data_validation(validation)
            names.setdefault(name, []).append(f"'{page.sheet.title}'!${letter}${row}")
    return names


def _chips(page: Page, cells: Mapping[str, str], axes: Mapping[str, Sequence[str]], r: Mapping[str, str]) -> None:
    """Every combination of the values in yellow, evaluated together, and which of them no other beats."""
    combined = list(product(*axes.values()))
    changed = [
        {
            name: f'=IF({cell}="",IF({cells[name]}="","",{cells[name]}),{cell})'
            for name, cell in zip(axes, one, strict=True)
        }
        for one in combined
    ]
    asked = page.again(table_schema("chip").columns, cells, _NUMBERS, changed, 1)
    first, last = _NUMBERS, _NUMBERS + len(combined) - 1
    heads = ("token/s", "cost", "W", "beaten by none", "USD", "chips", "beaten by none")
    page.row((_RATE, _COST, _POWER, _BEST, _ALL_X, _REST, _FRONT), first - 1, heads)
    wanted = (
        (_RATE, "tokens per second per accelerator"), (_COST, "unit cost"), (_POWER, "thermal design power")
    )  # fmt: skip
    for row in range(first, last + 1):
        for letter, words in wanted:
            page.calc(f"{letter}{row}", f'=IFERROR(INDEX({asked(words)},{row - first + 1})+0,"")')
        page.calc(f"AE{row}", f'=IFERROR(INDEX({asked("reason")},{row - first + 1})&"","")')
    rates, costs = (f"${letter}${first}:${letter}${last}" for letter in (_RATE, _COST))
    for row in range(first, last + 1):
        rate, cost = f"{_RATE}{row}", f"{_COST}{row}"
        more, less = 1.0 + ALIKE, 1.0 - ALIKE
        better = f'COUNTIFS({rates},">"&{rate}*{more},{costs},"<="&{cost}*{more})'
        cheaper = f'COUNTIFS({rates},">="&{rate}*{less},{costs},"<"&{cost}*{less})'
        best = f'=IF(AND(ISNUMBER({rate}),ISNUMBER({cost})),IF({better}+{cheaper}=0,1,0),"")'
        page.calc(f"{_BEST}{row}", best)
        page.calc(f"{_ALL_X}{row}", f"=IF(ISNUMBER({cost}),{cost},NA())")
        for letter, value in ((_REST, 0), (_FRONT, 1)):
            page.calc(f"{letter}{row}", f"=IF({_BEST}{row}={value},{rate},NA())")
    page.row(("AF", "AG"), 79, ("mine, USD", "mine"))
    for letter, name in (("AF", "unit_cost"), ("AG", "tokens_per_second_per_accelerator")):
        page.calc(f"{letter}80", f"=IFERROR({r[name]}+0,NA())")


def _changes(page: Page, cells: Mapping[str, str], r: Mapping[str, str]) -> None:
    """The chip with its choices fixed, then with more and with less of each budget; the gains from column AA on."""
    held = {name: f"={r[name]}" for name in ("num_dies", "die_area", "cache", "memory_stacks")}
    held |= {"area_budget": "auto", "cost_budget": "auto"}
    power = f"IF(ISNUMBER({cells['power_budget']}),{cells['power_budget']},{r['thermal_design_power']})"
    have = {**{name: r[name] for name in ("die_area", "cache", "memory_stacks")}, "power_budget": power}
    changed: list[dict[str, Any]] = [held]
    sizes = []
    for _, name, share in _CHANGES:
        step = f"{share}*{have[name]}" if share else "1"
        changed += [held | {name: f"={have[name]}{sign}{step}"} for sign in "+-"]
        sizes.append(f"{step}*{r['num_dies']}" if name == "die_area" else step)
    asked = page.again(table_schema("chip").columns, cells, _WORTH, changed, 1)
    for letter, words in ((_RATE, "tokens per second per accelerator"), (_COST, "capex")):
        page.calc(f"{letter}{_WORTH - 1}", words)
        for row in range(_WORTH, _WORTH + len(changed)):
            page.calc(f"{letter}{row}", f'=IFERROR(INDEX({asked(words)},{row - _WORTH + 1})+0,"")')
    heads = ("what", "by", "token/s each", "price each", "worth each", "verdict")
    page.row(("AA", "AB", "AC", "AD", "AE", "AF"), _WORTH - 1, heads)
    for number, ((words, _, _), size) in enumerate(zip(_CHANGES, sizes, strict=True)):
        row, more, less = _WORTH + number, _WORTH + 2 * number + 1, _WORTH + 2 * number + 2
        room = f"ISNUMBER({_RATE}{more})"

        def change(letter: str, more: int = more, less: int = less, room: str = room) -> str:
            base = f"${letter}${_WORTH}"
            return f"IF({room},{letter}{more}-{base},{base}-{letter}{less})"

        alike = f"{ALIKE}*${_COST}${_WORTH}"
        verdict = f'IF(AE{row}>AD{row},"pays",IF(AE{row}=0,"no use",IF(AE{row}<0,"less pays","does not")))'
        lines = (
            words, f"={size}", f'=IFERROR({change(_RATE)}/AB{row},"")',
            f'=IFERROR(IF(ABS({change(_COST)})>{alike},{change(_COST)}/AB{row},0),"")',
            f'=IFERROR(AC{row}/${_RATE}${_WORTH}*${_COST}${_WORTH},"")',
            f'=IF(AND(ISNUMBER(AE{row}),ISNUMBER(AD{row})),{verdict},"")',
        )  # fmt: skip
        page.row(("AA", "AB", "AC", "AD", "AE", "AF"), row, lines)


def _charts(page: Page) -> None:
    page.heading("F13", "What a unit costs (USD)", "K")
    colours = ("", BLUE, AMBER, SKY, GREY, NAVY)
    chart: Any = page.bars("H", (2, 11), "J K L M N O", colours, "#,##0", lying=False, gap=18, stacked=True)
    page.place(chart, "F14:K20", Axis(size=7), Axis(number="#,##0", hidden=True), (0.01, 0.03, 0.98, 0.74))
    link = f'=HYPERLINK("#\'{page.sheet.title}\'!B35","Chips around this one (table below)")'
    page.heading("F21", link, "K")
    rows = _NUMBERS - 1, _NUMBERS - 1 + _CHIPS
    chart = scatter(
        (
            page.points(_ALL_X, _REST, rows, GREY, "circle", size=6),
            page.points(_ALL_X, _FRONT, rows, BLUE, "circle", size=6),
            page.points("AF", "AG", (_NUMBERS - 1, _NUMBERS), ORANGE, "diamond"),
        )
    )
    chart.x_axis.scaling.min = None
    x, y = Axis("USD a unit", '#,##0,"k"'), Axis("token/s", "#,##0", grid=True)
    page.place(chart, "F22:K28", x, y, (0.14, 0.03, 0.56, 0.66), (0.72, 0.05, 0.27, 0.6))


def _worth(page: Page) -> None:
    """Worth of the next unit of each budget in purchase price, its cost, and whether it pays."""
    page.heading("M23", "What the next unit is worth (USD of the price)", "R")
    page.heads("OPQR", 24, ("token/s", "worth", "costs", "verdict"))
    for number in range(len(_CHANGES)):
        row, source = 25 + number, page.source
        page.put(f"M{row}", f"={source}$AA${_WORTH + number}", "cell left")
        for letter, column, look in (("O", "AC", "0.00"), ("P", "AE", "#,##0.0"), ("Q", "AD", "#,##0.0"),
                                     ("R", "AF", "")):  # fmt: skip
            value = f'=IF({source}${column}${_WORTH + number}="","{DASH}",{source}${column}${_WORTH + number})'
            page.put(f"{letter}{row}", value, "cell", look)
        page.rule(f"M{row}:R{row}")
    page.in_colour("R25:R28", 'LEFT($R25,4)="pays"', "00734F")


def _list(page: Page) -> None:
    """The chips of the table, the frontier in colour; a chip without an answer shows the reason."""
    heads = ("technology", "memory stacks", "cache (MB)", "dies", "token/s", "USD a unit", "W", "best")
    letters = "BCDFGHIJ"
    for letter, words in zip(letters, heads, strict=True):
        page.put(f"{letter}{_SHOWN - 1}", words, "head" if letter != "B" else "cell left")
    page.put(f"M{_SHOWN - 1}", "no answer because", "head")
    names = [column.name for column in table_schema("chip").columns]
    places = {name: get_column_letter(1 + names.index(name)) for name in AXES}
    columns = (*(places[name] for name in AXES), _RATE, _COST, _POWER)
    looks = ("", "0", "#,##0", "0", "#,##0", "#,##0", "#,##0")
    last = _SHOWN + _CHIPS - 1
    for row in range(_SHOWN, last + 1):
        at, source = row - _SHOWN + _NUMBERS, page.source
        for letter, column, look in zip(letters, columns, looks, strict=False):
            kind = "cell left" if letter == "B" else "cell"
            page.put(f"{letter}{row}", f"={source}${column}${at}", kind, look)
        page.put(f"J{row}", f'=IF({source}${_BEST}${at}=1,"\N{BLACK CIRCLE}","")', "cell")
        page.put(f"M{row}", f"={source}$AE${at}", "cell left")
        page.rule(f"B{row}:R{row}")
    page.in_colour(f"B{_SHOWN}:J{last}", f'$J{_SHOWN}<>""', BLUE)


def _table(page: Page, others: list[str]) -> None:
    page.heading("M13", "Beside what is sold", "R")
    page.put("O14", "mine", "head")
    for letter, name in zip("PQR", others, strict=False):
        page.put(f"{letter}14", name.split("-")[0], "head")
    for row, (words, result, scale, number) in enumerate(_COMPARED, start=15):
        page.put(f"M{row}", words, "cell left")
        mine = next(f"B{at}" for at in range(3, 60) if str(page.data[f"A{at}"].value).split(" (")[0] == result)
        source = page.source
        page.put(f"O{row}", f'=IFERROR({source}{mine}{scale},"\N{EN DASH}")', "cell", number)
        for letter, column in zip("PQR", "EFG", strict=True):
            value = f'=IFERROR({source}{column}{row - 12}{scale},"{DASH}")'
            page.put(f"{letter}{row}", value, "cell", number)
        page.rule(f"M{row}:R{row}")
