"""Workbooks, CSV, Parquet and cells become the same tables; names are found; a workbook can be read as text."""

from __future__ import annotations

import datetime
import io
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Outcome
from excel_samples import write_as_excel
from openpyxl import load_workbook
from workbook_samples import set_cell, sheets, without_column, write

from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.cells import table_from_columns, table_from_rows, table_kind
from xlperf.catalog.check import check
from xlperf.catalog.plans import card_to_table, plan_kind, read_plans
from xlperf.catalog.schema import CATALOG_TABLES
from xlperf.catalog.show import show
from xlperf.catalog.table import Table
from xlperf.errors import InputError
from xlperf.units import factor

PLAN_HEADER = ["model", "accelerator", "num accelerators", "tensor parallel", "sequence parallel", "precision"]


@pytest.fixture
def workbook(tmp_path: Path) -> Path:
    return write(tmp_path / "xlperf.xlsx", sheets())


@pytest.fixture
def catalog(workbook: Path) -> Catalog:
    return load_catalog(workbook)


def test_values_are_in_the_units_used_inside(catalog: Catalog) -> None:
    accelerators = catalog.tables["accelerators"]
    assert accelerators["memory_bandwidth"].tolist() == [3.35 * factor("TB/s"), 2.039 * factor("TB/s")]
    assert accelerators["memory_capacity"].tolist() == [79.65 * factor("GiB"), 80 * factor("GiB")]
    assert accelerators["accelerator"].tolist() == ["H100", "A100"]
    assert catalog.tables["models"]["gated_mlp"].tolist() == [1, 0]
    assert catalog.tables["networks"]["latency"].tolist() == [factor("us"), 5 * factor("us"), factor("us")]
    assert catalog.origin == "xlperf.xlsx"


def test_places_name_the_cells(catalog: Catalog) -> None:
    table = catalog.tables["accelerators"]
    assert table.place(1, "memory_bandwidth") == "xlperf.xlsx [accelerators!E3]"
    assert table.take([1]).place(0, "year") == "xlperf.xlsx [accelerators!J3]"
    assert table.place(0, "notes") == "xlperf.xlsx [accelerators!A2]"


def test_names_are_found_without_case_and_by_alias(catalog: Catalog) -> None:
    names = np.array(["LLAMA 2 7b", "gpt-3", "", " llama2-7B "], dtype=object)
    plans = Table("training", {"model": names})
    assert catalog.rows("models", names, plans, "model").tolist() == [0, 1, -1, 0]
    assert catalog.rows("models", names, plans, "model").dtype == np.int64
    networks = np.array(["dgx-a100", "DGX-H100", ""], dtype=object)
    assert catalog.network_index(networks, plans, "network").tolist() == [1, 0, -1]
    assert catalog.rows("networks", networks, plans, "network").tolist() == [2, 0, -1]


def test_unknown_names_are_all_reported(catalog: Catalog) -> None:
    names = np.array(["x", "gpt-3", "gpt-4"], dtype=object)
    plans = Table("training", {"model": names}, lambda row, column: f"{column}{row}")
    with pytest.raises(InputError) as caught:
        catalog.rows("models", names, plans, "model")
    assert str(caught.value).splitlines() == [
        'model0: unknown model "x"; known: llama-2-7b, gpt-3, Llama 2 7B, llama2-7b',
        'model2: unknown model "gpt-4"; did you mean gpt-3?',
    ]


def test_networks_are_arrays_padded_with_their_last_tier(catalog: Catalog) -> None:
    assert catalog.networks == ("DGX-H100", "DGX-A100")
    arrays = catalog.network_arrays
    assert arrays["num_tiers"].tolist() == [2, 1]
    assert arrays["size"].tolist() == [[8, 1024], [8, 8]]
    assert arrays["link_bandwidth"].tolist() == [[450e9, 50e9], [300e9, 300e9]]
    assert arrays["oversubscription"].tolist() == [[1, 1], [1, 1]]
    assert arrays["in_network_reduction"].tolist() == [[0, 0], [0, 0]]
    assert arrays["topology"].tolist() == [[0, 1], [0, 0]]
    assert catalog.network_tiers("dgx-h100").tolist() == [0, 1]
    assert catalog.network_tiers("none").tolist() == []


def test_accelerators_know_their_network_and_price(catalog: Catalog) -> None:
    assert catalog.default_networks.tolist() == [0, 1]
    assert catalog.price_rows.tolist() == [0, 1]
    fewer = catalog.with_tables([table_from_rows("prices", ["price", "capex", "year"], [["a100", 1, 2024]])])
    assert fewer.price_rows.tolist() == [-1, 0]


def test_given_tables_replace_their_kind_and_others_stay(catalog: Catalog) -> None:
    header = ["accelerator", "generation", "peak flop rate bf16", "memory capacity", "memory bandwidth"]
    header += ["thermal design power", "default network"]
    row = ["X1", "new", 100, 10, 1, 100, "DGX-A100"]
    changed = catalog.with_tables([table_from_rows("accelerators", header, [row])])
    assert changed.tables["accelerators"]["accelerator"].tolist() == ["X1"]
    assert changed.tables["models"] is catalog.tables["models"]
    assert changed.price_rows.tolist() == [-1]  # prices of accelerators that are gone are not used
    assert changed.fingerprint != catalog.fingerprint
    with pytest.raises(InputError, match='unknown network "none"'):
        catalog.with_tables([table_from_rows("accelerators", header, [[*row[:-1], "none"]])])


def test_catalog_is_not_changed_by_its_users(catalog: Catalog) -> None:
    with pytest.raises(TypeError):
        catalog.tables["models"] = catalog.tables["prices"]  # type: ignore[index]
    with pytest.raises(TypeError):
        catalog.network_arrays["size"] = np.zeros(1)  # type: ignore[index]


def test_fingerprint_is_of_the_content_not_of_its_form(tmp_path: Path, catalog: Catalog) -> None:
    content = sheets()
    content["accelerators"][1:] = reversed(content["accelerators"][1:])
    content["accelerators"][0][3:5] = ["Memory_Capacity ( GiB )", "MEMORY bandwidth"]
    content["models"][1][7] = True
    content["models"] = [[*row, blank] for row, blank in zip(content["models"], ["notes", None, ""], strict=True)]
    content["networks"][2][5] = "Fat Tree"
    other = load_catalog(write(tmp_path / "other.xlsx", content))
    assert other.fingerprint == catalog.fingerprint
    assert len(catalog.fingerprint) == 16
    set_cell(content, "accelerators!E2", 2.0390000001)
    assert load_catalog(write(tmp_path / "other.xlsx", content)).fingerprint != catalog.fingerprint


def test_ranges_sent_by_a_host_have_the_fingerprint_of_the_file(catalog: Catalog) -> None:
    tables = []
    for kind in CATALOG_TABLES:
        header, *rows = sheets()[kind]
        assert table_kind(header) == kind
        numbers = [[float(cell) if isinstance(cell, (int, float)) else cell or "" for cell in row] for row in rows]
        tables.append(table_from_rows(kind, header, numbers))
    assert load_catalog().with_tables(tables).fingerprint == catalog.fingerprint


def test_sheets_that_a_workbook_lacks_are_the_shipped_ones(tmp_path: Path) -> None:
    content = {"accelerators": sheets()["accelerators"]}
    position = content["accelerators"][0].index("default network")
    for row in content["accelerators"]:
        row[position : position + 1] = []
    path = write(tmp_path / "study.xlsx", content)
    installed, own = load_catalog(), load_catalog(path)
    assert own.tables["models"] is installed.tables["models"]
    assert own.tables["accelerators"]["accelerator"].tolist() == ["H100", "A100"]
    assert own.origin == "study.xlsx"
    assert load_catalog() is installed


def test_columns_may_be_absent_and_have_defaults(catalog: Catalog) -> None:
    accelerators, prices = catalog.tables["accelerators"], catalog.tables["prices"]
    assert "reserved_memory" not in accelerators
    assert accelerators.filled("reserved_memory").tolist() == [factor("GiB")] * 2
    assert prices.filled("life").tolist() == [4 * factor("year")] * 2
    assert np.isnan(prices.filled("rental_price")).all()
    assert catalog.tables["models"].filled("position_embedding").tolist() == ["rope", "rope"]
    assert catalog.tables["models"].filled("tied_embeddings").tolist() == [0, 0]
    assert catalog.tables["networks"].filled("topology").tolist() == ["switch", "fat-tree", "switch"]


def test_sheet_without_an_excel_table_is_read_from_its_first_header(tmp_path: Path, catalog: Catalog) -> None:
    content = sheets()
    content["models"] = [["Models of the study"], [None], *[[None, *row] for row in content["models"]], [None], [None]]
    content["training"] = [["Plans"], *content["training"]]
    path = write(tmp_path / "xlperf.xlsx", content, tables=False)
    read = load_catalog(path)
    assert read.fingerprint == catalog.fingerprint
    assert read.tables["models"].place(1, "model") == "xlperf.xlsx [models!B5]"
    set_cell(content, "training!E4", 3.5)
    with pytest.raises(InputError, match=r"xlperf.xlsx \[training!E4\]: tensor parallel"):
        read_plans(write(path, content, tables=False))


def test_plans_of_a_workbook(workbook: Path) -> None:
    (plans,) = read_plans(workbook)
    assert plans.kind == "training"
    assert "step_time" not in plans
    assert plans["num_accelerators"].tolist() == [8, 64]
    assert plans["tensor_parallel"][0] == 8 and np.isnan(plans["tensor_parallel"][1])
    assert plans["precision"].tolist() == ["bf16", ""]
    assert plans.filled("precision").tolist() == ["bf16", "bf16"]
    assert plans.place(1, "num_accelerators") == "xlperf.xlsx [training!D3]"


def test_sheet_and_kind_can_be_named(tmp_path: Path) -> None:
    content = sheets()
    header = ["model", "accelerator", "num accelerators", "prompt length", "output length"]
    content["mine"] = [header, ["gpt-3", "A100", 8, 200, 100]]
    content["inference"] = [header, [None] * 5]
    path = write(tmp_path / "study.xlsx", content)
    assert [table.kind for table in read_plans(path)] == ["training"]
    assert [table.kind for table in read_plans(path, sheet="MINE")] == ["inference"]
    with pytest.raises(InputError, match='unknown column "prompt length"'):
        read_plans(path, sheet="mine", kind="training")


def test_package_as_excel_writes_it(tmp_path: Path) -> None:
    (plans,) = read_plans(write_as_excel(tmp_path / "excel.xlsx"))
    assert plans["name"].tolist() == ["two\r\nlines", ""]
    assert plans["model"].tolist() == ["llama-2-7b", "gpt-3"]
    assert plans["accelerator"].tolist() == ["H100", "A100"]
    assert plans["num_accelerators"].tolist() == [8, 16]
    assert plans["tensor_parallel"].tolist() == [2, 4]
    assert plans["sequence_parallel"].tolist() == [1, 0]
    assert plans["global_batch_size"].tolist() == [16, 45413]
    assert plans.place(1, "model") == "excel.xlsx [Training!C6]"


@pytest.mark.parametrize(
    ("style", "date_1904", "shown"),
    [(1, False, "2024-05-01"), (2, False, "2024-05-01"), (2, True, "2028-05-02")],
)
def test_dates_are_told_from_numbers_by_their_style(style: int, date_1904: bool, shown: str, tmp_path: Path) -> None:
    path = write_as_excel(tmp_path / "excel.xlsx", style, date_1904)
    with pytest.raises(InputError) as caught:
        read_plans(path)
    assert str(caught.value) == (
        "excel.xlsx [Training!H6]: global batch size must be a whole number of at least 1, got the date " + shown
    )


@pytest.mark.skipif(shutil.which("soffice") is None, reason="needs LibreOffice")
def test_workbook_saved_by_libreoffice_is_the_same_catalog(workbook: Path, tmp_path: Path, catalog: Catalog) -> None:
    profile = (tmp_path / "profile").as_uri()
    arguments = [
        "soffice",
        f"-env:UserInstallation={profile}",
        "--headless",
        "--convert-to",
        "xlsx:Calc MS Excel 2007 XML",
    ]
    done = subprocess.run(
        [*arguments, "--outdir", str(tmp_path / "saved"), str(workbook)], capture_output=True, timeout=120, check=False
    )
    saved = tmp_path / "saved" / "xlperf.xlsx"
    assert saved.exists(), done.stderr
    assert load_catalog(saved).fingerprint == catalog.fingerprint
    before, after = read_plans(workbook)[0], read_plans(saved)[0]
    assert list(before.columns) == list(after.columns)
    for column in before.columns:
        np.testing.assert_array_equal(before[column], after[column])


def test_reading_a_workbook_is_fast(tmp_path: Path) -> None:
    content = sheets()
    content["models"] += [
        [f"model {row}", *content["models"][1][2:3] * 0, None, *content["models"][1][2:]] for row in range(150)
    ]
    path = write(tmp_path / "large.xlsx", content)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        load_catalog(path)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.3


# --- plans from text and cells ---------------------------------------------------------------------------------------

CSV = """Model,accelerator,num_accelerators,tensor parallel,Sequence Parallel,precision,mfu
gpt-3,A100,1024,8,yes,BF16,0.4
"llama-2-7b",H100,8,auto,,Auto,
"""


def test_plans_of_a_csv_file(tmp_path: Path) -> None:
    path = tmp_path / "plans.csv"
    path.write_text(CSV)
    (plans,) = read_plans(path)
    assert list(plans.columns) == [header.replace(" ", "_") for header in PLAN_HEADER]
    assert plans["num_accelerators"].tolist() == [1024, 8]
    assert plans["precision"].tolist() == ["bf16", ""]
    assert {name: mask.tolist() for name, mask in plans.auto.items()} == {
        "tensor_parallel": [False, True],
        "precision": [False, True],
    }
    assert np.isnan(plans["tensor_parallel"][1])
    assert plans.place(1, "precision") == "plans.csv [line 3, precision]"


@pytest.mark.parametrize(
    "content",
    [
        CSV.encode("utf-8-sig"),
        CSV.encode("utf-16"),
        CSV.replace(",", ";").encode(),
        CSV.replace(",", "\t").encode(),
        CSV.replace("\n", "\r\n").encode(),
        CSV.replace("\n", "\n\n,,,,,,\n").encode(),
        CSV.replace(",\n", "\n").encode(),
    ],
)
def test_csv_as_other_programs_write_it(content: bytes, tmp_path: Path) -> None:
    expected, path = tmp_path / "expected.csv", tmp_path / "plans.csv"
    expected.write_text(CSV)
    path.write_bytes(content)
    _same(read_plans(path)[0], read_plans(expected)[0])


def test_plans_on_standard_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "plans.csv"
    path.write_text(CSV)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(CSV.encode())))
    (plans,) = read_plans("-")
    _same(plans, read_plans(path)[0])
    assert plans.place(0, "precision") == "standard input [line 2, precision]"


def test_plans_of_a_parquet_file(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"model": ["a", "b"], "accelerator": ["x", None], "num_accelerators": [8, 16], "step_time": [1.0, 2.0]}
    path = tmp_path / "plans.parquet"
    parquet.write_table(arrow.table(columns), path)
    with pytest.raises(InputError, match=r"plans.parquet \[row 2, column accelerator\]: accelerator is missing"):
        read_plans(path)
    parquet.write_table(arrow.table({**columns, "accelerator": ["x", "y"]}), path)
    (plans,) = read_plans(path)
    assert plans["num_accelerators"].tolist() == [8, 16]
    assert plans["accelerator"].tolist() == ["x", "y"]


def test_cells_columns_and_cards_give_the_same_table(tmp_path: Path) -> None:
    row = ["gpt-3", "A100", 1024, 8, True, "BF16"]
    from_rows = table_from_rows("training", PLAN_HEADER, [row])
    _same(from_rows, card_to_table([list(pair) for pair in zip(PLAN_HEADER, row, strict=True)]))
    columns = {name: np.array([value]) for name, value in zip(PLAN_HEADER, row, strict=True)}
    _same(from_rows, table_from_columns("training", columns))
    path = tmp_path / "plans.csv"
    path.write_text("\n".join(CSV.splitlines()[:2]))
    _same(from_rows, read_plans(path)[0])


def test_blank_rows_are_left_out_or_kept(tmp_path: Path) -> None:
    rows = [["a", "b", 1, None, None, ""], [None, "", "  ", None, None, float("nan")], ["c", "d", 2, None, None, None]]
    table = table_from_rows("training", PLAN_HEADER, rows)
    assert table["model"].tolist() == ["a", "c"]
    assert table.place(1, "model") == "row 3, model"
    with pytest.raises(InputError, match="row 2, model: model is missing"):
        table_from_rows("training", PLAN_HEADER, rows, skip_empty=False)


def test_columns_of_numbers_are_checked_at_once() -> None:
    columns = {
        "model": np.array(["a"] * 4, dtype=object),
        "accelerator": np.array(["b"] * 4, dtype=object),
        "num accelerators": np.array([8, np.nan, np.inf, 0.5]),
        "sequence parallel": np.array([True, False, True, False]),
        "tensor parallel": np.array([1, 2, 3, 4]),
    }
    with pytest.raises(InputError) as caught:
        table_from_columns("training", columns)
    expects = "a whole number of at least 1"
    assert str(caught.value).splitlines() == [
        f"row 2, num accelerators: num accelerators is missing; it must be {expects}",
        f"row 3, num accelerators: num accelerators must be {expects}, got inf",
        f"row 4, num accelerators: num accelerators must be {expects}, got 0.5",
    ]
    columns["num accelerators"] = np.array([8, 8, 8, 8])
    table = table_from_columns("training", columns)
    assert table["sequence_parallel"].tolist() == [1, 0, 1, 0]
    assert table["tensor_parallel"].tolist() == [1, 2, 3, 4]


def test_kind_of_a_header() -> None:
    assert plan_kind(["model", "Prompt Length (-)"]) == "inference"
    assert table_kind([None, "Network", "tier"]) == "networks"
    assert table_kind(["name", "model", "prompt_length"]) == "inference"
    with pytest.raises(InputError, match="the first header must name the kind of table"):
        table_kind(["colour", "size"])


def test_a_hundred_thousand_plans_of_csv(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    header = "name,model,accelerator,num_accelerators,tensor_parallel,pipeline_parallel,global_batch_size,precision"
    counts = random.integers(1, 2000, (100_000, 4)).tolist()
    path = tmp_path / "plans.csv"
    path.write_text(
        "\n".join([header, *(f"plan {row},gpt-3,A100,{a},{b},{c},{d},bf16" for row, (a, b, c, d) in enumerate(counts))])
    )
    start = time.perf_counter()
    (plans,) = read_plans(path)
    assert time.perf_counter() - start < 3.0
    assert len(plans) == 100_000
    assert plans["global_batch_size"].tolist() == [float(row[3]) for row in counts]
    assert plans["name"][99_999] == "plan 99999"


# --- show and check --------------------------------------------------------------------------------------------------


def test_workbook_as_text(tmp_path: Path) -> None:
    content = {"networks": sheets()["networks"], "notes": [["a\tb\nc\\d", None, 0.1, True], [None], ["=SUM(1,2)"]]}
    assert show(write(tmp_path / "study.xlsx", content, tables=False)) == (
        "# networks\n"
        "network\ttier\tsize\tlink bandwidth (GB/s)\tlatency (us)\ttopology\tsource\tyear\n"
        "DGX-H100\t1\t8\t450\t1\tswitch\tdatasheet\t2022\n"
        "DGX-H100\t2\t1024\t50\t5\tfat-tree\tdatasheet\t2022\n"
        "DGX-A100\t1\t8\t300\t1\tswitch\tdatasheet\t2020\n"
        "# notes\n"
        "a\\tb\\nc\\\\d\t\t0.1\tTRUE\n"
        "=SUM(1,2)\n"
    )


def test_formulas_are_shown_as_formulas(tmp_path: Path) -> None:
    assert show(write_as_excel(tmp_path / "excel.xlsx", 2)).splitlines() == [
        "# Training\ttable Training_1 B3:I7",
        "\tname",
        "\tname\tmodel\taccelerator\tnum accelerators\ttensor parallel\tsequence parallel\tglobal batch size\t"
        "step time (s)",
        '\ttwo\\nlines\tllama-2-7b \t="H"&100\t=2*4\t=E4/4\tTRUE\t16\t=1/0',
        '\t=IF(1,"","")\tgpt-3\tA100\t16\t=E6/4\tFALSE\t2024-05-01\t{=SUM(E4:E6)}',
        "\t\t0",
    ]


def test_one_changed_cell_changes_one_line_of_the_text(workbook: Path, tmp_path: Path) -> None:
    before = show(workbook)
    after = show(write(tmp_path / "xlperf.xlsx", set_cell(sheets(), "accelerators!E2", 3.9)))
    changed = [pair for pair in zip(before.splitlines(), after.splitlines(), strict=True) if pair[0] != pair[1]]
    assert [pair[1].split("\t")[4] for pair in changed] == ["3.9"]


def test_text_of_a_workbook_does_not_depend_on_the_program(workbook: Path, tmp_path: Path) -> None:
    book = load_workbook(workbook)
    book["models"].column_dimensions["A"].width = 40
    book.save(tmp_path / "again.xlsx")
    assert show(tmp_path / "again.xlsx") == show(workbook)


def test_check_says_what_is_doubtful(tmp_path: Path) -> None:
    content = sheets()
    set_cell(content, "accelerators!I2", None)
    set_cell(content, "accelerators!J3", None)
    set_cell(content, "accelerators!G3", None)
    set_cell(content, "networks!D3", 900)
    set_cell(content, "networks!C3", 1001)
    set_cell(content, "models!E3", 97)
    set_cell(content, "prices!C2", 2019)
    content["training"].append(["A", *content["training"][1][1:]])
    content["Inferences"] = [["x"], [1]]
    found = check(write(tmp_path / "study.xlsx", content), today=datetime.date(2026, 1, 1))
    assert found.ok
    assert found.counts == {
        "accelerators": 2, "networks": 3, "models": 2, "prices": 2, "calibration": 2, "training": 3,
    }  # fmt: skip
    assert found.lines() == [
        "study.xlsx [Inferences]: doubtful: the sheet is not read; if inference is meant, give it that name",
        'study.xlsx [accelerators!I2]: doubtful: "H100" has no source',
        'study.xlsx [accelerators!J3]: doubtful: "A100" has no year',
        'study.xlsx [prices!C2]: doubtful: the price of "H100" is of 2019, more than 3 years ago',
        'study.xlsx [accelerators!G3]: doubtful: "A100" has no default network: every plan on several of '
        "them must name one",
        'study.xlsx [networks!D3]: doubtful: tier 2 of "DGX-H100" is faster than the tier inside it',
        'study.xlsx [networks!C3]: doubtful: size of tier 2 of "DGX-H100" is no multiple of the tier inside it',
        'study.xlsx [models!A3]: doubtful: hidden size of "gpt-3" is no multiple of its attention heads; give the head '
        "size",
        'study.xlsx [training!A4]: doubtful: another plan is named "A", at study.xlsx [training!A2]',
        "study.xlsx [training!A4]: doubtful: the plan is the same as that at study.xlsx [training!A2]",
        "study.xlsx: 2 accelerators, 3 networks, 2 models, 2 prices, 2 calibration, 3 training; 0 failed, 10 doubtful",
    ]


def test_check_of_rates_and_prices(tmp_path: Path) -> None:
    content = without_column(sheets(), "prices", "source")
    content["prices"][2:] = []
    for row, extra in zip(
        content["accelerators"], (["peak flop rate fp8", "l2 bandwidth"], [900, 3], [1, 5]), strict=True
    ):
        row += extra
    content["accelerators"][2][10] = None
    for row, extra in zip(content["models"], ("num query groups", 5, 96), strict=True):
        row.append(extra)
    lines = check(write(tmp_path / "study.xlsx", content), today=datetime.date(2026, 1, 1)).lines()
    assert lines[:-1] == [
        'study.xlsx [prices!A2]: doubtful: "H100" has no source',
        'study.xlsx [accelerators!K2]: doubtful: "H100" is faster in bf16 than in fp8',
        'study.xlsx [accelerators!L2]: doubtful: the L2 of "H100" is slower than its memory',
        'study.xlsx [accelerators!A3]: doubtful: "A100" has no price: plans on it have no cost',
        'study.xlsx [models!K2]: doubtful: attention heads of "llama-2-7b" are no multiple of its query groups',
    ]


def test_check_says_once_what_many_rows_lack(tmp_path: Path) -> None:
    content = without_column(sheets(), "models", "source")
    content["models"] += [[f"model {row}", None, *content["models"][1][2:]] for row in range(40)]
    lines = check(write(tmp_path / "study.xlsx", content), today=datetime.date(2026, 1, 1)).lines()
    assert lines[:-1] == ['study.xlsx [models!A2]: doubtful: "llama-2-7b" and 41 more have no source']


def test_check_runs_the_tests_that_need_equations(workbook: Path, command: Callable[..., Outcome]) -> None:
    from xlperf.errors import Fault

    found = check(workbook, [lambda catalog: [Fault(catalog.origin, "a model is not what it says")]])
    assert not found.ok
    assert found.lines()[0] == "xlperf.xlsx: a model is not what it says"
    outcome = command("check", workbook)
    assert (outcome.code, outcome.err) == (0, "")


def _same(one: Table, other: Table) -> None:
    assert one.kind == other.kind
    assert list(one.columns) == list(other.columns)
    for name in one.columns:
        assert one[name].dtype == other[name].dtype
        np.testing.assert_array_equal(one[name], other[name])
    assert {name: mask.tolist() for name, mask in one.auto.items()} == {
        name: mask.tolist() for name, mask in other.auto.items()
    }
