"""Kernels of a training step: one layer, the embedding and the head, for one micro-batch."""

from __future__ import annotations

import numpy as np

from xlperf.arrays import Array, ceil_div
from xlperf.hardware.kernels import attention_backward_time, attention_time, gemm_time, vector_time
from xlperf.training.setting import MASK, WORD, Part, Setting, columns
from xlperf.workload.operators import (
    Gemms,
    attention_gemms,
    backward_gemms,
    backward_vectors,
    cast_traffic,
    forward_vectors,
    layer_gemms,
    logits_gemm,
)


def kernel_parts(setting: Setting) -> list[Part]:
    """Kernels of one layer, of the embedding and of the head, for one micro-batch.

    Parameters
    ----------
    setting : Setting
        Model, device, plan and calibration. [-]

    Returns
    -------
    list of Part
        Calls per pass and seconds per call, (rows, operators). [s]
    """
    model, plan, constants = setting.model, setting.plan, setting.constants
    tokens, tensor = plan.tokens, plan.tensor_parallel
    element, product = plan.element_size[:, None], plan.product_size[:, None]
    ones = np.ones_like(tokens)[:, None]
    flash = plan.flash_attention[:, None]

    forward = layer_gemms(model, tokens, tensor)
    backward = backward_gemms(forward)
    count = len(forward.names)
    linear = Gemms(
        forward.names + backward.names,
        *(np.concatenate(pair, axis=-1) for pair in zip(forward[1:], backward[1:], strict=True)),
    )
    output = np.concatenate(
        [np.broadcast_to(element, (len(tokens), 2 * count)), np.repeat(2.0 * plan.gradient_size[:, None], count, 1)], 1
    )
    time = gemm_time(setting.device, constants["gemm"], linear.m, linear.n, linear.k, linear.batch, product, output)
    calls = np.ones_like(time)

    head = logits_gemm(model, tokens, tensor)
    head_backward = backward_gemms(head)
    scores = attention_gemms(model, plan.micro_batch_size, plan.sequence_length, tensor)
    scores_backward = backward_gemms(scores)
    wide = Gemms(
        head.names + head_backward.names + scores.names + scores_backward.names,
        *(
            np.concatenate(parts, axis=-1)
            for parts in zip(head[1:], head_backward[1:], scores[1:], scores_backward[1:], strict=True)
        ),
    )
    wide_time = gemm_time(
        setting.wide_device, constants["gemm_wide"], wide.m, wide.n, wide.k, wide.batch, element, element
    )
    standard = np.broadcast_to(1.0 - flash, (len(tokens), 2))

    heads = ceil_div(model.num_attention_heads, tensor)[:, None]
    groups = ceil_div(model.num_query_groups, tensor)[:, None]
    length = plan.sequence_length[:, None]
    shape = (plan.micro_batch_size[:, None], heads, groups, length, length, model.head_size[:, None], ones, element)
    fused = attention_time(setting.wide_device, constants["attention"], *shape)
    fused_backward = attention_backward_time(setting.wide_device, constants["attention_backward"], *shape)
    fused_gemms = Gemms(("flash attention",), length * ones, length * ones, model.head_size[:, None], shape[0] * heads)

    kept = (1.0 - plan.flash_attention) * plan.micro_batch_size * heads[:, 0] * plan.sequence_length**2
    arguments = (model, tokens, kept, tensor, plan.sequence_parallel, plan.element_size, MASK)
    vectors, gradients = forward_vectors(*arguments), backward_vectors(*arguments)
    cast = cast_traffic(forward, plan.product_size, plan.element_size)
    cast_backward = cast_traffic(Gemms(forward.names, forward.m, forward.k, forward.n, forward.batch),
                                 plan.product_size, plan.element_size)  # fmt: skip
    vocab = tokens * ceil_div(model.vocab_size, tensor)
    stream = tokens * model.hidden_size
    extra = columns(
        cast,
        cast_backward,
        2.0 * stream * plan.element_size,
        vocab * (plan.element_size + 5.0 * WORD),
        vocab * (3.0 * WORD + plan.element_size),
    )
    traffic = np.concatenate([vectors.traffic, gradients.traffic, extra], axis=-1)
    calls_per_pass = np.array([2.0, 2.0] + [1.0] * 4 + [2.0, 2.0] + [1.0] * 5 + [4.0, 4.0] + [1.0] * 3)
    vector_calls = np.where(traffic > 0.0, calls_per_pass, 0.0)
    one_call = traffic / calls_per_pass
    vector = vector_time(setting.device, constants["vector"], one_call, 0.0)
    first, second = len(vectors.names), len(vectors.names) + len(gradients.names)

    def gemm_part(phase: str, place: str, gemms: Gemms, times: Array, calls_: Array, start: int, stop: int) -> Part:
        columns = slice(start, stop)
        cut = Gemms(gemms.names[columns], *(values[:, columns] for values in gemms[1:]))
        return Part(phase, "gemm", cut.names, place, calls_[:, columns], times[:, columns], cut)

    def vector_part(phase: str, place: str, names: tuple[str, ...], start: int) -> Part:
        columns = slice(start, start + len(names))
        return Part(
            phase, "vector", names, place, vector_calls[:, columns], vector[:, columns], None, one_call[:, columns]
        )

    everywhere = np.ones_like(wide_time)
    both = np.concatenate([everywhere[:, :3], standard, standard, standard], axis=-1)
    core = "attention"
    return [
        gemm_part("forward", "layer", linear, time, calls, 0, count),
        gemm_part("backward", "layer", linear, time, calls, count, 3 * count),
        gemm_part("forward", core, wide, wide_time, both, 3, 5),
        gemm_part("backward", "layer", wide, wide_time, both, 5, 9),
        Part("forward", "attention", ("flash attention",), core, flash, fused, fused_gemms),
        Part(
            "backward", "attention_backward", ("flash attention gradient",), "layer", flash, fused_backward, fused_gemms
        ),
        vector_part("forward", "layer", vectors.names[:4], 0),
        vector_part("forward", core, vectors.names[4:], 4),
        vector_part("backward", "layer", gradients.names, first),
        vector_part("forward", "layer", ("casts",), second),
        vector_part("backward", "layer", ("casts of gradients",), second + 1),
        gemm_part("forward", "head", wide, wide_time, both, 0, 1),
        gemm_part("backward", "head", wide, wide_time, both, 1, 3),
        vector_part("forward", "embedding", ("embedding",), second + 2),
        vector_part("forward", "head", ("cross-entropy",), second + 3),
        vector_part("backward", "head", ("cross-entropy gradient",), second + 4),
    ]


def phase_time(parts: list[Part], phase: str, *places: str) -> Array:
    """Time of the parts of one phase at some places, one pass.

    Parameters
    ----------
    parts : list of Part
        Kernels. [-]
    phase : str
        forward or backward. [-]
    *places : str
        layer, attention, embedding or head. [-]

    Returns
    -------
    Array
        Sum over the operators, (rows,). [s]
    """
    return np.asarray(sum(part.total_time for part in parts if part.phase == phase and part.place in places))
