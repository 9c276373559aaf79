"""What requests ask of a replica: steps, prompts of a pass of the prefill, and batches that fill whole tiles."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.arrays import Array, array
from xlperf.inference.arrivals import turn
from xlperf.inference.load import Service, step_line
from xlperf.inference.serving import Stream
from xlperf.parallel.serving_plan import InferencePlan

UNBOUNDED = 65536.0
"""Requests in flight at most where the memory has room for none and requests arrive: such a plan keeps its numbers. [-]"""
_TILE_ROWS = 64.0
"""Rows of a product up to which tiles of a few rows leave little padding. [-]"""


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
    decode_stages : Array
        Stages of the replica that decodes. [-]
    drafts : Array
        Tokens of a sequence in a step: 1 and those drafted. [-]
    """

    steps: Array
    tokens_per_step: Array
    most_prompts: Array
    stages: Array
    waiting_share: Array
    copies: Array
    polling_steps: Array
    gathering_steps: Array
    decode_stages: Array
    drafts: Array

    def take(self, rows: np.ndarray) -> Demand:
        """That of some of the plans."""
        return Demand(*(values[rows] for values in self))

    def prompts(self, requests: Array) -> Array:
        """Prompts batched into a pass of the prefill, mean: those that come until they are taken up, or in a burst. [-]"""
        window, _ = self._turn(requests)
        coming = requests * np.maximum(np.minimum(window / np.maximum(self.steps, 1.0), 1.0), self.waiting_share)
        return np.asarray(np.clip(coming, 1.0, self.most_prompts))

    def _turn(self, requests: Array) -> tuple[Array, Array]:
        return turn(self.copies, requests, self.steps, self.polling_steps, self.gathering_steps)

    def service(self, batch: Array, step: Array, half: Array, prefill: Array, prompts: Array) -> Service:
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
            Time of a pass of the prefill, mean. [s]
        prompts : Array
            Prompts of a pass, mean. [-]

        Returns
        -------
        Service
            Its times: a step is linear in the requests that it decodes.
        """
        per_token = step / self.tokens_per_step
        step = np.where(self.steps > 0.0, per_token * self.tokens_per_step, half)
        line, (_, wait) = step_line(batch, step, half_of(batch), half), self._turn(batch)
        share = self.shared(batch, prompts, prefill)
        return Service(prefill, share, *line, self.steps, self.waiting_share, wait, prompts)

    def shared(self, batch: Array, prompts: Array, prefill: Array) -> Array:
        """Time of the replica per prompt, where passes of the prefill follow each other through the stages. [s]"""
        passes = np.maximum(np.minimum(self.stages, batch / prompts), 1.0)
        return np.asarray(prefill / (prompts * passes))

    def unpadded(self, batch: Array) -> Array:
        """Largest smaller batch whose rows of the products are a power of two; the batch where it has few rows. [-]"""
        unit = self.copies * self.decode_stages
        rows = np.ceil(batch / unit) * self.drafts
        full = np.exp2(np.floor(np.log2(np.maximum(rows, 1.0))))
        fewer = np.floor(full / self.drafts) * unit
        return np.asarray(np.where((rows > _TILE_ROWS) & (fewer < batch), fewer, batch))


def split_passes(prompts: Array) -> tuple[Array, Array]:
    """Whole numbers of prompts on both sides of a mean; the same where it is whole.

    Parameters
    ----------
    prompts : Array
        Mean number of prompts of a pass. [-]

    Returns
    -------
    tuple of Array
        Prompts of the smaller and of the larger passes. [-]
    """
    fewer = np.floor(prompts)
    return fewer, np.where(prompts > fewer, fewer + 1.0, fewer)


def mean_pass(prompts: Array, smaller: Array, larger: Array) -> Array:
    """Mean time of passes of the prefill, some with a prompt more than the others.

    Parameters
    ----------
    prompts : Array
        Mean number of prompts of a pass. [-]
    smaller : Array
        Time of a pass with as many, rounded down. [s]
    larger : Array
        Time of a pass with one more. [s]

    Returns
    -------
    Array
        Between both. [s]
    """
    share = prompts - np.floor(prompts)
    return np.asarray(np.where(share > 0.0, (1.0 - share) * smaller + share * larger, smaller))


def unpadded_step(batch: Array, step: Array, fewer: Array, fewer_step: Array) -> Array:
    r"""Time of a step for which padding to whole tiles does not make a larger batch slower per request.

    With a batch just above whole tiles products compute almost a tile of padding. Requests are then served at least as
    fast where each step decodes only as many as fill whole tiles, in turn.

    .. math:: t(b) = \min\left(t_b, \frac{b}{b_2} t_{b_2}\right), \qquad b_2 \le b

    Parameters
    ----------
    batch : Array
        Requests b. [-]
    step : Array
        Time of a step that decodes all of them. [s]
    fewer : Array
        Requests b2 that fill whole tiles. [-]
    fewer_step : Array
        Time of a step with those. [s]

    Returns
    -------
    Array
        Time in which each request gains what a step yields. [s]
    """
    return np.asarray(np.where(fewer < batch, np.minimum(step, fewer_step * (batch / fewer)), step))


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
        plan.pipeline_parallel,
        1.0 + plan.draft_tokens,
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
