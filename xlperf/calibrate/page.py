"""Tables of the accuracy page and of the README, by the name of their markers in the text.

What to expect is told by the readings alone: runs of publishers that no fit has read, as first predicted. Bands are
those of the rule fitted without a tenth of the publishers at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError
from xlperf.base.files import replaced
from xlperf.calibrate.bands import widths_left_out
from xlperf.calibrate.deployments import deployment_table, deployments
from xlperf.calibrate.own_fit import accuracies, accuracy_table, sources_left_out
from xlperf.calibrate.readings import NAMES, Readings, readings_of
from xlperf.catalog.calibration import declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.measurements.comparison import FIRST_TOKEN, MEMORY, STEP_TIME, TIME_PER_TOKEN, power_records
from xlperf.measurements.published import POWER, Published

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""Header and rows as text."""
_EXPECTED = (
    "quantity", "models", "runs", "publishers", "median error", "by publisher", "p90", "bias", "in the 80 % band",
    "width of the band", "few constants", "today",
)  # fmt: skip
_SHORT = (
    "quantity", "models", "runs", "median error", "bias", "in the 80 % band", "width of the band", "few constants",
)  # fmt: skip
_ALONE = (FIRST_TOKEN, MEMORY)
"""Quantities that the README shows for all models together."""
_FEWEST = 10
"""Least number of runs of a line of the table of groups. [-]"""
_MOST = 16
"""Largest number of lines of that table. [-]"""
_SHOWN_RUNS = ("1", "10")
"""Numbers of own runs of the table. [-]"""
_KINDS = {None: "all", False: "dense", True: "with experts"}


class Page:
    """Tables of the accuracy page, made once each."""

    def __init__(self, published: Sequence[Published], catalog: Catalog, step: Callable[[str], None]) -> None:
        self.published, self.catalog, self.step = published, catalog, step

    @cached_property
    def readings(self) -> Readings:
        """Values of the readings."""
        return readings_of(self.published, self.catalog)

    @cached_property
    def widths(self) -> Array:
        """Half-width of the band of each value, by the rule without its publisher."""
        result = np.full(len(self.readings), math.nan)
        for quantity, name in NAMES.items():
            own = self.readings.quantity == quantity
            if own.any():
                result[own] = widths_left_out(self.readings.take(own), name)
        return result

    def expected(self) -> Table:
        """First predictions by quantity and kind of model, beside a baseline; power of rows that no fit has read."""
        lines = [
            self._line(quantity, experts)
            for quantity in NAMES
            for experts in (False, True)
            if self._mask(quantity, experts).any()
        ]
        return _EXPECTED, [*lines, *self._power()]

    def short(self) -> Table:
        """Six lines of few columns."""
        chosen = [(STEP_TIME, False), (STEP_TIME, True), (TIME_PER_TOKEN, False), (TIME_PER_TOKEN, True)]
        lines = [self._line(*one) for one in (*chosen, *((name, None) for name in _ALONE))]
        at = [_EXPECTED.index(name) for name in _SHORT]
        return _SHORT, [tuple(line[place] for place in at) for line in lines]

    def groups(self) -> Table:
        """Errors of readings by vendor line, and of engines and stacks with enough runs, the largest error first."""
        rows, lines = self.readings, []
        for quantity in (STEP_TIME, TIME_PER_TOKEN, FIRST_TOKEN):
            for names in (rows.line, rows.software):
                for name in sorted(set(names[rows.quantity == quantity].tolist())):
                    own = (rows.quantity == quantity) & (names == name)
                    if own.sum() >= _FEWEST and len(set(rows.source[own].tolist())) > 2:
                        lines.append((float(np.median(_sizes(rows.today[own]))), quantity, str(name), own))
        lines = sorted(lines, key=lambda line: -line[0])[:_MOST]
        header = ("quantity", "machines or software", "runs", "publishers", "first: median", "bias", "today: median",
                  "bias", "few constants")  # fmt: skip
        return header, [
            (quantity, name, f"{own.sum()}", f"{len(set(rows.source[own].tolist()))}", _median(rows.first[own]),
             _bias(rows.first[own]), _median(rows.today[own]), _bias(rows.today[own]), _median(rows.few[own]))
            for _, quantity, name, own in lines
        ]  # fmt: skip

    def by_reading(self) -> Table:
        """Median errors of each reading, first and today, and of the baseline."""
        rows = self.readings
        header = ("reading", *(f"{quantity}: first, today, few constants" for quantity in NAMES))
        lines = []
        for name in dict.fromkeys(rows.reading.tolist()):
            cells = []
            for quantity in NAMES:
                own = (rows.quantity == quantity) & (rows.reading == name)
                shown = [_median(logs[own]) for logs in (rows.first, rows.today, rows.few)]
                cells.append(f"{', '.join(shown)} ({own.sum()})" if own.any() else "-")
            lines.append((str(name), *cells))
        return header, lines

    def deployments(self) -> Table:
        """Published fleets beside the fleets that the form Serve recommends for their loads."""
        return deployment_table(deployments(self.catalog))

    def own_runs(self) -> Table:
        """Errors of other rows of a source after own runs of it."""
        header, lines = accuracy_table(accuracies(sources_left_out(self.published, self.catalog, self.step)))
        kept = range(7)
        shown = [tuple(line[at] for at in kept) for line in lines if line[1] in _SHOWN_RUNS]
        return tuple(header[at] for at in kept), shown

    def _mask(self, quantity: str, experts: bool | None) -> np.ndarray:
        rows = self.readings
        return np.asarray((rows.quantity == quantity) & (experts is None or rows.experts == experts))

    def _line(self, quantity: str, experts: bool | None) -> tuple[str, ...]:
        chosen = self._mask(quantity, experts)
        rows, width = self.readings.take(chosen), self.widths[chosen]
        sources = sorted(set(rows.source.tolist()))
        medians = [float(np.median(_sizes(rows.first[rows.source == one]))) for one in sources]
        return (
            quantity, _KINDS[experts], f"{len(rows)}", f"{len(sources)}", _median(rows.first),
            _percent(float(np.median(medians))), _percent(float(np.quantile(_sizes(rows.first), 0.9))),
            _bias(rows.first), f"{100.0 * np.mean(np.abs(rows.first) <= width):.0f} %",
            f"{math.exp(float(np.median(width))):.2f}", _median(rows.few), _median(rows.today),
        )  # fmt: skip

    def _power(self) -> list[tuple[str, ...]]:
        """Line of measured power; its baseline is one share of the power limit, of the rows that power is fitted on."""
        records = [
            one
            for rows in self.published
            if rows.kind == POWER
            for one in power_records(rows, self.catalog)
            if one.quantity == "power" and one.covered
        ]
        chips = self.catalog.tables["accelerators"]
        names = [str(name).casefold() for name in chips.text("accelerator")]
        limit = dict(zip(names, chips.number("thermal_design_power").tolist(), strict=True))
        share = np.array([one.measured / limit.get(one.accelerator.casefold(), math.nan) for one in records])
        fitted = np.array([one.group == "fitted" for one in records], dtype=bool)
        if not (~fitted).any():
            return []
        logs = np.log([one.predicted / one.measured for one in records])[~fitted]
        few = np.log(np.nanmedian(share[fitted]) / share)[~fitted]
        sources = [one.source_id for one, own in zip(records, fitted.tolist(), strict=True) if not own]
        by_source = [np.median(_sizes(logs[np.array(sources) == one])) for one in sorted(set(sources))]
        width = declared_constants()["band"]["power"].default
        return [
            ("power", "all", f"{len(logs)}", f"{len(set(sources))}", _median(logs),
             _percent(float(np.median(by_source))), _percent(float(np.quantile(_sizes(logs), 0.9))), _bias(logs),
             f"{100.0 * np.mean(np.abs(logs) <= width):.0f} %", f"{math.exp(width):.2f}", _median(few), _median(logs))
        ]  # fmt: skip


TABLES: dict[str, Callable[[Page], Table]] = {
    "expected": Page.expected,
    "accuracy": Page.short,
    "groups": Page.groups,
    "readings": Page.by_reading,
    "deployments": Page.deployments,
    "own-runs": Page.own_runs,
}
"""Tables by the name of their markers."""


def write_tables(path: Path, page: Page) -> list[str]:
    """Put each table between its markers in a text file; names of the tables. InputError if it has no markers."""
    text, placed = path.read_text(encoding="utf-8"), []
    for name, table in TABLES.items():
        begin, end = (f"<!-- {name}: {part} -->" for part in ("begin", "end"))
        first, last = text.find(begin), text.find(end)
        if 0 <= first < last:
            text = text[:first] + markdown(name, table(page)) + text[last + len(end) :].removeprefix("\n")
            placed.append(name)
    if not placed:
        wanted = " or ".join(f"<!-- {name}: begin --> and <!-- {name}: end -->" for name in TABLES)
        raise InputError(Fault(str(path), f"has no lines {wanted}, where a table goes"))
    with replaced(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")
    return placed


def markdown(name: str, table: Table) -> str:
    """Markdown table between its markers."""
    header, lines = table
    numbers = [all(line[at][:1].isdigit() or line[at] == "-" for line in lines) for at in range(len(header))]
    rule = "|" + "|".join("---:" if number else "---" for number in numbers) + "|"
    rows = ["| " + " | ".join(cells) + " |" for cells in (header, *lines)]
    return "\n".join([f"<!-- {name}: begin -->", rows[0], rule, *rows[1:], f"<!-- {name}: end -->"]) + "\n"


def _sizes(logs: Array) -> Array:
    return np.abs(np.expm1(logs))


def _median(logs: Array) -> str:
    known = logs[~np.isnan(logs)]
    return _percent(float(np.median(_sizes(known)))) if len(known) else "-"


def _bias(logs: Array) -> str:
    return f"{100.0 * math.expm1(float(np.median(logs))):+.0f} %"


def _percent(value: float) -> str:
    return f"{100.0 * value:.0f} %" if value >= 0.0995 else f"{100.0 * value:.1f} %"
