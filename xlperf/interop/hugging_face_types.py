"""Model types of Hugging Face: the type of a configuration, and its entries with the defaults of that type.

``hugging_face.csv``: properties that the code of a type adds, or why no row expresses it.
``hugging_face_defaults.csv``: defaults of the configuration classes of transformers 5.24, the type of the language part
of multimodal types, and their architectures. ``hugging_face_names.csv``: names of entries that may change a shape.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from xlperf.base.resources import rows

_TURNED_OFF: tuple[object, ...] = (None, False, 0, "", [], {})
_LONGEST_LIST = 80_000
"""Characters of a list of layers that are read. [-]"""
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
def _names(kind: str) -> re.Pattern[str]:
    """Names of entries in ``hugging_face_names.csv``: of ``structure`` that may change the computation of a model, the
    ``harmless`` among them, and those that no type reads ``anywhere`` as a shape.
    """
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
        """Entries that may change the computation of a model and were not looked up.

        ``known``: for a known type, entries with their defaults and names without structure do not count; for an
        unknown type every entry counts unless all types share its name.
        """
        stated = [key for key in self if key not in self.read and not _names("anywhere").search(key)]
        if not known:
            return [key for key in stated if self[key] not in _TURNED_OFF]
        return [
            key
            for key in stated
            if (self[key] != self.defaults[key] if key in self.defaults else self[key] not in (*_TURNED_OFF, 1))
            and not isinstance(self[key], str)
            and _names("structure").search(key)
            and not _names("harmless").search(key)
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
    """Name of a model in the name of a class.

    >>> _stem("DeepseekV4ForCausalLM"), _stem("GPT2LMHeadModel")
    ('deepseekv4', 'gpt2')
    """
    return re.split(r"For[A-Z]|LMHead", architecture)[0].casefold()


@cache
def defaults_of(kind: str) -> Mapping[str, Any]:
    """Defaults of the entries of a model type, as its class has them.

    >>> defaults_of("gemma3_text")["num_attention_heads"], defaults_of("gemma3_text")["tie_word_embeddings"]
    (8, True)
    """
    row = _classes().get(kind)
    pairs = [pair.partition("=") for pair in row["entries"].split()] if row else []
    return {key: value == "true" if value.isalpha() else int(value) for key, _, value in pairs}


def tied_by_parts(config: Mapping[str, Any]) -> bool | None:
    """Whether a model with parts ties its embeddings, as far as its own entries say: None if its text part does.

    Transformers from release 5 on reads the entry of the whole and has a default for it; before, the text part decides.
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


def named_layers(config: Mapping[str, Any]) -> frozenset[int]:
    """Layers of experts that a configuration lists, in words or as numbers; none if it has no list.

    >>> sorted(named_layers({"moe_layers_enum": "3,4,5"}))
    [3, 4, 5]
    """
    named = config.get("moe_layers_enum", config.get("moe_layer_list"))
    return frozenset(map(int, re.findall(r"\d{1,6}", str(named)[:_LONGEST_LIST])))
