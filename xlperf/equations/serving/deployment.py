"""Served plans with all that their equations need, and how the batch of a replica is split over stages and passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from operator import attrgetter
from typing import NamedTuple, TypeVar

import numpy as np

from xlperf.base.arrays import Array, some
from xlperf.equations.hardware.roofline import Device, stack_constants
from xlperf.equations.model.experts import EVEN, Popularity
from xlperf.equations.model.model import Architecture, Model
from xlperf.equations.model.serving import ServingShape
from xlperf.equations.network.topologies import Network
from xlperf.equations.plan.records import derived
from xlperf.equations.plan.serving_plan import InferencePlan
from xlperf.equations.serving.runs import coming_together

Bundle = TypeVar("Bundle", Model, Device, Network)
Rows = np.ndarray | slice
_NAMES = {kind: [field.name for field in fields(kind)] for kind in (Model, Device, Network)}
_READ = {kind: attrgetter(*names) for kind, names in _NAMES.items()}
_OF_ENGINE = ("serving_software", "serving_memory", "serving_load", "serving_host", "serving_attention")
_LATENCY = ("request_latency_time", "token_latency_time", "crowd_latency_time")
_MANY = 256  # rows from which on arrays are packed to take some of them [-]
# Slots of states per request with a prefix cache, without buffers for a step ahead (SGLang: no_buffer) [-]
_SLOTS_IN_TURN = 3.0


class _Packed:
    """Arrays of plans packed into one matrix, so that rows of all of them are taken in one call.

    Arrays are (rows,) or (rows, columns); others, and those of whole numbers, are kept as they are.
    """

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.first: dict[int, int] = {}
        columns: list[Array] = []
        for values in arrays:
            if id(values) not in self.first and values.ndim and values.dtype == np.float64:
                self.first[id(values)] = len(columns)
                columns += [values] if values.ndim == 1 else list(values.T)
        self.arrays, self.matrix = arrays, np.concatenate(columns).reshape(len(columns), -1)

    def take(self, rows: np.ndarray) -> list[Array]:
        """Some rows of the arrays, in their order."""
        taken = self.matrix.take(rows, axis=1)
        found = []
        for values in self.arrays:
            first = self.first.get(id(values))
            if first is None:
                found.append(values[rows] if values.ndim else values)
            elif values.ndim == 1:
                found.append(taken[first])
            else:
                found.append(taken[first : first + values.shape[1]].T)
        return found


class RequestLatency(NamedTuple):
    """Time from the sending of a request to its first token in which the engine does other work, (rows,).

    HTTP, text to tokens and queues between processes: it delays the request and no other (heuristic, this work).
    """

    alone: Array  # of a request that is alone [s]
    crowd: Array  # what each further request in flight on a replica adds [s]

    def time(self, requests: Array) -> Array:
        """Latency with some requests in flight on a replica, that one included. [s]"""
        return np.asarray(self.alone + self.crowd * np.maximum(requests - 1.0, 0.0))


@dataclass(frozen=True)
class Deployment:
    """Served plans: model, accelerators, network, degrees and calibration, (rows,)."""

    model: Model  # shapes, (rows,) [-]
    device: Device  # accelerators with the peak of the precision of the matrix products, (rows, 1)
    attention_device: Device  # the same with the peak of the precision of attention, (rows, 1)
    # The same with the peak of the precision of the products that a narrow precision leaves out, (rows, 1): logits,
    # router, and attention beside experts in 4 bits
    wide_device: Device
    network: Network  # tiers, (rows, tiers)
    plan: InferencePlan  # degrees, lengths, batch, (rows,)
    # Calibration constants (rows, 1) by family: gemm, gemm_wide of those other products, attention, attention_decode,
    # attention_latent, vector, serving_experts, linear_attention and the collectives
    kernels: Mapping[str, Mapping[str, Array]]
    # Calibration constants (rows, 1) of the families serving_software, serving_memory and serving_load, and the ranks
    # of an accelerator
    software: Mapping[str, Array]
    reserved_memory: Array  # memory that the driver keeps from the engine, (rows,) [B]
    architecture: Architecture  # structure that the models share

    @property
    def burst_fraction(self) -> Array:
        """Fraction of the in-flight requests that arrive at the same moment, (rows,). [-]"""
        return coming_together(self.software["waiting_share"][:, 0], self.plan.output_variation)

    @property
    def popularity(self) -> Popularity:
        """How unevenly the requests that an engine serves visit experts, (rows,)."""
        if not self.architecture.experts:
            return Popularity(*(np.full(len(self.plan), even) for even in EVEN))
        experts = self.kernels["serving_experts"]
        return Popularity(experts["favoured_share"][:, 0], experts["hot_share"][:, 0])

    @property
    def mixed(self) -> Array:
        """1 where a prefill pass is computed together with a decode step, 0 where they alternate, (rows,). [-]"""
        alternates = (self.plan.prefill_first > 0.0) | (self.plan.pipeline_parallel > 1.0)
        return np.where(alternates, 0.0, self.software["mixed_steps"][:, 0])

    @property
    def overlapped_host(self) -> Array:
        """1 where the host works on the next step while the accelerators compute, else 0, (rows, 1). [-]

        States of linear attention that a prefix cache holds without buffers for a step ahead are written in turn.
        """
        overlapped = self.software["overlapped_host"]
        if not self.architecture.linear_attention:
            return overlapped
        own, stated = self.software["state_slots"], self.plan.state_slots[:, None]
        slots = np.where(np.isnan(stated), own, stated)
        cached = (self.model.num_linear_layers[:, None] > 0.0) & (slots > 1.0)
        return np.where(cached & (slots <= _SLOTS_IN_TURN), 0.0, overlapped)

    @property
    def graph_tokens(self) -> Array:
        """Tokens of a pass up to which it is replayed as graphs in pieces: as stated, else the engine's, (rows,). [-]

        Engines capture no pass whose steps are launched kernel by kernel, and none that two halves of a batch share.
        Dense latent attention has a limit of its own: kernels that are the fastest there cannot be captured.
        """
        plan, stated = self.plan, self.plan.graph_tokens
        captured = (plan.graphs > 0.0) & (plan.two_batch_overlap == 0.0)
        own = np.where(captured, self.software["graph_tokens"][:, 0], 0.0)
        if self.architecture.latent_attention and not self.architecture.sparse_attention:
            own = np.minimum(own, self.software["latent_graph_tokens"][:, 0])
        return np.where(np.isnan(stated), own, stated)

    @property
    def balance_rows(self) -> Array:
        """Rows of a product from which on it is compute-bound: two operations each per weight read, (rows,). [-]"""
        gemm, device = self.kernels["gemm"], self.device
        rate = gemm["compute_efficiency"] * device.peak_flop_rate
        read = gemm["memory_efficiency"] * device.memory_bandwidth
        return np.asarray((0.5 * rate / read)[:, 0] * self.plan.weight_size)

    @property
    def request_latency(self) -> RequestLatency:
        """Time that requests spend outside the loop of the engine, (rows,)."""
        each, token, crowd = (self.software[name][:, 0] for name in _LATENCY)
        return RequestLatency(each + token * self.plan.new_tokens, crowd)

    def with_batch(self, batch: Array, prompts: Array) -> Deployment:
        """The same with other numbers of requests per decode step and of prompts per prefill."""
        return replace(self, plan=self.plan.replaced(batch_size=batch, prompts_together=prompts))

    def take(self, rows: Rows) -> Deployment:
        """Some of the plans; a plan may be taken several times."""
        if isinstance(rows, slice) or len(rows) < _MANY:
            return self._with_arrays([values[rows] if values.ndim else values for values in self._arrays])
        return self._with_arrays(self._packed.take(rows))

    @derived
    def _arrays(self) -> list[Array]:
        """Every array, in an order of its own."""
        bundles = self.model, self.device, self.attention_device, self.wide_device, self.network
        found = [values for bundle in bundles for values in _READ[type(bundle)](bundle)]
        found += self.plan.numbers.values()
        for constants in (*self.kernels.values(), self.software):
            found += constants.values()
        return [*found, self.reserved_memory]

    @derived
    def _packed(self) -> _Packed:
        return _Packed(self._arrays)

    def _with_arrays(self, arrays: list[Array]) -> Deployment:
        """The same with other arrays in the order of ``_arrays``."""
        left = iter(arrays)

        def bundle(like: Bundle) -> Bundle:
            return type(like)(*islice(left, len(_NAMES[type(like)])))

        return Deployment(
            bundle(self.model),
            bundle(self.device),
            bundle(self.attention_device),
            bundle(self.wide_device),
            bundle(self.network),
            InferencePlan(dict(zip(self.plan.numbers, left, strict=False))),
            {name: dict(zip(constants, left, strict=False)) for name, constants in self.kernels.items()},
            dict(zip(self.software, left, strict=False)),
            next(left),
            self.architecture,
        )


def host_times(constants: Mapping[str, Array], slowdown: Array) -> dict[str, Array]:
    """Times of the software on the host processors beside the accelerators.

    >>> host_times({"step_time": 2.0, "efficiency": 0.5}, 1.5)
    {'step_time': 3.0, 'efficiency': 0.5}
    """
    return {name: values * slowdown if name.endswith("_time") else values for name, values in constants.items()}


def engine_constants(
    constants: Mapping[str, Mapping[str, Array]], architecture: Architecture
) -> tuple[dict[str, Mapping[str, Array]], dict[str, Array]]:
    """Constants of the kernels and of the software of serving engines on their hosts.

    Kernels are launched ahead of the accelerator. Attention of an engine reads its cache slower than the kernel by
    itself; the host's processors slow down its software, and launches by a factor of their own (heuristic, this work).
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
    software |= {**constants["serving_memory"], **constants["serving_load"], "ranks": host["ranks"]}
    return stack_constants(kernels, input_casts=True), software


def with_copied_groups(model: Model, plan: InferencePlan, ranks: Array) -> Model:
    """The models with as many heads and groups as the ranks of all accelerators keep, copies and padding included.

    A group is not split: where a replica has more ranks than the model has groups, each keeps a whole one. Query heads
    that the ranks do not divide are padded to their next multiple.

    References
    ----------
    .. [1] AWS Neuron documentation, Transformers NeuronX developer guide, grouped-query attention: REPLICATED_HEADS.
    .. [2] Optimum Neuron 0.4, attention/gqa.py and vllm/platform.py: heads are padded (Llama 4 Scout, 32 ranks).
    """
    if np.all(ranks == 1.0):
        return model
    all_ranks = plan.attention_parallel * ranks
    kept = {
        name: np.where(ranks == 1.0, values, all_ranks * np.ceil(values / all_ranks))
        for name in ("num_attention_heads", "num_query_groups")
        for values in (getattr(model, name),)
    }
    return replace(model, **kept)


class Batching(NamedTuple):
    """How the batch of a replica is split, (rows,)."""

    micro_batches: Array  # parts that follow each other through the stages [-]
    rounds: Array  # parts that are prefilled one after the other [-]
    prompts: Array  # sequences that are prefilled, of all parts [-]
    own_prompts: Array  # of those, the ones of the busiest attention replica in each part [-]
    # Passes that their prefill takes: as many as fill them, one for each part at least; through stages full ones [-]
    passes: Array
    sequences: Array  # sequences of one part that are decoded together [-]
    # 2 where passes are halves of one, of which one computes while the other is sent to experts, else 1 [-]
    prefill_split: Array
    decode_split: Array  # the same of the sequences of a step [-]


def batching_of(plan: InferencePlan) -> Batching:
    """Passes of the prefill and parts of a decode step: the whole batch is prefilled unless a plan says how many."""
    apart = plan.prompts_together > 0.0
    prompts = np.where(apart, plan.prompts_together, plan.batch_size)
    rounds = np.where(apart, 1.0, plan.num_micro_batches)
    # Parts that do not divide the batch have one prompt more or less.
    replicas, fewest = plan.data_parallel_attention, np.floor(prompts / rounds)
    fuller = prompts - rounds * fewest
    own = fuller * np.ceil((fewest + 1.0) / replicas) + (rounds - fuller) * np.ceil(fewest / replicas)
    passes = own * plan.own_tokens / plan.prefill_tokens
    # Stages are filled by a full pass, and under load the next prompt fills up the last one: it counts by its tokens.
    passes = np.maximum(np.where((plan.pipeline_parallel > 1.0) | apart, passes, np.ceil(passes)), rounds)
    if not some(plan.two_batch_overlap > 0.0):
        one = np.ones_like(passes)
        return Batching(plan.num_micro_batches, rounds, prompts, own, passes, plan.micro_batch_size, one, one)
    # A token or a sequence cannot be split in two.
    cut = (plan.two_batch_overlap > 0.0) & (replicas > 1.0)
    halves = np.where(cut & (plan.own_tokens * prompts >= 2.0 * rounds * replicas), 2.0, 1.0)
    parts = np.where(cut & (plan.micro_batch_size >= 2.0 * replicas), 2.0, 1.0)
    sequences = np.ceil(plan.micro_batch_size / parts)
    return Batching(plan.num_micro_batches, rounds, prompts, own, passes * halves, sequences, halves, parts)


def computed_batching(plan: InferencePlan, batching: Batching, whole_batch: Array) -> Batching:
    """Batching with the sequences that a decode step computes: those that run, or all that the engine may run.

    Engines that are compiled for one batch pad fewer sequences to it; what is padded costs as much as what runs.

    References
    ----------
    .. [1] AWS Neuron documentation, NxD Inference API guide: batch_size is a compile-time option.
    """
    padded = (whole_batch > 0.0) & ~np.isnan(plan.max_running_batch)
    if not some(padded):
        return batching
    whole = np.ceil(np.where(padded, plan.max_running_batch, 0.0) / plan.pipeline_parallel / batching.decode_split)
    return batching._replace(sequences=np.maximum(batching.sequences, whole))


def serving_shape(plan: InferencePlan, batching: Batching, popularity: Popularity) -> ServingShape:
    """Tokens of a pass of the prefill and of a decode step on one rank."""
    prompts, drafted = batching.own_prompts, 1.0 + plan.drafted_tokens
    sequences = np.ceil(batching.sequences / plan.data_parallel_attention)
    new = plan.own_tokens / batching.passes
    return ServingShape(
        prefill_tokens=prompts * new,
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
