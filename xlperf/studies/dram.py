"""Latency of inference over the memory technology, until the next bound shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product

import numpy as np

from xlperf.base.units import UNITS
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.studies.derived import derived, device_row, for_each, with_devices
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
    own_column,
    shown,
    wide,
)
from xlperf.studies.source import with_rows

_PARTS = ("time_matrix", "time_attention", "time_vector", "time_communication", "time_overhead")


def _rows() -> Mapping[str, Rows]:
    """The 13B model of the paper on one accelerator at batch 1, and a 70B model on eight at batch 1 and 32."""
    rows: list[dict[str, object]] = []
    for label, model, count, batch in (
        ("13B, batch 1", "Llama2-13B", 1, 1),
        ("70B on 8, batch 1", "Llama2-70B", 8, 1),
        ("70B on 8, batch 32", "Llama2-70B", 8, 32),
    ):
        rows.append(
            {
                "name": label,
                "model": model,
                "accelerator": "H100-SXM-80GB",
                "num_accelerators": count,
                "tensor_parallel": count,
                "prompt_length": 200,
                "output_length": 200,
                "batch_size": batch,
                "precision": "bf16",
            }
        )
    return {"inference": rows}


def _analyse(inputs: Inputs) -> Outcome:
    plans = inputs.table("inference")
    place = f"{inputs.origin} [study]"
    base = device_row(inputs.catalog, inputs.text("device"), place)
    memories = inputs.words("memories")
    names = [f"{inputs.text('device')} with {memory}" for memory in memories]
    changes = {"memory": np.array(memories, dtype=object)}
    network = inputs.text("network")
    catalog = with_devices(inputs.catalog, base, names, changes, inputs.text("generation"), [network] * len(names))
    steps = inputs.numbers("further_steps")
    catalog, further = _further(catalog, names[-1], steps)
    names += further
    labels = [*memories, *(f"{memories[-1]} x {step:g}" for step in steps)]
    table = derived(catalog, names)
    bandwidth = table["memory_bandwidth"] / UNITS["TB/s"].factor
    every = for_each(plans, names)
    results = evaluate(every, catalog)
    count = len(names)
    kinds = [str(name) for name in plans.text("name")]
    rows: list[tuple[Value, ...]] = []
    for i, (kind, place_) in enumerate(product(kinds, range(count))):
        rows.append(
            (
                f"{kind}: {labels[place_]}",
                kind,
                labels[place_],
                float(bandwidth[place_]),
                float(table["memory_capacity"][place_] / UNITS["GiB"].factor),
                float(shown(results, "latency")[i]),
                float(shown(results, "tpot")[i]),
                *(float(shown(results, part)[i]) for part in _PARTS),
                str(results["bound"][i]) or None,
                bool(results["fits"][i]) if results["fits"][i] == results["fits"][i] else None,
            )
        )
    fields = results.schema.by_name
    sheet = StudySheet(
        "memories",
        "The same plans on one device with its memory exchanged, and with the last memory made faster still.",
        [
            own_column("case", kind="name"),
            own_column("plan", kind="text"),
            own_column("memory", kind="text"),
            own_column("memory_bandwidth", "TB/s"),
            own_column("memory_capacity", "GiB"),
            fields["latency"],
            fields["tpot"],
            *(fields[part] for part in _PARTS),
            fields["bound"],
            fields["fits"],
        ],
        rows,
        [
            Chart("bars", f"Decode step: {kind}", "memory", _PARTS, y_title="ms", stacked=True, rows=_span(i, count))
            for i, kind in enumerate(kinds)
        ],
    )
    lines = _lines(kinds, labels, bandwidth, shown(results, "tpot"))
    findings = [
        finding for i, kind in enumerate(kinds) for finding in _findings(kind, rows[i * count : (i + 1) * count])
    ]
    kept = np.flatnonzero(np.isfinite(results["tpot"]))
    return Outcome(findings, [lines, sheet], catalog, [(every.take(kept), results.take(kept))])


def _span(index: int, count: int) -> tuple[int, int]:
    return index * count, (index + 1) * count


def _further(catalog: Catalog, last: str, steps: Sequence[float]) -> tuple[Catalog, list[str]]:
    """Accelerators like the last one with a memory so many times as fast."""
    names = [f"{last} x {step:g}" for step in steps]
    if not names:
        return catalog, []
    own = derived(catalog, [last] * len(names))
    columns = {name: values.copy() for name, values in own.columns.items()}
    columns["accelerator"] = np.array(names, dtype=object)
    columns["memory_bandwidth"] = columns["memory_bandwidth"] * np.array(steps)
    columns["device"] = np.full(len(names), "", dtype=object)
    return with_rows(catalog, [Table("accelerators", columns)]), names


def _lines(kinds: Sequence[str], labels: Sequence[str], bandwidth: np.ndarray, tpot: np.ndarray) -> StudySheet:
    """Time per token over the bandwidth, as times of the slowest memory."""
    count = len(labels)
    by_bandwidth = np.argsort(bandwidth, kind="stable")
    found: dict[tuple[Value, str], float] = {}
    keys: list[Value] = [float(bandwidth[i]) for i in by_bandwidth]
    for number, kind in enumerate(kinds):
        values = tpot[number * count : (number + 1) * count]
        first = float(values[by_bandwidth[0]])
        for i in by_bandwidth:
            found[float(bandwidth[i]), kind] = first / float(values[i])
        for i in by_bandwidth:
            found[float(bandwidth[i]), "memory_bandwidth_ratio"] = float(bandwidth[i] / bandwidth[by_bandwidth[0]])
    series = [*kinds, "memory_bandwidth_ratio"]
    return StudySheet(
        "gain",
        "How many times as fast a token comes as with the slowest memory, beside the ratio of bandwidths.",
        [
            own_column("memory_bandwidth", "TB/s"),
            *(own_column(name, "-", "Times as fast as with the slowest memory") for name in series),
        ],
        wide(list(dict.fromkeys(keys)), series, found),
        [
            Chart(
                "lines",
                "Gain over bandwidth",
                "memory_bandwidth",
                series,
                "TB/s",
                "times as fast",
                log_x=True,
                log_y=True,
            )
        ],
    )


def _findings(kind: str, rows: Sequence[tuple[Value, ...]]) -> Iterator[Finding]:
    by_bandwidth = sorted(
        (row for row in rows if isinstance(row[6], float) and row[6] == row[6]), key=lambda row: float(row[3] or 0)
    )
    if len(by_bandwidth) < 2:
        return
    first, last = by_bandwidth[0], by_bandwidth[-1]
    gain = float(first[6] or 0) / float(last[6] or 1)
    ratio = float(last[3] or 0) / float(first[3] or 1)
    words = f"{kind}: {ratio:.0f} times the bandwidth of {first[2]} makes a token {gain:.1f} times as fast"
    turned = next((row for row in by_bandwidth if row[-2] != "memory"), None)
    if turned is not None and by_bandwidth[0][-2] == "memory":
        words += f"; from {float(turned[3] or 0):.1f} TB/s ({turned[2]}) on it waits for {turned[-2]} most"
    elif turned is not None:
        words += f"; it waits for {turned[-2]} most with any memory"
    else:
        words += "; it waits for memory most to the end"
    yield Finding("Memory", f"{words}.", "good")
    for before, after in pairwise(by_bandwidth):
        faster = float(after[3] or 0) / float(before[3] or 1)
        if faster < 1.02:
            continue
        share = np.log(float(before[6] or 0) / float(after[6] or 1)) / np.log(faster)
        if share < 0.5:
            words = (
                f"{kind}: beyond {float(before[3] or 0):.1f} TB/s ({before[2]}) less than half of more bandwidth shows"
            )
            yield Finding("Knee", f"{words}.")
            break


STUDY = Study(
    name="dram",
    title="Memory technology and latency",
    question="How far does faster memory shorten the time of a token, and what bounds it then?",
    published=(
        "arXiv 2407.14645 scales DRAM technology against inference latency; its numbers could not be had. The floor "
        "(bytes of the weights over the bandwidth) is a hand count, and a machine with HBM2e and HBM3 is held against "
        "the published Llama-2 latencies of the accuracy table."
    ),
    analyse=_analyse,
    settings=(
        Setting("device", "H100 from budgets", "-", "Row of the sheet devices whose memory is exchanged"),
        Setting(
            "memories",
            ("LPDDR5x", "GDDR6", "GDDR7", "HBM2", "HBM2e", "HBM3", "HBM3e", "HBM4", "HBM4e"),
            "-",
            "Rows of the sheet memories",
        ),
        Setting("further_steps", (2.0, 4.0, 8.0), "-", "Bandwidths beyond the last memory, as times of it"),
        Setting("generation", "hopper", "-", "Generation whose kernel efficiencies are taken"),
        Setting("network", "DGX-H100", "-", "Network of the plans of several accelerators"),
    ),
    rows=_rows,
)
