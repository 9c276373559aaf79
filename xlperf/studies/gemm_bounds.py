"""What bounds every matrix product of a layer, in prefill and in decode, machine by machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from xlperf.base.units import UNITS
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table
from xlperf.engine import evaluate, explain
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
    wide,
)

_MACHINES = ("A100-SXM4-80GB", "H100-SXM-80GB", "H200-SXM-141GB", "B200-SXM-180GB", "MI300X", "TPUv5p")
_FAMILIES = ("gemm", "attention", "attention_decode", "attention_latent")


def _rows() -> Mapping[str, Rows]:
    """The 13B model of the paper with 200 tokens in and 200 out at batch 1, on machines of one accelerator each."""
    return {
        "inference": [
            {
                "name": f"Llama 2 13B on {machine}",
                "model": "Llama2-13B",
                "accelerator": machine,
                "num_accelerators": 1,
                "prompt_length": 200,
                "output_length": 200,
                "batch_size": 1,
                "precision": "bf16",
            }
            for machine in _MACHINES
        ]
    }


def _analyse(inputs: Inputs) -> Outcome:
    plans = inputs.table("inference")
    results = evaluate(plans, inputs.catalog)
    legal = [row for row in range(len(plans)) if np.isfinite(results["tpot"][row])]
    names = [str(name) for name in plans.text("name")]
    operators = {row: explain(plans, inputs.catalog, row) for row in legal}
    machines = inputs.catalog.tables["accelerators"]
    index = inputs.catalog.rows("accelerators", plans["accelerator"], plans, "accelerator")
    precision = plans.text("precision", "bf16")
    schema = table_schema("operators").by_name
    rows: list[tuple[Value, ...]] = []
    words: dict[tuple[Value, str], str] = {}
    for row, table in operators.items():
        kind = "bf16" if precision[row] == "fp16" else str(precision[row])
        peak = float(machines[f"peak_flop_rate_{kind}"][index[row]])
        bandwidth = float(machines["memory_bandwidth"][index[row]])
        for i in range(len(table)):
            if str(table["family"][i]) not in _FAMILIES:
                continue
            phase, operator = str(table["phase"][i]), str(table["operator"][i])
            time, flop, traffic = (float(table[name][i]) for name in ("time", "flop", "traffic"))
            bound = str(table["bound"][i])
            words[f"{phase}: {operator}", names[row]] = bound
            rows.append(
                (
                    f"{names[row]}: {phase} {operator}",
                    names[row],
                    phase,
                    operator,
                    *(float(table[name][i]) for name in ("m", "n", "k")),
                    flop / UNITS["GFLOP"].factor,
                    traffic / UNITS["MB"].factor,
                    flop / traffic,
                    peak / bandwidth,
                    time / UNITS["us"].factor,
                    flop / time / peak,
                    traffic / time / bandwidth,
                    bound,
                )
            )
    columns = [
        own_column("key", kind="name"),
        own_column("plan", kind="text"),
        own_column("phase", kind="text"),
        own_column("operator", kind="text"),
        schema["m"],
        schema["n"],
        schema["k"],
        schema["flop"],
        schema["traffic"],
        schema["arithmetic_intensity"],
        own_column("ridge", "FLOP/B", "Arithmetic intensity at which peak rate and memory bandwidth meet"),
        schema["time"],
        own_column("share_of_peak_rate", "-", "Rate of operations over the peak of the format"),
        own_column("share_of_memory_bandwidth", "-", "Rate of bytes over the peak of the memory"),
        schema["bound"],
    ]
    used = [names[row] for row in legal]
    matrix = [(key, *(words.get((key, name)) for name in used)) for key in order(str(key) for key, _ in words)]
    bounds = StudySheet(
        "bounds",
        "What each product and the attention of a layer waits for: arithmetic (compute) or bytes (memory).",
        [own_column("operator", kind="name"), *(own_column(name, kind="text") for name in used)],
        matrix,
    )
    detail = StudySheet(
        "operators",
        "Every product of a layer with its size, its arithmetic intensity and what it reaches.",
        columns,
        rows,
    )
    batch, turns = _batches(inputs, plans, legal, names)
    times = _times(operators, names)
    findings = [*_findings(matrix, used), *_turn_findings(turns, used, inputs.numbers("batch_sizes"))]
    return Outcome(findings, [bounds, times, batch, detail], inputs.catalog, [(plans, results)])


def _times(operators: Mapping[int, Table], names: Sequence[str]) -> StudySheet:
    """Time of a layer's operators in both phases by machine."""
    found: dict[tuple[Value, str], float] = {}
    series: list[str] = []
    for row, table in operators.items():
        for i in range(len(table)):
            if str(table["family"][i]) in _FAMILIES and str(table["operator"][i]) != "logits":
                name = str(table["operator"][i]).replace(" ", "_")
                series.append(name)
                found[f"{names[row]}, {table['phase'][i]}", name] = float(table["time"][i]) / UNITS["us"].factor
    series = order(series)
    return StudySheet(
        "times",
        "Time of the products and the attention of one layer.",
        [own_column("plan", kind="name"), *(own_column(name, "us", "Time of one call") for name in series)],
        wide(order(str(key) for key, _ in found), series, found),
        [Chart("bars", "One layer, prefill and decode", "plan", series, y_title="us", stacked=True)],
    )


def _batches(
    inputs: Inputs, plans: Table, legal: Sequence[int], names: Sequence[str]
) -> tuple[StudySheet, dict[tuple[Value, str], float]]:
    """The smallest batch at which each product of a decode step waits for arithmetic, on each machine."""
    sizes = sorted(inputs.numbers("batch_sizes"))
    turns: dict[tuple[Value, str], float] = {}
    seen: list[str] = []
    for row in legal:
        for size in sizes:
            columns = {name: values[[row]].copy() for name, values in plans.columns.items()}
            columns["batch_size"] = np.array([size])
            table = explain(replace(plans, columns=columns), inputs.catalog, 0)
            for i in range(len(table)):
                if str(table["phase"][i]) != "decode" or str(table["family"][i]) not in _FAMILIES:
                    continue
                operator = str(table["operator"][i])
                seen.append(operator)
                if str(table["bound"][i]) == "compute":
                    turns.setdefault((operator, names[row]), size)
    used = [names[row] for row in legal]
    sheet = StudySheet(
        "batch",
        "Smallest batch of those tried at which a product of the decode step waits for arithmetic; blank: at none.",
        [own_column("operator", kind="name"), *(own_column(name, "-", "Requests in a batch") for name in used)],
        wide(order(seen), used, turns),
        shaded=used,
    )
    return sheet, turns


def _findings(matrix: Sequence[tuple[Value, ...]], used: Sequence[str]) -> Iterator[Finding]:
    for phase in ("prefill", "decode"):
        parts: list[str] = []
        for place, name in enumerate(used, start=1):
            bounds = [str(row[place]) for row in matrix if str(row[0]).startswith(phase) and str(row[0]) != "attention"]
            parts.append(f"{bounds.count('compute')} of {len(bounds)} on {name.rpartition(' on ')[2]}")
        yield Finding(phase.capitalize(), f"Operators that wait for arithmetic: {', '.join(parts)}.")


def _turn_findings(
    turns: Mapping[tuple[Value, str], float], used: Sequence[str], sizes: Sequence[float]
) -> Iterator[Finding]:
    parts = []
    for name in used:
        found = [size for (operator, plan), size in turns.items() if plan == name and operator != "attention"]
        machine = name.rpartition(" on ")[2]
        parts.append(f"{min(found):.0f} on {machine}" if found else f"none up to {max(sizes):.0f} on {machine}")
    yield Finding("Batch", f"Smallest batch at which a product of decode waits for arithmetic: {', '.join(parts)}.")


STUDY = Study(
    name="gemm-bounds",
    title="What bounds each matrix product",
    question="Which products of a layer wait for arithmetic and which for memory, in prefill and decode?",
    published=(
        "arXiv 2407.14645 has such a table for inference; its numbers could not be had, so none is compared. That "
        "decode at batch 1 reads every weight for one token and waits for memory on every machine is a hand count: two "
        "operations for each two bytes."
    ),
    analyse=_analyse,
    settings=(
        Setting(
            "batch_sizes",
            (1.0, 8.0, 32.0, 64.0, 96.0, 128.0, 192.0, 256.0, 384.0, 512.0, 768.0, 1024.0),
            "-",
            "Batches at which a decode step is looked at",
        ),
    ),
    rows=_rows,
)
