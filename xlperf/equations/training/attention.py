"""Attention kernels of a training step: full, windowed, sparse with its index, and the scan of linear attention."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, divide, ones, some
from xlperf.equations.hardware.attention import attention_time
from xlperf.equations.hardware.roofline import linear_attention_time, transfer_time, vector_time
from xlperf.equations.model.linear_blocks import chunked_scan, scan_gradient
from xlperf.equations.model.operators import Gemms
from xlperf.equations.model.sparse import entries_seen, index_flop, index_ranks, index_traffic, sparse_shares
from xlperf.equations.plan.records import WORD, ContextMethod
from xlperf.equations.training.setting import Part, Setting

_GRADIENT_WORK = 2.0


class _Core(NamedTuple):
    """Attention of one kind: its name, the share of the layers that have it, the shape of a call, bytes it gathers."""

    name: str
    share: Array
    shape: tuple[Array, ...]
    gathered: Array


class _SparseCores(NamedTuple):
    """Sparse attention of a layer: share that attends to everything, the other kinds, and the kernels of the index."""

    whole: Array
    cores: list[_Core]
    indexing: list[Part]


def selected_everything(setting: Setting) -> np.ndarray:
    """Plans whose index selects the whole sequence: their selected layers are full attention.

    Parameters
    ----------
    setting : Setting
        Model and plan. [-]

    Returns
    -------
    array of bool
        Shape (rows,). [-]

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> model = SimpleNamespace(selected_ratio=np.ones(2), index_top_k=np.full(2, 2048.0))
    >>> plan = SimpleNamespace(sequence_length=np.array([2048.0, 4096.0]))
    >>> selected_everything(SimpleNamespace(model=model, plan=plan)).tolist()
    [True, False]
    """
    model = setting.model
    return np.asarray((model.selected_ratio == 1.0) & (model.index_top_k >= setting.plan.sequence_length))


def _sparse_cores(setting: Setting) -> _SparseCores:
    """Core attention and index kernels of sparse layers, for one micro-batch.

    Latent attention is absorbed: the compressed vector is key and value of all heads. Every query gathers entries of
    its own through the last-level cache. The index is trained beside the model by a loss of its own, which takes two
    products more.
    """
    model, plan = setting.model, setting.plan
    none, length, batch = 0.0 * plan.tokens, plan.sequence_length, plan.micro_batch_size
    attended = divide(model.num_layers, model.num_attention_layers - model.num_local_layers)
    shares = sparse_shares(model)
    covered = selected_everything(setting)
    groups, head_size = setting.key_heads, model.head_size + none
    if setting.architecture.latent_attention:
        groups, head_size = none + 1.0, model.kv_lora_rank + 0.5 * model.qk_rope_head_size
    near = entries_seen(none, length, 1.0, model.sparse_window)
    kinds = (
        ("selected attention", np.where(covered, 0.0, shares.selected), model.selected_ratio, model.index_top_k),
        ("compressed attention", shares.compressed, model.compressed_ratio, none + np.inf),
    )
    vectors = np.where(model.shared_key_value > 0.0, 0.5, 1.0) if setting.architecture.shared_key_value else 1.0
    vectors = 0.5 if setting.architecture.latent_attention else vectors
    cores = []
    for name, share, ratio, most in kinds:
        entries = entries_seen(none, length, ratio, most) + near
        gathered = 2.0 * vectors * plan.tokens * groups * entries * head_size * plan.element_size
        gathered = np.where(most < np.inf, gathered, 0.0)
        shape = (batch, setting.heads, groups, length, entries, head_size, none)
        cores.append(_Core(name, share * attended, shape, gathered))
    others = model.num_global_layers / model.num_layers + np.where(covered, shares.selected, 0.0)
    return _SparseCores(others * attended, cores, _index_parts(setting, shares.indexed * attended))


def _index_parts(setting: Setting, calls: Array) -> list[Part]:
    """Scores and selection of the index of a layer, and the gradients of its own loss."""
    model, plan = setting.model, setting.plan
    heads, length = index_ranks(model, plan.tensor_parallel), plan.sequence_length
    seen = entries_seen(0.0 * length, length, model.selected_ratio, np.inf)
    scores = np.where(model.index_block > 1.0, heads / model.index_block, 1.0)
    cached = plan.tokens / model.selected_ratio
    flop = index_flop(plan.tokens, seen, heads, model.index_size)[:, None]
    traffic = index_traffic(plan.tokens, seen, cached, model.index_size, plan.element_size, scores, WORD)[:, None]
    parts = []
    for phase, name, times in (("forward", "index", 1.0), ("backward", "index gradient", _GRADIENT_WORK)):
        constants = setting.constants["attention"]
        compute = times * flop / (constants["compute_efficiency"] * setting.wide_device.peak_flop_rate)
        moved = vector_time(setting.wide_device, setting.constants["vector"], times * traffic, 0.0)
        part = Part(phase, "vector", (name,), "core", calls[:, None], np.maximum(compute, moved), None, times * traffic)
        parts.append(part._replace(wide=True, flop=times * flop))
    return parts


def _local_shape(setting: Setting, length: Array) -> tuple[Array, Array, Array, Array]:
    """Attention shape (sequences, queries, keys, causal) with as many query-key pairs as a window or chunk."""
    model = setting.model
    window = np.minimum(model.window, length)
    keys = np.where(model.chunked > 0, window, window * (1.0 - window / (2.0 * length)))
    return length / window, window, keys, model.chunked


def _core_parts(setting: Setting) -> list[Part]:
    model, plan = setting.model, setting.plan
    heads = setting.heads
    groups = heads if setting.architecture.latent_attention else setting.key_heads
    head_size = 0.5 * (model.qk_head_size + model.v_head_size)
    length = plan.sequence_length
    once = ones(length)
    ringed = (plan.context_parallel > 1) & (plan.context_method == ContextMethod.RING)
    parts_of_ring = np.where(ringed, plan.context_parallel, 1.0)
    sequences = plan.micro_batch_size / (plan.context_parallel / parts_of_ring)
    uneven = plan.context_balance < 1
    if some(uneven):  # the rank with the last part of the sequence sees all keys before it
        gathered = uneven & (plan.context_parallel > 1) & (plan.context_method == ContextMethod.ALL_GATHER)
        sequences = np.where(gathered, sequences * (2.0 - 1.0 / plan.context_parallel), sequences)
    shapes = [("core", sequences, length / parts_of_ring, length / parts_of_ring, once, once)]
    if some(ringed):
        piece = length / plan.context_parallel
        seen = np.where(uneven, piece, 0.5 * piece)
        shapes.append(("core", sequences, piece, seen, 0.0 * once, np.where(ringed, parts_of_ring - 1.0, 0.0)))
    if setting.architecture.local_attention:
        count, queries, keys, causal = _local_shape(setting, length)
        batch = plan.micro_batch_size / plan.context_parallel * count
        shapes.append(("local core", batch, queries, keys, causal, once))
    parts: list[Part] = []
    sparse = _sparse_cores(setting) if setting.architecture.sparse_attention else None
    for place, batch, queries, keys, causal, calls in shapes:
        shape = (batch, heads, groups, queries, keys, head_size, causal)
        often = plan.flash_attention * calls
        if sparse is not None and place == "core":
            often = often * sparse.whole
        parts += _flash_parts(setting, "flash attention", place, often, shape)
    if sparse is not None:
        for core in sparse.cores:
            often = plan.flash_attention * core.share
            parts += _flash_parts(setting, core.name, "core", often, core.shape, core.gathered)
        parts += sparse.indexing
    return parts


def _flash_parts(
    setting: Setting, name: str, place: str, calls: Array, shape: tuple[Array, ...], gathered: Array | None = None
) -> tuple[Part, Part]:
    """Core attention, forward and backward, of a shape (batch, heads, groups, queries, keys, width, causal).

    Entries that are gathered go through the last-level cache; backward their gradients are added there too, in FP32.
    """
    batch, heads, _, queries, keys, head_size, _ = shape
    columns = tuple(values[:, None] for values in (*shape, setting.plan.element_size))
    gemms = Gemms((name,), queries[:, None], keys[:, None], head_size[:, None], (batch * heads)[:, None])
    forward = attention_time(setting.wide_device, setting.constants["attention"], *columns)
    backward = attention_time(
        setting.wide_device, setting.constants["attention_backward"], *columns, direction="backward"
    )
    if gathered is not None:
        moved = transfer_time(gathered[:, None], setting.wide_device.l2_bandwidth)
        words = 1.0 + 2.0 * WORD / setting.plan.element_size[:, None]
        forward, backward = np.fmax(forward, moved), np.fmax(backward, words * moved)
    gradient = f"{name} gradient"
    return (
        Part("forward", "attention", (name,), place, calls[:, None], forward, gemms, wide=True),
        Part("backward", "attention_backward", (gradient,), place, calls[:, None], backward, gemms, wide=True),
    )


def _scan_parts(setting: Setting) -> list[Part]:
    """Scan of a layer of linear attention, forward and backward: no state comes in or goes out."""
    model, plan = setting.model, setting.plan
    none = 0.0 * plan.tokens
    forward = chunked_scan(model, plan.tokens, none, plan.sequence_length, plan.tensor_parallel, plan.element_size)
    parts = []
    for phase, name, scan in (
        ("forward", "linear attention", forward),
        ("backward", "linear attention gradient", scan_gradient(forward)),
    ):
        flop, traffic, chunks = (values[:, None] for values in scan)
        constants = setting.constants["linear_attention"]
        time = linear_attention_time(setting.wide_device, constants, traffic, flop, chunks)
        parts.append(Part(phase, "linear_attention", (name,), "linear", ones(flop), time, None, traffic, True, flop))
    return parts


def attention_parts(setting: Setting) -> list[Part]:
    """Attention proper of a layer of each kind, forward and backward, for one micro-batch.

    Parameters
    ----------
    setting : Setting
        Model, devices, plan and calibration. [-]

    Returns
    -------
    list of Part
        With calls per layer and seconds per call. [s]
    """
    return (_scan_parts(setting) if setting.architecture.linear_attention else []) + _core_parts(setting)
