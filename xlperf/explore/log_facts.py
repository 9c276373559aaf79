"""What the log of a run rules out among the causes, and how it contradicts the plan that it is beside."""

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
from xlperf.interop.stack_rules import TITLES, stack_of_software

SAME, SAME_FLOP = 1.01, 1.35
"""Largest ratio of two settings, and of two counts of FLOP per token, that do not contradict each other: logs round,
and stacks count attention in full or by half. [-]"""
MOST_MFU = 0.75
"""Share of a peak rate that no training run reaches (heuristic, this work: published runs stay below 0.65). [-]"""
_OF_TENSOR = ("sequence_parallel", "tensor_overlap")
"""Columns that mean something with tensor parallelism only."""
_ALIKE = ({"megatron", "nemo"},)
"""Stacks that write logs of one format."""


def ruled_out(kind: str, logged: Logged) -> frozenset[Change]:
    """Changes of ``causes.csv`` that the log of a run excludes: it states another value of a column that they set.

    ``kind``: of the plan. ``logged``: what the log states. Changes of the machine, of times, and by a factor stay.
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
    """Changes of the precision whose peak rate leaves no room for the FLOP per second that a log states.

    ``plan``: one training plan. ``log``: its numbers.
    """
    rates = [one.value * UNITS[one.unit].factor for one in log.settings if one.result == "model flop rate"]
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
    """A value as a sheet has it, in the unit used inside; NaN for what is none."""
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
    """Lines that say in which settings, model or FLOP per token a log differs from the plan it is beside.

    ``plan``: one row. ``name``: of the log. ``log``: its numbers. ``logged``: its settings. Returns no line if nothing
    that the log states differs.
    """
    results = [*_stacks(plan, logged), *_settings(plan, log, logged), *_models(plan, catalog, logged)]
    results += _flop(plan, catalog, log)
    return [f"{name}: contradicts the plan: {words}" for words in results]


def _stacks(plan: Table, logged: Logged) -> Iterator[str]:
    own = stack_of_software(str(plan.filled("software")[0]))
    if logged.stack and own and own != logged.stack and {own, logged.stack} not in _ALIKE:
        yield f"it is of {TITLES[logged.stack]}, the plan is for {TITLES[own]}"


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
        value, own = _value(plan.kind, column, text), plan.filled(column)[0]
        if schema[column].kind == "reference" or own == "" or _same(value, own):
            continue
        words = "that of the plan" if column in plan else "by default that of the plan"
        unit = 1.0 if isinstance(own, str) else float(_value(plan.kind, column, "1") or 1.0)
        shown = str(own) if isinstance(own, str) else f"{own / unit:.6g}"
        if schema[column].kind == "flag":
            shown = "yes" if own else "no"
        yield f"its {column.replace('_', ' ')} is {text}, {words} {shown}"


def _models(plan: Table, catalog: Catalog, logged: Logged) -> Iterator[str]:
    """A model that is described, or named, otherwise than the plan's."""
    models = catalog.tables["models"]
    model = str(with_exact_names(plan, catalog)["model"][0])
    told = {**logged.columns, **logged.quantities}
    wrong = contradicted(told, model, models)
    if wrong:
        fitting, _ = described_models(told, models, False)
        yield f"its {wrong}: it is no {model}" + (f" but {' or '.join(fitting)}" if fitting else "")
        return
    names = [" ".join(told[key] for key in keys if told.get(key)) for keys in (("@model", "@flavor"), ("@named",))]
    named = named_model([one for one in names if one], models)
    if named and named != model and _shape(models, named) != _shape(models, model):
        yield f"its model is {named}, that of the plan {model}"


def _shape(models: Table, name: str) -> tuple[float, ...]:
    row = models.text("model").tolist().index(name)
    sizes = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size", "num_experts")
    return tuple(float(np.nan_to_num(models.number(size)[row])) for size in sizes)


def _flop(plan: Table, catalog: Catalog, log: Log) -> Iterator[str]:
    measured = {one.result: one.value * UNITS[one.unit].factor for one in (*log.results, *log.settings)}
    if plan.kind != "training" or "model flop rate" not in measured:
        return
    results = evaluate(plan, catalog)
    rate, tokens, step = (
        float(results.number(result)[0])
        for result in ("model_flop_rate", "tokens_per_second_per_accelerator", "step_time")
    )
    own_tokens = measured.get("tokens per second per accelerator", 0.0)
    if not own_tokens and "step time" in measured:
        own_tokens = tokens * step / measured["step time"]
    if own_tokens > 0.0 and tokens > 0.0:
        logged, planned = measured["model flop rate"] / own_tokens, rate / tokens
        if not 1.0 / SAME_FLOP <= logged / planned <= SAME_FLOP:
            yield (
                f"its TFLOP/s give {logged / 1e9:.4g} GFLOP per token, the plan has "
                f"{planned / 1e9:.4g}: another model, sequence length, batch or number of accelerators"
            )
