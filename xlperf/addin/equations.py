"""Equations of cost as worksheet functions: a column against a row gives a table.

Each equation says its arguments once, with unit, default and bounds; the registry of worksheet functions shows them,
and :func:`equation_block` reads the cells, calls one function of ``xlperf.equations.cost`` and shows what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xlperf.base.errors import nearest
from xlperf.base.units import UNITS, YEAR
from xlperf.catalog.cells import shown

if TYPE_CHECKING:
    import numpy as np

    from xlperf.addin.handles import Block

BUILDING_LIFE = 15.0 * YEAR
MOST_CELLS = 4_000_000
"""Cells that one call may fill."""


@dataclass(frozen=True, slots=True)
class Input:
    """One argument of an equation: a number with unit and bounds, or a word out of ``choices``."""

    name: str
    doc: str
    unit: str = "-"
    default: float | str | None = None
    low: float = 0.0
    above: bool = False
    high: float = float("inf")
    choices: tuple[str, ...] = ()

    @property
    def bounds(self) -> str:
        """What is allowed, in words."""
        if self.high != float("inf"):
            start, end = ("above", "up to") if self.above else ("from", "to")
            words = f"a number {start} {self.low:g} {end} {self.high:g}"
        else:
            words = f"a number {'above' if self.above else 'of at least'} {self.low:g}"
        return words if self.unit == "-" else f"{words} ({self.unit})"


@dataclass(frozen=True, slots=True)
class Equation:
    """An equation: what it gives and in which unit, its arguments, and the function that computes it."""

    doc: str
    unit: str
    inputs: tuple[Input, ...]
    compute: Callable[..., Any] = field(repr=False)


def _dies_per_wafer(method: str, *sizes: Any) -> Any:
    from xlperf.equations.cost import dies

    return {
        "formula": dies.dies_per_wafer,
        "area": dies.dies_per_wafer_by_area,
        "exponential": dies.dies_per_wafer_exponential,
        "placed": dies.dies_per_wafer_placed,
    }[method](*sizes)


def _die_yield(model: str, area: Any, density: Any, clustering: Any, ratio: Any, layers: Any) -> Any:
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


EQUATIONS: Mapping[str, Equation] = {
    "DIES_PER_WAFER": Equation(
        "Dies on a wafer, good or bad [-].",
        "-",
        (
            Input("width", "Width of the die", "mm", above=True),
            Input("height", "Height of the die", "mm", above=True),
            Input("diameter", "Diameter of the wafer", "mm", 300.0, above=True),
            Input("edge", "Rim of the wafer that holds no good die", "mm", 3.0),
            Input("scribe", "Lane between dies", "mm", 0.1),
            Input(
                "method",
                "Formula, or whole dies placed on a grid",
                default="formula",
                choices=("formula", "area", "exponential", "placed"),
            ),
        ),
        lambda width, height, diameter, edge, scribe, method: _dies_per_wafer(
            method, width, height, diameter, edge, scribe
        ),
    ),
    "DIE_YIELD": Equation(
        "Share of good dies [-].",
        "-",
        (
            Input("area", "Area of the die", "mm2", above=True),
            Input("defects", "Defects per area", "1/cm2"),
            Input(
                "model",
                "Yield model",
                default="negative-binomial",
                choices=(
                    "negative-binomial", "poisson", "murphy", "rectangular", "seeds", "moore", "bose-einstein",
                ),
            ),
            Input("clustering", "Alpha of the negative binomial model", default=10.0, above=True),
            Input("ratio", "Share of the area where a defect breaks something", default=1.0, high=1.0),
            Input("layers", "Critical layers of the Bose-Einstein model", default=10.0, above=True),
        ),
        lambda area, defects, model, clustering, ratio, layers: _die_yield(
            model, area, defects, clustering, ratio, layers
        ),
    ),
    "DIE_COST": Equation(
        "Cost of a good die [USD]; of a raw one without a yield.",
        "USD",
        (
            Input("price", "Price of a processed wafer", "USD"),
            Input("dies", "Dies per wafer", above=True),
            Input("passed", "Share of the dies that pass the sort: the yield", default=1.0, above=True, high=1.0),
            Input("sort", "Cost of testing one die", "USD", 0.0),
        ),
        _die_cost,
    ),
    "HOUR_COST": Equation(
        "Cost of one accelerator for an hour of use, owned [USD/h].",
        "USD/h",
        (
            Input("capex", "Price of one accelerator with its share of server and network", "USD"),
            Input("life", "Time over which it is written off", "year", above=True),
            Input("rate", "Yearly cost of capital", default=0.08),
            Input("power", "Power of one accelerator with its share of the server", "W", 0.0),
            Input("effectiveness", "Power into the building over power into the servers", default=1.25, low=1.0),
            Input("energy", "Price of electric energy", "USD/kWh", 0.08),
            Input("used", "Share of the hours that are used", default=1.0, above=True, high=1.0),
            Input("upkeep", "Yearly maintenance and staff as a share of capex", default=0.03),
            Input("facility", "Rack and building of one accelerator, written off over 15 years", "USD", 0.0),
            Input("residual", "Share of capex that is left at the end of life", default=0.0, high=1.0),
        ),
        _hour_cost,
    ),
}  # fmt: skip


def equation_block(name: str, arguments: Sequence[Any]) -> Block:
    """Cells that an equation gives for cells.

    Parameters
    ----------
    name : str
        ``DIES_PER_WAFER`` ...
    arguments : sequence
        One per input: a cell value, rows of cells, or None for the default. Ranges broadcast against each other: a
        column and a row give a table.

    Returns
    -------
    list of list
        Numbers in the unit of the equation; an error where a cell is bad or the result is no number.
    """
    import numpy as np

    from xlperf.addin.blocks import CellError, FunctionError

    equation = EQUATIONS[name]
    values: list[Any] = []
    faults: list[tuple[np.ndarray, list[str]]] = []
    for own, argument in zip(equation.inputs, arguments, strict=True):
        if own.choices:
            values.append(_word(own, argument))
            continue
        cells, places, problems = _numbers(own, argument)
        with np.errstate(over="ignore"):
            values.append(cells * UNITS[own.unit].factor)
        if problems:
            faults.append((places, problems))
    arrays = [value for value in values if not isinstance(value, str)]
    try:
        shape = np.broadcast_shapes(*(value.shape for value in arrays))
    except ValueError:
        sizes = ", ".join(dict.fromkeys(f"{value.shape[0]} x {value.shape[1]}" for value in arrays if value.size > 1))
        words = f"ranges of {sizes} cells do not go together; give a column and a row, or ranges of one size"
        raise FunctionError("#VALUE!", words) from None
    if np.prod(shape, dtype=float) > MOST_CELLS:
        raise FunctionError("#VALUE!", f"a table of {shape[0]:,} x {shape[1]:,} cells is more than {MOST_CELLS:,}")
    with np.errstate(all="ignore"):
        found = np.broadcast_to(equation.compute(*values), shape) / UNITS[equation.unit].factor
    block: Block = [
        [cell if np.isfinite(cell) else CellError("#NUM!", "these numbers have no result") for cell in row]
        for row in found.tolist()
    ]
    for places, problems in faults:
        spread = np.broadcast_to(places, shape)
        for row, column in np.argwhere(spread >= 0).tolist():
            block[row][column] = CellError("#VALUE!", problems[spread[row, column]])
    return block


def _word(own: Input, argument: Any) -> str:
    from xlperf.addin.blocks import FunctionError, block_of

    cells = block_of(argument)
    given = cells[0][0] if cells and len(cells) == 1 and len(cells[0]) == 1 else None
    if not cells or given == 0:  # an empty cell arrives as 0 in LibreOffice
        return str(own.default)
    word = str(given).strip().casefold().replace(" ", "-")
    if word not in own.choices:
        got = shown(given) if given is not None else "a range"
        raise FunctionError("#VALUE!", f"{own.name} must be one of {', '.join(own.choices)}, got {got}; "
                            f"{nearest(word, own.choices, 1)}")  # fmt: skip
    return word


def _numbers(own: Input, argument: Any) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Cells of one argument as numbers, NaN where one is bad; which problem each has, -1 for none; the problems."""
    import numpy as np

    from xlperf.addin.blocks import FunctionError, block_of

    cells = block_of(argument)
    if not cells:
        if own.default is None:
            raise FunctionError("#VALUE!", f"{own.name} must be given: {own.bounds}")
        return np.array([[float(own.default)]]), np.array([[-1]]), []
    numbers = np.full((len(cells), len(cells[0])), np.nan)
    places = np.full(numbers.shape, -1)
    problems: list[str] = []
    for row, across in enumerate(cells):
        for column, cell in enumerate(across):
            good = isinstance(cell, float) and (cell > own.low if own.above else cell >= own.low) and cell <= own.high
            if good:
                numbers[row, column] = cell
                continue
            places[row, column] = len(problems)
            problems.append(f"{own.name} must be {own.bounds}, got {'an empty cell' if cell is None else shown(cell)}")
    return numbers, places, problems
