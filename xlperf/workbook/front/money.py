"""Below an answer on the sheets Serve and Train: rented, owned and API side by side; power, energy and carbon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xlperf.workbook.front.formulas import Live
from xlperf.workbook.front.layout import border, head_row, heading, put
from xlperf.workbook.style import RULE

TOP = 34
"""Row of the headings. [-]"""
MONEY = '[>=1000000]"$"0.00,,"M";[>=1000]"$"0,"k";"$"0'
_SERVED = (
    ("rented", "rented_fleet_cost_per_million_output_tokens", "rented_monthly_cost", "rented_hour_cost"),
    ("owned", "owned_fleet_cost_per_million_output_tokens", "owned_monthly_cost", "owned_hour_cost"),
    ("API", "api_cost_per_million_output_tokens_all_in", "api_monthly_cost", ""),
)
_TRAINED = (
    ("rented", "", "rented_run_cost", "rented_hour_cost"),
    ("owned", "", "owned_run_cost", "owned_hour_cost"),
)


def money_of_serving(sheet: Any, r: Mapping[str, str], cells: Mapping[str, str], live: Live) -> None:
    """Fill the block of the sheet Serve.

    ``r``: cells of results. ``cells``: cells of the form. ``live``: writes formulas with their values.
    """
    _table(sheet, "Rented, owned or bought from an API", ("$/M out", "$ a month", "$ an hour"), _SERVED, r, live)
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
    _table(sheet, "Rented or owned", ("", "$ a run", "$ an hour"), _TRAINED, r, live)
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


def _table(
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
