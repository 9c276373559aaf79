"""Facts in the log of a run: causes that it excludes, and settings that contradict the plan."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

from xlperf.base.errors import InputError
from xlperf.base.units import UNITS
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.equations.plan.records import PRECISIONS
from xlperf.explore.causes import EVEN, PLAN, Change, changes, with_exact_names
from xlperf.explore.vary import read_values
from xlperf.interop.launch_models import contradicted, described_models, named_model
from xlperf.interop.logs import SETTING, Log, Logged
from xlperf.interop.stack_rules import STACKS, stack_of_software

SAME, SAME_FLOP = 1.01, 1.35
"""Largest ratio of two settings, and of two counts of FLOP per token, that agree: logs round, and training software
counts attention in full or by half. [-]
"""
MOST_MFU = 0.75
"""Share of a peak rate that no training run reaches (heuristic, this work: published runs stay below 0.65). [-]"""
_OF_TENSOR = ("sequence_parallel", "tensor_overlap")
"""Columns that have an effect with tensor parallelism only."""
_ALIKE = ({"megatron", "nemo"},)
"""Software that writes logs of one format."""


def ruled_out(kind: str, logged: Logged) -> frozenset[Change]:
    """Changes of ``causes.csv`` that the log of a run excludes, because it states another value of a changed column.

    Changes of the machine, of times, and by a factor stay.
    """
    result = set()
    for change in changes(kind):
        if change.sheet != PLAN or change.value.startswith("x"):
            continue
        pairs = zip(change.columns, change.value.split("/"), strict=True)
        if any(text != "-" and _excluded(kind, name, text, logged) for name, text in pairs):
            result.add(change)
    return frozenset(result)


def too_slow(plan: Table, catalog: Catalog, log: Log) -> frozenset[Change]:
    """Changes to a precision whose peak rate is too low for the FLOP per second in a log.

    ``plan``: one training plan. ``log``: its numbers.
    """
    rates = [
        setting.value * UNITS[setting.unit].factor for setting in log.settings if setting.result == "model flop rate"
    ]
    if plan.kind != "training" or not rates:
        return frozenset()
    machines = catalog.tables["accelerators"]
    row = catalog.rows("accelerators", plan.text("accelerator"), plan, "accelerator")
    result = set()
    for change in changes(plan.kind):
        if "precision" in change.columns:
            precision = change.value.split("/")[change.columns.index("precision")]
            peak = float(machines.number(f"peak_flop_rate_{PRECISIONS[precision].peak}")[row][0])
            result |= {change} if rates[0] > MOST_MFU * peak else set()
    return frozenset(result)


def _excluded(kind: str, name: str, text: str, logged: Logged) -> bool:
    """Whether a log states a column with another value."""
    if name in logged.columns:
        return text.startswith(EVEN) or not _same(_value(kind, name, text), _value(kind, name, logged.columns[name]))
    if name in logged.defaults:
        default = _default(kind, name)
        return text.startswith(EVEN) or default != default or not _same(_value(kind, name, text), default)
    return False


@cache
def _value(kind: str, name: str, text: str) -> float | str:
    """A value of a sheet in the internal unit; NaN if it is not legal."""
    try:
        value: float | str = read_values(kind, [(name, [text])], "log", from_text=True)[name][0]
    except InputError:
        return float("nan")
    return value


def _default(kind: str, name: str) -> float | str:
    value: float | str = Table(kind, {"model": np.array([""], dtype=object)}).filled(name)[0]
    return value


def _same(one: float | str, other: float | str) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return str(one).casefold() == str(other).casefold()
    return abs(one - other) <= (SAME - 1.0) * max(abs(one), abs(other)) or one != one or other != other


def contradictions(plan: Table, catalog: Catalog, name: str, log: Log, logged: Logged) -> list[str]:
    """Lines with the settings, model or FLOP per token in which a log differs from its plan; none if all agree.

    ``plan``: one row. ``name``: of the log. ``log``: its numbers. ``logged``: its settings.
    """
    results = [*_stacks(plan, logged), *_settings(plan, log, logged), *_models(plan, catalog, logged)]
    results += _flop(plan, catalog, log)
    return [f"{name}: contradicts the plan: {words}" for words in results]


def _stacks(plan: Table, logged: Logged) -> Iterator[str]:
    planned = stack_of_software(str(plan.filled("software")[0]))
    if logged.stack and planned and planned != logged.stack and {planned, logged.stack} not in _ALIKE:
        yield f"it is of {STACKS[logged.stack].title}, the plan is for {STACKS[planned].title}"


def _settings(plan: Table, log: Log, logged: Logged) -> Iterator[str]:
    schema, stated = table_schema(plan.kind).by_name, dict(logged.columns)
    for setting in log.settings:
        column = setting.result.replace(" ", "_")
        if setting.pick == SETTING and column in schema:
            stated.setdefault(column, f"{setting.value:.10g}")
    tensor = float(plan.filled("tensor_parallel")[0]) > 1.0
    for column, text in stated.items():
        if column not in schema or (column in _OF_TENSOR and not tensor):
            continue
        value, planned = _value(plan.kind, column, text), plan.filled(column)[0]
        if schema[column].kind == "reference" or planned == "" or _same(value, planned):
            continue
        words = "that of the plan" if column in plan else "by default that of the plan"
        unit = 1.0 if isinstance(planned, str) else float(_value(plan.kind, column, "1") or 1.0)
        shown = str(planned) if isinstance(planned, str) else f"{planned / unit:.6g}"
        if schema[column].kind == "flag":
            shown = "yes" if planned else "no"
        yield f"its {column.replace('_', ' ')} is {text}, {words} {shown}"


def _models(plan: Table, catalog: Catalog, logged: Logged) -> Iterator[str]:
    """A contradiction between the log's description or name of the model and the plan."""
    models = catalog.tables["models"]
    model = str(with_exact_names(plan, catalog)["model"][0])
    stated = {**logged.columns, **logged.quantities}
    wrong = contradicted(stated, model, models)
    if wrong:
        fitting, _ = described_models(stated, models, False)
        yield f"its {wrong}: it is no {model}" + (f" but {' or '.join(fitting)}" if fitting else "")
        return
    names = [" ".join(stated[key] for key in keys if stated.get(key)) for keys in (("@model", "@flavor"), ("@named",))]
    named = named_model([name for name in names if name], models)
    if named and named != model and _shape(models, named) != _shape(models, model):
        yield f"its model is {named}, that of the plan {model}"


def _shape(models: Table, name: str) -> tuple[float, ...]:
    row = models.text("model").tolist().index(name)
    sizes = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size", "num_experts")
    return tuple(float(np.nan_to_num(models.number(size)[row])) for size in sizes)


def _flop(plan: Table, catalog: Catalog, log: Log) -> Iterator[str]:
    measured = {entry.result: entry.value * UNITS[entry.unit].factor for entry in (*log.results, *log.settings)}
    if plan.kind != "training" or "model flop rate" not in measured:
        return
    results = evaluate(plan, catalog)
    rate, tokens, step = (
        float(results.number(result)[0])
        for result in ("model_flop_rate", "tokens_per_second_per_accelerator", "step_time")
    )
    token_rate = measured.get("tokens per second per accelerator", 0.0)
    if not token_rate and "step time" in measured:
        token_rate = tokens * step / measured["step time"]
    if token_rate > 0.0 and tokens > 0.0:
        logged, planned = measured["model flop rate"] / token_rate, rate / tokens
        if not 1.0 / SAME_FLOP <= logged / planned <= SAME_FLOP:
            yield (
                f"its TFLOP/s give {logged / 1e9:.4g} GFLOP per token, the plan has "
                f"{planned / 1e9:.4g}: another model, sequence length, batch or number of accelerators"
            )
