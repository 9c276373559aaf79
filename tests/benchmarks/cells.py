"""Cells in LibreOffice: ``python tests/benchmarks --cells``.

10,000 plans that differ stand in a sheet of the shipped workbook. Measured are 10,000 cells, each a function on its own
plan (filled down, after an edit of an accelerator, in the saved file opened by a new process), ten cells on each of
1,000 plans, and array formulas of 1,000 plans. Each round of edits changes a number of the catalog, so that every plan
is evaluated anew. Alone: ``python tests/benchmarks/cells.py``.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from libreoffice_office import Office

from xlperf.addin.libreoffice import install
from xlperf.base.resources import workbook
from xlperf.catalog.schema import results_of

NUM_PLANS = 10_000
NUM_IN_BLOCK = 1000
ROUNDS = 5
HEADER = [
    *("name", "model", "accelerator", "num accelerators", "tensor parallel", "pipeline parallel"),
    *("data parallel", "global batch size", "micro batch size", "sequence length", "precision", "recompute"),
]


def plans():
    """Rows that differ in batch and degrees."""
    rows = []
    for number in range(NUM_PLANS):
        tensor, pipeline = 2 ** (number % 4), 2 ** (number // 4 % 3)
        data = 1 + number // 12
        rows.append(
            [f"plan {number}", "GPT3-6.7B", "A100-SXM4-80GB", tensor * pipeline * data, tensor, pipeline, data,
             data * pipeline * 4, 1, 2048, "bf16", ("none", "full")[number % 2]]
        )  # fmt: skip
    return rows


def column_letters(number):
    """Name of a column, counted from 1."""
    letters = ""
    while number:
        number, rest = divmod(number - 1, 26)
        letters = chr(65 + rest) + letters
    return letters


def report(what, times):
    """Print the median and the worst of some times."""
    print(f"{what}: median {statistics.median(times):.2f} s, worst {max(times):.2f} s of {len(times)}")


def main():
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        office = Office(Path(folder))
        install(office.options)
        office.start()
        try:
            measure(office, shutil.copy(workbook(), folder))
        finally:
            office.end()


def measure(office, book):
    """Fill a sheet of a copy of the shipped workbook and time what people wait for."""
    begin = time.monotonic()
    office.open(book)
    print(f"opened the shipped workbook: {time.monotonic() - begin:.2f} s")
    edited, base = bandwidth_of(office, "A100-SXM4-80GB")
    last = column_letters(len(HEADER))
    office("clear_formulas", sheets=["training", "inference", "checks"])  # they are not what is measured
    office("add_sheet", name="cells")
    office("fill", sheet="cells", area=f"A1:{last}{NUM_PLANS + 1}", rows=[HEADER, *plans()])
    scalar = f"=XLPERF_{{}}(A2:{last}2;catalog;$A$1:${last}$1)"
    office("enter", sheet="cells", area="P2", formula=scalar.format("STEP_TIME"))
    filled = office("fill_down", sheet="cells", area=f"P2:P{NUM_PLANS + 1}") + computed(office, NUM_PLANS, "P")
    print(f"filled down {NUM_PLANS} new cells: {filled:.2f} s; bar 3 s")
    edits(office, edited, base, f"an accelerator edited under {NUM_PLANS} cells (bar 2 s)", 1.1)
    searched = bandwidth_of(office, "H200-SXM-141GB")
    edits(office, *searched, f"one that the front sheets search on, edited under {NUM_PLANS} cells (bar 2 s)", 1.1)
    print(f"recalculated {NUM_PLANS} cells whose plans did not change: {office('recalculate'):.2f} s")
    saved = f"{book}.saved.xlsx"
    office("save_as", path=saved)
    office.end()
    office.start()
    begin = time.monotonic()
    office.open(saved)
    computed(office, NUM_PLANS, "P")
    print(f"opened with {NUM_PLANS} cells in a new process: {time.monotonic() - begin:.2f} s; bar 8 s")
    office("fill_formulas", sheet="cells", area=f"P2:P{NUM_PLANS + 1}", rows=[[""]] * NUM_PLANS)
    many_results(office, scalar)
    edits(office, edited, base, "an accelerator edited under 2,000 cells on 200 plans (bar 1.5 s)", 2.1, keep=200)
    blocks(office, edited, base, last)


def bandwidth_of(office, accelerator):
    """Cell and value of the memory bandwidth of an accelerator."""
    headers = office.values("accelerators", "A4:Z4")[0]
    place = next(number for number, text in enumerate(headers) if str(text).startswith("memory bandwidth"))
    row = next(n for n, cells in enumerate(office.values("accelerators", "A1:A80")) if cells[0] == accelerator)
    cell = f"{column_letters(place + 1)}{row + 1}"
    return cell, office.value("accelerators", cell)


def computed(office, rows, *columns):
    """Read columns of results, which computes what is out of date; the time that it took [s]."""
    begin = time.monotonic()
    for column in columns:
        found = office("data", sheet="cells", area=f"{column}2:{column}{rows + 1}")
        assert all(isinstance(line[0], float) for line in found), column
    return time.monotonic() - begin


def edits(office, cell, base, what, factor, keep=None):
    """Time edits of a number of the catalog with the recalculation that follows; only the first rows stay."""
    if keep is not None:
        rows = NUM_PLANS - keep
        office("fill_formulas", sheet="cells", area=f"P{keep + 2}:Y{NUM_PLANS + 1}", rows=[[""] * 10] * rows)
    times = []
    for number in range(ROUNDS):
        edit = office("enter", sheet="accelerators", area=cell, value=base * (factor + number / 10))
        times.append(edit + office("recalculate"))
    report(what, times)


def many_results(office, scalar):
    """Ten results of each of 1,000 plans in cells of their own."""
    names = [own.name for own in results_of("training").columns if own.kind == "result"][:10]
    columns = [column_letters(16 + number) for number in range(10)]
    for column, name in zip(columns, names, strict=True):
        formula = scalar.replace("(A2:", "($A2:").format(name.upper())
        office("enter", sheet="cells", area=f"{column}2", formula=formula)
    took = sum(office("fill_down", sheet="cells", area=f"{column}2:{column}1001") for column in columns)
    print(f"10 cells on each of 1,000 plans: {took + computed(office, 1000, *columns):.2f} s; bar 5 s")


def blocks(office, edited, base, last):
    """A hundred array formulas of 1,000 plans each."""
    columns = len(results_of("training").columns)
    office("fill_formulas", sheet="cells", area="P2:Y201", rows=[[""] * 10] * 200)
    area = f"P1:{column_letters(15 + columns)}{NUM_IN_BLOCK + 1}"
    array = f"=XLPERF_TRAINING(A1:{last}{NUM_IN_BLOCK + 1};;catalog)"
    print(f"entered a block of {NUM_IN_BLOCK} plans: {office('enter', sheet='cells', area=area, array=array):.2f} s")
    edits(office, edited, base, f"an accelerator edited under a block of {NUM_IN_BLOCK} plans x {columns} results", 3.1)
    took = 0.0
    for number in range(100):
        where = f"P{number * 1002 + 2000}:P{number * 1002 + 2000 + NUM_IN_BLOCK}"
        first = number * 90 + 2
        array = f'=XLPERF_TRAINING(A{first}:{last}{first + NUM_IN_BLOCK - 1};"step time";catalog;A1:{last}1)'
        took += office("enter", sheet="cells", area=where, array=array)
    print(f"entered 100 blocks of {NUM_IN_BLOCK} plans: {took + office('recalculate'):.2f} s; bar 20 s")


if __name__ == "__main__":
    main()
