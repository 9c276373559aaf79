"""Results of replicas that serve a stream of requests: continuous batching."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.arrays import Array, array
from xlperf.inference.arrivals import turn
from xlperf.inference.halves import HalfPasses
from xlperf.inference.load import (
    Service,
    Steady,
    closed_state,
    spread_quantiles,
    step_line,
)
from xlperf.inference.results import Room, batch_results
from xlperf.inference.runs import first_of_run, run_rate, run_state, staying_together
from xlperf.inference.serving import Serving, Stream
from xlperf.parallel.serving_plan import InferencePlan

QUANTILE_NAMES = ("median", "ninetieth", "ninety_ninth")
MOST_OPEN = 256.0


class Demand(NamedTuple):
    """What requests ask of a replica, whatever its batch, (rows,).

    Attributes
    ----------
    steps : Array
        Steps of decoding that a request takes. [-]
    tokens_per_step : Array
        Tokens that a step yields. [-]
    most_prompts : Array
        Prompts that a pass of the prefill takes, 1 or more. [-]
    stages : Array
        Stages that prompts follow each other through. [-]
    waiting_share : Array
        Share of the requests in flight that come together. [-]
    copies : Array
        Copies of the attention layers. [-]
    polling_steps : Array
        Steps from one look at the requests that have come to the next. [-]
    gathering_steps : Array
        Steps that a prompt waits at most for prompts for the other copies. [-]
    """

    steps: Array
    tokens_per_step: Array
    most_prompts: Array
    stages: Array
    waiting_share: Array
    copies: Array
    polling_steps: Array
    gathering_steps: Array

    def take(self, rows: np.ndarray) -> Demand:
        """That of some of the plans."""
        return Demand(*(values[rows] for values in self))

    def prompts(self, requests: Array) -> Array:
        """Prompts that are prefilled together, whole: those that come until they are taken up, or in a burst. [-]"""
        window, _ = self._turn(requests)
        coming = requests * np.maximum(np.minimum(window / np.maximum(self.steps, 1.0), 1.0), self.waiting_share)
        return np.asarray(np.maximum(np.minimum(np.floor(coming), self.most_prompts), 1.0))

    def _turn(self, requests: Array) -> tuple[Array, Array]:
        return turn(self.copies, requests, self.steps, self.polling_steps, self.gathering_steps)

    def service(self, batch: Array, step: Array, half: Array, prefill: Array, share: Array) -> Service:
        """What a replica needs for a request, from its times with a batch.

        Parameters
        ----------
        batch : Array
            Requests that are decoded together. [-]
        step : Array
            Time of a step with them. [s]
        half : Array
            Time of a step with half of them, as :func:`half_of` has it. [s]
        prefill : Array
            Time of a prefill. [s]
        share : Array
            Time that a prompt takes of it. [s]

        Returns
        -------
        Service
            Its times: a step is linear in the requests that it decodes.
        """
        per_token = step / self.tokens_per_step
        step = np.where(self.steps > 0.0, per_token * self.tokens_per_step, half)
        line, (_, wait) = step_line(batch, step, half_of(batch), half), self._turn(batch)
        return Service(prefill, share, *line, self.steps, self.waiting_share, wait)

    def shared(self, batch: Array, prompts: Array, prefill: Array) -> Array:
        """Time that a prompt takes of a prefill, where prompts follow each other through the stages. [s]"""
        return np.asarray(prefill / (prompts * np.maximum(np.minimum(self.stages, batch), 1.0)))


def demand_of(plan: InferencePlan, prefilling: InferencePlan, stream: Stream) -> Demand:
    """What requests ask of the replicas of plans.

    Parameters
    ----------
    plan : InferencePlan
        Of the replicas that decode, (rows,).
    prefilling : InferencePlan
        Of those that prefill, (rows,).
    stream : Stream
        Requests, (rows,).

    Returns
    -------
    Demand
        Steps, prompts and stages, (rows,).
    """
    taken = np.maximum(np.floor(prefilling.prefill_tokens / prefilling.own_tokens), 1.0)
    return Demand(
        np.maximum(plan.output_length - 1.0, 0.0) / plan.tokens_per_step,
        plan.tokens_per_step,
        prefilling.attention_replicas * taken,
        prefilling.pipeline_parallel,
        stream.waiting_share,
        plan.attention_replicas,
        stream.polling_steps,
        stream.gathering_steps,
    )


def half_of(batch: Array) -> Array:
    r"""The smaller batch that the time of a step with one more request is found from.

    .. math:: b_2 = \max\left(\left\lfloor \frac{b}{2} \right\rfloor, 1\right)

    Parameters
    ----------
    batch : Array
        Requests, (rows,). [-]

    Returns
    -------
    Array
        Half of them, whole, 1 or more, (rows,). [-]
    """
    return np.asarray(np.maximum(np.floor(0.5 * array(batch)), 1.0))


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
    filled : Service
        Times of a replica that decodes as many.
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
    filled: Service
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
    places, limit = np.maximum(room.places, 1.0), np.where(room.places >= 1.0, room.places, np.inf)
    requests = np.maximum(plan.num_requests / replicas, 1.0)
    active = np.minimum(np.ceil(requests), places)
    rate = stream.request_rate / replicas
    if arriving.any():
        guess = np.where(arriving, np.minimum(places, MOST_OPEN), active)
        prompts = demand.prompts(guess)
        (step, half), (prefill,) = halves.times(np.stack([guess, half_of(guess)]), prompts[None])
        service = demand.service(guess, step, half, prefill, demand.shared(guess, prompts, prefill))
        found = service.open_state(np.where(arriving, rate, 0.0), stream.prompt_variation, limit).running
        found = np.where(np.isfinite(found), np.ceil(found), places)
        active = np.where(arriving, np.clip(found, 2.0, np.maximum(places, 2.0)), active)
    prompts, most = demand.prompts(active), demand.prompts(places)
    batches = np.stack([active, half_of(active), places])
    ends = not np.isnan(stream.run_requests).all()
    burst = np.maximum(np.minimum(active, demand.most_prompts), 1.0)
    asked = [prompts, most, burst] if ends else [prompts, most]
    (step, half, full), (prefill, filling, *bursting) = halves.times(batches, np.stack(asked), detailed=True)
    service = demand.service(active, step, half, prefill, demand.shared(active, prompts, prefill))
    steady = closed_state(service, requests, places)
    for whole in bursting:
        share, one = demand.shared(active, burst, whole), np.ones_like(whole)
        early = service._replace(prefill_time=whole, prefill_share=share, waiting_share=one)
        first = first_of_run(stream.run_requests / replicas, requests)
        together = staying_together(service.steps, stream.prefill_first, plan.output_variation)
        steady = run_state(closed_state(early, requests, places), steady, first, together, stream.run_requests)
    if arriving.any():
        opened = service.open_state(rate, stream.prompt_variation, limit)
        steady = Steady(*(np.where(arriving, *pair) for pair in zip(opened, steady, strict=True)))
    filled = service._replace(
        prefill_time=filling,
        prefill_share=demand.shared(places, most, filling),
        step_base=full,
        step_slope=0.0 * full,
    )
    running = halves.step(active)
    loaded = serving.with_batch(active, prompts)
    results = batch_results(loaded.plan, room.with_batch(loaded.plan), prefill, running.parts, running.bound)
    return Operation(service, steady, results, places, filled, loaded, room, halves)


def loaded_results(serving: Serving, stream: Stream, operation: Operation) -> dict[str, Array]:
    """Results of continuous batching, as :func:`xlperf.inference.serving_results` has them for a static batch.

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
    replicas = np.maximum(serving.plan.num_replicas, 1.0)
    best = np.maximum(closed_state(operation.filled, places, places).rate, steady.rate) * replicas
    rate = steady.rate
    if not np.isnan(stream.run_requests).all():
        offered = np.maximum(serving.plan.num_requests / replicas, 1.0)
        rate = run_rate(service, np.minimum(offered, places), stream.run_requests / replicas, rate)
    one = np.ones_like(replicas)
    return streamed(serving.plan, stream, service, steady, operation.results, best, rate * replicas, one, one)


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
