"""Studies recompute and flash-attention: time and memory of two ways to keep fewer activations."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.studies.outcome import (
    Chart,
    Finding,
    Inputs,
    Outcome,
    comparable,
    own_column,
    result_columns,
    sheet_of,
    shown,
)

_PARTS = ("memory_weights", "memory_gradients", "memory_optimizer", "memory_activations")


def recompute(inputs: Inputs) -> Outcome:
    """What recomputation of activations costs in time and saves in memory."""
    plans = inputs.table("training")
    results = evaluate(plans, inputs.catalog)
    fields = ("step_time", "time_recompute", "hfu", "mfu", *_PARTS, "memory", "memory_capacity", "fits")
    sheet = sheet_of(
        "recompute",
        "Memory by part of the pipeline stage that needs most, and time of a step, for each kind of recomputation.",
        [
            ("plan", plans.text("name")),
            ("recompute", plans.text("recompute", "none")),
            *result_columns(results, fields),
        ],
        [
            Chart("bars", "Memory of the stage that needs most", "plan", _PARTS, y_title="GiB", stacked=True),
            Chart("bars", "Time of a step", "plan", ("step_time",), y_title="s"),
        ],
    )
    return Outcome(list(_recompute_findings(plans, results)), [sheet], inputs.catalog, [(plans, results)])


def _recompute_findings(plans: Table, results: Table) -> Iterator[Finding]:
    modes = plans.text("recompute", "none")
    groups = comparable(plans, "recompute", "recompute_modules", "recompute_layers", "recompute_group")
    activations, step, fits = results["memory_activations"], results["step_time"], results.number("fits")
    found: dict[str, list[tuple[float, float]]] = {"selective": [], "full": []}
    rescued = 0
    for group in range(max(groups, default=-1) + 1):
        row = {str(modes[i]): i for i in np.flatnonzero(groups == group)}
        if "none" not in row:
            continue
        none = row["none"]
        for mode, values in found.items():
            if mode in row and np.isfinite(step[[row[mode], none]]).all():
                own = row[mode]
                values.append((1 - activations[own] / activations[none], step[own] / step[none] - 1))
        rescued += bool(fits[none] == 0 and "selective" in row and fits[row["selective"]] == 1)
    for mode, values in found.items():
        if values:
            saved, slower = 100 * np.array(values).T
            words = (
                f"{mode.capitalize()} recompute saves {np.median(saved):.0f} % of the activations "
                f"(from {min(saved):.0f} to {max(saved):.0f} %) and makes the step "
                f"{np.median(slower):.1f} % longer (from {min(slower):.1f} to {max(slower):.1f} %)."
            )
            yield Finding(f"{mode.capitalize()} recompute", words, "good" if mode == "selective" else "plain")
    if not any(found.values()):
        words = "No two legal plans differ in recompute alone; the column reason says why plans are illegal."
        yield Finding("Nothing to compare", words, "warning")
    if rescued:
        yield Finding("Fits again", f"{rescued} plans fit in memory with selective recompute and do not without.")


def flash_attention(inputs: Inputs) -> Outcome:
    """Flash attention against the standard one: time, memory traffic and memory over the length of the sequence."""
    plans = inputs.table("training")
    results = evaluate(plans, inputs.catalog)
    attention, groups = plans.text("attention", "flash"), comparable(plans, "attention")
    flash_of = {groups[i]: i for i in range(len(plans)) if attention[i] == "flash"}
    pairs = [(i, flash_of[g]) for i, g in enumerate(groups) if attention[i] != "flash" and g in flash_of]
    standard, flash = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    machine, length = plans["accelerator"][standard], plans["sequence_length"][standard]
    step, mfu = results["step_time"], results["mfu"]
    activations = shown(results, "memory_activations")
    fits = results["fits"]
    speed, shrunk = step[standard] / step[flash], activations[standard] / activations[flash]
    sheet = sheet_of(
        "attention",
        "The same plan with standard attention, which writes the scores to memory, and with flash attention.",
        [
            ("case", [f"{name}, {tokens:.0f} tokens" for name, tokens in zip(machine, length, strict=True)]),
            ("accelerator", machine),
            (own_column("sequence_length", "token", "Tokens in a sequence"), length),
            (own_column("standard_step_time", "s"), step[standard]),
            (own_column("flash_step_time", "s"), step[flash]),
            (own_column("speed_up", "-", "Step time with standard attention over that with flash attention"), speed),
            (own_column("standard_activations", "GiB"), activations[standard]),
            (own_column("flash_activations", "GiB"), activations[flash]),
            (
                own_column("activations_ratio", "-", "Activations with standard over those with flash attention"),
                shrunk,
            ),
            (own_column("standard_mfu", "-"), mfu[standard]),
            (own_column("flash_mfu", "-"), mfu[flash]),
            ("standard_fits", np.where(fits[standard] == 1, "yes", "no")),
            ("flash_fits", np.where(fits[flash] == 1, "yes", "no")),
        ],
        [
            Chart("bars", "Speed-up of a step", "case", ("speed_up",), y_title="times"),
            Chart("bars", "Activations", "case", ("standard_activations", "flash_activations"), y_title="GiB"),
        ],
    )
    findings: list[Finding] = []
    for name in dict.fromkeys(machine):
        own = np.flatnonzero(machine == name)
        own = own[np.argsort(length[own], kind="stable")]
        low, high = own[0], own[-1]
        words = (
            f"On {name} flash attention makes the step {speed[low]:.2f} times as fast at {length[low]:.0f} tokens and "
            f"{speed[high]:.1f} times at {length[high]:.0f}; activations shrink {shrunk[low]:.1f} and "
            f"{shrunk[high]:.0f} times."
        )
        findings.append(Finding("Gain", words, "good"))
        if (shrunk[own] >= 2).any():
            knee = min(length[own][shrunk[own] >= 2])
            words = f"On {name} the scores are more than half of the activations from {knee:.0f} tokens on."
            findings.append(Finding("Knee", words))
    rescued = int(np.sum((fits[standard] == 0) & (fits[flash] == 1)))
    if rescued:
        findings.append(Finding("Fits again", f"{rescued} cases fit in memory with flash attention and not without."))
    return Outcome(findings, [sheet], inputs.catalog, [(plans, results)])
