"""Whether a claim is possible by the roofline, what it needs, and how usual it is among published runs.

A claim is compared with three things: the ideal roofline of its accelerators, the best plan that the engine finds at
its conditions, and the efficiencies of published runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from xlperf.base import resources
from xlperf.base.arrays import Array, known_or, log2
from xlperf.base.errors import Fault, InputError
from xlperf.base.units import MILLION, percent
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import band_end
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.catalog_arrays import catalog_models
from xlperf.engine.devices import evaluate_designs
from xlperf.engine.ownership import evaluate_servers
from xlperf.engine.software import computed_formats
from xlperf.equations.hardware.roofline import RESOURCES, ideal_times
from xlperf.equations.model.model import Model
from xlperf.equations.model.operators import matrix_parameters
from xlperf.equations.plan.records import PRECISIONS
from xlperf.equations.plan.serving_plan import accepted_tokens
from xlperf.explore.mappings import server_sizes
from xlperf.explore.objectives import GOOD, TABLES, Answer, one_plan, short_name, short_number
from xlperf.explore.search import search
from xlperf.explore.space import with_columns
from xlperf.explore.train import SEARCHED, best_mapping
from xlperf.interop.checkpoints import AUTO, formats_of_checkpoint

_WIDTHS = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0}
"""Bytes of a weight by the first word of its precision; half a byte otherwise, the least of a checkpoint's formats."""
_WIDE = ("fp32", "fp16", "bf16", "int4")


def _first_words(plans: Table) -> list[str]:
    return [str(word).split("-")[0] for word in plans.filled("precision").tolist()]


def _models(plans: Table, catalog: Catalog) -> Model:
    models, _ = catalog_models(catalog)
    rows = catalog.rows("models", plans.text("model"), plans, "model")
    size = len(catalog.tables["models"])
    return Model(**{name: np.broadcast_to(values, (size,))[rows] for name, values in vars(models).items()})


def product_peaks(plans: Table, catalog: Catalog, rows: np.ndarray) -> Array:
    """Dense peak of the narrowest products that the weights allow, as far as the accelerator has them. [FLOP/s]"""
    table, result = catalog.tables["accelerators"], np.zeros(len(plans))
    weights, inputs = plans.filled("precision"), plans.text("activation_precision")
    for word, products in set(zip(weights.tolist(), inputs.tolist(), strict=True)):
        own = PRECISIONS[word]
        wide = (own.peak,) if own.peak == "bf16" else own.products  # integers that no product is in, and 16 bits
        names = {own.peak, "bf16"} | {PRECISIONS[name].peak for name in ((products,) if products else wide)}
        peaks = [known_or(table.number(f"peak_flop_rate_{name}")[rows], 0.0) for name in names]
        result = np.where((weights == word) & (inputs == products), np.max(peaks, axis=0), result)
    return np.asarray(result)


def cache_sizes(plans: Table, models: Model) -> Array:
    """Least bytes of keys and values that a decode step of one request reads: at the end of its prompt. [B]"""
    # Bytes of an element: as stated, else 1 beside narrow weights and 2 beside wide ones
    narrow = ~np.isin(_first_words(plans), _WIDE)
    given = np.array([str(word).split("-")[0] for word in plans.text("kv_precision").tolist()])
    width = np.array([_WIDTHS.get(word, 0.5) if word else np.nan for word in given.tolist()])
    width = np.where(np.isnan(width), np.where(narrow, 1.0, 2.0), width)
    # Elements of a token in a layer: keys and values, or the latent vector
    own = models.num_query_groups * (models.qk_head_size + models.v_head_size)
    elements = np.where(models.latent_attention > 0.0, models.kv_lora_rank + models.qk_rope_head_size, own)
    prompt = plans.filled("prompt_length")
    near = models.num_local_layers * np.minimum(models.window, prompt)
    return np.asarray(elements * (near + models.num_global_layers * prompt) * width)


def weight_sizes(plans: Table, models: Model) -> Array:
    """Least bytes of the weights that a token uses. [B]"""
    width = np.array([_WIDTHS.get(word, 0.5) for word in _first_words(plans)])
    return np.asarray(matrix_parameters(models, experts_per_token=True) * width)


def output_limits(plans: Table, requests: Array, catalog: Catalog) -> tuple[Array, np.ndarray]:
    """Largest rates at some requests in flight [token/s], and their bound: active weights are read once a step."""
    models = _models(plans, catalog)
    rows = catalog.rows("accelerators", plans.text("accelerator"), plans, "accelerator")
    count, bandwidth = plans.number("num_accelerators"), catalog.tables["accelerators"].number("memory_bandwidth")[rows]
    steps = accepted_tokens(plans.filled("draft_tokens"), plans.filled("acceptance_rate"))
    fresh = plans.filled("prompt_length") * (1.0 - plans.filled("shared_prefix"))
    head = models.hidden_size * models.vocab_size
    active = matrix_parameters(models, experts_per_token=True)
    # per output token: products of the token and of its share of the prompt, which needs no logits; weights that all
    # requests share, and the cache of its own
    flop = 2.0 * (active + (active - head) * fresh / plans.filled("output_length"))
    traffic = (weight_sizes(plans, models) / requests + cache_sizes(plans, models)) / steps
    time, code = ideal_times(flop, traffic, count * product_peaks(plans, catalog, rows), count * bandwidth)
    return 1.0 / time, np.array([str(RESOURCES[int(one)]) for one in np.nan_to_num(code).tolist()], dtype=object)


def most_requests(plans: Table, catalog: Catalog) -> Array:
    """Most requests whose keys and values fit beside the active weights on all accelerators, at least 1, (rows,)."""
    models = _models(plans, catalog)
    rows = catalog.rows("accelerators", plans.text("accelerator"), plans, "accelerator")
    room = plans.number("num_accelerators") * catalog.tables["accelerators"].number("memory_capacity")[rows]
    left = (room - weight_sizes(plans, models)) / np.maximum(cache_sizes(plans, models), 1.0)
    return np.asarray(np.maximum(left, 1.0))


CONDITIONS = "conditions"  # table of conditions beside an answer
TERA = MILLION * MILLION
_LESS_IS_BETTER = ("step-time", "price", "power")
_OF_ONE = {"tokens-per-second-per-user": "serving", "tflops": "training", "mfu": "training", "step-time": "training"}
"""Kinds of claims about one workload alone."""
_UNITS = {
    "tokens-per-second": "token/s", "tokens-per-second-per-accelerator": "token/s per accelerator",
    "tokens-per-second-per-user": "token/s per user", "tflops": "TFLOP/s per accelerator", "mfu": "MFU",
    "step-time": "s per step", "price": "USD", "power": "W per accelerator",
}  # fmt: skip
_BATCH_TOKENS = 2.0**22  # tokens of a training step if no batch is given, 4 Mi [token]
_TRAINED = {"fp8": ("fp8-current", "fp8-block", "mxfp8"), "int4": ("bf16",), "auto": ("bf16",)}
"""Training precisions of a word of a claim; other words are their own."""
_NARROWER = {"auto": ("fp8", "fp4"), "bf16": ("fp8", "fp4"), "fp16": ("fp8", "fp4"), "fp8": ("fp4",)}
_DRAFTS, _ACCEPTANCE = 3.0, 0.8
"""Drafted tokens and their acceptance rate in the condition of speculative decoding; assumed. [-]"""
_RARE, _COMMON = 0.99, 0.25
"""Shares of the published runs: above the first a claim is rare, above the second it is not slow. [-]"""
_ALIKE = 0.005  # relative difference of efficiency and share of the limit that an answer need not explain [-]
_WATTS = 0.1  # half of the band of power; assumed [-]


class Prediction(NamedTuple):
    """Best plan at the conditions of a claim, in the unit of the claim: value, band, and physical limit."""

    value: float
    low: float
    high: float
    limit: float
    bound: str
    efficiency: float  # MFU, or output rate over its limit [-]
    plan: Table | None
    results: Table | None  # of the plan, one row
    reason: str = ""


class Condition(NamedTuple):
    """A condition beside a claim, the prediction with it, claim over that, and whether its band reaches the claim."""

    condition: str
    predicted_value: float
    claim_ratio: float
    in_band: float


_NONE = Prediction(*(np.nan,) * 4, "", np.nan, None, None)


@cache
def published_efficiencies() -> dict[str, Array]:
    """Quantiles of the efficiencies of published runs by kind, and their numbers under ``number``."""
    rows = resources.rows("explore/published_efficiencies.csv")
    kinds = [name for name in rows[0] if name != "share_below"]
    table = {kind: np.array([float(row[kind]) for row in rows[1:]]) for kind in kinds}
    return table | {"number": np.array([float(rows[0][kind]) for kind in kinds])}


def percentile_of(efficiency: float, kind: str) -> tuple[float, float]:
    """Share of the published runs of a kind with a lower efficiency, and their number."""
    table = published_efficiencies()
    kinds = [name for name in table if name != "number"]
    shares = np.linspace(0.0, 1.0, len(table[kind]))
    return float(np.interp(efficiency, table[kind], shares)), float(table["number"][kinds.index(kind)])


def quote_answer(form: Table, catalog: Catalog) -> Answer:
    """The verdict on a claim, with the table of conditions that it would need."""
    kind, claim = form.word("claim_kind"), form.stated("claimed_value")
    workload = form.word("workload")
    if _OF_ONE.get(kind, workload) != workload:
        problem = f"{kind} is a claim about {_OF_ONE[kind]}: choose workload {_OF_ONE[kind]} or another claim kind"
        raise InputError(Fault(form.place(0, "claim_kind"), problem))
    predicted = predict(form, catalog)
    ratio = _ratio(kind, claim, predicted.value)
    beyond = _ratio(kind, claim, predicted.limit)
    conditions = list(_conditions(form, catalog, kind, claim, predicted))
    answer: Answer = {
        "claimed_value": claim,
        "predicted_value": predicted.value,
        "predicted_value_low": predicted.low,
        "predicted_value_high": predicted.high,
        "claim_ratio": ratio,
        "limit_value": predicted.limit,
        "limit_share": beyond,
        "limited_by": predicted.bound,
        "reason": predicted.reason,
        TABLES: {CONDITIONS: Table.of_lines("quote_conditions", [line._asdict() for line in conditions])},
    }
    efficiency = predicted.efficiency * ratio
    if kind in ("tflops", "mfu") and efficiency != efficiency:
        efficiency = beyond
    if efficiency == efficiency:
        group = "training" if _trains(form) else "user" if kind.endswith("user") else "serving"
        answer["efficiency"] = efficiency
        answer["percentile"], answer["num_published"] = percentile_of(answer["efficiency"], group)
    if predicted.plan is not None and predicted.results is not None:
        for name in ("tensor_parallel", "pipeline_parallel", "expert_parallel", "concurrency"):
            answer[name] = predicted.plan.value(name) if name in predicted.plan.schema.by_name else np.nan
        answer |= {name: str(predicted.results[name][0]) for name in ("trust", "trust_reason")}
    place = answer.get("percentile", np.nan)
    answer["verdict"], answer["needs"] = _verdict(kind, claim, predicted, place, conditions)
    answer["answer"] = _sentence(form, kind, answer)
    return answer


def _trains(form: Table) -> bool:
    return form.word("workload") == "training"


def _ratio(kind: str, claim: float, value: float) -> float:
    """Claim over a value as performance."""
    return value / claim if kind in _LESS_IS_BETTER else claim / value


def _verdict(
    kind: str, claim: float, predicted: Prediction, place: float, conditions: list[Condition]
) -> tuple[str, str]:
    """The verdict, and the first conditions that reach the claim."""
    reached = [line.condition for line in conditions if line.in_band]
    needs = " or ".join(reached[:3]) if reached else "more than any condition that xlperf knows"
    if _ratio(kind, claim, predicted.limit) > 1.0:
        return "impossible", needs
    if predicted.value != predicted.value and place != place:
        return ("needs", f"a plan that runs: {predicted.reason}") if predicted.reason else ("possible", "")
    best, worst = (predicted.low, predicted.high) if kind in _LESS_IS_BETTER else (predicted.high, predicted.low)
    if _ratio(kind, claim, best) > 1.0:
        return "needs", needs
    if place > _RARE:
        return "needs", f"a better run than {percent(place)} of the published ones"
    slow = _ratio(kind, claim, worst) < 1.0 and not place > _COMMON
    return ("below usual" if slow else "usual"), ""


def _sentence(form: Table, kind: str, answer: Answer) -> str:
    verdict = {"needs": f"needs {answer['needs']}"}.get(answer["verdict"], f"is {answer['verdict']}")
    if answer["verdict"] == "impossible":
        verdict += f" as stated; it needs {answer['needs']}"
    count, named = form.value("num_accelerators"), short_name(form.stated_word("accelerator"))
    claim = f"{short_number(answer['claimed_value'])} {_UNITS[kind]} of {form.text('model')[0]}"
    parts = [f"{claim} on {count:,.0f} {named} {verdict}"]
    if answer["predicted_value"] == answer["predicted_value"]:
        ends = " to ".join(band_end(answer[f"predicted_value_{end}"]) for end in ("low", "high"))
        parts.append(f"xlperf predicts {short_number(answer['predicted_value'])} (80 % band {ends})")
    if answer["limit_value"] == answer["limit_value"]:
        parts.append(f"the limit is {short_number(answer['limit_value'])} by {answer['limited_by']}")
    if "percentile" in answer:
        parts.append(
            f"its efficiency of {percent(answer['efficiency'], 0)}{_in_flight(answer)} is above that of "
            f"{percent(answer['percentile'], 0)} of {answer['num_published']:,.0f} published runs"
        )
    return "; ".join(parts) + "."


def _in_flight(answer: Answer) -> str:
    """Requests in flight of an efficiency, if its limit is another than the largest, of a memory full of requests."""
    near = abs(answer["efficiency"] / answer["limit_share"] - 1.0) <= _ALIKE
    load = answer.get("concurrency", np.nan)
    return "" if near or load != load else f" with {load:,.0f} requests in flight"


def predict(form: Table, catalog: Catalog) -> Prediction:
    """The best plan at the conditions of a claim, and its limit."""
    kind = form.word("claim_kind")
    if kind == "price":
        return _priced(form, catalog)
    return _trained(form, kind, catalog) if _trains(form) else _served(form, kind, catalog)


def _conditions(form: Table, catalog: Catalog, kind: str, claim: float, predicted: Prediction) -> Iterator[Condition]:
    """Conditions beside a claim that would raise what is predicted: words, prediction, ratio, and whether they do."""
    if kind == "price":
        for case, value in (("low", predicted.low), ("high", predicted.high)):
            yield _condition(
                f"prices of the {case} case", kind, claim, _NONE._replace(value=value, low=value, high=value)
            )
        return
    row = int(catalog.rows("models", form.text("model"), form, "model")[0])
    own = formats_of_checkpoint(catalog.tables["models"], row, form.word("model")).main
    in_blocks = form.word("precision") == AUTO and own.endswith("-block")
    changes: list[tuple[str, dict[str, object]]] = [
        (f"weights in {word}{' without blocks' * (in_blocks and own.startswith(word))}", {"precision": word})
        for word in _NARROWER.get(form.word("precision"), ())
    ]
    if not _trains(form):
        tokens = float(accepted_tokens(np.array(_DRAFTS), np.array(_ACCEPTANCE)))
        drafts: dict[str, object] = {"draft_tokens": _DRAFTS, "acceptance_rate": _ACCEPTANCE}
        both = [
            (f"{words.removeprefix('weights in ')} and speculative decoding", {**changed, **drafts})
            for words, changed in changes
        ]
        changes += [(f"speculative decoding ({tokens:.1f} tokens a step)", drafts), *both]
        if form.number("concurrency")[0] == form.number("concurrency")[0]:
            changes += [("another number of requests in flight", {"concurrency": np.nan})]
        changes += [("prompts that a cache holds", {"prompt_length": 1.0})]
    for words, changed in changes:
        prediction = predict(with_columns(form, **changed), catalog)
        if prediction.value == prediction.value != predicted.value:
            yield _condition(words, kind, claim, prediction)
    if kind in ("tflops", "mfu"):
        ends = {name: 2.0 * getattr(predicted, name) for name in ("value", "low", "high")}
        sparse = predicted._replace(**ends)
        yield _condition("a peak that counts 2:4 sparsity as dense", kind, claim, sparse)


def _condition(words: str, kind: str, claim: float, prediction: Prediction) -> Condition:
    best = prediction.low if kind in _LESS_IS_BETTER else prediction.high
    reached = _ratio(kind, claim, best) <= 1.0
    return Condition(words, prediction.value, _ratio(kind, claim, prediction.value), float(reached))


def _trained(form: Table, kind: str, catalog: Catalog) -> Prediction:
    word = form.word("precision")
    batch, length = form.stated("global_batch_size"), form.value("sequence_length")
    batch = batch if batch == batch else usual_batch(form.value("num_accelerators"), length)
    columns: dict[str, Any] = {name: form[name] for name in ("model", "accelerator")} | {"global_batch_size": batch}
    columns |= {"sequence_length": length, "num_accelerators": form.filled("num_accelerators")}
    plan = one_plan("training", columns, SEARCHED, form)
    plans = [with_columns(plan, precision=one) for one in _TRAINED.get(word, (word,))]
    searches = [best_mapping(one.in_order(), catalog) for one in plans]
    good = [one for one in searches if one.kind == GOOD]
    if not good:
        rows = catalog.rows("accelerators", form.text("accelerator"), form, "accelerator")
        limit = {"tflops": float(product_peaks(plans[0], catalog, rows)[0]) / TERA, "mfu": 1.0}.get(kind, np.nan)
        return _NONE._replace(limit=limit, bound="compute", reason=str(searches[0].results["reason"][0]))
    plan = min(good, key=lambda one: one.results.stated("step_time")).plans.take([0])
    results = evaluate(plan, catalog)
    rate, step, mfu, causal = (results.stated(name) for name in ("tokens_per_second", "step_time", "mfu", "mfu_causal"))
    value = {
        "tokens-per-second": rate,
        "tokens-per-second-per-user": np.nan,
        "mfu": mfu,
        "step-time": step,
        "tokens-per-second-per-accelerator": rate / plan.stated("num_accelerators"),
        "tflops": results.stated("model_flop_rate") / TERA,
        "power": results.stated("accelerator_power"),
    }[kind]
    low, high = (results.stated(f"step_time_{end}") / step for end in ("low", "high"))
    low, high = (low, high) if kind in _LESS_IS_BETTER else (1.0 / high, 1.0 / low)
    limit = np.nan if kind == "power" else value * causal if kind == "step-time" else value / causal
    efficiency = np.nan if kind == "power" else mfu
    return Prediction(value, value * low, value * high, limit, "compute", efficiency, plan, results)


def usual_batch(accelerators: float, length: float) -> float:
    """Sequences of a training step of about 4 Mi tokens: a power of two times the odd part of the accelerators, so that
    their replicas share the batch evenly.

    >>> usual_batch(4096.0, 4096.0), usual_batch(3072.0, 8192.0), usual_batch(7.0, 1e9)
    (1024.0, 384.0, 7.0)
    """
    odd = accelerators / np.gcd(int(accelerators), 2**32)
    return float(odd * 2.0 ** max(round(float(log2(_BATCH_TOKENS / length / odd))), 0))


def _served(form: Table, kind: str, catalog: Catalog) -> Prediction:
    user = kind.endswith("user")
    given = form.stated("concurrency")
    load = given if given == given else 1.0 if user else np.nan
    stated = ("num_accelerators", "prompt_length", "output_length", "draft_tokens", "acceptance_rate", "precision")
    columns: dict[str, Any] = {name: form.filled(name) for name in stated}
    columns |= {name: form[name] for name in ("model", "accelerator")}
    columns |= {"mode": "continuous", "concurrency": load, "pipeline_parallel": 1.0}
    degrees = ("tensor_parallel", "expert_parallel", "data_parallel_attention")
    plan = one_plan("inference", columns, (*degrees, "concurrency"), form)
    count = plan.stated("num_accelerators")
    share = {"tokens-per-second": 1.0, "tokens-per-second-per-accelerator": count}
    objective = "tpot" if user else "tokens_per_second_per_accelerator"
    searched, server = search(plan, catalog, objective), float(server_sizes(plan, catalog)[0][0])
    if searched.kind != GOOD and 0.0 < count % server < count:  # whole servers of a number that no copy divides
        searched = search(with_columns(plan, num_accelerators=count - count % server), catalog, objective)
    if searched.kind != GOOD:
        stored = _as_stored(plan, catalog)
        rate, bound = output_limits(with_columns(stored, concurrency=1.0), most_requests(stored, catalog), catalog)
        limit, reason = float(rate[0]) / share.get(kind, np.nan), str(searched.results["reason"][0])
        return _NONE._replace(limit=limit, bound=str(bound[0]), reason=reason)
    plan, results = searched.plans.take([0]), searched.results.take([0])
    made, tpot = results.stated("tokens_per_second"), results.stated("tpot")
    if not user and kind not in share:
        value = results.stated("accelerator_power") if kind == "power" else np.nan
        low, high = value * (1.0 - _WATTS), value * (1.0 + _WATTS)
        return _NONE._replace(value=value, low=low, high=high, plan=plan, results=results)
    stored = with_columns(_as_stored(plan, catalog), num_accelerators=count)
    here, _ = output_limits(stored, np.array([made * tpot]), catalog)
    requests = np.ones(1) if user else np.fmax(most_requests(stored, catalog), load)
    most, bound = output_limits(stored, requests, catalog)
    value = 1.0 / tpot if user else made / share[kind]
    limit = float(most[0]) / (1.0 if user else share[kind])
    low, high = (value / (results.stated(f"tpot_{end}") / tpot) for end in ("high", "low"))
    return Prediction(value, low, high, limit, str(bound[0]), made / float(here[0]), plan, results)


def _as_stored(plan: Table, catalog: Catalog) -> Table:
    """A plan with the precision of the experts of its checkpoint, of which its limits are: no part is narrower."""
    return with_columns(plan, precision=str(computed_formats(plan, catalog).text("precision")[0]))


def _priced(form: Table, catalog: Catalog) -> Prediction:
    """Price of the accelerators by the sheet servers, and their bill of materials by the sheet chiplets."""
    count, name = form.value("num_accelerators"), form.stated_word("accelerator").casefold()
    tables = {kind: _rows_of(catalog.tables[kind], name) for kind in ("servers", "chiplets")}
    made = evaluate_designs(tables["chiplets"], catalog, "base") if len(tables["chiplets"]) else None
    limit = made.stated("bill_of_materials") * count if made is not None else np.nan
    if not len(tables["servers"]):
        return _NONE._replace(limit=limit, bound="its bill of materials", reason="the sheet servers has no such row")
    prices = [
        float(evaluate_servers(tables["servers"], case, catalog).number("capex")[0]) * count
        for case in ("base", "low", "high")
    ]
    return Prediction(prices[0], prices[1], prices[2], limit, "its bill of materials", np.nan, None, None)


def _rows_of(table: Table, accelerator: str) -> Table:
    return table.take(
        [row for row, one in enumerate(table.text("accelerator").tolist()) if one.casefold() == accelerator][:1]
    )
