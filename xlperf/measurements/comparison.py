"""Published quantities beside the predicted ones: which column is compared with which result, and in what unit.

Power and energy are compared at the measured rate, for the error of the watts alone, and at the predicted rate.
``python -m xlperf.measurements.comparison`` writes ``explore/published_efficiencies.csv`` anew, the quantiles of
measured rates over physical limits that a quote is compared with.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import xlperf.explore
from xlperf.base.arrays import Array
from xlperf.base.resources import workbook
from xlperf.base.units import factor
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.inference import power_at_rates
from xlperf.engine.tables import Progress
from xlperf.explore.quote import output_limits
from xlperf.measurements.inference import inference_plans
from xlperf.measurements.published import POWER, Published, PublishedPlans, published_columns, read_published
from xlperf.measurements.training import training_plans

STEP_TIME, MEMORY, LAYER_TIME = "step time", "memory", "layer time"
TIME_PER_TOKEN, FIRST_TOKEN = "time per token", "time to first token"
_TRAINING_ORDER = ("iter_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct", "hfu_pct", "time_to_train_min")
_INFERENCE_ORDER = ("latency_s", "tpot_ms", "tokens_per_s", "tokens_per_s_per_gpu", "mfu_pct")
RATES = frozenset(["tokens_per_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct", "hfu_pct"])
_RESULTS = {
    "iter_time_s": ("step_time", "s"), "tflops_per_gpu": ("model_flop_rate", "TFLOP/s"), "mfu_pct": ("mfu", "%"),
    "hfu_pct": ("hfu", "%"), "latency_s": ("latency", "s"), "ttft_ms": ("ttft", "ms"), "tpot_ms": ("tpot", "ms"),
    "tokens_per_s": ("tokens_per_second", "token/s"),
    "tokens_per_s_per_gpu": ("tokens_per_second_per_accelerator", "token/s"),
}  # fmt: skip
_NOTHING = (math.nan, math.nan, math.nan)
_HARDWARE = "hardware"
_BANDED = ("step_time", "tpot", "ttft", "memory")  # results with a band; others use the band of the step time


@dataclass(frozen=True, slots=True)
class Record:
    """One published value beside its prediction, both in the unit of the published column.

    ``primary`` marks the quantity by which the row's accuracy is quoted. ``relative_error`` is |predicted time /
    measured time - 1| after rates become times; NaN without a prediction, and ``reason`` gives the cause.
    """

    row_id: str
    source_id: str
    group: str
    accelerator: str
    metric: str
    measured: float
    predicted: float
    relative_error: float
    reason: str
    kind: str
    quantity: str
    primary: bool
    low: float = math.nan
    high: float = math.nan

    @property
    def covered(self) -> bool:
        """Whether there is a prediction."""
        return not math.isnan(self.relative_error)

    @property
    def in_band(self) -> bool:
        """Whether the measured value lies in the 80 % band; False without a band."""
        return self.low <= self.measured <= self.high


def relative_error(metric: str, predicted: float, measured: float) -> float:
    """Relative error of a prediction as a time (or a size): |predicted time / measured time - 1|.

    >>> relative_error("iter_time_s", 1.1, 1.0), relative_error("tokens_per_s", 80.0, 100.0)
    (0.10, 0.25)
    """
    if metric in RATES:
        predicted, measured = measured, predicted
    return abs(predicted / measured - 1.0) if measured > 0.0 and predicted > 0.0 else math.nan


def metrics_of(published: Published, row: int) -> list[tuple[str, str, bool]]:
    """Compared metrics of a row by rank: (column, quantity, primary). Training: the first of time, tokens, TFLOP/s and
    MFU, and memory; inference: all, the first of latency, TPOT and tokens/s as the time per token.
    """
    given = {name for name, values in published.number.items() if not math.isnan(values[row])}
    results = []
    if published.kind == "training":
        kind = published.text["metric_kind"][row]
        if not kind.startswith("memory"):
            first = next((name for name in _TRAINING_ORDER if name in given), None)
            if first is not None:
                results.append((first, LAYER_TIME if kind == "layer_time" else STEP_TIME, True))
        if "peak_mem_gb" in given:
            results.append(("peak_mem_gb", MEMORY, True))
        return results
    per_gpu = {"tokens_per_s_per_gpu"} if "tokens_per_s" in given else set()
    times = [name for name in _INFERENCE_ORDER if name in given and name not in per_gpu]
    if len(times) > 1:
        times = [name for name in times if name != "mfu_pct"]
    results += [(name, TIME_PER_TOKEN, position == 0) for position, name in enumerate(times)]
    if "ttft_ms" in given:
        results.append(("ttft_ms", FIRST_TOKEN, True))
    return results


def predicted(plans: PublishedPlans, progress: Progress | None = None, results: Collection[str] | None = None) -> Table:
    """Predictions of published rows that are plans, or ``results`` alone; a table without columns if none is."""
    if not len(plans.plans):
        return Table(f"{plans.published.kind}_results", {})
    return evaluate(plans.plans, plans.catalog, progress, results)


def compare(plans: PublishedPlans, results: Table) -> list[Record]:
    """Compare every published value with its prediction by :func:`predicted`, in the order of the rows."""
    published = plans.published
    first: dict[int, int] = {}
    for plan, row in enumerate(plans.index.tolist()):
        first.setdefault(row, plan)
    predictions = _Predictions(plans, results)
    words = results.text("reason")
    records = []
    for row in range(len(published)):
        plan = first.get(row, -1)
        notes = str(plans.notes[row])
        verdict = str(words[plan]) if plan >= 0 else str(plans.reasons[row])
        for metric, quantity, primary in metrics_of(published, row):
            measured = float(published.number[metric][row])
            predicted, low, high, why = predictions.of(metric, plan, row) if plan >= 0 else (*_NOTHING, "")
            error = relative_error(metric, predicted, measured)
            remarks = (why, verdict, notes) if math.isnan(error) else (notes, verdict)
            why = "; ".join(remark for remark in remarks if remark)
            values = measured, predicted, error, why, published.kind, quantity, primary, low, high
            row_id, source, group, gpu = (published.text[name][row] for name in ("row_id", "source_id", "group", "gpu"))
            records.append(Record(row_id, source, group, gpu, metric, *values))
    return records


class _Predictions:
    """Predicted values in the units of published columns."""

    def __init__(self, plans: PublishedPlans, results: Table) -> None:
        self._plans = plans
        self._results = results
        self._number: dict[str, Array] = {}
        self._hardware = hardware_share(plans) if plans.published.kind == "training" else np.zeros(0)
        accelerators = plans.catalog.tables["accelerators"]
        rows = plans.catalog.rows("accelerators", plans.plans.text("accelerator"), plans.plans, "accelerator")
        self._kept_back = accelerators.filled("reserved_memory")[rows]

    def _value(self, column: str, plan: int) -> float:
        if column not in self._number:
            self._number[column] = self._results.number(column)
        return float(self._number[column][plan])

    def of(self, metric: str, plan: int, row: int) -> tuple[float, float, float, str]:
        """Prediction, ends of its band, and why there is none."""
        published = self._plans.published
        if metric == "peak_mem_gb":
            size = self._memory(plan, published.text["mem_kind"][row])
            low, high = self._ends("memory", plan)
            return size, size * low, size * high, ""
        if metric not in _RESULTS:
            return (*_NOTHING, f"{metric} is not predicted")
        if metric.startswith("tokens") and published.kind == "inference":
            sense, batch = published.text["tokens_per_s_kind"][row], self._plans.plans.number("batch_size")
            if sense.casefold() == "input" and metric == "tokens_per_s_per_gpu":
                prompts = batch * self._plans.plans.number("prompt_length")
                return self._pass_rate(prompts, "prefill_time", "ttft", plan)
            if published.text["mode"][row].casefold() == "decode" and metric == "tokens_per_s_per_gpu":
                return self._pass_rate(batch, "tpot", "tpot", plan)
            if sense.casefold() not in ("output", "output total"):
                return (*_NOTHING, f'tokens/s counts "{sense}"')
        if published.kind == "inference" and metric in ("mfu_pct", "hfu_pct"):
            return (*_NOTHING, "utilisation of inference is not predicted")
        column, unit = _RESULTS[metric]
        if published.kind == "training" and published.text["metric_kind"][row] == "layer_time":
            column = "layer_time"
        scale = 1.0 / factor(unit)
        if metric == "tflops_per_gpu" and published.text["flops_kind"][row] == _HARDWARE:
            scale *= float(self._hardware[plan])
        value = self._value(column, plan) * scale
        if column in ("model_flop_rate", "mfu", "hfu") or column.startswith("tokens"):
            base = "step_time" if published.kind == "training" else "tpot"
            high, low = (value / end for end in self._ends(base, plan))
        else:
            base = column if column in _BANDED else "step_time" if published.kind == "training" else "tpot"
            low, high = (value * end for end in self._ends(base, plan))
        return value, low, high, ""

    def _ends(self, column: str, plan: int) -> tuple[float, float]:
        """Ends of the band of a result over the result."""
        low, middle, high = (self._value(f"{column}{end}", plan) for end in ("_low", "", "_high"))
        return low / middle, high / middle

    def _pass_rate(self, tokens: Array, time: str, band: str, plan: int) -> tuple[float, float, float, str]:
        """Tokens per second of one accelerator whose passes of so many tokens take a time, and ends of the band."""
        count = self._plans.plans.number("num_accelerators")[plan]
        rate = float(tokens[plan] / (self._value(time, plan) * count))
        high, low = (rate / end for end in self._ends(band, plan))
        return rate, low, high, ""

    def _memory(self, plan: int, words: str) -> float:
        """Memory in the unit and sense of ``mem_kind``: reserved memory excludes the driver's share."""
        words = words.casefold()
        if words.startswith("percent"):
            other = int(self._plans.reference[plan])
            if other < 0:
                return math.nan
            ratio = self._value("memory_layer_activations", plan) / self._value("memory_layer_activations", other)
            return ratio / factor("%")
        unit = factor("GiB" if "gib" in words or "(torch)" in words else "GB")
        if "reserved" in words or "max over" in words:
            return (self._value("memory_reserved", plan) - float(self._kept_back[plan])) / unit
        return self._value("memory", plan) / unit


def result_column(published: Published, metric: str, row: int) -> str:
    """Result that a published time follows, or a published rate inversely; "" for memory, which keeps no proportion."""
    if metric == "peak_mem_gb":
        return ""
    if published.kind == "training":
        return "step_time"
    if metric == "tokens_per_s_per_gpu" and published.text["tokens_per_s_kind"][row].casefold() == "input":
        return "prefill_time"
    if metric == "tokens_per_s_per_gpu" and published.text["mode"][row].casefold() == "decode":
        return "tpot"
    return _RESULTS[metric][0]


def hardware_share(plans: PublishedPlans) -> Array:
    """FLOP of a source that counts recomputation (HFU) over the model FLOP, (plans,): 1 without recomputation, with a
    full one (4 + 4 s / 6 h + V / 4 L h) / (3 + 3 s / 6 h + V / 4 L h); the projection to logits is not computed again
    (D. Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", 2021,
    arXiv:2104.04473, eq. 3).
    """
    table = plans.plans
    models = plans.catalog.tables["models"]
    rows = plans.catalog.rows("models", table.text("model"), table, "model")
    shape = {name: models.number(name)[rows] for name in ("num_layers", "hidden_size", "vocab_size")}
    layer = 1.0 + table.number("sequence_length") / (6.0 * shape["hidden_size"])
    head = shape["vocab_size"] / (4.0 * shape["num_layers"] * shape["hidden_size"])
    share = (4.0 * layer + head) / (3.0 * layer + head)
    return np.where(table.text("recompute") == "full", share, 1.0)


WATTS, JOULES = "avg_power_w_per_gpu", "energy_j_per_output_token"
AT_MEASURED_RATE = "power at the measured rate"
QUANTITIES = (AT_MEASURED_RATE, "power", "energy per token")
_GROUPS = ("not fitted", "fitted")
_POWER_RESULTS = {WATTS: "accelerator_power", JOULES: "accelerator_energy_per_token"}
_OTHER_SCOPE = 'power of "{}": more than the accelerators'
_NO_SERVING = 'rows of kind "{}" are no served model'
_SERVED = ("inference", "decode")
_UNSTATED = {
    "incl. ramp": "a run of seconds: its rate includes its start and its longest answers, whose lengths are not stated",
    "tp not stated": "its mapping is not stated",
}
"""Words in the notes of a row that say why no plan can be made of it."""
_WEIGHTS_IN_FOUR_BITS = "mxfp4"  # vLLM's kernels of 2025 for such weights take 16-bit activations, on Blackwell too


def served_rows(published: Published) -> tuple[Published, list[str]]:
    """Rows of measured power as inference rows, and why a row is no plan, "" if it is."""
    size, columns = len(published), published_columns()["inference"]
    text = {name: list(published.text.get(name, [""] * size)) for name in columns}
    blank = np.full(size, math.nan)
    number = {name: published.number.get(name, blank).copy() for name, sort in columns.items() if sort != "text"}
    with np.errstate(all="ignore"):
        length = published.number["energy_j_per_request"] / published.number[JOULES]
    number["osl"] = np.rint(np.where(np.isnan(number["osl"]), length, number["osl"]))
    number["tokens_per_s"], number["batch"] = blank, np.rint(number["batch"])
    refused = []
    for row in range(size):
        kind, scope = published.text["kind"][row], published.text["scope"][row]
        wrong = "" if kind in _SERVED else _NO_SERVING.format(kind)
        wrong = wrong or ("" if scope == "gpu_only" else _OTHER_SCOPE.format(scope))
        notes = published.text["notes"][row]
        refused.append(wrong or next((why for words, why in _UNSTATED.items() if words in notes), ""))
        text["group"][row] = _GROUPS[int(published.number["fitted"][row] == 1.0)]
        text["mode"][row] = "serving" if kind == "inference" else ""
        if _WEIGHTS_IN_FOUR_BITS in text["precision"][row]:
            text["precision"][row] += " weights"
        if math.isnan(number["tp"][row]):
            number["tp"][row] = number["n_gpus"][row]
    return Published("inference", text, number, published.place), refused


def power_plans(published: Published, catalog: Catalog) -> PublishedPlans:
    """Turn rows of measured power into inference plans, with the reasons why the others are none."""
    rows, refused = served_rows(published)
    planned = [row for row, why in enumerate(refused) if not why]
    result = inference_plans(rows.take(planned), catalog)
    reasons, notes = (np.array(values, dtype=object) for values in (refused, [""] * len(rows)))
    reasons[planned], notes[planned] = result.reasons, result.notes
    index = np.array(planned, dtype=np.int64)[result.index]
    return replace(result, published=published, index=index, reasons=reasons, notes=notes)


def power_records(published: Published, catalog: Catalog) -> list[Record]:
    """Measured watts and joules per token beside the predicted ones, a record for each row of power and quantity."""
    plans, result = power_plans(published, catalog), {name: np.full(len(published), math.nan) for name in QUANTITIES}
    if len(plans.plans):
        results = evaluate(plans.plans, plans.catalog)
        rate = published.number["tokens_per_s"][plans.index]
        result[AT_MEASURED_RATE][plans.index] = power_at_rates(plans.plans, plans.catalog, rate)
        for name, quantity in zip((WATTS, JOULES), QUANTITIES[1:], strict=True):
            result[quantity][plans.index] = results.number(_POWER_RESULTS[name])
    columns = dict(zip(QUANTITIES, (WATTS, WATTS, JOULES), strict=True))
    return [
        _record(plans, row, quantity, columns[quantity], float(result[quantity][row]))
        for row in range(len(published))
        for quantity in QUANTITIES
        if not math.isnan(published.number[columns[quantity]][row])
        and not (quantity == AT_MEASURED_RATE and math.isnan(published.number["tokens_per_s"][row]))
    ]


def _record(plans: PublishedPlans, row: int, quantity: str, column: str, value: float) -> Record:
    measured = float(plans.published.number[column][row])
    words = str(plans.reasons[row] or plans.notes[row])
    metric = f"{column}{' (measured rate)' if quantity == AT_MEASURED_RATE else ''}"
    text, group = plans.published.text, _GROUPS[int(plans.published.number["fitted"][row] == 1.0)]
    values = measured, value, abs(value / measured - 1.0), words, POWER, quantity, True
    return Record(text["row_id"][row], text["source_id"][row], group, text["gpu"][row], metric, *values)


FILE = Path(xlperf.explore.__file__).with_name("published_efficiencies.csv")
_QUANTILES = 101


def published_efficiencies(catalog: Catalog) -> Mapping[str, Array]:
    """Measured over limit of published rows, sorted: MFU of training, rate of serving and of a single request."""
    training, inference = read_published(workbook("validation.xlsx"))
    runs, served = training_plans(training, catalog), inference_plans(inference, catalog)
    results, rates = predicted(runs), predicted(served)
    in_flight = np.asarray(rates.number("tokens_per_second") * rates.number("tpot"))  # by Little's law
    limits, _ = output_limits(served.plans, in_flight, served.catalog)
    shares = rates.number("tokens_per_second") / limits
    alone = served.plans.filled("batch_size") == 1.0
    measured = _measured(served, rates, shares)
    return {
        "training": _known(_measured(runs, results, results.number("mfu"))),
        "serving": _known(measured[~alone]),
        "user": _known(measured[alone]),
    }


def _known(values: Array) -> Array:
    return np.sort(values[np.isfinite(values) & (values > 0.0)])


def _measured(plans: PublishedPlans, results: Table, shares: Array) -> Array:
    """Shares of plans at the measured rate: predicted ones times measured over predicted rate."""
    first: dict[str, Record] = {}
    for record in compare(plans, results):
        if record.primary and record.metric not in ("peak_mem_gb", "ttft_ms") and record.covered:
            first.setdefault(record.row_id, record)
    names = plans.published.text["row_id"]
    factors = np.full(len(names), np.nan)
    for row, name in enumerate(names):
        of_row = first.get(str(name))
        if of_row is not None:
            ratio = of_row.measured / of_row.predicted
            factors[row] = ratio if of_row.metric in RATES else 1.0 / ratio
    return np.asarray(shares * factors[plans.index])


def quantiles(efficiencies: Mapping[str, Array]) -> list[list[str]]:
    """Rows of the file: the share of the runs below, and the efficiency of each kind."""
    shares = np.linspace(0.0, 1.0, _QUANTILES)
    columns = {kind: np.quantile(values, shares) for kind, values in efficiencies.items()}
    rows = [["share_below", *columns], ["number", *(str(len(values)) for values in efficiencies.values())]]
    for row, share in enumerate(shares):
        rows.append([f"{share:.2f}", *(f"{values[row]:.4f}" for values in columns.values())])
    return rows


if __name__ == "__main__":
    with FILE.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(quantiles(published_efficiencies(load_catalog())))
