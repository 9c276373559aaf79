"""Charts and configurations of platforms that start serving engines, as the script of a shell.

Values of the charts of llm-d and vllm-stack, applications of Ray Serve, services of KServe, configurations of Truss,
tasks of SkyPilot, recipes of srt-slurm and options of trtllm-serve disaggregated become lines that start an engine, and
columns that they state.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from xlperf.interop.launch_text import documents

GPU_KEYS = ("gpu.product", "gke-accelerator", "instance-gpu-name", "gpu.nvidia.com/model")
"""Ends of the labels of a node that name its accelerator."""
TOGETHER = "both"
POOLS = ("prefill", "decode")
POOL = "xlperf-pool"
_STARTS = {"vllm": "vllm serve", "sglang": "python3 -m sglang.launch_server --model-path", "trtllm": "trtllm-serve"}
_DEGREES = ("tensor", "data", "pipeline")
_CAPITAL = re.compile(r"([A-Z])")
_QUANTIZED = {"fp8": "fp8", "fp4": "modelopt_fp4", "nvfp4": "modelopt_fp4", "mxfp4": "mxfp4"}
"""Words of a recipe for its precision, as arguments of ``--quantization``."""


def container_words(value: Any) -> list[str]:
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


def environment(stated: Any, files: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Variables of a container: a mapping, a list of NAME=value, or of name and value, which a ConfigMap may have."""
    pairs: list[tuple[Any, Any]] = []
    if isinstance(stated, dict):
        pairs = list(stated.items())
    elif isinstance(stated, list):
        parted = [str(one).partition("=") for one in stated if not isinstance(one, dict)]
        pairs = [(name, value) for name, _, value in parted]
        for one in (one for one in stated if isinstance(one, dict)):
            key = mapping(mapping(one.get("valueFrom")).get("configMapKeyRef")).get("key")
            pairs.append((one.get("name"), one.get("value", files.get(str(key)))))
    for name, value in pairs:
        if isinstance(name, str) and name.isidentifier() and isinstance(value, str):
            yield name, value


def exports(values: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Lines of a shell that set variables."""
    yield from (f"export {name}={shlex.quote(value)}" for name, value in values)


def _of_chart(values: Mapping[Any, Any]) -> tuple[str, dict[str, str]] | None:
    """Values of llm-d's chart of model services: a mapping for each pool with its degrees and containers."""
    artifacts = values.get("modelArtifacts")
    if not isinstance(artifacts, dict):
        return None
    model = str(artifacts.get("name") or str(artifacts.get("uri", "")).removeprefix("hf://"))
    lines: dict[str, str] = {}
    for pool in POOLS:
        stated = mapping(values.get(pool))
        copies = str(stated.get("replicas", "1"))
        if not stated or stated.get("create") == "false" or copies == "0":
            continue
        degrees = mapping(stated.get("parallelism"))
        tensor, data = (str(degrees.get(name, "1")) for name in ("tensor", "data"))
        sizes = [f"export TP_SIZE={tensor} DP_SIZE={data} DP_SIZE_LOCAL={degrees.get('dataLocal', data)}"]
        for one in stated.get("containers") or [{}]:
            container = mapping(one)
            words = [*container_words(container.get("command")), *container_words(container.get("args"))]
            script = next((word for word in words if "\n" in word.strip()), "")
            flags = {f"{one}-parallel-size": degrees[one] for one in _DEGREES if one in degrees}
            told = _as_flags(_STARTS["vllm"], flags, model)
            own = [
                *sizes,
                *exports(environment(container.get("env"), {})),
                script or f"{told} {shlex.join(words)}".rstrip(),
            ]
            lines[pool] = "\n".join([f"{POOL} {pool} {copies}", *own])
            break
    if not lines:
        return None
    selectors = [mapping(mapping(values.get(pool)).get("nodeSelector")) for pool in reversed(POOLS)]
    named = (str(value) for one in selectors for key, value in one.items() if str(key).endswith(GPU_KEYS))
    accelerator = next(named, "")
    return _together(lines), {"accelerator": accelerator} if accelerator else {}


def _of_values(values: Mapping[Any, Any]) -> tuple[str, dict[str, str]] | None:
    """Values of the chart vllm-stack: a server for each model, whose options are flags of vLLM in camel case."""
    lines, columns = [], dict[str, str]()
    for spec in [*_listed(mapping(values.get("servingEngineSpec")), "modelSpec"), *_runtime(values)]:
        options = {key: value for key, value in mapping(spec.get("vllmConfig")).items() if key not in _OF_RUNTIME}
        extra = shlex.join(container_words(options.pop("extraArgs", [])))
        flags = {_CAPITAL.sub(r"-\1", str(name)).lower(): str(value) for name, value in options.items()}
        role = mapping(spec.get("lmcacheConfig")).get("kvRole", "")
        transfer = {"kv-transfer-config": {"kv_role": role}} if role else {}
        told = _as_flags(
            _STARTS["vllm"], {name: flags[name] for name in flags if name != "v0"} | transfer, str(spec.get("modelURL"))
        )
        image = f"# {spec.get('repository', '')}:{spec.get('tag', '')}"
        lines.append(f"{POOL} {TOGETHER} {spec.get('replicaCount', '1')}\n{image}\n{told} {extra}".rstrip())
        terms = [one for term in _listed(spec, "nodeSelectorTerms") for one in _listed(term, "matchExpressions")]
        named = (
            str(value)
            for one in terms
            if str(one.get("key", "")).endswith(GPU_KEYS)
            for value in one.get("values") or []
        )
        columns |= {"accelerator": next(named, "")}
    return ("\n".join(lines), {name: value for name, value in columns.items() if value}) if lines else None


_OF_RUNTIME = ("env", "port", "v1")  # entries of a vllmConfig that are no flags of vLLM


def _runtime(stated: Mapping[Any, Any]) -> Iterator[dict[str, Any]]:
    """A VLLMRuntime of the operator of vllm-stack, as an entry of the chart's values."""
    spec = mapping(stated.get("spec"))
    model, deployed = mapping(spec.get("model")), mapping(spec.get("deploymentConfig"))
    if stated.get("kind") == "VLLMRuntime" and "modelURL" in model:
        options = {name: model[name] for name in ("maxModelLen", "dtype", "maxNumSeqs") if name in model}
        options["enableLora"] = model.get("enableLoRA", "false")
        yield {
            **model,
            "vllmConfig": {**options, **mapping(spec.get("vllmConfig"))},
            "replicaCount": deployed.get("replicas", "1"),
        }


def _of_ray(stated: Mapping[Any, Any]) -> tuple[str, dict[str, str]] | None:
    """Applications of Ray Serve LLM, also of a RayService: arguments of vLLM for each model or pool."""
    inside = mapping(stated.get("spec")).get("serveConfigV2")
    document = next(iter(documents(inside)), None) if isinstance(inside, str) else stated
    lines, columns = [], dict[str, str]()
    for application in _listed(mapping(document), "applications"):
        args = mapping(application.get("args"))
        pools = [(pool, mapping(args.get(f"{pool}_config"))) for pool in POOLS]
        pools += [(TOGETHER, one) for one in _listed(args, "llm_configs")]
        for pool, config in pools:
            loading, deployed = mapping(config.get("model_loading_config")), mapping(config.get("deployment_config"))
            source = loading.get("model_source", "")
            model = str(mapping(source).get("bucket_uri", source) if isinstance(source, dict) else source)
            model = model or str(loading.get("model_id", ""))
            if model:
                scaled = mapping(deployed.get("autoscaling_config"))
                copies = deployed.get("num_replicas", scaled.get("initial_replicas", scaled.get("min_replicas", "1")))
                options = mapping(config.get("engine_kwargs"))
                flags = {str(key).replace("_", "-"): value for key, value in options.items()}
                start = _as_flags(_STARTS["vllm"], flags, model)
                lines.append(f"{POOL} {pool} {copies if copies != '0' else 1}\n{start}")
                columns |= {"accelerator": str(config["accelerator_type"])} if "accelerator_type" in config else {}
    return ("\n".join(lines), columns) if lines else None


_CACHED = re.compile(r"/app/model_cache/([\w.-]{1,200})")
_OF_TRUSS = {"tensor_parallel_count": "tensor_parallel_size", "quantization_type": "quantization"}


def _of_truss(stated: Mapping[Any, Any]) -> tuple[str, dict[str, str]] | None:
    """A configuration of Truss: the command of its server or options of TensorRT-LLM, beside accelerators."""
    accelerator, _, count = str(mapping(stated.get("resources")).get("accelerator", "")).partition(":")
    command = str(mapping(stated.get("docker_server")).get("start_command", ""))
    cached = _listed(stated, "model_cache")
    folders = {str(one.get("volume_folder")): str(one.get("repo_id")) for one in cached}
    command = _CACHED.sub(lambda match: folders.get(match[1], match[0]), command)
    engine = mapping(stated.get("trt_llm"))
    if engine:
        build = mapping(engine.get("build"))
        checkpoint = mapping(build.get("checkpoint_repository"))
        options = {_OF_TRUSS.get(key, key): value for key, value in build.items() if not isinstance(value, dict)}
        options |= mapping(engine.get("runtime"))
        options |= mapping(options.pop("patch_kwargs", {}))
        named = [options.pop(key, "") for key in ("served_model_name", "model_path", "base_model", "num_builder_gpus")]
        model = cached[0].get("repo_id") if len(cached) == 1 else checkpoint.get("repo")
        command = _as_file("truss.yaml", options, str(model or named[0]))
    if not accelerator or not command:
        return None
    columns = {"accelerator": accelerator.replace("_", "-")} | ({"num accelerators": count} if count else {})
    image = mapping(stated.get("base_image")).get("image", "")
    return f"# {image}\n{command}", columns


def _of_kserve(stated: Mapping[Any, Any]) -> tuple[str, dict[str, str]] | None:
    """An LLMInferenceService of KServe, as values of llm-d's chart; a variable holds arguments beside its own."""
    spec = mapping(stated.get("spec"))
    model, pools = mapping(spec.get("model")), {"prefill": mapping(spec.get("prefill")), "decode": spec}
    if not str(stated.get("kind", "")).startswith("LLMInferenceService") or not model:
        return None
    named = {**model, "name": ""} if str(model.get("uri")).startswith("hf://") else model
    values: dict[str, Any] = {"modelArtifacts": named}
    for pool, own in pools.items():
        container = next(iter(_listed(mapping(own.get("template")), "containers")), dict[Any, Any]())
        added = shlex_words(dict(environment(container.get("env"), {})).get("VLLM_ADDITIONAL_ARGS", ""))
        added += ["--enable-expert-parallel"] if mapping(own.get("parallelism")).get("expert") == "true" else []
        words = [*container_words(container.get("args")), *added]
        values[pool] = {**own, "containers": [{**container, "command": [], "args": words}]} if own else {}
    return _of_chart(values)


def _of_sky(stated: Mapping[Any, Any]) -> tuple[str, dict[str, str]] | None:
    """A task of SkyPilot: its variables, nodes and accelerators, then its script."""
    resources, script = mapping(stated.get("resources")), stated.get("run")
    if not isinstance(script, str) or "accelerators" not in resources:
        return None
    asked = resources["accelerators"]
    asked = asked if isinstance(asked, str) else next(iter(asked), "") if len(asked or ()) == 1 else ""
    accelerator, _, count = str(asked).partition(":")
    values = {"SKYPILOT_NUM_NODES": str(stated.get("num_nodes", "1")), "SKYPILOT_NODE_RANK": "0"}
    values |= {"SKYPILOT_NUM_GPUS_PER_NODE": count or "1"} if accelerator else {}
    copies = mapping(stated.get("service")).get("replicas", "1")
    lines = exports({**values, **dict(environment(stated.get("envs"), {}))}.items())
    mark = [f"{POOL} {TOGETHER} {copies}"] if copies != "1" else []
    return "\n".join([*mark, *lines, script]), {"accelerator": accelerator} if accelerator else {}


def _listed(stated: Mapping[Any, Any], name: str) -> list[Mapping[Any, Any]]:
    """Mappings of a list in a manifest; none if there is no such list."""
    value = stated.get(name)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _of_recipe(recipe: Mapping[Any, Any]) -> tuple[str, dict[str, str]] | None:
    """A recipe of srt-slurm: settings of an engine for each pool beside the machines and the load of a benchmark."""
    backend = mapping(recipe.get("backend"))
    settings = {engine: mapping(backend.get(f"{engine}_config")) for engine in _STARTS}
    engine = next((one for one, stated in settings.items() if stated), "")
    model, machines = mapping(recipe.get("model")), mapping(recipe.get("resources"))
    if not engine or not model or not machines:
        return None
    named = str(mapping(mapping(recipe.get("identity")).get("model")).get("repo", ""))
    precision = str(model.get("precision", ""))
    lines = {}
    for pool, key, workers in (
        ("prefill", "prefill", "prefill"),
        ("decode", "decode", "decode"),
        (TOGETHER, "aggregated", "agg"),
    ):
        own = dict(mapping(settings[engine].get(key)))
        if not own:
            continue
        folder = own.pop("model-path", own.pop("model", ""))  # of the container
        name = named or str(own.get("served-model-name") or model.get("path", folder))
        quantized = _QUANTIZED.get(precision) if "quantization" not in own and engine != "trtllm" else None
        if quantized and precision not in name.casefold():
            own["quantization"] = quantized
        start = _as_file(f"{pool}.yaml", own, name) if engine == "trtllm" else _as_flags(_STARTS[engine], own, name)
        lines[pool] = f"{POOL} {pool} {machines.get(f'{workers}_workers', '1')}\n{start}"
    load = mapping(recipe.get("benchmark"))
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
    own = {pool: mapping(stated.get(name)) for pool, name in kinds.items()}
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
    return script if len(lines) > 1 else re.sub(rf"(?m)^{POOL} \S+", f"{POOL} {TOGETHER}", script)


def mapping(value: Any) -> Mapping[Any, Any]:
    """A value of a manifest that is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


READERS = (_of_recipe, _of_chart, _of_values, _of_ray, _of_truss, _of_kserve, _of_sky, _of_servers)
"""Readers of a document of YAML: its script and columns, None for a document of another kind."""
