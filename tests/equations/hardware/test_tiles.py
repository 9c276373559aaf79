"""Laws of tiles and of the clock: traffic between its bound and the compulsory one, monotone in what a chip has."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from equations.hardware.test_kernels import constants, device
from shipped import shipped_kernels

from xlperf.equations.hardware.attention import _key_passes, _query_tile, attention_time, kv_cache_traffic, softmax_time
from xlperf.equations.hardware.gemm import _tile_memory, gemm_time, product_memory_traffic, product_traffic
from xlperf.equations.hardware.power import capped_clock_share
from xlperf.equations.hardware.roofline import clock_limited_time, resident_bandwidth, resident_share

UNITS, MIB = 132.0, 2.0**20
TILE = (256.0, 128.0)


def product_traffic_bound(
    m: np.ndarray, n: np.ndarray, k: np.ndarray, element_size: float, memory_words: float
) -> np.ndarray:
    """Least traffic of a fast memory of S elements: 2mnk / sqrt(S) - 2S, and each operand at least once."""
    reused = 2.0 * m * n * k / np.sqrt(memory_words) - 2.0 * memory_words
    return np.asarray(element_size * np.maximum(reused, m * k + k * n + m * n))


def _shapes(count: int = 20_000) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(0)
    return tuple(np.ceil(2.0 ** random.uniform(0.0, 16.0, count)) for _ in range(3))


@pytest.mark.parametrize("size", [1.0, 2.0])
def test_traffic_is_never_below_the_bound_of_hong_and_kung(size: float) -> None:
    """Form of Smith, Lowery, Langou and van de Geijn 2019: sums of all tiles and the cache are the fast memory."""
    m, n, k = _shapes()
    sums = UNITS * TILE[0] * TILE[1]
    for capacity in 2.0 ** np.arange(14, 42, 3):
        traffic = product_memory_traffic(m, n, k, 1.0, size, size, *TILE, UNITS, capacity)
        bound = product_traffic_bound(m, n, k, size, sums + capacity / size)
        assert (traffic >= bound * (1.0 - 1e-12)).all()
        assert (traffic >= product_traffic(m, n, k, 1.0, size, size) * (1.0 - 1e-12)).all()


def test_traffic_falls_with_the_cache_and_is_compulsory_at_the_end() -> None:
    m, n, k = _shapes()
    before = np.full(len(m), np.inf)
    for capacity in [0.0, *2.0 ** np.arange(10, 50)]:
        traffic = product_memory_traffic(m, n, k, 1.0, 2.0, 2.0, *TILE, UNITS, capacity)
        assert (traffic <= before * (1.0 + 1e-9)).all()
        before = traffic
    np.testing.assert_allclose(before, product_traffic(m, n, k, 1.0, 2.0, 2.0), rtol=1e-12)
    unknown = product_memory_traffic(m, n, k, 1.0, 2.0, 2.0, *TILE, UNITS, np.nan)
    np.testing.assert_allclose(unknown, product_traffic(m, n, k, 1.0, 2.0, 2.0), rtol=1e-12)


def test_tiles_in_order_read_no_less_and_one_input_again_that_no_cache_holds() -> None:
    """Rows first: whatever the cache, no less than grouped tiles; both inputs once as soon as it holds the first."""
    m, n, k = _shapes()
    tile, before = (32.0, 128.0), np.full(len(m), np.inf)
    for capacity in [0.0, *2.0 ** np.arange(10, 50)]:
        size = m, n, k, 1.0, 1.0, 2.0, *tile, UNITS, capacity
        grouped, in_order = product_memory_traffic(*size), product_memory_traffic(*size, in_order=1.0)
        assert (in_order >= grouped * (1.0 - 1e-12)).all()
        assert (in_order <= before * (1.0 + 1e-9)).all()
        before = in_order
    np.testing.assert_allclose(before, product_traffic(m, n, k, 1.0, 1.0, 2.0), rtol=1e-12)
    large = (16384.0, 8192.0, 8192.0, 1.0, 1.0, 0.0, *tile, 142.0)
    held, streamed = (float(product_memory_traffic(*large, size * MIB, in_order=1.0)) for size in (200.0, 96.0))
    each_column = 8192.0 * (8192.0 + 16384.0 * 8192.0 / 128.0)
    assert streamed == pytest.approx(each_column, rel=1e-12), "the first input once for each column of tiles"
    assert held < 0.2 * streamed


def test_faster_exponentials_shorten_the_softmax_alone() -> None:
    """Twice the units for exponentials save a third of the softmax, never more than the exponentials took."""
    usual = float(softmax_time(10.0, 67e12))
    assert float(softmax_time(10.0, 67e12, 67e12 / 16.0)) == pytest.approx(usual, rel=1e-12)
    assert float(softmax_time(10.0, 67e12, 67e12 / 8.0)) == pytest.approx(usual * 2.0 / 3.0, rel=1e-12)
    rates = 2.0 ** np.arange(20.0, 70.0)
    times = softmax_time(10.0, 67e12, rates)
    assert (np.diff(times) < 0.0).all()
    assert times.min() >= usual / 3.0
    shape = (8.0, 32.0, 8.0, 8192.0, 8192.0, 128.0, 1.0, 2.0)
    own = constants("attention", softmax_flop=10.0)
    before = np.inf
    for rate in (np.nan, 67e12 / 8.0, 67e12 / 4.0):
        now = attention_time(device(exponential_rate=rate), own, *shape).item()
        assert now < before
        before = now
    without = constants("attention", softmax_flop=0.0)
    assert before > attention_time(device(), without, *shape).item()


def test_tiles_of_any_width_fill_the_waves_that_powers_of_two_leave_empty() -> None:
    """5,120 columns on 78 multiprocessors: 80 tiles of 64 columns take two waves, 64 of 80 columns one."""
    few = device(num_multiprocessors=78.0)
    n = np.arange(512.0, 16384.0, 512.0)[None, :]
    usual = constants("gemm", launch_time=0.0, serial_share=0.0)
    free = {**usual, "any_tile_columns": np.ones((1, 1))}
    shape = (64.0, n, 8192.0, 1.0, 1.0, 2.0)
    times = [gemm_time(few, own, *shape, stack="training")[0] for own in (usual, free)]
    assert (times[1] < 0.9 * times[0]).any()
    rows = np.array([[16.0, 32.0, 64.0, 128.0]])
    short, padded = (
        gemm_time(few, own, rows, 5120.0, 8192.0, 1.0, 1.0, 2.0, stack="serving")[0] for own in (usual, free)
    )
    compulsory = product_traffic(rows, 5120.0, 8192.0, 1.0, 1.0, 2.0)[0] / few.memory_bandwidth[0, 0]
    assert (padded >= compulsory).all() and (short >= compulsory).all()
    arithmetic = 2.0 * 64.0 * 5120.0 * 8192.0 / few.peak_flop_rate[0, 0]
    assert (padded >= arithmetic).all(), "16 rows take the arithmetic of 64"


def test_large_squares_come_near_the_bound_of_their_sums() -> None:
    """Without a cache only what the registers of all multiprocessors hold is used again."""
    n = np.array([8192.0, 16384.0, 65536.0])
    traffic = product_memory_traffic(n, n, n, 1.0, 2.0, 2.0, *TILE, UNITS, 50 * MIB)
    ratio = traffic / product_traffic_bound(n, n, n, 2.0, UNITS * TILE[0] * TILE[1])
    assert (ratio < 1.25).all()


@pytest.mark.parametrize("column", ["l2_capacity", "shared_memory_capacity"])
def test_more_on_chip_memory_is_never_slower(column: str) -> None:
    m, n, k = (values[:3000, None] for values in _shapes())
    own = constants("gemm", energy_per_flop=9.5e-13)
    heads, keys = np.minimum(m, 64.0), np.minimum(n, 8192.0)
    before = [np.full((3000, 1), np.inf)] * 2
    for share in (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0):
        machine = device(l2_capacity=50 * MIB, shared_memory_capacity=228.0 * 1024.0)
        machine = dataclasses.replace(machine, **{column: share * getattr(machine, column)})
        now = [
            gemm_time(machine, own, m, n, k, 1.0, 2.0, 2.0),
            attention_time(machine, constants("attention"), 1.0, heads, heads, keys, keys, 128.0, 1.0, 2.0),
        ]
        assert all((new <= old * (1.0 + 1e-9)).all() for new, old in zip(now, before, strict=True))
        before = now


def test_no_product_is_faster_than_the_reading_of_its_tiles() -> None:
    """The one tile of 32 x 128 reads k (32 + 128) elements: at 5.2 TB/s of L2 an L40S reaches 266 TFLOP/s in FP8."""
    m, n, k = (128.0 * np.ceil(values[:3000, None] / 128.0) for values in _shapes())
    before = np.full((3000, 1), np.inf)
    for bandwidth in (1e12, 5.2e12, 2e13, np.inf):
        ada = device(peak_flop_rate=733e12, num_multiprocessors=142.0, l2_bandwidth=bandwidth)
        short, usual = (
            gemm_time(ada, constants("gemm", launch_time=0.0, largest_tile_rows=rows), m, n, k, 1.0, 1.0, 2.0)
            for rows in (32.0, 512.0)
        )
        assert (short >= (m / 32.0) * (n / 128.0) * k * (32.0 + 128.0) / bandwidth * (1.0 - 1e-9)).all()
        assert (short <= before * (1.0 + 1e-9)).all(), "more bandwidth is never slower"
        assert (usual[short > 1e-3] <= short[short > 1e-3] * 1.05).all(), "a library with all tiles is no slower"
        before = short
    assert pytest.approx(266e12, rel=0.01) == 2.0 * 32.0 * 128.0 / (32.0 + 128.0) * 5.2e12


def test_caches_of_a_quarter_and_of_four_times_change_times() -> None:
    """The prefill of a 70B layer on an H100: less cache or shared memory is slower."""
    shape, own = (8192.0, 28672.0, 8192.0, 1.0, 2.0, 2.0), constants("gemm")
    base = {"l2_capacity": 50 * MIB, "shared_memory_capacity": 228.0 * 1024.0}
    time = gemm_time(device(**base), own, *shape).item()
    for name, value in base.items():
        assert gemm_time(device(**(base | {name: 0.1 * value})), own, *shape).item() > 1.005 * time, name
        assert gemm_time(device(**(base | {name: 4.0 * value})), own, *shape).item() < time, name


def test_tiles_fit_and_heads_of_512_take_smaller_ones() -> None:
    assert _tile_memory(256.0, 128.0) <= 100 * 1024 < _tile_memory(256.0, 256.0)
    tiles = _query_tile(np.array([64.0, 128.0, 256.0, 512.0]), 2.0, 228.0 * 1024.0)
    assert tiles.tolist() == [128.0, 128.0, 128.0, 64.0]
    assert _query_tile(512.0, 1.0, 228.0 * 1024.0) == 128.0  # half the bytes, twice the queries


def test_keys_that_the_cache_holds_are_read_once() -> None:
    heads = (64.0, 8.0, 32768.0, 131072.0, 128.0, 2.0, 128.0, UNITS)
    small, large = (float(_key_passes(*heads, capacity)) for capacity in (1 * MIB, 1024 * MIB))
    assert small > 10.0
    assert large == 1.0


def test_the_clock_follows_the_cube_of_the_power() -> None:
    """Down to the least voltage; from there with the power itself."""
    limits = np.array([np.inf, 1000.0, 500.0, 250.0, 125.0])
    times = clock_limited_time(1.0, 1000.0, limits)
    np.testing.assert_allclose(times, [1.0, 1.0, 2.0 ** (1 / 3), 16 / 9, 32 / 9])


def test_a_capped_b300_keeps_the_clock_that_was_measured() -> None:
    """Products of 8192 at 900, 700, 550 and 450 W over 1,100 W: 2080, 1692, 1346 and 1089 of 2197 TFLOP/s."""
    result = capped_clock_share(0.95e-12 * 0.859 * 2250e12, np.array([900.0, 700.0, 550.0, 450.0]), 1100.0)
    measured = np.array([2080.0, 1692.0, 1346.0, 1089.0]) / 2197.0
    assert np.median(np.abs(result / measured - 1.0)) < 0.10
    assert (np.diff(result) < 0.0).all()


def test_what_stays_between_steps_grows_with_the_cache_and_never_slows() -> None:
    working = 2.0 ** np.random.default_rng(0).uniform(0.0, 40.0, 5000)
    before = np.zeros(5000)
    for capacity in [0.0, *2.0 ** np.arange(1, 60)]:
        share = resident_share(working, capacity)
        assert ((share >= before) & (share <= 1.0)).all()
        assert (share[working >= capacity] == 0.0).all()
        before = share
        rate = resident_bandwidth(share, 3.0, np.array([[np.inf], [1.0], [12.0]]))
        assert rate[:2] == pytest.approx(3.0), "a cache that is not known, or is slower, does not answer"
        assert ((rate[2] >= 3.0 * (1.0 - 1e-12)) & (rate[2] <= 12.0 * (1.0 + 1e-12))).all()
    assert (before == 1.0).all(), "infinite: nothing is read from the memory again"
    assert (resident_share(working, np.nan) == 0.0).all()


def test_measured_caches_keep_what_half_of_them_holds_and_nothing_of_four_times_as_much() -> None:
    """Decoding on an L40S of 96 MiB of L2, timed again and again on the same keys: no row of the fit."""
    rows = [row for row in shipped_kernels() if row["kind"] == "attention_decode"]
    rows = [row for row in rows if row["gpu"] == "L40S" and row["dtype"] == "bfloat16"]
    rows = [row for row in rows if row["heads"] == row["kv_heads"]]
    sizes = (np.array([float(row[name]) for row in rows]) for name in ("batch", "kv_heads", "seq_len", "head_dim"))
    read = kv_cache_traffic(*sizes, 2.0)
    seconds = 1e-6 * np.array([float(row["latency_us"]) for row in rows])
    share, rate = resident_share(read, 96 * MIB), read / seconds / 864e9
    inside, outside = (share > 0.5) & (read > 0.2 * 96 * MIB), read > 4.0 * 96 * MIB  # smaller ones are launches
    assert inside.sum() > 3 and outside.sum() > 5
    assert (rate[inside] > 1.5).all(), "faster than the main memory could be"
    assert (rate[outside] < 1.0).all()
    assert np.median(rate[outside]) == pytest.approx(0.86, abs=0.03)
