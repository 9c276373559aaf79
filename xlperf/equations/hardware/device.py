"""An accelerator as arrays: what the kernel equations need of a datasheet row."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from xlperf.base.arrays import Array


def _unlimited() -> Array:
    return np.full((1, 1), np.inf)


@dataclass(frozen=True, eq=False)
class Device:
    """Columns of accelerators, one entry per plan; shapes broadcast with the operators' (rows, 1).

    Attributes
    ----------
    peak_flop_rate : Array
        Dense peak of the matrix units in the precision of the plan. [FLOP/s]
    vector_flop_rate : Array
        Peak of the vector units in FP32. [FLOP/s]
    memory_bandwidth : Array
        Peak bandwidth of the main memory. [B/s]
    memory_capacity : Array
        Main memory as the driver reports it. [B]
    l2_bandwidth : Array
        Bandwidth of the last-level cache; infinite where it is not known. [B/s]
    num_multiprocessors : Array
        Units that work on tiles at the same time; NaN where waves are not modelled. [-]
    thermal_design_power : Array
        Power limit, under which long products slow down; infinite where it does not bind. [W]
    """

    peak_flop_rate: Array
    vector_flop_rate: Array
    memory_bandwidth: Array
    memory_capacity: Array
    l2_bandwidth: Array
    num_multiprocessors: Array
    thermal_design_power: Array = field(default_factory=_unlimited)
