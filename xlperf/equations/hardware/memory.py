"""Last-level cache of an accelerator, memory of its host, drives."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, known_or
from xlperf.equations.hardware.roofline import CACHE_SHARE


def cache_bandwidth(
    stated_bandwidth: Numeric, num_multiprocessors: Numeric, clock_rate: Numeric, bytes_per_clock: Numeric
) -> Array:
    r"""Bandwidth of the last-level cache: as stated, else from the bytes that multiprocessors read per clock.

    .. math:: B = n f b

    Heuristic, this work; an unknown bandwidth is infinite.

    Parameters
    ----------
    stated_bandwidth : numeric
        Bandwidth of the datasheet; NaN: not stated. [B/s]
    num_multiprocessors : numeric
        Multiprocessors n; NaN: not stated. [-]
    clock_rate : numeric
        Their clock f; NaN: not stated. [1/s]
    bytes_per_clock : numeric
        Bytes b that each reads per clock; may be NaN if the bandwidth is stated. [B]

    Returns
    -------
    bandwidth : numeric
        Infinite if nothing is stated. [B/s]

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
    r"""Share of the working set of a step that the last-level cache still holds from the previous step.

    A cyclic scan larger than the cache evicts every line before its reuse; a cache of twice its size holds all.

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
        0 for working sets above the cache, 1 within half of it. [-]

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
    r"""Mean bandwidth of reads if the last-level cache serves a share.

    .. math:: B = \left(\frac{1 - h}{B_m} + \frac{h}{B_c}\right)^{-1}

    Heuristic, this work.

    Parameters
    ----------
    share : numeric
        Share h of the bytes that are in the cache. [-]
    memory_bandwidth : numeric
        Bandwidth of the main memory. [B/s]
    cache_bandwidth : numeric
        Bandwidth of the last-level cache; NaN or infinite: the main memory serves all reads. [B/s]

    Returns
    -------
    bandwidth : numeric
        At least the bandwidth of the main memory. [B/s]

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
    r"""Exposed time of a transfer to or from the host, beyond the computation that hides it.

    .. math:: t = \max\left(\frac{S}{B} - t_c,\ 0\right)

    Parameters
    ----------
    size : numeric
        Bytes S that move in one direction. [B]
    bandwidth : numeric
        Bandwidth B of the link, one direction. [B/s]
    computing_time : numeric
        Time t_c of the concurrent computation. [s]

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
    r"""Time of an optimizer step on the host, up to the return of the weights to the accelerator.

    The host reads gradients and state and writes state and weights; drives transfer their state meanwhile.

    .. math:: t = P \left(\max\left(\frac{2 e_s + e_g + e_w}{B_m}, \frac{2 e_s}{B_d}\right) + \frac{e_w}{B_h}\right)

    Parameters
    ----------
    num_parameters : numeric
        Parameters P with state on the host, per accelerator. [-]
    gradient_size, weight_size, state_size : numeric
        Bytes per parameter of gradient e_g, weight e_w and optimizer state e_s. [B]
    host_bandwidth : numeric
        Bandwidth B_h of the link to the host, one direction. [B/s]
    host_memory_bandwidth : numeric
        Bandwidth B_m of the host's memory, per accelerator. [B/s]
    drive_bandwidth : numeric
        Bandwidth B_d of drives with the state, per accelerator; infinite: in host memory. [B/s]

    Returns
    -------
    time : numeric
        Time of one step. [s]

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
