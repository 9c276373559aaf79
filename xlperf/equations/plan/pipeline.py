"""Pipeline schedules: how many layers a stage holds, what is in flight, how long it idles."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ceil_div


def stage_layers(num_layers: Numeric, pipeline_parallel: Numeric) -> Array:
    r"""Layers of the fullest stage, however many chunks it has.

    .. math:: l = \lceil L / p \rceil

    Chunks of a stage may differ in size (96 layers on 8 stages of 5 chunks: 3, 3, 2, 2, 2) where all stages have the
    same sizes in the same order: stages stay even.

    Parameters
    ----------
    num_layers : numeric
        Layers L of the model. [-]
    pipeline_parallel : numeric
        Stages p. [-]

    Returns
    -------
    layers : numeric
        Layers of the fullest stage. [-]

    References
    ----------
    .. [1] D. Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM",
       2021, arXiv:2104.04473, section 2.2.
    .. [2] NVIDIA, Megatron-LM, --pipeline-model-parallel-layout (layers of each chunk of each stage).

    Examples
    --------
    96 layers on 5 stages: 19.2 on average, 20 on the fullest.

    >>> float(stage_layers(96, 5))
    20.0
    """
    return np.asarray(ceil_div(num_layers, pipeline_parallel))


def last_stage_layers(num_layers: Numeric, pipeline_parallel: Numeric) -> Array:
    r"""Layers of the last stage, which also holds the output projection.

    Where the layers do not divide evenly the first and the last stage share what is missing.

    .. math:: l_{last} = \max(\lfloor L / p \rfloor, l - \lceil (p l - L) / 2 \rceil)

    Parameters
    ----------
    num_layers : numeric
        Layers L of the model. [-]
    pipeline_parallel : numeric
        Stages p. [-]

    Returns
    -------
    layers : numeric
        Layers of the last stage. [-]

    References
    ----------
    .. [1] A. Grattafiori et al., "The Llama 3 herd of models", 2024, arXiv:2407.21783, section 3.3.2 (one layer fewer
       on the first and the last stage).

    Examples
    --------
    Llama 3 405B: 126 layers on 16 stages of 8 miss two layers, one at each end.

    >>> float(last_stage_layers(126, 16))
    7.0
    """
    full = stage_layers(num_layers, pipeline_parallel)
    missing = array(pipeline_parallel) * full - array(num_layers)
    even = np.floor(array(num_layers) / array(pipeline_parallel))
    return np.asarray(np.maximum(even, full - np.ceil(missing / 2.0)))


def first_stage_layers(num_layers: Numeric, pipeline_parallel: Numeric) -> Array:
    r"""Layers of the first stage, which also holds the embedding.

    It gives up half of what is missing to full stages, rounded down; the last stage the other half.

    .. math:: l_{first} = \max(\lfloor L / p \rfloor, l - \lfloor (p l - L) / 2 \rfloor)

    Parameters
    ----------
    num_layers : numeric
        Layers L of the model. [-]
    pipeline_parallel : numeric
        Stages p. [-]

    Returns
    -------
    layers : numeric
        Layers of the first stage. [-]

    References
    ----------
    .. [1] A. Grattafiori et al., "The Llama 3 herd of models", 2024, arXiv:2407.21783, section 3.3.2 (one layer fewer
       on the first and the last stage).

    Examples
    --------
    Llama 3 405B: 126 layers on 16 stages of 8 miss two layers, one at each end.

    >>> float(first_stage_layers(126, 16))
    7.0
    """
    full = stage_layers(num_layers, pipeline_parallel)
    missing = array(pipeline_parallel) * full - array(num_layers)
    even = np.floor(array(num_layers) / array(pipeline_parallel))
    return np.asarray(np.maximum(even, full - np.floor(missing / 2.0)))


def layers_through_stage(work: Numeric, num_layers: Numeric) -> Array:
    r"""Layers of all stages up to one that takes layers in order until its share of the work is exceeded.

    .. math:: N = \min(\lfloor w \rfloor + 1, L)

    Parameters
    ----------
    work : numeric
        Work w of the stages up to this one if all had the same, the output projection included, in layers. [-]
    num_layers : numeric
        Layers L of the model. [-]

    Returns
    -------
    layers : numeric
        Layers up to the end of this stage. [-]

    References
    ----------
    .. [1] Hugging Face, nanotron, src/nanotron/models/base.py, build_model: a stage ends with the block that exceeds
       its threshold.

    Examples
    --------
    32 layers and an output head that counts as 2.4, on 3 stages: the twelfth layer exceeds a share of 11.47.

    >>> float(layers_through_stage(11.47, 32))
    12.0
    """
    return np.asarray(np.minimum(np.floor(array(work)) + 1.0, array(num_layers)))


def pipeline_bubble_time(micro_batch_time: Numeric, pipeline_parallel: Numeric, virtual_pipeline: Numeric) -> Array:
    r"""Idle time of a stage in one step: the pipeline fills and drains once.

    .. math:: t = \frac{p - 1}{v} t_{mb}

    Parameters
    ----------
    micro_batch_time : numeric
        Forward and backward of one micro-batch on one stage, all its chunks. [s]
    pipeline_parallel : numeric
        Stages p. [-]
    virtual_pipeline : numeric
        Chunks v per stage. [-]

    Returns
    -------
    time : numeric
        Idle time per step. [s]

    References
    ----------
    .. [1] D. Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM",
       2021, arXiv:2104.04473, section 2.2.

    Examples
    --------
    >>> float(pipeline_bubble_time(0.1, 8, 2))  # 7 / 2 x 0.1 s
    0.35
    """
    return np.asarray((array(pipeline_parallel) - 1.0) / array(virtual_pipeline) * array(micro_batch_time))


def in_flight_micro_batches(
    num_micro_batches: Numeric, pipeline_parallel: Numeric, virtual_pipeline: Numeric, gpipe: Numeric = 0.0
) -> Array:
    r"""Micro-batches whose activations the first stage keeps at the peak, in units of all its layers.

    .. math:: n = \min\left(m, p \left(1 + \frac{p - 1}{p v} [v > 1]\right)\right)

    The first stage starts a micro-batch for each stage before the first gradient comes back; interleaved it runs
    p (v - 1) + 2 (p - 1) + 1 forward passes of chunks ahead, of which p - 1 are beyond those of p micro-batches, each
    with 1 / v of its layers.

    Parameters
    ----------
    num_micro_batches : numeric
        Micro-batches m per step. [-]
    pipeline_parallel : numeric
        Stages p. [-]
    virtual_pipeline : numeric
        Chunks v per stage. [-]
    gpipe : numeric, default 0
        1 where all forward passes run first: then all m are kept. [-]

    Returns
    -------
    count : numeric
        Micro-batches in flight. [-]

    References
    ----------
    .. [1] V. Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022,
       arXiv:2205.05198, section 4.2.3.

    Examples
    --------
    One chunk: as many as stages; two chunks on 4 stages: 4 (1 + 3/8).

    >>> in_flight_micro_batches(32, 4, [1, 2]).tolist()
    [4.0, 5.5]
    """
    stages, chunks = array(pipeline_parallel), array(virtual_pipeline)
    batches, all_kept = array(num_micro_batches), array(gpipe)
    extra = (chunks > 1.0) * (stages - 1.0) / (stages * chunks)
    held = all_kept * batches + (1.0 - all_kept) * stages * (1.0 + extra)
    return np.asarray(np.minimum(batches, held))


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


def zero_bubble_time(
    forward_time: Numeric, backward_time: Numeric, weight_gradient_time: Numeric, pipeline_parallel: Numeric
) -> Array:
    r"""Idle time of a stage under ZB-H1: weight gradients fill the drain of the pipeline.

    .. math:: t = (p - 1) (F + B - W)

    Parameters
    ----------
    forward_time : numeric
        Forward pass F of one micro-batch on one stage. [s]
    backward_time : numeric
        Gradient B by the inputs, of one micro-batch on one stage. [s]
    weight_gradient_time : numeric
        Gradient W by the weights. [s]
    pipeline_parallel : numeric
        Stages p. [-]

    Returns
    -------
    time : numeric
        Idle time per step, at least 0. [s]

    References
    ----------
    .. [1] P. Qi et al., "Zero bubble pipeline parallelism", 2023, arXiv:2401.10241, table 1.

    Examples
    --------
    >>> float(zero_bubble_time(0.01, 0.01, 0.01, 4))  # 3 x (10 + 10 - 10) ms
    0.03
    """
    idle = array(forward_time) + array(backward_time) - array(weight_gradient_time)
    return np.asarray((array(pipeline_parallel) - 1.0) * np.maximum(idle, 0.0))


def dualpipe_bubble_time(
    overlapped_time: Numeric, backward_time: Numeric, weight_gradient_time: Numeric, pipeline_parallel: Numeric
) -> Array:
    r"""Idle time of a stage under DualPipe: two directions, forward and backward passes run together.

    .. math:: t = \left(\frac{p}{2} - 1\right) (F\&B + B - 3 W)

    Parameters
    ----------
    overlapped_time : numeric
        One forward and one full backward pass that run together, F&B. [s]
    backward_time : numeric
        Full backward pass B of one micro-batch on one stage. [s]
    weight_gradient_time : numeric
        Gradient W by the weights. [s]
    pipeline_parallel : numeric
        Stages p. [-]

    Returns
    -------
    time : numeric
        Idle time per step, at least 0. [s]

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V3 technical report", 2024, arXiv:2412.19437, table 2.

    Examples
    --------
    >>> float(dualpipe_bubble_time(0.03, 0.02, 0.01, 8))  # 3 x (30 + 20 - 3 x 10) ms
    0.06
    """
    idle = array(overlapped_time) + array(backward_time) - 3.0 * array(weight_gradient_time)
    return np.asarray(np.maximum(array(pipeline_parallel) / 2.0 - 1.0, 0.0) * np.maximum(idle, 0.0))
