"""Cost of owning too many or too few accelerators for a need that is not known when they are bought."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array


def owning_regret(
    num_owned: Numeric, num_accelerators: Numeric, owned_cost_rate: Numeric, rented_cost_rate: Numeric
) -> Array:
    r"""Cost beyond that of the cheaper way to have the accelerators that turn out needed; the missing ones are rented.

    .. math:: r = c_o\,n + c_r \max(N - n, 0) - \min(c_o, c_r)\,N

    In the mean it is least where the need is at most n with a probability of :math:`1 - c_o / c_r` (the newsvendor).
    Source: K. J. Arrow, T. Harris and J. Marschak, "Optimal inventory policy", Econometrica 19(3), 1951,
    doi:10.2307/1906813.

    Ten are owned at 1 USD/s each and 12 needed, two of them rented at 1.5 USD/s:

    >>> float(owning_regret(10.0, 12.0, 1.0, 1.5))
    1.0

    Parameters
    ----------
    num_owned : Accelerators n that are owned. [-]
    num_accelerators : Accelerators N that turn out needed. [-]
    owned_cost_rate : Cost co of a second of one that is owned. [USD/s]
    rented_cost_rate : Cost cr of a second of one that is rented. [USD/s]

    Returns
    -------
    regret : Cost of a second beyond the least. [USD/s]
    """
    owned, needed, own, rent = (
        array(values) for values in (num_owned, num_accelerators, owned_cost_rate, rented_cost_rate)
    )
    return np.asarray(own * owned + rent * np.maximum(needed - owned, 0.0) - np.minimum(own, rent) * needed)
