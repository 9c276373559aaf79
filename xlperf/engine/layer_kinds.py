"""Which layers of a model attend how: windows, chunks, linear attention, sparse attention, as its row says it."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array
from xlperf.catalog.table import Table

_UNKNOWN_KINDS = frozenset(("linear", "sparse", "hybrid"))
_PATTERN = re.compile(r"(?P<near>\d+) (?P<kind>sliding|chunked) (?P<window>\d+) : (?P<far>\d+) full")
_LINEAR = re.compile(r"(?P<near>\d+) linear \(gated delta net\) : (?P<far>\d+) full")
_STATE_SPACE = re.compile(r"(?P<near>\d+) Mamba-2 : (?P<far>\d+) full : (?P<bare>\d+) feed-forward")
_SPARSE_PART = re.compile(r"(?P<count>\d+) (?P<kind>full|sliding|selected|compressed)(?: (?P<ratio>\d+))?")
LINEAR_COLUMNS = {
    "linear_key_heads": "linear_num_key_heads",
    "linear_value_heads": "linear_num_value_heads",
    "linear_key_size": "linear_key_head_size",
    "linear_value_size": "linear_value_head_size",
    "linear_convolution": "linear_convolution_size",
}
INDEX_COLUMNS = {
    "index_heads": "index_num_heads",
    "index_size": "index_head_size",
    "index_top_k": "index_top_k",
}


class LayerKinds(NamedTuple):
    """Layers of each kind, (models,).

    ``local`` layers see a ``window`` (``chunked``: a chunk), ``linear`` have no attention, ``bare`` are a feed-forward
    layer alone, ``selected`` and ``compressed`` are sparse with that number of tokens per entry; ``reasons`` say why a
    row is no model, "" where it is.
    """

    local: Array
    chunked: Array
    window: Array
    linear: Array
    bare: Array
    selected: Array
    compressed: Array
    selected_ratio: Array
    compressed_ratio: Array
    reasons: np.ndarray


def layer_kinds(models: Table) -> LayerKinds:
    """Kinds of the layers of models.

    Parameters
    ----------
    models : Table
        The sheet models.

    Returns
    -------
    LayerKinds
        One entry per row.
    """
    attention, pattern = models.filled("attention_type"), models.text("attention_pattern")
    window, layers, number = models.number("sliding_window"), models.number("num_layers"), len(models)
    local, chunked, linear, bare, selected, compressed = np.zeros((6, number))
    reasons, ratios = np.full(number, "", dtype=object), np.ones((2, number))
    found = LayerKinds(
        local, chunked, np.full(number, np.inf), linear, bare, selected, compressed, ratios[0], ratios[1], reasons
    )
    gated = models.filled("attention_output_gate") > 0.0
    shaped = ~np.isnan(sum(models.number(column) for column in LINEAR_COLUMNS.values()))
    indexed = ~np.isnan(sum(models.number(column) for column in INDEX_COLUMNS.values()))
    other = np.array([word in _UNKNOWN_KINDS for word in attention.tolist()], dtype=bool)
    for row in np.flatnonzero(other | (window > 0) | (pattern != "") | gated).tolist():
        text = str(pattern[row]).strip()
        near = _PATTERN.fullmatch(text)
        mixed, apart = _LINEAR.fullmatch(text), _STATE_SPACE.fullmatch(text)
        if apart is not None and sum(map(float, apart.groups())) != layers[row]:
            found.reasons[row] = f'has {layers[row]:g} layers, which are not those of its pattern ("{text}")'
        elif attention[row] == "hybrid" and apart is not None and shaped[row]:
            found.linear[row], found.bare[row] = float(apart["near"]), float(apart["bare"])
        elif attention[row] == "hybrid" and mixed is not None and shaped[row]:
            found.linear[row] = _share(layers[row], mixed)
        elif attention[row] == "sparse" and indexed[row] and text != "sparse attention variants":
            _sparse(found, row, text, float(layers[row]), float(window[row]))
        elif other[row]:
            found.reasons[row] = f"has {attention[row]} attention"
        elif gated[row]:
            found.reasons[row] = "has an output gate beside layers that are not hybrid"
        elif near is not None:
            found.local[row] = _share(layers[row], near)
            found.window[row], found.chunked[row] = float(near["window"]), float(near["kind"] == "chunked")
        elif text:
            found.reasons[row] = f'has layers of a kind that is not known ("{text}")'
        elif window[row] > 0:
            found.local[row], found.window[row] = layers[row], window[row]
    return found


def _share(layers: float, ratio: re.Match[str]) -> float:
    """Layers of the first kind where two kinds take turns."""
    near, far = float(ratio["near"]), float(ratio["far"])
    return float(np.round(layers * near / (near + far)))


def _sparse(found: LayerKinds, row: int, text: str, layers: float, window: float) -> None:
    """Layers of sparse attention: all select where no pattern says otherwise."""
    parts = [_SPARSE_PART.fullmatch(part.strip()) for part in text.split(" : ")] if text else []
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        found.reasons[row] = f'has layers of a kind that is not known ("{text}")'
        return
    if known and sum(float(part["count"]) for part in known) != layers:
        found.reasons[row] = f'has {layers:g} layers, which are not those of its pattern ("{text}")'
        return
    if any(part["kind"] == "sliding" for part in known) and np.isnan(window):
        found.reasons[row] = "has layers with a window that is not stated"
        return
    if not known:
        found.selected[row] = layers
    for part in known:
        count, ratio = float(part["count"]), float(part["ratio"] or 1.0)
        if part["kind"] == "selected":
            found.selected[row], found.selected_ratio[row] = count, ratio
        elif part["kind"] == "compressed":
            found.compressed[row], found.compressed_ratio[row] = count, ratio
        elif part["kind"] == "sliding":
            found.local[row], found.window[row] = count, window
