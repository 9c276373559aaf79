"""Arguments of a start beside the columns of a plan: shape of the model, repository, sizes of the machine.

:func:`filled` gives a stack the columns that a plan leaves blank and the stack does not, :func:`start_flags` flags that
go with others or describe the model, and :func:`script` the commands that run them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from xlperf.base.resources import rows, stack_rows
from xlperf.interop.config_rules import RECOMPUTED
from xlperf.interop.config_rules import text as _text
from xlperf.interop.launch_models import native_format
from xlperf.interop.launch_rules import checkpoint_format
from xlperf.interop.stack_rules import STACKS

DEFAULT_LENGTH, MICRO_BATCHES = 4096.0, 4.0
"""Tokens of a sequence, and micro-batches per stage, of a plan that leaves them open. [-]"""
PLACEHOLDERS = 2
"""Layers that the embedding and the output projection count as in a layout. [-]"""
_MODULES = {module: word for word, module in RECOMPUTED.items()}
_GATED = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}
_POSITIONS = {"rope": "rope", "learned": "learned_absolute", "alibi": "none", "none": "none"}
OPTIONS = "options.yaml"
DRAFTER = "$DRAFT_MODEL"
"""Variable for the checkpoint that drafts tokens of a model without modules of its own for them."""
PREFILL_TOKENS = 8192.0
"""Tokens of a pass of the prefill if a plan states none. [-]"""


class Shape(NamedTuple):
    """A model as a row of the catalog, and accelerators of a server (NaN: not known)."""

    model: Mapping[str, Any]
    per_server: float

    def number(self, name: str) -> float:
        """A column of the model, NaN if it is blank. [-]"""
        return float(self.model.get(name, math.nan))

    def has(self, name: str) -> bool:
        """Whether a column is above 0."""
        return self.number(name) > 0.0


def _number(stated: Mapping[str, str], name: str, default: float = 1.0) -> float:
    return float(stated.get(name, default))


def filled(stated: Mapping[str, str], shape: Shape, kind: str) -> dict[str, str]:
    """Columns of a plan with the defaults that a start has to state.

    Returns the same and, of training plans, sequence length, micro batch and global batch.
    """
    result = dict(stated)
    if kind != "training":
        return result
    longest = shape.number("max_sequence_length")
    result.setdefault("sequence_length", _text(min(DEFAULT_LENGTH, longest if longest == longest else DEFAULT_LENGTH)))
    result.setdefault("micro_batch_size", "1")
    if "global_batch_size" not in result and "num_accelerators" in result:
        stages = _number(result, "pipeline_parallel")
        each = stages * _number(result, "tensor_parallel") * _number(result, "context_parallel")
        copies = _number(result, "data_parallel", _number(result, "num_accelerators") / each)
        result["global_batch_size"] = _text(copies * _number(result, "micro_batch_size") * MICRO_BATCHES * stages)
    return result


def started_values(stack: str, stated: Mapping[str, str], values: Mapping[str, str], shape: Shape) -> dict[str, str]:
    """Quantities of a stack as a start writes them: without flags that :func:`start_flags` writes or others forbid."""
    result = dict(values)
    if stack == "megatron":
        for name in ("dispatch_nodes", "train_mtp"):
            result.pop(name, None)
        if stated.get("zero_stage") == "0":
            result.pop("zero_stage")
        for name in () if shape.has("num_experts") else ("expert_parallel", "expert_tensor_parallel"):
            result.pop(name, None)
    if stack in ("megatron", "nemo") and uneven(stated, shape):
        result.pop("virtual_pipeline", None)
    model = stated.get("model", "")
    if "@model" in result:
        result["@model"] = _checkpoint(stated)
        if native_format(model) or stated.get("precision", "")[:3] in ("fp4", "int"):
            result.pop("precision", None)  # the checkpoint says it
        if STACKS[stack].command:
            result.pop("@model")
    if stack == "trtllm" and stated.get("kv_precision") in ("bf16", "fp16"):
        result.pop("kv_precision")  # its options have FP8, FP4 and auto
    if stack == "trtllm" and not shape.has("num_mtp_layers"):
        result.pop("draft_tokens", None)
    if stack == "torchtitan" and stated.get("precision") == "fp8-current":
        result["@converters"] = "quantize.linear.float8"
    return result


@cache
def repositories() -> Mapping[str, str]:
    """Repositories of checkpoints by models of the catalog."""
    return {row["model"]: row["repository"] for row in rows("interop/launch_repositories.csv")}


def layout(num_layers: int, chunks: int) -> str:
    """Layers of every chunk in order, as Megatron-Core's layout argument.

    ``num_layers``: of the model [-]. ``chunks``: stages x chunks of each [-]. The embedding and the output projection
    count as a layer each; chunks after the first receive the remainder.

    >>> layout(10, 5)
    'Et|ttt|ttt|tt|tL'
    """
    each, more = divmod(num_layers + PLACEHOLDERS, chunks)
    counts = [each + (0 < place <= more) for place in range(chunks)]
    parts = ["t" * count for count in counts]
    parts[0] = f"E{parts[0][1:]}"
    parts[-1] = f"{parts[-1][:-1]}L"
    return "|".join(parts)


def start_flags(stack: str, stated: Mapping[str, str], shape: Shape) -> Iterator[str]:
    """Flags of a start that no column of a plan has, as they are written."""
    if STACKS[stack].command:
        yield f"{STACKS[stack].command} {_checkpoint(stated)}"
    yield from _STARTS[stack](stated, shape) if stack in _STARTS else ()


def _checkpoint(stated: Mapping[str, str]) -> str:
    """Repository of the checkpoint of a plan's model, else its name."""
    model = stated.get("model", "")
    return repositories().get(model, model)


def _nemo(stated: Mapping[str, str], shape: Shape) -> Iterator[str]:
    """The model, recomputation and machines."""
    names = {"num_layers": "num_layers", "hidden_size": "hidden_size", "ffn_hidden_size": "ffn_hidden_size",
             "num_attention_heads": "num_attention_heads", "num_query_groups": "num_query_groups",
             "head_size": "kv_channels", "num_experts": "num_moe_experts", "top_k": "moe_router_topk",
             "moe_ffn_hidden_size": "moe_ffn_hidden_size"}  # fmt: skip
    latent = ("num_query_groups", "head_size") if shape.model.get("attention_type") == "MLA" else ()
    shown = [name for name in names if shape.has(name) and name not in latent]
    yield from (f"model.config.{names[name]}={_text(shape.number(name))}" for name in shown)
    if uneven(stated, shape):
        pieces = layout(int(shape.number("num_layers")), int(_chunks(stated)))
        yield f"model.config.pipeline_model_parallel_layout='{pieces}'"
    yield from (f"model.config.{name}={value}" for name, value in _recomputed(stated) if " " not in value)
    if "num_accelerators" in stated:
        servers, each = _servers(stated, shape)
        yield from (f"trainer.num_nodes={servers}", f"trainer.devices={each}")


def _drafts(stated: Mapping[str, str]) -> int:
    """Tokens that are drafted for each step."""
    return int(_number(stated, "draft_tokens", 0.0))


def _vllm(stated: Mapping[str, str], shape: Shape) -> Iterator[str]:
    """The model, engines on several servers, and flags for drafting, expert copies and overlap."""
    ranks = _number(stated, "tensor_parallel") * _number(stated, "pipeline_parallel")
    engines = _number(stated, "data_parallel_attention")
    if ranks > shape.per_server and engines > 1.0:
        here = max(shape.per_server * engines // ranks, 1.0)
        yield from ("--data-parallel-backend ray", f"--data-parallel-size-local {_text(here)}")
    elif ranks > shape.per_server:
        yield "--distributed-executor-backend ray"
    if stated.get("two_batch_overlap") == "yes":
        yield "--all2all-backend deepep_low_latency"
    if _number(stated, "redundant_experts", 0.0):
        yield "--enable-eplb"
    if _drafts(stated):
        drafter = "method mtp" if shape.has("num_mtp_layers") else f"model {DRAFTER}"
        yield f"--speculative-config.{drafter}"
    tokens = _number(stated, "prompt_length", 0.0) + _number(stated, "output_length", 0.0)
    if not {"prompt_variation", "output_variation"} & stated.keys():
        yield f"--max-model-len {_text(tokens)}"


def _sglang(stated: Mapping[str, str], shape: Shape) -> Iterator[str]:
    """Servers of an engine, and flags for drafting and overlap."""
    ranks = _number(stated, "tensor_parallel") * _number(stated, "pipeline_parallel")
    if ranks > shape.per_server:
        yield from (f"--nnodes {math.ceil(ranks / shape.per_server)}", "--node-rank $NODE_RANK",
                    "--dist-init-addr $MASTER_ADDR:5000")  # fmt: skip
    if stated.get("two_batch_overlap") == "yes":
        yield "--moe-a2a-backend deepep"
    drafts = _drafts(stated)
    if drafts:
        yield from ("--speculative-algorithm EAGLE", "--speculative-eagle-topk 1",
                    f"--speculative-num-draft-tokens {drafts + 1}")  # fmt: skip
        yield from [] if shape.has("num_mtp_layers") else [f"--speculative-draft-model-path {DRAFTER}"]


def _trtllm(stated: Mapping[str, str], shape: Shape) -> Iterator[str]:
    """Options of drafting and of prompts that are longer than a pass."""
    if _number(stated, "prompt_length", 0.0) > _number(stated, "prefill_tokens", PREFILL_TOKENS):
        yield "enable_chunked_prefill: true"
    drafts = _drafts(stated)
    if drafts and shape.has("num_mtp_layers"):
        yield "speculative_config.decoding_type: MTP"
    elif drafts:
        yield from ("speculative_config.decoding_type: Draft_Target", f"speculative_config.max_draft_len: {drafts}",
                    f"speculative_config.speculative_model_dir: {DRAFTER}")  # fmt: skip


def _named(stack: str, model: str) -> str:
    """A stack's own name of a model, "" if it has none."""
    known = (row for row in stack_rows("models") if row["stack"] == stack and row["written"] != "no")
    return next((row["name"] for row in known if row["model"] == model), "")


def _torchtitan(stated: Mapping[str, str], shape: Shape) -> Iterator[str]:
    """The model, batches of a rank, stages of a rank, and replicas without shards."""
    name, _, flavor = _named("torchtitan", stated.get("model", "")).partition(" ")
    yield from (f"--model.name {name or '$MODEL_NAME'}", f"--model.flavor {flavor or '$MODEL_FLAVOR'}")
    micro, stages = _number(stated, "micro_batch_size"), _number(stated, "pipeline_parallel")
    ranks = stages * _number(stated, "tensor_parallel") * _number(stated, "context_parallel")
    copies = _number(stated, "num_accelerators") / ranks
    local = _number(stated, "global_batch_size") / copies if stages > 1.0 else micro
    yield f"--training.local_batch_size {_text(local)}"
    if stages > 1.0:
        yield f"--parallelism.pipeline_parallel_microbatch_size {_text(micro)}"
    if _number(stated, "virtual_pipeline") > 1.0:
        pieces = math.ceil((shape.number("num_layers") + PLACEHOLDERS) / _chunks(stated))
        yield f"--parallelism.pipeline_parallel_layers_per_stage {pieces}"
        if "pipeline_schedule" not in stated:
            yield "--parallelism.pipeline_parallel_schedule Interleaved1F1B"
    group = _number(stated, "zero_group_size", copies) if stated.get("zero_stage") != "0" else 1.0
    if group < copies:
        yield from (f"--parallelism.data_parallel_replicate_degree {_text(copies / group)}",
                    f"--parallelism.data_parallel_shard_degree {_text(group)}")  # fmt: skip


def _megatron(stated: Mapping[str, str], shape: Shape) -> Iterator[str]:
    yield from _megatron_shape(stated, shape)
    yield from _megatron_company(stated, shape)


def _megatron_shape(stated: Mapping[str, str], shape: Shape) -> Iterator[str]:
    """The model in Megatron-LM's arguments."""
    model, number = shape.model, shape.number
    for name in ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads"):
        yield f"--{name.replace('_', '-')} {_text(number(name))}"
    latent = model.get("attention_type") == "MLA"
    groups = number("num_query_groups")
    if not latent and groups == groups and groups < number("num_attention_heads"):
        yield from ("--group-query-attention", f"--num-query-groups {_text(groups)}")
    if not latent and shape.has("head_size"):
        yield f"--kv-channels {_text(number('head_size'))}"
    if latent:
        yield "--multi-latent-attention"
        for name, flag in (("q_lora_rank", "q-lora-rank"), ("kv_lora_rank", "kv-lora-rank"),
                           ("qk_nope_head_size", "qk-head-dim"), ("qk_rope_head_size", "qk-pos-emb-head-dim"),
                           ("v_head_size", "v-head-dim")):  # fmt: skip
            yield from [f"--{flag} {_text(number(name))}"] if shape.has(name) else []
    longest = number("max_sequence_length")
    length = _number(stated, "sequence_length", DEFAULT_LENGTH)
    yield f"--max-position-embeddings {_text(max(length, longest) if longest == longest else length)}"
    yield f"--position-embedding-type {_POSITIONS[str(model.get('position_embedding') or 'rope')]}"
    yield f"--normalization {_GATED[str(model.get('normalization') or 'rmsnorm')]}"
    yield from ["--swiglu"] if shape.has("gated_mlp") else []
    yield from ["--qk-layernorm"] if shape.has("query_key_norm") or latent else []
    bias = str(model.get("linear_bias") or "none")
    yield from {"none": ["--disable-bias-linear"], "qkv": ["--disable-bias-linear", "--add-qkv-bias"]}.get(bias, [])
    yield from [] if shape.has("tied_embeddings") else ["--untie-embeddings-and-output-weights"]
    yield from [] if shape.has("dropout") else ["--attention-dropout 0", "--hidden-dropout 0"]
    if shape.has("num_experts"):
        yield f"--num-experts {_text(number('num_experts'))}"
        yield f"--moe-router-topk {_text(number('top_k'))}"
        width = "moe_ffn_hidden_size" if shape.has("moe_ffn_hidden_size") else "ffn_hidden_size"
        yield f"--moe-ffn-hidden-size {_text(number(width))}"
        if shape.has("num_shared_experts"):
            shared = number("moe_ffn_hidden_size") * number("num_shared_experts")
            yield f"--moe-shared-expert-intermediate-size {_text(shared)}"
        dense, step = number("first_dense_layers"), number("moe_layer_step")
        if dense > 0.0:
            yield f"--moe-layer-freq '([0]*{_text(dense)}+[1]*{_text(number('num_layers') - dense)})'"
        elif step > 1.0:
            yield f"--moe-layer-freq {_text(step)}"
        if "expert_tensor_parallel" not in stated and _number(stated, "tensor_parallel") > 1.0:
            yield "--expert-tensor-parallel-size 1"  # else as many as tensor parallel
        if stated.get("precision", "bf16") not in ("fp16", "fp32", "tf32"):
            yield "--moe-grouped-gemm"
        yield from ["--moe-router-pre-softmax"] if number("top_k") == 1.0 else []
    yield from ("--tokenizer-type NullTokenizer", f"--vocab-size {_text(number('vocab_size'))}", "--mock-data",
                "--train-iters 50", "--lr 1e-4")  # fmt: skip


def _megatron_company(stated: Mapping[str, str], shape: Shape) -> Iterator[str]:
    """Flags that go with others: a layout for layers that do not divide, and the needs of recomputation and
    sharding.
    """
    layers = int(shape.number("num_layers"))
    if uneven(stated, shape):
        yield f"--pipeline-model-parallel-layout '{layout(layers, int(_chunks(stated)))}'"
    yield from (f"--{name.replace('_', '-')} {value}" for name, value in _recomputed(stated))
    if _number(stated, "zero_stage") > 1.0:
        yield from ("--use-megatron-fsdp", "--use-distributed-optimizer", "--ckpt-format fsdp_dtensor")
    if stated.get("data_overlap") != "no":
        yield from (
            *([] if "data_overlap" in stated else ["--overlap-grad-reduce"]),
            *(["--overlap-param-gather"] if _number(stated, "zero_stage") >= 1.0 else []),
        )
    offloaded = _number(stated, "offload_optimizer", 0.0)
    if 0.0 < offloaded < 1.0:
        yield "--optimizer-cpu-offload"
    narrow = stated.get("moment_precision", "fp32")
    if offloaded > 0.0 or narrow != "fp32":
        yield "--use-precision-aware-optimizer"
    if narrow != "fp32":
        yield f"--exp-avg-sq-dtype {narrow}"
    if stated.get("precision") == "fp4":
        yield "--bf16"
    if stated.get("token_dispatch") == "once" or (
        "token_dispatch" not in stated and _number(stated, "expert_parallel") > 1.0
    ):
        yield from [] if "token_dispatch" in stated else ["--moe-token-dispatcher-type flex"]
        yield from ("--moe-enable-deepep", "--moe-router-dtype fp32")
    if stated.get("graphs", "none") != "none":
        yield "--te-rng-tracker"
    if stated.get("graphs") == "step":
        yield from ("--cuda-graph-impl local", "--no-check-for-nan-in-loss-and-grad")
    if "num_mtp_layers" in shape.model and stated.get("train_mtp") == "yes":
        yield f"--mtp-num-layers {_text(shape.number('num_mtp_layers'))}"


def _recomputed(stated: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Arguments of recomputation beside its granularity."""
    if stated.get("recompute") == "full":
        block, group = stated.get("recompute_layers"), stated.get("recompute_group", "1")
        yield "recompute_method", "block" if block else "uniform"
        yield "recompute_num_layers", block or group
    modules = stated.get("recompute_modules", "").split()
    if stated.get("recompute") == "selective" and modules:
        yield "recompute_modules", " ".join(_MODULES.get(one, one) for one in modules)


_STARTS: dict[str, Callable[[Mapping[str, str], Shape], Iterator[str]]] = {
    "megatron": _megatron,
    "nemo": _nemo,
    "torchtitan": _torchtitan,
    "vllm": _vllm,
    "sglang": _sglang,
    "trtllm": _trtllm,
}
"""Flags of a start that no column of a plan has, by stack."""


def _chunks(stated: Mapping[str, str]) -> float:
    return _number(stated, "pipeline_parallel") * _number(stated, "virtual_pipeline")


def uneven(stated: Mapping[str, str], shape: Shape) -> bool:
    """Whether stages of a plan need a layout: their layers are not given and do not divide over the stages."""
    given = "first_stage_layers" in stated or "last_stage_layers" in stated
    stages = _number(stated, "pipeline_parallel")
    return stages > 1.0 and not given and shape.number("num_layers") % stages != 0.0


def _servers(stated: Mapping[str, str], shape: Shape) -> tuple[int, int]:
    """Servers of a plan and accelerators of each."""
    count = _number(stated, "num_accelerators")
    each = min(shape.per_server, count) if shape.per_server == shape.per_server else count
    servers = max(math.ceil(count / each), 1)
    return servers, int(count // servers)


def script(stack: str, lines: Sequence[tuple[str, str]], stated: Mapping[str, str], shape: Shape) -> list[str]:
    """Commands that start a plan, an argument per line."""
    own = STACKS[stack]
    bench = [line for version, line in lines if own.client and version.startswith(own.client_version)]
    args = [line for line in (one for _, one in lines) if line not in bench and ": " not in line.split("'")[0]]
    if not own.client:
        results = []
        if stack == "megatron" and "--use-megatron-fsdp" not in args:
            results.append("export CUDA_DEVICE_MAX_CONNECTIONS=1")
        servers, each = _servers(stated, shape)
        named = _named(stack, stated.get("model", ""))
        if own.unnamed and not named:
            results.append(f"# {own.unnamed.format(model=stated.get('model', 'this model'))}")
        machine = f"--nnodes {servers} --nproc_per_node {each}"
        return [*results, *_command(own.server.format(machine=machine, factory=named or "$RECIPE"), args)]
    options = [line for _, line in lines if line not in args and ": " in line.split("'")[0]]
    if options:
        args.append(f"--extra_llm_api_options {OPTIONS}")
    first = [line for line in args if own.command and line.startswith(own.command)]
    rest = [line for line in args if line not in first]
    if stack == "trtllm" and (tasks := _tasks(stated, shape)):
        first, rest = [tasks], [*first, *rest]
    told = [f"cat > {OPTIONS} << EOF", *_nested(options), "EOF"] if options else []
    told += _remarks(stack, stated)
    client = _command(own.client, [f"--model {_checkpoint(stated)}", *bench])
    return [*told, *_command(first[0] if first else own.server, rest), *client]


def _remarks(stack: str, stated: Mapping[str, str]) -> Iterator[str]:
    """Placeholders in the start of a server that the user has to fill in."""
    model, precision, name = stated.get("model", ""), stated.get("precision", "bf16"), _checkpoint(stated)
    if model not in repositories():
        yield f"# {name} is in no repository that is known here: give the path of its checkpoint"
    stored = checkpoint_format(model).get("precision", "bf16")
    online = precision in ("fp8", "fp8-tensor") and stack != "trtllm"  # the engine quantises 16-bit weights itself
    if _width(precision) != _width(stored) and not (online and _width(stored) == "16"):
        yield f"# {name} is stored in {stored}: give a checkpoint in {precision}"


def _width(precision: str) -> str:
    """Format of weights, whatever their scales: 16 bits, FP8, FP4, INT8 or INT4."""
    return "16" if precision in ("bf16", "fp16", "fp32") else precision.partition("-")[0]


def _tasks(stated: Mapping[str, str], shape: Shape) -> str:
    """How TensorRT-LLM is started on several servers: a task of Slurm for each rank; "" on one."""
    ranks = _number(stated, "tensor_parallel") * _number(stated, "pipeline_parallel")
    ranks *= _number(stated, "context_parallel")
    if not ranks > shape.per_server:
        return ""
    servers = math.ceil(ranks / shape.per_server)
    each = math.ceil(ranks / servers)
    return f"srun -N {servers} --ntasks-per-node {each} --mpi=pmix trtllm-llmapi-launch"


def _nested(options: Sequence[str]) -> list[str]:
    """Options with points in their names as YAML has them.

    >>> _nested(["kv_cache_config.dtype: fp8", "enable_attention_dp: true"])
    ['kv_cache_config:', '  dtype: fp8', 'enable_attention_dp: true']
    """
    inside: dict[str, list[str]] = {}
    for line in options:
        head, point, rest = line.partition(".") if "." in line.partition(":")[0] else (line, "", "")
        inside.setdefault(head + (":" if point else ""), []).extend([f"  {rest}"] if point else [])
    return [line for head, lines in inside.items() for line in (head, *lines)]


def _command(first: str, args: Sequence[str]) -> list[str]:
    """A command with its arguments on lines of their own."""
    return [first, *args] if not args else " \\\n  ".join([first, *args]).split("\n")
