"""Notes in the column ``reason`` of legal plans: memory, sensitivities, assumptions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from xlperf.base.arrays import Array, decade, divide, finite, octave_below, some
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.equations.hardware.power import PowerLimits
from xlperf.equations.model.operators import cache_ratio
from xlperf.equations.plan.records import CrossEntropy, Mode, Recompute, Remark, remarks_of_rows
from xlperf.equations.plan.serving_plan import InferencePlan
from xlperf.equations.plan.training_plan import TrainingPlan
from xlperf.equations.serving.deployment import Deployment
from xlperf.equations.serving.phases import BOUNDS

_UNSURE_MEMORY = 0.02
"""Share of the memory of an accelerator by which start-up logs of engines differ from predictions. [-]"""


def first_token_ends(
    stated: InferencePlan, plan: InferencePlan, results: Mapping[str, Array], first: Array, time: Array
) -> tuple[Array, Array]:
    r"""Ends of the band of the time to first token of closed loops, (rows,). [s]

    In a closed loop of c requests, each with p places and a cycle T in its place, one waits for :math:`T \max(c / p -
    1, 0)` (Little's law): places are as unsure as the memory beside the cache. Separate pools wait for the slower one:
    a load rho of the capacity adds :math:`L \max(\rho b - 1, 0)` to a latency L if the pools are b times slower.
    Heuristic, this work. ``plan``: the plans with defaults, of the decode pool; ``first``, ``time``: ends of the bands
    of the first token and of the time per token, as ratios, (2, rows).
    """
    ttft, queue = results["ttft"], results["queue_time"]
    usual = ttft * first[0], ttft * first[1]
    closed = np.isnan(stated.request_rate) & (stated.mode != Mode.STATIC) & (results["max_batch_size"] >= 1.0)
    pools = stated.mode == Mode.DISAGGREGATED
    requests = stated.concurrency / np.maximum(plan.num_replicas, 1.0)
    latency = results["latency"]
    # One pool: places with less and with more memory, at the cycle of a request in its place.
    cycle, most = latency - queue, results["max_batch_size"]
    whole = np.where(
        np.isnan(plan.run_requests), 1.0, 1.0 - 0.5 * np.minimum(stated.concurrency / plan.run_requests, 1)
    )
    places = results["places"]
    unsure = _UNSURE_MEMORY * results["memory_capacity"] * plan.data_parallel_attention
    unsure = np.minimum(divide(unsure, results["request_cache"] * most, 0.0), 0.5)

    def waiting(number: Array) -> Array:
        return np.asarray(whole * cycle * np.maximum(requests / np.maximum(number, 1.0) - 1.0, 0.0))

    added, saved = (waiting(places * (1.0 + share)) - waiting(places) for share in (-unsure, unsure))
    # Separate pools: the slower one with the band of its time.
    load = divide(results["tokens_per_second"] / stated.output_length, results["max_request_rate"], 0.0)
    added = np.where(pools, latency * np.maximum(load * time[1] - 1.0, 0.0), added)
    saved = np.where(pools, -latency * np.maximum(1.0 - time[0], 0.0), saved)
    alone = ttft - queue
    low = np.fmin(usual[0], alone * first[0] + np.maximum(queue + saved, 0.0))
    high = np.fmax(usual[1], alone * first[1] + queue + added)
    return np.where(closed, low, usual[0]), np.where(closed, high, usual[1])


COMPUTE = float(BOUNDS.index("compute"))


def gibibytes(values: Array) -> Array:
    """Bytes in GiB with one decimal, for a sentence."""
    return np.asarray(np.round(values / 2.0**30, 1))


def rounded_down(values: Array) -> Array:
    """Limits above 0, rounded down to four digits for a sentence.

    >>> rounded_down(np.array([122.456, 0.0123456])).tolist()
    [122.4, 0.01234]
    """
    scale = 1000.0 / decade(np.where((values > 0.0) & (values < np.inf), values, 1.0))
    return np.asarray(np.floor(values * scale) / scale)


_IN_WORDS = {
    "gemm": "matrix products", "vector": "element-wise kernels", "experts": "products of experts",
    "attention_latent": "latent attention", "attention_decode": "attention in decoding",
    "attention_backward": "backward pass of attention", "all_reduce": "all-reduce", "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter", "all_to_all": "all-to-all", "serving_software": "times of the engine",
    "serving_host": "times of its host", "serving_experts": "experts in serving",
    "training_software": "times of the stack",
}  # fmt: skip
"""What the constants of a family are of."""


def extrapolation_notes(extrapolated: list[tuple[str, np.ndarray]], illegal: np.ndarray) -> list[Remark]:
    """A note for rows with calibration from other generations or software; ``extrapolated``: such rows by family."""
    shown = [
        (family, mask)
        for family, mask in extrapolated
        if some(mask) and family != "band" and not family.endswith(("_memory", "_calls"))
    ]
    if not shown:
        return []
    pattern = np.zeros(len(illegal), dtype=np.int64)
    for bit, (_, mask) in enumerate(shown):
        pattern |= np.where(mask & ~illegal, 1 << bit, 0)
    if not some(pattern):
        return []
    values = pattern.tolist()
    names = {
        value: ", ".join(
            dict.fromkeys(
                _IN_WORDS.get(family, family.replace("_", " "))
                for bit, (family, _) in enumerate(shown)
                if value >> bit & 1
            )
        )
        for value in set(values)
    }
    named = np.array([names[value] for value in values], dtype=object)
    return [Remark(pattern > 0, "measured on other hardware or software: {}", (named,))]


_BUSY = 70.0  # share of the largest request rate above which waits rise steeply [%]
_WAITING, _TRADING = 0.005, 0.25  # shares of TTFT above which a wait is noted: in general, of disaggregated pools [-]
_STEEP = 0.15  # largest relative change of a result by a small change of the plan without a note [-]
_TILES = 8.0, 1024.0  # range of GEMM rows that one or a few tiles hold [-]


def edge_notes(
    stated: InferencePlan, plan: InferencePlan, results: Mapping[str, Array], illegal: np.ndarray
) -> list[Remark]:
    """Steep spots, where a small change of load or memory changes a result much: queues, few places, tile edges."""
    streamed = ~illegal & (stated.mode != Mode.STATIC) & (results["max_batch_size"] >= 1.0)
    given, most = ~np.isnan(stated.request_rate), results["max_batch_size"]
    queue, first = results["queue_time"], results["ttft"]
    waits = streamed & (queue > _WAITING * first)
    shares = np.round(100.0 * stated.request_rate / results["max_request_rate"], 1), np.round(1e3 * queue, 1)
    pools = stated.mode == Mode.DISAGGREGATED
    # Queues for places.
    notes = [
        Remark(
            waits & given & (shares[0] > _BUSY),
            "arrivals are {} % of the largest request rate: a request waits {} ms for a place on average, and a little "
            "more load makes it much longer",
            shares,
        ),
        Remark(
            waits & ~given & ~pools,
            "more requests are in flight than have places (memory, max running batch): one waits {} ms on average",
            shares[1:],
        ),
        Remark(
            waits & ~given & pools & (queue > _TRADING * first),
            "requests of a constant number wait {} ms for a prefill pass or a place to decode: faster decoding "
            "shortens TPOT and lengthens TTFT, as more of them are in the prefill pool",
            shares[1:],
        ),
    ]
    # Few places: relative change of their number by 1 GiB per attention replica.
    replicas = np.minimum(plan.data_parallel_attention, np.maximum(most, 1.0))
    change = np.maximum(divide(replicas * 2.0**30, results["request_cache"], np.inf), replicas)
    change = change / np.maximum(most, 1.0)
    free = np.isnan(stated.max_running_batch) | (stated.max_running_batch > most)
    few = streamed & free & (change > _STEEP)
    notes.append(
        Remark(few, "the memory has room for {} at once: 1 GiB more or less changes the number by over 15 %", (most,))
    )
    room = results["kv_cache_tokens"] / plan.data_parallel_attention
    words = "the cache of an engine has room for {} tokens, less than max context {}, which vLLM does not start with"
    notes.append(Remark(streamed & (room < plan.max_context), words, (np.floor(room), plan.max_context)))
    # GEMM rows at the edge of a tile.
    rows = np.ceil(plan.batch_size / plan.data_parallel_attention / plan.pipeline_parallel) * (
        1.0 + plan.drafted_tokens
    )
    edge = (rows >= _TILES[0]) & (rows <= _TILES[1]) & (octave_below(np.maximum(rows, 1.0)) == rows)
    edge &= ~illegal & (stated.mode == Mode.STATIC) & (results["time_matrix"] > _STEEP * results["tpot"])
    words = "{} rows of products fill whole tiles: one request more opens others, which may take a step much longer"
    notes.append(Remark(edge & (results["bound"] == COMPUTE), words, (rows,)))
    # Batches that are whole rounds of the attention replicas.
    copies, static = plan.data_parallel_attention, stated.mode == Mode.STATIC
    batch = np.where(static, plan.batch_size, np.where(given, np.nan, stated.concurrency / plan.num_replicas))
    rounds = batch / copies
    whole = ~illegal & (copies > 1.0) & (rounds == np.floor(rounds))
    words = "a batch of {} gives each of the {} attention replicas {}: one request more gives one of them one more"
    notes.append(Remark(whole & (rounds * _STEEP < 1.0), words, (batch, copies, rounds)))
    words = "of {} requests in flight few prompts wait for those of other attention replicas: of one more many do"
    alone = ~illegal & (plan.gathering_steps > 0.0) & (copies > 1.0) & (rounds < 1.0)
    notes.append(Remark(alone, words, (stated.concurrency,)))
    # Prompts that fill whole prefill passes.
    # A prefix that is kept once.
    prefix = np.round(100.0 * stated.shared_prefix, 1)
    words = "{} % of each prompt is a prefix that all requests share and each attention replica keeps once"
    notes.append(Remark(~illegal & (prefix > 0.0), words, (prefix,)))
    # Prompts that fill whole prefill passes.
    passes, more = (_passes(plan, np.ceil((plan.batch_size + further) / copies)) for further in (0.0, 1.0))
    words = "the prompts of a batch of {} fill {} whole passes of the prefill: one request more opens another"
    notes.append(Remark(~illegal & static & (more > passes) & (passes * _STEEP < 1.0), words, (batch, passes)))
    return notes


def _passes(plan: InferencePlan, prompts: Array) -> Array:
    """Prefill passes for the prompts of an attention replica, of whole prompts if one fits. [-]"""
    tokens, each = plan.prefill_tokens, np.maximum(plan.new_tokens, 1.0)
    return np.where(each <= tokens, np.ceil(prompts / np.floor(tokens / each)), np.ceil(prompts * each / tokens))


def limit_notes(limits: PowerLimits, illegal: np.ndarray) -> list[Remark]:
    """Plans whose lowered power limit slows long GEMMs, and to which share of the clock."""
    lowered = ~illegal & (limits.kept < limits.own)
    if not some(lowered):
        return []
    numbers = limits.kept, np.round(100.0 * limits.clock_share), limits.own
    slowed = "power limit {} W: the clock of long products falls to {} % of that at {} W"
    return [Remark(lowered & (limits.clock_share < 1.0), slowed, numbers)]


def name_notes(plans: Table, catalog: Catalog, illegal: np.ndarray) -> list[Remark]:
    """Notes on names in another spelling than the catalog's, one per column at most."""
    notes = []
    for column in plans.schema.references:
        exact_names = catalog.taken(column.reference) if column.name in plans else {}
        if exact_names:
            names = plans.text(column.name)
            exact = np.array([exact_names.get(name, "") for name in names.tolist()], dtype=object)
            words = f"{column.name.replace('_', ' ')} {{}} taken as {{}}"
            notes.append(Remark((exact != "") & ~illegal, words, (names, exact)))
    return notes


def add_notes(reason: np.ndarray, notes: list[Remark]) -> None:
    """Append the sentences of notes to the reasons of their rows, in place."""
    shown, sentences = remarks_of_rows(notes, len(reason))
    rows = np.flatnonzero(shown)
    if len(rows):
        pairs = zip(reason[rows].tolist(), sentences[rows].tolist(), strict=True)
        reason[rows] = [f"{before}; {words}" if before else words for before, words in pairs]


# Words of ``cost_basis``: no price; capex over life, energy and running cost; the rental price
BASES = ("", "own", "rent")


def basis_words(rented: np.ndarray, cost_rate: Array, other: np.ndarray | None = None) -> np.ndarray:
    """Price basis of plans: ``rent``, ``own``, ``rent and own`` or ""; ``other``: ``rented`` of the prefill pool."""
    words = np.where(rented, BASES[2], BASES[1]).astype(object)
    if other is not None:
        words[rented != other] = "rent and own"
    words[np.isnan(cost_rate)] = BASES[0]
    return words


def unpriced_notes(
    illegal: np.ndarray, catalog: Catalog, pools: Mapping[str, tuple[np.ndarray, Array]]
) -> list[Remark]:
    """Plans without a cost; ``pools``: rows of the accelerators and their cost rate by the pool's word."""
    names = catalog.tables["accelerators"].text("accelerator")
    notes = []
    for pool, (rows, cost_rate) in pools.items():
        unpriced = ~illegal & np.isnan(cost_rate)
        if unpriced.any():
            words = f"no cost: the sheet prices has neither a rental price nor a capex for {pool}accelerator {{}}"
            notes.append(Remark(unpriced, words, (names[rows],)))
    return notes


def memory_note(lacking: np.ndarray, pool: str, used: Array, usable: Array, capacity: Array) -> Remark:
    """Plans of a pool whose memory lacks room for what they use."""
    sizes = gibibytes(used), gibibytes(np.minimum(usable, capacity)), gibibytes(capacity)
    return Remark(lacking, f"{pool}needs {{}} GiB, the engine may use {{}} GiB of {{}} GiB", sizes)


def host_note(legal: np.ndarray, used: Array, capacity: Array) -> Remark:
    """Plans whose weights, cache or adapters on the host exceed its memory."""
    words = "the host needs {} GiB for one accelerator and has {} GiB: a smaller share of weights or cache there"
    return Remark(legal & (used > capacity), words, (gibibytes(used), gibibytes(capacity)))


_RANKS = (64.0, 32.0, 16.0, 8.0, 4.0, 2.0)
_HALF = 0.5
_MOST_TAKEN = 0.95
"""Largest memory fraction that users of vLLM and SGLang give. [-]"""


def _named(parts: Array, cases: list[tuple[int, np.ndarray, str]], lacking: np.ndarray) -> Iterator[Remark]:
    """A remark for each case on the rows whose largest part it is about; earlier cases go first."""
    largest, left = np.argmax(finite(parts), axis=0), lacking.copy()
    for part, rows, words in cases:
        chosen = left & (largest == part) & rows
        yield Remark(chosen, words, (gibibytes(parts[part]),))
        left &= ~chosen


def serving_remedies(plan: InferencePlan, results: Mapping[str, Array], lacking: np.ndarray) -> list[Remark]:
    """Weights that leave no room, or else the larger of cache, activations and memory that the engine sets aside."""
    if not some(lacking):
        return []
    room = np.minimum(results["memory_usable"], results["memory_capacity"])
    weights, cache = results["memory_weights"], results["memory_kv_cache"]
    beside = cache + results["memory_activations"]
    heavy = lacking & (weights + np.minimum(beside, _HALF * (room - weights)) > room)
    # Ranks that the weights need, in doublings.
    ranks = np.full_like(room, np.nan)
    for times in _RANKS:
        ranks = np.where(weights / times + beside <= room, times, ranks)
    known = ~np.isnan(ranks)
    sizes, aside = (gibibytes(weights), ranks), results["memory_capacity"] - room
    wary = heavy & (weights + beside <= _MOST_TAKEN * results["memory_capacity"])  # the engine, not the memory, lacks
    heavy = heavy & ~wary
    words = "weights take {} GiB: {} times as many ranks (tensor or pipeline parallel), or a narrower precision"
    alone = "weights take {} GiB, and no number of ranks makes room for the rest: see the batch and the prompt as well"
    kept = "weights take {} GiB and the engine sets {} GiB aside: a larger memory fraction, or more ranks"
    parts = np.stack([cache, results["memory_activations"], aside])
    everywhere = np.ones_like(lacking)
    cases = [
        (0, plan.kv_size > 1.0, "the cache takes {} GiB: kv precision fp8, a smaller batch, shorter prompts"),
        (0, everywhere, "the cache takes {} GiB: a smaller batch, shorter prompts or outputs, more ranks"),
        (1, everywhere, "activations of a prefill pass take {} GiB: fewer prefill tokens"),
        (2, everywhere, "the engine sets {} GiB aside: a larger memory fraction, a smaller max running batch"),
    ]
    return [
        Remark(wary, kept, (sizes[0], gibibytes(aside))),
        Remark(heavy & known, words, sizes),
        Remark(heavy & ~known, alone, sizes[:1]),
        *_named(parts, cases, lacking & ~heavy & ~wary),
    ]


def training_remedies(plan: TrainingPlan, results: Mapping[str, Array], lacking: np.ndarray) -> list[Remark]:
    """The largest of weights, gradients, optimizer state, saved activations, and what the loss and one layer add."""
    if not some(lacking):
        return []
    saved = results["memory_layer_activations"]
    names = ("weights", "gradients", "optimizer")
    parts = np.stack([*(results[f"memory_{name}"] for name in names), saved, results["memory_activations"] - saved])
    everywhere, whole = np.ones_like(lacking), "more tensor or pipeline parallel"
    spread = plan.data_parallel > 1.0
    loss = (plan.cross_entropy != CrossEntropy.CHUNKED) & (plan.cross_entropy != CrossEntropy.FUSED)
    cases = [
        (0, spread & (plan.zero_stage < 3.0), f"weights take {{}} GiB: zero stage 3, {whole}"),
        (0, everywhere, f"weights take {{}} GiB: {whole}"),
        (1, spread & (plan.zero_stage < 2.0), "gradients take {} GiB: gradient precision bf16, zero stage 2"),
        (1, everywhere, f"gradients take {{}} GiB: gradient precision bf16, {whole}"),
        (2, spread & (plan.zero_stage < 1.0), "optimizer state takes {} GiB: zero stage 1"),
        (2, everywhere, "optimizer state takes {} GiB: offload optimizer, or more accelerators to share it"),
        (3, plan.recompute == Recompute.NONE, "saved activations take {} GiB: recompute selective or full"),
        (3, plan.recompute == Recompute.SELECTIVE, "saved activations take {} GiB: recompute full"),
        (3, plan.micro_batch_size > 1.0, "saved activations take {} GiB: a smaller micro batch size"),
        (3, everywhere, "saved activations take {} GiB: more tensor or context parallel"),
        (4, loss, "the loss and one layer take {} GiB: cross entropy fused or chunked, a smaller micro batch size"),
        (4, everywhere, "the loss and one layer take {} GiB: a smaller micro batch size, more context parallel"),
    ]
    return list(_named(parts, cases, lacking))


def window_notes(deployment: Deployment, illegal: np.ndarray) -> list[Remark]:
    """Engines that keep the full KV cache in layers with a sliding window, and how much larger it is."""
    model, plan = deployment.model, deployment.plan
    full = deployment.software["whole_history"][:, 0] > 0.0
    longer = np.asarray(full & (model.num_local_layers > 0.0) & (plan.context_length > model.window))
    if not longer.any():
        return []
    far, near = cache_ratio(model, plan.attention_parallel, deployment.architecture)
    local_size = model.num_local_layers * near
    global_size = (model.num_attention_layers - model.num_local_layers) * far
    kept = global_size + local_size * np.minimum(model.window / plan.context_length, 1.0)
    ratio = divide(global_size + local_size, kept)
    words = (
        "keeps the whole history in layers with a window of {} tokens, {} times the cache of an engine that does not"
    )
    return [Remark(longer & ~illegal, f"the engine {words}", (model.window, np.round(ratio, 1)))]
