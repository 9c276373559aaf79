"""Matrix products of a served model: what they are computed in, what they move, and how long they take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from xlperf.base.arrays import Array
from xlperf.equations.hardware.device import Device
from xlperf.equations.hardware.kernels import serving_gemm_time
from xlperf.equations.model.model import Architecture
from xlperf.equations.model.serving import ServingGemms
from xlperf.equations.plan.serving_plan import InferencePlan


def wide_attention(plan: InferencePlan, architecture: Architecture) -> np.ndarray:
    """Plans whose attention layers stay in 16 bits: published mixtures in 4 bits narrow the feed-forward layers only.

    Parameters
    ----------
    plan : InferencePlan
        Precision, (rows,).
    architecture : Architecture
        Structure that the models share.

    Returns
    -------
    np.ndarray
        Mask, (rows,).

    References
    ----------
    .. [1] NVIDIA, "Pushing latency boundaries: optimizing DeepSeek-R1 performance on B200 GPUs", TensorRT-LLM
       technical blog 1, 2025, table of the precision of each component.
    .. [2] OpenAI, "gpt-oss-120b & gpt-oss-20b model card", 2025, arXiv:2508.10925, section 2.1.
    """
    return np.asarray((plan.four_bits > 0.0) & bool(architecture.experts))


def _columns(flags: np.ndarray, num_rows: int) -> np.ndarray:
    """Flags of the operators for every row, one column after the other in memory."""
    return np.repeat(flags, num_rows).reshape(num_rows, len(flags), order="F")


def _narrow(products: ServingGemms, plan: InferencePlan, architecture: Architecture) -> np.ndarray:
    """Products in the precision of the plan, (rows, operators)."""
    narrow = _columns(products.narrow, len(plan.weight_size))
    if not architecture.experts:
        return narrow
    attention = _columns(products.attention, len(narrow))
    return np.asarray(narrow & ~(attention & wide_attention(plan, architecture)[:, None]))


def _gemm_kernels(
    device: Device,
    wide_device: Device | None,
    kernels: Mapping[str, Mapping[str, Array]],
    products: ServingGemms,
    narrow: np.ndarray,
) -> tuple[Device, Mapping[str, Array]]:
    """Accelerator and constants of each product: of the precision that it is computed in, and of grouped experts."""
    constants = kernels["gemm"]
    if wide_device is not None:
        wide = kernels["gemm_wide"]
        peak = np.where(narrow, device.peak_flop_rate, wide_device.peak_flop_rate)
        constants = {
            name: values if np.array_equal(values, wide[name]) else np.where(narrow, values, wide[name])
            for name, values in constants.items()
        }
        device = replace(device, peak_flop_rate=peak)
    if products.grouped.any():
        experts = kernels["serving_experts"]
        slower = {"compute_efficiency": "product_slowdown", "memory_efficiency": "memory_slowdown"}
        grouped = _columns(products.grouped, len(narrow))
        changed = {name: constants[name] / np.where(grouped, experts[factor], 1.0) for name, factor in slower.items()}
        constants = {**constants, **changed}
    return device, constants


def _gemm_bytes(products: ServingGemms, plan: InferencePlan, narrow: np.ndarray) -> tuple[Array, Array]:
    """Mean bytes of an input element, the two inputs keeping their own size, and traffic of one call."""
    gemms = products.gemms
    activation = plan.activation_size[:, None]
    rows_size = np.where(narrow, plan.input_size[:, None], activation)
    weight_size = np.where(narrow, plan.weight_size[:, None], activation)
    inputs = rows_size * gemms.m + weight_size * gemms.n
    traffic = gemms.k * inputs + activation * gemms.m * gemms.n
    return inputs / (gemms.m + gemms.n), gemms.batch * traffic


def product_times(
    products: ServingGemms,
    device: Device,
    wide_device: Device,
    plan: InferencePlan,
    kernels: Mapping[str, Mapping[str, Array]],
    architecture: Architecture,
) -> tuple[Array, Array, Array]:
    """Traffic, time and peak rate of each product.

    Parameters
    ----------
    products : ServingGemms
        Shapes, (rows, operators). [-]
    device : Device
        Accelerators with the peak of the precision of the products, (rows, 1).
    wide_device : Device
        The same with the peak of the precision of the products that a narrow precision leaves out, (rows, 1).
    plan : InferencePlan
        Bytes of weights and inputs, (rows,).
    kernels : mapping of str to mapping of str to Array
        Calibration constants (rows, 1) of the families gemm, gemm_wide and, with experts, serving_experts.
    architecture : Architecture
        Structure that the models share.

    Returns
    -------
    traffic : Array
        Bytes of one product, (rows, operators). [B]
    time : Array
        Its time, (rows, operators). [s]
    peak : Array
        Peak rate of the precision that it is computed in, (rows, operators). [FLOP/s]
    """
    gemms = products.gemms
    narrow = _narrow(products, plan, architecture)
    element_size, traffic = _gemm_bytes(products, plan, narrow)
    differs = np.any(plan.weight_size != plan.activation_size)
    unit, constants = _gemm_kernels(device, wide_device if differs else None, kernels, products, narrow)
    output_size = plan.activation_size[:, None]
    time = serving_gemm_time(unit, constants, gemms.m, gemms.n, gemms.k, gemms.batch, element_size, output_size)
    return traffic, time, unit.peak_flop_rate + 0.0 * time
