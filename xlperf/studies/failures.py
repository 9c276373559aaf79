"""Study failure-domains: effective time and spares of a training run as it grows, by the rates of published fleets."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.units import HOUR
from xlperf.explore.forms import form_of
from xlperf.explore.objectives import Answer
from xlperf.explore.spares import spares_answer
from xlperf.studies.outcome import Finding, Inputs, Outcome, in_short, pivot_of, sheet_of

_MINUTE = 60.0


def growing_runs(inputs: Inputs) -> Outcome:
    """Effective time and spares of least cost by size and fleet, of runs that wait and of elastic runs."""
    sizes, fleets = inputs.numbers("sizes"), inputs.words("fleets")
    waits = [[_asked(inputs, size, fleet, "wait") for fleet in fleets] for size in sizes]
    runs_on = [[_asked(inputs, size, fleet, "elastic") for fleet in fleets] for size in sizes]
    share, spares = (100.0 * _values(waits, name) for name in ("effective_share", "spare_share"))
    elastic = 100.0 * _values(runs_on, "effective_share")
    rows = [f"{size:,.0f}, {fleet}" for size in sizes for fleet in fleets]
    every = sheet_of(
        "growing runs",
        [
            ("run", rows),
            ("accelerators", np.repeat(sizes, len(fleets))),
            ("interval", (_values(waits, "interruption_interval") / HOUR).ravel()),
            ("spares", _values(waits, "spares").ravel()),
            ("wait", share.ravel()),
            ("elastic_spares", _values(runs_on, "spares").ravel()),
            ("elastic", elastic.ravel()),
            ("lost", (_values(waits, "lost_per_interruption") / _MINUTE).ravel()),
        ],
    )
    sheets = [
        pivot_of("effective time", "accelerators", sizes, fleets, share),
        pivot_of("spare units", "accelerators", sizes, fleets, spares),
        every,
    ]
    facts = {"spares": f"{_values(waits, 'spares')[-1, 0]:,.0f}", "size": f"{sizes[-1]:,.0f}"}
    findings = [_in_short(sizes, fleets, share, spares), *_of_fleets(fleets, sizes, share, elastic)]
    return Outcome(findings, sheets, inputs.catalog, [], facts)


def _asked(inputs: Inputs, size: float, fleet: str, shortage: str) -> Answer:
    """The answer of Spares on one run."""
    entries = {name: inputs.text(name) for name in ("accelerator", "model")}
    numbers = {"num_accelerators": size, "copy_size": min(inputs.number("copy_size"), size)}
    numbers["restart_time"] = inputs.number("restart_time")
    entries |= {name: repr(value) for name, value in numbers.items()} | {"fleet": fleet, "shortage": shortage}
    return spares_answer(form_of("spares", entries), inputs.catalog)


def _values(answers: list[list[Answer]], name: str) -> Array:
    """A result, (sizes, fleets); NaN without an answer."""
    return np.array([[answer.get(name, np.nan) for answer in row] for row in answers])


def _in_short(sizes: tuple[float, ...], fleets: tuple[str, ...], share: Array, spares: Array) -> Finding:
    return in_short(
        f"with the rates of {fleets[0]} a run trains {share[0, 0]:.1f} % of its time on {sizes[0]:,.0f} accelerators "
        f"and {share[-1, 0]:.1f} % on {sizes[-1]:,.0f}",
        f"spares of least cost fall from {spares[0, 0]:.1f} % to {spares[-1, 0]:.1f} % of the units",
    )


def _of_fleets(fleets: tuple[str, ...], sizes: tuple[float, ...], share: Array, elastic: Array) -> list[Finding]:
    """A sentence on each fleet at the largest size."""
    return [
        Finding(
            fleet,
            f"On {sizes[-1]:,.0f} accelerators a run trains {share[-1, column]:.1f} % of its time with spares and "
            f"{elastic[-1, column]:.1f} % with fewer spares if it runs on.",
            "plain" if share[-1, column] > 80.0 else "warning",
        )
        for column, fleet in enumerate(fleets)
    ]
