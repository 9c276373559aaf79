"""Time of a scan over chunks of a sequence, of which each needs the state that the one before leaves."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from xlperf.base.arrays import Array, Numeric, array
from xlperf.equations.hardware.device import Device
from xlperf.equations.hardware.roofline import transfer_time


def linear_attention_time(
    device: Device, constants: Mapping[str, Array], traffic: Numeric, flop: Numeric, num_chunks: Numeric
) -> Array:
    r"""Time of a scan over chunks.

    What chunks do by themselves goes by at the rate of the memory, or of the matrix units where that is slower; then
    the state passes through all chunks of a sequence, one after the other. Heads and sequences run side by side.

    .. math:: t = t_0 + \max\left(\frac{S}{\eta B}, \frac{F}{R}\right) + c\,t_c

    Parameters
    ----------
    device : Device
        Accelerator, (rows, 1).
    constants : mapping of str to Array
        Calibration constants of the family linear_attention, (rows, 1).
    traffic : numeric
        Bytes S read and written, (rows, operators). [B]
    flop : numeric
        Operations F of the matrix units, (rows, operators). [FLOP]
    num_chunks : numeric
        Chunks c of the longest sequence, (rows, operators). [-]

    Returns
    -------
    time : numeric
        Time of one call, (rows, operators). [s]

    References
    ----------
    .. [1] S. Yang et al., "Parallelizing linear transformers with the delta rule over sequence length", 2024,
       arXiv:2406.06484, section 3.2.
    .. [2] Measured scans: github.com/ai-dynamo/aiconfigurator@095f58a, gdn_perf of SGLang 0.5.14.
    """
    memory = transfer_time(traffic, device.memory_bandwidth, constants["memory_efficiency"])
    compute = array(flop) / device.peak_flop_rate
    return np.asarray(
        constants["launch_time"] + np.maximum(memory, compute) + array(num_chunks) * constants["chunk_time"]
    )
