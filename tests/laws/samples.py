"""Laws that any plan keeps, over seeded random legal plans of every mode.

=================  ==================================================================================================
module             what holds
=================  ==================================================================================================
test_rows          any order, any company, one row or thousands: the same bits
test_floors        nothing below zero; no time under its bytes over the bandwidth or its FLOP over the peak
test_hardware      better hardware is never slower, dearer or smaller
test_loads         more load keeps throughput and waits longer; prefill is linear; prefix hits help
test_parts         parts add up: time, memory, cost, energy, operators; Little's law
test_scaling       another clock, more layers, more replicas, other names, units, prices, stated defaults
test_forms         cells, cards, CSV, Parquet, workbooks and the command give the same bits
=================  ==================================================================================================

``random_plans`` draws the plans. A law that fails names the law, the number of plans that break it, the cells of the
first one and its values. A longer run: ``XLPERF_LAWS=2000 XLPERF_LAWS_SEED=1 pytest tests/laws``.

Laws that are broken on purpose, and the physics that breaks them:

==========================================  =========================================================================
not a law                                   because
==========================================  =========================================================================
more memory: TPOT is not longer             requests that waited now run: their step is longer, latency shorter
more memory: latency of a given number in   while requests wait for places, the wait for their turn and their way to
flight is not longer                        the engine are hidden in that; where all have places each adds them
faster units at a given rate: tokens per    smaller batches run, weights are read for fewer tokens: more energy per
dollar are not fewer                        token, in proportion to the batches at most; nothing else costs more
more bandwidth under load: TTFT is not      with a fixed number in flight, faster decoding brings more requests to the
longer (TPOT likewise)                      prefill at a time; latency and throughput are what improves
under load: input and output cost fall      time saved in one phase makes the other's share larger; together they fall
each by itself
twice the requests: TPOT is not shorter     with few requests in flight more of them are in prefill; latency is longer
twice the layers: twice the time            embedding, output projection and fixed costs stay: time is a line in layers
twice the layers: the exposed reduction     more backward passes hide more of it
of gradients is a line
local attention, leading dense layers:      patterns such as 5 sliding : 1 full do not divide every number of layers
a line in layers
twice the replicas on a torus: same time    the slice of the torus that the plan gets has other lengths and other rings
a default stated = blank: recompute         an option of what a plan does not have at all (copies of quantised weights,
modules, quantized copies, adapter modules  modules to recompute, adapters) is refused, whatever its value
more memory: an engine takes the same pass  from 160 GiB on vLLM and SGLang take 16,384 tokens of prompts at a time, not
                                            8,192: the laws of memory hold what an engine chooses by it fixed
more memory or prefix hits: the largest     it is the rate with a full cache; a larger batch may fill tiles badly, by
request rate is not lower                   up to 3 % here, of experts 6 %, 15 % in rare plans of longer runs;
                                            loads near it follow
more of a plan that does not fit            it has numbers as if nothing limited its batch; then it fits and is limited
twice the batch: prefill is at most twice   wave and tile quantisation: tokens per expert may fill tiles of 128 badly
more in flight: TTFT is not shorter, where  if all requests of a run come at once, none waits for a pass that has begun
a run ends
more load: TTFT is not shorter where        a prompt waits for prompts of the other replicas, longer where fewer come
prompts are gathered
twice the load: at most twice the           the same wait: with few requests it is most of a cycle; up to 2.25
throughput, where prompts are gathered      times here, more in longer runs
more multiprocessors are never slower       wave quantisation: tiles that fill 108 units evenly may not fill 132
prefill is linear in one prompt's length    attention is quadratic, chunks read earlier keys again
costs in another clock: derived devices     their price rows are defaults stated per year
==========================================  =========================================================================

This module is what the laws share: plans of a mode with their results, and a sentence that shows a broken law.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from laws.random_plans import MODES, is_legal, legal_rows, table_of

from xlperf.base.arrays import Array
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.table import MARK, Table, stacked
from xlperf.engine import evaluate
from xlperf.engine.join import named_rows
from xlperf.engine.software import with_software_defaults

NUMBER, SEED = (int(os.environ.get(name, value)) for name, value in (("XLPERF_LAWS", "20"), ("XLPERF_LAWS_SEED", "0")))
"""Plans of each mode, and which; a longer run: ``XLPERF_LAWS=2000 XLPERF_LAWS_SEED=1 pytest tests/laws``."""
SERVING = tuple(mode for mode in MODES if mode != "training")


@cache
def shipped() -> Catalog:
    """The shipped catalog, read once."""
    return load_catalog()


@cache
def plans_of(mode: str, number: int = NUMBER) -> Table:
    """Legal plans of a mode."""
    return table_of("training" if mode == "training" else "inference", legal_rows(mode, number, SEED))


@cache
def results_of(mode: str, number: int = NUMBER) -> Table:
    """Their results on the shipped catalog."""
    return evaluate(plans_of(mode, number), shipped())


@cache
def all_of(kind: str) -> tuple[Table, dict[str, slice]]:
    """Plans of all modes of a kind in one table, and the rows of each mode."""
    modes = ("training",) if kind == "training" else SERVING
    tables = [plans_of(mode) for mode in modes]
    columns = {name: np.concatenate([table[name] for table in tables]) for name in tables[0].columns}
    ends = np.cumsum([len(table) for table in tables]).tolist()
    rows = {mode: slice(end - len(table), end) for mode, table, end in zip(modes, tables, ends, strict=True)}
    return Table(kind, columns), rows


@cache
def results_of_all(kind: str) -> Table:
    """Results of the plans of all modes of a kind, on the shipped catalog."""
    return evaluate(all_of(kind)[0], shipped())


def changed(plans: Table, change: Mapping[str, Any]) -> Table:
    """Plans with some columns replaced; a single value stands for a column of them."""
    columns = dict(plans.columns)
    for name, value in change.items():
        text = columns[name].dtype == object
        columns[name] = np.array(np.broadcast_to(value, (len(plans),)), dtype=object if text else np.float64)
    return Table(plans.kind, columns, plans.place)


def results_with(plans: Table, changes: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Results of plans with each of several changes of their columns, from one table."""
    results = evaluate(stacked([changed(plans, change) for change in changes]), shipped())
    return _parts(results, len(changes))


def _parts(results: Table, number: int) -> list[Table]:
    """Equal parts of a table, one below the other in it."""
    rows = len(results) // number
    return [results.take(slice(at * rows, (at + 1) * rows)) for at in range(number)]


REFUSED = ("quantized_copies", "recompute_modules", "adapter_modules")
"""Options of what a plan may not have at all: stated, they are refused."""


def as_started(plans: Table) -> Table:
    """Plans that state what their software chooses for the shipped machines, and the defaults of the schema: on devices
    from 160 GiB on engines take more tokens in a pass, which another memory does not change by itself.
    """
    known = with_software_defaults(plans, shipped(), named_rows(plans, shipped()).models)
    named = [each.name for each in plans.schema.columns if each.default and each.name not in REFUSED]
    return changed(plans, dict(known.columns) | {name: known.filled(name) for name in named})


def with_columns(catalog: Catalog, kind: str, columns: Sequence[str], change: Callable[[Array], Any]) -> Catalog:
    """A catalog with some columns of a table changed."""
    table = catalog.tables[kind]
    new = {column: change(table[column]) for column in columns}
    return catalog.with_tables([Table(kind, {**table.columns, **new}, table.place)])


COPIED = ("accelerators", "networks", "models", "prices", "servers")
"""Sheets whose rows plans name, or accelerators: catalogs that differ in these stand beside each other in one."""


def results_in(plans: Table, catalogs: Sequence[Catalog]) -> list[Table]:
    """Results of plans in each of several catalogs that differ from the shipped one in :data:`COPIED` alone, in one
    evaluation: a catalog holds the rows of all, each under names of its own, and its copies of the plans name them.
    """
    tables = [
        stacked([_renamed(catalog.tables[kind], f"{MARK}{at}") for at, catalog in enumerate(catalogs)])
        for kind in COPIED
    ]
    rows = stacked([_renamed(plans, f"{MARK}{at}") for at in range(len(catalogs))])
    return _parts(evaluate(rows, shipped().with_tables(tables, checked=True)), len(catalogs))


def _renamed(table: Table, mark: str) -> Table:
    """A table whose names of rows of :data:`COPIED` end with a mark, without aliases."""
    named = {column.name for column in table.schema.columns if column.reference in COPIED and column.name in table}
    if table.kind in COPIED:
        named.add(table.schema.key.name)
    columns = {
        name: np.array([text and f"{text}{mark}" for text in table[name].tolist()], dtype=object) for name in named
    }
    if "aliases" in table:
        columns["aliases"] = np.full(len(table), "", dtype=object)
    return table.with_columns(columns)


def tokens_per_step(plans: Table) -> Array:
    """Expected tokens of a decode step with drafts, none beyond the output: 1 + a + a^2 + ... [-]"""
    left = np.maximum(plans["output_length"] - 2.0, 0.0)
    drafts, rate = np.minimum(plans.filled("draft_tokens"), left), plans.filled("acceptance_rate")
    most = int(drafts.max())
    return 1.0 + sum(np.where(drafts >= each, rate**each, 0.0) for each in range(1, most + 1))


def cells_of(plans: Table, row: int) -> str:
    """The cells of a plan that are not blank, in the units used inside."""
    cells = {name: values[row] for name, values in plans.columns.items()}
    return ", ".join(f"{name}={value}" for name, value in cells.items() if value == value and value != "")


def hold(law: str, good: np.ndarray, plans: Table, **shown: Array) -> None:
    """Fail with the first plan that breaks a law, its values, and the number of such plans."""
    broken = np.flatnonzero(~good)
    if len(broken):
        row = int(broken[0])
        values = ", ".join(f"{name} {values[row]}" for name, values in shown.items())
        raise AssertionError(f"{law}: {len(broken)} of {len(good)} plans, such as {cells_of(plans, row)}: {values}")


def both_legal(plans: Table, *results: Table) -> np.ndarray:
    """Plans that have numbers in all of several results."""
    return np.logical_and.reduce([is_legal(plans, each) for each in results])
