"""Which calibration row holds: from the nearest key to the farthest; extrapolation; and what rows a fit may leave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from published_samples import rows_of_fit_set
from shipped import shipped_measured

from xlperf.base import resources
from xlperf.base.errors import InputError
from xlperf.base.units import UNITS
from xlperf.calibrate.fit_published import MOST_OF_SOFTWARE, SOURCES
from xlperf.calibrate.fitter import FEWEST_ROWS
from xlperf.catalog.calibration import (
    ANY,
    SOFTWARE_FAMILIES,
    Calibration,
    calibration_keys,
    declared_constants,
    documented_rows,
    generation_line,
)
from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.parse import table_from_rows

HEADER = ["calibration", "family", "generation", "precision", "software", "constant", "value", "unit"]
FALL_BACKS = [
    ("hopper", "fp8", "megatron"),
    ("hopper", "fp8", "any"),
    ("hopper", "any", "megatron"),
    ("hopper", "any", "any"),
    ("any", "fp8", "any"),
    ("any", "any", "any"),
]
LAUNCH = declared_constants()["attention"]["launch_time"]


def calibration(*rows: tuple[str, str, str, float], constant: str = "launch_time", unit: str = "us") -> Calibration:
    """Rows of (generation, precision, software, value) of one constant of ``attention``."""
    cells = [[f"row {n}", "attention", *row[:3], constant, row[3], unit] for n, row in enumerate(rows)]
    return Calibration(table_from_rows("calibration", HEADER, cells))


def stated(columns: dict[str, np.ndarray]) -> dict[str, list[float]]:
    return {name: values[:, 0].tolist() for name, values in columns.items()}


def looked_up(result: Calibration, *key: str, constant: str = "launch_time") -> tuple[float, bool]:
    columns, extrapolated = result.constants("attention", *(np.array([part], dtype=object) for part in key))
    assert columns[constant].shape == (1, 1)
    return float(columns[constant][0, 0]), bool(extrapolated[0])


@pytest.mark.parametrize("nearest", range(len(FALL_BACKS)))
def test_the_nearest_row_holds(nearest: int) -> None:
    rows = [(*key, number + 1.0) for number, key in enumerate(FALL_BACKS)][nearest:]
    expected = (nearest + 1.0) * UNITS["us"].factor
    value, extrapolated = looked_up(calibration(*rows), "hopper", "fp8", "megatron")
    assert value == expected
    assert extrapolated == (nearest >= 4)


def test_a_generation_falls_back_to_its_line_before_all_machines() -> None:
    result = calibration(("cdna", "any", "any", 1), ("any", "fp8", "any", 2), ("cdna4", "fp8", "any", 3))
    microsecond = UNITS["us"].factor
    assert looked_up(result, "cdna3", "fp8", "megatron") == (1 * microsecond, False)
    assert looked_up(result, "CDNA4", "fp8", "vllm") == (3 * microsecond, False)
    assert looked_up(result, "cdna4", "bf16", "vllm") == (1 * microsecond, False)
    assert looked_up(result, "tpu", "fp8", "maxtext") == (2 * microsecond, True)


def test_unknown_software_on_a_line_takes_what_holds_there() -> None:
    cells = [
        ["a", "training_software", "tpu", "any", "any", "kernel_slowdown", 1.3, "-"],
        ["b", "training_software", "any", "any", "megatron", "kernel_slowdown", 1.1, "-"],
        ["c", "training_software", "cdna", "any", "megatron", "kernel_slowdown", 1.4, "-"],
    ]
    result = Calibration(table_from_rows("calibration", HEADER, cells))
    asked = [("tpu", "megatron"), ("tpu", "paxml"), ("cdna3", "megatron"), ("hopper", "megatron")]
    generations, software = (np.array(part, dtype=object) for part in zip(*asked, strict=True))
    columns, _ = result.constants("training_software", generations, np.full(len(asked), "bf16", dtype=object), software)
    assert columns["kernel_slowdown"][:, 0].tolist() == [1.1, 1.3, 1.4, 1.1]


def test_a_stack_that_calls_kernels_of_another_takes_its_constants() -> None:
    """Its own before these, these before those of any software; none of what its compiler fuses."""
    called = (("hopper", "bf16", "any", 1), ("hopper", "bf16", "torch-fsdp", 2), ("any", "bf16", "torchtitan", 3))
    microsecond = UNITS["us"].factor
    assert looked_up(calibration(*called), "hopper", "bf16", "torchtitan") == (2 * microsecond, False)
    assert looked_up(calibration(*called), "hopper", "bf16", "nemo") == (1 * microsecond, False)
    own = (*called, ("hopper", "bf16", "torchtitan", 4))
    assert looked_up(calibration(*own), "hopper", "bf16", "torchtitan") == (4 * microsecond, False)
    cells = [
        ["a", "training_software", "any", "any", "torch-fsdp", "kernel_slowdown", 1.3, "-"],
        ["b", "training_software", "any", "any", "any", "kernel_slowdown", 1.1, "-"],
        ["c", "training_software", "hopper", "any", "torch-fsdp", "overlap_tax", 0.4, "-"],
        ["d", "training_software", "any", "any", "torchtitan", "overlap_tax", 0.2, "-"],
        ["f", "vector", "hopper", "any", "torch-fsdp", "memory_efficiency", 0.2, "-"],
        ["g", "vector", "hopper", "any", "any", "memory_efficiency", 0.7, "-"],
    ]
    result = Calibration(table_from_rows("calibration", HEADER, cells))
    for family, name, wanted in (
        ("training_software", "kernel_slowdown", 1.3),
        ("training_software", "overlap_tax", 0.2),
        ("vector", "memory_efficiency", 0.7),
    ):
        columns, _ = result.constants(
            family, *(np.array([part], dtype=object) for part in ("hopper", "", "torchtitan"))
        )
        assert columns[name].tolist() == [[wanted]], name


def test_rows_of_other_keys_do_not_hold() -> None:
    result = calibration(("ampere", "any", "any", 1), ("hopper", "fp4", "any", 2), ("hopper", "fp8", "nemo", 3))
    assert looked_up(result, "hopper", "fp8", "megatron") == (LAUNCH.default, False)
    assert looked_up(result, "blackwell", "fp8", "megatron") == (LAUNCH.default, True)


def test_each_constant_is_looked_up_by_itself() -> None:
    cells = [
        ["a", "attention", "hopper", "bf16", "any", "launch_time", 9, "us"],
        ["b", "attention", "any", "any", "any", "memory_efficiency", 0.5, "-"],
    ]
    result = Calibration(table_from_rows("calibration", HEADER, cells))
    columns, extrapolated = result.constants(
        "attention", *(np.array([part], object) for part in ("hopper", "bf16", "x"))
    )
    assert set(columns) == set(declared_constants()["attention"])
    assert columns["launch_time"][0, 0] == 9 * UNITS["us"].factor
    assert columns["memory_efficiency"][0, 0] == 0.5
    assert columns["compute_efficiency"][0, 0] == declared_constants()["attention"]["compute_efficiency"].default
    assert not extrapolated[0]
    used = result.used("attention", "Hopper", "fp16", "x")
    assert (used["launch_time"], used["memory_efficiency"], used["compute_efficiency"]) == (0, 1, -1)


def test_half_precisions_share_their_rows_and_case_does_not_matter() -> None:
    result = calibration(("Hopper", "BF16", "Megatron", 2))
    assert looked_up(result, "HOPPER", "fp16", "megatron") == (2 * UNITS["us"].factor, False)
    result = calibration(("hopper", "fp16", "any", 3))
    assert looked_up(result, "hopper", "bf16", "") == (3 * UNITS["us"].factor, False)


@pytest.mark.parametrize(("unit", "value"), [("s", 4e-6), ("ms", 4e-3), ("us", 4), ("ns", 4000)])
def test_values_are_in_the_unit_of_their_row(unit: str, value: float) -> None:
    result = calibration(("any", "any", "any", value), unit=unit)
    assert looked_up(result, "x", "bf16", "y")[0] == pytest.approx(4e-6, rel=1e-15)


def test_blank_keys_mean_any_and_a_blank_unit_that_of_the_declaration() -> None:
    cells = [["a", "attention", None, None, None, "launch_time", 4e-6, None]]
    result = Calibration(table_from_rows("calibration", HEADER, cells))
    assert looked_up(result, "hopper", "bf16", "x") == (4e-6, True)


def test_one_row_and_many_rows_get_the_same_constants() -> None:
    result = calibration(*((*key, number + 1.0) for number, key in enumerate(FALL_BACKS)))
    random = np.random.default_rng(3)
    keys = [
        np.array(random.choice(words, 500), dtype=object)
        for words in (["hopper", "ampere"], ["bf16", "fp8", "fp16"], ["megatron", "nemo", ""])
    ]
    columns, extrapolated = result.constants("attention", *keys)
    again, far = result.constants_of("attention", calibration_keys(*(key.tolist() for key in keys)))
    for name, values in columns.items():
        assert values.shape == (500, 1)
        np.testing.assert_array_equal(values, again[name])
    for row in range(0, 500, 17):
        alone = looked_up(result, *(key[row] for key in keys))
        assert alone == (columns["launch_time"][row, 0], extrapolated[row]) and far[row] == extrapolated[row]


def test_no_rows_give_the_declared_defaults() -> None:
    result = Calibration(table_from_rows("calibration", HEADER, []))
    for family, constants in declared_constants().items():
        columns, extrapolated = result.constants(family, *(np.array(["x", "y"], dtype=object) for _ in range(3)))
        assert extrapolated.tolist() == [False, False]  # a family that nobody has measured is the same for all
        known = {name: documented_rows().get((family, name), {}).get((ANY, ANY, ANY)) for name in constants}
        expected = {name: [known[name][1] if known[name] else one.default] * 2 for name, one in constants.items()}
        assert stated(columns) == {name: pytest.approx(values, rel=1e-15) for name, values in expected.items()}


def test_no_rows_asked_for_give_no_constants() -> None:
    columns, extrapolated = calibration().constants("attention", *(np.zeros(0, dtype=object) for _ in range(3)))
    assert columns["launch_time"].shape == (0, 1)
    assert extrapolated.shape == (0,)


@pytest.mark.parametrize("family", [name for name in SOFTWARE_FAMILIES if name in declared_constants()])
def test_software_families_are_keyed_by_software_first(family: str) -> None:
    name, constant = next(iter(declared_constants()[family].items()))
    low, high = (bound / UNITS[constant.unit].factor for bound in (constant.low, constant.high))
    values = [low + share * (high - low) for share in (0.25, 0.5, 0.75)]
    keys = [("hopper", "any", "megatron"), ("any", "any", "megatron"), ("any", "any", "any")]
    cells: list[list[Any]] = [
        [f"row {n}", family, *key, name, value, constant.unit]
        for n, (key, value) in enumerate(zip(keys, values, strict=True))
    ]
    result = Calibration(table_from_rows("calibration", HEADER, cells))
    inside = [value * UNITS[constant.unit].factor for value in values]
    asked = [("hopper", "bf16", "megatron"), ("ampere", "fp8", "megatron"), ("hopper", "bf16", "nobody's")]
    columns, extrapolated = result.constants(
        family, *(np.array(part, dtype=object) for part in zip(*asked, strict=True))
    )
    assert stated(columns)[name] == pytest.approx(inside, rel=1e-15)
    assert extrapolated.tolist() == [False, False, True]


def test_declared_constants_can_be_used() -> None:
    for family, constants in declared_constants().items():
        assert constants, family
        for constant in constants.values():
            assert constant.low <= constant.default <= constant.high, constant
            assert constant.meaning and constant.unit in UNITS, constant


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            ["a", "gem", "any", "any", "any", "launch_time", 4, "us"],
            'row 1, family: unknown family "gem"; did you mean gemm?',
        ),
        (
            ["a", "gemm", "any", "any", "any", "launch_time", 4, "TB"],
            'row 1, unit: unit of gemm launch_time cannot be "TB"; known: s, ms, us, µs, ns, ps, min, h, day, year',
        ),
        (
            ["a", "gemm", "any", "any", "any", "launch_time", -4, "us"],
            "row 1, value: gemm launch_time must be a number from 0 to 50 (us), got -4",
        ),
    ],
)
def test_bad_row_is_named_in_its_exact_line(row: list[Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Calibration(table_from_rows("calibration", HEADER, [row]))
    assert str(caught.value) == message


def test_unknown_constant_is_named_with_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        calibration(("any", "any", "any", 4), constant="lunch_time")
    assert str(caught.value).startswith(
        'row 1, constant: unknown constant "lunch_time" of family "attention"; did you mean launch_time'
    )


def test_two_rows_for_the_same_key_are_refused() -> None:
    with pytest.raises(InputError) as caught:
        calibration(("Hopper", "any", "any", 1), ("hopper", "", "any", 2))
    assert str(caught.value) == (
        'row 2, constant: duplicate constant "attention/hopper/any/any/launch_time"; the first is at row 1, constant'
    )


# --- rules of what may be fitted -----------------------------------------------------------------------------------


def test_no_paper_is_in_a_fit_set_of_any_family() -> None:
    table, measured = load_catalog().tables["calibration"], shipped_measured()
    for row in range(len(table)):
        source = str(table.text("source")[row])
        for kind, begins in SOURCES.items():
            if not source.startswith(begins):
                continue
            rows = measured.training if kind == "training" else measured.inference
            papers = {
                name for name, group in zip(rows.text["row_id"], rows.text["group"], strict=True) if group == "papers"
            }
            named = rows_of_fit_set(str(table.text("fit_set")[row]), rows.text["row_id"])
            assert not papers & set(named), table.place(row, "fit_set")
            assert bool(named) == (table.number("num_rows")[row] > 0.0), table.place(row, "num_rows")


def test_every_fitted_constant_has_an_error_rows_a_date_and_a_source() -> None:
    table = load_catalog().tables["calibration"]
    fitted = 0
    for row in range(len(table)):
        assert str(table.text("source")[row]), table.place(row, "source")
        if str(table.text("kind")[row]) != "measured":
            continue
        fitted += 1
        assert table.number("num_rows")[row] >= 1.0, table.place(row, "num_rows")
        assert str(table.text("fit_set")[row]), table.place(row, "fit_set")
        # All of them may be in one fold. Launches show in first tokens alone, which fewer rows have; an all-reduce of
        # an engine shows in no row alone; a mean or median of other constants has no rows of its own.
        shared = str(table.text("notes")[row]).startswith(("median of the others", "mean of"))
        hidden = str(table.text("family")[row]) == "engine_all_reduce"
        fewest = 5 if str(table.text("constant")[row]) == "kernel_overhead_time" else 2
        few = shared or hidden or table.number("num_rows")[row] < fewest * FEWEST_ROWS
        assert table.number("error")[row] >= 0.0 or few, table.place(row, "error")
        assert str(table.text("date")[row]), table.place(row, "date")
    assert fitted > 200


OTHER_MACHINES = ("cdna", "tpu", "gaudi", "trainium")
"""Lines of generations whose constants are fitted apart from those of NVIDIA."""


def test_software_has_few_constants_of_each_family_beside_documented_settings() -> None:
    """Those of a software on any accelerator of NVIDIA together, and on each line of other machines.

    What several are pooled towards stays for other software, and counts for none.
    """
    table = load_catalog().tables["calibration"]
    seen: dict[tuple[str, str, str], set[str]] = {}
    parts = "family", "generation", "software", "constant"
    for row in range(len(table)):
        family, generation, software, name = (str(table.text(part, ANY)[row]) for part in parts)
        fitted = table.number("num_rows")[row] > 0.0
        if family in SOFTWARE_FAMILIES and fitted and software != ANY:
            line = generation_line(generation)
            seen.setdefault((family, line if line in OTHER_MACHINES else ANY, software), set()).add(name)
    assert any(line != ANY for _, line, _ in seen)
    assert max(len(names) for names in seen.values()) <= MOST_OF_SOFTWARE


def test_a_family_without_rows_of_a_machine_has_those_of_its_parent() -> None:
    """Collectives of a machine by its all-reduce; a backward pass by its forward pass times a ratio."""
    cells = [
        ["a", "all_reduce", "cdna", "any", "any", "launch_time", 5e-5, "s"],
        ["b", "all_gather", "any", "any", "any", "launch_time", 6e-6, "s"],
        ["c", "all_gather", "hopper", "any", "any", "launch_time", 7e-6, "s"],
        ["d", "all_reduce", "hopper", "any", "any", "launch_time", 9e-6, "s"],
        ["e", "all_reduce", "hopper", "any", "any", "bulk_factor", 3.5, "-"],
        ["f", "attention", "hopper", "bf16", "any", "compute_efficiency", 0.8, "-"],
        ["g", "attention_backward", "hopper", "bf16", "flashattention-2", "compute_efficiency", 0.3, "-"],
    ]
    result = Calibration(table_from_rows("calibration", HEADER, cells))

    def value(family: str, name: str, *key: str) -> float:
        return float(result.values_of(family, [name], [(key[0], key[1], key[2])])[0, 0])

    assert value("all_gather", "launch_time", "cdna3", "bf16", "x") == 5e-5
    assert value("all_gather", "launch_time", "ada", "bf16", "x") == 6e-6
    assert value("all_gather", "launch_time", "hopper", "bf16", "x") == 7e-6
    default = declared_constants()["all_gather"]["bulk_factor"].default
    assert value("all_gather", "bulk_factor", "hopper", "bf16", "x") == default, "a measured machine stays apart"
    assert value("attention_backward", "compute_efficiency", "hopper", "bf16", "x") == pytest.approx(0.8 * 0.852)
    assert value("attention_backward", "compute_efficiency", "hopper", "bf16", "nanotron") == 0.3


def test_documented_constants_hold_where_the_sheet_has_no_row() -> None:
    key = ("any", "any", "vllm")
    empty = Calibration(table_from_rows("calibration", HEADER, []))
    assert empty.values_of("serving_memory", ["memory_fraction"], [key])[0, 0] == 0.9
    own = [["a", "serving_memory", "any", "any", "vllm", "memory_fraction", 0.8, "-"]]
    result = Calibration(table_from_rows("calibration", HEADER, own))
    assert result.values_of("serving_memory", ["memory_fraction"], [key])[0, 0] == 0.8


def test_sheets_of_before_may_have_bands_that_are_gone() -> None:
    cells = [["a", "training_band", "any", "any", "any", "step_low", 0.8, "-"],
             ["b", "power", "any", "any", "any", "power_low", 0.8, "-"]]  # fmt: skip
    assert (
        Calibration(table_from_rows("calibration", HEADER, cells)).values_of("band", ["step"], [("", "", "")])[0, 0] > 0
    )


def test_the_sheet_says_nothing_twice() -> None:
    """No row but the marks of a machine equals what the look-up gives without it, bit for bit; at most 500 rows, with
    the documented constants that were chosen on published runs.
    """
    table = load_catalog().tables["calibration"]
    chosen = [row for row in resources.rows("catalog/documented_constants.csv") if row["kind"] == "chosen"]
    assert chosen and len(table) + len(chosen) <= 500
    known = documented_rows()
    for row in range(len(table)):
        key = tuple(str(table.text(name, ANY)[row]) for name in ("generation", "precision", "software"))
        documented = known.get((str(table.text("family")[row]), str(table.text("constant")[row])), {}).get(key)
        assert documented is None or documented[1] != table.number("value")[row], table.place(row, "value")
