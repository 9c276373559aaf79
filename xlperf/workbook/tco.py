"""The sheet ``tco``, cost of ownership of every plan in plain formulas; charts below designs and servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from openpyxl.chart.series import SeriesLabel
from openpyxl.styles import Alignment
from openpyxl.utils import get_column_letter, range_boundaries
from openpyxl.worksheet.datavalidation import DataValidation

from xlperf.base.units import HOUR, YEAR
from xlperf.catalog.schema import PLAN_TABLES, grouped, results_of, table_schema
from xlperf.catalog.table import CASES
from xlperf.workbook.data_sheets import BLANK_ROWS, DATA_SHEETS, HEADER_ROW, column_reference, sheet_columns
from xlperf.workbook.front.formulas import Live
from xlperf.workbook.front.layout import AMBER, BLUE, GREEN, GREY, ORANGE, SKY, Axis, Page
from xlperf.workbook.sheet_list import SCENARIO
from xlperf.workbook.style import MUTED, NAVY, home, page_setup, put, title

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


def tco_sheet(workbook: Workbook, tables: Mapping[str, Table], live: Live) -> Worksheet:
    """Add the sheet ``tco``."""
    sheet: Worksheet = workbook.create_sheet("tco")
    words = "Plain formulas on the performance cells: they work without the add-in. Yellow cells stand for all plans."
    title(sheet, TITLE, words)
    home(sheet)
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
    hours = len(tables["prices"]) + SPARE_ROWS
    for row in range(TOP, TOP + hours):
        _row(sheet, live, row, _hour_formulas(row - TOP + 1, row), _FIRST, _HOURS)
    row = TOP
    for kind in PLAN_TABLES:
        for number in range(1, len(tables[kind]) + 1):
            _row(sheet, live, row, _plan_formulas(kind, number, row, TOP + hours - 1), 1, _PLANS)
            row += 1
    _note(sheet, f"A{row + 1}", _MEANT)
    sheet.freeze_panes = f"B{TOP}"
    last = max(row + 1, TOP + hours - 1)
    page_setup(sheet, TOP - 1, area=f"A1:{_AT['hour']}{last}", pages_high=1)
    return sheet


def _row(
    sheet: Worksheet, live: Live, row: int, texts: list[str], first: int, columns: Sequence[tuple[str, int, str]]
) -> None:
    """Write the formulas of a row, the name of a prefill accelerator before the formulas that look it up."""
    names = [header for header, _, _ in columns]
    for place in sorted(range(len(texts)), key=lambda place: names[place] != "prefill accelerator"):
        look = "xlperf key" if place == 0 else "xlperf computed"
        live.styled(sheet.cell(row, first + place), f"={texts[place]}", look, columns[place][2])


def _note(sheet: Worksheet, place: str, words: str) -> None:
    cell: Any = put(sheet[place], words, "xlperf note")
    cell.alignment = Alignment(horizontal="left", vertical="center", wrap_text=False)


def _column(kind: str, name: str) -> str:
    return column_reference(table_schema(kind).by_name.get(name) or results_of(kind).by_name[name])


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


class CostChart(NamedTuple):
    """A chart below a sheet: its heading, the columns of its bars and their colours, number format, legend height."""

    heading: str
    parts: tuple[str, ...]
    colours: tuple[str, ...]
    number: str
    legend: float  # Share of the chart


CHARTS = {
    "chiplets": CostChart(
        "Cost of a unit by part (USD): the cells above, stacked", grouped("chiplets_results", "unit"),
        (BLUE, "7FB8DA", AMBER, "F2D08B", "C08A5A", GREEN, "8CCBB5", GREY, MUTED, NAVY), "#,##0", 0.90,
    ),
    "servers": CostChart(
        "An hour of one accelerator by part (USD): the cells above, stacked", grouped("servers_results", "hour"),
        (BLUE, SKY, GREEN, GREY, AMBER, MUTED, ORANGE), "0.0", 0.30,
    ),
}  # fmt: skip


def cost_charts(book: Any, live: Live) -> None:
    """Add a chart below each sheet of :data:`CHARTS` that the workbook has, if it has rows.

    ``book``: changed in place. ``live``: its values of formulas become the points of the charts.
    """
    for kind, own in CHARTS.items():
        if kind not in book.sheetnames:
            continue
        sheet = book[kind]
        edges: Any = range_boundaries(sheet.tables[kind].ref)
        last = edges[3] - BLANK_ROWS
        if last <= HEADER_ROW or sheet.cell(HEADER_ROW + 1, 1).value is None:
            continue
        values = live.formulas.values.get(kind, {})
        for row in sheet.iter_rows(min_row=HEADER_ROW, max_row=last):
            live.values |= {(kind, cell.coordinate): values.get(cell.coordinate, cell.value) for cell in row}
        names, in_sight = [column.name for column in sheet_columns(kind)], DATA_SHEETS[kind].in_sight
        letters = " ".join(get_column_letter(names.index(name) + 1) for name in own.parts)
        page = Page(sheet, sheet, live)
        rows = HEADER_ROW, last
        chart = page.bars("A", rows, letters, own.colours, "#,##0", gap=35, stacked=True, formats=False)
        for series, name in zip(chart.series, own.parts, strict=True):
            series.tx = SeriesLabel(v=name.replace("nre", "design").replace("_", " "))
        chart.visible_cells_only = False  # a part may stand in a column that is folded
        chart.y_axis.crosses = "max"
        top = edges[3] + 2
        end_row = top + max(14, 6 + 2 * (last - HEADER_ROW))
        put(sheet[f"A{top}"], own.heading, "xlperf heading")
        sheet.print_area = f"A{HEADER_ROW - 1}:{get_column_letter(len(names))}{end_row}"
        first, end = (get_column_letter(names.index(name) + 1) for name in (in_sight[0], DATA_SHEETS[kind].results[3]))
        area, y = f"{first}{top + 1}:{end}{end_row}", Axis(number=own.number, grid=True)
        page.place(chart, area, Axis(), y, (0.19, 0.02, 0.62, 0.88), (0.83, 0.02, 0.16, own.legend))
