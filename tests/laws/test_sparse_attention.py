"""Sparse attention (DeepSeek-V3.2 and V4, GLM-5, MiniMax-M3): counts by hand, limits that are dense models, laws."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate, explain
from xlperf.engine.catalog_arrays import catalog_models
from xlperf.engine.inference import evaluate_inference
from xlperf.engine.join import architecture_codes, named_rows
from xlperf.engine.models import architecture_of
from xlperf.engine.served import served_plans
from xlperf.engine.training import training_setting
from xlperf.equations.model.model import Model
from xlperf.equations.model.operators import parameter_count
from xlperf.equations.serving.phases import serving_work
from xlperf.equations.training.step import step

V32, FLASH, PRO, GLM, M3 = "DeepSeek-V3.2", "DeepSeek-V4-Flash", "DeepSeek-V4-Pro", "GLM-5", "MiniMax-M3"
SPARSE = (V32, FLASH, PRO, GLM, M3)
GIGA, GIB = 1e9, 2.0**30
FP8 = 1.0 + 4.0 / 128.0


def table(kind: str, base: dict[str, Any], rows: tuple[dict[str, Any], ...]) -> Table:
    full = [{**base, **row} for row in rows]
    header = list(dict.fromkeys(name for row in full for name in row))
    cells = [[row.get(name, "") for name in header] for row in full]
    return table_from_rows(kind, header, cells, lambda row, column: f"row {row} {column}")


def served(*rows: dict[str, Any]) -> Table:
    base = {"model": V32, "accelerator": "H200-SXM-141GB", "num_accelerators": 8, "tensor_parallel": 8,
            "expert_parallel": 8, "data_parallel_attention": 8, "prompt_length": 4096, "output_length": 256,
            "batch_size": 16, "precision": "fp8", "software": "sglang"}  # fmt: skip
    return table("inference", base, rows)


def trained(*rows: dict[str, Any]) -> Table:
    base = {"model": V32, "accelerator": "GB300-NVL72", "num_accelerators": 256, "expert_parallel": 64,
            "global_batch_size": 2048, "sequence_length": 4096, "software": "nemo"}  # fmt: skip
    return table("training", base, rows)


def changed(model: str, **values: float | str) -> Catalog:
    """The catalog with other cells of one model."""
    catalog = load_catalog()
    models = catalog.tables["models"]
    row = models.text("model").tolist().index(model)
    columns = dict(models.columns)
    for name, value in values.items():
        text = isinstance(value, str)
        old = models.text(name) if text else models.number(name)
        columns[name] = np.array(old, dtype=object if text else np.float64)
        columns[name][row] = value
    return catalog.with_tables([Table("models", columns, models.place)])


def model_of(name: str) -> Model:
    every, reasons = catalog_models(load_catalog())
    row = load_catalog().tables["models"].text("model").tolist().index(name)
    assert reasons[row] == ""
    return Model(**{field.name: getattr(every, field.name)[row : row + 1] for field in fields(Model)})


@pytest.mark.parametrize(
    ("name", "total", "active"), [(V32, 671.0, 37.0), (FLASH, 284.0, 13.0), (PRO, 1600.0, 49.0), (GLM, 744.0, 40.0)]
)
def test_parameters_are_those_published(name: str, total: float, active: float) -> None:
    """Active ones without the embedding; Pro is published as 1.6 T."""
    model = model_of(name)
    assert parameter_count(model)[0] / GIGA == pytest.approx(total, rel=0.02)
    each = parameter_count(model, True) - model.vocab_size * model.hidden_size
    assert each[0] / GIGA == pytest.approx(active, rel=0.035)


def test_cache_of_selected_tokens_holds_latent_vectors_and_keys_of_the_index() -> None:
    """61 layers of 512 + 64 elements and 128 index keys in FP8 with their scales."""
    row = {"batch_size": 8, "prompt_length": 4095, "output_length": 1, "kv_precision": "fp8",
           "software": "tensorrt-llm"}  # fmt: skip
    result = evaluate(served(row), load_catalog())
    each = 61 * (576 * 1.0 + 128 * FP8) * 4096
    assert result.number("memory_kv_cache")[0] == pytest.approx(each, rel=1e-3)


def test_cache_of_compressed_entries_by_hand() -> None:
    """V4-Flash at 64 Ki tokens: a window of 128 in 43 layers, an entry of 512 for 4 in 21 and for 128 in 20 of them."""
    row = {"model": FLASH, "batch_size": 8, "prompt_length": 65535, "output_length": 1, "kv_precision": "fp8",
           "software": "tensorrt-llm"}  # fmt: skip
    result = evaluate(served(row), load_catalog())
    entries = 43 * 128 + 21 * 65536 / 4 + 20 * 65536 / 128
    expected = entries * 512 + 21 * 65536 / 4 * 128 * FP8
    assert result.number("memory_kv_cache")[0] == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("model", ["DeepSeek-V3", "Llama3-8B"])
def test_without_sparse_layers_a_served_model_keeps_its_numbers_to_the_last_bit(model: str) -> None:
    mapping = {} if model == "DeepSeek-V3" else {"expert_parallel": 1, "data_parallel_attention": 1}
    plans = served({"model": model, **mapping}, {"model": model, "prompt_length": 100000, "batch_size": 1, **mapping})
    catalog = load_catalog()
    named = named_rows(plans, catalog)
    architecture = architecture_of(int(architecture_codes(named, catalog)[0]))
    deployment = served_plans(plans, catalog, named, architecture, "static").setting.deployment
    none = np.zeros(len(plans))
    one = none + 1.0
    counts = ("num_selected_layers", "num_compressed_layers", "num_index_layers", "sparse_window", "shared_key_value")
    sparse = replace(
        deployment.model, **dict.fromkeys(counts, none), index_heads=one, index_size=one, index_top_k=one,
        selected_ratio=one, compressed_ratio=one, index_block=one, index_key_size=one,
    )  # fmt: skip
    architecture = replace(deployment.architecture, sparse_attention=True)
    before, after = serving_work(deployment), serving_work(replace(deployment, model=sparse, architecture=architecture))
    for one_group, other in zip((before.gemms, before.attention), (after.gemms, after.attention), strict=True):
        at = [other.names.index(name) for name in one_group.names]
        for values, others in zip(one_group[2:], other[2:], strict=True):
            assert values.tobytes() == np.ascontiguousarray(others[..., at]).tobytes()
        rest = [index for index in range(len(other.names)) if index not in at]
        assert not other.calls[..., rest].any()
    assert after.parts == pytest.approx(before.parts, rel=1e-14)  # sums over more kernels, those without calls


def test_without_sparse_layers_a_trained_model_keeps_its_numbers_to_the_last_bit() -> None:
    catalog, plans = load_catalog(), trained({"model": "Llama3-8B", "expert_parallel": 1})
    setting = training_setting(plans, catalog, named_rows(plans, catalog), architecture_of(0))[0]
    none = np.zeros(len(plans))
    one = none + 1.0
    model = replace(
        setting.model, num_selected_layers=none, num_compressed_layers=none, num_index_layers=none, index_heads=one,
        index_size=one, index_top_k=one, selected_ratio=one, compressed_ratio=one, index_block=one, sparse_window=none,
        shared_key_value=none, residual_streams=one,
    )  # fmt: skip
    other = replace(setting, model=model, architecture=architecture_of(32))
    first, second = step(setting).results, step(other).results
    for name, values in first.items():
        assert values.tobytes() == second[name].tobytes(), name


def parts(catalog: Catalog, plans: Table) -> dict[tuple[str, str], float]:
    result = explain(plans, catalog)
    names = zip(result.text("phase").tolist(), result.text("operator").tolist(), strict=True)
    return dict(zip(names, result.number("total_time").tolist(), strict=True))


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_an_index_that_selects_everything_leaves_attention_as_it_was(phase: str) -> None:
    """With more than the context selected, attention itself takes the time of the model without an index."""
    plans = {"prompt_length": 2000, "output_length": 2}
    sparse = parts(changed(V32, index_top_k=1e6), served(plans))
    dense = parts(load_catalog(), served({**plans, "model": "DeepSeek-V3"}))
    assert sparse[phase, "selected attention"] == dense[phase, "attention"]
    assert sparse[phase, "index"] > 0.0


@pytest.mark.parametrize(("model", "column"), [(V32, "index_top_k"), (M3, "index_top_k"), (V32, "index_num_heads")])
def test_more_is_never_faster(model: str, column: str) -> None:
    width = {"data_parallel_attention": 4} if model == M3 else {}
    rows = {"model": model, "prompt_length": 60000, "batch_size": 4, **width}
    steps = (32.0, 64.0, 128.0) if column == "index_num_heads" else (512.0, 2048.0, 8192.0, 32768.0)
    outcome = [evaluate(served(rows), changed(model, **{column: value})) for value in steps]
    for result in ("ttft", "tpot"):
        times = [each.number(result)[0] for each in outcome]
        assert times == sorted(times) and times[0] < times[-1], result


def test_attention_stops_growing_with_the_context_and_the_index_does_not() -> None:
    short, long = (
        parts(load_catalog(), served({"prompt_length": length, "batch_size": 8, "software": "tensorrt-llm"}))
        for length in (8192, 65536)
    )  # TensorRT-LLM has no time of small kernels beside the scores
    assert long["decode", "selected attention"] == pytest.approx(short["decode", "selected attention"], rel=1e-9)
    assert long["decode", "index"] > 2.0 * short["decode", "index"]


def test_shared_choices_of_an_index_cost_less() -> None:
    """GLM-5.2 selects in 21 of 78 layers, GLM-5 in all."""
    rows = {"prompt_length": 65536, "batch_size": 4}
    one, other = (evaluate(served({**rows, "model": name}), load_catalog()) for name in ("GLM-5.2", "GLM-5"))
    for result in ("ttft", "tpot", "memory_kv_cache"):
        assert one.number(result)[0] < other.number(result)[0], result


def test_the_loss_of_an_index_is_over_the_selected_entries() -> None:
    """V3.2, 32 Ki queries: 2,048 latent keys of 576 for 128 heads, of 128 for 64 of the index; fewer at the start.

    Forward the index sees 16 Ki entries in the mean; its gradients are two products.
    """
    length, top_k = 32768.0, 2048.0
    result = explain(trained({"sequence_length": length, "global_batch_size": 256}), load_catalog())
    flop = dict(zip(result.text("operator").tolist(), result.number("flop").tolist(), strict=True))
    entries = (top_k * (top_k + 1.0) / 2.0 + (length - top_k) * top_k) / length
    assert flop["index"] == pytest.approx(2.0 * length * (length / 2.0) * 64.0 * 128.0, rel=1e-3)
    assert flop["index target"] == pytest.approx(2.0 * length * entries * 128.0 * 576.0, rel=1e-3)
    assert flop["index gradient"] == pytest.approx(2.0 * 2.0 * length * entries * 64.0 * 128.0, rel=1e-3)


@pytest.mark.parametrize("model", SPARSE)
def test_sparse_models_are_trained_and_served(model: str) -> None:
    """Legal, with parts that add up; the step takes longer with more tokens per sequence."""
    plans = trained(*({"model": model, "sequence_length": length} for length in (4096, 8192)))
    result = evaluate(plans, load_catalog())
    time = result.number("step_time")
    assert time[0] * 1.4 < time[1]
    whole = sum(result.number(name) for name in result.columns if name.startswith("time_"))
    assert whole == pytest.approx(time, rel=1e-9)
    width = {"data_parallel_attention": 4} if model == M3 else {}
    assert evaluate(served({"model": model, **width}), load_catalog()).number("tpot")[0] > 0.0


def test_sparse_training_is_cheaper_than_dense_at_long_sequences() -> None:
    """The same model that attends to everything takes longer at 64 Ki tokens, not at 2 Ki where all is selected."""
    rows = [{"sequence_length": length, "global_batch_size": 256} for length in (2048, 65536)]
    sparse = evaluate(trained(*rows), load_catalog()).number("step_time")
    dense = evaluate(trained(*({**row, "model": "DeepSeek-V3"} for row in rows)), load_catalog()).number("step_time")
    assert sparse[1] < dense[1] and sparse[0] > dense[0]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"context_parallel": 2}, "context parallel 2 is not modelled for sparse attention"),
        ({"attention": "standard"}, "sparse attention has no standard kernel"),
        ({"adapter_rank": 16}, "adapters beside sparse attention"),
    ],
)
def test_what_is_not_modelled_is_said(row: dict[str, Any], sentence: str) -> None:
    result = evaluate(trained(row), load_catalog())
    assert sentence in result.text("reason")[0] and np.isnan(result.number("step_time")[0])


def test_a_sparse_row_without_its_index_is_refused() -> None:
    catalog = changed(V32, index_top_k=float("nan"))
    assert (
        f"model {V32} has sparse attention, which is not modelled yet"
        in evaluate(served({}), catalog).text("reason")[0]
    )
    wrong = changed(FLASH, attention_pattern="2 sliding : 20 selected 4 : 20 compressed 128")
    reason = evaluate(served({"model": FLASH}), wrong).text("reason")[0]
    assert "has 43 layers, which are not those of its pattern" in reason


def test_a_batch_of_mixed_models_is_each_by_itself() -> None:
    """Sparse, hybrid and dense models in one table have the numbers that they have alone, bit for bit."""
    rows = [{"model": name} for name in (V32, FLASH, GLM)]
    rows += [{"model": "NVIDIA-Nemotron-3-Super-120B-A12B-FP8", "data_parallel_attention": 1}, {"model": "DeepSeek-V3"}]
    together = evaluate_inference(served(*rows), load_catalog())
    for index, row in enumerate(rows):
        alone = evaluate_inference(served(row), load_catalog())
        for name, values in alone.items():
            assert values[0] == together[name][index] or values[0] != values[0], (row, name)
