"""Published deployments: the load of each as a form, and the table of the accuracy page."""

from __future__ import annotations

import pytest
from places import ACCURACY_PAGE

from xlperf.base.resources import rows
from xlperf.calibrate.readings import asked_of, deployment_table, deployments, lengths
from xlperf.catalog.catalog import Catalog

DEPLOYMENTS = rows("calibrate/published_deployments.csv")
PAGE = ACCURACY_PAGE


@pytest.mark.parametrize("row", DEPLOYMENTS, ids=[row["name"] for row in DEPLOYMENTS])
def test_a_form_asks_for_the_published_rates(row: dict[str, str]) -> None:
    """Little's law: requests in flight times their speed are the output rate; prompts over outputs the input rate."""
    asked = asked_of(row)
    assert asked["users"] * asked["speed per user"] == pytest.approx(float(row["output_rate"]))
    put_in = float(row["output_rate"]) * asked["prompt length"] / asked["output length"]
    assert put_in == pytest.approx(float(row["input_rate"]), rel=2e-3)
    assert asked["prompt length"] + asked["output length"] / 2.0 == pytest.approx(float(row["context"]), abs=1.0)
    assert row["source"] and row["notes"] and float(row["accelerators"]) > 0.0


def test_the_published_day_has_the_lengths_of_its_statement() -> None:
    """168 billion tokens out and 608 billion in, at a mean context of 4,989 tokens (DeepSeek, February 2025)."""
    prompt, output = lengths(608e9 / 86400.0, 168e9 / 86400.0, 4989.0)
    assert (round(prompt), round(output)) == (4383, 1211)


def test_the_accuracy_page_has_an_answer_for_each_and_repeats_the_engine(catalog: Catalog) -> None:
    page = PAGE.read_text(encoding="utf-8")
    table = page[page.index("<!-- deployments: begin -->") : page.index("<!-- deployments: end -->")]
    lines = {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()
             if line.startswith("| ")}  # fmt: skip
    assert {row["name"] for row in DEPLOYMENTS} <= set(lines)
    assert all(float(lines[row["name"]][-1]) > 0.0 for row in DEPLOYMENTS), "no deployment is refused"
    header, answered = deployment_table(deployments(catalog, names=("Ant Group InferX Pro",)))
    assert tuple(lines["deployment"]) == header
    assert tuple(lines["Ant Group InferX Pro"]) == answered[0]
