"""What a serving engine does by itself where its command does not say: formats of the checkpoint and of the cache,
and tokens of a pass.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from xlperf.catalog.spellings import Spellings
from xlperf.catalog.table import Table
from xlperf.interop.checkpoints import (
    AUTO,
    LONGEST_MODEL,
    MODELSCOPE,
    SIXTEEN_BITS,
    CheckpointFormats,
    bits_of,
    formats_of_checkpoint,
    named_model,
    variant_of_method,
    variant_of_name,
)
from xlperf.interop.config_rules import Stated, number, text
from xlperf.interop.software import STACKS, release_of

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
