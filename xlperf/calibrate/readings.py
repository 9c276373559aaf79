r"""Readings: published runs of sources that no fit has read, as first predicted before anything was changed.

Bands are fitted on the first predictions. Their half-width, in the logarithm of the prediction, is

.. math:: h = m\,\sqrt{b^2 + u\,s^2 + (d f)^2}

with b for published runs of the software, model and accelerator, s added without one (u = 1), f for each unit of
distance d, and m for models with experts: least pinball loss at 80 %, judged on publishers left out.

A baseline predicts every run by one efficiency per quantity and generation over an ideal value: FLOP or bytes at the
peak of the machine. Deployments of ``published_deployments.csv`` are compared with the fleet that the form Serve
recommends for their load.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from xlperf.base import resources
from xlperf.base.arrays import Array
from xlperf.calibrate import published_errors
from xlperf.calibrate.fitter import FittedConstant, and_constants, rounded
from xlperf.catalog.calibration import ANY, declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine.catalog_arrays import catalog_models
from xlperf.engine.tables import Progress
from xlperf.engine.trust import model_traits
from xlperf.equations.model.operators import parameter_count
from xlperf.equations.plan.records import half_width
from xlperf.explore.fleet_plans import ONE, TWO, way_words
from xlperf.explore.objectives import Answer, short_name
from xlperf.explore.serve import serve_answer, serving_ways
from xlperf.measurements.comparison import FIRST_TOKEN, MEMORY, RATES, STEP_TIME, TIME_PER_TOKEN, metrics_of, predicted
from xlperf.measurements.published import POWER, Published, PublishedPlans, sheet_rows

SHEET = "first_predictions"
NAMES = {STEP_TIME: "step", TIME_PER_TOKEN: "token", FIRST_TOKEN: "first", MEMORY: "memory"}
"""Constants of the band of each quantity."""
FirstPredictions = dict[tuple[str, str, str], tuple[float, str]]
_ORDER = ("first", "second", "third", "fourth", "fifth", "sixth")


@dataclass(frozen=True)
class Readings:
    """Primary values of the readings, one entry each; errors are logs of predicted over measured time or size. [-]"""

    row_ids: np.ndarray
    quantity: np.ndarray
    source: np.ndarray  # publisher
    reading: np.ndarray  # first to sixth
    line: np.ndarray  # vendor line of the accelerators
    software: np.ndarray
    first: Array  # error as first predicted
    today: Array  # error as predicted today
    few: Array  # error of the baseline of a few constants; NaN without one
    experts: np.ndarray  # whether the model has experts
    unread: Array  # 1 if the software has no published run of the model on the accelerator [-]
    distance: Array  # of the plan from published runs [-]

    def __len__(self) -> int:
        return len(self.row_ids)

    def take(self, chosen: np.ndarray) -> Readings:
        """Subset of the entries: positions, or a mask."""
        return Readings(*(getattr(self, column.name)[chosen] for column in fields(self)))

    def weights(self) -> Array:
        """Weight of each entry: a source of n values of a quantity weighs as much as the root of n. [-]"""
        _, at, count = np.unique(self.source.astype(str), return_inverse=True, return_counts=True)
        return np.asarray(1.0 / np.sqrt(count[at]))


def first_predictions() -> FirstPredictions:
    """First prediction (NaN if it was refused) and group of published values by (kind, row, metric)."""
    sheet = sheet_rows(resources.workbook("validation.xlsx"), SHEET, "row_id")
    header, lines, _ = sheet if sheet is not None else ([], [], None)
    rows = [dict(zip(header, line, strict=True)) for line in lines]
    values = {(row["kind"], row["row_id"], row["metric"]): row for row in rows}
    return {key: (float(row["predicted"] or "nan"), row["group"]) for key, row in values.items()}


def readings_of(published: Sequence[Published], catalog: Catalog) -> Readings:
    """Values of the readings with their first predictions; rows refused then or today are left out."""
    first, baselines = first_predictions(), Baselines(published, catalog)
    parts = [_readings(rows, catalog, first, baselines) for rows in published if rows.kind != POWER]
    return Readings(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(Readings)))


def first_errors(rows: Published, errors: published_errors.Errors, known: FirstPredictions) -> list[tuple[float, str]]:
    """Logarithm of the first prediction of each entry over its measurement, NaN without one, and its group."""
    row_of = {name: row for row, name in enumerate(rows.text["row_id"])}
    result = []
    for name, quantity in zip(errors.row_ids.tolist(), errors.quantity.tolist(), strict=True):
        metric = next(word for word, of, primary in metrics_of(rows, row_of[name]) if primary and of == quantity)
        first, group = known.get((rows.kind, name, metric), (math.nan, ""))
        ratio = math.log(first / rows.number[metric][row_of[name]])
        result.append((-ratio if metric in RATES else ratio, group))
    return result


def _readings(published: Published, catalog: Catalog, known: FirstPredictions, baselines: Baselines) -> Readings:
    names = {row for kind, row, _ in known if kind == published.kind}
    rows = published.take([row for row, name in enumerate(published.text["row_id"]) if name in names])
    plans = published_errors.plans_of(rows, catalog)
    errors = published_errors.errors_of(plans, tuple(NAMES))
    firsts = first_errors(rows, errors, known)
    kept = [at for at, (log, _) in enumerate(firsts) if not math.isnan(log)]
    firsts = [firsts[at] for at in kept]
    errors, few = errors.take(np.array(kept, dtype=np.int64)), np.zeros(0)
    if kept:
        few = errors.fitted + baselines.changes(plans, predicted(plans), errors)
    unread, distance = distances(plans) if kept else (np.zeros(0), np.zeros(0))
    return Readings(
        row_ids=errors.row_ids,
        quantity=errors.quantity,
        source=np.array(rows.text["source_id"], dtype=object)[plans.index[errors.plan]],
        reading=np.array([_reading(group) for _, group in firsts], dtype=object),
        line=published_errors.vendor_lines(errors, catalog),
        software=errors.software,
        first=np.array([log for log, _ in firsts], dtype=np.float64),
        today=errors.fitted,
        few=few,
        experts=errors.experts,
        unread=unread[errors.plan],
        distance=distance[errors.plan],
    )


def _reading(group: str) -> str:
    word = group.casefold().removeprefix(published_errors.UNSEEN).split("-")[0]
    return word if word in _ORDER else _ORDER[0]


def distances(plans: PublishedPlans) -> tuple[Array, Array]:
    """Whether a plan's software has no run of its model on its accelerator, and its distance, read off probed bands."""
    return _probed(plans, "source"), _probed(plans, "far")


def _probed(plans: PublishedPlans, part: str) -> Array:
    ends = [f"{name}_{part}" for name in NAMES.values()]
    parts = {name: float(name in ends or name.endswith("_mixture")) for name in declared_constants()["band"]}
    probe = with_bands(plans.catalog, parts)
    results = predicted(replace(plans, catalog=probe))
    names = [name for name in ("step_time", "tpot", "ttft") if name in results]
    widths = [np.log(results.number(f"{name}_high") / results.number(name)) for name in names]
    width = widths[0] if len(widths) == 1 else np.where(np.isnan(widths[0]), widths[1], widths[0])
    return np.asarray(np.nan_to_num(width), dtype=np.float64)


def with_bands(catalog: Catalog, values: dict[str, float]) -> Catalog:
    """Catalog with other constants of bands."""
    return and_constants(catalog, [FittedConstant("band", ANY, ANY, ANY, *each) for each in values.items()])


SHARE = 0.8  # nominal coverage of a band [-]
FOLDS = 10  # number of parts of the publishers that are left out one by one [-]
PARTS = ("", "_source", "_far", "_mixture")
BAND_SOURCE = "first predictions of the sheets training and inference in validation.xlsx"
_RIDGE = 1e-4  # weight of the squared logarithm of a constant over its declared default, where few values tell it [-]


def fitted_bands(readings: Readings, date: str) -> list[FittedConstant]:
    """Constants of the bands of every quantity with values."""
    results = []
    for quantity, name in NAMES.items():
        of_quantity = readings.take(readings.quantity == quantity)
        if not len(of_quantity):
            continue
        inside = np.abs(of_quantity.first) <= widths_left_out(of_quantity, name)
        words = f"{100.0 * inside.mean():.0f} % of the values of publishers left out lie in the band"
        rows = len(set(of_quantity.row_ids.tolist()))
        error = rounded(float(np.median(np.abs(np.expm1(of_quantity.first)))))
        about = (f"{len(set(of_quantity.source.tolist()))} publishers", rows, error, date, BAND_SOURCE)
        results += [
            FittedConstant("band", ANY, ANY, ANY, f"{name}{part}", value, *about, notes=words)
            for part, value in zip(PARTS, _fitted_band(of_quantity, name).tolist(), strict=True)
        ]
    return results


def widths_left_out(readings: Readings, name: str) -> Array:
    """Half-width of the band of each value of one quantity, fitted without its publisher."""
    sources = sorted(set(readings.source.tolist()))
    fold_of = {source: at % FOLDS for at, source in enumerate(sources)}
    fold = np.array([fold_of[source] for source in readings.source.tolist()])
    result = np.full(len(readings), math.nan)
    for part in sorted(set(fold.tolist())):
        of_fold = fold == part
        if not of_fold.all():
            result[of_fold] = _band_widths(_fitted_band(readings.take(~of_fold), name), readings.take(of_fold))
    return result


def _band_widths(values: Array, readings: Readings) -> Array:
    base, source, far, mixture = values
    wide = half_width(base, readings.unread, source, readings.distance, far)
    return np.where(readings.experts, mixture, 1.0) * wide


def _fitted_band(readings: Readings, name: str) -> Array:
    """Constants of a quantity in the order of :data:`PARTS`: least pinball loss, by the Nelder-Mead method."""
    from scipy.optimize import minimize

    declared = [declared_constants()["band"][f"{name}{part}"] for part in PARTS]
    start = np.log([constant.default for constant in declared])
    low = np.log([max(constant.low, 0.005) for constant in declared])
    high = np.log([constant.high for constant in declared])
    size, weights = np.abs(readings.first), readings.weights()
    weights = weights / weights.sum()

    def loss(logs: Array) -> float:
        over = size - _band_widths(np.exp(np.clip(logs, low, high)), readings)
        pinball = np.where(over > 0.0, SHARE * over, (SHARE - 1.0) * over)
        return float((weights * pinball).sum() + _RIDGE * ((logs - start) ** 2).sum())

    options = {"maxiter": 2000, "xatol": 1e-3, "fatol": 1e-7}
    logs = minimize(loss, start, method="Nelder-Mead", options=options).x
    return np.array([rounded(value) for value in np.exp(np.clip(logs, low, high)).tolist()])


_FEWEST_SOURCES = 2  # least number of sources that set a constant of a generation; others take that of all machines [-]
Key = tuple[str, str, bool]  # quantity, generation of machines ("" for all) and whether the model has experts


def ideal_shares(plans: PublishedPlans, results: Table) -> dict[str, Array]:
    """Ideal over predicted value of each plan by quantity. [-]"""
    if plans.published.kind == "training":
        states = [results.number(f"memory_{name}") for name in ("weights", "gradients", "optimizer")]
        return {STEP_TIME: results.number("mfu"), MEMORY: sum(states) / results.number("memory")}
    table, catalog = plans.plans, plans.catalog
    models = catalog.rows("models", table.text("model"), table, "model")
    chips = catalog.rows("accelerators", table.text("accelerator"), table, "accelerator")
    device, active = catalog.tables["accelerators"], model_traits(catalog)[1][models]
    whole = parameter_count(catalog_models(catalog)[0])[models]
    top, experts = (catalog.tables["models"].number(name)[models] for name in ("top_k", "num_experts"))
    batch = results.number("running_batch")
    degrees = [table.filled(f"{name}_parallel").astype(np.float64) for name in ("tensor", "pipeline")]
    with np.errstate(all="ignore"):
        flop_time = 2.0 * active / (degrees[0] * degrees[1] * device.number("peak_flop_rate_bf16")[chips])
        read = np.fmax(active / whole, 1.0 - (1.0 - np.where(experts > 0.0, top / experts, 1.0)) ** batch)
        size = read * results.number("memory_weights") + results.number("memory_kv_cache")
        step = size / device.number("memory_bandwidth")[chips] + batch * flop_time
        prompts = np.where(table.filled("mode") == "static", batch, np.maximum(0.5 * batch, 1.0))
        prefill = prompts * table.number("prompt_length") * flop_time
        return {TIME_PER_TOKEN: step / results.number("tpot"), FIRST_TOKEN: prefill / results.number("ttft")}


class Baselines:
    """Constants of the baselines, fitted on the rows of the fit."""

    def __init__(self, published: Sequence[Published], catalog: Catalog) -> None:
        logs: dict[Key, list[tuple[float, str]]] = {}
        for rows in published:
            if rows.kind != POWER:
                for key, log, source in _logs(published_errors.plans_of(published_errors.rows_to_fit(rows), catalog)):
                    for each in (key, (key[0], "", key[2])):
                        logs.setdefault(each, []).append((log, source))
        sources = {key: {source for _, source in values} for key, values in logs.items()}
        chosen = [key for key in logs if not key[1] or len(sources[key]) >= _FEWEST_SOURCES]
        self.constants = {key: _baseline(logs[key]) for key in chosen}

    def changes(self, plans: PublishedPlans, results: Table, errors: published_errors.Errors) -> Array:
        """Logarithm of the baseline over the prediction of each entry; NaN without a constant."""
        shares = ideal_shares(plans, results)
        keys = zip(errors.quantity.tolist(), errors.generation.tolist(), errors.experts.tolist(), strict=True)
        constants = np.array([self._constant(*key) for key in keys])
        pairs = zip(errors.quantity.tolist(), errors.plan.tolist(), strict=True)
        share = [float(shares[name][plan]) if name in shares else math.nan for name, plan in pairs]
        with np.errstate(all="ignore"):
            return np.asarray(np.log(np.array(share)) - constants)

    def _constant(self, quantity: str, generation: str, experts: bool) -> float:
        keys = [(quantity, generation, experts), (quantity, "", experts), (quantity, "", not experts)]
        return next((self.constants[key] for key in keys if key in self.constants), math.nan)


def _logs(plans: PublishedPlans) -> Iterator[tuple[Key, float, str]]:
    """Logarithms of ideal over measured values, with their keys and sources."""
    if not len(plans.plans):
        return
    shares = ideal_shares(plans, predicted(plans))
    errors = published_errors.errors_of(plans, (*published_errors.QUANTITIES, MEMORY))
    source = plans.published.text["source_id"]
    for at, (quantity, plan) in enumerate(zip(errors.quantity.tolist(), errors.plan.tolist(), strict=True)):
        share = float(shares[quantity][plan]) if quantity in shares else math.nan
        if share > 0.0 and not math.isnan(errors.fitted[at]):
            key = quantity, str(errors.generation[at]), bool(errors.experts[at])
            yield key, math.log(share) + float(errors.fitted[at]), source[plans.index[plan]]


def _baseline(values: Sequence[tuple[float, str]]) -> float:
    count = Counter(source for _, source in values)
    weights = np.array([count[source] ** -0.5 for _, source in values])
    return published_errors.weighted_quantile(np.array([log for log, _ in values]), weights, 0.5)


_FILE = "calibrate/published_deployments.csv"
_STATED = ("shared_prefix", "draft_tokens", "acceptance_rate", "precision", "kv_precision", "ttft_target")
"""Columns that a deployment shares with the form, each blank if its publisher states nothing."""


@dataclass(frozen=True)
class Deployment:
    """A published fleet, its load, and the form's answer for that load."""

    name: str
    source: str
    accelerators: float  # of the published fleet [-]
    asked: dict[str, Any]  # the form by column, in the units of the sheet
    answer: Answer  # results of the cheapest plan
    same: float  # accelerators of the plan with the published engine and pools; NaN: the search has none [-]

    @property
    def ratio(self) -> float:
        """Accelerators of the answer over the published ones; NaN if there is no answer. [-]"""
        return float(self.answer.get("accelerators", np.nan)) / self.accelerators


def lengths(input_rate: float, output_rate: float, context: float) -> tuple[float, float]:
    """Prompt and output length of a request from its mean context during decoding. [token]

    ``input_rate`` and ``output_rate`` are token rates of a fleet [token/s]; ``context`` is the prompt and half of the
    output [token].

    >>> lengths(1000.0, 500.0, 2500.0)
    (2000.0, 1000.0)
    """
    share = output_rate / input_rate
    prompt = context / (1.0 + share / 2.0)
    return prompt, prompt * share


def asked_of(row: dict[str, str]) -> dict[str, Any]:
    """Inputs of the form Serve for a row of ``published_deployments.csv``, by column, in the units of the sheet."""
    users, put_in, put_out = (float(row[name]) for name in ("users", "input_rate", "output_rate"))
    prompt, output = lengths(put_in, put_out, float(row["context"]))
    asked: dict[str, Any] = {
        "model": row["model"],
        "accelerator": row["accelerator"],
        "users": users,
        "prompt length": float(round(prompt)),
        "output length": float(round(output)),
        "speed per user": put_out / users,
    }
    texts = ("precision", "kv_precision")
    stated = {name: row[name] for name in _STATED if row[name]}
    return asked | {name.replace("_", " "): word if name in texts else float(word) for name, word in stated.items()}


def deployments(catalog: Catalog, progress: Progress | None = None, names: Sequence[str] = ()) -> list[Deployment]:
    """Published deployments, or only ``names``, with the answer of the form Serve for each."""
    result = []
    for row in resources.rows(_FILE):
        if names and row["name"] not in names:
            continue
        asked = asked_of(row)
        form = table_from_rows("serve", list(asked), [list(asked.values())])
        answer = serve_answer(form, catalog)
        mode = TWO if row["pools"] == "2" else ONE
        same = [
            fleet.accelerators
            for fleet in serving_ways(form, catalog)
            if fleet.plan["mode"][0] == mode and row["software"] in ("", fleet.plan["software"][0])
        ]
        published, fewest = float(row["accelerators"]), min(same, default=math.nan)
        result.append(Deployment(row["name"], row["source"], published, asked, answer, fewest))
        if progress is not None:
            progress(1)
    return result


def deployment_table(result: Sequence[Deployment]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and a row of text per deployment: published fleet, answer, band, plan."""
    header = (
        "deployment",
        "model",
        "accelerator",
        "users",
        "token/s each",
        "published",
        "xlperf",
        "80 % band",
        "way",
        "published way",
        "over published",
    )
    table: list[tuple[str, ...]] = []
    for deployment in result:
        answer = deployment.answer
        if answer.get("reason"):
            numbers = ("-", "-", str(answer["reason"]), "-", "-")
        else:
            numbers = (
                f"{answer['accelerators']:,.0f}",
                f"{answer['accelerators_low']:,.0f} to {answer['accelerators_high']:,.0f}",
                way_words(str(answer["software"]), str(answer["mode"]), answer).removeprefix("with "),
                "-" if deployment.same != deployment.same else f"{deployment.same:,.0f}",
                f"{deployment.ratio:.2f}",
            )
        asked = deployment.asked
        each = f"{asked['speed per user']:.1f}"
        table.append(
            (
                deployment.name,
                str(asked["model"]),
                short_name(asked["accelerator"]),
                f"{asked['users']:,.0f}",
                each,
                f"{deployment.accelerators:,.0f}",
                *numbers,
            )
        )
    return header, table
