"""Manifests that start serving engines, as the script of a shell.

Containers of Kubernetes, Docker Compose and NVIDIA Dynamo, and the charts of :mod:`xlperf.interop.launch_charts`,
become the lines that start an engine; the tag of an image states a release. A line
``xlperf-pool NAME COPIES`` says of which pool (``prefill``, ``decode`` or ``both``) the lines after it are, and how
often the manifest starts them.
"""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, NamedTuple

from xlperf.base.resources import rows
from xlperf.interop.config_rules import Stated, number, slice_rule
from xlperf.interop.config_rules import text as written
from xlperf.interop.launch_charts import (
    GPU_KEYS,
    POOL,
    POOLS,
    READERS,
    TOGETHER,
    container_words,
    environment,
    exports,
    shlex_words,
)
from xlperf.interop.launch_text import COMMAND, Setting, documents

_OF_POD = re.compile(r"\$\(([A-Za-z_]\w{0,100})\)")  # a variable in the words of Kubernetes
_COUNT = re.compile(r"[0-9]{1,9}")
_MOST_IMAGES = 1_000  # words of a text that may name an image, at the most
_DEEPEST = 60  # levels of a manifest that are searched for containers
_HINT = re.compile(
    r"(?:^|[\s{,-])(?:image|containers?|backend|modelArtifacts|modelSpec|context_servers|serveConfigV2|llm_configs|"
    r"decode_config|docker_server|trt_llm|vllmConfig|accelerators|template)\s*:"
)
_TPU_KEYS = (("gke-tpu-accelerator",), ("gke-tpu-topology", "gke-tpu-slice-topology"))
_IMAGE = re.compile(r"(?<![\w/.:-])([\w.-]{1,100}(?::\d{1,5})?(?:/[\w.-]{1,100}){1,6}):([\w.+-]{1,100})")
_IMAGE_RELEASE = re.compile(r"v?\d+(?:\.\d+)+(?:[-.]?(?:post|rc)\d*)?")
_ROLE = re.compile(r"(?<![a-z])(prefill|decode)(?![a-z])")
_LAYERS_OF_STAGES = re.compile(r"\b((?:VLLM|SGLANG)_PP_LAYER_PARTITION)[ ]?[=:][ ]?[\"']?(\d[\d,]{1,200})")
"""Variables of engines that deal layers to stages unevenly."""


def containers_of(text: str) -> tuple[str, dict[str, str]] | None:
    """Script of the engines that a manifest starts, and columns that it states; None for a text that is no manifest.

    >>> containers_of('{image: vllm/vllm-openai, args: [--model, a/b, "--tensor-parallel-size=8"]}')[0]
    'vllm serve --model a/b --tensor-parallel-size=8'
    """
    if not _HINT.search(text):
        return None
    read = documents(text)
    for document in read:
        for reader in READERS if isinstance(document, dict) else ():
            started_by = reader(document)
            if started_by is not None:
                return started_by
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
        (f"{POOL} {place.pool if apart and place.pool else TOGETHER} {place.copies}\n" if marked else "") + lines
        for place, lines in started
    ]
    labels = [(str(key), value) for place in places for key, value in place.node.items() if isinstance(value, str)]
    named = next((value for key, value in labels if key.endswith(GPU_KEYS)), "")
    tpu, shape = (next((value for key, value in labels if key.endswith(ends)), "") for ends in _TPU_KEYS)
    if tpu and shape:  # as xpk names a slice
        slices = tpu.replace("-lite-podslice", "litepod").removesuffix("-slice")
        script.insert(0, f"xpk --device-type={shlex.quote(f'{slices}-{shape}')}")
        sliced = Stated()
        slice_rule(sliced, {"@slice": f"{slices}-{shape}"})
        named = named or sliced.get("accelerator", "")
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
    waiting, seen = deque([(value, "", 1, 1, 0)]), set[int]()
    while waiting:
        one, pool, copies, outer, depth = waiting.popleft()
        if not isinstance(one, dict | list) or id(one) in seen or depth > _DEEPEST:
            continue
        seen.add(id(one))
        if isinstance(one, list):
            waiting += [(inner, pool, copies, outer, depth + 1) for inner in one]
            continue
        metadata = one.get("metadata")
        if isinstance(metadata, dict):
            pool = _role(str(metadata.get("name", ""))) or pool
        if "replicas" in one and "template" in one:  # a role of a set
            pool = _role(str(one.get("name", ""))) or pool
        stated = str(one.get("replicas", ""))
        if _COUNT.fullmatch(stated) and "serviceName" not in one:  # ranks of a set with a name of its own are one copy
            copies = outer * int(stated)
        yield _Place(one, pool, copies)
        waiting += [
            (inner, _role(str(key)) or pool, copies, copies if key == "template" else outer, depth + 1)
            for key, inner in one.items()
        ]


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
        *container_words(node.get("entrypoint")),
        *container_words(node.get("command")),
        *container_words(node.get("args")),
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
    values = dict(environment(node.get("env", node.get("environment")), files))
    used = {*_OF_POD.findall(line)}
    handed = {name: value for name, value in values.items() if name not in used}
    line = _OF_POD.sub(lambda match: values.get(match[1], match[0]), line)
    held = [f"cat > {name} <<'EOF'\n{text.rstrip()}\nEOF" for name, text in files.items() if name in line]
    return "\n".join([*exports(handed.items()), *held, line])


class Parts(NamedTuple):
    """Commands of a text by pool: to decode or to do all, and to prefill, with the copies of each."""

    main: Sequence[Sequence[Setting]]
    copies: int
    prefill: Sequence[Sequence[Setting]]
    prefill_copies: int


_NAMES_POOL = {
    "--disaggregation-mode": {"prefill": "prefill", "decode": "decode"},
    "--server-role": {"context": "prefill", "generation": "decode"},
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
            here, times = (
                words[1].removeprefix(TOGETHER),
                int(words[2]) if words[2:3] and _COUNT.fullmatch(words[2]) else 1,
            )
            continue
        pool = next(filter(None, map(_pool_named, group)), here)
        pools.setdefault(pool, []).append(group)
        copies[pool] = max(copies.get(pool, 1), times)
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
    name = setting.name.replace("server_role", "server-role").removesuffix(":")
    return _NAMES_POOL.get(name, {}).get(setting.argument.casefold(), "")


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
