"""Equations of cost as worksheet functions: a column against a row gives a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from xlperf.addin.cells import Block, CellError, FunctionError, block_of, given_block
from xlperf.addin.functions import Argument, Function
from xlperf.base.errors import nearest
from xlperf.base.units import UNITS, YEAR
from xlperf.catalog.cells import shown

BUILDING_LIFE = 15.0 * YEAR
MOST_CELLS = 4_000_000
"""Cells that one call may fill."""


class Numbers(NamedTuple):
    """Cells of one argument in the unit used inside, NaN where one is bad.

    ``faults`` has the number of the fault of each cell in ``words``, -1 for none.
    """

    values: np.ndarray
    faults: np.ndarray
    words: list[str]


def _dies_per_wafer(width: Any, height: Any, diameter: Any, edge: Any, scribe: Any, method: str) -> Any:
    from xlperf.equations.cost import dies

    return {
        "formula": dies.dies_per_wafer,
        "area": dies.dies_per_wafer_by_area,
        "exponential": dies.dies_per_wafer_exponential,
        "placed": dies.dies_per_wafer_placed,
    }[method](width, height, diameter, edge, scribe)


def _die_yield(area: Any, density: Any, model: str, clustering: Any, ratio: Any, layers: Any) -> Any:
    from xlperf.equations.cost.yields import critical_defects, die_yield

    return die_yield(model, critical_defects(area, density, ratio), clustering, layers)


def _die_cost(price: Any, dies: Any, passed: Any, sort: Any) -> Any:
    from xlperf.equations.cost.dies import good_die_cost, raw_die_cost

    return good_die_cost(raw_die_cost(price, dies), sort, passed)


def _hour_cost(
    capex: Any, life: Any, rate: Any, power: Any, effectiveness: Any, energy: Any, used: Any, upkeep: Any,
    facility: Any, residual: Any,
) -> Any:  # fmt: skip
    from xlperf.equations.cost.tco import capital_recovery_rate, owned_cost_rate

    recovery = capital_recovery_rate(rate, life, residual)
    building = capital_recovery_rate(rate, BUILDING_LIFE)
    return owned_cost_rate(capex, recovery, facility, building, upkeep, 0.0, power, effectiveness, energy, used)


EQUATIONS: Mapping[str, Callable[..., Any]] = {
    "XLPERF_DIES_PER_WAFER": _dies_per_wafer,
    "XLPERF_DIE_YIELD": _die_yield,
    "XLPERF_DIE_COST": _die_cost,
    "XLPERF_HOUR_COST": _hour_cost,
}
"""What computes the functions of the registry whose answer is ``equation``, with their arguments in order."""


def equation_block(function: Function, inputs: Sequence[Numbers | str]) -> Block:
    """Cells that an equation gives for the cells of its arguments, in order; ranges broadcast against each other.

    Returns numbers in the unit of the function; an error where a cell is bad or the result is no number.
    """
    given = [one for one in inputs if isinstance(one, Numbers)]
    try:
        shape = np.broadcast_shapes(*(one.values.shape for one in given))
    except ValueError:
        shapes = dict.fromkeys(one.values.shape for one in given if one.values.size > 1)
        sizes = ", ".join(f"{rows} x {columns}" for rows, columns in shapes)
        words = f"ranges of {sizes} cells do not go together; give a column and a row, or ranges of one size"
        raise FunctionError("#VALUE!", words) from None
    if np.prod(shape, dtype=float) > MOST_CELLS:
        raise FunctionError("#VALUE!", f"a table of {shape[0]:,} x {shape[1]:,} cells is more than {MOST_CELLS:,}")
    with np.errstate(all="ignore"):
        values = [one.values if isinstance(one, Numbers) else one for one in inputs]
        found = np.broadcast_to(EQUATIONS[function.name](*values), shape) / UNITS[function.unit].factor
    block: Block = [
        [cell if np.isfinite(cell) else CellError("#NUM!", "these numbers have no result") for cell in row]
        for row in found.tolist()
    ]
    for one in given:
        if one.words:
            spread = np.broadcast_to(one.faults, shape)
            for row, column in np.argwhere(spread >= 0).tolist():
                block[row][column] = CellError("#VALUE!", one.words[spread[row, column]])
    return block


def read_choice(argument: Argument, cells: Any) -> str:
    """The word of a choice; its default where the cell is blank."""
    block = given_block(cells)
    if not block:
        return argument.default
    given = block[0][0] if len(block) == len(block[0]) == 1 else None
    word = str(given).strip().casefold().replace(" ", "-")
    if word not in argument.choices:
        got = shown(given) if given is not None else "a range"
        raise FunctionError("#VALUE!", f"{argument.name} must be one of {', '.join(argument.choices)}, got {got}; "
                            f"{nearest(word, argument.choices, 1)}")  # fmt: skip
    return word


def read_numbers(argument: Argument, cells: Any) -> Numbers:
    """Numbers of the cells of one argument; its default where they are blank."""
    block = block_of(cells)
    if not block:
        if not argument.default:
            raise FunctionError("#VALUE!", f"{argument.name} must be given: {argument.bounds_text}")
        block = [[float(argument.default)]]
    low, high, exclusive = argument.limits
    values, faults = np.full((len(block), len(block[0])), np.nan), np.full((len(block), len(block[0])), -1)
    words: list[str] = []
    for row, across in enumerate(block):
        for column, cell in enumerate(across):
            if isinstance(cell, float) and (cell > low if exclusive else cell >= low) and cell <= high:
                values[row, column] = cell
                continue
            faults[row, column] = len(words)
            got = "an empty cell" if cell is None else shown(cell)
            words.append(f"{argument.name} must be {argument.bounds_text}, got {got}")
    with np.errstate(over="ignore"):
        return Numbers(values * UNITS[argument.unit].factor, faults, words)
