"""Training: what a plan and a model may ask for beyond degrees and batch."""

from __future__ import annotations

import numpy as np
import pytest

from xlperf import load_catalog
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.plans import table_from_rows
from xlperf.catalog.table import Table
from xlperf.evaluate import evaluate

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
