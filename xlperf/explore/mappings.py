"""Mappings that ``auto`` stands for: which parallel degrees, batches and schedules are tried for a plan."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array
from xlperf.catalog.schema import column
from xlperf.equations.plan.training_plan import DEFAULT_SEQUENCE_LENGTH, PLACEHOLDERS
from xlperf.explore.space import Mask, Space, Value, common_divisor, divides, divisors, powers_of_two

MOST_MICRO_BATCH = 64.0
"""Largest micro batch that is tried where the global batch is left open. [-]"""
_RANKS = ("tensor_parallel", "context_parallel", "pipeline_parallel", "data_parallel")


def cross_training(space: Space) -> None:
    """Cross a space of training plans with every column that is searched.

    What the rules forbid is left out, and of values that make the same plan all but the first; a schedule gpipe is
    not tried, which takes as long as 1f1b and more memory.

    Parameters
    ----------
    space : Space
        As :func:`xlperf.explore.space.space_of` has it; is changed.

    Raises
    ------
    InputError
        Where there are too many plans.
    """
    space.cross_accelerators()
    _cross_ranks(space)
    _cross_experts(space)
    _cross_context(space)
    _cross_schedules(space)
    for name in ("recompute", "precision"):
        space.cross(name, column("training", name).choices, lambda _: space.all)
    space.cross(
        "zero_stage",
        (0.0, 1.0, 2.0, 3.0),
        lambda stage: space.all if stage != 2.0 else ~space.above_one("pipeline_parallel"),
    )


def equal_chunks(chunks: Value, stages: Array, layers: Array) -> Mask:
    """Where chunks of stages have as many layers each, the embedding and the output projection counted or not."""
    pieces = chunks * stages
    whole = [divides(pieces, layers + more) for more in range(int(PLACEHOLDERS) + 1)]
    return np.asarray((chunks == 1.0) | np.logical_or.reduce(whole))


def _sequence_length(space: Space) -> Array:
    given = space.number("sequence_length")
    longest = np.where(np.isnan(space.longest), DEFAULT_SEQUENCE_LENGTH, space.longest)[space.rows]
    return np.asarray(np.where(np.isnan(given), np.minimum(DEFAULT_SEQUENCE_LENGTH, longest), given))


def _product(space: Space, *without: str) -> Array:
    """Ranks of the degrees that are known so far."""
    degrees = [space.known(name) for name in _RANKS if name not in without]
    return np.asarray(np.prod(degrees, axis=0))


def _replicas(space: Space) -> Array:
    """Copies of the model: as given, else what is left of the accelerators."""
    given = space.number("data_parallel")
    left = space.number("num_accelerators") / _product(space, "data_parallel")
    return np.asarray(np.where(np.isnan(given), left, given))


def _cross_ranks(space: Space) -> None:
    """Tensor, context, pipeline and data parallel: together they are the accelerators."""

    def left() -> Array:
        return np.asarray(space.number("num_accelerators") / _product(space))

    def fits(value: Value) -> Mask:
        return divides(value * _product(space), space.number("num_accelerators"))

    def tensor(value: Value) -> Mask:
        return fits(value) & divides(value, space.shape("num_attention_heads"))

    def context(value: Value) -> Mask:
        return fits(value) & ((value == 1.0) | divides(2.0 * value, _sequence_length(space)))

    def pipeline(value: Value) -> Mask:
        return fits(value) & np.asarray(value <= space.shape("num_layers") + PLACEHOLDERS)

    heads = common_divisor(left(), space.shape("num_attention_heads"))
    space.cross_listed("tensor_parallel", heads, divisors, tensor)
    space.cross_listed("context_parallel", left(), divisors, context)
    space.cross_listed("pipeline_parallel", left(), divisors, pipeline)
    space.cross_listed("data_parallel", left(), divisors, fits)
    given = space.number("data_parallel")
    space.keep(np.isnan(given) | (_product(space) == space.number("num_accelerators")))
    batch = space.number("global_batch_size")
    pieces = _replicas(space) * np.nan_to_num(space.known("micro_batch_size"), nan=1.0)
    shared = np.isnan(batch) | divides(pieces, np.nan_to_num(batch))
    if {"num_accelerators", *_RANKS} & set(space.asked) and shared.any():  # else the evaluation says what is wrong
        space.keep(shared)


def _cross_experts(space: Space) -> None:
    """Expert parallel and expert tensor parallel: within the ranks of a stage."""

    def ranks() -> Array:
        return np.asarray(space.known("tensor_parallel") * space.known("context_parallel") * _replicas(space))

    def within(value: Value, other: str) -> Mask:
        return divides(value * space.known(other), ranks())

    def dealt(value: Value) -> Mask:
        experts = np.maximum(space.shape("num_experts"), 1.0)
        return within(value, "expert_tensor_parallel") & divides(value, experts)

    def width() -> Array:
        return np.where(space.shape("num_experts") > 0.0, space.shape("expert_ffn_hidden_size"), 1.0)

    def split(value: Value) -> Mask:
        return within(value, "expert_parallel") & divides(value, width())

    number = np.maximum(space.shape("num_experts"), 1.0)
    space.cross_listed("expert_parallel", common_divisor(ranks(), number), divisors, dealt)
    space.cross_listed("expert_tensor_parallel", common_divisor(ranks(), width()), divisors, split)


def _cross_context(space: Space) -> None:
    """Sequence parallel, and how the ranks of a context exchange keys and values."""

    def sequence(value: float) -> Mask:
        ranks = space.known("tensor_parallel")
        if value == 1.0:
            return divides(ranks, _sequence_length(space))
        return np.asarray((ranks == 1.0) | (space.known("expert_parallel") == 1.0))

    def method(value: float | str) -> Mask:
        ranks = space.known("context_parallel")
        heads = space.shape("num_query_groups") / space.known("tensor_parallel")
        return np.asarray((ranks == 1.0) | divides(ranks, heads)) if value == "ulysses" else space.all

    space.cross(
        "sequence_parallel",
        (0.0, 1.0),
        sequence,
        lambda value: space.all if value == 0.0 else space.above_one("tensor_parallel"),
    )
    space.cross(
        "context_method",
        column("training", "context_method").choices,
        method,
        lambda value: space.all if value == "ring" else space.above_one("context_parallel"),
    )


def _cross_schedules(space: Space) -> None:
    """Chunks of the stages, micro batch and schedule."""

    def chunks(value: Value) -> Mask:
        stages = space.known("pipeline_parallel")
        return np.asarray(
            (value == 1.0) | ((stages > 1.0) & (value * stages <= space.shape("num_layers") + PLACEHOLDERS))
        )

    def even(value: Value) -> Mask:
        return chunks(value) & equal_chunks(value, space.known("pipeline_parallel"), space.shape("num_layers"))

    stages = space.known("pipeline_parallel")
    deepest = np.where(stages > 1.0, np.floor((space.shape("num_layers") + PLACEHOLDERS) / stages), 1.0)
    space.cross_listed("virtual_pipeline", deepest, _up_to, chunks if space.uneven else even)

    batch = space.number("global_batch_size")
    open_batch = powers_of_two(MOST_MICRO_BATCH) if np.isnan(batch).any() else []
    sizes = sorted({*divisors(*batch.tolist()), *open_batch})

    def micro(value: float) -> Mask:
        whole = space.number("global_batch_size")
        left = np.isnan(whole)
        return np.where(left, value in open_batch, divides(value * _replicas(space), np.nan_to_num(whole)))

    space.cross("micro_batch_size", sizes, micro)
    space.keep(_whole_rounds(space))
    space.cross(
        "pipeline_schedule",
        column("training", "pipeline_schedule").choices,
        lambda value: _scheduled(space, np.full(len(space), value, dtype=object)),
        lambda value: _apart(space, str(value)),
    )
    space.keep(_scheduled(space, space.text("pipeline_schedule")))


def _up_to(most: float) -> list[float]:
    return [float(number) for number in range(1, max(int(most), 1) + 1)]


def _micro_batches(space: Space) -> Array:
    """Micro-batches of a replica; NaN where the global batch is left open."""
    return np.asarray(space.number("global_batch_size") / (_replicas(space) * space.known("micro_batch_size")))


def _whole_rounds(space: Space) -> Mask:
    """Where a replica has whole micro-batches, and interleaved stages take them in whole rounds."""
    count, stages = _micro_batches(space), space.known("pipeline_parallel")
    rounds = ~space.above_one("virtual_pipeline") | divides(stages, np.nan_to_num(count))
    return np.asarray(np.isnan(count) | (divides(1.0, np.nan_to_num(count)) & rounds))


def _scheduled(space: Space, schedule: np.ndarray) -> Mask:
    """Where a schedule goes with the stages and their chunks."""
    stages, chunks = space.known("pipeline_parallel"), space.known("virtual_pipeline")
    enough = ~(_micro_batches(space) < 2.0 * stages)
    both = (chunks == 1.0) & divides(2.0, stages) & enough
    return np.select(
        [schedule == "interleaved", schedule == "dualpipe", schedule == "1f1b"],
        [chunks > 1.0, both, space.all],
        chunks == 1.0,
    )


def _apart(space: Space, schedule: str) -> Mask:
    """Where a schedule differs from those before it: stages in chunks are interleaved, one stage has no order."""
    stages, chunks = space.known("pipeline_parallel"), space.known("virtual_pipeline")
    if schedule == "1f1b":
        return np.asarray(chunks == 1.0)
    return space.all & (stages > 1.0) & (schedule != "gpipe")


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
    _cross_degrees(space, "")
    space.cross(
        "context_method",
        column("inference", "context_method").choices,
        lambda _: space.all,
        lambda value: space.all if value == "ring" else space.above_one("context_parallel"),
    )
    ways = column("inference", "expert_dispatch").choices
    space.cross("expert_dispatch", ways, lambda value: _dispatched(space) if value == "nodes" else space.all)
    space.cross("two_batch_overlap", (0.0, 1.0), lambda value: _dispatched(space) if value else space.all)
    _cross_pools(space)
    for name in ("precision", "kv_precision"):
        space.cross(name, column("inference", name).choices, lambda _: space.all)


def _pooled(space: Space) -> Mask:
    return np.asarray(space.text("mode") == "disaggregated")


def _dispatched(space: Space) -> Mask:
    """Where tokens are sent to experts by the ranks that hold their attention."""
    return np.asarray((space.shape("num_experts") > 0.0) & (space.known("data_parallel_attention") > 1.0))


def _pool_degree(space: Space, pool: str, name: str) -> Array:
    """A degree of a pool; one of the prefill pool that is blank is that of decoding."""
    own = space.known(name)
    if not pool:
        return own
    full = f"{pool}{name}"
    if full in space.asked and full not in space.found:
        return np.ones(len(space))
    given = space.number(full)
    return np.asarray(np.where(np.isnan(given), own, given))


def _replica_ranks(space: Space, pool: str) -> Array:
    """Ranks of a replica by the degrees of a pool that are known so far."""
    return np.asarray(np.prod([_pool_degree(space, pool, name) for name in _STAGE], axis=0))


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


def _divides_pool(space: Space, pool: str, ranks: Array) -> Mask:
    """Whether replicas of this many ranks divide the accelerators of a pool; of open pools, whether both have room."""
    total = _accelerators(space, pool)
    other = _replica_ranks(space, "") if pool else 1.0
    return np.where(_open_pools(space), ranks + other <= total, divides(ranks, total))


def _cross_degrees(space: Space, pool: str) -> None:
    """Degrees of the decoding pool, or of the only one (``pool`` is blank), or of the prefill pool."""

    def blank() -> Mask:
        return ~_pooled(space) if pool else ~space.all

    def filled(value: Value) -> Mask:
        return _divides_pool(space, pool, value * _replica_ranks(space, pool))

    def pipeline(value: Value) -> Mask:
        return filled(value) & np.asarray(value <= space.shape("num_layers"))

    def context(value: Value) -> Mask:
        enough = 2.0 * value <= np.maximum(space.number("prompt_length"), 2.0)
        return filled(value) & enough

    def attention(value: Value) -> Mask:
        return divides(value, _pool_degree(space, pool, "tensor_parallel"))

    def experts(value: Value) -> Mask:
        number = np.maximum(space.shape("num_experts"), 1.0)
        return divides(value, number) & divides(value, _pool_degree(space, pool, "tensor_parallel"))

    def left() -> Array:
        """What is left of the accelerators for a replica; of open pools all of them and, to tell, a half."""
        total = _accelerators(space, pool)
        return np.asarray(np.where(_open_pools(space), total + 0.5, total / _replica_ranks(space, pool)))

    space.cross_listed(f"{pool}tensor_parallel", left(), _sizes, filled, blank)
    space.cross_listed(f"{pool}pipeline_parallel", left(), _sizes, pipeline, blank)
    space.cross_listed(f"{pool}context_parallel", left(), _sizes, context, blank)
    space.cross_listed(
        f"{pool}data_parallel_attention", _pool_degree(space, pool, "tensor_parallel"), divisors, attention, blank
    )
    heads = _pool_degree(space, pool, "tensor_parallel") / _pool_degree(space, pool, "data_parallel_attention")
    space.keep(divides(heads, space.shape("num_attention_heads")))
    number = np.maximum(space.shape("num_experts"), 1.0)
    groups = common_divisor(_pool_degree(space, pool, "tensor_parallel"), number)
    space.cross_listed(f"{pool}expert_parallel", groups, divisors, experts, blank)


def _sizes(left: float) -> list[float]:
    """Degrees to try: divisors of what is left of the accelerators; of a half more also all powers of two."""
    whole = float(np.floor(left))
    return divisors(whole) if whole == left else sorted({*divisors(whole), *powers_of_two(whole)})


def _cross_pools(space: Space) -> None:
    """Degrees of the prefill pool and its accelerators."""
    _cross_degrees(space, "prefill_")

    def shared(value: Value) -> Mask:
        left = space.number("num_accelerators") - value
        return (
            (left > 0.0) & divides(_replica_ranks(space, "prefill_"), value) & divides(_replica_ranks(space, ""), left)
        )

    total = space.number("num_accelerators")
    space.cross_listed("prefill_accelerators", total, _pool_sizes, shared, lambda: ~_pooled(space))


def _pool_sizes(total: float) -> list[float]:
    """Accelerators of the prefill pool: in steps of a power of two, of which there are 16 to 32."""
    step = 2.0 ** np.floor(np.log2(max(total / POOL_PARTS, 1.0)))
    return [float(number) for number in np.arange(step, total, step)]
