r"""From a wafer to a good die: dies per wafer, exposure fields, cost of raw and good dies, area of die-to-die links."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ceil_div, divide, exp, expm1, power

_OFFSETS = 8  # positions of the grid that are tried across a die, each way


def dies_per_wafer(
    die_width: Numeric,
    die_height: Numeric,
    wafer_diameter: Numeric,
    edge_exclusion: Numeric = 0.0,
    scribe_width: Numeric = 0.0,
) -> Array:
    r"""Dies on a wafer, as a real number: by area, less the dies cut by the rim.

    .. math:: N = \frac{\pi (D/2 - e)^2}{B} - \frac{\pi (D - 2e)}{\sqrt{2B}},\quad B = (w + s)(h + s)

    Source: D. K. de Vries, IEEE Trans. Semicond. Manuf. 18(1), 2005, doi:10.1109/TSM.2004.836656.

    A die of 10 mm x 10 mm on a wafer of 300 mm: 70686 / 100 = 706.9, less 942.5 / 14.14 = 66.6 at the rim:

    >>> float(dies_per_wafer(10.0, 10.0, 300.0))
    640.2

    Parameters
    ----------
    die_width, die_height : Width w and height h of the die. [mm]
    wafer_diameter : Diameter D of the wafer. [mm]
    edge_exclusion, scribe_width : Rim e without good dies, and lane s between dies. [mm]

    Returns
    -------
    dies : Dies per wafer, at least 0. [-]
    """
    usable = np.maximum(array(wafer_diameter) - 2.0 * array(edge_exclusion), 0.0)
    pitch = (array(die_width) + array(scribe_width)) * (array(die_height) + array(scribe_width))
    radius = usable / 2.0
    return np.asarray(np.maximum(np.pi * radius * radius / pitch - np.pi * usable / np.sqrt(2.0 * pitch), 0.0))


def dies_by_rule(
    rule: str,
    die_width: Numeric,
    die_height: Numeric,
    wafer_diameter: Numeric,
    edge_exclusion: Numeric = 0.0,
    scribe_width: Numeric = 0.0,
) -> Array:
    """Dies on a wafer by a rule, sizes in mm, with pitch area B = (w + s)(h + s) and usable radius R = D/2 - e. [-]

    - ``formula``: :func:`dies_per_wafer`.
    - ``area``: wafer area over die area, pi R^2 / B, an upper bound.
    - ``exponential``: pi R^2 / B exp(-sqrt(B) / R), above 0 for any die (A. V. Ferris-Prabhu, IEEE Circuits and Devices
      Magazine 5(1), 1989, doi:10.1109/101.17236).
    - ``placed``: whole dies of a grid inside the usable circle, for the best of 64 positions of the grid (slow).

    A die of 10 mm x 10 mm on a wafer of 300 mm, 70686 / 100 by area, and times exp(-10 / 150); four such dies have
    their outer corners 14.1 mm from the middle:

    >>> [round(float(dies_by_rule(rule, 10.0, 10.0, 300.0)), 2) for rule in ("area", "exponential")]
    [706.86, 661.27]
    >>> float(dies_by_rule("placed", 10.0, 10.0, 30.0))
    4.0
    """
    if rule == "formula":
        return dies_per_wafer(die_width, die_height, wafer_diameter, edge_exclusion, scribe_width)
    radius = np.maximum(array(wafer_diameter) / 2.0 - array(edge_exclusion), 0.0)
    across, down = array(die_width) + array(scribe_width), array(die_height) + array(scribe_width)
    if rule == "placed":
        return np.asarray(np.vectorize(_placed, otypes=[np.float64])(radius, across, down))
    pitch = across * down
    rim = exp(-divide(np.sqrt(pitch), radius, where_zero=np.inf)) if rule == "exponential" else 1.0
    return np.asarray(np.pi * radius * radius / pitch * rim)


def _placed(radius: float, across: float, down: float) -> float:
    """Most cells of one grid within one circle, over the offsets of the grid; NaN for an unknown size."""
    if np.isnan(radius + across + down):
        return np.nan
    offsets = np.arange(_OFFSETS) / _OFFSETS
    lines = np.arange(-np.ceil(radius / down) - 1.0, np.ceil(radius / down) + 1.0)
    # Row by row of the grid: the corner farthest from the middle, and the half chord there.
    low = (lines[:, None] + offsets) * down  # (lines, offsets) lower edges of the rows of cells
    farthest = np.maximum(np.abs(low), np.abs(low + down))
    half = np.sqrt(np.maximum(radius * radius - farthest * farthest, 0.0))[:, :, None]
    start = offsets * across
    columns = np.floor((half - start) / across) - np.ceil((-half - start) / across)
    cells = np.where((farthest <= radius)[:, :, None], np.maximum(columns, 0.0), 0.0)
    return float(cells.sum(axis=0).max())


def reticle_utilization(die_area: Numeric, reticle_area: Numeric) -> Array:
    r"""Share of the exposed area filled by whole dies.

    .. math:: u = \left\lfloor\frac{kR}{A}\right\rfloor \frac{A}{kR},\quad k = \left\lceil\frac{A}{R}\right\rceil

    Source: A. Graening et al., "CATCH: a cost analysis tool for chiplet-based systems", 2025, arXiv:2503.15753.

    >>> float(reticle_utilization(300.0, 858.0))  # Two dies of 300 mm2 in a field of 858 mm2: 600 / 858
    0.6993

    Parameters
    ----------
    die_area : Area A of the die. [mm2]
    reticle_area : Area R of a field. [mm2]

    Returns
    -------
    utilization : Used share of the fields. [-]
    """
    area = array(die_area)
    exposed = ceil_div(area, reticle_area) * array(reticle_area)
    return np.asarray(np.floor(exposed / area) * area / exposed)


def raw_die_cost(wafer_price: Numeric, num_dies: Numeric) -> Array:
    r"""Cost of a die, good or bad.

    .. math:: c = \frac{W}{N}

    Source: Y. Feng and K. Ma, "Chiplet Actuary", DAC 2022, doi:10.1145/3489517.3530428.

    >>> float(raw_die_cost(16000.0, 64.0))  # A wafer of 16,000 USD with 64 dies
    250.0

    Parameters
    ----------
    wafer_price : Price W of a processed wafer. [USD]
    num_dies : Dies N per wafer. [-]

    Returns
    -------
    cost : Cost of one die before the sort. [USD]
    """
    return np.asarray(array(wafer_price) / array(num_dies))


def good_die_cost(raw_cost: Numeric, sort_cost: Numeric, pass_share: Numeric) -> Array:
    r"""Cost of a die that passes the sort, rejected dies included.

    .. math:: c = \frac{c_r + c_t}{P}

    Source: Y. Feng and K. Ma, "Chiplet Actuary", DAC 2022, doi:10.1145/3489517.3530428.

    >>> float(good_die_cost(100.0, 2.0, 0.8))  # (100 + 2) / 0.8
    127.5

    Parameters
    ----------
    raw_cost : Cost of a die before the sort. [USD]
    sort_cost : Cost of testing a die. [USD]
    pass_share : Share P of dies that pass; the yield for a perfect test. [-]

    Returns
    -------
    cost : Cost of one known good die. [USD]
    """
    return np.asarray((array(raw_cost) + array(sort_cost)) / array(pass_share))


class Module(NamedTuple):
    """Costs of the parts of one module and yields of its assembly, (rows,)."""

    chips_first: Array  # 1: the carrier is built over the dies; 0: dies go on a tested carrier [-]
    raw_dies: Array  # Dies R at a yield of 1 [USD]
    die_defects: Array  # Bad dies D [USD]
    sort_test: Array  # Sort T of the dies [USD]
    memory: Array  # Stacks of memory M [USD]
    carrier: Array  # One carrier I [USD]
    substrate: Array  # Substrate S below it, with assembly [USD]
    final_test: Array  # Test of one module [USD]
    carrier_yield: Array  # Yield y1 of carriers [-]
    bonding_yield: Array  # Yield y2 of all bonds on the carrier; has no effect with chips first [-]
    attach_yield: Array  # Yield y3 of attaching the carrier to the substrate [-]
    stack_yield: Array  # Yield ys of stacking dies before the carrier [-]
    final_yield: Array  # Share yf of modules that pass the final test [-]


class ModuleCost(NamedTuple):
    """Parts of the cost of one good module; they add up to ``total``."""

    raw_dies: Array  # Dies at a yield of 1, with bumps [USD]
    die_defects: Array  # Dies rejected by the sort [USD]
    raw_package: Array  # Carrier, substrate and assembly at a yield of 1 [USD]
    package_defects: Array  # Lost carriers, substrates and assembly [USD]
    wasted_dies: Array  # Good dies lost with failed modules [USD]
    memory: Array  # Stacks of memory [USD]
    wasted_memory: Array  # Memory stacks lost with failed modules [USD]
    test: Array  # Sort of the dies and test of the modules [USD]
    total: Array  # Sum of the parts [USD]


def module_cost(module: Module) -> ModuleCost:
    """Cost of a good module by part: a failed module loses its dies, memory, carrier and substrate. With Y = y2 y3 yf
    (chips last) or y1 y3 yf (chips first), a module loses dies (R + D + T) (1/(ys Y) - 1), memory M (1/Y - 1),
    substrates S (1/(y3 yf) - 1), and carriers I (1/(y1 Y) - 1), or I (1/Y - 1) for chips first.
    """
    # Yields from the substrate on, of a module, and of a module with its carrier.
    below = array(module.attach_yield) * array(module.final_yield)
    carrier_yield = array(module.carrier_yield)
    module_yield = np.where(module.chips_first, carrier_yield, module.bonding_yield) * below
    with_carrier = np.where(module.chips_first, module_yield, carrier_yield * module_yield)
    dies, defects, sorting = array(module.raw_dies), array(module.die_defects), array(module.sort_test)
    # Losses: cost of a part times the failed attempts per good module.
    stacks, carrier, base = array(module.memory), array(module.carrier), array(module.substrate)
    package = carrier + base
    package_defects = carrier * (1.0 / with_carrier - 1.0) + base * (1.0 / below - 1.0)
    wasted_dies = (dies + defects + sorting) * (1.0 / (array(module.stack_yield) * module_yield) - 1.0)
    wasted_memory = stacks * (1.0 / module_yield - 1.0)
    test = sorting + array(module.final_test) / array(module.final_yield)
    total = dies + defects + package + package_defects + wasted_dies + stacks + wasted_memory + test
    parts = (dies, defects, package, package_defects, wasted_dies, stacks, wasted_memory, test, total)
    return ModuleCost(*(np.asarray(part) for part in parts))


def chip_nre(area: Numeric, num_designs: Numeric, price_per_area: Numeric, fixed: Numeric = 0.0) -> Array:
    r"""One-time cost of designing a module or a chip, without masks.

    .. math:: c = n\,(A\,p + f)

    Source: Y. Feng and K. Ma, "Chiplet Actuary", DAC 2022, doi:10.1145/3489517.3530428.

    >>> float(chip_nre(100.0, 2.0, 1000.0, 5000.0))  # Two designs of 100 x 1000 + 5000 USD
    210000.0

    Parameters
    ----------
    area : Area A of the design. [mm2]
    num_designs : Different designs n of this area. [-]
    price_per_area : Design effort p per area. [USD/mm2]
    fixed : Cost f of any design. [USD]

    Returns
    -------
    cost : One-time cost. [USD]
    """
    return np.asarray(array(num_designs) * (array(area) * array(price_per_area) + array(fixed)))


def critical_defects(die_area: Numeric, defect_density: Numeric, critical_area_ratio: Numeric = 1.0) -> Array:
    r"""Mean number of critical defects of a die.

    .. math:: d = A\,D_0\,r

    Source: C. H. Stapper, IBM J. Res. Dev. 28(4), 1984, doi:10.1147/rd.284.0461.

    >>> float(critical_defects(800.0, 0.001, 0.8))  # 800 mm2 x 0.001 per mm2 x 0.8
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

    >>> float(negative_binomial_yield(0.5, 2.0))  # 1.25 ** -2
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

    >>> float(harvested_yield(0.9, 3.0, 2.0))  # Two of three units: 0.9 ** 3 + 3 x 0.9 ** 2 x 0.1 = 0.729 + 0.243
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
