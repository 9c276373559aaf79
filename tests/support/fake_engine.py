"""An engine and a catalog that take no time: as much of both as the functions of cells need."""

from __future__ import annotations

import numpy as np

from xlperf.base.errors import Fault, InputError
from xlperf.catalog.spellings import Orphans
from xlperf.catalog.table import Table


class FakeCatalog:
    """As much of a catalog as the engine below needs: the bandwidth of its accelerator."""

    orphans = Orphans()

    def __init__(self, bandwidth):
        self.bandwidth = bandwidth

    def with_tables(self, tables):
        for table in tables:
            if table.kind == "accelerators":
                return FakeCatalog(float(table["memory_bandwidth"][0]))
        return self

    def in_case(self, case):
        assert case == "base"
        return self


class FakeEngine:
    """Step time = 1e12 / bandwidth / accelerators; 7 accelerators are illegal, model "?" is unknown."""

    def __init__(self):
        self.evaluated = []

    def installed(self):
        return FakeCatalog(1e12)

    def evaluate(self, plans, catalog, results=None):
        self.evaluated.append(len(plans))
        for row, model in enumerate(plans["model"]):
            if model == "?":
                raise InputError(Fault(plans.place(row, "model"), 'unknown model "?"'))
        count = plans["num_accelerators"]
        illegal = count == 7
        reason = np.where(illegal, "7 is odd", "").astype(object)
        if plans.kind == "training":
            columns = {
                "step_time": np.where(illegal, np.nan, 1e12 / catalog.bandwidth / count),
                "memory": np.where(illegal, np.nan, 2.0**30 * count),
                "fits": np.where(illegal, np.nan, count < 100),
            }
        else:
            columns = {
                "ttft": count / 1000.0,
                "cost_per_million_output_tokens_all_in": count * 1e-6,
                "bound": np.full(len(plans), "memory", dtype=object),
            }
        return Table(f"{plans.kind}_results", {**columns, "reason": reason})

    def explain(self, plans, catalog):
        names = np.array(["qkv", "norm"], dtype=object)
        return Table("operators", {"operator": names, "k": np.array([4.0, np.nan]), "time": np.array([2e-6, 3e-6])})
