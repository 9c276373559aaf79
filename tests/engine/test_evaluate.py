"""The one door: names, auto, blocks, notes, mixed tables; the same numbers whatever the size of the table."""

from __future__ import annotations

import numpy as np
import pytest

from xlperf.base.errors import InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import results_of
from xlperf.catalog.table import Table
from xlperf.engine import evaluate, explain
from xlperf.engine.tables import BLOCK

TRAINING = ["name", "model", "accelerator", "num_accelerators", "tensor_parallel", "network"]
SERVING = ["model", "accelerator", "num_accelerators", "tensor_parallel", "prompt_length", "output_length", "precision"]
H100 = "H100-SXM-80GB"


def place(row: int, column: str) -> str:
    return f"plans.csv [line {row + 2}, {column}]"


def training(*rows: list[object]) -> Table:
    return table_from_rows("training", TRAINING, list(rows), place)


def serving(*rows: list[object]) -> Table:
    return table_from_rows("inference", SERVING, list(rows), place)


def test_every_unknown_name_is_reported_at_once(catalog: Catalog) -> None:
    plans = training(["a", "Lama-8B", H100, 8, 1, ""], ["b", "Meta-Llama-3.1-8B", "H100X", 8, 1, "NoNet"])
    with pytest.raises(InputError) as caught:
        evaluate(plans, catalog)
    lines = [str(fault) for fault in caught.value.faults]
    assert [line.split(":")[0] for line in lines] == [
        "plans.csv [line 2, model]",
        "plans.csv [line 3, accelerator]",
        "plans.csv [line 3, network]",
    ]
    assert 'unknown model "Lama-8B"; did you mean' in lines[0]


def test_auto_is_refused_where_nothing_expands_it(catalog: Catalog) -> None:
    plans = training(["a", "Meta-Llama-3.1-8B", H100, 8, "auto", ""])
    with pytest.raises(InputError) as caught:
        evaluate(plans, catalog)
    assert str(caught.value) == (
        "plans.csv [line 2, tensor_parallel]: tensor parallel is auto: a search has to choose a value first"
    )


@pytest.mark.parametrize("kind", ["training", "inference"])
def test_results_are_the_columns_of_the_schema(catalog: Catalog, kind: str) -> None:
    plans = (
        training(["a", "Meta-Llama-3.1-8B", H100, 8, 1, ""])
        if kind == "training"
        else serving(["Meta-Llama-3.1-8B", H100, 1, 1, 128, 128, "bf16"])
    )
    results = evaluate(plans, catalog)
    assert list(results.columns) == [column.name for column in results_of(kind).columns]
    assert all(len(values) == 1 for values in results.columns.values())
    none = evaluate(plans.take([]), catalog)
    assert len(none) == 0 and list(none.columns) == list(results.columns)


def test_blocks_meet_without_a_seam(catalog: Catalog) -> None:
    rows = [["a", "Meta-Llama-3.1-8B", H100, 8 * (1 + row % 7), 1 + row % 2, ""] for row in range(2 * BLOCK + 3)]
    done: list[int] = []
    results = evaluate(training(*rows), catalog, done.append)
    assert sum(done) == len(rows) and len(done) == 3
    for row in (0, BLOCK - 1, BLOCK, 2 * BLOCK + 2):
        alone = evaluate(training(rows[row]), catalog)
        assert alone["step_time"][0] == results["step_time"][row]


def test_serving_explains_its_two_phases(catalog: Catalog) -> None:
    plans = serving(["Meta-Llama-3.1-70B", H100, 8, 8, 1024, 256, "fp8"])
    results, operators = evaluate(plans, catalog), explain(plans, catalog)
    for phase, column in (("prefill", "ttft"), ("decode", "tpot")):
        rows = operators["phase"] == phase
        assert operators["exposed_time"][rows].sum() == pytest.approx(results[column][0], rel=1e-9)
    assert results["bound"][0] in ("compute", "memory", "network", "overhead")


def test_notes_say_what_was_assumed(catalog: Catalog) -> None:
    plans = training(
        ["fits", "Meta-Llama-3.1-8B", H100, 8, 2, ""],
        ["does not", "Meta-Llama-3.1-405B", H100, 8, 8, ""],
        ["no such size", "Meta-Llama-3.1-8B", H100, 10**7, 1, ""],
    )
    results = evaluate(plans, catalog)
    assert results["fits"].tolist()[:2] == [1.0, 0.0]
    assert results["reason"][1].startswith("needs ")
    assert "accelerators at most, the plan has 10000000" in results["reason"][2]
    assert np.isnan(results["step_time"][2]) and results["step_time"][1] > 0


def test_a_machine_without_a_price_has_no_cost_but_a_time(catalog: Catalog) -> None:
    priced = {name.casefold() for name in catalog.tables["prices"]["price"].tolist()}
    names = catalog.tables["accelerators"]["accelerator"].tolist()
    without = next(name for name in names if name.casefold() not in priced and "H100" in name)
    results = evaluate(training(["a", "Llama2-7B", without, 1, 1, ""]), catalog)
    assert results["step_time"][0] > 0
    assert np.isnan(results["cost_per_million_tokens"][0])
