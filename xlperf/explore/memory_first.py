"""Which training plans of a search fit, from the smallest micro batch up, without evaluating all that do not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xlperf.base.arrays import Array, combined
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import OWN_RUNS
from xlperf.catalog.table import Table
from xlperf.engine.tables import fitting

LEAST, BLOCK = 4096, 65_536
"""Plans whose memory is evaluated together. [-]"""
ROUNDING = 1e-9
"""Relative excess over the capacity below which rounding could hide a smaller sum. [-]"""
_MICRO_BATCH = "micro_batch_size"
_KERNELS = (_MICRO_BATCH, "tensor_parallel", "context_parallel", "expert_parallel", "expert_tensor_parallel",
            "sequence_parallel", "context_method", "recompute", "zero_stage")  # fmt: skip


def codes_of(plans: Table, names: Sequence[str]) -> np.ndarray:
    """One number for each combination of values in some columns, (rows,): equal for equal combinations."""
    return combined((plans[name] for name in names), len(plans))


def by_kernels(plans: Table, rows: np.ndarray) -> np.ndarray:
    """Rows in an order that puts plans with equal kernels side by side, so that a batch of plans times few."""
    names = [name for name in _KERNELS if name in plans]
    return np.asarray(rows[np.argsort(codes_of(plans.take(rows), names), kind="stable")])


def fits_of(plans: Table, catalog: Catalog) -> tuple[Array, Array]:
    """Whether training plans fit: 1 or 0, NaN if illegal; and the reserved memory of those that fit, (rows,). [-, B]

    Plans that differ only in the micro batch form a group, evaluated from the smallest one up until the first or the
    last stage is beyond the memory: neither needs less for a larger micro batch, since the activations in flight are
    those of a number of micro-batches up to all of them, which have the same tokens together. Stages in between have
    one micro-batch less in flight, and may need less. The largest micro batch may be the only one of a step, whose
    gradients are freed or sharded: of it only weights and optimizer state show that it does not fit.
    """
    fits, reserved = np.zeros((2, len(plans)))
    if len(catalog.tables[OWN_RUNS]):  # which correct the memory of each plan in its own way
        group = np.arange(len(plans))
    else:
        group = codes_of(plans, [name for name in plans.columns if name != _MICRO_BATCH])
    order = np.lexsort((plans.filled(_MICRO_BATCH), group))
    ends = np.flatnonzero(np.append(group[order[1:]] != group[order[:-1]], True))
    place = np.append(0, ends[:-1] + 1)
    while len(place):
        number = np.minimum(max(LEAST // len(place), 1), ends - place + 1)  # of micro batches of each group
        first = np.cumsum(number) - number
        rows = order[np.repeat(place - first, number) + np.arange(number.sum())]
        fits[rows], reserved[rows], ends_of, rests = _memory(plans, catalog, rows)
        beyond, never = (np.logical_or.reduceat(each > 1.0 + ROUNDING, first) for each in (ends_of, rests))
        place = np.maximum(place + number, np.where(beyond, ends, 0))
        more = (place <= ends) & ~never
        place, ends = place[more], ends[more]
    return fits, reserved


def _memory(plans: Table, catalog: Catalog, rows: np.ndarray) -> Array:
    """Whether some plans fit, their reserved memory [B], and over the capacity the memory of the first or last stage,
    and that of weights and optimizer state, (4, rows).
    """
    blocks = []
    for start in range(0, len(rows), BLOCK):
        memory = fitting(plans.take(rows[start : start + BLOCK]), catalog)
        assert memory is not None
        ends = np.fmax(memory["memory_first_stage"], memory["memory_last_stage"])
        state = memory["memory_weights"] + memory["memory_optimizer"]
        shares = ends / memory["memory_capacity"], state / memory["memory_capacity"]
        blocks.append(np.stack([memory["fits"], memory["memory_reserved"], *shares]))
    return np.concatenate(blocks, axis=1)
