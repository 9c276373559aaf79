"""An accelerator as arrays, and what is assumed where its datasheet does not state a peak."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from xlperf.base.arrays import Array, Numeric, array


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


def vector_flop_rate(vector_peak: Numeric, matrix_peak: Numeric, matrix_to_vector_ratio: Numeric) -> Array:
    r"""Peak of the vector units in FP32: as stated, else by its ratio to the 16-bit peak of the matrix units.

    .. math:: P_v = P_{FP32} \text{ or } P_{BF16} / r

    Heuristic, this work.

    Parameters
    ----------
    vector_peak : numeric
        Stated peak in FP32; NaN: not stated. [FLOP/s]
    matrix_peak : numeric
        Dense peak of the matrix units in BF16; may be NaN where the other is stated. [FLOP/s]
    matrix_to_vector_ratio : numeric
        Ratio r of the two peaks, 16 on A100; may be NaN where the first is stated. [-]

    Returns
    -------
    rate : numeric
        Peak of the vector units. [FLOP/s]

    Examples
    --------
    Not stated beside a matrix peak of 800:

    >>> float(vector_flop_rate(np.nan, 800.0, 16.0))
    50.0
    """
    stated = array(vector_peak)
    return np.where(np.isnan(stated), array(matrix_peak) / array(matrix_to_vector_ratio), stated)


def cache_bandwidth(
    stated_bandwidth: Numeric, num_multiprocessors: Numeric, clock_rate: Numeric, bytes_per_clock: Numeric
) -> Array:
    r"""Bandwidth of the last-level cache: as stated, else what the multiprocessors read per clock.

    .. math:: B = n f b

    Heuristic, this work; where neither is known the cache never binds.

    Parameters
    ----------
    stated_bandwidth : numeric
        Bandwidth of the datasheet; NaN: not stated. [B/s]
    num_multiprocessors : numeric
        Multiprocessors n; NaN: not stated. [-]
    clock_rate : numeric
        Their clock f; NaN: not stated. [1/s]
    bytes_per_clock : numeric
        Bytes b that each reads per clock; may be NaN where the bandwidth is stated. [B]

    Returns
    -------
    bandwidth : numeric
        Infinite where nothing is stated. [B/s]

    Examples
    --------
    100 multiprocessors at 2 Hz:

    >>> float(cache_bandwidth(np.nan, 100.0, 2.0, 64.0))
    12800.0
    """
    stated, clocked = array(stated_bandwidth), array(num_multiprocessors) * array(clock_rate)
    derived = np.where(np.isnan(clocked), np.inf, array(bytes_per_clock) * clocked)
    return np.where(np.isnan(stated), derived, stated)
