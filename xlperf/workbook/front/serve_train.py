"""The sheets ``Serve`` and ``Train``: a form, its answer, and the sheets with their numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xlperf.catalog.schema import Column, results_of, table_schema
from xlperf.explore.forms import TRAINING_PARTS
from xlperf.interop.software import STACKS, searched_engines
from xlperf.workbook.charts import label_values
from xlperf.workbook.front.layout import AMBER, BLUE, GREEN, ORANGE, SKY, Axis, Page, scatter
from xlperf.workbook.style import INK, MUTED

TOP = 34
"""Row of the headings. [-]"""
MONEY = '[>=1000000]"$"0.00,,"M";[>=1000]"$"0,"k";"$"0'
_SERVED = (
    ("rented", "rented_fleet_cost_per_million_output_tokens", "rented_monthly_cost", "rented_hour_cost"),
    ("owned", "owned_fleet_cost_per_million_output_tokens", "owned_monthly_cost", "owned_hour_cost"),
    ("API", "api_cost_per_million_output_tokens_all_in", "api_monthly_cost", ""),
)
_TRAINED = (("rented", "", "rented_run_cost", "rented_hour_cost"), ("owned", "", "owned_run_cost", "owned_hour_cost"))


def money_of_serving(page: Page, r: Mapping[str, str], cells: Mapping[str, str]) -> None:
    """Fill the block of the sheet Serve.

    ``r``: cells of results. ``cells``: cells of the form.
    """
    _costs_table(page, "Rented, owned or bought from an API", ("$/M out", "$ a month", "$ an hour"), _SERVED, r)
    fits = f'"; "&TEXT({r["users_in_power"]},"#,##0")&" users on "&TEXT({r["accelerators_in_power"]},"#,##0")&" fit"'
    lines = (
        _facility(r, cells, fits),
        f'TEXT({r["monthly_energy"]},"#,##0")&" MWh and "&TEXT({r["monthly_carbon"]},"#,##0")&" t of CO2 a month"',
        f'TEXT({r["energy_per_token"]},"0.00")&" J and "&TEXT({r["carbon_per_million_tokens"]}*1000,"0")&" mg of CO2'
        ' for a token out"',
    )
    _lines(page, lines)
    page.put(f"F{TOP + 5}", f'=IFERROR({r["api_answer"]}&"","")', "text", last=f"R{TOP + 5}")


def money_of_training(page: Page, r: Mapping[str, str], cells: Mapping[str, str]) -> None:
    """Fill the block of the sheet Train; arguments as :func:`money_of_serving`."""
    _costs_table(page, "Rented or owned", ("", "$ a run", "$ an hour"), _TRAINED, r)
    fits = f'"; "&TEXT({r["accelerators_in_power"]},"#,##0")&" accelerators fit"'
    lines = (
        _facility(r, cells, fits),
        f'TEXT({r["run_energy"]},"#,##0")&" MWh and "&TEXT({r["run_carbon"]},"#,##0")&" t of CO2 for the run"',
        f'"$"&TEXT({r["cost_per_million_tokens"]},"0.000")&" and "'
        f'&TEXT({r["carbon_per_million_tokens"]}*1000,"0.0")&" g of CO2 for a million tokens"',
    )
    _lines(page, lines)


def _facility(r: Mapping[str, str], cells: Mapping[str, str], fits: str) -> str:
    """Power of the facility, and the fleet within its limit if it has one."""
    limit = cells["facility_power_limit"]
    within = f'" of "&TEXT({limit},"0.0##")&" MW"&{fits}'
    return f'TEXT({r["power"]},"0.00")&IF(ISNUMBER({limit}),{within}," MW from the grid")'


def _costs_table(
    page: Page, words: str, heads: Sequence[str], rows: Sequence[Sequence[str]], r: Mapping[str, str]
) -> None:
    """Rows of a name and three costs below a heading; dashes for unknown costs."""
    page.heading(f"F{TOP}", words, "K")
    page.heads("HIK", TOP + 1, heads)
    for row, (name, *columns) in enumerate(rows, start=TOP + 2):
        shown = f'=IFERROR({r["api_provider"]}&"","")' if name == "API" else name
        page.put(f"F{row}", shown, "cell left")
        for letter, column, number in zip("HIK", columns, ("0.00", MONEY, "0.00"), strict=True):
            value = f'=IFERROR(IF({r[column]}="","",{r[column]}),"")' if column else None
            page.put(f"{letter}{row}", value, "cell", number)
        page.rule(f"F{row}:K{row}")


def _lines(page: Page, lines: Sequence[str]) -> None:
    """Lines on power, energy and carbon at the right."""
    page.heading(f"M{TOP}", "Power, energy, carbon", "R")
    for row, words in enumerate(lines, start=TOP + 1):
        page.put(f"M{row}", f'=IFERROR({words},"")', "text", last=f"R{row}")


_LABELS = {stack.software: stack.label for stack in STACKS.values()}
_ENGINES = {engine: _LABELS[engine] for engine in searched_engines() if _LABELS.get(engine)}
"""Names of engines as people write them, short enough for a column."""
CURVE = 8
"""Points of a curve of throughput against speed per user. [-]"""
_COLOURS = (BLUE, SKY, GREEN, AMBER, MUTED, INK)
_CURVES = (("D", "E"), ("K", "L"), ("M", "N"), ("O", "P"), ("Q", "R"), ("S", "T"))
"""Columns of speed and throughput of each way."""
_OTHERS = 6 + len(results_of("serve").columns)
_WAYS = _OTHERS + 10
"""Rows of the headers of forms below all results: the question for other accelerators, and for each way."""


def serve_sheet(page: Page, others: list[str]) -> None:
    """Fill the sheet, and the sheet that holds its numbers, from row 1 and column A on.

    ``others``: accelerators that the answer is held against.
    """
    page.fill("What does it take to serve this model?")
    area, cells = page.form("serve")
    r = page.results("serve", area)
    compared(page, cells, others)
    asked = ways(page, cells)
    page.beside("serve", r)
    _answers(page, r)
    _ways(page)
    curve(page, cells, r, asked)
    _charts(page)
    _others(page, r)
    _notes(page, r)
    money_of_serving(page, r, cells)


def curve(page: Page, cells: dict[str, str], r: dict[str, str], asked: Callable[..., str]) -> None:
    """Throughput against speed per user of every way, from row 24; and the answer and the speed asked for.

    ``asked``: as :func:`ways` returns it.
    """
    for number, (x, y) in enumerate(_CURVES):
        page.calc(f"{x}24", "speed per user")
        page.calc(f"{y}24", f"='{page.sheet.title}'!$M${15 + number}&\"\"")
        for point in range(1, CURVE + 1):
            for letter, name in ((x, "curve speed"), (y, "curve throughput")):
                own = asked(f"{name} {point}", _WAYS + 1 + number)
                page.calc(f"{letter}{24 + point}", f"=IFERROR({own},NA())")
    rate, asked_for = r["tokens_per_second_per_accelerator"], f"={cells['speed_per_user']}"
    page.row("GHI", 24, ("x", "this answer", "asked for"))
    page.row("GH", 25, (f"={r['tokens_per_second_per_user']}", f"={rate}"))
    page.row("GI", 26, (asked_for, 0))
    page.row("GI", 27, (asked_for, f"=IFERROR(2*{rate},0)"))
    page.data["H25"].number_format = "#,##0"


WAYS = 6
"""Ways to serve that the sheet lists: three engines, one pool or two. [-]"""
_ANSWERS = ("AK", "AL", "AM", "AN", "AO", "AP", "AQ")
"""Columns of answers beside the forms of the same question, right of all their entries."""


def _columns(cells: Mapping[str, str]) -> list[Column]:
    return [column for column in table_schema("serve").columns if column.name in cells]


def ways(page: Page, cells: dict[str, str]) -> Callable[..., str]:
    """Every way to serve, the cheapest first: forms below all results, their answers right of all entries.

    Returns how a cell asks for a result, by its words and the row of the form of a way.
    """
    rows = range(_WAYS + 1, _WAYS + 1 + WAYS)
    changed = [{"way": float(row - _WAYS)} for row in rows]
    asked = page.again(_columns(cells), cells, rows[0], changed)
    wanted = ("software", "prefill accelerators", "copy size", "accelerators", "accelerators sure",
              "fleet cost per million output tokens", "trust")  # fmt: skip
    for letter, words in zip(_ANSWERS, wanted, strict=True):
        page.calc(f"{letter}{_WAYS}", words)
        for row in rows:
            page.calc(f"{letter}{row}", f'=IFERROR({asked(words, row)},"")')
    return asked


def compared(page: Page, cells: dict[str, str], others: list[str]) -> None:
    """The same question on other accelerators, each mapped anew: forms below all results, answers from column X on."""
    mapping = ("software", "mode", "hour_price", "num_accelerators", "tensor_parallel", "expert_parallel",
               "data_parallel_attention", "concurrency", "way")  # fmt: skip
    changed = [{**dict.fromkeys(mapping, "auto"), "accelerator": name} for name in others]
    asked = page.again(_columns(cells), cells, _OTHERS + 1, changed)
    wanted = ("accelerators", "fleet cost per million output tokens", "power")
    name, rank, number, cost, power = _ANSWERS[:5]
    page.row((name, rank, number, cost, power), _OTHERS, ("name", "rank", *wanted))
    for row, accelerator in enumerate(others, start=_OTHERS + 1):
        page.calc(f"{name}{row}", accelerator.split("-")[0])
        page.row((number, cost, power), row, [f"=IFERROR({asked(words, row)},0)" for words in wanted])
        own = f"{cells['accelerator']}=$D{row}"
        page.calc(f"{rank}{row}", f"=IF(OR({own},{cost}{row}=0),999999,{cost}{row})+{row}/1000000")


def _answers(page: Page, r: dict[str, str]) -> None:
    page.answer(f"={r['answer']}")
    band = f'"80 %: "&TEXT({r["accelerators_low"]},"#,##0")&" \N{EN DASH} "&TEXT({r["accelerators_high"]},"#,##0")'
    cost = f'"80 %: $"&TEXT({r["cost_low"]},"0.00")&" \N{EN DASH} $"&TEXT({r["cost_high"]},"0.00")'
    page.tiles(
        (
            ("Accelerators", r["accelerators"], "#,##0", band),
            (
                "Servers",
                r["servers"],
                "#,##0",
                f'"of "&{r["server_size"]}&"; "&{r["copies"]}&" copies of "&{r["copy_size"]}',
            ),
            ("Fleet $ per M out", r["fleet_cost_per_million_output_tokens"], '"$"0.00', cost),
            ("USD a month", r["monthly_cost"], MONEY, f'"at $"&TEXT({r["hour_price"]},"0.00")&" an hour"'),
            ("Power (MW)", r["power"], "0.00", '"with the building"'),
            ("First token (s)", f"{r['ttft']}/1000", "0.0", f'"then "&TEXT({r["tpot"]},"0")&" ms a token"'),
        )
    )


def _charts(page: Page) -> None:
    page.heading("F13", "Throughput against speed per user", "K")
    lines = [page.points(x, y, (24, 24 + CURVE), colour) for (x, y), colour in zip(_CURVES, _COLOURS, strict=True)]
    lines.append(page.points("G", "I", (24, 27), MUTED, dash="dash"))
    chart = scatter([*lines, page.points("G", "H", (24, 25), ORANGE, "diamond")])
    x, y = Axis("token/s for a user", "0"), Axis("token/s per accelerator", "#,##0", grid=True)
    page.place(chart, "F14:K27", x, y, (0.14, 0.03, 0.83, 0.80), (0.50, 0.03, 0.47, 0.28))


def _ways(page: Page) -> None:
    page.heading("M13", "Ways to serve this, cheapest first", "R")
    page.heads("OPQR", 14, ("number", "80 % sure", "$/M out", "trust"))
    source = page.source
    for row in range(15, 15 + WAYS):
        engine, prefill, size, number, sure, cost, trust = (
            f"{source}${letter}${row + _WAYS - 14}" for letter in _ANSWERS
        )
        pools = f'IF({prefill}="",{size},{prefill}&"+"&({size}-{prefill}))'
        # In LibreOffice a text of an add-in's function equals no other; one that LEFT makes of it does.
        known = "".join(f'IF(LEFT({engine},20)="{name}","{title}",' for name, title in _ENGINES.items())
        words = f'=IF({number}="","",{known}{engine}{")" * len(_ENGINES)}&" "&{pools})'
        page.put(f"M{row}", words, "cell left")
        for letter, cell, look in (("O", number, "#,##0"), ("P", sure, "#,##0"), ("Q", cost, "0.00")):
            page.put(f"{letter}{row}", f"={cell}", "cell", look)
        short = f'IF(LEFT({trust},8)="MEASURED","measured",IF(LEFT({trust},8)="INTERPOL","interpol.","extrapol."))'
        page.put(f"R{row}", f'=IF({trust}="","",{short})', "cell")
        page.rule(f"M{row}:R{row}")


def _others(page: Page, r: dict[str, str]) -> None:
    page.heading("M21", "Other accelerators, cheapest first", "R")
    page.heads("OPQR", 22, ("number", "$/M out", "vs this", "MW"))
    for row in range(23, 28):
        source = page.source
        ranks = f"{source}${_ANSWERS[1]}${_OTHERS + 1}:${_ANSWERS[1]}${_OTHERS + 6}"
        at = f"MATCH(SMALL({ranks},{row - 22}),{ranks},0)"
        shown = f"SMALL({ranks},{row - 22})<999999"
        name, _, count, cost, power = _ANSWERS[:5]
        for letter, column, look, number in (("M", name, "cell left", ""), ("O", count, "cell", "#,##0"),
                                             ("P", cost, "cell", "0.00"), ("R", power, "cell", "0.00")):  # fmt: skip
            value = f'=IFERROR(IF({shown},INDEX({source}${column}${_OTHERS + 1}:${column}${_OTHERS + 6},{at}),""),"")'
            page.put(f"{letter}{row}", value, look, number)
        change = f'=IFERROR(P{row}/{r["fleet_cost_per_million_output_tokens"]}-1,"")'
        page.put(f"Q{row}", change, "cell", "+0%;-0%;0%")
        page.rule(f"M{row}:R{row}")
    page.in_colour("Q23:Q27", "=AND(ISNUMBER($Q23),$Q23<0)", "00734F")
    page.in_colour("Q23:Q27", "=AND(ISNUMBER($Q23),$Q23>0)", ORANGE)


def _sure(r: dict[str, str]) -> str:
    """Accelerators that are enough with 80 % probability, and the used share of each budget."""
    shares = (("memory", "memory_used"), ("speed", "speed_used"), ("TTFT", "ttft_used"))
    used = '&", '.join(f'{words} "&TEXT({r[name]},"0 %")' for words, name in shares)
    return f'"80 % sure with "&TEXT({r["accelerators_sure"]},"#,##0")&"; in use: {used}'


def _notes(page: Page, r: dict[str, str]) -> None:
    band = f'"80 % band of a token: "&TEXT({r["tpot_low"]},"0")&" to "&TEXT({r["tpot_high"]},"0")&" ms"'
    room = f'"Room for "&TEXT({r["users_that_fit"]},"#,##0")&" users: "&TEXT({r["head_room"]},"0 %")&" head room"'
    page.how_sure(r["trust"], (f'{r["trust_reason"]}&""', band, _sure(r)))
    page.texts(
        "Assumptions",
        (
            f'{r["defaults_used"]}&""',
            f'"Price: "&{r["price_basis"]}&"; "&TEXT({r["power_per_accelerator"]},"#,##0")&" W each"',
            f'IF(LEFT({r["best_way"]},4)="none",{room},{r["best_way"]}&"")',
        ),
    )


SIZES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Numbers of accelerators that the answer is held against, over its own. [-]"""
_SIZED = ("AK", "AL", "AM", "AN")
"""Columns that hold time, cost, utilisation and energy of the run on other numbers of accelerators."""
_MEMORY = ("weights", "gradients", "optimizer", "activations", "reserve", "free")


def train_sheet(page: Page) -> None:
    """Fill the sheet, and the sheet that holds its numbers, from row 1 and column A on."""
    page.fill("How long does it train and at what cost?")
    area, cells = page.form("train")
    r = page.results("train", area)
    _parts(page, r)
    _sizes(page, cells, r)
    page.beside("train", r)
    _answers_of_training(page, r)
    _charts_of_training(page, r)
    _table(page, r)
    band = f'"80 % band of a step: "&TEXT({r["step_time_low"]},"0.00")&" to "&TEXT({r["step_time_high"]},"0.00")&" s"'
    page.how_sure(r["trust"], (f'{r["trust_reason"]}&""', band))
    price = f'"Price: "&{r["price_basis"]}&"; "&TEXT({r["hour_price"]},"0.00")&" USD an hour each"'
    mapped = f'"Data parallel "&{r["data_parallel"]}&"; goodput "&TEXT({r["goodput"]},"0.0%")'
    page.texts("Assumptions", (f'{r["defaults_used"]}&""', price, mapped))
    money_of_training(page, r, cells)


def _parts(page: Page, r: dict[str, str]) -> None:
    """Shares of a step, useful and lost time in series of their own; memory by part; columns D to J."""
    page.row("DEF", 2, ("part", "trains", "lost"))
    for row, (name, words) in enumerate(TRAINING_PARTS.items(), start=3):
        share = f"=IFERROR({r[f'share_{name}']},0)"
        page.row("DEF", row, (words, share, 0) if row < 5 else (words, 0, share))
    page.row("EFGHIJ", 18, ["allocator" if name == "reserve" else name for name in _MEMORY])
    page.row("EFGHIJ", 19, [f"=IFERROR(MAX({r[f'memory_{name}']},0),0)" for name in _MEMORY])
    page.calc("D19", "memory")


def _sizes(page: Page, cells: dict[str, str], r: dict[str, str]) -> None:
    """The same run on fewer and on more accelerators, each mapped anew; rows 22 to 27 from column D on."""
    asked = page.again(
        table_schema("train").columns, cells, 23,
        [{"num_accelerators": f"={r['accelerators']}*{size}", "deadline": "auto"} for size in SIZES], 4,
    )  # fmt: skip
    wanted = ("run time", "paid run cost", "mfu", "run energy")
    page.row(_SIZED, 22, wanted)
    for row in range(23, 23 + len(SIZES)):
        page.row(_SIZED, row, [f'=IFERROR({asked(words, row)},"")' for words in wanted])


def _answers_of_training(page: Page, r: dict[str, str]) -> None:
    page.answer(f"={r['answer']}")
    dash = '&" \N{EN DASH} "&'
    days = f'"80 %: "&TEXT({r["run_time_low"]},"0.0"){dash}TEXT({r["run_time_high"]},"0.0")'
    low, high = (f"{r['paid_run_cost']}*{r[f'run_time_{end}']}/{r['run_time']}/1000" for end in ("low", "high"))
    cost = f'"80 %: $"&TEXT({low},"#,##0"){dash}TEXT({high},"#,##0")&" k"'
    memory = f'"of "&TEXT({r["memory_capacity"]},"0")&"; "&TEXT({r["memory_free"]},"0.0")&" free"'
    degrees = '&" x "&'.join(r[f"{name}_parallel"] for name in ("tensor", "pipeline", "data"))
    mapped = degrees + '&" (TP PP DP)"'
    own = (
        ("Days", r["run_time"], "0.0", days),
        ("USD", r["paid_run_cost"], MONEY, cost),
        ("Energy (MWh)", r["run_energy"], "#,##0", f'TEXT({r["run_carbon"]},"#,##0")&" t of CO2"'),
        ("MFU", r["mfu"], "0.0%", f'"a step takes "&TEXT({r["step_time"]},"0.0")&" s"'),
        ("Memory (GiB)", r["memory_reserved"], "0", memory),
        ("Accelerators", r["accelerators"], "#,##0", mapped),
    )  # fmt: skip
    page.tiles(own)


def _charts_of_training(page: Page, r: dict[str, str]) -> None:
    page.heading("F13", "Where a step goes: share of its time", "K")
    chart: Any = page.bars("D", (2, 2 + len(TRAINING_PARTS)), "E F", (BLUE, ORANGE), "0.0%", gap=30)
    for series, colour in zip(chart.series, (BLUE, ORANGE), strict=True):
        label_values(series, "outEnd", colour, True)
    page.place(chart, "F14:K27", Axis(), Axis(number="0%", hidden=True), (0.27, 0.02, 0.66, 0.85), "b")
    page.heading("M13", "Memory of the fullest accelerator (GiB)", "R")
    colours = (BLUE, SKY, GREEN, AMBER, MUTED, "E6EAEE")
    chart = page.bars("D", (18, 19), "E F G H I J", colours, "[>=3]0", gap=20, stacked=True)
    for series, colour in zip(chart.series, ("FFFFFF", INK, "FFFFFF", INK, "FFFFFF", INK), strict=True):
        label_values(series, "ctr", colour, True)
    page.place(chart, "M14:R18", Axis(hidden=True), Axis(number="0", hidden=True), (0.01, 0.03, 0.97, 0.45), "b")


def _table(page: Page, r: dict[str, str]) -> None:
    page.heading("M20", "Fewer or more accelerators, each mapped anew", "R")
    page.heads("MOPQR", 21, ("number", "days", "USD", "MFU", "MWh"))
    for row in range(22, 22 + len(SIZES)):
        source = page.source
        page.put(f"M{row}", f'=IFERROR({source}J{row + 1},"")', "cell", "#,##0")
        for letter, column, number in zip("OPQR", _SIZED, ("0.0", MONEY, "0%", "#,##0"), strict=True):
            shown = f'=IF({source}{column}{row + 1}="","\N{EN DASH}",{source}{column}{row + 1})'
            page.put(f"{letter}{row}", shown, "cell", number)
        page.rule(f"M{row}:R{row}")
    page.in_colour(f"M22:R{21 + len(SIZES)}", f"$M22={r['accelerators']}", BLUE)
