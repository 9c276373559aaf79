"""Prefill passes beside decode steps: what both share, how long a step waits, and what chunks cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xlperf import evaluate
from xlperf.equations.serving.load import RequestLoad
from xlperf.equations.serving.queueing import Service, closed_state


def load(mixed: float = 1.0, steps: float = 1000.0, chunk: float = 256.0) -> RequestLoad:
    """Prompts of 1,024 tokens in passes of some tokens; products are compute-bound from 256 rows on."""
    columns = (steps, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1024.0, chunk, mixed, 256.0)
    return RequestLoad(*(np.array([value]) for value in columns))


def mixed(work: RequestLoad, batch: float, step: float, alone: float, gaps: float = 0.0) -> tuple[float, float]:
    """Saving of a prompt, and what a pass adds to a step, by the times of products and of gaps of each."""
    passes = work.passes(np.ones(1))
    parts = np.array([[step, gaps]]), np.array([[alone, gaps]]) * passes
    found = work.mixed_times(np.array([batch]), np.ones(1), passes * (alone + gaps), *parts)
    return float(found[0][0]), float(found[1][0])


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


def tpot(software: str, chunks: list[int], **more: Any) -> np.ndarray:
    plan = {"model": "Meta-Llama-3.1-70B", "accelerator": "H100-SXM-80GB", "num_accelerators": 4, "tensor_parallel": 4,
            "precision": "fp8", "mode": "continuous", "concurrency": 32, "software": software, **more}  # fmt: skip
    found = evaluate([{**plan, "prefill_tokens": chunk} for chunk in chunks])
    return np.asarray(found[next(name for name in found.columns if name.startswith("tpot"))], dtype=float)


CHUNKS = [128, 256, 512, 2048, 8192]


LENGTHS = [{"prompt_length": 1000, "output_length": 1000}, {"prompt_length": 4096, "output_length": 256}]
LOADS = [{}, {"concurrency": 128}, {"concurrency": "", "request_rate": 0.5}]


@pytest.mark.parametrize("software", ["vllm", "tensorrt-llm"])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("more", LOADS)
def test_small_chunks_lengthen_a_token_less_where_passes_and_steps_share(
    software: str, lengths: dict[str, Any], more: dict[str, Any]
) -> None:
    """With 128 in place of 8,192 tokens a pass a token takes 1.2 to 6.7 times as long where they alternate (SGLang).

    Where no pass is replayed as a graph (TensorRT-LLM), the launches of its kernels keep small chunks from being free.
    """
    found, alternating = (tpot(name, CHUNKS, **lengths, **more) for name in (software, "sglang"))
    ratio, other = found / found[-1], alternating / alternating[-1]
    assert (ratio[:3] < other[:3]).all()
    assert (ratio < [2.9, 1.6, 1.45, 1.01, 1.01]).all()


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("more", LOADS)
def test_small_chunks_are_free_where_passes_are_replayed_in_pieces(
    lengths: dict[str, Any], more: dict[str, Any]
) -> None:
    """vLLM holds TPOT within 6 % with 128 in place of 8,192 tokens; where prefills fill the replica it falls."""
    found = tpot("vllm", CHUNKS, **lengths, **more)
    ratio = found / found[-1]
    assert (ratio < 1.03).all()
    full = lengths["prompt_length"] > 1000 and "request_rate" not in more
    assert full or (ratio > 0.94).all()


def test_engines_that_alternate_share_nothing() -> None:
    few, many = tpot("sglang", [128, 8192], prompt_length=1000, output_length=1000)
    assert few > 1.1 * many
