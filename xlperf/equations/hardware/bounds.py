"""The resource that limits a kernel, a message or a step, for operators, single operations and decode steps alike.

The calibrated limit is the resource whose doubling shortens the time most; the ideal limit compares the arithmetic
intensity with the ridge point of the datasheet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array
from xlperf.equations.hardware.roofline import Device

RESOURCES = ("compute", "memory", "network", "overhead")
"""Limiting resources by code: arithmetic units and power; main memory and last-level cache; links; none of them."""
_TWICE, WITHOUT_LIMIT = 2.0, 2.0**40


class Faster(NamedTuple):
    """Speed-up factors of a machine's resources, a number for all plans or (rows, 1)."""

    compute: float | Array = 1.0  # matrix, vector and exponential units, and their power [-]
    memory: float | Array = 1.0  # bandwidth of main memory and last-level cache [-]
    network: float | Array = 1.0  # bandwidth of links [-]
    power: float | Array = 1.0  # power limit alone [-]

    def device(self, device: Device) -> Device:
        """The accelerator sped up by these factors."""
        units, memory = self.compute, self.memory
        return replace(
            device,
            peak_flop_rate=units * device.peak_flop_rate,
            vector_flop_rate=units * device.vector_flop_rate,
            exponential_rate=units * device.exponential_rate,
            thermal_design_power=units * self.power * device.thermal_design_power,
            static_power=units * device.static_power,
            memory_bandwidth=memory * device.memory_bandwidth,
            l2_bandwidth=memory * device.l2_bandwidth,
            stream_ratio=memory / units * device.stream_ratio,
        )


def limiting_resources(times: Callable[[Faster], Sequence[Array]], network: bool = False) -> list[np.ndarray]:
    """Limiting resource of several groups of times: its doubling shortens the time most.

    Overhead counts as half of the time that remains without any limit. Heuristic, this work.
    """
    tried = [Faster(), Faster(compute=_TWICE), Faster(memory=_TWICE)]
    tried += [Faster(network=_TWICE)] if network else []
    tried.append(Faster(*[WITHOUT_LIMIT] * 3))
    groups = zip(*(times(faster) for faster in tried), strict=True)
    return [most_saved(*(time[0] - faster for faster in time[1:-1]), 0.5 * time[-1]) for time in groups]


def most_saved(*saved: Array) -> np.ndarray:
    """Position in :data:`RESOURCES` of the largest time saved; the last argument belongs to overhead."""
    most = np.argmax(np.stack([np.nan_to_num(time) for time in saved], axis=-1), axis=-1)
    return np.asarray(np.where(most == len(saved) - 1, len(RESOURCES) - 1, most))


def ideal_constants(constants: Mapping[str, Array]) -> dict[str, Array]:
    """Constants of a kernel at datasheet rates: efficiencies 1, overheads 0, tiles as in its library."""
    overheads = ("cache_share", "serial_share", "input_traffic", "energy_per_flop")

    def ideal(name: str, values: Array) -> Array:
        if name.endswith(("_efficiency", "_slowdown")):
            return 0.0 * values + 1.0
        return 0.0 * values + 0.0 if name.endswith("_time") or name in overheads else values

    return {name: ideal(name, values) for name, values in constants.items()}


def ideal_times(
    flop: Numeric, traffic: Numeric, peak_flop_rate: Numeric, memory_bandwidth: Numeric
) -> tuple[Array, Array]:
    r"""Time of a kernel on the ideal roofline, and its limiting resource.

    .. math:: t = \max\left(\frac{F}{P}, \frac{T}{B}\right)

    A kernel is compute-bound if its intensity F / T reaches the ridge point P / B.

    Parameters
    ----------
    flop : numeric
        Operations F. [FLOP]
    traffic : numeric
        Bytes T through the main memory. [B]
    peak_flop_rate : numeric
        Dense peak P of the datasheet. [FLOP/s]
    memory_bandwidth : numeric
        Bandwidth B of the main memory. [B/s]

    Returns
    -------
    time : numeric
        Time without padding or efficiencies. [s]
    code : numeric
        Position in :data:`RESOURCES`. [-]

    References
    ----------
    .. [1] S. Williams, A. Waterman and D. Patterson, "Roofline", Commun. ACM 52(4), 2009, doi:10.1145/1498765.1498785.

    Examples
    --------
    191 FLOP/B on an H100, whose ridge is at 295 FLOP/B:

    >>> time, code = ideal_times(191e9, 1e9, 989e12, 3.35e12)
    >>> float(time.round(7)), RESOURCES[int(code)]
    (0.0002985, 'memory')
    """
    compute, memory = array(flop) / array(peak_flop_rate), array(traffic) / array(memory_bandwidth)
    longer = np.maximum(compute, memory)
    return longer, np.where(compute >= memory, 0.0, 1.0) + 0.0 * longer
