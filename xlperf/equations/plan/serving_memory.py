"""Memory of a serving rank: weights, key-value cache, working set of the prefill, and the batch that still fits."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, divide

__all__ = ["cache_budget", "largest_batch", "prefill_working_set", "serving_weights_size", "usable_memory"]


def cache_budget(
    shown_memory: Numeric,
    free_memory: Numeric,
    weights_size: Numeric,
    memory_fraction: Numeric,
    of_free_memory: Numeric,
) -> Array:
    r"""Bytes that an engine leaves for the cache and for the activations that its share covers.

    An engine takes a share of the whole memory, weights included, or of what weights leave.

    .. math:: B = f M - S_w \quad \text{or} \quad B = f \left(M_0 - S_w\right)

    Parameters
    ----------
    shown_memory : numeric
        Memory M of the accelerator that the driver shows. [B]
    free_memory : numeric
        Memory M_0 that is free before weights are loaded. [B]
    weights_size : numeric
        Weights S_w of one rank. [B]
    memory_fraction : numeric
        Share f that the engine takes. [-]
    of_free_memory : numeric
        1 where it is a share of what weights leave, 0 where it is one of the whole memory. [-]

    Returns
    -------
    size : numeric
        Cache and covered activations together may take this; below 0 where weights alone are too large. [B]

    References
    ----------
    .. [1] vLLM documentation, CacheConfig, gpu_memory_utilization.
    .. [2] NVIDIA, TensorRT-LLM documentation, KvCacheConfig, free_gpu_memory_fraction.

    >>> cache_budget(80.0, 79.0, 70.0, 0.9, [0.0, 1.0]).tolist()
    [2.0, 8.1]
    """
    weights, share = array(weights_size), array(memory_fraction)
    whole, free = share * array(shown_memory) - weights, share * (array(free_memory) - weights)
    return np.asarray(np.where(array(of_free_memory) > 0.0, free, whole) + 0.0 * (free + whole + array(of_free_memory)))


def usable_memory(
    memory_capacity: Numeric,
    reserved_memory: Numeric,
    weights_size: Numeric,
    activations_size: Numeric,
    cache_budget: Numeric,
    activation_share: Numeric,
) -> Array:
    r"""Bytes that weights, cache and activations together may take.

    .. math:: M = \min\left(S_w + S_a + B - s S_a,\ C - R\right)

    Parameters
    ----------
    memory_capacity : numeric
        Memory C of the accelerator. [B]
    reserved_memory : numeric
        Memory R that the driver keeps. [B]
    weights_size : numeric
        Weights S_w of one rank. [B]
    activations_size : numeric
        Activations S_a of a pass of the prefill. [B]
    cache_budget : numeric
        Bytes B that the engine leaves for the cache, as :func:`cache_budget` has them. [B]
    activation_share : numeric
        Share s of the activations that is taken off them. [-]

    Returns
    -------
    size : numeric
        Weights, cache and activations together may take this. [B]

    References
    ----------
    .. [1] NVIDIA, TensorRT-LLM documentation, "Memory usage of TensorRT-LLM".
    """
    activations = array(activations_size)
    covered = array(weights_size) + activations + array(cache_budget) - array(activation_share) * activations
    return np.asarray(np.minimum(covered, array(memory_capacity) - array(reserved_memory)))


def serving_weights_size(
    num_layers: Numeric,
    layer_matrix_parameters: Numeric,
    layer_vector_parameters: Numeric,
    table_parameters: Numeric,
    weight_size: Numeric,
    element_size: Numeric,
    tensor_parallel: Numeric,
) -> Array:
    r"""Bytes of the weights of one rank.

    .. math:: S = L \left(P_m e_w + P_v e\right) + \frac{P_t e}{t}

    Parameters
    ----------
    num_layers : numeric
        Layers L that the rank holds a share of. [-]
    layer_matrix_parameters : numeric
        Weights of the matrices of one layer on the rank. [-]
    layer_vector_parameters : numeric
        Scales and biases of one layer on the rank. [-]
    table_parameters : numeric
        Weights of the embedding and of the output projection that the stage holds, before they are split. [-]
    weight_size : numeric
        Bytes of a weight of a matrix, its share of the scales included. [B]
    element_size : numeric
        Bytes of any other weight: engines quantise neither norms nor embeddings. [B]
    tensor_parallel : numeric
        Ranks t that share the tables. [-]

    Returns
    -------
    size : numeric
        Weights of one rank. [B]

    References
    ----------
    .. [1] R. Pope et al., "Efficiently scaling transformer inference", 2022, arXiv:2211.05102, section 2.1.
    """
    layer = array(layer_matrix_parameters) * array(weight_size) + array(layer_vector_parameters) * array(element_size)
    tables = array(table_parameters) * array(element_size) / array(tensor_parallel)
    return np.asarray(array(num_layers) * layer + tables)


def prefill_working_set(
    hidden_size: Numeric,
    projected_size: Numeric,
    attention_size: Numeric,
    ffn_hidden_size: Numeric,
    gated_mlp: Numeric,
    vocab_size: Numeric,
    prompt_length: Numeric,
    prefill_tokens: Numeric,
    tensor_parallel: Numeric,
    element_size: Numeric,
    logit_size: Numeric,
) -> Array:
    r"""Bytes of activations that one sequence adds to a pass of the prefill, nothing kept from layer to layer.

    The residual stream and its norm live through the layer; beside them either the projections with the output of
    the attention, or the feed-forward layer, whichever is larger; then the logits of the last token.

    .. math:: S = e \min(n, n_p) \left(2 h + \frac{\max(w + o, (2 + \gamma) f)}{t}\right) + \frac{e_l V}{t}

    Parameters
    ----------
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
    vocab_size : numeric
        Vocabulary V. [-]
    prompt_length : numeric
        Tokens n of a prompt. [-]
    prefill_tokens : numeric
        Tokens of one pass at most. [-]
    tensor_parallel : numeric
        Ranks t that share each matrix. [-]
    element_size : numeric
        Bytes e of an activation. [B]
    logit_size : numeric
        Bytes of a logit. [B]

    Returns
    -------
    size : numeric
        Bytes of one sequence. [B]

    References
    ----------
    .. [1] W. Kwon et al., "Efficient memory management for large language model serving with PagedAttention", 2023,
       arXiv:2309.06180, section 2.
    """
    split = array(tensor_parallel)
    attention = array(projected_size) + array(attention_size)
    widest = np.maximum(attention, (2.0 + array(gated_mlp)) * array(ffn_hidden_size))
    tokens = np.minimum(array(prompt_length), array(prefill_tokens))
    layer = array(element_size) * tokens * (2.0 * array(hidden_size) + widest / split)
    return np.asarray(layer + array(logit_size) * array(vocab_size) / split)


def largest_batch(
    free_memory: Numeric,
    kv_cache_size: Numeric,
    working_set_size: Numeric,
    most_sequences: Numeric,
    pipeline_parallel: Numeric,
) -> Array:
    r"""Largest batch whose cache and working set fit beside the weights.

    A batch of b runs as p micro-batches of m = ceil(b / p) sequences. Its memory is the smaller of a line that
    grows with m and one that does not, so the larger of the two solutions is the answer.

    .. math:: \max b : \quad b\,S_{kv} + \min(m, m_{max})\,S_w \le M

    Parameters
    ----------
    free_memory : numeric
        Memory M beside the weights. [B]
    kv_cache_size : numeric
        Cache of one sequence at its longest, above 0. [B]
    working_set_size : numeric
        Activations of one sequence in a pass of the prefill, above 0. [B]
    most_sequences : numeric
        Sequences of one pass at most, 1 or more. [-]
    pipeline_parallel : numeric
        Stages p. [-]

    Returns
    -------
    batch_size : numeric
        Whole number; 0 where not one sequence fits. [-]

    References
    ----------
    .. [1] W. Kwon et al., "Efficient memory management for large language model serving with PagedAttention", 2023,
       arXiv:2309.06180, section 2.
    """
    free, cache, work = array(free_memory), array(kv_cache_size), array(working_set_size)
    stages = array(pipeline_parallel)
    capped = np.floor(divide(free - array(most_sequences) * work, cache))
    rounds = np.floor(divide(free, stages * cache + work))
    more = np.floor(divide(free - (rounds + 1.0) * work, cache))
    growing = np.maximum(rounds * stages, more)
    return np.asarray(np.maximum(np.maximum(capped, growing), 0.0))
