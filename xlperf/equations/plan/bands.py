"""Ends of the 80 % bands of plans: wider far from what was measured, and for runs of sources that nobody has read."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array


def band_end(end: Array, width: Array, source: Numeric = 0.0) -> Array:
    r"""End of a band over the prediction, as a logarithm.

    Distance widens the band of the constants. What a new source brings with it (its machines, releases and unstated
    settings) errs independently of the model: the two add as squares.

    .. math:: \ln b = \operatorname{sgn}(\ln c)\,\sqrt{w^2 \ln^2 c + s^2}

    Heuristic, this work.

    Parameters
    ----------
    end : Array
        Logarithm of the end c that the constants give, (rows,). [-]
    width : Array
        Width w over that of the constants, (rows,): above 1 far from what was measured. [-]
    source : numeric, default 0.0
        Half-width s that a source nobody has read adds, (rows,). [-]

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
    own, added = array(end) * array(width), array(source)
    size = np.sqrt(own * own + added * added)
    return np.asarray(np.where(own < 0.0, -size, size))
