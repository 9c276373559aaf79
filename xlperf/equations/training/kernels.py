"""Kernels of a training step: the blocks of a layer, the embedding and the head, for one micro-batch.

The *place* of a part: ``attention`` (projections of every layer), ``core`` and ``local core`` (attention itself, of
layers that attend to everything or within a window), ``linear`` (linear attention with its scan), ``mlp`` and ``moe``
(dense and mixture-of-experts feed-forward layers), ``embedding``, ``head`` and ``mtp`` (entry and exit of a multi-token
prediction module).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from xlperf.base.arrays import Array, ceil_div, divide, ones, side_by_side, some, total
from xlperf.equations.hardware.attention import attention_time
from xlperf.equations.hardware.gemm import gemm_time, product_traffic
from xlperf.equations.hardware.roofline import CORE, PLANNED, WIDE, scan_time, score_time, transfer_time, vector_time
from xlperf.equations.model import operators
from xlperf.equations.model.blocks import MTP, SHARED_EXPERT, Block, Gemms, Tokens, expanded, products
from xlperf.equations.model.cores import FULL, Core, Flash, Scores, Sequences, Stream, Trained, cores_of, stream_passes
from xlperf.equations.model.layers import layer_blocks
from xlperf.equations.model.linear_attention import Scan
from xlperf.equations.plan.records import WORD, ContextMethod, CrossEntropy, Graphs, QuantizedCopies, TokenDispatch
from xlperf.equations.plan.training_plan import TrainingPlan
from xlperf.equations.training.setting import MASK, Part, Setting, adapter_gemms, adapter_vectors, frozen_products
from xlperf.equations.training.setting import PLACES as ADAPTED

LAYER_PLACES = ("attention", "core", "local core", "mlp", "moe", "linear")
CORES = ("core", "local core")
_FAMILY = {PLANNED: "gemm", WIDE: "gemm_wide"}
_STANDALONE = ("attention output", "local attention output", "experts up")
"""Products whose input comes from no norm or activation: a cast of it is a kernel of its own."""


@dataclass
class _Collected:
    """Products of one precision, timed in one call and split into parts again."""

    marks: list[tuple[str, str, int]] = field(default_factory=list)  # phase, place and number of products
    gemms: list[Gemms] = field(default_factory=list)
    output: list[Array] = field(default_factory=list)  # bytes of an output element, (rows, operators) [B]
    shares: list[Array | None] = field(default_factory=list)  # calls per block, (rows, operators); None: 1
    forward: list[tuple[str, Gemms]] = field(default_factory=list)  # products of the forward pass by place

    def add_with_gradients(
        self, place: str, gemms: Gemms, output_size: Array, gradient_size: Array, shares: Array | None = None
    ) -> None:
        """Products, their input gradients and weight gradients; ``shares``: calls per block, (rows, operators)."""
        count = len(gemms.names)
        self.forward.append((place, gemms))
        self.marks += [("forward", place, count), ("backward", place, 2 * count)]
        self.gemms += [gemms, operators.backward_gemms(gemms)]
        self.output.append(np.repeat(output_size[:, None], count, axis=-1))
        self.output.append(np.repeat(side_by_side(output_size, 2.0 * gradient_size), count, axis=-1))
        self.shares += [shares, None if shares is None else np.tile(shares, 2)]

    def parts(self, setting: Setting, precision: int) -> list[Part]:
        """Products with their times and calls, by phase and place."""
        whole, output = operators.concatenated(*self.gemms), np.concatenate(self.output, axis=-1)
        time = _product_time(setting, precision, whole, output)
        # calibrated slowdown against the bare kernel, larger for gradients
        constants = setting.constants[_FAMILY[precision]]
        backward = np.repeat([phase == "backward" for phase, *_ in self.marks], [count for *_, count in self.marks])
        time = constants["training_slowdown"] * np.where(backward, constants["gradient_slowdown"], 1.0) * time
        if precision == PLANNED and some(setting.plan.wide_layers):
            # some layers are wide: mean over the layers
            share = (setting.plan.wide_layers / setting.model.num_layers)[:, None]
            slow = _product_time(setting, WIDE, whole, output)
            slow = setting.constants[_FAMILY[WIDE]]["training_slowdown"] * slow
            time = np.where(share > 0.0, share * slow + (1.0 - share) * time, time)
        # products that a model lacks, and weight gradients of frozen weights, do not run
        calls = np.where(whole.batch > 0.0, 1.0, 0.0)
        time = np.where(whole.batch > 0.0, time, 0.0)
        if some(setting.plan.frozen):
            frozen = frozen_products(whole.names, setting.plan)
            calls, time = np.where(frozen, 0.0, calls), np.where(frozen, 0.0, time)
        if setting.architecture.experts and precision == PLANNED:
            grouped = _starting(whole.names, "experts")
            time = np.where(grouped, setting.constants["experts"]["product_slowdown"] * time, time)
        parts, start = [], 0
        for (phase, place, count), gemms, shares in zip(self.marks, self.gemms, self.shares, strict=True):
            cut = slice(start, start + count)
            often = calls[:, cut] if shares is None else calls[:, cut] * shares
            parts.append(Part(phase, "gemm", gemms.names, place, often, time[:, cut], gemms, precision=precision))
            start += count
        return parts


def _memory_bound(setting: Setting, groups: Sequence[tuple[str, str, operators.Vectors]]) -> list[Part]:
    """Memory-bound kernels by phase and place, timed in one call; a kernel without traffic does not run."""
    if not groups:
        return []
    traffic = np.concatenate([vectors.traffic for _, _, vectors in groups], axis=-1)
    time = vector_time(setting.device, setting.constants["vector"], traffic, 0.0)
    present = np.where(traffic > 0.0, 1.0, 0.0)
    parts, start = [], 0
    for phase, place, vectors in groups:
        cut = slice(start, start + len(vectors.names))
        calls = present[:, cut]
        parts.append(Part(phase, "vector", vectors.names, place, calls, time[:, cut], None, vectors.traffic, WIDE))
        start = cut.stop
    return parts


def _product_time(setting: Setting, precision: int, gemms: Gemms, output_size: Array) -> Array:
    """Time of products with inputs of a precision class, (rows, operators). [s]"""
    shape, rate = (*gemms.columns, _element_size(setting, precision), output_size), setting.device.rate(precision)
    return gemm_time(setting.device, setting.constants[_FAMILY[precision]], *shape, rate=rate)


def _element_size(setting: Setting, precision: int) -> Array:
    """Bytes of an input element, (rows, 1). [B]"""
    plan = setting.plan
    return (plan.product_size if precision == PLANNED else plan.element_size)[:, None]


def _sequences(setting: Setting) -> Sequences:
    """Sequences of a micro-batch on a rank; the index of sparse attention has 16-bit keys."""
    plan = setting.plan
    split = plan.context_parallel > 1
    return Sequences(
        setting.shard,
        setting.architecture,
        plan.element_size,
        tokens=plan.tokens,
        length=plan.sequence_length,
        batch=plan.micro_batch_size,
        context_parallel=plan.context_parallel,
        rings=np.where(split & (plan.context_method == ContextMethod.RING), plan.context_parallel, 1.0),
        uneven=plan.context_balance < 1,
        gathers=split & (plan.context_method == ContextMethod.ALL_GATHER),
    )


def _core_parts(setting: Setting) -> list[Part]:
    """Kernels of every core of the layers; an index that selects everything makes full attention."""
    model, plan = setting.model, setting.plan
    call, cores = _sequences(setting), cores_of(setting.architecture)
    # calls per attention block: shares of the layers if these differ in their cores
    shares = {core: ones(plan.tokens) for core in cores}
    within = [core for core in cores if core.place == "core"]
    if len(within) > 1:
        attended = divide(model.num_layers, model.num_attention_layers - model.num_local_layers)
        shares |= {core: core.share(model) for core in within}
        for core in within:
            if core.covered is not None:
                covered = core.covered(model, plan.sequence_length)
                shares[FULL] = shares[FULL] + np.where(covered, shares[core], 0.0)
                shares[core] = np.where(covered, 0.0, shares[core])
        shares |= {core: shares[core] * attended for core in within}
    parts: list[Part] = []
    for core in cores:
        share = shares[core] if core.place == "linear" else plan.flash_attention * shares[core]
        for trained in core.train(call):
            calls = (share * trained.calls)[:, None]
            parts += _TIMED[type(trained.kernel)](setting, core, trained, calls)
    return parts


def _flash_parts(setting: Setting, core: Core, trained: Trained, calls: Array) -> list[Part]:
    """Core attention, forward and backward. Gathered entries go through the last-level cache; the backward pass also
    adds their gradients there, in FP32.
    """
    kernel = trained.kernel
    assert isinstance(kernel, Flash)
    plan, device, constants, rate = setting.plan, setting.device, setting.constants, setting.device.rate(CORE)
    columns = tuple(values[:, None] for values in (*kernel[:7], plan.element_size))
    batch, heads, groups, queries, keys, head_size, *_ = columns
    gemms = Gemms((trained.name,), queries, keys, head_size, batch * heads)
    forward = attention_time(device, constants["attention"], *columns, rate=rate)
    backward = attention_time(device, constants["attention_backward"], *columns, rate=rate, direction="backward")
    if kernel.selected:
        shared = setting.model.shared_key_value > 0.0 if not setting.architecture.latent_attention else np.True_
        vectors = np.where(shared, 0.5, 1.0)[..., None]
        gathered = 2.0 * vectors * plan.tokens[:, None] * groups * keys * head_size * columns[-1]
        moved = transfer_time(gathered, device.l2_bandwidth)
        words = 1.0 + 2.0 * WORD / columns[-1]
        forward, backward = np.fmax(forward, moved), np.fmax(backward, words * moved)
    gradient = f"{trained.name} gradient"
    return [
        Part("forward", "attention", (trained.name,), core.place, calls, forward, gemms, precision=CORE),
        Part("backward", "attention_backward", (gradient,), core.place, calls, backward, gemms, precision=CORE),
    ]


def _score_parts(setting: Setting, core: Core, trained: Trained, calls: Array) -> list[Part]:
    """Products on the matrix units beside their traffic: the index of sparse attention."""
    kernel, device = trained.kernel, setting.device
    assert isinstance(kernel, Scores)
    flop, traffic = kernel.flop[:, None], kernel.traffic[:, None]
    time = score_time(device, setting.constants, flop, traffic)
    return [Part(trained.phase, "vector", (trained.name,), core.place, calls, time, None, traffic, CORE, flop)]


def _scan_parts(setting: Setting, core: Core, trained: Trained, calls: Array) -> list[Part]:
    """Scan of a layer of linear attention: no state comes in or goes out; of Mamba-1 on the vector units."""
    device, kernel = setting.device, trained.kernel
    flop, traffic, *chunks = (np.asarray(values)[:, None] for values in kernel)
    family, precision = ("linear_attention", CORE) if chunks else ("vector", WIDE)
    time = scan_time(device, setting.constants, flop, traffic, *chunks)
    return [Part(trained.phase, family, (trained.name,), core.place, calls, time, None, traffic, precision, flop)]


_TIMED: Mapping[type, Callable[[Setting, Core, Trained, Array], list[Part]]] = {
    Flash: _flash_parts, Scores: _score_parts, Scan: _scan_parts, Stream: _scan_parts,
}  # fmt: skip


def _trained_blocks(setting: Setting) -> Iterator[tuple[Block, Gemms]]:
    """Blocks of the layers, of MTP modules and of the head, with their products in the forward pass."""
    plan, model = setting.plan, setting.model
    experts: tuple[Array, ...] = ()
    routed = plan.tokens
    if setting.architecture.experts:
        routed, copies, held = setting.routed
        experts = (copies / held, held)
    tokens = Tokens(plan.tokens, routed, plan.tokens, plan.tokens, *experts)
    modules = (MTP,) if some(plan.mtp_layers) else ()
    for block in (*layer_blocks(setting.architecture), *modules):
        if block is SHARED_EXPERT and not some(model.shared_ffn_hidden_size):
            continue
        yield block, products(expanded(block), setting.shard, tokens)


def _gemm_parts(setting: Setting, wanted: Callable[[str], bool]) -> list[Part]:
    """Products of the layers with their gradients, and the kernels beside them: casts, adapters, gradient sums."""
    plan = setting.plan
    element, gradient = plan.element_size, plan.gradient_size
    if some(plan.adds_separately):  # the product writes its gradient once
        gradient = np.where(plan.adds_separately, 0.5 * element, gradient)
    collected = {PLANNED: _Collected(), WIDE: _Collected()}
    narrow, wide = collected.values()
    for block, gemms in _trained_blocks(setting):
        if not wanted(block.place):
            continue
        shares = _layer_shares(setting, block)
        collected[block.precision].add_with_gradients(block.place, gemms, element, gradient, shares)
    adapters: list[tuple[str, str, operators.Vectors]] = []
    if some(plan.frozen):
        for place, gemms in narrow.forward:
            if place in ADAPTED:
                wide.add_with_gradients(place, adapter_gemms(place, gemms, plan), element, gradient)
                for phase in ("forward", "backward"):
                    adapters.append((phase, place, adapter_vectors(place, gemms, plan, phase == "backward")))
    # Standard attention multiplies scores and values by themselves.
    if wanted("core") and some(plan.flash_attention < 1):
        present = np.broadcast_to((1.0 - plan.flash_attention)[:, None], (len(plan.tokens), 2))
        sequences = plan.micro_batch_size / plan.context_parallel
        scores = operators.attention_gemms(setting.shard, sequences, plan.sequence_length)
        scores = scores._replace(batch=scores.batch * present)
        wide.add_with_gradients("core", scores, element, 0.5 * element)
    parts = [part for precision, group in collected.items() if group.gemms for part in group.parts(setting, precision)]
    sums = _accumulation_parts(setting, parts)
    return parts + _cast_parts(setting, narrow) + _memory_bound(setting, adapters) + sums


def _accumulation_parts(setting: Setting, products_of_layers: list[Part]) -> list[Part]:
    """Passes that add the gradients of a micro-batch to the sum: two reads and a write."""
    plan = setting.plan
    if not some(plan.adds_separately):
        return []
    moved: dict[str, Array] = {}  # weights by place
    for part in products_of_layers:
        if part.phase == "forward" and part.place not in CORES and part.gemms is not None:
            weights = total(part.calls * part.gemms.batch * part.gemms.k * part.gemms.n)
            moved[part.place] = moved.get(part.place, 0.0) + weights
    sums = []
    for place, weights in moved.items():
        owners = plan.expert_zero_shards if place == "moe" else plan.zero_shards
        each = (plan.element_size + 2.0 * plan.gradient_size) / np.where(plan.sums_shards, owners, 1.0)
        traffic = np.where(plan.adds_separately, weights * each, 0.0)[:, None]
        sums.append(("backward", place, operators.Vectors((f"{place} gradient accumulation",), traffic)))
    return _memory_bound(setting, sums)


def _layer_shares(setting: Setting, block: Block) -> Array | None:
    """Calls per attention block of the operators of a block that only some layers have, (rows, operators)."""
    shares = [operator.layers(setting.model) for operator in block.operators if operator.layers is not None]
    return side_by_side(*shares) if shares else None


def _cast_parts(setting: Setting, narrow: _Collected) -> list[Part]:
    """Casts of inputs, gradients and weights to the precision of the products, if that is narrower.

    A cast reads a tensor, twice if the scale needs its largest element, and writes it in both layouts, or in one if the
    products read it by rows and by columns. A norm or an activation finds that element itself, or writes the quantized
    tensor at once if the scale is known. A tensor that is not saved is cast for each product, in the layout that it
    reads.
    """
    plan = setting.plan
    if not some(plan.quantized):
        return []
    element, size = plan.element_size[:, None], plan.product_size[:, None]
    read = plan.cast_reads[:, None] * element
    fused = plan.fused_reads[:, None] * element
    share = np.where(plan.quantized, setting.narrow_share, 0.0)[:, None]
    # Weights are cast once and kept, or with their gradients for each micro-batch; ``again``: inputs are cast anew.
    kept = (plan.quantized_copies != QuantizedCopies.NONE)[:, None]
    once = kept & ~(plan.regathers & (plan.quantized_copies == QuantizedCopies.KEPT))[:, None]
    again = np.where(kept, 0.0, 1.0)
    trained = np.where(plan.frozen[:, None], 0.0, 1.0)  # frozen weights need no gradient
    layouts = np.where(plan.frozen, 1.0, plan.layouts)[:, None]
    gemms = operators.concatenated(*(gemms for _, gemms in narrow.forward))
    batch = gemms.batch * _cast_shares(setting, narrow)
    inputs, gradients = batch * gemms.m * gemms.k, batch * gemms.m * gemms.n
    weights = np.where(once, 0.0, batch * gemms.k * gemms.n * (read + size))
    # inputs that a norm or an activation has just made, and gradients that an activation has made, are cast there
    made_narrow, taken_narrow = ~_starting(gemms.names, *_STANDALONE), _ending(gemms.names, "up")
    # traffic of casts of inputs (forward) and of output gradients (backward), per element
    shard, written = _cast_shards(plan)
    columns, rows = _gathered_products(gemms.names)
    forward = np.where(columns, shard, 1.0) * np.where(made_narrow, fused, read)
    forward = inputs * (forward + np.where(columns & (shard < 1.0), written, np.maximum(layouts - again, 1.0)) * size)
    backward = np.where(rows, shard, 1.0) * np.where(taken_narrow, fused, read)
    backward = gradients * (backward + np.where(rows & (shard < 1.0), written, layouts) * size)
    forward, backward = forward + weights, backward + again * trained * inputs * (read + size) + weights
    casts, start = [], 0
    for place, own in narrow.forward:
        cut = slice(start, start + len(own.names))
        for phase, name, traffic in (("forward", "casts", forward), ("backward", "casts of gradients", backward)):
            moved = np.maximum(share * total(traffic[:, cut])[:, None], 0.0)
            casts.append((phase, place, operators.Vectors((f"{place} {name}",), moved)))
        start = cut.stop
    return _memory_bound(setting, casts)


def _cast_shares(setting: Setting, narrow: _Collected) -> Array | float:
    """Calls per block of the products of layers whose heads differ, (rows, operators); 1 for models of one shape."""
    if not setting.architecture.shapes:
        return 1.0
    pairs = zip(narrow.shares[::2], narrow.forward, strict=True)  # forward passes alone
    return np.concatenate([ones(gemms.batch) if shares is None else shares for shares, (_, gemms) in pairs], axis=-1)


def _cast_shards(plan: TrainingPlan) -> tuple[Array, Array]:
    """Share of a tensor that a rank casts before the gather, and the copies that it writes and transposes, (rows, 1).

    With sequence parallelism ranks cast their shards and gather the result, once, or in both layouts if one cannot be
    made from the other (Transformer Engine: "All-gather of columnwise tensors"); if products need the other layout, the
    gathered tensor is read and written once more.
    """
    split = plan.keeps_copies & ~plan.frozen & (plan.sequence_parallel > 0)
    shard = np.where(split, 1.0 / plan.tensor_parallel, 1.0)
    turned = 2.0 * np.maximum(plan.layouts - plan.gathered_layouts, 0.0)
    return shard[:, None], (shard * plan.gathered_layouts + turned)[:, None]


@lru_cache(maxsize=64)
def _gathered_products(names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Products whose inputs, and products whose gradients, are gathered over the tensor-parallel ranks."""
    dense = ~_starting(names, "experts")
    columns, rows = _ending(names, "qkv") | _ending(names, "up"), _ending(names, "output") | _ending(names, "down")
    return dense & columns, dense & rows


def _stream_mixing(setting: Setting, backward: bool) -> Iterator[tuple[str, operators.Vectors]]:
    """Passes over several residual streams, for the models that have them."""
    model, plan = setting.model, setting.plan
    if some(model.residual_streams > 1.0) and some(mixed := stream_passes(model)):
        streams = plan.tokens * model.hidden_size / plan.stream_ranks * plan.element_size
        traffic = ((2.0 if backward else 1.0) * mixed * streams)[:, None]
        for place in ("attention", "mlp", "moe"):
            yield place, operators.Vectors(("mixing of streams",), traffic)


def _between(setting: Setting) -> operators.Between:
    """Tensors between the products of a layer, as the plan stores them."""
    plan = setting.plan
    return operators.Between(plan.tokens * setting.model.hidden_size / plan.stream_ranks, plan.element_size, MASK)


def _attention_kernels(setting: Setting, backward: bool) -> Iterator[tuple[str, operators.Vectors]]:
    """Kernels beside the products of attention: norm, rotary embedding, residual; softmax without flash attention."""
    plan, latent = setting.plan, setting.architecture.latent_attention
    pairs = plan.sequence_length * plan.sequence_length / plan.context_parallel
    scores = np.asarray((1.0 - plan.flash_attention) * plan.micro_batch_size * setting.shard.heads * pairs)
    vectors = operators.attention_vectors(setting.shard, plan.tokens, scores, _between(setting), latent, backward)
    if setting.architecture.shapes:  # mean over layers with a window and the others
        of_near = operators.attention_vectors(
            setting.shard.local, plan.tokens, scores, _between(setting), latent, backward
        )
        near = divide(setting.model.num_local_layers, setting.model.num_attention_layers)[:, None]
        vectors = vectors._replace(traffic=near * of_near.traffic + (1.0 - near) * vectors.traffic)
    for place, names, columns in _attention_places(vectors.names):
        yield place, operators.Vectors(names, vectors.traffic[:, columns])


def _feed_forward_kernels(setting: Setting, backward: bool) -> Iterator[tuple[str, operators.Vectors]]:
    """Kernels of dense layers, and of mixtures of experts, whose tokens are sorted by expert and back."""
    model, plan, tokens, between = setting.model, setting.plan, setting.plan.tokens, _between(setting)
    inner = tokens * model.ffn_hidden_size / plan.tensor_parallel
    yield "mlp", operators.mlp_vectors(model, inner, np.zeros(tokens.shape), between, backward)
    if not setting.architecture.experts:
        return
    _, copies, _ = setting.routed
    ffn = model.expert_ffn_hidden_size / plan.expert_tensor_parallel
    separate = np.where(plan.graphs != Graphs.STEP, copies, 0.0)  # fused ones take the activation in
    inner = separate * ffn + tokens * model.shared_ffn_hidden_size / plan.tensor_parallel
    # permutation of the tokens by expert
    slowdown = setting.constants["experts"]["move_slowdown"][:, 0]
    sorted_twice = np.where(plan.token_dispatch == TokenDispatch.COPIES, 2.0, 1.0)
    moved = slowdown * sorted_twice * copies / plan.expert_tensor_parallel * model.expert_hidden_size
    yield "moe", operators.mlp_vectors(model, inner, moved, between, backward)
    biased = np.where(plan.graphs != Graphs.STEP, model.bias_all, 0.0)
    if some(biased):
        yield "moe", operators.expert_bias_vectors(model, biased * copies, ffn, plan.element_size, WORD, backward)


def _other_kernels(setting: Setting, backward: bool) -> Iterator[tuple[str, operators.Vectors]]:
    """Kernels of linear attention and of MTP modules."""
    if setting.architecture.linear_attention:
        yield "linear", operators.linear_vectors(setting.shard, setting.plan.tokens, _between(setting), backward)
    if some(setting.plan.mtp_layers):
        yield "mtp", operators.mtp_vectors(setting.model, _between(setting), backward)


_LAYER_KERNELS = (_stream_mixing, _attention_kernels, _feed_forward_kernels, _other_kernels)
"""Memory-bound kernels of layers and MTP modules in one direction, with their place."""


def _vector_parts(setting: Setting, wanted: Callable[[str], bool]) -> list[Part]:
    """Memory-bound kernels of a micro-batch."""
    groups = [
        (phase, place, vectors)
        for phase in ("forward", "backward")
        for kernels in _LAYER_KERNELS
        for place, vectors in kernels(setting, phase == "backward")
    ]
    groups += [*ring_merges(setting), *outside_layers(setting)]
    return _memory_bound(setting, [group for group in groups if wanted(group[1])])


@lru_cache(maxsize=64)
def _starting(names: tuple[str, ...], *words: str) -> np.ndarray:
    """Mask of the names that start with one of some words."""
    return np.array([name.startswith(words) for name in names])


@lru_cache(maxsize=64)
def _ending(names: tuple[str, ...], word: str) -> np.ndarray:
    """Mask of the names that end with a word."""
    return np.array([name.endswith(word) for name in names])


@lru_cache(maxsize=8)
def _attention_places(names: tuple[str, ...]) -> tuple[tuple[str, tuple[str, ...], slice | list[int]], ...]:
    """Places of the vector kernels of attention, core or projections, with the names and columns of each."""
    core = _starting(names, "softmax", "attention dropout")
    places = []
    for place, chosen in (("attention", ~core), ("core", core)):
        index = np.flatnonzero(chosen).tolist()
        whole = slice(index[0], index[-1] + 1)
        columns = whole if len(index) == whole.stop - whole.start else index
        places.append((place, tuple(names[position] for position in index), columns))
    return tuple(places)


def kernel_parts(setting: Setting, wanted: Callable[[str], bool] = lambda place: True) -> list[Part]:
    """Kernels of the ``wanted`` places, of all by default, for one micro-batch.

    The products of the MLP, 1,000 tokens by 1,000 by 4,000 and back, move 18 MB each at 1 TB/s.

    >>> from ideal_machine import setting
    >>> parts = kernel_parts(setting())
    >>> [part.total_time.tolist() for part in parts if part.names == ("mlp up", "mlp down")]
    [[3.6e-05]]
    """
    parts = _gemm_parts(setting, wanted) + _vector_parts(setting, wanted)
    if setting.architecture.local_attention and some(setting.plan.flash_attention < 1):
        # standard attention masks what a window leaves out: local layers compute every score
        parts += [part._replace(place="local core") for part in parts if part.place == "core"]
    return parts + (_core_parts(setting) if wanted("core") else [])


def part_work(setting: Setting, part: Part) -> tuple[Array, Array]:
    """FLOP and main-memory traffic of one call of each operator of a part, (rows, operators). [FLOP, B] Attention
    counts without the saving of a causal mask; its backward pass is five products for two. Unknown traffic is NaN.
    """
    if part.gemms is None:
        flop = np.zeros_like(part.time) if part.flop is None else part.flop
        return flop, np.full_like(part.time, np.nan) if part.traffic is None else part.traffic
    plan, model, (m, n, k, batch) = setting.plan, setting.model, part.gemms.columns
    size = _element_size(setting, part.precision)
    if part.family == "gemm":
        return part.gemms.flop, product_traffic(m, n, k, batch, size, plan.element_size[:, None])
    products, groups = 2.0 if part.family == "attention" else 5.0, model.num_query_groups / model.num_attention_heads
    return products * m * n * k * batch, products * size * batch * k * (m + n * groups[:, None])


def ring_merges(setting: Setting) -> Iterator[tuple[str, str, operators.Vectors]]:
    """Merges of the partial results of a context ring, and sums of its partial gradients."""
    plan = setting.plan
    merged = np.where(plan.context_method == ContextMethod.RING, plan.context_parallel - 1.0, 0.0)
    if some(merged):
        output = plan.tokens * setting.shard.heads * setting.model.v_head_size
        traffic = (merged * output * (2.0 * WORD + plan.element_size))[:, None]
        yield "forward", "attention", operators.Vectors(("merge of partial attention",), traffic)
        yield "backward", "attention", operators.Vectors(("sum of partial gradients",), 3.0 * traffic)


def outside_layers(setting: Setting) -> Iterator[tuple[str, str, operators.Vectors]]:
    """Look-up of the embedding, and the loss over the vocabulary of a rank.

    Split over the vocabulary each step of the loss is a kernel on FP32 logits (Megatron-Core, cross_entropy.py): copy,
    maximum, subtraction, exponential, sum and division. A loss over chunks of the tokens moves as much as one over all:
    as much as a fused one if it is compiled, else as a plain one.
    """
    model, plan, element = setting.model, setting.plan, setting.plan.element_size
    vocab = plan.tokens * ceil_div(model.vocab_size, plan.loss_shards)
    plain = plan.plain_loss
    # bytes per logit of the loss and of its gradient: fused, plain, or step by step
    fused = (plan.cross_entropy == CrossEntropy.FUSED) | (plan.cross_entropy == CrossEntropy.CHUNKED) & ~plain
    loss = np.where(fused, 3.0 * element, element + np.where(plain, 3.0, 9.0) * WORD)
    gradient = np.where(fused, 2.0 * element, element + np.where(plain, 5.0, 3.0) * WORD)
    if some(narrow := plan.narrow_loss):  # no copies: softmax of logits; its gradient is made, read beside it, replaced
        loss = np.where(narrow, 2.0 * plan.loss_size, loss)
        gradient = np.where(narrow, 4.0 * plan.loss_size, gradient)
    looked_up = 2.0 * plan.tokens * model.hidden_size * element
    yield "forward", "embedding", operators.Vectors(("embedding",), looked_up[:, None])
    yield "forward", "head", operators.Vectors(("cross-entropy",), (vocab * loss)[:, None])
    yield "backward", "head", operators.Vectors(("cross-entropy gradient",), (vocab * gradient)[:, None])
