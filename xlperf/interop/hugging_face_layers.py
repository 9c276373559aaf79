"""Layers of unlike kinds and vision encoders in a configuration of Hugging Face, as columns of a row of ``models``.

A reader of :data:`READERS` has the word that the column ``layers`` of ``hugging_face.csv`` gives to a model type. It
fills in the row and adds to ``refused`` what no column holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isqrt
from typing import Any

from xlperf.base.resources import rows
from xlperf.interop.hugging_face_files import Entries, as_list, thinking_part

Row = dict[str, object]
FULL = ("full_attention", "attention", "full", "global_attention")
_LARGEST_NUMBER = 2**40
_WIDTH_MULTIPLE = 256


def is_number(value: Any) -> bool:
    """Whether an entry is a number of a size that a model may have."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _LARGEST_NUMBER


def num_layers(row: Mapping[str, object]) -> int:
    """Layers of a row so far; 0 if they are not stated."""
    layers = row.get("num_layers")
    return int(layers) if isinstance(layers, (int, float)) else 0


class Reading:
    """Columns read from a configuration, and remarks on properties without a column."""

    def __init__(self, config: Entries) -> None:
        self.config = config
        self.refused: list[str] = []
        self.left_out: list[str] = []

    def first(self, keys: Sequence[str]) -> Any:
        """The first entry that is stated; one that is the same for every layer for all of them."""
        key, value = self.config.first(keys)
        if not isinstance(value, list):
            return value
        if all(each == value[0] for each in value):
            return value[0] if value else None
        self.refused.append(f"layers of unlike {key}")
        return None

    def number(self, *keys: str) -> int:
        """The first of some entries that is a number, 0 without any."""
        value = self.first(keys)
        return int(value) if is_number(value) else 0


def pattern(kinds: Sequence[str]) -> str:
    """Kinds of layers with their counts, in the order of their first layers.

    >>> pattern(["full", "none", "full"])
    '2 full : 1 none'
    """
    return " : ".join(f"{count} {kind}" for kind, count in Counter(kinds).items())


def _linear(row: Row, keys: tuple[int, int], values: tuple[int, int], convolution: int, rank: int = 0) -> None:
    """Heads and sizes of keys and values of linear layers."""
    row |= {
        "linear_num_key_heads": keys[0],
        "linear_key_head_size": keys[1],
        "linear_num_value_heads": values[0],
        "linear_value_head_size": values[1],
        "linear_convolution_size": convolution or 1,
        "linear_gate_rank": rank or None,
        "linear_state_size": 4,
    }


def _listed(row: Row, kinds: Sequence[str]) -> None:
    row["attention_pattern"] = pattern(kinds)
    if row["attention_type"] != "MLA":
        row["attention_type"] = "hybrid"


def _kinds(result: Reading, layers: int, words: Mapping[str, str]) -> list[str]:
    """Kinds of layers by their stated types; a type without a word is refused."""
    types = [str(word) for word in as_list(result.config.get("layer_types") or result.config.get("layers_block_type"))]
    unknown = sorted({word for word in types if word not in words})
    if unknown or len(types) != layers:
        result.refused.append(f"layers of the kinds {', '.join(unknown)}" if unknown else "layers without a kind")
    return [words.get(word, word) for word in types]


def _mamba_1(row: Row, result: Reading) -> None:
    """Columns of Mamba-1: a state of each channel."""
    hidden = result.number("hidden_size")
    channels = result.number("mamba_intermediate_size") or (result.number("mamba_expand", "expand") or 2) * hidden
    if not result.number("mamba_d_state"):
        channels = result.number("intermediate_size") or channels
    rank = result.number("mamba_dt_rank", "time_step_rank") or -(-hidden // 16)
    state = result.number("mamba_d_state", "state_size", "ssm_state_size") or 16
    _linear(row, (1, state), (channels, 1), result.number("mamba_d_conv", "conv_kernel") or 4, rank)


def _mamba_2(row: Row, result: Reading) -> None:
    """Columns of Mamba-2: heads, groups and the state of each."""
    hidden, expand = result.number("hidden_size"), result.number("mamba_expand", "expand") or 2
    channels = result.number("mamba_d_ssm") or expand * hidden
    heads = result.number("mamba_n_heads", "mamba_num_heads", "num_heads")
    size = result.number("mamba_d_head", "mamba_head_dim", "head_dim") or (channels // heads if heads else 0)
    heads = heads or (channels // size if size else 0)
    state = result.number("mamba_d_state", "ssm_state_size", "state_size")
    groups = result.number("mamba_n_groups", "n_groups") or 1
    _linear(row, (groups, state), (heads, size), result.number("mamba_d_conv", "conv_kernel") or 4)


def _jamba(row: Row, result: Reading) -> None:
    """Mamba-1 with attention every so many layers, and experts every so many (Jamba)."""
    layers, every, first = num_layers(row), *(result.number(f"attn_layer_{word}") for word in ("period", "offset"))
    kinds = ["full" if every and layer % every == first else "Mamba-1" for layer in range(layers)]
    _mamba_1(row, result)
    _listed(row, kinds)
    every, first = (result.number(f"expert_layer_{word}") for word in ("period", "offset"))
    if row.get("num_experts") and every > 1:
        mixed = sum(layer % every == first for layer in range(layers))
        row["ffn_pattern"] = f"{layers - mixed} dense : {mixed} experts"


def _alone(row: Row, result: Reading, word: str) -> None:
    """A state space alone, without attention and feed-forward layers."""
    (_mamba_1 if word == "Mamba-1" else _mamba_2)(row, result)
    _listed(row, [word] * num_layers(row))
    row |= {"ffn_pattern": f"{num_layers(row)} none", "head_size": 1, "num_query_groups": None}
    row["num_attention_heads"] = row["linear_num_value_heads"]
    row["ffn_hidden_size"] = row.get("ffn_hidden_size") or row["hidden_size"]


def _granite(row: Row, result: Reading) -> None:
    """Mamba-2 or attention, then a feed-forward block (Granite 4, Bamba)."""
    layers, attended = num_layers(row), as_list(result.config.get("attn_layer_indices"))
    if attended:
        kinds = ["full" if layer in attended else "Mamba-2" for layer in range(layers)]
    else:
        kinds = _kinds(result, layers, {"mamba": "Mamba-2", **dict.fromkeys(FULL, "full")})
    if not row.get("num_experts") and result.number("shared_intermediate_size"):
        row["ffn_hidden_size"] = result.number("shared_intermediate_size")
    if "Mamba-2" not in kinds:
        return
    _mamba_2(row, result)
    _listed(row, kinds)


def _falcon_h1(row: Row, result: Reading) -> None:
    """Mamba-2 beside attention in every layer (Falcon-H1)."""
    attended = as_list(result.config.get("attn_layer_indices"))
    kinds = ["full + Mamba-2" if not attended or layer in attended else "Mamba-2" for layer in range(num_layers(row))]
    _mamba_2(row, result)
    _listed(row, kinds)


def _kimi(row: Row, result: Reading) -> None:
    """Kimi delta attention beside latent attention (Kimi-Linear, Kimi K3)."""
    config, layers = result.config, num_layers(row)
    inner = config.get("linear_attn_config") or {}
    delta, full = (as_list(inner.get(name)) for name in ("kda_layers", "full_attn_layers"))
    heads = int(inner.get("num_heads") or result.number("linear_num_heads", "linear_num_key_heads"))
    size = int(inner.get("head_dim") or result.number("linear_head_dim", "linear_key_head_dim"))
    types = [str(word) for word in as_list(config.get("layer_types"))]
    if types and not delta:
        delta, full = ([at for at, word in enumerate(types, 1) if (word in FULL) == whole] for whole in (False, True))
    if sorted([*delta, *full]) != list(range(1, layers + 1)) or not heads or not size:
        result.refused.append("layers of Kimi delta attention without their heads or places (linear_attn_config)")
        return
    rank = size * (1 if inner.get("use_full_rank_gate") or config.get("use_full_rank_gate") else 2)
    convolution = inner.get("short_conv_kernel_size") or result.number("linear_conv_kernel_dim") or 4
    _linear(row, (heads, size), (heads, size), int(convolution), rank)
    row["attention_output_gate"] = "yes" if config.get("mla_use_output_gate") else None
    row["moe_latent_size"] = result.number("routed_expert_hidden_size") or None
    config.read |= {"mla_use_nope"}
    if config.get("attn_res_block_size"):
        result.left_out.append(
            "attention to the outputs of earlier blocks of layers (attn_res_block_size) is not timed"
        )
    _listed(row, ["Kimi delta" if layer in delta else "full" for layer in range(1, layers + 1)])


def _bailing(row: Row, result: Reading) -> None:
    """Lightning or Kimi delta attention with latent attention every so many layers (Ling and Ring 2.5 and 3)."""
    layers, every = num_layers(row), result.number("layer_group_size") or 1
    heads, size = result.number("num_attention_heads"), result.number("head_dim")
    convolution, config = result.number("short_conv_kernel_size"), result.config
    rank = 2 * size if convolution and not config.get("no_kda_lora") else 0
    _linear(row, (heads, size), (heads, size), convolution, rank)
    config.read |= {"group_norm_size", "gated_attention_proj_granularity_type", "kda_safe_gate", "kda_lower_bound"}
    if config.get("gated_attention_proj_granularity_type"):
        result.left_out.append("gates of the heads of latent attention are not counted: a column each")
    word, whole = "Kimi delta" if convolution else "lightning", layers // every * every
    _listed(row, ["full" if (layer + 1) % every == 0 or layer >= whole else word for layer in range(layers)])


def _lightning(row: Row, result: Reading) -> None:
    """Lightning attention where the list of types has 0, full attention where it has 1 (MiniMax-01)."""
    types = as_list(result.config.get("attn_type_list"))
    layers, heads = num_layers(row), result.number("num_attention_heads")
    types = types * (layers // len(types)) if types else []
    if len(types) != layers:
        types = [int(word in FULL) for word in map(str, as_list(result.config.get("layer_types")))]
    if len(types) != layers:
        result.refused.append("layers of lightning attention that no list names")
        return
    size = result.number("head_dim")
    _linear(row, (heads, size), (heads, size), 1)
    _listed(row, ["full" if mark else "lightning" for mark in types])


def _convolution(row: Row, result: Reading) -> None:
    """Short convolutions in place of attention (LFM2)."""
    layers, attended = num_layers(row), as_list(result.config.get("full_attn_idxs"))
    if attended:
        kinds = ["full" if layer in attended else "convolution" for layer in range(layers)]
    else:
        kinds = _kinds(result, layers, {"conv": "convolution", "short_conv": "convolution", "full_attention": "full"})
    _linear(row, (1, 1), (result.number("conv_dim", "hidden_size"), 1), result.number("conv_L_cache") or 3)
    width = result.number("block_ff_dim", "intermediate_size")
    if result.config.get("block_auto_adjust_ff_dim"):
        multiple = result.number("block_multiple_of") or _WIDTH_MULTIPLE
        factor = result.config.get("block_ffn_dim_multiplier") or 1
        row["ffn_hidden_size"] = -(-int(factor * int(2 * width / 3)) // multiple) * multiple
    else:
        row["ffn_hidden_size"] = width
    _listed(row, kinds)


def _rwkv(row: Row, result: Reading) -> None:
    """RWKV-7: time mixing with a state, then channel mixing."""
    hidden, size = result.number("hidden_size"), result.number("head_dim", "head_size") or 64
    ranks = [result.number(f"{word}_low_rank_dim") for word in ("decay", "a", "v", "gate")]
    if not all(ranks):
        result.refused.append("RWKV-7 without the ranks of its gates (decay_low_rank_dim and others)")
    _linear(row, (hidden // size, size), (hidden // size, size), 2, sum(ranks))
    row |= {"num_attention_heads": hidden // size, "head_size": size, "num_query_groups": None}
    row["ffn_hidden_size"] = row.get("ffn_hidden_size") or int(hidden * (result.number("hidden_ratio") or 4))
    _listed(row, ["RWKV-7"] * num_layers(row))


def _near(row: Row, kinds: Sequence[str], window: int) -> None:
    row["attention_pattern"] = pattern([f"sliding {window}" if kind == "sliding" else "full" for kind in kinds])


def _mimo(row: Row, result: Reading) -> None:
    """Layers with a window have other key and value heads than layers with full attention (MiMo-V2)."""
    layers, marks = num_layers(row), as_list(result.config.get("hybrid_layer_pattern"))
    kinds = ["sliding" if mark else "full" for mark in marks]
    if not marks:
        kinds = _kinds(result, layers, {"sliding_attention": "sliding", "full_attention": "full"})
    window = result.number("sliding_window", "sliding_window_size")
    if len(kinds) != layers or not window:
        result.refused.append("layers with a window that hybrid_layer_pattern does not list")
    entries = {
        "local_num_attention_heads": "num_attention_heads",
        "local_num_query_groups": "num_key_value_heads",
        "local_head_size": "head_dim",
        "local_v_head_size": "v_head_dim",
    }
    row |= {column: result.number(f"swa_{entry}", entry) or None for column, entry in entries.items()}
    row["v_head_size"] = result.number("v_head_dim") or None
    result.config.read |= {"attention_chunk_size", "num_attention_groups"}
    _near(row, kinds, window)


def _other_heads(row: Row, result: Reading) -> None:
    """Layers with a window have another number of heads (Step 3.5, Laguna)."""
    config, layers = result.config, num_layers(row)
    kinds = ["full"] * layers
    if as_list(config.get("layer_types")):
        kinds = _kinds(result, layers, {"sliding_attention": "sliding", **dict.fromkeys(FULL, "full")})
    other = config.get("attention_other_setting") or {}
    heads = as_list(config.get("num_attention_heads_per_layer"))[:layers]
    by_kind = {kind: {count for count, each in zip(heads, kinds, strict=False) if each == kind} for kind in set(kinds)}
    if any(len(counts) > 1 for counts in by_kind.values()):
        result.refused.append("layers of one kind with unlike num_attention_heads_per_layer")
    elif heads:
        row |= {"num_attention_heads": max(by_kind.get("full") or by_kind["sliding"])}
        row["local_num_attention_heads"] = max(by_kind.get("sliding") or by_kind["full"])
    if other:
        row |= {
            "local_num_attention_heads": other.get("num_attention_heads"),
            "local_num_query_groups": other.get("num_attention_groups"),
            "local_head_size": other.get("head_dim"),
        }
    if "sliding" in kinds:
        _near(row, kinds, result.number("sliding_window"))


def _gemma(row: Row, result: Reading) -> None:
    """Layers that attend to everything have other heads; shared keys and values, embeddings of layers (Gemma 4)."""
    config, layers = result.config, num_layers(row)
    types = as_list(config.get("layer_types"))
    every = result.number("sliding_window_pattern", "_sliding_window_pattern") or 6
    kinds = ["full" if (layer + 1) % every == 0 or layer == layers - 1 else "sliding" for layer in range(layers)]
    if types:
        kinds = _kinds(result, layers, {"sliding_attention": "sliding", "full_attention": "full"})
    alike, size = bool(config.get("attention_k_eq_v")), row.get("head_size")
    row |= {"local_num_query_groups": row.get("num_query_groups"), "local_head_size": size}
    if alike:
        row["num_query_groups"] = result.number("num_global_key_value_heads") or row.get("num_query_groups")
    row |= {"head_size": result.number("global_head_dim") or size, "keys_as_values": "yes" if alike else None}
    shared = result.number("num_kv_shared_layers")
    row |= {"shared_kv_layers": shared or None}
    row["layer_embedding_size"] = result.number("hidden_size_per_layer_input") or None
    width = int(str(row.get("ffn_hidden_size") or 0))
    if shared and config.get("use_double_wide_mlp"):
        row["ffn_pattern"] = f"{layers - shared} dense {width} : {shared} dense {2 * width}"
    if row.get("num_experts"):
        row["ffn_pattern"] = f"{layers} dense + experts"
    elif config.get("enable_moe_block"):
        result.refused.append("experts of which no number is stated (enable_moe_block)")
    config.read |= {"enable_moe_block", "num_global_key_value_heads", "vocab_size_per_layer_input"}
    _near(row, kinds, result.number("sliding_window"))


def _blocks(row: Row, result: Reading) -> None:
    """Blocks that a search pruned: some layers lack attention or a feed-forward block, and widths differ (DeciLM)."""
    hidden, heads = result.number("hidden_size"), result.number("num_attention_heads")
    attention, feed, shares = [], [], set()
    for block in as_list(result.config.get("block_configs")):
        mixer, ffn = (block.get(name) or {} for name in ("attention", "ffn"))
        if mixer.get("replace_with_linear") or ffn.get("replace_with_linear"):
            result.refused.append("layers whose attention or feed-forward block is one matrix (replace_with_linear)")
        if mixer.get("window_length") or mixer.get("num_sink_tokens") or ffn.get("sparsify") or mixer.get("sparsify"):
            result.refused.append("layers with attention sinks or sparse weights (block_configs)")
        attention.append("none" if mixer.get("no_op") else "full")
        if not mixer.get("no_op"):
            shares.add(mixer.get("n_heads_in_group") or 1)
        multiple, width = ffn.get("ffn_mult"), ffn.get("intermediate_size")
        rounded = -(-int(2 * multiple * hidden / 3) // _WIDTH_MULTIPLE) * _WIDTH_MULTIPLE if multiple else 0
        width = width or rounded or result.number("intermediate_size")
        feed.append("none" if ffn.get("no_op") else f"dense {width}")
    if len(shares) > 1:
        result.refused.append("layers with unlike numbers of key and value heads (block_configs)")
    row |= {"num_query_groups": heads // max(shares, default=1) or None, "ffn_pattern": pattern(feed)}
    row["ffn_hidden_size"] = max((int(word.split()[1]) for word in feed if word != "none"), default=0)
    _listed(row, attention)


def _beside_experts(row: Row, result: Reading) -> None:
    """A dense feed-forward block beside the experts of every layer (Arctic, Grok 2)."""
    layers, width = num_layers(row), result.number("intermediate_size")
    if result.config.get("parallel_attn_mlp_res"):
        width = result.number("hidden_size")
    row |= {"ffn_hidden_size": width, "ffn_pattern": f"{layers} dense + experts"}


def _pairs(row: Row, result: Reading) -> None:
    """Two attention and two dense blocks in a layer, here two layers; experts beside the second (LongCat-Flash)."""
    layers, idle = num_layers(row), result.number("zero_expert_num")
    experts, chosen = (int(str(row.get(name) or 0)) for name in ("num_experts", "top_k"))
    row |= {"num_layers": 2 * layers, "ffn_pattern": f"{layers} dense : {layers} dense + experts"}
    row["top_k"] = round(chosen * experts / (experts + idle)) if experts else None
    if idle:
        result.left_out.append(
            f"{idle} experts that compute nothing take their share of the {chosen} choices of a token"
        )


def _shared_keys(row: Row, result: Reading) -> None:
    """Layers that use keys and values of the first of so many (cross-layer attention of Hunyuan-Large)."""
    layers, factor = num_layers(row), result.number("cla_share_factor") or 2
    if result.config.get("use_cla"):
        row["shared_kv_layers"] = layers - -(-layers // factor)


READERS: dict[str, Callable[[Row, Any], None]] = {
    "jamba": _jamba, "mamba": partial(_alone, word="Mamba-1"), "mamba2": partial(_alone, word="Mamba-2"),
    "granite": _granite, "parallel": _falcon_h1, "kimi": _kimi, "bailing": _bailing, "lightning": _lightning,
    "convolution": _convolution, "rwkv": _rwkv, "mimo": _mimo, "heads": _other_heads, "gemma": _gemma,
    "blocks": _blocks, "beside": _beside_experts, "pairs": _pairs, "keys": _shared_keys,
}  # fmt: skip
"""Readers of layers by the word of a model type."""


def vision_columns(config: Mapping[str, Any], row: Row) -> Row:
    """Columns of the vision encoder beside those of a language model; none of a type that is not known."""
    config = thinking_part(config)
    part = config.get("vision_config")
    if not isinstance(part, Mapping) or not part:
        return {}
    kinds = (str(config.get("model_type", "")), str(part.get("model_type", "")))
    known = {one["model_type"]: one for one in rows("interop/hugging_face_vision.csv")}
    kind = "pixtral" if kinds == ("llava", "pixtral") else kinds[0]
    if kind not in known:
        return {}
    family, result, outer = known[kind], Reading(Entries(part, {})), Reading(Entries(config, {}))
    width = result.number("embed_dim") or result.number("hidden_size")
    patch = result.number("patch_size", "spatial_patch_size")
    layers, heads = result.number("num_hidden_layers", "depth"), result.number("num_attention_heads", "num_heads")
    ratio = part.get("mlp_ratio") or 0.0
    ffn = result.number("intermediate_size") or (int(width * ratio) if is_number(ratio) else 0)
    side = result.number("image_size") or outer.number("force_image_size")
    if not (layers and width and heads and patch and ffn):
        return {}
    merge = _merged(result, outer, side // patch if side else 0)
    middle = {"merged": width * merge * merge, "": None}.get(family["middle"], row.get(family["middle"]))
    columns: Row = {
        "vision_layers": layers,
        "vision_hidden_size": width,
        "vision_ffn_size": ffn,
        "vision_num_heads": heads,
        "vision_gated_mlp": family["gated"],
        "vision_patch_size": patch,
        "vision_merge_size": merge,
        "vision_pooled": family["pooled"],
        "vision_temporal_patch": result.number("temporal_patch_size") or 1,
        "vision_projector_size": middle or result.number(family["middle"]) or None,
        "vision_projectors": 1 + len(as_list(part.get("deepstack_visual_indexes"))),
    }
    window = result.number("window_size") // (patch * merge) * merge
    if window:
        columns["vision_window"] = window * window
        columns["vision_full_layers"] = len(as_list(result.config.get("fullatt_block_indexes")))
    tiling = family["shape"].removeprefix("native").strip()
    if family["shape"].startswith("native"):
        largest = (side // (patch * merge)) ** 2
        columns["vision_min_tokens"] = int(family["min_tokens"])
        columns["vision_max_tokens"] = int(family["max_tokens"] or largest or 4096)
    else:
        columns |= {"vision_tile_size": side or 448, "vision_max_tiles": int(family["max_tiles"])}
    return columns | ({"vision_tiling": tiling} if tiling else {})


def _merged(result: Reading, outer: Reading, patches: int) -> int:
    """Patches of a side of the square that becomes a token: an entry, a ratio, or from the tokens of an image."""
    side = result.number("spatial_merge_size", "pooling_kernel_size") or outer.number("spatial_merge_size")
    ratio = result.config.get("pixel_shuffle_ratio") or outer.config.get("downsample_ratio") or 0.0
    tokens = outer.number("mm_tokens_per_image")
    if side:
        return side
    if is_number(ratio) and 0.01 < ratio <= 1.0:
        return round(1.0 / float(ratio))
    return max(1, patches // isqrt(tokens)) if tokens > 0 else 1
