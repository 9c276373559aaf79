"""Results under uncertainty: distributions, bands, which plan is better and which input decides."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import csv_rows
from explore.test_solve import TRAIN, table, varied
from openpyxl import load_workbook

from xlperf.addin.worker import Session
from xlperf.base.errors import InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import column, unit_of
from xlperf.engine import evaluate
from xlperf.explore.sweep import Sweep
from xlperf.explore.uncertainty import SHARED, Uncertainty, sheet_ranges
from xlperf.explore.vary import LATIN_HYPERCUBE, Sampling

COST = "cost_per_million_tokens"
OTHER = {**TRAIN, "name": "b", "tensor parallel": 8}


def study(
    catalog: Catalog, lines: tuple[str, ...], result: str = "cost", band: bool = False, seed: int = 0,
    rows: tuple[dict[str, Any], ...] = (TRAIN,), number: int = 4096,
) -> Uncertainty:  # fmt: skip
    asked = varied("training", *lines)
    sampling = Sampling(number, LATIN_HYPERCUBE, seed)
    return Uncertainty(Sweep(table(*rows), catalog, asked.values, asked.varied, sampling), result, band)


def shown(catalog: Catalog, name: str, row: dict[str, Any] = TRAIN) -> float:
    return float(evaluate(table(row), catalog)[name][0] / unit_of(column("training_results", name)).factor)


@pytest.mark.parametrize(
    ("text", "quantiles", "mean"),
    [
        ("x0.5..x1.5", (0.55, 1.0, 1.45), 1.0),
        ("x0.5..x1..x2", (0.5 + np.sqrt(0.05 * 0.75), 2.0 - np.sqrt(0.75), 2.0 - np.sqrt(0.075)), 3.5 / 3.0),
        ("normal:x1:0.1", (1.0 - 0.1644854, 1.0, 1.0 + 0.1644854), 1.0),
        ("lognormal:x1:0.2", (np.exp(-0.3289707), 1.0, np.exp(0.3289707)), np.exp(0.02)),
    ],
)
def test_the_cost_of_a_rented_machine_follows_its_uncertain_price(
    catalog: Catalog, text: str, quantiles: tuple[float, ...], mean: float
) -> None:
    result = study(catalog, (f"prices.rental price={text}",)).summary()
    base = shown(catalog, COST)
    assert [result[name][0] / base for name in ("p5", "p50", "p95")] == pytest.approx(quantiles, rel=2e-3)
    assert result["mean"][0] / base == pytest.approx(mean, rel=1e-3)
    assert result["probability_fits"][0] == result["probability_best"][0] == 1.0


def test_the_ends_of_a_band_are_its_tenth_and_ninetieth_percentile(catalog: Catalog) -> None:
    times, _ = study(catalog, (), "step time", band=True).draws
    ends = [shown(catalog, f"step_time{end}") for end in ("_low", "", "_high")]
    # 4,096 draws know the tenth percentile of this band to 0.6 % (one standard error)
    assert np.percentile(times[0], [10, 50, 90]).tolist() == pytest.approx(ends, rel=0.02)
    rates, _ = study(catalog, (), "tokens per second", band=True).draws
    assert (rates[0] * times[0]).tolist() == pytest.approx([96 * 4096.0] * 4096, rel=1e-9)
    memory, _ = study(catalog, (), "memory", band=True).draws
    ends = [shown(catalog, f"memory{end}") for end in ("_low", "", "_high")]
    assert np.percentile(memory[0], [10, 50, 90]).tolist() == pytest.approx(ends, rel=0.02)
    layers, _ = study(catalog, (), "memory weights", band=True, number=8).draws
    assert set(layers[0].tolist()) == {shown(catalog, "memory_weights")}


def test_errors_have_in_common_what_was_measured(catalog: Catalog) -> None:
    rows = TRAIN, OTHER, {**OTHER, "name": "c", "accelerator": "B200-SXM-180GB"}
    times, _ = study(catalog, (), "step time", band=True, rows=rows).draws
    ranks = np.argsort(np.argsort(times, axis=1), axis=1)
    assert np.corrcoef(ranks[0], ranks[1])[0, 1] == pytest.approx(SHARED["training"], abs=0.05)
    assert abs(np.corrcoef(ranks[1], ranks[2])[0, 1]) < 0.05


def test_draws_repeat_with_the_seed_alone(catalog: Catalog) -> None:
    line = ("accelerators.memory bandwidth=x0.8..x1.2",)
    first, again, other = (study(catalog, line, seed=seed, number=64).draws[0] for seed in (1, 1, 2))
    assert first.tolist() == again.tolist() != other.tolist()


def test_plans_are_compared_in_the_same_draws(catalog: Catalog) -> None:
    line = ("prices.rental price=x0.5..x2",)
    result = study(catalog, line, rows=(TRAIN, OTHER, {**TRAIN, "name": "same"})).summary()
    cheaper = int(shown(catalog, COST, OTHER) < shown(catalog, COST))
    assert result["probability_beats_first"].tolist() == [0.0, float(cheaper), 0.0]
    best = [0.0, 1.0, 0.0] if cheaper else [0.5, 0.0, 0.5]
    assert result["probability_best"].tolist() == best
    assert result["p95"][1] != result["p95"][0]


def test_the_input_that_matters_has_the_swing(catalog: Catalog) -> None:
    lines = ("accelerators.memory capacity=x1..x1.2", "prices.rental price=x0.5..x1.5")
    result = study(catalog, lines, band=True).effects()
    assert result["input"].tolist() == ["prices.rental price", "calibration band", "accelerators.memory capacity"]
    assert result["rank"].tolist() == [1.0, 2.0, 3.0]
    base = shown(catalog, COST)
    assert [result[f"result_{end}"][0] / base for end in ("low", "high")] == pytest.approx([0.55, 1.45])
    assert result["swing"][2] == 0.0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("prices.rental price=normal:x1", "prices.rental price: write normal:mean:deviation, as normal:x1:0.1"),
        ("prices.rental price=x1..x2..x1.5", "a range has two ends above 0 and the likeliest value between"),
        ("prices.rental price=lognormal:2:-1", "prices.rental price: write lognormal:median:deviation"),
        ("prices.rental price=normal:two:1", "rental price"),
    ],
)
def test_distributions_that_are_none(line: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        varied("training", line)


def test_numbers_of_plans_have_distributions(catalog: Catalog) -> None:
    asked = varied("training", "global batch size=normal:96:20", "micro batch size=1..4")
    (one,) = asked.varied
    assert (one.sheet, one.name, one.shape) == ("training", "global_batch_size", "normal")
    drawn = Sweep(table(TRAIN), catalog, asked.values, asked.varied, Sampling(200)).rows(np.arange(200))[0]
    sizes = drawn["global_batch_size"]
    assert (sizes == np.round(sizes)).all()
    assert sizes.mean() == pytest.approx(96.0, abs=5.0)


def test_what_decides_between_plans_is_worth_measuring_and_the_rest_is_not(catalog: Catalog) -> None:
    """Knowing the one input that decides is worth what knowing everything is; what changes no choice is worth 0."""
    wide = {**OTHER, "micro batch size": 8}
    narrow = {**TRAIN, "tensor parallel": 4}
    lines = ("networks.link bandwidth=x0.02..x1", "prices.rental price=x0.9..x1.1")
    asked = study(catalog, lines, rows=(wide, narrow), number=8192)
    losses, fits = asked.draws
    assert (fits == 1.0).all()
    chosen = losses[np.argmin(losses.mean(axis=1))]
    whole = float((chosen - losses.min(axis=0)).mean())
    assert whole > 0.0
    network, price = asked.values_of_measuring()
    assert network == pytest.approx(whole, rel=0.1)
    assert price == 0.0
    banded = study(catalog, lines, rows=(wide, narrow), band=True).values_of_measuring()
    assert banded[2] > 0.0
    effects = asked.effects()
    assert sorted(effects["value_of_measuring"].tolist()) == sorted([network, price] * 2)
    assert study(catalog, lines).values_of_measuring().tolist() == [0.0, 0.0]  # one plan: there is no choice


def test_low_and_high_values_of_the_sheets_are_drawn(catalog: Catalog) -> None:
    prices = catalog.tables["prices"]
    both = ~np.isnan(prices["rental_price_low"]) & ~np.isnan(prices["rental_price_high"])
    row = {**TRAIN, "accelerator": str(prices["price"][np.flatnonzero(both)[0]])}
    (result,) = [one for one in sheet_ranges(table(row), catalog) if one.name == "rental_price"]
    first = np.flatnonzero(both)[0]
    ends = [prices[f"rental_price{end}"][first] / prices["rental_price"][first] for end in ("_low", "", "_high")]
    assert result.values.tolist() == pytest.approx(ends)
    assert sheet_ranges(table(row), catalog, [result]) == ()
    sampling = Sampling(2000, LATIN_HYPERCUBE)
    drawn = Uncertainty(Sweep(table(row), catalog, {}, (result,), sampling), "cost", False).draws[0][0]
    base = shown(catalog, COST, row)
    assert base * ends[0] <= drawn.min() < 0.95 * base < 1.05 * base < drawn.max() <= base * ends[2]


def test_the_command_shows_and_writes_both_tables(tmp_path: Path, command: Callable[..., Any]) -> None:
    plans = tmp_path / "plans.csv"
    with plans.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([TRAIN.keys(), TRAIN.values(), OTHER.values()])
    ask = ("uncertainty", plans, "--result", "cost", "--draws", 500, "--vary", "prices.rental price=x0.7..x1..x1.5")
    done = command(*ask)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0].startswith("plan  result  ")
    assert "calibration band" in done.out
    rows = csv_rows(command(*ask, "-o", "-").out)
    assert [row["plan"] for row in rows] == ["a", "b"]
    assert float(rows[0]["p5"]) < float(rows[0]["p50"]) < float(rows[0]["p95"])
    book = tmp_path / "u.xlsx"
    assert command(*ask, "-o", book).code == 0
    assert load_workbook(book).sheetnames == ["uncertainty", "inputs", "asked"]
    nothing = command("uncertainty", plans, "--result", "cost", "--no-band", "--no-ranges")
    assert (nothing.code, "nothing is uncertain: give --vary" in nothing.err) == (2, True)


def test_the_worksheet_function_spills_percentiles_of_each_plan(catalog: Catalog) -> None:
    plans = [list(TRAIN), list(TRAIN.values()), list(OTHER.values())]
    ranges = [["prices.rental price", "x0.7..x1..x1.5"], ["global batch size", 96.0]]
    block = Session().call("XLPERF_MONTE_CARLO", [plans, "cost", ranges])
    assert list(block[0])[:4] == ["plan", "result", "median inputs", "mean"]
    assert [row[0] for row in block[1:]] == ["a", "b"]
    own = study(catalog, ("prices.rental price=x0.7..x1..x1.5", "global batch size=96"), band=True, number=10_000)
    assert block[1][4:7] == [float(own.summary()[name][0]) for name in ("p5", "p50", "p95")]
    alone = Session().call("XLPERF_MONTE_CARLO", [plans[:2]])
    assert alone[1][4] < alone[1][5] < alone[1][6]
    wrong = Session().call("XLPERF_MONTE_CARLO", [plans[:2], "cost", [["prices.rental price", "normal:2"]]])
    assert "normal:mean:deviation" in str(wrong[0][0])


def test_the_worksheet_function_spills_a_tornado(catalog: Catalog) -> None:
    plans = [list(TRAIN), list(TRAIN.values())]
    ranges = [["prices.rental price", "x0.7..x1..x1.5"]]
    block = Session().call("XLPERF_SENSITIVITY", [plans, "cost", ranges])
    own = study(catalog, ("prices.rental price=x0.7..x1..x1.5",), number=10).effects()
    header = list(block[0])
    assert [row[header.index("swing")] for row in block[1:]] == own["swing"].tolist()
    usual = Session().call("XLPERF_SENSITIVITY", [plans, "step time"])
    swings = [row[header.index("swing")] for row in usual[1:]]
    assert swings == sorted(swings, reverse=True) and swings[0] > 0.0
    assert swings[-1] == 0.0 and usual[-1][header.index("input")] == "prices.rental price"


def test_servers_and_chiplets_are_ranked_as_what_decides(catalog: Catalog) -> None:
    """The price follows from them where they vary: prices that would stand above them are drawn no more."""
    asked = varied("training", "servers.life=x0.8..x1.2", "chiplets.memory price=x0.6..x1.4")
    ranges = sheet_ranges(table(TRAIN), catalog, asked.varied)
    assert not {"rental_price", "capex"} & {one.name for one in ranges}
    whole = Sweep(table(TRAIN), catalog, {}, asked.varied, Sampling(64, LATIN_HYPERCUBE))
    low, high = (np.quantile(Uncertainty(whole, "cost", False).draws[0][0], end) for end in (0.0, 1.0))
    assert high > 1.1 * low
