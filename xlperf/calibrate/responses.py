"""How the errors of published rows answer to constants, sampled once: fits to rows that cost no more evaluations.

The response of every row to every constant is taken at a few values of that constant, one constant at a time, and
taken to be additive in the logarithm of the time. A fit, and each of the refits without a model, is then a search on
sums of these responses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from xlperf.base.arrays import Array
from xlperf.calibrate.fitter import Parameter, Problem
from xlperf.calibrate.published import PublishedPlans
from xlperf.calibrate.published_errors import Errors, colours_of, published_problem, users_of
from xlperf.catalog.calibration import declared_constants

_FACTORS = (0.5, 0.75, 1.0, 1.35, 2.0)
_STEPS = (-0.4, -0.2, 0.0, 0.2, 0.4)


@dataclass(frozen=True)
class Responses:
    """Constants of published rows, and how the errors of the rows answer to them.

    ``group`` says which entries look each of them up, ``users`` which of those answer to it, (constants, entries);
    ``change`` is the change of their errors at each of ``points``, (constants, points, entries), ``now`` the
    errors at the first values.
    """

    parameters: list[Parameter]
    group: np.ndarray
    users: np.ndarray
    points: Array
    change: Array
    now: Array

    def of(self, entries: np.ndarray) -> Responses:
        """The responses of some of the entries."""
        group, users = self.group[:, entries], self.users[:, entries]
        return replace(self, group=group, users=users, change=self.change[:, :, entries], now=self.now[entries])

    def problem(self, entries: Errors, chosen: np.ndarray) -> Problem:
        """The sum of the responses as residuals of some entries."""
        which = [np.flatnonzero(users) for users in self.users]
        changes = [change[:, users] for change, users in zip(self.change, which, strict=True)]

        def residuals(trials: Array) -> Array:
            found = np.repeat(self.now[None, :], len(trials), axis=0)
            for values, errors in zip(trials, found, strict=True):
                for value, points, users, change in zip(values, self.points, which, changes, strict=True):
                    below = min(max(int(np.searchsorted(points, value, side="right")) - 1, 0), len(points) - 2)
                    width = points[below + 1] - points[below]
                    share = (value - points[below]) / width if width > 0.0 else 0.0
                    errors[users] += (1.0 - share) * change[below] + share * change[below + 1]
            return found

        return Problem(residuals, entries.weights(chosen), self.users, colours_of(self.parameters))


def trial_values(family: str, name: str, value: float) -> Array:
    """Values that the response of rows to a constant is sampled at, its own in the middle.

    ``family``, ``name``: the constant. ``value``: what was fitted, in the declared unit. Returns within the declared
    bounds, rising.
    """
    declared = declared_constants()[family][name]
    if declared.low == 0.0 and declared.high <= 1.0 and not name.endswith("_time"):
        points = [value + step for step in _STEPS]
    elif value == 0.0:
        unit = declared.default or 0.1 * declared.high
        points = [0.0, *(unit * factor for factor in _FACTORS[:4])]
    else:
        points = [value * factor for factor in _FACTORS]
    return np.asarray(np.clip(np.array(points), declared.low, declared.high))


def responses_of(
    plans: PublishedPlans, entries: Errors, parameters: Sequence[Parameter], say: Callable[[str], None] | None = None
) -> Responses:
    """Errors of published rows around the first values of constants.

    ``plans``: rows as plans, with the calibration that the parameters replace rows of. ``parameters``: constants with
    their first values; searched between the first and the last value that is sampled. ``say``: called with a word
    before each evaluation of all rows.
    """
    points = np.array([_within(one) for one in parameters]).reshape(-1, len(_FACTORS))
    trials = [
        replace(one, low=float(low), high=float(high))
        for one, low, high in zip(parameters, points[:, 0], points[:, -1], strict=True)
    ]
    colours, users = colours_of(parameters), users_of(plans, entries, parameters)
    problem = published_problem(plans, entries, parameters, np.full(len(entries), True))
    first = np.array([one.first for one in parameters])
    now = problem.residuals(first[None, :])[0]
    change = np.zeros((*points.shape, len(entries)))
    for colour in dict.fromkeys(colours.tolist()):
        group = np.flatnonzero(colours == colour)
        for point in range(points.shape[1]):
            if say is not None:
                say(f"{parameters[group[0]].family} {parameters[group[0]].constant}")
            trial = np.array(first)
            trial[group] = points[group, point]
            change[group, point] = np.nan_to_num(problem.residuals(np.stack([first, trial]))[1] - now) * users[group]
    return Responses(trials, users, users & (np.abs(change).max(axis=1) > 0.0), points, change, now)


def _within(one: Parameter) -> Array:
    return np.asarray(np.clip(trial_values(one.family, one.constant, one.first), *one.bounds))
