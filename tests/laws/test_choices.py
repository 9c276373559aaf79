"""What a choice may cost, and what a bound means, over random legal plans."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from laws.random_plans import Row, legal_rows, table_of
from laws.samples import changed
from work import examples

from xlperf.catalog.calibration import documented_rows
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table, stacked
from xlperf.engine import evaluate, explain
from xlperf.engine.catalog_arrays import DEVICE_COLUMNS, catalog_arrays
from xlperf.equations.hardware.gemm import FEW_ROWS
from xlperf.equations.hardware.power import REFERENCE_ENERGY

pytestmark = pytest.mark.slow

CLOSE = 1e-9
MESSAGES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point", "engine_all_reduce")
STARTS = ("launch_time", "outer_time")
UNITS = (*(f"peak_flop_rate_{name}" for name in ("fp32", "tf32", "bf16", "fp8", "int8", "fp4")),
         "thermal_design_power", "static_power")  # fmt: skip
MEMORY = ("memory_bandwidth", "l2_bandwidth", "l2_bytes_per_clock")


@pytest.fixture(scope="module")
def trained() -> list[Row]:
    return legal_rows("training", examples(200), seed=5)


def faster(catalog: Catalog, columns: tuple[str, ...]) -> Catalog:
    """Accelerators with twice the value in some columns; an operation takes the energy that it took at any clock."""
    table = catalog.tables["accelerators"]
    arrays = catalog_arrays(catalog, np.arange(len(table)))
    ratio = arrays.device[DEVICE_COLUMNS.index("energy_ratio")]
    better = {
        name: 2.0 * (table.filled(name) if name == "l2_bytes_per_clock" else table.number(name)) for name in columns
    }
    return catalog.with_tables([
        replace(table, columns={**table.columns, **better, "flop_energy": REFERENCE_ENERGY * ratio})
    ])  # fmt: skip


def with_units(catalog: Catalog) -> Catalog:
    """Accelerators of twice the compute at the same energy of an operation: their nodes reach twice the clock at the
    voltage of today (else twice the clock takes four times the energy, and the power limit slows products).
    """
    nodes = catalog.tables["technology"]
    clock = {"nominal_clock_rate": 2.0 * nodes.number("nominal_clock_rate")}
    return faster(catalog, UNITS).with_tables([replace(nodes, columns={**nodes.columns, **clock})])


def with_links(catalog: Catalog) -> Catalog:
    """Networks of twice the bandwidth and half the latency, whose messages start in half the time.

    So does the shortest time of an all-reduce between machines, in which hosts post its messages and ranks come late.
    """
    result = faster(catalog, ("link_bandwidth",))
    table = catalog.tables["networks"]
    links = {"link_bandwidth": 2.0 * table["link_bandwidth"], "latency": 0.5 * table["latency"]}
    constants = catalog.tables["calibration"]
    starts = np.isin(constants["constant"], STARTS) & np.isin(constants["family"], MESSAGES)
    values = {"value": np.where(starts, 0.5, 1.0) * constants["value"]}
    return result.with_tables([
        replace(table, columns={**table.columns, **links}),
        stacked([replace(constants, columns={**constants.columns, **values}), documented_starts(constants)]),
    ])  # fmt: skip


def documented_starts(constants: Table) -> Table:
    """Rows of a sheet that replace documented times in which messages start by half of each."""
    rows = [
        {"family": family, "constant": name, "generation": key[0], "precision": key[1], "software": key[2],
         "value": 0.5 * value}
        for (family, name), known in documented_rows().items()
        if family in MESSAGES and name in STARTS
        for key, (_, value) in known.items()
    ]  # fmt: skip
    assert rows
    blank = {name: np.nan if values.dtype != object else "" for name, values in constants.columns.items()}
    columns = {
        name: np.array([row.get(name, blank[name]) for row in rows], dtype=values.dtype)
        for name, values in constants.columns.items()
    }
    return replace(constants, columns=columns)


def memories(catalog: Catalog, rows: list[Row]) -> list[np.ndarray]:
    """Memory of plans at ZeRO stages 0 to 3; NaN where a stage is illegal."""
    return [
        evaluate(
            table_of("training", [{**row, "zero_stage": stage, "zero_group_size": None} for row in rows]), catalog
        )["memory"]
        for stage in range(4)
    ]


def kept_narrow(row: Row) -> bool:
    """Whether quantized weights are all that there is: frozen, or on one or two ranks trained without a master copy."""
    few = row["num_accelerators"] <= 2 * row["tensor_parallel"] * row["pipeline_parallel"]
    trained = few and (row.get("master_weights") == "none" or row["software"] == "torchtune")
    return row.get("quantized_copies") == "primary" and (bool(row.get("adapter_rank")) or trained)


def test_sharding_more_needs_no_more_memory(catalog: Catalog, trained: list[Row]) -> None:
    """Of fewer than 8 layers ZeRO-3 gathers so large a share at a time that it saves nothing: left out. So are weights
    that are kept in FP8 or FP4 alone (primary), frozen or on up to two ranks trained without a master copy (torchtune):
    ZeRO-3 shards 16-bit ones, which few ranks do not make up for.
    """
    layers = dict(zip(catalog.tables["models"]["model"], catalog.tables["models"]["num_layers"], strict=True))
    rows = [
        row for row in trained if row["pipeline_parallel"] == 1 and layers[row["model"]] >= 8 and not kept_narrow(row)
    ]
    assert len(rows) > len(trained) / 5
    result = memories(catalog, rows)
    for before, after in pairwise(result):
        assert not (after > before * (1.0 + CLOSE)).any()


def test_a_pipeline_of_sharded_weights_needs_less_than_one_of_whole_state(catalog: Catalog, trained: list[Row]) -> None:
    """ZeRO-3 keeps gathered weights beside their shards for the whole step: more than what it saves where nothing
    but weights is sharded (adapters, optimizer states on the host) or weights are as wide as the rest (TF32, FP32 with
    narrow moments). So all states are whole and on the accelerators here.
    """
    rows = [
        row
        for row in trained
        if row["pipeline_parallel"] > 1 and not row.get("adapter_rank") and row["precision"] != "tf32"
    ]
    whole = dict.fromkeys(("master_weights", "moment_precision", "offload_optimizer", "offload_target"))
    rows = [{**row, **whole} for row in rows]
    assert len(rows) > len(trained) / 5
    none, optimizer, _, weights = memories(catalog, rows)
    assert not (optimizer > none * (1.0 + CLOSE)).any()
    assert not (weights > none * (1.0 + CLOSE)).any()


def test_flash_attention_is_never_slower_and_needs_no_more_memory(catalog: Catalog, trained: list[Row]) -> None:
    """But where it leaves multiprocessors idle (few heads and short sequences: fewer than three tiles for each), where
    their number is not known, and on H20, whose fused kernels are extrapolated from those of H100 with seven times
    the peak rate. Attention of published runs of PyTorch FSDP took twice the time that was measured alone: compiled,
    beside fast kernels of standard attention, it may be the slower one.
    """
    accelerators, models = catalog.tables["accelerators"], catalog.tables["models"]
    units = dict(zip(accelerators["accelerator"], accelerators.number("num_multiprocessors"), strict=True))
    heads = dict(zip(models["model"], models["num_attention_heads"], strict=True))

    def fills(row: Row) -> bool:
        share = row["tensor_parallel"] * row["context_parallel"]
        tiles = row["micro_batch_size"] * heads[row["model"]] * (row["sequence_length"] or 4096) / 128.0 / share
        return bool(tiles > 3.0 * units[row["accelerator"]]) and row["accelerator"] != "H20-96GB"

    rows = [row for row in trained if fills(row)]
    assert len(rows) > len(trained) / 5
    fused, standard = (
        evaluate(table_of("training", [{**row, "attention": way} for row in rows]), catalog)
        for way in ("flash", "standard")
    )
    others = np.array([row["software"] not in ("torchtitan", "torch-fsdp") for row in rows])
    assert not (others & (fused["step_time"] > standard["step_time"] * (1.0 + CLOSE))).any()
    assert not (fused["memory"] > standard["memory"] * (1.0 + CLOSE)).any()


def test_the_copies_of_dualpipe_share_optimizer_states(catalog: Catalog, trained: list[Row]) -> None:
    rows = [
        {**row, "pipeline_schedule": "dualpipe", "virtual_pipeline": None, "zero_group_size": None, "zero_stage": 1,
         "stage_dealing": None, "first_stage_layers": None, "last_stage_layers": None,
         "global_batch_size": row["global_batch_size"] * 8}
        for row in trained if row["pipeline_parallel"] > 1
    ]  # fmt: skip
    one = [{**row, "pipeline_schedule": "1f1b"} for row in rows]
    both, single = (evaluate(table_of("training", each), catalog) for each in (rows, one))
    legal = ~np.isnan(both["step_time"] + single["step_time"])
    # of like stages alone: an end holds embeddings and modules for several tokens, a stage in between none of them
    ends = [each["memory_middle_stage"] < each["memory"] for each in (both, single)]
    legal &= ends[0] == ends[1]
    assert legal.sum() > len(trained) / 10
    # weights twice; states of twice the weights over twice the ranks: of the mean of two stages
    assert not (both["memory_optimizer"][legal] > 1.4 * single["memory_optimizer"][legal]).any()
    assert (both["memory_weights"][legal] > 1.2 * single["memory_weights"][legal]).all()


def savings(plans: Table, catalog: Catalog, result: str) -> dict[str, np.ndarray]:
    """Time that plans gain from twice of each resource, over their time; twice the units may draw twice the power."""
    before = evaluate(plans, catalog)[result]
    better = {"compute": with_units(catalog), "memory": faster(catalog, MEMORY),
              "network": with_links(catalog)}  # fmt: skip
    fed = {"compute": changed(plans, {"power_limit": 2.0 * plans["power_limit"]})}
    return {name: 1.0 - evaluate(fed.get(name, plans), other)[result] / before for name, other in better.items()}


def test_the_bound_of_a_step_is_what_helps_most(catalog: Catalog) -> None:
    """Up to 5 % of a step: messages are the network's as a whole, whatever part of them twice of it shortens."""
    plans = table_of("inference", legal_rows("static", examples(150), seed=3))
    accelerators = catalog.tables["accelerators"].text("device")
    stated = accelerators[catalog.known_rows("accelerators", plans.text("accelerator"))] == ""
    plans = plans.take(np.flatnonzero(stated))  # the rates of the others follow from devices
    bound = evaluate(plans, catalog).text("bound")
    result = savings(plans, catalog, "tpot")
    # A better peak speeds the stream of weights of few rows as well, which is the memory's.
    few = plans.number("batch_size") <= 64.0
    few |= catalog.tables["models"].filled("num_experts")[catalog.known_rows("models", plans.text("model"))] > 0.0
    few &= bound == "memory"
    result["memory"] = result["memory"] + np.where(few, result["compute"], 0.0)
    result["compute"] = np.where(few, 0.0, result["compute"])
    most = np.max(np.nan_to_num(list(result.values())), axis=0)
    for name, saved in result.items():
        named = bound == name
        assert named.any()
        assert (saved[named] >= most[named] - 0.05).all()
    assert (most[bound == "overhead"] <= 1.0 / 3.0).all()  # half of the rest is no less


def _in_order(operators: Table) -> Table:
    """Operators by phase, name and shape: they are listed by their times, which better hardware changes."""
    keys = zip(*(operators.text(name).tolist() for name in ("phase", "operator", "family")),
               *(operators.number(name).tolist() for name in ("flop", "traffic")), strict=True)  # fmt: skip
    return operators.take(np.array([row for _, row in sorted((key, row) for row, key in enumerate(keys))]))


@pytest.mark.parametrize("mode", ["training", "static"])
def test_the_bound_of_an_operator_is_what_helps_most(catalog: Catalog, mode: str) -> None:
    rows = legal_rows(mode, examples(10))
    others = {"compute": with_units(catalog), "memory": faster(catalog, MEMORY)}
    seen = set()
    for row in rows:
        plans = table_of("training" if mode == "training" else "inference", [row])
        table = _in_order(explain(plans, catalog))
        bound, time = table.text("bound"), table.number("time")
        kernels = np.isin(
            table.text("family"), ["gemm", "attention", "attention_backward", "attention_decode", "vector"]
        )
        # A better peak speeds the stream of weights of few rows as well, which is the memory's.
        kernels &= ~((table.text("family") == "gemm") & (table.number("m") <= FEW_ROWS))
        saved = {}
        for name, other in others.items():
            fed = {"power_limit": 2.0 * plans["power_limit"]} if name == "compute" and "power_limit" in plans else {}
            quicker = _in_order(explain(changed(plans, fed), other))
            saved[name] = (time - quicker.number("time"))[kernels] if len(quicker) == len(table) else None
            if saved[name] is not None:
                assert quicker.text("operator")[kernels].tolist() == table.text("operator")[kernels].tolist()
        if any(values is None for values in saved.values()):
            continue  # a wait of the host came or went
        named, all_time = bound[kernels], time[kernels]
        most = np.max(list(saved.values()), axis=0)
        for name, values in saved.items():
            seen |= {name} if (named == name).any() else set()
            assert (values[named == name] >= most[named == name] - CLOSE * all_time[named == name]).all()
        assert set(named.tolist()) <= {"compute", "memory", "overhead"}
    assert seen == {"compute", "memory"}
