"""Files of a model of Hugging Face: configuration, number of weights, model type and formats of the checkpoint.

``hugging_face.csv``: properties that the code of a type adds, or why no row expresses it.
``hugging_face_defaults.csv``: defaults of the configuration classes of transformers 5.24, the type of the language part
of multimodal types, and their architectures. ``hugging_face_names.csv``: names of entries that may change a shape.

A ``quantization_config`` states the format of linear layers and the modules that it leaves in 16 bits. The modules of
each part are looked up by their names in every layer, as the engines that load the checkpoint do.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from xlperf.base.errors import Fault, InputError
from xlperf.base.resources import rows
from xlperf.catalog.csv_files import read_text
from xlperf.interop.params_files import with_published_names

_LARGEST = 64 * 2**20  # bytes of a configuration, or of the header of a file of weights, at the most. [B]
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def read_config(path: str | os.PathLike[str]) -> tuple[dict[str, Any], float | None, str]:
    """Configuration of a file or folder, number of weights beside it (None if unknown), and their source."""
    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
        adapter = file.with_name("adapter_config.json")
        file = adapter if adapter.exists() and not file.exists() else file
    config = with_published_names(_json(file))
    beside = file.with_name("hf_quant_config.json")  # of ModelOpt
    if file.name == "config.json" and beside.exists() and "quantization_config" not in language_part(config):
        config["quantization_config"] = _json(beside)
    counted, where = _weights(file.parent, config) if file.name == "config.json" else (None, "")
    return config, counted, where


def _json(file: Path) -> dict[str, Any]:
    text = read_text(file, "a config.json or a folder that holds one")
    try:
        result = json.loads(text)
    except (ValueError, RecursionError) as error:
        at = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise InputError(Fault(str(file), f"is no JSON{at}; the config.json of a model is meant")) from None
    if not isinstance(result, dict):
        raise InputError(Fault(str(file), "is no JSON object; the config.json of a model is meant"))
    return result


def _weights(folder: Path, config: Mapping[str, Any]) -> tuple[float | None, str]:
    """Weights of a folder: from the headers of all its safetensors files, else from their index."""
    index = folder / "model.safetensors.index.json"
    names = {str(name) for name in (_json(index).get("weight_map") or {}).values()} if index.exists() else set()
    files = [folder / Path(name).name for name in sorted(names)] or sorted(folder.glob("*.safetensors"))
    if config.get("quantization_config") or language_part(config).get("quantization_config"):
        return None, ""
    if files and all(file.exists() for file in files):
        return float(sum(map(_tensors, files))), "the safetensors files"
    metadata = _json(index).get("metadata") or {} if index.exists() else {}
    if isinstance(metadata.get("total_parameters"), int):
        return float(metadata["total_parameters"]), index.name
    size = _BYTES.get(str(language_part(config).get("torch_dtype") or language_part(config).get("dtype")), 0)
    total = metadata.get("total_size")
    return (float(total) / size, index.name) if size and isinstance(total, (int, float)) else (None, "")


def _tensors(file: Path) -> int:
    """Elements of the tensors of a safetensors file, from its header."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > _LARGEST:
                raise ValueError
            header = json.loads(stream.read(length))
        shapes = [entry["shape"] for name, entry in header.items() if name != "__metadata__"]
        return sum(prod(int(size) for size in shape) for shape in shapes)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise InputError(Fault(str(file), "is no safetensors file, or is damaged")) from None


_LONGEST_LIST = 80_000  # characters of a list of layers that are read
_TURNED_OFF: tuple[object, ...] = (None, False, 0, "", [], {})
_SWITCHES = ("is_moe", "use_moe", "enable_moe")
"""Entries whose value false switches off a mixture of experts that other entries describe."""


class ModelType(NamedTuple):
    """A type of model: its name, columns that its code decides, and defaults of its entries.

    ``assumed``: why the model is read as Llama, "" for a known type. ``remark``: evidence for a known type.
    """

    name: str
    family: Mapping[str, str]
    defaults: Mapping[str, Any]
    assumed: str
    remark: str


@cache
def _entry_names(kind: str) -> re.Pattern[str]:
    """Names of ``hugging_face_names.csv``: of the ``structure``, ``harmless`` ones, and no shape ``anywhere``."""
    return re.compile("|".join(row["pattern"] for row in rows("interop/hugging_face_names.csv") if row["kind"] == kind))


def as_list(value: Any) -> list[Any]:
    """A list as it is, any other value as an empty list."""
    return value if isinstance(value, list) else []


class Entries(dict[str, Any]):
    """Entries of a configuration, with the defaults of its class, and which of them were looked up."""

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.read: set[str] = set()
        self.defaults = defaults
        self.filled: dict[str, Any] = {}

    def get(self, key: str, default: Any = None) -> Any:
        """A stated entry, else the default of its class, else the caller's."""
        self.read.add(key)
        if key in self:
            return super().get(key)
        return self.defaults.get(key, default)

    def first(self, keys: Sequence[str]) -> tuple[str, Any]:
        """The first of some names that is stated; else, unless one is stated as null, the first with a default."""
        self.read.update(keys)
        for key in keys:
            if super().get(key) is not None:
                return key, self[key]
        if any(key in self for key in keys):
            return "", None
        for key in keys:
            if key in self.defaults:
                self.filled[key] = self.defaults[key]
                return key, self.defaults[key]
        return "", None

    def off(self) -> bool:
        """Whether a switch turns the experts off that other entries describe."""
        return any(self.get(key) is False for key in _SWITCHES)

    def unread(self, known: bool) -> list[str]:
        """Entries that were not looked up and may change the computation; of a ``known`` type those with a name of
        the structure whose value is not the default.
        """
        stated = [key for key in self if key not in self.read and not _entry_names("anywhere").search(key)]
        if not known:
            return [key for key in stated if self[key] not in _TURNED_OFF]
        return [
            key
            for key in stated
            if (self[key] != self.defaults[key] if key in self.defaults else self[key] not in (*_TURNED_OFF, 1))
            and not isinstance(self[key], str)
            and _entry_names("structure").search(key)
            and not _entry_names("harmless").search(key)
        ]


@cache
def families() -> dict[str, dict[str, str]]:
    """Rows of ``hugging_face.csv`` by model type."""
    return {row["model_type"]: row for row in rows("interop/hugging_face.csv")}


@cache
def _classes() -> dict[str, dict[str, str]]:
    return {row["model_type"]: row for row in rows("interop/hugging_face_defaults.csv")}


@cache
def _by_architecture() -> dict[str, str]:
    """Model types by the names of their classes, without the task that these end with."""
    by_name: dict[str, str] = {}
    for kind, row in _classes().items():
        if row["architecture"]:
            by_name.setdefault(_stem(row["architecture"]), row["language_part"] or kind)
    return by_name


def _stem(architecture: str) -> str:
    """Name of a model in the name of a class: ``gpt2`` of ``GPT2LMHeadModel``."""
    return re.split(r"For[A-Z]|LMHead", architecture)[0].casefold()


@cache
def defaults_of(kind: str) -> Mapping[str, Any]:
    """Defaults of the entries of a model type, as its class has them."""
    row = _classes().get(kind)
    pairs = [pair.partition("=") for pair in row["entries"].split()] if row else []
    return {key: value == "true" if value.isalpha() else int(value) for key, _, value in pairs}


def tied_by_parts(config: Mapping[str, Any]) -> bool | None:
    """Whether a model with parts ties its embeddings, by its own entries; None if its text part decides, as before
    release 5 of Transformers.
    """
    stated = config.get("tie_word_embeddings")
    if isinstance(stated, bool):
        return stated
    release = str(config.get("transformers_version") or "").partition(".")[0]
    whole = defaults_of(str(config.get("model_type") or "")).get("tie_word_embeddings")
    return whole if release.isdecimal() and int(release) >= 5 else None


def model_type(config: Mapping[str, Any], part: Mapping[str, Any]) -> ModelType:
    """The type of a language model: by its own model type, by the whole configuration's, or by its architectures."""
    known = families()
    own = str(part.get("model_type") or "")
    stated = own or str(config.get("model_type") or "")
    kind = stated if stated in known else _classes().get(stated, {}).get("language_part", "")
    remark = ""
    if kind == "minimax" and all(as_list(part.get("attn_type_list")) or [False]):
        kind = "minimax_m2"  # the type that its first configurations have
    if kind not in known:
        classes = [str(name) for source in (part, config) for name in as_list(source.get("architectures"))]
        results = [_by_architecture().get(_stem(name), "") for name in classes]
        kind = next((name for name in results if name in known), "")
        kind = "rwkv" if any(word.casefold().startswith("rwkv") for word in (stated, *classes)) else kind
        remark = f'model type "{stated}" is not known: taken as {kind} by its architectures' if kind else ""
    if kind:
        return ModelType(kind, known[kind], defaults_of(kind), "", remark)
    assumed = dict(known["llama"])
    if any(part.get(name) for name in ("num_experts", "n_routed_experts", "num_local_experts")):
        assumed["expert_width"] = "" if "moe_intermediate_size" in part else "intermediate_size"
    words = f'model type "{stated}" is not known' if stated else "no model type is stated"
    return ModelType(stated, assumed, {}, words, "")


def language_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of the language model among several parts."""
    config = thinking_part(config)
    parts = (config.get(key) for key in ("text_config", "llm_config", "language_config"))
    own = next((part for part in parts if part and isinstance(part, Mapping)), None)
    merged = dict(config if own is None else own)
    for key in ("ffn_config", "attn_config"):  # dbrx, mpt
        part = merged.get(key)
        merged |= {k: v for k, v in part.items() if k not in merged} if isinstance(part, Mapping) else {}
    if own is not None:
        for key in ("torch_dtype", "dtype", "quantization_config"):
            if key in config:
                merged.setdefault(key, config[key])
        tied = tied_by_parts(config)
        if tied is not None:
            merged["tie_word_embeddings"] = tied
    return merged


def thinking_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration of the model that answers in text, beside one that speaks (Qwen's Omni)."""
    part = config.get("thinker_config")
    return part if part and isinstance(part, Mapping) else config


_WIDE = ""
_INT4 = {32: "int4", 64: "int4-64"}
_USUAL_INT4 = "int4-128"
_ALGORITHMS = {
    "NVFP4": "fp4", "NVFP4_AWQ": "fp4", "W4A16_NVFP4": "fp4", "FP8": "fp8-tensor",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8-tensor", "FP8_PB_WO": "fp8-block", "FP8_BLOCK_SCALES": "fp8-block",
    "W4A16_MXFP4": "mxfp4", "W4A8_MXFP4_FP8": "mxfp4", "W4A8_MXFP4_MXFP8": "mxfp4", "W4A16_AWQ": _USUAL_INT4,
    "INT4_AWQ": _USUAL_INT4, "W4A8_AWQ": _USUAL_INT4, "W4A16": _USUAL_INT4, "W8A16": "int8-128",
    "W8A8_SQ_PER_CHANNEL": "int8", "INT8_SQ": "int8",
}  # fmt: skip
"""Formats of weights by the quant_algo of ModelOpt and TensorRT-LLM."""
_ACTIVATIONS = {"W4A16_NVFP4": "bf16", "W4A8_AWQ": "fp8"}
_PARTS = {
    "attention_precision": ("self_attn.q_proj", "self_attn.q_b_proj"),
    "mlp_precision": ("mlp.up_proj", "mlp.gate_up_proj"),
    "expert_precision": ("mlp.experts.0.up_proj", "mlp.experts.up_proj", "mlp.experts"),
    "shared_expert_precision": ("mlp.shared_experts.up_proj", "mlp.shared_expert.up_proj"),
}
"""Modules of a layer of each part, in the spellings of several model types."""
_SPELLED = (("block_sparse_moe", "mlp"), ("feed_forward", "mlp"), ("linear_attn", "self_attn"), ("mixer", "mlp"))
_LAYER = re.compile(r"^(?:.*\.)?layers\.")

Format = Callable[[str], str]  # format of a module by its name, "" in 16 bits


def checkpoint_columns(
    narrow: object, row: Mapping[str, object], config: Mapping[str, Any], source: str
) -> dict[str, object]:
    """Columns of the sheet models with the formats of a checkpoint from its ``quantization_config``, for a row with its
    layers and experts; none if it states no format. InputError for a method that is not known.
    """
    if not isinstance(narrow, Mapping) or not narrow:
        return {}
    stored = _format(narrow, source)
    if stored is None:
        return {}
    of_module, activations = stored
    columns: dict[str, object] = {}
    layers, dense, experts = (_whole(row.get(name)) for name in ("num_layers", "first_dense_layers", "num_experts"))
    wide_layers = layers
    for column, names in _PARTS.items():
        if experts and column == "mlp_precision":
            chosen: Sequence[int] = range(dense)
        elif (column == "expert_precision" and not experts) or (
            column == "shared_expert_precision" and not row.get("num_shared_experts")
        ):
            continue
        else:
            chosen = range(dense if column.endswith("expert_precision") else 0, layers)
        formats = [_of_names(of_module, names, layer) for layer in chosen]
        usual = Counter(each for each in formats if each).most_common(1)
        if usual and 2 * usual[0][1] >= len(formats):
            columns[column] = usual[0][0]
            wide_layers = min(wide_layers, formats.count(_WIDE))
    if config.get("expert_dtype") == "fp4" and "expert_precision" in columns:
        columns["expert_precision"] = "mxfp4"
    head = of_module("lm_head")
    if head and _includes_head(narrow):
        columns["head_precision"] = head
    if not columns:
        return {}
    columns |= {"wide_layers": wide_layers or None, "checkpoint_activations": activations}
    columns["checkpoint_kv_precision"] = _cache(narrow)
    columns["checkpoint_source"] = f"{source}: quantization_config ({_method(narrow)})"
    return {name: value for name, value in columns.items() if value not in ("", None)}


def _whole(value: object) -> int:
    return int(value) if isinstance(value, (int, float)) else 0


def _method(narrow: Mapping[str, Any]) -> str:
    """Name of the method of quantisation."""
    return str(narrow.get("quant_method") or narrow.get("quant_algo") or "not named")


def _includes_head(narrow: Mapping[str, Any]) -> bool:
    """Whether the method converts the output projection: engines leave it unless the configuration says so."""
    if narrow.get("lm_head") is True:
        return True
    listed = [target for group in _groups(narrow) for target in _texts(group.get("targets"))]
    return any("lm_head" in target for target in listed)


def _of_names(of_module: Format, names: Sequence[str], layer: int) -> str:
    """Format of a part in a layer: narrow if no spelling of its module is left out."""
    found = [of_module(f"model.layers.{layer}.{name}") for name in names]
    return _WIDE if _WIDE in found else found[0]


def _format(narrow: Mapping[str, Any], source: str) -> tuple[Format, str] | None:
    """Format of each module, and precision of the activations if the checkpoint states it; None without any format."""
    method = str(narrow.get("quant_method") or "").casefold().replace("_", "-")
    if method in ("compressed-tensors", "modelopt", "") and _groups(narrow) and not narrow.get("quantized_layers"):
        return _of_groups(narrow)
    if method in ("modelopt", "modelopt-fp4", "modelopt-fp8", "") and (
        narrow.get("quant_algo") or isinstance(narrow.get("quantization"), Mapping)
    ):
        return _of_algorithm(narrow, source)
    if method in ("compressed-tensors", "modelopt", ""):
        return None
    if method == "quark":
        return _of_quark(narrow)
    stored = _of_method(method, narrow)
    if stored is None:
        known = "awq, gptq, auto-round, bitsandbytes, compressed-tensors, fp8, fbgemm_fp8, modelopt, mxfp4, quark"
        remedy = f"known are {known}; leave quantization_config out and state the precision in plans"
        raise InputError(Fault(source, f'quantization method "{_method(narrow)}" is not known: {remedy}'))
    left = _excluded(narrow.get("modules_to_not_convert"), narrow.get("ignored_layers"), narrow.get("ignore"))
    if method in ("mxfp4", "gpt-oss-mxfp4"):
        return lambda module: stored if ".experts" in module and not left(module) else _WIDE, ""
    return lambda module: _WIDE if left(module) else stored, "fp8" if method == "w4afp8" else ""


def _of_method(method: str, narrow: Mapping[str, Any]) -> str | None:
    """Format of the linear layers of methods with one format; None for unknown methods."""
    bits, group = _whole(narrow.get("bits") or narrow.get("w_bit")), _whole(narrow.get("group_size"))
    if method in ("awq", "gptq", "auto-round", "auto-gptq", "intel/auto-round", "gptq-marlin", "awq-marlin"):
        return "int8-128" if bits == 8 else _INT4.get(group, _USUAL_INT4)
    if method in ("bitsandbytes",):
        return "int4-64" if narrow.get("load_in_4bit") or narrow.get("_load_in_4bit") else "int8-128"
    if method in ("fp8", "fbgemm-fp8", "ptpc-fp8", "w8a8-fp8", "deepseek-v4-fp8"):
        return "fp8-block" if narrow.get("weight_block_size") else "fp8-tensor"
    formats = {"mxfp4": "mxfp4", "gpt-oss-mxfp4": "mxfp4", "w4afp8": _USUAL_INT4, "w8a8-int8": "int8",
               "experts-int8": "int8-128", "moe-wna16": _USUAL_INT4, "nvfp4": "fp4"}  # fmt: skip
    return formats.get(method)


def _groups(narrow: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Groups of a configuration of compressed-tensors."""
    groups = narrow.get("config_groups")
    return [group for group in groups.values() if isinstance(group, Mapping)] if isinstance(groups, Mapping) else []


def _of_groups(narrow: Mapping[str, Any]) -> tuple[Format, str] | None:
    """Formats of compressed-tensors: groups of modules with weights and activations."""
    left = _excluded(narrow.get("ignore"))
    groups = [(group, _of_scheme(group)) for group in _groups(narrow)]
    groups = [(group, stored) for group, stored in groups if stored]
    if not groups:
        return None

    def of_module(module: str) -> str:
        if left(module):
            return _WIDE
        for group, stored in groups:
            targets = _texts(group.get("targets"))
            classes = [target for target in targets if target.isidentifier() and target[0].isupper()]
            if classes or not targets or _excluded(targets)(module):
                return stored
        return _WIDE

    return of_module, _of_activations(groups[0][0], groups[0][1])


def _of_scheme(group: Mapping[str, Any]) -> str:
    """Format of the weights of a group, "" if it is not known."""
    weights = group.get("weights")
    if not isinstance(weights, Mapping):
        return ""
    bits, size = _whole(weights.get("num_bits", 8)), _whole(weights.get("group_size"))
    in_blocks = weights.get("strategy") == "block" or bool(weights.get("block_structure"))
    kind = str(weights.get("type", "float" if in_blocks else "int"))
    if kind == "float" and bits == 8:
        return "fp8-block" if in_blocks else "fp8-tensor"
    if kind == "float" and bits == 4:
        return "mxfp4" if size == 32 else "fp4"
    if kind == "int" and bits == 8:
        return "int8" if group.get("input_activations") else "int8-128"
    return _INT4.get(size, _USUAL_INT4) if kind == "int" and bits == 4 else ""


def _of_activations(group: Mapping[str, Any], stored: str) -> str:
    """Precision of activations, if it differs from the weights on machines that compute in it."""
    inputs = group.get("input_activations")
    if not isinstance(inputs, Mapping):
        return "bf16" if stored.startswith("fp") else ""
    bits, kind = _whole(inputs.get("num_bits")), str(inputs.get("type", "int"))
    if bits == 8 and stored not in ("int8", "fp8-block", "fp8-tensor"):
        return "fp8" if kind == "float" else "int8"
    return "fp4" if bits == 4 and stored == "mxfp4" else ""


def _of_algorithm(narrow: Mapping[str, Any], source: str) -> tuple[Format, str] | None:
    """Formats of ModelOpt: one algorithm, or one for each layer."""
    inner = narrow.get("quantization")
    stated: Mapping[str, Any] = {**inner, **narrow} if isinstance(inner, Mapping) else narrow
    left = _excluded(stated.get("exclude_modules"), stated.get("ignore"), stated.get("modules_to_not_convert"))
    algorithm = str(stated.get("quant_algo")).upper()
    layers = stated.get("quantized_layers")
    if isinstance(layers, Mapping) and layers:
        named = {_short(str(name)): str(one.get("quant_algo")).upper() for name, one in layers.items()
                 if isinstance(one, Mapping)}  # fmt: skip

        def of_layer(module: str) -> str:
            short = _short(module)
            holder = short.rpartition(".")[0] if short.endswith("_proj") else short
            found = next((named[name] for name in named if name == short or name.startswith(f"{holder}.")), "")
            return _WIDE if left(module) else _ALGORITHMS.get(found, _WIDE)

        return of_layer, ""
    if algorithm not in _ALGORITHMS:
        remedy = f"known are {', '.join(_ALGORITHMS)}; leave quantization_config out and state the precision in plans"
        raise InputError(Fault(source, f'quantization algorithm "{algorithm}" is not known: {remedy}'))
    stored = _ALGORITHMS[algorithm]
    return lambda module: _WIDE if left(module) else stored, _ACTIVATIONS.get(algorithm, "")


def _of_quark(narrow: Mapping[str, Any]) -> tuple[Format, str] | None:
    """Formats of AMD Quark: one for all layers that are not excluded."""
    whole = narrow.get("global_quant_config")
    weight = whole.get("weight") if isinstance(whole, Mapping) else None
    weight = weight[0] if isinstance(weight, list) and weight else weight
    if not isinstance(weight, Mapping) or not isinstance(whole, Mapping):
        return None
    kind, size = str(weight.get("dtype", "")), _whole(weight.get("group_size"))
    formats = {"fp4": "mxfp4" if size == 32 else "fp4", "fp8_e4m3": "fp8-tensor", "int8": "int8",
               "int4": _INT4.get(size, _USUAL_INT4), "uint4": _INT4.get(size, _USUAL_INT4)}  # fmt: skip
    if kind not in formats:
        return None
    left = _excluded(narrow.get("exclude"))
    inputs = whole.get("input_tensors")
    activations = str(inputs.get("dtype", "")) if isinstance(inputs, Mapping) else "bf16"
    stored = formats[kind]
    return lambda module: _WIDE if left(module) else stored, {"fp4": "fp4", "bf16": "bf16"}.get(activations, "")


def _cache(narrow: Mapping[str, Any]) -> str:
    """Precision of the key-value cache that a checkpoint states, "" without one."""
    inner = narrow.get("quantization")
    stated = {**inner, **narrow} if isinstance(inner, Mapping) else narrow
    algorithm, scheme = str(stated.get("kv_cache_quant_algo") or "").upper(), stated.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        algorithm = algorithm or {8: "FP8", 4: "NVFP4"}.get(_whole(scheme.get("num_bits")), "")
    return {"FP8": "fp8", "NVFP4": "fp4"}.get(algorithm, "")


def _texts(value: object) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, (list, tuple)) else []


def _short(name: str) -> str:
    """Name of a module from its layer on, in one spelling."""
    name = _LAYER.sub("layers.", name)
    for spelled, usual in _SPELLED:
        name = name.replace(spelled, usual)
    return name


def _excluded(*lists: object) -> Callable[[str], bool]:
    """Whether any of some patterns names a module or a part of the model that holds it: a name, its beginning, a word
    of it, with ``*``, or a regular expression after ``re:``.

    >>> left = _excluded(["lm_head", "re:.*self_attn.*", "model.layers.0.*", "gate"])
    >>> names = ["self_attn.q_proj", "mlp.up_proj"]
    >>> [left(f"model.layers.{layer}.{name}") for layer in (0, 3) for name in names]
    [True, True, True, False]
    """
    patterns = [pattern for one in lists for pattern in _texts(one)]
    plain = {_short(pattern) for pattern in patterns if not pattern.startswith("re:") and "*" not in pattern}
    starred = [_short(pattern) for pattern in patterns if not pattern.startswith("re:") and "*" in pattern]
    expressions = list(_compiled(patterns))

    def excluded(module: str) -> bool:
        short = _short(module)
        words = short.split(".")
        beginnings = {".".join(words[:count]) for count in range(1, len(words) + 1)}
        if plain & (beginnings | set(words)) or any(name.endswith(f".{short}") for name in plain):
            return True
        if any(fnmatchcase(short, pattern) or fnmatchcase(short, f"{pattern}.*") for pattern in starred):
            return True
        return any(expression.match(text) for expression in expressions for text in (module, short))

    return excluded


def _compiled(patterns: Sequence[str]) -> Iterator[re.Pattern[str]]:
    """Regular expressions of a list, without entries that are none."""
    for pattern in patterns:
        if pattern.startswith("re:") and len(pattern) < 1000:
            try:
                yield re.compile(pattern[3:])
            except re.error:
                continue


def named_layers(config: Mapping[str, Any]) -> frozenset[int]:
    """Layers of experts that a configuration lists, in words or as numbers; none if it has no list.

    >>> sorted(named_layers({"moe_layers_enum": "3,4,5"}))
    [3, 4, 5]
    """
    named = config.get("moe_layers_enum", config.get("moe_layer_list"))
    return frozenset(map(int, re.findall(r"\d{1,6}", str(named)[:_LONGEST_LIST])))
