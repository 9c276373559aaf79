"""What a step of decoding waits for: compute, memory, network or overhead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from xlperf.arrays import Array, total
from xlperf.hardware.device import Device
from xlperf.inference.work import COMMUNICATION, FIXED, ServingWork, phase_times
from xlperf.workload.serving import GEMM_NAMES, LAYER_GEMMS, LAYER_VECTORS, VECTOR_NAMES

BOUNDS = ("compute", "memory", "network", "overhead")
COMPUTE, MEMORY, NETWORK, OVERHEAD = range(4)


def _roofs(flop: Array, traffic: Array, device: Device, peak: Array) -> Array:
    """Code of the roof that a kernel works under, were it as fast as the roof."""
    return np.where(flop / peak >= traffic / device.memory_bandwidth, float(COMPUTE), float(MEMORY))


class _Waits(NamedTuple):
    """What the kernels wait for (rows, operators): code of the roof, and the fixed share of the time of a call. [s]"""

    gemm: Array
    attention: Array
    vector: Array
    gemm_fixed: Array
    attention_fixed: Array
    vector_fixed: Array


def _waits(
    work: ServingWork, device: Device, attention_device: Device, kernels: Mapping[str, Mapping[str, Array]]
) -> _Waits:
    attention_fixed = [kernels[family]["launch_time"] for family in ("attention", "attention_decode")]
    vector_flop = 0.0 * work.vector_traffic
    return _Waits(
        _roofs(work.gemms.flop, work.gemm_traffic, device, device.peak_flop_rate),
        _roofs(work.attention_flop, work.attention_traffic, attention_device, attention_device.peak_flop_rate),
        _roofs(vector_flop, work.vector_traffic, device, device.vector_flop_rate),
        np.minimum(kernels["gemm"]["launch_time"], work.gemm_time),
        np.minimum(np.concatenate(attention_fixed, axis=-1), work.attention_time),
        np.minimum(kernels["vector"]["launch_time"], work.vector_time),
    )


def serving_bound(
    work: ServingWork,
    device: Device,
    attention_device: Device,
    kernels: Mapping[str, Mapping[str, Array]],
) -> Array:
    """Code of what most of a step of decoding waits for: a position in :data:`BOUNDS`.

    The time of a kernel beyond its launch counts to the roof that it works under, the launch and the fixed costs of
    the software to overhead.

    Parameters
    ----------
    work : ServingWork
        Operators and times, (rows,).
    device : Device
        As for :func:`serving_work`, (rows, 1).
    attention_device : Device
        As for :func:`serving_work`, (rows, 1).
    kernels : mapping of str to mapping of str to Array
        As for :func:`serving_work`.

    Returns
    -------
    code : Array
        Position in BOUNDS, NaN where the time is NaN. [-]
    """
    waits = _waits(work, device, attention_device, kernels)
    step = phase_times(work)[:, 1]
    half = slice(len(GEMM_NAMES), None)
    layers, passes = work.layers[:, 1:], work.passes[:, 1:]
    gemm_calls = np.where(np.arange(len(GEMM_NAMES)) < LAYER_GEMMS, layers, passes)
    vector_calls = np.where(np.arange(len(VECTOR_NAMES)) < LAYER_VECTORS, layers, passes) * work.vector_calls[:, half]
    calls = np.concatenate([gemm_calls, layers, vector_calls], axis=-1)
    times = np.concatenate([work.gemm_time[:, half], work.attention_time[:, 1:], work.vector_time[:, half]], axis=-1)
    fixed = np.concatenate(
        [waits.gemm_fixed[:, half], waits.attention_fixed[:, 1:], waits.vector_fixed[:, half]], axis=-1
    )
    roofs = np.concatenate([waits.gemm[:, half], waits.attention[:, 1:], waits.vector[:, half]], axis=-1)
    busy = calls * (times - fixed)
    compute = total(np.where(roofs == COMPUTE, busy, 0.0))
    memory = total(np.where(roofs == MEMORY, busy, 0.0))
    overhead = total(calls * fixed) + step[:, FIXED]
    shares = np.stack([compute, memory, step[:, COMMUNICATION], overhead], axis=-1)
    return np.where(np.isnan(total(step)), np.nan, np.argmax(np.nan_to_num(shares), axis=-1))
