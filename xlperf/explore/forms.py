"""Forms and their answers as tables: machines to serve a model, a training run, and a custom chip."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from xlperf.base import resources
from xlperf.base.arrays import Array, added
from xlperf.base.errors import Fault, InputError
from xlperf.base.units import DAY, HOUR, MILLION
from xlperf.catalog.calibration import ANY, generation_line
from xlperf.catalog.catalog import Catalog, part_of
from xlperf.catalog.cells import number_of
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import FORMS, first_words, questions, results_of, table_schema
from xlperf.catalog.table import Place, Table, nowhere
from xlperf.engine.software import with_software_defaults
from xlperf.equations.plan.dimensions import RANKS
from xlperf.explore.chips import BESIDE, chip_answers
from xlperf.explore.day import day_answer
from xlperf.explore.fleet_answer import fleet_answer
from xlperf.explore.mappings import MOST_ACCELERATORS, server_sizes, sold_counts
from xlperf.explore.money import cost_words, hours_of, lacking_words, most_fed, run_beyond_power, stated_prices
from xlperf.explore.quote import quote_answer
from xlperf.explore.rl import rl_answer
from xlperf.explore.search import stacked
from xlperf.explore.search_results import GOOD, PLAN, TABLES, Answer, Search, one_plan, short_name, slower
from xlperf.explore.serve import NOTHING, best_way, other_machines, serve_answer, serving_ways, way_answers
from xlperf.explore.sessions import sessions_answer
from xlperf.explore.space import divides, divisors, powers_of_two
from xlperf.explore.spares import spares_answer
from xlperf.explore.train import FOLLOWING, SEARCHED, best_mapping
from xlperf.interop.checkpoints import states_format
from xlperf.interop.launch_stacks import flags
from xlperf.interop.software import stack_of_software

_known: WeakKeyDictionary[Catalog, dict[object, Answer]] = WeakKeyDictionary()


OTHERS = ("H100-SXM-80GB", "H200-SXM-141GB", "B200-SXM-180GB", "GB200-NVL72", "MI300X", "MI355X")
"""Accelerators to compare an answer with, if the catalog has them."""


def form_of(kind: str, words: Mapping[str, str], place: Place = nowhere) -> Table:
    """A form as a table of one row, from the texts of its entries.

    ``words``: texts by column. ``place``: names an entry in a message. Raises InputError if an entry is illegal.
    """
    known = table_schema(kind).by_name
    cells = [number_of(text) if known[name].kind == "number" else text for name, text in words.items()]
    cells = [text if cell != cell else cell for cell, text in zip(cells, words.values(), strict=True)]
    return table_from_rows(kind, [known[name].header for name in words], [cells], place)


def first_forms(catalog: Catalog) -> Iterator[Table]:
    """Default forms of the shipped workbook and the alternatives shown next to them."""
    counts = next(row["choices"] for row in resources.rows("workbook/forms.csv") if row["column"] == "num_accelerators"
                  and row["form"] == "train")  # fmt: skip
    known = catalog.tables["accelerators"].text("accelerator")
    beside = [{"accelerator": name} for name in OTHERS if name in known]
    changes = {
        "serve": beside,
        "chip": beside[:4],
        "train": [{"num_accelerators": count} for count in counts.split(",")[1:6]],
    }
    for kind in FORMS:
        first = first_words(kind)
        yield from (form_of(kind, first | changed) for changed in ({}, *changes.get(kind, ())))


def evaluate_forms(forms: Table, catalog: Catalog) -> Table:
    """Answers of forms, each from a search.

    ``forms``: rows of a kind of :data:`xlperf.catalog.schema.FORMS`; the search chooses blank or ``auto`` columns of
    the mapping. Returns the results of the kind, row by row; without an answer, numbers are NaN and ``reason`` is
    filled. Raises InputError if a name is unknown or the form lacks a necessary entry.
    """
    rows = [forms.take([row]) for row in range(len(forms))]
    beside = [_beside(form, catalog) for form in rows]
    return answers_table(
        forms, [answer | more for answer, more in zip(answers_of(forms, catalog), beside, strict=True)]
    )


def _beside(form: Table, catalog: Catalog) -> Answer:
    """The comparison of an answer: the best way to serve beside the form's own, or other machines that would serve."""
    if form.kind != "serve":
        return {}
    form, _ = _with_exact_names(form, catalog)
    part = part_of(catalog, form)
    best = {"best_way": NOTHING} | best_way(form, part)
    limited = bool(np.isfinite(form.number("facility_power_limit")[0]))
    if limited or len(best) > 1 or serving_ways(form, part):
        return best
    names = [name for name in OTHERS if name in catalog.tables["accelerators"].text("accelerator")]
    return other_machines(form, names, catalog)


def answer_of(form: Table, catalog: Catalog) -> Answer:
    """Answer of one form: one row."""
    return answers_of(form, catalog)[0]


def answers_of(forms: Table, catalog: Catalog) -> list[Answer]:
    """Answers of forms, from a cache that holds while the referenced catalog rows are unchanged.

    Chips that are not in the cache are evaluated together.
    """
    exact = [_with_exact_names(forms.take([row]), catalog) for row in range(len(forms))]
    places = []
    for form, _ in exact:
        is_built = form.kind == "chip" and not form.text("accelerator")[0]
        # A form whose sheets name accelerators may need any row of the catalog.
        part = catalog if _names_accelerators(form.kind) else part_of(catalog, form, (BESIDE,) if is_built else ())
        given = ((name, str(values[0])) for name, values in sorted(form.columns.items()))
        open_ = tuple(sorted(name for name, mask in form.auto.items() if mask[0]))
        key = form.kind, open_, _stamp(form), tuple((name, value) for name, value in given if value not in ("", "nan"))
        places.append((_known.setdefault(part, {}), key, form, part))
    lacking = [place for place in places if place[1] not in place[0]]
    if lacking and forms.kind == "chip":
        for (cached, key, *_), answer in zip(
            lacking, _chips([form for _, _, form, _ in lacking], catalog), strict=True
        ):
            cached[key] = answer
    for cached, key, form, part in lacking:
        if key not in cached:
            cached[key] = _SOLVERS[form.kind](form, part)
    answers = []
    for (cached, key, *_), (_, notes) in zip(places, exact, strict=True):
        answer = dict(cached[key])
        answers.append(answer | {"answer": " ".join([str(answer["answer"]), *notes])} if notes else answer)
    return answers


def _names_accelerators(kind: str) -> bool:
    """Whether a question reads a sheet whose rows name accelerators."""
    read = (table_schema(name).columns for name in questions()[kind].reads)
    return any(column.reference == "accelerators" for columns in read for column in columns)


def _stamp(form: Table) -> int:
    """When the trace that a form names was written; 0 without one."""
    path = str(form.text("trace")[0]) if "trace" in form.schema.by_name else ""
    return os.stat(path).st_mtime_ns if path and os.path.exists(path) else 0


def _chips(forms: Sequence[Table], catalog: Catalog) -> list[Answer]:
    """Answers of forms of chips, with the part of the catalog that they name."""
    return chip_answers(forms, part_of(catalog, stacked(forms), (BESIDE,)))


def ways_of(form: Table, catalog: Catalog) -> tuple[Table, Table]:
    """All ways to serve the demand of a form: evaluated plans of their copies, and their answers.

    ``form``: one row of kind ``serve``. Returns one row for each way, the cheapest first.
    """
    form, _ = _with_exact_names(form, catalog)
    part = part_of(catalog, form)
    fleets = serving_ways(form, part)
    plans = stacked([fleet.plan for fleet in fleets]) if fleets else Table("inference", {})
    return plans, answers_table(form, way_answers(form, fleets, part))


def plan_of(form: Table, catalog: Catalog) -> Table | None:
    """The evaluated plan of a form's answer; None if it has none."""
    plan = answer_of(form, catalog).get(PLAN)
    return plan if isinstance(plan, Table) else None


def tables_of(form: Table, catalog: Catalog) -> dict[str, Table]:
    """The tables beside a form's answer, by the names that its question declares; empty without an answer."""
    known, question = answer_of(form, catalog).get(TABLES, {}), questions()[form.kind]
    return {name: known.get(name, Table(question.table(name), {})) for name in question.tables}


def _with_exact_names(form: Table, catalog: Catalog) -> tuple[Table, list[str]]:
    """A form with the catalog's spelling of names, and a sentence for each changed name."""
    columns, notes = dict(form.columns), []
    for column in form.schema.columns:
        if column.kind != "reference" or column.name not in form:
            continue
        catalog.rows(column.reference, form[column.name], form, column.name)
        name = str(form[column.name][0])
        exact = catalog.taken(column.reference).get(name)
        if exact is not None:
            if column.reference != "models" or not states_format(form[column.name][:1])[0]:
                columns[column.name] = np.array([exact], dtype=object)
            notes.append(f"{column.name.replace('_', ' ').capitalize()} {name} taken as {exact}.")
    return replace(form, columns=columns), notes


def answers_table(forms: Table, answers: Sequence[Answer]) -> Table:
    """Answers as the table of results of their kind."""
    schema = results_of(forms.kind)
    columns: dict[str, np.ndarray] = {}
    for column in schema.columns:
        blank: Any = "" if column.is_text else np.nan
        results = [answer.get(column.name, blank) for answer in answers]
        columns[column.name] = np.array(results, dtype=object if column.is_text else np.float64)
    return Table(schema.name, columns, forms.place)


FIRST_COUNT = 256.0
"""Accelerators of the first trial for a deadline. [-]"""
MOST_TURNS, EFFICIENT = 24, 0.85
"""Trial numbers of accelerators for a deadline; least ratio of a run's accelerator time to the first trial's. [-]"""
TERA = MILLION * MILLION
TRAINING_PARTS = {
    "forward": "forward", "backward": "backward", "recompute": "recomputation", "tensor_parallel": "tensor parallel",
    "context_parallel": "context parallel", "expert_parallel": "expert parallel",
    "pipeline_communication": "between stages", "pipeline_bubble": "pipeline bubble",
    "data_parallel": "data parallel", "optimizer": "optimizer", "overhead": "overhead",
}  # fmt: skip
"""Parts of a step by result name, and in words; the first two train, the others are losses."""
_MEMORY = ("weights", "gradients", "optimizer", "activations")
_UNMEASURED = "a training stack of which no run is published"


def train_answer(form: Table, catalog: Catalog) -> Answer:
    """The fastest mapping of a form's training run, with its time, cost and memory.

    ``form``: one row of kind ``train``. Returns results of the kind ``train_results``. Raises InputError if a name is
    unknown, or the form lacks a number of accelerators, a deadline and a facility power limit.
    """
    count, deadline, limit = (
        float(form.number(name)[0]) for name in ("num_accelerators", "deadline", "facility_power_limit")
    )
    if count == count:
        return _powered(form, _mapped(form, count, catalog), catalog)
    if deadline != deadline and limit == limit:
        return _powered(
            form, most_fed(limit, _promising(form, catalog), partial(_mapped, form, catalog=catalog)), catalog
        )
    if deadline != deadline:
        problem = "num accelerators, a deadline or a facility power limit must be given"
        raise InputError(Fault(form.place(0, "num_accelerators"), problem))
    result = _fewest(form, deadline, catalog)
    if result is None or result.kind != GOOD:
        return _refused(form, result)
    if _keeps(result, deadline):
        return _powered(form, result, catalog)
    count = float(result.plans.number("num_accelerators")[0])
    days, words = result.results.number("run_time")[0] / DAY, short_name(str(form.text("accelerator")[0]))
    reason = f"{count:,.0f} {words} still take {days:,.0f} days; give them more days or a larger batch"
    return {"reason": reason, "answer": f"No answer: {reason}."}


def _powered(form: Table, searched: Search, catalog: Catalog) -> Answer:
    """The answer of a mapping within the facility power limit; else the reason, and the run that the limit feeds."""
    limit = float(form.number("facility_power_limit")[0])
    answer = _run(form, searched, catalog)
    if searched.kind != GOOD or limit != limit:
        return answer
    if answer["power"] <= limit:
        each = answer["power"] / answer["accelerators"]
        return answer | {"accelerators_in_power": float(np.floor(limit / each * (1.0 + 1e-9)))}
    fed = most_fed(limit, _promising(form, catalog), partial(_mapped, form, catalog=catalog))
    return run_beyond_power(form, answer, _run(form, fed, catalog) if fed.kind == GOOD else {})


def _keeps(searched: Search, deadline: float) -> bool:
    return searched.kind == GOOD and bool(searched.results.number("run_time")[0] <= deadline)


def _fewest(form: Table, deadline: float, catalog: Catalog) -> Search | None:
    """The run on the fewest accelerators, in whole servers, that satisfies a deadline; else the fastest run tried.

    Upward from the first number that fits, the trials start at the number that satisfies the deadline at 85 % of its
    accelerator time.
    """
    counts = _promising(form, catalog)
    result, place = None, int(np.searchsorted(counts, FIRST_COUNT))
    while result is None or (result.kind != GOOD and place < len(counts)):
        result = _mapped(form, float(counts[min(place, len(counts) - 1)]), catalog)
        place = int(np.searchsorted(counts, 4.0 * counts[min(place, len(counts) - 1)]))
    best = result
    if result.kind != GOOD:
        return result
    work = float(result.plans.number("num_accelerators")[0] * result.results.number("run_time")[0])
    larger = [count for count in counts.tolist() if count >= EFFICIENT * work / deadline]
    for count in larger[:MOST_TURNS]:
        result = _mapped(form, count, catalog)
        if _keeps(result, deadline):
            return result
        faster = result.kind == GOOD and result.results.number("run_time")[0] < best.results.number("run_time")[0]
        best = result if faster else best
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
    """Training software of a form's accelerator: the default, or the software measured on its generation."""
    default = str(table_schema("training").by_name["software"].default)
    row = catalog.rows("accelerators", form.text("accelerator"), form, "accelerator")
    accelerators, measured = catalog.tables["accelerators"], catalog.tables["calibration"]
    if str(accelerators.text("vendor")[row][0]).casefold() in ("", "nvidia"):
        return default
    line = generation_line(str(accelerators.text("generation")[row][0]))
    keys = zip(*(measured.text(name) for name in ("family", "generation", "software")), strict=True)
    names = sorted({stack for family, of, stack in keys if family == "training_software" and of == line} - {ANY})
    return default if default in names else (*names, ANY)[0]


def _started(form: Table, software: str, catalog: Catalog) -> dict[str, np.ndarray]:
    """Faster ways than its default that a stack has a flag for: overlap of both passes, and tokens sent once."""
    stack = stack_of_software(software)
    row = catalog.rows("models", form.text("model"), form, "model")
    wanted = {"tensor_overlap": "all"}
    if catalog.tables["models"].number("num_experts")[row][0] > 0.0:
        wanted |= {"token_dispatch": "once"}
    known = {(flag.column, flag.value) for flag in flags(stack)} if stack else set()
    return {name: np.array([word], dtype=object) for name, word in wanted.items() if (name, word) in known}


def _plan(form: Table, count: float, catalog: Catalog) -> Table:
    columns: dict[str, Any] = {
        name: form[name] for name in ("model", "accelerator", "training_tokens", "sequence_length", "global_batch_size")
    }
    open_precision = bool("precision" in form.auto and form.auto["precision"][0])
    columns |= {"precision": form.text("precision") if open_precision else form.filled("precision")}
    columns |= {"num_accelerators": np.array([count])}
    software = _stack(form, catalog)
    columns["software"] = np.array([software], dtype=object)
    columns |= _started(form, software, catalog)
    columns |= {name: np.array([value]) for name, value in stated_prices(form).items()}
    known = form.schema.by_name
    columns |= {name: form.text(name) if known[name].is_text else form.number(name) for name in SEARCHED}
    return one_plan("training", columns, (*SEARCHED, "precision"), form)


def _mapped(form: Table, count: float, catalog: Catalog) -> Search:
    return best_mapping(_plan(form, count, catalog), catalog)


def _run(form: Table, searched: Search, catalog: Catalog) -> Answer:
    if searched.kind != GOOD:
        return _refused(form, searched)
    plan, results = searched.plans, searched.results
    names = (
        "run_time", "run_energy", "run_carbon", "mfu", "goodput", "step_time", "step_time_low", "step_time_high",
        "memory_reserved", "memory_capacity", "cost_per_million_tokens", "energy_per_token",
        "carbon_per_million_tokens",
    )  # fmt: skip
    answer: Answer = {name: float(results.number(name)[0]) for name in names}
    answer |= {"power": float(results.number("grid_power")[0]), PLAN: plan}
    longer = slower(results, "step_time", catalog)
    answer |= {name: answer[name] * longer for name in ("run_time", "run_energy", "run_carbon", "step_time")}
    answer["mfu"] /= longer
    chosen = results_of("train").by_name
    for name in (*SEARCHED, *FOLLOWING, "precision"):
        answer[name] = str(plan.filled(name)[0]) if chosen[name].is_text else float(plan.filled(name)[0])
    rows = catalog.rows("models", plan.text("model"), plan, "model")
    run = with_software_defaults(plan, catalog, rows)
    answer["tensor_overlap"] = str(run.filled("tensor_overlap")[0])
    experts = catalog.tables["models"].number("num_experts")[rows][0] > 0.0
    answer["token_dispatch"] = str(run.filled("token_dispatch")[0]) if experts else ""
    answer["recompute_modules"] = answer["recompute_modules"] if answer["recompute"] == "selective" else "none"
    count = float(plan.number("num_accelerators")[0])
    pieces = np.prod([plan.filled(each.size)[0] for each in RANKS if not each.remainder])
    answer |= {"accelerators": count, "data_parallel": count / float(pieces)}
    hours = hours_of(form, plan, results, catalog)[0]
    answer |= hours.results | hours.costs("run_cost", answer["run_time"] * count)
    answer |= {"paid_run_cost": answer["run_cost"], "run_cost": float(results.number("run_cost")[0]) * longer}
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
    answer["price_basis"] = hours.basis
    answer |= {name: str(results[name][0]) for name in ("trust", "trust_reason")}
    stack = str(plan.filled("software")[0])
    answer["defaults_used"] = (_UNMEASURED if stack == ANY else stack) + (
        f", {plan.filled('optimizer')[0]}, "
        f"{plan.filled('attention')[0]} attention; an accelerator fails every "
        f"{plan.filled('accelerator_mtbf')[0] / HOUR:,.0f} h, {plan.filled('restart_time')[0] / 60.0:.0f} min lost"
    )
    cost = cost_words(form, hours, answer["run_time"] * count)
    answer["answer"] = _training_sentence(form, answer, cost) + lacking_words(hours)
    return answer


def _training_sentence(form: Table, answer: Answer, cost: str) -> str:
    accelerator, model = short_name(str(form.text("accelerator")[0])), str(form.text("model")[0])
    tokens = form.number("training_tokens")[0] / TERA
    return (
        f"{answer['accelerators']:,.0f} {accelerator} train {model} on {tokens:,.3g} T "
        f"tokens in {answer['run_time'] / DAY:,.1f} days{cost} at {answer['mfu']:.0%} MFU; largest loss: "
        f"{answer['largest_loss']}."
    )


def _refused(form: Table, search: Search | None) -> Answer:
    """The reason why no mapping satisfies the targets, from the nearest one."""
    words = ""
    if search is not None:
        count = float(search.plans.number("num_accelerators")[0])
        words = f"on {count:,.0f} accelerators: {str(search.results['reason'][0]).split(';')[0]}"
    reason = words or f"no mapping of {form.text('model')[0]} on these accelerators is legal"
    return {"reason": reason, "answer": f"No answer: {reason}."}


_SOLVERS = {"serve": serve_answer, "train": train_answer, "sessions": sessions_answer, "fleet": fleet_answer,
            "spares": spares_answer, "quote": quote_answer, "rl": rl_answer, "day": day_answer}  # fmt: skip
"""What answers a form of a kind with the part of the catalog that it names: results, :data:`PLAN`, :data:`TABLES`."""


_WORDS = ("recompute", "pipeline_schedule", "mode")
"""Columns of words whose default an answer always states."""


def without_defaults(plans: Table) -> Table:
    """Plans with blanks for the counts and words that equal the default of their column.

    ``plans``: training or inference plans. Recompute modules that are ``none`` are blank too.
    """
    columns = dict(plans.columns)
    for column in table_schema(plans.kind).columns:
        values, default = columns.get(column.name), column.default
        if values is None:
            continue
        if column.name in _WORDS or column.name == "recompute_modules":
            default = "none" if column.name == "recompute_modules" else default
            columns[column.name] = np.where(values.astype(str) == default, "", values).astype(object)
        elif column.kind == "number" and column.unit == "-" and default:
            columns[column.name] = np.where(values == float(default), np.nan, values)
    return Table(plans.kind, columns, plans.place)
