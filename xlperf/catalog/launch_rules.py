"""What the settings of a training or serving stack mean for a plan where several of them decide a column, and back.

What a stack does where a flag is not given stands in ``launch_defaults.csv``, beside what a blank column means here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache

import numpy as np

from xlperf.base.resources import rows
from xlperf.catalog.table import Table, aliases, words_of

Stated = dict[str, str]
SOFTWARE = {"megatron": "megatron", "nemo": "nemo", "torchtitan": "torchtitan", "vllm": "vllm", "sglang": "sglang",
            "trtllm": "tensorrt-llm"}  # fmt: skip
"""The software of plans that a stack runs."""
OWN_SOFTWARE = {"training": "megatron", "inference": "tensorrt-llm"}
"""What a blank software is."""
_DIMENSIONS = ("num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "ffn_hidden_size", "num_experts",
               "top_k")  # fmt: skip
_MODULES = {"core_attn": "core_attention", "layernorm": "norm", "mla_up_proj": "latent", "mlp": "mlp", "moe": "moe",
            "moe_act": "activation"}  # fmt: skip
_NARROW = (("fp8", r"fp8|w8a8"), ("fp4", r"(nv|mx)?fp4"), ("int4", r"awq|gptq|int4|w4a16"), ("int8", r"int8"))
_CAPTURED = tuple(float(size) for size in (1, 2, 4, 8, 16, 32, 64, 128, *range(256, 3073, 256)))
"""Tokens of a pass that TensorRT-LLM captures graphs for where piecewise graphs are on. [-]"""


@cache
def stack_defaults(stack: str) -> tuple[tuple[str, str, str], ...]:
    """Column, what blank means in a plan, and what the stack does without its flag, where the two differ."""
    found = rows("catalog/launch_defaults.csv")
    return tuple((row["column"], row["blank"], row["without"]) for row in found if row["stack"] == stack)


def plan_of(stack: str, told: Mapping[str, str], models: Table | None = None) -> Stated:
    """Columns of the plan that arguments of a stack mean.

    ``stack``: whose arguments. ``told``: columns and own quantities of the stack that its flags state. ``models``:
    among these a model is found by its name or its dimensions.
    """
    plan = {name: value for name, value in told.items() if not name.startswith("@")}
    _RULES[stack](plan, told)
    if "model" not in plan:
        model = _model(told, models)
        plan |= {"model": model} if model else {}
    if stack in ("vllm", "sglang", "trtllm"):
        _precision_of_name(plan, told.get("@model", ""))
        _running(plan, told, stack)
    for column, blank, without in stack_defaults(stack):
        needed = column != "sequence_parallel" or _number(plan, "tensor_parallel", 1.0) > 1.0
        if column not in plan and needed and blank != without:
            plan[column] = without
    if SOFTWARE[stack] != OWN_SOFTWARE["training" if stack in ("megatron", "nemo", "torchtitan") else "inference"]:
        plan.setdefault("software", SOFTWARE[stack])
    return plan


def stack_of(stack: str, stated: Mapping[str, str]) -> Stated:
    """The reverse of :func:`plan_of` for flags that follow from several columns; other columns stay as they are."""
    found = dict(stated)
    for column, blank, without in stack_defaults(stack):
        needed = column != "sequence_parallel" or _number(stated, "tensor_parallel", 1.0) > 1.0
        if column not in found and needed and blank != without:
            found[column] = blank
    replicas = _number(stated, "data_parallel_attention", 1.0)
    tensor = _number(stated, "tensor_parallel", 1.0)
    if stack == "megatron" and found.get("precision", "").startswith(("fp8", "mxfp8")):
        found |= {"@fp8": "hybrid", "@fp8_recipe": found["precision"], "precision": "bf16"}
    if stack == "vllm":
        found["@tensor"] = _text(tensor / replicas)
        if replicas > 1.0:
            found["@data"] = _text(replicas)
        if _number(stated, "expert_parallel", 1.0) > 1.0:
            found["@experts"] = "yes"
    elif stack in ("sglang", "trtllm"):
        found["@tensor"] = _text(tensor)
        if replicas > 1.0:
            found |= {"@attention": "yes"} | ({"@data": _text(replicas)} if stack == "sglang" else {})
    if stack == "sglang":
        if replicas > 1.0 and "prefill_tokens" in found:
            found["prefill_tokens"] = _text(_number(stated, "prefill_tokens") * replicas)
        if _number(stated, "state_slots") == 1.0:
            found["@prefixes"] = "no"
            found.pop("state_slots")
    if stack == "trtllm" and "graph_tokens" in stated:
        most = _number(stated, "graph_tokens")
        found["@pieces"] = "yes" if most > 0.0 else "no"
        if most > 0.0:
            sizes = [size for size in _CAPTURED if size < most]
            found["@captured"] = f"[{','.join(_text(size) for size in [*sizes, most])}]"
    if stack in ("vllm", "sglang", "trtllm"):
        if "model" in stated:
            found["@model"] = stated["model"]
        if "max_running_batch" in stated:
            found["@running"] = _text(_number(stated, "max_running_batch") / _limited_alone(stack, replicas))
        elif "batch_size" in stated:
            found["@running"] = stated["batch_size"]
    return found


def _limited_alone(stack: str, replicas: float) -> float:
    """Replicas of the attention layers that the limit of requests of a stack holds for one by one: all but SGLang's."""
    return 1.0 if stack == "sglang" else replicas


def _running(plan: Stated, told: Mapping[str, str], stack: str) -> None:
    """The limit of requests of an engine: of a batch that is given by itself, or of what runs of a load."""
    if "@running" not in told:
        return
    most = _number(told, "@running")
    if "concurrency" in plan or "request_rate" in plan:
        if most >= 1.0:
            copies = _limited_alone(stack, _number(plan, "data_parallel_attention", 1.0))
            plan["max_running_batch"] = _text(most * copies)
    else:
        plan["batch_size"] = told["@running"]


def _megatron(plan: Stated, told: Mapping[str, str]) -> None:
    _accelerators(plan, told)
    if "@fp8" in told:  # a recipe alone switches nothing on
        if plan.get("precision") == "fp16":  # gradients are added up in FP32 beside BF16 alone unless a flag says so
            plan.setdefault("gradient_precision", "bf16")
        plan["precision"] = told.get("@fp8_recipe", "fp8")
    layers, chunk = _number(told, "@num_layers"), _number(told, "@layers_per_chunk")
    if layers and chunk:
        chunks = layers / (_number(plan, "pipeline_parallel", 1.0) * chunk)
        if chunks >= 1.0 and chunks % 1.0 == 0.0:
            plan["virtual_pipeline"] = _text(chunks)
    if _number(plan, "virtual_pipeline", 1.0) > 1.0:
        plan.setdefault("pipeline_schedule", "interleaved")
    _recomputation(plan, told)
    if _number(told, "@optimizer_instances", 1.0) > 1.0 and "num_accelerators" in plan:
        ranks = np.prod([_number(plan, f"{name}_parallel", 1.0) for name in ("tensor", "pipeline", "context")])
        replicas = _number(plan, "num_accelerators") / float(ranks)
        plan["zero_group_size"] = _text(replicas / _number(told, "@optimizer_instances"))


def _recomputation(plan: Stated, told: Mapping[str, str]) -> None:
    if plan.get("recompute") == "selective" and "@recompute_modules" in told:
        words = re.split(r"[\s,\[\]\"']+", told["@recompute_modules"])
        known = [_MODULES[word] for word in words if word in _MODULES]
        plan["recompute_modules"] = " ".join(dict.fromkeys(known)) or "core_attention"
    number = _number(told, "@recompute_num_layers")
    if plan.get("recompute") == "full" and number:
        if told.get("@recompute_method") == "block":
            plan["recompute_layers"] = _text(number)
        elif number > 1.0:
            plan["recompute_group"] = _text(number)


def _torchtitan(plan: Stated, told: Mapping[str, str]) -> None:
    _accelerators(plan, told)
    local = _number(told, "@local_batch")
    pipeline = _number(plan, "pipeline_parallel", 1.0)
    if local:
        micro = _number(told, "@pipeline_batch", 1.0) if pipeline > 1.0 else local
        plan["micro_batch_size"] = _text(micro)
    if "float8" in told.get("@converters", "") and not plan.get("precision", "").startswith("fp8"):
        plan["precision"] = "fp8-current"
    if "mx" in told.get("@converters", "").replace("[", " ").split():
        plan["precision"] = "mxfp8"
    replicas, shards = _number(told, "@replicas", 1.0), _number(told, "@shards", -1.0)
    if replicas > 1.0:
        if shards == 1.0:
            plan["zero_stage"] = "0"
        elif shards > 1.0:
            plan["zero_group_size"] = _text(shards)
    if "global_batch_size" in plan and _number(plan, "global_batch_size") <= 0.0:
        plan.pop("global_batch_size")
    if "global_batch_size" not in plan and local and "num_accelerators" in plan:
        ranks = pipeline * _number(plan, "tensor_parallel", 1.0) * _number(plan, "context_parallel", 1.0)
        plan["global_batch_size"] = _text(local * _number(plan, "num_accelerators") / ranks)


def _vllm(plan: Stated, told: Mapping[str, str]) -> None:
    tensor, data = _number(told, "@tensor", 1.0), _number(told, "@data", 1.0)
    ranks = tensor * data
    if told.get("@experts") == "yes":
        plan["tensor_parallel"], plan["expert_parallel"] = _text(ranks), _text(ranks)
        if data > 1.0:
            plan["data_parallel_attention"] = _text(data)
    elif "@tensor" in told:
        plan["tensor_parallel"] = _text(tensor)
    _captured(plan, told)
    _engine(plan, ranks)


def _sglang(plan: Stated, told: Mapping[str, str]) -> None:
    tensor, data = _number(told, "@tensor", 1.0), _number(told, "@data", 1.0)
    shared = told.get("@attention") == "yes"
    if "@tensor" in told:
        plan["tensor_parallel"] = _text(tensor)
    if shared and data > 1.0:
        plan["data_parallel_attention"] = _text(data)
        if "prefill_tokens" in plan:  # the chunk of all of them together
            plan["prefill_tokens"] = _text(_number(plan, "prefill_tokens") // data)
    if told.get("@prefixes") == "no":  # whatever the strategy of the prefix cache would keep
        plan["state_slots"] = "1"
    _captured(plan, told)
    _engine(plan, tensor * (1.0 if shared else data))


def _trtllm(plan: Stated, told: Mapping[str, str]) -> None:
    tensor = _number(told, "@tensor", 1.0)
    if "@tensor" in told:
        plan["tensor_parallel"] = _text(tensor)
    if told.get("@attention") == "yes":
        plan["data_parallel_attention"] = _text(tensor)
    if "@pieces" in told:
        plan["graph_tokens"] = _text(_largest(told, _CAPTURED[-1]) if told["@pieces"] == "yes" else 0.0)
    _engine(plan, tensor)


def _captured(plan: Stated, told: Mapping[str, str]) -> None:
    """Sizes in a list say no more than the largest one where that is not given by itself."""
    if "@captured" in told and plan.get("graphs") != "no":
        plan.setdefault("graph_tokens", _text(_largest(told, 0.0)))


def _largest(told: Mapping[str, str], default: float) -> float:
    """The largest of the sizes that graphs are captured for."""
    sizes = [float(word) for word in re.findall(r"\d{1,9}", told.get("@captured", ""))]
    return max(sizes, default=default)


def _engine(plan: Stated, ranks: float) -> None:
    whole = ranks * _number(plan, "pipeline_parallel", 1.0) * _number(plan, "context_parallel", 1.0)
    plan.setdefault("num_accelerators", _text(whole))
    for name in ("prefill_tokens", "polling_steps"):
        if name in plan and _number(plan, name) < 1.0:
            plan.pop(name)
    if plan.get("request_rate", "").casefold() == "inf":
        plan.pop("request_rate")
    if "concurrency" in plan or "request_rate" in plan:
        plan.setdefault("mode", "continuous")


_RULES: dict[str, Callable[[Stated, Mapping[str, str]], None]] = {
    "megatron": _megatron,
    "nemo": _megatron,
    "torchtitan": _torchtitan,
    "vllm": _vllm,
    "sglang": _sglang,
    "trtllm": _trtllm,
}


def _accelerators(plan: Stated, told: Mapping[str, str]) -> None:
    number = _number(told, "@accelerators_per_node")
    if number:
        plan.setdefault("num_accelerators", _text(number * _number(told, "@nodes", 1.0)))


def _model(told: Mapping[str, str], models: Table | None) -> str:
    named = " ".join(told[name] for name in ("@model", "@flavor") if told.get(name))
    if models is None:
        return named
    spelled = _spelled(models) if named else {}
    for text in (named, named.rstrip("/").rpartition("/")[2]):
        for cut in _shorter(text):
            if _joined(cut) in spelled:
                return spelled[_joined(cut)]
    stated = {name: _number(told, f"@{name}") for name in _DIMENSIONS}
    if not stated["num_layers"] or not stated["hidden_size"]:
        return named
    fits = np.ones(len(models), dtype=bool)
    for name, value in stated.items():
        column = models.number(name)
        if value:
            fits &= column == value
        elif name == "num_experts":
            fits &= ~(column > 1.0)
    return str(models.text("model")[np.flatnonzero(fits)[0]]) if fits.any() else named


def _spelled(models: Table) -> dict[str, str]:
    names = [str(name) for name in models.text("model").tolist()]
    found = {_joined(spelling): names[row] for row, spelling in aliases(models)}
    return found | {_joined(name): name for name in names}


def _joined(text: str) -> str:
    return "".join(words_of(text))


def _shorter(text: str) -> list[str]:
    """A model name, and the name without a suffix of precision, date or use."""
    words = re.split(r"[-_ ]+", text)
    found = ["-".join(words[:end]) for end in range(len(words), max(len(words) - 4, 0), -1)]
    return [text, *found]


def _precision_of_name(plan: Stated, model: str) -> None:
    """A checkpoint whose name says how its weights are stored."""
    if "precision" in plan:
        return
    for precision, pattern in _NARROW:
        if re.search(rf"(^|[-_/. ])({pattern})([-_. ]|$)", model, re.IGNORECASE):
            plan["precision"] = precision
            return


def _number(told: Mapping[str, str], name: str, default: float = 0.0) -> float:
    with suppress(ValueError):
        value = float(told.get(name, default))
        return value if math.isfinite(value) else default
    return default


def _text(value: float) -> str:
    return f"{value:.15g}"
