"""Rules for plan columns that several settings of a stack decide together, in both directions.

``software_defaults.csv`` has what a stack does without a flag beside the meaning of a blank column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache

from xlperf.base.resources import stack_rows
from xlperf.base.units import UNITS
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table
from xlperf.interop.checkpoints import (
    contradicted,
    described_models,
    first_passes,
    mean_lengths,
    meant_model,
    named_model,
    row_of,
    serving_precision,
)
from xlperf.interop.config_rules import (
    CONFIG_RULES,
    RECOMPUTED,
    UNREAD,
    Stated,
    machines,
    ranks_of,
    rollout_batches,
    stage_layers,
)
from xlperf.interop.config_rules import number as _number
from xlperf.interop.config_rules import text as _text
from xlperf.interop.launch_stacks import kind_of, kind_of_stack, software_of, stacks
from xlperf.interop.software import STACKS, software_defaults

LACKS = "@lacks"  # key of the words that say why no model is known
CONFIG = "CONFIG"  # in these words: the file that the row of the model can be made from
_BLANKS = {"sequence_parallel": "yes", "compiled": "yes"}
"""Meaning of blank columns without a default, where a flag says otherwise."""
_SHARED = ("sequence_parallel", "tensor_overlap")  # columns that mean something with tensor parallelism only
OWN_SOFTWARE = {"training": "megatron", "inference": "tensorrt-llm"}  # meaning of a blank software
_SETTLES = {
    "@nodes": "num_accelerators", "@accelerators_per_node": "num_accelerators", "@local_batch": "micro_batch_size",
    "@tensor": "tensor_parallel", "@running": "batch_size", "@dtype": "precision",
}  # fmt: skip
"""Columns of a plan that make a quantity of a stack superfluous if they are given."""
OF_MODEL = ("@model", "@flavor", "@family", "@size", "@named", "@config", "@num_layers", "@hidden_size",
             "@ffn_hidden_size", "@num_attention_heads", "@num_query_groups", "@num_experts", "@top_k", "@vocab_size",
             "@head_size", "@moe_ffn_hidden_size", "@q_lora_rank", "@kv_lora_rank")  # fmt: skip
_CAPTURED = tuple(float(size) for size in (1, 2, 4, 8, 16, 32, 64, 128, *range(256, 3073, 256)))
"""Tokens of a pass with CUDA graphs in TensorRT-LLM under piecewise graphs. [-]"""


@cache
def stack_defaults(stack: str) -> tuple[tuple[str, str, str], ...]:
    """Column, meaning of a blank cell ("" if it follows from the plan), and behaviour of the stack without its flag."""
    kind = kind_of_stack(stack)
    software = STACKS[stack].software if stack in STACKS else software_of(stack)[0]
    blank = {column.name: column.default for column in table_schema(kind).columns} | _BLANKS
    for default in reversed(software_defaults(kind, software)):
        blank |= {} if default.conditions else default.settings
    launch = (default.settings for default in software_defaults("launch", stack))
    return tuple((name, blank[name], without) for own in launch for name, without in own.items())


def wrapper_defaults(settings: Mapping[str, str], stack: str) -> tuple[str, dict[str, str]]:
    """The wrapper around a stack in a command or configuration, and its own defaults by column."""
    for row in stack_rows("wrappers"):
        if row["stack"] == stack and any(f"@sign {sign}" in settings for sign in row["sign"].split("|")):
            results = [one for one in stack_rows("wrappers") if one["wrapper"] == row["wrapper"]]
            own = (one for one in results if one["stack"] == stack and _holds(one["if"], settings))
            return row["wrapper"], {one["column"]: one["value"] for one in own}
    return "", {}


def _holds(condition: str, settings: Mapping[str, str]) -> bool:
    column, _, value = condition.partition("=")
    return not condition or settings.get(column, value) == value


def settled(
    column: str, given: Collection[str], plan: Mapping[str, str], sourced: Sequence[str], counted: bool = False
) -> bool:
    """Whether other settings decide the columns of one without a value; ``counted``: the file multiplies nodes and
    their accelerators, one of which has no value.
    """
    if column.startswith("@array"):
        harmless = kind_of(re.sub(r"\W", "", column[len("@array") :])) == "harmless"
        return not sourced or harmless or ("MODEL" in column and "model" in plan)
    if column in ("@checkpoint", "max_context"):
        return True
    if column in OF_MODEL:
        return "model" in plan
    if column in ("@nodes", "@accelerators_per_node") and not counted:
        return "num_accelerators" in plan
    return _SETTLES.get(column, column) in given


def plan_of(
    stack: str, settings: Mapping[str, str], models: Table | None = None, notes: list[str] | None = None
) -> Stated:
    """Plan columns of the arguments of a stack."""
    notes = [] if notes is None else notes
    if kind_of_stack(stack) == "inference":
        settings = {name: _counted(value) for name, value in settings.items()}
    plan = {name: value for name, value in settings.items() if not name.startswith("@")}
    wrapper, defaults = wrapper_defaults(settings, stack)
    used = {name: value for name, value in defaults.items() if name and name not in plan}
    plan |= used
    if used:
        words = (f"{name.replace('_', ' ')} {value}" for name, value in used.items())
        notes.append(f"defaults of {wrapper}: {', '.join(words)}")
    kind = kind_of_stack(stack)
    training = kind == "training"
    if (
        stack == "nemo"
        and "@accelerators_per_node" in settings
        and not {"@nodes", "num_accelerators"} & settings.keys()
    ):
        notes.append(f"nodes are not stated, here one of {settings['@accelerators_per_node']} accelerators")
    _READ.get(stack, _READ_ALIKE[kind])(plan, settings)
    plan |= _model(plan, settings, models, stack, notes)
    if stack in ("torchtitan", "automodel"):
        _stages_per_rank(plan, settings, models, stack)
    if not training:
        serving_precision(plan, settings, stack, models, notes)
        first_passes(plan, settings, stack, models)
        mean_lengths(plan, settings, notes)
        _running(plan, settings, stack, notes)
    without = [row for row in stack_defaults(stack) if row[0] not in plan]
    if wrapper or "@handed" not in settings:  # another script may have the flags that are not seen here
        for column, _, value in without:
            if column != "sequence_parallel" or _number(plan, "tensor_parallel", 1.0) > 1.0:
                plan[column] = value
                if (column, value) == ("zero_stage", "0") and stack not in stacks():
                    notes.append("zero stage 0: it states no sharding; if another configuration does, --set it")
    if stack in stacks() and STACKS[stack].software != OWN_SOFTWARE[kind]:
        plan.setdefault("software", STACKS[stack].software)
    return plan


_SUFFIXES = {"k": UNITS["k"].factor, "m": UNITS["M"].factor, "K": 2.0**10, "M": 2.0**20}


def _counted(value: str) -> str:
    """A count as vLLM takes it: 16k is 16,000 and 16K is 16,384 (vLLM 0.10 engine/arg_utils.py human_readable_int)."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)([kKmM])", value)
    return _text(float(match[1]) * _SUFFIXES[match[2]]) if match else value


def stack_of(stack: str, stated: Mapping[str, str]) -> Stated:
    """The reverse of :func:`plan_of` for flags that follow from several columns; other columns stay as they are."""
    result = dict(stated)
    for column, blank, without in stack_defaults(stack):
        needed = column not in _SHARED or _number(stated, "tensor_parallel", 1.0) > 1.0
        if column not in result and needed and blank not in ("", without):
            result[column] = blank
    if kind_of_stack(stack) == "inference":
        result["@tensor"] = _text(_number(stated, "tensor_parallel", 1.0))
        if stated.get("precision") in ("bf16", "fp16", "fp32"):
            result["@dtype"] = stated["precision"]
        if "model" in stated:
            result["@model"] = stated["model"]
        if "max_running_batch" in stated:
            replicas = _number(stated, "data_parallel_attention", 1.0)
            result["@running"] = _text(_number(stated, "max_running_batch") / _limited_alone(stack, replicas))
        elif "batch_size" in stated:
            result["@running"] = stated["batch_size"]
    if stack in _WRITE:
        _WRITE[stack](result, stated)
    return result


def _write_megatron(result: Stated, stated: Mapping[str, str]) -> None:
    _overlaps(result, "sequence_parallel")
    if result.get("precision", "").startswith(("fp8", "mxfp8")):
        result |= {"@fp8": "hybrid", "@fp8_recipe": result["precision"], "precision": "bf16"}


def _overlaps(result: Stated, needed: str) -> None:
    """Tensor-parallel communication overlaps only with the prerequisites of the stack's own check."""
    if not (_number(result, "tensor_parallel", 1.0) > 1.0 and result.get(needed, "yes") == "yes"):
        result.pop("tensor_overlap", None)


def _write_vllm(result: Stated, stated: Mapping[str, str]) -> None:
    replicas = _number(stated, "data_parallel_attention", 1.0)
    result["@tensor"] = _text(_number(stated, "tensor_parallel", 1.0) / replicas)
    if replicas > 1.0:
        result["@data"] = _text(replicas)
    if _number(stated, "expert_parallel", 1.0) > 1.0:
        result["@experts"] = "yes"


def _write_sglang(result: Stated, stated: Mapping[str, str]) -> None:
    replicas = _number(stated, "data_parallel_attention", 1.0)
    if replicas > 1.0:
        result |= {"@attention": "yes", "@data": _text(replicas)}
        if "prefill_tokens" in result:
            result["prefill_tokens"] = _text(_number(stated, "prefill_tokens") * replicas)
    if _number(stated, "state_slots") == 1.0:
        result["@prefixes"] = "no"
        result.pop("state_slots")


def _write_trtllm(result: Stated, stated: Mapping[str, str]) -> None:
    if _number(stated, "data_parallel_attention", 1.0) > 1.0:
        result["@attention"] = "yes"
    if "graph_tokens" in stated:
        most = _number(stated, "graph_tokens")
        result["@pieces"] = "yes" if most > 0.0 else "no"
        if most > 0.0:
            sizes = [size for size in _CAPTURED if size < most]
            result["@captured"] = f"[{','.join(_text(size) for size in [*sizes, most])}]"


_WRITE: dict[str, Callable[[Stated, Mapping[str, str]], None]] = {
    "megatron": _write_megatron,
    "torchtitan": lambda result, _: _overlaps(result, "compiled"),
    "vllm": _write_vllm,
    "sglang": _write_sglang,
    "trtllm": _write_trtllm,
}
"""Conversions of columns to quantities of a stack, after what all stacks share."""


def _limited_alone(stack: str, replicas: float) -> float:
    """Replicas of the attention layers that the limit of requests of a stack holds for one by one."""
    return 1.0 if STACKS[stack].request_limit == "all" else replicas


def _running(plan: Stated, settings: Mapping[str, str], stack: str, notes: list[str]) -> None:
    """Load of a plan that states none, and the request limit of an engine.

    Benchmarks send all requests of a run at once unless a rate or a concurrency is given. Without a run the load is the
    request limit.
    """
    loads = {"concurrency", "request_rate", "batch_size"}
    if "run_requests" in plan and not loads & plan.keys():
        plan["concurrency"] = plan["run_requests"]
        notes.append(f"no rate is stated: all {plan['run_requests']} requests are sent at once")
    most = _number(settings, "@running")
    if most >= 1.0:
        limit = _text(most * _limited_alone(stack, _number(plan, "data_parallel_attention", 1.0)))
        plan["max_running_batch"] = limit
        if not loads & plan.keys():
            plan["concurrency"] = limit
            notes.append(f"no load is stated: {limit} requests at once, as many as the engine runs")
    if "concurrency" in plan:
        plan.setdefault("mode", "continuous")
    for name in ("prompt_length", "output_length", "concurrency"):
        if "." in plan.get(name, "") and _number(plan, name) > 0.0:  # mean of a report
            plan[name] = _text(max(float(round(_number(plan, name))), 1.0))


def _megatron(plan: Stated, settings: Mapping[str, str]) -> None:
    machines(plan, settings)
    if settings.get("@adapter") == "lora":
        plan.setdefault("adapter_rank", settings.get("@adapter_rank", "8"))
    if "@num_experts" in settings:  # unless told otherwise experts are split as the other layers are
        plan.setdefault("expert_tensor_parallel", plan.get("tensor_parallel", "1"))
    if "@fp8" in settings:  # a recipe alone switches nothing on
        if plan.get("precision") == "fp16":  # gradients are added up in FP32 beside BF16 alone unless a flag says so
            plan.setdefault("gradient_precision", "bf16")
        plan["precision"] = settings.get("@fp8_recipe", "fp8")
    rollout_batches(plan, settings)
    stage_layers(plan, settings)
    if settings.get("@latent") == "no" and "deepseek" in settings.get("@named", "").casefold():
        plan[UNREAD + "multi_latent_attention"] = "off, in a model that has it"
    layers, chunk = _number(settings, "@num_layers"), _number(settings, "@layers_per_chunk")
    if layers and chunk:
        chunks = layers / (_number(plan, "pipeline_parallel", 1.0) * chunk)
        if chunks >= 1.0 and chunks % 1.0 == 0.0:
            plan["virtual_pipeline"] = _text(chunks)
    pieces = _pieces(settings.get("@layout", ""))
    if pieces:
        chunks = pieces / _number(plan, "pipeline_parallel", 1.0)
        if chunks > 1.0 and chunks % 1.0 == 0.0:
            plan["virtual_pipeline"] = _text(chunks)
    if _number(plan, "virtual_pipeline", 1.0) > 1.0:
        plan.setdefault("pipeline_schedule", "interleaved")
    _recomputation(plan, settings)
    if _number(settings, "@optimizer_instances", 1.0) > 1.0 and "num_accelerators" in plan:
        replicas = _number(plan, "num_accelerators") / ranks_of(plan)
        plan["zero_group_size"] = _text(replicas / _number(settings, "@optimizer_instances"))


def _pieces(layout: str) -> float:
    """Chunks of all stages of a layout of layers; 0 without one.

    >>> _pieces("Ettt|(tt|)*29,m|L"), _pieces("")
    (32.0, 0.0)
    """
    text = layout.strip("'\"")[:1000]
    repeated = re.sub(r"\(([^()]*)\)\*(\d{1,3})", lambda result: result[1] * int(result[2]), text)
    return float(repeated.count("|") + 1) if text else 0.0


def _recomputation(plan: Stated, settings: Mapping[str, str]) -> None:
    if plan.get("recompute") == "selective" and "@recompute_modules" in settings:
        words = re.split(r"[\s,\[\]\"']+", settings["@recompute_modules"])
        known = [RECOMPUTED[word] for word in words if word in RECOMPUTED]
        plan["recompute_modules"] = " ".join(dict.fromkeys(known)) or "core_attention"
    layers = _number(settings, "@recompute_num_layers", 1.0)
    if plan.get("recompute") == "full":
        if settings.get("@recompute_method") == "block" and "@recompute_num_layers" in settings:
            plan["recompute"] = "full" if layers else "none"  # a number of layers of each chunk of a stage
            plan |= {"recompute_layers": _text(layers * _number(plan, "virtual_pipeline", 1.0))} if layers else {}
        elif layers > 1.0:
            plan["recompute_group"] = _text(layers)


def _torchtitan(plan: Stated, settings: Mapping[str, str]) -> None:
    machines(plan, settings)
    local = _number(settings, "@local_batch")
    pipeline = _number(plan, "pipeline_parallel", 1.0)
    if local:
        micro = _number(settings, "@pipeline_batch", 1.0) if pipeline > 1.0 else local
        plan["micro_batch_size"] = _text(micro)
    if "float8" in settings.get("@converters", "") and not plan.get("precision", "").startswith("fp8"):
        plan["precision"] = "fp8-current"
    if "mx" in settings.get("@converters", "").replace("[", " ").split():
        plan["precision"] = "mxfp8"
    replicas, shards = _number(settings, "@replicas", 1.0), _number(settings, "@shards", -1.0)
    if replicas > 1.0:
        if shards == 1.0:
            plan["zero_stage"] = "0"
        elif shards > 1.0:
            plan["zero_group_size"] = _text(shards)
    if "global_batch_size" in plan and _number(plan, "global_batch_size") <= 0.0:
        plan.pop("global_batch_size")
    if "global_batch_size" not in plan and local and "num_accelerators" in plan:
        plan["global_batch_size"] = _text(local * _number(plan, "num_accelerators") / ranks_of(plan))


def _stages_per_rank(plan: Stated, settings: Mapping[str, str], models: Table | None, stack: str) -> None:
    """Stages of a rank from the layers of a stage; 2 if none are stated.

    torchtitan 0.2 distributed/pipeline_parallel.py pipeline_llm counts embedding and head as a layer each; NeMo
    Automodel pipelining/functional.py calculate_virtual_stages counts layers alone, and rounds to whole ranks.
    """
    pipeline, each = _number(plan, "pipeline_parallel", 1.0), _number(settings, "@layers_per_stage")
    if pipeline <= 1.0 or plan.get("pipeline_schedule") != "interleaved" or "virtual_pipeline" in plan:
        return
    row = row_of(models, plan.get("model", ""))
    ends = 2.0 if stack == "torchtitan" else 0.0
    layers = float(models.number("num_layers")[row]) + ends if models is not None and row >= 0 else 0.0
    stages = -(-layers // each) / pipeline if each else 2.0
    stages = {"down": stages // 1.0, "up": -(-stages // 1.0)}.get(settings.get("@rounds_stages", ""), stages)
    if stages > 1.0 and stages % 1.0 == 0.0:
        plan["virtual_pipeline"] = _text(stages)


def _any_engine(plan: Stated, settings: Mapping[str, str]) -> None:
    """An engine whose tensor parallelism is over all ranks of a pipeline stage."""
    tensor = _number(settings, "@tensor", 1.0)
    if "@tensor" in settings:
        plan["tensor_parallel"] = _text(tensor)
    _captured(plan, settings)
    _engine(plan, tensor)


def _vllm(plan: Stated, settings: Mapping[str, str]) -> None:
    tensor, data = _number(settings, "@tensor", 1.0), _number(settings, "@data", 1.0)
    ranks = tensor * data
    if settings.get("@experts") == "yes":
        plan["tensor_parallel"], plan["expert_parallel"] = _text(ranks), _text(ranks)
        if data > 1.0:
            plan["data_parallel_attention"] = _text(data)
    elif "@tensor" in settings:
        plan["tensor_parallel"] = _text(tensor)
    _captured(plan, settings)
    _engine(plan, ranks)


def _sglang(plan: Stated, settings: Mapping[str, str]) -> None:
    tensor, data = _number(settings, "@tensor", 1.0), _number(settings, "@data", 1.0)
    shared = settings.get("@attention") == "yes"
    if "@tensor" in settings:
        plan["tensor_parallel"] = _text(tensor)
    if shared and data > 1.0:
        plan["data_parallel_attention"] = _text(data)
        if "prefill_tokens" in plan:  # the chunk of all of them together
            plan["prefill_tokens"] = _text(_number(plan, "prefill_tokens") // data)
    if settings.get("@experts") == "yes":  # DeepEP and the engine's first expert parallelism cover all ranks
        plan["expert_parallel"] = _text(tensor)
    drafter = settings.get("@drafter", "None").upper()
    if drafter == "NGRAM":
        plan["draft_layers"] = "0"
    if drafter != "NONE" and "draft_tokens" not in plan:
        if drafter == "NGRAM" and "@verified" in settings:
            plan["draft_tokens"] = _text(_number(settings, "@verified") - 1.0)
        else:
            plan[f"{UNREAD}--speculative-algorithm {drafter}"] = "drafts as many tokens as SGLang likes (draft tokens)"
    if settings.get("@prefixes") == "no":  # whatever the strategy of the prefix cache would keep
        plan["state_slots"] = "1"
    _captured(plan, settings)
    _engine(plan, tensor * (1.0 if shared else data))


def _trtllm(plan: Stated, settings: Mapping[str, str]) -> None:
    tensor = _number(settings, "@tensor", 1.0)
    if "@tensor" in settings:
        plan["tensor_parallel"] = _text(tensor)
    if settings.get("@attention") == "yes":
        plan["data_parallel_attention"] = _text(tensor)
    if "@pieces" in settings:
        plan["graph_tokens"] = _text(_largest(settings, _CAPTURED[-1]) if settings["@pieces"] == "yes" else 0.0)
    _engine(plan, tensor)


def _captured(plan: Stated, settings: Mapping[str, str]) -> None:
    """Sizes in a list say no more than the largest one if that is not given by itself."""
    if "@captured" in settings and plan.get("graphs") != "no":
        plan.setdefault("graph_tokens", _text(_largest(settings, 0.0)))


def _largest(settings: Mapping[str, str], default: float) -> float:
    """The largest of the sizes that graphs are captured for."""
    sizes = [float(word) for word in re.findall(r"\d{1,9}", settings.get("@captured", ""))]
    return max(sizes, default=default)


def _engine(plan: Stated, ranks: float) -> None:
    whole = ranks * _number(plan, "pipeline_parallel", 1.0) * _number(plan, "context_parallel", 1.0)
    plan.setdefault("num_accelerators", _text(whole))
    for name in ("prefill_tokens", "max_context", "polling_steps", "run_requests", "concurrency"):
        if plan.get(name) == "auto" or _number(plan, name, 1.0) < 1.0:  # -1: as many as there are
            plan.pop(name, None)
    if plan.get("request_rate", "").casefold() == "inf":
        plan.pop("request_rate")
    if "concurrency" in plan or "request_rate" in plan:
        plan.setdefault("mode", "continuous")


def _bridge(plan: Stated, settings: Mapping[str, str]) -> None:
    _megatron(plan, settings)
    CONFIG_RULES["bridge"](plan, settings)


_READ: dict[str, Callable[[Stated, Mapping[str, str]], None]] = {
    **CONFIG_RULES,
    "bridge": _bridge,
    "megatron": _megatron,
    "nemo": _megatron,
    "torchtitan": _torchtitan,
    "vllm": _vllm,
    "sglang": _sglang,
    "trtllm": _trtllm,
}
_READ_ALIKE: dict[str, Callable[[Stated, Mapping[str, str]], None]] = {"training": machines, "inference": _any_engine}
"""Conversions of settings of a stack to columns; of stacks without rules of their own by the kind of their plans."""


def _model(
    plan: Mapping[str, str], settings: Mapping[str, str], models: Table | None, stack: str, notes: list[str]
) -> Stated:
    """The model by its names and by its dimensions, which have to agree; the notes list disagreements."""
    names = [" ".join(settings[name] for name in ("@model", "@flavor") if settings.get(name))]
    if "." not in settings.get("@family", "."):  # -m of Python names a module
        names.append(" ".join(settings[name] for name in ("@family", "@size") if settings.get(name)))
    if settings.get("@config"):
        names.append(settings["@config"].rpartition("/")[2].partition(".")[0].replace("_", " ", 1))
    names = [name for name in names if name and "$" not in name and not name.endswith("()")]
    if "model" in plan or models is None:
        if models is not None and (wrong := contradicted(settings, plan["model"], models)):
            notes.append(f"model {plan['model']} is given, but the file states {wrong}")
        return {} if "model" in plan or not names else {"model": names[0]}
    weak = [one for name in ("@named", "@checkpoint") if re.search(r"\d", one := settings.get(name, ""))]
    result = named_model(names, models) or (named_model(weak, models) if not names else "")
    fitting, nearest = described_models(settings, models, stack == "megatron" and "@logged" not in settings)
    if result and (wrong := contradicted(settings, result, models)):
        return {LACKS: f"the file names {(names or weak)[0]}, but states {wrong}"}
    if result:
        return {"model": result}
    if fitting:
        weakly = named_model(weak, models) or meant_model(fitting, settings.get("@mentioned", ""), models)
        if weakly not in fitting:
            notes.append(f"the dimensions are of {', '.join(fitting)}: give the one that is meant with --set model=...")
        return {"model": weakly if weakly in fitting else fitting[0]}
    how = f"add its row with xlperf add model {CONFIG} -o models.csv and --catalog models.csv, or give --set model=..."
    if names or (weak and not nearest):
        named = (names or weak)[0]
        named = named.rstrip("/").rpartition("/")[2] if named[:1] in "/$." else named  # of a folder its last part
        return {LACKS: f"the file names {named}, which the catalog lacks: {how}"}
    return {LACKS: f"no model of the catalog has {nearest}: {how}"} if nearest else {}
