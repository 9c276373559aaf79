"""Experts, layers and adapters of served models in the host's memory: nothing there changes nothing, more is slower."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ideal_machine import deployment, experts

from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import first_words
from xlperf.catalog.table import Table
from xlperf.engine import evaluate, explain
from xlperf.engine.inference import serving_memory
from xlperf.engine.ownership import evaluate_ownership
from xlperf.equations.serving.phases import phase_times, serving_work
from xlperf.explore.forms import answer_of, form_of

SHARES = (0.0, 0.05, 0.25, 0.5, 0.75, 1.0)
DENSE = {"model": "Llama3-70B", "accelerator": "H100-SXM-80GB", "num_accelerators": 1}
MIXED = {"model": "gpt-oss-120b", "accelerator": "RTX 5090", "num_accelerators": 1, "software": "llama.cpp"}
GIB = 2.0**30


def served(base: dict[str, Any], *rows: dict[str, Any]) -> Table:
    full = [{"prompt_length": 1000, "output_length": 100, "batch_size": 1, **base, **row} for row in rows]
    header = list(dict.fromkeys(name for row in full for name in row))
    return table_from_rows("inference", header, [[row.get(name, "") for name in header] for row in full])


def results(base: dict[str, Any], *rows: dict[str, Any]) -> Table:
    return evaluate(served(base, *rows), load_catalog())


def same(first: Table, at: int, second: Table, row: int) -> None:
    for column in first.columns:
        one, other = first[column][at], second[column][row]
        assert one == other or (one != one and other != other), column


@pytest.mark.parametrize("base", [DENSE, MIXED, {**MIXED, "mode": "continuous", "concurrency": 4, "batch_size": ""}])
def test_nothing_on_the_host_is_the_plan_without_to_the_last_bit(base: dict[str, Any]) -> None:
    nothing = {"host_experts_share": 0.0, "host_weights_share": 0.0, "host_compute": "cpu", "adapters": 0}
    dense = {"host_weights_share": 0.5}
    alone, beside = results(base, {}), results(base, {}, nothing, dense)
    same(alone, 0, beside, 0)
    same(alone, 0, beside, 1)
    same(results(base, dense), 0, beside, 2)


def test_an_owner_pays_for_a_host_beyond_that_of_the_server() -> None:
    """6 USD a GB and 500 USD a TFLOP/s beyond the 256 GiB and 5 TFLOP/s that the server of an H100 has for each."""
    hosts: list[dict[str, Any]] = [{}, {"host_memory_capacity": 128}, {"host_memory_capacity": 512},
                                   {"host_flop_rate": 25, "host_memory_capacity": 256}]  # fmt: skip
    plans = served(DENSE, *({"host_weights_share": 0.6, **host} for host in hosts))
    owned = evaluate_ownership(plans, load_catalog())
    capex, hour = owned.number("capex"), owned.number("hour_server")
    assert capex[0] == capex[1] and hour[0] == hour[1]
    storage = 1.05  # of the price with the server
    assert capex[2:] - capex[0] == pytest.approx([storage * 6.0 * 256 * GIB / 1e9, storage * 500.0 * 20.0])
    assert (hour[2:] > hour[0]).all() and (owned.number("hour_cost")[2:] > owned.number("hour_cost")[0]).all()


@pytest.mark.parametrize("compute", ["cpu", "stream", "faster"])
@pytest.mark.parametrize("prefetch", ["yes", "no"])
@pytest.mark.parametrize(
    ("base", "name"), [(DENSE, "host_weights_share"), (MIXED, "host_experts_share"), (MIXED, "host_weights_share")]
)
def test_memory_moves_to_the_host_and_times_grow(base: dict[str, Any], name: str, compute: str, prefetch: str) -> None:
    result = results(base, *({name: share, "host_compute": compute, "host_prefetch": prefetch} for share in SHARES))
    for column in ("ttft", "tpot", "memory_host"):
        assert (np.diff(result.number(column)) >= 0.0).all(), column
        hidden = column == "ttft" and prefetch == "yes"  # behind the computation of a prompt
        assert hidden or result.number(column)[-1] > result.number(column)[0], column
    weights = result.number("memory_weights")
    assert (np.diff(weights) <= 0.0).all() and weights[-1] < weights[0]
    if compute == "cpu":  # no layers on their way stay on the accelerator
        assert weights + result.number("memory_host") == pytest.approx(weights[0], rel=1e-12)


def test_the_faster_of_both_is_chosen_for_prompts_and_for_decoding() -> None:
    rows = [{"host_experts_share": 0.8, "host_compute": how} for how in ("cpu", "stream", "faster")]
    result = results({**MIXED, "prompt_length": 8000}, *rows)
    for name in ("prefill_time", "decode_time"):
        cpu, stream, faster = result.number(name)
        assert faster == pytest.approx(min(cpu, stream), rel=1e-9), name
    assert result.number("prefill_time")[1] < result.number("prefill_time")[0]  # a long prompt streams
    assert result.number("decode_time")[0] < result.number("decode_time")[1]  # a token does not


def test_the_faster_of_both_does_not_count_products_that_launches_outlast() -> None:
    """Eight ranks of a small model wait for their launches: products that the host takes over save no time there."""
    small = {"model": "GPT3-Large", "accelerator": "L40", "num_accelerators": 8, "tensor_parallel": 8,
             "precision": "fp8", "activation_precision": "bf16", "prompt_length": 4096, "software": "deepseek",
             "host_memory_bandwidth": 100}  # fmt: skip
    rows = [{"host_weights_share": 0.3, "host_compute": how, "shared_prefix": hit}
            for hit in (0.99, 0.999, 1.0) for how in ("cpu", "stream", "faster")]  # fmt: skip
    cpu, stream, faster = results(small, *rows).number("ttft").reshape(-1, 3).T
    assert faster == pytest.approx(np.minimum(cpu, stream), rel=1e-9) and (stream < cpu).all()


def test_the_host_reads_the_experts_of_a_token_from_its_memory() -> None:
    """Two of eight experts of 8 M weights in 16 bits at 50 GB/s; and on their way back and forth 2,000 B at 10 GB/s."""
    plain = deployment(experts(), host_experts_share=1.0, host_compute="cpu")
    host = {"host_memory_bandwidth": 50e9, "host_bandwidth": 10e9}
    device = replace(plain.device, **{name: np.full((1, 1), value) for name, value in host.items()})
    served, without = replace(plain, device=device), deployment(experts())
    step, before = (phase_times(serving_work(one))[0, 1].sum() for one in (served, without))
    read_there, read_here = 2 * 8e6 * 2 / 50e9, 2 * 8e6 * 2 / 1e12
    assert step - before == pytest.approx(read_there - read_here + 2 * 2000 / 10e9, rel=1e-3)


def test_the_least_used_experts_meet_fewer_tokens() -> None:
    rows = [{"host_experts_share": share, "host_experts": which} for share in SHARES for which in ("layers", "rarest")]
    tpot = results(MIXED, *rows).number("tpot").reshape(len(SHARES), 2)
    assert tpot[0, 0] == tpot[0, 1] and tpot[-1, 0] == pytest.approx(tpot[-1, 1], rel=1e-12)
    assert (tpot[2:-1, 1] < tpot[2:-1, 0]).all()


def test_stated_bytes_are_a_share_of_the_layers() -> None:
    whole = results(DENSE, {"host_weights_share": 1.0}).number("memory_host")[0]
    rows = [{"host_weights": whole / 4.0 / GIB}, {"host_weights_share": 0.25}, {"host_weights": 1e4}]
    result = results(DENSE, *rows)
    assert result.number("tpot")[0] == pytest.approx(result.number("tpot")[1], rel=1e-12)
    assert result.number("memory_host")[[0, 2]].tolist() == pytest.approx([whole / 4.0, whole], rel=1e-12)


def test_the_memory_of_the_host_is_checked() -> None:
    rows = [{"host_experts_share": 0.8, "host_memory_capacity": size} for size in (30, 60)]
    result = results(MIXED, *rows)
    assert result.number("fits").tolist() == [0.0, 1.0]
    assert "the host needs 49.5 GiB for one accelerator and has 30 GiB" in result.text("reason")[0]
    assert serving_memory(served(MIXED, *rows), load_catalog())["fits"].tolist() == [0.0, 1.0]
    cache = {"kv_offload": 1.0, "host_memory_capacity": 0.01, "prompt_length": 8000}
    assert "the host needs" in results(DENSE, cache).text("reason")[0]
    on_drives = results(DENSE, {**cache, "offload_target": "drive"})
    assert "the host needs" not in on_drives.text("reason")[0] and on_drives.number("memory_host")[0] == 0.0


def test_a_plan_states_the_rates_of_its_host() -> None:
    rows = [{"host_experts_share": 1.0, "host_compute": "cpu", "host_memory_bandwidth": rate} for rate in (30, 60, 120)]
    assert (np.diff(results(MIXED, *rows).number("tpot")) < 0.0).all()
    rows = [{"host_experts_share": 1.0, "host_compute": "cpu", "host_flop_rate": rate} for rate in (0.1, 1, 10)]
    assert (np.diff(results(MIXED, *rows).number("ttft")) < 0.0).all()
    rows = [{"host_weights_share": 1.0, "host_compute": "stream", "host_bandwidth": rate} for rate in (12, 25, 50)]
    assert (np.diff(results(DENSE, *rows).number("tpot")) < 0.0).all()


@pytest.mark.parametrize(
    ("base", "row", "words"),
    [
        (DENSE, {"host_experts_share": 0.5}, "host experts share 0.5 needs a mixture of experts"),
        (DENSE, {"host_weights": 5, "host_weights_share": 0.5}, "give bytes or shares"),
        (DENSE, {"adapters": 3}, "adapters need an adapter rank"),
        (DENSE, {"resident_adapters": 3}, "resident adapters 3 need adapters"),
        ({**DENSE, "model": "DeepSeek-V3"}, {"adapters": 3, "adapter_rank": 8}, "this model has other layers"),
    ],
)
def test_what_does_not_go_together_is_said(base: dict[str, Any], row: dict[str, Any], words: str) -> None:
    assert words in results(base, row).text("reason")[0]


@pytest.mark.parametrize(
    ("base", "row"),
    [
        (MIXED, {"host_experts_share": 0.5, "host_weights_share": 0.1}),
        (DENSE, {"host_weights_share": 0.5, "host_compute": "stream"}),
        (DENSE, {"adapters": 8, "adapter_rank": 16, "batch_size": 8}),
    ],
)
def test_operators_add_up(base: dict[str, Any], row: dict[str, Any]) -> None:
    plans = served(base, row)
    rows, result = explain(plans, load_catalog()), evaluate(plans, load_catalog())
    decode = rows.number("exposed_time")[rows.text("phase") == "decode"].sum()
    assert decode == pytest.approx(result.number("tpot")[0], rel=1e-9)


def test_serve_sizes_desk_machines_whose_host_holds_experts() -> None:
    """One RTX 5090 serves gpt-oss-120b, which four would without the host; its users are slower."""
    asked = {"model": "gpt-oss-120b", "accelerator": "RTX 5090", "users": "1", "prompt_length": "1000",
             "output_length": "300", "speed_per_user": "5", "software": "llama.cpp"}  # fmt: skip
    first = first_words("serve") | asked
    whole, desk = (
        answer_of(form_of("serve", first | more), load_catalog())
        for more in ({}, {"host_experts_share": "0.75", "num_accelerators": "1"})
    )
    assert (whole["copy_size"], desk["copy_size"]) == (4.0, 1.0)
    assert "75 % of the experts in host memory" in str(desk["defaults_used"])
    assert float(desk["tokens_per_second_per_user"]) < float(whole["tokens_per_second_per_user"])


LLAMA = {"model": "Meta-Llama-3.1-8B", "accelerator": "H100-SXM-80GB", "num_accelerators": 1, "software": "vllm"}


def test_adapters_take_the_bytes_of_their_checkpoints() -> None:
    """PEFT counts 41,943,040 parameters of rank 16 on all products of Llama 3.1 8B, 4,718,592 of rank 8 on q, k, v."""
    rows: list[dict[str, Any]] = [
        {"adapters": 3, "adapter_rank": 16},
        {"adapters": 1, "adapter_rank": 8, "adapter_modules": "qkv"},
    ]
    qkv = 32 * 8 * ((4096 + 4096) + 2 * (4096 + 1024))
    assert results(LLAMA, *rows).number("memory_adapters").tolist() == [3 * 2 * 41_943_040, 2 * qkv]


def test_more_adapters_are_never_faster_and_a_lower_rank_never_slower() -> None:
    base = {**LLAMA, "batch_size": 32}
    rows = [{}, *({"adapters": count, "adapter_rank": 16} for count in (1, 4, 16, 64, 256))]
    result = results(base, *rows)
    for name in ("tpot", "ttft", "memory"):
        assert (np.diff(result.number(name)) >= 0.0).all() and result.number(name)[1] > result.number(name)[0], name
    rows = [{"adapters": 32, "adapter_rank": rank} for rank in (8, 16, 64, 256)]
    assert (np.diff(results(base, *rows).number("tpot")) > 0.0).all()


def test_adapters_without_a_place_come_from_the_host() -> None:
    row = {"adapters": 100, "adapter_rank": 16}
    result = results(LLAMA, *({**row, "resident_adapters": count} for count in (25, 50, 100)), row)
    size, load = 2 * 41_943_040, result.number("adapter_load_time")
    assert load.tolist() == pytest.approx([0.75 * size / 50e9, 0.5 * size / 50e9, 0.0, 0.0])
    assert result.number("memory_host").tolist() == [75 * size, 50 * size, 0.0, 0.0]
    assert result.number("ttft")[0] - result.number("ttft")[2] == pytest.approx(load[0], rel=1e-6)
    same(result, 2, result, 3)
