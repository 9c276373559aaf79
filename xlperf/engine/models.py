"""Rows of the sheet models as inputs of equations: shapes, and the kind of attention of each layer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array
from xlperf.catalog.table import Table
from xlperf.equations.model.model import Architecture

_UNKNOWN_KINDS = frozenset(("linear", "sparse", "hybrid"))
_PATTERN = re.compile(r"(?P<near>\d+) (?P<kind>sliding|chunked) (?P<window>\d+) : (?P<far>\d+) full")
_LINEAR = re.compile(r"(?P<near>\d+) linear \(gated delta net\) : (?P<far>\d+) full")
_STATE_SPACE = re.compile(r"(?P<near>\d+) Mamba-2 : (?P<far>\d+) full : (?P<bare>\d+) feed-forward")
_PART = re.compile(
    r"(?P<count>\d+) "
    r"(?P<kind>full|none|(?P<near>sliding|chunked) (?P<window>\d+)|(?P<beside>full \+ )?(?P<linear>[A-Za-z].*))"
)
_LINEAR_KINDS = {
    "linear (gated delta net)": (0, 0.0),
    "Mamba-2": (0, 1.0),
    "Mamba-1": (1, 0.0),
    "Kimi delta": (2, 0.0),
    "lightning": (3, 0.0),
    "RWKV-7": (4, 0.0),
    "convolution": (5, 0.0),
}
"""Words of a pattern: position in linear_kinds.KINDS, and whether the layer is Mamba-2."""
_FFN_PART = re.compile(r"(?P<count>\d+) (?P<kind>none|experts|dense(?: (?P<width>\d+))?(?P<beside> \+ experts)?)")
_SPARSE_PART = re.compile(r"(?P<count>\d+) (?P<kind>full|sliding|selected|compressed)(?: (?P<ratio>\d+))?")
_LINEAR_COLUMNS = {
    "linear_key_heads": "linear_num_key_heads",
    "linear_value_heads": "linear_num_value_heads",
    "linear_key_size": "linear_key_head_size",
    "linear_value_size": "linear_value_head_size",
    "linear_convolution": "linear_convolution_size",
}
_LOCAL_COLUMNS = ("local_num_attention_heads", "local_num_query_groups", "local_head_size", "local_v_head_size")
_INDEX_COLUMNS = {"index_heads": "index_num_heads", "index_size": "index_head_size", "index_top_k": "index_top_k"}


class LayerKinds(NamedTuple):
    """Layers of each kind, (models,)."""

    local: Array  # layers that see a window or a chunk
    chunked: Array  # 1: a chunk
    window: Array  # its tokens
    linear: Array  # layers of linear attention or of a state space
    bare: Array  # layers that are a feed-forward layer alone
    selected: Array  # sparse layers that select entries
    compressed: Array  # sparse layers that see all entries of a compressed cache
    selected_ratio: Array  # tokens per entry
    compressed_ratio: Array
    parallel: Array  # layers with attention beside a linear block
    linear_kind: Array  # position in linear_kinds.KINDS
    state_space: Array  # 1: Mamba-2
    uneven: Array  # 1: layers differ in their blocks
    reasons: np.ndarray  # why a row is no model, "" if it is one


def _layer_kinds(models: Table) -> LayerKinds:
    """Kinds of the layers of models, one entry per row of the sheet."""
    attention, pattern = models.filled("attention_type"), models.text("attention_pattern")
    window, layers, number = models.number("sliding_window"), models.number("num_layers"), len(models)
    zero = (
        "local",
        "chunked",
        "linear",
        "bare",
        "selected",
        "compressed",
        "parallel",
        "linear_kind",
        "state_space",
        "uneven",
    )
    kinds = LayerKinds(
        **{name: np.zeros(number) for name in zero},
        window=np.full(number, np.inf),
        selected_ratio=np.ones(number),
        compressed_ratio=np.ones(number),
        reasons=np.full(number, "", dtype=object),
    )
    shaped = ~np.isnan(sum(models.number(column) for column in _LINEAR_COLUMNS.values()))
    indexed = ~np.isnan(sum(models.number(column) for column in _INDEX_COLUMNS.values()))
    other = np.array([word in _UNKNOWN_KINDS for word in attention.tolist()], dtype=bool)
    for row in np.flatnonzero(other | (window > 0) | (pattern != "")).tolist():
        text = str(pattern[row]).strip()
        near = _PATTERN.fullmatch(text)
        mixed, apart = _LINEAR.fullmatch(text), _STATE_SPACE.fullmatch(text)
        if apart is not None and sum(map(float, apart.groups())) != layers[row]:
            kinds.reasons[row] = f'has {layers[row]:g} layers, which are not those of its pattern ("{text}")'
        elif attention[row] == "hybrid" and apart is not None and shaped[row]:
            kinds.linear[row], kinds.bare[row] = float(apart["near"]), float(apart["bare"])
            kinds.state_space[row] = float(kinds.bare[row] > 0.0)
        elif attention[row] == "hybrid" and mixed is not None and shaped[row]:
            kinds.linear[row] = _share(layers[row], mixed)
        elif attention[row] == "sparse" and indexed[row] and text != "sparse attention variants":
            _sparse(kinds, row, text, float(layers[row]), float(window[row]))
        elif attention[row] != "sparse" and near is None and _listed(kinds, row, text, layers[row], bool(shaped[row])):
            continue
        elif other[row]:
            kinds.reasons[row] = f"has {attention[row]} attention"
        elif near is not None:
            kinds.local[row] = _share(layers[row], near)
            kinds.window[row], kinds.chunked[row] = float(near["window"]), float(near["kind"] == "chunked")
        elif text:
            kinds.reasons[row] = f'has layers of a kind that is not known ("{text}")'
        elif window[row] > 0:
            kinds.local[row], kinds.window[row] = layers[row], window[row]
    return kinds


def _share(layers: float, ratio: re.Match[str]) -> float:
    """Layers of the first of two alternating kinds."""
    near, far = float(ratio["near"]), float(ratio["far"])
    return float(np.round(layers * near / (near + far)))


def _listed(kinds: LayerKinds, row: int, text: str, layers: float, shaped: bool) -> bool:
    """Fill in layers that a pattern lists by kind, and tell whether it lists known kinds."""
    parts = [_PART.fullmatch(part.strip()) for part in text.split(" : ")] if text else []
    known = [part for part in parts if part is not None and (not part["linear"] or part["linear"] in _LINEAR_KINDS)]
    if not known or len(known) < len(parts):
        return False
    linear = {part["linear"] for part in known if part["linear"]}
    windows = {part["window"] for part in known if part["window"]}
    if linear and not shaped:
        kinds.reasons[row] = f"has {linear.pop()} layers without their heads, head sizes or convolution"
    elif sum(float(part["count"]) for part in known) != layers:
        kinds.reasons[row] = f'has {layers:g} layers, which are not those of its pattern ("{text}")'
    elif len(linear) > 1 or len(windows) > 1:
        kinds.reasons[row] = f'has layers with states or windows of several kinds ("{text}")'
    if kinds.reasons[row]:
        return True
    for part in known:
        count = float(part["count"])
        if part["linear"]:
            kinds.linear[row] += count
            kinds.parallel[row] += count if part["beside"] else 0.0
            kinds.linear_kind[row], kinds.state_space[row] = _LINEAR_KINDS[part["linear"]]
        elif part["window"]:
            kinds.local[row] += count
            kinds.window[row] = float(part["window"])
            kinds.chunked[row] = float(part["near"] == "chunked")
        elif part["kind"] == "none":
            kinds.bare[row] += count
    kinds.uneven[row] = float(kinds.bare[row] > 0.0 or kinds.parallel[row] > 0.0)
    return True


class _FeedForward(NamedTuple):
    """Layers with a dense feed-forward block and with experts, and the mean width of the former, (models,)."""

    dense: Array
    mixed: Array
    width: Array
    listed: np.ndarray  # whether a pattern states them


def _feed_forward(models: Table, reasons: np.ndarray) -> _FeedForward:
    """Feed-forward blocks that a pattern lists by kind and width."""
    pattern, number = models.text("ffn_pattern"), len(models)
    layers, width = models.number("num_layers"), models.number("ffn_hidden_size")
    result = _FeedForward(np.zeros(number), np.zeros(number), width.copy(), pattern != "")
    for row in np.flatnonzero(result.listed).tolist():
        text = str(pattern[row]).strip()
        parts = [_FFN_PART.fullmatch(part.strip()) for part in text.split(" : ")]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts) or sum(float(part["count"]) for part in known) != layers[row]:
            reasons[row] = (
                reasons[row] or f'has {layers[row]:g} layers, which are not those of its ffn pattern ("{text}")'
            )
            continue
        dense = [
            (float(part["count"]), float(part["width"] or width[row])) for part in known if "dense" in part["kind"]
        ]
        result.dense[row] = sum(count for count, _ in dense)
        result.mixed[row] = sum(float(part["count"]) for part in known if "experts" in part["kind"])
        if dense:
            result.width[row] = sum(count * each for count, each in dense) / result.dense[row]
    return result


def _feed_forward_columns(models: Table, columns: Mapping[str, Array], kinds: LayerKinds) -> dict[str, Array]:
    """Layers with each feed-forward block; every layer has one unless a pattern of blocks states others."""
    layers, experts = columns["num_layers"], columns["num_experts"] > 0.0
    leading, bare = models.number("first_dense_layers", 0.0), (kinds.uneven > 0.0) & (kinds.bare > 0.0)
    mixed = np.where(experts, np.floor((layers - leading) / columns["moe_layer_step"]), 0.0)
    ffn = _feed_forward(models, kinds.reasons)

    def counted(of_list: Array, of_bare: Array, name: str) -> Array:
        return np.where(ffn.listed, of_list, np.where(bare, of_bare, columns[name]))

    return {
        "num_dense_layers": counted(ffn.dense, layers - mixed, "num_dense_layers"),
        "num_moe_layers": counted(ffn.mixed, mixed, "num_moe_layers"),
        "ffn_hidden_size": np.where(ffn.listed, ffn.width, columns["ffn_hidden_size"]),
        "uneven": np.where(ffn.listed, 1.0, kinds.uneven),
    }


def _linear_columns(models: Table, kinds: LayerKinds, latent: np.ndarray, heads: Array) -> dict[str, Array]:
    """Columns of layers with states, and gates of attention; a model without any has none."""
    linear, gated = kinds.linear > 0, models.filled("attention_output_gate")
    return {
        "num_linear_layers": kinds.linear,
        **{name: np.where(linear, models.number(column), 0.0) for name, column in _LINEAR_COLUMNS.items()},
        "linear_state_size": np.where(linear, models.filled("linear_state_size"), 0.0),
        "attention_gate": np.where(latent, 0.0, gated),
        "state_space": kinds.state_space,
        "num_bare_layers": kinds.bare,
        "linear_kind": kinds.linear_kind,
        "linear_rank": np.where(linear, models.number("linear_gate_rank", 0.0), 0.0),
        "num_parallel_layers": kinds.parallel,
        "per_layer_size": models.number("layer_embedding_size", 0.0),
        "latent_gate": np.where(latent, gated * heads * models.number("v_head_size", 0.0), 0.0),
    }


def _shapes(models: Table, columns: Mapping[str, Array], latent: np.ndarray) -> dict[str, Array]:
    """Heads of the layers with a window where these differ, and keys and values that layers share."""
    heads, size = columns["num_attention_heads"], columns["qk_head_size"]
    groups = columns["num_query_groups"]
    value, alike = models.number("v_head_size"), models.filled("keys_as_values")
    stated_columns = {name: models.number(name) for name in _LOCAL_COLUMNS}
    borrowed = models.number("shared_kv_layers", 0.0)
    stated = sum((~np.isnan(values) for values in stated_columns.values()), borrowed > 0.0).astype(bool) | (alike > 0.0)
    stated = (stated | (~np.isnan(value) & (value != size))) & ~latent
    value = np.where(np.isnan(value) | latent, size, value)
    share = 1.0 - borrowed / columns["num_layers"]

    def near(name: str, default: Array) -> Array:
        return np.where(stated, np.where(np.isnan(stated_columns[name]), default, stated_columns[name]), 0.0)

    local_size = near("local_head_size", size)
    return {
        "local_heads": near("local_num_attention_heads", heads),
        "local_groups": near("local_num_query_groups", groups),
        "local_qk_head_size": local_size,
        "local_v_head_size": near(
            "local_v_head_size", np.where(np.isnan(stated_columns["local_head_size"]), value, local_size)
        ),
        "local_kv_share": share,
        "kv_share": share,
        "value_projection": 1.0 - alike,
        "v_head_size": np.where(stated, value, columns["v_head_size"]),
        "head_size": np.where(stated, 0.5 * (size + value), columns["head_size"]),
    }


def _sparse(kinds: LayerKinds, row: int, text: str, layers: float, window: float) -> None:
    """Fill in the layers of sparse attention; without a pattern all layers select."""
    parts = [_SPARSE_PART.fullmatch(part.strip()) for part in text.split(" : ")] if text else []
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        kinds.reasons[row] = f'has layers of a kind that is not known ("{text}")'
        return
    if known and sum(float(part["count"]) for part in known) != layers:
        kinds.reasons[row] = f'has {layers:g} layers, which are not those of its pattern ("{text}")'
        return
    if any(part["kind"] == "sliding" for part in known) and np.isnan(window):
        kinds.reasons[row] = "has layers with a window that is not stated"
        return
    if not known:
        kinds.selected[row] = layers
    for part in known:
        count, ratio = float(part["count"]), float(part["ratio"] or 1.0)
        if part["kind"] == "selected":
            kinds.selected[row], kinds.selected_ratio[row] = count, ratio
        elif part["kind"] == "compressed":
            kinds.compressed[row], kinds.compressed_ratio[row] = count, ratio
        elif part["kind"] == "sliding":
            kinds.local[row], kinds.window[row] = count, window


# Columns of the sheet that are fields of a model as they are, blanks unknown or with their default
_NUMBERS = ("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "vocab_size")
_FILLED = ("gated_mlp", "tied_embeddings", "query_key_norm", "dropout", "wide_attention", "index_key_size",
           "residual_streams")  # fmt: skip


@lru_cache(maxsize=8)
def model_columns(models: Table) -> tuple[dict[str, Array], np.ndarray]:
    """Shapes of models by name, and the reason why each is not modelled, "" if it is."""
    heads, hidden = models.number("num_attention_heads"), models.number("hidden_size")
    head_size, groups = models.number("head_size"), models.number("num_query_groups")
    position, bias = models.filled("position_embedding"), models.filled("linear_bias")
    columns = {
        **{name: models.number(name) for name in _NUMBERS},
        **{name: models.filled(name) for name in _FILLED},
        "num_query_groups": np.where(np.isnan(groups), heads, groups),
        "head_size": np.where(np.isnan(head_size), hidden / heads, head_size),
        "learned_positions": np.where(position == "learned", models.number("max_sequence_length", 0.0), 0.0),
        "rotary": (position == "rope").astype(float),
        "layer_norm": (models.filled("normalization") == "layernorm").astype(float),
        "bias_qkv": (bias != "none").astype(float),
        "bias_all": (bias == "all").astype(float),
    }
    attention = models.filled("attention_type")
    sparse = attention == "sparse"
    latent = (attention == "MLA") | (sparse & (models.number("kv_lora_rank", 0.0) > 0.0))
    shared = sparse & (models.number("output_lora_rank", 0.0) > 0.0)
    experts, kinds = models.number("num_experts", 0.0), _layer_kinds(models)
    bare, layers = kinds.bare, columns["num_layers"]
    nope, rope = models.number("qk_nope_head_size"), models.number("qk_rope_head_size", 0.0)
    qk_head = np.where(latent, np.where(np.isnan(nope), columns["head_size"], nope + rope), columns["head_size"])
    step, leading = models.number("moe_layer_step", 1.0), models.number("first_dense_layers", 0.0)
    expert_ffn = np.where(experts > 0, models.number("moe_ffn_hidden_size"), 0.0)
    columns |= {
        "latent_attention": latent.astype(float),
        "q_lora_rank": np.where(latent | shared, models.number("q_lora_rank", 0.0), 0.0),
        "kv_lora_rank": np.where(latent, models.number("kv_lora_rank", 0.0), 0.0),
        "qk_rope_head_size": np.where(latent | shared, rope, 0.0),
        "qk_head_size": qk_head,
        "v_head_size": np.where(latent, models.number("v_head_size"), columns["head_size"]),
        "num_local_layers": kinds.local,
        "window": kinds.window,
        "chunked": kinds.chunked,
        "num_moe_layers": np.where(experts > 0, np.where(bare > 0, bare, np.floor((layers - leading) / step)), 0.0),
        "moe_layer_step": step,
        "num_experts": experts,
        "top_k": np.where(experts > 0, models.number("top_k"), 0.0),
        "expert_ffn_hidden_size": expert_ffn,
        "shared_ffn_hidden_size": np.where(experts > 0, models.number("num_shared_experts", 0.0) * expert_ffn, 0.0),
        "num_mtp_layers": models.number("num_mtp_layers", 0.0),
        "shared_gate": np.where(experts > 0, models.filled("shared_expert_gate"), 0.0),
        **_linear_columns(models, kinds, latent, heads),
        "moe_latent_size": np.where(experts > 0, models.number("moe_latent_size", 0.0), 0.0),
        **_sparse_columns(models, kinds, shared),
    }
    columns["num_dense_layers"] = np.where(bare > 0.0, bare, layers) - columns["num_moe_layers"]
    columns |= _feed_forward_columns(models, columns, kinds)
    columns |= _shapes(models, columns, latent | shared)
    return columns, _with_gaps(columns, kinds.reasons)


def _with_gaps(columns: Mapping[str, Array], reasons: np.ndarray) -> np.ndarray:
    """Reasons why rows cannot be modelled, missing and inconsistent shapes included."""
    experts, chosen = columns["num_experts"], columns["top_k"]
    latent, heads = columns["latent_attention"] > 0.0, columns["num_attention_heads"]
    sizes = columns["kv_lora_rank"] * columns["qk_head_size"] * columns["v_head_size"]
    gaps = (
        ("states experts without top k or moe ffn hidden size", np.isnan(chosen + columns["expert_ffn_hidden_size"])),
        ("has fewer experts than top k", chosen > experts),
        ("lists layers with experts and states none", (columns["num_moe_layers"] > 0.0) & (experts <= 0.0)),
        ("has no layer with attention or a state", columns["num_bare_layers"] >= columns["num_layers"]),
        ("has no layer with keys and values of its own", columns["kv_share"] <= 0.0),
        ("has latent attention without its rank or head sizes", latent & ~(sizes > 0.0)),
        ("has attention heads that are no multiple of its query groups", heads % columns["num_query_groups"] > 0.0),
        ("has fewer layers than first dense layers", columns["num_moe_layers"] < 0.0),
    )
    for words, lacking in gaps:
        reasons = np.where((reasons == "") & lacking, words, reasons)
    return reasons


def _sparse_columns(models: Table, kinds: LayerKinds, shared: np.ndarray) -> dict[str, Array]:
    """Columns of sparse attention; a model without any has no layers of it."""
    selected, own = kinds.selected, models.number("num_index_layers")
    some_sparse = (selected > 0.0) | (kinds.compressed > 0.0)
    index = {name: np.where(selected > 0.0, models.number(column), 0.0) for name, column in _INDEX_COLUMNS.items()}
    return {
        "shared_key_value": shared.astype(float),
        "output_lora_rank": np.where(shared, models.number("output_lora_rank", 0.0), 0.0),
        "output_groups": np.where(shared, models.number("output_groups", 1.0), 0.0),
        "num_selected_layers": selected,
        "num_compressed_layers": kinds.compressed,
        "num_index_layers": np.where(np.isnan(own), selected, np.minimum(own, selected)),
        "selected_ratio": kinds.selected_ratio,
        "compressed_ratio": kinds.compressed_ratio,
        **index,
        "index_block": models.filled("index_block_size"),
        "sparse_window": np.where(some_sparse, models.number("sliding_window", 0.0), 0.0),
    }


_PRESENT = ("latent_attention", "num_experts", "num_local_layers", "num_linear_layers", "moe_latent_size",
            "num_selected_layers", "shared_key_value", "local_heads", "additions", "uneven")  # fmt: skip


@cache
def architecture_of(code: int) -> Architecture:
    """Architecture of a code of :func:`architecture_codes_of`."""
    present = (bool(code >> bit & 1) for bit in range(len(_PRESENT)))
    return replace(Architecture(*present), linear_kind=code >> len(_PRESENT))


def architecture_codes_of(columns: Mapping[str, Array]) -> np.ndarray:
    """Operator kinds of models as bits in the order of :class:`Architecture`; one code, the same operators."""
    columns = {**columns, "additions": columns["per_layer_size"] + columns["latent_gate"]}
    kinds = np.nan_to_num(columns["linear_kind"]).astype(np.int64) << len(_PRESENT)
    return np.asarray(sum((columns[name] > 0) * (1 << bit) for bit, name in enumerate(_PRESENT)) + kinds)
