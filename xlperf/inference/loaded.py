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
    first_wave,
    largest_within,
    pooled_state,
    run_rate,
    spread_quantiles,
    step_line,
)
from xlperf.inference.results import most_requests, serving_memory, serving_results
from xlperf.parallel.serving_memory import usable_memory
from xlperf.inference.work import phase_times, serving_work
from xlperf.network.collectives import collective_time
from xlperf.network.tiers import Network
from xlperf.parallel.serving_plan import InferencePlan
from xlperf.workload.model import Architecture, Model

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
    wide_device: Device | None = None

    def with_batch(self, batch: Array, prompts: Array) -> Serving:
        """The same with other requests decoded together and other prompts prefilled together."""
        return replace(self, plan=replace(self.plan, batch_size=batch, prompts_together=prompts))

    def results(self) -> dict[str, Array]:
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
            self.wide_device,
        )

    def times(self) -> Array:
        """Times of a prefill and of a step of decoding, (rows, 2). [s]"""
        work = serving_work(
            self.model,
            self.device,
            self.attention_device,
            self.network,
            self.plan,
            self.kernels,
            self.software,
            self.architecture,
            self.wide_device,
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


def _places(serving: Serving) -> Array:
    """Requests that fit on a replica: at least one, for the numbers of a plan that does not fit."""
    memory = serving_memory(serving.model, serving.plan, serving.architecture)
    capacity, share = serving.device.memory_capacity[:, 0], serving.software["memory_fraction"][:, 0]
    usable = usable_memory(capacity, serving.reserved_memory, memory["memory_weights"], share)
    return np.maximum(most_requests(serving.plan, memory, usable), 1.0)


def _prompts(plan: InferencePlan, requests: Array, steps: Array, share: Array) -> Array:
    """Prompts that are prefilled together: those that come during a step, or in a burst; whole."""
    most = plan.attention_replicas * np.maximum(np.floor(plan.prefill_tokens / plan.new_tokens), 1.0)
    coming = np.maximum(requests / np.maximum(steps, 1.0), share * requests)
    return np.maximum(np.minimum(np.floor(coming), most), 1.0)


def _service(serving: Serving, stream: Stream, requests: Array) -> tuple[Service, dict[str, Array]]:
    plan = serving.plan
    steps = np.maximum(plan.output_length - 1.0, 0.0) / plan.tokens_per_step
    prompts = _prompts(plan, requests, steps, stream.waiting_share)
    full = serving.with_batch(requests, prompts)
    results = full.results()
    fewer = np.maximum(np.floor(0.5 * requests), 1.0)
    half = full.with_batch(fewer, prompts).times()
    step = np.where(steps > 0.0, results["tpot"] * plan.tokens_per_step, half[:, 1])
    base, slope = step_line(requests, step, fewer, half[:, 1])
    prefill = results["ttft"]
    # Prompts follow each other through the stages.
    share = prefill / (prompts * np.maximum(np.minimum(plan.pipeline_parallel, requests), 1.0))
    return Service(prefill, share, base, slope, steps, stream.waiting_share), results


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
        service, _ = _service(serving, stream, np.where(arriving, guess, active))
        found = service.open_state(np.where(arriving, rate, 0.0), stream.prompt_variation).running
        found = np.where(np.isfinite(found), np.ceil(found), places)
        active = np.where(arriving, np.clip(found, 2.0, np.maximum(places, 2.0)), active)
    service, results = _service(serving, stream, active)
    steady = closed_state(service, requests, places)
    if arriving.any():
        opened = service.open_state(rate, stream.prompt_variation)
        steady = Steady(*(np.where(arriving, *pair) for pair in zip(opened, steady, strict=True)))
    if not np.isnan(stream.run_requests).all():
        most = np.where(arriving, np.nan, stream.run_requests)
        steady = steady._replace(
            first_token=first_wave(service, requests, 1.0 + 0.0 * requests, most / replicas, steady.first_token),
            rate=run_rate(service, np.minimum(requests, places), most / replicas, steady.rate),
        )
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


def _transfer_time(serving: Serving, receiver: Serving, results: dict[str, Array]) -> Array:
    """Time to send the cache of a prompt from a replica that prefilled it to one that decodes it.

    Parameters
    ----------
    serving : Serving
        Pool of the prefill, (rows,).
    receiver : Serving
        Pool of decoding, (rows,).
    results : dict of str to Array
        Of the decoding pool: the cache of its batch at its longest. [B]

    Returns
    -------
    Array
        (rows,). [s]
    """
    plan, other = serving.plan, receiver.plan
    memory = serving_memory(receiver.model, receiver.plan, receiver.architecture)
    context = other.prompt_length + other.output_length
    one = memory["kv_cache_size"] * (other.prompt_length / context) * other.pipeline_parallel
    # Each rank of a copy of the attention sends or receives its part at the same time.
    width = np.minimum(plan.attention_parallel / other.attention_parallel, 1.0)
    size = (one / width)[:, None] / plan.pipeline_parallel[:, None]
    apart = (plan.tensor_parallel * plan.pipeline_parallel)[:, None]
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
    prefill = prefilling.with_batch(prompts, prompts).times()[:, 0]
    parts = prompts * np.maximum(np.minimum(other.pipeline_parallel, requests), 1.0)

    def service_at(batch: Array) -> tuple[Service, dict[str, Array]]:
        full = decoding.with_batch(batch, np.ones_like(batch))
        results = full.results()
        fewer = np.maximum(np.floor(0.5 * batch), 1.0)
        half = full.with_batch(fewer, np.ones_like(batch)).times()
        step = np.where(steps > 0.0, results["tpot"] * plan.tokens_per_step, half[:, 1])
        base, slope = step_line(batch, step, fewer, half[:, 1])
        return Service(prefill, prefill / parts, base, slope, steps, stream.waiting_share), results

    service, results = service_at(active)
    transfer = _transfer_time(prefilling, decoding, results)
    steady = pooled_state(service, requests, prefillers, decoders, places, transfer)
    service, results = service_at(np.maximum(np.minimum(np.ceil(steady.running), places), 1.0))
    steady = pooled_state(service, requests, prefillers, decoders, places, transfer)
    steady = steady._replace(
        first_token=first_wave(service, requests, prefillers, stream.run_requests, steady.first_token)
    )
    best = pooled_state(service, 1e3 * decoders * places, prefillers, decoders, places, transfer).rate
    both = replace(decoding, plan=replace(plan, num_accelerators=plan.num_accelerators + other.num_accelerators))
    quiet = replace(stream, first_target=np.nan * requests, token_target=np.nan * requests)
    never = np.full(len(requests), False)
    found = _streamed(both, quiet, service, steady, results, best, steady.rate, never)
    return {**found, "prefill_time": prefill}
