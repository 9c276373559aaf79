"""Hybrid models in training (Mamba-2, gated delta net, experts behind projections): counts by hand, limits, laws."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from xlperf.calibrate.validate import records_of
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate, explain
from xlperf.engine.catalog_arrays import catalog_models
from xlperf.engine.join import named_rows
from xlperf.engine.models import architecture_of
from xlperf.engine.training import training_setting
from xlperf.equations.model.blocks import Shard
from xlperf.equations.model.linear_attention import Scan, chunked_scan, scan_gradient
from xlperf.equations.model.model import Model
from xlperf.equations.model.operators import matrix_parameters, parameter_count
from xlperf.equations.training.setting import pipeline_contents
from xlperf.equations.training.step import step
from xlperf.measurements.published import Published

SUPER, ULTRA, QWEN = "NVIDIA-Nemotron-3-Super-120B-A12B-FP8", "NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", "Qwen3.5-27B"
GIGA = 1e9


def plans(*rows: dict[str, Any]) -> Table:
    base = {"model": SUPER, "accelerator": "B300-SXM", "num_accelerators": 64, "expert_parallel": 64,
            "global_batch_size": 512, "sequence_length": 8192, "software": "nemo", "graphs": "layers"}  # fmt: skip
    full = [{**base, **row} for row in rows]
    header = list(dict.fromkeys(name for row in full for name in row))
    cells = [[row.get(name, "") for name in header] for row in full]
    return table_from_rows("training", header, cells, lambda row, column: f"row {row} {column}")


def dense(**row: Any) -> dict[str, Any]:
    return {"model": "Llama3-8B", "expert_parallel": 1, **row}


def model_of(name: str) -> Model:
    every, _ = catalog_models(load_catalog())
    row = load_catalog().tables["models"].text("model").tolist().index(name)
    return Model(**{field: getattr(every, field)[row : row + 1] for field in every.__dataclass_fields__})


@pytest.mark.parametrize(("name", "total", "active"), [(SUPER, 120.0, 12.2), (ULTRA, 550.0, 55.0)])
def test_parameters_of_latent_experts_are_those_of_the_name(name: str, total: float, active: float) -> None:
    model = model_of(name)
    embedding = model.vocab_size * model.hidden_size
    assert parameter_count(model)[0] / GIGA == pytest.approx(total, rel=0.03)
    assert (parameter_count(model, True) - embedding)[0] / GIGA == pytest.approx(active, rel=0.04)


def test_products_are_two_flop_a_weight_and_token_forward_and_twice_that_backward() -> None:
    """Every active GEMM weight meets every token once; with balanced experts that is true of each rank's share."""
    table = plans({"num_accelerators": 64})
    result = explain(table, load_catalog())
    phase, family = result.text("phase"), result.text("family")
    flop = result.number("flop") * result.number("calls")
    forward, backward = (flop[(phase == word) & (family == "gemm")].sum() for word in ("forward", "backward"))
    tokens = 512 * 8192 / 64
    assert forward == pytest.approx(2.0 * float(matrix_parameters(model_of(SUPER), True)[0]) * tokens, rel=1e-12)
    assert backward == pytest.approx(2.0 * forward, rel=1e-12)


def test_a_hybrid_without_linear_layers_is_the_plain_model_to_the_last_bit() -> None:
    catalog, table = load_catalog(), plans(dense(), dense(tensor_parallel=2, recompute="full", pipeline_parallel=4))
    named = named_rows(table, catalog)
    plain = training_setting(table, catalog, named, architecture_of(0))[0]
    hybrid = training_setting(table, catalog, named, architecture_of(8))[0]
    none = np.zeros(len(table))
    model = replace(plain.model, **{name: none for name in plain.model.__dataclass_fields__ if "linear_" in name})
    model = replace(model, linear_value_heads=none + 2.0, linear_key_heads=none + 2.0, linear_key_size=none + 8.0,
                    linear_value_size=none + 8.0, linear_convolution=none + 4.0, linear_state_size=none + 4.0,
                    state_space=none, num_bare_layers=none, attention_gate=none)  # fmt: skip
    assert model.num_linear_layers.tolist() == [0.0, 0.0]
    one, other = step(plain).results, step(replace(hybrid, model=model)).results
    for name, values in one.items():
        assert values.tobytes() == other[name].tobytes(), name


def test_latent_experts_as_wide_as_the_model_cost_the_projections_and_no_less() -> None:
    """A narrower latent space is cheaper in every part that tokens take to their experts."""
    catalog = load_catalog()
    widths = (512.0, 1024.0, 2048.0, 4096.0)
    table = catalog.tables["models"]
    row = table.text("model").tolist().index(SUPER)
    rows = []
    for width in widths:
        values = np.array(table.number("moe_latent_size"))
        values[row] = width
        changed = catalog.with_tables([Table("models", {**table.columns, "moe_latent_size": values}, table.place)])
        rows.append(evaluate(plans({}), changed))
    for name in ("step_time", "time_expert_parallel", "time_forward", "memory_weights", "memory_activations"):
        numbers = [result.number(name)[0] for result in rows]
        assert numbers == sorted(numbers) and numbers[0] < numbers[-1], name


@pytest.mark.parametrize("name", [SUPER, QWEN])
@pytest.mark.parametrize("stages", [1, 4])
def test_stages_hold_the_layers_of_the_model(name: str, stages: int) -> None:
    """First, middle and last stage hold all blocks of each kind; those of a hybrid in proportion."""
    expert = 1 if name == QWEN else 16
    layers = 88 if name == SUPER else 64
    table = plans({"model": name, "pipeline_parallel": stages, "expert_parallel": expert})
    catalog = load_catalog()
    setting = training_setting(table, catalog, named_rows(table, catalog), architecture_of(8))[0]
    first, middle, last = pipeline_contents(setting.model, setting.plan)
    parts = (first, *([middle] * (stages - 2)), last) if stages > 1 else (first,)
    for kind, whole in (
        ("layers", layers),
        ("attention", float(setting.model.num_attention_layers[0])),
        ("linear", float(setting.model.num_linear_layers[0])),
        ("mixtures", float(setting.model.num_moe_layers[0])),
        ("dense", float(setting.model.num_dense_layers[0])),
    ):
        assert sum(float(getattr(part, kind)[0]) for part in parts) == pytest.approx(whole, rel=1e-12), kind


def test_a_scan_takes_more_time_with_more_state_and_longer_sequences() -> None:
    model = model_of(QWEN)
    one, two, tokens = np.array([1.0]), np.array([2.0]), np.array([4096.0])
    short = chunked_scan(Shard(model, one), tokens, 0.0 * one, tokens, two)
    long = chunked_scan(Shard(model, one), 2.0 * tokens, 0.0 * one, 2.0 * tokens, two)
    assert [float((b / a)[0]) for a, b in zip(short, long, strict=True)] == pytest.approx([2.0, 2.0, 2.0], rel=1e-12)
    wider = replace(model, linear_value_size=2.0 * model.linear_value_size)
    wide = chunked_scan(Shard(wider, one), tokens, 0.0 * one, tokens, two)
    assert wide.flop > short.flop and wide.traffic > short.traffic
    assert scan_gradient(Scan(one, two, two)) == Scan(2.5 * one, 2.5 * two, 2.0 * two)


def test_context_parallel_and_adapters_say_why_not() -> None:
    result = evaluate(
        plans({"context_parallel": 2}, {"model": QWEN, "expert_parallel": 1, "adapter_rank": 16}), load_catalog()
    )
    assert "context parallel 2 is not modelled for layers of linear attention" in result.text("reason")[0]
    assert "adapters beside layers of linear attention" in result.text("reason")[1]


def test_a_pattern_that_is_not_known_is_refused() -> None:
    table = load_catalog().tables["models"]
    patterns = np.array(table.text("attention_pattern"), dtype=object)
    patterns[table.text("model").tolist().index(SUPER)] = "one thing and another"
    other = load_catalog().with_tables([Table("models", {**table.columns, "attention_pattern": patterns}, table.place)])
    result = evaluate(plans({}), other)
    assert f"model {SUPER} has hybrid attention, which is not modelled yet" in result.text("reason")[0]
    assert np.isnan(result.number("step_time")[0])


def test_published_hybrid_rows_are_predictions(shipped_training: Published, catalog: Catalog) -> None:
    """Measured step times of Nemotron 3 (Megatron-Bridge 26.02 to 26.06), on which no constant was fitted."""
    named = [row for row, name in enumerate(shipped_training.text["model"]) if name.startswith("Nemotron_3")]
    result = [record for record in records_of([shipped_training.take(named)], catalog) if record.covered]
    assert {record.row_id for record in result} == {shipped_training.text["row_id"][row] for row in named}
    errors = np.array([record.relative_error for record in result if record.primary])
    assert np.median(errors) < 0.2 and errors.max() < 0.31
