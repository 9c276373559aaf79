"""Ends of the 80 % bands of plans: wider far from measured plans, and for runs of sources outside the fit."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array


def band_end(end: Array, width: Array, source: Numeric = 0.0) -> Array:
    r"""End of a band over the prediction, as a logarithm.

    Distance from measured plans widens the band of the constants. The machines, releases and unstated settings of a new
    source err independently: the two add as squares.

    .. math:: \ln b = \operatorname{sgn}(\ln c)\,\sqrt{w^2 \ln^2 c + s^2}

    Heuristic, this work.

    Parameters
    ----------
    end : Array
        Logarithm of the end c that the constants give, (rows,). [-]
    width : Array
        Width w over the width of the constants, (rows,): above 1 far from measured plans. [-]
    source : numeric, default 0.0
        Half-width s that a source outside the fit adds, (rows,). [-]

    Returns
    -------
    Array
        (rows,). [-]

    Examples
    --------
    Half as wide again; a new source, whose 0.4 and the band's 0.3 make 0.5:

    >>> band_end([-0.2, 0.3], [1.5, 1.0], [0.0, 0.4]).tolist()
    [-0.3, 0.5]
    """
    widened, added = array(end) * array(width), array(source)
    size = np.sqrt(widened * widened + added * added)
    return np.asarray(np.where(widened < 0.0, -size, size))
