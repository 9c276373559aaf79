"""How long it takes and what it costs to train a model: the fastest mapping of a run, and the count for a deadline.

A form (a row of the table ``train``) says what is asked; a mapping that it leaves open is searched, and where it gives
a deadline in place of a number of accelerators, the fewest of powers of two that keep it are the answer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from xlperf.base.errors import Fault, InputError
from xlperf.base.units import HOUR, MILLION
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.explore.auto_values import server_sizes
from xlperf.explore.forms import Answer, dollars, one_plan, price_words, short_name, slower, trust
from xlperf.explore.found import GOOD, Search
from xlperf.explore.search import search

SEARCHED = (
    "tensor_parallel", "pipeline_parallel", "virtual_pipeline", "expert_parallel", "micro_batch_size", "recompute",
)  # fmt: skip
COUNTS = tuple(2.0**power for power in range(3, 15))
"""Numbers of accelerators that are tried for a deadline. [-]"""
DAY, TERA = 24.0 * HOUR, MILLION * MILLION
MOST = 200_000
"""Mappings that a form may stand for: a few seconds of work. [-]"""
PARTS = {
    "forward": "forward", "backward": "backward", "recompute": "recomputation", "tensor_parallel": "tensor parallel",
    "context_parallel": "context parallel", "expert_parallel": "expert parallel",
    "pipeline_communication": "between stages", "pipeline_bubble": "pipeline bubble",
    "data_parallel": "data parallel", "optimizer": "optimizer", "overhead": "overhead",
}  # fmt: skip
"""Parts of a step as results name them, and in words; the first two train, the others are losses."""
_MEMORY = ("weights", "gradients", "optimizer", "activations")


def train_answer(form: Table, catalog: Catalog) -> Answer:
    """The fastest mapping of the run that a form asks for, with its time, cost and memory.

    ``form``: one row of kind ``train``. Returns results of the kind ``train_results``. Raises InputError where a name
    is unknown, or neither a number of accelerators nor a deadline is given.
    """
    count, deadline = float(form.number("num_accelerators")[0]), float(form.number("deadline")[0])
    if count == count:
        return _run(form, _mapped(form, count, catalog), catalog)
    if deadline != deadline:
        raise InputError(Fault(form.place(0, "num_accelerators"), "num accelerators or a deadline must be given"))
    largest = float(server_sizes(_plan(form, COUNTS[0]), catalog)[1][0])
    found = None
    for tried in (size for size in COUNTS if size <= largest):
        found = _mapped(form, tried, catalog)
        if found.kind == GOOD and found.results.number("run_time")[0] <= deadline:
            return _run(form, found, catalog)
    if found is None or found.kind != GOOD:
        return _refused(form, found, catalog)
    days, words = found.results.number("run_time")[0] / DAY, short_name(str(form.text("accelerator")[0]))
    reason = f"{COUNTS[-1]:,.0f} {words} still take {days:,.0f} days; give them more days or a larger batch"
    return {"reason": reason, "answer": f"No answer: {reason}."}


def _plan(form: Table, count: float) -> Table:
    columns: dict[str, Any] = {
        name: form[name] for name in ("model", "accelerator", "training_tokens", "sequence_length", "global_batch_size")
    }
    columns |= {"precision": form.filled("precision"), "num_accelerators": np.array([count])}
    columns |= {name: form.text(name) if name == "recompute" else form.number(name) for name in SEARCHED}
    return one_plan("training", columns, SEARCHED, form)


def _mapped(form: Table, count: float, catalog: Catalog) -> Search:
    return search(_plan(form, count), catalog, "step_time", most=MOST)


def _run(form: Table, found: Search, catalog: Catalog) -> Answer:
    if found.kind != GOOD:
        return _refused(form, found, catalog)
    plan, results = found.plans, found.results
    names = (
        "run_time", "run_energy", "run_carbon", "mfu", "goodput", "step_time", "step_time_low", "step_time_high",
        "memory_reserved", "memory_capacity",
    )  # fmt: skip
    answer: Answer = {name: float(results.number(name)[0]) for name in names}
    longer = slower(results, "step_time", catalog)
    answer |= {name: answer[name] * longer for name in ("run_time", "run_energy", "run_carbon", "step_time")}
    answer["mfu"] /= longer
    answer |= {name: float(plan.filled(name)[0]) for name in SEARCHED[:-1]}
    answer["recompute"] = str(plan.filled("recompute")[0])
    count = float(plan.number("num_accelerators")[0])
    pieces = plan.filled("tensor_parallel") * plan.filled("pipeline_parallel") * plan.filled("context_parallel")
    answer |= {"accelerators": count, "data_parallel": count / float(pieces[0])}
    listed, given = float(results.number("accelerator_hour_cost")[0]), float(form.number("hour_price")[0])
    price = given if given == given else listed
    answer["hour_price"] = price
    answer["run_cost"] = answer["run_time"] * count * price
    for end in ("low", "high"):
        share = answer[f"step_time_{end}"] / answer["step_time"]
        answer[f"run_time_{end}"] = answer["run_time"] * share
        answer[f"run_cost_{end}"] = answer["run_cost"] * share
    answer |= {f"memory_{part}": float(results.number(f"memory_{part}")[0]) for part in _MEMORY}
    answer["memory_reserve"] = answer["memory_reserved"] - sum(answer[f"memory_{part}"] for part in _MEMORY)
    answer["memory_free"] = answer["memory_capacity"] - answer["memory_reserved"]
    step = float(results.number("step_time")[0])
    shares = {part: float(results.number(f"time_{part}")[0]) / step for part in PARTS}
    answer |= {f"share_{part}": share for part, share in shares.items()}
    answer["largest_loss"] = PARTS[max(list(PARTS)[2:], key=lambda part: np.nan_to_num(shares[part]))]
    answer["price_basis"] = price_words(given, str(results["cost_basis"][0]))
    answer |= {name: str(results[name][0]) for name in ("trust", "trust_reason")}
    answer["defaults_used"] = (
        f"{plan.filled('software')[0]}, {plan.filled('optimizer')[0]}, ZeRO {plan.filled('zero_stage')[0]:.0f}, "
        f"{plan.filled('attention')[0]} attention; an accelerator fails every "
        f"{plan.filled('accelerator_mtbf')[0] / HOUR:,.0f} h, {plan.filled('restart_time')[0] / 60.0:.0f} min lost"
    )
    answer["answer"] = _sentence(form, answer)
    return answer


def _sentence(form: Table, answer: Answer) -> str:
    accelerator, model = short_name(str(form.text("accelerator")[0])), str(form.text("model")[0])
    cost = f" for {dollars(answer['run_cost'])}" if answer["run_cost"] == answer["run_cost"] else ""
    tokens = form.number("training_tokens")[0] / TERA
    return (
        f"{answer['accelerators']:,.0f} {accelerator} train {model} on {tokens:,.3g} T "
        f"tokens in {answer['run_time'] / DAY:,.1f} days{cost} at {answer['mfu']:.0%} MFU; largest loss: "
        f"{answer['largest_loss']}."
    )


def _refused(form: Table, found: Search | None, catalog: Catalog) -> Answer:
    """Why no mapping does, from the one that comes nearest."""
    words = ""
    if found is not None:
        count = float(found.plans.number("num_accelerators")[0])
        words = f"on {count:,.0f} accelerators: {str(found.results['reason'][0]).split(';')[0]}"
    reason = words or f"no mapping of {form.text('model')[0]} on these accelerators is legal"
    plan = _plan(form, COUNTS[0])
    return {"reason": reason, "answer": f"No answer: {reason}.", **trust("training", plan, catalog)}
