"""Training plans made from cells, and what the engine makes of them."""

from __future__ import annotations

import numpy as np

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate

H100, B200 = "H100-SXM-80GB", "B200-SXM-180GB"
NARROW = {"model": "Meta-Llama-3.1-8B", "accelerator": B200, "num_accelerators": 8, "global_batch_size": 8}
NARROW |= {"sequence_length": 4096, "zero_stage": 1, "software": "nemo", "precision": "fp8"}


def plans(*rows: dict[str, object]) -> Table:
    """A table of plans; a cell that a row has not is blank."""
    header = list(dict.fromkeys(name for row in rows for name in row))
    return table_from_rows("training", header, [[row.get(name) for name in header] for row in rows])


def result(catalog: Catalog, row: dict[str, object], name: str = "step_time", **change: object) -> float:
    """One result of a legal plan with some cells changed."""
    outcome = evaluate(plans({**row, **change}), catalog)
    assert not np.isnan(outcome["step_time"][0]), outcome["reason"][0]
    return float(outcome[name][0])


def results(catalog: Catalog, *rows: dict[str, object]) -> dict[str, np.ndarray]:
    """Every result of some plans."""
    return dict(evaluate(plans(*rows), catalog).columns)
