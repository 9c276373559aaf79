"""One served plan taken apart: the operators of its prefill and of one step of decoding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from xlperf.base.arrays import Array
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.inference import evaluate_inference, phase_servings
from xlperf.engine.operators import Row, operator_bounds, operator_row, operators_table
from xlperf.equations.hardware.device import Device
from xlperf.equations.model.serving import ONCE_GEMMS, ONCE_VECTORS
from xlperf.equations.serving import Serving, ServingWork, serving_work
from xlperf.equations.serving.work import FIXED

_PHASES = ("prefill", "decode")
_WAITED = ("time to first token beyond its prefill", "time of a step beyond its decode step")
_ROUNDING = 1e-9


def _works(setting: Serving, other: Callable[[Device], Device]) -> ServingWork:
    """Operators of both phases on other accelerators."""
    return serving_work(
        setting.model,
        other(setting.device),
        other(setting.attention_device),
        other(setting.wide_device),
        setting.network,
        setting.plan,
        setting.kernels,
        setting.software,
        setting.architecture,
    )


def _bounds(setting: Serving) -> list[np.ndarray]:
    """What bounds matrix products, attention and other kernels, (rows, operators) each."""

    def times(other: Callable[[Device], Device]) -> list[Array]:
        work = _works(setting, other)
        return [work.gemm_time, work.attention_time, work.vector_time]

    return operator_bounds(times)


def _kernel(
    phase: str, name: str, family: str, calls: float, time: float, bound: object, **numbers: float,
) -> Row:  # fmt: skip
    return {**operator_row(phase, name, family, calls, time, **numbers), "bound": bound}


def _phase_rows(setting: Serving, work: ServingWork, side: int) -> list[Row]:
    phase = _PHASES[side]
    layers, passes = float(work.layers[0, side]), float(work.passes[0, side])
    gemm_bounds, attention_bounds, vector_bounds = _bounds(setting)
    rows: list[Row] = []
    names = work.gemms.names[: len(work.gemms.names) // 2]
    for index, name in enumerate(names):
        column = side * len(names) + index
        m, n, k, batch = (float(values[0, column]) for values in work.gemms[1:])
        calls = float(work.gemm_calls[0, column]) * (layers if index < len(names) - ONCE_GEMMS else passes)
        if calls == 0.0:
            continue
        rows.append(
            _kernel(
                phase,
                name,
                "gemm",
                calls,
                float(work.gemm_time[0, column]),
                gemm_bounds[0, column],
                m=m,
                n=n,
                k=k,
                batch=batch,
                flop=2.0 * m * n * k * batch,
                traffic=float(work.gemm_traffic[0, column]),
            )
        )
    family = ("attention", "attention_latent" if setting.architecture.latent_attention else "attention_decode")[side]
    structure = setting.architecture
    kinds = [("attention", family)]
    kinds += [("local attention", family)] if structure.local_attention else []
    kinds += [("linear attention", ("linear_attention", "vector")[side])] if structure.linear_attention else []
    for index, (name, family) in enumerate(kinds):
        column = side * len(kinds) + index
        calls = float(work.attention_calls[0, column]) * layers
        if calls == 0.0:
            continue
        rows.append(
            _kernel(
                phase,
                name,
                family,
                calls,
                float(work.attention_time[0, column]),
                attention_bounds[0, column],
                flop=float(work.attention_flop[0, column]),
                traffic=float(work.attention_traffic[0, column]),
            )
        )
    names = work.vector_names[: len(work.vector_names) // 2]
    for index, name in enumerate(names):
        column = side * len(names) + index
        calls = float(work.vector_calls[0, column]) * (layers if index < len(names) - ONCE_VECTORS else passes)
        if calls == 0.0:
            continue
        rows.append(
            _kernel(
                phase,
                name,
                "vector",
                calls,
                float(work.vector_time[0, column]),
                vector_bounds[0, column],
                flop=0.0,
                traffic=float(work.vector_traffic[0, column]),
            )
        )
    messages = (
        ("all-reduce", "all_reduce", float(work.message_calls[0, 0]) * layers + passes),
        ("gathering of logits", "all_gather", passes),
        ("stage transfer", "point_to_point", float(work.transfers[0, side])),
        ("exchange with experts", "all_to_all", float(work.message_calls[0, 1]) * layers),
        (
            "partial outputs of attention" if side else "keys and values of other ranks",
            "all_reduce" if side else "point_to_point" if setting.plan.ring[0] else "all_gather",
            float(work.message_calls[0, 2]) * layers,
        ),
    )
    for index, (name, family, calls) in enumerate(messages):
        time, exposed = (float(times[0, side, index]) for times in (work.message_alone, work.message_time))
        if calls > 0 and time > 0:
            size = float(work.message_size[0, side, index])
            row = operator_row(phase, name, family, calls, time, exposed, traffic=size, flop=0.0)
            rows.append({**row, "bound": "network"})
    for name, calls, value in (
        ("host time of a layer", layers, float(work.parts[0, side, 0, FIXED])),
        ("host time of a pass", passes, float(work.pass_overhead[0, side])),
    ):
        if value > 0:
            rows.append({**operator_row(phase, name, "serving_software", calls, value), "bound": "overhead"})
    return rows


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
        for side, serving in enumerate(phase_servings(one, catalog)[: 2 if decodes else 1]):
            work = _works(serving, lambda device: device)
            found = _phase_rows(serving, work, side)
            spent = sum(float(str(row["exposed_time"])) for row in found)
            step = float((serving.plan.tokens_per_step if side else np.ones(1))[0])
            waited = step * float(results[("ttft", "tpot")[side]][0]) - spent
            rows += found
            if abs(waited) > _ROUNDING * spent:
                row = operator_row("waiting", _WAITED[side], "", 1.0, waited)
                rows.append({**row, "bound": "overhead"})
    return operators_table(rows)
