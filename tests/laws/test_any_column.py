"""Any column of any sheet varies for an accelerator that follows from a device, in a catalog of the user's own."""

from __future__ import annotations

import numpy as np
import pytest

from xlperf.base.errors import InputError
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.ownership import evaluate_ownership
from xlperf.explore.changed_catalogs import changed_catalog, row_catalog
from xlperf.explore.vary import SHEETS, read_variation
from xlperf.workbook.data_sheets import table_of

pytestmark = pytest.mark.slow

COST = "cost_per_million_tokens"
RESULTS = ("step_time", COST, "energy_per_token", "memory_reserved", "run_carbon")
LEAST = {
    "devices": (10, ("die_area", "cache_share", "compute_share", "power_budget", "margin_share", "system_price_ratio")),
    "technology": (5, ("logic_density", "flop_energy", "static_power")),
    "cores": (3, ("clock_rate", "core_area", "flop_per_clock_bf16")),
    "memories": (3, ("pin_rate", "energy", "stack_price")),
    "process_nodes": (5, ("wafer_price", "defect_density", "nre_chip_per_area")),
    "packages": (5, ("carrier_wafer_price", "final_yield")),
    "prices": (5, ("life", "energy_price", "power_usage_effectiveness", "opex_share", "carbon_intensity")),
    "servers": (5, ("life", "energy_price", "utilization", "discount_rate")),
}  # fmt: skip
"""Columns of a sheet that can be varied by a factor, at least; and some that move a result of the plan."""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """One device and its accelerator alone; all other sheets are the shipped ones, whose designs name other devices."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "devices.csv").write_text(
        "device,technology,core,memory,link,num dies,die area (mm2),power budget (W),package\n"
        "mine,3 nm,Blackwell SM,HBM4,NVLink 5,2,800,1200,CoWoS-L\n",
        encoding="utf-8",
    )
    (folder / "accelerators.csv").write_text(
        "accelerator,generation,default network,device\nmine,blackwell,DGX-B200,mine\n", encoding="utf-8"
    )
    return load_catalog(folder)


def plan(**more: object) -> Table:
    cells = {"name": "p", "model": "Llama3-8B", "accelerator": "mine", "num_accelerators": 8, "tensor_parallel": 2,
             "global_batch_size": 64, **more}  # fmt: skip
    return table_of("training", [cells])


def same(one: float, other: float) -> bool:
    return bool(one == other or (np.isnan(one) and np.isnan(other)))


def varied(catalog: Catalog, column: str, *values: str, table: Table | None = None) -> Table:
    table = plan() if table is None else table
    change = read_variation("training", [(column, values)], "--vary").varied[0]
    rows = table.take(np.zeros(len(values), dtype=np.int64))
    changed, named = row_catalog(catalog, rows, [(change, change.values)])
    return evaluate(named, changed)


@pytest.mark.parametrize(
    ("column", "dearer"),
    [
        ("devices.die area", None),
        ("technology.flop energy", True),
        ("memories.stack price", True),
        ("links.price", True),
        ("packages.carrier wafer price", True),
        ("process_nodes.wafer price", True),
        ("prices.energy price", True),
        ("prices.life", False),
        ("prices.power usage effectiveness", True),
        ("accelerators.host bandwidth", None),
    ],
)
def test_a_factor_of_one_is_the_plan_and_a_larger_one_moves_its_cost(
    own: Catalog, column: str, dearer: bool | None
) -> None:
    """To the last bit, although the shipped designs name devices and packages that this catalog does not have."""
    result, alone = varied(own, column, "x1", "x1.02"), evaluate(plan(), own)
    for name in ("step_time", COST, "energy_per_token"):
        assert result[name][0] == alone[name][0], name
    change = result[COST][1] / result[COST][0] - 1.0
    assert np.isfinite(change)
    if dearer is not None:
        assert change > 0.0 if dearer else change < 0.0


@pytest.mark.parametrize("sheet", SHEETS[:-1])
def test_every_number_of_a_sheet_moves_as_in_an_edited_one(own: Catalog, sheet: str) -> None:
    """A row of a sweep has the bits of the catalog with that cell edited, and a factor of one those of the plan.

    A blank cell has its default, which a factor multiplies: factors of blank cells of devices moved nothing.
    """
    table, alone, tried = plan(training_tokens=1.0), evaluate(plan(training_tokens=1.0), own), 0
    moved = set()
    for column in table_schema(sheet).columns:
        if column.kind != "number":
            continue
        change = read_variation("training", [(f"{sheet}.{column.name}", ["x1", "x1.01"])], "--vary").varied[0]
        try:
            edited = evaluate(table, changed_catalog(own, table, [(change, 1.01)]))
        except InputError:
            continue
        tried += 1
        rows, named = row_catalog(own, table.take([0, 0]), [(change, change.values)])
        result = evaluate(named, rows)
        for name in RESULTS:
            assert same(result[name][1], edited[name][0]), (column.name, name)
            if sheet not in ("prices", "servers"):  # their price of a device is left blank, or its server's
                assert same(result[name][0], alone[name][0]), (column.name, name)
        if any(not same(result[name][0], result[name][1]) for name in RESULTS):
            moved.add(column.name)
    assert tried >= LEAST.get(sheet, (0, ()))[0]
    assert moved >= set(LEAST.get(sheet, (0, ()))[1])


def test_servers_of_a_device_vary_as_its_owner_pays(own: Catalog) -> None:
    """Without a row of servers the device makes one; energy at twice the price adds the energy of an hour."""
    result = varied(own, "servers.energy price", "0.05", "0.10", "0.20")
    steps = np.diff(result["accelerator_hour_cost"])
    assert (steps > 0.0).all() and steps[1] == pytest.approx(2.0 * steps[0], rel=1e-9)
    assert (result["step_time"] == result["step_time"][0]).all()
    drawn = result["grid_power"][0] / 8.0  # the energy of an hour of an accelerator at the price's difference
    assert steps[0] == pytest.approx(drawn / 1e3 * 0.05 / 3600.0, rel=0.5)
    both = evaluate_ownership(plan(), own)
    assert both["owned_cost_per_million_tokens"][0] > 0.0


def test_offload_to_a_slower_host_takes_longer(own: Catalog) -> None:
    table = plan(offload_optimizer=1.0)
    result = varied(own, "accelerators.host bandwidth", "10", "50", "200", table=table)
    assert (np.diff(result["step_time"]) < 0.0).all()


@pytest.mark.parametrize("column", ["memory bandwidth", "die area", "l2 capacity", "thermal design power"])
def test_what_follows_from_the_device_says_so(own: Catalog, column: str) -> None:
    with pytest.raises(InputError, match=f'{column} of "mine" follows from a device: vary devices, technology'):
        varied(own, f"accelerators.{column}", "x1", "x2")


@pytest.mark.parametrize("sheet", ["packages", "process_nodes"])
def test_designs_that_name_what_a_sheet_no_longer_has_are_left_out(sheet: str) -> None:
    """A catalog with a sheet of its own costs what it can; the rows of the others are those of the shipped one."""
    shipped = load_catalog()
    kept = "CoWoS-L" if sheet == "packages" else "3 nm"
    table = shipped.tables[sheet]
    some = shipped.with_tables([table.take([table[table.schema.key.name].tolist().index(kept)])])
    assert len(some.tables["chiplets"]) < len(shipped.tables["chiplets"])
    rented = plan(accelerator="H100-SXM-80GB")
    assert evaluate(rented, some)[COST][0] == evaluate(rented, shipped)[COST][0]
    assert evaluate_ownership(rented, some)["owned_cost_per_million_tokens"][0] > 0.0
    if sheet == "packages":
        given = some.with_tables([shipped.tables["chiplets"]])  # of rows that are given, each is named
        assert any("unknown package" in fault.problem for fault in given.orphans.faults)
