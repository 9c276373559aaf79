"""Plans that exceed memory: the part that is too large, and the setting that makes it smaller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from xlperf.base.arrays import Array
from xlperf.engine.notes import gibibytes
from xlperf.equations.plan.records import CrossEntropy, Recompute, Remark
from xlperf.equations.plan.serving_plan import InferencePlan
from xlperf.equations.plan.training_plan import TrainingPlan

_RANKS = (64.0, 32.0, 16.0, 8.0, 4.0, 2.0)
_HALF = 0.5


def _named(parts: Array, cases: list[tuple[int, np.ndarray, str]], lacking: np.ndarray) -> Iterator[Remark]:
    """A remark for each case on the rows whose largest part it is about; earlier cases go first."""
    largest, left = np.argmax(np.nan_to_num(parts), axis=0), lacking.copy()
    for part, rows, words in cases:
        chosen = left & (largest == part) & rows
        yield Remark(chosen, words, (gibibytes(parts[part]),))
        left &= ~chosen


def serving_remedies(plan: InferencePlan, results: Mapping[str, Array], lacking: np.ndarray) -> list[Remark]:
    """Weights that leave no room, or else the larger of cache, activations and memory that the engine sets aside."""
    room = np.minimum(results["memory_usable"], results["memory_capacity"])
    weights, cache = results["memory_weights"], results["memory_kv_cache"]
    beside = cache + results["memory_activations"]
    heavy = lacking & (weights + np.minimum(beside, _HALF * (room - weights)) > room)
    # Ranks that the weights need, in doublings.
    ranks = np.full_like(room, np.nan)
    for times in _RANKS:
        ranks = np.where(weights / times + beside <= room, times, ranks)
    known = ~np.isnan(ranks)
    sizes = gibibytes(weights), ranks
    words = "weights take {} GiB: {} times as many ranks (tensor or pipeline parallel), or a narrower precision"
    alone = "weights take {} GiB, and no number of ranks makes room for the rest: see the batch and the prompt as well"
    parts = np.stack([cache, results["memory_activations"], results["memory_capacity"] - room])
    everywhere = np.ones_like(lacking)
    cases = [
        (0, plan.kv_size > 1.0, "the cache takes {} GiB: kv precision fp8, a smaller batch, shorter prompts"),
        (0, everywhere, "the cache takes {} GiB: a smaller batch, shorter prompts or outputs, more ranks"),
        (1, everywhere, "activations of a prefill pass take {} GiB: fewer prefill tokens"),
        (2, everywhere, "the engine sets {} GiB aside: a larger memory fraction, a smaller max running batch"),
    ]
    return [
        Remark(heavy & known, words, sizes),
        Remark(heavy & ~known, alone, sizes[:1]),
        *_named(parts, cases, lacking & ~heavy),
    ]


def training_remedies(plan: TrainingPlan, results: Mapping[str, Array], lacking: np.ndarray) -> list[Remark]:
    """The largest of weights, gradients, optimizer state, saved activations, and what the loss and one layer add."""
    saved = results["memory_layer_activations"]
    names = ("weights", "gradients", "optimizer")
    parts = np.stack([*(results[f"memory_{name}"] for name in names), saved, results["memory_activations"] - saved])
    everywhere, whole = np.ones_like(lacking), "more tensor or pipeline parallel"
    spread = plan.data_parallel > 1.0
    loss = (plan.cross_entropy != CrossEntropy.CHUNKED) & (plan.cross_entropy != CrossEntropy.FUSED)
    cases = [
        (0, spread & (plan.zero_stage < 3.0), f"weights take {{}} GiB: zero stage 3, {whole}"),
        (0, everywhere, f"weights take {{}} GiB: {whole}"),
        (1, spread & (plan.zero_stage < 2.0), "gradients take {} GiB: gradient precision bf16, zero stage 2"),
        (1, everywhere, f"gradients take {{}} GiB: gradient precision bf16, {whole}"),
        (2, spread & (plan.zero_stage < 1.0), "optimizer state takes {} GiB: zero stage 1"),
        (2, everywhere, "optimizer state takes {} GiB: offload optimizer, or more accelerators to share it"),
        (3, plan.recompute == Recompute.NONE, "saved activations take {} GiB: recompute selective or full"),
        (3, plan.recompute == Recompute.SELECTIVE, "saved activations take {} GiB: recompute full"),
        (3, plan.micro_batch_size > 1.0, "saved activations take {} GiB: a smaller micro batch size"),
        (3, everywhere, "saved activations take {} GiB: more tensor or context parallel"),
        (4, loss, "the loss and one layer take {} GiB: cross entropy fused or chunked, a smaller micro batch size"),
        (4, everywhere, "the loss and one layer take {} GiB: a smaller micro batch size, more context parallel"),
    ]
    return list(_named(parts, cases, lacking))
