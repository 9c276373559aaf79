"""The model of a launch file or a log, as a configuration of Hugging Face that its reader makes a row of.

``model_arguments.csv`` maps arguments of a stack to entries of a configuration, with the defaults of its own parser.
``needs``: the argument or entry that an argument means something with. ``!``: layers that no row expresses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

from xlperf.base.errors import Fault, InputError
from xlperf.base.resources import rows
from xlperf.base.units import UNITS
from xlperf.interop.launch import commands_of
from xlperf.interop.launch_stacks import MOST_TEXT
from xlperf.interop.launch_text import Setting

_OFF = ("", "none", "false", "null", "0")
_CHOICES = ("gated_mlp", "normalization", "position_embedding")
"""Entries that a configuration leaves to the code of its model type."""
_NEEDED = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size", *_CHOICES,
           "use_bias", "tie_word_embeddings")  # fmt: skip
_PAD = 128
_REPEATED = re.compile(r"\[((?:[01],)*[01])\](?:\*(\d{1,4}))?")
_ON_ONE_RANK = re.compile(r"number of parameters on \(tensor, pipeline\) model parallel rank \(0, 0\): (\d{1,15})\b")
_IN_BILLIONS = re.compile(r"Total number of parameters in billions: (\d{1,6}\.\d\d)\b")
_ROUNDED = 1.0  # billions from which a count with two decimals is exact to 0.5 %


class StatedModel(NamedTuple):
    """A configuration; ``choices``: columns that the code of a model type decides elsewhere; and the number of
    parameters that a log prints, None if it prints none, with its source.
    """

    config: dict[str, Any]
    choices: dict[str, str]
    counted: float | None
    where: str


@cache
def modelled_stacks() -> frozenset[str]:
    """Stacks whose arguments state a model."""
    return frozenset(stack for row in rows("interop/model_arguments.csv") for stack in row["stacks"].split())


def stated_model(text: str, name: str) -> StatedModel:
    """The model that a launch file or a log states; InputError names arguments that it lacks or that no row expresses."""
    read = commands_of(text[:MOST_TEXT], name)
    own = [row for row in rows("interop/model_arguments.csv") if read.stack in row["stacks"].split()]
    if not own:
        known = ", ".join(sorted(modelled_stacks()))
        raise InputError(Fault(name, f"is of {read.stack}, whose arguments state no model; {known} state theirs"))
    values = _values(one for texts in read.groups for group in texts for one in group)
    for row in own:
        if row["default"]:
            values.setdefault(row["argument"], row["default"])
    entries, wrong = _entries(own, values)
    _derived(entries, values, read.stack)
    lacking = [_argument(own, entry) for entry in _NEEDED if entry not in entries]
    faults = [Fault(name, f"states {words}: no row of models expresses it") for words in wrong]
    if lacking:
        remedy = "add them to it, or give the config.json of the model"
        faults.append(Fault(name, f"does not state {', '.join(lacking)}: {remedy}"))
    if faults:
        raise InputError(faults)
    choices = {entry: str(entries.pop(entry)) for entry in _CHOICES}
    return StatedModel({**entries, "model_type": "megatron"}, choices, *_counted(text, values))


def _values(settings: Iterable[Setting]) -> dict[str, str]:
    """Arguments by their own names; later ones replace earlier ones."""
    result = {}
    for one in settings:
        argument = one.name.rstrip(":=").lstrip("-").rpartition(".")[2].replace("-", "_").casefold()
        value = " ".join(one.arguments).strip("'\"") if one.arguments else "True"
        if "$" not in value:
            result[argument] = value
    return result


def _entries(own: Iterable[Mapping[str, str]], values: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Entries of a configuration, and arguments that are not understood or that no row expresses."""
    entries: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    understood: set[str] = set()
    for row in own:
        argument, entry, needs = row["argument"], row["entry"], row["needs"]
        value = values.get(argument, "")
        if needs and needs not in entries and values.get(needs, "").casefold() in _OFF:
            continue
        if row["value"]:
            if value.casefold() == row["value"].casefold():
                understood.add(argument)
                for pair in entry.split():
                    key, _, word = pair.partition("=")
                    entries[key] = word == "true" if word in ("true", "false") else word
            elif value.casefold() not in _OFF:
                wrong[argument] = f"{argument} {value}"
        elif value.casefold() in _OFF:
            continue
        elif entry == "!":
            wrong[argument] = f"{argument} {value} ({row['remark']})"
        elif entry == "moe_layer_freq":
            frequency = layer_list(value)
            if frequency is None:
                wrong[argument] = f"{argument} {value}"
            else:
                entries[entry] = frequency
        else:
            number = value.replace(",", "").replace("_", "")
            if number.isdecimal() and len(number) < 13:
                entries[entry] = int(number)
            else:
                wrong[argument] = f"{argument} {value}"
    if entries.get("n_routed_experts") == 1:
        entries.pop("n_routed_experts")
    return entries, [words for argument, words in wrong.items() if argument not in understood]


def layer_list(text: str) -> int | list[int] | None:
    """Which layers are mixtures of experts, as Megatron-LM writes it; None if it is not understood.

    >>> layer_list("2"), layer_list("([0]*1+[1]*3)"), layer_list("[0, 1]"), layer_list("x")
    (2, [0, 1, 1, 1], [0, 1], None)
    """
    plain = re.sub(r"\s", "", text).strip("'\"")
    if plain.isdecimal() and len(plain) < 5:
        return int(plain)
    result: list[int] = []
    for term in re.sub(r"^\((.*)\)$", r"\1", plain).split("+"):
        match = _REPEATED.fullmatch(term)
        if match is None:
            return None
        result += [int(one) for one in match[1].split(",")] * int(match[2] or 1)
    return result


def _derived(entries: dict[str, Any], values: Mapping[str, str], stack: str) -> None:
    """Widths that Megatron-LM derives from others, its padded vocabulary; widths of experts that are not stated."""
    hidden = entries.get("hidden_size", 0)
    if stack == "megatron":
        if hidden and "intermediate_size" not in entries:
            gated = entries.get("gated_mlp") == "yes"
            entries["intermediate_size"] = int(8 * hidden / 3) // 64 * 64 if gated else 4 * hidden
        if "vocab_size" in entries and values.get("padded_vocab_size", "").casefold() in _OFF:
            ranks = [values.get(name, "") for name in ("make_vocab_size_divisible_by", "tensor_model_parallel_size")]
            pad, tensor = (int(word) if word.isdecimal() else usual for word, usual in zip(ranks, (_PAD, 1), strict=True))
            entries["vocab_size"] = -(-entries["vocab_size"] // max(pad * tensor, 1)) * max(pad * tensor, 1)
    if "n_routed_experts" in entries and "intermediate_size" in entries:
        entries.setdefault("moe_intermediate_size", entries["intermediate_size"])
    if "kv_lora_rank" in entries:  # its norms are of the latent vectors
        entries.pop("use_qk_norm", None)


def _argument(own: Iterable[Mapping[str, str]], entry: str) -> str:
    """The first argument of a stack that states an entry."""
    named = (row["argument"] for row in own if entry in re.split(r"[= ]", row["entry"]))
    return next(named, entry)


def _counted(text: str, values: Mapping[str, str]) -> tuple[float | None, str]:
    """Parameters that Megatron-LM counted: on the only rank, else in billions with two decimals."""
    degrees = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size")
    whole = all(values.get(name, "1") in ("1", "None") for name in degrees)
    if whole and (match := _ON_ONE_RANK.search(text)):
        return float(match[1]), "number of parameters of the log"
    if (match := _IN_BILLIONS.search(text)) and float(match[1]) >= _ROUNDED:
        return float(match[1]) * UNITS["G"].factor, "total number of parameters of the log"
    return None, ""
