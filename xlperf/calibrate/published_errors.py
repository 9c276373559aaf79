"""Measurements of a calibration, and published rows as plans beside their predictions: the residuals of all fits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError, nearest
from xlperf.base.resources import workbook
from xlperf.calibrate.fitter import FittedConstant, Parameter, Problem, calibration_table, joined_tables
from xlperf.catalog.calibration import ANY, Calibration, shared_precision
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.join import software_words
from xlperf.engine.trust import layer_size, model_traits
from xlperf.measurements.comparison import (
    FIRST_TOKEN,
    MEMORY,
    RATES,
    STEP_TIME,
    TIME_PER_TOKEN,
    compare,
    metrics_of,
    predicted,
    result_column,
)
from xlperf.measurements.inference import inference_plans
from xlperf.measurements.kernels import machine_lines, read_kernels
from xlperf.measurements.published import KINDS, POWER, Published, PublishedPlans, read_published
from xlperf.measurements.training import training_plans

NEVER_FITTED = "papers"
UNSEEN = "unseen-"
"""Prefix of groups of rows read after the model was made: predicted once before any change, and excluded from fits,
bands, rules, choices and the table of measured configurations.
"""
OTHER_MACHINES = "other-"  # prefix of groups on machines beyond NVIDIA, fitted by vendor line (``fit_machines``)
NEVER_FITTED_SOURCES = ("deepseek_infersim", "deepseek_infra")
"""Sources that are predicted and never fitted, beside the group of the papers."""
NEVER_FITTED_ATTENTION = ("hybrid", "sparse")
"""Attention types that are predicted and never fitted: linear-attention scans and sparse token selection have one
set of constants for all accelerators, and constants of software must not absorb their errors.
"""
QUANTITIES = (STEP_TIME, TIME_PER_TOKEN, FIRST_TOKEN)
WEIGHT_OF_FIRST = 0.5  # weight of a time to first token relative to a time per token [-]
RESULTS = {STEP_TIME: "step_time", TIME_PER_TOKEN: "tpot", FIRST_TOKEN: "ttft", MEMORY: "memory"}  # by quantity


@dataclass(frozen=True)
class Errors:
    """Deviations of published values, one entry per primary value of a row."""

    kind: str  # training or inference
    row_ids: np.ndarray
    group: np.ndarray
    quantity: np.ndarray
    software: np.ndarray
    generation: np.ndarray
    family: np.ndarray  # configuration: model and accelerator
    model: np.ndarray  # layer shape: the same for DeepSeek-V3 and R1, and for a model with fewer layers
    plan: np.ndarray  # position of its plan [-]
    fitted: Array  # logarithm of predicted over measured time, with all rows in the fit [-]
    by_models: Array  # the same with its model left out of the fit [-]
    low: Array  # ends of its band over the prediction, as times; NaN without a band [-]
    high: Array

    def __len__(self) -> int:
        return len(self.row_ids)

    @property
    def configuration_weights(self) -> Array:
        """Weight of each entry: the entries of a configuration (software, model, accelerator) weigh 1 together. [-]"""
        names = list(zip(self.software, self.family, strict=True))
        sizes = Counter(names)
        return np.array([1.0 / sizes[name] for name in names])

    @property
    def experts(self) -> np.ndarray:
        """Whether the model of each entry has experts."""
        return np.array([not shape.endswith("/nan") for shape in self.model.tolist()], dtype=bool)

    @property
    def weights(self) -> Array:
        """Weights of the entries in a fit: a configuration of n rows weighs as much as the root of n. [-]"""
        names = self.family.tolist()
        sizes = Counter(names)
        count = np.array([sizes[name] for name in names], dtype=np.float64)
        return np.where(self.quantity == FIRST_TOKEN, WEIGHT_OF_FIRST, 1.0) / np.sqrt(count)

    def num_rows(self, chosen: np.ndarray) -> int:
        """Number of published rows among selected entries."""
        return len(set(self.row_ids[chosen].tolist()))

    def take(self, chosen: np.ndarray) -> Errors:
        """Subset of the entries: positions, or a mask."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return Errors(**{name: value[chosen] if name != "kind" else value for name, value in values.items()})

    def covered(self, errors: Array) -> Array:
        """1 if the measured time lies in the band under these errors, 0 if not, NaN without a band."""
        ratio = np.exp(-errors)
        inside = ((self.low <= ratio) & (ratio <= self.high)).astype(np.float64)
        return np.where(np.isnan(self.low + self.high + errors), math.nan, inside)


def weighted_quantile(values: Array, weight: Array, share: float) -> float:
    """Weighted quantile, interpolated between the values; NaN if there is none.

    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0]), 0.5)
    2.0
    """
    finite = ~np.isnan(values)
    if not finite.any():
        return math.nan
    order = np.argsort(values[finite], kind="stable")
    ranked, heavy = values[finite][order], weight[finite][order]
    return float(np.interp(share, (np.cumsum(heavy) - 0.5 * heavy) / heavy.sum(), ranked))


def plans_of(published: Published, catalog: Catalog) -> PublishedPlans:
    """Published rows of training or inference as plans; raises InputError for rows of measured power."""
    if published.kind == POWER:
        problem = "holds rows of measured power, which xlperf validate compares without other options"
        raise InputError(Fault(published.place(-1, "row_id"), problem))
    return training_plans(published, catalog) if published.kind == "training" else inference_plans(published, catalog)


def _of_groups(published: Published, wanted: Callable[[str], bool]) -> Published:
    groups = published.text.get("group", [""] * len(published))  # rows of measured power have none
    return published.take([row for row, group in enumerate(groups) if wanted(group.casefold())])


def seen_rows(published: Published) -> Published:
    """Published rows known when the model was made: all except unseen groups."""
    return _of_groups(published, lambda group: not group.startswith(UNSEEN))


def rows_to_fit(published: Published) -> Published:
    """Published rows excluding unseen rows and papers."""
    return _of_groups(seen_rows(published), lambda group: group != NEVER_FITTED)


def plans_to_fit(published: Published, catalog: Catalog) -> PublishedPlans:
    """Published rows as plans, excluding unseen rows, papers and machines that are fitted by line."""
    rows = _of_groups(rows_to_fit(published), lambda group: not group.startswith(OTHER_MACHINES))
    return plans_of(rows, catalog)


def rows_of_machines(published: Published) -> Published:
    """Published rows on machines that are fitted by line."""
    return _of_groups(published, lambda group: group.startswith(OTHER_MACHINES))


def may_be_fitted(plans: PublishedPlans, entries: Errors) -> np.ndarray:
    """Mask of the errors that constants may be fitted on; prediction-only sources and attention types are excluded."""
    source = plans.published.text["source_id"]
    models = plans.catalog.rows("models", plans.plans.text("model"), plans.plans, "model")
    attention = plans.catalog.tables["models"].text("attention_type")[models]
    sources = NEVER_FITTED_SOURCES if entries.kind == "inference" else ()
    of_source = np.array([name not in sources for name in source], dtype=bool)[plans.index]
    of_attention = ~np.isin(attention.astype(str), NEVER_FITTED_ATTENTION)
    return np.asarray((of_source & of_attention)[entries.plan])


def log_errors(
    plans: PublishedPlans, quantities: Collection[str] = QUANTITIES
) -> tuple[dict[tuple[str, str], float], Table]:
    """Logarithm of predicted over measured time (or size) by (row, quantity), and the results."""
    results = predicted(plans)
    by_name = {}
    for record in compare(plans, results):
        if record.primary and record.covered and record.quantity in quantities:
            ratio = record.predicted / record.measured
            by_name[record.row_id, record.quantity] = math.log(1.0 / ratio if record.metric in RATES else ratio)
    return by_name, results


def errors_of(plans: PublishedPlans, quantities: Sequence[str] = QUANTITIES) -> Errors:
    """Errors of the given quantities of published rows under the calibration of their catalog."""
    errors, results = log_errors(plans, quantities)
    text, catalog = plans.published.text, plans.catalog
    of_plan = {text["row_id"][row]: plan for plan, row in reversed(list(enumerate(plans.index.tolist())))}
    keys = list(errors)
    plan = np.array([of_plan[name] for name, _ in keys], dtype=np.int64)
    row = plans.index[plan] if len(plan) else plan
    accelerators = catalog.rows("accelerators", plans.plans.text("accelerator"), plans.plans, "accelerator")
    generation = np.array([str(kind).casefold() for kind in catalog.tables["accelerators"].text("generation")])
    models = [str(name).casefold() for name in plans.plans.text("model")]
    shapes = model_traits(catalog)[0]
    model_rows = catalog.rows("models", plans.plans.text("model"), plans.plans, "model")
    gpus = [str(name).casefold() for name in plans.plans.text("accelerator")]
    quantity = np.array([quantity for _, quantity in keys], dtype=object)
    stacks = software_words(plans.plans)
    fitted = np.array([errors[key] for key in keys])
    return Errors(
        kind=plans.published.kind,
        row_ids=np.array([name for name, _ in keys], dtype=object),
        group=np.array([text["group"][at] for at in row.tolist()], dtype=object),
        quantity=quantity,
        software=np.array([stacks.words[code].casefold() for code in stacks.codes[plan].tolist()], dtype=object),
        generation=generation[accelerators][plan],
        family=np.array([f"{models[at]}/{gpus[at]}" for at in plan.tolist()], dtype=object),
        model=np.array([layer_size(shapes[row]) for row in model_rows.tolist()], dtype=object)[plan],
        plan=plan,
        fitted=fitted,
        by_models=fitted,
        low=_end_of_band(results, "low", quantity, plan),
        high=_end_of_band(results, "high", quantity, plan),
    )


def vendor_lines(errors: Errors, catalog: Catalog) -> np.ndarray:
    """Vendor line of the accelerator of each entry; "nvidia" for machines that have none."""
    lines = machine_lines(catalog)
    return np.array([lines.get(kind, "nvidia") for kind in errors.generation.tolist()], dtype=object)


def _end_of_band(results: Table, end: str, quantity: np.ndarray, plan: np.ndarray) -> Array:
    """End of the band of each entry over its prediction; NaN if its result has none."""
    values = np.full(len(quantity), math.nan)
    for kind, name in RESULTS.items():
        of_kind = quantity == kind
        if of_kind.any() and f"{name}_{end}" in results:
            values[of_kind] = (results.number(f"{name}_{end}") / results.number(name))[plan[of_kind]]
    return values


def aligned(errors: Mapping[tuple[str, str], float], entries: Errors) -> Array:
    """Errors by (row, quantity) in the order of entries; NaN if there is no prediction."""
    pairs = zip(entries.row_ids.tolist(), entries.quantity.tolist(), strict=True)
    return np.array([errors.get(pair, math.nan) for pair in pairs])


def changed(table: Table, values: Mapping[int, float]) -> Table:
    """Calibration table with new values in some rows."""
    column = np.array(table["value"], dtype=np.float64)
    column[list(values)] = list(values.values())
    return Table("calibration", {**table.columns, "value": column}, table.place)


def _with_starts(plans: PublishedPlans, parameters: Sequence[Parameter]) -> Table:
    """Calibration of plans, in which the start values of parameters replace rows with the same key."""
    starts = calibration_table([FittedConstant(*parameter.key, parameter.first) for parameter in parameters])
    return joined_tables(plans.catalog.tables["calibration"], starts)


def users_of(plans: PublishedPlans, entries: Errors, parameters: Sequence[Parameter]) -> np.ndarray:
    """Mask of the entries whose predictions use each parameter, (parameters, entries), by the look-up order."""
    table = _with_starts(plans, parameters)
    calibration = Calibration(table)
    names = ("family", "generation", "precision", "software", "constant")
    keys = zip(*(table.text(name, ANY) for name in names), strict=True)
    row_of = {tuple(str(part).casefold() for part in key): row for row, key in enumerate(keys)}
    precision = [str(name) for name in plans.plans.filled("precision")]
    precisions = [precision[at] for at in entries.plan]
    of_entry = list(zip(entries.generation.tolist(), precisions, entries.software.tolist(), strict=True))
    values = np.zeros((len(parameters), len(entries)), dtype=bool)
    rows: dict[tuple[str, str, str, str], dict[str, int]] = {}
    for at, parameter in enumerate(parameters):
        wanted = row_of[tuple(part.casefold() for part in parameter.key)]
        using = {}
        for generation, own, software in set(of_entry):
            key = (parameter.family, generation, own if parameter.precision == ANY else parameter.precision, software)
            if key not in rows:
                rows[key] = calibration.used(*key)
            using[generation, own, software] = rows[key][parameter.constant] == wanted
        values[at] = [using[key] for key in of_entry]
    return values


def published_problem(plans: PublishedPlans, entries: Errors, parameters: Sequence[Parameter]) -> Problem:
    """Least-squares problem of the parameters, with the errors of published rows as residuals."""
    table = _with_starts(plans, parameters)
    first = len(table) - len(parameters)
    users = users_of(plans, entries, parameters)
    followed = _Followed(plans, entries)
    parts: dict[bytes, Callable[[Catalog], Array]] = {}
    base: tuple[Array, Array] = np.full(len(parameters), math.nan), np.zeros(0)

    def residuals(trials: Array) -> Array:
        nonlocal base
        result = np.repeat(np.array(entries.fitted)[None, :], len(trials), axis=0)
        for values, errors in zip(trials, result, strict=True):
            moved = users[values != base[0]].any(axis=0) if len(base[1]) else np.full(len(entries), True)
            key = moved.tobytes()
            if key not in parts:
                parts[key] = followed.evaluation(moved)
            sheet = changed(table, {first + at: value for at, value in enumerate(values.tolist())})
            errors[~moved] = base[1][~moved] if len(base[1]) else 0.0
            errors[moved] = parts[key](plans.catalog.with_tables([sheet])) if moved.any() else 0.0
            if len(trials) == 1 or not len(base[1]):
                base = np.array(values), np.array(errors)
        return result

    return Problem(residuals, entries.weights, users, colours_of(parameters))


class _Followed:
    """Published entries and the results that they follow, under the calibration of their plans."""

    def __init__(self, plans: PublishedPlans, entries: Errors) -> None:
        self.plans, self.entries = plans, entries
        published = plans.published
        row_of = {name: row for row, name in enumerate(published.text["row_id"])}
        columns = []
        for name, quantity in zip(entries.row_ids.tolist(), entries.quantity.tolist(), strict=True):
            metrics = metrics_of(published, row_of[name])
            metric = next(metric for metric, kind, primary in metrics if primary and kind == quantity)
            columns.append(result_column(published, metric, row_of[name]))
        self.column = np.array(columns, dtype=object)
        """Result of each entry; "" for memory, which keeps no proportion."""
        self._names = sorted(set(columns))

    @cached_property
    def before(self) -> Table:
        """Followed results of all plans."""
        return self._predicted(self.plans)

    def _predicted(self, plans: PublishedPlans) -> Table:
        """Followed results: of inference all, since one that is blank (TPOT of one token) asks for all again."""
        return predicted(plans, results=self._names if plans.plans.kind == "training" else None)

    def evaluation(self, chosen: np.ndarray) -> Callable[[Catalog], Array]:
        """Function from a calibration to the errors of some entries."""
        plans, entries = taken(self.plans, self.entries, chosen)
        plan, column = self.entries.plan[chosen], self.column[chosen]
        names = sorted(set(column.tolist()))

        def errors(catalog: Catalog) -> Array:
            tried = replace(plans, catalog=catalog)
            if "" in names:
                return aligned(log_errors(tried, (MEMORY,))[0], entries)
            results, result = self._predicted(tried), np.array(entries.fitted)
            for name in names:
                own = np.flatnonzero(column == name)
                change = np.log(results.number(name)[entries.plan[own]] / self.before.number(name)[plan[own]])
                result[own] += -change if name.startswith("tokens") else change
            return result

        return errors


def taken(plans: PublishedPlans, entries: Errors, chosen: np.ndarray) -> tuple[PublishedPlans, Errors]:
    """Selected entries, with the plans and published rows restricted to them."""
    chosen_entries = entries.take(chosen)
    used, place = np.unique(chosen_entries.plan, return_inverse=True)
    rows, row_of = np.unique(plans.index[used], return_inverse=True)
    chosen_plans = PublishedPlans(
        plans.published.take(rows),
        plans.plans.take(used),
        row_of,
        np.full(len(used), -1, dtype=np.int64),
        plans.reasons[rows],
        plans.notes[rows],
        plans.catalog,
    )
    return chosen_plans, replace(chosen_entries, plan=place)


def colours_of(parameters: Sequence[Parameter]) -> np.ndarray:
    """Colours of parameters for finite differences: one per constant and precision, of which a row uses one."""
    kinds = [(parameter.family, parameter.constant, parameter.precision) for parameter in parameters]
    order = {kind: at for at, kind in enumerate(dict.fromkeys(kinds))}
    return np.array([order[kind] for kind in kinds], dtype=np.int64)


def stored_precision(plans: PublishedPlans) -> list[str]:
    """Calibration precision of each plan."""
    return [shared_precision(str(name)) for name in plans.plans.filled("precision").tolist()]


_BUILT_ON = {"nim": "tensorrt-llm"}  # servers that are built on an engine


@dataclass(frozen=True)
class Measured:
    """Data of a calibration: kernel measurements, published training rows and published inference rows."""

    kernels: Sequence[Mapping[str, object]]
    training: Published
    inference: Published

    @property
    def machines(self) -> list[Published]:
        """Published rows on accelerators that are fitted by vendor line (CDNA, TPU, Gaudi, Trainium)."""
        return [rows_of_machines(rows) for rows in (self.training, self.inference)]

    def without(self, name: str, catalog: Catalog) -> Measured:
        """Measurements without an accelerator, a generation, a software and its variants, or a source."""
        sheets, wanted = (self.training, self.inference), name.casefold()
        gone, used = accelerators_of(name, catalog), [software_of(rows, catalog) for rows in sheets]
        table = catalog.tables["accelerators"]
        names = [*sorted({*table.text("generation")}), *sorted({word for words in used for word in words if word})]
        if gone:
            kept = [[gpu.casefold() not in gone for gpu in rows.text["gpu"]] for rows in sheets]
        elif wanted in names:
            kept = [[not belongs_to(software, wanted) for software in words] for words in used]
        else:
            kept = [[not of_source(source, name) for source in rows.text["source_id"]] for rows in sheets]
            if all(map(all, kept)):
                sources = sorted({source for rows in sheets for source in rows.text["source_id"]})
                hint = nearest(name, [*names, *sorted(table.text("accelerator")), *sources])
                words = f'unknown generation, accelerator, software or source "{name}"; {hint}'
                raise InputError(Fault("--leave-out", words))
        kernels = [row for row in self.kernels if str(row["gpu"]).casefold() not in gone]
        return Measured(kernels, *(rows.take(np.flatnonzero(of)) for rows, of in zip(sheets, kept, strict=True)))


def of_source(source: str, name: str) -> bool:
    """Whether a source_id equals a name or begins with it: a paper and its tables, releases of one list.

    >>> of_source("nemo_25.04", "NeMo_25.04"), of_source("nemo_25.04", "nemo"), of_source("nemo_25.04", "nemo_25")
    (True, True, False)
    """
    return f"{source.casefold()}_".startswith(f"{name.casefold()}_")


def accelerators_of(name: str, catalog: Catalog) -> set[str]:
    """Accelerators, casefolded, of a generation, or the single accelerator of that name; empty if it is neither."""
    table, wanted = catalog.tables["accelerators"], name.casefold()
    chips = [str(chip).casefold() for chip in table.text("accelerator")]
    kinds = [str(kind).casefold() for kind in table.text("generation")]
    return {chip for chip, kind in zip(chips, kinds, strict=True) if wanted in (chip, kind)}


def software_of(published: Published, catalog: Catalog) -> list[str]:
    """Software that the plan of each row names, casefolded; "" for a row that is no plan."""
    plans = plans_of(published, catalog)
    result = [""] * len(published)
    for row, software in zip(plans.index.tolist(), plans.plans.filled("software").tolist(), strict=True):
        result[row] = str(software).casefold()
    return result


def belongs_to(software: str, name: str) -> bool:
    """Whether a software equals the named one, is a variant of it, or is a server built on it.

    >>> belongs_to("nim", "tensorrt-llm"), belongs_to("tensorrt-llm-0", "tensorrt-llm"), belongs_to("vllm", "sglang")
    (True, True, False)
    """
    return software == name or software.startswith(f"{name}-") or _BUILT_ON.get(software) == name


def read_measured(path: str | Path | None = None) -> Measured:
    """Measurements of a workbook, default ``validation.xlsx``, without unseen rows; InputError for a missing sheet."""
    source = Path(path) if path is not None else workbook("validation.xlsx")
    by_name = {rows.kind: seen_rows(rows) for rows in read_published(source)}
    missing = [kind for kind in KINDS if kind not in by_name]
    if missing:
        raise InputError(Fault(source.name, f"has no sheet {' and no sheet '.join(missing)} with a column row_id"))
    return Measured(read_kernels(source), by_name["training"], by_name["inference"])
