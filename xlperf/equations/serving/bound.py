"""What bounds a step of decoding: compute, memory, network or overhead."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from xlperf.base.arrays import Array, beside, side_by_side, total
from xlperf.equations.hardware.device import Device
from xlperf.equations.hardware.roofline import relaxed_savings
from xlperf.equations.model.serving import ONCE_GEMMS, ONCE_VECTORS
from xlperf.equations.serving.work import COMMUNICATION, FIXED, ServingWork, phase_times

BOUNDS = ("compute", "memory", "network", "overhead")
COMPUTE, MEMORY, NETWORK, OVERHEAD = range(4)


def _fitted(first: Array, second: Array, busy: Array) -> tuple[Array, Array]:
    """Times of two activities that overlap fully, estimated apart, such that the longer one is the time of both."""
    longer = np.maximum(first, second)
    scale = np.divide(busy, longer, out=np.zeros(np.broadcast(busy, longer).shape), where=longer > 0.0)
    return np.where(first >= second, busy, np.minimum(first * scale, first)), np.where(
        first >= second, np.minimum(second, busy), busy
    )


def _split(busy: Array, memory: Array, serial_share: Array) -> tuple[Array, Array]:
    """Arithmetic and traffic of a kernel whose time is the longer of both and a share of the shorter one."""
    memory = np.minimum(memory, busy)
    longer = busy - serial_share * memory
    shorter = np.divide(busy - memory, serial_share, out=np.zeros(busy.shape), where=serial_share > 0.0)
    return np.where(longer >= memory, longer, np.minimum(shorter, memory)), memory


def serving_bound(
    work: ServingWork,
    device: Device,
    attention_device: Device,
    kernels: Mapping[str, Mapping[str, Array]],
    latent: bool = False,
) -> Array:
    """Code of what bounds a step of decoding, a position in :data:`BOUNDS`: what shortens it most at twice the speed.

    Compute is the rate of the accelerator's units, memory the bandwidth of its main memory, network all time of
    messages, overhead launches and the fixed costs of the software. Arithmetic and traffic of a product follow from
    its time and its bytes.

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
    constants, attend = kernels["gemm"], kernels[family]
    bandwidth = device.memory_bandwidth
    moving = second(work.gemm_traffic) / (constants["memory_efficiency"] * bandwidth)
    if "serving_experts" in kernels:
        names = work.gemms.names
        grouped = np.array([name.startswith("experts") for name in names[-gemm.shape[1] :]])
        moving = np.where(grouped, kernels["serving_experts"]["memory_slowdown"], 1.0) * moving
    product = _split(gemm - starts[0], moving, constants["serial_share"] + 0.0 * gemm)
    attended = _fitted(
        second(work.attention_flop) / (attend["compute_efficiency"] * attention_device.peak_flop_rate),
        second(work.attention_traffic) / (attend["memory_efficiency"] * bandwidth),
        attention - starts[1],
    )
    moved = vector - starts[2]
    savings = (
        relaxed_savings(*product, constants["serial_share"]),
        relaxed_savings(*attended),
        (0.0 * moved, 0.5 * moved),
    )
    compute, memory = (total(calls * beside(*found)) for found in zip(*savings, strict=True))
    overhead = 0.5 * (total(calls * beside(*starts)) + step[:, FIXED])
    saved = side_by_side(compute, memory, 0.5 * step[:, COMMUNICATION], overhead)
    return np.where(np.isnan(total(step)), np.nan, np.argmax(np.nan_to_num(saved), axis=-1))
