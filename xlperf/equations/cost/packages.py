r"""From good dies to a tested module: carrier, substrate, bonding, and what is lost when one of them fails.

One set of equations covers every kind of package. Dies, and stacks of memory, are put on a *carrier* (organic
substrate, redistribution layer, silicon interposer, layer with bridges), and the carrier on a *substrate* where it
is not one itself. With chips last only tested carriers are used; with chips first the carrier is built over the dies
and its defects cost dies too. Dies that are stacked (hybrid bonding) form stacks before they meet the carrier.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, power

__all__ = [
    "Module",
    "ModuleCost",
    "amortized_nre",
    "bond_yield",
    "bumping_cost",
    "carrier_cost",
    "chip_nre",
    "module_cost",
    "package_nre",
    "substrate_cost",
    "substrate_layer_factor",
]


class Module(NamedTuple):
    """What one module is made of, and what fails on the way, (rows,)."""

    # 1 where the carrier is built over the dies, 0 where dies are put on a carrier that was tested [-]
    chips_first: Array
    raw_dies: Array  # Dies R as if none were bad [USD]
    die_defects: Array  # Bad dies D that were paid for with them [USD]
    sort_test: Array  # Sort T of the dies [USD]
    memory: Array  # Stacks of memory M [USD]
    carrier: Array  # One carrier I [USD]
    substrate: Array  # Substrate S below it, with assembly [USD]
    final_test: Array  # Test of one module [USD]
    carrier_yield: Array  # Yield y1 of carriers [-]
    bonding_yield: Array  # Yield y2 of all bonds on the carrier; has no effect with chips first [-]
    attach_yield: Array  # Yield y3 of putting the carrier on the substrate [-]
    stack_yield: Array  # Yield ys of stacking dies before they meet the carrier [-]
    final_yield: Array  # Share yf of the modules that pass the final test [-]


class ModuleCost(NamedTuple):
    """Parts of the cost of one good module; they add up to ``total``."""

    raw_dies: Array  # Dies as if none were bad, bumps included [USD]
    die_defects: Array  # Dies that the sort has thrown out [USD]
    raw_package: Array  # Carrier, substrate and assembly as if nothing failed [USD]
    package_defects: Array  # Carriers, substrates and assembly that were lost [USD]
    wasted_dies: Array  # Good dies that were lost with modules that failed [USD]
    memory: Array  # Stacks of memory [USD]
    wasted_memory: Array  # Stacks of memory that were lost with modules that failed [USD]
    test: Array  # Sort of the dies and test of the modules [USD]
    total: Array  # Sum of the parts [USD]


def bumping_cost(die_area: Numeric, num_dies: Numeric, bump_price: Numeric) -> Array:
    r"""Cost of the bumps of dies.

    .. math:: c = A\,n\,p

    Parameters
    ----------
    die_area : numeric
        Area A of one die. [mm2]
    num_dies : numeric
        Dies n. [-]
    bump_price : numeric
        Price p of bumps per area of die. [USD/mm2]

    Returns
    -------
    cost : numeric
        Cost of the bumps of all of them. [USD]

    References
    ----------
    .. [1] Y. Feng and K. Ma, "Chiplet Actuary", DAC 2022, doi:10.1145/3489517.3530428.

    Examples
    --------
    Four dies of 100 mm2 at 0.5 cents per mm2:

    >>> float(bumping_cost(100.0, 4.0, 0.005))
    2.0
    """
    return np.asarray(array(die_area) * array(num_dies) * array(bump_price))


def substrate_layer_factor(
    substrate_area: Numeric, num_chips: Numeric, medium_area: Numeric, large_area: Numeric
) -> Array:
    r"""Factor on the price of an organic substrate that joins several chips: larger ones need more layers.

    .. math:: k = 1 \text{ for one chip, else } 1.5,\; 1.75\;(S > S_m),\; 2\;(S > S_l)

    Parameters
    ----------
    substrate_area : numeric
        Area S of the substrate. [mm2]
    num_chips : numeric
        Chips on it. [-]
    medium_area : numeric
        Area Sm above which a substrate is of medium size. [mm2]
    large_area : numeric
        Area Sl above which it is large. [mm2]

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


def substrate_cost(substrate_area: Numeric, substrate_price: Numeric, layer_factor: Numeric = 1.0) -> Array:
    r"""Cost of an organic substrate.

    .. math:: c = S\,p\,k

    Parameters
    ----------
    substrate_area : numeric
        Area S. [mm2]
    substrate_price : numeric
        Price p per area. [USD/mm2]
    layer_factor : numeric, default 1.0
        Factor k for more layers. [-]

    Returns
    -------
    cost : numeric
        Cost of one substrate. [USD]

    References
    ----------
    .. [1] Y. Feng and K. Ma, "Chiplet Actuary", DAC 2022, doi:10.1145/3489517.3530428.

    Examples
    --------
    3000 mm2 at 0.5 cents, twice for its layers:

    >>> float(substrate_cost(3000.0, 0.005, 2.0))
    30.0
    """
    return np.asarray(array(substrate_area) * array(substrate_price) * array(layer_factor))


def carrier_cost(
    carrier_wafer_price: Numeric,
    carriers_per_wafer: Numeric,
    carrier_area: Numeric,
    bump_price: Numeric,
    num_bridges: Numeric = 0.0,
    bridge_cost: Numeric = 0.0,
) -> Array:
    r"""Cost of an interposer or redistribution layer with its bumps, and of the bridges that are set into it.

    .. math:: c = \frac{W}{N} + A\,p + b\,c_b

    Parameters
    ----------
    carrier_wafer_price : numeric
        Price W of a processed wafer or panel of carriers. [USD]
    carriers_per_wafer : numeric
        Carriers N on it. [-]
    carrier_area : numeric
        Area A of one. [mm2]
    bump_price : numeric
        Price p of the bumps below it per area. [USD/mm2]
    num_bridges : numeric, default 0.0
        Silicon bridges b. [-]
    bridge_cost : numeric, default 0.0
        Cost of one good bridge with its placement. [USD]

    Returns
    -------
    cost : numeric
        Cost of one carrier, good or bad. [USD]

    References
    ----------
    .. [1] Y. Feng and K. Ma, "Chiplet Actuary", DAC 2022, doi:10.1145/3489517.3530428.

    Examples
    --------
    2000 / 20 for the silicon, 1000 x 0.01 for bumps, four bridges of 5 USD:

    >>> float(carrier_cost(2000.0, 20.0, 1000.0, 0.01, 4.0, 5.0))
    130.0
    """
    silicon = array(carrier_wafer_price) / array(carriers_per_wafer)
    return np.asarray(silicon + array(carrier_area) * array(bump_price) + array(num_bridges) * array(bridge_cost))


def bond_yield(yield_per_bond: Numeric, num_bonds: Numeric) -> Array:
    r"""Share of modules in which every bond holds.

    .. math:: Y = y^n

    Parameters
    ----------
    yield_per_bond : numeric
        Yield y of bonding one die, stack or bridge. [-]
    num_bonds : numeric
        Parts n that are bonded. [-]

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
    r"""Cost of a good module by part.

    Carriers are paid until one is good; what was put on them is lost with a module that fails. With
    :math:`Y_m = y_2 y_3 y_f` for chips last and :math:`Y_m = y_1 y_3 y_f` for chips first:

    .. math:: W_d = (R + D + T)\left(\frac{1}{y_s Y_m} - 1\right),\quad W_h = M\left(\frac{1}{Y_m} - 1\right)

    .. math:: D_p = I\left(\frac{1}{y_1 y_2 y_3 y_f} - 1\right) + S\left(\frac{1}{y_3 y_f} - 1\right)

    where y2 is 1 for chips first. Memory is scrapped with a module that fails.
    """
    below = array(module.attach_yield) * array(module.final_yield)
    carrier_yield = array(module.carrier_yield)
    module_yield = np.where(module.chips_first, carrier_yield, module.bonding_yield) * below
    with_carrier = np.where(module.chips_first, module_yield, carrier_yield * module_yield)
    dies, defects, sorting = array(module.raw_dies), array(module.die_defects), array(module.sort_test)
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
        What a design of any area f costs. [USD]
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


def package_nre(
    carrier_area: Numeric,
    carrier_price_per_area: Numeric,
    substrate_area: Numeric,
    substrate_price_per_area: Numeric,
    fixed: Numeric,
) -> Array:
    r"""One-time cost of designing a package.

    .. math:: c = A\,p_a + S\,p_s + f

    Parameters
    ----------
    carrier_area : numeric
        Area A of the carrier; nothing where the substrate is the carrier. [mm2]
    carrier_price_per_area : numeric
        Design effort pa per area of carrier. [USD/mm2]
    substrate_area : numeric
        Area S of the substrate. [mm2]
    substrate_price_per_area : numeric
        Design effort ps per area of substrate. [USD/mm2]
    fixed : numeric
        What any package f costs. [USD]

    Returns
    -------
    cost : numeric
        One-time cost. [USD]

    References
    ----------
    .. [1] Y. Feng and K. Ma, "Chiplet Actuary", DAC 2022, doi:10.1145/3489517.3530428.

    Examples
    --------
    1000 x 10 for the carrier, 4000 x 1 for the substrate, 6000 in any case:

    >>> float(package_nre(1000.0, 10.0, 4000.0, 1.0, 6000.0))
    20000.0
    """
    carrier = array(carrier_area) * array(carrier_price_per_area)
    return np.asarray(carrier + array(substrate_area) * array(substrate_price_per_area) + array(fixed))


def amortized_nre(one_time_cost: Numeric, num_in_product: Numeric, num_in_family: Numeric) -> Array:
    r"""Share of a one-time cost that one product carries when a family of products shares a design.

    .. math:: c = \frac{C\,n}{N}

    Parameters
    ----------
    one_time_cost : numeric
        One-time cost C. [USD]
    num_in_product : numeric
        Parts n of this design in one product. [-]
    num_in_family : numeric
        Parts N of this design that are made for all products together, above 0. [-]

    Returns
    -------
    cost : numeric
        Share of one product. [USD]

    References
    ----------
    .. [1] Y. Feng and K. Ma, "Chiplet Actuary", DAC 2022, doi:10.1145/3489517.3530428.

    Examples
    --------
    500,000 USD over 100,000 parts, of which the product has four:

    >>> float(amortized_nre(500000.0, 4.0, 100000.0))
    20.0
    """
    return np.asarray(array(one_time_cost) * array(num_in_product) / array(num_in_family))
