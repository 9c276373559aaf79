"""A whole training run: steps, checkpoints, failures and what is left of the time."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ceil_div


def num_steps(training_tokens: Numeric, global_batch_size: Numeric, sequence_length: Numeric) -> Array:
    r"""Optimizer steps that see so many tokens.

    .. math:: n = \lceil T / (B s) \rceil

    Parameters
    ----------
    training_tokens : numeric
        Tokens T to train on. [token]
    global_batch_size : numeric
        Sequences B per step. [-]
    sequence_length : numeric
        Tokens s of a sequence. [token]

    Returns
    -------
    count : numeric
        Steps. [-]
    """
    return ceil_div(training_tokens, array(global_batch_size) * array(sequence_length))


def checkpoint_size(num_parameters: Numeric, element_size: Numeric, state_size: Numeric) -> Array:
    r"""Bytes of a checkpoint: weights and optimizer state of the whole model, written once.

    .. math:: S = P (e + e_o)

    Parameters
    ----------
    num_parameters : numeric
        Parameters P of the model. [-]
    element_size : numeric
        Bytes e of a weight. [B]
    state_size : numeric
        Bytes e_o of optimizer state per parameter, master weights included. [B]

    Returns
    -------
    size : numeric
        Bytes. [B]

    References
    ----------
    .. [1] A. Eisenman et al., "Check-N-Run: a checkpointing system for training deep learning recommendation models",
       2022, arXiv:2010.08679, section 2.
    """
    return np.asarray(array(num_parameters) * (array(element_size) + array(state_size)))


def time_between_failures(accelerator_mtbf: Numeric, num_accelerators: Numeric) -> Array:
    r"""Mean time between interruptions of a run that stops when any of its accelerators does.

    .. math:: M = m / n

    Parameters
    ----------
    accelerator_mtbf : numeric
        Mean time m between interruptions per accelerator, its share of host and network included. [s]
    num_accelerators : numeric
        Accelerators n of the run. [-]

    Returns
    -------
    time : numeric
        Mean time between interruptions of the run. [s]

    References
    ----------
    .. [1] A. Grattafiori et al., "The Llama 3 herd of models", 2024, arXiv:2407.21783, table 5 (419 unexpected
       interruptions of 16,384 accelerators in 54 days).
    """
    return np.asarray(array(accelerator_mtbf) / array(num_accelerators))


def checkpoint_interval(checkpoint_time: Numeric, failure_interval: Numeric) -> Array:
    r"""Time of useful work between checkpoints that loses least (Young, and Daly's first order).

    .. math:: \tau = \sqrt{2 \delta M}

    Parameters
    ----------
    checkpoint_time : numeric
        Time delta in which a checkpoint is written and the run waits. [s]
    failure_interval : numeric
        Mean time M between interruptions of the run. [s]

    Returns
    -------
    time : numeric
        Interval. [s]

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

    An interruption costs a restart and, on average, half of the time since the last checkpoint.

    Parameters
    ----------
    interval : numeric
        Useful work tau between checkpoints. [s]
    checkpoint_time : numeric
        Time delta of a checkpoint. [s]
    failure_interval : numeric
        Mean time M between interruptions of the run. [s]
    restart_time : numeric
        Time R until the run trains again: detection, replacement, loading. [s]

    Returns
    -------
    share : numeric
        Between 0 and 1. [-]

    References
    ----------
    .. [1] J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
       Computer Systems 22(3), 2006, doi:10.1016/j.future.2004.11.016.
    """
    useful, spent = array(interval), array(interval) + array(checkpoint_time)
    lost = (array(restart_time) + 0.5 * spent) / array(failure_interval)
    return np.asarray(useful / (spent * (1.0 + lost)))


def run_time(steps: Numeric, step_time: Numeric, useful_share: Numeric) -> Array:
    r"""Time from the first step to the last, interruptions included.

    .. math:: t = n t_s / g

    Parameters
    ----------
    steps : numeric
        Optimizer steps n. [-]
    step_time : numeric
        Time t_s of a step. [s]
    useful_share : numeric
        Share g of the time that trains. [-]

    Returns
    -------
    time : numeric
        Time of the run. [s]

    References
    ----------
    .. [1] A. Grattafiori et al., "The Llama 3 herd of models", 2024, arXiv:2407.21783, section 3.3.4 (effective
       training time: useful over elapsed time).
    """
    return np.asarray(array(steps) * array(step_time) / array(useful_share))
