"""Times of attention kernels: device columns and calibration constants bound to the roofline equations.

Arguments broadcast to (rows, operators); columns of the device and constants have shape (rows, 1).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from xlperf.base.arrays import Array, Numeric, array
from xlperf.equations.hardware.device import Device
from xlperf.equations.hardware.roofline import (
    blended_time,
    flash_compute_time,
    flash_traffic,
    kv_cache_traffic,
    transfer_time,
)

QUERY_TILE = 128.0


def _flash_parts(
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
    num_products: float,
    num_passes: float,
) -> tuple[Array, Array, Array]:
    flop_time = 1.0 / (constants["compute_efficiency"] * device.peak_flop_rate)
    flop_time = flop_time + constants["energy_per_flop"] / device.thermal_design_power
    products = 2.0 * num_products * array(head_size) * flop_time
    compute = flash_compute_time(
        array(batch) * array(num_heads),
        query_length,
        key_length,
        causal,
        QUERY_TILE,
        products + constants["softmax_flop"] / device.vector_flop_rate,
        device.num_multiprocessors,
        constants["imbalance"],
        constants["tile_time"],
    )
    traffic = flash_traffic(
        batch, num_heads, num_query_groups, query_length, key_length, head_size, element_size, num_passes
    )
    memory = transfer_time(traffic, device.memory_bandwidth, constants["memory_efficiency"])
    return compute, memory, np.asarray(constants["launch_time"] + 0.0 * memory)


def attention_parts(
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
) -> tuple[Array, Array, Array]:
    r"""Arithmetic, traffic and call of flash attention, forward, each alone.

    Parameters
    ----------
    device : Device
        Accelerator, (rows, 1).
    constants : mapping of str to Array
        Calibration constants of the family attention, (rows, 1).
    batch : numeric
        Sequences, (rows, operators). [-]
    num_heads : numeric
        Heads of queries on this accelerator, (rows, operators). [-]
    num_query_groups : numeric
        Heads of keys and values on this accelerator, (rows, operators). [-]
    query_length : numeric
        Queries of one sequence, (rows, operators). [-]
    key_length : numeric
        Keys of one sequence, (rows, operators). [-]
    head_size : numeric
        Elements of a head, (rows, operators). [-]
    causal : numeric
        1 where a query sees the keys up to its own position, 0 where it sees all, (rows, operators). [-]
    element_size : numeric
        Size of one element, (rows, operators). [B]

    Returns
    -------
    compute_time : numeric
        Time of the arithmetic alone, (rows, operators). [s]
    memory_time : numeric
        Time of the traffic alone, (rows, operators). [s]
    overhead_time : numeric
        Time of the call itself, (rows, operators). [s]

    References
    ----------
    .. [1] T. Dao, "FlashAttention-2", 2023, arXiv:2307.08691.
    """
    return _flash_parts(
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
        1.0,
    )


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
    r"""Time of flash attention, forward.

    Keys, queries and values are loaded, the two products and the softmax run on the multiprocessors, the outputs
    are stored; with a serial share of 1 the phases add up. Products take longer under a low power limit.

    .. math::

        t = t_0 + \max(t_{memory}, t_{compute}) + s \min(t_{memory}, t_{compute})

    Parameters
    ----------
    device : Device
        Accelerator, (rows, 1).
    constants : mapping of str to Array
        Calibration constants of the family attention, (rows, 1).
    batch : numeric
        Sequences, (rows, operators). [-]
    num_heads : numeric
        Heads of queries on this accelerator, (rows, operators). [-]
    num_query_groups : numeric
        Heads of keys and values on this accelerator, (rows, operators). [-]
    query_length : numeric
        Queries of one sequence, (rows, operators). [-]
    key_length : numeric
        Keys of one sequence, (rows, operators). [-]
    head_size : numeric
        Elements of a head, (rows, operators). [-]
    causal : numeric
        1 where a query sees the keys up to its own position, 0 where it sees all, (rows, operators). [-]
    element_size : numeric
        Size of one element, (rows, operators). [B]

    Returns
    -------
    time : numeric
        Time of one call, (rows, operators). [s]

    References
    ----------
    .. [1] T. Dao, "FlashAttention-2", 2023, arXiv:2307.08691.
    """
    compute, memory, fixed = attention_parts(
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
    )
    return np.asarray(fixed + blended_time(compute, memory, constants["serial_share"]))


def attention_backward_parts(
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
) -> tuple[Array, Array, Array]:
    r"""Arithmetic, traffic and call of flash attention, backward, each alone.

    Parameters
    ----------
    device : Device
        Accelerator, (rows, 1).
    constants : mapping of str to Array
        Calibration constants of the family attention_backward, (rows, 1).
    batch : numeric
        Sequences, (rows, operators). [-]
    num_heads : numeric
        Heads of queries on this accelerator, (rows, operators). [-]
    num_query_groups : numeric
        Heads of keys and values on this accelerator, (rows, operators). [-]
    query_length : numeric
        Queries of one sequence, (rows, operators). [-]
    key_length : numeric
        Keys of one sequence, (rows, operators). [-]
    head_size : numeric
        Elements of a head, (rows, operators). [-]
    causal : numeric
        1 where a query sees the keys up to its own position, 0 where it sees all, (rows, operators). [-]
    element_size : numeric
        Size of one element, (rows, operators). [B]

    Returns
    -------
    compute_time : numeric
        Time of the arithmetic alone, (rows, operators). [s]
    memory_time : numeric
        Time of the traffic alone, (rows, operators). [s]
    overhead_time : numeric
        Time of the call itself, (rows, operators). [s]

    References
    ----------
    .. [1] T. Dao, "FlashAttention-2", 2023, arXiv:2307.08691.
    """
    return _flash_parts(
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
    r"""Time of flash attention, backward.

    Five products where the forward pass has two, because the scores are computed again.

    .. math::

        t = t_0 + \max(t_{memory}, t_{compute}) + s \min(t_{memory}, t_{compute})

    Parameters
    ----------
    device : Device
        Accelerator, (rows, 1).
    constants : mapping of str to Array
        Calibration constants of the family attention_backward, (rows, 1).
    batch : numeric
        Sequences, (rows, operators). [-]
    num_heads : numeric
        Heads of queries on this accelerator, (rows, operators). [-]
    num_query_groups : numeric
        Heads of keys and values on this accelerator, (rows, operators). [-]
    query_length : numeric
        Queries of one sequence, (rows, operators). [-]
    key_length : numeric
        Keys of one sequence, (rows, operators). [-]
    head_size : numeric
        Elements of a head, (rows, operators). [-]
    causal : numeric
        1 where a query sees the keys up to its own position, 0 where it sees all, (rows, operators). [-]
    element_size : numeric
        Size of one element, (rows, operators). [B]

    Returns
    -------
    time : numeric
        Time of one call, (rows, operators). [s]

    References
    ----------
    .. [1] T. Dao, "FlashAttention-2", 2023, arXiv:2307.08691.
    """
    compute, memory, fixed = attention_backward_parts(
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
    )
    return np.asarray(fixed + blended_time(compute, memory, constants["serial_share"]))


def decode_attention_parts(
    device: Device,
    constants: Mapping[str, Array],
    batch: Numeric,
    num_heads: Numeric,
    num_query_groups: Numeric,
    key_length: Numeric,
    head_size: Numeric,
    kv_element_size: Numeric,
) -> tuple[Array, Array, Array]:
    r"""Arithmetic, traffic and call of attention while decoding, each alone.

    Parameters
    ----------
    device : Device
        Accelerator, (rows, 1).
    constants : mapping of str to Array
        Calibration constants of the family attention_decode, (rows, 1).
    batch : numeric
        Sequences, (rows, operators). [-]
    num_heads : numeric
        Heads of queries on this accelerator, (rows, operators). [-]
    num_query_groups : numeric
        Heads of keys and values on this accelerator, (rows, operators). [-]
    key_length : numeric
        Tokens in the cache, (rows, operators). [-]
    head_size : numeric
        Elements of a head, (rows, operators). [-]
    kv_element_size : numeric
        Size of one element of the cache, (rows, operators). [B]

    Returns
    -------
    compute_time : numeric
        Time of the arithmetic alone, (rows, operators). [s]
    memory_time : numeric
        Time of the traffic alone, (rows, operators). [s]
    overhead_time : numeric
        Time of the call itself, (rows, operators). [s]

    References
    ----------
    .. [1] N. Shazeer, "Fast Transformer Decoding", 2019, arXiv:1911.02150.
    """
    traffic = kv_cache_traffic(batch, num_query_groups, key_length, head_size, kv_element_size)
    memory = transfer_time(traffic, device.memory_bandwidth, constants["memory_efficiency"])
    flop = 4.0 * array(batch) * array(num_heads) * array(key_length) * array(head_size)
    compute = flop / (constants["compute_efficiency"] * device.peak_flop_rate)
    return np.asarray(compute), memory, np.asarray(constants["launch_time"] + 0.0 * memory)


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
    r"""Time of attention of one new token per sequence over its cache.

    .. math::

        t = t_0 + \max(t_{compute}, t_{memory})

    Parameters
    ----------
    device : Device
        Accelerator, (rows, 1).
    constants : mapping of str to Array
        Calibration constants of the family attention_decode, (rows, 1).
    batch : numeric
        Sequences, (rows, operators). [-]
    num_heads : numeric
        Heads of queries on this accelerator, (rows, operators). [-]
    num_query_groups : numeric
        Heads of keys and values on this accelerator, (rows, operators). [-]
    key_length : numeric
        Tokens in the cache, (rows, operators). [-]
    head_size : numeric
        Elements of a head, (rows, operators). [-]
    kv_element_size : numeric
        Size of one element of the cache, (rows, operators). [B]

    Returns
    -------
    time : numeric
        Time of one call, (rows, operators). [s]

    References
    ----------
    .. [1] N. Shazeer, "Fast Transformer Decoding", 2019, arXiv:1911.02150.
    """
    compute, memory, fixed = decode_attention_parts(
        device, constants, batch, num_heads, num_query_groups, key_length, head_size, kv_element_size
    )
    return np.asarray(fixed + np.maximum(compute, memory))
