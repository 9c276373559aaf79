"""Bands hold the wanted share of rows of models that were left out of the fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_up_runs import STACK, constant, errors_of, runs, shipped

from xlperf.calibrate.bands import POOLING, bands_left_out, checked_widths, fit_bands, half_widths, with_checks
from xlperf.calibrate.fitter import calibration_table
from xlperf.equations.serving.results import band_of_mode, band_of_time, full_cache
from xlperf.measurements.comparison import FIRST_TOKEN, STEP_TIME


def test_a_band_holds_four_fifths_of_new_rows() -> None:
    random = np.random.default_rng(7)
    bands = {one.constant: one.value for one in fit_bands(errors_of(0.2 * random.standard_normal(400)), [], "")}
    new = np.exp(-0.2 * random.standard_normal(100000))
    inside = np.mean((bands["step_low"] <= new) & (new <= bands["step_high"]))
    assert inside == pytest.approx(0.8, abs=0.05)


def test_bands_of_few_rows_are_wide_enough() -> None:
    """Over many samples of twelve rows a band holds about four fifths of new rows."""
    random = np.random.default_rng(11)
    shares = []
    for _ in range(200):
        bands = {one.constant: one.value for one in fit_bands(errors_of(0.1 * random.standard_normal(12)), [], "")}
        new = np.exp(-0.1 * random.standard_normal(2000))
        shares.append(np.mean((bands["step_low"] <= new) & (new <= bands["step_high"])))
    assert 0.74 < np.mean(shares) < 0.86


def test_a_band_is_judged_without_the_rows_of_its_model() -> None:
    logs = 0.05 * np.random.default_rng(3).standard_normal(40)
    errors = errors_of(logs)
    own = errors.model == errors.model[0]
    judged = bands_left_out(errors_of(np.where(own, 5.0, logs)))
    assert (judged.covered(judged.by_models)[own] == 0.0).all()
    assert (judged.low[own] == bands_left_out(errors).low[own]).all()


def test_a_configuration_counts_once_however_many_rows_it_has() -> None:
    """Nine configurations that are 10 % off and a tenth with 91 rows three times off: the band is that of the nine."""
    logs = np.array([0.1] * 9 + [1.1] * 91)
    names = np.array([f"model {min(row, 9)}/gpu" for row in range(100)], dtype=object)
    widths = half_widths(replace(errors_of(logs), family=names))
    assert widths[(STEP_TIME,)] == pytest.approx(0.1)


def test_a_software_with_few_configurations_is_pooled_towards_all_software() -> None:
    logs = np.concatenate([np.full(40, 0.1), np.full(4, 0.5)])
    errors = replace(errors_of(logs), software=np.array([STACK] * 40 + ["other"] * 4, dtype=object))
    widths = half_widths(errors)
    every, pooled = widths[STEP_TIME, "step"], widths[STEP_TIME, "step", "other"]
    assert every == pytest.approx(0.1)
    assert pooled == pytest.approx(0.5 ** (2 / (2 + POOLING)) * every ** (POOLING / (2 + POOLING)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "narrower", "quantity"), [(4, False, FIRST_TOKEN), (8, True, STEP_TIME), (8, True, FIRST_TOKEN)]
)
def test_bands_cover_the_wanted_share_of_models_left_out(rows: int, narrower: bool, quantity: str) -> None:
    """Stacks of two models have too narrow widths by themselves, stacks of four too wide ones: a check mends both."""
    logs = np.random.default_rng(7).normal(0.0, 0.1, 160)
    software = np.array([f"stack {row // rows}" for row in range(160)], dtype=object)
    errors = replace(errors_of(logs), software=software, quantity=np.full(160, quantity, dtype=object))
    pooled, checked = half_widths(errors), checked_widths(errors)
    ratio = {group: checked[group] / pooled[group] for group in pooled if len(group) > 1}
    assert min(ratio.values()) == pytest.approx(max(ratio.values())), "one factor for the whole band"
    if narrower and quantity == STEP_TIME:  # shares of times to the first token are not raised for few configurations
        assert ratio[quantity, "step"] < 0.95
    else:
        assert ratio[quantity, "step"] > 1.0
    judged = bands_left_out(errors)
    assert judged.covered(judged.by_models).mean() == pytest.approx(0.8, abs=0.025)


def test_bands_differ_by_mode_and_by_what_decides_the_batch() -> None:
    constants = {
        "serving_band": {"step_low": 0.9, "step_high": 1.1, "loaded_low": 0.8, "loaded_high": 1.2},
        "capacity_band": {"full_low": 0.7, "full_high": 1.3, "pooled_low": 0.6, "pooled_high": 1.4},
    }
    arrays = {
        family: {f"log_{name}": np.full((2, 1), np.log(value)) for name, value in values.items()}
        for family, values in constants.items()
    }
    full = full_cache(np.array([64.0, 10.0]), np.array([65.0, 65.0]))
    assert full.tolist() == [True, False]
    near, far = np.ones(2), np.array([1.0, 2.0])
    assert np.exp(band_of_time("continuous", full, arrays, near)) == pytest.approx(np.array([[0.7, 0.8], [1.3, 1.2]]))
    assert np.exp(band_of_time("static", full, arrays, near)) == pytest.approx(np.array([[0.9, 0.9], [1.1, 1.1]]))
    assert np.exp(band_of_time("disaggregated", full, arrays, near)) == pytest.approx(
        np.array([[0.6, 0.6], [1.4, 1.4]])
    )
    assert np.exp(band_of_time("continuous", full, arrays, far)[1]).tolist() == pytest.approx([1.3, 1.2**2])
    assert band_of_mode("disaggregated", True) == "pooled"


def test_a_fit_ends_with_errors_of_rows_held_out_and_with_bands() -> None:
    known = shipped().with_tables([calibration_table([constant("kernel_slowdown", 1.3)])])
    constants = [constant("kernel_slowdown", 1.3), replace(constant("kernel_slowdown", 1.3), family="training_band",
                                                           constant="step_low", value=0.5)]  # fmt: skip
    result, (errors, *_) = with_checks(calibration_table(constants), [runs(known, number=60)], shipped(), "2026-01-01")
    assert result["constant"][0] == "kernel_slowdown" and "left out" in result["notes"][0]
    assert result["error"][0] < 0.01 and len(errors) == 60
    bands = result.take(np.flatnonzero(result["family"] == "training_band"))
    assert set(bands["constant"]) == {"step_low", "step_high"}
    assert set(bands["date"]) == {"2026-01-01"}
    counts = dict(zip(bands["generation"], bands["num_rows"], strict=True))
    assert counts == {"any": 60, "hopper": 30, "blackwell": 30}
    assert 0.5 not in bands["value"][bands["constant"] == "step_low"]
    again, _ = with_checks(result, [runs(known, number=60)], shipped(), "2026-01-01")
    assert again["notes"].tolist() == result["notes"].tolist(), "checked twice, said once"
