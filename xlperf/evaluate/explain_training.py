"""One plan taken apart: its operators with FLOP, bytes, time and what bounds them."""

from __future__ import annotations

import numpy as np

from xlperf.arrays import Array
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.evaluate.operators import Row, operator_row, operators_table
from xlperf.evaluate.training import evaluate_training, training_setting
from xlperf.hardware.kernels import gemm_bound
from xlperf.hardware.roofline import BOUNDS
from xlperf.parallel.plan import RECOMPUTE_FULL, RECOMPUTE_SELECTIVE
from xlperf.training import Setting, Step, step


def _bounds(setting: Setting, family: str, gemms: tuple[Array, ...], wide: bool) -> list[str]:
    m, n, k, batch = gemms
    plan = setting.plan
    size = (plan.element_size if wide else plan.product_size)[:, None]
    device = setting.wide_device if wide else setting.device
    constants = setting.constants["gemm_wide" if wide else "gemm"]
    codes = gemm_bound(device, constants, m, n, k, batch, size, plan.element_size[:, None])
    return [BOUNDS[int(code)] if code == code else "" for code in np.atleast_2d(codes)[0].tolist()]


def _kernel_rows(setting: Setting, done: Step) -> list[Row]:
    plan = setting.plan
    batches = float(plan.num_micro_batches[0])
    often = {
        "layer": batches * float(done.layers[0]),
        "attention": batches * float(done.layers[0]),
        "embedding": batches * float(done.embedding[0]),
        "head": batches * float(done.head[0]),
    }
    mode = float(plan.recompute[0])
    slowdown = float(setting.constants["training_software"]["kernel_slowdown"][0, 0])
    rows: list[Row] = []
    for part in done.parts:
        repeats = [(part.phase, often[part.place])]
        again = (mode == RECOMPUTE_FULL and part.place in ("layer", "attention")) or (
            mode == RECOMPUTE_SELECTIVE and part.place == "attention"
        )
        if part.phase == "forward" and again:
            repeats.append(("recompute", often[part.place]))
        wide = part.place == "head" or part.family != "gemm" or part.names[0].startswith("attention scores")
        bounds: list[str] = []
        if part.family == "gemm" and part.gemms is not None:
            bounds = _bounds(setting, part.family, part.gemms[1:], wide)
        for phase, count in repeats:
            for index, name in enumerate(part.names):
                calls = count * float(np.atleast_2d(part.calls)[0, index])
                if calls == 0:
                    continue
                numbers: dict[str, float] = {}
                if part.gemms is not None:
                    m, n, k, batch = (float(values[0, index]) for values in part.gemms[1:])
                    numbers = {"m": m, "n": n, "k": k, "batch": batch}
                    size = float((plan.element_size if wide else plan.product_size)[0])
                    if part.family == "gemm":
                        numbers["flop"] = 2.0 * m * n * k * batch
                        numbers["traffic"] = batch * (size * k * (m + n) + float(plan.element_size[0]) * m * n)
                    else:
                        products = 2.0 if part.family == "attention" else 5.0
                        groups = float(setting.model.num_query_groups[0] / setting.model.num_attention_heads[0])
                        numbers["flop"] = products * m * n * k * batch  # a causal mask leaves half of the pairs
                        numbers["traffic"] = products * size * batch * k * (m + n * groups)
                elif part.traffic is not None:
                    numbers = {"flop": 0.0, "traffic": float(part.traffic[0, index])}
                row = operator_row(phase, name, part.family, calls, slowdown * float(part.time[0, index]), **numbers)
                row["bound"] = bounds[index] if bounds else ("memory" if part.family == "vector" else "compute")
                rows.append(row)
    return rows


def _communication_rows(setting: Setting, done: Step) -> list[Row]:
    plan, collectives = setting.plan, done.communication
    batches, layers = float(plan.num_micro_batches[0]), float(done.layers[0])
    passes = 3.0 if float(plan.recompute[0]) == RECOMPUTE_FULL else 2.0
    visible = 1.0 - float(setting.constants["training_software"]["tensor_parallel_overlap"][0, 0])
    calls = batches * (2.0 * passes * layers + float(done.head[0]) + float(done.embedding[0]))
    rows: list[Row] = []

    def add(name: str, family: str, calls_: float, time: float, message: float) -> None:
        if calls_ > 0 and time > 0:
            row = operator_row("communication", name, family, calls_, time, traffic=message, flop=0.0)
            rows.append({**row, "bound": "network"})

    tensor = float(collectives.tensor_message[0])
    if float(plan.sequence_parallel[0]) > 0:
        add("tensor-parallel gather", "all_gather", calls, visible * float(collectives.tensor_gather[0]), tensor)
        add("tensor-parallel scatter", "reduce_scatter", calls, visible * float(collectives.tensor_scatter[0]), tensor)
    else:
        add("tensor-parallel reduction", "all_reduce", calls, visible * float(collectives.tensor_reduce[0]), tensor)
    transfers = batches * 2.0 * float(plan.virtual_pipeline[0]) * float(plan.pipeline_parallel[0] > 1)
    message = float(collectives.stage_message[0])
    add("stage transfer", "point_to_point", transfers, float(collectives.stage_transfer[0]), message)
    repeats = batches if float(plan.zero_stage[0]) > 2 else 1.0
    family = "reduce_scatter" if float(plan.zero_stage[0]) > 0 else "all_reduce"
    gradients, weights = float(collectives.gradient_message[0]), float(collectives.weight_message[0])
    add("gradient reduction", family, repeats, float(collectives.gradient_reduce[0]), gradients)
    gathers = 2.0 * repeats if float(plan.zero_stage[0]) > 2 else 1.0
    add("weight gathering", "all_gather", gathers, float(collectives.weight_gather[0]), weights)
    return rows


def explain_training(plans: Table, catalog: Catalog) -> Table:
    """Operators of the first plan of a table on its critical stage.

    Gradient reduction and weight gathering are listed whole, before any overlap; the other times are exposed ones.

    Parameters
    ----------
    plans : Table
        Training plans; the first is explained.
    catalog : Catalog
        What they refer to.

    Returns
    -------
    Table
        Kind ``operators``; no rows for an illegal plan.
    """
    results = evaluate_training(plans, catalog)
    if np.isnan(results["step_time"][0]):
        return operators_table([])
    setting = training_setting(plans, catalog)[0]
    with np.errstate(all="ignore"):
        done = step(setting)
    rows = _kernel_rows(setting, done) + _communication_rows(setting, done)
    times = done.results
    traffic = float(done.optimizer_traffic[0])
    rows.append(
        {
            **operator_row(
                "optimizer", "optimizer", "vector", 1.0, float(done.optimizer_time[0]), traffic=traffic, flop=0.0
            ),
            "bound": "memory",
        }
    )
    for name, column in (("pipeline bubble", "time_pipeline_bubble"), ("host time not hidden", "time_overhead")):
        if float(times[column][0]) > 0:
            rows.append({**operator_row("waiting", name, "", 1.0, float(times[column][0])), "bound": "overhead"})
    return operators_table(rows)
