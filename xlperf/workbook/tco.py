"""The sheet ``tco``: cost of ownership of every plan in plain formulas, which work without the add-in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from openpyxl.styles import Alignment
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.datavalidation import DataValidation

from xlperf.base.units import HOUR, MILLION, YEAR
from xlperf.catalog.schema import PLAN_TABLES, results_of, table_schema, unit_of
from xlperf.catalog.table import CASES
from xlperf.equations.cost.tco import accelerator_cost_rate
from xlperf.equations.cost.tokens import pool_mean
from xlperf.workbook.data_sheets import SCENARIO
from xlperf.workbook.package import Formulas, data_rows
from xlperf.workbook.style import page_setup, put, title

if TYPE_CHECKING:
    from openpyxl import Workbook
    from openpyxl.worksheet.worksheet import Worksheet

    from xlperf.catalog.table import Table


TITLE = "Cost of ownership"
TOP = 13
CHOICES = (
    ("C5", "rent or own", "", "blank: rented where prices has a rent; rent; own"),
    ("C6", "life", "year", "blank: as in prices"),
    ("C7", "utilization", "", "blank: as in prices"),
    ("C8", "energy price", "USD/kWh", "blank: as in prices"),
    ("C9", "power usage effectiveness", "", "blank: as in prices"),
)
UNPRICED = (
    "An accelerator without a row in prices has no cost here. Results of plans take the price of its device where it "
    "is derived: give it a row, with the sale price of xlperf chip --devices as capex, and it has one here too."
)
SPARE_ROWS = 10
"""Rows for prices that a user adds."""
_PRICES = ("rental_price", "capex", "life", "utilization", "server_power", "power_usage_effectiveness",
           "energy_price", "opex_share")  # fmt: skip
_YEAR_HOURS = YEAR / HOUR
_HOURS = (
    ("accelerator of prices", 22, "General"),
    ("rent (USD/h)", 10, "0.00"),
    ("capex (USD)", 11, "#,##0"),
    ("life (year)", 9, "0.0#"),
    ("utilization", 10, "0%"),
    ("server power (W)", 10, "#,##0"),
    ("PUE", 8, "0.00"),
    ("energy price (USD/kWh)", 11, "0.000"),
    ("opex share", 9, "0.0%"),
    ("capital or rent (USD/h)", 12, "0.000"),
    ("running (USD/h)", 10, "0.000"),
    ("energy at full load (USD/h)", 10, "0.000"),
    ("accelerator-hour at full load (USD/h)", 13, "0.000"),
    ("power limit (W)", 10, "#,##0"),
)
_HELPER = "row of the hours"
"""Column that the formulas beside it look up; hidden."""
_PLANS = (
    ("plan", 52, "General"),
    ("sheet", 11, "General"),
    ("accelerator", 22, "General"),
    (_HELPER, 9, "0"),
    ("capital or rent (USD/h)", 12, "0.000"),
    ("running (USD/h)", 10, "0.000"),
    ("energy (USD/h)", 10, "0.000"),
    ("accelerator-hour (USD/h)", 13, "0.000"),
    ("prefill accelerator", 22, "General"),
    (_HELPER, 9, "0"),
    ("share that prefills", 10, "0%"),
    ("prefill accelerator-hour (USD/h)", 13, "0.000"),
    ("mean accelerator-hour (USD/h)", 13, "0.000"),
    ("tokens per second per accelerator", 13, "#,##0"),
    ("all-in cost per million tokens (USD/Mtoken)", 16, "0.0000"),
)
_FIRST = len(_PLANS) + 2
_AT = dict(
    zip(
        ("name", *_PRICES, "capital", "running", "energy", "hour", "limit"),
        (get_column_letter(_FIRST + place) for place in range(len(_HOURS))),
        strict=True,
    )
)
"""Columns of the hours, right of the plans."""
_MEANT = (
    "All-in cost: all accelerators of the plan over the tokens that it trains, or over its output tokens with their "
    "prompts. Separate pools: each accelerator at its own price."
)


def tco_sheet(
    workbook: Workbook,
    tables: Mapping[str, Table],
    results: Mapping[str, Mapping[str, Sequence[Any]]],
    formulas: Formulas,
) -> Worksheet:
    """Add the sheet ``tco``."""
    sheet: Worksheet = workbook.create_sheet("tco")
    words = "Plain formulas on the performance cells: they work without the add-in. Yellow cells stand for all plans."
    title(sheet, TITLE, words)
    for chosen, name, unit, note in CHOICES:
        put(sheet[f"A{chosen[1:]}"], f"{name} ({unit})" if unit else name, "xlperf key")
        put(sheet[chosen], None, "xlperf input")
        _note(sheet, f"E{chosen[1:]}", note)  # column D is hidden
    _note(sheet, "A10", UNPRICED)
    choice = DataValidation(type="list", formula1='"rent,own"', allow_blank=True)
    choice.add("C5")
    sheet.add_data_validation(choice)
    blocks: tuple[tuple[int, tuple[tuple[str, int, str], ...]], ...] = ((1, _PLANS), (_FIRST, _HOURS))
    for first, columns in blocks:
        for offset, (header, width, _) in enumerate(columns, start=first):
            put(sheet.cell(TOP - 1, offset), header, "xlperf header")
            sheet.column_dimensions[get_column_letter(offset)].width = width
            sheet.column_dimensions[get_column_letter(offset)].hidden = header == _HELPER
    sheet.row_dimensions[TOP - 1].height = 44
    known = any(results.values())
    hours = _hours(tables)
    for number, hour in enumerate(hours, start=1):
        texts = _hour_formulas(number, TOP + number - 1)
        _row(sheet, formulas, TOP + number - 1, texts, hour if known else None, _FIRST, _HOURS)
    row = TOP
    for kind in PLAN_TABLES:
        result = results.get(kind, {})
        for number in range(len(tables[kind])):
            shown = {name: values[number] for name, values in result.items()}
            values = _plan_values(tables[kind].take([number]), hours, shown) if shown else None
            texts = _plan_formulas(kind, number + 1, row, TOP + len(hours) - 1)
            _row(sheet, formulas, row, texts, values, 1, _PLANS)
            row += 1
    _note(sheet, f"A{row + 1}", _MEANT)
    sheet.freeze_panes = f"B{TOP}"
    last = max(row + 1, TOP + len(hours) - 1)
    page_setup(sheet, TOP - 1, area=f"A1:{_AT['hour']}{last}", pages_high=1)
    return sheet


def _row(
    sheet: Worksheet,
    formulas: Formulas,
    row: int,
    texts: list[str],
    values: list[Any] | None,
    first: int,
    columns: Sequence[tuple[str, int, str]],
) -> None:
    shown = [None] * len(texts) if values is None else values
    for offset, (formula, value, column) in enumerate(zip(texts, shown, columns, strict=True), start=first):
        cell: Any = sheet.cell(row, offset)
        formulas.put(cell, f"={formula}", value, "xlperf key" if offset == first else "xlperf computed", column[2])


def _note(sheet: Worksheet, place: str, words: str) -> None:
    cell: Any = put(sheet[place], words, "xlperf note")
    cell.alignment = Alignment(horizontal="left", vertical="center", wrap_text=False)


def _column(kind: str, name: str) -> str:
    result = table_schema(kind).by_name.get(name) or results_of(kind).by_name[name]
    return f"{kind}[[{result.header}]]" if "(" in result.header else f"{kind}[{result.header}]"


def _hour_formulas(number: int, row: int) -> list[str]:
    """Formulas of one row of prices, in the order of the headers."""
    at = {name: f"${letter}{row}" for name, letter in _AT.items()}

    def priced(name: str) -> str:
        result = f"INDEX({_column('prices', name)},{number})"
        result = f'IF({result}="","",{result})'
        for case in (case for case in CASES if f"{name}_{case}" in table_schema("prices").by_name):
            cell = f"INDEX({_column('prices', f'{name}_{case}')},{number})"
            result = f'IF(AND({SCENARIO}="{case}",{cell}<>""),{cell},{result})'
        return f'IF({at["name"]}="","",{result})'

    def or_default(chosen: str, name: str) -> str:
        default, result = table_schema("prices").by_name[name].default, priced(name)
        stated = f'IF({result}="",{default},{result})'
        return (
            f'IF({at["name"]}="","",{stated})'
            if not chosen
            else (f'IF({at["name"]}="","",IF({chosen}<>"",{chosen},{stated}))')
        )

    accelerators = f"MATCH({at['name']},{_column('accelerators', 'accelerator')},0)"
    power = f"INDEX({_column('accelerators', 'thermal_design_power')},{accelerators})"
    with_server = f"{table_schema('devices').by_name['server_power_ratio'].default}*{power}"
    names, stated_power = _column("prices", "price"), priced("server_power")
    owned = f'IF(OR($C$5="rent",{at["capex"]}=""),"",'
    rented, used = f'IF({at["rental_price"]}<>"",', f"{at['capex']}/{at['utilization']}"
    return [
        f'IF(ROWS({names})<{number},"",INDEX({names},{number})&"")',
        f'IF($C$5="own","",{priced("rental_price")})',
        priced("capex"),
        or_default("$C$6", "life"),
        or_default("$C$7", "utilization"),
        f'IF({at["name"]}="","",IF({stated_power}="",{with_server},{stated_power}))',
        or_default("$C$9", "power_usage_effectiveness"),
        or_default("$C$8", "energy_price"),
        or_default("", "opex_share"),
        f"{rented}{at['rental_price']},{owned}{used}/({at['life']}*{_YEAR_HOURS:g})))",
        f"{rented}0,{owned}{used}*{at['opex_share']}/{_YEAR_HOURS:g}))",
        f"{rented}0,{owned}{at['server_power']}/1000*{at['power_usage_effectiveness']}*{at['energy_price']}))",
        f'IF({at["capital"]}="","",{at["capital"]}+{at["running"]}+{at["energy"]})',
        f'IF({at["name"]}="","",IFERROR({power}+0,""))',
    ]


def _plan_formulas(kind: str, number: int, row: int, last: int) -> list[str]:
    """Formulas of one plan, in the order of the headers; ``last`` is the last row of the hours."""

    def given(name: str) -> str:
        return f"INDEX({_column(kind, name)},{number})"

    def column(name: str) -> str:
        return f"${_AT[name]}${TOP}:${_AT[name]}${last}"

    def hour(name: str, place: str) -> str:
        return f'IF(${place}{row}=0,"",INDEX({column(name)},${place}{row}))'

    def at(letter: str) -> str:
        return f'IF(${letter}{row}="",0,IFERROR(MATCH(${letter}{row},{column("name")},0),0))'

    def drawn(place: str, power: str) -> str:
        """Energy bill at the power that the work draws: the rest of the server is at full load."""
        limit, server = hour("limit", place), hour("server_power", place)
        saved = f"MIN({limit}/{server},1)*(1-({power})/{limit})"
        return f"{hour('energy', place)}*IFERROR(1-{saved},1)"

    own, prefilling_power = given("accelerator_power"), '""'
    other, share = '""', "0"
    if kind == "inference":
        other = f'IF({given("mode")}="disaggregated",{given("prefill_accelerator")}&"","")'
        whole, part = given("num_accelerators"), given("prefill_accelerators")
        prefilling = f'IF({part}="",INT({whole}/2),{part})/{whole}'
        share = f'IF($I{row}="",0,IF(ISNUMBER({whole}),{prefilling},""))'
        decoding = given("decode_power")
        prefilling_power = f"({own}-(1-$K{row})*{decoding})/$K{row}"
        own = f'IF($I{row}="",{own},{decoding})'
    rate = given("tokens_per_second_per_accelerator")
    beside = f"{hour('capital', 'J')}+{hour('running', 'J')}"
    mean = f'IF($L{row}="","",IF($K{row}="","",$H{row}+$K{row}*($L{row}-$H{row})))'
    return [
        f'{given("name")}&""',
        f'"{kind}"',
        f'{given("accelerator")}&""',
        at("C"),
        hour("capital", "D"),
        hour("running", "D"),
        f'IF($D{row}=0,"",IF($E{row}="","",{drawn("D", own)}))',
        f'IF($E{row}="","",$E{row}+$F{row}+$G{row})',
        other,
        at("I"),
        share,
        f'IF($J{row}=0,"",IF({hour("hour", "J")}="","",{beside}+{drawn("J", prefilling_power)}))',
        f'IF($H{row}="","",IF($I{row}="",$H{row},{mean}))',
        f'IF(ISNUMBER({rate}),{rate},"")',
        f'IF(OR($M{row}="",$N{row}=""),"",$M{row}/{HOUR:g}/$N{row}*10^6)',
    ]


def _hours(tables: Mapping[str, Table]) -> list[list[Any]]:
    """Results of the hourly formulas while no yellow cell is filled."""
    prices, accelerators = tables["prices"], tables["accelerators"]
    columns = table_schema("prices").by_name
    known = {str(name).casefold(): row for row, name in enumerate(accelerators.text("accelerator").tolist())}
    results: list[list[Any]] = []
    rows = data_rows(prices, [columns[name] for name in _PRICES])
    for name, row in zip(prices.text("price").tolist(), rows, strict=True):
        shown: dict[str, Any] = dict(zip(_PRICES, row, strict=True))
        for column in _PRICES:
            if shown[column] is None and columns[column].default:
                shown[column] = float(columns[column].default)
        if shown["server_power"] is None and str(name).casefold() in known:
            ratio = float(table_schema("devices").by_name["server_power_ratio"].default)
            shown["server_power"] = ratio * float(accelerators["thermal_design_power"][known[str(name).casefold()]])
        inside = {
            column: float("nan") if value is None else float(value) * unit_of(columns[column]).factor
            for column, value in shown.items()
        }
        hour = float(accelerator_cost_rate(**inside)) * HOUR
        rent, capex = shown["rental_price"], shown["capex"]
        parts: list[Any] = ["", "", "", ""]
        if rent is not None:
            parts = [rent, 0.0, 0.0, hour]
        elif capex is not None:
            capital = capex / shown["utilization"] / (shown["life"] * _YEAR_HOURS)
            running = capex * shown["opex_share"] / shown["utilization"] / _YEAR_HOURS
            parts = [capital, running, hour - capital - running, hour]
        own = known.get(str(name).casefold())
        limit = float(accelerators["thermal_design_power"][own]) if own is not None else float("nan")
        stated = ("" if shown[column] is None else shown[column] for column in _PRICES)
        results.append([str(name), *stated, *parts, "" if limit != limit else limit])
    return [*results, *([""] * len(_HOURS) for _ in range(SPARE_ROWS))]


def _at_work(hour: list[Any], power: Any) -> list[Any]:
    """Capital, running, energy and all of an accelerator-hour at the power that the work draws."""
    server, (capital, running, energy, _, limit) = hour[1 + _PRICES.index("server_power")], hour[-5:]
    if capital == "":
        return ["", "", "", ""]
    if isinstance(power, float) and limit != "" and server != "":
        energy = energy * (1.0 - min(limit / server, 1.0) * (1.0 - power / limit))
    return [capital, running, energy, capital + running + energy]


def _plan_values(plan: Table, hours: list[list[Any]], results: Mapping[str, Any]) -> list[Any]:
    """Results of the formulas of one plan while no yellow cell is filled."""
    places = {str(row[0]).casefold(): place for place, row in reversed(list(enumerate(hours, start=1))) if row[0]}
    accelerator, other, share = str(plan.text("accelerator")[0]), "", 0.0
    if plan.kind == "inference" and plan.filled("mode")[0] == "disaggregated":
        other = str(plan.text("prefill_accelerator")[0])
    at, there = places.get(accelerator.casefold(), 0), places.get(other.casefold(), 0)
    own = prefilling = results["accelerator_power"]
    if other:
        whole, asked = float(plan.number("num_accelerators")[0]), float(plan.number("prefill_accelerators")[0])
        share = (whole // 2.0 if asked != asked else asked) / whole
        if isinstance(own, float):
            own, prefilling = results["decode_power"], (own - (1.0 - share) * results["decode_power"]) / share
    parts: list[Any] = _at_work(hours[at - 1], own) if at else ["", "", "", ""]
    mean, prefill = parts[3], _at_work(hours[there - 1], prefilling)[3] if there else ""
    if other:
        mean = "" if "" in (mean, prefill) else float(pool_mean(mean, prefill, share))
    rate = results["tokens_per_second_per_accelerator"]
    tokens = rate if isinstance(rate, (int, float)) and not isinstance(rate, bool) else ""
    cost = mean / HOUR / tokens * MILLION if tokens != "" and mean != "" else ""
    return [
        str(plan.text("name")[0]), plan.kind, accelerator, float(at), *parts, other, float(there), share, prefill,
        mean, tokens, cost,
    ]  # fmt: skip
