"""The operators of a dense transformer layer, forward and backward, as an axis of arrays.

Shapes are (rows, operators): one row per plan, one column per operator, so that a roofline call covers every
operator of every plan. Tokens are those that one rank sees in one pass: sequences x length.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, beside, ceil_div, ones, side_by_side
from xlperf.equations.model.model import Model


class Gemms(NamedTuple):
    """Matrix products (rows, operators): C of (m, n) from depth k, ``batch`` of them in one call. [-]"""

    names: tuple[str, ...]
    m: Array
    n: Array
    k: Array
    batch: Array

    @property
    def columns(self) -> tuple[Array, Array, Array, Array]:
        """Rows m, columns n and depth k of a product, and products of one call, (rows, operators) each. [-]"""
        return self.m, self.n, self.k, self.batch

    @property
    def flop(self) -> Array:
        """Operations of one call. [FLOP]"""
        return np.asarray(2.0 * self.m * self.n * self.k * self.batch)


def attention_projections(model: Model, tokens: Array, tensor_parallel: Array, latent: bool) -> Gemms:
    """Projection GEMMs of one attention block in the forward pass, on one tensor-parallel rank.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    tokens : Array
        Tokens of one pass, (rows,). [-]
    tensor_parallel : Array
        Ranks that share the heads, (rows,). [-]
    latent : bool
        Multi-head latent attention: compressions are computed whole on every rank. [-]

    Returns
    -------
    Gemms
        qkv and attention output; or compressions, expansions and attention output. [-]

    Examples
    --------
    Llama 3.1 8B on two ranks: (32 + 8 + 8) x 128 / 2 columns of queries, keys and values; 32 x 128 / 2 deep.

    >>> llama = Model(*np.array([[32, 4096, 32, 8, 128, 14336, 128256, 1, 0, 0, 1, 0, 0, 0, 0, 0, 32.0]]).T)
    >>> found = attention_projections(llama, np.array([4096.0]), np.array([2.0]), latent=False)
    >>> found.n.tolist(), found.k.tolist()
    ([[3072.0, 4096.0]], [[4096.0, 2048.0]])
    """
    heads = ceil_div(model.num_attention_heads, tensor_parallel)
    hidden = model.hidden_size
    if not latent:
        groups = ceil_div(model.num_query_groups, tensor_parallel)
        n = side_by_side((heads + 2.0 * groups) * model.head_size, hidden)
        k = side_by_side(hidden, heads * model.head_size)
        names: tuple[str, ...] = ("qkv", "attention output")
        batch = ones(n)
    else:
        queries, rank = heads * model.qk_head_size, model.q_lora_rank
        nope = model.qk_head_size - model.qk_rope_head_size
        compressed = np.where(rank > 0.0, rank, hidden)
        n = side_by_side(
            compressed,
            queries,
            model.kv_lora_rank + model.qk_rope_head_size,
            heads * (nope + model.v_head_size),
            hidden,
        )
        k = side_by_side(hidden, compressed, hidden, model.kv_lora_rank, heads * model.v_head_size)
        names = ("query compression", "query expansion", "key and value compression", "key and value expansion",
                 "attention output")  # fmt: skip
        one = ones(rank)
        batch = side_by_side(np.where(rank > 0.0, 1.0, 0.0), one, one, one, one)
    return Gemms(names, np.repeat(tokens[:, None], len(names), axis=-1), n, k, batch)


def mlp_gemms(model: Model, tokens: Array, ffn_size: Array, name: str) -> Gemms:
    """Up and down GEMMs of a feed-forward layer.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    tokens : Array
        Tokens of one pass, (rows,). [-]
    ffn_size : Array
        Width of the layer on one rank, (rows,). [-]
    name : str
        What the layer is called. [-]

    Returns
    -------
    Gemms
        Up (with the gate) and down. [-]

    Examples
    --------
    Gate and up of Llama 3.1 8B on two ranks are one product of 2 x 7168 columns:

    >>> llama = Model(*np.array([[32, 4096, 32, 8, 128, 14336, 128256, 1, 0, 0, 1, 0, 0, 0, 0, 0, 32.0]]).T)
    >>> mlp_gemms(llama, np.array([4096.0]), np.array([7168.0]), "mlp").n.tolist()
    [[14336.0, 4096.0]]
    """
    n = side_by_side((1.0 + model.gated_mlp) * ffn_size, model.hidden_size)
    k = side_by_side(model.hidden_size, ffn_size)
    return Gemms((f"{name} up", f"{name} down"), side_by_side(tokens, tokens), n, k, ones(n))


def expert_gemms(model: Model, tokens_per_expert: Array, experts_per_rank: Array, ffn_size: Array) -> Gemms:
    """Grouped up and down GEMMs of the routed experts of one rank.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    tokens_per_expert : Array
        Tokens that one expert sees, (rows,). [-]
    experts_per_rank : Array
        Experts that the rank holds: products of one grouped call, (rows,). [-]
    ffn_size : Array
        Width of an expert on one rank, (rows,). [-]

    Returns
    -------
    Gemms
        Up (with the gate) and down. [-]

    Examples
    --------
    Eight experts of width 1,024 with a gate, four tokens of width 2,048 each: 2 x 4 x 2048 x 2048 x 8, and half of it.

    >>> from types import SimpleNamespace
    >>> model = SimpleNamespace(gated_mlp=np.ones(1), expert_hidden_size=np.array([2048.0]))
    >>> expert_gemms(model, np.array([4.0]), np.array([8.0]), np.array([1024.0])).flop.tolist()
    [[268435456.0, 134217728.0]]
    """
    n = side_by_side((1.0 + model.gated_mlp) * ffn_size, model.expert_hidden_size)
    k = side_by_side(model.expert_hidden_size, ffn_size)
    tokens = side_by_side(tokens_per_expert, tokens_per_expert)
    return Gemms(("experts up", "experts down"), tokens, n, k, side_by_side(experts_per_rank, experts_per_rank))


def latent_gemms(model: Model, tokens: Array) -> Gemms:
    """Down and up projections between the hidden size and the latent space of the routed experts.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    tokens : Array
        Tokens that the rank projects, (rows,); every rank holds both matrices whole. [-]

    Returns
    -------
    Gemms
        Compression and expansion. [-]

    References
    ----------
    .. [1] NVIDIA, "Nemotron 3 Super", 2025, model card and configuration (moe_latent_size).

    Examples
    --------
    From 4,096 to 1,024 and back:

    >>> from types import SimpleNamespace
    >>> model = SimpleNamespace(hidden_size=np.array([4096.0]), moe_latent_size=np.array([1024.0]))
    >>> found = latent_gemms(model, np.array([16.0]))
    >>> found.n.tolist(), found.k.tolist()
    ([[1024.0, 4096.0]], [[4096.0, 1024.0]])
    """
    hidden, latent = model.hidden_size, np.maximum(model.moe_latent_size, 1.0)
    present = np.where(model.moe_latent_size > 0.0, 1.0, 0.0)
    columns = (tokens, tokens), (latent, hidden), (hidden, latent), (present, present)
    return Gemms(("expert compression", "expert expansion"), *(side_by_side(*pair) for pair in columns))


def router_gemm(model: Model, tokens: Array) -> Gemms:
    """Router GEMM: scores of the experts for every token.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    tokens : Array
        Tokens that the rank routes, (rows,). [-]

    Returns
    -------
    Gemms
        One product. [-]

    Examples
    --------
    Ten tokens of DeepSeek-V3: 2 x 10 x 256 x 7168.

    >>> from types import SimpleNamespace
    >>> model = SimpleNamespace(hidden_size=np.array([7168.0]), num_experts=np.array([256.0]))
    >>> router_gemm(model, np.array([10.0])).flop.tolist()
    [[36700160.0]]
    """
    n = model.num_experts[:, None]
    return Gemms(("router",), tokens[:, None], n, model.hidden_size[:, None], ones(n))


def mtp_gemm(model: Model, tokens: Array, tensor_parallel: Array) -> Gemms:
    """Input projection of an MTP module: hidden state and embedding, concatenated, to the hidden size.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    tokens : Array
        Tokens of one pass, (rows,). [-]
    tensor_parallel : Array
        Ranks that share the matrix, (rows,). [-]

    Returns
    -------
    Gemms
        One product. [-]

    Examples
    --------
    Width 4,096 on two ranks: 2 x 4,096 deep, 2,048 columns.

    >>> from types import SimpleNamespace
    >>> found = mtp_gemm(SimpleNamespace(hidden_size=np.array([4096.0])), np.array([8.0]), np.array([2.0]))
    >>> found.n.tolist(), found.k.tolist()
    ([[2048.0]], [[8192.0]])
    """
    n = (model.hidden_size / tensor_parallel)[:, None]
    return Gemms(("mtp projection",), tokens[:, None], n, 2.0 * model.hidden_size[:, None], ones(n))


def concatenated(*groups: Gemms) -> Gemms:
    """Groups of GEMMs joined along the axis of operators.

    Parameters
    ----------
    *groups : Gemms
        In order. [-]

    Returns
    -------
    Gemms
        One group. [-]

    Examples
    --------
    >>> one = np.array([[1.0]])
    >>> found = concatenated(*(Gemms((name,), one, one, one, one) for name in ("up", "down")))
    >>> found.names, found.m.shape
    (('up', 'down'), (1, 2))
    """
    names = tuple(name for group in groups for name in group.names)
    return Gemms(names, *(beside(*values) for values in zip(*(g[1:] for g in groups), strict=True)))


def logits_gemm(model: Model, tokens: Array, tensor_parallel: Array) -> Gemms:
    """LM-head GEMM, vocabulary split over the tensor-parallel ranks.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    tokens : Array
        Tokens whose logits are computed, (rows,). [-]
    tensor_parallel : Array
        Ranks that share the vocabulary, (rows,). [-]

    Returns
    -------
    Gemms
        One product. [-]

    Examples
    --------
    The vocabulary of Llama 3.1 8B on two ranks:

    >>> llama = Model(*np.array([[32, 4096, 32, 8, 128, 14336, 128256, 1, 0, 0, 1, 0, 0, 0, 0, 0, 32.0]]).T)
    >>> logits_gemm(llama, np.array([4096.0]), np.array([2.0])).n.tolist()
    [[64128.0]]
    """
    n = ceil_div(model.vocab_size, tensor_parallel)[:, None]
    return Gemms(("logits",), tokens[:, None], n, model.hidden_size[:, None], ones(n))


def backward_gemms(forward: Gemms) -> Gemms:
    """Backward GEMMs of forward ones: input gradients (m, k, n), then weight gradients (k, n, m).

    Parameters
    ----------
    forward : Gemms
        Products of the forward pass. [-]

    Returns
    -------
    Gemms
        Input gradients, then weight gradients. [-]

    Examples
    --------
    >>> one = np.array([[1.0]])
    >>> found = backward_gemms(Gemms(("up",), 2.0 * one, 3.0 * one, 5.0 * one, one))
    >>> found.m.tolist(), found.n.tolist(), found.k.tolist()
    ([[2.0, 5.0]], [[5.0, 3.0]], [[3.0, 2.0]])
    """
    return Gemms(
        _gradient_names(forward.names),
        beside(forward.m, forward.k),
        beside(forward.k, forward.n),
        beside(forward.n, forward.m),
        beside(forward.batch, forward.batch),
    )


@lru_cache(maxsize=64)
def _gradient_names(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{name} {side}" for side in ("input gradient", "weight gradient") for name in names)


def attention_gemms(model: Model, batch_size: Array, sequence_length: Array, tensor_parallel: Array) -> Gemms:
    """Score and value GEMMs of unfused attention in the forward pass.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    batch_size : Array
        Sequences of one pass, (rows,). [-]
    sequence_length : Array
        Queries and keys of a sequence, (rows,). [-]
    tensor_parallel : Array
        Ranks that share the heads, (rows,). [-]

    Returns
    -------
    Gemms
        Two batched products without weights. [-]

    Examples
    --------
    32 heads of 128 on two ranks, 100 queries and keys: 2 x 100 x 100 x 128 x 16 each.

    >>> from types import SimpleNamespace
    >>> heads, size = np.array([32.0]), np.array([128.0])
    >>> model = SimpleNamespace(num_attention_heads=heads, qk_head_size=size, v_head_size=size)
    >>> attention_gemms(model, np.array([1.0]), np.array([100.0]), np.array([2.0])).flop.tolist()
    [[40960000.0, 40960000.0]]
    """
    products = batch_size * ceil_div(model.num_attention_heads, tensor_parallel)
    length = sequence_length
    return Gemms(
        ("attention scores", "attention values"),
        side_by_side(length, length),
        side_by_side(length, model.v_head_size),
        side_by_side(model.qk_head_size, length),
        side_by_side(products, products),
    )
