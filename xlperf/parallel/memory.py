"""Memory of a training rank, part by part."""

from __future__ import annotations

import numpy as np

from xlperf.arrays import Array, Numeric, array


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


def optimizer_element_size(adam: Numeric, element_size: Numeric, state_size: Numeric) -> Array:
    r"""Bytes of optimizer state per parameter: moments, and master weights beside narrower ones.

    .. math:: e_o = (1 + \alpha + [e < e_s]) e_s

    Parameters
    ----------
    adam : numeric
        Alpha: 1 for two moments (Adam), 0 for one (SGD with momentum). [-]
    element_size : numeric
        Bytes e of a weight; where it is below that of the state a master copy is kept. [B]
    state_size : numeric
        Bytes of an element of the state, 4 for FP32. [B]

    Returns
    -------
    size : numeric
        Bytes per parameter. [B]

    References
    ----------
    .. [1] P. Micikevicius et al., "Mixed precision training", 2017, arXiv:1710.03740.
    """
    state, weight = np.broadcast_arrays(array(state_size), array(element_size))
    master = np.where(np.isnan(weight), np.nan, weight < state)
    return np.asarray((1.0 + array(adam) + master) * state)


def layer_activation_size(
    tokens: Numeric,
    hidden_size: Numeric,
    projected_size: Numeric,
    attention_size: Numeric,
    ffn_hidden_size: Numeric,
    gated_mlp: Numeric,
    score_elements: Numeric,
    dropout: Numeric,
    tensor_parallel: Numeric,
    sequence_parallel: Numeric,
    element_size: Numeric,
    mask_size: Numeric,
) -> Array:
    r"""Activations that one layer keeps for its backward pass, without recomputation.

    .. math::

        S = e n \left(\frac{4 h}{t_s} + \frac{w + o + (2 + \gamma) f}{t}\right)
        + \delta \mu \frac{2 n h}{t_s} + (e (1 + \delta) + \delta \mu) A

    With a = g, o = h, f = 4 h, e = 2, mu = 1, dropout and standard attention: s b h (10 + 24 / t + 5 a s / (h t)).

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
    ffn_hidden_size : numeric
        Width f of the feed-forward layer. [-]
    gated_mlp : numeric
        Gamma: 1 with a gate matrix. [-]
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
        Bytes of one layer and micro-batch. [B]

    References
    ----------
    .. [1] V. Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022,
       arXiv:2205.05198, equations 1 to 4.
    """
    split = array(tensor_parallel)
    shared = 1.0 + (split - 1.0) * array(sequence_parallel)
    element, count = array(element_size), array(tokens)
    mask = array(dropout) * array(mask_size)
    stream = 4.0 * array(hidden_size) / shared
    inner = array(projected_size) + array(attention_size) + (2.0 + array(gated_mlp)) * array(ffn_hidden_size)
    kept = element * count * (stream + inner / split) + mask * 2.0 * count * array(hidden_size) / shared
    return np.asarray(kept + (element * (1.0 + array(dropout)) + mask) * array(score_elements))
