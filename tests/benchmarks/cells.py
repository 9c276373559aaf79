"""Cells in LibreOffice: ``python tests/benchmarks --cells``.

10,000 plans that differ stand in a sheet. Measured are 10,000 cells, each a scalar function on its own plan with a
catalog handle (entered, after an edit of an accelerator, in the saved file opened by a new process), and one array
formula with the results of 1,000 plans. Each round edits a number of the catalog first, so that every plan is
evaluated anew.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.test_libreoffice import Office
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
    """Fill the plan sheet of a copy of the shipped workbook's sheets and time recalculations."""
    office.open(book)
    names = {"GPT3-6.7B": "models", "A100-SXM4-80GB": "accelerators"}
    for name, sheet in names.items():
        known = [row[0] for row in office.values(sheet, "A1:A400")]
        assert name in known, f"{name} is not in {sheet}"
    headers = office.values("accelerators", "A4:Z4")[0]
    place = next(number for number, text in enumerate(headers) if str(text).startswith("memory bandwidth"))
    row = next(n for n, cells in enumerate(office.values("accelerators", "A1:A60")) if cells[0] == "A100-SXM4-80GB")
    edited = f"{column_letters(place + 1)}{row + 1}"
    base = office.value("accelerators", edited)
    rows = plans()
    last = column_letters(len(HEADER))
    office("clear_formulas", sheets=["training", "inference", "checks"])  # they are not what is measured
    office("add_sheet", name="cells")
    office("fill", sheet="cells", area=f"A1:{last}{NUM_PLANS + 1}", rows=[HEADER, *rows])
    formulas = [[f"=XLPERF_STEP_TIME(A{n}:{last}{n};catalog;$A$1:${last}$1)"] for n in range(2, NUM_PLANS + 2)]
    entered = office("fill_formulas", sheet="cells", area=f"P2:P{NUM_PLANS + 1}", rows=formulas)
    print(f"entered {NUM_PLANS} cells: {entered:.2f} s")
    office("recalculate")
    values = office.values("cells", f"P2:P{NUM_PLANS + 1}")
    numbers = {line[0] for line in values if isinstance(line[0], float)}
    print(f"{len(numbers)} different numbers")
    times = []
    for number in range(ROUNDS):
        edit = office("enter", sheet="accelerators", area=edited, value=base * (1.1 + number / 10))
        times.append(edit + office("recalculate"))
    report(f"recalculated {NUM_PLANS} cells", times)
    print(f"recalculated {NUM_PLANS} cells whose plans did not change: {office('recalculate'):.2f} s")
    saved = f"{book}.saved.xlsx"
    office("save_as", path=saved)
    office.end()
    office.start()
    begin = time.monotonic()
    office.open(saved)
    again = office("data", sheet="cells", area=f"P2:P{NUM_PLANS + 1}")
    print(f"opened with {NUM_PLANS} cells in a new process: {time.monotonic() - begin:.2f} s")
    assert all(isinstance(line[0], float) for line in again)
    office("fill_formulas", sheet="cells", area=f"P2:P{NUM_PLANS + 1}", rows=[[""]] * NUM_PLANS)
    columns = len(results_of("training").columns)
    area = f"P1:{column_letters(15 + columns)}{NUM_IN_BLOCK + 1}"
    array = f"=XLPERF_TRAINING(A1:{last}{NUM_IN_BLOCK + 1};;catalog)"
    print(f"entered a spill: {office('enter', sheet='cells', area=area, array=array):.2f} s")
    times = []
    for number in range(ROUNDS):
        edit = office("enter", sheet="accelerators", area=edited, value=base * (1.75 + number / 10))
        times.append(edit + office("recalculate"))
    report(f"recalculated a spill of {NUM_IN_BLOCK} plans x {columns} results", times)
    values = office.values("cells", f"P2:P{NUM_IN_BLOCK + 1}")
    assert all(isinstance(line[0], float) for line in values)


if __name__ == "__main__":
    main()
