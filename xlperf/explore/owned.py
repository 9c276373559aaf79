"""Results of plans with ownership results beside them, under the names of ``xlperf cost``."""

from __future__ import annotations

from collections.abc import Iterable

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import owned_kind, results_of, table_schema
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.ownership import evaluate_ownership


def names_of_owners(kind: str) -> list[str]:
    """Numeric ownership results that the results of a kind of plan lack.

    >>> names_of_owners("training")[:3]
    ['accelerators_bought', 'network_switches', 'network_cables']
    """
    known = results_of(kind).by_name
    return [name for name in table_schema(owned_kind(kind)).by_name if name not in known]


def are_owned(kind: str, names: Iterable[str]) -> bool:
    """Whether any of some results is an ownership result."""
    return not set(names_of_owners(kind)).isdisjoint(names)


def with_owned(plans: Table, results: Table, catalog: Catalog) -> Table:
    """Results of plans with ownership results beside them; NaN if no row of servers has the accelerator.

    ``results``: of :func:`xlperf.engine.evaluate`, all of them.
    """
    owned = evaluate_ownership(plans, catalog, results=results)
    columns = {name: owned[name] for name in names_of_owners(plans.kind)}
    return Table(owned_kind(plans.kind), {**results.columns, **columns}, results.place)


def evaluated(plans: Table, catalog: Catalog, owned: bool) -> Table:
    """As :func:`xlperf.engine.evaluate`, with ownership results if ``owned``."""
    results = evaluate(plans, catalog)
    return with_owned(plans, results, catalog) if owned else results
