"""Parameters and FLOP of transformer layers, and where a router sends tokens: plain equations on arrays."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array


def layer_matrix_parameters(
    hidden_size: Numeric,
    num_attention_heads: Numeric,
    num_query_groups: Numeric,
    head_size: Numeric,
    ffn_hidden_size: Numeric,
    gated_mlp: Numeric,
) -> Array:
    r"""GEMM weights of one dense layer, excluding biases.

    .. math:: P = 2 h d (a + g) + (2 + \gamma) h f

    Parameters
    ----------
    hidden_size : numeric
        Width h of the residual stream. [-]
    num_attention_heads : numeric
        Query heads a. [-]
    num_query_groups : numeric
        Key and value heads g. [-]
    head_size : numeric
        Width d of one head. [-]
    ffn_hidden_size : numeric
        Width f of the feed-forward layer. [-]
    gated_mlp : numeric
        Gamma: 1 with a gate matrix, 0 without. [-]

    Returns
    -------
    parameters : numeric
        Weights that take part in matrix products. [-]

    References
    ----------
    .. [1] J. Ainslie et al., "GQA: Training generalized multi-query transformer models from multi-head
       checkpoints", 2023, arXiv:2305.13245.
    .. [2] N. Shazeer, "GLU variants improve transformer", 2020, arXiv:2002.05202.

    Examples
    --------
    Llama 3.1 8B: 2 x 4096 x 128 x (32 + 8) + 3 x 4096 x 14336:

    >>> float(layer_matrix_parameters(4096.0, 32.0, 8.0, 128.0, 14336.0, 1.0))
    218103808.0
    """
    hidden = array(hidden_size)
    heads = array(num_attention_heads) + array(num_query_groups)
    attention = 2.0 * hidden * array(head_size) * heads
    return np.asarray(attention + (2.0 + array(gated_mlp)) * hidden * array(ffn_hidden_size))


def layer_vector_parameters(
    hidden_size: Numeric,
    num_attention_heads: Numeric,
    num_query_groups: Numeric,
    head_size: Numeric,
    ffn_hidden_size: Numeric,
    gated_mlp: Numeric,
    layer_norm: Numeric,
    bias_qkv: Numeric,
    bias_all: Numeric,
    query_key_norm: Numeric,
) -> Array:
    r"""Scales and biases of one layer.

    .. math:: P = 2 (1 + \lambda) h + \beta_q d (a + 2 g) + \beta ((1 + \gamma) f + 2 h) + 2 \nu d

    Parameters
    ----------
    hidden_size : numeric
        Width h of the residual stream. [-]
    num_attention_heads : numeric
        Query heads a. [-]
    num_query_groups : numeric
        Key and value heads g. [-]
    head_size : numeric
        Width d of one head. [-]
    ffn_hidden_size : numeric
        Width f of the feed-forward layer. [-]
    gated_mlp : numeric
        Gamma: 1 with a gate matrix, 0 without. [-]
    layer_norm : numeric
        Lambda: 1 where norms have a bias. [-]
    bias_qkv : numeric
        Beta q: 1 where the projections of queries, keys and values have a bias. [-]
    bias_all : numeric
        Beta: 1 where every linear layer has one (bias_qkv is then 1 too). [-]
    query_key_norm : numeric
        Nu: 1 where queries and keys are normalised. [-]

    Returns
    -------
    parameters : numeric
        Scales and biases. [-]

    References
    ----------
    .. [1] A. Radford et al., "Language models are unsupervised multitask learners", 2019 (GPT-2 layer).

    Examples
    --------
    Llama 3.1 8B: two scales of 4096:

    >>> float(layer_vector_parameters(4096.0, 32.0, 8.0, 128.0, 14336.0, 1.0, 0.0, 0.0, 0.0, 0.0))
    8192.0
    """
    hidden, head = array(hidden_size), array(head_size)
    norms = 2.0 * (1.0 + array(layer_norm)) * hidden + 2.0 * array(query_key_norm) * head
    qkv = array(bias_qkv) * head * (array(num_attention_heads) + 2.0 * array(num_query_groups))
    rest = array(bias_all) * ((1.0 + array(gated_mlp)) * array(ffn_hidden_size) + 2.0 * hidden)
    return np.asarray(norms + qkv + rest)


def latent_attention_parameters(
    hidden_size: Numeric,
    num_attention_heads: Numeric,
    q_lora_rank: Numeric,
    kv_lora_rank: Numeric,
    qk_head_size: Numeric,
    qk_rope_head_size: Numeric,
    v_head_size: Numeric,
) -> Array:
    r"""GEMM weights of multi-head latent attention (MLA), excluding norms.

    .. math:: P = [q > 0] (h q + q a d_q) + [q = 0] h a d_q + h (c + d_r) + c a (d_q - d_r + d_v) + a d_v h

    Parameters
    ----------
    hidden_size : numeric
        Width h of the residual stream. [-]
    num_attention_heads : numeric
        Heads a. [-]
    q_lora_rank : numeric
        Rank q of the query compression; 0 where queries are projected directly. [-]
    kv_lora_rank : numeric
        Rank c of the key and value compression. [-]
    qk_head_size : numeric
        Width of a query head, with position. [-]
    qk_rope_head_size : numeric
        Width of its part that carries the position, shared by the keys of all heads. [-]
    v_head_size : numeric
        Width of a value head. [-]

    Returns
    -------
    parameters : numeric
        Weights that take part in matrix products. [-]

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V2: A strong, economical, and efficient mixture-of-experts language model", 2024,
       arXiv:2405.04434, section 2.1.

    Examples
    --------
    DeepSeek-V3: 7168 x 1536 + 1536 x 128 x 192 for queries, 7168 x 576 + 512 x 128 x 256 for keys and values,
    128 x 128 x 7168 for the output:

    >>> float(latent_attention_parameters(7168.0, 128.0, 1536.0, 512.0, 192.0, 64.0, 128.0))
    187105280.0
    """
    hidden, heads = array(hidden_size), array(num_attention_heads)
    rank, latent = array(q_lora_rank), array(kv_lora_rank)
    queries, position, values = array(qk_head_size), array(qk_rope_head_size), array(v_head_size)
    compressed = np.sign(rank)
    direct = rank * (hidden + heads * queries) + (1.0 - compressed) * hidden * heads * queries
    keys = hidden * (latent + position) + latent * heads * (queries - position + values)
    return np.asarray(direct + keys + heads * values * hidden)


def expert_parameters(hidden_size: Numeric, ffn_hidden_size: Numeric, gated_mlp: Numeric) -> Array:
    r"""Weights of one expert, or of a dense feed-forward layer.

    .. math:: P = (2 + \gamma) h f

    Parameters
    ----------
    hidden_size : numeric
        Width h of the residual stream. [-]
    ffn_hidden_size : numeric
        Width f of the expert. [-]
    gated_mlp : numeric
        Gamma: 1 with a gate matrix, 0 without. [-]

    Returns
    -------
    parameters : numeric
        Weights that take part in matrix products. [-]

    References
    ----------
    .. [1] N. Shazeer, "GLU variants improve transformer", 2020, arXiv:2002.05202.

    Examples
    --------
    3 x 4096 x 14336 (Llama 3.1 8B, Mixtral 8x7B):

    >>> float(expert_parameters(4096.0, 14336.0, 1.0))
    176160768.0
    """
    return np.asarray((2.0 + array(gated_mlp)) * array(hidden_size) * array(ffn_hidden_size))


def embedding_parameters(
    vocab_size: Numeric, hidden_size: Numeric, learned_positions: Numeric, tied_embeddings: Numeric
) -> Array:
    r"""Weights of the input embedding, learned positions and output projection.

    .. math:: P = (2 - \tau) V h + s_{max} h

    Parameters
    ----------
    vocab_size : numeric
        Vocabulary V. [-]
    hidden_size : numeric
        Width h of the residual stream. [-]
    learned_positions : numeric
        Rows of a learned position embedding; 0 without. [-]
    tied_embeddings : numeric
        Tau: 1 where input and output share their weights. [-]

    Returns
    -------
    parameters : numeric
        Weights outside the layers, excluding the final norm. [-]

    References
    ----------
    .. [1] O. Press and L. Wolf, "Using the output embedding to improve language models", 2017, arXiv:1608.05859.

    Examples
    --------
    2 x 32000 x 4096 (Llama 2 7B):

    >>> float(embedding_parameters(32000.0, 4096.0, 0.0, 0.0))
    262144000.0
    """
    tables = (2.0 - array(tied_embeddings)) * array(vocab_size) + array(learned_positions)
    return np.asarray(tables * array(hidden_size))


def attention_flop(
    batch_size: Numeric, num_attention_heads: Numeric, query_length: Numeric, key_length: Numeric, head_size: Numeric
) -> Array:
    r"""FLOP of attention scores and weighted sum of one layer, without causal saving.

    .. math:: F = 4 b a s_q s_k d

    Parameters
    ----------
    batch_size : numeric
        Sequences b. [-]
    num_attention_heads : numeric
        Query heads a. [-]
    query_length : numeric
        Queries per sequence. [-]
    key_length : numeric
        Keys per sequence. [-]
    head_size : numeric
        Width d of one head. [-]

    Returns
    -------
    flop : numeric
        Operations of the two products. [FLOP]

    References
    ----------
    .. [1] V. Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022,
       arXiv:2205.05198, appendix A.

    Examples
    --------
    4 x 32 x 100 x 100 x 128:

    >>> float(attention_flop(1.0, 32.0, 100.0, 100.0, 128.0))
    163840000.0
    """
    products = array(batch_size) * array(num_attention_heads) * array(query_length) * array(key_length)
    return np.asarray(4.0 * products * array(head_size))


def training_flop_per_token(matrix_parameters: Numeric, score_products: Numeric) -> Array:
    r"""Model FLOP per trained token: forward and backward, no recomputation.

    .. math:: F = 6 (P + S)

    Parameters
    ----------
    matrix_parameters : numeric
        Active GEMM parameters P per token, LM head included. [-]
    score_products : numeric
        Multiplications S of a token in the scores and weighted sums of all layers: half of :func:`attention_flop`. [-]

    Returns
    -------
    flop : numeric
        Model FLOP per token: 2 per multiplication forward and 4 backward. [FLOP]

    References
    ----------
    .. [1] D. Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM",
       2021, arXiv:2104.04473, section 5.1 (without its recomputation).

    Examples
    --------
    6 x (10 + 2):

    >>> float(training_flop_per_token(10.0, 2.0))
    72.0
    """
    return np.asarray(6.0 * (array(matrix_parameters) + array(score_products)))


def activated_experts(num_experts: Array, top_k: Array, tokens: Array, favoured_share: Numeric = 1.0) -> Array:
    r"""Expected number of distinct experts activated by a batch of tokens, with popular experts.

    Of the visits the other experts have the share (1 - s)^3, spread evenly, and the preferred ones the rest. A token
    visits k experts whatever s is, and many tokens visit all.

    .. math:: E_{hit} = E \left(1 - s \left(1 - (3 - 3 s + s^2) \frac{k}{E}\right)^{n}
        - (1 - s) \left(1 - (1 - s)^2 \frac{k}{E}\right)^{n}\right)

    With a share of 1 routing is even; so it is where a token visits so many of the experts that none can be preferred.

    Heuristic, this work: even routing is the occupancy of bins by balls [1]_; the preference is fitted.

    Parameters
    ----------
    num_experts : Array
        Routed experts E of a layer. [-]
    top_k : Array
        Experts k that each token visits. [-]
    tokens : Array
        Tokens n. [-]
    favoured_share : numeric, default 1.0
        Share s of the experts that are preferred. [-]

    Returns
    -------
    Array
        At least k for a token or more. [-]

    References
    ----------
    .. [1] M. Mitzenmacher and E. Upfal, "Probability and Computing", Cambridge University Press, 2005, chapter 5.

    >>> activated_experts(np.array([8.0]), np.array([2.0]), np.array([1.0, 2.0])).tolist()
    [2.00, 3.50]
    >>> activated_experts(np.array([8.0]), np.array([2.0]), np.array([1.0, 2.0]), np.array([0.5])).tolist()
    [2.00, 3.22]
    """
    visited = np.minimum(np.divide(top_k, np.maximum(num_experts, 1.0)), 1.0)
    share = array(favoured_share)
    preferred = 3.0 - 3.0 * share + share * share
    even = preferred * visited > 1.0
    others = np.where(even, 0.0, 1.0 - share)
    missed = (1.0 - others) * np.power(1.0 - np.where(even, 1.0, preferred) * visited, tokens)
    if np.count_nonzero(others):
        missed = missed + others * np.power(1.0 - others * others * visited, tokens)
    return np.asarray(num_experts * (1.0 - missed))


def busiest_rank_factor(mean: Array, ranks: Array) -> Array:
    r"""Load of the busiest rank over the mean, for uniformly random routing (balls into bins).

    .. math:: r = 1 + \sqrt{\frac{2 \ln e}{\mu}}

    Parameters
    ----------
    mean : Array
        Expected load mu of a rank, in what falls at once. [-]
    ranks : Array
        Ranks e. [-]

    Returns
    -------
    Array
        1 for a single rank, and towards 1 with much load. [-]

    References
    ----------
    .. [1] M. Raab and A. Steger, "Balls into bins: a simple and tight analysis", RANDOM 1998,
       doi:10.1007/3-540-49543-6_13.

    >>> busiest_rank_factor(np.array([100.0, 100.0]), np.array([1.0, 8.0])).round(3).tolist()
    [1.0, 1.204]
    """
    return np.asarray(1.0 + np.sqrt(2.0 * np.log(np.maximum(ranks, 1.0)) / np.maximum(mean, 1.0)))
