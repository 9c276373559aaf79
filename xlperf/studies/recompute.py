"""What recomputation of activations costs in time and saves in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from xlperf.catalog.schema import results_of
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
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
)

_MODES = ("none", "selective", "full")
_PARTS = ("memory_weights", "memory_gradients", "memory_optimizer", "memory_activations")


def _rows() -> Mapping[str, Rows]:
    """Four models of the paper on recomputation, with and without sequence parallelism, three modes each."""
    plans: list[dict[str, object]] = []
    shapes = (
        ("22B", "megatron-22B", 8, 1, 1, 4, 4),
        ("175B", "GPT3-175B", 8, 8, 3, 64, 1),
        ("530B", "turing-530B", 8, 35, 3, 280, 1),
        ("1T", "megatron-1T", 8, 64, 1, 512, 1),
    )
    for label, model, tensor, pipeline, virtual, batch, micro in shapes:
        for sequence in ("no", "yes"):
            for mode in _MODES:
                words = f"{label}, {'sequence parallel, ' if sequence == 'yes' else ''}{mode} recompute"
                plans.append(
                    {
                        "name": words,
                        "model": model,
                        "accelerator": "A100-SXM4-80GB",
                        "num_accelerators": tensor * pipeline,
                        "tensor_parallel": tensor,
                        "sequence_parallel": sequence,
                        "pipeline_parallel": pipeline,
                        "virtual_pipeline": virtual,
                        "global_batch_size": batch,
                        "micro_batch_size": micro,
                        "sequence_length": 2048,
                        "precision": "fp16",
                        "attention": "standard",
                        "recompute": mode,
                        "zero_stage": 0,
                    }
                )
    return {"training": plans}


def _analyse(inputs: Inputs) -> Outcome:
    plans = inputs.table("training")
    results = evaluate(plans, inputs.catalog)
    names = [str(name) for name in plans.text("name")]
    columns = results_of("training").by_name
    fields = ("step_time", "time_recompute", "hfu", "mfu", *_PARTS, "memory", "memory_capacity")
    values = {field: shown(results, field) for field in fields}
    fits = results.number("fits")
    rows: list[tuple[Value, ...]] = [
        (
            names[i],
            str(plans.text("recompute", "none")[i]),
            *(float(values[f][i]) for f in fields),
            bool(fits[i]) if fits[i] == fits[i] else None,
        )
        for i in range(len(plans))
    ]
    sheet = StudySheet(
        "recompute",
        "Memory of the fullest accelerator by part and time of a step for each way to recompute activations.",
        [
            own_column("plan", kind="name"),
            own_column("recompute", kind="text"),
            *(columns[f] for f in (*fields, "fits")),
        ],
        rows,
        [
            Chart("bars", "Memory of the fullest accelerator", "plan", _PARTS, y_title="GiB", stacked=True),
            Chart("bars", "Time of a step", "plan", ("step_time",), y_title="s"),
        ],
    )
    return Outcome(list(_findings(plans, results)), [sheet], inputs.catalog, [(plans, results)])


def _group(plans: Table, row: int) -> str:
    """What a plan has in common with those that differ from it in recomputation alone."""
    skip = ("name", "recompute", "recompute_modules", "recompute_layers", "recompute_group")
    return "\n".join(str(plans[name][row]) for name in plans.columns if name not in skip)


def _findings(plans: Table, results: Table) -> Iterator[Finding]:
    modes = plans.text("recompute", "none")
    groups = [_group(plans, row) for row in range(len(plans))]
    activations, step = results["memory_activations"], results["step_time"]
    saved: dict[str, list[float]] = {"selective": [], "full": []}
    slower: dict[str, list[float]] = {"selective": [], "full": []}
    rescued = 0
    for group in order(groups):
        row = {str(modes[i]): i for i, found in enumerate(groups) if found == group}
        if "none" not in row:
            continue
        for mode in ("selective", "full"):
            if mode in row and np.isfinite(step[[row[mode], row["none"]]]).all():
                saved[mode].append(1 - activations[row[mode]] / activations[row["none"]])
                slower[mode].append(step[row[mode]] / step[row["none"]] - 1)
        fits = results.number("fits")
        rescued += bool(fits[row["none"]] == 0 and "selective" in row and fits[row["selective"]] == 1)
    for mode in ("selective", "full"):
        if saved[mode]:
            words = (
                f"{mode.capitalize()} recompute saves {100 * np.median(saved[mode]):.0f} % of the activations "
                f"(from {100 * min(saved[mode]):.0f} to {100 * max(saved[mode]):.0f} %) and makes the step "
                f"{100 * np.median(slower[mode]):.1f} % longer (from {100 * min(slower[mode]):.1f} "
                f"to {100 * max(slower[mode]):.1f} %)."
            )
            yield Finding(f"{mode.capitalize()} recompute", words, "good" if mode == "selective" else "plain")
    if not saved["selective"] and not saved["full"]:
        yield Finding(
            "Nothing to compare", "No two plans that can be differ in recompute alone; see reasons.", "warning"
        )
    if rescued:
        yield Finding("Fits again", f"{rescued} plans fit in memory with selective recompute and do not without.")


STUDY = Study(
    name="recompute",
    title="Recomputation of activations",
    question="How much memory does recomputation save, and how much longer does a step take?",
    published=(
        "Korthikanti et al. 2022 (arXiv 2205.05198), table 5 and figure 7: with sequence parallelism and selective "
        "recompute models of 22 to 1000 billion parameters need about a fifth of the activations, for a few percent of "
        "time, where full recompute takes 30 to 40 %."
    ),
    analyse=_analyse,
    rows=_rows,
)
