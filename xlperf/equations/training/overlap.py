"""Exposed communication of a training step: what computation does not hide, and what waits for the host."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, power, side_by_side, some
from xlperf.equations.plan.records import TensorOverlap
from xlperf.equations.training.communication import Communication
from xlperf.equations.training.setting import Setting

_ROOM = 0.94
"""Share of the memory beyond which an allocator finds no room: the rest is of buffers of communication. [-]"""


_CERTAINTY = 40.0
"""Steepness of the chance that an allocator finds no room: 1.7 over the error of 4 % of what it holds. [-]"""


def tensor_times(setting: Setting, communication: Communication) -> Array:
    """Exposed tensor-parallel communication of one block, forward and backward.

    With sequence parallelism the backward pass gathers twice: the gradients of the output, and the input of which only
    the shard was kept (arXiv:2205.05198, section 4.2.2). Where nothing but gradients overlaps, that of the input runs
    beside the gradients of the inputs and the reduction beside those of the weights; the gather of the gradients of
    the output is exposed.

    Parameters
    ----------
    setting : Setting
        Plan and calibration. [-]
    communication : Communication
        Collectives, (rows,). [s]

    Returns
    -------
    Array
        Exposed time, forward and backward, (rows, 2). [s]

    Examples
    --------
    A gather of 1 s and a scatter of 2 s, not overlapped: backward one more gather.

    >>> from types import SimpleNamespace
    >>> plan = SimpleNamespace(sequence_parallel=np.ones(1), tensor_overlap=np.array([TensorOverlap.NONE]))
    >>> constants = {"training_software": {"tensor_parallel_overlap": np.array([[0.5]])}}
    >>> gather, scatter = (SimpleNamespace(time=np.array([time])) for time in (1.0, 2.0))
    >>> found = SimpleNamespace(tensor_gather=gather, tensor_scatter=scatter, tensor_reduce=gather)
    >>> tensor_times(SimpleNamespace(plan=plan, constants=constants), found).tolist()
    [[3.0, 4.0]]
    """
    plan = setting.plan
    split = plan.sequence_parallel > 0
    gather, scatter = communication.tensor_gather.time, communication.tensor_scatter.time
    time = np.where(split, gather + scatter, communication.tensor_reduce.time)
    hidden = setting.constants["training_software"]["tensor_parallel_overlap"][:, 0]
    forward = time * (1.0 - np.where(plan.tensor_overlap == TensorOverlap.ALL, hidden, 0.0))
    again = np.where(split, gather, 0.0)
    beside = np.where(split & (plan.tensor_overlap != TensorOverlap.ALL), again + scatter, time + again)
    return side_by_side(
        forward, time + again - np.where(plan.tensor_overlap != TensorOverlap.NONE, hidden, 0.0) * beside
    )


def context_time(setting: Setting, communication: Communication, forward_core: Array, backward_core: Array) -> Array:
    """Exposed context-parallel communication of one attention block, forward and backward.

    A ring hides each exchange behind the attention of the block that is already there; gathering and Ulysses'
    exchanges are exposed. The backward pass moves keys, values and their gradients.

    Parameters
    ----------
    setting : Setting
        Plan, (rows,). [-]
    communication : Communication
        Collectives, (rows,). [s]
    forward_core : Array
        Attention proper of one layer forward, (rows,). [s]
    backward_core : Array
        The same backward, (rows,). [s]

    Returns
    -------
    Array
        Exposed time, forward and backward, (rows, 2). [s]

    Examples
    --------
    A ring of four, blocks under way for 1 s: 2 / 4 s of attention hide half of that, backward 4 / 4 s half of 2 s.

    >>> from types import SimpleNamespace
    >>> setting = SimpleNamespace(plan=SimpleNamespace(context_parallel=np.array([4.0])))
    >>> step, none = SimpleNamespace(time=np.ones(1)), SimpleNamespace(time=np.zeros(1))
    >>> found = SimpleNamespace(context_step=step, context_gather=none, context_exchange=none)
    >>> context_time(setting, found, np.array([2.0]), np.array([4.0])).tolist()
    [[1.5, 3.0]]
    """
    plan = setting.plan
    size = plan.context_parallel
    step = communication.context_step.time
    steps = size - 1.0
    ring = side_by_side(
        steps * np.maximum(step - forward_core / size, 0.0), steps * np.maximum(2.0 * step - backward_core / size, 0.0)
    )
    waited = communication.context_exchange.time
    gathered = communication.context_gather.time
    ring[:, 0] += gathered + waited
    ring[:, 1] += 2.0 * gathered + waited
    return ring


def waits_of_calls(setting: Setting, layers: Array, reserved: Array) -> Array | float:
    r"""Exposed host time of a step: collectives called tensor by tensor, and retries of an allocator without room.

    .. math:: t = L\,(n_{shards} t_{shard} + n_{replicas} t_{reduction}) + \frac{m\,t_{retry}}{1 + (0.94 M / R)^{k}}

    With ZeRO 1 and 2 slices of tensors are handed to collectives one by one; where nothing is sharded, gradients may
    be added up tensor by tensor in rings. Where the allocator holds all that buffers of communication leave, it gives
    its cache back to the driver and asks for it again in each of the m micro-batches. What it holds is known to some
    4 % (k = 40): the time is the expected one. Heuristic, this work.

    Parameters
    ----------
    setting : Setting
        Plan, device and calibration. [-]
    layers : Array
        Layers of a stage, (rows,). [-]
    reserved : Array
        What the allocator holds, (rows,). [B]

    Returns
    -------
    Array or float
        (rows,). [s]

    Examples
    --------
    Ten layers with slices for eight shards at 1 ms each, and an allocator with room:

    >>> from types import SimpleNamespace
    >>> counts = {"zero_stage": 1, "zero_shards": 8.0, "shards": 8.0, "num_micro_batches": 4.0}
    >>> plan = SimpleNamespace(**{name: np.array([count]) for name, count in counts.items()})
    >>> times = {"reduction_time": np.zeros((1, 1)), "retry_time": np.zeros((1, 1))}
    >>> constants = {"training_calls": times, "training_software": {"shard_overhead_time": np.array([[0.001]])}}
    >>> device = SimpleNamespace(memory_capacity=np.array([[100.0]]))
    >>> setting = SimpleNamespace(plan=plan, constants=constants, device=device)
    >>> waits_of_calls(setting, np.array([10.0]), np.array([50.0])).tolist()
    [0.08]
    """
    plan, calls = setting.plan, setting.constants["training_calls"]
    shard = setting.constants["training_software"]["shard_overhead_time"][:, 0]
    reduction, retry = calls["reduction_time"][:, 0], calls["retry_time"][:, 0]
    if not some(shard + reduction + retry):
        return 0.0
    between = (plan.zero_stage > 0) & (plan.zero_stage < 3) & (plan.zero_shards > 1)
    apart = (plan.zero_stage < 1) & (plan.shards > 1)
    filled = power(np.minimum(reserved / (_ROOM * setting.device.memory_capacity[:, 0]), 2.0), _CERTAINTY)
    full = filled / (1.0 + filled)
    handed = np.where(between, plan.zero_shards * shard, 0.0) + np.where(apart, plan.shards * reduction, 0.0)
    retried = np.where(np.isnan(reserved), reserved, plan.num_micro_batches * retry * full)
    return np.asarray(layers * handed + retried)


def exposed_transfer_time(
    transfer_time: Numeric,
    forward_time: Numeric,
    backward_time: Numeric,
    num_micro_batches: Numeric,
    pipeline_parallel: Numeric,
    virtual_pipeline: Numeric,
    overlapped: Numeric,
) -> Array:
    r"""Time in which a stage waits for transfers from and to its neighbours in one step, the bubble excluded.

    A stage sends m v activations and m v gradients. Batched sends and receives (1F1B) are all exposed. Where they are
    overlapped, a send of activations runs beside the backward pass of another chunk and a send of gradients beside a
    forward pass; those of the warm-up and the cool-down, which have passes of one direction only, stay exposed.

    .. math::

        t = 2 w \tau + (m v - w) \left(\max\left(\tau - \frac{F}{v}, 0\right)
        + \max\left(\tau - \frac{B}{v}, 0\right)\right), \quad w = \min((v - 1) p, m v)

    and :math:`t = 2 m v \tau` without overlap.

    Parameters
    ----------
    transfer_time : numeric
        One transfer tau between neighbouring stages. [s]
    forward_time : numeric
        Forward pass F of one micro-batch on one stage, all its chunks. [s]
    backward_time : numeric
        Backward pass B of one micro-batch on one stage, all its chunks. [s]
    num_micro_batches : numeric
        Micro-batches m per step. [-]
    pipeline_parallel : numeric
        Stages p; 1 has no transfers. [-]
    virtual_pipeline : numeric
        Chunks v per stage. [-]
    overlapped : numeric
        1 where transfers run beside the computation of the steady state, 0 where none does. [-]

    Returns
    -------
    time : numeric
        Exposed transfers per step. [s]

    References
    ----------
    .. [1] D. Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM",
       2021, arXiv:2104.04473, section 2.2 (interleaving multiplies the transfers by v; warm-up of the schedule).
    .. [2] NVIDIA, Megatron-LM, megatron/core/pipeline_parallel/schedules.py, get_pp_rank_microbatches and
       forward_backward_pipelining_with_interleaving (overlap_p2p_comm).

    Examples
    --------
    Transfers of 1 ms, 8 micro-batches: all 16 with 1F1B; with two overlapped chunks on 4 stages those of the warm-up.

    >>> exposed_transfer_time(1e-3, 0.01, 0.02, 8, 4, [1, 2], [0, 1]).tolist()
    [0.016, 0.008]
    """
    each, stages, chunks = array(transfer_time), array(pipeline_parallel), array(virtual_pipeline)
    count = array(num_micro_batches) * chunks
    warm_up = np.minimum((chunks - 1.0) * stages, count)
    left = np.maximum(each - array(forward_time) / chunks, 0.0) + np.maximum(each - array(backward_time) / chunks, 0.0)
    share = array(overlapped)
    waited = share * (2.0 * warm_up * each + (count - warm_up) * left) + (1.0 - share) * 2.0 * count * each
    return np.asarray(np.where(stages > 1.0, waited, 0.0 * waited))
