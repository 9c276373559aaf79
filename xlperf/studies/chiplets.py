"""One die or many: yield, cost of a unit and cost of a token at the same silicon."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import numpy as np

from xlperf.base.errors import Fault, InputError, nearest
from xlperf.base.units import UNITS
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.designs import evaluate_designs
from xlperf.studies.derived import for_each
from xlperf.studies.outcome import (
    Chart,
    Finding,
    Inputs,
    Outcome,
    Rows,
    Setting,
    Study,
    StudySheet,
    Value,
    order,
    own_column,
    shown,
    wide,
)
from xlperf.studies.source import with_rows

_PEAKS = ("fp32", "tf32", "bf16", "fp8", "int8", "fp4")


def _rows() -> Mapping[str, Rows]:
    """A training plan and a serving plan of the reference accelerator, which each design takes the place of."""
    model = {"model": "Meta-Llama-3.1-70B", "accelerator": "B200-SXM-180GB"}
    training = {
        "name": "training",
        **model,
        "num_accelerators": 256,
        "tensor_parallel": 4,
        "pipeline_parallel": 2,
        "virtual_pipeline": 5,
        "global_batch_size": 512,
        "sequence_length": 4096,
        "precision": "fp8",
        "software": "nemo",
    }
    inference = {
        "name": "serving",
        **model,
        "num_accelerators": 2,
        "tensor_parallel": 2,
        "prompt_length": 2048,
        "output_length": 512,
        "batch_size": 64,
        "precision": "fp8",
    }
    return {"training": [training], "inference": [inference]}


def _analyse(inputs: Inputs) -> Outcome:
    catalog = inputs.catalog
    cases = list(
        product(
            inputs.words("nodes"), inputs.numbers("silicon_areas"), inputs.words("packages"), inputs.numbers("dies")
        )
    )
    designs, kept = _designs(inputs, cases)
    results = evaluate_designs(designs, catalog)
    names = [str(name) for name in designs["chiplet"]]
    compute = designs["module_area"] * designs["num_dies"] / UNITS["mm2"].factor
    wider, devices = _devices(inputs, names, compute, shown(results, "sale_price"))
    plans: list[tuple[Table, Table]] = []
    for kind in ("training", "inference"):
        if kind in inputs.plans:
            table = for_each(inputs.plans[kind], devices)
            plans.append((table, evaluate(table, wider)))
    sheet = _sheet(kept, names, designs, results, compute, plans)
    maps = _map(inputs, kept, shown(results, "unit_cost") / compute)
    findings = list(_findings(kept, sheet))
    return Outcome(findings, [sheet, maps, _crossover(inputs, designs, kept)], wider, plans)


_Case = tuple[str, float, str, float]


def _name(case: _Case) -> str:
    node, area, package, dies = case
    return f"{node}, {area:.0f} mm2, {dies:.0f} on {package}"


def _designs(inputs: Inputs, cases: Sequence[_Case]) -> tuple[Table, list[_Case]]:
    """Designs of equal silicon: links take from compute. Those whose die is over the exposure field are left out."""
    packages, nodes = inputs.catalog.tables["packages"], inputs.catalog.tables["process_nodes"]
    rows: list[dict[str, object]] = []
    kept: list[_Case] = []
    place = f"{inputs.origin} [study]"
    for case in cases:
        node, area, package, dies = case
        own = {str(name).casefold(): i for i, name in enumerate(packages["package"])}
        fields = {str(name).casefold(): i for i, name in enumerate(nodes["node"])}
        for word, known, what in ((package, own, "package"), (node, fields, "process node")):
            if word.casefold() not in known:
                raise InputError(Fault(place, f'no {what} is named "{word}"; {nearest(word, list(known))}'))
        row = own[package.casefold()]
        links = 0.0
        if dies > 1:
            bandwidth = inputs.number("link_bandwidth") * UNITS["GB/s"].factor
            macros = np.ceil(bandwidth / packages["link_bandwidth"][row])
            links = float(macros * packages["link_area"][row]) / UNITS["mm2"].factor
        die = area / dies
        at = fields[node.casefold()]
        field = float(nodes.filled("reticle_width")[at] * nodes.filled("reticle_height")[at]) / UNITS["mm2"].factor
        if die > field or die <= links or not np.isfinite(links):
            continue
        kept.append(case)
        rows.append(
            {
                "chiplet": _name(case),
                "package": package,
                "node": node,
                "num_dies": dies,
                "module_area": die - links,
                "link_area_share": links / (die - links),
                "memory_stacks": inputs.number("memory_stacks"),
                "stack_capacity": inputs.number("stack_capacity"),
                "memory_price": inputs.number("memory_price"),
                "board_cost": inputs.number("board_cost"),
                "margin_share": inputs.number("margin_share"),
                "volume": inputs.number("volume"),
                "num_bridges": dies - 1 if str(packages["structure"][row]) == "bridge" else 0,
                "kind": "assumption",
            }
        )
    if not rows:
        raise InputError(Fault(place, "no design has a die that fits one exposure field and is larger than its links"))
    header = list(rows[0])
    return table_from_rows("chiplets", header, [[row[name] for name in header] for row in rows]), kept


def _devices(inputs: Inputs, names: Sequence[str], compute: np.ndarray, price: np.ndarray) -> tuple[Catalog, list[str]]:
    """The reference accelerator with its peak rates in the share of the compute area, and its capex by its price."""
    catalog = inputs.catalog
    plans = inputs.table("inference" if "inference" in inputs.plans else "training")
    row = int(catalog.rows("accelerators", plans["accelerator"][:1], plans, "accelerator")[0])
    reference = catalog.tables["accelerators"].take([row] * len(names))
    scale = compute / inputs.number("reference_area")
    columns = {name: values.copy() for name, values in reference.columns.items()}
    for column in (*(f"peak_flop_rate_{kind}" for kind in _PEAKS), "num_multiprocessors", "l2_bandwidth"):
        if column in columns:
            columns[column] = columns[column] * scale
    columns["num_multiprocessors"] = np.maximum(np.round(columns["num_multiprocessors"]), 1.0)
    columns["accelerator"] = np.array(names, dtype=object)
    prices = catalog.tables["prices"]
    own = str(catalog.tables["accelerators"]["accelerator"][row])
    found = np.flatnonzero([str(name).casefold() == own.casefold() for name in prices["price"]])
    if not len(found):
        raise InputError(Fault(f"{inputs.origin} [study]", f"the reference accelerator {own} has no row in prices"))
    paid = prices.take([int(found[0])] * len(names))
    terms = {name: values.copy() for name, values in paid.columns.items()}
    terms["price"] = np.array(names, dtype=object)
    terms["capex"] = price * inputs.number("system_factor")
    if "rental_price" in terms:
        terms["rental_price"] = np.full(len(names), np.nan)
    tables = [Table("accelerators", columns), Table("prices", terms)]
    return with_rows(catalog, tables), list(names)


def _sheet(
    cases: Sequence[_Case],
    names: Sequence[str],
    designs: Table,
    results: Table,
    compute: np.ndarray,
    plans: Sequence[tuple[Table, Table]],
) -> StudySheet:
    fields = results.schema.by_name
    columns = ("die_area", "die_yield", "good_die_cost", "module_cost", "unit_cost", "sale_price")
    shares = [shown(results, column) for column in columns]
    token: list[np.ndarray] = []
    heads = []
    for table, found in plans:
        name = "cost_per_million_tokens" if table.kind == "training" else "cost_per_million_output_tokens_all_in"
        first = "step_time" if table.kind == "training" else "tpot"
        token += [shown(found, first)[: len(names)], shown(found, name)[: len(names)]]
        heads += [found.schema.by_name[first], found.schema.by_name[name]]
    rows: list[tuple[Value, ...]] = [
        (
            names[i],
            cases[i][0],
            cases[i][1],
            cases[i][2],
            cases[i][3],
            float(compute[i]),
            *(float(values[i]) for values in shares),
            *(float(values[i]) for values in token),
        )
        for i in range(len(names))
    ]
    charts = [Chart("bars", "Cost of a unit", "design", ("unit_cost",), y_title="USD")]
    if heads:
        charts.append(Chart("bars", "Cost of a token", "design", (heads[-1].name,), y_title="USD/Mtoken"))
    return StudySheet(
        "designs",
        "The same silicon in one die or in many: what the links take is lost to compute and to the peak rates.",
        [
            own_column("design", kind="name"),
            own_column("node", kind="text"),
            own_column("silicon_area", "mm2", "Area of all compute dies with their links"),
            own_column("package", kind="text"),
            own_column("dies", "-", "Compute dies"),
            own_column("compute_area", "mm2", "Area of all compute dies without their links"),
            *(fields[column] for column in columns),
            *heads,
        ],
        rows,
        charts,
    )


def _map(inputs: Inputs, cases: Sequence[_Case], cost: np.ndarray) -> StudySheet:
    """Cost of a unit for each area of compute: silicon by number of dies."""
    series = [f"{dies:.0f}_dies" for dies in inputs.numbers("dies")]
    found: dict[tuple[Value, str], float] = {}
    for case, value in zip(cases, cost, strict=True):
        found[f"{case[0]}, {case[1]:.0f} mm2, {case[2]}", f"{case[3]:.0f}_dies"] = float(value)
    keys: list[Value] = list(order(str(key) for key, _ in found))
    return StudySheet(
        "map",
        "Cost of a unit for each square millimetre that computes, over silicon, package and number of dies.",
        [
            own_column("silicon", kind="name"),
            *(own_column(name, "USD/mm2", "Unit cost over compute") for name in series),
        ],
        wide(keys, series, found),
        shaded=series,
    )


def _crossover(inputs: Inputs, designs: Table, cases: Sequence[_Case]) -> StudySheet:
    """Cost of a unit over the volume, with the one-time costs in it."""
    node, area = inputs.words("nodes")[-1], inputs.numbers("silicon_areas")[-2:][0]
    package = inputs.words("packages")[0]
    chosen = [i for i, case in enumerate(cases) if case[:3] == (node, area, package)]
    names = [f"{cases[i][3]:.0f}_dies" for i in chosen]
    volumes = inputs.numbers("volumes")
    found: dict[tuple[Value, str], float] = {}
    for volume in volumes:
        table = designs.take(chosen)
        columns = {**table.columns, "volume": np.full(len(chosen), volume)}
        cost = shown(evaluate_designs(Table("chiplets", columns), inputs.catalog), "unit_cost")
        found.update({(volume, name): float(value) for name, value in zip(names, cost, strict=True)})
    return StudySheet(
        "volume",
        f"Cost of a unit with its one-time costs over the volume: {node}, {area:.0f} mm2 on {package}.",
        [own_column("volume", "-", "Units made"), *(own_column(name, "USD", "Cost of a unit") for name in names)],
        wide(list(volumes), names, found),
        [Chart("lines", "Cost of a unit", "volume", names, "units", "USD", log_x=True, log_y=True)],
    )


def _findings(cases: Sequence[_Case], sheet: StudySheet) -> Iterator[Finding]:
    names = [column.name for column in sheet.columns]
    unit, made, good = names.index("unit_cost"), names.index("compute_area"), names.index("die_yield")
    for key in dict.fromkeys(case[:3] for case in cases):
        rows = [row for row, case in zip(sheet.rows, cases, strict=True) if case[:3] == key]
        priced = [(float(row[unit] or np.nan) / float(row[made] or np.nan), row) for row in rows]
        priced = [pair for pair in priced if pair[0] == pair[0]]
        if not priced:
            continue
        best, row = min(priced, key=lambda pair: pair[0])
        where, count = f"{key[0]}, {key[1]:.0f} mm2 on {key[2]}", float(row[4] or 0)
        one = next((pair for pair in priced if pair[1][4] == 1), None)
        if count == 1:
            words = f"{where}: one die gives the cheapest compute; its yield is {100 * float(row[good] or 0):.0f} %"
        else:
            words = f"{where}: {count:.0f} dies give the cheapest compute"
            if one is None:
                words += "; one die would be over the exposure field"
            else:
                whole = 100 * float(one[1][good] or 0)
                words += f", {100 * (1 - best / one[0]):.0f} % below one die, whose yield is {whole:.0f} %"
        yield Finding("Chiplets", f"{words}.", "good")


STUDY = Study(
    name="chiplets",
    title="One die or many",
    question="When does dividing an accelerator into chiplets make a token cheaper?",
    published=(
        "arXiv 2507.02456 brings a chiplet cost model; its figures could not be had. Feng and Ma 2022 (arXiv "
        "2203.12268) find that large dies of a young node gain most and small ones nothing: the order here. Their "
        "2,376 published systems are reproduced by xlperf cost to 1e-9."
    ),
    analyse=_analyse,
    settings=(
        Setting("nodes", ("7 nm", "5 nm", "3 nm"), "-", "Process nodes of the compute dies, names of process_nodes"),
        Setting("silicon_areas", (200.0, 400.0, 800.0, 1600.0), "mm2", "Area of all compute dies with their links"),
        Setting("dies", (1.0, 2.0, 4.0, 8.0, 16.0), "-", "Numbers of compute dies"),
        Setting(
            "packages",
            ("CoWoS-S", "EMIB"),
            "-",
            "Packages, names of the sheet packages",
        ),
        Setting("link_bandwidth", 2500.0, "GB/s", "Bandwidth of the links of a die, one direction"),
        Setting("memory_stacks", 8.0, "-", "Stacks of memory"),
        Setting("stack_capacity", 24.0, "GB", "Capacity of a stack"),
        Setting("memory_price", 15.0, "USD/GB", "Price of stacked memory"),
        Setting("board_cost", 450.0, "USD", "Board and what is on it"),
        Setting("margin_share", 0.6, "-", "Gross margin in the price"),
        Setting("volume", 500000.0, "-", "Units that carry the one-time costs"),
        Setting(
            "volumes",
            (10_000.0, 30_000.0, 100_000.0, 300_000.0, 1_000_000.0, 3_000_000.0, 10_000_000.0),
            "-",
            "Volumes of the sheet volume, at the last node, the last area but one and the first package",
        ),
        Setting("reference_area", 1600.0, "mm2", "Compute area of the accelerator that the plans name"),
        Setting("system_factor", 1.6, "-", "Capex of an accelerator with its server and network over its price"),
    ),
    rows=_rows,
)
