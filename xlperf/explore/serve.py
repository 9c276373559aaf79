"""Fleet sizing: the fewest accelerators that serve a model to all users at the speed asked for, and the cost.

A form (a row of the table ``serve``) says what is asked; every mapping of a copy of the model is evaluated at the
largest load that keeps the targets, and the one that needs the fewest accelerators for all users is the answer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError
from xlperf.base.units import MILLION
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.launch_rules import checkpoint_format
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.devices import accelerators_of
from xlperf.equations.plan.records import PRECISIONS
from xlperf.explore.candidates import candidates, load_steps, replicas
from xlperf.explore.mappings import server_sizes
from xlperf.explore.search import stacked
from xlperf.explore.search_results import Answer, dollars, one_plan, price_words, short_name, slower

COPY_SIZES = tuple(2.0**power for power in range(8))
"""Accelerators of a copy that are tried. [-]"""
SEARCHED = ("num_accelerators", "tensor_parallel", "expert_parallel", "data_parallel_attention")
EQUAL = 0.01
"""Fleets that are larger than the smallest by no more than this share count as equal: the smaller copy wins. [-]"""
_FLEET_COST = "fleet_cost_per_million_output_tokens"
_COPY_COSTS = ("cost_per_million_output_tokens", "cost_per_million_output_tokens_all_in")
"""Costs of a copy at full load, as the engine has them; the fleet pays for head room and whole servers too."""
_LIMITS = {
    "memory_used": "memory is the limit",
    "speed_used": "the speed per user is the limit",
    "ttft_used": "the time to the first token is the limit",
}


def serve_answer(form: Table, catalog: Catalog) -> Answer:
    """The smallest fleet that serves what a form asks for.

    ``form``: one row of kind ``serve``. Returns results of the kind ``serve_results``. Raises InputError where a name
    is unknown, or neither users nor a request rate is given.
    """
    if np.isnan(form.number("users")[0]) and np.isnan(form.number("request_rate")[0]):
        raise InputError(Fault(form.place(0, "users"), "users or request rate must be given"))
    plans = _plans(form, catalog)
    loads = [_largest_loads(plan, form, catalog) for plan in plans]
    tried, results = (stacked(tables) for tables in zip(*loads, strict=True))
    target = 1.0 / form.filled("speed_per_user")[0]
    ttft = form.number("ttft_target")[0]
    kept = (results.number("fits") == 1.0) & ~(results.number("tpot") > target * (1.0 + 1e-9))
    kept &= ~(results.number("ttft") > ttft)
    if not kept.any():
        return _refused(plans, catalog)
    rows = np.flatnonzero(kept)
    tried, results = tried.take(rows), results.take(rows)
    best = _smallest(form, tried, results)
    return _fleet(form, tried.take([best]), results.take([best]), catalog)


_PRECISIONS = ("fp8", "bf16", "fp16")
"""Precisions of a form that states none: the first that the accelerator has a peak rate of."""
_WIDE = "bf16"
"""Precision of the products of weights in a precision that the accelerator has no peak rate of."""
_OTHER_ENGINE = "vllm"
"""Serving engine of accelerators of other vendors than that of the default engine, which runs on its own alone."""
_VENDOR = "nvidia"


def _formats(form: Table, catalog: Catalog) -> list[dict[str, Any]]:
    """Columns of a plan for each format of the weights: the given one, or the accelerator's and the checkpoint's own.

    Weights in a precision that the accelerator has no peak rate of are multiplied in 16 bits (weight-only).
    """
    row = catalog.rows("accelerators", form.text("accelerator"), form, "accelerator")
    table = accelerators_of(catalog).table

    def computes_in(precision: str) -> bool:
        return bool(table.number(f"peak_flop_rate_{PRECISIONS[precision].peak}")[row][0] > 0.0)

    published = checkpoint_format(str(form.text("model")[0]))
    own = next((name for name in _PRECISIONS if computes_in(name)), "fp16")
    stored = published.get("precision", own)
    found = []
    for precision in [str(form.text("precision")[0])] if form.text("precision")[0] else dict.fromkeys((own, stored)):
        columns: dict[str, Any] = {"precision": np.array([precision], dtype=object)}
        if not computes_in(precision) and computes_in(_WIDE):
            columns["activation_precision"] = np.array([_WIDE], dtype=object)
        if precision == stored and (published.get("wide_attention") or published.get("attention")):
            columns["wide_attention"] = np.ones(1)
        found.append(columns)
    return found


def _software(form: Table, catalog: Catalog) -> str:
    """Serving engine that runs on a form's accelerator."""
    row = catalog.rows("accelerators", form.text("accelerator"), form, "accelerator")
    vendor = str(catalog.tables["accelerators"].text("vendor")[row][0]).casefold()
    return _OTHER_ENGINE if vendor not in ("", _VENDOR) else str(table_schema("inference").by_name["software"].default)


def _plans(form: Table, catalog: Catalog) -> list[Table]:
    """Inference plans of one replica, one for each format; columns that the form leaves blank say ``auto``."""
    columns: dict[str, Any] = {name: form[name] for name in ("model", "accelerator", "prompt_length", "output_length")}
    columns |= {"kv_precision": form.text("kv_precision")}
    columns["software"] = np.array([_software(form, catalog)], dtype=object)
    columns |= {"mode": np.array(["continuous"], dtype=object), "pipeline_parallel": np.ones(1)}
    columns["tpot_target"] = 1.0 / form.filled("speed_per_user")
    columns["ttft_target"] = form.number("ttft_target")
    columns |= {name: form.number(name) for name in SEARCHED}
    return [one_plan("inference", columns | own, SEARCHED, form) for own in _formats(form, catalog)]


def _mapped(plan: Table, catalog: Catalog) -> Table:
    """Every legal mapping of a replica."""
    values = {}
    if np.isnan(plan.number("num_accelerators")[0]):
        largest = server_sizes(plan, catalog)[1][0]
        values["num_accelerators"] = np.array([size for size in COPY_SIZES if size <= largest])
    return candidates(plan, catalog, values).plans


def _largest_loads(plan: Table, form: Table, catalog: Catalog) -> tuple[Table, Table]:
    """Mappings that keep the targets, each at its largest load, and their results."""
    mapped = _mapped(plan, catalog)
    index, batches, copies = load_steps(mapped, catalog, 2)
    last = np.ones(len(index), dtype=bool)
    last[:-1] = index[1:] != index[:-1]
    loaded = mapped.take(index[last])
    users = (batches * copies)[last]
    given = form.number("concurrency")[0]
    columns = {**loaded.columns, "concurrency": users if np.isnan(given) else np.full(len(users), given)}
    loaded = Table("inference", {n: v for n, v in columns.items() if not n.endswith("_target")}, loaded.place)
    return loaded, evaluate(loaded, catalog)


def _users(form: Table, results: Table) -> Array:
    """Requests in flight: as asked, or by Little's law from the request rate and the latency."""
    asked = form.number("users")[0]
    flying = form.number("request_rate")[0] * results.number("latency")
    return np.full(len(results), asked) if asked == asked else flying


def _smallest(form: Table, tried: Table, results: Table) -> int:
    size, load = tried.number("num_accelerators"), tried.number("concurrency")
    fleet = np.ceil(_users(form, results) / load) * size
    near = np.flatnonzero(fleet <= (1.0 + EQUAL) * fleet.min())
    order = np.lexsort((fleet[near], -results.number("tokens_per_second_per_accelerator")[near], size[near]))
    return int(near[order[0]])


def _fleet(form: Table, plan: Table, results: Table, catalog: Catalog) -> Answer:
    found: Answer = {
        name: float(results.number(name)[0])
        for name in (
            "tokens_per_second_per_accelerator", "tokens_per_second_per_user", "ttft", "tpot", "tpot_low", "tpot_high",
            "memory", "memory_capacity",
        )
    }  # fmt: skip
    size, load = (float(plan.number(name)[0]) for name in ("num_accelerators", "concurrency"))
    longer = slower(results, "tpot", catalog)  # a copy that is slower serves fewer users at the speed asked for
    load /= longer
    found["tokens_per_second_per_accelerator"] /= longer
    users = float(_users(form, results)[0])
    server = size if _in_slices(plan, catalog) else float(server_sizes(plan, catalog)[0][0])
    hour = float(form.number("hour_price")[0])
    listed = float(results.number("accelerator_hour_cost")[0])
    price = hour if hour == hour else listed

    def servers(copies: float) -> float:
        return float(np.ceil(copies * size / server))

    copies = float(np.ceil(users / load))
    found |= {name: float(plan.filled(name)[0]) for name in SEARCHED[1:]}
    found |= {"copies": copies, "copy_size": size, "concurrency": load, "users": users, "server_size": server}
    found["request_rate"] = users / float(results.number("latency")[0])
    rate = users / load * float(results.number("tokens_per_second")[0]) / longer
    count = servers(copies) * server
    fleets = {"": count}
    for end in ("low", "high"):
        further = found[f"tpot_{end}"] / found["tpot"] / longer
        fleets[f"_{end}"] = servers(np.ceil(users / load * further)) * server
    found |= {f"accelerators{end}": number for end, number in fleets.items()}
    found["servers"] = servers(copies)
    cost = {end: number * price / rate for end, number in fleets.items()}
    found |= {_FLEET_COST: cost[""], "cost_low": cost["_low"], "cost_high": cost["_high"]}
    found |= {name: float(results.number(name)[0]) * (hour / listed if hour == hour else 1.0) for name in _COPY_COSTS}
    found |= {"tokens_per_second": rate, "hour_price": price}
    found["monthly_cost"] = count * price * float(form.filled("hours_per_month")[0])
    each = float(results.number("energy_per_token")[0] * results.number("tokens_per_second_per_accelerator")[0])
    found |= {"power_per_accelerator": each, "power": each * count}
    found["users_that_fit"] = np.floor(count / size) * load
    found["head_room"] = found["users_that_fit"] / users - 1.0
    found["memory_used"] = found["memory"] / found["memory_capacity"]
    found["speed_used"] = found["tpot"] * float(form.filled("speed_per_user")[0])
    found["ttft_used"] = float(np.nan_to_num(found["ttft"] / form.number("ttft_target")[0]))
    found["users_used"] = users / found["users_that_fit"]
    found["limit"] = _LIMITS[max(_LIMITS, key=lambda name: float(found[name]))]
    found["price_basis"] = price_words(hour, str(results["cost_basis"][0]))
    found["answer"] = _sentence(found, short_name(plan.text("accelerator")[0]), _in_slices(plan, catalog))
    found |= {name: str(plan.filled(name)[0]) for name in ("precision", "software")}
    products = str(plan.text("activation_precision")[0]) or found["precision"]
    found["answer"] += _format_words(str(plan.text("model")[0]), found["precision"], PRECISIONS[products].peak)
    found["kv_precision"] = str(plan.text("kv_precision")[0]) or PRECISIONS[products].cache
    found |= {name: str(results[name][0]) for name in ("trust", "trust_reason")}
    found["defaults_used"] = _defaults(plan)
    return found


def _in_slices(plan: Table, catalog: Catalog) -> bool:
    """Whether accelerators are sold in slices of any size, as on a torus, which has no servers."""
    accelerators, networks = catalog.tables["accelerators"], catalog.tables["networks"]
    row = catalog.rows("accelerators", plan.text("accelerator"), plan, "accelerator")
    tiers = catalog.network_tiers(str(accelerators.text("default_network")[row][0]))
    return len(tiers) > 0 and str(networks.text("topology")[tiers[0]]) == "torus"


_MANY = 1.5
"""Accelerators of whole servers over those that serve, from which on an answer says both. [-]"""


def _sentence(found: Answer, accelerator: str, slices: bool) -> str:
    unit = f"{'slice' if slices else 'server'}{'s' * (found['servers'] != 1)}"
    used = found["copies"] * found["copy_size"]
    many = f"{found['accelerators']:,.0f} {accelerator} in {found['servers']:,.0f} {unit}"
    many += f" ({used:,.0f} would do)" if found["accelerators"] >= _MANY * used else ""
    speed = f"{found['users']:,.0f} users at {found['tokens_per_second_per_user']:,.0f} tokens/s each"
    price = found[_FLEET_COST] * MILLION
    cost = f" for {dollars(price)} per million output tokens" if price == price else ""
    return f"{many} serve {speed}{cost}; {found['limit']}."


def _format_words(model: str, weights: str, products: str) -> str:
    """A sentence on weights whose products or attention are wider, or that are not as published; "" for others."""
    published = checkpoint_format(model)
    stored = published.get("format") or published.get("precision", weights).upper()
    own = published.get("precision", weights) == weights
    words = f" {stored if own else weights.upper()} weights"
    weight_only = products == _WIDE and PRECISIONS[weights].weight_size < PRECISIONS[_WIDE].weight_size
    remarks = [f", products in {products}"] if weight_only else []
    if own and published.get("attention"):
        remarks.append(f"; attention counts in 16 bits, {published['attention']} in the checkpoint")
    elif not own:
        remarks.append(f"; the published checkpoint has {stored}")
    return f"{words}{''.join(remarks)}." if remarks else ""


def _defaults(plan: Table) -> str:
    engine = str(plan.filled("software")[0])
    return f"{engine}, continuous batching, no shared prefixes, no speculative decoding, no spare servers"


def _refused(plans: list[Table], catalog: Catalog) -> Answer:
    """Why no mapping meets the targets: the nearest one, or the reason given for the largest replica."""
    accelerator, model = short_name(plans[0].text("accelerator")[0]), str(plans[0].text("model")[0])
    tried = stacked([_mapped(plan, catalog) for plan in plans])
    columns = {name: values for name, values in tried.columns.items() if not name.endswith("_target")}
    tried = Table("inference", {**columns, "concurrency": replicas(tried)}, tried.place)
    results = evaluate(tried, catalog)
    good = results.number("fits") == 1.0
    if good.any():
        fastest = float(np.nanmax(results.number("tokens_per_second_per_user")[good]))
        soonest = float(np.nanmin(results.number("ttft")[good]))
        reason = (
            f"no copy of {model} on up to {tried.number('num_accelerators').max():.0f} {accelerator} keeps these "
            f"targets: alone, a user gets {fastest:,.0f} tokens/s at most and the first token after {soonest:,.2f} s"
        )
    else:
        reason = str(results["reason"][-1]).split(";")[0] or f"no mapping of {model} fits on {accelerator}"
    return {"reason": reason, "answer": f"No answer: {reason}."}
