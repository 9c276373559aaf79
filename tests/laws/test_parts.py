"""Parts add up to the whole: time, memory, cost, and what follows from them."""

from __future__ import annotations

import numpy as np
import pytest
from laws.random_plans import MODES
from laws.samples import SERVING, hold, plans_of, results_of, shipped, tokens_per_step

from xlperf.base.arrays import Array
from xlperf.catalog.table import Table
from xlperf.engine import explain
from xlperf.engine.join import software_words

pytestmark = pytest.mark.slow

CLOSE = 1e-9
HOUR = 3600.0


def same(law: str, one: Array, other: Array, plans: Table, close: float = CLOSE) -> None:
    """Equal up to rounding, or both unknown."""
    good = np.isclose(one, other, rtol=close, atol=0.0, equal_nan=True)
    hold(law, good, plans, one=one, other=other)


def total(results: Table, *names: str) -> Array:
    return np.asarray(sum(results[name] for name in names))


def test_a_step_is_the_sum_of_its_parts() -> None:
    plans, results = plans_of("training"), results_of("training")
    parts = [name for name in results.columns if name.startswith("time_")]
    assert len(parts) == 11
    same("time", total(results, *parts), results["step_time"], plans)


def test_memory_of_training_is_the_sum_of_its_parts() -> None:
    plans, results = plans_of("training"), results_of("training")
    parts = ("memory_weights", "memory_gradients", "memory_optimizer", "memory_activations")
    same("memory", total(results, *parts), results["memory"], plans)
    stages = np.fmax(
        np.fmax(results["memory_first_stage"], results["memory_middle_stage"]), results["memory_last_stage"]
    )
    same("worst stage", stages, results["memory"], plans)
    reserved = results["memory_reserved"]
    hold("reserved holds allocated", reserved >= results["memory"], plans, reserved=reserved)
    fits = np.where(reserved <= results["memory_capacity"], 1.0, 0.0)
    hold("fits", fits == results["fits"], plans, reserved=reserved, capacity=results["memory_capacity"])


def test_rates_and_costs_of_a_step_are_those_of_its_time() -> None:
    """Tokens, dollars and joules of a step over its time are the rates, in every unit they are given in."""
    plans, results = plans_of("training"), results_of("training")
    count, time = plans["num_accelerators"], results["step_time"]
    tokens = results["tokens_per_second"] * time
    hold("whole tokens", np.abs(tokens - np.round(tokens)) < 1e-6 * tokens, plans, tokens=tokens)
    same("tokens of one accelerator", results["tokens_per_second_per_accelerator"] * count,
         results["tokens_per_second"], plans)  # fmt: skip
    cost = results["accelerator_hour_cost"] * count * time
    same("cost of a step", cost, results["step_cost"], plans)
    same("cost of a token", results["cost_per_million_tokens"] * tokens, results["step_cost"], plans)
    known = tokens + 0.0 * cost
    same("tokens of a dollar", results["tokens_per_dollar"] * results["step_cost"], known, plans)
    same("power", results["energy_per_token"] * results["tokens_per_second_per_megawatt"], np.ones(len(plans)), plans)
    runs = ~np.isnan(plans["training_tokens"])
    good = ~runs | np.isclose(results["run_time"] * results["goodput"], results["run_steps"] * time)
    hold("a run is its steps over its goodput", good, plans, run_time=results["run_time"])


def _engines(plans: Table) -> np.ndarray:
    """Engines at their releases, as calibration names them."""
    words = software_words(plans)
    return np.array([words.words[code] for code in words.codes.tolist()], dtype=object)


def outside_the_engine(plans: Table) -> Array:
    """Time that a request which is alone spends outside the engine, from the constants of the sheet. [s]"""
    accelerators, calibration = shipped().tables["accelerators"], shipped().calibration
    own = dict(zip(accelerators["accelerator"].tolist(), accelerators["generation"].tolist(), strict=True))
    generation = np.array([own.get(name, "any") for name in plans["accelerator"].tolist()], dtype=object)
    everything = np.full(len(plans), "any", dtype=object)
    software, host = (
        calibration.constants(family, generation, everything, _engines(plans))[0]
        for family in ("serving_software", "serving_host")
    )
    fresh = np.maximum(plans["prompt_length"] * (1.0 - plans.filled("shared_prefix")), 1.0)
    time = software["request_latency_time"][:, 0] + software["token_latency_time"][:, 0] * fresh
    return np.asarray(time * host["host_slowdown"][:, 0])


def _with_images(plans: Table) -> np.ndarray:
    return np.asarray((plans.filled("images") > 0.0) | (plans.number("video_frames", 0.0) > 0.0))


def adapter_waits(plans: Table, results: Table) -> Array:
    """Mean time in which a request's adapter comes from the host, from the bytes of the resident ones. [s]"""
    accelerators, used = shipped().tables["accelerators"], plans.filled("adapters")
    links = dict(zip(accelerators["accelerator"].tolist(), accelerators.filled("host_bandwidth"), strict=True))
    link = np.array([links.get(name, np.nan) for name in plans["accelerator"].tolist()])
    resident = np.fmin(plans["resident_adapters"], used)
    size = np.divide(results["memory_adapters"], resident, out=np.zeros_like(used), where=resident > 0.0)
    missing = np.divide(used - resident, used, out=np.zeros_like(used), where=resident < used)
    return np.asarray(np.where(missing > 0.0, missing * size / link, 0.0))


@pytest.mark.parametrize("mode", SERVING)
def test_a_request_is_the_sum_of_its_parts(mode: str) -> None:
    """Latency is the first token and the others; a step of a static batch is the sum of its kinds of kernels.

    The first token of a static batch waits for the prefill and for what is done outside the engine, of one request.
    The time per token of a run whose answers vary in length is the mean over requests: short ones count like long ones
    and spread the wait for later prompts over fewer tokens, so that it is no less than the decode time of a token.
    """
    plans, results = plans_of(mode), results_of(mode)
    others = np.maximum(plans["output_length"] - 1.0, 0.0)
    decode = np.where(others > 0.0, results["tpot"] * others, 0.0)
    varied = (plans.filled("run_requests") > 0.0) & (plans.filled("output_variation") > 0.0)
    same("latency", results["ttft"] + results["decode_time"], results["latency"], plans)
    same("decode time", np.where(varied, results["decode_time"], decode), results["decode_time"], plans)
    least = results["decode_time"] * (1.0 - CLOSE)
    hold("mean over requests", ~varied | ~(decode < least), plans, decode=decode, least=least)
    same("tpot over all tokens", results["tpot_itl"] * plans["output_length"], results["latency"], plans)
    same("one user", results["tokens_per_second_per_user"] * results["tpot"], results["tpot"] / results["tpot"], plans)
    parts = [name for name in results.columns if name.startswith("time_")]
    assert len(parts) == 5
    step = total(results, *parts)
    if mode == "static":
        same("a step", np.where(others > 0.0, step, np.nan), results["tpot"], plans)
        outside = outside_the_engine(plans) + adapter_waits(plans, results)
        plain = np.flatnonzero(~_with_images(plans))  # images are decoded and resized outside the engine as well
        stated = results["prefill_time"] + outside
        same("prefill", results["ttft"][plain], stated[plain], plans.take(plain))
    else:
        queue = results["queue_time"]
        hold("ttft holds the wait", results["ttft"] >= queue * (1.0 - CLOSE), plans, ttft=results["ttft"], queue=queue)


@pytest.mark.parametrize("mode", ["continuous", "disaggregated"])
def test_requests_in_flight_are_rate_times_latency(mode: str) -> None:
    """Little's law, for services without end."""
    plans, results = plans_of(mode), results_of(mode)
    flying = results["tokens_per_second"] / plans["output_length"] * results["latency"]
    endless = np.isnan(plans["run_requests"])
    good = ~endless | np.isclose(flying, plans["concurrency"], rtol=1e-6)
    hold("in flight", good, plans, flying=flying, asked=plans["concurrency"])


@pytest.mark.parametrize("mode", SERVING)
def test_memory_of_serving_is_the_sum_of_its_parts(mode: str) -> None:
    plans, results = plans_of(mode), results_of(mode)
    parts = ("memory_weights", "memory_kv_cache", "memory_activations")
    same("memory", total(results, *parts), results["memory"], plans)
    room = (results["memory"] <= results["memory_capacity"]) | (results["fits"] == 0.0)
    hold("what fits is within the accelerator", room, plans, memory=results["memory"])


@pytest.mark.parametrize("mode", SERVING)
def test_costs_of_inputs_and_outputs_pay_for_all_accelerators(mode: str) -> None:
    """Input and output tokens at their costs are the rent of all accelerators, and so are tokens per dollar."""
    plans, results = plans_of(mode), results_of(mode)
    rent = results["accelerator_hour_cost"] * plans["num_accelerators"]
    requests = results["tokens_per_second"] / plans["output_length"]
    prompt = plans["prompt_length"] + results["image_tokens_per_request"]
    split = results["cost_per_million_input_tokens"] * prompt
    split = (split + results["cost_per_million_output_tokens"] * plans["output_length"]) * requests
    same("split", split, rent, plans)
    same("tokens per dollar", results["tokens_per_second"] / results["tokens_per_dollar"], rent, plans)
    same("power", results["energy_per_token"] * results["tokens_per_second_per_megawatt"], np.ones(len(plans)), plans)
    same("per accelerator", results["tokens_per_second_per_accelerator"] * plans["num_accelerators"],
         results["tokens_per_second"], plans)  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_operators_add_up(mode: str) -> None:
    """What explain lists is what the results state: prefill and decode step of served plans, or the step.

    With the prefill comes what its request spends outside the engine.
    """
    plans, results = plans_of(mode), results_of(mode)
    for row in range(0, len(plans), 7):
        one, operators, whole = plans.take([row]), explain(plans.take([row]), shipped()), results.take([row])
        phase, time = operators["phase"], operators["exposed_time"]
        if mode == "training":
            name = operators["operator"].tolist()
            reduced = np.array(["gradient reduction" in word or "weight gathering" in word for word in name])
            stated = whole["step_time"] - whole["time_data_parallel"]
            same("operators of a step", time[~reduced].sum() + 0.0 * stated, stated, one, 1e-6)
            continue
        step = sum(values for name, values in whole.columns.items() if name.startswith("time_"))
        steps = {
            "prefill": whole["prefill_time"] + outside_the_engine(one) + adapter_waits(one, whole),
            "decode": np.asarray(step * tokens_per_step(one)),
        }
        for word, stated in steps.items():
            if one["output_length"][0] > 1.0 if word == "decode" else not _with_images(one)[0]:
                same(f"operators of the {word}", time[phase == word].sum() + 0.0 * stated, stated, one, 1e-6)
