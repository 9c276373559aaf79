r"""From a wafer to a good die: dies per wafer, exposure fields, cost of raw and good dies, area of die-to-die links."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ceil_div, divide, exp

__all__ = [
    "dies_per_wafer",
    "dies_per_wafer_by_area",
    "dies_per_wafer_exponential",
    "dies_per_wafer_placed",
    "good_die_cost",
    "link_area",
    "lithography_cost_factor",
    "raw_die_cost",
    "reticle_fields",
    "reticle_utilization",
    "testing_cost",
]

_OFFSETS = 8  # positions of the grid that are tried across a die, each way


def dies_per_wafer(
    die_width: Numeric,
    die_height: Numeric,
    wafer_diameter: Numeric,
    edge_exclusion: Numeric = 0.0,
    scribe_width: Numeric = 0.0,
) -> Array:
    r"""Dies on a wafer, as a real number: area, less those that the rim cuts.

    .. math:: N = \frac{\pi (D/2 - e)^2}{B} - \frac{\pi (D - 2e)}{\sqrt{2B}},\quad B = (w + s)(h + s)

    Parameters
    ----------
    die_width, die_height : numeric
        Width w and height h of the die. [mm]
    wafer_diameter : numeric
        Diameter D of the wafer. [mm]
    edge_exclusion, scribe_width : numeric, default 0.0
        Rim e without good dies, and lane s between dies. [mm]

    Returns
    -------
    dies : numeric
        Dies per wafer, 0 where none fits. [-]

    References
    ----------
    .. [1] D. K. de Vries, IEEE Trans. Semicond. Manuf. 18(1), 2005, doi:10.1109/TSM.2004.836656.

    Examples
    --------
    A die of 10 mm x 10 mm on a wafer of 300 mm: 70686 / 100 = 706.9, less 942.5 / 14.14 = 66.6 at the rim:

    >>> float(dies_per_wafer(10.0, 10.0, 300.0))
    640.2
    """
    usable = np.maximum(array(wafer_diameter) - 2.0 * array(edge_exclusion), 0.0)
    pitch = (array(die_width) + array(scribe_width)) * (array(die_height) + array(scribe_width))
    radius = usable / 2.0
    return np.asarray(np.maximum(np.pi * radius * radius / pitch - np.pi * usable / np.sqrt(2.0 * pitch), 0.0))


def dies_per_wafer_by_area(
    die_width: Numeric,
    die_height: Numeric,
    wafer_diameter: Numeric,
    edge_exclusion: Numeric = 0.0,
    scribe_width: Numeric = 0.0,
) -> Array:
    r"""Wafer area over die area: what no placement reaches.

    .. math:: N = \frac{\pi (D/2 - e)^2}{(w + s)(h + s)}

    Parameters
    ----------
    die_width, die_height : numeric
        Width w and height h of the die. [mm]
    wafer_diameter : numeric
        Diameter D of the wafer. [mm]
    edge_exclusion, scribe_width : numeric, default 0.0
        Rim e without good dies, and lane s between dies. [mm]

    Returns
    -------
    dies : numeric
        Dies per wafer. [-]

    References
    ----------
    .. [1] D. K. de Vries, IEEE Trans. Semicond. Manuf. 18(1), 2005, doi:10.1109/TSM.2004.836656.

    Examples
    --------
    70686 mm2 over 100 mm2:

    >>> float(dies_per_wafer_by_area(10.0, 10.0, 300.0))
    706.86
    """
    radius = np.maximum(array(wafer_diameter) / 2.0 - array(edge_exclusion), 0.0)
    pitch = (array(die_width) + array(scribe_width)) * (array(die_height) + array(scribe_width))
    return np.asarray(np.pi * radius * radius / pitch)


def dies_per_wafer_exponential(
    die_width: Numeric,
    die_height: Numeric,
    wafer_diameter: Numeric,
    edge_exclusion: Numeric = 0.0,
    scribe_width: Numeric = 0.0,
) -> Array:
    r"""Dies on a wafer with an exponential correction for the rim; stays above 0 for the largest dies.

    .. math:: N = \frac{\pi R^2}{B} e^{-\sqrt{B}/R},\quad R = D/2 - e,\quad B = (w + s)(h + s)

    Parameters
    ----------
    die_width, die_height : numeric
        Width w and height h of the die. [mm]
    wafer_diameter : numeric
        Diameter D of the wafer. [mm]
    edge_exclusion, scribe_width : numeric, default 0.0
        Rim e without good dies, and lane s between dies. [mm]

    Returns
    -------
    dies : numeric
        Dies per wafer. [-]

    References
    ----------
    .. [1] A. V. Ferris-Prabhu, IEEE Circuits and Devices Magazine 5(1), 1989, doi:10.1109/101.17236.

    Examples
    --------
    706.86 dies by area, times exp(-10 / 150) = 0.9355:

    >>> float(dies_per_wafer_exponential(10.0, 10.0, 300.0))
    661.27
    """
    radius = np.maximum(array(wafer_diameter) / 2.0 - array(edge_exclusion), 0.0)
    pitch = (array(die_width) + array(scribe_width)) * (array(die_height) + array(scribe_width))
    rim = exp(-divide(np.sqrt(pitch), radius, where_zero=np.inf))
    return np.asarray(np.pi * radius * radius / pitch * rim)


def dies_per_wafer_placed(
    die_width: Numeric,
    die_height: Numeric,
    wafer_diameter: Numeric,
    edge_exclusion: Numeric = 0.0,
    scribe_width: Numeric = 0.0,
) -> Array:
    r"""Whole dies counted on a grid that saws cut straight through: the best of 64 positions of the grid. Slow.

    A die counts where all its corners lie within the usable circle.

    .. math:: N = \max_{x_0, y_0} \sum_j \left\lfloor\frac{c_j - x_0}{p}\right\rfloor
        - \left\lceil\frac{-c_j - x_0}{p}\right\rceil,\quad c_j = \sqrt{R^2 - y_j^2}

    Parameters
    ----------
    die_width, die_height : numeric
        Width w and height h of the die. [mm]
    wafer_diameter : numeric
        Diameter of the wafer. [mm]
    edge_exclusion, scribe_width : numeric, default 0.0
        Rim e without good dies, and lane s between dies. [mm]

    Returns
    -------
    dies : numeric
        Dies per wafer, a whole number. [-]

    References
    ----------
    .. [1] D. K. de Vries, IEEE Trans. Semicond. Manuf. 18(1), 2005, doi:10.1109/TSM.2004.836656.

    Examples
    --------
    Four dies of 10 mm: their outer corners are 14.1 mm from the middle of a wafer of 15 mm radius:

    >>> float(dies_per_wafer_placed(10.0, 10.0, 30.0))
    4.0
    """
    width, height, diameter, edge, scribe = np.broadcast_arrays(
        *(array(value) for value in (die_width, die_height, wafer_diameter, edge_exclusion, scribe_width))
    )
    radius = np.maximum(diameter / 2.0 - edge, 0.0)
    across, down = width + scribe, height + scribe
    counts = np.full(radius.shape, np.nan)
    for index in np.ndindex(radius.shape):
        if not np.isnan(radius[index] + across[index] + down[index]):
            counts[index] = _placed(float(radius[index]), float(across[index]), float(down[index]))
    return counts


def _placed(radius: float, across: float, down: float) -> float:
    """Most cells of one grid that lie within one circle."""
    offsets = np.arange(_OFFSETS) / _OFFSETS
    lines = np.arange(-np.ceil(radius / down) - 1.0, np.ceil(radius / down) + 1.0)
    low = (lines[:, None] + offsets) * down  # (lines, offsets) lower edges of the rows of cells
    farthest = np.maximum(np.abs(low), np.abs(low + down))
    half = np.sqrt(np.maximum(radius * radius - farthest * farthest, 0.0))[:, :, None]
    start = offsets * across
    columns = np.floor((half - start) / across) - np.ceil((-half - start) / across)
    cells = np.where((farthest <= radius)[:, :, None], np.maximum(columns, 0.0), 0.0)
    return float(cells.sum(axis=0).max())


def reticle_fields(die_width: Numeric, die_height: Numeric, reticle_width: Numeric, reticle_height: Numeric) -> Array:
    r"""Exposure fields that cover a die, laid along or across.

    .. math:: f = \min\left(\lceil w/W\rceil \lceil h/H\rceil, \lceil h/W\rceil \lceil w/H\rceil\right)

    Parameters
    ----------
    die_width, die_height : numeric
        Width w and height h of the die. [mm]
    reticle_width, reticle_height : numeric
        Width W and height H of the field. [mm]

    Returns
    -------
    fields : numeric
        Fields; more than 1 needs stitching. [-]

    References
    ----------
    .. [1] A. Graening et al., "CATCH: a cost analysis tool for chiplet-based systems", 2025, arXiv:2503.15753.

    Examples
    --------
    40 mm x 30 mm in fields of 26 mm x 33 mm, two beside each other:

    >>> float(reticle_fields(40.0, 30.0, 26.0, 33.0))
    2.0
    """
    along = ceil_div(die_width, reticle_width) * ceil_div(die_height, reticle_height)
    return np.asarray(np.minimum(along, ceil_div(die_height, reticle_width) * ceil_div(die_width, reticle_height)))


def reticle_utilization(die_area: Numeric, reticle_area: Numeric) -> Array:
    r"""Share of the exposed area that whole dies fill.

    .. math:: u = \left\lfloor\frac{kR}{A}\right\rfloor \frac{A}{kR},\quad k = \left\lceil\frac{A}{R}\right\rceil

    Parameters
    ----------
    die_area : numeric
        Area A of the die. [mm2]
    reticle_area : numeric
        Area R of a field. [mm2]

    Returns
    -------
    utilization : numeric
        Used share of the fields. [-]

    References
    ----------
    .. [1] A. Graening et al., "CATCH: a cost analysis tool for chiplet-based systems", 2025, arXiv:2503.15753.

    Examples
    --------
    Two dies of 300 mm2 in a field of 858 mm2: 600 / 858:

    >>> float(reticle_utilization(300.0, 858.0))
    0.6993
    """
    area = array(die_area)
    exposed = ceil_div(area, reticle_area) * array(reticle_area)
    return np.asarray(np.floor(exposed / area) * area / exposed)


def lithography_cost_factor(lithography_share: Numeric, reticle_utilization_share: Numeric) -> Array:
    r"""Factor on the cost of a wafer whose fields are not full: more exposures for the same dies.

    .. math:: f = 1 - l + \frac{l}{u}

    Parameters
    ----------
    lithography_share : numeric
        Share l of lithography in the cost of a wafer. [-]
    reticle_utilization_share : numeric
        Used share u of the fields, above 0. [-]

    Returns
    -------
    factor : numeric
        Factor on the wafer's cost, 1 where fields are full. [-]

    References
    ----------
    .. [1] A. Graening et al., "CATCH: a cost analysis tool for chiplet-based systems", 2025, arXiv:2503.15753.

    Examples
    --------
    Half of the cost is lithography and a fifth of each field is empty: 0.5 + 0.5 / 0.8:

    >>> float(lithography_cost_factor(0.5, 0.8))
    1.125
    """
    share = array(lithography_share)
    return np.asarray(1.0 - share + share / array(reticle_utilization_share))


def raw_die_cost(wafer_price: Numeric, num_dies: Numeric) -> Array:
    r"""Cost of a die, good or bad.

    .. math:: c = \frac{W}{N}

    Parameters
    ----------
    wafer_price : numeric
        Price W of a processed wafer. [USD]
    num_dies : numeric
        Dies N per wafer. [-]

    Returns
    -------
    cost : numeric
        Cost of one die before any is sorted out. [USD]

    References
    ----------
    .. [1] Y. Feng and K. Ma, "Chiplet Actuary", DAC 2022, doi:10.1145/3489517.3530428.

    Examples
    --------
    A wafer of 16,000 USD with 64 dies:

    >>> float(raw_die_cost(16000.0, 64.0))
    250.0
    """
    return np.asarray(array(wafer_price) / array(num_dies))


def good_die_cost(raw_cost: Numeric, sort_cost: Numeric, pass_share: Numeric) -> Array:
    r"""Cost of a die that has passed the sort; those that failed are paid for too.

    .. math:: c = \frac{c_r + c_t}{P}

    Parameters
    ----------
    raw_cost : numeric
        Cost of a die before the sort. [USD]
    sort_cost : numeric
        Cost of testing a die. [USD]
    pass_share : numeric
        Share P of the dies that pass: the yield where the test is perfect. [-]

    Returns
    -------
    cost : numeric
        Cost of one known good die. [USD]

    References
    ----------
    .. [1] Y. Feng and K. Ma, "Chiplet Actuary", DAC 2022, doi:10.1145/3489517.3530428.

    Examples
    --------
    (100 + 2) / 0.8:

    >>> float(good_die_cost(100.0, 2.0, 0.8))
    127.5
    """
    return np.asarray((array(raw_cost) + array(sort_cost)) / array(pass_share))


def testing_cost(test_time: Numeric, tester_rate: Numeric) -> Array:
    r"""Cost of a test.

    .. math:: c = t\,r

    Parameters
    ----------
    test_time : numeric
        Time on the tester. [s]
    tester_rate : numeric
        Price of the tester. [USD/s]

    Returns
    -------
    cost : numeric
        Cost of testing one part. [USD]

    References
    ----------
    .. [1] A. Graening et al., "CATCH: a cost analysis tool for chiplet-based systems", 2025, arXiv:2503.15753.

    Examples
    --------
    Two seconds at 0.05 USD/s:

    >>> float(testing_cost(2.0, 0.05))
    0.1
    """
    return np.asarray(array(test_time) * array(tester_rate))


def link_area(bandwidth: Numeric, macro_bandwidth: Numeric, macro_area: Numeric) -> Array:
    r"""Area of the die-to-die links of one die: whole macros of a link standard.

    .. math:: A = \left\lceil\frac{B}{b}\right\rceil a

    Heuristic, this work: link standards publish bandwidth and area of one macro, and dies have whole ones.

    Parameters
    ----------
    bandwidth : numeric
        Bandwidth B from this die to its neighbours, one direction. [B/s]
    macro_bandwidth : numeric
        Bandwidth b of one link macro, one direction. [B/s]
    macro_area : numeric
        Area a of one macro, sender and receiver. [mm2]

    Returns
    -------
    area : numeric
        Area that the links take on the die. [mm2]

    Examples
    --------
    A bandwidth of 500 takes three macros of 200, 1.5 mm2 each:

    >>> float(link_area(500.0, 200.0, 1.5))
    4.5
    """
    return np.asarray(ceil_div(bandwidth, macro_bandwidth) * array(macro_area))
