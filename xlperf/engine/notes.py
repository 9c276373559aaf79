"""Notes in the column ``reason`` of legal plans: memory, sensitivities, assumptions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from xlperf.base.arrays import Array, decade, divide, octave_below, some
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.equations.hardware.power import PowerLimits
from xlperf.equations.plan.records import Mode, Remark, remarks_of_rows
from xlperf.equations.plan.serving_plan import InferencePlan
from xlperf.equations.serving.phases import BOUNDS

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
            dict.fromkeys(family.replace("_", " ") for bit, (family, _) in enumerate(shown) if value >> bit & 1)
        )
        for value in set(values)
    }
    named = np.array([names[value] for value in values], dtype=object)
    return [Remark(pattern > 0, "calibration extrapolated: {}", (named,))]


_BUSY = 70.0  # share of the largest request rate above which waits rise steeply [%]
_WAITING, _TRADING = 0.005, 0.25  # shares of TTFT above which a wait is noted: in general, of disaggregated pools [-]
_STEEP = 0.15  # largest relative change of a result by a small change of the plan without a note [-]
_TILES = 8.0, 1024.0  # range of GEMM rows that one or a few tiles hold [-]


def edge_notes(
    stated: InferencePlan, plan: InferencePlan, results: Mapping[str, Array], illegal: np.ndarray
) -> list[Remark]:
    """Steep spots, where a small change of load or memory changes a result much: queues, few places, tile edges.

    ``stated``: plans of the sheet; ``plan``: those of the decode pool with defaults.
    """
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
    for column in plans.schema.columns:
        exact_names = catalog.taken(column.reference) if column.kind == "reference" and column.name in plans else {}
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
