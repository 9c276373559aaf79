"""Choices of plans that equations distinguish: the code of a word is its position among the choices of its column.

Each class is named for its column (``pipeline_schedule``), each code for its word (``zero-bubble``).
"""

from __future__ import annotations


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


class Mode:
    """How requests are batched."""

    STATIC, CONTINUOUS, DISAGGREGATED = 0.0, 1.0, 2.0
