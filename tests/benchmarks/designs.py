"""Chiplet designs of the shipped catalog: a million random ones, closed formulas only."""

from __future__ import annotations

import numpy as np

from benchmarks.engine import processor_seconds
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.devices import evaluate_designs

LARGEST = 650.0
"""Area of the largest die; all are below the reticle. [mm2]"""


def random_designs(catalog: Catalog, count: int, seed: int) -> Table:
    """Modules of one to eight compute dies on any node in any package of the catalog that needs no base dies."""
    random = np.random.default_rng(seed)
    nodes, packages = catalog.tables["process_nodes"].text("node"), catalog.tables["packages"]
    flat = packages.text("package")[packages.text("structure") != "hybrid-bonding"]
    dies = random.integers(1, 9, count).astype(float)
    columns: dict[str, np.ndarray] = {
        "chiplet": np.full(count, "", dtype=object),
        "package": flat[random.integers(0, len(flat), count)],
        "node": nodes[random.integers(0, len(nodes), count)],
        "num_dies": dies,
        "module_area": random.uniform(50.0, LARGEST, count) / dies,
        "link_area_share": np.full(count, 0.1),
        "volume": 10.0 ** random.uniform(4.0, 7.0, count),
    }
    return Table("chiplets", columns)


def costed(catalog: Catalog, count: int, repeats: int) -> tuple[float, float]:
    """Least processor time of designs never seen, and the share of them that has a cost. [s, -]"""
    taken, found = [], []
    for repeat in range(repeats):
        designs = random_designs(catalog, count, seed=2026 + repeat)
        kept: list[Table] = []
        taken.append(processor_seconds(lambda table=designs, into=kept: into.append(evaluate_designs(table, catalog))))
        found.append(float(np.mean(np.isfinite(kept[0]["unit_cost"]))))
    return min(taken), min(found)
