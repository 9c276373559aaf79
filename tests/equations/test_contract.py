"""The contract of every public equation, found by import: what the docstring promises, the arrays keep."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import contract
import numpy as np
import pytest
from contract import COUNTED, Leaf, formulas

from xlperf.base.arrays import Array, Numeric, array

# Yardsticks that a formula does not follow: constants of fixed size stand in it, with their unit beside them.
FIXED_WORDS: dict[str, set[str]] = {}

OFTEN_INFINITE = {"cost.tco.break_even_load": "prices at random are below the cost of a full copy: no load pays for it"}

SOURCE = re.compile(r"Source: \S|References\n-")

EVERY = pytest.mark.parametrize("name", sorted(formulas()))


def _draw(name: str) -> tuple[Callable[..., Any], dict[str, Leaf]]:
    function = formulas()[name]
    return function, contract.draw(function, np.random.default_rng(7))


def _call(function: Callable[..., Any], drawn: dict[str, Leaf], change: Callable[[Leaf], Any]) -> list[Any]:
    arguments = {name: change(leaf) for name, leaf in drawn.items()}
    with np.errstate(all="ignore"):
        return contract.outcomes(function, function(**arguments))


def _values(leaf: Leaf) -> np.ndarray:
    frozen = leaf.values.copy()
    frozen.flags.writeable = False
    return frozen


def test_equations_are_found() -> None:
    assert len(formulas()) >= 130


@EVERY
def test_docstring_names_the_parameters_of_the_signature(name: str) -> None:
    function = formulas()[name]
    documented = [entry.name for entry in contract.section(contract.documentation(function), "Parameters")]
    assert documented == list(contract.parameters(function)), f"{name}: docstring and signature differ"


@EVERY
def test_docstring_gives_units(name: str) -> None:
    function = formulas()[name]
    text = contract.documentation(function)
    for entry in contract.section(text, "Parameters"):
        if contract.is_array(contract.parameters(function).get(entry.name, "")):
            assert entry.unit is not None, f"{name}: {entry.name} has no unit in [ ]"
            contract.exponents(entry.unit)
    returns = contract.section(text, "Returns")
    assert returns, f"{name}: no Returns section"
    for entry in returns:
        assert entry.unit is not None, f"{name}: result {entry.name} has no unit in [ ]"
        contract.exponents(entry.unit)


def _has_formula(name: str) -> bool:
    return ".. math::" in contract.documentation(formulas()[name])


@EVERY
def test_docstring_gives_formula_or_reference(name: str) -> None:
    text = contract.documentation(formulas()[name])
    assert _has_formula(name) or SOURCE.search(text), f"{name}: neither formula nor reference"


@EVERY
def test_docstring_gives_source(name: str) -> None:
    """Of every formula, and of all that says watts: functions of records, too."""
    text = contract.documentation(formulas()[name])
    own = re.search("this work|By definition", text)
    assert SOURCE.search(text) or own, f"{name}: a source, or 'heuristic, this work', or 'By definition'"


@EVERY
def test_docstring_has_a_worked_example(name: str) -> None:
    """Whole steps and services too: on the machine of round numbers of ``ideal_machine.py``."""
    worked = re.search(r"^>>> .*\n(?!>>>)\S", contract.documentation(formulas()[name]), re.MULTILINE)
    assert worked, f"{name}: no doctest with its result"


@EVERY
def test_one_row_is_the_same_alone_and_among_others(name: str) -> None:
    function, drawn = _draw(name)
    together = _call(function, drawn, _values)
    for row in range(0, contract.ROWS, 5):
        alone = _call(function, drawn, lambda leaf, row=row: leaf.values[row : row + 1])
        for (label, _, many), (_, _, one) in zip(together, alone, strict=True):
            same = np.ascontiguousarray(many[row : row + 1]).tobytes() == np.ascontiguousarray(one).tobytes()
            assert same, f"{name}: {label} of row {row} differs in the last bits: {many[row]} and {one[0]}"


@EVERY
def test_scalars_lists_and_grids_are_the_same_code(name: str) -> None:
    function, drawn = _draw(name)
    together = _call(function, drawn, _values)
    lists = _call(function, drawn, lambda leaf: leaf.values.tolist())
    for (label, _, many), (_, _, listed) in zip(together, lists, strict=True):
        assert many.tobytes() == listed.tobytes(), f"{name}: {label} of lists is not that of arrays"
        assert many.dtype == np.float64, f"{name}: {label} is {many.dtype}"
    row = 3
    scalars = _call(function, drawn, lambda leaf: float(leaf.values[row]))
    for (label, _, many), (_, _, one) in zip(together, scalars, strict=True):
        assert one.shape == (), f"{name}: {label} of scalars has shape {one.shape}"
        assert many[row].tobytes() == one.tobytes(), f"{name}: {label} of scalars is {one}, of a row {many[row]}"
    if len(drawn) < 2:
        return
    first = next(iter(drawn.values()))
    grid = _call(function, drawn, lambda leaf: leaf.values[:, None] if leaf is first else leaf.values[None, :])
    for (label, _, many), (_, _, table) in zip(together, grid, strict=True):
        assert table.shape == (contract.ROWS, contract.ROWS), f"{name}: {label} of a column and a row"
        assert np.diagonal(table).tobytes() == many.tobytes(), f"{name}: {label} of a column and a row differs"


@EVERY
def test_arguments_are_untouched_and_results_are_numbers(name: str) -> None:
    function, drawn = _draw(name)
    before = [leaf.values.copy() for leaf in drawn.values()]
    results = _call(function, drawn, lambda leaf: leaf.values)
    for (argument, leaf), copy in zip(drawn.items(), before, strict=True):
        assert leaf.values.tobytes() == copy.tobytes(), f"{name}: writes into its argument {argument}"
    for label, _, values in results:
        known = ~np.isnan(values) if name in OFTEN_INFINITE else np.isfinite(values)
        assert known.mean() > 0.5, f"{name}: {label} is hardly ever a number: {values}"


@EVERY
def test_nan_in_nan_out(name: str) -> None:
    function, drawn = _draw(name)
    whole = _call(function, drawn, _values)
    row = 5
    for argument, spoiled in drawn.items():
        if spoiled.entry.nan_has_a_meaning:
            continue

        def change(leaf: Leaf, spoiled: Leaf = spoiled) -> np.ndarray:
            values = leaf.values.copy()
            if leaf is spoiled:
                values[row] = np.nan
            return values

        found = _call(function, drawn, change)
        for label, _, values in found:
            assert np.isnan(values[row]).all(), f"{name}: {label} is {values[row]} where {argument} is NaN"
        for (label, _, values), (_, _, clean) in zip(found, whole, strict=True):
            others = np.arange(len(values)) != row
            assert values[others].tobytes() == clean[others].tobytes(), f"{name}: {label} leaks NaN into other rows"


@EVERY
@pytest.mark.parametrize("seed", [1, 2])
def test_result_scales_with_its_units(name: str, seed: int) -> None:
    """Re-measured with other yardsticks the inputs give the re-measured result; a hard-wired 5 us does not."""
    function, drawn = _draw(name)
    sources = list(drawn.values())
    carried = set().union(*(contract.dimensions(leaf.unit) for leaf in sources), set())
    amounts = {leaf.unit for leaf in sources}
    together = _call(function, drawn, _values)
    for label, unit, _ in together:
        wired = contract.dimensions(unit) - carried - COUNTED
        assert not wired, f"{name}: {label} is in [{unit}] but no argument carries {', '.join(sorted(wired))}"
    random = np.random.default_rng(seed)
    measured = sorted(carried - COUNTED - FIXED_WORDS.get(name, set())) + sorted(COUNTED & amounts)
    for dimension in measured:
        sticks = {dimension: 2.0 ** int(random.choice([-9, -5, 4, 7]))}
        scaled = _call(function, drawn, lambda leaf, sticks=sticks: leaf.values * contract.yardstick(leaf.unit, sticks))
        for (label, unit, values), (_, _, again) in zip(together, scaled, strict=True):
            expected = values * contract.yardstick(unit, sticks)
            np.testing.assert_allclose(
                again,
                expected,
                rtol=1e-12,
                atol=np.finfo(float).tiny,
                err_msg=f"{name}: {label} [{unit}] does not follow when {dimension} is measured anew",
            )


def _wired(message_size: Numeric, bandwidth: Numeric) -> Array:
    """Transfer with a hard-wired start-up time.

    Parameters
    ----------
    message_size : numeric
        Bytes. [B]
    bandwidth : numeric
        Rate. [B/s]

    Returns
    -------
    time : numeric
        Start and transfer. [s]
    """
    return np.asarray(5e-6 + array(message_size) / array(bandwidth))


def _dropped(message_size: Numeric, bandwidth: Numeric) -> Array:
    return array(message_size) * np.sign(array(bandwidth))


def _deaf(message_size: Numeric, bandwidth: Numeric) -> Array:
    return np.asarray(np.nan_to_num(array(message_size)) / array(bandwidth))


def _writing(message_size: Numeric, bandwidth: Numeric) -> Array:
    rate = array(bandwidth)
    rate *= 1.0 + 1e-16 + 1e-15
    return np.asarray(array(message_size) / rate)


def _blocked(message_size: Numeric, bandwidth: Numeric) -> Array:
    size = array(message_size)
    return np.asarray((size + 1e-9 * size.size) / array(bandwidth))


@pytest.mark.parametrize(
    ("function", "test", "words"),
    [
        (_wired, lambda name: test_result_scales_with_its_units(name, 1), "does not follow when"),
        (_dropped, lambda name: test_result_scales_with_its_units(name, 1), "does not follow when"),
        (_deaf, lambda name: test_nan_in_nan_out(name), "where message_size is NaN"),
        (_writing, lambda name: test_arguments_are_untouched_and_results_are_numbers(name), "its argument band"),
        (_blocked, lambda name: test_one_row_is_the_same_alone_and_among_others(name), "in the last bits"),
        (_blocked, test_scalars_lists_and_grids_are_the_same_code, "of scalars is"),
    ],
)
def test_the_contract_catches_a_bad_equation(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], test: Callable[[str], None], words: str
) -> None:
    function.__doc__ = _wired.__doc__
    monkeypatch.setitem(formulas(), "bad.equation", function)
    with pytest.raises(AssertionError, match=rf"(?s)bad\.equation: .*{words}"):
        test("bad.equation")
