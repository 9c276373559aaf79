"""Yield of dies: yield models by name, dies with spare units, and coverage of the test.

Every model takes the mean number of critical defects of a die, :func:`critical_defects`.
"""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, divide, exp, expm1, power


def critical_defects(die_area: Numeric, defect_density: Numeric, critical_area_ratio: Numeric = 1.0) -> Array:
    r"""Mean number of critical defects of a die.

    .. math:: d = A\,D_0\,r

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

    References
    ----------
    .. [1] C. H. Stapper, IBM J. Res. Dev. 28(4), 1984, doi:10.1147/rd.284.0461.
    """
    return np.asarray(array(die_area) * array(defect_density) * array(critical_area_ratio))


def poisson_yield(defects: Numeric) -> Array:
    r"""Yield with independent defects, the lowest of the models.

    .. math:: Y = e^{-d}

    exp(-0.5):

    >>> float(poisson_yield(0.5))
    0.6065

    Parameters
    ----------
    defects : Mean number of critical defects d of a die. [-]

    Returns
    -------
    yield : Share of good dies. [-]

    References
    ----------
    .. [1] B. T. Murphy, "Cost-size optima ...", Proc. IEEE 52(12), 1964, doi:10.1109/PROC.1964.3442.
    """
    return exp(-array(defects))


def murphy_yield(defects: Numeric) -> Array:
    r"""Yield with a triangular spread of the defect density.

    .. math:: Y = \left(\frac{1 - e^{-d}}{d}\right)^2

    (1 - 0.3679) ** 2:

    >>> float(murphy_yield(1.0))
    0.3996

    Parameters
    ----------
    defects : Mean number of critical defects d of a die. [-]

    Returns
    -------
    yield : Share of good dies. [-]

    References
    ----------
    .. [1] B. T. Murphy, "Cost-size optima ...", Proc. IEEE 52(12), 1964, doi:10.1109/PROC.1964.3442.
    """
    mean = array(defects)
    share = divide(-expm1(-mean), mean, where_zero=1.0)
    return np.asarray(share * share)


def rectangular_yield(defects: Numeric) -> Array:
    r"""Yield with a defect density uniform between 0 and twice the mean.

    .. math:: Y = \frac{1 - e^{-2d}}{2d}

    1 - exp(-1):

    >>> float(rectangular_yield(0.5))
    0.6321

    Parameters
    ----------
    defects : Mean number of critical defects d of a die. [-]

    Returns
    -------
    yield : Share of good dies. [-]

    References
    ----------
    .. [1] B. T. Murphy, "Cost-size optima ...", Proc. IEEE 52(12), 1964, doi:10.1109/PROC.1964.3442.
    """
    twice = 2.0 * array(defects)
    return np.asarray(divide(-expm1(-twice), twice, where_zero=1.0))


def seeds_yield(defects: Numeric) -> Array:
    r"""Yield with an exponential spread of the defect density.

    .. math:: Y = \frac{1}{1 + d}

    1 / 1.25:

    >>> float(seeds_yield(0.25))
    0.8

    Parameters
    ----------
    defects : Mean number of critical defects d of a die. [-]

    Returns
    -------
    yield : Share of good dies. [-]

    References
    ----------
    .. [1] R. B. Seeds, "Yield and cost analysis of bipolar LSI", IEDM 1967, doi:10.1109/IEDM.1967.187739.
    """
    return np.asarray(1.0 / (1.0 + array(defects)))


def moore_yield(defects: Numeric) -> Array:
    r"""Yield that falls with the root of the defects (also called Seeds).

    .. math:: Y = e^{-\sqrt{d}}

    exp(-0.5):

    >>> float(moore_yield(0.25))
    0.6065

    Parameters
    ----------
    defects : Mean number of critical defects d of a die. [-]

    Returns
    -------
    yield : Share of good dies. [-]

    References
    ----------
    .. [1] G. E. Moore, "What level of LSI is best for you?", Electronics 43(4), 1970.
    """
    return exp(-np.sqrt(array(defects)))


def bose_einstein_yield(defects: Numeric, num_critical_layers: Numeric) -> Array:
    r"""Bose-Einstein yield: the defect density of every critical layer is exponentially distributed.

    .. math:: Y = (1 + d)^{-n}

    Ten layers: 1.1 ** -10:

    >>> float(bose_einstein_yield(0.1, 10.0))
    0.3855

    Parameters
    ----------
    defects : Mean number of critical defects d of one layer of a die. [-]
    num_critical_layers : Critical layers n. [-]

    Returns
    -------
    yield : Share of good dies. [-]

    References
    ----------
    .. [1] J. E. Price, Proc. IEEE 58(8), 1970, doi:10.1109/PROC.1970.7911.
    """
    return power(1.0 + array(defects), -array(num_critical_layers))


def negative_binomial_yield(defects: Numeric, clustering: Numeric) -> Array:
    r"""Yield with clustered defects: Poisson for infinite alpha, Seeds for an alpha of 1.

    .. math:: Y = \left(1 + \frac{d}{\alpha}\right)^{-\alpha}

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

    References
    ----------
    .. [1] C. H. Stapper et al., "Integrated circuit yield", Proc. IEEE 71(4), 1983, doi:10.1109/PROC.1983.12619.
    """
    alpha = array(clustering)
    return power(1.0 + array(defects) / alpha, -alpha)


def die_yield(yield_model: str, defects: Numeric, clustering: Numeric, num_critical_layers: Numeric) -> Array:
    """Share of good dies by the named model."""
    if yield_model == "negative-binomial":
        return negative_binomial_yield(defects, clustering)
    if yield_model == "bose-einstein":
        return bose_einstein_yield(defects, num_critical_layers)
    models = {
        "poisson": poisson_yield,
        "murphy": murphy_yield,
        "rectangular": rectangular_yield,
        "seeds": seeds_yield,
        "moore": moore_yield,
    }
    return models[yield_model](defects)


def harvested_yield(unit_yield: Numeric, num_units: Numeric, num_units_needed: Numeric) -> Array:
    r"""Share of dies with enough good units, if units fail independently.

    .. math:: Y = \sum_{j=0}^{n-k} \binom{n}{j} y^{n-j} (1 - y)^j

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

    References
    ----------
    .. [1] C. H. Stapper et al., IBM J. Res. Dev. 24(3), 1980, doi:10.1147/rd.243.0398.
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

    References
    ----------
    .. [1] A. Graening et al., "CATCH: a cost analysis tool for chiplet-based systems", 2025, arXiv:2503.15753.
    """
    return np.asarray(1.0 - (1.0 - array(die_yield_share)) * array(test_coverage_share))
