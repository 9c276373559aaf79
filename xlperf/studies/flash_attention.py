"""Flash attention against the standard one: time, memory traffic and memory over the length of the sequence."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from xlperf.engine import evaluate
from xlperf.studies.outcome import Chart, Finding, Inputs, Outcome, Rows, Study, StudySheet, Value, own_column, shown

_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
_TOKENS = 65536  # of a replica in a step
_MICRO = 8192  # of a micro-batch


def _rows() -> Mapping[str, Rows]:
    """One model at sequences of growing length and a constant number of tokens in a step, with both attentions."""
    plans: list[dict[str, object]] = []
    for machine in ("A100-SXM4-80GB", "H100-SXM-80GB"):
        for attention in ("standard", "flash"):
            for length in _LENGTHS:
                plans.append(
                    {
                        "name": f"{machine}, {attention}, {length}",
                        "model": "GPT3-6.7B",
                        "accelerator": machine,
                        "num_accelerators": 8,
                        "tensor_parallel": 2,
                        "sequence_parallel": "yes",
                        "global_batch_size": 4 * max(_TOKENS // length, 1),
                        "micro_batch_size": max(_MICRO // length, 1),
                        "sequence_length": length,
                        "precision": "bf16",
                        "attention": attention,
                        "recompute": "none",
                    }
                )
    return {"training": plans}


def _analyse(inputs: Inputs) -> Outcome:
    plans = inputs.table("training")
    results = evaluate(plans, inputs.catalog)
    attention = plans.text("attention", "flash")
    skip = ("name", "attention")
    key = ["\n".join(str(plans[c][i]) for c in plans.columns if c not in skip) for i in range(len(plans))]
    flash = {key[i]: i for i in range(len(plans)) if attention[i] == "flash"}
    activation = shown(results, "memory_activations")
    rows: list[tuple[Value, ...]] = []
    gains: dict[str, list[tuple[float, float, float]]] = {}
    for i in range(len(plans)):
        if attention[i] == "flash" or key[i] not in flash:
            continue
        j = flash[key[i]]
        machine, length = str(plans["accelerator"][i]), float(plans["sequence_length"][i])
        speed = float(results["step_time"][i] / results["step_time"][j])
        activations = [float(activation[row]) for row in (i, j)]
        rows.append(
            (
                f"{machine}, {length:.0f} tokens",
                machine,
                length,
                float(results["step_time"][i]),
                float(results["step_time"][j]),
                speed,
                *activations,
                activations[0] / activations[1],
                float(results["mfu"][i]),
                float(results["mfu"][j]),
                *(bool(results["fits"][row]) for row in (i, j)),
            )
        )
        gains.setdefault(machine, []).append((length, speed, activations[0] / activations[1]))
    sheet = StudySheet(
        "attention",
        "The same plan with the standard attention, which writes every score to memory, and with flash attention.",
        [
            own_column("case", kind="name"),
            own_column("accelerator", kind="text"),
            own_column("sequence_length", "token", "Tokens in a sequence"),
            own_column("standard_step_time", "s"),
            own_column("flash_step_time", "s"),
            own_column("speed_up", "-", "Step time with standard attention over that with flash attention"),
            own_column("standard_activations", "GiB"),
            own_column("flash_activations", "GiB"),
            own_column("activations_ratio", "-", "Activations with standard attention over those with flash attention"),
            own_column("standard_mfu", "-"),
            own_column("flash_mfu", "-"),
            own_column("standard_fits", kind="result-flag"),
            own_column("flash_fits", kind="result-flag"),
        ],
        rows,
        [
            Chart("bars", "Speed-up of a step", "case", ("speed_up",), y_title="times"),
            Chart("bars", "Activations", "case", ("standard_activations", "flash_activations"), y_title="GiB"),
        ],
    )
    findings: list[Finding] = []
    for machine, values in gains.items():
        values.sort()
        low, high = values[0], values[-1]
        words = (
            f"On {machine} flash attention makes the step {low[1]:.2f} times as fast at {low[0]:.0f} tokens and "
            f"{high[1]:.1f} times at {high[0]:.0f}; activations shrink {low[2]:.1f} and {high[2]:.0f} times."
        )
        findings.append(Finding("Gain", words, "good"))
        twice = [length for length, _, ratio in values if ratio >= 2]
        if twice:
            words = f"On {machine} the scores are more than half of the activations from {min(twice):.0f} tokens on."
            findings.append(Finding("Knee", words))
    shorter = int(np.sum([row[11] is False and row[12] is True for row in rows]))
    if shorter:
        findings.append(Finding("Fits again", f"{shorter} cases fit in memory with flash attention and not without."))
    return Outcome(findings, [sheet], inputs.catalog, [(plans, results)])


STUDY = Study(
    name="flash-attention",
    title="Flash attention",
    question="What does flash attention gain in time and memory as sequences grow?",
    published=(
        "Dao et al. 2022 (arXiv 2205.14135) report 3 times for GPT-2 at 1,024 tokens over an implementation without "
        "fused kernels, and 1.7 times over Megatron's; Korthikanti et al. 2022 give the activations that scores take, "
        "5 a s / h of 34 + 5 a s / h, which the memory here follows exactly."
    ),
    analyse=_analyse,
    rows=_rows,
)
