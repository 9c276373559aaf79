"""Kernel times: limits with known answers, tiles and waves, monotone in the machine, the same in any company."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from xlperf.base.arrays import Array
from xlperf.catalog.calibration import declared_constants
from xlperf.equations.hardware import roofline
from xlperf.equations.hardware.attention import (
    attention_time,
    decode_attention_time,
    unshared_decode_attention_time,
    visible_pairs,
)
from xlperf.equations.hardware.gemm import gemm_time, product_traffic, tiled_product_time
from xlperf.equations.hardware.roofline import Device, vector_time

PEAK, VECTOR, BANDWIDTH, UNITS = 1.0e15, 6.0e13, 3.0e12, 132.0
Constants = dict[str, Array]


def device(rows: int = 1, **changed: float) -> Device:
    values = {
        "peak_flop_rate": PEAK,
        "vector_flop_rate": VECTOR,
        "memory_bandwidth": BANDWIDTH,
        "memory_capacity": 8.0e10,
        "l2_bandwidth": 1.5e13,
        "num_multiprocessors": UNITS,
        "thermal_design_power": 700.0,
    } | changed
    return Device(**{name: np.full((rows, 1), value) for name, value in values.items()})


def constants(family: str, rows: int = 1, **changed: float) -> Constants:
    values = {name: one.default for name, one in declared_constants()[family].items()} | changed
    return {name: np.full((rows, 1), value) for name, value in values.items()}


IDEAL = {
    "compute_efficiency": 1.0,
    "wave_time": 0.0,
    "cache_share": 0.0,
    "energy_per_flop": 0.0,
    "memory_efficiency": 1.0,
    "serial_share": 0.0,
    "launch_time": 0.0,
    "input_traffic": 0.0,
}
IDEAL_FLASH = {
    "compute_efficiency": 1.0,
    "softmax_flop": 0.0,
    "energy_per_flop": 0.0,
    "imbalance": 0.0,
    "tile_time": 0.0,
    "memory_efficiency": 1.0,
    "serial_share": 1.0,
    "launch_time": 0.0,
}


def test_full_waves_of_full_tiles_run_at_the_peak() -> None:
    n, k = 128.0 * UNITS, 8192.0
    time = gemm_time(device(), constants("gemm", **IDEAL), 2560.0, n, k, 1.0, 2.0, 2.0)
    assert time.item() == pytest.approx(2.0 * 2560.0 * n * k / PEAK, rel=1e-12)


def test_vector_times_matrix_runs_at_the_memory_bandwidth() -> None:
    time = gemm_time(device(), constants("gemm", **IDEAL), 1.0, 16384.0, 16384.0, 1.0, 2.0, 2.0)
    traffic = 2.0 * (16384.0 * (1.0 + 16384.0) + 16384.0)
    assert time.item() == pytest.approx(traffic / BANDWIDTH, rel=1e-12)


def test_one_tile_more_than_a_wave_costs_another_wave() -> None:
    one_tile = constants("gemm", **IDEAL)
    tiles = np.array([[UNITS, UNITS + 1.0]])
    times = tiled_product_time(
        128.0,
        128.0 * tiles,
        8192.0,
        1.0,
        2.0,
        128.0,
        128.0,
        1.0,
        peak_flop_rate=PEAK,
        cache_bandwidth=np.inf,
        num_multiprocessors=UNITS,
    )
    assert times[0, 1] == 2.0 * times[0, 0]
    chosen = gemm_time(device(), one_tile, 128.0, 128.0 * tiles, 8192.0, 1.0, 2.0, 2.0)
    assert chosen[0, 0] < chosen[0, 1] < 2.0 * chosen[0, 0]  # smaller or split tiles soften the step


def test_without_multiprocessors_there_are_no_waves() -> None:
    tpu = device(num_multiprocessors=np.nan)
    # 16 x 129 full tiles of 128 x 128: the last wave on 132 units would not be full.
    time = gemm_time(tpu, constants("gemm", **IDEAL), 2048.0, 128.0 * 129.0, 8192.0, 1.0, 2.0, 2.0)
    assert time.item() == pytest.approx(2.0 * 2048.0 * 128.0 * 129.0 * 8192.0 / PEAK, rel=1e-12)
    flash = attention_time(tpu, constants("attention", **IDEAL_FLASH), 1, 3, 3, 1024, 1024, 128, 0, 2)
    flop, traffic = 4.0 * 3 * 1024.0**2 * 128, 4.0 * 3 * 1024 * 128 * 2
    assert flash.item() == pytest.approx(flop / PEAK + traffic / BANDWIDTH, rel=1e-12)


def test_conversion_of_the_input_and_launch_stand_before_the_product() -> None:
    plain = constants("gemm", **IDEAL)
    costly = constants("gemm", **(IDEAL | {"input_traffic": 3.0, "launch_time": 5e-6}))
    shape = (4096.0, 4096.0, 4096.0, 2.0, 1.0, 2.0)
    extra = gemm_time(device(), costly, *shape) - gemm_time(device(), plain, *shape)
    assert extra.item() == pytest.approx(5e-6 + 3.0 * 2.0 * 4096.0**2 / BANDWIDTH, rel=1e-9)


def test_power_limit_slows_long_products_only() -> None:
    energy = 1.05e-12
    warm = constants("gemm", **(IDEAL | {"energy_per_flop": energy, "boost_time": 1e-3}))
    cold = constants("gemm", **IDEAL)

    def slower(size: float, **changed: float) -> float:
        shape, machine = (size, size, size, 1.0, 2.0, 2.0), device(**changed)
        return float((gemm_time(machine, warm, *shape) / gemm_time(machine, cold, *shape)).item()) - 1.0

    # 2 x 525 W at the boost clock: the clock falls by the cube root of 2, all of it after many boost times
    share = 2.0 ** (1.0 / 3.0) - 1.0
    assert 0.0 < slower(2048.0) < 0.05 * share
    assert slower(65536.0) == pytest.approx(share, rel=0.02)
    assert slower(8192.0, thermal_design_power=np.inf) == 0.0
    assert slower(65536.0, energy_ratio=0.5) == 0.0
    assert slower(65536.0, energy_ratio=4.0) == pytest.approx(8.0 * 4.0 / 9.0 - 1.0, rel=0.02)  # at the least voltage
    # leakage takes from the limit what arithmetic could draw
    assert slower(65536.0, static_power=200.0) > slower(65536.0) > slower(65536.0, static_power=10.0)


def test_a_product_that_leaves_units_idle_is_not_held_back_by_power() -> None:
    limit = {"energy_per_flop": 1.05e-12, "boost_time": 1e-3}
    warm, cold = constants("gemm", **(IDEAL | limit)), constants("gemm", **IDEAL)
    full = (8192.0, 8448.0, 65536.0, 1.0, 2.0, 2.0)  # 16 whole waves of 132 tiles
    partly = (128.0, 256.0, 8388608.0, 1.0, 2.0, 2.0)  # a few tiles on 132 multiprocessors
    assert gemm_time(device(), warm, *full).item() > 1.1 * gemm_time(device(), cold, *full).item()
    assert gemm_time(device(), cold, *partly).item() > 3e-3
    assert gemm_time(device(), warm, *partly).item() == gemm_time(device(), cold, *partly).item()


def test_savings_are_those_of_half_the_time_of_one_part() -> None:
    compute, memory = np.array([8.0, 1.0, 3.0, 4.0]), np.array([2.0, 6.0, 2.0, 4.0])
    for share in (0.0, 0.25, 1.0):
        units, transfers = roofline.doubling_savings(compute, memory, share)
        whole = roofline.blended_time(compute, memory, share)
        assert units.tolist() == (whole - roofline.blended_time(compute / 2, memory, share)).tolist()
        assert transfers.tolist() == (whole - roofline.blended_time(compute, memory / 2, share)).tolist()
    assert np.argmax(roofline.doubling_savings(8.0, 2.0)) == 0 and np.argmax(roofline.doubling_savings(1.0, 6.0)) == 1


@pytest.mark.parametrize(("causal", "pairs"), [(0.0, 12.0), (1.0, 9.0)])
def test_visible_pairs_of_three_queries_and_four_keys(causal: float, pairs: float) -> None:
    # With a mask the queries see 2, 3 and 4 keys.
    assert visible_pairs(3.0, 4.0, causal) == pairs


def test_causal_attention_of_long_sequences_costs_half() -> None:
    ideal = constants("attention", **IDEAL_FLASH)
    full, half = (
        attention_time(device(), ideal, 8, 32, 32, 65536, 65536, 128, causal, 2).item() for causal in (0.0, 1.0)
    )
    assert half / full == pytest.approx(0.5, rel=0.02)


def test_flash_attention_at_the_peak_adds_load_products_and_store() -> None:
    ideal = constants("attention", **IDEAL_FLASH)
    heads = UNITS * 4.0
    time = attention_time(device(), ideal, 1, heads, heads, 4096, 4096, 128, 0, 2).item()
    flop, traffic = 4.0 * heads * 4096.0**2 * 128, 4.0 * heads * 4096 * 128 * 2
    assert time == pytest.approx(flop / PEAK + traffic / BANDWIDTH, rel=1e-12)


def test_no_multiprocessor_ends_before_the_tile_with_the_most_keys() -> None:
    ideal = constants("attention", **IDEAL_FLASH)
    time = attention_time(device(), ideal, 1, 1, 1, 1024, 1024, 128, 1, 2).item()
    assert time > 4.0 * 128 * 1024 * 128 / (PEAK / UNITS)


def test_backward_attention_has_five_products_where_forward_has_two() -> None:
    shape = (8, 33, 33, 8192, 8192, 128, 1, 2)
    forward = attention_time(device(memory_bandwidth=np.inf), constants("attention", **IDEAL_FLASH), *shape)
    backward = attention_time(
        device(memory_bandwidth=np.inf), constants("attention_backward", **IDEAL_FLASH), *shape, direction="backward"
    )
    assert backward.item() / forward.item() == pytest.approx(2.5, rel=1e-12)


def test_decoding_reads_keys_and_values_of_the_groups_once() -> None:
    ideal = constants("attention_decode", memory_efficiency=1.0, launch_time=0.0)
    time = decode_attention_time(device(), ideal, 64, 64, 8, 4096, 128, 2)
    assert time.item() == pytest.approx(2.0 * 64 * 8 * 4096 * 128 * 2 / BANDWIDTH, rel=1e-12)


def test_heads_that_read_keys_apart_lose_what_sharing_saves() -> None:
    """Eight heads of queries to a head of keys: the time of a cache eight times as large, on the vector units."""
    kernel = constants("attention_decode", vector_efficiency=0.1, launch_time=0.0)
    shared, many = (
        unshared_decode_attention_time(device(), kernel, 64, heads, 4096, 128, 2).item() for heads in (8, 64)
    )
    assert many == pytest.approx(8.0 * shared)
    assert many == pytest.approx(4.0 * 64 * 64 * 4096 * 128 / (0.1 * VECTOR))
    # A cache level that is slow enough sets the pace, and reads are no fewer.
    slow = unshared_decode_attention_time(device(l2_bandwidth=1e12), kernel, 64, 64, 4096, 128, 2).item()
    assert slow == pytest.approx(2.0 * 64 * 64 * 4096 * 128 * 2 / 1e12)


def test_vector_operation_is_a_roofline_of_traffic_and_work() -> None:
    ideal = constants("vector", memory_efficiency=1.0, compute_efficiency=1.0, launch_time=1e-6)
    times = vector_time(device(), ideal, np.array([[3e9, 3e6]]), np.array([[6e7, 6e10]]))
    np.testing.assert_allclose(times, [[1e-6 + 1e-3, 1e-6 + 1e-3]], rtol=1e-12)


CALLS: dict[str, Callable[[Device, int, np.random.Generator], Array]] = {
    "gemm": lambda device, rows, random: gemm_time(
        device, constants("gemm", rows), *_sizes(random, rows, 4, 9000), 2.0, 2.0
    ),
    "attention": lambda device, rows, random: attention_time(
        device, constants("attention", rows), *_sizes(random, rows, 3, 64), *_sizes(random, rows, 3, 5000), 1.0, 2.0
    ),
    "attention_backward": lambda device, rows, random: attention_time(
        device,
        constants("attention_backward", rows),
        *_sizes(random, rows, 3, 64),
        *_sizes(random, rows, 3, 5000),
        1.0,
        2.0,
        direction="backward",
    ),
    "attention_decode": lambda device, rows, random: decode_attention_time(
        device, constants("attention_decode", rows), *_sizes(random, rows, 5, 900), 2.0
    ),
    "vector": lambda device, rows, random: vector_time(
        device, constants("vector", rows), *_sizes(random, rows, 2, 10**9)
    ),
}


def _sizes(random: np.random.Generator, rows: int, count: int, high: int) -> list[Array]:
    return [random.integers(1, high, (rows, 7)).astype(float) for _ in range(count)]


@pytest.mark.parametrize("family", sorted(CALLS))
@pytest.mark.parametrize(
    "column", ["peak_flop_rate", "vector_flop_rate", "memory_bandwidth", "l2_bandwidth", "thermal_design_power"]
)
def test_a_better_machine_is_never_slower(family: str, column: str) -> None:
    before, better = (
        CALLS[family](dataclasses.replace(device(50), **{column: getattr(device(50), column) * gain}), 50, _random())
        for gain in (1.0, 1.7)
    )
    assert (better <= before * (1.0 + 1e-12)).all()
    assert np.isfinite(better).all()
    assert (better > 0).all()


@pytest.mark.parametrize("family", sorted(CALLS))
def test_one_row_is_the_same_among_a_thousand(family: str) -> None:
    random = _random()
    peaks = 1.0e14 * random.uniform(1.0, 20.0, (1000, 1))
    many = CALLS[family](dataclasses.replace(device(1000), peak_flop_rate=peaks), 1000, _random())

    def only(row: int) -> Array:
        chosen = dataclasses.replace(device(1), peak_flop_rate=peaks[row : row + 1])
        return CALLS[family](chosen, 1, _Row(row))

    for row in (0, 17, 511, 999):
        assert only(row).tobytes() == many[row : row + 1].tobytes()


class _Row:
    """Draws what the thousand rows drew, and gives one of them."""

    def __init__(self, row: int) -> None:
        self.row, self.random = row, _random()

    def integers(self, low: int, high: int, shape: tuple[int, int]) -> np.ndarray:
        return self.random.integers(low, high, (1000, shape[1]))[self.row : self.row + 1]


def _random() -> np.random.Generator:
    return np.random.default_rng(11)


@pytest.mark.parametrize("family", sorted(CALLS))
def test_an_unknown_machine_has_unknown_times(family: str) -> None:
    column = "memory_bandwidth"
    unknown = CALLS[family](device(3, **{column: np.nan}), 3, _random())
    assert np.isnan(unknown).all()


def test_traffic_adds_to_a_product_when_nothing_overlaps() -> None:
    serial = constants("gemm", **(IDEAL | {"serial_share": 1.0, "launch_time": 3e-6}))
    shape = (512.0, 4096.0, 4096.0, 1.0, 2.0, 2.0)
    alone = gemm_time(device(memory_bandwidth=np.inf), serial, *shape).item()
    traffic = product_traffic(*shape).item() / BANDWIDTH
    assert gemm_time(device(), serial, *shape).item() == pytest.approx(alone + traffic, rel=1e-12)
