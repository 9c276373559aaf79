"""Serving engines of published rows: what the calibration calls an engine of a release."""

from __future__ import annotations

import re

_ENGINES = (
    ("nim", "nim"),
    ("nemo", "nemo"),
    ("tensorrt-llm", "tensorrt-llm"),
    ("trtllm", "tensorrt-llm"),
    ("vllm", "vllm"),
    ("sglang", "sglang"),
    ("turbomind", "turbomind"),
    ("jax", "jax"),
    ("deepseek", "deepseek"),
)
_FIRST_TENSORRT = re.compile(r"tensorrt-llm v?0\.[0-7](\.| |$)")
"""Before XQA, whose warps share the keys of grouped queries: TensorRT-LLM blog of January 2024, release 0.8."""
_FIRST_VLLM = re.compile(r"vllm 0\.[0-5](\.|$)")
_VLLM_BEFORE_V1 = re.compile(r"vllm 0\.[67](\.| |$)")
_VLLM_IN_TURN = re.compile(r"vllm 0\.([89]|1[0-3])(\.| |$)")
"""One step at a time: asynchronous scheduling is the default from 0.14 on [vLLM release notes, v0.14.0]."""
_FIRST_SGLANG = re.compile(r"sglang v?0\.([0-3]|4\.[0-4])(\.| |$)")
"""Before FlashAttention-3 decodes latent attention by default: SGLang pull request 5571, since 0.4.5.post1."""
_OF_AMD = "amd's build"


def engine_of(framework: str) -> str:
    """Serving engine, without its version, as the calibration calls it.

    >>> engine_of("trtllm 1.0.0rc3"), engine_of("NeMo/TRT-LLM"), engine_of("vLLM"), engine_of("abc 2")
    ('tensorrt-llm', 'nemo', 'vllm', 'abc')
    >>> engine_of("TensorRT-LLM 0.5"), engine_of("vLLM 0.5.4"), engine_of("vLLM 0.6.3"), engine_of("vLLM 0.12.0")
    ('tensorrt-llm-0', 'vllm-0', 'vllm-0.6', 'vllm-0.8')
    >>> engine_of("TensorRT-LLM 0.9.0"), engine_of("SGLang 0.4.3"), engine_of("SGLang 0.4.6.post1")
    ('tensorrt-llm', 'sglang-0.4', 'sglang')
    """
    words = framework.casefold()
    if _FIRST_TENSORRT.match(words):
        return "tensorrt-llm-0"  # the versions of 2023 have neither the kernels nor the runtime of later ones
    if _FIRST_VLLM.match(words):
        return "vllm-0"  # until 0.5 one process handled every token of every request between two steps
    if _VLLM_BEFORE_V1.match(words) and _OF_AMD not in words:
        return "vllm-0.6"  # its second scheduler is the default from 0.8 on; AMD's builds had what came to AMD later
    if _VLLM_IN_TURN.match(words):
        return "vllm-0.8"
    if _FIRST_SGLANG.match(words):
        return "sglang-0.4"
    for start, engine in _ENGINES:
        if words.startswith(start):
            return engine
    return words.split()[0] if words else ""
