"""Studies that vary one entry of a question, or one column of served plans, for some models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import first_words, table_schema, unit_of
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.explore.forms import answer_of, answers_table, form_of
from xlperf.studies.outcome import (
    Columns,
    Finding,
    Inputs,
    Outcome,
    figures,
    finding,
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
