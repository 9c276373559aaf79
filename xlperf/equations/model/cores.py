"""Kinds of attention between the projections, each declared once: layers, kernels, cache and state.

A :class:`Core` gives the layers that have it, its kernels in training, prefill and decode, the entries that it caches
and the state of a sequence. Training, serving, memory and ``explain`` loop over :func:`cores_of`. A new kind is a core
here, its shapes as fields of :class:`Model`, their columns in the sheet ``models`` and their reading; projections of
its own are a block of :mod:`xlperf.equations.model.blocks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, divide, some
from xlperf.equations.model import linear_attention
from xlperf.equations.model.blocks import Shard
from xlperf.equations.model.model import Architecture, Model


def entries_seen(first: Numeric, last: Numeric, ratio: Numeric, limit: Numeric) -> Array:
    r"""Mean entries that the queries from one context length to another attend to.

    .. math:: E = \frac{1}{b - a} \int_a^b \min\left(\frac{x}{r}, K\right) dx

    Source: DeepSeek-AI, "DeepSeek-V3.2: pushing the frontier of open large language models", 2025, arXiv:2512.02556,
    section 2.1 (top-k selection).

    >>> float(entries_seen(0.0, 16.0, 1.0, 8.0))  # Half of 8 up to context 8, 8 from there to 16
    6.0
    >>> entries_seen([0.0, 0.0], 16.0, 4.0, [8.0, 2.0]).tolist()
    [2.0, 1.5]

    Parameters
    ----------
    first : Tokens a before the first query. [-]
    last : Tokens b up to the last query; where it is a, the entries at that context. [-]
    ratio : Tokens r of an entry. [-]
    limit : Entries K that are selected at most; infinite where all are seen. [-]

    Returns
    -------
    entries : Mean over the queries. [-]
    """
    start, end, each, most = array(first), array(last), array(ratio), array(limit)
    knee = np.minimum(most * each, np.maximum(start, end))
    rising = (np.minimum(end, knee) ** 2 - np.minimum(start, knee) ** 2) / (2.0 * each)
    level = knee / each * (np.maximum(end, knee) - np.maximum(start, knee))
    mean = divide(rising + level, end - start)
    return np.asarray(np.where(end > start, mean, np.minimum(end / each, most)) + 0.0 * (start + mean))


def _index_flop(queries: Array | float, entries: Array, heads: Array, width: Array) -> Array:
    """FLOP of scoring entries of a cache for queries: a product for each head (arXiv:2512.02556, eq. 1). [FLOP]"""
    return np.asarray(2.0 * queries * entries * heads * width)


def scores_per_entry(model: Model, heads: Array) -> Array:
    """Scores that an index writes per entry, (rows,): one for the sum over its heads, or one per head and block. [-]"""
    return np.where(model.index_block > 1.0, heads / model.index_block, 1.0)


def stream_passes(model: Model) -> Array:
    """Extra passes over the residual stream of a block with several streams, (rows,); 0 for one stream. [-] A block
    reads all streams and mixes them into its input, reads and writes all with its output (hyper-connections,
    arXiv:2409.19606, section 2).
    """
    streams = model.residual_streams
    return np.where(streams > 1.0, 3.0 * streams - 2.0, 0.0)


_WORD = 4.0  # bytes of a score [B]
_GRADIENT_WORK = 2.0  # of an index: two products for one
_SELECTIVE_GRADIENT = 2.5  # work of the gradients of a selective scan, which is computed again


class Flash(NamedTuple):
    """Flash attention, (rows,): queries of every head on its keys."""

    batch: Array  # sequences [-]
    heads: Array  # query heads [-]
    groups: Array  # key and value heads [-]
    queries: Array  # of a sequence [-]
    keys: Array  # of a sequence; entries of each query if ``cached`` are given [-]
    head_size: Array  # [-]
    causal: Array  # 1: a query sees keys up to its own position [-]
    longer: Array | float = 1.0  # mean over prompts of unequal lengths, relative to the mean prompt [-]
    cached: Array | None = None  # entries of a sequence of which each query gathers its own; None: all are read [-]
    selected: bool = False  # whether a query gathers entries that it selects


class Read(NamedTuple):
    """Decode attention that reads a cache, (rows, 2) for a context below and one above the mean."""

    entries: Array  # that each query attends to [-]
    alone: bool = False  # whether each token reads entries of its own, not those of its sequence
    near: bool = False  # whether layers with a window read them, with heads of their own


class Scores(NamedTuple):
    """Products on the matrix units beside traffic, (rows,) or (rows, contexts)."""

    flop: Array  # [FLOP]
    traffic: Array  # [B]


class Stream(NamedTuple):
    """Element-wise kernel, (rows,)."""

    flop: Array  # [FLOP]
    traffic: Array  # [B]


Kernel = Flash | Read | Scores | Stream | linear_attention.Scan


class Trained(NamedTuple):
    """Kernel of a core in training; flash attention has its gradient beside it."""

    name: str
    kernel: Kernel
    phase: str = "forward"
    calls: Array | float = 1.0  # per layer [-]


@dataclass(frozen=True, eq=False)
class _Call:
    """Models on a rank, and how they store activations."""

    shard: Shard
    architecture: Architecture
    element_size: Array  # bytes of an activation [B]

    @property
    def model(self) -> Model:
        """The models."""
        return self.shard.model

    @property
    def groups(self) -> Array:
        """Key and value heads of attention with expanded keys. [-]"""
        return self.shard.heads if self.architecture.latent_attention else self.shard.groups

    @property
    def near(self) -> Shard:
        """The ranks as layers with a window see them. [-]"""
        return self.shard.local if self.architecture.shapes else self.shard

    @property
    def near_groups(self) -> Array:
        """Key and value heads of layers with a window. [-]"""
        return self.near.groups if self.architecture.shapes else self.groups

    @property
    def kind(self) -> linear_attention.LinearKind:
        """Kind of the linear layers."""
        return linear_attention.KINDS[self.architecture.linear_kind]

    @property
    def sparse_groups(self) -> tuple[Array, Array]:
        """Key and value heads of sparse attention, absorbed if latent, and their width. [-]"""
        model = self.model
        if not self.architecture.latent_attention:
            return self.shard.groups, model.head_size
        return np.ones_like(self.shard.heads), model.kv_lora_rank + 0.5 * model.qk_rope_head_size


@dataclass(frozen=True, eq=False)
class Sequences(_Call):
    """Trained sequences of a micro-batch on a rank, (rows,)."""

    tokens: Array  # of a micro-batch [-]
    length: Array  # tokens of a sequence [-]
    batch: Array  # sequences of a micro-batch [-]
    context_parallel: Array  # ranks that share a sequence [-]
    rings: Array  # ranks that keys pass along, 1 without a ring [-]
    uneven: np.ndarray  # ranks have parts of unequal work
    gathers: np.ndarray  # ranks gather the keys before theirs


@dataclass(frozen=True, eq=False)
class Prompts(_Call):
    """Prompts of one round of a prefill on a rank, (rows,)."""

    number: Array  # prompts [-]
    passes: Array  # passes of the round [-]
    length: Array  # tokens of a prompt [-]
    new: Array  # tokens that are not in the cache [-]
    own: Array  # new tokens of a rank [-]
    longer: Array  # mean square over squared mean of prompts [-]
    context_parallel: Array  # ranks that share a prompt [-]

    @property
    def queries(self) -> Array:
        """Tokens of a pass. [-]"""
        return self.number * self.own / self.passes

    def seen(self, ratio: Array | float, limit: Array | float) -> Array:
        """Mean entries that a query attends to. [-]"""
        return entries_seen(self.length - self.new, self.length, ratio, limit)


@dataclass(frozen=True, eq=False)
class Steps(_Call):
    """Sequences of a decode step on a rank, (rows,)."""

    sequences: Array  # [-]
    tokens: Array  # of a sequence, drafted ones included [-]
    contexts: Array  # below and above the mean, (rows, 2) [-]
    context_parallel: Array  # ranks that share a context [-]


@dataclass(frozen=True, eq=False)
class Core:
    """One kind of attention."""

    name: str  # of its kernel in serving
    layers: Callable[[Model], Array]  # number of layers that have it [-]
    exists: Callable[[Architecture], bool]
    train: Callable[[Sequences], Iterable[Trained]]
    prefill: Callable[[Prompts], Kernel]
    decode: Callable[[Steps], Kernel]
    place: str = "core"  # of its kernels in a trained layer
    # Entries that it caches of a context (tokens, 1: engine holds the whole history of windows, ranks that share it)
    entries: Callable[[Model, Array, Array, Array], Array] | None = None
    state: Callable[[Shard, Array], Array] | None = None  # bytes of a sequence; second argument: of an activation [B]
    index: Callable[[Model], Array] | None = None  # bytes of index keys per token and layer [B]
    # FLOP per trained token and layer, a causal mask not counted, by (model, sequence length) [FLOP]
    keys: Callable[[Model, Array], Array] | None = None  # that a query attends to, for FLOP of the model [-]
    other_flop: Callable[[Model, Array], Array] | None = None  # per token and layer beside attention scores [FLOP]
    families: tuple[str, str] | None = None  # calibration of its kernels in prefill and decode; None: of attention
    covered: Callable[[Model, Array], np.ndarray] | None = None  # sequences over which it equals full attention

    def share(self, model: Model) -> Array:
        """Share of the layers that have it, (rows,). [-]"""
        return divide(self.layers(model), model.num_layers)

    def shapes(self, model: Model) -> Model:
        """Models with the heads of its layers."""
        return model.local if self.name == LOCAL.name and some(model.local_heads) else model


def _full_train(call: Sequences) -> Iterable[Trained]:
    """Attention to the own part of the sequence, causal, then to the parts that a context ring passes on."""
    model, shard, length, rings = call.model, call.shard, call.length, call.rings
    head_size, one = 0.5 * (model.qk_head_size + model.v_head_size), np.ones_like(length)
    batch = call.batch / (call.context_parallel / rings)
    # The rank with the last part of the sequence sees all keys before it: 2 - 1/c of the mean work.
    batch = np.where(call.gathers & call.uneven, batch * (2.0 - 1.0 / call.context_parallel), batch)
    part = length / rings
    yield Trained("flash attention", Flash(batch, shard.heads, call.groups, part, part, head_size, one))
    if np.count_nonzero(rings > 1.0):
        piece = length / call.context_parallel
        seen = np.where(call.uneven, piece, 0.5 * piece)
        passed = Flash(batch, shard.heads, call.groups, piece, seen, head_size, 0.0 * one)
        yield Trained("flash attention", passed, calls=np.where(rings > 1.0, rings - 1.0, 0.0))


def _full_prefill(call: Prompts) -> Flash:
    # Of a prompt that ranks share each computes an early and a late part: queries see the mean of its keys.
    seen = np.where(call.context_parallel > 1.0, call.length - 0.5 * (call.new - call.own), call.length)
    shape = call.number, call.shard.heads, call.groups, call.own, seen, _prefill_width(call), np.ones_like(seen)
    return Flash(*shape, call.longer)


def _prefill_width(call: Prompts) -> Array:
    model = call.model
    return 0.5 * (model.qk_head_size + model.v_head_size) if call.architecture.latent_attention else model.head_size


FULL = Core(
    "attention",
    layers=lambda model: model.num_global_layers,
    exists=lambda architecture: True,
    train=_full_train,
    prefill=_full_prefill,
    decode=lambda call: Read(call.contexts / call.context_parallel[:, None]),
    entries=lambda model, context, whole, ranks: np.ceil(context / ranks),
    keys=lambda model, length: length,
)


def _window(model: Model, length: Array) -> tuple[Array, Array]:
    """Queries and keys of attention with as many query-key pairs as a window or chunk. [-]"""
    window = np.minimum(model.window, length)
    return window, np.where(model.chunked > 0.0, window, window * (1.0 - window / (2.0 * length)))


def _local_train(call: Sequences) -> Iterable[Trained]:
    model, (window, keys) = call.near.model, _window(call.model, call.length)
    batch = call.batch / call.context_parallel * (call.length / window)
    head_size = 0.5 * (model.qk_head_size + model.v_head_size)
    shape = batch, call.near.heads, call.near_groups, window, keys, head_size, model.chunked
    yield Trained("flash attention", Flash(*shape))


def _local_prefill(call: Prompts) -> Flash:
    window, keys = _window(call.model, call.length)
    # a prompt is cut into windows, each a sequence of its own
    batch, queries = call.number * np.maximum(call.own / window, 1.0), np.minimum(call.own, window)
    width = call.near.model.head_size if call.architecture.shapes else _prefill_width(call)
    return Flash(batch, call.near.heads, call.near_groups, queries, keys, width, call.model.chunked)


def _local_decode(call: Steps) -> Read:
    model = call.model
    # Beyond its first chunk a token sees half of one on average.
    reach = np.where(model.chunked[:, None] > 0.0, 0.5, 1.0) * model.window[:, None]
    seen = np.where(call.contexts <= model.window[:, None], call.contexts, reach)
    return Read(seen / call.context_parallel[:, None], near=True)


LOCAL = Core(
    "local attention",
    layers=lambda model: model.num_local_layers,
    exists=lambda architecture: architecture.local_attention,
    train=_local_train,
    prefill=_local_prefill,
    decode=_local_decode,
    place="local core",
    entries=lambda model, context, whole, ranks: np.ceil(
        np.where(whole > 0.0, context, np.minimum(context, model.window)) / ranks
    ),
    keys=lambda model, length: np.minimum(model.window, length),
)


def _selects(name: str, ratio: str, limit: str | None, layers: str) -> Core:
    """Sparse attention to all entries of a cache or the best ones, beside a window; latent attention is absorbed.
    ``ratio``, ``limit`` and ``layers`` name columns of the model: tokens of an entry, entries that an index selects
    (None: all), and layers of the kind. In each phase a query reads entries (of ``ratio`` tokens, at most the limit)
    and the recent tokens of the window.
    """

    def most(model: Model) -> Array:
        return getattr(model, limit) if limit else np.full_like(model.num_layers, np.inf)

    def train(call: Sequences) -> Iterable[Trained]:
        model, none, length = call.model, 0.0 * call.tokens, call.length
        near = entries_seen(none, length, 1.0, model.sparse_window)
        entries = entries_seen(none, length, getattr(model, ratio), most(model)) + near
        groups, head_size = call.sparse_groups
        shape = call.batch, call.shard.heads, groups, length, entries, head_size + none, none
        yield Trained(name, Flash(*shape, cached=length, selected=limit is not None))

    def prefill(call: Prompts) -> Flash:
        model, (groups, head_size) = call.model, call.sparse_groups
        near = call.seen(1.0, model.sparse_window)
        entries = call.seen(getattr(model, ratio), most(model)) * (1.0 if limit else call.longer) + near
        shape = call.number, call.shard.heads, groups, call.own, entries, head_size, 0.0 * call.shard.heads
        return Flash(*shape, cached=call.length, selected=limit is not None)

    def decode(call: Steps) -> Read:
        model = call.model
        near = np.minimum(call.contexts, model.sparse_window[:, None])
        return Read(np.minimum(call.contexts / getattr(model, ratio)[:, None], most(model)[:, None]) + near, alone=True)

    def entries(model: Model, context: Array, whole: Array, ranks: Array) -> Array:
        tokens = np.ceil(context)
        return np.asarray(np.minimum(tokens, model.sparse_window) + tokens / getattr(model, ratio))

    def keys(model: Model, length: Array) -> Array:
        far = np.minimum(most(model), length / getattr(model, ratio))
        return np.asarray(far + np.minimum(model.sparse_window, length))

    def covered(model: Model, length: Array) -> np.ndarray:
        return np.asarray((model.selected_ratio == 1.0) & (model.index_top_k >= length))

    return Core(
        name,
        layers=lambda model: getattr(model, layers),
        exists=lambda architecture: architecture.sparse_attention,
        train=train,
        prefill=prefill,
        decode=decode,
        entries=entries,
        keys=keys,
        covered=covered if limit else None,
    )


SELECTED = _selects("selected attention", "selected_ratio", "index_top_k", "num_selected_layers")
COMPRESSED = _selects("compressed attention", "compressed_ratio", None, "num_compressed_layers")


def _scored(call: _Call, queries: Array, seen: Array, cached: Array, key_element_size: Array) -> Scores:
    """FLOP and traffic of an index (arXiv:2512.02556, section 2.1). ``seen``: entries that each query scores;
    ``cached``: entries whose keys are read, of all sequences.
    """
    model, heads = call.model, call.shard.index_heads
    # keys are read; scores are written, and read again to select the largest
    keys = cached * model.index_size * key_element_size
    scores = 2.0 * queries * seen * scores_per_entry(model, heads) * _WORD
    return Scores(_index_flop(queries, seen, heads, model.index_size), np.asarray(keys + scores))


def _index_train(call: Sequences) -> Iterable[Trained]:
    """Scores and selection of the index of a layer, the target of its loss, and its gradients.

    The loss is the divergence of the scores of the index from the attention scores on the selected entries, summed over
    the heads (arXiv:2512.02556 equation 4). Fused attention saves no scores: queries and keys are multiplied again
    (Megatron-Core dsa_cudnn_kernels.py). Its gradients take two products of the index with these entries.
    """
    model, none, tokens = call.model, 0.0 * call.length, call.tokens
    cached = tokens / model.selected_ratio
    # mean entries that a query scores, and that it selects
    seen, selected = (
        entries_seen(none, call.length, model.selected_ratio, most) for most in (np.inf, model.index_top_k)
    )
    learned = _scored(call, tokens, selected, cached, call.element_size)
    latent = call.architecture.latent_attention
    width = model.kv_lora_rank + model.qk_rope_head_size if latent else model.head_size + none
    target = _index_flop(tokens, selected, call.shard.heads, width)
    yield Trained("index", _scored(call, tokens, seen, cached, call.element_size))
    yield Trained("index target", Scores(target, 0.0 * learned.traffic), "backward")
    gradient = Scores(_GRADIENT_WORK * learned.flop, _GRADIENT_WORK * learned.traffic)
    yield Trained("index gradient", gradient, "backward")


def _index_prefill(call: Prompts) -> Scores:
    model = call.model
    seen = call.seen(model.selected_ratio, np.inf) * call.longer
    cached = call.number / call.passes * call.length / model.selected_ratio
    return _scored(call, call.queries, seen, cached, model.index_key_size)


def _index_decode(call: Steps) -> Scores:
    scored = (call.contexts / call.model.selected_ratio[:, None]).T
    queries, key_size = call.sequences * call.tokens, call.model.index_key_size
    # at a context below and one above the mean
    ends = [_scored(call, queries, seen, call.sequences * seen, key_size) for seen in scored]
    return Scores(*(np.stack(pair, axis=-1) for pair in zip(*ends, strict=True)))


INDEX = Core(
    "index",
    layers=lambda model: model.num_index_layers,
    exists=lambda architecture: architecture.sparse_attention,
    train=_index_train,
    prefill=_index_prefill,
    decode=_index_decode,
    index=lambda model: model.index_size * model.index_key_size / model.selected_ratio,
    other_flop=lambda model, length: _index_flop(
        1.0, length / model.selected_ratio, model.index_heads, model.index_size
    ),
    families=("attention", "attention"),
)


def _linear_train(call: Sequences) -> Iterable[Trained]:
    scan = call.kind.scan(call.shard, call.tokens, 0.0 * call.tokens, call.length, call.element_size)
    if scan is None:
        flop, traffic = linear_attention.selective_scan_work(call.shard, call.tokens, call.element_size)
        yield Trained("linear attention", Stream(flop, traffic))
        gradient = Stream(_SELECTIVE_GRADIENT * flop, _SELECTIVE_GRADIENT * traffic)
        yield Trained("linear attention gradient", gradient, "backward")
        return
    yield Trained("linear attention", scan)
    yield Trained("linear attention gradient", linear_attention.scan_gradient(scan), "backward")


def _linear_prefill(call: Prompts) -> linear_attention.Scan | Stream:
    # sequences of a pass whose states are read and written, and consecutive tokens of each
    together, own = np.maximum(call.number / call.passes, 1.0), np.minimum(call.own, call.queries)
    scan = call.kind.scan(call.shard, call.queries, together, own, call.element_size)
    return scan or Stream(*linear_attention.selective_scan_work(call.shard, call.queries, call.element_size))


def _linear_decode(call: Steps) -> Stream:
    """The recurrence of each token, which moves the states; a convolution alone has none."""
    model, shard = call.model, call.shard
    heads, key_heads = shard.value_heads, shard.split(model.linear_key_heads)
    sizes = (model.linear_key_size, model.linear_value_size)
    flop = linear_attention.recurrent_step_flop(call.sequences * call.tokens, heads, *sizes)
    if not call.kind.stateful:
        return Stream(0.0 * flop, 0.0 * flop)
    bytes_of = (call.element_size, model.linear_state_size)
    return Stream(
        flop, linear_attention.recurrent_step_traffic(call.sequences, call.tokens, heads, key_heads, *sizes, *bytes_of)
    )


LINEAR = Core(
    "linear attention",
    layers=lambda model: model.num_linear_layers,
    exists=lambda architecture: architecture.linear_attention,
    train=_linear_train,
    prefill=_linear_prefill,
    decode=_linear_decode,
    place="linear",
    state=linear_attention.linear_state_size,
    other_flop=lambda model, length: linear_attention.linear_of(
        model,
        lambda kind: (
            float(kind.stateful)
            * linear_attention.recurrent_step_flop(
                1.0, model.linear_value_heads, model.linear_key_size, model.linear_value_size
            )
        ),
    ),
    families=("linear_attention", "vector"),
)
CORES = (FULL, LOCAL, SELECTED, INDEX, COMPRESSED, LINEAR)


@cache
def cores_of(architecture: Architecture) -> tuple[Core, ...]:
    """Cores of the layers of models of an architecture."""
    return tuple(core for core in CORES if core.exists(architecture))


def keeps_states(architecture: Architecture) -> bool:
    """Whether a sequence has a state of a fixed size beside its cache."""
    return any(core.state is not None for core in cores_of(architecture))


def own_families(architecture: Architecture) -> tuple[str, ...]:
    """Calibration families of cores that no other kernel of a layer has."""
    families = {family for core in cores_of(architecture) for family in core.families or ()}
    return tuple(sorted(families - {"attention", "vector"}))
