"""Readings: rows of publishers in no fit, each with the prediction that was made of it first; baselines; the page."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from places import ACCURACY_PAGE, ROOT
from shipped import shipped_page, shipped_published

from xlperf.base import resources
from xlperf.base.errors import InputError
from xlperf.calibrate.accuracy import markdown, write_tables
from xlperf.calibrate.published_errors import OTHER_MACHINES, UNSEEN, plans_to_fit, read_measured, seen_rows
from xlperf.calibrate.readings import Baselines, first_predictions
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.measurements.comparison import FIRST_TOKEN, MEMORY, STEP_TIME, TIME_PER_TOKEN
from xlperf.measurements.published import Published, sheet_rows


def unseen_of(rows: Published) -> Published:
    groups = rows.text["group"]
    return rows.take([row for row, group in enumerate(groups) if group.startswith(UNSEEN)])


def is_later(group: str) -> bool:
    """Whether rows were read later, as unseen ones, and are in the fit of their machines since."""
    return group.startswith(OTHER_MACHINES) and group.endswith("-later")


def test_unseen_rows_are_in_no_fit(catalog: Catalog) -> None:
    measured, published = read_measured(), shipped_published()
    for rows, known in zip(published, (measured.training, measured.inference), strict=True):
        unseen = set(unseen_of(rows).text["row_id"])
        assert unseen and set(known.text["row_id"]) == set(rows.text["row_id"]) - unseen
        assert set(seen_rows(rows).text["row_id"]) == set(known.text["row_id"])
        plans = plans_to_fit(unseen_of(rows), catalog)
        assert len(plans.plans) == 0 and len(plans.published) == 0


def test_no_run_of_measured_csv_is_of_software_that_only_unseen_rows_used() -> None:
    table = csv.DictReader(resources.table("catalog/measured.csv").read_text(encoding="utf-8").splitlines())
    names = {word for row in table for word in row["software"].split() if row["kind"] == "training"}
    rows = next(rows for rows in shipped_published() if rows.kind == "training")
    known = {name.casefold() for name in seen_rows(rows).text["software"]}
    only = {name.casefold() for name in unseen_of(rows).text["software"]} - known
    assert only and not only & names


def test_every_unseen_row_has_its_first_prediction() -> None:
    published = shipped_published()
    sheet = sheet_rows(resources.workbook("validation.xlsx"), "first_predictions", "row_id")
    assert sheet is not None
    lines = [dict(zip(sheet[0], row, strict=True)) for row in sheet[1]]
    assert len({(row["kind"], row["row_id"], row["metric"]) for row in lines}) == len(lines) == len(first_predictions())
    at = {(rows.kind, name): (rows, row) for rows in published for row, name in enumerate(rows.text["row_id"])}
    first = {(row["kind"], row["row_id"]) for row in lines}
    for rows in published:
        later = [name for name, group in zip(rows.text["row_id"], rows.text["group"], strict=True) if is_later(group)]
        assert {(rows.kind, name) for name in (*unseen_of(rows).text["row_id"], *later)} == {
            one for one in first if one[0] == rows.kind
        }
    for line in lines:
        rows, row = at[line["kind"], line["row_id"]]
        assert float(line["measured"]) == pytest.approx(rows.number[line["metric"]][row], rel=1e-4)
        assert line["source_id"] == rows.text["source_id"][row]
        assert line["commit"] and line["date"] and line["group"].startswith(UNSEEN)
        assert rows.text["group"][row] == line["group"] or is_later(rows.text["group"][row])
        if line["predicted"] and line["low"]:  # a prefill alone has no band
            assert float(line["low"]) <= float(line["predicted"]) <= float(line["high"])


def test_baselines_are_few_constants_of_the_rows_of_the_fit() -> None:
    """MFU of dense models, bandwidth of decoding: shares of what a machine can, on generations with rows.

    Of every fifth row; rows that no fit reads move no constant.
    """
    some = [rows.take(range(0, len(rows), 5)) for rows in shipped_published()]
    seen = [seen_rows(rows) for rows in some]
    assert sum(map(len, seen)) < sum(map(len, some))
    constants = Baselines(seen, load_catalog()).constants
    assert constants == Baselines(some, load_catalog()).constants
    assert 8 < len(constants) < 60
    for quantity in (STEP_TIME, TIME_PER_TOKEN, FIRST_TOKEN, MEMORY):
        share = np.exp(constants[quantity, "hopper", False])
        assert 0.1 < share < 1.1, (quantity, share)


def test_the_table_has_a_baseline_beside_each_line() -> None:
    header, lines = shipped_page().expected()
    assert [line[:2] for line in lines] == [
        (quantity, kind) for quantity in (STEP_TIME, TIME_PER_TOKEN, FIRST_TOKEN, MEMORY)
        for kind in ("dense", "with experts")
    ]  # fmt: skip
    few, median, band = (header.index(name) for name in ("few constants", "median error", "in the 80 % band"))
    for line in lines:
        assert all(line[at].endswith(" %") for at in (few, median, band)) and 60 < int(line[band].split()[0]) < 95


def test_the_page_is_two_pages_and_the_readme_has_six_of_its_rows() -> None:
    """Both as the rows of today give them: one command renews either."""
    text, readme = (path.read_text(encoding="utf-8") for path in (ACCURACY_PAGE, ROOT / "README.md"))
    assert len(text.splitlines()) <= 142
    shown = [line for line in text.splitlines() if line.startswith("| step time | dense")]
    header, lines = shipped_page().short()
    assert len(lines) == 6 and markdown("accuracy", (header, lines)).strip() in readme
    assert len(shown) == 1 and lines[0][3] in shown[0]


def test_tables_go_between_their_markers(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("before\n<!-- readings: begin -->\nold\n<!-- readings: end -->\nafter\n", encoding="utf-8")
    assert write_tables(path, shipped_page()) == ["readings"]
    text = path.read_text(encoding="utf-8")
    assert text.startswith("before\n<!-- readings: begin -->\n| reading |") and text.endswith("end -->\nafter\n")
    assert "old" not in text and "| sixth |" in text
    path.write_text("nothing", encoding="utf-8")
    with pytest.raises(InputError, match=r"page\.md: has no lines <!-- expected: begin --> and <!-- expected: end -->"):
        write_tables(path, shipped_page())
