"""A configuration of Hugging Face (config.json) as a row of the sheet ``models``.

``hugging_face_entries.csv`` maps entries to columns. Defaults, and properties that a configuration leaves to its code
(gating, norm, biases), follow from its model type (:mod:`xlperf.interop.hugging_face_files`). Parts that a row cannot
express are named, and the row gets a kind of attention that no plan is computed for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import gcd
from typing import Any, NamedTuple

from xlperf.base.errors import Fault, InputError
from xlperf.base.resources import rows
from xlperf.interop.hugging_face_files import Entries, as_list, language_part, model_type, named_layers, thinking_part
from xlperf.interop.hugging_face_layers import FULL, READERS, Reading, Row, is_number, num_layers, vision_columns
from xlperf.interop.quantized_modules import checkpoint_columns

_MOST_LAYERS = 10_000
_SPARSE_KINDS = ("selected", "compressed")
_NO_DECODER = ("ForMaskedLM", "ForPreTraining", "ForSequenceClassification", "ForTokenClassification", "Encoder",
               "RewardModel")  # fmt: skip
"""Suffixes of architectures that generate nothing: bidirectional attention, or a score in place of the vocabulary."""
_WINDOWS = ("sliding_window", "sliding_window_size", "window_size")
_INDEXED = ("indexed_attention", "deepseek_sparse_attention", "minimax_m3_sparse")
_COMPRESSED = ("compressed_sparse_attention", "heavily_compressed_attention")


class ModelRow(NamedTuple):
    """A row of ``models`` in the units of the schema, and remarks for its reader.

    ``left_out``: parts of the model without a column (a vision tower). ``refused``: why no plan is computed with it, ""
    if plans are. ``unread``: entries that may change its layers and were not read. ``filled``: missing entries, with
    the defaults of their class. ``assumed``: why it was read as Llama, "" for a known type.
    """

    row: Row
    left_out: list[str]
    refused: str
    unread: list[str]
    filled: Mapping[str, Any]
    assumed: str


@cache
def _columns_of(*parts: str) -> dict[str, tuple[str, ...]]:
    """Columns of some parts of ``hugging_face_entries.csv`` and the entries that may hold each, the first one first."""
    stated = rows("interop/hugging_face_entries.csv")
    return {row["column"]: tuple(row["entries"].split()) for row in stated if row["part"] in parts}


def model_row(
    config: Mapping[str, Any],
    name: str,
    source: str,
    counted: bool | None = None,
    choices: Mapping[str, str] | None = None,
) -> ModelRow:
    """A configuration (config.json) as a row of the sheet ``models``; InputError if it lacks a number that a row needs.

    ``counted``: whether a count of parameters agrees, or True if the caller will compare it; None without a count. An
    unknown type is read as Llama only with an agreeing count. ``choices``: columns that the code of the model type does
    not decide.
    """
    if config.get("peft_type"):
        base = config.get("base_model_name_or_path") or "its base model"
        problem = f"is an adapter ({config['peft_type']}); give the config.json of {base}"
        raise InputError(Fault(source or name, problem))
    part = language_part(config)
    kind, family, defaults, assumed, remark = model_type(config, part)
    family = {**family, **(choices or {})}
    inner = Entries({**part, "model_type": kind}, defaults)
    result = Reading(inner)
    result.refused += _reasons(config, inner, family)
    left_out = [remark] if remark else []
    row: Row = {"model": name, "attention_type": family["attention_type"] or ""}
    for column, keys in _columns_of("layer", "experts", "latent").items():
        value = result.first(keys)
        if is_number(value) and value >= 1:
            row[column] = value
    if num_layers(row) > _MOST_LAYERS:
        raise InputError(Fault(source or name, f"has {num_layers(row):,} layers; {_MOST_LAYERS:,} are the most"))
    for stated in rows("interop/hugging_face_entries.csv"):  # columns that other entries must agree with
        other = result.number(*stated["entries"].split()) if stated["part"] == "same" else 0
        if other and other != row.get(stated["column"]):
            result.refused.append(stated["remark"])
    _experts(row, result, family)
    if family["attention_type"] != "MLA" and "kv_lora_rank" in row and not family["attention_type"]:
        row["attention_type"] = "MLA"
    latent = row["attention_type"] == "MLA" or (row["attention_type"] == "sparse" and "kv_lora_rank" in row)
    if not latent and row["attention_type"] != "sparse":
        for column in _columns_of("latent"):
            row.pop(column, None)
    if latent:
        row.pop("head_size", None)
    _words(row, result, family)
    if family["attention_type"] == "sparse":
        _sparse(row, result, family["remark"])
    elif family["layers"] in READERS and not result.refused:
        try:
            READERS[family["layers"]](row, result)
        except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError):
            problem = "lists its layers in a form that is not known; the config.json as published is meant"
            raise InputError(Fault(source or name, problem)) from None
    elif family["attention_type"] not in ("linear", "hybrid"):
        _layers(row, result, family["layers"])
    if not row["attention_type"]:
        heads, groups = row.get("num_attention_heads"), row.get("num_query_groups")
        row["attention_type"] = "MHA" if groups in (None, heads) else "MQA" if groups == 1 else "GQA"
    unread = sorted(inner.unread(not assumed)) if not result.refused else []
    if assumed and not result.refused:
        if unread:
            result.refused.append(f"{assumed}, and entries are not read: {', '.join(unread)}")
        elif counted is None:
            result.refused.append(f"{assumed}; give --parameters or its weights, which may agree with a Llama's count")
        elif not counted:
            result.refused.append(f"{assumed}, and its parameters differ from a Llama of its shape")
        else:
            left_out.append(f"{assumed}: taken as Llama (gated feed-forward layer, RMSNorm, rotary positions)")
    if result.refused and row["attention_type"] not in ("sparse", "linear", "hybrid"):
        row["attention_type"] = "hybrid"
    if result.refused and row["attention_type"] == "hybrid":
        row["attention_pattern"] = "not expressed"
    refused = "; ".join(dict.fromkeys(result.refused))
    _needed(row, name, source, refused)
    left_out += [f"entries that may change its layers are not read: {', '.join(unread)}"] if unread else []
    seen = vision_columns(config, row)
    row |= seen
    left_out += [*result.left_out, *_towers(config, bool(seen))]
    formats = checkpoint_columns(part.get("quantization_config"), row, part, source or name)
    row |= formats
    if "fp8-block" in formats.values():
        row["fp8_blocks"] = "yes"
    narrow = part.get("quantization_config")
    if isinstance(narrow, Mapping) and narrow:
        method = str(narrow.get("quant_method") or narrow.get("quant_algo") or "low precision")
        how = "plans of precision auto take their formats" if formats else "state their precision in plans"
        left_out.append(f"published weights are quantised ({method}): {how}")
    notes = [*(f"not expressed: {refused}" for _ in range(bool(refused))), *left_out]
    row |= {"source": source, "kind": "datasheet", "notes": "; ".join(notes)}
    columns = {column: value for column, value in row.items() if value not in ("", None)}
    return ModelRow(columns, left_out, refused, unread, {} if refused else inner.filled, assumed)


def _reasons(config: Mapping[str, Any], inner: Entries, family: Mapping[str, str]) -> list[str]:
    """Why no row expresses a model: by its type, by entries that say so, by its task."""
    if family["attention_type"] in ("linear", "hybrid"):
        return [family["remark"]]
    classes = [str(name) for part in (config, inner) for name in as_list(part.get("architectures"))]
    if task := next((name for name in classes if name.endswith(_NO_DECODER)), ""):
        kind = "a classifier" if "Classification" in task else "a reward model" if "Reward" in task else "an encoder"
        return [f"{kind}: it generates no tokens"]
    if any("eagle" in name.casefold() or "DraftModel" in name for name in classes):
        return ["a drafting model: it runs beside another"]
    kinds = ("", inner["model_type"])  # some entries mean a part that no row holds for one model type alone
    lacking = (one for one in rows("interop/hugging_face_entries.csv") if one["part"] == "no row")
    return [one["remark"] for one in lacking if one["column"] in kinds and inner.get(one["entries"])]


def _experts(row: Row, result: Reading, family: Mapping[str, str]) -> None:
    """Columns of a mixture of experts; none of them in a dense model."""
    config = result.config
    width = row.get("ffn_hidden_size")
    if row.get("num_experts") in (None, 0, 1) or config.off():
        for column in _columns_of("experts"):
            row.pop(column, None)
        row.setdefault("ffn_hidden_size", _stated_width(row, result))
        return
    if family["expert_width"] and "moe_ffn_hidden_size" not in row:
        row["moe_ffn_hidden_size"] = result.number(family["expert_width"]) or None
    expert = row.get("moe_ffn_hidden_size")
    row["ffn_hidden_size"] = width or expert
    shared = result.number(
        "moe_shared_expert_intermediate_size",
        "shared_expert_intermediate_size",
        "shared_intermediate_size",
        "share_expert_dim",
    )
    if shared and isinstance(expert, int):
        row["num_shared_experts"] = shared // expert
        if shared % expert:
            result.refused.append(f"a shared expert of width {shared} beside experts of width {expert}")
    elif not shared:
        named = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
        row["num_shared_experts"] = result.number(*named)
    if config.get("model_type") == "llama4_text":
        row["num_shared_experts"] = 1
    gated = config["model_type"] in ("qwen2_moe", "qwen3_next", "qwen3_5_moe", "qwen3_5_moe_text")
    if shared and config.get("shared_expert_gate", gated):
        row["shared_expert_gate"] = "yes"
    row["moe_latent_size"] = result.number("moe_latent_size") or None
    _mixture_layers(row, result)


def _stated_width(row: Mapping[str, object], result: Reading) -> object:
    """Width of a feed-forward layer that the configuration gives as a ratio, or leaves at four times the hidden one."""
    hidden = row.get("hidden_size")
    ratio = result.first(("expansion_ratio", "ffn_ratio", "intermediate_multiple_size"))
    return int(hidden * (ratio if is_number(ratio) else 4)) if isinstance(hidden, int) else None


def _mixture_layers(row: Row, result: Reading) -> None:
    """Which layers are mixtures of experts: after some dense ones, or one in so many."""
    config, layers = result.config, num_layers(row)
    step = result.number("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval") or 1
    listed = config.get("moe_layer_freq", config.get("is_moe_layer"))
    types = config.get("mlp_layer_types")
    dense = [int(layer) for layer in as_list(config.get("mlp_only_layers")) if is_number(layer)]
    if isinstance(listed, list):
        dense = [layer for layer, mixed in enumerate(listed) if not mixed]
    elif isinstance(types, list):
        dense = [layer for layer, word in enumerate(types) if word == "dense"]
    elif isinstance(listed, int) and listed > 1:
        step = listed
    if mixed := named_layers(config):
        dense = [layer for layer in range(min(layers, _MOST_LAYERS)) if layer not in mixed]
    if dense and dense != list(range(len(dense))):
        result.refused.append(f"dense layers among mixtures of experts: {', '.join(map(str, dense[:6]))}")
    if dense:
        row["first_dense_layers"] = len(dense)
    if step > 1:
        row["moe_layer_step"] = step
        first = row.get("first_dense_layers")
        if isinstance(first, int) and first < step:  # every step-th layer is a mixture, none before the first of these
            row.pop("first_dense_layers")
    last = config.get("moe_layer_end_index")
    if is_number(last) and last >= 0 and last < layers - 1:
        result.refused.append("dense layers after mixtures of experts")
    if not layers:
        row.pop("first_dense_layers", None)


def _words(row: Row, result: Reading, family: Mapping[str, str]) -> None:
    """Choices and flags as stated, else by the code of the model type."""
    config = result.config
    bias = family["linear_bias"]
    stated = config.get("attention_bias", config.get("qkv_bias", config.get("use_qkv_bias", config.get("bias"))))
    if config.get("use_bias") or config.get("mlp_bias"):
        bias = "all"
    elif stated is not None and family["linear_bias"] in ("", "qkv"):
        bias = "qkv" if stated else "none"
    tied = config.get("tie_word_embeddings")
    norm = config.get("use_qk_norm", config.get("qk_layernorm"))
    position = family["position_embedding"]
    row |= {
        "gated_mlp": family["gated_mlp"],
        "tied_embeddings": ("yes" if tied else "no") if tied is not None else family["tied_embeddings"],
        "position_embedding": "alibi" if config.get("alibi") is True else position,
        "normalization": family["normalization"],
        "linear_bias": bias or "none",
        "query_key_norm": "yes" if (family["query_key_norm"] == "yes" if norm is None else norm) else "no",
    }
    shared = config.get("multi_query")
    if config.get("new_decoder_architecture"):
        row.setdefault("num_query_groups", 1)
    elif shared is not None:  # one key and value head for all, or one for each; falcon, gpt_bigcode
        row["num_query_groups"] = 1 if shared else None


def _layers(row: Row, result: Reading, usual: str) -> None:
    """Which layers attend to how much: windows, chunks, linear layers, state spaces."""
    config, layers = result.config, num_layers(row)
    pattern = config.get("hybrid_override_pattern")
    blocks = [str(word) for word in as_list(config.get("layers_block_type") or config.get("layer_types"))]
    if isinstance(pattern, str) or {"moe", "mlp"} & {*blocks}:
        _state_space(row, result, pattern if isinstance(pattern, str) else blocks)
        return
    if config.get("attn_output_gate"):
        row["attention_output_gate"] = "yes"
    types = _layer_types(result, layers, usual)
    linear, sliding = types.count("linear_attention"), types.count("sliding_attention")
    chunked, full = types.count("chunked_attention"), sum(types.count(word) for word in FULL)
    other = sorted({word for word in types if word not in ("linear_attention", "sliding_attention", *FULL)})
    window = result.number("attention_chunk_size") if chunked else result.number(*_WINDOWS)
    if set(other) - {"chunked_attention"} or (linear and sliding) or (chunked and sliding):
        result.refused.append(f"layers of the kinds {', '.join(sorted(set(types)))}")
    elif linear:
        row |= {"attention_type": "hybrid", "attention_pattern": _ratio(linear, full, "linear (gated delta net)")}
        _linear_columns(row, result)
    elif (sliding or chunked) and not window:
        result.refused.append("layers with a window that is not stated")
    elif sliding and not full:
        row["sliding_window"] = window
    elif sliding or chunked:
        word = "chunked" if chunked else "sliding"
        row["attention_pattern"] = _ratio(sliding or chunked, full, f"{word} {window}")


def _sparse(row: Row, result: Reading, remark: str) -> None:
    """Index of sparse attention, and which layers select entries or see compressed ones."""
    config, layers = result.config, num_layers(row)
    blocks = config.get("sparse_attention_config") or {}
    inner = Reading(Entries(blocks if isinstance(blocks, Mapping) else {}, {}))
    types = [str(word) for word in as_list(config.get("layer_types"))[:layers]]
    row |= {
        column: inner.number(*keys) or result.number(*keys) or None for column, keys in _columns_of("index").items()
    }
    block = inner.number("sparse_block_size") or result.number("index_block_size")
    if block:  # blocks of tokens are selected, keys of the index are in 16 bits
        chosen = inner.number("sparse_topk_blocks") or result.number("index_topk_blocks")
        row |= {"index_top_k": block * chosen, "index_block_size": block, "index_key_size": 2}
    ratios, mixed = config.get("compress_ratios"), inner.config.get("sparse_attention_freq")
    shared = config.get("indexer_types")
    if isinstance(shared, list):
        row["num_index_layers"] = shared.count("full")
        config.read |= {"index_topk_freq", "index_skip_topk_offset"}  # the list follows from these
    if {*types} & {*_COMPRESSED}:
        rates = config.get("compress_rates")
        rates = rates if isinstance(rates, Mapping) else {}
        known = {word: _or(rates.get(word), usual) for word, usual in zip(_COMPRESSED, (4, 128), strict=True)}
        ratios = [known.get(word, 0) for word in types]
    elif mixed is None and types and not {*types} - {*_INDEXED, *FULL}:
        mixed = [int(word in _INDEXED) for word in types]
        if block and not any(mixed):
            result.refused.append("an index of sparse attention without a layer that has it")
    elif mixed is None and types:
        result.refused.append(f"layers of the kinds {', '.join(sorted(set(types)))}")
    if not all(map(is_number, as_list(ratios))):
        result.refused.append("compress_ratios that are no numbers")
    elif isinstance(ratios, list):
        counted = [ratios[:layers].count(ratio) for ratio in sorted(set(ratios[:layers]))]
        kinds = dict(zip(sorted(set(ratios[:layers])), counted, strict=True))
        near, *far = (kinds.pop(0, 0), *sorted(kinds))
        words = [f"{near} sliding"] if near else []
        words += [f"{kinds[ratio]} {word} {ratio}" for word, ratio in zip(_SPARSE_KINDS, far, strict=False)]
        row |= {"attention_pattern": " : ".join(words), "sliding_window": result.number("sliding_window") or None}
        if len(far) > len(_SPARSE_KINDS):
            result.refused.append(f"caches compressed by {', '.join(map(str, far))}")
    elif isinstance(mixed, list) and not all(mixed):
        row["attention_pattern"] = f"{mixed.count(0)} full : {len(mixed) - mixed.count(0)} selected"
    row |= {column: result.number(*keys) or None for column, keys in _columns_of("output").items()}
    if not (row.get("index_num_heads") and row.get("index_head_size") and row.get("index_top_k")):
        result.refused.append(remark)


def _or(value: Any, usual: int) -> int:
    return int(value) if is_number(value) else usual


def _ratio(near: int, far: int, word: str) -> str:
    """Layers of a kind and full ones as a ratio; full layers count as 1 if rounding gives the same layers.

    >>> _ratio(52, 10, "sliding 512"), _ratio(3, 7, "linear")
    ('5 sliding 512 : 1 full', '3 linear : 7 full')
    """
    layers = near + far
    each = next((k for k in range(1, 17) if round(layers * k / (k + 1)) == near), 0)
    common = gcd(near, far)
    return f"{each} {word} : 1 full" if each else f"{near // common} {word} : {far // common} full"


def _layer_types(result: Reading, layers: int, usual: str) -> list[str]:
    """Kind of each layer, stated or from an interval; all full by default.

    ``usual``: behaviour of the model type's code: ``sliding 4`` every fourth layer full, ``sliding 4 first`` from the
    first on, ``full`` every layer before max_window_layers, blank all layers with a stated window.
    """
    config = result.config
    types = as_list(config.get("layer_types")) or as_list(config.get("attention_layers"))
    if types:
        words = {"global": "full_attention", "local": "sliding_attention"}  # gpt_neo
        return [words.get(str(word), str(word)) for word in types[:layers]]
    window = config.get("sliding_window") or config.get("attention_chunk_size") or config.get("window_size")
    stated = config.first(
        (
            "full_attention_interval",
            "sliding_window_pattern",
            "_sliding_window_pattern",
            "global_attn_every_n_layers",
            "layer_switch",
        )
    )[1]
    near, every, first = [*usual.split(), "", "", ""][:3]
    if near == "full" or (config.get("use_sliding_window") is False and near != "linear"):
        dense = min(_or(config.get("max_window_layers"), layers), layers)
        dense = dense if config.get("use_sliding_window") and window else layers
        return ["full_attention"] * dense + ["sliding_attention"] * (layers - dense)
    if near == "linear" or (near and window) or (stated and window):
        step = _every(stated, int(every or 1))
        word = f"{near or 'sliding'}_attention"
        return ["full_attention" if (layer + (not first)) % step == 0 else word for layer in range(layers)]
    return ["sliding_attention" if window and not near else "full_attention"] * layers


def _every(value: Any, usual: int) -> int:
    """Layers from one of another kind to the next: a number, or their pattern in letters (LLLG)."""
    if isinstance(value, str) and not value.isdecimal():
        return max(len(value), 1)
    return max(int(value), 1) if isinstance(value, str) or is_number(value) else usual


def _state_space(row: Row, result: Reading, pattern: Sequence[str]) -> None:
    """Mamba-2, attention and feed-forward layers, each a layer of its own (Nemotron-H)."""
    words = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
    words |= {"linear_attention": "mamba", "full_attention": "attention"}
    kinds = [words.get(mark, mark) for mark in pattern]
    mamba, full = kinds.count("mamba"), kinds.count("attention")
    mixed, dense = kinds.count("moe"), kinds.count("mlp")
    row |= {"attention_type": "hybrid", "num_layers": len(kinds)}
    if mixed and dense:
        result.refused.append("dense feed-forward layers beside mixtures of experts in a hybrid of Mamba-2")
        return
    if not mixed:
        for column in (*_columns_of("experts"), "num_shared_experts"):
            row.pop(column, None)
    row["attention_pattern"] = f"{mamba} Mamba-2 : {full} full : {mixed + dense} feed-forward"
    _linear_columns(row, result)


def _linear_columns(row: Row, result: Reading) -> None:
    """Heads and sizes of linear layers and state spaces, all of which a configuration must state."""
    sizes = {column: result.number(*keys) or None for column, keys in _columns_of("linear").items()}
    if not all(sizes.values()):
        result.refused.append("layers of linear attention whose heads and sizes are not stated")
    row |= {**sizes, "linear_state_size": 4}


def _needed(row: Mapping[str, object], name: str, source: str, refused: str) -> None:
    """Refuse a configuration that lacks a number of every model, or has impossible numbers."""
    columns = ["num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "vocab_size"]
    if not refused:
        columns += ["kv_lora_rank"] if row["attention_type"] == "MLA" else []
        columns += ["top_k", "moe_ffn_hidden_size"] if row.get("num_experts") else []
        columns += ["qk_nope_head_size", "v_head_size"] if "kv_lora_rank" in row else []
    entries = _columns_of("layer", "experts", "latent")
    keys = {column: entries[column][0] for column in columns} | {"ffn_hidden_size": "intermediate_size"}
    keys["vocab_size"] = "vocab_size"
    lacking = [f'"{keys[column]}"' for column in columns if not row.get(column)]
    if lacking:
        problem = f"lacks {', '.join(lacking)}; the config.json of a decoder-only language model is meant"
        if refused:
            problem = f"no row of models expresses it: {refused}"
        raise InputError(Fault(source or name, problem))
    heads, groups = row["num_attention_heads"], row.get("num_query_groups")
    experts, chosen = row.get("num_experts"), row.get("top_k")
    problem = ""
    if isinstance(heads, (int, float)) and isinstance(groups, (int, float)) and heads % groups:
        problem = f"has {heads:g} attention heads, no multiple of its {groups:g} key and value heads"
    elif isinstance(experts, (int, float)) and isinstance(chosen, (int, float)) and chosen > experts:
        problem = f"has {experts:g} experts, {chosen:g} of them for each token"
    if problem and not refused:
        raise InputError(Fault(source or name, problem))


def _towers(config: Mapping[str, Any], seen: bool) -> list[str]:
    """Parts for pictures and sound that a row of ``models`` does not hold; ``seen``: it has the vision encoder."""
    spoken = [key for key in ("talker_config", "code2wav_config", "token2wav_config") if config.get(key)]
    said = [f"what speaks ({', '.join(spoken)}) is not counted: the model that answers in text alone"] if spoken else []
    for key, words in (("vision_config", "vision tower"), ("audio_config", "audio tower")):
        part = thinking_part(config).get(key)
        if isinstance(part, Mapping) and part and not (seen and key == "vision_config"):
            result = Reading(Entries(part, {}))
            depth, width = result.number("num_hidden_layers", "depth", "layers"), result.number("hidden_size", "width")
            shape = f" ({depth} layers, width {width})" if depth and width else ""
            said.append(f"{words}{shape} is not counted: the language model alone")
    return said
