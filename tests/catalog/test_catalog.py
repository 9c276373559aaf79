"""Workbooks and cells become the same tables, whoever wrote them; names are found."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from excel_samples import write_as_excel
from work import calls
from workbook_samples import set_cell, sheets, write

from xlperf.base.errors import InputError
from xlperf.base.units import factor
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.cells import table_kind
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.read import read_plans
from xlperf.catalog.schema import CATALOG_TABLES
from xlperf.catalog.table import Table
from xlperf.engine.catalog_arrays import catalog_models

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
    lacking = catalog.with_tables([table_from_rows("accelerators", header, [[*row[:-1], "none"]])])
    assert [fault.problem for fault in lacking.orphans.faults] == ['unknown network "none"']
    assert len(lacking.tables["accelerators"]) == 0


def test_catalog_is_not_changed_by_its_users(catalog: Catalog) -> None:
    with pytest.raises(TypeError):
        catalog.tables["models"] = catalog.tables["prices"]
    with pytest.raises(TypeError):
        catalog.network_arrays["size"] = np.zeros(1)


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
    names, shipped = (each.tables["accelerators"]["accelerator"].tolist() for each in (own, installed))
    assert names == ["H100", "A100", *shipped]  # one sheet alone adds its rows
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
    assert plans["global_batch_size"].tolist() == [16, 4096]
    assert plans.place(1, "model") == "excel.xlsx [Training!C6]"


@pytest.mark.parametrize(("style", "date_1904"), [(1, False), (2, False), (2, True)])
def test_a_number_that_is_shown_as_a_date_is_a_number(style: int, date_1904: bool, tmp_path: Path) -> None:
    (plans,) = read_plans(write_as_excel(tmp_path / "excel.xlsx", style, date_1904))
    assert plans["global_batch_size"].tolist() == [16, 4096]


def test_workbook_saved_by_libreoffice_is_the_same_catalog(
    workbook: Path, converted: Callable[..., Path], tmp_path: Path, catalog: Catalog
) -> None:
    saved = converted(tmp_path, "xlsx", workbook) / "xlperf.xlsx"
    assert load_catalog(saved).fingerprint == catalog.fingerprint
    before, after = read_plans(workbook)[0], read_plans(saved)[0]
    assert list(before.columns) == list(after.columns)
    for column in before.columns:
        np.testing.assert_array_equal(before[column], after[column])


def test_reading_a_workbook_takes_few_calls(tmp_path: Path) -> None:
    content = sheets()
    content["models"] += [
        [f"model {row}", *content["models"][1][2:3] * 0, None, *content["models"][1][2:]] for row in range(150)
    ]
    path = write(tmp_path / "large.xlsx", content)
    load_catalog(path)  # what the first reading of a process loads
    count, _ = calls(lambda: load_catalog(path))
    assert count < 1000 * 150  # 460 for each model: its cells, and their elements of XML


def test_tables_and_catalogs_travel_between_processes(catalog: Catalog, tmp_path: Path) -> None:
    again = pickle.loads(pickle.dumps(catalog))
    assert again.fingerprint == catalog.fingerprint and again.origin == catalog.origin
    assert again.tables["accelerators"].place(1, "memory_bandwidth") == "xlperf.xlsx [accelerators!E3]"
    (tmp_path / "plans.csv").write_text("model,accelerator,num accelerators\na,b,8\n,,\nc,d,9\n")
    plans = pickle.loads(pickle.dumps(read_plans(tmp_path / "plans.csv")[0].take([1])))
    assert plans["num_accelerators"].tolist() == [9.0]
    assert plans.place(0, "model") == "plans.csv [line 4, model]"


def test_an_edited_catalog_shares_what_follows_from_the_tables_that_stay(catalog: Catalog) -> None:
    """What is read from an unchanged sheet is read once; an edited sheet and its readings are the catalog's own."""
    chips, models = catalog.tables["accelerators"], catalog.tables["models"]
    faster = catalog.with_tables([chips.with_columns({"memory_bandwidth": 2.0 * chips["memory_bandwidth"]})])
    assert faster.calibration is catalog.calibration
    assert catalog_models(faster)[1] is catalog_models(catalog)[1]
    deeper = catalog.with_tables([models.with_columns({"num_layers": 2.0 * models["num_layers"]})])
    assert (catalog_models(deeper)[0].num_layers == 2.0 * catalog_models(catalog)[0].num_layers).all()
    constants = catalog.tables["calibration"]
    slower = catalog.with_tables([constants.with_columns({"value": 0.5 * constants["value"]})])
    key = [np.array([word], dtype=object) for word in ("hopper", "bf16", "megatron")]
    before, after = (each.calibration.constants("gemm", *key)[0] for each in (catalog, slower))
    assert any(after[name] != before[name] for name in before)


def test_a_catalog_says_how_it_took_a_name_whatever_another_has_read() -> None:
    """Catalogs of the same models, each of which reads a spelling for itself."""
    shipped = load_catalog()
    prices = shipped.tables["prices"]
    one, two = (shipped.with_tables([prices.take(slice(None))]) for _ in range(2))
    header = ["model", "accelerator", "num accelerators"]
    plans = table_from_rows("training", header, [["llama 3.1 8b", "H100-SXM-80GB", 8]])
    for catalog in (one, two):
        catalog.rows("models", plans.text("model"), plans, "model")
        assert list(catalog.taken("models")) == ["llama 3.1 8b"]
