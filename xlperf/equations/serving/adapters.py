"""Low-rank adapters (LoRA) of served models: bytes, kernels beside the products of a layer, loading from the host."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, divide, power, some
from xlperf.equations.hardware.roofline import WIDE, Device, transfer_time
from xlperf.equations.model.blocks import MLP, PLAIN, Shard
from xlperf.equations.model.model import Model
from xlperf.equations.plan.records import AdapterModules
from xlperf.equations.plan.serving_plan import InferencePlan

_KERNELS = 2.0  # kernels of an adapter: down to the rank, and up from it with the sum [-]
_READS = 2.0  # passes over the output of a product that an adapter adds to [-]


def adapter_size(depth: Numeric, columns: Numeric, slices: Numeric, rank: Numeric, element_size: Numeric) -> Array:
    r"""Bytes of the adapter of a product: a matrix to the rank for each of its slices, and one back from it.

    .. math:: S = r \, (s k + n) \, e

    Source: E. J. Hu et al., "LoRA: Low-rank adaptation of large language models", 2021, arXiv:2106.09685.

    Queries, keys and values of Llama 3.1 8B at rank 16 in 16 bits, 16 x (3 x 4096 + 6144) x 2:

    >>> float(adapter_size(4096.0, 6144.0, 3.0, 16.0, 2.0))
    589824.0

    Parameters
    ----------
    depth : Depth k of the product. [-]
    columns : Columns n of the product. [-]
    slices : Slices s of the product with an adapter each: 3 for queries, keys and values, 2 for gate and up. [-]
    rank : Rank r. [-]
    element_size : Bytes e of an element. [B]

    Returns
    -------
    size : Bytes of one adapter of the product. [B]
    """
    return np.asarray(array(rank) * (array(slices) * array(depth) + array(columns)) * array(element_size))


def distinct_adapters(adapters: Numeric, requests: Numeric) -> Array:
    r"""Expected number of different adapters in a batch whose requests choose theirs evenly.

    .. math:: d = a \left(1 - \left(1 - \frac{1}{a}\right)^b\right)

    Heuristic, this work.

    >>> distinct_adapters([0.0, 1.0, 4.0], 2.0).tolist()
    [0.0, 1.0, 1.75]

    Parameters
    ----------
    adapters : Adapters a that requests use. [-]
    requests : Requests b of the batch. [-]

    Returns
    -------
    number : Different adapters, at most one for each request. [-]
    """
    number = array(adapters)
    missed = power(np.maximum(1.0 - divide(1.0, np.maximum(number, 1.0)), 0.0), requests)
    return np.asarray(number * (1.0 - missed))


def adapter_load_time(size: Numeric, adapters: Numeric, resident: Numeric, bandwidth: Numeric) -> Array:
    r"""Mean time in which a request's adapter comes from the host, if not all have a place on the accelerator.

    .. math:: t = \left(1 - \frac{\min(a_r, a)}{a}\right) \frac{S}{B}

    Heuristic, this work: requests use all adapters alike, so that a resident one is found by chance.

    >>> adapter_load_time(100e6, 100.0, [25.0, 100.0], 50e9).tolist()  # Three of four from the host, 2 ms each; none
    [0.0015, 0.0]

    Parameters
    ----------
    size : Bytes S of an adapter on one accelerator. [B]
    adapters : Adapters a that requests use, above 0. [-]
    resident : Adapters a_r with a place on the accelerator. [-]
    bandwidth : Bandwidth B of the link to the host. [B/s]

    Returns
    -------
    time : Mean over the requests. [s]
    """
    found = np.minimum(divide(resident, adapters, 1.0), 1.0)
    return np.asarray((1.0 - found) * (array(size) / array(bandwidth)))


class _Product(NamedTuple):
    """A product of a rank with an adapter, (rows,); all 0 without one. [-]"""

    depth: Array
    columns: Array
    slices: Array
    layers: Array  # share of the layers that have it


def _products(model: Model, plan: InferencePlan) -> list[_Product]:
    """Products of the attention and of dense feed-forward layers on one rank; experts have no adapters."""
    shard = Shard(model, plan.attention_parallel)
    everywhere = np.where(plan.adapter_modules == AdapterModules.ALL, 1.0, 0.0)
    dense = everywhere * model.num_dense_layers / model.num_layers
    one, gated = np.ones_like(dense), 1.0 + model.gated_mlp
    products = []
    for block, layers, slices in ((PLAIN, (one, everywhere), (3.0 * one, one)), (MLP, (dense, dense), (gated, one))):
        columns, depth = shard.shape(block)
        products += [_Product(depth[:, at], columns[:, at], slices[at], layers[at]) for at in (0, 1)]
    return products


def resident_adapters(plan: InferencePlan) -> Array:
    """Adapters with a place in the memory of an accelerator: all unless the plan states fewer, (rows,). [-]"""
    stated = plan.resident_adapters
    return np.where(np.isnan(stated), plan.adapters, np.minimum(stated, plan.adapters))


def rank_adapter_size(model: Model, plan: InferencePlan) -> Array:
    """Bytes of one adapter on the fullest rank, (rows,); 0 without adapters. [B]

    Llama 3.1 8B at rank 16: 41,943,040 parameters in 16 bits.

    >>> from ideal_machine import LLAMA, inference_plan
    >>> from xlperf.equations.plan.serving_plan import with_defaults
    >>> from dataclasses import replace
    >>> plan = with_defaults(inference_plan(adapters=1, adapter_rank=16))
    >>> rank_adapter_size(replace(LLAMA, num_dense_layers=np.array([32.0])), plan).tolist()
    [83886080.0]
    """
    if not some(plan.adapters > 0.0):
        return np.zeros_like(plan.adapters)
    rank = np.where(plan.adapters > 0.0, np.nan_to_num(plan.adapter_rank), 0.0)
    layer = [
        each.layers * adapter_size(each.depth, each.columns, each.slices, rank, plan.activation_size)
        for each in _products(model, plan)
    ]
    return np.asarray(np.ceil(model.num_layers / plan.pipeline_parallel) * (layer[0] + layer[1] + layer[2] + layer[3]))


def adapter_layer(
    model: Model,
    plan: InferencePlan,
    device: Device,
    efficiency: Array,
    kernel_time: Array,
    tokens: Array,
    requests: Array,
) -> tuple[Array, Array]:
    """Time of the adapters of a layer and number of their kernels, for tokens of different requests, (rows,).

    Each adapter in the batch is read once; each token is multiplied with its own. ``kernel_time`` is the time of a
    kernel beyond its bytes and operations.
    """
    distinct = distinct_adapters(plan.adapters, requests)
    there, rank = np.where(plan.adapters > 0.0, 1.0, 0.0), np.nan_to_num(plan.adapter_rank)
    bandwidth, peak = device.memory_bandwidth[:, 0], device.rate(WIDE).peak_flop_rate[:, 0]
    time, kernels = np.zeros_like(tokens), np.zeros_like(tokens)
    for each in _products(model, plan):
        parameters = adapter_size(each.depth, each.columns, each.slices, rank, 1.0)
        moved = distinct * parameters + tokens * (each.depth + _READS * each.columns + _KERNELS * rank * each.slices)
        memory = transfer_time(moved * plan.activation_size, bandwidth, efficiency)
        busy = np.maximum(memory, 2.0 * tokens * parameters / peak) + _KERNELS * kernel_time
        time = time + there * each.layers * busy
        kernels = kernels + there * each.layers * _KERNELS
    return time, kernels
