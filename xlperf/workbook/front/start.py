"""The sheet ``start`` with its list of all sheets, the front sheets in order, and a small workbook to start from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from openpyxl.styles import Alignment, Font
from openpyxl.utils import get_column_letter, quote_sheetname
from openpyxl.workbook.defined_name import DefinedName
from openpyxl.worksheet.pagebreak import Break

from xlperf.addin.functions import PREFIX
from xlperf.base import resources
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import (
    CATALOG_TABLES,
    FORMS,
    MARKET_TABLES,
    OPTIONAL_TABLES,
    PLAN_TABLES,
    QUESTION_TABLES,
    TECHNOLOGY_TABLES,
    first_words,
    questions,
    results_of,
    schema,
    shown_columns,
    table_schema,
)
from xlperf.catalog.table import CASES, Table
from xlperf.explore.others import OTHERS
from xlperf.workbook.data_sheets import (
    BLANK_ROWS,
    CATALOG_CELL,
    CATALOG_NAME,
    DATA_SHEETS,
    LIST_END,
    LIVE_RESULTS,
    SCENARIO_CELL,
    SheetGroup,
    alarm,
    choices_of,
    column_reference,
    column_validation,
    index_tops,
    names_of,
    plan_names,
    sheet_columns,
    sheet_groups,
)
from xlperf.workbook.front.answers import answer_sheet
from xlperf.workbook.front.formulas import Live
from xlperf.workbook.front.layout import NUMBERS, SHEETS, Page
from xlperf.workbook.front.plan_card import compare_sheet
from xlperf.workbook.front.question import number_page, number_pages, question_sheet
from xlperf.workbook.package import Formulas, data_rows
from xlperf.workbook.plain_formulas import TITLE
from xlperf.workbook.style import (
    FONT,
    NAVY,
    column_widths,
    drop_down,
    link,
    number_format,
    open_on,
    page_setup,
    put,
    texts,
    title,
)

if TYPE_CHECKING:
    from openpyxl import Workbook
    from openpyxl.worksheet.worksheet import Worksheet

    from xlperf.catalog.table import Table


def arrange(workbook: Workbook, tables: Mapping[str, Table], live: Live) -> None:
    """Order, colour and list the sheets by group; hide the sheets that only hold numbers of charts and cards."""
    book: Any = workbook
    start = book["start"]
    start.sheet_properties.tabColor = NAVY
    order, below = [start], index_tops()
    for group in sheet_groups():
        present = [name for name in group.sheets if name in book.sheetnames]
        if present:
            order += [book[name] for name in present]
            _listed(start, group, present, below[group.place], tables, live)
            below[group.place] += len(present) + 1
    hidden = [sheet for sheet in book.worksheets if sheet not in order]
    for sheet in hidden:
        sheet.sheet_state = "hidden"
    book._sheets = [*order, *hidden]
    open_on(book, start)


def _listed(
    start: Any, group: SheetGroup, names: Sequence[str], top: int, tables: Mapping[str, Table], live: Live
) -> None:
    """List the sheets of a group below its heading: each with its question and answer, or with its number of rows."""
    titles = {kind: DATA_SHEETS[kind].title for kind in tables} | {"tco": TITLE}
    first, second = {"right": ("E", "F"), "beside": ("G", "")}.get(group.place, ("B", "C"))
    put(start[f"{first}{top}"], group.words, "xlperf heading")
    start.row_dimensions[top].height = 20 if group.place in ("top", "beside") else _LISTED
    for row, name in enumerate(names, start=top + 1):
        start.parent[name].sheet_properties.tabColor = group.colour
        link(start[f"{first}{row}"], name, titles.get(name, name[0].upper() + name[1:]))
        if group.place == "beside":  # answers end at this column
            start[f"{first}{row}"].alignment = Alignment(horizontal="left", vertical="center", indent=1)
        if not second:
            continue
        beside = start[f"{second}{row}"]
        if group.place == "top":
            put(beside, group.questions[group.sheets.index(name)], "xlperf text", wrapped=True)
            live.styled(start[f"D{row}"], f"='{name}'!F5&\"\"", "xlperf note")
            start[f"D{row}"].alignment = Alignment(horizontal="left", vertical="center", indent=1, wrap_text=True)
            start.merge_cells(f"D{row}:F{row}")
            start.row_dimensions[row].height = 30
            continue
        start.row_dimensions[row].height = _LISTED
        if name in tables:
            put(beside, f"{len(tables[name])} rows", "xlperf note", wrapped=False)


STEPS_TOP, CARD_TOP, LEGEND_TOP, CHOICES_TOP = LIST_END, LIST_END + 13, LIST_END + 36, LIST_END + 44
"""Rows of the parts of the sheet below the list. [-]"""
_LISTED = 18.0
"""Height of the rows of lists of sheets, with those of the headings of lists beside them. [pt]"""
DASH = "\N{EN DASH}"
CARDS: dict[str, list[tuple[str, str | int]]] = {kind: [] for kind in PLAN_TABLES}
for _row in resources.rows("workbook/start_cards.csv"):
    CARDS[_row["sheet"]].append((_row["column"], int(_row["value"]) if _row["value"].isdigit() else _row["value"]))
CARD_RESULTS = {kind: shown_columns(f"{kind}_results", "card") for kind in CARDS}
"""Results of a card; its reason is the line on top."""


def catalog_kinds(tables: Iterable[str]) -> list[str]:
    """Sheets in the catalog cell, with the inputs of devices and designs if these are present."""
    present = set(tables)
    behind = TECHNOLOGY_TABLES if "devices" in present else ()
    made = ("process_nodes", "packages") if present & {"devices", "chiplets"} else ()
    owned = ("servers", *MARKET_TABLES, *QUESTION_TABLES)
    return [*CATALOG_TABLES, *(kind for kind in (*behind, *made, *owned) if kind in present)]


def front_sheet(
    workbook: Workbook, tables: Mapping[str, Table], handle: str, live: Live, examples: bool = True
) -> Worksheet:
    """Add the sheet ``start`` and the defined names of the workbook."""
    sheet: Worksheet = workbook.create_sheet("start")
    title(sheet, "xlperf", "Performance, memory and cost of training and serving large language models", "B1")
    column_widths(sheet, 2, 30, 36, 3, 44, 45, 32, 12, 12, 12)
    sheet.sheet_view.showRowColHeaders = False
    put(sheet[f"B{STEPS_TOP}"], "How to use it", "xlperf heading")
    sheet.row_dimensions[STEPS_TOP].height = _LISTED
    # an empty workbook has no front sheets, which need models, accelerators and the tables of technology
    for number, words in enumerate(texts("steps" if examples else "steps of an empty workbook"), start=1):
        _wide(sheet, STEPS_TOP + number, f"{number}.  {words}")
    put(sheet[f"B{CATALOG_CELL[1:]}"], "catalog", "xlperf key")
    given = ",".join([*(_whole(kind) for kind in catalog_kinds(tables)), SCENARIO_CELL])
    catalog_cell: Any = sheet[CATALOG_CELL]
    live.formulas.put(catalog_cell, f"={PREFIX}CATALOG({given})", handle)
    _scenario(sheet)
    words = (
        "Identifies the content of the catalog sheets: every result refers to it, so an edit there changes the results."
    )
    put(sheet[f"E{CATALOG_CELL[1:]}"], words, "xlperf note")
    sheet.merge_cells(f"E{CATALOG_CELL[1:]}:G{CATALOG_CELL[1:]}")
    for letters, kind in ((("B", "C"), "training"), (("E", "F"), "inference")):
        _card(sheet, letters, kind, live, examples)
    _legend(sheet, LEGEND_TOP)
    _choices(workbook, sheet, tables, CHOICES_TOP)
    _names(workbook, tables)
    page_setup(sheet, area=f"A1:G{LEGEND_TOP - 1}")
    sheet.row_breaks.append(Break(id=STEPS_TOP - 1))
    return sheet


def _whole(kind: str) -> str:
    """Reference to a sheet's table with its header; of one with live results the inputs, which these follow from."""
    inputs = [column.header for column in sheet_columns(kind) if not column.is_result]
    return f"{kind}[[#All],[{inputs[0]}]:[{inputs[-1]}]]" if kind in LIVE_RESULTS else f"{kind}[[#All]]"


def _scenario(sheet: Worksheet) -> None:
    """The switch between the cases of prices and bands."""
    row = SCENARIO_CELL[1:]
    put(sheet[f"B{row}"], "scenario", "xlperf key")
    cell = put(sheet[SCENARIO_CELL], CASES[1], "xlperf input")
    _left(cell)
    drop_down(sheet, SCENARIO_CELL, f'"{",".join(CASES)}"', allow_blank=True)
    words = "low: what columns ..._low give, and on front sheets the fast end of the bands; high: the other ends."
    put(sheet[f"E{row}"], words, "xlperf note")
    sheet.merge_cells(f"E{row}:G{row}")


def _wide(sheet: Worksheet, row: int, words: str) -> None:
    put(sheet[f"B{row}"], words, "xlperf text")
    sheet.merge_cells(f"B{row}:G{row}")
    sheet.row_dimensions[row].height = 15


def _card(sheet: Worksheet, letters: tuple[str, str], kind: str, live: Live, examples: bool) -> None:
    """A card of a plan: one line with the assumptions or the fault, inputs, results."""
    left, right = letters
    heading = {"training": "A training run", "inference": "A served model"}[kind]
    put(sheet[f"{left}{CARD_TOP - 3}"], heading, "xlperf heading")
    put(sheet[f"{left}{CARD_TOP - 1}"], "name", "xlperf header")
    put(sheet[f"{right}{CARD_TOP - 1}"], "value", "xlperf header")
    longest = max(len(own) for own in CARDS.values())
    for row, (name, value) in enumerate(CARDS[kind], start=CARD_TOP):
        column = table_schema(kind).by_name[name]
        live.put(put(sheet[f"{left}{row}"], None, "xlperf key"), column.header)
        _shrunk(sheet[f"{left}{row}"])
        cell = put(sheet[f"{right}{row}"], None, "xlperf input", number_format(column))
        live.put(cell, value if examples else None)
        _left(cell)
        validation = column_validation(column, f"{right}{row}")
        if validation is not None:
            validation.add(f"{right}{row}")
            sheet.add_data_validation(validation)
    area = f"${left}${CARD_TOP}:${right}${CARD_TOP + len(CARDS[kind]) - 1}"
    first = f"${right}${CARD_TOP}"
    check = f'=IF({first}="","",{PREFIX}CHECK({area},{CATALOG_NAME}))'
    line = f"{left}{CARD_TOP - 2}:{right}{CARD_TOP - 2}"
    live.styled(sheet[f"{left}{CARD_TOP - 2}"], check, "xlperf reason")
    sheet.merge_cells(line)
    sheet.row_dimensions[CARD_TOP - 2].height = 38
    alarm(sheet, line, f'${right}${CARD_TOP + longest + 1}="{DASH}"')
    top = CARD_TOP + longest
    put(sheet[f"{left}{top}"], "result", "xlperf header result")
    put(sheet[f"{right}{top}"], "value", "xlperf header result")
    for row, name in enumerate(CARD_RESULTS[kind][:-1], start=top + 1):
        column = results_of(kind).by_name[name]
        _shrunk(put(sheet[f"{left}{row}"], column.header, "xlperf key"))
        if len(column.header) > _LONG_NAME and kind == "training":
            sheet[f"{left}{row}"].alignment = Alignment(horizontal="left", vertical="center", wrap_text=True)
            sheet.row_dimensions[row].height = 26
        answer: Any = sheet[f"{right}{row}"]
        asked = f'=IFERROR({PREFIX}{name.upper()}({area},{CATALOG_NAME}),"{DASH}")'
        live.styled(answer, asked, number=number_format(column))
        _left(answer)


_LONG_NAME = 34
"""Letters from which on a name takes two lines of its card. [-]"""


def _shrunk(cell: Any) -> None:
    cell.alignment = Alignment(horizontal="left", vertical="center", shrink_to_fit=True)


def _left(cell: Any) -> None:
    cell.alignment = Alignment(horizontal="left", vertical="center", wrap_text=cell.alignment.wrap_text)


def _legend(sheet: Worksheet, top: int) -> None:
    put(sheet[f"E{top}"], "Colours", "xlperf heading")
    for row, (style, sample, words) in enumerate(
        (
            ("xlperf header", "header", "what you give; the comment says what it means"),
            ("xlperf header result", "header", "what xlperf computes"),
            ("xlperf key", "name", "key of the row"),
            ("xlperf input", "input", "change it"),
            ("xlperf computed", "result", "computed: leave it"),
        ),
        start=top + 1,
    ):
        put(sheet[f"E{row}"], sample, style)
        put(sheet[f"F{row}"], words, "xlperf note")
        sheet.merge_cells(f"F{row}:G{row}")


def _softwares(kind: str, calibration: Table) -> list[str]:
    """Training stacks or serving engines of the calibration, the choices of a plan's software."""
    stack = "training_" if kind == "training" else "serving_"
    keyed = zip(calibration.text("family").tolist(), calibration.text("software").tolist(), strict=True)
    default = table_schema(kind).by_name["software"].default
    return sorted({default, *(software for family, software in keyed if str(family).startswith(stack))} - {"any", ""})


def _choices(workbook: Workbook, sheet: Worksheet, tables: Mapping[str, Table], first: int) -> None:
    top = first + 3
    put(sheet[f"B{top - 2}"], "What the columns with a choice may hold", "xlperf heading")
    columns = [column for kind in (*tables, *FORMS) for column in schema()[kind].columns if column.kind == "choice"]
    words = [(column, list(column.entries)) for column in columns]
    known = [(table_schema(kind).by_name["software"], _softwares(kind, tables["calibration"])) for kind in PLAN_TABLES]
    for row, (column, entries) in enumerate([*words, *known], start=top - 1):
        put(sheet[f"B{row}"], f"{column.table}: {column.header}", "xlperf key")
        letters = [get_column_letter(3 + number) for number in range(len(entries))]
        for letter, word in zip(letters, entries, strict=True):
            put(sheet[f"{letter}{row}"], word, "xlperf note")
        reference = f"{quote_sheetname(sheet.title)}!$C${row}:${letters[-1]}${row}"
        workbook.defined_names[choices_of(column)] = DefinedName(choices_of(column), attr_text=reference)


def _names(workbook: Workbook, kinds: Iterable[str]) -> None:
    column, row = CATALOG_CELL[0], CATALOG_CELL[1:]
    workbook.defined_names[CATALOG_NAME] = DefinedName(CATALOG_NAME, attr_text=f"start!${column}${row}")
    for kind in ("accelerators", "networks", "models", *(kind for kind in kinds if kind in OPTIONAL_TABLES)):
        reference = f"{kind}[{table_schema(kind).key.header}]"
        workbook.defined_names[names_of(kind)] = DefinedName(names_of(kind), attr_text=reference)
    for kind in PLAN_TABLES:
        reference = column_reference(table_schema(kind).columns[0])
        workbook.defined_names[plan_names(kind)] = DefinedName(plan_names(kind), attr_text=reference)


def live_cells(
    tables: Mapping[str, Table],
    catalog: Catalog | None,
    formulas: Formulas,
    results: Mapping[str, Mapping[str, list[Any]]],
) -> Live:
    """Evaluator of the formulas of a workbook over its tables.

    ``tables``: sheets of the workbook by kind. ``catalog``: for the values beside the formulas; None writes formulas
    alone. ``formulas``: collects values. ``results``: cells of live results, by kind and name.
    """
    live = Live(formulas, catalog)
    live.values["start", SCENARIO_CELL] = CASES[1]
    for kind in tables:
        columns = table_schema(kind).columns
        rows = [*data_rows(tables[kind], columns), *([None] * len(columns) for _ in range(BLANK_ROWS))]
        cells = zip(*rows, strict=True)
        live.columns |= {column_reference(column): list(own) for column, own in zip(columns, cells, strict=True)}
        for name, own in results.get(kind, {}).items():
            live.columns[column_reference(results_of(kind).by_name[name])] = list(own)
    owner = column_reference(table_schema("servers").by_name["accelerator"])
    live.columns.setdefault(owner, [None] * BLANK_ROWS)
    return live


SOLD = ("H100-SXM-80GB", "H200-SXM-141GB", "B200-SXM-180GB")
"""Accelerators for comparison with a chip, if the workbook has them."""


def question_sheets(workbook: Workbook, tables: Mapping[str, Table], live: Live) -> None:
    """Add the front sheets, the pages of all their numbers, and the sheets that their charts are drawn from."""
    known = set(tables["accelerators"].text("accelerator").tolist())
    compared = {"serve": (), "train": (), "chip": SOLD}
    for form, sheet, numbers in zip((*questions(), "compare"), SHEETS, NUMBERS, strict=True):
        page = Page(workbook.create_sheet(sheet), workbook.create_sheet(numbers), live)
        if form == "compare":
            compare_sheet(page)
            page.foot("training")
        else:
            page.fill(questions()[form].words)
            if form in compared:
                answer_sheet(page, form, [name for name in compared[form] if name in known])
            else:
                question_sheet(page, questions()[form])
            page.foot(number_pages()[form].sheet)
            number_page(workbook, form, sheet, page.entries, page.answers, live)
        numbers_look(page.data)


_DIGITS = "[<1]0.0###;[<100]0.0##;#,##0"


def numbers_look(data: Any) -> None:
    """The look of a sheet that holds numbers of front sheets or cards."""
    for row in data.iter_rows():
        for cell in row:
            cell.font = Font(name=FONT, size=8)
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


MODELS = ("DeepSeek-V3", *(str(dict(card)["model"]) for card in CARDS.values()))
"""Models of the forms and cards on the front sheets."""


def example_tables(tables: Mapping[str, Table]) -> dict[str, Table]:
    """One plan of each kind with the rows that they and the front sheets need; technology and calibration whole."""
    catalog = Catalog.from_tables([table for kind, table in tables.items() if kind not in PLAN_TABLES], "examples")
    chosen = {}
    for kind in PLAN_TABLES:
        kinds = _kinds(tables[kind], catalog)
        chosen[kind] = tables[kind].take(np.array(sorted({kinds.index(own) for own in kinds})))
    generations = [name.strip() for name in first_words("fleet")["generations"].split(";")]
    bought = catalog.rows("accelerators", np.array(generations, dtype=object), tables["training"], "accelerator")
    fleet = set(catalog.tables["accelerators"].text("accelerator")[bought])
    asked = {first_words(form).get(name, "") for form in FORMS for name in ("model", "training_model")}
    models, accelerators, networks = {*MODELS, *asked}, {*OTHERS, *fleet}, set()
    for plans in chosen.values():
        models |= set(catalog.tables["models"].text("model")[catalog.rows("models", plans["model"], plans, "model")])
        for column in ("accelerator", "prefill_accelerator", "expert_accelerator"):
            accelerators |= set(plans.text(column))
        networks |= set(plans.text("network"))
    kept = _rows_named(tables["accelerators"], "accelerator", accelerators)
    networks |= set(kept.text("default_network"))
    by_name = {
        **tables,
        **chosen,
        "models": _rows_named(tables["models"], "model", models),
        "accelerators": kept,
        "networks": _rows_named(tables["networks"], "network", networks),
        "prices": _rows_named(tables["prices"], "price", accelerators),
    }
    if "api_prices" in tables:
        by_name["api_prices"] = _rows_named(tables["api_prices"], "model", models)
    for kind, names in (("chiplets", set()), ("servers", fleet)):
        if kind in tables:
            rows = _rows_named(tables[kind], "accelerator", accelerators)
            every = rows.text("accelerator").tolist()
            by_name[kind] = rows.take(sorted({0, *(every.index(name) for name in names if name in every)}))
    return by_name


def _rows_named(table: Table, column: str, names: set[str]) -> Table:
    """Rows whose name is one of some."""
    known = {name.casefold() for name in names if name}
    return table.take(np.flatnonzero([str(name).casefold() in known for name in table.text(column)]))


def _kinds(plans: Table, catalog: Catalog) -> list[str]:
    """Kind of plan that each row is an example of."""
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
