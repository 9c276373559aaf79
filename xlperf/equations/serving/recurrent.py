"""Linear attention of a layer when it serves: a scan over the chunks of prompts, an update of states in a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, ceil_div
from xlperf.equations.hardware.device import Device
from xlperf.equations.hardware.kernels import linear_attention_time, vector_time
from xlperf.equations.model.linear import (
    CHUNK,
    STATE_SPACE_CHUNK,
    chunk_scan_flop,
    chunk_scan_traffic,
    convolution_state_size,
    recurrent_state_size,
    recurrent_step_flop,
    recurrent_step_traffic,
    state_space_scan_flop,
    state_space_scan_traffic,
)
from xlperf.equations.model.model import Model
from xlperf.equations.model.serving import linear_widths
from xlperf.equations.plan.serving_plan import InferencePlan


class LinearBatch(NamedTuple):
    """Sequences of one copy of the attention layers, (rows,).

    Attributes
    ----------
    prompts : Array
        Prompts that are prefilled together. [-]
    passes : Array
        Passes that their prefill takes. [-]
    sequences : Array
        Sequences that are decoded together. [-]
    """

    prompts: Array
    passes: Array
    sequences: Array


def state_size(model: Model, plan: InferencePlan) -> Array:
    """Bytes that a sequence keeps in one layer of linear attention on one rank, whatever its length.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    plan : InferencePlan
        Degrees, bytes of an activation, tokens drafted, (rows,).

    Returns
    -------
    Array
        State of the heads of the rank and last inputs of its convolution, once more for each drafted token. [B]

    References
    ----------
    .. [1] S. Yang, J. Kautz and A. Hatamizadeh, "Gated delta networks: improving Mamba2 with delta rule", 2024,
       arXiv:2412.06464, section 3.4.
    """
    keys, values, heads = linear_widths(model, plan.attention_parallel)
    state = recurrent_state_size(heads, model.linear_key_size, model.linear_value_size, model.linear_state_size)
    window = convolution_state_size(keys, values, model.linear_convolution, plan.activation_size)
    return np.asarray((1.0 + plan.draft_tokens) * (state + window))


def prefill_scan(
    model: Model,
    device: Device,
    plan: InferencePlan,
    batch: LinearBatch,
    kernels: Mapping[str, Mapping[str, Array]],
) -> tuple[Array, Array, Array]:
    """Linear attention of one layer in one pass of the prefill, on one rank.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    device : Device
        Accelerators, (rows, 1).
    plan : InferencePlan
        Lengths and degrees, (rows,).
    batch : LinearBatch
        Prompts and passes, (rows,). [-]
    kernels : mapping of str to mapping of str to Array
        Calibration constants (rows, 1) with the family linear_attention.

    Returns
    -------
    flop : Array
        Operations, (rows, 1). [FLOP]
    traffic : Array
        Bytes read and written, (rows, 1). [B]
    time : Array
        Time of the layer, (rows, 1). [s]
    """
    prompts = batch.prompts
    tokens = prompts * plan.own_tokens / batch.passes
    together = np.maximum(prompts / batch.passes, 1.0)
    heads = ceil_div(model.linear_value_heads, plan.attention_parallel)
    sizes = (model.linear_key_size, model.linear_value_size)
    flop = chunk_scan_flop(tokens, heads, *sizes)
    bytes_of = (plan.activation_size, model.linear_state_size)
    traffic = chunk_scan_traffic(tokens, together, heads, *sizes, *bytes_of)
    chunk = np.full_like(tokens, CHUNK)
    space = model.state_space > 0.0
    if np.any(space):
        groups = ceil_div(model.linear_key_heads, plan.attention_parallel)
        flop = np.where(space, state_space_scan_flop(tokens, heads, groups, *sizes), flop)
        other = state_space_scan_traffic(tokens, together, heads, groups, *sizes, *bytes_of)
        traffic, chunk = np.where(space, other, traffic), np.where(space, STATE_SPACE_CHUNK, chunk)
    chunks = ceil_div(np.minimum(plan.own_tokens, tokens), chunk)
    time = linear_attention_time(device, kernels["linear_attention"], traffic[:, None], flop[:, None], chunks[:, None])
    return flop[:, None], traffic[:, None], time


def decode_recurrence(
    model: Model,
    device: Device,
    plan: InferencePlan,
    batch: LinearBatch,
    kernels: Mapping[str, Mapping[str, Array]],
) -> tuple[Array, Array, Array]:
    """Linear attention of one layer in one step of decoding, on one rank: bound by the states that it moves.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    device : Device
        Accelerators, (rows, 1).
    plan : InferencePlan
        Tokens drafted and degrees, (rows,).
    batch : LinearBatch
        Sequences, (rows,). [-]
    kernels : mapping of str to mapping of str to Array
        Calibration constants (rows, 1) with the family vector.

    Returns
    -------
    flop : Array
        Operations, (rows, 1). [FLOP]
    traffic : Array
        Bytes read and written, (rows, 1). [B]
    time : Array
        Time of the layer, (rows, 1). [s]
    """
    each = 1.0 + plan.draft_tokens
    ranks = plan.attention_parallel
    heads, key_heads = ceil_div(model.linear_value_heads, ranks), ceil_div(model.linear_key_heads, ranks)
    sizes = (model.linear_key_size, model.linear_value_size)
    flop = recurrent_step_flop(batch.sequences * each, heads, *sizes)
    traffic = recurrent_step_traffic(
        batch.sequences, each, heads, key_heads, *sizes, plan.activation_size, model.linear_state_size
    )
    time = vector_time(device, kernels["vector"], traffic[:, None], flop[:, None])
    return flop[:, None], traffic[:, None], time
