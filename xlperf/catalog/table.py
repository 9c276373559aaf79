"""A table in memory: columns in the units used inside, places of values, keys, names and aliases."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from xlperf.base.arrays import Columns, is_repeated, mapped, repeated, taken
from xlperf.catalog.cells import shown
from xlperf.catalog.schema import TableSchema, table_schema, unit_of

if TYPE_CHECKING:
    from collections.abc import Iterable


_TRAINED = (
    r"instruct|chat|base|it|pt|sft|rl|hf|mcore|megatron|torch|dist|slime|pretrain|pretraining|finetune|config|recipe"
    r"|thinking|preview|\d{4}|\d{6}|\d{8}|\d{1,3}k|v0\.1|terminus|exp|main|latest|tokendrop|dropless"
)
_STORED = (
    r"quantized|dynamic|block|static|tensor|pertensor|kv|bf16|fp16|fp8|fp4|nvfp4|nvfp4a16|mxfp4|mxfp8|int4|int8|awq"
    r"|gptq|w4a16|w8a16|w8a8|w4a8|w4afp8|autoround|sym|ptpc|bnb|nf4|4bit|8bit|smoothquant"
)
_LEFT_OUT = {
    "models": re.compile(rf"{_TRAINED}|{_STORED}|v?\d[\d.]*[bmgte]?|\d+x\d[\d.]*b|[ae]\d[\d.]*b"),
    "accelerators": re.compile(r"sxm\d?|pcie|oam|nvl\d*|\d+gb|hbm\w*|\d+w|vr\d+|ironwood"),
}
"""Words that a name may leave out at its end: variants, sizes, boards. Others tell models and cards apart: GLM-4.5 is
no GLM-4.5-Air, an RTX 4060 no RTX 4060 Ti."""
_MAKERS = frozenset("nvidia geforce rtx amd instinct tesla huawei".split())
_SIZE = {"models": re.compile(r"(\d[\d.]*)([bt])"), "accelerators": re.compile(r"(\d+)(gb)")}
_AGREES = {"models": 0.03, "accelerators": 0.08}
"""Share by which a size in a name may be off: 685B counts the prediction layers of a model of 671B; of a card of 192 GB
the driver reports 179."""
_VARIANT = {False: re.compile(_TRAINED), True: re.compile(f"{_TRAINED}|{_STORED}")}


def without_variants(text: str, formats: bool) -> Iterator[str]:
    """A name, without its owner, less one and more variant words at its end, the longest first; ``formats`` of weights
    count.

    >>> list(without_variants("Llama-3.1-8B-Instruct-FP8", True)), list(without_variants("Qwen3-8B-FP8", False))
    (['Llama-3.1-8B-Instruct', 'Llama-3.1-8B'], [])
    """
    words, is_variant = re.split(r"[-_ ]+", text), _VARIANT[formats].fullmatch
    while len(words) > 1:
        last = words.pop().casefold()
        parts = [part for part in re.split(r"[.,()]", last) if part]
        if not is_variant(last) and not (parts and all(map(is_variant, parts))):
            return
        yield "-".join(words)


CASES = ("low", "base", "high")  # cases of prices: a sheet may give a column twice more, with these endings

Place = Callable[[int, str], str]  # ``place(row, column)``: cell of a value, for messages; row -1 is the header
Locate = Callable[[int, int], str]
"""``locate(row, position)``: cell, for messages; row -1 is the header, position -1 the whole row."""


@lru_cache(maxsize=4096)
def column_letters(number: int) -> str:
    """Letters of a column of a sheet: AB of 28."""
    letters = ""
    while number > 0:
        number, rest = divmod(number - 1, 26)
        letters = chr(65 + rest) + letters
    return letters


@dataclass(frozen=True)
class SheetCells:
    """Cells of rows on a sheet, by row and position: ``xlperf.xlsx [accelerators!F7]``."""

    book: str
    sheet: str
    header_row: int
    rows: Sequence[int]
    columns: Sequence[int]

    def __call__(self, row: int, position: int) -> str:
        """The cell; the sheet alone for the whole header."""
        if position < 0 and row < 0:
            return f"{self.book} [{self.sheet}]"
        letters = column_letters(self.columns[max(position, 0)])
        return f"{self.book} [{self.sheet}!{letters}{self.rows[row] if row >= 0 else self.header_row}]"


@dataclass(frozen=True)
class NamedCells:
    """Cells of a table by column name: the source's row of each of its rows, and the position of each column."""

    locate: Locate
    rows: Sequence[int]
    positions: Mapping[str, int]

    def __call__(self, row: int, column: str) -> str:
        """Place of the value in the source."""
        return self.locate(self.rows[row] if row >= 0 else -1, self.positions.get(column, -1))


def place_of_row(place: Place, rows: np.ndarray, row: int, column: str) -> str:
    """Place of a value in a table of selected rows: its place in the original table."""
    return place(int(rows[row]) if row >= 0 else -1, column)


def nowhere(row: int, column: str) -> str:
    """Place of a value whose source has no name: row and column in words; row -1 is the header."""
    line = "header" if row < 0 else f"row {row + 1}"
    words = " ".join(column.replace("_", " ").split())[:60]
    return f"{line}, {words}" if words else line


@cache
def default_value(kind: str, column: str) -> str | float:
    """Default of a column in the unit used inside; NaN or "" if it has none."""
    declared = table_schema(kind).by_name[column]
    if declared.is_text:
        return declared.default
    if declared.kind == "flag":
        return {"yes": 1.0, "no": 0.0}.get(declared.default, float("nan"))
    return float(declared.default or "nan") * unit_of(declared).factor


@dataclass(frozen=True)
class Table:
    """Rows of one kind of sheet, column by column; columns that the source lacks are absent."""

    kind: str  # name of the sheet in the schema
    columns: Mapping[str, np.ndarray]  # float64 (NaN if blank; flags 0 or 1) or object arrays of str ("" if blank)
    place: Place = field(default=nowhere, compare=False)
    # Masks of values that are the word auto, which are blank in columns
    auto: Mapping[str, np.ndarray] = field(default_factory=dict, compare=False)
    # Unknown columns of plans by header, text or float64, which pass through to the results
    own: Mapping[str, np.ndarray] = field(default_factory=dict, compare=False)

    def __len__(self) -> int:
        for values in self.columns.values():
            return len(values)
        return 0

    def __getitem__(self, column: str) -> np.ndarray:
        return self.columns[column]

    def __contains__(self, column: object) -> bool:
        return column in self.columns

    @property
    def schema(self) -> TableSchema:
        """Schema of the kind."""
        return table_schema(self.kind)

    def in_case(self, case: str) -> Table:
        """The table in a case: ``low`` has the values of columns ``..._low``, ``high`` of ``..._high``."""
        columns = dict(self.columns)
        for name in self.columns:
            own = name.removesuffix(f"_{case}")
            if own != name and own in self.schema.by_name:
                given = self.columns[name]
                columns[own] = np.where(np.isnan(given), self.number(own), given)
        return Table(self.kind, columns, self.place, self.auto, self.own)

    def number(self, column: str, default: float = float("nan")) -> np.ndarray:
        """A number column with blanks replaced, or the default if the table lacks the column."""
        values = self.columns.get(column)
        if values is None:
            return repeated(default, len(self))
        if default != default:
            return values
        if is_repeated(values):
            return repeated(default, len(self)) if values[0] != values[0] else values
        blank = np.isnan(values)
        return np.where(blank, default, values) if np.count_nonzero(blank) else values

    def text(self, column: str, default: str = "") -> np.ndarray:
        """A text column with blanks replaced, or the default if the table lacks the column."""
        values = self.columns.get(column)
        if values is None:
            return repeated(default, len(self), object)
        if is_repeated(values):
            return values if values[0] else repeated(default, len(self), object)
        return np.where(values == "", default, values).astype(object) if default else values

    def filled(self, column: str) -> np.ndarray:
        """A column with the schema's default (in the unit used inside) if it is blank or absent."""
        default = default_value(self.kind, column)
        return self.text(column, default) if isinstance(default, str) else self.number(column, default)

    def codes(self, column: str, numbers: Mapping[str, int]) -> np.ndarray:
        """Codes of the words of a text column; blank cells have the code of the schema's default."""
        blank = str(default_value(self.kind, column))
        values = self.columns.get(column)
        if values is None:
            return repeated(numbers[blank], len(self), np.int64)
        known = {**numbers, "": numbers[blank]} if blank in numbers else numbers
        return mapped(known.__getitem__, values, np.int64)

    @staticmethod
    def of_lines(kind: str, lines: Sequence[Mapping[str, object]]) -> Table:
        """A table from its rows, each with a value in the unit used inside for every column of the kind."""
        columns = table_schema(kind).columns
        return Table(kind, {c.name: c.array([line[c.name] for line in lines]) for c in columns})

    def with_columns(self, columns: Mapping[str, np.ndarray]) -> Table:
        """The table with some columns replaced, or added at the end; they are no longer ``auto``."""
        auto = {name: mask for name, mask in self.auto.items() if name not in columns}
        return replace(self, columns={**self.columns, **columns}, auto=auto)

    def stated(self, name: str) -> float:
        """Number of the first row; NaN if it is blank."""
        return float(self.number(name)[0])

    def value(self, name: str) -> float:
        """Number of the first row, with the default for a blank; NaN without one."""
        return float(self.filled(name)[0])

    def stated_word(self, name: str) -> str:
        """Text of the first row; "" if it is blank."""
        return str(self.text(name)[0])

    def word(self, name: str) -> str:
        """Text of the first row, with the default for a blank."""
        return str(self.filled(name)[0])

    def in_order(self) -> Table:
        """The table with its columns in the order of the schema."""
        known = self.schema.by_name
        return replace(self, columns={name: self.columns[name] for name in known if name in self.columns})

    def take(self, rows: np.ndarray | slice | Sequence[int]) -> Table:
        """Some rows, in the order given; places still name the original rows."""
        index = np.arange(len(self))[rows]
        chosen = rows if isinstance(rows, slice) else index
        return Table(
            self.kind,
            {name: taken(values, chosen) for name, values in self.columns.items()},
            partial(place_of_row, self.place, index),
            {name: values[index] for name, values in self.auto.items()},
            {name: values[index] for name, values in self.own.items()},
        )


def stacked(tables: Sequence[Table]) -> Table:
    """Rows of several tables of one kind, one below the other; places name their sources."""
    columns = {}
    for name, column in tables[0].schema.by_name.items():
        if any(name in table for table in tables):
            read = Table.text if column.is_text else Table.number
            columns[name] = np.concatenate([read(table, name) for table in tables])
    return Table(tables[0].kind, columns, partial(_stacked_place, [(len(table), table.place) for table in tables]))


def _stacked_place(parts: Sequence[tuple[int, Place]], row: int, column: str) -> str:
    for length, place in parts:
        if row < length:
            return place(row, column)
        row -= length
    return parts[-1][1](-1, column)


class Words(NamedTuple):
    """A column of words as codes into its distinct values: ``words[codes[row]]``."""

    codes: np.ndarray
    words: Sequence[str]

    def take(self, rows: np.ndarray) -> Words:
        """Words of some of the rows."""
        return Words(self.codes[rows], self.words)


@dataclass(frozen=True, slots=True)
class Keys:
    """Distinct (generation, precision, software) of many rows: ``distinct[codes[row]]``."""

    codes: np.ndarray
    distinct: tuple[tuple[str, str, str], ...]


def coded_words(values: Sequence[str]) -> Words:
    """Codes and distinct values of a column of words."""
    seen = {value: code for code, value in enumerate(dict.fromkeys(values))}
    return Words(np.array(list(map(seen.__getitem__, values)), dtype=np.int64), tuple(seen))


def combined_keys(generation: Words, precision: Words, software: Words) -> Keys:
    """Distinct combinations of three columns of words: generation, precision and software of plans."""
    parts = (generation, precision, software)
    if len(generation.codes) == 1:
        first, second, third = (part.words[part.codes[0]] for part in parts)
        return Keys(np.zeros(1, dtype=np.int64), ((first, second, third),))
    pairs = generation.codes * len(precision.words) + precision.codes
    index = pairs * len(software.words) + software.codes
    present = np.zeros(math.prod(len(part.words) for part in parts), dtype=bool)
    present[index] = True
    values = np.flatnonzero(present)
    place = np.zeros(len(present), dtype=np.int64)
    place[values] = np.arange(len(values))
    distinct = []
    for code in values.tolist():
        pair, third = divmod(code, len(software.words))
        first, second = divmod(pair, len(precision.words))
        distinct.append((generation.words[first], precision.words[second], software.words[third]))
    return Keys(place[index], tuple(distinct))


def key_faults(table: Table) -> list[tuple[int, str, str]]:
    """Faults of keys: (row, column, problem). A network row has name and tier, a calibration row name and scope."""
    key = table.schema.key.name
    if key not in table:
        return []
    if table.kind == "networks":
        return list(_tier_faults(table))
    faults = list(_duplicates(table, [key], key))
    if table.kind == "models":
        faults += _alias_faults(table)
    if table.kind == "calibration" and not faults:
        faults += _duplicates(table, ["family", "generation", "precision", "software", "constant"], "constant")
    return faults


def _duplicates(table: Table, columns: list[str], shown_at: str) -> Iterator[tuple[int, str, str]]:
    words = shown_at.replace("_", " ")
    default = "any" if len(columns) > 1 else ""
    parts = [[str(value).casefold() for value in table.text(column, default)] for column in columns]
    first: dict[tuple[str, ...], int] = {}
    for row, key in enumerate(zip(*parts, strict=True)):
        if not key[-1]:
            continue
        if key in first:
            name = shown(table[shown_at][row] if len(columns) == 1 else "/".join(key))
            where = table.place(first[key], shown_at)
            yield (row, shown_at, f"duplicate {words} {name}; the first is at {where}")
        first.setdefault(key, row)


def _alias_faults(table: Table) -> Iterator[tuple[int, str, str]]:
    owner = {str(name).casefold(): row for row, name in enumerate(table["model"].tolist()) if name}
    for row, word in aliases(table):
        other = owner.setdefault(word.casefold(), row)
        if other != row:
            yield (row, "aliases", f"alias {shown(word)} already means model {shown(table['model'][other])}")


def _tier_faults(table: Table) -> Iterator[tuple[int, str, str]]:
    tiers, sizes = table.number("tier"), table.number("size")
    groups: dict[str, list[int]] = {}
    for row, name in enumerate(table["network"].tolist()):
        if name and not np.isnan(tiers[row]):
            groups.setdefault(str(name).casefold(), []).append(row)
    for rows in groups.values():
        rows.sort(key=lambda row: float(tiers[row]))
        name = shown(table["network"][rows[0]])
        for inner, outer in pairwise(rows):
            if tiers[outer] == tiers[inner]:
                where = table.place(min(inner, outer), "tier")
                problem = f"duplicate tier {tiers[outer]:g} of network {name}; the first is at {where}"
                yield (max(inner, outer), "tier", problem)
            elif sizes[outer] <= sizes[inner]:
                problem = f"size of tier {tiers[outer]:g} of network {name} must be above the {sizes[inner]:g} of"
                yield (outer, "size", f"{problem} tier {tiers[inner]:g}, got {sizes[outer]:g}")
        present = sorted({int(tiers[row]) for row in rows})
        missing = [tier for tier in range(1, present[-1]) if tier not in present]
        if missing:
            listed = ", ".join(str(tier) for tier in missing)
            yield (rows[0], "tier", f"network {name} lacks tier {listed}; tiers count from 1 without gaps")


def values_in_case(table: Table, name: str, case: str) -> np.ndarray:
    """Values of a column in a case (``low``, ``high``) if given, else of the column; blanks have the default."""
    values: np.ndarray = table.filled(name)
    other = f"{name}_{case}"
    if case == "base" or other not in table.schema.by_name or not len(values):
        return values
    given = table.filled(other)
    return np.where(np.isnan(given), values, given)


def columns_of(table: Table, rows: np.ndarray | None = None, case: str = "base") -> Columns:
    """Columns of a table in the units used inside at ``rows``, by default all; NaN or "" for row -1."""
    if rows is None:
        return Columns(lambda name: values_in_case(table, name, case))
    missing = rows < 0
    number = np.count_nonzero(missing)

    def read(name: str) -> np.ndarray:
        values = values_in_case(table, name, case)
        nothing = "" if table.schema.by_name[name].is_text else np.nan
        if number == len(rows):
            return np.full(len(rows), nothing, dtype=values.dtype)
        result: np.ndarray = values[rows]
        if number:
            result[missing] = nothing
        return result

    return Columns(read)


def uncertain_columns(table: Table) -> list[str]:
    """Columns of a table that have a low or a high value in at least one row, in the order of the schema."""
    known = table.schema.by_name
    return [
        name
        for name in known
        if any(other in known and (~np.isnan(table.filled(other))).any() for other in (f"{name}_low", f"{name}_high"))
    ]


MARK = "\x1f"  # separator between a name and the number of a copy of its row, if a sweep gives plans rows of their own
_BETWEEN_WORDS = re.compile(r"[^\w.]+|_+")


def name_taken(name: str, own: str, spellings: str) -> str:
    """Why a new row cannot have a name beside a row with the name ``own`` and aliases ``spellings``; "" if it can.

    >>> name_taken("llama 8b", "Llama3-8B", "L8;Llama 8B")
    '"llama 8b" is another spelling of "Llama3-8B"; give the new row another name'
    """
    if own.strip().casefold() == name.casefold():
        return f'"{own}" is there already; give the new row another name'
    if name.casefold() in (word.strip() for word in spellings.casefold().split(";")):
        return f'"{name}" is another spelling of "{own}"; give the new row another name'
    return ""


def aliases(table: Table) -> list[tuple[int, str]]:
    """Other spellings of the names of a table: (row, spelling); none if it has no such column."""
    return [
        (row, word.strip())
        for row, text in enumerate(table.text("aliases").tolist() if "aliases" in table.schema.by_name else ())
        for word in str(text).split(";")
        if word.strip()
    ]


def words_of(name: str) -> tuple[str, ...]:
    """Words of a name without regard to case, blanks and punctuation; a point stays, 3.1 is not 31.

    >>> words_of("Llama-3.1-70B (Instruct)")
    ('llama', '3.1', '70b', 'instruct')
    """
    return tuple(word for word in _BETWEEN_WORDS.split(name.casefold()) if word)


_MOST_KNOWN = 10_000  # size of the cache of read names


class Spellings:
    """Names of one table, and aliases if it has any, by how they may be spelled."""

    def __init__(self, table: Table) -> None:
        names = [str(name) for name in table.text(table.schema.key.name).tolist()]
        self._kind = table.kind
        spelled = [(name, name) for name in dict.fromkeys(names)]
        spelled += [(names[row], word) for row, word in aliases(table)]
        reduced = _layer_reduced(table)
        self._whole: dict[str, list[str]] = {}
        self._begun: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
        for name, written in spelled:
            for words in {words_of(written), self._words(written) if written == name else words_of(written)}:
                self._whole.setdefault("".join(words), []).append(name)
                if words and name not in reduced and (table.kind != "models" or words[0] in words_of(name)):
                    for number in range(1, len(words) + 1):
                        self._begun.setdefault("".join(words[:number]), []).append((name, words[number:]))
        self._shapes: dict[str, list[str]] = {}
        self._stored: dict[str, list[str]] = {}
        for name, word in ((name, "-".join(words_of(word))) for name, word in spelled if table.kind == "models"):
            for shapes, formats in ((self._shapes, False), (self._stored, True)):
                for cut in (word, *without_variants(word, formats)):
                    shapes.setdefault("".join(words_of(cut)), []).append(name)
        size = {"models": "stated_parameters", "accelerators": "memory_capacity"}.get(table.kind, "")
        self._sizes = dict(zip(names, table.number(size).tolist(), strict=True)) if size in table else {}
        self._known: dict[str, list[str]] = {}

    def _words(self, text: str) -> tuple[str, ...]:
        """Words of a name; of an accelerator without its maker, and with its memory in one unit."""
        words = words_of(text)
        if self._kind != "accelerators":
            return words
        return tuple(re.sub(r"^(\d+)g(ib)?$", r"\1gb", word) for word in words if word not in _MAKERS)

    def names(self, text: str) -> list[str]:
        """Names that a text may mean, in the order of the rows: the same words joined otherwise (``llama3 70b``),
        without the owner (``meta-llama/Llama-3.1-70B``) or words that leave a model's shape unchanged (Instruct, a
        date; then formats of weights, which plans of precision auto read in the name), first words (``H200``) of a
        name whose others leave it the same, or one with its size (``DeepSeek-R1 671B``, ``NVIDIA L4 24GB``).
        A model reduced to fewer layers (``DeepSeek-V3-l4``) has its whole name only, and so has an alias that
        begins as another model does (``DeepSeek-R1-Distill-Llama-8B``).
        """
        if text not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[text] = self._names(text)
        return self._known[text]

    def _names(self, text: str) -> list[str]:
        result = self._same(text) or self._first_words(self._words(text))
        size = _SIZE.get(self._kind)
        words = self._words(text.rstrip("/").rpartition("/")[2])
        for place, word in enumerate(words) if size and not result else ():
            stated = size.fullmatch(word)
            rest = (*words[:place], *words[place + 1 :])
            if stated and (rest if self._kind == "accelerators" else any(map(str.isalpha, "".join(rest)))):
                number = float(stated[1].rstrip(".")) * (1e3 if stated[2] == "t" else 1.0)
                meant = self._same("-".join(rest)) or (self._first_words(rest) if self._kind == "accelerators" else [])
                result += [name for name in meant if self._is_about(name, number)]
        return _distinct(result)

    def _is_about(self, name: str, size: float) -> bool:
        """Whether the row of a name has a size, in 10^9 parameters or GiB."""
        own = self._sizes.get(name, math.nan) / (1e9 if self._kind == "models" else 2.0**30)
        return abs(own / size - 1.0) < _AGREES[self._kind] if size else False

    def _same(self, text: str) -> list[str]:
        """Names with the words of a text, but for the owner and for variants at its end."""
        last = text.rstrip("/").rpartition("/")[2]
        cuts = [(self._shapes, cut) for cut in without_variants(last, False)]
        cuts += [(self._stored, cut) for cut in (last, *without_variants(last, True))]
        for spelled, own in ((self._whole, text), (self._whole, last), *cuts):
            same = _distinct(spelled.get("".join(words_of(own)) or " ") or spelled.get("".join(self._words(own)), []))
            if len(same) > 1 and spelled is self._stored:  # one shape, whose formats the text says itself
                same = [name for name in same if name.casefold().endswith("bf16")] or same
            if same:
                return same
        return []

    def _first_words(self, words: tuple[str, ...]) -> list[str]:
        """Names that begin with some words: those that leave out nothing that tells rows apart, else all if several."""
        begun = self._begun.get("".join(words), []) if any(map(str.isalpha, "".join(words))) else []
        left_out = _LEFT_OUT.get(self._kind)
        near = _distinct(name for name, rest in begun if left_out is None or all(map(left_out.fullmatch, rest)))
        every = _distinct(name for name, _ in begun)
        return near or (every if len(every) > 1 else [])

    def begun_by(self, text: str) -> list[str]:
        """Names that the longest part of a text without its last words may mean."""
        words = re.split(r"[-_ :]+", text.rstrip("/").rpartition("/")[2])
        shorter = ("-".join(words[:end]) for end in range(len(words) - 1, 0, -1))
        return next((found for part in shorter if re.search(r"\d", part) and (found := self.names(part))), [])


def _layer_reduced(table: Table) -> frozenset[str]:
    """Names of models that state their number of layers, as proxies of larger models do: ``Llama3.1-405B-l4``."""
    if table.kind != "models":
        return frozenset()
    result = set()
    for name, layers in zip(table.text("model").tolist(), table.number("num_layers").tolist(), strict=True):
        stated = {text.format(f"{layers:.0f}") for text in ("l{}", "{}l", "{}layer", "{}layers", "layers{}")}
        words = words_of(name)
        if stated & {*words, *("".join(pair) for pair in pairwise(words))}:
            result.add(name)
    return frozenset(result)


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name for name in names if name))


def copied_name(name: str) -> str:
    """Name of the row that a copy was made of; any other name as it is."""
    return name.partition(MARK)[0]
