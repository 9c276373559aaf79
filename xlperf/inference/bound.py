"""What a step of decoding waits for: compute, memory, network or overhead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from xlperf.arrays import Array, total
from xlperf.hardware.device import Device
from xlperf.inference.work import COMMUNICATION, FIXED, ServingWork, phase_times
from xlperf.workload.serving import ONCE_GEMMS, ONCE_VECTORS

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
    work: ServingWork,
    device: Device,
    attention_device: Device,
    kernels: Mapping[str, Mapping[str, Array]],
    latent: bool,
) -> _Waits:
    kinds = work.attention_time.shape[-1] // 2
    families = ("attention", "attention_latent" if latent else "attention_decode")
    attention_fixed = [np.repeat(kernels[family]["launch_time"], kinds, axis=-1) for family in families]
    vector_flop = 0.0 * work.vector_traffic
    return _Waits(
        _roofs(work.gemms.flop, work.gemm_traffic, device, work.gemm_peak),
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
    latent: bool = False,
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
    latent : bool, default False
        Whether attention is latent.

    Returns
    -------
    code : Array
        Position in BOUNDS, NaN where the time is NaN. [-]
    """
    waits = _waits(work, device, attention_device, kernels, latent)
    step = phase_times(work)[:, 1]
    layers, passes = work.layers[:, 1:], work.passes[:, 1:]

    def second(values: Array) -> Array:
        return values[:, values.shape[1] // 2 :]

    gemm_calls, attention_calls, vector_calls = (
        second(values) for values in (work.gemm_calls, work.attention_calls, work.vector_calls)
    )
    calls = np.concatenate(
        [
            layers * gemm_calls[:, :-ONCE_GEMMS],
            passes * gemm_calls[:, -ONCE_GEMMS:],
            layers * attention_calls,
            layers * vector_calls[:, :-ONCE_VECTORS],
            passes * vector_calls[:, -ONCE_VECTORS:],
        ],
        axis=-1,
    )
    times = np.concatenate([second(v) for v in (work.gemm_time, work.attention_time, work.vector_time)], axis=-1)
    fixed = np.concatenate([second(v) for v in (waits.gemm_fixed, waits.attention_fixed, waits.vector_fixed)], axis=-1)
    roofs = np.concatenate([second(v) for v in (waits.gemm, waits.attention, waits.vector)], axis=-1)
    busy = calls * (times - fixed)
    compute = total(np.where(roofs == COMPUTE, busy, 0.0))
    memory = total(np.where(roofs == MEMORY, busy, 0.0))
    overhead = total(calls * fixed) + step[:, FIXED]
    shares = np.stack([compute, memory, step[:, COMMUNICATION], overhead], axis=-1)
    return np.where(np.isnan(total(step)), np.nan, np.argmax(np.nan_to_num(shares), axis=-1))
