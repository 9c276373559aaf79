"""Passes of the prefill beside decode steps: what both share, how long a step waits, and what chunks cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xlperf import evaluate
from xlperf.equations.serving.load import RequestLoad
from xlperf.equations.serving.queueing import Service, closed_state


def load(mixed: float = 1.0, steps: float = 1000.0, chunk: float = 256.0) -> RequestLoad:
    """Prompts of 1,024 tokens, in passes of some tokens."""
    columns = (steps, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1024.0, chunk, mixed)
    return RequestLoad(*(np.array([value]) for value in columns))


def spared(work: RequestLoad, batch: float, step: float, alone: float, gaps: float = 0.0) -> float:
    """Four passes whose products take a time each alone, beside a step whose products take another."""
    parts = np.array([[step, gaps]]), np.array([[4.0 * alone, 4.0 * gaps]])
    return float(work.spared(np.array([batch]), np.ones(1), *parts)[0])


def test_products_of_a_pass_and_a_step_by_hand() -> None:
    """Weights are read in 8 ms; beyond 256 rows a row takes 1 / 32 ms more."""
    assert spared(load(), 64.0, 8.0, 8.0) == pytest.approx(4.0 * 6.0), "320 rows: no more than 10 ms in place of 16"
    # A pass of 1,024 rows is bound by arithmetic, 32 ms: with 64 rows more 34 ms in place of 40.
    whole = load(chunk=1024.0).spared(np.array([64.0]), np.ones(1), np.array([[8.0, 0.0]]), np.array([[32.0, 0.0]]))
    assert whole[0] == pytest.approx(6.0)
    assert spared(load(), 64.0, 8.0, 8.0, gaps=1.0) == pytest.approx(4.0 * 7.0), "gaps between kernels once"
    assert spared(load(mixed=0.0), 64.0, 8.0, 8.0) == 0.0, "an engine in which they take turns"
    assert spared(load(), 1.0, 8.0, 8.0) == 0.0, "nobody else decodes"
    assert spared(load(steps=128.0), 64.0, 8.0, 8.0) == pytest.approx(2.0 * 6.0), "two steps for each prompt, not four"


def test_a_step_waits_for_one_pass() -> None:
    """Ten steps of 10 ms, none longer than 30 ms with a pass; 50 prompts of 0.1 s: they wait for each other first."""
    values = (0.1, 0.1, 0.01, 0.0, 10.0, 0.0, 0.5)
    fifty, places = np.array([50.0]), np.array([100.0])
    turns, mixes = (
        closed_state(Service(*(np.array([value]) for value in (*values, longest))), fifty, places)
        for longest in (np.inf, 0.02)
    )
    assert turns.decode_time[0] == pytest.approx(5.0, rel=0.01), "all other prefills fall into the steps"
    assert mixes.decode_time[0] == pytest.approx(10.0 * 0.03)
    assert mixes.rate[0] == turns.rate[0]
    assert mixes.first_token[0] + mixes.decode_time[0] == pytest.approx(turns.first_token[0] + turns.decode_time[0])


def tpot(software: str, chunks: list[int], **more: Any) -> np.ndarray:
    plan = {"model": "Meta-Llama-3.1-70B", "accelerator": "H100-SXM-80GB", "num_accelerators": 4, "tensor_parallel": 4,
            "precision": "fp8", "mode": "continuous", "concurrency": 32, "software": software, **more}  # fmt: skip
    found = evaluate([{**plan, "prefill_tokens": chunk} for chunk in chunks])
    return np.asarray(found[next(name for name in found.columns if name.startswith("tpot"))], dtype=float)


@pytest.mark.parametrize("software", ["vllm", "tensorrt-llm"])
def test_small_chunks_hardly_lengthen_a_token_where_they_share_steps(software: str) -> None:
    """With 128 in place of 8,192 tokens a chunk: 1.2 and 2.4 times before passes and steps shared what they read."""
    chunks = [128, 256, 512, 2048, 8192]
    even = tpot(software, chunks, prompt_length=1000, output_length=1000)
    assert (even < 1.15 * even[-1]).all()
    long = tpot(software, chunks, prompt_length=4096, output_length=256)
    assert (long < 1.02 * long[-1]).all()
    assert long[0] < 0.9 * long[-1]


def test_engines_that_take_turns_share_nothing() -> None:
    few, many = tpot("sglang", [128, 8192], prompt_length=1000, output_length=1000)
    assert few > 1.1 * many
