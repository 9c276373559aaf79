"""Memory of a training rank, part by part."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array


def weights_size(num_parameters: Numeric, element_size: Numeric, num_shards: Numeric = 1.0) -> Array:
    r"""Bytes of weights, gradients or optimizer state of a rank.

    .. math:: S = P e / n

    Parameters
    ----------
    num_parameters : numeric
        Parameters P of the rank before sharding over replicas. [-]
    element_size : numeric
        Bytes e per parameter. [B]
    num_shards : numeric, default 1
        Replicas n that share them. [-]

    Returns
    -------
    size : numeric
        Bytes of one rank. [B]

    References
    ----------
    .. [1] S. Rajbhandari et al., "ZeRO: Memory optimizations toward training trillion parameter models", 2019,
       arXiv:1910.02054, section 3.
    """
    return np.asarray(array(num_parameters) * array(element_size) / array(num_shards))


def optimizer_element_size(
    adam: Numeric, element_size: Numeric, word_size: Numeric, moment_size: Numeric, master_size: Numeric
) -> Array:
    r"""Bytes of optimizer state per parameter: moments, and master weights beside narrower ones.

    .. math:: e_o = (1 + \alpha) e_m + [e < w] e_w

    Parameters
    ----------
    adam : numeric
        Alpha: 1 for two moments (Adam), 0 for one (SGD with momentum). [-]
    element_size : numeric
        Bytes e of a weight; where it is below a word something of the master weights is kept beside it. [B]
    word_size : numeric
        Bytes w of a full word, 4 for FP32. [B]
    moment_size : numeric
        Bytes e_m of an element of a moment. [B]
    master_size : numeric
        Bytes e_w of what is kept beside a narrow weight: 4 a copy in FP32, 2 the bits that it lacks, 0 nothing. [B]

    Returns
    -------
    size : numeric
        Bytes per parameter. [B]

    References
    ----------
    .. [1] P. Micikevicius et al., "Mixed precision training", 2017, arXiv:1710.03740.
    .. [2] DeepSeek-AI, "DeepSeek-V3 technical report", 2024, arXiv:2412.19437, section 3.3.3 (moments in BF16).
    """
    word, weight = array(word_size), array(element_size)
    narrow = np.where(np.isnan(weight + word), np.nan, weight < word)
    return np.asarray((1.0 + array(adam)) * array(moment_size) + narrow * array(master_size))


def attention_activation_size(
    tokens: Numeric,
    hidden_size: Numeric,
    projected_size: Numeric,
    attention_size: Numeric,
    score_elements: Numeric,
    dropout: Numeric,
    tensor_parallel: Numeric,
    sequence_parallel: Numeric,
    element_size: Numeric,
    mask_size: Numeric,
) -> Array:
    r"""Activations that one attention block keeps for its backward pass.

    .. math::

        S = e n \left(\frac{2 h}{t_s} + \frac{w + o}{t}\right) + \delta \mu \frac{n h}{t_s}
        + (e (1 + \delta) + \delta \mu) A

    With w = 3 h, o = h, e = 2, mu = 1, dropout, standard attention and one rank: 11 s b h + 5 a s^2 b + 2 s b h.

    Parameters
    ----------
    tokens : numeric
        Tokens n of a micro-batch. [-]
    hidden_size : numeric
        Width h of the residual stream. [-]
    projected_size : numeric
        Width w of queries, keys and values together. [-]
    attention_size : numeric
        Width o of the output of the attention. [-]
    score_elements : numeric
        Attention scores A that the rank keeps; 0 with flash attention. [-]
    dropout : numeric
        Delta: 1 where dropout is applied and its masks are kept. [-]
    tensor_parallel : numeric
        Ranks t that share each matrix. [-]
    sequence_parallel : numeric
        1 where norms and residuals are split over them too: t_s is then t, else 1. [-]
    element_size : numeric
        Bytes e of an activation. [B]
    mask_size : numeric
        Bytes mu of an element of a dropout mask. [B]

    Returns
    -------
    size : numeric
        Bytes of one block and micro-batch. [B]

    References
    ----------
    .. [1] V. Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022,
       arXiv:2205.05198, section 4.1 and equations 1 to 4.
    """
    split = array(tensor_parallel)
    shared = 1.0 + (split - 1.0) * array(sequence_parallel)
    element, count, hidden = array(element_size), array(tokens), array(hidden_size)
    mask = array(dropout) * array(mask_size)
    inner = (array(projected_size) + array(attention_size)) / split
    kept = element * count * (2.0 * hidden / shared + inner) + mask * count * hidden / shared
    return np.asarray(kept + (element * (1.0 + array(dropout)) + mask) * array(score_elements))


def mlp_activation_size(
    tokens: Numeric,
    hidden_size: Numeric,
    ffn_hidden_size: Numeric,
    gated_mlp: Numeric,
    dropout: Numeric,
    tensor_parallel: Numeric,
    sequence_parallel: Numeric,
    element_size: Numeric,
    mask_size: Numeric,
) -> Array:
    r"""Activations that one dense feed-forward block keeps for its backward pass.

    .. math:: S = e n \left(\frac{2 h}{t_s} + \frac{(2 + \gamma) f}{t}\right) + \delta \mu \frac{n h}{t_s}

    With f = 4 h, e = 2, mu = 1, dropout, no gate and one rank: 19 s b h + 2 s b h.

    Parameters
    ----------
    tokens : numeric
        Tokens n of a micro-batch. [-]
    hidden_size : numeric
        Width h of the residual stream. [-]
    ffn_hidden_size : numeric
        Width f of the feed-forward layer. [-]
    gated_mlp : numeric
        Gamma: 1 with a gate matrix. [-]
    dropout : numeric
        Delta: 1 where dropout is applied and its mask is kept. [-]
    tensor_parallel : numeric
        Ranks t that share each matrix. [-]
    sequence_parallel : numeric
        1 where norms and residuals are split over them too: t_s is then t, else 1. [-]
    element_size : numeric
        Bytes e of an activation. [B]
    mask_size : numeric
        Bytes mu of an element of a dropout mask. [B]

    Returns
    -------
    size : numeric
        Bytes of one block and micro-batch. [B]

    References
    ----------
    .. [1] V. Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022,
       arXiv:2205.05198, section 4.1 and equations 1 to 4.
    """
    split = array(tensor_parallel)
    shared = 1.0 + (split - 1.0) * array(sequence_parallel)
    element, count, hidden = array(element_size), array(tokens), array(hidden_size)
    inner = (2.0 + array(gated_mlp)) * array(ffn_hidden_size) / split
    mask = array(dropout) * array(mask_size)
    return np.asarray(element * count * (2.0 * hidden / shared + inner) + mask * count * hidden / shared)


def expert_activation_size(
    received_tokens: Numeric,
    hidden_size: Numeric,
    ffn_hidden_size: Numeric,
    gated_mlp: Numeric,
    element_size: Numeric,
) -> Array:
    r"""Activations that the routed experts of one rank keep for the backward pass of a layer.

    .. math:: S = e n \left(h + (2 + \gamma) f\right)

    Router probabilities are applied inside the experts, so that what comes back to the sender need not be kept.

    Parameters
    ----------
    received_tokens : numeric
        Copies n of tokens that its experts see. [-]
    hidden_size : numeric
        Width h of the residual stream. [-]
    ffn_hidden_size : numeric
        Width f of an expert on the rank. [-]
    gated_mlp : numeric
        Gamma: 1 with a gate matrix. [-]
    element_size : numeric
        Bytes e of an activation. [B]

    Returns
    -------
    size : numeric
        Bytes of one layer and micro-batch. [B]

    References
    ----------
    .. [1] D. Liu et al., "MoE parallel folding", 2025, arXiv:2504.14960 (token dispatcher: permuted inputs are kept).
    """
    inner = array(hidden_size) + (2.0 + array(gated_mlp)) * array(ffn_hidden_size)
    return np.asarray(array(element_size) * array(received_tokens) * inner)


def logits_size(
    num_logits: Numeric,
    element_size: Numeric,
    word_size: Numeric,
    fused: Numeric,
    plain: Numeric,
) -> Array:
    r"""Bytes of the logits and their gradients at the peak of the cross-entropy.

    .. math:: S = N \left(e + (1 - \phi) w + 2 \pi w\right)

    Fused: the gradient takes the place of the logits. Split over the vocabulary (Megatron): 16-bit logits and their
    FP32 softmax, which the gradient replaces. Plain: 16-bit logits, log-softmax, its gradient and that of the loss
    in FP32.

    Parameters
    ----------
    num_logits : numeric
        Logits N of a micro-batch on the rank. [-]
    element_size : numeric
        Bytes e of a logit as the product puts it out. [B]
    word_size : numeric
        Bytes w of an element of the softmax, 4 for FP32. [B]
    fused : numeric
        Phi: 1 where one kernel makes loss and gradient. [-]
    plain : numeric
        Pi: 1 where every step of the loss is a kernel with an output of its own. [-]

    Returns
    -------
    size : numeric
        Bytes of one micro-batch. [B]

    References
    ----------
    .. [1] M. Shoeybi et al., "Megatron-LM", 2019, arXiv:1909.08053, section 3 (loss split over the vocabulary).
    .. [2] W. Liang et al., "TorchTitan", 2024, arXiv:2410.06511 (losses in FP32 on 16-bit logits).
    """
    element, word = array(element_size), array(word_size)
    each = element + (1.0 - array(fused)) * word + 2.0 * array(plain) * word
    return np.asarray(array(num_logits) * each)
