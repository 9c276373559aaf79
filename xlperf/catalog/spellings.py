"""Names of rows as people write them, and references between rows: their resolution, and rows that name nothing known.

Other spellings, variants of a model, sizes and makers in a name count.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

import numpy as np

from xlperf.base.errors import MOST_FAULTS_SHOWN, Fault, Hint, nearest
from xlperf.base.units import factor
from xlperf.catalog.cells import shown
from xlperf.catalog.schema import EVERY_TABLE, Column
from xlperf.catalog.table import Table, aliases

BLANK, UNKNOWN = -1, -2
_MOST_LISTED = 8
DESIGNS = "chiplets"  # the sheet whose rows are all costed together; rows with a reference that is gone are left out

NOT_USABLE = " cannot be used: "  # in the message for a name whose row has an unknown reference; its fault follows

Tables = Mapping[str, Table]  # by kind
Index = MutableMapping[str, dict[str, int]]  # rows of tables by casefolded name, by kind
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
_SIZE = {"models": re.compile(r"(\d+(?:\.\d+)?)\.?([bt])"), "accelerators": re.compile(r"(\d+)(gb)")}
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


_BETWEEN_WORDS = re.compile(r"[^\w.]+|_+")


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
        self._begun: dict[str, list[tuple[str, tuple[str, ...], bool]]] = {}
        for name, written in spelled:
            for words in {words_of(written), self._words(written) if written == name else words_of(written)}:
                self._whole.setdefault("".join(words), []).append(name)
                own = table.kind != "models" or set(words[:1]) <= set(words_of(name))
                for number in range(1, len(words) + 1) if name not in reduced else ():
                    self._begun.setdefault("".join(words[:number]), []).append((name, words[number:], own))
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
        if result or size is None:
            return result
        words = self._words(text.rstrip("/").rpartition("/")[2])
        for place, word in enumerate(words):
            stated = size.fullmatch(word)
            rest = (*words[:place], *words[place + 1 :])
            if stated and (rest if self._kind == "accelerators" else any(map(str.isalpha, "".join(rest)))):
                number = float(stated[1]) * (1e3 if stated[2] == "t" else 1.0)
                meant = self._same("-".join(rest)) or (self._first_words(rest) if self._kind == "accelerators" else [])
                result += [name for name in meant if self._is_about(name, number)]
        return _distinct(result)

    def _is_about(self, name: str, size: float) -> bool:
        """Whether the row of a name has a size, in 10^9 parameters or GiB."""
        own = self._sizes.get(name, math.nan) / factor("G" if self._kind == "models" else "GiB")
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
        near = [one for one in begun if left_out is None or all(map(left_out.fullmatch, one[1]))]
        result = _distinct(name for name, *_ in near or begun)
        return result if len(result) > 1 or any(own for *_, own in near) else []

    def begun_by(self, text: str) -> list[str]:
        """Names that the longest part of a text without its last words may mean; none if a name begins as the text."""
        wanted = "".join(words_of(text))
        if any(name.startswith(wanted) for name in self._whole):
            return []
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


@lru_cache(maxsize=64)
def index_of(table: Table) -> dict[str, int]:
    """Rows of a table by casefolded name, and of models by alias; a blank is :data:`BLANK`. Cached: add to a copy."""
    index = {"": BLANK}
    for row, name in enumerate(table.text(table.schema.key.name).tolist()):
        index.setdefault(name.casefold(), row)
    if table.kind == "models":
        for row, word in aliases(table):
            index.setdefault(word.casefold(), row)
    return index


@dataclass
class Orphans:
    """Rows left out of a catalog because they name something that no table has."""

    faults: list[Fault] = field(default_factory=list)  # one for each cell with an unknown name
    why: dict[str, dict[str, str]] = field(default_factory=dict)  # reason by kind and casefolded name of a row left out
    whole: dict[str, Table] = field(default_factory=dict)  # tables with such rows, by kind

    def beside(self, replaced: Iterable[str], other: Orphans) -> Orphans:
        """These orphans without rows of replaced tables, and the orphans of another catalog."""
        gone = set(replaced)
        why = {kind: names for kind, names in self.why.items() if kind not in gone}
        whole = {kind: table for kind, table in self.whole.items() if kind not in gone}
        faults = self.faults if why else []
        return Orphans([*faults, *other.faults], {**why, **other.why}, {**whole, **other.whole})


class Names:
    """Names of the rows of tables, however they are spelled."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._spelled: dict[str, Spellings] = {}

    def meant(self, kind: str, name: str) -> list[str]:
        """Names of rows of a table that a name may mean."""
        if kind not in self._spelled:
            self._spelled[kind] = Spellings(self._tables[kind])
        return self._spelled[kind].names(name)

    def row(self, kind: str, name: str, index: Mapping[str, int]) -> int:
        """Row of a name in an index of a table; UNKNOWN for an unknown or ambiguous name."""
        row = index.get(name.strip().casefold(), UNKNOWN)
        meant = self.meant(kind, name) if row == UNKNOWN else []
        return index.get(meant[0].casefold(), UNKNOWN) if len(meant) == 1 else row


def references(table: Table) -> list[Column]:
    """Columns of a table that name rows of other tables."""
    return [column for column in table.schema.references if column.name in table]


def without_orphans(tables: Tables, indexes: Index, strict: Sequence[str]) -> tuple[dict[str, Table], Orphans]:
    """Tables without rows that name something unknown, directly or through rows; ``strict`` kinds are checked."""
    left, result, names = dict(tables), Orphans(), Names(tables)
    again = True
    while again:
        again = False
        for kind in (kind for kind in EVERY_TABLE if kind in strict and kind in left):
            lost = _lost_rows(left, indexes, kind, names, result)
            if lost:
                again = True
                result.whole.setdefault(kind, left[kind])
                keys = left[kind].text(left[kind].schema.key.name)
                for row, words in lost.items():
                    result.why.setdefault(kind, {}).setdefault(str(keys[row]).casefold(), words)
                kept = [row for row in range(len(left[kind])) if str(keys[row]).casefold() not in result.why[kind]]
                left[kind] = left[kind].take(kept)
                indexes[kind] = index_of(left[kind]).copy()
    return left, result


def _lost_rows(tables: Tables, indexes: Index, kind: str, names: Names, orphans: Orphans) -> dict[int, str]:
    """Rows of a table whose references have no row, with the reason of each; ``orphans`` gets new faults."""
    lost: dict[int, str] = {}
    table = tables[kind]
    for column in references(table):
        other = column.reference
        for row, name in enumerate(table[column.name].tolist()):
            if row in lost or name.casefold() in indexes[other]:
                continue
            meant = names.meant(other, name)
            exact = (meant[0] if len(meant) == 1 else name).casefold()
            if exact in indexes[other]:
                continue
            words = orphans.why.get(other, {}).get(exact, "")
            if not words:
                fault = Fault(table.place(row, column.name), *unknown(name, tables[other], meant))
                words = str(fault) if len(orphans.faults) < MOST_FAULTS_SHOWN else fault.brief
                orphans.faults.append(fault)
            lost[row] = words
    return lost


def of_what_is_known(tables: Tables, indexes: Mapping[str, Mapping[str, int]]) -> Table:
    """The designs that can be costed: the other tables have all that they name, and all that their devices name."""
    table, names = tables[DESIGNS], Names(tables)

    def lost(kind: str, row: int) -> bool:
        for column in references(tables[kind]):
            other, name = column.reference, str(tables[kind].text(column.name)[row])
            if name and other != "accelerators":
                result = names.row(other, name, indexes[other])
                if result == UNKNOWN or lost(other, result):
                    return True
        return False

    kept = [row for row in range(len(table)) if not lost(DESIGNS, row)]
    return table if len(kept) == len(table) else table.take(kept)


def with_exact_references(tables: Tables, indexes: Index) -> Tables:
    """Tables whose references are names of rows, however they are spelled; their indexes follow."""
    exact, spelled = dict(tables), Names(tables)
    for kind in EVERY_TABLE:
        for column in references(tables[kind]):
            names = tables[kind][column.name].tolist()
            other = {name for name in names if name.casefold() not in indexes[column.reference]}
            meant = {name: spelled.meant(column.reference, name) for name in other}
            taken = {name: result[0] for name, result in meant.items() if len(result) == 1}
            if taken:
                values = np.array([taken.get(name, name) for name in names], dtype=object)
                exact[kind] = exact[kind].with_columns({column.name: values})
                indexes[kind] = index_of(exact[kind]).copy()
    return exact


def unknown(name: str, table: Table, meant: Sequence[str] = ()) -> tuple[str, Hint]:
    """Message for a name that is unknown or ambiguous, and a hint at the names that may be meant."""
    key = table.schema.key.name
    if len(meant) > 1:
        listed = ", ".join(meant[:_MOST_LISTED])
        listed += f" and {len(meant) - _MOST_LISTED} more" if len(meant) > _MOST_LISTED else ""
        return f"{key.replace('_', ' ')} {shown(name)} may be one of several", lambda: f"write one of {listed}"

    def hint() -> str:
        wanted = re.sub(r"^\d+ *x *", "", name.rpartition("/")[2] or name, flags=re.IGNORECASE)  # 8x H100
        spelled = Spellings(table)
        begun = spelled.names(wanted) or spelled.begun_by(wanted)
        if 0 < len(begun) <= _MOST_LISTED:
            return f"did you mean {', '.join(begun)}?"
        known = dict.fromkeys(text for text in table.text(key).tolist() if text)
        known.update(dict.fromkeys(word for _, word in aliases(table)))
        return nearest(wanted, known)

    return f"unknown {key} {shown(name)}", hint
