"""Cost from the wafer to the power: waterfalls, tornado, cost of a token by part."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.pagebreak import Break

from xlperf.base import resources
from xlperf.catalog.schema import Column, grouped, results_of, unit_of
from xlperf.catalog.table import Table
from xlperf.engine.ownership import ACCELERATOR_PARTS, HOUR_PARTS, cost_bridge
from xlperf.engine.prices import first_rows
from xlperf.equations.cost.tco import ALL_IN
from xlperf.workbook import style
from xlperf.workbook.charts import HIGH, LOW, horizontal_bars, tornado, waterfall
from xlperf.workbook.package import write_table
from xlperf.workbook.report import data

if TYPE_CHECKING:
    from openpyxl.worksheet.worksheet import Worksheet

    from xlperf.catalog.catalog import Catalog


MOST_PLANS = 40
_TOP = 4
_ACROSS = 31.2
_HEIGHT = 8.9
_PAGE = 19.5
"""Height of a page of this width below a heading. [cm]"""
_PARTS = {row["part"]: (row["words"], row["colour"]) for row in resources.rows("workbook/cost_parts.csv")}
"""Parts of an hour in words, and their colours."""
_STEPS = [(row["step"], row["results"].split(), row["colour"]) for row in resources.rows("workbook/price_steps.csv")]
"""Steps from the wafer to the unit cost: words, results that they add up, colour."""


def accelerator_cost_sheet(sheet: Worksheet, report: data.Report, designs: np.ndarray) -> None:
    """Fill the sheet of waterfalls: from the wafer to the price of an accelerator, and from there to an hour of it."""
    from xlperf.engine.devices import designs_with_devices, evaluate_designs
    from xlperf.engine.ownership import evaluate_servers
    from xlperf.explore.allocate import cost_sensitivity

    catalog = report.catalog
    table = designs_with_devices(catalog.tables["chiplets"].take(designs), catalog)
    made = evaluate_designs(table, catalog)
    names = [str(name) for name in table.text("chiplet")]
    servers, rows = _servers_of(table, catalog)
    decisive = cost_sensitivity(table, catalog)
    style.column_widths(sheet, 32, 32, 14, 14, 12, 14, 14, 14, 14, 14)
    block = style.chart_rows(_HEIGHT)
    top = _TOP + block * len(table) + 1
    style.even_rows(sheet, _TOP, top)
    price = [step for row in range(len(table)) for step in _price_steps(table, made, row)]
    words = "From the wafer to the price of an accelerator"
    prices = _steps_table(sheet, price, "design", "USD", top + 1, "price_steps", words)
    hours, hour, after = prices, list[_Step](), prices.last
    if len(servers):
        results = evaluate_servers(servers, catalog=catalog)
        unit_cost = dict(zip(names, made["unit_cost"].tolist(), strict=True))
        hour = [step for row, name in rows.items() for step in _hour_steps(servers, results, row, unit_cost[name])]
        words = "From the price of an accelerator to an hour of it"
        hours = _steps_table(sheet, hour, "server", "USD/h", prices.last + 3, "hour_steps", words)
        after = hours.last
    deciding = _tornado_table(sheet, decisive, after + 3)
    for number, name in enumerate(names):
        row = _TOP + number * block
        steps = [step for step in price if step[0] == name and step[1] not in ("gross margin", "price")]
        drawn = _waterfall(prices, price, steps, f"From the wafer to the unit cost: {name}", "USD", 11.4)
        style.place_chart(sheet, drawn, row)
        own = next((server for server in rows if rows[server] == name), None)
        if own is not None:
            subject = str(servers.text("server")[own])
            steps = [step for step in hour if step[0] == subject]
            drawn = _waterfall(hours, hour, steps, f"To the hour: {subject}", "USD/h", 10.4)
            style.place_chart(sheet, drawn, row, 11.6)
        if name in decisive["subject"]:
            span = _span(decisive["subject"].tolist(), name)
            ends = deciding.both("low_value_adds", span), deciding.both("high_value_adds", span)
            size, change = (_ACROSS - 22.2, _HEIGHT), "change from the base case (USD)"
            words = "What decides the bill of materials"
            style.place_chart(sheet, tornado(words, deciding.cells("input", span), *ends, change, size), row, 22.2)
        if number and number % 2 == 0:
            sheet.row_breaks.append(Break(id=row - 1))
    sheet.row_breaks.append(Break(id=top - 1))
    style.page_setup(sheet)
    sheet.freeze_panes = f"A{_TOP}"


_Step = tuple[str, str, float, float, str]
"""Subject, part, sum of the parts below it, amount, colour."""


def _servers_of(designs: Table, catalog: Catalog) -> tuple[Table, dict[int, str]]:
    """First server of each design's accelerator: the rows as a table, and the design of each."""
    servers = catalog.tables["servers"]
    accelerator = catalog.known_rows("accelerators", designs.text("accelerator"))
    rows = first_rows(servers, catalog, accelerator)
    named = [(row, str(name)) for row, name in zip(rows.tolist(), designs.text("chiplet").tolist(), strict=True)]
    results = [(row, name) for row, name in named if row >= 0]
    return servers.take([row for row, _ in results]), {place: name for place, (_, name) in enumerate(results)}


def _price_steps(designs: Table, made: Table, row: int) -> list[_Step]:
    name = str(designs.text("chiplet")[row])
    steps: list[_Step] = []
    level = 0.0
    for words, parts, colour in _STEPS:
        amount = float(np.nansum([made[part][row] for part in parts]))
        if amount:
            steps.append((name, words, level, amount, colour))
        level += amount
        if words == "board":
            steps.append((name, "bill of materials", 0.0, level, style.NAVY))
    steps.append((name, "unit cost", 0.0, level, style.NAVY))
    price = float(made["sale_price"][row])
    if price > level:
        steps.append((name, "gross margin", level, price - level, _PARTS["hour_margin"][1]))
    steps.append((name, "price", 0.0, price, style.NAVY))
    return steps


def _hour_steps(servers: Table, hours: Table, row: int, unit_cost: float) -> list[_Step]:
    subject, level = str(servers.text("server")[row]), 0.0
    steps: list[_Step] = []
    factor = unit_of(results_of("servers").by_name["cost_rate"]).factor
    price = float(servers.number("accelerator_price")[row])
    for part, known in zip(grouped("servers_results", "hour"), HOUR_PARTS, strict=True):
        amount = float(hours[part][row]) / factor
        if known == "hour_accelerator" and 0.0 < unit_cost < price:
            made = amount * unit_cost / price
            steps.append((subject, "manufacturing", level, made, _PARTS["hour_dies"][1]))
            steps.append((subject, "gross margin", level + made, amount - made, _PARTS["hour_margin"][1]))
            steps.append((subject, "accelerator", 0.0, amount, style.NAVY))
        elif amount:
            steps.append((subject, _PARTS[known][0], level, amount, _PARTS[known][1]))
        level += amount
    return [*steps, (subject, "hour, all costs", 0.0, level, style.NAVY)]


def _steps_table(
    sheet: Worksheet, steps: Sequence[_Step], subject: str, unit: str, top: int, name: str, words: str,
    signs: Mapping[str, str] = MappingProxyType({}),
) -> data.Drawn:  # fmt: skip
    """The table of the steps of waterfalls; ``signs``: of the amounts, by the colours of steps that go up or down."""
    totals = {own: amount for own, _, below, amount, _ in steps if below == 0.0}
    decimals = {own: max(2 - math.floor(math.log10(amount)), 0) for own, amount in totals.items()}  # three of a total
    rows = [
        [
            own,
            f"{part} \N{MIDDLE DOT} {signs.get(colour, '')}{amount:,.{decimals[own]}f}",
            below,
            amount,
            100.0 * amount / totals[own],
        ]
        for own, part, below, amount, colour in steps
    ]
    columns = data.report_columns("steps", subject=subject, what=subject.capitalize(), unit=unit)
    return data.drawn_table(sheet, columns, rows, top, name, words)


def _span(subjects: Sequence[str], subject: str) -> tuple[int, int]:
    """First row of a subject, and the row after its last."""
    places = [place for place, own in enumerate(subjects) if own == subject]
    return places[0], places[-1] + 1


def _waterfall(
    table: data.Drawn, steps: Sequence[_Step], drawn: Sequence[_Step], words: str, unit: str, width: float
) -> Any:
    """A waterfall of the first steps of a subject, of all steps in a table."""
    first, _ = _span([step[0] for step in steps], drawn[0][0])
    span = first, first + len(drawn)
    colours, size = [step[4] for step in drawn], (width, _HEIGHT)
    below, amounts = table.both("stands_on", span), table.both("amount", span)
    return waterfall(words, table.cells("part", span), below, amounts, colours, unit, size)


def _tornado_table(sheet: Worksheet, decisive: Table, top: int) -> data.Drawn:
    names = ("value_low", "value_base", "value_high", "result_low", "result_base", "result_high")
    rows: list[list[Any]] = []
    for place in range(len(decisive)):
        numbers = [float(decisive[name][place]) for name in names]
        rows.append([str(decisive["subject"][place]), str(decisive["input"][place]), *numbers,
                     numbers[3] - numbers[4], numbers[5] - numbers[4]])  # fmt: skip
    words = "What decides the bill of materials: each input alone"
    table = data.drawn_table(sheet, data.report_columns("tornado"), rows, top, "tornado", words)
    for down in range(top + 1, top + 1 + len(rows)):
        for column in (3, 4, 5):
            cell = sheet.cell(down, column)
            cell.number_format = "#,##0" if float(str(cell.value or 0.0)).is_integer() else "#,##0.0##"
    return table


def token_cost_sheet(sheet: Worksheet, groups: Sequence[tuple[data.Plans, Table]]) -> None:
    """Fill the sheet that breaks an owner's cost of a million tokens down, from the wafer to the power."""
    sheet.column_dimensions["A"].width = 54
    top = _TOP
    for group, costs in groups:
        if top > _TOP:
            sheet.row_breaks.append(Break(id=top - 1))
        top = _token_block(sheet, group, costs, top) + 3
    style.page_setup(sheet)
    sheet.freeze_panes = f"A{_TOP}"


def _token_block(sheet: Worksheet, group: data.Plans, costs: Table, top: int) -> int:
    """Chart and table of one kind of plan; the last row that is used."""
    whole = f"owned_{ALL_IN[group.kind]}"
    meant = "trained tokens" if group.kind == "training" else "output tokens, prompts included,"
    declared = costs.schema.by_name
    per_token = costs[whole] / unit_of(declared[whole]).factor
    rows = np.flatnonzero(np.isfinite(per_token))[:MOST_PLANS]
    known = ~np.isnan(costs["hour_dies"])
    columns: list[Column] = []
    parts: list[tuple[np.ndarray, str]] = []
    for part in (*ACCELERATOR_PARTS, *HOUR_PARTS):
        hours = np.where(known, 0.0, costs[part]) if part == "hour_accelerator" else costs[part]
        amounts = np.nan_to_num(hours / costs["hour_cost"])[rows] * per_token[rows]
        if np.any(amounts):
            words, colour = _PARTS[part]
            columns.append(data.extra_column(words.replace(" ", "_"), "USD/Mtoken", declared[part].meaning))
            parts.append((amounts, colour))
    height = min(max(8.0, 4.6 + 0.55 * len(rows)), _PAGE)
    header = top + style.chart_rows(height) + 1
    style.even_rows(sheet, top, header)
    sheet.row_breaks.append(Break(id=header - 1))
    for place in range(2, len(columns) + 3):
        sheet.column_dimensions[get_column_letter(place)].width = 12.6
    key = data.report_columns("plan", kind=group.kind)
    shown = [
        [
            f"{data.short(group.names[row])} \N{MIDDLE DOT} {data.number_words(per_token[row])} USD",
            *(float(amounts[place]) for amounts, _ in parts),
            float(per_token[row]),
        ]
        for place, row in enumerate(rows.tolist())
    ]
    name = f"token_cost_{group.kind}"
    table = data.drawn_table(sheet, [*key, *columns, declared[whole]], shown, header, name)
    names = ["hour_cost", "owned_tokens_per_dollar", "tokens_per_second_per_provisioned_megawatt",
             "owned_energy_per_token", "owned_carbon_per_million_tokens"]  # fmt: skip
    if group.kind == "inference":
        names[1:1] = ["owned_cost_per_million_input_tokens", "owned_cost_per_million_output_tokens"]
    more = [declared[name] for name in names]
    numbers = [data.or_blank(costs[column.name] / unit_of(column).factor) for column in more]
    rest = [
        [f"{data.short(group.names[row])} \N{MIDDLE DOT} {costs['server'][row]}",
         *(values[row] for values in numbers)]
        for row in rows.tolist()
    ]  # fmt: skip
    words = "What a dollar, a megawatt and a kilogram are worth"
    worth = data.drawn_table(sheet, [*key, *more], rest, header + len(rows) + 3, f"{name}_worth", words)
    bars = [table.part(column.name, colour) for column, (_, colour) in zip(columns, parts, strict=True)]
    words = f"{group.kind.capitalize()}: cost of a million {meant} to an owner, from the wafer to the power"
    size = _ACROSS, height
    chart = horizontal_bars(words, table.cells("plan"), bars, "share of the cost", "0 %", size, percent=True)
    style.place_chart(sheet, chart, top)
    last = worth.top + len(rows)
    left_out = len(group) - len(rows)
    if left_out:
        last += 1
        words = f"{data.plural(left_out, 'plan')} not shown: without a result, without a row of servers, or too many."
        style.put(sheet.cell(last, 1), words, "xlperf note")
    return last


def bridge_sheet(sheet: Worksheet, catalog: Catalog, groups: Sequence[tuple[data.Plans, Table]]) -> None:
    """Fill the sheet that bridges cost and energy at the sheet prices to the owner: first plans drawn, then all."""
    top = _TOP + style.chart_rows(_HEIGHT)
    style.column_widths(sheet, 54, 66, 17, 17, 14, 14)
    style.even_rows(sheet, _TOP, top)
    steps: list[_Step] = []
    for group, _ in groups:
        named = Table(
            group.kind, {**group.plans.columns, "name": np.array(group.names, dtype=object)}, group.plans.place
        )
        bridge = cost_bridge(named, catalog, results=group.results)
        columns = [*bridge.schema.columns]
        numbers = [data.or_blank(bridge[column.name] / unit_of(column).factor) for column in columns[2:]]
        rows = list(zip(bridge["plan"].tolist(), bridge["line"].tolist(), *numbers, strict=True))
        name = f"cost_bridge_{group.kind}"
        write_table(sheet, columns, rows, f"A{top}", name, freeze=None, widths=False, fitted=True)
        steps += _bridge_steps(bridge)
        top += max(len(rows), 1) + 3
    table = _steps_table(sheet, steps, "plan", "USD/Mtoken", top, "bridge_steps", "Lines that are drawn", _SIGNS)
    width = _ACROSS / 2 - 0.1
    for number, name in enumerate(dict.fromkeys(step[0] for step in steps)):
        drawn = [step for step in steps if step[0] == name]
        words = f"From sheet prices to an owner: {name}"
        style.place_chart(
            sheet, _waterfall(table, steps, drawn, words, "USD/Mtoken", width), _TOP, number * (width + 0.2)
        )
    style.page_setup(sheet)
    sheet.freeze_panes = f"A{_TOP}"


_SIGNS = {HIGH: "+", LOW: "\N{MINUS SIGN}"}
"""Signs of the steps of a bridge, by their colours."""


def _bridge_steps(bridge: Table) -> list[_Step]:
    """Steps of the waterfall of the first plan of a bridge that has a cost."""
    priced = np.flatnonzero(np.isfinite(bridge["cost"]))
    if not len(priced):
        return []
    factor = unit_of(bridge.schema.by_name["cost"]).factor
    rows = np.flatnonzero(bridge["plan"] == bridge["plan"][priced[0]])
    costs, lines = (bridge["cost"][rows] / factor).tolist(), bridge["line"][rows].tolist()
    name, last = str(bridge["plan"][rows[0]]), len(rows) - 1
    steps: list[_Step] = []
    for place, (words, cost) in enumerate(zip(lines, costs, strict=True)):
        line, before = words.partition(":")[0], costs[place - 1]
        if place in (0, last):
            steps.append((name, line, 0.0, cost, style.NAVY))
        elif cost != before:
            steps.append((name, line, min(before, cost), abs(cost - before), HIGH if cost > before else LOW))
    return steps
