"""Kernel times of one accelerator: device columns and calibration constants bound to the roofline equations.

All arguments broadcast to (rows, operators); constants have shape (rows, 1). Results are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from xlperf.arrays import Array, Numeric, array
from xlperf.hardware.device import Device
from xlperf.hardware.roofline import (
    blended_time,
    kv_cache_traffic,
    quantised_waves,
    tiled_flop_time,
    transfer_time,
    visible_pairs,
)

TILE_ROWS = np.array([256.0, 128.0, 128.0, 64.0])
TILE_COLUMNS = np.array([128.0, 256.0, 128.0, 64.0])
QUERY_TILE = 128.0

COMPUTE, MEMORY, OVERHEAD = 0, 1, 2
BOUNDS = ("compute", "memory", "overhead")


def gemm_parts(
    device: Device,
    constants: Mapping[str, Array],
    m: Numeric,
    n: Numeric,
    k: Numeric,
    batch: Numeric,
    element_size: Numeric,
    output_element_size: Numeric,
) -> tuple[Array, Array, Array]:
    """Compute, memory and fixed time of a product before they are put together. [s]"""
    rows, columns, depth, count = (array(value)[..., None] for value in (m, n, k, batch))
    multiprocessors = device.num_multiprocessors[..., None]
    tiles = np.ceil(rows / TILE_ROWS) * np.ceil(columns / TILE_COLUMNS) * count
    compute = tiled_flop_time(
        quantised_waves(tiles, multiprocessors),
        2.0 * TILE_ROWS * TILE_COLUMNS * depth,
        device.peak_flop_rate[..., None],
        multiprocessors,
        constants["compute_efficiency"][..., None],
    ).min(axis=-1)
    traffic = array(batch) * (
        array(element_size) * array(k) * (array(m) + array(n)) + array(output_element_size) * array(m) * array(n)
    )
    memory = transfer_time(traffic, device.memory_bandwidth, constants["memory_efficiency"])
    return np.asarray(compute), memory, np.asarray(constants["launch_time"] + 0.0 * memory)


def gemm_time(
    device: Device,
    constants: Mapping[str, Array],
    m: Numeric,
    n: Numeric,
    k: Numeric,
    batch: Numeric,
    element_size: Numeric,
    output_element_size: Numeric,
) -> Array:
    """Time of ``batch`` products of an (m, k) by a (k, n) matrix."""
    compute, memory, fixed = gemm_parts(device, constants, m, n, k, batch, element_size, output_element_size)
    return np.asarray(fixed + blended_time(compute, memory, constants["serial_share"]))


def _bound(compute: Array, memory: Array, fixed: Array) -> Array:
    busy = np.maximum(compute, memory)
    codes = np.where(fixed > busy, float(OVERHEAD), np.where(compute >= memory, float(COMPUTE), float(MEMORY)))
    return np.asarray(np.where(np.isnan(busy + fixed), np.nan, codes))


def gemm_bound(
    device: Device,
    constants: Mapping[str, Array],
    m: Numeric,
    n: Numeric,
    k: Numeric,
    batch: Numeric,
    element_size: Numeric,
    output_element_size: Numeric,
) -> Array:
    """Code of what limits a product: position in :data:`BOUNDS`, NaN where the time is NaN."""
    return _bound(*gemm_parts(device, constants, m, n, k, batch, element_size, output_element_size))


def _attention_time(
    device: Device,
    constants: Mapping[str, Array],
    batch: Numeric,
    num_heads: Numeric,
    num_query_groups: Numeric,
    query_length: Numeric,
    key_length: Numeric,
    head_size: Numeric,
    causal: Numeric,
    element_size: Numeric,
    matmuls: float,
    tensors: float,
) -> Array:
    heads = array(batch) * array(num_heads)
    pairs = heads * visible_pairs(query_length, key_length, causal)
    compute = 2.0 * matmuls * pairs * array(head_size) / (constants["compute_efficiency"] * device.peak_flop_rate)
    softmax = pairs * constants["softmax_flop"] / device.vector_flop_rate
    elements = array(head_size) * (
        heads * array(query_length) + array(batch) * array(num_query_groups) * array(key_length)
    )
    memory = transfer_time(
        tensors * elements * array(element_size), device.memory_bandwidth, constants["memory_efficiency"]
    )
    return np.asarray(constants["launch_time"] + np.maximum(compute + softmax, memory))


def attention_time(
    device: Device,
    constants: Mapping[str, Array],
    batch: Numeric,
    num_heads: Numeric,
    num_query_groups: Numeric,
    query_length: Numeric,
    key_length: Numeric,
    head_size: Numeric,
    causal: Numeric,
    element_size: Numeric,
) -> Array:
    """Time of flash attention, forward."""
    return _attention_time(
        device,
        constants,
        batch,
        num_heads,
        num_query_groups,
        query_length,
        key_length,
        head_size,
        causal,
        element_size,
        2.0,
        2.0,
    )


def attention_backward_time(
    device: Device,
    constants: Mapping[str, Array],
    batch: Numeric,
    num_heads: Numeric,
    num_query_groups: Numeric,
    query_length: Numeric,
    key_length: Numeric,
    head_size: Numeric,
    causal: Numeric,
    element_size: Numeric,
) -> Array:
    """Time of flash attention, backward: five products where the forward pass has two."""
    return _attention_time(
        device,
        constants,
        batch,
        num_heads,
        num_query_groups,
        query_length,
        key_length,
        head_size,
        causal,
        element_size,
        5.0,
        4.0,
    )


def decode_attention_time(
    device: Device,
    constants: Mapping[str, Array],
    batch: Numeric,
    num_heads: Numeric,
    num_query_groups: Numeric,
    key_length: Numeric,
    head_size: Numeric,
    kv_element_size: Numeric,
) -> Array:
    """Time of attention of one new token per sequence over its cache."""
    traffic = kv_cache_traffic(batch, num_query_groups, key_length, head_size, kv_element_size)
    memory = transfer_time(traffic, device.memory_bandwidth, constants["memory_efficiency"])
    flop = 4.0 * array(batch) * array(num_heads) * array(key_length) * array(head_size)
    compute = flop / (constants["compute_efficiency"] * device.peak_flop_rate)
    return np.asarray(constants["launch_time"] + np.maximum(memory, compute))


def vector_time(device: Device, constants: Mapping[str, Array], traffic: Numeric, flop: Numeric) -> Array:
    """Time of an element-wise operation or a reduction: norm, activation, residual, softmax, optimizer."""
    memory = transfer_time(traffic, device.memory_bandwidth, constants["memory_efficiency"])
    compute = array(flop) / (constants["compute_efficiency"] * device.vector_flop_rate)
    return np.asarray(constants["launch_time"] + np.maximum(memory, compute))
