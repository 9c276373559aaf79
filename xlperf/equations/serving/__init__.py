"""Time and memory of serving a model: a prefill, then decode steps with a growing KV cache.

``results`` computes a static batch, ``continuous`` replicas under a stream of requests, ``pools`` disaggregated prefill
and decoding, and ``targets`` the largest load under latency targets. Pipeline parallelism splits a batch into
micro-batches: a decode step takes the longer of a walk through all stages and all micro-batches on the slowest stage.
All functions are vectorised over plans (rows,); phases are an axis of two: prefill, decode step.
"""

from xlperf.equations.serving.continuous import loaded_results, operating, serving_results, serving_times
from xlperf.equations.serving.deployment import Deployment
from xlperf.equations.serving.load import BatchTimes
from xlperf.equations.serving.memory import memory_of
from xlperf.equations.serving.phases import BOUNDS, ServingWork, phase_times, serving_bound, serving_work
from xlperf.equations.serving.pools import pool_state, pooled_results, pools_of
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
