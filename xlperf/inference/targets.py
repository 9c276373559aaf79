"""The largest throughput under targets: most requests in flight whose mean times stay within them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from xlperf.arrays import Array
from xlperf.inference.load import Steady, closed_state, largest_within
from xlperf.inference.loaded import Serving, Stream, loaded_serving, places_of, service_of
from xlperf.inference.pooled import pools_of
from xlperf.workload.serving import DECODING, PREFILL

_MOST_TRIES = 40
_START = 64.0


class _Trial(NamedTuple):
    """What a number of requests gives, (rows,): whether it passes, rate, running requests, and what to try next."""

    good: np.ndarray
    rate: Array
    running: Array
    guess: Array


def _largest_good(most: Array, attempt: Callable[[Array, np.ndarray], _Trial]) -> tuple[Array, Array, Array]:
    """Largest whole number that passes, with its rate and running requests; all below one that passes pass too.

    A try follows the guess of the one before, or halves the logarithm of what is left; from the third on the numbers
    beside it are tried with it, and those that halve the logarithms of what lies below and above. ``attempt`` is
    given numbers and the rows that they are for, which are not found yet; a row may come several times.
    """
    low, high = 0.0 * most, np.floor(most) + 1.0
    rate, running = 0.0 * most, 0.0 * most
    rows = np.flatnonzero(high - low > 1.0)
    tried = np.clip(np.minimum(most, _START), 1.0, np.maximum(high - 1.0, 1.0))[rows, None]
    for turn in range(_MOST_TRIES):
        if not len(rows):
            break
        trial = attempt(tried.reshape(-1), np.repeat(rows, tried.shape[1]))
        good = trial.good.reshape(tried.shape)
        rates, runs, guesses = (values.reshape(tried.shape) for values in trial[1:])
        best = np.argmax(np.where(good, tried, 0.0), axis=1)
        at = np.arange(len(rows)), best
        passes = good[at]
        low[rows] = np.where(passes, tried[at], low[rows])
        rate[rows], running[rows] = np.where(passes, rates[at], rate[rows]), np.where(passes, runs[at], running[rows])
        high[rows] = np.minimum(high[rows], np.where(good | (tried <= low[rows, None]), np.inf, tried).min(axis=1))
        left = high[rows] - low[rows] > 1.0
        rows, guess = rows[left], guesses[left, 0]
        first, last = low[rows], high[rows]
        guess = np.where(np.isnan(guess), np.floor(np.sqrt(np.maximum(first, 1.0) * last)), guess)
        guess = np.clip(guess, first + 1.0, last - 1.0)[:, None]
        if turn > 0:
            below = np.floor(np.sqrt(np.maximum(first[:, None], 1.0) * guess))
            above = np.ceil(np.sqrt(guess * last[:, None]))
            guess = np.concatenate([guess, guess - 1.0, guess + 1.0, below, above], axis=-1)
        tried = np.clip(guess, first[:, None] + 1.0, last[:, None] - 1.0)
    return low, rate, running


def _wanted(stream: Stream) -> tuple[np.ndarray, Array, Array]:
    """Which plans have targets, and both of them, infinite where there is none."""
    first, token = stream.first_target, stream.token_target
    asked = ~(np.isnan(first) & np.isnan(token))
    return asked, np.where(np.isnan(first), np.inf, first), np.where(np.isnan(token), np.inf, token)


def _within(steady: Steady, tokens: Array, first_target: Array, token_target: Array) -> np.ndarray:
    first = steady.first_token + steady.queue_time
    each = np.where(tokens > 0.0, steady.decode_time / np.maximum(tokens, 1.0), 0.0)
    return np.asarray((first <= first_target) & (each <= token_target))


def target_results(serving: Serving, stream: Stream) -> dict[str, Array]:
    """Largest batch of a replica under the targets, and the throughput of all replicas with it.

    Parameters
    ----------
    serving : Serving
        Model, accelerators, plan, calibration, (rows,).
    stream : Stream
        With the targets, (rows,).

    Returns
    -------
    dict of str to Array
        batch_at_targets, 0 where one request misses a target or does not fit, and tokens_per_second_at_targets,
        (rows,); NaN without a target.
    """
    plan = serving.plan
    asked, first, token = _wanted(stream)
    tokens = np.maximum(plan.output_length - 1.0, 0.0)
    places = places_of(serving)

    everyone = np.arange(len(places))
    prompts, prefill = np.full_like(places, np.nan), np.full_like(places, np.nan)

    def attempt(batch: Array, rows: np.ndarray) -> _Trial:
        whole = np.array_equal(rows, everyone)
        some, served = (stream, serving) if whole else (stream.take(rows), serving.take(rows))
        loaded = loaded_serving(served, some, batch)
        together = loaded.plan.prompts_together
        changed, taken = np.flatnonzero(together != prompts[rows]), prefill[rows]
        if len(changed):  # many tries take the same prompts together
            some_changed = loaded if len(changed) == len(rows) else loaded.take(changed)
            taken[changed] = some_changed.times((PREFILL,))[:, 0]
            prompts[rows], prefill[rows] = together, taken
        step = loaded.times((DECODING,))[:, 0]
        service = service_of(loaded, some, taken, step / loaded.plan.tokens_per_step)
        steady = closed_state(service, batch, batch)
        targets = tokens[rows], first[rows], token[rows]
        guess = largest_within(service, places[rows], *targets)
        return _Trial(_within(steady, *targets), steady.rate, batch, guess)

    batch, rate, _ = _largest_good(np.where(asked, places, 0.0), attempt)
    known = places + tokens + plan.prompt_length
    return {
        "batch_at_targets": np.where(asked & ~np.isnan(known), batch, np.nan),
        "tokens_per_second_at_targets": np.where(asked, rate * plan.num_replicas * plan.output_length, np.nan),
    }


def pooled_target_results(decoding: Serving, prefilling: Serving, stream: Stream) -> dict[str, Array]:
    """Largest throughput of two pools under the targets, and the requests that a decoding replica then decodes.

    Parameters
    ----------
    decoding : Serving
        The pool that decodes; its plan counts its own accelerators, (rows,).
    prefilling : Serving
        The pool that prefills; its plan counts its own accelerators, (rows,).
    stream : Stream
        With the targets, (rows,).

    Returns
    -------
    dict of str to Array
        batch_at_targets, 0 where one request misses a target or does not fit, and tokens_per_second_at_targets,
        (rows,); NaN without a target.
    """
    plan, other = decoding.plan, prefilling.plan
    asked, first, token = _wanted(stream)
    tokens = np.maximum(plan.output_length - 1.0, 0.0)
    most = np.maximum(places_of(decoding), 0.0) * plan.num_replicas
    # Requests that are being prefilled stand beside those that are decoded.
    most = most + np.where(
        most > 0.0, np.maximum(other.prefill_tokens / other.own_tokens, 1.0) * other.num_replicas, 0.0
    )

    def attempt(requests: Array, rows: np.ndarray) -> _Trial:
        pools = decoding, prefilling, stream
        if not np.array_equal(rows, np.arange(len(most))):
            pools = decoding.take(rows), prefilling.take(rows), stream.take(rows)
        steady = pools_of(*pools, requests).steady
        good = _within(steady, tokens[rows], first[rows], token[rows])
        return _Trial(good, steady.rate, np.ceil(steady.running), np.nan * requests)

    _, rate, running = _largest_good(np.where(asked, most, 0.0), attempt)
    known = most + tokens + plan.prompt_length
    return {
        "batch_at_targets": np.where(asked & ~np.isnan(known), running, np.nan),
        "tokens_per_second_at_targets": np.where(asked, rate * plan.output_length, np.nan),
    }
