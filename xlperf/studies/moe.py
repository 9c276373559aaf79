"""Dense models against mixtures of experts of equal active and of equal total parameters, and the width of EP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from xlperf.base.units import UNITS
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.join import join
from xlperf.equations.model.parameters import parameter_count
from xlperf.studies.outcome import (
    Chart,
    Finding,
    Inputs,
    Outcome,
    Rows,
    Study,
    StudySheet,
    Value,
    order,
    own_column,
    shown,
    wide,
)

_COUNT = 256
_SHAPE: Mapping[str, object] = {
    "num_layers": 48,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_query_groups": 8,
    "head_size": 128,
    "vocab_size": 128000,
    "gated_mlp": "yes",
    "source": "study moe",
    "year": 2026,
    "kind": "assumption",
}
_ACTIVE = 16384  # width of the feed-forward layer that a token meets
_FINE = 16  # experts that a token visits in the finest mixture


def _models() -> list[dict[str, object]]:
    """One backbone; a token meets a feed-forward width of 16384 in all but the two dense ones of equal total size."""
    dense = {"model": "dense, equal active", "ffn_hidden_size": _ACTIVE}
    rows: list[dict[str, object]] = [dense]
    for experts, top in ((8, 2), (64, 8), (128, _FINE)):
        rows.append(
            {
                "model": f"{experts} experts, {top} active",
                "ffn_hidden_size": _ACTIVE,
                "num_experts": experts,
                "top_k": top,
                "moe_ffn_hidden_size": _ACTIVE // top,
            }
        )
    rows.append({"model": "dense, equal total to 8 experts", "ffn_hidden_size": 4 * _ACTIVE})
    rows.append({"model": "dense, equal total to 64 experts", "ffn_hidden_size": 8 * _ACTIVE})
    return [{**_SHAPE, **row} for row in rows]


def _rows() -> Mapping[str, Rows]:
    models = _models()
    common: dict[str, object] = {
        "accelerator": "H100-SXM-80GB",
        "num_accelerators": _COUNT,
        "pipeline_parallel": 4,
        "virtual_pipeline": 3,
        "global_batch_size": 1024,
        "micro_batch_size": 1,
        "sequence_length": 4096,
        "precision": "bf16",
        "software": "nemo",
        "recompute": "selective",
    }
    training: list[dict[str, object]] = []
    for model in models:
        name = str(model["model"])
        if "num_experts" not in model:
            degree = 4 if name.endswith("64 experts") else 2
            training.append({"name": name, "model": name, "tensor_parallel": degree, **common})
            continue
        for width in (1, 2, 4, 8, 16, 32, 64):
            if width <= int(str(model["num_experts"])):
                plan = {"tensor_parallel": 2, "expert_parallel": width, "expert_tensor_parallel": 1, **common}
                training.append({"name": f"{name}, expert parallel {width}", "model": name, **plan})
    inference: list[dict[str, object]] = [
        {
            "name": f"{model['model']}, batch {batch}",
            "model": model["model"],
            "accelerator": "H200-SXM-141GB",
            "num_accelerators": 2,
            "tensor_parallel": 2,
            "prompt_length": 1024,
            "output_length": 1024,
            "batch_size": batch,
            "precision": "bf16",
        }
        for model in models
        for batch in (1, 4, 16, 64, 256)
    ]
    return {"models": models, "training": training, "inference": inference}


def _analyse(inputs: Inputs) -> Outcome:
    catalog = inputs.catalog
    training, inference = inputs.table("training"), inputs.table("inference")
    trained, served = evaluate(training, catalog), evaluate(inference, catalog)
    models = order(training.text("model"))
    rate = trained["tokens_per_second_per_accelerator"]
    joined = join(training, catalog)
    total, active = parameter_count(joined.model), parameter_count(joined.model, experts_per_token=True)
    fits = trained.number("fits")
    width = training.filled("expert_parallel")
    giga = UNITS["G"].factor
    best: dict[str, int] = {}
    for i, name in enumerate(training.text("model")):
        good = np.isfinite(rate[i]) and fits[i] == 1
        if good and (str(name) not in best or rate[i] > rate[best[str(name)]]):
            best[str(name)] = i
    fields = trained.schema.by_name
    columns = ("step_time", "tokens_per_second_per_accelerator", "mfu", "time_expert_parallel", "memory_reserved")
    rows: list[tuple[Value, ...]] = []
    for name in models:
        if name not in best:
            continue
        i = best[name]
        values = [float(shown(trained, field)[i]) for field in columns]
        cost = float(shown(trained, "cost_per_million_tokens")[i])
        rows.append((name, float(total[i]) / giga, float(active[i]) / giga, float(width[i]), *values, cost))
    sheet = StudySheet(
        "experts",
        "Training with the best width of expert parallelism among those planned that fit in memory.",
        [
            own_column("model", kind="name"),
            own_column("parameters", "G", "All parameters"),
            own_column("active_parameters", "G", "Parameters that a token uses"),
            own_column("expert_parallel", "-", "Best width of expert parallelism"),
            *(fields[field] for field in columns),
            fields["cost_per_million_tokens"],
        ],
        rows,
        [
            Chart("bars", "Training rate", "model", ("tokens_per_second_per_accelerator",), y_title="token/s"),
            Chart("bars", "Parameters", "model", ("parameters", "active_parameters"), y_title="10^9"),
        ],
    )
    widths = _widths(training, rate, trained["time_expert_parallel"] / trained["step_time"], width, models)
    decode = _decode(inference, served)
    findings = [*_findings(rows, decode), *_width_findings(widths)]
    return Outcome(findings, [sheet, widths, decode], catalog, [(training, trained), (inference, served)])


def _widths(training: Table, rate: np.ndarray, share: np.ndarray, width: np.ndarray, models: list[str]) -> StudySheet:
    names = training.text("model")
    mixtures = [m for m in models if len({width[i] for i in range(len(names)) if names[i] == m}) > 1]
    keys = sorted({float(width[i]) for i in range(len(names)) if names[i] in mixtures})
    found: dict[tuple[Value, str], float] = {}
    for i, name in enumerate(names):
        if name in mixtures and np.isfinite(rate[i]):
            found[float(width[i]), f"rate_{name}"] = float(rate[i])
            found[float(width[i]), f"share_{name}"] = float(share[i])
    rates, shares = [f"rate_{m}" for m in mixtures], [f"share_{m}" for m in mixtures]
    return StudySheet(
        "width",
        "Training rate over the width of expert parallelism, and the share of the step that waits for experts' tokens.",
        [
            own_column("expert_parallel", "-", "Accelerators that share the experts of a layer"),
            *(own_column(name, "token/s", "Tokens per second and accelerator") for name in rates),
            *(own_column(name, "-", "Exposed all-to-all over step time") for name in shares),
        ],
        wide(keys, [*rates, *shares], found),
        [
            Chart("lines", "Training rate", "expert_parallel", rates, "expert parallel", "token/s", log_x=False),
            Chart("lines", "Share of exposed all-to-all", "expert_parallel", shares, "expert parallel", "of the step"),
        ],
    )


def _decode(inference: Table, served: Table) -> StudySheet:
    models, time = order(inference.text("model")), shown(served, "tpot")
    keys: Sequence[Value] = sorted({float(value) for value in inference["batch_size"]})
    found: dict[tuple[Value, str], float] = {
        (float(inference["batch_size"][i]), str(inference["model"][i])): float(time[i])
        for i in range(len(inference))
        if np.isfinite(served["tpot"][i])
    }
    return StudySheet(
        "decode",
        "Time per output token over the batch: experts save bytes at batch 1 and lose that as more of them are hit.",
        [own_column("batch", "-", "Requests"), *(own_column(m, "ms", "Time per output token") for m in models)],
        wide(keys, models, found),
        [Chart("lines", "Time per output token", "batch", models, "batch", "ms", log_x=True, log_y=True)],
    )


def _findings(rows: list[tuple[Value, ...]], decode: StudySheet) -> Iterator[Finding]:
    values = {str(row[0]): row for row in rows}
    dense = next((row for row in rows if str(row[0]).startswith("dense, equal active")), None)
    for name, row in values.items():
        if dense is None or "experts," not in name or name.startswith("dense"):
            continue
        size, speed = float(row[1] or 0) / float(dense[1] or 1), float(row[5] or 0) / float(dense[5] or 1)
        words = f"{name}: {size:.1f} times the parameters of the dense model of equal active size "
        words += f"at {speed:.2f} times its rate"
        twin = values.get(f"dense, equal total to {name.partition(',')[0]}")
        if twin is not None:
            gain = float(row[5] or 0) / float(twin[5] or 1)
            words += f", and {gain:.1f} times the rate of the dense one of equal total size"
        yield Finding("Training", f"{words}.", "good")
    names = [column.name for column in decode.columns]
    first, last = decode.rows[0], decode.rows[-1]
    if "dense, equal active" in names:
        at = names.index("dense, equal active")
        parts = [
            f"{name} {float(first[i] or 0) / float(first[at] or 1):.2f} at batch {float(first[0] or 0):.0f} and "
            f"{float(last[i] or 0) / float(last[at] or 1):.2f} at {float(last[0] or 0):.0f}"
            for i, name in enumerate(names)
            if "experts," in name and not name.startswith("dense")
        ]
        yield Finding(
            "Decode", f"Time per token over that of the dense model of equal active size: {'; '.join(parts)}."
        )


def _width_findings(widths: StudySheet) -> Iterator[Finding]:
    names = [column.name for column in widths.columns]
    for i, name in enumerate(names):
        if name.startswith("rate_"):
            column = [(float(row[i] or 0), float(row[0] or 0)) for row in widths.rows if row[i] is not None]
            if not column:
                continue
            best, at = max(column)
            words = (
                f"{name.removeprefix('rate_')}: expert parallel {at:.0f} trains fastest, {best:.0f} tokens per second"
            )
            yield Finding(
                "Width", f"{words}; the widest, {column[-1][1]:.0f}, reaches {column[-1][0] / best:.2f} of it."
            )


STUDY = Study(
    name="moe",
    title="Mixtures of experts",
    question="What do experts cost and gain against dense models of equal active and of equal total size?",
    published=(
        "arXiv 2507.02456 treats mixtures of experts; its figures could not be had. The published training rates of "
        "Mixtral, Qwen3 and DeepSeek-V3 are in validation.xlsx and in the accuracy table, group moe."
    ),
    analyse=_analyse,
    rows=_rows,
)
