"""Plans have the same results in the part of a catalog that they name, which stays the same when other rows change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from laws.random_plans import MODES
from laws.samples import plans_of, results_of, shipped

from xlperf.base.resources import workbook
from xlperf.catalog.catalog import Catalog, part_of
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.read import read_plans
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.explore.forms import evaluate_forms
from xlperf.explore.serve import serve_answer

pytestmark = pytest.mark.slow

FORM = {"model": "DeepSeek-V3", "accelerator": "H200", "users": 1000, "prompt_length": 1000, "output_length": 200}


def differing(result: Table, whole: Table, rows: np.ndarray) -> list[str]:
    """Columns of results that are not the same to the last bit."""
    return [
        name
        for name, values in whole.columns.items()
        for one, other in zip(values[rows], result[name], strict=True)
        if one != other and (one == one or other == other)
    ]


@pytest.mark.parametrize("mode", MODES)
def test_plans_of_every_mode_have_the_results_of_the_whole_catalog_in_its_part(mode: str) -> None:
    plans, whole = plans_of(mode), results_of(mode)
    names = plans.text("accelerator")
    for name in dict.fromkeys(names[:2].tolist()):
        rows = np.flatnonzero(names == name)[:6]
        part = part_of(shipped(), plans.take(rows))
        assert len(part.tables["accelerators"]) < len(shipped().tables["accelerators"])
        assert differing(evaluate(plans.take(rows), part), whole, rows) == []


def test_each_shipped_plan_has_its_results_in_its_part() -> None:
    for plans in read_plans(workbook()):
        stated = ~np.logical_or.reduce([np.zeros(len(plans), dtype=bool), *plans.auto.values()])
        plans = replace(plans.take(np.flatnonzero(stated)), auto={})
        whole = evaluate(plans, shipped())
        for row in range(0, len(plans), 3):
            one = plans.take([row])
            assert differing(evaluate(one, part_of(shipped(), one)), whole, np.array([row])) == []


def edited(catalog: Catalog, kind: str, rows: np.ndarray) -> Catalog:
    """A catalog with every number of some rows of a sheet changed, excluding counts and years."""
    table = catalog.tables[kind]
    columns: Mapping[str, np.ndarray] = {
        name: np.where(rows, values * 1.25, values)
        if values.dtype != object and table.schema.by_name[name].unit not in ("", "-")
        else values
        for name, values in table.columns.items()
    }
    return catalog.with_tables([Table(kind, columns, table.place)])


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("accelerators", ["H200-SXM-141GB"]),
        ("models", ["DeepSeek-V3"]),
        ("prices", ["H200-SXM-141GB"]),
        ("servers", []),
    ],
)
def test_only_edits_of_rows_that_a_form_names_make_another_part(kind: str, names: list[str]) -> None:
    form = table_from_rows("serve", list(FORM), [list(FORM.values())])
    catalog = shipped()
    table = catalog.tables[kind]
    key = "accelerator" if kind == "servers" else table.schema.key.name
    named = np.isin(table.text(key).astype(str), names or ["H200-SXM-141GB"])
    assert named.any()
    part = part_of(catalog, form)
    assert part_of(edited(catalog, kind, ~named), form) is part
    assert part_of(edited(catalog, kind, named), form) is not part


def test_an_answer_follows_an_edit_of_what_its_form_names() -> None:
    asked = {**FORM, "model": "Meta-Llama-3.1-8B"}
    form = table_from_rows("serve", list(asked), [list(asked.values())])
    catalog = shipped()
    own = catalog.tables["accelerators"].text("accelerator") == "H200-SXM-141GB"
    before = evaluate_forms(form, catalog)["answer"][0]
    for rows in (own, ~own):
        other = edited(catalog, "accelerators", rows)
        result, direct = evaluate_forms(form, other), serve_answer(form, other)
        taken = " Accelerator H200 taken as H200-SXM-141GB."
        assert result["answer"][0] == f"{direct['answer']}{taken}"
        assert result.number("tokens_per_second")[0] == direct["tokens_per_second"]
        assert (result["answer"][0] == before) == (rows is not own)
