"""Words behind the name of a model that leave its shape as it is: training, format of the weights, layout of files."""

from __future__ import annotations

import re
from collections.abc import Iterator

_TRAINED = (
    r"instruct|chat|base|it|pt|sft|rl|hf|mcore|megatron|torch|dist|slime|pretrain|pretraining|finetune|config|recipe"
    r"|thinking|preview|\d{4}|\d{6}|\d{8}|\d{1,3}k|v0\.1|terminus|exp|main|latest|tokendrop|dropless"
)
_STORED = (
    r"quantized|dynamic|block|kv|bf16|fp16|fp8|fp4|nvfp4|mxfp4|mxfp8|int4|int8|awq|gptq|w4a16|w8a16|w8a8|w4a8|autoround"
)
_VARIANT = {False: re.compile(_TRAINED), True: re.compile(f"{_TRAINED}|{_STORED}")}


def without_variants(text: str, formats: bool) -> Iterator[str]:
    """A name without one and more of such words at its end, the longest first.

    ``text``: a name without its owner. ``formats``: whether words of the format of the weights may go as well.

    >>> list(without_variants("Llama-3.1-8B-Instruct-FP8", True)), list(without_variants("Qwen3-8B-FP8", False))
    (['Llama-3.1-8B-Instruct', 'Llama-3.1-8B'], [])
    """
    words = re.split(r"[-_ ]+", text)
    while len(words) > 1 and _is_variant(words[-1].casefold(), _VARIANT[formats]):
        words.pop()
        yield "-".join(words)


def _is_variant(word: str, pattern: re.Pattern[str]) -> bool:
    parts = [part for part in re.split(r"[.,()]", word) if part]
    return bool(pattern.fullmatch(word)) or (bool(parts) and all(pattern.fullmatch(part) for part in parts))
