"""Files of a model of Hugging Face: configuration, number of weights and model type; params.json of Meta and Mistral.

``hugging_face.csv``: properties that the code of a type adds, or why no row expresses it.
``hugging_face_defaults.csv``: defaults of the configuration classes of transformers 5.24, the type of the language part
of multimodal types, and their architectures. ``hugging_face_names.csv``: names of entries that may change a shape.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from xlperf.base.errors import Fault, InputError
from xlperf.base.resources import rows
from xlperf.catalog.csv_files import read_text

_LARGEST = 64 * 2**20  # bytes of a configuration, or of the header of a file of weights, at the most. [B]
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_LARGEST_DIMENSION = 2**30  # of a params.json [-]


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
    earlier = merged.get("compression_config", config.get("compression_config"))  # of llm-compressor until 2024
    return merged if earlier is None else {"quantization_config": earlier, **merged}


def thinking_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration of the model that answers in text, beside one that speaks (Qwen's Omni)."""
    part = config.get("thinker_config")
    return part if part and isinstance(part, Mapping) else config


def named_layers(config: Mapping[str, Any]) -> frozenset[int]:
    """Layers of experts that a configuration lists, in words or as numbers; none if it has no list.

    >>> sorted(named_layers({"moe_layers_enum": "3,4,5"}))
    [3, 4, 5]
    """
    named = config.get("moe_layers_enum", config.get("moe_layer_list"))
    return frozenset(map(int, re.findall(r"\d{1,6}", str(named)[:_LONGEST_LIST])))


def with_published_names(config: dict[str, Any]) -> dict[str, Any]:
    """Names of the params.json of Meta and Mistral as a config.json has them; any other configuration as it is.

    >>> params = {"dim": 8192, "n_layers": 80, "multiple_of": 4096, "ffn_dim_multiplier": 1.3}
    >>> with_published_names(params)["intermediate_size"]
    28672
    """
    stated = [config.get("dim"), config.get("ffn_dim_multiplier", 1), config.get("multiple_of", 256)]
    numbers = [float(value) for value in stated if isinstance(value, (int, float)) and 0 < value < _LARGEST_DIMENSION]
    if "model_type" in config or "q_lora_rank" in config or "n_layers" not in config or len(numbers) < len(stated):
        return config
    width, factor, multiple = numbers
    names = {
        "dim": "hidden_size",
        "hidden_dim": "intermediate_size",
        "n_kv_heads": "num_key_value_heads",
        "tied_embeddings": "tie_word_embeddings",
        "ffn_dim_multiplier": "_",
        "multiple_of": "__",
    }
    experts = config.get("moe")
    result = {names.get(key, key): value for key, value in config.items() if key != "moe" or not experts}
    least = int(factor * int(8.0 * width / 3.0))  # llama/model.py FeedForward
    result.setdefault("intermediate_size", int(multiple * -(-least // multiple)))
    more = dict(experts) if isinstance(experts, Mapping) else {}
    return {**result, **more, "model_type": "mixtral" if more else "llama"}
