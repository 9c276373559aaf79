"""The operators of one plan with FLOP, bytes, time and bound: the table that ``explain`` gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, added
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import OWN_RUNS, table_schema
from xlperf.catalog.table import Table
from xlperf.engine.inference import evaluate_inference
from xlperf.engine.join import architecture_codes, named_rows
from xlperf.engine.learning import without_own_runs
from xlperf.engine.models import architecture_of
from xlperf.engine.served import served_plans
from xlperf.engine.software import with_software_defaults
from xlperf.engine.training import evaluate_training, training_setting
from xlperf.equations.hardware.roofline import (
    CORE,
    RESOURCES,
    WITHOUT_LIMIT,
    Faster,
    ideal_constants,
    ideal_times,
    limiting_resources,
    vector_time,
)
from xlperf.equations.model.cores import cores_of
from xlperf.equations.model.operators import serving_gemms
from xlperf.equations.plan.records import Recompute
from xlperf.equations.serving.continuous import operating
from xlperf.equations.serving.deployment import Deployment, batching_of, serving_shape
from xlperf.equations.serving.kernels import by_phase, decode_family, product_rate
from xlperf.equations.serving.load import split_step
from xlperf.equations.serving.phases import ENCODE_PARTS, FIXED, VECTOR, ServingWork, on_machine, serving_work
from xlperf.equations.serving.pools import pool_state
from xlperf.equations.training.activations import LAST_PRODUCT, selected_share
from xlperf.equations.training.communication import collective_calls
from xlperf.equations.training.kernels import LAYER_PLACES, kernel_parts, part_work
from xlperf.equations.training.setting import Constants, Part, Setting
from xlperf.equations.training.step import Step, step

Row = dict[str, object]


def _operators_table(rows: list[Row]) -> Table:
    """Rows as a table of kind ``operators``, in SI units; missing numbers are NaN."""
    columns: dict[str, np.ndarray] = {}
    for column in table_schema("operators").columns:
        if column.is_text:
            columns[column.name] = np.array([str(row.get(column.name, "")) for row in rows], dtype=object)
        else:
            columns[column.name] = np.array([row.get(column.name, np.nan) for row in rows], dtype=np.float64)
    return Table("operators", columns)


def _row(
    phase: str, name: str, family: str, calls: float, time: float, exposed: float | None = None, **numbers: float
) -> Row:
    """One operator with total time, exposed time and arithmetic intensity."""
    row: Row = {"phase": phase, "operator": name, "family": family, "calls": calls, "time": time}
    row.update(numbers)
    row["total_time"] = calls * time
    row["exposed_time"] = calls * (time if exposed is None else exposed)
    traffic = numbers.get("traffic", np.nan)
    row["arithmetic_intensity"] = numbers.get("flop", np.nan) / traffic if traffic > 0 else np.nan
    return row


class _Explained(NamedTuple):
    """Bounds of the kernels of a group, (rows, operators), and their times on machines without some limits. [s]"""

    bound: np.ndarray
    at_peak: Array  # at the rates of the datasheet, with the tiles of its library
    unlimited: Array  # of the calibrated kernel without a power limit

    def columns(
        self, index: int, peaks: tuple[Array, Array], time: float, work: tuple[float, float], slowdown: float = 1.0
    ) -> Row:
        """Bounds of one operator of work (FLOP, bytes), and the steps from its ideal roofline time to its own, slowed
        by its stack; ``peaks``: FLOP/s and bandwidth of the accelerator.
        """
        rates = _first(peaks[0], index), _first(peaks[1], index)
        ideal, code = ideal_times(*work, *rates)
        at_peak, unlimited = _first(self.at_peak, index), slowdown * _first(self.unlimited, index)
        return {
            "bound": RESOURCES[int(_first(self.bound, index))],
            "ideal_bound": RESOURCES[int(code)] if ideal == ideal else "",
            "ideal_time": float(ideal),
            "tile_time": _added(at_peak, float(ideal)),
            "efficiency_time": _added(unlimited, at_peak),
            "power_time": _added(time, unlimited),
        }


def _added(time: float, part: float) -> float:
    """Time beyond its part; 0 where they differ by rounding alone."""
    return 0.0 if math.isclose(time, part, rel_tol=1e-9) else time - part


Times = Callable[[Faster, Callable[[Constants], Constants]], Sequence[Array]]
"""Times of the groups of kernels on a faster machine, with other constants."""


def _explained(times: Times) -> list[_Explained]:
    """Bounds of the kernels of each group, and their times without efficiencies and without a power limit."""
    bounds = limiting_resources(lambda faster: times(faster, dict))
    free = Faster(power=WITHOUT_LIMIT)
    at_peak = times(free, lambda families: {name: ideal_constants(known) for name, known in families.items()})
    return [_Explained(*group) for group in zip(bounds, at_peak, times(free, dict), strict=True)]


def _training_kernels(setting: Setting, optimizer_traffic: Array) -> list[_Explained]:
    """Kernels of each part, (rows, operators), and the optimizer, (rows, 1)."""

    def times(faster: Faster, other: Callable[[Constants], Constants]) -> list[Array]:
        changed = replace(setting, device=faster.device(setting.device), constants=other(setting.constants))
        optimizer = vector_time(changed.device, changed.constants["vector"], optimizer_traffic[:, None], 0.0)
        return [*(part.time for part in kernel_parts(changed)), optimizer]

    return _explained(times)


def _first(values: Array, index: int) -> float:
    row = values[0]
    return float(row[index if len(row) > 1 else 0])


def _numbers(setting: Setting, part: Part) -> dict[str, Array]:
    """Shapes, FLOP and traffic of the operators of a part, (rows, operators)."""
    flop, traffic = part_work(setting, part)
    shapes = {} if part.gemms is None else dict(zip("mnk", part.gemms.columns, strict=False), batch=part.gemms.batch)
    return {**shapes, "flop": flop, "traffic": traffic}


def _kernel_rows(setting: Setting, done: Step, kernels: list[_Explained]) -> list[Row]:
    plan = setting.plan
    batches = float(plan.num_micro_batches[0])
    mode, last_product = float(plan.recompute[0]), setting.constants["training_calls"]["last_product"][:1]
    slowdown = float(setting.constants["training_software"]["kernel_slowdown"][0, 0])
    repeated = min(float(plan.recompute_layers[0] / done.counts["layers"][0]), 1.0)
    rows: list[Row] = []
    for part, explained in zip(done.parts, kernels, strict=False):
        peaks = setting.device.rate(part.precision).peak_flop_rate, setting.device.memory_bandwidth
        often = batches * float(done.counts[part.place][0])
        shares, columns = {part.phase: np.ones((1, len(part.names)))}, _numbers(setting, part)
        if part.phase == "forward" and part.place in LAYER_PLACES:
            again = selected_share(plan, part, last_product)
            if mode == Recompute.FULL:
                again = shares["forward"].copy()
                if part.names[-1] == LAST_PRODUCT:
                    again[:, -1:] = last_product
            if again is not None and mode > Recompute.NONE:
                shares["recompute"] = repeated * again
        for phase, share in shares.items():
            for index, name in enumerate(part.names):
                calls = often * _first(part.calls, index) * _first(share, index)
                if calls > 0:
                    numbers = {column: _first(values, index) for column, values in columns.items()}
                    time = slowdown * _first(part.time, index)
                    row = _row(phase, name, part.family, calls, time, **numbers)
                    work = numbers["flop"], numbers["traffic"]
                    rows.append({**row, **explained.columns(index, peaks, time, work, slowdown)})
    return rows


def _communication_rows(setting: Setting, done: Step) -> list[Row]:
    """A row for each collective; collectives of one result share its exposed time by the time of their calls."""
    rows: list[Row] = []
    all_calls = collective_calls(setting, done.communication, done.counts)
    for result, group in groupby(all_calls, key=lambda call: call.result):
        exposed, collectives = float(done.results[result][0]), list(group)
        times = [float(call.collective.time[0]) for call in collectives]
        often = [float(call.calls[0]) for call in collectives]
        whole = added(calls * time for calls, time in zip(often, times, strict=True))
        for call, calls, time in zip(collectives, often, times, strict=True):
            if calls > 0 and time > 0:
                size, shown = float(call.collective.message_size[0]), exposed * (time / whole)
                operation = call.collective.operation
                row = _row("communication", call.name, operation, calls, time, shown, traffic=size, flop=0.0)
                rows.append({**row, "bound": "network"})
    return rows


def explain_training(plans: Table, catalog: Catalog) -> Table:
    """Operators of the first plan on its critical stage, the longest first; exposed times add up to the step time."""
    results = evaluate_training(plans, catalog)
    if np.isnan(results["step_time"][0]):
        return _operators_table([])
    named = named_rows(plans, catalog)
    plans = with_software_defaults(plans, catalog, named.models)
    architecture = architecture_of(int(architecture_codes(named, catalog)[0]))
    setting = training_setting(plans, catalog, named, architecture)[0]
    with np.errstate(all="ignore"):
        done = step(setting)
        kernels = _training_kernels(setting, done.optimizer_traffic)
    rows = _kernel_rows(setting, done, kernels) + _communication_rows(setting, done)
    times = done.results
    traffic, updating = float(done.optimizer_traffic[0]), float(done.optimizer_time[0])
    peaks = setting.device.peak_flop_rate, setting.device.memory_bandwidth
    row = _row("optimizer", "optimizer", "vector", 1.0, updating, traffic=traffic, flop=0.0)
    rows.append({**row, **kernels[-1].columns(0, peaks, updating, (0.0, traffic))})
    for name, column in (("pipeline bubble", "time_pipeline_bubble"), ("host time not hidden", "time_overhead")):
        if float(times[column][0]) > 0:
            rows.append({**_row("waiting", name, "", 1.0, float(times[column][0])), "bound": "overhead"})
    longer = float(results["step_time"][0]) / float(times["step_time"][0])
    return _operators_table(_by_share([_scaled(row, longer) for row in rows] if longer != 1.0 else rows))


def _scaled(row: Row, ratio: float) -> Row:
    """A row with all times longer by a factor, from the user's own runs."""
    longer = {name: float(str(row[name])) * ratio for name in ("time", "total_time", "exposed_time")}
    if "efficiency_time" in row:
        longer["efficiency_time"] = float(str(row["efficiency_time"])) + longer["time"] - float(str(row["time"]))
    return {**row, **longer}


def _by_share(rows: list[Row]) -> list[Row]:
    """Rows of one step or pass with their share of its time, the longest first."""
    times = np.array([float(str(row["exposed_time"])) for row in rows])
    shares = times / times.sum()
    return [{**rows[place], "share": shares[place]} for place in np.argsort(-times, kind="stable").tolist()]


_PHASES = ("prefill", "decode")
_WAITED = ("before the first token (queue, prefills of other requests)", "between steps (prefills of other requests)")
_ROUNDING = 1e-9


def _serving_kernel_rows(deployment: Deployment, work: ServingWork, side: int) -> list[Row]:
    """A row for each matrix product, attention and other kernel of a phase."""

    def times(faster: Faster, other: Callable[[Constants], Constants]) -> list[Array]:
        changed = serving_work(replace(on_machine(deployment, faster), kernels=other(deployment.kernels)))
        return [group.time[:, side] for group in (changed.gemms, changed.attention, changed.vectors)]

    attention, cores = ("attention", decode_family(deployment.architecture)), cores_of(deployment.architecture)
    families = {core.name: (core.families or attention)[side] for core in cores}
    shapes = (by_phase(v, len(_PHASES))[0, side].tolist() for v in (*work.shapes.columns, work.shapes.flop))
    products = {
        name: {"m": m, "n": n, "k": k, "batch": batch, "flop": flop}
        for name, m, n, k, batch, flop in zip(work.gemms.names, *shapes, strict=True)
    }
    flop = zip(work.attention.names, work.attention_flop[0, side].tolist(), strict=True)
    numbers = {**products, **{name: {"flop": each} for name, each in flop}}
    groups = (work.gemms, "gemm"), (work.attention, ""), (work.vectors, "vector")
    rows = []
    shape = serving_shape(deployment.plan, batching_of(deployment.plan), deployment.popularity)
    products_of_phase = serving_gemms(deployment.model, shape, deployment.architecture, (side,))
    device = deployment.device
    rates = product_rate(deployment, products_of_phase), device.rate(CORE), device.rate()
    for (group, family), rate, explained in zip(groups, rates, _explained(times), strict=True):
        columns = (values[0, side].tolist() for values in (group.calls, group.time, group.traffic))
        for index, (name, calls, time, traffic) in enumerate(zip(group.names, *columns, strict=True)):
            runs = work.layers if index < len(group.names) - group.once else work.passes
            calls = calls * float(runs[0, side])
            if calls == 0.0:
                continue
            own = {"flop": 0.0, **numbers.get(name, {}), "traffic": traffic}
            row = _row(_PHASES[side], name, family or families[name], calls, time, **own)
            work_done = float(str(own["flop"])), traffic
            peaks = rate.peak_flop_rate, device.memory_bandwidth
            rows.append({**row, **explained.columns(index, peaks, time, work_done)})
    return rows


def _serving_message_rows(deployment: Deployment, work: ServingWork, side: int) -> list[Row]:
    """A row for each kind of communication of a phase."""
    layers, passes = float(work.layers[0, side]), float(work.passes[0, side])
    reduces, exchanges, contexts = (layers * float(calls) for calls in work.messages.calls[0])
    ring = "point_to_point" if deployment.plan.ring[0] else "all_gather"
    messages = (
        ("all-reduce", "all_reduce", reduces + passes),
        ("gathering of logits", "all_gather", passes),
        ("stage transfer", "point_to_point", float(work.transfers[0, side])),
        ("exchange with experts", "all_to_all", exchanges),
        (
            "partial outputs of attention" if side else "keys and values of other ranks",
            "all_reduce" if side else ring,
            contexts,
        ),
    )
    rows = []
    for index, (name, family, calls) in enumerate(messages):
        time, exposed, size = (
            float(values[0, side, index]) for values in (work.messages.time, work.exposed_time, work.messages.size)
        )
        if calls > 0 and time > 0:
            row = _row(_PHASES[side], name, family, calls, time, exposed, traffic=size, flop=0.0)
            rows.append({**row, "bound": "network"})
    return rows


def _adapter_time(work: ServingWork, side: int) -> float:
    """Time of a layer in kernels of adapters: what the other kernels do not take. [s]"""
    time = float(work.parts[0, side, 0, VECTOR] - work.vectors.layer_time()[0, side])
    return time if time > _ROUNDING * float(work.parts[0, side, 0, VECTOR]) else 0.0


def _encoder_rows(deployment: Deployment, work: ServingWork) -> list[Row]:
    """A row for each kind of work of the vision encoder in a prefill whose prompts have images."""
    batching, rows = batching_of(deployment.plan), []
    prompts = float(batching.own_prompts[0] / batching.passes[0])
    kinds = (
        ("products", "gemm", "compute"),
        ("attention", "attention", "compute"),
        ("other kernels", "vector", "memory"),
        ("all-reduces", "all_reduce", "network"),
    )
    for part, (words, family, bound) in zip(ENCODE_PARTS, kinds, strict=False):
        time = prompts * float(deployment.software[part][0, 0]) if part in deployment.software else 0.0
        if time > 0.0:
            row = _row(_PHASES[0], f"vision encoder: {words}", family, float(work.passes[0, 0]), time)
            rows.append({**row, "bound": bound})
    return rows


def _phase_rows(deployment: Deployment, work: ServingWork, side: int, outside: float) -> list[Row]:
    """Rows of a phase; ``outside``: time of its request outside the engine. [s]"""
    rows = [*_serving_kernel_rows(deployment, work, side), *_serving_message_rows(deployment, work, side)]
    rows += [] if side else _encoder_rows(deployment, work)
    for name, calls, value in (
        ("low-rank adapters of a layer", work.layers, _adapter_time(work, side)),
        ("host time of a layer", work.layers, work.parts[0, side, 0, FIXED]),
        ("host time of a pass", work.passes, work.pass_overhead[0, side]),
    ):
        if value > 0:
            row = _row(_PHASES[side], name, "serving_software", float(calls[0, side]), float(value))
            rows.append({**row, "bound": "overhead"})
    if outside > 0.0:
        row = _row(_PHASES[side], "request outside the engine", "serving_software", 1.0, outside)
        rows.append({**row, "bound": "overhead"})
    return rows


def _split_rows(attention: Deployment, experts: Deployment) -> list[Row]:
    """Rows of a decode step of an attention and an expert pool, over all micro-batches, on the critical path."""
    step = split_step(attention, experts, attention.plan.batch_size)
    batches, repeats = float(step.batches[0]), step.repeats[0].tolist()
    each = np.ceil(attention.plan.batch_size / step.batches)
    rows: list[Row] = []
    for words, pool, often in zip(("attention pool", "expert pool"), (attention, experts), repeats, strict=False):
        one = pool.with_batch(each, np.ones_like(each))
        for row in _phase_rows(one, serving_work(one), 1, 0.0):
            rows.append(_repeated({**row, "operator": f"{words}: {row['operator']}"}, batches, often))
    layers, times = float(step.work[0].layers[0, 0]), [float(time[0]) for time in step.messages]
    # Where links set the pace each of the two directions is busy: the step is shared out by the times of messages.
    paced = float(step.parts.sum()) / (layers * added(times)) if min(repeats[:2]) == 0.0 < repeats[2] else repeats[2]
    for words, time in zip(("tokens to experts", "tokens from experts"), times, strict=True):
        row = _row(_PHASES[1], words, "point_to_point", layers, time, flop=0.0)
        rows.append(_repeated({**row, "bound": "network"}, batches, paced))
    return rows


def _repeated(row: Row, calls: float, exposed: float) -> Row:
    """A row of one micro-batch with the calls of all, and its exposed share of the step."""
    scaled = {"calls": calls, "total_time": calls, "exposed_time": exposed}
    return {**row, **{name: factor * float(str(row[name])) for name, factor in scaled.items()}}


def _phase_deployments(plans: Table, catalog: Catalog) -> list[Deployment]:
    """Deployments of the prefill and the decode step of one plan at their batches, and its expert pool if any."""
    named = named_rows(plans, catalog)
    plans = with_software_defaults(plans, catalog, named.models)
    architecture = architecture_of(int(architecture_codes(named, catalog)[0]))
    mode = str(plans.filled("mode")[0])
    served = served_plans(plans, catalog, named, architecture, mode)
    deployment = served.setting.deployment
    pools = served.pools()
    if pools is not None and served.requests is not None:
        state, one = pool_state(pools.load, served.requests), np.ones_like(served.requests)
        experts = [pools.experts] if len(pools.split) else []
        prefilling, decoding = (pools.prefilling, one, state.prompts), (pools.decoding, state.batch, one)
        return [*(pool.with_batch(*numbers) for pool, *numbers in (prefilling, decoding)), *experts]
    if mode == "continuous":
        deployment = operating(deployment).running
    return [deployment, deployment]


def explain_inference(plans: Table, catalog: Catalog) -> Table:
    """Operators of the prefill and of one decode step of the first plan on the critical path; none if illegal.

    Under load they are of steady state; with separate pools each phase is one pool's. The exposed times of a phase add
    up to a prefill, with the time outside the engine, and to a step; with the phase ``waiting``, which may be negative,
    to ``ttft`` and to ``tpot`` times the tokens of a step.
    """
    one = plans.take(slice(0, 1))
    results = evaluate_inference(one, catalog)
    if np.isnan(results["latency"][0]):
        return _operators_table([])
    rows: list[Row] = []
    decodes = results["tpot"][0] == results["tpot"][0]
    predicted = evaluate_inference(one, without_own_runs(catalog)) if len(catalog.tables[OWN_RUNS]) else results
    with np.errstate(all="ignore"):
        deployments = _phase_deployments(one, catalog)
        outside = float(deployments[1].request_latency.alone[0])
        for side, deployment in enumerate(deployments[: 2 if decodes else 1]):
            quantity = ("ttft", "tpot")[side]
            if side and len(deployments) > 2:
                phase = _split_rows(*deployments[1:])
            else:
                phase = _phase_rows(deployment, serving_work(deployment), side, 0.0 if side else outside)
            if predicted is not results:
                longer = float(np.nan_to_num(results[quantity] / predicted[quantity], nan=1.0)[0])
                phase = [_scaled(row, longer) for row in phase]
            spent = added(float(str(row["exposed_time"])) for row in phase)
            step = float((deployment.plan.tokens_per_step if side else np.ones(1))[0])
            waited = step * float(results[quantity][0]) - spent
            if abs(waited) > _ROUNDING * spent:
                row = _row("waiting", _WAITED[side], "", 1.0, waited)
                phase.append({**row, "bound": "overhead"})
            rows += _by_share(phase)
    return _operators_table(rows)
