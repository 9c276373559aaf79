"""What bounds each operator: the resource that shortens its time most at twice the speed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from xlperf.base.arrays import Array
from xlperf.equations.hardware.device import Device

BOUNDS = ("compute", "memory", "overhead")
_TWICE, _WITHOUT_LIMIT = 2.0, 2.0**40


def _faster(device: Device, units: float, memory: float) -> Device:
    """An accelerator whose units, caches and power limit, and whose main memory, are so many times as fast."""
    return replace(
        device,
        peak_flop_rate=units * device.peak_flop_rate,
        vector_flop_rate=units * device.vector_flop_rate,
        l2_bandwidth=units * device.l2_bandwidth,
        thermal_design_power=units * device.thermal_design_power,
        memory_bandwidth=memory * device.memory_bandwidth,
    )


def operator_bounds(times: Callable[[Callable[[Device], Device]], list[Array]]) -> list[np.ndarray]:
    """What bounds each of some operators.

    Parameters
    ----------
    times : callable
        Arrays of the times of calls, from what each accelerator is replaced by. [s]

    Returns
    -------
    list of array of str
        ``compute``: units, caches and power limit of twice the rate would gain most; ``memory``: main memory of twice
        the bandwidth; ``overhead``: half of the time that neither shortens. Arrays of the same shapes.
    """
    found = [times(lambda device: device)]
    for units, memory in ((_TWICE, 1.0), (1.0, _TWICE), (_WITHOUT_LIMIT, _WITHOUT_LIMIT)):
        found.append(times(lambda device, units=units, memory=memory: _faster(device, units, memory)))  # type: ignore[misc]
    words = np.array(BOUNDS, dtype=object)
    return [
        words[np.argmax([whole - compute, whole - memory, 0.5 * rest], axis=0)]
        for whole, compute, memory, rest in zip(*found, strict=True)
    ]
