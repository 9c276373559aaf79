"""ZeRO-2 and ZeRO-3 in pipelines, experts that do not divide, redundant experts: limits and laws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate, explain


def table(kind: str, base: dict[str, Any], rows: tuple[dict[str, Any], ...]) -> Table:
    full = [{**base, **row} for row in rows]
    header = list(dict.fromkeys(name for row in full for name in row))
    cells = [[row.get(name, "") for name in header] for row in full]
    return table_from_rows(kind, header, cells, lambda row, column: f"row {row} {column}")


def trained(*rows: dict[str, Any]) -> Table:
    base = {"model": "Llama3-70B", "accelerator": "H100-SXM-80GB", "num_accelerators": 128, "tensor_parallel": 4,
            "pipeline_parallel": 4, "global_batch_size": 256, "sequence_length": 4096}  # fmt: skip
    return evaluate(table("training", base, rows), load_catalog())


def served(*rows: dict[str, Any]) -> Table:
    base = {"model": "DeepSeek-V3", "accelerator": "GB200-NVL72", "num_accelerators": 36, "tensor_parallel": 36,
            "expert_parallel": 36, "data_parallel_attention": 36, "prompt_length": 1024, "output_length": 256,
            "batch_size": 720, "precision": "fp8", "software": "sglang"}  # fmt: skip
    return evaluate(table("inference", base, rows), load_catalog())


def test_each_stage_of_zero_in_a_pipeline_holds_less_and_takes_no_less_time() -> None:
    """Resharded ZeRO-3 moves weights for every micro-batch, ZeRO-2 gradients, ZeRO-1 both once a step."""
    result = trained(*({"zero_stage": stage} for stage in (0, 1, 2)), {"zero_stage": 3, "reshard_after_forward": "yes"})
    memory, time = result.number("memory"), result.number("time_data_parallel")
    assert np.isfinite(memory).all() and (np.diff(memory) < 0.0).all()
    assert time[1] <= time[2] <= time[3]
    gradients = result.number("memory_gradients")
    assert gradients[2] == pytest.approx(gradients[1] / 8.0, rel=1e-12)


def test_without_replicas_every_stage_is_the_same_to_the_last_bit() -> None:
    one = {"num_accelerators": 16, "global_batch_size": 16}
    result = trained({**one, "zero_stage": 1}, {**one, "zero_stage": 2})
    for column in set(result.columns) - {"reason"}:  # Megatron-Core starts one of them alone
        values = result[column]
        assert values[0] == values[1] or values[0] != values[0], column


def test_weights_that_stay_gathered_cost_memory_and_save_time() -> None:
    rows = {"pipeline_parallel": 1, "tensor_parallel": 1, "zero_stage": 3, "micro_batch_size": 1}
    result = trained(rows, {**rows, "reshard_after_forward": "no"})
    assert result.number("memory")[1] > result.number("memory")[0]
    assert result.number("time_data_parallel")[1] < result.number("time_data_parallel")[0]
    wrong = trained({"reshard_after_forward": "yes", "zero_stage": 1})
    assert "reshard after forward needs ZeRO stage 3" in wrong.text("reason")[0]


def test_gradients_leave_after_each_backward_pass_where_no_pipeline_keeps_gathered_weights() -> None:
    """PyTorch fully_shard: without resharding after the forward pass the gather of the backward pass is left out.

    Gradients are scattered layer by layer all the same; schedules of pipelines put that off until the last micro-batch.
    """
    rows = {"pipeline_parallel": 1, "tensor_parallel": 1, "zero_stage": 3, "micro_batch_size": 1}
    result = trained(*({**rows, "reshard_after_forward": word} for word in ("yes", "no")))
    gradients, weights = result.number("memory_gradients"), result.number("memory_weights")
    assert gradients[0] == gradients[1] and weights[0] < weights[1]
    later = trained(*({"zero_stage": 3, "reshard_after_forward": word} for word in ("yes", "no")))
    assert later.number("memory_gradients")[0] < later.number("memory_gradients")[1]
    calls = []
    for word in ("yes", "no"):
        plans = {"model": "Llama3-70B", "accelerator": "H100-SXM-80GB", "num_accelerators": 128, "tensor_parallel": 1,
                 "global_batch_size": 1024, "zero_stage": 3, "reshard_after_forward": word}  # fmt: skip
        parts = explain(table("training", plans, ({},)), load_catalog())
        names, number = parts.text("operator").tolist(), parts.number("calls")
        calls.append([number[names.index(name)] for name in ("gradient reduction", "weight gathering")])
    assert calls == [[8.0, 16.0], [8.0, 8.0]]


def test_explain_counts_the_reductions_of_each_micro_batch() -> None:
    plans = {"model": "Llama3-70B", "accelerator": "H100-SXM-80GB", "num_accelerators": 128, "tensor_parallel": 4,
             "pipeline_parallel": 4, "global_batch_size": 256, "zero_stage": 2}  # fmt: skip
    rows = explain(table("training", plans, ({},)), load_catalog())
    names = rows.text("operator").tolist()
    assert rows.number("calls")[names.index("gradient reduction")] == 32.0
    assert rows.number("calls")[names.index("weight gathering")] == 1.0


def test_experts_that_do_not_divide_make_the_fullest_rank_slower() -> None:
    """8 experts on 3 ranks: one holds 3, as many as on 8/3 rounded up, and 9/8 of the mean of the tokens."""
    mixture = {"model": "Mixtral-8x7B-v0.1", "num_accelerators": 24, "tensor_parallel": 1, "pipeline_parallel": 1,
               "global_batch_size": 48}  # fmt: skip
    result = trained(*({**mixture, "expert_parallel": ranks} for ranks in (3, 4, 2)))
    memory = result.number("memory_weights")
    assert memory[1] < memory[0] < memory[2]
    assert (result.number("step_time") > 0.0).all()
    none = trained({**mixture, "expert_parallel": 12})
    assert "expert parallel 12 is more than the 8 experts" in none.text("reason")[0]


def test_redundant_experts_even_the_ranks_out() -> None:
    """256 experts on 36 ranks leave 8 on the fullest, 288 slots as many with equal shares: faster in equal memory."""
    uneven, even, more = (served({"redundant_experts": count}) for count in (0, 32, 68))
    assert even.number("memory_weights")[0] == uneven.number("memory_weights")[0] < more.number("memory_weights")[0]
    assert even.number("tpot")[0] < uneven.number("tpot")[0]
    full = {"expert_parallel": 32, "num_accelerators": 32, "tensor_parallel": 32, "data_parallel_attention": 32}
    none = served({**full, "batch_size": 640}, {**full, "batch_size": 640, "redundant_experts": 0}).number("tpot")
    assert none[0] == none[1]
