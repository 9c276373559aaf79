"""``xlperf cost``: from the wafer to the module, and from the server to the accelerator-hour."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from xlperf.base.errors import Fault, InputError, nearest
from xlperf.cli.options import (
    Command,
    InputFile,
    bounds_options,
    catalog_of,
    catalog_option,
    examples,
    results_option,
    without_auto,
)
from xlperf.cli.output import deliver, parts, progress

if TYPE_CHECKING:
    from xlperf.catalog.table import Table
    from xlperf.explore.candidates import Bounds

_PLANS = ("training", "inference")
_WORDS = {"chiplets": "design", "servers": "server", "training": "plan", "inference": "plan"}


@click.command(
    cls=Command,
    short_help="Cost of chiplet designs, or of servers per accelerator-hour.",
    epilog=examples(
        "xlperf cost designs.csv -o results.csv",
        "xlperf cost study.xlsx -o results.xlsx --case high",
        "xlperf cost servers.csv",
        "xlperf cost study.xlsx --sheet training --owner neocloud -o owned.xlsx",
        "xlperf cost plans.csv --bridge -o bridge.csv",
        "xlperf cost study.xlsx --sheet servers --tornado 'cost rate'",
    ),
)
@click.argument("designs", type=InputFile())
@results_option
@click.option(
    "--case",
    type=click.Choice(["low", "base", "high"]),
    default="base",
    show_default=True,
    help="Which of the prices, yields and lives that have a low and a high value.",
)
@click.option("--placed", is_flag=True, help="Count whole dies on a grid instead of the closed formula; slower.")
@click.option(
    "--tornado",
    metavar="RESULT",
    help="Instead of the results: what the low and the high value of each uncertain input makes of one RESULT, such "
    "as 'bill of materials' or 'cost rate'; the input that moves it most first.",
)
@click.option(
    "--sheet",
    type=click.Choice(["chiplets", "servers", "training", "inference"]),
    help="Which sheet of a workbook; by default chiplets where it has rows.",
)
@click.option(
    "--owner",
    metavar="WORD",
    help="Plans only: a word in the name of the server, such as neocloud, where servers has several rows of an "
    "accelerator; without it the first.",
)
@click.option(
    "--bridge",
    is_flag=True,
    help="Plans only: instead of the results, line by line from the cost and energy of a token at the sheet prices "
    "(rented, or owned at its terms) to those of the owner.",
)
@bounds_options
@catalog_option
def cost(
    designs: str,
    output: str | None,
    case: str,
    placed: bool,
    tornado: str | None,
    sheet: str | None,
    owner: str | None,
    bridge: bool,
    bounds: Bounds,
    catalog: str | None,
) -> None:
    """Compute every row of DESIGNS, a CSV or Parquet file, a workbook, or - for CSV on standard input.

    The first column says what the rows are. "chiplet": designs with the columns of the sheet chiplets (package, node,
    num dies, module area, memory stacks, volume ...); results are the parts of the cost of a module, one-time costs,
    unit cost and price. "server": servers with the columns of the sheet servers (accelerator price, server price,
    server power, life, discount rate ...); results are capex, network and the cost of an accelerator-hour. A column
    "model": plans of training or inference; results are what they cost an owner by part, from the wafer to the power,
    with the network counted from the topology of the plan; cells that say auto are chosen as xlperf search does.
    Columns with results of an earlier run are left out when they are read, so that a file of results can be edited and
    computed again.

    All commands cost a plan by the sheet prices, each pool by the row of its own accelerator: the rental price where
    there is one, else capex over life, energy and running cost (cost basis says which). Without either the first row of
    servers with the accelerator counts, then its device; an accelerator without any has no cost, and reason says so.
    Input and output tokens share the cost by accelerator time; the all-in cost is all of it over the output tokens.
    Results that start with owned are what an owner pays by the sheet servers, with the carbon of making dies, memory
    and packages spread over the tokens of their life.

    Energy, grid power and carbon take the accelerators by their work (operations on their node, bytes, messages,
    running clocks), the rest of the server at full load, and the building. What is provisioned is full load, or the
    plan's power limit, which caps an accelerator, whose clock then falls.

    A row of chiplets that names a device takes its blank cells from there, and the device costs what that row costs.
    """
    from xlperf.catalog.read import read_designs
    from xlperf.engine.designs import evaluate_designs
    from xlperf.engine.ownership import evaluate_servers

    if tornado is not None and (case != "base" or placed):
        raise InputError(Fault("--tornado", "goes with neither --case nor --placed"))
    table = read_designs(designs, sheet)
    _refuse_options(table.kind, {"--placed": placed}, ("chiplets",))
    _refuse_options(table.kind, {"--owner": owner is not None, "--bridge": bridge}, _PLANS)
    _refuse_options(table.kind, {"--tornado": tornado is not None}, ("chiplets", "servers"))
    known = catalog_of(catalog, designs)
    noun = _WORDS[table.kind]
    if tornado is not None:
        from xlperf.explore.cost_sensitivity import cost_sensitivity

        deliver(output, "tornado", parts(cost_sensitivity(table, known, tornado)), noun, number=len(table))
        return
    if table.kind == "servers":
        results = evaluate_servers(table, case, known)
    elif table.kind in _PLANS:
        from xlperf.engine.ownership import cost_bridge, evaluate_ownership

        table = without_auto(table, known, bounds)
        names = known.tables["servers"].text("server").tolist()
        if owner is not None and not any(owner.strip().casefold() in name.casefold() for name in names):
            raise InputError(Fault("--owner", f'no server has "{owner}" in its name; {nearest(owner, names)}'))
        if bridge:
            deliver(output, "bridge", parts(cost_bridge(table, known, owner or "", case)), noun, number=len(table))
            return
        results = evaluate_ownership(table, known, owner or "", case)
    else:
        with progress(len(table), f"{len(table):,} designs") as done:
            results = evaluate_designs(table, known, case, placed, done)
    deliver(output, table.kind, parts(_without(table, results), results), noun)


def _refuse_options(kind: str, given: dict[str, bool], kinds: tuple[str, ...]) -> None:
    """An option that says nothing about these rows is not accepted."""
    for name, is_given in given.items():
        if is_given and kind not in kinds:
            meant = " and ".join(dict.fromkeys(f"{_WORDS[own]}s" for own in kinds))
            raise InputError(Fault(name, f"is for {meant}, these are {_WORDS[kind]}s"))


def _without(table: Table, results: Table) -> Table:
    """A table less the columns that its results have too: names stand once, with the value that was used."""
    columns = {name: values for name, values in table.columns.items() if name not in results}
    return type(table)(table.kind, columns, table.place)
