"""Chips of one's own: what more cache costs, limits that are missed, tables of chips, and rows of the catalog."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xlperf.base.errors import InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import first_words
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.explore.chip_designs import designs_of
from xlperf.explore.chips import ALIKE, frontier_of
from xlperf.explore.forms import answers_of, evaluate_forms, form_of, tables_of, varied_forms
from xlperf.explore.mappings import started

RATE = "tokens_per_second_per_accelerator"
Command = Callable[..., Any]


def form(**changed: str) -> Table:
    return form_of("chip", first_words("chip") | changed)


def chips(catalog: Catalog, *lines: str, **changed: str) -> tuple[Table, Table]:
    asked = [(line.partition("=")[0], line.partition("=")[2].split(",")) for line in lines]
    forms, _ = varied_forms(form(**changed), asked, "--vary")
    return forms, evaluate_forms(forms, catalog)


def test_more_cache_takes_cores_so_that_some_of_it_is_best(catalog: Catalog) -> None:
    """At 3 nm the least cache makes products read the memory again, and much of it leaves few cores."""
    _, results = chips(catalog, "cache=4,16,32,64,128,256,512")
    rate, cores = results.number(RATE), results.number("num_multiprocessors")
    assert (np.diff(cores) < 0.0).all()
    best = int(rate.argmax())
    assert 0 < best < len(rate) - 1
    assert rate[best] > 1.02 * rate[0] and rate[best] > 1.1 * rate[-1]
    np.testing.assert_allclose(results.number("cache"), np.array([4, 16, 32, 64, 128, 256, 512]) * 1e6, rtol=1e-9)


def test_a_factor_of_an_automatic_entry_counts_from_what_auto_chooses(catalog: Catalog) -> None:
    chosen = float(evaluate_forms(form(), catalog).number("cache")[0])
    forms, _ = varied_forms(form(), [("cache", ["x0.5", "x2", "auto"])], "--vary", catalog)
    np.testing.assert_allclose(forms.number("cache"), [0.5 * chosen, 2.0 * chosen, np.nan])


def test_area_that_cache_takes_is_what_cores_lose(catalog: Catalog) -> None:
    sizes = ("8", "64", "400")
    result = designs_of([form(cache=size) for size in sizes] + [form()], catalog).results
    both = result.number("area_share_compute") + result.number("area_share_cache")
    np.testing.assert_allclose(both, both[-1], rtol=1e-12)
    np.testing.assert_allclose(result.number("area_share_other"), result.number("area_share_other")[-1], rtol=1e-12)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"die_area": "2000"}, r"2,000 mm² is larger than the reticle of 858 mm² by 1,142 mm²: 6 dies of 667 mm²"),
        ({"area_budget": "1200"}, r"400 mm² beyond the area budget of 1,200 mm²: dies of 600 mm² keep it"),
        ({"memory_stacks": "40"}, r"40 stacks .* mm more than links leave: 9 have room"),
        ({"bandwidth_target": "90"}, r"42 stacks of HBM4 for 90.0 TB/s .* 9 have room"),
        ({"memory_stacks": "8", "power_budget": "500"}, r"draw \d+ W, \d+ W more than the 40 % .*: 3 stacks or 1,0"),
        ({"power_budget": "20"}, r"draw (\d+) W, \d+ W more than the power budget of 20 W: .* more than \1 W"),
        ({"cache": "5000"}, r"5,000 MB of cache take 3,818 mm², 2,7\d\d mm² more than cores and cache have"),
        ({"cache": "1371"}, r"1,371 MB of cache leave .* not one fits"),
        ({"cost_budget": "8000"}, r"\$1,071 \(13 %\) more than the cost budget of \$8,000: dies of .* would keep it"),
        ({"cost_budget": "8000", "package": ""}, "without a package no cost follows"),
        ({"cost_budget": "8000", "package": "Organic MCM"}, "memory need an interposer, bridges or fan-out"),
        ({"cost_budget": "8000", "package": "SoIC on CoWoS-S"}, "bonds dies on base dies: give their number"),
        ({"die_area": "100"}, "larger dies, fewer stacks or a denser link"),
        ({"die_link": "UCIe standard"}, "a denser link between dies"),
    ],
)
def test_a_limit_that_is_missed_says_by_how_much_and_what_would_help(
    changed: dict[str, str], words: str, catalog: Catalog
) -> None:
    (answer,) = answers_of(form(**changed), catalog)
    assert re.search(words, answer["reason"]), answer["reason"]
    assert answer["answer"] == f"No answer: {answer['reason']}." and "nan" not in answer["answer"]
    assert RATE not in answer


def test_bridges_layers_and_soldered_memory_are_paid_for(catalog: Catalog) -> None:
    interposer, bridges = answers_of(chips(catalog, "package=CoWoS-S,CoWoS-L")[0], catalog)
    # 10 USD for each of the bridges beside six stacks and between two dies.
    assert bridges["cost_package"] - interposer["cost_package"] == pytest.approx(7.0 * 10.0)
    one, module = answers_of(chips(catalog, "package=Flip-chip,Organic MCM", memory="GDDR7")[0], catalog)
    assert one["unit_cost"] == module["unit_cost"]  # two dies need the layers of a module, whatever its name
    few, many = answers_of(chips(catalog, "memory stacks=4,20", memory="GDDR7", package="CoWoS-S")[0], catalog)
    assert few["cost_losses"] == pytest.approx(many["cost_losses"])  # of packages that no memory is in
    assert many["cost_memory"] == pytest.approx(5.0 * few["cost_memory"])


def test_what_would_help_helps(catalog: Catalog) -> None:
    (answer,) = answers_of(form(cost_budget="8000"), catalog)
    area, stacks = re.findall(r"dies of (\d+) mm² or (\d+) stacks would keep it", answer["reason"])[0]
    helped = [form(cost_budget="8000", die_area=area), form(cost_budget="8000", memory_stacks=stacks)]
    assert designs_of(helped, catalog).reasons == ["", ""]
    result = designs_of([form(cost_budget="8000", memory_stacks=str(int(stacks) + 1))], catalog)
    assert result.reasons[0]


def test_auto_says_what_it_chose(catalog: Catalog) -> None:
    own = [form(), form(bandwidth_target="9"), form(area_budget="3000", num_dies="auto", die_area="auto")]
    designs = designs_of(own, catalog)
    assert not any(designs.reasons)
    usual, asked, sized = designs.chosen
    assert usual.startswith("6 stacks (their share of the edge; all of it beside the links holds 9)")
    assert "115 MB of cache" in usual
    assert asked.startswith("5 stacks, the fewest with the bandwidth")
    assert sized.startswith("4 dies of 750 mm² each for 3,000 mm²")
    assert designs.devices.number("die_area").tolist() == [800.0, 800.0, 750.0]


def test_a_chip_of_a_table_is_the_chip_by_itself(catalog: Catalog) -> None:
    forms, together = chips(catalog, "technology=4 nm,2nm", "memory stacks=4,auto", "cache=24", speed_per_user="35")
    assert forms.text("technology").tolist() == ["4 nm", "4 nm", "2nm", "2nm"]
    fresh = catalog.with_tables([catalog.tables["prices"]])
    for row in (1, 2):
        alone = evaluate_forms(forms.take([row]), fresh)
        for name, values in together.columns.items():
            np.testing.assert_array_equal(alone[name], values[row : row + 1], err_msg=name)


@pytest.mark.parametrize(
    ("model", "accelerator", "speed", "experts"),
    [
        ("Meta-Llama-3.1-70B", "H200-SXM-141GB", 45.0, False),
        ("gpt-oss-120b", "H100-SXM-80GB", 60.0, True),
        ("Kimi-K2-Instruct", "MI300X", 20.0, True),  # a copy of 256 in eight stages
    ],
)
def test_a_chip_serves_what_brute_force_over_mappings_finds(
    catalog: Catalog, model: str, accelerator: str, speed: float, experts: bool
) -> None:
    """Every mapping of a replica, in stages as well, and every length of a prefill pass, each at its largest load."""
    asked = {"model": model, "speed_per_user": f"{speed}", "accelerator": accelerator}
    (answer,) = answers_of(form_of("chip", first_words("chip") | asked), catalog)
    header = ["model", "accelerator", "num accelerators", "tensor parallel", "pipeline parallel", "expert parallel",
              "data parallel attention", "expert dispatch", "prefill tokens", "prompt length", "output length",
              "precision", "kv precision", "tpot target", "mode"]  # fmt: skip
    rows = [
        [model, accelerator, size * stages, size, stages, group, copies, "nodes" if experts else None, chunk, 2000.0,
         500.0, "auto" if model.startswith("Kimi") else "fp8", "fp8", 1000.0 / speed, "continuous"]
        for size in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0) for stages in (1.0, 2.0, 4.0, 8.0)
        if size * stages <= (320.0 if experts else 64.0)
        for copies in {1.0, size} for group in ({1.0, size} if experts else {1.0})
        for chunk in (512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0)
    ]  # fmt: skip
    plans = table_from_rows("inference", header, rows)
    plans = plans.take(started(plans, catalog))
    result = evaluate(plans, catalog)
    each = result.number("tokens_per_second_at_targets") / plans.number("num_accelerators")
    assert 0.98 * np.nanmax(each) <= answer[RATE] <= 1.001 * np.nanmax(each)


def test_no_chip_of_the_frontier_is_beaten(catalog: Catalog) -> None:
    _, results = chips(catalog, "cache=16,64,2000", "num dies=1,2")
    best, rate, cost = frontier_of(results), results.number(RATE), results.number("unit_cost")
    assert np.isnan(best[-2:]).all() and set(best[:-2].tolist()) == {0.0, 1.0}
    for row in np.flatnonzero(best == 1.0):
        assert not ((rate > (1.0 + ALIKE) * rate[row]) & (cost <= cost[row])).any()
    for row in np.flatnonzero(best == 0.0):
        assert ((rate >= (1.0 - ALIKE) * rate[row]) & (cost <= (1.0 + ALIKE) * cost[row]) & (best == 1.0)).any()


def test_the_next_unit_is_worth_the_finite_difference_of_the_answer(catalog: Catalog) -> None:
    base = form(cache="64", memory_stacks="6", power_budget="1600")
    (answer,) = answers_of(base, catalog)
    beside = tables_of(base, catalog)  # as cells show it
    worth = beside["worth"]
    assert beside["accelerator"].number("memory_bandwidth")[0] == answer["memory_bandwidth"]
    more = answers_of(form(cache="64", memory_stacks="7", power_budget="1600"), catalog)[0]
    row = worth["change"].tolist().index("memory")
    assert worth.number("rate")[row] == pytest.approx(more[RATE] - answer[RATE])
    assert worth.number("price")[row] == pytest.approx(more["capex"] - answer["capex"])
    even = answer[RATE] / answer["capex"]  # at this price a token costs as before
    assert more[RATE] / (answer["capex"] + worth.number("worth")[row]) == pytest.approx(even)
    assert worth.number("rate")[worth["change"].tolist().index("power")] == 0.0  # it draws less


def test_a_row_of_the_catalog_serves_as_the_chip_does(command: Command, tmp_path: Path, catalog: Catalog) -> None:
    (answer,) = answers_of(form(cache="48"), catalog)
    plan = tmp_path / "plan.csv"
    plan.write_text("model,accelerator,num accelerators,prompt length,output length,precision,prefill tokens,"
                    "tpot target (ms)\nLlama3-70B,My chip,1,2000,500,fp8,8192,50\n")  # fmt: skip
    for name, is_priced in (("chip.csv", False), ("chip.xlsx", True)):
        assert command("chip", "--cache", "48", "-o", tmp_path / name).code == 0
        done = command("evaluate", plan, "--catalog", tmp_path / name, "-o", "-")
        assert done.code == 0, done.err
        (row,) = csv.DictReader(io.StringIO(done.out))
        result = float(row["tokens per second at targets (token/s)"])
        assert result == pytest.approx(answer[RATE], rel=0.01)
        assert bool(row["cost per million output tokens (USD/Mtoken)"]) == is_priced


def test_a_table_of_chips_keeps_limits_or_names_the_nearest(command: Command, tmp_path: Path) -> None:
    vary = ("--vary", "cache=32,64", "--vary", "num dies=1,2", "--vary", "memory stacks=5")
    done = command("chip", *vary, "--limit", "unit cost<=7500", "-o", tmp_path / "chips.csv")
    assert done.code == 0, done.err
    rows = list(csv.DictReader((tmp_path / "chips.csv").open(encoding="utf-8")))
    assert [(row["cache (MB)"], row["num dies"]) for row in rows] == [("32", "1"), ("64", "1")]
    assert rows[0]["frontier"] == "TRUE" and all(float(row["unit cost (USD)"]) <= 7500.0 for row in rows)
    done = command("chip", *vary, "--limit", "unit cost<=3000")
    assert done.code == 1
    assert re.search(r"Nearest: .*num dies 1.* unit cost is [\d,]+ USD, [\d,]+ more than 3,000", done.err), done.err
    done = command("chip", "--limit", "thermal design power<=1000")
    assert done.code == 1 and re.search(r"power is 1,?3\d\d W, 3[\d.]+ more than 1,000", done.out)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["technology=auto"], "technology cannot be auto"),
        (["foo=1"], 'unknown column "foo"'),
        (["cache=0"], "cache must be a number above 0"),
        (["memories.energy=1,2"], "xlperf evaluate varies the sheets"),
        (["cache=x2"], "cache is auto: write values"),
        (["num dies=1..50", "memory stacks=1,2,3,4,5,6,7", "cache=1,2,3,4,5,6"], "2,000 at the most"),
    ],
)
def test_what_cannot_vary_is_one_line(lines: list[str], words: str) -> None:
    asked = [(line.partition("=")[0], line.partition("=")[2].split(",")) for line in lines]
    with pytest.raises(InputError, match=re.escape(words)):
        varied_forms(form(), asked, "--vary")
