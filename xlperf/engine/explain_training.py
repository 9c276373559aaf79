"""One plan taken apart: its operators with FLOP, bytes, time and what bounds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from xlperf.base.arrays import Array
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.join import architecture_codes, architecture_of, named_rows
from xlperf.engine.operators import Row, operator_bounds, operator_row, operators_table
from xlperf.engine.training import evaluate_training, training_setting
from xlperf.equations.hardware.device import Device
from xlperf.equations.hardware.kernels import vector_time
from xlperf.equations.plan.choices import Recompute
from xlperf.equations.training import Part, Setting, Step, step
from xlperf.equations.training.communication import Collective
from xlperf.equations.training.kernels import LAYER_PLACES, kernel_parts, selected_share


def _bounds(setting: Setting, optimizer_traffic: Array) -> list[np.ndarray]:
    """What bounds the kernels of each part, (rows, operators), and the optimizer, (rows, 1)."""

    def times(other: Callable[[Device], Device]) -> list[Array]:
        changed = replace(setting, device=other(setting.device), wide_device=other(setting.wide_device))
        optimizer = vector_time(changed.device, setting.constants["vector"], optimizer_traffic[:, None], 0.0)
        return [*(part.time for part in kernel_parts(changed)), optimizer]

    return operator_bounds(times)


def _first(values: Array, index: int) -> float:
    row = values[0]
    return float(row[index if len(row) > 1 else 0])


def _numbers(setting: Setting, part: Part, index: int) -> dict[str, float]:
    plan = setting.plan
    if part.gemms is None:
        return {"flop": 0.0, "traffic": _first(part.traffic, index) if part.traffic is not None else np.nan}
    m, n, k, batch = (_first(values, index) for values in part.gemms[1:])
    numbers = {"m": m, "n": n, "k": k, "batch": batch}
    size = float((plan.element_size if part.wide else plan.product_size)[0])
    if part.family == "gemm":
        numbers["flop"] = 2.0 * m * n * k * batch
        numbers["traffic"] = batch * (size * k * (m + n) + float(plan.element_size[0]) * m * n)
        return numbers
    products = 2.0 if part.family == "attention" else 5.0
    groups = float(setting.model.num_query_groups[0] / setting.model.num_attention_heads[0])
    numbers["flop"] = products * m * n * k * batch  # a causal mask leaves half of the pairs
    numbers["traffic"] = products * size * batch * k * (m + n * groups)
    return numbers


def _kernel_rows(setting: Setting, done: Step, bounds: list[np.ndarray]) -> list[Row]:
    plan = setting.plan
    batches = float(plan.num_micro_batches[0])
    mode = float(plan.recompute[0])
    slowdown = float(setting.constants["training_software"]["kernel_slowdown"][0, 0])
    repeated = min(float(plan.recompute_layers[0] / done.counts["attention"][0]), 1.0)
    rows: list[Row] = []
    for part, words in zip(done.parts, bounds, strict=False):
        often = batches * float(done.counts[part.place][0])
        shares = {part.phase: np.ones((1, len(part.names)))}
        if part.phase == "forward" and part.place in LAYER_PLACES:
            if mode == Recompute.FULL:
                shares["recompute"] = repeated * shares["forward"]
            elif mode == Recompute.SELECTIVE:
                selected = selected_share(plan, part)
                shares["recompute"] = 0.0 * shares["forward"] if selected is None else repeated * selected
        for phase, share in shares.items():
            for index, name in enumerate(part.names):
                calls = often * _first(part.calls, index) * _first(share, index)
                if calls > 0:
                    numbers = _numbers(setting, part, index)
                    time = slowdown * _first(part.time, index)
                    row = operator_row(phase, name, part.family, calls, time, **numbers)
                    row["bound"] = words[0, index if words.shape[1] > 1 else 0]
                    rows.append(row)
    return rows


def _communication_rows(setting: Setting, done: Step) -> list[Row]:
    plan, found, counts = setting.plan, done.communication, done.counts
    batches = float(plan.num_micro_batches[0])
    layers, mixtures = float(counts["attention"][0]), float(counts["moe"][0])
    share = min(float(plan.recompute_layers[0]) / layers, 1.0)
    passes = 2.0 + share * float(plan.recompute[0] == Recompute.FULL)
    rows: list[Row] = []

    def add(column: str, *calls: tuple[str, Collective, float]) -> None:
        """Calls of one kind; what is exposed of all of them is shared out by their times."""
        exposed = float(done.results[column][0])
        whole = sum(often * float(collective.time[0]) for _, collective, often in calls)
        for name, collective, often in calls:
            time = float(collective.time[0])
            if often > 0 and time > 0:
                size = float(collective.message_size[0])
                shown = exposed * (time / whole)
                row = operator_row(
                    "communication", name, collective.operation, often, time, shown, traffic=size, flop=0.0
                )
                rows.append({**row, "bound": "network"})

    shared = float(setting.model.shared_ffn_hidden_size[0] > 0)
    blocks = layers + float(counts["mlp"][0]) + mixtures * shared
    mlp_again, moe_again = (share * float(plan.again(name)[0]) for name in ("mlp", "moe"))
    blocks_again = mlp_again * float(counts["mlp"][0]) + moe_again * mixtures * shared
    exchanges = batches * mixtures * (passes + moe_again)
    outside = sum(float(counts[place][0]) for place in ("head", "embedding", "mtp"))
    calls = batches * (passes * blocks + blocks_again + outside)
    split = float(plan.sequence_parallel[0]) > 0
    gathers = calls + batches * blocks  # twice in each backward pass
    if split:
        gather, scatter = (
            ("tensor-parallel gather", found.tensor_gather),
            ("tensor-parallel scatter", found.tensor_scatter),
        )
        add("time_tensor_parallel", (*gather, gathers), (*scatter, calls))
    else:
        add("time_tensor_parallel", ("tensor-parallel reduction", found.tensor_reduce, calls))
    slower = float(setting.constants["experts"]["exchange_slowdown"][0, 0])
    exchange = found.expert_exchange._replace(time=slower * found.expert_exchange.time)
    add(
        "time_expert_parallel",
        ("expert exchange", exchange, 2.0 * exchanges),
        ("expert gather", found.expert_gather, exchanges),
        ("expert scatter", found.expert_scatter, exchanges),
    )
    attended = batches * layers
    turns = float(plan.context_parallel[0]) - 1.0
    add(
        "time_context_parallel",
        ("context exchange of a ring", found.context_step, attended * turns * (passes + 1.0)),
        ("context gathering", found.context_gather, attended * (passes + 1.0)),
        ("context exchange of heads", found.context_exchange, attended * passes),
    )
    transfers = batches * 2.0 * float(plan.virtual_pipeline[0]) * float(plan.pipeline_parallel[0] > 1)
    add("time_pipeline_communication", ("stage transfer", found.stage_transfer, transfers))
    sharded = bool(plan.regathers[0])
    repeats = batches if sharded else 1.0
    whole = float(plan.zero_stage[0]) < 1
    reduce = found.group_reduce if whole else found.gradient_reduce
    expert_reduce = found.expert_group_reduce if whole else found.expert_gradient_reduce
    between = 0.0 if whole else 1.0
    add(
        "time_data_parallel",
        ("gradient reduction", reduce, repeats),
        ("expert gradient reduction", expert_reduce, repeats),
        ("gradient reduction between groups", found.group_reduce, between),
        ("expert gradient reduction between groups", found.expert_group_reduce, between),
        ("weight gathering", found.weight_gather, 2.0 * repeats if sharded else 1.0),
        ("expert weight gathering", found.expert_weight_gather, 2.0 * repeats if sharded else 1.0),
    )
    return rows


def explain_training(plans: Table, catalog: Catalog) -> Table:
    """Operators of the first plan of a table on its critical stage.

    The exposed times add up to the time of the step; what is exposed of the communication of one kind is shared out
    over its calls by their times.

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
    named = named_rows(plans, catalog)
    architecture = architecture_of(int(architecture_codes(named, catalog)[0]))
    setting = training_setting(plans, catalog, named, architecture)[0]
    with np.errstate(all="ignore"):
        done = step(setting)
        bounds = _bounds(setting, done.optimizer_traffic)
    rows = _kernel_rows(setting, done, bounds) + _communication_rows(setting, done)
    times = done.results
    traffic = float(done.optimizer_traffic[0])
    rows.append(
        {
            **operator_row(
                "optimizer", "optimizer", "vector", 1.0, float(done.optimizer_time[0]), traffic=traffic, flop=0.0
            ),
            "bound": bounds[-1][0, 0],
        }
    )
    for name, column in (("pipeline bubble", "time_pipeline_bubble"), ("host time not hidden", "time_overhead")):
        if float(times[column][0]) > 0:
            rows.append({**operator_row("waiting", name, "", 1.0, float(times[column][0])), "bound": "overhead"})
    return operators_table(rows)
