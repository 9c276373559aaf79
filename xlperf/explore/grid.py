"""A stated grid: every plan of a table with every combination of values of some columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from xlperf.base.errors import Fault, InputError
from xlperf.catalog.cells import convert, is_blank, parse_header
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table
from xlperf.catalog.values import BadValue

MOST_PLANS = 1_000_000
"""Rows of a grid at the most: more is a slip rather than a wish, and does not fit in memory."""


def read_values(
    kind: str, lines: Sequence[tuple[object, Sequence[object]]], place: str = "", from_text: bool = False
) -> dict[str, np.ndarray]:
    """Values to try for some columns of plans.

    Parameters
    ----------
    kind : str
        ``training`` or ``inference``.
    lines : sequence of (object, sequence)
        A header of a plan column, with or without a unit, and the values to try; blanks are left out.
    place : str
        Where the lines stand, for the messages.
    from_text : bool, default False
        Whether numbers arrive as text, as on a command line.

    Returns
    -------
    dict of str to array
        Canonical column -> values in the units used inside.

    Raises
    ------
    InputError
        With every fault.
    """
    faults: list[Fault] = []
    values: dict[str, np.ndarray] = {}
    for header, cells in lines:
        parsed = parse_header(kind, [header])
        found_faults = [Fault(place, one.problem, one.hint) for one in parsed.faults if one.position == 0]
        if found_faults or not parsed.fields:
            faults += found_faults or [Fault(place, f'"{header}" is no column of {kind} plans')]
            continue
        field = parsed.fields[0]
        found: list[float | str] = []
        for cell in cells:
            if is_blank(cell):
                continue
            try:
                value = convert(replace(field), cell, from_text)
            except BadValue as bad:
                faults.append(Fault(place, str(bad)))
                continue
            if value is None:
                faults.append(Fault(place, f"{field.words} is auto: write values"))
            elif value not in found:
                found.append(value)
        if field.column.name in values:
            faults.append(Fault(place, f"{field.words} is given twice"))
        elif not found and not faults:
            faults.append(Fault(place, f"{field.words} has no values to try"))
        values[field.column.name] = np.array(found, dtype=object if field.column.is_text else np.float64)
    if faults:
        raise InputError(faults)
    return values


def grid(plans: Table, values: Mapping[str, np.ndarray], most: int = MOST_PLANS) -> Table:
    """Every plan with every combination of the values, which replace what the plan has in these columns.

    Parameters
    ----------
    plans : Table
        Training or inference plans.
    values : mapping of str to array
        Column -> values, in the units used inside.
    most : int
        Rows of the grid at the most.

    Returns
    -------
    Table
        The combinations of the first plan, then those of the second ...; the last column changes fastest. Places are
        those of the plans.

    Raises
    ------
    InputError
        Where the grid has more rows than there may be.
    """
    sizes = [len(column) for column in values.values()]
    count = int(np.prod(sizes, dtype=np.float64))
    if count * len(plans) > most:
        problem = f"the grid has {count * len(plans):,} plans, more than {most:,} (--most of the commands)"
        raise InputError(Fault("", problem))
    spread = plans.take(np.repeat(np.arange(len(plans)), count))
    columns = dict(spread.columns)
    each = count
    for name, column in values.items():
        each //= max(len(column), 1)
        columns[name] = np.tile(np.repeat(column, each), len(spread) // max(each * len(column), 1))
    auto = {name: mask for name, mask in spread.auto.items() if name not in values}
    order = [column.name for column in table_schema(plans.kind).columns if column.name in columns]
    return Table(plans.kind, {name: columns[name] for name in order}, spread.place, auto)
