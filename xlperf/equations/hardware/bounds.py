"""What limits a kernel, a message or a step: one definition for operators, single operations and decode steps.

The calibrated verdict is by gain: the resource whose doubling shortens the time most. The ideal one is that of the
roofline: arithmetic intensity against the ridge point of the datasheet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array
from xlperf.equations.hardware.roofline import Device

RESOURCES = ("compute", "memory", "network", "overhead")
"""Codes of what limits, by position: arithmetic units and power; main memory and last-level cache; links; none."""
_TWICE, WITHOUT_LIMIT = 2.0, 2.0**40


class Faster(NamedTuple):
    """Factors of the speed of a machine's resources, of one for all plans or of each, (rows, 1)."""

    compute: float | Array = 1.0  # Of the matrix, vector and exponential units and of the power that they may draw [-]
    memory: float | Array = 1.0  # Of the bandwidths of the main memory and of the last-level cache [-]
    network: float | Array = 1.0  # Of the bandwidth of links [-]
    power: float | Array = 1.0  # Of the power limit alone [-]

    def device(self, device: Device) -> Device:
        """An accelerator with such units and memory."""
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
    """What limits each of several groups of times: the resource whose doubling shortens a time most.

    Overhead counts as half of the time that is left when nothing has a limit. Heuristic, this work.
    """
    tried = [Faster(), Faster(compute=_TWICE), Faster(memory=_TWICE)]
    tried += [Faster(network=_TWICE)] if network else []
    tried.append(Faster(*[WITHOUT_LIMIT] * 3))
    groups = zip(*(times(faster) for faster in tried), strict=True)
    return [most_saved(*(own[0] - faster for faster in own[1:-1]), 0.5 * own[-1]) for own in groups]


def most_saved(*saved: Array) -> np.ndarray:
    """Position in :data:`RESOURCES` of the largest of the times saved; the last one is that of overhead."""
    most = np.argmax(np.stack([np.nan_to_num(one) for one in saved], axis=-1), axis=-1)
    return np.asarray(np.where(most == len(saved) - 1, len(RESOURCES) - 1, most))


def ideal_constants(constants: Mapping[str, Array]) -> dict[str, Array]:
    """Constants of a kernel that reaches the rates of the datasheet, with the tiles that its library has."""
    found = {}
    for name, values in constants.items():
        one = name.endswith(("_efficiency", "_slowdown"))
        nothing = name.endswith("_time") or name in ("cache_share", "serial_share", "input_traffic", "energy_per_flop")
        found[name] = 0.0 * values + float(one) if one or nothing else values
    return found


def ideal_times(
    flop: Numeric, traffic: Numeric, peak_flop_rate: Numeric, memory_bandwidth: Numeric
) -> tuple[Array, Array]:
    r"""Time of a kernel on the ideal roofline, and what limits it there.

    .. math:: t = \max\left(\frac{F}{P}, \frac{T}{B}\right)

    It is compute-bound where its intensity F / T is that of the ridge point P / B at least.

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
        Neither padding nor any efficiency counts. [s]
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
