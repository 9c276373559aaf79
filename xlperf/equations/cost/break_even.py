r"""The load from which on accelerators of one's own cost no more than tokens that are bought one by one."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ceil_div


def break_even_load(
    cost_rate: Numeric, copy_size: Numeric, server_size: Numeric, copy_load: Numeric, load_price: Numeric
) -> Array:
    r"""Least load that accelerators in whole copies and whole servers serve for no more than a price per load.

    .. math:: u^* = \min\left\{u : c\,g\left\lceil\frac{n}{g}\left\lceil\frac{u}{L}\right\rceil\right\rceil \le a\,u
        \right\}

    By definition. Servers are full again after at most g copies, so that more copies need not be tried.

    Parameters
    ----------
    cost_rate : numeric
        Cost c of one accelerator. [USD/s]
    copy_size : numeric
        Accelerators n of one copy of the model. [-]
    server_size : numeric
        Accelerators g that are paid for together. [-]
    copy_load : numeric
        Largest load L of one copy: requests in flight. [-]
    load_price : numeric
        Price a that another asks for a unit of load. [USD/s]

    Returns
    -------
    load : numeric
        Requests in flight; infinite where no load is large enough. [-]

    Examples
    --------
    A server of 8 at 0.1 cents a second each holds two copies of 100 requests; 0.005 cents a second for a request in
    flight pay for it from 160 requests on:

    >>> float(break_even_load(0.001, 4.0, 8.0, 100.0, 0.00005))
    160.0
    """
    cost, size, group, most, price = (
        array(one) for one in np.broadcast_arrays(cost_rate, copy_size, server_size, copy_load, load_price)
    )
    found = np.where(np.isnan(cost + size + group + most + price), np.nan, np.inf)
    for copies in range(1, int(np.nanmax(group, initial=1.0)) + 1):
        paid = cost * group * ceil_div(copies * size, group)
        least = np.maximum(paid / price, (copies - 1.0) * most)
        found = np.where(np.isinf(found) & (paid <= copies * most * price), least, found)
    return np.asarray(found)
