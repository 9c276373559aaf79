"""When requests are taken up: polling, prompts that wait for each other, and runs whose first requests come at once."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from xlperf import load_catalog
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_columns
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.equations.serving.load import RequestLoad, admission
from xlperf.equations.serving.queueing import Service, closed_state, first_of_run, run_state

BASE = {
    "model": "Meta-Llama-3.1-70B", "accelerator": "H100-SXM-80GB", "num_accelerators": 8, "tensor_parallel": 8,
    "prompt_length": 1000, "output_length": 1000, "precision": "fp8", "mode": "continuous", "concurrency": 64,
}  # fmt: skip


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def plans(*rows: dict[str, Any]) -> Table:
    full = [{**BASE, **row} for row in rows]
    names = sorted({name for row in full for name in row})
    columns = {name: np.array([row.get(name, "") for row in full], dtype=object) for name in names}
    return table_from_columns("inference", columns, lambda row, column: f"row {row} {column}")


def results(catalog: Catalog, result: str, *rows: dict[str, Any]) -> list[float]:
    outcome = evaluate(plans(*rows), catalog)
    assert not np.isnan(outcome.number(result)).any(), outcome.text("reason").tolist()
    return [float(value) for value in outcome.number(result)]


def turn_of(copies: float, requests: float, steps: float, polling: float, gathering: float) -> tuple[float, float]:
    window, wait = admission(*(np.array([value]) for value in (copies, requests, steps, polling, gathering)))
    return float(window[0]), float(wait[0])


def test_a_request_waits_for_half_of_the_steps_between_two_looks() -> None:
    assert turn_of(1.0, 64.0, 900.0, 1.0, 0.0) == (1.0, 0.5)
    assert turn_of(1.0, 64.0, 900.0, 30.0, 0.0) == (30.0, 15.0)
    assert turn_of(1.0, 64.0, 900.0, 30.0, 60.0) == (30.0, 15.0), "one copy has nobody to wait for"


def test_prompts_wait_for_each_other_by_hand() -> None:
    """0.1 requests a step: 8 copies have a prompt each after 80 steps, in 60 steps 6 come, the first waits for all."""
    window, wait = turn_of(8.0, 90.0, 900.0, 1.0, 60.0)
    assert window == 60.0
    assert wait == pytest.approx(0.5 + 60.0 * (1.0 + 3.0) / (1.0 + 6.0))
    window, wait = turn_of(8.0, 900.0, 900.0, 1.0, 60.0)
    assert (window, wait) == (8.0, pytest.approx(0.5 + 8.0 * (1.0 + 4.0) / (1.0 + 8.0)))
    rare = turn_of(8.0, 1.0, 1e9, 1.0, 60.0)
    assert rare[1] == pytest.approx(60.5), "alone it waits to the end"


def test_without_copies_a_prompt_waits_for_a_full_pass(catalog: Catalog) -> None:
    """A pass holds eight prompts of 1,024 tokens. Of four in flight 0.08 come in the 20 steps that the first waits."""
    dense = {"prefill_tokens": 8192, "prompt_length": 1024, "concurrency": 4}
    rows = {**dense, "gathering_steps": 20}, dense, {**rows_of_one_prompt(dense), "gathering_steps": 20}
    waiting, alone, full = results(catalog, "ttft", *rows)
    (step,) = results(catalog, "tpot_itl", dense)
    assert waiting - alone == pytest.approx(20.0 * 1.04 / 1.08 * step, rel=0.1)
    (whole,) = results(catalog, "ttft", rows_of_one_prompt(dense))
    assert full == pytest.approx(whole), "a pass of one prompt is full at once"


def rows_of_one_prompt(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "prefill_tokens": row["prompt_length"]}


def service(admission_steps: float = 0.5, share: float = 0.0) -> Service:
    values = (0.1, 0.1, 0.01, 0.0, 900.0, share)
    return Service(*(np.array([value]) for value in values), admission_steps=np.array([admission_steps]))


def test_what_an_engine_holds_back_delays_the_first_token_and_takes_from_the_rate() -> None:
    """Steps of 10 ms: 15 steps until a turn instead of half of one are 145 ms. Ten requests: 0.9 s of prefills.

    The cycle without a prefill of 0.1 s is the larger root of (U - h) (1 - 0.9 / U) = 9: with h of 5 ms 9.904545 s,
    of 150 ms 10.036517 s. The other prefills that come while a request waits do not come while it is decoded.
    """
    requests, places = np.array([10.0]), np.array([100.0])
    prompt, held = (closed_state(service(steps), requests, places) for steps in (0.5, 15.0))
    assert held.first_token[0] - prompt.first_token[0] == pytest.approx(0.145)
    for state, late in ((prompt, 0.005), (held, 0.15)):
        rest = 10.0 / state.rate[0] - 0.1
        assert (rest - late) * (1.0 - 0.9 / rest) == pytest.approx(9.0, rel=1e-12)
        assert state.decode_time[0] == pytest.approx(rest - late, rel=1e-12)
    assert 10.0 / prompt.rate[0] < 10.0 / held.rate[0] < 10.0 / prompt.rate[0] + 0.145
    one = closed_state(service(15.0), np.array([1.0]), places)
    assert one.first_token[0] == pytest.approx(0.1), "an idle engine looks all the time"


@pytest.mark.parametrize("outside", [0.0, 0.2, 5.0, 500.0])
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_time_outside_the_engine_is_never_lost_nor_paid_twice(outside: float, share: float) -> None:
    """No cycle is shorter than its work or than a request alone, nor longer than with a replica that stands still."""
    counts = np.array([1.0, 2.0, 8.0, 50.0, 100.0, 101.0, 400.0])
    of_engine = service(share=share)
    state = closed_state(of_engine, counts, np.full(7, 100.0), np.full(7, outside))
    rather = closed_state(of_engine, counts, np.full(7, 100.0))
    cycle, before = counts / state.rate, counts / rather.rate
    busy = np.maximum(counts / np.minimum(counts, 100.0) * (np.minimum(counts, 100.0) * 0.1 + 9.0), 9.1 + outside)
    assert (cycle >= busy * (1.0 - 1e-12)).all()
    assert (cycle <= (before + outside) * (1.0 + 1e-12)).all()
    assert (cycle >= before * (1.0 - 1e-12)).all()
    whole = state.first_token + state.decode_time + state.queue_time
    np.testing.assert_allclose(whole, cycle, rtol=1e-12)
    assert (state.queue_time[counts <= 100.0] == 0.0).all()
    assert (state.queue_time >= 0.0).all()
    if share == 1.0:
        np.testing.assert_allclose(cycle[counts <= 100.0], (before + outside)[counts <= 100.0], rtol=1e-12)


def test_a_run_by_hand() -> None:
    """10 prompts of 0.1 s at once wait 0.45 s on average, the others half a step."""
    requests, places = np.array([10.0]), np.array([100.0])
    steady, burst = (closed_state(service(share=share), requests, places) for share in (0.0, 1.0))
    assert burst.first_token[0] == pytest.approx(0.1 + 0.45)
    run = np.array([100.0])
    first = first_of_run(run, requests)
    assert first[0] == 0.1
    result = run_state(burst, steady, first, np.array([0.0]), run)
    assert result.first_token[0] == pytest.approx(0.1 * 0.55 + 0.9 * 0.105)
    endless = np.array([math.nan])
    assert first_of_run(endless, requests)[0] == 0.0
    same = run_state(burst, steady, first_of_run(endless, requests), np.array([1.0]), endless)
    assert same.first_token[0] == steady.first_token[0]


def test_longer_runs_hide_the_burst_that_they_start_with(catalog: Catalog) -> None:
    waves, varied = [1, 2, 5, 10, 100, 1_000_000], {"output_variation": 0.5}
    steady, *runs = results(catalog, "ttft", varied, *({"run_requests": 64 * each} | varied for each in waves))
    assert runs == sorted(runs, reverse=True)
    assert runs[-1] == pytest.approx(steady, rel=3e-3), "lengths that differ"
    assert runs[1] == pytest.approx(0.5 * (runs[0] + runs[-1]), rel=1e-5)
    assert runs[0] > 1.5 * steady, "64 prompts of 1000 tokens at once"


def test_requests_of_equal_length_keep_coming_in_the_groups_of_a_pass(catalog: Catalog) -> None:
    """8,192 tokens of a pass hold eight prompts of 1,000: they end together, and so come those that follow them."""
    run = {"run_requests": 64_000_000}
    varied = {"output_variation": 0.3}
    alone, group, spread = results(catalog, "ttft", varied, run, {**run, **varied})
    pass_of_eight, one = results(
        catalog, "ttft", *({"mode": "static", "batch_size": size, "concurrency": ""} for size in (8, 1))
    )
    assert group > pass_of_eight > 3.0 * one, "a pass of its own group, after most of another one"
    assert spread == pytest.approx(alone, rel=0.02)
    first = {**run, "prefill_first": "yes"}
    every, _ = results(catalog, "ttft", first, {})
    assert every > group, "where prompts go first all 64 stay together"
    (turn,) = results(catalog, "ttft", {**run, "prefill_tokens": 1000})
    assert one < turn < 0.4 * group, "passes of one prompt"


def test_a_run_of_separate_pools_starts_with_a_burst(catalog: Catalog) -> None:
    row = {"mode": "disaggregated", "num_accelerators": 16, "prefill_accelerators": 8}
    steady, run, long = results(catalog, "ttft", row, {**row, "run_requests": 640}, {**row, "run_requests": 64_000_000})
    assert run > steady
    assert long == pytest.approx(steady, rel=1e-3)


def test_columns_of_the_engine_change_what_they_say(catalog: Catalog) -> None:
    run = {"run_requests": 640}
    varied = {**run, "output_variation": 0.064}
    plain, polled, first, spread, burst = results(
        catalog, "ttft", varied, {**varied, "polling_steps": 30}, {**run, "prefill_first": "yes"},
        {**varied, "prefill_first": "yes"}, {"run_requests": 64},
    )  # fmt: skip
    step = results(catalog, "tpot", varied)[0]
    assert polled > plain + 5.0 * step
    assert first == pytest.approx(burst, rel=1e-12), "equal requests come all at once every time"
    assert plain < spread < plain + 0.02 * (burst - plain)
    mixture = {
        "model": "DeepSeek-V3",
        "data_parallel_attention": 8,
        "expert_parallel": 8,
        "accelerator": "B200-SXM-180GB",
    }
    alone, gathered = results(catalog, "ttft", mixture, {**mixture, "gathering_steps": 60})
    assert gathered > alone
    refused = evaluate(plans({"mode": "static", "concurrency": "", "batch_size": 4, "run_requests": 8}), catalog)
    assert "run requests needs mode continuous or disaggregated" in refused.text("reason")[0]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"prefill_first": "yes"}, "prefill first applies to a run only; set run requests"),
        ({"mode": "disaggregated", "num_accelerators": 16, "polling_steps": 30}, "polling steps needs mode continuous"),
        ({"mode": "static", "concurrency": "", "batch_size": 4, "gathering_steps": 9}, "gathering steps needs mode"),
    ],
)
def test_columns_that_say_nothing_are_refused(catalog: Catalog, row: dict[str, Any], sentence: str) -> None:
    result = evaluate(plans(row), catalog)
    assert math.isnan(result.number("ttft")[0])
    assert sentence in result.text("reason")[0]


@pytest.mark.parametrize(("stages", "wanted"), [(1.0, 16.0), (2.0, 8.0), (4.0, 4.0), (32.0, 1.0)])
def test_a_pass_takes_the_prompts_of_one_batch_of_a_pipeline(stages: float, wanted: float) -> None:
    """16 requests of one step each all end at once; with four stages a quarter of them is in each."""
    columns = (1.0, 64.0, stages, 0.0, 1.0, 1.0, 0.0, stages, 1.0, 100.0, 8192.0, 0.0, 256.0, stages)
    work = RequestLoad(*(np.array([value]) for value in columns))
    assert work.prompts(np.array([16.0]))[0] == pytest.approx(wanted, rel=1e-5)


def test_no_poll_waits_for_more_steps_than_requests_have(catalog: Catalog) -> None:
    """Requests of the last poll end after their steps; then the scheduler polls at once."""
    short = [{"output_length": 3, "polling_steps": steps} for steps in (2, 4, 30)]
    assert len(set(results(catalog, "ttft", *short))) == 1
    long = [{"output_length": 64, "polling_steps": steps} for steps in (2, 4, 30)]
    assert len(set(results(catalog, "ttft", *long))) == 3


def test_mixed_blocks_give_the_same_bits_as_single_rows(catalog: Catalog) -> None:
    mixture = {
        "model": "DeepSeek-V3",
        "data_parallel_attention": 8,
        "expert_parallel": 8,
        "accelerator": "H200-SXM-141GB",
    }
    rows = [{}, {"run_requests": 640}, {"polling_steps": 30}, {"run_requests": 640, "prefill_first": "yes"},
            mixture, {**mixture, "gathering_steps": 60}, {"request_rate": 2, "concurrency": ""}]  # fmt: skip
    together = evaluate(plans(*rows), catalog)
    for index, row in enumerate(rows):
        alone = evaluate(plans(row), catalog)
        for name in ("ttft", "tpot", "tokens_per_second", "ttft_ninetieth"):
            assert alone.number(name)[0] == together.number(name)[index], (row, name)


def test_a_prompt_more_than_a_round_costs_no_round_for_all(catalog: Catalog) -> None:
    """Sixteen replicas of attention take a prompt each in a pass; with a few more waiting none of it is lost.

    Over the number in flight throughput never falls, and over the rate of requests the time per token does not.
    """
    row = {"model": "Gemma-2-27B", "num_accelerators": 16, "tensor_parallel": 16, "data_parallel_attention": 16,
           "prompt_length": 16384, "output_length": 32, "gathering_steps": 5, "software": "turbomind"}  # fmt: skip
    flying = [{**row, "concurrency": 8 * 2 ** (step / 4)} for step in range(24)]
    flying = [{**each, "concurrency": round(each["concurrency"])} for each in flying]
    rates = results(catalog, "tokens_per_second", *flying)
    assert all(more > 0.999 * fewer for fewer, more in pairwise(rates))
    (most,) = results(catalog, "max_request_rate", {**row, "concurrency": None, "request_rate": 1e-3})
    arriving = [{**row, "concurrency": None, "request_rate": most * at / 40.0} for at in range(1, 40)]
    times = results(catalog, "tpot", *arriving)
    assert all(later >= 0.999 * sooner for sooner, later in pairwise(times))
