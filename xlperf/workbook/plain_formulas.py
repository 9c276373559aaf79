"""The sheets ``tco`` and ``checks``: plain formulas that work without the add-in; charts below designs and servers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from openpyxl.chart.series import SeriesLabel
from openpyxl.styles import Alignment
from openpyxl.utils import get_column_letter, range_boundaries
from openpyxl.worksheet.pagebreak import Break

from xlperf.addin.cells import CellError
from xlperf.base import resources
from xlperf.base.units import HOUR, YEAR
from xlperf.catalog.schema import (
    CATALOG_TABLES,
    OPTIONAL_TABLES,
    PLAN_TABLES,
    Column,
    grouped,
    results_of,
    table_schema,
)
from xlperf.catalog.table import CASES
from xlperf.workbook import data_sheets
from xlperf.workbook.front.formulas import Live
from xlperf.workbook.front.layout import Axis, Page
from xlperf.workbook.package import data_rows
from xlperf.workbook.style import drop_down, home, page_setup, put, signed_format, texts, title

if TYPE_CHECKING:
    from openpyxl import Workbook
    from openpyxl.worksheet.worksheet import Worksheet

    from xlperf.catalog.table import Table


TITLE = "TCO"
TOP = 13
CHOICES = (
    ("C5", "rent or own", "", "rent or own; blank: rent if the sheet prices has one"),
    ("C6", "life", "year", "blank: as in prices"),
    ("C7", "utilization", "", "blank: as in prices"),
    ("C8", "energy price", "USD/kWh", "blank: as in prices"),
    ("C9", "power usage effectiveness", "", "blank: as in prices"),
)
SPARE_ROWS = 10
"""Rows for prices that a user adds."""
_COLUMNS = resources.rows("workbook/tco_columns.csv")
"""Columns of plans, and right of them the columns of an hour of each price, with their formulas."""
_PLANS, _HOURS = ([row for row in _COLUMNS if row["block"] == block] for block in ("plans", "hours"))
_HELPER = "row of the hours"
"""Column that the formulas beside it look up; hidden."""
_FIRST = len(_PLANS) + 2
_AT = {row["name"]: get_column_letter(_FIRST + place) for place, row in enumerate(_HOURS)}
"""Columns of the hours, right of the plans."""
_PLACE = re.compile(r"\{([^}]*)\}")


def tco_sheet(workbook: Workbook, tables: Mapping[str, Table], live: Live) -> Worksheet:
    """Add the sheet ``tco``."""
    sheet: Worksheet = workbook.create_sheet("tco")
    words = "Cost of ownership by plain formulas, which need no add-in. Yellow cells stand for all plans."
    title(sheet, TITLE, words)
    home(sheet)
    for chosen, name, unit, note in CHOICES:
        put(sheet[f"A{chosen[1:]}"], f"{name} ({unit})" if unit else name, "xlperf key")
        put(sheet[chosen], None, "xlperf input")
        _note(sheet, f"E{chosen[1:]}", note)  # column D is hidden
    _note(sheet, "A10", texts("unpriced")[0])
    drop_down(sheet, "C5", '"rent,own"', allow_blank=True)
    for first, columns in ((1, _PLANS), (_FIRST, _HOURS)):
        for offset, column in enumerate(columns, start=first):
            put(sheet.cell(TOP - 1, offset), column["header"], "xlperf header")
            sheet.column_dimensions[get_column_letter(offset)].width = float(column["width"])
            sheet.column_dimensions[get_column_letter(offset)].hidden = column["header"] == _HELPER
    sheet.row_dimensions[TOP - 1].height = 44
    hours = len(tables["prices"]) + SPARE_ROWS
    for row in range(TOP, TOP + hours):
        _row(sheet, live, row, _FIRST, _HOURS, partial(_hour_place, row - TOP + 1, row))
    row = TOP
    for kind in PLAN_TABLES:
        for number in range(1, len(tables[kind]) + 1):
            _row(sheet, live, row, 1, _PLANS, partial(_plan_place, kind, number, row, TOP + hours - 1), kind)
            row += 1
    _note(sheet, f"A{row + 1}", texts("ownership")[0])
    sheet.freeze_panes = f"B{TOP}"
    last = max(row + 1, TOP + hours - 1)
    page_setup(sheet, TOP - 1, area=f"A1:{_AT['hour']}{last}")
    sheet.page_setup.paperSize = 8
    return sheet


def _row(
    sheet: Worksheet,
    live: Live,
    row: int,
    first: int,
    columns: Sequence[Mapping[str, str]],
    filled: Callable[[str], str],
    kind: str = "",
) -> None:
    """Write the formulas of a row, the name of a prefill accelerator before the formulas that look it up."""
    for place, column in sorted(enumerate(columns), key=lambda each: each[1]["header"] != "prefill accelerator"):
        template = (kind == "inference" and column["inference"]) or column["formula"]
        formula = _PLACE.sub(lambda match: filled(match[1]), template)
        look = "xlperf key" if place == 0 else "xlperf computed"
        cell: Any = sheet.cell(row, first + place)
        live.styled(cell, f"={formula}", look, column["format"])
        if place == 0:  # a long name of a plan
            cell.alignment = Alignment(horizontal="left", vertical="center", shrink_to_fit=True)


def _note(sheet: Worksheet, place: str, words: str) -> None:
    cell: Any = put(sheet[place], words, "xlperf note")
    cell.alignment = Alignment(horizontal="left", vertical="center", wrap_text=False)


def _column(kind: str, name: str) -> str:
    return data_sheets.column_reference(table_schema(kind).by_name.get(name) or results_of(kind).by_name[name])


def _hour_place(number: int, row: int, words: str) -> str:
    """A place of the formula of one row of prices: a column of the row, or an input.

    ``priced NAME`` is a price in its scenario; ``chosen NAME CELL`` the cell above the table, else the price, else the
    default.
    """
    names, name = _column("prices", "price"), f"${_AT['name']}{row}"
    what, _, rest = words.partition(" ")
    column, _, chosen = rest.partition(" ")
    if what in _AT:
        return f"${_AT[what]}{row}"
    if what == "priced":
        result = f"INDEX({_column('prices', column)},{number})"
        result = f'IF({result}="","",{result})'
        for case in (case for case in CASES if f"{column}_{case}" in table_schema("prices").by_name):
            cell = f"INDEX({_column('prices', f'{column}_{case}')},{number})"
            result = f'IF(AND({data_sheets.SCENARIO}="{case}",{cell}<>""),{cell},{result})'
        return f'IF({name}="","",{result})'
    if what == "chosen":
        result = _hour_place(number, row, f"priced {column}")
        stated = f'IF({result}="",{table_schema("prices").by_name[column].default},{result})'
        return f'IF({name}="","",' + (f'IF({chosen}<>"",{chosen},{stated}))' if chosen else f"{stated})")
    accelerators = f"MATCH({name},{_column('accelerators', 'accelerator')},0)"
    return {
        "prices": names,
        "number": str(number),
        "device_power": f"INDEX({_column('accelerators', 'thermal_design_power')},{accelerators})",
        "server_factor": table_schema("devices").by_name["server_power_ratio"].default,
        "year_hours": f"{YEAR / HOUR:g}",
    }[what]


def _plan_place(kind: str, number: int, row: int, last: int, words: str) -> str:
    """A place of the formula of one plan; the hours end in row ``last``.

    ``given NAME`` is a cell of the plan; ``at COLUMN`` the row of the hours of the accelerator named there; ``hour NAME
    COLUMN`` a number of the row that a column holds.
    """
    what, _, rest = words.partition(" ")
    name, _, column = rest.partition(" ")
    if what == "given":
        return f"INDEX({_column(kind, name)},{number})"
    hours = f"${_AT[name if what == 'hour' else 'name']}"
    hours = f"{hours}${TOP}:{hours}${last}"
    if what == "hour":
        return f'IF(${column}{row}=0,"",INDEX({hours},${column}{row}))'
    if what == "at":
        return f'IF(${name}{row}="",0,IFERROR(MATCH(${name}{row},{hours},0),0))'
    return {"kind": kind, "row": str(row), "seconds": f"{HOUR:g}"}[what]


def cost_charts(book: Any, live: Live) -> None:
    """Add a chart of the parts of the cost below each sheet of cost_charts.csv that has rows."""
    for own in resources.rows("workbook/cost_charts.csv"):
        kind = own["sheet"]
        if kind not in book.sheetnames:
            continue
        parts = grouped(f"{kind}_results", own["parts"])
        sheet = book[kind]
        edges: Any = range_boundaries(sheet.tables[kind].ref)
        last = edges[3] - data_sheets.BLANK_ROWS
        if last <= data_sheets.HEADER_ROW or sheet.cell(data_sheets.HEADER_ROW + 1, 1).value is None:
            continue
        values = live.formulas.values.get(kind, {})
        for row in sheet.iter_rows(min_row=data_sheets.HEADER_ROW, max_row=last):
            live.values |= {(kind, cell.coordinate): values.get(cell.coordinate, cell.value) for cell in row}
        names, in_sight = (
            [column.name for column in data_sheets.sheet_columns(kind)],
            data_sheets.DATA_SHEETS[kind].in_sight,
        )
        letters = " ".join(get_column_letter(names.index(name) + 1) for name in parts)
        page = Page(sheet, sheet, live)
        rows = data_sheets.HEADER_ROW, last
        chart = page.bars("A", rows, letters, own["colours"].split(), "#,##0", gap=35, stacked=True, formats=False)
        for series, name in zip(chart.series, parts, strict=True):
            series.tx = SeriesLabel(v=name.replace("nre", "design").replace("_", " "))
        chart.visible_cells_only = False  # a part may stand in a column that is folded
        chart.y_axis.crosses = "max"
        top = edges[3] + 2
        end_row = top + max(14, 6 + 2 * (last - data_sheets.HEADER_ROW))
        put(sheet[f"A{top}"], own["heading"], "xlperf heading")
        sheet.print_area = f"A{data_sheets.HEADER_ROW - 1}:{get_column_letter(len(names))}{end_row}"
        first, end = (
            get_column_letter(names.index(name) + 1) for name in (in_sight[0], data_sheets.DATA_SHEETS[kind].results[3])
        )
        area, y = f"{first}{top + 1}:{end}{end_row}", Axis(number=own["number"], grid=True)
        page.place(chart, area, Axis(), y, (0.19, 0.02, 0.62, 0.88), (0.83, 0.02, 0.16, float(own["legend"])))


TOLERANCE = 0.01
_ROWS = 1048577
"""Rows of a sheet and 1. [-]"""
_SPARE_MODELS = 20
_CHECKS_TOP = 5
_PULLED = (
    *("num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "head_size", "ffn_hidden_size"),
    *("vocab_size", "max_sequence_length", "gated_mlp", "tied_embeddings", "position_embedding", "normalization"),
    *("linear_bias", "query_key_norm", "attention_type", "num_experts"),
)
_TEXT_DEFAULTS = {"gated_mlp": "no", "tied_embeddings": "no", "query_key_norm": "no"}
_DENSE = ("MHA", "MQA", "GQA")
_UNEQUAL = ("local_num_attention_heads", "local_num_query_groups", "local_head_size", "keys_as_values")
"""Columns of models whose layers are not alike: the formula counts layers of one shape."""
_RESULTS = {"chiplets": "unit_cost", "servers": "cost_rate"}
"""Results that rows of designs and servers have."""


@dataclass(frozen=True)
class Check:
    """One line of the summary: counted fault, formula, value, whether it should be zero, first cell."""

    words: str
    formula: str
    value: int | None
    zero: bool = True
    first: str = ""


def _first_cell(test: str, column: Column) -> str:
    """Formula for the address and the content of the first cell of a column whose test, an array formula, is 1."""
    kind, cells = column.table.removesuffix("_results"), data_sheets.column_reference(column)
    row = f"{_ROWS}-SUMPRODUCT(MAX(({test})*({_ROWS}-ROW({cells}))))"
    content = f"INDEX({cells},{row}-SUMPRODUCT(MIN(ROW({cells})))+1)"
    words = f'IFERROR(": "&{content},"")'
    return f'"{kind}!"&ADDRESS({row},SUMPRODUCT(MIN(COLUMN({cells}))),4)&{words}'


def checks_sheet(
    workbook: Workbook, tables: Mapping[str, Table], results: Mapping[str, Mapping[str, Sequence[Any]]], live: Live
) -> Worksheet:
    """Add the sheet ``checks``."""
    sheet: Worksheet = workbook.create_sheet("checks")
    title(sheet, "Checks", "Plain formulas: they work without the add-in. What is not ok is highlighted.")
    home(sheet, "E1")
    live = replace(live, known=True)
    rows: dict[str, list[dict[str, Any]]] = {}
    for kind, table in tables.items():
        columns = table_schema(kind).columns
        names = [column.name for column in columns]
        rows[kind] = [dict(zip(names, row, strict=True)) for row in data_rows(table, columns)]
    checks = _summary(rows, results)
    model_top = _CHECKS_TOP + len(checks) + 4
    first, last = model_top + 1, model_top + len(rows["models"]) + _SPARE_MODELS
    letters = {name: get_column_letter(3 + number) for number, name in enumerate(_PULLED)}
    after = [get_column_letter(3 + len(_PULLED) + number) for number in range(4)]
    verdict = f"${after[3]}${first}:${after[3]}${last}"
    put(sheet[f"B{model_top - 1}"], "Parameters of the models, from their shapes", "xlperf heading")
    headers = ["row", "model", *[name.replace("_", " ") for name in _PULLED]]
    for offset, words in enumerate([*headers, "computed (G)", "stated (G)", "difference", "verdict"], start=1):
        computed = offset > 2 + len(_PULLED)
        put(sheet.cell(model_top, offset), words, "xlperf header result" if computed else "xlperf header")
    sheet.row_dimensions[model_top].height = 42
    for number, row in enumerate(range(first, last + 1), start=1):
        _model_row(sheet, row, number, letters, after, live)
    for words, state in (("differ by more than 1 % from", "differs"), ("agree with", "ok")):
        count = f'COUNTIF({verdict},"{state}")'
        number = live.value_of(count, "checks")
        checks.append(Check(f"Dense models whose parameters {words} those stated", count, number, state == "differs"))
    faulty = sum(one.zero and bool(one.value) for one in checks)
    words = "checks of all sheets: ok" if faulty == 0 else f"checks: {faulty} to look at, see the sheet checks"
    live.formulas.put(_at(sheet, "B3"), f"={data_sheets.VERDICT}", words, "xlperf heading")
    data_sheets.alarm(sheet, "B3", 'RIGHT($B$3,2)<>"ok"')
    for offset, words in enumerate(("check", "count", "verdict", "first cell")):
        put(sheet.cell(_CHECKS_TOP - 1, 2 + offset), words, "xlperf header")
    for row, check in enumerate(checks, start=_CHECKS_TOP):
        put(sheet[f"B{row}"], check.words, "xlperf key")
        live.formulas.put(_at(sheet, f"C{row}"), f"={check.formula}", check.value, number="#,##0")
        shown = None if check.value is None else "check" if check.zero and check.value else "ok"
        test = f'IF(C{row}=0,"ok","check")' if check.zero else '"ok"'
        live.formulas.put(_at(sheet, f"D{row}"), f"={test}", shown)
        if check.first:
            live.formulas.put(_at(sheet, f"E{row}"), f'=IF(C{row}=0,"",{check.first})', None if check.value else "")
    live.values |= {("checks", cell): value for cell, value in live.formulas.values.get("checks", {}).items()}
    _finish(sheet, letters, after, model_top, (first, last), len(checks))
    return sheet


def _at(sheet: Worksheet, reference: str) -> Any:
    return sheet[reference]


def _model_row(
    sheet: Worksheet, row: int, number: int, letters: Mapping[str, str], after: Sequence[str], live: Live
) -> None:
    put(sheet[f"A{row}"], number, "xlperf note")
    live.values["checks", f"A{row}"] = number
    known = f"$A{row}<=COUNTA(models[model])"
    live.styled(_at(sheet, f"B{row}"), f'=IF({known},INDEX(models[model],$A{row}),"")', "xlperf key")
    for name in _PULLED:
        column = table_schema("models").by_name[name]
        pulled = f"INDEX(models[{column.header}],$A{row})"
        if name == "num_query_groups":
            pulled = f"IF({pulled}=0,${letters['num_attention_heads']}{row},{pulled})"
        elif name == "head_size":
            by_heads = f"${letters['hidden_size']}{row}/${letters['num_attention_heads']}{row}"
            pulled = f"IF({pulled}=0,{by_heads},{pulled})"
        elif column.kind != "number":
            pulled = f'IF({pulled}="","{column.default or _TEXT_DEFAULTS.get(name, "")}",{pulled})'
        elif not column.required:
            pulled = f"N({pulled})"
        cell = _at(sheet, f"{letters[name]}{row}")
        live.styled(cell, f'=IF({known},{pulled},"")', number="0" if column.kind == "number" else "")
    at = {name: f"{letter}{row}" for name, letter in letters.items()}
    computed, stated, difference, verdict = (f"{letter}{row}" for letter in after)
    kinds = ",".join(f'{at["attention_type"]}="{word}"' for word in _DENSE)
    unequal = "&".join(f"INDEX(models[{table_schema('models').by_name[name].header}],$A{row})" for name in _UNEQUAL)
    dense = f'AND({at["num_experts"]}=0,OR({kinds}),{unequal}="")'
    formula = f'=IF({known},IF({dense},({parameters_formula(at)})/10^9,""),"")'
    live.styled(_at(sheet, computed), formula, number="#,##0.000")
    parameters = table_schema("models").by_name["stated_parameters"].header
    pulled = f"INDEX(models[[{parameters}]],$A{row})"
    formula = f'=IF({computed}="","",IF({pulled}=0,"",{pulled}))'
    live.styled(_at(sheet, stated), formula, number="#,##0.000")
    formula = f'=IF({stated}="","",{computed}/{stated}-1)'
    live.styled(_at(sheet, difference), formula, number=signed_format("0.00 %", 4, "+"))
    live.styled(
        _at(sheet, verdict),
        f'=IF($B{row}="","",IF({computed}="","not dense",IF({stated}="","none stated",'
        f'IF(ABS({difference})<={TOLERANCE},"ok","differs"))))',
    )


def parameters_formula(at: Mapping[str, str]) -> str:
    """Parameters of a dense decoder from the cells of its shape, as a formula."""
    hidden, ffn = at["hidden_size"], at["ffn_hidden_size"]
    queries = f"{at['num_attention_heads']}*{at['head_size']}"
    keys = f"{at['num_query_groups']}*{at['head_size']}"
    scales = f'IF({at["normalization"]}="layernorm",2,1)'
    up = f'IF({at["gated_mlp"]}="yes",2,1)'
    layer = (
        f"2*{hidden}*{queries}+2*{hidden}*{keys}+({up}+1)*{hidden}*{ffn}+2*{scales}*{hidden}"
        f'+IF({at["linear_bias"]}="none",0,{queries}+2*{keys})+IF({at["linear_bias"]}="all",2*{hidden}+{up}*{ffn},0)'
        f'+IF({at["query_key_norm"]}="yes",2*{at["head_size"]},0)'
    )
    embeddings = f'IF({at["tied_embeddings"]}="yes",1,2)*{at["vocab_size"]}*{hidden}'
    positions = f'IF({at["position_embedding"]}="learned",{at["max_sequence_length"]}*{hidden},0)'
    return f"{at['num_layers']}*({layer})+{embeddings}+{positions}+{scales}*{hidden}"


def _summary(rows: Mapping[str, list[dict[str, Any]]], results: Mapping[str, Mapping[str, Any]]) -> list[Check]:
    checks = []
    for kind in ("accelerators", "models", "prices", "calibration"):
        key = table_schema(kind).key
        name = data_sheets.column_reference(key)
        test = f'({name}<>"")*(COUNTIF({name},{name})>1)'
        folded = [str(row[key.name]).casefold() for row in rows[kind] if row[key.name] is not None]
        number = sum(folded.count(own) > 1 for own in folded)
        checks.append(Check(f"Duplicate names on {kind}", f"SUMPRODUCT({test})", number, first=_first_cell(test, key)))
    for kind in (*CATALOG_TABLES, *PLAN_TABLES, *(kind for kind in OPTIONAL_TABLES if kind in rows)):
        schema = table_schema(kind)
        needed = [column for column in schema.columns[1:] if column.required or column.instead]
        blanks, number = [], 0
        for column in needed:
            empty = [column, *([schema.by_name[column.instead]] if column.instead else [])]
            tests = "".join(f'*({data_sheets.column_reference(one)}="")' for one in empty)
            blanks.append(f'({data_sheets.column_reference(schema.key)}<>""){tests}')
            stated = (row for row in rows[kind] if row[schema.key.name])
            number += sum(all(row[one.name] is None for one in empty) for row in stated)
        words, counted = f"Blank mandatory cells of {kind}", "+".join(f"SUMPRODUCT({blank})" for blank in blanks)
        first = _first_cell(f"{'+'.join(blanks)}>0", schema.key)
        checks.append(Check(words, counted, number, first=first))
    for kind in (*CATALOG_TABLES, *PLAN_TABLES, *(kind for kind in OPTIONAL_TABLES if kind in rows)):
        for column in table_schema(kind).columns:
            if column.kind == "reference" and column.reference in rows:
                checks.append(_unknown_names(column, rows))
    for kind, name in (*((kind, data_sheets.LIVE_RESULTS[kind][0]) for kind in PLAN_TABLES), *_RESULTS.items()):
        if kind not in rows:
            continue
        column, own = results_of(kind).by_name[name], results.get(kind, {})
        failed = f"ISERROR({data_sheets.column_reference(column)})*1"
        words = f"{'Plans' if kind in PLAN_TABLES else 'Rows'} of {kind} without a result"
        missing = _counted(own.get(name), lambda cell: isinstance(cell, CellError))
        checks.append(Check(words, f"SUMPRODUCT({failed})", missing, first=_first_cell(failed, column)))
        if kind in PLAN_TABLES:
            fits = data_sheets.column_reference(results_of(kind).by_name["fits"])
            formula = f"MAX(COUNTIF({fits},FALSE),COUNTIF({fits},0))"
            too_large = _counted(own.get("fits"), lambda cell: cell is False)
            checks.append(Check(f"Plans of {kind} that do not fit in memory", formula, too_large))
    return checks


def _counted(cells: Sequence[Any] | None, test: Callable[[Any], bool]) -> int | None:
    return None if cells is None else sum(map(test, cells))


def _unknown_names(column: Column, rows: Mapping[str, list[dict[str, Any]]]) -> Check:
    key = table_schema(column.reference).key
    own, known = data_sheets.column_reference(column), data_sheets.column_reference(key)
    test = f'({own}<>"")*(COUNTIF({known},{own})=0)'
    names = {str(row[key.name]).casefold() for row in rows[column.reference]}
    if "aliases" in table_schema(column.reference).by_name:
        test += f'*(COUNTIF({column.reference}[aliases],"*"&{own}&"*")=0)'
        for row in rows[column.reference]:
            names.update(word.strip().casefold() for word in (row["aliases"] or "").split(";"))
    used = [row[column.name] for row in rows[column.table]]
    return Check(
        f"Names in {column.name.replace('_', ' ')} of {column.table} that are not on {column.reference}",
        f"SUMPRODUCT({test})",
        sum(name is not None and name.casefold() not in names for name in used),
        first=_first_cell(test, column),
    )


def _finish(
    sheet: Worksheet,
    letters: Mapping[str, str],
    after: Sequence[str],
    model_top: int,
    rows: tuple[int, int],
    count: int,
) -> None:
    sheet.column_dimensions["A"].width = 6
    sheet.column_dimensions["B"].width = 68
    for letter in (*letters.values(), *after):
        sheet.column_dimensions[letter].width = 13
    for row in range(_CHECKS_TOP, _CHECKS_TOP + count):
        _at(sheet, f"D{row}").alignment = Alignment(horizontal="center", vertical="center")
    for row in range(rows[0], rows[1] + 1):
        for name, letter in letters.items():
            if table_schema("models").by_name[name].kind != "number":
                _at(sheet, f"{letter}{row}").alignment = Alignment(horizontal="center", vertical="center")
        _at(sheet, f"{after[3]}{row}").alignment = Alignment(horizontal="center", vertical="center")
    data_sheets.alarm(sheet, f"B{_CHECKS_TOP}:D{_CHECKS_TOP + count - 1}", f'$D{_CHECKS_TOP}="check"')
    data_sheets.alarm(sheet, f"B{rows[0]}:{after[3]}{rows[1]}", f'${after[3]}{rows[0]}="differs"')
    sheet.freeze_panes = f"C{_CHECKS_TOP}"
    page_setup(sheet, area=f"A1:{after[3]}{rows[1] - _SPARE_MODELS}")
    sheet.page_setup.paperSize = 8
    sheet.row_breaks.append(Break(id=model_top - 2))
