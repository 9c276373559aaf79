"""The inference plans that ``auto`` stands for: each column with what the rules of plans allow in it."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array
from xlperf.catalog.schema import column
from xlperf.explore.space import Mask, Space, Value, common_divisor, divides, divisors, powers_of_two

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
    space.cross_accelerators()
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


def _open_pools(space: Space) -> Mask:
    """Where pools share the accelerators out in a way that is still to be chosen."""
    chosen = "prefill_accelerators" in space.asked and "prefill_accelerators" not in space.found
    return _pooled(space) & chosen


def _accelerators(space: Space, pool: str) -> Array:
    """Accelerators of a pool; all where there is one, or where the pools are still to be chosen."""
    total = space.number("num_accelerators")
    given = space.number("prefill_accelerators")
    prefill = np.where(np.isnan(given), np.floor(0.5 * total), given)
    return np.where(_pooled(space) & ~_open_pools(space), prefill if pool else total - prefill, total)


def _fits(space: Space, pool: str, ranks: Array) -> Mask:
    """Whether replicas of this many ranks divide the accelerators of a pool; of open pools, whether both have room."""
    total = _accelerators(space, pool)
    other = _ranks(space, "") if pool else 1.0
    return np.where(_open_pools(space), ranks + other <= total, divides(ranks, total))


def _degrees(space: Space, pool: str) -> None:
    """Degrees of the decoding pool, or of the only one (``pool`` is blank), or of the prefill pool."""

    def blank() -> Mask:
        return ~_pooled(space) if pool else ~space.all

    def filled(value: Value) -> Mask:
        return _fits(space, pool, value * _ranks(space, pool))

    def pipeline(value: Value) -> Mask:
        return filled(value) & np.asarray(value <= space.shape("num_layers"))

    def context(value: Value) -> Mask:
        enough = 2.0 * value <= np.maximum(space.number("prompt_length"), 2.0)
        return filled(value) & enough

    def attention(value: Value) -> Mask:
        return divides(value, _known(space, pool, "tensor_parallel"))

    def experts(value: Value) -> Mask:
        number = np.maximum(space.shape("num_experts"), 1.0)
        return divides(value, number) & divides(value, _known(space, pool, "tensor_parallel"))

    def left() -> Array:
        """What is left of the accelerators for a replica; of open pools all of them and, to tell, a half."""
        total = _accelerators(space, pool)
        return np.asarray(np.where(_open_pools(space), total + 0.5, total / _ranks(space, pool)))

    space.cross_listed(f"{pool}tensor_parallel", left(), _sizes, filled, blank)
    space.cross_listed(f"{pool}pipeline_parallel", left(), _sizes, pipeline, blank)
    space.cross_listed(f"{pool}context_parallel", left(), _sizes, context, blank)
    space.cross_listed(
        f"{pool}data_parallel_attention", _known(space, pool, "tensor_parallel"), divisors, attention, blank
    )
    heads = _known(space, pool, "tensor_parallel") / _known(space, pool, "data_parallel_attention")
    space.keep(divides(heads, space.shape("num_attention_heads")))
    number = np.maximum(space.shape("num_experts"), 1.0)
    groups = common_divisor(_known(space, pool, "tensor_parallel"), number)
    space.cross_listed(f"{pool}expert_parallel", groups, divisors, experts, blank)


def _sizes(left: float) -> list[float]:
    """Degrees to try: divisors of what is left of the accelerators; of a half more also all powers of two."""
    whole = float(np.floor(left))
    return divisors(whole) if whole == left else sorted({*divisors(whole), *powers_of_two(whole)})


def _pools(space: Space) -> None:
    """Degrees of the prefill pool and its accelerators."""
    _degrees(space, "prefill_")

    def shared(value: Value) -> Mask:
        left = space.number("num_accelerators") - value
        return (left > 0.0) & divides(_ranks(space, "prefill_"), value) & divides(_ranks(space, ""), left)

    total = space.number("num_accelerators")
    space.cross_listed("prefill_accelerators", total, _shares, shared, lambda: ~_pooled(space))


def _shares(total: float) -> list[float]:
    """Accelerators of the prefill pool: in steps of a power of two, of which there are 16 to 32."""
    step = 2.0 ** np.floor(np.log2(max(total / POOL_PARTS, 1.0)))
    return [float(number) for number in np.arange(step, total, step)]
