"""Checks of a workbook: every fault of its sheets, and warnings about values that can be read but look doubtful."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xlperf.base.errors import Fault, InputError, raise_faults
from xlperf.base.resources import workbook
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.read import is_table_file, is_workbook, read_plans, rows_outside, unread_sheets
from xlperf.catalog.schema import EVERY_TABLE, PLAN_TABLES, Column
from xlperf.catalog.spellings import NOT_USABLE, references
from xlperf.catalog.table import Table
from xlperf.catalog.xlsx import open_workbook

MOST_ALIKE = 3  # rows that are named one by one; more of them share a line
PRICE_AGE = 3  # years after which the price of an accelerator says little
Test = Callable[[Catalog], Iterable[Fault]]


@dataclass(frozen=True)
class Findings:
    """Results of a check of a file: failures, doubtful entries, and rows read by sheet."""

    name: str
    failures: tuple[Fault, ...]
    warnings: tuple[Fault, ...]
    counts: dict[str, int]

    @property
    def ok(self) -> bool:
        """Whether no check failed; warnings do not count."""
        return not self.failures

    def lines(self) -> list[str]:
        """A line per finding, failures first, and a line that sums up."""
        rows = ", ".join(f"{count} {kind}" for kind, count in self.counts.items())
        result = f"{len(self.failures)} failed, {len(self.warnings)} doubtful"
        warned = [f"{fault.place}: doubtful: {fault.problem}" for fault in self.warnings]
        return [*map(str, self.failures), *warned, f"{self.name}: {rows}; {result}"]


def check(path: str | os.PathLike[str], tests: Sequence[Test] = (), today: datetime.date | None = None) -> Findings:
    """Findings on a workbook or a file of plans; prices age until ``today``. InputError if it cannot be read."""
    path = Path(path)
    if is_workbook(path):
        return _workbook_findings(path, tests, today or datetime.date.today())
    catalog, plans = load_catalog(), read_plans(path)
    raise_faults(name_faults(plans, catalog))
    return Findings(path.name, (), tuple(_plan_warnings(plans)), {table.kind: len(table) for table in plans})


def _workbook_findings(path: Path, tests: Sequence[Test], today: datetime.date) -> Findings:
    with open_workbook(path) as book:
        own = [kind for kind in EVERY_TABLE if book.sheet(kind)]
        planned = [kind for kind in PLAN_TABLES if book.sheet(kind)]
        doubtful = [*unread_sheets(book), *rows_outside(book)]
    if not own and not planned:
        sheets = ", ".join((*EVERY_TABLE, *PLAN_TABLES))
        raise InputError(Fault(path.name, f"has none of the sheets that xlperf reads: {sheets}"))
    faults: list[Fault] = []
    catalog: Catalog | None = None
    plans: list[Table] = []
    try:
        catalog = load_catalog(path)
        faults += catalog.orphans.faults
    except InputError as error:
        faults += error.faults
    for kind in planned:
        try:
            plans += read_plans(path, sheet=kind)
        except InputError as error:
            faults += [fault for fault in error.faults if not fault.problem.startswith("has no plans")]
    if catalog is not None:
        faults += [fault for fault in name_faults(plans, catalog) if NOT_USABLE not in fault.problem]
    raise_faults(faults)
    assert catalog is not None  # or its faults were raised
    tables = [catalog.tables[kind] for kind in own]
    for table in tables:
        doubtful += _provenance_warnings(table, today)
    doubtful += [warning for kind in own if kind in _WARNINGS for warning in _WARNINGS[kind](catalog)]
    doubtful += [fault for table in tables for fault in far_values(table, load_catalog().tables[table.kind])]
    doubtful += _plan_warnings(plans)
    failures = tuple(failure for test in tests for failure in test(catalog))
    return Findings(path.name, failures, tuple(doubtful), {table.kind: len(table) for table in [*tables, *plans]})


def name_faults(plans: Sequence[Table], catalog: Catalog) -> list[Fault]:
    """Faults of the cells of plans with unknown names, in the order of the tables."""
    faults: list[Fault] = []
    for table in plans:
        for column in references(table):
            try:
                catalog.rows(column.reference, table[column.name], table, column.name)
            except InputError as error:
                faults += error.faults
    return faults


def unread_in(given: str | None, own: str | None = None) -> list[Fault]:
    """Sheets of the catalog ``given`` and a workbook of plans that look like a sheet of a catalog but are not read."""
    if given is not None and is_table_file(given):
        given = None
    faults: list[Fault] = []
    for path in dict.fromkeys(filter(None, (own, given))):
        with open_workbook(path) as book:
            unread = list(unread_sheets(book))
            if path == given and not any(book.sheet(kind) for kind in EVERY_TABLE):
                raise InputError([*unread, Fault(book.name, f"has no sheet of a catalog: {', '.join(EVERY_TABLE)}")])
        faults += unread
    return faults


def left_out(catalog: Catalog) -> list[str]:
    """A line for each row of a catalog that refers to an unknown name and is left out."""
    return [f"left out: {line}" for line in InputError(catalog.orphans.faults).lines()]


def taken_names(plans: Sequence[Table], catalog: Catalog) -> list[str]:
    """Clauses for names in rows that the catalog spells otherwise, each with its reading."""
    said = []
    for table in plans:
        for column in references(table):
            taken = catalog.taken(column.reference)
            names = dict.fromkeys(table[column.name].tolist()) if taken else ()
            said += [f"{column.words} {name} taken as {taken[name]}" for name in names if name in taken]
    return list(dict.fromkeys(said))


def _plan_warnings(plans: Sequence[Table]) -> list[Fault]:
    """Plans of the same name, plans that are the same but for their name, and numbers far beyond all plans."""
    known = {table.kind: table for table in read_plans(workbook())}
    faults = [fault for table in plans if table.kind in known for fault in far_values(table, known[table.kind])]
    for table in plans:
        if table.own:
            problem = f"columns that are not read: {', '.join(table.own)}"
            faults.append(Fault(table.place(-1, ""), problem))
        names: dict[str, int] = {}
        contents: dict[tuple[object, ...], int] = {}
        inputs = [table[column].tolist() for column in table.columns if column != "name"]
        inputs += [mask.tolist() for mask in table.auto.values()]
        rows = zip(*inputs, strict=True)
        for row, (name, values) in enumerate(zip(table.text("name").tolist(), rows, strict=True)):
            key = tuple(None if value != value else value for value in values)
            if name and names.setdefault(name.casefold(), row) != row:
                where = table.place(names[name.casefold()], "name")
                faults.append(Fault(table.place(row, "name"), f'another plan is named "{name}", at {where}'))
            if contents.setdefault(key, row) != row:
                where = table.place(contents[key], "name")
                faults.append(Fault(table.place(row, "name"), f"the plan is the same as that at {where}"))
    return faults


def _provenance_warnings(table: Table, today: datetime.date) -> Iterator[Fault]:
    """Rows without source or year; old prices."""
    source, year = table.text("source"), table.number("year")
    yield from _together(table, "source", source == "", "no source")
    if "date" not in table.schema.by_name:  # which states the year
        yield from _together(table, "year", np.isnan(year), "no year")
    for row, name in enumerate(table.text(table.schema.key.name).tolist()):
        if table.kind == "prices" and today.year - year[row] > PRICE_AGE:
            problem = f'the price of "{name}" is of {year[row]:g}, more than {PRICE_AGE} years ago'
            yield Fault(table.place(row, "year"), problem)


def _together(table: Table, column: str, lacking: np.ndarray, what: str) -> list[Fault]:
    """One warning for each row that lacks something, or one for all of them if they are many."""
    rows = np.flatnonzero(lacking).tolist()
    names = table.text(table.schema.key.name)
    if len(rows) <= MOST_ALIKE:
        return [Fault(table.place(row, column), f'"{names[row]}" has {what}') for row in rows]
    return [Fault(table.place(rows[0], column), f'"{names[rows[0]]}" and {len(rows) - 1} more have {what}')]


def _accelerator_warnings(catalog: Catalog) -> Iterator[Fault]:
    table = catalog.tables["accelerators"]
    rates = {name: table.number(f"peak_flop_rate_{name}") for name in ("fp32", "tf32", "bf16", "fp8", "fp4")}
    memory, cache = table.number("memory_bandwidth"), table.number("l2_bandwidth")
    for row, name in enumerate(table["accelerator"].tolist()):
        for slow, fast in (("tf32", "bf16"), ("bf16", "fp8"), ("fp8", "fp4")):
            if rates[slow][row] > rates[fast][row]:
                problem = f'"{name}" is faster in {slow} than in {fast}'
                yield Fault(table.place(row, f"peak_flop_rate_{fast}"), problem)
        if memory[row] > cache[row]:
            yield Fault(table.place(row, "l2_bandwidth"), f'the L2 of "{name}" is slower than its memory')
        if catalog.default_networks[row] < 0:
            problem = f'"{name}" has no default network: every plan on several of them must name one'
            yield Fault(table.place(row, "default_network"), problem)
    unpriced = (catalog.price_rows < 0) & (table.text("device") == "")
    yield from _together(table, "accelerator", unpriced, "no price: plans on it have no cost")


def _network_warnings(catalog: Catalog) -> Iterator[Fault]:
    table = catalog.tables["networks"]
    for name in catalog.networks:
        rows = catalog.network_tiers(name)
        for inner, outer in zip(rows[:-1].tolist(), rows[1:].tolist(), strict=True):
            if table["link_bandwidth"][outer] > table["link_bandwidth"][inner]:
                problem = f'tier {table["tier"][outer]:g} of "{name}" is faster than the tier inside it'
                yield Fault(table.place(outer, "link_bandwidth"), problem)
            if table["size"][outer] % table["size"][inner]:
                problem = f'size of tier {table["tier"][outer]:g} of "{name}" is no multiple of the tier inside it'
                yield Fault(table.place(outer, "size"), problem)


def _model_warnings(catalog: Catalog) -> Iterator[Fault]:
    table = catalog.tables["models"]
    heads, hidden = table["num_attention_heads"], table["hidden_size"]
    groups, head = table.number("num_query_groups"), table.number("head_size")
    follows = np.isnan(head) & np.isnan(table.number("kv_lora_rank"))  # latent attention has head sizes of its own
    for row, name in enumerate(table["model"].tolist()):
        if follows[row] and hidden[row] % heads[row]:
            problem = f'hidden size of "{name}" is no multiple of its attention heads; give the head size'
            yield Fault(table.place(row, "head_size"), problem)
        if heads[row] % groups[row] > 0:
            problem = f'attention heads of "{name}" are no multiple of its query groups'
            yield Fault(table.place(row, "num_query_groups"), problem)


_WARNINGS: dict[str, Test] = {
    "accelerators": _accelerator_warnings,
    "networks": _network_warnings,
    "models": _model_warnings,
}


FAR = 1000.0  # times beyond the largest, or below the smallest, of the known values from which a value is doubted
LEAST_KNOWN = 3  # values of other rows that a comparison needs at least


def far_values(table: Table, known: Table) -> list[Fault]:
    """Numbers a thousand times beyond every ``known`` row of their kind and of another name."""
    if table.kind == "calibration":
        return []
    columns = [column for column in table.schema.columns if column.kind == "number" and column.name in table]
    return [fault for column in columns for fault in _far(table, known, column)]


def _far(table: Table, known: Table, column: Column) -> Iterator[Fault]:
    references = known.number(column.name)
    stated = np.flatnonzero(references > 0.0)
    if len(stated) < LEAST_KNOWN:
        return
    values, keys = table.number(column.name), _keys(table)
    low, high = (_end(references[stated], _keys(known)[stated], keys, sign) for sign in (1.0, -1.0))
    for row in np.flatnonzero((values > FAR * high) | ((values > 0.0) & (values < low / FAR))).tolist():
        above = values[row] > high[row]
        end, side, word = (high[row], "above", "largest") if above else (low[row], "below", "smallest")
        times = max(values[row] / end, end / values[row])
        here, there = (column.amount(number, ".15g") for number in (values[row], end))
        problem = f"{column.words} {here} is {times:.3g} times {side} the {word} of all other rows, {there}"
        yield Fault(table.place(row, column.name), f"{problem}; check its zeros and its unit")


def _keys(table: Table) -> np.ndarray:
    """Identity of each row: its name, of a network its tier too; plans have none."""
    if table.kind not in EVERY_TABLE:
        return np.full(len(table), "", dtype=object)
    names = table.text(table.schema.key.name).tolist()
    tiers = table.number("tier").tolist() if "tier" in table else [""] * len(table)
    return np.array([f"{name.casefold()}\n{tier}" for name, tier in zip(names, tiers, strict=True)], dtype=object)


def _end(values: np.ndarray, names: np.ndarray, keys: np.ndarray, sign: float) -> np.ndarray:
    """Smallest value (largest for a negative sign) among rows of other names, for each row; NaN without any."""
    first = int(np.argmin(sign * values))
    others = values[names != names[first]] if names[first] else values
    second = sign * np.min(sign * others) if len(others) else np.nan
    return np.where((keys == names[first]) & (keys != ""), second, values[first])
