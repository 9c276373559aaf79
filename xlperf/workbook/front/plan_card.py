"""Cards above the sheets of plans, and the sheet ``Compare``: one plan, or two side by side, part by part, live."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from openpyxl.styles import Alignment
from openpyxl.utils import column_index_from_string, get_column_letter
from openpyxl.workbook.defined_name import DefinedName

from xlperf.base import resources
from xlperf.catalog.schema import PLAN_TABLES, Column, results_of, table_schema
from xlperf.workbook.charts import label_values
from xlperf.workbook.data_sheets import CARD_TOP, DATA_SHEETS, VERDICT, column_reference, plan_names, sheet_columns
from xlperf.workbook.front.formulas import Live, worded
from xlperf.workbook.front.layout import AMBER, BADGES, BLUE, GREY, ORANGE, SKY, Axis, Page
from xlperf.workbook.style import BAD_FILL, BAD_INK, INK, MUTED, NAVY, drop_down

NUMBERS = "calc plans"
"""Sheet that holds the numbers of the cards."""
FIRST = {"training": "A", "inference": "L"}
"""First column of the numbers of a card, by kind."""
Parts = Mapping[str, tuple[str, ...]]


def _parts_of(sheet: str, chart: str) -> Parts:
    """Parts of a chart of plan_parts.csv, each the sum of some results."""
    rows = resources.rows("workbook/plan_parts.csv")
    return {
        row["part"]: tuple(row["results"].split()) for row in rows if (row["sheet"], row["chart"]) == (sheet, chart)
    }


TIME = {kind: _parts_of(kind, "time") for kind in FIRST}
"""Parts of a training step or of a decode step."""
MEMORY = {kind: _parts_of(kind, "memory") for kind in FIRST}
"""Parts of memory; reserved and free memory follow them."""
COST = _parts_of("servers", "cost")
"""Parts of the cost of a million tokens to an owner, each a column of the sheet servers: USD an hour of use."""
_RATE = "tokens_per_second_per_accelerator"
_COMMUNICATION = ("tensor, context, experts", "pipeline", "data parallel", "communication")
_CARDS = {row["sheet"]: row for row in resources.rows("workbook/plan_cards.csv")}
"""Sentence of a card, the cost that it adds if known, columns whose default it names if blank, and used memory."""
_PRICED = ", ${{{}:0.000}} per million tokens ({{cost_basis}})"


def plan_cards(book: Any, data: Any, live: Live) -> None:
    """Fill the cards above the sheets of plans of a book, and the sheet that holds their numbers."""
    for kind, first in FIRST.items():
        page = Page(book[kind], data, live)
        chosen = f"'{kind}'!$A${CARD_TOP + 1}"
        live.text(page.sheet[f"A{CARD_TOP + 1}"], _first_shown(live, kind))
        cells = plan_numbers(page, kind, first, chosen)
        _card(page, kind, cells)


def _first_shown(live: Live, kind: str) -> Any:
    """Name of the first plan whose accelerator the sheet servers knows, so that all charts are full; else the first."""
    own = table_schema(kind).by_name
    names, machines = (live.columns[column_reference(own[name])] for name in ("name", "accelerator"))
    known = set(live.columns[column_reference(table_schema("servers").by_name["accelerator"])]) - {None}
    return next((name for name, machine in zip(names, machines, strict=True) if machine in known), names[0])


def letters_from(first: str, count: int) -> list[str]:
    """So many column letters from one on."""
    start = column_index_from_string(first)
    return [get_column_letter(start + offset) for offset in range(count)]


def pulled_cell(column: Column, row: str) -> str:
    """Formula of a cell of a table, in the row that a cell holds: blank if it is blank or the row is 0."""
    result = f"INDEX({column_reference(column)},{row})"
    return f'=IF({row}=0,"",IF({result}="","",{result}))'


def _inputs(kind: str) -> list[Column]:
    return [column for column in sheet_columns(kind) if not column.is_result]


def _pulled(page: Page, kind: str, at: tuple[str, str], chosen: str, wanted: Container[str]) -> dict[str, str]:
    """Inputs and wanted results of the plan whose name is in a cell, in two columns; cells by name."""
    head, value = at
    names = column_reference(table_schema(kind).columns[0])
    page.row(at, 2, ("row", f"=IFERROR(MATCH({chosen},{names},0),0)"))
    row_cell, cells = f"${value}$2", {"row": f"{page.source}${value}$2"}
    inputs = _inputs(kind)
    for row, column in enumerate(inputs, start=3):
        page.row(at, row, (column.header, pulled_cell(column, row_cell)))
        cells[column.name] = f"{page.source}${value}${row}"
    card = f"${head}$3:${value}${len(inputs) + 2}"
    results = [column for column in results_of(kind).columns if column.name in wanted]
    for row, column in enumerate(results, start=len(inputs) + 4):
        function = "CHECK" if column.name == "reason" else column.name.upper()
        page.row(at, row, (column.header, f'=IF({row_cell}=0,"",XLPERF_{function}({card},catalog))'))
        cells[column.name] = f"{page.source}${value}${row}"
    return cells


def plan_numbers(page: Page, kind: str, first: str, chosen: str) -> dict[str, str]:
    """Inputs and results of the plan whose name is in a cell; the cell of each, by name.

    In columns from ``first`` on: header, value, further stated inputs so far, default, defaults so far; right of them
    the parts of time and memory for charts.
    """
    head, value, stated, default, defaults, part, plain, special = letters_from(first, 8)
    page.calc(f"{head}1", f"{kind}: the plan in the card")
    cells = _pulled(page, kind, (head, value), chosen, _wanted(kind))
    in_sight, last = ("name", *DATA_SHEETS[kind].in_sight), len(_inputs(kind)) + 2
    for row, column in enumerate(_inputs(kind), start=3):
        own = f'IF(${value}{row}="","",IF({stated}{row - 1}="","",", ")&${head}{row}&" "&${value}{row})'
        before = f"{stated}{row - 1}" if row > 3 else '""'
        page.calc(f"{stated}{row}", f"={before}" if column.name in in_sight else f"={before}&{own}")
        shown = column.default if column.name in _CARDS[kind]["defaults"].split() else ""
        page.calc(f"{default}{row}", shown or None)
        own = f'IF(${value}{row}="",IF({defaults}{row - 1}="","",", ")&${head}{row}&" "&${default}{row},"")'
        before = f"{defaults}{row - 1}" if row > 3 else '""'
        page.calc(f"{defaults}{row}", f"={before}&{own}" if shown else f"={before}")
    cells |= {"stated": f"{page.source}${stated}${last}", "defaults": f"{page.source}${defaults}${last}"}
    bars_of = part, plain, special
    page.row(bars_of, 2, ("time", "computing", "communication"))
    for row, (words, names) in enumerate(TIME[kind].items(), start=3):
        summed = f"=IFERROR({'+'.join(cells[name] for name in names)},NA())"
        page.row(bars_of, row, (words, None, summed) if words in _COMMUNICATION else (words, summed, None))
    page.row(bars_of, 12, ("memory", "used", "free"))
    memory = {words: "+".join(cells[name] for name in names) for words, names in MEMORY[kind].items()}
    used = cells[_CARDS[kind]["used"]]
    memory["reserved beside"] = f"MAX({used}-({'+'.join(memory.values())}),0)"
    memory["free"] = f"MAX({cells['memory_capacity']}-{used},0)"
    for row, (words, formula) in enumerate(memory.items(), start=13):
        amount = f"=IFERROR({formula},NA())"
        page.row(bars_of, row, (words, None, amount) if words == "free" else (words, amount, None))
    _cost_numbers(page, cells, bars_of)
    return cells


COST_TOP = 22
"""Row of the header of the parts of cost, below the parts of time and memory."""


def _cost_numbers(page: Page, cells: Mapping[str, str], letters: tuple[str, str, str]) -> None:
    """Cost of a million tokens by part to an owner: the hour of the first server of the accelerator, over its rate."""
    page.row(letters, COST_TOP, ("cost", "USD per million tokens", "none"))
    owner = table_schema("servers").by_name["accelerator"]
    row = f"MATCH({cells['accelerator']},{column_reference(owner)},0)"
    owned = "servers" in page.data.parent.sheetnames
    for at, (words, names) in enumerate(COST.items(), start=COST_TOP + 1):
        columns = [column_reference(results_of("servers").by_name[name]) for name in names]
        hour = "+".join(f"INDEX({column},{row})" for column in columns)
        page.row(letters, at, (words, f"=IFERROR(({hour})/({cells[_RATE]}*0.0036),NA())" if owned else None, None))


def _wanted(kind: str) -> set[str]:
    parts: Sequence[Parts] = (TIME[kind], MEMORY[kind])
    names = {name for own in parts for result in own.values() for name in result}
    return (
        names
        | set(DATA_SHEETS[kind].results)
        | {_CARDS[kind]["used"], "memory_capacity", "trust_reason", "cost_basis", _RATE}
    )


def _card(page: Page, kind: str, cells: Mapping[str, str]) -> None:
    """The card: choice and verdicts in the column of the names, sentence, charts and words right of it."""
    names = [column.name for column in sheet_columns(kind)]
    at = {name: get_column_letter(names.index(name) + 1) for name in names}
    in_sight = DATA_SHEETS[kind].in_sight
    left, end = at[in_sight[0]], at["trust"]
    row = CARD_TOP
    page.put(f"A{row}", "Plan shown here: choose one", "group")
    page.put(f"A{row + 1}", None, "input").alignment = Alignment("left", "center", indent=1, shrink_to_fit=True)
    page.rule(f"A{row + 1}:A{row + 1}", "bottom", "thin")
    drop_down(page.sheet, f"A{row + 1}", plan_names(kind), allow_blank=True, showErrorMessage=False)
    page.put(f"A{row + 2}", f'=IFERROR({cells["trust"]}&"","")', "badge")
    page.in_colour(f"A{row + 2}", f'$A${row + 2}=""', MUTED, "FFFFFF")
    for words, colour in BADGES:
        page.in_colour(f"A{row + 2}", f'$A${row + 2}="{words}"', "FFFFFF", colour)
    page.put(f"A{row + 3}", f'=IFERROR({cells["trust_reason"]}&"","")', "text", last=f"A{row + 5}")
    page.put(f"A{row + 6}", f"={VERDICT}", "verdict")
    page.in_colour(f"A{row + 6}", f'RIGHT($A${row + 6},2)<>"ok"', BAD_INK, BAD_FILL)
    words, cost = _CARDS[kind]["sentence"], _CARDS[kind]["cost"]
    priced = f'IF(ISNUMBER({cells[cost]}),{worded(_PRICED.format(cost), cells)},"")'
    none = f'IF($A${row + 1}="","Choose a plan of the table below","No plan of this name below")'
    wrong = f'IF({cells["name"]}="",{none},{cells["reason"]}&"")'
    fits = f'IF({cells["fits"]}=1,"","Does not fit in memory. ")'
    sentence = f"=IF({_is_wrong(kind, cells)},{wrong},{fits}&{worded(words, cells)}&{priced})"
    page.put(f"{left}{row}", sentence, "answer small", last=f"{end}{row}")
    bad = f'AND($A${row + 1}<>"",OR({_is_wrong(kind, cells)},{cells["fits"]}<>1))'
    page.in_colour(f"{left}{row}:{end}{row}", bad, BAD_INK, BAD_FILL)
    letters = letters_from(FIRST[kind], 8)
    words_from = names[names.index("trust") - 1]  # words end with the column of the badge, which a window shows
    middle, last, words_at, words_end = at[in_sight[3]], at[in_sight[-2]], at[words_from], at["trust"]
    edges = [get_column_letter(names.index(name)) for name in (in_sight[3], in_sight[-2], words_from)]
    unit = "s a step" if kind == "training" else "ms a decode step"
    for area, top, count, words, number, colours in (
        ((left, edges[0]), 2, len(TIME[kind]), f"Time by part ({unit})", "0.00", (BLUE, ORANGE)),
        ((middle, edges[1]), 12, len(MEMORY[kind]) + 2, "Memory by part (GiB)", "0.0", (SKY, GREY)),
        ((last, edges[2]), COST_TOP, len(COST), "Owner's cost with a cluster's network ($/M)", "0.000", (AMBER, GREY)),
    ):
        if top == COST_TOP:
            amounts = f"{page.source}${letters[6]}${top + 1}:${letters[6]}${top + count}"
            words = f'=IF(COUNT({amounts})=0,"Owner\'s cost: not on the sheet servers","{words}")'
        page.put(f"{area[0]}{row + 1}", words, "cell left")
        chart = page.bars(
            letters[5], (top, top + count), f"{letters[6]} {letters[7]}", colours, number, gap=25, zeros=True
        )
        for series in chart.series:
            label_values(series, "outEnd", INK)
        below, y = f"{area[0]}{row + 2}:{area[1]}{row + 6}", Axis(number=number, hidden=True)
        page.place(chart, below, Axis(size=8), y, (0.34, 0.02, 0.5, 0.96))
    for offset, words, name in ((1, "Folded: ", "stated"), (4, "Defaults: ", "defaults")):
        page.put(
            f"{words_at}{row + offset}",
            f'="{words}"&IF({cells[name]}="","none",{cells[name]})',
            "small text",
            last=f"{words_end}{row + offset + 2}",
        )


def _is_wrong(kind: str, cells: Mapping[str, str]) -> str:
    """Whether the plan has no result."""
    return f"NOT(ISNUMBER({cells[DATA_SHEETS[kind].results[0]]}))"


FIRST_CHOICE = ("Llama-3 70B, 64 H100, bf16", "Llama-3 70B, 64 B200, bf16")
"""Plans of the first comparison, if the workbook has them."""
SHOWN = 17
"""Settings that differ, at the most. [-]"""
_SPARE = 20
_BLOCK = {"training": "A", "inference": "F"}
"""First column of the numbers of a kind: header, plan A, header, plan B, settings that differ so far."""
_TIME = {"training": "step_time", "inference": "tpot"}
_WANTED = ("tokens_per_second_per_accelerator", "memory_capacity", "fits", "energy_per_token", "reason")
_LIST = "Z"
_MORE, _LESS = "F3B27A", "86D2B8"
"""Colours of steps of the waterfall, light below the dark words on them."""
ALL_PLANS = "all_plans"
"""Defined name of the names of all plans."""
Pair = tuple[str, str]


def compare_sheet(page: Page) -> None:
    """Fill the sheet, and the sheet that holds its numbers."""
    page.fill("Which of two plans is better, and why?")
    page.put("B3", "Choose two plans of the sheet training, or two of the sheet inference.", "subtitle")
    _form(page)
    chosen = tuple(f"'{page.sheet.title}'!$C${row}" for row in (6, 7))
    at = {kind: _numbers(page, kind, chosen) for kind in PLAN_TABLES}
    page.calc("K1", "what is compared")
    page.calc("K2", "kind")
    both = [f"AND({own['row'][0]}>0,{own['row'][1]}>0)" for own in at.values()]
    page.calc("L2", f'=IF({both[0]},"training",IF({both[1]},"inference",""))')
    r = _chosen(page, at)
    _parts(page, at, r)
    _settings(page)
    _answers(page, chosen, r)
    _charts(page)


def _form(page: Page) -> None:
    for row in range(5, 34):
        for letter in "BCD":
            page.put(f"{letter}{row}", None, "label")
    page.put("B5", "PLANS", "group")
    known = {
        kind: [page.live.columns[column_reference(table_schema(kind).by_name[name])] for name in ("name", "model")]
        for kind in PLAN_TABLES
    }
    plans = [(kind, model, name) for kind, own in known.items() for name, model in zip(*own, strict=True) if name]
    names = [name for _, _, name in plans]
    alike = [[one, other] for *of, one in plans for *also, other in plans if of == also and one != other]
    first = FIRST_CHOICE if set(FIRST_CHOICE) <= set(names) else [*alike, [*names[:2], None, None]][0]
    for row, words, name in ((6, "plan A", first[0]), (7, "plan B", first[1])):
        page.put(f"B{row}", words, "label")
        entry = page.put(f"C{row}", None, "input", last=f"D{row}")
        entry.alignment = Alignment("left", "center", indent=1, shrink_to_fit=True)
        page.live.text(page.sheet[f"C{row}"], name)
        page.rule(f"C{row}:D{row}", "bottom", "thin")
    reference = f"{page.source}${_LIST}$3:${_LIST}${_names(page)}"
    page.sheet.parent.defined_names[ALL_PLANS] = DefinedName(ALL_PLANS, attr_text=reference)
    drop_down(page.sheet, "C6:C7", ALL_PLANS, showErrorMessage=False)


def _names(page: Page) -> int:
    """Names of all plans below each other, for the drop-downs; the last row."""
    page.calc(f"{_LIST}1", "names of plans")
    row = 2
    for kind in PLAN_TABLES:
        reference = column_reference(table_schema(kind).columns[0])
        count = sum(own is not None for own in page.live.columns[reference]) + _SPARE // 2
        for number in range(1, count + 1):
            row += 1
            page.calc(f"{_LIST}{row}", f'=IFERROR(INDEX({reference},{number})&"","")')
    return row


def _compared_memory(kind: str) -> list[tuple[str, str]]:
    """Parts of memory with their results, and the whole; as many for both kinds, blank last for the missing one."""
    parts = [(words, name) for words, (name,) in MEMORY[kind].items()]
    missing = [("", "")] * (max(map(len, MEMORY.values())) - len(parts))
    return [*parts, ("whole", _CARDS[kind]["used"]), *missing]


def _numbers(page: Page, kind: str, chosen: Sequence[str]) -> dict[str, Pair]:
    """Inputs and results of both plans, if they are of this kind; the cells of each by name."""
    first_head, first, second_head, second, differs = letters_from(_BLOCK[kind], 5)
    page.calc(f"{first_head}1", f"{kind}: both plans")
    parts = [name for names in TIME[kind].values() for name in names]
    memory = [name for _, name in _compared_memory(kind) if name]
    own = {"training": ("mfu",), "inference": ("ttft", "prefill_share")}[kind]
    ends = [f"{_TIME[kind]}{end}" for end in ("", "_low", "_high")]
    wanted = {*_WANTED, *parts, *memory, *own, *ends, _CARDS[kind]["cost"]}
    columns = (first_head, first), (second_head, second)
    cells = [_pulled(page, kind, at, name, wanted) for at, name in zip(columns, chosen, strict=True)]
    page.calc(f"{differs}1", "differ so far")
    page.calc(f"{differs}2", 0)
    for row, column in enumerate(_inputs(kind), start=3):
        same = "1" if column.name == "name" else f"IF({first}{row}={second}{row},1,0)"
        page.calc(f"{differs}{row}", f"={differs}{row - 1}+1-{same}")
        page.data[f"{differs}{row}"].number_format = "0"
    return {name: (cells[0][name], cells[1][name]) for name in cells[0]}


def _chosen(page: Page, at: Mapping[str, Mapping[str, Pair]]) -> dict[str, Pair]:
    """Results that both kinds of plan have, of the chosen kind; from row 3 of column K on, plans in L and M."""
    names = {
        "rate": ("token/s per accelerator", "tokens_per_second_per_accelerator", "tokens_per_second_per_accelerator"),
        "cost": ("USD per million tokens", *(card["cost"] for card in _CARDS.values())),
        "time": ("step time (s) or time per token (ms)", "step_time", "tpot"),
        "low": ("lower end of its band", "step_time_low", "tpot_low"),
        "high": ("upper end of its band", "step_time_high", "tpot_high"),
        "memory": ("memory (GiB)", "memory_reserved", "memory"),
        "energy": ("energy of a token (J)", "energy_per_token", "energy_per_token"),
        "reason": ("reason", "reason", "reason"),
    }
    by_name = {}
    for row, (name, (words, training, inference)) in enumerate(names.items(), start=3):
        page.calc(f"K{row}", words)
        for which, letter in enumerate("LM"):
            pair = at["training"][training][which], at["inference"][inference][which]
            page.calc(f"{letter}{row}", f'=IF($L$2="","",IF($L$2="training",{pair[0]},{pair[1]}))')
        by_name[name] = (f"{page.source}$L${row}", f"{page.source}$M${row}")
    return by_name


def _parts(page: Page, at: Mapping[str, Mapping[str, Pair]], r: Mapping[str, Pair]) -> None:
    """Milliseconds of an accelerator per token by part, from row 14 on; their sum; memory, from row 27 on.

    Columns N and O: plans; P: change; Q to T: cells of a waterfall from one plan to the other.
    """
    page.row("KLMNOPQRS", 13, ("part", "A", "B", "change", "size", "below", "plan", "more", "less"))
    training, inference = (at[kind] for kind in PLAN_TABLES)
    shares = [
        [f"({'+'.join(training[name][which] for name in names)})/{training['step_time'][which]}" for which in (0, 1)]
        for names in TIME["training"].values()
    ]
    decode = [
        "+".join(inference[name][which] for names in TIME["inference"].values() for name in names) for which in (0, 1)
    ]
    served = [[inference["prefill_share"][which] for which in (0, 1)]]
    served += [
        [f"(1-{inference['prefill_share'][which]})*{inference[names[0]][which]}/({decode[which]})" for which in (0, 1)]
        for names in TIME["inference"].values()
    ]
    labels = zip(TIME["training"], ("prompts", *TIME["inference"]), strict=True)
    page.row("KPQRS", 14, ("A", 0, f"=IFERROR(1000/{r['rate'][0]},0)", None, None))
    for row, (names, own, other) in enumerate(zip(labels, shares, served, strict=True), start=15):
        page.calc(f"K{row}", f'=IF($L$2="inference","{names[1]}","{names[0]}")')
        for letter, which in (("L", 0), ("M", 1)):
            share = f'IF($L$2="training",{own[which]},{other[which]})'
            page.calc(f"{letter}{row}", f"=IFERROR({share}*1000/{r['rate'][which]},0)")
        before = "$Q$14" if row == 15 else f"$Q$14+SUM($N$15:$N{row - 1})"
        below = f"=MAX(MIN({before},{before}+N{row}),0)"
        more, less = f"=IF(N{row}>-0.0005,MAX(N{row},0),NA())", f"=IF(N{row}>-0.0005,NA(),-N{row})"
        steps = (f"=M{row}-L{row}", f"=ABS(N{row})", below, 0, more, less)
        page.row("NOPQRS", row, steps)
    page.row("KPQRS", 15 + len(shares), ("B", 0, f"=IFERROR(1000/{r['rate'][1]},0)", None, None))
    page.row("KLM", 26, ("memory (GiB)", "A", "B"))
    for row, (trained, kept) in enumerate(zip(*map(_compared_memory, PLAN_TABLES), strict=True), start=27):
        page.calc(f"K{row}", f'=IF($L$2="inference","{kept[0]}","{trained[0]}")')
        for letter, which in (("L", 0), ("M", 1)):
            served_size = inference[kept[1]][which] if kept[1] else "0"
            size = f'IF($L$2="training",{training[trained[1]][which]},{served_size})'
            page.calc(f"{letter}{row}", f"=IFERROR({size}*1,0)")


def _settings(page: Page) -> None:
    """Differing settings of the chosen kind, below the choice."""
    page.put("B9", "SETTINGS THAT DIFFER", "group")
    for letter, words in (("C", "A"), ("D", "B")):
        page.put(f"{letter}9", words, "group")
    place = page.source
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
            page.put(f"{letter}{row}", f'=IFERROR({both}&"","")', look)


def _answers(page: Page, chosen: Sequence[str], r: Mapping[str, Pair]) -> None:
    kind, (rate, other) = f"{page.source}$L$2", r["rate"]
    sizes, changes, names = (f"{page.source}${letter}$15:${letter}$20" for letter in "ONK")
    at = f"MATCH(MAX({sizes}),{sizes},0)"
    most = f'INDEX({names},{at})&" ("&TEXT(INDEX({sizes},{at}),"0.000")&" ms of an accelerator per token "'
    way = f'IF(INDEX({changes},{at})<0,"less)","more)")'
    result = (
        f'{chosen[1]}&" yields "&TEXT({other}/{rate},"0.00")&"× the tokens per accelerator of "&{chosen[0]}'
        f'&"; the largest part: "&{most}&{way}&"."'
    )
    no = [
        f'IF(ISNUMBER({cell}),"",{name}&": "&{why}&" ")'
        for cell, name, why in zip(r["rate"], chosen, r["reason"], strict=True)
    ]
    named = page.sheet.parent.defined_names[ALL_PLANS].attr_text
    lost = [f'IF(COUNTIF({named},{cell})=0,"no plan is named """&{cell}&"""; ","")' for cell in chosen]
    wrong = f'"No answer: "&IF({kind}="",{lost[0]}&{lost[1]}&"choose two plans of one sheet",{no[0]}&{no[1]})'
    page.answer(f"=IF(AND(ISNUMBER({rate}),ISNUMBER({other})),{result},{wrong})")
    per = f'IF({kind}="training","s a step","ms a token")'

    def held_against(name: str, code: str, unit: str = "") -> str:
        return f'"A: {unit}"&TEXT({r[name][0]}*1,"{code}")'

    page.tiles(
        (
            ("B over A, token/s", f"{other}/{rate}", '0.00"×"', '"per accelerator"'),
            ("B: token/s each", other, "#,##0", held_against("rate", "#,##0")),
            ("B: $/M tokens", r["cost"][1], '"$"0.00', held_against("cost", "0.00", "$")),
            (f'="B: "&{per}', r["time"][1], "#,##0.0", held_against("time", "#,##0.0")),
            ("B: memory (GiB)", r["memory"][1], "0.0", held_against("memory", "0.0")),
            ("B: energy (J/token)", r["energy"][1], "0.00", held_against("energy", "0.00")),
        )
    )
    far = f"OR({r['low'][1]}>{r['high'][0]},{r['high'][1]}<{r['low'][0]})"
    sure = f'IF(AND(ISNUMBER({rate}),ISNUMBER({other})),IF({far},"CLEAR","BANDS OVERLAP"),NA())'
    bands = [
        f'"{word}: "&TEXT({r["low"][which]}*1,"#,##0.00")&" to "&TEXT({r["high"][which]}*1,"#,##0.00")'
        for which, word in enumerate("AB")
    ]
    told = f'"80 % bands: "&{bands[0]}&"; "&{bands[1]}&" "&{per}'
    page.how_sure(sure, (told, '""', '"An error that both share leaves their order as it is"'))
    notes = (
        '"A part: its share of the step, over the tokens per second of one accelerator; all parts add up to the whole"',
        '"Serving: output tokens; prompts are part of what a token takes"',
    )
    page.texts("How it is compared", notes)


def _charts(page: Page) -> None:
    page.heading("F13", "From A to B: milliseconds of an accelerator per token", "K")
    chart: Any = page.bars(
        "K", (13, 21), "P Q R S", ("", NAVY, _MORE, _LESS), "0.000", lying=False, gap=25, stacked=True
    )
    for letter, sign in (("R", "+"), ("S", "\N{MINUS SIGN}")):  # steps with their sign
        for row in range(14, 22):
            page.data[f"{letter}{row}"].number_format = f'[<0.0005]0;"{sign}"0.000'
    for number, series in enumerate(chart.series[1:]):
        label_values(series, "ctr" if number else "inEnd", INK if number else "FFFFFF")
    page.place(chart, "F14:K27", Axis(size=7), Axis(number="0.000", hidden=True), (0.02, 0.03, 0.96, 0.82))
    page.heading("M13", "Memory of the fullest accelerator (GiB)", "R")
    chart = page.bars("K", (26, 31), "L M", (SKY, BLUE), "0.0", gap=35)
    chart.overlap = 0
    for series in chart.series:
        label_values(series, "outEnd", INK)
    page.legend("M14", "O14", "\N{BLACK SQUARE} A", SKY)
    page.legend("P14", "R14", "\N{BLACK SQUARE} B", BLUE)
    page.place(chart, "M15:R27", Axis(), Axis(number="0", hidden=True), (0.20, 0.02, 0.70, 0.95))
