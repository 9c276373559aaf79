"""Low-rank adapters beside frozen weights: their products, their parameters, and the gradients of frozen weights."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, ones, some, total
from xlperf.equations.model.blocks import LATENT, MLP, PLAIN, Block, Gemms, Shard, Tokens, expanded, products
from xlperf.equations.model.model import Model
from xlperf.equations.model.operators import Vectors
from xlperf.equations.plan.records import AdapterModules
from xlperf.equations.plan.training_plan import TrainingPlan

PLACES = ("attention", "mlp")
_NOT_WEIGHTS = ("attention scores", "attention values")


class AdapterParameters(NamedTuple):
    """Parameters of the adapters of one layer, (rows,): beside the attention and beside a dense feed-forward. [-]"""

    attention: Array
    mlp: Array


def _adapted(place: str, gemms: Gemms, plan: TrainingPlan) -> Array:
    """1 for products of a place with an adapter, (rows, operators)."""
    chosen = np.array([place == "attention" and name != "attention output" for name in gemms.names])
    everywhere = (plan.adapter_modules == AdapterModules.ALL)[:, None]
    return np.where(plan.frozen[:, None] & (chosen | everywhere), np.sign(gemms.batch), 0.0)


def adapter_gemms(place: str, gemms: Gemms, plan: TrainingPlan) -> Gemms:
    """Products of the adapters of a place: down to the rank, and up from it; a batch of 0 without an adapter.

    Rank 16 beside a product of depth 100 and 300 columns:

    >>> plan = {"adapter_rank": np.array([16.0]), "adapter_modules": np.array([AdapterModules.ALL])}
    >>> one = np.ones((1, 1))
    >>> pair = adapter_gemms("mlp", Gemms(("up",), 8.0 * one, 300.0 * one, 100.0 * one, one), TrainingPlan(plan))
    >>> pair.n.tolist(), pair.k.tolist()
    ([[16.0, 300.0]], [[100.0, 16.0]])
    """
    present = _adapted(place, gemms, plan)
    rank = np.maximum(plan.adapter_rank, 1.0)[:, None] * np.ones_like(gemms.n)
    names = tuple(f"{name} adapter {side}" for side in ("in", "out") for name in gemms.names)
    columns = (gemms.m, gemms.m), (rank, gemms.n), (gemms.k, rank), (present, present)
    return Gemms(names, *(np.concatenate(pair, axis=-1) for pair in columns))


def adapter_vectors(place: str, gemms: Gemms, plan: TrainingPlan, backward: bool) -> Vectors:
    """Element-wise adds of LoRA outputs to the outputs of their products; backward, of input gradients."""
    side = gemms.k if backward else gemms.n
    traffic = 3.0 * plan.element_size * total(_adapted(place, gemms, plan) * gemms.m * side)
    return Vectors((f"{place} adapter sums{' of gradients' if backward else ''}",), traffic[:, None])


def adapter_parameters(model: Model, plan: TrainingPlan, tensor_parallel: Array) -> AdapterParameters:
    """Parameters of the adapters of one layer on one rank: r (k + n) for each product (LoRA, arXiv:2106.09685). [-]"""
    shard = Shard(model, tensor_parallel)
    tokens = Tokens(*[ones(plan.adapter_rank)] * 4)

    def size(block: Block) -> Array:
        gemms = products(expanded(block), shard, tokens)
        return np.asarray(plan.adapter_rank * total(_adapted(block.place, gemms, plan) * (gemms.k + gemms.n)))

    attention, is_latent = size(PLAIN), model.latent_attention > 0
    if some(is_latent):
        attention = np.where(is_latent, size(LATENT), attention)
    return AdapterParameters(attention, size(MLP))


def model_adapters(model: Model, plan: TrainingPlan) -> Array:
    """LoRA parameters of a whole model, (rows,): adapters of every attention and dense feed-forward block. [-]

    Llama 3.1 8B, rank 16: 32 x 16 x (4096 + 6144 + 4096 + 4096 + 4096 + 28672 + 14336 + 4096).

    >>> from ideal_machine import LLAMA
    >>> plan = {"adapter_rank": np.array([16.0]), "adapter_modules": np.array([AdapterModules.ALL])}
    >>> model_adapters(LLAMA, TrainingPlan(plan)).tolist()
    [35651584.0]
    """
    layer = adapter_parameters(model, plan, np.ones_like(model.num_layers))
    return np.asarray(model.num_layers * layer.attention + model.num_dense_layers * layer.mlp)


def frozen_products(names: tuple[str, ...], plan: TrainingPlan) -> np.ndarray:
    """Weight-gradient products of frozen weights, which are not computed, (rows, operators).

    >>> plan = TrainingPlan({"adapter_rank": np.array([16.0])})
    >>> frozen_products(("qkv input gradient", "qkv weight gradient"), plan).tolist()
    [[False, True]]
    """
    gradients = np.array(
        [
            name.endswith("weight gradient") and " adapter " not in name and not name.startswith(_NOT_WEIGHTS)
            for name in names
        ]
    )
    return np.asarray(plan.frozen[:, None] & gradients)
