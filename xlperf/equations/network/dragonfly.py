"""Collectives on a dragonfly: routers with their accelerators, fully joined in groups, and the groups fully joined.

Each router serves ``first_length`` accelerators and has ``num_links`` global links, as many where the machine is not
tapered; ``second_length`` routers make a group, ``third_length`` groups the machine; every link has the bandwidth of
one accelerator. Messages take the shortest way,
or go by a random third router or group (Valiant) where that carries more. All ranks of the machine are at work: groups
that lie between each other share the links.

Loads are relative to the bandwidth of one accelerator: seconds times that bandwidth, per byte of the message.
"""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array


def _parallel_links(num_links: Array, second_length: Array, third_length: Array) -> Array:
    """Global links between two groups."""
    return np.asarray(num_links * second_length / np.maximum(third_length - 1.0, 1.0))


def _within(group_size: Array, distance: Array, reach: Array) -> Array:
    """Members of a group of ranks within so many places."""
    return np.asarray(np.minimum(np.maximum(reach / distance, 1.0), group_size))


def dragonfly_hops(group_size: Numeric, distance: Numeric, first_length: Numeric, second_length: Numeric) -> Array:
    r"""Routers that a message between the two members farthest apart passes.

    .. math:: h = 1 \ \text{(one router)}, \quad 2 \ \text{(one group)}, \quad 4 \ \text{(two groups)}

    Parameters
    ----------
    group_size : numeric
        Members of the group. [-]
    distance : numeric
        Ranks from one member to the next. [-]
    first_length : numeric
        Accelerators of one router. [-]
    second_length : numeric
        Routers of one group. [-]

    Returns
    -------
    hops : numeric
        Hops. [-]

    References
    ----------
    .. [1] J. Kim, W. J. Dally, S. Scott and D. Abts, "Technology-driven, highly-scalable dragonfly topology",
       ISCA 2008, doi:10.1109/ISCA.2008.19.
    """
    ranks, apart, router = array(group_size), array(distance), array(first_length)
    group = router * array(second_length)
    beyond = np.where(ranks > _within(ranks, apart, router), 1.0, 0.0)
    outside = np.where(ranks > _within(ranks, apart, group), 2.0, 0.0)
    return np.asarray(1.0 + beyond + outside + 0.0 * (ranks + apart + group))


def dragonfly_neighbour_load(
    group_size: Numeric,
    distance: Numeric,
    first_length: Numeric,
    second_length: Numeric,
    third_length: Numeric,
    num_links: Numeric,
) -> Array:
    r"""Load when every rank sends to the next member of its group: a step of a ring, or a transfer.

    With ``f`` ranks whose next member is on another router (in another group), the one link to that router, or the
    links between the two groups, carry all of it; by way of third routers (groups) all links carry it twice.

    .. math:: l = \max\left(1, \min\left(f_r, \frac{2 f_r}{a - 1}\right),
              \min\left(\frac{f_g}{c}, \frac{2 f_g}{a h}\right)\right), \qquad c = \frac{a h}{g - 1}

    Parameters
    ----------
    group_size : numeric
        Members of the group. [-]
    distance : numeric
        Ranks from one member to the next. [-]
    first_length : numeric
        Accelerators p of one router. [-]
    second_length : numeric
        Routers a of one group. [-]
    third_length : numeric
        Groups g of the machine. [-]
    num_links : numeric
        Global links h of one router. [-]

    Returns
    -------
    load : numeric
        Time at the bandwidth of one accelerator per byte that one rank sends. [-]

    References
    ----------
    .. [1] J. Kim, W. J. Dally, S. Scott and D. Abts, "Technology-driven, highly-scalable dragonfly topology",
       ISCA 2008, doi:10.1109/ISCA.2008.19.
    """
    ranks, apart = array(group_size), array(distance)
    router, routers, groups = array(first_length), array(second_length), array(third_length)
    group, links = router * routers, array(num_links)
    flows = np.where(ranks > _within(ranks, apart, router), np.minimum(apart, router), 0.0)
    local = np.minimum(flows, 2.0 * flows / np.maximum(routers - 1.0, 1.0))
    flows = np.where(ranks > _within(ranks, apart, group), np.minimum(apart, group), 0.0)
    far = np.minimum(flows / _parallel_links(links, routers, groups), 2.0 * flows / (links * routers))
    return np.asarray(np.maximum(np.maximum(local, far), 1.0) + 0.0 * (ranks + apart + group + groups + links))


def dragonfly_exchange_load(
    group_size: Numeric,
    distance: Numeric,
    first_length: Numeric,
    second_length: Numeric,
    third_length: Numeric,
    num_links: Numeric,
) -> Array:
    r"""Load of an all-to-all: the most crowded of the accelerator's own link, local and global links.

    .. math:: l = \max\left(\frac{n - 1}{n},\ \frac{p (n_g - n_r)}{n (r - 1)} + \frac{2 p (n - n_g)}{n a},\
              \min\left(\frac{a p (n - n_g)}{n (q - 1) c}, \frac{2 p (n - n_g)}{n h}\right)\right)

    with n_r members of the group on a router, n_g in a group of r of its routers, q groups of it, and c links
    between two groups.

    Parameters
    ----------
    group_size : numeric
        Members n of the group. [-]
    distance : numeric
        Ranks from one member to the next. [-]
    first_length : numeric
        Accelerators p of one router. [-]
    second_length : numeric
        Routers a of one group. [-]
    third_length : numeric
        Groups g of the machine. [-]
    num_links : numeric
        Global links h of one router. [-]

    Returns
    -------
    load : numeric
        Time at the bandwidth of one accelerator per byte that one member sends, itself included. [-]

    References
    ----------
    .. [1] J. Kim, W. J. Dally, S. Scott and D. Abts, "Technology-driven, highly-scalable dragonfly topology",
       ISCA 2008, doi:10.1109/ISCA.2008.19.
    """
    ranks, apart = array(group_size), array(distance)
    router, routers, groups = array(first_length), array(second_length), array(third_length)
    on_router = _within(ranks, apart, router)
    in_group = _within(ranks, apart, router * routers)
    spanned = np.minimum(np.maximum(in_group * apart / router, 1.0), routers)
    near = router * (in_group - on_router) / ranks / np.maximum(spanned - 1.0, 1.0)
    outside, links = (ranks - in_group) / ranks, array(num_links)
    others = np.maximum(ranks / in_group - 1.0, 1.0)
    shortest = router * routers * outside / (others * _parallel_links(links, routers, groups))
    far = np.minimum(shortest, 2.0 * outside * router / links)
    local = near + 2.0 * router * outside / routers
    load = np.maximum(np.maximum((ranks - 1.0) / ranks, local), far)
    return np.asarray(load + 0.0 * (apart + router + routers + groups + links))
