"""Rules of stacks as data: what runs in public keeps them, what breaks one is said and never chosen."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from shipped import shipped_published

from xlperf.base.errors import InputError
from xlperf.base.resources import rows, stack_folders, stack_rows
from xlperf.calibrate.published_errors import plans_of
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.explore.candidates import candidates, with_auto
from xlperf.explore.mappings import refused_reasons
from xlperf.explore.search import search
from xlperf.interop.launch_rules import _READ, _READ_ALIKE, plan_of
from xlperf.interop.launch_stacks import flags, kind_of_stack, read_stacks, software_of, stacks, title_of
from xlperf.interop.launch_start import Shape, _derived
from xlperf.interop.software import NUMBERS, STACKS, stack_of_software

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
    assert {stack for row in result for stack in row["stacks"].split()} <= STACKS.keys()
    for row in result:
        assert (
            row["rule"] in (*NUMBERS, "one_of", "none_of", "blank")
            and row["says"]
            and row["kind"] in ("training", "inference")
        )
        assert row["operand"] or row["rule"] == "blank"


def test_every_stack_folder_is_complete() -> None:
    """Law: a stack whose flags, rules or log are known is declared, and each table of a folder is of its stack."""
    declared, tables = STACKS.keys(), ("flags", "settings", "defaults", "log_evidence", "stack", "start", "words")
    for name in tables:
        for folder in stack_folders(name):
            named = {row["stack"] for row in rows(f"interop/stacks/{folder}/{name}.csv")}
            assert named == ({folder} if folder != "shared" else {"serving"}), (name, folder)
    logged = {row["stack"] for row in stack_rows("log_evidence")} - {"serving"}
    assert {*stacks()} <= declared and logged <= {*declared, *read_stacks()} and all(map(title_of, logged))
    assert {stack for row in stack_rows("rules") for stack in row["stacks"].split()} == declared
    for one in STACKS.values():
        assert one.title and one.software and stack_of_software(one.software) == one.stack
    for stack in read_stacks():
        assert len({flag.kind for flag in flags(stack)}) == 1
        assert stack in stacks() or software_of(stack)[0]
        plan_of(stack, {})
    for stack in stacks():
        one = STACKS[stack]
        serves = kind_of_stack(stack) == "inference"
        assert one.server or one.command, stack
        assert [bool(word) for word in (one.label, one.client, one.client_version, one.request_limit)] == [serves] * 4
        versions = {flag.version for flag in flags(stack)}
        begins = one.versions.split("|")
        assert all(any(version.startswith(word) for version in versions) for word in begins)
        assert not serves or (one.client_version.startswith(begins[1]) and one.client_version in versions)


def test_flags_of_a_start_are_of_known_values_and_conditions(catalog: Catalog) -> None:
    for row in stack_rows("start"):
        plan = table_schema(kind_of_stack(row["stack"])).by_name
        shape = Shape({"num_layers": 10.0, "max_sequence_length": 4096.0, "moe_ffn_hidden_size": 1.0,
                       "num_shared_experts": 1.0, "first_dense_layers": 1.0}, 8.0)  # fmt: skip
        derived = _derived(row["stack"], {"num_accelerators": "8"}, shape)
        conditions = [part.split() for part in row["when"].split(" and ") if part]
        for name in (*re.findall(r"\{([\w.]+)\}", row["line"]), *(words[0] for words in conditions)):
            model = name.removeprefix("model.")
            assert (model in table_schema("models").by_name) if model != name else name in {*plan, *derived}, name
        assert all(len(words) == 3 and words[1] in ("=", "!=", ">", "<", ">=") for words in conditions), row


def test_an_incomplete_stack_folder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    flags.cache_clear()
    monkeypatch.delitem(STACKS, "vllm")
    with pytest.raises(InputError, match=r"interop/stacks/vllm: has no stack\.csv"):
        flags("vllm")
    with pytest.raises(InputError, match=r"interop/stacks/foo: has no flags\.csv or settings\.csv"):
        flags("foo")
    flags.cache_clear()


def test_a_stack_without_conversions_of_its_own_is_read_as_its_kind() -> None:
    """A new engine or stack needs no code: tensor parallelism over all ranks; accelerators per node."""
    assert {"vllm", "megatron"} <= _READ.keys() and _READ_ALIKE.keys() == {"training", "inference"}
    plan: dict[str, str] = {"pipeline_parallel": "2"}
    _READ_ALIKE["inference"](plan, {"@tensor": "4"})
    assert plan == {"pipeline_parallel": "2", "tensor_parallel": "4", "num_accelerators": "8"}
    plan = {}
    _READ_ALIKE["training"](plan, {"@accelerators_per_node": "8", "@nodes": "3"})
    assert plan == {"num_accelerators": "24"}


def test_published_runs_keep_the_rules_of_their_stacks(catalog: Catalog) -> None:
    """They did start: a rule that one of about 3,300 breaks is none of the stack's."""
    checked = 0
    for published in shipped_published():
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
        ({**DENSE, "software": "torchtitan"}, ""),
        ({**DENSE, "software": "torchtitan", "zero stage": 1}, "torchtitan refuses this: weights are sharded with"),
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
