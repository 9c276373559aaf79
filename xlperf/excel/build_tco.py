"""The sheet ``tco``: cost of ownership of every plan in plain formulas, which work without the add-in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from openpyxl.styles import Alignment
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.datavalidation import DataValidation

from xlperf.catalog.schema import PLAN_TABLES, results_of, table_schema, unit_of
from xlperf.cost.tco import accelerator_cost_rate
from xlperf.excel.build_package import Formulas
from xlperf.excel.style import data_rows, page_setup, put, title
from xlperf.units import HOUR, MILLION, YEAR

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
    "is derived: give it a row, with the sale price of xlperf device as capex, and it has one here too."
)
_YEAR_HOURS = YEAR / HOUR
_HEADERS = (
    ("plan", 44, "General"),
    ("sheet", 11, "General"),
    ("accelerator", 22, "General"),
    ("row in prices", 9, "0"),
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
    ("energy (USD/h)", 10, "0.000"),
    ("accelerator-hour (USD/h)", 13, "0.000"),
    ("tokens per second per accelerator", 13, "#,##0"),
    ("cost per million tokens (USD)", 14, "0.0000"),
)


def tco_sheet(
    workbook: Workbook,
    tables: Mapping[str, Table],
    results: Mapping[str, Mapping[str, Sequence[Any]]],
    formulas: Formulas,
) -> Worksheet:
    """Add the sheet ``tco``.

    Parameters
    ----------
    workbook : openpyxl.Workbook
        Changed in place; has our styles.
    tables : mapping
        Tables by kind.
    results : mapping
        Cells of the live results by kind and name; blank where they are not known.
    formulas : Formulas
        Remembers the values of formulas.

    Returns
    -------
    Worksheet
        The new sheet.
    """
    sheet: Worksheet = workbook.create_sheet("tco")
    words = "Plain formulas on the performance cells: they work without the add-in. Yellow cells stand for all plans."
    title(sheet, TITLE, words)
    for chosen, name, unit, note in CHOICES:
        put(sheet[f"A{chosen[1:]}"], f"{name} ({unit})" if unit else name, "xlperf key")
        put(sheet[chosen], None, "xlperf input")
        _note(sheet, f"D{chosen[1:]}", note)
    _note(sheet, "A10", UNPRICED)
    choice = DataValidation(type="list", formula1='"rent,own"', allow_blank=True)
    choice.add("C5")
    sheet.add_data_validation(choice)
    for offset, (words, width, _) in enumerate(_HEADERS, start=1):
        put(sheet.cell(TOP - 1, offset), words, "xlperf header")
        sheet.column_dimensions[get_column_letter(offset)].width = width
    sheet.row_dimensions[TOP - 1].height = 44
    row = TOP
    for kind in PLAN_TABLES:
        rates = results.get(kind, {}).get("tokens_per_second_per_accelerator")
        for number in range(len(tables[kind])):
            rate = rates[number] if rates is not None else None
            values = _values(tables, kind, number, rate) if rates is not None else [None] * len(_HEADERS)
            for offset, (formula, value) in enumerate(zip(_formulas(kind, number + 1, row), values, strict=True), 1):
                cell: Any = sheet.cell(row, offset)
                style = "xlperf key" if offset == 1 else "xlperf computed"
                formulas.put(cell, f"={formula}", value, style, _HEADERS[offset - 1][2])
            row += 1
    sheet.freeze_panes = f"B{TOP}"
    page_setup(sheet, TOP - 1, area=f"A1:{get_column_letter(len(_HEADERS))}{max(row - 1, TOP)}")
    return sheet


def _note(sheet: Worksheet, place: str, words: str) -> None:
    cell: Any = put(sheet[place], words, "xlperf note")
    cell.alignment = Alignment(horizontal="left", vertical="center", wrap_text=False)


def _column(kind: str, name: str) -> str:
    found = table_schema(kind).by_name.get(name) or results_of(kind).by_name[name]
    return f"{kind}[[{found.header}]]" if "(" in found.header else f"{kind}[{found.header}]"


def _priced(name: str, row: int) -> str:
    """Value of a column of prices for the accelerator in a row; blank text where prices has none."""
    cell = f"INDEX({_column('prices', name)},$D{row})"
    return f'IF($D{row}=0,"",IF({cell}="","",{cell}))'


def _or_default(chosen: str, name: str, row: int) -> str:
    default = table_schema("prices").by_name[name].default
    found = _priced(name, row)
    return f'IF({chosen}<>"",{chosen},IF({found}="",{default},{found}))'


def _formulas(kind: str, number: int, row: int) -> list[str]:
    """Formulas of one plan, in the order of the headers."""
    accelerators = f"MATCH($C{row},{_column('accelerators', 'accelerator')},0)"
    power = f"INDEX({_column('accelerators', 'thermal_design_power')},{accelerators})"
    stated = _priced("server_power", row)
    rent = f'IF($C$5="own","",{_priced("rental_price", row)})'
    owned = f'IF(OR($C$5="rent",$F{row}=""),"",'
    rate = f"INDEX({_column(kind, 'tokens_per_second_per_accelerator')},{number})"
    opex = _priced("opex_share", row)
    return [
        f'INDEX({_column(kind, "name")},{number})&""',
        f'"{kind}"',
        f'INDEX({_column(kind, "accelerator")},{number})&""',
        f"IFERROR(MATCH($C{row},{_column('prices', 'price')},0),0)",
        rent,
        _priced("capex", row),
        _or_default("$C$6", "life", row),
        _or_default("$C$7", "utilization", row),
        f'IF({stated}="",{power},{stated})',
        _or_default("$C$9", "power_usage_effectiveness", row),
        _or_default("$C$8", "energy_price", row),
        f'IF({opex}="",{table_schema("prices").by_name["opex_share"].default},{opex})',
        f'IF($E{row}<>"",$E{row},{owned}$F{row}/$H{row}/($G{row}*{_YEAR_HOURS:g})))',
        f'IF($E{row}<>"",0,{owned}$F{row}*$L{row}/$H{row}/{_YEAR_HOURS:g}))',
        f'IF($E{row}<>"",0,{owned}$I{row}/1000*$J{row}*$K{row}))',
        f'IF($M{row}="","",$M{row}+$N{row}+$O{row})',
        f'IF(ISNUMBER({rate}),{rate},"")',
        f'IF(OR($P{row}="",$Q{row}=""),"",$P{row}/{HOUR:g}/$Q{row}*10^6)',
    ]


def _values(tables: Mapping[str, Table], kind: str, number: int, rate: Any) -> list[Any]:
    """What the formulas of one plan give while no yellow cell is filled."""
    plan, prices, accelerators = tables[kind].take([number]), tables["prices"], tables["accelerators"]
    accelerator = str(plan.text("accelerator")[0])
    named = [str(name).casefold() for name in prices.text("price").tolist()]
    at = named.index(accelerator.casefold()) if accelerator.casefold() in named else None
    columns = table_schema("prices").by_name
    names = ("rental_price", "capex", "life", "utilization", "server_power", "power_usage_effectiveness",
             "energy_price", "opex_share")  # fmt: skip
    shown: dict[str, Any] = dict.fromkeys(names)
    if at is not None:
        row = data_rows(prices.take([at]), [columns[name] for name in names])[0]
        shown = dict(zip(names, row, strict=True))
    for name in names:
        if shown[name] is None and columns[name].default:
            shown[name] = float(columns[name].default)
    if shown["server_power"] is None:
        known = [str(name).casefold() for name in accelerators.text("accelerator").tolist()]
        shown["server_power"] = float(accelerators["thermal_design_power"][known.index(accelerator.casefold())])
    inside = {
        name: float("nan") if value is None else float(value) * unit_of(columns[name]).factor
        for name, value in shown.items()
    }
    hour = float(accelerator_cost_rate(**inside)) * HOUR
    rent, capex = shown["rental_price"], shown["capex"]
    if rent is not None:
        parts: list[Any] = [rent, 0.0, 0.0, hour]
    elif capex is not None:
        capital = capex / shown["utilization"] / (shown["life"] * _YEAR_HOURS)
        running = capex * shown["opex_share"] / shown["utilization"] / _YEAR_HOURS
        parts = [capital, running, hour - capital - running, hour]
    else:
        parts = ["", "", "", ""]
    tokens = rate if isinstance(rate, (int, float)) and not isinstance(rate, bool) else ""
    cost = parts[3] / HOUR / tokens * MILLION if tokens != "" and parts[3] != "" else ""
    blank = [("" if shown[name] is None else shown[name]) for name in names]
    return [
        str(plan.text("name")[0]), kind, accelerator, 0.0 if at is None else at + 1.0, *blank, *parts, tokens, cost,
    ]  # fmt: skip
