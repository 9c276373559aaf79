"""The inference plans that ``auto`` stands for: each column with what the rules of plans allow in it."""

from __future__ import annotations

import numpy as np

from xlperf.arrays import Array
from xlperf.catalog.schema import column
from xlperf.explore.space import MOST_ACCELERATORS, Mask, Space, divides, divisors, powers_of_two

POOL_PARTS = 16.0
"""Into how many parts accelerators are divided at least where the pools share them out. [-]"""
_STAGE = ("tensor_parallel", "pipeline_parallel", "context_parallel")


def cross_inference(space: Space) -> None:
    """Cross a space of inference plans with every column that is searched but those of the load.

    What the rules forbid is left out, and of values that make the same plan all but the first.

    Parameters
    ----------
    space : Space
        As :func:`xlperf.explore.space.space_of` has it; is changed.

    Raises
    ------
    InputError
        Where there are too many plans.
    """
    space.cross("mode", column("inference", "mode").choices, lambda _: space.all)
    space.cross("num_accelerators", powers_of_two(MOST_ACCELERATORS["inference"]), lambda _: space.all)
    _degrees(space, "")
    space.cross(
        "context_method",
        column("inference", "context_method").choices,
        lambda _: space.all,
        lambda value: space.all if value == "ring" else space.above_one("context_parallel"),
    )
    ways = column("inference", "expert_dispatch").choices
    space.cross("expert_dispatch", ways, lambda value: _sent(space) if value == "nodes" else space.all)
    space.cross("two_batch_overlap", (0.0, 1.0), lambda value: _sent(space) if value else space.all)
    _pools(space)
    for name in ("precision", "kv_precision"):
        space.cross(name, column("inference", name).choices, lambda _: space.all)


def _pooled(space: Space) -> Mask:
    return np.asarray(space.text("mode") == "disaggregated")


def _sent(space: Space) -> Mask:
    """Where tokens are sent to experts by the ranks that hold their attention."""
    return np.asarray((space.shape("num_experts") > 0.0) & (space.known("data_parallel_attention") > 1.0))


def _known(space: Space, pool: str, name: str) -> Array:
    """A degree of a pool; one of the prefill pool that is blank is that of decoding."""
    own = space.known(name)
    if not pool:
        return own
    full = f"{pool}{name}"
    if full in space.asked and full not in space.found:
        return np.ones(len(space))
    given = space.number(full)
    return np.asarray(np.where(np.isnan(given), own, given))


def _ranks(space: Space, pool: str) -> Array:
    """Ranks of a replica by the degrees of a pool that are known so far."""
    return np.asarray(np.prod([_known(space, pool, name) for name in _STAGE], axis=0))


def _fits(space: Space, pool: str, ranks: Array) -> Mask:
    """Where replicas of so many ranks fill the accelerators of a pool."""
    total = space.number("num_accelerators")
    pools = _pooled(space)
    if "prefill_accelerators" in space.asked and "prefill_accelerators" not in space.found:
        other = _ranks(space, "") if pool else 1.0
        return np.where(pools, ranks + other <= total, divides(ranks, total))
    given = space.number("prefill_accelerators")
    prefill = np.where(np.isnan(given), np.floor(0.5 * total), given)
    return np.asarray(divides(ranks, np.where(pools, prefill if pool else total - prefill, total)))


def _degrees(space: Space, pool: str) -> None:
    """Degrees of the decoding pool, or of the only one (``pool`` is blank), or of the prefill pool."""
    total = space.number("num_accelerators")
    sizes = divisors(*total.tolist())
    if _pooled(space).any():  # a pool has another number of accelerators than the deployment
        sizes = sorted({*sizes, *powers_of_two(float(total.max()))})

    def blank() -> Mask:
        return ~_pooled(space) if pool else ~space.all

    def filled(value: float) -> Mask:
        return _fits(space, pool, value * _ranks(space, pool))

    def pipeline(value: float) -> Mask:
        return filled(value) & np.asarray(value <= space.shape("num_layers"))

    def context(value: float) -> Mask:
        enough = 2.0 * value <= np.maximum(space.number("prompt_length"), 2.0)
        return filled(value) & enough

    def attention(value: float) -> Mask:
        return divides(value, _known(space, pool, "tensor_parallel"))

    def experts(value: float) -> Mask:
        number = np.maximum(space.shape("num_experts"), 1.0)
        return divides(value, number) & divides(value, _known(space, pool, "tensor_parallel"))

    space.cross(f"{pool}tensor_parallel", sizes, filled, blank=blank)
    space.cross(f"{pool}pipeline_parallel", sizes, pipeline, blank=blank)
    space.cross(f"{pool}context_parallel", sizes, context, blank=blank)
    space.cross(f"{pool}data_parallel_attention", sizes, attention, blank=blank)
    heads = _known(space, pool, "tensor_parallel") / _known(space, pool, "data_parallel_attention")
    space.keep(divides(heads, space.shape("num_attention_heads")))
    space.cross(f"{pool}expert_parallel", divisors(1.0, *space.shape("num_experts").tolist()), experts, blank=blank)


def _pools(space: Space) -> None:
    """Degrees of the prefill pool and its accelerators."""
    _degrees(space, "prefill_")
    total = space.number("num_accelerators")
    steps = {float(2.0 ** np.floor(np.log2(max(count / POOL_PARTS, 1.0)))): count for count in sorted(set(total))}
    domain = sorted({float(n) for step, count in steps.items() for n in np.arange(step, count, step)})

    def shared(value: float) -> Mask:
        left = space.number("num_accelerators") - value
        return (left > 0.0) & divides(_ranks(space, "prefill_"), value) & divides(_ranks(space, ""), left)

    def coarse(value: float) -> Mask:
        parts = np.maximum(space.number("num_accelerators") / POOL_PARTS, 1.0)
        return divides(2.0 ** np.floor(np.log2(parts)), value)

    space.cross("prefill_accelerators", domain, shared, coarse, blank=lambda: ~_pooled(space))
