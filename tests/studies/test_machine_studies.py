"""Studies of machines side by side: pools of two kinds, break-even prices and rents; failures of growing runs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from study_samples import cell, outcome, sheet

from xlperf.base.errors import InputError
from xlperf.catalog.parse import table_from_rows
from xlperf.engine import evaluate
from xlperf.studies import study
from xlperf.studies.outcome import read_inputs


@pytest.mark.slow
def test_a_second_kind_for_the_prompts_pays_where_its_price_is_below_its_worth() -> None:
    """The best pair never costs more than the best machine alone; break-even prices agree with the costs of pairs."""
    gains = sheet("mixed-pools", "gains")
    assert (gains.numbers("saving") >= 0.0).all() and gains.numbers("saving").max() < 50.0
    assert (gains.numbers("cost_of_the_pair") <= gains.numbers("cost_of_one_kind")).all()
    costs, worth = sheet("mixed-pools", "prompt 32768"), sheet("mixed-pools", "worth of prefill")
    names = [column.name for column in costs.columns[1:]]
    rents = {"H100-SXM-80GB": 1.69, "H200-SXM-141GB": 1.74, "B200-SXM-180GB": 2.34, "GB200-NVL72": 2.75,
             "MI300X": 1.40, "MI355X": 1.90}  # fmt: skip
    checked = 0
    for row, decode in enumerate(names):
        for prefill in names:
            price, pair = worth.numbers(prefill)[row], costs.numbers(prefill)[row]
            if math.isfinite(price) and math.isfinite(pair):
                assert (price > rents[prefill]) == (pair < costs.numbers(decode)[row]), (decode, prefill)
                checked += 1
    assert checked >= 8


@pytest.mark.slow
@pytest.mark.parametrize("model", ["DeepSeek-V3", "Qwen3-235B-A22B"])
def test_a_pool_for_the_experts_pays_beside_machines_that_are_dear_alone(model: str) -> None:
    """No pair is far below the best machine; one that is dear alone gains most by a second kind, as the study says."""
    costs = sheet("mixed-pools", f"experts of {model}")
    names = [column.name for column in costs.columns[2:]]
    alone, pairs = costs.numbers("no expert pool"), np.stack([costs.numbers(name) for name in names], axis=1)
    assert 0.7 < np.nanmin(pairs) / np.nanmin(alone) < 1.5
    gain = 1.0 - pairs / alone[:, None]
    np.fill_diagonal(gain, np.nan)
    own, other = np.unravel_index(int(np.nanargmax(gain)), gain.shape)
    assert alone[own] > np.nanmin(alone) and gain[own, other] > 0.05
    words = next(each.words for each in outcome("mixed-pools").findings if each.tag == f"Experts of {model}")
    assert f"most beside {names[own]}: {names[other]} saves {100.0 * gain[own, other]:.1f} %" in words
    assert f"pays in {int(np.sum(gain > 0.05))} of" in words


def test_a_break_even_price_makes_tokens_as_cheaply() -> None:
    """A machine has room where its rent is below its worth; energy and years that both pay hardly move a price.

    At its break-even purchase price a machine is evaluated again: a token then costs as much as on the other.
    """
    inputs, rent = read_inputs(study("break-even")), sheet("break-even", "rent")
    assert len(rent.rows) == 6
    ratio = rent.numbers("break_even_rent") / rent.numbers("rent")
    assert ratio - 1.0 == pytest.approx(rent.numbers("margin") / 100.0)
    assert cell(rent, "serving, H100-SXM-80GB against A100-SXM4-80GB", "others_replaced") > 3.0
    assert 1.4 < cell(rent, "serving, B200-SXM-180GB against H200-SXM-141GB", "others_replaced") < 2.3
    for name, most in (("energy price", 1.3), ("years", 1.1), ("utilization", 1.1)):
        result = sheet("break-even", name)
        for series in (column.name for column in result.columns[1:]):
            values = result.numbers(series)
            assert (values > 0.0).all() and values.max() / values.min() < most, (name, series)
    prices = inputs.catalog.tables["prices"]
    machines, wanted = prices.text("price"), "B200-SXM-180GB"
    price = cell(sheet("break-even", "purchase"), f"serving, {wanted} against H200-SXM-141GB", "break_even_price")
    capex = np.where(machines == wanted, price, prices.number("capex"))
    owned = {**prices.columns, "rental_price": np.full(len(prices), np.nan), "capex": capex}
    plans = inputs.plans["inference"]
    results = evaluate(plans, inputs.catalog.with_tables([replace(prices, columns=owned)]))
    good = (results.number("fits") == 1) & (results.number("tpot") <= 0.04)
    cost = results.number("cost_per_million_output_tokens_all_in")
    new, old = (np.nanmin(cost[good & (plans.text("accelerator") == name)]) for name in (wanted, "H200-SXM-141GB"))
    assert new == pytest.approx(old, rel=1e-9)


def test_a_break_even_rent_under_an_open_load_is_that_of_the_most_each_machine_can_serve() -> None:
    """Issue Cases 13: at one request rate both machines make the same tokens, so the rents were the same."""
    machines = ("H100-SXM-80GB", "B200-SXM-180GB")
    header = ("model", "accelerator", "num accelerators", "tensor parallel", "prompt length", "output length", "mode",
              "request rate")  # fmt: skip
    rows = [["Meta-Llama-3.1-70B", name, 8, 4, 2048, 512, "continuous", 0.5] for name in machines]
    known = read_inputs(study("break-even"))
    inputs = replace(
        known,
        plans={"inference": table_from_rows("inference", header, rows)},
        settings={**known.settings, "pairs": (f"{machines[1]} against {machines[0]}",), "tpot_target": 20.0},
    )
    rent = next(one for one in study("break-even").analyse(inputs).sheets if one.name == "rent")
    work = rent.rows[0][[column.name for column in rent.columns].index("others_replaced")]
    rates = np.linspace(0.5, 60.0, 600)
    most = []
    for row in rows:
        results = evaluate(table_from_rows("inference", header, [[*row[:-1], rate] for rate in rates]), known.catalog)
        most.append(rates[(results.number("fits") == 1.0) & (results.number("tpot") <= 0.02)][-1])
    assert most[1] > 1.2 * most[0]
    assert work == pytest.approx(most[1] / most[0], rel=0.1)


def test_pairs_that_are_none_are_said() -> None:
    inputs = read_inputs(study("break-even"))
    with pytest.raises(InputError, match=r'^break-even.xlsx \[study\]: pairs must be "MACHINE against MACHINE"'):
        study("break-even").analyse(replace(inputs, settings={**inputs.settings, "pairs": ("H100-SXM-80GB",)}))
    with pytest.raises(InputError, match='pairs: no plan is on "B300"'):
        study("break-even").analyse(replace(inputs, settings={**inputs.settings, "pairs": ("B300 against MI355X",)}))
    serving = {"inference": inputs.plans["inference"]}
    nothing = replace(inputs, plans=serving, settings={**inputs.settings, "tpot_target": 0.1})
    assert study("break-even").analyse(nothing).findings[0].tone == "warning"


def test_a_larger_run_trains_less_of_its_time_and_needs_a_smaller_share_of_spares() -> None:
    """The interval of RSC-1 is what Meta projects (arXiv:2410.21680): 1.8 h at 16,384, 0.23 h at 131,072."""
    share, spares = sheet("failure-domains", "effective time"), sheet("failure-domains", "spare units")
    for fleet in ("Llama 3 405B", "Meta RSC-1", "Meta RSC-2", "StepFun trace"):
        assert (np.diff(share.numbers(fleet)) < 0.0).all() and (np.diff(spares.numbers(fleet)) < 0.0).all(), fleet
    runs = sheet("failure-domains", "growing runs")
    assert cell(runs, "16,384, Meta RSC-1", "interval") == pytest.approx(1.8, rel=0.03)
    assert cell(runs, "131,072, Meta RSC-1", "interval") == pytest.approx(0.23, rel=0.03)
    assert (runs.numbers("elastic_spares") <= runs.numbers("spares")).all()


def test_rollouts_on_machines_of_their_own_are_fastest_and_more_of_them_the_longer_they_are() -> None:
    modes = sheet("rl-modes", "rl modes")
    for length in ("1,000", "16,000"):
        words = [f"{mode}, {length} tokens" for mode in ("synchronous", "partial", "asynchronous")]
        times = [cell(modes, case, "step_time") for case in words]
        assert times[0] > times[1] > 0.98 * times[2], "the longest rollouts may be a tie of the last two"
    few, many = (
        cell(modes, f"asynchronous, {length} tokens", "rollout_accelerators") for length in ("1,000", "16,000")
    )
    assert few < many < 64.0
    assert cell(modes, "synchronous, 16,000 tokens", "tail_time") > 0.0
