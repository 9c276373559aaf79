"""Yield of dies: yield models by name, dies with spare units, and coverage of the test.

Every model takes the mean number of critical defects of a die, :func:`critical_defects`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, divide, exp, expm1, power


def critical_defects(die_area: Numeric, defect_density: Numeric, critical_area_ratio: Numeric = 1.0) -> Array:
    r"""Mean number of critical defects of a die.

    .. math:: d = A\,D_0\,r

    Source: C. H. Stapper, IBM J. Res. Dev. 28(4), 1984, doi:10.1147/rd.284.0461.

    800 mm2 x 0.001 per mm2 x 0.8:

    >>> float(critical_defects(800.0, 0.001, 0.8))
    0.64

    Parameters
    ----------
    die_area : Area A of the die. [mm2]
    defect_density : Defects per area D0. [1/mm2]
    critical_area_ratio : Critical share r of the area. [-]

    Returns
    -------
    defects : Mean number of critical defects. [-]
    """
    return np.asarray(array(die_area) * array(defect_density) * array(critical_area_ratio))


def negative_binomial_yield(defects: Numeric, clustering: Numeric) -> Array:
    r"""Yield with clustered defects: Poisson for infinite alpha, Seeds for an alpha of 1.

    .. math:: Y = \left(1 + \frac{d}{\alpha}\right)^{-\alpha}

    Source: C. H. Stapper et al., "Integrated circuit yield", Proc. IEEE 71(4), 1983, doi:10.1109/PROC.1983.12619.

    1.25 ** -2:

    >>> float(negative_binomial_yield(0.5, 2.0))
    0.64

    Parameters
    ----------
    defects : Mean number of critical defects d of a die. [-]
    clustering : Parameter alpha; small: strong clustering. [-]

    Returns
    -------
    yield : Share of good dies. [-]
    """
    alpha = array(clustering)
    return power(1.0 + array(defects) / alpha, -alpha)


_OF_DEFECTS: dict[str, Callable[[Array], Array]] = {
    # independent defects, the lowest (B. T. Murphy, Proc. IEEE 52(12), 1964, doi:10.1109/PROC.1964.3442)
    "poisson": lambda defects: exp(-defects),
    # defect densities of a triangular spread, and of a uniform one from 0 to twice the mean (Murphy)
    "murphy": lambda defects: np.square(divide(-expm1(-defects), defects, where_zero=1.0)),
    "rectangular": lambda defects: divide(-expm1(-2.0 * defects), 2.0 * defects, where_zero=1.0),
    # of an exponential spread (R. B. Seeds, IEDM 1967, doi:10.1109/IEDM.1967.187739)
    "seeds": lambda defects: 1.0 / (1.0 + defects),
    # G. E. Moore, "What level of LSI is best for you?", Electronics 43(4), 1970; also called Seeds
    "moore": lambda defects: exp(-np.sqrt(defects)),
}
"""Share of good dies by the mean number of critical defects."""


def die_yield(
    yield_model: str, defects: Numeric, clustering: Numeric = np.nan, num_critical_layers: Numeric = np.nan
) -> Array:
    """Share of good dies by the named model; Bose-Einstein: defects of one of the critical layers, each exponentially
    distributed (J. E. Price, Proc. IEEE 58(8), 1970, doi:10.1109/PROC.1970.7911).

    >>> [round(float(die_yield(model, 0.5)), 4) for model in ("poisson", "murphy", "rectangular", "seeds")]
    [0.6065, 0.6193, 0.6321, 0.6667]
    """
    if yield_model == "negative-binomial":
        return negative_binomial_yield(defects, clustering)
    if yield_model == "bose-einstein":
        return power(1.0 + array(defects), -array(num_critical_layers))
    return np.asarray(_OF_DEFECTS[yield_model](array(defects)))


def harvested_yield(unit_yield: Numeric, num_units: Numeric, num_units_needed: Numeric) -> Array:
    r"""Share of dies with enough good units, if units fail independently.

    .. math:: Y = \sum_{j=0}^{n-k} \binom{n}{j} y^{n-j} (1 - y)^j

    Source: C. H. Stapper et al., IBM J. Res. Dev. 24(3), 1980, doi:10.1147/rd.243.0398.

    Two of three units: 0.9 ** 3 + 3 x 0.9 ** 2 x 0.1 = 0.729 + 0.243:

    >>> float(harvested_yield(0.9, 3.0, 2.0))
    0.972

    Parameters
    ----------
    unit_yield : Yield y of a unit, above 0. [-]
    num_units : Units n of the die. [-]
    num_units_needed : Units k of the product. [-]

    Returns
    -------
    yield : Share of dies with at least k good units; 0 for k above n. [-]
    """
    good, units, needed = np.broadcast_arrays(array(unit_yield), array(num_units), array(num_units_needed))
    # Binomial terms, from no failed unit to all spare units.
    spare = units - needed
    ratio = (1.0 - good) / good
    term = power(good, units)
    result = np.where(spare >= 0.0, term, 0.0 * (spare + term))
    known = spare[np.isfinite(spare)]
    for failed in range(1, int(known.max()) + 1 if known.size and known.max() > 0 else 0):
        term = term * ((units - failed + 1.0) / failed * ratio)
        result = result + np.where(spare >= failed, term, 0.0 * spare)
    return np.asarray(np.minimum(result, 1.0))


def stitching_yield(stitch_yield: Numeric, num_fields: Numeric) -> Array:
    r"""Yield of the seams of a die or interposer exposed in several fields.

    .. math:: Y = y^{f - 1}

    Heuristic, this work: seams fail independently of each other.

    Three fields have two seams: 0.98 ** 2:

    >>> float(stitching_yield(0.98, 3.0))
    0.9604

    Parameters
    ----------
    stitch_yield : Yield y of one seam. [-]
    num_fields : Exposure fields f; one has no seam. [-]

    Returns
    -------
    yield : Share without a broken seam. [-]
    """
    return power(stitch_yield, array(num_fields) - 1.0)


def sort_pass_share(die_yield_share: Numeric, test_coverage_share: Numeric) -> Array:
    r"""Share of dies that pass a test with incomplete coverage.

    .. math:: P = 1 - (1 - Y)\,c

    Source: A. Graening et al., "CATCH: a cost analysis tool for chiplet-based systems", 2025, arXiv:2503.15753.

    The test detects 95 % of the bad fifth: 1 - 0.19:

    >>> float(sort_pass_share(0.8, 0.95))
    0.81

    Parameters
    ----------
    die_yield_share : Share Y of good dies. [-]
    test_coverage_share : Share c of bad dies detected. [-]

    Returns
    -------
    share : Share that passes; Y / P of these dies are good. [-]
    """
    return np.asarray(1.0 - (1.0 - array(die_yield_share)) * array(test_coverage_share))
