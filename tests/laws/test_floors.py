"""Nothing is below zero, and no time is shorter than its bytes over the bandwidth or its FLOP over the peak.

The floors follow from the parameters of the models and the columns of the plan, without the operators of the engine.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from laws.random_plans import MODES
from laws.samples import SERVING, changed, hold, plans_of, results_of, shipped, tokens_per_step

from xlperf.base.arrays import Array
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.catalog_arrays import catalog_models
from xlperf.equations.model.model import Model
from xlperf.equations.model.operators import matrix_parameters

ROUNDING = 1.0 - 1e-9
WEIGHT_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "fp8-block": 1.0, "fp8-tensor": 1.0, "int8": 1.0,
                "fp4": 0.5, "int4": 0.5, "mxfp4": 0.5, "int4-128": 0.5, "int4-64": 0.5, "int8-128": 1.0,
                "auto": 0.5}  # fmt: skip
"""Least bytes of a weight; those of a checkpoint's own format are at least those of four bits."""


@pytest.mark.parametrize("mode", MODES)
def test_no_result_is_negative(mode: str) -> None:
    """Times, memory, costs, energies, rates and counts."""
    plans, results = plans_of(mode), results_of(mode)
    for name, values in results.columns.items():
        if values.dtype == np.float64:
            hold(f"{name} is not negative", ~(values < 0.0), plans, value=values)


@pytest.mark.parametrize("mode", MODES)
def test_quantiles_and_bands_hold_what_lies_between(mode: str) -> None:
    plans, results = plans_of(mode), results_of(mode)
    names = ("step_time",) if mode == "training" else ("tpot",)
    for name in names:
        low, middle, high = (results[column] for column in (f"{name}_low", name, f"{name}_high"))
        hold(f"{name} lies in its band", ~((middle < low) | (middle > high)), plans, low=low, middle=middle, high=high)
    for name in () if mode == "training" else ("ttft", "tpot"):
        rising = [results[f"{name}_{word}"] for word in ("median", "ninetieth", "ninety_ninth")]
        for one, more in pairwise(rising):
            hold(f"quantiles of {name} rise", ~(one > more * (1 + 1e-12)), plans, one=one, more=more)


def named(kind: str, names: np.ndarray, column: str) -> Array:
    """A column of the catalog for the rows that plans name."""
    table = shipped().tables[kind]
    rows = {name: row for row, name in enumerate(table[kind.removesuffix("s")].tolist())}
    return table[column][[rows[name] for name in names.tolist()]]


def models_of(plans: Table) -> Model:
    """Models of plans, (rows,)."""
    models, _ = catalog_models(shipped())
    names = shipped().tables["models"]["model"].tolist()
    rows = [names.index(name) for name in plans["model"].tolist()]
    columns = {name: np.broadcast_to(values, (len(names),))[rows] for name, values in vars(models).items()}
    return Model(**columns)


def peak_of(plans: Table, column: str, precision: np.ndarray) -> Array:
    """Datasheet peak of the precision that products of each plan are computed in, NaN where none is stated. [FLOP/s]"""
    sheet = {word: word for word in ("fp32", "tf32", "fp8", "int8", "fp4")} | {"mxfp8": "fp8"}
    columns = [f"peak_flop_rate_{sheet.get(word.split('-')[0], 'bf16')}" for word in precision.tolist()]
    return np.array([named("accelerators", plans[column][[row]], name)[0] for row, name in enumerate(columns)])


def products_of(plans: Table) -> np.ndarray:
    """Precision of the matrix products of served plans."""
    given, stored = plans["activation_precision"], plans.filled("precision")
    return np.where(given != "", given, np.where(stored == "int4", "bf16", stored)).astype(object)


@pytest.mark.parametrize("mode", SERVING)
def test_a_token_takes_the_bytes_of_its_weights_and_of_the_cache_of_its_batch(mode: str) -> None:
    """Active weights and keys and values of all requests that run, over the bandwidth of the ranks that share them."""
    plans, results, models = plans_of(mode), results_of(mode), models_of(plans_of(mode))
    stored = np.array([WEIGHT_BYTES[word] for word in plans.filled("precision").tolist()])
    narrow = np.isin([word.split("-")[0] for word in products_of(plans).tolist()], ("fp8", "fp4"))
    kept = np.array([WEIGHT_BYTES.get(word, 0.0) for word in plans["kv_precision"].tolist()])
    narrow |= np.isin(plans.filled("precision"), ("auto", "mxfp4"))  # products in FP8 on some machines
    kept = np.where(kept > 0.0, kept, np.where(narrow, 1.0, 2.0))
    own = models.num_query_groups * (models.qk_head_size + models.v_head_size)
    elements = np.where(models.latent_attention > 0.0, models.kv_lora_rank + models.qk_rope_head_size, own)
    prompt = plans["prompt_length"]
    near = models.num_local_layers * np.minimum(models.window, prompt)
    cache = elements * (near + models.num_global_layers * prompt) * kept * results["running_batch"]
    weights = matrix_parameters(models, experts_per_token=True) * stored
    tensor = plans.filled("tensor_parallel")
    shared = tensor * plans.filled("context_parallel") * plans.filled("pipeline_parallel")
    bandwidth = named("accelerators", plans["accelerator"], "memory_bandwidth")
    floor = (weights / tensor + cache / shared) / bandwidth / tokens_per_step(plans)
    hold("tpot takes its bytes", ~(results["tpot"] < floor * ROUNDING), plans, tpot=results["tpot"], floor=floor)


@pytest.mark.parametrize("mode", SERVING)
def test_a_first_token_takes_the_flop_of_its_prompt(mode: str) -> None:
    """Two FLOP for each active parameter and token that is not in the cache, over the peak of the ranks that share."""
    plans, results, models = plans_of(mode), results_of(mode), models_of(plans_of(mode))
    head = models.hidden_size * models.vocab_size
    fresh = plans["prompt_length"] * (1.0 - plans.filled("shared_prefix"))
    flop = 2.0 * (matrix_parameters(models, experts_per_token=True) - head) * fresh
    if mode == "static":
        flop = flop * plans["batch_size"]
    ranks = np.ones(len(plans))
    for name in ("tensor_parallel", "pipeline_parallel", "context_parallel"):
        ranks = ranks * _of_prefill(plans, name)
    floor = flop / (ranks * peak_of(_on_prefill(plans), "accelerator", products_of(plans)))
    hold("ttft takes its FLOP", ~(results["ttft"] < floor * ROUNDING), plans, ttft=results["ttft"], floor=floor)


@pytest.mark.parametrize("mode", ["continuous", "disaggregated"])
def test_requests_take_the_flop_of_their_prompts(mode: str) -> None:
    """No load and no stages serve more prompts than the peak of all accelerators that prefill computes."""
    plans, models = plans_of(mode), models_of(plans_of(mode))
    head = models.hidden_size * models.vocab_size
    fresh = plans["prompt_length"] * (1.0 - plans.filled("shared_prefix"))
    flop = 2.0 * (matrix_parameters(models, experts_per_token=True) - head) * fresh
    count = plans["prefill_accelerators"] if mode == "disaggregated" else plans["num_accelerators"]
    peak = count * peak_of(_on_prefill(plans), "accelerator", products_of(plans))
    chunked = changed(plans, {"prefill_tokens": 512.0})
    for what, results in (("as drawn", results_of(mode)), ("in chunks", evaluate(chunked, shipped()))):
        served = results["tokens_per_second"] / plans["output_length"]
        for name, rate in (("requests", served), ("most requests", results["max_request_rate"])):
            hold(f"{name} {what} take their FLOP", ~(rate * flop * ROUNDING > peak), plans, rate=rate, flop=flop)


def _on_prefill(plans: Table) -> Table:
    """Plans with the accelerators of the pool that prefills."""
    if "prefill_accelerator" not in plans:
        return plans
    names = np.where(plans["prefill_accelerator"] != "", plans["prefill_accelerator"], plans["accelerator"])
    return Table(plans.kind, {**plans.columns, "accelerator": names.astype(object)}, plans.place)


def _of_prefill(plans: Table, name: str) -> Array:
    """Ranks of the pool that prefills: its own where it has some, in any mode that has such plans."""
    if f"prefill_{name}" not in plans:
        return plans.filled(name)
    own = plans[f"prefill_{name}"]
    return np.where(np.isnan(own), plans.filled(name), own)


def test_a_step_takes_the_flop_of_its_tokens() -> None:
    """Six FLOP for each active parameter and token (four where weights are frozen), over the peak of all."""
    plans, results, models = plans_of("training"), results_of("training"), models_of(plans_of("training"))
    each = np.where(plans["adapter_rank"] > 0.0, 4.0, 6.0)
    length = plans["sequence_length"]
    longest = named("models", plans["model"], "max_sequence_length")
    length = np.where(np.isnan(length), np.fmin(4096.0, longest), length)
    tokens = plans["global_batch_size"] * length
    peak = peak_of(plans, "accelerator", plans.filled("precision"))
    flop = each * matrix_parameters(models, experts_per_token=True) * tokens
    floor = flop / (plans["num_accelerators"] * peak)
    time = results["step_time"]
    hold("a step takes its FLOP", ~(time < floor * ROUNDING), plans, step_time=time, floor=floor)


def test_utilisation_is_at_most_one_and_counts_recomputation() -> None:
    """MFU <= HFU <= 1, equal where nothing is computed again."""
    plans, results = plans_of("training"), results_of("training")
    mfu, hfu = results["mfu"], results["hfu"]
    hold("MFU <= HFU <= 1", (mfu <= hfu * (1.0 + 1e-12)) & (hfu <= 1.0), plans, mfu=mfu, hfu=hfu)
    same = ~(plans.filled("recompute") == "none") | (np.abs(hfu / mfu - 1.0) < 1e-12)
    hold("HFU is MFU without recomputation", same, plans, mfu=mfu, hfu=hfu)
