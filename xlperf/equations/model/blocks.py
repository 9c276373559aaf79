"""The matrix products of a layer, each declared once.

A :class:`Block` lists the products of one part of a layer; an :class:`Operator` gives the shape of one on a rank, its
weights, its precision and the activation that its backward pass needs. FLOP, traffic, weights of a rank, gradients,
quantised copies, activations and the rows of ``explain`` follow, in training and in serving alike.

A new kind of attention projection is a block here, its condition in :func:`xlperf.equations.model.layers.layer_blocks`,
its shapes as fields of :class:`Model` and their columns in the sheet ``models``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, ceil_div, divide, ones, side_by_side
from xlperf.equations.hardware.roofline import PLANNED, WIDE
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


@dataclass(frozen=True, eq=False)
class Shard:
    """A model on one of ``ranks`` tensor-parallel ranks, (rows,): whole heads; ``expert_ranks`` share each expert."""

    model: Model
    ranks: Array
    expert_ranks: Array | float = 1.0

    @cached_property
    def _shapes(self) -> dict[int, tuple[Array, Array]]:  # by the identity of blocks, which are constants
        return {}

    def shape(self, block: Block) -> tuple[Array, Array]:
        """Columns and depth of the products of a block, (rows, operators) each. [-]"""
        if id(block) not in self._shapes:
            operators = block.operators
            n, k = ([getattr(operator, side)(self.model, self) for operator in operators] for side in "nk")
            self._shapes[id(block)] = side_by_side(*n), side_by_side(*k)
        return self._shapes[id(block)]

    @cached_property
    def weights(self) -> dict[int, Array]:  # of whole blocks, by their identity
        """Known results of :func:`weights`."""
        return {}

    def split(self, heads: Array) -> Array:
        """Heads of a rank. [-]"""
        return ceil_div(heads, self.ranks)

    @cached_property
    def heads(self) -> Array:
        """Query heads. [-]"""
        return self.split(self.model.num_attention_heads)

    @cached_property
    def groups(self) -> Array:
        """Key and value heads. [-]"""
        return self.split(self.model.num_query_groups)

    @cached_property
    def output_groups(self) -> Array:
        """Groups of heads with an output projection of their own, or the part of one. [-]"""
        return np.maximum(self.split(self.model.output_groups), 1.0)

    @cached_property
    def index_heads(self) -> Array:
        """Index heads: all if their scores are summed (DeepSeek-V3.2), else a share (MiniMax-M3: one per group). [-]"""
        share = self.split(self.model.index_heads)
        return np.where(self.model.q_lora_rank > 0.0, self.model.index_heads, share) + 0.0 * share

    @cached_property
    def local(self) -> Shard:
        """The same ranks for layers with a window whose attention has shapes of its own."""
        return Shard(self.model.local, self.ranks, self.expert_ranks)

    @cached_property
    def value_heads(self) -> Array:
        """Value heads of linear attention, each with a state. [-]"""
        return self.split(self.model.linear_value_heads)

    @cached_property
    def linear_keys(self) -> Array:
        """Width of all key heads of linear attention. [-]"""
        return np.asarray(self.split(self.model.linear_key_heads) * self.model.linear_key_size)

    @cached_property
    def linear_values(self) -> Array:
        """Width of all value heads of linear attention. [-]"""
        return np.asarray(self.value_heads * self.model.linear_value_size)

    @cached_property
    def query_rank(self) -> Array:
        """Width that queries are projected from: the rank of their compression, or the hidden size. [-]"""
        model = self.model
        return np.where(model.q_lora_rank > 0.0, model.q_lora_rank, model.hidden_size) + 0.0 * model.q_lora_rank


class Tokens(NamedTuple):
    """Rows of the products of one pass on a rank, (rows,). [-]"""

    tokens: Array  # tokens of the attention replica
    routed: Array  # tokens whose experts the rank chooses, and that it projects for latent experts
    sampled: Array  # tokens with logits
    context: Array  # keys that latent attention expands
    per_expert: Array | float = 0.0  # tokens of one expert
    experts: Array | float = 0.0  # experts of one grouped call


Shape = Callable[[Model, Shard], Array]


class Operator(NamedTuple):
    """One product with weights: columns n and depth k on a rank, and what follows from them."""

    name: str
    n: Shape
    k: Shape
    saved: Shape | None = None  # elements per token that its backward pass needs, inputs or outputs; None: none
    rows: str = "tokens"  # field of Tokens
    batch: Shape | None = None  # products of one call; None: one
    exists: Callable[[Model], Array] | None = None  # 1 for models that have it; None: all
    layers: Callable[[Model], Array] | None = None  # share of the layers with the block that have it; None: all
    held: Shape | None = None  # weights of a rank; None: n x k x batch
    served: int = PLANNED  # precision class in serving engines
    absorbed: bool | None = None  # form of latent attention: True absorbed, False expanded, None either


class Block(NamedTuple):
    """Products of one part of a layer."""

    place: str  # attention, linear, mlp, moe, mtp or head
    operators: tuple[Operator, ...]
    precision: int = PLANNED  # class of its products; WIDE: the precision of activations, in training and serving

    def served(self, operator: Operator) -> int:
        """Precision class of one of its products in serving."""
        return max(self.precision, operator.served)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its products."""
        return tuple(operator.name for operator in self.operators)


def _hidden(model: Model, shard: Shard) -> Array:
    return model.hidden_size


def _feed_forward(
    name: str, hidden: Callable[[Model], Array], width: Shape, rows: str, exists: Callable[[Model], Array] | None = None
) -> tuple[Operator, Operator]:
    """Up (with the gate) and down."""

    def up(model: Model, shard: Shard) -> Array:
        return np.asarray((1.0 + model.gated_mlp) * width(model, shard))

    def outer(model: Model, shard: Shard) -> Array:
        return hidden(model)

    return (
        Operator(f"{name} up", up, outer, saved=up, rows=rows, exists=exists),
        Operator(f"{name} down", outer, width, saved=width, rows=rows, exists=exists),
    )


def positive(size: Callable[[Model], Array]) -> Callable[[Model], Array]:
    """1 for models of which a size is above 0."""
    return lambda model: np.where(size(model) > 0.0, 1.0, 0.0)


def _queries(model: Model, shard: Shard) -> Array:
    return np.asarray(shard.heads * model.qk_head_size)


def _values(model: Model, shard: Shard) -> Array:
    return np.asarray(shard.heads * model.v_head_size)


def _heads(model: Model, shard: Shard) -> Array:
    return shard.heads


def _query_rank(model: Model, shard: Shard) -> Array:
    return np.maximum(shard.query_rank, 1.0)


def _key_rank(model: Model, shard: Shard) -> Array:
    return model.kv_lora_rank


def _nope(model: Model, shard: Shard) -> Array:
    return np.asarray(model.qk_head_size - model.qk_rope_head_size)


def _none(model: Model, shard: Shard) -> Array:
    return np.zeros_like(shard.heads)


def _output_rank(model: Model, shard: Shard) -> Array:
    return np.maximum(model.output_lora_rank, 1.0)


def _qkv(model: Model, shard: Shard) -> Array:
    queries = shard.heads * (1.0 + model.attention_gate)
    return np.asarray((queries + 2.0 * shard.groups) * model.head_size)


def _indexed(model: Model) -> Array:
    return divide(model.num_index_layers, model.num_attention_layers)


def _linear_inputs(model: Model, shard: Shard) -> Array:
    """Projected inputs, and what the convolution of a gated delta net puts out; Mamba-2 computes that again (T. Dao and
    A. Gu, "Transformers are SSMs", 2024, arXiv:2405.21060, section 7).
    """
    keys, values = shard.linear_keys, shard.linear_values
    return np.asarray(2.0 * (keys + values) + (1.0 - model.state_space) * (2.0 * keys + values))


def _latent_size(model: Model, shard: Shard) -> Array:
    return np.maximum(model.moe_latent_size, 1.0)


_LATENT_EXPERTS = positive(lambda m: m.moe_latent_size)

# fmt: off
PLAIN = Block("attention", (
    Operator("qkv", _qkv, _hidden, _qkv),
    Operator("attention output", _hidden, lambda m, s: s.heads * m.head_size, _values),
))
# The expansion of keys and values is folded into queries and outputs when decoding: absorbed.
LATENT = Block("attention", (
    Operator("query compression", _query_rank, _hidden,
             lambda m, s: 2.0 * m.q_lora_rank, exists=positive(lambda m: m.q_lora_rank)),  # saved around its norm
    Operator("query expansion", _queries, _query_rank, _queries),
    Operator("key and value compression", lambda m, s: m.kv_lora_rank + m.qk_rope_head_size, _hidden,
             lambda m, s: 2.0 * m.kv_lora_rank + m.qk_rope_head_size),
    Operator("key and value expansion", lambda m, s: s.heads * (_nope(m, s) + m.v_head_size), _key_rank,
             lambda m, s: s.heads * (m.qk_head_size + m.v_head_size), rows="context", served=WIDE, absorbed=False),
    Operator("query absorption", _key_rank, _nope, batch=_heads, held=_none, served=WIDE, absorbed=True),
    Operator("value expansion", lambda m, s: m.v_head_size, _key_rank,
             batch=_heads, held=_none, served=WIDE, absorbed=True),
    Operator("attention output", _hidden, _values, _values),
))
# All heads read one vector per token that is key and value (DeepSeek-V4).
SHARED_VECTOR = Block("attention", (
    Operator("query compression", _query_rank, _hidden, lambda m, s: 2.0 * m.q_lora_rank),
    Operator("query expansion", lambda m, s: s.heads * m.head_size, _query_rank, _values),
    Operator("key and value", lambda m, s: m.head_size, _hidden, lambda m, s: m.head_size),
    Operator("output compression", _output_rank, lambda m, s: s.heads * m.head_size / s.output_groups, _values,
             batch=lambda m, s: s.output_groups),
    Operator("attention output", _hidden, lambda m, s: s.output_groups * _output_rank(m, s),
             lambda m, s: s.output_groups * m.output_lora_rank),
))
# Of sparse attention; layers that compress their cache pool it with a gate as wide as the entries.
INDEX = Block("attention", (
    Operator("index query", lambda m, s: np.maximum(s.index_heads, 1.0) * np.maximum(m.index_size, 1.0), _query_rank,
             layers=_indexed),
    Operator("index key", lambda m, s: np.maximum(np.where(m.selected_ratio > 1.0, 4.0, 1.0) * m.index_size, 1.0),
             _hidden, layers=_indexed),
    Operator("index weights", lambda m, s: np.maximum(s.index_heads, 1.0), _hidden,
             layers=lambda m: np.where(m.q_lora_rank > 0.0, _indexed(m), 0.0), served=WIDE),
    Operator("pooling of selected", lambda m, s: 4.0 * m.head_size, _hidden,  # entries overlap
             layers=lambda m: np.where(m.selected_ratio > 1.0, divide(m.num_selected_layers, m.num_layers), 0.0),
             served=WIDE),
    Operator("pooling of compressed", lambda m, s: 2.0 * m.head_size, _hidden,
             layers=lambda m: divide(m.num_compressed_layers, m.num_attention_layers), served=WIDE),
))
# Gated delta net, or Mamba-2, whose input holds the step of each head and has no gates; steps are in 16 bits too.
LINEAR = Block("linear", (
    Operator("linear attention input",
             lambda m, s: 2.0 * (s.linear_keys + s.linear_values) + m.state_space * s.value_heads, _hidden,
             _linear_inputs, held=lambda m, s: 2.0 * (s.linear_keys + s.linear_values) * m.hidden_size),
    Operator("linear attention gates", lambda m, s: 2.0 * s.value_heads, _hidden, lambda m, s: s.value_heads,
             exists=lambda m: np.asarray(1.0 - m.state_space),
             held=lambda m, s: (2.0 - m.state_space) * s.value_heads * m.hidden_size, served=WIDE),
    Operator("linear attention output", _hidden, lambda m, s: s.linear_values,
             lambda m, s: 2.0 * s.linear_values),  # output of the scan before and after its norm
))
MLP = Block("mlp", _feed_forward("mlp", lambda m: m.hidden_size, lambda m, s: m.ffn_hidden_size / s.ranks, "tokens"))
EXPERTS = Block("moe", _feed_forward(
    "experts", lambda m: m.expert_hidden_size, lambda m, s: m.expert_ffn_hidden_size / s.expert_ranks, "per_expert"))
SHARED_EXPERT = Block("moe", _feed_forward(
    "shared expert", lambda m: m.hidden_size, lambda m, s: np.maximum(m.shared_ffn_hidden_size / s.ranks, 1.0),
    "tokens", positive(lambda m: m.shared_ffn_hidden_size)))
ROUTER = Block("moe", (
    Operator("router", lambda m, s: m.num_experts, _hidden, rows="routed",
             held=lambda m, s: m.hidden_size * (m.num_experts + m.shared_gate)),
), WIDE)
# Of routed experts (Nemotron 3 Super); every rank holds both matrices whole.
LATENT_SPACE = Block("moe", (
    Operator("expert compression", _latent_size, _hidden, rows="routed", exists=_LATENT_EXPERTS),
    Operator("expert expansion", _hidden, _latent_size, rows="routed", exists=_LATENT_EXPERTS),
))
# Hidden state and embedding, side by side, to the hidden size.
MTP = Block("mtp", (
    Operator("mtp projection", lambda m, s: m.hidden_size / s.ranks, lambda m, s: 2.0 * m.hidden_size),
))
HEAD = Block("head", (Operator("logits", lambda m, s: s.split(m.vocab_size), _hidden, rows="sampled"),), WIDE)
# fmt: on
FEED_FORWARD = (MLP, EXPERTS, SHARED_EXPERT)  # blocks that an expert pool computes; the attention pool has all others


@cache
def expanded(block: Block) -> Block:
    """A block without the absorbed form of latent attention: the products of training."""
    return block._replace(operators=tuple(operator for operator in block.operators if not operator.absorbed))


def products(block: Block, shard: Shard, tokens: Tokens) -> Gemms:
    """Products of a block on one rank in the forward pass; of models that lack one its batch is 0.

    Llama 3.1 8B on two ranks: (32 + 8 + 8) x 128 / 2 columns of queries, keys and values; 32 x 128 / 2 deep.

    >>> llama = Model.of(num_attention_heads=32, num_query_groups=8, head_size=128, hidden_size=4096)
    >>> gemms = products(PLAIN, Shard(llama, np.array([2.0])), Tokens(*np.full((4, 1), 4096.0)))
    >>> gemms.n.tolist(), gemms.k.tolist()
    ([[3072.0, 4096.0]], [[4096.0, 2048.0]])
    """
    model, operators = shard.model, block.operators
    n, k = shard.shape(block)
    m = side_by_side(*(getattr(tokens, operator.rows) for operator in operators))
    if operators[0].rows == "per_expert":
        return Gemms(block.names, m, n, k, side_by_side(*[tokens.experts] * len(operators)))
    if not any(operator.batch or operator.exists for operator in operators):
        return Gemms(block.names, m, n, k, ones(n))
    counts = [1.0 if operator.batch is None else operator.batch(model, shard) for operator in operators]
    exists = [1.0 if operator.exists is None else operator.exists(model) for operator in operators]
    batch = side_by_side(*(count * there for count, there in zip(counts, exists, strict=True)), shard.heads)[:, :-1]
    return Gemms(block.names, m, n, k, batch)


def weights(block: Block, shard: Shard, operators: Iterable[Operator] | None = None) -> Array:
    """Weights of a block on one rank, mean over the layers that have it, or of some of its products, (rows,). [-]

    Llama 3.1 8B, gate, up and down: 3 x 4096 x 14336.

    >>> weights(MLP, Shard(Model.of(hidden_size=4096, ffn_hidden_size=14336, gated_mlp=1), np.ones(1))).tolist()
    [176160768.0]
    """
    if operators is None:
        if id(block) not in shard.weights:
            shard.weights[id(block)] = weights(block, shard, block.operators)
        return shard.weights[id(block)]
    model, result = shard.model, np.zeros(())
    for operator in operators:
        if operator.held is not None:
            number = operator.held(model, shard)
        else:
            number = operator.n(model, shard) * operator.k(model, shard)
            if operator.batch is not None:
                number = number * operator.batch(model, shard)
            if operator.exists is not None:
                number = number * operator.exists(model)
        if operator.layers is not None:
            number = number * operator.layers(model)
        result = result + number
    return np.asarray(result)


def saved_elements(block: Block, shard: Shard) -> Array:
    """Elements per token that the backward pass of a block needs on one rank, mean over its layers, (rows,). [-]"""
    model = shard.model
    saved = [
        operator.saved(model, shard) * (1.0 if operator.layers is None else operator.layers(model))
        for operator in block.operators
        if operator.saved is not None
    ]
    return np.asarray(sum(saved[1:], saved[0]))
