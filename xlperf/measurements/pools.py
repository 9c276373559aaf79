"""Settings of separate pools that published rows leave out and the public recipes of their runs state.

``published_pools.csv`` holds the recipes for DeepSeek-R1 of NVIDIA's srt-slurm (github.com/NVIDIA/srt-slurm at
c88ef731, folder recipes), with which the runs of InferenceX were made: workers, degrees and requests in flight that
they are for, and what they set: requests that a decoding replica takes at once (max_batch_size of each rank,
max-running-requests of all), and tokens of a prefill pass of a rank (max_num_tokens; chunked-prefill-size over the
ranks that share it).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from xlperf.base import resources
from xlperf.equations.plan.records import PRECISIONS

SETTINGS = ("max_running_batch", "prefill_tokens")
_SAME = {
    "prompt_length": "prompt_length",
    "output_length": "output_length",
    "decode_ranks": "tensor_parallel",
    "decode_copies": "data_parallel_attention",
}
"""Columns of the recipes that are columns of plans under another name."""


@cache
def _recipes() -> tuple[dict[str, str], ...]:
    return tuple(resources.rows("measurements/published_pools.csv"))


def recipe_settings(plan: Mapping[str, object], workers: tuple[float, float]) -> dict[str, tuple[float, str]]:
    """What the recipes of a plan with separate pools set, and where that is said.

    Recipes that differ in a setting say nothing of it. ``plan``: the columns that its row states. ``workers``: those
    that prefill and those that decode.
    """
    gpu = str(plan["accelerator"]).casefold().split("-")[0]
    stated = (str(plan["software"]), gpu, PRECISIONS[str(plan["precision"])].peak)
    named = ("software", "gpu", "precision")
    counts = dict(zip(("prefill_workers", "decode_workers"), workers, strict=True))
    own = counts | {name: float(str(plan[column])) for name, column in _SAME.items()}
    found = [
        recipe
        for recipe in _recipes()
        if tuple(recipe[name] for name in named) == stated
        and all(float(recipe[name]) == value for name, value in own.items())
        and f"{float(str(plan['concurrency'])):g}" in recipe["concurrencies"].split()
    ]
    values: dict[str, tuple[float, str]] = {}
    for name in SETTINGS:
        said = {recipe[name] for recipe in found}
        if len(said) == 1 and (value := said.pop()):
            values[name] = float(value), f"NVIDIA srt-slurm, recipes/{found[0]['reference']}"
    return values
