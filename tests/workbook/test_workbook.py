"""The shipped workbooks: built from their own rows, the same bytes each time, and right in what they say."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pytest
from shipped import few_rows, shipped_book, shipped_build, shipped_tables

from xlperf.base.errors import InputError
from xlperf.base.resources import workbook
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.cells import parse_header
from xlperf.catalog.schema import (
    CATALOG_TABLES,
    OPTIONAL_TABLES,
    OWN_TABLES,
    PLAN_TABLES,
    QUESTION_TABLES,
    TECHNOLOGY_TABLES,
    results_of,
    schema,
    table_schema,
    unit_of,
)
from xlperf.catalog.table import Table
from xlperf.workbook.build import KINDS, main, read_tables, workbook_package, write_workbook
from xlperf.workbook.data_sheets import (
    CATALOG_CELL,
    DATA_SHEETS,
    LIVE_RESULTS,
    SCENARIO_CELL,
    header_row,
    plan_formula,
    plan_names,
    sheet_columns,
    sheet_groups,
    table_of,
)
from xlperf.workbook.front.formulas import Live
from xlperf.workbook.front.layout import NUMBERS, SHEETS
from xlperf.workbook.front.plan_card import ALL_PLANS
from xlperf.workbook.front.plan_card import NUMBERS as CARD_NUMBERS
from xlperf.workbook.package import Formulas, data_rows, with_values
from xlperf.workbook.plain_formulas import TOLERANCE, parameters_formula

MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


@pytest.fixture(scope="module")
def tables() -> dict[str, Table]:
    return shipped_tables()


@pytest.fixture(scope="module")
def small() -> dict[str, Table]:
    """A few rows of each sheet, with a hundredth of the calibration."""
    tables = few_rows()
    return {**tables, "calibration": tables["calibration"].take(np.arange(0, len(tables["calibration"]), 100))}


@pytest.fixture(scope="module")
def complete() -> bytes:
    return shipped_build()


@pytest.fixture(scope="module")
def book() -> Any:
    """The shipped one, which a test below compares with its rows."""
    return shipped_book()


@pytest.fixture(scope="module")
def values(complete: bytes) -> dict[str, list[tuple[Any, ...]]]:
    """Values of the cells of some sheets, row by row."""
    book = openpyxl.load_workbook(io.BytesIO(complete), data_only=True, read_only=True)
    return {name: list(book[name].iter_rows(values_only=True)) for name in ("checks", *PLAN_TABLES)}


def cells_of(tables: dict[str, Table], kind: str) -> list[dict[str, Any]]:
    columns = table_schema(kind).columns
    return [dict(zip([c.name for c in columns], row, strict=True)) for row in data_rows(tables[kind], columns)]


def parts(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as package:
        return {name: package.read(name) for name in package.namelist()}


# --- the same bytes


def test_the_same_rows_give_the_same_bytes(small: dict[str, Table], tmp_path: Path) -> None:
    path = tmp_path / "again.xlsx"
    path.write_bytes(workbook_package(small))
    before = path.read_bytes()
    assert main([str(path)]) == 0
    assert path.read_bytes() == before
    with zipfile.ZipFile(path) as package:
        assert {info.date_time for info in package.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def without_values(data: bytes) -> dict[str, bytes]:
    value = rb'(?: t="(?:str|e|b)")?>(<f>.*?</f>)<v(?: ?/>|>[^<]*</v>)'
    height = rb' (?:customHeight|ht)="[^"]*"'
    return {name: re.sub(height, b"", re.sub(value, rb">\1", content)) for name, content in parts(data).items()}


@pytest.mark.slow
def test_the_shipped_workbook_is_what_its_rows_give(complete: bytes) -> None:
    """If this fails, run ``python -m xlperf.workbook.build`` and commit; values, heights and charts may be older.

    Decimals of a column follow its values, so the workbook is built with them.
    """
    shipped, again = without_values(workbook().read_bytes()), without_values(complete)
    assert list(shipped) == list(again)
    assert [name for name in shipped if shipped[name] != again[name] and "/charts/" not in name] == []


@pytest.mark.slow
def test_charts_of_the_shipped_workbook_are_what_its_rows_give(complete: bytes) -> None:
    shipped, again = without_values(workbook().read_bytes()), without_values(complete)
    assert [name for name in shipped if shipped[name] != again[name] and "/charts/" in name] == []


def test_a_changed_row_and_a_replaced_table_change_the_workbook(small: dict[str, Table], tmp_path: Path) -> None:
    path = tmp_path / "fitted.xlsx"
    rows = cells_of(small, "prices")
    rows[0]["rental_price"] = 12.5
    row = {
        "calibration": "gemm/any/any/any/launch_time",
        "family": "gemm",
        "constant": "launch_time",
        "value": 4e-6,
        "unit": "s",
    }
    write_workbook(path, {**small, "prices": rows, "calibration": [row]}, values=False)
    tables = read_tables(path)
    assert tables["calibration"]["constant"].tolist() == ["launch_time"]
    assert tables["calibration"]["value"].tolist() == [4e-6]
    before, after = (each["prices"].number("rental_price") for each in (small, tables))
    assert np.flatnonzero(~np.isclose(before, after, equal_nan=True)).tolist() == [0]


def test_unknown_columns_and_bad_rows_are_refused_in_one_line_each() -> None:
    with pytest.raises(InputError, match="colour"):
        table_of("prices", [{"price": "H100-SXM-80GB", "year": 2026, "colour": "red"}])
    with pytest.raises(InputError, match="tensor parallel"):
        table_of("training", [{"model": "m", "accelerator": "a", "num_accelerators": 8, "tensor_parallel": -1}])


def test_main_says_what_is_wrong(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([str(tmp_path / "none.xlsx")]) == 2
    assert "none.xlsx" in capsys.readouterr().err
    assert main(["--nonsense"]) == 2
    assert "usage" in capsys.readouterr().err


# --- what is in it


def test_sheets_stand_in_order_with_one_native_table_each(book: Any, tables: dict[str, Table]) -> None:
    kinds = [*KINDS, *(kind for kind in OPTIONAL_TABLES if kind in tables or kind in OWN_TABLES)]
    listed = [name for group in sheet_groups() for name in group.sheets if name in book.sheetnames]
    assert book.sheetnames == ["start", *listed, *NUMBERS, CARD_NUMBERS]
    assert set(kinds) <= set(listed) and listed[: len(SHEETS)] == list(SHEETS)
    for kind in kinds:
        assert list(book[kind].tables) == [kind]
        top = header_row(kind)
        assert book[kind].freeze_panes == f"B{top + 1}"
        assert book[kind].page_setup.orientation == "landscape"
        assert book[kind].print_title_rows == f"${top - 1}:${top}"


def test_every_header_parses_and_says_its_unit_and_meaning(book: Any) -> None:
    for kind in KINDS:
        first, last = book[kind].tables[kind].ref.split(":")
        header = list(book[kind][first : re.sub(r"\d+", str(header_row(kind)), last)][0])
        assert [cell.value for cell in header] == [column.header for column in sheet_columns(kind)]
        assert parse_header(kind, [cell.value for cell in header]).faults == ()
        for cell, column in zip(header, sheet_columns(kind), strict=True):
            assert cell.comment is not None and column.meaning in cell.comment.text


def test_drop_downs_refer_to_names_that_exist(book: Any) -> None:
    names = set()
    for sheet in book.worksheets:
        for validation in sheet.data_validations.dataValidation:
            assert len(validation.formula1) <= 255
            if validation.type == "list" and not validation.formula1.startswith('"'):
                names.add(validation.formula1)
    assert {"model_names", "accelerator_names", "network_names", "training_precision_choices"} <= names
    for name in names:
        reference = book.defined_names[name].attr_text
        if name == ALL_PLANS:
            assert reference.startswith("'calc compare'!")
            continue
        native = re.fullmatch(r"(\w+)\[([^\]]+)\]", reference)
        if native:
            assert native[2] in [cell.value for cell in book[native[1]][header_row(native[1])]]
        else:
            sheet, area = reference.replace("$", "").replace("'", "").split("!")
            words = [cell.value for row in book[sheet][area] for cell in row]
            kind, column = next(
                (kind, column)
                for kind in schema()
                for column in table_schema(kind).columns
                if name == f"{kind}_{column.name}_choices"
            )
            if column.name == "software":
                assert {"megatron", "nemo"} <= set(words) or {"vllm", "sglang"} <= set(words)
            else:
                assert kind and tuple(words) == column.entries


def test_every_input_column_with_a_choice_or_bounds_is_guarded(book: Any) -> None:
    for kind in KINDS:
        guarded = {
            str(validation.sqref).split(":")[0]: validation for validation in book[kind].data_validations.dataValidation
        }
        inputs = [column for column in sheet_columns(kind) if not column.is_result]
        assert sorted(column.name for column in inputs) == sorted(column.name for column in table_schema(kind).columns)
        for offset, column in enumerate(inputs, start=1):
            first = book[kind].cell(header_row(kind) + 1, offset).coordinate
            known = column.kind == "reference" and column.reference in book.sheetnames
            known |= column.name == "software" and kind in PLAN_TABLES
            wanted = known or column.kind in ("choice", "flag") or (column.kind == "number" and column.bounds)
            assert (first in guarded) == bool(wanted), (kind, column.name)


def test_expert_columns_are_folded_between_the_name_and_what_matters_beside_the_results(book: Any) -> None:
    for kind in PLAN_TABLES:
        columns, in_sight = sheet_columns(kind), DATA_SHEETS[kind].in_sight
        hidden = []
        for offset, column in enumerate(columns, start=1):
            letter = openpyxl.utils.get_column_letter(offset)
            known = next((own for own in book[kind].column_dimensions.values() if own.min <= offset <= own.max), None)
            assert known is not None, letter
            hidden += [column.name] if known.hidden else []
            assert bool(known.outlineLevel) == known.hidden
        assert {*hidden, "name", *in_sight} == {column.name for column in table_schema(kind).columns}
        shown = [column.name for column in columns if column.name not in hidden]
        assert tuple(shown) == ("name", *in_sight, *LIVE_RESULTS[kind])
        assert len(in_sight) == 8
        assert book.defined_names[plan_names(kind)].attr_text == f"{kind}[name]"


def test_bars_fill_a_cell_where_a_plan_fills_its_memory(book: Any) -> None:
    for kind in PLAN_TABLES:
        rules = [rule for own in book[kind].conditional_formatting for rule in own.rules if rule.type == "dataBar"]
        assert len(rules) == 3
        assert all([float(end.val) for end in rule.dataBar.cfvo] == [0.0, 1.0] for rule in rules)


def test_number_formats_follow_the_units(book: Any) -> None:
    columns = [column.name for column in sheet_columns("training")]
    row = book["training"][header_row("training") + 1]
    assert row[columns.index("mfu")].number_format == "0.0 %"
    assert row[columns.index("num_accelerators")].number_format == "#,##0"


def test_names_refer_to_rows_that_exist(tables: dict[str, Table]) -> None:
    catalog = Catalog.from_tables([tables[kind] for kind in tables if kind not in PLAN_TABLES], "xlperf.xlsx")
    networks = {name.casefold() for name in catalog.networks}
    for name in tables["accelerators"].text("default_network"):
        assert not name or name.casefold() in networks
    for kind in PLAN_TABLES:
        assert (catalog.rows("models", tables[kind]["model"], tables[kind], "model") >= 0).all()
        assert (catalog.rows("accelerators", tables[kind]["accelerator"], tables[kind], "accelerator") >= 0).all()


def test_every_row_says_where_it_is_from(tables: dict[str, Table]) -> None:
    for kind in ("accelerators", "networks", "models", "prices"):
        for row in cells_of(tables, kind):
            key = row[table_schema(kind).key.name]
            assert row["source"] and row["year"] and row["kind"], (kind, key)
            if (row["notes"] or "").split("; ")[0] == "remembered":
                assert row["kind"] == "estimate", (kind, key)


def computed_parameters(row: dict[str, Any]) -> float:
    """Parameters of a model from the formula of the sheet checks."""
    heads = row["num_attention_heads"]
    shape = {
        **{column.name: row[column.name] or column.default or ("no" if column.is_text else 0)
           for column in table_schema("models").columns},
        "num_query_groups": row["num_query_groups"] or heads,
        "head_size": row["head_size"] or row["hidden_size"] / heads,
    }  # fmt: skip
    cells = {name: f'"{value}"' if isinstance(value, str) else f"{value}" for name, value in shape.items()}
    return float(Live(Formulas(), None).value_of(parameters_formula(cells), "checks"))


def dense_rows(tables: dict[str, Table]) -> Iterator[dict[str, Any]]:
    for row in cells_of(tables, "models"):
        alike = row["num_experts"] is None and row["attention_type"] in ("MHA", "MQA", "GQA")
        if alike and not row["attention_pattern"]:  # of layers of one kind
            yield row


def test_dense_models_have_the_parameters_that_are_stated(tables: dict[str, Table]) -> None:
    stated = {row["model"]: row for row in dense_rows(tables) if row["stated_parameters"] is not None}
    assert len(stated) >= 25
    off = {
        name: computed_parameters(row) / 1e9 / row["stated_parameters"] - 1
        for name, row in stated.items()
        if abs(computed_parameters(row) / 1e9 / row["stated_parameters"] - 1) > TOLERANCE
    }
    assert off == {}


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("Meta-Llama-3.1-8B", 8_030_261_248),
        ("Meta-Llama-3.1-70B", 70_553_706_496),
        ("Llama2-7B", 6_738_415_616),
        ("Qwen2.5-7B", 7_615_616_512),
        ("Qwen3-0.6B", 596_049_920),
    ],
)
def test_parameters_are_exact_for_models_whose_weights_are_public(
    tables: dict[str, Table], model: str, parameters: int
) -> None:
    row = next(row for row in cells_of(tables, "models") if row["model"] == model)
    assert computed_parameters(row) == parameters


def test_the_papers_training_runs_are_plans(tables: dict[str, Table]) -> None:
    plans = cells_of(tables, "training")[:11]
    shapes = [(p["num_accelerators"], p["tensor_parallel"], p["pipeline_parallel"], p["recompute"]) for p in plans]
    assert shapes == [
        (8, 8, 1, "full"), (8, 8, 1, "selective"), (64, 8, 8, "full"), (64, 8, 8, "selective"),
        (280, 8, 35, "full"), (280, 8, 35, "selective"), (512, 8, 64, "full"), (512, 8, 64, "selective"),
        (1920, 8, 16, "full"), (2520, 8, 35, "full"), (3072, 8, 64, "full"),
    ]  # fmt: skip
    assert {(p["precision"], p["attention"], p["sequence_length"]) for p in plans} == {("fp16", "standard", 2048)}


@pytest.mark.slow
def test_no_plan_is_refused_and_all_fit(tables: dict[str, Table], values: dict[str, list[tuple[Any, ...]]]) -> None:
    from xlperf.explore.search import evaluate_resolved

    assert sum(len(tables[kind]) for kind in PLAN_TABLES) >= 40
    catalog = Catalog.from_tables([tables[kind] for kind in tables if kind not in PLAN_TABLES], "xlperf.xlsx")
    for kind in PLAN_TABLES:
        _, results = evaluate_resolved(tables[kind], catalog)
        names = tables[kind]["name"]
        first = LIVE_RESULTS[kind][0]
        assert names[np.isnan(results[first])].tolist() == []
        assert names[results["fits"] != 1.0].tolist() == []
        header, *rows = values[kind][header_row(kind) - 1 :][: 1 + len(names)]
        for name in LIVE_RESULTS[kind]:
            column = results_of(kind).by_name[name]
            shown = [row[header.index(column.header)] for row in rows]
            if name == "reason":
                assert shown == [words or "ok" for words in results["reason"]]
            elif name == "fits":
                assert shown == [True] * len(names)
            elif column.is_text:
                assert shown == results[name].tolist()
            else:
                assert shown == (results[name] / unit_of(column).factor).tolist()


def book_header(book: Any, kind: str) -> list[str]:
    return [cell.value for cell in book[kind][header_row(kind)]]


# --- formulas


def test_results_are_live_formulas_in_the_form_of_files(book: Any) -> None:
    for kind in PLAN_TABLES:
        header = book_header(book, kind)
        native = {column.name: column for column in book[kind].tables[kind].tableColumns}
        for name in LIVE_RESULTS[kind]:
            text = results_of(kind).by_name[name].header
            formula = plan_formula(kind, name)
            assert native[text].calculatedColumnFormula.text == formula
            assert book[kind].cell(header_row(kind) + 1, header.index(text) + 1).value == f"={formula}"
            assert "[@" not in formula and f"{kind}[[#All]]" not in formula
    assert book.defined_names["catalog"].attr_text == f"start!$C${CATALOG_CELL[1:]}"
    sent = (*CATALOG_TABLES, *TECHNOLOGY_TABLES, "process_nodes", "packages")
    servers = "servers[[#All],[server]:[fixed power (MW)]]"  # its results follow from the catalog
    given = ",".join(
        [
            *(f"{kind}[[#All]]" for kind in sent),
            servers,
            *(f"{kind}[[#All]]" for kind in ("api_prices", *QUESTION_TABLES)),
            SCENARIO_CELL,
        ]
    )
    assert book["start"][CATALOG_CELL].value == f"=XLPERF_CATALOG({given})"


def test_functions_in_formulas_are_registered(book: Any) -> None:
    from xlperf.addin.functions import functions

    used = {
        name
        for sheet in book.worksheets
        for row in sheet.iter_rows()
        for cell in row
        if cell.data_type == "f"
        for name in re.findall(r"XLPERF_\w+", cell.value)
    }
    assert used and used <= set(functions())


@pytest.mark.slow
def test_formulas_carry_values_and_excel_is_not_told_to_calculate_on_opening(complete: bytes) -> None:
    content = parts(complete)
    for name in ("xl/worksheets/sheet1.xml", "xl/worksheets/sheet2.xml", "xl/worksheets/sheet9.xml"):
        assert re.findall(rb"</f><v ?/>", content[name]) == []
    assert b"fullCalcOnLoad" not in content["xl/workbook.xml"] or b'fullCalcOnLoad="0"' in content["xl/workbook.xml"]


def test_values_are_put_only_where_formulas_are() -> None:
    part = '<c r="A1"><f>1&lt;2</f><v></v></c><c r="A2" s="1"><f>X()</f><v /></c>'
    assert with_values(part, {"A1": True, "A2": "a<b"}) == (
        '<c r="A1"><f>1&lt;2</f><v>1</v></c><c r="A2" s="1" t="str"><f>X()</f><v>a&lt;b</v></c>'
    )
    with pytest.raises(ValueError, match="B1"):
        with_values(part, {"B1": 1.0})


def test_text_that_starts_like_a_formula_stays_text(small: dict[str, Table]) -> None:
    rows = [{"name": "=1+1", "model": "Llama2-7B", "accelerator": "A100-SXM4-80GB", "num_accelerators": 8}]
    data = workbook_package({**small, "training": rows}, values=False)
    cell = openpyxl.load_workbook(io.BytesIO(data))["training"][f"A{header_row('training') + 1}"]
    assert (cell.value, cell.data_type) == ("=1+1", "s")
    assert not any(b"<f>1+1</f>" in part for part in parts(data).values())


def test_nothing_in_the_workbooks_refers_to_a_machine() -> None:
    for name in ("xlperf.xlsx", "validation.xlsx"):
        for part, content in parts(workbook(name).read_bytes()).items():
            assert "externalLink" not in part
            assert not re.search(rb"file:/|/tmp/|/home/|[A-Z]:\\\\", content), part


@pytest.mark.slow
def test_checks_count_nothing_wrong(values: dict[str, list[tuple[Any, ...]]]) -> None:
    rows = {row[1]: (row[2], row[3]) for row in values["checks"][4:60] if row[3]}
    summary = {words: result for words, result in rows.items() if result[1] in ("ok", "check")}
    assert len(summary) >= 15
    assert {words for words, (_, verdict) in summary.items() if verdict != "ok"} == set()


@pytest.mark.slow
def test_native_checks_calculate_to_what_is_stored(
    tables: dict[str, Table], converted: Callable[..., Path], tmp_path: Path
) -> None:
    """Of all models and a few rows of the other sheets: formulas are those of any row."""
    some = {**few_rows(), "models": tables["models"]}
    stored, bare = tmp_path / "stored.xlsx", tmp_path / "bare.xlsx"
    write_workbook(stored, some)
    with zipfile.ZipFile(bare, "w") as package:
        for name, content in without_values(stored.read_bytes()).items():
            package.writestr(name, content)

    def checks(path: Path) -> list[tuple[Any, ...]]:
        sheet = openpyxl.load_workbook(path, data_only=True, read_only=True)["checks"]
        return list(sheet.iter_rows(min_row=5, values_only=True))

    different = []
    values, calculated = checks(stored), checks(converted(tmp_path, "xlsx", bare) / "bare.xlsx")
    assert len(values) > 100 and len(calculated) >= len(values)
    for number, (row, beside) in enumerate(zip(values, calculated, strict=False), start=5):
        words = str(row[1])
        for wanted, got in zip_longest(row, beside):
            of_functions = "Plans of" in words or "without a result" in words
            if of_functions or (wanted or None) == (got or None):
                continue
            if isinstance(wanted, (int, float)) and isinstance(got, (int, float)) and got == pytest.approx(wanted):
                continue
            different.append((number, wanted, got))
    assert different == []
