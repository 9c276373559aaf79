"""The front sheet ``Compare``: two plans side by side, and their difference part by part, live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openpyxl.styles import Alignment
from openpyxl.workbook.defined_name import DefinedName
from openpyxl.worksheet.datavalidation import DataValidation

from xlperf.catalog.schema import PLAN_TABLES, results_of, table_schema
from xlperf.workbook.charts import label_values
from xlperf.workbook.data_sheets import column_reference, sheet_columns
from xlperf.workbook.front.formulas import Live
from xlperf.workbook.front.layout import (
    BLUE,
    SKY,
    Axis,
    answer,
    bars,
    border,
    heading,
    how_sure,
    page,
    place,
    put,
    texts,
    tiles,
)
from xlperf.workbook.front.plan_card import TIME, letters_from, pulled_cell
from xlperf.workbook.style import INK, NAVY, RULE

FIRST_CHOICE = ("Llama-3 70B, 64 H100, bf16", "Llama-3 70B, 64 B200, bf16")
"""Plans of the first comparison, if the workbook has them."""
SHOWN = 17
"""Settings that differ, at the most. [-]"""
_SPARE = 20
_BLOCK = {"training": "A", "inference": "F"}
"""First column of the numbers of a kind: header, plan A, header, plan B, settings that differ so far."""
_COST = {"training": "cost_per_million_tokens", "inference": "cost_per_million_output_tokens_all_in"}
_TIME = {"training": "step_time", "inference": "tpot"}
_MEMORY: Mapping[str, tuple[tuple[str, str], ...]] = {
    "training": (
        ("weights", "memory_weights"),
        ("gradients", "memory_gradients"),
        ("optimizer", "memory_optimizer"),
        ("activations", "memory_activations"),
        ("whole", "memory_reserved"),
    ),
    "inference": (
        ("weights", "memory_weights"),
        ("KV cache", "memory_kv_cache"),
        ("", ""),
        ("activations", "memory_activations"),
        ("whole", "memory"),
    ),
}
_WANTED = ("tokens_per_second_per_accelerator", "memory_capacity", "fits", "energy_per_token", "reason")
_LIST = "Z"
_MORE, _LESS = "F3B27A", "86D2B8"
"""Colours of steps of the waterfall, light below the dark words on them."""
ALL_PLANS = "all_plans"
"""Defined name of the names of all plans."""
Pair = tuple[str, str]


def compare_sheet(sheet: Any, data: Any, live: Live) -> None:
    """Fill the sheet, and the sheet that holds its numbers.

    ``sheet``, ``data``: changed in place. ``live``: writes formulas with their values.
    """
    page(sheet, "Which of two plans is better, and why?", live)
    put(sheet, "B3", "Choose two plans of the sheet training, or two of the sheet inference.", "subtitle")
    _form(sheet, data, live)
    chosen = tuple(f"'{sheet.title}'!$C${row}" for row in (6, 7))
    at = {kind: _numbers(data, kind, chosen, live) for kind in PLAN_TABLES}
    data["K1"].value = "what is compared"
    live.put(data["K2"], "kind")
    both = [f"AND({own['row'][0]}>0,{own['row'][1]}>0)" for own in at.values()]
    live.put(data["L2"], f'=IF({both[0]},"training",IF({both[1]},"inference",""))')
    r = _chosen(data, at, live)
    _parts(data, at, r, live)
    _settings(sheet, data, live)
    _answers(sheet, data, chosen, r, live)
    _charts(sheet, data, live)


def _form(sheet: Any, data: Any, live: Live) -> None:
    for row in range(5, 34):
        for letter in "BCD":
            put(sheet, f"{letter}{row}", None, "label")
    put(sheet, "B5", "PLANS", "group")
    names = [
        own for kind in PLAN_TABLES for own in live.columns[column_reference(table_schema(kind).columns[0])] if own
    ]
    first = FIRST_CHOICE if set(FIRST_CHOICE) <= set(names) else [*names[:2], None, None]
    for row, words, name in ((6, "plan A", first[0]), (7, "plan B", first[1])):
        put(sheet, f"B{row}", words, "label")
        entry = put(sheet, f"C{row}", None, "input", last=f"D{row}")
        entry.alignment = Alignment("left", "center", indent=1, shrink_to_fit=True)
        live.text(sheet[f"C{row}"], name)
        border(sheet, f"C{row}:D{row}", bottom=("thin", RULE))
    reference = f"'{data.title}'!${_LIST}$3:${_LIST}${_names(data, live)}"
    sheet.parent.defined_names[ALL_PLANS] = DefinedName(ALL_PLANS, attr_text=reference)
    choice = DataValidation("list", formula1=ALL_PLANS, showErrorMessage=False)
    choice.add("C6:C7")
    sheet.add_data_validation(choice)


def _names(data: Any, live: Live) -> int:
    """Names of all plans below each other, for the drop-downs; the last row."""
    data[f"{_LIST}1"].value = "names of plans"
    row = 2
    for kind in PLAN_TABLES:
        reference = column_reference(table_schema(kind).columns[0])
        count = sum(own is not None for own in live.columns[reference]) + _SPARE // 2
        for number in range(1, count + 1):
            row += 1
            live.put(data[f"{_LIST}{row}"], f'=IFERROR(INDEX({reference},{number})&"","")')
    return row


def _numbers(data: Any, kind: str, chosen: Sequence[str], live: Live) -> dict[str, Pair]:
    """Inputs and results of both plans, if they are of this kind; the cells of each by name."""
    first_head, first, second_head, second, differs = letters_from(_BLOCK[kind], 5)
    heads, values = (first_head, second_head), (first, second)
    data[f"{first_head}1"].value = f"{kind}: both plans"
    names = column_reference(table_schema(kind).columns[0])
    rows = {letter: f"${letter}$2" for letter in values}
    for head, letter, cell in zip(heads, values, chosen, strict=True):
        live.put(data[f"{head}2"], "row")
        live.put(data[f"{letter}2"], f"=IFERROR(MATCH({cell},{names},0),0)")
    data[f"{differs}1"].value = "differ so far"
    live.put(data[f"{differs}2"], 0)
    place = f"'{data.title}'!"
    by_name = {"row": (f"{place}{rows[first]}", f"{place}{rows[second]}")}
    inputs = [column for column in sheet_columns(kind) if not column.is_result]
    for row, column in enumerate(inputs, start=3):
        for head, letter in zip(heads, values, strict=True):
            live.put(data[f"{head}{row}"], column.header)
            live.put(data[f"{letter}{row}"], pulled_cell(column, rows[letter]))
        same = "1" if column.name == "name" else f"IF({first}{row}={second}{row},1,0)"
        live.put(data[f"{differs}{row}"], f"={differs}{row - 1}+1-{same}")
        data[f"{differs}{row}"].number_format = "0"
    last = len(inputs) + 2
    parts = [name for names in TIME[kind].values() for name in names]
    memory = [name for _, name in _MEMORY[kind] if name]
    own = {"training": ("mfu",), "inference": ("ttft", "prefill_share")}[kind]
    ends = [f"{_TIME[kind]}{end}" for end in ("", "_low", "_high")]
    wanted = {*_WANTED, *parts, *memory, *own, *ends, _COST[kind]}
    columns = [column for column in results_of(kind).columns if column.name in wanted]
    for row, column in enumerate(columns, start=last + 2):
        function = "CHECK" if column.name == "reason" else column.name.upper()
        for head, letter in zip(heads, values, strict=True):
            live.put(data[f"{head}{row}"], column.header)
            card = f"${head}$3:${letter}${last}"
            live.put(data[f"{letter}{row}"], f'=IF({rows[letter]}=0,"",XLPERF_{function}({card},catalog))')
        by_name[column.name] = (f"{place}${first}${row}", f"{place}${second}${row}")
    return by_name


def _chosen(data: Any, at: Mapping[str, Mapping[str, Pair]], live: Live) -> dict[str, Pair]:
    """Results that both kinds of plan have, of the chosen kind; from row 3 of column K on, plans in L and M."""
    names = {
        "rate": ("token/s per accelerator", "tokens_per_second_per_accelerator", "tokens_per_second_per_accelerator"),
        "cost": ("USD per million tokens", _COST["training"], _COST["inference"]),
        "time": ("step time (s) or time per token (ms)", "step_time", "tpot"),
        "low": ("lower end of its band", "step_time_low", "tpot_low"),
        "high": ("upper end of its band", "step_time_high", "tpot_high"),
        "memory": ("memory (GiB)", "memory_reserved", "memory"),
        "energy": ("energy of a token (J)", "energy_per_token", "energy_per_token"),
        "reason": ("reason", "reason", "reason"),
    }
    by_name = {}
    for row, (name, (words, training, inference)) in enumerate(names.items(), start=3):
        live.put(data[f"K{row}"], words)
        for which, letter in enumerate("LM"):
            pair = at["training"][training][which], at["inference"][inference][which]
            live.put(data[f"{letter}{row}"], f'=IF($L$2="","",IF($L$2="training",{pair[0]},{pair[1]}))')
        by_name[name] = (f"'{data.title}'!$L${row}", f"'{data.title}'!$M${row}")
    return by_name


def _parts(data: Any, at: Mapping[str, Mapping[str, Pair]], r: Mapping[str, Pair], live: Live) -> None:
    """Milliseconds of an accelerator per token by part, from row 14 on; their sum; memory, from row 27 on.

    Columns N and O: plans; P: change; Q to T: cells of a waterfall from one plan to the other.
    """
    live.row(data, "KLMNOPQRS", 13, ("part", "A", "B", "change", "size", "below", "plan", "more", "less"))
    training, inference = (at[kind] for kind in PLAN_TABLES)
    shares = [
        [f"({'+'.join(training[name][which] for name in names)})/{training['step_time'][which]}" for which in (0, 1)]
        for names in TIME["training"].values()
    ]
    decode = ["+".join(inference[name][which] for names in TIME["inference"].values() for name in names)
              for which in (0, 1)]  # fmt: skip
    served = [[inference["prefill_share"][which] for which in (0, 1)]]
    served += [
        [f"(1-{inference['prefill_share'][which]})*{inference[names[0]][which]}/({decode[which]})" for which in (0, 1)]
        for names in TIME["inference"].values()
    ]
    labels = zip(TIME["training"], ("prompts", *TIME["inference"]), strict=True)
    live.row(data, "KPQRS", 14, ("A", 0, f"=IFERROR(1000/{r['rate'][0]},0)", 0, 0))
    for row, (names, own, other) in enumerate(zip(labels, shares, served, strict=True), start=15):
        live.put(data[f"K{row}"], f'=IF($L$2="inference","{names[1]}","{names[0]}")')
        for letter, which in (("L", 0), ("M", 1)):
            share = f'IF($L$2="training",{own[which]},{other[which]})'
            live.put(data[f"{letter}{row}"], f"=IFERROR({share}*1000/{r['rate'][which]},0)")
        before = "$Q$14" if row == 15 else f"$Q$14+SUM($N$15:$N{row - 1})"
        below = f"=MAX(MIN({before},{before}+N{row}),0)"
        steps = (f"=M{row}-L{row}", f"=ABS(N{row})", below, 0, f"=MAX(N{row},0)", f"=MAX(-N{row},0)")
        live.row(data, "NOPQRS", row, steps)
    live.row(data, "KPQRS", 15 + len(shares), ("B", 0, f"=IFERROR(1000/{r['rate'][1]},0)", 0, 0))
    live.row(data, "KLM", 26, ("memory (GiB)", "A", "B"))
    for row, (trained, kept) in enumerate(zip(_MEMORY["training"], _MEMORY["inference"], strict=True), start=27):
        live.put(data[f"K{row}"], f'=IF($L$2="inference","{kept[0]}","{trained[0]}")')
        for letter, which in (("L", 0), ("M", 1)):
            served_size = inference[kept[1]][which] if kept[1] else "0"
            size = f'IF($L$2="training",{training[trained[1]][which]},{served_size})'
            live.put(data[f"{letter}{row}"], f"=IFERROR({size}*1,0)")


def _settings(sheet: Any, data: Any, live: Live) -> None:
    """Differing settings of the chosen kind, below the choice."""
    put(sheet, "B9", "SETTINGS THAT DIFFER", "group")
    for letter, words in (("C", "A"), ("D", "B")):
        put(sheet, f"{letter}9", words, "group")
    place = f"'{data.title}'!"
    for number in range(1, SHOWN + 1):
        row = 9 + number
        for letter, offset in (("B", 0), ("C", 1), ("D", 3)):
            pulled = {}
            for kind in PLAN_TABLES:
                letters = letters_from(_BLOCK[kind], 5)
                last = 2 + sum(not column.is_result for column in sheet_columns(kind))
                counted = f"{place}${letters[4]}$3:${letters[4]}${last}"
                shown = f"{place}${letters[offset]}$3:${letters[offset]}${last}"
                pulled[kind] = f"INDEX({shown},MATCH({number},{counted},0))"
            both = f'IF({place}$L$2="training",{pulled["training"]},{pulled["inference"]})'
            look = "label" if letter == "B" else "chosen"
            put(sheet, f"{letter}{row}", f'=IFERROR({both}&"","")', look, live=live)


def _answers(sheet: Any, data: Any, chosen: Sequence[str], r: Mapping[str, Pair], live: Live) -> None:
    kind, (rate, other) = f"'{data.title}'!$L$2", r["rate"]
    sizes, changes, names = (f"'{data.title}'!${letter}$15:${letter}$20" for letter in "ONK")
    at = f"MATCH(MAX({sizes}),{sizes},0)"
    most = f'INDEX({names},{at})&" ("&TEXT(INDEX({sizes},{at}),"0.000")&" ms of an accelerator per token "'
    way = f'IF(INDEX({changes},{at})<0,"less)","more)")'
    result = (
        f'{chosen[1]}&" yields "&TEXT({other}/{rate},"0.00")&"× the tokens per accelerator of "&{chosen[0]}'
        f'&"; the largest part: "&{most}&{way}&"."'
    )
    no = [f'IF(ISNUMBER({cell}),"",{name}&": "&{why}&" ")'
          for cell, name, why in zip(r["rate"], chosen, r["reason"], strict=True)]  # fmt: skip
    named = sheet.parent.defined_names[ALL_PLANS].attr_text
    lost = [f'IF(COUNTIF({named},{cell})=0,"no plan is named """&{cell}&"""; ","")' for cell in chosen]
    wrong = f'"No answer: "&IF({kind}="",{lost[0]}&{lost[1]}&"choose two plans of one sheet",{no[0]}&{no[1]})'
    answer(sheet, f"=IF(AND(ISNUMBER({rate}),ISNUMBER({other})),{result},{wrong})", live)
    per = f'IF({kind}="training","s a step","ms a token")'

    def held_against(name: str, code: str, unit: str = "") -> str:
        return f'"A: "&TEXT({r[name][0]}*1,"{code}")&"{unit}"'

    tiles(
        sheet,
        (
            ("B over A, token/s", f"{other}/{rate}", '0.00"×"', '"per accelerator"'),
            ("B: token/s each", other, "#,##0", held_against("rate", "#,##0")),
            ("B: $ per M tokens", r["cost"][1], '"$"0.00', held_against("cost", "0.00")),
            ("B: time", r["time"][1], "#,##0.0", f"{held_against('time', '#,##0.0', ' ')}&{per}"),
            ("B: memory (GiB)", r["memory"][1], "0.0", held_against("memory", "0.0")),
            ("B: energy (J a token)", r["energy"][1], "0.00", held_against("energy", "0.00")),
        ),
        live,
    )
    far = f"OR({r['low'][1]}>{r['high'][0]},{r['high'][1]}<{r['low'][0]})"
    sure = f'IF(AND(ISNUMBER({rate}),ISNUMBER({other})),IF({far},"CLEAR","BANDS OVERLAP"),NA())'
    bands = [f'"{word}: "&TEXT({r["low"][which]}*1,"#,##0.00")&" to "&TEXT({r["high"][which]}*1,"#,##0.00")'
             for which, word in enumerate("AB")]  # fmt: skip
    told = f'"80 % bands: "&{bands[0]}&"; "&{bands[1]}&" "&{per}'
    how_sure(sheet, 29, sure, (told, '"an error that both share leaves their order as it is"'), live)
    notes = (
        '"A part: its share of the step, over the tokens per second of one accelerator; all parts add up to the whole"',
        '"Serving: output tokens; prompts are part of what a token takes"',
    )
    texts(sheet, 29, "How it is compared", notes, live)


def _charts(sheet: Any, data: Any, live: Live) -> None:
    heading(sheet, "F13", "From A to B: milliseconds of an accelerator per token", "K", live)
    chart: Any = bars(data, "K", (13, 21), "P Q R S", ("", NAVY, _MORE, _LESS), "0.000", live, lying=False, gap=25,
                      stacked=True)  # fmt: skip
    for letter, sign in (("R", "+"), ("S", "\N{MINUS SIGN}")):  # steps with their sign; none where nothing changes
        for row in range(14, 22):
            data[f"{letter}{row}"].number_format = f'[<0.0005]"";"{sign}"0.000'
    for number, series in enumerate(chart.series[1:]):
        label_values(series, "ctr" if number else "inEnd", INK if number else "FFFFFF")
    place(chart, sheet, "F14:K27", Axis(size=7), Axis(number="0.000", hidden=True), (0.02, 0.03, 0.96, 0.82))
    heading(sheet, "M13", "Memory of the fullest accelerator (GiB)", "R", live)
    chart = bars(data, "K", (26, 31), "L M", (SKY, BLUE), "0.0", live, gap=35)
    chart.overlap = 0
    for series in chart.series:
        label_values(series, "outEnd", INK)
    place(chart, sheet, "M14:R27", Axis(), Axis(number="0", hidden=True), (0.20, 0.02, 0.70, 0.86), "b")
