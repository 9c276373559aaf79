r"""What measured runs of a user's own say about predictions: a Student-t process over the log ratio measured/predicted.

The log ratio of a run is a sum of effects: of its source (the user's way of running and measuring), model, accelerator
and software, of the three together, and of the settings near its own, whose effect fades with the distance; what is
left is noise. The shares of the effects, their reach, and the size of the log ratios by quantity are fitted on
published sources left out of the fit of the model (``xlperf calibrate --fit --own-runs``) and are rows of
``catalog/own_runs.csv``.

References: A. Shah, A. G. Wilson and Z. Ghahramani, "Student-t processes as alternatives to Gaussian processes",
AISTATS 2014, arXiv:1402.4306; C. E. Rasmussen and C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT
Press 2006, section 2.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from xlperf.base import resources
from xlperf.base.arrays import Array, exp, log, log2, power, total
from xlperf.catalog.table import Table

QUANTITIES = {
    "step_time": "step time",
    "tpot": "time per token",
    "ttft": "time to first token",
    "memory": "memory",
    "accelerator_power": "power",
}
"""Results that runs correct, with their names."""
TABLE = "catalog/own_runs.csv"
ANY = "any"
"""Quantity of the constants that all quantities share."""
EFFECTS = ("source", "model", "accelerator", "software", "configuration", "settings")
REACHES = {
    "degrees": ("num_accelerators", "tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel",
                "data_parallel_attention"),
    "load": ("micro_batch_size", "global_batch_size", "concurrency", "batch_size", "request_rate"),
    "lengths": ("sequence_length", "prompt_length", "output_length"),
    "choices": ("precision", "recompute", "mode"),
}  # fmt: skip
"""Columns of plans that define the distance between settings, by the constant for its reach."""
_NUMBERS = tuple(name for part in ("degrees", "load", "lengths") for name in REACHES[part])
_CHOICES = REACHES["choices"]
OWN = ("variance", "noise", "freedom", "chance", "common", "width", "growth")


class Effects(NamedTuple):
    """Constants of the process for one quantity.

    - ``shares``: shares of the effects of :data:`EFFECTS` in the variance without noise, which add up to 1 [-].
    - ``reaches``: distances over which the effect of the settings falls by e, by :data:`REACHES` [doublings, choices].
    - ``variance``: of a log ratio without noise; ``noise``: variance of the noise over it [-].
    - ``freedom``: degrees of freedom of the Student-t distribution [-].
    - ``chance``: that the runs of a user have one more effect in common, such as another way of measuring; ``common``:
      its variance over the variance [-].
    - ``width``, ``growth``: half-width of an 80 % band over the scale of the process after one run, and the power of
      the number of runs by which it grows [-].
    """

    shares: tuple[float, ...]
    reaches: tuple[float, ...]
    variance: float
    noise: float
    freedom: float
    chance: float
    common: float
    width: float
    growth: float


@cache
def effects_of(quantity: str) -> Effects:
    """Fitted constants of a quantity.

    >>> effects = effects_of("step_time")
    >>> 0.99 < sum(effects.shares) < 1.01, effects.variance > 0.0
    (True, True)
    """
    known = {(row["quantity"], row["constant"]): float(row["value"]) for row in resources.rows(TABLE)}
    shares, reaches = (tuple(known[ANY, name] for name in names) for names in (EFFECTS, REACHES))
    shares = tuple(share / sum(shares) for share in shares)  # of rounded shares, too
    return Effects(shares, reaches, *(known[quantity, name] for name in OWN))


class Places(NamedTuple):
    """Plans as the process sees them, (rows,): codes of names, and settings."""

    names: np.ndarray  # codes of model, accelerator and software, equal for equal names, (rows, 3)
    numbers: Array  # logarithms of degrees, load and lengths, NaN if unknown, (rows, numbers) [doublings]
    choices: np.ndarray  # (rows, choices)

    def take(self, rows: np.ndarray) -> Places:
        """Select rows."""
        return Places(*(values[rows] for values in self))


def settings_of(plans: Table) -> tuple[Array, np.ndarray]:
    """Numbers and choices of plans for :class:`Places`."""
    known, blank = plans.schema.by_name, np.full(len(plans), np.nan)
    numbers = [log2(plans.filled(name)) if name in known else blank for name in _NUMBERS]
    choices = [plans.filled(name) if name in known else np.full(len(plans), "", dtype=object) for name in _CHOICES]
    return np.stack(numbers, axis=-1), np.stack(choices, axis=-1)


def distances(first: Places, second: Places, reaches: Sequence[float]) -> Array:
    r"""Distances between settings in units of their reach, (first, second).

    .. math:: d = \sum_p \frac{1}{l_p} \sum_{i \in p} |\log_2 x_i - \log_2 y_i|

    with 1 for each different choice, and 0 for numbers that one plan does not state.
    """
    result, start = np.zeros((len(first.names), len(second.names))), 0
    for names, reach in zip(REACHES.values(), reaches, strict=True):
        for column in range(start, start + len(names)) if names is not _CHOICES else ():
            doublings = np.abs(first.numbers[:, column, None] - second.numbers[None, :, column])
            result += np.nan_to_num(doublings) / reach
        start += len(names)
    for column in range(len(_CHOICES)):
        result += (first.choices[:, column, None] != second.choices[None, :, column]) / reaches[-1]
    return result


def covariance(first: Places, second: Places, effects: Effects) -> Array:
    """Covariance of the log ratios of plans without noise, over the variance, (first, second)."""
    source, *named, configuration, settings = effects.shares
    alike = first.names[:, None, :] == second.names[None, :, :]
    result = np.full(alike.shape[:2], source)
    for at, share in enumerate(named):
        result += share * alike[:, :, at]
    near = exp(-distances(first, second, effects.reaches))
    return np.asarray(result + np.logical_and.reduce(alike, axis=-1) * (configuration + settings * near))


class Learned(NamedTuple):
    """What runs say about plans, (rows,)."""

    mean: Array  # of the log ratio measured/predicted
    half_width: Array  # of its 80 % band around the mean
    unknown: Array  # share of the variance that remains; 1: the runs say nothing
    first: Array  # half-width of the band of the process before any run
    cover: Array  # least half-width that covers the runs of equal settings


@dataclass(frozen=True)
class Process:
    """Runs of one quantity, in an order that their names and places do not change."""

    effects: Effects
    places: Places
    ratios: Array  # log of measured over predicted value, (runs,)

    def learned(self, plans: Places) -> Learned:
        r"""Posterior of plans.

        .. math:: \mu = k^T K^{-1} r, \quad s^2 = \frac{\nu + r^T K^{-1} r}{\nu + n} (k_0 - k^T K^{-1} k)

        with :math:`K` the covariance of n runs with their noise, :math:`k` that between runs and a plan; a mixture of
        two such processes, without and with one more effect that all runs have in common.
        """
        effects, runs = self.effects, self.places
        scale, count = float(np.sqrt(effects.variance)), len(self.ratios)
        near, own = covariance(plans, runs, effects), covariance(runs, runs, effects)
        cases = []
        for chance, common in ((1.0 - effects.chance, 0.0), (effects.chance, effects.common)):
            whole = own + (common + effects.noise * np.eye(count))
            reduced, residual, determinant = _eliminated(whole, near + common, self.ratios / scale)
            before = 1.0 + common + effects.noise
            remaining = np.maximum(before - total(reduced * reduced), 1e-12)
            squares = float(total(residual * residual))
            size = (effects.freedom + squares) / (effects.freedom + count)
            unlikely = 0.5 * (effects.freedom + count) * float(log(1.0 + squares / effects.freedom)) + determinant
            cases.append((float(log(chance)) - unlikely, total(reduced * residual), size, remaining, before))
        # Mean and variance of both cases, weighted by how likely they make the runs.
        odds = float(exp(np.clip(cases[1][0] - cases[0][0], -700.0, 700.0)))
        weights = 1.0 / (1.0 + odds), odds / (1.0 + odds)
        mean = weights[0] * cases[0][1] + weights[1] * cases[1][1]
        variance, unknown, first = np.zeros(len(near)), np.zeros(len(near)), 0.0
        for weight, (_, middle, size, remaining, before) in zip(weights, cases, strict=True):
            variance += weight * (size * remaining + (middle - mean) * (middle - mean))
            unknown += weight * (remaining / before)
            first += weight * size * before
        width = scale * effects.width * float(power(np.float64(count), np.float64(effects.growth)))
        # Settings are equal if the covariance is that of a plan with itself.
        gaps = np.abs(self.ratios[None, :] - scale * mean[:, None])
        cover = np.where(near >= 1.0 - 1e-9, gaps, 0.0).max(axis=-1)
        widest = np.full(len(near), width * float(np.sqrt(first)))
        return Learned(scale * mean, width * np.sqrt(variance), unknown, widest, cover)


def _eliminated(own: Array, near: Array, ratios: Array) -> tuple[Array, Array, float]:
    """L^-1 times ``near`` (rows, runs) and ``ratios`` (runs,), with L the Cholesky factor of ``own``; the logarithm of
    the determinant of L.
    """
    count = len(own)
    lines = np.concatenate([own, near.T, ratios[:, None]], axis=1)
    for step in range(count):
        lines[step] /= np.sqrt(lines[step, step])
        lines[step + 1 :] -= lines[step, step + 1 : count, None] * lines[step]
    return lines[:, count:-1].T, lines[:, -1], float(total(log(np.diagonal(lines))))


def band(learned: Learned, ends: Array) -> Array:
    r"""Half-widths of the 80 % band of corrected plans from those of their predictions alone, in logarithms.

    .. math:: h = h_{process} (h_{plan} / h_{first})^u

    with u the share of the variance that the runs leave unknown: a plan about which they say nothing keeps its band.
    """
    with np.errstate(all="ignore"):
        kept = power(ends / learned.first, np.broadcast_to(learned.unknown, ends.shape))
    return np.maximum(np.where(ends > 0.0, learned.half_width * kept, ends), learned.cover * (1.0 + 1e-9))


def log_ratio(measured: Array, predicted: Array, larger: bool) -> Array:
    """Log of measured over predicted time; of rates the inverse."""
    return log(predicted / measured) if larger else log(measured / predicted)
