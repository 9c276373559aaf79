"""Results of replicas that serve a stream of requests: continuous batching, and pools for prefill and decoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from xlperf.arrays import Array, divide, total
from xlperf.hardware.device import Device
from xlperf.inference.load import (
    Service,
    Steady,
    closed_state,
    largest_within,
    pooled_state,
    spread_quantiles,
    step_line,
)
from xlperf.inference.results import most_requests, serving_memory, serving_results
from xlperf.inference.work import phase_times, serving_work
from xlperf.network.collectives import collective_time
from xlperf.network.tiers import Network
from xlperf.parallel.serving_plan import InferencePlan
from xlperf.workload.model import Architecture, Model
from xlperf.workload.serving import BOTH_PHASES, DECODING, PREFILL

QUANTILE_NAMES = ("median", "ninetieth", "ninety_ninth")
_MOST_OPEN = 256.0


@dataclass(frozen=True)
class Serving:
    """Everything that the equations need of a block of plans: the arguments of ``serving_results``."""

    model: Model
    device: Device
    attention_device: Device
    network: Network
    plan: InferencePlan
    kernels: Mapping[str, Mapping[str, Array]]
    software: Mapping[str, Array]
    reserved_memory: Array
    architecture: Architecture

    def with_batch(self, batch: Array, prompts: Array) -> Serving:
        """The same with other requests decoded together and other prompts prefilled together."""
        return replace(self, plan=replace(self.plan, batch_size=batch, prompts_together=prompts))

    def results(self, phases: tuple[int, ...] = BOTH_PHASES) -> dict[str, Array]:
        """As :func:`xlperf.inference.serving_results`."""
        return serving_results(
            self.model,
            self.device,
            self.attention_device,
            self.network,
            self.plan,
            self.kernels,
            self.software,
            self.reserved_memory,
            self.architecture,
            phases,
        )

    def times(self, phases: tuple[int, ...] = BOTH_PHASES) -> Array:
        """Times of a prefill and of a step of decoding, or of one of them, (rows, phases). [s]"""
        work = serving_work(
            self.model,
            self.device,
            self.attention_device,
            self.network,
            self.plan,
            self.kernels,
            self.software,
            self.architecture,
            phases,
        )
        return total(phase_times(work))


@dataclass(frozen=True)
class Stream:
    """Requests, (rows,): rate over the deployment (NaN: constant number in flight), variation, targets (NaN: none)."""

    request_rate: Array
    prompt_variation: Array
    first_target: Array
    token_target: Array
    waiting_share: Array


def _places(serving: Serving) -> Array:
    """Requests that fit on a replica: at least one, for the numbers of a plan that does not fit."""
    memory = serving_memory(serving.model, serving.plan, serving.architecture)
    usable = serving.device.memory_capacity[:, 0] * serving.software["memory_fraction"][:, 0] - serving.reserved_memory
    return np.maximum(most_requests(serving.plan, memory, usable), 1.0)


def _prompts(plan: InferencePlan, requests: Array, steps: Array, share: Array) -> Array:
    """Prompts that are prefilled together: those that come during a step, or in a burst; whole."""
    most = plan.attention_replicas * np.maximum(np.floor(plan.prefill_tokens / plan.own_tokens), 1.0)
    coming = np.maximum(requests / np.maximum(steps, 1.0), share * requests)
    return np.maximum(np.minimum(np.floor(coming), most), 1.0)


def _step_line(full: Serving, steps: Array, per_token: Array) -> tuple[Array, Array]:
    """Time of a step of decoding with no request and of one more, from the time per token with all of a batch."""
    requests = full.plan.batch_size
    fewer = np.maximum(np.floor(0.5 * requests), 1.0)
    half = replace(full, plan=replace(full.plan, batch_size=fewer)).times((DECODING,))[:, 0]
    step = np.where(steps > 0.0, per_token * full.plan.tokens_per_step, half)
    return step_line(requests, step, fewer, half)


def _service(full: Serving, stream: Stream, prefill: Array, per_token: Array) -> Service:
    """What a replica needs for a request, from its times with a batch of requests and of prompts."""
    plan = full.plan
    steps = np.maximum(plan.output_length - 1.0, 0.0) / plan.tokens_per_step
    base, slope = _step_line(full, steps, per_token)
    # Prompts follow each other through the stages.
    together = plan.prompts_together * np.maximum(np.minimum(plan.pipeline_parallel, plan.batch_size), 1.0)
    return Service(prefill, prefill / together, base, slope, steps, stream.waiting_share)


def _at(serving: Serving, stream: Stream, requests: Array) -> Serving:
    """A replica with so many requests in flight, and the prompts that are prefilled together then."""
    plan = serving.plan
    steps = np.maximum(plan.output_length - 1.0, 0.0) / plan.tokens_per_step
    return serving.with_batch(requests, _prompts(plan, requests, steps, stream.waiting_share))


def loaded_results(serving: Serving, stream: Stream) -> dict[str, Array]:
    """Results of continuous batching, as :func:`xlperf.inference.serving_results` has them for a static batch.

    Parameters
    ----------
    serving : Serving
        Model, accelerators, plan, calibration, (rows,).
    stream : Stream
        Requests, (rows,).

    Returns
    -------
    dict of str to Array
        Columns of inference_results, (rows,), with quantiles, queueing and running requests.
    """
    plan = serving.plan
    replicas = np.maximum(plan.num_replicas, 1.0)
    arriving = ~np.isnan(stream.request_rate)
    places = _places(serving)
    requests = np.maximum(plan.num_requests / replicas, 1.0)
    active = np.minimum(np.ceil(requests), places)
    rate = stream.request_rate / replicas
    if arriving.any():
        guess = np.minimum(places, _MOST_OPEN)
        full = _at(serving, stream, np.where(arriving, guess, active))
        prefill, step = full.times().T
        service = _service(full, stream, prefill, step / plan.tokens_per_step)
        found = service.open_state(np.where(arriving, rate, 0.0), stream.prompt_variation).running
        found = np.where(np.isfinite(found), np.ceil(found), places)
        active = np.where(arriving, np.clip(found, 2.0, np.maximum(places, 2.0)), active)
    full = _at(serving, stream, active)
    results = full.results()
    service = _service(full, stream, results["ttft"], results["tpot"])
    steady = closed_state(service, requests, places)
    if arriving.any():
        opened = service.open_state(rate, stream.prompt_variation)
        steady = Steady(*(np.where(arriving, *pair) for pair in zip(opened, steady, strict=True)))
    best = closed_state(service, places, places).rate * replicas
    return _streamed(serving, stream, service, steady, results, best, steady.rate * replicas, arriving)


def _streamed(
    serving: Serving,
    stream: Stream,
    service: Service,
    steady: Steady,
    results: dict[str, Array],
    best: Array,
    rate: Array,
    arriving: np.ndarray,
) -> dict[str, Array]:
    plan = serving.plan
    tokens = np.maximum(plan.output_length - 1.0, 0.0)
    first = steady.first_token + steady.queue_time
    latency = first + steady.decode_time
    per_token = np.where(tokens > 0.0, steady.decode_time / np.maximum(tokens, 1.0), np.nan)
    found = {
        **results,
        "ttft": first,
        "tpot": per_token,
        "tpot_itl": latency / plan.output_length,
        "latency": latency,
        "tokens_per_second": rate * plan.output_length,
        "tokens_per_second_per_accelerator": rate * plan.output_length / plan.num_accelerators,
        "queue_time": steady.queue_time,
        "running_batch": steady.running,
        "max_request_rate": best,
        "decode_time": steady.decode_time,
        "input_token_rate": plan.prompt_length / service.prefill_share,
        "output_token_rate": divide(
            steady.running * plan.output_length, service.steps * service.step_time(steady.running), np.inf
        ),
    }
    late = [spread_quantiles(service, steady, tokens, stream.prompt_variation, side) for side in (False, True)]
    mask = arriving[:, None]
    for name, side in (("ttft", 0), ("tpot", 1)):
        values = np.where(mask, late[1][side], late[0][side])
        for index, quantile in enumerate(QUANTILE_NAMES):
            column = values[:, index]
            found[f"{name}_{quantile}"] = column if side == 0 else np.where(tokens > 0.0, column, np.nan)
    if not np.isnan(stream.first_target + stream.token_target).all():
        found |= _at_targets(serving, stream, service, results["max_batch_size"])
    return found


def _at_targets(serving: Serving, stream: Stream, service: Service, places: Array) -> dict[str, Array]:
    """Largest batch under the targets, and its throughput; NaN without a target.

    Parameters
    ----------
    serving : Serving
        Plans, (rows,).
    stream : Stream
        With the targets, (rows,).
    service : Service
        Times of a replica, (rows,).
    places : Array
        Requests that fit, (rows,). [-]

    Returns
    -------
    dict of str to Array
        batch_at_targets and tokens_per_second_at_targets.
    """
    plan = serving.plan
    asked = ~(np.isnan(stream.first_target) & np.isnan(stream.token_target))
    first = np.where(np.isnan(stream.first_target), np.inf, stream.first_target)
    token = np.where(np.isnan(stream.token_target), np.inf, stream.token_target)
    tokens = np.maximum(plan.output_length - 1.0, 0.0)
    batch = largest_within(service, places, tokens, first, token)
    rate = closed_state(service, batch, batch).rate * np.where(batch > 0.0, plan.num_replicas, 0.0)
    return {
        "batch_at_targets": np.where(asked, batch, np.nan),
        "tokens_per_second_at_targets": np.where(asked, rate * plan.output_length, np.nan),
    }


def _transfer_time(serving: Serving, receiver: Serving) -> Array:
    """Time to send the cache of a prompt from a replica that prefilled it to one that decodes it.

    Parameters
    ----------
    serving : Serving
        Pool of the prefill, (rows,).
    receiver : Serving
        Pool of decoding, (rows,).

    Returns
    -------
    Array
        (rows,). [s]
    """
    plan, other = serving.plan, receiver.plan
    memory = serving_memory(receiver.model, receiver.plan, receiver.architecture)
    context = other.prompt_length + other.running_output
    one = memory["kv_cache_size"] * (other.prompt_length / context) * other.pipeline_parallel
    # Each rank of a copy of the attention sends or receives its part at the same time.
    mine, theirs = (each.attention_parallel * each.context_parallel for each in (plan, other))
    size = (one / np.minimum(mine / theirs, 1.0))[:, None] / plan.pipeline_parallel[:, None]
    apart = plan.replica_ranks[:, None]
    pair = np.full_like(size, 2.0)
    return collective_time("point_to_point", size, pair, apart, serving.network, serving.kernels["point_to_point"])[
        :, 0
    ]


def pooled_results(decoding: Serving, prefilling: Serving, stream: Stream, requests: Array) -> dict[str, Array]:
    """Results of separate pools for prefill and decoding.

    Parameters
    ----------
    decoding : Serving
        The pool that decodes; its plan counts its own accelerators, (rows,).
    prefilling : Serving
        The pool that prefills; its plan counts its own accelerators, (rows,).
    stream : Stream
        Requests, (rows,).
    requests : Array
        Requests in flight over both pools, (rows,). [-]

    Returns
    -------
    dict of str to Array
        Columns of inference_results, (rows,), of both pools together; memory is that of the decoding pool.
    """
    plan, other = decoding.plan, prefilling.plan
    steps = np.maximum(plan.output_length - 1.0, 0.0) / plan.tokens_per_step
    decoders, prefillers = np.maximum(plan.num_replicas, 1.0), np.maximum(other.num_replicas, 1.0)
    places = _places(decoding)
    share = np.maximum(requests / decoders, 1.0)
    active = np.minimum(np.ceil(share), places)
    prompts = _prompts(other, requests / prefillers, steps, stream.waiting_share)
    prefill = prefilling.with_batch(prompts, prompts).times((PREFILL,))[:, 0]
    parts = prompts * np.maximum(np.minimum(other.pipeline_parallel, requests), 1.0)

    def service_of(full: Serving, per_token: Array) -> Service:
        base, slope = _step_line(full, steps, per_token)
        return Service(prefill, prefill / parts, base, slope, steps, stream.waiting_share)

    ones = np.ones_like(active)
    full = decoding.with_batch(active, ones)
    service = service_of(full, full.times((DECODING,))[:, 0] / plan.tokens_per_step)
    transfer = _transfer_time(prefilling, decoding)
    steady = pooled_state(service, requests, prefillers, decoders, places, transfer)
    full = decoding.with_batch(np.maximum(np.minimum(np.ceil(steady.running), places), 1.0), ones)
    results = full.results((DECODING,))
    service = service_of(full, results["tpot"])
    steady = pooled_state(service, requests, prefillers, decoders, places, transfer)
    best = pooled_state(service, 1e3 * decoders * places, prefillers, decoders, places, transfer).rate
    both = replace(decoding, plan=replace(plan, num_accelerators=plan.num_accelerators + other.num_accelerators))
    quiet = replace(stream, first_target=np.nan * requests, token_target=np.nan * requests)
    never = np.full(len(requests), False)
    found = _streamed(both, quiet, service, steady, results, best, steady.rate, never)
    return {**found, "prefill_time": prefill}
