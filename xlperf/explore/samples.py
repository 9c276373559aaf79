"""Numbers of random samples that depend on the seed and their position alone: any block draws the same ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, log

RANDOM, LATIN_HYPERCUBE = "random", "latin-hypercube"
_ROUNDS = 6
_MIDDLE = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457, 13731.693765509461125,
     1971.5909503065514427, 133.14166789178437745, 3.387132872796366608),
    (5226.495278852545925, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867, 5394.1960214247511077,
     687.1870074920579083, 42.313330701600911252, 1.0),
)  # fmt: skip
_NEAR = (
    (7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258,
     3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459,
     0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187, 1.0),
)  # fmt: skip
_FAR = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.0012426609473880784386, 0.026532189526576123093,
     0.29656057182850489123, 1.7848265399172913358, 5.4637849111641143699, 6.6579046435011037772),
    (2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5, 7.868691311456132591e-4,
     0.0148753612908506148525, 0.13692988092273580531, 0.59983220655588793769, 1.0),
)  # fmt: skip


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

    M. J. Wichura, "Algorithm AS 241: the percentage points of the normal distribution", Applied Statistics 37(3), 1988,
    doi:10.2307/2347330.

    >>> normal_scores(np.array([0.5, 0.975, 1e-9])).round(3).tolist()
    [0.0, 1.96, -5.998]
    """
    share = np.asarray(share, dtype=float)
    offset = share - 0.5
    found = np.empty(share.shape)
    middle = np.abs(offset) <= 0.425
    found[middle] = offset[middle] * _ratio(_MIDDLE, 0.180625 - offset[middle] ** 2)
    far = np.sqrt(-log(np.minimum(share, 1.0 - share)[~middle]))
    tails = np.where(far <= 5.0, _ratio(_NEAR, far - 1.6), _ratio(_FAR, far - 5.0))
    found[~middle] = np.copysign(tails, offset[~middle])
    return found


def _ratio(powers: tuple[tuple[float, ...], tuple[float, ...]], value: Array) -> Array:
    upper, lower = (np.polyval(part, value) for part in powers)
    return np.asarray(upper / lower)


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
