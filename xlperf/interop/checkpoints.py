"""Checkpoints by their names: the model of the catalog and the formats of its parts; models by their dimensions; and
what a serving engine does by itself where its command does not say: formats of weights and cache, tokens of a pass.

A row of ``models`` states the formats of the checkpoint of its name. ``checkpoint_formats.csv`` has the formats of
variants by words of their names (``-FP8``, ``-AWQ``, ``quantized.w8a8``) and of the values of ``--quantization``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from xlperf.base.resources import rows
from xlperf.catalog.spellings import Spellings
from xlperf.catalog.table import Table, aliases, copied_name
from xlperf.interop.config_rules import Stated, number, text
from xlperf.interop.software import STACKS, release_of

AUTO = "auto"  # word of a precision that is the checkpoint's own
WIDE = "bf16"
SIXTEEN_BITS = ("fp32", "fp16", "bf16")
_PARTS = {"attention": "attention_precision", "mlp": "mlp_precision", "shared": "shared_expert_precision",
          "head": "head_precision"}  # fmt: skip
FORMAT_COLUMNS = ("expert_precision", *_PARTS.values(), "checkpoint_activations", "checkpoint_kv_precision")
"""Columns of the sheet models with precisions of the published checkpoint."""
_LONGEST = 200


def bits_of(precision: str) -> str:
    """Format of weights, whatever their scales: 16 bits, FP8, FP4, INT8 or INT4."""
    if precision in SIXTEEN_BITS:
        return "16"
    return "fp4" if precision.endswith("fp4") else precision.partition("-")[0]


class CheckpointFormats(NamedTuple):
    """Precision of each part of a checkpoint.

    ``main``: of routed experts, or of the feed-forward layers of a dense model. ``parts``: of attention, dense
    feed-forward layers (``mlp``), shared experts and embeddings with the output head. ``activations``, ``cache``: as
    the checkpoint states them, "" if it does not. ``wide_share``: share of the layers that stay in 16 bits.
    ``leaves_attention``: whether 4-bit plans keep the attention layers of this model in 16 bits.
    """

    main: str
    parts: Mapping[str, str]
    activations: str
    cache: str
    wide_share: float
    leaves_attention: bool
    source: str

    @property
    def is_quantised(self) -> bool:
        """Whether any part has fewer than 16 bits."""
        return any(each not in SIXTEEN_BITS for each in (self.main, *self.parts.values()))


class Variant(NamedTuple):
    """Formats of checkpoints of a kind, a row of ``checkpoint_formats.csv``.

    ``words``: pattern of words of their names, with an owner if it has a stroke. ``methods``: values of
    ``--quantization``. ``layers``: precision of the linear layers of the decoder. ``attention``: that of its attention
    layers, if it differs; ``others``: that of shared experts and dense layers beside routed experts. ``wide_layers``:
    layers in 16 bits. ``activations``, ``kv_precision``: as the checkpoint states them.
    """

    words: str
    methods: str
    layers: str
    attention: str
    others: str
    wide_layers: str
    activations: str
    kv_precision: str
    source: str

    def names(self, checkpoint: str) -> bool:
        """Whether the name of a checkpoint says this."""
        text = re.sub(r"[ _:]+", "-", checkpoint if "/" in self.words else checkpoint.rpartition("/")[2])
        pattern = rf"(^|[-.])({self.words})([-.]|$)"
        return bool(self.words and re.search(pattern, text, re.IGNORECASE))


_VARIANTS = tuple(Variant(**row) for row in rows("interop/checkpoint_formats.csv"))


@lru_cache(maxsize=4096)
def variant_of_name(name: str) -> Variant | None:
    """Formats that the name of a checkpoint states, None if it states none.

    >>> variant_of_name("Qwen2.5-72B-Instruct-AWQ").layers, variant_of_name("Llama-3.1-70B-quantized.w8a8").layers
    ('int4-128', 'int8')
    >>> variant_of_name("openai/gpt-oss-120b") is None
    True
    """
    return next((one for one in _VARIANTS if one.names(name[:_LONGEST].rstrip("/"))), None)


@lru_cache(maxsize=256)
def variant_of_method(method: str) -> Variant | None:
    """Formats of a value of ``--quantization``, None if it states none."""
    return next((each for each in _VARIANTS if method.casefold() in each.methods.split()), None)


def states_format(names: np.ndarray) -> np.ndarray:
    """Names of models that state a format, which their row of the catalog may not have, (rows,)."""
    return np.array([variant_of_name(str(name)) is not None for name in names.tolist()], dtype=bool)


def formats_of_checkpoint(models: Table, row: int, name: str, stated: str = AUTO) -> CheckpointFormats:
    """Formats of a checkpoint by its name, which may say more than its row of the sheet models.

    ``stated``: precision of a plan beside ``auto``, whose products depend on the machine: that of all linear layers.
    """
    name = copied_name(name)
    text = {column: str(models.text(column)[row]) if column in models else "" for column in FORMAT_COLUMNS}
    flag = {name: bool(models.filled(name)[row] > 0.0) for name in ("fp8_blocks", "wide_attention") if name in models}
    has_experts = models.number("num_experts")[row] > 0.0
    leaves = bool(has_experts and flag.get("wide_attention", True))
    own = copied_name(str(models.text("model")[row]))
    if stated != AUTO:
        return _of_variant(Variant("", "", stated, "", "", "", "", "", ""), models, row, flag)
    variant = variant_of_name(name)
    if variant is None and states_format(np.array([own]))[0] and name != own:
        text = dict.fromkeys(text, "")  # the checkpoint of 16 bits that the row's was made of
    known = any(text[column] for column in FORMAT_COLUMNS)
    stored = text["expert_precision"] or text["mlp_precision"]
    is_native = known and variant is not None and stored.partition("-")[0] == variant.layers.partition("-")[0]
    if variant is not None and not is_native:  # the row says in more detail what the words of its name say
        return _of_variant(variant, models, row, flag)
    parts = {part: text[column] or WIDE for part, column in _PARTS.items()}
    main = (text["expert_precision"] if has_experts else text["mlp_precision"]) or WIDE
    # A part that the model lacks does not tell it apart from a checkpoint of one precision.
    dense = models.number("first_dense_layers", 0.0)[row] > 0.0 or models.number("moe_layer_step", 1.0)[row] > 1.0
    dense = dense or ("ffn_pattern" in models and "dense" in str(models.text("ffn_pattern")[row]))
    if not has_experts or not dense:
        parts["mlp"] = main
    if not models.number("num_shared_experts", 0.0)[row] > 0.0:
        parts["shared"] = main
    wide = float(models.number("wide_layers", 0.0)[row]) / float(models.number("num_layers")[row])
    source = str(models.text("checkpoint_source")[row])
    cache = text["checkpoint_kv_precision"]
    return CheckpointFormats(main, parts, text["checkpoint_activations"], cache, wide, leaves, source)


def _of_variant(variant: Variant, models: Table, row: int, flag: Mapping[str, bool]) -> CheckpointFormats:
    """Formats of a variant of the model of a row; ``flag``: its flags."""
    stored = variant.layers
    if stored == "fp8":
        stored = "fp8-block" if flag.get("fp8_blocks") else "fp8-tensor"
    leaves = bool(models.number("num_experts")[row] > 0.0 and flag.get("wide_attention", True))
    attention = variant.attention or (WIDE if leaves and stored.endswith("fp4") else stored)
    others = variant.others or stored
    if not models.number("num_shared_experts", 0.0)[row] > 0.0 and not models.number("first_dense_layers")[row] > 0.0:
        others = stored
    parts = {"attention": attention, "mlp": others, "shared": others, "head": WIDE}
    cache = "" if stored == "fp8-block" else variant.kv_precision
    wide = float(variant.wide_layers or 0.0) / float(models.number("num_layers")[row])
    return CheckpointFormats(stored, parts, variant.activations, cache, wide, leaves, variant.source)


MODELSCOPE = ("___", ".")  # points in the names of its folders, and what they stand for
LONGEST_MODEL = 200  # characters of a name of a model that are looked at
_SIZES = ("num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "head_size", "ffn_hidden_size",
          "moe_ffn_hidden_size", "num_experts", "top_k", "q_lora_rank", "kv_lora_rank", "vocab_size")  # fmt: skip
_PADDED = 0.02
"""Share by which a vocabulary may be padded beyond the model's own; Megatron pads to 128 times tensor parallelism."""
_PAD = 128.0


def named_model(names: list[str], models: Table) -> str:
    """The model with one of some names or aliases, but for words that leave the shape as it is; "" if none."""
    spelled = Spellings(models)
    for name in names:
        name = name[:LONGEST_MODEL].replace(*MODELSCOPE)
        name = name.rstrip("/").removesuffix(".yaml").removesuffix(".toml").removesuffix(".json")
        meant = spelled.names(name)
        if len(meant) == 1:
            return meant[0]
    return ""


_MENTIONED = re.compile(r"(?<![A-Za-z\d._-])[A-Za-z][A-Za-z\d._-]{1,60}?\d[bB](?![A-Za-z])")
_ABOUT = re.compile(r"^meta|[^a-z0-9]+|(?:instruct|base|hf|chat)$")
MOST_MENTIONED = 200_000  # characters of a text in which names of models are looked for


def mentioned_models(text: str) -> str:
    """Words of a text that may name a model by its size, without regard to case and dashes.

    >>> mentioned_models("name: llama3_70b, tokenizer: meta-llama/Meta-Llama-3-70B")
    'llama370b'
    """
    words = {_plain(word) for word in _MENTIONED.findall(text[:MOST_MENTIONED])}
    return " ".join(sorted(words))


def meant_model(models_alike: list[str], mentioned: str, models: Table) -> str:
    """The only one of some models whose name or alias a text mentions; "" if there is none."""
    names, words = [str(one) for one in models.text("model").tolist()], mentioned.split()
    spelled = [*((one, one) for one in models_alike), *((one, names[row]) for row, one in aliases(models))]
    ends = [(_plain(spelling), model) for spelling, model in spelled if model in models_alike]
    meant = {model for end, model in ends if any(word.endswith(end) for word in words)}
    return next(iter(meant)) if len(meant) == 1 else ""


def _plain(name: str) -> str:
    return _ABOUT.sub("", re.sub(r"[^a-z0-9]+", "", name.casefold()))


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
    if stated.get("num_experts") in (0.0, 1.0):  # a dense model, whose other arguments of experts mean nothing
        stated = {name: value for name, value in stated.items() if name not in ("top_k", "moe_ffn_hidden_size")}
        stated["num_experts"] = 0.0
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


_READS_CACHE = "0.13"
"""First release of vLLM that reads kv_cache_quant_algo and kv_cache_scheme (pull request 29980, December 2025)."""
_CALIBRATED = re.compile(r"^nvidia/|/nvidia/|modelopt|fp8[-_]kv", re.IGNORECASE)
"""Checkpoints whose configuration states a cache: those of ModelOpt and of Quark."""
_SECOND_ENGINE = "0.8"
_WHOLE_PROMPTS = 32_768.0
"""Longest request that vLLM's first engine takes in one pass by itself. [-]"""


def serving_precision(
    plan: Stated, settings: Mapping[str, str], stack: str, models: Table | None, notes: list[str]
) -> None:
    """Precision of weights, activations and cache, and whence it is known."""
    name = (settings.get("@model") or plan.get("model", ""))[:LONGEST_MODEL].rstrip("/")
    dtype = settings.get("@dtype", "").replace("auto", "")
    quantized = settings.get("@quantized", "")
    own = _stored_precision(name, plan.get("model", ""), models)
    asked = plan.get("precision", "bf16" if dtype and not own else "")
    # A stated fp8 is enough for a checkpoint of one precision; other formats have scales that their words do not tell.
    stated = variant_of_name(name)
    is_mixed = stated is not None and bool(stated.attention or stated.others or stated.wide_layers)
    alike = bits_of(asked) == bits_of(own) and (bits_of(own) != "fp8" or is_mixed)
    if own and (asked in ("", AUTO) or alike):
        plan["precision"] = AUTO
        notes.append(f"precision {own} of the checkpoint: {_named_format(plan, name, models)}")
    elif not asked and (method := variant_of_method(quantized)):
        plan["precision"] = method.layers
        notes.append(f"precision {method.layers}: --quantization {quantized}")
    elif "precision" not in plan and (dtype or stated or variant_of_name(plan.get("model", ""))):
        plan["precision"] = dtype or "bf16"
    elif "precision" not in plan:
        also = f", and {quantized} states none" if quantized else ""
        notes.append(f"precision bf16 is assumed: the name {name or 'of the model'} states no format{also}")
    narrow = bool(own) if plan.get("precision") == AUTO else plan.get("precision", "bf16") not in SIXTEEN_BITS
    if dtype and narrow:
        notes.append(f"dtype {dtype} is of the activations, not of the {own or plan['precision']} weights")
    if STACKS[stack].cache and "kv_precision" not in plan:
        stored = _stored(name, plan.get("model", ""), models)
        reads = stack == "vllm" and _at_least(plan.get("software_release", ""), _READS_CACHE)
        if (
            reads
            and own
            and _CALIBRATED.search(f"{name} {quantized}")
            and stored is not None
            and stored.cache
            and plan.get("precision") == AUTO
        ):
            plan["kv_precision"] = stored.cache
            notes.append(f"kv precision {stored.cache}: the checkpoint states it, and vllm does so since 0.13")
            return
        plan["kv_precision"] = dtype or (plan["precision"] if not narrow and "precision" in plan else "bf16")
        if narrow:
            notes.append(f"kv precision {plan['kv_precision']}: {stack} keeps a 16-bit cache unless it is asked not to")


def _named_format(plan: Stated, name: str, models: Table | None) -> str:
    """Source of the format of a checkpoint, whose name the plan gets as its model if the name alone states it."""
    variant, model = variant_of_name(name), plan.get("model", "")
    if variant is None or models is None or variant == variant_of_name(model):
        row = row_of(models, model)
        source = str(models.text("checkpoint_source")[row]) if models is not None and row >= 0 else ""
        return source or (variant.source if variant is not None else "its row of models")
    checkpoint = (name if "/" in variant.words else name.rpartition("/")[2]).replace(*MODELSCOPE)
    if Spellings(models).names(checkpoint) == [model]:
        plan["model"] = checkpoint
    else:  # a name that is no spelling of the model says its format nowhere else
        plan["precision"] = variant.layers
    return variant.source


def row_of(models: Table | None, model: str) -> int:
    """Row of a model in the sheet models, by any spelling of its name; -1 if there is none."""
    if models is None:
        return -1
    names, alike = models.text("model").tolist(), (model, named_model([model], models))
    return next((names.index(name) for name in alike if name in names), -1)


def _stored(name: str, model: str, models: Table | None) -> CheckpointFormats | None:
    row = row_of(models, model)
    return formats_of_checkpoint(models, row, name or model) if models is not None and row >= 0 else None


def _stored_precision(name: str, model: str, models: Table | None) -> str:
    """Precision of the experts or feed-forward layers of a checkpoint, "" if it is in 16 bits."""
    variant, stored = variant_of_name(name), _stored(name, model, models)
    result = stored.main if stored is not None else variant.layers if variant else ""
    return "" if result in SIXTEEN_BITS else result


def _at_least(release: str, first: str) -> bool:
    """Whether a release is the newest, which is blank, or no earlier than another; False for one that has no order."""
    try:
        return not release or release_of(release) >= release_of(first)
    except ValueError:
        return False


def mean_lengths(plan: Stated, settings: Mapping[str, str], notes: list[str]) -> None:
    """Lengths that a result of a benchmark does not state, from its tokens over its requests."""
    requests = number(settings, "@completed", 0.0)
    for column, tokens in (("prompt_length", "@total_input_tokens"), ("output_length", "@total_output_tokens")):
        whole = number(settings, tokens, 0.0)
        if requests >= 1.0 and whole >= requests and column not in plan:
            plan[column] = text(round(whole / requests))
            notes.append(f"{column.replace('_', ' ')} {plan[column]}: mean of {requests:,.0f} requests")


def first_passes(plan: Stated, settings: Mapping[str, str], stack: str, models: Table | None) -> None:
    """Tokens of a pass of vLLM's first engine unless they are stated: the longest request, in chunks beyond 32,768; and
    the adapters of a server that has some.

    Source: vLLM 0.6 and 0.7, config.py SchedulerConfig and arg_utils.py: chunks of 512 tokens, since 0.6.5 of 2,048.
    LoRAConfig: one adapter of rank 16 in memory at a time, and as many of the host as of the accelerator.
    """
    if settings.get("@adapters") == "yes":
        plan.setdefault("adapter_rank", "16")
        plan.setdefault("resident_adapters", "1")
        plan.setdefault("adapters", plan["resident_adapters"])
    release = plan.get("software_release", "")
    if stack != "vllm" or not release or "prefill_tokens" in plan or _at_least(release, _SECOND_ENGINE):
        return
    row = row_of(models, plan.get("model", ""))
    own = float(models.number("max_sequence_length")[row]) if models is not None and row >= 0 else 0.0
    longest = number(plan, "max_context", own if own == own else 0.0)
    chunked = settings.get("@chunked", "yes" if longest > _WHOLE_PROMPTS and _at_least(release, "0.5.4") else "no")
    if chunked == "yes":
        plan["prefill_tokens"] = "2048" if _at_least(release, "0.6.5") else "512"
    elif longest > 0.0:
        plan["prefill_tokens"] = text(max(longest, 2048.0))
