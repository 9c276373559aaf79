"""Collectives where every member of a machine has links of its own to every other member.

Loads are relative to the bandwidth of one accelerator, all its links together: seconds times that bandwidth, per byte
of the message. A link serves one peer only: a group of two in a machine of eight has a seventh of that bandwidth.
"""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array


def direct_load(group_size: Numeric, num_links: Numeric) -> Array:
    r"""Load of an all-gather, a reduce-scatter or an all-to-all whose members all send to all at once.

    .. math:: l = \frac{L}{n} \quad (n > 1)

    Parameters
    ----------
    group_size : numeric
        Members of the group. [-]
    num_links : numeric
        Peers in the machine, over which the bandwidth of one accelerator is divided. [-]

    Returns
    -------
    load : numeric
        Time at the bandwidth of one accelerator per byte of the whole message; 0 for a group of one. [-]

    References
    ----------
    .. [1] R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in MPICH",
       Int. J. High Perform. Comput. Appl. 19(1), 2005, doi:10.1177/1094342005051521.
    """
    ranks = array(group_size)
    return np.asarray(array(num_links) / ranks * np.where(ranks == 1.0, 0.0, 1.0))
