"""Rows of the cost tables for tests: Chiplet Actuary's parameters as sheets, and its reference systems as designs."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from places import ROOT

from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_columns
from xlperf.catalog.table import Table
from xlperf.workbook.data_sheets import table_of

REFERENCE = ROOT.parent / "shared" / "reference"

# node in nm: wafer price [USD], defects [1/cm2], design cost of 300 mm2 [USD]
ACTUARY_NODES = {
    3: (30_000, 0.20, 1_000e6),
    5: (16_988, 0.11, 542e6),
    7: (9_346, 0.09, 298e6),
    10: (5_992, 0.08, 174e6),
    14: (3_984, 0.08, 106e6),
    20: (3_677, 0.07, 70e6),
    28: (2_891, 0.07, 51e6),
    40: (2_274, 0.07, 38e6),
    55: (1_937, 0.07, 28e6),
}


def figures(path: Path) -> dict[str, list[str]]:
    """Columns of a CSV file."""
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    return {name: [row[name] for row in rows] for name in rows[0]}


def numbers(texts: list[str]) -> np.ndarray:
    return np.array([float(text or "nan") for text in texts])


def actuary_catalog(slips: bool = False) -> Catalog:
    """Nodes and packages with the parameters of Chiplet Actuary; its reticle has no limit.

    With ``slips`` its known mistakes stand in the prices: micro-bumps paid once per chip design (a package for each
    number of identical dies), the fixed design cost of a fan-out package that of one mm2, and substrates below a
    carrier designed for what they cost to make.
    """
    nodes = [
        {
            "node": f"{node} nm",
            "wafer_price": price,
            "edge_exclusion": 5,
            "scribe_width": 0.2,
            "reticle_width": 1000,
            "reticle_height": 1000,
            "defect_density": density,
            "clustering": 10,
            "nre_module_per_area": 0.5 * design / 300,
            "nre_chip_per_area": 0.3 * design / 300,
            "nre_chip_fixed": 0.2 * design,
        }
        for node, (price, density, design) in ACTUARY_NODES.items()
    ]
    common = {"attach_yield": 0.99, "link_design_area": 20, "nre_per_substrate_area": 3000}
    edge = {"carrier_edge_exclusion": 5, "carrier_scribe_width": 0.2, "carrier_bump_price": 0.005, "bump_price": 0.01}
    fan_out = {
        **common,
        **edge,
        "carrier_wafer_price": 1200,
        "carrier_area_ratio": 1.2,
        "carrier_defect_density": 0.05,
        "carrier_clustering": 3,
        "bonding_yield": 0.98,
        "nre_per_carrier_area": 0.5 * 1.5e7 / 300,
        "nre_fixed": 0.5 * 1.5e7,
    }
    interposer = {
        **common,
        **edge,
        "carrier_wafer_price": 1937,
        "carrier_area_ratio": 1.1,
        "carrier_defect_density": 0.06,
        "carrier_clustering": 6,
        "bonding_yield": 0.95,
        "nre_per_carrier_area": 1.2 * 0.3 * 28e6 / 300,
        "nre_fixed": 1.2 * 0.2 * 28e6,
    }
    packages = [
        {"package": "OS", "structure": "organic", "bonding_yield": 0.99, "nre_fixed": 3e5, **common},
        {"package": "FO_chip_first", "structure": "fan-out-first", **fan_out},
        {"package": "FO_chip_last", "structure": "fan-out-last", **fan_out},
        {"package": "SI", "structure": "silicon-interposer", **interposer},
    ]
    if slips:
        price = 0.005  # of organic substrate per mm2
        for package in packages[1:]:
            package["nre_per_substrate_area"] = price
            if str(package["structure"]).startswith("fan-out"):
                package["nre_fixed"] = package["nre_per_carrier_area"]
        packages += [
            {**package, "package": f"{package['package']} of {count} alike", "bump_price": 0.01 / count}
            for package in packages[1:]
            for count in range(1, 9)
        ]
    return load_catalog().with_tables([table_of("process_nodes", nodes), table_of("packages", packages)])


def actuary_designs(rows: dict[str, list[str]], volume: float, slips: bool = False) -> Table:
    """Reference systems as designs; with ``slips`` for the catalog of that name."""
    chips = numbers(rows["n_chiplets"])
    distinct = np.array([mode == "distinct" for mode in rows["chiplet_mode"]])
    packages = [
        f"{name} of {count:g} alike" if slips and name != "OS" and not each else name
        for name, count, each in zip(rows["packaging"], chips.tolist(), distinct.tolist(), strict=True)
    ]
    return table_from_columns(
        "chiplets",
        {
            "chiplet": np.array(rows["case"], dtype=object),
            "package": np.array(packages, dtype=object),
            "node": np.array([f"{node} nm" for node in rows["node_nm"]], dtype=object),
            "num dies": chips,
            "num designs": np.where(distinct, chips, 1.0),
            "module area (mm2)": numbers(rows["total_module_area_mm2"]) / chips,
            "link area share": numbers(rows["d2d_area_fraction"]),
            "volume": np.full(len(chips), volume),
        },
    )


NODE = {"node": "5 nm", "wafer_price": 17_000, "defect_density": 0.1, "source": "a test", "year": 2026}
PACKAGE = {"package": "organic", "structure": "organic", "source": "a test", "year": 2026}
DESIGN = {
    "chiplet": "one",
    "package": "organic",
    "node": "5 nm",
    "num_dies": 2,
    "module_area": 400,
    "source": "a test",
    "year": 2026,
}
SERVER = {
    "server": "HGX",
    "accelerator_price": 25_000,
    "server_price": 45_000,
    "server_power": 10.2,
    "switch_price": 25_000,
    "transceiver_price": 700,
    "cable_price": 100,
    "building_price": 10_000,
    "source": "a test",
    "year": 2026,
}
COST_ROWS = {"process_nodes": [NODE], "packages": [PACKAGE], "chiplets": [DESIGN], "servers": [SERVER]}
