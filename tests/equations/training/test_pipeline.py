"""Pipeline schedules: the tables of the papers, limits, and properties that every schedule keeps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_samples import results

from xlperf.calibrate.fitter import FittedConstant, calibration_table, joined_tables
from xlperf.catalog.catalog import Catalog
from xlperf.equations.training.communication import exposed_transfer_time
from xlperf.equations.training.memory import in_flight_micro_batches
from xlperf.equations.training.setting import stage_layers
from xlperf.equations.training.step import dualpipe_bubble_time, pipeline_bubble_time, zero_bubble_time

DENSE = {
    "model": "Meta-Llama-3.1-70B",
    "accelerator": "H100-SXM-80GB",
    "num_accelerators": 64,
    "tensor_parallel": 4,
    "pipeline_parallel": 8,
    "data_parallel": 2,
    "sequence_length": 4096,
    "cross_entropy": "fused",
}
passes = st.floats(0.1, 10.0)
stages = st.integers(2, 64)


@given(passes, passes, passes, stages)
def test_qi_2023_table_1_bubbles(forward: float, backward: float, weights: float, count: int) -> None:
    """arXiv:2401.10241: 1F1B (p - 1)(F + B + W), ZB-H1 (p - 1)(F + B - W), B the gradient of the inputs."""
    weights = min(weights, forward + backward)
    plain = pipeline_bubble_time(forward + backward + weights, count, 1.0)
    assert plain == pytest.approx((count - 1) * (forward + backward + weights))
    filled = zero_bubble_time(forward, backward, weights, count)
    assert filled == pytest.approx((count - 1) * (forward + backward - weights), abs=1e-9)
    assert filled <= plain


@given(passes, passes, stages)
def test_qi_2023_equal_passes_idle_a_third(each: float, other: float, count: int) -> None:
    """arXiv:2401.10241, section 2.3: with F = B = W, ZB-H1 has a third of the bubble of 1F1B."""
    third = zero_bubble_time(each, each, each, count) / pipeline_bubble_time(3.0 * each, count, 1.0)
    assert third == pytest.approx(1 / 3)
    assert zero_bubble_time(each, other, each + other + 1.0, count) == 0.0


@given(passes, passes, st.integers(1, 32))
def test_deepseek_v3_table_2_bubbles(forward: float, weights: float, half: int) -> None:
    """arXiv:2412.19437, B the whole backward pass: ZB1P (p - 1)(F + B - 2 W), DualPipe (p / 2 - 1)(F&B + B - 3 W)."""
    count, whole = 2 * half, 2.0 * weights
    zb1p = zero_bubble_time(forward, whole - weights, weights, count)
    assert zb1p == pytest.approx(max((count - 1) * (forward + whole - 2 * weights), 0.0))
    both = dualpipe_bubble_time(forward + whole, whole, weights, count)
    assert both == pytest.approx(max((half - 1) * (forward + 2 * whole - 3 * weights), 0.0), abs=1e-9)


def test_deepseek_v3_table_2_parameters_and_activations(catalog: Catalog) -> None:
    """Parameters 1x, 1x, 2x; activations p, p, p + 1."""
    plans = [
        {**DENSE, "global_batch_size": 64, "pipeline_schedule": way} for way in ("1f1b", "zero-bubble", "dualpipe")
    ]
    result = results(catalog, *plans)
    assert result["memory_layer_activations"] / result["memory_layer_activations"][0] == pytest.approx([1, 1, 9 / 8])
    assert result["memory_weights"][1] == result["memory_weights"][0]
    assert result["memory_weights"][2] == pytest.approx(2 * result["memory_weights"][0])


def test_narayanan_2021_interleaving_and_gpipe(catalog: Catalog) -> None:
    """arXiv:2104.04473, 2.2: GPipe keeps all micro-batches, 1F1B p of them; v chunks divide the bubble by v."""
    assert in_flight_micro_batches(64, 8, 1) == 8
    assert in_flight_micro_batches(64, 8, 1, 1.0) == 64
    assert in_flight_micro_batches(4, 8, 1) == 4
    ways = [{"pipeline_schedule": "1f1b"}, {"pipeline_schedule": "gpipe"},
            {"pipeline_schedule": "interleaved", "virtual_pipeline": 5}]  # fmt: skip
    result = results(catalog, *({**DENSE, "global_batch_size": 128, **way} for way in ways))
    kept, idle = result["memory_layer_activations"], result["time_pipeline_bubble"]
    assert kept[1] == pytest.approx(kept[0] * 64 / 8)
    assert idle[1] == idle[0]
    assert kept[2] == pytest.approx(kept[0] * (1 + 7 / 40), rel=1e-9)
    assert idle[0] / 5 <= idle[2] < idle[0] / 4


@given(st.integers(1, 200), stages)
def test_stages_hold_all_layers_and_ends_no_more_than_the_middle(layers: int, count: int) -> None:
    first, full, last = stage_layers(layers, count)
    assert first <= full and last <= full
    assert first + last + (count - 2) * full >= layers
    assert full * count - layers < count


def test_llama_3_has_one_layer_fewer_at_both_ends() -> None:
    """arXiv:2407.21783, 3.3.2: 126 layers on 16 stages."""
    assert stage_layers(126, 16) == (7, 8, 7)


@given(st.integers(1, 500), stages, st.integers(1, 8), st.integers(0, 1))
def test_micro_batches_in_flight_are_never_more_than_there_are(
    batches: int, count: int, chunks: int, gpipe: int
) -> None:
    held = in_flight_micro_batches(batches, count, chunks, gpipe)
    assert 0 < held <= batches
    assert held <= in_flight_micro_batches(batches + 1, count, chunks, gpipe)
    assert held >= in_flight_micro_batches(batches, count, 1, 0) or gpipe


@pytest.mark.parametrize("way", ["1f1b", "gpipe", "interleaved", "zero-bubble", "dualpipe"])
def test_more_micro_batches_idle_a_smaller_share(catalog: Catalog, way: str) -> None:
    chunks = {"virtual_pipeline": 5} if way == "interleaved" else {}
    plans = [
        {**DENSE, **chunks, "pipeline_schedule": way, "global_batch_size": 2 * count} for count in (16, 32, 64, 1024)
    ]
    result = results(catalog, *plans)
    share = result["time_pipeline_bubble"] / result["step_time"]
    assert (share >= 0).all() and (np.diff(share) < 0).all()
    assert share[-1] < 0.01
    np.testing.assert_allclose(result["time_pipeline_bubble"], result["time_pipeline_bubble"][0], rtol=1e-12)


def test_more_stages_idle_longer_and_one_stage_never(catalog: Catalog) -> None:
    plans = [
        {
            **DENSE,
            "num_accelerators": 4 * count,
            "data_parallel": 1,
            "pipeline_parallel": count,
            "global_batch_size": 64,
        }
        for count in (1, 2, 4, 8, 16)
    ]
    result = results(catalog, *plans)
    share = result["time_pipeline_bubble"] / result["step_time"]
    assert share[0] == 0.0 and (np.diff(share) > 0).all()


def test_uneven_ends_shift_layers_memory_and_time(catalog: Catalog) -> None:
    """80 layers on 8 stages: 10 each; 7 and 7 at the ends leave 11 for each of the others."""
    base = {**DENSE, "data_parallel": 1, "num_accelerators": 32, "global_batch_size": 64}
    result = results(
        catalog,
        base,
        {**base, "first_stage_layers": 10, "last_stage_layers": 10},
        {**base, "first_stage_layers": 7, "last_stage_layers": 7},
        {**base, "first_stage_layers": 22, "last_stage_layers": 10},
        {**base, "last_stage_layers": 3},
    )
    time = result["time_forward"] + result["time_backward"]
    assert time[0] == time[1]
    assert time[2] < time[3] and time[0] < time[3]
    assert result["memory_layer_activations"][3] == pytest.approx(2.2 * result["memory_layer_activations"][0])
    assert result["memory_layer_activations"][2] == pytest.approx(
        11 / 10 * 7 / 8 * result["memory_layer_activations"][0]
    )
    assert (result["reason"] == result["reason"][0]).sum() >= 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"first_stage_layers": 76}, "first and last stage take 76 of 80 layers: what is left does not give each chunk "
         "of 7 stages in between a layer"),
        ({"first_stage_layers": 40, "last_stage_layers": 40}, "first and last stage take 80 of 80 layers: what is left "
         "does not give each chunk of 6 stages in between a layer"),
        ({"first_stage_layers": 40, "pipeline_parallel": 1}, "layers of the first or last stage need pipeline parallel "
         "of 2 or more"),
    ],
)  # fmt: skip
def test_ends_that_cannot_be_are_said(catalog: Catalog, change: dict[str, object], reason: str) -> None:
    plan = {**DENSE, "data_parallel": None, **change}
    assert results(catalog, plan)["reason"][0] == reason


def test_stages_in_between_need_not_divide_what_the_ends_leave(catalog: Catalog) -> None:
    """71 layers on 7 stages: the fullest has 11, as where 77 are left for them; fewer never take longer."""
    base = {**DENSE, "data_parallel": 1, "num_accelerators": 32, "global_batch_size": 64}
    result = results(catalog, *({**base, "first_stage_layers": count} for count in (3, 9, 10)))
    time = result["time_forward"] + result["time_backward"]
    assert time[0] == time[1] > time[2]
    assert result["memory_middle_stage"][0] == result["memory_middle_stage"][1]


def test_uneven_rows_are_the_same_together_and_alone(catalog: Catalog) -> None:
    plans = [DENSE, {**DENSE, "first_stage_layers": 10}, {**DENSE, "first_stage_layers": 7, "last_stage_layers": 7}]
    many = results(catalog, *plans)
    for row, plan in enumerate(plans):
        for name, values in results(catalog, plan).items():
            assert repr(values[0]) == repr(many[name][row]), (name, row)


@given(st.floats(0.0, 1.0), passes, passes, st.integers(1, 64), stages, st.integers(1, 8))
def test_overlapped_transfers_hide_behind_a_chunk_of_the_other_direction(
    each: float, forward: float, backward: float, rounds: int, count: int, chunks: int
) -> None:
    """Megatron-LM schedules.py: sends of the steady state run beside the other pass; warm-up and cool-down wait."""
    batches = rounds * count
    batched = exposed_transfer_time(each, forward, backward, batches, count, chunks, 0.0)
    assert batched == pytest.approx(2.0 * batches * chunks * each)
    hidden = exposed_transfer_time(each, forward, backward, batches, count, chunks, 1.0)
    ends = 2.0 * min((chunks - 1) * count, batches * chunks) * each
    assert ends <= hidden * (1 + 1e-12) and hidden <= batched * (1 + 1e-12)
    if each <= min(forward, backward) / chunks:
        assert hidden == pytest.approx(ends)
    assert exposed_transfer_time(each, forward, backward, batches, 1, chunks, 1.0) == 0.0
    slower = exposed_transfer_time(1.5 * each, forward, backward, batches, count, chunks, 1.0)
    assert hidden <= slower
    faster = exposed_transfer_time(each, forward / 2, backward / 2, batches, count, chunks, 1.0)
    assert hidden <= faster <= hidden + batches * (forward + backward) / 2 + 1e-9


def test_interleaving_of_gpt_175b_gains_4_to_10_percent(catalog: Catalog) -> None:
    """arXiv:2104.04473, 5.3.2: interleaving gains up to 10 % on 175B; chunks that differ in size keep stages even."""
    plan = {"model": "GPT3-175B", "accelerator": "H100-SXM-80GB", "num_accelerators": 64, "tensor_parallel": 8}
    plan |= {"pipeline_parallel": 8, "global_batch_size": 64, "sequence_length": 2048}
    result = results(catalog, *({**plan, "virtual_pipeline": count} for count in (1, 2, 3, 5, 6, 10, 12)))
    gains = result["step_time"][0] / result["step_time"][1:]
    assert np.all(np.diff(gains) > 0) and gains[0] > 1.04 and gains[-1] < 1.11
    assert np.all(result["time_forward"] == result["time_forward"][0])


def test_transfers_are_waited_for_where_the_stack_does_not_overlap(catalog: Catalog) -> None:
    plan = {**DENSE, "global_batch_size": 128, "virtual_pipeline": 5}
    ways = [plan, {**plan, "pipeline_overlap": "no"}, {**plan, "virtual_pipeline": 1}]
    ways.append({**ways[2], "pipeline_overlap": "no"})
    hidden, batched, plain, same = results(catalog, *ways)["time_pipeline_communication"]
    assert batched == pytest.approx(5 * plain) and same == plain
    assert hidden == pytest.approx(plain * (4 * 8) / 64)  # warm-up and cool-down


def test_the_host_waits_for_each_transfer_that_is_not_overlapped(catalog: Catalog) -> None:
    """Two transfers of each chunk and micro-batch, and those of the bubble; none where transfers are overlapped."""
    wait, batches, stages, chunks = 1e-3, 64, 8, 5

    def waiting(time: float) -> Catalog:
        key = ("training_software", "any", "any", "any", "transfer_wait_time")
        row = FittedConstant(*key, time, "", 0, np.nan, "", "")
        return catalog.with_tables([joined_tables(catalog.tables["calibration"], calibration_table([row]))])

    plan = {**DENSE, "global_batch_size": 128, "virtual_pipeline": chunks}
    ways = [plan, {**plan, "pipeline_overlap": "no"}]
    hidden, waited = results(waiting(wait), *ways)["step_time"] - results(waiting(0.0), *ways)["step_time"]
    assert hidden == 0.0
    assert waited == pytest.approx(2 * chunks * wait * (batches + (stages - 1) / chunks))
