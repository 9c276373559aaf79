"""Settings that published rows state by name, engines behind printed names, and why a row is no plan."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.units import factor
from xlperf.catalog.cells import number_of
from xlperf.catalog.schema import table_schema, unit_of
from xlperf.equations.plan.records import PRECISIONS
from xlperf.interop.software import calibrated_release, release_of
from xlperf.measurements.published import PublishedPlans


class Refusal(Exception):
    """Why a published row is not a plan, in words."""


def stated_settings(kind: str, printed: str) -> dict[str, object]:
    """Columns of the plan that a row states as ``name=value``, separated by semicolons, in base units. Refusal for an
    unknown or repeated column, or a value that is no number or none of its choices.

    >>> stated_settings("inference", "run_requests=500; output variation=0.7; graphs=no; software=vllm")
    {'run_requests': 500.0, 'output_variation': 0.7, 'graphs': 0.0, 'software': 'vllm'}
    >>> stated_settings("training", "master_weights=none; offload activations=1; compiled=yes")
    {'master_weights': 'none', 'offload_activations': 1.0, 'compiled': 1.0}
    """
    columns = {column.name: column for column in table_schema(kind).columns}
    stated: dict[str, object] = {}
    for word in filter(None, map(str.strip, printed.split(";"))):
        name, _, value = (part.strip() for part in word.partition("="))
        column = columns.get(name.replace(" ", "_"))
        if column is None or not value:
            raise Refusal(f'settings: "{word}" is no column of a plan with its value')
        if column.name in stated:
            raise Refusal(f'settings: "{word}" gives a column twice')
        given: object = value
        if column.choices and value not in column.choices:
            raise Refusal(f'settings: "{word}" is none of {", ".join(column.choices)}')
        if not column.is_text:
            given = {"yes": 1.0, "no": 0.0}.get(value.casefold(), number_of(value)) * unit_of(column).factor
            if math.isnan(given):
                raise Refusal(f'settings: "{word}" needs a number')
        stated[column.name] = given
    return stated


_ENGINES = {name: name for name in "nim nemo tensorrt-llm vllm sglang turbomind jax deepseek".split()}
_ENGINES["trtllm"] = "tensorrt-llm"
_OF_AMD = "amd's build"
_RELEASE = re.compile(r"(?!vllm-|sglang-)[\w-]+ v?(\d+\.\d+[\w.]*)")
"""Release behind the name of an engine, not behind what runs it; a port to another machine has releases of its own."""


def engine_of(framework: str) -> str:
    """Serving engine, without its version, as the calibration calls it.

    >>> engine_of("trtllm 1.0.0rc3"), engine_of("NeMo/TRT-LLM"), engine_of("vLLM"), engine_of("abc 2")
    ('tensorrt-llm', 'nemo', 'vllm', 'abc')
    >>> engine_of("TensorRT-LLM 0.5"), engine_of("vLLM 0.5.4"), engine_of("vLLM 0.6.3"), engine_of("vLLM 0.12.0")
    ('tensorrt-llm-0', 'vllm-0', 'vllm-0.6', 'vllm-0.8')
    >>> engine_of("TensorRT-LLM 0.9.0"), engine_of("SGLang 0.4.3"), engine_of("SGLang 0.4.6.post1")
    ('tensorrt-llm', 'sglang-0.4', 'sglang')
    """
    words = framework.casefold()
    for start, engine in _ENGINES.items():
        if words.startswith(start):
            return calibrated_release(engine, release_in(framework))
    return words.split()[0] if words else ""


def release_in(framework: str) -> str:
    """Release behind the printed name of an engine; "" for none, and for builds by AMD with later kernels.

    >>> release_in("SGLang v0.5.9 (ROCm)"), release_in("trtllm 1.0.0rc3"), release_in("vLLM (June 2026)")
    ('0.5.9', '1.0.0rc3', '')
    """
    match = None if _OF_AMD in framework.casefold() else _RELEASE.match(framework.casefold())
    try:
        release_of(match[1] if match else "")
    except ValueError:
        return ""
    return match[1] if match else ""


BEYOND_PEAK = (
    "its own figures need {} times the peak of its accelerators for the prompts alone: "
    "replicas or hits in a cache are not stated"
)


def prefill_utilization(plans: PublishedPlans) -> Array:
    r"""Prefill FLOP/s that a loaded deployment needs by its own figures, over the peak of its accelerators.

    .. math:: u = \frac{c}{t_{first} + (o - 1) t_{token}} \cdot \frac{2 P i}{n F}

    with c requests in flight, prompts of i and outputs of o tokens, P active parameters and n accelerators of peak F;
    attention adds to it (J. D. C. Little, "A proof for the queuing formula L = lambda W", Oper. Res. 9(3), 1961,
    doi:10.1287/opre.9.3.383). A batch that starts at once prefills all prompts before the last output, o - 1 steps that
    each read all weights W from a memory of bandwidth B:

    .. math:: u = \frac{b}{t - (o - 1) W / (n B)} \cdot \frac{2 P i + 2 i^2 h l}{n F}

    with the attention of l layers of width h. NaN if a figure is not stated.
    """
    table, catalog, number = plans.plans, plans.catalog, plans.published.number
    models = catalog.rows("models", table.text("model"), table, "model")
    accelerators = catalog.rows("accelerators", table.text("accelerator"), table, "accelerator")
    size = catalog.tables["models"]
    active = size.number("stated_active_parameters")[models]
    parameters = np.where(np.isnan(active), size.number("stated_parameters")[models], active)
    peak = np.full(len(table), np.nan)
    for name in set(table.filled("precision").tolist()):
        column = f"peak_flop_rate_{PRECISIONS[str(name)].peak}" if str(name) in PRECISIONS else ""
        if column in catalog.tables["accelerators"].columns:
            chosen = table.filled("precision") == name
            peak[chosen] = catalog.tables["accelerators"].number(column)[accelerators][chosen]
    stated = {name: number[name][plans.index] for name in ("concurrency", "isl", "osl", "ttft_ms", "tpot_ms")}
    duration = (stated["ttft_ms"] + (stated["osl"] - 1.0) * stated["tpot_ms"]) * factor("ms")
    rate = stated["concurrency"] / duration
    loaded = 2.0 * parameters * stated["isl"] * rate / (peak * table.number("num_accelerators"))
    return np.where(np.isnan(loaded), _batch_utilization(plans, models, accelerators, parameters, peak), loaded)


def _batch_utilization(
    plans: PublishedPlans, models: np.ndarray, accelerators: np.ndarray, parameters: Array, peak: Array
) -> Array:
    """Utilisation of static batches with a stated latency, NaN if decoding alone takes longer."""
    table, catalog, number = plans.plans, plans.catalog, plans.published.number
    size = catalog.tables["models"]
    prompt, output, latency = (number[name][plans.index] for name in ("isl", "osl", "latency_s"))
    wide = size.number("hidden_size")[models] * size.number("num_layers")[models]
    flop = table.number("batch_size") * prompt * (2.0 * parameters + 2.0 * prompt * wide)
    stored = np.array([PRECISIONS[str(name)].served_size for name in table.filled("precision").tolist()])
    ranks = table.number("num_accelerators")
    read = parameters * stored / (ranks * catalog.tables["accelerators"].number("memory_bandwidth")[accelerators])
    left = np.where(table.filled("mode") == "static", latency - (output - 1.0) * read, np.nan)
    return np.asarray(flop / (peak * ranks) / np.where(left > 0.0, left, np.nan))


def without_infeasible(plans: PublishedPlans) -> PublishedPlans:
    """Plans of inference rows whose own figures are feasible; the rows of the others get the reason."""
    share = prefill_utilization(plans)
    kept = np.flatnonzero(~(share > 1.0))
    reasons = np.array(plans.reasons, dtype=object)
    for plan in np.flatnonzero(share > 1.0).tolist():
        reasons[plans.index[plan]] = BEYOND_PEAK.format(f"{share[plan]:.1f}")
    index, reference = plans.index[kept], plans.reference[kept]
    return replace(plans, plans=plans.plans.take(kept), index=index, reference=reference, reasons=reasons)
