"""Runs of a made-up training stack whose times the engine gives under known constants, and errors of such rows."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from shipped import shipped_measured

from xlperf.calibrate.fit_published import SOURCES
from xlperf.calibrate.fitter import FittedConstant, calibration_table, joined_tables
from xlperf.calibrate.published_errors import Errors, Measured, plans_to_fit
from xlperf.catalog.calibration import ANY
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.engine import evaluate
from xlperf.measurements.comparison import STEP_TIME
from xlperf.measurements.published import Published, published_columns, published_rows

STACK = "somestack"
SOURCE = SOURCES["training"] + " in validation.xlsx"


@cache
def shipped() -> Catalog:
    return load_catalog()


@cache
def measured() -> Measured:
    return shipped_measured()


def constant(name: str, value: float, count: int = 20) -> FittedConstant:
    return FittedConstant("training_software", ANY, ANY, STACK, name, value, "R0-R19", count, 0.1, "", SOURCE)


def with_constants(**values: float) -> Catalog:
    table = calibration_table([constant(name, value) for name, value in values.items()])
    return shipped().with_tables([joined_tables(shipped().tables["calibration"], table)])


def runs(truth: Catalog, number: int = 20, stretched: dict[int, float] | None = None) -> Published:
    """Runs of two models whose measured time is what the engine says under some constants, some of them disturbed."""
    header = list(published_columns()["training"])
    rows = []
    for row in range(number):
        tensor, stages, micro = (1, 2, 4, 8)[row % 4], (1, 2)[row % 2], (1, 2)[row // 10 % 2]
        plan = {
            "row_id": f"R{row}",
            "source_id": "source",
            "group": "dense-megatron",
            "software": STACK,
            "model": "Llama3-8B" if row % 3 else "Llama3-70B",
            "gpu": ("H100-SXM-80GB", "B200-SXM-180GB")[row % 2],
            "n_gpus": "64",
            "tp": f"{tensor}",
            "pp": f"{stages}",
            "dp": f"{64 // tensor // stages}",
            "gbs": "256",
            "mbs": f"{micro}",
            "seq_len": "8192",
            "precision": "bf16",
            "recompute": "none",
            "sp": "true",
            "iter_time_s": "1",
        }
        rows.append([plan.get(name, "") for name in header])
    published = published_rows(header, rows, lambda row, column: f"row {row} {column}")
    plans = plans_to_fit(published, truth)
    times = evaluate(plans.plans, plans.catalog).number("step_time")
    assert len(times) == number and (times > 0.0).all(), plans.reasons
    at = header.index("iter_time_s")
    for row, time in enumerate(times.tolist()):
        rows[row][at] = repr(time * (stretched or {}).get(row, 1.0))
    return published_rows(header, rows, lambda row, column: f"row {row} {column}")


def errors_of(logs: np.ndarray, software: str = STACK) -> Errors:
    count = len(logs)
    return Errors(
        kind="training",
        row_ids=np.array([f"R{row}" for row in range(count)], dtype=object),
        group=np.full(count, "dense", dtype=object),
        quantity=np.full(count, STEP_TIME, dtype=object),
        software=np.full(count, software, dtype=object),
        generation=np.full(count, "hopper", dtype=object),
        family=np.array([f"model {row // 2}/gpu" for row in range(count)], dtype=object),
        model=np.array([f"model {row // 2}" for row in range(count)], dtype=object),
        plan=np.arange(count),
        fitted=logs,
        by_models=logs,
        low=np.full(count, math.nan),
        high=np.full(count, math.nan),
    )
