"""Plans as records of columns; codes of choices; number formats; and rules of legality as data.

The code of a choice is its position among the choices of its column in the schema. Codes are named after their column
(``pipeline_schedule``), a code after its word (``zero-bubble``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar, overload

import numpy as np

from xlperf.base.arrays import Array, Columns, Numeric, array, some
from xlperf.equations.model.model import Model


class Precision(NamedTuple):
    """A number format of matrix products."""

    key: str  # calibration rows of its GEMMs
    peak: str  # peak rate of its GEMMs: column ``peak_flop_rate_<peak>`` of the accelerators
    weight_size: float  # bytes of a stored weight, its share of the scales included [B]
    input_size: float  # bytes of an element of the other GEMM input [B]
    element_size: float = 2.0  # bytes of an activation between GEMMs [B]
    products: tuple[str, ...] = ()  # GEMM precisions of served weights: the same or wider; none: not served
    cache: str = "bf16"  # default precision of the key-value cache
    wide: str = "bf16"  # precision of attention, router and logits beside narrow GEMMs
    reads: float = 1.0  # passes over a tensor to cast it: 2 if the scale needs the largest element first [-]
    fused_reads: float = 1.0  # the same after a norm or an activation: -1 if that kernel writes the narrow tensor [-]
    turns: float = 1.0  # 1 if the narrow tensor can be transposed, 0 if its scales run along rows [-]
    block_scaled: bool = False  # whether the matrix units must scale blocks; units with an FP4 rate do
    tensor_scaled: bool = False  # whether a tensor has one scale, the same for its rows and its columns
    stored_size: float = 0.0  # bytes of a weight of a checkpoint, with fewer scales than in training; 0: the same [B]
    stored_as: str = ""  # name of the format whose calibrated kernels read the weights; "": its own

    @property
    def served_size(self) -> float:
        """Bytes of a weight of a served checkpoint, its share of the scales included. [B]"""
        return self.stored_size or self.weight_size


_BLOCK_16 = 0.5 + 1.0 / 16.0  # 4 bits and one scale byte per block of 16
_MX_FOUR = 0.5 + 1.0 / 32.0  # 4 bits and one scale byte per block of 32
_BLOCK_32 = 1.0 + 1.0 / 32.0  # 8 bits and one scale byte per block of 32
_BLOCK_128 = 1.0 + 4.0 / 128.0  # 8 bits and one FP32 scale per 128 elements
_TILE_128 = 1.0 + 4.0 / (128.0 * 128.0)  # of a checkpoint: one per 128 x 128
_WIDE = ("fp16", "bf16", "fp32")  # GEMM precisions of any served weight of 16 bits or fewer


_OF_INTEGERS = ("bf16", "fp16", "fp32", "fp8", "int8")  # GEMM precisions of integer weights without activations


def _grouped(bits: float, weights: int) -> Precision:
    """Integer weights in groups along the inputs with an FP16 scale and a zero point each (AWQ, GPTQ)."""
    size = (bits + (16.0 + bits) / weights) / 8.0
    return Precision("bf16", "bf16", size, 2.0, products=_OF_INTEGERS, stored_as="int4")


PRECISIONS = {
    "fp32": Precision("fp32", "fp32", 4.0, 4.0, 4.0, ("fp32",), wide="fp32"),
    "tf32": Precision("tf32", "tf32", 4.0, 4.0, 4.0, wide="tf32"),
    "fp16": Precision("bf16", "bf16", 2.0, 2.0, products=_WIDE),
    "bf16": Precision("bf16", "bf16", 2.0, 2.0, products=("bf16", "fp16", "fp32")),
    "fp8": Precision("fp8", "fp8", 1.0, 1.0, products=("fp8", *_WIDE), cache="fp8", fused_reads=-1.0,
                     tensor_scaled=True),
    "int8": Precision("int8", "int8", 1.0, 1.0, products=("int8", *_WIDE)),
    "fp4": Precision("fp4", "fp4", _BLOCK_16, _BLOCK_16, products=("fp4", "fp8", *_WIDE), cache="fp8", reads=2.0,
                     turns=0.0),
    "int4": Precision("bf16", "bf16", _BLOCK_16, 2.0, products=_OF_INTEGERS),
    "fp8-current": Precision("fp8", "fp8", 1.0, 1.0, reads=2.0, tensor_scaled=True),
    "mxfp8": Precision("mxfp8", "fp8", _BLOCK_32, _BLOCK_32, turns=0.0, block_scaled=True),
    "fp8-block": Precision("fp8_block", "fp8", _BLOCK_128, _BLOCK_128, products=("fp8-block", "fp8", *_WIDE),
                           cache="fp8", stored_size=_TILE_128),
    "fp8-tensor": Precision("fp8", "fp8", 1.0, 1.0, products=("fp8-tensor", "fp8", *_WIDE), cache="fp8",
                            tensor_scaled=True),
    "mxfp4": Precision("fp8", "fp8", _MX_FOUR, 1.0, products=("mxfp4", "fp8", "fp4", *_WIDE), stored_as="fp4"),
    "int4-128": _grouped(4.0, 128),
    "int4-64": _grouped(4.0, 64),
    "int8-128": _grouped(8.0, 128),
}  # fmt: skip
PRECISION_NAMES = tuple(PRECISIONS)
PRECISION_CODES = {name: code for code, name in enumerate(PRECISION_NAMES)}
PRECISION_STORED = tuple(precision.stored_as or name for name, precision in PRECISIONS.items())
PRECISION_KEYS = tuple(precision.key for precision in PRECISIONS.values())
WIDE_CODES = np.array([PRECISION_CODES[precision.wide] for precision in PRECISIONS.values()])
INPUT_SIZES = np.array([precision.input_size for precision in PRECISIONS.values()])
ELEMENT_SIZES = np.array([precision.element_size for precision in PRECISIONS.values()])
CASTS = np.array(
    [(each.reads, each.fused_reads, each.turns, each.tensor_scaled) for each in PRECISIONS.values()], dtype=np.float64
).T
BLOCK_SCALED = np.array([precision.block_scaled for precision in PRECISIONS.values()])
FP4 = PRECISION_CODES["fp4"]
WORD = PRECISIONS["fp32"].element_size  # bytes of an FP32 element: logits, scores, master weights, moments [B]


class Codes:
    """Codes of some words of a column of choices: a code is the position of its word; ``_`` is a word without a name.

    >>> Codes("NONE _ ALL").ALL
    2.0
    """

    def __init__(self, words: str) -> None:
        self.__dict__.update({word: float(code) for code, word in enumerate(words.split()) if word != "_"})

    if TYPE_CHECKING:

        def __getattr__(self, word: str) -> float: ...


PipelineSchedule = Codes("_ GPIPE INTERLEAVED ZERO_BUBBLE DUALPIPE")
StageDealing = Codes("_ COST")
ContextMethod = Codes("RING ALL_GATHER ULYSSES")
DispatchPrecision = Codes("_ FP8")
TokenDispatch = Codes("_ COPIES")
TensorOverlap = Codes("NONE _ ALL")
Graphs = Codes("NONE _ STEP WHOLE_LAYERS")
GradientPrecision = Codes("FP32 BF16")
GradientAccumulation = Codes("_ SEPARATE WHOLE")
QuantizedCopies = Codes("KEPT PRIMARY NONE")
Recompute = Codes("NONE SELECTIVE FULL")
CrossEntropy = Codes("_ FUSED PLAIN GATHERED CHUNKED")
LossPrecision = Codes("FP32 BF16")
Attention = Codes("_ STANDARD")
AdapterModules = Codes("ALL")
Optimizer = Codes("ADAM")
MomentPrecision = Codes("FP32 BF16 FP8")
MasterWeights = Codes("FP32 REMAINDER NONE")
ActivationStorage = Codes("_ FP8")
ExpertDispatch = Codes("RANKS NODES")
OffloadTarget = Codes("HOST DRIVE")
HostCompute = Codes("FASTER CPU STREAM")
HostExperts = Codes("_ RAREST")
Mode = Codes("STATIC CONTINUOUS DISAGGREGATED")


# --- records ----------------------------------------------------------------------------------------------------------

Owner = TypeVar("Owner")
Value = TypeVar("Value")


class Derived(Generic[Owner, Value]):
    """A property of a record that is computed at its first use and cached."""

    def __init__(self, compute: Callable[[Owner], Value]) -> None:
        self._compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type[Owner], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, record: None, owner: type[Owner]) -> Self: ...

    @overload
    def __get__(self, record: Owner, owner: type[Owner]) -> Value: ...

    def __get__(self, record: Owner | None, owner: type[Owner]) -> Self | Value:
        if record is None:
            return self
        value = record.__dict__[self._name] = self._compute(record)
        return value


def derived(compute: Callable[[Owner], Value]) -> Derived[Owner, Value]:
    """A property that is computed at its first use and cached.

    ``functools.cached_property`` takes a lock before Python 3.12, which slows down a plan with forty of them.

    >>> class Die(PlanColumns):
    ...     area = derived(lambda die: die.width * die.height)
    >>> Die({"width": np.array([26.0]), "height": np.array([33.0])}).area.tolist()
    [858.0]
    """
    return Derived(compute)


def quantity(compute: Callable[[Any], Array]) -> Derived[Any, Array]:
    """A derived column of numbers, (rows,)."""
    return Derived(lambda plan: np.asarray(compute(plan)))


def mask(compute: Callable[[Any], np.ndarray]) -> Derived[Any, np.ndarray]:
    """A derived column of truth values or codes, (rows,)."""
    return Derived(lambda plan: np.asarray(compute(plan)))


class PlanColumns(Columns):
    """Immutable columns of plans by name: ``plan.tensor_parallel``. Numbers are in the units of the schema; a flag is 1
    or 0, a choice its position among the choices. Subclasses have properties for derived quantities.
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Array: ...

    else:

        def __getattr__(self, name):
            raise AttributeError(f"{type(self).__name__} has no column {name}")

    def __init__(
        self,
        columns: Mapping[str, np.ndarray],
        words: Mapping[str, np.ndarray] | None = None,
        given: Collection[str] = (),
    ) -> None:
        """Columns of numbers by name, columns of words as in the sheet, and names of the columns of the sheet."""
        self.__dict__.update(columns, _columns=columns, _words=words or {}, _given=given)

    # Masks of conditions on these plans that several rules share, by the condition as data
    conditions: Derived[Any, dict[Any, np.ndarray]] = derived(lambda _: {})

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} is read-only; replaced() makes a changed record")

    def __len__(self) -> int:
        columns: Mapping[str, np.ndarray] = self.__dict__["_columns"]
        return next((len(values) for values in columns.values() if values.ndim), 1)

    @property
    def numbers(self) -> Mapping[str, Array]:
        """The columns of numbers by name."""
        columns: Mapping[str, np.ndarray] = self.__dict__["_columns"]
        return {name: values for name, values in columns.items() if values.dtype != object}

    def with_numbers(self, columns: Mapping[str, np.ndarray]) -> Self:
        """A record of other rows with the same columns of the sheet, without their words."""
        return type(self)(columns, None, self.__dict__["_given"])

    def has(self, name: str) -> bool:
        """Whether the sheet has a column; if not, every row has the default."""
        return name in self.__dict__["_given"]

    def words(self, name: str) -> np.ndarray:
        """A column of words as in the sheet, (rows,); "" for blanks."""
        stated: Mapping[str, np.ndarray] = self.__dict__["_words"]
        return stated[name] if name in stated else np.full(len(self), "", dtype=object)

    def take(self, rows: np.ndarray | slice) -> Self:
        """The record of some rows, in the order given; a scalar column stays scalar."""
        columns, words = (
            {name: values[rows] if values.ndim else values for name, values in self.__dict__[kind].items()}
            for kind in ("_columns", "_words")
        )
        return type(self)(columns, words, self.__dict__["_given"])

    def replaced(self, **columns: np.ndarray) -> Self:
        """A record with some columns changed or added; derived quantities are computed anew."""
        return type(self)({**self.__dict__["_columns"], **columns}, self.__dict__["_words"], self.__dict__["_given"])


P = TypeVar("P", bound=PlanColumns)
Plan = TypeVar("Plan", bound=PlanColumns, contravariant=True)
_PLACE = re.compile(r"\{([\w.]+)\}")


@dataclass(frozen=True)
class Rule(Generic[Plan]):
    """A rule of legality as data: a mask of the plans that break it, and the reason. ``reason`` names columns in
    braces, ``{tensor_parallel}`` of the plan, ``{model.num_layers}`` of its model, and ``{words.recompute_modules}`` as
    written in the sheet. No plan breaks the rule if the sheet lacks ``column``.
    """

    broken: Callable[[Plan, Model], np.ndarray]
    reason: str
    column: str = ""

    def values(self, plan: Plan, model: Model) -> tuple[np.ndarray, ...]:
        """Columns named by the reason, (rows,) each."""

        def named(name: str) -> np.ndarray:
            kind, _, column = name.rpartition(".")
            if kind == "words":
                return plan.words(column)
            return np.asarray(getattr(model if kind == "model" else plan, column))

        return tuple(map(named, _PLACE.findall(self.reason)))

    def remark(self, rows: np.ndarray, plan: Plan, model: Model) -> Remark:
        """The reason as a remark on the plans that break the rule."""
        return Remark(rows, _PLACE.sub("{}", self.reason), self.values(plan, model))


class Remark(NamedTuple):
    """A sentence about some plans: a mask of rows, the sentence with ``{}`` for values, and columns of values."""

    rows: np.ndarray
    sentence: str
    values: tuple[np.ndarray, ...] = ()

    def of_rows(self, rows: np.ndarray, number: int, words: str) -> Remark:
        """The sentence after a prefix, for a table of ``number`` rows in which these plans are ``rows``."""
        places = np.zeros(number, dtype=np.int64)
        places[rows] = np.arange(len(rows))
        mask = np.zeros(number, dtype=bool)
        mask[rows] = self.rows
        return Remark(mask, words + self.sentence, tuple(values[places] for values in self.values))

    def take(self, rows: slice) -> Remark:
        """The sentence about some of the plans."""
        return Remark(self.rows[rows], self.sentence, tuple(values[rows] for values in self.values))


def broken_rules(rules: Sequence[Rule[P]], plan: P, model: Model) -> list[Remark]:
    """Remarks on the rules that some plans break, in the order of the rules.

    >>> rule = Rule(lambda plan, model: plan.tensor_parallel > 8, "tensor parallel {tensor_parallel} leaves a machine")
    >>> plan = PlanColumns({"tensor_parallel": np.array([8.0, 16.0])})
    >>> [remark.rows.tolist() for remark in broken_rules([rule], plan, None)]
    [[False, True]]
    """
    remarks = []
    for rule in rules:
        if rule.column and not plan.has(rule.column):
            continue
        rows = rule.broken(plan, model)
        if rows.item() if rows.size == 1 else some(rows):
            remarks.append(rule.remark(rows, plan, model))
    return remarks


def remarks_of_rows(remarks: Sequence[Remark], num_rows: int, worded: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """A mask of the rows with remarks, and the sentences about each row, joined by "; ", or "" if not ``worded``.

    >>> remarks = [Remark(np.array([False, True]), "too wide"), Remark(np.array([False, True]), "too deep")]
    >>> [part.tolist() for part in remarks_of_rows(remarks, 2)]
    [[False, True], ['', 'too wide; too deep']]
    """
    remarked = np.zeros(num_rows, dtype=bool)
    sentences = np.full(num_rows, "", dtype=object)
    for remark in remarks:
        if not (remark.rows.item() if num_rows == 1 else some(remark.rows)):
            continue
        rows = remark.rows.nonzero()[0]
        remarked[rows] = True
        if not worded:
            continue
        before = sentences[rows].tolist()
        sentences[rows] = [
            f"{start}; {more}" if start else more for start, more in zip(before, _sentences(remark, rows), strict=True)
        ]
    return remarked, sentences


def _sentences(remark: Remark, rows: np.ndarray) -> list[str]:
    """The sentence with the values of some rows; equal values are formatted once."""
    if not remark.values:
        return [remark.sentence.format()] * len(rows)
    values = list(zip(*(column[rows].tolist() for column in remark.values), strict=True))
    words = {value: remark.sentence.format(*map(_plain, value)) for value in set(values)}
    return [words[value] for value in values]


def _plain(value: object) -> str:
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else f"{value:g}"
    return str(value)


def half_width(base: Numeric, unread: Numeric, source: Numeric, distance: Numeric, far: Numeric) -> Array:
    r"""Half-width of an 80 % band around a prediction, as a logarithm.

    .. math:: h = \sqrt{b^2 + u\,s^2 + (d f)^2}

    Errors of the publisher, of a model that its software never ran on the accelerator, and of the distance from
    published runs are independent: they add as squares. Heuristic, this work.

    >>> half_width([0.3, 0.3], [0.0, 1.0], 0.4, 0.0, 0.1).tolist()
    [0.3, 0.5]

    Parameters
    ----------
    base : Half-width b where the software has published runs of the model on the accelerator. [-]
    unread : Whether it has none, u: 0 or 1. [-]
    source : Half-width s that this adds. [-]
    distance : Distance d from published runs. [-]
    far : Half-width f for each unit of distance. [-]

    Returns
    -------
    half_width : The ends of the band are the prediction over and times its exponential. [-]
    """
    wide, apart = array(base), array(distance) * array(far)
    return np.asarray(np.sqrt(wide * wide + array(unread) * array(source) * array(source) + apart * apart))
