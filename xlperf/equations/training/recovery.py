"""Recovery of a training run: checkpoints, restarts, spares, and the share of the time that trains."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ceil_div, divide


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
    average, half of an interval (tau + delta) / 2 that is computed again: the time of the work grows by the factor
    1 + (R + (tau + delta) / 2) / M.

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

    References
    ----------
    .. [1] J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
       Computer Systems 22(3), 2006, doi:10.1016/j.future.2004.11.016.
    """
    useful, spent = array(interval), array(interval) + array(checkpoint_time)
    lost = (array(restart_time) + 0.5 * spent) / array(failure_interval)
    return np.asarray(useful / (spent * (1.0 + lost)))


def asynchronous_interval(snapshot_time: Numeric, write_time: Numeric, failure_interval: Numeric) -> Array:
    r"""Time of useful work between checkpoints that are written while the run trains on.

    .. math:: \tau = \max\left(\sqrt{2 \delta M},\; w - \delta\right)

    Only the snapshot into host memory stops the run; the next one waits until the last is written.

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

    References
    ----------
    .. [1] J. Mohan et al., "CheckFreq: frequent, fine-grained DNN checkpointing", USENIX FAST 2021.
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
    units are down than there are spares.

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

    References
    ----------
    .. [1] S. Gandhi et al., "ReCycle: resilient training of large DNNs using pipeline adaptation", SOSP 2024,
       arXiv:2405.14009.
    """
    short = np.maximum(array(units_down) - array(num_spares), 0.0)
    replicas, on = array(num_replicas), array(elastic)
    left = np.maximum(replicas - ceil_div(short, replica_units), 0.0) / replicas
    return np.asarray(np.where(on > 0.0, left, np.where(short > 0.0, 0.0 * left, 1.0 + 0.0 * left)) + 0.0 * on)
