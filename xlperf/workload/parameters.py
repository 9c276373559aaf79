"""Parameters of whole models, from their shapes."""

from __future__ import annotations

import numpy as np

from xlperf.arrays import Array
from xlperf.workload.model import Model
from xlperf.workload.transformer import embedding_parameters, layer_matrix_parameters, layer_vector_parameters


def parameter_count(model: Model) -> Array:
    r"""Parameters of dense models: layers, embeddings, output projection and the last norm.

    .. math:: P = L (P_{matrices} + P_{vectors}) + P_{embedding} + (1 + \lambda) h

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]

    Returns
    -------
    Array
        Parameters, (rows,). [-]

    References
    ----------
    .. [1] Count of the weights in the published checkpoints; the sheet ``models`` states them with their source.
    """
    shape = (
        model.hidden_size,
        model.num_attention_heads,
        model.num_query_groups,
        model.head_size,
        model.ffn_hidden_size,
        model.gated_mlp,
    )
    vectors = layer_vector_parameters(*shape, model.layer_norm, model.bias_qkv, model.bias_all, model.query_key_norm)
    outside = (
        embedding_parameters(model.vocab_size, model.hidden_size, model.learned_positions, model.tied_embeddings)
        + (1.0 + model.layer_norm) * model.hidden_size
    )
    return np.asarray(model.num_layers * (layer_matrix_parameters(*shape) + vectors) + outside)
