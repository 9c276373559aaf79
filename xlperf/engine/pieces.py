"""How many plans go through the equations together, and which."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.join import Named
from xlperf.engine.networks import plain_networks

PIECE = 4096
"""Plans of one code: the arrays of so many stay in the processor's cache."""

Columns = dict[str, np.ndarray]


def in_pieces(
    plans: Table,
    catalog: Catalog,
    named: Named,
    codes: np.ndarray,
    evaluate: Callable[[Table, Named, int], Columns],
    apart: np.ndarray | None = None,
) -> Columns:
    """Results of plans, those of one code together; in a large table those on switches and other networks apart.

    Parameters
    ----------
    plans : Table
        Training or inference plans.
    catalog : Catalog
        What they refer to.
    named : Named
        Rows that they name.
    codes : np.ndarray
        What plans that are evaluated together have in common, (rows,).
    evaluate : callable
        Results of plans of one code, from the plans, the rows that they name, and the code.
    apart : np.ndarray, optional
        Plans that take longer than others, (rows,): in a large table they go apart from those.

    Returns
    -------
    dict of str to array
        Each column, (rows,).
    """
    distinct = sorted(set(codes.tolist()))  # np.unique would import numpy.ma, 30 ms in a fresh process
    if len(distinct) <= 1 and len(plans) <= PIECE:
        return evaluate(plans, named, distinct[0] if distinct else 0)
    groups = [(code, np.flatnonzero(codes == code)) for code in distinct]
    if len(plans) > PIECE:
        kinds = plain_networks(catalog, named.accelerators, named.networks) * 2
        if apart is not None:
            kinds = kinds + apart
        groups = [(code, rows[kinds[rows] == kind]) for code, rows in groups for kind in range(4)]
    results: Columns = {}
    for code, alike in groups:
        for start in range(0, len(alike), PIECE):
            rows = alike[start : start + PIECE]
            for name, values in evaluate(plans.take(rows), named.take(rows), code).items():
                if name not in results:
                    results[name] = np.empty(len(plans), dtype=values.dtype)
                results[name][rows] = values
    return results
