"""Studies that vary the entries of a question (Spares, Sessions, Fleet, RL...), or a column of served plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.units import HOUR, percent
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import first_words, table_schema, unit_of
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.explore.forms import answer_of, answers_of, answers_table, asked_form, form_of
from xlperf.explore.objectives import PLAN, TABLES, Answer
from xlperf.explore.search import stacked
from xlperf.explore.sessions import FLEET
from xlperf.explore.spares import spares_answer
from xlperf.studies.outcome import (
    Columns,
    Finding,
    Inputs,
    Outcome,
    figures,
    finding,
    pivot_of,
    result_columns,
    setting_text,
    sheet_of,
    shown,
)

_PLANS = "inference"


def adapters(inputs: Inputs) -> Outcome:
    """Served plans over the number of low-rank adapters."""
    names = "tpot", "memory_adapters", "tokens_per_second", "cost_per_million_output_tokens"
    return _varied(inputs, _PLANS, "adapters", names)


def desk_machine(inputs: Inputs) -> Outcome:
    """Plans of one request over the share of the experts in host memory."""
    return _varied(inputs, _PLANS, "host_experts_share", ("tpot", "memory", "memory_host", "ttft"))


def images(inputs: Inputs) -> Outcome:
    """Served plans over the images of a request."""
    names = "ttft", "image_tokens_per_request", "encode_time", "cost_per_million_output_tokens"
    return _varied(inputs, _PLANS, "images", names)


def quotes(inputs: Inputs) -> Outcome:
    """Verdicts on a claim over the number that is claimed."""
    return _varied(inputs, "quote", "claimed_value", ("claim_ratio", "limit_share", "percentile", "verdict"))


def starts(inputs: Inputs) -> Outcome:
    """A day of a service over the time that a copy takes to start."""
    return _varied(inputs, "day", "start_time", ("day_cost", "serving_hours", "starts", "utilization"))


def _varied(inputs: Inputs, kind: str, column: str, names: Sequence[str]) -> Outcome:
    """Results of each model at each value of a column; the other settings that have its names are entries as well."""
    models, values = inputs.words("models"), inputs.numbers(column)
    entries = {name: setting_text(value) for name, value in inputs.settings.items() if name not in ("models", column)}
    rows: list[dict[str, object]] = [{**entries, "model": model, column: value} for model in models for value in values]
    plans: list[tuple[Table, Table]] = []
    if kind == _PLANS:
        table = table_from_rows(kind, list(rows[0]), [list(row.values()) for row in rows])
        plans = [(table, evaluate(table, inputs.catalog))]
        results = plans[0][1]
    else:
        words = [
            {name: format(cell, ".12g" if isinstance(cell, float) else "") for name, cell in row.items()}
            for row in rows
        ]
        forms = [form_of(kind, first_words(kind) | one) for one in words]
        results = answers_table(forms[0], [answer_of(form, inputs.catalog) for form in forms])
    unit = unit_of(table_schema(kind).by_name[column])
    columns: Columns = [
        ("case", [f"{model}, {value:.12g}" for model in models for value in values]),
        ("model", [model for model in models for _ in values]),
        (column, np.tile(values, len(models))),
        *result_columns(results, names),
    ]
    name = f"{column.replace('_', ' ')}{'' if unit.factor == 1.0 else f' ({unit.symbol})'}"
    findings = list(_findings(name, models, values, results, names[:2]))
    return Outcome(findings, [sheet_of(column.replace("_", " "), columns)], inputs.catalog, plans)


def _findings(
    words: str, models: Sequence[str], values: Sequence[float], results: Table, names: Sequence[str]
) -> Iterator[Finding]:
    """The first two results at the first and the last value that has them, of the first model and of each."""
    for number, model in enumerate(models):
        rows = slice(number * len(values), (number + 1) * len(values))
        columns = [shown(results, name)[rows] for name in names]
        known = np.flatnonzero(np.isfinite(columns).all(axis=0))
        if not len(known):
            yield finding("none varied", model=model, words=words, number=len(values))
            continue
        ends = [figures(values[row]) for row in (known[0], known[-1])]
        each = [[figures(float(column[row])) for row in (known[0], known[-1])] for column in columns]
        labels = [results.schema.by_name[name].header for name in names]
        facts = {"model": model, "words": words, "ends": ends, "first": each[0], "second": each[1], "labels": labels}
        if not number:
            yield finding("varied short", **facts)
        yield finding("varied", **facts)


_MINUTE = 60.0


def growing_runs(inputs: Inputs) -> Outcome:
    """Effective time and spares of least cost by size and fleet, of runs that wait and of elastic runs."""
    sizes, fleets = inputs.numbers("sizes"), inputs.words("fleets")
    waits, runs_on = (
        [[_spares(inputs, size, fleet, shortage) for fleet in fleets] for size in sizes]
        for shortage in ("wait", "elastic")
    )
    share, spares = (100.0 * _values(waits, name) for name in ("effective_share", "spare_share"))
    elastic = 100.0 * _values(runs_on, "effective_share")
    columns: Columns = [
        ("run", [f"{size:,.0f}, {fleet}" for size in sizes for fleet in fleets]),
        ("accelerators", np.repeat(sizes, len(fleets))),
        ("interval", (_values(waits, "interruption_interval") / HOUR).ravel()),
        ("spares", _values(waits, "spares").ravel()),
        ("wait", share.ravel()),
        ("elastic_spares", _values(runs_on, "spares").ravel()),
        ("elastic", elastic.ravel()),
        ("lost", (_values(waits, "lost_per_interruption") / _MINUTE).ravel()),
    ]
    sheets = [
        pivot_of("effective time", "accelerators", sizes, fleets, share),
        pivot_of("spare units", "accelerators", sizes, fleets, spares),
        sheet_of("growing runs", columns),
    ]
    ends = [0, -1]
    both = np.array(sizes)[ends]
    findings = [finding("runs short", fleet=fleets[0], share=share[ends, 0], sizes=both, spares=spares[ends, 0])]
    for fleet, trained, running in zip(fleets, share[-1], elastic[-1], strict=True):
        tone = "plain" if trained > 80.0 else "warning"
        findings.append(finding("run", tone, fleet=fleet, size=sizes[-1], share=trained, elastic=running))
    facts = {"spares": f"{_values(waits, 'spares')[-1, 0]:,.0f}", "size": f"{sizes[-1]:,.0f}"}
    return Outcome(findings, sheets, inputs.catalog, [], facts)


def _spares(inputs: Inputs, size: float, fleet: str, shortage: str) -> Answer:
    """The answer of Spares on one run."""
    entries = {name: inputs.text(name) for name in ("accelerator", "model")}
    numbers = {"num_accelerators": size, "copy_size": min(inputs.number("copy_size"), size)}
    numbers["restart_time"] = inputs.number("restart_time")
    entries |= {name: repr(value) for name, value in numbers.items()} | {"fleet": fleet, "shortage": shortage}
    return spares_answer(form_of("spares", entries), inputs.catalog)


def _values(answers: list[list[Answer]], name: str) -> Array:
    """A result, (sizes, fleets); NaN without an answer."""
    return np.array([[answer.get(name, np.nan) for answer in row] for row in answers])


def host_memory(inputs: Inputs) -> Outcome:
    """Hit rate, sessions and worth of a GB over the memory of the host, for each model and think time."""
    cases, tables, sizes, fleets = [], [], [], []
    for model, think in product(inputs.words("models"), inputs.numbers("think_times")):
        changed = {"model": model, "accelerator": inputs.text("accelerator"), "think_time": f"{think:g}"}
        answer = answer_of(form_of("sessions", first_words("sessions") | changed), inputs.catalog)
        if TABLES in answer:
            table = answer[TABLES]["memory"]
            cases += [f"{model}, {think:g} s"] * len(table)
            tables.append(table)
            fleets.append(answer[FLEET])
            sizes += [float(answer["copy_size"])] * len(table)
    memory = stacked(tables) if tables else Table("sessions_memory", {})
    alive = memory.number("sessions_per_copy") / np.array(sizes)
    names = ("host_memory", "hit_rate", "ttft_later", "cost_per_session", "worth_per_month", "pays")
    size = [f"{case}: {value:,.0f} GB" for case, value in zip(cases, shown(memory, "host_memory"), strict=True)]
    columns: Columns = [
        ("size", size),
        ("case", cases),
        *result_columns(memory, names),
        ("sessions_per_accelerator", alive),
    ]
    plans: list[tuple[Table, Table]] = []
    if fleets:
        plans = [(stacked([fleet.plan for fleet in fleets]), stacked([fleet.results for fleet in fleets]))]
    findings = list(_memory_findings(cases, memory, alive))
    return Outcome(findings, [sheet_of("host memory", columns)], inputs.catalog, plans)


def _memory_findings(cases: list[str], memory: Table, alive: np.ndarray) -> Iterator[Finding]:
    """The case in which memory is worth most, and the size up to which it pays in each."""
    worth, size = shown(memory, "worth_per_month"), shown(memory, "host_memory")
    if not np.isfinite(worth).any():
        yield finding("no sessions")
        return
    best = int(np.nanargmax(worth))
    rows = {case: [row for row, name in enumerate(cases) if name == case] for case in dict.fromkeys(cases)}
    alive_at_ends = {case: (alive[rows_of_case[0]], alive[rows_of_case[-1]]) for case, rows_of_case in rows.items()}
    most = max(alive_at_ends, key=lambda case: alive_at_ends[case][1] / alive_at_ends[case][0])
    facts = {"case": cases[best], "worth": worth[best], "size": size[best]}
    yield finding("memory short", most=most, held=alive_at_ends[most], **facts)
    for case, rows_of_case in rows.items():
        pays = [float(size[row]) for row in rows_of_case if str(memory["pays"][row]) == "pays"]
        yield finding("memory pays", case=case, size=max(pays)) if pays else finding("memory never pays", case=case)


def buy_or_wait(inputs: Inputs) -> Outcome:
    """What buying at once and waiting a year cost, for each demand of the first year and growth."""
    cases = list(product(inputs.numbers("request_rates"), inputs.numbers("growths")))
    first = first_words("fleet") | {name: inputs.text(name) for name in ("model", "generations")}
    varied = [{"request_rate": f"{rate:g}", "growth": f"{growth:g}"} for rate, growth in cases]
    forms = [asked_form("fleet", first | words)[1] for words in varied]
    answers = [answers_of(form, inputs.catalog)[0] for form in forms]
    results = answers_table(stacked(forms), answers)
    names = [f"{rate:,g} requests/s, growth {percent(growth, 0)}" for rate, growth in cases]
    wanted = (
        "first_purchase",
        "present_cost",
        "cost_per_million_output_tokens",
        "buy_now_cost",
        "wait_cost",
        "value_of_waiting",
        "peak_power",
    )
    bought, worth = results["first_purchase"], results.number("value_of_waiting") / results.number("present_cost")
    rates, growths = zip(*cases, strict=True)
    columns: Columns = [
        ("case", names),
        ("request_rate", [f"{rate:,g} requests/s" for rate in rates]),
        ("growth", growths),
        *result_columns(results, wanted),
        ("waiting_share", 100.0 * worth),
    ]
    plans = [answer[PLAN] for answer in answers if PLAN in answer]
    drawn = [(plan, evaluate(plan, inputs.catalog)) for plan in plans]
    if not np.isfinite(worth).any():
        return Outcome([finding("no fleet")], [sheet_of("buy or wait", columns)], inputs.catalog, drawn)

    def dearer(saved: float) -> str:
        return f"{percent(abs(saved))} {'cheaper' if saved > 0.0 else 'dearer'}"

    ends = (np.nanargmax(worth), np.nanargmin(worth))
    best, worst = (f"{dearer(worth[row])} than buying now with {names[row]}" for row in ends)
    wins = int(np.nansum(worth > 0.0))
    findings = [finding("wait short", wins=wins, cases=len(names), best=best, worst=worst)]
    findings += [
        finding("first purchase", case=case, words=words, waiting=dearer(share))
        for case, words, share in zip(names, bought, worth.tolist(), strict=True)
        if np.isfinite(share)
    ]
    return Outcome(findings, [sheet_of("buy or wait", columns)], inputs.catalog, drawn)


def rl_modes(inputs: Inputs) -> Outcome:
    """A step of reinforcement learning in each mode over the length of its rollouts, at the best split of each."""
    cases = [(length, mode) for mode in inputs.words("modes") for length in inputs.numbers("output_lengths")]
    words = {name: inputs.text(name) for name in ("model", "accelerator")}
    words["num_accelerators"] = f"{inputs.number('num_accelerators'):g}"
    forms = [
        form_of(
            "rl",
            first_words("rl")
            | words
            | {"output_length": f"{length:g}", "rollouts": mode, "longest_output": f"{4.0 * length:g}"},
        )
        for length, mode in cases
    ]
    answers = [answer_of(form, inputs.catalog) for form in forms]
    table = answers_table(forms[0], answers)
    plans = [answer[PLAN] for answer in answers if PLAN in answer]
    names = (
        "step_time",
        "rollout_accelerators",
        "training_accelerators",
        "rollout_time",
        "tail_time",
        "training_time",
        "idle_share",
        "step_cost",
    )
    columns: Columns = [
        ("case", [f"{mode}, {length:,.0f} tokens" for length, mode in cases]),
        ("mode", [mode for _, mode in cases]),
        ("output_length", np.array([length for length, _ in cases])),
        *result_columns(table, names),
    ]
    evaluated = [(stacked(plans), evaluate(stacked(plans), inputs.catalog))] if plans else []
    return Outcome(list(_rl_findings(cases, table)), [sheet_of("rl modes", columns)], inputs.catalog, evaluated)


def _rl_findings(cases: list[tuple[float, str]], table: Table) -> Iterator[Finding]:
    """How much faster the best mode is than the first one at the shortest and the longest rollouts."""
    time = dict(zip(cases, table.number("step_time").tolist(), strict=True))
    lengths, modes = sorted({length for length, _ in cases}), list(dict.fromkeys(mode for _, mode in cases))
    if not any(np.isfinite(value) for value in time.values()):
        yield finding("no step")
        return
    gains = [max(time[length, modes[0]] / time[length, mode] for mode in modes) for length in lengths]
    tails = table.number("tail_time") / table.number("rollout_time")
    yield finding(
        "modes short",
        first=modes[0],
        lengths=(lengths[0], lengths[-1]),
        gains=(gains[0], gains[-1]),
        tail=100.0 * tails[cases.index((lengths[-1], modes[0]))],
    )
    for length in lengths:
        best = min(modes, key=lambda mode: float(np.nan_to_num(time[length, mode], nan=np.inf)))
        row = cases.index((length, best))
        yield finding(
            "mode",
            length=length,
            mode=best,
            time=time[length, best],
            rollouts=table.number("rollout_accelerators")[row],
            trainer=table.number("training_accelerators")[row],
        )
