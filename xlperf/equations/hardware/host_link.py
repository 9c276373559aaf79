"""Memory beyond the accelerator's own: what the link to host memory and to drives costs what is kept there."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array


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
    .. [1] M. Isaev et al., "Calculon: a methodology and tool for high-level co-design of systems and large language
       models", SC 2023, doi:10.1145/3581784.3607102, section 3 (tensor offloading).

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
    .. [1] J. Ren et al., "ZeRO-Offload: democratizing billion-scale model training", 2021, arXiv:2101.06840,
       section 4.
    .. [2] S. Rajbhandari et al., "ZeRO-Infinity: breaking the GPU memory wall for extreme scale deep learning", 2021,
       arXiv:2104.07857, section 5.

    A billion parameters: 28 GB at 70 GB/s and 2 GB at 50 GB/s.

    >>> float(host_update_time(1e9, 2.0, 2.0, 12.0, 50e9, 70e9, float("inf")))
    0.44
    """
    gradient, weight, state = array(gradient_size), array(weight_size), array(state_size)
    memory = (2.0 * state + gradient + weight) / array(host_memory_bandwidth)
    update = np.maximum(memory, 2.0 * state / array(drive_bandwidth))
    return np.asarray(array(num_parameters) * (update + weight / array(host_bandwidth)))
