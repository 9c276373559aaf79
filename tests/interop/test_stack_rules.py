"""Rules of stacks as data: what runs in public keeps them, what breaks one is said and never chosen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xlperf.base.resources import stack_rows, workbook
from xlperf.calibrate.published_errors import plans_of
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.explore.candidates import candidates, with_auto
from xlperf.explore.mappings import refused_reasons
from xlperf.explore.search import search
from xlperf.interop.stack_rules import NUMBERS, TITLES, stack_of_software
from xlperf.measurements.published import read_published

DENSE = {"model": "Meta-Llama-3.1-70B", "accelerator": "H100-SXM-80GB", "num accelerators": 256, "tensor parallel": 4,
         "pipeline parallel": 4, "global batch size": 1024, "sequence length": 8192}  # fmt: skip
MIXTURE = {**DENSE, "model": "Mixtral-8x7B", "num accelerators": 64, "pipeline parallel": 1}
SERVED = {"model": "DeepSeek-V3", "accelerator": "H200-SXM-141GB", "num accelerators": 16, "tensor parallel": 16,
          "prompt length": 1000, "output length": 1000, "concurrency": 64, "precision": "fp8"}  # fmt: skip


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def table(row: dict[str, Any]) -> Table:
    kind = "inference" if "prompt length" in row else "training"
    return table_from_rows(kind, list(row), [list(row.values())], lambda _, column: column)


def test_rules_are_of_known_words_with_their_sources() -> None:
    result = stack_rows("rules")
    assert all(" 0." in row["source"] or " 1." in row["source"] for row in result)  # the release that was read
    assert not any("not verified" in row["source"] for row in result)
    result = [row for row in result if row["kind"] != "launch"]
    assert len(result) >= 100
    assert {stack for row in result for stack in row["stacks"].split()} == TITLES.keys()
    for row in result:
        assert (
            row["rule"] in (*NUMBERS, "one_of", "none_of", "blank")
            and row["says"]
            and row["kind"] in ("training", "inference")
        )
        assert row["operand"] or row["rule"] == "blank"


def test_published_runs_keep_the_rules_of_their_stacks(catalog: Catalog) -> None:
    """They did start: a rule that one of about 3,300 breaks is none of the stack's."""
    checked = 0
    for published in read_published(workbook("validation.xlsx")):
        result = plans_of(published, catalog)
        why = refused_reasons(result.plans, result.catalog)
        checked += sum(bool(stack_of_software(str(name))) for name in result.plans.filled("software").tolist())
        assert [one for one in why if one] == []
    assert checked > 3000


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({**DENSE, "virtual pipeline": 14}, "Megatron-Core refuses this: virtual pipeline 14 does not divide"),
        ({**DENSE, "virtual pipeline": 10}, ""),
        ({**DENSE, "tensor parallel": 16, "software": "nemo"}, "NeMo refuses this: tensor parallel 16 does not divide"),
        ({**DENSE, "pipeline schedule": "zero-bubble"}, "its schedules of pipelines are 1f1b and interleaved"),
        ({**DENSE, "pipeline schedule": "zero-bubble", "software": "torchtitan", "zero stage": 2}, ""),
        ({**DENSE, "software": "torchtitan"}, "torchtitan refuses this: weights are sharded with the optimizer"),
        ({**DENSE, "recompute": "selective", "recompute modules": "activation"}, "activation and moe need experts"),
        ({**DENSE, "recompute": "selective", "recompute layers": 4}, "leave recompute layers 4 out"),
        ({**DENSE, "precision": "int8"}, "it has no products in INT8"),
        ({**DENSE, "adapter rank": 16}, "pretraining has no adapters"),
        ({**DENSE, "adapter rank": 16, "software": "nemo"}, ""),
        ({**DENSE, "zero stage": 3, "software": "deepspeed"}, "DeepSpeed refuses this: ZeRO stage 3"),
        ({**DENSE, "pipeline parallel": 1, "zero stage": 2, "offload optimizer": 0.5, "software": "deepspeed"},
         "DeepSpeed refuses this: offloading a part of the optimizer needs ZeRO stage 3"),
        ({**DENSE, "context parallel": 2, "software": "deepspeed"}, "its sequence parallelism is Ulysses"),
        ({**MIXTURE, "zero stage": 3, "software": "deepspeed"}, "a mixture of experts is not trained with ZeRO"),
        ({**MIXTURE, "sequence parallel": "no"}, "a mixture of experts with tensor parallel 4 needs sequence parallel"),
        ({**MIXTURE, "expert parallel": 8, "precision": "fp16"}, "expert parallel 8 is not trained in fp16"),
        ({**DENSE, "graphs": "layers", "recompute": "full"}, "layers in CUDA graphs exclude recomputation"),
        ({**MIXTURE, "expert overlap": "yes"}, "needs expert parallel of 2 or more"),
        ({**SERVED, "data parallel attention": 2}, "TensorRT-LLM refuses this: attention data parallelism is over all"),
        ({**SERVED, "data parallel attention": 2, "software": "sglang"}, ""),
        ({**SERVED, "kv precision": "int8"}, "TensorRT-LLM refuses this: its cache is in 16 bits, FP8 or FP4"),
        ({**SERVED, "tensor parallel": 8, "context parallel": 2, "expert parallel": 8},
         "TensorRT-LLM refuses this: context parallel 2 goes with no expert parallel 8"),
        ({**SERVED, "expert parallel": 8, "software": "vllm"}, "vLLM refuses this: experts are split over all 16"),
        ({**SERVED, "software": "vllm-0.8", "kv precision": "int8"}, "its cache is in 16 bits or FP8"),
        ({**SERVED, "precision": "fp8-block", "software": "in-house"}, ""),
        ({**SERVED, "num accelerators": 32, "tensor parallel": 32, "precision": "fp8-block", "software": "sglang"},
         "SGLang refuses this: 32 ranks that share an expert of width 2048 cut blocks of 128"),
    ],
)  # fmt: skip
def test_what_a_stack_refuses_is_said_and_computed(catalog: Catalog, row: dict[str, Any], words: str) -> None:
    plan = table(row)
    results = evaluate(plan, catalog)
    reason, why = str(results.text("reason")[0]), refused_reasons(plan, catalog)[0]
    assert np.isfinite(results.number("memory")[0]), reason  # legal: its numbers are there
    assert (words in reason and words in why) if words else ("refuses" not in reason and not why)


def test_a_search_chooses_what_starts(catalog: Catalog) -> None:
    """70B on 256 H100: virtual pipeline 10 of 20 layers a stage, and not 14, at 0.2 % of the time at most."""
    base = {**DENSE, "micro batch size": 1}
    plan = with_auto(table(base), ["virtual pipeline"], "plan")
    result = search(plan, catalog)
    layers = 80.0 / 4.0
    assert layers % result.plans.number("virtual_pipeline")[0] == 0.0 and not result.refused
    free = search(with_auto(table({**base, "virtual pipeline": 14}), ["micro batch size"], "plan"), catalog)
    assert result.results.number("step_time")[0] <= 1.002 * free.results.number("step_time")[0]
    every = candidates(plan, catalog).plans
    assert len(every) == 6 and not any(refused_reasons(every, catalog))


def test_a_search_says_where_a_stack_starts_nothing(catalog: Catalog) -> None:
    plan = with_auto(table({**DENSE, "precision": "int8"}), ["micro batch size"], "plan")
    result = search(plan, catalog)
    assert result.refused == ("megatron",) and "Megatron-Core refuses every candidate" in result.words
    assert "refuses this" in result.results.text("reason")[0]
