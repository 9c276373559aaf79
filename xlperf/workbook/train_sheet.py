"""The front sheet ``Train``: how long it takes and what it costs to train a model, live."""

from __future__ import annotations

from typing import Any

from xlperf.catalog.schema import table_schema
from xlperf.explore.train import PARTS
from xlperf.workbook.live import Live
from xlperf.workbook.question_look import (
    AMBER,
    BLUE,
    GREEN,
    ORANGE,
    SKY,
    Entry,
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
    texts,
    tiles,
)
from xlperf.workbook.serve_sheet import MONEY
from xlperf.workbook.style import INK, MUTED, RULE

_ARROW = '="\N{RIGHTWARDS ARROW} "&'
ROWS: tuple[Entry | str, ...] = (
    "RUN",
    Entry("model", "Meta-Llama-3.1-70B"),
    Entry("training_tokens", 2, "tokens"),
    Entry("sequence_length", 8192, "tokens"),
    Entry("global_batch_size", 1024, "sequences"),
    Entry("precision", "bf16"),
    "",
    "MACHINE",
    Entry("accelerator", "H100-SXM-80GB"),
    Entry("num_accelerators", 256, _ARROW + 'TEXT({accelerators},"#,##0")', "auto,64,128,256,512,1024,2048,4096,8192"),
    Entry("deadline", "auto", "if number is auto", "auto,10,30,60,90"),
    Entry("hour_price", "auto", _ARROW + 'TEXT({hour_price},"0.00")&" USD"', "auto,1.50,2.00,3.00"),
    "",
    "MAPPING",
    Entry("tensor_parallel", "auto", _ARROW + "{tensor_parallel}", "auto,1,2,4,8"),
    Entry("pipeline_parallel", "auto", _ARROW + "{pipeline_parallel}", "auto,1,2,4,8,16"),
    Entry("virtual_pipeline", "auto", _ARROW + "{virtual_pipeline}", "auto,1,2,4,5,10"),
    Entry("expert_parallel", "auto", _ARROW + "{expert_parallel}", "auto,1,2,4,8,16,32,64"),
    Entry("micro_batch_size", "auto", _ARROW + "{micro_batch_size}", "auto,1,2,4,8"),
    Entry("recompute", "auto", _ARROW + "{recompute}", "auto,none,selective,full"),
)
SIZES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Numbers of accelerators that the answer is held against, over its own. [-]"""
_MEMORY = ("weights", "gradients", "optimizer", "activations", "reserve", "free")


def train_sheet(sheet: Any, data: Any, live: Live) -> None:
    """Fill the sheet, and the sheet that holds its numbers, from row 1 and column A on.

    ``sheet``, ``data``: changed in place. ``live``: writes formulas with their values.
    """
    page(sheet, "How long, and what does it cost, to train this model?", live)
    area, cells = form(sheet, "train", ROWS, live)
    r = results(data, "train", area, live)
    _parts(data, r, live)
    _sizes(data, cells, r, live)
    beside(sheet, ROWS, live, r)
    _answers(sheet, r, live)
    _charts(sheet, data, r, live)
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
    for row, (name, words) in enumerate(PARTS.items(), start=3):
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
    for letter, words in zip("UVWX", wanted, strict=True):
        live.put(data[f"{letter}22"], words)
    for row, size in enumerate(SIZES, start=23):
        for letter, name in zip(letters, names, strict=True):
            own = {"num_accelerators": f"={r['accelerators']}*{size}", "deadline": "auto"}.get(name, given(cells[name]))
            live.put(data[f"{letter}{row}"], own)
        for letter, words in zip("UVWX", wanted, strict=True):
            asked = f'XLPERF_TRAIN(${first}{row}:${last}{row},"{words}",catalog,${first}$22:${last}$22)'
            live.put(data[f"{letter}{row}"], f'=IFERROR({asked},"")')


def _answers(sheet: Any, r: dict[str, str], live: Live) -> None:
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


def _charts(sheet: Any, data: Any, r: dict[str, str], live: Live) -> None:
    heading(sheet, "F13", "Where a step goes: share of its time", "K", live)
    chart: Any = bars(data, "D", (2, 2 + len(PARTS)), "E F", (BLUE, ORANGE), "0.0%", gap=30)
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
        for letter, column, number in (("O", "U", "0.0"), ("P", "V", MONEY), ("Q", "W", "0%"), ("R", "X", "#,##0")):
            shown = f'=IF({source}{column}{row + 1}="","\N{EN DASH}",{source}{column}{row + 1})'
            put(sheet, f"{letter}{row}", shown, "cell", number, live=live)
        border(sheet, f"M{row}:R{row}", bottom=("hair", RULE))
    in_colour(sheet, f"M22:R{21 + len(SIZES)}", f"$M22={r['accelerators']}", BLUE)
