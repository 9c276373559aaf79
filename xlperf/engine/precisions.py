"""Precisions by name: what a plan's word means for peaks, bytes and calibration."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Precision(NamedTuple):
    """What a precision means: calibration key, column of the peak rate, bytes in products, bytes in between.

    How a tensor becomes narrow: ``reads``, how often it is read: twice where a scale needs its largest element first;
    ``fused_reads``, the same where a norm or an activation puts it out: -1 where that writes it narrow in place of
    wide; ``turns``, 1 where the narrow tensor can be turned, 0 where its scales run along rows.
    ``unit``: a column whose blank says that the matrix units do not take the format; "" where the peak tells.
    """

    key: str
    peak: str
    product_size: float
    element_size: float
    reads: float = 1.0
    fused_reads: float = 1.0
    turns: float = 1.0
    unit: str = ""


_FP4_SIZE = 0.5 + 1.0 / 16.0  # one scale byte per block of 16
_MX_SIZE = 1.0 + 1.0 / 32.0  # one scale byte per block of 32
_BLOCK_SIZE = 1.0 + 4.0 / 128.0  # one FP32 scale per 128 elements
PRECISIONS = {
    "fp32": Precision("fp32", "fp32", 4.0, 4.0),
    "tf32": Precision("tf32", "tf32", 4.0, 4.0),
    "fp16": Precision("bf16", "bf16", 2.0, 2.0),
    "bf16": Precision("bf16", "bf16", 2.0, 2.0),
    "fp8": Precision("fp8", "fp8", 1.0, 2.0, fused_reads=-1.0),
    "int8": Precision("int8", "int8", 1.0, 2.0),
    "fp4": Precision("fp4", "fp4", _FP4_SIZE, 2.0, reads=2.0, turns=0.0),
    "int4": Precision("bf16", "bf16", _FP4_SIZE, 2.0),
    "fp8-current": Precision("fp8", "fp8", 1.0, 2.0, reads=2.0),
    "mxfp8": Precision("mxfp8", "fp8", _MX_SIZE, 2.0, turns=0.0, unit="fp4"),
    "fp8-block": Precision("fp8_block", "fp8", _BLOCK_SIZE, 2.0),
}
PRECISION_NAMES = tuple(PRECISIONS)
STORED = {"fp16": "bf16"}  # what weights are stored in, as a calibration key
PRECISION_CODES = {name: code for code, name in enumerate(PRECISION_NAMES)}
PRECISION_KEYS = tuple(precision.key for precision in PRECISIONS.values())
WIDE = {"fp32": "fp32", "tf32": "tf32"}
WIDE_CODES = np.array([PRECISION_CODES[WIDE.get(name, "bf16")] for name in PRECISION_NAMES])
PRODUCT_SIZES = np.array([precision.product_size for precision in PRECISIONS.values()])
ELEMENT_SIZES = np.array([precision.element_size for precision in PRECISIONS.values()])
CASTS = np.array([(each.reads, each.fused_reads, each.turns) for each in PRECISIONS.values()]).T
BLOCK_SCALED = np.array([precision.unit != "" for precision in PRECISIONS.values()])
FP4 = PRECISION_CODES["fp4"]
