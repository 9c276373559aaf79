"""The grid of plans that a machine is judged by: every split of its accelerators in powers of two, all evaluated."""

from __future__ import annotations

from itertools import product

import numpy as np

from xlperf.base.errors import Fault, InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table

MOST_TENSOR_PARALLEL = 64
MICRO_BATCHES = (1.0, 2.0, 4.0)
RECOMPUTE = ("none", "selective", "full")
_LEFT_OUT = ("data_parallel", "first_stage_layers", "last_stage_layers", "recompute_layers")
BATCHES = tuple(2.0**power for power in range(10))


def plan_grid(plan: Table, catalog: Catalog) -> Table:
    """All plans of the grid around one plan.

    Training: tensor and pipeline parallel in powers of two (pipelines also of any other length that divides the
    layers, up to 16), expert parallel in powers of two where there are experts, micro batches of 1, 2 and 4,
    recompute none, selective and full, and virtual pipelines of 1 and as in the plan; the global batch is that of the
    plan. Inference: tensor, pipeline and expert parallel alike; where the plan leaves its batch size and concurrency
    blank, batches of 1 to 512 in powers of two. Replicas are what is left, and layers are shared evenly over stages.
    Everything else is as in the plan. Plans that are illegal are left to the evaluation, which says so.

    Parameters
    ----------
    plan : Table
        One training or inference plan.
    catalog : Catalog
        Its model.

    Returns
    -------
    Table
        One plan per row, the same kind.

    Raises
    ------
    InputError
        When the model is not known, a training plan leaves its global batch size blank (step times of different
        batches do not compare), or ``auto`` stands in a column that the grid does not try.
    """
    row = int(catalog.rows("models", plan.text("model"), plan, "model")[0])
    models = catalog.tables["models"]
    layers, experts = models["num_layers"][row], models.number("num_experts", 0.0)[row]
    count = plan.number("num_accelerators")[0]
    training = plan.kind == "training"
    if training and np.isnan(plan.number("global_batch_size")[0]):
        problem = "global batch size must be given: step times of different batches do not compare"
        raise InputError(Fault(plan.place(0, "global_batch_size"), problem))
    tensor = [2.0**power for power in range(12) if 2.0**power <= min(count, MOST_TENSOR_PARALLEL)]
    pipeline = [float(n) for n in range(1, int(min(count, layers)) + 1) if _even(n) or (n <= 16 and layers % n == 0)]
    expert = [2.0**power for power in range(12) if 2.0**power <= experts and experts % 2.0**power == 0] or [1.0]
    open_batch = np.isnan(plan.number("batch_size")[0]) and np.isnan(plan.number("concurrency")[0])
    context = np.nan_to_num(plan.number("context_parallel")[0], nan=1.0)
    splits = [
        (wide, deep)
        for wide, deep in product(tensor, pipeline)
        if wide * deep * context <= count and count % (wide * deep * context) == 0
    ]
    virtual = tuple(dict.fromkeys((1.0, float(np.nan_to_num(plan.number("virtual_pipeline")[0], nan=1.0)))))
    last: tuple[tuple[object, ...], ...] = (MICRO_BATCHES, RECOMPUTE, virtual) if training else ()
    if not training and open_batch:
        last = (BATCHES,)
    points = [(*split, *rest) for split in splits for rest in product(expert, *last)]
    names = ["tensor_parallel", "pipeline_parallel", "expert_parallel"]
    names += ["micro_batch_size", "recompute", "virtual_pipeline"] if training else ["batch_size"] * bool(last)
    tried = {*names, "data_parallel", *(() if training or not last else ("concurrency",))} - {"virtual_pipeline"}
    left = [name for name, mask in plan.auto.items() if mask.any() and name not in tried]
    if left:
        problem = "{} is auto, which this grid does not try: write a value"
        raise InputError([Fault(plan.place(0, name), problem.format(name.replace("_", " "))) for name in left])
    rows = np.zeros(len(points), dtype=np.int64)
    columns = {name: values[rows] for name, values in plan.columns.items() if name not in _LEFT_OUT}
    for number, name in enumerate(names):
        values = [point[number] for point in points]
        columns[name] = np.array(values, dtype=object if name == "recompute" else np.float64)
    return Table(plan.kind, columns, lambda _row, column: plan.place(0, column))


def _even(number: int) -> bool:
    return number & (number - 1) == 0
