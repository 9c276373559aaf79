"""A step of reinforcement learning: published steps, limits where it is Serve or Train, and the best split."""

from __future__ import annotations

import csv
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from places import ROOT

from xlperf.base.errors import InputError
from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.engine import evaluate
from xlperf.explore.forms import form_of
from xlperf.explore.objectives import PLAN, TABLES, Answer
from xlperf.explore.rl import SPLITS, Engine, Lengths, Trainers, least_step, rl_answer, rollout_engines, scoring_rates

PLAIN = {"rollout_slowdown": "1", "training_slowdown": "1", "sync_overhead": "0"}
SMALL = {"model": "Qwen3-8B", "accelerator": "H100-SXM-80GB", "num_accelerators": "32", "samples_per_prompt": "32",
         "output_length": "3000", "longest_output": "8192"}  # fmt: skip


@cache
def answer(**words: str) -> Answer:
    return rl_answer(form_of("rl", SMALL | words), load_catalog())


def published() -> list[dict[str, str]]:
    text = (ROOT / "workbooks/rows/validation/rl_published.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def predicted(row: dict[str, str]) -> float:
    """Step time of a published run. [s]"""
    names = {
        "model": "model", "accelerator": "gpu", "num_accelerators": "n_gpus",
        "samples_per_prompt": "samples_per_prompt",
        "prompt_length": "prompt_tokens", "output_length": "output_tokens", "longest_output": "max_output_tokens",
        "rollouts": "mode", "staleness": "staleness", "rollout_tensor_parallel": "rollout_tp",
        "rollout_precision": "rollout_precision", "precision": "train_precision", "train_batch": "train_batch",
        "log_prob_passes": "log_prob_passes", "tensor_parallel": "train_tp", "pipeline_parallel": "train_pp",
        "expert_parallel": "train_ep", "context_parallel": "train_cp",
    }  # fmt: skip
    words = {name: row[column] for name, column in names.items() if row[column]}
    words |= {"prompts_per_step": str(int(row["samples"]) // int(row["samples_per_prompt"]))}
    words |= {"rollout_accelerators": row["rollout_gpus"] or "0"}
    if "linear attention" in row["notes"]:
        words |= {"context_parallel": "1"}
    return float(rl_answer(form_of("rl", words), load_catalog())["step_time"])


def test_published_steps() -> None:
    """26 steps of NeMo RL and verl: the median error is 15 %, with four constants of the form fitted on them.

    With one model left out of the fit at a time it is 24 %. Engines of vLLM over two H100 servers wait between them
    as in serving: Qwen3-235B at 16 ranks (RL04, RL05) is predicted 35 and 48 % too long.
    """
    errors = np.array([predicted(row) / float(row["step_time_s"]) - 1.0 for row in published()])
    assert len(errors) >= 15
    assert np.median(np.abs(errors)) <= 0.20
    assert np.mean(np.abs(errors) <= 0.5) >= 0.9


def test_rollouts_of_one_length_are_a_served_batch() -> None:
    form = form_of(
        "rl", SMALL | PLAIN | {"output_length": "2047", "longest_output": "2048", "length_variation": "0.01"}
    )
    lengths = Lengths.of(form)
    engine = next(one for one in rollout_engines(form, lengths, load_catalog()) if one.degree == 2.0)
    time, _ = engine.batch_times(64.0, 500.0, lengths)
    names = ["model", "accelerator", "num accelerators", "tensor parallel", "prompt length", "output length",
             "batch size", "software"]  # fmt: skip
    plan = table_from_rows("inference", names, [["Qwen3-8B", "H100-SXM-80GB", 2, 2, 500, 2048, 64, "vllm"]])
    served = evaluate(plan, load_catalog())
    assert time == pytest.approx(float((served.number("latency") - served.number("ttft"))[0]), rel=0.03)


def test_trainer_alone_is_the_plan_of_train() -> None:
    known = answer(**PLAIN, log_prob_passes="0")
    plan = known[PLAN]
    result = evaluate(plan, load_catalog())
    tokens = 64.0 * 32.0 * (500.0 + 3000.0)
    trained = plan.number("global_batch_size")[0] * plan.number("sequence_length")[0]
    assert known["training_time"] == pytest.approx(float(result.number("step_time")[0]) * tokens / trained, rel=1e-9)
    assert known["step_time"] == pytest.approx(
        known["rollout_time"] + known["training_time"] + known["sync_time"], rel=1e-9
    )


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_best_split_is_that_of_all_splits(mode: str) -> None:
    """Of every number of accelerators, not whole servers alone."""
    words = {"rollouts": mode, "num_accelerators": "16"}
    best = answer(**words)
    first = 0 if mode == "synchronous" else 1
    alone = {
        count: answer(**words, rollout_accelerators=str(count)).get("step_time", np.inf) for count in range(first, 16)
    }
    assert best["step_time"] == min(alone.values())
    assert mode == "synchronous" or best["step_time"] < alone[8]
    table = best[TABLES][SPLITS]
    for rollouts, step in zip(table["rollouts"].tolist(), table["step_time"].tolist(), strict=True):
        assert step == alone[int(rollouts) % 16]


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_a_bound_is_below_all_splits_and_near_the_best(mode: str) -> None:
    asked, catalog = form_of("rl", SMALL | {"rollouts": mode, "num_accelerators": "16"}), load_catalog()
    lengths = Lengths.of(asked)
    engines = [engine for engine in rollout_engines(asked, lengths, catalog) if not engine.reason]
    trainers = Trainers(asked, lengths, catalog)
    assert trainers[8.0]
    least = least_step(asked, lengths, engines, scoring_rates(asked, lengths, catalog), trainers, 0.0)
    splits = [answer(rollouts=mode, num_accelerators="16", rollout_accelerators=str(count)).get("step_time", np.inf)
              for count in range(1, 16)]  # fmt: skip
    assert 0.85 * min(splits) < least <= min(splits)


def test_one_server_is_split() -> None:
    table = answer(num_accelerators="8", rollouts="asynchronous")[TABLES][SPLITS]
    assert len(table) >= 3 and (table["rollouts"] + table["trainer"] == 8.0).all()


def test_a_split_uses_the_engine_with_the_shortest_rollouts_of_equal_steps() -> None:
    """The trainer on 8 accelerators takes longest: any engine gives the same step."""
    words = {"rollouts": "asynchronous", "rollout_accelerators": "24"}
    by_degree = [answer(**words, rollout_tensor_parallel=degree) for degree in ("1", "2", "4", "8")]
    best = answer(**words)
    assert best["training_time"] + best["log_prob_time"] > 1.5 * best["rollout_time"]
    assert best["rollout_time"] == min(one["rollout_time"] for one in by_degree)
    assert best["step_time"] == pytest.approx(min(one["step_time"] for one in by_degree), rel=1e-3)


def test_an_answer_names_a_mode_that_is_faster_and_the_same_published_runs() -> None:
    modes = {mode: answer(rollouts=mode) for mode in ("synchronous", "partial", "asynchronous")}
    fastest = min(modes, key=lambda mode: modes[mode]["step_time"])
    assert modes[fastest]["step_time"] < 0.99 * modes["synchronous"]["step_time"]
    for mode, one in modes.items():
        assert (f"{fastest.capitalize()} rollouts" in one["answer"]) == (mode != fastest)
    assert f"would take {modes[fastest]['step_time']:,.0f} s a step" in modes["synchronous"]["answer"]
    assert len({one["trust_reason"].split(" published")[0] for one in modes.values()}) == 1
    assert all("; trainer: " in one["trust_reason"] for one in modes.values())


FIXED = {"tensor_parallel": "4", "pipeline_parallel": "1", "context_parallel": "1", "expert_parallel": "1",
         "rollout_tensor_parallel": "2", "num_accelerators": "24"}  # fmt: skip


def test_the_best_reward_pool_is_that_of_all_pools_and_splits() -> None:
    judged = FIXED | {"reward_model": "Llama3-70B", "rollouts": "asynchronous"}
    best = answer(**judged)
    steps = {
        rewards: answer(**judged, reward_accelerators=str(rewards), rollout_accelerators=str(rollouts))["step_time"]
        for rewards, rollouts in ((0, 8), (0, 16), (8, 8))
    }
    assert best["step_time"] == min(steps.values()) and len(best[TABLES][SPLITS]) == 3
    assert steps[int(best["reward_accelerators"])] == best["step_time"]


def test_scores_take_what_serving_takes_and_rules_take_nothing() -> None:
    """Rollouts of a step over the largest request rate of the reward model's best engine, in turn or beside."""
    words, judge = FIXED | {"rollout_accelerators": "0"}, {"reward_model": "Meta-Llama-3.1-8B"}
    names = ["model", "accelerator", "num accelerators", "tensor parallel", "prompt length", "output length",
             "concurrency", "software"]  # fmt: skip
    cells = [["Meta-Llama-3.1-8B", "H100-SXM-80GB", count, count, 3500, 1, 64, "vllm"] for count in (1, 2, 4)]
    rates = evaluate(table_from_rows("inference", names, cells), load_catalog()).number("max_request_rate")
    alone = 2048.0 / (rates / np.array([1.0, 2.0, 4.0])).max()
    turns, both = answer(**words), answer(**words, **judge, reward_accelerators="0")
    assert turns["scoring_time"] == 0.0 and both["scoring_time"] == pytest.approx(alone / 24.0, rel=1e-9)
    assert both["step_time"] == pytest.approx(turns["step_time"] + alone / 24.0, rel=1e-9)
    beside = answer(**FIXED, **judge, reward_accelerators="8", rollout_accelerators="8")
    assert beside["scoring_time"] == pytest.approx(alone / 8.0, rel=1e-9) and beside["training_accelerators"] == 8.0
    busy = max(beside["rollout_time"], beside["scoring_time"]) + beside["training_time"] + beside["log_prob_time"]
    assert beside["step_time"] == pytest.approx(busy + beside["sync_time"], rel=1e-9)
    form = form_of("rl", SMALL | judge | {"reward_output": "500"})
    assert scoring_rates(form, Lengths.of(form), load_catalog()).max() < 0.8 * 2048.0 / alone
    large = answer(**FIXED | {"num_accelerators": "16"}, reward_model="DeepSeek-V3", reward_accelerators="8")
    assert "no split of these accelerators" in large["answer"]  # it needs 32
    with pytest.raises(InputError, match="reward accelerators must be from 0 to below 32, and need a reward model"):
        answer(reward_accelerators="8")


def test_times_of_a_batch_are_those_of_a_simulation() -> None:
    """Lengths drawn at random, one token of all that live at a time, refilled from a queue."""
    form = form_of("rl", SMALL | PLAIN)
    lengths = Lengths.of(form)
    engine = next(one for one in rollout_engines(form, lengths, load_catalog()) if one.degree == 1.0)
    draws = np.random.default_rng(11)
    drawn = np.searchsorted(-lengths.unfinished, -draws.random(4000)) * lengths.width + 1.0
    assert drawn.mean() == pytest.approx(lengths.mean, rel=0.05)
    for count, places in ((96, 256.0), (400, 100.0)):
        small = engine._replace(places=places)
        simulated = np.mean([_simulated(draws.choice(drawn, count), places, small) for _ in range(6)])
        assert small.batch_times(float(count), 500.0, lengths)[0] == pytest.approx(simulated, rel=0.1)


def _simulated(tokens: np.ndarray, places: float, engine: Engine) -> float:
    """Time of a queue of rollouts on an engine, in steps of 32 tokens. [s]"""
    waiting, time = list(tokens), 0.0
    live: list[tuple[float, float]] = []
    while waiting or live:
        while waiting and len(live) < places:
            live.append((waiting.pop(), 0.0))
        context = 500.0 + float(np.mean([age for _, age in live]))
        time += 32.0 * float(engine.token_time(np.array([float(len(live))]), np.array([context]))[0])
        live = [(length, age + 32.0) for length, age in live if age + 32.0 < length]
    return time


def test_laws() -> None:
    base = answer()
    assert answer(output_length="4000")["rollout_time"] > base["rollout_time"]
    assert answer(rollouts="partial")["rollout_time"] < base["rollout_time"]
    assert answer(rollouts="partial")["tail_time"] == 0.0 < base["tail_time"]
    apart = [answer(rollouts="asynchronous", staleness=age)["step_time"] for age in ("1", "2", "8")]
    assert all(later <= sooner * 1.002 for sooner, later in pairwise(apart))  # batches of whole requests
    assert answer(log_prob_passes="2")["log_prob_time"] == pytest.approx(2.0 * base["log_prob_time"])
    assert answer(reward_time="60")["step_time"] == pytest.approx(base["step_time"] + 60.0)
    assert 0.0 <= base["idle_share"] < 1.0


def test_words() -> None:
    assert "take turns" in answer()["answer"]
    assert "No answer" in answer(model="Meta-Llama-3.1-405B", num_accelerators="8")["answer"]
    assert "room for a rollout engine" in answer(rollout_tensor_parallel="32", num_accelerators="16")["answer"]
    for wrong, words in (
        ({"output_length": "9000"}, "must be below the longest output"),
        ({"rollouts": "asynchronous", "rollout_accelerators": "0"}, "need some of their own"),
        ({"rollout_accelerators": "32"}, "must be from 0 to below 32"),
    ):
        with pytest.raises(InputError, match=words):
            answer(**wrong)
