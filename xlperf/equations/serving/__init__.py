"""Time and memory of serving a model: a prefill, then decoding step by step with a growing cache.

``results`` has a static batch, which a replica holds whole from the first prompt to the last token; ``continuous``
replicas under a stream of requests, ``pools`` separate pools for prefill and decoding, ``targets`` the largest load
under targets of time. With pipeline parallelism a batch runs as micro-batches that follow each other through the
stages; a decode step takes as long as the longer of a walk through all stages and one turn of all micro-batches on the
slowest stage. All functions are vectorised over plans (rows,); phases are an axis of two: prefill, decode step.
"""

from xlperf.equations.serving.continuous import loaded_results, operating
from xlperf.equations.serving.deployment import Deployment
from xlperf.equations.serving.load import BatchTimes
from xlperf.equations.serving.memory import memory_of
from xlperf.equations.serving.phases import BOUNDS, ServingWork, phase_times, serving_bound, serving_work
from xlperf.equations.serving.pools import pool_state, pooled_results, pools_of
from xlperf.equations.serving.results import serving_results, serving_times
from xlperf.equations.serving.targets import pooled_target_results, target_results

__all__ = [
    "BOUNDS",
    "BatchTimes",
    "Deployment",
    "ServingWork",
    "loaded_results",
    "memory_of",
    "operating",
    "phase_times",
    "pool_state",
    "pooled_results",
    "pooled_target_results",
    "pools_of",
    "serving_bound",
    "serving_results",
    "serving_times",
    "serving_work",
    "target_results",
]
