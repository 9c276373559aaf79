"""Study of sessions: what memory of the host is worth, by model and think time."""

from __future__ import annotations

from itertools import product

import numpy as np

from xlperf.catalog.schema import first_words
from xlperf.catalog.table import Table
from xlperf.explore.forms import answer_of, form_of
from xlperf.explore.objectives import TABLES
from xlperf.explore.search import stacked
from xlperf.explore.sessions import FLEET
from xlperf.studies.outcome import Finding, Inputs, Outcome, charts_of, in_short, result_columns, sheet_of, shown


def host_memory(inputs: Inputs) -> Outcome:
    """Hit rate, sessions and worth of a GB over the memory of the host, for each model and think time."""
    cases, tables, sizes, fleets = [], [], [], []
    for model, think in product(inputs.words("models"), inputs.numbers("think_times")):
        changed = {"model": model, "accelerator": inputs.text("accelerator"), "think_time": f"{think:g}"}
        answer = answer_of(form_of("sessions", first_words("sessions") | changed), inputs.catalog)
        if TABLES in answer:
            table = answer[TABLES]["memory"]
            cases += [f"{model}, {think:g} s"] * len(table)
            tables.append(table)
            fleets.append(answer[FLEET])
            sizes += [float(answer["copy_size"])] * len(table)
    memory = stacked(tables) if tables else Table("sessions_memory", {})
    alive = memory.number("sessions_per_copy") / np.array(sizes)
    names = ("host_memory", "hit_rate", "ttft_later", "cost_per_session", "worth_per_month", "pays")
    columns = result_columns(memory, names)
    size = [f"{case}: {value:,.0f} GB" for case, value in zip(cases, shown(memory, "host_memory"), strict=True)]
    sheet = sheet_of(
        "host memory", [("size", size), ("case", cases), *columns, ("sessions_per_accelerator", alive)],
        charts_of("host memory"),
    )  # fmt: skip
    plans = (
        [(stacked([fleet.plan for fleet in fleets]), stacked([fleet.results for fleet in fleets]))] if fleets else []
    )
    return Outcome(_findings(cases, memory, alive), [sheet], inputs.catalog, plans)


def _findings(cases: list[str], memory: Table, alive: np.ndarray) -> list[Finding]:
    """The case in which memory is worth most, and the size up to which it pays in each."""
    worth, size = shown(memory, "worth_per_month"), shown(memory, "host_memory")
    if not np.isfinite(worth).any():
        return [in_short("no case has an answer", "give the copies more accelerators", tone="bad")]
    best = int(np.nanargmax(worth))
    first = f"a GB of host memory is worth most with {cases[best]}: {worth[best]:,.2f} USD a month up to"
    rows = {case: [row for row, name in enumerate(cases) if name == case] for case in dict.fromkeys(cases)}
    held = {case: (alive[own[0]], alive[own[-1]]) for case, own in rows.items()}
    most = max(held, key=lambda case: held[case][1] / held[case][0])
    low, high = held[most]
    second = f"endless memory takes {most} from {low:,.1f} to {high:,.1f} sessions per accelerator"
    findings = [in_short(f"{first} {size[best]:,.0f} GB per accelerator", second)]
    for case, own in rows.items():
        pays = [float(size[row]) for row in own if str(memory["pays"][row]) == "pays"]
        words = f"{max(pays):,.0f} GB per accelerator are the most that pays" if pays else "no size pays"
        findings.append(Finding(case, f"{words[:1].upper()}{words[1:]}."))
    return findings
