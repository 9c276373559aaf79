"""Optional settings of the software that make a plan faster, switched on where it starts them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from xlperf.catalog.catalog import Catalog
from xlperf.engine import evaluate
from xlperf.explore.fleet_plans import with_columns
from xlperf.explore.mappings import refused_reasons
from xlperf.explore.objectives import Search
from xlperf.interop.launch_stacks import flags
from xlperf.interop.software import stack_of_software

SWITCHES: Mapping[str, Mapping[str, float | str]] = {
    "training": {"compiled": 1.0, "attention": "flash", "tensor_overlap": "all", "cross_entropy": "fused",
                 "data_overlap": 1.0, "pipeline_overlap": 1.0, "graphs": "layers"},
    "inference": {"graphs": 1.0},
}  # fmt: skip
"""Optional settings of the software, switched on."""
OBJECTIVE = {"training": "step_time", "inference": "latency"}
"""Result that they make smaller, by kind of plan: at fixed requests in flight, latency determines throughput."""
WORTH = 0.005  # least relative speedup for which a setting is switched on [-]


def flagged(software: str, wanted: Mapping[str, str]) -> dict[str, str]:
    """The settings, by column, that the stack of a software has a flag for."""
    stack = stack_of_software(software)
    known = {(flag.column, flag.value) for flag in flags(stack)} if stack else set()
    return {name: word for name, word in wanted.items() if (name, word) in known}


def switched(searched: Search, catalog: Catalog, switches: Mapping[str, float | str]) -> Search:
    """The best plan with the settings that make it faster, fit, and that its software starts."""
    best = searched.taken(np.zeros(1, dtype=np.int64))
    name = OBJECTIVE[best.plans.kind]
    for column, value in switches.items():
        if best.plans.filled(column)[0] == value:
            continue
        plan = with_columns(best.plans, **{column: value})
        results = evaluate(plan, catalog)
        gain = best.results.number(name)[0] / results.number(name)[0] - 1.0
        if gain > WORTH and results.number("fits")[0] == 1.0 and not refused_reasons(plan, catalog)[0]:
            best = replace(best, plans=plan, results=results)
    return best
