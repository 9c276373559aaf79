"""Results of replicas that serve a stream of requests: continuous batching."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import NamedTuple, TypeVar

import numpy as np

from xlperf.arrays import Array, divide, total
from xlperf.hardware.device import Device
from xlperf.inference.arrivals import prompts_together, turn
from xlperf.inference.load import (
    Service,
    Steady,
    closed_state,
    spread_quantiles,
    step_line,
)
from xlperf.inference.results import most_requests, serving_memory, serving_results
from xlperf.inference.runs import first_of_run, run_rate, run_state, staying_together
from xlperf.inference.work import phase_times, serving_work
from xlperf.network.tiers import Network
from xlperf.parallel.serving_memory import usable_memory
from xlperf.parallel.serving_plan import InferencePlan
from xlperf.workload.model import Architecture, Model
from xlperf.workload.serving import BOTH_PHASES, DECODING, PREFILL

QUANTILE_NAMES = ("median", "ninetieth", "ninety_ninth")
MOST_OPEN = 256.0


_MOSTLY = 0.7
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
            wide_device=_some_rows(self.wide_device, rows),
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

    def prefill_unless(self, other: Serving, known: Array) -> Array:
        """Times of a prefill; those of the plans that take as many prompts together elsewhere are known. [s]"""
        rows = np.flatnonzero(self.plan.prompts_together != other.plan.prompts_together)
        if len(rows) > _MOSTLY * len(known):
            return self.times((PREFILL,))[:, 0]
        found = known + 0.0
        if len(rows):
            found[rows] = self.take(rows).times((PREFILL,))[:, 0]
        return found


@dataclass(frozen=True)
class Stream:
    """Requests, (rows,).

    Rate over the deployment (NaN: constant number in flight), variation, targets (NaN: none), share of those in
    flight whose prefills are waited for, requests of a run (NaN: without end), steps between two looks at what has
    come, steps that prompts wait for others at most, 1 where prompts go before all decoding.
    """

    request_rate: Array
    prompt_variation: Array
    first_target: Array
    token_target: Array
    waiting_share: Array
    run_requests: Array
    polling_steps: Array
    gathering_steps: Array
    prefill_first: Array

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
    window, _ = turn(plan, requests, steps, stream.polling_steps, stream.gathering_steps)
    return serving.with_batch(requests, prompts_together(plan, requests, steps, stream.waiting_share, window))


def decoding_line(loaded: Serving, steps: Array, per_token: Array) -> tuple[Array, Array]:
    """Time of a step of decoding with no request and of one more, from the time per token with all of a batch.

    Parameters
    ----------
    loaded : Serving
        Replicas with their batch, (rows,).
    steps : Array
        Steps of decoding that a request takes, (rows,). [-]
    per_token : Array
        Time of a step over the tokens that it yields, (rows,). [s]

    Returns
    -------
    tuple of Array
        Base and slope, (rows,). [s]
    """
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
    base, slope = decoding_line(loaded, steps, per_token)
    # Prompts follow each other through the stages.
    parts = plan.prompts_together * np.maximum(np.minimum(plan.pipeline_parallel, plan.batch_size), 1.0)
    _, wait = turn(plan, plan.batch_size, steps, stream.polling_steps, stream.gathering_steps)
    return Service(prefill_time, prefill_time / parts, base, slope, steps, stream.waiting_share, wait)


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


def burst_of(running: Serving, service: Service) -> Service:
    """What a replica needs for a request while all requests in flight come at once.

    Parameters
    ----------
    running : Serving
        Replicas with the batch that they decode, (rows,).
    service : Service
        Times of a replica with it, (rows,).

    Returns
    -------
    Service
        With the prefill of as many prompts as a pass takes, (rows,).
    """
    plan = running.plan
    one = np.ones_like(plan.batch_size)
    prompts = prompts_together(plan, plan.batch_size, service.steps, one, one)
    full = running.with_batch(plan.batch_size, prompts)
    prefill = full.prefill_unless(running, service.prefill_time)
    parts = prompts * np.maximum(np.minimum(plan.pipeline_parallel, plan.batch_size), 1.0)
    return service._replace(prefill_time=prefill, prefill_share=prefill / parts, waiting_share=one)


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
    room = places_of(serving)
    # A plan that has room for no request keeps its numbers.
    places, room = np.maximum(room, 1.0), np.where(room >= 1.0, room, np.inf)
    requests = np.maximum(plan.num_requests / replicas, 1.0)
    active = np.minimum(np.ceil(requests), places)
    rate = stream.request_rate / replicas
    if arriving.any():
        guess = np.minimum(places, MOST_OPEN)
        service = quick_service(serving, stream, np.where(arriving, guess, active))
        found = service.open_state(np.where(arriving, rate, 0.0), stream.prompt_variation, room).running
        found = np.where(np.isfinite(found), np.ceil(found), places)
        active = np.where(arriving, np.clip(found, 2.0, np.maximum(places, 2.0)), active)
    running = loaded_serving(serving, stream, active)
    results = running.results()
    service = service_of(running, stream, results["ttft"], results["tpot"])
    steady = closed_state(service, requests, places)
    if not np.isnan(stream.run_requests).all():
        burst = burst_of(running, service)
        first = first_of_run(stream.run_requests / replicas, requests)
        together = staying_together(service.steps, stream.prefill_first, plan.output_variation)
        steady = run_state(closed_state(burst, requests, places), steady, first, together, stream.run_requests)
    if arriving.any():
        opened = service.open_state(rate, stream.prompt_variation, room)
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
    service, steady, results, places, running = operating(serving, stream)
    replicas = np.maximum(serving.plan.num_replicas, 1.0)
    full = loaded_serving(serving, stream, places)
    prefill, step = full.prefill_unless(running, service.prefill_time), full.times((DECODING,))[:, 0]
    parts = full.plan.prompts_together * np.minimum(full.plan.pipeline_parallel, places)
    filled = service._replace(
        prefill_time=prefill, prefill_share=prefill / parts, step_base=step, step_slope=0.0 * step
    )
    best = np.maximum(closed_state(filled, places, places).rate, steady.rate) * replicas
    rate = steady.rate
    if not np.isnan(stream.run_requests).all():
        offered = np.maximum(serving.plan.num_requests / replicas, 1.0)
        rate = run_rate(service, np.minimum(offered, places), stream.run_requests / replicas, rate)
    one = np.ones_like(replicas)
    return streamed(serving, stream, service, steady, results, best, rate * replicas, one, one)


def token_rates(plan: InferencePlan, rate: Array, share: Array) -> dict[str, Array]:
    """Tokens per second of the part of a replica's time that is paid for prompts, and of that for outputs.

    All time is paid, whether busy or not: it is shared out as the phases are.

    Parameters
    ----------
    plan : InferencePlan
        With all accelerators of the deployment, (rows,).
    rate : Array
        Requests per second of the deployment, (rows,). [request/s]
    share : Array
        Share of the time, or of the accelerators, that prefills, (rows,). [-]

    Returns
    -------
    dict of str to Array
        ``input_token_rate`` and ``output_token_rate``, (rows,). [token/s]
    """
    each = rate / plan.num_replicas
    return {
        "input_token_rate": divide(each * plan.prompt_length, share, np.inf),
        "output_token_rate": divide(each * plan.output_length, 1.0 - share, np.inf),
    }


def streamed(
    serving: Serving,
    stream: Stream,
    service: Service,
    steady: Steady,
    results: dict[str, Array],
    best: Array,
    rate: Array,
    prefill_replicas: Array,
    interrupting: Array,
) -> dict[str, Array]:
    """Results under a stream of requests, from the steady state.

    Parameters
    ----------
    serving : Serving
        Plans, with all accelerators of the deployment, (rows,).
    stream : Stream
        Requests, (rows,).
    service : Service
        Times of a replica, (rows,).
    steady : Steady
        Steady state, (rows,).
    results : dict of str to Array
        Of the batch that is decoded, as a static one, (rows,).
    best : Array
        Requests per second of the deployment at most, (rows,). [request/s]
    rate : Array
        Requests per second of the deployment, (rows,). [request/s]
    prefill_replicas : Array
        Replicas that share the prefills of the rate in ``steady``, (rows,). [-]
    interrupting : Array
        1 where prefills interrupt decoding, 0 where they have a pool of their own, (rows,). [-]

    Returns
    -------
    dict of str to Array
        Columns of inference_results, (rows,).
    """
    plan, arriving = serving.plan, ~np.isnan(stream.request_rate)
    tokens = np.maximum(plan.output_length - 1.0, 0.0)
    first = steady.first_token + steady.queue_time
    latency = first + steady.decode_time
    per_token = np.where(tokens > 0.0, steady.decode_time / np.maximum(tokens, 1.0), np.nan)
    decoding = service.steps * service.step_time(steady.running) / np.maximum(steady.running, 1.0)
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
        **token_rates(plan, rate, service.prefill_share / (service.prefill_share + decoding)),
    }
    varied = stream.prompt_variation, plan.output_variation
    late = [
        spread_quantiles(service, steady, tokens, *varied, side, prefill_replicas, interrupting)
        for side in (False, True)
    ]
    mask = arriving[:, None]
    for name, side in (("ttft", 0), ("tpot", 1)):
        values = np.where(mask, late[1][side], late[0][side])
        for index, quantile in enumerate(QUANTILE_NAMES):
            column = values[:, index]
            found[f"{name}_{quantile}"] = column if side == 0 else np.where(tokens > 0.0, column, np.nan)
    return found
