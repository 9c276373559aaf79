"""Training: what a plan and a model may ask for beyond degrees and batch."""

from __future__ import annotations

import numpy as np
import pytest

from xlperf import load_catalog
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.plans import table_from_rows
from xlperf.catalog.table import Table
from xlperf.evaluate import evaluate, explain
from xlperf.evaluate.columns import catalog_models
from xlperf.explore.published import read_published
from xlperf.explore.published_training import training_plans
from xlperf.resources import workbook
from xlperf.workload.parameters import mtp_parameters, parameter_count

H100 = "H100-SXM-80GB"
DENSE = {
    "model": "Meta-Llama-3.1-70B",
    "accelerator": H100,
    "num_accelerators": 64,
    "tensor_parallel": 4,
    "pipeline_parallel": 4,
    "global_batch_size": 64,
    "sequence_length": 8192,
}
LATENT = {
    "model": "DeepSeek-V3",
    "accelerator": H100,
    "num_accelerators": 1024,
    "tensor_parallel": 2,
    "pipeline_parallel": 16,
    "expert_parallel": 64,
    "global_batch_size": 8192,
    "recompute": "full",
}


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def plans(*rows: dict[str, object]) -> Table:
    header = list(dict.fromkeys(name for row in rows for name in row))
    return table_from_rows("training", header, [[row.get(name) for name in header] for row in rows])


def result(catalog: Catalog, row: dict[str, object], name: str = "step_time", **change: object) -> float:
    results = evaluate(plans({**row, **change}), catalog)
    assert not np.isnan(results["step_time"][0]), results["reason"][0]
    return float(results[name][0])


def test_two_stages_with_given_layers_idle_and_reduce_gradients(catalog: Catalog) -> None:
    """No stage in between: the bubble and the gradients are those of the fuller end."""
    row = {**DENSE, "num_accelerators": 64, "pipeline_parallel": 2}
    even = {name: result(catalog, row, name) for name in ("time_pipeline_bubble", "time_data_parallel")}
    given = {name: result(catalog, row, name, first_stage_layers=40, last_stage_layers=40) for name in even}
    assert given == even and even["time_pipeline_bubble"] > 0.0


# --- time of a layer, standard attention ---------------------------------------------------------------------------


def test_layers_make_up_the_step_of_one_replica(catalog: Catalog) -> None:
    """One stage, one replica: the layers, and on top the embedding, the head and the optimizer."""
    row = {**DENSE, "num_accelerators": 8, "tensor_parallel": 8, "pipeline_parallel": 1, "global_batch_size": 4}
    step = result(catalog, row)
    layers = 80.0 * 4.0 * result(catalog, row, "layer_time")
    outside = result(catalog, row, "time_optimizer") + result(catalog, row, "time_data_parallel")
    assert 0.90 * step < layers < step - outside


def test_standard_attention_with_latent_attention_and_context(catalog: Catalog) -> None:
    """Scores are written: slower and larger than flash; each rank of a context keeps its share of them."""
    row = {**LATENT, "recompute": "none"}
    assert result(catalog, row, attention="standard") > result(catalog, row)
    scores = result(catalog, row, "memory_layer_activations", attention="standard") - result(
        catalog, row, "memory_layer_activations"
    )
    # 15 micro-batches in flight on the second stage of 4 layers, 64 heads, 4096 x 4096 scores of 2 bytes
    assert scores == pytest.approx(15.0 * 4.0 * 64.0 * 4096.0**2 * 2.0, rel=1e-9)
    dense = {**DENSE, "attention": "standard", "context_method": "all-gather", "global_batch_size": 128}
    whole = result(catalog, dense, "memory_layer_activations", pipeline_parallel=4)
    half = result(catalog, dense, "memory_layer_activations", context_parallel=2, pipeline_parallel=4)
    assert half == pytest.approx(whole / 2.0, rel=1e-9)


# --- multi-token prediction ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ahead(catalog: Catalog) -> Catalog:
    """The catalog with the module of DeepSeek-V3 and one, made up, of Llama 3.1 8B."""
    table = catalog.tables["models"]
    names = table.text("model").tolist()
    modules = np.array([1.0 if name in ("DeepSeek-V3", "Meta-Llama-3.1-8B") else np.nan for name in names])
    return catalog.with_tables([Table("models", {**table.columns, "num_mtp_layers": modules}, table.place)])


TRAINED = {"model": "DeepSeek-V3", "accelerator": H100, "num_accelerators": 256, "pipeline_parallel": 4}
TRAINED |= {"expert_parallel": 64, "global_batch_size": 1024, "sequence_length": 4096, "recompute": "full"}
ONE = {"model": "Meta-Llama-3.1-8B", "accelerator": H100, "num_accelerators": 1, "global_batch_size": 4}


def test_deepseek_v3_weights_file_has_a_module_of_its_own(ahead: Catalog) -> None:
    """README_WEIGHTS: 671 billion of the model beside 11.5 billion that the module does not share."""
    models = ahead.tables["models"].text("model").tolist()
    model = catalog_models(ahead)[0]
    row = models.index("DeepSeek-V3")
    attention = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    experts = 257 * 3 * 7168 * 2048 + 256 * 7168
    small = 2 * 7168 + 1536 + 512 + 3 * 7168
    assert mtp_parameters(model)[row] == attention + experts + small + 2 * 7168**2
    assert mtp_parameters(model)[row] == pytest.approx(11.5e9, rel=0.01)
    assert parameter_count(model)[row] == pytest.approx(671e9, rel=0.01)
    visited = mtp_parameters(model, experts_per_token=True)[row]
    assert visited == mtp_parameters(model)[row] - 248 * 3 * 7168 * 2048
    assert np.all(mtp_parameters(model)[np.array(models) == "Mixtral-8x7B-v0.1"] == 0.0)


def test_a_trained_module_is_a_layer_a_projection_and_a_head(ahead: Catalog) -> None:
    """By hand for Llama 3.1 8B: model FLOP, weights and optimizer, kept activations of one sequence."""
    plain, trained = ({**ONE, "train_mtp": flag, "sequence_length": 4096} for flag in ("no", "yes"))
    rate = [result(ahead, row, "model_flop_rate") * result(ahead, row) for row in (plain, trained)]
    layer = 2 * 4096 * 128 * 40 + 3 * 4096 * 14336
    met = layer + 2 * 4096**2 + 4096 * 128256 + 2 * 4096 * 4096
    assert rate[1] - rate[0] == pytest.approx(6.0 * met * 4096 * 4, rel=1e-9)
    own = layer + 2 * 4096 + 2 * 4096**2 + 3 * 4096
    for part, size in (("memory_weights", 2.0), ("memory_optimizer", 12.0)):
        grown = result(ahead, trained, part) - result(ahead, plain, part)
        assert grown == pytest.approx(own * size, rel=1e-9)
    kept = result(ahead, plain, "memory_layer_activations") / 32.0
    grown = result(ahead, trained, "memory_layer_activations") - 32.0 * kept
    assert grown == pytest.approx(kept + 5.0 * 4096 * 4096 * 2, rel=1e-9)


def test_a_module_counts_as_a_layer_of_the_last_stage(ahead: Catalog) -> None:
    """62 layers on 4 stages as 16, 16, 16 and 14 with the module, the slowest as before; 16 on the last are slower."""
    plain = result(ahead, TRAINED)
    trained = result(ahead, TRAINED, train_mtp="yes")
    assert trained == pytest.approx(plain, rel=0.01)
    heavy = {**TRAINED, "first_stage_layers": 15, "last_stage_layers": 16}
    assert result(ahead, heavy, train_mtp="yes") > result(ahead, heavy) * (1.0 + 1.0 / 62.0)
    assert result(ahead, heavy, "memory", train_mtp="yes") > result(ahead, heavy, "memory")


def test_modules_that_a_model_lacks_are_not_trained(ahead: Catalog) -> None:
    results = evaluate(plans({**DENSE, "train_mtp": "yes"}), ahead)
    assert np.isnan(results["step_time"][0])
    assert results["reason"][0] == "the model has no multi-token prediction modules to train"


def test_rows_with_and_without_modules_are_the_same_together_and_alone(ahead: Catalog) -> None:
    table = plans(TRAINED, {**TRAINED, "train_mtp": "yes"}, {**LATENT, "train_mtp": "yes"}, LATENT, TRAINED)
    together = evaluate(table, ahead)
    for row in range(len(table)):
        alone = evaluate(table.take([row]), ahead)
        for name, values in alone.columns.items():
            assert repr(values[0]) == repr(together[name][row]), (name, row)


@pytest.mark.parametrize("row", [ONE, {**TRAINED, "first_stage_layers": 15, "last_stage_layers": 16}])
def test_an_explanation_with_modules_accounts_for_the_step(ahead: Catalog, row: dict[str, object]) -> None:
    table = plans({**row, "train_mtp": "yes"})
    parts = explain(table, ahead)
    kernels = np.isin(parts.text("phase"), ["forward", "backward", "recompute"])
    spent = parts.number("total_time")[kernels].sum()
    results = evaluate(table, ahead)
    assert spent == pytest.approx(
        sum(float(results[name][0]) for name in ("time_forward", "time_backward", "time_recompute")), rel=1e-9
    )
    assert "mtp projection" in parts.text("operator").tolist()


def test_published_rows_train_modules_where_they_say_so(ahead: Catalog, catalog: Catalog) -> None:
    shipped = next(rows for rows in read_published(workbook("validation.xlsx")) if rows.kind == "training")
    names = shipped.text["row_id"]
    rows = shipped.take([names.index(name) for name in ("T00337", "T00322", "T02763")])
    with_modules = training_plans(rows, ahead).plans.filled("train_mtp").tolist()
    assert [bool(flag > 0) for flag in with_modules] == [True, False, True]
    table = catalog.tables["models"]
    columns = {name: values for name, values in table.columns.items() if name != "num_mtp_layers"}
    without = catalog.with_tables([Table("models", columns, table.place)])
    assert not (training_plans(rows, without).plans.filled("train_mtp") > 0).any()


def test_checkpoints_hold_the_modules_that_are_trained(ahead: Catalog) -> None:
    row = {**TRAINED, "training_tokens": 14.8}
    grown = result(ahead, row, "checkpoint_size", train_mtp="yes") - result(ahead, row, "checkpoint_size")
    assert grown == pytest.approx(14.0 * mtp_parameters(catalog_models(ahead)[0]).max(), rel=1e-6)
