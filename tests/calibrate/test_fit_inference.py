"""The fit of what serving engines take beyond kernels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from fit_samples import sample_coarsely
from published_samples import rows_of_fit_set
from shipped import shipped_published

from xlperf.base import resources
from xlperf.base.arrays import Array
from xlperf.calibrate import fit_published
from xlperf.calibrate.fit_published import MOST_OF_SOFTWARE, family_parameters, fit_serving
from xlperf.calibrate.fitter import FittedConstant, calibration_table, joined_tables
from xlperf.calibrate.published_errors import NEVER_FITTED_SOURCES, errors_of, may_be_fitted, plans_to_fit
from xlperf.calibrate.validate import records_of
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.measurements.published import Published, published_rows

PUBLISHED = ["row_id", "source_id", "group", "model", "gpu", "n_gpus", "tp", "mode", "batch", "isl", "osl"]
PUBLISHED += ["precision", "framework", "latency_s"]


@pytest.fixture(scope="module", autouse=True)
def coarse() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        sample_coarsely(patch)
        yield


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    """Enough of a catalog for Llama 2 on two generations of one accelerator."""
    shapes = [
        ["model", "num layers", "hidden size", "num attention heads", "ffn hidden size", "vocab size", "gated mlp"],
        ["Llama2-7B", 32, 4096, 32, 11008, 32000, True],
        ["Llama2-13B", 40, 5120, 40, 13824, 32000, True],
    ]
    chip = {
        "accelerator": "X",
        "generation": "",
        "peak flop rate bf16 (TFLOP/s)": 312,
        "peak flop rate fp32 (TFLOP/s)": 19.5,
        "memory capacity (GiB)": 80,
        "memory bandwidth (TB/s)": 2.0,
        "num multiprocessors": 108,
        "clock rate (GHz)": 1.41,
        "thermal design power (W)": 400,
        "default network": "N",
    }
    tier = {"network": "N", "tier": 1, "size": 8, "link bandwidth (GB/s)": 300, "latency (us)": 1}
    tables = [table_from_rows("models", shapes[0], shapes[1:])]
    chips = [list({**chip, "accelerator": name, "generation": f"gen {name.lower()}"}.values()) for name in ("X", "Y")]
    tables += [table_from_rows("accelerators", list(chip), chips)]
    tables += [table_from_rows("networks", list(tier), [list(tier.values())])]
    return Catalog.from_tables(tables, "catalog")


ENGINE = "turbomind"
"""An engine to which the list of constants gives the host's time beside a prefill as its own."""


def published(
    group: str, seconds: Callable[[int], float], source: str = "s", alike: bool = False, engine: str = ENGINE
) -> Published:
    """Latencies of 32 plans of ``engine`` on each of two generations; alike: of one length and one request."""
    shapes = itertools.product(("Llama2-7B", "Llama2-13B"), ("X", "Y"), (1, 2, 4, 8), (1, 2, 4, 8))
    rows = []
    for number, (model, chip, tensor, batch) in enumerate(shapes):
        requests, tokens = ("1", "20") if alike else (str(batch), ("2", "20", "200")[number % 3])
        plan = ["8", str(tensor), "static", requests, "200", tokens, "fp16"]
        rows.append([f"{group}{number}", source, group, model, chip, *plan, engine, repr(seconds(number))])
    return published_rows(PUBLISHED, rows, lambda row, column: f"row {row}")


FAMILY = "serving_software"
TRUE_COSTS = {"layer_overhead_time": 7e-5, "token_overhead_time": 4e-5, "prefill_overhead_time": 8e-3}


def made_up(
    catalog: Catalog, slow: float = 1.0, spoil: float = 1.0, alike: bool = False, engine: str = ENGINE
) -> Published:
    """Latencies that known costs make, the host slower beside the first generation; some are spoilt."""
    costs = [plain(FAMILY, name, value) for name, value in TRUE_COSTS.items()]
    costs.append(plain("serving_host", "host_slowdown", slow, "gen x"))
    times = np.exp(errors(published("static", lambda number: 1.0, alike=alike, engine=engine), costs, catalog))
    times[::9] *= spoil
    return published("static", lambda number: float(times[number]), alike=alike, engine=engine)


def errors(measured: Published, rows: list[FittedConstant], catalog: Catalog) -> Array:
    """Logarithms of predicted over measured times under constants."""
    table = joined_tables(catalog.tables["calibration"], calibration_table(rows))
    return errors_of(plans_to_fit(measured, catalog.with_tables([table]))).fitted


def plain(family: str, name: str, value: float, generation: str = "any") -> FittedConstant:
    return FittedConstant(family, generation, "any", "any", name, value, "", 0, math.nan, "", "")


def left(measured: Published, rows: list[FittedConstant], catalog: Catalog) -> Array:
    """Errors that fitted rows leave."""
    return np.abs(errors(measured, rows, catalog))


@pytest.fixture(scope="module")
def fitted(catalog: Catalog) -> tuple[Published, list[FittedConstant]]:
    """Latencies that known costs make, and what a fit makes of them."""
    measured = made_up(catalog)
    return measured, fit_serving(measured, catalog, "2026-01-01")


def test_fit_recovers_costs_through_the_whole_house(
    catalog: Catalog, fitted: tuple[Published, list[FittedConstant]]
) -> None:
    """Latencies made with known costs give these costs back, and the rows of the sheet are looked up by the engine."""
    measured, rows = fitted
    assert left(measured, rows, catalog).max() < 0.02
    result = {row.constant: row for row in rows if row.family == FAMILY and row.software == ENGINE}
    assert {name: result[name].value for name in TRUE_COSTS} == pytest.approx(TRUE_COSTS, rel=0.1)
    for name in TRUE_COSTS:
        named = rows_of_fit_set(result[name].fit_set, measured.text["row_id"])
        assert named == measured.text["row_id"] and result[name].num_rows == len(named)


def test_an_engine_has_few_constants_of_its_own(
    catalog: Catalog, fitted: tuple[Published, list[FittedConstant]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that the list allows an engine the most telling stay, as many as one software may have."""
    measured, rows = fitted
    listed = [row["constant"] for row in resources.rows("calibrate/fitted_families.csv")
              if row["family"] == FAMILY and row["levels"].endswith("software")
              and (not row["software"] or ENGINE in row["software"].split())]  # fmt: skip
    assert len(listed) == 3 < MOST_OF_SOFTWARE == 4
    monkeypatch.setattr(fit_published, "MOST_OF_SOFTWARE", 2)
    fewer = fit_serving(measured, catalog, "2026-01-01")
    for constants, most in ((rows, 3), (fewer, 2)):
        own = [row.constant for row in constants if row.software == ENGINE]
        assert len(own) == len(set(own)) == most
        assert set(own) <= set(listed)


@pytest.mark.slow
def test_outliers_do_not_pull_the_fit(catalog: Catalog) -> None:
    measured = made_up(catalog, spoil=1.7)
    errors = left(measured, fit_serving(measured, catalog, "2026-01-01"), catalog)
    assert np.median(errors) < 0.01
    assert np.median(errors[::9]) > 0.7 * math.log(1.7), "those that are spoilt stay far off"


def test_hosts_of_generations_are_distinguishing_columns(catalog: Catalog) -> None:
    """Hosts half as fast beside one generation are found as such: the engine keeps one cost for all of them."""
    rows = fit_serving(made_up(catalog, slow=2.0), catalog, "2026-01-01")
    hosts = {row.generation: row.value for row in rows if row.constant == "host_slowdown"}
    assert set(hosts) == {"gen y"}, "the other is what hosts are compared with, and stays at 1"
    assert hosts["gen y"] == pytest.approx(0.5, rel=0.1)
    layers = {row.software: row.value for row in rows if row.family == FAMILY and "layer" in row.constant}
    assert layers[ENGINE] == pytest.approx(2.0 * TRUE_COSTS["layer_overhead_time"], rel=0.1)


@pytest.mark.slow
def test_what_rows_do_not_tell_is_not_called_measured(catalog: Catalog) -> None:
    """Rows of static batches say nothing of waiting under load: its share is looked for and goes."""
    measured = made_up(catalog, alike=True, engine="vllm")
    plans = plans_to_fit(measured, catalog)
    entries = errors_of(plans)
    listed = family_parameters("inference", plans, entries)
    assert {one.software for one in listed if one.constant == "waiting_share"} == {"any", "vllm"}
    rows = fit_serving(measured, catalog, "2026-01-01")
    assert not [row for row in rows if row.constant == "waiting_share"]
    layers = [row for row in rows if row.constant == "layer_overhead_time" and row.software == "vllm"]
    assert [(row.kind, row.num_rows) for row in layers] == [("measured", len(measured))]


ONLY_PREDICTED = [("papers", "s"), *(("production", each) for each in NEVER_FITTED_SOURCES)]


@pytest.mark.parametrize(("group", "source"), ONLY_PREDICTED)
def test_nothing_is_fitted_on_what_is_only_predicted(catalog: Catalog, group: str, source: str) -> None:
    measured = published(group, lambda number: 2.0, source)
    plans = plans_to_fit(measured, catalog)
    assert not may_be_fitted(plans, errors_of(plans)).any()
    assert fit_serving(measured, catalog, "2026-01-01") == []


def test_models_with_linear_attention_are_predicted_and_never_fitted() -> None:
    shipped = load_catalog()
    (inference,) = (rows for rows in shipped_published() if rows.kind == "inference")
    hybrid = inference.take([row for row, name in enumerate(inference.text["model"]) if name.startswith("Qwen3.5-")])
    covered = [record for record in records_of([hybrid], shipped) if record.covered]
    assert len(covered) > 300
    plans = plans_to_fit(hybrid, shipped)
    assert not may_be_fitted(plans, errors_of(plans)).any()
