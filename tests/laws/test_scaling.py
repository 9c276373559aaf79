"""Laws of scale: seconds measured with another clock, more layers, more replicas, other names and other units."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from laws.samples import (
    all_of,
    as_started,
    changed,
    hold,
    plans_of,
    results_in,
    results_of,
    results_of_all,
    shipped,
    with_columns,
)

from xlperf.base.units import UNITS
from xlperf.catalog.calibration import declared_constants, documented_rows
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import Column, unit_of
from xlperf.catalog.table import Table
from xlperf.engine import evaluate

pytestmark = pytest.mark.slow

CLOSE = 1e-9
SECONDS = {  # exponent of the second in each dimension; where a watt is a joule per second
    **dict.fromkeys(("s", "USD/(B/s)"), 1.0),
    **dict.fromkeys(("B/s", "FLOP/s", "Hz", "W", "USD/s", "kg/s", "request/s", "token/s", "B/s/mm", "W/mm2"), -1.0),
    "USD/W": 1.0,
}


# Another clock


def exponent_of(column: Column) -> float:
    """Exponent of the second in the unit of a column; running cost is stated as a share of the price for a year."""
    if column.is_text:
        return 0.0
    return -1.0 if column.name == "opex_share" else SECONDS.get(unit_of(column).dimension, 0.0)


def timed(table: Table, factor: float) -> Table:
    """A table with every time in it stretched, blanks of such columns filled with their defaults."""
    columns = dict(table.columns)
    for name in table.columns:
        column = table.schema.by_name[name]
        exponent = exponent_of(column)
        if exponent:
            values = table.filled(name) if column.default else table[name]
            columns[name] = values * factor**exponent
    return Table(table.kind, columns, table.place)


def timed_calibration(table: Table, factor: float) -> Table:
    """The calibration with its times stretched, and a row for each declared time that the sheet has not."""
    declared = declared_constants()
    pairs = zip(table["family"].tolist(), table["constant"].tolist(), strict=True)
    stretched = [declared[family][name].unit == "s" for family, name in pairs]
    values = np.where(stretched, table["value"] * factor, table["value"])
    words = ("family", "generation", "precision", "software", "constant")
    known = set(zip(*(table[name].tolist() for name in words), strict=True))
    added = [
        (family, "any", "any", "any", name, one.default * factor)
        for family, constants in declared.items()
        for name, one in constants.items()
        if one.unit == "s" and (family, "any", "any", "any", name) not in known
    ]
    for (family, name), keys in documented_rows().items():  # a row of the sheet takes their place
        rows = [(family, *key, name) for key in keys if declared[family][name].unit == "s"]
        added += [(*row, keys[row[1:4]][1] * factor) for row in rows if row not in known]
    columns: dict[str, np.ndarray] = {}
    for name, old in table.columns.items():
        at = words.index(name) if name in words else 5 if name == "value" else None
        blank = "" if old.dtype == object else np.nan
        more = [
            "/".join(map(str, row[:5])) if name == "calibration" else blank if at is None else row[at] for row in added
        ]
        columns[name] = np.concatenate([values if name == "value" else old, np.array(more, dtype=old.dtype)])
    return Table("calibration", columns, table.place)


def timed_catalog(catalog: Catalog, factor: float) -> Catalog:
    """A catalog whose every rate, time and power is measured with another clock."""
    tables = [timed(table, factor) for name, table in catalog.tables.items() if name != "calibration"]
    return catalog.with_tables([*tables, timed_calibration(catalog.tables["calibration"], factor)])


@pytest.mark.parametrize("kind", ["training", "inference"])
def test_a_clock_that_ticks_half_as_fast(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rates doubled and all times halved: every result scales with its unit to the last bit.

    A time or a rate that an equation has hard-wired, or a forgotten division by one, breaks this. What a sheet may
    state of a constant is a range of times too: a fitted one may lie at its end.
    """
    plans, _ = all_of(kind)
    for constants in declared_constants().values():
        for name, one in constants.items():
            if one.unit == "s":
                monkeypatch.setitem(constants, name, replace(one, low=0.5 * one.low))
    priced = ~_derived(plans)  # derived accelerators take defaults of the sheet prices, which are stated per year
    before, after = results_of_all(kind), evaluate(timed(plans, 0.5), timed_catalog(shipped(), 0.5))
    for name, values in before.columns.items():
        if values.dtype != np.float64:
            continue
        expected = values * 0.5 ** exponent_of(before.schema.by_name[name])
        same = (after[name] == expected) | (np.isnan(after[name]) & np.isnan(expected))
        if any(word in name for word in ("cost", "dollar")):
            same |= ~priced
        hold(f"{name} in other seconds", same, plans, expected=expected, found=after[name])


def _derived(plans: Table) -> np.ndarray:
    """Whether the accelerator of a plan follows from a row of devices."""
    named = [plans[name].tolist() for name in ("accelerator", "prefill_accelerator") if name in plans]
    return np.array([any("(derived)" in word for word in row) for row in zip(*named, strict=True)])


def _unpriced(plans: Table) -> np.ndarray:
    """Whether an accelerator of a plan has no row of the sheet prices."""
    known = set(shipped().tables["prices"].text("price").tolist())
    named = [plans[name].tolist() for name in ("accelerator", "prefill_accelerator") if name in plans]
    return np.array([any(word and word not in known for word in row) for row in zip(*named, strict=True)])


# More layers, more replicas


def with_layers(times: float) -> Catalog:
    """A catalog whose models have several times as many layers of each kind."""
    models = shipped().tables["models"]
    columns = {"num_layers": models["num_layers"] * times, "first_dense_layers": models["first_dense_layers"] * times}
    counted = [
        " : ".join(f"{float(number) * times:g} {what}" for number, what in re.findall(r"(\d+) ([^:]*[^: ])", words))
        if " Mamba-2 : " in words
        else words
        for words in models["attention_pattern"].tolist()
    ]
    columns["attention_pattern"] = np.array(counted, dtype=object)
    return shipped().with_tables([Table("models", {**models.columns, **columns}, models.place)])


NO_LINE = (
    *("memory_capacity", "memory_reserved", "memory_middle_stage", "memory_low", "memory_high"),
    "time_data_parallel",
)


@pytest.mark.parametrize("mode", ["static", "training"])
def test_every_layer_takes_the_same(mode: str) -> None:
    """Times and memory are a line in the number of layers, not below zero at none.

    Not so what of the reduction of gradients is exposed: more layers hide more of it. Nor the ends of the band of the
    memory: between them it is wide where little is used. Activations that are sent to the host hide behind the logits
    too, which are no layer: what is seen of them at no layers is above the time of those below zero. An allocator of
    nanotron that finds no room with more layers waits in each micro-batch, which is a step and no line. Stated bytes of
    weights in the host's memory are a share of the layers that falls with their number, so times are no line in it.
    """
    plans = plans_of(mode)
    models = shipped().tables["models"]
    mixed = dict(zip(models["model"].tolist(), models["attention_pattern"] != "", strict=True))
    uneven = np.array([mixed[model] for model in plans["model"].tolist()])  # some patterns do not divide the layers
    whole = ~uneven & (plans.filled("pipeline_parallel") == 1.0)
    if mode == "training":
        whole &= (plans.filled("wide_layers") == 0.0) & np.isnan(plans["recompute_layers"])
        whole &= (plans.filled("offload_activations") == 0.0) & (plans.filled("offload_optimizer") == 0.0)
    else:
        whole &= np.isnan(plans["host_weights"])
    plans = plans.take(np.flatnonzero(whole))
    one, two, three = results_in(plans, [with_layers(times) for times in (1.0, 2.0, 3.0)])
    waits = np.array([str(name).startswith("nanotron") for name in plans.filled("software").tolist()])
    alike = ~waits | np.logical_and.reduce([each["memory_share"] < 0.55 for each in (one, two, three)])
    names = [name for name in one.columns if name.startswith(("time_", "memory_"))]
    names += ["ttft", "tpot"] if mode == "static" else []
    for name in names:
        if name in NO_LINE:
            continue
        values = [each[name] for each in (one, two, three)]
        line = np.isclose(
            values[2] - values[1], values[1] - values[0], rtol=1e-6, atol=1e-9 * np.nan_to_num(values[2]).max()
        )
        line |= ~alike & (name == "time_overhead")
        hold(f"{name} is a line", line | np.isnan(values[0]), plans, one=values[0], two=values[1], three=values[2])
        rest = 2.0 * values[0] - values[1]
        if name == "time_overhead" and mode == "training":
            hidden = sum(2.0 * one[part] - two[part] for part in ("time_forward", "time_backward"))
            rest = rest + np.where(plans.filled("offload_activations") > 0.0, hidden, 0.0)
        below = (rest < -1e-9 * values[0]) & (alike | (name != "time_overhead"))
        hold(f"{name} of no layers", ~below, plans, one=values[0], two=values[1])


def _on_torus(plans: Table) -> np.ndarray:
    """Whether the network of a plan is a torus, whose shape follows the accelerators of the whole plan."""
    networks, accelerators = shipped().tables["networks"], shipped().tables["accelerators"]
    torus = set(networks["network"][networks["topology"] == "torus"].tolist())
    own = dict(zip(accelerators["accelerator"].tolist(), accelerators["default_network"].tolist(), strict=True))
    named = zip(plans["network"].tolist(), plans["accelerator"].tolist(), strict=True)
    return np.array([(network or own[accelerator]) in torus for network, accelerator in named])


@pytest.mark.parametrize("mode", ["static", "continuous", "rate"])
def test_twice_the_replicas_serve_twice_the_load_at_the_same_speed(mode: str) -> None:
    """But where the network connects no more than the plan has: then the plan is refused and says so."""
    plans = plans_of(mode)
    twice = {name: 2.0 * plans[name] for name in ("num_accelerators", "concurrency", "request_rate", "run_requests")}
    before, after = results_of(mode), evaluate(changed(plans, twice), shipped())
    torus = _on_torus(plans)
    small = np.array([" accelerators at most, the plan has " in reason for reason in after["reason"].tolist()])
    assert small.sum() <= 0.05 * len(plans)
    torus |= small  # the network does not connect twice as many
    for name in ("ttft", "tpot", "latency", "memory", "max_batch_size", "running_batch"):
        same = np.isclose(after[name], before[name], rtol=CLOSE, equal_nan=True) | torus
        hold(f"{name} on twice the replicas", same, plans, before=before[name], after=after[name])
    for name in ("tokens_per_second", "max_request_rate"):
        same = np.isclose(after[name], 2.0 * before[name], rtol=CLOSE, equal_nan=True) | torus
        hold(f"{name} on twice the replicas", same, plans, before=before[name], after=after[name])


# Names, units, defaults


@pytest.mark.parametrize("kind", ["training", "inference"])
def test_names_do_not_matter(kind: str) -> None:
    """Upper case, and what a plan is called."""
    plans, _ = all_of(kind)
    loud = {name: np.array([word.upper() for word in plans[name]], dtype=object) for name in ("model", "accelerator")}
    _same_bits(plans, results_of_all(kind), evaluate(changed(plans, {**loud, "name": "another"}), shipped()))


@pytest.mark.parametrize("kind", ["training", "inference"])
def test_a_stated_default_is_a_blank(kind: str) -> None:
    """A cell with the default of the software, or else of the schema, gives what a blank cell gives."""
    plans, _ = all_of(kind)
    _same_bits(plans, results_of_all(kind), evaluate(as_started(plans), shipped()))


def _same_bits(plans: Table, one: Table, other: Table) -> None:
    for name, values in one.columns.items():
        same = values == other[name]
        if values.dtype == np.float64:
            same |= np.isnan(values) & np.isnan(other[name])
        hold(name, same, plans, before=values, after=other[name])


@pytest.mark.parametrize("plan_kind", ["training", "inference"])
def test_a_sheet_in_other_units_is_the_same_hardware(plan_kind: str) -> None:
    """Accelerators and networks written anew in other units give the same results up to rounding."""
    tables = []
    for kind in ("accelerators", "networks"):
        table = shipped().tables[kind]
        header, columns = [], []
        for name, values in table.columns.items():
            column = table.schema.by_name[name]
            if values.dtype == object:
                header.append(name)
                columns.append(values.tolist())
                continue
            own = unit_of(column)
            symbol = [each for each, unit in UNITS.items() if unit.dimension == own.dimension and each != "%"][-1]
            plain = column.kind == "flag" or own.dimension == "-"
            header.append(name if plain else f"{name} ({symbol})")
            shown = values if plain else values / UNITS[symbol].factor
            columns.append([None if value != value else value for value in shown.tolist()])
        tables.append(table_from_rows(kind, header, list(zip(*columns, strict=True))))
    plans, before = all_of(plan_kind)[0], results_of_all(plan_kind)
    after = evaluate(plans, shipped().with_tables(tables))
    for name, values in before.columns.items():
        if values.dtype == np.float64:
            same = np.isclose(values, after[name], rtol=CLOSE, equal_nan=True)
            hold(name, same, plans, before=values, after=after[name])


def test_a_price_does_not_change_a_time() -> None:
    """Twice the rent and the purchase price: twice the cost, the same times."""
    doubled = shipped()
    for column in ("rental_price", "capex", "energy_price"):
        doubled = with_columns(doubled, "prices", (column,), lambda values: 2.0 * values)
    for kind, cost in (("training", "step_cost"), ("inference", "cost_per_million_output_tokens")):
        plans, _ = all_of(kind)
        own = {name: 2.0 * plans[name] for name in ("hour_price", "energy_price")}
        dearer = replace(plans, columns={**plans.columns, **own})
        before, after = results_of_all(kind), evaluate(dearer, doubled)
        for name, values in before.columns.items():
            if name.startswith(("time_", "memory", "ttft", "tpot", "latency", "energy")):
                same = (values == after[name]) | np.isnan(values)
                hold(name, same, plans, before=values, after=after[name])
        same = np.isclose(after[cost], 2.0 * before[cost], rtol=CLOSE, equal_nan=True)
        same |= _derived(plans) | _unpriced(plans)  # priced by parts, or by a server
        hold(cost, same, plans, before=before[cost], after=after[cost])


# More stages


def test_stages_do_not_multiply_the_rate_of_prompts_by_more_than_their_number() -> None:
    """A pipeline of p stages prefills at most p times as many prompts as one stage, however many passes each takes."""
    columns = ("model", "accelerator", "software", "mode", "num_accelerators", "tensor_parallel", "pipeline_parallel",
               "prefill_accelerators", "prefill_tensor_parallel", "prefill_pipeline_parallel", "prompt_length",
               "output_length", "concurrency", "prefill_tokens", "two_batch_overlap", "data_parallel_attention",
               "expert_parallel", "prefill_data_parallel_attention", "prefill_expert_parallel")  # fmt: skip
    cases = []
    for prompt in (1000, 20_000, 100_000):
        for stages in (1, 2, 4, 8):
            one = [8 * stages, 8, stages, None, None, None, prompt, 2, 64, 8192]
            two = [8 * stages + 64, 8, 1, 8 * stages, 8, stages, prompt, 2, 64 * stages, 8192]
            wide = [0, 8, 8, 8, 8]
            dense = ["Llama3-70B", "H200-SXM-141GB", "vllm"]
            cases.append([*dense, "continuous", *one, 0, None, None, None, None])
            cases.append([*dense, "disaggregated", *two, 0, None, None, None, None])
            for overlap in (0, 1):
                mixture = ["DeepSeek-V3", "H200-SXM-141GB", "sglang", "continuous", *one, *wide[:3]]
                cases.append([*mixture[:14], overlap, 8, 8, None, None])
    plans = table_from_rows("inference", list(columns), cases)
    rates = evaluate(plans, shipped()).number("max_request_rate").reshape(3, 4, -1)
    gain = rates / rates[:, :1] / np.array([1.0, 2.0, 4.0, 8.0])[:, None]
    assert not np.isnan(gain).any()
    assert gain.max() <= 1.02
    assert gain.min() > 0.5
