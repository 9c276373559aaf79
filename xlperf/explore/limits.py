"""Physical limits of output tokens per second: the ideal roofline of all accelerators, whatever the mapping."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, known_or
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.catalog_arrays import catalog_models
from xlperf.equations.hardware.roofline import RESOURCES, ideal_times
from xlperf.equations.model.model import Model
from xlperf.equations.model.operators import matrix_parameters
from xlperf.equations.plan.serving_plan import accepted_tokens
from xlperf.equations.serving.energy import output_token_flop, output_token_traffic

_WIDTHS = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0}
"""Bytes of a weight by the first word of its precision; half a byte otherwise, the least of a checkpoint's formats."""
_PEAKS = ("bf16", "fp8", "int8", "fp4")
_WIDE = ("fp32", "fp16", "bf16", "int4")


class Limits(NamedTuple):
    """Largest output rates: of all accelerators with so many requests in flight [token/s], and what limits them."""

    rate: Array
    bound: np.ndarray


def _first_words(plans: Table) -> list[str]:
    return [str(word).split("-")[0] for word in plans.filled("precision").tolist()]


def _models(plans: Table, catalog: Catalog) -> Model:
    models, _ = catalog_models(catalog)
    rows = catalog.rows("models", plans.text("model"), plans, "model")
    size = len(catalog.tables["models"])
    return Model(**{name: np.broadcast_to(values, (size,))[rows] for name, values in vars(models).items()})


def product_peaks(plans: Table, catalog: Catalog, rows: np.ndarray) -> Array:
    """Dense peak of the narrowest products that the weights allow, as far as the accelerator has them. [FLOP/s]"""
    table = catalog.tables["accelerators"]
    peaks = np.array([known_or(table.number(f"peak_flop_rate_{name}")[rows], 0.0) for name in _PEAKS])
    wide = np.isin(_first_words(plans), _WIDE) & (plans.text("activation_precision") == "")
    return np.asarray(np.where(wide, peaks[0], peaks.max(axis=0)))


def cache_sizes(plans: Table, models: Model) -> Array:
    """Least bytes of keys and values that a decode step of one request reads: at the end of its prompt. [B]"""
    narrow = ~np.isin(_first_words(plans), _WIDE)
    given = np.array([str(word).split("-")[0] for word in plans.text("kv_precision").tolist()])
    width = np.array([_WIDTHS.get(word, 0.5) if word else np.nan for word in given.tolist()])
    width = np.where(np.isnan(width), np.where(narrow, 1.0, 2.0), width)
    own = models.num_query_groups * (models.qk_head_size + models.v_head_size)
    elements = np.where(models.latent_attention > 0.0, models.kv_lora_rank + models.qk_rope_head_size, own)
    prompt = plans.filled("prompt_length")
    near = models.num_local_layers * np.minimum(models.window, prompt)
    return np.asarray(elements * (near + models.num_global_layers * prompt) * width)


def weight_sizes(plans: Table, models: Model) -> Array:
    """Least bytes of the weights that a token uses. [B]"""
    width = np.array([_WIDTHS.get(word, 0.5) for word in _first_words(plans)])
    return np.asarray(matrix_parameters(models, experts_per_token=True) * width)


def output_limits(plans: Table, requests: Array, catalog: Catalog) -> Limits:
    """Largest rates of inference plans at some requests in flight on all their accelerators, (rows,).

    One decode step serves all requests, reads active weights once, and overlaps products with memory; communication
    and attention FLOP are free.
    """
    models = _models(plans, catalog)
    rows = catalog.rows("accelerators", plans.text("accelerator"), plans, "accelerator")
    count, bandwidth = plans.number("num_accelerators"), catalog.tables["accelerators"].number("memory_bandwidth")[rows]
    steps = accepted_tokens(plans.filled("draft_tokens"), plans.filled("acceptance_rate"))
    fresh = plans.filled("prompt_length") * (1.0 - plans.filled("shared_prefix"))
    head = models.hidden_size * models.vocab_size
    active = matrix_parameters(models, experts_per_token=True)
    flop = output_token_flop(active, head, fresh, plans.filled("output_length"))
    traffic = output_token_traffic(weight_sizes(plans, models), cache_sizes(plans, models), requests, steps)
    time, code = ideal_times(flop, traffic, count * product_peaks(plans, catalog, rows), count * bandwidth)
    words = np.array([str(RESOURCES[int(one)]) for one in np.nan_to_num(code).tolist()], dtype=object)
    return Limits(1.0 / time, words)


def most_requests(plans: Table, catalog: Catalog) -> Array:
    """Most requests whose keys and values fit beside the active weights on all accelerators, at least 1, (rows,)."""
    models = _models(plans, catalog)
    rows = catalog.rows("accelerators", plans.text("accelerator"), plans, "accelerator")
    room = plans.number("num_accelerators") * catalog.tables["accelerators"].number("memory_capacity")[rows]
    left = (room - weight_sizes(plans, models)) / np.maximum(cache_sizes(plans, models), 1.0)
    return np.asarray(np.maximum(left, 1.0))
