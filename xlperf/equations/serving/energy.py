"""Work of serving that power follows from: operations of a token, bytes of a decode step."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, divide
from xlperf.equations.model.model import Architecture, Model, activated_experts
from xlperf.equations.model.parameters import expert_parameters, matrix_parameters
from xlperf.equations.plan.serving_plan import InferencePlan


def token_flop(model: Model, context: Array) -> Array:
    r"""Operations of one token in a forward pass.

    .. math:: F = 2 N_a + 4 L h d\,s

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    context : Array
        Tokens s that it attends to, (rows,). [-]

    Returns
    -------
    Array
        Products with the active parameters N_a and attention of all layers, (rows,). [FLOP]

    References
    ----------
    .. [1] J. Kaplan et al., "Scaling laws for neural language models", 2020, arXiv:2001.08361, table 1.
    """
    attended = 4.0 * model.num_layers * model.num_attention_heads * model.head_size * context
    return np.asarray(2.0 * matrix_parameters(model, True) + attended)


def feed_forward_flop(model: Model) -> Array:
    r"""Operations of one token in the feed-forward layers of a forward pass: what expert pools compute.

    .. math:: F = 2 \left(L_m \left(k\,P_e + P_s\right) + L_d\,P_d\right)

    Parameters
    ----------
    model : Model
        Shapes: k experts of P_e weights, shared ones P_s in L_m layers, P_d in L_d dense ones, (rows,). [-]

    Returns
    -------
    Array
        (rows,). [FLOP]

    References
    ----------
    .. [1] J. Kaplan et al., "Scaling laws for neural language models", 2020, arXiv:2001.08361, table 1.
    """
    expert, shared, dense = (
        expert_parameters(width, size, model.gated_mlp)
        for width, size in (
            (model.expert_hidden_size, model.expert_ffn_hidden_size),
            (model.hidden_size, model.shared_ffn_hidden_size),
            (model.hidden_size, model.ffn_hidden_size),
        )
    )
    mixed = model.num_moe_layers * (model.top_k * expert + shared)
    return np.asarray(2.0 * (mixed + model.num_dense_layers * dense))


def visited_share(model: Model, batch: Array) -> Array:
    r"""Share of the routed experts that a decode step reads, expected.

    .. math:: s = \frac{E_{hit}}{E}

    Parameters
    ----------
    model : Model
        Experts, (rows,). [-]
    batch : Array
        Tokens of the step, (rows,). [-]

    Returns
    -------
    Array
        1 for dense models, (rows,). [-]

    References
    ----------
    .. [1] R. Zhu et al., "MegaScale-Infer: Serving mixture-of-experts at scale with disaggregated expert parallelism",
       2025, arXiv:2504.02263, section 2.3.
    """
    hit = activated_experts(model.num_experts, model.top_k, np.maximum(batch, 1.0))
    return np.where(model.num_experts > 0.0, divide(hit, model.num_experts), 1.0)


def decode_step_traffic(
    model: Model,
    plan: InferencePlan,
    architecture: Architecture,
    weights_size: Array,
    cache_size: Array,
    running_batch: Array,
) -> Array:
    r"""Bytes that an accelerator reads in a decode step: weights of the experts that are visited, and the cache.

    .. math:: T = W \frac{N_a + (N - N_a) \frac{E_{hit} - k}{E - k}}{N} + C \frac{s_p + s_o / 2}{s_p + s_o}

    Heuristic, this work.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    plan : InferencePlan
        Lengths, (rows,). [-]
    architecture : Architecture
        Structure that the models share.
    weights_size : Array
        Weights W on the accelerator, (rows,). [B]
    cache_size : Array
        Cache C of the batch at its longest on the accelerator, (rows,). [B]
    running_batch : Array
        Requests that decode together, (rows,). [-]

    Returns
    -------
    Array
        (rows,). [B]
    """
    mean = divide(plan.prompt_length + 0.5 * plan.output_length, plan.prompt_length + plan.output_length)
    read = weights_size
    if architecture.experts:
        whole, active = matrix_parameters(model, False), matrix_parameters(model, True)
        hit = activated_experts(model.num_experts, model.top_k, np.maximum(running_batch, 1.0))
        share = np.clip(divide(hit - model.top_k, model.num_experts - model.top_k), 0.0, 1.0)
        share = np.where(model.num_experts > 0.0, share, 1.0)
        read = weights_size * (active + (whole - active) * share) / whole
    return np.asarray(read + cache_size * mean)
