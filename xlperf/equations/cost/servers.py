r"""Servers and racks that are owned: price, building, power, and the hour of an accelerator by part."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Columns, Numeric, array
from xlperf.base.units import YEAR
from xlperf.equations.cost.tco import (
    building_power,
    capital_recovery_rate,
    carbon_of_energy,
    energy_cost_rate,
    mean_load,
    owned_cost_rate,
)


def facility_cost(
    server_power: Numeric, power_usage_effectiveness: Numeric, building_price: Numeric, rack_cost: Numeric = 0.0
) -> Array:
    r"""Rack, power, cooling and building that one accelerator takes up.

    .. math:: c = P_s\,\mathrm{PUE}\,p + r

    Parameters
    ----------
    server_power : numeric
        Power of one accelerator with its share of the server. [W]
    power_usage_effectiveness : numeric
        Power into the building over power into the servers. [-]
    building_price : numeric
        Building with power and cooling per power that it takes from the grid. [USD/W]
    rack_cost : numeric, default 0.0
        Rack and power strips, share of one accelerator. [USD]

    Returns
    -------
    cost : numeric
        Share of one accelerator. [USD]

    References
    ----------
    .. [1] L. A. Barroso, U. Hölzle and P. Ranganathan, "The Datacenter as a Computer", 3rd ed., 2018, chapter 6,
       doi:10.2200/S00874ED3V01Y201809CAC046.

    Examples
    --------
    1000 W x 1.2 x 10 USD/W + 500 USD:

    >>> float(facility_cost(1000.0, 1.2, 10.0, 500.0))
    12500.0
    """
    power = array(server_power) * array(power_usage_effectiveness)
    return np.asarray(power * array(building_price) + array(rack_cost))


def accelerator_capex(
    accelerator_price: Numeric, server_price: Numeric, num_accelerators: Numeric, network_price: Numeric
) -> Array:
    r"""Price of one accelerator with its share of the server and of the network.

    .. math:: C = p_a + \frac{p_s}{n} + p_n

    Parameters
    ----------
    accelerator_price : numeric
        Price pa of one accelerator. [USD]
    server_price : numeric
        Price ps of a server without accelerators and without network. [USD]
    num_accelerators : numeric
        Accelerators n of a server. [-]
    network_price : numeric
        Share pn of one accelerator in the network. [USD]

    Returns
    -------
    capex : numeric
        Capital cost of one accelerator, without the building. [USD]

    References
    ----------
    .. [1] L. A. Barroso, U. Hölzle and P. Ranganathan, "The Datacenter as a Computer", 3rd ed., 2018, chapter 6,
       doi:10.2200/S00874ED3V01Y201809CAC046.

    Examples
    --------
    30000 + 80000 / 8 + 5000:

    >>> float(accelerator_capex(30000.0, 80000.0, 8.0, 5000.0))
    45000.0
    """
    return np.asarray(array(accelerator_price) + array(server_price) / array(num_accelerators) + array(network_price))


class DrawnPower(NamedTuple):
    """Power of the accelerators of plans, (rows,).

    Attributes
    ----------
    mean : Array
        By their work; NaN: not known. [W]
    provided : Array
        Limit of an accelerator as the plan lowers it: what is provisioned for it. [W]
    limit : Array
        Limit by the sheet accelerators, part of the power of its server at full load. [W]
    """

    mean: Array
    provided: Array
    limit: Array

    @classmethod
    def unknown(cls, count: int) -> DrawnPower:
        """That of servers without a plan."""
        return cls(*np.full((3, count), np.nan))


class OwnerTerms(NamedTuple):
    """Arguments of :func:`owned_cost_rate` for an accelerator in a server, (rows,).

    Attributes
    ----------
    capex : Array
        Price with its share of server, network and storage. [USD]
    recovery_rate : Array
        Share of it that a second has to earn. [1/s]
    facility : Array
        Its share of rack, power, cooling and building. [USD]
    facility_recovery_rate : Array
        Share of it that a second has to earn. [1/s]
    maintenance_share : Array
        Repairs and spares of one period as a share of capex. [-]
    staff_cost : Array
        Staff, insurance and rent for one period. [USD]
    server_power : Array
        Power with its share of server and network at full load. [W]
    power_usage_effectiveness : Array
        Power into the building over power into the servers. [-]
    energy_price : Array
        Price of electric energy. [USD/J]
    utilization : Array
        Share of the time that is used. [-]
    load_share : Array
        Mean power while it works over the power at full load. [-]
    """

    capex: Array
    recovery_rate: Array
    facility: Array
    facility_recovery_rate: Array
    maintenance_share: Array
    staff_cost: Array
    server_power: Array
    power_usage_effectiveness: Array
    energy_price: Array
    utilization: Array
    load_share: Array

    @property
    def grid_power(self) -> Array:
        """Power from the grid at full load. [W]"""
        return building_power(self.server_power, self.power_usage_effectiveness)


def owner_terms(server: Columns, network: Numeric, drawn: DrawnPower, period: Numeric = YEAR) -> OwnerTerms:
    r"""What an accelerator in a server costs to buy, to house and to run.

    .. math:: C = \left(p_a + \frac{p_s}{n} + p_n\right) (1 + \sigma)

    Where a plan's power is known, its mean makes the energy bill and its limit what is provisioned.

    Parameters
    ----------
    server : Columns
        Rows of the sheet ``servers``.
    network : numeric
        Price of the network, share of one accelerator. [USD]
    drawn : DrawnPower
        Power of the accelerators; where it is not known the server's own load share counts for all of it.
    period : numeric, default one year
        Period that the discount rate is for. [s]

    Returns
    -------
    OwnerTerms

    References
    ----------
    .. [1] L. A. Barroso, U. Hölzle and P. Ranganathan, "The Datacenter as a Computer", 3rd ed., 2018, chapter 6,
       doi:10.2200/S00874ED3V01Y201809CAC046.

    Examples
    --------
    (30,000 + 80,000 / 8 + 5,000) x 1.1 USD to buy; 1,000 W x 1.25 at 10 USD/W to house.

    >>> from types import SimpleNamespace
    >>> sizes = {"num_accelerators": 8.0, "accelerator_price": 30000.0, "server_price": 80000.0, "server_power": 8000.0}
    >>> sizes |= {"life": 4 * YEAR, "building_life": 10 * YEAR, "power_usage_effectiveness": 1.25}
    >>> shares = {"building_price": 10.0, "storage_share": 0.1, "utilization": 0.5, "load_share": 1.0}
    >>> none = "discount_rate residual_share maintenance_share network_power rack_cost staff_cost energy_price".split()
    >>> server = SimpleNamespace(**sizes, **shares, **dict.fromkeys(none, 0.0))
    >>> terms = owner_terms(server, 5000.0, DrawnPower.unknown(1))
    >>> float(terms.capex), terms.facility.tolist()
    (49500.0, [12500.0])
    """
    group, discount, used = server.num_accelerators, server.discount_rate, server.utilization
    bought = accelerator_capex(server.accelerator_price, server.server_price, group, network)
    power = server.server_power / group + server.network_power - np.nan_to_num(drawn.limit - drawn.provided)
    load = mean_load(drawn.mean, drawn.provided, np.minimum(drawn.provided / power, 1.0), server.load_share)
    rack = server.rack_cost / group
    return OwnerTerms(
        capex=bought * (1.0 + server.storage_share),
        recovery_rate=capital_recovery_rate(discount, server.life, server.residual_share, period),
        facility=facility_cost(power, server.power_usage_effectiveness, server.building_price, rack),
        facility_recovery_rate=capital_recovery_rate(discount, server.building_life, period=period),
        maintenance_share=server.maintenance_share,
        staff_cost=server.staff_cost,
        server_power=power,
        power_usage_effectiveness=server.power_usage_effectiveness,
        energy_price=server.energy_price,
        utilization=np.where(used > 0.0, used, np.nan),
        load_share=load,
    )


def straight_line_terms(price: Columns, unknown: OwnerTerms, drawn: DrawnPower) -> OwnerTerms:
    r"""The same by a list of prices: straight-line depreciation, building and staff not counted.

    .. math:: a = 1 / T

    Parameters
    ----------
    price : Columns
        Rows of the sheet ``prices``.
    unknown : OwnerTerms
        What stands in where the list has none.
    drawn : DrawnPower
        Power of the accelerators of plans; the rest of the server is at full load.

    Returns
    -------
    OwnerTerms

    References
    ----------
    .. [1] L. A. Barroso, U. Hölzle and P. Ranganathan, "The Datacenter as a Computer", 3rd ed., 2018, chapter 6,
       doi:10.2200/S00874ED3V01Y201809CAC046.

    Examples
    --------
    A life of 100 s by the list; it has no price of energy.

    >>> from types import SimpleNamespace
    >>> unknown, none = OwnerTerms(*np.full((len(OwnerTerms._fields), 1), 7.0)), np.array([np.nan])
    >>> names = "capex opex_share server_power power_usage_effectiveness energy_price utilization".split()
    >>> price = SimpleNamespace(**dict.fromkeys(names, none), life=np.array([100.0]))
    >>> terms = straight_line_terms(price, unknown, DrawnPower.unknown(1))
    >>> terms.recovery_rate.tolist(), terms.energy_price.tolist()
    ([0.01], [7.0])
    """
    nothing = np.zeros_like(unknown.capex)
    stated = OwnerTerms(
        capex=price.capex,
        recovery_rate=1.0 / price.life,
        facility=nothing,
        facility_recovery_rate=nothing,
        maintenance_share=price.opex_share,
        staff_cost=nothing,
        server_power=price.server_power,
        power_usage_effectiveness=price.power_usage_effectiveness,
        energy_price=price.energy_price,
        utilization=price.utilization,
        load_share=mean_load(drawn.mean, drawn.limit, np.minimum(drawn.limit / price.server_power, 1.0)),
    )
    return OwnerTerms(*(np.where(np.isnan(own), other, own) for own, other in zip(stated, unknown, strict=True)))


def server_hour(server: Columns, network: Numeric, drawn: DrawnPower, period: Numeric = YEAR) -> dict[str, Array]:
    r"""Cost of the hour of an accelerator in a server, by part.

    Capital is earned over the hours that are used; :math:`c` adds up from accelerator, server, network, storage,
    facility, running and energy cost.

    .. math:: c = \frac{1}{u} \left(C a + F a_F + \frac{C m + s}{p}\right) + P_s\,l\,\mathrm{PUE}\,p_e

    Parameters
    ----------
    server : Columns
        Rows of the sheet ``servers``.
    network : numeric
        Price of the network, share of one accelerator. [USD]
    drawn : DrawnPower
        Power of the accelerators; where it is not known the server's own load share counts for all of it.
    period : numeric, default one year
        Period that discount rate, maintenance and staff are for. [s]

    Returns
    -------
    dict of str to Array
        Columns of the sheet ``servers_results``, but for the parts of the network and the planner's.

    References
    ----------
    .. [1] L. A. Barroso, U. Hölzle and P. Ranganathan, "The Datacenter as a Computer", 3rd ed., 2018, chapter 6,
       doi:10.2200/S00874ED3V01Y201809CAC046.

    Examples
    --------
    An accelerator of 30,000 USD over four years of which half is used: 15,000 USD a year.

    >>> from types import SimpleNamespace
    >>> sizes = {"num_accelerators": 8.0, "accelerator_price": 30000.0, "server_price": 80000.0, "server_power": 8000.0}
    >>> sizes |= {"life": 4 * YEAR, "building_life": 10 * YEAR, "power_usage_effectiveness": 1.25}
    >>> shares = {"building_price": 10.0, "storage_share": 0.1, "utilization": 0.5, "load_share": 1.0}
    >>> none = "discount_rate residual_share maintenance_share network_power rack_cost staff_cost energy_price"
    >>> none = [*none.split(), "carbon_intensity"]
    >>> server = SimpleNamespace(**sizes, **shares, **dict.fromkeys(none, 0.0))
    >>> float(server_hour(server, 5000.0, DrawnPower.unknown(1))["accelerator_cost"]) * YEAR
    15000.0
    """
    terms = owner_terms(server, network, drawn, period)
    total = owned_cost_rate(*terms, period=period)
    energy = energy_cost_rate(terms.server_power, terms.power_usage_effectiveness, terms.energy_price)
    energy = energy * terms.load_share
    housed = terms.facility * terms.facility_recovery_rate
    capital = (terms.capex * terms.recovery_rate + housed) / terms.utilization
    earned = terms.recovery_rate / terms.utilization
    stored = terms.capex * server.storage_share / (1.0 + server.storage_share)
    return {
        "network_cost": array(network),
        "capex": terms.capex,
        "facility": terms.facility,
        "accelerator_cost": server.accelerator_price * earned,
        "server_cost": server.server_price / server.num_accelerators * earned,
        "network_capital_cost": array(network) * earned,
        "storage_cost": stored * earned,
        "facility_cost": housed / terms.utilization,
        "capital_cost": capital,
        "running_cost": total - capital - energy,
        "energy_cost": energy,
        "cost_rate": total,
        "carbon_rate": carbon_of_energy(terms.grid_power * terms.load_share, server.carbon_intensity),
    }
