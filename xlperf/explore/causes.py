"""Possible causes of a gap between a plan and its measured run (``causes.csv``), and facts of its log and profile."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.errors import InputError
from xlperf.base.resources import rows
from xlperf.base.units import UNITS
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import MARK, Table
from xlperf.engine import evaluate, explain
from xlperf.equations.plan.records import PRECISIONS
from xlperf.explore.vary import read_values
from xlperf.interop.checkpoints import contradicted, described_models, named_model, states_format
from xlperf.interop.launch_stacks import title_of
from xlperf.interop.logs import COMMUNICATION, SETTING, Log, Logged, Profile
from xlperf.interop.software import stack_of_software

NONE = -1
EVEN = "even"  # prefix of a number of layers relative to a stage's even share
FLIGHT = "flight"  # prefix of a number of requests as a multiple of those in flight
PLAN, ACCELERATORS, INNERMOST, OUTER, RESULTS = "plan", "accelerators", "innermost tier", "outer tiers", "results"
"""Targets of a change: the plan, the catalog rows that it names, or the measured times."""


@dataclass(frozen=True)
class Change:
    """One change of a plan or its machine: a row of ``causes.csv`` with one of its values."""

    cause: str
    sheet: str  # ``plan``, ``accelerators``, ``innermost tier``, ``outer tiers`` or ``results``
    columns: tuple[str, ...]  # the columns that change
    # A value for each column with ``/`` between, ``-`` for blank, or a factor for all as ``x0.9``; ``even+1`` is one
    # layer more than an even share of the stages, ``flight0.5`` half as many as requests in flight.
    value: str
    prior: float  # probability before any measurement, which the values of a cause share
    advice: str  # the setting or part to inspect

    @property
    def factor(self) -> float:
        """Factor on a number; NaN for a change that sets a value."""
        return float(self.value[1:]) if self.value.startswith("x") else float("nan")

    @property
    def words(self) -> str:
        """``recompute full``; ``outer tiers link bandwidth x0.5``."""
        if self.value.startswith("x"):
            words = "peak FLOP rates and clock rate" if len(self.columns) > 1 else self.columns[0].replace("_", " ")
            return f"{'' if self.sheet in (PLAN, RESULTS) else f'{self.sheet} '}{words} {self.value}"
        pairs = zip(self.columns, self.value.split("/"), strict=True)
        shown = ((name.replace("_", " "), value) for name, value in pairs if value != "-")
        return ", ".join(
            f"{name} {value.removeprefix(FLIGHT)} x those in flight" if value.startswith(FLIGHT) else f"{name} {value}"
            for name, value in shown
        )

    def made_on(
        self, kind: str, columns: Mapping[str, np.ndarray], even: float = float("nan")
    ) -> dict[str, np.ndarray]:
        """Columns of plans with the change in every row; ``even`` is the even share of layers of a stage."""
        schema, result = table_schema(kind).by_name, dict(columns)
        if self.value.startswith("x"):
            for name in (name for name in self.columns if name in result):
                changed = result[name] * self.factor
                result[name] = np.maximum(np.round(changed), 1.0) if schema[name].is_whole else changed
            return result
        count = len(next(iter(columns.values())))
        for name, text in zip(self.columns, self.value.split("/"), strict=True):
            value: float | str = "" if schema[name].is_text else float("nan")
            if text.startswith(FLIGHT):
                flight = columns.get("concurrency", np.full(count, np.nan))
                result[name] = np.maximum(np.round(flight * float(text.removeprefix(FLIGHT))), 1.0)
                continue
            if text.startswith(EVEN):
                value = even + float(text.removeprefix(EVEN))
            elif text != "-":
                value = _value(kind, name, text)
            result[name] = schema[name].array([value] * count)
        return result


@cache
def changes(kind: str) -> tuple[Change, ...]:
    """Every change of ``causes.csv`` for a kind of plan.

    >>> next(change.words for change in changes("training") if change.cause == "full recomputation")
    'recompute full'
    """
    results = []
    for row in rows("explore/causes.csv"):
        if row["plans"] in (kind, "both"):
            values = row["values"].split()
            columns, prior = tuple(row["columns"].split()), float(row["prior"]) / len(values)
            results += [Change(row["cause"], row["sheet"], columns, value, prior, row["advice"]) for value in values]
    return tuple(results)


@dataclass(frozen=True)
class Variants:
    """All plans that differ from one plan by one or two changes; the first variant is the plan itself."""

    plan: Table  # as it is; one row
    tried: tuple[Change, ...]
    first: np.ndarray  # positions in ``tried`` of each variant's changes; -1 for none
    second: np.ndarray

    @classmethod
    def of(cls, plan: Table, without: Collection[Change] = ()) -> Variants:
        """Every change except ``without``, and every pair of changes with two causes and different columns."""
        tried = tuple(change for change in changes(plan.kind) if change not in without)
        columns = [{(change.sheet, name) for name in change.columns} for change in tried]
        every = zip(*(numbers.tolist() for numbers in np.triu_indices(len(tried), 1)), strict=True)
        apart = [(a, b) for a, b in every if tried[a].cause != tried[b].cause and not columns[a] & columns[b]]
        pairs = np.array(apart, dtype=np.int64).reshape(-1, 2)
        first = np.concatenate([[NONE], np.arange(len(tried)), pairs[:, 0]])
        second = np.concatenate([np.full(len(tried) + 1, NONE), pairs[:, 1]])
        return cls(plan, tried, first, second)

    def having(self, change: int) -> np.ndarray:
        """Variants that include a change."""
        return np.asarray((self.first == change) | (self.second == change))

    @cached_property
    def time_factors(self) -> Array:
        """Factors on measured times from causes outside the plan, by variant."""
        factors = np.ones(len(self.first))
        for number, change in enumerate(self.tried):
            if change.sheet == RESULTS:
                factors[self.having(number)] *= change.factor
        return factors

    @cached_property
    def as_published(self) -> np.ndarray:
        """Variant with only the plan's changes: a machine fault does not alter the calibration band."""
        faulty = np.array([change.sheet != PLAN for change in self.tried] + [True])
        settings = [np.where(faulty[number], NONE, number) for number in (self.first, self.second)]
        changed = faulty[self.first] | (faulty[self.second] & (self.second != NONE))
        return np.where(changed, 1 + np.max(settings, 0), np.arange(len(self.first)))

    def evaluated_on(self, catalog: Catalog) -> tuple[Table, Catalog]:
        """The variants as plans, and the catalog with the rows of changed accelerators and networks."""
        own_columns = with_exact_names(self.plan, catalog)
        columns = {name: np.repeat(values, len(self.first)) for name, values in own_columns.items()}
        even = float("nan")  # layers of a stage if all stages have as many
        if self.plan.kind == "training" and (stages := self.plan.value("pipeline_parallel")) > 1.0:
            model = catalog.rows("models", self.plan.text("model"), self.plan, "model")
            even = float(np.ceil(catalog.tables["models"].number("num_layers")[model][0] / stages))
        for number, change in enumerate(self.tried):
            changed = change.made_on(self.plan.kind, columns, even) if change.sheet == PLAN else {}
            for name in change.columns:
                if name in changed:
                    blank = np.full(len(self.first), "" if changed[name].dtype == object else np.nan)
                    before = columns.get(name, blank.astype(changed[name].dtype))
                    columns[name] = np.where(self.having(number), changed[name], before).astype(before.dtype)
        table = Table(self.plan.kind, columns, lambda _, column: self.plan.place(0, column))
        accelerator = int(catalog.rows("accelerators", self.plan.text("accelerator"), self.plan, "accelerator")[0])
        machines = catalog.tables["accelerators"]
        stated = str(own_columns["network"][0]) if "network" in own_columns else ""
        network = stated or str(machines.text("default_network")[accelerator])
        tiers = catalog.network_tiers(network)
        linked = not np.isnan(machines.number("link_bandwidth")[accelerator])
        added = []
        for column, source, rows_of, sheets in (
            ("accelerator", machines, np.array([accelerator]), (ACCELERATORS, *((INNERMOST,) if linked else ()))),
            ("network", catalog.tables["networks"], tiers, (INNERMOST, OUTER)),
        ):
            if len(rows_of):
                words, copied = self._renamed(source, column, rows_of, sheets)
                before = columns.get(column, np.full(len(words), ""))
                columns[column] = np.where(words == "", before, words).astype(object)
                added.append(copied)
        return table, catalog.with_tables(added)

    def made(self, row: int) -> tuple[Change, ...]:
        """The changes of a variant."""
        return tuple(self.tried[number] for number in (self.first[row], self.second[row]) if number != NONE)

    def _renamed(
        self, table: Table, column: str, rows_of: np.ndarray, sheets: Sequence[str]
    ) -> tuple[np.ndarray, Table]:
        """Name of the changed row that each variant uses ("" for the original), and the table with such rows."""
        concerned = np.array([change.sheet in sheets for change in self.tried])
        pairs = [
            tuple(number for number in pair if number != NONE and concerned[number])
            for pair in zip(self.first.tolist(), self.second.tolist(), strict=True)
        ]
        names = {pair: f"{table.text(column)[rows_of[0]]}{MARK}{pair}" for pair in dict.fromkeys(pairs) if pair}
        repeated = table.take(np.concatenate([np.arange(len(table)), np.tile(rows_of, len(names))]))
        columns = {key: values.copy() for key, values in repeated.columns.items()}
        for first, (pair, name) in enumerate(names.items()):
            copies = len(table) + first * len(rows_of) + np.arange(len(rows_of))
            columns[column][copies] = name
            for change in (self.tried[number] for number in pair):
                if column == "accelerator":
                    changed_rows = copies
                else:
                    changed_rows = copies[:1] if change.sheet == INNERMOST else copies[1:]
                for changed in set(change.columns) & set(columns):
                    columns[changed][changed_rows] *= change.factor
        words = np.array([names.get(pair, "") for pair in pairs], dtype=object)
        return words, replace(repeated, columns=columns)


def with_exact_names(plan: Table, catalog: Catalog) -> dict[str, np.ndarray]:
    """Columns of one plan with names as in the catalog, except a checkpoint's that states its format."""
    columns = dict(plan.columns)
    for column in plan.schema.columns:
        if column.kind != "reference" or column.name not in columns:
            continue
        table = catalog.tables[column.reference]
        result = catalog.rows(column.reference, plan.text(column.name), plan, column.name)
        exact = table.text(table.schema.key.name)[np.maximum(result, 0)] if len(table) else columns[column.name]
        columns[column.name] = np.where(result < 0, "", exact).astype(object)
        if column.reference == "models":
            given = plan.text(column.name)
            columns[column.name] = np.where(states_format(given), given, columns[column.name])
    return columns


COMPUTED = "time forward + time backward + time recompute + time optimizer"
"""Training results that add up to the time of compute kernels."""
EXCHANGED = (
    "time tensor parallel + time context parallel + time expert parallel + time pipeline communication + "
    "time data parallel"
)
"""Training results that add up to exposed communication."""
OF_CLASS = {"matrix": "time matrix", "attention": "time attention", "vector": "time vector",
            COMMUNICATION: "time communication"}  # fmt: skip
"""Results of a decode step by class of kernels."""
_FAMILIES = {"gemm": "matrix", "experts": "matrix", "attention": "attention", "attention_backward": "attention"}
_FEWEST = 1e-7


def measured_texts(kind: str, profile: Profile) -> list[str]:
    """Measured times of a profile, per step (a decode step in serving), in the syntax of ``--measured``."""
    if kind == "training":
        pairs = [(COMPUTED, profile.computed), (EXCHANGED, profile.exposed)]
    else:
        pairs = [(OF_CLASS[name], time) for name, time in profile.times.items() if name in OF_CLASS]
    return [f"{name}={time:.9g} s" for name, time in pairs if time > _FEWEST]


def by_class(plan: Table, catalog: Catalog, profile: Profile) -> list[str]:
    """Lines: class of kernels, measured and predicted time of a step, and their ratio. ``profile``: times per step."""
    predicted, ms = _kernel_times(plan, catalog), UNITS["ms"].factor
    lines = [f"{'class':14} {'measured (ms)':>14} {'predicted (ms)':>15} {'ratio':>6}"]
    for name in dict.fromkeys([*predicted, *profile.times]):
        pair = [profile.times.get(name, float("nan")), predicted.get(name, float("nan"))]
        shown = [f"{value / ms:.4g}" if value == value else "-" for value in pair]
        ratio = f"{pair[0] / pair[1]:.2f}" if pair[0] == pair[0] and pair[1] > 0.0 else "-"
        lines.append(f"{name:14} {shown[0]:>14} {shown[1]:>15} {ratio:>6}")
    return lines


def _kernel_times(plan: Table, catalog: Catalog) -> dict[str, float]:
    """Kernel times by class, of a training step (overlapped or not) or of a decode step."""
    if plan.kind != "training":
        results = evaluate(plan, catalog)
        return {name: float(results.number(result.replace(" ", "_"))[0]) for name, result in OF_CLASS.items()}
    table = explain(plan, catalog)
    times: dict[str, float] = {}
    for name, time in zip(table.text("family").tolist(), table.number("total_time").tolist(), strict=True):
        family = _FAMILIES.get(name, "vector" if name == "vector" else COMMUNICATION if name else "")
        if family and time == time:
            times[family] = times.get(family, 0.0) + time
    return times


SAME, SAME_FLOP = 1.01, 1.35
"""Largest ratio of two settings, and of two counts of FLOP per token, that agree: logs round, and training software
counts attention in full or by half. [-]
"""
MOST_MFU = 0.75
"""Share of a peak rate that no training run reaches (heuristic, this work: published runs stay below 0.65). [-]"""
_OF_TENSOR = ("sequence_parallel", "tensor_overlap")  # columns that have an effect with tensor parallelism only
_ALIKE = ({"megatron", "nemo"},)  # software that writes logs of one format


def ruled_out(kind: str, logged: Logged) -> frozenset[Change]:
    """Changes of plan columns to a value that the log of a run excludes, because it states another one."""

    def is_excluded(name: str, text: str) -> bool:
        if text == "-" or not (name in logged.columns or name in logged.defaults):
            return False
        if name in logged.columns:
            stated = _value(kind, name, logged.columns[name])
        else:
            stated = Table(kind, {"model": np.array([""], dtype=object)}).filled(name)[0]
            if stated != stated:
                return True
        return text.startswith((EVEN, FLIGHT)) or not _same(_value(kind, name, text), stated)

    settings = [each for each in changes(kind) if each.sheet == PLAN and not each.value.startswith("x")]
    return frozenset(each for each in settings if any(map(is_excluded, each.columns, each.value.split("/"))))


def too_slow(plan: Table, catalog: Catalog, log: Log) -> frozenset[Change]:
    """Changes of a training plan to a precision whose peak rate is too low for the FLOP per second in a log."""
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


@cache
def _value(kind: str, name: str, text: str) -> float | str:
    """A value of a sheet in the internal unit; NaN if it is not legal."""
    try:
        value: float | str = read_values(kind, [(name, [text])])[name][0]
    except InputError:
        return float("nan")
    return value


def _same(one: float | str, other: float | str) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return str(one).casefold() == str(other).casefold()
    return abs(one - other) <= (SAME - 1.0) * max(abs(one), abs(other)) or one != one or other != other


def contradictions(plan: Table, catalog: Catalog, name: str, log: Log, logged: Logged) -> list[str]:
    """Lines with the settings, model or FLOP per token in which a log differs from its plan; none if all agree."""
    results = []
    planned = stack_of_software(plan.word("software"))
    if logged.stack and planned and planned != logged.stack and {planned, logged.stack} not in _ALIKE:
        results.append(f"it is of {title_of(logged.stack)}, the plan is for {title_of(planned)}")
    results += [*_settings(plan, log, logged), *_models(plan, catalog, logged), *_flop(plan, catalog, log)]
    return [f"{name}: contradicts the plan: {words}" for words in results]


def _settings(plan: Table, log: Log, logged: Logged) -> Iterator[str]:
    schema, stated = table_schema(plan.kind).by_name, dict(logged.columns)
    for setting in log.settings:
        column = setting.result.replace(" ", "_")
        if setting.pick == SETTING and column in schema:
            stated.setdefault(column, f"{setting.value:.10g}")
    tensor = plan.value("tensor_parallel") > 1.0
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
    model = str(models.text("model")[catalog.rows("models", plan.text("model"), plan, "model")[0]])
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
        results.stated(result) for result in ("model_flop_rate", "tokens_per_second_per_accelerator", "step_time")
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
