"""Published inference rows -> plans: engines, batches, modes, and why a row is no plan."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.units import factor
from xlperf.catalog.catalog import Catalog
from xlperf.equations.plan.records import PRECISIONS
from xlperf.interop.software import calibrated_release, release_of
from xlperf.measurements.published import ModelNames, Published, PublishedPlans, Refusal
from xlperf.measurements.training import precision_choice, published_plans, stated_settings

_OF_A_STREAM = ("run_requests", "prompt_variation", "output_variation")  # settings that a static batch does not have
_LENGTHS = {"prompt_length": "isl", "output_length": "osl"}  # printed columns that settings may state instead
_POOLS = re.compile(r"\b(?P<pool>prefill|decode)_(?P<name>\w+?)=(?P<value>\d+)\b")
_TOKENS_AT_ONCE = re.compile(r"(?P<thousands>\d+)K tokens per GPU")
_TOKENS_OF_A_PASS = 16384.0
_BATCH_OF_MAXIMUM = 4096.0
"""Requests offered in a run of "maximum throughput" without a stated number: the cache limits the running batch."""
_WEIGHTS_ONLY = "weights"  # word of a printed precision that only weights are stored in
_FIRST_XQA = re.compile(r"tensorrt-llm v?0\.[89](\.| |$)")
_HEADS_OF_XQA = (128.0, 256.0)  # its first releases know no other heads: decoderXQARunner.h of TensorRT-LLM 0.8 and 0.9
_RUN = 10.0
"""Requests of a benchmark run over those in flight if a row does not state them: --num-prompts of the clients of
InferenceX and of AMD's recipes. [-]"""
_OF_WINDOWS = ("nim",)  # engines measured in windows of a steady state (genai-perf --measurement-interval)
_DOUBTFUL = "doubtful"  # first words of the quality note of a row whose own figures contradict each other
_INFERRED = "n_gpus inferred from parallel sizes"
_OWN_PRECISION = re.compile(r"(?P<precision>NVFP4|MXFP4|FP8|FP4|INT4|INT8)(?![a-z0-9])", re.IGNORECASE)


def inference_plans(published: Published, catalog: Catalog) -> PublishedPlans:
    """Published inference rows as plans, with reasons why others are none."""
    models = ModelNames(catalog)
    chips = catalog.tables["accelerators"]
    names = [name.casefold() for name in chips.text("accelerator").tolist()]
    memory = dict(zip(names, chips.number("memory_capacity").tolist(), strict=True))
    peaks = chips.number("peak_flop_rate_fp4").tolist()
    narrow = {name for name, peak in zip(names, peaks, strict=True) if peak > 0.0}

    def plans_of(row: int) -> tuple[list[dict[str, object]], list[str]]:
        plan, remarks = _plan(published, row, models, memory, narrow)
        return [plan], remarks

    plans = published_plans("inference", published, models, plans_of)
    return without_infeasible(plans) if len(plans.plans) else plans


def _plan(
    published: Published, row: int, models: ModelNames, memory: Mapping[str, float], narrow: set[str]
) -> tuple[dict[str, object], list[str]]:
    text = {name: values[row] for name, values in published.text.items()}
    number = {name: float(values[row]) for name, values in published.number.items()}
    if text["quality"].casefold().startswith(_DOUBTFUL):
        raise Refusal(text["quality"])
    if text["gpu"].casefold() not in memory:
        raise Refusal(f'accelerator "{text["gpu"]}" is not in the catalog')
    model, remarks = models.name(published, row)
    if text["mode"].casefold().startswith("prefill") and math.isnan(number["osl"]):
        number["osl"] = 1.0
    if text["group"] == "production":
        _production(number, text, remarks)
    stated = stated_settings("inference", text["settings"])
    for column, name in _LENGTHS.items():
        if math.isnan(number[name]) and column in stated:
            number[name] = float(str(stated[column]))
    for name, words in (("n_gpus", "accelerators"), ("isl", "prompt length"), ("osl", "output length"), ("tp", "tp")):
        if math.isnan(number[name]):
            raise Refusal(f"the {words if name != 'tp' else 'mapping'} is not stated")
    engine = engine_of(text["framework"])
    if not engine:
        raise Refusal("the serving engine is not stated")
    head_size = models.number(model, "head_size")
    if math.isnan(head_size):
        head_size = models.number(model, "hidden_size") / models.number(model, "num_attention_heads")
    if _FIRST_XQA.match(text["framework"].casefold()) and head_size not in _HEADS_OF_XQA:
        engine = "tensorrt-llm-0"
        remarks.append(
            "heads that the first kernels for grouped queries do not know: engine of the releases before them"
        )
    _workers(text, number, models.number(model, "num_experts") > 0.0, remarks)
    _mapping(text, number, remarks)
    plan: dict[str, object] = {
        "name": text["row_id"],
        "model": model,
        "accelerator": text["gpu"],
        "num_accelerators": number["n_gpus"],
        "software": engine,
        "software_release": release_in(text["framework"]),
        "tensor_parallel": number["tp"],
        "pipeline_parallel": _at_least_one(number["pp"]),
        "expert_parallel": _at_least_one(number["ep"]),
        "data_parallel_attention": _replicas(text["dp_attn"], number["tp"]),
        "prompt_length": number["isl"],
        "output_length": number["osl"],
        "precision": _precision(text, remarks),
        "kv_precision": _kv_precision(text),
    }
    if _WEIGHTS_ONLY in text["precision"].casefold():
        plan["activation_precision"], plan["kv_precision"] = "bf16", plan["kv_precision"] or "bf16"
        remarks.append("weights alone are narrow: 16-bit products")
    if "tokens" in number:
        plan["prefill_tokens"] = number["tokens"]
    _mode(plan, text, number, remarks)
    if plan["mode"] == "static":
        stated = {name: value for name, value in stated.items() if name not in _OF_A_STREAM}
    if "software" in stated:  # releases that the calibration does not tell apart
        plan["software_release"] = ""
    plan.update(stated)
    _narrow_weights(plan, remarks, narrow, models.text(model, "expert_precision"))
    plan.update(stated)
    in_windows = plan["mode"] == "static" or plan["software"] in _OF_WINDOWS
    if "run_requests" not in plan and text["group"] != "production" and number["concurrency"] > 1.0 and not in_windows:
        plan["run_requests"] = _RUN * number["concurrency"]  # the burst that begins a run is a part of its means
        remarks.append(f"requests of the run not stated: {_RUN:g} times those in flight")
    return plan, remarks


def _production(number: dict[str, float], text: dict[str, str], remarks: list[str]) -> None:
    """Rates of one accelerator: experts over all of them, attention on each, prompts until a pass is full."""
    ranks = _at_least_one(number["ep"])
    if math.isnan(number["n_gpus"]):
        number["n_gpus"] = ranks
        remarks.append(f"accelerators not stated: {ranks:g}")
    if math.isnan(number["tp"]):
        number["tp"] = ranks
        text["dp_attn"] = f"{ranks:g}"
    if math.isnan(number["batch"]) and text["mode"].casefold().startswith("prefill"):
        stated = _TOKENS_AT_ONCE.search(text["notes"])
        tokens = float(stated["thousands"]) * 1024.0 if stated else _TOKENS_OF_A_PASS
        number["batch"] = max(math.floor(tokens / number["isl"]), 1.0) if number["isl"] > 0.0 else math.nan
        number["tokens"] = tokens
    if not math.isnan(number["batch"]):
        number["batch"] *= ranks


def _workers(text: dict[str, str], number: dict[str, float], mixture: bool, remarks: list[str]) -> None:
    """Attention replicas or engine copies of a row that prints the requests in flight and the batch of one copy: their
    ratio. A mixture of experts on as many ranks has its replicas in the ranks of one engine.
    """
    if "disagg" in text["mode"].casefold() or _INFERRED not in text["notes"]:
        return
    copies = number["concurrency"] / number["batch"] if number["batch"] > 0.0 else math.nan
    if not copies > 1.0 or copies != math.floor(copies) or text["dp_attn"] not in ("", "0", "1"):
        return
    if mixture and not text["dp_attn"] and copies == number["tp"]:
        text["dp_attn"] = f"{copies:g}"
        remarks.append(f"{number['batch']:g} requests in each of {copies:g} copies of the attention layers")
    else:
        number["n_gpus"] *= copies
        remarks.append(f"{number['batch']:g} requests in each of {copies:g} engines")


def _mapping(text: dict[str, str], number: dict[str, float], remarks: list[str]) -> None:
    """Correct degrees of the ranks that share a stage, no more than accelerators: some rows count ranks of one copy of
    the attention layers, some multiplied tp and ep.
    """
    if "disagg" in text["mode"].casefold():
        return
    most = number["n_gpus"] / _at_least_one(number["pp"])
    copies = text["dp_attn"].casefold()
    try:
        apart = float(copies) > 1.0
    except ValueError:
        apart = False
    if number["tp"] > most or (apart and number["tp"] < most):
        remarks.append(
            f"tp {number['tp']:g} and dp_attn {copies or '1'} on {number['n_gpus']:g} accelerators: {most:g} share"
        )
        number["tp"] = most
    number["ep"] = min(_at_least_one(number["ep"]), number["tp"])


def _narrow_weights(plan: dict[str, object], remarks: list[str], narrow: set[str], experts: str) -> None:
    """FP4 on accelerators without FP4 units: 4-bit weights are widened before the product. Routed ``experts``
    in published MXFP4 are served so whatever the precision around them.
    """
    stored = str(plan["precision"])
    published = experts == "mxfp4" and stored.startswith(("fp8", "bf16"))
    if (stored == "fp4" or published) and str(plan["accelerator"]).casefold() not in narrow:
        plan["precision"] = "int4"
        plan["kv_precision"] = plan["kv_precision"] or "bf16"
        remarks.append("no FP4 units: 4-bit weights, 16-bit products")


def _at_least_one(value: float) -> float:
    return 1.0 if math.isnan(value) else max(value, 1.0)


def _replicas(printed: str, tensor_parallel: float) -> float:
    words = printed.casefold()
    if words in ("true", "yes"):
        return tensor_parallel
    if words in ("", "false", "no"):
        return 1.0
    try:
        return min(_at_least_one(float(words)), tensor_parallel)
    except ValueError:
        raise Refusal(f'dp_attn "{printed}" is not modelled') from None


def _precision(text: dict[str, str], remarks: list[str]) -> str:
    result = precision_choice(text["precision"])
    if result:
        return result
    if text["precision"]:
        raise Refusal(f'precision "{text["precision"]}" is not modelled')
    named = _OWN_PRECISION.search(text["model_name"]) or _OWN_PRECISION.search(text["model"])
    result = precision_choice(named["precision"]) if named else "bf16"
    remarks.append(f"precision not stated: {result} ({'in the name of the model' if named else 'as published'})")
    return result


def _kv_precision(text: dict[str, str]) -> str:
    if not text["kv_precision"]:
        return ""
    result = precision_choice(text["kv_precision"])
    if not result:
        raise Refusal(f'kv_precision "{text["kv_precision"]}" is not modelled')
    return result


def _mode(plan: dict[str, object], text: dict[str, str], number: dict[str, float], remarks: list[str]) -> None:
    """Set mode, batch and concurrency."""
    mode = text["mode"].casefold()
    batch, requests = number["batch"], number["concurrency"]
    plan["mode"] = "static"
    if "disagg" in mode:
        workers = _pools(plan, text["notes"])
        if math.isnan(requests):
            requests = _in_flight(plan, batch, workers, remarks)
        plan["mode"], plan["concurrency"] = "disaggregated", requests
    elif text["group"] == "max-throughput" and math.isnan(batch):
        offered = stated_settings("inference", text["settings"]).get("run_requests", _BATCH_OF_MAXIMUM)
        plan["mode"], plan["concurrency"] = "continuous", offered
        remarks.append("batch not stated: the largest that the cache takes")
    elif text["group"] == "static" and not math.isnan(batch):
        plan["batch_size"] = batch
    elif mode.startswith("serving") or "agg" in mode:
        if math.isnan(requests):
            requests = _in_flight(plan, batch, 1.0, remarks)
        if requests == 1.0 and "max_running_batch" not in stated_settings("inference", text["settings"]):
            plan["batch_size"] = 1.0
            remarks.append("one request in flight: a static batch of 1")
        else:
            plan["mode"], plan["concurrency"] = "continuous", requests
    elif math.isnan(batch):
        raise Refusal("the batch is not stated")
    else:
        plan["batch_size"] = batch


def _in_flight(plan: dict[str, object], batch: float, workers: float, remarks: list[str]) -> float:
    """Requests in flight of a row that prints the batch of each copy of the attention layers."""
    if math.isnan(batch):
        raise Refusal("neither the concurrency nor the batch is stated")
    copies = plan["data_parallel_attention"]
    assert isinstance(copies, float)
    requests = batch * copies * workers
    remarks.append(f"concurrency not stated: {requests:g}, a batch of {batch:g} in each copy of the attention layers")
    return requests


def _pools(plan: dict[str, object], notes: str) -> float:
    """Degrees of both pools from the notes of a disaggregated row, and the workers that decode."""
    pools: dict[str, dict[str, float]] = {"prefill": {}, "decode": {}}
    for result in _POOLS.finditer(notes):
        pools[result["pool"]][result["name"]] = float(result["value"])
    sizes = {}
    for pool, values in pools.items():
        if "num_workers" not in values or "tp_size" not in values:
            raise Refusal("the workers of the two pools are not stated")
        start = "prefill_" if pool == "prefill" else ""
        replicas = _at_least_one(values.get("attention_dp_size", math.nan))
        ranks = values["tp_size"] * replicas
        stages = _at_least_one(values.get("pp_size", math.nan))
        plan[f"{start}tensor_parallel"] = ranks
        plan[f"{start}pipeline_parallel"] = stages
        plan[f"{start}data_parallel_attention"] = replicas
        plan[f"{start}expert_parallel"] = min(_at_least_one(values.get("moe_ep_size", math.nan)), ranks)
        sizes[pool] = values["num_workers"] * ranks * stages
    plan["prefill_accelerators"] = sizes["prefill"]
    plan["num_accelerators"] = sizes["prefill"] + sizes["decode"]
    return pools["decode"]["num_workers"]


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
    >>> engine_of("TensorRT-LLM 0.9.0"), engine_of("SGLang 0.4.3"), engine_of("SGLang 0.5.6")
    ('tensorrt-llm-0.17', 'sglang-0.4', 'sglang')
    >>> engine_of("vLLM with ATOM (2026)")
    'atom'
    """
    words = framework.casefold()
    if "with atom" in words:  # models and kernels of ATOM behind the server of another engine
        return "atom"
    for start, engine in _ENGINES.items():
        if words.startswith(start):
            return calibrated_release("inference", engine, release_in(framework))
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
    feasible = np.flatnonzero(~(share > 1.0))
    reasons = np.array(plans.reasons, dtype=object)
    for plan in np.flatnonzero(share > 1.0).tolist():
        reasons[plans.index[plan]] = BEYOND_PEAK.format(f"{share[plan]:.1f}")
    index, reference = plans.index[feasible], plans.reference[feasible]
    return replace(plans, plans=plans.plans.take(feasible), index=index, reference=reference, reasons=reasons)
