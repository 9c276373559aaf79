"""Calls of the collectives of a training step: how often each is made on the critical stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array
from xlperf.equations.plan.records import Recompute
from xlperf.equations.training.communication import Collective, Communication
from xlperf.equations.training.setting import Setting


class CollectiveCalls(NamedTuple):
    """Calls of one collective in a step, (rows,): the result that holds their time, a name, one call, and how many."""

    result: str
    name: str
    collective: Collective
    calls: Array


def collective_calls(setting: Setting, found: Communication, counts: Mapping[str, Array]) -> list[CollectiveCalls]:
    """Calls of every collective in a step on its critical stage, those of one result after the other.

    A block reduces over its tensor-parallel ranks once in each pass (with sequence parallelism gathers and scatters,
    and gathers twice backward); experts are sent to and from once in each pass; ZeRO-3 gathers weights in both passes
    of every micro-batch.

    Parameters
    ----------
    setting : Setting
        Model, plan and calibration. [-]
    found : Communication
        One call of each collective, (rows,). [s]
    counts : mapping of str to Array
        Calls of each place per micro-batch on that stage, and its ``layers``, (rows,). [-]

    Returns
    -------
    list of CollectiveCalls
        Also those that a plan does not have, with 0 calls. [-]
    """
    plan, batches = setting.plan, setting.plan.num_micro_batches
    attention, mixtures = counts["attention"], counts["moe"]
    share = np.minimum(plan.recompute_layers / counts["layers"], 1.0)
    passes = 2.0 + share * (plan.recompute == Recompute.FULL)  # forward, backward, and forward again
    mlp_again, moe_again = (share * plan.again(module) for module in ("mlp", "moe"))

    shared = np.where(setting.model.shared_ffn_hidden_size > 0, 1.0, 0.0)
    blocks = attention + counts.get("linear", 0.0) + counts["mlp"] + mixtures * shared
    outside = counts["head"] + counts["embedding"] + counts["mtp"]
    blocks_again = mlp_again * counts["mlp"] + moe_again * mixtures * shared
    reductions = batches * (passes * blocks + blocks_again + outside)
    split = plan.sequence_parallel > 0
    exchanges = batches * mixtures * (passes + moe_again)
    slower = setting.constants["experts"]["exchange_slowdown"][:, 0]
    exchange = found.expert_exchange._replace(time=slower * found.expert_exchange.time)
    attended, turns = batches * attention, plan.context_parallel - 1.0
    transfers = batches * 2.0 * plan.virtual_pipeline * (plan.pipeline_parallel > 1)
    repeats = np.where(plan.regathers | plan.scatters, batches, 1.0)
    gathers = np.where(plan.regathers, 2.0 * repeats, 1.0)
    whole = plan.zero_stage < 1
    sharded, unsharded, between = (
        np.where(whole, 0.0, repeats),
        np.where(whole, repeats, 0.0),
        np.where(whole, 0.0, 1.0),
    )
    listed: dict[str, tuple[tuple[str, Collective, Array], ...]] = {
        "time_tensor_parallel": (
            ("tensor-parallel gather", found.tensor_gather, np.where(split, reductions + batches * blocks, 0.0)),
            ("tensor-parallel scatter", found.tensor_scatter, np.where(split, reductions, 0.0)),
            ("tensor-parallel reduction", found.tensor_reduce, np.where(split, 0.0, reductions)),
        ),
        "time_expert_parallel": (
            ("expert exchange", exchange, 2.0 * exchanges),
            ("expert gather", found.expert_gather, exchanges),
            ("expert scatter", found.expert_scatter, exchanges),
        ),
        "time_context_parallel": (
            ("context exchange of a ring", found.context_step, attended * turns * (passes + 1.0)),
            ("context gathering", found.context_gather, attended * (passes + 1.0)),
            ("context exchange of heads", found.context_exchange, attended * passes),
        ),
        "time_pipeline_communication": (("stage transfer", found.stage_transfer, transfers),),
        "time_data_parallel": (
            ("gradient reduction", found.group_reduce, unsharded),
            ("gradient reduction", found.gradient_reduce, sharded),
            ("expert gradient reduction", found.expert_group_reduce, unsharded),
            ("expert gradient reduction", found.expert_gradient_reduce, sharded),
            ("gradient reduction between groups", found.group_reduce, between),
            ("expert gradient reduction between groups", found.expert_group_reduce, between),
            ("weight gathering", found.weight_gather, gathers),
            ("expert weight gathering", found.expert_weight_gather, gathers),
        ),
    }
    return [CollectiveCalls(result, *one) for result, calls in listed.items() for one in calls]
