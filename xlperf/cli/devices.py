"""``xlperf device``: what accelerators become of a node, budgets and shares."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from xlperf.cli.common import catalog_of, catalog_option, examples, progress, wrote
from xlperf.cli.files import RESULTS, STANDARD, Command, InputFile

if TYPE_CHECKING:
    from xlperf.catalog.table import Table

BLOCK = 16_384


@click.command(
    cls=Command,
    short_help="Derive accelerators from a logic node, budgets and shares.",
    epilog=examples(
        "xlperf device study.xlsx",
        "xlperf device study.xlsx --compare",
        "xlperf device devices.csv -o results.xlsx --catalog study.xlsx",
    ),
)
@click.argument("devices", type=InputFile())
@click.option(
    "-o",
    "--output",
    default=STANDARD,
    metavar="RESULTS",
    type=RESULTS,
    help="File to write: .csv, .parquet or .xlsx; - or nothing: CSV on standard output.",
)
@click.option(
    "--compare",
    is_flag=True,
    help="Compare the devices that name an accelerator in the column compared with to what that states; exit code 1 "
    "where one differs by more than 20 %.",
)
@catalog_option
def device(devices: str, output: str, compare: bool, catalog: str | None) -> int:
    """Derive every row of DEVICES, a CSV or Parquet file, a workbook, or - for CSV on standard input.

    Rows have the columns of the sheet devices: node, core, memory and link technology; area, perimeter and power
    budgets; shares. Results are peak rates, on-chip and main memory, links, power by part, area by part, and the cost
    where a package is named. A device that cannot be built has blank results and a reason. A row of accelerators that
    names the device in its column device takes these numbers, and plans run on it.
    """
    import numpy as np

    from xlperf.catalog.read import read_designs
    from xlperf.engine.devices import evaluate_devices

    table = read_designs(devices, kinds=("devices",))
    known = catalog_of(catalog, devices)
    if compare:
        from xlperf.explore.device_check import TOLERANCE, reverse_check

        found = reverse_check(table, known)
        _write(output, [(found,)])
        wrote(output, len(found), "device")
        far = ~(np.abs(found["difference"]) <= TOLERANCE)
        return 1 if far.any() else 0
    pieces: list[tuple[Table, ...]] = []
    whole = Path(output).suffix.lower() == ".xlsx" or len(table) <= BLOCK
    with progress(len(table), f"{len(table):,} devices") as done:
        for start in range(0, len(table), len(table) if whole else BLOCK):
            rows = table if whole else table.take(slice(start, start + BLOCK))
            pieces.append((rows, evaluate_devices(rows, known)))
            done(len(rows))
    _write(output, pieces)
    wrote(output, len(table), "device")
    return 0


def _write(output: str, pieces: list[tuple[Table, ...]]) -> None:
    """Tables side by side, piece below piece; a workbook takes one piece."""
    from xlperf.cli.results import parts, write_blocks, write_workbook

    if Path(output).suffix.lower() == ".xlsx":
        write_workbook(output, [(pieces[0][0].kind, list(pieces[0]))])
    else:
        write_blocks(output, (parts(*piece) for piece in pieces))
