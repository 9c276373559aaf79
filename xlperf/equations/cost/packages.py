"""From good dies to a tested module: carrier, substrate, bonding and yield losses, for every kind of package.

Dies and memory stacks go on a *carrier* (organic substrate, redistribution layer, silicon interposer, layer with
bridges), and the carrier on a *substrate* unless it is one. Chips last uses tested carriers; chips first builds the
carrier over the dies, so that its defects scrap dies. Hybrid bonding stacks dies before the carrier.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, power

__all__ = ["Module", "ModuleCost", "amortized_nre", "bond_yield", "chip_nre", "module_cost", "substrate_layer_factor"]


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


def substrate_layer_factor(
    substrate_area: Numeric, num_chips: Numeric, medium_area: Numeric, large_area: Numeric
) -> Array:
    r"""Price factor of an organic substrate with several chips: larger substrates need more layers.

    .. math:: k = 1 \text{ for one chip, else } 1.5,\; 1.75\;(S > S_m),\; 2\;(S > S_l)

    Parameters
    ----------
    substrate_area : numeric
        Area S of the substrate. [mm2]
    num_chips : numeric
        Chips on it. [-]
    medium_area, large_area : numeric
        Areas Sm and Sl above which a substrate is medium and large. [mm2]

    Returns
    -------
    factor : numeric
        Factor on the price. [-]

    References
    ----------
    .. [1] Y. Feng and K. Ma, "Chiplet Actuary", DAC 2022, doi:10.1145/3489517.3530428.

    Examples
    --------
    Four chips on 1000 mm2, between 900 and 1600 mm2:

    >>> float(substrate_layer_factor(1000.0, 4.0, 900.0, 1600.0))
    1.75
    """
    area, chips = array(substrate_area), array(num_chips)
    medium, large = array(medium_area), array(large_area)
    several = np.where(area > large, 2.0, np.where(area > medium, 1.75, 1.5))
    missing = np.isnan(area + chips + medium + large)
    return np.asarray(np.where(missing, np.nan, np.where(chips > 1.0, several, 1.0)))


def bond_yield(yield_per_bond: Numeric, num_bonds: Numeric) -> Array:
    r"""Share of modules with all bonds good.

    .. math:: Y = y^n

    Parameters
    ----------
    yield_per_bond : numeric
        Yield y of bonding one die, stack or bridge. [-]
    num_bonds : numeric
        Bonded parts n. [-]

    Returns
    -------
    yield : numeric
        Share of good modules. [-]

    References
    ----------
    .. [1] D. Stow et al., "Cost-effective design ... interposers", ICCAD 2017, doi:10.1109/ICCAD.2017.8203849.

    Examples
    --------
    Eight bonds of 99 %: 0.99 ** 8:

    >>> float(bond_yield(0.99, 8.0))
    0.9227
    """
    return power(yield_per_bond, num_bonds)


def module_cost(module: Module) -> ModuleCost:
    """Cost of a good module by part: a failed module loses its dies, memory, carrier and substrate.

    With Y = y2 y3 yf (chips last) or y1 y3 yf (chips first), a module loses dies (R + D + T) (1/(ys Y) - 1), memory
    M (1/Y - 1), substrates S (1/(y3 yf) - 1), and carriers I (1/(y1 Y) - 1), or I (1/Y - 1) for chips first.
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


def chip_nre(
    area: Numeric, num_designs: Numeric, price_per_area: Numeric, fixed: Numeric = 0.0, mask_set: Numeric = 0.0
) -> Array:
    r"""One-time cost of designing a module or a chip, and of its masks.

    .. math:: c = n\,(A\,p + f + m)

    Parameters
    ----------
    area : numeric
        Area A of the design. [mm2]
    num_designs : numeric
        Different designs n of this area. [-]
    price_per_area : numeric
        Design effort p per area. [USD/mm2]
    fixed : numeric, default 0.0
        Cost f of any design. [USD]
    mask_set : numeric, default 0.0
        Price m of the masks of a design. [USD]

    Returns
    -------
    cost : numeric
        One-time cost. [USD]

    References
    ----------
    .. [1] Y. Feng and K. Ma, "Chiplet Actuary", DAC 2022, doi:10.1145/3489517.3530428.

    Examples
    --------
    Two designs of 100 x 1000 + 5000 + 20000 USD:

    >>> float(chip_nre(100.0, 2.0, 1000.0, 5000.0, 20000.0))
    250000.0
    """
    each = array(area) * array(price_per_area) + array(fixed) + array(mask_set)
    return np.asarray(array(num_designs) * each)


def amortized_nre(one_time_cost: Numeric, num_in_product: Numeric, num_in_family: Numeric) -> Array:
    r"""One-time cost per product when a family of products shares a design.

    .. math:: c = \frac{C\,n}{N}

    Parameters
    ----------
    one_time_cost : numeric
        One-time cost C. [USD]
    num_in_product : numeric
        Parts n of this design in one product. [-]
    num_in_family : numeric
        Parts N of this design over all products, above 0. [-]

    Returns
    -------
    cost : numeric
        Share of one product. [USD]

    References
    ----------
    .. [1] Y. Feng and K. Ma, "Chiplet Actuary", DAC 2022, doi:10.1145/3489517.3530428.

    Examples
    --------
    500,000 USD over 100,000 parts, four in the product:

    >>> float(amortized_nre(500000.0, 4.0, 100000.0))
    20.0
    """
    return np.asarray(array(one_time_cost) * array(num_in_product) / array(num_in_family))
