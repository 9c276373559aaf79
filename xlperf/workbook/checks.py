"""The sheet ``checks``: native formulas that find faults of the other sheets, without the add-in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from openpyxl.styles import Alignment
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.pagebreak import Break

from xlperf.addin.cells import CellError
from xlperf.catalog.schema import CATALOG_TABLES, OPTIONAL_TABLES, PLAN_TABLES, Column, results_of, table_schema
from xlperf.workbook.data_sheets import LIVE_RESULTS, alarm, column_reference
from xlperf.workbook.front.formulas import Live
from xlperf.workbook.package import data_rows
from xlperf.workbook.style import home, page_setup, put, title

if TYPE_CHECKING:
    from openpyxl import Workbook
    from openpyxl.worksheet.worksheet import Worksheet

    from xlperf.catalog.table import Table


TOLERANCE = 0.01
_FAULTS = 'COUNTIF(checks!$D$5:$D$60,"check")'
VERDICT = f'IF({_FAULTS}=0,"checks of all sheets: ok","checks: "&{_FAULTS}&" to look at, see the sheet checks")'
"""One verdict of all checks, as a formula; it ends with ok if all is well."""
_ROWS = 1048577
"""Rows of a sheet and 1. [-]"""
_SPARE_MODELS = 20
_TOP = 5
_PULLED = (
    *("num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "head_size", "ffn_hidden_size"),
    *("vocab_size", "max_sequence_length", "gated_mlp", "tied_embeddings", "position_embedding", "normalization"),
    *("linear_bias", "query_key_norm", "attention_type", "num_experts"),
)
_TEXT_DEFAULTS = {"gated_mlp": "no", "tied_embeddings": "no", "query_key_norm": "no"}
_DENSE = ("MHA", "MQA", "GQA")
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
    kind, cells = column.table.removesuffix("_results"), column_reference(column)
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
    model_top = _TOP + len(checks) + 4
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
    live.formulas.put(_cell(sheet, "B3"), f"={VERDICT}", words, "xlperf heading")
    alarm(sheet, "B3", 'RIGHT($B$3,2)<>"ok"')
    for offset, words in enumerate(("check", "count", "verdict", "first cell")):
        put(sheet.cell(_TOP - 1, 2 + offset), words, "xlperf header")
    for row, check in enumerate(checks, start=_TOP):
        put(sheet[f"B{row}"], check.words, "xlperf key")
        live.formulas.put(_cell(sheet, f"C{row}"), f"={check.formula}", check.value, number="#,##0")
        shown = None if check.value is None else "check" if check.zero and check.value else "ok"
        test = f'IF(C{row}=0,"ok","check")' if check.zero else '"ok"'
        live.formulas.put(_cell(sheet, f"D{row}"), f"={test}", shown)
        if check.first:
            live.formulas.put(_cell(sheet, f"E{row}"), f'=IF(C{row}=0,"",{check.first})', None if check.value else "")
    live.values |= {("checks", cell): value for cell, value in live.formulas.values.get("checks", {}).items()}
    _finish(sheet, letters, after, model_top, (first, last), len(checks))
    return sheet


def _cell(sheet: Worksheet, reference: str) -> Any:
    return sheet[reference]


def _model_row(
    sheet: Worksheet, row: int, number: int, letters: Mapping[str, str], after: Sequence[str], live: Live
) -> None:
    put(sheet[f"A{row}"], number, "xlperf note")
    live.values["checks", f"A{row}"] = number
    known = f"$A{row}<=COUNTA(models[model])"
    live.styled(_cell(sheet, f"B{row}"), f'=IF({known},INDEX(models[model],$A{row}),"")', "xlperf key")
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
        cell = _cell(sheet, f"{letters[name]}{row}")
        live.styled(cell, f'=IF({known},{pulled},"")', number="0" if column.kind == "number" else "")
    at = {name: f"{letter}{row}" for name, letter in letters.items()}
    computed, stated, difference, verdict = (f"{letter}{row}" for letter in after)
    kinds = ",".join(f'{at["attention_type"]}="{word}"' for word in _DENSE)
    dense = f"AND({at['num_experts']}=0,OR({kinds}))"
    formula = f'=IF({known},IF({dense},({parameters_formula(at)})/10^9,""),"")'
    live.styled(_cell(sheet, computed), formula, number="#,##0.000")
    parameters = table_schema("models").by_name["stated_parameters"].header
    pulled = f"INDEX(models[[{parameters}]],$A{row})"
    formula = f'=IF({computed}="","",IF({pulled}=0,"",{pulled}))'
    live.styled(_cell(sheet, stated), formula, number="#,##0.000")
    formula = f'=IF({stated}="","",{computed}/{stated}-1)'
    live.styled(_cell(sheet, difference), formula, number="+0.00%;-0.00%;0.00%")
    live.styled(
        _cell(sheet, verdict),
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
        name = column_reference(key)
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
            tests = "".join(f'*({column_reference(one)}="")' for one in empty)
            blanks.append(f'SUMPRODUCT(({column_reference(schema.key)}<>""){tests})')
            stated = (row for row in rows[kind] if row[schema.key.name])
            number += sum(all(row[one.name] is None for one in empty) for row in stated)
        checks.append(Check(f"Blank mandatory cells of {kind}", "+".join(blanks), number))
    for kind in (*CATALOG_TABLES, *PLAN_TABLES, *(kind for kind in OPTIONAL_TABLES if kind in rows)):
        for column in table_schema(kind).columns:
            if column.kind == "reference" and column.reference in rows:
                checks.append(_unknown_names(column, rows))
    for kind, name in (*((kind, LIVE_RESULTS[kind][0]) for kind in PLAN_TABLES), *_RESULTS.items()):
        if kind not in rows:
            continue
        column, own = results_of(kind).by_name[name], results.get(kind, {})
        failed = f"ISERROR({column_reference(column)})*1"
        words = f"{'Plans' if kind in PLAN_TABLES else 'Rows'} of {kind} without a result"
        count = _count(own.get(name), lambda cell: isinstance(cell, CellError))
        checks.append(Check(words, f"SUMPRODUCT({failed})", count, first=_first_cell(failed, column)))
        if kind in PLAN_TABLES:
            fits = column_reference(results_of(kind).by_name["fits"])
            formula = f"MAX(COUNTIF({fits},FALSE),COUNTIF({fits},0))"
            count = _count(own.get("fits"), lambda cell: cell is False)
            checks.append(Check(f"Plans of {kind} that do not fit in memory", formula, count))
    return checks


def _count(cells: Sequence[Any] | None, test: Callable[[Any], bool]) -> int | None:
    return None if cells is None else sum(map(test, cells))


def _unknown_names(column: Column, rows: Mapping[str, list[dict[str, Any]]]) -> Check:
    key = table_schema(column.reference).key
    own, known = column_reference(column), column_reference(key)
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
    for row in range(_TOP, _TOP + count):
        _cell(sheet, f"D{row}").alignment = Alignment(horizontal="center", vertical="center")
    for row in range(rows[0], rows[1] + 1):
        for name, letter in letters.items():
            if table_schema("models").by_name[name].kind != "number":
                _cell(sheet, f"{letter}{row}").alignment = Alignment(horizontal="center", vertical="center")
        _cell(sheet, f"{after[3]}{row}").alignment = Alignment(horizontal="center", vertical="center")
    alarm(sheet, f"B{_TOP}:D{_TOP + count - 1}", f'$D{_TOP}="check"')
    alarm(sheet, f"B{rows[0]}:{after[3]}{rows[1]}", f'${after[3]}{rows[0]}="differs"')
    sheet.freeze_panes = f"C{_TOP}"
    page_setup(sheet, pages_high=2)
    sheet.page_setup.paperSize = 8
    sheet.row_breaks.append(Break(id=model_top - 2))
