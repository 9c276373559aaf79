"""Models of published rows: by name or alias, with the printed shape in place of the catalog's."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Mapping
from functools import cache

import numpy as np

from xlperf.base.units import factor
from xlperf.calibrate.published import Published, package_rows
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table, aliases

_SHAPE = {
    "layers": "num_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_query_groups",
    "ffn": "ffn_hidden_size",
    "vocab": "vocab_size",
}
_REDUCED = re.compile(r"^(?P<base>.+?)-(?:l\d+|proxy)$", re.IGNORECASE)
_FLAGS = {"yes": 1.0, "no": 0.0, "": float("nan")}
_GIGA = factor("G")
_WIDTH_STEP = 1024.0
_SIZE_TOLERANCE = 0.01


class ModelNames:
    """Gives every published row the name of a model, and makes the models that the catalog does not have.

    Parameters
    ----------
    catalog : Catalog
        Where names and aliases are looked up.

    Attributes
    ----------
    networks : set of str
        Names of the catalog's networks, casefolded.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.networks = {name.casefold() for name in catalog.networks}
        self._table = catalog.tables["models"]
        self._columns = [column.name for column in self._table.schema.columns]
        self._known = {name.casefold(): row for row, name in enumerate(self._table.text("model").tolist())}
        for row, word in aliases(self._table):
            self._known.setdefault(word.casefold(), row)
        self._rows: dict[int, dict[str, object]] = {}
        self._made: dict[tuple[object, ...], str] = {}
        self._notes: dict[tuple[object, ...], str] = {}
        self._names: set[str] = set(self._known)
        self._new: list[dict[str, object]] = []

    def name(
        self, published: Published, row: int, corrected: Mapping[str, float] | None = None
    ) -> tuple[str, str, str]:
        """Name of the model of one row.

        ``corrected``: columns of models that the source gives otherwise than the row prints them. Returns name, what
        was assumed, and why there is none; the first or the last is "".
        """
        printed = [published.text[column][row] for column in ("model", "model_name")]
        shape = {_SHAPE[name]: float(published.number[name][row]) for name in _SHAPE if name in published.number}
        shape = {name: value for name, value in shape.items() if not math.isnan(value)} | dict(corrected or {})
        size = float(published.number["params_b"][row]) if "params_b" in published.number else math.nan
        length = float(published.number["seq_len" if published.kind == "training" else "isl"][row])
        base = self._base(printed)
        if base is None:
            family = _family(printed)
            needed = [name for name in ("num_layers", "hidden_size", "num_attention_heads") if name not in shape]
            if family is None or needed or "vocab_size" not in shape:
                return "", "", f'model "{printed[1] or printed[0]}" is not in the catalog'
            base = {"model": printed[1] or printed[0], **family}
        return self._variant(base, shape, size, length)

    def number(self, name: str, column: str) -> float:
        """A number of a model that :meth:`name` gave; NaN where it is blank."""
        made = next((model for model in self._new if model["model"] == name), None)
        if made is not None:
            return _number(made, column)
        known = self._known[name.casefold()]
        return float(self._table.number(column)[known]) if column in self._table else math.nan

    def catalog(self) -> Catalog:
        """The catalog with the models that were made."""
        if not self._new:
            return self._catalog
        columns: dict[str, np.ndarray] = {}
        for column in self._table.schema.columns:
            blank: object = "" if column.is_text else math.nan
            new = [made.get(column.name, blank) for made in self._new]
            if column.name in self._table or any(value not in ("", blank) for value in new):
                old = self._table.text(column.name) if column.is_text else self._table.number(column.name)
                columns[column.name] = np.concatenate(
                    [old, np.array(new, dtype=object if column.is_text else np.float64)]
                )
        place, rows = self._table.place, len(self._table)

        def locate(row: int, column: str) -> str:
            return place(row, column) if row < rows else f"published model {self._new[row - rows]['model']}"

        return self._catalog.with_tables([Table("models", columns, locate)])

    def _base(self, printed: list[str]) -> dict[str, object] | None:
        for name in (*printed, *(_full(name) for name in printed)):
            row = self._known.get(name.casefold()) if name else None
            if row is not None:
                if row not in self._rows:
                    table = self._table
                    self._rows[row] = {name: table[name][row] for name in self._columns if name in table}
                return self._rows[row]
        return None

    def _variant(
        self, base: Mapping[str, object], shape: Mapping[str, float], size: float, length: float
    ) -> tuple[str, str, str]:
        longer = length > _number(base, "max_sequence_length")
        model: dict[str, object] = {**base, **shape}
        derive = "ffn_hidden_size" not in shape and not math.isnan(size) and math.isnan(_number(base, "num_experts"))
        derive = derive and model["num_layers"] == base.get("num_layers", model["num_layers"])
        same = not longer and all(value == _effective(base, name) for name, value in shape.items())
        if same and (not derive or _agrees(model, size * _GIGA)):
            return str(base["model"]), "", ""
        key = (base["model"], *sorted(shape.items()), longer, size if derive else 0.0)
        if key in self._made:
            return self._made[key], self._notes[key], ""
        note = ""
        if derive and not _agrees(model, size * _GIGA):
            note = _derive(model, size * _GIGA)
        if math.isnan(_number(model, "ffn_hidden_size")):
            return "", "", f'model "{base["model"]}": the feed-forward width is not stated'
        if any(name in shape and shape[name] != base.get(name) for name in ("hidden_size", "num_attention_heads")):
            model["head_size"] = _number(model, "hidden_size") / _number(model, "num_attention_heads")
        if longer:
            model["max_sequence_length"] = length
        model["model"] = self._free(str(base["model"]))
        model["aliases"] = ""
        for stated in ("stated_parameters", "stated_active_parameters"):
            model.pop(stated, None)
        self._new.append(model)
        self._made[key], self._notes[key] = str(model["model"]), note
        return self._made[key], note, ""

    def _free(self, name: str) -> str:
        number, free = 1, name
        while free.casefold() in self._names:
            number += 1
            free = f"{name} as published {number}"
        self._names.add(free.casefold())
        return free


def _full(name: str) -> str:
    """Name of the model that a layer-reduced one was cut from.

    >>> _full("Llama3-70B-l12"), _full("Llama3.1-405B-proxy"), _full("GPT-8B")
    ('Llama3-70B', 'Llama3.1-405B', '')
    """
    found = _REDUCED.match(name)
    return found["base"] if found else ""


@cache
def _families() -> tuple[dict[str, str], ...]:
    return tuple(package_rows("published_families.csv"))


def _family(printed: list[str]) -> dict[str, object] | None:
    """Traits of a family of models by the printed name; None for a family that is not known."""
    for row in _families():
        if any(fnmatch.fnmatchcase(name.casefold(), row["pattern"]) for name in printed if name):
            return {
                "gated_mlp": _FLAGS[row["gated_mlp"]],
                "tied_embeddings": _FLAGS[row["tied_embeddings"]],
                "position_embedding": row["position_embedding"],
                "normalization": row["normalization"],
                "linear_bias": row["linear_bias"],
                "dropout": _FLAGS[row["dropout"]],
                "source": row["source"],
                "kind": "assumption",
            }
    return None


def _number(model: Mapping[str, object], name: str) -> float:
    value = model.get(name, math.nan)
    assert isinstance(value, (int, float))
    return float(value)


def _effective(model: Mapping[str, object], name: str) -> float:
    value = _number(model, name)
    if math.isnan(value) and name == "num_query_groups":
        return _number(model, "num_attention_heads")
    return value


def _parameters(model: Mapping[str, object], tied: float, width: float) -> float:
    """Parameters of the matrices and embeddings of a dense model."""
    hidden, heads = _number(model, "hidden_size"), _number(model, "num_attention_heads")
    head = _number(model, "head_size")
    head = hidden / heads if math.isnan(head) else head
    matrices = 3.0 if _number(model, "gated_mlp") == 1.0 else 2.0
    layer = 2.0 * hidden * head * (heads + _effective(model, "num_query_groups")) + matrices * hidden * width
    return (2.0 - tied) * _number(model, "vocab_size") * hidden + _number(model, "num_layers") * layer


def _agrees(model: Mapping[str, object], parameters: float) -> bool:
    """Whether a model has the stated parameters within 1 %; one with open ends does not."""
    found = _parameters(model, _number(model, "tied_embeddings"), _number(model, "ffn_hidden_size"))
    return abs(found / parameters - 1.0) < _SIZE_TOLERANCE


def _derive(model: dict[str, object], parameters: float) -> str:
    """Set the feed-forward width, and tied embeddings where they are open, from the stated parameters.

    The width is a multiple of 1,024; where none comes within 1 % the model stays as it is.
    """
    tied = _number(model, "tied_embeddings")
    choices = []
    for choice in [0.0, 1.0] if math.isnan(tied) else [tied]:
        slope = _parameters(model, choice, _WIDTH_STEP) - _parameters(model, choice, 0.0)
        steps = max(1.0, float(round((parameters - _parameters(model, choice, 0.0)) / slope)))
        found = _parameters(model, choice, steps * _WIDTH_STEP)
        choices.append((abs(found / parameters - 1.0), choice, steps * _WIDTH_STEP))
    error, tied, width = min(choices)
    if error > _SIZE_TOLERANCE:
        return ""
    model["tied_embeddings"], model["ffn_hidden_size"] = tied, width
    words = "tied" if tied else "separate"
    return f"feed-forward width {width:.0f} and {words} embeddings from the stated parameters"
