"""What selective recomputation computes again."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, some
from xlperf.equations.plan.training_plan import TrainingPlan
from xlperf.equations.training.kernels import CORES, LAYER_PLACES
from xlperf.equations.training.setting import Part


def selected_share(plan: TrainingPlan, part: Part) -> Array | None:
    """Share of the operators of a forward part that selective recomputation runs again.

    Parameters
    ----------
    plan : TrainingPlan
        With the modules that it names, (rows,). [-]
    part : Part
        Operators of the forward pass. [-]

    Returns
    -------
    Array, optional
        Shares, (rows, operators), 0 for rows that do not recompute selectively; None where it is 0 for all. [-]
    """
    if part.place in CORES:
        return np.asarray(plan.again("core_attention")[:, None] * np.ones_like(part.time))
    if part.place not in LAYER_PLACES or not some(plan.more_modules):
        return None
    products = plan.again("products")
    block = {"mlp": "mlp", "moe": "moe"}.get(part.place)
    whole = plan.again(block) if block else 0.0 * products
    named: tuple[str, ...] = ("norm", "activation")
    if part.family == "gemm":
        named = ("expansion",)
        everything = np.maximum(whole, 0.5 * products)
        covered = [plan.again("latent")]
    else:
        everything = np.maximum(whole, products)
        covered = [plan.again("norm"), plan.again("activation")]
    share = everything[:, None] * np.ones_like(part.time)
    for ending, asked in zip(named, covered, strict=True):
        index = [position for position, name in enumerate(part.names) if name.endswith(ending)]
        share[:, index] = np.maximum(share[:, index], asked[:, None])
    return share
