"""Prefill passes beside decode steps: what both share, how long a step waits, and what chunks cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xlperf import evaluate, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import nowhere
from xlperf.engine import evaluate as evaluate_table
from xlperf.equations.serving.load import RequestLoad
from xlperf.equations.serving.queueing import Service, closed_state


def load(mixed: float = 1.0, steps: float = 1000.0, chunk: float = 256.0) -> RequestLoad:
    """Prompts of 1,024 tokens in passes of some tokens; products are compute-bound from 256 rows on."""
    columns = (steps, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1024.0, chunk, mixed, 256.0, 1.0)
    return RequestLoad(*(np.array([value]) for value in columns))


def mixed(work: RequestLoad, batch: float, step: float, alone: float, gaps: float = 0.0) -> tuple[float, float]:
    """Saving of a prompt, and what a pass adds to a step, by the times of products and of gaps of each."""
    passes = work.passes(np.ones(1))
    parts = np.array([[step, gaps]]), np.array([[alone, gaps]]) * passes
    result = work.mixed_times(np.array([batch]), np.ones(1), passes * (alone + gaps), *parts)
    return float(result[0][0]), float(result[1][0])


def test_products_of_a_pass_and_a_step_by_hand() -> None:
    """Weights are read in 8 ms; from 256 rows on a row takes 1/32 ms more."""
    assert mixed(load(), 64.0, 8.0, 8.0) == pytest.approx((4.0 * 6.0, 2.0)), "320 rows take 10 ms, not 16"
    assert mixed(load(chunk=1024.0), 64.0, 8.0, 32.0) == pytest.approx((6.0, 26.0)), "1,088 rows take 34 ms, not 40"
    assert mixed(load(chunk=128.0), 128.0, 8.0, 8.0)[1] == 0.0, "256 rows take no more than 128"
    assert mixed(load(), 64.0, 8.0, 8.0, gaps=1.0) == pytest.approx((4.0 * 7.0, 2.0)), "gaps between kernels once"
    assert mixed(load(mixed=0.0), 64.0, 8.0, 8.0) == (0.0, 0.0), "an engine in which they alternate"
    assert mixed(load(steps=128.0), 64.0, 8.0, 8.0)[0] == pytest.approx(2.0 * 6.0), (
        "two steps for each prompt, not four"
    )


def test_a_step_waits_for_one_pass() -> None:
    """Ten steps of 10 ms, none longer than 30 ms with a pass; 50 prompts of 0.1 s wait for each other before that."""
    fifty, places = np.array([50.0]), np.array([100.0])
    alternating, together = (
        closed_state(Service(*(np.array([value]) for value in (0.1, 0.1, 0.01, 0.0, 10.0, 0.0, 0.5, 0.0, longest))),
                     fifty, places)
        for longest in (np.inf, 0.02)
    )  # fmt: skip
    assert alternating.decode_time[0] == pytest.approx(5.0, rel=0.01), "all other prefills fall into the steps"
    assert together.decode_time[0] == pytest.approx(10.0 * 0.03)
    assert together.rate[0] == alternating.rate[0]
    whole = [state.first_token[0] + state.decode_time[0] for state in (alternating, together)]
    assert whole[0] == pytest.approx(whole[1])


def tpot(software: str, chunks: list[int], result: str = "tpot", **more: Any) -> np.ndarray:
    plan = {"model": "Meta-Llama-3.1-70B", "accelerator": "H100-SXM-80GB", "num_accelerators": 4, "tensor_parallel": 4,
            "precision": "fp8", "mode": "continuous", "concurrency": 32, "software": software, **more}  # fmt: skip
    outcome = evaluate([{**plan, "prefill_tokens": chunk} for chunk in chunks])
    return np.asarray(outcome[next(name for name in outcome.columns if name.startswith(result))], dtype=float)


CHUNKS = [128, 256, 512, 2048, 8192]


LENGTHS = [{"prompt_length": 1000, "output_length": 1000}, {"prompt_length": 4096, "output_length": 256}]
LOADS = [{}, {"concurrency": 128}, {"concurrency": "", "request_rate": 0.5}]


REPLAYED: dict[str, dict[str, Any]] = {"vllm": {}, "tensorrt-llm": {"graph_tokens": 3072}}
"""Engines that compute passes and steps together, as they replay passes: by default, or where they are asked to."""


@pytest.mark.parametrize("software", REPLAYED)
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("more", LOADS)
def test_small_chunks_are_free_where_passes_are_replayed_in_pieces(
    software: str, lengths: dict[str, Any], more: dict[str, Any]
) -> None:
    """TPOT is within 7 % with 128 in place of 8,192 tokens a pass; where prefills fill the replica it falls."""
    result = tpot(software, CHUNKS, **lengths, **more, **REPLAYED[software])
    ratio = result / result[-1]
    assert (ratio < 1.05).all()
    full = lengths["prompt_length"] > 1000 and "request_rate" not in more
    assert full or (ratio > 0.93).all()


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("more", LOADS)
def test_small_chunks_cost_launches_where_no_pass_is_replayed(lengths: dict[str, Any], more: dict[str, Any]) -> None:
    """TensorRT-LLM has piecewise graphs off by default: a step beside a pass waits for the launches of its kernels.

    That is the time of the shortest prompt; beside it stand the attention and the exchanges of the step.
    """
    eager, pieces = (tpot("tensorrt-llm", CHUNKS, **lengths, **more, graph_tokens=most) for most in (0, 65536))
    assert (tpot("tensorrt-llm", CHUNKS, **lengths, **more) == eager).all()
    alone = {"prompt_length": 16, "output_length": 2, "mode": "static", "concurrency": "", "batch_size": 1}
    (launches,) = 1000.0 * tpot("tensorrt-llm", [8192], **alone, graph_tokens=0, result="prefill time")
    static = {**lengths, "mode": "static", "concurrency": "", "batch_size": more.get("concurrency") or 32}
    (step,) = tpot("tensorrt-llm", [8192], **static)
    assert (eager >= pieces * 0.999).all()
    assert (eager <= np.maximum(pieces, launches + step) * 1.001).all()
    assert eager[3:] == pytest.approx(pieces[3:], rel=1e-3), "passes of 2,048 tokens take longer than their launches"


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("more", LOADS)
def test_engines_that_alternate_pay_for_each_pass(lengths: dict[str, Any], more: dict[str, Any]) -> None:
    """SGLang prefills and decodes in turn: weights are read once more for each pass. Graphs halve it at the least."""
    replayed, eager = (tpot("sglang", CHUNKS, **lengths, **more, **own) for own in ({}, {"graph_tokens": 0}))
    ratio, without = replayed / replayed[-1], eager / eager[-1]
    assert (ratio[:-1] >= ratio[1:] * 0.99).all() and ratio[0] > 1.03
    assert (ratio < [2.6, 1.8, 1.35, 1.08, 1.01]).all()
    assert ratio[0] - 1.0 < 0.5 * (without[0] - 1.0)


def test_no_pass_is_replayed_where_steps_are_not() -> None:
    lengths = LENGTHS[0]
    eager = tpot("vllm", CHUNKS, **lengths, graphs="no")
    assert (tpot("vllm", CHUNKS, **lengths, graphs="no", graph_tokens=0) == eager).all()
    assert (eager > tpot("vllm", CHUNKS, **lengths)).all()
    refused = ({"graphs": "no", "graph_tokens": 512.0}, "graph tokens 512 beside graphs no"), (
        {"graph_tokens": 0.5}, "graph tokens must be a whole number, is 0.5")  # fmt: skip
    for more, sentence in refused:
        row = {"model": "Llama3-70B", "accelerator": "H100-SXM-80GB", "num_accelerators": 8.0, "tensor_parallel": 8.0,
               "prompt_length": 512.0, "output_length": 64.0, **more}  # fmt: skip
        plans = table_from_rows("inference", list(row), [list(row.values())], nowhere)
        result = evaluate_table(plans, load_catalog())
        assert sentence in result.text("reason")[0] and np.isnan(result.number("tpot")[0])


@pytest.mark.parametrize("hit", [0.3, 0.7])
def test_prompts_that_fill_a_pass_exactly_keep_its_graphs_and_tiles(hit: float) -> None:
    """22.4 or 9.6 new tokens a prompt in passes of 512: rounding made them larger, and the rate a third lower."""
    header = ["model", "accelerator", "num accelerators", "tensor parallel", "prompt length", "output length",
              "precision", "prefill tokens", "software", "mode", "concurrency", "shared prefix"]  # fmt: skip
    plan = ["Llama3-8B", "B200-SXM-180GB", 8, 8, 32, 127, "bf16", 512, "vllm", "continuous", 4]
    table = table_from_rows("inference", header, [[*plan, share] for share in (hit, hit + 1e-7)], nowhere)
    exact, more = evaluate_table(table, load_catalog()).number("max_request_rate")
    assert exact == pytest.approx(more, rel=1e-6)
