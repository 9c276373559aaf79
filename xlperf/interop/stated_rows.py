"""Rows of a catalog from files: an accelerator of a datasheet's card, a model of a launch file or a log.

A card has lines of a name and a value, in a vendor's words: ``memory bandwidth: 4.8 TB/s``, ``FP8 Tensor Core,3958
TFLOPS (with sparsity)``, or the sheet's own headers. Names that no column has are reported. A model is a configuration
of Hugging Face: ``model_arguments.csv`` maps arguments of a stack to its entries, with the defaults of its own parser.
``needs``: the argument or entry that an argument means something with. ``!``: layers that no row expresses.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from xlperf.base.errors import Fault, InputError, nearest
from xlperf.base.resources import rows
from xlperf.base.units import UNITS, factor
from xlperf.catalog.csv_files import read_text
from xlperf.catalog.schema import Column, known_units, split_header, table_schema, unit_of
from xlperf.interop.launch import commands_of
from xlperf.interop.launch_stacks import MOST_TEXT
from xlperf.interop.launch_text import Setting, loaded

_UNIT_WORDS = {
    "TFLOPS": "TFLOP/s", "PFLOPS": "PFLOP/s", "TOPS": "TFLOP/s", "TFLOP": "TFLOP/s", "POPS": "PFLOP/s",
    "GBPS": "GB/s", "TBPS": "TB/s", "WATT": "W", "WATTS": "W", "MHZ": "MHz", "GHZ": "GHz", "KW": "kW", "NM": "nm",
}  # fmt: skip
_VALUE = re.compile(r"(?:up to\s+)?(?P<number>\d[\d,]*\.?\d*)\s*(?P<unit>[A-Za-zµ/0-9]*)(?P<rest>.*)", re.IGNORECASE)
_SPARSE = re.compile(r"spars|\*", re.IGNORECASE)
_BOTH = re.compile(r"nvlink|infinity|interconnect|both directions|bidirectional", re.IGNORECASE)


class AcceleratorRow(NamedTuple):
    """A row of ``accelerators`` in the schema's units, the conversions of its numbers, and lines without a column."""

    row: dict[str, float | str]
    remarks: list[str]
    unread: list[str]


def read_card(path: str | os.PathLike[str]) -> dict[str, str]:
    """Lines of a name and a value, separated by a comma, tab, colon or equals sign, or a JSON object, of a file."""
    file = Path(path)
    text = read_text(file, "a card as .csv, .txt or .json")
    if file.suffix.casefold() == ".json":
        result = loaded(text)
        if result is None:
            raise InputError(Fault(str(path), "is no JSON"))
        if isinstance(result, dict):
            return {str(name): str(value) for name, value in result.items() if value is not None}
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    pairs = [[part.strip().strip('"') for part in re.split(r"\s*[,\t:=]\s*", line, maxsplit=1)] for line in lines]
    card = {row[0]: row[1] for row in pairs if len(row) == 2 and row[1]}
    if not card:
        raise InputError(Fault(str(path), 'holds no line of a name and a value, such as "memory bandwidth: 4.8 TB/s"'))
    return card


def accelerator_row(card: Mapping[str, str], name: str, source: str) -> AcceleratorRow:
    """A card as a row of the sheet ``accelerators``; InputError names the line of a bad value."""
    columns = table_schema("accelerators").by_name
    row: dict[str, float | str] = {}
    remarks: list[str] = []
    unread: list[str] = []
    faults: list[Fault] = []
    for label, text in card.items():
        column = columns.get(_column_of(label))
        if column is None:
            known = nearest(split_header(label)[0].replace("_", " "), [c.replace("_", " ") for c in columns])
            unread.append(f'"{label}" is no column of accelerators; {known}')
        elif column.kind != "number":
            row[column.name] = text
        else:
            try:
                row[column.name] = _number(column, label, text, remarks)
            except ValueError as error:
                faults.append(Fault(source, f"{label}: {error}"))
    if faults:
        raise InputError(faults)
    row = {"accelerator": row.pop("accelerator", name), **row}
    row.setdefault("source", source)
    row.setdefault("kind", "datasheet")
    if remarks and "notes" not in row:
        row["notes"] = "; ".join(remarks)
    return AcceleratorRow(row, remarks, unread)


def _column_of(label: str) -> str:
    """Column that a line of a datasheet is about; "" if none is."""
    own = split_header(label)[0]
    if own in table_schema("accelerators").by_name:
        return own
    words = re.sub(r"[^a-z0-9]+", " ", re.sub(r"\([^)]*\)|\*", " ", label.casefold())).strip()
    known = rows("interop/datasheet_words.csv")
    return next((row["column"] for row in known if re.fullmatch(row["pattern"], words)), "")


def _number(column: Column, label: str, text: str, remarks: list[str]) -> float:
    """A value in the unit of the schema; sparse peaks are halved, as are links stated in both directions."""
    match = _VALUE.match(text.strip())
    if match is None:
        raise ValueError(
            f"a number{f' ({column.unit})' if column.unit not in ('', '-') else ''} is meant, got {text!r}"
        )
    value, stated = float(match["number"].replace(",", "")), match["unit"] or split_header(label)[1] or ""
    words = column.name.replace("_", " ")
    symbol = next((s for s in UNITS if s.casefold() == stated.casefold()), _UNIT_WORDS.get(stated.upper(), ""))
    if column.name == "memory_capacity" and symbol in ("GB", "GiB", ""):
        if symbol == "GB":
            remarks.append("memory capacity: GB of a datasheet are taken as GiB, as drivers report them")
    elif stated and not symbol and not column.is_whole:
        raise ValueError(f'"{stated}" is no unit; known are {", ".join(known_units(unit_of(column).dimension)[:8])}')
    elif symbol and not column.is_whole:
        if UNITS[symbol].dimension != unit_of(column).dimension:
            raise ValueError(f"{stated} is no unit of {words} ({column.unit})")
        value *= factor(symbol) / unit_of(column).factor
    if column.name.startswith("peak_flop_rate") and _SPARSE.search(f"{label} {match['rest']}"):
        value /= 2.0
        remarks.append(f"{words}: half of the peak with sparsity")
    if column.name == "link_bandwidth" and _BOTH.search(f"{label} {match['rest']}"):
        value /= 2.0
        remarks.append(f"{words}: half of the bandwidth stated for both directions")
    return float(f"{value:.15g}")


_OFF = ("", "none", "false", "null", "0", "-1")
_CHOICES = ("gated_mlp", "normalization", "position_embedding")
"""Entries that a configuration leaves to the code of its model type."""
_NEEDED = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size", *_CHOICES,
           "use_bias", "tie_word_embeddings")  # fmt: skip
_LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_TOKENS = {"GPT2BPETokenizer": 50_257, "Llama2Tokenizer": 32_000}  # vocabularies of Megatron-LM's tokenizers
_PAD = 128
_MOST_LAYERS = 10_000
_LONGEST = 13  # digits of a number that is read
_REPEATED = re.compile(r"\[((?:[01],)*[01])\](?:\*(\d{1,4}))?")
_ON_ONE_RANK = re.compile(r"number of parameters on \(tensor, pipeline\) model parallel rank \(0, 0\): (\d{1,15})\b")
_OF_TITAN = re.compile(r"\bModel \S{1,40} \S{1,40} size: (\d[\d,]{0,19}) total parameters")
_IN_BILLIONS = re.compile(
    r"Total number of parameters in billions: (\d{1,6}\.\d\d)\b|number parameters: (\d{1,6}\.\d{3}) billion"
)
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
    """The model that a launch file or a log states; InputError names what it lacks and what no row expresses."""
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
    frequency, layers = entries.get("moe_layer_freq"), entries.get("num_hidden_layers", 0)
    if isinstance(frequency, list) and len(frequency) != layers:
        wrong.append(f"moe_layer_freq of {len(frequency)} layers beside num_layers {layers}")
    lacking = [
        one
        for one in dict.fromkeys(_argument(own, entry) for entry in _NEEDED if entry not in entries)
        if not any(words.startswith(f"{one} ") for words in wrong)
    ]
    faults = [Fault(name, f"states {words}: it is not understood, or no row of models expresses it") for words in wrong]
    if lacking:
        remedy = "write into it what it lacks, or give the config.json of the model"
        faults.append(Fault(name, f"does not state {', '.join(lacking)}: {remedy}"))
    if faults:
        raise InputError(faults)
    choices = {entry: str(entries.pop(entry)) for entry in _CHOICES}
    return StatedModel({"model_type": "megatron", **entries}, choices, *_counted(text, values))


def _values(settings: Iterable[Setting]) -> dict[str, str]:
    """Arguments by their own names; later ones replace earlier ones."""
    result = {}
    for one in settings:
        argument = one.name.rstrip(":=").lstrip("-").rpartition(".")[2].replace("-", "_").casefold()
        value = " ".join(one.arguments).strip("'\"") if one.arguments else "True"
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
        listed, off = row["value"].casefold(), value.casefold() in _OFF
        if entry == "!":
            if value.casefold() == listed if listed else not off:
                wrong[argument] = f"{argument} {value} ({row['remark']})"
        elif "$" in value:
            wrong[argument] = f"{argument} {value}, a variable without a value"
        elif listed == value.casefold() and listed:
            understood.add(argument)
            entries |= _pairs(entry)
        elif listed:
            wrong |= {} if off else {argument: f"{argument} {value}"}
        elif not off:
            number = layer_list(value) if entry == "moe_layer_freq" else _whole(value)
            if number is None:
                wrong[argument] = f"{argument} {value}"
            else:
                entries[entry] = number
    if entries.get("n_routed_experts") == 1:
        entries.pop("n_routed_experts")
    return entries, [words for argument, words in wrong.items() if argument not in understood]


def _pairs(text: str) -> dict[str, Any]:
    """Entries of a cell such as ``normalization=rmsnorm use_bias=false``."""
    pairs = [pair.partition("=") for pair in text.split()]
    return {key: word == "true" if word in ("true", "false") else word for key, _, word in pairs}


def _whole(text: str) -> int | None:
    """A whole number as launch files write it."""
    digits = text.replace(",", "").replace("_", "")
    return int(digits) if digits.isdecimal() and len(digits) < _LONGEST else None


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
    hidden, layers = entries.get("hidden_size", 0), entries.get("num_hidden_layers", 0)
    if stack == "megatron":
        if hidden and "intermediate_size" not in entries:
            gated = entries.get("gated_mlp") == "yes"
            entries["intermediate_size"] = int(8 * hidden / 3) // 64 * 64 if gated else 4 * hidden
        tokens = _TOKENS.get(values.get("tokenizer_type", ""))
        if tokens:
            entries.setdefault("vocab_size", tokens)
        if "vocab_size" in entries and values.get("padded_vocab_size", "").casefold() in _OFF:
            pad = _whole(values.get("make_vocab_size_divisible_by", "")) or _PAD
            pad *= _whole(values.get("tensor_model_parallel_size", "")) or 1
            entries["vocab_size"] = -(-entries["vocab_size"] // pad) * pad
    frequency = entries.get("moe_layer_freq")
    if isinstance(frequency, int) and frequency and layers % frequency:  # the first layer of each group has experts
        entries["moe_layer_freq"] = [int(layer % frequency == 0) for layer in range(min(layers, _MOST_LAYERS))]
    if "n_routed_experts" in entries and "intermediate_size" in entries:
        entries.setdefault("moe_intermediate_size", entries["intermediate_size"])
    if stack == "torchtitan" and hidden:  # FeedForward of its Llama
        width, multiple = int(8 * hidden / 3), int(values.get("multiple_of", "256"))
        width = int(float(values.get("ffn_dim_multiplier", "1")) * width)
        entries["intermediate_size"] = -(-width // multiple) * multiple
    if stack == "maxtext" and values.get("attention_type") != "mla":  # it prints the ranks of any model
        for name in _LATENT:
            entries.pop(name, None)
    if stack == "maxtext" and values.get("decoder_block") == "gemma2":  # a layer of it is a local and a global one
        entries["num_hidden_layers"] = 2 * layers
    if "kv_lora_rank" in entries:  # its norms are of the latent vectors, its projections have no bias for keys alone
        for name in ("use_qk_norm", "attention_bias"):
            entries.pop(name, None)


def _argument(own: Iterable[Mapping[str, str]], entry: str) -> str:
    """The first argument of a stack that states an entry."""
    named = (row["argument"] for row in own if entry in re.split(r"[= ]", row["entry"]))
    return next(named, entry)


def _counted(text: str, values: Mapping[str, str]) -> tuple[float | None, str]:
    """Parameters that a log prints: of torchtitan, of the only rank of Megatron-LM, else in rounded billions."""
    degrees = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size")
    whole = all(values.get(name, "1") in ("1", "None") for name in degrees)
    exact = _OF_TITAN.search(text) or (_ON_ONE_RANK.search(text) if whole else None)
    if exact:
        return float(exact[1].replace(",", "")), "the count of the log"
    rounded = _IN_BILLIONS.search(text)
    billions = float(rounded[1] or rounded[2]) if rounded else 0.0
    return (billions * UNITS["G"].factor, "the rounded count of the log") if billions >= _ROUNDED else (None, "")
