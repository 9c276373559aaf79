"""What an accelerator of one's own would be worth: its rates and cost from budgets, and what it serves, beside others.

A form (a row of the table ``chip``) becomes a row of the sheets ``devices`` and ``accelerators`` of a catalog of its
own; the model that it names is then served on it as on any other accelerator.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table
from xlperf.engine.devices import accelerators_of, device_cost_parts, evaluate_devices
from xlperf.explore.forms import BESIDE, Answer, answer_of, dollars

CHIP = "My chip"
_NAMED = ("technology", "core", "memory", "link", "package")
_BUDGETS = ("num_dies", "die_area", "power_budget", "margin_share", "volume")
_RATES = (
    "peak_flop_rate_bf16", "peak_flop_rate_fp8", "memory_capacity", "memory_bandwidth", "thermal_design_power",
)  # fmt: skip
_DEVICE = ("unit_cost", "capex", "memory_stacks", "num_multiprocessors", "power_compute")
_LOSSES = ("package_defects", "wasted_dies", "wasted_memory")
PARTS = {
    "cost_dies": "raw_dies", "cost_defects": "die_defects", "cost_package": "raw_package", "cost_memory": "memory",
    "cost_test": "test", "cost_board": "board_cost", "cost_design": "nre_per_unit",
}  # fmt: skip
MARGIN = 0.02
"""Stacks beyond those asked for that the edge has room for, so that rounding loses none. [-]"""
USERS = 1000.0


def chip_answer(form: Table, catalog: Catalog) -> Answer:
    """What the chip of a form, or the accelerator that it names, costs and serves.

    ``form``: one row of kind ``chip``. ``catalog``: technology, models and the accelerators to hold it against. Returns
    results of the kind ``chip_results``. Raises InputError where a name is unknown.
    """
    named = str(form.text("accelerator")[0])
    if named:
        return _served(form, named, catalog)
    device = _device(form, catalog)
    results = evaluate_devices(device, catalog)
    if np.isnan(results.number("thermal_design_power")[0]):
        reason = str(results["reason"][0])
        return {"reason": reason, "answer": f"No answer: {reason}."}
    own = catalog.with_tables([_appended(catalog.tables["devices"], device), _accelerators(catalog)])
    answer = _served(form, CHIP, own)
    answer |= {name: float(results.number(name)[0]) for name in _DEVICE}
    answer["limited_by"] = str(results["limited_by"][0])
    parts = device_cost_parts(device, catalog)
    if parts is not None:
        answer |= {name: float(parts.number(part)[0]) for name, part in PARTS.items()}
        answer["cost_losses"] = sum(float(parts.number(part)[0]) for part in _LOSSES)
    asked = form.number("memory_stacks")[0]
    if asked > answer["memory_stacks"]:
        answer["limited_by"] += f"; {asked:.0f} stacks asked for, {answer['memory_stacks']:.0f} have room"
    answer["answer"] = _sentence(form, answer, catalog)
    return answer


def _device(form: Table, catalog: Catalog) -> Table:
    columns: dict[str, Any] = {"device": np.array([CHIP], dtype=object)}
    columns |= {name: form.text(name) for name in _NAMED}
    columns |= {name: form.filled(name) for name in _BUDGETS}
    order = [column.name for column in table_schema("devices").columns]
    device = Table("devices", {name: columns[name] for name in order if name in columns}, form.place)
    stacks = form.number("memory_stacks")
    if np.isnan(stacks[0]):
        return device
    perimeter = evaluate_devices(device, catalog, costs=False).number("outer_perimeter")
    row = catalog.rows("memories", form.text("memory"), form, "memory")
    edge = (stacks + MARGIN) * catalog.tables["memories"].number("shoreline")[row]
    columns["memory_shoreline_share"] = np.minimum(edge / perimeter, 1.0 - device.filled("link_shoreline_share"))
    return Table("devices", {name: columns[name] for name in order if name in columns}, form.place)


def _appended(table: Table, row: Table) -> Table:
    """A table with one row more; columns that the row lacks are blank in it."""
    columns = {}
    for column in table.schema.columns:
        if column.name in table or column.name in row:
            values = [part.text(column.name) if column.is_text else part.number(column.name) for part in (table, row)]
            columns[column.name] = np.concatenate(values)
    return Table(table.kind, columns, table.place)


def _accelerators(catalog: Catalog) -> Table:
    """The sheet ``accelerators`` with the chip, of the kernels and the network of the accelerator beside it."""
    table = catalog.tables["accelerators"]
    like = int(catalog.known_rows("accelerators", np.array([BESIDE], dtype=object))[0])
    columns = {
        "accelerator": CHIP,
        "generation": table.text("generation")[like] if like >= 0 else "",
        "default_network": table.text("default_network")[like] if like >= 0 else "",
        "device": CHIP,
    }
    row = {name: np.array([value], dtype=object) for name, value in columns.items()}
    return _appended(table, Table("accelerators", row, table.place))


def _served(form: Table, accelerator: str, catalog: Catalog) -> Answer:
    """Rates of an accelerator and what it serves of the model of the form."""
    name = np.array([accelerator], dtype=object)
    columns: dict[str, Any] = {"model": form.text("model"), "precision": form.filled("precision"), "accelerator": name}
    columns |= {"users": np.array([USERS]), "prompt_length": form.number("prompt_length")}
    columns |= {"output_length": form.number("output_length"), "speed_per_user": form.filled("speed_per_user")}
    served = answer_of(Table("serve", columns, form.place), catalog)
    every = accelerators_of(catalog)
    row = int(catalog.rows("accelerators", name, form, "accelerator")[0])
    answer: Answer = {rate: float(every.table.number(rate)[row]) for rate in _RATES}
    price = int(catalog.price_rows[row])
    listed = float(catalog.tables["prices"].number("capex")[price]) if price >= 0 else np.nan
    capex = float(every.capex[row])
    answer["capex"] = capex if capex == capex else listed
    tokens = float(served.get("tokens_per_second_per_accelerator", np.nan))
    answer["tokens_per_second_per_accelerator"] = tokens
    answer["tokens_per_thousand_dollars"] = 1000.0 * tokens / answer["capex"]
    answer["reason"] = str(served.get("reason", ""))
    answer["answer"] = f"{accelerator}: {tokens:,.0f} tokens/s" if tokens == tokens else str(served["answer"])
    return answer


def _sentence(form: Table, answer: Answer, catalog: Catalog) -> str:
    dies, area = form.filled("num_dies")[0], form.filled("die_area")[0]
    size = f"{dies:.0f} x {area:,.0f} mm2 at {form.text('technology')[0]}"
    cost = f" cost {dollars(answer['unit_cost'])} to make" if answer["unit_cost"] == answer["unit_cost"] else ""
    made = f"{size} with {answer['memory_stacks']:.0f} stacks of {form.text('memory')[0]}{cost}"
    tokens = answer["tokens_per_second_per_accelerator"]
    if tokens != tokens:
        return f"{made}; it does not serve {form.text('model')[0]} this way: {answer['reason']}."
    if catalog.known_rows("accelerators", np.array([BESIDE], dtype=object))[0] < 0:
        return f"{made}; one serves {tokens:,.0f} tokens/s."
    other = _served(form, BESIDE, catalog)
    ratio = tokens / other["tokens_per_second_per_accelerator"]
    worth = answer["tokens_per_thousand_dollars"] / other["tokens_per_thousand_dollars"]
    return f"{made}; one serves {ratio:.1f} x the tokens of a B200, {worth:.1f} x per dollar of its price."
