"""Memory beside the main memory of an accelerator: its last-level cache, the memory of its host, drives."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, known_or
from xlperf.equations.hardware.roofline import CACHE_SHARE


def cache_bandwidth(
    stated_bandwidth: Numeric, num_multiprocessors: Numeric, clock_rate: Numeric, bytes_per_clock: Numeric
) -> Array:
    r"""Bandwidth of the last-level cache: as stated, else what the multiprocessors read per clock.

    .. math:: B = n f b

    Heuristic, this work; where neither is known the cache never binds.

    Parameters
    ----------
    stated_bandwidth : numeric
        Bandwidth of the datasheet; NaN: not stated. [B/s]
    num_multiprocessors : numeric
        Multiprocessors n; NaN: not stated. [-]
    clock_rate : numeric
        Their clock f; NaN: not stated. [1/s]
    bytes_per_clock : numeric
        Bytes b that each reads per clock; may be NaN where the bandwidth is stated. [B]

    Returns
    -------
    bandwidth : numeric
        Infinite where nothing is stated. [B/s]

    Examples
    --------
    100 multiprocessors at 2 Hz:

    >>> float(cache_bandwidth(np.nan, 100.0, 2.0, 64.0))
    12800.0
    """
    stated, clocked = array(stated_bandwidth), array(num_multiprocessors) * array(clock_rate)
    derived = np.where(np.isnan(clocked), np.inf, array(bytes_per_clock) * clocked)
    return np.where(np.isnan(stated), derived, stated)


def resident_share(working_set: Numeric, cache_capacity: Numeric) -> Array:
    r"""Share of what is read in every step that the last-level cache still holds from the step before.

    A step passes over all of it once: a cache that is smaller has replaced each part before it is read again, one twice
    as large keeps all. Between them some sets of the cache are full and others are not:

    .. math:: h = \min\left(\max\left(\frac{C - W}{C / 2}, 0\right), 1\right)

    Heuristic, this work, after the cyclic scans of [1]_.

    Parameters
    ----------
    working_set : numeric
        Bytes W that every step reads on an accelerator. [B]
    cache_capacity : numeric
        Last-level cache C; NaN: nothing stays. [B]

    Returns
    -------
    share : numeric
        0 where the working set is larger than the cache, 1 where half of the cache holds it. [-]

    References
    ----------
    .. [1] P. J. Denning, "The working set model", Commun. ACM 11(5), 1968, doi:10.1145/363095.363141.

    Examples
    --------
    Working sets of 20, 75 and 200 MB beside 100 MB:

    >>> resident_share(np.array([20.0, 75.0, 200.0]), 100.0).tolist()
    [1.0, 0.5, 0.0]
    """
    needed, room = np.broadcast_arrays(array(working_set), known_or(cache_capacity, 0.0))
    filled = np.divide(needed, room, out=np.full(needed.shape, np.inf), where=room > 0.0)
    share = np.minimum(np.maximum((1.0 - filled) / (1.0 - CACHE_SHARE), 0.0), 1.0)
    return np.asarray(np.where(np.isnan(needed), np.nan, share))


def resident_bandwidth(share: Numeric, memory_bandwidth: Numeric, cache_bandwidth: Numeric) -> Array:
    r"""Bandwidth of reads of which the last-level cache answers a share.

    .. math:: B = \left(\frac{1 - h}{B_m} + \frac{h}{B_c}\right)^{-1}

    Heuristic, this work.

    Parameters
    ----------
    share : numeric
        Share h of the bytes that are in the cache. [-]
    memory_bandwidth : numeric
        Bandwidth of the main memory. [B/s]
    cache_bandwidth : numeric
        Bandwidth of the last-level cache; NaN or infinite: all is read at that of the main memory. [B/s]

    Returns
    -------
    bandwidth : numeric
        That of the main memory at least. [B/s]

    Examples
    --------
    Half of the bytes at four times the rate:

    >>> float(resident_bandwidth(0.5, 1.0, 4.0))
    1.6
    """
    main, cache = array(memory_bandwidth), array(cache_bandwidth)
    cache = np.where(np.isfinite(cache), np.maximum(cache, main), main)
    hits = array(share)
    return np.asarray(1.0 / ((1.0 - hits) / main + hits / cache))


def exposed_offload_time(size: Numeric, bandwidth: Numeric, computing_time: Numeric) -> Array:
    r"""Time of moving data to or from the host that computation does not hide.

    .. math:: t = \max\left(\frac{S}{B} - t_c,\ 0\right)

    Parameters
    ----------
    size : numeric
        Bytes S that move in one direction. [B]
    bandwidth : numeric
        Bandwidth B of the link, one direction. [B/s]
    computing_time : numeric
        Time t_c of what runs meanwhile. [s]

    Returns
    -------
    time : numeric
        Exposed part. [s]

    References
    ----------
    .. [1] M. Isaev et al., "Calculon", SC 2023, doi:10.1145/3581784.3607102, section 3 (tensor offloading).

    3 s of transfer behind 2 s of computation:

    >>> float(exposed_offload_time(30.0, 10.0, 2.0))
    1.0
    """
    return np.asarray(np.maximum(array(size) / array(bandwidth) - array(computing_time), 0.0))


def host_update_time(
    num_parameters: Numeric,
    gradient_size: Numeric,
    weight_size: Numeric,
    state_size: Numeric,
    host_bandwidth: Numeric,
    host_memory_bandwidth: Numeric,
    drive_bandwidth: Numeric,
) -> Array:
    r"""Time of an optimizer step on the host, from gradients that are there to weights back on the accelerator.

    The host reads gradients and state from its memory and writes state and weights; state on drives is read and
    written meanwhile.

    .. math:: t = P \left(\max\left(\frac{2 e_s + e_g + e_w}{B_m}, \frac{2 e_s}{B_d}\right) + \frac{e_w}{B_h}\right)

    Parameters
    ----------
    num_parameters : numeric
        Parameters P whose state one accelerator keeps there. [-]
    gradient_size : numeric
        Bytes e_g of a gradient. [B]
    weight_size : numeric
        Bytes e_w of a weight. [B]
    state_size : numeric
        Bytes e_s of optimizer state per parameter. [B]
    host_bandwidth : numeric
        Bandwidth B_h of the link to the host, one direction. [B/s]
    host_memory_bandwidth : numeric
        Bandwidth B_m of the host's memory, share of one accelerator. [B/s]
    drive_bandwidth : numeric
        Bandwidth B_d of drives that hold the state, share of one accelerator; infinite where it is in host memory.
        [B/s]

    Returns
    -------
    time : numeric
        Of one step. [s]

    References
    ----------
    .. [1] J. Ren et al., "ZeRO-Offload", 2021, arXiv:2101.06840, section 4.
    .. [2] S. Rajbhandari et al., "ZeRO-Infinity", 2021, arXiv:2104.07857, section 5.

    A billion parameters: 28 GB at 70 GB/s and 2 GB at 50 GB/s.

    >>> float(host_update_time(1e9, 2.0, 2.0, 12.0, 50e9, 70e9, float("inf")))
    0.44
    """
    gradient, weight, state = array(gradient_size), array(weight_size), array(state_size)
    memory = (2.0 * state + gradient + weight) / array(host_memory_bandwidth)
    update = np.maximum(memory, 2.0 * state / array(drive_bandwidth))
    return np.asarray(array(num_parameters) * (update + weight / array(host_bandwidth)))
