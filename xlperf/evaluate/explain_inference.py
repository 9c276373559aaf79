"""One served plan taken apart: the operators of its prefill and of one step of decoding."""

from __future__ import annotations

import numpy as np

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.evaluate.inference import ServingSetting, evaluate_inference, serving_setting
from xlperf.evaluate.join import architecture_codes, architecture_of, named_rows
from xlperf.evaluate.operators import Row, operator_row, operators_table
from xlperf.inference import ServingWork, serving_work
from xlperf.workload.serving import ONCE_GEMMS, ONCE_VECTORS

_PHASES = ("prefill", "decode")


def _kernel(
    phase: str, name: str, family: str, calls: float, time: float, launch: float, peak: float, bandwidth: float,
    **numbers: float,
) -> Row:  # fmt: skip
    row = operator_row(phase, name, family, calls, time, **numbers)
    busy = max(time - launch, 0.0)
    roof = "compute" if numbers["flop"] / peak >= numbers["traffic"] / bandwidth else "memory"
    return {**row, "bound": "overhead" if launch > busy else roof}


def _phase_rows(setting: ServingSetting, work: ServingWork, side: int) -> list[Row]:
    phase = _PHASES[side]
    layers, passes = float(work.layers[0, side]), float(work.passes[0, side])
    device, attention = setting.joined.device, setting.attention_device
    peak, bandwidth = float(device.peak_flop_rate[0, 0]), float(device.memory_bandwidth[0, 0])
    rows: list[Row] = []
    launch = float(setting.kernels["gemm"]["launch_time"][0, 0])
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
                launch,
                float(work.gemm_peak[0, column]),
                bandwidth,
                m=m,
                n=n,
                k=k,
                batch=batch,
                flop=2.0 * m * n * k * batch,
                traffic=float(work.gemm_traffic[0, column]),
            )
        )
    family = ("attention", "attention_latent" if setting.architecture.latent_attention else "attention_decode")[side]
    kinds = ("attention", "local attention")[: work.attention_time.shape[1] // 2]
    for index, name in enumerate(kinds):
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
                float(setting.kernels[family]["launch_time"][0, 0]),
                float(attention.peak_flop_rate[0, 0]),
                bandwidth,
                flop=float(work.attention_flop[0, column]),
                traffic=float(work.attention_traffic[0, column]),
            )
        )
    launch = float(setting.kernels["vector"]["launch_time"][0, 0])
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
                launch,
                peak,
                bandwidth,
                flop=0.0,
                traffic=float(work.vector_traffic[0, column]),
            )
        )
    messages = (
        ("all-reduce", "all_reduce", float(work.message_calls[0, 0]) * layers + passes),
        ("gathering of logits", "all_gather", passes),
        ("stage transfer", "point_to_point", float(work.transfers[0, side])),
        ("exchange with experts", "all_to_all", float(work.message_calls[0, 1]) * layers),
    )
    for index, (name, family, calls) in enumerate(messages):
        time = float(work.message_time[0, side, index])
        if calls > 0 and time > 0:
            size = float(work.message_size[0, side, index])
            row = operator_row(phase, name, family, calls, time, traffic=size, flop=0.0)
            rows.append({**row, "bound": "network"})
    for name, calls, value in (
        ("host time of a layer", layers, float(work.layer_overhead[0, side])),
        ("host time of a pass", passes, float(work.pass_overhead[0, side])),
    ):
        if value > 0:
            rows.append({**operator_row(phase, name, "serving_software", calls, value), "bound": "overhead"})
    return rows


def explain_inference(plans: Table, catalog: Catalog) -> Table:
    """Operators of the prefill and of one step of decoding of the first plan, on the critical path.

    Parameters
    ----------
    plans : Table
        Inference plans; the first is explained.
    catalog : Catalog
        What they refer to.

    Returns
    -------
    Table
        Kind ``operators``; the total times of a phase add up to ``ttft`` and ``tpot``; no rows for an illegal plan.
    """
    results = evaluate_inference(plans, catalog)
    if np.isnan(results["latency"][0]):
        return operators_table([])
    one = plans.take(slice(0, 1))
    named = named_rows(one, catalog)
    setting = serving_setting(one, catalog, named, architecture_of(int(architecture_codes(named, catalog)[0])))
    joined = setting.joined
    with np.errstate(all="ignore"):
        work = serving_work(
            joined.model,
            joined.device,
            setting.attention_device,
            joined.network,
            setting.plan,
            setting.kernels,
            setting.software,
            setting.architecture,
            joined.wide_device,
        )
    rows = _phase_rows(setting, work, 0)
    if results["tpot"][0] == results["tpot"][0]:
        rows += _phase_rows(setting, work, 1)
    return operators_table(rows)
