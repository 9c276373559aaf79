"""Kernels of sparse attention in training: scores over the visible entries, forward and backward, and the index."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, divide
from xlperf.equations.hardware.roofline import CORE, vector_time
from xlperf.equations.model.sparse_attention import (
    entries_seen,
    index_flop,
    index_traffic,
    scores_per_entry,
    sparse_shares,
)
from xlperf.equations.plan.records import WORD
from xlperf.equations.training.setting import Part, Setting

_GRADIENT_WORK = 2.0


class Core(NamedTuple):
    """Attention of one kind."""

    name: str
    share: Array  # of the layers with attention that is not local
    shape: tuple[Array, ...]  # batch, heads, groups, queries, keys, width, causal
    gathered: Array  # bytes that queries gather [B]


class SparseCores(NamedTuple):
    """Sparse attention of a layer."""

    whole: Array  # share of the layers that attend to everything
    cores: list[Core]
    indexing: list[Part]  # kernels of the index


def selected_everything(setting: Setting) -> np.ndarray:
    """Plans whose index selects the whole sequence: their selected layers are full attention, (rows,)."""
    model = setting.model
    return np.asarray((model.selected_ratio == 1.0) & (model.index_top_k >= setting.plan.sequence_length))


def sparse_cores(setting: Setting) -> SparseCores:
    """Core attention and index kernels of sparse layers, for one micro-batch.

    Latent attention is absorbed: the compressed vector is key and value of all heads. Every query gathers its entries
    through the last-level cache. The index trains beside the model with its own loss.

    Each of 1,000 tokens attends to the last 200 at most, 180 in the mean.

    >>> from ideal_machine import setting, sparse
    >>> _, _, _, queries, keys, *_ = sparse_cores(setting(sparse())).cores[0].shape
    >>> queries.tolist(), keys.tolist()
    ([1000.0], [180.0])
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
        cores.append(Core(name, share * attended, shape, gathered))
    others = model.num_global_layers / model.num_layers + np.where(covered, shares.selected, 0.0)
    return SparseCores(others * attended, cores, _index_parts(setting, shares.indexed * attended))


def _index_parts(setting: Setting, calls: Array) -> list[Part]:
    """Scores and selection of the index of a layer, the target of its loss, and its gradients.

    The loss is the divergence of the scores of the index from the attention scores on the selected entries, summed over
    the heads (arXiv:2512.02556 equation 4). Fused attention saves no scores: queries and keys are multiplied again
    (Megatron-Core dsa_cudnn_kernels.py). Its gradients take two products of the index with these entries.
    """
    model, plan = setting.model, setting.plan
    heads, length = setting.shard.index_heads, plan.sequence_length
    seen = entries_seen(0.0 * length, length, model.selected_ratio, np.inf)
    scores = scores_per_entry(model, heads)
    cached = plan.tokens / model.selected_ratio
    selected = entries_seen(0.0 * length, length, model.selected_ratio, model.index_top_k)
    flop, learned_flop = (index_flop(plan.tokens, one, heads, model.index_size)[:, None] for one in (seen, selected))
    traffic, learned_traffic = (
        index_traffic(plan.tokens, one, cached, model.index_size, plan.element_size, scores, WORD)[:, None]
        for one in (seen, selected)
    )
    width = model.head_size + 0.0 * length
    if setting.architecture.latent_attention:
        width = model.kv_lora_rank + model.qk_rope_head_size
    target = index_flop(plan.tokens, selected, setting.heads, width)[:, None]
    kinds = (
        ("forward", "index", flop, traffic),
        ("backward", "index target", target, 0.0 * traffic),
        ("backward", "index gradient", _GRADIENT_WORK * learned_flop, _GRADIENT_WORK * learned_traffic),
    )
    parts = []
    for phase, name, work, bytes_moved in kinds:
        constants = setting.constants["attention"]
        compute = work / (constants["compute_efficiency"] * setting.device.rate(CORE).peak_flop_rate)
        moved = vector_time(setting.device, setting.constants["vector"], bytes_moved, 0.0)
        part = Part(phase, "vector", (name,), "core", calls[:, None], np.maximum(compute, moved), None, bytes_moved)
        parts.append(part._replace(precision=CORE, flop=work))
    return parts
