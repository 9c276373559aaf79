"""One plan alone and the same plan in a large block: the same numbers, bit for bit, whichever way they are computed."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.plans import SERVING_MODES, plans_of

from xlperf.base.arrays import total
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.engine import evaluate, join
from xlperf.equations.hardware.gemm import FEW_ROWS, TILES, gemm_time, tiled_product_time

MODES = ("training", *SERVING_MODES)


def _same(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return (one == other) | ((one != one) & (other != other))


@pytest.mark.parametrize("mode", MODES)
def test_mixed_plans_are_the_same_alone_and_in_a_block(
    catalog: Catalog, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a table that goes through the equations in two batches."""
    monkeypatch.setattr(join, "BATCH", 250)
    plans = plans_of(catalog, 500, mode, seed=41)
    block = evaluate(plans, catalog)
    for row in range(0, len(plans), len(plans) // 16):
        alone = evaluate(plans.take([row]), catalog)
        for name in block.columns:
            assert _same(alone[name], block[name][row : row + 1]).all(), (row, name)


@pytest.mark.parametrize("mode", MODES)
def test_most_mixed_plans_are_legal_and_they_differ(catalog: Catalog, mode: str) -> None:
    plans = plans_of(catalog, 500, mode)
    found = evaluate(plans, catalog)
    times = found["step_time" if mode == "training" else "latency"]
    assert np.mean(~np.isnan(times)) > 0.85
    assert len(set(times.tolist())) > 450
    assert len(set(plans.text("model").tolist())) > 50
    again = plans_of(catalog, 500, mode)
    assert all(_same(plans[name], again[name]).all() for name in plans.columns)


@pytest.mark.parametrize("terms", range(1, 14))
def test_sums_do_not_depend_on_the_number_of_rows(terms: int) -> None:
    random = np.random.default_rng(terms)
    values = random.standard_normal((3000, terms)) * 10.0 ** random.integers(-9, 9, (3000, terms))
    together = total(values)
    assert all(total(values[row : row + 1])[0] == together[row] for row in range(0, 3000, 7))
    assert (total(values.reshape(1000, 3, terms)).reshape(-1) == together).all()


def test_tiles_one_by_one_are_tiles_together(catalog: Catalog) -> None:
    from xlperf.equations.hardware.roofline import Device

    random = np.random.default_rng(3)
    m, n, k = (np.ceil(10.0 ** random.uniform(0, 5, (500, 6))) for _ in range(3))
    batch = random.integers(1, 9, (500, 6)).astype(float)
    column = np.ones((500, 1))
    units = np.where(random.random((500, 1)) < 0.5, np.nan, 132.0)
    device = Device(*(value * column for value in (1e15, 6e13, 3e12, 8e10, 1e13)), units, 700.0 * column)
    names = ("compute_efficiency", "cache_share", "wave_time", "energy_per_flop", "boost_time", "memory_efficiency",
             "input_traffic", "launch_time", "serial_share", "largest_tile_rows", "any_tile_columns",
             "least_tile_rows")  # fmt: skip
    values = (0.8, 0.1, 1e-6, 0.0, 1e-3, 1.0, 0.0, 0.0, 0.0, 512.0, 0.0, 64.0)
    constants = {name: value * column for name, value in zip(names, values, strict=True)}
    size = random.choice([1.0, 2.0], (500, 6))
    tiles = TILES["training"][:, 2:]  # the first two need more shared memory
    least = tiled_product_time(
        m,
        n,
        k,
        batch,
        size,
        *tiles,
        peak_flop_rate=device.peak_flop_rate,
        cache_bandwidth=device.l2_bandwidth,
        num_multiprocessors=units,
        compute_efficiency=0.8,
        cache_share=0.1,
        wave_time=1e-6,
        sum_size=4.0,
    ).min(axis=0)
    memory = batch * (size * k * (m + n) + 2.0 * m * n) / device.memory_bandwidth
    found, tiled = gemm_time(device, constants, m, n, k, batch, size, 2.0), np.maximum(least, memory)
    few = m <= FEW_ROWS  # have instructions shorter than tiles
    np.testing.assert_allclose(found[~few], tiled[~few], rtol=1e-12)
    assert (found[few] <= tiled[few] * (1.0 + 1e-12)).all() and (found[few] < tiled[few]).any()


def test_kernels_that_add_gradients_are_shared_by_plans_with_equal_shards_only(catalog: Catalog) -> None:
    """Stages of ZeRO add to whole gradients or to a shard; a block of many plans times equal kernels once."""
    header = ["model", "accelerator", "num accelerators", "tensor parallel", "global batch size", "sequence length",
              "gradient accumulation", "zero stage", "pipeline parallel"]  # fmt: skip
    rows = [
        ["Llama3-70B", "A100-SXM4-80GB", 32, 4, 16 * batch, 2048, how, stage, stages]
        for batch in range(1, 9) for how in ("separate", "whole") for stage in range(4) for stages in (1, 2)
    ]  # fmt: skip
    plans = table_from_rows("training", header, rows)
    together = evaluate(plans, catalog)["step_time"]
    alone = [evaluate(plans.take([row]), catalog)["step_time"][0] for row in range(len(plans))]
    assert np.array_equal(together, alone, equal_nan=True)
    assert np.isfinite(together).sum() > 64
