"""The params.json that Meta and Mistral publish beside their weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LARGEST = 2**30  # of a dimension [-]


def with_published_names(config: dict[str, Any]) -> dict[str, Any]:
    """Names of the params.json of Meta and Mistral as a config.json has them; any other configuration as it is.

    >>> params = {"dim": 8192, "n_layers": 80, "multiple_of": 4096, "ffn_dim_multiplier": 1.3}
    >>> with_published_names(params)["intermediate_size"]
    28672
    """
    stated = [config.get("dim"), config.get("ffn_dim_multiplier", 1), config.get("multiple_of", 256)]
    numbers = [float(value) for value in stated if isinstance(value, (int, float)) and 0 < value < _LARGEST]
    if "model_type" in config or "q_lora_rank" in config or "n_layers" not in config or len(numbers) < len(stated):
        return config
    width, factor, multiple = numbers
    names = {
        "dim": "hidden_size",
        "hidden_dim": "intermediate_size",
        "n_kv_heads": "num_key_value_heads",
        "tied_embeddings": "tie_word_embeddings",
        "ffn_dim_multiplier": "_",
        "multiple_of": "__",
    }
    experts = config.get("moe")
    result = {names.get(key, key): value for key, value in config.items() if key != "moe" or not experts}
    least = int(factor * int(8.0 * width / 3.0))  # llama/model.py FeedForward
    result.setdefault("intermediate_size", int(multiple * -(-least // multiple)))
    more = dict(experts) if isinstance(experts, Mapping) else {}
    return {**result, **more, "model_type": "mixtral" if more else "llama"}
