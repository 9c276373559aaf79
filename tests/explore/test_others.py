"""The demand of Serve on other accelerators: each as Serve answers there."""

from __future__ import annotations

import numpy as np
import pytest

from xlperf.base.errors import Fault, InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.explore import others
from xlperf.explore.fleet_plans import Fleet
from xlperf.explore.forms import answer_of, form_of, table_of
from xlperf.explore.serve import serving_ways

ASKED = {"model": "Meta-Llama-3.1-8B", "accelerator": "H100-SXM-80GB", "users": "700", "speed_per_user": "30",
         "prompt_length": "900", "output_length": "200"}  # fmt: skip


def test_other_accelerators_cost_what_serve_says_of_each(catalog: Catalog) -> None:
    others = table_of(form_of("serve", ASKED), "others", catalog)
    names = others["accelerator"].tolist()
    assert "H100-SXM-80GB" not in names
    assert {"H200-SXM-141GB", "B200-SXM-180GB", "MI300X"} <= set(names)
    for row, name in enumerate(names):
        alone = answer_of(form_of("serve", ASKED | {"accelerator": name}), catalog)
        for column in ("accelerators", "fleet_cost_per_million_output_tokens", "power"):
            assert others.number(column)[row] == alone[column], (name, column)
        assert (others["software"][row], others["mode"][row]) == (alone["software"], alone["mode"])
    costs = others.number("fleet_cost_per_million_output_tokens")
    assert (np.diff(costs) >= 0.0).all()


def test_other_accelerators_are_mapped_anew(catalog: Catalog) -> None:
    fixed = ASKED | {"tensor_parallel": "8", "hour_price": "9", "software": "vllm"}
    tables = [table_of(form_of("serve", asked), "others", catalog) for asked in (ASKED, fixed)]
    assert [table["accelerator"].tolist() for table in tables][1:] == [tables[0]["accelerator"].tolist()]
    assert tables[1].number("accelerators").tolist() == tables[0].number("accelerators").tolist()


def test_a_fault_of_one_accelerator_leaves_the_others(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    def ways(form: Table, known: Catalog) -> list[Fleet]:
        if form["accelerator"][0] == "MI300X":
            raise InputError(Fault("accelerators [MI300X]", "a fault"))
        return serving_ways(form, known)

    monkeypatch.setattr(others, "serving_ways", ways)
    names = table_of(form_of("serve", ASKED | {"users": "650"}), "others", catalog)["accelerator"].tolist()
    assert "MI300X" not in names and {"H200-SXM-141GB", "B200-SXM-180GB", "MI355X"} <= set(names)


def test_a_demand_that_no_other_accelerator_serves_has_no_rows(catalog: Catalog) -> None:
    assert len(table_of(form_of("serve", ASKED | {"speed_per_user": "50000"}), "others", catalog)) == 0
