"""What a step of decoding waits for: compute, memory, network or overhead."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from xlperf.arrays import Array, beside, side_by_side, total
from xlperf.hardware.device import Device
from xlperf.inference.work import COMMUNICATION, FIXED, ServingWork, phase_times
from xlperf.workload.serving import ONCE_GEMMS, ONCE_VECTORS

BOUNDS = ("compute", "memory", "network", "overhead")
COMPUTE, MEMORY, NETWORK, OVERHEAD = range(4)


def _roofs(flop: Array, traffic: Array, device: Device, peak: Array) -> Array:
    """Code of the roof that a kernel works under, were it as fast as the roof."""
    return np.where(flop / peak >= traffic / device.memory_bandwidth, float(COMPUTE), float(MEMORY))


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
    step = phase_times(work)[:, -1]
    layers, passes = work.layers[:, -1:], work.passes[:, -1:]
    family = "attention_latent" if latent else "attention_decode"

    def second(values: Array) -> Array:
        return values[:, -(values.shape[1] // work.layers.shape[1]) :]

    gemm, attention, vector = (second(v) for v in (work.gemm_time, work.attention_time, work.vector_time))
    flop = 2.0 * second(work.gemms.m) * second(work.gemms.n) * second(work.gemms.k) * second(work.gemms.batch)
    moved = second(work.vector_traffic)
    roofs = (
        _roofs(flop, second(work.gemm_traffic), device, second(work.gemm_peak)),
        _roofs(
            second(work.attention_flop),
            second(work.attention_traffic),
            attention_device,
            attention_device.peak_flop_rate,
        ),
        _roofs(0.0 * moved, moved, device, device.vector_flop_rate),
    )
    starts = (
        np.minimum(kernels["gemm"]["launch_time"], gemm),
        np.minimum(kernels[family]["launch_time"], attention),
        np.minimum(kernels["vector"]["launch_time"], vector),
    )
    gemm_calls, attention_calls, vector_calls = (
        second(values) for values in (work.gemm_calls, work.attention_calls, work.vector_calls)
    )
    calls = beside(
        layers * gemm_calls[:, :-ONCE_GEMMS],
        passes * gemm_calls[:, -ONCE_GEMMS:],
        layers * attention_calls,
        layers * vector_calls[:, :-ONCE_VECTORS],
        passes * vector_calls[:, -ONCE_VECTORS:],
    )
    times, fixed, codes = beside(gemm, attention, vector), beside(*starts), beside(*roofs)
    busy = calls * (times - fixed)
    compute = total(np.where(codes == COMPUTE, busy, 0.0))
    memory = total(np.where(codes == MEMORY, busy, 0.0))
    overhead = total(calls * fixed) + step[:, FIXED]
    shares = side_by_side(compute, memory, step[:, COMMUNICATION], overhead)
    return np.where(np.isnan(total(step)), np.nan, np.argmax(np.nan_to_num(shares), axis=-1))
