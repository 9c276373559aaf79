"""Temperature of a package: a stack of layers in closed form, and a limit that slows the clock."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from single_numbers import printed

from xlperf.catalog.catalog import load_catalog
from xlperf.equations.hardware.power import heat_resistance, junction_temperature
from xlperf.explore.chips import chip_answers
from xlperf.explore.forms import form_of

SILICON, OXIDE, BUMPS = 0.120, 0.0014, 0.0016  # conductivity [W/mm/K]


def layer_resistance(thickness: float, conductivity: float) -> float:
    """Of a layer in mm and W/mm/K, for a unit of area. [mm2 K/W]"""
    return thickness / conductivity


def memory_on_logic(base_die: bool) -> float:
    """Twelve memory dies of 35 um with 5 um of metal layers and bond each, a base die, micro-bumps. [mm2 K/W]"""
    die = layer_resistance(0.035, SILICON) + layer_resistance(0.005, OXIDE)
    base = layer_resistance(0.050, SILICON) + layer_resistance(0.008, OXIDE)
    return 12.0 * die + base_die * base + layer_resistance(0.025, BUMPS)


def test_memory_on_a_gpu_is_as_hot_as_imec_says() -> None:
    """IEDM 2025: a GPU of 414 W beside its memory has 69.1 degrees, 140.7 below it (40 W more), and 70.8 without base
    dies, with a cooler on both sides and half the clock. Assumed: water of 25 degrees, 826 mm2 of which 440 lie under
    four stacks, 1 mm of substrate at 2.5 W/(m K), half of the power at half the clock. The cooler follows from 69.1.
    """
    area, water, share = 826.0, 25.0, 440.0 / 826.0
    cooler = (printed("T01") - water) / (414.0 / area)
    beside = junction_temperature(414.0, area, heat_resistance(cooler, 0.0, 1.0, np.inf), water)
    assert float(beside) == pytest.approx(printed("T01"), rel=1e-9)
    below = heat_resistance(cooler, memory_on_logic(base_die=True), share, np.inf)
    assert float(junction_temperature(454.0, area, below, water)) == pytest.approx(printed("T02"), rel=0.15)
    back = layer_resistance(1.0, 0.0025) + cooler
    both = heat_resistance(cooler, memory_on_logic(base_die=False), share, back)
    assert float(junction_temperature(247.0, area, both, water)) == pytest.approx(printed("T03"), rel=0.15)
    alone = heat_resistance(cooler, memory_on_logic(base_die=False), share, np.inf)
    assert float(junction_temperature(247.0, area, alone, water)) < 100.0  # the press release, of half the clock alone


def chips(*forms: dict[str, Any]) -> list[dict[str, Any]]:
    base = {"technology": "3 nm", "core": "Blackwell SM", "memory": "HBM4", "link": "NVLink 5", "package": "CoWoS-L",
            "model": "Meta-Llama-3.1-70B", "prompt_length": "2000", "output_length": "500", "power_budget": "1400",
            "memory_stacks": "auto"}  # fmt: skip
    catalog = load_catalog()
    return [dict(chip_answers([form_of("chip", base | form)], catalog)[0]) for form in forms]


def test_a_limit_slows_the_clock_until_it_is_kept() -> None:
    free, *limited = chips({}, *({"temperature_limit": str(limit)} for limit in (100, 65, 55, 50)))
    unit = ("thermal_design_power", "peak_flop_rate_fp8", "unit_cost", "temperature")
    assert [limited[0][name] for name in unit] == [free[name] for name in unit]  # a limit that is not reached
    for limit, answer in zip((65, 55, 50), limited[1:], strict=True):
        assert answer["temperature"] <= limit + 1e-6
    assert {row["memory_stacks"] for row in limited} == {free["memory_stacks"]}
    for name in ("temperature", "thermal_design_power", "peak_flop_rate_fp8"):
        values = [answer[name] for answer in limited]
        assert values == sorted(values, reverse=True), name
    assert all("clock by the temperature limit" in row["limited_by"] for row in limited[2:])
    assert "temperature" not in f"{free['limited_by']}{limited[1]['limited_by']}"
    assert limited[-1]["thermal_design_power"] < free["thermal_design_power"]


def test_stacked_memory_colder_water_and_a_second_way_move_it_as_they_should() -> None:
    plain, stacked, cold, both = chips(
        {}, {"stack_resistance": "68", "stack_share": "0.5"}, {"coolant_temperature": "20"}, {"back_resistance": "300"}
    )
    assert stacked["temperature"] > plain["temperature"] > both["temperature"]
    assert cold["temperature"] == pytest.approx(plain["temperature"] - 10.0)
    assert {row["thermal_design_power"] for row in (plain, stacked, cold, both)} == {plain["thermal_design_power"]}


def test_limits_that_cannot_be_kept_say_why() -> None:
    cold, weak = chips({"temperature_limit": "30"}, {"temperature_limit": "31"})
    assert "a temperature limit of 30 °C is not above the coolant of 30 °C" in cold["answer"]
    assert "W at which the dies have 31 °C" in weak["answer"]
