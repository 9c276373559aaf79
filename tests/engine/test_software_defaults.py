"""Blank columns of a plan mean what its software does by default at its release, in every command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Outcome
from training_samples import plans as training_plans

from xlperf.base.errors import InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.join import named_rows
from xlperf.engine.software import with_software_defaults

DENSE = {"model": "Meta-Llama-3.1-8B", "accelerator": "H100-SXM-80GB", "num_accelerators": 16, "global_batch_size": 64}
MIXTURE = {**DENSE, "model": "Mixtral-8x7B-v0.1"}
SERVED = {"model": "Meta-Llama-3.1-8B", "accelerator": "A100-SXM4-80GB", "num_accelerators": 1, "prompt_length": 500,
          "output_length": 100, "concurrency": 32, "mode": "continuous"}  # fmt: skip


def served(**cells: object) -> Table:
    row = {**SERVED, **cells}
    return table_from_rows("inference", list(row), [list(row.values())])


def filled(table: Table, catalog: Catalog) -> dict[str, object]:
    result = with_software_defaults(table, catalog, named_rows(table, catalog).models)
    return {name: values[0] for name, values in result.columns.items()}


@pytest.mark.parametrize(
    ("cells", "wanted"),
    [
        ({}, {"tensor_overlap": "gradients", "token_dispatch": "copies"}),
        ({"software": "nemo", "precision": "fp8"}, {"cross_entropy": "fused", "quantized_copies": "primary"}),
        ({"software": "nemo", "precision": "fp4"}, {"cross_entropy": "fused", "quantized_copies": None}),
        ({"software": "torchtitan"}, {"zero_stage": 3.0, "recompute": "selective", "recompute_modules": "products",
                                      "micro_batch_size": 4.0, "cross_entropy": "plain"}),
        ({"software": "torchtitan", "compiled": "yes"}, {"cross_entropy": "fused"}),
        ({"software": "torchtitan", "compiled": "yes", "software_release": "0.2.2"}, {"cross_entropy": "fused"}),
        ({"software": "torchtitan", "compiled": "yes", "software_release": "0.3.0"}, {"cross_entropy": "chunked"}),
        ({"software": "prime-rl", "compiled": "yes"}, {"cross_entropy": "plain"}),
        ({"software": "torchtitan", "recompute": "none"}, {"recompute_modules": None}),
        ({"software": "torchtitan", "pipeline_parallel": 2}, {"micro_batch_size": None}),
        ({"software": "torch-fsdp", "tensor_parallel": 2}, {"zero_stage": 3.0, "micro_batch_size": 8.0}),
        ({"software": "torch-fsdp2"}, {"zero_stage": 3.0, "cross_entropy": "plain"}),
        ({"software": "nanotron"}, {"stage_dealing": "cost", "data_overlap": 0.0}),
        ({"software": "nanotron", "zero_stage": 0}, {"data_overlap": None}),
        ({"software": "nanotron", "first_stage_layers": 3, "pipeline_parallel": 4}, {"stage_dealing": None}),
        ({"software": "transformers"}, {"compiled": 0.0, "gradient_accumulation": "separate"}),
        ({"software": "own-stack"}, {"tensor_overlap": None, "zero_stage": None}),
    ],
)  # fmt: skip
def test_blanks_of_a_training_plan_are_what_the_stack_does(
    cells: dict[str, object], wanted: dict[str, object], catalog: Catalog
) -> None:
    """16 GPUs with a global batch of 64 leave 4 sequences to each replica, 8 with two ranks in each."""
    result = filled(training_plans({**DENSE, **cells}), catalog)
    for name, value in wanted.items():
        given = result.get(name, "")
        assert (given == "" or given != given) if value is None else given == value, name


def test_a_dense_model_and_a_mixture_are_told_apart(catalog: Catalog) -> None:
    row = filled(training_plans({**MIXTURE, "software": "torchtitan"}), catalog)
    assert row["recompute_modules"] == "products moe"


def test_a_stated_column_is_never_changed(catalog: Catalog) -> None:
    stated = {"software": "torchtitan", "zero_stage": 2, "recompute": "full", "tensor_overlap": "all",
              "micro_batch_size": 1, "cross_entropy": "fused"}  # fmt: skip
    row = filled(training_plans({**DENSE, **stated}), catalog)
    assert {name: row[name] for name in stated} == stated


@pytest.mark.parametrize(
    ("cells", "wanted"),
    [
        ({"software": "vllm"}, {"kv_precision": "bf16", "max_running_batch": 256.0, "prefill_tokens": 2048.0}),
        ({"software": "vllm", "software_release": "0.8.5"}, {"kv_precision": "bf16", "max_running_batch": None}),
        ({"software": "vllm", "accelerator": "H100-SXM-80GB"}, {"max_running_batch": None}),
        ({"software": "vllm", "accelerator": "RTX 5090"}, {"max_running_batch": 256.0, "prefill_tokens": 2048.0}),
        ({"software": "vllm", "accelerator": "RTX-PRO-6000-BSE"}, {"max_running_batch": None, "prefill_tokens": None}),
        ({"software": "sglang", "accelerator": "RTX 5090"}, {"prefill_tokens": 4096.0}),
        ({"software": "sglang", "accelerator": "RTX 5090", "software_release": "0.5.9"}, {"prefill_tokens": 2048.0}),
        ({"software": "sglang", "accelerator": "L40S"}, {"prefill_tokens": 4096.0}),
        ({"software": "sglang", "accelerator": "H100-SXM-80GB"}, {"prefill_tokens": None, "memory_fraction": None}),
        ({"software": "sglang", "accelerator": "MI300X"}, {"prefill_tokens": 16_384.0}),
        ({"software": "sglang", "tensor_parallel": 4, "software_release": "0.4.2"}, {"memory_fraction": 0.85}),
        ({"software": "vllm", "mode": "static", "concurrency": None}, {"max_running_batch": None}),
        ({"software": "vllm", "kv_precision": "fp8"}, {"kv_precision": "fp8"}),
        ({"software": "sglang", "software_release": "0.5.9"}, {"graph_tokens": 0.0, "prefill_first": None}),
        ({"software": "sglang", "run_requests": 100}, {"graph_tokens": None, "prefill_first": 1.0}),
        ({"software": "hf"}, {"graphs": 0.0}),
        ({}, {"kv_precision": None}),
    ],
)
def test_blanks_of_an_inference_plan_are_what_the_engine_does(
    cells: dict[str, object], wanted: dict[str, object], catalog: Catalog
) -> None:
    result = filled(served(**cells), catalog)
    for name, value in wanted.items():
        given = result.get(name, "")
        assert (given == "" or given != given) if value is None else given == value, name


def test_rows_of_a_table_do_not_look_at_each_other(catalog: Catalog) -> None:
    rows = [{**DENSE, "software": name} for name in ("torchtitan", "megatron", "nanotron", "torchtitan")]
    together = evaluate(training_plans(*rows), catalog)
    for row, cells in enumerate(rows):
        assert evaluate(training_plans(cells), catalog)["step_time"][0] == together["step_time"][row]


def test_a_blank_and_the_default_are_the_same_plan(catalog: Catalog) -> None:
    blank = evaluate(training_plans({**DENSE, "software": "torchtitan"}), catalog)
    stated = {"zero_stage": 3, "recompute": "selective", "recompute_modules": "products", "micro_batch_size": 4}
    same = evaluate(training_plans({**DENSE, "software": "torchtitan", "tensor_overlap": "none", **stated}), catalog)
    for name in ("step_time", "memory", "time_recompute"):
        assert blank[name][0] == same[name][0]
    assert evaluate(training_plans(DENSE), catalog)["memory"][0] != blank["memory"][0]


def test_a_release_that_nobody_can_compare_is_one_clean_line(catalog: Catalog) -> None:
    with pytest.raises(InputError) as refused:
        evaluate(training_plans({**DENSE, "software_release": "newest"}), catalog)
    words = 'software release must be a number such as 0.5.10 or 25.04, got "newest"'
    assert str(refused.value).endswith(words) and "\n" not in str(refused.value)
    assert np.isfinite(evaluate(training_plans({**DENSE, "software_release": "v0.15.0"}), catalog)["step_time"][0])


def test_the_command_says_so_too(tmp_path: Path, command: Callable[..., Outcome]) -> None:
    path = tmp_path / "plans.csv"
    path.write_text("model,accelerator,num accelerators,software release\nLlama3-70B,H100,8,the last one\n")
    outcome = command("evaluate", str(path), "-o", str(tmp_path / "out.csv"))
    assert outcome.code == 2 and "Traceback" not in outcome.err
    assert "plans.csv [line 2, software release]: software release must be a number" in outcome.err
