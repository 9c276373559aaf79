"""Better hardware never slows a plan nor makes it dearer: columns of a sheet twice as good, peaks by half as well.

Single peaks, and single columns of networks, are better in every third or fourth row of the sheet each.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from laws.random_plans import MODES, kind_of
from laws.samples import all_of, as_started, both_legal, hold, plans_of, results_in, results_of, shipped, with_columns

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table

pytestmark = pytest.mark.slow

PEAKS = tuple(f"peak_flop_rate_{name}" for name in ("fp32", "tf32", "bf16", "fp8", "int8", "fp4"))
TIERS = ("latency", "oversubscription", "accelerators_per_adapter")
BETTER = [
    ("accelerators", PEAKS[2:], 2.0),
    ("accelerators", PEAKS, 1.5),
    *(
        (kind, (column,), factor)
        for kind, column in (
            ("accelerators", "memory_bandwidth"),
            ("accelerators", "memory_capacity"),
            ("networks", "link_bandwidth"),
        )
        for factor in (2.0,)
    ),
    ("accelerators", ("l2_bandwidth", "link_bandwidth"), 2.0),
    ("accelerators", ("l2_capacity",), 8.0),
    ("accelerators", ("reserved_memory",), 0.5),
    ("networks", TIERS, 0.5),
]
IN_TURN = (PEAKS[2:], TIERS)
"""Columns of which each row of the sheet has another one better, the others as they are."""
CLOSE = {"training": 1e-9, "static": 1e-9}
FULL_CACHE = 0.035  # the largest rate is that of the batch that fills the cache, whose tiles may fill badly
EXPERTS_AT_FULL_CACHE = 0.06  # likewise, with tiles of each expert
CLOCKED = 0.1  # below its own power limit a device with more units has a lower clock, which its other kernels share
UNDER_LOAD = 2e-3  # batches under load are whole, and steps between two sizes of them on a line
NO_LONGER_WAITING = 0.01  # with more memory what waited runs: larger batches, whose tiles and passes may fill worse
MIXED_STEPS = 0.01  # weights of few prompts beside a step: a step without them is faster, one with them is as before
FINISHED_TOGETHER = 0.1  # of a run at the same throughput, with fewer requests in its queue and more of them decoding
AT_TARGETS = 0.1  # faster decoding brings prompts together: the target of TTFT may admit one request of ten less
RUN_OF_POOLS = 0.06  # waves of requests of a run stay together in fast pools: passes of more prompts, a heuristic
NO_LONGER_HIDDEN = 0.01  # messages that faster units do not hide any more count as sending, at a tenth of the limit


LATER = {
    "training": ("step_time", "cost_per_million_tokens", "energy_per_token"),
    "static": ("ttft", "tpot", "latency", "energy_per_token"),
    "rate": ("ttft", "latency"),
    "disaggregated rate": ("ttft", "latency"),
}
FEWER = {"training": ("tokens_per_dollar",), "targets": ("tokens_per_second_at_targets", "max_batch_size")}
SERVED = ("tokens_per_second", "tokens_per_dollar", "max_request_rate", "max_batch_size")


@cache
def _results(kind: str) -> dict[tuple[str, tuple[str, ...]], Table]:
    """Results of all plans of a kind with each of the better columns of a sheet, from one evaluation."""
    plans, cases = as_started(all_of(kind)[0]), [(sheet, columns) for sheet, columns, _ in BETTER]
    return dict(zip(cases, results_in(plans, [_better(*case) for case in BETTER]), strict=True))


def _better(sheet: str, columns: tuple[str, ...], factor: float) -> Catalog:
    better = shipped()
    for place, column in enumerate(columns):
        least = 1.0 if column in ("oversubscription", "accelerators_per_adapter") else 0.0
        rows = np.arange(len(better.tables[sheet])) % len(columns) == place
        rows |= columns not in IN_TURN
        better = with_columns(
            better,
            sheet,
            (column,),
            lambda values, rows=rows, least=least: np.where(rows, np.maximum(factor * values, least), values),
        )
    return better


def _near(mode: str, columns: tuple[str, ...], name: str) -> float:
    """How much worse a result may be, as a share of it."""
    if mode != "static" and name == "max_request_rate":
        return FULL_CACHE
    if mode == "training" and name == "energy_per_token":
        return NO_LONGER_HIDDEN
    if mode in CLOSE:
        return CLOSE[mode]
    if name == "tokens_per_second_at_targets":
        return AT_TARGETS
    if columns == ("memory_bandwidth",):
        return MIXED_STEPS
    return NO_LONGER_WAITING if columns == ("memory_capacity",) else UNDER_LOAD


def _with_experts(plans: Table) -> np.ndarray:
    models = shipped().tables["models"]
    experts = dict(zip(models["model"].tolist(), models["num_experts"] > 0.0, strict=True))
    return np.array([experts[model] for model in plans["model"].tolist()])


def _no_longer_queued(plans: Table, before: Table, after: Table) -> np.ndarray:
    """Time that a queue for places hid, where more memory ends it, as a share of the latency.

    A replica works for the others while a request waits for its turn or is handled outside the engine, so the end of
    the queue lengthens no cycle. Only where one pass takes the prompts of nearly all requests is there nobody to work
    for: with a queue those who wait in it fill that time, without one all requests spend it together. It is no more
    than from the queue to the first token without the pass, nor than the queue was.

    In a run that ends requests with room to decode together finish together, later than one after the other on average.
    """
    ends = plans["run_requests"] > 0.0
    hidden = after["ttft"] - after["queue_time"] - after["prefill_time"]
    ended = (before["queue_time"] > 0.0) & (after["queue_time"] == 0.0)
    together = after["prefill_time"] > 0.5 * after["latency"]
    gone = np.where(ended & together, np.minimum(hidden, before["queue_time"]) / before["latency"], 0.0)
    return gone + np.where(ends & (after["queue_time"] < before["queue_time"]), FINISHED_TOGETHER, 0.0)


def _hold_costs_at_a_rate(what: str, plans: Table, before: Table, after: Table, near: float) -> None:
    """At a given rate a token costs more by its electric energy alone, which rises at most as batches shrink.

    The accelerators and the tokens per second stay. Faster units run fewer requests at a time: weights are read for
    fewer tokens, and never more often than in proportion.
    """
    price = np.nanmax(shipped().tables["prices"]["energy_price"])
    energy, other = before["energy_per_token"], after["energy_per_token"]
    cost, dearer = 1.0 / before["tokens_per_dollar"], 1.0 / after["tokens_per_dollar"]
    good = ~(dearer - cost > price * np.maximum(other - energy, 0.0) + CLOSE["static"] * cost)
    fitted = before["fits"] == 1.0
    hold(f"{what}: a token costs more by its energy alone", good | ~fitted, plans, before=cost, after=dearer)
    one, two = energy * before["running_batch"], other * after["running_batch"]
    hold(
        f"{what}: energy rises at most as batches shrink",
        ~(two - one > near * one) | ~fitted,
        plans,
        before=one,
        after=two,
    )


@pytest.mark.parametrize(("sheet", "columns", "factor"), BETTER, ids=lambda value: str(value).strip("(),'"))
@pytest.mark.parametrize("mode", MODES)
def test_better_hardware_is_never_slower_nor_dearer(
    mode: str, sheet: str, columns: tuple[str, ...], factor: float
) -> None:
    """Times, energy, cost and capacity of the same plan; what fits still fits and what is legal stays legal."""
    plans, before = plans_of(mode), results_of(mode)
    kind = kind_of(mode)
    after = _results(kind)[sheet, columns].take(all_of(kind)[1][mode])
    fitted = before["fits"] == 1.0  # a plan that does not fit has numbers as if nothing limited its batch
    what = f"{', '.join(columns)} x {factor:g}"
    hold(f"{what}: a legal plan stays legal", both_legal(plans, before, after), plans)
    hold(f"{what}: what fits still fits", ~(after["fits"] < before["fits"]), plans)
    queued = _no_longer_queued(plans, before, after) if columns == ("memory_capacity",) and mode != "training" else 0.0
    if "rate" in mode:
        _hold_costs_at_a_rate(what, plans, before, after, _near(mode, columns, "energy_per_token"))
    for names, sign in ((LATER.get(mode, ("latency",)), 1.0), (FEWER.get(mode, SERVED), -1.0)):
        for name in names:
            one, other = before[name], after[name]
            if "rate" in mode and name == "tokens_per_dollar":
                continue
            near = _near(mode, columns, name) + (queued if name == "latency" else 0.0)
            if name == "max_request_rate" and mode != "static":
                near = np.where(_with_experts(plans), EXPERTS_AT_FULL_CACHE, near)
            if name == "max_request_rate" and set(columns) <= set(PEAKS):
                near = np.where(plans.number("power_limit") > 0.0, CLOCKED, near)
            if mode in ("disaggregated", "targets") and name in ("latency", "tokens_per_second", "tokens_per_dollar"):
                waves = (plans["run_requests"] > 0.0) & (plans["prefill_accelerators"] > 0.0)
                near = np.where(waves, np.maximum(near, RUN_OF_POOLS), near)
            good = ~(sign * (other - one) > near * np.abs(one)) | ~fitted
            hold(f"{what}: {name} is not worse", good, plans, before=one, after=other)
