"""Manifests that start serving engines, as the script of a shell.

Containers of Kubernetes, Docker Compose and NVIDIA Dynamo, values of llm-d's chart, recipes of srt-slurm and options of
trtllm-serve disaggregated become the lines that start an engine; the tag of an image states a release. A line
``xlperf-pool NAME COPIES`` says of which pool (``prefill``, ``decode`` or ``both``) the lines after it are, and how
often the manifest starts them.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, NamedTuple

from xlperf.base.resources import rows
from xlperf.interop.config_rules import Stated, number
from xlperf.interop.config_rules import text as written
from xlperf.interop.launch_text import COMMAND, Setting, documents

POOL = "xlperf-pool"
POOLS = ("prefill", "decode")
_OF_POD = re.compile(r"\$\(([A-Za-z_]\w{0,100})\)")  # a variable in the words of Kubernetes
_TOGETHER = "both"
_MOST_IMAGES = 1_000  # words of a text that may name an image, at the most
_DEEPEST = 60  # levels of a manifest that are searched for containers
_HINT = re.compile(r"(?:^|[\s{,-])(?:image|containers?|backend|modelArtifacts|modelSpec|context_servers)\s*:")
_GPU_KEYS = ("gpu.product", "gke-accelerator", "instance-gpu-name", "gpu.nvidia.com/model")
"""Ends of the labels of a node that name its accelerator."""
_TPU_KEYS = (("gke-tpu-accelerator",), ("gke-tpu-topology", "gke-tpu-slice-topology"))
_IMAGE = re.compile(r"(?<![\w/.:-])([\w.-]{1,100}(?::\d{1,5})?(?:/[\w.-]{1,100}){1,6}):([\w.+-]{1,100})")
_IMAGE_RELEASE = re.compile(r"v?\d+(?:\.\d+)+(?:[-.]?(?:post|rc)\d*)?")
_ROLE = re.compile(r"(?<![a-z])(prefill|decode)(?![a-z])")
_LAYERS_OF_STAGES = re.compile(r"\b((?:VLLM|SGLANG)_PP_LAYER_PARTITION)[ ]?[=:][ ]?[\"']?(\d[\d,]{1,200})")
"""Variables of engines that deal layers to stages unevenly."""
_STARTS = {"vllm": "vllm serve", "sglang": "python3 -m sglang.launch_server --model-path", "trtllm": "trtllm-serve"}
_CAPITAL = re.compile(r"([A-Z])")
_QUANTIZED = {"fp8": "fp8", "fp4": "modelopt_fp4", "nvfp4": "modelopt_fp4", "mxfp4": "mxfp4"}
"""Words of a recipe for its precision, as arguments of ``--quantization``."""


def containers_of(text: str) -> tuple[str, dict[str, str]] | None:
    """Script of the engines that a manifest starts, and columns that it states; None for a text that is no manifest.

    >>> containers_of('{image: vllm/vllm-openai, args: [--model, a/b, "--tensor-parallel-size=8"]}')[0]
    'vllm serve --model a/b --tensor-parallel-size=8'
    """
    if not _HINT.search(text):
        return None
    read = documents(text)
    for document in read:
        for reader in (_of_recipe, _of_chart, _of_values, _of_servers):
            found = reader(document) if isinstance(document, dict) else None
            if found is not None:
                return found
    places = list(_places(read))
    files = {str(name): value for place in places for name, value in _files(place.node)}
    started = [(place, lines) for place in places if (lines := _command_of(place.node, files))]
    if not started:
        return None
    nodes = sum(map(_pods, places))
    if nodes:  # each pod of the job starts the same program
        line = started[0][1]
        count = "" if "nnodes" in line else f" --nnodes={nodes:.0f}"
        return f"export PET_NNODES={nodes:.0f}\n" + re.sub(
            r"(\btorchrun|torch\.distributed\.run)(?=\s)", rf"\1{count}", line
        ), {}
    pools = {place.pool for place, _ in started}
    apart = set(POOLS) <= pools
    marked = apart or any(place.copies > 1 for place, _ in started)
    script = [
        (f"{POOL} {place.pool if apart and place.pool else _TOGETHER} {place.copies}\n" if marked else "") + lines
        for place, lines in started
    ]
    labels = [(str(key), value) for place in places for key, value in place.node.items() if isinstance(value, str)]
    named = next((value for key, value in labels if key.endswith(_GPU_KEYS)), "")
    tpu, shape = (next((value for key, value in labels if key.endswith(ends)), "") for ends in _TPU_KEYS)
    if tpu and shape:  # as xpk names a slice
        slices = tpu.replace("-lite-podslice", "litepod").removesuffix("-slice")
        script.insert(0, f"xpk --device-type={shlex.quote(f'{slices}-{shape}')}")
    return "\n".join(script), {"accelerator": named} if named else {}


def _pods(place: _Place) -> float:
    """Pods of a job of Kubeflow's training operator."""
    specs = place.node.get("pytorchReplicaSpecs")
    stated = (
        (one.get("replicas", 1) for one in specs.values() if isinstance(one, dict)) if isinstance(specs, dict) else ()
    )
    return sum(float(count) for count in stated if str(count).isdecimal())


class _Place(NamedTuple):
    """A mapping of a manifest, the pool that the keys and names around it say, and how often it is started."""

    node: Mapping[Any, Any]
    pool: str
    copies: int


def _places(value: Any) -> Iterator[_Place]:
    """All mappings of a manifest, outer ones first; one that aliases repeat comes once."""
    waiting, seen = [(value, "", 1, 0)], set[int]()
    while waiting:
        one, pool, copies, depth = waiting.pop(0)
        if not isinstance(one, dict | list) or id(one) in seen or depth > _DEEPEST:
            continue
        seen.add(id(one))
        if isinstance(one, list):
            waiting += [(inner, pool, copies, depth + 1) for inner in one]
            continue
        metadata = one.get("metadata")
        if isinstance(metadata, dict):
            pool = _role(str(metadata.get("name", ""))) or pool
        stated = str(one.get("replicas", ""))
        if stated.isdigit() and "serviceName" not in one:  # ranks of a set with a name of its own are one copy
            copies = int(stated)
        yield _Place(one, pool, copies)
        waiting += [(inner, _role(str(key)) or pool, copies, depth + 1) for key, inner in one.items()]


def _role(words: str) -> str:
    found = set(_ROLE.findall(words.casefold()[:200]))
    return found.pop() if len(found) == 1 else ""


def _files(node: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
    """Files that a manifest holds as texts of a ConfigMap."""
    data = node.get("data") if node.get("kind") == "ConfigMap" else None
    if isinstance(data, dict):
        yield from ((name, value) for name, value in data.items() if isinstance(value, str))


def _command_of(node: Mapping[Any, Any], files: Mapping[str, str]) -> str:
    """Lines of a shell for one container: its variables and files, then its command; "" for another mapping."""
    image = node.get("image")
    words = [
        *_container_words(node.get("entrypoint")),
        *_container_words(node.get("command")),
        *_container_words(node.get("args")),
    ]
    if not isinstance(image, str) or not words:
        return ""
    script = next((word for word in words if "\n" in word.strip() or len(shlex_words(word)) > 1), "")
    if words[0].rpartition("/")[2] in ("sh", "bash") and script:
        line = script
    else:
        started = next((row["command"] for row in _images() if fnmatchcase(image, row["pattern"])), "")
        entry = [] if not words[0].startswith("-") and "/" not in words[0] else shlex_words(started)
        line = shlex.join([*entry, *words])
    values = dict(_environment(node.get("env", node.get("environment")), files))
    used = {*_OF_POD.findall(line)}
    handed = {name: value for name, value in values.items() if name not in used}
    line = _OF_POD.sub(lambda match: values.get(match[1], match[0]), line)
    held = [f"cat > {name} <<'EOF'\n{text.rstrip()}\nEOF" for name, text in files.items() if name in line]
    return "\n".join([*_exports(handed.items()), *held, line])


def _container_words(value: Any) -> list[str]:
    """Words of a command that is a list or a line."""
    if isinstance(value, str):
        return shlex_words(value) if "\n" not in value.strip() else [value]
    return [str(one) for one in value if not isinstance(one, dict | list)] if isinstance(value, list) else []


def shlex_words(text: str) -> list[str]:
    """Words of a line of a shell; parted at blanks where a quote is not closed."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _environment(stated: Any, files: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Variables of a container: a mapping, a list of NAME=value, or of name and value, which a ConfigMap may have."""
    pairs: list[tuple[Any, Any]] = []
    if isinstance(stated, dict):
        pairs = list(stated.items())
    elif isinstance(stated, list):
        parted = [str(one).partition("=") for one in stated if not isinstance(one, dict)]
        pairs = [(name, value) for name, _, value in parted]
        for one in (one for one in stated if isinstance(one, dict)):
            key = _mapping(_mapping(one.get("valueFrom")).get("configMapKeyRef")).get("key")
            pairs.append((one.get("name"), one.get("value", files.get(str(key)))))
    for name, value in pairs:
        if isinstance(name, str) and name.isidentifier() and isinstance(value, str):
            yield name, value


def _exports(values: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield from (f"export {name}={shlex.quote(value)}" for name, value in values)


def _of_chart(values: Mapping[Any, Any]) -> tuple[str, dict[str, str]] | None:
    """Values of llm-d's chart of model services: a mapping for each pool with its degrees and containers."""
    artifacts = values.get("modelArtifacts")
    if not isinstance(artifacts, dict):
        return None
    model = str(artifacts.get("name") or str(artifacts.get("uri", "")).removeprefix("hf://"))
    lines: dict[str, str] = {}
    for pool in POOLS:
        stated = _mapping(values.get(pool))
        copies = str(stated.get("replicas", "1"))
        if not stated or stated.get("create") == "false" or copies == "0":
            continue
        degrees = _mapping(stated.get("parallelism"))
        tensor, data = (str(degrees.get(name, "1")) for name in ("tensor", "data"))
        exports = [f"export TP_SIZE={tensor} DP_SIZE={data} DP_SIZE_LOCAL={degrees.get('dataLocal', data)}"]
        for one in stated.get("containers") or [{}]:
            container = _mapping(one)
            words = [*_container_words(container.get("command")), *_container_words(container.get("args"))]
            script = next((word for word in words if "\n" in word.strip()), "")
            told = shlex.join(["vllm", "serve", model, "--tensor-parallel-size", tensor, "--data-parallel-size", data])
            own = [
                *exports,
                *_exports(_environment(container.get("env"), {})),
                script or f"{told} {shlex.join(words)}".rstrip(),
            ]
            lines[pool] = "\n".join([f"{POOL} {pool} {copies}", *own])
            break
    if not lines:
        return None
    selectors = [_mapping(_mapping(values.get(pool)).get("nodeSelector")) for pool in reversed(POOLS)]
    named = (str(value) for one in selectors for key, value in one.items() if str(key).endswith(_GPU_KEYS))
    accelerator = next(named, "")
    return _together(lines), {"accelerator": accelerator} if accelerator else {}


def _of_values(values: Mapping[Any, Any]) -> tuple[str, dict[str, str]] | None:
    """Values of the chart vllm-stack: a server for each model, whose options are flags of vLLM in camel case."""
    lines, columns = [], dict[str, str]()
    for spec in _listed(_mapping(values.get("servingEngineSpec")), "modelSpec"):
        options = {**_mapping(spec.get("vllmConfig"))}
        extra = shlex.join(_container_words(options.pop("extraArgs", [])))
        flags = {_CAPITAL.sub(r"-\1", str(name)).lower(): str(value) for name, value in options.items()}
        told = _as_flags(
            _STARTS["vllm"], {name: flags[name] for name in flags if name != "v0"}, str(spec.get("modelURL"))
        )
        image = f"# {spec.get('repository', '')}:{spec.get('tag', '')}"
        lines.append(f"{POOL} {_TOGETHER} {spec.get('replicaCount', '1')}\n{image}\n{told} {extra}".rstrip())
        terms = [one for term in _listed(spec, "nodeSelectorTerms") for one in _listed(term, "matchExpressions")]
        named = (
            str(value)
            for one in terms
            if str(one.get("key", "")).endswith(_GPU_KEYS)
            for value in one.get("values") or []
        )
        columns |= {"accelerator": next(named, "")}
    return ("\n".join(lines), {name: value for name, value in columns.items() if value}) if lines else None


def _listed(stated: Mapping[Any, Any], name: str) -> list[Mapping[Any, Any]]:
    """Mappings of a list in a manifest; none if there is no such list."""
    value = stated.get(name)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _of_recipe(recipe: Mapping[Any, Any]) -> tuple[str, dict[str, str]] | None:
    """A recipe of srt-slurm: settings of an engine for each pool beside the machines and the load of a benchmark."""
    backend = _mapping(recipe.get("backend"))
    settings = {engine: _mapping(backend.get(f"{engine}_config")) for engine in _STARTS}
    engine = next((one for one, stated in settings.items() if stated), "")
    model, machines = _mapping(recipe.get("model")), _mapping(recipe.get("resources"))
    if not engine or not model or not machines:
        return None
    named = str(_mapping(_mapping(recipe.get("identity")).get("model")).get("repo", ""))
    precision = str(model.get("precision", ""))
    lines = {}
    for pool, key, workers in (("prefill", "prefill", "prefill"), ("decode", "decode", "decode"),
                               (_TOGETHER, "aggregated", "agg")):  # fmt: skip
        own = dict(_mapping(settings[engine].get(key)))
        if not own:
            continue
        folder = own.pop("model-path", own.pop("model", ""))  # of the container
        name = named or str(own.get("served-model-name") or model.get("path", folder))
        quantized = _QUANTIZED.get(precision) if "quantization" not in own and engine != "trtllm" else None
        if quantized and precision not in name.casefold():
            own["quantization"] = quantized
        start = _as_file(f"{pool}.yaml", own, name) if engine == "trtllm" else _as_flags(_STARTS[engine], own, name)
        lines[pool] = f"{POOL} {pool} {machines.get(f'{workers}_workers', '1')}\n{start}"
    load = _mapping(recipe.get("benchmark"))
    asked = load.get("concurrencies", "")
    several = [str(one) for one in asked] if isinstance(asked, list) else str(asked).split("x")
    given = {
        "accelerator": str(machines.get("gpu_type", "")).upper(),
        "prompt length": str(load.get("isl", "")),
        "output length": str(load.get("osl", "")),
        "concurrency": several[0] if len(several) == 1 else "",
    }
    return _together(lines), {name: value for name, value in given.items() if value}


def _of_servers(stated: Mapping[Any, Any]) -> tuple[str, dict[str, str]] | None:
    """Options of trtllm-serve disaggregated: shared ones, and of servers that prefill and that decode."""
    kinds = {"prefill": "context_servers", "decode": "generation_servers"}
    own = {pool: _mapping(stated.get(name)) for pool, name in kinds.items()}
    model = str(stated.get("model", ""))
    if not all(own.values()) or not model:
        return None
    shared = {name: value for name, value in stated.items() if name not in ("hostname", "port", *kinds.values())}
    lines = {
        pool: f"{POOL} {pool} {options.get('num_instances', '1')}\n"
        + _as_file(f"{pool}.yaml", {**shared, **options, "num_instances": "", "urls": ""}, model)
        for pool, options in own.items()
    }
    return _together(lines), {}


def _as_flags(start: str, settings: Mapping[Any, Any], model: str) -> str:
    words = [*start.split(), model]
    for name, value in settings.items():
        if value == "false" or value in ("", "null", None):
            continue
        listed = [str(one) for one in value] if isinstance(value, list) else [str(value)] if value != "true" else []
        words += [f"--{name}", *([json.dumps(value)] if isinstance(value, dict) else listed)]
    return shlex.join(words)


def _as_file(file: str, settings: Mapping[Any, Any], model: str) -> str:
    settings = {name: value for name, value in settings.items() if value != ""}
    return f"cat > {file} <<'EOF'\n{json.dumps(settings)}\nEOF\n{shlex.join(['trtllm-serve', model, '--config', file])}"


def _together(lines: Mapping[str, str]) -> str:
    """The script of pools; of a pool alone as of both together."""
    script = "\n".join(lines.values())
    return script if len(lines) > 1 else re.sub(rf"(?m)^{POOL} \S+", f"{POOL} {_TOGETHER}", script)


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, dict) else {}


class Parts(NamedTuple):
    """Commands of a text by pool: to decode or to do all, and to prefill, with the copies of each."""

    main: Sequence[Sequence[Setting]]
    copies: int
    prefill: Sequence[Sequence[Setting]]
    prefill_copies: int


_NAMES_POOL = {
    "--disaggregation-mode": {"prefill": "prefill", "decode": "decode"},
    "--is-prefill-worker": {"": "prefill", "true": "prefill"},
    "--is-decode-worker": {"": "decode", "true": "decode"},
    "--kv-transfer-config.kv_role": {"kv_producer": "prefill", "kv_consumer": "decode"},
}
"""Settings whose arguments say of which pool a server is."""


def parts_of(groups: Sequence[Sequence[Setting]]) -> Parts:
    """Commands of a text by pool; all are of one pool unless some prefill and others decode."""
    pools: dict[str, list[Sequence[Setting]]] = {}
    copies: dict[str, int] = {}
    here, times = "", 1
    for group in groups:
        words = next((one.arguments for one in group if one.name == COMMAND), ())
        if words[:1] == (POOL,):
            here, times = words[1].removeprefix(_TOGETHER), int(words[2]) if words[2:3] and words[2].isdigit() else 1
            continue
        pool = next(filter(None, map(_pool_named, group)), here)
        pools.setdefault(pool, []).append(group)
        copies.setdefault(pool, times)
    first = pools.get("prefill", [])
    rest = [group for pool, own in pools.items() if pool != "prefill" for group in own]
    if not first or not any(_serves(group) for group in rest):
        return Parts([group for own in pools.values() for group in own], max(copies.values(), default=1), [], 1)
    kept = [[one for one in group if not _pool_named(one)] for group in rest]
    return Parts(
        kept,
        copies.get("decode", copies.get("", 1)),
        [[one for one in group if not _pool_named(one)] for group in first],
        copies["prefill"],
    )


def _serves(group: Sequence[Setting]) -> bool:
    """Whether a command starts a server, or states the degrees of one: no router, and no client of a benchmark."""
    words = " ".join(word for one in group if one.name == COMMAND for word in one.arguments)
    return any(word in words for word in ("serve", "server", "vllm", "sglang", "trtllm")) and "bench" not in words


def _pool_named(setting: Setting) -> str:
    return _NAMES_POOL.get(setting.name, {}).get(setting.argument.casefold(), "")


def engine_of_image(text: str) -> tuple[str, str]:
    """Software and release of the first image of a serving engine in a text, "" if none is named.

    >>> engine_of_image("docker run --gpus all vllm/vllm-openai:v0.10.2 --model a/b")
    ('vllm', '0.10.2')
    >>> engine_of_image("image: nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.0.0"), engine_of_image("redis/redis:v7.2.1")
    (('vllm', ''), ('', ''))
    """
    for image, tag in islice(_IMAGE.findall(text), _MOST_IMAGES):
        own = next((row for row in _images() if fnmatchcase(image, row["pattern"])), None)
        if own is not None:
            release = _IMAGE_RELEASE.match(tag) if own["release"] == "engine" else None
            return own["software"], release.group().removeprefix("v") if release else ""
    return "", ""


def _images() -> list[dict[str, str]]:
    return rows("interop/launch_images.csv")


_OF_POOL = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel", "data_parallel_attention")


def with_pools(plan: Stated, copies: int, first: Stated, prefill_copies: int) -> Stated:
    """The plan of all copies of a server, and of the pool ``first`` that prefills for it; none if ``first`` is empty.

    >>> with_pools({"num_accelerators": "8", "tensor_parallel": "8"}, 1, {"num_accelerators": "4"}, 2)
    {'num_accelerators': '16', 'tensor_parallel': '8', 'mode': 'disaggregated', 'prefill_accelerators': '8', \
'prefill_tensor_parallel': '1'}
    """
    result = dict(plan)
    if copies > 1 and "num_accelerators" in plan:
        result["num_accelerators"] = written(copies * number(plan, "num_accelerators"))
    if not first:
        return result
    ranks = prefill_copies * number(first, "num_accelerators", 1.0)
    result |= {
        "mode": "disaggregated",
        "num_accelerators": written(ranks + number(result, "num_accelerators", 1.0)),
        "prefill_accelerators": written(ranks),
    }
    degrees = {name: first.get(name, "1") for name in _OF_POOL}
    result |= {f"prefill_{name}": value for name, value in degrees.items() if value != plan.get(name, "1")}
    result.pop("prefill_tokens", None)
    return result | {name: first[name] for name in ("prefill_tokens", "graph_tokens") if name in first}


def uneven_stages(script: str) -> list[tuple[str, str]]:
    """Variables that deal layers to stages unevenly, with their values."""
    return _LAYERS_OF_STAGES.findall(script)
