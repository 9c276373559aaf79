"""Time and memory of serving a model: a prefill, then decoding step by step with a growing cache.

``results`` has a static batch, which a replica holds whole from the first prompt to the last token; ``loaded`` replicas
under a stream of requests, ``pooled`` separate pools for prefill and decoding, ``targets`` the largest load under
limits of time. With pipeline parallelism a batch runs as micro-batches that follow each other through the stages; a
step of decoding takes as long as the longer of a walk through all stages and one turn of all micro-batches on the
slowest stage. All functions are vectorised over plans (rows,); phases are an axis of two: a pass of the prefill, a step
of decoding.
"""

from xlperf.equations.serving.bound import BOUNDS, serving_bound
from xlperf.equations.serving.halves import HalfPasses
from xlperf.equations.serving.loaded import loaded_results, operating
from xlperf.equations.serving.pooled import pool_state, pooled_results, pools_of
from xlperf.equations.serving.results import serving_memory, serving_results
from xlperf.equations.serving.serving import Serving, Stream
from xlperf.equations.serving.targets import pooled_target_results, target_results
from xlperf.equations.serving.work import ServingWork, phase_times, serving_work

__all__ = [
    "BOUNDS",
    "HalfPasses",
    "Serving",
    "ServingWork",
    "Stream",
    "loaded_results",
    "operating",
    "phase_times",
    "pool_state",
    "pooled_results",
    "pooled_target_results",
    "pools_of",
    "serving_bound",
    "serving_memory",
    "serving_results",
    "serving_work",
    "target_results",
]
