"""Low-rank adapters beside frozen weights: their products, their parameters, and what freezing leaves out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, some, total
from xlperf.equations.model.model import Model
from xlperf.equations.model.operators import Gemms, Vectors, attention_projections, mlp_gemms
from xlperf.equations.plan.records import AdapterModules
from xlperf.equations.plan.training_plan import TrainingPlan

PLACES = ("attention", "mlp")
_FREED = "weight gradient"
_NOT_WEIGHTS = ("attention scores", "attention values")


class AdapterParameters(NamedTuple):
    """Parameters of the adapters of one layer, (rows,): beside the attention and beside a dense feed-forward. [-]"""

    attention: Array
    mlp: Array


def _adapted(place: str, gemms: Gemms, plan: TrainingPlan) -> Array:
    """1 where a product of a place has an adapter, (rows, operators)."""
    chosen = np.array([place == "attention" and name != "attention output" for name in gemms.names])
    everywhere = (plan.adapter_modules == AdapterModules.ALL)[:, None]
    return np.where(plan.frozen[:, None] & (chosen | everywhere), np.sign(gemms.batch), 0.0)


def adapter_gemms(place: str, gemms: Gemms, plan: TrainingPlan) -> Gemms:
    """Products of the adapters of one place: down to the rank, and up from it.

    Parameters
    ----------
    place : str
        Attention or mlp. [-]
    gemms : Gemms
        Products that they stand beside. [-]
    plan : TrainingPlan
        With the rank of the adapters, (rows,). [-]

    Returns
    -------
    Gemms
        Twice as many; those that are not there have a batch of 0. [-]

    Examples
    --------
    Rank 16 beside a product of depth 100 and 300 columns:

    >>> plan = {"adapter_rank": np.array([16.0]), "adapter_modules": np.array([AdapterModules.ALL])}
    >>> one = np.ones((1, 1))
    >>> found = adapter_gemms("mlp", Gemms(("up",), 8.0 * one, 300.0 * one, 100.0 * one, one), TrainingPlan(plan))
    >>> found.n.tolist(), found.k.tolist()
    ([[16.0, 300.0]], [[100.0, 16.0]])
    """
    present = _adapted(place, gemms, plan)
    rank = np.maximum(plan.adapter_rank, 1.0)[:, None] * np.ones_like(gemms.n)
    names = tuple(f"{name} adapter {side}" for side in ("in", "out") for name in gemms.names)

    def pair(first: Array, second: Array) -> Array:
        return np.concatenate([first, second], axis=-1)

    return Gemms(names, pair(gemms.m, gemms.m), pair(rank, gemms.n), pair(gemms.k, rank), pair(present, present))


def adapter_vectors(place: str, gemms: Gemms, plan: TrainingPlan, backward: bool) -> Vectors:
    """Element-wise adds of LoRA outputs to those of their products; backward, of input gradients.

    Parameters
    ----------
    place : str
        Attention or mlp. [-]
    gemms : Gemms
        Products that they stand beside. [-]
    plan : TrainingPlan
        With the rank of the adapters, (rows,). [-]
    backward : bool
        The gradients instead. [-]

    Returns
    -------
    Vectors
        One kernel for the place. [B]

    Examples
    --------
    Eight rows of 300 columns of 2 bytes, read twice and written:

    >>> from types import SimpleNamespace
    >>> plan = SimpleNamespace(frozen=np.array([True]), adapter_modules=np.array([AdapterModules.ALL]))
    >>> plan.element_size = np.array([2.0])
    >>> one = np.ones((1, 1))
    >>> adapter_vectors("mlp", Gemms(("up",), 8.0 * one, 300.0 * one, 100.0 * one, one), plan, False).traffic.tolist()
    [[14400.0]]
    """
    side = gemms.k if backward else gemms.n
    traffic = 3.0 * plan.element_size * total(_adapted(place, gemms, plan) * gemms.m * side)
    return Vectors((f"{place} adapter sums{' of gradients' if backward else ''}",), traffic[:, None])


def adapter_parameters(model: Model, plan: TrainingPlan, tensor_parallel: Array) -> AdapterParameters:
    r"""Parameters of the adapters of one layer on one rank.

    .. math:: P = r \sum (k + n)

    By definition of low-rank adaptation (E. J. Hu et al., "LoRA", 2021, arXiv:2106.09685).

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    plan : TrainingPlan
        With the rank of the adapters, (rows,). [-]
    tensor_parallel : Array
        Ranks that share each matrix, (rows,). [-]

    Returns
    -------
    AdapterParameters
        0 where all weights are trained. [-]

    Examples
    --------
    Llama 3.1 8B, rank 16: 16 x (4096 + 6144 + 4096 + 4096), and 16 x (4096 + 28672 + 14336 + 4096).

    >>> llama = Model(*np.array([[32, 4096, 32, 8, 128, 14336, 128256, 1, 0, 0, 1, 0, 0, 0, 0, 0, 32.0]]).T)
    >>> plan = {"adapter_rank": np.array([16.0]), "adapter_modules": np.array([AdapterModules.ALL])}
    >>> [float(size[0]) for size in adapter_parameters(llama, TrainingPlan(plan), np.ones(1))]
    [294912.0, 819200.0]
    """
    tokens = np.ones_like(plan.adapter_rank)

    def size(place: str, gemms: Gemms) -> Array:
        return np.asarray(plan.adapter_rank * total(_adapted(place, gemms, plan) * (gemms.k + gemms.n)))

    plain, latent = (attention_projections(model, tokens, tensor_parallel, kind) for kind in (False, True))
    is_latent = model.latent_attention > 0
    attention = size("attention", plain)
    if some(is_latent):
        attention = np.where(is_latent, size("attention", latent), attention)
    mlp = mlp_gemms(model, tokens, model.ffn_hidden_size / tensor_parallel, "mlp")
    return AdapterParameters(attention, size("mlp", mlp))


def model_adapters(model: Model, plan: TrainingPlan) -> Array:
    """LoRA parameters of a whole model: adapters of every attention and dense feed-forward block.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    plan : TrainingPlan
        With the rank of the adapters, (rows,). [-]

    Returns
    -------
    Array
        0 where all weights are trained, (rows,). [-]

    Examples
    --------
    Llama 3.1 8B, rank 16: 32 x (294,912 + 819,200).

    >>> llama = Model(*np.array([[32, 4096, 32, 8, 128, 14336, 128256, 1, 0, 0, 1, 0, 0, 0, 0, 0, 32.0]]).T)
    >>> plan = {"adapter_rank": np.array([16.0]), "adapter_modules": np.array([AdapterModules.ALL])}
    >>> model_adapters(llama, TrainingPlan(plan)).tolist()
    [35651584.0]
    """
    layer = adapter_parameters(model, plan, np.ones_like(model.num_layers))
    return np.asarray(model.num_layers * layer.attention + model.num_dense_layers * layer.mlp)


def frozen_products(names: tuple[str, ...], plan: TrainingPlan) -> np.ndarray:
    """Weight-gradient GEMMs of frozen weights, which are not computed.

    Parameters
    ----------
    names : tuple of str
        Products. [-]
    plan : TrainingPlan
        With the rank of the adapters, (rows,). [-]

    Returns
    -------
    array of bool
        Shape (rows, operators). [-]

    Examples
    --------
    >>> plan = TrainingPlan({"adapter_rank": np.array([16.0])})
    >>> frozen_products(("qkv input gradient", "qkv weight gradient"), plan).tolist()
    [[False, True]]
    """
    gradients = np.array(
        [name.endswith(_FREED) and " adapter " not in name and not name.startswith(_NOT_WEIGHTS) for name in names]
    )
    return np.asarray(plan.frozen[:, None] & gradients)
