"""The vision encoder of a Hugging Face configuration (``vision_config``) as columns of the sheet ``models``.

``hugging_face_vision.csv`` has by model type the properties that only the code of a model has: gated layers, which
images keep their shape, the width inside the projector.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any

from xlperf.base.resources import rows
from xlperf.interop.hugging_face_files import Entries, thinking_part
from xlperf.interop.hugging_face_layers import Reading, Row, is_number


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
        "vision_layers": layers, "vision_hidden_size": width, "vision_ffn_size": ffn, "vision_num_heads": heads,
        "vision_gated_mlp": family["gated"], "vision_patch_size": patch, "vision_merge_size": merge,
        "vision_pooled": family["pooled"], "vision_temporal_patch": result.number("temporal_patch_size") or 1,
        "vision_projector_size": middle or result.number(family["middle"]) or None,
        "vision_projectors": 1 + len(part.get("deepstack_visual_indexes") or ()),
    }  # fmt: skip
    window = result.number("window_size") // (patch * merge) * merge
    if window:
        columns["vision_window"] = window * window
        columns["vision_full_layers"] = len(result.config.get("fullatt_block_indexes") or ())
    if family["shape"] == "native":
        largest = (side // (patch * merge)) ** 2
        columns["vision_min_tokens"] = int(family["min_tokens"])
        columns["vision_max_tokens"] = int(family["max_tokens"] or largest or 4096)
    else:
        columns |= {"vision_tile_size": side or 448, "vision_max_tiles": int(family["max_tiles"])}
        columns["vision_tiling"] = family["shape"]
    return columns


def _merged(result: Reading, outer: Reading, patches: int) -> int:
    """Patches of a side of the square that becomes a token: an entry, a ratio, or from the tokens of an image."""
    side = result.number("spatial_merge_size", "pooling_kernel_size") or outer.number("spatial_merge_size")
    ratio = result.config.get("pixel_shuffle_ratio") or outer.config.get("downsample_ratio") or 0.0
    tokens = outer.number("mm_tokens_per_image")
    if side:
        return side
    if is_number(ratio) and ratio > 0.0:
        return round(1.0 / float(ratio))
    return patches // isqrt(tokens) if tokens and patches else 1
