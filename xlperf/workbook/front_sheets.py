"""The front sheets: three questions, each a form with its answer and numbers; and a small workbook to start from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from openpyxl.styles import Font

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import PLAN_TABLES, results_of, table_schema
from xlperf.catalog.table import CASES, Table
from xlperf.explore.forms import OTHERS
from xlperf.workbook.compare_sheet import compare_sheet
from xlperf.workbook.data_sheets import BLANK_ROWS, SCENARIO_CELL, column_reference
from xlperf.workbook.front_formulas import Live
from xlperf.workbook.front_layout import (
    AMBER,
    BLUE,
    FACE,
    GREY,
    NUMBERS,
    ORANGE,
    SHEETS,
    SKY,
    answer,
    axis,
    bars,
    beside,
    border,
    foot,
    form,
    given,
    heading,
    how_sure,
    label,
    page,
    place,
    put,
    results,
    texts,
    tiles,
)
from xlperf.workbook.package import Formulas, data_rows
from xlperf.workbook.serve_train_sheets import serve_sheet, train_sheet
from xlperf.workbook.start_sheet import CARDS
from xlperf.workbook.style import INK, NAVY, RULE, page_setup

if TYPE_CHECKING:
    from openpyxl import Workbook


def live_cells(
    tables: Mapping[str, Table],
    catalog: Catalog | None,
    formulas: Formulas,
    results: Mapping[str, Mapping[str, list[Any]]],
) -> Live:
    """What computes the formulas of front sheets and cards, over the plans and the checks of a workbook.

    ``tables``: sheets of the workbook by kind. ``catalog``: for the values beside the formulas; none: formulas alone.
    ``formulas``: where the values are kept; the checks stand there. ``results``: cells of live results, by kind and
    name.
    """
    live = Live(formulas, catalog)
    live.values |= {("checks", cell): value for cell, value in formulas.values.get("checks", {}).items()}
    live.values["start", SCENARIO_CELL] = CASES[1]
    for kind in PLAN_TABLES:
        columns = table_schema(kind).columns
        rows = [*data_rows(tables[kind], columns), *([None] * len(columns) for _ in range(BLANK_ROWS))]
        cells = zip(*rows, strict=True)
        live.columns |= {column_reference(column): list(own) for column, own in zip(columns, cells, strict=True)}
    owner = table_schema("servers").by_name["accelerator"]
    servers = data_rows(tables["servers"], [owner]) if "servers" in tables else []
    live.columns[column_reference(owner)] = [row[0] for row in servers] + [None] * BLANK_ROWS
    for name, own in results.get("servers", {}).items():
        live.columns[column_reference(results_of("servers").by_name[name])] = list(own)
    return live


def question_sheets(workbook: Workbook, tables: Mapping[str, Table], live: Live) -> None:
    """Add the front sheets, first in the workbook, and the sheets that hold their numbers, last so far.

    ``workbook``: changed in place; the name ``catalog`` and the names of drop-downs stand in it. ``tables``: sheets of
    the workbook by kind. ``live``: writes formulas with their values.
    """
    known = set(tables["accelerators"].text("accelerator").tolist())
    others = [name for name in OTHERS if name in known]
    numbers = [workbook.create_sheet(name) for name in NUMBERS]
    fronts = [workbook.create_sheet(name, place) for place, name in enumerate(SHEETS)]
    serve_sheet(fronts[0], numbers[0], live, others)
    train_sheet(fronts[1], numbers[1], live)
    chip_sheet(fronts[2], numbers[2], live, [name for name in SOLD if name in known])
    compare_sheet(fronts[3], numbers[3], live)
    for front, data in zip(fronts, numbers, strict=True):
        foot(front, data.title, live)
    for data in numbers:
        numbers_look(data)


_DIGITS = "[<1]0.0###;[<100]0.0##;#,##0"


def numbers_look(data: Any) -> None:
    """The look of a sheet that holds numbers of front sheets or cards."""
    data.sheet_properties.tabColor = GREY
    for row in data.iter_rows():
        for cell in row:
            cell.font = Font(name=FACE, size=9)
            if cell.number_format == "General" and (cell.data_type == "f" or isinstance(cell.value, float)):
                cell.number_format = _DIGITS
    wide = {"A": 34, "B": 26, "D": 20}
    longest: dict[str, int] = {}
    for cell in (cell for row in data.iter_rows() for cell in row if cell.value is not None):
        words = cell.value if cell.data_type == "s" else ""
        longest[cell.column_letter] = max(longest.get(cell.column_letter, 0), len(str(words)))
    for letters, most in longest.items():
        data.column_dimensions[letters].width = max(wide.get(letters, 16), min(most, 34))
    page_setup(data, pages_high=1)


SOLD = ("H100-SXM-80GB", "H200-SXM-141GB", "B200-SXM-180GB")
"""Accelerators that the chip is held against, those of them that the workbook has."""
_COSTS = (
    ("dies", "cost_dies", "K"), ("bad dies", "cost_defects", "K"), ("package", "cost_package", "M"),
    ("memory", "cost_memory", "L"), ("losses", "cost_losses", "M"), ("test", "cost_test", "M"),
    ("board", "cost_board", "N"), ("design", "cost_design", "N"),
)  # fmt: skip
_COMPARED = (
    ("FP8 (PFLOP/s)", "peak flop rate fp8", "/1000", "0.0"), ("memory (GiB)", "memory capacity", "", "0"),
    ("bandwidth (TB/s)", "memory bandwidth", "", "0.0"), ("design power (W)", "thermal design power", "", "#,##0"),
    ("system price (USD)", "capex", "", "#,##0"), ("token/s each", "tokens per second per accelerator", "", "#,##0"),
    ("token/s per k USD", "tokens per thousand dollars", "", "0.0"),
)  # fmt: skip


def chip_sheet(sheet: Any, data: Any, live: Live, others: list[str]) -> None:
    """Fill the sheet, and the sheet that holds its numbers, from row 1 and column A on.

    ``sheet``, ``data``: changed in place. ``live``: writes formulas with their values. ``others``: accelerators that
    the chip is held against.
    """
    page(sheet, "What would this accelerator be worth?", live)
    area, cells = form(sheet, "chip", live)
    r = results(data, "chip", area, live)
    _steps(data, r, live)
    _beside_others(data, cells, r, others, live)
    beside(sheet, "chip", live, r)
    answer(sheet, f"={r['answer']}", live)
    share = f'"memory "&TEXT({r["cost_memory"]}/{r["unit_cost"]},"0 %")&" of it"'
    cores = f'"cores "&TEXT({r["power_compute"]}/{r["thermal_design_power"]},"0 %")&" of it"'
    tokens = r["tokens_per_second_per_accelerator"]
    own = (
        ("Cost of a unit", r["unit_cost"], '"$"#,##0', share),
        ("FP8 (PFLOP/s)", f"{r['peak_flop_rate_fp8']}/1000", "0.0", f'{r["num_multiprocessors"]}&" cores"'),
        ("Memory (GiB)", r["memory_capacity"], "0", f'{r["memory_stacks"]}&" stacks"'),
        ("Bandwidth (TB/s)", r["memory_bandwidth"], "0.0", f'{cells["memory"]}&""'),
        ("Power (W)", r["thermal_design_power"], "#,##0", cores),
        ("Serves (token/s)", tokens, "#,##0", f'"at "&{cells["speed_per_user"]}&" a user"'),
    )  # fmt: skip
    tiles(sheet, own, live)
    _charts(sheet, data, live)
    _table(sheet, data, others, live)
    how_sure(sheet, 29, '"A FORECAST"', ('"the rules match six real accelerators within 20\N{NO-BREAK SPACE}%"',
             f'"Limited by: "&{r["limited_by"]}'), live)  # fmt: skip
    price = '"System price: cost / (1 - margin), twice that with server"'
    granted = '"kernels and network as of a B200; wafers, memory and packages as the cost sheets have them"'
    texts(sheet, 29, "Taken for granted", (granted, price), live)


def _steps(data: Any, r: dict[str, str], live: Live) -> None:
    """A unit's cost part by part, each on the sum of those before; columns H to O, rows 2 to 11."""
    heads = ("part", "USD", "below", "silicon", "memory", "package and test", "board and design", "all")
    for letter, words in zip("HIJKLMNO", heads, strict=True):
        live.put(data[f"{letter}2"], words)
    for row, (words, name, column) in enumerate(_COSTS, start=3):
        live.put(data[f"I{row}"], f"=IFERROR(MAX({r[name]},0),0)")
        live.put(data[f"H{row}"], f'="{words}"&CHAR(10)&TEXT(I{row},"#,##0")')
        live.put(data[f"J{row}"], 0 if row == 3 else f"=J{row - 1}+I{row - 1}")
        for letter in "KLMN":
            live.put(data[f"{letter}{row}"], f"=I{row}" if letter == column else 0)
        live.put(data[f"O{row}"], 0)
    live.put(data["I11"], "=SUM(I3:I10)")
    live.put(data["H11"], '="unit"&CHAR(10)&TEXT(I11,"#,##0")')
    for letter in "JKLMN":
        live.put(data[f"{letter}11"], 0)
    live.put(data["O11"], "=I11")


def _beside_others(data: Any, cells: dict[str, str], r: dict[str, str], others: list[str], live: Live) -> None:
    """What the chip and others offer, a row each; the form of row 20 on from column H, answers in columns D to G."""
    names = [column.name for column in table_schema("chip").columns]
    letters = [chr(ord("H") + number) for number in range(len(names))]
    first, last = letters[0], letters[-1]
    for letter, name in zip(letters, names, strict=True):
        live.put(data[f"{letter}20"], table_schema("chip").by_name[name].header)
    for row, accelerator in enumerate(others, start=21):
        for letter, name in zip(letters, names, strict=True):
            live.put(data[f"{letter}{row}"], accelerator if name == "accelerator" else given(cells[name]))
    live.put(data["D1"], "beside what is sold")
    for row, (words, result, _, _) in enumerate(_COMPARED, start=3):
        live.put(data[f"D{row}"], words)
        for letter, number in zip("EFG", range(len(others)), strict=False):
            form_ = f"${first}${21 + number}:${last}${21 + number}"
            asked = f'XLPERF_CHIP({form_},"{result}",catalog,${first}$20:${last}$20)'
            live.put(data[f"{letter}{row}"], f'=IFERROR({asked},"")')
    for row, words in enumerate(("mine", *(name.split("-")[0] for name in others)), start=15):
        live.put(data[f"A{row + 50}"], words)
    for letter, words in zip("BCDE", ("mine", "others", "mine $", "others $"), strict=True):
        live.put(data[f"{letter}64"], words)
    pairs = (("B", "C", "tokens_per_second_per_accelerator", 8), ("D", "E", "tokens_per_thousand_dollars", 9))
    for mine, theirs, name, source in pairs:
        live.put(data[f"{mine}65"], f"=IFERROR({r[name]},0)")
        live.put(data[f"{theirs}65"], 0)
        for row, letter in zip(range(66, 66 + len(others)), "EFG", strict=False):
            live.put(data[f"{mine}{row}"], 0)
            live.put(data[f"{theirs}{row}"], f"=IFERROR(MAX({letter}{source},0),0)")


def _charts(sheet: Any, data: Any, live: Live) -> None:
    heading(sheet, "F13", "What a unit costs (USD)", "K", live)
    colours = ("", BLUE, AMBER, SKY, GREY, NAVY)
    chart: Any = bars(data, "H", (2, 11), "J K L M N O", colours, "#,##0", lying=False, gap=18, stacked=True)
    axis(chart.x_axis, size=7)
    axis(chart.y_axis, number="#,##0", hidden=True)
    place(chart, sheet, "F14:K27", live, (0.01, 0.03, 0.98, 0.82))
    for area, columns, words, number in (
        ("M23:O28", "B C", "token/s each", "#,##0"),
        ("P23:R28", "D E", "token/s per 1,000 USD", "0.0"),
    ):
        put(sheet, f"{area[0]}22", words, "cell left")
        chart = bars(data, "A", (64, 68), columns, (ORANGE, GREY), number, lying=False, gap=40)
        for series, colour in zip(chart.series, (ORANGE, INK), strict=True):
            label(series, "outEnd", colour, colour == ORANGE)
        axis(chart.x_axis)
        axis(chart.y_axis, number=number, hidden=True)
        place(chart, sheet, area, live, (0.02, 0.14, 0.96, 0.66))


def _table(sheet: Any, data: Any, others: list[str], live: Live) -> None:
    heading(sheet, "M13", "Beside what is sold", "R", live)
    put(sheet, "O14", "mine", "head")
    for letter, name in zip("PQR", others, strict=False):
        put(sheet, f"{letter}14", name.split("-")[0], "head")
    for row, (words, result, scale, number) in enumerate(_COMPARED, start=15):
        put(sheet, f"M{row}", words, "cell left")
        mine = next(f"B{at}" for at in range(3, 60) if _named(data[f"A{at}"].value, result))
        source = f"'{data.title}'!"
        put(sheet, f"O{row}", f'=IFERROR({source}{mine}{scale},"\N{EN DASH}")', "cell", number, live=live)
        for letter, column in zip("PQR", "EFG", strict=True):
            put(
                sheet,
                f"{letter}{row}",
                f'=IFERROR({source}{column}{row - 12}{scale},"\N{EN DASH}")',
                "cell",
                number,
                live=live,
            )
        border(sheet, f"M{row}:R{row}", bottom=("hair", RULE))


def _named(header: Any, result: str) -> bool:
    return str(header).split(" (")[0] == result


MODELS = ("DeepSeek-V3", *(str(dict(card)["model"]) for card in CARDS.values()))
"""Models of the forms and cards on the front sheets."""


def example_tables(tables: Mapping[str, Table]) -> dict[str, Table]:
    """One plan of each kind with the rows that they and the front sheets need; technology and calibration whole.

    ``tables``: every sheet of the shipped workbook. Returns training: dense, with experts, mapped by search. Serving:
    each mode, and mapped by search. One design, one server.
    """
    catalog = Catalog.from_tables([table for kind, table in tables.items() if kind not in PLAN_TABLES], "examples")
    chosen = {kind: _first_of_each(tables[kind], _kinds(tables[kind], catalog)) for kind in PLAN_TABLES}
    models, accelerators, networks = set(MODELS), set(OTHERS), set()
    for plans in chosen.values():
        models |= set(catalog.tables["models"].text("model")[catalog.rows("models", plans["model"], plans, "model")])
        for column in ("accelerator", "prefill_accelerator", "expert_accelerator"):
            accelerators |= set(plans.text(column))
        networks |= set(plans.text("network"))
    kept = _rows_named(tables["accelerators"], "accelerator", accelerators)
    networks |= set(kept.text("default_network"))
    found = {
        **tables,
        **chosen,
        "models": _rows_named(tables["models"], "model", models),
        "accelerators": kept,
        "networks": _rows_named(tables["networks"], "network", networks),
        "prices": _rows_named(tables["prices"], "price", accelerators),
    }
    for kind in ("chiplets", "servers"):
        if kind in tables:
            found[kind] = _rows_named(tables[kind], "accelerator", accelerators).take(np.array([0]))
    return found


def _rows_named(table: Table, column: str, names: set[str]) -> Table:
    """Rows whose name is one of some."""
    known = {name.casefold() for name in names if name}
    return table.take(np.flatnonzero([str(name).casefold() in known for name in table.text(column)]))


def _kinds(plans: Table, catalog: Catalog) -> list[str]:
    """What kind of plan each row is an example of."""
    searched = np.zeros(len(plans), dtype=bool)
    for rows in plans.auto.values():
        searched |= rows
    if plans.kind == "training":
        rows = catalog.rows("models", plans["model"], plans, "model")
        experts = catalog.tables["models"].number("num_experts", 0.0)[rows] > 0
        kinds = np.where(experts, "experts", "dense").astype(object)
    else:
        kinds = plans.filled("mode").astype(object)
    kinds[searched] = "searched"
    return [str(kind) for kind in kinds]


def _first_of_each(plans: Table, kinds: list[str]) -> Table:
    first: Callable[[str], int] = kinds.index
    return plans.take(np.array(sorted(map(first, dict.fromkeys(kinds)))))
