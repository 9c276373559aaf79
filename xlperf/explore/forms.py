"""Forms and their answers as tables: what to serve a model on, how to train one, and a chip of one's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from xlperf.base import resources
from xlperf.base.arrays import Array, added
from xlperf.base.errors import Fault, InputError
from xlperf.base.units import HOUR, MILLION
from xlperf.catalog.calibration import ANY, generation_line
from xlperf.catalog.catalog import Catalog, part_of
from xlperf.catalog.cells import number_of
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import FORMS, first_words, results_of, table_schema
from xlperf.catalog.table import Place, Table, nowhere
from xlperf.engine.devices import TOO_LARGE_DIE, accelerators_of, device_cost_parts, evaluate_devices
from xlperf.explore.fleet_plans import ONE, with_columns
from xlperf.explore.mappings import MOST_ACCELERATORS, server_sizes, sold_counts
from xlperf.explore.search import stacked
from xlperf.explore.search_results import (
    GOOD,
    Answer,
    Search,
    dollars,
    one_plan,
    price_words,
    short_name,
    slower,
)
from xlperf.explore.serve import best_way, other_machines, serve_answer, serving_ways
from xlperf.explore.space import divides, divisors, powers_of_two
from xlperf.explore.train import FOLLOWING, SEARCHED, best_mapping

BESIDE = "B200-SXM-180GB"
"""Accelerator that a chip is compared with."""
_known: WeakKeyDictionary[Catalog, dict[object, Answer]] = WeakKeyDictionary()


OTHERS = ("H100-SXM-80GB", "H200-SXM-141GB", "B200-SXM-180GB", "GB200-NVL72", "MI300X", "MI355X")
"""Accelerators that an answer is held against, those of them that a catalog has."""


def form_of(kind: str, words: Mapping[str, str], place: Place = nowhere) -> Table:
    """A form as a table of one row, from what stands in its entries.

    ``words``: texts by column. ``place``: names an entry in a message. Raises InputError where one is not legal.
    """
    known = table_schema(kind).by_name
    cells = [number_of(text) if known[name].kind == "number" else text for name, text in words.items()]
    cells = [text if cell != cell else cell for cell, text in zip(cells, words.values(), strict=True)]
    return table_from_rows(kind, [known[name].header for name in words], [cells], place)


def first_forms(catalog: Catalog) -> Iterator[Table]:
    """The forms of the shipped workbook as they are first, and those that it shows beside each."""
    counts = next(row["choices"] for row in resources.rows("workbook/forms.csv") if row["column"] == "num_accelerators"
                  and row["form"] == "train")  # fmt: skip
    known = catalog.tables["accelerators"].text("accelerator")
    beside = [{"accelerator": name} for name in OTHERS if name in known]
    changes = {"serve": beside, "train": [{"num_accelerators": count} for count in counts.split(",")[1:6]]}
    for kind in FORMS:
        first = first_words(kind)
        yield from (form_of(kind, first | changed) for changed in ({}, *changes.get(kind, beside[:4])))


def evaluate_forms(forms: Table, catalog: Catalog) -> Table:
    """Answers of forms, each found by a search.

    ``forms``: rows of a kind of :data:`xlperf.catalog.schema.FORMS`; what is blank or ``auto`` of a mapping is
    searched. Returns the results of the kind, row by row; where there is no answer, numbers are NaN and ``reason`` says
    why. Raises InputError where a name is unknown or a form lacks what its question needs.
    """
    rows = [forms.take([row]) for row in range(len(forms))]
    return answers_table(forms, [answer_of(form, catalog) | _beside(form, catalog) for form in rows])


def _beside(form: Table, catalog: Catalog) -> Answer:
    """What an answer is held against: the best way to serve beside the one that a form sets, or machines that would."""
    if form.kind != "serve":
        return {}
    form, _ = _with_exact_names(form, catalog)
    part = part_of(catalog, form)
    best = best_way(form, part)
    if best or serving_ways(form, part):
        return best
    names = [name for name in OTHERS if name in catalog.tables["accelerators"].text("accelerator")]
    return other_machines(form, names, catalog)


def answer_of(form: Table, catalog: Catalog) -> Answer:
    """Answer of one form, from a cache as long as the rows of the catalog that it names stay what they are.

    ``form``: one row.
    """
    form, taken = _with_exact_names(form, catalog)
    is_built = form.kind == "chip" and not form.text("accelerator")[0]
    part = part_of(catalog, form, (BESIDE,) if is_built else ())
    given = ((name, str(values[0])) for name, values in sorted(form.columns.items()))
    open_ = tuple(sorted(name for name, mask in form.auto.items() if mask[0]))
    key = form.kind, open_, tuple((name, value) for name, value in given if value not in ("", "nan"))
    cached = _known.setdefault(part, {})
    if key not in cached:
        cached[key] = _SOLVERS[form.kind](form, part)
    answer = dict(cached[key])
    return answer | {"answer": " ".join([str(answer["answer"]), *taken])} if taken else answer


def ways_of(form: Table, catalog: Catalog) -> tuple[Table, Table]:
    """All ways to serve what a form asks for: plans of their copies as they are evaluated, and their answers.

    ``form``: one row of kind ``serve``. Returns one row for each way, the cheapest first.
    """
    form, _ = _with_exact_names(form, catalog)
    part = part_of(catalog, form)
    fleets = serving_ways(form, part)
    if not fleets:
        return Table("inference", {}), answers_table(form, [])
    ways = [with_columns(form, way=float(number)) for number in range(1, len(fleets) + 1)]
    return stacked([fleet.plan for fleet in fleets]), answers_table(form, [answer_of(way, part) for way in ways])


def _with_exact_names(form: Table, catalog: Catalog) -> tuple[Table, list[str]]:
    """A form whose names are spelled as the catalog spells them, and a sentence for each name that was not."""
    columns, said = dict(form.columns), []
    for column in form.schema.columns:
        if column.kind != "reference" or column.name not in form:
            continue
        catalog.rows(column.reference, form[column.name], form, column.name)
        name = str(form[column.name][0])
        exact = catalog.taken(column.reference).get(name)
        if exact is not None:
            columns[column.name] = np.array([exact], dtype=object)
            said.append(f"{column.name.replace('_', ' ').capitalize()} {name} taken as {exact}.")
    return replace(form, columns=columns), said


def answers_table(forms: Table, answers: Sequence[Answer]) -> Table:
    """Answers as the table of results of their kind."""
    schema = results_of(forms.kind)
    columns: dict[str, np.ndarray] = {}
    for column in schema.columns:
        blank: Any = "" if column.is_text else np.nan
        found = [answer.get(column.name, blank) for answer in answers]
        columns[column.name] = np.array(found, dtype=object if column.is_text else np.float64)
    return Table(schema.name, columns, forms.place)


FIRST_COUNT = 256.0
"""Accelerators that are tried first for a deadline. [-]"""
MOST_TURNS, EFFICIENT = 24, 0.85
"""Numbers of accelerators tried for a deadline; accelerator time of a run over that of the first, at the least. [-]"""
DAY, TERA = 24.0 * HOUR, MILLION * MILLION
TRAINING_PARTS = {
    "forward": "forward", "backward": "backward", "recompute": "recomputation", "tensor_parallel": "tensor parallel",
    "context_parallel": "context parallel", "expert_parallel": "expert parallel",
    "pipeline_communication": "between stages", "pipeline_bubble": "pipeline bubble",
    "data_parallel": "data parallel", "optimizer": "optimizer", "overhead": "overhead",
}  # fmt: skip
"""Parts of a step as results name them, and in words; the first two train, the others are losses."""
_MEMORY = ("weights", "gradients", "optimizer", "activations")
_UNMEASURED = "a training stack of which no run is published"


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
    found = _fewest(form, deadline, catalog)
    if found is None or found.kind != GOOD:
        return _refused(form, found)
    if _keeps(found, deadline):
        return _run(form, found, catalog)
    count = float(found.plans.number("num_accelerators")[0])
    days, words = found.results.number("run_time")[0] / DAY, short_name(str(form.text("accelerator")[0]))
    reason = f"{count:,.0f} {words} still take {days:,.0f} days; give them more days or a larger batch"
    return {"reason": reason, "answer": f"No answer: {reason}."}


def _keeps(found: Search, deadline: float) -> bool:
    return found.kind == GOOD and bool(found.results.number("run_time")[0] <= deadline)


def _fewest(form: Table, deadline: float, catalog: Catalog) -> Search | None:
    """The run on the fewest accelerators, in whole servers, that keeps a deadline; else the fastest that was tried.

    From one that fits on, numbers are tried upwards from where the deadline could be met with fewer losses.
    """
    counts = _promising(form, catalog)
    found, place = None, int(np.searchsorted(counts, FIRST_COUNT))
    while found is None or (found.kind != GOOD and place < len(counts)):
        found = _mapped(form, float(counts[min(place, len(counts) - 1)]), catalog)
        place = int(np.searchsorted(counts, 4.0 * counts[min(place, len(counts) - 1)]))
    best = found
    if found.kind != GOOD:
        return found
    work = float(found.plans.number("num_accelerators")[0] * found.results.number("run_time")[0])
    rest = [count for count in counts.tolist() if count >= EFFICIENT * work / deadline]
    for count in rest[:MOST_TURNS]:
        found = _mapped(form, count, catalog)
        if _keeps(found, deadline):
            return found
        faster = found.kind == GOOD and found.results.number("run_time")[0] < best.results.number("run_time")[0]
        best = found if faster else best
    return best


def _promising(form: Table, catalog: Catalog) -> Array:
    """Numbers of accelerators in whole servers with replicas that divide the batch and stages that divide the layers.

    Stages are divisors of the layers, with the embedding and the output projection or without, or powers of two.
    """
    unit, total = (float(value[0]) for value in server_sizes(_plan(form, 1.0, catalog), catalog))
    counts = sold_counts(unit, total, MOST_ACCELERATORS)
    row = catalog.rows("models", form.text("model"), form, "model")
    heads, layers = (catalog.tables["models"].number(name)[row][0] for name in ("num_attention_heads", "num_layers"))
    stages = {*divisors(layers, layers + 1.0, layers + 2.0), *powers_of_two(layers)}
    shared = float(form.number("global_batch_size")[0]) * float(heads)
    good = np.logical_or.reduce([divides(counts / number, shared) & divides(number, counts) for number in stages])
    return np.asarray(counts[good & (counts >= min(unit, counts[-1]))])


def _stack(form: Table, catalog: Catalog) -> str:
    """Training stack of a form's accelerator: the default, or the one that was measured on its generations."""
    default = str(table_schema("training").by_name["software"].default)
    row = catalog.rows("accelerators", form.text("accelerator"), form, "accelerator")
    accelerators, measured = catalog.tables["accelerators"], catalog.tables["calibration"]
    if str(accelerators.text("vendor")[row][0]).casefold() in ("", "nvidia"):
        return default
    line = generation_line(str(accelerators.text("generation")[row][0]))
    keys = zip(*(measured.text(name) for name in ("family", "generation", "software")), strict=True)
    names = sorted({stack for family, of, stack in keys if family == "training_software" and of == line} - {ANY})
    return default if default in names else (*names, ANY)[0]


def _plan(form: Table, count: float, catalog: Catalog) -> Table:
    columns: dict[str, Any] = {
        name: form[name] for name in ("model", "accelerator", "training_tokens", "sequence_length", "global_batch_size")
    }
    open_precision = bool("precision" in form.auto and form.auto["precision"][0])
    columns |= {"precision": form.text("precision") if open_precision else form.filled("precision")}
    columns |= {"num_accelerators": np.array([count])}
    columns["software"] = np.array([_stack(form, catalog)], dtype=object)
    known = form.schema.by_name
    columns |= {name: form.text(name) if known[name].is_text else form.number(name) for name in SEARCHED}
    return one_plan("training", columns, (*SEARCHED, "precision"), form)


def _mapped(form: Table, count: float, catalog: Catalog) -> Search:
    return best_mapping(_plan(form, count, catalog), catalog)


def _run(form: Table, found: Search, catalog: Catalog) -> Answer:
    if found.kind != GOOD:
        return _refused(form, found)
    plan, results = found.plans, found.results
    names = (
        "run_time", "run_energy", "run_carbon", "mfu", "goodput", "step_time", "step_time_low", "step_time_high",
        "memory_reserved", "memory_capacity",
    )  # fmt: skip
    answer: Answer = {name: float(results.number(name)[0]) for name in names}
    longer = slower(results, "step_time", catalog)
    answer |= {name: answer[name] * longer for name in ("run_time", "run_energy", "run_carbon", "step_time")}
    answer["mfu"] /= longer
    chosen = results_of("train").by_name
    for name in (*SEARCHED, *FOLLOWING, "precision"):
        answer[name] = str(plan.filled(name)[0]) if chosen[name].is_text else float(plan.filled(name)[0])
    answer["recompute_modules"] = answer["recompute_modules"] if answer["recompute"] == "selective" else "none"
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
    answer["memory_reserve"] = answer["memory_reserved"] - added(answer[f"memory_{part}"] for part in _MEMORY)
    answer["memory_free"] = answer["memory_capacity"] - answer["memory_reserved"]
    step = float(results.number("step_time")[0])
    shares = {part: float(results.number(f"time_{part}")[0]) / step for part in TRAINING_PARTS}
    answer |= {f"share_{part}": share for part, share in shares.items()}
    answer["largest_loss"] = TRAINING_PARTS[max(list(TRAINING_PARTS)[2:], key=lambda part: np.nan_to_num(shares[part]))]
    answer["price_basis"] = price_words(given, str(results["cost_basis"][0]))
    answer |= {name: str(results[name][0]) for name in ("trust", "trust_reason")}
    stack = str(plan.filled("software")[0])
    answer["defaults_used"] = (_UNMEASURED if stack == ANY else stack) + (
        f", {plan.filled('optimizer')[0]}, "
        f"{plan.filled('attention')[0]} attention; an accelerator fails every "
        f"{plan.filled('accelerator_mtbf')[0] / HOUR:,.0f} h, {plan.filled('restart_time')[0] / 60.0:.0f} min lost"
    )
    answer["answer"] = _training_sentence(form, answer)
    return answer


def _training_sentence(form: Table, answer: Answer) -> str:
    accelerator, model = short_name(str(form.text("accelerator")[0])), str(form.text("model")[0])
    cost = f" for {dollars(answer['run_cost'])}" if answer["run_cost"] == answer["run_cost"] else ""
    tokens = form.number("training_tokens")[0] / TERA
    return (
        f"{answer['accelerators']:,.0f} {accelerator} train {model} on {tokens:,.3g} T "
        f"tokens in {answer['run_time'] / DAY:,.1f} days{cost} at {answer['mfu']:.0%} MFU; largest loss: "
        f"{answer['largest_loss']}."
    )


def _refused(form: Table, found: Search | None) -> Answer:
    """Why no mapping meets the targets, from the one that comes nearest."""
    words = ""
    if found is not None:
        count = float(found.plans.number("num_accelerators")[0])
        words = f"on {count:,.0f} accelerators: {str(found.results['reason'][0]).split(';')[0]}"
    reason = words or f"no mapping of {form.text('model')[0]} on these accelerators is legal"
    return {"reason": reason, "answer": f"No answer: {reason}."}


CHIP = "My chip"
_NAMED = ("technology", "core", "memory", "link", "package")
_BUDGETS = ("num_dies", "die_area", "power_budget", "margin_share", "volume")
_RATES = (
    "peak_flop_rate_bf16", "peak_flop_rate_fp8", "memory_capacity", "memory_bandwidth", "thermal_design_power",
)  # fmt: skip
_DEVICE = ("unit_cost", "capex", "memory_stacks", "num_multiprocessors", "power_compute")
_LOSSES = ("package_defects", "wasted_dies", "wasted_memory")
CHIP_PARTS = {
    "cost_dies": "raw_dies", "cost_defects": "die_defects", "cost_package": "raw_package", "cost_memory": "memory",
    "cost_test": "test", "cost_board": "board_cost", "cost_design": "nre_per_unit",
}  # fmt: skip
MARGIN = 0.02
"""Stacks beyond those asked for that the edge has room for, so that rounding loses none. [-]"""
USERS = 1000.0
_JUDGED_WITH = str(table_schema("inference").by_name["software"].default)
"""Serving engine that chips are judged with, in one pool: the kernels of a chip are assumed, its engine as well."""


def chip_answer(form: Table, catalog: Catalog) -> Answer:
    """What the chip of a form, or the accelerator that it names, costs and serves.

    ``form``: one row of kind ``chip``. ``catalog``: technology, models and the accelerators to hold it against. Returns
    results of the kind ``chip_results``. Raises InputError where a name is unknown.
    """
    named = str(form.text("accelerator")[0])
    if named:
        return _served(form, named, catalog)
    device, asked = _device(form, catalog)
    results = evaluate_devices(device, catalog)
    if np.isnan(results.number("thermal_design_power")[0]):
        reason = str(results["reason"][0])
        return {"reason": reason, "answer": f"No answer: {reason}."}
    unmade = str(results["reason"][0]) if np.isnan(results.number("unit_cost")[0]) else ""
    if TOO_LARGE_DIE in unmade:
        reason = f"a compute die of {device.number('die_area')[0]:,.0f} mm² is larger than the reticle: more dies"
        return {"reason": reason, "answer": f"No answer: {reason}."}
    own = catalog.with_tables([_appended(catalog.tables["devices"], device), _accelerators(catalog)])
    answer = _served(form, CHIP, own)
    answer |= {name: float(results.number(name)[0]) for name in _DEVICE}
    answer["limited_by"] = str(results["limited_by"][0])
    parts = device_cost_parts(device, catalog)
    if parts is not None:
        answer |= {name: float(parts.number(part)[0]) for name, part in CHIP_PARTS.items()}
        answer["cost_losses"] = added(float(parts.number(part)[0]) for part in _LOSSES)
    if asked > answer["memory_stacks"]:
        answer["limited_by"] += f"; {asked:.0f} stacks asked for, {answer['memory_stacks']:.0f} have room"
    answer["reason"] = "; ".join(filter(None, (answer["reason"], unmade)))
    answer["answer"] = _chip_sentence(form, answer, catalog)
    return answer


def _device(form: Table, catalog: Catalog) -> tuple[Table, float]:
    """The device of a form, and the stacks of memory that are asked for; NaN where any number will do."""
    columns: dict[str, Any] = {"device": np.array([CHIP], dtype=object)}
    columns |= {name: form.text(name) for name in _NAMED}
    columns |= {name: form.filled(name) for name in _BUDGETS}
    order = [column.name for column in table_schema("devices").columns]
    device = Table("devices", {name: columns[name] for name in order if name in columns}, form.place)
    stacks, target = form.number("memory_stacks"), form.number("bandwidth_target")
    if np.isnan(stacks[0]) and np.isnan(target[0]):
        return device, np.nan
    free = evaluate_devices(device, catalog, costs=False)
    if np.isnan(stacks[0]):
        each = free.number("memory_bandwidth") / free.number("memory_stacks")
        stacks = np.ceil(target / each * (1.0 - 1e-9))
    row = catalog.rows("memories", form.text("memory"), form, "memory")
    edge = (stacks + MARGIN) * catalog.tables["memories"].number("shoreline")[row]
    most = 1.0 - device.filled("link_shoreline_share")
    columns["memory_shoreline_share"] = np.minimum(edge / free.number("outer_perimeter"), most)
    return Table("devices", {name: columns[name] for name in order if name in columns}, form.place), float(stacks[0])


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
    columns |= {"software": np.array([_JUDGED_WITH], dtype=object), "mode": np.array([ONE], dtype=object)}
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


def _chip_sentence(form: Table, answer: Answer, catalog: Catalog) -> str:
    dies, area = form.filled("num_dies")[0], form.filled("die_area")[0]
    size = f"{dies:.0f} × {area:,.0f} mm² at {form.text('technology')[0]}"
    cost = f" cost {dollars(answer['unit_cost'])} to make" if answer["unit_cost"] == answer["unit_cost"] else ""
    rate = f"{answer['memory_bandwidth'] / TERA:.1f} TB/s"
    made = f"{size} with {answer['memory_stacks']:.0f} stacks of {form.text('memory')[0]} ({rate}){cost}"
    tokens = answer["tokens_per_second_per_accelerator"]
    if tokens != tokens:
        return f"{made}; it does not serve {form.text('model')[0]} this way: {answer['reason']}."
    if catalog.known_rows("accelerators", np.array([BESIDE], dtype=object))[0] < 0:
        return f"{made}; one serves {tokens:,.0f} tokens/s."
    other = _served(form, BESIDE, catalog)
    ratio = tokens / other["tokens_per_second_per_accelerator"]
    worth = answer["tokens_per_thousand_dollars"] / other["tokens_per_thousand_dollars"]
    per_dollar = f", {worth:.1f}× per dollar of its price" if worth == worth else ""
    unpriced = "" if per_dollar else f" ({answer['reason'] or 'its price is not known'})"
    return f"{made}; one serves {ratio:.1f}× the tokens of a B200{per_dollar}{unpriced}."


_SOLVERS = {"serve": serve_answer, "train": train_answer, "chip": chip_answer}
