"""The contract of every public equation, found by import: what the docstring promises, the arrays keep."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import equations
import numpy as np
import pytest
from equations import COUNTED, Leaf, functions

from xlperf.base.arrays import Array, Numeric, array

# Functions whose arguments cannot be drawn from their docstring alone; the tests of their rooms call them.
NOT_DRAWN = {
    "training.adapters.adapter_gemms": "the place is a word",
    "training.adapters.adapter_vectors": "the place is a word",
    "training.adapters.frozen_products": "names of products",
    "hardware.roofline.stack_constants": "the constants of all kernels by family",
    "hardware.bounds.ideal_constants": "constants of any family",
    "serving.phases.on_machine": "factors of the speed of a machine, of one or of each",
    "hardware.bounds.limiting_resources": "takes a function",
    "hardware.bounds.most_saved": "any number of arguments",
    "serving.queueing.spread_quantiles": "the wait for a place is optional",
    "serving.kernels.product_device": "takes the products that serving_gemms returns",
    "cost.tco.daily_mean": "a day of values beside each time",
    "cost.designs.design_rules": "rules in words",
    "plan.serving_plan.with_defaults": "columns of the sheet in and out",
    "plan.serving_plan.pool_plans": "columns of the sheet in and out",
    "serving.deployment.engine_constants": "the constants of all kernels by family",
    "serving.results.with_request_latency": "columns of results in and out",
    "serving.results.full_cache": "masks in place of numbers",
    "serving.results.band_of_mode": "words",
    "serving.results.band_of_time": "words",
    "serving.deployment.host_times": "constants of any family",
    "serving.continuous.loaded_results": "takes the state that operating returns",
    "serving.energy.results_at_rate": "columns of results in and out",
    "serving.energy.serving_power": "two accelerators with their limits and constants",
    "serving.energy.expert_pool_power": "two accelerators with their limits and constants",
    "training.rates.training_power": "an accelerator with its limits and constants",
    "serving.kernels.attention_kernels": "takes the batching that batching_of returns",
    "serving.kernels.by_phase": "a number of phases",
    "serving.kernels.product_times": "takes the products that serving_gemms returns",
    "serving.targets.target_results": "takes times of batches",
    "serving.targets.pooled_target_results": "takes two pools as pools_of returns them",
    "serving.phases.phase_times": "takes the work that serving_work returns",
    "serving.phases.serving_bound": "takes the work that serving_work returns",
    "serving.pool_queueing.pooled_state": "takes curves of times beside numbers",
    "serving.pool_queueing.pooled_open_state": "takes curves of times beside numbers",
    "serving.pools.pools_of": "the places of the plans with an expert pool",
    "serving.kernels.of_part": "names of kernels",
    "serving.communication.pool_message_time": "two pools with a size each; the tests of pools call it",
    "serving.pools.pool_state": "takes two pools as pools_of returns them",
    "serving.pools.pooled_steady": "takes two pools as pools_of returns them",
    "serving.pools.pooled_results": "takes two pools as pools_of returns them",
    "serving.results.batch_times": "takes the five parts of a step that phase_times returns",
    "serving.results.streamed": "takes the results of a static batch",
    "network.topologies.tier_shape": "takes the number of a tier, part of collective_time",
    "plan.records.broken_rules": "rules in words",
    "plan.records.derived": "takes a function",
    "plan.records.remarks_of_rows": "rules in words",
    "plan.training_plan.with_defaults": "the words of the sheet beside its numbers",
    "training.kernels.part_work": "takes operators with their names",
    "training.activations.selected_share": "takes operators with their names",
    "plan.training_plan.group_strides": "sizes by name of the dimension",
    "model.operators.concatenated": "any number of arguments",
    "training.communication.collective_calls": "takes the collectives that communication_of returns",
    "training.communication.communication_of": "a bundle of times and sizes, part of training.step.step",
    "training.communication.context_time": "takes the collectives that communication_of returns",
    "training.communication.tensor_times": "takes the collectives that communication_of returns",
    "training.stages.pacing_contents": "takes the contents of three stages beside each other",
    "plan.training_plan.used_families": "answers yes or no",
    "training.sparse_attention.sparse_cores": "a list of kernels, part of training.step.step",
    "serving.kernels.decode_sparse": "a list of kernels, part of serving.phases.serving_work",
    "serving.kernels.prefill_sparse": "a list of kernels, part of serving.phases.serving_work",
    "training.kernels.kernel_parts": "a list of kernels, part of training.step.step",
}

# Yardsticks that a whole step or service does not follow: it stores words of fixed size (FP32 logits, moments and
# master weights of 4 bytes, dropout masks of 1), which are constants with their unit beside them.
FIXED_WORDS = {
    "hardware.gemm.gemm_time": {"B"},  # stages of tiles
    "hardware.power.accelerator_power": {"B"},  # inputs of products over those of 2 bytes
    "hardware.power.traffic_from_memory": {"B"},  # over that with a usual cache
    "serving.phases.logit_size": {"B"},
    "serving.energy.sampling_traffic": {"B"},
    "serving.expert_pools.expert_pool_memory": {"B"},
    "serving.expert_pools.split_step": {"B"},
    "training.activations.layer_activations": {"B"},
    "serving.continuous.operating": {"B"},
    "serving.memory.memory_of": {"B"},
    "serving.phases.serving_work": {"B"},
    "serving.pools.pools_of": {"B"},
    "serving.results.serving_results": {"B"},
    "serving.results.serving_times": {"B"},
    "training.memory.kept_activations": {"B"},
    "training.memory.memory_of": {"B"},
    "training.rates.run_results": {"B"},
    "training.step.step": {"B"},
}

OFTEN_INFINITE = {
    "serving.continuous.operating": "request rates at random are beyond the capacity: endless waits",
    "cost.break_even.break_even_load": "prices at random are below the cost of a full copy: no load pays for it",
}

EVERY = pytest.mark.parametrize("name", sorted(functions()))
EQUATIONS = [name for name, function in sorted(functions().items()) if equations.is_equation(function)]
DRAWN = [name for name in sorted(functions()) if name not in equations.undrawn()]


def _cases() -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = []
    for name in DRAWN:
        function = functions()[name]
        options = [
            choice
            for entry in equations.section(equations.documentation(function), "Parameters")
            if equations.parameters(function).get(entry.name) in equations.WORDS
            for choice in equations.choices(entry)
        ]
        found += [(name, option) for option in options or [None]]
    return found


CASES = pytest.mark.parametrize(("name", "choice"), _cases())


def _draw(name: str, choice: str | None) -> tuple[Callable[..., Any], dict[str, Any]]:
    function = functions()[name]
    return function, equations.draw(function, np.random.default_rng(7), choice)


def _call(function: Callable[..., Any], drawn: dict[str, Any], change: Callable[[Leaf], Any]) -> list[Any]:
    arguments = equations.filled(drawn, change)
    with np.errstate(all="ignore"):
        return equations.outcomes(function, function(**arguments))


def _values(leaf: Leaf) -> np.ndarray:
    frozen = leaf.values.copy()
    frozen.flags.writeable = False
    return frozen


def test_equations_are_found() -> None:
    assert len(functions()) > 20
    assert EQUATIONS


@EVERY
def test_docstring_names_the_parameters_of_the_signature(name: str) -> None:
    function = functions()[name]
    documented = [entry.name for entry in equations.section(equations.documentation(function), "Parameters")]
    assert documented == list(equations.parameters(function)), f"{name}: docstring and signature differ"


@EVERY
def test_docstring_gives_units(name: str) -> None:
    function = functions()[name]
    text = equations.documentation(function)
    for entry in equations.section(text, "Parameters"):
        if equations.is_array(equations.parameters(function).get(entry.name, "")):
            assert entry.unit is not None, f"{name}: {entry.name} has no unit in [ ]"
            equations.exponents(entry.unit)
    returns = equations.section(text, "Returns")
    assert returns, f"{name}: no Returns section"
    for entry in returns if equations.is_equation(function) else ():
        assert entry.unit is not None, f"{name}: result {entry.name} has no unit in [ ]"
        equations.exponents(entry.unit)


def _has_formula(name: str) -> bool:
    return ".. math::" in equations.documentation(functions()[name])


@pytest.mark.parametrize("name", EQUATIONS)
def test_docstring_gives_formula_or_reference(name: str) -> None:
    text = equations.documentation(functions()[name])
    assert _has_formula(name) or "References\n-" in text, f"{name}: neither formula nor reference"


OF_POWER = re.compile(r"hardware\.power\.|serving\.energy\.|.*power$")
SOURCED = [name for name in sorted(functions()) if name in EQUATIONS or _has_formula(name) or OF_POWER.match(name)]


@pytest.mark.parametrize("name", SOURCED)
def test_docstring_gives_source(name: str) -> None:
    """Of every formula, and of all that says watts: functions of records, too."""
    text = equations.documentation(functions()[name])
    own = re.search("this work|By definition", text)
    assert "References\n-" in text or own, f"{name}: a reference, or 'heuristic, this work', or 'By definition'"


@EVERY
def test_docstring_has_a_worked_example(name: str) -> None:
    """Whole steps and services too: on the machine of round numbers of ``ideal_machine.py``."""
    worked = re.search(r"^>>> .*\n(?!>>>)\S", equations.documentation(functions()[name]), re.MULTILINE)
    assert worked, f"{name}: no doctest with its result"


def test_functions_that_are_not_drawn_are_listed() -> None:
    unable = equations.undrawn()
    assert set(unable) - set(NOT_DRAWN) == set(), unable
    assert set(NOT_DRAWN) - set(unable) == set(), "listed, but can be drawn or is gone"


@CASES
def test_one_row_is_the_same_alone_and_among_others(name: str, choice: str | None) -> None:
    function, drawn = _draw(name, choice)
    together = _call(function, drawn, _values)
    for row in range(0, equations.ROWS, 5):
        alone = _call(function, drawn, lambda leaf, row=row: leaf.values[row : row + 1])
        for (label, _, many), (_, _, one) in zip(together, alone, strict=True):
            same = np.ascontiguousarray(many[row : row + 1]).tobytes() == np.ascontiguousarray(one).tobytes()
            assert same, f"{name}: {label} of row {row} differs in the last bits: {many[row]} and {one[0]}"


@pytest.mark.parametrize("name", [name for name in EQUATIONS if name in DRAWN])
def test_scalars_lists_and_grids_are_the_same_code(name: str) -> None:
    function, drawn = _draw(name, None)
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
    first = next(iter(drawn))
    grid = _call(function, drawn, lambda leaf: leaf.values[:, None] if leaf.path[0] == first else leaf.values[None, :])
    for (label, _, many), (_, _, table) in zip(together, grid, strict=True):
        assert table.shape == (equations.ROWS, equations.ROWS), f"{name}: {label} of a column and a row"
        assert np.diagonal(table).tobytes() == many.tobytes(), f"{name}: {label} of a column and a row differs"


@CASES
def test_arguments_are_untouched_and_results_are_numbers(name: str, choice: str | None) -> None:
    function, drawn = _draw(name, choice)
    before = [leaf.values.copy() for leaf in equations.leaves(drawn)]
    results = _call(function, drawn, lambda leaf: leaf.values)
    for leaf, copy in zip(equations.leaves(drawn), before, strict=True):
        assert leaf.values.tobytes() == copy.tobytes(), f"{name}: writes into its argument {'.'.join(leaf.path)}"
    for label, _, values in results:
        known = ~np.isnan(values) if name in OFTEN_INFINITE else np.isfinite(values)
        assert known.mean() > 0.5, f"{name}: {label} is hardly ever a number: {values}"


@CASES
def test_nan_in_nan_out(name: str, choice: str | None) -> None:
    function, drawn = _draw(name, choice)
    whole = _call(function, drawn, _values)
    row = 5
    for spoiled in equations.leaves(drawn):
        if not spoiled.direct or spoiled.entry.nan_has_a_meaning:
            continue
        if spoiled.entry.is_flag and not equations.is_equation(function):
            continue

        def change(leaf: Leaf, spoiled: Leaf = spoiled) -> np.ndarray:
            values = leaf.values.copy()
            if leaf.path == spoiled.path:
                values[row] = np.nan
            return values

        found = _call(function, drawn, change)
        if equations.is_equation(function):
            for label, _, values in found:
                assert np.isnan(values[row]).all(), f"{name}: {label} is {values[row]} where {spoiled.path[0]} is NaN"
        touched = any(np.isnan(values[row]).any() for _, _, values in found)
        assert touched, f"{name}: no result is NaN where {spoiled.path[0]} is NaN"
        for (label, _, values), (_, _, clean) in zip(found, whole, strict=True):
            others = np.arange(len(values)) != row
            assert values[others].tobytes() == clean[others].tobytes(), f"{name}: {label} leaks NaN into other rows"


@CASES
@pytest.mark.parametrize("seed", [1, 2])
def test_result_scales_with_its_units(name: str, choice: str | None, seed: int) -> None:
    """Re-measured with other yardsticks the inputs give the re-measured result; a hard-wired 5 us does not."""
    function, drawn = _draw(name, choice)
    sources = list(equations.leaves(drawn))
    carried = set().union(*(equations.dimensions(leaf.unit) for leaf in sources), set())
    amounts = {leaf.unit for leaf in sources if leaf.direct}
    together = _call(function, drawn, _values)
    for label, unit, _ in together:
        wired = equations.dimensions(unit) - carried - COUNTED
        assert not wired, f"{name}: {label} is in [{unit}] but no argument carries {', '.join(sorted(wired))}"
    random = np.random.default_rng(seed)
    measured = sorted(carried - COUNTED - FIXED_WORDS.get(name, set())) + sorted(COUNTED & amounts)
    for dimension in measured:
        sticks = {dimension: 2.0 ** int(random.choice([-9, -5, 4, 7]))}
        scaled = _call(
            function, drawn, lambda leaf, sticks=sticks: leaf.values * equations.yardstick(leaf.unit, sticks)
        )
        for (label, unit, values), (_, _, again) in zip(together, scaled, strict=True):
            expected = values * equations.yardstick(unit, sticks)
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
        (_wired, lambda name: test_result_scales_with_its_units(name, None, 1), "does not follow when"),
        (_dropped, lambda name: test_result_scales_with_its_units(name, None, 1), "does not follow when"),
        (_deaf, lambda name: test_nan_in_nan_out(name, None), "where message_size is NaN"),
        (_writing, lambda name: test_arguments_are_untouched_and_results_are_numbers(name, None), "its argument band"),
        (_blocked, lambda name: test_one_row_is_the_same_alone_and_among_others(name, None), "in the last bits"),
        (_blocked, test_scalars_lists_and_grids_are_the_same_code, "of scalars is"),
    ],
)
def test_the_contract_catches_a_bad_equation(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], test: Callable[[str], None], words: str
) -> None:
    function.__doc__ = _wired.__doc__
    monkeypatch.setitem(functions(), "bad.equation", function)
    with pytest.raises(AssertionError, match=rf"(?s)bad\.equation: .*{words}"):
        test("bad.equation")
