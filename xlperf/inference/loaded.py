"""Results of replicas that serve a stream of requests: continuous batching, and pools for prefill and decoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import NamedTuple, TypeVar

import numpy as np

from xlperf.arrays import Array, divide, total
from xlperf.hardware.device import Device
from xlperf.inference.load import (
    Service,
    Steady,
    closed_state,
    pooled_state,
    run_rate,
    spread_quantiles,
    step_line,
)
from xlperf.inference.results import most_requests, serving_memory, serving_results
from xlperf.inference.work import phase_times, serving_work
from xlperf.network.collectives import collective_time
from xlperf.network.tiers import Network
from xlperf.parallel.serving_memory import usable_memory
from xlperf.parallel.serving_plan import InferencePlan
from xlperf.workload.model import Architecture, Model
from xlperf.workload.serving import BOTH_PHASES, DECODING, PREFILL

QUANTILE_NAMES = ("median", "ninetieth", "ninety_ninth")
_MOST_OPEN = 256.0


Bundle = TypeVar("Bundle", Model, Device, Network, InferencePlan, "Stream")


def _some(values: Array, rows: np.ndarray) -> Array:
    """Rows of an array that has one for each plan; others as they are."""
    return values[rows] if np.ndim(values) else values


def _some_rows(bundle: Bundle, rows: np.ndarray) -> Bundle:
    """Some plans of a bundle of arrays."""
    return replace(bundle, **{field.name: _some(getattr(bundle, field.name), rows) for field in fields(bundle)})


@dataclass(frozen=True)
class Serving:
    """Everything that the equations need of a block of plans: the arguments of ``serving_results``."""

    model: Model
    device: Device
    attention_device: Device
    wide_device: Device
    network: Network
    plan: InferencePlan
    kernels: Mapping[str, Mapping[str, Array]]
    software: Mapping[str, Array]
    reserved_memory: Array
    architecture: Architecture

    def with_batch(self, batch: Array, prompts: Array) -> Serving:
        """The same with other requests decoded together and other prompts prefilled together."""
        return replace(self, plan=replace(self.plan, batch_size=batch, prompts_together=prompts))

    def take(self, rows: np.ndarray) -> Serving:
        """Some of the plans."""
        return replace(
            self,
            model=_some_rows(self.model, rows),
            device=_some_rows(self.device, rows),
            attention_device=_some_rows(self.attention_device, rows),
            network=_some_rows(self.network, rows),
            plan=_some_rows(self.plan, rows),
            kernels={name: {key: _some(v, rows) for key, v in family.items()} for name, family in self.kernels.items()},
            software={name: _some(values, rows) for name, values in self.software.items()},
            reserved_memory=_some(self.reserved_memory, rows),
        )

    def results(self, phases: tuple[int, ...] = BOTH_PHASES) -> dict[str, Array]:
        """As :func:`xlperf.inference.serving_results`."""
        return serving_results(
            self.model,
            self.device,
            self.attention_device,
            self.wide_device,
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
            self.wide_device,
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
    """Requests, (rows,).

    Rate over the deployment (NaN: constant number in flight), variation, targets (NaN: none), share of those in
    flight whose prefills are waited for, requests of a run (NaN: without end).
    """

    request_rate: Array
    prompt_variation: Array
    first_target: Array
    token_target: Array
    waiting_share: Array
    run_requests: Array

    def take(self, rows: np.ndarray) -> Stream:
        """Those of some of the plans."""
        return _some_rows(self, rows)


def places_of(serving: Serving) -> Array:
    """Requests that the memory of a replica has room for.

    Parameters
    ----------
    serving : Serving
        Model, accelerators, plan, calibration, (rows,).

    Returns
    -------
    Array
        Whole number; 0 where not one fits, (rows,). [-]
    """
    memory = serving_memory(serving.model, serving.plan, serving.architecture)
    capacity, share = serving.device.memory_capacity[:, 0], serving.software["memory_fraction"][:, 0]
    usable = usable_memory(capacity, serving.reserved_memory, memory["memory_weights"], share)
    return most_requests(serving.plan, memory, usable)


def _prompts(plan: InferencePlan, requests: Array, steps: Array, share: Array) -> Array:
    """Prompts that are prefilled together: those that come during a step, or in a burst; whole."""
    most = plan.attention_replicas * np.maximum(np.floor(plan.prefill_tokens / plan.own_tokens), 1.0)
    coming = np.maximum(requests / np.maximum(steps, 1.0), share * requests)
    return np.maximum(np.minimum(np.floor(coming), most), 1.0)


def loaded_serving(serving: Serving, stream: Stream, requests: Array) -> Serving:
    """Replicas with a number of requests that are decoded together, and the prompts that are prefilled together then.

    Parameters
    ----------
    serving : Serving
        Model, accelerators, plan, calibration, (rows,).
    stream : Stream
        Requests, (rows,).
    requests : Array
        Requests that are decoded together, whole, (rows,). [-]

    Returns
    -------
    Serving
        With that batch.
    """
    plan = serving.plan
    steps = np.maximum(plan.output_length - 1.0, 0.0) / plan.tokens_per_step
    return serving.with_batch(requests, _prompts(plan, requests, steps, stream.waiting_share))


def _decoding_line(loaded: Serving, steps: Array, per_token: Array) -> tuple[Array, Array]:
    """Time of a step of decoding with no request and of one more, from the time per token with all of a batch."""
    requests = loaded.plan.batch_size
    fewer = np.maximum(np.floor(0.5 * requests), 1.0)
    half = loaded.with_batch(fewer, loaded.plan.prompts_together).times((DECODING,))[:, 0]
    step = np.where(steps > 0.0, per_token * loaded.plan.tokens_per_step, half)
    return step_line(requests, step, fewer, half)


def service_of(loaded: Serving, stream: Stream, prefill_time: Array, per_token: Array) -> Service:
    """What a replica needs for a request, from its times with a batch.

    Parameters
    ----------
    loaded : Serving
        Replicas with their batch, as :func:`loaded_serving` has them, (rows,).
    stream : Stream
        Requests, (rows,).
    prefill_time : Array
        Time of the prefill of the prompts that go together, (rows,). [s]
    per_token : Array
        Time of a step of decoding over the tokens that it yields, (rows,). [s]

    Returns
    -------
    Service
        Its times, (rows,).
    """
    plan = loaded.plan
    steps = np.maximum(plan.output_length - 1.0, 0.0) / plan.tokens_per_step
    base, slope = _decoding_line(loaded, steps, per_token)
    # Prompts follow each other through the stages.
    parts = plan.prompts_together * np.maximum(np.minimum(plan.pipeline_parallel, plan.batch_size), 1.0)
    return Service(prefill_time, prefill_time / parts, base, slope, steps, stream.waiting_share)


def quick_service(serving: Serving, stream: Stream, requests: Array) -> Service:
    """What a replica needs for a request while a number of them are decoded together, without other results.

    Parameters
    ----------
    serving : Serving
        Model, accelerators, plan, calibration, (rows,).
    stream : Stream
        Requests, (rows,).
    requests : Array
        Requests that are decoded together, whole, (rows,). [-]

    Returns
    -------
    Service
        Its times, (rows,).
    """
    loaded = loaded_serving(serving, stream, requests)
    prefill, step = loaded.times().T
    return service_of(loaded, stream, prefill, step / serving.plan.tokens_per_step)


class Operation(NamedTuple):
    """Replicas in steady state, (rows,): times, state, results of a static batch, and the plan at that batch."""

    service: Service
    steady: Steady
    results: dict[str, Array]
    places: Array
    running: Serving


def operating(serving: Serving, stream: Stream) -> Operation:
    """The batch that replicas decode and the prompts that they prefill together under a stream of requests.

    Parameters
    ----------
    serving : Serving
        Model, accelerators, plan, calibration, (rows,).
    stream : Stream
        Requests, (rows,).

    Returns
    -------
    Operation
        Times and state of a replica.
    """
    plan = serving.plan
    replicas = np.maximum(plan.num_replicas, 1.0)
    arriving = ~np.isnan(stream.request_rate)
    places = np.maximum(places_of(serving), 1.0)  # for the numbers of a plan that does not fit
    requests = np.maximum(plan.num_requests / replicas, 1.0)
    active = np.minimum(np.ceil(requests), places)
    rate = stream.request_rate / replicas
    if arriving.any():
        guess = np.minimum(places, _MOST_OPEN)
        service = quick_service(serving, stream, np.where(arriving, guess, active))
        found = service.open_state(np.where(arriving, rate, 0.0), stream.prompt_variation).running
        found = np.where(np.isfinite(found), np.ceil(found), places)
        active = np.where(arriving, np.clip(found, 2.0, np.maximum(places, 2.0)), active)
    running = loaded_serving(serving, stream, active)
    results = running.results()
    service = service_of(running, stream, results["ttft"], results["tpot"])
    steady = closed_state(service, requests, places)
    if arriving.any():
        opened = service.open_state(rate, stream.prompt_variation)
        steady = Steady(*(np.where(arriving, *pair) for pair in zip(opened, steady, strict=True)))
    return Operation(service, steady, results, places, running)


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
    service, steady, results, places, _ = operating(serving, stream)
    replicas = np.maximum(serving.plan.num_replicas, 1.0)
    full = loaded_serving(serving, stream, places)
    prefill, step = full.times().T
    parts = full.plan.prompts_together * np.minimum(full.plan.pipeline_parallel, places)
    filled = service._replace(
        prefill_time=prefill, prefill_share=prefill / parts, step_base=step, step_slope=0.0 * step
    )
    best = np.maximum(closed_state(filled, places, places).rate, steady.rate) * replicas
    arriving = ~np.isnan(stream.request_rate)
    rate = steady.rate
    if not np.isnan(stream.run_requests).all():
        requests = np.maximum(serving.plan.num_requests / replicas, 1.0)
        rate = run_rate(service, np.minimum(requests, places), stream.run_requests / replicas, rate)
    return _streamed(serving, stream, service, steady, results, best, rate * replicas, arriving)


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
    return found


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


class Pools(NamedTuple):
    """Two pools in steady state, (rows,).

    Attributes
    ----------
    decoding : Serving
        The pool that decodes, with the batch that it decodes.
    prefilling : Serving
        The pool that prefills, with the prompts that it takes together.
    service : Service
        Times of a replica of each.
    steady : Steady
        Both together.
    results : dict
        Of the decoding batch, as a static one.
    transfer : Array
        Time to send the cache of a prompt, (rows,). [s]
    places : Array
        Requests that the cache of a decoding replica has room for, (rows,). [-]
    """

    decoding: Serving
    prefilling: Serving
    service: Service
    steady: Steady
    results: dict[str, Array]
    transfer: Array
    places: Array


def pools_of(decoding: Serving, prefilling: Serving, stream: Stream, requests: Array) -> Pools:
    """Two pools with a number of requests in flight.

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
    Pools
        Their steady state.
    """
    plan, other = decoding.plan, prefilling.plan
    steps = np.maximum(plan.output_length - 1.0, 0.0) / plan.tokens_per_step
    decoders, prefillers = np.maximum(plan.num_replicas, 1.0), np.maximum(other.num_replicas, 1.0)
    places = np.maximum(places_of(decoding), 1.0)
    active = np.minimum(np.ceil(np.maximum(requests / decoders, 1.0)), places)
    prompts = _prompts(other, requests / prefillers, steps, stream.waiting_share)
    together = prefilling.with_batch(prompts, prompts)
    prefill = together.times((PREFILL,))[:, 0]
    parts = prompts * np.maximum(np.minimum(other.pipeline_parallel, requests), 1.0)

    def service_at(full: Serving, per_token: Array) -> Service:
        base, slope = _decoding_line(full, steps, per_token)
        return Service(prefill, prefill / parts, base, slope, steps, stream.waiting_share)

    ones = np.ones_like(active)
    full = decoding.with_batch(active, ones)
    service = service_at(full, full.times((DECODING,))[:, 0] / plan.tokens_per_step)
    transfer = _transfer_time(prefilling, decoding)
    steady = pooled_state(service, requests, prefillers, decoders, places, transfer)
    full = decoding.with_batch(np.maximum(np.minimum(np.ceil(steady.running), places), 1.0), ones)
    results = full.results((DECODING,))
    service = service_at(full, results["tpot"])
    steady = pooled_state(service, requests, prefillers, decoders, places, transfer)
    return Pools(full, together, service, steady, results, transfer, places)


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
    decoders, prefillers = np.maximum(plan.num_replicas, 1.0), np.maximum(other.num_replicas, 1.0)
    pools = pools_of(decoding, prefilling, stream, requests)
    service, steady = pools.service, pools.steady
    most = _prompts(other, np.inf + 0.0 * requests, service.steps, stream.waiting_share)
    prefill = prefilling.with_batch(most, most).times((PREFILL,))[:, 0]
    step = decoding.with_batch(pools.places, np.ones_like(most)).times((DECODING,))[:, 0]
    sent = prefillers * most * other.pipeline_parallel / prefill
    decoded = divide(decoders * pools.places, service.steps * step, np.inf)
    best = np.maximum(np.minimum(sent, decoded), steady.rate)
    both = replace(decoding, plan=replace(plan, num_accelerators=plan.num_accelerators + other.num_accelerators))
    never = np.full(len(requests), False)
    found = _streamed(both, stream, service, steady, pools.results, best, steady.rate, never)
    return {**found, "prefill_time": service.prefill_time}
