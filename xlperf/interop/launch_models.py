"""Models that launch files name or describe: rows of the catalog by their names, and by every dimension stated."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import numpy as np

from xlperf.catalog.table import Spellings, Table

LONGEST_MODEL = 200  # characters of a name of a model that are looked at
_SIZES = ("num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "head_size", "ffn_hidden_size",
          "moe_ffn_hidden_size", "num_experts", "top_k", "q_lora_rank", "kv_lora_rank", "vocab_size")  # fmt: skip
_PADDED = 0.02
"""Share by which a vocabulary may be padded beyond the model's own; Megatron pads to 128 times tensor parallelism."""
_PAD = 128.0


def named_model(names: list[str], models: Table) -> str:
    """The model with one of some names or aliases, but for words that leave the shape as it is; "" if none."""
    spelled = Spellings(models)
    for text in names:
        text = text[:LONGEST_MODEL].rstrip("/").removesuffix(".yaml").removesuffix(".toml").removesuffix(".json")
        meant = spelled.names(text)
        if len(meant) == 1:
            return meant[0]
    return ""


def described_models(settings: Mapping[str, str], models: Table, whole: bool) -> tuple[list[str], str]:
    """Models that agree with every stated dimension, and, without any, how the nearest one differs.

    ``settings``: dimensions, with names such as ``@num_layers``. ``whole``: unstated dimensions have Megatron-LM's
    defaults (no gate, no experts, feed-forward size 4 times the hidden size) and are not unknown.
    """
    stated = _stated(settings, whole)
    names = models.text("model")
    if "num_layers" not in stated or "hidden_size" not in stated:
        return [], ""
    wrong = {name: ~_agrees(name, value, settings, models) for name, value in stated.items()}
    count = np.sum(list(wrong.values()), axis=0)
    if whole and (count == 0).sum() != 1:  # switches that a shortened file leaves out decide between several
        switches = _switches(stated)
        more = sum(~_agrees(name, value, settings, models) for name, value in switches.items())
        count = count + (more if ((count + more) == 0).any() else 0)
    if (count == 0).any():
        return [str(names[row]) for row in np.flatnonzero(count == 0)], ""
    near = ~wrong["num_layers"] & ~wrong["hidden_size"]
    shown = ", ".join(f"{name.replace('_', ' ')} {value:.10g}" for name, value in stated.items() if value == value)
    if not near.any():
        return [], shown
    row = int(np.flatnonzero(near)[np.argmin(count[near])])
    other = {name: float(_values(name, models)[row]) for name, mask in wrong.items() if mask[row]}
    differs = ", ".join(f"{name.replace('_', ' ')} {value:.10g}" for name, value in other.items() if value == value)
    lacks = [name.replace("_", " ") for name, value in other.items() if value != value]
    differs += (", " if differs and lacks else "") + (f"no {', '.join(lacks)}" if lacks else "")
    return [], f"{shown}; the nearest, {names[row]}, has {differs}"


def contradicted(settings: Mapping[str, str], model: str, models: Table) -> str:
    """Stated dimensions that contradict a model of the catalog, in words; "" if all agree."""
    values = np.flatnonzero(models.text("model") == model)
    if not len(values):
        return ""
    row = int(values[0])
    stated = _stated(settings, False)
    wrong = [name for name, value in stated.items() if not _agrees(name, value, settings, models)[row]]
    return ", ".join(
        f"{name.replace('_', ' ')} {stated[name]:.10g} and not {_values(name, models)[row]:.10g}" for name in wrong
    )


def _stated(settings: Mapping[str, str], whole: bool) -> dict[str, float]:
    stated = {}
    for name in _SIZES:
        with suppress(ValueError, KeyError):
            stated[name] = float(settings[f"@{name}"].replace(",", ""))
    if "@padded_vocab_size" in settings:
        with suppress(ValueError):
            stated["vocab_size"] = float(settings["@padded_vocab_size"])
    if "@gated_mlp" in settings:
        stated["gated_mlp"] = float(settings["@gated_mlp"] == "yes")
    stated = {name: value for name, value in stated.items() if np.isfinite(value) and (value or name == "gated_mlp")}
    if whole and "hidden_size" in stated:
        hidden = stated["hidden_size"]
        stated.setdefault("num_experts", 0.0)
        if "ffn_hidden_size" not in stated and "moe_ffn_hidden_size" not in stated:
            # megatron/training/arguments.py: two thirds of four times the hidden size if gated, whole multiples of 64
            gated = stated.get("gated_mlp", 0.0)
            stated["ffn_hidden_size"] = (8.0 * hidden / 3.0) // 64.0 * 64.0 if gated else 4.0 * hidden
    return stated


def _switches(stated: Mapping[str, float]) -> dict[str, float]:
    """Megatron-LM without its switches: no gate, no latent attention, keys and values for every head."""
    by_name = {"gated_mlp": 0.0, "kv_lora_rank": 0.0}
    if "num_attention_heads" in stated:
        by_name["num_query_groups"] = stated["num_attention_heads"]
    return {name: value for name, value in by_name.items() if name not in stated}


def _values(name: str, models: Table) -> np.ndarray:
    values = models.number(name)
    if name == "num_query_groups":
        return np.asarray(np.where(np.isnan(values), models.number("num_attention_heads"), values))
    if name == "head_size":
        return np.where(np.isnan(values), models.number("hidden_size") / models.number("num_attention_heads"), values)
    if name == "moe_ffn_hidden_size":
        return np.asarray(np.where(np.isnan(values), models.number("ffn_hidden_size"), values))
    return np.asarray(values)


def _agrees(name: str, value: float, settings: Mapping[str, str], models: Table) -> np.ndarray:
    """Rows of the models whose dimension is the one stated; latent attention has no groups and heads of its own."""
    values = _values(name, models)
    if name in ("num_experts", "kv_lora_rank", "q_lora_rank") and not value:
        return np.asarray(~(values > (1.0 if name == "num_experts" else 0.0)))
    if name in ("num_query_groups", "head_size"):
        return np.asarray((values == value) | (models.number("kv_lora_rank") > 0.0))
    if name == "vocab_size":
        with suppress(ValueError):
            pad = _PAD * max(float(settings.get("tensor_parallel", "1")), 1.0)
            return np.asarray(np.abs(values - value) <= max(_PADDED * value, pad))
    if name == "ffn_hidden_size":
        experts = models.number("num_experts") > 1.0
        sparse = experts & ~(models.number("first_dense_layers") > 0.0)
        routed = (values == value) | (_values("moe_ffn_hidden_size", models) == value)
        if "@moe_ffn_hidden_size" in settings:
            routed |= sparse  # no layer has it
        return np.asarray(np.where(experts, routed, values == value))
    return np.asarray(values == value)
