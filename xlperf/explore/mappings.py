"""Mappings that ``auto`` stands for: which parallel degrees, batches and schedules are tried for a plan."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array
from xlperf.catalog.schema import column
from xlperf.equations.plan.training_plan import BLANKS, PLACEHOLDERS, TrainingPlan
from xlperf.explore.space import Mask, NotChosen, PartialPlan, Space, common_divisor, divides, divisors, powers_of_two

MOST_MICRO_BATCH = 64.0
"""Largest micro batch that is tried where the global batch is left open. [-]"""
POOL_PARTS = 16.0
"""Into how many parts accelerators are divided at least where the pools share them out. [-]"""
_RANKS = ("tensor_parallel", "context_parallel", "pipeline_parallel", "data_parallel")
_STAGE = ("tensor_parallel", "pipeline_parallel", "context_parallel")


class PartialTraining(PartialPlan, TrainingPlan):
    """Training plans while their columns are chosen."""

    blanks = BLANKS


def cross_training(space: Space) -> None:
    """Cross a space of training plans with every column that is searched.

    Of values that make the same plan all but the first are left out; a schedule gpipe is not tried, which takes as
    long as 1f1b and more memory.

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
    space.cross(
        "sequence_parallel",
        (0.0, 1.0),
        distinct=lambda plan: (plan.sequence_parallel == 0.0) | (plan.known("tensor_parallel") > 1.0),
    )
    _cross_context_method(space)
    _cross_schedules(space)
    for name in ("recompute", "precision"):
        space.cross(name, column("training", name).choices)
    space.cross("zero_stage", (0.0, 1.0, 2.0, 3.0))


def equal_chunks(chunks: Array, stages: Array, layers: Array) -> Mask:
    """Where chunks of stages have as many layers each, the embedding and the output projection counted or not."""
    whole = [divides(chunks * stages, layers + more) for more in range(int(PLACEHOLDERS) + 1)]
    return np.asarray((chunks == 1.0) | np.logical_or.reduce(whole))


def _known_ranks(plan: PartialPlan) -> Array:
    """Ranks of the degrees that are chosen so far."""
    return np.asarray(np.prod([plan.known(name) for name in _RANKS], axis=0))


def _cross_ranks(space: Space) -> None:
    """Tensor, context, pipeline and data parallel: divisors of what the degrees before them leave."""

    def left() -> Array:
        plan = space.plan()
        return np.asarray(plan.num_accelerators / _known_ranks(plan))

    def fits(plan: PartialTraining) -> Mask:
        return divides(_known_ranks(plan), plan.num_accelerators)

    def has_layers(plan: PartialTraining) -> Mask:
        return fits(plan) & np.asarray(plan.pipeline_parallel <= plan.model.num_layers + PLACEHOLDERS)

    heads = common_divisor(left(), space.plan().model.num_attention_heads)
    space.cross("tensor_parallel", divisors, heads, fits)
    space.cross("context_parallel", divisors, left(), fits)
    space.cross("pipeline_parallel", divisors, left(), has_layers)
    space.cross("data_parallel", divisors, left(), fits)
    if "micro_batch_size" in space.asked:  # replicas of which no micro batch divides the batch
        plan = space.plan()
        batch = plan.filled("global_batch_size")
        space.keep(np.isnan(batch) | divides(plan.data_parallel, np.nan_to_num(batch)))


def _cross_experts(space: Space) -> None:
    """Expert parallel and expert tensor parallel: within the ranks of a stage."""

    def shared(number: Array) -> Array:
        return common_divisor(space.plan().stage_ranks, number)

    experts = space.plan().model.num_experts
    space.cross("expert_parallel", divisors, shared(np.maximum(experts, 1.0)))
    model = space.plan().model
    width = np.where(model.num_experts > 0.0, model.expert_ffn_hidden_size, 1.0)
    space.cross("expert_tensor_parallel", divisors, shared(width))


def _cross_context_method(space: Space) -> None:
    """How the ranks of a sequence exchange keys and values: all alike where there is one."""
    methods = column(space.base.kind, "context_method").choices
    space.cross(
        "context_method",
        methods,
        distinct=lambda plan: (plan.filled("context_method") == methods[0]) | (plan.known("context_parallel") > 1.0),
    )


def _cross_schedules(space: Space) -> None:
    """Chunks of the stages, micro batch and schedule."""

    def even(plan: PartialTraining) -> Mask:
        return equal_chunks(plan.virtual_pipeline, plan.known("pipeline_parallel"), plan.model.num_layers)

    def distinct(plan: PartialTraining) -> Mask:
        """Stages in chunks are interleaved, one stage has no order."""
        schedule, chunks = plan.filled("pipeline_schedule"), plan.known("virtual_pipeline")
        other = (plan.known("pipeline_parallel") > 1.0) & (schedule != "gpipe")
        return np.asarray(np.where(schedule == "1f1b", chunks == 1.0, other))

    plan = space.plan()
    stages = plan.known("pipeline_parallel")
    most = np.where(stages > 1.0, np.floor((plan.model.num_layers + PLACEHOLDERS) / stages), 1.0)
    space.cross("virtual_pipeline", _up_to, most, None if space.uneven else even)
    plan = space.plan()
    of_replica = plan.filled("global_batch_size") / plan.data_parallel
    space.cross("micro_batch_size", _micro_batches, of_replica)
    space.cross("pipeline_schedule", column("training", "pipeline_schedule").choices, distinct=distinct)


def _up_to(most: float) -> list[float]:
    return [float(number) for number in range(1, max(int(most), 1) + 1)]


def _micro_batches(of_replica: float) -> list[float]:
    """Micro batches to try: divisors of the batch of a replica, powers of two where that is left open."""
    return powers_of_two(MOST_MICRO_BATCH) if np.isnan(of_replica) else divisors(of_replica)


class PartialInference(PartialPlan):
    """Inference plans while their columns are chosen."""


def cross_inference(space: Space) -> None:
    """Cross a space of inference plans with every column that is searched but those of the load.

    Of values that make the same plan all but the first are left out.

    Parameters
    ----------
    space : Space
        As :func:`xlperf.explore.space.space_of` has it; is changed.

    Raises
    ------
    InputError
        Where there are too many plans.
    """
    space.cross("mode", column("inference", "mode").choices)
    space.cross_accelerators()
    _cross_degrees(space, "")
    _cross_context_method(space)
    ways = column("inference", "expert_dispatch").choices
    space.cross(
        "expert_dispatch", ways, legal=lambda plan: (plan.filled("expert_dispatch") != "nodes") | _dispatched(plan)
    )
    space.cross("two_batch_overlap", (0.0, 1.0), legal=lambda plan: (plan.two_batch_overlap == 0.0) | _dispatched(plan))
    _cross_degrees(space, "prefill_")
    _cross_pools(space)
    for name in ("precision", "kv_precision"):
        space.cross(name, column("inference", name).choices)


def _pooled(plan: PartialPlan) -> Mask:
    return np.asarray(plan.filled("mode") == "disaggregated")


def _dispatched(plan: PartialPlan) -> Mask:
    """Where tokens are sent to experts by the ranks that hold their attention."""
    return np.asarray((plan.model.num_experts > 0.0) & (plan.known("data_parallel_attention") > 1.0))


def _pool_degree(plan: PartialPlan, pool: str, name: str) -> Array:
    """A degree of a pool; one of the prefill pool that is blank is that of decoding."""
    own = plan.known(name)
    if not pool:
        return own
    try:
        given = plan.filled(f"{pool}{name}")
    except NotChosen:
        return np.ones(len(plan))
    return np.asarray(np.where(np.isnan(given), own, given))


def _replica_ranks(plan: PartialPlan, pool: str) -> Array:
    """Ranks of a replica by the degrees of a pool that are known so far."""
    return np.asarray(np.prod([_pool_degree(plan, pool, name) for name in _STAGE], axis=0))


def _open_pools(plan: PartialPlan) -> Mask:
    """Where pools share the accelerators out in a way that is still to be chosen."""
    try:
        plan.filled("prefill_accelerators")
    except NotChosen:
        return _pooled(plan)
    return np.zeros(len(plan), dtype=bool)


def _pool_accelerators(plan: PartialPlan, pool: str) -> Array:
    """Accelerators of a pool; all where there is one, or where the pools are still to be chosen."""
    total = plan.filled("num_accelerators")
    split = _pooled(plan) & ~_open_pools(plan)
    if not split.any():
        return total
    given = plan.filled("prefill_accelerators")
    prefill = np.where(np.isnan(given), np.floor(0.5 * total), given)
    return np.where(split, prefill if pool else total - prefill, total)


def _cross_degrees(space: Space, pool: str) -> None:
    """Degrees of the decoding pool, or of the only one (``pool`` is blank), or of the prefill pool."""
    tensor, pipeline, context = (f"{pool}{name}" for name in _STAGE)

    def fits(plan: PartialPlan) -> Mask:
        """Whether replicas divide the accelerators of their pool; of open pools, whether both have room."""
        ranks, total = _replica_ranks(plan, pool), _pool_accelerators(plan, pool)
        other = _replica_ranks(plan, "") if pool else 1.0
        return np.where(_open_pools(plan), ranks + other <= total, divides(ranks, total))

    def has_layers(plan: PartialPlan) -> Mask:
        return fits(plan) & np.asarray(plan.filled(pipeline) <= plan.model.num_layers)

    def has_tokens(plan: PartialPlan) -> Mask:
        enough = 2.0 * plan.filled(context) <= np.maximum(plan.filled("prompt_length"), 2.0)
        return np.asarray(fits(plan) & enough)

    def shares_heads(plan: PartialPlan) -> Mask:
        return divides(plan.filled(f"{pool}data_parallel_attention"), _pool_degree(plan, pool, "tensor_parallel"))

    def shares_experts(plan: PartialPlan) -> Mask:
        degree, experts = plan.filled(f"{pool}expert_parallel"), np.maximum(plan.model.num_experts, 1.0)
        return divides(degree, experts) & divides(degree, _pool_degree(plan, pool, "tensor_parallel"))

    def blank() -> Mask | None:
        return ~_pooled(space.plan()) if pool else None

    def left() -> Array:
        """What is left of the accelerators for a replica; of open pools all of them and, to tell, a half."""
        plan = space.plan()
        total = _pool_accelerators(plan, pool)
        return np.asarray(np.where(_open_pools(plan), total + 0.5, total / _replica_ranks(plan, pool)))

    space.cross(tensor, _sizes, left(), fits, blank=blank())
    space.cross(pipeline, _sizes, left(), has_layers, blank=blank())
    space.cross(context, _sizes, left(), has_tokens, blank=blank())
    ranks = _pool_degree(space.plan(), pool, "tensor_parallel")
    space.cross(f"{pool}data_parallel_attention", divisors, ranks, shares_heads, blank=blank())
    plan = space.plan()
    ranks = _pool_degree(plan, pool, "tensor_parallel")
    heads = ranks / _pool_degree(plan, pool, "data_parallel_attention")
    space.keep(divides(heads, plan.model.num_attention_heads))
    plan = space.plan()
    groups = common_divisor(_pool_degree(plan, pool, "tensor_parallel"), np.maximum(plan.model.num_experts, 1.0))
    space.cross(f"{pool}expert_parallel", divisors, groups, shares_experts, blank=blank())


def _sizes(left: float) -> list[float]:
    """Degrees to try: divisors of what is left of the accelerators; of a half more also all powers of two."""
    whole = float(np.floor(left))
    return divisors(whole) if whole == left else sorted({*divisors(whole), *powers_of_two(whole)})


def _cross_pools(space: Space) -> None:
    """Accelerators of the prefill pool: whole replicas of both pools."""

    def shared(plan: PartialPlan) -> Mask:
        prefill = plan.filled("prefill_accelerators")
        decode = plan.filled("num_accelerators") - prefill
        ranks = [_replica_ranks(plan, pool) for pool in ("prefill_", "")]
        return np.asarray(decode > 0.0) & divides(ranks[0], prefill) & divides(ranks[1], decode)

    plan = space.plan()
    total = plan.filled("num_accelerators")
    space.cross("prefill_accelerators", _pool_sizes, total, shared, blank=~_pooled(plan))


def _pool_sizes(total: float) -> list[float]:
    """Accelerators of the prefill pool: in steps of a power of two, of which there are 16 to 32."""
    step = 2.0 ** np.floor(np.log2(max(total / POOL_PARTS, 1.0)))
    return [float(number) for number in np.arange(step, total, step)]
