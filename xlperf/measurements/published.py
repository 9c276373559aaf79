"""Published measurements as printed: rows of a CSV file or of ``validation.xlsx``, and their models.

``published_columns.csv`` beside this module names the columns. :mod:`xlperf.measurements.training` and
:mod:`xlperf.measurements.inference` turn rows into plans. A model is found by name or alias, and the printed shape
replaces the catalog's.
"""

from __future__ import annotations

import difflib
import fnmatch
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from xlperf.base import resources
from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError, raise_faults
from xlperf.base.units import factor
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.cells import DateNumber, ErrorValue, Unsaved, cell_text, is_blank, number_of, shown
from xlperf.catalog.csv_files import read_csv
from xlperf.catalog.table import Place, Table, aliases, column_letters, stacked
from xlperf.catalog.xlsx import Workbook

KINDS = ("training", "inference")
POWER = "power"  # kind of the rows of measured power: a sheet of its own, for nothing but times is fitted on the others
MOST_VALUES = 10_000_000  # cells, blank ones among them, of a sheet of published rows
_REQUIRED = ("row_id", "model", "gpu", "n_gpus")
_YES = {"true": 1.0, "yes": 1.0, "1": 1.0, "1.0": 1.0, "false": 0.0, "no": 0.0, "0": 0.0, "0.0": 0.0}


@cache
def published_columns() -> dict[str, dict[str, str]]:
    """Columns of published rows: kind of sheet -> column -> text, number or flag."""
    columns: dict[str, dict[str, str]] = {kind: {} for kind in (*KINDS, POWER)}
    for row in resources.rows("measurements/published_columns.csv"):
        columns[row["table"]][row["column"]] = row["kind"]
    return columns


@dataclass(frozen=True)
class Published:
    """Published rows of one kind, column by column."""

    kind: str
    text: Mapping[str, list[str]]  # every column of the kind, "" if blank
    number: Mapping[str, Array]  # number and flag columns, NaN if blank
    place: Place = field(compare=False)

    def __len__(self) -> int:
        return len(self.text["row_id"])

    def take(self, rows: Sequence[int] | np.ndarray) -> Published:
        """Some rows, in the order given."""
        index = np.asarray(rows, dtype=np.int64)
        place = self.place
        return Published(
            self.kind,
            {name: [values[row] for row in index] for name, values in self.text.items()},
            {name: values[index] for name, values in self.number.items()},
            lambda row, column: place(int(index[row]), column),
        )


@dataclass(frozen=True)
class PublishedPlans:
    """Published rows turned into plans."""

    published: Published
    plans: Table  # of the rows that state enough; only `catalog` knows some of their models
    index: np.ndarray  # row of `published` of each plan [-]
    reference: np.ndarray  # denominator plan of a ratio, -1 for none [-]
    reasons: np.ndarray  # why a row is not a plan, "" if it is, (published rows,)
    notes: np.ndarray  # assumptions, (published rows,)
    catalog: Catalog  # with models of the printed shapes added


def read_published(path: str | Path) -> list[Published]:
    """Published rows of each kind in a CSV file or workbook; other columns are faults if they look misspelt."""
    path = Path(path)
    if path.suffix.lower() in (".xlsx", ".xlsm"):
        return _from_workbook(path)
    return [_from_csv(path)]


def _from_csv(path: Path) -> Published:
    if path.suffix.lower() == ".parquet":
        raise InputError(Fault(path.name, "published rows are read from a workbook (.xlsx) or CSV, got a Parquet file"))
    file = read_csv(path)
    header = [name.strip() for name in file.header]
    texts = [[str(words[code]) for code in codes.tolist()] for codes, words in file.columns if words is not None]

    def place(row: int, column: str) -> str:
        line = int(file.locate.lines[row]) if row >= 0 else 0
        return f"{path.name} [line {line}, {column}]" if row >= 0 else f"{path.name} [header]"

    return published_rows(header, list(zip(*texts, strict=True)), place)


def _from_workbook(path: Path) -> list[Published]:
    results = []
    for kind in KINDS:
        sheet = sheet_rows(path, kind, "row_id")
        if sheet is not None:
            header, rows, place = sheet
            results.append(published_rows(header, rows, place))
    if not results:
        raise InputError(Fault(path.name, "has neither a sheet training nor a sheet inference with a column row_id"))
    return results


def read_power(path: str | Path) -> list[Published]:
    """Rows of measured power in the sheet ``power`` of a workbook; none without such a sheet, or in a CSV file."""
    path = Path(path)
    sheet = sheet_rows(path, POWER, "row_id") if path.suffix.lower() in (".xlsx", ".xlsm") else None
    return [] if sheet is None else [published_rows(*sheet)]


def sheet_rows(path: Path, name: str, first: str) -> tuple[list[str], list[list[str]], Place] | None:
    """Header, rows as text and places of the table whose header has the column ``first``; None without it."""
    with Workbook(path) as book:
        sheet = book.sheet(name)
        cells = book.cells(sheet) if sheet is not None else {}
        top = next((row for row in sorted(cells) if first in cells[row].values()), None)
        if top is None or sheet is None:
            return None
        columns = {str(value).strip(): column for column, value in cells[top].items() if not is_blank(value)}
        numbers = [row for row in sorted(cells) if row > top]
        if len(numbers) * len(columns) > MOST_VALUES:
            problem = f"holds {len(numbers):,} rows of {len(columns):,} columns; {MOST_VALUES:,} values are the most"
            raise InputError(Fault(f"{book.name} [{sheet}]", problem))
        where = f"{book.name} [{sheet}!"

        def place(row: int, column: str) -> str:
            letters = column_letters(columns.get(column, min(columns.values())))
            return f"{where}{letters}{numbers[row] if row >= 0 else top}]"

        faults = [
            Fault(place(row, name), f"{name} is {shown(cells[number][column])}; enter a value")
            for row, number in enumerate(numbers)
            for name, column in columns.items()
            if isinstance(cells[number].get(column), (ErrorValue, Unsaved))
        ]
        raise_faults(faults)
        rows = [[_exact(cells[number].get(column)) for column in columns.values()] for number in numbers]
    return list(columns), rows, place


def _exact(value: object) -> str:
    """A cell as text, a number with all of its digits."""
    if isinstance(value, float) and not isinstance(value, DateNumber) and not value.is_integer():
        return repr(value)
    return "" if value is None else cell_text(value)


def published_rows(header: Sequence[str], rows: Sequence[Sequence[str]], place: Place) -> Published:
    """Check a header and its rows of text, located by ``place(row, column)``; InputError has every fault. Rows with a
    column ``avg_power_w_per_gpu`` are of measured power, else with ``isl`` of inference, else of training.
    """
    kind = POWER if "avg_power_w_per_gpu" in header else "inference" if "isl" in header else "training"
    columns = published_columns()[kind]
    at = {name: number for number, name in enumerate(header)}
    faults = _header_faults(header, columns, place)
    raise_faults(faults)
    text = {name: [row[at[name]].strip() for row in rows] if name in at else [""] * len(rows) for name in columns}
    number: dict[str, Array] = {}
    for name, sort in columns.items():
        if sort != "text":
            number[name] = _numbers(text[name], name, sort, place, faults)
    seen: dict[str, int] = {}
    for row, row_id in enumerate(text["row_id"]):
        if not row_id:
            faults.append(Fault(place(row, "row_id"), "row_id is blank; each published row needs a name"))
        elif row_id in seen:
            faults.append(Fault(place(row, "row_id"), f'"{row_id}" is the name of an earlier row too'))
        seen[row_id] = row
    raise_faults(faults)
    return Published(kind, text, number, place)


def _header_faults(header: Sequence[str], columns: Mapping[str, str], place: Place) -> list[Fault]:
    where = place(-1, "row_id")
    faults = [Fault(where, f"has no column {name}") for name in _REQUIRED if name not in header]
    missing = [name for name in columns if name not in header]
    for name in header:
        if name and name not in columns:
            close = difflib.get_close_matches(name, missing, n=1, cutoff=0.8)
            if close:
                faults.append(Fault(where, f'has a column "{name}"; did you mean {close[0]}?'))
    for name in sorted(name for name, number in Counter(header).items() if name and number > 1):
        faults.append(Fault(where, f'has the column "{name}" more than once'))
    return faults


def _numbers(values: Sequence[str], name: str, sort: str, place: Place, faults: list[Fault]) -> Array:
    parsed = np.full(len(values), np.nan)
    for row, value in enumerate(values):
        if not value:
            continue
        try:
            parsed[row] = _YES[value.casefold()] if sort == "flag" else number_of(value)
        except KeyError:
            wanted = "True or False" if sort == "flag" else "a number"
            faults.append(Fault(place(row, name), f'{name} must be {wanted}, got "{value[:60]}"'))
            continue
        if not math.isfinite(parsed[row]):
            faults.append(Fault(place(row, name), f'{name} must be a number, got "{value[:60]}"'))
    return parsed


_SHAPE = {
    "layers": "num_layers", "hidden": "hidden_size", "heads": "num_attention_heads", "kv_heads": "num_query_groups",
    "ffn": "ffn_hidden_size", "vocab": "vocab_size",
}  # fmt: skip
_REDUCED = re.compile(r"^(?P<base>.+?)-(?:l\d+|proxy)$", re.IGNORECASE)
_FLAGS = {"yes": 1.0, "no": 0.0, "": float("nan")}
_GIGA = factor("G")
_WIDTH_STEP = 1024.0
_SIZE_TOLERANCE = 0.01


class Refusal(Exception):
    """Why a published row is not a plan, in words."""


class ModelNames:
    """Finds the model of every published row, and makes models that the catalog lacks."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.networks = {name.casefold() for name in catalog.networks}
        self._table = catalog.tables["models"]
        self._columns = [column.name for column in self._table.schema.columns]
        self._known = {name.casefold(): row for row, name in enumerate(self._table.text("model").tolist())}
        for row, word in aliases(self._table):
            self._known.setdefault(word.casefold(), row)
        self._rows: dict[int, dict[str, object]] = {}
        self._made: dict[tuple[object, ...], tuple[str, tuple[str, ...]]] = {}  # name and assumptions by shape
        self._names: set[str] = set(self._known)
        self._new: list[dict[str, object]] = []

    def name(self, published: Published, row: int) -> tuple[str, list[str]]:
        """Name of a row's model, and assumptions; Refusal if it has none."""
        printed = [published.text[column][row] for column in ("model", "model_name")]
        shape = {_SHAPE[name]: float(published.number[name][row]) for name in _SHAPE if name in published.number}
        shape = {name: value for name, value in shape.items() if not math.isnan(value)}
        size = float(published.number["params_b"][row]) if "params_b" in published.number else math.nan
        length = float(published.number["seq_len" if published.kind == "training" else "isl"][row])
        base = self._base(printed)
        if base is None:
            family = _family(printed)
            needed = [name for name in ("num_layers", "hidden_size", "num_attention_heads") if name not in shape]
            if family is None or needed or "vocab_size" not in shape:
                raise Refusal(f'model "{printed[1] or printed[0]}" is not in the catalog')
            base = {"model": printed[1] or printed[0], **family}
        name, notes = self._variant(base, shape, size, length)
        return name, list(notes)

    def number(self, name: str, column: str) -> float:
        """A number of a model named by :meth:`name`; NaN if blank."""
        made = next((model for model in self._new if model["model"] == name), None)
        if made is not None:
            return _number(made, column)
        known = self._known[name.casefold()]
        return float(self._table.number(column)[known]) if column in self._table else math.nan

    def text(self, name: str, column: str) -> str:
        """A word of a model named by :meth:`name`; "" if blank."""
        known = self._known.get(name.casefold())
        return str(self._table.text(column)[known]) if known is not None else ""

    def catalog(self) -> Catalog:
        """The catalog with the models that were made."""
        if not self._new:
            return self._catalog
        columns: dict[str, np.ndarray] = {}
        for column in self._table.schema.columns:
            blank: object = "" if column.is_text else math.nan
            values = column.array([made.get(column.name, blank) for made in self._new])
            if (values != "").any() if column.is_text else not np.isnan(values).all():
                columns[column.name] = values
        made = Table("models", columns, lambda row, _: f"published model {self._new[row]['model']}")
        return self._catalog.with_tables([stacked([self._table, made])])

    def _base(self, printed: list[str]) -> dict[str, object] | None:
        for name in (*printed, *(match["base"] for match in map(_REDUCED.match, printed) if match)):
            row = self._known.get(name.casefold()) if name else None
            if row is not None:
                if row not in self._rows:
                    table = self._table
                    self._rows[row] = {name: table[name][row] for name in self._columns if name in table}
                return self._rows[row]
        return None

    def _variant(
        self, base: Mapping[str, object], shape: Mapping[str, float], size: float, length: float
    ) -> tuple[str, tuple[str, ...]]:
        longer = length > _number(base, "max_sequence_length")
        model: dict[str, object] = {**base, **shape}
        derive = "ffn_hidden_size" not in shape and not math.isnan(size) and math.isnan(_number(base, "num_experts"))
        derive = derive and model["num_layers"] == base.get("num_layers", model["num_layers"])
        same = not longer and all(value == _effective(base, name) for name, value in shape.items())
        if same and (not derive or _agrees(model, size * _GIGA)):
            return str(base["model"]), ()
        key = (base["model"], *sorted(shape.items()), longer, size if derive else 0.0)
        if key in self._made:
            return self._made[key]
        note = _derive(model, size * _GIGA) if derive and not _agrees(model, size * _GIGA) else ""
        if math.isnan(_number(model, "ffn_hidden_size")):
            raise Refusal(f'model "{base["model"]}": the feed-forward width is not stated')
        if any(name in shape and shape[name] != base.get(name) for name in ("hidden_size", "num_attention_heads")):
            model["head_size"] = _number(model, "hidden_size") / _number(model, "num_attention_heads")
        if longer:
            model["max_sequence_length"] = length
        model["model"] = self._free(str(base["model"]))
        model["aliases"] = ""
        for stated in ("stated_parameters", "stated_active_parameters"):
            model.pop(stated, None)
        self._new.append(model)
        self._made[key] = str(model["model"]), (note,) if note else ()
        return self._made[key]

    def _free(self, name: str) -> str:
        number, free = 1, name
        while free.casefold() in self._names:
            number += 1
            free = f"{name} as published {number}"
        self._names.add(free.casefold())
        return free


def _family(printed: list[str]) -> dict[str, object] | None:
    """Traits of a family of models by the printed name; None for a family that is not known."""
    for row in resources.rows("measurements/published_families.csv"):
        if any(fnmatch.fnmatchcase(name.casefold(), row["pattern"]) for name in printed if name):
            texts = {name: row[name] for name in ("position_embedding", "normalization", "linear_bias", "source")}
            flags = {name: _FLAGS[row[name]] for name in ("gated_mlp", "tied_embeddings", "dropout")}
            return {**texts, **flags, "kind": "assumption"}
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
    result = _parameters(model, _number(model, "tied_embeddings"), _number(model, "ffn_hidden_size"))
    return abs(result / parameters - 1.0) < _SIZE_TOLERANCE


def _derive(model: dict[str, object], parameters: float) -> str:
    """Derive feed-forward width, a multiple of 1,024, and open tied embeddings from parameters; "" beyond 1 %."""
    tied = _number(model, "tied_embeddings")
    choices = []
    for choice in [0.0, 1.0] if math.isnan(tied) else [tied]:
        slope = _parameters(model, choice, _WIDTH_STEP) - _parameters(model, choice, 0.0)
        steps = max(1.0, float(round((parameters - _parameters(model, choice, 0.0)) / slope)))
        result = _parameters(model, choice, steps * _WIDTH_STEP)
        choices.append((abs(result / parameters - 1.0), choice, steps * _WIDTH_STEP))
    error, tied, width = min(choices)
    if error > _SIZE_TOLERANCE:
        return ""
    model["tied_embeddings"], model["ffn_hidden_size"] = tied, width
    words = "tied" if tied else "separate"
    return f"feed-forward width {width:.0f} and {words} embeddings from the stated parameters"
