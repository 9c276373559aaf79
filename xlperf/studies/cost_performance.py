"""What a token costs and how fast it comes: the frontier over machines and plans, for serving and for training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import numpy as np

from xlperf.base.units import UNITS
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.studies.outcome import (
    Chart,
    Finding,
    Inputs,
    Outcome,
    Rows,
    Setting,
    Study,
    StudySheet,
    Value,
    order,
    own_column,
    shown,
    wide,
)

_MACHINES = (
    "A100-SXM4-80GB",
    "H100-SXM-80GB",
    "H200-SXM-141GB",
    "B200-SXM-180GB",
    "GB200-NVL72",
    "MI300X",
    "MI355X",
)
_EIGHT_BIT = frozenset(_MACHINES) - {"A100-SXM4-80GB"}


def _rows() -> Mapping[str, Rows]:
    """A model of 70 billion parameters served and trained on seven machines: a grid of plans for each."""
    inference: list[dict[str, object]] = []
    training: list[dict[str, object]] = []
    for machine in _MACHINES:
        precisions = ("bf16", "fp8") if machine in _EIGHT_BIT else ("bf16",)
        for precision, tensor, batch in product(precisions, (1, 2, 4, 8), (1, 2, 4, 8, 16, 32, 64, 128, 256)):
            inference.append(
                {
                    "name": f"{machine}, {precision}, TP {tensor}, batch {batch}",
                    "model": "Meta-Llama-3.1-70B",
                    "accelerator": machine,
                    "num_accelerators": tensor,
                    "tensor_parallel": tensor,
                    "prompt_length": 2048,
                    "output_length": 512,
                    "batch_size": batch,
                    "precision": precision,
                }
            )
        degrees = ((1, 1, 3), (2, 2, 3), (4, 1, 1), (4, 4, 1), (8, 1, 1), (2, 4, 1), (8, 4, 1), (4, 2, 1))
        for precision, (tensor, pipeline, stage), micro, recompute in product(
            precisions, degrees, (1, 2), ("none", "full")
        ):
            training.append(
                {
                    "name": f"{machine}, {precision}, TP {tensor}, PP {pipeline}, ZeRO {stage}, micro {micro}, "
                    f"recompute {recompute}",
                    "model": "Meta-Llama-3.1-70B",
                    "accelerator": machine,
                    "num_accelerators": 256,
                    "tensor_parallel": tensor,
                    "pipeline_parallel": pipeline,
                    "virtual_pipeline": 5 if pipeline > 1 else 1,
                    "zero_stage": stage if pipeline == 1 else 1,
                    "global_batch_size": 512,
                    "micro_batch_size": micro,
                    "sequence_length": 4096,
                    "precision": precision,
                    "recompute": recompute,
                    "software": "nemo",
                }
            )
    return {"inference": inference, "training": training}


def frontier(quick: np.ndarray, cheap: np.ndarray) -> np.ndarray:
    """Rows that no other row beats in both of two quantities that should be small, quickest first.

    Parameters
    ----------
    quick, cheap : array
        The quantities, (rows,); NaN rows are left out.

    Returns
    -------
    array of int
        Row indexes.

    >>> frontier(np.array([1.0, 2.0, 3.0, 2.5]), np.array([9.0, 5.0, 6.0, 4.0]))
    array([0, 1, 3])
    """
    rows = np.flatnonzero(np.isfinite(quick) & np.isfinite(cheap))
    rows = rows[np.lexsort((cheap[rows], quick[rows]))]
    if not len(rows):
        return rows
    before = np.concatenate([[np.inf], np.minimum.accumulate(cheap[rows])[:-1]])
    kept: np.ndarray = rows[cheap[rows] < before]
    return kept


def _analyse(inputs: Inputs) -> Outcome:
    catalog = inputs.catalog
    sheets: list[StudySheet] = []
    findings: list[Finding] = []
    drawn: list[tuple[Table, Table]] = []
    if "inference" in inputs.plans:
        plans = inputs.plans["inference"]
        results = evaluate(plans, catalog)
        found, more = _serving(inputs, plans, results)
        sheets += found
        findings += more
        kept = _kept(plans, results, "tpot", "cost_per_million_output_tokens_all_in")
        drawn.append((plans.take(kept), results.take(kept)))
    if "training" in inputs.plans:
        plans = inputs.plans["training"]
        results = evaluate(plans, catalog)
        sheet, more = _training(plans, results)
        sheets.append(sheet)
        findings += more
        kept = _kept(plans, results, "step_time", "cost_per_million_tokens")
        drawn.append((plans.take(kept), results.take(kept)))
    return Outcome(findings, sheets, catalog, drawn)


def _good(results: Table) -> np.ndarray:
    flags: np.ndarray = results.number("fits") == 1
    return flags


def _kept(plans: Table, results: Table, time: str, cost: str) -> np.ndarray:
    """The frontier of each machine: the plans of the report's other sheets."""
    good = _good(results)
    rows: list[int] = []
    machines = plans.text("accelerator")
    for machine in order(machines):
        own = good & (machines == machine)
        rows += frontier(np.where(own, results[time], np.nan), np.where(own, results[cost], np.nan)).tolist()
    return np.array(rows or [0])


def _serving(inputs: Inputs, plans: Table, results: Table) -> tuple[list[StudySheet], list[Finding]]:
    machines = plans.text("accelerator")
    good = _good(results)
    time = np.where(good, shown(results, "tpot"), np.nan)
    cost = np.where(good, shown(results, "cost_per_million_output_tokens_all_in"), np.nan)
    names = order(machines)
    targets: list[Value] = list(inputs.numbers("time_per_token_targets"))
    found: dict[tuple[Value, str], float] = {}
    for target, name in product(targets, names):
        within = cost[(machines == name) & (time <= float(target or 0))]
        if np.isfinite(within).any():
            found[target, name] = float(np.nanmin(within))
    targeted = StudySheet(
        "serving",
        "Cheapest plan of each machine whose time per output token stays within the target; prompts are paid too.",
        [
            own_column("target", "ms", "Longest time per output token"),
            *(own_column(name, "USD/Mtoken", "All cost over a million output tokens") for name in names),
        ],
        wide(targets, names, found),
        [Chart("lines", "Cost within a target", "target", names, "ms per token", "USD/Mtoken", log_x=True, log_y=True)],
        shaded=names,
    )
    rows: list[tuple[Value, ...]] = []
    points: list[tuple[float, float, int]] = []
    for name in names:
        own = machines == name
        edge = frontier(np.where(own, time, np.nan), np.where(own, cost, np.nan))
        points += [(float(time[i]), float(cost[i]), int(i)) for i in edge]
    for own_time, own_cost, i in points:
        values = [own_cost if machines[i] == name else None for name in names]
        per = float(results["tokens_per_second_per_accelerator"][i])
        rows.append(
            (str(plans["name"][i]), str(machines[i]), own_time, *values, 1 / (own_time * UNITS["ms"].factor), per)
        )
    edge_sheet = StudySheet(
        "serving frontier",
        "Plans that no other plan of the same machine beats in both time per token and cost.",
        [
            own_column("plan", kind="name"),
            own_column("accelerator", kind="text"),
            own_column("time_per_token", "ms"),
            *(own_column(name, "USD/Mtoken", "All cost over a million output tokens") for name in names),
            own_column("tokens_per_second_and_user", "token/s"),
            own_column("tokens_per_second_and_accelerator", "token/s"),
        ],
        rows,
        [
            Chart(
                "points", "Cost and time per token", "time_per_token", names, "ms", "USD/Mtoken", log_x=True, log_y=True
            ),
            Chart(
                "points",
                "Throughput and interactivity",
                "tokens_per_second_and_user",
                ("tokens_per_second_and_accelerator",),
                "token/s and user",
                "token/s and accelerator",
                log_x=True,
                log_y=True,
            ),
        ],
    )
    return [targeted, edge_sheet], list(_serving_findings(targets, names, found))


def _serving_findings(
    targets: Sequence[Value], names: Sequence[str], found: Mapping[tuple[Value, str], float]
) -> Iterator[Finding]:
    for target in targets:
        able = sorted((found[target, name], name) for name in names if (target, name) in found)
        if not able:
            yield Finding(f"{target:g} ms", "No machine keeps this time per token with any plan tried.", "warning")
            continue
        unable = [name for name in names if (target, name) not in found]
        words = f"{able[0][1]} is cheapest within {target:g} ms per token, {able[0][0]:.2f} USD a million output tokens"
        if len(able) > 1:
            words += f"; next {able[1][1]} at {able[1][0]:.2f}"
        if unable:
            words += f"; not reached by {', '.join(unable)}"
        yield Finding(f"{target:g} ms", f"{words}.", "good")


def _training(plans: Table, results: Table) -> tuple[StudySheet, list[Finding]]:
    machines = plans.text("accelerator")
    good = _good(results)
    cost = np.where(good, shown(results, "cost_per_million_tokens"), np.nan)
    rate = np.where(good, results["tokens_per_second_per_accelerator"], np.nan)
    energy = results["energy_per_token"]
    rows: list[tuple[Value, ...]] = []
    for name in order(machines):
        own = np.flatnonzero((machines == name) & np.isfinite(rate))
        if not len(own):
            continue
        i = int(own[np.argmax(rate[own])])
        rows.append(
            (
                name,
                str(plans["name"][i]),
                float(results["step_time"][i]),
                float(rate[i]),
                float(results["mfu"][i]),
                float(cost[i]),
                float(energy[i]),
                float(1 / cost[i]) if cost[i] > 0 else None,
            )
        )
    fields = results.schema.by_name
    sheet = StudySheet(
        "training machines",
        "The fastest plan of each machine that fits: equal count, rate, cost and energy.",
        [
            own_column("accelerator", kind="name"),
            own_column("best_plan", kind="text"),
            fields["step_time"],
            fields["tokens_per_second_per_accelerator"],
            fields["mfu"],
            fields["cost_per_million_tokens"],
            fields["energy_per_token"],
            own_column("million_tokens_per_dollar", "-", "Performance per dollar"),
        ],
        rows,
        [
            Chart("columns", "Cost of training", "accelerator", ("cost_per_million_tokens",), y_title="USD/Mtoken"),
            Chart(
                "columns",
                "Rate",
                "accelerator",
                ("tokens_per_second_per_accelerator",),
                y_title="token/s and accelerator",
            ),
        ],
    )
    priced = sorted((float(row[5] or np.nan), str(row[0])) for row in rows if row[5] is not None and row[5] == row[5])
    findings: list[Finding] = []
    if priced:
        quick = max(rows, key=lambda row: float(row[3] or 0))
        words = (
            f"Training is cheapest on {priced[0][1]}, {priced[0][0]:.3f} USD a million tokens, and dearest on "
            f"{priced[-1][1]}, {priced[-1][0]:.3f}; the fastest for each accelerator is {quick[0]}."
        )
        findings.append(Finding("Training", words, "good"))
    return sheet, findings


STUDY = Study(
    name="cost-performance",
    title="Cost against performance",
    question="Which machine and plan gives a token at the lowest cost for a time that users accept?",
    published=(
        "arXiv 2507.02456 sets cost against performance; its figures could not be had. Prices are the sheet prices "
        "with their sources; the frontiers follow from them and from the accuracy of the times."
    ),
    analyse=_analyse,
    settings=(
        Setting(
            "time_per_token_targets",
            (8.0, 10.0, 12.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 75.0, 100.0),
            "ms",
            "Longest times per output token for which the cheapest plan is looked for",
        ),
    ),
    rows=_rows,
)
