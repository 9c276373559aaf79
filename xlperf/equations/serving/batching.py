"""How the batch of a replica is cut: parts for the stages, passes of the prefill, halves that are sent to experts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array
from xlperf.equations.model.serving import ServingShape
from xlperf.equations.plan.serving_plan import InferencePlan


class Batching(NamedTuple):
    """How the batch of a replica is cut, (rows,).

    Attributes
    ----------
    micro_batches : Array
        Parts that follow each other through the stages. [-]
    rounds : Array
        Parts that are prefilled one after the other. [-]
    prompts : Array
        Sequences that are prefilled, of all parts. [-]
    own_prompts : Array
        Of those, the ones of the busiest copy of the attention layers in each part. [-]
    passes : Array
        Passes that their prefill takes: as many as fill them, one for each part at least. [-]
    sequences : Array
        Sequences of one part that are decoded together. [-]
    prefill_halves : Array
        2 where passes are halves of one, of which one computes while the other is sent to experts, else 1. [-]
    decode_halves : Array
        The same of the sequences of a step. [-]
    """

    micro_batches: Array
    rounds: Array
    prompts: Array
    own_prompts: Array
    passes: Array
    sequences: Array
    prefill_halves: Array
    decode_halves: Array


def batching_of(plan: InferencePlan) -> Batching:
    """Passes of the prefill and parts of a step of decoding: the whole batch is prefilled unless a plan says how many.

    Parameters
    ----------
    plan : InferencePlan
        Degrees, lengths, batch, (rows,).

    Returns
    -------
    Batching
        How its batch is cut, (rows,). [-]
    """
    apart = plan.prompts_together > 0.0
    prompts = np.where(apart, plan.prompts_together, plan.batch_size)
    rounds = np.where(apart, 1.0, plan.num_micro_batches)
    # Parts that do not divide the batch have one prompt more or less.
    replicas, fewest = plan.data_parallel_attention, np.floor(prompts / rounds)
    fuller = prompts - rounds * fewest
    own = fuller * np.ceil((fewest + 1.0) / replicas) + (rounds - fuller) * np.ceil(fewest / replicas)
    passes = np.maximum(np.ceil(own * plan.own_tokens / plan.prefill_tokens), rounds)
    if not np.any(plan.two_batch_overlap > 0.0):
        one = np.ones_like(passes)
        return Batching(plan.num_micro_batches, rounds, prompts, own, passes, plan.micro_batch_size, one, one)
    # A token or a sequence cannot be cut in two.
    cut = (plan.two_batch_overlap > 0.0) & (replicas > 1.0)
    halves = np.where(cut & (plan.own_tokens * prompts >= 2.0 * rounds * replicas), 2.0, 1.0)
    parts = np.where(cut & (plan.micro_batch_size >= 2.0 * replicas), 2.0, 1.0)
    sequences = np.ceil(plan.micro_batch_size / parts)
    return Batching(plan.num_micro_batches, rounds, prompts, own, passes * halves, sequences, halves, parts)


def serving_shape(plan: InferencePlan, batching: Batching, favoured_share: Array) -> ServingShape:
    """Tokens of a pass of the prefill and of a step of decoding on one rank.

    Parameters
    ----------
    plan : InferencePlan
        Degrees and lengths, (rows,).
    batching : Batching
        How its batch is split, (rows,). [-]
    favoured_share : Array
        Share of the experts that routers prefer, (rows,). [-]

    Returns
    -------
    ServingShape
        Tokens, and how the model is split, (rows,). [-]
    """
    prompts, drafted = batching.own_prompts, 1.0 + plan.draft_tokens
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
        favoured_share=favoured_share,
    )
