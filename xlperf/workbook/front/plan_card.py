"""Cards above the sheets of plans: the plan that is chosen there, with its time and memory by part, live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openpyxl.styles import Alignment
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.datavalidation import DataValidation

from xlperf.catalog.schema import Column, results_of, table_schema
from xlperf.workbook.charts import label_values
from xlperf.workbook.checks import VERDICT
from xlperf.workbook.data_sheets import CARD_TOP, DATA_SHEETS, column_reference, plan_names, sheet_columns
from xlperf.workbook.front.formulas import Live, worded
from xlperf.workbook.front.layout import (
    AMBER,
    BADGES,
    BLUE,
    GREY,
    ORANGE,
    SKY,
    Axis,
    bars,
    border,
    in_colour,
    place,
    put,
)
from xlperf.workbook.style import BAD_FILL, BAD_INK, INK, MUTED, RULE

NUMBERS = "calc plans"
"""Sheet that holds the numbers of the cards."""
FIRST = {"training": "A", "inference": "L"}
"""First column of the numbers of a card, by kind."""
Parts = Mapping[str, tuple[str, ...]]
TIME: Mapping[str, Parts] = {
    "training": {
        "forward": ("time_forward",),
        "backward": ("time_backward", "time_recompute"),
        "tensor, context, experts": ("time_tensor_parallel", "time_context_parallel", "time_expert_parallel"),
        "pipeline": ("time_pipeline_communication", "time_pipeline_bubble"),
        "data parallel": ("time_data_parallel",),
        "optimizer and fixed": ("time_optimizer", "time_overhead"),
    },
    "inference": {
        "matrix products": ("time_matrix",),
        "attention": ("time_attention",),
        "other kernels": ("time_vector",),
        "communication": ("time_communication",),
        "fixed": ("time_overhead",),
    },
}
"""Parts of a training step or of a decode step, each the sum of some results."""
MEMORY: Mapping[str, Parts] = {
    "training": {
        "weights": ("memory_weights",),
        "gradients": ("memory_gradients",),
        "optimizer": ("memory_optimizer",),
        "activations": ("memory_activations",),
    },
    "inference": {
        "weights": ("memory_weights",),
        "KV cache": ("memory_kv_cache",),
        "activations": ("memory_activations",),
    },
}
"""Parts of memory; reserved and free memory follow them."""
COST: Mapping[str, str] = {
    "accelerator": "accelerator_cost",
    "server": "server_cost",
    "network": "network_capital_cost",
    "storage": "storage_cost",
    "building": "facility_cost",
    "upkeep": "running_cost",
    "energy": "energy_cost",
}
"""Parts of the cost of a million tokens to an owner, each a column of the sheet servers: USD an hour of use."""
_RATE = "tokens_per_second_per_accelerator"
_DEFAULTS = {
    "training": ("software", "sequence_parallel", "context_parallel", "expert_parallel", "zero_stage",
                 "micro_batch_size", "recompute", "attention", "optimizer"),
    "inference": ("software", "pipeline_parallel", "expert_parallel", "data_parallel_attention", "context_parallel",
                  "kv_precision", "mode", "memory_fraction"),
}  # fmt: skip
"""Columns whose default a card names if they are blank."""
_COMMUNICATION = ("tensor, context, experts", "pipeline", "data parallel", "communication")
_USED = {"training": "memory_reserved", "inference": "memory"}
_SENTENCE = {
    "training": (
        "{name}: {step_time:#,##0.00} s a step (80 %: {step_time_low:#,##0.00} \N{EN DASH} {step_time_high:#,##0.00}), "
        "{tokens_per_second_per_accelerator:#,##0} token/s per accelerator, MFU {mfu:0.0%}, "
        "{memory_reserved:0.0} of {memory_capacity:0} GiB",
        "cost_per_million_tokens",
    ),
    "inference": (
        "{name}: {tpot:#,##0.0} ms a token (80 %: {tpot_low:#,##0.0} \N{EN DASH} {tpot_high:#,##0.0}), "
        "first token after {ttft:#,##0} ms, {tokens_per_second_per_accelerator:#,##0} token/s per accelerator, "
        "{memory:0.0} of {memory_capacity:0} GiB",
        "cost_per_million_output_tokens_all_in",
    ),
}
"""Results in the sentence of a card, and the cost that it adds if known."""
_PRICED = ", ${{{}:0.00}} per million tokens"


def plan_cards(book: Any, data: Any, live: Live) -> None:
    """Fill the cards above the sheets of plans, and the sheet that holds their numbers.

    ``book``: with sheets of plans. ``data``: for the numbers. ``live``: writes formulas with their values.
    """
    for kind, first in FIRST.items():
        sheet = book[kind]
        chosen = f"'{kind}'!$A${CARD_TOP + 1}"
        live.text(sheet[f"A{CARD_TOP + 1}"], _first_shown(kind, live))
        cells = plan_numbers(data, kind, first, chosen, live)
        _card(sheet, data, kind, cells, live)


def _first_shown(kind: str, live: Live) -> Any:
    """Name of the first plan whose accelerator the sheet servers knows, so that all charts are full; else the first."""
    own = table_schema(kind).by_name
    names, machines = (live.columns[column_reference(own[name])] for name in ("name", "accelerator"))
    known = set(live.columns[column_reference(table_schema("servers").by_name["accelerator"])]) - {None}
    return next((name for name, machine in zip(names, machines, strict=True) if machine in known), names[0])


def letters_from(first: str, count: int) -> list[str]:
    """So many column letters from one on."""
    from openpyxl.utils import column_index_from_string

    start = column_index_from_string(first)
    return [get_column_letter(start + offset) for offset in range(count)]


def pulled_cell(column: Column, row: str) -> str:
    """Formula of a cell of a table, in the row that a cell holds: blank if it is blank or the row is 0."""
    result = f"INDEX({column_reference(column)},{row})"
    return f'=IF({row}=0,"",IF({result}="","",{result}))'


def plan_numbers(data: Any, kind: str, first: str, chosen: str, live: Live) -> dict[str, str]:
    """Inputs and results of the plan whose name is in a cell; the cell of each, by name.

    In columns from ``first`` on: header, value, further stated inputs so far, default, defaults so far; right of them
    the parts of time and memory for charts.
    """
    head, value, stated, default, defaults, part, plain, special = letters_from(first, 8)
    live.put(data[f"{head}1"], f"{kind}: the plan in the card")
    live.put(data[f"{head}2"], "row")
    live.put(data[f"{value}2"], f"=IFERROR(MATCH({chosen},{column_reference(table_schema(kind).columns[0])},0),0)")
    row_cell, cells = f"${value}$2", {}
    inputs = [column for column in sheet_columns(kind) if not column.is_result]
    in_sight = ("name", *DATA_SHEETS[kind].in_sight)
    for row, column in enumerate(inputs, start=3):
        live.put(data[f"{head}{row}"], column.header)
        live.put(data[f"{value}{row}"], pulled_cell(column, row_cell))
        own = f'IF(${value}{row}="","",IF({stated}{row - 1}="","",", ")&${head}{row}&" "&${value}{row})'
        before = f"{stated}{row - 1}" if row > 3 else '""'
        live.put(data[f"{stated}{row}"], f"={before}" if column.name in in_sight else f"={before}&{own}")
        shown = column.default if column.name in _DEFAULTS[kind] else ""
        live.put(data[f"{default}{row}"], shown or None)
        own = f'IF(${value}{row}="",IF({defaults}{row - 1}="","",", ")&${head}{row}&" "&${default}{row},"")'
        before = f"{defaults}{row - 1}" if row > 3 else '""'
        live.put(data[f"{defaults}{row}"], f"={before}&{own}" if shown else f"={before}")
        cells[column.name] = f"'{data.title}'!${value}${row}"
    last = len(inputs) + 2
    cells |= {"stated": f"'{data.title}'!${stated}${last}", "defaults": f"'{data.title}'!${defaults}${last}"}
    card = f"${head}$3:${value}${last}"
    wanted = [column for column in results_of(kind).columns if column.name in _wanted(kind)]
    for row, column in enumerate(wanted, start=last + 2):
        live.put(data[f"{head}{row}"], column.header)
        function = "CHECK" if column.name == "reason" else column.name.upper()
        live.put(data[f"{value}{row}"], f'=IF({row_cell}=0,"",XLPERF_{function}({card},catalog))')
        cells[column.name] = f"'{data.title}'!${value}${row}"
    bars_of = part, plain, special
    live.row(data, bars_of, 2, ("time", "computing", "communication"))
    for row, (words, names) in enumerate(TIME[kind].items(), start=3):
        summed = f"=IFERROR({'+'.join(cells[name] for name in names)},0)"
        live.row(data, bars_of, row, (words, 0, summed) if words in _COMMUNICATION else (words, summed, 0))
    live.row(data, bars_of, 12, ("memory", "used", "free"))
    memory = {words: "+".join(cells[name] for name in names) for words, names in MEMORY[kind].items()}
    used = cells[_USED[kind]]
    memory["reserved beside"] = f"MAX({used}-({'+'.join(memory.values())}),0)"
    memory["free"] = f"MAX({cells['memory_capacity']}-{used},0)"
    for row, (words, formula) in enumerate(memory.items(), start=13):
        amount = f"=IFERROR({formula},0)"
        live.row(data, bars_of, row, (words, 0, amount) if words == "free" else (words, amount, 0))
    _cost_numbers(data, cells, bars_of, live)
    return cells


COST_TOP = 22
"""Row of the header of the parts of cost, below the parts of time and memory."""


def _cost_numbers(data: Any, cells: Mapping[str, str], letters: tuple[str, str, str], live: Live) -> None:
    """Cost of a million tokens by part to an owner: the hour of the first server of the accelerator, over its rate."""
    live.row(data, letters, COST_TOP, ("cost", "USD per million tokens", "none"))
    owner = table_schema("servers").by_name["accelerator"]
    row = f"MATCH({cells['accelerator']},{column_reference(owner)},0)"
    owned = "servers" in data.parent.sheetnames
    for at, (words, name) in enumerate(COST.items(), start=COST_TOP + 1):
        hour = f"INDEX({column_reference(results_of('servers').by_name[name])},{row})"
        amount = f"=IFERROR({hour}/({cells[_RATE]}*0.0036),0)" if owned else 0
        live.row(data, letters, at, (words, amount, 0))


def _wanted(kind: str) -> set[str]:
    parts: Sequence[Parts] = (TIME[kind], MEMORY[kind])
    names = {name for own in parts for result in own.values() for name in result}
    return names | set(DATA_SHEETS[kind].results) | {_USED[kind], "memory_capacity", "trust_reason", _RATE}


def _card(sheet: Any, data: Any, kind: str, cells: Mapping[str, str], live: Live) -> None:
    """The card: choice and verdicts in the column of the names, sentence, charts and words right of it."""
    names = [column.name for column in sheet_columns(kind)]
    at = {name: get_column_letter(names.index(name) + 1) for name in names}
    in_sight = DATA_SHEETS[kind].in_sight
    left, end = at[in_sight[0]], at[names[-4]]
    row = CARD_TOP
    put(sheet, f"A{row}", "Plan shown here: choose one", "group")
    put(sheet, f"A{row + 1}", None, "input").alignment = Alignment("left", "center", indent=1, shrink_to_fit=True)
    border(sheet, f"A{row + 1}:A{row + 1}", bottom=("thin", RULE))
    choice = DataValidation("list", formula1=plan_names(kind), allow_blank=True, showErrorMessage=False)
    choice.add(f"A{row + 1}")
    sheet.add_data_validation(choice)
    put(sheet, f"A{row + 2}", f'=IFERROR({cells["trust"]}&"","")', "badge", live=live)
    in_colour(sheet, f"A{row + 2}", f'$A${row + 2}=""', MUTED, "FFFFFF")
    for words, colour in BADGES[1:3]:
        in_colour(sheet, f"A{row + 2}", f'$A${row + 2}="{words}"', "FFFFFF", colour)
    put(sheet, f"A{row + 3}", f'=IFERROR({cells["trust_reason"]}&"","")', "text", last=f"A{row + 5}", live=live)
    put(sheet, f"A{row + 6}", f"={VERDICT}", "verdict", live=live)
    in_colour(sheet, f"A{row + 6}", f'RIGHT($A${row + 6},2)<>"ok"', BAD_INK, BAD_FILL)
    words, cost = _SENTENCE[kind]
    priced = f'IF(ISNUMBER({cells[cost]}),{worded(_PRICED.format(cost), cells)},"")'
    none = f'IF($A${row + 1}="","Choose a plan of the table below","No plan of this name below")'
    wrong = f'IF({cells["name"]}="",{none},{cells["reason"]}&"")'
    fits = f'IF({cells["fits"]}=1,"","Does not fit in memory. ")'
    sentence = f"=IF({_is_wrong(kind, cells)},{wrong},{fits}&{worded(words, cells)}&{priced})"
    put(sheet, f"{left}{row}", sentence, "answer small", last=f"{end}{row}", live=live)
    bad = f'AND($A${row + 1}<>"",OR({_is_wrong(kind, cells)},{cells["fits"]}<>1))'
    in_colour(sheet, f"{left}{row}:{end}{row}", bad, BAD_INK, BAD_FILL)
    letters = letters_from(FIRST[kind], 8)
    middle, last, words_at = at[in_sight[3]], at[in_sight[-1]], at["trust"]
    edges = [get_column_letter(names.index(name)) for name in (in_sight[3], in_sight[-1], "trust")]
    words_end = get_column_letter(names.index("trust") + 3 - (kind == "inference"))
    unit = "s a step" if kind == "training" else "ms a decode step"
    for area, top, count, words, number, colours in (
        ((left, edges[0]), 2, len(TIME[kind]), f"Time by part ({unit})", "0.00", (BLUE, ORANGE)),
        ((middle, edges[1]), 12, len(MEMORY[kind]) + 2, "Memory by part (GiB)", "0.0", (SKY, GREY)),
        ((last, edges[2]), COST_TOP, len(COST), "Owner's cost by part ($/M tokens)", "0.000", (AMBER, GREY)),
    ):
        if top == COST_TOP:
            amounts = f"'{data.title}'!${letters[6]}${top + 1}:${letters[6]}${top + count}"
            words = f'=IF(SUM({amounts})=0,"Owner\'s cost: not on the sheet servers","{words}")'
        put(sheet, f"{area[0]}{row + 1}", words, "cell left", live=live)
        chart = bars(data, letters[5], (top, top + count), f"{letters[6]} {letters[7]}", colours, number, live, gap=25)
        for series in chart.series:
            label_values(series, "outEnd", INK)
        below, y = f"{area[0]}{row + 2}:{area[1]}{row + 6}", Axis(number=number, hidden=True)
        place(chart, sheet, below, Axis(size=8), y, (0.34, 0.02, 0.5, 0.96))
    for offset, words, name in ((1, "Folded: ", "stated"), (4, "Defaults: ", "defaults")):
        put(sheet, f"{words_at}{row + offset}", f'="{words}"&IF({cells[name]}="","none",{cells[name]})', "text",
            last=f"{words_end}{row + offset + 2}", live=live)  # fmt: skip


def _is_wrong(kind: str, cells: Mapping[str, str]) -> str:
    """Whether the plan has no result."""
    return f"NOT(ISNUMBER({cells[DATA_SHEETS[kind].results[0]]}))"
