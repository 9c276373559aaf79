"""Rows that come with xlperf: published runs have one time, and every source names what a reader can find."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator

import numpy as np
import pytest
from places import DATA, ROOT
from shipped import shipped_parts, shipped_tables

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import table_schema, unit_of
from xlperf.engine import evaluate
from xlperf.measurements.published import read_published
from xlperf.measurements.training import training_plans

NOT_A_SOURCE = re.compile(
    r"\bid \d{6,}|\bby the tool\b|\bstored(?: page|,)|\braw page\b"
    r"|^\W*(?:remembered|see notes?)?\W*$",
    re.IGNORECASE,
)
"""Look-up numbers, names of tools and words that lead to nothing."""


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("public file, look-up id 54939130361, 8.2", False),
        ("docs.example.com/page.html (stored page)", False),
        ("remembered", False),
        ("", False),
        ("NVIDIA H100 datasheet; L2 remembered", True),
        ("GB200 GKE benchmark README, section 8.2", True),
    ],
)
def test_what_a_source_is(text: str, result: bool) -> None:
    assert (NOT_A_SOURCE.search(text) is None) == result


def _sources() -> Iterator[tuple[str, str]]:
    """Every source that is shipped, with its place."""
    for kind, table in shipped_tables().items():
        if "source" in table.schema.by_name:
            yield from ((f"xlperf.xlsx {kind} {row}", text) for row, text in enumerate(table.text("source").tolist()))
    for sheet, cells in shipped_parts().items():
        if "source" in cells[0]:
            at = cells[0].index("source")
            yield from ((f"validation.xlsx {sheet} {row}", str(line[at] or "")) for row, line in enumerate(cells[1:]))
    for path in (*sorted(DATA.glob("*.csv")), *sorted((ROOT / "xlperf").rglob("*.csv"))):
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        header = set(rows[0]) if rows else set()
        column = "source" if "source" in header and "reference" not in header else "reference"
        if column in header and path.parent.name != "schema":  # its references are names of sheets
            yield from ((f"{path.name} {row}", line[column] or "") for row, line in enumerate(rows))


def test_every_source_names_what_a_reader_can_find() -> None:
    result = list(_sources())
    assert len(result) > 20_000
    assert {place.split()[0] for place, _ in result} >= {"xlperf.xlsx", "validation.xlsx", "kernels.csv"}
    assert [(place, text) for place, text in result if NOT_A_SOURCE.search(text)] == []


def test_a_shipped_run_of_the_papers_has_the_time_that_validate_gives_it(catalog: Catalog) -> None:
    training = next(part for part in read_published(DATA / "training_published.csv") if part.kind == "training")
    published = training_plans(training, catalog)
    papers = [row for row in range(len(published.plans)) if training.text["group"][published.index[row]] == "papers"]
    assert len(papers) == 11
    shipped = shipped_tables()["training"]

    def key(table: object, row: int) -> tuple[object, ...]:
        return tuple(table[name][row] for name in ("model", "num_accelerators", "recompute"))

    rows = {key(shipped, row): row for row in range(len(shipped)) if str(shipped["name"][row]).startswith("GPT ")}
    same = shipped.take([rows[key(published.plans, row)] for row in papers])
    ours, theirs = evaluate(same, catalog), evaluate(published.plans.take(papers), published.catalog)
    for name, values in ours.columns.items():
        if values.dtype != object:
            np.testing.assert_array_equal(values, theirs[name], name)
    assert ours["reason"].tolist() == theirs["reason"].tolist()


def test_an_accelerator_has_the_clock_of_its_peak(catalog: Catalog) -> None:
    """Operations of a unit per clock are some power of two that is built: a clock in MHz is a thousand times off."""
    table = catalog.tables["accelerators"]
    each = table["peak_flop_rate_bf16"] / (table["num_multiprocessors"] * table["clock_rate"])
    known = ~np.isnan(each)
    assert known.sum() > 20
    odd = known & ~((each > 200.0) & (each < 20000.0))
    assert not odd.any(), table["accelerator"][odd].tolist()


SHEETS = ("accelerators", "networks", "prices", "memories", "links", "cores", "devices", "technology", "process_nodes")
FREE = re.compile(
    r"flop_per_clock|^nre_|^mask_set|^sort_time|^tester_rate|^price$|^capex|^wafer_price|^board_cost|^volume|^embodied"
)
"""Columns whose honest values lie far apart: counts per clock, and prices of very different things."""


@pytest.mark.parametrize("kind", SHEETS)
def test_a_usual_value_in_a_unit_a_thousand_times_smaller_is_refused(kind: str) -> None:
    """MHz under GHz, ns under us, um under mm: a thousand times the median that is shipped is above the ceiling."""
    table, open_ended = shipped_tables()[kind], []
    for column in table_schema(kind).columns:
        if column.kind == "number" and column.unit not in ("", "-") and column.name in table:
            values = table.number(column.name) / unit_of(column).factor
            values = values[np.isfinite(values) & (values > 0.0)]
            if len(values) and not column.limits[1] < 1000.0 * np.median(values) and not FREE.search(column.name):
                open_ended.append(column.name)
    assert open_ended == []


def test_rented_and_owned_accelerators_pay_one_price_of_energy() -> None:
    """A reader compares both; the defaults of blank cells too."""
    known = list[float]()
    for kind in ("prices", "servers"):
        declared = table_schema(kind).by_name["energy_price"]
        known += [float(declared.default) * unit_of(declared).factor, *shipped_tables()[kind].filled("energy_price")]
    np.testing.assert_allclose(known, known[0], rtol=1e-9)
