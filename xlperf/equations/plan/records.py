"""Plans as equations take them: records of columns, what choices and precisions mean, and rules of legality as data.

The schema of a sheet says which columns there are. The code of a choice is its position among the choices of its
column: each class is named for its column (``pipeline_schedule``), each code for its word (``zero-bubble``). The table
of precisions gives bytes, calibration, peak rate and casts of each number format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, Self, TypeVar, overload

import numpy as np

from xlperf.base.arrays import Array, Columns, some
from xlperf.equations.model.model import Model


class Precision(NamedTuple):
    """One number format of matrix products.

    Attributes
    ----------
    key : str
        Name of the calibration rows that time its products.
    peak : str
        Name of the peak rate of its products: column ``peak_flop_rate_<peak>`` of the accelerators.
    weight_size : float
        Bytes of a stored weight, its share of the scales included. [B]
    input_size : float
        Bytes of the other input of a product. [B]
    element_size : float
        Bytes of an activation between products. [B]
    products : tuple of str
        Precisions that weights stored in this one can be multiplied in: their own, or wider ones that they are
        converted to as they are read. Empty where serving does not offer it.
    cache : str
        Precision of the key-value cache unless a plan names another.
    wide : str
        Precision of what a narrow one leaves out: attention, router, logits.
    reads : float
        Passes over a tensor to cast it: 2 where its scale needs its largest element first. [-]
    fused_reads : float
        The same where a norm or an activation writes the tensor: -1 where that writes the narrow one in place of the
        wide one. [-]
    turns : float
        1 where the narrow tensor can be transposed, 0 where its scales run along rows. [-]
    block_scaled : bool
        Whether the matrix units have to scale blocks, as those with an FP4 rate do.
    tensor_scaled : bool
        Whether one scale holds for a whole tensor, so that its rows and its columns are the same numbers.
    stored_size : float
        Bytes of a weight of a checkpoint, whose scales are fewer than those of what training casts; 0: the same. [B]
    """

    key: str
    peak: str
    weight_size: float
    input_size: float
    element_size: float = 2.0
    products: tuple[str, ...] = ()
    cache: str = "bf16"
    wide: str = "bf16"
    reads: float = 1.0
    fused_reads: float = 1.0
    turns: float = 1.0
    block_scaled: bool = False
    tensor_scaled: bool = False
    stored_size: float = 0.0

    @property
    def served_size(self) -> float:
        """Bytes of a weight of a checkpoint that is served, its share of the scales included. [B]"""
        return self.stored_size or self.weight_size


_BLOCK_16 = 0.5 + 1.0 / 16.0  # 4 bits and one scale byte per block of 16
_BLOCK_32 = 1.0 + 1.0 / 32.0  # 8 bits and one scale byte per block of 32
_BLOCK_128 = 1.0 + 4.0 / 128.0  # 8 bits and one FP32 scale per 128 elements
_TILE_128 = 1.0 + 4.0 / (128.0 * 128.0)  # of a checkpoint: one per 128 x 128
PRECISIONS = {
    "fp32": Precision("fp32", "fp32", 4.0, 4.0, 4.0, products=("fp32",), wide="fp32"),
    "tf32": Precision("tf32", "tf32", 4.0, 4.0, 4.0, wide="tf32"),
    "fp16": Precision("bf16", "bf16", 2.0, 2.0, products=("fp16", "bf16", "fp32")),
    "bf16": Precision("bf16", "bf16", 2.0, 2.0, products=("bf16", "fp16", "fp32")),
    "fp8": Precision(
        "fp8",
        "fp8",
        1.0,
        1.0,
        products=("fp8", "fp16", "bf16", "fp32"),
        cache="fp8",
        fused_reads=-1.0,
        tensor_scaled=True,
    ),
    "int8": Precision("int8", "int8", 1.0, 1.0, products=("int8", "fp16", "bf16", "fp32")),
    "fp4": Precision(
        "fp4",
        "fp4",
        _BLOCK_16,
        _BLOCK_16,
        products=("fp4", "fp8", "fp16", "bf16", "fp32"),
        cache="fp8",
        reads=2.0,
        turns=0.0,
    ),
    "int4": Precision("bf16", "bf16", _BLOCK_16, 2.0, products=("bf16", "fp16", "fp32", "fp8", "int8")),
    "fp8-current": Precision("fp8", "fp8", 1.0, 1.0, reads=2.0, tensor_scaled=True),
    "mxfp8": Precision("mxfp8", "fp8", _BLOCK_32, _BLOCK_32, turns=0.0, block_scaled=True),
    "fp8-block": Precision(
        "fp8_block",
        "fp8",
        _BLOCK_128,
        _BLOCK_128,
        products=("fp8-block", "fp8", "fp16", "bf16", "fp32"),
        cache="fp8",
        stored_size=_TILE_128,
    ),
    "fp8-tensor": Precision(
        "fp8", "fp8", 1.0, 1.0, products=("fp8-tensor", "fp8", "fp16", "bf16", "fp32"), cache="fp8", tensor_scaled=True
    ),
}
PRECISION_NAMES = tuple(PRECISIONS)
PRECISION_CODES = {name: code for code, name in enumerate(PRECISION_NAMES)}
PRECISION_KEYS = tuple(precision.key for precision in PRECISIONS.values())
WIDE_CODES = np.array([PRECISION_CODES[precision.wide] for precision in PRECISIONS.values()])
INPUT_SIZES = np.array([precision.input_size for precision in PRECISIONS.values()])
ELEMENT_SIZES = np.array([precision.element_size for precision in PRECISIONS.values()])
CASTS = np.array(
    [(each.reads, each.fused_reads, each.turns, each.tensor_scaled) for each in PRECISIONS.values()], dtype=np.float64
).T
BLOCK_SCALED = np.array([precision.block_scaled for precision in PRECISIONS.values()])
FP4 = PRECISION_CODES["fp4"]
WORD = PRECISIONS["fp32"].element_size
"""Bytes of an FP32 element: logits, scores, master weights, moments. [B]"""


class PipelineSchedule:
    """Order of forward and backward passes."""

    GPIPE, INTERLEAVED, ZERO_BUBBLE, DUALPIPE = 1.0, 2.0, 3.0, 4.0


class StageDealing:
    """How layers are split over the stages."""

    COST = 1.0


class ContextMethod:
    """How the ranks of a sequence exchange keys and values."""

    RING, ALL_GATHER, ULYSSES = 0.0, 1.0, 2.0


class DispatchPrecision:
    """Precision in which tokens are sent to experts."""

    FP8 = 1.0


class TokenDispatch:
    """How tokens are sent to experts."""

    COPIES = 1.0


class TensorOverlap:
    """Which communication of tensor parallelism runs beside the matrix products."""

    NONE, ALL = 0.0, 2.0


class Graphs:
    """What the host launches at once as a graph."""

    NONE, STEP, WHOLE_LAYERS = 0.0, 2.0, 3.0


class GradientPrecision:
    """Precision of the gradient buffer; NaN where the software decides."""

    FP32, BF16 = 0.0, 1.0


class GradientAccumulation:
    """How gradients of weights are added up over micro-batches."""

    SEPARATE, WHOLE = 1.0, 2.0


class QuantizedCopies:
    """What stays in FP8 or FP4 beside the products."""

    KEPT, PRIMARY, NONE = 0.0, 1.0, 2.0


class Recompute:
    """Which activations are computed again in the backward pass."""

    NONE, SELECTIVE, FULL = 0.0, 1.0, 2.0


class CrossEntropy:
    """Kernels of the loss."""

    FUSED, PLAIN, GATHERED, CHUNKED = 1.0, 2.0, 3.0, 4.0


class LossPrecision:
    """Precision in which a plain loss is computed."""

    FP32, BF16 = 0.0, 1.0


class Attention:
    """Attention kernel."""

    STANDARD = 1.0


class AdapterModules:
    """Which products have a low-rank adapter."""

    ALL = 0.0


class Optimizer:
    """Optimizer: what it keeps per parameter."""

    ADAM = 0.0


class MomentPrecision:
    """Precision of the optimizer's moments."""

    FP32, BF16, FP8 = 0.0, 1.0, 2.0


class MasterWeights:
    """What the optimizer keeps of the weights beside 16-bit ones."""

    FP32, REMAINDER, NONE = 0.0, 1.0, 2.0


class ActivationStorage:
    """How activations wait for the backward pass."""

    FP8 = 1.0


class ExpertDispatch:
    """To whom a token is sent: each rank of its experts, or each node once."""

    RANKS, NODES = 0.0, 1.0


class OffloadTarget:
    """Where the host keeps what is offloaded."""

    HOST, DRIVE = 0.0, 1.0


class Mode:
    """How requests are batched."""

    STATIC, CONTINUOUS, DISAGGREGATED = 0.0, 1.0, 2.0


# --- records ----------------------------------------------------------------------------------------------------------

Owner = TypeVar("Owner")
Value = TypeVar("Value")


class _Derived(Generic[Owner, Value]):
    """What :func:`derived` makes of a function."""

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
        found = record.__dict__[self._name] = self._compute(record)
        return found


def derived(compute: Callable[[Owner], Value]) -> _Derived[Owner, Value]:
    """Make a property that is computed when it is first asked for, and kept.

    ``functools.cached_property`` takes a lock before Python 3.12, which a plan with forty of them notices.

    Parameters
    ----------
    compute : callable
        The value of a record.

    Returns
    -------
    property

    Examples
    --------
    >>> class Die(PlanColumns):
    ...     area = derived(lambda die: die.width * die.height)
    >>> Die({"width": np.array([26.0]), "height": np.array([33.0])}).area.tolist()
    [858.0]
    """
    return _Derived(compute)


class PlanColumns(Columns):
    """Columns of plans by name: ``plan.tensor_parallel``.

    The schema of a sheet says which columns there are: a number as it is, a yes or no as 1 or 0, a choice as its
    position among the choices. What follows from columns is a property of a subclass. A record never changes.
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
        """Columns by name; what the sheet says in those of words; and which columns the sheet has at all."""
        self.__dict__.update(columns, _columns=columns, _words=words or {}, _given=given)

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

    def has(self, name: str) -> bool:
        """Whether the sheet has a column; else every row has its default."""
        return name in self.__dict__["_given"]

    def words(self, name: str) -> np.ndarray:
        """What the sheet says in a column of words, (rows,); "" where it says nothing."""
        stated: Mapping[str, np.ndarray] = self.__dict__["_words"]
        return stated[name] if name in stated else np.full(len(self), "", dtype=object)

    def take(self, rows: np.ndarray | slice) -> Self:
        """The record of some rows, in the order given; a column of one value for all keeps it."""
        columns, words = (
            {name: values[rows] if values.ndim else values for name, values in self.__dict__[kind].items()}
            for kind in ("_columns", "_words")
        )
        return type(self)(columns, words, self.__dict__["_given"])

    def replaced(self, **columns: np.ndarray) -> Self:
        """A record with some columns changed or added; what follows from columns follows anew."""
        return type(self)({**self.__dict__["_columns"], **columns}, self.__dict__["_words"], self.__dict__["_given"])


P = TypeVar("P", bound=PlanColumns)
_PLACE = re.compile(r"\{([\w.]+)\}")


@dataclass(frozen=True)
class Rule(Generic[P]):
    """A rule of legality as data: where a plan breaks it, and the reason.

    ``reason`` names columns in braces, ``{tensor_parallel}`` of the plan, ``{model.num_layers}`` of its model, and
    ``{words.recompute_modules}`` what the sheet says. ``column`` is an optional column that the rule is about: a
    sheet without it cannot break the rule.
    """

    broken: Callable[[P, Model], np.ndarray]
    reason: str
    column: str = ""

    def values(self, plan: P, model: Model) -> tuple[np.ndarray, ...]:
        """The columns that the reason names, (rows,) each."""
        return tuple(_named(name, plan, model) for name in _PLACE.findall(self.reason))


class Remark(NamedTuple):
    """A sentence about some plans: which, and what it says of them; ``{}`` takes the row's values."""

    rows: np.ndarray
    sentence: str
    values: tuple[np.ndarray, ...] = ()

    def of_rows(self, rows: np.ndarray, number: int, words: str) -> Remark:
        """The sentence, with words before it, about those rows of a longer table that these plans are."""
        places = np.zeros(number, dtype=np.int64)
        places[rows] = np.arange(len(rows))
        told = np.zeros(number, dtype=bool)
        told[rows] = self.rows
        return Remark(told, words + self.sentence, tuple(values[places] for values in self.values))

    def take(self, rows: slice) -> Remark:
        """The sentence about some of the plans."""
        return Remark(self.rows[rows], self.sentence, tuple(values[rows] for values in self.values))


def _named(name: str, plan: PlanColumns, model: Model) -> np.ndarray:
    kind, _, column = name.rpartition(".")
    if kind == "words":
        return plan.words(column)
    return np.asarray(getattr(model if kind == "model" else plan, column))


def broken_rules(rules: Sequence[Rule[P]], plan: P, model: Model) -> list[Remark]:
    """The rules that some of the plans break.

    Parameters
    ----------
    rules : sequence of Rule
        In the order in which they are said.
    plan : PlanColumns
        Plans, (rows,).
    model : Model
        Their models, (rows,).

    Returns
    -------
    list of Remark
        Which plans break each of them, and the reason.

    Examples
    --------
    >>> rule = Rule(lambda plan, model: plan.tensor_parallel > 8, "tensor parallel {tensor_parallel} leaves a machine")
    >>> plan = PlanColumns({"tensor_parallel": np.array([8.0, 16.0])})
    >>> [remark.rows.tolist() for remark in broken_rules([rule], plan, None)]
    [[False, True]]
    """
    found = []
    for rule in rules:
        if rule.column and not plan.has(rule.column):
            continue
        rows = rule.broken(plan, model)
        if rows.item() if rows.size == 1 else some(rows):
            found.append(Remark(rows, _PLACE.sub("{}", rule.reason), rule.values(plan, model)))
    return found


def remarks_of_rows(remarks: Sequence[Remark], num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Join the sentences about each row.

    Parameters
    ----------
    remarks : sequence of Remark
        In the order in which they are said.
    num_rows : int
        Rows of the table.

    Returns
    -------
    tuple of np.ndarray
        Whether there is any (bool), and the sentences joined by "; " (object array of str).

    Examples
    --------
    >>> remarks = [Remark(np.array([False, True]), "too wide"), Remark(np.array([False, True]), "too deep")]
    >>> [part.tolist() for part in remarks_of_rows(remarks, 2)]
    [[False, True], ['', 'too wide; too deep']]
    """
    remarked = np.zeros(num_rows, dtype=bool)
    sentences = np.full(num_rows, "", dtype=object)
    for remark in remarks:
        if not (remark.rows.item() if num_rows == 1 else some(remark.rows)):
            continue
        rows = np.flatnonzero(remark.rows)
        remarked[rows] = True
        before = sentences[rows].tolist()
        sentences[rows] = [
            f"{one}; {more}" if one else more for one, more in zip(before, _said(remark, rows), strict=True)
        ]
    return remarked, sentences


def _said(remark: Remark, rows: np.ndarray) -> list[str]:
    """The sentence for some rows; equal values are put into words once."""
    if not remark.values:
        return [remark.sentence.format()] * len(rows)
    columns = [_in_words(column[rows].tolist()) for column in remark.values]
    parts = remark.sentence.split("{}")
    if len(parts) == 2 and len(columns) == 1:
        return [f"{parts[0]}{word}{parts[1]}" for word in columns[0]]
    if len(parts) == 3 and len(columns) == 2:
        first, middle, last = parts
        return [f"{first}{one}{middle}{other}{last}" for one, other in zip(*columns, strict=True)]
    return [remark.sentence.format(*words) for words in zip(*columns, strict=True)]


def _in_words(values: list[object]) -> list[str]:
    """Values of a column as a sentence says them; equal ones are put into words once."""
    known = {value: _plain(value) for value in set(values)}
    return [known[value] for value in values]


def _plain(value: object) -> str:
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else f"{value:g}"
    return str(value)
