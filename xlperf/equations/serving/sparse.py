"""Kernels of sparse attention in serving: the index, attention to what it selects, attention to compressed entries."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array
from xlperf.equations.hardware.attention import attention_time, decode_attention_time
from xlperf.equations.hardware.roofline import transfer_time, vector_time
from xlperf.equations.model.model import Model
from xlperf.equations.model.serving import cache_elements
from xlperf.equations.model.sparse import entries_seen, index_flop, index_ranks, index_traffic
from xlperf.equations.plan.records import WORD
from xlperf.equations.serving.deployment import Batching, Deployment

Work = tuple[Array, Array, Array]


def scores_per_entry(model: Model, heads: Array) -> Array:
    """Scores that an index keeps of an entry: one for the sum over its heads, or one of each head for a block.

    Parameters
    ----------
    model : Model
        Block of the index, (rows,). [-]
    heads : Array
        Heads of the index on the rank, (rows,). [-]

    Returns
    -------
    Array
        Shape (rows,). [-]

    Examples
    --------
    One for the sum over 64 heads; four for a block of 128 entries:

    >>> from types import SimpleNamespace
    >>> scores_per_entry(SimpleNamespace(index_block=np.array([1.0, 128.0])), np.array([64.0, 4.0])).tolist()
    [1.0, 0.03125]
    """
    return np.where(model.index_block > 1.0, heads / model.index_block, 1.0)


def _index(deployment: Deployment, queries: Array, seen: Array, cached: Array) -> Work:
    """FLOP, traffic and time (rows, 1) of the index of a layer: scores by the matrix units, then the selection."""
    model, plan = deployment.model, deployment.plan
    heads = index_ranks(model, plan.attention_parallel)
    flop = index_flop(queries, seen, heads, model.index_size)[:, None]
    sizes = (model.index_size, model.index_key_size, scores_per_entry(model, heads), WORD)
    traffic = index_traffic(queries, seen, cached, *sizes)[:, None]
    constants, device = deployment.kernels["attention"], deployment.attention_device
    compute = flop / (constants["compute_efficiency"] * device.peak_flop_rate)
    moved = vector_time(device, deployment.kernels["vector"], traffic, 0.0)
    return flop, traffic, np.maximum(compute, moved)


def _gathered(deployment: Deployment, time: Array, queries: Array, entries: Array, size: Array) -> Array:
    """Time of attention whose queries each gather entries of their own through the last-level cache."""
    elements = cache_elements(deployment.model, deployment.plan.attention_parallel, deployment.architecture.one_vector)
    gathered = (queries * entries * elements * size)[:, None]
    return np.fmax(time, transfer_time(gathered, deployment.attention_device.l2_bandwidth))


def prefill_sparse(deployment: Deployment, batching: Batching, whole: Work) -> list[Work]:
    """Sparse attention of a layer in a pass of the prefill: of selected entries, of the index, of compressed ones.

    Queries of a chunk each attend to their own entries and to a window; latent attention is then absorbed as in
    decoding. Where the index selects all that there is, selected layers attend as layers without it.

    Parameters
    ----------
    deployment : Deployment
        Model, accelerators, plan, calibration, (rows,).
    batching : Batching
        How the batch is split, (rows,). [-]
    whole : tuple of Array
        FLOP, traffic and time of a layer that attends to everything, (rows, 1). [FLOP, B, s]

    Returns
    -------
    list of tuple of Array
        FLOP, traffic and time (rows, 1) of each. [FLOP, B, s]
    """
    model, plan, latent = deployment.model, deployment.plan, deployment.architecture.latent_attention
    prompts, passes = batching.own_prompts / batching.rounds, batching.passes / batching.rounds
    heads = np.ceil(model.num_attention_heads / plan.attention_parallel)
    groups = np.ceil(model.num_query_groups / plan.attention_parallel)
    head_size = model.head_size
    if latent:
        groups, head_size = np.ones_like(heads), model.kv_lora_rank + 0.5 * model.qk_rope_head_size
    start, end = plan.prompt_length - plan.new_tokens, plan.prompt_length
    near = entries_seen(start, end, 1.0, model.sparse_window)
    queries = prompts * plan.own_tokens / passes
    longer = 1.0 + plan.prompt_variation * plan.prompt_variation

    def attended(entries: Array) -> Work:
        shape = (prompts, heads, groups, plan.own_tokens, entries, head_size, 0.0 * heads, plan.attention_size)
        columns = (values[:, None] for values in shape)
        time = attention_time(deployment.attention_device, deployment.kernels["attention"], *columns) / passes[:, None]
        flop = (4.0 * queries * heads * head_size * entries)[:, None]
        moved = 2.0 * prompts * head_size * (heads * plan.own_tokens + groups * end) * plan.attention_size / passes
        return flop, moved[:, None], _gathered(deployment, time, queries, entries, plan.attention_size)

    selected = attended(entries_seen(start, end, model.selected_ratio, model.index_top_k) + near)
    covered = (model.index_top_k >= end / model.selected_ratio) & (model.selected_ratio == 1.0)
    flop, traffic, time = (np.where(covered[:, None], *pair) for pair in zip(whole, selected, strict=True))
    seen = entries_seen(start, end, model.selected_ratio, np.inf) * longer
    index = _index(deployment, queries, seen, prompts / passes * end / model.selected_ratio)
    compressed = attended(entries_seen(start, end, model.compressed_ratio, np.inf) * longer + near)
    return [(flop, traffic, time), index, compressed]


def decode_sparse(deployment: Deployment, sequences: Array, contexts: Array, shape: tuple[Array, ...]) -> list[Work]:
    """Index and attention kernels of sparse attention in a decode step, where each token reads entries of its own.

    Parameters
    ----------
    deployment : Deployment
        Model, accelerators, plan, calibration, (rows,).
    sequences : Array
        Sequences of an attention replica, (rows,). [-]
    contexts : Array
        Contexts below and above the mean, (rows, 2). [-]
    shape : tuple of Array
        Heads that are multiplied for one token, heads that are read and their width, (rows, 1). [-]

    Returns
    -------
    list of tuple of Array
        FLOP, traffic and mean time (rows, 1) of each. [FLOP, B, s]
    """
    model, plan, kernels = deployment.model, deployment.plan, deployment.kernels
    family = "attention_latent" if deployment.architecture.one_vector else "attention_decode"
    queries = (sequences * (1.0 + plan.draft_tokens))[:, None]
    heads, read_heads, read_size = shape
    size, near = plan.kv_size[:, None], np.minimum(contexts, model.sparse_window[:, None])

    def attended(entries: Array) -> Work:
        time = decode_attention_time(
            deployment.attention_device, kernels[family], queries, heads, read_heads, entries, read_size, size
        )
        middle = 0.5 * (entries[:, :1] + entries[:, 1:])
        flop = 4.0 * (queries * read_size) * heads * middle
        traffic = 2.0 * (queries * read_size) * (read_heads * middle * size)
        return flop, traffic, 0.5 * (time[:, :1] + time[:, 1:])

    scored = contexts / model.selected_ratio[:, None]
    selected = attended(np.minimum(scored, model.index_top_k[:, None]) + near)
    found = [_index(deployment, queries[:, 0], scored[:, side], sequences * scored[:, side]) for side in range(2)]
    flop, traffic, time = (0.5 * (low + high) for low, high in zip(*found, strict=True))
    compressed = attended(contexts / model.compressed_ratio[:, None] + near)
    return [selected, (flop, traffic, time), compressed]
