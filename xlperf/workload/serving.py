"""The operators of a dense transformer when it serves: a pass of the prefill, then a step of decoding.

Columns come in two halves of the same operators, prefill first: those of a layer, then those that run once per
pass. Serving engines fuse more than training stacks: the residual addition into the norm, the write of the cache
into the rotation of the keys.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.arrays import Array
from xlperf.workload.model import Model
from xlperf.workload.operators import Gemms, layer_gemms, logits_gemm

LAYER_GEMMS = 4
GEMM_NAMES = ("qkv", "attention output", "mlp up", "mlp down", "logits")
LAYER_VECTORS = 3
VECTOR_NAMES = ("norms and residual", "rotary embedding and cache", "activation", "embedding and last norm", "sampling")

_SAMPLING_PASSES = 2.0


class ServingVectors(NamedTuple):
    """Kernels bound by memory, (rows, operators): prefill, then decoding.

    Attributes
    ----------
    traffic : Array
        Bytes of one call. [B]
    calls : Array
        Calls per layer for the operators of a layer, per pass for the others. [-]
    """

    traffic: Array
    calls: Array


def serving_gemms(
    model: Model, prefill_tokens: Array, prefill_sequences: Array, decode_sequences: Array, tensor_parallel: Array
) -> Gemms:
    """Matrix products with weights of one layer and of the output, on one tensor-parallel rank.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    prefill_tokens : Array
        Tokens of one pass of the prefill, (rows,). [-]
    prefill_sequences : Array
        Sequences of that pass whose last token gets logits, (rows,). [-]
    decode_sequences : Array
        Sequences of one step of decoding, (rows,). [-]
    tensor_parallel : Array
        Ranks that share each matrix, (rows,). [-]

    Returns
    -------
    Gemms
        Columns of :data:`GEMM_NAMES` for the prefill, then for decoding. [-]
    """
    layer = layer_gemms(model, prefill_tokens, tensor_parallel)
    output = logits_gemm(model, prefill_sequences, tensor_parallel)
    decode = np.broadcast_to(decode_sequences[:, None], (len(decode_sequences), len(GEMM_NAMES)))
    n = np.concatenate([layer.n, output.n], axis=-1)
    k = np.concatenate([layer.k, output.k], axis=-1)
    ones = np.ones_like(n)
    return Gemms(
        (*GEMM_NAMES, *GEMM_NAMES),
        np.concatenate([layer.m, output.m, decode], axis=-1),
        np.concatenate([n, n], axis=-1),
        np.concatenate([k, k], axis=-1),
        np.concatenate([ones, ones], axis=-1),
    )


def serving_vectors(
    model: Model,
    prefill_tokens: Array,
    prefill_sequences: Array,
    decode_sequences: Array,
    tensor_parallel: Array,
    element_size: Array,
    logit_size: Array,
) -> ServingVectors:
    """Kernels of one layer and of one pass that are not matrix products, on one tensor-parallel rank.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    prefill_tokens : Array
        Tokens of one pass of the prefill, (rows,). [-]
    prefill_sequences : Array
        Sequences of that pass whose last token gets logits, (rows,). [-]
    decode_sequences : Array
        Sequences of one step of decoding, (rows,). [-]
    tensor_parallel : Array
        Ranks that share each matrix, (rows,). [-]
    element_size : Array
        Bytes of an activation, (rows,). [B]
    logit_size : Array
        Bytes of a logit when tokens are sampled, (rows,). [B]

    Returns
    -------
    ServingVectors
        Columns of :data:`VECTOR_NAMES` for the prefill, then for decoding.
    """
    heads = np.ceil(model.num_attention_heads / tensor_parallel)
    groups = np.ceil(model.num_query_groups / tensor_parallel)
    stream = model.hidden_size * element_size
    rotated = (heads + groups) * model.head_size * (1.0 + model.query_key_norm)
    cached = 2.0 * (rotated + groups * model.head_size) * element_size
    gated = (2.0 + model.gated_mlp) * model.ffn_hidden_size / tensor_parallel * element_size
    logits = _SAMPLING_PASSES * model.vocab_size * logit_size
    columns = []
    for tokens, sequences in ((prefill_tokens, prefill_sequences), (decode_sequences, decode_sequences)):
        columns += [tokens * 4.0 * stream, tokens * cached, tokens * gated]
        columns += [tokens * 4.0 * stream, sequences * logits]
    traffic = np.array(columns).T
    calls = np.array([2.0, 1.0, 1.0, 2.0, 1.0] * 2)
    return ServingVectors(np.ascontiguousarray(traffic), np.broadcast_to(calls, traffic.shape))
