"""More load: throughput does not fall and grows at most with it, nobody waits less; prefill is linear in its batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from laws.samples import changed, hold, plans_of, results_of, results_with, shipped

from xlperf.base.arrays import Array
from xlperf.catalog.table import Table

pytestmark = pytest.mark.slow

STEPS = 10
CLOSE = 1e-9
FULL_CACHE = 0.02  # chunks of few rows fill tiles badly
FULL_EXPERTS = 0.03  # the more so tiles of experts: one row more than 128 for each opens another tile for all of them
RUN_OF_POOLS = 0.2  # waves of requests of a run stay together in fast pools
UNDER_LOAD = 1e-3  # batches under load are whole


def loads(mode: str, column: str, values: Sequence[Array | float], **fixed: Array) -> list[Table]:
    """Results of the plans of a mode at each of several loads, from one table."""
    return results_with(plans_of(mode), [{**fixed, column: each} for each in values])


def replayed(plans: Table) -> Array:
    """Tokens of a pass with graphs that no pass outgrows; none where the plan has no graphs."""
    return np.where(plans["graphs"] == 0.0, np.nan, 65_536.0)


def doubled(mode: str, column: str, most: int = STEPS, **fixed: Array) -> list[tuple[float, Table, Table]]:
    """Neighbours of the loads 1, 2, 4, ..."""
    values = [2.0**step for step in range(most)]
    result = loads(mode, column, values, **fixed)
    return list(zip(values, result, result[1:], strict=False))


@pytest.mark.parametrize("mode", ["continuous", "disaggregated"])
def test_twice_the_requests_in_flight(mode: str) -> None:
    """Throughput falls by no more than 1 % and at most doubles; the first token comes no earlier.

    A run may end with a smaller wave, and ends with the longest of its last requests: where outputs vary that is longer
    the more of them there are, and the more so the more they vary.
    """
    plans = plans_of(mode)
    kept = np.where(plans["run_requests"] > 0.0, 0.98 - 0.04 * plans.filled("output_variation"), 0.99)
    for load, one, two in doubled(mode, "concurrency"):
        rates, firsts = ([each[name] for each in (one, two)] for name in ("tokens_per_second", "ttft"))
        what = f"from {load:g} to {2 * load:g} in flight"
        hold(f"{what}: throughput is kept", ~(rates[1] < kept * rates[0]), plans, before=rates[0], after=rates[1])
        # The time that a request spends outside the engine is a smaller share of a wait for other prompts.
        most = np.where(plans.filled("gathering_steps") > 0.0, 2.4, 2.0 * (1.0 + UNDER_LOAD))
        hold(f"{what}: at most twice", ~(rates[1] > most * rates[0]), plans, before=rates[0], after=rates[1])
        later = ~(firsts[1] < firsts[0] * (1.0 - UNDER_LOAD)) | (plans["run_requests"] > 0.0)
        later |= plans.filled("gathering_steps") > 0.0
        hold(f"{what}: ttft", later, plans, before=firsts[0], after=firsts[1])


@pytest.mark.parametrize("mode", ["rate", "disaggregated rate"])
def test_half_the_arrivals(mode: str) -> None:
    """What arrives is served; with half of it nobody waits longer and no token takes longer."""
    plans = plans_of(mode)
    full = plans["request_rate"]
    shares = [1.0, 0.5, 0.25, 0.125]
    result = loads(mode, "request_rate", [share * full for share in shares])
    for share, results in zip(shares, result, strict=True):
        asked = share * full * plans["output_length"]
        rate = results["tokens_per_second"]
        hold(f"{share:g} of the load is served", np.abs(rate - asked) <= CLOSE * asked, plans, rate=rate, asked=asked)
    for share, one, two in zip(shares, result, result[1:], strict=False):
        for name in ("ttft", "tpot", "latency", "queue_time", "running_batch"):
            good = ~(two[name] > one[name] * (1.0 + CLOSE)) | (plans.filled("gathering_steps") > 0.0)
            hold(f"half of {share:g} of the load: {name}", good, plans, before=one[name], after=two[name])


def test_twice_the_batch() -> None:
    """A static batch: throughput is kept but for tiles, at most doubles, and no token comes earlier."""
    plans = plans_of("static")
    for load, one, two in doubled("static", "batch_size", 9):
        what = f"batch {load:g} to {2 * load:g}"
        rates = [each["tokens_per_second"] for each in (one, two)]
        hold(f"{what}: throughput is kept", ~(rates[1] < 0.94 * rates[0]), plans, before=rates[0], after=rates[1])
        hold(f"{what}: at most twice", ~(rates[1] > 2.0 * rates[0] * (1.0 + CLOSE)), plans, before=rates[0],
             after=rates[1])  # fmt: skip
        for name in ("ttft", "tpot", "memory", "memory_kv_cache"):
            good = ~(two[name] < one[name] * (1.0 - CLOSE))
            hold(f"{what}: {name}", good, plans, before=one[name], after=two[name])


def test_prefill_is_linear_in_its_batch() -> None:
    """Twice the prompts take at most twice the time, 12 % more where tiles fill badly; twice at saturation.

    A pass that outgrows the graphs of its engine waits for launches: here each pass has graphs, where there are any.
    """
    plans = plans_of("static")
    for load, one, two in doubled("static", "batch_size", 10, graph_tokens=replayed(plans)):
        ratio = two["prefill_time"] / one["prefill_time"]
        hold(f"prefill of {2 * load:g} prompts: at most twice that of {load:g}", ratio <= 2.25, plans, ratio=ratio)
        assert np.mean(ratio > 2.02) <= 0.05
    fresh = 512.0 * plans["prompt_length"] * (1.0 - plans.filled("shared_prefix"))
    for name in ("context_parallel", "data_parallel_attention", "pipeline_parallel"):
        fresh = fresh / plans.filled(name)
    saturated = fresh > 8.0 * np.maximum(plans.filled("prefill_tokens"), 8192.0)
    assert saturated.sum() > 0.4 * len(plans)
    # Stages are filled once, which takes as long with few passes as with many.
    stages, passes = plans.filled("pipeline_parallel"), fresh / np.maximum(plans.filled("prefill_tokens"), 8192.0)
    passes = np.maximum(stages * passes, 1.0)
    least = 0.95 * (2.0 * passes + stages - 1.0) / (passes + stages - 1.0)
    hold("prefill of 1024 prompts is twice that of 512", (ratio > least) | ~saturated, plans, ratio=ratio, least=least)


def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    """The stated largest batch is what the memory of that batch says."""
    plans, most = plans_of("static"), results_of("static")["max_batch_size"]
    room = most >= 1.0
    assert room.sum() > 0.5 * len(plans)
    largest, more = loads("static", "batch_size", [np.maximum(most, 1.0), most + 1.0])
    hold("the largest batch fits", (largest["fits"] == 1.0) | ~room, plans, batch=most, memory=largest["memory"])
    hold("one more does not", more["fits"] == 0.0, plans, batch=most + 1.0, memory=more["memory"])


@pytest.mark.parametrize("mode", ["continuous", "disaggregated"])
def test_more_memory_is_never_worse(mode: str) -> None:
    """With room for more requests the deployment serves as many at least, and nobody waits longer.

    The smallest batches of very many rows are not computed, which leaves half a per cent. In a run that ends requests
    with room to decode together finish together: their mean latency may rise by 5 % at the same throughput. The largest
    rate is that of a full cache, whose larger batch may fill tiles badly: 3.5 %, as in test_hardware.
    """
    plans = plans_of(mode)
    ends = plans["run_requests"] > 0.0
    shares = (0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
    result = loads(mode, "memory_fraction", shares)
    for share, one, two in zip(shares, result, result[1:], strict=False):
        for name, sign in (("max_request_rate", 1.0), ("tokens_per_second", 1.0), ("ttft", -1.0), ("latency", -1.0)):
            room = np.where(ends & (name == "latency"), 0.05, 0.035 if name == "max_request_rate" else 0.005)
            good = ~(sign * (two[name] - one[name]) < -room * one[name])
            hold(f"more memory than {share:g}: {name}", good, plans, before=one[name], after=two[name])


@pytest.mark.parametrize("batch", [1, 16, 256])
def test_prefix_hits_are_never_slower(batch: int) -> None:
    """The more of a prompt is in the cache, the earlier its first token.

    With all of it in the cache the last tokens of all prompts are as few passes as a pipeline has stages, which read
    the keys of the prompts: filling p stages takes up to 2 - 1 / p times as long as with many passes.
    """
    plans = plans_of("static")
    stages = plans.filled("pipeline_parallel")
    hits = [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0]
    first = [
        each["ttft"] for each in results_with(plans, [{"batch_size": batch, "shared_prefix": hit} for hit in hits])
    ]
    for hit, more, one, two in zip(hits, hits[1:], first, first[1:], strict=False):
        few = stages * plans.filled("context_parallel") > 1.0
        room = np.where(few, 1.05, 1.005)  # chunks of a few rows fill tiles badly
        room = np.maximum(room, 2.0 - 1.0 / stages) if more == 1.0 else room
        good = ~(two > room * one)
        hold(f"hit rate {more:g} after {hit:g}", good, plans, before=one, after=two)


@pytest.mark.parametrize("mode", ["continuous", "disaggregated"])
def test_prefix_hits_under_load_are_never_slower(mode: str) -> None:
    """With more of each prompt in the cache requests finish earlier and the deployment serves more of them.

    In a run of separate pools whose outputs are short, waves of requests stay together where prompts take less time:
    passes have more prompts, each of which ends with its pass (a heuristic of the pools, up to a fifth of a latency).

    The states of a prefix of a hybrid model take the room of a request: of less than ten places that is one in ten.
    """
    plans, models = plans_of(mode), shipped().tables["models"]
    mixtures = models["model"][models["num_experts"] > 0.0].tolist()
    room = np.where(np.isin(plans["model"].tolist(), mixtures), FULL_EXPERTS, FULL_CACHE)
    hits = [0.0, 0.3, 0.6, 0.9]
    result = loads(mode, "shared_prefix", hits)
    for hit, one, two in zip(hits, result, result[1:], strict=False):
        for name, sign in (("latency", 1.0), ("max_request_rate", -1.0), ("tokens_per_second", -1.0)):
            waves = (plans["run_requests"] > 0.0) & (mode == "disaggregated") & (name != "max_request_rate")
            good = ~(sign * (two[name] - one[name]) > np.where(waves, RUN_OF_POOLS, room) * one[name])
            good |= (two["max_batch_size"] < one["max_batch_size"]) & (one["max_batch_size"] < 10.0)
            hold(f"more hits than {hit:g}: {name}", good, plans, before=one[name], after=two[name])


@pytest.mark.parametrize("mode", ["continuous", "rate"])
def test_fewer_polls_bring_the_first_token_earlier_only_by_fewer_passes(mode: str) -> None:
    """A scheduler that looks less often finds more prompts at once: the passes saved also show between tokens."""
    plans = plans_of(mode)
    often, seldom = loads(mode, "polling_steps", (1.0, 10.0))
    first, each = (np.stack([entry[name] for entry in (often, seldom)]) for name in ("ttft", "tpot"))
    alone = plans["output_length"] < 2.0
    good = ~(first[1] < 0.99 * first[0]) | (each[1] < each[0]) | alone
    hold("ten steps between polls", good, plans, before=first[0], after=first[1])


EDGES = (1.0 / 3.0, 0.5, 1.0, 2.0, 3.0)


@pytest.mark.parametrize("mode", ["static", "continuous", "disaggregated"])
def test_one_more_token_never_brings_the_first_one_earlier(mode: str) -> None:
    """Where whole prompts fill a pass, and one token more begins another: a pipeline is filled by a full pass.

    Dense models alone: rows of experts may fill a tile exactly, and one token less each open another. Under load the
    rest of a pass is filled by the next prompt, so that one token more hardly brings the first one later either; a
    static batch needs a pass more. Two passes of half the rows may fill waves of tiles better than the whole: 3 %.
    """
    models = shipped().tables["models"]
    dense = models["model"][~(models["num_experts"] > 0.0)].tolist()
    plans = plans_of(mode)
    plans = plans.take(np.flatnonzero(np.isin(plans["model"].tolist(), dense)))
    chunk = plans.filled("prefill_tokens") * plans.filled("context_parallel")
    later = np.inf if mode == "static" else 1.2
    lengths = [np.maximum(np.floor(edge * chunk), 2.0) + more for edge in EDGES for more in (0.0, 1.0)]
    first = [each["ttft"] for each in results_with(plans, [{"prompt_length": length} for length in lengths])]
    for edge, one, more in zip(EDGES, first[::2], first[1::2], strict=True):
        hold(f"one token after {edge:.2g} passes", ~(more < 0.97 * one), plans, before=one, after=more)
        hold(f"one token after {edge:.2g} passes: later", ~(more > later * one), plans, before=one, after=more)


def test_one_more_token_never_ends_a_request_sooner() -> None:
    """Prompts that come together are spread over the stages of a pipeline: none waits for one pass of them all.

    Requests with one or two steps share a pass with fewer prompts where they have one step more: half as many with two
    steps as with one, of a pass that takes up to a third of the latency. Such a pass may have graphs where the larger
    one waits for launches: here each has graphs, where there are any.
    """
    plans = plans_of("continuous")
    plans = changed(plans, {"graph_tokens": replayed(plans)})
    result = [each["latency"] for each in results_with(plans, [{"output_length": steps} for steps in (2, 3, 4)])]
    for shorter, longer in pairwise(result):
        assert np.nanmin(longer / shorter) > 0.85
        assert np.nanmean(longer < shorter * 0.99) < 0.06
