"""Numbers of random samples that depend on the seed and their position alone: any block draws the same ones."""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array

RANDOM, LATIN_HYPERCUBE = "random", "latin-hypercube"
SAMPLINGS = (RANDOM, LATIN_HYPERCUBE)
_ROUNDS = 6


class Sampling(NamedTuple):
    """How many samples are drawn, how, and from which seed."""

    number: int
    method: str = RANDOM
    seed: int = 0


def _mixed(values: np.ndarray, key: int) -> np.ndarray:
    """Random 64-bit words of positions: the finaliser of SplitMix64.

    G. L. Steele, D. Lea and C. H. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014,
    doi:10.1145/2660193.2660195.
    """
    step = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        words = (values.astype(np.uint64) + np.uint64(1)) * step
        words = words ^ (np.uint64(key % 2**64) * np.uint64(0xD1342543DE82EF95) + step)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
        words = words ^ (words >> np.uint64(31))
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
        return np.asarray(words ^ (words >> np.uint64(31)))


def uniforms(sampling: Sampling, column: int, index: np.ndarray) -> Array:
    """Uniform numbers of a column of samples, above 0 and below 1.

    Of a Latin hypercube each of ``number`` equal parts of the range holds exactly one sample.

    Parameters
    ----------
    sampling : Sampling
        Seed, number and method.
    column : int
        Which column: those of unlike columns are independent.
    index : np.ndarray
        Numbers of the samples, from 0. [-]

    Returns
    -------
    Array
        One for each. [-]

    >>> parts = np.floor(4 * uniforms(Sampling(4, LATIN_HYPERCUBE), 0, np.arange(4)))
    >>> sorted(parts.tolist())
    [0.0, 1.0, 2.0, 3.0]
    """
    key = (sampling.seed << 20) + 8 * column
    share = ((_mixed(index, key) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    if sampling.method == RANDOM:
        return share
    return (_permuted(index, sampling.number, key) + share) / sampling.number


def normal_scores(share: Array) -> Array:
    """Standard normal scores of shares: the inverse of the cumulative distribution. [-]

    >>> normal_scores(np.array([0.5, 0.975])).round(3).tolist()
    [0.0, 1.96]
    """
    return np.array(list(map(NormalDist().inv_cdf, share.tolist())))


def _permuted(index: np.ndarray, number: int, key: int) -> Array:
    """A random permutation of ``number`` positions, without a table of them: a Feistel network that walks its cycles.

    J. Black and P. Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, doi:10.1007/3-540-45760-7_9.
    """
    half = max((max(number - 1, 1).bit_length() + 1) // 2, 1)
    mask = np.uint64(2**half - 1)
    found = index.astype(np.uint64)
    beyond = np.ones(len(found), dtype=bool)
    while beyond.any():
        left, right = found[beyond] >> np.uint64(half), found[beyond] & mask
        for turn in range(_ROUNDS):
            left, right = right, left ^ (_mixed(right, key + 1 + turn) & mask)
        found[beyond] = (left << np.uint64(half)) | right
        beyond = found >= np.uint64(number)
    return found.astype(np.float64)
