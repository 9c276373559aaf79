"""Results of replicas that serve a stream of requests: continuous batching."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array
from xlperf.equations.plan.serving_plan import InferencePlan
from xlperf.equations.serving.demand import UNBOUNDED, Cycle, demand_of, half_of
from xlperf.equations.serving.halves import HalfPasses
from xlperf.equations.serving.load import Service, Steady, closed_state, spread_quantiles
from xlperf.equations.serving.replicas import Replicas
from xlperf.equations.serving.results import Room, batch_results
from xlperf.equations.serving.runs import first_of_run, run_rate, run_state, staying_together
from xlperf.equations.serving.serving import Serving, Stream

QUANTILE_NAMES = ("median", "ninetieth", "ninety_ninth")


class Operation(NamedTuple):
    """Replicas in steady state, (rows,).

    Attributes
    ----------
    service : Service
        Times of a replica with the batch that it decodes.
    steady : Steady
        Its state.
    results : dict of str to Array
        Of that batch as a static one.
    places : Array
        Requests that the cache has room for, 1 or more. [-]
    capacity : Array
        Requests per second that a replica serves with a full cache. [request/s]
    running : Serving
        The plan at the batch that it decodes.
    room : Room
        Memory of a replica.
    halves : HalfPasses
        Times that are known of it.
    """

    service: Service
    steady: Steady
    results: dict[str, Array]
    places: Array
    capacity: Array
    running: Serving
    room: Room
    halves: HalfPasses


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
    plan, room, halves = serving.plan, serving.room(), HalfPasses(serving)
    demand = demand_of(plan, plan, stream)
    replicas = np.maximum(plan.num_replicas, 1.0)
    arriving = ~np.isnan(stream.request_rate)
    # A plan that has room for no request keeps its numbers.
    places = np.maximum(room.places, 1.0)
    requests = np.maximum(plan.num_requests / replicas, 1.0)
    active, ends = np.minimum(requests, places), ~np.isnan(stream.run_requests)
    rate, state = stream.request_rate / replicas, None
    if arriving.any():
        rows, most = np.flatnonzero(arriving), np.where(room.places >= 1.0, places, UNBOUNDED)
        every = Replicas(halves, demand, most)
        state = (every if len(rows) == len(rate) else every.take(rows)).at_rate(rate[rows]).placed(rows, len(rate))
        active = np.where(
            arriving, np.clip(np.ceil(np.where(np.isinf(state.running), 1.0, state.running)), 1.0, most), active
        )
    batch, prompts = np.ceil(active), np.floor(demand.prompts(active))
    # Only a run that ends needs a step with another batch.
    burst = np.maximum(np.minimum(batch, demand.most_prompts), 1.0)
    asked = [prompts, *([burst] if ends.any() else [])]
    # Capacity and times at a rate are known already.
    most = np.where(arriving, active, places)
    cycles, steps, passes = Replicas(halves, demand, most).cycles(
        np.stack([active, most]), [batch, np.where(ends, half_of(active), batch)], asked, True
    )
    cycle, full = (Cycle(*(values[at] for values in cycles)) for at in (0, 1))
    service = demand.service(active, cycle, np.where(ends, steps[1], cycle.step))
    steady, capacity = closed_state(service, requests, places), places / (demand.steps * full.step + full.prefills)
    if ends.any():
        share, one = demand.shared(active, burst, passes[1]), np.ones_like(burst)
        early = service._replace(prefill_time=passes[1], prefill_share=share, waiting_share=one)
        first = first_of_run(stream.run_requests / replicas, requests)
        together = staying_together(service.steps, stream.prefill_first, plan.output_variation)
        steady = run_state(closed_state(early, requests, places), steady, first, together, stream.run_requests)
    if state is not None:
        service, capacity = state.service(service, demand.stages), np.where(arriving, state.capacity, capacity)
        opened = service.open_state(rate, stream.prompt_variation, state.running, state.least_share)
        steady = Steady(*(np.where(arriving, *pair) for pair in zip(opened, steady, strict=True)))
    running = halves.step(batch)
    loaded = serving.with_batch(batch, prompts)
    results = batch_results(loaded.plan, room.with_batch(loaded.plan), passes[0], running.parts, running.bound)
    return Operation(service, steady, results, places, capacity, loaded, room, halves)


def loaded_results(serving: Serving, stream: Stream, operation: Operation) -> dict[str, Array]:
    """Results of continuous batching, as :func:`xlperf.equations.serving.serving_results` has them for a static batch.

    Parameters
    ----------
    serving : Serving
        Model, accelerators, plan, calibration, (rows,).
    stream : Stream
        Requests, (rows,).
    operation : Operation
        Their steady state, as :func:`operating` has it.

    Returns
    -------
    dict of str to Array
        Columns of inference_results, (rows,), with quantiles, queueing and running requests.
    """
    service, steady, places = operation.service, operation.steady, operation.places
    replicas, arriving = np.maximum(serving.plan.num_replicas, 1.0), ~np.isnan(stream.request_rate)
    best = np.where(arriving, operation.capacity, np.maximum(operation.capacity, steady.rate)) * replicas
    rate = steady.rate
    if not np.isnan(stream.run_requests).all():
        offered = np.maximum(serving.plan.num_requests / replicas, 1.0)
        of_run = run_rate(service, np.minimum(offered, places), stream.run_requests / replicas, rate)
        rate = np.where(arriving, rate, of_run)
    # With fewer requests than replicas the others are idle.
    busy = np.where(arriving, replicas, np.minimum(replicas, serving.plan.num_requests))
    one = np.ones_like(replicas)
    return streamed(serving.plan, stream, service, steady, operation.results, best, rate * busy, one, one)


def streamed(
    plan: InferencePlan,
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
    plan : InferencePlan
        With all accelerators of the deployment, (rows,).
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
    arriving = ~np.isnan(stream.request_rate)
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
        "prefill_share": service.prefill_share / (service.prefill_share + decoding),
    }
    varied = stream.prompt_variation, plan.output_variation
    sides = [side for side in (False, True) if (arriving == side).any()]
    spread = [
        spread_quantiles(service, steady, tokens, *varied, side, prefill_replicas, interrupting) for side in sides
    ]
    for name, *late in zip(("ttft", "tpot"), *spread, strict=True):
        values = late[0] if len(sides) == 1 else np.where(arriving[:, None], late[1], late[0])
        values = values if name == "ttft" else np.where(tokens[:, None] > 0.0, values, np.nan)
        found |= {f"{name}_{quantile}": values[:, index] for index, quantile in enumerate(QUANTILE_NAMES)}
    return found
