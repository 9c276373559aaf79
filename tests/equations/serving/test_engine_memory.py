"""Memory as vLLM keeps it by release: tokens and requests that start-up logs state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.vision import encoders
from xlperf.equations.serving.vision import encoder_start

GIB = 2.0**30
STARTED = {"software": "vllm", "mode": "continuous", "concurrency": 1, "output_length": 1, "kv_precision": "bf16",
           "accelerator": "H100-SXM-80GB"}  # fmt: skip
SHOWN = 79.65 * GIB - 5.37e8
"""Memory of an H100 that an engine sees. [B]"""


def started(catalog: Catalog, ranks: int = 1, **more: Any) -> Table:
    row = {**STARTED, "num_accelerators": ranks, "tensor_parallel": ranks, **more}
    return evaluate(table_from_rows("inference", list(row), [list(row.values())]), catalog)


def beside(result: Table, token_size: float, share: float = 0.9) -> float:
    """Memory beside weights and cache that the engine counts. [GiB]"""
    cache = result.number("kv_cache_tokens")[0] * token_size
    return float(share * SHOWN - result.number("memory_weights")[0] - cache) / GIB


def test_experts_and_the_sort_of_logits_leave_half_of_the_cache(catalog: Catalog) -> None:
    """Qwen3-235B-A22B in FP8 on four H100: 8.11 GiB hold 178,880 tokens [vllm issue 21348, July 2025, with a connector
    that has buffers of its own]; the newest release samples without a sort.
    """
    plan = {"ranks": 4, "model": "Qwen3-235B-A22B", "precision": "fp8", "prompt_length": 15, "prefill_tokens": 8192,
            "memory_fraction": 0.9}  # fmt: skip
    early, late = (started(catalog, **plan, software_release=release) for release in ("0.9.2", ""))
    assert 178_880 < early.number("kv_cache_tokens")[0] < 1.2 * 178_880
    token = 94 * 2 * 128 * 2.0
    assert late.number("kv_cache_tokens")[0] - early.number("kv_cache_tokens")[0] == pytest.approx(
        (1024 * 151_936 * (38.3 - 14.0) - 7e8) / token, rel=0.01
    )


def test_gpt_oss_on_one_h100_by_the_memory_beside_its_weights(catalog: Catalog) -> None:
    """-2.14 GiB are left at 0.9 [vllm issue 23278, August 2025, weights of 65.97 GiB]; 1.71 GiB at 0.95 for a request
    of 131,072 tokens, which needs 4.5 [issue 27508].
    """
    plan = {"model": "gpt-oss-120b", "precision": "fp4", "activation_precision": "bf16"}
    first = started(catalog, **plan, prompt_length=8191, prefill_tokens=8192, software_release="0.10.1")
    assert first.number("fits")[0] == 0.0 and first.number("max_concurrency")[0] == 0.0
    second = started(
        catalog, **plan, prompt_length=131_071, prefill_tokens=1024, memory_fraction=0.95, software_release="0.11.0"
    )
    assert second.number("fits")[0] == 0.0
    needed = 18 * 2 * 8 * 64 * 2.0 * (131_072 + 127 + 1024)
    assert second.number("memory_kv_cache")[0] == needed and needed / GIB == pytest.approx(4.5, rel=0.01)
    assert beside(second, needed / 131_072, 0.95) == pytest.approx(0.95 * 79.15 - 65.97 - 1.71, rel=0.03)


def test_vllm_of_2024_keeps_less_beside_a_dense_model(catalog: Catalog) -> None:
    """Llama 3.1 405B in Meta's FP8 on eight H100, vLLM 0.5.3: 79,392 tokens beside 57.75 GiB [vllm issue 6746].

    The checkpoint of July 2024 had each of eight heads of keys and values twice, in the weights and in the cache:
    0.98 GiB and 129,024 B a token.
    """
    result = started(
        catalog, 8, model="Llama-3.1-405B-Instruct-FP8", precision="auto", prompt_length=131_071, prefill_tokens=512,
        software_release="0.5.3",
    )  # fmt: skip
    twice = 126 * 2 * 16_384 * 1024 * 2.0 / 8
    assert result.number("memory_weights")[0] + twice == pytest.approx(57.752 * GIB, rel=0.001)
    cache = 79_392 * 2 * 126 * 2 * 128 * 2.0
    assert beside(result, 126 * 2 * 128 * 2.0) == pytest.approx(0.9 * SHOWN / GIB - 57.752 - cache / GIB, rel=0.2)


def test_the_newest_vllm_has_a_larger_share_and_longer_passes(catalog: Catalog) -> None:
    """0.92 of the memory since 0.21 [vllm pull request 38284]; 16,384 tokens a pass on 160 GiB and more since 0.28
    [pull request 51726, issue 53961], which take 23.32 GiB for a request of DeepSeek-V4-Pro on MI300X.
    """
    plan = {"model": "DeepSeek-V4-Pro", "accelerator": "MI300X", "precision": "fp4", "activation_precision": "fp8",
            "kv_precision": "fp8", "prompt_length": 1_048_575}  # fmt: skip
    assert started(catalog, 8, **plan).number("memory_kv_cache")[0] == pytest.approx(23.32 * GIB, rel=0.01)
    blank, stated, before = (
        started(catalog, model="Qwen2.5-7B", precision="bf16", prompt_length=4095, **more).number("kv_cache_tokens")[0]
        for more in ({}, {"memory_fraction": 0.92}, {"memory_fraction": 0.9})
    )
    assert blank == stated > before


@pytest.mark.parametrize(("ranks", "requests"), [(1, 20.43), (8, 156.9)])
def test_pages_of_compressed_caches_hold_the_tokens_in_flight(catalog: Catalog, ranks: int, requests: float) -> None:
    """DeepSeek-V4-Flash on eight B200 with vLLM 0.25: requests of 1,048,576 tokens [vllm recipes issue 762]."""
    result = started(
        catalog, 8, model="DeepSeek-V4-Flash", accelerator="B200-SXM-180GB", expert_parallel=8, precision="fp4",
        data_parallel_attention=ranks, activation_precision="fp8", kv_precision="fp8", prompt_length=1_048_575,
        prefill_tokens=8192, memory_fraction=0.95, software_release="0.25.0",
    )  # fmt: skip
    assert result.number("max_concurrency")[0] == pytest.approx(requests, rel=0.05)


@pytest.mark.parametrize(("tokens", "size"), [(30_000, 6.66), (13_528, 5.44)])
def test_pages_of_releases_before_have_as_many_layers_of_each_kind(catalog: Catalog, tokens: int, size: float) -> None:
    """DeepSeek-V4-Flash on two GH200 with vLLM 0.22 and 16,384 tokens a pass [vllm issue 44376]."""
    result = started(
        catalog, 2, model="DeepSeek-V4-Flash", accelerator="GH200-144GB", precision="auto", kv_precision="fp8",
        prompt_length=tokens - 1, prefill_tokens=16_384, memory_fraction=0.95, software_release="0.22.0",
    )  # fmt: skip
    assert result.number("memory_kv_cache")[0] == pytest.approx(size * GIB, rel=0.002)


def test_weights_of_deepseek_v4_on_a_rank_by_part(catalog: Catalog) -> None:
    """DeepSeek-V4-Flash on eight ranks, counted by the modules of vLLM: every rank has all of what pools its cache, in
    16 bits (fused_wkv_wgate without quantisation), and the hyper-connections in FP32.
    """
    plan = {"model": "DeepSeek-V4-Flash", "accelerator": "B200-SXM-180GB", "expert_parallel": 8, "precision": "auto"}
    weights = started(catalog, 8, **plan, prompt_length=8191).number("memory_weights")[0]
    hidden, tables = 4096, 2 * 129_280 * 4096 / 8
    experts = 43 * 32 * 3 * hidden * 2048 * 4.25 / 8
    attention = 43 * hidden * (1024 + 512 + 3 * 1024 + 3 * 2048 / 8)  # with queries, outputs and the shared expert
    index = 21 * 1024 * 64 * 128
    pools = 21 * hidden * (4 * 512 + 4 * 128) + 20 * hidden * 2 * 512
    streams = 43 * 2 * (4 + 2) * 4 * 4 * hidden
    counted = experts + attention + index + 2.0 * (pools + 43 * hidden * 256 + tables) + 4.0 * streams
    assert weights == pytest.approx(counted, rel=0.003)


def test_what_deepseek_v4_holds_beside_its_cache(catalog: Catalog) -> None:
    """DeepSeek-V4-Flash with two drafted tokens on two RTX PRO 6000, vLLM 0.25 [start-up log]: 10.29 GiB for 1.90
    requests of 1,048,576 tokens; 14.2 without four residual streams, 64 heads of the kernel and gathered entries.
    """
    plan = {"model": "DeepSeek-V4-Flash", "accelerator": "RTX-PRO-6000-BSE", "precision": "auto", "kv_precision": "fp8",
            "max_running_batch": 64, "draft_tokens": 2, "memory_fraction": 0.95,
            "software_release": "0.25.0"}  # fmt: skip
    log = started(catalog, 2, **plan, prompt_length=1_048_575, prefill_tokens=4096)
    request = log.number("memory_kv_cache")[0]
    assert request == pytest.approx(10.29 / 1.9 * GIB, rel=0.005)
    assert 10.29 < log.number("max_concurrency")[0] * request / GIB < 12.8
    less, more = (started(catalog, 2, **plan, prompt_length=65_535, prefill_tokens=each) for each in (8192, 16_384))
    held = [result.number("max_concurrency")[0] * result.number("memory_kv_cache")[0] for result in (less, more)]
    token = 2.0 * (8 * 4096 + (66 * 512 + 4 * 64 * 512) / 2) + 4 * 512 * 2.0
    assert held[0] - held[1] == pytest.approx(8192 * token, rel=0.02)


def test_asynchronous_scheduling_counts_two_passes_in_flight(catalog: Catalog) -> None:
    """DeepSeek-V4-Pro on MI300X, 16,384 tokens a pass: 23.32 GiB for a request of 1,048,576 [vllm issue 53961]."""
    plan = {"model": "DeepSeek-V4-Pro", "accelerator": "MI300X", "precision": "fp4", "activation_precision": "fp8",
            "kv_precision": "fp8", "prompt_length": 1_048_575, "prefill_tokens": 16_384}  # fmt: skip
    result = started(catalog, 8, **plan)
    assert result.number("memory_kv_cache")[0] == pytest.approx(23.32 * GIB, rel=0.02)
    # Engines without such pages need what the architecture needs, with keys in FP8 and their rotated part in 16 bits.
    plain = started(catalog, 8, **plan, software="sglang")
    assert plain.number("memory_kv_cache")[0] == pytest.approx(5.5 * GIB, rel=0.05)


STARTS = [
    # source; model, accelerator, ranks, other columns; tokens of the cache, weights and a request's cache [GiB]
    "vllm 13061;Qwen2.5-14B;RTX 4090;2;memory_fraction=0.98 software_release=0.7.2 prefill_tokens=2048 "
    "prompt_length=131071;81536;13.9476;",
    "vllm 2031;Llama2-7B;A100-SXM4-80GB;1;software_release=0.2.5 prefill_tokens=4096 prompt_length=4095;117616;;",
    "vllm 10511;Llama3-8B;H100-SXM-80GB;1;software_release=0.6.4 prefill_tokens=8192 prompt_length=8191;436552;14.96;",
    "vllm 25350;Qwen3-30B-A3B;RTX-PRO-6000-BSE;1;precision=fp8 kv_precision=fp8 software_release=0.10.2 "
    "prompt_length=220999;;29.09;10.12",
    "sglang 18263;Qwen3-30B-A3B;MI355X;1;software=sglang memory_fraction=0.911 prompt_length=4095;2235119;56.98;",
    # With its encoder, as up to two images a prompt are allowed, and the default share of that release.
    "club-3090 612;Qwen3.6-35B-A3B-NVFP4;RTX 5090;1;precision=auto kv_precision=fp8 software_release=0.24.0 "
    "memory_fraction=0.92 prefill_tokens=8192 max_running_batch=1 prompt_length=131071;567978;;",
    "vllm 34076;Qwen3-30B-A3B;RTX 5090;2;precision=fp8 tensor_parallel=1 pipeline_parallel=2 "
    "software_release=0.15.1 prompt_length=262143;;;12.0",
    "tpu-inference 223;Meta-Llama-3.1-8B;TPUv5e;1;prompt_length=131071;;;16.0",
    # 48.66 GiB are left for a request of 205,728 tokens on each of eight ranks with replicas of attention
    "vllm recipes 12;Qwen3-Coder-480B-A35B-Instruct;H200-SXM-141GB;8;precision=fp8 expert_parallel=8 "
    "data_parallel_attention=8 software_release=0.10.1 prompt_length=205727;1645824;;48.66",
    "vllm 14447;DeepSeek-R1-AWQ;RTX 3090;16;precision=auto software_release=0.8.3 prompt_length=4095;;21.21;",
    "vllm 15815;Qwen2.5-32B;L40S;2;software_release=0.7.3 prefill_tokens=10000 prompt_length=9999;63152;30.7098;",
    "the README of tokenkaki, 40 GB;Qwen3-8B;A100-SXM4-40GB;1;software_release=0.9.2 prompt_length=40959;"
    "136080;15.2683;",
    "ollama 16480, its layers with windows;gpt-oss-120b;MI300X;1;software=sglang precision=auto "
    "prompt_length=131071;;;4.54",
]
"""What engines printed when they started, by threads of their projects."""


def test_what_engines_print_at_their_start(catalog: Catalog) -> None:
    def read(text: str) -> str | float:
        return float(text) if text.count(".") < 2 and text.replace(".", "").isdigit() else text

    lines = [line.split(";") for line in STARTS]
    rows = [
        {**STARTED, "model": model, "accelerator": accelerator, "precision": "bf16"}
        | dict.fromkeys(("num_accelerators", "tensor_parallel"), int(ranks))
        | {name: read(text) for name, text in (pair.split("=") for pair in more.split())}
        for _, model, accelerator, ranks, more, *_ in lines
    ]
    names = list(dict.fromkeys(name for row in rows for name in row))
    result = evaluate(
        table_from_rows("inference", names, [[row.get(name, "") for name in names] for row in rows]), catalog
    )
    for name, unit, tolerance, place in (
        ("kv_cache_tokens", 1.0, 0.05, 5), ("memory_weights", GIB, 0.015, 6), ("memory_kv_cache", GIB, 0.015, 7),
    ):  # fmt: skip
        for line, value in zip(lines, result.number(name), strict=True):
            if line[place]:
                assert value / unit == pytest.approx(float(line[place]), rel=tolerance), (line[0], name)


def test_groups_of_layers_are_filled_up(catalog: Catalog) -> None:
    """Gemma-3-27B on MI300X with vLLM 0.11: 8 padding layers beside 62, 50.05 requests of 4,096 tokens [log]."""
    result = started(
        catalog, model="Gemma-3-27B", accelerator="MI300X", precision="bf16", prompt_length=4095, prefill_tokens=8192,
        software_release="0.11.0",
    )  # fmt: skip
    assert result.number("max_concurrency")[0] == pytest.approx(50.05, rel=0.03)


def test_sglang_shares_what_the_groups_of_ranks_leave(catalog: Catalog) -> None:
    """Qwen3-235B-A22B in FP8 on four H100 at 0.93: 367,404 tokens [vllm issue 21348, with SGLang]. 137.3 GiB are left
    on each of eight H200 before weights are loaded [SGLang pull request 11716].
    """
    plan = {"software": "sglang", "precision": "fp8", "prompt_length": 1000, "memory_fraction": 0.93}
    result = started(catalog, 4, model="Qwen3-235B-A22B", **plan)
    assert result.number("kv_cache_tokens")[0] == pytest.approx(367_404, rel=0.06)
    row = {**plan, "model": "DeepSeek-V3", "accelerator": "H200-SXM-141GB"}
    whole, more = (started(catalog, 8, **{**row, "memory_fraction": share}) for share in (0.9, 0.8))
    tokens = whole.number("kv_cache_tokens")[0] - more.number("kv_cache_tokens")[0]
    assert tokens * 61 * 576 * 2.0 / 0.1 == pytest.approx(137.3 * GIB, rel=0.01)


def test_latents_of_sparse_attention_in_fp8_have_scales(catalog: Catalog) -> None:
    """656 B a token and layer of DeepSeek-V3.2 [FlashMLA README], and index keys of 132 B."""
    plan = {"model": "DeepSeek-V3.2", "kv_precision": "fp8", "prompt_length": 4095, "precision": "fp8"}
    result = started(catalog, 8, **plan, accelerator="H200-SXM-141GB")
    assert result.number("memory_kv_cache")[0] == pytest.approx(4096 * 61 * (656 + 132), rel=1e-9)


def test_layers_with_windows_have_the_same_room_before_the_log_counted_by_requests(catalog: Catalog) -> None:
    """vLLM 0.20 prints 55,000 tokens of Gemma-4-31B on an A100 and 0.21 525,000 [vllm issue 43308]: until 0.20 its line
    counts blocks over groups, since 0.21 requests that fit times their length [vllm issue 40691, pull request 40694].
    Gemma-4-26B in NVFP4 on an RTX 5090 at 0.8 with 0.19.2: 72,400 tokens, and 6.73 requests of 98,304 [start-up log].
    """
    plan = {"model": "Gemma-4-31B-IT-NVFP4", "accelerator": "A100-SXM4-80GB", "precision": "int4-128",
            "activation_precision": "bf16", "prompt_length": 131_071}  # fmt: skip
    early, late = (started(catalog, **plan, software_release=release) for release in ("0.20.0", "0.21.0"))
    assert late.number("kv_cache_tokens")[0] == pytest.approx(525_000, rel=0.2)
    assert early.number("max_concurrency")[0] == pytest.approx(late.number("max_concurrency")[0], rel=0.03)
    log = started(
        catalog, model="gemma-4-26B-A4B", accelerator="RTX 5090", precision="fp4", kv_precision="fp8",
        prompt_length=98_303, memory_fraction=0.8, software_release="0.19.1",
    )  # fmt: skip
    assert log.number("max_concurrency")[0] == pytest.approx(6.73, rel=0.1)


SMALL = [
    # ranks, model, accelerator, release; tokens of the cache
    (1, "Meta-Llama-3.1-8B", "RTX 4090", "0.4.9", 38_141),  # log of July 2025, chunks of 2,048, graphs up to 8 requests
    (4, "Qwen2.5-32B", "L4", "0.4.3", 46_611),  # log of March 2025 with QwQ-32B: mem_fraction_static 0.85
    (4, "Qwen2.5-32B", "RTX 3090", "0.4.2", 67_772),  # log of February 2025 with DeepSeek-R1-Distill-Qwen-32B
]


@pytest.mark.parametrize(("ranks", "model", "accelerator", "release", "tokens"), SMALL)
def test_sglang_keeps_less_on_small_accelerators(
    catalog: Catalog, ranks: int, model: str, accelerator: str, release: str, tokens: int
) -> None:
    """With what it keeps on 80 GB none of these had room for its weights."""
    plan = {"software": "sglang", "precision": "bf16", "prompt_length": 4095, "software_release": release}
    result = started(catalog, ranks, model=model, accelerator=accelerator, **plan)
    assert result.number("kv_cache_tokens")[0] == pytest.approx(tokens, rel=0.17)


def test_the_largest_images_are_encoded_before_the_cache_is_sized(catalog: Catalog) -> None:
    """Qwen2.5-VL-7B on an L4 with vLLM 0.9.0: one image of 16,384 tokens, 1.81 GiB are left [start-up log]. Two
    images fit into a chunk of twice the tokens.
    """
    plan = {"model": "Qwen2.5-VL-7B", "precision": "bf16", "prompt_length": 2047}
    log = started(catalog, accelerator="L4", prefill_tokens=2048, software_release="0.9.0", **plan)
    assert 16.52 < log.number("max_concurrency")[0] < 1.32 * 16.52
    row = catalog.known_rows("models", np.array([plan["model"]], dtype=object))
    start = encoder_start(encoders(catalog, np.repeat(row, 3)), np.array([2048.0, 32_767.0, 32_768.0]), np.ones(3))
    patch = 2.0 * (3 * 14 * 14 * 2 + 2 * 1280 + 3 * 3420)
    assert start.peak.tolist() == [65_536 * patch, 65_536 * patch, 2 * 65_536 * patch]
    assert start.kept[0] == 16_384 * 3584 * 2.0
    sglang = {**plan, "software": "sglang", "software_release": "0.5.9"}
    images, text = (started(catalog, **sglang, **more).number("max_concurrency")[0] for more in ({}, {"images": 0}))
    assert images < 0.95 * text


def test_a_plan_without_a_release_says_what_earlier_ones_have_room_for(catalog: Catalog) -> None:
    """C07 as published: gpt-oss-120b on one H100 was refused in October 2025 [vllm issue 27508]; C17: 20.43."""
    plan = {"model": "gpt-oss-120b", "precision": "fp4", "activation_precision": "bf16", "prompt_length": 131_071,
            "prefill_tokens": 1024, "memory_fraction": 0.95}  # fmt: skip
    newest, stated = started(catalog, **plan), started(catalog, **plan, software_release="0.11.0")
    assert "vllm before 0.17 has room for 0.779 such requests, not 1.65" in newest.text("reason")[0]
    assert "no release" not in stated.text("reason")[0]
    flash = started(
        catalog, 8, model="DeepSeek-V4-Flash", accelerator="B200-SXM-180GB", expert_parallel=8, precision="fp4",
        activation_precision="fp8", kv_precision="fp8", prompt_length=1_048_575, prefill_tokens=8192,
        memory_fraction=0.95,
    )  # fmt: skip
    assert "vllm before 0.26 has room for 20." in flash.text("reason")[0]


def test_vllm_takes_graphs_off_before_the_cache(catalog: Catalog) -> None:
    """Since 0.21: 492,912 tokens, 120.34 requests of 4,096 on a card of 45 GB at 0.95 [start-up log of vLLM 0.22 with
    Qwen2.5-7B]; C04: 22,096 tokens of Llama 3.1 70B in INT8 on one H100 at 0.98 [vllm pull request 12569].
    """
    card = started(
        catalog, model="Qwen2.5-7B", accelerator="L40S", precision="bf16", prompt_length=4095, prefill_tokens=2048,
        memory_fraction=0.95, software_release="0.22.0",
    )  # fmt: skip
    assert card.number("kv_cache_tokens")[0] == pytest.approx(492_912, rel=0.03)
    assert card.number("max_concurrency")[0] == pytest.approx(120.34, rel=0.03)
    tight = started(
        catalog, model="Meta-Llama-3.1-70B", precision="int8", activation_precision="int8", prompt_length=2047,
        prefill_tokens=2048, memory_fraction=0.98,
    )  # fmt: skip
    assert tight.number("kv_cache_tokens")[0] == pytest.approx(22_096, rel=0.1)
    eager = started(catalog, model="Qwen2.5-7B", prompt_length=4095, precision="bf16", graphs="no")
    graphs = started(catalog, model="Qwen2.5-7B", prompt_length=4095, precision="bf16")
    token = 28 * 2 * 4 * 128 * 2.0
    assert eager.number("kv_cache_tokens")[0] - graphs.number("kv_cache_tokens")[0] == pytest.approx(7e8 / token)
