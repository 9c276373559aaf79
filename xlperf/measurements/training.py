"""Published training rows -> plans: spellings, and why a row is no plan.

A row states its settings in its columns and in ``settings``; blanks stay blank, and mean what the software does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.cells import number_of
from xlperf.catalog.schema import table_schema, unit_of
from xlperf.catalog.table import Table
from xlperf.interop.software import calibrated_release
from xlperf.measurements.published import ModelNames, Published, PublishedPlans, Refusal


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


_REFUSED = {"time_to_train": "time to train depends on how many steps converge"}
_RECOMPUTE = {"none": "none", "selective": "selective", "full": "full"}
_RECOMPUTE |= {"full(remat)": "full", "rmsnorm+mla up-proj": "selective"}
_RECIPES = {
    **dict.fromkeys(("mxfp8", "fp8-mx"), "mxfp8"),
    **dict.fromkeys(("fp8-cs", "fp8-current", "fp8 tensorwise", "fp8-tensorwise"), "fp8-current"),
    **dict.fromkeys(("fp8 rowwise", "fp8-rowwise", "fp8-sc", "fp8-subchannel", "fp8-block", "fp8 block"), "fp8-block"),
    **dict.fromkeys(("fp8-ds", "fp8-delayed"), "fp8"),
}
_SHARDED = "fsdp"
_MODULES = {"rmsnorm+mla up-proj": "norm latent"}
_PLAIN = {
    "tensor_parallel": "tp", "pipeline_parallel": "pp", "virtual_pipeline": "vp", "context_parallel": "cp",
    "expert_parallel": "ep", "expert_tensor_parallel": "etp", "num_accelerators": "n_gpus", "global_batch_size": "gbs",
    "micro_batch_size": "mbs", "sequence_length": "seq_len", "zero_stage": "zero_stage", "sequence_parallel": "sp",
}  # fmt: skip
_RELEASE = re.compile(r"(?<![\d.])2\d\.(?:0[1-9]|1[0-2])(?:\.\d\d)?(?![\d.]*\d)")
_NAMED_NEMO = ("nemo", "megatron-bridge", "megatron bridge", "nemo-bridge")
_CHUNKED = re.compile(r"\bloss in (?:\w+ )?chunks\b")  # in notes on a loss whose settings do not state its kernels
_ADAPTER_RANK = 16.0  # rank of adapters that a row of fine-tuning does not state (assumption)
_ROUNDED = 0.1  # most that a printed global batch may be off a whole number of micro-batches
_WHOLE: dict[str, object] = {"sequence_parallel": 0.0, "recompute": "none", "recompute_modules": ""}
"""Denominator of a ratio of memory."""
_UNSTATED = {"recompute": "recompute", "micro_batch_size": "micro batch", "zero_stage": "ZeRO stage"}
"""Columns whose blanks a note names."""


def precision_choice(printed: str) -> str:
    """Precision of the schema that a printed spelling means, "" for one that is not known.

    >>> [precision_choice(word) for word in ("amp_bf16", "FP8-CS (FP8-MX)", "NVFP4", "MXFP8", "int8 weights", "q5")]
    ['bf16', 'fp8', 'fp4', 'fp8', 'int8', '']
    """
    words = printed.casefold().removeprefix("amp_").removeprefix("mx").removeprefix("nv")
    for choice in ("fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8", "int4"):
        if words.startswith(choice):
            return choice
    return ""


def nemo_release(source: str) -> str:
    """Release of NeMo or its container that a source states; "" for none.

    >>> nemo_release("docs [26.04.01 NeMo Container]"), nemo_release("grok1/README.md (v25.05)"), nemo_release("sec 4")
    ('26.04.01', '25.05', '')
    """
    match = _RELEASE.search(source)
    return match[0] if match else ""


def nemo_stack(source: str) -> str:
    """Training stack behind the name NeMo at the release that a source states; the newest without a release.

    >>> [nemo_stack(words) for words in ("bignlp-train:22.09", "(v25.05)", "[25.09 NeMo Container]", "a blog")]
    ['nemo-2022', 'nemo', 'nemo-bridge', 'nemo-bridge']
    """
    return calibrated_release("training", "nemo", nemo_release(source))


def recipe_choice(printed: str) -> str:
    """The same with the kinds of FP8 that training tells apart.

    >>> [recipe_choice(word) for word in ("bf16", "FP8-CS (FP8-MX)", "MXFP8", "fp8_sc", "fp8")]
    ['bf16', 'fp8-current', 'mxfp8', 'fp8-block', 'fp8']
    """
    words = printed.casefold().removeprefix("amp_").replace("_", "-")
    named = (recipe for spelling, recipe in _RECIPES.items() if words.startswith(spelling))
    return next(named, "") or precision_choice(printed)


def training_plans(published: Published, catalog: Catalog) -> PublishedPlans:
    """Published training rows as plans; rows of kind ``memory_ratio`` add their denominator, without recomputation."""
    models = ModelNames(catalog)
    accelerators = {name.casefold() for name in catalog.tables["accelerators"].text("accelerator").tolist()}

    def plans_of(row: int) -> tuple[list[dict[str, object]], list[str]]:
        plan, remarks = _plan(published, row, models, accelerators)
        ratio = published.text["metric_kind"][row] == "memory_ratio"
        return [plan, *([{**plan, **_WHOLE}] if ratio else [])], remarks

    return published_plans("training", published, models, plans_of)


def published_plans(
    kind: str,
    published: Published,
    models: ModelNames,
    plans_of: Callable[[int], tuple[list[dict[str, object]], list[str]]],
) -> PublishedPlans:
    """Published rows by ``plans_of(row)``: plans (the second is the denominator of the first) and notes."""
    rows: list[dict[str, object]] = []
    index: list[int] = []
    reference: list[int] = []
    reasons, notes = (np.full(len(published), "", dtype=object) for _ in range(2))
    for row in range(len(published)):
        try:
            plans, remarks = plans_of(row)
        except Refusal as refusal:
            reasons[row] = str(refusal)
            continue
        notes[row] = "; ".join(remarks)
        reference += [len(rows) + 1, -1] if len(plans) > 1 else [-1]
        rows += plans
        index += [row] * len(plans)
    table = plan_table(kind, rows, published, index)
    plan_rows, denominators = (np.array(at, dtype=np.int64) for at in (index, reference))
    return PublishedPlans(published, table, plan_rows, denominators, reasons, notes, models.catalog())


def plan_table(kind: str, rows: list[dict[str, object]], published: Published, index: list[int]) -> Table:
    """Plans as a table whose places name the published rows."""
    columns: dict[str, np.ndarray] = {}
    for column in table_schema(kind).columns:
        blank: object = "" if column.is_text else math.nan
        values = [row.get(column.name, blank) for row in rows]
        columns[column.name] = np.array(values, dtype=object if column.is_text else np.float64)

    def place(row: int, column: str) -> str:
        return published.place(index[row], {"model": "model_name", "accelerator": "gpu"}.get(column, "row_id"))

    return Table(kind, columns, place)


def _plan(
    published: Published, row: int, models: ModelNames, accelerators: set[str]
) -> tuple[dict[str, object], list[str]]:
    text = {name: values[row] for name, values in published.text.items()}
    refused = _REFUSED.get(text["metric_kind"])
    if refused:
        raise Refusal(refused)
    if text["gpu"].casefold() not in accelerators:
        raise Refusal(f'accelerator "{text["gpu"]}" is not in the catalog')
    model, remarks = models.name(published, row)
    printed = text["software"].casefold()
    plan: dict[str, object] = {
        "name": text["row_id"],
        "model": model,
        "accelerator": text["gpu"],
        **{name: float(published.number[column][row]) for name, column in _PLAIN.items()},
        "software": nemo_stack(text["source"]) if printed in _NAMED_NEMO else printed,
        "software_release": nemo_release(text["source"]) if printed in _NAMED_NEMO else "",
        "recompute_modules": _MODULES.get(text["recompute"].casefold(), ""),
    }
    if text["data_sharding"] == _SHARDED and math.isnan(_value(plan, "zero_stage")):
        plan["zero_stage"] = 3.0
    stated = stated_settings("training", text["settings"])
    for column, known in (
        ("precision", recipe_choice),
        ("recompute", lambda words: _RECOMPUTE.get(words.casefold(), "")),
    ):
        plan[column] = stated[column] if column in stated else _choice(text, column, known(text[column]))
    if _CHUNKED.search(text["notes"]):
        plan["cross_entropy"] = "chunked"
    plan.update(stated)
    if plan["recompute"] != "selective":
        plan["recompute_modules"] = ""
    if math.isnan(models.number(model, "num_mtp_layers")):
        plan.pop("train_mtp", None)
    if str(plan.get("network", "")).casefold() not in models.networks:
        plan.pop("network", None)
    _degrees(plan, published, row)
    if _value(plan, "pipeline_parallel") < 2.0 and _value(plan, "virtual_pipeline") > 1.0:
        remarks.append(f"interleave {_value(plan, 'virtual_pipeline'):g} of a pipeline of one stage left out")
        plan["virtual_pipeline"] = 1.0
    blank = [words for name, words in _UNSTATED.items() if plan[name] == "" or plan[name] != plan[name]]
    if blank:
        remarks.append(f"not stated, as the software does by default: {', '.join(blank)}")
    if text["metric_kind"] == "throughput_lora" and "adapter_rank" not in plan:
        plan["adapter_rank"] = _ADAPTER_RANK
        remarks.append(f"rank of the adapters not stated: {_ADAPTER_RANK:g}")
    if text["metric_kind"] in ("throughput_sft", "throughput_lora"):
        remarks.append("sequences are taken as packed to the full length: attention as of one document")
    _whole_batch(plan, text, remarks)
    return plan, remarks


def _whole_batch(plan: dict[str, object], text: dict[str, str], remarks: list[str]) -> None:
    """Bring a rounded global batch of a row that prints a rate to a whole number of micro-batches."""
    micro = _value(plan, "micro_batch_size")
    batch = _value(plan, "global_batch_size")
    pieces = _value(plan, "data_parallel") * (1.0 if micro != micro else micro)
    if text["iter_time_s"] or text["metric_kind"] != "throughput" or math.fmod(batch, pieces) == 0.0:
        return
    rounded = max(1.0, math.floor(batch / pieces + 0.5)) * pieces
    if abs(rounded / batch - 1.0) <= _ROUNDED:
        plan["global_batch_size"] = rounded
        remarks.append(f"global batch {batch:g} is no whole number of micro-batches: {rounded:g}")


def _value(plan: dict[str, object], column: str) -> float:
    value = plan[column]
    assert isinstance(value, float)
    return value


def _degrees(plan: dict[str, object], published: Published, row: int) -> None:
    """Fill degrees that follow from the others; refuse a row that does not say how it was mapped."""
    for column in ("context_parallel", "expert_parallel", "expert_tensor_parallel"):
        if math.isnan(_value(plan, column)):
            plan[column] = 1.0
    replicas = float(published.number["dp"][row])
    total, tensor = _value(plan, "num_accelerators"), _value(plan, "tensor_parallel")
    context = _value(plan, "context_parallel")
    if math.isnan(total) or math.isnan(tensor):
        raise Refusal("the mapping is not stated: accelerators or tensor parallel")
    if math.isnan(_value(plan, "pipeline_parallel")):
        if math.isnan(replicas):
            raise Refusal("the mapping is not stated: pipeline parallel")
        plan["pipeline_parallel"] = total / (tensor * context * replicas)
    if math.isnan(replicas):
        replicas = total / (tensor * context * _value(plan, "pipeline_parallel"))
    plan["data_parallel"] = replicas
    for column, words in (("global_batch_size", "global batch"), ("sequence_length", "sequence length")):
        if math.isnan(_value(plan, column)):
            raise Refusal(f"the {words} is not stated")


def _choice(text: dict[str, str], column: str, known: str) -> str:
    """Choice of a column that a row prints, "" if it may be blank and is."""
    if known:
        return known
    if text[column]:
        raise Refusal(f'{column} "{text[column]}" is not modelled')
    if column == "precision":
        raise Refusal(f"{column} is not stated")
    return ""
