"""One served plan taken apart: the operators of its prefill and of one step of decoding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from xlperf.base.arrays import Array
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.inference import evaluate_inference, served_plans
from xlperf.engine.join import architecture_codes, architecture_of, named_rows
from xlperf.engine.operators import Row, operator_bounds, operator_row, operators_table
from xlperf.equations.hardware.device import Device
from xlperf.equations.serving import Deployment, ServingWork, operating, pool_state, pools_of, serving_work
from xlperf.equations.serving.kernels import by_phase
from xlperf.equations.serving.phases import FIXED

_PHASES = ("prefill", "decode")
_WAITED = ("time to first token beyond its prefill", "time of a step beyond its decode step")
_ROUNDING = 1e-9


def _on(deployment: Deployment, other: Callable[[Device], Device]) -> ServingWork:
    """Operators of both phases on other accelerators."""
    devices = deployment.device, deployment.attention_device, deployment.wide_device
    device, attention_device, wide_device = map(other, devices)
    placed = replace(deployment, device=device, attention_device=attention_device, wide_device=wide_device)
    return serving_work(placed)


def _kernel_rows(deployment: Deployment, work: ServingWork, side: int) -> list[Row]:
    """A row for each matrix product, attention and other kernel of a phase."""

    def times(other: Callable[[Device], Device]) -> list[Array]:
        found = _on(deployment, other)
        return [group.time[:, side] for group in (found.gemms, found.attention, found.vectors)]

    attention = ("attention", "attention_latent" if deployment.architecture.latent_attention else "attention_decode")
    families = dict.fromkeys(work.attention.names, attention[side])
    families["linear attention"] = ("linear_attention", "vector")[side]
    shapes = (by_phase(values, len(_PHASES))[0, side].tolist() for values in work.shapes.columns)
    products = {
        name: {"m": m, "n": n, "k": k, "batch": batch, "flop": 2.0 * m * n * k * batch}
        for name, m, n, k, batch in zip(work.gemms.names, *shapes, strict=True)
    }
    flop = zip(work.attention.names, work.attention_flop[0, side].tolist(), strict=True)
    numbers = {**products, **{name: {"flop": each} for name, each in flop}}
    groups = (work.gemms, "gemm"), (work.attention, ""), (work.vectors, "vector")
    rows = []
    for (group, family), bounds in zip(groups, operator_bounds(times), strict=True):
        columns = (values[0, side].tolist() for values in (group.calls, group.time, group.traffic))
        for index, (name, calls, time, traffic) in enumerate(zip(group.names, *columns, strict=True)):
            runs = work.layers if index < len(group.names) - group.once else work.passes
            calls = calls * float(runs[0, side])
            if calls == 0.0:
                continue
            own = {"flop": 0.0, **numbers.get(name, {}), "traffic": traffic}
            row = operator_row(_PHASES[side], name, family or families[name], calls, time, **own)
            rows.append({**row, "bound": bounds[0, index]})
    return rows


def _message_rows(deployment: Deployment, work: ServingWork, side: int) -> list[Row]:
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
            row = operator_row(_PHASES[side], name, family, calls, time, exposed, traffic=size, flop=0.0)
            rows.append({**row, "bound": "network"})
    return rows


def _phase_rows(deployment: Deployment, work: ServingWork, side: int) -> list[Row]:
    rows = [*_kernel_rows(deployment, work, side), *_message_rows(deployment, work, side)]
    for name, calls, value in (
        ("host time of a layer", work.layers, work.parts[0, side, 0, FIXED]),
        ("host time of a pass", work.passes, work.pass_overhead[0, side]),
    ):
        if value > 0:
            row = operator_row(_PHASES[side], name, "serving_software", float(calls[0, side]), float(value))
            rows.append({**row, "bound": "overhead"})
    return rows


def _phase_deployments(plans: Table, catalog: Catalog) -> tuple[Deployment, Deployment]:
    """What a prefill and a decode step of one plan run with, at their batches: the same but for separate pools."""
    named = named_rows(plans, catalog)
    architecture = architecture_of(int(architecture_codes(named, catalog)[0]))
    mode = str(plans.filled("mode")[0])
    served = served_plans(plans, catalog, named, architecture, mode)
    deployment = served.setting.deployment
    if served.both is not None and served.prefilling is not None and served.requests is not None:
        pools = pools_of(served.both.deployment, deployment, served.prefilling.deployment, served.requests)
        state, one = pool_state(pools.load, served.requests), np.ones_like(served.requests)
        return pools.prefilling.with_batch(one, state.prompts), pools.decoding.with_batch(state.batch, one)
    if mode == "continuous":
        deployment = operating(deployment).running
    return deployment, deployment


def explain_inference(plans: Table, catalog: Catalog) -> Table:
    """Operators of the prefill and of one step of decoding of the first plan, on the critical path.

    Under load they are those of the requests that run in steady state: of the prompts that are prefilled together,
    and of a step with the mean running batch. Of separate pools each phase is that of its pool.

    Parameters
    ----------
    plans : Table
        Inference plans; the first is explained.
    catalog : Catalog
        What they refer to.

    Returns
    -------
    Table
        Kind ``operators``; the exposed times of a phase add up to the time of a prefill and of a step. With the rows
        of the phase ``waiting``, which a static batch does not have, they add up to ``ttft`` and to ``tpot`` times
        the tokens of a step; below 0 where prompts that are prefilled one after the other wait for a part of the
        others only. No rows for an illegal plan.
    """
    one = plans.take(slice(0, 1))
    results = evaluate_inference(one, catalog)
    if np.isnan(results["latency"][0]):
        return operators_table([])
    rows: list[Row] = []
    decodes = results["tpot"][0] == results["tpot"][0]
    with np.errstate(all="ignore"):
        for side, deployment in enumerate(_phase_deployments(one, catalog)[: 2 if decodes else 1]):
            work = serving_work(deployment)
            found = _phase_rows(deployment, work, side)
            spent = sum(float(str(row["exposed_time"])) for row in found)
            step = float((deployment.plan.tokens_per_step if side else np.ones(1))[0])
            waited = step * float(results[("ttft", "tpot")[side]][0]) - spent
            rows += found
            if abs(waited) > _ROUNDING * spent:
                row = operator_row("waiting", _WAITED[side], "", 1.0, waited)
                rows.append({**row, "bound": "overhead"})
    return operators_table(rows)
