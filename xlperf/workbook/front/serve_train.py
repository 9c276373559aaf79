"""The sheets ``Serve`` and ``Train``: a form, its answer, and the sheets with their numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from openpyxl.utils import get_column_letter

from xlperf.catalog.schema import results_of, table_schema
from xlperf.explore.forms import TRAINING_PARTS
from xlperf.interop.stack_rules import STACKS, searched_engines
from xlperf.workbook.charts import label_values
from xlperf.workbook.front.formulas import Live
from xlperf.workbook.front.layout import (
    AMBER,
    BLUE,
    GREEN,
    ORANGE,
    SKY,
    Axis,
    answer,
    bars,
    beside,
    border,
    form,
    given,
    head_row,
    heading,
    how_sure,
    in_colour,
    page,
    place,
    points,
    put,
    results,
    scatter,
    texts,
    tiles,
)
from xlperf.workbook.style import INK, MUTED, RULE

TOP = 34
"""Row of the headings. [-]"""
MONEY = '[>=1000000]"$"0.00,,"M";[>=1000]"$"0,"k";"$"0'
_SERVED = (
    ("rented", "rented_fleet_cost_per_million_output_tokens", "rented_monthly_cost", "rented_hour_cost"),
    ("owned", "owned_fleet_cost_per_million_output_tokens", "owned_monthly_cost", "owned_hour_cost"),
    ("API", "api_cost_per_million_output_tokens_all_in", "api_monthly_cost", ""),
)
_TRAINED = (("rented", "", "rented_run_cost", "rented_hour_cost"), ("owned", "", "owned_run_cost", "owned_hour_cost"))


def money_of_serving(sheet: Any, r: Mapping[str, str], cells: Mapping[str, str], live: Live) -> None:
    """Fill the block of the sheet Serve.

    ``r``: cells of results. ``cells``: cells of the form. ``live``: writes formulas with their values.
    """
    _costs_table(sheet, "Rented, owned or bought from an API", ("$/M out", "$ a month", "$ an hour"), _SERVED, r, live)
    fits = f'"; "&TEXT({r["users_in_power"]},"#,##0")&" users on "&TEXT({r["accelerators_in_power"]},"#,##0")&" fit"'
    lines = (
        _facility(r, cells, fits),
        f'TEXT({r["monthly_energy"]},"#,##0")&" MWh and "&TEXT({r["monthly_carbon"]},"#,##0")&" t of CO2 a month"',
        f'TEXT({r["energy_per_token"]},"0.00")&" J and "&TEXT({r["carbon_per_million_tokens"]}*1000,"0")&" mg of CO2'
        ' for a token out"',
    )
    _lines(sheet, lines, live)
    put(sheet, f"F{TOP + 5}", f'=IFERROR({r["api_answer"]}&"","")', "text", last=f"R{TOP + 5}", live=live)


def money_of_training(sheet: Any, r: Mapping[str, str], cells: Mapping[str, str], live: Live) -> None:
    """Fill the block of the sheet Train; arguments as :func:`money_of_serving`."""
    _costs_table(sheet, "Rented or owned", ("", "$ a run", "$ an hour"), _TRAINED, r, live)
    fits = f'"; "&TEXT({r["accelerators_in_power"]},"#,##0")&" accelerators fit"'
    lines = (
        _facility(r, cells, fits),
        f'TEXT({r["run_energy"]},"#,##0")&" MWh and "&TEXT({r["run_carbon"]},"#,##0")&" t of CO2 for the run"',
        f'"$"&TEXT({r["cost_per_million_tokens"]},"0.000")&" and "'
        f'&TEXT({r["carbon_per_million_tokens"]}*1000,"0.0")&" g of CO2 for a million tokens"',
    )
    _lines(sheet, lines, live)


def _facility(r: Mapping[str, str], cells: Mapping[str, str], fits: str) -> str:
    """Power of the facility, and the fleet within its limit if it has one."""
    limit = cells["facility_power_limit"]
    within = f'" of "&TEXT({limit},"0.0##")&" MW"&{fits}'
    return f'TEXT({r["power"]},"0.00")&IF(ISNUMBER({limit}),{within}," MW from the grid")'


def _costs_table(
    sheet: Any, words: str, heads: Sequence[str], rows: Sequence[Sequence[str]], r: Mapping[str, str], live: Live
) -> None:
    """Rows of a name and three costs below a heading; dashes for unknown costs."""
    heading(sheet, f"F{TOP}", words, "K", live)
    head_row(sheet, "HIK", TOP + 1, heads)
    for row, (name, *columns) in enumerate(rows, start=TOP + 2):
        shown = f'=IFERROR({r["api_provider"]}&"","")' if name == "API" else name
        put(sheet, f"F{row}", shown, "cell left", live=live)
        for letter, column, number in zip("HIK", columns, ("0.00", MONEY, "0.00"), strict=True):
            value = f'=IFERROR(IF({r[column]}="","",{r[column]}),"")' if column else None
            put(sheet, f"{letter}{row}", value, "cell", number, live=live)
        border(sheet, f"F{row}:K{row}", bottom=("hair", RULE))


def _lines(sheet: Any, lines: Sequence[str], live: Live) -> None:
    """Lines on power, energy and carbon at the right."""
    heading(sheet, f"M{TOP}", "Power, energy, carbon", "R", live)
    for row, words in enumerate(lines, start=TOP + 1):
        put(sheet, f"M{row}", f'=IFERROR({words},"")', "text", last=f"R{row}", live=live)


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


def serve_sheet(sheet: Any, data: Any, live: Live, others: list[str]) -> None:
    """Fill the sheet, and the sheet that holds its numbers, from row 1 and column A on.

    ``sheet``, ``data``: changed in place. ``live``: writes formulas with their values. ``others``: accelerators that
    the answer is held against.
    """
    page(sheet, "What does it take to serve this model?", live)
    area, cells = form(sheet, "serve", live)
    r = results(data, "serve", area, live)
    compared(data, cells, r, others, live)
    asked = ways(data, cells, live)
    beside(sheet, "serve", live, r)
    _answers(sheet, r, live)
    _ways(sheet, data, live)
    curve(sheet, data, cells, r, asked, live)
    _charts(sheet, data, live)
    _others(sheet, data, r, live)
    _notes(sheet, r, live)
    money_of_serving(sheet, r, cells, live)


def curve(
    sheet: Any, data: Any, cells: dict[str, str], r: dict[str, str], asked: Callable[[int, str], str], live: Live
) -> None:
    """Throughput against speed per user of every way, from row 24; and the answer and the speed asked for.

    ``asked``: as :func:`ways` returns it.
    """
    for number, (x, y) in enumerate(_CURVES):
        live.put(data[f"{x}24"], "speed per user")
        live.put(data[f"{y}24"], f"='{sheet.title}'!$M${15 + number}&\"\"")
        for point in range(1, CURVE + 1):
            for letter, name in ((x, "curve speed"), (y, "curve throughput")):
                own = asked(_WAYS + 1 + number, f"{name} {point}")
                live.put(data[f"{letter}{24 + point}"], f"=IFERROR({own},NA())")
    rate, asked_for = r["tokens_per_second_per_accelerator"], f"={cells['speed_per_user']}"
    live.row(data, "GHI", 24, ("x", "this answer", "asked for"))
    live.row(data, "GH", 25, (f"={r['tokens_per_second_per_user']}", f"={rate}"))
    live.row(data, "GI", 26, (asked_for, 0))
    live.row(data, "GI", 27, (asked_for, f"=IFERROR(2*{rate},0)"))
    data["H25"].number_format = "#,##0"


WAYS = 6
"""Ways to serve that the sheet lists: three engines, one pool or two. [-]"""
_ANSWERS = ("AK", "AL", "AM", "AN", "AO", "AP", "AQ")
"""Columns of answers beside the forms of the same question, right of all their entries."""


def asked_again(data: Any, cells: dict[str, str], rows: Sequence[int], changed: Mapping[str, Sequence[Any]],
                live: Live) -> tuple[str, str]:  # fmt: skip
    """The form of the sheet once more in some rows below its headers, columns changed; its first and last column."""
    names = [column.name for column in table_schema("serve").columns if column.name in cells]
    letters = [get_column_letter(number) for number in range(1, len(names) + 1)]
    for letter, name in zip(letters, names, strict=True):
        live.put(data[f"{letter}{rows[0] - 1}"], table_schema("serve").by_name[name].header)
        for number, row in enumerate(rows):
            own = changed[name][number] if name in changed else given(cells[name])
            live.put(data[f"{letter}{row}"], own)
    return letters[0], letters[-1]


def ways(data: Any, cells: dict[str, str], live: Live) -> Callable[[int, str], str]:
    """Every way to serve, the cheapest first: forms below all results, their answers right of all entries.

    Returns how a cell asks for a result, by the row of the form of a way and the words of the result.
    """
    rows = range(_WAYS + 1, _WAYS + 1 + WAYS)
    first, last = asked_again(data, cells, rows, {"way": [float(row - _WAYS) for row in rows]}, live)

    def asked(row: int, words: str) -> str:
        return f'XLPERF_SERVE(${first}{row}:${last}{row},"{words}",catalog,${first}${_WAYS}:${last}${_WAYS})'

    wanted = ("software", "prefill accelerators", "copy size", "accelerators", "accelerators sure",
              "fleet cost per million output tokens", "trust")  # fmt: skip
    for letter, words in zip(_ANSWERS, wanted, strict=True):
        live.put(data[f"{letter}{_WAYS}"], words)
        for row in rows:
            live.put(data[f"{letter}{row}"], f'=IFERROR({asked(row, words)},"")')
    return asked


def compared(data: Any, cells: dict[str, str], r: dict[str, str], others: list[str], live: Live) -> None:
    """The same question on other accelerators, each mapped anew: forms below all results, answers from column X on."""
    mapping = ("software", "mode", "hour_price", "num_accelerators", "tensor_parallel", "expert_parallel",
               "data_parallel_attention", "concurrency", "way")  # fmt: skip
    rows = range(_OTHERS + 1, _OTHERS + 1 + len(others))
    changed: dict[str, Sequence[Any]] = {name: ["auto"] * len(others) for name in mapping}
    changed["accelerator"] = others
    first, last = asked_again(data, cells, rows, changed, live)
    wanted = ("accelerators", "fleet cost per million output tokens", "power")
    name, rank, number, cost, power = _ANSWERS[:5]
    live.row(data, (name, rank, number, cost, power), _OTHERS, ("name", "rank", *wanted))
    for row, accelerator in zip(rows, others, strict=True):
        live.put(data[f"{name}{row}"], accelerator.split("-")[0])
        for letter, words in zip((number, cost, power), wanted, strict=True):
            asked = f'XLPERF_SERVE(${first}{row}:${last}{row},"{words}",catalog,${first}${_OTHERS}:${last}${_OTHERS})'
            live.put(data[f"{letter}{row}"], f"=IFERROR({asked},0)")
        own = f"{cells['accelerator']}=$D{row}"
        live.put(data[f"{rank}{row}"], f"=IF(OR({own},{cost}{row}=0),999999,{cost}{row})+{row}/1000000")


def _answers(sheet: Any, r: dict[str, str], live: Live) -> None:
    answer(sheet, f"={r['answer']}", live)
    band = f'"80 %: "&TEXT({r["accelerators_low"]},"#,##0")&" \N{EN DASH} "&TEXT({r["accelerators_high"]},"#,##0")'
    cost = f'"80 %: $"&TEXT({r["cost_low"]},"0.00")&" \N{EN DASH} $"&TEXT({r["cost_high"]},"0.00")'
    tiles(
        sheet,
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
        ),
        live,
    )


def _charts(sheet: Any, data: Any, live: Live) -> None:
    heading(sheet, "F13", "Throughput against speed per user", "K", live)
    lines = [
        points(data, x, y, (24, 24 + CURVE), colour, live) for (x, y), colour in zip(_CURVES, _COLOURS, strict=True)
    ]
    lines.append(points(data, "G", "I", (24, 27), MUTED, live, dash="dash"))
    chart = scatter([*lines, points(data, "G", "H", (24, 25), ORANGE, live, "diamond")])
    x, y = Axis("token/s for a user", "0"), Axis("token/s per accelerator", "#,##0", grid=True)
    place(chart, sheet, "F14:K27", x, y, (0.14, 0.03, 0.83, 0.80), (0.56, 0.04, 0.40, 0.24))


def _ways(sheet: Any, data: Any, live: Live) -> None:
    heading(sheet, "M13", "Ways to serve this, cheapest first", "R", live)
    head_row(sheet, "OPQR", 14, ("number", "80 % sure", "$/M out", "trust"))
    source = f"'{data.title}'!"
    for row in range(15, 15 + WAYS):
        engine, prefill, size, number, sure, cost, trust = (
            f"{source}${letter}${row + _WAYS - 14}" for letter in _ANSWERS
        )
        pools = f'IF({prefill}="",{size},{prefill}&"+"&({size}-{prefill}))'
        # In LibreOffice a text of an add-in's function equals no other; one that LEFT makes of it does.
        known = "".join(f'IF(LEFT({engine},20)="{name}","{title}",' for name, title in _ENGINES.items())
        words = f'=IF({number}="","",{known}{engine}{")" * len(_ENGINES)}&" "&{pools})'
        put(sheet, f"M{row}", words, "cell left", live=live)
        for letter, cell, look in (("O", number, "#,##0"), ("P", sure, "#,##0"), ("Q", cost, "0.00")):
            put(sheet, f"{letter}{row}", f"={cell}", "cell", look, live=live)
        short = f'IF(LEFT({trust},8)="MEASURED","measured",IF(LEFT({trust},8)="INTERPOL","interpol.","extrapol."))'
        put(sheet, f"R{row}", f'=IF({trust}="","",{short})', "cell", live=live)
        border(sheet, f"M{row}:R{row}", bottom=("hair", RULE))


def _others(sheet: Any, data: Any, r: dict[str, str], live: Live) -> None:
    heading(sheet, "M21", "Other accelerators, cheapest first", "R", live)
    head_row(sheet, "OPQR", 22, ("number", "$/M out", "vs this", "MW"))
    for row in range(23, 28):
        source = f"'{data.title}'!"
        ranks = f"{source}${_ANSWERS[1]}${_OTHERS + 1}:${_ANSWERS[1]}${_OTHERS + 6}"
        at = f"MATCH(SMALL({ranks},{row - 22}),{ranks},0)"
        shown = f"SMALL({ranks},{row - 22})<999999"
        name, _, count, cost, power = _ANSWERS[:5]
        for letter, column, look, number in (("M", name, "cell left", ""), ("O", count, "cell", "#,##0"),
                                             ("P", cost, "cell", "0.00"), ("R", power, "cell", "0.00")):  # fmt: skip
            value = f'=IFERROR(IF({shown},INDEX({source}${column}${_OTHERS + 1}:${column}${_OTHERS + 6},{at}),""),"")'
            put(sheet, f"{letter}{row}", value, look, number, live=live)
        change = f'=IFERROR(P{row}/{r["fleet_cost_per_million_output_tokens"]}-1,"")'
        put(sheet, f"Q{row}", change, "cell", "+0%;-0%;0%", live=live)
        border(sheet, f"M{row}:R{row}", bottom=("hair", RULE))
    in_colour(sheet, "Q23:Q27", "=AND(ISNUMBER($Q23),$Q23<0)", "00734F")
    in_colour(sheet, "Q23:Q27", "=AND(ISNUMBER($Q23),$Q23>0)", ORANGE)


def _sure(r: dict[str, str]) -> str:
    """Accelerators that are enough with 80 % probability, and the used share of each budget."""
    shares = (("memory", "memory_used"), ("speed", "speed_used"), ("first token", "ttft_used"))
    used = '&", '.join(f'{words} "&TEXT({r[name]},"0 %")' for words, name in shares)
    return f'"To be 80 % sure: "&TEXT({r["accelerators_sure"]},"#,##0")&"; in use: {used}'


def _notes(sheet: Any, r: dict[str, str], live: Live) -> None:
    band = f'"80 % band of a token: "&TEXT({r["tpot_low"]},"0")&" to "&TEXT({r["tpot_high"]},"0")&" ms"'
    room = f'"Room for "&TEXT({r["users_that_fit"]},"#,##0")&" users: "&TEXT({r["head_room"]},"0 %")&" head room"'
    how_sure(sheet, 29, r["trust"], (f'{r["trust_reason"]}&""', band, _sure(r)), live)
    texts(
        sheet,
        29,
        "Taken for granted",
        (
            f'{r["defaults_used"]}&""',
            f'"Price: "&{r["price_basis"]}&"; "&TEXT({r["power_per_accelerator"]},"#,##0")&" W each"',
            f'IF(LEFT({r["best_way"]},4)="none",{room},{r["best_way"]}&"")',
        ),
        live,
    )


SIZES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Numbers of accelerators that the answer is held against, over its own. [-]"""
_SIZED = ("AK", "AL", "AM", "AN")
"""Columns that hold time, cost, utilisation and energy of the run on other numbers of accelerators."""
_MEMORY = ("weights", "gradients", "optimizer", "activations", "reserve", "free")


def train_sheet(sheet: Any, data: Any, live: Live) -> None:
    """Fill the sheet, and the sheet that holds its numbers, from row 1 and column A on.

    ``sheet``, ``data``: changed in place. ``live``: writes formulas with their values.
    """
    page(sheet, "How long, and what does it cost, to train this model?", live)
    area, cells = form(sheet, "train", live)
    r = results(data, "train", area, live)
    _parts(data, r, live)
    _sizes(data, cells, r, live)
    beside(sheet, "train", live, r)
    _answers_of_training(sheet, r, live)
    _charts_of_training(sheet, data, r, live)
    _table(sheet, data, r, live)
    band = f'"80 % band of a step: "&TEXT({r["step_time_low"]},"0.00")&" to "&TEXT({r["step_time_high"]},"0.00")&" s"'
    how_sure(sheet, 29, r["trust"], (f'{r["trust_reason"]}&""', band), live)
    price = f'"Price: "&{r["price_basis"]}&"; "&TEXT({r["hour_price"]},"0.00")&" USD an hour each"'
    mapped = f'"Data parallel "&{r["data_parallel"]}&"; goodput "&TEXT({r["goodput"]},"0.0%")'
    texts(sheet, 29, "Taken for granted", (f'{r["defaults_used"]}&""', price, mapped), live)
    money_of_training(sheet, r, cells, live)


def _parts(data: Any, r: dict[str, str], live: Live) -> None:
    """Shares of a step, useful and lost time in series of their own; memory by part; columns D to J."""
    live.row(data, "DEF", 2, ("part", "trains", "lost"))
    for row, (name, words) in enumerate(TRAINING_PARTS.items(), start=3):
        share = f"=IFERROR({r[f'share_{name}']},0)"
        live.row(data, "DEF", row, (words, share, 0) if row < 5 else (words, 0, share))
    live.row(data, "EFGHIJ", 18, ["allocator" if name == "reserve" else name for name in _MEMORY])
    live.row(data, "EFGHIJ", 19, [f"=IFERROR(MAX({r[f'memory_{name}']},0),0)" for name in _MEMORY])
    live.put(data["D19"], "memory")


def _sizes(data: Any, cells: dict[str, str], r: dict[str, str], live: Live) -> None:
    """The same run on fewer and on more accelerators, each mapped anew; rows 22 to 27 from column D on."""
    names = [column.name for column in table_schema("train").columns]
    letters = [get_column_letter(number) for number in range(4, len(names) + 4)]
    first, last = letters[0], letters[-1]
    live.row(data, letters, 22, [table_schema("train").by_name[name].header for name in names])
    wanted = ("run time", "paid run cost", "mfu", "run energy")
    live.row(data, _SIZED, 22, wanted)
    for row, size in enumerate(SIZES, start=23):
        for letter, name in zip(letters, names, strict=True):
            own = {"num_accelerators": f"={r['accelerators']}*{size}", "deadline": "auto"}.get(name, given(cells[name]))
            live.put(data[f"{letter}{row}"], own)
        for letter, words in zip(_SIZED, wanted, strict=True):
            asked = f'XLPERF_TRAIN(${first}{row}:${last}{row},"{words}",catalog,${first}$22:${last}$22)'
            live.put(data[f"{letter}{row}"], f'=IFERROR({asked},"")')


def _answers_of_training(sheet: Any, r: dict[str, str], live: Live) -> None:
    answer(sheet, f"={r['answer']}", live)
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
    tiles(sheet, own, live)


def _charts_of_training(sheet: Any, data: Any, r: dict[str, str], live: Live) -> None:
    heading(sheet, "F13", "Where a step goes: share of its time", "K", live)
    chart: Any = bars(data, "D", (2, 2 + len(TRAINING_PARTS)), "E F", (BLUE, ORANGE), "0.0%", live, gap=30)
    for series, colour in zip(chart.series, (BLUE, ORANGE), strict=True):
        label_values(series, "outEnd", colour, True)
    place(chart, sheet, "F14:K27", Axis(), Axis(number="0%", hidden=True), (0.27, 0.02, 0.66, 0.85), "b")
    heading(sheet, "M13", "Memory of the fullest accelerator (GiB)", "R", live)
    colours = (BLUE, SKY, GREEN, AMBER, MUTED, "E6EAEE")
    chart = bars(data, "D", (18, 19), "E F G H I J", colours, "[>=3]0", live, gap=20, stacked=True)
    for series, colour in zip(chart.series, ("FFFFFF", INK, "FFFFFF", INK, "FFFFFF", INK), strict=True):
        label_values(series, "ctr", colour, True)
    place(chart, sheet, "M14:R18", Axis(hidden=True), Axis(number="0", hidden=True), (0.01, 0.03, 0.97, 0.45), "b")


def _table(sheet: Any, data: Any, r: dict[str, str], live: Live) -> None:
    heading(sheet, "M20", "Fewer or more accelerators, each mapped anew", "R", live)
    head_row(sheet, "MOPQR", 21, ("number", "days", "USD", "MFU", "MWh"))
    for row in range(22, 22 + len(SIZES)):
        source = f"'{data.title}'!"
        put(sheet, f"M{row}", f'=IFERROR({source}J{row + 1},"")', "cell", "#,##0", live=live)
        for letter, column, number in zip("OPQR", _SIZED, ("0.0", MONEY, "0%", "#,##0"), strict=True):
            shown = f'=IF({source}{column}{row + 1}="","\N{EN DASH}",{source}{column}{row + 1})'
            put(sheet, f"{letter}{row}", shown, "cell", number, live=live)
        border(sheet, f"M{row}:R{row}", bottom=("hair", RULE))
    in_colour(sheet, f"M22:R{21 + len(SIZES)}", f"$M22={r['accelerators']}", BLUE)
