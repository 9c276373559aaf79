"""Words above the data sheets of the workbook, and the bands over their columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Look:
    """Words above a data sheet, and the bands over its columns: (words, first column)."""

    title: str
    subtitle: str
    bands: tuple[tuple[str, str], ...]
    pages_wide: int = 1


LOOKS: Mapping[str, Look] = {
    "training": Look(
        "Training plans",
        "One row is one plan: change a yellow cell and its results follow. A blank cell takes the default that the "
        "comment of its header names.",
        (
            ("Model and machine", "name"),
            ("Parallel degrees", "tensor_parallel"),
            ("Batch", "global_batch_size"),
            ("Numerics", "precision"),
            ("Results", "step_time"),
        ),
        2,
    ),
    "inference": Look(
        "Inference plans",
        "One row is one deployment: change a yellow cell and its results follow. A blank cell takes the default that "
        "the comment of its header names.",
        (
            ("Model and machine", "name"),
            ("Parallel degrees", "tensor_parallel"),
            ("Load", "prompt_length"),
            ("Numerics", "precision"),
            ("Results", "ttft"),
        ),
        2,
    ),
    "accelerators": Look(
        "Accelerators",
        "Dense peaks of one package; bandwidth is peak, memory is what the driver reports. Notes say what is "
        "remembered or estimated.",
        (
            ("Accelerator", "accelerator"),
            ("Silicon", "technology_node"),
            ("Dense peak rates", "peak_flop_rate_fp32"),
            ("Multiprocessors", "num_multiprocessors"),
            ("Memory", "memory_type"),
            ("Power", "thermal_design_power"),
            ("Network", "default_network"),
            ("Where from", "source"),
        ),
        2,
    ),
    "networks": Look(
        "Networks",
        "A row per network and tier, innermost first. Bandwidth is that of one accelerator in one direction; sizes "
        "count from the inside.",
        (("Network", "network"), ("Links", "topology"), ("Switches", "oversubscription"), ("Where from", "source")),
    ),
    "models": Look(
        "Models",
        "Shapes of the models as trained. The sheet checks compares the parameters that follow from a dense shape "
        "with those stated.",
        (
            ("Model", "model"),
            ("Shape", "num_layers"),
            ("Make", "gated_mlp"),
            ("Attention", "attention_type"),
            ("Mixture of experts", "num_experts"),
            ("Latent attention", "q_lora_rank"),
            ("Stated", "stated_parameters"),
            ("Where from", "source"),
        ),
        3,
    ),
    "prices": Look(
        "Prices",
        "A plan is costed by the rental price where there is one, else by capex over life, energy and running cost.",
        (("Accelerator", "price"), ("Rent", "rental_price"), ("Own", "capex"), ("Where from", "source")),
    ),
    "calibration": Look(
        "Calibration",
        "Measured efficiencies: each constant with the rows that it was fitted on and its error. A constant that no "
        "row gives has its default.",
        (
            ("Constant", "calibration"),
            ("For", "family"),
            ("Value", "value"),
            ("Fit", "fit_set"),
            ("Where from", "source"),
        ),
    ),
    "process_nodes": Look(
        "Process nodes",
        "From the wafer to a good die: price, defects, reticle, design cost and carbon of a node; low and high are "
        "the cases of `xlperf cost --case`.",
        (
            ("Node", "node"),
            ("Wafer", "wafer_price"),
            ("Reticle", "reticle_width"),
            ("Yield", "defect_density"),
            ("Sort", "sort_time"),
            ("One-time cost", "nre_module_per_area"),
            ("Carbon", "fab_energy"),
            ("Where from", "source"),
        ),
        3,
    ),
    "packages": Look(
        "Packages",
        "What dies and stacks of memory are put on, what it costs and what is lost on the way to a good module.",
        (
            ("Package", "package"),
            ("Carrier", "carrier_wafer_price"),
            ("Substrate", "substrate_area_ratio"),
            ("Bonds", "bump_price"),
            ("Assembly and test", "assembly_cost"),
            ("Links", "link_bandwidth"),
            ("One-time cost", "nre_per_carrier_area"),
            ("Where from", "source"),
        ),
        3,
    ),
    "chiplets": Look(
        "Chiplet designs",
        "A row is the module of one product: change a yellow cell and its cost follows. The parts from raw dies to "
        "test add up to the module; with the board that is the bill of materials.",
        (
            ("Design", "chiplet"),
            ("Compute dies", "node"),
            ("Base dies", "base_node"),
            ("Memory", "memory_stacks"),
            ("Product", "num_bridges"),
            ("Where from", "source"),
            ("Results", "good_die_cost"),
        ),
        3,
    ),
    "servers": Look(
        "Servers",
        "From the price of an accelerator to an hour of it: server, network, building, power and what capital costs. "
        "The parts from accelerator cost to energy cost add up to the cost rate.",
        (
            ("Server", "server"),
            ("Network", "topology"),
            ("Building", "rack_cost"),
            ("Finance", "life"),
            ("Power", "load_share"),
            ("To plan for", "fixed_accelerators"),
            ("Where from", "source"),
            ("Results", "capex"),
        ),
        3,
    ),
    "technology": Look(
        "Logic nodes",
        "What a node makes of an area: transistors, SRAM, clock and energy. Rows below 2 nm are scenarios. A cell "
        "changed here moves every accelerator that names a device.",
        (
            ("Node", "technology"),
            ("Density", "logic_density"),
            ("Clock and power", "clock_ratio"),
            ("Where from", "source"),
        ),
    ),
    "memories": Look(
        "Memory technologies",
        "One stack or package: data pins and their fastest rate, layers, energy, the edge of the dies that it takes, "
        "and its price.",
        (
            ("Memory", "memory"),
            ("Rate and capacity", "interface_width"),
            ("Power", "energy"),
            ("Edge and area", "shoreline"),
            ("Price", "stack_price"),
            ("Where from", "source"),
        ),
    ),
    "links": Look(
        "Link technologies",
        "Lanes to other accelerators, and between dies of one package: bandwidth per edge, energy, price.",
        (("Link", "link"), ("Edge", "shoreline_bandwidth"), ("Power and price", "energy"), ("Where from", "source")),
    ),
    "cores": Look(
        "Cores",
        "Streaming multiprocessors and compute units: what one does per clock, holds, and takes of the die at the "
        "node that it is stated at.",
        (
            ("Core", "core"),
            ("FLOP per clock", "flop_per_clock_fp32"),
            ("Memory of a core", "shared_memory_capacity"),
            ("Where from", "source"),
        ),
        2,
    ),
    "devices": Look(
        "Devices",
        "Budgets and shares that an accelerator follows from: name one in the column device of accelerators. "
        "`xlperf device` on this workbook shows what each becomes.",
        (
            ("Device", "device"),
            ("Dies", "num_dies"),
            ("Budgets", "perimeter"),
            ("Shares", "compute_share"),
            ("Choices", "num_cores"),
            ("Cost", "package"),
            ("Where from", "source"),
        ),
        3,
    ),
}
