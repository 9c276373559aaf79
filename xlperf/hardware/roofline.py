r"""Hierarchical roofline: how long a kernel takes that moves bytes through the memory levels and does arithmetic.

Every function works on arrays that broadcast against each other and returns seconds. The levels are main memory
(HBM), last-level cache (L2), shared memory and the matrix units; work is cut into tiles, tiles run in waves.
"""

from __future__ import annotations

import numpy as np

from xlperf.arrays import Array, Numeric, array

__all__ = [
    "blended_time",
    "kv_cache_traffic",
    "quantised_waves",
    "tiled_flop_time",
    "transfer_time",
    "visible_pairs",
]


def quantised_waves(num_tiles: Numeric, num_multiprocessors: Numeric) -> Array:
    r"""Waves of tiles that run one after the other; the last may be partly empty.

    .. math:: w = \lceil t / p \rceil

    Parameters
    ----------
    num_tiles : numeric
        Tiles of output. [-]
    num_multiprocessors : numeric
        Tiles that run at the same time; NaN: waves are not modelled and the result is ``num_tiles``. [-]

    Returns
    -------
    waves : numeric
        Whole number of waves. [-]

    References
    ----------
    .. [1] NVIDIA, "Matrix Multiplication Background User's Guide", section 3, wave quantization.
    """
    at_once = array(num_multiprocessors)
    at_once = np.where(np.isnan(at_once), 1.0, at_once)
    return np.asarray(np.ceil(array(num_tiles) / at_once))


def tiled_flop_time(
    waves: Numeric,
    tile_flop: Numeric,
    peak_flop_rate: Numeric,
    num_multiprocessors: Numeric,
    efficiency: Numeric = 1.0,
    wave_time: Numeric = 0.0,
) -> Array:
    r"""Time of the matrix units for waves of equal tiles.

    .. math:: t = w \left(\frac{F_{tile}\, p}{\eta P} + t_w\right)

    Parameters
    ----------
    waves : numeric
        Waves as :func:`quantised_waves` counts them. [-]
    tile_flop : numeric
        Work of one tile, padding included. [FLOP]
    peak_flop_rate : numeric
        Dense peak of the whole accelerator. [FLOP/s]
    num_multiprocessors : numeric
        Tiles of one wave; NaN: 1. [-]
    efficiency : numeric, default 1.0
        Share of the peak that a full wave reaches. [-]
    wave_time : numeric, default 0.0
        Time to start and drain the pipeline of one wave; not charged where waves are not modelled. [s]

    Returns
    -------
    time : numeric
        Time of the matrix units. [s]

    References
    ----------
    .. [1] S. Williams, A. Waterman and D. Patterson, "Roofline", Commun. ACM 52(4), 2009, doi:10.1145/1498765.1498785.
    """
    at_once = array(num_multiprocessors)
    none = np.isnan(at_once)
    one_wave = array(tile_flop) * np.where(none, 1.0, at_once) / (array(efficiency) * array(peak_flop_rate))
    return np.asarray(array(waves) * (one_wave + np.where(none, 0.0, wave_time)))


def transfer_time(traffic: Numeric, bandwidth: Numeric, efficiency: Numeric = 1.0) -> Array:
    r"""Time to move bytes through one memory level.

    .. math:: t = \frac{T}{\eta B}

    Parameters
    ----------
    traffic : numeric
        Bytes moved. [B]
    bandwidth : numeric
        Peak bandwidth of the level; infinite: it never binds. [B/s]
    efficiency : numeric, default 1.0
        Share of the peak that is reached. [-]

    Returns
    -------
    time : numeric
        Time of the transfer. [s]

    References
    ----------
    .. [1] S. Williams, A. Waterman and D. Patterson, "Roofline", Commun. ACM 52(4), 2009, doi:10.1145/1498765.1498785.
    """
    return np.asarray(array(traffic) / (array(efficiency) * array(bandwidth)))


def blended_time(longer: Numeric, other: Numeric, serial_share: Numeric = 0.0) -> Array:
    r"""Time of two activities that overlap but for a share of the shorter one.

    .. math:: t = \max(a, b) + s \min(a, b)

    Parameters
    ----------
    longer : numeric
        Time of one activity alone. [s]
    other : numeric
        Time of the other alone; which of the two is longer does not matter. [s]
    serial_share : numeric, default 0.0
        Share of the shorter one that is not hidden: 0 is the roofline, 1 a sum. [-]

    Returns
    -------
    time : numeric
        Time of both. [s]

    References
    ----------
    .. [1] S. Williams, A. Waterman and D. Patterson, "Roofline", Commun. ACM 52(4), 2009, doi:10.1145/1498765.1498785.
    """
    first, second = array(longer), array(other)
    return np.asarray(np.maximum(first, second) + array(serial_share) * np.minimum(first, second))


def visible_pairs(query_length: Numeric, key_length: Numeric, causal: Numeric) -> Array:
    r"""Query and key pairs that attention computes; with a causal mask the last query sees every key.

    .. math:: N = s_q s_k - c \frac{s_q (s_q - 1)}{2}

    Parameters
    ----------
    query_length : numeric
        Queries of one sequence. [-]
    key_length : numeric
        Keys of one sequence. [-]
    causal : numeric
        1: a query sees the keys up to its own position; 0: all of them. [-]

    Returns
    -------
    pairs : numeric
        Pairs of one head and sequence. [-]

    References
    ----------
    .. [1] T. Dao, "FlashAttention-2", 2023, arXiv:2307.08691.
    """
    queries = array(query_length)
    return np.asarray(queries * array(key_length) - array(causal) * (0.5 * queries * (queries - 1.0)))


def kv_cache_traffic(
    batch: Numeric, num_query_groups: Numeric, key_length: Numeric, head_size: Numeric, kv_element_size: Numeric
) -> Array:
    r"""Bytes of keys and values that one step of decoding reads in one layer.

    .. math:: T = 2 b g s d e

    Parameters
    ----------
    batch : numeric
        Sequences. [-]
    num_query_groups : numeric
        Heads of keys and values on this accelerator. [-]
    key_length : numeric
        Tokens in the cache. [-]
    head_size : numeric
        Elements of a head. [-]
    kv_element_size : numeric
        Size of one element of the cache. [B]

    Returns
    -------
    traffic : numeric
        Bytes read. [B]

    References
    ----------
    .. [1] N. Shazeer, "Fast Transformer Decoding", 2019, arXiv:1911.02150.
    """
    elements = 2.0 * array(batch) * array(num_query_groups) * array(key_length) * array(head_size)
    return np.asarray(elements * array(kv_element_size))
