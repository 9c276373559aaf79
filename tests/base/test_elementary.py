"""Elementary functions: near the exact value, the same for one number as for many, and the only ones in use."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from decimal import Decimal, localcontext
from pathlib import Path

import numpy as np
import pytest
from places import SUPPORT

import xlperf
from xlperf.base.arrays import cbrt, decade, exp, expm1, log, log2, octave_below, power

LN2 = Decimal(2)
EXACT = {
    "log": lambda value: Decimal(value).ln(),
    "log2": lambda value: Decimal(value).ln() / LN2.ln(),
    "exp": lambda value: Decimal(value).exp(),
    "expm1": lambda value: Decimal(value).exp() - 1,
    "cbrt": lambda value: (Decimal(value).ln() / 3).exp(),
}
FUNCTIONS = {"log": log, "log2": log2, "exp": exp, "expm1": expm1, "cbrt": cbrt}
DRAW = np.random.default_rng(11)
POSITIVE = np.concatenate(
    [np.exp(DRAW.uniform(-600, 600, 300)), DRAW.uniform(0.5, 2.0, 300), 1 + 1e-9 * DRAW.random(50)]
)
EXPONENTS = np.concatenate([DRAW.uniform(-700, 700, 300), DRAW.uniform(-1, 1, 300), 1e-9 * DRAW.standard_normal(50)])
VALUES = {name: EXPONENTS if name.startswith("exp") else POSITIVE for name in FUNCTIONS}
LIMITS = {
    "log": {0.0: -np.inf, 1.0: 0.0, np.inf: np.inf, -1.0: np.nan, np.nan: np.nan},
    "log2": {0.0: -np.inf, 1.0: 0.0, 2.0**-40: -40.0, 1024.0: 10.0, np.inf: np.inf, -1.0: np.nan, np.nan: np.nan},
    "exp": {0.0: 1.0, -np.inf: 0.0, np.inf: np.inf, 710.0: np.inf, -746.0: 0.0, np.nan: np.nan},
    "expm1": {0.0: 0.0, -np.inf: -1.0, np.inf: np.inf, -800.0: -1.0, np.nan: np.nan},
    "cbrt": {0.0: 0.0, 27.0: 3.0, np.inf: np.inf, -1.0: np.nan, np.nan: np.nan},
}
ROOMS = ("base", "catalog", "equations", "engine", "explore", "addin")
NOT_PORTABLE = set(  # nor is the order of sums in products of matrices
    "exp exp2 expm1 log log2 log10 log1p logaddexp power float_power cbrt hypot pow erf erfc gamma lgamma sin cos tan "
    "sinh cosh tanh arctan arctan2 atan atan2 einsum dot matmul inner tensordot vdot geomspace logspace "
    "linalg fft".split()
)


def ulps(result: float, exact: Decimal) -> float:
    return float(abs(Decimal(result) - exact) / Decimal(float(np.spacing(abs(float(exact))))))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_are_below_one_and_a_half_units_in_the_last_place(name: str) -> None:
    values = VALUES[name]
    with localcontext() as context:
        context.prec = 50
        worst = max(map(ulps, FUNCTIONS[name](values).tolist(), map(EXACT[name], values.tolist())))
    assert worst < 1.6


def test_powers_err_with_the_logarithm_of_the_result() -> None:
    base, exponent = DRAW.uniform(0.001, 3.0, 500), DRAW.uniform(-40.0, 40.0, 500)
    with localcontext() as context:
        context.prec = 50
        for result, of, by in zip(power(base, exponent).tolist(), base.tolist(), exponent.tolist(), strict=True):
            exact = (Decimal(by) * Decimal(of).ln()).exp()
            assert ulps(result, exact) < 2.0 + 2.0 * abs(float(exact.ln())), (of, by)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_number_has_the_bits_that_it_has_among_many(name: str) -> None:
    values = np.concatenate([VALUES[name], np.array(list(LIMITS[name]))])
    many = FUNCTIONS[name](np.tile(values, 20))[: len(values)]
    alone = [float(FUNCTIONS[name](value)) for value in values.tolist()]
    np.testing.assert_array_equal(many, alone)
    np.testing.assert_array_equal(many, FUNCTIONS[name](values[:, None])[:, 0])


def test_a_power_alone_has_the_bits_that_it_has_among_many() -> None:
    base = np.concatenate([DRAW.uniform(0.0, 5.0, 200), [0.0, 0.0, 1.0, 2.0, np.nan, 2.0]])
    exponent = np.concatenate([DRAW.uniform(-9.0, 9.0, 200), [0.0, 3.0, 7.0, 1.0, 2.0, np.nan]])
    many = power(np.tile(base, 10), np.tile(exponent, 10))[: len(base)]
    np.testing.assert_array_equal(many, [float(power(*pair)) for pair in zip(base, exponent, strict=True)])
    np.testing.assert_array_equal(many[-6:], [1.0, 0.0, 1.0, 2.0, np.nan, np.nan])


@pytest.mark.parametrize("name", LIMITS)
def test_limits(name: str) -> None:
    np.testing.assert_array_equal(FUNCTIONS[name](list(LIMITS[name])), list(LIMITS[name].values()))


def test_decades_and_octaves_are_exact() -> None:
    numbers = np.array([float(f"1e{digits}") for digits in range(-300, 300, 7)])
    np.testing.assert_array_equal(decade(numbers), numbers)
    np.testing.assert_array_equal(decade(np.nextafter(numbers, 0.0)) < numbers, True)
    twos = 2.0 ** np.arange(0.0, 60.0)
    np.testing.assert_array_equal(octave_below(twos), twos)
    np.testing.assert_array_equal(octave_below(np.nextafter(2.0 * twos, 0.0)), twos)


def test_results_are_made_of_no_function_that_machines_round_differently() -> None:
    """C libraries and vector instructions differ in the last bit: those of base.arrays stand in for them."""
    result = set()
    for path in (path for room in ROOMS for path in Path(xlperf.__file__).parent.joinpath(room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("np", "math"):
                if node.attr in NOT_PORTABLE:
                    result.add(f"{path.name}: {node.value.id}.{node.attr}")
            elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.MatMult, ast.Pow)) and not _exact(node):
                result.add(f"{path.name}: {ast.unparse(node)}")
    assert not result


def _exact(node: ast.BinOp) -> bool:
    """Whether a power is a square, or one of constants or of two."""
    if isinstance(node.op, ast.MatMult):
        return False
    base, exponent = (side.value if isinstance(side, ast.Constant) else None for side in (node.left, node.right))
    return exponent == 2 or base in (2, 2.0) or None not in (base, exponent)


def test_plans_have_the_same_bits_without_vector_instructions() -> None:
    program = "import json, pyodide_host as host; exec(host.PLANS); print(json.dumps(shipped()))"
    features = " ".join(np._core._multiarray_umath.__cpu_dispatch__)
    rows = []
    for disabled in ("", features):
        surroundings = {**os.environ, "PYTHONPATH": str(SUPPORT), "NPY_DISABLE_CPU_FEATURES": disabled}
        command = [sys.executable, "-W", "ignore", "-c", program]
        rows.append(subprocess.run(command, env=surroundings, capture_output=True, check=True).stdout)
    assert len(rows[0]) > 100_000
    assert rows[0] == rows[1]
