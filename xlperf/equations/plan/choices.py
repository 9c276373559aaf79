"""What the choices of a plan mean: codes of words, and the one table of number formats.

The code of a choice is its position among the choices of its column in the schema: each class is named for its column
(``pipeline_schedule``), each code for its word (``zero-bubble``). A precision has bytes, calibration, peak rate, casts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


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


_BLOCK_16 = 0.5 + 1.0 / 16.0  # 4 bits and one scale byte per block of 16
_BLOCK_32 = 1.0 + 1.0 / 32.0  # 8 bits and one scale byte per block of 32
_BLOCK_128 = 1.0 + 4.0 / 128.0  # 8 bits and one FP32 scale per 128 elements
PRECISIONS = {
    "fp32": Precision("fp32", "fp32", 4.0, 4.0, 4.0, products=("fp32",), wide="fp32"),
    "tf32": Precision("tf32", "tf32", 4.0, 4.0, 4.0, wide="tf32"),
    "fp16": Precision("bf16", "bf16", 2.0, 2.0, products=("fp16", "bf16", "fp32")),
    "bf16": Precision("bf16", "bf16", 2.0, 2.0, products=("bf16", "fp16", "fp32")),
    "fp8": Precision("fp8", "fp8", 1.0, 1.0, products=("fp8", "fp16", "bf16", "fp32"), cache="fp8", fused_reads=-1.0),
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
    "fp8-current": Precision("fp8", "fp8", 1.0, 1.0, reads=2.0),
    "mxfp8": Precision("mxfp8", "fp8", _BLOCK_32, _BLOCK_32, turns=0.0, block_scaled=True),
    "fp8-block": Precision("fp8_block", "fp8", _BLOCK_128, _BLOCK_128),
}
PRECISION_NAMES = tuple(PRECISIONS)
PRECISION_CODES = {name: code for code, name in enumerate(PRECISION_NAMES)}
PRECISION_KEYS = tuple(precision.key for precision in PRECISIONS.values())
WIDE_CODES = np.array([PRECISION_CODES[precision.wide] for precision in PRECISIONS.values()])
INPUT_SIZES = np.array([precision.input_size for precision in PRECISIONS.values()])
ELEMENT_SIZES = np.array([precision.element_size for precision in PRECISIONS.values()])
CASTS = np.array([(each.reads, each.fused_reads, each.turns) for each in PRECISIONS.values()]).T
BLOCK_SCALED = np.array([precision.block_scaled for precision in PRECISIONS.values()])
FP4 = PRECISION_CODES["fp4"]


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

    NONE, STEP = 0.0, 2.0


class GradientPrecision:
    """Precision of the gradient buffer; NaN where the software decides."""

    FP32, BF16 = 0.0, 1.0


class QuantizedCopies:
    """What stays in FP8 or FP4 beside the products."""

    KEPT, PRIMARY, NONE = 0.0, 1.0, 2.0


class Recompute:
    """Which activations are computed again in the backward pass."""

    NONE, SELECTIVE, FULL = 0.0, 1.0, 2.0


class CrossEntropy:
    """Kernels of the loss."""

    FUSED, PLAIN = 1.0, 2.0


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
