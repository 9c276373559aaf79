"""Variation: columns of plans and of catalog sheets, with their values or distributions, and random samples.

Random numbers depend only on the seed and the position of a sample: any block draws the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, exp
from xlperf.base.errors import Fault, InputError, OptionError, nearest, raise_faults
from xlperf.catalog.cells import BadValue, is_blank, number_of, parse_header, shown
from xlperf.catalog.parse import convert
from xlperf.catalog.schema import PLAN_TABLES, Column, table_schema
from xlperf.explore.space import MOST_PLANS

CALIBRATION = "calibration"
REACHED = (
    "servers", "chiplets", "devices", "cores", "technology", "memories", "links", "packages", "process_nodes"
)  # fmt: skip
"""Sheets with the rows that plans' accelerators derive from by design or purchase."""
SHEETS = ("accelerators", "networks", "models", "prices", *REACHED, CALIBRATION)
"""Catalog sheets with numbers that can vary: in rows that plans name or that their accelerators derive from."""
NAMING = (
    "model", "accelerator", "network", "prefill_accelerator", "prefill_network", "expert_accelerator", "expert_network",
)  # fmt: skip
"""Columns of plans that name rows of the catalog."""
_NOT_COMPUTED_WITH = ("aliases", "source", "notes", "kind", "vendor", "date")
RANGE = ".."
UNIFORM, TRIANGULAR, NORMAL, LOGNORMAL = "uniform", "triangular", "normal", "lognormal"


def picked(values: np.ndarray, share: Array) -> np.ndarray:
    """The value at each quantile of a list of equally likely values."""
    return np.asarray(values[np.minimum((share * len(values)).astype(np.int64), len(values) - 1)])


@dataclass(frozen=True)
class Varied:
    """One column of a catalog sheet and its values."""

    sheet: str
    name: str
    values: Array  # in the internal unit; factors; or words
    factors: bool  # whether they multiply the values of the sheet
    # Meaning of the values: "" a list; the ends of a range, ``uniform``; least, likeliest and largest value,
    # ``triangular``; mean and standard deviation, ``normal``; median and deviation of the logarithm, ``lognormal``
    shape: str = ""

    @property
    def ends(self) -> bool:
        """Whether the values are the two ends of a range."""
        return self.shape == UNIFORM

    @property
    def is_text(self) -> bool:
        """Whether the values are words: choices, or names of rows of another sheet."""
        return self.values.dtype == object

    @property
    def stored(self) -> str:
        """Column of the sheet that holds the values."""
        return "value" if self.sheet == CALIBRATION else self.name

    @property
    def declared(self) -> Column:
        """The column of the sheet; for a calibration constant, a column under its name."""
        return replace(table_schema(self.sheet).by_name[self.stored], name=self.name)

    @property
    def is_whole(self) -> bool:
        """Whether the values are whole numbers."""
        return not self.factors and self.declared.is_whole

    @property
    def column(self) -> Column:
        """Column for the values in results: ``accelerators.memory_bandwidth``."""
        declared = self.declared
        return replace(
            declared,
            name=self.name if self.sheet in PLAN_TABLES and not self.factors else f"{self.sheet}.{self.name}",
            kind="text" if self.is_text else "flag" if declared.kind == "flag" else "number",
            unit="-" if self.factors else declared.unit,
            meaning=f"{declared.meaning}{' (factor)' if self.factors else ''}",
        )

    def drawn(self, share: Array) -> Array:
        """Quantiles of the distribution: the inverse of its cumulative function; a normal one is cut off above 0."""
        if not self.shape:
            return picked(self.values, share)
        first, last = float(self.values[0]), float(self.values[-1])
        if self.shape == NORMAL:
            values = np.maximum(first + last * normal_scores(share), 0.01 * first)
        elif self.shape == LOGNORMAL:
            values = first * exp(last * normal_scores(share))
        elif self.shape == UNIFORM:
            values = first + (last - first) * share
        else:
            mode, width = float(self.values[1]), last - first
            rising = first + np.sqrt(share * width * (mode - first))
            falling = last - np.sqrt((1.0 - share) * width * (last - mode))
            values = np.where(share * width < mode - first, rising, falling)
        return np.asarray(np.maximum(np.round(values), 1.0) if self.is_whole else values)

    def words(self, value: float | str) -> str:
        """A value in words: ``accelerators memory bandwidth 4 TB/s``."""
        label = f"{'' if self.sheet in PLAN_TABLES else self.sheet} {self.name.replace('_', ' ')}".strip()
        if isinstance(value, str):
            return f"{label} {value}"
        if self.column.kind == "flag":
            return f"{label} {'yes' if value else 'no'}"
        return f"{label} x{value:.4g}" if self.factors else f"{label} {self.column.amount(value)}"


class Variation(NamedTuple):
    """Parsed lines of ``--vary``: columns of plans, columns of catalog sheets, and ``auto`` columns."""

    values: dict[str, np.ndarray]
    varied: tuple[Varied, ...]
    auto: tuple[str, ...]


def read_values(kind: str, lines: Sequence[tuple[object, Sequence[object]]], place: str = "") -> dict[str, np.ndarray]:
    """Trial values of plan columns in internal units, from headers with their cells; InputError has every fault."""
    faults: list[Fault] = []
    values: dict[str, np.ndarray] = {}
    for header, cells in lines:
        parsed = parse_header(kind, [header])
        found_faults = [Fault(place, fault.problem, fault.hint) for fault in parsed.faults if fault.position == 0]
        if found_faults or not parsed.fields:
            hint = partial(nearest, str(header), [name.replace("_", " ") for name in table_schema(kind).by_name])
            faults += found_faults or [Fault(place, f"unknown column {shown(header)}", hint)]
            continue
        field = parsed.fields[0]
        results: list[float | str] = []
        for cell in cells:
            if is_blank(cell):
                continue
            try:
                value = convert(field, cell, from_text=True)
            except BadValue as bad:
                faults.append(Fault(place, str(bad)))
                continue
            if value is None:
                faults.append(Fault(place, f"{field.words} is auto: write values"))
            elif value not in results:
                results.append(value)
        if field.column.name in values:
            faults.append(Fault(place, f"{field.words} is given twice"))
        elif not results and not faults:
            faults.append(Fault(place, f"{field.words} has no values to try"))
        values[field.column.name] = field.column.array(results)
    raise_faults(faults)
    return values


def vary_line(text: str) -> tuple[str, list[str]]:
    """A column and its values.

    >>> vary_line("tensor parallel=1,2,4")
    ('tensor parallel', ['1', '2', '4'])
    """
    name, equals, values = text.partition("=")
    if not equals:
        raise OptionError(f'--vary takes COLUMN=VALUES, got "{text}"')
    return name, values.split(",")


def read_variation(kind: str, lines: Sequence[tuple[str, Sequence[str]]], place: str) -> Variation:
    """Parse lines of a column and its values: of plans, or of a catalog sheet as ``accelerators.memory bandwidth``.

    Values are a list; ``auto`` alone; ``1..64``, all whole numbers between or the two ends; or factors as ``x0.5``.
    InputError, at ``place``, has every fault.
    """
    stated: list[tuple[object, Sequence[object]]] = []
    ranges: dict[int, tuple[str, np.ndarray]] = {}
    varied: list[Varied] = []
    auto: list[str] = []
    faults: list[Fault] = []
    for header, words in lines:
        texts = [word.strip() for word in words]
        sheet, dot, name = header.partition(".")
        kind_of = sheet.strip().casefold().replace(" ", "_")
        try:
            if dot and kind_of in SHEETS:
                varied.append(_of_sheet(kind_of, name, texts, place))
            elif _is_continuous(kind, header, texts):
                varied.append(_of_sheet(kind, header, texts, place))
            elif [text.casefold() for text in texts] == ["auto"]:
                auto.append(header)
            elif dot and sheet.strip():
                raise InputError(Fault(place, f'"{sheet.strip()}" is none of the sheets {", ".join(SHEETS)}'))
            elif len(texts) == 1 and (ends := _ends(texts[0])) is not None:
                ranges[len(stated) + len(ranges)] = _whole(kind, header, ends, place)
            else:
                stated.append((header, texts))
        except InputError as error:
            faults += error.faults
    values: dict[str, np.ndarray] = {}
    try:
        values = read_values(kind, stated, place)
    except InputError as error:
        faults += error.faults
    raise_faults(faults)
    columns = list(values.items())
    for position, column in ranges.items():  # in the order of the lines
        columns.insert(position, column)
    return Variation(dict(columns), tuple(varied), tuple(auto))


def _ends(text: str) -> tuple[str, str] | None:
    low, dots, high = text.partition(RANGE)
    return (low.strip(), high.strip()) if dots else None


def _whole(kind: str, header: str, ends: tuple[str, str], place: str) -> tuple[str, np.ndarray]:
    """A column of plans and all whole numbers between two."""
    ((name, pair),) = read_values(kind, [(header, ends)], place).items()
    column = table_schema(kind).by_name[name]
    if column.is_text or not column.is_whole or len(pair) < 2 or not pair[0] < pair[1]:
        shown = RANGE.join(ends)
        problem = f'{header.strip()}: a range is of whole numbers, the smaller first, as 1..64, got "{shown}"'
        raise InputError(Fault(place, problem))
    if pair[1] > pair[0] + MOST_PLANS:
        raise InputError(Fault(place, f"{header.strip()}: a range has {MOST_PLANS:,} numbers at the most"))
    return name, np.arange(pair[0], pair[1] + 1.0)


def _shape(texts: Sequence[str]) -> tuple[str, list[str]]:
    """The shape of a distribution and its numbers: ``2..4``, ``2..3..4``, ``normal:3:0.5``; "" for a list."""
    text = texts[0] if len(texts) == 1 else ""
    word, colon, numbers = text.partition(":")
    if colon and word.strip().casefold() in (NORMAL, LOGNORMAL):
        return word.strip().casefold(), [part.strip() for part in numbers.split(":")]
    ends = [part.strip() for part in text.split(RANGE)]
    return {2: UNIFORM, 3: TRIANGULAR}.get(len(ends), ""), ends if len(ends) in (2, 3) else list(texts)


def _is_continuous(kind: str, header: str, texts: Sequence[str]) -> bool:
    """Whether a plan column has factors, a distribution, or a range of a continuous quantity."""
    shape, words = _shape(texts)
    field = next(iter(parse_header(kind, [header]).fields), None)
    if field is None or field.column.kind != "number":
        return False
    factors = all(word[:1].casefold() == "x" and np.isfinite(number_of(word[1:])) for word in words)
    return factors or shape not in ("", UNIFORM) or (shape == UNIFORM and not field.column.is_whole)


def _of_sheet(sheet: str, header: str, texts: Sequence[str], place: str) -> Varied:
    """A column of a sheet with a list of values, or a distribution of them."""
    shown = header.strip() if sheet in PLAN_TABLES else f"{sheet}.{header.strip()}"
    field = None if sheet == CALIBRATION else next(iter(parse_header(sheet, [header]).fields), None)
    if field is not None and field.column.kind != "number":
        return _words_of_sheet(sheet, header, texts, place)
    shape, words = _shape(texts)
    spread = words.pop() if shape in (NORMAL, LOGNORMAL) and len(words) == 2 else ""
    factors = [word[:1].casefold() == "x" for word in words]
    if any(factors) and not all(factors):
        raise InputError(Fault(place, f"{shown}: give factors (x2) or values, not both"))
    plain = [word[1:] if any(factors) else word for word in words]
    if sheet == CALIBRATION:
        name, values = _constant_name(header, shown, place), np.array([number_of(word) for word in plain])
        if not np.isfinite(values).all() or not len(values) or (any(factors) and (values <= 0.0).any()):
            raise InputError(Fault(place, f"{shown}: write numbers, or factors above 0 as x0.9"))
    elif any(factors):
        # a factor need not be a value that the column may have
        name = field.column.name if field else next(iter(read_values(sheet, [(header, ["1"])], place)))
        values = np.array([number_of(word) for word in plain])
        if not (np.isfinite(values) & (values > 0.0)).all():
            raise InputError(Fault(place, f"{shown}: a factor is a number above 0, as x0.5"))
    else:
        ((name, values),) = read_values(sheet, [(header, plain)], place).items()
    if shape in (UNIFORM, TRIANGULAR) and (
        len(values) < len(words) or not (values > 0).all() or (np.diff(values) <= 0).any()
    ):
        likely = "" if shape == UNIFORM else " and the likeliest value between"
        problem = f'{shown}: a range has two ends above 0{likely}, the smaller first, got "{",".join(texts)}"'
        raise InputError(Fault(place, problem))
    if shape in (NORMAL, LOGNORMAL):
        deviation = number_of(spread) if spread else float("nan")
        if len(values) != 1 or not deviation > 0.0 or not np.isfinite(deviation):
            what = "mean" if shape == NORMAL else "median"
            problem = f'{shown}: write {shape}:{what}:deviation, as {shape}:x1:0.1, got "{texts[0]}"'
            raise InputError(Fault(place, problem))
        scale = 1.0 if any(factors) or shape == LOGNORMAL else float(values[0]) / number_of(plain[0])
        values = np.array([values[0], deviation * scale])
    return Varied(sheet, name, np.asarray(values, dtype=np.float64), any(factors), shape)


def _words_of_sheet(sheet: str, header: str, texts: Sequence[str], place: str) -> Varied:
    """A column of a sheet with a list of words, of yes or no, or of names of rows of another sheet."""
    ((name, values),) = read_values(sheet, [(header, texts)], place).items()
    if name in (table_schema(sheet).key.name, *_NOT_COMPUTED_WITH):
        problem = f"{sheet}.{name.replace('_', ' ')} changes no result: vary a number, a choice or a reference"
        raise InputError(Fault(place, problem))
    return Varied(sheet, name, values, False)


def _constant_name(header: str, shown: str, place: str) -> str:
    """``family.constant`` of a constant, or the name of its row."""
    name = header.strip().casefold().replace(" ", "_")
    if name.count(".") != 1 and name.count("/") != 4:
        problem = f"{shown}: write calibration.family.constant, as calibration.gemm.step_time, or the name of a row"
        raise InputError(Fault(place, problem))
    return name


RANDOM, LATIN_HYPERCUBE = "random", "latin-hypercube"
_ROUNDS = 6


class Sampling(NamedTuple):
    """Number, method and seed of samples."""

    number: int
    method: str = RANDOM
    seed: int = 0


def _mixed(values: np.ndarray, key: int) -> np.ndarray:
    """Random 64-bit words of positions: the finaliser of SplitMix64.

    G. L. Steele, D. Lea and C. H. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014,
    doi:10.1145/2660193.2660195.
    """
    step = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        words = (values.astype(np.uint64) + np.uint64(1)) * step
        words = words ^ (np.uint64(key % 2**64) * np.uint64(0xD1342543DE82EF95) + step)
        for _ in range(2):
            for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
                words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
            words = words ^ (words >> np.uint64(31))
    return np.asarray(words)


def uniforms(sampling: Sampling, column: int, index: np.ndarray) -> Array:
    """Uniform numbers, above 0 and below 1, of the samples with some numbers; different columns are independent. In a
    Latin hypercube, each of ``number`` equal parts of the range holds exactly one sample.

    >>> parts = np.floor(4 * uniforms(Sampling(4, LATIN_HYPERCUBE), 0, np.arange(4)))
    >>> sorted(parts.tolist())
    [0.0, 1.0, 2.0, 3.0]
    """
    key = (sampling.seed << 20) + 8 * column
    share = ((_mixed(index, key) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    if sampling.method == RANDOM:
        return share
    return (_permuted(index, sampling.number, key) + share) / sampling.number


def normal_scores(share: Array) -> Array:
    """Standard normal scores of shares: the inverse of the cumulative distribution. [-]

    >>> normal_scores(np.array([0.5, 0.975, 1e-9])).round(3).tolist()
    [0.0, 1.96, -5.998]
    """
    from scipy.special import ndtri  # slow to import

    return np.asarray(ndtri(share))


def _permuted(index: np.ndarray, number: int, key: int) -> Array:
    """A random permutation of ``number`` positions, without a table of them: a cycle-walking Feistel network.

    J. Black and P. Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, doi:10.1007/3-540-45760-7_9.
    """
    half = max((max(number - 1, 1).bit_length() + 1) // 2, 1)
    mask = np.uint64(2**half - 1)
    words = np.arange(2**half, dtype=np.uint64)  # all that a half can be: a table of each round, of a few words
    rounds = [_mixed(words, key + 1 + turn) & mask for turn in range(_ROUNDS)]
    result = index.astype(np.uint64)
    beyond = np.ones(len(result), dtype=bool)
    while beyond.any():
        left, right = result[beyond] >> np.uint64(half), result[beyond] & mask
        for table in rounds:
            left, right = right, left ^ table[right]
        result[beyond] = (left << np.uint64(half)) | right
        beyond = result >= np.uint64(number)
    return result.astype(np.float64)
