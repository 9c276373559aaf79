"""Least work of an output token: FLOP and bytes that no mapping, batching or software avoids."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array


def output_token_flop(
    active_parameters: Numeric, head_parameters: Numeric, prompt_length: Numeric, output_length: Numeric
) -> Array:
    r"""Matrix-product FLOP of an output token with its share of the prompt.

    .. math:: F = 2 P + 2 (P - H)\,\frac{s}{o}

    By definition: two operations per active parameter and token; the prompt needs no logits. Attention comes on top.

    Parameters
    ----------
    active_parameters : numeric
        Parameters P of matrix products that a token uses, output projection included. [-]
    head_parameters : numeric
        Parameters H of the output projection. [-]
    prompt_length : numeric
        Prompt tokens s of a request that no cache holds. [-]
    output_length : numeric
        Output tokens o of a request. [-]

    Returns
    -------
    flop : numeric
        Per output token. [FLOP]

    Examples
    --------
    8 G parameters, 1 G of them for logits; as many prompt as output tokens: 16 + 14 GFLOP.

    >>> float(output_token_flop(8e9, 1e9, 500.0, 500.0)) / 1e9
    30.0
    """
    active = array(active_parameters)
    prompt = (active - array(head_parameters)) * array(prompt_length) / array(output_length)
    return np.asarray(2.0 * (active + prompt))


def output_token_traffic(
    weight_size: Numeric, cache_size: Numeric, num_requests: Numeric, tokens_per_step: Numeric
) -> Array:
    r"""Bytes from memory per output token: weights that all requests share, and the cache of its own.

    .. math:: S = \frac{1}{t} \left(\frac{W}{B} + K\right)

    By definition: a decode step reads active weights once for all requests and the keys and values of each.

    Parameters
    ----------
    weight_size : numeric
        Bytes W of the weights that a token uses. [B]
    cache_size : numeric
        Bytes K of the keys and values of one request. [B]
    num_requests : numeric
        Requests B that decode together. [-]
    tokens_per_step : numeric
        Tokens t of a request and step; speculative decoding gives more than one. [-]

    Returns
    -------
    traffic : numeric
        Per output token. [B]

    Examples
    --------
    8 GB of weights for 4 requests with 1 GB each: 3 GB, of which drafts save two thirds.

    >>> output_token_traffic(8e9, 1e9, 4.0, [1.0, 3.0]).tolist()
    [3000000000.0, 1000000000.0]
    """
    return np.asarray((array(weight_size) / array(num_requests) + array(cache_size)) / array(tokens_per_step))
