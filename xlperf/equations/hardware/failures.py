"""Failure domains and spares: interruption rate, unavailability, and the number of units down at the same time.

A failure takes its whole domain: one accelerator, a node, a rack, the accelerators behind a switch or a power feed.
Units are what a spare replaces: a node, a rack, a copy of a service. Smaller domains fail inside a unit; larger ones
take several units at once, so that the number of units down is no longer binomial.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ceil_div, divide, exp, log


def domain_failure_rate(num_accelerators: Numeric, domain_size: Numeric, domain_mtbf: Numeric) -> Array:
    r"""Failures per second of all domains of one kind that a job touches; each interrupts it.

    .. math:: \lambda = \frac{1}{M} \left\lceil \frac{n}{s} \right\rceil

    By definition: independent domains with a constant rate each.

    2,000 accelerators touch 28 racks of 72; each fails every 1,000 s.

    >>> float(domain_failure_rate(2000, 72, 1000.0))
    0.028

    Parameters
    ----------
    num_accelerators : Accelerators n of the job. [-]
    domain_size : Accelerators s that one failure takes. [-]
    domain_mtbf : Mean time M between failures of one domain. [s]

    Returns
    -------
    rate : Of all domains together. [1/s]
    """
    return np.asarray(ceil_div(num_accelerators, domain_size) / array(domain_mtbf))


def _binomial(num_units: Array, share: Array, most: int) -> Array:
    """Probabilities of 0 to ``most`` independent units down, on a new last axis, from sums of logarithms."""
    down = np.arange(1.0, most + 1.0)
    units, quiet = num_units[..., None], share[..., None] <= 0.0
    inside = np.where(quiet | (share[..., None] >= 1.0), 0.5, share[..., None])
    left = units - down + 1.0
    ratio = log(np.maximum(left, 1.0)) - log(down) + (log(inside) - log(1.0 - inside))
    first = np.broadcast_to(units * log(1.0 - inside), np.broadcast_shapes(units.shape, inside.shape))
    terms = np.cumsum(np.concatenate([first, np.broadcast_to(ratio, (*first.shape[:-1], most))], axis=-1), axis=-1)
    every = np.concatenate([np.zeros(1), down])
    result = np.where(every <= units, exp(terms), 0.0)
    result = np.where(quiet, every == 0.0, result)
    return np.asarray(np.where(share[..., None] >= 1.0, every == units, result) + 0.0 * (units + share[..., None]))


_LARGE = 2.0**100  # size of a term from which powers are scaled [-]


class WideDomain(NamedTuple):
    """A failure domain of several units: its whole units [-], and the share of the time that it is down [-]."""

    units: float
    unavailability: float


def _sum_of(first: Array, second: Array, most: int) -> Array:
    """Probabilities of the sum of two numbers of units, 0 to ``most``; the second has fewer terms."""
    shape = np.broadcast_shapes(first.shape[:-1], second.shape[:-1])
    result = np.zeros((*shape, most + 1))
    for down in range(min(second.shape[-1], most + 1)):
        length = min(first.shape[-1], most + 1 - down)
        result[..., down : down + length] += first[..., :length] * second[..., down : down + 1]
    return result


def _times(shares: Array, number: Array, most: int) -> Array:
    """Probabilities of the sum of ``number`` independent draws of ``shares``, 0 to ``most``. Powers of a polynomial by
    the recurrence of Euler (Knuth, volume 2, section 4.7), relative to the first term and scaled where they grow large.
    """
    ratio = shares[1:] / shares[0]
    terms = np.arange(1.0, len(shares))
    result = np.zeros((*number.shape, most + 1))
    result[..., 0], offset = 1.0, number * log(shares[0])
    for down in range(1, most + 1):
        far = min(down, len(terms))
        before = result[..., down - far : down][..., ::-1]
        weights = (terms[:far] * (number[..., None] + 1.0) / down - 1.0) * ratio[:far]
        result[..., down] = np.maximum(np.cumsum(weights * before, axis=-1)[..., -1], 0.0)
        large = result[..., down] > _LARGE
        if np.any(large):
            result = np.where(large[..., None], result / _LARGE, result)
            offset = np.where(large, offset + float(log(_LARGE)), offset)
    return np.asarray(result * exp(offset)[..., None])


def down_shares(num_units: Numeric, unit_share: Numeric, domains: Sequence[WideDomain], most: int) -> Array:
    """Share of the time that 0 to ``most`` units are down, on a new last axis; exact up to rounding. ``unit_share``:
    share of the time that a unit is down by itself, one number. ``domains``: from the smallest to the largest, each
    filled one after the other; the last of a kind may be smaller. Without domains it is binomial.
    """
    units, share = array(num_units), array(unit_share)
    if not domains:
        units, share = np.broadcast_arrays(units, share)
        return _binomial(units, share, most)
    wide = domains[-1]
    full = np.floor(units / wide.units)
    whole = _with_outage(np.asarray(wide.units), share, domains, min(most, int(wide.units)))
    rest = _with_outage(units - full * wide.units, share, domains, min(most, int(wide.units)))
    return _sum_of(_times(whole, full, most), rest, most)


def _with_outage(units: Array, share: Array, domains: Sequence[WideDomain], most: int) -> Array:
    """Shares of the units down of one domain, the last of ``domains``, with ``units`` in it; none if it is empty."""
    inside, outage = down_shares(units, share, domains[:-1], most), domains[-1].unavailability
    every = np.arange(most + 1.0) == units[..., None]
    return np.asarray(np.where(units[..., None] > 0.0, (1.0 - outage) * inside + outage * every, every))


def checkpoint_interval(checkpoint_time: Numeric, failure_interval: Numeric) -> Array:
    r"""Time of useful work between checkpoints that loses least (Young, and Daly's first order).

    .. math:: \tau = \sqrt{2 \delta M}

    Checkpoints cost delta / tau of the time, interruptions tau / (2 M): half an interval each. The sum is least where
    its derivative vanishes: delta / tau^2 = 1 / (2 M).

    >>> float(checkpoint_interval(50, 10_000))  # sqrt(2 x 50 x 10000) s
    1000.0

    Parameters
    ----------
    checkpoint_time : Time delta in which a checkpoint is written and the run waits. [s]
    failure_interval : Mean time M between interruptions of the run. [s]

    Returns
    -------
    time : Interval. [s]

    References
    ----------
    .. [1] J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications of the ACM
       17(9), 1974, doi:10.1145/361147.361115.
    .. [2] J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
       Computer Systems 22(3), 2006, doi:10.1016/j.future.2004.11.016.
    """
    return np.asarray(np.sqrt(2.0 * array(checkpoint_time) * array(failure_interval)))


def goodput(interval: Numeric, checkpoint_time: Numeric, failure_interval: Numeric, restart_time: Numeric) -> Array:
    r"""Share of the time of a run that trains: without checkpoints, restarts and work done twice.

    .. math:: g = \frac{\tau}{(\tau + \delta) \left(1 + \frac{R + (\tau + \delta) / 2}{M}\right)}

    Work tau takes tau + delta. In that time (tau + delta) / M interruptions happen, and each costs a restart R and, on
    average, half of an interval (tau + delta) / 2 that is computed again: the time of the work grows by the factor 1 +
    (R + (tau + delta) / 2) / M. Source: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for
    restart dumps", Future Generation Computer Systems 22(3), 2006, doi:10.1016/j.future.2004.11.016.

    1,000 s of work and 50 s of a checkpoint, an interruption every 10,000 s that takes 600 s.

    >>> float(goodput(1000, 50, 10_000, 600))  # 1000 / (1050 x (1 + 1125 / 10000))
    0.8561

    Parameters
    ----------
    interval : Useful work tau between checkpoints. [s]
    checkpoint_time : Time delta of a checkpoint. [s]
    failure_interval : Mean time M between interruptions of the run. [s]
    restart_time : Time R until the run trains again: detection, replacement, loading. [s]

    Returns
    -------
    share : Between 0 and 1. [-]
    """
    useful, spent = array(interval), array(interval) + array(checkpoint_time)
    lost = (array(restart_time) + 0.5 * spent) / array(failure_interval)
    return np.asarray(useful / (spent * (1.0 + lost)))


def asynchronous_interval(snapshot_time: Numeric, write_time: Numeric, failure_interval: Numeric) -> Array:
    r"""Time of useful work between checkpoints that are written while the run trains on.

    .. math:: \tau = \max\left(\sqrt{2 \delta M},\; w - \delta\right)

    Only the snapshot into host memory stops the run; the next one waits until the last is written. Source: J. Mohan et
    al., "CheckFreq: frequent, fine-grained DNN checkpointing", USENIX FAST 2021.

    A snapshot of 2 s that takes 600 s to write; without the wait the best interval would be 200 s.

    >>> float(asynchronous_interval(2.0, 600.0, 10_000.0))
    598.0

    Parameters
    ----------
    snapshot_time : Time delta in which the run waits. [s]
    write_time : Time w until a checkpoint is safe, its snapshot included. [s]
    failure_interval : Mean time M between interruptions of the run. [s]

    Returns
    -------
    time : Interval. [s]
    """
    snapshot = array(snapshot_time)
    return np.asarray(np.maximum(checkpoint_interval(snapshot, failure_interval), array(write_time) - snapshot))


def tiered_goodput(
    interval: Numeric,
    far_interval: Numeric,
    checkpoint_time: Numeric,
    far_checkpoint_time: Numeric,
    failure_rate: Numeric,
    far_failure_rate: Numeric,
    lost_time: Numeric,
    far_lost_time: Numeric,
) -> Array:
    r"""Share of the time that trains with checkpoints in two tiers: near ones that most failures leave, and far ones.

    .. math:: g^{-1} = \left(1 + \frac{\delta_1}{\tau_1} + \frac{\delta_2}{\tau_2}\right)
        \left(1 + \lambda_1 L_1 + \lambda_2 L_2\right)

    By definition, as :func:`goodput`, which is its case of one tier with :math:`\lambda = 1 / M` and
    :math:`L = R + (\tau + \delta) / 2`.

    50 s after every 1,000 s, and an interruption every 10,000 s that costs 1,125 s; no far tier.

    >>> float(tiered_goodput(1000.0, 1000.0, 50.0, 0.0, 1e-4, 0.0, 1125.0, 0.0).round(4))
    0.8561

    Parameters
    ----------
    interval, far_interval : Useful work tau between checkpoints of a tier. [s]
    checkpoint_time, far_checkpoint_time : Time delta in which the run waits for a checkpoint of a tier. [s]
    failure_rate, far_failure_rate : Interruptions lambda that restart from a tier. [1/s]
    lost_time, far_lost_time : Time L that an interruption costs: restart and work done twice. [s]

    Returns
    -------
    share : Between 0 and 1. [-]
    """
    waits = divide(checkpoint_time, interval) + divide(far_checkpoint_time, far_interval)
    lost = array(failure_rate) * array(lost_time) + array(far_failure_rate) * array(far_lost_time)
    return np.asarray(1.0 / ((1.0 + waits) * (1.0 + lost)))


def running_rate(
    units_down: Numeric, num_spares: Numeric, num_replicas: Numeric, replica_units: Numeric, elastic: Numeric
) -> Array:
    r"""Rate of a run over its full rate while some units are down.

    .. math:: r = \frac{1}{D} \max\left(D - \left\lceil \frac{\max(j - k, 0)}{w} \right\rceil, 0\right)

    An elastic run trains on with the replicas that the remaining units can form. A run that waits stops as soon as more
    units are down than there are spares. Source: S. Gandhi et al., "ReCycle: resilient training of large DNNs using
    pipeline adaptation", SOSP 2024, arXiv:2405.14009.

    Four units down and two spares: one of ten replicas of four units is lost, or the run waits.

    >>> running_rate(4.0, 2.0, 10.0, 4.0, [1.0, 0.0]).tolist()
    [0.9, 0.0]

    Parameters
    ----------
    units_down : Units j that are down. [-]
    num_spares : Spare units k. [-]
    num_replicas : Data-parallel replicas D of the run. [-]
    replica_units : Units w of a replica; below 1 if a unit holds several. [-]
    elastic : 1 if the run trains on with fewer replicas, 0 if it waits. [-]

    Returns
    -------
    rate : 0 to 1. [-]
    """
    short = np.maximum(array(units_down) - array(num_spares), 0.0)
    replicas, on = array(num_replicas), array(elastic)
    left = np.maximum(replicas - ceil_div(short, replica_units), 0.0) / replicas
    return np.asarray(np.where(on > 0.0, left, np.where(short > 0.0, 0.0 * left, 1.0 + 0.0 * left)) + 0.0 * on)
