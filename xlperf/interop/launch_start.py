"""Arguments of a start beside the columns of a plan: shape of the model, repository, sizes of the machine.

:func:`filled` gives a stack the columns that a plan leaves blank and the stack does not, :func:`start_flags` flags that
go with others or describe the model, and :func:`script` the commands that run them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

from xlperf.base.resources import rows, stack_rows
from xlperf.interop.checkpoints import AUTO, bits_of, variant_of_name
from xlperf.interop.config_rules import RECOMPUTED, number, ranks_of, text
from xlperf.interop.software import STACKS

DEFAULT_LENGTH, MICRO_BATCHES = 4096.0, 4.0
"""Tokens of a sequence, and micro-batches per stage, of a plan that leaves them open. [-]"""
PLACEHOLDERS = 2  # layers that the embedding and the output projection count as in a layout
_MODULES = {module: word for word, module in RECOMPUTED.items()}
OPTIONS = "options.yaml"


class Shape(NamedTuple):
    """A model as a row of the catalog, and accelerators of a server (NaN: not known)."""

    model: Mapping[str, Any]
    per_server: float

    def number(self, name: str) -> float:
        """A column of the model, NaN if it is blank. [-]"""
        return float(self.model.get(name, math.nan))

    @property
    def stored(self) -> str:
        """Precision of the experts or feed-forward layers of the published checkpoint."""
        variant = variant_of_name(str(self.model.get("model", "")))
        by_name = variant.layers if variant else "bf16"
        return str(self.model.get("expert_precision") or self.model.get("mlp_precision") or by_name)

    def has(self, name: str) -> bool:
        """Whether a column is above 0."""
        return self.number(name) > 0.0


def filled(stated: Mapping[str, str], shape: Shape, kind: str) -> dict[str, str]:
    """Columns of a plan; of training also sequence length, micro batch and global batch, which a start has to state."""
    result = dict(stated)
    if kind != "training":
        return result
    longest = shape.number("max_sequence_length")
    result.setdefault("sequence_length", text(min(DEFAULT_LENGTH, longest if longest == longest else DEFAULT_LENGTH)))
    result.setdefault("micro_batch_size", "1")
    if "global_batch_size" not in result and "num_accelerators" in result:
        stages = number(result, "pipeline_parallel", 1.0)
        copies = number(result, "data_parallel", number(result, "num_accelerators", 1.0) / ranks_of(result))
        result["global_batch_size"] = text(copies * number(result, "micro_batch_size", 1.0) * MICRO_BATCHES * stages)
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
    if "@model" in result:
        result["@model"] = _checkpoint(stated)
        if shape.stored != "bf16" or bits_of(stated.get("precision", "bf16")) in ("fp4", "int8", "int4", "auto"):
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


def _checkpoint(stated: Mapping[str, str]) -> str:
    """Repository of the checkpoint of a plan's model, else its name."""
    model = stated.get("model", "")
    return repositories().get(model, model)


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
    """Flags of no column: rows of ``start.csv`` whose conditions on plan, ``model`` and derived values hold."""
    if STACKS[stack].command:
        yield f"{STACKS[stack].command} {_checkpoint(stated)}"
    model = {f"model.{name}": str(v) if isinstance(v, str) else text(float(v)) for name, v in shape.model.items()}
    values = {**_BLANK, **model, **_derived(stack, stated, shape), **stated}
    for row in stack_rows("start"):
        if row["stack"] == stack and all(_holds(part, values) for part in row["when"].split(" and ") if part):
            yield re.sub(r"\{([\w.]+)\}", lambda match: values[match[1]], row["line"])


_BLANK = {
    "model.position_embedding": "rope", "model.normalization": "rmsnorm", "model.linear_bias": "none",
    "model.tied_embeddings": "0", "model.dropout": "0", "model.moe_ffn_hidden_size": "0",
    "model.first_dense_layers": "0", "model.num_mtp_layers": "0", "precision": "bf16", "zero_stage": "1",
    "recompute_group": "1", "offload_optimizer": "0", "moment_precision": "fp32", "graphs": "none",
    "data_parallel_attention": "1", "prefill_tokens": "8192",
}  # fmt: skip
"""Meaning of blank columns of a model or plan in the conditions of a start."""


def _holds(condition: str, values: Mapping[str, str]) -> bool:
    """Whether ``COLUMN SIGN OTHER`` holds; other is a column, a number, a word or ``blank``."""
    name, sign, other = condition.split()
    left, right = values.get(name, ""), "" if other == "blank" else values.get(other, other)
    one, two = (number({"": words}, "", math.nan) for words in (left, right))
    equal = left == right or one == two
    return {"=": equal, "!=": not equal, ">": one > two, "<": one < two, ">=": one >= two}[sign]


def _derived(stack: str, stated: Mapping[str, str], shape: Shape) -> dict[str, str]:
    """Values of a start that follow from several columns; without a value that is not known."""
    of = partial(number, stated, default=1.0)
    layers, longest = shape.number("num_layers"), shape.number("max_sequence_length")
    length, stages, micro = (
        number(stated, "sequence_length", DEFAULT_LENGTH),
        of("pipeline_parallel"),
        of("micro_batch_size"),
    )
    ranks, engines = of("tensor_parallel") * stages, of("data_parallel_attention")
    drafts = number(stated, "draft_tokens") // 1.0
    replicas = of("num_accelerators") / (ranks * of("context_parallel"))
    group = number(stated, "zero_group_size", replicas) if stated.get("zero_stage") != "0" else 1.0
    modules = [_MODULES.get(one, one) for one in stated.get("recompute_modules", "").split()]
    own_name, _, own_flavor = _named(stack, stated.get("model", "")).partition(" ")
    servers, per_node = _servers(stated, shape) if "num_accelerators" in stated else (math.nan, math.nan)
    numbers = {
        "longest": max(length, longest) if longest == longest else length,
        "shared_width": shape.number("moe_ffn_hidden_size") * shape.number("num_shared_experts"),
        "sparse_layers": layers - shape.number("first_dense_layers"),
        "servers": servers,
        "per_node": per_node,
        # training of ranks: batches, layers and replicas without shards
        "local_batch": of("global_batch_size") / replicas if stages > 1.0 else micro,
        "layers_per_stage": math.ceil((layers + PLACEHOLDERS) / _chunks(stated)),
        "recompute_chunk": math.ceil(number(stated, "recompute_layers") / of("virtual_pipeline")),
        "replicas": replicas,
        "shard_group": group,
        "replica_groups": replicas / group,
        # serving: ranks of an engine on its servers, and tokens
        "ranks": ranks,
        "per_server": shape.per_server,
        "nodes": -(-ranks // shape.per_server),
        "local_engines": max(shape.per_server * engines // ranks, 1.0),
        "tokens": number(stated, "prompt_length") + number(stated, "output_length"),
        "drafts": drafts,
        "verified_tokens": drafts + 1.0,
        "num_modules": float(len(modules)),
    }
    return {name: text(value) for name, value in numbers.items() if value == value} | {
        "layout": layout(int(layers), int(_chunks(stated))) if uneven(stated, shape) else "",
        "modules": " ".join(modules),
        "own_name": own_name or "$MODEL_NAME",
        "own_flavor": own_flavor or "$MODEL_FLAVOR",
    }


def _named(stack: str, model: str) -> str:
    """A stack's own name of a model, "" if it has none."""
    known = (row for row in stack_rows("models") if row["stack"] == stack and row["written"] != "no")
    return next((row["name"] for row in known if row["model"] == model), "")


def _chunks(stated: Mapping[str, str]) -> float:
    return number(stated, "pipeline_parallel", 1.0) * number(stated, "virtual_pipeline", 1.0)


def uneven(stated: Mapping[str, str], shape: Shape) -> bool:
    """Whether stages of a plan need a layout: their layers are not given and do not divide over the stages."""
    given = "first_stage_layers" in stated or "last_stage_layers" in stated
    stages = number(stated, "pipeline_parallel", 1.0)
    return stages > 1.0 and not given and shape.number("num_layers") % stages != 0.0


def _servers(stated: Mapping[str, str], shape: Shape) -> tuple[int, int]:
    """Servers of a plan and accelerators of each."""
    count = number(stated, "num_accelerators", 1.0)
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
    told += _remarks(stack, stated, shape)
    client = _command(own.client, [f"--model {_checkpoint(stated)}", *bench])
    return [*told, *_command(first[0] if first else own.server, rest), *client]


def _remarks(stack: str, stated: Mapping[str, str], shape: Shape) -> Iterator[str]:
    """Placeholders in the start of a server that the user has to fill in."""
    model, precision, name = stated.get("model", ""), stated.get("precision", AUTO), _checkpoint(stated)
    if model not in repositories() and "/" not in model:
        yield f"# {name} is in no repository that is known here: give the path of its checkpoint"
    else:
        yield f"# {name}, or your checkpoint of its shape (-Instruct); lengths are the plan's, yours may be longer"
    online = precision in ("fp8", "fp8-tensor") and stack != "trtllm"  # the engine quantises 16-bit weights itself
    stored = shape.stored
    if precision != AUTO and bits_of(precision) != bits_of(stored) and not (online and bits_of(stored) == "16"):
        stored = "bf16" if bits_of(stored) == "16" else bits_of(stored)
        yield f"# {name} is stored in {stored}: give a checkpoint in {precision}"


def _tasks(stated: Mapping[str, str], shape: Shape) -> str:
    """How TensorRT-LLM is started on several servers: a task of Slurm for each rank; "" on one."""
    ranks = ranks_of(stated)
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
