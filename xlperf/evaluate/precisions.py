"""Precisions by name: what a plan's word means for peaks, bytes and calibration."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Precision(NamedTuple):
    """What a precision means: calibration key, column of the peak rate, bytes in products, bytes in between."""

    key: str
    peak: str
    product_size: float
    element_size: float


_FP4_SIZE = 0.5 + 1.0 / 16.0  # one scale byte per block of 16
PRECISIONS = {
    "fp32": Precision("fp32", "fp32", 4.0, 4.0),
    "tf32": Precision("tf32", "tf32", 4.0, 4.0),
    "fp16": Precision("bf16", "bf16", 2.0, 2.0),
    "bf16": Precision("bf16", "bf16", 2.0, 2.0),
    "fp8": Precision("fp8", "fp8", 1.0, 2.0),
    "int8": Precision("int8", "int8", 1.0, 2.0),
    "fp4": Precision("fp4", "fp4", _FP4_SIZE, 2.0),
    "int4": Precision("bf16", "bf16", _FP4_SIZE, 2.0),
}
PRECISION_NAMES = tuple(PRECISIONS)
STORED = {"fp16": "bf16"}  # what weights are stored in, as a calibration key
PRECISION_CODES = {name: code for code, name in enumerate(PRECISION_NAMES)}
PRECISION_KEYS = tuple(precision.key for precision in PRECISIONS.values())
WIDE = {"fp32": "fp32", "tf32": "tf32"}
WIDE_CODES = np.array([PRECISION_CODES[WIDE.get(name, "bf16")] for name in PRECISION_NAMES])
PRODUCT_SIZES = np.array([precision.product_size for precision in PRECISIONS.values()])
ELEMENT_SIZES = np.array([precision.element_size for precision in PRECISIONS.values()])
