"""Served plans with all inputs of their equations, low-rank adapters (LoRA), and how a batch is split over stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from operator import attrgetter
from typing import NamedTuple, TypeVar

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, divide, finite, power, some
from xlperf.equations.hardware.roofline import WIDE, Device, stack_constants, transfer_time
from xlperf.equations.model.blocks import MLP, PLAIN, Shard
from xlperf.equations.model.model import EVEN, Architecture, Model, Popularity
from xlperf.equations.model.operators import ServingShape
from xlperf.equations.network.topologies import Network
from xlperf.equations.plan.records import AdapterModules, derived
from xlperf.equations.plan.serving_plan import InferencePlan
from xlperf.equations.serving.queueing import ROOT_OF_THREE

Bundle = TypeVar("Bundle", Model, Device, Network)
Rows = np.ndarray | slice
_NAMES = {kind: [field.name for field in fields(kind)] for kind in (Model, Device, Network)}
_READ = {kind: attrgetter(*names) for kind, names in _NAMES.items()}
_OF_ENGINE = ("serving_software", "serving_memory", "serving_load", "serving_host", "serving_attention")
_LATENCY = ("request_latency_time", "token_latency_time", "crowd_latency_time")
_OF_DEMAND = (
    *("num_accelerators", "prefill_accelerators", "concurrency", "ttft_target", "tpot_target"),
    *("batch_size", "prompts_together"),
)
_MANY = 256  # rows from which packed arrays select rows faster [-]
_ROUNDING = 1e-9  # relative rounding of the tokens of a pass [-]
_SLOTS_IN_TURN = 3.0  # most state slots per request with a prefix cache but no overlap buffers (SGLang: no_buffer) [-]


class _Packed:
    """Float arrays (rows,) or (rows, columns) packed into one matrix, which selects their rows in one call."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.first: dict[int, int] = {}
        columns: list[Array] = []
        for values in arrays:
            if id(values) not in self.first and values.ndim and values.dtype == np.float64:
                self.first[id(values)] = len(columns)
                columns += [values] if values.ndim == 1 else list(values.T)
        self.arrays, self.matrix = arrays, np.concatenate(columns).reshape(len(columns), -1)

    def take(self, rows: np.ndarray) -> list[Array]:
        """Select rows of all arrays."""
        matrix = self.matrix.take(rows, axis=1)
        selected = []
        for values in self.arrays:
            first = self.first.get(id(values))
            if first is None:
                selected.append(values[rows] if values.ndim else values)
            elif values.ndim == 1:
                selected.append(matrix[first])
            else:
                selected.append(matrix[first : first + values.shape[1]].T)
        return selected


class RequestLatency(NamedTuple):
    """Time of a request outside the engine's loop before its first token, (rows,): HTTP, tokenisation, queues."""

    alone: Array  # of a single request [s]
    crowd: Array  # added by each further request in flight on a replica [s]

    def time(self, requests: Array) -> Array:
        """Latency with a number of requests in flight on a replica. [s]"""
        return np.asarray(self.alone + self.crowd * np.maximum(requests - 1.0, 0.0))


@dataclass(frozen=True)
class Deployment:
    """Served plans: model, accelerators, network, degrees and calibration, (rows,)."""

    model: Model  # (rows,)
    device: Device  # accelerators, (rows, 1)
    network: Network  # (rows, tiers)
    plan: InferencePlan  # degrees, lengths, batch, (rows,)
    # Calibration constants (rows, 1) of kernels and collectives by family; gemm_wide: GEMMs at the wide precision
    kernels: Mapping[str, Mapping[str, Array]]
    # Calibration constants (rows, 1): serving_software, serving_memory, serving_load, and ranks per accelerator
    software: Mapping[str, Array]
    reserved_memory: Array  # memory that the driver reserves, (rows,) [B]
    architecture: Architecture  # common structure of the models

    @property
    def burst_fraction(self) -> Array:
        """Fraction of the in-flight requests that arrive at the same moment, (rows,). [-]

        Each request replaces one that ends. Requests that started together end over 2 sqrt(3) v of the mean length
        (uniform lengths): from the mean length on waves overlap and arrivals are Poisson (heuristic, this work).
        """
        spread = 2.0 * ROOT_OF_THREE * self.plan.output_variation
        return np.asarray(self.software["waiting_share"][:, 0] * np.maximum(1.0 - spread, 0.0))

    @property
    def popularity(self) -> Popularity:
        """Routing imbalance over experts under an engine's requests, (rows,)."""
        if not self.architecture.experts:
            return Popularity(*(np.full(len(self.plan), even) for even in EVEN))
        experts = self.kernels["serving_experts"]
        return Popularity(experts["favoured_share"][:, 0], experts["hot_share"][:, 0])

    @property
    def mixed(self) -> Array:
        """1: prefill passes share a batch with decode steps (chunked prefill); 0: they alternate, (rows,). [-]"""
        alternates = (self.plan.prefill_first > 0.0) | (self.plan.pipeline_parallel > 1.0)
        return np.where(alternates, 0.0, self.software["mixed_steps"][:, 0])

    @property
    def overlapped_host(self) -> Array:
        """1: the host prepares the next step while the accelerators compute, else 0, (rows, 1). [-]"""
        overlapped = self.software["overlapped_host"]
        if not self.architecture.linear_attention:
            return overlapped
        stated = self.plan.state_slots[:, None]
        slots = np.where(np.isnan(stated), self.software["state_slots"], stated)
        cached = (self.model.num_linear_layers[:, None] > 0.0) & (slots > 1.0)
        return np.where(cached & (slots <= _SLOTS_IN_TURN), 0.0, overlapped)

    @property
    def graph_tokens(self) -> Array:
        """Largest pass that is replayed as piecewise graphs: the plan's limit, else the engine's, (rows,). [-] Engines
        capture no passes in eager mode or with two-batch overlap. Dense latent attention has a lower limit: its fastest
        kernels cannot be captured.
        """
        plan, stated = self.plan, self.plan.graph_tokens
        captured = (plan.graphs > 0.0) & (plan.two_batch_overlap == 0.0)
        default = np.where(captured, self.software["graph_tokens"][:, 0], 0.0)
        if self.architecture.latent_attention and not self.architecture.sparse_attention:
            default = np.minimum(default, self.software["latent_graph_tokens"][:, 0])
        return np.where(np.isnan(stated), default, stated)

    @property
    def balance_rows(self) -> Array:
        """GEMM rows from which a GEMM is compute-bound: two FLOP per row and weight read, (rows,). [-]"""
        gemm, device = self.kernels["gemm"], self.device
        rate = gemm["compute_efficiency"] * device.rate().peak_flop_rate
        read = gemm["memory_efficiency"] * device.memory_bandwidth
        return np.asarray((0.5 * rate / read)[:, 0] * self.plan.weight_size)

    @property
    def request_latency(self) -> RequestLatency:
        """Time of requests outside the engine's loop, (rows,). One host thread prepares images, one after the other for
        the requests that start a run together (heuristic, this work); an encode pool has an idle accelerator for each.
        """
        latency, pictures = self.text_latency, self.software.get("image_host_time")
        if pictures is None:
            return latency
        together = np.minimum(self.plan.concurrency / np.maximum(self.plan.run_requests, 1.0), 1.0)
        waiting = 0.5 * np.where(np.isnan(together), 0.0, together) * pictures[:, 0]
        before = pictures[:, 0] + self.software["encode_pool_time"][:, 0]
        return RequestLatency(latency.alone + before, latency.crowd + waiting)

    @property
    def text_latency(self) -> RequestLatency:
        """The same but for images, (rows,)."""
        each, token, crowd = (self.software[name][:, 0] for name in _LATENCY)
        alone = each + token * self.plan.new_tokens
        alone = alone + self.adapter_load_time if some(self.plan.adapters > 0.0) else alone
        return RequestLatency(alone, crowd)

    @property
    def adapter_load_time(self) -> Array:
        """Mean time in which a request's adapter comes from the host, (rows,). [s]"""
        plan, size = self.plan, self.software["ranks"][:, 0] * rank_adapter_size(self.model, self.plan)
        return adapter_load_time(size, plan.adapters, resident_adapters(plan), self.device.host_bandwidth[:, 0])

    def with_batch(self, batch: Array, prompts: Array) -> Deployment:
        """Deployment with another decode batch and another number of prompts per prefill."""
        return replace(self, plan=self.plan.replaced(batch_size=batch, prompts_together=prompts))

    def take(self, rows: Rows) -> Deployment:
        """Select rows, possibly several times."""
        if isinstance(rows, slice):
            whole = rows == slice(0, len(self.plan))
            return self if whole else self._with_arrays([each[rows] if each.ndim else each for each in self._arrays])
        if len(rows) < _MANY:
            return self._with_arrays([each.take(rows, 0) if each.ndim else each for each in self._arrays])
        return self._with_arrays(self._packed.take(rows))

    @derived
    def _arrays(self) -> list[Array]:
        """All arrays, in the order that :meth:`_with_arrays` reads."""
        bundles = self.model, self.device, self.network
        arrays = [values for bundle in bundles for values in _READ[type(bundle)](bundle)]
        arrays += self.plan.numbers.values()
        for constants in (*self.kernels.values(), self.software):
            arrays += constants.values()
        return [*arrays, self.reserved_memory]

    @derived
    def _packed(self) -> _Packed:
        return _Packed(self._arrays)

    @derived
    def alike(self) -> np.ndarray:
        """First row with the same replica, whatever its batch, number and targets, (rows,)."""
        if len(self.plan) == 1:
            return np.zeros(1, dtype=np.int64)
        same = dict.fromkeys(set(_OF_DEMAND) & set(self.plan.numbers), np.zeros(len(self.plan)))
        matrix = replace(self, plan=self.plan.replaced(**same))._packed.matrix
        matrix = matrix[(matrix != matrix[:, :1]).any(axis=1)]
        first: dict[bytes, int] = {}
        return np.array([first.setdefault(row.tobytes(), place) for place, row in enumerate(matrix.T.copy())])

    def _with_arrays(self, arrays: list[Array]) -> Deployment:
        """Deployment with other arrays."""
        left = iter(arrays)

        def bundle(like: Bundle) -> Bundle:
            return type(like)(*islice(left, len(_NAMES[type(like)])))

        return Deployment(
            Model(**dict(zip(_NAMES[Model], left, strict=False))),
            bundle(self.device),
            bundle(self.network),
            self.plan.with_numbers(dict(zip(self.plan.numbers, left, strict=False))),
            {name: dict(zip(constants, left, strict=False)) for name, constants in self.kernels.items()},
            dict(zip(self.software, left, strict=False)),
            next(left),
            self.architecture,
        )


def host_times(constants: Mapping[str, Array], slowdown: Array) -> dict[str, Array]:
    """Software times of a host with slower processors.

    >>> host_times({"step_time": 2.0, "efficiency": 0.5}, 1.5)
    {'step_time': 3.0, 'efficiency': 0.5}
    """
    return {name: values * slowdown if name.endswith("_time") else values for name, values in constants.items()}


def engine_constants(
    constants: Mapping[str, Mapping[str, Array]], architecture: Architecture
) -> tuple[dict[str, Mapping[str, Array]], dict[str, Array]]:
    """Constants of the kernels and the software of serving engines on their hosts. Launches overlap with the
    accelerator. An engine's attention reads its cache slower than the bare kernel. Host processors slow down the
    software, and launches by a factor of their own (heuristic, this work).
    """
    host = constants["serving_host"]
    kernels = {family: values for family, values in constants.items() if family not in _OF_ENGINE}
    if not architecture.one_vector:
        decode, slower = kernels["attention_decode"], constants["serving_attention"]["memory_slowdown"]
        kernels["attention_decode"] = {**decode, "memory_efficiency": decode["memory_efficiency"] / slower}
    if "serving_eager" in constants:
        kernels["serving_eager"] = host_times(constants["serving_eager"], host["host_slowdown"])
    software = host_times(constants["serving_software"], host["host_slowdown"])
    launching = constants["serving_software"]["kernel_overhead_time"] * host["launch_slowdown"]
    software["kernel_overhead_time"] = launching
    software |= {**constants["serving_memory"], **constants["serving_load"]}
    software |= {name: host[name] for name in ("ranks", "offload_efficiency", "handover_time", "adapter_time")}
    return stack_constants(kernels, input_casts=True), software


def expert_constants(experts: Mapping[str, Array], plan: InferencePlan, device: Device) -> Mapping[str, Array]:
    """Constants of experts with the slowdowns of grouped products of their library and accelerator, (rows, 1): those of
    the exchange where tokens are sent to the experts.
    """
    sent = ((plan.data_parallel_attention > 1.0) & (plan.expert_parallel > 1.0))[:, None]
    ratios = {"product_slowdown": "exchanged_product_ratio", "memory_slowdown": "exchanged_memory_ratio"}
    slower = {name: experts[name] * np.where(sent, experts[ratio], 1.0) for name, ratio in ratios.items()}
    peak = device.rate().peak_flop_rate / plan.products_in_time[:, None]
    # Beyond 1 a slowdown is work of the vector units (addresses, masks, scales of blocks): a smaller share where the
    # matrix units are slow beside them (heuristic, this work).
    share = np.minimum(peak / (experts["matrix_to_vector_ratio"] * device.vector_flop_rate), 1.0)
    slowdown = slower["product_slowdown"]
    slower["product_slowdown"] = slowdown - np.maximum(slowdown - 1.0, 0.0) * (1.0 - share)
    return {**experts, **slower}


def with_copied_groups(model: Model, plan: InferencePlan, ranks: Array) -> Model:
    """Models with replicated KV groups and padded query heads, for accelerators of several ranks each.

    A group is not split: with more ranks than groups, each rank holds a copy. Query heads are padded to a multiple of
    the ranks. Sources: AWS Neuron documentation, Transformers NeuronX developer guide, grouped-query attention:
    REPLICATED_HEADS. Optimum Neuron 0.4, attention/gqa.py and vllm/platform.py: heads are padded (Llama 4 Scout, 32
    ranks).
    """
    if np.all(ranks == 1.0):
        return model
    all_ranks = plan.attention_parallel * ranks
    padded = {
        name: np.where(ranks == 1.0, values, all_ranks * np.ceil(values / all_ranks))
        for name in ("num_attention_heads", "num_query_groups")
        for values in (getattr(model, name),)
    }
    return replace(model, **padded)


_STATE_SIZES = np.array([4.0, 2.0, 2.0])


def with_stated_states(model: Model, plan: InferencePlan) -> Model:
    """Models whose states of linear attention have the precision that a plan states, in the order of its choices:
    fp32, fp16, bf16 (SGLang, server_args.py: mamba_ssm_dtype overrides the configuration of the model).
    """
    if not plan.has("state_precision"):
        return model
    stated = ~np.isnan(plan.state_precision) & (model.linear_state_size > 0.0)
    sizes = _STATE_SIZES[np.where(stated, plan.state_precision, 0.0).astype(np.int64)]
    return replace(model, linear_state_size=np.where(stated, sizes, model.linear_state_size))


class Batching(NamedTuple):
    """How the batch of a replica is split, (rows,)."""

    micro_batches: Array  # micro-batches in the pipeline [-]
    rounds: Array  # micro-batches prefilled one after the other [-]
    prompts: Array  # prompts of all rounds [-]
    own_prompts: Array  # prompts of the busiest attention replica, over all rounds [-]
    passes: Array  # prefill passes, one per round at least; fractional if later prompts fill the last pass [-]
    sequences: Array  # sequences of one decode micro-batch [-]
    prefill_split: Array  # 2 with two-batch overlap in the prefill, else 1 [-]
    decode_split: Array  # 2 with two-batch overlap in decode steps, else 1 [-]


def batching_of(plan: InferencePlan) -> Batching:
    """Prefill passes and decode micro-batches; the whole batch is prefilled at once unless the plan limits prompts."""
    limited = plan.prompts_together > 0.0
    prompts = np.where(limited, plan.prompts_together, plan.batch_size)
    rounds = np.where(limited, 1.0, plan.num_micro_batches)
    # Prompts of the busiest attention replica: rounds that do not divide the batch differ by one prompt.
    replicas, fewest = plan.data_parallel_attention, np.floor(prompts / rounds)
    larger_rounds = prompts - rounds * fewest
    largest, smallest = (np.ceil(size / replicas) for size in (fewest + 1.0, fewest))
    own_prompts = larger_rounds * largest + (rounds - larger_rounds) * smallest
    # A pipeline runs full passes, and under load the next prompt fills the last pass: passes are fractional there.
    passes = own_prompts * plan.own_tokens / plan.prefill_tokens
    passes = np.maximum(np.where((plan.pipeline_parallel > 1.0) | limited, passes, np.ceil(passes)), rounds)
    prefill_split = decode_split = np.ones_like(passes)
    sequences = plan.micro_batch_size
    if some(plan.two_batch_overlap > 0.0):
        # Two-batch overlap needs two tokens or two sequences per attention replica.
        overlapped = (plan.two_batch_overlap > 0.0) & (replicas > 1.0)
        prefill_split = np.where(overlapped & (plan.own_tokens * prompts >= 2.0 * rounds * replicas), 2.0, 1.0)
        decode_split = np.where(overlapped & (plan.micro_batch_size >= 2.0 * replicas), 2.0, 1.0)
        passes, sequences = passes * prefill_split, np.ceil(plan.micro_batch_size / decode_split)
    return Batching(
        plan.num_micro_batches, rounds, prompts, own_prompts, passes, sequences, prefill_split, decode_split
    )


def computed_batching(plan: InferencePlan, batching: Batching, whole_batch: Array) -> Batching:
    """Batching that a decode step computes: engines compiled for one batch size pad to it (AWS Neuron)."""
    padded = (whole_batch > 0.0) & ~np.isnan(plan.max_running_batch)
    if not some(padded):
        return batching
    whole = np.ceil(np.where(padded, plan.max_running_batch, 0.0) / plan.pipeline_parallel / batching.decode_split)
    return batching._replace(sequences=np.maximum(batching.sequences, whole))


def serving_shape(plan: InferencePlan, batching: Batching, popularity: Popularity) -> ServingShape:
    """Tokens of a prefill pass and of a decode step on one rank."""
    prompts, drafted = batching.own_prompts, 1.0 + plan.drafted_tokens
    sequences = np.ceil(batching.sequences / plan.data_parallel_attention)
    new = plan.own_tokens / batching.passes
    # Prompts that fill a pass exactly: rounding neither opens a tile nor outgrows graphs.
    full = np.abs(prompts * new - plan.prefill_tokens) <= _ROUNDING * plan.prefill_tokens
    return ServingShape(
        prefill_tokens=np.where(full, plan.prefill_tokens, prompts * new),
        decode_tokens=sequences * drafted,
        prefill_routed=batching.prompts * new,
        decode_routed=batching.sequences * drafted,
        prefill_sampled=np.ceil(prompts / batching.passes),
        attention_parallel=plan.attention_parallel,
        expert_parallel=plan.expert_parallel,
        expert_tensor_parallel=plan.expert_tensor_parallel,
        prefill_context=prompts * plan.chunks / batching.passes * plan.chunk_context,
        favoured_share=popularity.favoured_share,
        hot_share=popularity.hot_share,
        absorbed_share=0.0 * prompts,
        redundant_experts=plan.redundant_experts,
    )


_KERNELS = 2.0  # kernels of an adapter: down to the rank, and up from it with the sum [-]
_READS = 2.0  # passes over the output of a product that an adapter adds to [-]


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
    resident_share = np.minimum(divide(resident, adapters, 1.0), 1.0)
    return np.asarray((1.0 - resident_share) * (array(size) / array(bandwidth)))


class _Product(NamedTuple):
    """A product of a rank with an adapter, (rows,); all 0 without one. [-]"""

    depth: Array
    columns: Array
    slices: Array  # slices with an adapter each: 3 for queries, keys and values, 2 for gate and up
    layers: Array  # share of the layers that have it

    def parameters(self, rank: Array) -> Array:
        """Parameters of its adapter: a matrix down to the rank for each slice, and one up (arXiv:2106.09685). [-]"""
        return np.asarray(rank * (self.slices * self.depth + self.columns))


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
    rank = np.where(plan.adapters > 0.0, finite(plan.adapter_rank), 0.0)
    layer = [each.layers * (each.parameters(rank) * plan.activation_size) for each in _products(model, plan)]
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
    # different adapters in the batch: each of ``adapters`` is missed by a request with probability 1 - 1 / adapters
    missed = power(np.maximum(1.0 - divide(1.0, np.maximum(plan.adapters, 1.0)), 0.0), requests)
    distinct = np.asarray(plan.adapters * (1.0 - missed))
    there, rank = np.where(plan.adapters > 0.0, 1.0, 0.0), finite(plan.adapter_rank)
    bandwidth, peak = device.memory_bandwidth[:, 0], device.rate(WIDE).peak_flop_rate[:, 0]
    time, kernels = np.zeros_like(tokens), np.zeros_like(tokens)
    for each in _products(model, plan):
        parameters = each.parameters(rank)
        moved = distinct * parameters + tokens * (each.depth + _READS * each.columns + _KERNELS * rank * each.slices)
        memory = transfer_time(moved * plan.activation_size, bandwidth, efficiency)
        busy = np.maximum(memory, 2.0 * tokens * parameters / peak) + _KERNELS * kernel_time
        time = time + there * each.layers * busy
        kernels = kernels + there * each.layers * _KERNELS
    return time, kernels
