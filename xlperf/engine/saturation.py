"""Bands of the first token near saturation: a little less memory or speed makes requests wait that wait for nothing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from xlperf.base.arrays import Array, divide
from xlperf.equations.plan.records import Mode
from xlperf.equations.plan.serving_plan import InferencePlan

_UNSURE_MEMORY = 0.02
"""Share of the memory of an accelerator by which start-up logs of engines differ from predictions. [-]"""


def first_token_ends(
    stated: InferencePlan, plan: InferencePlan, results: Mapping[str, Array], first: Array, time: Array
) -> tuple[Array, Array]:
    r"""Ends of the band of the time to first token of closed loops, (rows,). [s]

    In a closed loop of c requests, each with p places and a cycle T in its place, one waits for
    :math:`T \max(c / p - 1, 0)` (Little's law): places are as unsure as the memory beside the cache. Separate pools
    wait for the slower one: a load rho of the capacity adds :math:`L \max(\rho b - 1, 0)` to a latency L if the pools
    are b times slower. Heuristic, this work.

    ``plan``: the plans with defaults, of the decode pool; ``first``, ``time``: ends of the bands of the first token and
    of the time per token, as ratios, (2, rows).
    """
    ttft, queue = results["ttft"], results["queue_time"]
    usual = ttft * first[0], ttft * first[1]
    closed = np.isnan(stated.request_rate) & (stated.mode != Mode.STATIC) & (results["max_batch_size"] >= 1.0)
    pools = stated.mode == Mode.DISAGGREGATED
    requests = stated.concurrency / np.maximum(plan.num_replicas, 1.0)
    latency = results["latency"]
    # One pool: places with less and with more memory, at the cycle of a request in its place.
    cycle, most = latency - queue, results["max_batch_size"]
    whole = np.where(
        np.isnan(plan.run_requests), 1.0, 1.0 - 0.5 * np.minimum(stated.concurrency / plan.run_requests, 1)
    )
    places = results["places"]
    unsure = _UNSURE_MEMORY * results["memory_capacity"] * plan.data_parallel_attention
    unsure = np.minimum(divide(unsure, results["request_cache"] * most, 0.0), 0.5)

    def waiting(number: Array) -> Array:
        return np.asarray(whole * cycle * np.maximum(requests / np.maximum(number, 1.0) - 1.0, 0.0))

    added, saved = (waiting(places * (1.0 + share)) - waiting(places) for share in (-unsure, unsure))
    # Separate pools: the slower one with the band of its time.
    load = divide(results["tokens_per_second"] / stated.output_length, results["max_request_rate"], 0.0)
    added = np.where(pools, latency * np.maximum(load * time[1] - 1.0, 0.0), added)
    saved = np.where(pools, -latency * np.maximum(1.0 - time[0], 0.0), saved)
    alone = ttft - queue
    low = np.fmin(usual[0], alone * first[0] + np.maximum(queue + saved, 0.0))
    high = np.fmax(usual[1], alone * first[1] + queue + added)
    return np.where(closed, low, usual[0]), np.where(closed, high, usual[1])
