"""Rules for plan columns that several settings of a configuration file decide together.

These stacks leave data parallelism to the number of accelerators and give batches per device or replica: the plan's
global batch follows from both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache

from xlperf.base.resources import stack_rows

Stated = dict[str, str]
_AXES = ("data", "fsdp", "fsdp_transpose", "tensor", "tensor_transpose", "tensor_sequence", "sequence", "context",
         "pipeline", "expert")  # fmt: skip
RECOMPUTED = {"core_attn": "core_attention", "layernorm": "norm", "mla_up_proj": "latent", "mlp": "mlp", "moe": "moe",
            "moe_act": "activation"}  # fmt: skip
"""Modules of selective recomputation by the words of Megatron-Core."""

_SLICE = re.compile(r"(?:tpu-?)?v?(\d[a-z]{0,8})-(\d{1,5}(?:x\d{1,3}){0,2})")

UNREAD = "@"  # prefix of a setting that a rule adds to a plan for a value without counterpart in plans


@cache
def _words(stack: str, setting: str) -> dict[str, tuple[str, str]]:
    """Words of a setting in ``words.csv``: the value that each means, and of recomputation the modules."""
    known = (row for row in stack_rows("words") if (row["stack"], row["setting"]) == (stack, setting))
    return {row["word"]: (row["value"], row["modules"]) for row in known}


def number(told: Mapping[str, str], name: str, default: float = 0.0) -> float:
    """A quantity as a number, the default if it is none."""
    with suppress(ValueError):
        value = float(told.get(name, default))
        return value if math.isfinite(value) else default
    return default


def text(value: float) -> str:
    """A number as a cell has it."""
    return f"{value:.15g}"


def machines(plan: Stated, told: Mapping[str, str], fallback: float = 0.0) -> None:
    """Accelerators of a run, from accelerators per node, or from ``fallback`` if the file gives nodes alone."""
    each = number(told, "@accelerators_per_node", fallback if "@nodes" in told else 0.0)
    if each:
        plan.setdefault("num_accelerators", text(each * number(told, "@nodes", 1.0)))


GPUS_OF_A_NODE = 8.0  # devices that JAX takes for one slice
MOST_ROWS = 1_024  # sequences of a micro-batch at the most
MOST_LIST = 1_000  # characters of a list of layers that are looked at


def rollout_batches(plan: Stated, told: Mapping[str, str]) -> None:
    """Batches by the rollouts of a step, and by the tokens that a rank takes at most: whole sequences, split evenly."""
    rollouts = number(told, "@rollout_prompts") * number(told, "@rollout_samples", 1.0)
    if rollouts and "@rollout_steps" in told:
        plan.setdefault("global_batch_size", text(rollouts / number(told, "@rollout_steps")))
    tokens = number(told, "@token_limit") * number(plan, "context_parallel", 1.0)
    rows = tokens // number(plan, "sequence_length", 4096.0)
    replicas = number(plan, "num_accelerators") / ranks_of(plan)
    own = number(plan, "global_batch_size") / replicas if replicas >= 1.0 else 0.0
    fitting = [size for size in range(1, int(min(rows, own, MOST_ROWS)) + 1) if own % size == 0.0]
    if fitting:
        plan.setdefault("micro_batch_size", text(fitting[-1]))


def ranks_of(plan: Mapping[str, str]) -> float:
    """Accelerators of one replica of the data parallelism."""
    return math.prod(number(plan, f"{name}_parallel", 1.0) for name in ("tensor", "pipeline", "context"))


def stage_layers(plan: Stated, told: Mapping[str, str]) -> None:
    """Layers of the first and the last stage of a list with a number for each stage; others have to be alike."""
    stages = re.findall(r"\d{1,4}", told.get("@stage_layers", "")[:MOST_LIST])
    if not stages:
        return
    inner = set(stages[1:-1]) or {text(sum(map(float, stages)) / len(stages))}
    if len(inner) > 1 or len(stages) != number(plan, "pipeline_parallel", 1.0):
        plan[UNREAD + "num_layer_list"] = told["@stage_layers"]
        return
    ends = {"first_stage_layers": stages[0], "last_stage_layers": stages[-1]}
    plan |= {column: layers for column, layers in ends.items() if layers not in inner}


def _batch(plan: Stated, told: Mapping[str, str]) -> None:
    """Global batch of a micro-batch, the passes that are added up, and the replicas."""
    replicas = number(plan, "num_accelerators") / ranks_of(plan)
    micro = number(plan, "micro_batch_size")
    if "global_batch_size" not in plan and replicas >= 1.0 and micro:
        plan["global_batch_size"] = text(micro * number(told, "@accumulation", 1.0) * replicas)


def _optimizer(plan: Stated, told: Mapping[str, str]) -> None:
    """Optimizers by the name of their class or of the Trainer."""
    name = told.get("@optimizer", "").rpartition(".")[2].casefold().replace("-", "_")
    if not name or name in ("none", "null"):
        return
    if not re.search(r"adam(w)?(?!_mini|a)", name) or re.search(r"galore|apollo|1bit|onebit|lomo|ademamix", name):
        if name == "sgd":
            plan["optimizer"] = "sgd"
            return
        plan[UNREAD + "optimizer"] = told["@optimizer"]
        return
    plan["optimizer"] = "adam"
    if re.search(r"8bit|8_bit", name):
        plan["moment_precision"] = "fp8"


def _sixteen(plan: Stated, told: Mapping[str, str]) -> None:
    """Precision of switches for it: FP8 over BF16 over FP16 over TF32."""
    order = (("@fp8", told.get("@fp8_recipe", "fp8-current")), ("@bf16", "bf16"), ("@fp16", "fp16"), ("@tf32", "tf32"))
    on = [precision for name, precision in order if told.get(name) == "yes"]
    plan["precision"] = on[0] if on else "fp32"


def _adapter(plan: Stated, told: Mapping[str, str]) -> None:
    """LoRA: rank and adapted projections."""
    kind = told.get("@tuning", "full").casefold()
    if kind in ("full", "none", "null", ""):
        return
    quantized = re.search(r"(?i)awq|gptq|aqlm|bnb|(?<![a-z])([248]-?bit|int[48])", told.get("@model", ""))
    if kind != "lora" or quantized:
        plan[UNREAD + "adapter"] = kind if kind != "lora" else f"LoRA of quantized weights: {told['@model']}"
    plan["adapter_rank"] = text(number(told, "@rank", 8.0))
    targets = set(re.findall(r"[a-z]\w+", told.get("@targets", "").casefold()))
    if targets and targets <= {"q_proj", "k_proj", "v_proj", "qkv_proj", "query_key_value", "c_attn"}:
        plan["adapter_modules"] = "qkv"


def _deepspeed_by_name(plan: Stated, told: Mapping[str, str]) -> None:
    """ZeRO of a DeepSpeed configuration that a file refers to, by the names that such files have."""
    name = told.get("@deepspeed", "").rpartition("/")[2].casefold()
    if not name:
        return
    stage = re.search(r"(?:z|zero|stage)[_-]?([0-3])(?!\d)", name)
    if stage is None or re.search(r"fp8|alst|autotp|partial|param", name):
        plan[UNREAD + "deepspeed"] = told["@deepspeed"]
    if stage is None:
        return
    plan["zero_stage"] = stage.group(1)
    if "offload" in name:
        if stage.group(1) == "3" and not re.search(r"optim", name):
            plan[UNREAD + "deepspeed"] = f"{told['@deepspeed']}: weights are offloaded as well"
        plan["offload_optimizer"] = "1"


def _fsdp_words(plan: Stated, told: Mapping[str, str]) -> None:
    """ZeRO of the words that the Trainer of Transformers has for FSDP."""
    words = set(re.split(r"[\s,\[\]\"']+", told.get("@fsdp", "").casefold())) - {"", "null", "none", "false"}
    words |= {told["@sharding"].casefold()} if "@sharding" in told else set()
    words |= {"full_shard"} if "@fsdp_config" in told or "@fsdp_offload" in told else set()
    if not words:
        return
    plan["zero_stage"] = "2" if "shard_grad_op" in words else "0" if "no_shard" in words else "3"
    if "offload" in words or told.get("@fsdp_offload") == "yes":
        plan[UNREAD + "fsdp"] = "offload of parameters"
    if words & {"hybrid_shard", "hybrid_shard_zero2"}:
        plan["zero_stage"] = "2" if "hybrid_shard_zero2" in words else "3"
        plan[UNREAD + "fsdp"] = "hybrid_shard"


def _nanotron(plan: Stated, told: Mapping[str, str]) -> None:
    if "@data" in told:
        plan.setdefault("num_accelerators", text(number(told, "@data") * ranks_of(plan)))
    if told.get("@moe_recompute") == "yes" and plan.get("recompute") != "full":
        plan |= {"recompute": "selective", "recompute_modules": "moe"}
    _batch(plan, told)


def slice_rule(plan: Stated, told: Mapping[str, str]) -> None:
    """TPU and chips of a slice by its name: a shape counts chips, a number cores."""
    match = _SLICE.fullmatch(told.get("@slice", "").casefold())
    known = _words("maxtext", "@slice")
    if match is not None and match[1] in known:
        accelerator, cores = known[match[1]]
        sizes = [float(size) for size in match[2].split("x")]
        chips = math.prod(sizes) / (float(cores) if len(sizes) == 1 else 1.0)
        plan.setdefault("accelerator", accelerator)
        plan.setdefault("num_accelerators", text(chips * number(told, "@slices", 1.0)))


def _fill_axes(plan: Stated, told: Mapping[str, str], degree: dict[str, float], devices: float) -> None:
    """Give the axis of -1 inside a slice, or a node of GPUs, the devices that the other axes leave there.

    Axes of replicas and shards (data, fsdp) take the remainder elsewhere, by the number of accelerators.
    """
    inside = number(plan, "num_accelerators") * devices / number(told, "@slices", 1.0)
    if inside and "tpu" not in plan.get("accelerator", "").casefold():
        inside = min(inside, GPUS_OF_A_NODE)
    for axis in (one for one in _AXES if one not in ("data", "fsdp", "fsdp_transpose")):
        if number(told, f"@dcn_{axis}") < 0.0:
            plan[f"{UNREAD}dcn_{axis}_parallelism"] = "-1"
        if number(told, f"@ici_{axis}") < 0.0:
            others = math.prod(max(number(told, f"@ici_{one}", 1.0), 1.0) for one in _AXES if one != axis)
            if inside % others:
                plan[f"{UNREAD}ici_{axis}_parallelism"] = f"-1, beside degrees of {others:g} of {inside:g} devices"
            degree[axis] *= max(inside // others, 1.0)


_PROJECTIONS = ("query_proj", "key_proj", "value_proj", "qkv_proj")


def _kept(plan: Stated, told: Mapping[str, str]) -> None:
    """Recomputation by a policy of MaxText; ``custom`` names tensors that stay, on the device or the host.

    The down-projection of a feed-forward layer is recomputed for nobody: its output is not needed again.
    """
    policy, known = told.get("@remat", "full").casefold(), _words("maxtext", "@remat")
    tensors = {name.removeprefix("@keeps_"): place.casefold() for name, place in told.items() if "@keeps_" in name}
    kept = {name: place for name, place in tensors.items() if place != "remat" and name != "mlpwo"}
    entry, inner = (
        kept.pop("decoder_layer_input", "device"),
        {name.removesuffix("_0").removesuffix("_1") for name in kept},
    )
    projected = {"qkv_proj"} <= inner or set(_PROJECTIONS[:3]) <= inner
    if policy != "custom":
        if policy not in known:
            plan[UNREAD + "remat_policy"] = policy
        plan["recompute"], modules = known.get(policy, known["full"])
    elif len({entry, *kept.values()}) > 1 or projected != bool(inner & {*_PROJECTIONS, "context", "out_proj", "mlpwi"}):
        plan[UNREAD + "remat_policy"] = "custom"
        return
    else:
        names = {"context": "core_attention", "out_proj": "attention_output", "mlpwi": "mlp"}
        lost = [module for name, module in names.items() if name not in inner]
        plan["recompute"], modules = ("selective", " ".join([*lost, "norm", "activation"])) if inner else ("full", "")
        plan |= {"offload_activations": "1"} if entry == "offload" else {}
    plan |= {"recompute_modules": modules} if modules else {}


def _maxtext(plan: Stated, told: Mapping[str, str]) -> None:
    slice_rule(plan, told)
    degree, free = dict[str, float](), False
    for axis in _AXES:
        stated = [number(told, f"@{net}_{axis}", 1.0) for net in ("ici", "dcn")]
        free |= any(value < 0.0 for value in stated)
        degree[axis] = math.prod(value for value in stated if value > 0.0)
    devices = 2.0 if re.search(r"7x|ironwood", plan.get("accelerator", "").casefold()) else 1.0  # of JAX, a chip
    _fill_axes(plan, told, degree, devices)
    whole = math.prod(degree.values())
    if whole > 1.0 and devices > 1.0:
        halved = next((axis for axis in ("fsdp", "fsdp_transpose", "data") if degree[axis] % devices == 0.0), "")
        if halved:
            degree[halved], whole = degree[halved] / devices, whole / devices
        elif not free:
            plan[UNREAD + "parallelism"] = "degrees in devices of JAX, two of which are a chip"
    if "@ici_fsdp" not in told and "num_accelerators" not in plan:
        free = True  # the default of the axis is all that is left
    if not free:
        plan.setdefault("num_accelerators", text(whole))
    plan["tensor_parallel"] = text(degree["tensor"] * degree["tensor_transpose"] * degree["tensor_sequence"])
    plan["context_parallel"] = text(degree["context"] * degree["sequence"])
    plan["pipeline_parallel"] = text(degree["pipeline"])
    plan["expert_parallel"] = text(degree["expert"])
    shards, accelerators = degree["fsdp"] * degree["fsdp_transpose"], number(plan, "num_accelerators", whole)
    auto = [f"@{net}_fsdp" for net in ("ici", "dcn") if number(told, f"@{net}_fsdp") < 0.0]
    if (auto or "@ici_fsdp" not in told) and accelerators % whole == 0.0:
        shards *= accelerators / whole
    replicas = accelerators / ranks_of(plan)
    if shards > 1.0:
        plan["zero_stage"] = "3"
        if shards * degree["expert"] < replicas:
            plan["zero_group_size"] = text(shards * degree["expert"])
    else:
        plan["zero_stage"] = "1" if told.get("@zero_one") == "yes" else "0"
    batch = number(told, "@device_batch", 12.0) * ranks_of(plan)  # of one replica
    batch *= devices
    stages = degree["pipeline"]
    passes = number(told, "@microbatches", stages) if stages > 1.0 else 1.0
    plan["micro_batch_size"] = text(batch / (passes if passes > 0.0 else stages))
    if number(plan, "num_accelerators"):
        plan["global_batch_size"] = text(batch * number(told, "@accumulation", 1.0) * replicas)
    _kept(plan, told)
    narrow, known = told.get("@quantization", "").casefold(), _words("maxtext", "@quantization")
    if narrow and narrow not in known:
        plan[UNREAD + "quantization"] = narrow
    plan["precision"] = known[narrow][0] if narrow in known else told.get("@dtype", "bf16")
    if number(told, "@capacity") > 0.0:
        plan["expert_capacity"] = told["@capacity"]
    if number(told, "@mtp") > 0.0:
        plan["train_mtp"] = "yes"
    if number(told, "@vocab_tiles", 1.0) > 1.0:
        plan["cross_entropy"] = "chunked"
    if number(plan, "virtual_pipeline", 1.0) < 1.0:
        plan.pop("virtual_pipeline")


def _automodel(plan: Stated, told: Mapping[str, str]) -> None:
    machines(plan, told, 8.0)
    for name in [name for name in plan if name.endswith("_parallel") and number(plan, name, 1.0) < 1.0]:
        plan.pop(name)
    strategy = told.get("@strategy", "fsdp2").rpartition(".")[2].casefold()
    if "ddp" in strategy:
        plan["zero_stage"] = "0"
    elif "fsdp" not in strategy:
        plan[UNREAD + "strategy"] = told["@strategy"]
    if plan.get("zero_stage", "3") != "3" or number(plan, "pipeline_parallel", 1.0) > 1.0:
        plan.pop("reshard_after_forward", None)
    pipeline = number(plan, "pipeline_parallel", 1.0)
    if number(told, "@data") >= 1.0:
        plan.setdefault("num_accelerators", text(number(told, "@data") * ranks_of(plan)))
    replicas = number(plan, "num_accelerators") / ranks_of(plan)
    copies = number(told, "@replicas", 1.0)
    if copies > 1.0 and replicas > copies:
        plan["zero_group_size"] = text(replicas / copies)
    elif copies > 1.0:
        plan["zero_stage"] = "0"
    local = number(told, "@local_batch", 1.0)
    plan["micro_batch_size"] = text(number(told, "@pipeline_batch", 1.0) if pipeline > 1.0 else local)
    schedule = told.get("@schedule", "").casefold()
    if pipeline > 1.0 and schedule:
        known = _words("automodel", "@schedule")
        plan |= {"pipeline_schedule": known[schedule][0]} if schedule in known else {f"{UNREAD}pp_schedule": schedule}
    lengths = [length for length in (number(told, "@packed"), number(told, "@sequence")) if length >= 1.0]
    plan |= {"sequence_length": text(lengths[0])} if lengths else {}
    if told.get("@offload", "none").casefold() not in ("none", "null", "false"):
        plan[UNREAD + "offload_policy"] = told["@offload"]
    if told.get("@fp8") == "yes":
        plan["precision"] = told.get("@fp8_recipe", "fp8-current")
    elif "@te_fp8" in told:
        plan["precision"] = told["@te_fp8"]
    if "linear_ce" in told.get("@loss", "").casefold() or "linearcrossentropy" in told.get("@loss", "").casefold():
        plan["cross_entropy"] = "chunked"
    _optimizer(plan, told)
    _batch(plan, {**told, "@accumulation": told.get("@accumulation", "1")})


def _of_trainer(plan: Stated, told: Mapping[str, str]) -> None:
    """Settings of the Trainer of Transformers."""
    machines(plan, told)
    _sixteen(plan, told)
    _optimizer(plan, told)
    _adapter(plan, told)
    _fsdp_words(plan, told)
    _deepspeed_by_name(plan, told)


def _llama_factory(plan: Stated, told: Mapping[str, str]) -> None:
    _of_trainer(plan, told)
    if told.get("@pure") == "yes":
        plan |= {"precision": "bf16", "master_weights": "none"}
    if told.get("@predicts") == "yes" and told.get("@trains") != "yes":
        plan[UNREAD + "do_predict"] = "it predicts and does not train"
    elif "@tokenized" in told and "micro_batch_size" not in plan:
        plan[UNREAD + "tokenized_path"] = "it states no batch: it prepares data and does not train"
    elif told.get("@trains") == "no":
        plan[UNREAD + "do_train"] = "false: it does not train"
    plan.setdefault("micro_batch_size", "8")  # of the Trainer
    _batch(plan, told)


def _axolotl(plan: Stated, told: Mapping[str, str]) -> None:
    _of_trainer(plan, told if told.get("@linear") != "yes" else {**told, "@targets": ""})
    if told.get("@checkpoints") == "offload":
        plan |= {"recompute": "full", "offload_activations": "1"}
    shards, copies = number(told, "@shards"), number(told, "@replicas", 1.0)
    experts = number(plan, "expert_parallel", 1.0)  # ranks of their own, beside those that shard
    if shards > 1.0:
        plan["zero_stage"] = "3"
        plan |= {"zero_group_size": text(shards)} if copies > 1.0 else {}
        plan.setdefault("num_accelerators", text(shards * copies * experts * ranks_of(plan)))
    if plan.get("zero_stage") != "3":
        plan.pop("reshard_after_forward", None)
    _batch(plan, told)


def _deepspeed(plan: Stated, told: Mapping[str, str]) -> None:
    machines(plan, told)
    _sixteen(plan, told)
    _optimizer(plan, told)
    sixteen = {told.get("@bf16"), told.get("@fp16")}
    for name in [name for name, value in plan.items() if value == "auto"]:
        plan.pop(name)  # the Trainer fills it in
    if "auto" in sixteen and "yes" not in sixteen:
        plan.pop("precision")
    place = told.get("@offload", "none")
    if place != "none":
        plan["offload_optimizer"] = text(number(told, "@ratio", 1.0))
        plan |= {"offload_target": "drive"} if place == "nvme" else {}
    replicas, whole = number(plan, "num_accelerators") / ranks_of(plan), number(plan, "global_batch_size")
    if "micro_batch_size" not in plan and whole and replicas:
        plan["micro_batch_size"] = text(whole / replicas / number(told, "@accumulation", 1.0))
    if number(plan, "zero_group_size", 1.0) < 1.0:
        plan.pop("zero_group_size")
    _batch(plan, told)


def _bridge(plan: Stated, told: Mapping[str, str]) -> None:
    machines(plan, told)
    mixed = told.get("@mixed", "").casefold()
    precision = next((value for word, (value, _) in _words("bridge", "@mixed").items() if word in mixed), "")
    plan |= {"precision": precision} if precision else {}
    if number(plan, "virtual_pipeline", 1.0) > 1.0:
        plan.setdefault("pipeline_schedule", "interleaved")
    elif number(plan, "virtual_pipeline", 1.0) < 1.0:
        plan.pop("virtual_pipeline")
    if "full_iteration" in told.get("@graph_scope", "") and plan.get("graphs") != "none":
        plan["graphs"] = "step"
    named = [one for key in ("@modules", "@recompute_modules") for one in re.findall(r"\w+", told.get(key, ""))]
    modules = [RECOMPUTED[one] for one in named if one in RECOMPUTED]
    if modules and plan.get("recompute", "selective") == "selective":
        plan |= {"recompute": "selective", "recompute_modules": " ".join(dict.fromkeys(modules))}
    layers = number(told, "@recompute_num_layers")
    if layers:
        plan["recompute"] = "full"
        if told.get("@recompute_method") == "uniform":
            plan["recompute_group"] = text(layers)
        else:
            plan["recompute_layers"] = text(layers * number(plan, "virtual_pipeline", 1.0))
    by_name = re.search(r"_(peft|lora|dora)(?:_|$)", told.get("@model", ""))
    task = told.get("@task", by_name[1] if by_name else "")
    if task in ("lora", "peft", "dora"):
        plan.setdefault("adapter_rank", "32")
        plan |= {UNREAD + "peft": task} if task == "dora" else {}
    if told.get("@aware") == "yes":
        plan.setdefault("moment_precision", "bf16")
    if told.get("@offload") == "yes":
        plan.setdefault("offload_optimizer", "1")
    if number(told, "@offload_layers"):
        plan[UNREAD + "activation_offload_layers"] = told["@offload_layers"]
    if number(plan, "zero_stage") == 3.0 and number(plan, "pipeline_parallel", 1.0) > 1.0:
        plan.pop("reshard_after_forward", None)


CONFIG_RULES: dict[str, Callable[[Stated, Mapping[str, str]], None]] = {
    "nanotron": _nanotron,
    "maxtext": _maxtext,
    "automodel": _automodel,
    "llama-factory": _llama_factory,
    "axolotl": _axolotl,
    "deepspeed": _deepspeed,
    "bridge": _bridge,
}
"""Rules of the stacks that are read and not written."""
