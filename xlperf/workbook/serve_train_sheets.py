"""The sheets ``Serve`` and ``Train``: a form, its answer, and the sheets with their numbers."""

from __future__ import annotations

from typing import Any

from xlperf.catalog.schema import table_schema
from xlperf.explore.forms import TRAINING_PARTS
from xlperf.workbook.front_formulas import Live
from xlperf.workbook.front_layout import (
    AMBER,
    BLUE,
    GREEN,
    ORANGE,
    SKY,
    Points,
    answer,
    axis,
    bars,
    beside,
    border,
    form,
    given,
    heading,
    how_sure,
    in_colour,
    label,
    page,
    place,
    put,
    results,
    scatter,
    texts,
    tiles,
)
from xlperf.workbook.style import INK, MUTED, RULE

MONEY = '[>=1000000]"$"0.00,,"M";[>=1000]"$"0,"k";"$"0'
CURVE = 40
"""Points of the curve of throughput against speed per user, at the most. [-]"""


def serve_sheet(sheet: Any, data: Any, live: Live, others: list[str]) -> None:
    """Fill the sheet, and the sheet that holds its numbers, from row 1 and column A on.

    ``sheet``, ``data``: changed in place. ``live``: writes formulas with their values. ``others``: accelerators that
    the answer is held against.
    """
    page(sheet, "What does it take to serve this model?", live)
    area, cells = form(sheet, "serve", live)
    r = results(data, "serve", area, live)
    limits(data, r, live)
    curve(data, cells, r, live)
    compared(data, cells, r, others, live)
    beside(sheet, "serve", live, r)
    _answers(sheet, r, live)
    _charts(sheet, data, r, live)
    _others(sheet, data, r, live)
    _notes(sheet, r, live)


def limits(data: Any, r: dict[str, str], live: Live) -> None:
    """Shares of the budgets in use, the fullest in a series of its own; columns D to G, rows 2 to 6."""
    for letter, words in zip("DEFG", ("budget", "used", "share in use", "the limit"), strict=True):
        live.put(data[f"{letter}2"], words)
    names = (
        ("memory", "memory_used"),
        ("speed per user", "speed_used"),
        ("first token", "ttft_used"),
        ("users", "users_used"),
    )
    for row, (words, name) in enumerate(names, start=3):
        live.put(data[f"D{row}"], words)
        live.put(data[f"E{row}"], f"=IFERROR({r[name]},0)")
    for row in range(3, 7):
        full = f"AND({int(row < 6)}=1,E{row}=MAX($E$3:$E$5))"
        live.put(data[f"F{row}"], f"=IF({full},0,E{row})")
        live.put(data[f"G{row}"], f"=IF({full},E{row},0)")


def curve(data: Any, cells: dict[str, str], r: dict[str, str], live: Live) -> None:
    """Throughput against speed per user of copies of the chosen size, any mapping and load; columns D to I."""
    card = (
        ("model", given(cells["model"])),
        ("accelerator", given(cells["accelerator"])),
        ("num accelerators", f"={r['copy_size']}"),
        ("tensor parallel", given(cells["tensor_parallel"])),
        ("expert parallel", given(cells["expert_parallel"])),
        ("data parallel attention", given(cells["data_parallel_attention"])),
        ("prompt length", given(cells["prompt_length"])),
        ("output length", given(cells["output_length"])),
        ("precision", f"={r['precision']}"),
        ("kv precision", f'=IF({cells["kv_precision"]}="auto","",{cells["kv_precision"]})'),
        ("mode", "continuous"),
        ("software", f"={r['software']}"),
    )
    for row, (name, value) in enumerate(card, start=10):
        live.put(data[f"D{row}"], name)
        live.put(data[f"E{row}"], value)
    live.put(data["D24"], "speed per user")
    live.put(data["E24"], "best mappings")
    shown = '"tokens per second per user, tokens per second per accelerator"'
    for row in range(25, 25 + CURVE):
        for letter, column in (("D", 1), ("E", 2)):
            spilled = f"XLPERF_FRONTIER($D$10:$E$21,,{shown},catalog)"
            live.put(data[f"{letter}{row}"], f"=IFERROR(INDEX({spilled},{row - 23},{column}),NA())")
    points: tuple[tuple[str, Any], ...] = (
        ("G24", "x"),
        ("H24", "this answer"),
        ("I24", "asked for"),
        ("G25", f"={r['tokens_per_second_per_user']}"),
        ("H25", f"={r['tokens_per_second_per_accelerator']}"),
        ("G26", f"={cells['speed_per_user']}"),
        ("G27", f"={cells['speed_per_user']}"),
        ("I26", 0),
        ("I27", f"=IFERROR(MAX(E25,{r['tokens_per_second_per_accelerator']}),0)"),
    )
    for cell, own in points:
        live.put(data[cell], own)
    data["H25"].number_format = "#,##0"


def compared(data: Any, cells: dict[str, str], r: dict[str, str], others: list[str], live: Live) -> None:
    """The same question on other accelerators, each mapped anew; from row 68, the answers in columns from S on."""
    names = [column.name for column in table_schema("serve").columns]
    mapping = ("hour_price", "num_accelerators", "tensor_parallel", "expert_parallel", "data_parallel_attention",
               "concurrency")  # fmt: skip
    letters = [chr(ord("A") + number) for number in range(len(names))]
    last = letters[-1]
    for letter, name in zip(letters, names, strict=True):
        live.put(data[f"{letter}68"], table_schema("serve").by_name[name].header)
    wanted = ("accelerators", "fleet cost per million output tokens", "power")
    for letter, words in zip("SUVW", ("name", *wanted), strict=True):
        live.put(data[f"{letter}68"], words)
    live.put(data["T68"], "rank")
    for row, accelerator in enumerate(others, start=69):
        for letter, name in zip(letters, names, strict=True):
            value = accelerator if name == "accelerator" else "auto" if name in mapping else given(cells[name])
            live.put(data[f"{letter}{row}"], value)
        live.put(data[f"S{row}"], accelerator.split("-")[0])
        for letter, words in zip("UVW", wanted, strict=True):
            asked = f'XLPERF_SERVE($A{row}:${last}{row},"{words}",catalog,$A$68:${last}$68)'
            live.put(data[f"{letter}{row}"], f"=IFERROR({asked},0)")
        own = f"{cells['accelerator']}=$D{row}"
        live.put(data[f"T{row}"], f"=IF(OR({own},V{row}=0),999999,V{row})+{row}/1000000")


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


def _charts(sheet: Any, data: Any, r: dict[str, str], live: Live) -> None:
    heading(sheet, "F13", "Throughput against speed per user", "K", live)
    chart: Any = scatter(
        data,
        (
            Points("D", "E", (24, 24 + CURVE), BLUE),
            Points("G", "I", (24, 27), MUTED, dash="dash"),
            Points("G", "H", (24, 25), ORANGE, "diamond"),
        ),
    )
    axis(chart.x_axis, "token/s for a user", "0")
    axis(chart.y_axis, "token/s per accelerator", "#,##0", grid=True)
    place(chart, sheet, "F14:K27", live, (0.14, 0.03, 0.83, 0.80), (0.56, 0.04, 0.40, 0.24))
    heading(sheet, "M13", "What limits: share of each budget in use", "R", live)
    chart = bars(data, "D", (2, 6), "F G", (SKY, ORANGE), "0%", gap=45)
    for series, colour in zip(chart.series, (INK, ORANGE), strict=True):
        label(series, "outEnd", colour, True)
    axis(chart.x_axis)
    axis(chart.y_axis, number="0%", hidden=True)
    chart.y_axis.scaling.max = 1.15
    place(chart, sheet, "M14:R19", live, (0.26, 0.02, 0.72, 0.94))


def _others(sheet: Any, data: Any, r: dict[str, str], live: Live) -> None:
    heading(sheet, "M21", "Other accelerators, cheapest first", "R", live)
    for letter, words in zip("OPQR", ("number", "$/M out", "vs this", "MW"), strict=True):
        put(sheet, f"{letter}22", words, "head")
    for row in range(23, 28):
        source = f"'{data.title}'!"
        ranks = f"{source}$T$69:$T$74"
        at = f"MATCH(SMALL({ranks},{row - 22}),{ranks},0)"
        shown = f"SMALL({ranks},{row - 22})<999999"
        for letter, column, look, number in (("M", "S", "cell left", ""), ("O", "U", "cell", "#,##0"),
                                             ("P", "V", "cell", "0.00"), ("R", "W", "cell", "0.00")):  # fmt: skip
            value = f'=IFERROR(IF({shown},INDEX({source}${column}$69:${column}$74,{at}),""),"")'
            put(sheet, f"{letter}{row}", value, look, number, live=live)
        change = f'=IFERROR(P{row}/{r["fleet_cost_per_million_output_tokens"]}-1,"")'
        put(sheet, f"Q{row}", change, "cell", "+0%;-0%;0%", live=live)
        border(sheet, f"M{row}:R{row}", bottom=("hair", RULE))
    in_colour(sheet, "Q23:Q27", "=AND(ISNUMBER($Q23),$Q23<0)", "00734F")
    in_colour(sheet, "Q23:Q27", "=AND(ISNUMBER($Q23),$Q23>0)", ORANGE)


def _notes(sheet: Any, r: dict[str, str], live: Live) -> None:
    band = f'"80 % band of a token: "&TEXT({r["tpot_low"]},"0")&" to "&TEXT({r["tpot_high"]},"0")&" ms"'
    how_sure(sheet, 29, r["trust"], (f'{r["trust_reason"]}&""', band), live)
    texts(
        sheet,
        29,
        "Taken for granted",
        (
            f'{r["defaults_used"]}&""',
            f'"Price: "&{r["price_basis"]}&"; "&TEXT({r["power_per_accelerator"]},"#,##0")&" W each"',
            f'"Room for "&TEXT({r["users_that_fit"]},"#,##0")&" users: "&TEXT({r["head_room"]},"0 %")&" head room"',
        ),
        live,
    )


SIZES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Numbers of accelerators that the answer is held against, over its own. [-]"""
_SIZED = ("AA", "AB", "AC", "AD")
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


def _parts(data: Any, r: dict[str, str], live: Live) -> None:
    """Shares of a step, what trains and what is lost in series of their own; memory by part; columns D to J."""
    for letter, words in zip("DEF", ("part", "trains", "lost"), strict=True):
        live.put(data[f"{letter}2"], words)
    for row, (name, words) in enumerate(TRAINING_PARTS.items(), start=3):
        live.put(data[f"D{row}"], words)
        share = f"=IFERROR({r[f'share_{name}']},0)"
        live.put(data[f"E{row}"], share if row < 5 else 0)
        live.put(data[f"F{row}"], share if row >= 5 else 0)
    for letter, name in zip("EFGHIJ", _MEMORY, strict=True):
        live.put(data[f"{letter}18"], "allocator" if name == "reserve" else name)
        live.put(data[f"{letter}19"], f"=IFERROR(MAX({r[f'memory_{name}']},0),0)")
    live.put(data["D19"], "memory")


def _sizes(data: Any, cells: dict[str, str], r: dict[str, str], live: Live) -> None:
    """The same run on fewer and on more accelerators, each mapped anew; rows 22 to 27 from column D on."""
    names = [column.name for column in table_schema("train").columns]
    letters = [chr(ord("D") + number) for number in range(len(names))]
    first, last = letters[0], letters[-1]
    for letter, name in zip(letters, names, strict=True):
        live.put(data[f"{letter}22"], table_schema("train").by_name[name].header)
    wanted = ("run time", "run cost", "mfu", "run energy")
    for letter, words in zip(_SIZED, wanted, strict=True):
        live.put(data[f"{letter}22"], words)
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
    cost = f'"80 %: $"&TEXT({r["run_cost_low"]}/1000,"#,##0"){dash}TEXT({r["run_cost_high"]}/1000,"#,##0")&" k"'
    memory = f'"of "&TEXT({r["memory_capacity"]},"0")&"; "&TEXT({r["memory_free"]},"0.0")&" free"'
    degrees = '&" x "&'.join(r[f"{name}_parallel"] for name in ("tensor", "pipeline", "data"))
    mapped = degrees + '&" (TP PP DP)"'
    own = (
        ("Days", r["run_time"], "0.0", days),
        ("USD", r["run_cost"], MONEY, cost),
        ("Energy (MWh)", r["run_energy"], "#,##0", f'TEXT({r["run_carbon"]},"#,##0")&" t of CO2"'),
        ("MFU", r["mfu"], "0.0%", f'"a step takes "&TEXT({r["step_time"]},"0.0")&" s"'),
        ("Memory (GiB)", r["memory_reserved"], "0", memory),
        ("Accelerators", r["accelerators"], "#,##0", mapped),
    )  # fmt: skip
    tiles(sheet, own, live)


def _charts_of_training(sheet: Any, data: Any, r: dict[str, str], live: Live) -> None:
    heading(sheet, "F13", "Where a step goes: share of its time", "K", live)
    chart: Any = bars(data, "D", (2, 2 + len(TRAINING_PARTS)), "E F", (BLUE, ORANGE), "0.0%", gap=30)
    for series, colour in zip(chart.series, (BLUE, ORANGE), strict=True):
        label(series, "outEnd", colour, True)
    axis(chart.x_axis)
    axis(chart.y_axis, number="0%", hidden=True)
    place(chart, sheet, "F14:K27", live, (0.27, 0.02, 0.66, 0.85), "b")
    heading(sheet, "M13", "Memory of the fullest accelerator (GiB)", "R", live)
    colours = (BLUE, SKY, GREEN, AMBER, MUTED, "E6EAEE")
    chart = bars(data, "D", (18, 19), "E F G H I J", colours, "[>=3]0", gap=20, stacked=True)
    for series, colour in zip(chart.series, ("FFFFFF", INK, "FFFFFF", INK, "FFFFFF", INK), strict=True):
        label(series, "ctr", colour, True)
    axis(chart.x_axis, hidden=True)
    axis(chart.y_axis, number="0", hidden=True)
    place(chart, sheet, "M14:R18", live, (0.01, 0.03, 0.97, 0.45), "b")


def _table(sheet: Any, data: Any, r: dict[str, str], live: Live) -> None:
    heading(sheet, "M20", "Fewer or more accelerators, each mapped anew", "R", live)
    for letter, words in zip("MOPQR", ("number", "days", "USD", "MFU", "MWh"), strict=True):
        put(sheet, f"{letter}21", words, "head")
    for row in range(22, 22 + len(SIZES)):
        source = f"'{data.title}'!"
        put(sheet, f"M{row}", f'=IFERROR({source}J{row + 1},"")', "cell", "#,##0", live=live)
        for letter, column, number in zip("OPQR", _SIZED, ("0.0", MONEY, "0%", "#,##0"), strict=True):
            shown = f'=IF({source}{column}{row + 1}="","\N{EN DASH}",{source}{column}{row + 1})'
            put(sheet, f"{letter}{row}", shown, "cell", number, live=live)
        border(sheet, f"M{row}:R{row}", bottom=("hair", RULE))
    in_colour(sheet, f"M22:R{21 + len(SIZES)}", f"$M22={r['accelerators']}", BLUE)
