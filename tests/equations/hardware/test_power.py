"""Power of accelerators: from what they do, never above their limit, against measured servers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xlperf.base.errors import InputError
from xlperf.base.resources import workbook
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.catalog_arrays import catalog_arrays
from xlperf.measurements.comparison import AT_MEASURED_RATE, JOULES, WATTS, Record, power_records
from xlperf.measurements.published import read_power

# ML.ENERGY Leaderboard v3.0 (github.com/ml-energy/leaderboard@0cd52da, lm-arena-chat, vLLM 0.11.1): W of an H100.
MEASURED = [
    ("Meta-Llama-3.1-70B", "bf16", 4, 8, 350, 441.4),
    ("Meta-Llama-3.1-70B", "bf16", 4, 64, 352, 500.4),
    ("Meta-Llama-3.1-70B", "bf16", 4, 192, 357, 573.3),
    ("Meta-Llama-3.1-70B", "bf16", 4, 383, 364, 585.9),
    ("Meta-Llama-3.1-70B", "bf16", 4, 898, 351, 636.9),
    ("Meta-Llama-3.1-8B", "bf16", 1, 8, 389, 486.4),
    ("Meta-Llama-3.1-8B", "bf16", 1, 32, 390, 559.7),
    ("Meta-Llama-3.1-405B", "fp8", 8, 8, 366, 407.6),
    ("Meta-Llama-3.1-405B", "fp8", 8, 96, 368, 559.3),
    ("Meta-Llama-3.1-405B", "fp8", 8, 255, 367, 609.4),
]
BASE = {"model": "Meta-Llama-3.1-70B", "accelerator": "H100-SXM-80GB", "num_accelerators": 8, "tensor_parallel": 8,
        "prompt_length": 512, "output_length": 256, "software": "vllm"}  # fmt: skip
TRAINING = {"model": "Meta-Llama-3.1-70B", "accelerator": "H100-SXM-80GB", "num_accelerators": 64, "recompute": "full",
            "tensor_parallel": 8, "pipeline_parallel": 4, "global_batch_size": 128}  # fmt: skip


def results(catalog: Catalog, rows: list[dict[str, Any]], kind: str = "inference") -> Table:
    header = list(dict.fromkeys(name for row in rows for name in row))
    return evaluate(table_from_rows(kind, header, [[row.get(name, "") for name in header] for row in rows]), catalog)


def power(catalog: Catalog, rows: list[dict[str, Any]], kind: str = "inference") -> np.ndarray:
    return results(catalog, rows, kind).number("accelerator_power")


def test_measured_power_by_batch(catalog: Catalog) -> None:
    rows = [
        {**BASE, "model": model, "precision": precision, "num_accelerators": ranks, "tensor_parallel": ranks,
         "mode": "continuous", "concurrency": batch, "prompt_length": 300, "output_length": output,
         "sorted_sampling": "yes"}
        for model, precision, ranks, batch, output, _ in MEASURED
    ]  # fmt: skip
    error = np.abs(power(catalog, rows) / [row[-1] for row in MEASURED] - 1.0)
    assert np.median(error) < 0.10
    assert error.max() < 0.25


@pytest.fixture(scope="module")
def records(catalog: Catalog) -> list[Record]:
    return [record for rows in read_power(workbook("validation.xlsx")) for record in power_records(rows, catalog)]


def errors(records: list[Record], quantity: str, **wanted: str) -> np.ndarray:
    """Signed errors of predicted rows that no constant was fitted on."""
    chosen = [
        one.predicted / one.measured - 1.0
        for one in records
        if one.covered and one.group == "not fitted" and one.quantity == quantity
        and all(getattr(one, name).startswith(start) for name, start in wanted.items())
    ]  # fmt: skip
    return np.array(chosen)


def test_watts_of_runs_that_were_not_fitted_at_their_rates(records: list[Record]) -> None:
    """Two generations of vLLM, A100, H100 and B200, dense models, mixtures and weights in 4 bits."""
    result = errors(records, AT_MEASURED_RATE)
    assert len(result) >= 50
    assert np.median(np.abs(result)) < 0.08
    assert np.quantile(np.abs(result), 0.9) < 0.26
    assert np.median(np.abs(errors(records, "power"))) < 0.10
    assert np.median(np.abs(errors(records, "energy per token"))) < 0.15
    for source in ("mlenergy_v2", "mlenergy_v3"):
        assert abs(np.median(errors(records, AT_MEASURED_RATE, source_id=source))) < 0.05


def test_weights_in_four_bits_draw_for_what_they_are_widened_to(records: list[Record]) -> None:
    """gpt-oss: 16-bit products on H100, FP8 activations on B200; nothing was fitted on weights in 4 bits."""
    for accelerator in ("H100", "B200"):
        result = errors(records, AT_MEASURED_RATE, source_id="mlenergy_v3", accelerator=accelerator)
        assert len(result) == 12
        assert abs(np.median(result)) < 0.10, accelerator


def test_one_process_tells_every_rank_what_to_compute(records: list[Record]) -> None:
    """vLLM 0.5 on 4 to 16 H100: the time for each further rank is from runs on A100."""
    result = errors(records, "energy per token", source_id="mlenergy_v2", accelerator="H100")
    assert len(result) == 20
    assert np.median(np.abs(result)) < 0.10 and np.abs(result).max() < 0.20


def test_a_machine_with_a_model_and_nothing_to_do_draws_what_was_measured(catalog: Catalog) -> None:
    """A measured number where there is one, else a tenth of the limit; at full load both are the same."""
    table = catalog.tables["accelerators"]
    blank = {**table.columns, "idle_power": np.full(len(table), np.nan)}
    unknown = catalog.with_tables([Table("accelerators", blank, table.place)])
    names = ("A100-SXM4-80GB", "H100-SXM-80GB", "B200-SXM-180GB", "MI300X", "MI355X", "L40S")
    idle = [{**BASE, "model": "Llama-3.2-1B", "accelerator": name, "num_accelerators": 1, "tensor_parallel": 1,
             "mode": "continuous", "request_rate": 1e-6} for name in names]  # fmt: skip
    stated = dict(zip(table.text("accelerator"), table.number("idle_power"), strict=True))
    limits = dict(zip(table.text("accelerator"), table.number("thermal_design_power"), strict=True))
    assert power(catalog, idle) == pytest.approx([stated[name] for name in names], rel=0.01)
    assert power(unknown, idle) == pytest.approx([0.1 * limits[name] for name in names], rel=0.01)
    full = [{**row, "request_rate": "", "concurrency": 64} for row in idle if row["accelerator"] != "L40S"]
    np.testing.assert_allclose(power(catalog, full), power(unknown, full), rtol=1e-12)


def test_what_is_more_than_the_accelerators_is_not_compared(records: list[Record]) -> None:
    refused = [one for one in records if not one.covered]
    assert refused and all(one.reason for one in refused)
    assert any("more than the accelerators" in one.reason for one in refused)


def test_decoding_draws_less_than_a_prefill_and_training(catalog: Catalog) -> None:
    decode, prefill = power(catalog, [{**BASE, "batch_size": 1}, {**BASE, "batch_size": 8, "output_length": 1}])
    training = power(catalog, [TRAINING], "training")[0]
    assert 70.0 < decode < 0.75 * min(training, prefill)
    assert max(training, prefill) <= 700.0
    assert training > 0.75 * 700.0


@pytest.mark.parametrize("mode", ["continuous", "disaggregated"])
def test_power_rises_with_the_load_from_idle(catalog: Catalog, mode: str) -> None:
    rates = (1e-6, 0.01, 0.1, 0.5, 1.0, 2.0)
    pools = {"num_accelerators": 16} if mode == "disaggregated" else {}
    result = power(catalog, [{**BASE, **pools, "mode": mode, "request_rate": rate} for rate in rates])
    assert result[0] == pytest.approx(116.0, rel=0.01)  # the sheet: H100 with a model in memory
    assert (np.diff(result) >= -0.01 * result[:-1]).all()  # messages take a larger share of longer steps


def test_power_is_between_idle_and_the_limit(catalog: Catalog) -> None:
    accelerators = catalog.tables["accelerators"]
    limits = dict(zip(accelerators.text("accelerator"), accelerators.number("thermal_design_power"), strict=True))
    names = [name for name, limit in limits.items() if limit == limit]
    batches = (1, 16, 256)
    rows = [{**BASE, "accelerator": name, "batch_size": batch} for name in names for batch in batches]
    limit = np.array([limits[row["accelerator"]] for row in rows])
    for kind, plans in (
        ("inference", rows),
        ("training", [{**TRAINING, "accelerator": row["accelerator"], "micro_batch_size": 1} for row in rows]),
    ):
        result = power(catalog, plans, kind)
        known = ~np.isnan(result)
        assert known.sum() > 20
        assert (result[known] >= 0.1 * limit[known]).all()
        assert (result[known] <= limit[known]).all()


def test_energy_of_a_token_is_power_over_rate(catalog: Catalog) -> None:
    for kind, row in (("inference", {**BASE, "batch_size": 4}), ("training", TRAINING)):
        result = results(catalog, [row], kind)
        count, rate = row["num_accelerators"], result.number("tokens_per_second")
        energy = result.number("accelerator_energy_per_token")
        assert energy == pytest.approx(result.number("accelerator_power") * count / rate)
        assert energy[0] < result.number("energy_per_token")[0]


def hourly(catalog: Catalog, words: str) -> Catalog:
    """A catalog whose prices have a carbon by hour."""
    prices = catalog.tables["prices"]
    column = np.full(len(prices), words, dtype=object)
    return catalog.with_tables([Table("prices", {**prices.columns, "carbon_by_hour": column}, prices.place)])


SUNNY = " ".join(["1.4"] * 8 + ["0.2"] * 8 + ["1.4"] * 8)
"""Solar power from 8 to 16 o'clock."""


def test_carbon_of_a_run_is_that_of_its_hours(catalog: Catalog) -> None:
    row = {**TRAINING, "num_accelerators": 64, "training_tokens": 0.001}
    rows = [row, *({**row, "start_hour": hour} for hour in (8, 16, 0, 24))]
    flat, sunny = (results(each, rows, "training").number("run_carbon") for each in (catalog, hourly(catalog, SUNNY)))
    hours = results(catalog, rows, "training").number("run_time")[0] / 3600.0
    assert np.ptp(flat) == 0.0 and sunny[0] == flat[0] and 1.0 < hours < 8.0
    assert sunny[1:] / flat[0] == pytest.approx([0.2, 1.4, 1.4, 1.4])
    long = [{**row, "training_tokens": 5.0, "start_hour": hour} for hour in (8, 16)]
    met = results(hourly(catalog, SUNNY), long, "training").number("run_carbon")
    assert met[0] == pytest.approx(met[1], rel=0.01), "weeks meet the mean of the day"


def test_carbon_of_tokens_is_weighted_by_the_load_of_the_hours(catalog: Catalog) -> None:
    load = " ".join(["0.5"] * 8 + ["2"] * 8 + ["0.5"] * 8)
    rows = [{**BASE, "batch_size": 8}, {**BASE, "batch_size": 8, "load_by_hour": load}]
    flat, sunny = (
        results(each, rows).number("carbon_per_million_tokens") for each in (catalog, hourly(catalog, SUNNY))
    )
    assert flat[0] == flat[1] == sunny[0]
    assert sunny[1] / flat[0] == pytest.approx((16 * 0.5 * 1.4 + 8 * 2 * 0.2) / 24)


@pytest.mark.parametrize("words", ["1 2 3", "1 " * 23 + "much", "0 " * 24, "-1 " + "1 " * 23])
def test_a_day_has_twenty_four_numbers(catalog: Catalog, words: str) -> None:
    with pytest.raises(InputError, match="load by hour must be 24 numbers of 0 or more"):
        results(hourly(catalog, SUNNY), [{**BASE, "load_by_hour": words}])


def test_pools_of_two_kinds_draw_each_its_own(catalog: Catalog) -> None:
    """Every pool by itself: a prefill pool of B200 draws more than one of H100."""
    row = {**BASE, "num_accelerators": 16, "mode": "disaggregated", "concurrency": 32}
    same, mixed = power(catalog, [row, {**row, "prefill_accelerator": "B200-SXM-180GB"}])
    assert mixed > same + 0.05 * (1000.0 - 700.0)  # the same prompts: what is idle is larger


def test_energy_from_the_grid_follows_the_work(catalog: Catalog) -> None:
    """Not the nameplate: a batch of one draws less than prompts, and its rest of the server is at full load."""
    result = results(catalog, [{**BASE, "batch_size": 1}, {**BASE, "batch_size": 8, "output_length": 1}])
    grid, own = result.number("grid_power") / 8.0, result.number("accelerator_power")
    assert grid[0] < 0.9 * grid[1]
    np.testing.assert_allclose(grid[1] - grid[0], 1.25 * (own[1] - own[0]))
    np.testing.assert_allclose(result.number("energy_per_token") * result.number("tokens_per_second"), 8.0 * grid)


@pytest.mark.parametrize("kind", ["inference", "training"])
def test_a_lower_power_limit_slows_and_saves(catalog: Catalog, kind: str) -> None:
    """700, 500 and 350 W of an H100: slower, never above the limit, fewer joules where the clock alone is lower."""
    row = {**BASE, "batch_size": 64} if kind == "inference" else TRAINING
    result = results(catalog, [{**row, "power_limit": limit} for limit in ("", 700, 500, 350)], kind)
    rate, power = result.number("tokens_per_second"), result.number("accelerator_power")
    assert rate[0] == rate[1] > rate[2] > rate[3]
    assert (power <= np.array([700.0, 700.0, 500.0, 350.0])).all()
    assert result.number("accelerator_energy_per_token")[2] < result.number("accelerator_energy_per_token")[0]
    assert "power limit 500 W" in str(result["reason"][2])
    assert "power limit" not in str(result["reason"][1])


def test_a_server_draws_the_same_by_its_price_and_by_its_row(catalog: Catalog) -> None:
    """Power with the share of the server: sheet prices and sheet servers, so that watts of two machines compare."""
    prices, servers = catalog.tables["prices"], catalog.tables["servers"]
    by_price = dict(zip(prices.text("price"), prices.number("server_power"), strict=True))
    each = servers.number("server_power") / servers.filled("num_accelerators")
    for name, watts in zip(servers.text("accelerator").tolist(), each.tolist(), strict=True):
        assert by_price[name] == pytest.approx(watts, rel=0.01), name


def test_every_pool_says_what_a_limit_does_to_it(catalog: Catalog) -> None:
    row = {**BASE, "num_accelerators": 16, "mode": "disaggregated", "concurrency": 32, "power_limit": 500}
    pools = [row, {**row, "prefill_accelerator": "B200-SXM-180GB"}, {**row, "power_limit": ""}]
    same, mixed, none = (str(words) for words in results(catalog, pools)["reason"])
    assert same.count("power limit 500 W") == 1 and "prefill pool" not in same
    assert "power limit 500 W: the clock of long products falls to 88 % of that at 700 W" in mixed
    assert "prefill pool: power limit 500 W: the clock" in mixed and "of that at 1000 W" in mixed
    assert "power limit" not in none
    experts = {**BASE, "model": "DeepSeek-V3", "accelerator": "H200-SXM-141GB", "num_accelerators": 48,
               "precision": "fp8", "mode": "disaggregated", "concurrency": 64, "prefill_accelerators": 16,
               "expert_accelerators": 16, "expert_accelerator": "MI300X", "expert_parallel": 8,
               "power_limit": 450}  # fmt: skip
    said = str(results(catalog, [experts])["reason"][0])
    assert "expert pool: power limit 450 W" in said and "of that at 750 W" in said


def test_the_node_of_a_chip_is_in_its_joules(catalog: Catalog) -> None:
    """The same accelerator on a node of a third of the energy draws less for the same work."""
    table = catalog.tables["accelerators"]
    row = table.text("accelerator").tolist().index("H100-SXM-80GB")
    energy = table.number("flop_energy").copy()
    energy[row] = 0.392e-12 / 3.0
    other = catalog.with_tables([Table("accelerators", {**table.columns, "flop_energy": energy}, table.place)])
    plan = {**BASE, "batch_size": 128}
    assert power(other, [plan])[0] < 0.95 * power(catalog, [plan])[0]


def test_leakage_makes_a_derived_device_slower_and_thirstier(catalog: Catalog) -> None:
    nodes, row = catalog.tables["technology"], {**BASE, "accelerator": "3 nm HBM4 (derived)", "batch_size": 16}
    times, energies = [], []
    for share in (1.0, 2.0, 4.0):
        leaky = {**nodes.columns, "static_power": share * nodes.number("static_power")}
        result = results(catalog.with_tables([Table("technology", leaky, nodes.place)]), [row])
        times.append(float(result.number("ttft")[0]))
        energies.append(float(result.number("energy_per_token")[0]))
    assert times == sorted(times) and times[0] < times[-1]
    assert energies == sorted(energies) and energies[0] < energies[-1]


@pytest.mark.parametrize("kind", ["training", "inference"])
def test_a_larger_cache_saves_joules_before_it_saves_time(catalog: Catalog, kind: str) -> None:
    """Training and prefills read less from the memory; a decode step nothing once the cache holds the model."""
    small = {**BASE, "model": "Llama-3.2-1B", "batch_size": 4, "output_length": 128}
    rows = [TRAINING] if kind == "training" else [{**BASE, "batch_size": 8, "output_length": 1}, small]
    energy, time = [], []
    for factor in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 32.0):
        table = catalog.tables["accelerators"]
        columns = {**table.columns, "l2_capacity": factor * table.number("l2_capacity")}
        result = results(catalog.with_tables([Table("accelerators", columns, table.place)]), rows, kind)
        energy.append(result.number("energy_per_token"))
        time.append(result.number("step_time" if kind == "training" else "latency"))
    for values in (np.array(energy), np.array(time)):
        assert (values[1:] <= values[:-1] * (1.0 + 1e-9)).all()
    assert (energy[-1] < 0.999 * energy[2]).all(), (energy, time)
    if kind == "inference":
        assert time[-1][1] < 0.99 * time[2][1], "weights and keys of the small model stay in the cache"


def test_hidden_messages_draw_power_too(catalog: Catalog) -> None:
    """Gradients that pass beside the backward pass: all their time is the sum of what is seen and what is not."""
    row = {**TRAINING, "pipeline_parallel": 1, "num_accelerators": 64, "recompute": "none", "zero_stage": 3}
    result = results(catalog, [row, {**row, "num_accelerators": 8}], "training")
    hidden = result.number("hidden_communication_time")
    assert hidden[0] > 0.02 * result.number("step_time")[0]
    assert hidden[1] == 0.0  # one replica


def test_sorting_the_logits_takes_time_and_energy(catalog: Catalog) -> None:
    """400 B per entry of the vocabulary and request: a step of a small model feels it, nothing else changes."""
    row = {**BASE, "model": "Meta-Llama-3.1-8B", "num_accelerators": 1, "tensor_parallel": 1, "batch_size": 256}
    result = results(catalog, [{**row, "sorted_sampling": flag} for flag in ("no", "yes")])
    step, time, energy = (result.number(name) for name in ("tpot", "time_vector", "accelerator_energy_per_token"))
    assert step[1] - step[0] == pytest.approx(time[1] - time[0])
    assert step[1] - step[0] == pytest.approx(256 * 128256 * 392.0 / 3.35e12, rel=0.3)
    assert energy[1] > energy[0]
    assert (result.number("ttft")[1] - result.number("ttft")[0]) < 0.01 * result.number("latency")[0]


def test_more_rows_share_the_way_of_a_weight(catalog: Catalog) -> None:
    """Joules of a token fall with the batch, watts rise; where one accelerator waits for no other."""
    row = {**BASE, "model": "Meta-Llama-3.1-8B", "num_accelerators": 1, "tensor_parallel": 1}
    result = results(catalog, [{**row, "batch_size": batch} for batch in (1, 4, 16, 64)])
    assert (np.diff(result.number("accelerator_energy_per_token")) < 0.0).all()
    assert (np.diff(result.number("decode_power")) > 0.0).all()


def test_rows_of_power_are_for_validation_alone(catalog: Catalog, command: Callable[..., Any], tmp_path: Path) -> None:
    header = "row_id,source_id,kind,model,gpu,n_gpus,tp,framework,precision,batch,isl,osl,tokens_per_s,"
    row = "a,mine,inference,Meta-Llama-3.1-8B,H100-SXM-80GB,1,1,vLLM 0.11,bf16,32,300,400,3400,560,0.165,gpu_only"
    path = tmp_path / "power.csv"
    path.write_text(f"{header}avg_power_w_per_gpu,energy_j_per_output_token,scope\n{row}\n", encoding="utf-8")
    done = command("validate", path, "-o", "-")
    lines = [line.split(",") for line in done.out.splitlines()[1:]]
    assert [line[4] for line in lines] == [f"{WATTS} (measured rate)", WATTS, JOULES]
    assert all(float(line[7]) < 0.25 for line in lines)
    refused = command("validate", "--choice", path)
    assert refused.code == 2 and "measured power" in refused.err


def test_a_clock_slows_work_by_no_more_than_itself(catalog: Catalog) -> None:
    """Whatever the machine, also one whose row states its leakage: work at x % of the clock takes 1 / x % at most."""
    sheet = catalog.tables["accelerators"]
    limits = dict(zip(sheet["accelerator"].tolist(), evaluated_limits(catalog), strict=True))
    plan = {**TRAINING, "tensor_parallel": 1, "pipeline_parallel": 1, "precision": "fp16"}
    machines = [name for name, limit in limits.items() if limit > 0.0 and "TPU" not in name]
    rows = [
        {**plan, "accelerator": name, "power_limit": "" if share == 1.0 else share * limits[name]}
        for name in machines
        for share in (1.0, 0.7, 0.5, 0.4, 0.3)
    ]
    result = results(catalog, rows, "training")
    forward = result["time_forward"].reshape(len(machines), -1)
    named = [re.search(r"clock of long products falls to (\d+) %", reason) for reason in result["reason"].tolist()]
    clock = np.array([1.0 if one is None else float(one[1]) / 100.0 for one in named]).reshape(forward.shape)
    known = ~np.isnan(forward[:, 0])
    assert known.sum() > 25
    assert (forward[known] * (clock[known] - 0.006) <= forward[known, :1]).all()
    assert (np.diff(forward[known], axis=1) >= 0.0).all()


def evaluated_limits(catalog: Catalog) -> np.ndarray:
    """Power limits of accelerators, of derived ones too. [W]"""
    return catalog_arrays(catalog, np.arange(len(catalog.tables["accelerators"]))).thermal_design_power
